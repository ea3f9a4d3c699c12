//! The names of commands and events: stored, sent and matched for ever, so each is checked before it registers.
//!
//! Applications bring the names of their own sources, and the sources disagree about spelling. A name is
//! therefore spelled in one style, never in a mixture of them. What the styles share is the mood: a command asks
//! (`Place`), an event states what happened (`Placed`). How much of that is a must is the aggregate's to choose.

mod tense;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use tense::{Tense, VerbPhrase, words};

/// The longest name in bytes; the columns that hold names are this wide.
pub const MAX_NAME_BYTES: usize = 128;

/// How events are spelled. The four spellings are disjoint: no name fits two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventStyle {
    /// `<Domain>.<Aggregate>[.<Entity>].<PastTense>`, as in `Shop.Order.Payment.Confirmed`. The last segment may carry
    /// the entity: `Shop.Order.PaymentConfirmed`.
    DottedPascal,
    /// Two or more lower-case segments, as in `order.placed` or `order.payment.confirmed`.
    DottedLower,
    /// Two or more words without dots, as in `OrderPlaced`.
    Pascal,
    /// Two or more words joined by `_`, as in `ORDER_PLACED`.
    UpperSnake,
}

/// How commands are spelled. One aggregate may spell its commands and its events differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandStyle {
    /// `Command.<Domain>.<Aggregate>[.<Entity>].<Imperative>`, as in `Command.Shop.Order.Payment.Confirm`.
    DottedPascal,
    /// Two or more lower-case segments, as in `order.place`.
    DottedLower,
}

/// What the names of an aggregate must be. The spelling always must: it is what others match. Whether the last word is in
/// its tense is told by its letters, so that is a must only for who says so, and the words can be extended.
///
/// ```
/// use towpath_core::name::NameRule;
///
/// let mut warnings = Vec::new();
/// assert!(NameRule::ANY.event("book.overdue", &mut warnings).is_ok());
/// assert_eq!(warnings.len(), 1);
///
/// assert!(NameRule::TENSED.event("book.overdue", &mut warnings).is_err());
/// const BOOKS: NameRule = NameRule::TENSED.with_facts(&["overdue"]);
/// assert!(BOOKS.event("book.overdue", &mut warnings).is_ok());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct NameRule {
    commands: &'static [CommandStyle],
    events: &'static [EventStyle],
    /// Whether a name out of its tense, or a pair whose verbs differ, is refused.
    strict: bool,
    /// Whether each command that users send names the event that it gives.
    paired: bool,
    tense: Tense,
}

/// Why a text cannot be the name of a command or an event, or should not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Nothing was given.
    #[error("a name is empty; write for example `{example}`")]
    Empty {
        /// A name that would do.
        example: &'static str,
    },
    /// More bytes than the column holds.
    #[error("the name that begins `{begins}` has {bytes} bytes; a name has at most {MAX_NAME_BYTES}")]
    TooLong {
        /// The first characters of the text given. All of it may be far too much for a log line.
        begins: String,
        /// The length given.
        bytes: usize,
    },
    /// The spelling is wrong.
    #[error("`{given}` is not spelled as a name is; write {wants}")]
    WrongSpelling {
        /// The text given.
        given: String,
        /// What the style, or each of the styles that were tried, wants.
        wants: String,
    },
    /// An event that carries the prefix of commands.
    #[error("`{given}` begins with `Command.`, which marks commands; write the event without it")]
    CommandPrefix {
        /// The text given.
        given: String,
    },
    /// An event that does not end in something that happened.
    #[error(
        "`{given}` is an event and `{word}` is not in the past tense; write what has happened, as in `{example}`, or \
         declare the word (`NameRule::with_facts`)"
    )]
    NotPastTense {
        /// The text given.
        given: String,
        /// Its last word.
        word: String,
        /// A name that would do.
        example: &'static str,
    },
    /// A command without a verb that asks.
    #[error(
        "`{given}` is a command and `{word}` is not an imperative; write what is asked for, as in `{example}`"
    )]
    NotImperative {
        /// The text given.
        given: String,
        /// Its last segment.
        word: String,
        /// A name that would do.
        example: &'static str,
    },
    /// A command whose last segment holds more than the verb.
    #[error(
        "`{given}` is a command and its last segment `{segment}` is more than a verb; put what the verb acts on \
         into a segment of its own, as in `{example}`"
    )]
    MoreThanAVerb {
        /// The text given.
        given: String,
        /// Its last segment.
        segment: String,
        /// A name that would do.
        example: &'static str,
    },
}

/// Why an event cannot be the declared result of a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairingMismatch {
    /// They belong to different aggregates.
    #[error("`{command}` cannot result in `{event}`: that is another aggregate; write an event of `{home}`")]
    OtherAggregate {
        /// The command.
        command: CommandName,
        /// The event.
        event: EventName,
        /// The domain and aggregate of the command.
        home: String,
    },
    /// They name different entities.
    #[error(
        "`{command}` cannot result in `{event}`: it does not name the entity; write `{entity}.…` or `{entity}…`"
    )]
    OtherEntity {
        /// The command.
        command: CommandName,
        /// The event.
        event: EventName,
        /// The entity of the command.
        entity: String,
    },
    /// The event does not end in the past tense of the command's verb.
    #[error(
        "`{command}` cannot result in `{event}`: an event that answers it ends in the past tense of `{verb}`"
    )]
    OtherVerb {
        /// The command.
        command: CommandName,
        /// The event.
        event: EventName,
        /// The command's verb.
        verb: String,
    },
}

/// The name of an event type, checked where it was registered. Cloning it copies a pointer.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventName(Arc<str>);

/// The name of a command type, checked where it was registered. Cloning it copies a pointer.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandName(Arc<str>);

impl NameRule {
    /// Any style. What seems out of tense is a warning, and pairs are taken as they are declared.
    pub const ANY: Self = Self {
        commands: &CommandStyle::ALL,
        events: &EventStyle::ALL,
        strict: false,
        paired: false,
        tense: Tense::ENGLISH,
    };

    /// Any style, with each name in its tense, and each event that is declared as the result of a command in the past tense
    /// of the command's verb.
    pub const TENSED: Self = Self { strict: true, ..Self::ANY };

    /// `Command.<Domain>.<Aggregate>[.<Entity>].<Imperative>` and `<Domain>.<Aggregate>[.<Entity>].<PastTense>` and no other
    /// style, each name in its tense; each command that users send is paired with the event it gives, and a pair shares domain,
    /// aggregate, entity and verb (G1).
    pub const DOTTED: Self = Self {
        commands: &[CommandStyle::DottedPascal],
        events: &[EventStyle::DottedPascal],
        paired: true,
        ..Self::TENSED
    };

    /// Words that state a fact without a past tense, in lower case: `ready`, `overdue`.
    pub const fn with_facts(mut self, facts: &'static [&'static str]) -> Self {
        self.tense.facts = facts;
        self
    }

    /// Verbs with their past tense, in lower case, where spelling does not tell it: `("shrive", "shriven")`.
    pub const fn with_verbs(mut self, verbs: &'static [(&'static str, &'static str)]) -> Self {
        self.tense.verbs = verbs;
        self
    }

    /// Whether each command that users send must be paired with the event it gives.
    pub fn wants_pairs(&self) -> bool {
        self.paired
    }

    /// Checks the name of an event. What is no more than a warning is added to `warnings`.
    pub fn event(&self, text: &str, warnings: &mut Vec<InvalidName>) -> Result<EventName, InvalidName> {
        check_length(text, "order.placed")?;
        let Some(style) = self.events.iter().find(|style| style.spells(text)) else {
            return Err(wrong_spelling(text, self.events.iter().map(|style| style.wants())));
        };
        if *style == EventStyle::DottedPascal && text.starts_with("Command.") {
            return Err(InvalidName::CommandPrefix { given: text.to_owned() });
        }
        let last = last_segment(text);
        if !self.tense.is_fact(last) {
            let word = words(last).last().copied().unwrap_or(last).to_owned();
            let (given, example) = (text.to_owned(), style.example());
            self.breach(InvalidName::NotPastTense { given, word, example }, warnings)?;
        }
        Ok(EventName(Arc::from(text)))
    }

    /// Checks the name of a command. What is no more than a warning is added to `warnings`.
    pub fn command(&self, text: &str, warnings: &mut Vec<InvalidName>) -> Result<CommandName, InvalidName> {
        check_length(text, "order.place")?;
        let Some(style) = self.commands.iter().find(|style| style.spells(text)) else {
            return Err(wrong_spelling(text, self.commands.iter().map(|style| style.wants())));
        };
        let segment = last_segment(text);
        let (given, example) = (text.to_owned(), style.example());
        let phrase = VerbPhrase::of(segment);
        if self.strict && !phrase.before.is_empty() {
            return Err(InvalidName::MoreThanAVerb { given, segment: segment.to_owned(), example });
        }
        // Where it may be more than a verb, the verb stands first: `mark-lost`.
        let verb = words(segment).first().copied().unwrap_or(segment);
        if !self.tense.is_imperative(&verb.to_ascii_lowercase()) {
            let word = segment.to_owned();
            self.breach(InvalidName::NotImperative { given, word, example }, warnings)?;
        }
        Ok(CommandName(Arc::from(text)))
    }

    /// Checks whether an event may be declared as the result of a command.
    ///
    /// The event ends in the past tense of the command's verb. Where both names tell their domain, aggregate and
    /// entity (dotted Pascal), those are the same too; the entity may be a segment (`Payment.Confirmed`) or merged
    /// into the last one (`PaymentConfirmed`). A rule that lets tense be lets pairs be, too.
    pub fn check_pair(&self, command: &CommandName, event: &EventName) -> Result<(), PairingMismatch> {
        if !self.strict {
            return Ok(());
        }
        let named = || (command.clone(), event.clone());
        let verb = last_segment(command.as_str());
        let phrase = VerbPhrase::of(last_segment(event.as_str()));
        if !self.tense.is_past_of(&VerbPhrase::of(verb), &phrase) {
            let ((command, event), verb) = (named(), verb.to_owned());
            return Err(PairingMismatch::OtherVerb { command, event, verb });
        }
        let command_path = command.as_str().strip_prefix("Command.").map(path_of);
        let event_path = EventStyle::DottedPascal.spells(event.as_str()).then(|| path_of(event.as_str()));
        if let (Some((home, entity)), Some((event_home, event_entity))) = (command_path, event_path) {
            if home != event_home {
                let ((command, event), home) = (named(), home.to_owned());
                return Err(PairingMismatch::OtherAggregate { command, event, home });
            }
            if let Some(entity) = entity
                && entity != event_entity.unwrap_or(phrase.before)
            {
                let ((command, event), entity) = (named(), entity.to_owned());
                return Err(PairingMismatch::OtherEntity { command, event, entity });
            }
        }
        Ok(())
    }

    fn breach(&self, flaw: InvalidName, warnings: &mut Vec<InvalidName>) -> Result<(), InvalidName> {
        if self.strict {
            return Err(flaw);
        }
        warnings.push(flaw);
        Ok(())
    }
}

impl EventStyle {
    /// Every style, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::DottedPascal, Self::DottedLower, Self::Pascal, Self::UpperSnake];

    fn wants(self) -> &'static str {
        match self {
            Self::DottedPascal => "<Domain>.<Aggregate>[.<Entity>].<PastTense> (`Shop.Order.Placed`)",
            Self::DottedLower => "two or more lower-case segments joined by dots (`order.placed`)",
            Self::Pascal => "two or more capitalised words without dots (`OrderPlaced`)",
            Self::UpperSnake => "two or more upper-case words joined by `_` (`ORDER_PLACED`)",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::DottedPascal => "Shop.Order.Placed",
            Self::DottedLower => "order.placed",
            Self::Pascal => "OrderPlaced",
            Self::UpperSnake => "ORDER_PLACED",
        }
    }

    fn spells(self, text: &str) -> bool {
        match self {
            Self::DottedPascal => matches!(text.split('.').count(), 3 | 4) && text.split('.').all(is_pascal),
            Self::DottedLower => text.contains('.') && text.split('.').all(is_lower),
            Self::Pascal => is_pascal(text) && words(text).len() >= 2,
            Self::UpperSnake => text.contains('_') && is_upper_snake(text),
        }
    }
}

impl CommandStyle {
    /// Every style, in the order of their declaration.
    pub const ALL: [Self; 2] = [Self::DottedPascal, Self::DottedLower];

    fn wants(self) -> &'static str {
        match self {
            Self::DottedPascal => {
                "Command.<Domain>.<Aggregate>[.<Entity>].<Imperative> (`Command.Shop.Order.Place`)"
            }
            Self::DottedLower => "two or more lower-case segments joined by dots (`order.place`)",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::DottedPascal => "Command.Shop.Order.Payment.Confirm",
            Self::DottedLower => "order.payment.confirm",
        }
    }

    fn spells(self, text: &str) -> bool {
        match self {
            Self::DottedPascal => {
                text.strip_prefix("Command.").is_some_and(|rest| EventStyle::DottedPascal.spells(rest))
            }
            Self::DottedLower => EventStyle::DottedLower.spells(text),
        }
    }
}

impl EventName {
    /// Checks a text against whichever style it is spelled in.
    pub fn infer(text: &str) -> Result<Self, InvalidName> {
        NameRule::ANY.event(text, &mut Vec::new())
    }
}

impl CommandName {
    /// Checks a text against whichever style it is spelled in.
    pub fn infer(text: &str) -> Result<Self, InvalidName> {
        NameRule::ANY.command(text, &mut Vec::new())
    }
}

/// What the two kinds of names share once they are checked.
macro_rules! checked_name {
    ($name:ident) => {
        impl $name {
            /// Takes a name that was checked before it was stored. It is not checked again: a rule that became
            /// stricter must not make old facts unreadable.
            pub fn from_stored(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            /// The name as it is stored and sent.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from_stored)
            }
        }
    };
}

checked_name!(EventName);
checked_name!(CommandName);

fn check_length(text: &str, example: &'static str) -> Result<(), InvalidName> {
    match text.len() {
        0 => Err(InvalidName::Empty { example }),
        1..=MAX_NAME_BYTES => Ok(()),
        bytes => Err(InvalidName::TooLong { begins: text.chars().take(32).collect(), bytes }),
    }
}

fn wrong_spelling(text: &str, wants: impl Iterator<Item = &'static str>) -> InvalidName {
    let wants = wants.collect::<Vec<_>>().join(", or ");
    InvalidName::WrongSpelling { given: text.to_owned(), wants }
}

fn is_pascal(segment: &str) -> bool {
    segment.starts_with(|first: char| first.is_ascii_uppercase())
        && segment.chars().all(|letter| letter.is_ascii_alphanumeric())
}

fn is_lower(segment: &str) -> bool {
    segment.starts_with(|first: char| first.is_ascii_lowercase())
        && segment.split('-').all(|word| {
            !word.is_empty()
                && word.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        })
}

fn is_upper_snake(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.split('_').all(|word| {
            !word.is_empty()
                && word.chars().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit())
        })
}

fn last_segment(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Splits `Shop.Order.Payment.Confirmed` into its home `Shop.Order` and its entity `Payment`, if any.
fn path_of(name: &str) -> (&str, Option<&str>) {
    let mut dots = name.match_indices('.').map(|(at, _)| at).skip(1);
    match (dots.next(), dots.next()) {
        (Some(home), Some(entity)) => (&name[..home], Some(&name[home + 1..entity])),
        (Some(home), None) => (&name[..home], None),
        _ => (name, None),
    }
}

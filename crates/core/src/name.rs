//! The names of commands and events: stored, sent and matched for ever, so each is checked before it registers.
//!
//! Applications bring the names of their own sources, and the sources disagree about spelling. A name is
//! therefore checked against one declared style, never against a mixture of them. What the styles share is the
//! mood: a command asks (`Place`), an event states what happened (`Placed`).

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name in bytes; the columns that hold names are this wide.
pub const MAX_NAME_BYTES: usize = 128;

/// How an application spells its events. The four spellings are disjoint: no name fits two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventStyle {
    /// Genesis: `<Domain>.<Aggregate>[.<Entity>].<PastTense>`, as in `Genesis.Session.Theme.Requested`.
    /// The last segment may carry the entity: `Genesis.Session.SeedRequested`.
    DottedPascal,
    /// Hive: two or more lower-case segments, the last in the past tense or the state `ready`, as in
    /// `service.spec.apply.started`.
    DottedLower,
    /// Hive's observations: two or more words without dots, the last in the past tense, as in `RouteAligned`.
    Pascal,
    /// Market: two or more words joined by `_`, the last in the past tense or `TIMEOUT`, as in `ORDER_CREATED`.
    UpperSnake,
}

/// How an application spells its commands. One aggregate may spell its commands and its events differently:
/// hive sends `Command.Hive.Service.Create` and emits `service.creation.requested`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandStyle {
    /// `Command.<Domain>.<Aggregate>[.<Entity>].<Imperative>`, as in `Command.Genesis.Session.Seed.Request`.
    DottedPascal,
    /// Two or more lower-case segments, the last an imperative, as in `order.place`.
    DottedLower,
}

/// Why a text cannot be the name of a command or an event.
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
    /// One word, which is what serde makes of a Rust variant that nobody renamed.
    #[error(
        "`{given}` is a single word, as an unrenamed Rust variant is; give the variant an explicit stored name, \
         for example #[serde(rename = \"{example}\")]"
    )]
    SingleWord {
        /// The text given.
        given: String,
        /// A name that would do.
        example: String,
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
    #[error("`{given}` is an event and `{word}` is not in the past tense; write `{instead}`")]
    NotPastTense {
        /// The text given.
        given: String,
        /// Its last word.
        word: String,
        /// The same name in the past tense.
        instead: String,
    },
    /// A command that does not end in a verb that asks.
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
    #[error("`{command}` cannot result in `{event}`: an event that answers it ends in `{wants}`")]
    OtherVerb {
        /// The command.
        command: CommandName,
        /// The event.
        event: EventName,
        /// The past tense of the command's verb.
        wants: String,
    },
}

/// The name of an event type, checked where it was registered. Cloning it copies a pointer.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventName(Arc<str>);

/// The name of a command type, checked where it was registered. Cloning it copies a pointer.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandName(Arc<str>);

/// A command and the event that proves it was carried out. The consistency check looks for that event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pairing {
    command: CommandName,
    event: EventName,
}

/// The past tense of an imperative: `Request` becomes `Requested`, `send` becomes `sent`, `CheckOut` becomes
/// `CheckedOut`. The spelling of the case is kept, and words before the verb stay as they are.
pub fn past_tense(imperative: &str) -> String {
    let phrase = VerbPhrase::of(imperative);
    let inflected = past_forms(&phrase.verb.to_ascii_lowercase()).swap_remove(0);
    format!("{}{}{}", phrase.before, in_case_of(phrase.verb, &inflected), phrase.particle)
}

/// Whether a word, or the last word of several (`SeedRequested`, `checked-out`), is in the past tense.
///
/// Spelling decides, not a dictionary: what ends in `-ed` counts, except the verbs and nouns that merely look
/// so (`Seed`, `embed`), and so do the forms of the irregular verbs.
pub fn is_past_tense(words: &str) -> bool {
    is_past_word(&VerbPhrase::of(words).verb.to_ascii_lowercase())
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

    fn spells(self, text: &str) -> bool {
        match self {
            Self::DottedPascal => matches!(text.split('.').count(), 3 | 4) && text.split('.').all(is_pascal),
            Self::DottedLower => text.contains('.') && text.split('.').all(is_lower),
            Self::Pascal => is_pascal(text) && words(text).len() >= 2,
            Self::UpperSnake => text.contains('_') && is_upper_snake(text),
        }
    }

    /// The last words that are not in the past tense and yet state a fact.
    fn facts(self) -> &'static [&'static str] {
        match self {
            Self::DottedPascal | Self::Pascal => &[],
            Self::DottedLower => &["ready"],
            Self::UpperSnake => &["TIMEOUT"],
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
    /// Checks a text against one style.
    pub fn parse(text: &str, style: EventStyle) -> Result<Self, InvalidName> {
        Self::check(text, &[style])
    }

    /// Checks a text against whichever style it is spelled in.
    pub fn infer(text: &str) -> Result<Self, InvalidName> {
        Self::check(text, &EventStyle::ALL)
    }

    fn check(text: &str, styles: &[EventStyle]) -> Result<Self, InvalidName> {
        check_length(text, "order.placed")?;
        if words(text).len() == 1 {
            let lower = text.to_ascii_lowercase();
            let fact = if is_past_tense(&lower) { lower } else { past_tense(&lower) };
            return Err(InvalidName::SingleWord { given: text.to_owned(), example: format!("order.{fact}") });
        }
        let Some(style) = styles.iter().find(|style| style.spells(text)) else {
            return Err(wrong_spelling(text, styles.iter().map(|style| style.wants())));
        };
        if *style == EventStyle::DottedPascal && text.starts_with("Command.") {
            return Err(InvalidName::CommandPrefix { given: text.to_owned() });
        }
        let last = last_segment(text);
        let word = words(last).last().copied().unwrap_or(last);
        if is_past_tense(last) || style.facts().contains(&word) {
            return Ok(Self(Arc::from(text)));
        }
        let word = word.to_owned();
        Err(InvalidName::NotPastTense { given: text.to_owned(), word, instead: past_tense(text) })
    }
}

impl CommandName {
    /// Checks a text against one style.
    pub fn parse(text: &str, style: CommandStyle) -> Result<Self, InvalidName> {
        Self::check(text, &[style])
    }

    /// Checks a text against whichever style it is spelled in.
    pub fn infer(text: &str) -> Result<Self, InvalidName> {
        Self::check(text, &CommandStyle::ALL)
    }

    fn check(text: &str, styles: &[CommandStyle]) -> Result<Self, InvalidName> {
        check_length(text, "order.place")?;
        if words(text).len() == 1 {
            let lower = text.to_ascii_lowercase();
            let verb = if is_imperative(&lower) { &lower } else { "place" };
            return Err(InvalidName::SingleWord { given: text.to_owned(), example: format!("order.{verb}") });
        }
        let Some(style) = styles.iter().find(|style| style.spells(text)) else {
            return Err(wrong_spelling(text, styles.iter().map(|style| style.wants())));
        };
        let segment = last_segment(text);
        let phrase = VerbPhrase::of(segment);
        if !phrase.before.is_empty() {
            let (given, segment) = (text.to_owned(), segment.to_owned());
            return Err(InvalidName::MoreThanAVerb { given, segment, example: style.example() });
        }
        if !is_imperative(&phrase.verb.to_ascii_lowercase()) {
            let (given, word) = (text.to_owned(), segment.to_owned());
            return Err(InvalidName::NotImperative { given, word, example: style.example() });
        }
        Ok(Self(Arc::from(text)))
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

impl Pairing {
    /// Pairs a command with the event that results from it, by the rule of genesis.
    ///
    /// The event ends in the past tense of the command's verb. Where both names tell their domain, aggregate and
    /// entity (dotted Pascal), those are the same too; the entity may be a segment (`Theme.Requested`) or merged
    /// into the last one (`SeedRequested`).
    pub fn check(command: &CommandName, event: &EventName) -> Result<Self, PairingMismatch> {
        let named = || (command.clone(), event.clone());
        let segment = last_segment(command.as_str());
        let Some(before_verb) = strip_past_of(&VerbPhrase::of(segment), last_segment(event.as_str())) else {
            let (command, event) = named();
            let past = past_tense(segment);
            let wants = if EventStyle::UpperSnake.spells(event.as_str()) {
                words(&past).join("_").to_ascii_uppercase()
            } else if EventStyle::DottedLower.spells(event.as_str()) {
                words(&past).join("-").to_ascii_lowercase()
            } else {
                past
            };
            return Err(PairingMismatch::OtherVerb { command, event, wants });
        };
        let command_path = command.as_str().strip_prefix("Command.").map(path_of);
        let event_path = EventStyle::DottedPascal.spells(event.as_str()).then(|| path_of(event.as_str()));
        if let (Some((home, entity)), Some((event_home, event_entity))) = (command_path, event_path) {
            if home != event_home {
                let ((command, event), home) = (named(), home.to_owned());
                return Err(PairingMismatch::OtherAggregate { command, event, home });
            }
            if let Some(entity) = entity
                && entity != event_entity.unwrap_or(before_verb)
            {
                let ((command, event), entity) = (named(), entity.to_owned());
                return Err(PairingMismatch::OtherEntity { command, event, entity });
            }
        }
        Ok(Self::declared(command.clone(), event.clone()))
    }

    /// Pairs two names whose source does not follow that rule: hive's `Command.Hive.Service.Create` results in
    /// `service.creation.requested`.
    pub fn declared(command: CommandName, event: EventName) -> Self {
        Self { command, event }
    }

    /// The command.
    pub fn command(&self) -> &CommandName {
        &self.command
    }

    /// The event that results from it.
    pub fn event(&self) -> &EventName {
        &self.event
    }
}

/// The words of a text that are inflected together: `Seed`+`Request`, or `Check`+`Out`.
struct VerbPhrase<'a> {
    before: &'a str,
    verb: &'a str,
    /// The particle with its separator, if there is one.
    particle: &'a str,
}

impl<'a> VerbPhrase<'a> {
    /// Never fails: a text without words is its own verb.
    fn of(text: &'a str) -> Self {
        let spans = word_spans(text);
        let is_particle =
            |span: &Range<usize>| PARTICLES.contains(&text[span.clone()].to_ascii_lowercase().as_str());
        let Range { start, end } = match spans.as_slice() {
            [.., verb, last] if is_particle(last) => verb.clone(),
            [.., verb] => verb.clone(),
            [] => 0..text.len(),
        };
        Self { before: &text[..start], verb: &text[start..end], particle: &text[end..] }
    }
}

/// Phrasal verbs keep their particle behind the inflected verb: `SignUp`, `SignedUp`.
const PARTICLES: &[&str] = &["up", "down", "in", "out", "on", "off", "back", "over", "away"];

/// Irregular verbs with their accepted forms, the one to prefer first: the participle, because an event's name
/// reads as "the order was …".
const IRREGULAR: &[(&str, &[&str])] = &[
    ("arise", &["arisen", "arose"]),
    ("bear", &["borne", "bore"]),
    ("beat", &["beaten"]),
    ("become", &["become", "became"]),
    ("begin", &["begun", "began"]),
    ("bend", &["bent"]),
    ("bet", &["bet"]),
    ("bid", &["bid"]),
    ("bind", &["bound"]),
    ("bleed", &["bled"]),
    ("blow", &["blown", "blew"]),
    ("break", &["broken", "broke"]),
    ("breed", &["bred"]),
    ("bring", &["brought"]),
    ("broadcast", &["broadcast"]),
    ("build", &["built"]),
    ("burn", &["burned", "burnt"]),
    ("burst", &["burst"]),
    ("buy", &["bought"]),
    ("cast", &["cast"]),
    ("catch", &["caught"]),
    ("choose", &["chosen", "chose"]),
    ("come", &["come", "came"]),
    ("cost", &["cost"]),
    ("cut", &["cut"]),
    ("deal", &["dealt"]),
    ("dig", &["dug"]),
    ("do", &["done", "did"]),
    ("draw", &["drawn", "drew"]),
    ("drive", &["driven", "drove"]),
    ("eat", &["eaten", "ate"]),
    ("fall", &["fallen", "fell"]),
    ("feed", &["fed"]),
    ("feel", &["felt"]),
    ("fight", &["fought"]),
    ("find", &["found"]),
    ("flee", &["fled"]),
    ("fly", &["flown", "flew"]),
    ("forbid", &["forbidden", "forbade"]),
    ("forecast", &["forecast"]),
    ("forget", &["forgotten", "forgot"]),
    ("forgive", &["forgiven", "forgave"]),
    // To found a company; not the past tense of "find".
    ("found", &["founded"]),
    ("freeze", &["frozen", "froze"]),
    ("get", &["got", "gotten"]),
    ("give", &["given", "gave"]),
    ("go", &["gone", "went"]),
    ("grind", &["ground"]),
    ("grow", &["grown", "grew"]),
    ("hang", &["hung"]),
    ("have", &["had"]),
    ("hear", &["heard"]),
    ("hide", &["hidden", "hid"]),
    ("hit", &["hit"]),
    ("hold", &["held"]),
    ("hurt", &["hurt"]),
    ("input", &["input"]),
    ("keep", &["kept"]),
    ("know", &["known", "knew"]),
    ("lay", &["laid"]),
    ("lead", &["led"]),
    ("learn", &["learned", "learnt"]),
    ("leave", &["left"]),
    ("lend", &["lent"]),
    ("let", &["let"]),
    ("light", &["lit", "lighted"]),
    ("lose", &["lost"]),
    ("make", &["made"]),
    ("mean", &["meant"]),
    ("meet", &["met"]),
    ("offset", &["offset"]),
    ("pay", &["paid"]),
    ("put", &["put"]),
    ("quit", &["quit"]),
    ("read", &["read"]),
    // To pass on; not "to lay again".
    ("relay", &["relayed"]),
    ("ride", &["ridden", "rode"]),
    ("ring", &["rung", "rang"]),
    ("rise", &["risen", "rose"]),
    ("run", &["run", "ran"]),
    ("say", &["said"]),
    ("see", &["seen", "saw"]),
    ("seek", &["sought"]),
    ("sell", &["sold"]),
    ("send", &["sent"]),
    ("set", &["set"]),
    ("shake", &["shaken", "shook"]),
    ("shed", &["shed"]),
    ("shoot", &["shot"]),
    ("show", &["shown", "showed"]),
    ("shrink", &["shrunk", "shrank"]),
    ("shut", &["shut"]),
    ("sing", &["sung", "sang"]),
    ("sink", &["sunk", "sank"]),
    ("sit", &["sat"]),
    ("sleep", &["slept"]),
    ("slide", &["slid"]),
    ("speak", &["spoken", "spoke"]),
    ("speed", &["sped"]),
    ("spend", &["spent"]),
    ("spin", &["spun"]),
    ("split", &["split"]),
    ("spread", &["spread"]),
    ("stand", &["stood"]),
    ("steal", &["stolen", "stole"]),
    ("stick", &["stuck"]),
    ("strike", &["struck", "stricken"]),
    ("string", &["strung"]),
    ("swear", &["sworn", "swore"]),
    ("sweep", &["swept"]),
    ("swing", &["swung"]),
    ("take", &["taken", "took"]),
    ("teach", &["taught"]),
    ("tear", &["torn", "tore"]),
    ("tell", &["told"]),
    ("think", &["thought"]),
    ("throw", &["thrown", "threw"]),
    ("wake", &["woken", "woke"]),
    ("wear", &["worn", "wore"]),
    ("win", &["won"]),
    ("wind", &["wound"]),
    ("write", &["written", "wrote"]),
];

/// Prefixes under which an irregular verb stays irregular: `resend`, `undo`, `withdraw`, `overwrite`.
const PREFIXES: &[&str] = &["re", "un", "over", "under", "out", "mis", "pre", "with", "up", "fore"];

/// Verbs of several syllables that double their last consonant: `submit`, `submitted`. Those of one syllable
/// (`ship`) follow a rule.
const DOUBLING: &str = "\
    admit allot cancel commit compel confer control debug defer embed emit enrol equip expel format fulfil \
    incur infer occur omit patrol permit prefer program propel recur refer regret remap remit repel replan \
    reship submit transfer transmit unmap unpin unplug unwrap unzip";

/// Words that end in `-ed` and are no past tense, beyond those that the rules of [`is_past_word`] know.
const MERELY_ED: &[&str] = &["embed", "hatred", "hundred", "kindred", "sacred"];

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

/// Splits `Genesis.Session.Theme.Requested` into its home `Genesis.Session` and its entity `Theme`, if any.
fn path_of(name: &str) -> (&str, Option<&str>) {
    let mut dots = name.match_indices('.').map(|(at, _)| at).skip(1);
    match (dots.next(), dots.next()) {
        (Some(home), Some(entity)) => (&name[..home], Some(&name[home + 1..entity])),
        (Some(home), None) => (&name[..home], None),
        _ => (name, None),
    }
}

fn words(text: &str) -> Vec<&str> {
    word_spans(text).into_iter().map(|span| &text[span]).collect()
}

/// Where the words of a text in any of the styles lie: cut at separators, and where a capital begins a new word.
fn word_spans(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut spans = Vec::new();
    let mut start = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(byte, b'.' | b'-' | b'_') {
            spans.push(start..at);
            start = at + 1;
        } else if byte.is_ascii_uppercase() && at > start {
            let after_small = !bytes[at - 1].is_ascii_uppercase();
            let before_small = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
            if after_small || before_small {
                spans.push(start..at);
                start = at;
            }
        }
    }
    spans.push(start..text.len());
    spans.retain(|span| !span.is_empty());
    spans
}

/// What stands before the past tense of `verb` in an event's last segment; `None` when that does not end so.
fn strip_past_of<'a>(verb: &VerbPhrase<'_>, event_segment: &'a str) -> Option<&'a str> {
    let phrase = VerbPhrase::of(event_segment);
    let said = phrase.verb.to_ascii_lowercase();
    let same_verb = past_forms(&verb.verb.to_ascii_lowercase()).contains(&said);
    let bare = |particle: &str| particle.trim_start_matches(['-', '_']).to_ascii_lowercase();
    (same_verb && bare(verb.particle) == bare(phrase.particle)).then_some(phrase.before)
}

/// The accepted past forms of a lower-case verb, never none, the one to prefer first.
fn past_forms(verb: &str) -> Vec<String> {
    irregular_forms(verb).unwrap_or_else(|| regular_forms(verb))
}

fn irregular_forms(verb: &str) -> Option<Vec<String>> {
    let listed = |verb: &str| IRREGULAR.iter().find(|(base, _)| *base == verb).map(|(_, forms)| *forms);
    if let Some(forms) = listed(verb) {
        return Some(forms.iter().map(|form| (*form).to_owned()).collect());
    }
    PREFIXES.iter().find_map(|prefix| {
        let forms = listed(verb.strip_prefix(prefix)?)?;
        Some(forms.iter().map(|form| format!("{prefix}{form}")).collect())
    })
}

fn regular_forms(verb: &str) -> Vec<String> {
    let letters: Vec<char> = verb.chars().collect();
    let vowel =
        |at: usize| is_vowel(letters[at]) && !(letters[at] == 'u' && at > 0 && letters[at - 1] == 'q');
    match letters.as_slice() {
        [.., 'e'] => vec![format!("{verb}d")],
        [stem @ .., before, 'y'] if !is_vowel(*before) => {
            vec![format!("{}{before}ied", String::from_iter(stem))]
        }
        [.., 'i', 'c'] => vec![format!("{verb}ked")],
        [.., _, last] => {
            let at = letters.len() - 1;
            let single_vowel = vowel(at - 1) && (at < 2 || !vowel(at - 2));
            let plain = format!("{verb}ed");
            if is_vowel(*last) || matches!(last, 'h' | 'w' | 'x' | 'y') || !single_vowel {
                return vec![plain];
            }
            let doubled = format!("{verb}{last}ed");
            let syllables = (0..letters.len()).filter(|&at| vowel(at) && (at == 0 || !vowel(at - 1))).count();
            // Whether several syllables double depends on the stress and on the side of the Atlantic, and
            // spelling shows neither: both forms are accepted (`Cancelled`, `Canceled`).
            match syllables {
                1 => vec![doubled],
                _ if DOUBLING.split(' ').any(|listed| listed == verb) => vec![doubled, plain],
                _ => vec![plain, doubled],
            }
        }
        _ => vec![format!("{verb}ed")],
    }
}

fn is_past_word(word: &str) -> bool {
    let listed = |word: &str| IRREGULAR.iter().any(|(_, forms)| forms.contains(&word));
    if listed(word) || PREFIXES.iter().any(|prefix| word.strip_prefix(prefix).is_some_and(listed)) {
        return true;
    }
    match word.strip_suffix("ed") {
        // `seed`, `proceed` and `need` are no past tense, `agreed` is.
        Some(stem) if stem.ends_with('e') => {
            ["agre", "fre", "decre", "guarante", "refere"].iter().any(|verb| stem.ends_with(verb))
        }
        // `bed` and `red` are no past tense: a verb has a vowel of its own.
        Some(stem) => stem.contains(|letter| is_vowel(letter) || letter == 'y') && !MERELY_ED.contains(&word),
        None => false,
    }
}

fn is_imperative(verb: &str) -> bool {
    // `Set` and `Split` are their own past tense, so a known verb is asked for first.
    if irregular_forms(verb).is_some() {
        return true;
    }
    let gerund = verb
        .strip_suffix("ing")
        .is_some_and(|stem| stem.contains(|letter| is_vowel(letter) || letter == 'y'));
    !gerund && !is_past_word(verb)
}

fn is_vowel(letter: char) -> bool {
    matches!(letter, 'a' | 'e' | 'i' | 'o' | 'u')
}

fn in_case_of(model: &str, lower: &str) -> String {
    let mut capitals = model.chars().map(|letter| letter.is_ascii_uppercase());
    match (capitals.next(), capitals.next()) {
        (Some(true), Some(true)) => lower.to_ascii_uppercase(),
        (Some(true), _) => {
            let mut capitalised = lower.to_owned();
            if let Some(first) = capitalised.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            capitalised
        }
        _ => lower.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GENESIS_COMMANDS: &[&str] = &[
        "Command.Genesis.Session.Start",
        "Command.Genesis.Session.Seed.Request",
        "Command.Genesis.Session.Concept.Confirm",
        "Command.Genesis.Session.Stage.Complete",
        "Command.Genesis.Session.Theme.Request",
        "Command.Genesis.Session.Theme.Revise",
        "Command.Genesis.Session.Theme.Confirm",
        "Command.Genesis.Session.World.Request",
        "Command.Genesis.Session.World.Update",
        "Command.Genesis.Session.World.Confirm",
        "Command.Genesis.Session.Character.Request",
        "Command.Genesis.Session.Character.Update",
        "Command.Genesis.Session.Character.Confirm",
        "Command.Genesis.Session.CharacterNetwork.Create",
        "Command.Genesis.Session.Plot.Request",
        "Command.Genesis.Session.Plot.Update",
        "Command.Genesis.Session.Plot.Confirm",
        "Command.Genesis.Session.Details.Request",
        "Command.Genesis.Session.Details.Confirm",
        "Command.Genesis.Session.Finish",
        "Command.Genesis.Session.Fail",
        "Command.Genesis.Session.Branch.Create",
    ];

    const GENESIS_EVENTS: &[&str] = &[
        "Genesis.Session.Started",
        "Genesis.Session.SeedRequested",
        "Genesis.Session.ConceptProposed",
        "Genesis.Session.ConceptConfirmed",
        "Genesis.Session.StageCompleted",
        "Genesis.Session.Theme.Requested",
        "Genesis.Session.Theme.Proposed",
        "Genesis.Session.Theme.Revised",
        "Genesis.Session.Theme.Confirmed",
        "Genesis.Session.World.Requested",
        "Genesis.Session.World.Proposed",
        "Genesis.Session.World.Updated",
        "Genesis.Session.World.Confirmed",
        "Genesis.Session.Character.Requested",
        "Genesis.Session.Character.Proposed",
        "Genesis.Session.Character.Updated",
        "Genesis.Session.Character.Confirmed",
        "Genesis.Session.CharacterNetwork.Created",
        "Genesis.Session.Plot.Requested",
        "Genesis.Session.Plot.Proposed",
        "Genesis.Session.Plot.Updated",
        "Genesis.Session.Plot.Confirmed",
        "Genesis.Session.Details.Requested",
        "Genesis.Session.Details.Generated",
        "Genesis.Session.Details.Confirmed",
        "Genesis.Session.Finished",
        "Genesis.Session.Failed",
        "Genesis.Session.BranchCreated",
        "Outliner.Concept.GenerationRequested",
        "Outliner.Concept.Generated",
        "Outliner.Theme.GenerationRequested",
        "Outliner.Theme.Generated",
        "Worldbuilder.World.GenerationRequested",
        "Worldbuilder.World.Generated",
        "Character.Design.GenerationRequested",
        "Character.Design.Generated",
        "Plot.Structure.GenerationRequested",
        "Plot.Structure.Generated",
        "Writer.Content.GenerationRequested",
        "Writer.Content.Generated",
    ];

    const HIVE_EVENTS: &[&str] = &[
        "service.creation.requested",
        "service.spec.accepted",
        "service.spec.apply.started",
        "service.update.requested",
        "service.deletion.requested",
        "service.deletion.marked",
        "service.snapshot.updated",
        "service.convergence.confirmed",
        "service.convergence.failed",
        "service.ready",
        "service.failed",
        "service.deleted",
        "service.updated",
        "service.spec.applied",
        "service.external.purged",
        "service.persisted",
        "service.creation.failed",
        "service.audit.recorded",
    ];

    const HIVE_OBSERVATIONS: &[&str] = &[
        "NamespaceValidated",
        "RevisionCreated",
        "RouteAligned",
        "KnativeServiceObserved",
        "KnativeServiceDeletedObserved",
    ];

    const MARKET_EVENTS: &[&str] = &["ORDER_CREATED", "ORDER_PAID", "ORDER_STATUS_CHANGED", "ORDER_TIMEOUT"];

    fn command(name: &str) -> CommandName {
        CommandName::infer(name).unwrap()
    }

    fn event(name: &str) -> EventName {
        EventName::infer(name).unwrap()
    }

    #[test]
    fn every_event_of_the_sources_fits_its_own_style_and_no_other() {
        let tables = [
            (EventStyle::DottedPascal, GENESIS_EVENTS),
            (EventStyle::DottedLower, HIVE_EVENTS),
            (EventStyle::Pascal, HIVE_OBSERVATIONS),
            (EventStyle::UpperSnake, MARKET_EVENTS),
        ];
        for (own, names) in tables {
            for name in names {
                for style in EventStyle::ALL {
                    let parsed = EventName::parse(name, style);
                    assert_eq!(parsed.is_ok(), style == own, "{name} under {style:?}: {parsed:?}");
                }
                assert_eq!(EventName::infer(name).unwrap().as_str(), *name);
            }
        }
    }

    #[test]
    fn every_command_of_the_sources_is_accepted() {
        let hive =
            ["Create", "Update", "Delete", "Refresh"].map(|verb| format!("Command.Hive.Service.{verb}"));
        let shop = ["Command.Shop.Order.Place".to_owned(), "Command.Shop.Order.CheckOut".to_owned()];
        for name in GENESIS_COMMANDS.iter().map(|name| (*name).to_owned()).chain(hive).chain(shop) {
            assert_eq!(CommandName::parse(&name, CommandStyle::DottedPascal).unwrap().as_str(), name);
            assert!(CommandName::parse(&name, CommandStyle::DottedLower).is_err(), "{name}");
        }
        for name in ["order.place", "order.payment.confirm", "cart.check-out", "user.set", "stock.split"] {
            assert_eq!(CommandName::parse(name, CommandStyle::DottedLower).unwrap().as_str(), name);
            assert!(CommandName::parse(name, CommandStyle::DottedPascal).is_err(), "{name}");
        }
    }

    #[test]
    fn bad_event_names_are_refused_with_what_to_write() {
        let refused = |name: &str, style| EventName::parse(name, style).unwrap_err().to_string();
        let dotted = EventStyle::DottedPascal;
        assert_eq!(
            refused("GenesisSessionStarted", dotted),
            "`GenesisSessionStarted` is not spelled as a name is; write \
             <Domain>.<Aggregate>[.<Entity>].<PastTense> (`Shop.Order.Placed`)"
        );
        assert_eq!(
            refused("Genesis.Session.Start", dotted),
            "`Genesis.Session.Start` is an event and `Start` is not in the past tense; write `Genesis.Session.Started`"
        );
        assert_eq!(
            refused("Command.Genesis.Session.Started", dotted),
            "`Command.Genesis.Session.Started` begins with `Command.`, which marks commands; write the event without it"
        );
        assert_eq!(
            refused("ORDER_SHIP", EventStyle::UpperSnake),
            "`ORDER_SHIP` is an event and `SHIP` is not in the past tense; write `ORDER_SHIPPED`"
        );
        for (name, style) in [
            ("Genesis.Started", dotted),
            ("Genesis.Session.Theme.Draft.Requested", dotted),
            ("Genesis.Session.Seed", dotted),
            ("Genesis..Started", dotted),
            ("Genesis.session.Started", dotted),
            ("Genesis.Session.Started ", dotted),
            ("Genesis.Séance.Started", dotted),
            ("Genesis.Session.READY", dotted),
            ("service.Ready", EventStyle::DottedLower),
            ("service..ready", EventStyle::DottedLower),
            ("service.-ready", EventStyle::DottedLower),
            ("service.timeout", EventStyle::DottedLower),
            ("service.apply", EventStyle::DottedLower),
            (".placed", EventStyle::DottedLower),
            ("RouteReady", EventStyle::Pascal),
            ("routeAligned", EventStyle::Pascal),
            ("Route_Aligned", EventStyle::Pascal),
            ("ORDER_READY", EventStyle::UpperSnake),
            ("ORDER__CREATED", EventStyle::UpperSnake),
            ("ORDER_created", EventStyle::UpperSnake),
        ] {
            assert!(EventName::parse(name, style).is_err(), "{name} under {style:?}");
            assert!(EventName::infer(name).is_err(), "{name}");
        }
    }

    #[test]
    fn bad_command_names_are_refused_with_what_to_write() {
        let refused = |name: &str| CommandName::infer(name).unwrap_err().to_string();
        assert_eq!(
            refused("StartGenesisSession"),
            "`StartGenesisSession` is not spelled as a name is; write \
             Command.<Domain>.<Aggregate>[.<Entity>].<Imperative> (`Command.Shop.Order.Place`), \
             or two or more lower-case segments joined by dots (`order.place`)"
        );
        assert_eq!(
            refused("Command.Genesis.Session.Started"),
            "`Command.Genesis.Session.Started` is a command and `Started` is not an imperative; \
             write what is asked for, as in `Command.Shop.Order.Payment.Confirm`"
        );
        assert_eq!(
            refused("order.confirm-payment"),
            "`order.confirm-payment` is a command and its last segment `confirm-payment` is more than a verb; \
             put what the verb acts on into a segment of its own, as in `order.payment.confirm`"
        );
        for name in [
            "Genesis.Session.Start",
            "Command.Session.Start",
            "Command.Genesis.Session.Theme.Draft.Request",
            "Command.Genesis.Session.ThemeRequest",
            "Command.Genesis.Session.Starting",
            "Command.Genesis.Session.Sent",
            "command.genesis.Session.Start",
            "order.placed",
            "order.checked-out",
            "ORDER_CREATE",
        ] {
            assert!(CommandName::infer(name).is_err(), "{name}");
        }
    }

    #[test]
    fn an_unrenamed_variant_is_refused_with_the_attribute_to_write() {
        for name in ["Placed", "placed", "PLACED"] {
            let refusal = EventName::infer(name).unwrap_err();
            assert!(matches!(refusal, InvalidName::SingleWord { .. }), "{refusal}");
            assert!(refusal.to_string().ends_with(r#"#[serde(rename = "order.placed")]"#), "{refusal}");
        }
        let refusal = CommandName::infer("Ship").unwrap_err();
        assert!(refusal.to_string().ends_with(r#"#[serde(rename = "order.ship")]"#), "{refusal}");
    }

    #[test]
    fn length_is_limited_in_bytes() {
        let name = |bytes: usize| format!("{}.placed", "a".repeat(bytes - ".placed".len()));
        assert!(EventName::infer(&name(MAX_NAME_BYTES)).is_ok());
        assert!(matches!(EventName::infer(&name(MAX_NAME_BYTES + 1)), Err(InvalidName::TooLong { .. })));
        assert!(matches!(EventName::infer(""), Err(InvalidName::Empty { .. })));
        assert!(matches!(CommandName::infer(""), Err(InvalidName::Empty { .. })));
    }

    #[test]
    fn stored_names_are_read_back_without_a_check() {
        let name: EventName = serde_json::from_str(r#""whatever it was""#).unwrap();
        assert_eq!(name.as_str(), "whatever it was");
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""whatever it was""#);
    }

    #[test]
    fn the_past_tense_of_verbs() {
        for (verb, past) in [
            ("Start", "Started"),
            ("Request", "Requested"),
            ("Confirm", "Confirmed"),
            ("Complete", "Completed"),
            ("Revise", "Revised"),
            ("Update", "Updated"),
            ("Create", "Created"),
            ("Finish", "Finished"),
            ("Fail", "Failed"),
            ("Propose", "Proposed"),
            ("Generate", "Generated"),
            ("Send", "Sent"),
            ("Begin", "Begun"),
            ("Make", "Made"),
            ("Hold", "Held"),
            ("Pay", "Paid"),
            ("Build", "Built"),
            ("Set", "Set"),
            ("Put", "Put"),
            ("Split", "Split"),
            ("Reset", "Reset"),
            ("Resend", "Resent"),
            ("Withdraw", "Withdrawn"),
            ("Override", "Overridden"),
            ("Undo", "Undone"),
            ("Relay", "Relayed"),
            ("Replay", "Replayed"),
            ("Ship", "Shipped"),
            ("Drop", "Dropped"),
            ("Plan", "Planned"),
            ("Cancel", "Cancelled"),
            ("Submit", "Submitted"),
            ("Refer", "Referred"),
            ("Render", "Rendered"),
            ("Edit", "Edited"),
            ("Open", "Opened"),
            ("Deliver", "Delivered"),
            ("Equip", "Equipped"),
            ("Quiz", "Quizzed"),
            ("Fix", "Fixed"),
            ("Allow", "Allowed"),
            ("Load", "Loaded"),
            ("Retry", "Retried"),
            ("Apply", "Applied"),
            ("Deploy", "Deployed"),
            ("Queue", "Queued"),
            ("Agree", "Agreed"),
            ("Veto", "Vetoed"),
            ("Sync", "Synced"),
            ("Mimic", "Mimicked"),
            ("Seed", "Seeded"),
            ("Embed", "Embedded"),
            ("Proceed", "Proceeded"),
            ("CheckOut", "CheckedOut"),
            ("sign-up", "signed-up"),
            ("ROLL_BACK", "ROLLED_BACK"),
            ("ship", "shipped"),
            ("PAY", "PAID"),
            ("SeedRequest", "SeedRequested"),
            ("order.place", "order.placed"),
        ] {
            assert_eq!(past_tense(verb), past);
            assert!(is_past_tense(past), "{past}");
            assert!(is_imperative(&verb.to_ascii_lowercase()) || VerbPhrase::of(verb).verb != verb, "{verb}");
        }
    }

    #[test]
    fn what_merely_looks_like_a_past_tense_is_none() {
        for word in
            ["Seed", "Feed", "Proceed", "Need", "Bed", "Red", "Embed", "Hundred", "Ready", "Place", "", "ed"]
        {
            assert!(!is_past_tense(word), "{word}");
        }
        for word in ["Agreed", "Freed", "Canceled", "Fed", "Led", "TimedOut", "Overwritten", "Began"] {
            assert!(is_past_tense(word), "{word}");
        }
    }

    #[test]
    fn commands_pair_with_the_events_that_answer_them() {
        for (asked, answered) in [
            ("Command.Genesis.Session.Start", "Genesis.Session.Started"),
            ("Command.Genesis.Session.Seed.Request", "Genesis.Session.SeedRequested"),
            ("Command.Genesis.Session.Concept.Confirm", "Genesis.Session.ConceptConfirmed"),
            ("Command.Genesis.Session.Stage.Complete", "Genesis.Session.StageCompleted"),
            ("Command.Genesis.Session.Branch.Create", "Genesis.Session.BranchCreated"),
            ("Command.Genesis.Session.Theme.Request", "Genesis.Session.Theme.Requested"),
            ("Command.Genesis.Session.CharacterNetwork.Create", "Genesis.Session.CharacterNetwork.Created"),
            ("Command.Shop.Order.Place", "order.placed"),
            ("Command.Shop.Order.Cancel", "order.cancelled"),
            ("Command.Shop.Order.Cancel", "order.canceled"),
            ("Command.Shop.Cart.CheckOut", "cart.checked-out"),
            ("Command.Market.Order.Pay", "ORDER_PAID"),
            ("order.place", "order.placed"),
            ("order.place", "OrderPlaced"),
        ] {
            let pairing = Pairing::check(&command(asked), &event(answered)).unwrap();
            assert_eq!((pairing.command().as_str(), pairing.event().as_str()), (asked, answered));
        }
    }

    #[test]
    fn every_genesis_command_has_one_answer_among_the_events() {
        for asked in GENESIS_COMMANDS {
            let answers: Vec<_> = GENESIS_EVENTS
                .iter()
                .filter(|name| Pairing::check(&command(asked), &event(name)).is_ok())
                .collect();
            // A command without an entity cannot tell whose verb an event carries; only Start, Finish and Fail are
            // such, and nothing else starts, finishes or fails.
            assert_eq!(answers.len(), 1, "{asked}: {answers:?}");
        }
    }

    #[test]
    fn a_wrong_pair_is_refused_with_what_is_wrong() {
        let refused = |asked, answered| Pairing::check(&command(asked), &event(answered)).unwrap_err();
        let start = "Command.Genesis.Session.Start";
        assert!(matches!(refused(start, "Genesis.Session.Finished"), PairingMismatch::OtherVerb { .. }));
        assert!(matches!(refused(start, "Genesis.Draft.Started"), PairingMismatch::OtherAggregate { .. }));
        assert!(matches!(refused(start, "Market.Session.Started"), PairingMismatch::OtherAggregate { .. }));
        let theme = "Command.Genesis.Session.Theme.Request";
        assert!(matches!(
            refused(theme, "Genesis.Session.World.Requested"),
            PairingMismatch::OtherEntity { .. }
        ));
        assert!(matches!(
            refused(theme, "Genesis.Session.SeedRequested"),
            PairingMismatch::OtherEntity { .. }
        ));
        assert!(matches!(refused(theme, "Genesis.Session.Requested"), PairingMismatch::OtherEntity { .. }));
        assert_eq!(
            refused("Command.Shop.Order.Ship", "ORDER_PAID").to_string(),
            "`Command.Shop.Order.Ship` cannot result in `ORDER_PAID`: an event that answers it ends in `SHIPPED`"
        );
        let refusal = refused("Command.Shop.Cart.CheckOut", "cart.filled").to_string();
        assert!(refusal.ends_with("ends in `checked-out`"), "{refusal}");
        assert!(matches!(refused("cart.check-out", "cart.checked-in"), PairingMismatch::OtherVerb { .. }));
        assert!(matches!(refused("cart.check", "cart.checked-out"), PairingMismatch::OtherVerb { .. }));
    }

    #[test]
    fn hive_declares_pairs_that_follow_no_rule() {
        let (create, requested) =
            (command("Command.Hive.Service.Create"), event("service.creation.requested"));
        assert!(Pairing::check(&create, &requested).is_err());
        assert_eq!(Pairing::declared(create, requested).event().as_str(), "service.creation.requested");
    }

    proptest! {
        #[test]
        fn no_text_fits_two_styles(text in "[A-Za-z0-9._-]{1,24}") {
            let fitting = EventStyle::ALL.iter().filter(|style| style.spells(&text)).count();
            prop_assert!(fitting <= 1, "{text} fits {fitting} styles");
            let fitting = CommandStyle::ALL.iter().filter(|style| style.spells(&text)).count();
            prop_assert!(fitting <= 1, "{text} fits {fitting} styles");
        }

        #[test]
        fn any_text_is_answered_without_a_panic(text in any::<String>(), other in "\\PC{0,12}") {
            let _ = (EventName::infer(&text), CommandName::infer(&text));
            let _ = (past_tense(&text), is_past_tense(&text));
            let pairing = Pairing::check(&CommandName::from_stored(&text), &EventName::from_stored(&other));
            prop_assert!(pairing.is_ok() || pairing.is_err());
        }

        #[test]
        fn no_name_is_a_command_and_an_event(segments in proptest::collection::vec("[a-z]{1,8}", 2..4)) {
            let name = segments.join(".");
            let its_own_past = irregular_forms(last_segment(&name)).is_some();
            prop_assert!(its_own_past || !(EventName::infer(&name).is_ok() && CommandName::infer(&name).is_ok()));
        }

        #[test]
        fn the_past_tense_of_a_regular_verb_is_recognised(verb in "[a-z]{1,4}[aeiou][a-z]{1,4}") {
            prop_assume!(is_imperative(&verb) && !verb.ends_with('e'));
            prop_assert!(is_past_tense(&past_tense(&verb)), "{verb}: {}", past_tense(&verb));
            let command = CommandName::infer(&format!("order.{verb}")).unwrap();
            let event = EventName::infer(&format!("order.{}", past_tense(&verb))).unwrap();
            prop_assert!(Pairing::check(&command, &event).is_ok());
        }
    }
}

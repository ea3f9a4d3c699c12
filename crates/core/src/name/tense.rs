//! Whether a word asks or states what happened. Its letters decide, not a dictionary; applications add their own words.

use std::ops::Range;

/// What is known of words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tense {
    /// Words that state a fact without being a past tense.
    pub(super) facts: &'static [&'static str],
    /// Verbs with their past tense.
    pub(super) verbs: &'static [(&'static str, &'static str)],
}

impl Tense {
    pub(super) const ENGLISH: Self = Self { facts: &[], verbs: &[] };

    /// Whether the last word of a segment (`SeedRequested`, `checked-out`, `ready`) states a fact.
    pub(super) fn is_fact(&self, segment: &str) -> bool {
        let last = words(segment).last().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        let verb = VerbPhrase::of(segment).verb.to_ascii_lowercase();
        self.facts.contains(&last.as_str())
            || self.verbs.iter().any(|(_, past)| *past == verb)
            || is_past_tense(&verb)
    }

    /// Whether a lower-case word can be what is asked for.
    pub(super) fn is_imperative(&self, verb: &str) -> bool {
        // `Set` and `split` are their own past tense, so a known verb is asked for first.
        if self.verbs.iter().any(|(known, _)| *known == verb) || irregular_forms(verb).is_some() {
            return true;
        }
        let gerund = verb
            .strip_suffix("ing")
            .is_some_and(|stem| stem.contains(|letter| is_vowel(letter) || letter == 'y'));
        !gerund && !is_past_tense(verb)
    }

    /// Whether one phrase is the past tense of the other.
    pub(super) fn is_past_of(&self, asked: &VerbPhrase<'_>, said: &VerbPhrase<'_>) -> bool {
        let bare = |particle: &str| particle.trim_start_matches(['-', '_']).to_ascii_lowercase();
        let (verb, past) = (asked.verb.to_ascii_lowercase(), said.verb.to_ascii_lowercase());
        let same_verb = self.verbs.contains(&(verb.as_str(), past.as_str()))
            || match irregular_forms(&verb) {
                Some(forms) => forms.contains(&past),
                None => is_regular_past(&verb, &past),
            };
        same_verb && bare(asked.particle) == bare(said.particle)
    }
}

/// The words of a text that are inflected together: `Seed`+`Request`, or `Check`+`Out`.
pub(super) struct VerbPhrase<'a> {
    pub(super) before: &'a str,
    pub(super) verb: &'a str,
    /// The particle with its separator, if there is one.
    pub(super) particle: &'a str,
}

impl<'a> VerbPhrase<'a> {
    /// Never fails: a text without words is its own verb.
    pub(super) fn of(text: &'a str) -> Self {
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

/// Irregular verbs, each with the forms that count as its past tense. `found` is to found a company, `relay` to pass on.
const IRREGULAR: &str = "\
    arise:arisen,arose bear:borne,bore beat:beaten become:become,became begin:begun,began bend:bent \
    bet:bet bid:bid bind:bound bleed:bled blow:blown,blew break:broken,broke breed:bred bring:brought \
    broadcast:broadcast build:built burn:burned,burnt burst:burst buy:bought cast:cast catch:caught \
    choose:chosen,chose come:come,came cost:cost cut:cut deal:dealt dig:dug do:done,did draw:drawn,drew \
    drive:driven,drove eat:eaten,ate fall:fallen,fell feed:fed feel:felt fight:fought find:found flee:fled \
    fly:flown,flew forbid:forbidden,forbade forecast:forecast forget:forgotten,forgot \
    forgive:forgiven,forgave found:founded freeze:frozen,froze get:got,gotten give:given,gave go:gone,went \
    grind:ground grow:grown,grew hang:hung have:had hear:heard hide:hidden,hid hit:hit hold:held hurt:hurt \
    input:input keep:kept know:known,knew lay:laid lead:led learn:learned,learnt leave:left lend:lent \
    let:let light:lit,lighted lose:lost make:made mean:meant meet:met offset:offset pay:paid put:put \
    quit:quit read:read relay:relayed ride:ridden,rode ring:rung,rang rise:risen,rose run:run,ran say:said \
    see:seen,saw seek:sought sell:sold send:sent set:set shake:shaken,shook shed:shed shoot:shot \
    show:shown,showed shrink:shrunk,shrank shut:shut sing:sung,sang sink:sunk,sank sit:sat sleep:slept \
    slide:slid speak:spoken,spoke speed:sped spend:spent spin:spun split:split spread:spread stand:stood \
    steal:stolen,stole stick:stuck strike:struck,stricken string:strung swear:sworn,swore sweep:swept \
    swing:swung take:taken,took teach:taught tear:torn,tore tell:told think:thought throw:thrown,threw \
    wake:woken,woke wear:worn,wore win:won wind:wound write:written,wrote";

/// Prefixes under which an irregular verb stays irregular: `resend`, `undo`, `withdraw`, `overwrite`.
const PREFIXES: &[&str] = &["re", "un", "over", "under", "out", "mis", "pre", "with", "up", "fore"];

/// Words that end in `-ed` and are no past tense, beyond those that the rules of [`is_past_tense`] know.
const MERELY_ED: &[&str] = &["embed", "hatred", "hundred", "kindred", "sacred"];

pub(super) fn words(text: &str) -> Vec<&str> {
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

fn irregular() -> impl Iterator<Item = (&'static str, std::str::Split<'static, char>)> {
    let entries = IRREGULAR.split_whitespace().filter_map(|entry| entry.split_once(':'));
    entries.map(|(verb, forms)| (verb, forms.split(',')))
}

/// The past forms of a lower-case verb that has its own.
pub(super) fn irregular_forms(verb: &str) -> Option<Vec<String>> {
    let listed = |verb: &str| irregular().find(|(base, _)| *base == verb).map(|(_, forms)| forms);
    if let Some(forms) = listed(verb) {
        return Some(forms.map(str::to_owned).collect());
    }
    PREFIXES.iter().find_map(|prefix| {
        let forms = listed(verb.strip_prefix(prefix)?)?;
        Some(forms.map(|form| format!("{prefix}{form}")).collect())
    })
}

/// `started`, `placed`, `applied`, `shipped`, `mimicked`. Whether a consonant doubles depends on the stress and on the side of
/// the Atlantic, and spelling shows neither: both are right (`cancelled`, `canceled`).
fn is_regular_past(verb: &str, past: &str) -> bool {
    let Some(stem) = past.strip_suffix("ed") else { return false };
    if let Some(base) = verb.strip_suffix('e') {
        return stem == base;
    }
    let last = verb.chars().next_back();
    let with_i = verb.strip_suffix('y').is_some_and(|base| stem.strip_suffix('i') == Some(base));
    let longer = stem.strip_prefix(verb).is_some_and(|more| {
        let mut more = more.chars();
        let added = more.next();
        more.next().is_none() && (added.is_none() || added == last || (last, added) == (Some('c'), Some('k')))
    });
    with_i || longer
}

fn is_past_tense(word: &str) -> bool {
    let listed = |word: &str| irregular().any(|(_, mut forms)| forms.any(|form| form == word));
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

fn is_vowel(letter: char) -> bool {
    matches!(letter, 'a' | 'e' | 'i' | 'o' | 'u')
}

//! Who writes: the port, the worker around it, and the embedded author, who needs nobody else.

use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use towpath::{Answer, Attempt, HandlerError, TaskType, Worker};

use crate::capability::{CapabilityPolicy, task_type};
use crate::draft::{Brief, Draft};
use crate::stage::Stage;

/// Writes what a brief asks for.
#[async_trait]
pub trait Author: Send + Sync + 'static {
    /// One draft. It may be asked for again, and beside an attempt that was given up.
    async fn write(&self, brief: &Brief) -> Result<Draft, HandlerError>;
}

/// Does the capability of one stage.
pub(crate) struct CapabilityWorker {
    pub(crate) entity: Stage,
    pub(crate) author: Arc<dyn Author>,
    pub(crate) policy: CapabilityPolicy,
}

impl Worker for CapabilityWorker {
    fn task(&self) -> TaskType {
        task_type(self.entity, &self.policy)
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        let brief: Brief = attempt.read()?;
        let draft = self.author.write(&brief).await?;
        draft.check().map_err(|flaw| HandlerError::transient("genesis-draft", flaw))?;
        Answer::of(&draft)
    }
}

/// Writes deterministic text: the same brief gives the same draft, on every host.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmbeddedAuthor;

#[async_trait]
impl Author for EmbeddedAuthor {
    async fn write(&self, brief: &Brief) -> Result<Draft, HandlerError> {
        let seed = serde_json::to_vec(brief)?;
        let mut words = Words { digest: Sha256::digest(&seed).into(), drawn: 0 };
        Ok(draft(brief, &mut words))
    }
}

/// Words that are drawn by a hash.
struct Words {
    digest: [u8; 32],
    drawn: usize,
}

impl Words {
    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        if self.drawn == self.digest.len() {
            (self.digest, self.drawn) = (Sha256::digest(self.digest).into(), 0);
        }
        let number = usize::from(self.digest[self.drawn]);
        self.drawn += 1;
        from.get(number % from.len().max(1)).copied().unwrap_or_default()
    }
}

const MOODS: &[&str] = &["quiet", "restless", "bitter", "luminous", "patient", "reckless", "tender", "cold"];
const THINGS: &[&str] =
    &["harbour", "archive", "orchard", "lighthouse", "canal", "observatory", "foundry", "garden"];
const PEOPLE: &[&str] = &["Ilse", "Tomas", "Wren", "Adira", "Juno", "Kasimir", "Noor", "Petra"];
const CRAFTS: &[&str] =
    &["cartographer", "locksmith", "ferry pilot", "beekeeper", "translator", "clockmaker", "nurse"];
const WISHES: &[&str] =
    &["to be forgiven", "to come home", "to be believed", "to let go", "to keep a promise", "to know why"];
const FORCES: &[&str] = &["memory", "debt", "loyalty", "hunger", "silence", "pride", "mercy", "time"];
const TURNS: &[&str] = &[
    "a letter arrives that was never sent",
    "the one witness takes back every word",
    "a flood opens what was walled up",
    "the wrong person keeps the secret",
    "two rivals find that they want the same",
    "the price turns out to be paid already",
];

fn draft(brief: &Brief, words: &mut Words) -> Draft {
    let seed = first_words(&brief.initial_input);
    let titled =
        |entity| brief.confirmed.get(&entity).map_or("what is to come", |draft| draft.title.as_str());
    let (mood, thing, force) = (words.pick(MOODS), words.pick(THINGS), words.pick(FORCES));
    let (person, craft, wish) = (words.pick(PEOPLE), words.pick(CRAFTS), words.pick(WISHES));
    let (first, last) = (words.pick(TURNS), words.pick(TURNS));
    let (title, text) = match brief.entity {
        Stage::Concept => (
            format!("The {mood} {thing}"),
            format!(
                "It begins with {seed}. In a {mood} {thing}, a {craft} wants {wish}, and {force} is in the way."
            ),
        ),
        Stage::Theme => (
            format!("On {force}"),
            format!(
                "{} asks what {force} costs those who want {wish}. The tone is {mood}.",
                titled(Stage::Concept)
            ),
        ),
        Stage::World => (
            format!("Around the {thing}"),
            format!(
                "A {mood} country around a {thing}, where {force} is counted like coin. {} is felt in its laws.",
                titled(Stage::Theme)
            ),
        ),
        Stage::Character => (
            format!("{person}, {craft}"),
            format!(
                "{person} is a {mood} {craft} of {}, who wants {wish} and is afraid of {force}.",
                titled(Stage::World)
            ),
        ),
        Stage::Plot => (
            format!("How {force} was paid"),
            format!(
                "1. {} loses the {thing}.\n2. Then {first}.\n3. In the end {last}, and somebody learns {wish}.",
                titled(Stage::Character)
            ),
        ),
        Stage::Details => (
            format!("Chapter one: the {thing}"),
            format!(
                "The {thing} was {mood} that morning. {} stood before it and thought of {seed}; of {force}, too, and of {}.",
                titled(Stage::Character),
                titled(Stage::Plot)
            ),
        ),
    };
    let heeded = brief
        .instructions
        .as_deref()
        .map_or_else(String::new, |said| format!("\nHeeded: {}.", first_words(said)));
    Draft { title, text: text + &heeded }
}

/// Enough of a text to know it by.
fn first_words(text: &str) -> String {
    text.split_whitespace().take(12).collect::<Vec<_>>().join(" ").chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_brief_gives_the_same_draft_and_another_one_another() {
        for entity in Stage::ALL {
            let brief = Brief {
                entity,
                ask: 1,
                initial_input: "a ferry that never lands".to_owned(),
                preferences: serde_json::Map::new(),
                confirmed: Default::default(),
                network: Vec::new(),
                instructions: None,
            };
            let first = EmbeddedAuthor.write(&brief).await.ok().unwrap();
            assert_eq!(first.check(), Ok(()));
            assert_eq!(EmbeddedAuthor.write(&brief).await.ok().unwrap(), first);
            let drafts = (2..10).map(|ask| Brief { ask, ..brief.clone() });
            let mut others = Vec::new();
            for brief in drafts {
                others.push(EmbeddedAuthor.write(&brief).await.ok().unwrap());
            }
            assert!(others.iter().any(|other| *other != first), "{entity:?}");
            let heeded = Brief { instructions: Some("less rain".to_owned()), ..brief };
            assert!(EmbeddedAuthor.write(&heeded).await.ok().unwrap().text.contains("less rain"));
        }
    }
}

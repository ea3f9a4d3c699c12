//! What a session's requests lead to: a process per session that hands them to workers, and brings the answers back.
//!
//! It has the session's id. Only the answer to the last request counts: what comes late, twice or from elsewhere is recorded and
//! does nothing. A failure is kept, and the request stays open: its task can be done again, or the user asks again.

#![allow(missing_docs, reason = "where a name says it, no comment repeats it")]

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath::ids::{AggregateKey, InvalidId};
use towpath::name::NameRule;
use towpath::{
    Aggregate, Context, Correlation, Event, Machine, NoCommands, Process, Reaction, Seen, Task, TaskSaid,
};

use crate::capability::{self, CapabilityPolicy, entity_of, name_of, task_type};
use crate::draft::{Draft, cut};
use crate::session::{EntityConfirmed, EntityRequested, Propose, Session, SessionCommand, SessionEvent};
use crate::stage::Stage;

/// The most bytes of what is kept of a failure.
const LONGEST_MESSAGE: usize = 4000;

/// The process of a session.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Writing {
    /// The last request that was taken.
    pub latest: u64,
    /// The request that waits for its answer.
    pub open: Option<Asked>,
    /// Why there is none yet.
    pub failure: Option<GenerationFailed>,
    /// How many answers came late, twice or from elsewhere.
    pub discarded: u64,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// What is to be written.
    pub entity: Stage,
    /// The version of the session that the request made.
    pub request: u64,
}

/// What may have happened to a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(schemas)]
pub enum WritingEvent {
    #[serde(rename = "Genesis.Process.Started")]
    Started(ProcessStarted),
    /// A worker was asked.
    #[serde(rename = "Genesis.Process.GenerationRequested")]
    GenerationRequested(Asked),
    /// Its answer was brought to the session.
    #[serde(rename = "Genesis.Process.AnswerAccepted")]
    AnswerAccepted(Asked),
    /// An answer that nobody waits for.
    #[serde(rename = "Genesis.Process.AnswerDiscarded")]
    AnswerDiscarded(AnswerDiscarded),
    /// There was no answer that can be used.
    #[serde(rename = "Genesis.Process.GenerationFailed")]
    GenerationFailed(GenerationFailed),
    /// Nobody waits for the answer any more.
    #[serde(rename = "Genesis.Process.GenerationDropped")]
    GenerationDropped(Asked),
    #[serde(rename = "Genesis.Process.Ended")]
    Ended(ProcessEnded),
}

/// `Genesis.Process.Started`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStarted {}

/// `Genesis.Process.AnswerDiscarded`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnswerDiscarded {
    /// The task that gave it.
    pub task: String,
}

/// `Genesis.Process.Ended`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessEnded {}

/// `Genesis.Process.GenerationFailed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerationFailed {
    /// What was to be written.
    pub entity: Stage,
    /// The version of the session that the request made.
    pub request: u64,
    /// A stable code.
    pub reason: String,
    /// A text for people.
    pub message: String,
}

/// The facts that it takes: of its session, and of the tasks it has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[allow(clippy::large_enum_variant, reason = "one of them lives at a time")]
pub enum WritingInput {
    #[serde(rename = "Genesis.Session.Started")]
    SessionStarted(Value),
    #[serde(rename = "Genesis.Session.SeedRequested")]
    ConceptRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Theme.Requested")]
    ThemeRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.World.Requested")]
    WorldRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Character.Requested")]
    CharacterRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Plot.Requested")]
    PlotRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Details.Requested")]
    DetailsRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.ConceptConfirmed")]
    ConceptConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Theme.Confirmed")]
    ThemeConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.World.Confirmed")]
    WorldConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Character.Confirmed")]
    CharacterConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Plot.Confirmed")]
    PlotConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Details.Confirmed")]
    DetailsConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Finished")]
    SessionFinished(Value),
    #[serde(rename = "Genesis.Session.Failed")]
    SessionFailed(Value),
    #[serde(rename = "Outliner.Concept.Generated")]
    ConceptGenerated(TaskSaid<Value>),
    #[serde(rename = "Outliner.Concept.GenerationFailed")]
    ConceptGenerationFailed(TaskSaid<Value>),
    #[serde(rename = "Outliner.Concept.GenerationExpired")]
    ConceptGenerationExpired(TaskSaid<Value>),
    #[serde(rename = "Outliner.Concept.GenerationCanceled")]
    ConceptGenerationCanceled(TaskSaid<Value>),
    #[serde(rename = "Outliner.Theme.Generated")]
    ThemeGenerated(TaskSaid<Value>),
    #[serde(rename = "Outliner.Theme.GenerationFailed")]
    ThemeGenerationFailed(TaskSaid<Value>),
    #[serde(rename = "Outliner.Theme.GenerationExpired")]
    ThemeGenerationExpired(TaskSaid<Value>),
    #[serde(rename = "Outliner.Theme.GenerationCanceled")]
    ThemeGenerationCanceled(TaskSaid<Value>),
    #[serde(rename = "Worldbuilder.World.Generated")]
    WorldGenerated(TaskSaid<Value>),
    #[serde(rename = "Worldbuilder.World.GenerationFailed")]
    WorldGenerationFailed(TaskSaid<Value>),
    #[serde(rename = "Worldbuilder.World.GenerationExpired")]
    WorldGenerationExpired(TaskSaid<Value>),
    #[serde(rename = "Worldbuilder.World.GenerationCanceled")]
    WorldGenerationCanceled(TaskSaid<Value>),
    #[serde(rename = "Character.Design.Generated")]
    CharacterGenerated(TaskSaid<Value>),
    #[serde(rename = "Character.Design.GenerationFailed")]
    CharacterGenerationFailed(TaskSaid<Value>),
    #[serde(rename = "Character.Design.GenerationExpired")]
    CharacterGenerationExpired(TaskSaid<Value>),
    #[serde(rename = "Character.Design.GenerationCanceled")]
    CharacterGenerationCanceled(TaskSaid<Value>),
    #[serde(rename = "Plot.Structure.Generated")]
    PlotGenerated(TaskSaid<Value>),
    #[serde(rename = "Plot.Structure.GenerationFailed")]
    PlotGenerationFailed(TaskSaid<Value>),
    #[serde(rename = "Plot.Structure.GenerationExpired")]
    PlotGenerationExpired(TaskSaid<Value>),
    #[serde(rename = "Plot.Structure.GenerationCanceled")]
    PlotGenerationCanceled(TaskSaid<Value>),
    #[serde(rename = "Writer.Content.Generated")]
    DetailsGenerated(TaskSaid<Value>),
    #[serde(rename = "Writer.Content.GenerationFailed")]
    DetailsGenerationFailed(TaskSaid<Value>),
    #[serde(rename = "Writer.Content.GenerationExpired")]
    DetailsGenerationExpired(TaskSaid<Value>),
    #[serde(rename = "Writer.Content.GenerationCanceled")]
    DetailsGenerationCanceled(TaskSaid<Value>),
}

/// The same, whichever entity it is about.
enum Fact<'i> {
    Started,
    Requested(&'i EntityRequested),
    Confirmed(&'i EntityConfirmed),
    Ended,
    Generated(&'i TaskSaid<Value>),
    Failed(&'i TaskSaid<Value>),
}

impl WritingInput {
    fn fact(&self) -> Fact<'_> {
        match self {
            Self::SessionStarted(_) => Fact::Started,
            Self::ConceptRequested(asked)
            | Self::ThemeRequested(asked)
            | Self::WorldRequested(asked)
            | Self::CharacterRequested(asked)
            | Self::PlotRequested(asked)
            | Self::DetailsRequested(asked) => Fact::Requested(asked),
            Self::ConceptConfirmed(confirmed)
            | Self::ThemeConfirmed(confirmed)
            | Self::WorldConfirmed(confirmed)
            | Self::CharacterConfirmed(confirmed)
            | Self::PlotConfirmed(confirmed)
            | Self::DetailsConfirmed(confirmed) => Fact::Confirmed(confirmed),
            Self::SessionFinished(_) | Self::SessionFailed(_) => Fact::Ended,
            Self::ConceptGenerated(said)
            | Self::ThemeGenerated(said)
            | Self::WorldGenerated(said)
            | Self::CharacterGenerated(said)
            | Self::PlotGenerated(said)
            | Self::DetailsGenerated(said) => Fact::Generated(said),
            Self::ConceptGenerationFailed(said)
            | Self::ThemeGenerationFailed(said)
            | Self::WorldGenerationFailed(said)
            | Self::CharacterGenerationFailed(said)
            | Self::PlotGenerationFailed(said)
            | Self::DetailsGenerationFailed(said)
            | Self::ConceptGenerationExpired(said)
            | Self::ThemeGenerationExpired(said)
            | Self::WorldGenerationExpired(said)
            | Self::CharacterGenerationExpired(said)
            | Self::PlotGenerationExpired(said)
            | Self::DetailsGenerationExpired(said)
            | Self::ConceptGenerationCanceled(said)
            | Self::ThemeGenerationCanceled(said)
            | Self::WorldGenerationCanceled(said)
            | Self::CharacterGenerationCanceled(said)
            | Self::PlotGenerationCanceled(said)
            | Self::DetailsGenerationCanceled(said) => Fact::Failed(said),
        }
    }
}

impl Aggregate for Writing {
    const KIND: &'static str = "genesis";
    const NAME_RULE: NameRule = NameRule::DOTTED;
    type Command = NoCommands;
    type Event = WritingEvent;
    type Refusal = std::convert::Infallible;

    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<WritingEvent>, Self::Refusal> {
        match command {}
    }

    fn evolve(mut self, event: &WritingEvent) -> Self {
        match event {
            WritingEvent::Started(_) => {}
            WritingEvent::GenerationRequested(asked) => {
                (self.latest, self.open, self.failure) = (asked.request, Some(*asked), None);
            }
            WritingEvent::AnswerAccepted(_) | WritingEvent::GenerationDropped(_) | WritingEvent::Ended(_) => {
                (self.open, self.failure) = (None, None);
            }
            WritingEvent::AnswerDiscarded(_) => self.discarded += 1,
            WritingEvent::GenerationFailed(failed) => self.failure = Some(failed.clone()),
        }
        self
    }

    fn machine() -> Option<Machine> {
        let running = [
            WritingEvent::GENERATION_REQUESTED,
            WritingEvent::ANSWER_ACCEPTED,
            WritingEvent::ANSWER_DISCARDED,
            WritingEvent::GENERATION_FAILED,
            WritingEvent::GENERATION_DROPPED,
        ];
        let machine = Machine::named("genesis")
            .starts(WritingEvent::STARTED, "running")
            .state("running")
            .terminal("ended")
            .transition("running", WritingEvent::ENDED, "ended")
            .stay_in(&["running"], &running);
        Some(machine)
    }
}

impl Process for Writing {
    type Input = WritingInput;

    fn correlate(input: &Seen<WritingInput>) -> Correlation {
        match input.event.fact() {
            Fact::Started => Correlation::Starts(input.aggregate_id().to_owned()),
            Fact::Requested(_) | Fact::Confirmed(_) | Fact::Ended => {
                Correlation::Continues(input.aggregate_id().to_owned())
            }
            Fact::Generated(said) | Fact::Failed(said) => match &said.subject {
                Some(subject) if subject.kind.as_str() == Self::KIND => {
                    Correlation::Continues(subject.id.to_string())
                }
                // Somebody else's task of the same name.
                _ => Correlation::Ignored,
            },
        }
    }

    fn react(&self, input: Seen<WritingInput>, context: &Context) -> Reaction<Self> {
        match input.event.fact() {
            // It comes again when a broker's log is read anew.
            Fact::Started if context.version > 0 => Reaction::nothing(),
            Fact::Started => Reaction::of([WritingEvent::Started(ProcessStarted {})]),
            // An earlier one that comes behind a later one is superseded already.
            Fact::Requested(asked) if asked.request <= self.latest => Reaction::nothing(),
            Fact::Requested(EntityRequested { request, brief }) => {
                let (entity, request) = (brief.entity, *request);
                let begun = Reaction::of([WritingEvent::GenerationRequested(Asked { entity, request })]);
                self.called_off(begun, "superseded").start_task(
                    &capability(entity),
                    task_name(entity, request),
                    brief,
                )
            }
            // One that comes late has nothing to do with what is open by now.
            Fact::Confirmed(confirmed) => match self.open.filter(|asked| asked.entity == confirmed.entity) {
                None => Reaction::nothing(),
                Some(asked) => {
                    let dropped = Reaction::of([WritingEvent::GenerationDropped(asked)]);
                    self.called_off(dropped, "confirmed")
                }
            },
            Fact::Ended => {
                let ended = Reaction::of([WritingEvent::Ended(ProcessEnded {})]);
                self.called_off(ended, "session-ended")
            }
            Fact::Generated(said) => self.answered(input.aggregate_id(), said),
            Fact::Failed(said) => match self.open.filter(|asked| is_answer(said, asked)) {
                None => Reaction::nothing(),
                Some(asked) => {
                    let reason = said.reason.clone().unwrap_or_default();
                    failed(asked, reason, said.message.clone().unwrap_or_default())
                }
            },
        }
    }
}

impl Writing {
    /// A proposal for the session, if it is the answer to what is open.
    fn answered(&self, task: &str, said: &TaskSaid<Value>) -> Reaction<Self> {
        let Some(asked) = self.open.filter(|asked| is_answer(said, asked)) else {
            let task = task.to_owned();
            return Reaction::of([WritingEvent::AnswerDiscarded(AnswerDiscarded { task })]);
        };
        match Draft::answered(said.result.clone().unwrap_or_default()) {
            Err(flaw) => failed(asked, "genesis-draft".to_owned(), flaw),
            Ok(draft) => {
                let proposal = Propose { request: asked.request, draft };
                let command = SessionCommand::propose(asked.entity, proposal);
                Reaction::of([WritingEvent::AnswerAccepted(asked)])
                    .send::<Session>(said.subject_id(), command)
            }
        }
    }

    /// What is open is not waited for any more.
    fn called_off(&self, reaction: Reaction<Self>, reason: &str) -> Reaction<Self> {
        match self.open {
            None => reaction,
            Some(Asked { entity, request }) => {
                reaction.cancel_task(&capability(entity), task_name(entity, request), reason)
            }
        }
    }
}

fn failed(asked: Asked, reason: String, message: String) -> Reaction<Writing> {
    let Asked { entity, request } = asked;
    let message = cut(&message, LONGEST_MESSAGE);
    Reaction::of([WritingEvent::GenerationFailed(GenerationFailed { entity, request, reason, message })])
}

/// The sort of task; its limits are those that genesis was installed with.
fn capability(entity: Stage) -> towpath::TaskType {
    task_type(entity, &CapabilityPolicy::default())
}

/// The name of the task that answers a request, within the process.
fn task_name(entity: Stage, request: u64) -> String {
    format!("{}/{request}", entity.as_str())
}

fn is_answer(said: &TaskSaid<Value>, asked: &Asked) -> bool {
    entity_of(said.task_type.as_str()) == Some(asked.entity)
        && said.key.as_deref() == Some(&task_name(asked.entity, asked.request))
}

/// What the tasks of a session are for: its process, which has the session's id.
pub fn subject(session_id: &str) -> Result<AggregateKey, InvalidId> {
    AggregateKey::new(Writing::KIND, session_id)
}

/// Whether this is the task that answers a request.
pub fn answers(task: &Task, entity: Stage, request: u64) -> bool {
    let end = format!("/{}", task_name(entity, request));
    let key = task.task.unique_key.as_ref();
    task.task.task_type.as_str() == name_of(entity) && key.is_some_and(|key| key.as_str().ends_with(&end))
}

/// Every event type of genesis with the JSON Schema of its payload: of sessions, of their processes and of capabilities.
pub fn schemas() -> Vec<(String, Schema)> {
    let own = [SessionEvent::schemas(), WritingEvent::schemas()].into_iter().flatten();
    own.map(|(name, schema)| (name.to_owned(), schema)).chain(capability::schemas()).collect()
}

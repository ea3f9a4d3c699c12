//! What sort of work a task is: declared once, used by who starts it and by who does it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{AggregateKey, InvalidId, TaskId, TaskTypeName};
use crate::name::{EventName, InvalidName};
use crate::payload::Payload;
use crate::ports::store::{NewTask, TaskEnd};
use crate::retry::{ErrorClass, InvalidPolicy, RetryDecision, RetryPolicy};

/// How long a worker may be silent when nothing is said.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// A sort of work. Nothing but its name must be said.
///
/// With names for facts, a task's beginning and end are facts of an aggregate `task` with the task's id: what was asked for
/// ([`requested`](Self::requested)), and what came of it, whose cause that is. Without them there is the task's row alone.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskType {
    name: String,
    retries: RetryPolicy,
    time_limit: Option<Duration>,
    heartbeat: Duration,
    facts: Vec<(TaskFact, String)>,
}

/// What of a task becomes a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFact {
    /// It was started.
    Requested,
    /// It was done.
    Answered,
    /// It failed for good.
    Failed,
    /// It took too long, for good.
    TimedOut,
    /// It was called off.
    Canceled,
    /// It turned out not to be needed.
    Skipped,
}

/// What a fact of a task says: for who takes facts of tasks. `T` is what the payload is (when it was asked for) or the result
/// (when it was done).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSaid<T = Payload> {
    /// Which one.
    pub task_id: TaskId,
    /// What sort of work.
    pub task_type: TaskTypeName,
    /// What it is unique by: of a task that is unique within its subject, its name there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<AggregateKey>,
    /// What the worker was told, of one that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<T>,
    /// What came of it, of one that was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<T>,
    /// Why it ended otherwise: a stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why: a text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How often it was tried again, of one that failed or took too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u64>,
}

impl<T> TaskSaid<T> {
    /// Whose task it is, and nothing of what came of it.
    pub fn of(task: &NewTask) -> Self {
        Self {
            task_id: task.task_id,
            task_type: task.task_type.clone(),
            key: task.name().map(ToOwned::to_owned),
            subject: task.subject.clone(),
            payload: None,
            result: None,
            reason: None,
            message: None,
            retry_count: None,
        }
    }

    /// The id of what it is for; empty where it is for nothing.
    pub fn subject_id(&self) -> &str {
        self.subject.as_ref().map_or("", |subject| subject.id.as_str())
    }
}

/// Why a sort of work cannot be declared so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidTaskType {
    /// Its name is none.
    #[error("the name of a task type is invalid")]
    Name(#[from] InvalidId),
    /// The name of a fact is none.
    #[error("{task_type}: the name of a fact is invalid")]
    Fact {
        /// Of which type.
        task_type: String,
        /// What is wrong.
        source: InvalidName,
    },
    /// Its retry policy makes no sense.
    #[error("{task_type}: its retry policy makes no sense")]
    Retries {
        /// Of which type.
        task_type: String,
        /// What is wrong.
        source: InvalidPolicy,
    },
    /// Its end would be a fact without a cause.
    #[error("{task_type}: its end is a fact, and its beginning is none; name that, too (`requested`)")]
    WithoutRequest {
        /// Of which type.
        task_type: String,
    },
    /// A worker would be silent as soon as it has a task.
    #[error(
        "{task_type}: a worker must be allowed to be silent for a moment; give a heartbeat of a second or more"
    )]
    Heartbeat {
        /// Of which type.
        task_type: String,
    },
    /// Not every database can write so far a moment down.
    #[error(
        "{task_type}: its heartbeat or its time limit is longer than a year; leave the limit out where there is none"
    )]
    TooLong {
        /// Of which type.
        task_type: String,
    },
}

impl TaskType {
    /// The shortest heartbeat: one is sent three times in its length, and has to arrive.
    pub const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(1);

    /// The longest heartbeat, and the longest time limit.
    pub const LONGEST: Duration = Duration::from_secs(3600 * 24 * 365);

    /// A sort of work of this name: tried again after 1, 5 and 15 seconds, without a time limit, and taken over when its worker
    /// was silent for 30 seconds.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            retries: RetryPolicy::for_commands(),
            time_limit: None,
            heartbeat: HEARTBEAT,
            facts: Vec::new(),
        }
    }

    /// When an attempt that failed or took too long is followed by another one.
    pub fn retries(mut self, policy: RetryPolicy) -> Self {
        self.retries = policy;
        self
    }

    /// How long one attempt may take.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// How long a worker may be silent before another takes over.
    pub fn heartbeat(mut self, silence: Duration) -> Self {
        self.heartbeat = silence;
        self
    }

    /// The fact that it was started.
    pub fn requested(self, event_type: impl Into<String>) -> Self {
        self.fact(TaskFact::Requested, event_type)
    }

    /// The fact that it was done.
    pub fn answered(self, event_type: impl Into<String>) -> Self {
        self.fact(TaskFact::Answered, event_type)
    }

    /// The fact that it failed for good.
    pub fn failed(self, event_type: impl Into<String>) -> Self {
        self.fact(TaskFact::Failed, event_type)
    }

    /// Another fact of it.
    pub fn fact(mut self, fact: TaskFact, event_type: impl Into<String>) -> Self {
        self.facts.retain(|(of, _)| *of != fact);
        self.facts.push((fact, event_type.into()));
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long one attempt may take.
    pub fn limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// How long a worker may be silent.
    pub fn silence(&self) -> Duration {
        self.heartbeat
    }

    /// Whether its beginning and end are facts.
    pub fn has_facts(&self) -> bool {
        !self.facts.is_empty()
    }

    /// The name of a fact, if it is one.
    pub fn event_type(&self, fact: TaskFact) -> Option<EventName> {
        self.facts.iter().find(|(of, _)| *of == fact).map(|(_, name)| EventName::from_stored(name))
    }

    /// Whether it can be declared so.
    pub fn check(&self) -> Result<TaskTypeName, InvalidTaskType> {
        let task_type = || self.name.clone();
        let name = TaskTypeName::new(&self.name)?;
        for (_, event_type) in &self.facts {
            EventName::infer(event_type)
                .map_err(|source| InvalidTaskType::Fact { task_type: task_type(), source })?;
        }
        self.retries.check().map_err(|source| InvalidTaskType::Retries { task_type: task_type(), source })?;
        if self.has_facts() && self.event_type(TaskFact::Requested).is_none() {
            return Err(InvalidTaskType::WithoutRequest { task_type: task_type() });
        }
        if self.heartbeat < Self::SHORTEST_HEARTBEAT {
            return Err(InvalidTaskType::Heartbeat { task_type: task_type() });
        }
        if self.heartbeat.max(self.time_limit.unwrap_or_default()) > Self::LONGEST {
            return Err(InvalidTaskType::TooLong { task_type: task_type() });
        }
        Ok(name)
    }

    /// How an attempt ends that failed, after so many that were followed by another. `unit_random` is a number from 0 to 1 that
    /// the caller draws.
    pub fn after_failure(
        &self,
        class: ErrorClass,
        error_code: impl Into<String>,
        error_message: impl Into<String>,
        retry_count: u64,
        unit_random: f64,
    ) -> TaskEnd {
        let retry_after = match self.retries.decide(class, failures(retry_count), unit_random) {
            RetryDecision::RetryAfter(pause) => Some(pause),
            RetryDecision::GiveUp(_) => None,
        };
        TaskEnd::Failed { error_code: error_code.into(), error_message: error_message.into(), retry_after }
    }

    /// The same for one that took too long.
    pub fn after_time_limit(&self, retry_count: u64, unit_random: f64) -> TaskEnd {
        let retry_after = self.retries.next_delay(failures(retry_count), unit_random);
        TaskEnd::TimedOut { error_message: "the attempt took longer than it may".to_owned(), retry_after }
    }
}

/// How many attempts have failed, this one included.
fn failures(retry_count: u64) -> u32 {
    u32::try_from(retry_count.saturating_add(1)).unwrap_or(u32::MAX)
}

impl TaskFact {
    /// What an end is as a fact; none when it is none.
    pub fn of(end: &TaskEnd) -> Option<Self> {
        match end {
            _ if !end.is_final() => None,
            TaskEnd::Succeeded { .. } => Some(Self::Answered),
            TaskEnd::Skipped { .. } => Some(Self::Skipped),
            TaskEnd::Canceled => Some(Self::Canceled),
            TaskEnd::Failed { .. } => Some(Self::Failed),
            TaskEnd::TimedOut { .. } => Some(Self::TimedOut),
            TaskEnd::GivenBack => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concept() -> TaskType {
        TaskType::named("Outliner.Concept")
    }

    #[test]
    fn a_name_alone_is_enough() {
        assert_eq!(concept().check().unwrap().as_str(), "Outliner.Concept");
        assert!(!concept().has_facts());
        assert!(TaskType::named("").check().is_err());
    }

    #[test]
    fn an_end_that_is_a_fact_has_a_cause() {
        let answered = concept().answered("Outliner.Concept.Generated");
        assert!(matches!(answered.check(), Err(InvalidTaskType::WithoutRequest { .. })));
        let both = answered.requested("Outliner.Concept.GenerationRequested");
        assert!(both.check().is_ok());
        let name = both.event_type(TaskFact::Answered).unwrap();
        assert_eq!(name.as_str(), "Outliner.Concept.Generated");
        assert_eq!(both.event_type(TaskFact::Failed), None);
        assert!(matches!(both.failed("no name at all").check(), Err(InvalidTaskType::Fact { .. })));
    }

    #[test]
    fn a_worker_may_be_silent_for_a_second_at_least() {
        let hasty = concept().heartbeat(Duration::from_millis(999));
        assert!(matches!(hasty.check(), Err(InvalidTaskType::Heartbeat { .. })));
    }

    #[test]
    fn no_moment_is_so_far_that_a_database_cannot_write_it_down() {
        let (year, longer) = (TaskType::LONGEST, TaskType::LONGEST + Duration::from_secs(1));
        assert!(concept().time_limit(year).heartbeat(year).check().is_ok());
        for endless in [concept().time_limit(Duration::MAX), concept().heartbeat(longer)] {
            assert!(matches!(endless.check(), Err(InvalidTaskType::TooLong { .. })));
        }
    }

    #[test]
    fn the_policy_says_what_follows_a_failure() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let after =
            |class, retry_count| match concept().after_failure(class, "code", "text", retry_count, 0.0) {
                TaskEnd::Failed { retry_after, .. } => retry_after,
                other => panic!("{other:?}"),
            };
        let transient = [0, 1, 2, 3, u64::MAX].map(|count| after(ErrorClass::Transient, count));
        assert_eq!(transient, [seconds(1), seconds(5), seconds(15), None, None]);
        assert_eq!(after(ErrorClass::Unrecoverable, 0), None);
        let late = [0, 3].map(|count| TaskFact::of(&concept().after_time_limit(count, 0.0)));
        assert_eq!(late, [None, Some(TaskFact::TimedOut)]);
    }
}

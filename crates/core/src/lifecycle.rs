//! The lifecycles of commands, outbox rows, inbox rows, letters, alerts and tasks, each with one function that answers the next
//! state.
//!
//! The live path, the checker, the repair and the console all go through `next`, so they cannot disagree about
//! what is possible. A state's name, stored text, terminal mark and ways out stand in one place below: a new
//! state is one new block.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A step that a state does not allow. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{lifecycle} that is {from} cannot take the step {step}; possible: {}", join_or_nothing(allowed))]
pub struct IllegalStep {
    /// Whose lifecycle, as it reads in a sentence: "a command".
    pub lifecycle: &'static str,
    /// The stored text of the state.
    pub from: &'static str,
    /// The step that was tried.
    pub step: &'static str,
    /// The steps that the state allows.
    pub allowed: Vec<&'static str>,
}

/// A stored text that is no state of the lifecycle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no state of {lifecycle}; the states are {}", join_or_nothing(allowed))]
pub struct UnknownState {
    /// Whose lifecycle, as it reads in a sentence: "a command".
    pub lifecycle: &'static str,
    /// The text given.
    pub given: String,
    /// The texts that would do.
    pub allowed: Vec<&'static str>,
}

/// Declares the states of one lifecycle and the steps between them.
///
/// A state reads `Name = "TEXT" (terminal) { Step => NextState, … }`, a step reads `Name (operator)`. Terminal
/// states are left by an operator's steps only; the tests hold every lifecycle to that.
macro_rules! lifecycle {
    (
        $lifecycle:literal
        $(#[$status_doc:meta])*
        states $status:ident {
            $(
                $(#[$state_doc:meta])*
                $state:ident = $text:literal $(($terminal:ident))? { $($taken:ident => $to:ident),* }
            )*
        }
        $(#[$steps_doc:meta])*
        steps $steps:ident {
            $($(#[$step_doc:meta])* $step:ident $(($operator:ident))?)*
        }
    ) => {
        $(#[$status_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $status {
            $($(#[$state_doc])* $state,)*
        }

        $(#[$steps_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $steps {
            $($(#[$step_doc])* $step,)*
        }

        impl $status {
            /// Every state, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$state),*];

            /// The text that is stored and sent.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$state => $text,)*
                }
            }

            /// Whether only an operator's step leads out of this state.
            pub const fn is_terminal(self) -> bool {
                match self {
                    $(Self::$state => lifecycle!(@marked $($terminal)?),)*
                }
            }

            /// The steps that this state allows.
            pub const fn allowed(self) -> &'static [$steps] {
                match self {
                    $(Self::$state => &[$($steps::$taken),*],)*
                }
            }

            /// The state after a step, or what is possible instead.
            pub fn next(self, step: $steps) -> Result<Self, IllegalStep> {
                match (self, step) {
                    $($((Self::$state, $steps::$taken) => Ok(Self::$to),)*)*
                    _ => Err(IllegalStep {
                        lifecycle: $lifecycle,
                        from: self.as_str(),
                        step: step.as_str(),
                        allowed: self.allowed().iter().map(|step| step.as_str()).collect(),
                    }),
                }
            }
        }

        impl $steps {
            /// Every step, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$step),*];

            /// The name of the step.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$step => stringify!($step),)*
                }
            }

            /// Whether an operator, or the repair that an operator applies, takes this step; the live path never does.
            pub const fn is_operators(self) -> bool {
                match self {
                    $(Self::$step => lifecycle!(@marked $($operator)?),)*
                }
            }
        }

        impl fmt::Display for $status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Display for $steps {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $status {
            type Err = UnknownState;

            fn from_str(text: &str) -> Result<Self, UnknownState> {
                Self::ALL.iter().copied().find(|state| state.as_str() == text).ok_or_else(|| UnknownState {
                    lifecycle: $lifecycle,
                    given: text.to_owned(),
                    allowed: Self::ALL.iter().map(|state| state.as_str()).collect(),
                })
            }
        }

        impl Serialize for $status {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $status {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
    (@marked) => { false };
    (@marked terminal) => { true };
    (@marked operator) => { true };
}

lifecycle! {
    "a command"

    /// Where a recorded command is.
    states CommandStatus {
        /// Recorded; nobody works on it.
        Pending = "PENDING" { Claim => Processing }
        /// An instance works on it under an epoch.
        Processing = "PROCESSING" { Complete => Completed, Fail => Failed, Recover => Pending }
        /// Its events are committed.
        Completed = "COMPLETED" (terminal) { Requeue => Pending }
        /// It was rolled back and its error recorded. The same command may be tried again.
        Failed = "FAILED" { Claim => Processing, Requeue => Pending }
    }

    /// What can happen to a recorded command.
    steps CommandStep {
        /// An instance takes it, for the first time or as a retry.
        Claim
        /// It was carried out; this commits with its events.
        Complete
        /// It was refused or broke off.
        Fail
        /// The epoch of the instance that had it is gone, so nobody will ever finish it.
        Recover
        /// The repair sends back a command whose event is missing, or an operator one that failed.
        Requeue (operator)
    }
}

lifecycle! {
    "an outbox row"

    /// Where the publishing of one event to one channel is.
    states OutboxStatus {
        /// Committed with its event; not tried yet.
        New = "NEW" { Confirm => Sent, Postpone => Retry, GiveUp => Failed }
        /// To be tried again at its due time.
        Retry = "RETRY" { Confirm => Sent, Postpone => Retry, GiveUp => Failed, Skip => Skipped }
        /// The broker confirmed it.
        Sent = "SENT" (terminal) { Resend => Retry }
        /// Given up with a reason and an alert. Its aggregate is parked on this channel until it is reopened.
        Failed = "FAILED" (terminal) { Reopen => Retry, Skip => Skipped }
        /// An operator has decided that it is never published on this channel. What waited behind it goes on.
        Skipped = "SKIPPED" (terminal) {}
    }

    /// What can happen to an outbox row.
    steps OutboxStep {
        /// The broker confirmed the publish.
        Confirm
        /// It failed and the policy allows another try.
        Postpone
        /// It failed for good: the policy is exhausted or the error is not retryable.
        GiveUp
        /// An operator lets a failed row be tried again.
        Reopen (operator)
        /// An operator replays what was sent before.
        Resend (operator)
        /// An operator goes on without it.
        Skip (operator)
    }
}

lifecycle! {
    "an inbox row"

    /// Where the handling of one event by one handler is. There is no row before the first delivery had an
    /// outcome: see [`InboxStatus::first`].
    states InboxStatus {
        /// Received, failed, to be handled again.
        Retry = "RETRY" { Handle => Handled, Postpone => Retry, GiveUp => Dead }
        /// Handled; this committed with the handler's own change. Another delivery is a duplicate.
        Handled = "HANDLED" (terminal) {}
        /// Given up; the delivery is among the dead letters.
        Dead = "DEAD" (terminal) { Reopen => Retry }
    }

    /// What can happen to a delivery.
    steps InboxStep {
        /// The handler did its work.
        Handle
        /// The handler failed and the policy allows another try.
        Postpone
        /// The handler refused it, or the policy is exhausted.
        GiveUp
        /// An operator replays a dead letter.
        Reopen (operator)
    }
}

lifecycle! {
    "a letter"

    /// Where a delivery that was set aside is.
    states LetterStatus {
        /// To be handled again at its due time.
        Retry = "RETRY" { Postpone => Retry, GiveUp => Dead, Handle => Replayed, Discard => Discarded }
        /// Waits for an earlier one of its aggregate.
        Behind = "BEHIND" { Advance => Retry, Discard => Discarded }
        /// Given up: an operator decides.
        Dead = "DEAD" (terminal) { Replay => Retry, Discard => Discarded }
        /// Handled after an operator let it be tried again. One that needed no operator leaves no letter.
        Replayed = "REPLAYED" (terminal) {}
        /// An operator threw it away.
        Discarded = "DISCARDED" (terminal) {}
    }

    /// What can happen to a letter.
    steps LetterStep {
        /// It failed again and the policy allows another try.
        Postpone
        /// It failed for good.
        GiveUp
        /// The handler did its work.
        Handle
        /// The one before it is through.
        Advance
        /// An operator lets it be tried again.
        Replay (operator)
        /// An operator throws it away.
        Discard (operator)
    }
}

lifecycle! {
    "an alert"

    /// Where an alert is. There is none before its condition holds, or its figure is missed, for the first time.
    states AlertStatus {
        /// Its condition holds, and not yet for as long as its rule wants.
        Pending = "PENDING" { Fire => Firing, Silence => Silenced, Lose => Missing, Resolve => Resolved }
        /// Somebody should look.
        Firing = "FIRING" { Silence => Silenced, Lose => Missing, Resolve => Resolved }
        /// The same, and a silence says that nobody is to be told.
        Silenced = "SILENCED" { Fire => Firing, Lose => Missing, Resolve => Resolved }
        /// The figure that it is about is not there: whether its condition holds is not known.
        Missing = "MISSING" { Begin => Pending, Fire => Firing, Silence => Silenced, Resolve => Resolved }
        /// It is over. What comes after it is another alert.
        Resolved = "RESOLVED" (terminal) {}
    }

    /// What can happen to an alert.
    steps AlertStep {
        /// Its condition holds again, from now on.
        Begin
        /// It has lasted, or the silence is over.
        Fire
        /// A silence fits it.
        Silence
        /// Its figure is gone.
        Lose
        /// Its condition holds no longer, or nobody asks any more.
        Resolve
    }
}

lifecycle! {
    "a task"

    /// Where a task is, in the words of requirement S5.
    states TaskState {
        /// Known, but not ready to run.
        Pending = "pending" { Enqueue => Queued, Cancel => Canceled, Skip => Skipped }
        /// Waits for a worker.
        Queued = "queued" { Start => Running, TimeOut => Timeout, Cancel => Canceled, Skip => Skipped }
        /// A worker has it.
        Running = "running" {
            Succeed => Succeeded, Fail => Failed, TimeOut => Timeout, Cancel => Canceled, Skip => Skipped,
            Postpone => Pending, GiveBack => Queued
        }
        /// Done.
        Succeeded = "succeeded" (terminal) {}
        /// Broke off with an error; an operator may retry it.
        Failed = "failed" { Retry => Queued }
        /// Called off.
        Canceled = "canceled" (terminal) { Reopen => Queued }
        /// Did not finish before its deadline; an operator may retry it.
        Timeout = "timeout" { Retry => Queued }
        /// Was not needed.
        Skipped = "skipped" (terminal) {}
    }

    /// What can happen to a task.
    steps TaskStep {
        /// It became ready to run.
        Enqueue
        /// A worker took it.
        Start
        /// The worker finished it.
        Succeed
        /// The worker reported an error.
        Fail
        /// Its deadline passed, in the queue or with a worker that does not answer.
        TimeOut
        /// It is no longer wanted.
        Cancel
        /// It turned out not to be needed, before it did anything.
        Skip
        /// It is to run again.
        Retry
        /// The worker reported an error, and the policy tries it again at its time.
        Postpone
        /// The worker stops, and gives it back as it was.
        GiveBack
        /// An operator lets one run after all that was called off.
        Reopen (operator)
    }
}

impl InboxStatus {
    /// The state in which a row is first written: a delivery without a row allows what one to be retried allows.
    pub fn first(step: InboxStep) -> Result<Self, IllegalStep> {
        Self::Retry.next(step)
    }
}

fn join_or_nothing(words: &[&'static str]) -> String {
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Debug;

    /// Tries every state with every step: exactly the listed ones are legal.
    fn exactly<S, T>(
        states: &[S],
        steps: &[T],
        next: impl Fn(S, T) -> Result<S, IllegalStep>,
        legal: &[(S, T, S)],
    ) where
        S: Copy + PartialEq + Debug,
        T: Copy + PartialEq + Debug,
    {
        for &from in states {
            for &step in steps {
                let wanted =
                    legal.iter().find(|(state, taken, _)| (*state, *taken) == (from, step)).map(|way| way.2);
                assert_eq!(next(from, step).ok(), wanted, "{from:?} {step:?}");
            }
        }
    }

    /// The promises that hold for every lifecycle.
    macro_rules! common_promises {
        ($name:ident, $status:ident, $steps:ident) => {
            mod $name {
                use super::*;

                #[test]
                fn texts_are_read_back_and_are_distinct() {
                    for &state in $status::ALL {
                        assert_eq!(state.as_str().parse::<$status>().unwrap(), state);
                        let json = serde_json::to_string(&state).unwrap();
                        assert_eq!(json, format!("\"{state}\""));
                        assert_eq!(serde_json::from_str::<$status>(&json).unwrap(), state);
                    }
                    let error = "nonsense".parse::<$status>().unwrap_err();
                    assert!($status::ALL.iter().all(|state| error.to_string().contains(state.as_str())), "{error}");
                    assert!(serde_json::from_str::<$status>("\"nonsense\"").is_err());
                }

                #[test]
                fn allowed_and_next_agree() {
                    for &state in $status::ALL {
                        for &step in $steps::ALL {
                            assert_eq!(state.next(step).is_ok(), state.allowed().contains(&step), "{state} {step}");
                        }
                    }
                }

                #[test]
                fn a_state_that_only_operators_leave_is_marked_terminal_and_no_other() {
                    for &state in $status::ALL {
                        let operators_only = state.allowed().iter().all(|step| step.is_operators());
                        assert_eq!(state.is_terminal(), operators_only, "{state}");
                    }
                }

                proptest! {
                    #[test]
                    fn a_walk_leaves_a_terminal_state_by_an_operators_step_only(
                        start in 0..$status::ALL.len(),
                        walk in proptest::collection::vec(0..$steps::ALL.len(), 0..40),
                    ) {
                        let mut state = $status::ALL[start];
                        for step in walk.into_iter().map(|index| $steps::ALL[index]) {
                            if let Ok(next) = state.next(step) {
                                prop_assert!(!state.is_terminal() || step.is_operators(), "{state} {step} {next}");
                                state = next;
                            }
                        }
                    }
                }
            }
        };
    }

    common_promises!(commands, CommandStatus, CommandStep);
    common_promises!(outbox, OutboxStatus, OutboxStep);
    common_promises!(inbox, InboxStatus, InboxStep);
    common_promises!(letters, LetterStatus, LetterStep);
    common_promises!(alerts, AlertStatus, AlertStep);
    common_promises!(tasks, TaskState, TaskStep);

    #[test]
    fn the_way_of_a_command() {
        use CommandStatus::*;
        use CommandStep::*;
        let legal = [
            (Pending, Claim, Processing),
            (Failed, Claim, Processing),
            (Processing, Complete, Completed),
            (Processing, Fail, Failed),
            (Processing, Recover, Pending),
            (Completed, Requeue, Pending),
            (Failed, Requeue, Pending),
        ];
        exactly(CommandStatus::ALL, CommandStep::ALL, CommandStatus::next, &legal);
    }

    #[test]
    fn the_way_of_an_outbox_row() {
        use OutboxStatus::*;
        use OutboxStep::*;
        let legal = [
            (New, Confirm, Sent),
            (Retry, Confirm, Sent),
            (New, Postpone, Retry),
            (Retry, Postpone, Retry),
            (New, GiveUp, Failed),
            (Retry, GiveUp, Failed),
            (Failed, Reopen, Retry),
            (Failed, Skip, Skipped),
            (Retry, Skip, Skipped),
            (Sent, Resend, Retry),
        ];
        exactly(OutboxStatus::ALL, OutboxStep::ALL, OutboxStatus::next, &legal);
    }

    #[test]
    fn the_way_of_an_inbox_row() {
        use InboxStatus::*;
        use InboxStep::*;
        let legal = [
            (Retry, Handle, Handled),
            (Retry, Postpone, Retry),
            (Retry, GiveUp, Dead),
            (Dead, Reopen, Retry),
        ];
        exactly(InboxStatus::ALL, InboxStep::ALL, InboxStatus::next, &legal);
        assert_eq!(InboxStatus::first(Handle), Ok(Handled));
        assert_eq!(InboxStatus::first(Postpone), Ok(Retry));
        assert_eq!(InboxStatus::first(GiveUp), Ok(Dead));
        assert!(InboxStatus::first(Reopen).is_err(), "there is nothing to reopen");
    }

    #[test]
    fn the_way_of_a_letter() {
        use LetterStatus::*;
        use LetterStep::{Advance, Discard, GiveUp, Handle, Postpone, Replay};
        let legal = [
            (Retry, Postpone, Retry),
            (Retry, GiveUp, Dead),
            (Retry, Handle, Replayed),
            (Behind, Advance, Retry),
            (Dead, Replay, Retry),
            (Retry, Discard, Discarded),
            (Behind, Discard, Discarded),
            (Dead, Discard, Discarded),
        ];
        exactly(LetterStatus::ALL, LetterStep::ALL, LetterStatus::next, &legal);
    }

    #[test]
    fn the_way_of_an_alert() {
        use AlertStatus::*;
        use AlertStep::{Begin, Fire, Lose, Resolve, Silence};
        let legal = [
            (Pending, Fire, Firing),
            (Silenced, Fire, Firing),
            (Missing, Fire, Firing),
            (Pending, Silence, Silenced),
            (Firing, Silence, Silenced),
            (Missing, Silence, Silenced),
            (Pending, Lose, Missing),
            (Firing, Lose, Missing),
            (Silenced, Lose, Missing),
            (Missing, Begin, Pending),
            (Pending, Resolve, Resolved),
            (Firing, Resolve, Resolved),
            (Silenced, Resolve, Resolved),
            (Missing, Resolve, Resolved),
        ];
        exactly(AlertStatus::ALL, AlertStep::ALL, AlertStatus::next, &legal);
    }

    #[test]
    fn the_way_of_a_task() {
        use TaskState::*;
        use TaskStep::{
            Cancel, Enqueue, Fail, GiveBack, Postpone, Reopen, Retry, Skip, Start, Succeed, TimeOut,
        };
        let legal = [
            (Pending, Enqueue, Queued),
            (Queued, Start, Running),
            (Running, Succeed, Succeeded),
            (Running, Fail, Failed),
            (Queued, TimeOut, Timeout),
            (Running, TimeOut, Timeout),
            (Pending, Cancel, Canceled),
            (Queued, Cancel, Canceled),
            (Running, Cancel, Canceled),
            (Pending, Skip, Skipped),
            (Queued, Skip, Skipped),
            (Running, Skip, Skipped),
            (Failed, Retry, Queued),
            (Timeout, Retry, Queued),
            (Running, Postpone, Pending),
            (Running, GiveBack, Queued),
            (Canceled, Reopen, Queued),
        ];
        exactly(TaskState::ALL, TaskStep::ALL, TaskState::next, &legal);
    }

    #[test]
    fn stored_texts_are_contracts() {
        use serde_json::json;
        assert_eq!(json!(CommandStatus::ALL), json!(["PENDING", "PROCESSING", "COMPLETED", "FAILED"]));
        assert_eq!(json!(OutboxStatus::ALL), json!(["NEW", "RETRY", "SENT", "FAILED", "SKIPPED"]));
        assert_eq!(json!(InboxStatus::ALL), json!(["RETRY", "HANDLED", "DEAD"]));
        assert_eq!(json!(LetterStatus::ALL), json!(["RETRY", "BEHIND", "DEAD", "REPLAYED", "DISCARDED"]));
        let alerts = json!(["PENDING", "FIRING", "SILENCED", "MISSING", "RESOLVED"]);
        assert_eq!(json!(AlertStatus::ALL), alerts);
        let tasks =
            json!(["pending", "queued", "running", "succeeded", "failed", "canceled", "timeout", "skipped"]);
        assert_eq!(json!(TaskState::ALL), tasks);
    }

    #[test]
    fn an_illegal_step_says_what_is_possible() {
        let error = CommandStatus::Completed.next(CommandStep::Claim).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a command that is COMPLETED cannot take the step Claim; possible: Requeue"
        );
        let error = TaskState::Skipped.next(TaskStep::Start).unwrap_err();
        assert_eq!(error.to_string(), "a task that is skipped cannot take the step Start; possible: nothing");
    }
}

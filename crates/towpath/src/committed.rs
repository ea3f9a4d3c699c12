//! What was committed, and whom it concerns. Whoever writes collects it; [`Wakes::act`] is the one place that acts on it.
//!
//! Nothing here is needed for what is committed to arrive: whoever is not woken looks by itself a little later.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use towpath_core::ids::{ChannelName, Lane};
use towpath_core::ports::store::Append;

use crate::metrics::{Meters, table};
use crate::observer::ObserverWake;
use crate::registry::Registry;
use crate::relay::RelayWakes;
use crate::service::Wake;
use crate::tasks::TaskWake;
use crate::timers::TimerWake;
use crate::tracker::TrackerWakes;

/// What a transaction wrote that others wait for.
#[must_use = "whoever waits for what was committed is told by acting on this"]
#[derive(Default)]
pub(crate) struct Committed {
    event_types: Vec<String>,
    channels: Vec<(ChannelName, Lane)>,
    /// The soonest.
    timer_due_at: Option<DateTime<Utc>>,
    commands: bool,
    /// Tasks that can be taken.
    tasks: bool,
    /// Tasks that wait for their time.
    task_times: bool,
    /// Tasks that run and are to be called off.
    task_cancels: bool,
    /// Attempts at tasks that ended: their types, and how.
    task_attempts: Vec<(String, &'static str)>,
    observers: Vec<ObserverWake>,
    /// Names of observers that have something to look at.
    watched_by: Vec<String>,
}

impl Committed {
    /// Facts, and the deadline that they begin.
    pub(crate) fn of(append: &Append, registry: &Registry) -> Self {
        let mut committed = Self::default();
        let lane = append.aggregate.lane();
        for event in &append.events {
            committed.event_types.push(event.event_type.to_string());
            let channels = registry.channels_of(event).into_owned();
            committed.channels.extend(channels.into_iter().map(|channel| (channel, lane)));
        }
        committed.timer_due_at = append.deadline.enters.as_ref().map(|timer| timer.due_at);
        committed
    }

    /// A timer.
    pub(crate) fn timer(due_at: DateTime<Utc>) -> Self {
        Self { timer_due_at: Some(due_at), ..Self::default() }
    }

    /// A command for a worker.
    pub(crate) fn command() -> Self {
        Self { commands: true, ..Self::default() }
    }

    /// A row in the outbox of a channel.
    pub(crate) fn routed(channel: ChannelName, lane: Lane) -> Self {
        Self { channels: vec![(channel, lane)], ..Self::default() }
    }

    /// A task, and until when it waits.
    pub(crate) fn task(not_before: Option<DateTime<Utc>>) -> Self {
        Self { tasks: not_before.is_none(), task_times: not_before.is_some(), ..Self::default() }
    }

    /// A task that runs and is to be called off.
    pub(crate) fn canceling() -> Self {
        Self { task_cancels: true, ..Self::default() }
    }

    /// An attempt at a task that ended.
    pub(crate) fn attempt(task_type: String, outcome: &'static str) -> Self {
        Self { task_attempts: vec![(task_type, outcome)], ..Self::default() }
    }

    /// Something that an observer looks after.
    pub(crate) fn observed(observer: ObserverWake) -> Self {
        Self { observers: vec![observer], ..Self::default() }
    }

    /// Something that the observer of this name is to look at now.
    pub(crate) fn watched(observer: &str) -> Self {
        Self { watched_by: vec![observer.to_owned()], ..Self::default() }
    }

    /// This, and what the same transaction wrote besides.
    pub(crate) fn and(&mut self, more: Self) {
        self.event_types.extend(more.event_types);
        self.channels.extend(more.channels);
        self.timer_due_at = [self.timer_due_at, more.timer_due_at].into_iter().flatten().min();
        self.commands |= more.commands;
        self.tasks |= more.tasks;
        self.task_times |= more.task_times;
        self.task_cancels |= more.task_cancels;
        self.task_attempts.extend(more.task_attempts);
        self.observers.extend(more.observers);
        self.watched_by.extend(more.watched_by);
    }
}

/// Everybody in this process who waits for commits. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Wakes {
    /// The sequencer.
    pub(crate) sequencer: Wake,
    /// Who tells other processes.
    pub(crate) told: Wake,
    pub(crate) relays: RelayWakes,
    pub(crate) timers: TimerWake,
    pub(crate) trackers: TrackerWakes,
    /// Who runs commands that were accepted for later.
    pub(crate) runner: Wake,
    /// Who takes tasks.
    pub(crate) tasks: TaskWake,
    /// Who lets tasks be taken at their time.
    pub(crate) task_times: Wake,
    /// Who asks which tasks are to be called off.
    pub(crate) task_cancels: Wake,
    /// Who does checks.
    pub(crate) checks: Wake,
    /// Observers, by their names.
    pub(crate) observers: Arc<HashMap<String, ObserverWake>>,
}

impl Wakes {
    /// Counts what was committed and wakes whom it concerns. After a commit whose answer was lost, too: who is woken for
    /// nothing finds nothing.
    pub(crate) fn act(&self, committed: &Committed, meters: &Meters) {
        meters.committed(committed.event_types.iter().map(String::as_str));
        for (task_type, outcome) in &committed.task_attempts {
            table::TASK_ATTEMPTS.counter(&[task_type.as_str(), outcome]).increment(1);
        }
        let has_facts = !committed.event_types.is_empty();
        if has_facts {
            self.sequencer.wake();
        }
        if committed.commands {
            self.runner.wake();
        }
        if committed.tasks {
            self.tasks.wake();
        }
        if committed.task_times {
            self.task_times.wake();
        }
        if committed.task_cancels {
            self.task_cancels.wake();
        }
        if has_facts || committed.commands || committed.tasks {
            self.told.wake();
        }
        for (channel, lane) in &committed.channels {
            self.relays.wake(channel.as_str(), *lane);
        }
        if let Some(due_at) = committed.timer_due_at {
            self.timers.scheduled(due_at);
        }
        let named = committed.watched_by.iter().filter_map(|name| self.observers.get(name));
        committed.observers.iter().chain(named).for_each(ObserverWake::wake);
    }
}

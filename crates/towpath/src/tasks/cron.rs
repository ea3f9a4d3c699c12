//! Tasks that are started by the calendar: one at each tick, over all instances.
//!
//! A tick is taken by moving the row of its schedule on to it, in the transaction that starts the task: whoever comes second finds
//! it there. Ticks at which nobody ran are not made up for, but for the last one.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::time::Instant;
use towpath_core::ids::TaskKey;
use towpath_core::payload::Payload;
use towpath_core::ports::store::StoreError;
use towpath_core::retry::Coded as _;
use towpath_core::task::TaskType;
use towpath_core::time::between;

use crate::bus::with_causes;
use crate::service::{Service, Stopping, Wake, rest};
use crate::towpath::Towpath;

/// Nobody sleeps for less: a clock that is read a moment too early is read again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// When a task of which type is started.
pub(crate) struct Schedule {
    name: String,
    cron: croner::Cron,
    of: TaskType,
    payload: Payload,
}

impl Schedule {
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn new(
        name: &str,
        expression: &str,
        of: TaskType,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("the schedule {name:?} cannot be kept: {why}");
        let cron = croner::Cron::from_str(expression)
            .map_err(|error| wrong(&format!("{expression:?} is no cron expression: {error}")))?;
        cron.find_next_occurrence(&DateTime::UNIX_EPOCH, true)
            .map_err(|_| wrong(&format!("{expression:?} never comes")))?;
        TaskKey::new(key_at(name, DateTime::UNIX_EPOCH)).map_err(|error| wrong(&error))?;
        let payload = Payload::from_value(payload).map_err(|error| wrong(&with_causes(&error)))?;
        Ok(Self { name: name.to_owned(), cron, of, payload })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The last tick up to now. Before the first one there is the beginning of time, so that the first can be told to be one.
    fn last_tick(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        self.cron.find_previous_occurrence(&now, true).unwrap_or(DateTime::UNIX_EPOCH)
    }

    /// The next tick; none when there is none any more.
    fn next_tick(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.cron.find_next_occurrence(&now, false).ok()
    }
}

/// The key of the task of a tick: it says which one it is.
fn key_at(name: &str, tick: DateTime<Utc>) -> String {
    format!("{name}@{}", tick.format("%Y-%m-%dT%H:%M:%SZ"))
}

/// Starts to start tasks.
pub(crate) fn keep_schedules(app: Towpath, schedules: Vec<Schedule>, scan: Duration) -> Service {
    let schedules = Arc::new(schedules);
    Service::keep_running("schedules", move |stopping| {
        run(app.clone(), Arc::clone(&schedules), scan, stopping)
    })
}

async fn run(app: Towpath, schedules: Arc<Vec<Schedule>>, scan: Duration, mut stopping: Stopping) {
    // Up to where each has been looked after here; nothing as long as it was not.
    let mut done: Vec<Option<DateTime<Utc>>> = vec![None; schedules.len()];
    while !stopping.is_asked() {
        let now = app.bus.clock.now();
        let woken = Instant::now();
        let mut pause = scan;
        for (schedule, done) in schedules.iter().zip(&mut done) {
            let tick = schedule.last_tick(now);
            // One that was done and is not the last is of a time before the clock was set back.
            if *done != Some(tick) {
                match start(&app, schedule, tick).await {
                    Ok(()) => *done = Some(tick),
                    Err(error) => {
                        let (schedule, code) = (&schedule.name, error.code());
                        tracing::warn!(
                            schedule,
                            code,
                            cause = with_causes(&error),
                            "could not start a task at its time"
                        );
                    }
                }
            }
            pause = schedule.next_tick(now).map_or(pause, |next| pause.min(between(now, next)));
        }
        let pause = pause.saturating_sub(woken.elapsed()).max(SHORTEST_PAUSE);
        rest(&Wake::default(), pause, &mut stopping).await;
    }
}

/// Starts the task of a tick, if nobody has.
async fn start(app: &Towpath, schedule: &Schedule, tick: DateTime<Utc>) -> Result<(), StoreError> {
    let Schedule { name, of, payload, .. } = schedule;
    app.transact(async |mut tx| {
        if tx.take_tick(name, tick).await? {
            tx.start_task(of, payload).unique(key_at(name, tick)).await?;
        }
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(expression: &str) -> Result<Schedule, String> {
        Schedule::new("nightly", expression, TaskType::named("Cleaner.Clean"), &())
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn ticks_are_those_of_the_calendar() {
        let nightly = schedule("0 3 * * *").unwrap();
        let now = at("2024-02-29T03:00:00Z");
        assert_eq!(nightly.last_tick(now), now, "this very moment is one");
        assert_eq!(nightly.next_tick(now), Some(at("2024-03-01T03:00:00Z")));
        assert_eq!(nightly.last_tick(at("2024-02-29T02:59:59.999999Z")), at("2024-02-28T03:00:00Z"));
        assert_eq!(key_at("nightly", now), "nightly@2024-02-29T03:00:00Z");
        let every_second = schedule("* * * * * *").unwrap();
        assert_eq!(every_second.last_tick(at("2024-02-29T02:59:59.9Z")), at("2024-02-29T02:59:59Z"));
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for wrong in ["", "at three", "61 * * * *", "0 3 * *", "0 0 30 2 *"] {
            let why = schedule(wrong).err().unwrap_or_else(|| panic!("{wrong:?} is kept"));
            assert!(why.contains("nightly"), "{why}");
        }
        let long = "n".repeat(128);
        assert!(Schedule::new(&long, "0 3 * * *", TaskType::named("Cleaner.Clean"), &()).is_err());
    }
}

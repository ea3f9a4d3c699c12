//! The figures of requirement G10: how things stand, and how they went lately.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use towpath_core::ports::store::{Backlog, LOOKED_AT, Recent, StoreResult};
use towpath_core::time::earlier;

use super::figures::Figures;
use super::table;
use crate::towpath::Towpath;

/// Over how long commands and publishing are looked at.
const LATELY: Duration = Duration::from_secs(300);

/// Over how long events are looked at.
const HOUR: Duration = Duration::from_secs(3_600);

/// How things stand, and how they went lately. The names are those of requirement G10, and are the same in conditions of
/// alerts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Commands that nobody works on. Counted up to 100,000, as are all that wait or have failed.
    pub pending_commands: u64,
    /// Commands that a worker has.
    pub processing_commands: u64,
    /// Commands that have failed, whether they will be tried again or not.
    pub failed_commands: u64,
    /// How long the last attempt at a command took, in milliseconds, on average; nothing if none has ended lately.
    pub avg_processing_time: Option<f64>,
    /// The part of the commands that did not do at the first attempt; nothing if there were none lately.
    pub retry_rate: Option<f64>,
    /// How many commands of each type were received lately.
    pub commands_by_type: BTreeMap<String, u64>,
    /// How many events have happened within the last hour.
    pub events_per_hour: u64,
    /// Outbox rows that are to be published, those behind another one of their aggregate included.
    pub pending_outbox: u64,
    /// Outbox rows that were given up.
    pub failed_outbox: u64,
    /// From the moment at which an event happened to its publication, in milliseconds, on average; nothing if none was
    /// published lately.
    pub avg_publish_delay: Option<f64>,
    /// How many events of each type there are among the newest of the last hour.
    pub events_by_type: BTreeMap<String, u64>,
    /// How many gaps the last check has found in the versions of aggregates; nothing if there was no check.
    pub aggregate_version_gaps: Option<u64>,
    /// Over which time each of them is.
    pub windows: Windows,
}

/// Over which time the figures of a summary are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Windows {
    /// `avg_processing_time`, `retry_rate` and `commands_by_type`: commands that were received within so many seconds.
    pub commands_seconds: u64,
    /// `avg_publish_delay`: rows that were sent within so many seconds.
    pub publishing_seconds: u64,
    /// `events_per_hour` and `events_by_type`: events that happened within so many seconds.
    pub events_seconds: u64,
    /// Of commands, sent rows of a channel and events by type, at most so many are looked at, the newest first.
    pub looked_at: u32,
}

impl Towpath {
    /// How things stand, and how they went lately.
    ///
    /// # Guarantees
    /// Eight statements at most, each bounded by an index: their cost does not grow with what is over.
    pub async fn summary(&self) -> StoreResult<Summary> {
        let backlog = self.store.backlog(self.gauges.channels(), self.now()).await?;
        Ok(Summary::of(&backlog, &self.recently().await?, version_gaps(self).await?))
    }

    async fn recently(&self) -> StoreResult<Recent> {
        let now = self.now();
        let since = |window| earlier(now, window).unwrap_or(now);
        self.store.recent(self.gauges.channels(), since(LATELY), since(HOUR)).await
    }

    /// All that conditions of alerts can be about: the gauges, and the figures of a [`Summary`]. What could not be asked for
    /// is not in it.
    pub async fn figures(&self) -> Figures {
        let (mut figures, backlog) = self.gauges.measure_anew().await;
        if let Some(backlog) = backlog {
            match (self.recently().await, version_gaps(self).await) {
                (Ok(recent), Ok(gaps)) => figures.extend(Summary::of(&backlog, &recent, gaps).figures()),
                (Err(error), _) | (_, Err(error)) => self.gauges.store_failed(&error),
            }
        }
        figures
    }
}

/// What the last check of consistency has found; nothing before there was one.
async fn version_gaps(app: &Towpath) -> StoreResult<Option<u64>> {
    app.store().last_version_gaps().await
}

impl Summary {
    fn of(backlog: &Backlog, recent: &Recent, aggregate_version_gaps: Option<u64>) -> Self {
        let commands = backlog.commands;
        let (mut received, mut retried, mut ended, mut took) = (0, 0, 0, Duration::ZERO);
        for of_type in recent.commands.values() {
            received += of_type.received;
            retried += of_type.retried;
            ended += of_type.ended;
            took += of_type.processing_time;
        }
        Self {
            pending_commands: commands.pending,
            processing_commands: commands.processing,
            failed_commands: commands.retrying + commands.failed,
            avg_processing_time: part(took.as_secs_f64() * 1000.0, ended),
            retry_rate: part(retried as f64, received),
            commands_by_type: recent.commands.iter().map(|(name, of)| (name.clone(), of.received)).collect(),
            events_per_hour: recent.events,
            pending_outbox: backlog.outbox.iter().map(|rows| rows.pending + rows.parked).sum(),
            failed_outbox: backlog.outbox.iter().map(|rows| rows.failed).sum(),
            avg_publish_delay: part(recent.publish_delay.as_secs_f64() * 1000.0, recent.sent),
            events_by_type: recent.events_by_type.clone(),
            aggregate_version_gaps,
            windows: Windows {
                commands_seconds: LATELY.as_secs(),
                publishing_seconds: LATELY.as_secs(),
                events_seconds: HOUR.as_secs(),
                looked_at: LOOKED_AT,
            },
        }
    }

    /// The same, as conditions see it.
    pub(crate) fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for (name, count) in [
            ("pending_commands", self.pending_commands),
            ("processing_commands", self.processing_commands),
            ("failed_commands", self.failed_commands),
            ("events_per_hour", self.events_per_hour),
            ("pending_outbox", self.pending_outbox),
            ("failed_outbox", self.failed_outbox),
        ] {
            figures.add(name, &[], count as f64);
        }
        // That nothing has happened is known, and is no value.
        for (name, value) in [
            ("avg_processing_time", self.avg_processing_time),
            ("retry_rate", self.retry_rate),
            ("avg_publish_delay", self.avg_publish_delay),
        ] {
            figures.know(name);
            if let Some(value) = value {
                figures.add(name, &[], value);
            }
        }
        for (name, by_type) in
            [("commands_by_type", &self.commands_by_type), ("events_by_type", &self.events_by_type)]
        {
            figures.know(name);
            for (type_name, count) in by_type {
                figures.add(name, &[("type", type_name)], *count as f64);
            }
        }
        // That nobody has checked is not known to be well.
        if let Some(gaps) = self.aggregate_version_gaps {
            figures.add("aggregate_version_gaps", &[], gaps as f64);
            figures.set(&table::VERSION_GAPS, &[], gaps as f64);
        }
        figures
    }
}

/// The names of a [`Summary`] that conditions can be about, and how Prometheus says the same with our metrics.
#[cfg(any(feature = "alerts", test))]
pub(crate) const SUMMARY_NAMES: &[(&str, &str)] = &[
    ("pending_commands", "max(towpath_command_box{status=\"pending\"})"),
    ("processing_commands", "max(towpath_command_box{status=\"processing\"})"),
    ("failed_commands", "sum(max by (status) (towpath_command_box{status=~\"retrying|failed\"}))"),
    (
        "avg_processing_time",
        "1000 * sum(rate(towpath_command_duration_seconds_sum[5m])) \
         / sum(rate(towpath_command_duration_seconds_count[5m]))",
    ),
    ("retry_rate", "sum(rate(towpath_command_retries_total[5m])) / sum(rate(towpath_commands_total[5m]))"),
    ("commands_by_type", "sum by (type) (increase(towpath_commands_total[5m]))"),
    ("events_per_hour", "max(delta(towpath_log_head_position[1h]))"),
    ("pending_outbox", "sum(max by (channel, status) (towpath_outbox_rows{status=~\"pending|parked\"}))"),
    ("failed_outbox", "sum(max by (channel) (towpath_outbox_rows{status=\"failed\"}))"),
    (
        "avg_publish_delay",
        "1000 * sum(rate(towpath_publish_delay_seconds_sum[5m])) / sum(rate(towpath_publish_delay_seconds_count[5m]))",
    ),
    ("events_by_type", "sum by (type) (increase(towpath_events_total[1h]))"),
    ("aggregate_version_gaps", "max(towpath_aggregate_version_gaps)"),
];

/// A mean, or a part of something; nothing of nothing.
fn part(of: f64, all: u64) -> Option<f64> {
    (all > 0).then(|| of / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_summary_is_a_figure_or_is_not_known() {
        let backlog = Backlog {
            commands: Default::default(),
            log: Default::default(),
            timers: Default::default(),
            outbox: Vec::new(),
            letters: Vec::new(),
        };
        let known = |gaps| Summary::of(&backlog, &Recent::default(), gaps);
        let written = serde_json::to_value(known(Some(2))).unwrap();
        for (name, _) in SUMMARY_NAMES {
            assert!(written.get(name).is_some(), "{name}");
            assert!(known(Some(2)).figures().of(name).is_some(), "{name}");
        }
        assert_eq!(written.as_object().unwrap().len(), SUMMARY_NAMES.len() + 1, "and the windows");
        assert_eq!(known(None).figures().of("aggregate_version_gaps"), None, "nobody has checked");
        assert_eq!(known(None).figures().of("retry_rate"), Some(&[][..]), "nothing has happened");
    }
}

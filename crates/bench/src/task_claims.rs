//! What a claim costs: on an empty table, and with many waiting and many finished tasks behind it.
//!
//! Each table is in a scratch database of its own, and they take turns, a claim each: whatever else the machine does meets both.

use std::time::Instant;

use clap::Args;
use serde::Serialize;
use towpath::ports::store::{TaskEnd, TaskEnding, WantedTasks};
use towpath::{Payload, Scratch, SqlStore, Task};

use crate::backlog::settle;
use crate::{Failure, answer, bare, median};

/// How many tasks a claim takes.
const TAKEN: u32 = 8;

/// So many claims are measured on each table, in so many rounds. Before each round the tables are cleaned up.
const ROUNDS: usize = 10;
const CLAIMS: usize = 40;

/// The first claims of a round do not count: after the cleaning, plans are made again.
const WARM_UP: usize = 5;

/// So many tasks are written by a statement.
const TOGETHER: u64 = 10_000;

const TYPE: &str = "Bench.Claimed";

/// What is behind.
#[derive(Args, Clone, Copy, Serialize)]
pub(crate) struct Behind {
    /// Measure a claim and nothing else, on an empty table and with so many tasks waiting
    #[arg(long, default_value_t = 0)]
    waiting: u64,

    /// The same with so many tasks that were finished before
    #[arg(long, default_value_t = 0)]
    finished: u64,
}

impl Behind {
    /// Whether this is to be measured.
    pub(crate) fn is_any(self) -> bool {
        self.waiting > 0 || self.finished > 0
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    database: &'static str,
    #[serde(flatten)]
    behind: Behind,
    taken_per_claim: u32,
    claims: usize,
    empty_micros: f64,
    behind_micros: f64,
    ratio: f64,
}

/// Measures and prints what came out.
pub(crate) async fn run(url: &str, behind: Behind, json: bool) -> Result<String, Failure> {
    let empty = Scratch::make(url).await?;
    let report = with_another(&empty, url, behind).await;
    empty.remove().await?;
    answer(json, &report?, text)
}

async fn with_another(empty: &Scratch, url: &str, behind: Behind) -> Result<Report, Failure> {
    let filled = Scratch::make(url).await?;
    let report = measure(empty, &filled, behind).await;
    filled.remove().await?;
    report
}

async fn measure(empty: &Scratch, filled: &Scratch, behind: Behind) -> Result<Report, Failure> {
    // The ids of what is behind are of the moments before.
    let now = u64::try_from(chrono::Utc::now().timestamp_millis()).unwrap_or_default();
    let mut empty = Table::open(empty, now).await?;
    let mut filled = Table::open(filled, now.saturating_sub(behind.finished + behind.waiting)).await?;
    filled.fill(behind).await?;
    for _ in 0..ROUNDS {
        // What this measurement has finished there itself.
        empty.execute("DELETE FROM task_box".to_owned()).await?;
        for table in [&empty, &filled] {
            settle(&table.store, "task_box").await?;
        }
        for claim in 0..WARM_UP + CLAIMS {
            for table in [&mut empty, &mut filled] {
                let micros = table.claim().await?;
                if claim >= WARM_UP {
                    table.micros.push(micros);
                }
            }
        }
    }
    let database = empty.store.promises().database;
    let (empty, filled) = (empty.close().await, filled.close().await);
    Ok(Report {
        database,
        behind,
        taken_per_claim: TAKEN,
        claims: ROUNDS * CLAIMS,
        empty_micros: empty,
        behind_micros: filled,
        ratio: filled / empty,
    })
}

/// The table of tasks of a scratch database.
struct Table {
    store: SqlStore,
    /// The milliseconds in the id of the next task.
    next: u64,
    /// How long each claim took.
    micros: Vec<f64>,
}

impl Table {
    async fn open(scratch: &Scratch, next: u64) -> Result<Self, Failure> {
        let store = SqlStore::connect(scratch.url()).await?;
        store.migrate().await?;
        Ok(Self { store, next, micros: Vec::new() })
    }

    /// Closes it, and answers the median.
    async fn close(self) -> f64 {
        self.store.close().await;
        median(self.micros)
    }

    /// Writes what is behind: each was queued, and those that are finished were taken and finished after that. What their way leaves in
    /// the table and its indexes is there, until it is cleaned up.
    async fn fill(&mut self, behind: Behind) -> Result<(), Failure> {
        for (mut left, is_finished) in [(behind.finished, true), (behind.waiting, false)] {
            while left > 0 {
                let (first, count) = (self.next, left.min(TOGETHER));
                self.add(count).await?;
                if is_finished {
                    self.execute(self.take_from(first)).await?;
                    self.execute(self.finish_from(first)).await?;
                }
                left -= count;
            }
        }
        Ok(())
    }

    /// Adds so many that wait, behind all others.
    async fn add(&mut self, count: u64) -> Result<(), Failure> {
        self.execute(self.insert(count)).await?;
        self.next += count;
        Ok(())
    }

    /// Takes some tasks; answers how long that took, in microseconds. As many were started before, and what was taken is finished.
    async fn claim(&mut self) -> Result<f64, Failure> {
        self.add(TAKEN.into()).await?;
        let wanted = [WantedTasks { task_type: TYPE, limit: TAKEN }];
        let began = Instant::now();
        let tasks = self.store.claim_tasks(&wanted, "bench").await?;
        let took = began.elapsed();
        let result = Payload::from_text(r#"{"drawn":"duck"}"#);
        let result = result.map_err(|error| Failure::usage(error.to_string()))?;
        let end = |task: &Task| {
            let result = Some(result.clone());
            TaskEnding { claim: task.claim(), end: TaskEnd::Succeeded { result } }
        };
        let lost = self.store.end_tasks(&tasks.iter().map(end).collect::<Vec<_>>()).await?;
        if tasks.len() != TAKEN as usize || !lost.is_empty() {
            return Err(Failure::unreachable(format!(
                "{} tasks were taken and {} of them lost, of {TAKEN}",
                tasks.len(),
                lost.len()
            )));
        }
        Ok(took.as_secs_f64() * 1e6)
    }

    async fn execute(&self, sql: String) -> Result<(), Failure> {
        bare::execute(&self.store, sql).await.map_err(|error| Failure::unreachable(error.to_string()))
    }

    /// What the databases say differently: an id of hexadecimal digits, the digits of a number, and the time.
    fn words(&self) -> Words {
        if self.store.postgres_pool().is_some() {
            Words {
                id: |digits| format!("CAST({digits} AS uuid)"),
                digits: |number| format!("LPAD(TO_HEX({number}), 12, '0') || '{ID_TAIL}'"),
                now: "clock_timestamp()",
            }
        } else if self.store.mysql_pool().is_some() {
            Words {
                id: |digits| format!("UNHEX({digits})"),
                digits: |number| format!("CONCAT(LPAD(HEX({number}), 12, '0'), '{ID_TAIL}')"),
                now: "UTC_TIMESTAMP(6)",
            }
        } else {
            Words {
                id: |digits| format!("UNHEX({digits})"),
                digits: |number| format!("PRINTF('%012x', {number}) || '{ID_TAIL}'"),
                now: "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
            }
        }
    }

    /// Writes so many tasks that wait, with ids in the order in which they come, as those of UUIDv7 are.
    fn insert(&self, count: u64) -> String {
        let Words { id, digits, now } = self.words();
        let id = id(&digits(&format!("{} + n", self.next)));
        // Not every database makes a row of numbers by itself.
        let digit = (0..10).map(|digit| format!("SELECT {digit} AS digit")).collect::<Vec<_>>();
        let digit = digit.join(" UNION ALL ");
        let numbers = format!(
            "SELECT ones.digit + 10 * tens.digit + 100 * hundreds.digit + 1000 * thousands.digit AS n \
             FROM ({digit}) AS ones CROSS JOIN ({digit}) AS tens CROSS JOIN ({digit}) AS hundreds \
             CROSS JOIN ({digit}) AS thousands"
        );
        format!(
            "INSERT INTO task_box (task_id, task_type, priority, payload, heartbeat_micros, correlation_id, created_at, status, \
             status_changed_at, retry_count, epoch) \
             SELECT {id}, '{TYPE}', 0, '{{\"what\":\"duck\"}}', 30000000, 'flow-1', {now}, 'queued', {now}, 0, 0 \
             FROM ({numbers}) AS numbers WHERE n < {count} ORDER BY n"
        )
    }

    /// Takes what waits, from the task on that has this in its id.
    fn take_from(&self, first: u64) -> String {
        let Words { id, digits, now } = self.words();
        format!(
            "UPDATE task_box SET status = 'running', worker = 'bench', epoch = 1, status_changed_at = {now}, started_at = {now} \
             WHERE task_id >= {} AND status = 'queued'",
            id(&digits(&first.to_string()))
        )
    }

    /// Finishes what runs, in the same way.
    fn finish_from(&self, first: u64) -> String {
        let Words { id, digits, now } = self.words();
        format!(
            "UPDATE task_box SET status = 'succeeded', worker = NULL, result = '{{\"drawn\":\"duck\"}}', \
             status_changed_at = {now}, finished_at = {now} WHERE task_id >= {} AND status = 'running'",
            id(&digits(&first.to_string()))
        )
    }
}

/// What stands in an id behind its milliseconds: version 7, and nothing random.
const ID_TAIL: &str = "70008000000000000000";

struct Words {
    id: fn(&str) -> String,
    digits: fn(&str) -> String,
    now: &'static str,
}

fn text(report: &Report) -> String {
    let Report { database, behind, taken_per_claim, claims, empty_micros, behind_micros, ratio } = report;
    let filled = format!("{} waiting, {} finished", behind.waiting, behind.finished);
    [
        format!("a claim of {taken_per_claim} tasks, {database}, median of {claims} on each table"),
        format!("  {:<36} {empty_micros:>8.0} us", "an empty table"),
        format!("  {filled:<36} {behind_micros:>8.0} us   {ratio:.2} of the empty table"),
    ]
    .join("\n")
}

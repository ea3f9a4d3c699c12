//! Alerts that are open, what became of each, and silences.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_core::ports::store::{
    Alert, AlertCursor, AlertNote, AlertRun, Alerts, NewSilence, NotedChange, Silence, StoreError,
    StoreResult,
};
use uuid::Uuid;

use crate::own_tables::{OwnTables, pages};
use crate::rows::stored;
use crate::sql::{Row, Session, Value, code, readable, unreadable, values};
use crate::store::{SqlStore, listing, reading, writing_once};

/// How many alerts a statement names.
const TOGETHER: usize = 100;

#[async_trait]
impl Alerts for SqlStore {
    async fn open_alerts(&self, limit: u32) -> StoreResult<Vec<Alert>> {
        reading!(self, open, limit)
    }

    async fn alert_run(&self) -> StoreResult<Option<AlertRun>> {
        reading!(self, last_run)
    }

    async fn alert_history(
        &self,
        rule: Option<&str>,
        before: AlertCursor,
        limit: u32,
    ) -> StoreResult<Vec<NotedChange>> {
        listing!(self, history, rule, before, limit)
    }

    async fn add_silence(&self, silence: &NewSilence) -> StoreResult<()> {
        writing_once!(self, add_silence, silence)
    }

    async fn silences(&self, ending_after: DateTime<Utc>, limit: u32) -> StoreResult<Vec<Silence>> {
        reading!(self, silences, ending_after, limit)
    }

    async fn silence(&self, silence_id: Uuid) -> StoreResult<Option<Silence>> {
        reading!(self, silence, silence_id)
    }

    async fn end_silence(&self, silence_id: Uuid, by: &str, now: DateTime<Utc>) -> StoreResult<bool> {
        writing_once!(self, end_silence, silence_id, by, now)
    }
}

/// The columns of an alert in the order of a row's values, the same in both tables.
const COLUMNS: [&str; 15] = [
    "alert_id",
    "rule",
    "severity",
    "labels",
    "annotations",
    "message",
    "value",
    "status",
    "status_changed_at",
    "status_reason",
    "status_message",
    "started_at",
    "fired_at",
    "held_at",
    "silence_id",
];

fn row(alert: &Alert) -> StoreResult<Vec<Value<'_>>> {
    Ok(values![
        alert.alert_id.as_str(),
        alert.rule.as_str(),
        alert.severity.as_str(),
        json(&alert.labels)?,
        json(&alert.annotations)?,
        readable(&alert.message),
        // Short, and read back as exactly the same number.
        format!("{:e}", alert.value),
        alert.status.as_str(),
        alert.status_changed_at,
        alert.status_reason.as_deref().map(code),
        alert.status_message.as_deref().map(readable),
        alert.started_at,
        alert.fired_at,
        alert.held_at,
        alert.silence_id,
    ])
}

fn read(row: &Row) -> StoreResult<Alert> {
    let value = row.text("value")?;
    Ok(Alert {
        alert_id: row.text("alert_id")?,
        rule: row.text("rule")?,
        severity: row.text("severity")?,
        labels: read_json("labels", &row.text("labels")?)?,
        annotations: read_json("annotations", &row.text("annotations")?)?,
        message: row.text("message")?,
        value: value.parse().map_err(|error: std::num::ParseFloatError| unreadable("value", error))?,
        status: stored(row, "status")?,
        status_changed_at: row.time("status_changed_at")?,
        status_reason: row.text_or_null("status_reason")?,
        status_message: row.text_or_null("status_message")?,
        started_at: row.time("started_at")?,
        fired_at: row.time_or_null("fired_at")?,
        held_at: row.time("held_at")?,
        silence_id: row.uuid_or_null("silence_id")?,
    })
}

async fn open(session: &mut Session<'_>, limit: u32) -> StoreResult<Vec<Alert>> {
    let sql = format!("SELECT {} FROM open_alerts ORDER BY rule, alert_id LIMIT {limit}", COLUMNS.join(", "));
    session.rows("alerts.open", &sql, values![]).await?.iter().map(read).collect()
}

/// Writes alerts as they are now. Runs in a transaction.
pub(crate) async fn note(session: &mut Session<'_>, notes: &[AlertNote]) -> StoreResult<()> {
    let dialect = session.dialect();
    let (over, open): (Vec<_>, Vec<_>) = notes.iter().partition(|note| note.alert.status.is_terminal());
    let rows = open.iter().map(|note| row(&note.alert)).collect::<StoreResult<Vec<_>>>()?;
    let replaced: Vec<String> =
        COLUMNS.iter().skip(1).map(|column| format!("{column} = {}", dialect.inserted(column))).collect();
    for page in pages(rows, COLUMNS.len()) {
        let sql = format!(
            "INSERT INTO open_alerts ({}) VALUES {} {} {}",
            COLUMNS.join(", "),
            marks(page.len(), COLUMNS.len()),
            dialect.on_conflict("alert_id"),
            replaced.join(", ")
        );
        session.execute("alerts.note", &sql, page.into_iter().flatten().collect()).await?;
    }
    let over: Vec<String> = over.iter().map(|note| note.alert.alert_id.clone()).collect();
    for ids in over.chunks(TOGETHER) {
        let mut values = values![];
        let chosen = OwnTables::one_of("alert_id", ids, &mut values);
        session.execute("alerts.over", &format!("DELETE FROM open_alerts WHERE {chosen}"), values).await?;
    }
    let mut changes = Vec::new();
    for note in notes {
        let Some(from) = note.changed_from else { continue };
        let mut change = row(&note.alert)?;
        change.push(from.map(|status| status.as_str()).into());
        changes.push(change);
    }
    for page in pages(changes, COLUMNS.len() + 1) {
        let sql = format!(
            "INSERT INTO alert_changes ({}, from_status) VALUES {}",
            COLUMNS.join(", "),
            marks(page.len(), COLUMNS.len() + 1)
        );
        session.execute("alerts.changed", &sql, page.into_iter().flatten().collect()).await?;
    }
    Ok(())
}

fn marks(rows: usize, columns: usize) -> String {
    vec![format!("({})", vec!["?"; columns].join(", ")); rows].join(", ")
}

/// Runs in a transaction.
pub(crate) async fn note_run(session: &mut Session<'_>, run: &AlertRun) -> StoreResult<()> {
    let dialect = session.dialect();
    let columns = ["evaluated_at", "evaluated_by_id", "left_out", "failures"];
    let replaced = columns.map(|column| format!("{column} = {}", dialect.inserted(column)));
    let sql = format!(
        "INSERT INTO alert_runs (run_id, {}) VALUES (1, ?, ?, ?, ?) {} {}",
        columns.join(", "),
        dialect.on_conflict("run_id"),
        replaced.join(", ")
    );
    let values = values![run.evaluated_at, run.evaluated_by_id.as_str(), run.left_out, json(&run.failures)?];
    session.execute("alerts.run", &sql, values).await?;
    Ok(())
}

async fn last_run(session: &mut Session<'_>) -> StoreResult<Option<AlertRun>> {
    let sql = "SELECT evaluated_at, evaluated_by_id, left_out, failures FROM alert_runs WHERE run_id = 1";
    let row = session.row("alerts.last_run", sql, values![]).await?;
    let run = |row: Row| {
        Ok(AlertRun {
            evaluated_at: row.time("evaluated_at")?,
            evaluated_by_id: row.text("evaluated_by_id")?,
            left_out: row.count("left_out")?,
            failures: read_json("failures", &row.text("failures")?)?,
        })
    };
    row.map(run).transpose()
}

async fn history(
    session: &mut Session<'_>,
    rule: Option<&str>,
    before: AlertCursor,
    limit: u32,
) -> StoreResult<Vec<NotedChange>> {
    let mut keys = values![];
    let mut conditions = Vec::new();
    let mut order = String::new();
    if let Some(rule) = rule {
        let (pinned, first) = session.dialect().pinned("rule");
        keys.extend(pinned.matches('?').map(|_| Value::from(rule)));
        conditions.push(pinned);
        order = first.replace(", ", " DESC, ");
    }
    if let Some(before) = before {
        conditions.push("change_id < ?".to_owned());
        keys.push(before.into());
    }
    let chosen = match conditions.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", conditions.join(" AND ")),
    };
    let sql = format!(
        "SELECT change_id, from_status, {} FROM alert_changes{chosen} ORDER BY {order}change_id DESC LIMIT {limit}",
        COLUMNS.join(", ")
    );
    let change = |row: &Row| {
        let from_status = row.text_or_null("from_status")?;
        let from_status = from_status.map(|_| stored(row, "from_status")).transpose()?;
        Ok(NotedChange { change_id: row.count("change_id")?, alert: read(row)?, from_status })
    };
    session.rows("alerts.history", &sql, keys).await?.iter().map(change).collect()
}

const SILENCE: &str =
    "silence_id, matchers, author_id, reason, starts_at, ends_at, created_at, ended_at, ended_by_id";

async fn add_silence(session: &mut Session<'_>, silence: &NewSilence) -> StoreResult<()> {
    let sql = format!("INSERT INTO alert_silences ({SILENCE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    let values = values![
        silence.silence_id,
        json(&silence.matchers)?,
        silence.author_id.as_str(),
        readable(&silence.reason),
        silence.starts_at,
        silence.ends_at,
        silence.created_at,
        None::<DateTime<Utc>>,
        None::<&str>,
    ];
    session.execute("alerts.add_silence", &sql, values).await?;
    Ok(())
}

fn read_silence(row: &Row) -> StoreResult<Silence> {
    Ok(Silence {
        silence: NewSilence {
            silence_id: row.uuid("silence_id")?,
            matchers: read_json("matchers", &row.text("matchers")?)?,
            author_id: row.text("author_id")?,
            reason: row.text("reason")?,
            starts_at: row.time("starts_at")?,
            ends_at: row.time("ends_at")?,
            created_at: row.time("created_at")?,
        },
        ended_at: row.time_or_null("ended_at")?,
        ended_by_id: row.text_or_null("ended_by_id")?,
    })
}

async fn silences(session: &mut Session<'_>, after: DateTime<Utc>, limit: u32) -> StoreResult<Vec<Silence>> {
    let sql =
        format!("SELECT {SILENCE} FROM alert_silences WHERE ends_at > ? ORDER BY ends_at DESC LIMIT {limit}");
    session.rows("alerts.silences", &sql, values![after]).await?.iter().map(read_silence).collect()
}

async fn silence(session: &mut Session<'_>, silence_id: Uuid) -> StoreResult<Option<Silence>> {
    let sql = format!("SELECT {SILENCE} FROM alert_silences WHERE silence_id = ?");
    session.row("alerts.silence", &sql, values![silence_id]).await?.as_ref().map(read_silence).transpose()
}

async fn end_silence(
    session: &mut Session<'_>,
    silence_id: Uuid,
    by: &str,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let sql = "UPDATE alert_silences SET ended_at = ?, ended_by_id = ? \
               WHERE silence_id = ? AND ended_at IS NULL AND ends_at > ?";
    Ok(session.execute("alerts.end_silence", sql, values![now, by, silence_id, now]).await? == 1)
}

fn json<T: Serialize>(value: &T) -> StoreResult<String> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::InvalidChange { code: "invalid-payload", source: error.into() })
}

fn read_json<T: DeserializeOwned>(what: &str, text: &str) -> StoreResult<T> {
    serde_json::from_str(text).map_err(|error| unreadable(what, error))
}

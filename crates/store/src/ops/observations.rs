//! What observers look at, by the database's own clock.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use towpath_core::ports::store::{
    Adopted, DuePage, LeaseGrant, Listed, Look, LookFailure, Looks, NotedLook, Observations, ScanPlace,
    StoreResult, Watch, Watched,
};

use crate::dialect::Dialect;
use crate::ops::leases::{HELD, held_by, micros};
use crate::own_tables::{OwnTables, pages};
use crate::sql::{Row, Session, Value, code, readable, values};
use crate::store::{SqlStore, reading, transacting, writing_once};

/// When something is due that is to be looked at now. Not a moment of any clock: nobody has to wait for it.
const AT_ONCE: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// The longest that a look is put off: nobody means longer, and not every database can write a far moment down.
const LONGEST: Duration = Duration::from_secs(3600 * 24 * 365);

/// How many subjects a statement names.
const TOGETHER: usize = 64;

const LISTED: &str = "subject_id, hint, version, due_at, held";

#[async_trait]
impl Observations for SqlStore {
    async fn due_subjects(
        &self,
        observer: &str,
        place: Option<&ScanPlace>,
        limit: u32,
    ) -> StoreResult<DuePage> {
        reading!(self, due, observer, place, limit)
    }

    async fn hinted_subjects(&self, observer: &str, hints: &[String]) -> StoreResult<Vec<Listed>> {
        reading!(self, hinted, observer, hints)
    }

    async fn begin_look(&self, observer: &str, subject_id: &str) -> StoreResult<Option<Watched>> {
        let found = reading!(self, find, observer, subject_id)?;
        let Some(mut watched) = found else { return Ok(None) };
        if !watched.goal.is_empty() && watched.goal_begun_at.is_none() {
            writing_once!(self, begin_wait, observer, &watched)?;
            watched.goal_begun_at = Some(watched.now);
        }
        Ok(Some(watched))
    }

    async fn note_looks(&self, lease: &LeaseGrant, observer: &str, looks: &[NotedLook]) -> StoreResult<()> {
        transacting!(self, note, lease, observer, looks)
    }

    async fn looks_at(&self, observer: &str, subject_id: &str) -> StoreResult<Option<Looks>> {
        reading!(self, looks_at, observer, subject_id)
    }
}

/// Watches subjects, unless something newer is wanted of them. Runs in a transaction.
pub(crate) async fn watch(session: &mut Session<'_>, observer: &str, watches: &[Watch]) -> StoreResult<()> {
    let nothing = Looks::default();
    let rows = watches.iter().map(|watch| row(observer, watch, None, &nothing)).collect();
    put(session, rows).await
}

/// The same, with what is known of them. Runs in a transaction.
pub(crate) async fn adopt(session: &mut Session<'_>, observer: &str, adopted: &[Adopted]) -> StoreResult<()> {
    let rows = adopted.iter().map(|one| row(observer, &one.watch, one.goal_begun_at, &one.looks)).collect();
    put(session, rows).await
}

fn row<'v>(
    observer: &'v str,
    watch: &'v Watch,
    goal_begun_at: Option<DateTime<Utc>>,
    looks: &'v Looks,
) -> Vec<Value<'v>> {
    let due: Value<'_> = match watch.look {
        Look::AtOnce | Look::UntilSeen | Look::AtNextScan => AT_ONCE.into(),
        Look::At(moment) => moment.into(),
        Look::Held(pause) => micros(pause.min(LONGEST)).into(),
    };
    let failure = looks.failure.as_ref();
    values![
        due,
        observer,
        watch.subject_id.as_str(),
        watch.hint.as_str(),
        watch.version,
        watch.wanted.as_str(),
        watch.goal.as_str(),
        u32::from(matches!(watch.look, Look::Held(_))),
        u32::from(watch.look == Look::UntilSeen),
        goal_begun_at,
        looks.looked_at,
        failure.map(|failure| failure.since),
        failure.map(|failure| failure.failed_at),
        failure.map(|failure| code(&failure.code)),
        failure.map(|failure| readable(&failure.message)),
        failure.map_or(0, |failure| failure.times),
    ]
}

/// The columns in the order of a row's values.
const COLUMNS: [&str; 16] = [
    "due_at",
    "observer",
    "subject_id",
    "hint",
    "version",
    "wanted",
    "goal",
    "held",
    "asked",
    "goal_begun_at",
    "looked_at",
    "failing_since_at",
    "failed_at",
    "failure_code",
    "failure_message",
    "failure_count",
];

async fn put(session: &mut Session<'_>, rows: Vec<Vec<Value<'_>>>) -> StoreResult<()> {
    let dialect = session.dialect();
    let others = ", ?".repeat(COLUMNS.len() - 1);
    for page in pages(rows, COLUMNS.len()) {
        // A pause is counted from the database's time; a moment is one.
        let due = |row: &Vec<Value<'_>>| match row.first() {
            Some(Value::Long(_)) => dialect.now_plus_parameter(),
            _ => "?",
        };
        let marks: Vec<String> = page.iter().map(|row| format!("({}{others})", due(row))).collect();
        let mut values: Vec<Value<'_>> = page.into_iter().flatten().collect();
        values.push(AT_ONCE.into());
        let sql = put_sql(dialect, &marks.join(", "));
        session.execute("observations.watch", &sql, values).await?;
    }
    Ok(())
}

/// Where a value that was just set is seen by the next assignment, what others depend on comes later, and the version last.
fn put_sql(dialect: Dialect, rows: &str) -> String {
    let new = |column: &str| dialect.inserted(column);
    let newer = format!("{} >= observations.version", new("version"));
    let replaced = |column: &str| {
        let inserted = dialect.inserted_if_newer("observations", column, Some("version"));
        format!("{column} = {inserted}")
    };
    let assignments = [
        format!(
            "due_at = CASE WHEN NOT ({newer}) THEN observations.due_at \
             WHEN observations.asked = 1 AND {} = 0 THEN ? ELSE {} END",
            new("held"),
            new("due_at")
        ),
        format!(
            "goal_begun_at = CASE WHEN {newer} AND {} <> observations.goal THEN NULL \
             ELSE observations.goal_begun_at END",
            new("goal")
        ),
        format!("asked = CASE WHEN {newer} AND {} = 1 THEN 1 ELSE observations.asked END", new("asked")),
        replaced("hint"),
        replaced("wanted"),
        replaced("goal"),
        replaced("held"),
        replaced("version"),
    ];
    format!(
        "INSERT INTO observations ({}) VALUES {rows} {} {}",
        COLUMNS.join(", "),
        dialect.on_conflict("observer, subject_id"),
        assignments.join(", ")
    )
}

/// Runs in a transaction.
pub(crate) async fn unwatch(
    session: &mut Session<'_>,
    observer: &str,
    subjects: &[String],
) -> StoreResult<()> {
    for subjects in subjects.chunks(TOGETHER) {
        let mut values = values![observer];
        let chosen = OwnTables::one_of("subject_id", subjects, &mut values);
        let sql = format!("DELETE FROM observations WHERE observer = ? AND {chosen}");
        session.execute("observations.unwatch", &sql, values).await?;
    }
    Ok(())
}

/// Runs in a transaction, and locks what it answers until that ends.
pub(crate) async fn watched(
    session: &mut Session<'_>,
    observer: &str,
    subjects: &[String],
) -> StoreResult<Vec<Watched>> {
    let mut watched = Vec::with_capacity(subjects.len());
    for subjects in subjects.chunks(TOGETHER) {
        let mut values = values![observer];
        let chosen = OwnTables::one_of("subject_id", subjects, &mut values);
        let dialect = session.dialect();
        let sql = format!("{} AND {chosen} {}", watched_sql(dialect), dialect.for_update());
        for row in session.rows("observations.watched", &sql, values).await? {
            watched.push(read_watched(&row)?);
        }
    }
    Ok(watched)
}

async fn due(
    session: &mut Session<'_>,
    observer: &str,
    place: Option<&ScanPlace>,
    limit: u32,
) -> StoreResult<DuePage> {
    let dialect = session.dialect();
    let (pinned, first) = dialect.pinned("observer");
    let mut values: Vec<Value<'_>> = pinned.matches('?').map(|_| Value::from(observer)).collect();
    let due = match place {
        None => format!("due_at <= {}", dialect.now_of_statement()),
        Some(ScanPlace { began_at, after }) => {
            values.extend(values![*began_at, after.due_at, after.due_at, after.subject_id.as_str()]);
            "due_at <= ? AND due_at >= ? AND (due_at > ? OR subject_id > ?)".to_owned()
        }
    };
    let sql = format!(
        "SELECT {LISTED}, {} AS time_now FROM observations WHERE {pinned} AND {due} \
         ORDER BY {first}due_at, subject_id LIMIT {limit}",
        dialect.now_of_statement()
    );
    let rows = session.rows("observations.due", &sql, values).await?;
    let listed = rows.iter().map(read_listed).collect::<StoreResult<Vec<_>>>()?;
    let is_full = u32::try_from(listed.len()).is_ok_and(|count| count >= limit);
    let next = match (rows.last(), listed.last()) {
        (Some(row), Some(after)) if is_full => {
            let began_at = match place {
                Some(place) => place.began_at,
                None => row.time("time_now")?,
            };
            Some(ScanPlace { began_at, after: after.clone() })
        }
        _ => None,
    };
    Ok(DuePage { listed, next })
}

async fn hinted(session: &mut Session<'_>, observer: &str, hints: &[String]) -> StoreResult<Vec<Listed>> {
    let mut values = values![observer];
    let chosen = OwnTables::one_of("hint", hints, &mut values);
    let sql = format!("SELECT {LISTED} FROM observations WHERE observer = ? AND {chosen} AND held = 0");
    session.rows("observations.hinted", &sql, values).await?.iter().map(read_listed).collect()
}

async fn find(session: &mut Session<'_>, observer: &str, subject_id: &str) -> StoreResult<Option<Watched>> {
    let sql = format!("{} AND subject_id = ?", watched_sql(session.dialect()));
    let row = session.row("observations.begin", &sql, values![observer, subject_id]).await?;
    row.as_ref().map(read_watched).transpose()
}

/// The wait for a goal begins, unless it has begun or another is waited for by now.
async fn begin_wait(session: &mut Session<'_>, observer: &str, watched: &Watched) -> StoreResult<()> {
    let sql = "UPDATE observations SET goal_begun_at = ? WHERE observer = ? AND subject_id = ? AND goal = ? \
               AND goal_begun_at IS NULL";
    let values = values![watched.now, observer, watched.subject_id.as_str(), watched.goal.as_str()];
    session.execute("observations.wait", sql, values).await?;
    Ok(())
}

async fn note(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    observer: &str,
    looks: &[NotedLook],
) -> StoreResult<()> {
    let (seen, failed): (Vec<_>, Vec<_>) = looks.iter().partition(|look| look.failure.is_none());
    for looks in seen.chunks(TOGETHER) {
        note_seen(session, lease, observer, looks).await?;
    }
    for looks in failed.chunks(TOGETHER) {
        note_failed(session, lease, observer, looks).await?;
    }
    Ok(())
}

const AS_LISTED: &str = "subject_id = ? AND version = ?";

async fn note_seen(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    observer: &str,
    looks: &[&NotedLook],
) -> StoreResult<()> {
    let (now, later) = (session.dialect().now(), session.dialect().now_plus_parameter());
    let mut values = values![];
    for look in looks {
        values.extend(values![look.subject_id.as_str(), look.version]);
    }
    for look in looks {
        values.extend(values![look.subject_id.as_str(), look.version, micros(look.again_after.min(LONGEST))]);
    }
    let sql = format!(
        "UPDATE observations SET looked_at = {now}, failing_since_at = NULL, failed_at = NULL, failure_code = NULL, \
         failure_message = NULL, failure_count = 0, \
         asked = CASE WHEN {} THEN 0 ELSE asked END, due_at = CASE {} ELSE due_at END WHERE {}",
        vec![format!("({AS_LISTED})"); looks.len()].join(" OR "),
        vec![format!("WHEN {AS_LISTED} THEN {later}"); looks.len()].join(" "),
        noted_by(observer, lease, looks, &mut values)
    );
    session.execute("observations.seen", &sql, values).await?;
    Ok(())
}

async fn note_failed(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    observer: &str,
    looks: &[&NotedLook],
) -> StoreResult<()> {
    // One moment: what has begun to fail fails since then.
    let (now, later) = (session.dialect().now_of_statement(), session.dialect().now_plus_parameter());
    let mut values = values![];
    for look in looks {
        values.extend(values![look.subject_id.as_str(), look.failure.as_ref().map(|(of, _)| code(of))]);
    }
    for look in looks {
        values
            .extend(values![look.subject_id.as_str(), look.failure.as_ref().map(|(_, text)| readable(text))]);
    }
    for look in looks {
        let pause = micros(look.again_after.min(LONGEST));
        values.extend(values![look.subject_id.as_str(), look.version, pause]);
        values.extend(values![look.subject_id.as_str(), pause, pause]);
    }
    let texts = vec!["WHEN subject_id = ? THEN ?"; looks.len()].join(" ");
    // Facts that were taken in meanwhile may say that all is known: what a hint led to was not seen.
    let due = format!(
        "WHEN {AS_LISTED} THEN {later} WHEN subject_id = ? AND held = 0 AND due_at > {later} THEN {later}"
    );
    let sql = format!(
        "UPDATE observations SET failing_since_at = COALESCE(failing_since_at, {now}), failed_at = {now}, \
         failure_code = CASE {texts} END, failure_message = CASE {texts} END, failure_count = failure_count + 1, \
         due_at = CASE {} ELSE due_at END WHERE {}",
        vec![due; looks.len()].join(" "),
        noted_by(observer, lease, looks, &mut values)
    );
    session.execute("observations.failed", &sql, values).await?;
    Ok(())
}

/// That a row is one of these, and that who notes it still has the lease.
fn noted_by<'v>(
    observer: &'v str,
    lease: &'v LeaseGrant,
    looks: &[&'v NotedLook],
    values: &mut Vec<Value<'v>>,
) -> String {
    values.extend(values![observer]);
    values.extend(looks.iter().map(|look| Value::from(look.subject_id.as_str())));
    values.extend(held_by(lease));
    format!("observer = ? AND subject_id IN ({}) AND {HELD}", vec!["?"; looks.len()].join(", "))
}

async fn looks_at(session: &mut Session<'_>, observer: &str, subject_id: &str) -> StoreResult<Option<Looks>> {
    let sql = "SELECT looked_at, failing_since_at, failed_at, failure_code, failure_message, failure_count \
               FROM observations WHERE observer = ? AND subject_id = ?";
    let row = session.row("observations.looks", sql, values![observer, subject_id]).await?;
    row.as_ref().map(read_looks).transpose()
}

/// Runs in a transaction.
pub(crate) async fn wait_anew(session: &mut Session<'_>, observer: &str) -> StoreResult<()> {
    let sql = "UPDATE observations SET goal_begun_at = NULL WHERE observer = ? AND goal_begun_at IS NOT NULL";
    session.execute("observations.wait_anew", sql, values![observer]).await?;
    Ok(())
}

/// Runs in a transaction.
pub(crate) async fn look_at_all(session: &mut Session<'_>, observer: &str) -> StoreResult<()> {
    let soon = AT_ONCE + TimeDelta::seconds(1);
    let sql = "UPDATE observations SET due_at = ? WHERE observer = ? AND due_at > ? AND held = 0";
    session.execute("observations.look_at_all", sql, values![soon, observer, soon]).await?;
    Ok(())
}

fn watched_sql(dialect: Dialect) -> String {
    format!(
        "SELECT subject_id, hint, version, wanted, goal, goal_begun_at, held, {} AS time_now \
         FROM observations WHERE observer = ?",
        dialect.now()
    )
}

fn read_listed(row: &Row) -> StoreResult<Listed> {
    Ok(Listed {
        subject_id: row.text("subject_id")?,
        hint: row.text("hint")?,
        version: row.count("version")?,
        due_at: row.time("due_at")?,
        is_held: row.long("held")? != 0,
    })
}

fn read_watched(row: &Row) -> StoreResult<Watched> {
    Ok(Watched {
        subject_id: row.text("subject_id")?,
        hint: row.text("hint")?,
        version: row.count("version")?,
        wanted: row.text("wanted")?,
        goal: row.text("goal")?,
        goal_begun_at: row.time_or_null("goal_begun_at")?,
        is_held: row.long("held")? != 0,
        now: row.time("time_now")?,
    })
}

fn read_looks(row: &Row) -> StoreResult<Looks> {
    let failure = match row.time_or_null("failing_since_at")? {
        None => None,
        Some(since) => Some(LookFailure {
            code: row.text("failure_code")?,
            message: row.text("failure_message")?,
            since,
            failed_at: row.time("failed_at")?,
            times: row.count("failure_count")?,
        }),
    };
    Ok(Looks { looked_at: row.time_or_null("looked_at")?, failure })
}

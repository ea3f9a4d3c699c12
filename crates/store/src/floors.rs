//! Floors: below which number a table has nothing to be taken any more.
//!
//! Rows that wait are found by an index in the order of their numbers. On PostgreSQL a row that was taken leaves a dead
//! entry there, and as long as any session in the database sleeps in an old transaction nobody may clear it away: each
//! look would walk over everything that was taken since. So looks begin at a floor.
//!
//! A floor is not a cursor. A cursor goes past a number that another transaction has taken and not committed yet; a floor
//! rises only when nobody can still commit below it. Who inserts takes a lock on the table before its numbers are given,
//! keeps it until it has ended, and everybody can see it in `pg_locks`. So:
//!
//! 1. Read the last number given. Then read who holds the lock. Whoever may still commit such a number is among them.
//! 2. When none of them holds it any more, what they committed is visible. Read the lowest row that waits. All numbers up
//!    to the last one of step 1 and below that row are done with.
//!
//! Rows can come back: a lane is opened again, or an operator reopens what was given up. That is counted per channel, in
//! the same transaction (`outbox_returns`). A floor holds only under the count it was found with, and a look reads the
//! count in the same statement as the rows: whoever would see such rows sees the count too, and looks from the beginning.
//! The same goes for the server's start: after a restart, or on another server, numbers may be given again. And for a crash
//! that the server recovers from without a restart, as it does when one of its processes is killed: numbers that nobody has
//! committed are then forgotten, and given again. Nothing says so but that all sessions have ended. So a floor is believed
//! only in a session that is older than it.
//!
//! What somebody changes by hand behind our back is found when the floor is dropped, every few minutes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use towpath_core::ids::ChannelName;
use towpath_core::ports::store::StoreResult;

use crate::schema::OUTBOX_READY;
use crate::sql::{Row, Session, Value, unreadable, values};

/// How many rows are taken before a floor is worth raising.
const WORTHWHILE: u64 = 1_000;

/// How long there is between two questions.
const PACE: Duration = Duration::from_millis(100);

/// After how long another one asks.
const LONGEST_QUESTION: Duration = Duration::from_secs(10);

/// How long a floor is raised before one look begins at the beginning again.
const BELIEVED: Duration = Duration::from_secs(600);

/// What is looked at in the order of its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The outbox rows of a channel that are ready.
    Outbox(ChannelName),
    /// The events without a position.
    Pending,
}

/// How things are when a session looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerState {
    returns: i64,
    server_started_at: DateTime<Utc>,
    /// When the session began that looks; none where the server does not say.
    session_began_at: Option<DateTime<Utc>>,
}

/// Nothing waits below this number, under this state.
#[derive(Debug, Clone)]
pub(crate) struct Floor {
    pub(crate) at: i64,
    under: ServerState,
    /// When the numbers up to it were read as given, by the server's clock.
    read_at: DateTime<Utc>,
}

impl Floor {
    /// Whether it holds for who looks under this state.
    pub(crate) fn holds(&self, now: &ServerState) -> bool {
        (self.under.returns, self.under.server_started_at) == (now.returns, now.server_started_at)
            && now.is_older_than(self.read_at)
    }
}

impl ServerState {
    /// Whether the server has not crashed between a moment and now: no session outlives that.
    fn is_older_than(&self, moment: DateTime<Utc>) -> bool {
        self.session_began_at.is_some_and(|began_at| began_at <= moment)
    }
}

/// The floors that this process knows. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Floors(Arc<Mutex<HashMap<Place, State>>>);

struct State {
    floor: Option<Floor>,
    found_at: Instant,
    asked_at: Instant,
    /// Since when somebody is asking the database.
    asking: Option<Instant>,
    rows_since: u64,
    candidate: Option<Candidate>,
}

/// A number that may become the floor.
#[derive(Clone)]
struct Candidate {
    last_given: i64,
    read_at: DateTime<Utc>,
    /// Who might still commit a number up to it.
    writers: BTreeSet<String>,
}

impl Floors {
    /// The floor of a place, if one is known.
    pub(crate) fn of(&self, place: &Place) -> Option<Floor> {
        let mut states = self.states();
        let state = states.get_mut(place)?;
        if state.found_at.elapsed() > BELIEVED {
            state.floor = None;
        }
        state.floor.clone()
    }

    /// Drops a floor that does not hold any more.
    pub(crate) fn drop_floor(&self, place: &Place) {
        if let Some(state) = self.states().get_mut(place) {
            state.floor = None;
        }
    }

    /// Notes that rows were taken. Whether it is time to [`raise`](Self::raise) the floor; whoever is told so must say
    /// [`asked`](Self::asked) afterwards. One asks at a time.
    pub(crate) fn is_time(&self, place: &Place, rows: u64) -> bool {
        let mut states = self.states();
        let now = Instant::now();
        let fresh = || State {
            floor: None,
            found_at: now,
            asked_at: now,
            asking: None,
            rows_since: 0,
            candidate: None,
        };
        let state = states.entry(place.clone()).or_insert_with(fresh);
        state.rows_since += rows;
        let wanted = state.floor.is_none() || state.candidate.is_some() || state.rows_since >= WORTHWHILE;
        // Who was dropped while asking never says that it has ended.
        let is_asking = state.asking.is_some_and(|since| since.elapsed() < LONGEST_QUESTION);
        if is_asking || !wanted || state.asked_at.elapsed() < PACE {
            return false;
        }
        state.asking = Some(now);
        true
    }

    /// The question is over, with whatever answer.
    pub(crate) fn asked(&self, place: &Place) {
        if let Some(state) = self.states().get_mut(place) {
            (state.asking, state.asked_at) = (None, Instant::now());
        }
    }

    /// Takes one step towards a higher floor.
    pub(crate) async fn raise(&self, session: &mut Session<'_>, place: &Place) -> StoreResult<()> {
        let candidate = self.states().get(place).and_then(|state| state.candidate.clone());
        let (candidate, floor) = match candidate {
            None => (Some(propose(session, place).await?), None),
            Some(candidate) => self.confirm(session, place, candidate).await?,
        };
        if let Some(state) = self.states().get_mut(place) {
            state.candidate = candidate;
            if let Some(floor) = floor {
                if state.floor.is_none() {
                    state.found_at = Instant::now();
                }
                (state.floor, state.rows_since) = (Some(floor), 0);
            }
        }
        Ok(())
    }

    /// Turns a candidate into a floor once its writers have ended.
    async fn confirm(
        &self,
        session: &mut Session<'_>,
        place: &Place,
        candidate: Candidate,
    ) -> StoreResult<(Option<Candidate>, Option<Floor>)> {
        let writers = writers(session, place).await?;
        // A transaction that is prepared changes its name: it might be one of those.
        let ended = candidate.writers.is_disjoint(&writers) && !writers.iter().any(|name| is_prepared(name));
        if !ended {
            return Ok((Some(candidate), None));
        }
        // From the floor that holds under the same standing; otherwise from the beginning.
        let known = self.of(place);
        let from = known.as_ref().map_or(0, |floor| floor.at);
        let (lowest, under) = lowest(session, place, from).await?;
        if !under.is_older_than(candidate.read_at) {
            // Its numbers may have been forgotten since.
            return Ok((None, None));
        }
        if known.is_some_and(|floor| !floor.holds(&under)) {
            self.drop_floor(place);
            return Ok((Some(candidate), None));
        }
        let above = candidate.last_given + 1;
        let at = lowest.map_or(above, |lowest| lowest.min(above)).max(from);
        Ok((None, Some(Floor { at, under, read_at: candidate.read_at })))
    }

    fn states(&self) -> MutexGuard<'_, HashMap<Place, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn table(&self) -> &'static str {
        match self {
            Self::Outbox(_) => "event_outbox",
            Self::Pending => "event_pending",
        }
    }

    fn sequence(&self) -> &'static str {
        match self {
            Self::Outbox(_) => "event_outbox_outbox_id_seq",
            Self::Pending => "event_pending_pending_id_seq",
        }
    }

    /// A table of one row with what a floor holds under, read by the statement that it stands in.
    fn standing<'v>(&'v self, keys: &mut Vec<Value<'v>>) -> &'static str {
        match self {
            Self::Outbox(channel) => {
                keys.extend(values![channel.as_str()]);
                "(SELECT COALESCE((SELECT return_count FROM outbox_returns WHERE channel = ?), 0) AS return_count, \
                 pg_postmaster_start_time() AS server_started_at, \
                 (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())) AS session_began_at) AS standing"
            }
            Self::Pending => {
                "(SELECT CAST(0 AS bigint) AS return_count, pg_postmaster_start_time() AS server_started_at, \
                 (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())) AS session_began_at) AS standing"
            }
        }
    }
}

/// Makes a look that begins at a floor answer what the floor must hold under. It then has one row at least, whose other
/// columns are null if nothing was found. The keys of the look are bound behind those that this adds.
pub(crate) fn guarded<'v>(place: &'v Place, look: &str, keys: &mut Vec<Value<'v>>) -> String {
    let standing = place.standing(keys);
    format!("SELECT standing.*, found.* FROM {standing} LEFT JOIN ({look}) AS found ON TRUE")
}

/// What a guarded look says its floor must hold under.
pub(crate) fn server_state(rows: &[Row]) -> StoreResult<ServerState> {
    let row = rows.first().ok_or_else(|| unreadable("standing", "the row is missing"))?;
    Ok(ServerState {
        returns: row.long("return_count")?,
        server_started_at: row.time("server_started_at")?,
        session_began_at: row.time_or_null("session_began_at")?,
    })
}

/// Counts that rows of a channel have come back. Runs in the transaction that brings them back, where floors are kept.
pub(crate) async fn count_return(session: &mut Session<'_>, channel: &ChannelName) -> StoreResult<()> {
    if !session.dialect().keeps_floors() {
        return Ok(());
    }
    let sql = "INSERT INTO outbox_returns (channel, return_count) VALUES (?, 1) \
         ON CONFLICT (channel) DO UPDATE SET return_count = outbox_returns.return_count + 1";
    session.execute("floor.return", sql, values![channel.as_str()]).await?;
    Ok(())
}

/// Reads the last number given, then who may still commit one up to it: in this order.
async fn propose(session: &mut Session<'_>, place: &Place) -> StoreResult<Candidate> {
    let sql = format!(
        "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS last_given, \
         pg_catalog.clock_timestamp() AS read_at FROM {}",
        place.sequence()
    );
    let row = session.row("floor.last_given", &sql, values![]).await?;
    let row = row.ok_or_else(|| unreadable(place.sequence(), "its row is missing"))?;
    let (last_given, read_at) = (row.long("last_given")?, row.time("read_at")?);
    Ok(Candidate { last_given, read_at, writers: writers(session, place).await? })
}

/// The transactions that have inserted into the table, or are about to, and have not ended.
async fn writers(session: &mut Session<'_>, place: &Place) -> StoreResult<BTreeSet<String>> {
    let sql = format!(
        "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND relation = CAST('{}' AS regclass) AND mode = 'RowExclusiveLock'",
        place.table()
    );
    let rows = session.rows("floor.writers", &sql, values![]).await?;
    rows.iter().map(|row| row.text("virtualtransaction")).collect::<Result<_, _>>()
}

/// How `pg_locks` names a prepared transaction: it belongs to no session.
fn is_prepared(virtual_transaction: &str) -> bool {
    virtual_transaction.starts_with("-1/")
}

/// The lowest row that waits, due or not, from a number on; and the standing at the same moment.
async fn lowest(
    session: &mut Session<'_>,
    place: &Place,
    from: i64,
) -> StoreResult<(Option<i64>, ServerState)> {
    let (mut keys, mut look_keys) = (values![], values![]);
    let look = match place {
        Place::Outbox(channel) => {
            let (column, condition) = session.dialect().partial(OUTBOX_READY, "o.");
            let (pinned, first) = session.dialect().pinned(&column);
            look_keys.extend(pinned.matches('?').map(|_| Value::from(channel.as_str())));
            format!(
                "SELECT o.outbox_id AS lowest FROM event_outbox o WHERE {pinned}{condition} AND o.outbox_id >= ? \
                 ORDER BY {first}o.outbox_id LIMIT 1"
            )
        }
        Place::Pending => "SELECT pending_id AS lowest FROM event_pending WHERE pending_id >= ? \
             ORDER BY pending_id LIMIT 1"
            .to_owned(),
    };
    let sql = guarded(place, &look, &mut keys);
    keys.extend(look_keys);
    keys.extend(values![from]);
    let rows = session.rows("floor.lowest", &sql, keys).await?;
    let lowest = rows.first().map(|row| row.long_or_null("lowest")).transpose()?.flatten();
    Ok((lowest, server_state(&rows)?))
}

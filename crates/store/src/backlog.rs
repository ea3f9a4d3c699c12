//! What whoever watches a store wants to know: how much waits where, and how its connections are used.

use chrono::{DateTime, Utc};
use towpath_core::ids::{ChannelName, HandlerName, Position};
use towpath_core::lifecycle::LetterStatus;
use towpath_core::ports::store::StoreResult;

use crate::ops;
use crate::pools::Pool;
use crate::store::{Purpose, SqlStore, reading};

/// How much waits, is at work or was given up. Counts end at 100,000 (letters: 10,000 of a status): one that shows this
/// number may be more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Commands.
    pub commands: CommandBacklog,
    /// The log.
    pub log: LogBacklog,
    /// Timers.
    pub timers: TimerBacklog,
    /// The outbox, by channel.
    pub outbox: Vec<OutboxBacklog>,
    /// Deliveries that were set aside and are not ended.
    pub letters: Vec<LetterCount>,
}

/// Commands that are not through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandBacklog {
    /// Nobody works on them.
    pub pending: u64,
    /// A worker has them.
    pub processing: u64,
    /// Failed, and will be tried again.
    pub retrying: u64,
    /// Failed or were refused, and that is all.
    pub failed: u64,
}

/// Where the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogBacklog {
    /// The last position.
    pub head: Position,
    /// Events without one.
    pub pending: u64,
}

/// Timers that have not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimerBacklog {
    /// All of them.
    pub waiting: u64,
    /// Those whose moment has come.
    pub due: u64,
}

/// The outbox rows of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxBacklog {
    /// Which channel.
    pub channel: ChannelName,
    /// New, or to be tried again.
    pub pending: u64,
    /// Wait behind one of their aggregate.
    pub parked: u64,
    /// Were given up.
    pub failed: u64,
    /// When the first event happened of those that are pending.
    pub oldest_at: Option<DateTime<Utc>>,
}

/// How many letters of a handler are in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterCount {
    /// Whose; `None` for what the broker itself gave up.
    pub handler: Option<HandlerName>,
    /// Where they are.
    pub status: LetterStatus,
    /// How many.
    pub count: u64,
}

/// How the connections of a pool are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Which pool: SQLite writes on one and reads on another, the others have one for all.
    pub pool: &'static str,
    /// Open, and nobody uses them.
    pub idle: u64,
    /// In use.
    pub used: u64,
    /// How many there may be.
    pub most: u64,
}

impl SqlStore {
    /// Counts what waits, on these channels and elsewhere. Three statements, each by index and none longer than what it
    /// counts.
    pub async fn backlog(&self, channels: &[ChannelName], now: DateTime<Utc>) -> StoreResult<Backlog> {
        reading!(self, ops::backlog::look, channels, now, self.floors())
    }

    /// A mark behind all events that wait for a position now; none when no event does. See
    /// [`waits_for_position`](Self::waits_for_position).
    pub async fn last_without_position(&self) -> StoreResult<Option<i64>> {
        reading!(self, ops::log::last_pending)
    }

    /// Whether an event up to such a mark still waits for its position. However many do, this looks at one.
    pub async fn waits_for_position(&self, up_to: i64) -> StoreResult<bool> {
        reading!(self, ops::log::is_pending_up_to, up_to)
    }

    /// Whether all connections are in use at this moment. Who keeps one then, without need, keeps others waiting.
    pub fn is_exhausted(&self) -> bool {
        self.connections().iter().any(|pool| pool.used >= pool.most)
    }

    /// How the connections are used at this moment. Asks nobody.
    pub fn connections(&self) -> Vec<Connections> {
        fn of<DB: sqlx::Database>(name: &'static str, pool: &sqlx::Pool<DB>) -> Connections {
            let (open, idle) = (u64::from(pool.size()), pool.num_idle() as u64);
            let most = u64::from(pool.options().get_max_connections());
            Connections { pool: name, idle, used: open.saturating_sub(idle), most }
        }
        match self.pool() {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, readers } => vec![of("write", writer), of("read", readers)],
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => vec![of("all", pool)],
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => vec![of("all", pool)],
        }
    }
}

//! How the connections of a store are used.

use crate::pools::Pool;
use crate::store::SqlStore;

/// The pool that listings have for themselves.
const LISTINGS: &str = "listings";

/// How the connections of a pool are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Which pool: SQLite writes on one and reads on another, the others have one for all; listings have their own.
    pub pool: &'static str,
    /// Open, and nobody uses them.
    pub idle: u64,
    /// In use.
    pub used: u64,
    /// How many there may be.
    pub most: u64,
}

impl SqlStore {
    /// Whether all connections are in use at this moment. Who keeps one then, without need, keeps others waiting.
    pub fn is_exhausted(&self) -> bool {
        // Those for listings keep nobody else waiting.
        self.connections().iter().any(|pool| pool.pool != LISTINGS && pool.used >= pool.most)
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
            Pool::Sqlite { writer, readers, listings } => {
                vec![of("write", writer), of("read", readers), of(LISTINGS, listings)]
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres { all, listings } => vec![of("all", all), of(LISTINGS, listings)],
            #[cfg(feature = "mysql")]
            Pool::MySql { all, listings } => vec![of("all", all), of(LISTINGS, listings)],
        }
    }
}

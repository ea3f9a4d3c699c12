//! A scratch database: made, used and removed. Benchmarks and tests work in one, so that nobody's own tables are
//! ever touched and any number of them can run at once.

use sqlx::{AssertSqlSafe, Connection, Executor};
use towpath_core::ports::store::{StoreError, StoreResult};
use uuid::Uuid;

use crate::sql::classify;
use crate::url::StoreUrl;

/// An empty schema (PostgreSQL), database (MySQL) or file (SQLite) beside the one that a store URL names.
pub struct Scratch {
    url: String,
    place: Place,
}

enum Place {
    #[cfg(feature = "sqlite")]
    Folder(std::path::PathBuf),
    #[cfg(feature = "postgres")]
    Schema { server: String, name: String },
    #[cfg(feature = "mysql")]
    Database { server: String, name: String },
}

impl Scratch {
    /// Makes an empty place. It stays until [`remove`](Scratch::remove).
    pub async fn make(store_url: &str) -> StoreResult<Self> {
        let name = format!("towpath_scratch_{}", Uuid::now_v7().simple());
        match StoreUrl::parse(store_url)? {
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => {
                // Beside the named file, so that the same disk is used.
                let folder = std::path::Path::new(&path).with_file_name(name);
                let url = format!("sqlite://{}", folder.join("towpath.db").display());
                Ok(Self { url, place: Place::Folder(folder) })
            }
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url: server } => {
                run_on_postgres(&server, format!("CREATE SCHEMA {name}")).await?;
                let separator = if server.contains('?') { '&' } else { '?' };
                let url = format!("{server}{separator}options[search_path]={name}");
                Ok(Self { url, place: Place::Schema { server, name } })
            }
            #[cfg(feature = "mysql")]
            StoreUrl::MySql { url: server } => {
                run_on_mysql(&server, format!("CREATE DATABASE {name}")).await?;
                let (address, parameters) = server.split_once('?').unwrap_or((&server, ""));
                let (scheme, rest) = address.split_once("://").unwrap_or(("mysql", address));
                let authority = rest.split('/').next().unwrap_or_default();
                let url = format!("{scheme}://{authority}/{name}?{parameters}");
                Ok(Self { url, place: Place::Database { server, name } })
            }
            #[allow(unreachable_patterns, reason = "reachable when a database is not built in")]
            other => Err(StoreError::BadUrl(format!("this build cannot open {other}"))),
        }
    }

    /// The store URL of the place.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Removes the place and everything in it. A session that still has a transaction open there makes it fail
    /// after two seconds instead of waiting.
    pub async fn remove(self) -> StoreResult<()> {
        match self.place {
            #[cfg(feature = "sqlite")]
            Place::Folder(folder) => match std::fs::remove_dir_all(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(StoreError::Unavailable(error.into()))
                }
                _ => Ok(()),
            },
            #[cfg(feature = "postgres")]
            Place::Schema { server, name } => {
                run_on_postgres(&server, format!("SET lock_timeout = '2s'; DROP SCHEMA {name} CASCADE")).await
            }
            #[cfg(feature = "mysql")]
            Place::Database { server, name } => {
                run_on_mysql(&server, format!("SET lock_wait_timeout = 2; DROP DATABASE {name}")).await
            }
        }
    }
}

#[cfg(feature = "postgres")]
async fn run_on_postgres(server: &str, sql: String) -> StoreResult<()> {
    let run = async {
        let mut connection = sqlx::PgConnection::connect(server).await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        connection.close().await
    };
    run.await.map_err(|error| classify("scratch", error).into())
}

#[cfg(feature = "mysql")]
async fn run_on_mysql(server: &str, sql: String) -> StoreResult<()> {
    let run = async {
        let mut connection = sqlx::MySqlConnection::connect(server).await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        connection.close().await
    };
    run.await.map_err(|error| classify("scratch", error).into())
}

//! A scratch database for a benchmark: made, used and removed. A user's own tables are never touched.

use towpath::sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use towpath::{SqlStore, StoreOptions, StoreUrl};

use super::super::Failure;
use super::super::migrate::failure;

/// A scratch schema, database or file.
pub(crate) struct Scratch {
    url: StoreUrl,
    kind: Kind,
}

enum Kind {
    Sqlite { folder: std::path::PathBuf },
    Postgres { server: String, schema: String },
    MySql { server: String, database: String },
}

impl Scratch {
    /// Makes a scratch place on the server that a store URL names.
    pub(crate) async fn make(store_url: &str) -> Result<Self, Failure> {
        let parsed = StoreUrl::parse(store_url).map_err(|error| failure(&error))?;
        let name = format!("towpath_bench_{}", std::process::id());
        let failed = |error: towpath::sqlx::Error| Failure::unreachable(format!("{parsed}: {error}"));
        let (url, kind) = match &parsed {
            StoreUrl::Sqlite { path } => {
                // Beside the configured file, so that the same disk is measured.
                let parent =
                    std::path::Path::new(path).parent().unwrap_or(std::path::Path::new(".")).to_owned();
                let folder = parent.join(&name);
                (format!("sqlite://{}", folder.join("bench.db").display()), Kind::Sqlite { folder })
            }
            StoreUrl::Postgres { url: server } => {
                let mut admin = PgConnection::connect(server).await.map_err(failed)?;
                admin.execute(AssertSqlSafe(format!("CREATE SCHEMA {name}"))).await.map_err(failed)?;
                let separator = if server.contains('?') { '&' } else { '?' };
                let url = format!("{server}{separator}options[search_path]={name}");
                (url, Kind::Postgres { server: server.clone(), schema: name })
            }
            StoreUrl::MySql { url: server } => {
                let mut admin = MySqlConnection::connect(server).await.map_err(failed)?;
                admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.map_err(failed)?;
                let (address, parameters) = server.split_once('?').unwrap_or((server, ""));
                let base = address.rsplit_once('/').map_or(address, |(base, _)| base);
                (
                    format!("{base}/{name}?{parameters}"),
                    Kind::MySql { server: server.clone(), database: name },
                )
            }
        };
        let url = StoreUrl::parse(&url).map_err(|error| failure(&error))?;
        Ok(Self { url, kind })
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        match &self.url {
            StoreUrl::Sqlite { path } => format!("sqlite://{path}"),
            StoreUrl::Postgres { url } | StoreUrl::MySql { url } => url.clone(),
        }
    }

    /// Opens it.
    pub(crate) async fn open(&self, options: StoreOptions) -> Result<SqlStore, Failure> {
        SqlStore::connect_with(&self.url, options).await.map_err(|error| failure(&error))
    }

    /// Removes it.
    pub(crate) async fn remove(self) -> Result<(), Failure> {
        let failed =
            |error: String| Failure::unreachable(format!("the scratch place cannot be removed: {error}"));
        match self.kind {
            Kind::Sqlite { folder } => {
                std::fs::remove_dir_all(folder).map_err(|error| failed(error.to_string()))
            }
            Kind::Postgres { server, schema } => {
                let sql = AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
                let removed = async { PgConnection::connect(&server).await?.execute(sql).await };
                removed.await.map(|_| ()).map_err(|error| failed(error.to_string()))
            }
            Kind::MySql { server, database } => {
                let sql = AssertSqlSafe(format!("DROP DATABASE {database}"));
                let removed = async { MySqlConnection::connect(&server).await?.execute(sql).await };
                removed.await.map(|_| ()).map_err(|error| failed(error.to_string()))
            }
        }
    }
}

//! What stands in the tables before a benchmark begins, and who else is there.

use std::fmt;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use towpath::ids::{AggregateKey, ChannelName, CorrelationId, EventId, InstanceId, LeaseName};
use towpath::name::EventName;
use towpath::ports::store::{Append, Expected, LeaseGrant, NewEvent, Routing};
use towpath::sqlx::{self, Executor};
use towpath::{ChangeContext, Payload, SqlStore};

use crate::{Failure, bare, on_postgres};

/// What both contenders say.
pub(crate) const EVENT_TYPE: &str = "account.deposited";
pub(crate) const PAYLOAD: &str = r#"{"amount":1,"currency":"EUR","note":"a deposit like every other"}"#;

/// How many aggregates the facts behind belong to, and how many of them one append writes.
const AGGREGATES_BEHIND: u64 = 1_000;
const FACTS_PER_APPEND: u64 = 100;

/// What makes it harder.
#[derive(Args, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Circumstances {
    /// How many rows were sent before
    #[arg(long, default_value_t = 0)]
    sent_behind: u64,

    /// Keep a session open meanwhile that has written something elsewhere and sleeps in its transaction
    #[arg(long)]
    idle_session: bool,
}

impl fmt::Display for Circumstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", {} sent before", self.sent_behind)?;
        if self.idle_session {
            f.write_str(", beside an idle transaction")?;
        }
        Ok(())
    }
}

/// A session that sleeps in its transaction as long as this is kept.
pub(crate) struct Idle(#[expect(dead_code, reason = "dropping it ends the session")] sqlx::PgConnection);

impl Circumstances {
    /// Makes them so.
    pub(crate) async fn make(
        self,
        store: &SqlStore,
        lease: &LeaseGrant,
        channel: &str,
    ) -> Result<Option<Idle>, Failure> {
        if self.sent_behind == 0 && !self.idle_session {
            return Ok(None);
        }
        let pool = store.postgres_pool().ok_or_else(|| {
            Failure::usage("--sent-behind and --idle-session know PostgreSQL only: give a postgres:// URL")
        })?;
        if self.sent_behind > 0 {
            fill(store, channel, "before", self.sent_behind, AGGREGATES_BEHIND, FACTS_PER_APPEND).await?;
            give_positions(store, lease).await?;
            let sent = "UPDATE event_outbox SET status = 'SENT', status_changed_at = now()";
            on_postgres(pool.execute(sent).await)?;
            // They were sent long ago.
            settle(store, "").await?;
        }
        Ok(if self.idle_session { Some(Idle(idle_session(pool).await?)) } else { None })
    }
}

/// What was done in these tables was done long ago: what it has left behind was cleaned up since, and the planner knows them. All
/// tables, where none is named; MariaDB must be told which.
pub(crate) async fn settle(store: &SqlStore, tables: &str) -> Result<(), Failure> {
    let sql = if store.postgres_pool().is_some() {
        format!("VACUUM (ANALYZE) {tables}")
    } else if store.mysql_pool().is_some() {
        format!("ANALYZE TABLE {tables}")
    } else {
        "ANALYZE".to_owned()
    };
    bare::execute(store, sql).await.map_err(|error| Failure::unreachable(error.to_string()))
}

/// A session that has written something and sleeps in its transaction: PostgreSQL keeps what was deleted since.
async fn idle_session(pool: &sqlx::PgPool) -> Result<sqlx::PgConnection, Failure> {
    use sqlx::ConnectOptions;

    on_postgres(pool.execute("CREATE TABLE elsewhere (note text)").await)?;
    let mut session = on_postgres(pool.connect_options().connect().await)?;
    let begun = "SET idle_in_transaction_session_timeout = 0; BEGIN; INSERT INTO elsewhere VALUES ('idle')";
    on_postgres(session.execute(sqlx::raw_sql(begun)).await)?;
    Ok(session)
}

/// Writes a backlog: in turns, `run` events of one aggregate at a time.
pub(crate) async fn fill(
    store: &SqlStore,
    channel: &str,
    name: &str,
    events: u64,
    aggregates: u64,
    run: u64,
) -> Result<(), Failure> {
    let (aggregates, run) = (aggregates.max(1), run.max(1));
    let (mut written, mut version) = (0, 0);
    while written < events {
        let mut transaction = store.begin().await?;
        for aggregate in 0..aggregates {
            let count = run.min(events - written);
            if count == 0 {
                break;
            }
            let facts = facts(channel, &format!("{name}-{aggregate}"), version, count)?;
            transaction.append(&facts).await?;
            written += count;
        }
        transaction.commit().await?;
        version += run;
    }
    Ok(())
}

fn facts(channel: &str, aggregate: &str, version: u64, count: u64) -> Result<Append, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::usage(error.to_string());
    let payload = Payload::from_text(PAYLOAD).map_err(|error| wrong(&error))?;
    Ok(Append {
        aggregate: AggregateKey::new("account", aggregate).map_err(|error| wrong(&error))?,
        expected: Expected::after(version),
        events: (0..count)
            .map(|_| NewEvent {
                event_id: EventId(uuid::Uuid::now_v7()),
                event_type: EventName::from_stored(EVENT_TYPE),
                schema_version: 1,
                payload: payload.clone(),
                channels: Routing::To(vec![ChannelName::from_stored(channel)]),
            })
            .collect(),
        snapshot: None,
        state_changes: Vec::new(),
        deadline: Default::default(),
        context: ChangeContext::new(chrono::Utc::now(), CorrelationId::of_new_flow(uuid::Uuid::new_v4())),
    })
}

/// For the positions, which are given before the clock starts.
pub(crate) async fn bench_lease(store: &SqlStore) -> Result<LeaseGrant, Failure> {
    let lease = LeaseName::from_stored("bench");
    let holder = InstanceId::from_stored("bench");
    let day = Duration::from_secs(86_400);
    let granted = store.acquire_lease(&lease, &holder, day).await?;
    granted.ok_or_else(|| Failure::unreachable("the lease of the benchmark is taken"))
}

/// Gives every fact its position.
pub(crate) async fn give_positions(store: &SqlStore, lease: &LeaseGrant) -> Result<(), Failure> {
    while store.sequence(lease, 5_000).await?.count > 0 {}
    Ok(())
}

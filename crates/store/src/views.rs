//! Views over the outbox and the inbox, for programs that read the tables of an older contract by SQL (O9).
//!
//! The column names are frozen by that contract. What a view shows is chosen by its caller: the channels whose rows are
//! outbox entries, and the handlers whose marks are log entries.

use towpath_core::ids::{ChannelName, HandlerName};
use towpath_core::name::EventName;
use towpath_core::ports::store::StoreResult;

use crate::dialect::{Dialect, FrozenType};
use crate::store::{Purpose, SqlStore};

/// The view over outbox rows.
pub const OUTBOX_EVENTS: &str = "outbox_events";

/// The view over what was handled.
pub const EVENT_CONSUME_LOG: &str = "event_consume_log";

impl SqlStore {
    /// Makes the views `outbox_events` and `event_consume_log`, or makes them anew.
    ///
    /// `channels` are those whose rows the first one shows: an event must go to one of them at most, and the ids of its
    /// aggregate are numbers. `handlers` are those whose marks the second one shows, with the one event type that each
    /// takes.
    pub async fn create_frozen_views(
        &self,
        channels: &[ChannelName],
        handlers: &[(HandlerName, EventName)],
    ) -> StoreResult<()> {
        let dialect = self.dialect();
        let channels: Vec<&str> = channels.iter().map(ChannelName::as_str).collect();
        let handlers: Vec<(&str, &str)> =
            handlers.iter().map(|(handler, event)| (handler.as_str(), event.as_str())).collect();
        let views = [
            (OUTBOX_EVENTS, outbox_events(dialect, &channels)),
            (EVENT_CONSUME_LOG, consume_log(dialect, &handlers)),
        ];
        if dialect.transactional_ddl() {
            let mut transaction = self.transaction().await?;
            // Two instances that replace one view at a time would make PostgreSQL refuse one of them.
            if let Some(lock) = dialect.migration_lock() {
                transaction.session().without_limit().plain("views.lock", lock).await?;
            }
            for (name, query) in &views {
                for statement in create(dialect, name, query) {
                    transaction.session().without_limit().plain("views.create", &statement).await?;
                }
            }
            return transaction.commit().await;
        }
        let mut connection = self.connection(Purpose::Write).await?;
        for (name, query) in &views {
            for statement in create(dialect, name, query) {
                connection.session().without_limit().plain("views.create", &statement).await?;
            }
        }
        Ok(())
    }
}

fn create(dialect: Dialect, name: &str, query: &str) -> Vec<String> {
    if dialect.replaces_views() {
        vec![format!("CREATE OR REPLACE VIEW {name} AS {query}")]
    } else {
        vec![format!("DROP VIEW IF EXISTS {name}"), format!("CREATE VIEW {name} AS {query}")]
    }
}

fn outbox_events(dialect: Dialect, channels: &[&str]) -> String {
    format!(
        "SELECT o.outbox_id AS id, {event_id} AS event_id, {event_type} AS event_type, \
         e.aggregate_kind AS aggregate_type, {aggregate_id} AS aggregate_id, {payload} AS payload, \
         CASE WHEN o.status = 'SKIPPED' THEN 'FAILED' ELSE o.status END AS status, o.retry_count AS retry_count, {next_retry} AS next_retry_time, \
         {created} AS create_time, {updated} AS update_time \
         FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id WHERE o.channel IN ({channels})",
        event_id = dialect.frozen(FrozenType::Varchar64, &dialect.uuid_text("o.event_id")),
        event_type = dialect.frozen(FrozenType::Varchar64, "e.event_type"),
        aggregate_id = dialect.frozen(
            FrozenType::Number,
            &format!("CAST(e.aggregate_id AS {})", dialect.integer_cast())
        ),
        payload = dialect.frozen(FrozenType::Text, "e.payload"),
        // A row that was never tried may be tried since it is there: the contract's own condition finds it by this.
        next_retry = dialect.date_time(
            "(CASE WHEN o.status = 'NEW' THEN COALESCE(o.next_retry_at, e.occurred_at) ELSE o.next_retry_at END)"
        ),
        created = dialect.frozen(FrozenType::Moment, &dialect.date_time("e.occurred_at")),
        updated = dialect.frozen(FrozenType::Moment, &dialect.date_time("o.status_changed_at")),
        channels = list(dialect, channels),
    )
}

fn consume_log(dialect: Dialect, handlers: &[(&str, &str)]) -> String {
    let names: Vec<&str> = handlers.iter().map(|(handler, _)| *handler).collect();
    let types: String = handlers
        .iter()
        .map(|(handler, event)| format!(" WHEN {} THEN {}", dialect.literal(handler), dialect.literal(event)))
        .collect();
    // Without handlers there are no rows, but the type must still be one.
    let event_type =
        if types.is_empty() { "''".to_owned() } else { format!("CASE i.handler{types} ELSE '' END") };
    format!(
        "SELECT {id} AS id, {event_id} AS event_id, {event_type} AS event_type, \
         i.handler AS consumer, {consumed} AS consume_time \
         FROM inbox i WHERE i.handler IN ({names}) AND i.status = 'HANDLED'",
        id = dialect.frozen(FrozenType::Number, &dialect.number_of_uuid("i.event_id")),
        event_id = dialect.frozen(FrozenType::Varchar64, &dialect.uuid_text("i.event_id")),
        event_type = dialect.frozen(FrozenType::Varchar64, &event_type),
        consumed = dialect.frozen(FrozenType::Moment, &dialect.date_time("i.status_changed_at")),
        names = list(dialect, &names),
    )
}

/// The members of an IN. A list without members is no SQL.
fn list(dialect: Dialect, texts: &[&str]) -> String {
    if texts.is_empty() {
        return "NULL".to_owned();
    }
    texts.iter().map(|text| dialect.literal(text)).collect::<Vec<_>>().join(", ")
}

//! Views over the outbox and the inbox that an application declares, for programs that read them by SQL under other names.
//!
//! The application says what each column is called, what it shows and in which type; the store knows the columns beneath.

use towpath_core::ids::{ChannelName, HandlerName};
use towpath_core::name::EventName;
use towpath_core::ports::store::StoreResult;

use crate::dialect::Dialect;
use crate::store::{Purpose, SqlStore};

/// A view, declared as data.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlView {
    /// Its name.
    pub name: &'static str,
    /// Of which rows.
    pub rows: ViewRows,
    /// Its columns, in order: the name, what it shows, and its type if that is not the one of the column beneath.
    ///
    /// PostgreSQL replaces no view whose columns have got another name, place or type.
    pub columns: &'static [(&'static str, Shows, Option<ViewType>)],
}

/// Which rows a view shows.
#[derive(Debug, Clone, PartialEq)]
pub enum ViewRows {
    /// Outbox rows of these channels. An event must go to one of them at most.
    Outbox(Vec<ChannelName>),
    /// What these handlers have handled, with the one event type that each takes.
    Handled(Vec<(HandlerName, EventName)>),
}

/// What a column of a view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// A number for the row. Of what was handled it is made from the event's id: 62 of its random bits; on SQLite, which
    /// cannot read hexadecimal digits, it is the row's place among the others.
    RowNumber,
    /// The event's id as a text.
    EventId,
    /// The event's type.
    EventType,
    /// The handler. Null in the outbox.
    Handler,
    /// The kind of the event's aggregate. Null for what was handled, as all that follows but the last.
    AggregateKind,
    /// The id of the event's aggregate, which must be a number.
    AggregateNumber,
    /// The event's payload.
    Payload,
    /// The status of an outbox row: NEW, SENT or FAILED. What an operator has skipped is FAILED here.
    Status,
    /// How often publishing has failed.
    RetryCount,
    /// When it is tried next. A row that was never tried may be tried since it is there.
    NextRetryAt,
    /// When the event happened.
    OccurredAt,
    /// When the row came to its status, which for what was handled is when it was.
    StatusChangedAt,
}

/// The type of a column of a view on MySQL, NOT NULL. The other databases have their own nearest types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewType {
    /// BIGINT
    Number,
    /// VARCHAR(64)
    Varchar64,
    /// TEXT
    Text,
    /// DATETIME
    Moment,
}

impl ViewType {
    /// An expression of this type on MySQL, NOT NULL as its declaration says. What a cast gives could be null, and columns
    /// of ours may be wider. TEXT is at most 65535 bytes, of which a character can take four.
    #[cfg(feature = "mysql")]
    pub(crate) fn on_mysql(self, expression: &str) -> String {
        let text = |length: u32| {
            format!(
                "COALESCE(CAST({expression} AS CHAR({length}) CHARACTER SET utf8mb4) COLLATE utf8mb4_bin, '')"
            )
        };
        match self {
            Self::Number => format!("COALESCE({expression}, 0)"),
            Self::Varchar64 => text(64),
            Self::Text => text(16_383),
            Self::Moment => format!("COALESCE({expression}, TIMESTAMP'1970-01-01 00:00:00')"),
        }
    }
}

impl SqlStore {
    /// Makes views, or makes them anew. Several instances may do so at a time.
    pub async fn create_views(&self, views: &[SqlView]) -> StoreResult<()> {
        let dialect = self.dialect();
        let statements: Vec<String> = views.iter().flat_map(|view| view.create(dialect)).collect();
        if dialect.transactional_ddl() {
            let mut transaction = self.transaction().await?;
            // Two instances that replace one view at a time would make PostgreSQL refuse one of them.
            if let Some(lock) = dialect.migration_lock() {
                transaction.session().without_limit().plain("views.lock", lock).await?;
            }
            for statement in &statements {
                transaction.session().without_limit().plain("views.create", statement).await?;
            }
            return transaction.commit().await;
        }
        let mut connection = self.connection(Purpose::Write).await?;
        for statement in &statements {
            connection.session().without_limit().plain("views.create", statement).await?;
        }
        Ok(())
    }
}

impl SqlView {
    fn create(&self, dialect: Dialect) -> Vec<String> {
        let (name, query) = (self.name, self.query(dialect));
        if dialect.replaces_views() {
            vec![format!("CREATE OR REPLACE VIEW {name} AS {query}")]
        } else {
            vec![format!("DROP VIEW IF EXISTS {name}"), format!("CREATE VIEW {name} AS {query}")]
        }
    }

    fn query(&self, dialect: Dialect) -> String {
        let columns = self.columns.iter().map(|(name, shows, kind)| {
            let expression = match &self.rows {
                ViewRows::Outbox(_) => of_outbox(dialect, *shows),
                ViewRows::Handled(handlers) => of_handled(dialect, *shows, handlers),
            };
            let expression = match kind {
                Some(kind) => dialect.typed(*kind, &expression),
                None => expression,
            };
            format!("{expression} AS {name}")
        });
        let columns = columns.collect::<Vec<_>>().join(", ");
        let rows = match &self.rows {
            ViewRows::Outbox(channels) => format!(
                "event_outbox o JOIN domain_events e ON e.event_id = o.event_id WHERE o.channel IN ({})",
                list(dialect, channels.iter().map(ChannelName::as_str))
            ),
            ViewRows::Handled(handlers) => format!(
                "inbox i WHERE i.handler IN ({}) AND i.status = 'HANDLED'",
                list(dialect, handlers.iter().map(|(handler, _)| handler.as_str()))
            ),
        };
        format!("SELECT {columns} FROM {rows}")
    }
}

fn of_outbox(dialect: Dialect, shows: Shows) -> String {
    match shows {
        Shows::RowNumber => "o.outbox_id".to_owned(),
        Shows::EventId => dialect.uuid_text("o.event_id"),
        Shows::EventType => "e.event_type".to_owned(),
        Shows::Handler => "NULL".to_owned(),
        Shows::AggregateKind => "e.aggregate_kind".to_owned(),
        Shows::AggregateNumber => format!("CAST(e.aggregate_id AS {})", dialect.integer_cast()),
        Shows::Payload => "e.payload".to_owned(),
        Shows::Status => "CASE WHEN o.status = 'SKIPPED' THEN 'FAILED' ELSE o.status END".to_owned(),
        Shows::RetryCount => "o.retry_count".to_owned(),
        Shows::NextRetryAt => dialect.date_time(
            "(CASE WHEN o.status = 'NEW' THEN COALESCE(o.next_retry_at, e.occurred_at) ELSE o.next_retry_at END)",
        ),
        Shows::OccurredAt => dialect.date_time("e.occurred_at"),
        Shows::StatusChangedAt => dialect.date_time("o.status_changed_at"),
    }
}

fn of_handled(dialect: Dialect, shows: Shows, handlers: &[(HandlerName, EventName)]) -> String {
    match shows {
        Shows::RowNumber => dialect.number_of_uuid("i.event_id"),
        Shows::EventId => dialect.uuid_text("i.event_id"),
        // Without handlers there are no rows, but the type must still be one.
        Shows::EventType if handlers.is_empty() => "''".to_owned(),
        Shows::EventType => {
            let types = handlers.iter().map(|(handler, event)| {
                format!(
                    " WHEN {} THEN {}",
                    dialect.literal(handler.as_str()),
                    dialect.literal(event.as_str())
                )
            });
            format!("CASE i.handler{} ELSE '' END", types.collect::<String>())
        }
        Shows::Handler => "i.handler".to_owned(),
        Shows::StatusChangedAt => dialect.date_time("i.status_changed_at"),
        Shows::AggregateKind
        | Shows::AggregateNumber
        | Shows::Payload
        | Shows::Status
        | Shows::RetryCount
        | Shows::NextRetryAt
        | Shows::OccurredAt => "NULL".to_owned(),
    }
}

/// The members of an IN. A list without members is no SQL.
fn list<'t>(dialect: Dialect, texts: impl Iterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.map(|text| dialect.literal(text)).collect();
    if texts.is_empty() { "NULL".to_owned() } else { texts.join(", ") }
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    const COLUMNS: &[(&str, Shows, Option<ViewType>)] = &[
        ("id", Shows::RowNumber, None),
        ("event_type", Shows::EventType, Some(ViewType::Varchar64)),
        ("consumer", Shows::Handler, None),
    ];

    /// PostgreSQL replaces a view only by one whose columns are the same: the text does not change.
    #[test]
    fn a_view_has_its_columns_in_their_order_and_types() {
        let channels = vec![ChannelName::from_stored("a"), ChannelName::from_stored("b's")];
        let outbox = SqlView { name: "sent", rows: ViewRows::Outbox(channels), columns: COLUMNS };
        let from = "FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id \
            WHERE o.channel IN ('a', 'b''s')";
        let plainly =
            format!("SELECT o.outbox_id AS id, e.event_type AS event_type, NULL AS consumer {from}");
        assert_eq!(outbox.create(Dialect::Postgres), [format!("CREATE OR REPLACE VIEW sent AS {plainly}")]);
        assert_eq!(
            outbox.create(Dialect::Sqlite),
            ["DROP VIEW IF EXISTS sent".to_owned(), format!("CREATE VIEW sent AS {plainly}")]
        );
        let typed = "COALESCE(CAST(e.event_type AS CHAR(64) CHARACTER SET utf8mb4) COLLATE utf8mb4_bin, '')";
        let on_mysql = plainly.replace("e.event_type AS", &format!("{typed} AS"));
        assert_eq!(outbox.create(Dialect::MySql), [format!("CREATE OR REPLACE VIEW sent AS {on_mysql}")]);
    }

    #[test]
    fn what_was_handled_has_the_type_that_its_handler_takes() {
        let handlers = vec![(HandlerName::from_stored("ship"), EventName::from_stored("ORDER_PAID"))];
        let query = |handlers| {
            let rows = ViewRows::Handled(handlers);
            SqlView { name: "log", rows, columns: &COLUMNS[1..] }.query(Dialect::Postgres)
        };
        assert_eq!(
            query(handlers),
            "SELECT CASE i.handler WHEN 'ship' THEN 'ORDER_PAID' ELSE '' END AS event_type, i.handler AS consumer \
             FROM inbox i WHERE i.handler IN ('ship') AND i.status = 'HANDLED'"
        );
        assert!(query(Vec::new()).contains("SELECT '' AS event_type"), "without handlers it is still a text");
        assert!(query(Vec::new()).contains("i.handler IN (NULL)"));
    }
}

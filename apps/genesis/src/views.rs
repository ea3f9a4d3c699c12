//! The list of sessions: a row for each, made from its facts.

use chrono::{DateTime, Utc};
use towpath::projection::{Fact, OwnedTable, RowKey, Rows};
use towpath::tables::{Row, Table};
use towpath::{Aggregate as _, HandlerError, Projection, Projections};

use crate::session::{Session, SessionEvent, StageCompleted, Status};
use crate::stage::Stage;

/// A session in the list.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(
    table = "genesis_sessions",
    index(genesis_sessions_status(status, session_id)),
    index(genesis_sessions_user(user_id, session_id))
)]
#[allow(missing_docs, reason = "a field is a column; its name says what it holds")]
pub struct SessionRow {
    #[row(key, name = 128)]
    pub session_id: String,
    pub version: u64,
    #[row(name = 128)]
    pub user_id: String,
    #[row(name = 128)]
    pub novel_id: Option<String>,
    /// 0 to 5.
    pub stage: u64,
    #[row(name = 16)]
    pub status: String,
    #[row(name = 128)]
    pub branch_of: Option<String>,
    #[row(name = 128)]
    pub correlation_id: Option<String>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// Genesis' own tables.
pub const TABLES: [Table; 1] = [*SessionRow::TABLE];

pub(crate) fn projections(channel: &str) -> Projections {
    Projections::of(channel, "genesis-views").with(Sessions)
}

struct Sessions;

impl Projection for Sessions {
    const NAME: &'static str = "genesis-sessions";
    const VERSION: u32 = 1;
    const KIND: &'static str = Session::KIND;
    type Event = SessionEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[OwnedTable::of::<SessionRow>("session_id")] }
    }

    fn keys(&self, fact: &Fact<SessionEvent>) -> Vec<RowKey> {
        vec![RowKey::of::<SessionRow>(&fact.aggregate_id.to_string())]
    }

    fn project(&self, fact: &Fact<SessionEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let session_id = fact.aggregate_id.to_string();
        let mut row = match (&fact.event, rows.find::<SessionRow>(&session_id)?) {
            (SessionEvent::Started(started), _) => SessionRow {
                session_id,
                version: fact.version,
                user_id: started.user_id.clone(),
                novel_id: started.novel_id.clone(),
                stage: 0,
                status: Stage::Concept.as_str().to_owned(),
                branch_of: started.branch_of.as_ref().map(|of| of.session_id.clone()),
                correlation_id: fact.correlation_id.as_ref().map(ToString::to_string),
                created_at: fact.occurred_at,
                updated_at: fact.occurred_at,
            },
            (_, Some(row)) => row,
            // Without those before it, a fact would make a session of nothing.
            (_, None) => return Err(rows.lost::<SessionRow>()),
        };
        match &fact.event {
            SessionEvent::StageCompleted(StageCompleted { next: Some(next), .. }) => {
                row.stage = next.number().into();
                row.status = next.as_str().to_owned();
            }
            SessionEvent::Finished(_) => row.status = Status::Finished.as_str().to_owned(),
            SessionEvent::Failed(_) => row.status = Status::Failed.as_str().to_owned(),
            _ => {}
        }
        (row.version, row.updated_at) = (fact.version, fact.occurred_at);
        rows.put(&row)
    }
}

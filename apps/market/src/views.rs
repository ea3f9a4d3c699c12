//! The views that the contract wants to read (O9): names, order and types of columns are frozen.

use towpath::ids::{ChannelName, HandlerName};
use towpath::name::EventName;
use towpath::tables::{Shows, SqlView, ViewRows, ViewType};

use crate::events::EventType;
use crate::topology::CONSUMERS;

/// The view over outbox rows.
pub(crate) const OUTBOX_EVENTS: &str = "outbox_events";
/// The view over what was handled.
pub(crate) const EVENT_CONSUME_LOG: &str = "event_consume_log";

/// Both views.
pub(crate) fn views() -> [SqlView; 2] {
    let channels = EventType::ALL.into_iter().map(|one| ChannelName::from_stored(one.channel())).collect();
    let handlers = CONSUMERS
        .into_iter()
        .map(|(handler, _, one)| (HandlerName::from_stored(handler), EventName::from_stored(one.as_str())))
        .collect();
    [
        SqlView {
            name: OUTBOX_EVENTS,
            rows: ViewRows::Outbox(channels),
            columns: &[
                ("id", Shows::RowNumber, None),
                ("event_id", Shows::EventId, Some(ViewType::Varchar64)),
                ("event_type", Shows::EventType, Some(ViewType::Varchar64)),
                ("aggregate_type", Shows::AggregateKind, None),
                ("aggregate_id", Shows::AggregateNumber, Some(ViewType::Number)),
                ("payload", Shows::Payload, Some(ViewType::Text)),
                ("status", Shows::Status, None),
                ("retry_count", Shows::RetryCount, None),
                ("next_retry_time", Shows::NextRetryAt, None),
                ("create_time", Shows::OccurredAt, Some(ViewType::Moment)),
                ("update_time", Shows::StatusChangedAt, Some(ViewType::Moment)),
            ],
        },
        SqlView {
            name: EVENT_CONSUME_LOG,
            rows: ViewRows::Handled(handlers),
            columns: &[
                ("id", Shows::RowNumber, Some(ViewType::Number)),
                ("event_id", Shows::EventId, Some(ViewType::Varchar64)),
                ("event_type", Shows::EventType, Some(ViewType::Varchar64)),
                ("consumer", Shows::Handler, None),
                ("consume_time", Shows::StatusChangedAt, Some(ViewType::Moment)),
            ],
        },
    ]
}

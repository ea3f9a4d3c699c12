//! Walks: each is a table in the order of a key, and a condition that no row of it should satisfy.
//!
//! A page is found by its last key. Then one statement answers the rows of it that are suspicious, so what is read at once is
//! bounded by the rows that are looked at and not by those that are found.

use chrono::{DateTime, Utc};
use towpath_core::ports::store::{StoreResult, Suspect, SuspectPage, Suspicion};
use uuid::Uuid;

use super::TOGETHER;
use crate::ops::leases::holder_is_gone;
use crate::schema::COMMAND_BOX;
use crate::sql::{Row, Session, Value, unreadable, values};

/// What a column of a key, or of what is told, holds.
#[derive(Clone, Copy)]
enum Part {
    Text,
    Long,
    Uuid,
    Time,
}

/// A walk.
struct Walk<'v> {
    table: &'static str,
    /// The index it goes by, where MySQL has to be told.
    index: Option<&'static str>,
    key: &'static [(&'static str, Part)],
    /// What the first page begins behind.
    first: Option<Vec<Value<'v>>>,
    /// Which rows of the table are walked over at all.
    only: String,
    only_values: Vec<Value<'v>>,
    /// What should be true for none of them.
    wrong: String,
    wrong_values: Vec<Value<'v>>,
    /// Which rows count for the totals.
    counted: Option<&'static str>,
    /// What is told: a name, a column and what it holds. The first ones are the target.
    told: &'static [(&'static str, &'static str, Part)],
    /// How many of those.
    target: usize,
    /// When a row came about.
    at: Option<&'static str>,
}

/// Rows that are walked over are `t`.
fn walk<'v>(session: &Session<'_>, suspicion: &'v Suspicion<'_>) -> Walk<'v> {
    let plain = |table, key, told, target, wrong: &str| Walk {
        table,
        index: None,
        key,
        first: None,
        only: "1 = 1".to_owned(),
        only_values: values![],
        wrong: wrong.to_owned(),
        wrong_values: values![],
        counted: None,
        told,
        target,
        at: None,
    };
    match suspicion {
        Suspicion::OrphanedCommands { since, pairs } => orphaned(*since, pairs),
        Suspicion::RowsAheadOfEvents => Walk {
            at: Some("updated_at"),
            ..plain(
                "aggregates",
                &[("aggregate_kind", Part::Text), ("aggregate_id", Part::Text)],
                &[
                    ("aggregateKind", "aggregate_kind", Part::Text),
                    ("aggregateId", "aggregate_id", Part::Text),
                    ("rowVersion", "version", Part::Long),
                ],
                2,
                "t.version > 0 AND NOT EXISTS (SELECT 1 FROM domain_events e WHERE e.aggregate_kind = t.aggregate_kind \
                 AND e.aggregate_id = t.aggregate_id AND e.aggregate_version = t.version)",
            )
        },
        Suspicion::EventsOutOfLine => Walk {
            at: Some("occurred_at"),
            ..plain(
                "domain_events",
                &[("event_id", Part::Uuid)],
                &[
                    ("aggregateKind", "aggregate_kind", Part::Text),
                    ("aggregateId", "aggregate_id", Part::Text),
                    ("version", "aggregate_version", Part::Long),
                    ("eventId", "event_id", Part::Uuid),
                ],
                2,
                "t.aggregate_version < 1 OR (t.aggregate_version > 1 AND NOT EXISTS (SELECT 1 FROM domain_events b \
                 WHERE b.aggregate_kind = t.aggregate_kind AND b.aggregate_id = t.aggregate_id \
                 AND b.aggregate_version = t.aggregate_version - 1)) OR NOT EXISTS (SELECT 1 FROM aggregates a \
                 WHERE a.aggregate_kind = t.aggregate_kind AND a.aggregate_id = t.aggregate_id \
                 AND a.version >= t.aggregate_version)",
            )
        },
        Suspicion::EventsWithoutPosition => Walk {
            at: Some("occurred_at"),
            ..plain(
                "domain_events",
                &[("event_id", Part::Uuid)],
                &[
                    ("eventId", "event_id", Part::Uuid),
                    ("eventType", "event_type", Part::Text),
                    ("aggregateKind", "aggregate_kind", Part::Text),
                    ("aggregateId", "aggregate_id", Part::Text),
                    ("version", "aggregate_version", Part::Long),
                ],
                1,
                // What waits is one list that is read once, and has no index by event.
                "NOT EXISTS (SELECT 1 FROM event_positions p WHERE p.event_id = t.event_id) \
                 AND t.event_id NOT IN (SELECT w.event_id FROM event_pending w)",
            )
        },
        Suspicion::PositionGaps => plain(
            "event_positions",
            &[("position", Part::Long)],
            &[("position", "position", Part::Long), ("eventId", "event_id", Part::Uuid)],
            1,
            "NOT EXISTS (SELECT 1 FROM domain_events e WHERE e.event_id = t.event_id) OR (t.position > 1 AND NOT EXISTS \
             (SELECT 1 FROM event_positions b WHERE b.position = t.position - 1)) \
             OR t.position > (SELECT h.last_position FROM log_head h WHERE h.log_id = 1)",
        ),
        Suspicion::HeadWithoutPosition => plain(
            "log_head",
            &[("log_id", Part::Long)],
            &[("position", "last_position", Part::Long)],
            1,
            "t.last_position > 0 AND NOT EXISTS (SELECT 1 FROM event_positions p WHERE p.position = t.last_position)",
        ),
        Suspicion::OutboxWithoutEvent => Walk {
            at: Some("status_changed_at"),
            ..plain(
                "event_outbox",
                &[("outbox_id", Part::Long)],
                &[
                    ("outboxId", "outbox_id", Part::Long),
                    ("channel", "channel", Part::Text),
                    ("eventId", "event_id", Part::Uuid),
                    ("status", "status", Part::Text),
                ],
                1,
                "NOT EXISTS (SELECT 1 FROM domain_events e WHERE e.event_id = t.event_id)",
            )
        },
        Suspicion::InboxWithoutEvent { handlers } => Walk {
            at: Some("status_changed_at"),
            only: match handlers.len() {
                0 => "1 = 0".to_owned(),
                count => format!("t.handler IN ({})", vec!["?"; count].join(", ")),
            },
            only_values: handlers.iter().map(|handler| Value::from(handler.as_str())).collect(),
            ..plain(
                "inbox",
                &[("event_id", Part::Uuid), ("handler", Part::Text)],
                &[
                    ("eventId", "event_id", Part::Uuid),
                    ("handler", "handler", Part::Text),
                    ("status", "status", Part::Text),
                ],
                2,
                "NOT EXISTS (SELECT 1 FROM domain_events e WHERE e.event_id = t.event_id)",
            )
        },
        Suspicion::ParkedWithoutHead => Walk {
            at: Some("parked_at"),
            ..plain(
                "parked_lanes",
                &[("channel", Part::Text), ("lane", Part::Long)],
                &[
                    ("channel", "channel", Part::Text),
                    ("lane", "lane", Part::Long),
                    ("headOutboxId", "head_outbox_id", Part::Long),
                ],
                2,
                "NOT EXISTS (SELECT 1 FROM event_outbox o WHERE o.outbox_id = t.head_outbox_id \
                 AND o.channel = t.channel AND o.status IN ('NEW', 'RETRY', 'FAILED'))",
            )
        },
        Suspicion::TrackersAhead => plain(
            "channels",
            &[("channel_id", Part::Uuid)],
            &[("channel", "name", Part::Text), ("position", "position", Part::Long)],
            1,
            "t.deleted_at IS NULL AND t.position > (SELECT h.last_position FROM log_head h WHERE h.log_id = 1)",
        ),
        Suspicion::ProjectionsAhead => plain(
            "projections",
            &[("projection", Part::Text), ("aggregate_kind", Part::Text), ("aggregate_id", Part::Text)],
            &[
                ("projection", "projection", Part::Text),
                ("aggregateKind", "aggregate_kind", Part::Text),
                ("aggregateId", "aggregate_id", Part::Text),
                ("version", "version", Part::Long),
            ],
            3,
            // The row that stands for all aggregates is about none.
            "t.aggregate_id <> '' AND t.version > COALESCE((SELECT a.version FROM aggregates a \
             WHERE a.aggregate_kind = t.aggregate_kind AND a.aggregate_id = t.aggregate_id), 0)",
        ),
        Suspicion::AbandonedCommands => {
            let (status, open) =
                session.dialect().partial(const { COMMAND_BOX.index("command_box_open") }, "t.");
            let gone = holder_is_gone(session, "t");
            Walk {
                // Its holder may be gone for a moment only, however long ago it was taken: it is always looked at again.
                at: None,
                only: format!("{status} = 'PROCESSING'{open}"),
                ..plain(
                    "command_box",
                    &[("command_id", Part::Text)],
                    &[
                        ("commandId", "command_id", Part::Text),
                        ("commandType", "command_type", Part::Text),
                        ("claimedById", "claimed_by_id", Part::Text),
                    ],
                    1,
                    &format!("t.status = 'PROCESSING' AND (t.claimed_by_id IS NULL OR ({gone}))"),
                )
            }
        }
        Suspicion::AbandonedTimers => {
            let gone = holder_is_gone(session, "t");
            Walk {
                at: None,
                only: "t.claimed_by_id IS NOT NULL".to_owned(),
                ..plain(
                    "timers",
                    &[("timer_id", Part::Uuid)],
                    &[
                        ("timerId", "timer_id", Part::Uuid),
                        ("commandType", "command_type", Part::Text),
                        ("claimedById", "claimed_by_id", Part::Text),
                    ],
                    1,
                    &format!("t.state = 'running' AND {gone}"),
                )
            }
        }
        Suspicion::AbandonedTasks => Walk {
            at: None,
            only: "t.status = 'running'".to_owned(),
            ..plain(
                "task_box",
                &[("task_id", Part::Uuid)],
                &[
                    ("taskId", "task_id", Part::Uuid),
                    ("taskType", "task_type", Part::Text),
                    ("worker", "worker", Part::Text),
                ],
                1,
                &format!(
                    "t.status = 'running' AND (t.heartbeat_due_at IS NULL OR t.heartbeat_due_at < {})",
                    session.dialect().now_plus("-t.heartbeat_micros")
                ),
            )
        },
        Suspicion::StatesWithoutHistory { since } => Walk {
            at: Some("updated_at"),
            wrong_values: values![*since],
            ..plain(
                "aggregates",
                &[("aggregate_kind", Part::Text), ("aggregate_id", Part::Text)],
                &[
                    ("aggregateKind", "aggregate_kind", Part::Text),
                    ("aggregateId", "aggregate_id", Part::Text),
                    ("state", "state", Part::Text),
                ],
                2,
                // One without a history was folded, and not moved.
                "t.updated_at >= ? AND t.state IS NOT NULL AND (SELECT s.to_state FROM state_events s \
                 WHERE s.aggregate_kind = t.aggregate_kind AND s.aggregate_id = t.aggregate_id \
                 ORDER BY s.aggregate_version DESC LIMIT 1) <> t.state",
            )
        },
        Suspicion::ChangedSince { kinds, since } => Walk {
            at: Some("updated_at"),
            only: match kinds.len() {
                0 => "1 = 0".to_owned(),
                count => format!("t.aggregate_kind IN ({})", vec!["?"; count].join(", ")),
            },
            only_values: kinds.iter().map(|kind| Value::from(kind.as_str())).collect(),
            wrong_values: values![*since],
            ..plain(
                "aggregates",
                &[("aggregate_kind", Part::Text), ("aggregate_id", Part::Text)],
                &[
                    ("aggregateKind", "aggregate_kind", Part::Text),
                    ("aggregateId", "aggregate_id", Part::Text),
                ],
                2,
                "t.updated_at >= ?",
            )
        },
        Suspicion::BrokenHistories { since } => Walk {
            at: Some("created_at"),
            wrong_values: values![*since],
            ..plain(
                "state_events",
                &[
                    ("aggregate_kind", Part::Text),
                    ("aggregate_id", Part::Text),
                    ("aggregate_version", Part::Long),
                ],
                &[
                    ("aggregateKind", "aggregate_kind", Part::Text),
                    ("aggregateId", "aggregate_id", Part::Text),
                    ("version", "aggregate_version", Part::Long),
                    ("fromState", "from_state", Part::Text),
                    ("toState", "to_state", Part::Text),
                ],
                3,
                "t.created_at >= ? AND (SELECT s.to_state FROM state_events s WHERE s.aggregate_kind = t.aggregate_kind \
                 AND s.aggregate_id = t.aggregate_id AND s.aggregate_version < t.aggregate_version \
                 ORDER BY s.aggregate_version DESC LIMIT 1) <> COALESCE(t.from_state, '')",
            )
        },
    }
}

/// The condition that an event of the type is there which the command has led to.
pub(super) const RESULT_IS_THERE: &str = "EXISTS (SELECT 1 FROM domain_events e WHERE e.aggregate_kind = t.aggregate_kind \
     AND e.aggregate_id = t.aggregate_id AND e.aggregate_version > t.aggregate_version - t.event_count \
     AND e.aggregate_version <= t.aggregate_version AND e.causation_id = t.command_id AND e.event_type = ";

fn orphaned<'v>(since: DateTime<Utc>, pairs: &'v [(String, String)]) -> Walk<'v> {
    let marks = vec!["?"; pairs.len()].join(", ");
    let declared = format!("CASE t.command_type{} END", " WHEN ? THEN ?".repeat(pairs.len()));
    let mut wrong_values: Vec<Value<'v>> =
        pairs.iter().map(|(command, _)| Value::from(command.as_str())).collect();
    wrong_values.extend(pairs.iter().flat_map(|(command, event)| values![command.as_str(), event.as_str()]));
    Walk {
        table: "command_box",
        index: Some("command_box_received"),
        key: &[("received_at", Part::Time), ("command_id", Part::Text)],
        first: Some(values![since, ""]),
        only: "1 = 1".to_owned(),
        only_values: values![],
        wrong: if pairs.is_empty() {
            "1 = 0".to_owned()
        } else {
            format!(
                "t.status = 'COMPLETED' AND COALESCE(t.event_count, 1) > 0 AND t.command_type IN ({marks}) \
                 AND NOT {RESULT_IS_THERE}{declared})"
            )
        },
        wrong_values,
        counted: Some("t.status = 'COMPLETED'"),
        told: &[
            ("commandId", "command_id", Part::Text),
            ("commandType", "command_type", Part::Text),
            ("aggregateKind", "aggregate_kind", Part::Text),
            ("aggregateId", "aggregate_id", Part::Text),
            ("aggregateVersion", "aggregate_version", Part::Long),
        ],
        target: 1,
        at: Some("status_changed_at"),
    }
}

impl Walk<'_> {
    fn columns(&self) -> Vec<String> {
        self.key.iter().map(|(column, _)| format!("t.{column}")).collect()
    }

    fn from(&self, session: &Session<'_>) -> String {
        let index = self.index.map(|index| session.dialect().by_index(index)).unwrap_or_default();
        format!("{} t{index}", self.table)
    }

    fn selected(&self) -> String {
        let keys = self.key.iter().enumerate().map(|(at, (column, _))| format!("t.{column} AS k{at}"));
        let told = self.told.iter().enumerate().map(|(at, (_, column, _))| format!("t.{column} AS d{at}"));
        let moment = self.at.iter().map(|column| format!("t.{column} AS came_at"));
        keys.chain(told).chain(moment).collect::<Vec<_>>().join(", ")
    }

    fn read(&self, row: &Row) -> StoreResult<Suspect> {
        let mut details = Vec::new();
        for (at, (name, _, part)) in self.told.iter().enumerate() {
            details.push((*name, text_of(row, &format!("d{at}"), *part)?));
        }
        let target: Vec<&str> = details.iter().take(self.target).map(|(_, value)| value.as_str()).collect();
        Ok(Suspect {
            key: self.read_key(row)?,
            target: target.join("/"),
            at: self.at.map(|_| row.time_or_null("came_at")).transpose()?.flatten(),
            details,
        })
    }

    fn read_key(&self, row: &Row) -> StoreResult<Vec<String>> {
        let parts = self.key.iter().enumerate();
        parts.map(|(at, (_, part))| text_of(row, &format!("k{at}"), *part)).collect()
    }

    /// A key as values.
    fn values_of(&self, key: &[String]) -> StoreResult<Vec<Value<'static>>> {
        if key.len() != self.key.len() {
            return Err(unreadable(self.table, "a key of a check has another length"));
        }
        self.key.iter().zip(key).map(|((_, part), text)| value_of(*part, text)).collect()
    }
}

fn text_of(row: &Row, column: &str, part: Part) -> StoreResult<String> {
    Ok(match part {
        Part::Text => row.text_or_null(column)?.unwrap_or_default(),
        Part::Long => row.long_or_null(column)?.map(|number| number.to_string()).unwrap_or_default(),
        Part::Uuid => row.uuid(column)?.to_string(),
        Part::Time => row.time(column)?.timestamp_micros().to_string(),
    })
}

fn value_of(part: Part, text: &str) -> StoreResult<Value<'static>> {
    let wrong = |error: &dyn std::fmt::Display| unreadable("a key of a check", error.to_string());
    Ok(match part {
        Part::Text => Value::from(text.to_owned()),
        Part::Long => Value::from(text.parse::<i64>().map_err(|error| wrong(&error))?),
        Part::Uuid => Value::from(Uuid::parse_str(text).map_err(|error| wrong(&error))?),
        Part::Time => {
            let micros = text.parse::<i64>().map_err(|error| wrong(&error))?;
            let moment = DateTime::<Utc>::from_timestamp_micros(micros);
            Value::from(moment.ok_or_else(|| wrong(&"it is no moment"))?)
        }
    })
}

/// The condition that the key is beyond one, or up to it, and its values.
fn compared<'v>(
    session: &Session<'_>,
    walk: &Walk<'v>,
    than: &str,
    key: &[Value<'v>],
) -> (String, Vec<Value<'v>>) {
    let (condition, which) = session.dialect().compared(&walk.columns(), than);
    (condition, which.into_iter().filter_map(|at| key.get(at).cloned()).collect())
}

/// One page of a walk.
pub(super) async fn page(
    session: &mut Session<'_>,
    suspicion: &Suspicion<'_>,
    behind: Option<&[String]>,
    limit: u32,
) -> StoreResult<SuspectPage> {
    let mut walk = walk(session, suspicion);
    let low: Option<Vec<Value<'_>>> = match behind {
        Some(key) => Some(walk.values_of(key)?),
        None => walk.first.take(),
    };
    let (mut range, mut keys) = (walk.only.clone(), walk.only_values.clone());
    if let Some(low) = &low {
        let (condition, low) = compared(session, &walk, ">", low);
        range = format!("{range} AND {condition}");
        keys.extend(low);
    }
    let (from, columns) = (walk.from(session), walk.columns().join(", "));
    let named = walk.key.iter().enumerate().map(|(at, (column, _))| format!("t.{column} AS k{at}"));
    let sql = format!(
        "SELECT {} FROM {from} WHERE {range} ORDER BY {columns} LIMIT 1 OFFSET {}",
        named.collect::<Vec<_>>().join(", "),
        limit.saturating_sub(1)
    );
    let last = session.row("checks.page", &sql, keys.clone()).await?;
    let next = last.map(|row| walk.read_key(&row)).transpose()?;
    if let Some(next) = &next {
        let high = walk.values_of(next)?;
        let (condition, high) = compared(session, &walk, "<=", &high);
        range = format!("{range} AND {condition}");
        keys.extend(high);
    }
    let mut counted = 0;
    if let Some(which) = walk.counted {
        let sql = format!("SELECT COUNT(*) AS counted FROM {from} WHERE {range} AND {which}");
        let row = session.row("checks.counted", &sql, keys.clone()).await?;
        counted = row.map_or(Ok(0), |row| row.count("counted"))?;
    }
    let sql = format!("SELECT {} FROM {from} WHERE {range} AND ({})", walk.selected(), walk.wrong);
    keys.extend(walk.wrong_values.iter().cloned());
    let rows = session.rows("checks.suspects", &sql, keys).await?;
    let suspects = rows.iter().map(|row| walk.read(row)).collect::<StoreResult<_>>()?;
    Ok(SuspectPage { suspects, next, counted })
}

/// Which of these are still suspicious.
pub(super) async fn again(
    session: &mut Session<'_>,
    suspicion: &Suspicion<'_>,
    keys: &[Vec<String>],
) -> StoreResult<Vec<Suspect>> {
    let walk = walk(session, suspicion);
    let one: Vec<String> = walk.columns().iter().map(|column| format!("{column} = ?")).collect();
    let one = format!("({})", one.join(" AND "));
    let mut found = Vec::new();
    for keys in keys.chunks(TOGETHER) {
        let mut sought = Vec::new();
        for key in keys {
            sought.extend(walk.values_of(key)?);
        }
        sought.extend(walk.wrong_values.iter().cloned());
        let sql = format!(
            "SELECT {} FROM {} t WHERE ({}) AND ({})",
            walk.selected(),
            walk.table,
            vec![one.as_str(); keys.len()].join(" OR "),
            walk.wrong
        );
        for row in session.rows("checks.again", &sql, sought).await? {
            found.push(walk.read(&row)?);
        }
    }
    Ok(found)
}

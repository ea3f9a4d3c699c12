//! Hive's own tables: the read models, and alerts.

use towpath::tables::{Column, ColumnKind, Index, Table};

use ColumnKind::{Json, Long, Name, Text, Time};

const fn column(name: &'static str, kind: ColumnKind) -> Column {
    Column::new(name, kind)
}

const fn nullable(name: &'static str, kind: ColumnKind) -> Column {
    Column::nullable(name, kind)
}

/// The status view: a row per service.
pub const SERVICES: Table = Table::new(
    "hive_services",
    &[
        column("service_id", Name(128)),
        column("version", Long),
        column("namespace", Name(63)),
        column("name", Name(63)),
        column("status", Name(16)),
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        column("ready", Long),
        column("desired_spec_hash", Name(64)),
        nullable("observed_spec_hash", Name(64)),
        column("service", Json),
        column("created_at", Time),
        column("updated_at", Time),
    ],
    &["service_id"],
    &[Index::new("hive_services_status", &["status", "service_id"])],
);

/// The revisions that were seen.
pub const REVISIONS: Table = Table::new(
    "hive_revisions",
    &[
        column("service_id", Name(128)),
        column("revision", Name(128)),
        nullable("image", Text),
        nullable("spec_hash", Name(64)),
        nullable("created_at", Time),
        column("seen_at", Time),
    ],
    &["service_id", "revision"],
    &[],
);

/// Where requests go: a row per service.
pub const ROUTES: Table = Table::new(
    "hive_routes",
    &[
        column("service_id", Name(128)),
        column("version", Long),
        nullable("url", Text),
        column("traffic", Json),
        column("aligned_at", Time),
    ],
    &["service_id"],
    &[],
);

/// Every specification that was accepted.
pub const SPECS: Table = Table::new(
    "hive_specs",
    &[
        column("service_id", Name(128)),
        column("spec_version", Long),
        column("spec_hash", Name(64)),
        column("spec", Json),
        column("persisted_at", Time),
    ],
    &["service_id", "spec_version"],
    &[],
);

/// Who asked for what.
pub const AUDIT: Table = Table::new(
    "hive_audit",
    &[
        column("event_id", Name(64)),
        column("service_id", Name(128)),
        column("action", Name(16)),
        nullable("requested_by", Name(128)),
        column("requested_at", Time),
    ],
    &["event_id"],
    &[Index::new("hive_audit_service", &["service_id", "event_id"])],
);

/// Namespaces of the platform.
pub const NAMESPACES: Table = Table::new(
    "hive_namespaces",
    &[
        column("namespace", Name(128)),
        column("version", Long),
        column("present", Long),
        column("validated_at", Time),
    ],
    &["namespace"],
    &[],
);

/// What an operator should know of: a row per outage of the platform, and per deletion that takes too long.
pub const ALERTS: Table = Table::new(
    "hive_alerts",
    &[
        column("alert", Name(64)),
        // Of which service; empty when it is the platform's.
        column("service_id", Name(128)),
        column("raised_at", Time),
        column("code", Name(64)),
        column("message", Text),
        nullable("cleared_at", Time),
    ],
    &["alert", "service_id", "raised_at"],
    &[],
);

/// All of them.
pub const TABLES: [Table; 7] = [SERVICES, REVISIONS, ROUTES, SPECS, AUDIT, NAMESPACES, ALERTS];

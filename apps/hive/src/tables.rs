//! Hive's own tables: the read models. `alerts` has one more.

#![allow(missing_docs, reason = "a field is a column; its name says what it holds")]

use chrono::{DateTime, Utc};
use towpath::tables::{Json, Row, Table};

use crate::alerts::Alert;
use crate::gateway::RouteTarget;
use crate::service::Service;
use crate::spec::ServiceSpec;

/// The status view: a row per service.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "hive_services", index(hive_services_status(status, service_id)))]
pub struct ServiceRow {
    #[row(key, name = 128)]
    pub service_id: String,
    pub version: u64,
    #[row(name = 63)]
    pub namespace: String,
    #[row(name = 63)]
    pub name: String,
    #[row(name = 16)]
    pub status: String,
    pub status_changed_at: DateTime<Utc>,
    #[row(name = 128)]
    pub status_reason: Option<String>,
    pub status_message: Option<String>,
    pub ready: bool,
    #[row(name = 64)]
    pub desired_spec_hash: String,
    #[row(name = 64)]
    pub observed_spec_hash: Option<String>,
    pub service: Json<Service>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// A revision that was seen.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "hive_revisions")]
pub struct RevisionRow {
    #[row(key, name = 128)]
    pub service_id: String,
    #[row(key, name = 128)]
    pub revision: String,
    pub image: Option<String>,
    #[row(name = 64)]
    pub spec_hash: Option<String>,
    pub created_at: Option<DateTime<Utc>>,
    pub seen_at: DateTime<Utc>,
}

/// Where requests go: a row per service.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "hive_routes")]
pub struct RouteRow {
    #[row(key, name = 128)]
    pub service_id: String,
    pub version: u64,
    pub url: Option<String>,
    pub traffic: Json<Vec<RouteTarget>>,
    pub aligned_at: DateTime<Utc>,
}

/// A specification that was accepted.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "hive_specs")]
pub struct SpecRow {
    #[row(key, name = 128)]
    pub service_id: String,
    #[row(key)]
    pub spec_version: u64,
    #[row(name = 64)]
    pub spec_hash: String,
    pub spec: Json<ServiceSpec>,
    pub persisted_at: DateTime<Utc>,
}

/// Who asked for what.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "hive_audit", index(hive_audit_service(service_id, event_id)))]
pub struct AuditRow {
    #[row(key, name = 64)]
    pub event_id: String,
    #[row(name = 128)]
    pub service_id: String,
    #[row(name = 16)]
    pub action: String,
    #[row(name = 128)]
    pub requested_by: Option<String>,
    pub requested_at: DateTime<Utc>,
}

/// A namespace of the platform.
#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "hive_namespaces")]
pub struct NamespaceRow {
    #[row(key, name = 128)]
    pub namespace: String,
    pub version: u64,
    pub present: bool,
    pub validated_at: DateTime<Utc>,
}

/// All of them.
pub const TABLES: [Table; 7] = [
    *ServiceRow::TABLE,
    *RevisionRow::TABLE,
    *RouteRow::TABLE,
    *SpecRow::TABLE,
    *AuditRow::TABLE,
    *NamespaceRow::TABLE,
    *Alert::TABLE,
];

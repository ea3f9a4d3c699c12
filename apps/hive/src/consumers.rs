//! Who takes hive's facts, and what follows (H10, H11, H13). `docs/hive.md` has the whole table.

use std::time::Duration;

use towpath::ids::AggregateId;
use towpath::observer::ObserverWake;
use towpath::tables::{OwnTables, Value};
use towpath::{Batch, Consumer, Delivery, HandlerError, IncomingEvent, Next};

use crate::knative::{KnativeServiceDeletedObserved, KnativeServiceObserved};
use crate::record::{RecordCommand, ServiceAudited, ServicePersisted, ServiceRecord};
use crate::service::{
    CreationRequested, DeletionRequested, Service, ServiceCommand, SpecAccepted, TakeObservation,
    UpdateRequested,
};
use crate::tables::{AUDIT, NAMESPACES, REVISIONS, ROUTES, SERVICES, SPECS, TARGETS};
use crate::views::{Pages, ServiceRow};

/// How many facts are taken into the read models together.
const TOGETHER: usize = 64;

/// Keeps the read models, and what is to be looked at.
pub(crate) fn views(channel: &str, stale: Duration, wake: ObserverWake) -> Consumer {
    Consumer::of(channel).in_order().batches("hive-views", TOGETHER, move |batch| {
        let wake = wake.clone();
        async move { take_into_views(batch, stale, wake).await }
    })
}

/// Takes what was observed to the services.
pub(crate) fn observations(channel: &str) -> Consumer {
    Consumer::of(channel)
        .only(["KnativeServiceObserved", "KnativeServiceDeletedObserved"])
        .in_order()
        .each("hive-observations", take_observation)
}

/// Keeps specifications, and who asked for what.
pub(crate) fn records(channel: &str) -> Consumer {
    Consumer::of(channel).in_order().each("hive-records", keep_record)
}

async fn take_into_views(
    mut batch: Batch,
    stale: Duration,
    wake: ObserverWake,
) -> Result<Next, HandlerError> {
    let events: Vec<&IncomingEvent> = batch.deliveries.iter().map(|delivered| &delivered.event).collect();
    let ids = Pages::services_of(events.iter().copied());
    let mut tables = batch.tx.own_tables();
    let mut pages = Pages::knowing(known(&mut tables, &ids).await?);
    for event in events {
        pages.take(event)?;
    }
    write(&mut tables, &pages, stale).await?;
    if !pages.urgent.is_empty() {
        batch.tx.wake_after_commit(&wake);
    }
    Ok(batch.handled())
}

/// The rows of these services as they are, locked until the transaction ends.
async fn known(
    tables: &mut OwnTables<'_>,
    ids: &[String],
) -> Result<std::collections::BTreeMap<String, ServiceRow>, HandlerError> {
    if ids.is_empty() {
        return Ok(Default::default());
    }
    // A rebuild does the same: who comes second sees what the first has written.
    let mut values = Vec::new();
    let chosen = OwnTables::one_of("service_id", ids, &mut values);
    let lock = format!("UPDATE hive_services SET version = version WHERE {chosen}");
    tables.execute("hive.lock", &lock, values).await?;
    let mut values: Vec<Value<'_>> = Vec::new();
    let chosen = OwnTables::one_of("s.service_id", ids, &mut values);
    let sql = format!(
        "SELECT s.service_id, s.version, s.service, s.created_at, s.updated_at, s.status_changed_at, \
         t.wanted, t.cause_id, t.flow_id \
         FROM hive_services s LEFT JOIN hive_targets t ON t.service_id = s.service_id WHERE {chosen}"
    );
    let records = tables.rows("hive.known", &sql, values).await?;
    let rows = records.iter().map(|record| ServiceRow::read(record).map(|row| (row.service_id.clone(), row)));
    rows.collect()
}

/// Writes rows, a statement per table.
pub(crate) async fn write(
    tables: &mut OwnTables<'_>,
    pages: &Pages,
    stale: Duration,
) -> Result<(), HandlerError> {
    let everything = [
        ("hive.put.services", &SERVICES, pages.service_rows()?),
        ("hive.put.targets", &TARGETS, pages.target_rows(stale)?),
        ("hive.put.revisions", &REVISIONS, pages.revision_rows()),
        ("hive.put.routes", &ROUTES, pages.route_rows()?),
        ("hive.put.specs", &SPECS, pages.spec_rows()?),
        ("hive.put.audit", &AUDIT, pages.audit_rows()),
        ("hive.put.namespaces", &NAMESPACES, pages.namespace_rows()),
    ];
    for (name, table, rows) in everything {
        if !rows.is_empty() {
            tables.put(name, table, rows).await?;
        }
    }
    let gone = pages.gone();
    if !gone.is_empty() {
        let mut values = Vec::new();
        let chosen = OwnTables::one_of("service_id", &gone, &mut values);
        let sql = format!("DELETE FROM hive_targets WHERE {chosen}");
        tables.execute("hive.forget.targets", &sql, values).await?;
    }
    Ok(())
}

async fn take_observation(mut delivery: Delivery) -> Result<Next, HandlerError> {
    match delivery.event.event_type.as_str() {
        "KnativeServiceObserved" => {
            let KnativeServiceObserved { service_id, snapshot, failure_threshold, .. } =
                delivery.payload()?;
            let taken = TakeObservation { snapshot, failure_threshold };
            delivery.send::<Service>(service_id, ServiceCommand::TakeObservation(taken)).await?;
        }
        "KnativeServiceDeletedObserved" => {
            let KnativeServiceDeletedObserved { service_id, snapshot, .. } = delivery.payload()?;
            delivery.send::<Service>(service_id, ServiceCommand::ConfirmDeletion { snapshot }).await?;
        }
        _ => {}
    }
    Ok(delivery.handled())
}

async fn keep_record(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let Some(key) = delivery.event.aggregate.clone() else { return Ok(delivery.handled()) };
    let requested = match delivery.event.event_type.as_str() {
        "service.creation.requested" => {
            Some(("create", delivery.payload::<CreationRequested>()?.requested_by))
        }
        "service.update.requested" => Some(("update", delivery.payload::<UpdateRequested>()?.requested_by)),
        "service.deletion.requested" => {
            Some(("delete", delivery.payload::<DeletionRequested>()?.requested_by))
        }
        "service.spec.accepted" => {
            let accepted: SpecAccepted = delivery.payload()?;
            let persisted = ServicePersisted {
                service_id: key.id.to_string(),
                spec: accepted.spec,
                spec_hash: accepted.desired_spec_hash,
                spec_version: accepted.spec_version,
            };
            send_record(&mut delivery, &key.id, RecordCommand::Persist(persisted)).await?;
            None
        }
        _ => None,
    };
    if let Some((action, requested_by)) = requested {
        let audited = ServiceAudited {
            service_id: key.id.to_string(),
            action: action.to_owned(),
            event_id: delivery.event.event_id.to_string(),
            requested_by,
            requested_at: delivery.event.occurred_at.unwrap_or_default(),
        };
        send_record(&mut delivery, &key.id, RecordCommand::Audit(audited)).await?;
    }
    Ok(delivery.handled())
}

async fn send_record(
    delivery: &mut Delivery,
    service_id: &AggregateId,
    command: RecordCommand,
) -> Result<(), HandlerError> {
    delivery.send::<ServiceRecord>(service_id.as_str(), command).await
}

//! Who takes hive's facts, and what follows (H10, H11, H13). `docs/hive.md` has the whole table.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath::ids::AggregateId;
use towpath::tables::{OwnTables, Value};
use towpath::{Batch, Consumer, Delivery, HandlerError, IncomingEvent, Next, Tx};

use crate::alerts;
use crate::hive::OBSERVER;
use crate::knative::{KnativeServiceDeletedObserved, KnativeServiceEvent, KnativeServiceObserved};
use crate::record::{RecordCommand, ServiceAudited, ServicePersisted, ServiceRecord};
use crate::service::{
    CreationRequested, DeletionRequested, Service, ServiceCommand, ServiceEvent, SpecAccepted,
    TakeObservation, UpdateRequested,
};
use crate::tables::{AUDIT, NAMESPACES, REVISIONS, ROUTES, SERVICES, SPECS};
use crate::views::{Pages, ServiceRow};

/// How many facts are taken into the read models together, and how many rows a statement names.
const TOGETHER: usize = 64;

/// Keeps the read models, and what is to be looked at.
pub(crate) fn views(channel: &str, stale: Duration) -> Consumer {
    Consumer::of(channel)
        .in_order()
        .batches("hive-views", TOGETHER, move |batch| async move { take_into_views(batch, stale).await })
}

/// Takes what was observed to the services.
pub(crate) fn observations(channel: &str) -> Consumer {
    Consumer::of(channel)
        .only([KnativeServiceEvent::OBSERVED, KnativeServiceEvent::DELETED_OBSERVED])
        .in_order()
        .each("hive-observations", take_observation)
}

/// Keeps specifications, and who asked for what.
pub(crate) fn records(channel: &str) -> Consumer {
    Consumer::of(channel).in_order().each("hive-records", keep_record)
}

async fn take_into_views(mut batch: Batch, stale: Duration) -> Result<Next, HandlerError> {
    let events: Vec<&IncomingEvent> = batch.deliveries.iter().map(|delivered| &delivered.event).collect();
    let ids = Pages::services_of(events.iter().copied());
    let mut pages = Pages::knowing(known(&mut batch.tx, &ids).await?);
    for event in events {
        // A fact that comes before those that it follows, or whose row is gone, would make a service of nothing.
        if let Some(gap) = pages.gap_before(event) {
            for missed in batch.tx.events_of(&gap.aggregate, gap.after, gap.count).await? {
                pages.take(&IncomingEvent::from(missed.envelope))?;
            }
        }
        pages.take(event)?;
    }
    write(&mut batch.tx.own_tables(), &pages).await?;
    batch.tx.watch(OBSERVER, &pages.watches(stale)?).await?;
    batch.tx.unwatch(OBSERVER, &pages.gone()).await?;
    Ok(batch.handled())
}

/// The rows of these services as they are, locked until the transaction ends.
async fn known(tx: &mut Tx, ids: &[String]) -> Result<BTreeMap<String, ServiceRow>, HandlerError> {
    if ids.is_empty() {
        return Ok(Default::default());
    }
    // A rebuild locks the same: who comes second sees what the first has written.
    let mut values: Vec<Value<'_>> = Vec::new();
    let chosen = OwnTables::one_of("service_id", ids, &mut values);
    let sql = format!(
        "SELECT service_id, version, service, created_at, updated_at, status_changed_at \
         FROM hive_services WHERE {chosen}"
    );
    let mut rows = BTreeMap::new();
    for record in tx.own_tables().locked_rows("hive.known", &sql, values).await? {
        let row = ServiceRow::read(&record)?;
        rows.insert(row.service_id.clone(), row);
    }
    for watched in tx.watched(OBSERVER, ids).await? {
        if let Some(row) = rows.get_mut(&watched.subject_id) {
            row.read_kept(watched)?;
        }
    }
    Ok(rows)
}

/// Writes rows, a statement per table.
pub(crate) async fn write(tables: &mut OwnTables<'_>, pages: &Pages) -> Result<(), HandlerError> {
    let everything = [
        ("hive.put.revisions", &REVISIONS, pages.revision_rows()),
        ("hive.put.specs", &SPECS, pages.spec_rows()?),
        ("hive.put.audit", &AUDIT, pages.audit_rows()),
    ];
    // A fact that is taken in late, from the dead letters or by a rebuild, must not undo a newer one.
    let newest = [
        ("hive.put.services", &SERVICES, pages.service_rows()?),
        ("hive.put.routes", &ROUTES, pages.route_rows()?),
        ("hive.put.namespaces", &NAMESPACES, pages.namespace_rows()),
    ];
    for (name, table, rows) in everything {
        if !rows.is_empty() {
            tables.put(name, table, rows).await?;
        }
    }
    for (name, table, rows) in newest {
        if !rows.is_empty() {
            tables.put_newer(name, table, "version", rows).await?;
        }
    }
    let last = pages.services.values().map(|row| row.updated_at).max().unwrap_or_default();
    for gone in pages.gone().chunks(TOGETHER) {
        alerts::are_gone(tables, gone, last).await?;
    }
    Ok(())
}

async fn take_observation(mut delivery: Delivery) -> Result<Next, HandlerError> {
    match delivery.event.event_type.as_str() {
        KnativeServiceEvent::OBSERVED => {
            let KnativeServiceObserved { service_id, snapshot, spec_version, failure_threshold, .. } =
                delivery.payload()?;
            let observation = delivery.event.aggregate_version.unwrap_or_default();
            let taken = TakeObservation { snapshot, observation, spec_version, failure_threshold };
            delivery.send::<Service>(service_id, ServiceCommand::TakeObservation(taken)).await?;
        }
        KnativeServiceEvent::DELETED_OBSERVED => {
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
        ServiceEvent::CREATION_REQUESTED => {
            Some(("create", delivery.payload::<CreationRequested>()?.requested_by))
        }
        ServiceEvent::UPDATE_REQUESTED => {
            Some(("update", delivery.payload::<UpdateRequested>()?.requested_by))
        }
        ServiceEvent::DELETION_REQUESTED => {
            Some(("delete", delivery.payload::<DeletionRequested>()?.requested_by))
        }
        ServiceEvent::SPEC_ACCEPTED => {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is a test's verdict")]

    use chrono::Utc;
    use towpath::{Scratch, SqlStore};

    use super::*;
    use crate::service::ServiceStatus;
    use crate::tables::TABLES;

    /// More than a statement may have parameters on SQLite, the smallest: as a rebuild has them.
    #[tokio::test]
    async fn as_many_services_as_there_are_can_be_gone() {
        let folder = std::env::temp_dir().join("towpath.db");
        let scratch = Scratch::make(&format!("sqlite://{}", folder.display())).await.unwrap();
        let store = SqlStore::connect(scratch.url()).await.unwrap();
        store.create_tables(&TABLES).await.unwrap();
        let now = Utc::now();
        let mut pages = Pages::default();
        for number in 0..33_000 {
            let service = Service { status: Some(ServiceStatus::Deleted), ..Service::default() };
            let service_id = format!("shop.cart-{number}");
            let row = ServiceRow {
                service_id: service_id.clone(),
                version: 1,
                service,
                created_at: now,
                updated_at: now,
                status_changed_at: now,
                wanted: None,
                cause: None,
            };
            pages.services.insert(service_id, row);
        }
        let mut transaction = store.open_transaction().await.unwrap();
        write(&mut transaction.own_tables(), &pages).await.unwrap();
        transaction.finish().await.unwrap();
        let sql = "SELECT COUNT(*) AS rows_there FROM hive_services";
        let rows = store.own_rows("test.count", sql, Vec::new()).await.unwrap();
        assert_eq!(rows[0].count("rows_there").unwrap(), 33_000);
        store.close().await;
        scratch.remove().await.unwrap();
    }
}

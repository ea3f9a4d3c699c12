//! Who takes hive's facts, and what follows (H10, H13); the read models are in `views`. `docs/hive.md` has the whole table.

use towpath::ids::AggregateId;
use towpath::{Consumer, Delivery, HandlerError, Next};

use crate::knative::{KnativeServiceDeletedObserved, KnativeServiceEvent, KnativeServiceObserved};
use crate::record::{RecordCommand, ServiceAudited, ServicePersisted, ServiceRecord};
use crate::service::{
    CreationRequested, DeletionRequested, Service, ServiceCommand, ServiceEvent, SpecAccepted,
    TakeObservation, UpdateRequested,
};

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

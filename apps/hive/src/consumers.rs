//! Who takes hive's facts, and what follows (H10, H13); the read models are in `views`. `docs/hive.md` has the whole table.

use towpath::{Consumer, Fact, HandlerError, Tx};

use crate::hive::OBSERVED;
use crate::knative::KnativeServiceEvent;
use crate::record::{RecordCommand, ServiceAudited, ServicePersisted, ServiceRecord};
use crate::service::{Service, ServiceCommand, ServiceEvent, TakeObservation};

/// Takes what was observed to the services.
pub(crate) fn observations(channel: &str) -> Consumer {
    Consumer::of(channel)
        .only(OBSERVED)
        .in_order()
        .events::<KnativeServiceEvent>()
        .each("hive-observations", take_observation)
}

/// Keeps specifications, and who asked for what.
pub(crate) fn records(channel: &str) -> Consumer {
    Consumer::of(channel).in_order().events::<ServiceEvent>().each("hive-records", keep_record)
}

async fn take_observation(fact: Fact<KnativeServiceEvent>, mut tx: Tx) -> Result<(), HandlerError> {
    let (service_id, command) = match fact.event {
        KnativeServiceEvent::Observed(observed) => {
            let taken = TakeObservation {
                snapshot: observed.snapshot,
                observation: fact.envelope.aggregate_version.unwrap_or_default(),
                spec_version: observed.spec_version,
                failure_threshold: observed.failure_threshold,
            };
            (observed.service_id, ServiceCommand::TakeObservation(taken))
        }
        KnativeServiceEvent::DeletedObserved(gone) => {
            (gone.service_id, ServiceCommand::ConfirmDeletion { snapshot: gone.snapshot })
        }
        _ => return Ok(()),
    };
    Ok(tx.send::<Service>(service_id, command).await?)
}

async fn keep_record(fact: Fact<ServiceEvent>, mut tx: Tx) -> Result<(), HandlerError> {
    let Some(service_id) = fact.aggregate_id().map(str::to_owned) else { return Ok(()) };
    let audit = |action: &str, requested_by| {
        RecordCommand::Audit(ServiceAudited {
            service_id: service_id.clone(),
            action: action.to_owned(),
            event_id: fact.envelope.event_id.to_string(),
            requested_by,
            requested_at: fact.envelope.occurred_at.unwrap_or_default(),
        })
    };
    let command = match fact.event {
        ServiceEvent::CreationRequested(requested) => audit("create", requested.requested_by),
        ServiceEvent::UpdateRequested(requested) => audit("update", requested.requested_by),
        ServiceEvent::DeletionRequested(requested) => audit("delete", requested.requested_by),
        ServiceEvent::SpecAccepted(accepted) => RecordCommand::Persist(ServicePersisted {
            service_id: service_id.clone(),
            spec: accepted.spec,
            spec_hash: accepted.desired_spec_hash,
            spec_version: accepted.spec_version,
        }),
        _ => return Ok(()),
    };
    Ok(tx.send::<ServiceRecord>(service_id, command).await?)
}

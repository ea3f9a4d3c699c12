//! Looks at the rules again and again, one instance at a time. What has changed is written together with what follows from it: facts in
//! the log, and tasks that tell webhooks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{AggregateKey, CorrelationId, EventId, LeaseName};
use towpath_core::lifecycle::AlertStatus;
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::store::{
    Alert, AlertNote, AlertRun, Alerts as _, Append, DeadlineChange, Expected, LeaseGrant, Leases as _,
    NewEvent, Routing, StoreError, StoreResult,
};
use towpath_core::retry::Coded as _;
use uuid::Uuid;

use super::condition::Labels;
use super::evaluation::{Evaluated, MOST_ALERTS, evaluate};
use super::silences::MOST_SILENCES;
use super::{ALERT_FIRED, ALERT_KIND, ALERT_MISSING, ALERT_RESOLVED, Alerting};
use crate::bus::with_causes;
use crate::holding::{self, Held, Keeper, while_held};
use crate::service::{Service, Stopping, Wake, rest};
use crate::towpath::Towpath;
use crate::tx::{Tx, invalid};

/// Who holds it looks.
const LEASE: &str = "alerts";

/// How many alerts a fact or a webhook names; of the others it says how many they are.
pub(super) const NAMED: usize = 100;

/// Starts the service. `app` is a handle without services.
pub(crate) fn start(app: &Towpath, alerting: Arc<Alerting>, lease: Duration) -> Service {
    let app = app.clone();
    Service::keep_running("alerts", move |stopping| {
        let (app, alerting) = (app.clone(), alerting.clone());
        async move {
            let keeper = Keeper {
                store: app.bus.store.clone(),
                name: LeaseName::from_stored(LEASE),
                instance: app.instance.clone(),
                lease,
            };
            let (publish, held) = watch::channel(None);
            tokio::select! {
                () = holding::keep(&keeper, &publish) => {}
                () = run(&app, &alerting, held, stopping) => {}
            }
            holding::give_back(&keeper, &publish).await;
        }
    })
}

async fn run(
    app: &Towpath,
    alerting: &Alerting,
    held: watch::Receiver<Option<Held>>,
    mut stopping: Stopping,
) {
    loop {
        // First a rest: right after a start nothing is as it will be.
        rest(&Wake::default(), alerting.every, &mut stopping).await;
        if stopping.is_asked() {
            return;
        }
        let mut waiting = held.clone();
        let holds = tokio::select! {
            () = stopping.asked() => return,
            holds = waiting.wait_for(|held| held.as_ref().is_some_and(Held::is_sure)) => {
                holds.ok().and_then(|held| held.clone())
            }
        };
        let Some(holds) = holds else { return };
        match while_held(held.clone(), &holds.grant, look(app, alerting, &holds.grant)).await {
            // Somebody else looks by now.
            None | Some(Ok(_) | Err(StoreError::Fenced { .. })) => {}
            Some(Err(error)) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "rules of alerts could not be looked at"
                );
            }
        }
    }
}

/// Looks once, if nobody else does.
pub(super) async fn look_once(app: &Towpath, alerting: &Alerting) -> StoreResult<Option<Evaluated>> {
    let name = LeaseName::from_stored(LEASE);
    let for_ = Duration::from_secs(30);
    let Some(grant) = app.store.acquire_lease(&name, &app.instance, for_).await? else { return Ok(None) };
    let looked = look(app, alerting, &grant).await;
    app.store.release_lease(&grant).await?;
    looked.map(Some)
}

async fn look(app: &Towpath, alerting: &Alerting, grant: &LeaseGrant) -> StoreResult<Evaluated> {
    let figures = app.figures().await;
    let now = app.now();
    let most = u32::try_from(2 * MOST_ALERTS).unwrap_or(u32::MAX);
    let open = app.store.open_alerts(most).await?;
    let silences = app.store.silences(now, MOST_SILENCES).await?;
    let evaluated = evaluate(&alerting.rules, &figures, &open, &silences, now);
    let run = AlertRun {
        evaluated_at: now,
        evaluated_by_id: app.instance.to_string(),
        left_out: evaluated.left_out,
        failures: evaluated.failures.clone(),
    };
    let mut tx = app.within(app.store.open_transaction_under(grant).await?);
    let written = write(&mut tx, alerting, &evaluated.notes, &run).await;
    match written {
        Ok(()) => tx.commit().await?,
        Err(error) => {
            let _ = tx.rollback().await;
            return Err(error);
        }
    }
    for note in &evaluated.notes {
        log(note);
    }
    for (rule, why) in &evaluated.failures {
        tracing::warn!(rule, why, "a rule of alerts could not be looked at");
    }
    if evaluated.left_out > 0 {
        tracing::warn!(
            left_out = evaluated.left_out,
            "there are more alerts than are kept; make a condition say less"
        );
    }
    Ok(evaluated)
}

async fn write(tx: &mut Tx, alerting: &Alerting, notes: &[AlertNote], run: &AlertRun) -> StoreResult<()> {
    tx.note_alerts(notes, run).await?;
    for told in Told::of(notes) {
        tx.append(&told.fact(run)?).await?;
        alerting.tell_webhooks(tx, &told, run.evaluated_at).await?;
    }
    Ok(())
}

/// What somebody is to be told of one rule.
pub(super) struct Told<'n> {
    pub(super) rule: &'n str,
    pub(super) event_type: &'static str,
    pub(super) alerts: Vec<&'n Alert>,
}

impl<'n> Told<'n> {
    /// By rule. What has only waited, and what is silenced, is told to nobody.
    pub(super) fn of(notes: &'n [AlertNote]) -> Vec<Self> {
        let mut told: BTreeMap<(&str, &'static str), Vec<&Alert>> = BTreeMap::new();
        for AlertNote { alert, changed_from } in notes {
            if changed_from.is_none() || alert.fired_at.is_none() {
                continue;
            }
            let event_type = match alert.status {
                AlertStatus::Firing => ALERT_FIRED,
                AlertStatus::Resolved => ALERT_RESOLVED,
                AlertStatus::Missing => ALERT_MISSING,
                AlertStatus::Pending | AlertStatus::Silenced => continue,
            };
            told.entry((&alert.rule, event_type)).or_default().push(alert);
        }
        told.into_iter().map(|((rule, event_type), alerts)| Self { rule, event_type, alerts }).collect()
    }

    fn fact(&self, run: &AlertRun) -> StoreResult<Append> {
        let named = self.alerts.iter().take(NAMED).map(|alert| Said {
            alert_id: &alert.alert_id,
            severity: &alert.severity,
            message: &alert.message,
            labels: &alert.labels,
            // JSON has no other numbers.
            value: Some(alert.value).filter(|value| value.is_finite()),
            started_at: alert.started_at,
            fired_at: alert.fired_at,
            reason: alert.status_reason.as_deref(),
        });
        let said = SaidOfRule { rule: self.rule, count: self.alerts.len(), alerts: named.collect() };
        let payload = Payload::from_value(&said).map_err(|error| invalid("invalid-payload", error.into()))?;
        let flow = CorrelationId::of_new_flow(Uuid::now_v7());
        Ok(Append {
            aggregate: AggregateKey::from_stored(ALERT_KIND, self.rule),
            expected: Expected::Any,
            events: vec![NewEvent {
                event_id: EventId(Uuid::now_v7()),
                event_type: EventName::from_stored(self.event_type),
                schema_version: 1,
                payload,
                channels: Routing::ByType,
            }],
            snapshot: None,
            state_changes: Vec::new(),
            deadline: DeadlineChange::default(),
            context: ChangeContext::new(run.evaluated_at, flow),
        })
    }
}

/// What a fact says.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SaidOfRule<'a> {
    rule: &'a str,
    /// How many they are; those that are named may be fewer.
    count: usize,
    alerts: Vec<Said<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
    alert_id: &'a str,
    severity: &'a str,
    message: &'a str,
    labels: &'a Labels,
    value: Option<f64>,
    started_at: chrono::DateTime<chrono::Utc>,
    fired_at: Option<chrono::DateTime<chrono::Utc>>,
    reason: Option<&'a str>,
}

fn log(note: &AlertNote) {
    if note.changed_from.is_none() {
        return;
    }
    let Alert { rule, severity, message, labels, value, status, status_reason, .. } = &note.alert;
    let reason = status_reason.as_deref().unwrap_or_default();
    let (status, value) = (status.as_str(), super::template::number(*value));
    match note.alert.status {
        AlertStatus::Firing => {
            tracing::error!(rule, severity, status, reason, value, ?labels, "alert: {message}");
        }
        AlertStatus::Missing => {
            tracing::warn!(rule, severity, status, reason, value, ?labels, "alert: {message}");
        }
        _ => tracing::info!(rule, severity, status, reason, value, ?labels, "alert: {message}"),
    }
}

//! How a check is done: by one instance at a time, page by page, and written down so that another one can go on with it.

use std::time::Duration;

use tokio::sync::watch;
use towpath_core::consistency::FindingCode;
use towpath_core::ports::store::{CheckRow, CheckStatus, LeaseGrant, StoreError, StoreResult};
use towpath_core::retry::{Coded as _, ErrorClass};
use towpath_core::time::{earlier, later};

use super::looking::Looker;
use super::repairing::RepairAsked;
use super::stages::Stage;
use super::{CheckAsked, Progress, new_row};
use crate::bus::with_causes;
use crate::leases::Held;
use crate::service::{Service, Stopping, rest};
use crate::towpath::Towpath;

/// How long others have the database for themselves between two pages.
const BREATH: Duration = Duration::from_millis(5);

/// How often it is written down how far a check is, besides at the end of each part.
const SAVED_EVERY: Duration = Duration::from_secs(1);

/// How long checks are kept.
const KEPT: Duration = Duration::from_secs(30 * 86_400);

/// How many of them are deleted at a time.
const CLEANED: u32 = 100;

/// Starts the service.
pub(crate) fn start(app: Towpath, held: watch::Receiver<Held>, scan: Duration) -> Service {
    Service::keep_running("checker", move |stopping| run(app.clone(), held.clone(), scan, stopping))
}

async fn run(app: Towpath, held: watch::Receiver<Held>, scan: Duration, mut stopping: Stopping) {
    // One that cannot be done is not begun again at once.
    let mut not_before = tokio::time::Instant::now();
    loop {
        rest(&app.bus.wakes.checks, scan, &mut stopping).await;
        if stopping.is_asked() {
            return;
        }
        // Whoever cleans up does this, too: one instance is enough.
        let Some(lease) = held.borrow().cleaner.clone() else { continue };
        match turn(&app, &lease, &mut not_before, &stopping).await {
            // Somebody else goes on with it; the keeper will find out.
            Ok(()) | Err(StoreError::Fenced { .. }) => {}
            Err(error) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not check consistency"
                );
            }
        }
    }
}

/// Begins a check if one is due, and does what was asked for.
async fn turn(
    app: &Towpath,
    lease: &LeaseGrant,
    not_before: &mut tokio::time::Instant,
    stopping: &Stopping,
) -> StoreResult<()> {
    let store = &app.bus.store;
    let mut is_scheduled = None;
    if let Some(every) = app.checks.every.filter(|_| tokio::time::Instant::now() >= *not_before) {
        let now = app.bus.database_time().await?;
        let last = store.last_check().await?;
        let is_due = last.is_none_or(|last| later(last.started_at, every) <= now);
        let asked = CheckAsked { window: app.checks.window, scope: Vec::new() };
        if is_due
            && store.next_check().await?.is_none()
            && let Some(row) = new_row(&asked, now)
        {
            let row = row?;
            is_scheduled = Some(row.check_id);
            *not_before = tokio::time::Instant::now() + every;
            store.begin_check(&row).await?;
        }
    }
    while let Some(check) = store.next_check().await? {
        if stopping.is_asked() {
            return Ok(());
        }
        let check_id = check.check_id;
        let ended = go_on(app, lease, check, stopping).await?;
        if ended && app.checks.repairs && is_scheduled == Some(check_id) {
            repair_what_is_safe(app, check_id).await;
        }
        if !ended {
            return Ok(());
        }
    }
    if let Some(before) = earlier(app.bus.database_time().await?, KEPT) {
        store.clean_checks(lease, before, CLEANED).await?;
    }
    Ok(())
}

/// Goes on with a check until it ends, or until told to stop. Answers whether it has ended.
async fn go_on(
    app: &Towpath,
    lease: &LeaseGrant,
    mut check: CheckRow,
    stopping: &Stopping,
) -> StoreResult<bool> {
    let done = match Progress::read(&check) {
        Ok(mut progress) => walk(app, lease, &mut check, &mut progress, stopping).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(ended) => Ok(ended),
        // It may be there again in a moment, and the check goes on where it was.
        // But for a statement that takes too long: it would be so again, and later checks would wait for it for ever.
        Err(error)
            if error.class() == ErrorClass::Transient && !matches!(error, StoreError::TooSlow { .. }) =>
        {
            Err(error)
        }
        Err(error @ StoreError::Fenced { .. }) => Err(error),
        Err(error) => {
            let now = app.bus.database_time().await?;
            (check.status, check.status_changed_at, check.finished_at) =
                (CheckStatus::Failed, now, Some(now));
            check.status_reason = Some(error.code().to_owned());
            check.status_message = Some(with_causes(&error));
            app.bus.store.save_check(lease, &check).await?;
            tracing::error!(check = %check.check_id, code = error.code(), cause = with_causes(&error), "a check was given up");
            Ok(true)
        }
    }
}

async fn walk(
    app: &Towpath,
    lease: &LeaseGrant,
    check: &mut CheckRow,
    progress: &mut Progress,
    stopping: &Stopping,
) -> StoreResult<bool> {
    let looker = Looker::new(app, check.since);
    if check.status == CheckStatus::Pending {
        (check.status, check.status_changed_at) = (CheckStatus::Running, app.bus.database_time().await?);
    }
    let stages = Stage::of_scope(&progress.scope);
    let at = stages.iter().position(|stage| stage.name() == progress.stage).unwrap_or(0);
    for stage in stages.iter().skip(at).copied() {
        if progress.stage != stage.name() {
            (progress.stage, progress.behind) = (stage.name().to_owned(), None);
            progress.not_checked.extend(looker.not_checked(stage));
        }
        save(app, lease, check, progress).await?;
        let mut saved_at = tokio::time::Instant::now();
        loop {
            if stopping.is_asked() {
                save(app, lease, check, progress).await?;
                return Ok(false);
            }
            let looked = looker.look(stage, progress.behind.as_deref()).await?;
            if !looked.found.is_empty() {
                looker.wait(&looked.found).await?;
            }
            for found in looker.confirm(stage, looked.found).await? {
                let is_asked = progress.scope.is_empty() || progress.scope.contains(&found.code);
                if is_asked {
                    progress.findings.add(found.code, found.row);
                }
            }
            progress.totals.total_commands += looked.commands;
            progress.totals.total_events += looked.events;
            progress.not_checked.extend(looked.not_checked);
            let Some(next) = looked.next else { break };
            progress.behind = Some(next);
            if saved_at.elapsed() >= SAVED_EVERY {
                save(app, lease, check, progress).await?;
                saved_at = tokio::time::Instant::now();
            }
            tokio::time::sleep(BREATH).await;
        }
    }
    let now = app.bus.database_time().await?;
    (check.status, check.status_changed_at, check.finished_at) = (CheckStatus::Done, now, Some(now));
    let looked_at_versions = stages.contains(&Stage::Rows) && stages.contains(&Stage::Versions);
    let gaps = progress.findings.count(FindingCode::AggregateVersionGaps);
    check.version_gap_count = looked_at_versions.then_some(gaps);
    save(app, lease, check, progress).await?;
    for finding in &progress.findings.0 {
        let (code, count) = (finding.code.as_str(), finding.count);
        tracing::warn!(check = %check.check_id, code, count, "a check has found something");
    }
    Ok(true)
}

async fn save(
    app: &Towpath,
    lease: &LeaseGrant,
    check: &mut CheckRow,
    progress: &Progress,
) -> StoreResult<()> {
    check.progress = progress.text()?;
    app.bus.store.save_check(lease, check).await?;
    Ok(())
}

async fn repair_what_is_safe(app: &Towpath, check_id: uuid::Uuid) {
    let codes = FindingCode::ALL.iter().copied();
    let safe = codes.filter(|code| code.remedy() == towpath_core::consistency::Remedy::Safe).collect();
    let asked = RepairAsked { check_id: Some(check_id), codes: safe };
    if let Err(error) = app.checker().repair(&asked, true).await {
        tracing::warn!(
            code = error.code(),
            cause = with_causes(&error),
            "could not repair what a check has found"
        );
    }
}

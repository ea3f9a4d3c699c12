//! Leases with epochs, by the database's own clock.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::store::{HeldLease, LeaseGrant, Leases, StoreError, StoreResult};

use crate::sql::{Row, Session, Value, values};
use crate::store::{SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Leases for SqlStore {
    async fn acquire_lease(
        &self,
        lease: &LeaseName,
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Option<LeaseGrant>> {
        transacting!(self, acquire, lease, holder, for_)
    }

    async fn acquire_leases(
        &self,
        leases: &[LeaseName],
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Vec<LeaseGrant>> {
        transacting!(self, acquire_all, leases, holder, for_)
    }

    async fn renew_lease(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<()> {
        writing_once!(self, renew, grant, for_)
    }

    async fn renew_leases(&self, grants: &[LeaseGrant], for_: Duration) -> StoreResult<Vec<LeaseGrant>> {
        transacting!(self, renew_all, grants, for_)
    }

    async fn leases(&self, prefix: &str) -> StoreResult<Vec<HeldLease>> {
        reading!(self, list, prefix)
    }

    async fn release_lease(&self, grant: &LeaseGrant) -> StoreResult<()> {
        writing_once!(self, release, grant)
    }

    async fn release_leases(&self, grants: &[LeaseGrant]) -> StoreResult<()> {
        transacting!(self, release_all, grants)
    }
}

/// The time that leases live by.
pub(crate) async fn now(session: &mut Session<'_>) -> StoreResult<DateTime<Utc>> {
    let sql = format!("SELECT {} AS time_now", session.dialect().now());
    let row = session.row("clock", &sql, values![]).await?;
    let nothing = || StoreError::Unavailable("the database did not say what time it is".into());
    row.ok_or_else(nothing)?.time("time_now")
}

/// Takes a lease that is free. Runs in a transaction of its own.
pub(crate) async fn acquire(
    session: &mut Session<'_>,
    lease: &LeaseName,
    holder: &InstanceId,
    duration: Duration,
) -> StoreResult<Option<LeaseGrant>> {
    Ok(acquire_all(session, std::slice::from_ref(lease), holder, duration).await?.pop())
}

/// Takes what can be had of many. Runs in a transaction of its own.
///
/// One statement takes them all, in the order of their names: whoever takes, renews or gives back several at once locks
/// them in this order, so that nobody waits for somebody who waits for him.
async fn acquire_all(
    session: &mut Session<'_>,
    leases: &[LeaseName],
    holder: &InstanceId,
    duration: Duration,
) -> StoreResult<Vec<LeaseGrant>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let names: BTreeSet<&str> = leases.iter().map(LeaseName::as_str).collect();
    let sql = session.dialect().take_leases(names.len());
    let mut taken = values![];
    for name in &names {
        taken.extend(values![*name, holder.as_str(), micros(duration)]);
    }
    session.execute("lease.take", &sql, taken).await?;
    // What is ours now was taken just now: what was ours before was taken anew.
    let marks = vec!["?"; names.len()].join(", ");
    let sql = format!("SELECT lease_name, epoch FROM leases WHERE holder_id = ? AND lease_name IN ({marks})");
    let mut wanted = values![holder.as_str()];
    wanted.extend(names.iter().flat_map(|name| values![*name]));
    let mut epochs = HashMap::new();
    for row in session.rows("lease.taken", &sql, wanted).await? {
        epochs.insert(row.text("lease_name")?, row.count("epoch")?);
    }
    let granted = leases.iter().filter_map(|lease| {
        let epoch = epochs.remove(lease.as_str())?;
        Some(LeaseGrant { lease: lease.clone(), holder: holder.clone(), epoch })
    });
    Ok(granted.collect())
}

async fn renew(session: &mut Session<'_>, grant: &LeaseGrant, duration: Duration) -> StoreResult<()> {
    let (now, until) = (session.dialect().now(), session.dialect().now_plus_parameter());
    let sql = format!(
        "UPDATE leases SET renewed_at = {now}, expires_at = {until} \
         WHERE lease_name = ? AND holder_id = ? AND epoch = ?"
    );
    let mut renewed = values![micros(duration)];
    renewed.extend(held_by(grant));
    match session.execute("lease.renew", &sql, renewed).await? {
        0 => Err(fenced(grant)),
        _ => Ok(()),
    }
}

/// Locks those of these leases that are still held, in the order of their names.
async fn lock_held(session: &mut Session<'_>, grants: &[LeaseGrant]) -> StoreResult<Vec<LeaseGrant>> {
    if grants.is_empty() {
        return Ok(Vec::new());
    }
    let marks = vec!["?"; grants.len()].join(", ");
    let names = || grants.iter().flat_map(|grant| values![grant.lease.as_str()]);
    let sql = format!(
        "SELECT lease_name, holder_id, epoch FROM leases WHERE lease_name IN ({marks}) ORDER BY lease_name {}",
        session.dialect().for_update()
    );
    let mut held = Vec::new();
    for row in session.rows("lease.held", &sql, names().collect()).await? {
        let current = read_grant(&row)?;
        held.extend(grants.iter().filter(|grant| **grant == current).cloned());
    }
    Ok(held)
}

/// Keeps those that are still held. Runs in a transaction.
async fn renew_all(
    session: &mut Session<'_>,
    grants: &[LeaseGrant],
    duration: Duration,
) -> StoreResult<Vec<LeaseGrant>> {
    let held = lock_held(session, grants).await?;
    if held.is_empty() {
        return Ok(held);
    }
    let marks = vec!["?"; held.len()].join(", ");
    let (now, until) = (session.dialect().now(), session.dialect().now_plus_parameter());
    let sql =
        format!("UPDATE leases SET renewed_at = {now}, expires_at = {until} WHERE lease_name IN ({marks})");
    let mut renewed = values![micros(duration)];
    renewed.extend(held.iter().flat_map(|grant| values![grant.lease.as_str()]));
    session.execute("lease.renew_all", &sql, renewed).await?;
    Ok(held)
}

async fn list(session: &mut Session<'_>, prefix: &str) -> StoreResult<Vec<HeldLease>> {
    // Between the prefix and the prefix with its last character raised: an index serves that on every database, and
    // nothing in the prefix has to be escaped as it would have to be for LIKE.
    let sql = format!(
        "SELECT lease_name, holder_id, epoch, CASE WHEN {} THEN 1 ELSE 0 END AS live \
         FROM leases WHERE lease_name >= ? AND lease_name < ? ORDER BY lease_name",
        session.dialect().lease_lives()
    );
    let end = format!("{prefix}{}", char::MAX);
    let mut standings = Vec::new();
    for row in session.rows("lease.list", &sql, values![prefix, end]).await? {
        standings.push(HeldLease {
            lease: LeaseName::from_stored(row.text("lease_name")?),
            holder: InstanceId::from_stored(row.text("holder_id")?),
            epoch: row.count("epoch")?,
            live: row.long("live")? == 1,
        });
    }
    Ok(standings)
}

async fn release(session: &mut Session<'_>, grant: &LeaseGrant) -> StoreResult<()> {
    let sql = format!(
        "UPDATE leases SET expires_at = {} WHERE lease_name = ? AND holder_id = ? AND epoch = ?",
        session.dialect().now()
    );
    session.execute("lease.release", &sql, held_by(grant)).await?;
    Ok(())
}

/// Gives those back that are still held. Runs in a transaction.
async fn release_all(session: &mut Session<'_>, grants: &[LeaseGrant]) -> StoreResult<()> {
    let held = lock_held(session, grants).await?;
    if held.is_empty() {
        return Ok(());
    }
    let marks = vec!["?"; held.len()].join(", ");
    let sql =
        format!("UPDATE leases SET expires_at = {} WHERE lease_name IN ({marks})", session.dialect().now());
    let names = held.iter().flat_map(|grant| values![grant.lease.as_str()]).collect();
    session.execute("lease.release_all", &sql, names).await?;
    Ok(())
}

/// The condition that a lease is held under this grant, whether or not it has run out.
pub(crate) const HELD: &str =
    "EXISTS (SELECT 1 FROM leases WHERE lease_name = ? AND holder_id = ? AND epoch = ?)";

/// What identifies a grant: its lease, its holder and its epoch.
pub(crate) fn held_by(grant: &LeaseGrant) -> Vec<Value<'_>> {
    values![grant.lease.as_str(), grant.holder.as_str(), grant.epoch]
}

fn read_grant(row: &Row) -> StoreResult<LeaseGrant> {
    Ok(LeaseGrant {
        lease: LeaseName::from_stored(row.text("lease_name")?),
        holder: InstanceId::from_stored(row.text("holder_id")?),
        epoch: row.count("epoch")?,
    })
}

/// Refuses the transaction unless every grant is still the newest of its lease, and keeps it so until the
/// transaction ends: a taker has to wait for the lock.
pub(crate) async fn fence(session: &mut Session<'_>, grants: &[LeaseGrant]) -> StoreResult<()> {
    if grants.is_empty() {
        return Ok(());
    }
    let marks = vec!["?"; grants.len()].join(", ");
    let sql = format!(
        "SELECT lease_name, holder_id, epoch FROM leases WHERE lease_name IN ({marks}) ORDER BY lease_name {}",
        session.dialect().for_share()
    );
    let names = grants.iter().flat_map(|grant| values![grant.lease.as_str()]).collect();
    let rows = session.rows("lease.fence", &sql, names).await?;
    let current = rows.iter().map(read_grant).collect::<StoreResult<HashSet<_>>>()?;
    match grants.iter().find(|grant| !current.contains(grant)) {
        Some(stale) => Err(fenced(stale)),
        None => Ok(()),
    }
}

/// The condition that a claimed row's holder is gone: its lease changed hands, was given back or has run out.
pub(crate) fn holder_is_gone(session: &Session<'_>, table: &str) -> String {
    format!(
        "{table}.claimed_by_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM leases \
         WHERE leases.lease_name = {table}.claimed_by_id AND leases.epoch = {table}.claimed_epoch \
         AND {})",
        session.dialect().lease_lives()
    )
}

/// The condition that a key is none of so many.
pub(crate) fn none_of(column: &str, count: usize) -> String {
    match count {
        0 => String::new(),
        _ => format!(" AND {column} NOT IN ({})", vec!["?"; count].join(", ")),
    }
}

pub(crate) fn fenced(grant: &LeaseGrant) -> StoreError {
    StoreError::Fenced { lease: grant.lease.clone(), epoch: grant.epoch }
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

//! Leases: the right to do one thing, until somebody else holds it.

use std::time::Duration;

use async_trait::async_trait;

use super::StoreResult;
use crate::ids::{InstanceId, LeaseName};

/// A lease that was granted: the right to do one thing, until somebody else holds it. Holder and epoch are checked in the
/// transaction of every effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseGrant {
    /// What is held.
    pub lease: LeaseName,
    /// By whom. A database that comes back from an older copy may give an epoch twice.
    pub holder: InstanceId,
    /// Rises each time the lease changes hands.
    pub epoch: u64,
}

impl LeaseGrant {
    /// How a row says that it was claimed under this grant.
    pub fn claim(&self) -> Claim {
        Claim { lease: self.lease.clone(), epoch: self.epoch }
    }
}

/// Under which lease a row was claimed, as the row says it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The lease.
    pub lease: LeaseName,
    /// In which epoch.
    pub epoch: u64,
}

/// A lease as it stands: who holds it, and whether that has run out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Which lease.
    pub lease: LeaseName,
    /// Who took it last.
    pub holder: InstanceId,
    /// In which epoch.
    pub epoch: u64,
    /// Whether it still lives, by the database's clock.
    pub live: bool,
}

/// Leases: who may do what, by the database's clock.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Takes a lease that is free, has run out, or is the holder's own; `None` when somebody else holds it. Every
    /// grant raises the epoch: what an earlier holder of the same name still does is refused.
    async fn acquire_lease(
        &self,
        lease: &LeaseName,
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Option<LeaseGrant>>;

    /// Takes those of many leases that are free, have run out, or are the holder's own, in one transaction.
    async fn acquire_leases(
        &self,
        leases: &[LeaseName],
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Vec<LeaseGrant>>;

    /// Keeps a lease longer. `Fenced` when it has changed hands.
    async fn renew_lease(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<()>;

    /// Keeps many leases longer, in one statement, and answers those that are still held. The others have changed
    /// hands.
    async fn renew_leases(&self, grants: &[LeaseGrant], for_: Duration) -> StoreResult<Vec<LeaseGrant>>;

    /// The leases whose names begin with a text, by name.
    async fn leases(&self, prefix: &str) -> StoreResult<Vec<HeldLease>>;

    /// Gives a lease back. Giving back what has changed hands does nothing.
    async fn release_lease(&self, grant: &LeaseGrant) -> StoreResult<()>;

    /// Gives many leases back at once.
    async fn release_leases(&self, grants: &[LeaseGrant]) -> StoreResult<()>;
}

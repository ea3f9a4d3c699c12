//! The observer: looks at resources outside, compares, and decides what follows.
//!
//! Level-triggered: what matters is what a look sees, and not which change led there. So a look can come at any time, twice
//! or late, and a hint that was lost is made good by the next scan. One instance looks at a time, under the lease
//! `observer/<name>`: what it sends is refused once somebody else holds that, and it looks no longer than it is sure to hold
//! it. Looks run beside each other, each with a time-out of its own, and a resource is never looked at twice at once. One
//! that fails is left alone for longer each time, and is then looked at beside the others: it holds up nobody. Whether the
//! platform as a whole is away is asked of the platform itself; it is told once, and decides nothing about any resource.
//!
//! What is wanted of each subject, when the next look is due and what came of the last one is the library's to keep
//! (`observations` in the store). An application says what to watch in the transaction of the facts that say so
//! ([`Tx::watch`](crate::Tx::watch)), how to look, and what follows. A scan that finds nothing costs one statement.

mod failing;
mod health;
mod looking;
mod status;
mod waiting;
mod watching;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::Stream;
use towpath_core::aggregate::Aggregate;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::store::StoreResult;
use towpath_core::to_variant;
use towpath_store::{OwnTables, SqlStore};

use crate::service::{Service, Wake};

pub(crate) use looking::ObserverContext;
pub(crate) use status::ObserverStatuses;
pub use status::{ObserverStatus, Platform};

pub use towpath_core::ports::observations::{Adopted, Look, LookFailure, Looks, Watch, Watched};

/// Names of resources that may have changed, as they change.
pub type Hints = Pin<Box<dyn Stream<Item = String> + Send>>;

/// Resources outside of Towpath: how they are looked at, and what follows from what was seen.
///
/// ```
/// # use std::time::Duration;
/// # use chrono::{DateTime, Utc};
/// # use towpath::observer::{Decision, ExternalResources, ObserveError, Watched};
/// # use towpath::ports::store::StoreResult;
/// # use towpath::SqlStore;
/// struct Bridges;
///
/// impl ExternalResources for Bridges {
///     type Resource = String;
///     type Evidence = bool;
///
///     async fn resource(&self, _: &SqlStore, watched: Watched) -> StoreResult<Option<String>> {
///         Ok(Some(watched.subject_id))
///     }
///
///     async fn observe(&self, _: &String) -> Result<bool, ObserveError> {
///         Ok(true) // it stands
///     }
///
///     async fn reachable(&self) -> Result<(), ObserveError> {
///         Ok(()) // there is a town
///     }
///
///     fn decide(&self, _: &String, _stands: bool, _: DateTime<Utc>) -> Vec<Decision> {
///         Vec::new()
///     }
///
///     fn look_again_after(&self, _: &String) -> Duration {
///         Duration::from_secs(3600)
///     }
/// }
/// ```
pub trait ExternalResources: Send + Sync + 'static {
    /// One thing to look at, with what is known of it.
    type Resource: Send + Sync + 'static;

    /// What was seen of it.
    type Evidence: Send + 'static;

    /// What is looked at, made from what is wanted of it when its look begins. `None` when it is not to be looked at now: it
    /// stays due. Two looks at what one hint names never run at once.
    fn resource(
        &self,
        store: &SqlStore,
        watched: Watched,
    ) -> impl Future<Output = StoreResult<Option<Self::Resource>>> + Send;

    /// Looks at one. What the platform says about the resource, also that it is gone, is evidence; an error says that
    /// nothing is known.
    fn observe(
        &self,
        resource: &Self::Resource,
    ) -> impl Future<Output = Result<Self::Evidence, ObserveError>> + Send;

    /// Whether the platform is there at all, about no resource in particular. Asked at the start, when hints
    /// end or cannot be had, and when a look goes without an answer: a resource that does not answer is its own affair, a platform that does not is everybody's.
    fn reachable(&self) -> impl Future<Output = Result<(), ObserveError>> + Send;

    /// What is missing from the evidence. What follows from the rest is sent all the same, and the resource is looked at
    /// again as after a look that failed.
    fn missing(&self, _evidence: &Self::Evidence) -> Option<ObserveError> {
        None
    }

    /// Compares what was seen with what is known, and decides. Nothing that was seen is older than the moment at which the
    /// look began. The commands are sent one after the other; each must be able to come again. One that fails for a passing
    /// reason is not tried again by anybody: the next look decides anew.
    fn decide(
        &self,
        resource: &Self::Resource,
        evidence: Self::Evidence,
        began_at: DateTime<Utc>,
    ) -> Vec<Decision>;

    /// After how long it is looked at again when a look has come to its end, unless something new is wanted of it. After one
    /// that failed that is decided here.
    fn look_again_after(&self, resource: &Self::Resource) -> Duration;

    /// The platform was found to be there or away, and that is not known to have been told before. It is told again when
    /// this fails, and by another instance that begins to look: it should have the effect of once. What is written comes
    /// true only if this instance is still the one that looks. Answers whether an outage has just ended: what is waited for
    /// is then waited for anew.
    fn platform_is(
        &self,
        _tables: &mut OwnTables<'_>,
        _platform: &Platform,
        _now: DateTime<Utc>,
    ) -> impl Future<Output = StoreResult<bool>> + Send {
        async { Ok(false) }
    }

    /// Looks have ended and are noted: for what an application keeps of them besides.
    fn noted(
        &self,
        _store: &SqlStore,
        _looked: &[Looked<Self::Resource>],
    ) -> impl Future<Output = StoreResult<()>> + Send {
        async { Ok(()) }
    }

    /// Hints of the platform, if it gives any, by the names that [`Watch::hint`] has. When they end they are asked for again.
    fn watch(&self) -> impl Future<Output = Result<Option<Hints>, ObserveError>> + Send {
        async { Ok(None) }
    }
}

/// How an observer works.
#[derive(Debug, Clone, PartialEq)]
pub struct ObserverPolicy {
    /// How often it asks what has become due, without being woken: so late does it learn of what another instance wants.
    /// One statement each time.
    pub poll: Duration,
    /// How many looks run at a time. At what failed the last time, a quarter as many look besides.
    pub concurrency: usize,
    /// How long one look may take.
    pub timeout: Duration,
    /// How many are asked for at a time.
    pub page: u32,
    /// After how many questions in a row without an answer the platform counts as down.
    pub down_after: u32,
    /// How long, at most, a resource is left alone that could not be looked at, and a platform that could not be watched.
    pub longest_pause: Duration,
}

impl Default for ObserverPolicy {
    /// Every second, sixteen at a time for ten seconds each, down after three, pauses of up to a minute.
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            concurrency: 16,
            timeout: Duration::from_secs(10),
            page: 200,
            down_after: 3,
            longest_pause: Duration::from_secs(60),
        }
    }
}

/// A command that follows from what was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub(crate) kind: &'static str,
    pub(crate) aggregate_id: String,
    pub(crate) command_type: String,
    pub(crate) payload: Payload,
    pub(crate) command_id: Option<String>,
    pub(crate) cause: Option<Cause>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cause {
    pub(crate) correlation_id: String,
    pub(crate) causation_id: String,
}

impl Decision {
    /// To send this command.
    ///
    /// # Errors
    /// The command cannot be written as JSON.
    pub fn of<A: Aggregate>(
        aggregate_id: impl Into<String>,
        command: &A::Command,
    ) -> Result<Self, InvalidPayload> {
        let (command_type, payload) = to_variant(command)?;
        let aggregate_id = aggregate_id.into();
        Ok(Self { kind: A::KIND, aggregate_id, command_type, payload, command_id: None, cause: None })
    }

    /// Under this id: sent again, it has no second effect.
    pub fn once(mut self, command_id: impl Into<String>) -> Self {
        self.command_id = Some(command_id.into());
        self
    }

    /// As part of a flow, and caused by one of its facts.
    pub fn in_flow(mut self, correlation_id: impl Into<String>, causation_id: impl Into<String>) -> Self {
        self.cause = Some(Cause { correlation_id: correlation_id.into(), causation_id: causation_id.into() });
        self
    }
}

/// A look that has ended.
#[derive(Debug, Clone)]
pub struct Looked<R> {
    /// At what.
    pub resource: R,
    /// Of what was wanted.
    pub version: u64,
    /// When it ended.
    pub at: DateTime<Utc>,
    /// `None` when it was seen and what followed was done; otherwise why not.
    pub failure: Option<ObserveError>,
    /// After how long it is looked at next, unless something new is wanted of it.
    pub again_after: Duration,
}

/// Why nothing is known about a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ObserveError {
    /// A stable code.
    pub code: String,
    /// What happened.
    pub message: String,
    /// Whether there was no answer at all. It may be this resource or all of them, so the platform is asked.
    pub unanswered: bool,
    /// For how long the platform has asked to be left alone, at the least. It has answered, and what it said will pass.
    pub retry_after: Option<Duration>,
}

impl ObserveError {
    /// This resource could not be looked at: the platform has said so.
    pub fn of_resource(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), unanswered: false, retry_after: None }
    }

    /// The platform has said when to come back.
    pub fn later(code: impl Into<String>, message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::of_resource(code, message) }
    }

    /// No answer in time.
    pub fn timed_out(after: Duration) -> Self {
        Self::unanswered(TIMED_OUT, format!("no answer within {after:?}"))
    }

    /// No answer.
    pub fn unanswered(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { unanswered: true, ..Self::of_resource(code, message) }
    }
}

/// The code of a look that took too long.
pub(crate) const TIMED_OUT: &str = "observer-timeout";

/// Makes an observer look now and not at its next scan, and at what it did not know of before all else.
#[derive(Clone, Default)]
pub struct ObserverWake(pub(crate) Wake);

impl ObserverWake {
    /// Wakes it.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// An observer that is declared and not started.
pub struct Observer {
    pub(crate) name: String,
    pub(crate) wake: ObserverWake,
    pub(crate) start: Start,
}

pub(crate) type Start = Box<dyn FnOnce(ObserverContext) -> Service + Send>;

impl Observer {
    /// Declares an observer. Its name is that of its lease, so all instances must call it the same.
    pub fn named(
        name: impl Into<String>,
        resources: impl ExternalResources,
        policy: ObserverPolicy,
        wake: ObserverWake,
    ) -> Self {
        let (resources, woken) = (Arc::new(resources), wake.clone());
        let start = move |context: ObserverContext| {
            let context = Arc::new(context);
            Service::keep_running("observer", move |stopping| {
                looking::run(
                    Arc::clone(&context),
                    Arc::clone(&resources),
                    policy.clone(),
                    woken.clone(),
                    stopping,
                )
            })
        };
        Self { name: name.into(), wake, start: Box::new(start) }
    }
}

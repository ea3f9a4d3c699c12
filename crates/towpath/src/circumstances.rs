//! Who asks, in which request and trace: what commands inherit that are sent meanwhile.

use std::future::Future;

use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{ActorId, RequestId, TraceId};

tokio::task_local! {
    static CURRENT: Circumstances;
}

/// The circumstances of a piece of work. A server sets them once around a request, and every command that is sent
/// inside carries them into its record and its facts, unless it says otherwise itself.
///
/// ```
/// # use towpath::{Circumstances, ids::ActorId};
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let zoe = Circumstances { actor_id: ActorId::new("zoe").ok(), ..Circumstances::default() };
/// zoe.during(async {
///     assert_eq!(Circumstances::current().actor_id, ActorId::new("zoe").ok());
/// }).await;
/// assert_eq!(Circumstances::current(), Circumstances::default());
/// # });
/// ```
///
/// # Caveats
/// They belong to the task: what is spawned inside starts without them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Who asks.
    pub actor_id: Option<ActorId>,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
    /// The trace it belongs to.
    pub trace_id: Option<TraceId>,
}

impl Circumstances {
    /// Runs something under these circumstances.
    pub async fn during<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// Those of the work that runs now; empty outside of any.
    pub fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Fills in what a context leaves open: for facts that are appended in a transaction of one's own.
    pub fn complete(self, context: &mut ChangeContext) {
        context.actor_id = context.actor_id.take().or(self.actor_id);
        context.request_id = context.request_id.take().or(self.request_id);
        context.trace_id = context.trace_id.take().or(self.trace_id);
    }
}

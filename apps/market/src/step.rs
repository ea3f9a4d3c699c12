//! The circumstances of a step: when, in which trace and flow, and because of what.

use chrono::{DateTime, Utc};
use towpath::ids::{CausationId, CorrelationId, EventId, TraceId};
use towpath::ports::store::StoreError;
use towpath::tables::Dialect;
use towpath::{ChangeContext, Circumstances, Tx};
use uuid::Uuid;

use crate::model::{Order, Product};

/// A step that is being taken, and the id of the fact that it leads to.
pub(crate) struct Step {
    pub(crate) now: DateTime<Utc>,
    pub(crate) trace_id: TraceId,
    pub(crate) event_id: EventId,
}

impl Step {
    /// In the trace that this runs in; in one of its own, where nobody has traced it.
    pub(crate) async fn begin(tx: &mut Tx) -> Result<Self, StoreError> {
        let trace_id = Circumstances::current().trace_id;
        let new_trace = || TraceId::from_stored(format!("trace-{}", Uuid::now_v7().simple()));
        let (trace_id, event_id) = (trace_id.unwrap_or_else(new_trace), EventId(Uuid::now_v7()));
        Ok(Self { now: now(tx).await?, trace_id, event_id })
    }

    /// For a fact of an order: all its facts are one flow, and each names the one that led to it.
    pub(crate) fn of_order(&self, order: &Order, cause: Option<&str>) -> Result<ChangeContext, StoreError> {
        let flow = match &order.correlation_id {
            Some(flow) => CorrelationId::from_stored(flow),
            // From before orders had flows of their own.
            None => flow_of("order", order.order_id)?,
        };
        Ok(self.within(flow, cause.map(CausationId::from_stored)))
    }

    /// For what happens to a product: a flow of its own, in which each fact may stand without a cause.
    pub(crate) fn of_product(&self, product: &Product) -> Result<ChangeContext, StoreError> {
        Ok(self.within(flow_of("product", product.product_id)?, None))
    }

    fn within(&self, flow: CorrelationId, cause: Option<CausationId>) -> ChangeContext {
        let mut context = ChangeContext::new(self.now, flow);
        (context.trace_id, context.causation_id) = (Some(self.trace_id.clone()), cause);
        // Who asked, and in which request.
        Circumstances::current().complete(&mut context);
        context
    }
}

fn flow_of(what: &str, id: i64) -> Result<CorrelationId, StoreError> {
    CorrelationId::new(format!("market-{what}-{id}")).map_err(|error| StoreError::corrupt(what, error))
}

/// What time it is by the database, for whatever is compared with what other hosts have written: their clocks may differ by
/// days. SQLite has the host's own clock.
pub(crate) async fn now(tx: &mut Tx) -> Result<DateTime<Utc>, StoreError> {
    let sql = match tx.own_tables().dialect() {
        Dialect::Sqlite => return Ok(tx.now()),
        Dialect::Postgres => "SELECT clock_timestamp() AS moment",
        Dialect::MySql => "SELECT UTC_TIMESTAMP(6) AS moment",
    };
    let row = tx.own_tables().row("market.now", sql, Vec::new()).await?;
    row.ok_or_else(|| StoreError::corrupt("the time", "nothing was answered"))?.time("moment")
}

//! The job that looks for unpaid orders in the database (O7): when the broker is away, an order is closed all the same.
//!
//! It needs no lease. Closing is one conditional update: whoever is second, another instance or the message from the
//! delay queue, touches no row.

use towpath::ports::store::StoreError;
use towpath::{Job, Towpath, Turn};

use crate::consumers::deadline;
use crate::model::{Order, OrderStatus};
use crate::orders;
use crate::settings::{Settings, TimeoutSettings};
use crate::step::Step;

/// The job, if the settings want it.
pub(crate) fn job(settings: &Settings) -> Option<Job> {
    let timeout = settings.order.timeout.clone();
    let job = Job::named("market-deadlines", timeout.scan, move |turn: Turn| {
        let timeout = timeout.clone();
        async move {
            let closed = close_overdue(&turn.app, &timeout, || turn.is_last()).await?;
            if closed > 0 {
                tracing::info!(closed, "unpaid orders were closed by the job");
            }
            Ok(())
        }
    });
    settings.order.timeout.scan_enabled.then_some(job)
}

/// Closes all orders that are unpaid and whose time is over; answers how many. Told that it is enough, it ends after the order
/// that it is at: there may be a day's worth of them after an outage.
pub(crate) async fn close_overdue(
    app: &Towpath,
    settings: &TimeoutSettings,
    is_enough: impl Fn() -> bool,
) -> Result<u64, StoreError> {
    let mut closed = 0;
    loop {
        let chosen = "WHERE status = ? AND create_time <= ? ORDER BY create_time, order_id LIMIT ?";
        let deadline_of_all = deadline(app.now(), settings.pending);
        let values = vec![OrderStatus::Pending.into(), deadline_of_all.into(), settings.scan_batch.into()];
        let overdue: Vec<Order> = app.rows("market.overdue", chosen, values).await?;
        let (mut closed_of_batch, mut failed) = (0, None);
        for order in &overdue {
            if is_enough() {
                return Ok(closed + closed_of_batch);
            }
            let closing = app.transact(async |mut tx| {
                let step = Step::begin(&mut tx).await?;
                orders::time_out(&mut tx, order, deadline(step.now, settings.pending), &step).await
            });
            match closing.await {
                Ok(was_closed) => closed_of_batch += u64::from(was_closed),
                // The others behind it are closed all the same.
                Err(error) => failed = Some(error),
            }
        }
        closed += closed_of_batch;
        // None closed of a full batch means that others are at it: they need no help.
        if closed_of_batch == 0 || overdue.len() < settings.scan_batch as usize {
            return failed.map_or(Ok(closed), Err);
        }
    }
}

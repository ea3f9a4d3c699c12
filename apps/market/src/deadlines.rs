//! The job that looks for unpaid orders in the database (O7): when the broker is away, an order is closed all the same.
//!
//! It needs no lease. Closing is one conditional update: whoever is second, another instance or the message from the
//! delay queue, touches no row.

use tokio::time::Instant;
use towpath::Towpath;
use towpath::ids::EventId;
use uuid::Uuid;

use crate::consumers::deadline;
use crate::database::now;
use crate::error::MarketError;
use crate::events::Step;
use crate::job::{Job, Stopping, uneven};
use crate::market::new_trace;
use crate::orders;
use crate::settings::Settings;

/// The job, while it runs.
pub(crate) struct Deadlines(Job);

impl Deadlines {
    /// Begins to look, if the settings want it.
    pub(crate) fn watch(app: &Towpath, settings: &Settings) -> Self {
        let (app, settings) = (app.clone(), settings.clone());
        Self(Job::start(|stopping| settings.scan_enabled.then(|| run(app, settings, stopping))))
    }

    /// Ends after the order that it is at, or by the deadline. Twice is fine.
    pub(crate) async fn stop_by(&self, deadline: Instant) -> bool {
        self.0.stop_by(deadline).await
    }

    pub(crate) fn stopping(&self) -> Stopping {
        self.0.stopping()
    }
}

async fn run(app: Towpath, settings: Settings, mut stopping: Stopping) {
    while stopping.rest(uneven(settings.scan)).await {
        match close_overdue(&app, &settings, &stopping).await {
            Ok(0) => {}
            Ok(closed) => tracing::info!(closed, "unpaid orders were closed by the job"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(code = error.code(), cause, "unpaid orders could not be looked for");
            }
        }
    }
}

/// Closes all orders that are unpaid and whose time is over; answers how many. Asked to stop, it ends after the order that
/// it is at: there may be a day's worth of them after an outage.
pub(crate) async fn close_overdue(
    app: &Towpath,
    settings: &Settings,
    stopping: &Stopping,
) -> Result<u64, MarketError> {
    let mut closed = 0;
    loop {
        // By the database's time, as all orders are placed by it.
        let overdue = {
            let mut connection = app.store().open_reading().await?;
            let tables = &mut connection.own_tables();
            let deadline = deadline(now(tables, &*settings.clock).await?, settings.pending);
            orders::overdue(tables, deadline, settings.scan_batch).await?
        };
        let (mut closed_of_batch, mut failed) = (0, None);
        for order in &overdue {
            if stopping.is_asked() {
                return Ok(closed + closed_of_batch);
            }
            let (trace_id, event_id) = (new_trace(), EventId(Uuid::now_v7()));
            let closing = app.transact(async |mut tx| {
                let now = now(&mut tx.own_tables(), &*settings.clock).await?;
                let step = Step { now, trace_id: trace_id.clone(), event_id };
                let deadline = deadline(now, settings.pending);
                Ok::<_, MarketError>(orders::time_out(&mut tx, order, deadline, &step).await?)
            });
            match closing.await {
                Ok(was_closed) => closed_of_batch += u64::from(was_closed),
                // The others behind it are closed all the same.
                Err(error) => failed = Some(error),
            }
        }
        closed += closed_of_batch;
        // None closed of a full batch means that others are at it: they need no help.
        if closed_of_batch == 0 || overdue.len() < usize::try_from(settings.scan_batch).unwrap_or(usize::MAX)
        {
            return failed.map_or(Ok(closed), Err);
        }
    }
}

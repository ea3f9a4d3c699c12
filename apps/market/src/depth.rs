//! The alarm for queues that grow faster than they are worked off (O11).

use std::mem;
use std::sync::Arc;

use tokio::sync::Mutex;
use towpath::ports::broker::BrokerError;
use towpath::{Coded as _, HandlerError, Job, Towpath, Turn, with_causes};

use crate::alarms::tell;
use crate::settings::Settings;
use crate::topology::{CONSUMERS, DEAD_LETTER_QUEUE};

/// The alarm when a queue is too deep.
const QUEUE_DEPTH: &str = "market-queue-depth";

/// The job that looks.
pub(crate) fn job(settings: &Settings) -> Job {
    let limit = settings.alarm.queue_depth;
    let told = Arc::new(Mutex::new(Vec::new()));
    Job::named("market-queue-depth", settings.alarm.queue_scan, move |turn: Turn| {
        let told = Arc::clone(&told);
        async move {
            let deep = deep_queues(&turn.app, limit).await;
            let deep = deep.map_err(|error| HandlerError::transient(error.code(), with_causes(&error)))?;
            let now = deep.iter().map(|(queue, _)| *queue).collect();
            let before = mem::replace(&mut *told.lock().await, now);
            // Told once, and again when it has been well in between.
            for (queue, depth) in deep.iter().filter(|(queue, _)| !before.contains(queue)) {
                let fields = ("", "", queue, consumer_of(queue));
                tell!(error, fields, "a queue holds more than it should"; code = QUEUE_DEPTH, depth, limit);
            }
            for queue in before.iter().filter(|queue| deep.iter().all(|(deep, _)| deep != *queue)) {
                tell!(info, ("", "", queue, consumer_of(queue)), "a queue is well again");
            }
            Ok(())
        }
    })
}

/// The queues that hold more than `limit`, with how much.
pub(crate) async fn deep_queues(app: &Towpath, limit: u64) -> Result<Vec<(&'static str, u64)>, BrokerError> {
    let queues: Vec<_> = CONSUMERS.iter().map(|(_, queue, _)| *queue).chain([DEAD_LETTER_QUEUE]).collect();
    let standings = app.queue_status(&queues).await?;
    let depths = queues.into_iter().zip(standings).filter_map(|(queue, standing)| {
        let standing = standing?;
        Some((queue, standing.ready + standing.unsettled.unwrap_or(0)))
    });
    Ok(depths.filter(|(_, depth)| *depth > limit).collect())
}

fn consumer_of(queue: &str) -> &'static str {
    CONSUMERS.iter().find(|(_, of, _)| *of == queue).map_or("", |(handler, ..)| *handler)
}

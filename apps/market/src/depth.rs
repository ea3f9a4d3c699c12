//! The alarm for queues that grow faster than they are worked off (O11).

use tokio::time::Instant;
use towpath::Towpath;
use towpath::ports::broker::BrokerError;

use crate::job::{Job, Stopping, uneven};
use crate::settings::Settings;
use crate::topology::{CONSUMERS, DEAD_LETTER_QUEUE};

/// The alarm when a queue is too deep.
const QUEUE_DEPTH: &str = "market-queue-depth";

/// The job that looks, while it runs.
pub(crate) struct Depth(Job);

impl Depth {
    pub(crate) fn watch(app: &Towpath, settings: &Settings) -> Self {
        let (app, settings) = (app.clone(), settings.clone());
        Self(Job::start(|stopping| Some(run(app, settings, stopping))))
    }

    pub(crate) async fn stop_by(&self, deadline: Instant) -> bool {
        self.0.stop_by(deadline).await
    }
}

async fn run(app: Towpath, settings: Settings, mut stopping: Stopping) {
    let mut told: Vec<&'static str> = Vec::new();
    while stopping.rest(uneven(settings.queue_scan)).await {
        let deep = match deep_queues(&app, settings.queue_depth).await {
            Ok(deep) => deep,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(code = error.code(), cause, "the depth of queues could not be looked at");
                continue;
            }
        };
        // Told once, and again when it has been well in between.
        for (queue, depth) in deep.iter().filter(|(queue, _)| !told.contains(queue)) {
            tracing::error!(
                code = QUEUE_DEPTH,
                eventId = "",
                traceId = "",
                queue,
                consumer = consumer_of(queue),
                depth,
                limit = settings.queue_depth,
                "a queue holds more than it should"
            );
        }
        for queue in told.iter().filter(|queue| deep.iter().all(|(deep, _)| deep != *queue)) {
            tracing::info!(
                eventId = "",
                traceId = "",
                queue,
                consumer = consumer_of(queue),
                "a queue is well again"
            );
        }
        told = deep.into_iter().map(|(queue, _)| queue).collect();
    }
}

/// The queues that hold more than `limit`, with how much.
pub(crate) async fn deep_queues(app: &Towpath, limit: u64) -> Result<Vec<(&'static str, u64)>, BrokerError> {
    let queues: Vec<&'static str> =
        CONSUMERS.iter().map(|(_, queue, _)| *queue).chain([DEAD_LETTER_QUEUE]).collect();
    let standings = app.standing_of(&queues).await?;
    let depths = queues.into_iter().zip(standings).filter_map(|(queue, standing)| {
        let standing = standing?;
        Some((queue, standing.ready + standing.unsettled.unwrap_or(0)))
    });
    Ok(depths.filter(|(_, depth)| *depth > limit).collect())
}

fn consumer_of(queue: &str) -> &'static str {
    CONSUMERS.iter().find(|(_, of, _)| *of == queue).map_or("", |(handler, ..)| *handler)
}

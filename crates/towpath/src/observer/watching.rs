//! Hints of the platform as they come, and the wait for them.

use std::sync::Arc;
use std::time::Duration;
use towpath_core::time::doubled;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::{ExternalResources, Hints};

/// How long the platform is left alone after hints have ended or could not be had. Longer each time, unless they lasted.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// How many hints are taken together.
pub(super) const HINTS_AT_ONCE: usize = 200;

/// Watches, again and again.
pub(super) struct Watching<R> {
    resources: Arc<R>,
    /// How long the beginning may take.
    timeout: Duration,
    longest_pause: Duration,
    state: State,
    /// How often it has ended soon, in a row.
    ended: u32,
}

/// What is heard of the platform.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// Names.
    Hints(Vec<String>),
    /// Hints have ended, or could not be had: perhaps because nobody is there.
    End,
}

enum State {
    Starting(BoxFuture<'static, Option<Option<Hints>>>),
    Running { hints: futures_util::stream::ReadyChunks<Hints>, since: Instant },
    Never,
}

impl<R: ExternalResources> Watching<R> {
    pub(super) fn new(resources: Arc<R>, timeout: Duration, longest_pause: Duration) -> Self {
        let state = State::Starting(begin(&resources, Duration::ZERO, timeout));
        Self { resources, timeout, longest_pause, state, ended: 0 }
    }

    /// The next hints, or that there are none for a while. Dropping the wait loses nothing.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            match &mut self.state {
                State::Starting(start) => match start.await {
                    None => {
                        self.begin_again(false);
                        return Heard::End;
                    }
                    Some(None) => self.state = State::Never,
                    Some(Some(hints)) => {
                        let hints = hints.ready_chunks(HINTS_AT_ONCE);
                        self.state = State::Running { hints, since: Instant::now() };
                    }
                },
                State::Running { hints, since } => {
                    let since = *since;
                    match hints.next().await {
                        Some(names) => return Heard::Hints(names),
                        None => {
                            self.begin_again(since.elapsed() >= self.longest_pause);
                            return Heard::End;
                        }
                    }
                }
                State::Never => std::future::pending().await,
            }
        }
    }

    fn begin_again(&mut self, lasted: bool) {
        self.ended = if lasted { 1 } else { self.ended.saturating_add(1) };
        let pause = pause_before(self.ended, self.longest_pause);
        self.state = State::Starting(begin(&self.resources, pause, self.timeout));
    }
}

/// How long it is waited before the so-manieth beginning in a row.
fn pause_before(ended: u32, longest: Duration) -> Duration {
    doubled(FIRST_PAUSE, ended.saturating_sub(1), longest)
}

/// Asks for hints, after a pause. `None`: they could not be had; `Some(None)`: there are none.
fn begin<R: ExternalResources>(
    resources: &Arc<R>,
    pause: Duration,
    timeout: Duration,
) -> BoxFuture<'static, Option<Option<Hints>>> {
    let resources = Arc::clone(resources);
    async move {
        tokio::time::sleep(pause).await;
        match tokio::time::timeout(timeout, resources.watch()).await {
            Ok(Ok(hints)) => Some(hints),
            Ok(Err(error)) => {
                tracing::warn!(code = error.code, cause = error.message, "the platform cannot be watched");
                None
            }
            Err(_) => {
                tracing::warn!(?timeout, "the platform could not be watched in time");
                None
            }
        }
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use chrono::{DateTime, Utc};
    use towpath_core::ports::store::StoreResult;
    use towpath_store::SqlStore;

    use super::*;
    use crate::observer::{Decision, ObserveError, Watched};

    /// Cannot be watched at first, then for a moment, then for good.
    struct Moody {
        asked_at: Mutex<Vec<Instant>>,
        fails: usize,
    }

    impl ExternalResources for Moody {
        type Resource = String;
        type Evidence = ();

        async fn resource(&self, _: &SqlStore, watched: Watched) -> StoreResult<Option<String>> {
            Ok(Some(watched.subject_id))
        }

        async fn observe(&self, _: &String) -> Result<(), ObserveError> {
            Ok(())
        }

        async fn reachable(&self) -> Result<(), ObserveError> {
            Ok(())
        }

        fn decide(&self, _: &String, (): (), _: DateTime<Utc>) -> Vec<Decision> {
            Vec::new()
        }

        fn look_again_after(&self, _: &String) -> Duration {
            Duration::ZERO
        }

        async fn watch(&self) -> Result<Option<Hints>, ObserveError> {
            let asked = {
                let mut asked_at = self.asked_at.lock().unwrap();
                asked_at.push(Instant::now());
                asked_at.len()
            };
            match asked {
                asked if asked <= self.fails => Err(ObserveError::unanswered("away", "nobody is there")),
                asked if asked == self.fails + 1 => {
                    Ok(Some(futures_util::stream::iter(["one".to_owned()]).boxed()))
                }
                _ => {
                    let then = futures_util::stream::pending();
                    Ok(Some(futures_util::stream::iter(["two".to_owned()]).chain(then).boxed()))
                }
            }
        }
    }

    #[test]
    fn pauses_are_longer_each_time() {
        let minute = Duration::from_secs(60);
        let pauses: Vec<u64> = (1..=9).map(|ended| pause_before(ended, minute).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause_before(u32::MAX, minute), minute);
    }

    #[tokio::test]
    async fn a_platform_that_cannot_be_watched_is_asked_again_after_a_pause() {
        let moody = Arc::new(Moody { asked_at: Mutex::default(), fails: 3 });
        let longest = Duration::from_millis(20);
        let mut watching = Watching::new(Arc::clone(&moody), Duration::from_secs(10), longest);
        let hint = |name: &str| Heard::Hints(vec![name.to_owned()]);
        for heard in [Heard::End, Heard::End, Heard::End, hint("one"), Heard::End, hint("two")] {
            assert_eq!(watching.next().await, heard);
        }
        let asked_at = moody.asked_at.lock().unwrap().clone();
        assert_eq!(asked_at.len(), 5);
        // A watch that ends at once is no better than none.
        assert!(asked_at.windows(2).all(|pair| pair[1] - pair[0] >= longest), "{asked_at:?}");
    }
}

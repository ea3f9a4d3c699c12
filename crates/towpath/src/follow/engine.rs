//! Walking a peer's log and applying what is new.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use towpath_core::envelope::EventEnvelope;
use towpath_core::ids::{EventId, HandlerName, Position};
use towpath_core::ports::store::{FollowedLog, StoreError, StoreTx as _};
use towpath_core::retry::{Coded as _, ErrorClass};
use towpath_core::time::doubled;
use towpath_store::SqlStore;

use super::page::Page;
use super::peer::{Fetched, Peer};
use super::{FollowError, FollowPolicy, Whereabouts, Work, mirror};
use crate::bus::{Bus, random_unit, with_causes};
use crate::consumer::{Delivered, HandlerError, Next, Step};
use crate::metrics::table;
use crate::service::{Stopping, Wake, rest};
use crate::tx::{Lender, Open};

/// How many pages are held while walking back, and how large they may be together. Behind that, the page that is wanted is
/// asked for by its id, and the rest is walked forward.
const HELD_PAGES: usize = 32;
const HELD_BYTES: usize = 32 << 20;

/// How many facts a mirror writes in one transaction.
const MIRRORED_AT_ONCE: usize = 100;

pub(super) struct Engine {
    pub(super) bus: Bus,
    pub(super) store: SqlStore,
    pub(super) peer: Peer,
    pub(super) handler: HandlerName,
    pub(super) policy: FollowPolicy,
    pub(super) work: Work,
    pub(super) told: watch::Sender<Whereabouts>,
}

/// What a look at the peer led to.
enum Round {
    /// There may be more.
    GoOn,
    /// Everything the peer has is applied.
    CaughtUp,
}

/// What applying some facts led to.
enum Applied {
    /// The follower stands here now.
    Moved(FollowedLog),
    /// Another one of the same name was quicker.
    ByAnother,
}

impl Engine {
    pub(super) async fn run(self, mut stopping: Stopping) {
        let ended = self.follow(&mut stopping).await;
        if let Err(error) = &ended {
            tracing::error!(
                follower = %self.handler,
                peer = self.peer.shown(),
                code = error.code(),
                cause = error.report(),
                next_step = error.next_step(),
                "the follower has ended"
            );
        }
        self.told.send_modify(|standing| standing.ended = Some(ended.map_err(Arc::new)));
    }

    async fn follow(&self, stopping: &mut Stopping) -> Result<(), FollowError> {
        // It shows 0 until it happens.
        table::FOLLOWER_FAILURES.counter(&[self.handler.as_str()]).increment(0);
        let mut failures = 0_u32;
        let mut unreadable = 0_u32;
        let mut tag = None;
        while !stopping.is_asked() {
            let error = match self.round(&mut tag, stopping).await {
                Ok(round) => {
                    (failures, unreadable) = (0, 0);
                    if let Round::CaughtUp = round {
                        let poll = self.policy.poll.mul_f64(0.9 + random_unit() / 5.0);
                        rest(&Wake::default(), poll, stopping).await;
                    }
                    continue;
                }
                Err(error) => error,
            };
            tag = None;
            table::FOLLOWER_FAILURES.counter(&[self.handler.as_str()]).increment(1);
            failures = failures.saturating_add(1);
            if let FollowError::Unreadable(_) = error {
                unreadable += 1;
            }
            let may_pass = matches!(error.class(), ErrorClass::Transient)
                || (matches!(error, FollowError::Unreadable(_))
                    && unreadable < self.policy.unreadable_answers);
            if !may_pass {
                return Err(error);
            }
            let pause = self.pause(failures, &error);
            tracing::warn!(
                follower = %self.handler,
                peer = self.peer.shown(),
                code = error.code(),
                cause = error.report(),
                ?pause,
                "the log was not followed further; trying again"
            );
            rest(&Wake::default(), pause, stopping).await;
        }
        Ok(())
    }

    fn pause(&self, failures: u32, error: &FollowError) -> Duration {
        let asked = match error {
            FollowError::PeerUnavailable { retry_after, .. } => *retry_after,
            FollowError::NotHandled { after, .. } => *after,
            _ => None,
        };
        let grown = doubled(self.policy.first_pause, failures.saturating_sub(1), self.policy.longest_pause);
        let pause = grown.mul_f64(1.0 - random_unit() / 3.0);
        asked.map_or(pause, |asked| asked.max(pause))
    }

    /// Looks at the current page, walks back to where this follower is, and applies forward.
    async fn round(&self, tag: &mut Option<String>, stopping: &mut Stopping) -> Result<Round, FollowError> {
        let (current, new_tag, bytes) = tokio::select! {
            () = stopping.asked() => return Ok(Round::GoOn),
            fetched = self.peer.current(tag.as_deref()) => match fetched? {
                Fetched::NotModified => {
                    self.tell(None, true);
                    return Ok(Round::CaughtUp);
                }
                Fetched::Page { page, tag, bytes } => (page, tag, bytes),
            },
        };
        *tag = None;
        let missing = || StoreError::Missing { what: "follower", name: self.handler.to_string() };
        let mut at = self.store.followed_log(&self.handler).await?.ok_or_else(missing)?;
        if current.last() < at.position {
            let what = format!("it ends at {}", current.last());
            return Err(FollowError::Rewritten { position: at.position, what });
        }
        let last = current.last();
        self.measure(Some(last.saturating_sub(at.position)));
        // The oldest is on top.
        let mut held = self.walk_back(current, bytes, at.position, stopping).await?;
        let Some(mut page) = held.pop() else { return Ok(Round::GoOn) };
        loop {
            match self.apply_page(&page, at, stopping).await? {
                Applied::Moved(to) => at = to,
                Applied::ByAnother => return Ok(Round::GoOn),
            }
            if stopping.is_asked() {
                return Ok(Round::GoOn);
            }
            page = match (held.pop(), page.next()) {
                (Some(next), _) => next,
                (None, Some(next)) if at.position < last => self.peer.page(next).await?.0,
                _ => break,
            };
        }
        if at.position != last {
            // There was more by the time it was fetched.
            return Ok(Round::GoOn);
        }
        *tag = new_tag;
        self.tell(Some(at.position), true);
        Ok(Round::CaughtUp)
    }

    /// The pages from the current one back to the one that holds the position, the current one first. If they are too many
    /// to hold, only the one that holds the position. Empty when it is told to stop.
    async fn walk_back(
        &self,
        current: Page,
        bytes: usize,
        position: Position,
        stopping: &mut Stopping,
    ) -> Result<Vec<Page>, FollowError> {
        let mut held = vec![current];
        let mut held_bytes = bytes;
        while let Some(previous) =
            held.last().filter(|page| page.id.low > position.max(1)).and_then(Page::previous)
        {
            let too_much = held.len() >= HELD_PAGES || held_bytes >= HELD_BYTES;
            let wanted =
                if too_much { held.last().and_then(|page| page.holding(position)) } else { Some(previous) };
            let Some(wanted) = wanted else { break };
            let (page, bytes) = tokio::select! {
                () = stopping.asked() => return Ok(Vec::new()),
                fetched = self.peer.page(wanted) => fetched?,
            };
            if !page.archived {
                return Err(super::page::unreadable(format!(
                    "page {wanted} has a successor and is not archived"
                )));
            }
            if too_much {
                return Ok(vec![page]);
            }
            held_bytes += bytes;
            held.push(page);
        }
        Ok(held)
    }

    /// Applies what is behind the position, after what is before it was found to be what was applied.
    async fn apply_page(
        &self,
        page: &Page,
        mut at: FollowedLog,
        stopping: &Stopping,
    ) -> Result<Applied, FollowError> {
        let digested = page.digested()?;
        if (page.id.low..=page.id.high).contains(&at.position) {
            let found = digested.iter().find(|(position, ..)| *position == at.position);
            if found.is_none_or(|(.., digest)| *digest != at.digest) {
                let what = format!("page {} has changed", page.id);
                return Err(FollowError::Rewritten { position: at.position, what });
            }
        } else if page.id.low != at.position + 1 {
            return Err(super::page::unreadable(format!(
                "page {} does not follow position {}",
                page.id, at.position
            )));
        }
        let new: Vec<_> = digested.into_iter().filter(|(position, ..)| *position > at.position).collect();
        let most = match &self.work {
            Work::Handler { batch, .. } => (*batch).max(1),
            Work::Mirror => MIRRORED_AT_ONCE,
        };
        for facts in new.chunks(most) {
            if stopping.is_asked() {
                break;
            }
            match self.apply(facts, &at).await? {
                Applied::Moved(to) => at = to,
                Applied::ByAnother => return Ok(Applied::ByAnother),
            }
            self.tell(Some(at.position), false);
        }
        Ok(Applied::Moved(at))
    }

    /// One transaction: move the position, mark, handle, commit.
    ///
    /// The position moves first. A statement of the handler's that fails may undo the transaction, and on MySQL what comes
    /// then would stand outside of any: it must not be this.
    async fn apply(
        &self,
        facts: &[(Position, &EventEnvelope, String)],
        at: &FollowedLog,
    ) -> Result<Applied, FollowError> {
        let Some((position, _, digest)) = facts.last() else { return Ok(Applied::Moved(at.clone())) };
        let to = FollowedLog { position: *position, digest: digest.clone() };
        let now = self.bus.clock.now();
        let mut inner = self.store.open_transaction().await?;
        if !inner.advance_followed_log(&self.handler, at.position, &to, now).await? {
            inner.abandon().await?;
            return Ok(Applied::ByAnother);
        }
        let ids: Vec<EventId> = facts.iter().map(|(_, fact, _)| fact.event_id).collect();
        let first = inner.mark_deliveries(&ids, &self.handler, now).await?;
        let open = Open::of_handler(inner, &self.bus, &self.handler);
        let lost = open.connection_lost();
        let lender = Lender::new(open);
        let new: Vec<_> = facts
            .iter()
            .filter_map(|(position, fact, _)| {
                let first = first.iter().find(|first| first.event_id == fact.event_id)?;
                Some((*position, *fact, first.failures))
            })
            .collect();
        let marked = new.first().map(|(_, fact, _)| fact.event_id);
        let open = match (&self.work, new.first()) {
            // All of them were handled before, by this handler's name.
            (_, None) => lender.take_back()?,
            (Work::Mirror, _) => {
                mirror::keep(&self.bus, &self.store, lender.lend()?, &new).await?;
                lender.take_back()?
            }
            (Work::Handler { run, .. }, Some((position, ..))) => {
                let position = *position;
                let deliveries = new.iter().map(|(_, fact, failures)| Delivered {
                    event: (*fact).clone().into(),
                    attempt: failures + 1,
                    redelivered: false,
                    headers: Arc::default(),
                    set_aside_at: None,
                    tried_at: None,
                });
                let deliveries = deliveries.collect();
                // The call itself is inside: a handler may panic before it has made its future.
                let running = async { run(deliveries, lender.clone()).await };
                let answer = tokio::select! {
                    ran = AssertUnwindSafe(running).catch_unwind() => ran.unwrap_or_else(|_| {
                        Err(HandlerError::transient("handler-panicked", "the handler panicked"))
                    }),
                    // It may wait for ever for what it runs on the connection itself.
                    error = lost => Err(error.into()),
                };
                handled(answer, lender, position)?
            }
        };
        // If it is not known whether the commit took effect, the next look at the store tells.
        open.commit_marked(marked, &self.handler).await?;
        Ok(Applied::Moved(to))
    }

    fn tell(&self, position: Option<Position>, caught_up: bool) {
        self.told.send_modify(|standing| {
            standing.position = position.unwrap_or(standing.position);
            standing.caught_up = caught_up;
        });
        self.measure(if caught_up { Some(0) } else { None });
    }

    /// Shows where it is, and by how much it is behind where that is known.
    fn measure(&self, behind: Option<u64>) {
        let name = [self.handler.as_str()];
        let position = self.told.borrow().position;
        table::FOLLOWER_POSITION.gauge(&name).set(position as f64);
        if let Some(behind) = behind {
            table::FOLLOWER_LAG.gauge(&name).set(behind as f64);
        }
    }
}

/// The handler's transaction back, or why not.
fn handled(
    answer: Result<Next, HandlerError>,
    lender: Lender,
    position: Position,
) -> Result<Open, FollowError> {
    let gave_up = |reason: String, message: String| FollowError::GaveUp { position, reason, message };
    match answer {
        Ok(Next(Step::Handled)) => {
            lender.take_back().map_err(|kept| gave_up(kept.code().to_owned(), with_causes(&kept)))
        }
        Ok(Next(Step::RetryAfter { delay, reason, message })) => {
            Err(FollowError::NotHandled { position, reason, message, after: Some(delay) })
        }
        Ok(Next(Step::Dead { reason, message })) => Err(gave_up(reason, message)),
        Err(error) => {
            let (reason, message) = (error.code().to_owned(), error.message());
            match error.class() {
                ErrorClass::Transient | ErrorClass::Conflict => {
                    Err(FollowError::NotHandled { position, reason, message, after: None })
                }
                _ => Err(gave_up(reason, message)),
            }
        }
    }
}

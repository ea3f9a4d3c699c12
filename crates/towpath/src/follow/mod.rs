//! Following the notification log of another Towpath over HTTP (N9).
//!
//! A follower keeps the last position it has applied. It reads the peer's current page, walks back to that position and
//! applies forward; the position moves in the transaction of what was applied. So a fact has its effect once, however
//! often the follower is stopped, killed or started twice.
//!
//! Reading order: this file declares a follower and says what can go wrong; `page` is what a peer may send, checked to the
//! last field; `peer` fetches it; `engine` walks and applies; `mirror` keeps the facts themselves.
//!
//! ```no_run
//! # use towpath::{Delivery, HandlerError, Next, Towpath};
//! # use towpath::follow::Follower;
//! # async fn example(app: Towpath) -> Result<(), Box<dyn std::error::Error>> {
//! async fn bill(delivery: Delivery) -> Result<Next, HandlerError> {
//!     println!("{}", delivery.event.event_type);
//!     Ok(delivery.handled())
//! }
//! let billing = app.follow(Follower::of("https://orders.example:7400").each("billing", bill)).await?;
//! billing.ended().await?; // only when it is told to stop, or cannot go on
//! # Ok(()) }
//! ```

mod engine;
mod mirror;
mod page;
mod peer;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use towpath_core::ids::{AggregateKey, HandlerName, InvalidId, Position};
use towpath_core::ports::store::{BoxError, StoreError};
use towpath_core::retry::{Coded, ErrorClass};

use crate::consumer::{Batch, Consumer, Delivery, HandlerError, Next, Run};
use crate::service::{STOPPING, Service};
use crate::towpath::Towpath;
use engine::Engine;
use peer::Peer;

/// Who follows which log, and what it does with the facts.
///
/// # Guarantees
/// What a handler changes in its transaction happens once per fact, in the order of the peer's log. A fact that cannot be
/// handled holds up those behind it: a follower skips nothing.
///
/// # Caveats
/// What a handler does outside of its transaction may happen more than once.
pub struct Follower {
    url: String,
    key: Option<String>,
    authorities: Option<Vec<u8>>,
    name: String,
    policy: FollowPolicy,
    work: Work,
}

/// Half a follower: it knows what it follows, and not yet what to do with it.
pub struct FollowerOf {
    url: String,
    key: Option<String>,
    authorities: Option<Vec<u8>>,
    policy: FollowPolicy,
}

/// What becomes of the facts.
enum Work {
    /// A handler takes up to so many in one transaction.
    Handler { run: Run, batch: usize },
    /// They are kept here as they are there.
    Mirror,
}

/// How a follower works.
#[derive(Debug, Clone, PartialEq)]
pub struct FollowPolicy {
    /// How often the current page is asked for when nothing is new. A peer that has nothing new answers with 304.
    pub poll: Duration,
    /// The pause after the first failure; it doubles with each, up to the longest. A third of it is left to chance.
    pub first_pause: Duration,
    /// The longest pause between two attempts. A peer that is down is tried for ever.
    pub longest_pause: Duration,
    /// How often an answer that is no page is asked for again: a proxy may have sent its own.
    pub unreadable_answers: u32,
    /// How long an answer may take, all of it.
    pub answer_within: Duration,
    /// How large a page may be.
    pub largest_page: usize,
}

impl Default for FollowPolicy {
    /// Every second; pauses of a quarter of a second up to a minute; five attempts at an answer that is no page; a page
    /// within two minutes and of 128 MiB at most.
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(60),
            unreadable_answers: 5,
            answer_within: Duration::from_secs(120),
            largest_page: 128 << 20,
        }
    }
}

impl Follower {
    /// Follows the Towpath at a URL, such as `https://orders.example:7400`.
    pub fn of(url: impl Into<String>) -> FollowerOf {
        FollowerOf { url: url.into(), key: None, authorities: None, policy: FollowPolicy::default() }
    }
}

impl FollowerOf {
    /// With a key of the peer's.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Over https with the authorities in this PEM text alone, in place of those that the machine trusts.
    pub fn authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// With another policy.
    pub fn with(mut self, policy: FollowPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// A handler that takes one fact at a time, each in a transaction of its own. The name is that of the follower, too:
    /// its position is kept under it.
    pub fn each<F, Answer>(self, name: impl Into<String>, run: F) -> Follower
    where
        F: Fn(Delivery) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Next, HandlerError>> + Send + 'static,
    {
        // The same shape as a consumer's handler, made by the same code.
        let Consumer { handler, run, .. } = Consumer::of("log").each(name, run);
        self.doing(handler, Work::Handler { run, batch: 1 })
    }

    /// A handler that takes up to `most` facts of a page in one transaction.
    pub fn batches<F, Answer>(self, name: impl Into<String>, most: usize, run: F) -> Follower
    where
        F: Fn(Batch) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Next, HandlerError>> + Send + 'static,
    {
        let Consumer { handler, run, batch, .. } = Consumer::of("log").batches(name, most, run);
        self.doing(handler, Work::Handler { run, batch })
    }

    /// Keeps the facts here as they are there: the same event ids, aggregates and versions. The channels of this Towpath
    /// route them on.
    pub fn mirror(self, name: impl Into<String>) -> Follower {
        self.doing(name.into(), Work::Mirror)
    }

    fn doing(self, name: String, work: Work) -> Follower {
        let Self { url, key, authorities, policy } = self;
        Follower { url, key, authorities, name, policy, work }
    }
}

/// A follower at work.
#[derive(Clone)]
pub struct Following {
    service: Arc<Mutex<Service>>,
    standing: watch::Receiver<Whereabouts>,
}

/// Where a follower is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Whereabouts {
    position: Position,
    caught_up: bool,
    ended: Option<Result<(), Arc<FollowError>>>,
}

/// The followers of a Towpath. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Followers(Arc<Mutex<Vec<Following>>>);

impl Followers {
    /// Stops all of them. Answers the names of those that were cut off.
    pub(crate) async fn stop_by(&self, deadline: Instant) -> Vec<String> {
        let following: Vec<_> = self.0.lock().await.drain(..).collect();
        let stopped = following
            .iter()
            .map(async |following| (!following.stop_by(deadline).await).then(|| "follower".to_owned()));
        futures_util::future::join_all(stopped).await.into_iter().flatten().collect()
    }
}

impl Towpath {
    /// Begins to follow another log from where this follower is; one that is new here begins with the first fact. It ends
    /// when it is told to, with this Towpath, or when it cannot go on: see [`Following::ended`].
    ///
    /// Two of the same name, here or in another process, do not harm each other: one applies, the other looks on.
    ///
    /// # Errors
    /// A URL or name that is wrong; a store that cannot be used.
    pub async fn follow(&self, follower: Follower) -> Result<Following, FollowError> {
        let handler = HandlerName::new(&follower.name)?;
        let (key, authorities) = (follower.key.as_deref(), follower.authorities.as_deref());
        let peer = Peer::new(&follower.url, key, authorities, &follower.policy)?;
        let now = self.bus.clock.now();
        let found = self.store().open_followed_log(&handler, &peer.shown(), now).await?;
        let (told, standing) =
            watch::channel(Whereabouts { position: found.position, ..Whereabouts::default() });
        let engine = Engine {
            bus: self.bus.clone(),
            store: self.store().clone(),
            peer,
            handler,
            policy: follower.policy,
            work: follower.work,
            told,
        };
        let service = Service::start("follower", |stopping| engine.run(stopping));
        let following = Following { service: Arc::new(Mutex::new(service)), standing };
        self.followers.0.lock().await.push(following.clone());
        Ok(following)
    }
}

impl Following {
    /// The last position that was applied.
    pub fn position(&self) -> Position {
        self.standing.borrow().position
    }

    /// Waits until it has applied everything the peer had when it last looked.
    ///
    /// # Errors
    /// When it ends before.
    pub async fn caught_up(&self) -> Result<Position, Arc<FollowError>> {
        let mut standing = self.standing.clone();
        match standing.wait_for(|standing| standing.caught_up || standing.ended.is_some()).await {
            Ok(standing) => match &standing.ended {
                Some(Err(error)) => Err(Arc::clone(error)),
                _ => Ok(standing.position),
            },
            Err(_) => Ok(self.position()),
        }
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// When it could not go on: the log is not the one it was, the peer sends something else, a handler gave up.
    pub async fn ended(&self) -> Result<(), Arc<FollowError>> {
        let mut standing = self.standing.clone();
        match standing.wait_for(|standing| standing.ended.is_some()).await {
            Ok(standing) => standing.ended.clone().unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }

    /// Stops it, after what it is at; what has not ended after 30 seconds is cut off. Stopping twice is fine.
    pub async fn stop(&self) {
        self.stop_by(Instant::now() + STOPPING).await;
    }

    /// Answers whether it ended by itself.
    async fn stop_by(&self, deadline: Instant) -> bool {
        // Somebody else may be waiting for it, too.
        match tokio::time::timeout_at(deadline, self.service.lock()).await {
            Ok(mut service) => service.stop_by(deadline).await,
            Err(_) => false,
        }
    }
}

/// Why a follower does not start, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The URL cannot be that of a Towpath.
    #[error("{0}")]
    BadUrl(String),
    /// The name is not valid.
    #[error("the follower's name is invalid")]
    InvalidName(#[from] InvalidId),
    /// The peer does not answer, or says that it cannot now.
    #[error("the peer does not answer")]
    PeerUnavailable {
        /// What happened.
        #[source]
        source: BoxError,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The peer wants another key, or none may read its log.
    #[error("the peer answered {0}: it does not let this follower read its log")]
    PeerRefused(u16),
    /// The peer shows the fact at this position to callers of a higher role only, and not what it says to this one.
    #[error("the peer withholds what the fact at position {0} says from the role of this follower's key")]
    Withheld(Position),
    /// The answer is no page of a notification log.
    #[error("the peer's answer is no page of a notification log: {0}")]
    Unreadable(String),
    /// The log is not the one that was applied before.
    #[error("the peer's log is not the one that was applied up to position {position}: {what}")]
    Rewritten {
        /// The last position that was applied.
        position: Position,
        /// What differs.
        what: String,
    },
    /// The handler did not do it, and may the next time.
    #[error("the fact at position {position} was not handled ({reason}): {message}")]
    NotHandled {
        /// Which fact.
        position: Position,
        /// The handler's code.
        reason: String,
        /// What it said.
        message: String,
        /// When it wants to try again.
        after: Option<Duration>,
    },
    /// The handler never will.
    #[error("the fact at position {position} cannot be handled ({reason}): {message}")]
    GaveUp {
        /// Which fact.
        position: Position,
        /// The handler's code.
        reason: String,
        /// What it said.
        message: String,
    },
    /// This store has facts of its own about an aggregate of the mirrored log.
    #[error("the fact at position {position} does not follow what is known of {aggregate} here")]
    MirrorConflict {
        /// Which fact.
        position: Position,
        /// About what.
        aggregate: AggregateKey,
    },
    /// The store did not do it.
    #[error("the store did not do it")]
    Store(#[from] StoreError),
}

impl FollowError {
    /// What happened, with its causes.
    pub fn report(&self) -> String {
        crate::bus::with_causes(self)
    }
}

impl Coded for FollowError {
    fn code(&self) -> &'static str {
        match self {
            Self::BadUrl(_) => "bad-peer-url",
            Self::InvalidName(_) => "invalid-id",
            Self::PeerUnavailable { .. } => "peer-unavailable",
            Self::PeerRefused(_) => "peer-refused",
            Self::Withheld(_) => "payload-withheld",
            Self::Unreadable(_) => "log-unreadable",
            Self::Rewritten { .. } => "log-rewritten",
            Self::NotHandled { .. } => "fact-not-handled",
            Self::GaveUp { .. } => "follower-gave-up",
            Self::MirrorConflict { .. } => "mirror-conflict",
            Self::Store(error) => error.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::BadUrl(_) => ErrorClass::Validation,
            Self::InvalidName(_) => ErrorClass::InvalidPayload,
            Self::PeerUnavailable { .. } | Self::NotHandled { .. } => ErrorClass::Transient,
            Self::PeerRefused(_) | Self::Withheld(_) => ErrorClass::Denied,
            Self::Unreadable(_) | Self::Rewritten { .. } | Self::GaveUp { .. } => ErrorClass::Unrecoverable,
            Self::MirrorConflict { .. } => ErrorClass::Conflict,
            Self::Store(error) => error.class(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::BadUrl(_) => "Write http://HOST:PORT or https://HOST; a key is given apart from the URL.",
            Self::InvalidName(_) => "Correct what the cause names.",
            Self::PeerUnavailable { .. } => "Check that the peer runs; it is tried again by itself.",
            Self::PeerRefused(_) => "Give a key of the peer's that may read: role viewer or more.",
            Self::Withheld(_) => {
                "Give a key of the peer's with the role operator; nothing of the page was applied."
            }
            Self::Unreadable(_) => {
                "Check the URL, and proxies on the way: this must be a Towpath's own answer."
            }
            Self::Rewritten { .. } => {
                "Find out why the peer's facts changed (another server, a restored backup); then follow it under a new \
                 name into an empty store."
            }
            Self::NotHandled { .. } => "It is tried again by itself; the message is the handler's.",
            Self::GaveUp { .. } => {
                "Correct the handler and start the follower again: it goes on with this fact."
            }
            Self::MirrorConflict { .. } => {
                "Mirror into a store that has no facts of its own about these aggregates."
            }
            Self::Store(error) => error.next_step(),
        }
    }
}

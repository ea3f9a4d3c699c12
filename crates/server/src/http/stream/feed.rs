//! The feed: one task that follows the log for all readers, and the newest part of the log as it is sent.
//!
//! Every fact is read and written as text once, however many readers there are; they share its bytes. The feed keeps the
//! newest facts only, so many and so large, and never waits for a reader. A reader knows the last position it has sent,
//! and asks for what comes behind it: here if it is recent, in the store if it is older. So nothing can be missed or
//! doubled where the two meet.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use towpath::ids::{AggregateKey, Position};
use towpath::name::EventName;
use towpath::ports::store::{StoreError, StoreResult};
use towpath::{Coded as _, RecordedEvent, Towpath};

use crate::http::access::Role;
use crate::http::memory::Memory;
use crate::http::shares::Shares;
use crate::http::wire::{Event, Sight};

/// The limits of a feed.
#[derive(Debug, Clone)]
pub(crate) struct FeedOptions {
    /// How many of the newest facts are kept.
    pub(crate) recent_facts: usize,
    /// How many bytes they have at most, all together. The newest one is kept however large it is.
    pub(crate) recent_bytes: usize,
    /// How many readers there may be.
    pub(crate) most_readers: usize,
    /// How many of them may be one caller's.
    pub(crate) most_of_one: usize,
    /// How often it is looked for facts without being woken: another process may be the sequencer.
    pub(crate) look: Duration,
    /// After how much silence a reader gets a sign of life.
    pub(crate) heartbeat: Duration,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            recent_facts: 8192,
            recent_bytes: 32 << 20,
            most_readers: 2000,
            most_of_one: 2000,
            look: Duration::from_millis(250),
            heartbeat: Duration::from_secs(15),
        }
    }
}

/// The feed of a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Inner>);

struct Inner {
    towpath: Towpath,
    options: FeedOptions,
    recent: RwLock<Recent>,
    /// The newest position that is kept here. Tells readers that there is more.
    newest: watch::Sender<Position>,
    stopped: watch::Sender<bool>,
    places: Arc<Semaphore>,
    shares: Shares,
    /// A reader came where there was none.
    wanted: Notify,
    /// Few read old facts from the store at a time: readers that all come back at once must not take every connection.
    old_facts: Semaphore,
}

/// A fact, as every reader gets it.
pub(super) struct Fact {
    pub(super) position: Position,
    pub(super) event_type: EventName,
    pub(super) aggregate: AggregateKey,
    message: Bytes,
    /// Where its payload is not for viewers.
    for_viewers: Option<Bytes>,
}

impl Fact {
    fn of(event: &RecordedEvent, message: Bytes, for_viewers: Option<Bytes>) -> Arc<Self> {
        Arc::new(Self {
            position: event.position.unwrap_or_default(),
            event_type: event.envelope.event_type.clone(),
            aggregate: event.envelope.aggregate.clone(),
            message,
            for_viewers,
        })
    }

    /// As a reader of this role gets it.
    pub(super) fn message_for(&self, role: Role) -> &Bytes {
        self.for_viewers.as_ref().filter(|_| role < Role::Operator).unwrap_or(&self.message)
    }

    pub(super) fn bytes(&self) -> usize {
        self.message.len() + self.for_viewers.as_ref().map_or(0, Bytes::len)
    }
}

/// The newest part of the log.
#[derive(Default)]
struct Recent {
    /// Whether anything is kept. Nothing is while there are no readers.
    begun: bool,
    /// The position behind which the kept facts begin.
    after: Position,
    facts: VecDeque<Arc<Fact>>,
    bytes: usize,
    /// Counts how often the log turned out to be another one.
    life: u64,
}

/// A reader's place.
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    _share: OwnedSemaphorePermit,
}

/// Why there is no place.
#[derive(Debug)]
pub(super) enum Full {
    /// This caller has as many as one may have.
    OfTheCaller,
    /// All are taken.
    OfAll,
}

/// What there is behind a position.
pub(super) enum Behind {
    /// These.
    Facts(Vec<Arc<Fact>>),
    /// Nothing yet.
    Nothing,
    /// More than is kept here.
    Older,
    /// Nothing is kept here yet.
    NotBegun,
    /// The log is not the one it was.
    OtherLog,
}

/// How many facts the feed reads at a time.
const READ: u64 = 200;

/// How many bytes of payload the feed reads at a time, if it is more than one fact.
const READ_BYTES: u64 = 4 << 20;

/// How large a fact is at most beside its payload, as it is sent: nearly.
const AROUND_A_PAYLOAD: u64 = 512;

/// How many store reads of old facts run at a time.
const OLD_READS: usize = 3;

impl Feed {
    /// Starts to follow the log. It reads nothing while it has no readers.
    pub(crate) fn start(towpath: Towpath, options: FeedOptions) -> Self {
        let places = Arc::new(Semaphore::new(options.most_readers));
        let shares = Shares::of(options.most_of_one);
        let feed = Self(Arc::new(Inner {
            towpath,
            options,
            recent: RwLock::default(),
            newest: watch::Sender::default(),
            stopped: watch::Sender::default(),
            places,
            shares,
            wanted: Notify::new(),
            old_facts: Semaphore::new(OLD_READS),
        }));
        tokio::spawn(feed.clone().run());
        feed
    }

    /// Ends the task and all readers.
    pub(crate) fn stop(&self) {
        self.0.stopped.send_replace(true);
    }

    /// How many readers there are.
    pub(crate) fn readers(&self) -> usize {
        self.0.options.most_readers - self.0.places.available_permits()
    }

    #[cfg(test)]
    pub(super) fn keeps_facts(&self) -> bool {
        !self.0.recent.read().unwrap_or_else(PoisonError::into_inner).facts.is_empty()
    }

    /// A place for one more reader of this caller, given back when it is dropped.
    pub(super) fn place(&self, caller: &str) -> Result<Place, Full> {
        let share = self.0.shares.share_of(caller).try_acquire_owned().map_err(|_| Full::OfTheCaller)?;
        let place = Arc::clone(&self.0.places).try_acquire_owned().map_err(|_| Full::OfAll)?;
        self.0.wanted.notify_one();
        Ok(Place { _place: place, _share: share })
    }

    /// The last position given.
    pub(super) async fn log_head(&self) -> StoreResult<Position> {
        self.0.towpath.store().head().await
    }

    pub(super) fn heartbeat(&self) -> Duration {
        self.0.options.heartbeat
    }

    /// Tells when there is more, by the newest position.
    pub(super) fn newest(&self) -> watch::Receiver<Position> {
        self.0.newest.subscribe()
    }

    /// Tells when all is over.
    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.0.stopped.subscribe()
    }

    /// Which log this is: it changes when the log goes back.
    pub(super) fn life(&self) -> u64 {
        self.0.recent.read().unwrap_or_else(PoisonError::into_inner).life
    }

    /// What comes right behind a position, up to so many and so many bytes, and at least one.
    pub(super) fn behind(&self, position: Position, life: u64, most: usize, most_bytes: usize) -> Behind {
        let recent = self.0.recent.read().unwrap_or_else(PoisonError::into_inner);
        if recent.life != life {
            return Behind::OtherLog;
        }
        if !recent.begun {
            return Behind::NotBegun;
        }
        let Some(skipped) = position.checked_sub(recent.after) else { return Behind::Older };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let (mut bytes, mut is_first) = (0, true);
        let fits = |fact: &&Arc<Fact>| {
            bytes += fact.bytes();
            std::mem::take(&mut is_first) || bytes <= most_bytes
        };
        let facts: Vec<_> = recent.facts.iter().skip(skipped).take(most).take_while(fits).cloned().collect();
        if facts.is_empty() { Behind::Nothing } else { Behind::Facts(facts) }
    }

    /// The same from the store. Nothing where there is no room for them at the moment.
    pub(super) async fn older(
        &self,
        memory: &Memory,
        role: Role,
        position: Position,
        most: u64,
        most_bytes: u64,
    ) -> StoreResult<Vec<Arc<Fact>>> {
        let (low, high) = (position.saturating_add(1), position.saturating_add(most));
        let mut high = high.min(i64::MAX as u64);
        let mut waited_for = None;
        loop {
            let Ok(turn) = self.0.old_facts.acquire().await else { return Ok(Vec::new()) };
            let events = self.0.towpath.store().events_within(low, high, most_bytes).await?;
            let mut in_order = (low..).zip(&events);
            if let Some((missing, _)) = in_order.find(|(next, event)| event.position != Some(*next)) {
                return Err(out_of_order(missing));
            }
            let Some(last) = events.last().and_then(|event| event.position) else { return Ok(Vec::new()) };
            // A reader has these for itself, unlike the recent ones.
            let size =
                |event: &RecordedEvent| event.envelope.payload.as_text().len() as u64 + AROUND_A_PAYLOAD;
            let bytes = events.iter().map(size).sum();
            let Some(room) = waited_for.take().or_else(|| memory.room_now(bytes).ok()) else {
                // Who waits for room has none of the turns, and nothing in memory: it reads them again.
                drop((turn, events));
                let Ok(room) = memory.room(bytes).await else { return Ok(Vec::new()) };
                (waited_for, high) = (Some(room), last);
                continue;
            };
            let (room, sight) = (Arc::new(room), Sight::of(&self.0.towpath, role));
            let fact = |event| Ok(Fact::of(event, room.shared(written(event, &sight)?), None));
            return events.iter().map(fact).collect();
        }
    }

    async fn run(self) {
        let mut sequenced = self.0.towpath.sequenced();
        let mut stopped = self.stopped();
        while !*stopped.borrow_and_update() {
            if self.forgets() {
                tokio::select! {
                    () = self.0.wanted.notified() => {}
                    _ = stopped.changed() => continue,
                }
            }
            if let Err(error) = self.take_what_is_new().await {
                tracing::warn!(code = error.code(), %error, "the event stream cannot read the log; trying again");
            }
            tokio::select! {
                _ = stopped.changed() => {}
                _ = sequenced.changed() => {}
                () = tokio::time::sleep(self.0.options.look) => {}
            }
        }
    }

    /// Lets go of everything if there are no readers; answers whether there are none. Whoever comes now finds that nothing
    /// has begun.
    fn forgets(&self) -> bool {
        let mut recent = self.0.recent.write().unwrap_or_else(PoisonError::into_inner);
        if self.readers() > 0 {
            return false;
        }
        *recent = Recent { life: recent.life, ..Recent::default() };
        true
    }

    async fn take_what_is_new(&self) -> StoreResult<()> {
        let head = self.log_head().await?;
        let (begun, mut at) = {
            let recent = self.0.recent.read().unwrap_or_else(PoisonError::into_inner);
            (recent.begun, recent.after + recent.facts.len() as u64)
        };
        if !begun || head < at {
            if begun {
                tracing::error!(
                    at,
                    head,
                    "the log has gone back: it is another one, or was restored from a backup"
                );
            }
            self.begin_at(head, begun);
            return Ok(());
        }
        while at < head {
            let (low, high) = (at + 1, (at + READ).min(head));
            let read = self.0.towpath.store().events_within(low, high, READ_BYTES).await?;
            if read.is_empty() {
                return Err(out_of_order(at + 1));
            }
            let facts = read.iter().map(|event| self.for_all(event)).collect::<StoreResult<Vec<_>>>()?;
            at = self.keep(at, facts)?;
        }
        Ok(())
    }

    /// A fact for readers of all roles.
    fn for_all(&self, event: &RecordedEvent) -> StoreResult<Arc<Fact>> {
        let viewers = Sight::of(&self.0.towpath, Role::Viewer);
        let for_viewers = match viewers.withholds_fact(&event.envelope) {
            Some(_) => Some(written(event, &viewers)?.into()),
            None => None,
        };
        let message = written(event, &Sight::of(&self.0.towpath, Role::Operator))?;
        Ok(Fact::of(event, message.into(), for_viewers))
    }

    fn begin_at(&self, position: Position, other_log: bool) {
        let mut recent = self.0.recent.write().unwrap_or_else(PoisonError::into_inner);
        let life = recent.life + u64::from(other_log);
        *recent = Recent { begun: true, after: position, life, ..Recent::default() };
        drop(recent);
        self.0.newest.send_replace(position);
    }

    fn keep(&self, mut at: Position, facts: Vec<Arc<Fact>>) -> StoreResult<Position> {
        let mut recent = self.0.recent.write().unwrap_or_else(PoisonError::into_inner);
        for fact in facts {
            if fact.position != at + 1 {
                return Err(out_of_order(at + 1));
            }
            at = fact.position;
            recent.bytes += fact.bytes();
            recent.facts.push_back(fact);
        }
        let options = &self.0.options;
        while recent.facts.len() > options.recent_facts.max(1)
            || (recent.bytes > options.recent_bytes && recent.facts.len() > 1)
        {
            let Some(oldest) = recent.facts.pop_front() else { break };
            recent.bytes -= oldest.bytes();
            recent.after = oldest.position;
        }
        drop(recent);
        self.0.newest.send_replace(at);
        Ok(at)
    }
}

/// A fact as it is sent: the same object as in `/api/events`.
fn written(event: &RecordedEvent, sight: &Sight) -> StoreResult<Vec<u8>> {
    let position = event.position.unwrap_or_default();
    let unwritable = |error: serde_json::Error| StoreError::Corrupt {
        what: format!("the event at position {position}"),
        source: error.into(),
    };
    let mut message = format!("id: {position}\ndata: ").into_bytes();
    let begin = message.len();
    serde_json::to_writer(&mut message, &Event::seen(event, sight)).map_err(unwritable)?;
    // A payload is kept as its exact text and may have line breaks between its values, where JSON means nothing by them;
    // here a line break would end the message.
    for byte in &mut message[begin..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message.extend_from_slice(b"\n\n");
    Ok(message)
}

fn out_of_order(position: Position) -> StoreError {
    StoreError::Corrupt {
        what: "the log".to_owned(),
        source: format!("there is no position {position}").into(),
    }
}

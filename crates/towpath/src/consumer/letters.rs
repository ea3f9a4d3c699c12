//! Dead letters: what an operator sees and does.
//!
//! A bulk action is taken in two steps: a preview says what it would touch, and the action touches exactly what the
//! preview counted, not what has arrived since.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use towpath_core::ids::ActorId;
use towpath_core::letters::{Letter, LetterFilter, LetterGroup};
use towpath_core::lifecycle::LetterStatus;
use towpath_core::ports::broker::{Broker, Destination, Message, Published};
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::StoreError;
use towpath_core::retry::{Coded, ErrorClass};
use towpath_core::time::between;
use towpath_store::SqlStore;

/// How many letters one transaction touches.
const PAGE: u32 = 500;

/// How long the broker may take to confirm a letter that goes back to it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The headers that say from which queue a message was given up. The last one is who did not want it; the first one may be
/// a delay queue that it has left long ago.
const DEATH_QUEUES: [&str; 2] = ["x-last-death-queue", "x-first-death-queue"];

/// The dead letters of all consumers and brokers, in one view.
pub struct Letters<'a> {
    pub(crate) store: &'a SqlStore,
    pub(crate) broker: &'a Arc<dyn Broker>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) horizon: Duration,
    pub(crate) by: Option<ActorId>,
}

/// What a bulk action would touch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    #[serde(skip)]
    filter: LetterFilter,
    /// How many letters.
    pub count: u64,
    /// By cause, the largest groups first.
    pub groups: Vec<LetterGroup>,
}

/// What a replay did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayReport {
    /// Letters that are due now at their handler.
    pub to_handlers: u64,
    /// Letters that went back to the broker.
    pub to_broker: u64,
    /// Letters that were not dead any more.
    pub changed_meanwhile: u64,
    /// Letters that were refused, because they are older than the de-duplication horizon.
    pub beyond_horizon: u64,
    /// Letters that were refused, because their body was larger than the database takes and is gone.
    pub without_body: u64,
}

/// Why an action on letters was refused.
#[derive(Debug, thiserror::Error)]
pub enum LettersError {
    /// There is no such letter.
    #[error("there is no dead letter {0}")]
    Unknown(u64),
    /// It is not dead (any more).
    #[error("letter {letter_id} is {status}")]
    NotDead {
        /// Which.
        letter_id: u64,
        /// Where it is.
        status: LetterStatus,
    },
    /// It is older than the horizon: a handler that had handled it would not know any more.
    #[error("letter {letter_id} is older than the de-duplication horizon of {} hours", horizon.as_secs() / 3600)]
    BeyondHorizon {
        /// Which.
        letter_id: u64,
        /// How long the inbox remembers.
        horizon: Duration,
    },
    /// Its body was larger than the database takes: only size and hash are kept.
    #[error("letter {letter_id} has no body: it was larger than the database takes")]
    WithoutBody {
        /// Which.
        letter_id: u64,
    },
    /// The broker did not take it back.
    #[error("the broker did not take letter {letter_id} back: {reason}")]
    NotTaken {
        /// Which.
        letter_id: u64,
        /// What it said.
        reason: String,
    },
    /// The store cannot be used.
    #[error("the dead letters cannot be read or written")]
    Store(#[from] StoreError),
}

impl Coded for LettersError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Unknown(_) => ErrorClass::NotFound,
            Self::NotDead { .. } | Self::BeyondHorizon { .. } | Self::WithoutBody { .. } => {
                ErrorClass::Validation
            }
            Self::NotTaken { .. } => ErrorClass::Transient,
            Self::Store(error) => error.class(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "letter-unknown",
            Self::NotDead { .. } => "letter-not-dead",
            Self::BeyondHorizon { .. } => "beyond-horizon",
            Self::WithoutBody { .. } => "letter-without-body",
            Self::NotTaken { .. } => "letter-not-taken",
            Self::Store(error) => error.code(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "List the dead letters; it may have been cleaned up.",
            Self::NotDead { .. } => "Look at the letter again; somebody may have acted on it.",
            Self::BeyondHorizon { .. } => {
                "Make sure that no handler has handled it before, then replay it with force."
            }
            Self::WithoutBody { .. } => {
                "Give it its body again by editing it, if somebody still has it; or have it sent again, and discard this one."
            }
            Self::NotTaken { .. } => "Check the broker and the queue the letter came from, then try again.",
            Self::Store(error) => error.next_step(),
        }
    }
}

impl Letters<'_> {
    /// In somebody's name: it is recorded with what they do.
    pub fn by(mut self, actor: ActorId) -> Self {
        self.by = Some(actor);
        self
    }

    /// Letters behind a number, in order. [`LetterFilter::dead`] gives the dead ones.
    pub async fn list(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Letter>, LettersError> {
        Ok(self.store.letters(filter, after, limit).await?)
    }

    /// One letter, with its message to the letter.
    pub async fn get(&self, letter_id: u64) -> Result<Letter, LettersError> {
        self.store.letter(letter_id).await?.ok_or(LettersError::Unknown(letter_id))
    }

    /// Letters by cause, the largest groups first.
    pub async fn groups(&self, filter: &LetterFilter) -> Result<Vec<LetterGroup>, LettersError> {
        Ok(self.store.letter_groups(filter).await?)
    }

    /// What a bulk action on the dead letters of a filter would touch.
    pub async fn preview(&self, filter: LetterFilter) -> Result<Preview, LettersError> {
        let mut filter = LetterFilter { status: Some(LetterStatus::Dead), ..filter };
        let groups = self.store.letter_groups(&filter).await?;
        let last = groups.iter().map(|group| group.last_id).max().unwrap_or(0);
        filter.up_to = Some(filter.up_to.map_or(last, |up_to| up_to.min(last)));
        Ok(Preview { filter, count: groups.iter().map(|group| group.count).sum(), groups })
    }

    /// Lets one dead letter be tried again: by its handler, or, if the broker had given it up, by way of the broker.
    ///
    /// # Errors
    /// `BeyondHorizon` for one that goes back to the broker and is older than the inbox remembers, unless `force`.
    /// `WithoutBody` for one that was too large to be kept.
    pub async fn replay(&self, letter_id: u64, force: bool) -> Result<(), LettersError> {
        let letter = self.get(letter_id).await?;
        if letter.status != LetterStatus::Dead {
            return Err(LettersError::NotDead { letter_id, status: letter.status });
        }
        let report = self.replay_page(std::slice::from_ref(&letter), force).await?;
        if report.beyond_horizon > 0 {
            return Err(LettersError::BeyondHorizon { letter_id, horizon: self.horizon });
        }
        if report.without_body > 0 {
            return Err(LettersError::WithoutBody { letter_id });
        }
        match report.changed_meanwhile {
            0 => Ok(()),
            _ => Err(LettersError::NotDead { letter_id, status: self.get(letter_id).await?.status }),
        }
    }

    /// Lets all letters of a preview be tried again.
    pub async fn replay_all(&self, preview: &Preview, force: bool) -> Result<ReplayReport, LettersError> {
        let (mut total, mut after) = (ReplayReport::default(), 0);
        loop {
            let page = self.store.letters_in_short(&preview.filter, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(total) };
            after = last.letter_id;
            let report = self.replay_page(&page, force).await?;
            total.to_handlers += report.to_handlers;
            total.to_broker += report.to_broker;
            total.changed_meanwhile += report.changed_meanwhile;
            total.beyond_horizon += report.beyond_horizon;
            total.without_body += report.without_body;
        }
    }

    /// Bodies and headers of these letters need not be read: those that are needed are read one at a time.
    async fn replay_page(&self, page: &[Letter], force: bool) -> Result<ReplayReport, LettersError> {
        let now = self.clock.now();
        let (page, without_body): (Vec<&Letter>, Vec<&Letter>) =
            page.iter().partition(|letter| letter.body_kept);
        let mut report = ReplayReport { without_body: without_body.len() as u64, ..ReplayReport::default() };
        // The inbox remembers what was given up until it is replayed, whatever the horizon.
        let handlers: Vec<u64> = page
            .iter()
            .filter(|letter| letter.letter.handler.is_some())
            .map(|letter| letter.letter_id)
            .collect();
        report.to_handlers = self.store.replay_letters(&handlers, self.by.as_ref(), now).await?;
        report.changed_meanwhile = handlers.len() as u64 - report.to_handlers.min(handlers.len() as u64);
        for letter in page.iter().filter(|letter| letter.letter.handler.is_none()) {
            if !force && self.is_beyond_horizon(letter, now) {
                report.beyond_horizon += 1;
                continue;
            }
            if !self.store.forget_death(letter.letter_id).await? {
                report.changed_meanwhile += 1;
                continue;
            }
            self.give_back(&self.get(letter.letter_id).await?).await?;
            match self.store.letter_republished(letter.letter_id, self.by.as_ref(), now).await? {
                true => report.to_broker += 1,
                false => report.changed_meanwhile += 1,
            }
        }
        Ok(report)
    }

    fn is_beyond_horizon(&self, letter: &Letter, now: DateTime<Utc>) -> bool {
        let happened = letter.letter.message.occurred_at.unwrap_or(letter.letter.received_at);
        between(happened, now) > self.horizon
    }

    /// Publishes a letter to the queue that gave it up, with all its properties.
    async fn give_back(&self, letter: &Letter) -> Result<(), LettersError> {
        let received = &letter.letter.message;
        let header = |wanted: &str| received.headers.iter().find(|(name, _)| name == wanted);
        let destination = match DEATH_QUEUES.into_iter().find_map(header).map(|(_, queue)| queue) {
            Some(queue) => queue_itself(queue.clone()),
            None => received.destination.clone(),
        };
        let published = publish_again(self.broker.as_ref(), letter, destination).await;
        published.map_err(|reason| LettersError::NotTaken { letter_id: letter.letter_id, reason })
    }

    /// Replaces the body of a dead letter; the first one is kept beside it.
    pub async fn edit(&self, letter_id: u64, body: &[u8]) -> Result<(), LettersError> {
        let letter = self.get(letter_id).await?;
        let now = self.clock.now();
        match self.store.edit_letter(&letter, body, self.by.as_ref(), now).await? {
            true => Ok(()),
            false => Err(LettersError::NotDead { letter_id, status: self.get(letter_id).await?.status }),
        }
    }

    /// Throws one letter away, with why. What waits behind it goes on.
    pub async fn discard(&self, letter_id: u64, message: Option<&str>) -> Result<(), LettersError> {
        let letter = self.get(letter_id).await?;
        let open = matches!(letter.status, LetterStatus::Dead | LetterStatus::Retry | LetterStatus::Behind);
        let now = self.clock.now();
        if open && self.store.discard_letter(&letter, self.by.as_ref(), message, now).await? {
            return Ok(());
        }
        Err(LettersError::NotDead { letter_id, status: self.get(letter_id).await?.status })
    }

    /// Throws all letters of a preview away, with why. Answers how many.
    pub async fn discard_all(&self, preview: &Preview, message: Option<&str>) -> Result<u64, LettersError> {
        let (mut discarded, mut after) = (0, 0);
        loop {
            let page = self.store.letters_in_short(&preview.filter, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(discarded) };
            after = last.letter_id;
            let now = self.clock.now();
            for letter in &page {
                if self.store.discard_letter(letter, self.by.as_ref(), message, now).await? {
                    discarded += 1;
                }
            }
        }
    }
}

/// Publishes a letter to a queue, with all its properties; what the broker said if it did not take it.
pub(super) async fn republish(broker: &dyn Broker, letter: &Letter, queue: String) -> Result<(), String> {
    publish_again(broker, letter, queue_itself(queue)).await
}

/// Every queue is bound to the exchange without a name under its own name.
fn queue_itself(queue: String) -> Destination {
    Destination { exchange: String::new(), routing_key: queue }
}

async fn publish_again(broker: &dyn Broker, letter: &Letter, destination: Destination) -> Result<(), String> {
    let received = &letter.letter.message;
    let is_brokers_own =
        |name: &str| ["x-death", "x-first-death", "x-last-death"].iter().any(|own| name.starts_with(own));
    let headers = received.headers.iter().filter(|(name, _)| !is_brokers_own(name)).cloned().collect();
    let message = Message {
        destination,
        message_id: received.message_id.clone().unwrap_or_default(),
        message_type: received.message_type.clone().unwrap_or_default(),
        key: received.key.clone().unwrap_or_default(),
        occurred_at: received.occurred_at.unwrap_or(letter.letter.received_at),
        content_type: received.content_type.clone().unwrap_or_default(),
        headers,
        body: received.body.clone(),
    };
    match broker.publish(&[message], PATIENCE).await.into_iter().next() {
        Some(Published::Confirmed) => Ok(()),
        Some(
            Published::Unroutable { reason }
            | Published::Refused { reason }
            | Published::NotTaken { reason }
            | Published::NotSent { reason }
            | Published::Unknown { reason },
        ) => Err(reason),
        None => Err("it gave no answer".to_owned()),
    }
}

//! The topics that are not kept in memory. Their cases are shown to fail on a database, by statements with a condition taken out.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::*;
use towpath_core::letters::*;
use towpath_core::lifecycle::*;
use towpath_core::ports::broker::Topology;
use towpath_core::ports::store::*;

use uuid::Uuid;

use super::MemoryStore;

/// What a store in memory says of them.
pub(super) fn absent<T>() -> StoreResult<T> {
    Err(StoreError::Refused { statement: "a topic of databases", source: "it is not kept in memory".into() })
}

#[async_trait]
impl Letters for MemoryStore {
    async fn set_aside(&self, _aside: &SetAside) -> StoreResult<AsideOutcome> {
        absent()
    }

    async fn next_letter_due(&self, _handler: &HandlerName) -> StoreResult<Option<DateTime<Utc>>> {
        absent()
    }

    async fn take_letter(
        &self,
        _handler: &HandlerName,
        _in_hand: &[u64],
        _now: DateTime<Utc>,
        _until: DateTime<Utc>,
    ) -> StoreResult<Option<Letter>> {
        absent()
    }

    async fn release_letter(&self, _letter: &Letter, _due_at: DateTime<Utc>) -> StoreResult<bool> {
        absent()
    }

    async fn count_failure_of(
        &self,
        _letter: &Letter,
        _failure: &InboxFailure<'_>,
    ) -> StoreResult<Option<InboxEntry>> {
        absent()
    }

    async fn advance_letters(
        &self,
        _handler: &HandlerName,
        _after: Option<Lane>,
        _now: DateTime<Utc>,
    ) -> StoreResult<Option<Lane>> {
        absent()
    }

    async fn advance_lanes(
        &self,
        _handler: &HandlerName,
        _lanes: &[Lane],
        _now: DateTime<Utc>,
    ) -> StoreResult<()> {
        absent()
    }

    async fn letter_given_back(&self, _letter: &Letter, _now: DateTime<Utc>) -> StoreResult<bool> {
        absent()
    }

    async fn read_in_letter(
        &self,
        _letter: &NewLetter,
        _death_key: &str,
        _reason: &str,
        _now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        absent()
    }

    async fn letter(&self, _letter_id: u64) -> StoreResult<Option<Letter>> {
        absent()
    }

    async fn letters(&self, _filter: &LetterFilter, _after: u64, _limit: u32) -> StoreResult<Vec<Letter>> {
        absent()
    }

    async fn letters_in_short(
        &self,
        _filter: &LetterFilter,
        _after: u64,
        _limit: u32,
    ) -> StoreResult<Vec<Letter>> {
        absent()
    }

    async fn letter_groups(&self, _filter: &LetterFilter) -> StoreResult<Vec<LetterGroup>> {
        absent()
    }

    async fn replay_letters(
        &self,
        _letter_ids: &[u64],
        _by: Option<&ActorId>,
        _now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn forget_death(&self, _letter_id: u64) -> StoreResult<bool> {
        absent()
    }

    async fn letter_republished(
        &self,
        _letter_id: u64,
        _by: Option<&ActorId>,
        _now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        absent()
    }

    async fn edit_letter(
        &self,
        _letter: &Letter,
        _body: &[u8],
        _by: Option<&ActorId>,
        _now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        absent()
    }

    async fn discard_letter(
        &self,
        _letter: &Letter,
        _by: Option<&ActorId>,
        _message: Option<&str>,
        _now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        absent()
    }
}

#[async_trait]
impl Queues for MemoryStore {
    async fn layout(&self) -> StoreResult<Layout> {
        absent()
    }

    async fn extend_layout(&self, _revision: u64, _additions: &Topology) -> StoreResult<bool> {
        absent()
    }

    async fn put_messages(&self, _revision: u64, _parcels: &[Parcel<'_>]) -> Result<bool, PutError> {
        absent().map_err(PutError::NotWritten)
    }

    async fn begin_receiving(&self, _lease: &LeaseName, _for_: Duration) -> StoreResult<LeaseGrant> {
        absent()
    }

    async fn keep_receiving(&self, _grant: &LeaseGrant, _for_: Duration) -> StoreResult<bool> {
        absent()
    }

    async fn end_receiving(&self, _receiver: &Receiver) -> StoreResult<()> {
        absent()
    }

    async fn take_messages(
        &self,
        _receiver: &Receiver,
        _limit: u32,
        _bytes: u64,
    ) -> StoreResult<Vec<TakenMessage>> {
        absent()
    }

    async fn end_messages(&self, _grant: &LeaseGrant, _endings: &[Ending]) -> StoreResult<()> {
        absent()
    }

    async fn recover_messages(&self) -> StoreResult<u64> {
        absent()
    }

    async fn queue_depths(&self, _queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>> {
        absent()
    }
}

#[async_trait]
impl Observations for MemoryStore {
    async fn due_subjects(
        &self,
        _observer: &str,
        _place: Option<&ScanPlace>,
        _limit: u32,
    ) -> StoreResult<DuePage> {
        absent()
    }

    async fn hinted_subjects(&self, _observer: &str, _hints: &[String]) -> StoreResult<Vec<Listed>> {
        absent()
    }

    async fn begin_look(&self, _observer: &str, _subject_id: &str) -> StoreResult<Option<Watched>> {
        absent()
    }

    async fn note_looks(&self, _: &LeaseGrant, _observer: &str, _looks: &[NotedLook]) -> StoreResult<()> {
        absent()
    }

    async fn looks_at(&self, _observer: &str, _subject_id: &str) -> StoreResult<Option<Looks>> {
        absent()
    }
}

#[async_trait]
impl Projections for MemoryStore {
    async fn projection_made_by(&self, _projection: &str, _kind: &str) -> StoreResult<u32> {
        absent()
    }

    async fn projection_is_made(&self, _projection: &str, _kind: &str, _by: u32) -> StoreResult<()> {
        absent()
    }

    async fn projected_behind(
        &self,
        _projection: &str,
        _kind: &str,
        _after: &str,
        _limit: u32,
    ) -> StoreResult<Vec<ProjectedAggregate>> {
        absent()
    }

    async fn projection_progress(
        &self,
        _projection: &str,
        _kind: &str,
        _by: u32,
    ) -> StoreResult<ProjectionProgress> {
        absent()
    }
}

#[async_trait]
impl Processes for MemoryStore {
    async fn process_inputs(
        &self,
        _process: &AggregateKey,
        _after: Option<EventId>,
        _limit: u32,
    ) -> StoreResult<Vec<ProcessInput>> {
        absent()
    }

    async fn next_undo(&self, _process: &AggregateKey, _before: Option<u64>) -> StoreResult<Option<Undo>> {
        absent()
    }

    async fn note_undone(&self, _undo_id: u64, _now: DateTime<Utc>) -> StoreResult<()> {
        absent()
    }
}

#[async_trait]
impl Tasks for MemoryStore {
    async fn promote_tasks(&self, _limit: u32) -> StoreResult<Promoted> {
        absent()
    }

    async fn claim_tasks(&self, _wanted: &[WantedTasks<'_>], _worker: &str) -> StoreResult<Vec<Task>> {
        absent()
    }

    async fn return_unseen_tasks(&self, _worker: &str, _seen: &[TaskId]) -> StoreResult<u64> {
        absent()
    }

    async fn waiting_tasks(&self, _wanted: &[WantedTasks<'_>]) -> StoreResult<Vec<Task>> {
        absent()
    }

    async fn beat_tasks(&self, _claims: &[TaskClaim]) -> StoreResult<TaskBeats> {
        absent()
    }

    async fn end_tasks(&self, _endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>> {
        absent()
    }

    async fn take_over_tasks(
        &self,
        _types: &[&str],
        _worker: &str,
        _living: &[TaskId],
        _limit: u32,
    ) -> StoreResult<Vec<Task>> {
        absent()
    }

    async fn retry_task(&self, _task_id: TaskId) -> StoreResult<TaskRetry> {
        absent()
    }

    async fn task(&self, _task_id: TaskId) -> StoreResult<Option<Task>> {
        absent()
    }

    async fn list_tasks(
        &self,
        _filter: &TaskFilter,
        _after: Option<&TaskPlace>,
        _limit: u32,
    ) -> StoreResult<Vec<Task>> {
        absent()
    }

    async fn task_backlog(&self, _types: &[&str]) -> StoreResult<TaskBacklog> {
        absent()
    }
}

#[async_trait]
impl Listings for MemoryStore {
    async fn commands(
        &self,
        _status: Option<CommandStatus>,
        _behind: Option<&CommandId>,
        _limit: u32,
    ) -> StoreResult<Vec<CommandRecord>> {
        absent()
    }

    async fn outbox_rows(
        &self,
        _filter: &OutboxFilter,
        _after: u64,
        _limit: u32,
    ) -> StoreResult<Vec<FailedRow>> {
        absent()
    }

    async fn outbox_row(&self, _outbox_id: u64) -> StoreResult<Option<FailedRow>> {
        absent()
    }

    async fn aggregates(
        &self,
        _kind: &AggregateKind,
        _after: Option<&AggregateId>,
        _limit: u32,
    ) -> StoreResult<Vec<AggregateRow>> {
        absent()
    }

    async fn trace(
        &self,
        _id: &str,
        _aggregates: &[AggregateKey],
    ) -> StoreResult<Vec<(FoundAs, CorrelationId)>> {
        absent()
    }
}

#[async_trait]
impl Following for MemoryStore {
    async fn open_followed_log(
        &self,
        _follower: &HandlerName,
        _peer_url: &str,
        _now: DateTime<Utc>,
    ) -> StoreResult<FollowedLog> {
        absent()
    }

    async fn followed_log(&self, _follower: &HandlerName) -> StoreResult<Option<FollowedLog>> {
        absent()
    }
}

#[async_trait]
impl Backlogs for MemoryStore {
    async fn backlog(&self, _channels: &[ChannelName], _now: DateTime<Utc>) -> StoreResult<Backlog> {
        absent()
    }
}

#[async_trait]
impl Recents for MemoryStore {
    async fn recent(
        &self,
        _channels: &[ChannelName],
        _since: DateTime<Utc>,
        _events_since: DateTime<Utc>,
    ) -> StoreResult<Recent> {
        absent()
    }
}

#[async_trait]
impl Alerts for MemoryStore {
    async fn open_alerts(&self, _limit: u32) -> StoreResult<Vec<Alert>> {
        absent()
    }

    async fn alert_run(&self) -> StoreResult<Option<AlertRun>> {
        absent()
    }

    async fn alert_history(
        &self,
        _rule: Option<&str>,
        _before: AlertCursor,
        _limit: u32,
    ) -> StoreResult<Vec<NotedChange>> {
        absent()
    }

    async fn add_silence(&self, _silence: &NewSilence) -> StoreResult<()> {
        absent()
    }

    async fn silences(&self, _ending_after: DateTime<Utc>, _limit: u32) -> StoreResult<Vec<Silence>> {
        absent()
    }

    async fn silence(&self, _silence_id: uuid::Uuid) -> StoreResult<Option<Silence>> {
        absent()
    }

    async fn end_silence(
        &self,
        _silence_id: uuid::Uuid,
        _by: &str,
        _now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        absent()
    }
}

#[async_trait]
impl Notices for MemoryStore {
    async fn notify(&self, _sender: &str) -> StoreResult<()> {
        absent()
    }

    async fn hear(&self) -> StoreResult<Option<Box<dyn NoticeListener>>> {
        absent()
    }
}

#[async_trait]
impl Checking for MemoryStore {
    async fn begin_check(&self, _check: &CheckRow) -> StoreResult<()> {
        absent()
    }

    async fn next_check(&self) -> StoreResult<Option<CheckRow>> {
        absent()
    }

    async fn save_check(&self, _lease: &LeaseGrant, _check: &CheckRow) -> StoreResult<bool> {
        absent()
    }

    async fn find_check(&self, _check_id: Uuid) -> StoreResult<Option<CheckRow>> {
        absent()
    }

    async fn last_check(&self) -> StoreResult<Option<CheckRow>> {
        absent()
    }

    async fn last_version_gaps(&self) -> StoreResult<Option<u64>> {
        absent()
    }

    async fn clean_checks(
        &self,
        _lease: &LeaseGrant,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn note_channel_starts(&self, _starts: &[ChannelStart]) -> StoreResult<()> {
        absent()
    }

    async fn channel_starts(&self) -> StoreResult<Vec<ChannelStart>> {
        absent()
    }

    async fn position_before(&self, _since: DateTime<Utc>) -> StoreResult<Position> {
        absent()
    }

    async fn suspects(
        &self,
        _suspicion: &Suspicion<'_>,
        _behind: Option<&[String]>,
        _limit: u32,
    ) -> StoreResult<SuspectPage> {
        absent()
    }

    async fn suspects_among(
        &self,
        _suspicion: &Suspicion<'_>,
        _keys: &[Vec<String>],
    ) -> StoreResult<Vec<Suspect>> {
        absent()
    }

    async fn checked_events(&self, _behind: Position, _up_to: Position) -> StoreResult<Vec<CheckedEvent>> {
        absent()
    }

    async fn known_causes(&self, _ids: &[Uuid]) -> StoreResult<Vec<KnownCause>> {
        absent()
    }

    async fn consumers_past(&self, _event_id: EventId) -> StoreResult<Vec<PastConsumer>> {
        absent()
    }

    async fn repair(&self, _repair: &Repair, _fact: &Append, _now: DateTime<Utc>) -> StoreResult<Repaired> {
        absent()
    }
}

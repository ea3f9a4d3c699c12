//! A store that lives in memory. It is nobody's product: the suite is run against it, to show that the suite can
//! be passed, and against broken copies of it, to show that each case can fail.
//!
//! Transactions lock what they touch and apply what they wrote when they commit, under one lock over all tables.
//! With `concurrent_writers` off, a transaction takes the one turn to write when it begins, as SQLite does.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a panic is a test's verdict")]

mod absent;
mod operations;
mod store;
mod tables;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tokio::sync::OwnedMutexGuard;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::InspectedStore;
use towpath_testkit::store::{KillChild, StoreFixture};

pub(crate) use store::MemoryStore;
pub(crate) use tables::Tables;

/// A way in which the store is broken: each is a bug that somebody's store has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The outbox rows of a refused append stay.
    ConflictLeavesOutboxRows,
    /// The sequencer keeps a cursor over numbers that were given before commit.
    SequencerHasACursor,
    /// The relay does.
    ClaimHasACursor,
    /// The sequencer waits for the oldest open transaction.
    SequencerWaitsForOpenTransactions,
    /// Positions are given before commit.
    RollbackLeavesAPosition,
    /// The sequencer believes whoever calls.
    SequencerIsNotFenced,
    /// The sequencer is checked before it begins, and not held to it.
    SequencerIsFencedTooEarly,
    /// A claim is known by its lease, whatever the epoch.
    ClaimsHaveNoEpoch,
    /// A lane that is parked opens only when its row is sent.
    OnlySendingOpensALane,
    /// A failure told of a row that was sent parks its lane.
    SentRowsPark,
    /// A result is of whatever stands at its number.
    EventsAreNotCompared,
    /// What a holder knows of is given back with what it does not know of.
    ReturnsWhatIsSeen,
    /// Only the first lease of a batch is looked at.
    OnlyOneLeaseIsChecked,
    /// A released lease begins again with epoch 1.
    ReleaseForgetsTheEpoch,
    /// Whoever asks gets the lease.
    LeaseIsGivenToAnyone,
    /// Leases are compared with the caller's clock.
    LeasesLiveByTheCallersClock,
    /// An append without a folded state keeps the old one.
    OldSnapshotsStay,
    /// The cleaner looks at a page of rows, whatever they are.
    CleaningWalks,
    /// The cleaner believes that nothing old stands behind what is young.
    CleaningEndsWithTheYoung,
    /// Commands that have not ended are cleaned up, too.
    CleaningTakesOpenCommands,
    /// Only epochs are compared.
    HoldersAreNotCompared,
    /// Each store asks a clock of its own.
    EveryStoreHasItsOwnTime,
    /// Work of the living is taken from them.
    RecoveryTakesFromTheLiving,
    /// A claim does not mark what it took.
    ClaimMarksNothing,
    /// Due times are compared with the machine's clock.
    DueByTheMachinesClock,
    /// Nobody looks at the version.
    LastWriterWins,
    /// A recorded command id is written over.
    CommandIdIsNotUnique,
    /// New rows of a parked lane go out.
    NewRowsPassTheParkedOne,
    /// When the parked row is due, the whole lane comes with it.
    TheWholeLaneComesWhenDue,
    /// A parked row stops its channel.
    ParkingStopsTheChannel,
    /// A second transaction does not wait for the first before it marks a delivery.
    MarkDoesNotWait,
    /// A second transaction does not wait for the first before it notes the same unit of work.
    UnitsDoNotWait,
    /// A unit of work is noted outside of its transaction.
    UnitsSurviveRollback,
    /// A command is sent outside of its transaction.
    SentCommandsSurviveRollback,
    /// A mark is made outside its transaction.
    MarkSurvivesRollback,
    /// A handled delivery that fails late is open again.
    FailureReopensTheHandled,
    /// Payloads go through a JSON tree.
    PayloadsAreNormalised,
    /// Ids are compared without case.
    IdsIgnoreCase,
    /// Times lose their microseconds.
    TimesInMilliseconds,
    /// The events of a command commit before the command does.
    CommandCommitsInTwoSteps,
    /// An event id that exists is skipped silently.
    DuplicateEventsAreSkipped,
    /// Any tenant's status will do.
    StatusOfAnyTenant,
    /// A removed channel keeps its name.
    RemovedNameStaysTaken,
    /// Loading asks twice.
    LoadAsksTwice,
    /// A running timer of a living holder is taken.
    TimersAreTakenFromTheLiving,
    /// Timers are taken whatever their command.
    TimersOfAnyCommand,
    /// A timer that is postponed counts as failed.
    PostponingCounts,
    /// Leaving a state does not cancel its deadline.
    LeftStatesKeepTheirDeadline,
    /// A command that is sent under a lease does not need it.
    FencedCommandsAreNotFenced,
    /// A tracker's position is moved by whoever calls.
    PositionsAreNotFenced,
    /// That an operator has set a position is not counted.
    ResetsAreNotCounted,
    /// A claim is bounded by its number alone.
    ClaimsHaveNoRoom,
    /// Who asks for what is due gets all that is parked.
    AllThatIsParkedIsDue,
    /// What a channel has left behind stays when it is set or removed.
    ParkedOutliveTheirChannel,
    /// Whoever asks begins.
    OperationNamesAreNotUnique,
    /// Who has lost an operation ends it all the same.
    LostOperationsAreNotFenced,
    /// The answer of an operation is there before its effect.
    AnswersSurviveRollback,
    /// Every instance that finds no tables creates them.
    MigrationsRunTwice,
}

/// The one database behind the stores of a fixture.
pub(crate) struct Database {
    tables: Mutex<Tables>,
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    writer: Arc<tokio::sync::Mutex<()>>,
    open: Mutex<BTreeSet<u64>>,
    numbers: AtomicU64,
    concurrent_writers: bool,
    fault: Option<Fault>,
}

impl Database {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// A number that is taken now and never again, whatever becomes of the transaction: like a sequence.
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn lock(&self, what: String) -> OwnedMutexGuard<()> {
        let lock = Arc::clone(self.locks.lock().unwrap().entry(what).or_default());
        lock.lock_owned().await
    }

    /// The turn to write, where only one may.
    async fn turn(&self) -> Option<OwnedMutexGuard<()>> {
        if self.concurrent_writers { None } else { Some(Arc::clone(&self.writer).lock_owned().await) }
    }
}

/// A fresh database in memory.
pub(crate) struct MemoryFixture(Arc<Database>);

impl MemoryFixture {
    pub(crate) fn concurrent() -> Self {
        Self::new(true, None)
    }

    pub(crate) fn one_writer_at_a_time() -> Self {
        Self::new(false, None)
    }

    pub(crate) fn broken(fault: Fault) -> Self {
        Self::new(true, Some(fault))
    }

    fn new(concurrent_writers: bool, fault: Option<Fault>) -> Self {
        let any_holder = fault == Some(Fault::HoldersAreNotCompared);
        Self(Arc::new(Database {
            tables: Mutex::new(Tables { any_holder, ..Tables::default() }),
            locks: Mutex::default(),
            writer: Arc::default(),
            open: Mutex::default(),
            numbers: AtomicU64::new(0),
            concurrent_writers,
            fault,
        }))
    }
}

#[async_trait]
impl StoreFixture for MemoryFixture {
    async fn connect(&self, probe: Arc<dyn Probe>) -> Arc<dyn InspectedStore> {
        Arc::new(MemoryStore::new(Arc::clone(&self.0), probe))
    }

    async fn idle_in_transaction(&self) -> Box<dyn Send> {
        Box::new(())
    }

    async fn pretend_newer_schema(&self) {
        self.0.tables().schema = 99;
    }

    async fn come_back_from_an_older_copy(&self) {
        let mut tables = self.0.tables();
        for lease in tables.leases.values_mut() {
            (lease.epoch, lease.holder, lease.until) = (lease.epoch - 1, None, std::time::Instant::now());
        }
        tables.operations.values_mut().for_each(operations::Operation::come_back);
    }

    fn kill_child(&self) -> Option<KillChild> {
        None
    }
}

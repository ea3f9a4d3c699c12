//! Timers and deadlines on each database, under a clock that only the test moves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use support::probe::{Gate, ProbeAt};
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::{AggregateKey, CommandId, Version};
use towpath::lifecycle::{CommandStatus, TaskState};
use towpath::ports::clock::Clock as _;
use towpath::ports::probe::Probe;
use towpath::ports::store::Append;
use towpath::{
    Aggregate, Builder, Coded as _, Command, Context, Deadline, Event, Machine, StoreOptions, Towpath,
};
use towpath_testkit::VirtualClock;
use uuid::Uuid;

on_every_database!(
    a_timer_sends_its_command_when_it_is_due_and_not_before,
    a_refused_command_ends_its_timer_and_a_passing_failure_does_not,
    a_cancelled_timer_sends_nothing,
    a_timer_for_an_unknown_command_waits_for_an_instance_that_knows_it,
    a_deadline_fires_once_at_its_time,
    a_deadline_is_cancelled_when_its_state_is_left,
    a_deadline_that_was_claimed_is_skipped_when_its_state_was_left,
    a_timer_whose_holder_dies_before_ending_it_has_one_effect,
    two_instances_fire_each_timer_once,
    a_slow_command_keeps_no_other_timer_waiting,
    a_timer_named_after_its_cause_is_no_deadline,
    a_deadline_without_a_command_appends_its_event,
    the_time_of_a_deadline_comes_from_the_state_and_from_a_setting,
);

/// A loan for so many days.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Loan {
    days: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
enum LoanCommand {
    #[serde(rename = "loan.begin")]
    Begin { days: u32 },
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum LoanEvent {
    #[serde(rename = "loan.begun")]
    Begun { days: u32 },
    #[serde(rename = "loan.ended")]
    Ended,
}

impl Aggregate for Loan {
    const KIND: &'static str = "loan";
    type Command = LoanCommand;
    type Event = LoanEvent;
    type Refusal = std::convert::Infallible;

    fn decide(
        &self,
        LoanCommand::Begin { days }: LoanCommand,
        _: &Context,
    ) -> Result<Vec<LoanEvent>, Self::Refusal> {
        Ok(vec![LoanEvent::Begun { days }])
    }

    fn evolve(self, event: &LoanEvent) -> Self {
        match event {
            LoanEvent::Begun { days } => Self { days: *days },
            LoanEvent::Ended => self,
        }
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("loan")
                .starts(LoanEvent::BEGUN, "lent")
                .waits("lent", Deadline::after(HELD_FOR, LoanEvent::ENDED), "its end")
                .terminal("ended")
                .transition("lent", LoanEvent::ENDED, "ended"),
        )
    }
}

async fn the_time_of_a_deadline_comes_from_the_state_and_from_a_setting(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let day = Duration::from_secs(86_400);
    let stay = move |loan: &Loan| match loan.days {
        0 => panic!("a bug in it, on purpose"),
        days => day * days,
    };
    let misspelt = builder(fresh, &clock).aggregate::<Loan>().deadline("lend", stay).start().await;
    assert_eq!(misspelt.err().map(|error| error.code()), Some("registration"));
    let app = builder(fresh, &clock).aggregate::<Loan>().deadline("lent", stay).start().await.unwrap();
    for days in [0, 2, 5] {
        app.send::<Loan>(format!("loan-{days}"), LoanCommand::Begin { days }).await.unwrap();
    }
    let three = || Append::of::<Loan>("loan-3").events([LoanEvent::Begun { days: 3 }]);
    app.transact(async |mut tx| tx.append(three()).await.map(drop)).await.unwrap();
    let now = clock.now();
    let due = app.waiting_timers(10).await.unwrap().into_iter();
    let due: Vec<_> = due
        .map(|timer| (timer.timer.aggregate.id.to_string(), (timer.timer.due_at - now).to_std().unwrap()))
        .collect();
    let expected = [("loan-0", HELD_FOR), ("loan-2", day * 2), ("loan-3", day * 3), ("loan-5", day * 5)];
    assert_eq!(due, expected.map(|(id, stay)| (id.to_owned(), stay)));
    clock.advance(day * 3);
    for (id, state) in [("loan-2", "ended"), ("loan-3", "ended"), ("loan-5", "lent")] {
        let key = AggregateKey::new("loan", id).unwrap();
        eventually(id, || async {
            let row = app.aggregate(&key).await.unwrap().unwrap();
            (row.state.as_deref() == Some(state)).then_some(())
        })
        .await;
    }
    app.stop().await;
}

/// An offer that lapses by itself: no command is needed for that.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Offer {
    lapsed: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
enum OfferCommand {
    #[serde(rename = "offer.make")]
    #[command(gives = OfferEvent::MADE)]
    Make,
    #[serde(rename = "offer.accept")]
    #[command(gives = OfferEvent::ACCEPTED)]
    Accept,
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum OfferEvent {
    #[serde(rename = "offer.made")]
    Made,
    #[serde(rename = "offer.accepted")]
    Accepted,
    #[serde(rename = "offer.lapsed")]
    Lapsed,
}

impl Aggregate for Offer {
    const KIND: &'static str = "offer";
    type Command = OfferCommand;
    type Event = OfferEvent;
    type Refusal = std::convert::Infallible;

    fn decide(&self, command: OfferCommand, _: &Context) -> Result<Vec<OfferEvent>, Self::Refusal> {
        Ok(vec![match command {
            OfferCommand::Make => OfferEvent::Made,
            OfferCommand::Accept => OfferEvent::Accepted,
        }])
    }

    fn evolve(self, event: &OfferEvent) -> Self {
        match event {
            OfferEvent::Lapsed => Self { lapsed: self.lapsed + 1 },
            OfferEvent::Made | OfferEvent::Accepted => self,
        }
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("offer")
                .starts(OfferEvent::MADE, "open")
                .waits("open", Deadline::after(HELD_FOR, OfferEvent::LAPSED), "an answer")
                .terminal("accepted")
                .terminal("lapsed")
                .transition("open", OfferEvent::ACCEPTED, "accepted")
                .transition("open", OfferEvent::LAPSED, "lapsed"),
        )
    }
}

async fn a_deadline_without_a_command_appends_its_event(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let app = builder(fresh, &clock).aggregate::<Offer>().start().await.unwrap();
    for id in ["lapses", "is-accepted"] {
        app.send::<Offer>(id, OfferCommand::Make).await.unwrap();
    }
    app.send::<Offer>("is-accepted", OfferCommand::Accept).await.unwrap();
    let waiting = app.waiting_timers(10).await.unwrap();
    assert_eq!(waiting.len(), 1, "the other one's state was left: {waiting:?}");
    let timer_id = waiting[0].timer.timer_id;
    clock.advance(HELD_FOR - Duration::from_micros(1));
    after_another_look(&app).await;
    assert_eq!(state_of(&app, timer_id).await, TaskState::Pending, "a microsecond too early");
    clock.advance(Duration::from_micros(1));
    ended(&app, timer_id, TaskState::Succeeded).await;
    let view = app.load::<Offer>("lapses").await.unwrap().unwrap();
    assert_eq!((view.value.lapsed, view.version, view.state.as_deref()), (1, 2, Some("lapsed")));
    let key = AggregateKey::new("offer", "lapses").unwrap();
    let events = app.events_of(&key, 0, 10).await.unwrap();
    let lapsed = &events[1].envelope;
    assert_eq!(lapsed.event_type.as_str(), "offer.lapsed");
    let (_, report) = app.flow(&lapsed.correlation_id, &[]).await.unwrap();
    assert!(report.whole, "{report:?}");
    // Nobody else can have it happen.
    let refused = app.send_named("offer.lapsed", "is-accepted", "{}").await.unwrap_err();
    assert_eq!(refused.code(), "unknown-command");
    app.stop().await;
}

/// A booking that is held for fifteen minutes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Booking {
    expired: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
enum BookingCommand {
    #[serde(rename = "booking.make")]
    Make,
    #[serde(rename = "booking.note")]
    Note,
    #[serde(rename = "booking.pay")]
    Pay,
    #[serde(rename = "booking.reopen")]
    Reopen,
    #[serde(rename = "booking.expire")]
    #[command(gives = BookingEvent::EXPIRED)]
    Expire,
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum BookingEvent {
    #[serde(rename = "booking.made")]
    Made,
    #[serde(rename = "booking.noted")]
    Noted,
    #[serde(rename = "booking.paid")]
    Paid,
    #[serde(rename = "booking.reopened")]
    Reopened,
    #[serde(rename = "booking.expired")]
    Expired,
}

impl Aggregate for Booking {
    const KIND: &'static str = "booking";
    type Command = BookingCommand;
    type Event = BookingEvent;
    type Refusal = std::convert::Infallible;

    /// Never asks in which state it is: that is the machine's, and the timers', to know.
    fn decide(&self, command: BookingCommand, _: &Context) -> Result<Vec<BookingEvent>, Self::Refusal> {
        Ok(vec![match command {
            BookingCommand::Make => BookingEvent::Made,
            BookingCommand::Note => BookingEvent::Noted,
            BookingCommand::Pay => BookingEvent::Paid,
            BookingCommand::Reopen => BookingEvent::Reopened,
            BookingCommand::Expire => BookingEvent::Expired,
        }])
    }

    fn evolve(self, event: &BookingEvent) -> Self {
        match event {
            BookingEvent::Expired => Self { expired: self.expired + 1 },
            _ => self,
        }
    }

    fn machine() -> Option<Machine> {
        let deadline = Deadline::after(HELD_FOR, BookingEvent::EXPIRED).by_command(BookingCommand::EXPIRE);
        Some(
            Machine::named("booking")
                .starts(BookingEvent::MADE, "held")
                .waits("held", deadline, "the payment")
                .state("paid")
                .terminal("expired")
                .transition("held", BookingEvent::PAID, "paid")
                .transition("held", BookingEvent::EXPIRED, "expired")
                .transition("paid", BookingEvent::REOPENED, "held")
                .stays(BookingEvent::NOTED),
        )
    }
}

const HELD_FOR: Duration = Duration::from_secs(900);

fn builder(fresh: &Fresh, clock: &Arc<VirtualClock>) -> Builder {
    fresh.builder().aggregate::<Booking>().clock(clock.clone()).lease(Duration::from_millis(500))
}

async fn started(fresh: &Fresh) -> (Towpath, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::new());
    (builder(fresh, &clock).start().await.unwrap(), clock)
}

fn booking(id: &str) -> AggregateKey {
    AggregateKey::new("booking", id).unwrap()
}

async fn state_of(app: &Towpath, timer_id: Uuid) -> TaskState {
    app.find_timer(timer_id).await.unwrap().expect("the timer exists").state
}

async fn ended(app: &Towpath, timer_id: Uuid, state: TaskState) {
    let what = format!("the timer is {state}");
    eventually(&what, || async { (state_of(app, timer_id).await == state).then_some(()) }).await;
}

/// The timer of the state a booking is in: the only one that waits.
async fn deadline(app: &Towpath, id: &str) -> Uuid {
    let waiting = app.waiting_timers(100).await.unwrap();
    let of_booking: Vec<_> = waiting.iter().filter(|timer| timer.timer.aggregate == booking(id)).collect();
    assert_eq!(of_booking.len(), 1, "{waiting:?}");
    of_booking[0].timer.timer_id
}

async fn version(app: &Towpath, id: &str) -> Version {
    app.aggregate(&booking(id)).await.unwrap().map_or(0, |row| row.version)
}

/// Lets the service look a few times: a timer that is due later has fired by now, if anything is wrong. The mark is a
/// timer that is due at once and was scheduled after the look began.
async fn after_another_look(app: &Towpath) {
    let id = format!("mark-{}", Uuid::now_v7());
    let mark = app.timer::<Booking>(&id, BookingCommand::Make).await.unwrap();
    ended(app, mark, TaskState::Succeeded).await;
}

async fn a_timer_sends_its_command_when_it_is_due_and_not_before(fresh: &Fresh) {
    let (app, clock) = started(fresh).await;
    let placing = OrderCommand::Place { sku: "book".to_owned() };
    let timer_id = app
        .timer::<Order>("o-1", placing)
        .after(Duration::from_secs(60))
        .in_flow("flow-1")
        .caused_by("because")
        .await
        .unwrap();
    assert_eq!(app.waiting_timers(10).await.unwrap()[0].timer.timer_id, timer_id);
    clock.advance(Duration::from_secs(60) - Duration::from_micros(1));
    after_another_look(&app).await;
    assert_eq!(state_of(&app, timer_id).await, TaskState::Pending, "a microsecond too early");
    clock.advance(Duration::from_micros(1));
    ended(&app, timer_id, TaskState::Succeeded).await;
    let command_id = CommandId::new(format!("timer/{timer_id}")).unwrap();
    let record = app.command(&command_id).await.unwrap().unwrap();
    assert_eq!(record.status, CommandStatus::Completed);
    assert_eq!(record.command.context.correlation_id.as_str(), "flow-1");
    assert_eq!(record.command.context.causation_id.unwrap().as_str(), "because");
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 1);
    let unknown = app.timer_named("order.fold", "o-1", "{}").await.unwrap_err();
    assert_eq!(unknown.code(), "unknown-command");
    app.stop().await;
}

async fn a_refused_command_ends_its_timer_and_a_passing_failure_does_not(fresh: &Fresh) {
    let (app, clock) = started(fresh).await;
    let refused = app.timer::<Order>("nothing", OrderCommand::Ship).await.unwrap();
    ended(&app, refused, TaskState::Failed).await;
    let timer = app.find_timer(refused).await.unwrap().unwrap();
    assert_eq!((timer.error_code.as_deref(), timer.retry_count), (Some("nothing-to-ship"), 0));

    let dawdles = app.timer::<Order>("o-2", OrderCommand::Dawdle).await.unwrap();
    // Three retries by the policy, each when its time has come.
    for retries in 1..=3 {
        eventually("a retry", || async {
            let timer = app.find_timer(dawdles).await.unwrap().unwrap();
            // The command runner retries it, too: a timer that meets it at work looks again a second later, uncounted.
            if timer.error_code.as_deref() == Some("still-processing") {
                clock.advance(Duration::from_millis(1500));
            }
            (timer.retry_count >= retries).then_some(())
        })
        .await;
        clock.advance(Duration::from_millis(1500));
    }
    eventually("the timer is failed", || {
        clock.advance(Duration::from_millis(1500));
        async { (state_of(&app, dawdles).await == TaskState::Failed).then_some(()) }
    })
    .await;
    let timer = app.find_timer(dawdles).await.unwrap().unwrap();
    assert_eq!(timer.error_code.as_deref(), Some("not-now"));
    app.stop().await;
}

async fn a_cancelled_timer_sends_nothing(fresh: &Fresh) {
    let (app, clock) = started(fresh).await;
    let due_at = towpath::ports::clock::Clock::now(&*clock) + Duration::from_secs(5);
    let timer_id = app.timer::<Booking>("b-1", BookingCommand::Make).at(due_at).await.unwrap();
    assert!(app.cancel_timer(timer_id).await.unwrap());
    assert!(!app.cancel_timer(timer_id).await.unwrap());
    clock.advance(Duration::from_secs(10));
    after_another_look(&app).await;
    assert_eq!(state_of(&app, timer_id).await, TaskState::Canceled);
    assert_eq!(version(&app, "b-1").await, 0);
    app.stop().await;
}

async fn a_timer_for_an_unknown_command_waits_for_an_instance_that_knows_it(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let knows = builder(fresh, &clock).without_workers().start().await.unwrap();
    let timer_id = knows.timer::<Booking>("b-1", BookingCommand::Make).await.unwrap();
    let does_not = fresh.builder().clock(clock.clone()).start().await.unwrap();
    let mark = does_not.timer::<Order>("o-1", OrderCommand::Note).await.unwrap();
    ended(&does_not, mark, TaskState::Failed).await;
    assert_eq!(state_of(&knows, timer_id).await, TaskState::Pending, "nobody who knows it has looked");
    does_not.stop().await;
    let works = builder(fresh, &clock).start().await.unwrap();
    ended(&works, timer_id, TaskState::Succeeded).await;
    works.stop().await;
    knows.stop().await;
}

async fn a_deadline_fires_once_at_its_time(fresh: &Fresh) {
    let (app, clock) = started(fresh).await;
    let made = app.send::<Booking>("b-1", BookingCommand::Make).in_flow("flow-b").await.unwrap();
    let timer_id = deadline(&app, "b-1").await;
    app.send::<Booking>("b-1", BookingCommand::Note).await.unwrap();
    clock.advance(HELD_FOR - Duration::from_micros(1));
    after_another_look(&app).await;
    assert_eq!(version(&app, "b-1").await, 2, "a microsecond too early");
    clock.advance(Duration::from_micros(1));
    ended(&app, timer_id, TaskState::Succeeded).await;
    clock.advance(HELD_FOR * 10);
    after_another_look(&app).await;
    let view = app.load::<Booking>("b-1").await.unwrap().unwrap();
    assert_eq!((view.value.expired, view.version, view.state.as_deref()), (1, 3, Some("expired")));
    let events = app.events_of(&booking("b-1"), 2, 10).await.unwrap();
    assert_eq!(events[0].envelope.correlation_id.as_str(), "flow-b");
    let record = app.command(&CommandId::new(format!("timer/{timer_id}")).unwrap()).await.unwrap().unwrap();
    let cause = record.command.context.causation_id.unwrap();
    assert_eq!(cause.as_str(), made.events[0].event_id.to_string(), "the event that began the waiting");
    app.stop().await;
}

async fn a_deadline_is_cancelled_when_its_state_is_left(fresh: &Fresh) {
    let (app, clock) = started(fresh).await;
    app.send::<Booking>("b-1", BookingCommand::Make).await.unwrap();
    let first = deadline(&app, "b-1").await;
    app.send::<Booking>("b-1", BookingCommand::Pay).await.unwrap();
    assert_eq!(state_of(&app, first).await, TaskState::Canceled);
    // Back in the state, at the same moment: a deadline of its own.
    app.send::<Booking>("b-1", BookingCommand::Reopen).await.unwrap();
    let second = deadline(&app, "b-1").await;
    assert_ne!(first, second);
    app.send::<Booking>("b-1", BookingCommand::Pay).await.unwrap();
    clock.advance(HELD_FOR * 2);
    after_another_look(&app).await;
    assert_eq!(state_of(&app, second).await, TaskState::Canceled);
    assert_eq!(version(&app, "b-1").await, 4);
    app.stop().await;
}

/// A timer that runs cannot be cancelled any more. What it sends must still do no harm, even to an aggregate that has left
/// the state and come back to it.
async fn a_deadline_that_was_claimed_is_skipped_when_its_state_was_left(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let idle = builder(fresh, &clock).without_workers().start().await.unwrap();
    idle.send::<Booking>("b-1", BookingCommand::Make).await.unwrap();
    let first = deadline(&idle, "b-1").await;
    clock.advance(HELD_FOR);
    // Somebody claims it and stalls until its lease has run out.
    let lease = towpath::ids::LeaseName::new("stalled").unwrap();
    let store = idle.store();
    let grant = store.acquire_lease(&lease, idle.instance(), Duration::from_secs(60)).await.unwrap().unwrap();
    let types = ["booking.expire"];
    let now = towpath::ports::clock::Clock::now(&*clock);
    assert_eq!(store.claim_timers(&grant, &types, now, 10).await.unwrap().len(), 1);
    idle.send::<Booking>("b-1", BookingCommand::Pay).await.unwrap();
    idle.send::<Booking>("b-1", BookingCommand::Reopen).await.unwrap();
    assert_eq!(state_of(&idle, first).await, TaskState::Running);
    store.release_lease(&grant).await.unwrap();

    let app = builder(fresh, &clock).start().await.unwrap();
    ended(&app, first, TaskState::Skipped).await;
    let view = app.load::<Booking>("b-1").await.unwrap().unwrap();
    assert_eq!(
        (view.version, view.state.as_deref()),
        (3, Some("held")),
        "the new waiting is not ended by the old"
    );
    assert_eq!(app.command(&CommandId::new(format!("timer/{first}")).unwrap()).await.unwrap(), None);
    clock.advance(HELD_FOR);
    eventually("its own deadline", || async { (version(&app, "b-1").await == 4).then_some(()) }).await;
    app.stop().await;
    idle.stop().await;
}

/// Panics before timers are ended: the service dies between sending and ending, as if its process had.
#[derive(Default)]
struct DieBeforeEnding {
    died: AtomicBool,
}

impl Probe for DieBeforeEnding {
    fn before(&self, statement: &'static str) {
        if statement == "timers.finish" {
            self.died.store(true, Ordering::SeqCst);
            panic!("died between sending and ending, on purpose");
        }
    }
}

async fn a_timer_whose_holder_dies_before_ending_it_has_one_effect(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let probe = Arc::new(DieBeforeEnding::default());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let dies = builder(fresh, &clock).store_options(options).start().await.unwrap();
    let noted = dies.timer::<Booking>("b-2", BookingCommand::Make).await.unwrap();
    eventually("it has died", || async { probe.died.load(Ordering::SeqCst).then_some(()) }).await;
    assert_eq!(version(&dies, "b-2").await, 1, "the command was sent");
    assert_eq!(state_of(&dies, noted).await, TaskState::Running, "and the timer was not ended");

    let successor = builder(fresh, &clock).start().await.unwrap();
    // Its instance lives on and renews its lease: nobody takes the timer. Then it is gone.
    dies.stop().await;
    ended(&successor, noted, TaskState::Succeeded).await;
    assert_eq!(version(&successor, "b-2").await, 1, "one effect");
    successor.stop().await;
}

async fn two_instances_fire_each_timer_once(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let first = builder(fresh, &clock).start().await.unwrap();
    let second = builder(fresh, &clock).start().await.unwrap();
    for number in 0..40 {
        first.send::<Booking>(format!("b-{number}"), BookingCommand::Make).await.unwrap();
    }
    clock.advance(HELD_FOR);
    eventually("nothing waits", || async {
        let states = async {
            for number in 0..40 {
                if version(&second, &format!("b-{number}")).await < 2 {
                    return None;
                }
            }
            Some(())
        };
        states.await
    })
    .await;
    first.stop().await;
    assert!(second.waiting_timers(10).await.unwrap().is_empty());
    after_another_look(&second).await;
    for number in 0..40 {
        let view = second.load::<Booking>(&format!("b-{number}")).await.unwrap().unwrap();
        assert_eq!((view.version, view.value.expired), (2, 1));
    }
    second.stop().await;
}

async fn a_slow_command_keeps_no_other_timer_waiting(fresh: &Fresh) {
    let gate = Gate::default();
    let probe = Arc::new(ProbeAt::new("load", gate.clone()));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let clock = Arc::new(VirtualClock::new());
    let app = builder(fresh, &clock).store_options(options).start().await.unwrap();
    probe.arm(1);
    let slow = app.timer::<Booking>("slow", BookingCommand::Make).await.unwrap();
    gate.reached().await;
    let quick = app.timer::<Booking>("quick", BookingCommand::Make).await.unwrap();
    ended(&app, quick, TaskState::Succeeded).await;
    assert_eq!(state_of(&app, slow).await, TaskState::Running);
    gate.open();
    ended(&app, slow, TaskState::Succeeded).await;
    assert_eq!(version(&app, "slow").await, 1, "once");
    app.stop().await;
}

async fn a_timer_named_after_its_cause_is_no_deadline(fresh: &Fresh) {
    let (app, _) = started(fresh).await;
    let id = Uuid::now_v7();
    let placing = OrderCommand::Place { sku: "book".to_owned() };
    app.timer::<Order>("o-1", placing).identified(id).caused_by(id.to_string()).await.unwrap();
    ended(&app, id, TaskState::Succeeded).await;
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 1);
    app.stop().await;
}

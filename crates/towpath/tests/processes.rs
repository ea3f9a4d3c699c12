//! Processes: each fact changes one once, and every collision has one outcome.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::delivery::{Broker, Stage, execute};
use support::{Fresh, Order, OrderCommand, OrderEvent, eventually};
use tokio::sync::Semaphore;
use towpath::ids::{AggregateKey, CommandId, HandlerName};
use towpath::letters::{Letter, LetterFilter};
use towpath::lifecycle::{LetterStatus, TaskState};
use towpath::ports::probe::Probe;
use towpath::ports::store::{Inspection as _, Task, Timers as _};
use towpath::prelude::*;
use towpath::retry::RetryPolicy;
use towpath::{
    Answer, Attempt, Builder, Correlation, InputOutcome, NoCommands, Process, Reaction, RecordedEvent, Seen,
    StoreOptions, TaskFact, TaskFilter, TaskSaid, TaskType, Worker,
};

on_every_database!(
    a_process_goes_from_its_start_to_its_end_in_one_flow,
    facts_at_once_come_one_after_the_other,
    a_fact_before_the_start_waits_and_survives_a_restart,
    a_fact_whose_process_never_starts_is_a_letter,
    a_fact_for_a_process_only_if_it_is_there_does_not_wait,
    a_fact_after_the_end_is_recorded_and_has_no_effect,
    a_deadline_and_its_answer_exclude_each_other,
    what_the_machine_forbids_is_a_letter_and_nothing_happened,
    an_attempt_that_breaks_off_anywhere_leaves_nothing_behind,
    a_fact_before_its_turn_waits_for_it,
    a_task_is_called_off_by_its_name,
    a_process_of_an_older_form_is_folded_anew,
    what_a_process_did_is_undone_one_by_one_and_the_last_first,
    what_cannot_be_undone_is_told_and_can_be_tried_again,
    a_process_is_undone_where_its_kind_is_known,
    what_is_still_to_come_is_called_off_and_not_undone,
    what_has_happened_or_begun_is_undone_when_it_has_ended,
    a_named_timer_is_replaced_called_off_and_ends_with_its_process,
    a_named_timer_that_failed_and_is_called_off_sends_nothing,
    what_a_fact_waits_behind_another_is_not_its_own_waiting,
    a_deadline_that_ends_a_process_calls_its_timers_off,
);

on_every_pair!(@broker local, Local, a_process_takes_facts_from_a_channel_in_order_and_each_once);

mod rabbitmq {
    on_every_pair!(@database postgres, RabbitMq, a_process_takes_facts_from_a_channel_in_order_and_each_once);
}

#[cfg(feature = "kafka")]
mod kafka {
    on_every_pair!(@database postgres, Kafka, a_process_takes_facts_from_a_channel_in_order_and_each_once);
}

/// Something else that facts come from.
#[derive(Default, Serialize, Deserialize)]
struct Payment;

#[derive(Serialize, Deserialize, Command)]
enum PaymentCommand {
    #[serde(rename = "payment.receive")]
    Receive { order: String, amount: u32 },
}

#[derive(Serialize, Deserialize, Event)]
enum PaymentEvent {
    #[serde(rename = "payment.received")]
    Received { order: String, amount: u32 },
}

impl Aggregate for Payment {
    const KIND: &'static str = "payment";
    type Command = PaymentCommand;
    type Event = PaymentEvent;
    type Refusal = Refused;

    fn decide(&self, command: PaymentCommand, _: &Context) -> Result<Vec<PaymentEvent>, Refused> {
        let PaymentCommand::Receive { order, amount } = command;
        Ok(vec![PaymentEvent::Received { order, amount }])
    }

    fn evolve(self, _: &PaymentEvent) -> Self {
        self
    }
}

/// Has a picture drawn for an order, and then has it shipped. Orders `7/a` and `7/b` are of one process, `7`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Gift {
    order: String,
    paid: u32,
    is_delayed: bool,
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum GiftEvent {
    #[serde(rename = "gift.begun")]
    Begun { order: String },
    #[serde(rename = "gift.noted")]
    Noted,
    #[serde(rename = "gift.paid")]
    Paid { amount: u32 },
    #[serde(rename = "gift.drawn")]
    Drawn { picture: String },
    #[serde(rename = "gift.sent")]
    Sent,
    #[serde(rename = "gift.delayed")]
    Delayed,
    #[serde(rename = "gift.given-up")]
    GivenUp,
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum GiftInput {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
    #[serde(rename = "order.shipped")]
    Shipped,
    #[serde(rename = "payment.received")]
    Paid { order: String, amount: u32 },
    #[serde(rename = "Painter.Drawing.Drawn")]
    Drawn(TaskSaid<String>),
    #[serde(rename = "gift.delayed")]
    Delayed,
}

/// Payments that ask for something odd.
const CALLS_OFF: u32 = 0;
const JUMPS: u32 = 13;

fn draw() -> TaskType {
    TaskType::named("Painter.Draw")
        .requested("Painter.Drawing.Requested")
        .answered("Painter.Drawing.Drawn")
        .fact(TaskFact::Canceled, "Painter.Drawing.Canceled")
}

impl Aggregate for Gift {
    const KIND: &'static str = "gift";
    type Command = NoCommands;
    type Event = GiftEvent;
    type Refusal = Refused;

    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<GiftEvent>, Refused> {
        match command {}
    }

    fn evolve(self, event: &GiftEvent) -> Self {
        match event {
            GiftEvent::Begun { order } => Gift { order: order.clone(), ..self },
            GiftEvent::Paid { amount } => Gift { paid: self.paid + amount, ..self },
            GiftEvent::Delayed => Gift { is_delayed: true, ..self },
            _ => self,
        }
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("gift")
                .starts(GiftEvent::BEGUN, "drawing")
                .waits(
                    "drawing",
                    Deadline::after(Duration::from_secs(3600), GiftEvent::DELAYED),
                    "the drawing",
                )
                .state("drawn")
                .state("delayed")
                .terminal("sent")
                .terminal("given-up")
                .transition("drawing", GiftEvent::DRAWN, "drawn")
                .transition("drawn", GiftEvent::SENT, "sent")
                .transition("drawing", GiftEvent::DELAYED, "delayed")
                .transition("delayed", GiftEvent::GIVEN_UP, "given-up")
                .stays(GiftEvent::NOTED)
                .stays(GiftEvent::PAID),
        )
    }
}

impl Process for Gift {
    type Input = GiftInput;
    const WAITS_FOR_TURN: Duration = Duration::from_secs(10);

    fn correlate(input: &Seen<GiftInput>) -> Correlation {
        let of = |id: &str| id.split('/').next().unwrap_or_default().to_owned();
        match &input.event {
            GiftInput::Placed { sku } if sku == "voucher" => Correlation::Ignored,
            GiftInput::Placed { .. } => Correlation::Starts(of(input.aggregate_id())),
            GiftInput::Shipped => Correlation::Continues(of(input.aggregate_id())),
            GiftInput::Paid { order, .. } => Correlation::Continues(of(order)),
            GiftInput::Drawn(said) => Correlation::of_task::<Gift>(said),
            GiftInput::Delayed => Correlation::Continues(input.aggregate_id().to_owned()),
        }
    }

    fn react(&self, input: Seen<GiftInput>, context: &Context) -> Reaction<Self> {
        let order = input.aggregate_id().to_owned();
        match input.event {
            // It does something, and does not begin.
            GiftInput::Placed { sku } if sku == "postcard" => {
                Reaction::nothing().send::<Order>(order, OrderCommand::Note)
            }
            GiftInput::Placed { sku } if context.version == 0 => {
                Reaction::of([GiftEvent::Begun { order }]).start_task(&draw(), "picture", &sku)
            }
            GiftInput::Placed { .. } => Reaction::of([GiftEvent::Noted]),
            GiftInput::Paid { amount: CALLS_OFF, .. } => {
                Reaction::nothing().cancel_task(&draw(), "picture", "not-wanted")
            }
            GiftInput::Paid { amount: JUMPS, .. } => Reaction::of([GiftEvent::Noted, GiftEvent::Sent])
                .send::<Order>(&self.order, OrderCommand::Note)
                .start_task(&draw(), "second", "goose"),
            GiftInput::Paid { amount, .. } => Reaction::of([GiftEvent::Paid { amount }]),
            // One that comes too late, or is no answer to what was asked, is left alone.
            GiftInput::Drawn(said) => match (said.key.as_deref(), said.result) {
                (Some("picture"), Some(picture)) if !self.is_delayed => {
                    Reaction::of([GiftEvent::Drawn { picture }])
                        .send::<Order>(&self.order, OrderCommand::Ship)
                }
                _ => Reaction::nothing(),
            },
            GiftInput::Shipped => {
                let later = context.now + Duration::from_secs(3600);
                Reaction::of([GiftEvent::Sent]).send_at::<Order>("thanks", later, order, OrderCommand::Note)
            }
            GiftInput::Delayed => {
                Reaction::of([GiftEvent::GivenUp]).send::<Order>(&self.order, OrderCommand::Note)
            }
        }
    }
}

/// Reacts to payments alone, and has little patience.
#[derive(Default, Serialize, Deserialize)]
struct Tally;

#[derive(Serialize, Deserialize, Event)]
enum TallyEvent {
    #[serde(rename = "tally.counted")]
    Counted,
}

impl Aggregate for Tally {
    const KIND: &'static str = "tally";
    type Command = NoCommands;
    type Event = TallyEvent;
    type Refusal = Refused;

    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<TallyEvent>, Refused> {
        match command {}
    }

    fn evolve(self, _: &TallyEvent) -> Self {
        self
    }
}

impl Process for Tally {
    type Input = GiftInput;
    const WAITS_FOR_START: Duration = Duration::from_secs(3);

    fn correlate(input: &Seen<GiftInput>) -> Correlation {
        match &input.event {
            GiftInput::Placed { .. } => Correlation::Starts(input.aggregate_id().to_owned()),
            GiftInput::Paid { order, .. } => Correlation::Continues(order.clone()),
            _ => Correlation::Ignored,
        }
    }

    fn react(&self, _: Seen<GiftInput>, _: &Context) -> Reaction<Self> {
        Reaction::of([TallyEvent::Counted])
    }
}

/// Draws what is asked for, once it may.
struct Painter;

impl Worker for Painter {
    fn task(&self) -> TaskType {
        draw()
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        Answer::of(&format!("a {}", attempt.read::<String>()?))
    }
}

fn builder(fresh: &Fresh) -> Builder {
    fresh.builder().aggregate::<Payment>().task_type(draw()).process::<Gift>()
}

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "duck".into() }).await.unwrap();
}

async fn pay(app: &Towpath, order: &str, amount: u32) {
    let id = format!("payment-{}", towpath::uuid::Uuid::now_v7());
    app.send::<Payment>(&id, PaymentCommand::Receive { order: order.into(), amount }).await.unwrap();
}

fn gift(id: &str) -> AggregateKey {
    AggregateKey::new("gift", id).unwrap()
}

async fn events(app: &Towpath, of: &AggregateKey) -> Vec<RecordedEvent> {
    app.events_of(of, 0, 100).await.unwrap()
}

/// The names of what has happened to something.
async fn names(app: &Towpath, of: &AggregateKey) -> Vec<String> {
    events(app, of).await.into_iter().map(|event| event.envelope.event_type.to_string()).collect()
}

async fn happened(app: &Towpath, of: &AggregateKey, name: &str) -> Vec<String> {
    eventually(&format!("{name} of {of}"), || async {
        Some(names(app, of).await).filter(|names| names.iter().any(|happened| happened == name))
    })
    .await
}

/// What came of the facts that a process took, once there are so many.
async fn outcomes(app: &Towpath, of: &AggregateKey, count: usize) -> Vec<(String, InputOutcome)> {
    let inputs = eventually(&format!("{count} facts that {of} took"), || async {
        Some(app.process_inputs(of, None, 100).await.unwrap()).filter(|inputs| inputs.len() >= count)
    })
    .await;
    inputs.into_iter().map(|input| (input.event_type.to_string(), input.outcome)).collect()
}

async fn letters(app: &Towpath, status: LetterStatus) -> Vec<Letter> {
    let filter = LetterFilter { status: Some(status), ..LetterFilter::default() };
    app.dead_letters().list(&filter, 0, 100).await.unwrap()
}

async fn a_letter(app: &Towpath, status: LetterStatus) -> Letter {
    eventually("a letter", || async { letters(app, status).await.pop() }).await
}

async fn a_process_goes_from_its_start_to_its_end_in_one_flow(fresh: &Fresh) {
    let app = builder(fresh).worker(Painter, 1).start().await.unwrap();
    place(&app, "7").await;
    app.send::<Order>("8", OrderCommand::Place { sku: "voucher".into() }).await.unwrap();
    app.send::<Order>("9", OrderCommand::Place { sku: "postcard".into() }).await.unwrap();
    assert_eq!(outcomes(&app, &gift("9"), 1).await, [(GiftInput::PLACED.to_owned(), InputOutcome::Reacted)]);
    happened(&app, &AggregateKey::new("order", "9").unwrap(), OrderEvent::NOTED).await;
    assert!(names(&app, &gift("9")).await.is_empty(), "it begins with its first event");
    let happened = happened(&app, &gift("7"), GiftEvent::SENT).await;
    assert_eq!(happened, [GiftEvent::BEGUN, GiftEvent::DRAWN, GiftEvent::SENT]);
    let took = outcomes(&app, &gift("7"), 3).await;
    let outcome = |name: &str, outcome| (name.to_owned(), outcome);
    assert_eq!(
        took,
        [
            outcome(GiftInput::PLACED, InputOutcome::Started),
            outcome(GiftInput::DRAWN, InputOutcome::Reacted),
            outcome(GiftInput::SHIPPED, InputOutcome::Reacted)
        ]
    );
    // One chain of causes, with all that others did.
    let begun = events(&app, &gift("7")).await.remove(0).envelope;
    let (flow, report) = app.flow(&begun.correlation_id, &[]).await.unwrap();
    assert!(report.whole, "{report:?}");
    assert_eq!((flow.commands.len(), flow.events.len()), (2, 7), "{flow:?}");
    let of_process = TaskFilter { subject: Some(gift("7")), ..TaskFilter::default() };
    assert_eq!(app.tasks(&of_process, None, 10).await.unwrap().len(), 1);
    assert!(names(&app, &gift("8")).await.is_empty());
    app.stop().await;
}

/// Eight that may start it at once, and payments beside: one starts it, nothing is lost, nothing fails.
async fn facts_at_once_come_one_after_the_other(fresh: &Fresh) {
    let (one, other) = (builder(fresh).start().await.unwrap(), builder(fresh).start().await.unwrap());
    let placing = (0..8).map(|number| {
        let app = if number % 2 == 0 { &one } else { &other };
        async move {
            place(app, &format!("7/{number}")).await;
            pay(app, "7", 1).await;
        }
    });
    futures_util::future::join_all(placing).await;
    let took = outcomes(&one, &gift("7"), 16).await;
    let started = took.iter().filter(|(_, outcome)| *outcome == InputOutcome::Started).count();
    assert_eq!((took.len(), started), (16, 1), "{took:?}");
    let happened = names(&one, &gift("7")).await;
    let count = |name: &str| happened.iter().filter(|happened| *happened == name).count();
    let counts = [GiftEvent::BEGUN, GiftEvent::NOTED, GiftEvent::PAID].map(count);
    assert_eq!((happened.len(), counts), (16, [1, 7, 8]));
    let of_process = TaskFilter { subject: Some(gift("7")), ..TaskFilter::default() };
    assert_eq!(one.tasks(&of_process, None, 10).await.unwrap().len(), 1);
    let handler = HandlerName::new("process.gift").unwrap();
    for input in one.process_inputs(&gift("7"), None, 100).await.unwrap() {
        let entry = one.store().inbox_entry(input.event_id, &handler).await.unwrap().unwrap();
        assert_eq!(entry.retry_count, 0, "who comes second has not failed: {entry:?}");
    }
    tokio::join!(one.stop(), other.stop());
}

async fn a_fact_before_the_start_waits_and_survives_a_restart(fresh: &Fresh) {
    let app = builder(fresh).start().await.unwrap();
    pay(&app, "7", 5).await;
    let letter = a_letter(&app, LetterStatus::Retry).await;
    assert_eq!(letter.status_reason.as_deref(), Some("process-not-started"));
    assert!(names(&app, &gift("7")).await.is_empty());
    app.stop().await;
    let app = builder(fresh).start().await.unwrap();
    place(&app, "7").await;
    assert_eq!(happened(&app, &gift("7"), GiftEvent::PAID).await, [GiftEvent::BEGUN, GiftEvent::PAID]);
    assert!(letters(&app, LetterStatus::Dead).await.is_empty());
    app.stop().await;
}

async fn a_fact_whose_process_never_starts_is_a_letter(fresh: &Fresh) {
    let app = fresh.builder().aggregate::<Payment>().process::<Tally>().start().await.unwrap();
    pay(&app, "7", 5).await;
    let letter = a_letter(&app, LetterStatus::Dead).await;
    assert_eq!(letter.status_reason.as_deref(), Some("process-not-started"));
    let waited = letter.status_changed_at - letter.letter.received_at;
    assert!(waited.to_std().unwrap() >= Tally::WAITS_FOR_START, "{letter:?}");
    // An operator lets it be tried again: it waits again, as long as it might at first.
    app.dead_letters().replay(letter.letter_id, false).await.unwrap();
    let letter = a_letter(&app, LetterStatus::Dead).await;
    assert_eq!(letter.status_reason.as_deref(), Some("process-not-started"));
    let waited = letter.status_changed_at - letter.replayed_at.unwrap();
    assert!(waited.to_std().unwrap() >= Tally::WAITS_FOR_START, "{letter:?}");
    // Once its process has started, it is taken.
    place(&app, "7").await;
    let tally = AggregateKey::new("tally", "7").unwrap();
    assert_eq!(happened(&app, &tally, TallyEvent::COUNTED).await, [TallyEvent::COUNTED]);
    app.dead_letters().replay(letter.letter_id, false).await.unwrap();
    eventually("both are counted", || async { (names(&app, &tally).await.len() == 2).then_some(()) }).await;
    app.stop().await;
}

async fn a_fact_after_the_end_is_recorded_and_has_no_effect(fresh: &Fresh) {
    let app = builder(fresh).worker(Painter, 1).start().await.unwrap();
    place(&app, "7").await;
    let before = happened(&app, &gift("7"), GiftEvent::SENT).await;
    pay(&app, "7", 5).await;
    place(&app, "7/late").await;
    let took = outcomes(&app, &gift("7"), 5).await;
    let after_end: Vec<_> = took.iter().filter(|(_, outcome)| *outcome == InputOutcome::AfterEnd).collect();
    assert_eq!((took.len(), after_end.len()), (5, 2), "{took:?}");
    let waiting = app.store().waiting_timers(None, 10).await.unwrap().len();
    assert_eq!(waiting, 1, "what it has set at its end stays");
    assert_eq!(names(&app, &gift("7")).await, before);
    assert!(letters(&app, LetterStatus::Dead).await.is_empty());
    app.stop().await;
}

/// Deadlines that are due when their answers come: each process goes one of the two ways, to its end.
async fn a_deadline_and_its_answer_exclude_each_other(fresh: &Fresh) {
    const GIFTS: usize = 16;
    let app = builder(fresh)
        .worker(Painter, 4)
        // Spread over the time that an answer takes.
        .deadline("drawing", |gift: &Gift| {
            Duration::from_millis(gift.order.parse::<u64>().unwrap_or_default() * 8)
        })
        .start()
        .await
        .unwrap();
    let ids: Vec<String> = (0..GIFTS).map(|number| number.to_string()).collect();
    futures_util::future::join_all(ids.iter().map(|id| place(&app, id))).await;
    for id in &ids {
        let happened = eventually("its end", || async {
            let names = names(&app, &gift(id)).await;
            let last = names.last().map(String::as_str);
            [Some(GiftEvent::SENT), Some(GiftEvent::GIVEN_UP)].contains(&last).then_some(names)
        })
        .await;
        let answered = [GiftEvent::BEGUN, GiftEvent::DRAWN, GiftEvent::SENT];
        let delayed = [GiftEvent::BEGUN, GiftEvent::DELAYED, GiftEvent::GIVEN_UP];
        assert!(happened == answered || happened == delayed, "{happened:?}");
    }
    app.stop().await;
}

async fn what_the_machine_forbids_is_a_letter_and_nothing_happened(fresh: &Fresh) {
    let app = builder(fresh).start().await.unwrap();
    place(&app, "7").await;
    happened(&app, &gift("7"), GiftEvent::BEGUN).await;
    pay(&app, "7", JUMPS).await;
    let letter = a_letter(&app, LetterStatus::Dead).await;
    assert_eq!(letter.status_reason.as_deref(), Some("illegal-transition"));
    pay(&app, "7", 5).await;
    assert_eq!(happened(&app, &gift("7"), GiftEvent::PAID).await, [GiftEvent::BEGUN, GiftEvent::PAID]);
    assert_eq!(outcomes(&app, &gift("7"), 2).await.len(), 2, "what was given up was not taken");
    let of_process = TaskFilter { subject: Some(gift("7")), ..TaskFilter::default() };
    assert_eq!(app.tasks(&of_process, None, 10).await.unwrap().len(), 1);
    assert_eq!(names(&app, &AggregateKey::new("order", "7").unwrap()).await, [OrderEvent::PLACED]);
    app.stop().await;
}

/// Panics before the next statement of a name.
#[derive(Default)]
struct Breaks(Mutex<Option<&'static str>>);

impl Probe for Breaks {
    fn before(&self, statement: &'static str) {
        let hit = self.0.lock().unwrap().take_if(|next| *next == statement);
        assert!(hit.is_none(), "on purpose, before {statement}");
    }
}

async fn an_attempt_that_breaks_off_anywhere_leaves_nothing_behind(fresh: &Fresh) {
    let probe = Arc::new(Breaks::default());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let app = builder(fresh).worker(Painter, 1).store_options(options).start().await.unwrap();
    for (number, statement) in
        ["append.current", "tasks.start", "tasks.open", "process.record"].iter().enumerate()
    {
        let (id, order) = (number.to_string(), AggregateKey::new("order", number.to_string()).unwrap());
        *probe.0.lock().unwrap() = Some(statement);
        place(&app, &id).await;
        let happened = happened(&app, &gift(&id), GiftEvent::SENT).await;
        assert!(probe.0.lock().unwrap().is_none(), "{statement} was not met");
        assert_eq!(happened, [GiftEvent::BEGUN, GiftEvent::DRAWN, GiftEvent::SENT], "before {statement}");
        assert_eq!(
            names(&app, &order).await,
            [OrderEvent::PLACED, OrderEvent::SHIPPED],
            "before {statement}"
        );
        let of_process = TaskFilter { subject: Some(gift(&id)), ..TaskFilter::default() };
        assert_eq!(app.tasks(&of_process, None, 10).await.unwrap().len(), 1, "before {statement}");
        assert_eq!(outcomes(&app, &gift(&id), 3).await.len(), 3, "before {statement}");
    }
    assert!(letters(&app, LetterStatus::Dead).await.is_empty());
    app.stop().await;
}

async fn a_task_is_called_off_by_its_name(fresh: &Fresh) {
    let app = builder(fresh).start().await.unwrap();
    for id in ["7", "8"] {
        place(&app, id).await;
        happened(&app, &gift(id), GiftEvent::BEGUN).await;
    }
    // Another one's of the same name stays, and who calls off what has ended does nothing.
    for _ in 0..2 {
        pay(&app, "7", CALLS_OFF).await;
    }
    outcomes(&app, &gift("7"), 3).await;
    for (id, status) in [("7", TaskState::Canceled), ("8", TaskState::Queued)] {
        let of_process = TaskFilter { subject: Some(gift(id)), ..TaskFilter::default() };
        let tasks = app.tasks(&of_process, None, 10).await.unwrap();
        assert_eq!(tasks.iter().map(|task| task.status).collect::<Vec<_>>(), [status]);
        let task = AggregateKey::new("task", tasks[0].task.task_id.to_string()).unwrap();
        for fact in events(&app, &task).await {
            let said: TaskSaid = fact.envelope.payload.read("a fact of a task").unwrap();
            assert_eq!((said.key.as_deref(), said.subject_id()), (Some("picture"), id));
        }
    }
    app.stop().await;
}

/// An older build knew its state by another name, and had another form of what is folded.
async fn a_process_of_an_older_form_is_folded_anew(fresh: &Fresh) {
    let app = builder(fresh).start().await.unwrap();
    let is_current = async |id: &str| {
        let row = app.aggregate(&gift(id)).await.unwrap().unwrap();
        let gift: Gift = row.snapshot.as_ref().unwrap().data.read("a gift").unwrap();
        (row.snapshot.unwrap().version, row.state.unwrap(), gift.paid)
    };
    for id in ["7", "8"] {
        place(&app, id).await;
        pay(&app, id, 5).await;
        happened(&app, &gift(id), GiftEvent::PAID).await;
    }
    let older =
        "UPDATE aggregates SET snapshot_version = 9, state = 'sketching' WHERE aggregate_kind = 'gift'";
    execute(&app, older).await;
    // One stays where it is, the other goes on.
    pay(&app, "7", 6).await;
    outcomes(&app, &gift("7"), 3).await;
    assert_eq!(is_current("7").await, (1, "drawing".to_owned(), 11));
    let painting = builder(fresh).worker(Painter, 1).start().await.unwrap();
    for id in ["7", "8"] {
        happened(&app, &gift(id), GiftEvent::SENT).await;
    }
    assert_eq!(is_current("8").await, (1, "sent".to_owned(), 5));
    assert!(letters(&app, LetterStatus::Dead).await.is_empty());
    tokio::join!(app.stop(), painting.stop());
}

async fn a_process_takes_facts_from_a_channel_in_order_and_each_once(stage: &Stage) {
    let mut topology = stage.topology(false);
    topology.queues.truncate(1);
    for queue in &mut topology.queues {
        queue.name = format!("{}.process.tally", stage.channel());
    }
    let source = Consumer::of(stage.channel()).in_order();
    let app = stage.builder().topology(topology).process_from::<Tally>(source).start().await.unwrap();
    for number in 0..20 {
        place(&app, &format!("order-{number}")).await;
    }
    let tally = |number: u32| AggregateKey::new("tally", format!("order-{number}")).unwrap();
    for number in 0..20 {
        happened(&app, &tally(number), TallyEvent::COUNTED).await;
    }
    // Everything once more, behind the relay's back; what counts is what was there before the last.
    stage.everything_again(&app).await;
    place(&app, "order-20").await;
    happened(&app, &tally(20), TallyEvent::COUNTED).await;
    for number in 0..=20 {
        assert_eq!(names(&app, &tally(number)).await, [TallyEvent::COUNTED]);
    }
    app.stop().await;
}

/// Something that can be undone. Rooms called `full…` cannot be had, and rooms called `stuck…` not given back at first.
#[derive(Default, Serialize, Deserialize)]
struct Room {
    tried: u32,
}

#[derive(Serialize, Deserialize, Command)]
enum RoomCommand {
    #[serde(rename = "room.reserve")]
    Reserve { room: String },
    #[serde(rename = "room.release")]
    Release { room: String },
    #[serde(rename = "room.repair")]
    Repair,
}

#[derive(Serialize, Deserialize, Event)]
enum RoomEvent {
    #[serde(rename = "room.reserved")]
    Reserved,
    #[serde(rename = "room.released")]
    Released,
    #[serde(rename = "room.repaired")]
    Repaired,
}

impl Aggregate for Room {
    const KIND: &'static str = "room";
    type Command = RoomCommand;
    type Event = RoomEvent;
    type Refusal = Refused;

    fn decide(&self, command: RoomCommand, _: &Context) -> Result<Vec<RoomEvent>, Refused> {
        match command {
            RoomCommand::Reserve { room } if room.starts_with("full") => {
                Err(Refused::new("room-taken", "somebody else has it"))
            }
            RoomCommand::Reserve { .. } => Ok(vec![RoomEvent::Reserved]),
            RoomCommand::Release { room } if room.starts_with("stuck") && self.tried == 0 => {
                Err(Refused::new("door-stuck", "nobody comes out"))
            }
            RoomCommand::Release { .. } => Ok(vec![RoomEvent::Released]),
            RoomCommand::Repair => Ok(vec![RoomEvent::Repaired]),
        }
    }

    fn evolve(self, event: &RoomEvent) -> Self {
        Self { tried: self.tried + u32::from(matches!(event, RoomEvent::Repaired)) }
    }
}

/// Reserves the rooms that an order names, and gives them back when it is told to.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Trip {
    order: String,
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum TripEvent {
    #[serde(rename = "trip.begun")]
    Begun { order: String },
    #[serde(rename = "trip.canceled")]
    Canceled,
    #[serde(rename = "trip.undone")]
    Undone,
    #[serde(rename = "trip.stranded")]
    Stranded,
}

#[derive(Serialize, Deserialize, Event)]
enum TripInput {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
    #[serde(rename = "payment.received")]
    Paid { order: String, amount: u32 },
    #[serde(rename = "Towpath.Compensation.Completed")]
    Undone(TaskSaid),
    #[serde(rename = "Towpath.Compensation.Failed")]
    Stranded(TaskSaid),
}

impl Aggregate for Trip {
    const KIND: &'static str = "trip";
    type Command = NoCommands;
    type Event = TripEvent;
    type Refusal = Refused;

    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<TripEvent>, Refused> {
        match command {}
    }

    fn evolve(self, event: &TripEvent) -> Self {
        match event {
            TripEvent::Begun { order } => Trip { order: order.clone() },
            _ => self,
        }
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("trip")
                .starts(TripEvent::BEGUN, "reserved")
                .state("reserved")
                .state("canceling")
                .terminal("undone")
                .transition("reserved", TripEvent::CANCELED, "canceling")
                .transition("canceling", TripEvent::UNDONE, "undone")
                .stays_in("canceling", TripEvent::STRANDED),
        )
    }
}

/// What is given back beside a room.
fn key_of(room: &str) -> String {
    format!("key-{room}")
}

/// Payments that ask for something.
const CANCEL: u32 = 1;
const REMIND_NOW: u32 = 2;
const REMIND_LATER: u32 = 3;
const DO_NOT_REMIND: u32 = 4;
const DAWDLE: u32 = 5;
const RESERVE_NOW: u32 = 6;
const RESERVE_LATER: u32 = 7;
const DRAW: u32 = 8;

impl Process for Trip {
    type Input = TripInput;

    fn correlate(input: &Seen<TripInput>) -> Correlation {
        match &input.event {
            TripInput::Placed { .. } => Correlation::Starts(input.aggregate_id().to_owned()),
            TripInput::Paid { order, .. } => Correlation::Continues(order.clone()),
            TripInput::Undone(said) | TripInput::Stranded(said) => Correlation::of_task::<Trip>(said),
        }
    }

    fn react(&self, input: Seen<TripInput>, context: &Context) -> Reaction<Self> {
        let order = input.aggregate_id().to_owned();
        let remind = |at| Reaction::nothing().send_at::<Order>("remind", at, &self.order, OrderCommand::Note);
        let reserve = |room: &str, at| {
            let named = || room.to_owned();
            Reaction::nothing()
                .send_at::<Room>(room, at, room, RoomCommand::Reserve { room: named() })
                .undone_by::<Room>(room, RoomCommand::Release { room: named() })
        };
        match input.event {
            TripInput::Placed { sku } => {
                let begun = Reaction::of([TripEvent::Begun { order }]);
                sku.split(' ').filter(|room| !room.is_empty()).fold(begun, |reaction, room| {
                    let named = || room.to_owned();
                    reaction
                        .send::<Room>(room, RoomCommand::Reserve { room: named() })
                        .undone_by::<Room>(room, RoomCommand::Release { room: named() })
                        .undone_by::<Room>(key_of(room), RoomCommand::Release { room: key_of(room) })
                })
            }
            TripInput::Paid { amount: CANCEL, .. } => Reaction::of([TripEvent::Canceled]).compensate(),
            TripInput::Paid { amount: REMIND_NOW, .. } => remind(context.now),
            TripInput::Paid { amount: REMIND_LATER, .. } => remind(context.now + Duration::from_secs(3600)),
            TripInput::Paid { amount: DO_NOT_REMIND, .. } => Reaction::nothing().cancel_timer("remind"),
            TripInput::Paid { amount: DAWDLE, .. } => {
                Reaction::nothing().send_at::<Order>("remind", context.now, &self.order, OrderCommand::Dawdle)
            }
            TripInput::Paid { amount: RESERVE_NOW, .. } => reserve("now", context.now),
            TripInput::Paid { amount: RESERVE_LATER, .. } => {
                reserve("later", context.now + Duration::from_secs(3600))
            }
            TripInput::Paid { amount: DRAW, .. } => Reaction::nothing()
                .start_task(&draw(), "map", "way")
                .undone_by::<Room>("map", RoomCommand::Release { room: "map".to_owned() }),
            TripInput::Paid { .. } => Reaction::nothing(),
            TripInput::Undone(_) => Reaction::of([TripEvent::Undone]),
            TripInput::Stranded(_) => Reaction::of([TripEvent::Stranded]),
        }
    }
}

fn trip(id: &str) -> AggregateKey {
    AggregateKey::new("trip", id).unwrap()
}

fn room(id: &str) -> AggregateKey {
    AggregateKey::new("room", id).unwrap()
}

fn tripping(fresh: &Fresh) -> Builder {
    let builder = fresh.builder().aggregate::<Payment>().aggregate::<Room>();
    builder.task_type(draw()).process::<Trip>()
}

async fn trips(fresh: &Fresh) -> Towpath {
    tripping(fresh).start().await.unwrap()
}

/// The task of a trip that draws something.
async fn drawing(app: &Towpath, id: &str) -> Option<Task> {
    let of_trip = TaskFilter { subject: Some(trip(id)), ..TaskFilter::default() };
    let mut tasks = app.tasks(&of_trip, None, 10).await.unwrap().into_iter();
    tasks.find(|task| task.task.task_type.as_str() == draw().name())
}

async fn book(app: &Towpath, id: &str, rooms: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: rooms.into() }).await.unwrap();
}

async fn what_a_process_did_is_undone_one_by_one_and_the_last_first(fresh: &Fresh) {
    let app = trips(fresh).await;
    book(&app, "7", "a b full c").await;
    // Nothing of another one is undone.
    book(&app, "8", "d").await;
    for id in ["a", "b", "c", "d"] {
        happened(&app, &room(id), RoomEvent::RESERVED).await;
    }
    pay(&app, "7", CANCEL).await;
    let happened = happened(&app, &trip("7"), TripEvent::UNDONE).await;
    assert_eq!(happened, [TripEvent::BEGUN, TripEvent::CANCELED, TripEvent::UNDONE]);
    let mut released = Vec::new();
    for id in ["a", "b", "c"] {
        let events = events(&app, &room(id)).await;
        let [_, undone] = &events[..] else { panic!("reserved and released once: {events:?}") };
        assert_eq!(undone.envelope.event_type.as_str(), RoomEvent::RELEASED);
        released.push(undone.envelope.event_id);
    }
    assert!(released.is_sorted_by(|one, next| one > next), "the last first: {released:?}");
    for refused in ["full".to_owned(), key_of("full")] {
        assert!(names(&app, &room(&refused)).await.is_empty(), "what was refused is not undone: {refused}");
    }
    assert_eq!(names(&app, &room(&key_of("a"))).await, [RoomEvent::RELEASED], "both undo it");
    assert_eq!(names(&app, &room("d")).await, [RoomEvent::RESERVED]);
    let canceled = events(&app, &trip("7")).await.remove(1).envelope;
    let (_, report) = app.flow(&canceled.correlation_id, &[]).await.unwrap();
    assert!(report.whole, "{report:?}");
    app.stop().await;
}

async fn what_cannot_be_undone_is_told_and_can_be_tried_again(fresh: &Fresh) {
    let app = trips(fresh).await;
    book(&app, "7", "a stuck b").await;
    for id in ["a", "stuck", "b"] {
        happened(&app, &room(id), RoomEvent::RESERVED).await;
    }
    pay(&app, "7", CANCEL).await;
    happened(&app, &trip("7"), TripEvent::STRANDED).await;
    assert_eq!(names(&app, &room("b")).await, [RoomEvent::RESERVED, RoomEvent::RELEASED]);
    assert_eq!(names(&app, &room("a")).await, [RoomEvent::RESERVED], "it is behind what is stuck");
    app.send::<Room>("stuck", RoomCommand::Repair).await.unwrap();
    let of_process = TaskFilter { subject: Some(trip("7")), ..TaskFilter::default() };
    let failed = app.tasks(&of_process, None, 10).await.unwrap().remove(0);
    assert_eq!((failed.status, failed.error_code.as_deref()), (TaskState::Failed, Some("door-stuck")));
    app.retry_task(failed.task.task_id).await.unwrap();
    happened(&app, &trip("7"), TripEvent::UNDONE).await;
    assert_eq!(names(&app, &room("b")).await.len(), 2, "what was undone is not undone again");
    assert_eq!(names(&app, &room("a")).await, [RoomEvent::RESERVED, RoomEvent::RELEASED]);
    app.stop().await;
}

async fn what_is_still_to_come_is_called_off_and_not_undone(fresh: &Fresh) {
    let app = trips(fresh).await;
    book(&app, "7", "a").await;
    for asks in [RESERVE_LATER, DRAW] {
        pay(&app, "7", asks).await;
    }
    outcomes(&app, &trip("7"), 3).await;
    happened(&app, &room("a"), RoomEvent::RESERVED).await;
    assert_eq!(app.waiting_timers(10).await.unwrap().len(), 1);
    pay(&app, "7", CANCEL).await;
    happened(&app, &trip("7"), TripEvent::UNDONE).await;
    for never in ["later", "map"] {
        assert!(names(&app, &room(never)).await.is_empty(), "{never} had not happened");
    }
    assert_eq!(names(&app, &room("a")).await, [RoomEvent::RESERVED, RoomEvent::RELEASED]);
    assert!(app.waiting_timers(10).await.unwrap().is_empty());
    assert_eq!(drawing(&app, "7").await.unwrap().status, TaskState::Canceled);
    app.stop().await;
}

/// A timer has fired, and a worker has begun with a task.
async fn what_has_happened_or_begun_is_undone_when_it_has_ended(fresh: &Fresh) {
    let may_draw = Arc::new(Semaphore::new(0));
    let app = tripping(fresh).worker(PatientPainter(may_draw), 1).start().await.unwrap();
    book(&app, "7", "").await;
    for asks in [RESERVE_NOW, DRAW] {
        pay(&app, "7", asks).await;
    }
    happened(&app, &room("now"), RoomEvent::RESERVED).await;
    let runs = |task: &Task| task.status == TaskState::Running;
    eventually("the worker begins", || async { drawing(&app, "7").await.filter(runs) }).await;
    pay(&app, "7", CANCEL).await;
    happened(&app, &trip("7"), TripEvent::UNDONE).await;
    assert_eq!(names(&app, &room("now")).await, [RoomEvent::RESERVED, RoomEvent::RELEASED]);
    let ended = drawing(&app, "7").await.unwrap();
    assert_eq!((ended.status, ended.epoch), (TaskState::Canceled, 1));
    assert_eq!(names(&app, &room("map")).await, [RoomEvent::RELEASED]);
    app.stop().await;
}

/// Its command waits in the command box for its next attempt when the timer is called off.
async fn a_named_timer_that_failed_and_is_called_off_sends_nothing(fresh: &Fresh) {
    let rarely = RetryPolicy::Fixed(vec![Duration::from_secs(3600); 3]);
    let app = tripping(fresh).command_retries(rarely).start().await.unwrap();
    book(&app, "7", "").await;
    pay(&app, "7", DAWDLE).await;
    let timer = eventually("it has failed", || async {
        let timers = app.waiting_timers(10).await.unwrap();
        timers.into_iter().find(|timer| timer.retry_count == 1)
    })
    .await;
    pay(&app, "7", DO_NOT_REMIND).await;
    outcomes(&app, &trip("7"), 3).await;
    assert!(app.waiting_timers(10).await.unwrap().is_empty());
    // Its next attempt is due.
    execute(&app, "UPDATE command_box SET next_retry_at = received_at WHERE next_retry_at IS NOT NULL").await;
    let command_id = CommandId::new(format!("timer/{}", timer.timer.timer_id)).unwrap();
    let ended = eventually("its command ends", || async {
        let record = app.command(&command_id).await.unwrap().unwrap();
        (record.status_reason.as_deref() != Some("not-now") || record.retry_count > 1).then_some(record)
    })
    .await;
    assert_eq!((ended.status_reason.as_deref(), ended.next_retry_at), (Some("no-longer-waiting"), None));
    app.stop().await;
}

/// The one before it has used up all the time, and an operator throws that one away.
async fn what_a_fact_waits_behind_another_is_not_its_own_waiting(fresh: &Fresh) {
    let channel = Channel::named("payments", ["payment.*"]).map(Channel::published);
    let builder = fresh.builder().aggregate::<Payment>().channel(channel);
    let app = builder.process_from::<Tally>(Consumer::of("payments").in_order()).start().await.unwrap();
    for order in ["7", "8"] {
        let receive = PaymentCommand::Receive { order: order.to_owned(), amount: 1 };
        app.send::<Payment>("payment-1", receive).await.unwrap();
    }
    a_letter(&app, LetterStatus::Behind).await;
    let first = a_letter(&app, LetterStatus::Dead).await;
    app.dead_letters().discard(first.letter_id, None).await.unwrap();
    let began = a_letter(&app, LetterStatus::Discarded).await.status_changed_at;
    let second = a_letter(&app, LetterStatus::Dead).await;
    assert_eq!(second.status_reason.as_deref(), Some("process-not-started"));
    let waited = (second.status_changed_at - began).to_std().unwrap();
    assert!(waited >= Tally::WAITS_FOR_START, "{waited:?} {second:?}");
    app.stop().await;
}

async fn a_named_timer_is_replaced_called_off_and_ends_with_its_process(fresh: &Fresh) {
    let app = trips(fresh).await;
    for id in ["7", "8"] {
        book(&app, id, "").await;
        pay(&app, id, REMIND_LATER).await;
        outcomes(&app, &trip(id), 2).await;
    }
    let waiting = async || app.store().waiting_timers(None, 10).await.unwrap().len();
    assert_eq!(waiting().await, 2);
    // It takes the place of the one before, and fires.
    pay(&app, "7", REMIND_NOW).await;
    happened(&app, &AggregateKey::new("order", "7").unwrap(), OrderEvent::NOTED).await;
    eventually("it has fired", || async { (waiting().await == 1).then_some(()) }).await;
    for (count, asks) in [(4, REMIND_LATER), (5, REMIND_LATER)] {
        pay(&app, "7", asks).await;
        outcomes(&app, &trip("7"), count).await;
        assert_eq!(waiting().await, 2);
    }
    pay(&app, "7", DO_NOT_REMIND).await;
    outcomes(&app, &trip("7"), 6).await;
    assert_eq!(waiting().await, 1);
    pay(&app, "8", CANCEL).await;
    happened(&app, &trip("8"), TripEvent::UNDONE).await;
    assert_eq!(waiting().await, 0, "the end calls its timers off");
    app.stop().await;
}

/// Others that know neither the process nor what it sends have no part in it.
async fn a_process_is_undone_where_its_kind_is_known(fresh: &Fresh) {
    const TRIPS: usize = 6;
    let app = trips(fresh).await;
    let channel = Channel::named("process.trip", TripInput::NAMES.iter().copied());
    let other = builder(fresh).channel(channel).start().await.unwrap();
    let ids: Vec<String> = (0..TRIPS).map(|number| number.to_string()).collect();
    for id in &ids {
        book(&app, id, &format!("room-{id}")).await;
        happened(&app, &room(&format!("room-{id}")), RoomEvent::RESERVED).await;
        pay(&app, id, CANCEL).await;
    }
    for id in &ids {
        let happened = eventually("its end", || async {
            Some(names(&app, &trip(id)).await).filter(|names| names.len() == 3)
        })
        .await;
        assert_eq!(happened[2], TripEvent::UNDONE);
    }
    tokio::join!(app.stop(), other.stop());
}

/// Draws when it may.
struct PatientPainter(Arc<Semaphore>);

impl Worker for PatientPainter {
    fn task(&self) -> TaskType {
        draw()
    }

    async fn run(&self, _: Attempt) -> Result<Answer, HandlerError> {
        self.0.acquire().await?.forget();
        Answer::of("a duck")
    }
}

/// The order is shipped by somebody else before the picture is drawn.
async fn a_fact_before_its_turn_waits_for_it(fresh: &Fresh) {
    let may_draw = Arc::new(Semaphore::new(0));
    let app = builder(fresh).worker(PatientPainter(may_draw.clone()), 1).start().await.unwrap();
    place(&app, "7").await;
    happened(&app, &gift("7"), GiftEvent::BEGUN).await;
    app.send::<Order>("7", OrderCommand::Ship).await.unwrap();
    let letter = a_letter(&app, LetterStatus::Retry).await;
    assert_eq!(letter.status_reason.as_deref(), Some("illegal-transition"));
    may_draw.add_permits(1);
    let happened = happened(&app, &gift("7"), GiftEvent::SENT).await;
    assert_eq!(happened, [GiftEvent::BEGUN, GiftEvent::DRAWN, GiftEvent::SENT]);
    assert!(letters(&app, LetterStatus::Dead).await.is_empty());
    app.stop().await;
}

/// Waits for what a deadline ends.
#[derive(Default, Serialize, Deserialize)]
struct Vigil;

#[derive(Serialize, Deserialize, Event)]
enum VigilEvent {
    #[serde(rename = "vigil.begun")]
    Begun,
    #[serde(rename = "vigil.ended")]
    Ended,
}

#[derive(Serialize, Deserialize, Event)]
enum VigilInput {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
    #[serde(rename = "order.noted")]
    Noted,
    #[serde(rename = "vigil.ended")]
    Ended,
}

impl Aggregate for Vigil {
    const KIND: &'static str = "vigil";
    type Command = NoCommands;
    type Event = VigilEvent;
    type Refusal = Refused;

    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<VigilEvent>, Refused> {
        match command {}
    }

    fn evolve(self, _: &VigilEvent) -> Self {
        self
    }

    fn machine() -> Option<Machine> {
        let soon = Deadline::after(Duration::from_millis(50), VigilEvent::ENDED);
        let machine =
            Machine::named("vigil").starts(VigilEvent::BEGUN, "awake").waits("awake", soon, "sleep");
        Some(machine.terminal("asleep").transition("awake", VigilEvent::ENDED, "asleep"))
    }
}

impl Process for Vigil {
    type Input = VigilInput;

    fn correlate(input: &Seen<VigilInput>) -> Correlation {
        match &input.event {
            VigilInput::Placed { .. } => Correlation::Starts(input.aggregate_id().to_owned()),
            VigilInput::Noted => Correlation::ContinuesIfBegun("nobody".to_owned()),
            VigilInput::Ended => Correlation::Continues(input.aggregate_id().to_owned()),
        }
    }

    fn react(&self, input: Seen<VigilInput>, context: &Context) -> Reaction<Self> {
        let late = context.now + Duration::from_secs(3600);
        Reaction::of([VigilEvent::Begun]).send_at::<Order>(
            "late",
            late,
            input.aggregate_id(),
            OrderCommand::Note,
        )
    }
}

async fn a_deadline_that_ends_a_process_calls_its_timers_off(fresh: &Fresh) {
    let app = fresh.builder().process::<Vigil>().start().await.unwrap();
    place(&app, "7").await;
    let took = outcomes(&app, &AggregateKey::new("vigil", "7").unwrap(), 2).await;
    assert_eq!(took.last().unwrap().1, InputOutcome::AfterEnd, "{took:?}");
    assert!(app.store().waiting_timers(None, 10).await.unwrap().is_empty());
    app.stop().await;
}

async fn a_fact_for_a_process_only_if_it_is_there_does_not_wait(fresh: &Fresh) {
    let app = fresh.builder().process::<Vigil>().start().await.unwrap();
    place(&app, "7").await;
    app.send::<Order>("7", OrderCommand::Note).await.unwrap();
    let nobody = AggregateKey::new("vigil", "nobody").unwrap();
    assert_eq!(outcomes(&app, &nobody, 1).await, [("order.noted".to_owned(), InputOutcome::Ignored)]);
    assert!(letters(&app, LetterStatus::Retry).await.is_empty());
    app.stop().await;
}

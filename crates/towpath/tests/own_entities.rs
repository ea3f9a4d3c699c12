//! Entities: the state of a row changes as its machine says, and each change is a fact.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::future::{IntoFuture as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use support::Fresh;
use towpath::ids::{AggregateKey, EventId};
use towpath::machine::IllegalTransition;
use towpath::ports::store::StoreError;
use towpath::tables::Row;
use towpath::{Coded as _, Deadline, Entity, Event, Machine, Towpath, chrono};
use uuid::Uuid;

on_every_database!(
    a_row_its_history_and_its_facts_change_together,
    what_the_machine_does_not_allow_is_refused_with_what_it_does,
    of_all_who_change_a_row_at_once_one_does,
    a_row_that_is_not_as_it_was_read_is_not_changed,
    an_entity_begins_once_and_in_its_first_state,
    a_change_that_is_left_halfway_is_not_committed,
);

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "loans", index(loans_status(status)))]
struct Loan {
    #[row(key)]
    loan_id: i64,
    #[row(state, name = 32)]
    status: String,
    status_changed_at: DateTime<Utc>,
    #[row(name = 64)]
    status_reason: Option<String>,
    status_message: Option<String>,
    returned_at: Option<DateTime<Utc>>,
    #[row(name = 64)]
    last_event_id: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum LoanEvent {
    #[serde(rename = "loan.opened")]
    Opened { book: String },
    #[serde(rename = "loan.reminded")]
    Reminded,
    #[serde(rename = "loan.returned")]
    Returned,
    #[serde(rename = "loan.lost")]
    Lost { fee: u32 },
}

impl Entity for Loan {
    const KIND: &'static str = "loan";
    type Event = LoanEvent;

    fn machine() -> Machine {
        Machine::named("loan")
            .starts(LoanEvent::OPENED, "open")
            .state("open")
            .terminal("returned")
            .terminal("lost")
            .transition("open", LoanEvent::RETURNED, "returned")
            .transition("open", LoanEvent::LOST, "lost")
            .stays_in("open", LoanEvent::REMINDED)
    }

    fn id(&self) -> String {
        format!("loan-{}", self.loan_id)
    }
}

fn loan(loan_id: i64) -> Loan {
    Loan {
        loan_id,
        status: "open".to_owned(),
        status_changed_at: "2026-02-04T10:30:00Z".parse().unwrap(),
        status_reason: None,
        status_message: None,
        returned_at: None,
        last_event_id: None,
    }
}

async fn app(fresh: &Fresh) -> Towpath {
    let builder = fresh.builder().tables(&[*Loan::TABLE]).entity::<Loan>();
    builder.without_workers().start().await.unwrap()
}

/// A library with one open loan.
async fn opened(fresh: &Fresh) -> Towpath {
    let app = app(fresh).await;
    app.transact(async |mut tx| begin(&mut tx, &loan(1)).await).await.unwrap();
    app
}

async fn begin(tx: &mut towpath::Tx, loan: &Loan) -> Result<(), StoreError> {
    tx.begin_state(loan, LoanEvent::Opened { book: "Emma".to_owned() }).await
}

fn key() -> AggregateKey {
    AggregateKey::new("loan", "loan-1").unwrap()
}

async fn facts(app: &Towpath) -> Vec<String> {
    let facts = app.events_of(&key(), 0, 100).await.unwrap();
    facts.into_iter().map(|fact| fact.envelope.event_type.to_string()).collect()
}

async fn a_row_its_history_and_its_facts_change_together(fresh: &Fresh) {
    let app = opened(fresh).await;
    let (fact_id, following_id) = (EventId(Uuid::now_v7()), EventId(Uuid::now_v7()));
    let reminded = app.transact(async |mut tx| {
        tx.change_state(&loan(1), LoanEvent::Reminded).set("last_event_id", "reminded").await
    });
    let reminded = reminded.await.unwrap();
    assert_eq!(reminded, Loan { last_event_id: Some("reminded".to_owned()), ..loan(1) }, "its state stays");
    let lost = app.transact(async |mut tx| {
        tx.change_state(&reminded, LoanEvent::Lost { fee: 5 })
            .set("last_event_id", fact_id.to_string())
            .because("reader_moved", "nobody knows where to".to_owned())
            .fact_id(fact_id)
            .await
    });
    let lost = lost.await.unwrap();
    let facts_of_it = app.events_of(&key(), 2, 100).await.unwrap();
    let [fact] = &facts_of_it[..] else { panic!("one fact: {facts_of_it:?}") };
    assert_eq!((fact.envelope.event_id, fact.envelope.payload.as_text()), (fact_id, r#"{"fee":5}"#));
    let expected = Loan {
        status: "lost".to_owned(),
        status_changed_at: fact.envelope.occurred_at,
        status_reason: Some("reader_moved".to_owned()),
        status_message: Some("nobody knows where to".to_owned()),
        last_event_id: Some(fact_id.to_string()),
        ..loan(1)
    };
    assert_eq!(lost, expected);
    assert_eq!(app.find(&1).await.unwrap(), Some(expected), "what was answered is what is there");
    let history = app.history_of(&key(), 0, 10).await.unwrap();
    let steps: Vec<_> = history
        .iter()
        .map(|step| (step.from_state.as_deref(), step.to_state.as_str(), step.reason.as_deref()))
        .collect();
    assert_eq!(steps, [(None, "open", None), (Some("open"), "lost", Some("reader_moved"))]);
    let row = app.aggregate(&key()).await.unwrap().unwrap();
    assert_eq!((row.version, row.state.as_deref()), (3, Some("lost")));
    // A fact that follows from the first is in its flow.
    let other = app.transact(async |mut tx| {
        let opened = LoanEvent::Opened { book: "Persuasion".to_owned() };
        tx.begin_state(&loan(2), opened)
            .fact_id(following_id)
            .then(EventId(Uuid::now_v7()), LoanEvent::Reminded)
            .await
    });
    other.await.unwrap();
    let other = AggregateKey::new("loan", "loan-2").unwrap();
    let facts = app.events_of(&other, 0, 10).await.unwrap();
    assert_eq!(facts[0].envelope.correlation_id, facts[1].envelope.correlation_id);
    assert_eq!(facts[1].envelope.causation_id.as_ref().unwrap().to_string(), following_id.to_string());
    app.stop().await;
}

async fn what_the_machine_does_not_allow_is_refused_with_what_it_does(fresh: &Fresh) {
    let app = opened(fresh).await;
    let returned = app.transact(async |mut tx| {
        let now = tx.now();
        tx.change_state(&loan(1), LoanEvent::Returned).set("returned_at", now).await
    });
    let returned = returned.await.unwrap();
    for row in [&returned, &loan(1)] {
        // By the row that was read, and by the row that is there.
        let refused = app.transact(async |mut tx| {
            let refused = tx.change_state(row, LoanEvent::Lost { fee: 5 }).await.unwrap_err();
            // Nothing was written: the transaction goes on.
            begin(&mut tx, &loan(row.returned_at.map_or(3, |_| 2))).await?;
            Ok::<_, StoreError>(refused)
        });
        let refused = refused.await.unwrap();
        assert_eq!(refused.code(), "illegal-transition");
        let StoreError::ForbiddenEvent { source, .. } = refused else { panic!("{refused:?}") };
        let illegal = source.downcast_ref::<IllegalTransition>().unwrap();
        assert_eq!((illegal.from.as_deref(), illegal.possible.len()), (Some("returned"), 0));
    }
    assert_eq!(app.rows::<Loan>("test.loans", "", Vec::new()).await.unwrap().len(), 3);
    assert_eq!(facts(&app).await, ["loan.opened", "loan.returned"]);
    // One that leads elsewhere than was meant.
    let open = loan(2);
    let elsewhere =
        app.transact(async |mut tx| tx.change_state(&open, LoanEvent::Returned).to("lost").await).await;
    assert_eq!(elsewhere.unwrap_err().code(), "illegal-transition");
    app.stop().await;
}

async fn of_all_who_change_a_row_at_once_one_does(fresh: &Fresh) {
    let app = opened(fresh).await;
    let racing = (0..8_u32).map(|fee| {
        let app = app.clone();
        tokio::spawn(async move {
            let event = || if fee % 2 == 0 { LoanEvent::Returned } else { LoanEvent::Lost { fee } };
            app.transact(async |mut tx| tx.change_state(&loan(1), event()).await).await
        })
    });
    let mut codes = Vec::new();
    for one in racing.collect::<Vec<_>>() {
        codes.push(one.await.unwrap().map_or_else(|error| error.code(), |_| "changed"));
    }
    codes.sort_unstable();
    assert_eq!(codes, [&["changed"][..], &["illegal-transition"; 7]].concat());
    assert_eq!(facts(&app).await.len(), 2);
    app.stop().await;
}

async fn a_row_that_is_not_as_it_was_read_is_not_changed(fresh: &Fresh) {
    let app = opened(fresh).await;
    let soon = "2026-02-04T10:29:59Z".parse::<DateTime<Utc>>().unwrap();
    let early = app.transact(async |mut tx| {
        tx.change_state(&loan(1), LoanEvent::Returned).only_if("status_changed_at <= ?", soon).await
    });
    assert_eq!(early.await.unwrap_err().code(), "version-conflict");
    // A condition stands for itself, whatever is in it.
    app.transact(async |mut tx| begin(&mut tx, &loan(2)).await).await.unwrap();
    let other = app.transact(async |mut tx| {
        let condition = "status_changed_at <= ? OR status_reason IS NULL";
        tx.change_state(&loan(2), LoanEvent::Returned).only_if(condition, soon).await
    });
    assert_eq!(other.await.unwrap().loan_id, 2);
    let key = app
        .transact(async |mut tx| tx.change_state(&loan(1), LoanEvent::Returned).set("loan_id", 7_i64).await);
    assert_eq!(key.await.unwrap_err().code(), "store-refused");
    let unknown = app.transact(async |mut tx| tx.change_state(&loan(9), LoanEvent::Returned).await).await;
    assert_eq!(unknown.unwrap_err().code(), "missing");
    assert_eq!(facts(&app).await, ["loan.opened"]);
    assert_eq!(app.find(&1).await.unwrap(), Some(loan(1)));
    app.stop().await;
}

async fn an_entity_begins_once_and_in_its_first_state(fresh: &Fresh) {
    let app = opened(fresh).await;
    let again = app.transact(async |mut tx| begin(&mut tx, &loan(1)).await).await.unwrap_err();
    assert_eq!(again.code(), "illegal-transition");
    let further = Loan { status: "returned".to_owned(), ..loan(2) };
    let further = app.transact(async |mut tx| begin(&mut tx, &further).await).await.unwrap_err();
    assert!(towpath::with_causes(&further).contains("begins in the state open"), "{further:?}");
    let otherwise = app.transact(async |mut tx| tx.begin_state(&loan(2), LoanEvent::Returned).await).await;
    assert_eq!(otherwise.unwrap_err().code(), "illegal-transition");
    assert_eq!(app.rows::<Loan>("test.loans", "", Vec::new()).await.unwrap(), [loan(1)]);
    app.stop().await;
    let unregistered = fresh.builder().without_workers().start().await.unwrap();
    let missing = unregistered.transact(async |mut tx| begin(&mut tx, &loan(2)).await).await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no entity loan");
    unregistered.stop().await;
}

async fn a_change_that_is_left_halfway_is_not_committed(fresh: &Fresh) {
    let app = opened(fresh).await;
    for polls in 1..200 {
        let lost = app.transact(async |mut tx| {
            let open = loan(1);
            let mut changing = tx.change_state(&open, LoanEvent::Returned).into_future();
            let mut left = polls;
            let ended = poll_fn(|context| match changing.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => {
                    left -= 1;
                    if left == 0 { Poll::Ready(false) } else { Poll::Pending }
                }
            });
            if ended.await {
                return Err(StoreError::Missing { what: "end", name: "it was there".to_owned() });
            }
            drop(changing);
            Ok(())
        });
        let code = lost.await.unwrap_err().code();
        assert!(["transaction-lost", "missing"].contains(&code), "after {polls} polls: {code}");
        assert_eq!(app.find(&1).await.unwrap(), Some(loan(1)), "after {polls} polls");
        if code == "missing" {
            break;
        }
    }
    assert_eq!(facts(&app).await, ["loan.opened"]);
    app.stop().await;
}

/// The same rows with a machine that nobody could keep.
#[derive(Debug, Row)]
#[row(table = "holds")]
struct Hold {
    #[row(key)]
    hold_id: i64,
    #[row(state, name = 32)]
    status: String,
}

impl Entity for Hold {
    const KIND: &'static str = "hold";
    type Event = LoanEvent;

    fn machine() -> Machine {
        let deadline = Deadline::after(Duration::from_secs(1), LoanEvent::LOST);
        Machine::named("hold")
            .starts(LoanEvent::OPENED, "open")
            .waits("open", deadline, "somebody")
            .terminal("lost")
            .transition("open", LoanEvent::LOST, "lost")
            .stays(LoanEvent::RETURNED)
            .stays(LoanEvent::REMINDED)
    }

    fn id(&self) -> String {
        self.hold_id.to_string()
    }
}

#[tokio::test]
async fn an_entity_that_cannot_be_kept_is_not_registered() {
    let builder =
        Towpath::builder().store("sqlite::memory:").entity::<Loan>().entity::<Loan>().entity::<Hold>();
    let report = builder.start().await.err().unwrap().report();
    for flaw in [
        "entity loan is registered twice",
        "event loan.lost is registered twice",
        "the deadline of state open of hold",
    ] {
        assert!(report.contains(flaw), "{flaw}: {report}");
    }
}

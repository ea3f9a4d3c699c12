//! Sessions on every database: from the seed to the end, with workers that fail, hang, answer late, twice or nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use towpath::lifecycle::{CommandStatus, TaskState};
use towpath::ports::store::Flow;
use towpath::{Answer, Payload, Task};
use towpath_genesis::answers;
use towpath_genesis::capability::{CapabilityPolicy, task_type};
use towpath_genesis::process::schemas;
use towpath_genesis::session::{Session, Status};
use towpath_genesis::stage::Stage;

use support::{Does, Running, eventually, soon};

on_every_database!(
    a_whole_session_is_one_whole_flow,
    a_worker_that_fails_and_one_that_hangs_can_be_asked_again,
    late_doubled_and_foreign_answers_do_nothing,
    a_branch_goes_its_own_way,
);

async fn a_whole_session_is_one_whole_flow(database: &str) {
    let running = Running::on(database, soon(), true).await;
    running.start("s-1").await;
    running.start("s-2").await;
    for entity in Stage::ALL {
        if entity == Stage::World {
            running.send("s-1", "Theme.Revise", json!({ "text": "darker" })).await.unwrap();
        }
        let first = running.through("s-1", entity).await;
        let second = running.through("s-2", entity).await;
        // The same session content gives the same text.
        assert_eq!(first == second, entity < Stage::World, "{entity:?}");
    }
    assert_eq!(running.session("s-1").await.status, Some(Status::Finished));
    eventually("the processes end", || async {
        let view = running.app.load::<towpath_genesis::process::Writing>("s-1").await.unwrap()?;
        (view.state.as_deref() == Some("ended")).then_some(())
    })
    .await;
    let (flow, report) = eventually("every command of the flow is done", || async {
        let (flow, report) = running.flow("s-1").await;
        let done = flow.commands.iter().all(|record| record.status == CommandStatus::Completed);
        done.then_some((flow, report))
    })
    .await;
    assert!(report.whole && report.roots.len() == 1, "{report:?}");
    // 1 start, 6 × (request, propose, confirm), 5 completions, a revision and the end.
    assert_eq!(flow.commands.len(), 26);
    let named = |end: &str| {
        flow.events.iter().filter(|event| event.envelope.event_type.as_str().ends_with(end)).count()
    };
    assert_eq!(
        (named(".GenerationRequested"), named(".Generated")),
        (12, 7),
        "tasks, and what asked for them"
    );
    assert_eq!((named("Proposed"), named("Confirmed"), named("StageCompleted")), (5, 6, 5));
    // 26 facts of the session, 14 of its process and 12 of tasks.
    assert_eq!(fitting_their_schemas(&flow), 52, "every payload fits its published schema");
    let listed = eventually("the list says so", || async {
        let page =
            running.genesis.sessions(running.app.store(), "", Some(Status::Finished), Some("user-7"), 10);
        let rows = page.await.unwrap().rows;
        (rows.len() == 2).then_some(rows)
    })
    .await;
    assert_eq!((listed[0].session_id.as_str(), listed[0].stage), ("s-1", 5));
    running.stop().await;
}

/// How many facts there are in a flow; each is held against the schema of its type.
fn fitting_their_schemas(flow: &Flow) -> usize {
    let published: BTreeMap<String, Value> =
        schemas().into_iter().map(|(name, schema)| (name, schema.into())).collect();
    let envelopes = flow.events.iter().map(|event| &event.envelope);
    envelopes
        .inspect(|envelope| {
            let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
            let at = "https://genesis.test/schema";
            compiler.add_resource(at, published[envelope.event_type.as_str()].clone()).unwrap();
            let index = compiler.compile(at, &mut schemas).unwrap();
            let payload: Value = serde_json::from_str(envelope.payload.as_text()).unwrap();
            let fits = schemas.validate(&payload, index);
            fits.unwrap_or_else(|flaw| panic!("{} {payload}: {flaw:#}", envelope.event_type));
        })
        .count()
}

async fn a_worker_that_fails_and_one_that_hangs_can_be_asked_again(database: &str) {
    let policy = CapabilityPolicy {
        time_limit: Duration::from_secs(1),
        retries: vec![Duration::from_millis(20); 2],
        ..CapabilityPolicy::default()
    };
    let running = Running::on(database, policy, true).await;
    running.start("s-1").await;
    // Twice in vain, then well.
    running.script.0.lock().unwrap().extend([Does::Fails("first"), Does::Fails("second")]);
    running.through("s-1", Stage::Concept).await;
    let tasks = running.genesis.tasks(&running.app, "s-1", 10).await.unwrap();
    assert_eq!((tasks.len(), tasks[0].retry_count), (1, 2));
    // It never answers: that is known, and the session goes on when it is asked again.
    running.script.0.lock().unwrap().extend([Does::Hangs, Does::Hangs, Does::Hangs]);
    running.done("s-1", "Theme.Request").await;
    let failure =
        eventually("the time-out is known", || async { running.process("s-1").await.failure }).await;
    assert_eq!((failure.entity, failure.reason.as_str()), (Stage::Theme, "time-limit"));
    let open = running.session("s-1").await.entries[&Stage::Theme].open.unwrap();
    let tasks = running.genesis.tasks(&running.app, "s-1", 10).await.unwrap();
    let late = tasks.iter().find(|task| answers(task, Stage::Theme, open)).expect("its task");
    assert_eq!((late.status, late.retry_count), (TaskState::Timeout, 2));
    running.through("s-1", Stage::Theme).await;
    assert_eq!(running.process("s-1").await.failure, None);
    // Its task can be done again by hand, too.
    running.script.0.lock().unwrap().extend([Does::Fails("a"), Does::Fails("b"), Does::Fails("c")]);
    running.done("s-1", "World.Request").await;
    eventually("it has failed", || async { running.process("s-1").await.failure }).await;
    let tasks = running.genesis.tasks(&running.app, "s-1", 10).await.unwrap();
    let failed = tasks.iter().find(|task| task.status == TaskState::Failed).expect("a task that failed");
    running.app.retry_task(failed.task.task_id).await.unwrap();
    running.proposed("s-1", Stage::World).await;
    let (_, report) = running.flow("s-1").await;
    assert!(report.whole, "{report:?}");
    running.stop().await;
}

/// The open task of a request.
async fn open_task(running: &Running, id: &str, entity: Stage) -> Task {
    eventually("there is a task", || async {
        let request = running.session(id).await.entries[&entity].open?;
        let tasks = running.genesis.tasks(&running.app, id, 10).await.unwrap();
        tasks.into_iter().find(|task| answers(task, entity, request) && task.status == TaskState::Queued)
    })
    .await
}

async fn late_doubled_and_foreign_answers_do_nothing(database: &str) {
    let running = Running::on(database, soon(), false).await;
    let answer = async |task: &Task, result: serde_json::Value| {
        let answer = Ok(Answer::with(Payload::from_value(&result).unwrap()));
        running.app.answer_task(task.task.task_id, None, "elsewhere", answer).await
    };
    running.start("s-1").await;
    running.done("s-1", "Seed.Request").await;
    let first = open_task(&running, "s-1", Stage::Concept).await;
    running.done("s-1", "Seed.Request").await;
    let second = open_task(&running, "s-1", Stage::Concept).await;
    assert_ne!(first.task.task_id, second.task.task_id);
    // What is superseded is called off; who answers it hears that.
    eventually("it is called off", || async {
        let task = running.app.task(first.task.task_id).await.unwrap()?;
        (task.status == TaskState::Canceled).then_some(())
    })
    .await;
    assert!(answer(&first, json!({ "text": "late" })).await.is_err());
    // Nonsense is a failure that can be seen, and the session is as it was.
    answer(&second, json!(7)).await.unwrap();
    let failure = eventually("nonsense is known", || async { running.process("s-1").await.failure }).await;
    assert_eq!(failure.reason, "genesis-draft");
    running.done("s-1", "Seed.Request").await;
    let third = open_task(&running, "s-1", Stage::Concept).await;
    answer(&third, json!({ "title": "A", "text": "B" })).await.unwrap();
    assert_eq!(running.proposed("s-1", Stage::Concept).await.text, "B");
    assert!(answer(&third, json!({ "title": "A", "text": "C" })).await.is_err(), "doubled");
    // Somebody else's task of the same sort: for nobody, and for the process under a name that it did not give.
    running.done("s-1", "Seed.Request").await;
    open_task(&running, "s-1", Stage::Concept).await;
    let of = task_type(Stage::Concept, &soon());
    let subject = towpath_genesis::subject("s-1").unwrap();
    let started = running.app.transact(async |mut tx| {
        let nobodys = tx.start_task(&of, &json!({})).await?;
        let foreign = tx.start_task(&of, &json!({})).subject(&subject).unique("concept/1").await?;
        Ok::<_, towpath::ports::store::StoreError>([nobodys, foreign])
    });
    for task in started.await.unwrap() {
        let task = running.app.task(task.task_id).await.unwrap().unwrap();
        answer(&task, json!({ "text": "foreign" })).await.unwrap();
    }
    eventually("it is recorded", || async { (running.process("s-1").await.discarded == 1).then_some(()) })
        .await;
    assert_eq!(
        running.session("s-1").await.entries[&Stage::Concept].proposal.as_ref().unwrap().draft.text,
        "B"
    );
    let letters = running.app.backlog().await.unwrap();
    assert!(letters.letters.is_empty(), "{letters:?}");
    running.stop().await;
}

async fn a_branch_goes_its_own_way(database: &str) {
    let running = Running::on(database, soon(), true).await;
    running.start("s-1").await;
    for entity in [Stage::Concept, Stage::Theme, Stage::World] {
        running.through("s-1", entity).await;
    }
    let branch_of = async |id: &str, asked: Value| {
        running.send(id, "Branch.Create", asked).await.unwrap();
        running.session(id).await.branches[0].session_id.clone()
    };
    let begins = async |id: &str| {
        eventually("the branch begins", || async { running.app.load::<Session>(id).await.unwrap() }).await
    };
    let branch_id = branch_of("s-1", json!({ "stage": 1 })).await;
    let branch = begins(&branch_id).await.value;
    let parent = running.session("s-1").await;
    assert_eq!((branch.status, branch.stage), (Some(Status::In(Stage::Theme)), Stage::Theme));
    let of = branch.branch_of.clone().unwrap();
    assert_eq!((of.session_id.as_str(), of.stage), ("s-1", Stage::Theme));
    assert_eq!(branch.confirmed(Stage::Concept), parent.confirmed(Stage::Concept));
    assert_eq!(branch.confirmed(Stage::Theme), None);
    // The branch fails, and another is made of what it was; the parent goes on.
    running.done(&branch_id, "Fail").await;
    let another = branch_of(&branch_id, json!({})).await;
    begins(&another).await;
    running.through(&another, Stage::Theme).await;
    running.through("s-1", Stage::Character).await;
    assert_eq!(running.session("s-1").await.stage, Stage::Plot);
    let (_, report) = running.flow("s-1").await;
    assert!(report.whole, "{report:?}");
    running.stop().await;
}

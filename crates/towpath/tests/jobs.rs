//! Jobs of an application: they live and end with Towpath.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use support::Fresh;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use towpath::{Coded as _, HandlerError, Job, Turn};

on_every_database!(
    a_job_goes_on_after_failures_and_ends_with_towpath,
    a_job_that_is_alone_is_done_by_one_instance_and_then_by_another,
    a_job_that_does_not_end_is_cut_off_and_named,
    a_job_cannot_stop_the_towpath_that_runs_it,
    jobs_have_names_that_can_be_told_apart,
    who_stops_a_second_time_waits_for_the_first,
);

const SOON: Duration = Duration::from_millis(5);

async fn next<T>(told: &mut UnboundedReceiver<T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), told.recv()).await.expect("another turn").unwrap()
}

async fn a_job_goes_on_after_failures_and_ends_with_towpath(fresh: &Fresh) {
    let (tell, mut told) = unbounded_channel();
    let turns = AtomicU32::new(0);
    let job = Job::named("count", SOON, move |turn: Turn| {
        let number = turns.fetch_add(1, Ordering::SeqCst);
        tell.send(number).unwrap();
        assert_ne!(number, 1, "a panic on purpose");
        async move {
            turn.app.ready().await?;
            if number == 0 { Err(HandlerError::transient("not-now", "fails once")) } else { Ok(()) }
        }
    });
    let app = fresh.builder().job(job).start().await.unwrap();
    for number in 0..4 {
        assert_eq!(next(&mut told).await, number);
    }
    assert!(app.stop_within(Duration::from_secs(20)).await.is_empty());
    while told.recv().await.is_some() {}
}

async fn a_job_that_is_alone_is_done_by_one_instance_and_then_by_another(fresh: &Fresh) {
    let (tell, mut told) = unbounded_channel();
    let instance = |name: &'static str| {
        let tell = tell.clone();
        let job = Job::named("alone", SOON, move |turn: Turn| {
            tell.send(turn.app.instance().to_string()).unwrap();
            async { Ok(()) }
        });
        // Who is slow is not taken over.
        fresh.builder().instance(name).lease(Duration::from_secs(15)).job(job.alone()).start()
    };
    let one = instance("one").await.unwrap();
    assert_eq!(next(&mut told).await, "one");
    let other = instance("other").await.unwrap();
    for _ in 0..20 {
        assert_eq!(next(&mut told).await, "one");
    }
    one.stop().await;
    while next(&mut told).await == "one" {}
    for _ in 0..3 {
        assert_eq!(next(&mut told).await, "other");
    }
    other.stop().await;
}

async fn a_job_that_does_not_end_is_cut_off_and_named(fresh: &Fresh) {
    let (tell, mut told) = unbounded_channel();
    let held = Arc::new(());
    let job = Job::named("endless", SOON, {
        let held = Arc::clone(&held);
        move |turn: Turn| {
            tell.send(()).unwrap();
            let held = Arc::clone(&held);
            async move {
                std::future::pending::<()>().await;
                drop((turn, held));
                Ok(())
            }
        }
    });
    let app = fresh.builder().job(job).start().await.unwrap();
    next(&mut told).await;
    let cut_off = app.stop_within(Duration::from_millis(50)).await;
    assert!(cut_off.iter().any(|name| name == "job endless"), "{cut_off:?}");
    drop(app);
    assert_eq!(Arc::strong_count(&held), 1, "nothing of it is left");
}

async fn a_job_cannot_stop_the_towpath_that_runs_it(fresh: &Fresh) {
    let (tell, mut told) = unbounded_channel();
    let job = Job::named("stopper", SOON, move |turn: Turn| {
        let tell = tell.clone();
        async move {
            let cut_off = turn.app.stop_within(Duration::from_secs(20)).await;
            tell.send(cut_off).unwrap();
            turn.app.ready().await?;
            Ok(())
        }
    });
    let app = fresh.builder().job(job).start().await.unwrap();
    for _ in 0..3 {
        assert!(next(&mut told).await.is_empty(), "nothing is cut off, and turns go on");
    }
    app.ready().await.expect("the store is open");
    assert!(app.stop_within(Duration::from_secs(20)).await.is_empty());
}

async fn jobs_have_names_that_can_be_told_apart(fresh: &Fresh) {
    let job = |name: &str| Job::named(name, SOON, |_| async { Ok(()) });
    let long = "long".repeat(50);
    for (other, code) in [("sweep", "wiring"), (long.as_str(), "invalid-id")] {
        let refused =
            fresh.builder().job(job("sweep")).job(job(other)).start().await.err().expect("a refusal");
        assert_eq!(refused.code(), code, "{}", refused.report());
    }
}

/// The second must not close the store beneath what the first still waits for.
async fn who_stops_a_second_time_waits_for_the_first(fresh: &Fresh) {
    let (tell, mut told) = unbounded_channel();
    let gate = Arc::new(tokio::sync::Notify::new());
    let job = Job::named("slow", SOON, {
        let gate = Arc::clone(&gate);
        move |turn: Turn| {
            let (tell, gate) = (tell.clone(), Arc::clone(&gate));
            async move {
                tell.send("begun".to_owned()).unwrap();
                while !turn.is_last() {
                    tokio::task::yield_now().await;
                }
                tell.send("asked".to_owned()).unwrap();
                gate.notified().await;
                let answer = turn.app.ready().await;
                tell.send(format!("{:?}", answer.is_ok())).unwrap();
                Ok(())
            }
        }
    });
    let app = fresh.builder().job(job).start().await.unwrap();
    assert_eq!(next(&mut told).await, "begun");
    let stop = |patience: u64| {
        let app = app.clone();
        tokio::spawn(async move { app.stop_within(Duration::from_secs(patience)).await })
    };
    let first = stop(20);
    assert_eq!(next(&mut told).await, "asked");
    let second = stop(0);
    // It gets as far as it can.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!second.is_finished(), "who stops a second time waits for the first");
    gate.notify_one();
    assert_eq!(next(&mut told).await, "true", "the store was still open");
    assert!(first.await.unwrap().is_empty());
    second.await.unwrap();
}

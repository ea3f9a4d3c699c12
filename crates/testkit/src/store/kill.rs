//! Killed between any two statements: a child process runs a workload and dies before its n-th statement, for
//! n = 0, 1, 2 and so on, until the workload outruns the kill. After each death the parent audits what is there,
//! runs the rest, and audits again.

use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::InspectedStore;
use uuid::Uuid;

use super::StoreFixture;
use super::waiting::{PATIENCE, in_time};
use super::workload::Workload;
use crate::probe::{KillProbe, StopProbe};

/// The environment variable that makes a test binary the child, and tells it what to do.
pub const ENVIRONMENT_VARIABLE: &str = "TOWPATH_KILL_CHILD";

/// How many statements a workload has at least. If one run needs fewer, the probe does not see them all.
const FEWEST_STATEMENTS: u64 = 20;

/// How many it has at most: a workload that never outruns the kill would go on for ever.
const MOST_STATEMENTS: u64 = 2_000;

/// What the child prints when it was not killed: an exit code of 0 alone would also come from a binary that found
/// no test of that name.
const FINISHED: &str = "towpath kill child: finished, statements: ";

/// How the parent starts the child.
#[derive(Debug, Clone)]
pub struct KillChild {
    /// Where the fixture's database is, as the child's `connect` takes it.
    pub url: String,
    /// The full name of the test that calls [`child_main`], as `--list` prints it: `postgres::kill_child`.
    pub test: String,
}

/// A process that is killed between any two statements leaves nothing half done, nothing doubled and nothing
/// stuck (P1, P2, P7).
pub async fn a_process_killed_between_any_two_statements_leaves_no_harm(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for kill_at in 0..=MOST_STATEMENTS {
        let seed = Uuid::now_v7().to_string();
        let end = match fixture.kill_child() {
            Some(child) => run_child(&child, kill_at, &seed).await,
            None => run_in_process(fixture, kill_at, &seed).await,
        };
        let workload = Workload::new(&seed);
        if let End::Finished { statements } = end {
            workload.check_done(&*store).await;
            assert!(statements >= FEWEST_STATEMENTS, "the probe was told of only {statements} statements");
            return;
        }
        workload.check_cut_off(&*store).await;
        let rest = in_time("the rest of the workload", workload.run(&*store)).await;
        rest.unwrap_or_else(|error| panic!("killed before statement {kill_at}, the rest failed: {error:?}"));
        workload.check_done(&*store).await;
    }
    panic!("the workload was still killed at statement {MOST_STATEMENTS}");
}

/// The child's side. A test that calls this does nothing when it runs among the others: only with
/// [`ENVIRONMENT_VARIABLE`] set is it the child.
///
/// ```no_run
/// # async fn connect(url: &str, probe: std::sync::Arc<dyn towpath_core::ports::probe::Probe>)
/// #     -> std::sync::Arc<dyn towpath_core::ports::store::InspectedStore> { unimplemented!() }
/// #[test]
/// #[ignore = "not a test: the process that others start"]
/// fn kill_child() {
///     towpath_testkit::store::kill::child_main(|url, probe| async move { connect(&url, probe).await });
/// }
/// ```
#[allow(clippy::print_stdout, reason = "standard output is how the child answers")]
pub fn child_main<F>(connect: impl FnOnce(String, Arc<dyn Probe>) -> F)
where
    F: Future<Output = Arc<dyn InspectedStore>>,
{
    let Ok(order) = std::env::var(ENVIRONMENT_VARIABLE) else { return };
    let order: Order = serde_json::from_str(&order).expect("the parent's order is JSON");
    let probe = Arc::new(KillProbe::new(order.kill_at));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let store = connect(order.url, Arc::clone(&probe) as Arc<dyn Probe>).await;
        Workload::new(&order.seed).run(&*store).await.expect("the workload runs through unless it is killed");
    });
    println!("{FINISHED}{}", probe.count());
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    url: String,
    kill_at: u64,
    seed: String,
}

enum End {
    Killed,
    Finished { statements: u64 },
}

async fn run_child(child: &KillChild, kill_at: u64, seed: &str) -> End {
    let order = Order { url: child.url.clone(), kill_at, seed: seed.to_owned() };
    let process = Command::new(std::env::current_exe().expect("the path of this test binary"))
        .args(["--exact", &child.test, "--ignored", "--nocapture"])
        .env(ENVIRONMENT_VARIABLE, serde_json::to_string(&order).expect("an order is JSON"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the child");
    let pid = process.id();
    let waiting = tokio::task::spawn_blocking(move || process.wait_with_output());
    let output = match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(joined) => joined.expect("the waiting thread").expect("wait for the child"),
        Err(_) => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
            kill_process(pid, Signal::KILL).expect("end the child that hangs");
            panic!("the child for statement {kill_at} still ran after {PATIENCE:?}");
        }
    };
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        return End::Killed;
    }
    let statements = finished_after(&output);
    statements
        .map_or_else(|| panic!("{}", failure_of(child, &output)), |statements| End::Finished { statements })
}

fn finished_after(output: &Output) -> Option<u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = text.split_once(FINISHED)?;
    rest.split_whitespace().next()?.parse().ok().filter(|_| output.status.success())
}

fn failure_of(child: &KillChild, output: &Output) -> String {
    format!(
        "the child was neither killed nor did it finish: {}. Is there a test {:?} in this binary that calls child_main?\n{}{}",
        output.status,
        child.test,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    )
}

/// For stores that live in this process: a panic instead of a kill. Weaker, because destructors run.
async fn run_in_process(fixture: &impl StoreFixture, stop_at: u64, seed: &str) -> End {
    let probe = Arc::new(StopProbe::new(stop_at));
    let store = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
    let workload = Workload::new(seed);
    let running = tokio::spawn(async move { workload.run(&*store).await });
    match in_time("the workload", running).await {
        Ok(ended) => {
            ended.expect("the workload runs through unless it is stopped");
            End::Finished { statements: probe.count() }
        }
        Err(stopped) => {
            let panic = stopped.into_panic();
            let message = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(message.starts_with(StopProbe::MESSAGE), "the workload broke off by itself: {message}");
            End::Killed
        }
    }
}

//! The kill probe really kills: this binary starts itself and dies before its third statement.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use towpath_core::ports::probe::Probe;
use towpath_testkit::KillProbe;

const VARIABLE: &str = "TOWPATH_KILL_PROBE_TEST";

#[test]
fn it_kills_before_the_nth_statement() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(VARIABLE, "2")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert_eq!(child.status.signal(), Some(9), "{said}");
    assert!(said.contains("statement 1 was sent"), "{said}");
    assert!(!said.contains("statement 2 was sent"), "{said}");
}

/// Does nothing unless the test above has started it.
#[test]
#[ignore = "not a test: the process that others start"]
fn child() {
    let Ok(kill_at) = std::env::var(VARIABLE) else { return };
    let probe = KillProbe::new(kill_at.parse().unwrap());
    for statement in 0..5 {
        probe.before("statement");
        println!("statement {statement} was sent");
    }
}

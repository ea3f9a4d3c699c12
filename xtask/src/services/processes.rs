//! Finds and ends the processes of our servers without trusting pid files.
//!
//! A pid file outlives a killed server, and its number may by then belong to a stranger. What a process
//! says about itself in /proc cannot be stale.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::services::home::MARKER_VARIABLE;

/// A running process of one of our servers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Process {
    /// Its number.
    pub(super) pid: u32,
    /// Who started it, or 1 when that one is gone.
    pub(super) parent: u32,
    /// The name of its program, cut to 15 bytes by the kernel.
    pub(super) name: String,
}

/// The processes of the server that lives in this folder and whose main program has this name.
pub(super) fn processes_of(folder: &Path, main_name: &str) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .filter_map(|pid| process_from_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .filter(|process| {
            // PostgreSQL writes its titles over its environment, but always works in its data folder. The
            // name is asked as well because a developer's shell may stand in that folder.
            carries_marker(process.pid, folder)
                || (process.name == main_name && works_in(process.pid, folder))
        })
        .collect()
}

/// Sends a signal, named without SIG, to all of them. One that is already gone is no failure.
pub(super) fn signal(processes: &[Process], signal: &str) {
    if processes.is_empty() {
        return;
    }
    let numbers: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    // The shell's own `kill` exists everywhere, the program of that name does not.
    let mut kill = Command::new("sh");
    kill.arg("-c").arg(format!("kill -{signal} {}", numbers.join(" ")));
    kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Whether it worked is seen by whether they are gone.
    let _ = kill.status();
}

/// Asks again and again until the condition holds; `false` when the time is over.
pub(super) fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn process_from_stat(pid: u32, stat: &str) -> Option<Process> {
    // The name stands in parentheses and may itself contain some, so the last one ends it.
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut fields = after.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // A zombie is dead, only its parent has not asked yet.
    (state != "Z").then(|| Process { pid, parent, name: name.to_owned() })
}

fn carries_marker(pid: u32, folder: &Path) -> bool {
    let wanted = format!("{MARKER_VARIABLE}={}", folder.display());
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
}

fn works_in(pid: u32, folder: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|current| current.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_even_with_parentheses_in_the_name() {
        let process = process_from_stat(7, "7 (a) b (c)) S 42 7 7 0").unwrap();
        assert_eq!(process, Process { pid: 7, parent: 42, name: "a) b (c)".to_owned() });
    }

    #[test]
    fn zombies_and_nonsense_are_no_processes() {
        assert_eq!(process_from_stat(7, "7 (postgres) Z 1 7"), None);
        assert_eq!(process_from_stat(7, ""), None);
    }

    #[test]
    fn a_process_is_found_by_its_marker_and_ended() {
        let folder = Path::new("/nonexistent/towpath-process-test");
        let mut child = Command::new("sleep").arg("60").env(MARKER_VARIABLE, folder).spawn().unwrap();
        assert!(wait_until(Duration::from_secs(10), || !processes_of(folder, "sleep").is_empty()));
        let found = processes_of(folder, "sleep");
        assert_eq!(found[0].pid, child.id());
        signal(&found, "KILL");
        child.wait().unwrap();
        assert!(wait_until(Duration::from_secs(10), || processes_of(folder, "sleep").is_empty()));
    }
}

//! What a server is to this tool, and how any of them is brought up and down.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::failure::Failure;
use crate::services::home::Home;
use crate::services::processes::{self, Process, wait_until};
use crate::services::progress::Progress;

/// A variable by which tests find a server, and the URL in it.
#[derive(Debug, Clone)]
pub(super) struct Address {
    /// The variable's name.
    pub(super) variable: &'static str,
    /// The variable's value.
    pub(super) url: String,
}

/// One kind of server. Everything that differs between them is behind these questions.
pub(super) trait Server: Sync {
    /// Its name on the command line, in the table, and of its folder.
    fn name(&self) -> &'static str;
    /// Its name in sentences.
    fn title(&self) -> &'static str;
    /// Debian's packages that bring it, or what it is built with.
    fn packages(&self) -> &'static [&'static str];
    /// Whether these packages are on this machine.
    fn has_packages(&self) -> bool {
        self.is_installed()
    }
    /// Builds its programs, where no package brings them.
    fn build(&self, _data_root: &Path, _progress: &Progress) -> Result<(), Failure> {
        Ok(())
    }
    /// The user that it runs as: one that its package or the base system creates.
    fn user(&self) -> &'static str;
    /// The name of its main process.
    fn main_process_name(&self) -> &'static str;
    /// The signal that makes it end orderly without waiting for its clients.
    fn stop_signal(&self) -> &'static str;
    /// Processes that it starts, that outlive it, and that its next start uses again.
    fn companions(&self) -> &'static [&'static str] {
        &[]
    }
    /// The addresses of our own one; the first is the server itself.
    fn addresses(&self) -> Vec<Address>;
    /// Every port that must be free before it starts.
    fn ports(&self) -> &'static [u16];
    /// Longer than any start that succeeds, on a machine that compiles at the same time.
    fn longest_start(&self) -> Duration;
    /// Whether its programs are on this machine.
    fn is_installed(&self) -> bool;
    /// The version of its programs, when they are here and say it.
    fn version(&self) -> Option<String>;
    /// Whether our own one is ready to serve.
    fn answers(&self) -> bool;
    /// Makes what it needs before it starts: an empty database, configuration files.
    fn prepare(&self, home: &Home, progress: &Progress) -> Result<(), Failure>;
    /// The folder below its own that it forgets when it is stopped, if it is meant to.
    fn forgets(&self) -> Option<&'static str> {
        None
    }
    /// The command that is the server.
    fn daemon(&self, home: &Home) -> Result<Command, Failure>;
}

/// Makes sure that our own server runs and answers.
pub(super) fn bring_up(server: &dyn Server, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
    let home = Home::at(data_root, server);
    if server.answers() {
        let whose = match main_process(server, &home) {
            Some(process) => format!("already running, pid {}", process.pid),
            None => "already running, started by somebody else".to_owned(),
        };
        progress.step(server.name(), &format!("{whose}, {}", urls_of(server)));
        return Ok(());
    }

    home.create()?;
    end_what_does_not_answer(server, &home, progress)?;
    if server.answers() {
        progress.step(server.name(), &format!("ready, {}", urls_of(server)));
        return Ok(());
    }
    refuse_taken_ports(server)?;
    home.clear_run_folder()?;
    server.prepare(&home, progress)?;

    progress.step(server.name(), "starting");
    let mut child = home.start(server.daemon(&home)?)?;
    let mut exit = None;
    let is_decided = wait_until(server.longest_start(), || {
        if server.answers() {
            return true;
        }
        exit = child.try_wait().ok().flatten();
        exit.is_some()
    });
    if let Some(status) = exit {
        let what = format!("{} ended while starting ({status})", server.title());
        return Err(Failure::new(what + &home.log_tails()));
    }
    if !is_decided {
        let seconds = server.longest_start().as_secs();
        let what = format!("{} did not answer within {seconds} seconds of its start", server.title());
        return Err(Failure::new(what + &home.log_tails()));
    }
    progress.step(server.name(), &format!("ready, {}", urls_of(server)));
    Ok(())
}

/// Makes sure that nothing of our own server runs any more.
pub(super) fn bring_down(server: &dyn Server, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
    let home = Home::at(data_root, server);
    let was_running = !processes_without_companions(server, &home).is_empty();
    if was_running {
        progress.step(server.name(), "stopping");
        end_processes(server, &home, progress)?;
    }
    let companions = processes::processes_of(home.folder(), server.main_process_name());
    processes::signal(&companions, "KILL");
    if let Some(folder) = server.forgets() {
        home.remove(folder)?;
    }
    let message = match (was_running, server.answers()) {
        (true, _) => "stopped",
        (false, true) => "left running: somebody else started it",
        (false, false) => "was not running",
    };
    progress.step(server.name(), message);
    Ok(())
}

/// Ends our own server as a crash does. What it shares with others stays.
pub(super) fn kill(server: &dyn Server, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
    const END: Duration = Duration::from_secs(10);
    let home = Home::at(data_root, server);
    let running = processes_without_companions(server, &home);
    if running.is_empty() {
        return Err(Failure::new(format!("{} is not running, or not ours", server.name())));
    }
    processes::signal(&running, "KILL");
    if !wait_until(END, || processes_without_companions(server, &home).is_empty()) {
        return Err(Failure::new(format!("{} cannot be killed", server.name())));
    }
    progress.step(server.name(), "killed");
    Ok(())
}

/// The process that the others of this server come from.
pub(super) fn main_process(server: &dyn Server, home: &Home) -> Option<Process> {
    main_processes(server, &processes_without_companions(server, home)).into_iter().next()
}

/// After a crash there may be children without their parent, after a bad start a server that is still busy
/// recovering, and either keeps the data folder or the ports.
fn end_what_does_not_answer(server: &dyn Server, home: &Home, progress: &Progress) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let running = processes_without_companions(server, home);
    if running.is_empty() {
        return Ok(());
    }
    let started = home.started_process();
    if running.iter().any(|process| Some(process.pid) == started) {
        progress.step(server.name(), "runs but does not answer, waiting for it");
        let mut answers = false;
        wait_until(PATIENCE, || {
            answers = server.answers();
            answers || processes_without_companions(server, home).is_empty()
        });
        if answers || processes_without_companions(server, home).is_empty() {
            return Ok(());
        }
    }
    progress.step(server.name(), "ending what is left of an earlier run");
    end_processes(server, home, progress)
}

fn end_processes(server: &dyn Server, home: &Home, progress: &Progress) -> Result<(), Failure> {
    const ORDERLY_END: Duration = Duration::from_secs(30);
    const FORCED_END: Duration = Duration::from_secs(10);
    let is_gone = || processes_without_companions(server, home).is_empty();
    let running = processes_without_companions(server, home);
    processes::signal(&main_processes(server, &running), server.stop_signal());
    if wait_until(ORDERLY_END, is_gone) {
        return Ok(());
    }
    progress.step(server.name(), "does not end when asked, killing it");
    processes::signal(&processes_without_companions(server, home), "KILL");
    if wait_until(FORCED_END, is_gone) {
        return Ok(());
    }
    let left: Vec<String> =
        processes_without_companions(server, home).iter().map(|process| process.pid.to_string()).collect();
    Err(Failure::new(format!("{}: processes {} cannot be killed", server.name(), left.join(", "))))
}

fn refuse_taken_ports(server: &dyn Server) -> Result<(), Failure> {
    for port in server.ports() {
        if accepts_connections(*port) {
            let variable = server.addresses().first().map(|address| address.variable).unwrap_or_default();
            return Err(Failure::new(format!(
                "{} cannot start: port {port} is taken by a process that is not ours",
                server.title()
            ))
            .next_step(format!("stop that process, or set {variable} to a server that already runs")));
        }
    }
    Ok(())
}

fn accepts_connections(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

fn processes_without_companions(server: &dyn Server, home: &Home) -> Vec<Process> {
    let mut all = processes::processes_of(home.folder(), server.main_process_name());
    all.retain(|process| !server.companions().contains(&process.name.as_str()));
    all
}

fn main_processes(server: &dyn Server, running: &[Process]) -> Vec<Process> {
    let has_main_name = |process: &&Process| process.name == server.main_process_name();
    let is_child_of_one = |process: &Process| {
        running.iter().filter(has_main_name).any(|possible_parent| possible_parent.pid == process.parent)
    };
    running.iter().filter(has_main_name).filter(|process| !is_child_of_one(process)).cloned().collect()
}

fn urls_of(server: &dyn Server) -> String {
    server.addresses().into_iter().map(|address| address.url).collect::<Vec<_>>().join(" ")
}

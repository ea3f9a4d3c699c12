//! The folder and the user of one server, and commands that run there as that user.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::iter;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::failure::Failure;
use crate::services::server::Server;

/// The variable by which a server's processes are recognized; its value is the server's folder.
pub(super) const MARKER_VARIABLE: &str = "TOWPATH_SERVICE_HOME";

/// Closes what our caller left open and becomes the command that follows. A pipe that a server keeps open
/// would let the caller wait for its end for as long as the server lives.
const WITHOUT_INHERITED_FILES: &str = r#"
for file in /proc/self/fd/*; do
    file=${file##*/}
    if ((file > 2)); then eval "exec $file>&-"; fi
done
exec "$@"
"#;

/// Where one server keeps everything, and as whom it runs.
pub(super) struct Home {
    folder: PathBuf,
    user: &'static str,
    server_name: &'static str,
}

impl Home {
    /// Names the place without touching it.
    pub(super) fn at(data_root: &Path, server: &dyn Server) -> Self {
        Self { folder: data_root.join(server.name()), user: server.user(), server_name: server.name() }
    }

    /// Makes the folders and hands them to the server's user.
    pub(super) fn create(&self) -> Result<(), Failure> {
        for folder in [self.folder.clone(), self.run_folder(), self.log_folder()] {
            let attempt = format!("prepare {}", folder.display());
            fs::create_dir_all(&folder).map_err(Failure::while_trying(&attempt))?;
            if is_root() {
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))
                    .map_err(Failure::while_trying(&attempt))?;
            }
            self.give_to_user(&folder)?;
        }
        let mut can_write = self.command("test");
        can_write.arg("-w").arg(self.run_folder());
        // The check starts where everybody may be; the folder itself is what is in doubt.
        can_write.current_dir("/");
        let allowed = can_write.status().map_err(Failure::while_trying("run `setpriv`"))?;
        if !allowed.success() {
            return Err(Failure::new(format!(
                "{}: user {} cannot write to {}",
                self.server_name,
                self.user,
                self.folder.display()
            ))
            .next_step("set TOWPATH_SERVICES_DIR to a folder below one that every user may enter"));
        }
        Ok(())
    }

    /// The server's folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// For sockets and pid files.
    pub(super) fn run_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Removes the sockets and pid files of a killed run, once none of its processes lives. Some servers
    /// refuse to start over them when the number in them belongs to a process again, or still to a zombie.
    pub(super) fn clear_run_folder(&self) -> Result<(), Failure> {
        let folder = self.run_folder();
        let attempt = format!("clear {}", folder.display());
        for entry in fs::read_dir(&folder).map_err(Failure::while_trying(&attempt))? {
            let path = entry.map_err(Failure::while_trying(&attempt))?.path();
            fs::remove_file(&path).map_err(Failure::while_trying(&attempt))?;
        }
        Ok(())
    }

    /// For logs; a failed start shows the end of each.
    pub(super) fn log_folder(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What the server says once it is told to say it into a file.
    pub(super) fn log_file(&self) -> PathBuf {
        self.log_folder().join("server.log")
    }

    /// Writes a file that the server can read and change.
    pub(super) fn write(&self, path: &Path, content: &str) -> Result<(), Failure> {
        fs::write(path, content).map_err(Failure::while_trying(format!("write {}", path.display())))?;
        self.give_to_user(path)
    }

    /// A command as the server's user, in the server's folder. The environment is a clean one: a PGPORT
    /// or a MYSQL_HOME of the developer's shell must not lead it to another server.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_behind(&[], program.as_ref())
    }

    /// A command that outlives us: in a session of its own, with its output in the log.
    pub(super) fn daemon(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_behind(
            &["bash", "-c", WITHOUT_INHERITED_FILES, "bash", "setsid", "nohup"],
            program.as_ref(),
        )
    }

    /// The same for a command that has to begin as root, and becomes the server's user by itself.
    pub(super) fn daemon_from_root(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_of(
            &["bash", "-c", WITHOUT_INHERITED_FILES, "bash", "setsid", "nohup"].map(OsStr::new),
            program.as_ref(),
        )
    }

    /// A command as [`Home::command`] makes it, that begins as root and becomes the server's user by itself.
    pub(super) fn command_from_root(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_of(&[], program.as_ref())
    }

    /// The server's user and group by number, as programs in another root know them.
    pub(super) fn user_and_group(&self) -> Result<String, Failure> {
        let (user, group) = account(self.user)?;
        Ok(format!("{user}:{group}"))
    }

    /// Removes a folder of the server's with all that is in it.
    pub(super) fn remove(&self, name: &str) -> Result<(), Failure> {
        let folder = self.folder.join(name);
        match fs::remove_dir_all(&folder) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(Failure::while_trying(format!("remove {}", folder.display()))(cause))
            }
            _ => Ok(()),
        }
    }

    /// Starts a command made by [`Home::daemon`] or [`Home::daemon_from_root`].
    pub(super) fn start(&self, mut daemon: Command) -> Result<Child, Failure> {
        let path = self.log_file();
        let attempt = format!("start {}", self.server_name);
        // The previous run's log may tell why it died, so one generation is kept. A log of its own for
        // every start keeps old complaints out of a new failure's message.
        match fs::rename(&path, path.with_extension("log.previous")) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::while_trying(&attempt)(cause));
            }
            _ => {}
        }
        let log =
            File::options().create(true).append(true).open(&path).map_err(Failure::while_trying(&attempt))?;
        self.give_to_user(&path)?;
        let log_for_errors = log.try_clone().map_err(Failure::while_trying(&attempt))?;
        daemon.stdin(Stdio::null()).stdout(log).stderr(log_for_errors);
        let child = daemon.spawn().map_err(Failure::while_trying(&attempt))?;
        self.write(&self.started_process_file(), &child.id().to_string())?;
        Ok(child)
    }

    /// The number of the process that the last [`Home::start`] made. It says nothing about whether that
    /// one still lives.
    pub(super) fn started_process(&self) -> Option<u32> {
        fs::read_to_string(self.started_process_file()).ok()?.trim().parse().ok()
    }

    /// Runs a command to its end; a failure carries what it said.
    pub(super) fn run(&self, mut command: Command) -> Result<(), Failure> {
        let words = iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_string_lossy);
        let line = words.collect::<Vec<_>>().join(" ");
        let output =
            command.stdin(Stdio::null()).output().map_err(Failure::while_trying(format!("run `{line}`")))?;
        if output.status.success() {
            return Ok(());
        }
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Err(Failure::new(format!("{}: `{line}` failed:\n{}", self.server_name, indented_tail(&said))))
    }

    /// The end of every log of the current run.
    pub(super) fn log_tails(&self) -> String {
        let mut tails = String::new();
        let entries = fs::read_dir(self.log_folder()).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "log") {
                let tail = indented_tail(&String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()));
                if tail.is_empty() {
                    continue;
                }
                tails.push_str(&format!("\n  the end of {}:\n{tail}", path.display()));
            }
        }
        tails
    }

    fn started_process_file(&self) -> PathBuf {
        self.run_folder().join("started.pid")
    }

    fn command_behind(&self, wrappers: &[&str], program: &OsStr) -> Command {
        let mut words: Vec<&OsStr> = wrappers.iter().map(OsStr::new).collect();
        let user_switch = [format!("--reuid={}", self.user), format!("--regid={}", self.user)];
        if is_root() {
            // Not `runuser`: it resets HOME and stays as a parent.
            words.push(OsStr::new("setpriv"));
            words.extend(user_switch.iter().map(OsStr::new));
            words.push(OsStr::new("--init-groups"));
        }
        self.command_of(&words, program)
    }

    fn command_of(&self, wrappers: &[&OsStr], program: &OsStr) -> Command {
        let mut words = wrappers.to_vec();
        words.push(program);
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", &self.folder)
            .env(MARKER_VARIABLE, &self.folder);
        command
    }

    fn give_to_user(&self, path: &Path) -> Result<(), Failure> {
        if !is_root() {
            return Ok(());
        }
        let (user, group) = account(self.user)?;
        chown(path, Some(user), Some(group)).map_err(Failure::while_trying(format!(
            "give {} to user {}",
            path.display(),
            self.user
        )))
    }
}

/// Whether we may install packages and become other users.
pub(super) fn is_root() -> bool {
    // A process's own folder in /proc belongs to its effective user; std has no other way to ask.
    fs::metadata("/proc/self").is_ok_and(|own_folder| own_folder.uid() == 0)
}

/// The end of a text, indented below an error's first line.
pub(super) fn indented_tail(text: &str) -> String {
    const LINES: usize = 25;
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LINES)..];
    tail.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

fn account(user: &str) -> Result<(u32, u32), Failure> {
    let accounts = fs::read_to_string("/etc/passwd").map_err(Failure::while_trying("read /etc/passwd"))?;
    account_in(&accounts, user).ok_or_else(|| {
        Failure::new(format!("the user {user}, whom the server's package creates, does not exist"))
    })
}

fn account_in(accounts: &str, user: &str) -> Option<(u32, u32)> {
    let line = accounts.lines().find(|line| line.split(':').next() == Some(user))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_from_the_password_file() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\nmysql:x:104:110:MariaDB:/nonexistent:/bin/false\n";
        assert_eq!(account_in(accounts, "mysql"), Some((104, 110)));
        assert_eq!(account_in(accounts, "sql"), None);
    }

    #[test]
    fn a_tail_is_the_last_lines() {
        let text: String = (0..100).map(|line| format!("{line}\n")).collect();
        let tail = indented_tail(&text);
        assert!(tail.starts_with("    75\n") && tail.ends_with("    99"), "{tail}");
    }
}

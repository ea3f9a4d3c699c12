//! RabbitMQ 4 from Debian's next release, in a root of the file system of its own: its Erlang needs that release's C library.
//!
//! It also listens with TLS, and takes the client's certificate in place of a password.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{COMPANIONS, LONGEST_START, MAIN_PROCESS, Node, TOOL, newest_release};
use crate::failure::Failure;
use crate::services::home::{Home, indented_tail, is_root};
use crate::services::installation::is_on_path;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};
use crate::services::{archive, certificates, data_root};

/// The broker behind TOWPATH_TEST_AMQP4_URL and, with TLS, TOWPATH_TEST_AMQPS_URL.
pub(in crate::services) struct Rabbitmq4;

/// The release of Debian that brings it.
const RELEASE: &str = "trixie";

const TLS_PORT: u16 = 7687;

pub(super) const NODE: Node = Node {
    name: "towpath4@localhost",
    amqp_port: 7682,
    management_port: 7683,
    prometheus_port: None,
    mapper_port: 7685,
    distribution_port: 7686,
};

/// After how many milliseconds a dead letter is tried again whose queue did not take it: three minutes otherwise.
const DEAD_LETTERS_AGAIN: &str = "-rabbit dead_letter_worker_publisher_confirm_timeout 1000";

/// Becomes a program in another root, with the machine's processes and devices and the server's folder in it. The mounts are
/// seen by that program alone, and end with it.
const IN_ANOTHER_ROOT: &str = r#"
root=$1 home=$2 user=$3
shift 3
mkdir -p "$root$home" &&
mount --rbind /proc "$root/proc" &&
mount --rbind /dev "$root/dev" &&
mount --bind "$home" "$root$home" &&
exec chroot --userspec="$user" "$root" "$@"
"#;

impl Server for Rabbitmq4 {
    fn name(&self) -> &'static str {
        "rabbitmq4"
    }

    fn title(&self) -> &'static str {
        "RabbitMQ 4"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["mmdebstrap", "openssl", "debian-archive-keyring"]
    }

    fn has_packages(&self) -> bool {
        is_on_path("mmdebstrap") && is_on_path("openssl") && archive::has_keyring()
    }

    fn build(&self, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
        if !is_root() {
            return Err(Failure::new("only root can use another root of the file system").next_step(INSTEAD));
        }
        let (root, log) = (root_in(data_root), data_root.join("rabbitmq4-build.log"));
        progress.step(self.name(), &format!("unpacking Debian {RELEASE} once, for half a minute to two"));
        unpack(&root, &log).map_err(|cause| {
            let said = fs::read(&log).unwrap_or_default();
            let tail = indented_tail(&String::from_utf8_lossy(&said));
            Failure::new(format!("RabbitMQ 4 cannot be installed: {cause}; the end of its log:\n{tail}"))
                .next_step(INSTEAD)
        })
    }

    fn user(&self) -> &'static str {
        // The package's own is not known outside of its root; this one is on every Debian, with a group of the same name.
        "daemon"
    }

    fn main_process_name(&self) -> &'static str {
        MAIN_PROCESS
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }

    fn companions(&self) -> &'static [&'static str] {
        COMPANIONS
    }

    fn addresses(&self) -> Vec<Address> {
        let folder = data_root().map(|root| root.join(self.name())).unwrap_or_default();
        let folder = folder.display();
        vec![
            Address { variable: "TOWPATH_TEST_AMQP4_URL", url: NODE.url() },
            Address {
                variable: "TOWPATH_TEST_AMQPS_URL",
                url: format!(
                    "amqps://guest:guest@127.0.0.1:{TLS_PORT}/%2f?cacert={folder}/authority.crt&\
                     cert={folder}/client.crt&key={folder}/client.key"
                ),
            },
        ]
    }

    fn ports(&self) -> &'static [u16] {
        &[7682, 7683, 7686, TLS_PORT]
    }

    fn longest_start(&self) -> Duration {
        LONGEST_START
    }

    fn is_installed(&self) -> bool {
        self.version().is_some() && is_on_path("openssl")
    }

    fn version(&self) -> Option<String> {
        newest_release(&root_in(&data_root().ok()?)).map(|(version, _)| version)
    }

    fn answers(&self) -> bool {
        NODE.answers()
    }

    fn prepare(&self, home: &Home, _progress: &Progress) -> Result<(), Failure> {
        // The client's name is that of the user whom its certificate stands for.
        certificates::make(home, "/CN=rabbitmq", "/CN=guest")?;
        NODE.prepare(home, &["rabbitmq_management", "rabbitmq_auth_mechanism_ssl"], &with_tls(home.folder()))
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let mut rabbitmq = home.daemon_from_root("unshare");
        enter(&mut rabbitmq, home, "rabbitmq-server")?;
        NODE.set_up(&mut rabbitmq, home, DEAD_LETTERS_AGAIN);
        Ok(rabbitmq)
    }
}

const INSTEAD: &str =
    "set TOWPATH_TEST_AMQP4_URL to a RabbitMQ 4 that tests may use; without, they are left out";

pub(super) fn control(home: &Home, arguments: &[String]) -> Result<(), Failure> {
    let mut tool = home.command_from_root("unshare");
    enter(&mut tool, home, TOOL)?;
    NODE.control(tool, home, arguments)
}

/// Makes `unshare` run a program of the server's in its root.
fn enter(unshare: &mut Command, home: &Home, program: &str) -> Result<(), Failure> {
    let root = root_in(&data_root()?);
    let (_, server) = newest_release(&root).ok_or_else(|| Failure::new("RabbitMQ 4 is not installed"))?;
    let program = server.with_file_name(program);
    let program = Path::new("/").join(program.strip_prefix(&root).unwrap_or(&program));
    unshare
        .args(["--mount", "--propagation", "private", "sh", "-c", IN_ANOTHER_ROOT, "sh"])
        .args([root.as_path(), home.folder()])
        .arg(home.user_and_group()?)
        .arg(program);
    Ok(())
}

fn with_tls(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "listeners.ssl.1 = 127.0.0.1:{TLS_PORT}\n\
         ssl_options.cacertfile = {folder}/authority.crt\n\
         ssl_options.certfile = {folder}/server.crt\n\
         ssl_options.keyfile = {folder}/server.key\n\
         ssl_options.verify = verify_peer\n\
         ssl_options.fail_if_no_peer_cert = false\n\
         ssl_cert_login_from = common_name\n\
         auth_mechanisms.1 = PLAIN\n\
         auth_mechanisms.2 = AMQPLAIN\n\
         auth_mechanisms.3 = EXTERNAL\n"
    )
}

fn unpack(root: &Path, log: &Path) -> Result<(), Failure> {
    let run = |mut command: Command| {
        let name = command.get_program().to_string_lossy().into_owned();
        let attempt = format!("run {name}");
        let output =
            File::options().create(true).append(true).open(log).map_err(Failure::while_trying(&attempt))?;
        let errors = output.try_clone().map_err(Failure::while_trying(&attempt))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let status = command.status().map_err(Failure::while_trying(&attempt))?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("`{name}` failed ({status})"))) }
    };
    let archive = archive::of_this_machine(run)?;
    // Beside its place, so that what is in its place is whole.
    let unfinished = root.with_extension("unfinished");
    let attempt = format!("make {}", root.display());
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(Failure::while_trying(&attempt))?;
    }
    fs::create_dir_all(&unfinished).map_err(Failure::while_trying(&attempt))?;
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap
        // A network that stutters must not fail a whole run of continuous integration.
        .arg("--aptopt=Acquire::Retries \"3\"")
        .args(["--mode=root", "--variant=apt", "--include=rabbitmq-server,procps", RELEASE])
        .arg(&unfinished)
        .arg(archive);
    run(mmdebstrap)?;
    fs::rename(&unfinished, root).map_err(Failure::while_trying(&attempt))
}

fn root_in(data_root: &Path) -> PathBuf {
    data_root.join("cache").join(format!("rabbitmq-{RELEASE}"))
}

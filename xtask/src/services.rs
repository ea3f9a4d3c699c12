//! The real servers that tests talk to: found by their URLs, or installed and started here on private ports.

mod archive;
mod certificates;
mod home;
mod installation;
mod kafka;
mod kubernetes;
mod mariadb;
mod postgres;
mod processes;
mod progress;
mod python;
mod rabbitmq;
mod schemathesis;
mod server;
mod url;

use std::env;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::failure::Failure;
use home::Home;
use progress::Progress;
use server::{Address, Server};

/// `cargo xtask services up|down|restart|kill|status|env [SERVER ...]`, and `rabbitmqctl ARGS` for our own broker.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let usage = "cargo xtask services up|down|restart|kill|status|env \
                 [postgres|mariadb|rabbitmq|kafka|kube|rabbitmq4|rabbitmq-cluster ...]";
    let Some((action, names)) = arguments.split_first() else {
        return Err(Failure::new("`services` needs to know what to do").next_step(usage));
    };
    if action == "rabbitmqctl" {
        return rabbitmq::control(&Home::at(&data_root()?, &rabbitmq::Rabbitmq), names);
    }
    if action == "rabbitmq4ctl" {
        return rabbitmq::control_newer(&Home::at(&data_root()?, &rabbitmq::Rabbitmq4), names);
    }
    let servers = servers_named(names)?;
    match action.as_str() {
        "up" => {
            up(&servers)?;
            // One server by name is for who knows what they need.
            if names.is_empty() {
                python::prepare(&prepare_data_root()?, &Progress::start())?;
            }
            Ok(())
        }
        "down" => down(&servers),
        "restart" => restart(&servers),
        "kill" if names.is_empty() => {
            Err(Failure::new("`services kill` needs to know whom").next_step(usage))
        }
        "kill" => kill(&servers),
        "status" => status(&servers),
        "env" => print_environment(&servers, names.is_empty()),
        unknown => Err(Failure::new(format!("`services` does not know `{unknown}`")).next_step(usage)),
    }
}

/// Makes sure that the programs are there with which our own C dependencies are compiled.
pub(crate) fn install_build_tools() -> Result<(), Failure> {
    installation::install_build_tools(&prepare_data_root()?, &Progress::start())
}

/// The Kubernetes API server up, which is no server of the default tests; the answer is the variable by which tests find it.
pub(crate) fn bring_up_kubernetes() -> Result<Vec<(String, String)>, Failure> {
    let addresses = up(&[&kubernetes::Kubernetes])?;
    Ok(addresses.into_iter().map(|address| (address.variable.to_owned(), address.url)).collect())
}

/// All servers up; the answer is the variables by which tests find them.
pub(crate) fn bring_up_for_tests() -> Result<Vec<(String, String)>, Failure> {
    let controls = controls();
    installation::install_for_single_tests(&prepare_data_root()?, &Progress::start());
    let addresses = up(ALL_SERVERS).map_err(|failure| {
        Failure::new(failure.to_string())
            .next_step("`cargo xtask test --no-services` runs the tests without starting servers")
    })?;
    let addresses = addresses.into_iter().chain(bring_up_newer_rabbitmq());
    let urls = addresses.map(|address| (address.variable.to_owned(), address.url));
    let schemathesis = schemathesis::install(&prepare_data_root()?, &Progress::start())?;
    let programs = [
        (schemathesis::VARIABLE.to_owned(), schemathesis.display().to_string()),
        (python::VARIABLE.to_owned(), python::prepare(&prepare_data_root()?, &Progress::start())?),
    ];
    let clock = installation::clock_library();
    let clock = clock.map(|library| (CLOCK_LIBRARY.to_owned(), library.display().to_string()));
    Ok(urls.chain(controls).chain(programs).chain(clock).collect())
}

/// The newer RabbitMQ up. It needs more of a machine than the others do: where it cannot be had, tests that need it are left out,
/// and continuous integration fails if anybody [may mount](may_mount) there.
fn bring_up_newer_rabbitmq() -> Vec<Address> {
    up(&[&rabbitmq::Rabbitmq4]).unwrap_or_else(|failure| {
        Progress::start().step("rabbitmq4", &format!("is missing: {failure}"));
        Vec::new()
    })
}

/// Whether this machine lets us mount anything. Mounted for a moment, and seen by nobody else.
pub(crate) fn may_mount() -> bool {
    let mut mount = Command::new("unshare");
    mount.args(["--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]);
    mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    home::is_root() && mount.status().is_ok_and(|status| status.success())
}

const ALL_SERVERS: &[&dyn Server] =
    &[&postgres::Postgres, &mariadb::Mariadb, &rabbitmq::Rabbitmq, &kafka::Kafka];

/// Servers that are used only when they are named.
const EXTRA_SERVERS: &[&dyn Server] = &[&kubernetes::Kubernetes, &rabbitmq::Rabbitmq4];

/// By which tests find the library that sets the clock of a process.
const CLOCK_LIBRARY: &str = "TOWPATH_TEST_CLOCK_LIBRARY";

const DEFAULT_DATA_ROOT: &str = "/var/tmp/towpath-services";

const README: &str = "\
Data, logs and sockets of the database and broker servers that Towpath's tests use.
Written by `cargo xtask services up`. The folder is outside the repository because the servers run as
their own users, which need not be able to enter the repository.
`cache` holds servers that were built here because no package brings them; that takes minutes.
Nothing here is precious: `cargo xtask services down`, then remove the folder to start afresh.
";

/// A UNIX socket's path has at most 107 bytes; the longest name under the data root needs this many.
const LONGEST_DATA_ROOT: usize = 70;

fn servers_named(names: &[String]) -> Result<Vec<&'static dyn Server>, Failure> {
    if names.is_empty() {
        return Ok(ALL_SERVERS.to_vec());
    }
    let mut servers = Vec::new();
    for name in names {
        if name == rabbitmq::CLUSTER {
            servers.extend(rabbitmq::CLUSTER_NODES);
            continue;
        }
        let known = ALL_SERVERS.iter().chain(EXTRA_SERVERS).chain(rabbitmq::CLUSTER_NODES).copied();
        servers.push(known.clone().find(|server| server.name() == name).ok_or_else(|| {
            let known: Vec<&str> = known.map(|server| server.name()).collect();
            Failure::new(format!("there is no server `{name}`")).next_step(format!(
                "name one of {}, {}",
                known.join(", "),
                rabbitmq::CLUSTER
            ))
        })?);
    }
    Ok(servers)
}

fn up(servers: &[&'static dyn Server]) -> Result<Vec<Address>, Failure> {
    let progress = Progress::start();
    let mut addresses = Vec::new();
    let mut own_servers = Vec::new();
    let mut failures = Vec::new();
    for server in servers {
        match given_addresses(*server, |variable| env::var(variable).ok()) {
            Ok(Some(given)) => {
                failures.extend(check_given(*server, &given, &progress).err());
                addresses.extend(given);
            }
            Ok(None) => {
                addresses.extend(server.addresses());
                own_servers.push(*server);
            }
            Err(failure) => failures.push(failure),
        }
    }
    // What the environment says wrongly is told before minutes are spent on installing.
    Failure::all_of(&failures)?;
    if own_servers.is_empty() {
        return Ok(addresses);
    }

    let data_root = prepare_data_root()?;
    let _lock = lock(&data_root, &progress)?;
    installation::install_missing(&own_servers, &data_root, &progress)?;
    let outcomes: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let starting: Vec<_> = own_servers
            .iter()
            .map(|server| (*server, scope.spawn(|| server::bring_up(*server, &data_root, &progress))))
            .collect();
        starting
            .into_iter()
            .map(|(server, thread)| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Failure::new(format!("{}: starting it panicked", server.name()))))
            })
            .collect()
    });
    let failures: Vec<Failure> = outcomes.into_iter().filter_map(Result::err).collect();
    Failure::all_of(&failures)?;
    Ok(addresses)
}

fn down(servers: &[&'static dyn Server]) -> Result<(), Failure> {
    let progress = Progress::start();
    let data_root = data_root()?;
    if !data_root.exists() {
        progress.step("services", "nothing was ever started here");
        return Ok(());
    }
    let _lock = lock(&data_root, &progress)?;
    let outcomes: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let stopping: Vec<_> = servers
            .iter()
            .map(|server| (*server, scope.spawn(|| server::bring_down(*server, &data_root, &progress))))
            .collect();
        stopping
            .into_iter()
            .map(|(server, thread)| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Failure::new(format!("{}: stopping it panicked", server.name()))))
            })
            .collect()
    });
    let failures: Vec<Failure> = outcomes.into_iter().filter_map(Result::err).collect();
    Failure::all_of(&failures)
}

/// Stops our own servers and starts them again. What somebody else started is left alone.
fn restart(servers: &[&'static dyn Server]) -> Result<(), Failure> {
    let progress = Progress::start();
    let data_root = data_root()?;
    let _lock = lock(&data_root, &progress)?;
    for server in servers {
        if server::main_process(*server, &Home::at(&data_root, *server)).is_none() {
            progress.step(server.name(), "not restarted: it is not ours");
            continue;
        }
        server::bring_down(*server, &data_root, &progress)?;
        server::bring_up(*server, &data_root, &progress)?;
    }
    Ok(())
}

/// Ends our own servers as a crash does, for tests of what that does to others.
fn kill(servers: &[&'static dyn Server]) -> Result<(), Failure> {
    let progress = Progress::start();
    let data_root = data_root()?;
    let _lock = lock(&data_root, &progress)?;
    servers.iter().try_for_each(|server| server::kill(*server, &data_root, &progress))
}

/// By what tests restart our own servers and talk to our own broker's tool. Nothing, where the environment names servers:
/// those are not ours to disturb.
fn controls() -> Vec<(String, String)> {
    let ours =
        |server: &&dyn Server| matches!(given_addresses(*server, |name| env::var(name).ok()), Ok(None));
    let Some(program) = env::current_exe().ok().filter(|_| ALL_SERVERS.iter().all(ours)) else {
        return Vec::new();
    };
    let program = program.display().to_string();
    vec![
        ("TOWPATH_TEST_AMQP_CTL".to_owned(), format!("'{program}' services rabbitmqctl")),
        ("TOWPATH_TEST_XTASK".to_owned(), program),
    ]
}

fn status(servers: &[&'static dyn Server]) -> Result<(), Failure> {
    let data_root = data_root()?;
    println!("{:<10} {:<9} {:>5}  {:<22} URL", "NAME", "VERSION", "PORT", "RUNNING");
    for server in servers {
        let given = given_addresses(*server, |variable| env::var(variable).ok())?;
        let version = match &given {
            // Its version would take a client of its protocol to ask for.
            Some(_) => None,
            None => server.version(),
        };
        let running = match &given {
            Some(given) if given.iter().all(|address| url::check_reachable(&address.url).is_ok()) => {
                "yes (given by URL)".to_owned()
            }
            Some(_) => "no (given by URL)".to_owned(),
            None => match (server.answers(), server::main_process(*server, &Home::at(&data_root, *server))) {
                (true, Some(process)) => format!("yes (pid {})", process.pid),
                (true, None) => "yes (not ours)".to_owned(),
                (false, Some(process)) => format!("no answer (pid {})", process.pid),
                (false, None) if server.is_installed() => "no".to_owned(),
                (false, None) => "no (not installed)".to_owned(),
            },
        };
        let addresses = given.unwrap_or_else(|| server.addresses());
        for (position, address) in addresses.iter().enumerate() {
            let port = url::endpoint_of(&address.url).ok().flatten().map(|(_, port)| port.to_string());
            let port = port.unwrap_or_else(|| "-".to_owned());
            let url = url::without_password(&address.url);
            if position == 0 {
                let version = version.as_deref().unwrap_or("-");
                println!("{:<10} {version:<9} {port:>5}  {running:<22} {url}", server.name());
            } else {
                println!("{:<10} {:<9} {port:>5}  {:<22} {url}", "", "", "");
            }
        }
    }
    Ok(())
}

fn print_environment(servers: &[&'static dyn Server], all: bool) -> Result<(), Failure> {
    // One that is used only when it is named is told of when it is there.
    let newer: &[&'static dyn Server] = &[&rabbitmq::Rabbitmq4];
    let there = |server: &&&'static dyn Server| all && server.answers();
    for server in servers.iter().chain(newer.iter().filter(there)) {
        let given = given_addresses(*server, |variable| env::var(variable).ok())?;
        if given.is_none() && !server.answers() {
            eprintln!("xtask: {} is not running; `cargo xtask services up` starts it", server.name());
        }
        for address in given.unwrap_or_else(|| server.addresses()) {
            println!("export {}={}", address.variable, quoted_for_shell(&address.url));
        }
    }
    if let Some(program) = schemathesis::installed(&data_root()?) {
        println!("export {}={}", schemathesis::VARIABLE, quoted_for_shell(&program.display().to_string()));
    }
    match python::interpreter(&data_root()?) {
        Some(interpreter) => println!("export {}={}", python::VARIABLE, quoted_for_shell(&interpreter)),
        None => {
            eprintln!("xtask: {} has no value yet; `cargo xtask services up` makes one", python::VARIABLE)
        }
    }
    Ok(())
}

/// The addresses of a server that the environment names, or nothing when it is ours to run.
fn given_addresses(
    server: &dyn Server,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<Address>>, Failure> {
    let own = server.addresses();
    let given: Vec<Address> = own
        .iter()
        .filter_map(|address| {
            let url = lookup(address.variable).filter(|url| !url.is_empty())?;
            Some(Address { variable: address.variable, url })
        })
        .collect();
    let Some(first_given) = given.first() else {
        return Ok(None);
    };
    // The first variable is the server itself; the others mean nothing without it.
    match own.first() {
        Some(main) if main.variable != first_given.variable => {
            Err(Failure::new(format!("{} is set but {} is not", first_given.variable, main.variable))
                .next_step("set both to use a server that already runs, or none to let xtask start one"))
        }
        _ => Ok(Some(given)),
    }
}

fn check_given(server: &dyn Server, given: &[Address], progress: &Progress) -> Result<(), Failure> {
    for address in given {
        url::check_reachable(&address.url).map_err(|cause| {
            Failure::new(format!("{} is set, but its server cannot be used: {cause}", address.variable))
                .next_step("start that server, correct the URL, or unset the variable to let xtask start one")
        })?;
        progress.step(server.name(), &format!("given by {}, reachable", address.variable));
    }
    for address in
        server.addresses().iter().filter(|own| given.iter().all(|url| url.variable != own.variable))
    {
        progress
            .step(server.name(), &format!("{} is not set: tests that need it cannot run", address.variable));
    }
    Ok(())
}

fn data_root() -> Result<PathBuf, Failure> {
    let folder = match env::var_os("TOWPATH_SERVICES_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(DEFAULT_DATA_ROOT),
    };
    if !folder.is_absolute() || folder.as_os_str().len() > LONGEST_DATA_ROOT {
        return Err(Failure::new(format!("{} cannot hold the servers' data", folder.display())).next_step(format!(
            "set TOWPATH_SERVICES_DIR to an absolute path of at most {LONGEST_DATA_ROOT} bytes: UNIX sockets live in it"
        )));
    }
    Ok(folder)
}

fn prepare_data_root() -> Result<PathBuf, Failure> {
    let folder = data_root()?;
    let attempt = || -> std::io::Result<()> {
        fs::create_dir_all(&folder)?;
        if home::is_root() {
            // The servers' users must be able to pass through, whatever the umask says.
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        }
        fs::write(folder.join("README"), README)
    };
    attempt().map_err(|cause| {
        Failure::new(format!("cannot write to {}: {cause}", folder.display()))
            .next_step("set TOWPATH_SERVICES_DIR to a folder that you own")
    })?;
    Ok(folder)
}

/// Only one `up` or `down` at a time works on a data root. The lock ends with its process, however that ends.
fn lock(data_root: &Path, progress: &Progress) -> Result<File, Failure> {
    let path = data_root.join("lock");
    let attempt = format!("lock {}", path.display());
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Failure::while_trying(&attempt))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.step("services", "another `cargo xtask services` is at work, waiting for it");
            file.lock().map_err(Failure::while_trying(&attempt))?;
        }
        Err(TryLockError::Error(cause)) => return Err(Failure::while_trying(&attempt)(cause)),
    }
    Ok(file)
}

fn quoted_for_shell(value: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.:/@%+,=".contains(character);
    if value.chars().all(is_plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_in_the_environment_replaces_our_own_server() {
        let given =
            given_addresses(&postgres::Postgres, |variable| Some(format!("postgres://{variable}"))).unwrap();
        let given = given.unwrap();
        assert_eq!(given.len(), 1);
        assert_eq!(given[0].url, "postgres://TOWPATH_TEST_POSTGRES_URL");
    }

    #[test]
    fn an_unset_or_empty_variable_leaves_the_server_to_us() {
        assert!(given_addresses(&rabbitmq::Rabbitmq, |_| None).unwrap().is_none());
        assert!(given_addresses(&rabbitmq::Rabbitmq, |_| Some(String::new())).unwrap().is_none());
    }

    #[test]
    fn the_management_url_alone_names_no_broker() {
        let only =
            |wanted: &'static str| move |variable: &str| (variable == wanted).then(|| "x://y".to_owned());
        let failure = given_addresses(&rabbitmq::Rabbitmq, only("TOWPATH_TEST_AMQP_MANAGEMENT_URL")).err();
        assert!(failure.unwrap().to_string().contains("TOWPATH_TEST_AMQP_URL is not"));
        let broker_alone = given_addresses(&rabbitmq::Rabbitmq, only("TOWPATH_TEST_AMQP_URL")).unwrap();
        assert_eq!(broker_alone.unwrap().len(), 1);
    }

    #[test]
    fn every_variable_and_port_belongs_to_one_server() {
        let mut variables: Vec<&str> = ALL_SERVERS
            .iter()
            .chain(EXTRA_SERVERS)
            .flat_map(|server| server.addresses())
            .map(|address| address.variable)
            .collect();
        let mut ports: Vec<u16> = ALL_SERVERS
            .iter()
            .chain(EXTRA_SERVERS)
            .chain(rabbitmq::CLUSTER_NODES)
            .flat_map(|server| server.ports())
            .copied()
            .collect();
        let (variable_count, port_count) = (variables.len(), ports.len());
        variables.sort_unstable();
        variables.dedup();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!((variables.len(), ports.len()), (variable_count, port_count));
    }

    #[test]
    fn unknown_servers_are_refused() {
        assert!(servers_named(&["oracle".to_owned()]).is_err());
        assert_eq!(servers_named(&["mariadb".to_owned()]).unwrap().len(), 1);
        assert_eq!(servers_named(&["rabbitmq-cluster".to_owned()]).unwrap().len(), 3);
        assert_eq!(servers_named(&[]).unwrap().len(), 4);
    }

    #[test]
    fn a_shell_gets_back_what_was_quoted() {
        assert_eq!(
            quoted_for_shell("amqp://guest:guest@127.0.0.1:7672/%2f"),
            "amqp://guest:guest@127.0.0.1:7672/%2f"
        );
        assert_eq!(quoted_for_shell("a?b&c'd"), r"'a?b&c'\''d'");
    }
}

//! The one door for every task of this repository; `cargo xtask help` lists them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user through the terminal"
)]

mod arrows;
mod cargo;
mod conformance;
mod failure;
mod json;
mod pipeline;
mod services;
mod torture;
mod words;

use std::env;
use std::process::ExitCode;

use failure::Failure;

const HELP: &str = "\
cargo xtask TASK

  services up [SERVER ...]      install what is missing, start what is not running
  services down [SERVER ...]    stop what `services up` started; the data stays
  services restart [SERVER ...] stop and start again what `services up` started
  services kill SERVER ...      end them as a crash does
  services rabbitmqctl ARGS     the broker's own tool, on our own node; `rabbitmq4ctl` on that of RabbitMQ 4
  services status               a table: name, version, port, running?, url
  services env [SERVER ...]     `export NAME=VALUE` lines for a shell:
                                eval \"$(cargo xtask services env)\"
                                SERVER: postgres, mariadb, rabbitmq, kafka; all of these when none is named.
                                kube (a Kubernetes API server), rabbitmq4 and rabbitmq-cluster (three nodes)
                                only when they are named.
                                The first `up` of kafka or kube builds it, which takes minutes.
  test [--no-services] [-- ARGS]
                                services up, then the documentation tests, then all other tests;
                                ARGS go to nextest, which is installed where it is missing
  test --kube [-- ARGS]         only the tests that need a Kubernetes API server, after `services up kube`
  test --soak [-- ARGS]         only the long soaks of hive: 1,000 services and a server that is killed, some minutes each
  bench [NAME [ARGS]]           services up, then `towpath bench` in release: write (on all three databases), drain,
                                consume, latency, tasks and stream, each short; or only NAME, as long as it takes, with ARGS
  torture [--seed N] [--minutes N] [--kills N] [-- NAME ...]
                                services up, then rounds of the fault suite for so long (an hour), each with a seed of
                                its own and so many faults a run (200); a report in target/torture
  arrows                        prove that dependencies between our crates only point down, and that the library names
                                no application
  conformance                   prove that docs/conformance.md has every requirement, and names tests that run
  ci                            formatting, clippy, the library with SQLite alone, the server without applications,
                                arrows, conformance, test: what .ci/run runs
  help                          this text

Environment
  TOWPATH_TEST_POSTGRES_URL, TOWPATH_TEST_MYSQL_URL, TOWPATH_TEST_AMQP_URL,
  TOWPATH_TEST_AMQP_MANAGEMENT_URL, TOWPATH_TEST_KAFKA_URL
                                servers that already run; nothing is installed or started for them
  TOWPATH_TEST_AMQP4_URL, TOWPATH_TEST_AMQPS_URL
                                a RabbitMQ 4, and with TLS; where there is none and none can be installed, their tests
                                are left out, and `ci` fails, unless nobody may mount anything on this machine
  TOWPATH_TEST_KAFKA_PROGRAM    file:// URL of a Kafka broker for tests that end or cut off one of their own
  TOWPATH_TEST_SCHEMATHESIS     a schemathesis that is installed already; without, PyPI's is installed once
  TOWPATH_TEST_KUBECONFIG       file:// URL of a kubeconfig, for `test --kube`
  TOWPATH_SERVICES_DIR          data of our own servers (default /var/tmp/towpath-services)
";

fn main() -> ExitCode {
    let arguments: Vec<String> =
        env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    match run(&arguments) {
        Ok(exit_code) => exit_code,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let Some((task, rest)) = arguments.split_first() else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    match task.as_str() {
        "services" => services::run(rest).map(|()| ExitCode::SUCCESS),
        "test" => pipeline::test(rest),
        "bench" => pipeline::bench(rest),
        "torture" => torture::run(rest),
        "ci" => refuse_arguments(task, rest).and_then(|()| pipeline::ci()),
        "conformance" => {
            refuse_arguments(task, rest).and_then(|()| conformance::run()).map(|()| ExitCode::SUCCESS)
        }
        "arrows" => refuse_arguments(task, rest)
            .and_then(|()| arrows::run())
            .and_then(|()| words::run())
            .map(|()| ExitCode::SUCCESS),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        unknown => Err(Failure::new(format!("there is no task `{unknown}`"))
            .next_step("`cargo xtask help` lists the tasks")),
    }
}

fn refuse_arguments(task: &str, rest: &[String]) -> Result<(), Failure> {
    match rest.first() {
        None => Ok(()),
        Some(argument) => Err(Failure::new(format!("`{task}` takes no arguments, but got `{argument}`"))),
    }
}

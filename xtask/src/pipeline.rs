//! The test command and the checks that continuous integration runs, each through the same door.

use std::process::{Command, ExitCode, Stdio};
use std::thread;

use crate::arrows;
use crate::cargo::{cargo, succeeds};
use crate::conformance;
use crate::failure::Failure;
use crate::services;
use crate::words;

/// `cargo xtask test [--no-services | --kube | --soak] [-- ARGS]`
pub(crate) fn test(arguments: &[String]) -> Result<ExitCode, Failure> {
    run_tests(&TestOptions::parse(arguments)?, false)
}

/// Set where a case that needs a server under its control must not be left out.
const NOTHING_LEFT_OUT: &str = "TOWPATH_TEST_NOTHING_LEFT_OUT";

/// Set beside it on a machine where nobody may mount anything, such as a container without that right: RabbitMQ 4, which runs in
/// a root of the file system of its own, and a disk that can be full cannot be had there. That is no fault of what is tested, so
/// the cases that need them say that they are left out, and fail nothing.
const NOBODY_MOUNTS: &str = "TOWPATH_TEST_NOBODY_MOUNTS";

fn run_tests(options: &TestOptions, nothing_left_out: bool) -> Result<ExitCode, Failure> {
    services::install_build_tools()?;
    if options.on_kubernetes {
        return test_on_kubernetes(options);
    }
    let mut variables = if options.with_services { services::bring_up_for_tests()? } else { Vec::new() };
    if nothing_left_out {
        variables.extend(leaving_nothing_out(services::may_mount()));
    }
    if options.soak {
        const TESTS: [&str; 5] = ["--package", "towpath-hive", "--all-features", "--test", "soak"];
        return run_ignored(&TESTS, Some("long_soak"), variables, options);
    }

    // The runner goes last, so that the last lines on the terminal are its summary. Both always run:
    // a broken example in the documentation must not hide what the tests say.
    let mut documentation_tests = cargo(&["test", "--doc", "--workspace", "--all-features"]);
    documentation_tests.envs(variables.iter().cloned());
    let documentation_passed = succeeds(documentation_tests)?;

    install_nextest()?;
    let newer_passed = !options.runner_arguments.is_empty() || passes_on_newer_rabbitmq(&variables)?;
    let mut runner = cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast"]);
    runner.args(&options.runner_arguments).envs(variables);
    let runner_passed = succeeds(runner)?;

    if runner_passed && !documentation_passed {
        return Err(Failure::new("documentation tests failed, see above; all other tests passed"));
    }
    if runner_passed && !newer_passed {
        return Err(Failure::new("tests failed on RabbitMQ 4, see further above; all other tests passed"));
    }
    // The runner has already said what failed.
    Ok(if runner_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// By which tests know that nothing is left out, but for what the machine does not let anybody have.
fn leaving_nothing_out(may_mount: bool) -> Vec<(String, String)> {
    let names = [NOTHING_LEFT_OUT].into_iter().chain((!may_mount).then_some(NOBODY_MOUNTS));
    names.map(|name| (name.to_owned(), "1".to_owned())).collect()
}

/// The suites of the broker and of consumers once more, on RabbitMQ 4 in place of Debian's 3.10. True where there is none and none
/// is needed.
fn passes_on_newer_rabbitmq(variables: &[(String, String)]) -> Result<bool, Failure> {
    const SUITES: &str = "(package(towpath-broker) & binary(rabbitmq)) \
                          | (package(towpath) & binary(consumers) & test(rabbitmq))";
    let Ok(url) = value_of(variables, "TOWPATH_TEST_AMQP4_URL") else {
        return may_lack_newer_rabbitmq(variables);
    };
    let mut runner =
        cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast", "-E", SUITES]);
    for (name, value) in variables {
        match name.as_str() {
            "TOWPATH_TEST_AMQP_CTL" => {
                runner.env(name, value.replace("services rabbitmqctl", "services rabbitmq4ctl"))
            }
            "TOWPATH_TEST_XTASK" | "TOWPATH_TEST_AMQP_MANAGEMENT_URL" => &mut runner,
            _ => runner.env(name, value),
        };
    }
    runner.env("TOWPATH_TEST_AMQP_URL", url);
    succeeds(runner)
}

/// Refuses that there is no RabbitMQ 4 where nothing is left out and the machine could have one.
fn may_lack_newer_rabbitmq(variables: &[(String, String)]) -> Result<bool, Failure> {
    if value_of(variables, NOTHING_LEFT_OUT).is_err() || value_of(variables, NOBODY_MOUNTS).is_ok() {
        eprintln!(
            "xtask: left out: the suites of the broker and of consumers on RabbitMQ 4, which is missing"
        );
        return Ok(true);
    }
    Err(Failure::new("there is no RabbitMQ 4, see above, and nothing is left out here").next_step(
        "`cargo xtask services up rabbitmq4`, or set TOWPATH_TEST_AMQP4_URL and TOWPATH_TEST_AMQPS_URL",
    ))
}

/// The tests that need a Kubernetes API server, and no others. The default run leaves them out: the server is built from what
/// Debian unstable is today.
fn test_on_kubernetes(options: &TestOptions) -> Result<ExitCode, Failure> {
    let variables = if options.with_services { services::bring_up_kubernetes()? } else { Vec::new() };
    const TESTS: [&str; 6] =
        ["--package", "towpath-hive", "--features", "kubernetes", "--test", "kubernetes_server"];
    run_ignored(&TESTS, None, variables, options)
}

/// Runs tests that the default run leaves out: those that are named, of these packages.
fn run_ignored(
    tests: &[&str],
    named: Option<&str>,
    variables: Vec<(String, String)>,
    options: &TestOptions,
) -> Result<ExitCode, Failure> {
    install_nextest()?;
    let mut runner = cargo(&["nextest", "run", "--no-fail-fast", "--run-ignored", "only"]);
    runner.args(tests).args(named).args(&options.runner_arguments);
    runner.envs(variables);
    Ok(if succeeds(runner)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A benchmark of `towpath bench`.
struct Bench {
    name: &'static str,
    /// For a look that takes seconds; a number to rely on needs the benchmark's own defaults and a quiet machine.
    short: &'static [&'static str],
}

const BENCHES: [Bench; 6] = [
    Bench { name: "write", short: &["--seconds", "1", "--turns", "3", "--deep", "5000"] },
    Bench { name: "drain", short: &["--events", "10000", "--turns", "3"] },
    Bench { name: "consume", short: &["--messages", "5000", "--turns", "3"] },
    Bench { name: "latency", short: &["--seconds", "5", "--turns", "3"] },
    Bench { name: "tasks", short: &["--tasks", "3000", "--turns", "3"] },
    Bench { name: "stream", short: &["--seconds", "5", "--turns", "2"] },
];

/// `cargo xtask bench`: every benchmark, short, one after the other. `cargo xtask bench NAME [ARGS]`: that one, with the
/// benchmark's own defaults.
pub(crate) fn bench(arguments: &[String]) -> Result<ExitCode, Failure> {
    let chosen = choose_benches(arguments)?;
    let variables = services::bring_up_for_tests()?;
    for (bench, flags) in chosen {
        let mut run = cargo(&["run", "--release", "--package", "towpath-server", "--", "bench", bench.name]);
        if bench.name == "write" {
            for name in ["TOWPATH_TEST_POSTGRES_URL", "TOWPATH_TEST_MYSQL_URL"] {
                run.args(["--store", value_of(&variables, name)?]);
            }
            run.args(["--store", "sqlite://data/towpath.db"]);
        } else {
            // By the environment: flags can be given on top, and no password is shown with the command.
            run.env("TOWPATH_STORE", value_of(&variables, "TOWPATH_TEST_POSTGRES_URL")?);
            run.env("TOWPATH_BROKER", value_of(&variables, "TOWPATH_TEST_AMQP_URL")?);
        }
        run.args(flags);
        if !succeeds(run)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn choose_benches(arguments: &[String]) -> Result<Vec<(&'static Bench, Vec<String>)>, Failure> {
    let Some((name, flags)) = arguments.split_first() else {
        let short = |bench: &'static Bench| bench.short.iter().map(|flag| (*flag).to_owned()).collect();
        return Ok(BENCHES.iter().map(|bench| (bench, short(bench))).collect());
    };
    match BENCHES.iter().find(|bench| bench.name == name) {
        Some(bench) => Ok(vec![(bench, flags.to_vec())]),
        None => Err(Failure::new(format!("there is no benchmark `{name}`"))
            .next_step("cargo xtask bench [write | drain | consume | latency | tasks | stream] [ARGS]")),
    }
}

fn value_of<'v>(variables: &'v [(String, String)], name: &str) -> Result<&'v str, Failure> {
    let found = variables.iter().find(|(variable, _)| variable == name);
    found.map(|(_, value)| value.as_str()).ok_or_else(|| Failure::new(format!("{name} has no value")))
}

/// `cargo xtask ci`: from the cheapest check to the dearest, ending at the first that fails.
pub(crate) fn ci() -> Result<ExitCode, Failure> {
    services::install_build_tools()?;
    // Servers are mostly downloaded while the checks mostly compile. Who runs the tests brings them up again, and says what failed.
    thread::scope(|scope| {
        scope.spawn(|| services::bring_up_for_tests().is_ok());
        let checked = checks();
        if let Err(failure) = &checked {
            eprintln!("error: {failure}\nxtask: this ends when the servers are up that are being installed");
        }
        checked
    })?;
    run_tests(&TestOptions::parse(&[])?, true)
}

fn checks() -> Result<(), Failure> {
    if !succeeds(cargo(&["fmt", "--all", "--check"]))? {
        return Err(Failure::new("the formatting differs").next_step("cargo fmt --all"));
    }
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    if !succeeds(cargo(&clippy))? {
        return Err(Failure::new("clippy has findings, see above"));
    }
    // Who embeds Towpath with one database must not need the drivers of the others.
    if !succeeds(cargo(&["check", "-p", "towpath", "--no-default-features", "--features", "sqlite"]))? {
        return Err(Failure::new("the library does not build with SQLite alone, see above"));
    }
    // Nothing outside of an application's own folder may need it, and one database is enough.
    const FEATURES: &str = "sqlite,follow";
    let alone = ["check", "-p", "towpath-server", "--no-default-features", "--features", FEATURES];
    if !succeeds(cargo(&alone))? {
        return Err(Failure::new("the server does not build without applications, see above"));
    }
    arrows::run()?;
    words::run()?;
    conformance::run()
}

#[derive(Debug, PartialEq)]
struct TestOptions {
    with_services: bool,
    on_kubernetes: bool,
    soak: bool,
    runner_arguments: Vec<String>,
}

impl TestOptions {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options =
            Self { with_services: true, on_kubernetes: false, soak: false, runner_arguments: Vec::new() };
        let mut remaining = arguments.iter();
        while let Some(argument) = remaining.next() {
            match argument.as_str() {
                "--no-services" => options.with_services = false,
                "--kube" => options.on_kubernetes = true,
                "--soak" => options.soak = true,
                "--" => options.runner_arguments.extend(remaining.by_ref().cloned()),
                unknown => {
                    return Err(Failure::new(format!("`test` does not know `{unknown}`")).next_step(
                        format!("arguments for the runner follow `--`: cargo xtask test -- {unknown}"),
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// Only nextest gives tests that restart servers the machine to themselves. Where it is missing it is built once.
pub(crate) fn install_nextest() -> Result<(), Failure> {
    const VERSION: &str = "0.9.143";
    let mut version: Command = cargo(&["nextest", "--version"]);
    version.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if version.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    eprintln!("xtask: cargo-nextest is missing; it is built once, for 3 to 10 minutes");
    // Unoptimized it is built in half the time, and the tests take the same.
    if succeeds(cargo(&["install", "cargo-nextest", "--version", VERSION, "--locked", "--debug"]))? {
        return Ok(());
    }
    Err(Failure::new("cargo-nextest cannot be installed, see above")
        .next_step("https://nexte.st/docs/installation"))
}

#[cfg(test)]
mod tests {
    use super::{BENCHES, TestOptions, choose_benches, leaving_nothing_out, may_lack_newer_rabbitmq};

    fn parse(arguments: &[&str]) -> Option<TestOptions> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        TestOptions::parse(&arguments).ok()
    }

    #[test]
    fn what_follows_the_dashes_belongs_to_the_runner() {
        let options = parse(&["--no-services", "--", "--no-services", "--", "x"]).unwrap();
        assert!(!options.with_services);
        assert_eq!(options.runner_arguments, ["--no-services", "--", "x"]);
        assert!(parse(&[]).unwrap().with_services);
        assert!(!parse(&[]).unwrap().on_kubernetes && parse(&["--kube"]).unwrap().on_kubernetes);
        assert!(!parse(&[]).unwrap().soak && parse(&["--soak"]).unwrap().soak);
    }

    #[test]
    fn an_unknown_argument_is_refused() {
        assert_eq!(parse(&["store"]), None);
    }

    #[test]
    fn a_missing_rabbitmq_fails_where_nothing_is_left_out_and_one_could_be_there() {
        assert_eq!(may_lack_newer_rabbitmq(&[]).ok(), Some(true));
        assert_eq!(may_lack_newer_rabbitmq(&leaving_nothing_out(false)).ok(), Some(true));
        let refused = may_lack_newer_rabbitmq(&leaving_nothing_out(true)).err();
        assert!(refused.unwrap().to_string().contains("RabbitMQ 4"));
    }

    #[test]
    fn benchmarks_are_short_unless_one_is_named() {
        let chosen = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            choose_benches(&arguments).ok()
        };
        let all = chosen(&[]).unwrap();
        assert_eq!(all.len(), BENCHES.len());
        assert!(all.iter().all(|(bench, flags)| flags == bench.short));
        let one = chosen(&["consume", "--turns", "1"]).unwrap();
        assert_eq!((one.len(), one[0].0.name), (1, "consume"));
        assert_eq!(one[0].1, ["--turns", "1"]);
        assert!(chosen(&["--turns", "1"]).is_none());
    }
}

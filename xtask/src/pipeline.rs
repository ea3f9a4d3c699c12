//! The test command and the checks that continuous integration runs, each through the same door.

use std::process::{Command, ExitCode, Stdio};

use crate::arrows;
use crate::cargo::{cargo, succeeds};
use crate::failure::Failure;
use crate::services;

/// `cargo xtask test [--no-services] [-- ARGS]`
pub(crate) fn test(arguments: &[String]) -> Result<ExitCode, Failure> {
    let options = TestOptions::parse(arguments)?;
    services::install_build_tools()?;
    let variables = if options.with_services { services::bring_up_for_tests()? } else { Vec::new() };

    // The runner goes last, so that the last lines on the terminal are its summary. Both always run:
    // a broken example in the documentation must not hide what the tests say.
    let mut documentation_tests = cargo(&["test", "--doc", "--workspace", "--all-features"]);
    documentation_tests.envs(variables.iter().cloned());
    let documentation_passed = succeeds(documentation_tests)?;

    let with_nextest = nextest_is_installed();
    let mut runner = if with_nextest {
        cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast"])
    } else {
        eprintln!("xtask: cargo nextest is not installed, falling back to cargo test");
        // The targets are named because plain `cargo test` would repeat the documentation tests at its end.
        cargo(&[
            "test",
            "--workspace",
            "--all-features",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
        ])
    };
    // Restarts disturb whatever runs beside them: only nextest gives such cases the machine to themselves.
    let variables = variables.into_iter().filter(|(name, _)| {
        with_nextest || !["TOWPATH_TEST_XTASK", "TOWPATH_TEST_AMQP_CTL"].contains(&name.as_str())
    });
    runner.args(&options.runner_arguments).envs(variables);
    let runner_passed = succeeds(runner)?;

    if runner_passed && !documentation_passed {
        return Err(Failure::new("documentation tests failed, see above; all other tests passed"));
    }
    // The runner has already said what failed.
    Ok(if runner_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask bench [ARGS]`: the write benchmark on every database, one after the other, in one run.
pub(crate) fn bench(arguments: &[String]) -> Result<ExitCode, Failure> {
    let variables = services::bring_up_for_tests()?;
    let mut run = cargo(&["run", "--release", "--package", "towpath-server", "--", "bench", "write"]);
    for name in ["TOWPATH_TEST_POSTGRES_URL", "TOWPATH_TEST_MYSQL_URL"] {
        let url = variables.iter().find(|(variable, _)| variable == name).map(|(_, url)| url.clone());
        let url = url.ok_or_else(|| Failure::new(format!("{name} has no value")))?;
        run.args(["--store", &url]);
    }
    run.args(["--store", "sqlite://data/towpath.db"]).args(arguments);
    Ok(if succeeds(run)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask ci`: from the cheapest check to the dearest, ending at the first that fails.
pub(crate) fn ci() -> Result<ExitCode, Failure> {
    services::install_build_tools()?;
    if !succeeds(cargo(&["fmt", "--all", "--check"]))? {
        return Err(Failure::new("the formatting differs").next_step("cargo fmt --all"));
    }
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    if !succeeds(cargo(&clippy))? {
        return Err(Failure::new("clippy has findings, see above"));
    }
    arrows::run()?;
    test(&[])
}

#[derive(Debug, PartialEq)]
struct TestOptions {
    with_services: bool,
    runner_arguments: Vec<String>,
}

impl TestOptions {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self { with_services: true, runner_arguments: Vec::new() };
        let mut remaining = arguments.iter();
        while let Some(argument) = remaining.next() {
            match argument.as_str() {
                "--no-services" => options.with_services = false,
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

fn nextest_is_installed() -> bool {
    let mut version: Command = cargo(&["nextest", "--version"]);
    version.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::TestOptions;

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
    }

    #[test]
    fn an_unknown_argument_is_refused() {
        assert_eq!(parse(&["store"]), None);
    }
}

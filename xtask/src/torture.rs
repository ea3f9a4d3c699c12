//! `cargo xtask torture`: the fault suite, longer and harder than continuous integration has time for, with a report.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cargo::{cargo, repository_root};
use crate::failure::Failure;
use crate::services;

const USAGE: &str = "cargo xtask torture [--seed N] [--minutes N] [--kills N] [-- NAME ...]";

/// Where reports and the output of rounds are kept, in the repository.
const FOLDER: &str = "target/torture";

fn folder() -> PathBuf {
    repository_root().join(FOLDER)
}

#[derive(Debug, PartialEq)]
struct Options {
    seed: u64,
    duration: Duration,
    /// How many faults a run has.
    kills: u64,
    /// Only cases with these names.
    names: Vec<String>,
}

/// What a round of all cases came to.
struct Round {
    seed: u64,
    took: Duration,
    passed: Vec<String>,
    failed: Vec<String>,
    /// What the runs say they have counted.
    counted: Vec<String>,
}

/// Runs rounds of the fault suite until the time is up, each with a seed of its own, and says what became of them.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let options = Options::parse(arguments)?;
    crate::pipeline::install_nextest()?;
    let variables = services::bring_up_for_tests()?;
    fs::create_dir_all(folder()).map_err(Failure::while_trying(&format!("make the folder {FOLDER}")))?;
    let (begun, mut rounds) = (Instant::now(), Vec::new());
    while rounds.is_empty() || begun.elapsed() < options.duration {
        let number = rounds.len() as u64;
        let seed = options.seed.wrapping_add(number);
        let left = options.duration.saturating_sub(begun.elapsed()).as_secs() / 60;
        eprintln!("xtask: round {} with seed {seed}, {left} minutes left", number + 1);
        let round = play(&options, seed, &variables)?;
        eprintln!("xtask: {} passed, {} failed", round.passed.len(), round.failed.len());
        rounds.push(round);
    }
    let report = report(&options, begun.elapsed(), &rounds);
    let path = folder().join(format!("report-{}.md", options.seed));
    fs::write(&path, &report).map_err(Failure::while_trying("write the report"))?;
    println!("{report}\nwritten to {}", path.display());
    let sound = rounds.iter().all(|round| round.failed.is_empty() && !round.passed.is_empty());
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play(options: &Options, seed: u64, variables: &[(String, String)]) -> Result<Round, Failure> {
    const RUNNER: [&str; 11] = [
        "nextest",
        "run",
        "--workspace",
        "--all-features",
        "--test",
        "faults",
        "--run-ignored=all",
        "--no-fail-fast",
        "--retries=0",
        "--color=never",
        "--success-output=immediate",
    ];
    let begun = Instant::now();
    let mut runner = cargo(&RUNNER);
    runner.args(&options.names).envs(variables.iter().cloned());
    runner.env("TOWPATH_FAULT_SEED", seed.to_string()).env("TOWPATH_FAULT_KILLS", options.kills.to_string());
    let output = runner
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .output()
        .map_err(Failure::while_trying("run cargo nextest"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let log = folder().join(format!("seed-{seed}.log"));
    fs::write(&log, &said).map_err(Failure::while_trying("write what the round said"))?;
    let round = Round::read(seed, begun.elapsed(), &said);
    if round.passed.is_empty() && round.failed.is_empty() {
        return Err(Failure::new("no case was run").next_step(format!("see {}", log.display())));
    }
    Ok(round)
}

impl Round {
    fn read(seed: u64, took: Duration, said: &str) -> Self {
        let cases = |verdict: &str| {
            let lines = said.lines().map(str::trim_start).filter(|line| line.starts_with(verdict));
            let mut names: Vec<String> =
                lines.filter_map(|line| line.rsplit_once("] ").map(|(_, name)| name.to_owned())).collect();
            names.sort();
            names.dedup();
            names
        };
        let counted = said.lines().map(str::trim).filter(|line| line.contains(" facts, ")).map(str::to_owned);
        Self { seed, took, passed: cases("PASS ["), failed: cases("FAIL ["), counted: counted.collect() }
    }
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut options =
            Self { seed: now.as_secs(), duration: Duration::from_secs(3600), kills: 200, names: Vec::new() };
        let mut remaining = arguments.iter();
        while let Some(argument) = remaining.next() {
            let mut number = || {
                let value = remaining.next().and_then(|value| value.parse::<u64>().ok());
                value.ok_or_else(|| Failure::new(format!("`{argument}` needs a number")).next_step(USAGE))
            };
            match argument.as_str() {
                "--seed" => options.seed = number()?,
                "--minutes" => options.duration = Duration::from_secs(number()?.saturating_mul(60)),
                "--kills" => options.kills = number()?,
                "--" => options.names.extend(remaining.by_ref().cloned()),
                unknown => {
                    return Err(Failure::new(format!("`torture` does not know `{unknown}`")).next_step(USAGE));
                }
            }
        }
        Ok(options)
    }
}

fn report(options: &Options, took: Duration, rounds: &[Round]) -> String {
    let mut report = String::new();
    let minutes = took.as_secs() / 60;
    let failed: usize = rounds.iter().map(|round| round.failed.len()).sum();
    let verdict = if failed == 0 { "Nothing was lost." } else { "There are findings." };
    let (seed, kills) = (options.seed, options.kills);
    // Writing to a text cannot fail.
    let _ =
        writeln!(report, "# Torture\n\n{verdict} Seed {seed}, {kills} faults a run, {minutes} minutes.\n");
    let _ = writeln!(report, "| seed | minutes | passed | failed |\n|---|---|---|---|");
    for Round { seed, took, passed, failed, .. } in rounds {
        let _ =
            writeln!(report, "| {seed} | {} | {} | {} |", took.as_secs() / 60, passed.len(), failed.len());
    }
    for round in rounds.iter().filter(|round| !round.failed.is_empty()) {
        let _ = writeln!(report, "\nSeed {} failed ({FOLDER}/seed-{}.log):\n", round.seed, round.seed);
        for case in &round.failed {
            let _ = writeln!(report, "- {case}");
        }
    }
    let _ = writeln!(report, "\nWhat the runs counted:\n");
    for counted in rounds.iter().flat_map(|round| &round.counted) {
        let _ = writeln!(report, "- {counted}");
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Option<Options> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Options::parse(&arguments).ok()
    }

    #[test]
    fn it_is_told_how_long_and_with_which_seed() {
        let options = parse(&["--seed", "7", "--minutes", "2", "--kills", "9", "--", "sqlite"]).unwrap();
        let names = vec!["sqlite".to_owned()];
        assert_eq!(options, Options { seed: 7, duration: Duration::from_secs(120), kills: 9, names });
        assert!(parse(&["--seed"]).is_none() && parse(&["--seed", "x"]).is_none() && parse(&["x"]).is_none());
    }

    #[test]
    fn a_report_names_what_failed_and_what_was_counted() {
        let said = "        PASS [  64.989s] (1/2) towpath::faults kafka::one\n    \
                    2900 facts, 2800 noted, 14500 effects, 140 timers, 3 messages again of 40 explained\n        \
                    FAIL [  63.590s] (2/2) towpath::faults local::two\n     Summary [ 1s] 2 tests run\n        \
                    FAIL [  63.590s] (2/2) towpath::faults local::two\n";
        let round = Round::read(5, Duration::from_secs(130), said);
        assert_eq!(round.passed, ["(1/2) towpath::faults kafka::one"]);
        assert_eq!(round.failed.len(), 1, "named twice, failed once");
        let text = report(&parse(&["--seed", "5"]).unwrap(), Duration::from_secs(130), &[round]);
        for part in ["There are findings", "| 5 | 2 | 1 | 1 |", "local::two", "2900 facts"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

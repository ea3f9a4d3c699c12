//! Rules tried on figures that a test makes up, in the format of promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Expr};
use serde::Deserialize;
use towpath_core::lifecycle::AlertStatus;
use towpath_core::ports::store::{Alert, AlertNote};
use towpath_core::retry::{Coded, ErrorClass};

use super::condition::Labels;
use super::evaluation::evaluate;
use super::rules::{ALERT_NAME, BadRules, Rules, read_time};
use crate::metrics::Figures;

/// The name under which a test refers to the default rules.
const DEFAULT_RULES: &str = "(defaults)";

/// For how long a value holds that no other follows, as in Prometheus.
const LOOK_BACK: Duration = Duration::from_secs(300);

/// How many times rules are looked at in one test.
const MOST_LOOKS: i64 = 100_000;

/// How many values a series may have.
const MOST_VALUES: usize = 100_000;

/// Tests of rules.
pub struct RuleTests {
    rules: Rules,
    every: Duration,
    tests: Vec<Test>,
}

/// Tests that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum BadTest {
    /// The rules cannot be used.
    #[error("the rules of the test cannot be used")]
    Rules(#[from] BadRules),
    /// The tests cannot be read.
    #[error("the tests cannot be read: {0}")]
    Unreadable(String),
}

impl Coded for BadTest {
    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Rules(error) => error.code(),
            Self::Unreadable(_) => "alert-tests",
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Rules(error) => error.next_step(),
            Self::Unreadable(_) => "Write tests as promtool reads them; docs/alerts.md has an example.",
        }
    }
}

/// A test that did not come out as it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestFailure {
    /// Which test, by its name or number.
    pub test: String,
    /// Which rule.
    pub alertname: String,
    /// At which time.
    pub eval_time: String,
    /// What should have fired.
    pub expected: Vec<String>,
    /// What did.
    pub found: Vec<String>,
}

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |alerts: &[String]| match alerts.is_empty() {
            true => " nothing".to_owned(),
            false => alerts.iter().map(|alert| format!("\n    {alert}")).collect(),
        };
        let Self { test, alertname, eval_time, expected, found } = self;
        write!(
            f,
            "{test}: {alertname} at {eval_time}\n  expected:{}\n  fires:{}",
            listed(expected),
            listed(found)
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule_files: Vec<String>,
    #[serde(default)]
    evaluation_interval: Option<String>,
    #[serde(default, rename = "group_eval_order")]
    _group_eval_order: Vec<String>,
    tests: Vec<Test>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Test {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    interval: Option<String>,
    #[serde(default)]
    input_series: Vec<Series>,
    #[serde(default)]
    alert_rule_test: Vec<Expectation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    series: String,
    values: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectation {
    eval_time: String,
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    #[serde(default)]
    exp_labels: BTreeMap<String, String>,
    #[serde(default)]
    exp_annotations: BTreeMap<String, String>,
}

/// A value at a step: a number, nothing, or that there is no more.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Value(f64),
    Nothing,
    Stale,
}

impl RuleTests {
    /// Reads tests; `read` gives what is in a file of rules that they name.
    ///
    /// # Errors
    /// What cannot be read, and why.
    pub fn read(text: &str, read: impl Fn(&str) -> Result<String, String>) -> Result<Self, BadTest> {
        let file: File =
            serde_saphyr::from_str(text).map_err(|error| BadTest::Unreadable(error.to_string()))?;
        let mut texts = Vec::new();
        for name in &file.rule_files {
            texts.push(match name == DEFAULT_RULES {
                true => Rules::defaults()?,
                false => Rules::only_of(&read(name).map_err(BadTest::Unreadable)?)?,
            });
        }
        let rules = Rules::together(texts)?;
        let every = time(file.evaluation_interval.as_deref().unwrap_or("1m"))?;
        let tests = Self { rules, every, tests: file.tests };
        if tests.every.is_zero() {
            return Err(BadTest::Unreadable("evaluation_interval is 0".to_owned()));
        }
        Ok(tests)
    }

    /// Runs all tests; answers those that did not come out as they should.
    ///
    /// # Errors
    /// A series or a time that cannot be read.
    pub fn run(&self) -> Result<Vec<TestFailure>, BadTest> {
        let mut failures = Vec::new();
        for (number, test) in self.tests.iter().enumerate() {
            let name = test.name.clone().unwrap_or_else(|| format!("test {}", number + 1));
            self.run_one(&name, test, &mut failures)?;
        }
        Ok(failures)
    }

    /// How many things the tests expect.
    pub fn count(&self) -> usize {
        self.tests.iter().map(|test| test.alert_rule_test.len()).sum()
    }

    fn run_one(&self, name: &str, test: &Test, failures: &mut Vec<TestFailure>) -> Result<(), BadTest> {
        let interval = time(test.interval.as_deref().unwrap_or("1m"))?;
        if interval.is_zero() {
            return Err(BadTest::Unreadable("interval is 0".to_owned()));
        }
        let series: Vec<(String, Labels, Vec<Step>)> = test
            .input_series
            .iter()
            .map(|series| {
                let (name, labels) = read_series(&series.series)?;
                Ok((name, labels, read_values(&series.values)?))
            })
            .collect::<Result<_, BadTest>>()?;
        let mut wanted: Vec<(Duration, &Expectation)> = test
            .alert_rule_test
            .iter()
            .map(|one| Ok((time(&one.eval_time)?, one)))
            .collect::<Result<_, BadTest>>()?;
        wanted.sort_by_key(|(at, _)| *at);
        let last = wanted.last().map_or(Duration::ZERO, |(at, _)| *at);
        if last.as_millis() / self.every.as_millis().max(1) > MOST_LOOKS as u128 {
            return Err(BadTest::Unreadable(format!(
                "rules would be looked at more than {MOST_LOOKS} times"
            )));
        }
        let mut open: BTreeMap<String, Alert> = BTreeMap::new();
        let mut next = Duration::ZERO;
        for (at, expectation) in wanted {
            // As promtool does: what is expected at a moment is so after all looks up to it.
            while next <= at {
                self.look(&series, interval, next, &mut open);
                next += self.every;
            }
            failures.extend(compared(name, expectation, &open));
        }
        Ok(())
    }

    fn look(
        &self,
        series: &[(String, Labels, Vec<Step>)],
        interval: Duration,
        at: Duration,
        open: &mut BTreeMap<String, Alert>,
    ) {
        let mut figures = Figures::default();
        for (name, labels, steps) in series {
            if let Some(value) = value_at(steps, interval, at) {
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                figures.add(name, &labels, value);
            }
        }
        let before: Vec<Alert> = open.values().cloned().collect();
        let now = DateTime::<Utc>::UNIX_EPOCH + TimeDelta::from_std(at).unwrap_or_default();
        for AlertNote { alert, .. } in evaluate(&self.rules, &figures, &before, &[], now).notes {
            match alert.status.is_terminal() {
                true => open.remove(&alert.alert_id),
                false => open.insert(alert.alert_id.clone(), alert),
            };
        }
    }
}

fn compared(test: &str, expectation: &Expectation, open: &BTreeMap<String, Alert>) -> Option<TestFailure> {
    let shown = |labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>| {
        let listed = |texts: &BTreeMap<String, String>| {
            let texts: Vec<String> = texts
                .iter()
                .filter(|(name, _)| *name != ALERT_NAME)
                .map(|(name, value)| format!("{name}={value:?}"))
                .collect();
            texts.join(", ")
        };
        format!("labels {{{}}}, annotations {{{}}}", listed(labels), listed(annotations))
    };
    let expected: BTreeSet<String> =
        expectation.exp_alerts.iter().map(|one| shown(&one.exp_labels, &one.exp_annotations)).collect();
    let fires = open
        .values()
        .filter(|alert| alert.rule == expectation.alertname && alert.status == AlertStatus::Firing);
    let found: BTreeSet<String> = fires.map(|alert| shown(&alert.labels, &alert.annotations)).collect();
    (expected != found).then(|| TestFailure {
        test: test.to_owned(),
        alertname: expectation.alertname.clone(),
        eval_time: expectation.eval_time.clone(),
        expected: expected.into_iter().collect(),
        found: found.into_iter().collect(),
    })
}

fn time(text: &str) -> Result<Duration, BadTest> {
    read_time(text).ok_or_else(|| BadTest::Unreadable(format!("{text:?} is no time; write 30s, 5m or 1h")))
}

fn read_series(text: &str) -> Result<(String, Labels), BadTest> {
    let wrong = || BadTest::Unreadable(format!("{text:?} is no series; write name{{label=\"value\"}}"));
    let Ok(Expr::VectorSelector(selector)) = parser::parse(text) else { return Err(wrong()) };
    let name = selector.name.clone().ok_or_else(wrong)?;
    let mut labels = Labels::new();
    for matcher in selector.matchers.matchers.into_iter().filter(|matcher| matcher.name != "__name__") {
        if !matches!(matcher.op, MatchOp::Equal) {
            return Err(wrong());
        }
        labels.insert(matcher.name, matcher.value);
    }
    Ok((name, labels))
}

/// `1 2 _ stale`, `0+10x5` (0 10 20 30 40 50), `7x3` (7 7 7 7), `_x3`.
fn read_values(text: &str) -> Result<Vec<Step>, BadTest> {
    let mut steps = Vec::new();
    for word in text.split_whitespace() {
        let wrong = || BadTest::Unreadable(format!("{word:?} is no value; write 1, 0+10x5, 7x3, _ or stale"));
        let (word, times) = match word.split_once('x') {
            Some((word, times)) => (word, Some(times.parse::<usize>().map_err(|_| wrong())?)),
            None => (word, None),
        };
        if times.unwrap_or(0).saturating_add(steps.len()) > MOST_VALUES {
            return Err(BadTest::Unreadable(format!("a series has more than {MOST_VALUES} values")));
        }
        match (word, times) {
            ("stale", None) => steps.push(Step::Stale),
            ("_", times) => steps.extend(vec![Step::Nothing; times.unwrap_or(1)]),
            (word, None) => steps.push(Step::Value(word.parse().map_err(|_| wrong())?)),
            (word, Some(times)) => {
                let sign = word.char_indices().find(|(at, one)| {
                    *at > 0 && matches!(one, '+' | '-') && !word[..*at].ends_with(['e', 'E'])
                });
                let (first, more) = match sign {
                    None => (word.parse::<f64>().map_err(|_| wrong())?, 0.0),
                    Some((at, _)) => (
                        word[..at].parse::<f64>().map_err(|_| wrong())?,
                        word[at..].parse::<f64>().map_err(|_| wrong())?,
                    ),
                };
                steps.extend((0..=times).map(|number| Step::Value(first + more * number as f64)));
            }
        }
    }
    Ok(steps)
}

/// The last value up to a moment, if it is not too old.
fn value_at(steps: &[Step], interval: Duration, at: Duration) -> Option<f64> {
    let now = at.as_millis() / interval.as_millis().max(1);
    let now = usize::try_from(now).unwrap_or(usize::MAX);
    for number in (0..steps.len().min(now.saturating_add(1))).rev() {
        let moment = interval * u32::try_from(number).unwrap_or(u32::MAX);
        if at.saturating_sub(moment) >= LOOK_BACK && number != now {
            return None;
        }
        match steps[number] {
            Step::Value(value) => return Some(value),
            Step::Stale => return None,
            Step::Nothing => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_promtool_does() {
        let read = |text: &str| -> Vec<f64> {
            let number = |step: &Step| if let Step::Value(value) = step { *value } else { -1.0 };
            read_values(text).unwrap().iter().map(number).collect()
        };
        assert_eq!(read("1 2.5 _ stale"), [1.0, 2.5, -1.0, -1.0]);
        assert_eq!(read("0+10x3"), [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(read("-2-1x2 7x1 _x2"), [-2.0, -3.0, -4.0, 7.0, 7.0, -1.0, -1.0]);
        assert_eq!(read("1e-1+1x1"), [0.1, 1.1]);
        for wrong in ["one", "1x", "1+x2", "1x99999999"] {
            assert!(read_values(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_value_holds_for_five_minutes() {
        let steps = read_values("1 _x9 2 stale").unwrap();
        let at = |seconds| value_at(&steps, Duration::from_secs(60), Duration::from_secs(seconds));
        assert_eq!(
            [0, 60, 299, 300, 600, 659, 660].map(at),
            [Some(1.0), Some(1.0), Some(1.0), None, Some(2.0), Some(2.0), None]
        );
    }

    const TESTS: &str = r#"
rule_files: ["(defaults)", mine.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'pending_commands'
        values: '0 101 101 100'
      - series: 'towpath_queue_messages{queue="mail", state="ready"}'
        values: '0+500x10'
    alert_rule_test:
      - { eval_time: 0m, alertname: high_pending_commands }
      - eval_time: 2m
        alertname: high_pending_commands
        exp_alerts:
          - exp_labels: { severity: warning }
            exp_annotations: { summary: 待处理命令数量过多 }
      - { eval_time: 3m, alertname: high_pending_commands }
      - { eval_time: 3m, alertname: mine }
      - eval_time: 5m
        alertname: mine
        exp_alerts:
          - exp_labels: { severity: page, queue: mail }
            exp_annotations: { summary: "mail 2500" }
"#;

    const MINE: &str = r#"
groups:
  - name: mine
    rules:
      - alert: mine
        expr: max by (queue) (towpath_queue_messages{state="ready"}) > 900
        for: 3m
        labels: { severity: page }
        annotations: { summary: "{{ $labels.queue }} {{ $value }}" }
"#;

    #[test]
    fn tests_of_promtool_are_run() {
        let read = |text: &str| {
            RuleTests::read(text, |name| {
                if name == "mine.yaml" { Ok(MINE.to_owned()) } else { Err(format!("there is no {name}")) }
            })
        };
        let tests = read(TESTS).unwrap();
        assert_eq!((tests.count(), tests.run().unwrap()), (5, Vec::new()));
        let wrong =
            TESTS.replace("mail 2500", "mail 2400").replace("3m, alertname: mine", "5m, alertname: mine");
        let failures = read(&wrong).unwrap().run().unwrap();
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(failures[0].to_string().contains("mail 2500"), "{}", failures[0]);
        assert!(read(&TESTS.replace("mine.yaml", "other.yaml")).is_err());
        assert!(read(&TESTS.replace("alertname:", "alert:")).is_err());
    }
}

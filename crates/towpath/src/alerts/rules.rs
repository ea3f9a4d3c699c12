//! Rules: what is looked at, and what is said when it holds. In YAML, in the source's form or in Prometheus'.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_core::ids::AggregateKey;
use towpath_core::retry::{Coded, ErrorClass};

use super::ALERT_KIND;
use super::condition::{BadCondition, Condition, Labels};
use super::template::{BadTemplate, Template};

/// How many rules there may be.
const MOST_RULES: usize = 500;

/// How large a file of rules may be.
const LARGEST_FILE: usize = 1 << 20;

/// How much of a name is said.
const LONGEST_NAME: usize = 128;

/// The default rules: the five of the source, to the letter, and what else every Towpath can say of itself.
const DEFAULTS: &str = include_str!("defaults.yaml");

/// The label that says which rule it was.
pub const ALERT_NAME: &str = "alertname";

/// The label that says how bad it is.
pub const SEVERITY: &str = "severity";

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name, which is the label `alertname` of its alerts.
    pub name: String,
    /// When somebody should look.
    pub condition: Condition,
    /// How bad it is, in a word of the rule's own.
    pub severity: String,
    /// For people; filled in.
    pub message: Template,
    /// For how long the condition must hold.
    pub lasting: Duration,
    /// For how long it goes on firing after its condition has ceased to hold.
    pub keep_firing_for: Duration,
    /// What is added to the labels of its alerts.
    pub labels: BTreeMap<String, Template>,
    /// What is said about them, filled in.
    pub annotations: BTreeMap<String, Template>,
    /// Whether it is one of the defaults.
    pub is_default: bool,
}

/// The rules that are looked at, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules(Vec<Rule>);

/// Rules that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadRules {
    /// The file is no YAML, or has other fields than a file of rules.
    #[error("the rules cannot be read: {0}")]
    Unreadable(String),
    /// A rule cannot be used.
    #[error("the rule {rule} cannot be used")]
    Condition {
        /// Which.
        rule: String,
        /// Why.
        source: BadCondition,
    },
    /// A text of a rule cannot be filled in.
    #[error("the rule {rule} cannot be used")]
    Template {
        /// Which.
        rule: String,
        /// Why.
        source: BadTemplate,
    },
    /// A rule is wrong in another way.
    #[error("the rule {rule} cannot be used: {why}")]
    Rule {
        /// Which.
        rule: String,
        /// Why.
        why: String,
    },
}

impl Coded for BadRules {
    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }

    fn code(&self) -> &'static str {
        "alert-rules"
    }

    fn next_step(&self) -> &'static str {
        "Correct what the message names; `towpath alerts test` looks at rules without a server, and docs/alerts.md has their form."
    }
}

/// A file of rules, in both forms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Whether the default rules are looked at, too.
    #[serde(default = "yes")]
    defaults: bool,
    #[serde(default)]
    alerts: BTreeMap<String, Written>,
    #[serde(default)]
    groups: Vec<Group>,
}

fn yes() -> bool {
    true
}

/// A rule as the source writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    condition: String,
    severity: String,
    message: String,
    #[serde(default, rename = "for")]
    lasting: Option<String>,
    #[serde(default)]
    keep_firing_for: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Rules as Prometheus writes them. All are looked at together: what is said of a group's pace is read and not kept.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    #[serde(default, rename = "interval")]
    _interval: Option<String>,
    #[serde(default, rename = "limit")]
    _limit: Option<u64>,
    #[serde(default, rename = "query_offset")]
    _query_offset: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    rules: Vec<Grouped>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grouped {
    alert: Option<String>,
    record: Option<String>,
    expr: String,
    #[serde(default, rename = "for")]
    lasting: Option<String>,
    #[serde(default)]
    keep_firing_for: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Rules {
    /// The default rules.
    ///
    /// # Errors
    /// Never, as a test shows.
    pub fn defaults() -> Result<Self, BadRules> {
        let mut rules = Self::written(&read(DEFAULTS)?)?;
        rules.iter_mut().for_each(|rule| rule.is_default = true);
        Ok(Self(rules))
    }

    /// The rules of a file, and the default rules that it does not replace: those of other names, or none where the file says
    /// `defaults: false`.
    ///
    /// # Errors
    /// What is wrong with them, and what to write instead.
    pub fn from_yaml(text: &str) -> Result<Self, BadRules> {
        let file = read(text)?;
        let mut rules = Self::written(&file)?;
        if file.defaults {
            let names: BTreeSet<String> = rules.iter().map(|rule| rule.name.clone()).collect();
            rules.extend(Self::defaults()?.0.into_iter().filter(|rule| !names.contains(&rule.name)));
        }
        Self::of(rules)
    }

    /// Those of a file and no others, for who tests it.
    pub(super) fn only_of(text: &str) -> Result<Self, BadRules> {
        Self::of(Self::written(&read(text)?)?)
    }

    /// Those of several files.
    pub(super) fn together(files: Vec<Self>) -> Result<Self, BadRules> {
        Self::of(files.into_iter().flat_map(|rules| rules.0).collect())
    }

    fn of(mut rules: Vec<Rule>) -> Result<Self, BadRules> {
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        if rules.len() > MOST_RULES {
            return Err(BadRules::Unreadable(format!("there are more than {MOST_RULES}")));
        }
        let twice =
            rules.windows(2).find(|pair| pair[0].name == pair[1].name).map(|pair| pair[0].name.clone());
        match twice {
            None => Ok(Self(rules)),
            Some(rule) => Err(BadRules::Rule { rule, why: "two rules have this name".to_owned() }),
        }
    }

    fn written(file: &File) -> Result<Vec<Rule>, BadRules> {
        let mut rules = Vec::new();
        for (name, rule) in &file.alerts {
            rules.push(Rule::of_source(name, rule)?);
        }
        for group in &file.groups {
            for (number, rule) in group.rules.iter().enumerate() {
                rules.push(Rule::of_prometheus(group, number, rule)?);
            }
        }
        Ok(rules)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// The same rules for Prometheus, about our metrics.
    ///
    /// # Errors
    /// Never, as a test shows.
    pub fn for_prometheus(&self) -> Result<String, BadRules> {
        #[derive(Serialize)]
        struct Exported {
            groups: Vec<ExportedGroup>,
        }
        #[derive(Serialize)]
        struct ExportedGroup {
            name: &'static str,
            rules: Vec<ExportedRule>,
        }
        #[derive(Serialize)]
        struct ExportedRule {
            alert: String,
            expr: String,
            #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
            lasting: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            keep_firing_for: Option<String>,
            labels: BTreeMap<String, String>,
            annotations: BTreeMap<String, String>,
        }
        let time = |time: Duration| (!time.is_zero()).then(|| prometheus_time(time));
        let exported = self.0.iter().map(|rule| {
            let mut labels: BTreeMap<String, String> = written_texts(&rule.labels);
            labels.insert(SEVERITY.to_owned(), rule.severity.clone());
            let mut annotations = written_texts(&rule.annotations);
            annotations.entry("summary".to_owned()).or_insert_with(|| rule.message.text().to_owned());
            ExportedRule {
                alert: rule.name.clone(),
                expr: rule.condition.for_prometheus(),
                lasting: time(rule.lasting),
                keep_firing_for: time(rule.keep_firing_for),
                labels,
                annotations,
            }
        });
        let exported =
            Exported { groups: vec![ExportedGroup { name: "towpath", rules: exported.collect() }] };
        serde_saphyr::to_string(&exported).map_err(|error| BadRules::Unreadable(error.to_string()))
    }
}

fn written_texts(templates: &BTreeMap<String, Template>) -> BTreeMap<String, String> {
    templates.iter().map(|(name, template)| (name.clone(), template.text().to_owned())).collect()
}

fn read(text: &str) -> Result<File, BadRules> {
    if text.len() > LARGEST_FILE {
        return Err(BadRules::Unreadable(format!("the file is larger than {LARGEST_FILE} bytes")));
    }
    serde_saphyr::from_str(text).map_err(|error| BadRules::Unreadable(error.to_string()))
}

impl Rule {
    fn of_source(name: &str, written: &Written) -> Result<Self, BadRules> {
        // As Prometheus has it.
        let mut annotations = written.annotations.clone();
        annotations.entry("summary".to_owned()).or_insert_with(|| written.message.clone());
        Self::new(
            name,
            (&written.condition, &written.severity, &written.message),
            (written.lasting.as_deref(), written.keep_firing_for.as_deref()),
            &written.labels,
            &annotations,
        )
    }

    fn of_prometheus(group: &Group, number: usize, written: &Grouped) -> Result<Self, BadRules> {
        let Some(name) = &written.alert else {
            let rule = written.record.clone().unwrap_or_else(|| format!("{} of {}", number + 1, group.name));
            let why = "only alerts are looked at here; recording rules are Prometheus'".to_owned();
            return Err(BadRules::Rule { rule, why });
        };
        let labels: BTreeMap<String, String> = group
            .labels
            .iter()
            .chain(&written.labels)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let severity = labels.get(SEVERITY).map_or("none", String::as_str);
        let said = ["summary", "message", "description"].iter().find_map(|one| written.annotations.get(*one));
        Self::new(
            name,
            (&written.expr, severity, said.unwrap_or(name)),
            (written.lasting.as_deref(), written.keep_firing_for.as_deref()),
            &labels,
            &written.annotations,
        )
    }

    fn new(
        name: &str,
        (condition, severity, message): (&str, &str, &str),
        (lasting, keep_firing_for): (Option<&str>, Option<&str>),
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, BadRules> {
        let rule = || name.chars().take(LONGEST_NAME).collect::<String>();
        let wrong = |why: String| BadRules::Rule { rule: rule(), why };
        // Its alerts are facts of an aggregate with this id.
        if let Err(error) = AggregateKey::new(ALERT_KIND, name) {
            return Err(wrong(error.to_string()));
        }
        if severity.is_empty() || severity.len() > 64 {
            return Err(wrong("a severity is a word such as warning or critical".to_owned()));
        }
        let template =
            |text: &str| Template::read(text).map_err(|source| BadRules::Template { rule: rule(), source });
        let mut added = BTreeMap::new();
        for (label, value) in labels.iter().filter(|(label, _)| *label != SEVERITY) {
            if label == ALERT_NAME || !is_label(label) {
                return Err(wrong(format!("{label:?} cannot be a label")));
            }
            let value = template(value)?;
            if value.has_value() {
                return Err(wrong(format!(
                    "the label {label} has {{{{ $value }}}}: each value would be another alert"
                )));
            }
            added.insert(label.clone(), value);
        }
        let mut said = BTreeMap::new();
        for (annotation, text) in annotations {
            said.insert(annotation.clone(), template(text)?);
        }
        let time = |time: Option<&str>| match time {
            None => Ok(Duration::ZERO),
            Some(time) => {
                read_time(time).ok_or_else(|| wrong(format!("{time:?} is no time; write 30s, 5m or 1h")))
            }
        };
        Ok(Self {
            condition: Condition::read(condition)
                .map_err(|source| BadRules::Condition { rule: rule(), source })?,
            severity: severity.to_owned(),
            message: template(message)?,
            lasting: time(lasting)?,
            keep_firing_for: time(keep_firing_for)?,
            labels: added,
            annotations: said,
            is_default: false,
            name: name.to_owned(),
        })
    }

    /// All labels of an alert about these.
    pub(super) fn labels_of(&self, labels: &Labels, value: f64) -> Labels {
        let mut all = labels.clone();
        all.extend(self.labels.iter().map(|(name, text)| (name.clone(), text.filled(labels, value))));
        all.insert(SEVERITY.to_owned(), self.severity.clone());
        all.insert(ALERT_NAME.to_owned(), self.name.clone());
        all
    }
}

/// What Prometheus can call a label.
fn is_label(name: &str) -> bool {
    let begins = |first: char| first.is_ascii_alphabetic() || first == '_';
    name.starts_with(begins)
        && !name.starts_with("__")
        && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
}

/// A time as Prometheus writes it: `5m`, `1h30m`, `1d`.
pub(super) fn read_time(text: &str) -> Option<Duration> {
    let text = text.trim();
    // The parser of conditions takes no time for none.
    if text.trim_end_matches(|one: char| one.is_ascii_alphabetic()).parse() == Ok(0_u64) {
        return Some(Duration::ZERO);
    }
    // Numbers with units: of anything else the parser makes a float, and panics where that is no time.
    let is_told = text.len() <= 16
        && text.starts_with(|one: char| one.is_ascii_digit())
        && text.ends_with(|one: char| one.is_ascii_lowercase())
        && text.chars().all(|one| one.is_ascii_digit() || "ywdhms".contains(one));
    let time = is_told.then(|| promql_parser::util::parse_duration(text).ok()).flatten()?;
    // Longer than anybody waits; a moment that far away cannot be written everywhere.
    (time <= Duration::from_secs(3_600 * 24 * 365)).then_some(time)
}

/// The same, written.
fn prometheus_time(time: Duration) -> String {
    match (time.subsec_millis(), time.as_secs()) {
        (0, seconds) if seconds % 3_600 == 0 => format!("{}h", seconds / 3_600),
        (0, seconds) if seconds % 60 == 0 => format!("{}m", seconds / 60),
        (0, seconds) => format!("{seconds}s"),
        _ => format!("{}ms", time.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_rules_are_there_to_the_letter() {
        let rules = Rules::defaults().unwrap();
        let said: BTreeMap<&str, (&str, &str, &str)> = rules
            .iter()
            .map(|rule| {
                (rule.name.as_str(), (rule.condition.text(), rule.severity.as_str(), rule.message.text()))
            })
            .collect();
        for (name, condition, severity, message) in [
            ("high_pending_commands", "pending_commands > 100", "warning", "待处理命令数量过多"),
            ("command_processing_timeout", "avg_processing_time > 30000", "critical", "命令处理时间过长"),
            ("high_failure_rate", "retry_rate > 0.1", "warning", "命令失败率过高"),
            ("outbox_publish_delay", "avg_publish_delay > 5000", "warning", "事件发布延迟过高"),
            ("version_gap_detected", "aggregate_version_gaps > 0", "critical", "检测到聚合版本号间隙"),
        ] {
            assert_eq!(said.get(name), Some(&(condition, severity, message)), "{name}");
        }
        assert!(rules.iter().all(|rule| rule.is_default));
    }

    #[test]
    fn times_are_numbers_with_units() {
        for (text, seconds) in [("0", 0), ("0s", 0), ("5m", 300), ("1h30m", 5400), ("1d", 86_400)] {
            assert_eq!(read_time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "inf", "nan", "1e30", "-5", "5", "1.5h", "99999999999999d", "400d", "s"] {
            assert_eq!(read_time(text), None, "{text}");
        }
    }

    #[test]
    fn both_forms_are_read_and_defaults_are_replaced_by_name() {
        let defaults = Rules::defaults().unwrap().iter().count();
        let text = "
alerts:
  high_pending_commands:
    condition: 'pending_commands > 7'
    severity: critical
    message: '{{ $value }} wait'
    for: 1m30s
groups:
  - name: ours
    labels: { team: canal }
    rules:
      - alert: QueueDeep
        expr: max by (queue) (towpath_queue_messages{state=\"ready\"}) > 10
        for: 5m
        keep_firing_for: 10m
        labels: { severity: page, where: '{{ $labels.queue }}' }
        annotations: { summary: '{{ $labels.queue }} holds {{ $value }}' }
";
        let rules = Rules::from_yaml(text).unwrap();
        assert_eq!(rules.iter().count(), defaults + 1);
        let of = |name: &str| rules.iter().find(|rule| rule.name == name).unwrap().clone();
        let ours = of("high_pending_commands");
        assert!(!ours.is_default);
        assert_eq!((ours.lasting, ours.severity.as_str()), (Duration::from_secs(90), "critical"));
        let deep = of("QueueDeep");
        assert_eq!(deep.keep_firing_for, Duration::from_secs(600));
        let labels = Labels::from([("queue".to_owned(), "mail".to_owned())]);
        let all: Vec<String> =
            deep.labels_of(&labels, 12.0).iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(all, ["alertname=QueueDeep", "queue=mail", "severity=page", "team=canal", "where=mail"]);
        assert_eq!(deep.message.filled(&labels, 12.0), "mail holds 12");
        let alone = format!("defaults: false\n{text}");
        assert_eq!(Rules::from_yaml(&alone).unwrap().iter().count(), 2);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_rules_name() {
        let rule = |rest: &str| format!("alerts:\n  mine:\n    condition: 'pending_commands > 1'\n{rest}");
        let whole = "    severity: warning\n    message: hm\n";
        assert!(Rules::from_yaml(&rule(whole)).is_ok());
        for (text, told) in [
            ("alerts: [".to_owned(), "cannot be read"),
            (rule("    severity: warning\n"), "message"),
            (rule(&format!("{whole}    fro: 5m\n")), "fro"),
            (rule(&format!("{whole}    for: soon\n")), "30s"),
            (rule(&format!("{whole}    labels: {{ v: '{{{{ $value }}}}' }}\n")), "another alert"),
            (rule("    severity: warning\n    message: '{{ humanize $value }}'\n"), "$labels"),
            (
                "alerts:\n  mine: { condition: 'waiting > 1', severity: warning, message: hm }".to_owned(),
                "waiting",
            ),
            ("groups: [{ name: g, rules: [{ record: r, expr: pending_commands }] }]".to_owned(), "recording"),
            (
                format!(
                    "{}groups: [{{ name: g, rules: [{{ alert: mine, expr: pending_commands > 1 }}] }}]",
                    rule(whole)
                ),
                "two rules",
            ),
        ] {
            let error = Rules::from_yaml(&text).unwrap_err();
            let whole = towpath_core::causes::with_causes(&error);
            assert!(whole.contains(told), "{told}: {whole}");
            assert_eq!(error.code(), "alert-rules");
        }
    }

    #[test]
    fn what_is_exported_can_be_read_again() {
        let exported = Rules::defaults().unwrap().for_prometheus().unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&exported).unwrap();
        let rules = read["groups"][0]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), Rules::defaults().unwrap().iter().count());
        for rule in rules {
            assert!(promql_parser::parser::parse(rule["expr"].as_str().unwrap()).is_ok(), "{rule}");
            assert!(rule["annotations"]["summary"].is_string(), "{rule}");
        }
        assert!(exported.contains("待处理命令数量过多"));
    }
}

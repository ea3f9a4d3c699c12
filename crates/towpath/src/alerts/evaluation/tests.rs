//! Each default rule fires, stays, resolves, is silenced and misses its figure, by a clock that a test moves.

use chrono::TimeDelta;
use towpath_core::ports::store::{NewSilence, SilenceMatcher};
use uuid::Uuid;

use super::*;
use crate::alerts::rules::{ALERT_NAME, SEVERITY};

/// Rules, and alerts as a store would keep them.
struct World {
    rules: Rules,
    figures: Figures,
    open: BTreeMap<String, Alert>,
    silences: Vec<Silence>,
    now: DateTime<Utc>,
    /// What was told: from, to, the labels that are not the rule's.
    told: Vec<(Option<AlertStatus>, AlertStatus)>,
    left_out: u64,
}

use AlertStatus::*;

impl World {
    fn of(rules: Rules) -> Self {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let (figures, open, silences, told) = Default::default();
        Self { rules, figures, open, silences, now, told, left_out: 0 }
    }

    fn only(name: &str) -> Self {
        let all = Rules::defaults().unwrap();
        let rule = all.iter().find(|rule| rule.name == name).unwrap();
        let written = serde_json::json!({ "defaults": false, "alerts": { name: {
            "condition": rule.condition.text(), "severity": rule.severity, "message": rule.message.text(),
            "for": format!("{}s", rule.lasting.as_secs()),
        }}});
        Self::of(Rules::from_yaml(&written.to_string()).unwrap())
    }

    /// Looks after so many seconds; answers what has changed.
    fn after(&mut self, seconds: i64) -> Vec<(Option<AlertStatus>, AlertStatus)> {
        self.now += TimeDelta::seconds(seconds);
        let open: Vec<Alert> = self.open.values().cloned().collect();
        let evaluated = evaluate(&self.rules, &self.figures, &open, &self.silences, self.now);
        assert_eq!(evaluated.failures, BTreeMap::new());
        let mut changes = Vec::new();
        for AlertNote { alert, changed_from } in evaluated.notes {
            changes.extend(changed_from.map(|from| (from, alert.status)));
            match alert.status.is_terminal() {
                true => drop(self.open.remove(&alert.alert_id)),
                false => drop(self.open.insert(alert.alert_id.clone(), alert)),
            }
        }
        self.left_out = evaluated.left_out;
        self.told.extend(&changes);
        changes
    }

    fn set(&mut self, (name, labels): (&str, &[(&str, &str)]), value: Option<f64>) {
        self.figures = Figures::default();
        if let Some(value) = value {
            self.figures.add(name, labels, value);
        }
    }

    fn silence(&mut self, name: &str, seconds: i64) -> usize {
        let matcher = SilenceMatcher {
            name: ALERT_NAME.to_owned(),
            value: name.to_owned(),
            is_regex: false,
            is_equal: true,
        };
        let silence = NewSilence {
            silence_id: Uuid::now_v7(),
            matchers: vec![matcher],
            author_id: "anna".to_owned(),
            reason: "known".to_owned(),
            starts_at: self.now,
            ends_at: self.now + TimeDelta::seconds(seconds),
            created_at: self.now,
        };
        self.silences.push(Silence { silence, ended_at: None, ended_by_id: None });
        self.silences.len() - 1
    }
}

type Series = (&'static str, &'static [(&'static str, &'static str)]);

/// A figure that each default rule is about, a value for which it holds, and one for which it does not.
const CASES: [(&str, Series, f64, f64); 11] = [
    ("high_pending_commands", ("pending_commands", &[]), 101.0, 100.0),
    ("command_processing_timeout", ("avg_processing_time", &[]), 30_001.0, 30_000.0),
    ("high_failure_rate", ("retry_rate", &[]), 0.11, 0.1),
    ("outbox_publish_delay", ("avg_publish_delay", &[]), 5_000.5, 5_000.0),
    ("version_gap_detected", ("aggregate_version_gaps", &[]), 1.0, 0.0),
    ("dead_letters", ("towpath_dead_letters", &[("consumer", "ship"), ("status", "dead")]), 1.0, 0.0),
    ("queue_deep", ("towpath_queue_messages", &[("queue", "mail"), ("state", "ready")]), 1_001.0, 1_000.0),
    ("oldest_pending_command", ("towpath_overdue_seconds", &[("part", "commands")]), 61.0, 0.0),
    ("parked_aggregates", ("towpath_outbox_rows", &[("channel", "mail"), ("status", "parked")]), 3.0, 0.0),
    ("failed_outbox", ("towpath_outbox_rows", &[("channel", "mail"), ("status", "failed")]), 2.0, 0.0),
    ("silent_loop", ("towpath_overdue_seconds", &[("part", "log")]), 61.0, 0.0),
];

#[test]
fn every_default_rule_has_a_case() {
    let mut cases: Vec<&str> = CASES.iter().map(|(name, ..)| *name).collect();
    cases.sort_unstable();
    let rules = Rules::defaults().unwrap();
    assert_eq!(rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), cases);
}

#[test]
fn each_default_rule_fires_stays_and_resolves() {
    for (name, series, bad, well) in CASES {
        let mut world = World::only(name);
        let lasting = world.rules.iter().next().unwrap().lasting.as_secs().cast_signed();
        world.set(series, Some(well));
        assert_eq!(world.after(15), [], "{name}: all is well");
        world.set(series, Some(bad));
        if lasting > 0 {
            assert_eq!(world.after(15), [(None, Pending)], "{name}");
            assert_eq!(world.after(lasting - 1), [], "{name}: not yet");
            assert_eq!(world.after(1), [(Some(Pending), Firing)], "{name}");
        } else {
            assert_eq!(world.after(15), [(None, Firing)], "{name}");
        }
        assert_eq!(world.after(15), [], "{name}: it stays");
        assert_eq!(world.after(3600), [], "{name}: it stays");
        let alert = world.open.values().next().unwrap();
        assert_eq!(alert.labels[ALERT_NAME], name);
        assert_eq!(alert.labels[SEVERITY], alert.severity);
        assert!(!alert.message.is_empty() && !alert.message.contains("{{"), "{}", alert.message);
        world.set(series, Some(well));
        assert_eq!(world.after(15), [(Some(Firing), Resolved)], "{name}");
        assert!(world.open.is_empty(), "{name}");
    }
}

#[test]
fn each_default_rule_is_silenced_and_told_when_the_silence_ends() {
    for (name, series, bad, well) in CASES {
        let mut world = World::only(name);
        let lasting = world.rules.iter().next().unwrap().lasting.as_secs().cast_signed();
        world.set(series, Some(bad));
        world.after(15);
        world.after(lasting);
        assert_eq!(world.told.last().unwrap().1, Firing, "{name}");
        world.silence(name, 60);
        world.silence("another", 9999);
        assert_eq!(world.after(15), [(Some(Firing), Silenced)], "{name}");
        assert_eq!(world.after(15), [], "{name}");
        assert!(world.open.values().all(|alert| alert.silence_id.is_some()));
        assert_eq!(world.after(30), [(Some(Silenced), Firing)], "{name}: the silence is over");
        let ended = world.silence(name, 9999);
        assert_eq!(world.after(1), [(Some(Firing), Silenced)], "{name}");
        world.silences[ended].ended_at = Some(world.now);
        assert_eq!(world.after(1), [(Some(Silenced), Firing)], "{name}: somebody ended it");
        world.silence(name, 60);
        world.after(1);
        world.set(series, Some(well));
        assert_eq!(world.after(1), [(Some(Silenced), Resolved)], "{name}");
    }
}

#[test]
fn a_figure_that_is_not_there_is_never_resolved() {
    for (name, series, bad, well) in CASES {
        let mut world = World::only(name);
        let lasting = world.rules.iter().next().unwrap().lasting.as_secs().cast_signed();
        assert_eq!(world.after(15), [(None, Missing)], "{name}: nothing is known");
        assert_eq!(world.after(15), []);
        world.set(series, Some(bad));
        world.after(15);
        world.after(lasting);
        assert!(world.open.values().all(|alert| alert.status == Firing), "{name}");
        world.set(series, None);
        assert_eq!(world.after(15), [(Some(Firing), Missing)], "{name}");
        assert_eq!(world.after(3600 * 24), [], "{name}: it stays");
        // It is known that there is nothing of the sort: that is no value, either.
        world.figures.know(series.0);
        assert_eq!(world.after(15), [], "{name}");
        world.set(series, Some(bad));
        assert_eq!(world.after(15), [(Some(Missing), Firing)], "{name}: it has lasted already");
        world.set(series, None);
        world.after(15);
        world.set(series, Some(well));
        assert_eq!(world.after(15), [(Some(Missing), Resolved)], "{name}");
        world.set(series, Some(bad));
        world.after(15);
        world.after(lasting);
        world.set(series, None);
        world.after(15);
        assert_eq!(world.after(3600 * 24 * 7), [(Some(Missing), Resolved)], "{name}: forgotten");
    }
}

#[test]
fn what_never_fired_and_is_known_to_be_nothing_ends() {
    let mut world = World::only("queue_deep");
    assert_eq!(world.after(15), [(None, Missing)]);
    world.figures.know("towpath_queue_messages");
    assert_eq!(world.after(15), [(Some(Missing), Resolved)], "there are no queues, and that is known");
    assert_eq!(world.after(15), []);
}

#[test]
fn what_does_not_last_is_told_to_nobody() {
    let mut world = World::only("queue_deep");
    let (_, series, bad, well) = CASES[6];
    world.set(series, Some(bad));
    assert_eq!(world.after(15), [(None, Pending)]);
    world.set(series, Some(well));
    assert_eq!(world.after(15), [(Some(Pending), Resolved)]);
    world.set(series, Some(bad));
    assert_eq!(world.after(15), [(None, Pending)], "from the beginning");
    assert_eq!(world.after(59), []);
    // A clock that was set back makes nothing last longer.
    assert_eq!(world.after(-50), []);
    assert_eq!(world.after(51), [(Some(Pending), Firing)]);
}

fn rules(more: &str) -> Rules {
    let text = format!(
        "defaults: false\nalerts:\n  deep:\n    condition: 'towpath_queue_messages > 5'\n    severity: warning\n    \
         message: '{{{{ $labels.queue }}}} {{{{ $value }}}}'\n{more}"
    );
    Rules::from_yaml(&text).unwrap()
}

#[test]
fn it_goes_on_firing_for_as_long_as_the_rule_says() {
    let mut world = World::of(rules("    keep_firing_for: 1m\n"));
    let series: Series = ("towpath_queue_messages", &[("queue", "mail")]);
    world.set(series, Some(6.0));
    world.after(15);
    world.set(series, Some(1.0));
    assert_eq!(world.after(59), []);
    world.set(series, Some(6.0));
    assert_eq!(world.after(1), [], "it holds again, and nobody was told that it was over");
    world.set(series, Some(1.0));
    assert_eq!(world.after(59), []);
    assert_eq!(world.after(1), [(Some(Firing), Resolved)]);
}

#[test]
fn each_value_is_an_alert_and_there_are_not_too_many() {
    let mut world = World::of(rules(""));
    for number in 0..MOST_OF_A_RULE + 7 {
        world.figures.add("towpath_queue_messages", &[("queue", &format!("q{number:04}"))], 6.0);
    }
    assert_eq!(world.after(15).len(), MOST_OF_A_RULE);
    assert_eq!((world.left_out, world.open.len()), (7, MOST_OF_A_RULE));
    assert_eq!(world.after(15), [], "the same ones");
    assert_eq!(world.left_out, 7);
    let message = &world.open.values().next().unwrap().message;
    assert!(message.starts_with('q') && message.ends_with(" 6"), "{message}");
    world.set(("towpath_queue_messages", &[("queue", "q0001")]), Some(6.0));
    assert_eq!(world.after(15).len(), MOST_OF_A_RULE - 1, "the others are missing");
    assert_eq!(world.open.values().filter(|alert| alert.status == Firing).count(), 1);
}

#[test]
fn labels_that_hide_what_tells_series_apart_are_a_fault_of_their_rule_alone() {
    let text = "
defaults: false
groups:
- name: g
  rules:
  - alert: deep
    expr: towpath_queue_messages{state=\"ready\"} > 1
    labels: { queue: all }
  - alert: other
    expr: pending_commands > 1
";
    let rules = Rules::from_yaml(text).unwrap();
    let mut figures = Figures::default();
    for queue in ["a", "b"] {
        figures.add("towpath_queue_messages", &[("queue", queue), ("state", "ready")], 5.0);
    }
    figures.add("pending_commands", &[], 5.0);
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let evaluated = evaluate(&rules, &figures, &[], &[], now);
    assert!(evaluated.failures.contains_key("deep"), "{:?}", evaluated.failures);
    assert_eq!(evaluated.notes.iter().map(|note| note.alert.rule.as_str()).collect::<Vec<_>>(), ["other"]);
}

#[test]
fn with_a_side_that_is_not_known_nothing_is_resolved() {
    let text = "
defaults: false
alerts:
  both:
    condition: 'pending_commands > 100 and on() failed_outbox > 0'
    severity: warning
    message: both
";
    let mut world = World::of(Rules::from_yaml(text).unwrap());
    let set = |world: &mut World, pending: f64, failed: Option<f64>| {
        world.set(("pending_commands", &[]), Some(pending));
        if let Some(failed) = failed {
            world.figures.add("failed_outbox", &[], failed);
        }
    };
    set(&mut world, 200.0, Some(1.0));
    assert_eq!(world.after(0), [(None, Firing)]);
    set(&mut world, 200.0, None);
    assert_eq!(world.after(15), [(Some(Firing), Missing)]);
    set(&mut world, 200.0, Some(0.0));
    assert_eq!(world.after(15), [(Some(Missing), Resolved)]);
}

#[test]
fn after_a_clock_that_was_ahead_what_lasts_fires_in_its_time() {
    let text = "
defaults: false
alerts:
  slow:
    condition: 'pending_commands > 100'
    severity: warning
    message: slow
    for: 5m
    keep_firing_for: 1m
";
    let mut world = World::of(Rules::from_yaml(text).unwrap());
    world.set(("pending_commands", &[]), Some(200.0));
    assert_eq!(world.after(3600), [(None, Pending)]);
    assert_eq!(world.after(-3600), []);
    assert_eq!(world.after(299), []);
    assert_eq!(world.after(1), [(Some(Pending), Firing)]);
    world.after(3600);
    world.set(("pending_commands", &[]), Some(0.0));
    assert_eq!(world.after(-3600), [(Some(Firing), Resolved)]);
}

#[test]
fn alerts_of_a_rule_that_is_gone_end() {
    let mut world = World::of(rules(""));
    world.set(("towpath_queue_messages", &[("queue", "mail")]), Some(6.0));
    world.after(15);
    world.rules = Rules::from_yaml("defaults: false").unwrap();
    assert_eq!(world.after(15), [(Some(Firing), Resolved)]);
}

#[test]
fn what_could_not_be_looked_at_stays_as_it_was() {
    let mut world = World::of(rules(""));
    let series: Series = ("towpath_queue_messages", &[("queue", "mail")]);
    world.set(series, Some(6.0));
    world.after(15);
    world.figures.add(series.0, series.1, 7.0);
    let open: Vec<Alert> = world.open.values().cloned().collect();
    let evaluated = evaluate(&world.rules, &world.figures, &open, &[], world.now);
    assert_eq!(evaluated.notes, []);
    assert!(evaluated.failures["deep"].contains("two values"), "{evaluated:?}");
}

/// Whatever the figures do, each alert goes a legal way, and nothing is resolved whose figure is not there.
#[test]
fn any_walk_is_legal() {
    let mut seed: u64 = 7;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut world = World::of(rules("    for: 30s\n    keep_firing_for: 20s\n"));
    for _ in 0..5_000 {
        world.figures = Figures::default();
        match random(4) {
            0 => {}
            1 => world.figures.know("towpath_queue_messages"),
            _ => {
                for queue in ["a", "b", "c"] {
                    if random(3) > 0 {
                        world.figures.add("towpath_queue_messages", &[("queue", queue)], random(12) as f64);
                    }
                }
            }
        }
        if random(10) == 0 {
            world.silence("deep", random(60).cast_signed());
        }
        let is_there: BTreeSet<String> =
            world.figures.of("towpath_queue_messages").map_or_else(BTreeSet::new, |all| {
                all.iter().map(|sample| sample.labels["queue"].clone()).collect()
            });
        let before: BTreeMap<String, Alert> = world.open.clone();
        for (from, to) in world.after(random(20).cast_signed()) {
            if let Some(from) = from {
                assert!(from.allowed().iter().any(|step| from.next(*step) == Ok(to)), "{from} {to}");
            }
        }
        for (id, alert) in before.iter().filter(|(id, _)| !world.open.contains_key(*id)) {
            let queue = alert.labels.get("queue");
            let is_known = queue.is_some_and(|queue| is_there.contains(queue));
            assert!(is_known || alert.fired_at.is_none(), "{id} was resolved without its figure");
        }
    }
    assert!(world.told.len() > 500);
}

//! Conditions: the part of Prometheus' language that is about one moment.
//!
//! A comparison drops nothing here, as it does in Prometheus: what it is about stays, and is marked as not holding. So a figure
//! that is well is told from one that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use promql_parser::label::{Matcher, Matchers};
use promql_parser::parser::{
    self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
};

use crate::metrics::{ALL, Figures, Kind, SUMMARY_NAMES};

/// By what a value is told apart.
pub type Labels = BTreeMap<String, String>;

/// How deep a condition may be nested: it is walked by recursion.
const DEEPEST: usize = 64;

/// How long the text of a condition may be.
const LONGEST: usize = 10_000;

/// A condition that can be looked at.
#[derive(Clone)]
pub struct Condition {
    text: String,
    expression: Expr,
}

/// What became of one value that a condition is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Element {
    /// By what it is told apart.
    pub labels: Labels,
    /// How much.
    pub value: f64,
    /// Whether the condition holds for it.
    pub holds: bool,
}

/// What became of a condition.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Looked {
    /// All that it is about, in the order of their labels.
    pub elements: Vec<Element>,
    /// Figures that it names and of which nothing is known.
    pub unknown: BTreeSet<String>,
}

/// A condition that cannot be looked at: what is wrong with it, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the condition {condition:?} cannot be used: {why}")]
pub struct BadCondition {
    condition: String,
    why: String,
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Condition {
    /// Reads a condition.
    ///
    /// # Errors
    /// It cannot be read, is about more than one moment, or names a figure that there is not.
    pub fn read(text: &str) -> Result<Self, BadCondition> {
        let bad = |why: String| BadCondition { condition: text.chars().take(200).collect(), why };
        if text.len() > LONGEST {
            return Err(bad(format!("it is longer than {LONGEST} bytes")));
        }
        // The parser walks by recursion, too.
        if text.matches(['(', '-', '+']).count() > DEEPEST {
            return Err(bad(format!("it has more than {DEEPEST} parentheses and signs")));
        }
        // It panics at times that are none.
        let parsed = std::panic::catch_unwind(|| parser::parse(text));
        let expression = parsed.unwrap_or_else(|_| Err("it cannot be read".to_owned())).map_err(bad)?;
        match check(&expression, 0).map_err(bad)? {
            Sort::Vector => Ok(Self { text: text.to_owned(), expression }),
            Sort::Number => Err(bad("it is a number; compare a figure with it".to_owned())),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Looks at it.
    ///
    /// # Errors
    /// Two values with the same labels where there can be one; it says which.
    pub fn look(&self, figures: &Figures) -> Result<Looked, BadCondition> {
        let mut unknown = BTreeSet::new();
        let bad = |why| BadCondition { condition: self.text.clone(), why };
        let found = evaluate(&self.expression, figures, &mut unknown).map_err(bad)?;
        let mut elements = match found {
            Found::Vector(elements) => elements,
            Found::Number(_) => Vec::new(),
        };
        elements.sort_by(|one, other| one.labels.cmp(&other.labels));
        if let Some(twice) = elements.windows(2).find(|pair| pair[0].labels == pair[1].labels) {
            return Err(bad(format!("there are two values with the labels {:?}", twice[0].labels)));
        }
        Ok(Looked { elements, unknown })
    }

    /// The same as Prometheus sees it in our metrics.
    pub fn for_prometheus(&self) -> String {
        rewritten(self.expression.clone()).to_string()
    }
}

/// What an expression gives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sort {
    Vector,
    Number,
}

/// Refuses what is not looked at, with what to do instead.
fn check(expression: &Expr, depth: usize) -> Result<Sort, String> {
    if depth > DEEPEST {
        return Err(format!("it is nested deeper than {DEEPEST}"));
    }
    let inside = |expression: &Expr| check(expression, depth + 1);
    match expression {
        Expr::NumberLiteral(_) => Ok(Sort::Number),
        Expr::Paren(paren) => inside(&paren.expr),
        Expr::Unary(unary) => inside(&unary.expr),
        Expr::VectorSelector(selector) => check_selector(selector).map(|()| Sort::Vector),
        Expr::Aggregate(aggregate) => {
            let name = aggregate.op.to_string();
            if !["sum", "min", "max", "avg", "count"].contains(&name.as_str()) || aggregate.param.is_some() {
                return Err(format!("{name} is not known here; use sum, min, max, avg or count"));
            }
            match inside(&aggregate.expr)? {
                Sort::Vector => Ok(Sort::Vector),
                Sort::Number => Err(format!("{name} is over figures, and not over a number")),
            }
        }
        Expr::Call(call) => match (call.func.name, call.args.args.as_slice()) {
            ("absent", [of]) if inside(of)? == Sort::Vector => Ok(Sort::Vector),
            (name, _) => Err(format!(
                "the function {name} is not known here, only absent; rates and ranges need a history, which Prometheus has \
                 (`towpath alerts export`). Use a figure that has a time of its own, such as avg_processing_time, or `for`"
            )),
        },
        Expr::Binary(binary) => {
            let sorts = (inside(&binary.lhs)?, inside(&binary.rhs)?);
            if let Some(modifier) = &binary.modifier
                && matches!(
                    modifier.card,
                    VectorMatchCardinality::ManyToOne(_) | VectorMatchCardinality::OneToMany(_)
                )
            {
                return Err("group_left and group_right are not known here; make both sides alike with \
                            `sum by (…)` or `max by (…)`"
                    .to_owned());
            }
            let filled = binary.modifier.as_ref().is_some_and(|modifier| {
                modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some()
            });
            if filled {
                return Err("fill is not known here".to_owned());
            }
            let operator = binary.op.to_string();
            if Operator::of(&operator).is_none() && !is_set(&operator) {
                return Err(format!("the operator {operator} is not known here"));
            }
            Ok(if sorts == (Sort::Number, Sort::Number) { Sort::Number } else { Sort::Vector })
        }
        Expr::MatrixSelector(_) | Expr::Subquery(_) => Err(
            "a range such as [5m] needs a history, which Prometheus has (`towpath alerts export`). Use a figure that has a \
             time of its own, such as avg_processing_time, or `for`"
                .to_owned(),
        ),
        Expr::StringLiteral(_) | Expr::Extension(_) => Err("a text is no figure".to_owned()),
    }
}

fn check_selector(selector: &VectorSelector) -> Result<(), String> {
    if selector.offset.is_some() || selector.at.is_some() {
        return Err("offset and @ need a history, which Prometheus has".to_owned());
    }
    if !selector.matchers.or_matchers.is_empty() {
        return Err("`or` between matchers is not known here; use a regular expression".to_owned());
    }
    let Some(name) = &selector.name else {
        return Err("a figure is written with its name in front".to_owned());
    };
    if SUMMARY_NAMES.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    match ALL.iter().find(|metric| metric.name == name) {
        Some(metric) if metric.kind == Kind::Gauge => {}
        Some(_) => {
            return Err(format!(
                "{name} is counted by each process for itself, and its history is Prometheus' (`towpath alerts export`); use \
                 a gauge or a figure of /api/metrics/summary"
            ));
        }
        None => {
            let names: Vec<&str> = SUMMARY_NAMES.iter().map(|(known, _)| *known).collect();
            return Err(format!(
                "there is no figure {name}; there are {} and the gauges of docs/metrics.md",
                names.join(", ")
            ));
        }
    }
    Ok(())
}

/// What an expression has given.
enum Found {
    Number(f64),
    Vector(Vec<Element>),
}

fn evaluate(expression: &Expr, figures: &Figures, unknown: &mut BTreeSet<String>) -> Result<Found, String> {
    Ok(match expression {
        Expr::NumberLiteral(number) => Found::Number(number.val),
        Expr::Paren(paren) => evaluate(&paren.expr, figures, unknown)?,
        Expr::Unary(unary) => match evaluate(&unary.expr, figures, unknown)? {
            Found::Number(number) => Found::Number(-number),
            Found::Vector(mut elements) => {
                elements.iter_mut().for_each(|element| element.value = -element.value);
                Found::Vector(elements)
            }
        },
        Expr::VectorSelector(selector) => Found::Vector(select(selector, figures, unknown)),
        Expr::Aggregate(aggregate) => {
            Found::Vector(aggregated(aggregate, vector(&aggregate.expr, figures, unknown)?))
        }
        Expr::Call(call) => Found::Vector(absent(call, figures)?),
        Expr::Binary(binary) => {
            let left = evaluate(&binary.lhs, figures, unknown)?;
            let right = evaluate(&binary.rhs, figures, unknown)?;
            combined(binary, left, right)?
        }
        // Refused when it was read.
        Expr::MatrixSelector(_) | Expr::Subquery(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {
            Found::Vector(Vec::new())
        }
    })
}

fn vector(
    expression: &Expr,
    figures: &Figures,
    unknown: &mut BTreeSet<String>,
) -> Result<Vec<Element>, String> {
    Ok(match evaluate(expression, figures, unknown)? {
        Found::Vector(elements) => elements,
        Found::Number(_) => Vec::new(),
    })
}

fn select(selector: &VectorSelector, figures: &Figures, unknown: &mut BTreeSet<String>) -> Vec<Element> {
    let name = selector.name.as_deref().unwrap_or_default();
    let Some(samples) = figures.of(name) else {
        unknown.insert(name.to_owned());
        return Vec::new();
    };
    let fits = |matchers: &Matchers, labels: &Labels| {
        let fits = |matcher: &Matcher| {
            matcher.name == "__name__"
                || matcher.is_match(labels.get(&matcher.name).map_or("", String::as_str))
        };
        matchers.matchers.iter().all(fits)
    };
    let found = samples.iter().filter(|sample| fits(&selector.matchers, &sample.labels));
    found.map(|sample| Element { labels: sample.labels.clone(), value: sample.value, holds: true }).collect()
}

/// One value of those that hold. Where there are some and none holds, that is known, and does not hold.
fn aggregated(aggregate: &AggregateExpr, elements: Vec<Element>) -> Vec<Element> {
    let kept = |labels: Labels| -> Labels {
        match &aggregate.modifier {
            None => Labels::new(),
            Some(modifier) => labels.into_iter().filter(|(name, _)| modifier.keeps(name)).collect(),
        }
    };
    let mut groups: BTreeMap<Labels, Vec<f64>> = BTreeMap::new();
    for element in elements {
        let group = groups.entry(kept(element.labels)).or_default();
        if element.holds {
            group.push(element.value);
        }
    }
    let name = aggregate.op.to_string();
    let one = |(labels, values): (Labels, Vec<f64>)| {
        let (count, sum) = (values.len() as f64, values.iter().sum::<f64>());
        let value = match name.as_str() {
            "sum" => sum,
            "min" => values.iter().copied().fold(f64::NAN, f64::min),
            "max" => values.iter().copied().fold(f64::NAN, f64::max),
            "avg" => sum / count,
            _ => count,
        };
        Element { labels, value, holds: !values.is_empty() }
    };
    groups.into_iter().map(one).collect()
}

/// Whether nothing of the sort holds. A figure of which nothing is known is absent: that is what it asks.
fn absent(call: &Call, figures: &Figures) -> Result<Vec<Element>, String> {
    let Some(of) = call.args.args.first() else { return Ok(Vec::new()) };
    let found = vector(of, figures, &mut BTreeSet::new())?;
    let labels = match of.as_ref() {
        Expr::VectorSelector(selector) => equal_labels(&selector.matchers),
        _ => Labels::new(),
    };
    let holds = !found.iter().any(|element| element.holds);
    Ok(vec![Element { labels, value: 1.0, holds }])
}

/// What a selector says about labels for sure.
fn equal_labels(matchers: &Matchers) -> Labels {
    let equal = |matcher: &&Matcher| {
        matcher.name != "__name__" && matches!(matcher.op, promql_parser::label::MatchOp::Equal)
    };
    matchers.matchers.iter().filter(equal).map(|one| (one.name.clone(), one.value.clone())).collect()
}

#[derive(Clone, Copy)]
enum Operator {
    Number(fn(f64, f64) -> f64),
    Comparison(fn(&f64, &f64) -> bool),
}

impl Operator {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "+" => Self::Number(|one, other| one + other),
            "-" => Self::Number(|one, other| one - other),
            "*" => Self::Number(|one, other| one * other),
            "/" => Self::Number(|one, other| one / other),
            "%" => Self::Number(|one, other| one % other),
            "^" => Self::Number(f64::powf),
            ">" => Self::Comparison(f64::gt),
            ">=" => Self::Comparison(f64::ge),
            "<" => Self::Comparison(f64::lt),
            "<=" => Self::Comparison(f64::le),
            "==" => Self::Comparison(f64::eq),
            "!=" => Self::Comparison(f64::ne),
            _ => return None,
        })
    }

    /// The value of a pair, and whether it holds. Of a comparison the value is the first, or with `bool` 1 or 0.
    fn apply(self, one: f64, other: f64, kept: f64, is_bool: bool) -> (f64, bool) {
        match self {
            Self::Number(operation) => (operation(one, other), true),
            Self::Comparison(holds) if is_bool => (f64::from(u8::from(holds(&one, &other))), true),
            Self::Comparison(holds) => (kept, holds(&one, &other)),
        }
    }
}

fn is_set(operator: &str) -> bool {
    ["and", "or", "unless"].contains(&operator)
}

fn combined(binary: &BinaryExpr, left: Found, right: Found) -> Result<Found, String> {
    let name = binary.op.to_string();
    let is_bool = binary.modifier.as_ref().is_some_and(|modifier| modifier.return_bool);
    let matching = binary.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref());
    let Some(operator) = Operator::of(&name) else {
        return Ok(match (left, right) {
            (Found::Vector(left), Found::Vector(right)) => {
                Found::Vector(set_operation(&name, matching, left, right))
            }
            _ => Found::Vector(Vec::new()),
        });
    };
    Ok(match (left, right) {
        (Found::Number(one), Found::Number(other)) => Found::Number(operator.apply(one, other, one, true).0),
        (Found::Vector(elements), Found::Number(number)) => {
            Found::Vector(each(elements, |value| operator.apply(value, number, value, is_bool)))
        }
        (Found::Number(number), Found::Vector(elements)) => {
            Found::Vector(each(elements, |value| operator.apply(number, value, value, is_bool)))
        }
        (Found::Vector(left), Found::Vector(right)) => {
            let mut others: BTreeMap<Labels, Element> = BTreeMap::new();
            for element in right {
                let key = key(matching, &element.labels);
                if others.insert(key.clone(), element).is_some() {
                    return Err(format!(
                        "there are two values with the labels {key:?} on the right of {name}"
                    ));
                }
            }
            let mut seen = BTreeSet::new();
            let mut elements = Vec::new();
            for element in left {
                let key = key(matching, &element.labels);
                let Some(other) = others.get(&key) else { continue };
                if !seen.insert(key.clone()) {
                    return Err(format!(
                        "there are two values with the labels {key:?} on the left of {name}"
                    ));
                }
                let (value, holds) = operator.apply(element.value, other.value, element.value, is_bool);
                let labels = if matching.is_some() { key } else { element.labels };
                elements.push(Element { labels, value, holds: holds && element.holds && other.holds });
            }
            Found::Vector(elements)
        }
    })
}

fn each(elements: Vec<Element>, apply: impl Fn(f64) -> (f64, bool)) -> Vec<Element> {
    let applied = elements.into_iter().map(|Element { labels, value, holds }| {
        let (value, still) = apply(value);
        Element { labels, value, holds: holds && still }
    });
    applied.collect()
}

fn set_operation(
    name: &str,
    matching: Option<&LabelModifier>,
    left: Vec<Element>,
    right: Vec<Element>,
) -> Vec<Element> {
    let key = |element: &Element| key(matching, &element.labels);
    let holding =
        |elements: &[Element]| elements.iter().filter(|one| one.holds).map(key).collect::<BTreeSet<_>>();
    match name {
        "or" => {
            let first = holding(&left);
            let second = holding(&right);
            // What holds on either side wins over the same that does not.
            let mut elements: Vec<Element> = Vec::new();
            let mut seen = BTreeSet::new();
            let kept_left = left.into_iter().filter(|one| one.holds || !second.contains(&key(one)));
            elements.extend(kept_left.inspect(|one| {
                seen.insert(key(one));
            }));
            let kept_right =
                right.into_iter().filter(|one| !first.contains(&key(one)) && !seen.contains(&key(one)));
            elements.extend(kept_right);
            elements
        }
        _ => {
            let others = holding(&right);
            let wanted = name == "and";
            let still = |element: Element| {
                let holds = element.holds && others.contains(&key(&element)) == wanted;
                Element { holds, ..element }
            };
            left.into_iter().map(still).collect()
        }
    }
}

/// By which labels two sides are matched.
fn key(matching: Option<&LabelModifier>, labels: &Labels) -> Labels {
    let kept = labels.iter().filter(|(name, _)| matching.is_none_or(|modifier| modifier.keeps(name)));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether a list of labels, as `by`, `without`, `on` or `ignoring` has it, leaves a label in.
trait Keeps {
    fn keeps(&self, label: &str) -> bool;
}

impl Keeps for LabelModifier {
    fn keeps(&self, label: &str) -> bool {
        self.labels().labels.iter().any(|listed| listed == label) == self.is_include()
    }
}

/// The same expression with the names of the summary said in our metrics.
fn rewritten(expression: Expr) -> Expr {
    let again = |expression: Box<Expr>| Box::new(rewritten(*expression));
    match expression {
        Expr::VectorSelector(selector) => {
            let name = selector.name.as_deref().unwrap_or_default();
            let known = SUMMARY_NAMES.iter().find(|(known, _)| *known == name);
            let Some((_, said)) = known else { return Expr::VectorSelector(selector) };
            let wanted: Vec<String> = selector
                .matchers
                .matchers
                .iter()
                .filter(|one| one.name != "__name__")
                .map(Matcher::to_string)
                .collect();
            // Only the figures by type have labels, and those are the metric's own.
            let said = match wanted.is_empty() {
                true => (*said).to_owned(),
                false => said.replacen('[', &format!("{{{}}}[", wanted.join(",")), 1),
            };
            parser::parse(&format!("({said})")).unwrap_or(Expr::VectorSelector(selector))
        }
        Expr::Paren(mut paren) => {
            paren.expr = again(paren.expr);
            Expr::Paren(paren)
        }
        Expr::Unary(mut unary) => {
            unary.expr = again(unary.expr);
            Expr::Unary(unary)
        }
        Expr::Aggregate(mut aggregate) => {
            aggregate.expr = again(aggregate.expr);
            Expr::Aggregate(aggregate)
        }
        Expr::Binary(mut binary) => {
            binary.lhs = again(binary.lhs);
            binary.rhs = again(binary.rhs);
            Expr::Binary(binary)
        }
        Expr::Call(mut call) => {
            call.args.args = call.args.args.into_iter().map(again).collect();
            Expr::Call(call)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        figures.add("pending_commands", &[], 101.0);
        figures.know("retry_rate");
        for (queue, ready) in [("bills", 2.0), ("mail", 1200.0)] {
            figures.add("towpath_queue_messages", &[("queue", queue), ("state", "ready")], ready);
            figures.add("towpath_queue_messages", &[("queue", queue), ("state", "delayed")], 5.0);
        }
        figures
    }

    /// What holds, as text; what is there and does not hold has a minus in front.
    fn looked(condition: &str) -> String {
        let looked = Condition::read(condition).unwrap().look(&figures()).unwrap();
        let mut said: Vec<String> = looked
            .elements
            .iter()
            .map(|Element { labels, value, holds }| {
                let labels: Vec<String> =
                    labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("{}{}:{value}", if *holds { "" } else { "-" }, labels.join(","))
            })
            .collect();
        said.extend(looked.unknown.iter().map(|name| format!("?{name}")));
        said.join(" ")
    }

    #[test]
    fn what_holds_is_told_from_what_is_well_and_from_what_is_not_there() {
        assert_eq!(looked("pending_commands > 100"), ":101");
        assert_eq!(looked("pending_commands > 101"), "-:101");
        assert_eq!(looked("100 < pending_commands"), ":101");
        assert_eq!(looked("retry_rate > 0.1"), "", "known to have no value");
        assert_eq!(looked("aggregate_version_gaps > 0"), "?aggregate_version_gaps");
        assert_eq!(looked("pending_commands > bool 200"), ":0");
    }

    #[test]
    fn vectors_are_one_alert_each() {
        let ready = "towpath_queue_messages{state=\"ready\"}";
        assert_eq!(looked(&format!("max by (queue) ({ready}) > 1000")), "-queue=bills:2 queue=mail:1200");
        assert_eq!(looked("sum(towpath_queue_messages) > 1000"), ":1212");
        assert_eq!(looked("count(towpath_queue_messages > 100)"), ":1");
        assert_eq!(looked("min(towpath_queue_messages > 9999)"), "-:NaN");
        assert_eq!(looked("avg without (state) (towpath_queue_messages{queue=~\"b.*\"})"), "queue=bills:3.5");
        assert_eq!(
            looked(
                "towpath_queue_messages{state=\"ready\"} / on (queue) towpath_queue_messages{state=\"delayed\"} > 100"
            ),
            "-queue=bills:0.4 queue=mail:240"
        );
        assert_eq!(
            looked("towpath_queue_messages{queue!=\"mail\",state=\"ready\"} * 2 + 1 - -1"),
            "queue=bills,state=ready:6"
        );
    }

    #[test]
    fn sets_keep_what_is_known() {
        assert_eq!(looked("pending_commands > 100 and retry_rate > 0.1"), "-:101");
        assert_eq!(looked("pending_commands > 100 unless retry_rate > 0.1"), ":101");
        assert_eq!(looked("pending_commands > 200 or pending_commands > 100"), ":101");
        assert_eq!(looked("pending_commands > 200 or pending_commands > 300"), "-:101");
        assert_eq!(looked("absent(towpath_queue_messages{queue=\"mail\"})"), "-queue=mail:1");
        assert_eq!(looked("absent(aggregate_version_gaps)"), ":1");
    }

    #[test]
    fn what_cannot_be_looked_at_is_refused_with_advice() {
        for (condition, advice) in [
            ("rate(towpath_commands_total[5m]) > 1", "Prometheus"),
            ("towpath_commands_total > 1", "gauge"),
            ("towpath_log_head_position[5m]", "`for`"),
            ("towpath_log_head_position offset 5m > 1", "history"),
            ("pending_commands offset 1e30 > 1", "cannot be"),
            ("waiting_commands > 1", "pending_commands"),
            ("topk(3, towpath_queue_messages) > 1", "sum, min, max, avg or count"),
            ("1 > bool 2", "compare a figure"),
            ("pending_commands >", "cannot be used"),
            ("{state=\"ready\"} > 1", "its name in front"),
            ("towpath_queue_messages * on (queue) group_left towpath_queue_consumers", "by"),
        ] {
            let error = Condition::read(condition).unwrap_err().to_string();
            assert!(error.contains(advice), "{condition}: {error}");
        }
        let deep = format!("{}pending_commands{}", "(".repeat(5000), ")".repeat(5000));
        assert!(Condition::read(&deep).is_err());
    }

    #[test]
    fn two_values_where_there_can_be_one_are_an_error_and_no_alert() {
        let condition = Condition::read("pending_commands == on () towpath_queue_messages").unwrap();
        assert!(condition.look(&figures()).unwrap_err().to_string().contains("two values"));
    }

    #[test]
    fn prometheus_is_told_in_our_metrics() {
        let said = |text: &str| Condition::read(text).unwrap().for_prometheus();
        assert_eq!(said("pending_commands > 100"), "(max(towpath_command_box{status=\"pending\"})) > 100");
        assert_eq!(
            said("commands_by_type{type=\"a\"} > 5"),
            "(sum by (type) (increase(towpath_commands_total{type=\"a\"}[5m]))) > 5"
        );
        for (name, _) in SUMMARY_NAMES {
            assert!(parser::parse(&said(&format!("{name} > 1"))).is_ok(), "{name}");
            assert!(said(&format!("{name} > 1")).contains("towpath_"), "{name}");
        }
    }
}

//! Compares docs/conformance.md with the list of requirements, and with the tests that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::repository_root;
use crate::failure::Failure;

const TABLE: &str = "docs/conformance.md";

/// The requirements and, last, the promises, as many as there are of each.
const IDS: [(char, usize); 6] = [('H', 15), ('N', 9), ('S', 8), ('G', 12), ('O', 13), ('P', 9)];

/// What a cell says when there is nothing to say.
const NOTHING: &str = "–";

/// Checks the table of this repository; the failure lists everything that is wrong with it.
pub(crate) fn run() -> Result<(), Failure> {
    let root = repository_root();
    let text = read(&root.join(TABLE))?;
    let rows = rows_of(&text);
    let mut flaws = flaws_of_ids(&rows);
    for row in &rows {
        flaws.extend(flaws_of_row(row, &|place| sources_of(&root, place)));
    }
    if flaws.is_empty() {
        eprintln!("xtask: conformance: {} rows, every test they name runs", rows.len());
        return Ok(());
    }
    Err(Failure::new(format!("{TABLE} is not so:\n  {}", flaws.join("\n  ")))
        .next_step("name the test that shows it, or say in the last column what is open"))
}

/// One row of a table: id, what holds, shown by, databases, brokers, open.
#[derive(Debug, PartialEq)]
struct Row<'t> {
    id: &'t str,
    shown_by: &'t str,
    open: &'t str,
}

fn rows_of(text: &str) -> Vec<Row<'_>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    let rows = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    rows.filter(|cells| cells.first().is_some_and(|id| *id != "id" && !id.starts_with("---")))
        .map(|cells| match cells.as_slice() {
            [id, _, shown_by, _, _, open] => Row { id, shown_by, open },
            // It has no test and leaves nothing open: a row that is cut wrongly is always told.
            _ => Row { id: cells.first().copied().unwrap_or_default(), shown_by: "", open: NOTHING },
        })
        .collect()
}

fn ids() -> Vec<String> {
    IDS.iter()
        .flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")))
        .collect()
}

/// Every id is there once and in order, before the rows that belong to none of them.
fn flaws_of_ids(rows: &[Row<'_>]) -> Vec<String> {
    let wanted = ids();
    let there: Vec<&str> = rows.iter().map(|row| row.id).collect();
    let mut flaws: Vec<String> = wanted
        .iter()
        .map(|id| (id, there.iter().filter(|other| *other == id).count()))
        .filter(|(_, count)| *count != 1)
        .map(|(id, count)| format!("{id} has {count} rows"))
        .collect();
    if flaws.is_empty()
        && let Some((id, other)) = wanted.iter().zip(&there).find(|(id, other)| id != *other)
    {
        flaws.push(format!("{other} stands where {id} belongs"));
    }
    flaws
}

/// What is wrong with what a row names. `sources` gives the sources of a place, or nothing where there is none.
fn flaws_of_row(row: &Row<'_>, sources: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut flaws = Vec::new();
    let named = named_in(row.shown_by);
    if named.is_empty() && row.open == NOTHING {
        flaws.push(format!("{} names no test and leaves nothing open, or has not six columns", row.id));
    }
    for (place, test) in named {
        let sources = sources(&place);
        let running: BTreeSet<&str> = sources.iter().flat_map(|source| tests_of(source)).collect();
        match test {
            _ if running.is_empty() => flaws.push(format!("{}: there are no tests in `{place}`", row.id)),
            Some(test) if !running.contains(test) => {
                flaws.push(format!("{}: `{place}` has no test `{test}` that the default run runs", row.id));
            }
            _ => {}
        }
    }
    flaws
}

/// The places and tests of a cell: `place test`, then `test` of the same place; a `place` alone means all its tests.
fn named_in(cell: &str) -> Vec<(String, Option<&str>)> {
    let mut named = Vec::new();
    let mut last = String::new();
    for span in cell.split('`').skip(1).step_by(2) {
        let (place, name) = match span.split_once(' ') {
            Some((place, name)) => (place, Some(name)),
            None if is_place(span) => (span, None),
            None => (last.as_str(), Some(span)),
        };
        // The module of a unit test is no part of its name, but `module::tests` is a place.
        let (place, test) = match name {
            Some(name) if name.ends_with("::tests") => (format!("{place} {name}"), None),
            Some(name) => (place.to_owned(), name.rsplit("::").next()),
            None => (place.to_owned(), None),
        };
        last = place.split(' ').next().unwrap_or_default().to_owned();
        named.push((place, test));
    }
    named
}

fn is_place(span: &str) -> bool {
    span.starts_with("towpath") || span == "xtask" || SUITES.contains(&span)
}

/// The conformance suites of the test kit, which every adapter runs.
const SUITES: [&str; 2] = ["store", "broker"];

/// The sources of `package::binary`, of `package` (its unit tests), of `package module::tests`, or of a suite.
fn sources_of(root: &Path, place: &str) -> Vec<String> {
    if SUITES.contains(&place) {
        return sources_below(&root.join("crates/testkit/src").join(place).join("mod.rs"));
    }
    let (place, module) = place.split_once(' ').unwrap_or((place, ""));
    let (package, binary) = place.split_once("::").unwrap_or((place, ""));
    let name = package.strip_prefix("towpath-").unwrap_or(package);
    let folders = ["crates", "apps", ""].map(|above| root.join(above).join(name));
    let Some(folder) = folders.into_iter().find(|folder| folder.join("Cargo.toml").exists()) else {
        return Vec::new();
    };
    let mut source = if binary.is_empty() { folder.join("src") } else { folder.join("tests").join(binary) };
    source.extend(module.split("::").filter(|part| !part.is_empty() && *part != "tests"));
    let mut sources = sources_below(&source.with_extension("rs"));
    sources.extend(sources_below(&source));
    sources
}

/// The texts of a file, or of all sources below a folder; none where it does not exist.
fn sources_below(path: &Path) -> Vec<String> {
    if let Ok(entries) = fs::read_dir(path) {
        let below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        return below.iter().flat_map(|path| sources_below(path)).collect();
    }
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    if is_source { fs::read_to_string(path).into_iter().collect() } else { Vec::new() }
}

/// The tests of a source that the default run runs: functions marked as tests and not as ignored, and those in the lists of
/// macros that make a test of each name (`on_every_database!` and its like, and the suites of the test kit).
fn tests_of(source: &str) -> BTreeSet<&str> {
    let mut tests = BTreeSet::new();
    let mut attributes = Vec::new();
    let mut in_list = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let has = |part: &str| attributes.iter().any(|attribute: &&str| attribute.contains(part));
        if (has("test]") || has("test(")) && !has("#[ignore") {
            tests.extend(function_of(line));
        }
        if !line.starts_with("//") {
            attributes.clear();
        }
        in_list |= (line.starts_with("on_") && line.contains("!("))
            || (line.starts_with("@cases") && line.ends_with(";"));
        if in_list {
            tests.extend(line.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
            in_list = !line.ends_with(");") && !line.starts_with('}');
        }
    }
    tests
}

fn function_of(line: &str) -> Option<&str> {
    line.split_once("fn ")?.1.split_once('(').map(|(name, _)| name)
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(Failure::while_trying(format!("read {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
on_every_database!(
    made_by_a_macro,
);
#[tokio::test(flavor = \"multi_thread\")]
/// Why.
async fn plain() {}
#[test]
#[ignore = \"a measurement\"]
fn left_out() {}
fn no_test() {}
on_pairs!(
    on_some_pairs:
        first on \"postgres\" with RabbitMq;
);
";

    fn flaws(shown_by: &str, open: &str) -> Vec<String> {
        let there = ["towpath::here", "towpath here::tests"];
        let sources = |place: &str| there.contains(&place).then(|| SOURCE.to_owned()).into_iter().collect();
        flaws_of_row(&Row { id: "H1", shown_by, open }, &sources)
    }

    #[test]
    fn the_table_of_this_repository_is_so() {
        run().unwrap();
    }

    #[test]
    fn there_are_57_requirements_and_9_promises() {
        let (promises, requirements) = IDS.split_last().unwrap();
        assert_eq!(requirements.iter().map(|(_, count)| count).sum::<usize>(), 57);
        assert_eq!(*promises, ('P', 9));
    }

    #[test]
    fn tests_that_run_are_found_and_others_are_told() {
        assert_eq!(flaws("`towpath::here plain`, `made_by_a_macro`, `on_some_pairs`", "–"), [""; 0]);
        assert_eq!(flaws("`towpath::here` and `towpath here::tests`", "–"), [""; 0]);
        for missing in ["left_out", "no_test", "unheard_of"] {
            assert_eq!(flaws(&format!("`towpath::here plain`, `{missing}`"), "–").len(), 1, "{missing}");
        }
        assert_eq!(flaws("`towpath::elsewhere plain`; `towpath::elsewhere`", "–").len(), 2);
    }

    #[test]
    fn a_row_without_a_test_says_what_is_open() {
        assert_eq!(flaws("–", "–").len(), 1);
        assert_eq!(flaws("–", "all of it"), [""; 0]);
    }

    #[test]
    fn every_id_has_one_row_and_its_place() {
        let ids = ids();
        let mut rows: Vec<Row<'_>> = ids.iter().map(|id| Row { id, shown_by: "", open: NOTHING }).collect();
        assert_eq!(flaws_of_ids(&rows), [""; 0]);
        rows.swap(3, 4);
        assert_eq!(flaws_of_ids(&rows), ["H5 stands where H4 belongs"]);
        let moved = rows.remove(3);
        assert_eq!(flaws_of_ids(&rows), ["H5 has 0 rows"]);
        rows.extend([Row { ..moved }, Row { id: "H5", shown_by: "", open: NOTHING }]);
        assert_eq!(flaws_of_ids(&rows), ["H5 has 2 rows"]);
    }

    #[test]
    fn rows_are_read_by_their_six_columns() {
        let text = "| id | what |\n|---|---|\n| H1 | a | `b` | c | d | – |\n| H2 | cut | wrongly |\ntext";
        let cut = Row { id: "H2", shown_by: "", open: NOTHING };
        assert_eq!(rows_of(text), [Row { id: "H1", shown_by: "`b`", open: NOTHING }, cut]);
    }
}

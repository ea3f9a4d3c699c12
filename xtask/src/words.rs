//! Proves that the library knows no application: their names are nowhere in its sources, outside of its tests.

use std::fs;
use std::path::Path;

use crate::cargo;
use crate::failure::Failure;

/// The sources of the library.
const SOURCES: &[&str] = &["crates/core/src", "crates/store/src", "crates/broker/src", "crates/towpath/src"];

/// Where applications are: each has a folder of its own there, and its name is that of the application.
const APPLICATIONS: &str = "apps";

/// Files that still name some. One that does not is refused here, so that the list only gets shorter.
const STILL_NAMED_IN: &[&str] = &[];

/// Checks this workspace; the failure lists every line that names an application.
pub(crate) fn run() -> Result<(), Failure> {
    let root = cargo::repository_root();
    let applications = applications(&root)?;
    let mut files = Vec::new();
    for folder in SOURCES {
        read_sources(&root, Path::new(folder), &mut files)?;
    }
    let violations = violations(&files, &applications, STILL_NAMED_IN);
    if violations.is_empty() {
        let named = STILL_NAMED_IN.len();
        eprintln!("xtask: words: of {} files of the library {named} name an application", files.len());
        return Ok(());
    }
    Err(Failure::new(format!("the library names applications:\n  {}", violations.join("\n  ")))
        .next_step("say it in words that fit every application, or move it into the one that it is about"))
}

/// A file of the library: where it is in the repository, and its text.
type Source = (String, String);

/// The words of an application's name.
type Name = Vec<String>;

/// The names of the applications that there are.
fn applications(root: &Path) -> Result<Vec<Name>, Failure> {
    let reading = || Failure::while_trying(format!("read {APPLICATIONS}"));
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(APPLICATIONS)).map_err(reading())? {
        let entry = entry.map_err(reading())?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(name_of(&entry.file_name().to_string_lossy()));
        }
    }
    // Without a name there would be nothing to look for, and nothing would be proved.
    if names.is_empty() || names.iter().any(Vec::is_empty) {
        return Err(Failure::new(format!("the folders of {APPLICATIONS} are no names of applications")));
    }
    Ok(names)
}

fn name_of(folder: &str) -> Name {
    words(folder).collect()
}

fn read_sources(root: &Path, folder: &Path, files: &mut Vec<Source>) -> Result<(), Failure> {
    let reading = || Failure::while_trying(format!("read {}", folder.display()));
    for entry in fs::read_dir(root.join(folder)).map_err(reading())? {
        let entry = entry.map_err(reading())?;
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            read_sources(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(entry.path()).map_err(reading())?;
            files.push((path.display().to_string(), text));
        }
    }
    Ok(())
}

/// The pure check. `excepted` are files that may name applications, and must.
fn violations(files: &[Source], applications: &[Name], excepted: &[&str]) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in files {
        if path.split('/').any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let named = naming_lines(text, applications);
        match excepted.contains(&path.as_str()) {
            false => violations.extend(named.iter().map(|(line, text)| format!("{path}:{line}: {text}"))),
            true if named.is_empty() => violations.push(format!(
                "{path} names none any more: take it off STILL_NAMED_IN in xtask/src/words.rs"
            )),
            true => {}
        }
    }
    let missing = excepted.iter().filter(|name| files.iter().all(|(path, _)| path != *name));
    violations.extend(missing.map(|name| format!("{name} is on STILL_NAMED_IN and does not exist")));
    violations
}

/// The lines outside of tests that name an application, with their numbers.
fn naming_lines<'t>(text: &'t str, applications: &[Name]) -> Vec<(usize, &'t str)> {
    let mut named = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        if is_for_tests_only(line) {
            skip_item(line, &mut lines);
        } else if names_one(line, applications) {
            named.push((number, line.trim()));
        }
    }
    named
}

fn is_for_tests_only(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,")
}

/// Passes by the item behind an attribute: to the line that closes it, which the formatter has put where the attribute is.
fn skip_item<'t>(attribute: &str, lines: &mut impl Iterator<Item = (usize, &'t str)>) {
    let indent = &attribute[..attribute.len() - attribute.trim_start().len()];
    let is_head = |line: &str| !line.trim_start().starts_with("#[");
    let Some((_, head)) = lines.find(|(_, line)| is_head(line)) else { return };
    if !head.ends_with([';', '}']) {
        let closes = |line: &str| line.strip_prefix(indent).is_some_and(|rest| rest.starts_with('}'));
        lines.find(|(_, line)| closes(line));
    }
}

/// The words of a line in lower case, also those inside of names: `MarketEnvelope`, `market_outbox` and `HIVE_STATES`.
fn words(line: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let letters: Vec<char> = line.chars().collect();
    for (place, letter) in letters.iter().enumerate() {
        let before = place.checked_sub(1).and_then(|place| letters.get(place));
        let is_next_lower = letters.get(place + 1).is_some_and(|next| next.is_lowercase());
        // `aB` begins a word at B, and so does `ABc`.
        let begins = letter.is_uppercase()
            && before.is_some_and(|before| before.is_lowercase() || (before.is_uppercase() && is_next_lower));
        if begins || !letter.is_alphabetic() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphabetic()) {
            word.extend(letter.to_lowercase());
        }
    }
    words.into_iter().filter(|word| !word.is_empty())
}

/// Whether a line has the name of an application, or of several of its kind.
fn names_one(line: &str, applications: &[Name]) -> bool {
    let words: Vec<String> = words(line).collect();
    let is_word = |word: &str, of_name: &str| {
        word.strip_prefix(of_name).is_some_and(|rest| rest.is_empty() || rest == "s")
    };
    let is_name = |found: &[String], name: &Name| found.iter().zip(name).all(|(word, of)| is_word(word, of));
    applications.iter().any(|name| words.windows(name.len()).any(|found| is_name(found, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applications() -> Vec<Name> {
        ["hive", "market", "genesis", "flower-shop"].map(name_of).into()
    }

    fn of(path: &str, text: &str) -> Vec<String> {
        violations(&[(path.to_owned(), text.to_owned())], &applications(), &[])
    }

    #[test]
    fn every_folder_of_an_application_is_a_name() {
        let found = super::applications(&cargo::repository_root()).unwrap();
        for name in ["hive", "market", "genesis"] {
            assert!(found.contains(&name_of(name)), "{name} is not in {found:?}");
        }
    }

    #[test]
    fn names_are_found_as_words_and_inside_of_identifiers() {
        for line in [
            "/// The market's (O4)",
            "/// Genesis: a rule",
            "pub fn market_outbox() {",
            "struct MarketEnvelope;",
            "use towpath_hive::Hive;",
            "const HIVE_STATES: u8 = 6;",
            "let x = ofHive;",
            "struct SQLMarket;",
            "\"Command.Hive.Service.Create\"",
            "// two markets",
            "let hive2 = 7;",
            "struct FlowerShop;",
            "the flower shops' own",
        ] {
            assert_eq!(of("crates/core/src/a.rs", line), [format!("crates/core/src/a.rs:1: {line}")]);
        }
        for line in
            ["pub archived: bool,", "struct Archive;", "ARCHIVED", "a supermarket", "marketing", "a flower"]
        {
            assert_eq!(of("crates/core/src/a.rs", line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn tests_may_name_them_and_what_stands_around_them_may_not() {
        let text = "\
use a::hive;
#[cfg(test)]
use b::hive;
#[cfg(all(test, feature = \"sqlite\"))]
#[allow(dead_code)]
mod tests {
    fn hive() {
    }
}
fn market() {}
impl A {
    #[cfg(test)]
    fn genesis() {
        if hive {
        }
    }
    fn hive() {}
}
#[cfg(not(test))]
fn hive() {}
";
        let lines: Vec<usize> =
            naming_lines(text, &applications()).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 10, 17, 20]);
        for path in ["crates/core/src/machine/tests.rs", "crates/core/src/tests/hive.rs"] {
            assert_eq!(of(path, "hive"), Vec::<String>::new());
        }
        assert_eq!(of("crates/core/src/tests_of.rs", "hive").len(), 1);
    }

    #[test]
    fn an_exception_that_is_not_needed_is_refused() {
        let file = |text: &str| vec![("a.rs".to_owned(), text.to_owned())];
        let violations = |text: &str, excepted: &str| violations(&file(text), &applications(), &[excepted]);
        assert_eq!(violations("hive", "a.rs"), Vec::<String>::new());
        assert!(violations("bee", "a.rs")[0].contains("take it off"));
        assert!(violations("bee", "b.rs")[0].contains("does not exist"));
    }
}

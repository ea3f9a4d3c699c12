//! The documents say what the code says.

#![allow(clippy::unwrap_used, reason = "a panic is a test's verdict")]

use std::collections::BTreeSet;
use std::path::Path;

/// The codes in the source of the error types, and the sections of docs/errors.md, are the same.
#[test]
fn every_error_code_has_its_section() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let mut codes = BTreeSet::new();
    for path in [
        "crates/core/src/ports/store/error.rs",
        "crates/core/src/ports/broker.rs",
        "crates/core/src/format.rs",
        "crates/core/src/decider.rs",
        "crates/towpath/src/alerts/rules.rs",
        "crates/towpath/src/alerts/silences.rs",
        "crates/towpath/src/alerts/testing.rs",
        "crates/towpath/src/alerts/webhook.rs",
        "crates/towpath/src/bus.rs",
        "crates/towpath/src/consumer/letters.rs",
        "crates/towpath/src/checker/mod.rs",
        "crates/towpath/src/config.rs",
        "crates/towpath/src/follow/mod.rs",
        "crates/towpath/src/tracker.rs",
        "crates/towpath/src/start_error.rs",
        "crates/towpath/src/tasks/elsewhere.rs",
        "apps/genesis/src/session/mod.rs",
        "apps/hive/src/gateway/mod.rs",
        "apps/market/src/error.rs",
    ] {
        let source = read(path);
        // `code` is a match whose arms end in the code.
        for body in source.split("fn code(&self) -> &'static str {").skip(1) {
            let body = body.split("\n    }").next().unwrap();
            codes.extend(body.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    // Those of the server's own stand behind the status of its problems.
    let mut http = String::new();
    read_sources(&root.join("crates/server/src/http"), &mut http, &|name| !name.ends_with("tests.rs"));
    read_sources(&root.join("crates/server/src/apps"), &mut http, &|name| !name.ends_with("tests.rs"));
    let of_problems: BTreeSet<String> = http.split("StatusCode::").skip(1).filter_map(code_behind).collect();
    for code in ["malformed", "not-found", "too-large"] {
        assert!(of_problems.contains(code), "the source was not read as it is written: {of_problems:?}");
    }
    // Those of the observer are in the log and in its standing, those of whole changes with their deliveries.
    for (code, file) in [
        ("process-not-started", "process/mod.rs"),
        ("not-in-the-log", "tx.rs"),
        ("change-too-large", "tx.rs"),
        ("observer-timeout", "observer.rs"),
        ("observer-panicked", "observer/looking.rs"),
        ("observer-platform-down", "observer/looking.rs"),
    ] {
        assert!(read(&format!("crates/towpath/src/{file}")).contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    for code in ["read-model", "invalid-service-spec"] {
        assert!(read("crates/server/src/apps/hive/routes.rs").contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    for (code, file) in [
        ("service-spec-too-large", "service/asked.rs"),
        ("convergence-deadline", "service/mod.rs"),
        ("spec-version-mismatch", "service/mod.rs"),
        ("deletion-deadline", "targets.rs"),
        ("drift-corrected", "targets.rs"),
        ("drift-again", "targets.rs"),
    ] {
        assert!(read(&format!("apps/hive/src/{file}")).contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    // Those of writers are kept with the task.
    for (code, file) in [
        ("genesis-draft", "author.rs"),
        ("genesis-model-answer", "openai.rs"),
        ("genesis-model-busy", "openai.rs"),
        ("genesis-model-refused", "openai.rs"),
        ("genesis-model-unavailable", "openai.rs"),
    ] {
        assert!(read(&format!("apps/genesis/src/{file}")).contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    // Those of webhooks are kept with the task.
    for code in ["webhook-gone", "webhook-refused", "webhook-unknown", "webhook-unreachable"] {
        assert!(read("crates/towpath/src/alerts/webhook.rs").contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    // Those of projections are kept with the delivery.
    for (code, file) in
        [("fact-out-of-order", "engine.rs"), ("projection-newer", "mod.rs"), ("row-not-asked-for", "rows.rs")]
    {
        let source = read(&format!("crates/towpath/src/projection/{file}"));
        assert!(source.contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    codes.extend(of_problems);
    // The last words of a stream are no answers, and have no status.
    for code in ["reader-too-slow", "token-expired"] {
        assert!(http.contains(&format!("\"{code}\"")), "{code}");
        codes.insert(code.to_owned());
    }
    assert!(codes.len() > 25, "the source was not read as it is written: {codes:?}");
    let sections: BTreeSet<String> = read("docs/errors.md")
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .filter(|title| !title.contains(' '))
        .map(str::to_owned)
        .collect();
    assert_eq!(codes, sections);
}

/// `BAD_REQUEST, "malformed"` and `NOT_FOUND => ("not-found"` have a code.
fn code_behind(status: &str) -> Option<String> {
    let rest = status.trim_start_matches(|letter: char| letter.is_ascii_uppercase() || letter == '_');
    let rest = rest.strip_prefix(" => (").or_else(|| rest.strip_prefix(','))?;
    let code = rest.trim_start().strip_prefix('"')?.split('"').next()?;
    let is_code = code.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
    is_code.then(|| code.to_owned())
}

/// Every test that docs/conformance.md names exists.
#[test]
fn every_test_that_shows_a_requirement_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    for folder in ["apps", "crates", "examples", "xtask"] {
        read_sources(&root.join(folder), &mut sources, &|_| true);
    }
    let table = std::fs::read_to_string(root.join("docs/conformance.md")).unwrap();
    let mut named = 0;
    for name in table.split('`').skip(1).step_by(2).flat_map(|quoted| quoted.split([' ', ':'])) {
        // Binaries of the test kit, not tests.
        let is_binary = name.starts_with("the_suite_can_");
        if name.matches('_').count() > 2 && !is_binary {
            named += 1;
            assert!(
                sources.contains(&format!("fn {name}(")),
                "docs/conformance.md names {name}, which does not exist"
            );
        }
    }
    assert!(named > 30, "the table was not read as it is written");
}

fn read_sources(folder: &Path, sources: &mut String, wanted: &dyn Fn(&str) -> bool) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            read_sources(&path, sources, wanted);
        } else if path.extension().is_some_and(|extension| extension == "rs") && wanted(&name) {
            sources.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

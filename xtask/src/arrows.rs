//! Proves that dependencies between our crates only point down, and that the core does no I/O.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cargo;
use crate::failure::Failure;
use crate::json::Json;

/// One crate of ours and what it may use of ours.
struct Layer {
    name: &'static str,
    may_use: &'static [&'static str],
    /// Whether its tests may use the testkit. The core's must not: the testkit stands on the core, and
    /// a test would see two copies of it.
    tests_may_use_testkit: bool,
}

/// The allowed arrows. A crate may only use crates that stand above it in this list, so the list itself
/// cannot hold a cycle (`the_table_only_points_up_the_list` guards that).
const LAYERS: &[Layer] = &[
    Layer { name: "xtask", may_use: &[], tests_may_use_testkit: false },
    Layer { name: MACROS, may_use: &[], tests_may_use_testkit: false },
    Layer { name: CORE, may_use: &[MACROS], tests_may_use_testkit: false },
    Layer { name: TESTKIT, may_use: &[CORE], tests_may_use_testkit: false },
    Layer { name: "towpath-store", may_use: &[MACROS, CORE], tests_may_use_testkit: true },
    Layer { name: "towpath-broker", may_use: &[CORE], tests_may_use_testkit: true },
    Layer {
        name: "towpath",
        may_use: &[CORE, "towpath-store", "towpath-broker"],
        tests_may_use_testkit: true,
    },
    Layer { name: "towpath-bench", may_use: &["towpath"], tests_may_use_testkit: true },
    Layer { name: SERVER, may_use: &["towpath", "towpath-bench"], tests_may_use_testkit: true },
    Layer { name: "towpath-examples", may_use: &["towpath"], tests_may_use_testkit: true },
];

/// An application: whatever has a folder in `apps`. It needs no line in the table. Only the server may use it.
const APPLICATION: Layer =
    Layer { name: "an application", may_use: &["towpath"], tests_may_use_testkit: true };

const SERVER: &str = "towpath-server";
const MACROS: &str = "towpath-macros";
const CORE: &str = "towpath-core";
const TESTKIT: &str = "towpath-testkit";

/// Crates that do I/O. The core must not reach them, also not through another crate; a name stands for
/// its family (`sqlx` for `sqlx-core`).
const INPUT_AND_OUTPUT: &[&str] = &["tokio", "sqlx", "axum", "lapin", "rdkafka", "kube"];

/// Checks this workspace; the failure lists every arrow that must not be there.
pub(crate) fn run() -> Result<(), Failure> {
    // `cargo metadata` lists the dependencies as declared: of every platform and every optional feature,
    // with renames resolved and without a network. `cargo tree` would only show what one selection uses.
    let metadata = cargo::output_of(cargo::cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let members = members_of(&Json::parse(&metadata)?)?;
    // Only the resolved tree knows what the core's dependencies bring along.
    let tree = cargo::output_of(cargo::cargo(&[
        "tree",
        "--package",
        CORE,
        "--edges",
        "normal",
        "--all-features",
        "--prefix",
        "none",
    ]))?;

    let mut violations = violations_of_the_table(&members);
    violations.extend(input_and_output_in_the_core(&members, &crates_of_tree(&tree)));
    if violations.is_empty() {
        eprintln!("xtask: arrows: {} crates, every arrow points down", members.len());
        return Ok(());
    }
    Err(Failure::new(format!("arrows that must not be there:\n  {}", violations.join("\n  ")))
        .next_step("remove the dependency; the allowed arrows are the table in xtask/src/arrows.rs"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// In the product: normal and build dependencies.
    Product,
    /// Only in tests and examples: dev-dependencies.
    Tests,
}

#[derive(Debug, Clone)]
struct Dependency {
    name: String,
    used_in: Use,
    /// Whether it is a folder of this repository and not a published crate.
    is_local: bool,
}

#[derive(Debug, Clone)]
struct Member {
    name: String,
    /// Whether its folder is one of those for applications.
    is_application: bool,
    dependencies: Vec<Dependency>,
}

impl Member {
    fn layer(&self) -> Option<&'static Layer> {
        match self.is_application {
            true => Some(&APPLICATION),
            false => LAYERS.iter().find(|layer| layer.name == self.name),
        }
    }
}

/// The pure check of who uses whom.
fn violations_of_the_table(members: &[Member]) -> Vec<String> {
    let our_names: BTreeSet<&str> = LAYERS
        .iter()
        .map(|layer| layer.name)
        .chain(members.iter().map(|member| member.name.as_str()))
        .collect();
    let is_application = |name: &str| members.iter().any(|it| it.is_application && it.name == name);
    let mut violations = Vec::new();
    for member in members {
        let Some(layer) = member.layer() else {
            violations.push(format!(
                "{} is a member of the workspace but not in the table: add it to LAYERS in xtask/src/arrows.rs",
                member.name
            ));
            continue;
        };
        for dependency in &member.dependencies {
            let is_ours = dependency.is_local || our_names.contains(dependency.name.as_str());
            if !is_ours || layer.may_use.contains(&dependency.name.as_str()) {
                continue;
            }
            if member.name == SERVER && is_application(&dependency.name) {
                continue;
            }
            let is_testkit_in_tests = dependency.used_in == Use::Tests && dependency.name == TESTKIT;
            if is_testkit_in_tests && layer.tests_may_use_testkit {
                continue;
            }
            let section = match dependency.used_in {
                Use::Product => "",
                Use::Tests => " in its tests",
            };
            let allowed = if layer.may_use.is_empty() {
                "none of our crates".to_owned()
            } else {
                layer.may_use.join(", ")
            };
            violations.push(format!(
                "{} -> {}{section}: {} may use {allowed}",
                member.name, dependency.name, member.name
            ));
        }
    }
    violations
}

/// The pure check of what the core reaches: by its own declaration, on whatever platform, or through others.
fn input_and_output_in_the_core(members: &[Member], reached: &[String]) -> Vec<String> {
    let declared = members
        .iter()
        .filter(|member| member.name == CORE)
        .flat_map(|core| &core.dependencies)
        .filter(|dependency| dependency.used_in == Use::Product)
        .map(|dependency| dependency.name.as_str());
    let offending: BTreeSet<&str> = declared
        .chain(reached.iter().map(String::as_str))
        .filter(|name| does_input_or_output(name))
        .collect();
    offending
        .into_iter()
        .map(|name| format!("{CORE} reaches {name}: the core decides on values and does no I/O"))
        .collect()
}

fn does_input_or_output(name: &str) -> bool {
    INPUT_AND_OUTPUT.iter().any(|family| {
        name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
    })
}

fn members_of(metadata: &Json) -> Result<Vec<Member>, Failure> {
    let packages = metadata.get("packages").map(Json::items).unwrap_or_default();
    if packages.is_empty() {
        return Err(Failure::new("cargo metadata lists no packages"));
    }
    let root = metadata.get("workspace_root").and_then(Json::as_text).unwrap_or_default();
    let applications = Path::new(root).join("apps");
    packages
        .iter()
        .map(|package| {
            let dependencies = package.get("dependencies").map(Json::items).unwrap_or_default();
            let manifest = package.get("manifest_path").and_then(Json::as_text).unwrap_or_default();
            let folder = Path::new(manifest).parent().and_then(Path::parent);
            Ok(Member {
                name: name_of(package)?,
                is_application: folder.is_some_and(|folder| folder == applications),
                dependencies: dependencies.iter().map(dependency_of).collect::<Result<_, _>>()?,
            })
        })
        .collect()
}

fn dependency_of(dependency: &Json) -> Result<Dependency, Failure> {
    let used_in = match dependency.get("kind").and_then(Json::as_text) {
        Some("dev") => Use::Tests,
        _ => Use::Product,
    };
    Ok(Dependency { name: name_of(dependency)?, used_in, is_local: dependency.get("path").is_some() })
}

fn name_of(value: &Json) -> Result<String, Failure> {
    value
        .get("name")
        .and_then(Json::as_text)
        .map(str::to_owned)
        .ok_or_else(|| Failure::new("cargo metadata lists a package or dependency without a name"))
}

/// The crate names of `cargo tree --prefix none`: the first word of each line.
fn crates_of_tree(tree: &str) -> Vec<String> {
    tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, product: &[&str], tests: &[&str]) -> Member {
        let dependency =
            |name: &&str, used_in| Dependency { name: (*name).to_owned(), used_in, is_local: false };
        let dependencies = product
            .iter()
            .map(|name| dependency(name, Use::Product))
            .chain(tests.iter().map(|name| dependency(name, Use::Tests)))
            .collect();
        Member { name: name.to_owned(), is_application: false, dependencies }
    }

    fn application(name: &str, product: &[&str], tests: &[&str]) -> Member {
        Member { is_application: true, ..member(name, product, tests) }
    }

    #[test]
    fn the_table_only_points_up_the_list() {
        for (position, layer) in LAYERS.iter().enumerate() {
            for used in layer.may_use {
                let above = LAYERS.iter().take(position).any(|earlier| earlier.name == *used);
                assert!(above, "{} may use {used}, which does not stand above it", layer.name);
            }
        }
    }

    #[test]
    fn a_workspace_that_follows_the_table_has_no_violations() {
        let members = [
            member("xtask", &[], &[]),
            member("towpath-core", &["serde"], &["proptest"]),
            member("towpath-testkit", &["towpath-core", "tokio"], &[]),
            member("towpath-store", &["towpath-core", "sqlx"], &["towpath-testkit", "tempfile"]),
            member("towpath-broker", &["towpath-core"], &["towpath-testkit"]),
            member("towpath", &["towpath-core", "towpath-store", "towpath-broker"], &["towpath-testkit"]),
            application("towpath-hive", &["towpath"], &["towpath-testkit"]),
            member("towpath-server", &["towpath", "towpath-hive", "axum"], &["towpath-testkit"]),
            member("towpath-examples", &["towpath"], &["towpath-testkit"]),
        ];
        assert_eq!(violations_of_the_table(&members), Vec::<String>::new());
    }

    #[test]
    fn arrows_that_point_up_or_sideways_are_found() {
        for (from, to) in [
            ("towpath-core", "towpath-store"),
            ("towpath-core", "towpath-testkit"),
            ("towpath-store", "towpath-broker"),
            ("towpath-broker", "towpath-store"),
            ("towpath-store", "towpath"),
            ("towpath-testkit", "towpath-store"),
            ("towpath", "towpath-server"),
            ("towpath-server", "towpath-store"),
            ("towpath-examples", "towpath-core"),
            ("xtask", "towpath-core"),
        ] {
            let violations = violations_of_the_table(&[member(from, &[to], &[])]);
            assert_eq!(violations.len(), 1, "{from} -> {to}");
            assert!(violations[0].starts_with(&format!("{from} -> {to}:")), "{violations:?}");
        }
    }

    #[test]
    fn an_application_uses_the_library_alone_and_only_the_server_uses_it() {
        let (hive, market) = (application("towpath-hive", &["towpath"], &[]), "towpath-market");
        for used in ["towpath-core", "towpath-store", "towpath-server", "towpath-hive"] {
            let violations = violations_of_the_table(&[application(market, &[used], &[]), hive.clone()]);
            assert_eq!(violations.len(), 1, "{used}");
            assert!(violations[0].starts_with(&format!("{market} -> {used}:")), "{violations:?}");
        }
        for user in ["towpath", "towpath-bench", "towpath-examples"] {
            let violations = violations_of_the_table(&[member(user, &["towpath-hive"], &[]), hive.clone()]);
            assert_eq!(violations.len(), 1, "{user}");
        }
        // A crate of this name that is no application is none of the server's.
        let server = member(SERVER, &["towpath-hive"], &[]);
        assert_eq!(violations_of_the_table(&[server.clone(), hive]).len(), 0);
        assert_eq!(violations_of_the_table(&[server, member("towpath-hive", &[], &[])]).len(), 2);
    }

    #[test]
    fn the_testkit_is_for_tests_only_and_not_for_those_of_the_core() {
        let in_the_product = violations_of_the_table(&[member("towpath-store", &["towpath-testkit"], &[])]);
        assert_eq!(in_the_product.len(), 1);
        let in_the_core = violations_of_the_table(&[member("towpath-core", &[], &["towpath-testkit"])]);
        assert_eq!(in_the_core.len(), 1);
        assert!(in_the_core[0].contains("in its tests"), "{in_the_core:?}");
        let upwards_in_tests = violations_of_the_table(&[member("towpath-store", &[], &["towpath"])]);
        assert_eq!(upwards_in_tests.len(), 1);
    }

    #[test]
    fn a_member_that_is_not_in_the_table_is_told_where_to_go() {
        let violations = violations_of_the_table(&[member("towpath-novelty", &[], &[])]);
        assert_eq!(violations.len(), 1);
        assert!(violations[0].contains("add it to LAYERS"), "{violations:?}");
    }

    #[test]
    fn a_local_crate_outside_the_workspace_is_ours_too() {
        let mut store = member("towpath-store", &["hidden"], &[]);
        assert_eq!(violations_of_the_table(std::slice::from_ref(&store)).len(), 0);
        store.dependencies[0].is_local = true;
        assert_eq!(violations_of_the_table(&[store]).len(), 1);
    }

    #[test]
    fn input_and_output_in_the_core_is_found_directly_and_through_others() {
        let direct = [member("towpath-core", &["tokio"], &[])];
        assert_eq!(input_and_output_in_the_core(&direct, &[]).len(), 1);
        let clean = [member("towpath-core", &["serde"], &["tokio"])];
        assert_eq!(input_and_output_in_the_core(&clean, &["serde".to_owned()]).len(), 0);
        let through_others = ["serde", "sqlx-core", "kube"].map(str::to_owned);
        assert_eq!(input_and_output_in_the_core(&clean, &through_others).len(), 2);
        // Other crates may do I/O, and a name that merely begins alike is another crate.
        let elsewhere = [member("towpath-store", &["tokio"], &[])];
        assert_eq!(input_and_output_in_the_core(&elsewhere, &["kubernetes".to_owned()]).len(), 0);
    }

    #[test]
    fn metadata_is_read_with_kinds_renames_and_paths() {
        let metadata = Json::parse(
            r#"{"workspace_root": "/w", "packages": [
                {"name": "towpath-hive", "manifest_path": "/w/apps/hive/Cargo.toml", "dependencies": []},
                {"name": "towpath-store", "manifest_path": "/w/crates/store/Cargo.toml", "dependencies": [
                {"name": "towpath-core", "kind": null, "rename": "heart", "path": "/x"},
                {"name": "towpath-testkit", "kind": "dev", "path": "/y"},
                {"name": "cc", "kind": "build", "source": "registry"}]}]}"#,
        )
        .unwrap();
        let members = members_of(&metadata).unwrap();
        let named = |member: &Member| (member.name.clone(), member.is_application);
        let expected = [("towpath-hive".to_owned(), true), ("towpath-store".to_owned(), false)];
        assert_eq!(members.iter().map(named).collect::<Vec<_>>(), expected);
        let read: Vec<_> = members[1]
            .dependencies
            .iter()
            .map(|dependency| (dependency.name.as_str(), dependency.used_in, dependency.is_local))
            .collect();
        assert_eq!(
            read,
            [
                ("towpath-core", Use::Product, true),
                ("towpath-testkit", Use::Tests, true),
                ("cc", Use::Product, false)
            ]
        );
    }

    #[test]
    fn tree_lines_give_crate_names() {
        let tree = "towpath-core v0.1.0 (/x)\nserde v1.0.229 (*)\n\nasync-trait v0.1.92 (proc-macro)\n";
        assert_eq!(crates_of_tree(tree), ["towpath-core", "serde", "async-trait"]);
    }
}

//! The store contract on SQLite.

mod fixtures;

towpath_testkit::store_conformance!(fixtures::Fresh::sqlite().await);

/// The process that the kill case starts and kills; on its own it does nothing.
#[test]
#[ignore = "not a test: the process that others start"]
fn kill_child() {
    towpath_testkit::store::kill::child_main(
        |url, probe| async move { fixtures::connect(&url, probe).await },
    );
}

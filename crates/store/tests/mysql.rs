//! The store contract on MariaDB (and MySQL).

mod fixtures;

towpath_testkit::store_conformance!(fixtures::Fresh::mysql().await);

/// The process that the kill case starts and kills; on its own it does nothing.
#[test]
#[ignore = "not a test: the process that others start"]
fn kill_child() {
    towpath_testkit::store::kill::child_main(
        |url, probe| async move { fixtures::connect(&url, probe).await },
    );
}

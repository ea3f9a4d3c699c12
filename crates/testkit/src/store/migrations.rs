//! Migrating: once, whoever comes first, and never backwards.

use std::collections::BTreeSet;
use std::sync::Arc;

use towpath_core::ports::probe::NoProbe;
use towpath_core::ports::store::StoreError;

use super::StoreFixture;
use super::acts::assert_refused;
use super::waiting::all_at_once;

/// Migrating twice is migrating once.
pub async fn migrating_twice_changes_nothing(fixture: &impl StoreFixture) {
    let store = fixture.connect(Arc::new(NoProbe)).await;
    assert!(
        !store.migrate().await.expect("the first migration").is_empty(),
        "an empty database needs migrations"
    );
    assert!(store.migrate().await.expect("the second migration").is_empty(), "nothing is left to apply");
    store.ready().await.expect("a migrated database is ready");
}

/// Four instances that start at once on an empty database all succeed, and every version is applied once.
pub async fn four_instances_migrate_at_once(fixture: &impl StoreFixture) {
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(fixture.connect(Arc::new(NoProbe)).await);
    }
    let migrations =
        stores.iter().cloned().map(|store| async move { store.migrate().await.expect("migrate") });
    let applied: Vec<u32> = all_at_once(migrations).await.concat();
    let versions: BTreeSet<u32> = applied.iter().copied().collect();
    assert!(!applied.is_empty(), "somebody must have migrated");
    assert_eq!(applied.len(), versions.len(), "a version was applied twice: {applied:?}");
    for store in stores {
        store.ready().await.expect("ready for every instance");
        assert!(store.migrate().await.expect("migrate again").is_empty(), "nothing is left to apply");
    }
}

/// A database from a newer version is refused, and left alone.
pub async fn a_newer_schema_is_refused(fixture: &impl StoreFixture) {
    fixture.store().await;
    fixture.pretend_newer_schema().await;
    let store = fixture.connect(Arc::new(NoProbe)).await;
    for _ in 0..2 {
        let migrated = store.migrate().await.map(drop);
        for answer in [migrated, store.ready().await] {
            assert_refused!(answer, StoreError::NewerSchema { found, known } if found > known, "a newer database");
        }
    }
}

/// A database without tables says so, and is ready once it has them.
pub async fn an_unmigrated_database_is_not_ready(fixture: &impl StoreFixture) {
    let store = fixture.connect(Arc::new(NoProbe)).await;
    assert_refused!(
        store.ready().await,
        StoreError::NotMigrated { found: 0, needed } if needed > 0,
        "an empty database"
    );
    store.migrate().await.expect("migrate");
    store.ready().await.expect("a migrated database is ready");
}

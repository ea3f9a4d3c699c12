//! What the simulated cluster does, and that it does the same again.

use super::*;
use crate::gateway::ConditionStatus;

fn resource() -> ResourceName {
    ResourceName::new("shop", "cart")
}

fn apply_of(image: &str) -> Apply {
    let spec = ServiceSpec { image: image.to_owned(), ..ServiceSpec::default() };
    let spec_hash = spec.hash();
    Apply { service_id: "cart".to_owned(), resource: resource(), spec, spec_hash, force: false }
}

fn at_once() -> SimulatedSettings {
    let fates = Fates {
        settles_after: Duration::ZERO,
        settles_within: Duration::ZERO,
        deleted_after: Duration::ZERO,
        ..Fates::default()
    };
    SimulatedSettings { fates, ..SimulatedSettings::default() }
}

#[tokio::test]
async fn what_is_applied_becomes_ready_and_what_is_deleted_is_gone() {
    let cluster = SimulatedCluster::new(at_once()).unwrap();
    assert_eq!(cluster.observe(&resource()).await, Ok(Observed::NotFound));
    let applied = cluster.apply(&apply_of("a")).await.unwrap();
    assert_eq!(applied, Applied { generation: 1, changed: true });
    let again = cluster.apply(&apply_of("a")).await.unwrap();
    assert_eq!(again, Applied { generation: 1, changed: false }, "it carries that hash already");
    let Observed::Found(found) = cluster.observe(&resource()).await.unwrap() else { panic!("it is there") };
    assert_eq!(found.readiness(), ConditionStatus::True);
    assert_eq!(found.spec_hash, Some(apply_of("a").spec_hash));
    assert_eq!(found.traffic[0].revision, found.latest_ready_revision.clone().unwrap());
    assert_eq!(cluster.delete("cart", &resource()).await, Ok(Deletion::Accepted));
    assert_eq!(cluster.observe(&resource()).await, Ok(Observed::NotFound));
    assert_eq!(cluster.delete("cart", &resource()).await, Ok(Deletion::NotFound));
}

#[tokio::test]
async fn the_same_seed_gives_the_same_fate() {
    let fates = Fates { failing_percent: 50, refused_percent: 30, ..at_once().fates };
    let mut outcomes = BTreeMap::new();
    for seed in [7, 7, 8] {
        let settings = SimulatedSettings { seed, fates: fates.clone(), ..at_once() };
        let cluster = SimulatedCluster::new(settings).unwrap();
        let mut seen = Vec::new();
        for number in 0..40 {
            let resource = ResourceName::new("shop", format!("cart-{number}"));
            let refused =
                cluster.apply(&Apply { resource: resource.clone(), ..apply_of("a") }).await.is_err();
            let ready = match cluster.look(&resource).unwrap() {
                Observed::Found(found) => Some(found.readiness() == ConditionStatus::True),
                Observed::NotFound => None,
            };
            seen.push((refused, ready));
        }
        assert!(seen.contains(&(true, None)) && seen.contains(&(false, Some(false))), "{seen:?}");
        outcomes.entry(seed).or_insert_with(Vec::new).push(seen);
    }
    assert_eq!(outcomes[&7][0], outcomes[&7][1]);
    assert_ne!(outcomes[&7][0], outcomes[&8][0]);
}

#[tokio::test]
async fn a_file_outlives_its_process_and_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.jsonl");
    let settings = || SimulatedSettings { file: Some(file.clone()), ..at_once() };
    let (one, other) =
        (SimulatedCluster::new(settings()).unwrap(), SimulatedCluster::new(settings()).unwrap());
    one.apply(&apply_of("a")).await.unwrap();
    assert_eq!(other.look(&resource()).unwrap(), one.look(&resource()).unwrap());
    other.apply(&apply_of("b")).await.unwrap();
    // Half a line, in the middle of a character: its writer was killed.
    let mut half = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    std::io::Write::write_all(&mut half, b"{\"change\":\"dele\xc3").unwrap();
    let later = SimulatedCluster::new(settings()).unwrap();
    assert_eq!(later.look(&resource()).unwrap(), one.look(&resource()).unwrap());
    one.delete("cart", &resource()).await.unwrap();
    for cluster in [&one, &other, &later] {
        assert_eq!(cluster.look(&resource()).unwrap(), Observed::NotFound);
    }
}

#[tokio::test]
async fn what_a_hand_has_changed_is_only_taken_over_by_force() {
    let cluster = SimulatedCluster::new(at_once()).unwrap();
    cluster.apply(&apply_of("a")).await.unwrap();
    let by_hand = ServiceSpec { image: "hand".to_owned(), ..ServiceSpec::default() };
    cluster.edit_by_hand(&resource(), by_hand.clone()).unwrap();
    let Observed::Found(found) = cluster.look(&resource()).unwrap() else { panic!("it is there") };
    assert_eq!(found.spec_hash, Some(by_hand.hash()));
    let refused = cluster.apply(&apply_of("b")).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_passing()), ("gateway-conflict", false));
    cluster.apply(&Apply { force: true, ..apply_of("b") }).await.unwrap();
    // Each revision has the hash of what it was made of.
    let Observed::Found(found) = cluster.look(&resource()).unwrap() else { panic!("it is there") };
    let hashes: Vec<_> = found.revisions.into_iter().filter_map(|revision| revision.spec_hash).collect();
    assert_eq!(hashes, [apply_of("a").spec_hash, by_hand.hash(), apply_of("b").spec_hash]);
    cluster.delete_by_hand(&resource()).unwrap();
    assert_eq!(cluster.look(&resource()).unwrap(), Observed::NotFound);
}

#[tokio::test]
async fn what_belongs_to_another_service_is_left_alone() {
    let cluster = SimulatedCluster::new(at_once()).unwrap();
    cluster.apply(&apply_of("a")).await.unwrap();
    let other = Apply { service_id: "other".to_owned(), force: true, ..apply_of("b") };
    assert_eq!(cluster.apply(&other).await.unwrap_err().code(), "gateway-conflict");
    assert_eq!(cluster.delete("other", &resource()).await, Ok(Deletion::NotFound));
    let Observed::Found(found) = cluster.look(&resource()).unwrap() else { panic!("it is there") };
    assert_eq!((found.service_id.as_deref(), found.deleting), (Some("cart"), false));
}

#[tokio::test]
async fn watchers_are_told_when_a_resource_settles() {
    let cluster = SimulatedCluster::new(SimulatedSettings {
        fates: Fates {
            settles_after: Duration::from_millis(20),
            settles_within: Duration::from_millis(20),
            ..at_once().fates
        },
        ..at_once()
    })
    .unwrap();
    let mut watch = cluster.watch().await.unwrap().unwrap();
    cluster.apply(&apply_of("a")).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            let name = watch.next().await.unwrap();
            if let Observed::Found(found) = cluster.look(&name).unwrap()
                && found.readiness() == ConditionStatus::True
            {
                return name;
            }
        }
    });
    assert_eq!(told.await.unwrap(), resource());
}

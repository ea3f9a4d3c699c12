//! Business statuses come from the tenant's dictionary (S1, S7).

use towpath_core::ids::{AggregateKey, TenantId};
use towpath_core::ports::store::{InspectedStore, StoreError};

use super::StoreFixture;
use super::acts::{append, assert_refused};
use super::audit::{Picture, Scope};
use super::facts::{OrderFacts, context, moment, new_order};

/// A value of the tenant's dictionary is stored; one that is unknown, or known to another tenant only, is refused.
pub async fn a_status_comes_from_the_tenants_dictionary(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (ours, theirs) = (tenant("ours"), tenant("theirs"));
    let order = order_of(&*store, &ours).await;
    let scope = Scope { aggregates: [order.clone()].into(), ..Scope::new() };
    store.add_status_value(&ours, "on hold").await.expect("add");
    store.add_status_value(&ours, "on hold").await.expect("adding it again changes nothing");
    store.add_status_value(&theirs, "lost").await.expect("add");
    let before = Picture::read(&*store, &scope).await;

    for unknown in ["lost", "unheard", "On Hold", ""] {
        match store.set_status(&order, unknown, None, moment(5)).await {
            Err(StoreError::UnknownStatus { tenant, value }) => {
                assert_eq!((tenant.as_str(), value.as_str()), (ours.as_str(), unknown));
            }
            other => panic!("{unknown:?}: expected UnknownStatus, got {other:?}"),
        }
    }
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "an unknown status");

    store.set_status(&order, "on hold", Some("customer-asked"), moment(6)).await.expect("a known status");
    assert_eq!(status(&*store, &order).await.as_deref(), Some("on hold"));
    let other = order_of(&*store, &theirs).await;
    store.set_status(&other, "lost", None, moment(6)).await.expect("known to its own tenant");
    assert_eq!(status(&*store, &other).await.as_deref(), Some("lost"));
}

/// A status is beside the state: it changes no version, writes no event, and a later event leaves it alone.
pub async fn a_status_is_kept_apart_from_the_state(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ours = tenant("ours");
    let order = order_of(&*store, &ours).await;
    store.add_status_value(&ours, "vip").await.expect("add");
    store.set_status(&order, "vip", Some("loyal"), moment(6)).await.expect("set");
    let row = store.load(&order, None).await.expect("load").aggregate.expect("it exists");
    assert_eq!((row.version, row.state.as_deref()), (1, Some("placed")));
    let mut facts = OrderFacts::about(&order, 1).paid().append();
    facts.context.tenant_id = Some(ours);
    append(&*store, &facts).await;
    let row = store.load(&order, None).await.expect("load").aggregate.expect("it exists");
    assert_eq!((row.version, row.state.as_deref(), row.status.as_deref()), (2, Some("paid"), Some("vip")));
}

/// What does not exist has no status.
pub async fn a_missing_aggregate_has_no_status(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    store.add_status_value(&tenant("ours"), "vip").await.expect("add");
    let answer = store.set_status(&new_order(), "vip", None, moment(1)).await;
    assert_refused!(answer, StoreError::Missing { .. }, "a missing aggregate");
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).expect("a valid tenant id")
}

async fn order_of(store: &dyn InspectedStore, tenant: &TenantId) -> AggregateKey {
    let mut context = context(moment(1));
    context.tenant_id = Some(tenant.clone());
    let facts = OrderFacts::of_new_order().placed().in_context(context).append();
    append(store, &facts).await;
    facts.aggregate
}

async fn status(store: &dyn InspectedStore, order: &AggregateKey) -> Option<String> {
    store.load(order, None).await.expect("load").aggregate.and_then(|row| row.status)
}

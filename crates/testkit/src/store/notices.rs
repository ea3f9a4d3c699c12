//! Notices between processes, where the database carries them.

use towpath_core::ports::store::Heard;

use super::StoreFixture;
use super::waiting::in_time;

/// Who hears is told by whom; where a database carries no notices there is nobody to hear, and telling does no harm.
pub async fn a_notice_is_heard_where_the_database_carries_it(fixture: &impl StoreFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let listener = store.hear().await.expect("hear");
    assert_eq!(listener.is_some(), store.promises().notifies);
    other.notify("instance-7").await.expect("notify");
    if let Some(mut listener) = listener {
        let heard = in_time("a notice", listener.next()).await.expect("hear");
        assert_eq!(heard, Heard::Notice("instance-7".to_owned()));
    }
}

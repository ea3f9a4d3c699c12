//! A page as a peer sends it, checked before anything of it is believed.

use std::num::NonZeroU64;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use towpath_core::envelope::EventEnvelope;
use towpath_core::ids::Position;
use towpath_core::name::MAX_NAME_BYTES;
use towpath_core::notifications::{LARGEST_PAGE_SIZE, PageId};

use super::FollowError;

/// A page that is what it should be: its facts stand without gaps from its first position on.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) id: PageId,
    pub(super) archived: bool,
    /// The oldest first.
    pub(super) facts: Vec<EventEnvelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sent {
    id: String,
    next_id: Option<String>,
    previous_id: Option<String>,
    archived: bool,
    notifications: Vec<SentNotification>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentNotification {
    notification_id: Position,
    #[serde(rename = "type")]
    event_type: String,
    event: EventEnvelope,
    /// The peer does not show this key what the event says.
    #[serde(default)]
    payload_withheld: bool,
}

impl Page {
    /// Reads a page. `asked` is the id that was asked for, or `None` for the current page.
    pub(super) fn read(body: &[u8], asked: Option<PageId>) -> Result<Self, FollowError> {
        let sent: Sent = serde_json::from_slice(body).map_err(|error| unreadable(error.to_string()))?;
        let id = PageId::parse(&sent.id).map_err(|error| unreadable(error.to_string()))?;
        let size = size_of(id)?;
        if asked.is_some_and(|asked| asked != id) {
            return Err(unreadable(format!("another page was asked for than {id}")));
        }
        if (id.low - 1) % size != 0 {
            return Err(unreadable(format!("no log has a page {id}")));
        }
        let mut facts = Vec::with_capacity(sent.notifications.len().min(1024));
        for (position, notification) in (id.low..=id.high).zip(sent.notifications.iter().rev()) {
            if notification.notification_id != position {
                let found = notification.notification_id;
                return Err(unreadable(format!("page {id} has {found} where {position} should be")));
            }
            if notification.payload_withheld {
                return Err(FollowError::Withheld(position));
            }
            let envelope = &notification.event;
            let name = envelope.event_type.as_str();
            let is_name =
                !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control);
            if notification.event_type != name || !is_name || envelope.aggregate_version == 0 {
                return Err(unreadable(format!("what is at position {position} contradicts itself")));
            }
        }
        let count = sent.notifications.len() as u64;
        if count > size || (sent.archived && count < size) {
            return Err(unreadable(format!("page {id} has {count} notifications")));
        }
        if count == 0 && id.low > 1 {
            return Err(unreadable(format!("page {id} is empty, and was begun by nothing")));
        }
        let next = sent.archived.then(|| neighbour(id.high + 1, size)).flatten().map(|id| id.to_string());
        let previous =
            (id.low > 1).then(|| neighbour(id.low - size, size)).flatten().map(|id| id.to_string());
        if sent.next_id != next || sent.previous_id != previous {
            return Err(unreadable(format!("page {id} names other neighbours than it has")));
        }
        facts.extend(sent.notifications.into_iter().rev().map(|notification| notification.event));
        Ok(Self { id, archived: sent.archived, facts })
    }

    pub(super) fn size(&self) -> u64 {
        self.id.high - self.id.low + 1
    }

    /// The last position that it has.
    pub(super) fn last(&self) -> Position {
        self.id.low + self.facts.len() as u64 - 1
    }

    /// The page before it.
    pub(super) fn previous(&self) -> Option<PageId> {
        self.id.low.checked_sub(self.size()).and_then(|low| neighbour(low, self.size()))
    }

    /// The page after it, if it has begun.
    pub(super) fn next(&self) -> Option<PageId> {
        self.archived.then(|| neighbour(self.id.high + 1, self.size())).flatten()
    }

    /// The page of the same log that holds a position.
    pub(super) fn holding(&self, position: Position) -> Option<PageId> {
        let size = self.size();
        neighbour((position.max(1) - 1) / size * size + 1, size)
    }

    /// Its facts with their positions, and with the digest of the page up to each.
    pub(super) fn digested(&self) -> Result<Vec<(Position, &EventEnvelope, String)>, FollowError> {
        let mut digest = [0_u8; 32];
        let mut digested = Vec::with_capacity(self.facts.len());
        for (position, fact) in (self.id.low..).zip(&self.facts) {
            // Of what was understood, and not of the bytes: a newer peer may say more about the same fact.
            let written = serde_json::to_vec(fact).map_err(|error| unreadable(error.to_string()))?;
            let mut hasher = Sha256::new();
            hasher.update(digest);
            hasher.update(position.to_be_bytes());
            hasher.update(written);
            digest = hasher.finalize().into();
            digested.push((position, fact, digest.iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        Ok(digested)
    }
}

pub(super) fn unreadable(what: impl Into<String>) -> FollowError {
    FollowError::Unreadable(what.into())
}

fn size_of(id: PageId) -> Result<u64, FollowError> {
    let size = (id.high - id.low).checked_add(1).and_then(NonZeroU64::new);
    let size = size.filter(|size| *size <= LARGEST_PAGE_SIZE && id.high < i64::MAX as u64);
    size.map(NonZeroU64::get).ok_or_else(|| unreadable(format!("no log has a page {id}")))
}

fn neighbour(low: Position, size: u64) -> Option<PageId> {
    Some(PageId { low, high: low.checked_add(size - 1)? }).filter(|id| id.low > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn notification(position: u64) -> Value {
        json!({ "notificationId": position, "type": "order.placed", "occurredOn": "2026-01-01T00:00:00Z", "event": {
            "eventId": uuid::Uuid::from_u128(u128::from(position)), "eventType": "order.placed", "schemaVersion": 1,
            "aggregate": { "kind": "order", "id": "7" }, "aggregateVersion": position,
            "occurredAt": "2026-01-01T00:00:00Z", "correlationId": "flow-1", "causationId": null, "traceId": null,
            "actorId": null, "tenantId": null, "payload": { "n": position } } })
    }

    fn page(low: u64, high: u64, last: u64) -> Value {
        let archived = last > high;
        json!({
            "id": format!("{low},{high}"),
            "nextId": archived.then(|| format!("{},{}", high + 1, high + 1 + high - low)),
            "previousId": (low > 1).then(|| format!("{},{}", low - (high - low + 1), low - 1)),
            "archived": archived,
            "notifications": (low..=high.min(last)).rev().map(notification).collect::<Vec<_>>(),
        })
    }

    fn read(page: &Value) -> Result<Page, FollowError> {
        Page::read(page.to_string().as_bytes(), None)
    }

    #[test]
    fn a_page_is_read_oldest_first() {
        for (low, high, last) in [(1, 3, 0), (1, 3, 2), (1, 3, 3), (4, 6, 5), (4, 6, 9)] {
            let page = read(&page(low, high, last)).unwrap();
            assert_eq!(page.last(), last.min(high));
            let positions: Vec<_> = page.digested().unwrap().iter().map(|(position, ..)| *position).collect();
            assert_eq!(positions, (low..=high.min(last)).collect::<Vec<_>>());
            assert_eq!(page.next().is_some(), last > high);
        }
    }

    #[test]
    fn what_is_no_page_is_refused_before_anything_of_it_is_believed() {
        let broken = |change: &dyn Fn(&mut Value)| {
            let mut page = page(4, 6, 9);
            change(&mut page);
            assert!(matches!(read(&page), Err(FollowError::Unreadable(_))), "{page}");
        };
        broken(&|page| page["id"] = json!("5,7"));
        broken(&|page| page["id"] = json!("4,99999"));
        broken(&|page| page["id"] = json!(4));
        broken(&|page| page["previousId"] = json!("4,6"));
        broken(&|page| page["previousId"] = json!("7,9"));
        broken(&|page| page["previousId"] = json!(null));
        broken(&|page| page["nextId"] = json!("1,3"));
        broken(&|page| page["nextId"] = json!(null));
        broken(&|page| page["archived"] = json!(false));
        broken(&|page| page["notifications"].as_array_mut().unwrap().reverse());
        broken(&|page| drop(page["notifications"].as_array_mut().unwrap().remove(1)));
        broken(&|page| drop(page["notifications"].as_array_mut().unwrap().pop()));
        broken(&|page| page["notifications"].as_array_mut().unwrap().push(notification(3)));
        broken(&|page| page["notifications"] = json!([]));
        broken(&|page| page["notifications"][0]["type"] = json!("order.shipped"));
        broken(&|page| page["notifications"][0]["event"]["aggregateVersion"] = json!(0));
        broken(&|page| page["notifications"][0]["event"]["aggregate"]["id"] = json!("x".repeat(200)));
        broken(&|page| {
            let name = json!("x".repeat(200));
            page["notifications"][0]["type"] = name.clone();
            page["notifications"][0]["event"]["eventType"] = name;
        });
        assert!(Page::read(b"<html>", None).is_err() && Page::read(b"", None).is_err());
        let other = Page::read(page(4, 6, 9).to_string().as_bytes(), PageId::parse("1,3").ok());
        assert!(matches!(other, Err(FollowError::Unreadable(_))));
    }

    #[test]
    fn a_page_with_a_withheld_payload_is_not_believed() {
        let mut withheld = page(4, 6, 9);
        withheld["notifications"][1]["event"]["payload"] = json!(null);
        assert!(read(&withheld).is_ok(), "null is a payload, too");
        withheld["notifications"][1]["payloadWithheld"] = json!(true);
        assert!(matches!(read(&withheld), Err(FollowError::Withheld(5))));
    }

    #[test]
    fn the_digest_is_of_all_facts_of_the_page_up_to_the_position() {
        let digest = |page: &Value, position: u64| {
            let page = read(page).unwrap();
            let digested = page.digested().unwrap();
            digested.into_iter().find(|(at, ..)| *at == position).unwrap().2
        };
        let before = page(4, 6, 5);
        let after = page(4, 6, 9);
        assert_eq!(digest(&before, 5), digest(&after, 5), "facts that were added change nothing");
        let mut rewritten = page(4, 6, 9);
        rewritten["notifications"][2]["event"]["payload"] = json!({ "n": 400 });
        assert_ne!(digest(&rewritten, 5), digest(&after, 5), "an earlier fact of the page was changed");
        rewritten["notifications"][2] = notification(4);
        rewritten["notifications"][2]["more"] = json!("a newer peer says more");
        assert_eq!(digest(&rewritten, 5), digest(&after, 5));
    }
}

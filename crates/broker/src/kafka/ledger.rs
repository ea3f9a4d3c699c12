//! What one receiver has read, handed out and settled, and how far each partition may be committed. Pure: no Kafka here.
//!
//! Kafka remembers one number per partition and group: everything before it is done. So a partition's position moves
//! over the settled messages at its beginning and stops at the first that is not.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use towpath_core::ports::broker::{DeliveryTag, Received, Settlement};

/// A partition of a topic.
pub(super) type Place = (String, i32);

/// More messages are asked for while fewer than this wait to be handed out.
const ENOUGH_WAITING: usize = 256;
/// The same in bytes of bodies. Nor are more handed out while so many bytes are unsettled.
const ENOUGH_BYTES: usize = 8 << 20;
/// How far a receiver may read beyond a message that nobody settles: all of it comes again when the receiver goes.
const FARTHEST_AHEAD: usize = 10_000;

/// One receiver's books.
pub(super) struct Ledger {
    prefetch: usize,
    partitions: HashMap<Place, Partition>,
    waiting: VecDeque<Entry>,
    waiting_bytes: usize,
    held: HashMap<DeliveryTag, Entry>,
    held_bytes: usize,
    last_tag: u64,
}

#[derive(Default)]
struct Partition {
    /// What was read and is not covered by the position; `true` is settled.
    open: BTreeMap<i64, bool>,
    /// Everything before it is settled.
    position: Option<i64>,
    /// Whether the position was not handed to Kafka yet.
    uncommitted: bool,
}

#[derive(Clone)]
struct Entry {
    place: Place,
    offset: i64,
    received: Received,
}

impl Ledger {
    pub(super) fn new(prefetch: u16) -> Self {
        Self {
            prefetch: usize::from(prefetch.max(1)),
            partitions: HashMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            held: HashMap::new(),
            held_bytes: 0,
            last_tag: 0,
        }
    }

    /// These partitions are ours from now on.
    pub(super) fn assign(&mut self, places: impl IntoIterator<Item = Place>) {
        for place in places {
            self.partitions.insert(place, Partition::default());
        }
    }

    /// These are no longer; the answer is how far each got. Whatever of them is unsettled is forgotten: it comes to the
    /// next owner, and settling it here does nothing.
    pub(super) fn revoke(&mut self, places: impl IntoIterator<Item = Place>) -> Vec<(Place, i64)> {
        let places: HashSet<Place> = places.into_iter().collect();
        self.waiting.retain(|entry| !places.contains(&entry.place));
        self.waiting_bytes = self.waiting.iter().map(|entry| entry.received.body.len()).sum();
        self.held.retain(|_, entry| !places.contains(&entry.place));
        self.held_bytes = self.held.values().map(|entry| entry.received.body.len()).sum();
        let positions = places.into_iter().filter_map(|place| {
            let position = self.partitions.remove(&place)?.position?;
            Some((place, position))
        });
        positions.collect()
    }

    /// Takes in a message that was read. One that nobody wants is settled at once.
    pub(super) fn read(&mut self, place: Place, offset: i64, wanted: Option<Received>) {
        let Some(partition) = self.partitions.get_mut(&place) else { return };
        if partition.position.is_some_and(|position| offset < position)
            || partition.open.contains_key(&offset)
        {
            return;
        }
        partition.open.insert(offset, false);
        match wanted {
            Some(received) => {
                self.waiting_bytes += received.body.len();
                self.waiting.push_back(Entry { place, offset, received });
            }
            None => partition.settle(offset),
        }
    }

    /// The next message, unless as many as allowed are unsettled, or as large ones.
    pub(super) fn hand_out(&mut self) -> Option<Received> {
        if self.held.len() >= self.prefetch || self.held_bytes >= ENOUGH_BYTES {
            return None;
        }
        let mut entry = self.waiting.pop_front()?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(entry.received.body.len());
        self.held_bytes += entry.received.body.len();
        self.last_tag += 1;
        entry.received.tag = DeliveryTag(self.last_tag);
        let received = entry.received.clone();
        self.held.insert(received.tag, entry);
        Some(received)
    }

    /// Settles what is held under this tag; nothing if there is no such thing (any more).
    pub(super) fn settle(&mut self, tag: DeliveryTag, settlement: Settlement) {
        let Some(mut entry) = self.held.remove(&tag) else { return };
        self.held_bytes = self.held_bytes.saturating_sub(entry.received.body.len());
        match settlement {
            // Kafka keeps no dead letters: what is rejected is done with.
            Settlement::Acknowledge | Settlement::Reject => {
                if let Some(partition) = self.partitions.get_mut(&entry.place) {
                    partition.settle(entry.offset);
                }
            }
            Settlement::Requeue => {
                entry.received.redelivered = true;
                self.waiting_bytes += entry.received.body.len();
                self.waiting.push_front(entry);
            }
        }
    }

    /// The receiver goes: nothing that it holds can be settled any more.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Positions that moved since this was last asked.
    pub(super) fn take_uncommitted(&mut self) -> Vec<(Place, i64)> {
        let moved = self.partitions.iter_mut().filter(|(_, partition)| partition.uncommitted);
        let positions = moved.filter_map(|(place, partition)| {
            partition.uncommitted = false;
            Some((place.clone(), partition.position?))
        });
        positions.collect()
    }

    /// Kafka did not take these positions: they are to be handed to it again.
    pub(super) fn not_committed(&mut self, places: impl IntoIterator<Item = Place>) {
        for place in places {
            if let Some(partition) = self.partitions.get_mut(&place) {
                partition.uncommitted = partition.position.is_some();
            }
        }
    }

    /// Whether no more should be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= ENOUGH_WAITING
            || self.waiting_bytes >= ENOUGH_BYTES
            || self.partitions.values().any(|partition| partition.open.len() >= FARTHEST_AHEAD)
    }

    /// Whether there is room again, well below the mark at which it was full.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() <= ENOUGH_WAITING / 2
            && self.waiting_bytes <= ENOUGH_BYTES / 2
            && self.partitions.values().all(|partition| partition.open.len() < FARTHEST_AHEAD)
    }
}

impl Partition {
    fn settle(&mut self, offset: i64) {
        if let Some(settled) = self.open.get_mut(&offset) {
            *settled = true;
        }
        // Offsets may have gaps: the next that was read counts, not the next number.
        while let Some(first) = self.open.first_entry()
            && *first.get()
        {
            self.position = Some(first.remove_entry().0 + 1);
            self.uncommitted = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use towpath_core::ports::broker::Destination;

    fn place(partition: i32) -> Place {
        ("orders".to_owned(), partition)
    }

    fn message(body: &str) -> Option<Received> {
        Some(Received {
            tag: DeliveryTag(0),
            queue: "q".into(),
            message_id: None,
            message_type: None,
            occurred_at: None,
            key: None,
            content_type: None,
            destination: Destination { exchange: "orders".into(), routing_key: String::new() },
            headers: Arc::default(),
            redelivered: false,
            body: body.into(),
        })
    }

    fn with_messages(count: i64, prefetch: u16) -> Ledger {
        let mut ledger = Ledger::new(prefetch);
        ledger.assign([place(0)]);
        for offset in 0..count {
            ledger.read(place(0), offset, message(&offset.to_string()));
        }
        ledger
    }

    #[test]
    fn a_position_never_passes_an_unsettled_message() {
        let mut ledger = with_messages(4, 10);
        let tags: Vec<DeliveryTag> = (0..4).map(|_| ledger.hand_out().unwrap().tag).collect();
        ledger.settle(tags[1], Settlement::Acknowledge);
        ledger.settle(tags[3], Settlement::Reject);
        assert_eq!(ledger.take_uncommitted(), []);
        ledger.settle(tags[0], Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), [(place(0), 2)]);
        assert_eq!(ledger.take_uncommitted(), []);
        ledger.not_committed([place(0)]);
        assert_eq!(ledger.take_uncommitted(), [(place(0), 2)], "told again after a failure");
        ledger.settle(tags[2], Settlement::Acknowledge);
        assert_eq!(ledger.revoke([place(0)]), [(place(0), 4)]);
    }

    #[test]
    fn what_is_requeued_comes_next_and_holds_the_position() {
        let mut ledger = with_messages(2, 10);
        let first = ledger.hand_out().unwrap();
        let second = ledger.hand_out().unwrap();
        ledger.settle(first.tag, Settlement::Requeue);
        ledger.settle(second.tag, Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), []);
        let again = ledger.hand_out().unwrap();
        assert_eq!((again.body, again.redelivered), (first.body, true));
        assert_ne!(again.tag, first.tag);
        ledger.settle(first.tag, Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), [], "the old tag settles nothing");
        ledger.settle(again.tag, Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), [(place(0), 2)]);
    }

    #[test]
    fn what_nobody_wants_moves_the_position_in_its_turn() {
        let mut ledger = with_messages(1, 10);
        // Offsets have gaps where transactions or compaction leave them.
        ledger.read(place(0), 7, None);
        assert_eq!(ledger.take_uncommitted(), []);
        let first = ledger.hand_out().unwrap();
        assert_eq!(ledger.hand_out(), None);
        ledger.settle(first.tag, Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), [(place(0), 8)]);
    }

    #[test]
    fn no_more_than_the_prefetch_is_unsettled() {
        let mut ledger = with_messages(5, 2);
        let first = ledger.hand_out().unwrap();
        assert!(ledger.hand_out().is_some());
        assert_eq!(ledger.hand_out(), None);
        ledger.settle(first.tag, Settlement::Acknowledge);
        assert_eq!(ledger.hand_out().map(|received| received.body), Some(b"2".to_vec()));
    }

    #[test]
    fn no_more_bytes_than_are_enough_are_unsettled() {
        let mut ledger = with_messages(0, 10);
        let half = "x".repeat(ENOUGH_BYTES / 2);
        (0..4).for_each(|offset| ledger.read(place(0), offset, message(&half)));
        let first = ledger.hand_out().unwrap();
        assert!(ledger.hand_out().is_some());
        assert_eq!(ledger.hand_out(), None);
        ledger.settle(first.tag, Settlement::Requeue);
        assert!(ledger.hand_out().is_some());
        assert_eq!(ledger.hand_out(), None);
        ledger.revoke([place(0)]);
        ledger.assign([place(1)]);
        ledger.read(place(1), 0, message(&"x".repeat(2 * ENOUGH_BYTES)));
        assert!(ledger.hand_out().is_some(), "one, however large it is");
    }

    #[test]
    fn a_revoked_partition_is_forgotten_and_others_are_not() {
        let mut ledger = with_messages(3, 10);
        ledger.assign([place(1)]);
        ledger.read(place(1), 5, message("kept"));
        let (first, second) = (ledger.hand_out().unwrap(), ledger.hand_out().unwrap());
        assert_eq!(ledger.revoke([place(0)]), []);
        ledger.settle(second.tag, Settlement::Requeue);
        ledger.settle(second.tag, Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), [], "it belongs to another receiver by now");
        // Even when the partition, and the message, have come back in the meantime.
        ledger.assign([place(0)]);
        ledger.read(place(0), 0, None);
        assert_eq!(ledger.take_uncommitted(), [(place(0), 1)]);
        ledger.read(place(0), 1, message("again"));
        ledger.settle(first.tag, Settlement::Requeue);
        ledger.settle(second.tag, Settlement::Acknowledge);
        assert_eq!(ledger.take_uncommitted(), []);
        assert_eq!(ledger.hand_out().map(|received| received.body), Some(b"kept".to_vec()));
        assert_eq!(ledger.hand_out().map(|received| received.body), Some(b"again".to_vec()));
        assert_eq!(ledger.hand_out(), None);
        ledger.read(place(2), 0, message("not ours"));
        assert_eq!(ledger.hand_out(), None);
    }

    #[test]
    fn reading_stops_while_there_is_enough() {
        let mut ledger = with_messages(ENOUGH_WAITING as i64, 1000);
        assert!(ledger.is_full() && !ledger.has_room());
        while !ledger.has_room() {
            ledger.hand_out().unwrap();
        }
        let mut ledger = with_messages(1, 1000);
        ledger.read(place(0), 1, message(&"x".repeat(ENOUGH_BYTES)));
        assert!(ledger.is_full());
        // One that nobody settles, and very many behind it that are.
        let mut ledger = with_messages(1, 1000);
        (1..FARTHEST_AHEAD as i64).for_each(|offset| ledger.read(place(0), offset, None));
        assert!(ledger.is_full() && !ledger.has_room());
        let first = ledger.hand_out().unwrap();
        ledger.settle(first.tag, Settlement::Acknowledge);
        assert!(!ledger.is_full() && ledger.has_room());
    }
}

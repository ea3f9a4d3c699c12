//! Identities that are stored, sent and compared: validated once, where they enter.
//!
//! Every text identity obeys one rule, because the three databases disagree about the rest: MySQL compares
//! `"a"` and `"a "` as equal in most collations, PostgreSQL cannot store NUL, and none of them should see
//! control characters in a key.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The version of an aggregate: the number of events it has produced. 0 is "does not exist yet".
pub type Version = u64;

/// The place of a committed event in the log. The first is 1 and there are no gaps.
pub type Position = u64;

/// Why a text cannot be an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Nothing was given.
    #[error("{what} is empty; give 1 to {max} characters")]
    Empty {
        /// Which identity.
        what: &'static str,
        /// The longest text allowed.
        max: usize,
    },
    /// More characters than the column holds.
    #[error("{what} has {length} characters; at most {max} are stored")]
    TooLong {
        /// Which identity.
        what: &'static str,
        /// The longest text allowed.
        max: usize,
        /// The length given.
        length: usize,
    },
    /// A control character, or white space at an end.
    #[error(
        "{what} {given:?} has a control character or white space at an end; databases disagree on comparing those"
    )]
    Unsafe {
        /// Which identity.
        what: &'static str,
        /// The text given.
        given: String,
    },
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest text, in characters.
            pub const MAX_CHARACTERS: usize = $max;

            /// Checks a text and makes it an identity.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
                check_text($what, $max, text.as_ref()).map(|()| Self(Arc::from(text.as_ref())))
            }

            /// Takes a text that was checked before it was stored.
            pub fn from_stored(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidId;
            fn try_from(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }
    };
}

text_id!(
    /// What sort of aggregate: `order`, `Session`. An explicit constant of the application.
    AggregateKind, "aggregate kind", 64
);
text_id!(
    /// Which aggregate of its kind.
    AggregateId, "aggregate id", 128
);
text_id!(
    /// A state of a machine, as it is stored.
    StateName, "state", 64
);
text_id!(
    /// The identity of a command: sending the same one again gives the same answer and no second effect.
    CommandId, "command id", 128
);
text_id!(
    /// The flow that commands and events belong to: `flow-<uuid>` unless the sender brings its own.
    CorrelationId, "correlation id", 128
);
text_id!(
    /// What directly caused a command (an event) or an event (a command).
    CausationId, "causation id", 128
);
text_id!(
    /// A named route from event types to a destination.
    ChannelName, "channel name", 64
);
text_id!(
    /// A handler of deliveries; with the event id it is the key of the inbox.
    HandlerName, "handler name", 64
);
text_id!(
    /// A thing that only one instance at a time may hold. Its name may have a channel's and an instance's in it.
    LeaseName, "lease name", 160
);
text_id!(
    /// One running process of Towpath.
    InstanceId, "instance id", 64
);
text_id!(
    /// The name under which an operation is asked for: the same one gives the same answer and no second effect.
    OperationName, "operation name", 128
);
text_id!(
    /// Who asked for a change.
    ActorId, "actor id", 128
);
text_id!(
    /// Whose data it is.
    TenantId, "tenant id", 64
);
text_id!(
    /// The W3C trace a change belongs to.
    TraceId, "trace id", 64
);
text_id!(
    /// The request that asked for a change.
    RequestId, "request id", 128
);
text_id!(
    /// What sort of work a task is: `Outliner.Concept`. An explicit constant of the application.
    TaskTypeName, "task type", 128
);
text_id!(
    /// What a task is unique by among the open ones of its type.
    TaskKey, "task key", 128
);

impl CorrelationId {
    /// The correlation id of a flow that begins now.
    pub fn of_new_flow(uuid: Uuid) -> Self {
        Self(Arc::from(crate::flow::new_correlation_id(uuid)))
    }
}

impl From<&CommandId> for CausationId {
    fn from(id: &CommandId) -> Self {
        Self(id.0.clone())
    }
}

impl From<EventId> for CausationId {
    fn from(id: EventId) -> Self {
        Self(Arc::from(id.to_string()))
    }
}

/// The identity of an event: a UUIDv7, so that new ones sort behind old ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub Uuid);

impl EventId {
    /// Ids for the facts of one append. Each follows right behind the one before, and by that they are known to belong
    /// together: ids of two appends are never so close.
    pub fn of_one_append() -> impl Iterator<Item = Self> {
        let first = Uuid::now_v7().as_u128();
        (0..).map(move |number: u128| Self(Uuid::from_u128(first.wrapping_add(number))))
    }

    /// By how many ids it is behind another one; none if it is before it.
    pub fn behind(self, other: Self) -> Option<u128> {
        self.0.as_u128().checked_sub(other.0.as_u128())
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The identity of a task: a UUIDv7, so that older ones of a queue are taken first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Which aggregate: its kind and its id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregateKey {
    /// What sort of aggregate.
    pub kind: AggregateKind,
    /// Which one.
    pub id: AggregateId,
}

impl AggregateKey {
    /// A key from two texts, both checked.
    pub fn new(kind: impl AsRef<str>, id: impl AsRef<str>) -> Result<Self, InvalidId> {
        Ok(Self { kind: AggregateKind::new(kind)?, id: AggregateId::new(id)? })
    }

    /// A key from two texts that were checked before, or are hashed only.
    pub fn from_stored(kind: impl AsRef<str>, id: impl AsRef<str>) -> Self {
        Self { kind: AggregateKind::from_stored(kind), id: AggregateId::from_stored(id) }
    }

    /// The lane of this aggregate: a 64-bit hash under which its order is kept and its work is spread.
    ///
    /// FNV-1a with the finalizer of splitmix64 behind it (alone, FNV-1a spreads short keys badly). Written out here
    /// because the number is stored: it must be the same in every build, on every machine, for ever. Two aggregates
    /// that share a lane merely wait for each other.
    pub fn lane(&self) -> Lane {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in self.kind.as_str().bytes().chain([0]).chain(self.id.as_str().bytes()) {
            hash ^= u64::from(byte);
            hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Lane(hash ^ (hash >> 31))
    }

    /// A text of 32 characters that no other key has: half of a SHA-256.
    pub fn digest(&self) -> String {
        let hash = Sha256::new()
            .chain_update(self.kind.as_str())
            .chain_update([0_u8])
            .chain_update(self.id.as_str());
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for AggregateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.id)
    }
}

impl fmt::Debug for AggregateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The stored hash of an aggregate key. See [`AggregateKey::lane`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub u64);

impl Lane {
    /// Into how many partitions the lanes fall. Stored with every outbox row: changing it needs a migration.
    pub const PARTITIONS: u16 = 64;

    /// The partition of this lane, `0..PARTITIONS`. Instances lease partitions, so order holds with many of them.
    pub fn partition(self) -> u16 {
        (self.0 % u64::from(Self::PARTITIONS)) as u16
    }

    /// The lane as databases store it: the same 64 bits, signed.
    pub fn to_stored(self) -> i64 {
        self.0.cast_signed()
    }

    /// The lane from its stored form.
    pub fn from_stored(stored: i64) -> Self {
        Self(stored.cast_unsigned())
    }
}

fn check_text(what: &'static str, max: usize, text: &str) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty { what, max });
    }
    let length = text.chars().count();
    if length > max {
        return Err(InvalidId::TooLong { what, max, length });
    }
    if text.chars().any(char::is_control) || text.trim() != text {
        return Err(InvalidId::Unsafe { what, given: text.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unsafe_texts_are_refused_with_what_is_wrong() {
        assert!(matches!(AggregateId::new(""), Err(InvalidId::Empty { .. })));
        assert!(matches!(AggregateId::new("a "), Err(InvalidId::Unsafe { .. })));
        assert!(matches!(AggregateId::new("a\0b"), Err(InvalidId::Unsafe { .. })));
        assert!(matches!(AggregateId::new("x".repeat(129)), Err(InvalidId::TooLong { length: 129, .. })));
        assert!(AggregateId::new("🦆".repeat(128)).is_ok(), "the limit counts characters, as VARCHAR does");
    }

    #[test]
    fn lanes_are_stored_so_they_must_never_change() {
        // These numbers are in databases. If this test fails, the code is wrong, not the numbers.
        let order = AggregateKey::new("order", "order-7").unwrap().lane();
        assert_eq!(order.0, 0x597a_77b9_3c5a_597a, "{:#x}", order.0);
        assert_eq!(Lane::from_stored(order.to_stored()), order);
    }

    #[test]
    fn kind_and_id_do_not_run_into_each_other() {
        let first = AggregateKey::new("ab", "c").unwrap().lane();
        let second = AggregateKey::new("a", "bc").unwrap().lane();
        assert_ne!(first, second);
        assert_ne!(
            AggregateKey::new("ab", "c").unwrap().digest(),
            AggregateKey::new("a", "bc").unwrap().digest()
        );
    }

    #[test]
    fn lanes_spread_over_the_partitions() {
        let mut counts = [0_u32; Lane::PARTITIONS as usize];
        for number in 0..64_000 {
            let key = AggregateKey::new("order", format!("order-{number}")).unwrap();
            counts[usize::from(key.lane().partition())] += 1;
        }
        assert!(counts.iter().all(|count| (700..1300).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn an_accepted_id_survives_json(text in "\\PC{1,40}") {
            if let Ok(id) = CommandId::new(&text) {
                let json = serde_json::to_string(&id).unwrap();
                prop_assert_eq!(serde_json::from_str::<CommandId>(&json).unwrap(), id);
            }
        }
    }
}

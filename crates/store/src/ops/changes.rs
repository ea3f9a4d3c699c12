//! Which facts were appended together: their ids follow right behind each other ([`EventId::of_one_append`]).

use towpath_core::ids::{AggregateKey, EventId, Version};
use towpath_core::ports::store::{AppendedTogether, StoreResult};
use uuid::Uuid;

use crate::rows::read_key;
use crate::sql::{MAX_VALUES, Session, values};

/// No append has more facts.
const MOST_FACTS: u128 = MAX_VALUES as u128;

/// The facts that were appended with this one; none if it is not in the log.
pub(crate) async fn appended_with(
    session: &mut Session<'_>,
    event_id: EventId,
) -> StoreResult<Option<AppendedTogether>> {
    let id = event_id.0.as_u128();
    let (low, high) = (id.saturating_sub(MOST_FACTS), id.saturating_add(MOST_FACTS));
    let sql = "SELECT event_id, aggregate_kind, aggregate_id, aggregate_version FROM domain_events \
         WHERE event_id BETWEEN ? AND ? ORDER BY event_id";
    let rows = session.rows("append.of", sql, values![Uuid::from_u128(low), Uuid::from_u128(high)]).await?;
    let facts = rows
        .iter()
        .map(|row| Ok((EventId(row.uuid("event_id")?), read_key(row)?, row.count("aggregate_version")?)));
    Ok(together(&facts.collect::<StoreResult<Vec<_>>>()?, event_id))
}

/// Those around a fact whose ids and versions have no gap.
fn together(facts: &[(EventId, AggregateKey, Version)], event_id: EventId) -> Option<AppendedTogether> {
    let follows = |before: &(EventId, AggregateKey, Version), next: &(EventId, AggregateKey, Version)| {
        next.0.behind(before.0) == Some(1) && next.1 == before.1 && next.2.checked_sub(1) == Some(before.2)
    };
    let run = facts.chunk_by(follows).find(|run| run.iter().any(|(found, ..)| *found == event_id))?;
    let ((_, aggregate, first), (last_event, _, last)) = (run.first()?, run.last()?);
    Some(AppendedTogether {
        aggregate: aggregate.clone(),
        first: *first,
        last: *last,
        last_event: *last_event,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_gap_was_not_appended_together() {
        let aggregate = |id: &str| AggregateKey::from_stored("order", id);
        let id = |number| EventId(Uuid::from_u128(number));
        let fact = |number, of: &str, version| (id(number), aggregate(of), version);
        // Two appends of one aggregate, one of another, and one whose versions do not follow.
        let facts = [
            fact(10, "a", 1),
            fact(11, "a", 2),
            fact(12, "a", 3),
            fact(20, "a", 4),
            fact(21, "b", 5),
            fact(22, "b", 7),
        ];
        let found = |number| {
            let found = together(&facts, id(number))?;
            Some((found.first, found.last, found.last_event))
        };
        for number in 10..=12 {
            assert_eq!(found(number), Some((1, 3, id(12))));
        }
        assert_eq!(
            [found(20), found(21), found(22)],
            [Some((4, 4, id(20))), Some((5, 5, id(21))), Some((7, 7, id(22)))]
        );
        assert_eq!(found(13), None);
        let three = together(&facts, id(11)).unwrap();
        let among: Vec<u128> = (9..=13).filter(|number| three.contains(id(*number))).collect();
        assert_eq!(among, [10, 11, 12]);
    }

    #[test]
    fn ids_of_one_append_are_together_and_those_of_two_are_not() {
        let appends: Vec<Vec<EventId>> =
            (0..1_000).map(|_| EventId::of_one_append().take(3).collect()).collect();
        let facts = (1..).zip(appends.iter().flatten());
        let mut facts: Vec<_> =
            facts.map(|(version, id)| (*id, AggregateKey::from_stored("o", "1"), version)).collect();
        facts.sort_unstable_by_key(|(id, ..)| *id);
        for append in appends {
            let found = together(&facts, append[1]).unwrap();
            assert_eq!((found.count(), found.last_event), (3, append[2]));
        }
    }
}

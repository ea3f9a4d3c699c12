//! Whether a broker that takes nothing is away, or has something against what it is given.
//!
//! A row uses up an attempt when it fails while others get through. When nothing gets through (no quorum, too few replicas,
//! a queue that is full), that says something of the broker and nothing of the rows: none of them has failed, and the relay
//! waits. A row may still be the cause itself, say by making the broker end the connection. So after a wave of which
//! nothing was confirmed the next ones have one row, another one each time, and grow again while they are confirmed; a row
//! that fails once more although another one was confirmed since its last failure has failed by itself.

use std::collections::HashMap;

use towpath_core::ports::broker::Published;

/// How often a row that nothing else waits beside may go without a word before it counts: it may be what makes the broker
/// fall silent, nobody else can show whether the broker takes anything, and no row is tried for ever. A broker that says no
/// is there, and has a reason that is not the row's.
const ALONE: u32 = 60;

/// How many rows are remembered that failed without a clear answer.
const REMEMBERED: usize = 10_000;

/// What a shaft knows of waves that were not confirmed.
pub(crate) struct Caution {
    /// How many rows a wave may have.
    most: usize,
    /// Which row of a wave goes out when it has to be one.
    turn: usize,
    /// How often the only row has failed in a row.
    alone: u32,
    /// Rows without a clear answer, and how many others had been confirmed when that was.
    doubted: HashMap<u64, u64>,
}

impl Default for Caution {
    fn default() -> Self {
        Self { most: usize::MAX, turn: 0, alone: 0, doubted: HashMap::new() }
    }
}

/// Whether an answer leaves open whose fault it was.
fn is_doubtful(answer: &Published) -> bool {
    matches!(answer, Published::NotTaken { .. } | Published::Unknown { .. })
}

impl Caution {
    /// Whether the last waves were not confirmed.
    pub(crate) fn is_needed(&self) -> bool {
        self.most != usize::MAX
    }

    /// Which of these rows go out now, and which wait.
    pub(crate) fn share<T>(&self, mut rows: Vec<T>) -> (Vec<T>, Vec<T>) {
        if rows.len() <= self.most {
            return (rows, Vec::new());
        }
        if self.most == 1 {
            let one = rows.remove(self.turn % rows.len());
            return (vec![one], rows);
        }
        let later = rows.split_off(self.most);
        (rows, later)
    }

    /// Whether those rows of a wave count that have no clear answer. `confirmed` is how many the channel has had confirmed
    /// so far, those of this wave included; `only` says that nothing else waits.
    pub(crate) fn counts(
        &mut self,
        wave: impl ExactSizeIterator<Item = u64>,
        answers: &[Published],
        confirmed: u64,
        only: bool,
    ) -> bool {
        let size = wave.len();
        let taken = answers.contains(&Published::Confirmed);
        let rows = wave.zip(answers);
        if taken {
            self.most = if self.most > REMEMBERED { usize::MAX } else { self.most.saturating_mul(2) };
            self.alone = 0;
            for (row, _) in rows {
                self.doubted.remove(&row);
            }
            return true;
        }
        let doubtful: Vec<u64> = rows.filter(|(_, answer)| is_doubtful(answer)).map(|(row, _)| row).collect();
        if doubtful.is_empty() {
            return true;
        }
        self.most = 1;
        self.turn = self.turn.wrapping_add(1);
        let is_silent = !answers.iter().any(|answer| matches!(answer, Published::NotTaken { .. }));
        self.alone = if only && is_silent { self.alone + 1 } else { 0 };
        let others_were_taken = |row: &u64| self.doubted.get(row).is_some_and(|then| *then != confirmed);
        let counts = size == 1 && (self.alone >= ALONE || doubtful.iter().all(others_were_taken));
        if counts {
            self.alone = 0;
        }
        if self.doubted.len() > REMEMBERED {
            self.doubted.clear();
        }
        for row in doubtful {
            let then = self.doubted.entry(row).or_insert(confirmed);
            if counts {
                *then = confirmed;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(rows: usize) -> Vec<Published> {
        vec![Published::NotTaken { reason: "no quorum".to_owned() }; rows]
    }

    fn judge(caution: &mut Caution, wave: &[u64], answers: &[Published], confirmed: u64) -> bool {
        caution.counts(wave.iter().copied(), answers, confirmed, false)
    }

    #[test]
    fn an_outage_uses_up_no_attempt_however_long_it_is() {
        let mut caution = Caution::default();
        assert!(!judge(&mut caution, &[1, 2, 3], &nothing(3), 7));
        for _ in 0..1000 {
            let (now, later) = caution.share(vec![1_u64, 2, 3]);
            assert_eq!((now.len(), later.len()), (1, 2), "it asks with one row");
            assert!(!judge(&mut caution, &now, &nothing(1), 7));
        }
    }

    #[test]
    fn waves_grow_again_when_the_broker_is_back() {
        let mut caution = Caution::default();
        judge(&mut caution, &[1, 2], &nothing(2), 0);
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let (now, _) = caution.share((0..100).collect::<Vec<u64>>());
            sizes.push(now.len());
            judge(&mut caution, &now, &vec![Published::Confirmed; now.len()], 1);
        }
        assert_eq!(sizes, [1, 2, 4, 8]);
    }

    #[test]
    fn a_row_that_is_the_cause_is_found_and_counts() {
        // Row 2 ends the connection: whatever goes out with it has no answer.
        let (mut caution, mut confirmed, mut waiting, mut counted) =
            (Caution::default(), 0, vec![1_u64, 2, 3, 4, 5], 0);
        for _ in 0..30 {
            if waiting.is_empty() {
                break;
            }
            let (now, _) = caution.share(waiting.clone());
            let answers =
                if now.contains(&2) { nothing(now.len()) } else { vec![Published::Confirmed; now.len()] };
            if !now.contains(&2) {
                confirmed += now.len() as u64;
                waiting.retain(|row| !now.contains(row));
            }
            if judge(&mut caution, &now, &answers, confirmed) && now.contains(&2) {
                assert_eq!(now, [2], "only the cause");
                counted += 1;
                waiting.retain(|row| *row != 2);
            }
        }
        assert_eq!((waiting, counted), (vec![], 1));
    }

    #[test]
    fn a_row_that_fails_beside_others_counts_at_once() {
        let mut caution = Caution::default();
        let answers = [Published::Confirmed, Published::Unknown { reason: "late".to_owned() }];
        assert!(judge(&mut caution, &[1, 2], &answers, 1));
        let refused = [Published::Refused { reason: "no".to_owned() }, nothing(1).remove(0)];
        assert!(!judge(&mut caution, &[1, 2], &refused, 1), "what else was in the wave may be innocent");
    }

    #[test]
    fn a_row_that_is_alone_is_not_tried_for_ever() {
        let mut caution = Caution::default();
        let mut counted = |answer: Published| {
            (0..3 * ALONE)
                .filter(|_| caution.counts([1].into_iter(), std::slice::from_ref(&answer), 0, true))
                .count()
        };
        assert_eq!(counted(Published::Unknown { reason: "the connection was lost".to_owned() }), 3);
        assert_eq!(counted(nothing(1).remove(0)), 0, "a broker that says no is there");
    }
}

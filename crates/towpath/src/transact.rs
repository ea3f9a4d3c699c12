//! Units of work: run in one transaction, again when others were quicker, and never in doubt for long.
//!
//! A unit writes an id of its own before anything else. When the answer to its COMMIT is lost, the next round writes the same
//! id: it waits for the lost transaction as long as that is open, and then finds the id taken (it was committed, and its
//! answer is the answer) or free (it was not, and the work is run again).

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use towpath_core::ports::store::{StoreError, StoreResult};
use towpath_store::{Ended, Unfinished};
use uuid::Uuid;

use crate::bus::{pause, with_causes};
use crate::committed::Committed;
use crate::service::Backoff;
use crate::towpath::Towpath;
use crate::tx::{Lender, Open, Origin, Tx};

/// How often a unit that lost against others is run again.
const MOST_ROUNDS: u32 = 30;

/// How long a unit whose connection was lost before its commit is begun again.
const RECONNECT_FOR: Duration = Duration::from_secs(3);

/// How long it is asked whether a commit was done whose answer was lost.
const LONGEST_DOUBT: Duration = Duration::from_secs(15);

tokio::task_local! {
    /// Set inside of a unit of work.
    static INSIDE: ();
}

/// Refuses what would wait for the unit of work that it is inside of: SQLite has one writer.
pub(crate) fn refuse_inside() -> Result<(), StoreError> {
    if INSIDE.try_with(|()| ()).is_ok() { Err(StoreError::Nested) } else { Ok(()) }
}

/// Runs work again that lost against others, up to 30 times in all: for who has a store and no [`Towpath`] yet, and for work
/// that may be done twice.
///
/// # Errors
/// Those of the work; `Contention` when others last.
pub async fn giving_way<T, F>(mut work: impl FnMut() -> F) -> StoreResult<T>
where
    F: Future<Output = StoreResult<T>>,
{
    for round in 1..MOST_ROUNDS {
        match work().await {
            Err(StoreError::Contention(_)) => tokio::time::sleep(pause(round)).await,
            done => return done,
        }
    }
    work().await
}

impl Towpath {
    /// Runs a unit of work in one transaction: what it writes commits together when it answers `Ok`, and nothing of it has
    /// happened when it answers an error.
    ///
    /// ```no_run
    /// # use towpath::{Towpath, ports::store::StoreError};
    /// # async fn lend(app: &Towpath, book: &str) -> Result<(), StoreError> {
    /// app.transact(async |mut tx| {
    ///     tx.execute("UPDATE shelves SET lent = 1 WHERE book_id = ?", &[book]).await?;
    ///     Ok::<_, StoreError>(())
    /// }).await
    /// # }
    /// ```
    ///
    /// # Guarantees
    /// It is run again when it lost against others (up to 30 runs in all), or lost its connection before the commit (for 3
    /// seconds). A commit whose answer was lost is looked for, for 15 seconds, and done exactly once.
    ///
    /// # Errors
    /// Those of the work. `Contention` and `Unavailable` when others or the outage last; `CommitUnknown` when the database
    /// does not come back to say whether the commit was done; `TransactionLost` when a failed statement was passed over, or
    /// the transaction is kept beyond its unit; `Nested` inside of another unit.
    ///
    /// # Caveats
    /// The work may run more than once: what it does outside of its transaction is done again.
    pub async fn transact<T, E, F, Fut>(&self, work: F) -> Result<T, E>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>> + Send,
        E: From<StoreError>,
    {
        refuse_inside()?;
        let unit_id = Uuid::now_v7();
        let mut patience = Patience::default();
        // What a commit would have answered whose answer was lost.
        let mut in_doubt: Option<(T, Box<Committed>)> = None;
        loop {
            let begun_at = Instant::now();
            let end = match self.begin_unit(unit_id).await {
                Ok(Begun::Before) => match in_doubt.take() {
                    Some((answer, committed)) => {
                        self.bus.committed(&committed);
                        UnitEnd::Done(answer)
                    }
                    // An earlier round was told that it had not committed, and has.
                    None => {
                        let why = "a commit was done that was said not to be";
                        UnitEnd::Not(StoreError::CommitUnknown(why.into()).into())
                    }
                },
                Ok(Begun::Now(open)) => {
                    // The lost one has ended without a trace: its connection was lost before the commit, after all.
                    patience.in_doubt_since = None;
                    if in_doubt.take().is_some() && patience.pause(Why::Disconnected, begun_at).is_none() {
                        let why = "the connection is lost at each commit";
                        return Err(StoreError::Unavailable(why.into()).into());
                    }
                    match run(open, &work).await {
                        Ok((open, worked)) => self.end_unit(unit_id, open, worked).await,
                        Err(error) => UnitEnd::failed(error),
                    }
                }
                Err(error) => match in_doubt.take() {
                    None => UnitEnd::failed(error),
                    Some((answer, committed)) if patience.bears_doubt() && is_passing(&error) => {
                        tokio::time::sleep(patience.backoff.next()).await;
                        UnitEnd::InDoubt(answer, committed, error)
                    }
                    Some((_, committed)) => {
                        self.bus.committed(&committed);
                        UnitEnd::Not(StoreError::CommitUnknown(error.into()).into())
                    }
                },
            };
            match end {
                UnitEnd::Done(answer) => return Ok(answer),
                UnitEnd::Not(error) => return Err(error),
                UnitEnd::Again(why, error) => {
                    let is_over = self.bus.stopped.load(Ordering::Relaxed);
                    let Some(pause) = patience.pause(why, begun_at).filter(|_| !is_over) else {
                        return Err(error);
                    };
                    drop(error);
                    tokio::time::sleep(pause).await;
                }
                UnitEnd::InDoubt(answer, committed, error) => {
                    tracing::warn!(
                        cause = with_causes(&error),
                        "the answer to a commit was lost; looking whether it was done"
                    );
                    in_doubt = Some((answer, committed));
                    patience.in_doubt_since.get_or_insert_with(Instant::now);
                }
            }
        }
    }

    async fn begin_unit(&self, unit_id: Uuid) -> Result<Begun, StoreError> {
        Ok(match self.store().open_unit(unit_id).await? {
            Some(sql) => Begun::Now(Box::new(Open::new(sql, &self.bus, Origin::Unit(unit_id)))),
            None => Begun::Before,
        })
    }

    /// Commits, or lets it be as if it had never been.
    async fn end_unit<T, E: From<StoreError>>(
        &self,
        unit_id: Uuid,
        open: Open,
        worked: Result<T, E>,
    ) -> UnitEnd<T, E> {
        let spoilt = open.spoilt().map(str::to_owned);
        let (sql, committed) = open.into_parts();
        let undone = match sql.ended_by() {
            Some(Ended::GaveWay) => {
                let gave_way = || StoreError::Contention("it lost against others each time".into());
                return UnitEnd::Again(Why::GaveWay, worked.err().unwrap_or_else(|| gave_way().into()));
            }
            Some(Ended::Disconnected) => {
                let gone = || StoreError::Unavailable("the connection was lost".into());
                return UnitEnd::Again(Why::Disconnected, worked.err().unwrap_or_else(|| gone().into()));
            }
            Some(Ended::Undone | Ended::Failed) => Some("a statement has failed in it".to_owned()),
            None => None,
        };
        let answer = match (worked, spoilt.or(undone)) {
            (Err(error), _) => {
                // What was refused stays refused, whatever the rollback says.
                let _ = sql.abandon().await;
                return UnitEnd::Not(error);
            }
            (Ok(_), Some(why)) => return UnitEnd::Not(StoreError::TransactionLost(why).into()),
            (Ok(answer), None) => answer,
        };
        match sql.finish_unit(unit_id).await {
            Ok(()) => {
                self.bus.committed(&committed);
                UnitEnd::Done(answer)
            }
            Err(Unfinished::InDoubt(error)) => UnitEnd::InDoubt(answer, Box::new(committed), error),
            Err(Unfinished::Not(error)) => UnitEnd::failed(error),
        }
    }
}

/// Runs the work, and has the transaction back.
async fn run<T, E, Fut: Future<Output = Result<T, E>>>(
    open: Box<Open>,
    work: &impl Fn(Tx) -> Fut,
) -> Result<(Open, Result<T, E>), StoreError> {
    // The work's own statements on the raw connection have no time limit.
    let silence = open.connection_lost();
    let lender = Lender::new(*open);
    let worked = tokio::select! {
        worked = INSIDE.scope((), work(lender.lend()?)) => worked,
        error = silence => return Err(error),
    };
    Ok((lender.take_back()?, worked))
}

/// How a round began.
enum Begun {
    Now(Box<Open>),
    /// An earlier round has committed.
    Before,
}

/// How a round ended.
enum UnitEnd<T, E> {
    Done(T),
    /// As if it had never been, and so is the next round.
    Not(E),
    /// As if it had never been; the next round may win.
    Again(Why, E),
    /// The answer to the commit was lost.
    InDoubt(T, Box<Committed>, StoreError),
}

/// Why a round was in vain.
enum Why {
    GaveWay,
    Disconnected,
}

impl<T, E: From<StoreError>> UnitEnd<T, E> {
    fn failed(error: StoreError) -> Self {
        match error {
            StoreError::Contention(_) => Self::Again(Why::GaveWay, error.into()),
            StoreError::Unavailable(_) => Self::Again(Why::Disconnected, error.into()),
            error => Self::Not(error.into()),
        }
    }
}

fn is_passing(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Contention(_))
}

/// How much longer it is tried.
#[derive(Default)]
struct Patience {
    rounds: u32,
    backoff: Backoff,
    disconnected_at: Option<Instant>,
    in_doubt_since: Option<Instant>,
}

impl Patience {
    /// How long to wait before the next round; nothing when there is none.
    fn pause(&mut self, why: Why, round_begun_at: Instant) -> Option<Duration> {
        match why {
            Why::GaveWay => {
                self.rounds += 1;
                (self.rounds < MOST_ROUNDS).then(|| pause(self.rounds))
            }
            Why::Disconnected => {
                // Whoever has waited for a connection for so long does not wait once more.
                let since = *self.disconnected_at.get_or_insert(round_begun_at);
                (since.elapsed() < RECONNECT_FOR).then(|| self.backoff.next())
            }
        }
    }

    fn bears_doubt(&self) -> bool {
        self.in_doubt_since.is_none_or(|since| since.elapsed() < LONGEST_DOUBT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_core::retry::Coded as _;

    #[tokio::test]
    async fn what_gives_way_is_run_again_and_not_for_ever() {
        let mut runs = 0;
        let work = |runs: &mut u32, gives_way_until: u32| {
            *runs += 1;
            let run = *runs;
            async move {
                if run < gives_way_until { Err(StoreError::Contention("others".into())) } else { Ok(run) }
            }
        };
        assert_eq!(giving_way(|| work(&mut runs, 3)).await.unwrap(), 3);
        runs = 0;
        let given_up = giving_way(|| work(&mut runs, u32::MAX)).await.unwrap_err();
        assert_eq!((runs, given_up.code()), (MOST_ROUNDS, "contention"));
        runs = 0;
        let gone = || {
            runs += 1;
            async { Err::<(), _>(StoreError::Unavailable("away".into())) }
        };
        assert!(giving_way(gone).await.is_err());
        assert_eq!(runs, 1, "nothing but contention is tried again");
    }
}

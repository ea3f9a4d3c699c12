//! The ids of commands that are asked for under an Idempotency-Key.
//!
//! A key belongs to who chose it, a command's id is known to everybody. Mostly the key is the id. Where somebody else has
//! a command of that id, the caller's own command gets an id made of both, and its answer names it: two callers who
//! happen to choose the same key neither get in each other's way nor see each other's answers.

use axum::http::HeaderMap;
use sha2::{Digest as _, Sha256};
use towpath::ids::{ActorId, CommandId};
use towpath::ports::store::CommandRecord;
use towpath::{Receipt, Send, SendError, Towpath};

use super::problem::Problem;

/// How many characters of a key are in an id that is made of it, for people.
const READABLE: usize = 64;

/// Sends a command under a key: once for each caller.
pub async fn send_under_key<'a>(
    towpath: &'a Towpath,
    caller: &ActorId,
    key: Option<&str>,
    command: impl Fn() -> Send<'a>,
) -> Result<Receipt, SendError> {
    let Some(key) = key else { return command().await };
    let answer = command().once(key).await;
    if let Err(SendError::IdReused(id)) = &answer
        && is_anothers(towpath, caller, id).await?
    {
        return command().once(own_id(caller, key)).await;
    }
    answer
}

/// The command that a caller has sent under a key before.
pub async fn sent_under_key(
    towpath: &Towpath,
    caller: &ActorId,
    key: &str,
) -> Result<Option<CommandRecord>, Problem> {
    let id = CommandId::new(key)
        .map_err(|error| Problem::malformed(error.to_string(), "Use another Idempotency-Key."))?;
    match towpath.command(&id).await? {
        Some(record) if is_of_another(&record, caller) => {
            Ok(towpath.command(&CommandId::from_stored(own_id(caller, key))).await?)
        }
        found => Ok(found),
    }
}

/// The Idempotency-Key of a request.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    match headers.get("idempotency-key").map(|value| value.to_str()) {
        None => Ok(None),
        Some(Ok(key)) => Ok(Some(key)),
        Some(Err(_)) => {
            Err(Problem::malformed("the Idempotency-Key is not a plain text", "Use visible ASCII."))
        }
    }
}

async fn is_anothers(towpath: &Towpath, caller: &ActorId, id: &CommandId) -> Result<bool, SendError> {
    let record = towpath.command(id).await.map_err(SendError::Store)?;
    Ok(record.is_some_and(|record| is_of_another(&record, caller)))
}

fn is_of_another(record: &CommandRecord, caller: &ActorId) -> bool {
    record.command.context.actor_id.as_ref().is_some_and(|sender| sender != caller)
}

fn own_id(caller: &ActorId, key: &str) -> String {
    let mut hash = Sha256::new();
    for part in [caller.as_str(), key] {
        // With its length, so that parts cannot run into each other.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let readable: String = key.chars().take(READABLE).collect();
    format!("{readable}~{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_ones_own_is_an_id_and_differs_by_caller_and_key() {
        let (ann, bob) = (ActorId::new("ann").unwrap(), ActorId::new("bob").unwrap());
        let long = "k".repeat(CommandId::MAX_CHARACTERS);
        for key in ["k", "k k", long.as_str()] {
            assert!(CommandId::new(own_id(&ann, key)).is_ok());
            assert_ne!(own_id(&ann, key), own_id(&bob, key));
        }
        assert_ne!(own_id(&ann, &long), own_id(&ann, &long[1..]));
    }
}

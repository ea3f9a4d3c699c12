//! What follows a branch: the session that it is begins, in the flow of the one that it was made of.

use towpath::{Consumer, Fact, HandlerError, Tx};

use crate::session::{BranchOf, Session, SessionCommand, SessionEvent, StartBranch};

pub(crate) fn consumer(channel: &str) -> Consumer {
    Consumer::of(channel)
        .only([SessionEvent::BRANCH_CREATED])
        .events::<SessionEvent>()
        .each("genesis-branches", begin)
}

async fn begin(fact: Fact<SessionEvent>, mut tx: Tx) -> Result<(), HandlerError> {
    let Some(parent) = fact.aggregate_id().map(str::to_owned) else { return Ok(()) };
    let SessionEvent::BranchCreated(created) = fact.event else { return Ok(()) };
    let version = fact.envelope.aggregate_version.unwrap_or_default();
    let (stage, mut begins_with) = (created.stage, created.begins_with);
    begins_with.branch_of = Some(BranchOf { session_id: parent, version, stage });
    let command = SessionCommand::StartBranch(StartBranch { stage, begins_with });
    Ok(tx.send::<Session>(created.session_id, command).await?)
}

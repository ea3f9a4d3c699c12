//! The parts of a check, in their order.

use towpath_core::consistency::FindingCode;

/// One part of a check. Its name is stored with how far the check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Commands of the window, and their results.
    Commands,
    /// Events of the window: their causes and their ways.
    Events,
    /// Rows that are ahead of their events.
    Rows,
    /// Events that are out of line.
    Versions,
    /// Events that nobody gives a position.
    Unpositioned,
    /// The log.
    Positions,
    /// Its end.
    Head,
    /// Outbox rows of no event.
    Outbox,
    /// Deliveries of no event.
    Inbox,
    /// Lanes that wait for nothing.
    Lanes,
    /// Trackers ahead of the log.
    Trackers,
    /// Projections ahead of their aggregates.
    Projections,
    /// Commands in the hands of nobody.
    ClaimedCommands,
    /// Timers in the hands of nobody.
    ClaimedTimers,
    /// Tasks of silent workers.
    RunningTasks,
    /// States that their history does not end with.
    States,
    /// Changes that do not begin where the last ended.
    Histories,
    /// States that are not what folding gives.
    Folded,
}

impl Stage {
    /// All of them.
    const ALL: &'static [Self] = &[
        Self::Commands,
        Self::Events,
        Self::Rows,
        Self::Versions,
        Self::Unpositioned,
        Self::Positions,
        Self::Head,
        Self::Outbox,
        Self::Inbox,
        Self::Lanes,
        Self::Trackers,
        Self::Projections,
        Self::ClaimedCommands,
        Self::ClaimedTimers,
        Self::RunningTasks,
        Self::States,
        Self::Histories,
        Self::Folded,
    ];

    /// Those that look for something of a scope; all, where it is empty.
    pub(super) fn of_scope(scope: &[FindingCode]) -> Vec<Self> {
        let is_asked =
            |stage: &&Self| scope.is_empty() || stage.codes().iter().any(|code| scope.contains(code));
        Self::ALL.iter().filter(is_asked).copied().collect()
    }

    /// As it is stored.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Commands => "commands",
            Self::Events => "events",
            Self::Rows => "rows",
            Self::Versions => "versions",
            Self::Unpositioned => "unpositioned",
            Self::Positions => "positions",
            Self::Head => "head",
            Self::Outbox => "outbox",
            Self::Inbox => "inbox",
            Self::Lanes => "lanes",
            Self::Trackers => "trackers",
            Self::Projections => "projections",
            Self::ClaimedCommands => "claimed-commands",
            Self::ClaimedTimers => "claimed-timers",
            Self::RunningTasks => "running-tasks",
            Self::States => "states",
            Self::Histories => "histories",
            Self::Folded => "folded",
        }
    }

    /// What it can find.
    pub(super) fn codes(self) -> &'static [FindingCode] {
        match self {
            Self::Commands => &[FindingCode::OrphanedCommands],
            Self::Events => &[FindingCode::MissingOutboxEvents, FindingCode::BrokenCausation],
            Self::Rows | Self::Versions => &[FindingCode::AggregateVersionGaps],
            Self::Unpositioned => &[FindingCode::EventsWithoutPosition],
            Self::Positions | Self::Head => &[FindingCode::PositionGaps],
            Self::Outbox => &[FindingCode::OutboxWithoutEvent],
            Self::Inbox => &[FindingCode::InboxWithoutEvent],
            Self::Lanes => &[FindingCode::ParkedWithoutHead],
            Self::Trackers => &[FindingCode::TrackersAhead],
            Self::Projections => &[FindingCode::ProjectionsAhead],
            Self::ClaimedCommands => &[FindingCode::AbandonedCommands],
            Self::ClaimedTimers => &[FindingCode::AbandonedTimers],
            Self::RunningTasks => &[FindingCode::AbandonedTasks],
            Self::States | Self::Histories => &[FindingCode::HistoryDiffers],
            Self::Folded => &[FindingCode::StateDiffers],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_looked_for_and_every_name_is_its_own() {
        for code in FindingCode::ALL {
            assert!(!Stage::of_scope(&[*code]).is_empty(), "{code}");
        }
        let mut names: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Stage::ALL.len());
    }
}

//! Whether the platform answers: when it is asked, when it counts as down, and what is to be told. Pure.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::failing::doubled;
use super::{ObserveError, Platform};

/// How long it takes until a platform that did not answer is asked again. Twice as long each time.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(200);

/// The longest that a platform that is away is not asked whether it is back.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_secs(2);

/// Whether the platform answers.
pub(super) struct Health {
    down_after: u32,
    question: Question,
    /// Questions in a row without an answer.
    unanswered: u32,
    is_down: bool,
    /// What was found, and has not been told to the application.
    untold: Option<Platform>,
    /// Whether the application knows that it answers.
    told_up: bool,
}

/// Whether the platform is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Question {
    /// There is no reason to ask.
    None,
    /// It is to be asked then.
    At(Instant),
    /// It was asked, and has not answered.
    Open,
}

/// What an answer changes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Nothing,
    /// It counts as up from now on; whether it was down before.
    Up {
        was_down: bool,
    },
    /// It counts as down from now on.
    Down(Platform),
}

impl Health {
    /// It is asked at the start, also when nothing is due: somebody may wait for the end of an alert.
    pub(super) fn new(now: Instant, down_after: u32) -> Self {
        Self {
            down_after: down_after.max(1),
            question: Question::At(now),
            unanswered: 0,
            is_down: false,
            untold: None,
            told_up: false,
        }
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down
    }

    pub(super) fn question(&self) -> Question {
        self.question
    }

    /// There is a reason to ask. Who is asked already, or will be, is not asked sooner.
    pub(super) fn ask_soon(&mut self, now: Instant) {
        if self.question == Question::None {
            self.question = Question::At(now);
        }
    }

    /// It is asked.
    pub(super) fn asked(&mut self) {
        self.question = Question::Open;
    }

    /// What a look says about it. An answer about one resource, be it a bad one, is an answer.
    pub(super) fn looked(&mut self, failure: Option<&ObserveError>, now: Instant) -> Change {
        if failure.is_some_and(|failure| failure.unanswered) {
            self.ask_soon(now);
            return Change::Nothing;
        }
        match self.is_down {
            // A look that began before. Whether it is back is asked by itself.
            true => Change::Nothing,
            false => self.answers(),
        }
    }

    /// The answer to a question, or that there is none.
    pub(super) fn answered(
        &mut self,
        answer: Result<(), ObserveError>,
        now: Instant,
        at: DateTime<Utc>,
    ) -> Change {
        match answer {
            Ok(()) => self.answers(),
            Err(failure) => self.is_silent(failure, now, at),
        }
    }

    fn answers(&mut self) -> Change {
        (self.unanswered, self.question) = (0, Question::None);
        let was_down = std::mem::take(&mut self.is_down);
        if self.told_up && !was_down {
            return Change::Nothing;
        }
        self.told_up = true;
        self.untold = Some(Platform::Up);
        Change::Up { was_down }
    }

    fn is_silent(&mut self, failure: ObserveError, now: Instant, at: DateTime<Utc>) -> Change {
        let pause = doubled(FIRST_PROBE_PAUSE, self.unanswered).min(LONGEST_PROBE_PAUSE);
        self.question = Question::At(now + pause);
        self.unanswered = self.unanswered.saturating_add(1);
        if self.is_down || self.unanswered < self.down_after {
            return Change::Nothing;
        }
        self.is_down = true;
        let down = Platform::Down { since: at, code: failure.code, message: failure.message };
        self.untold = Some(down.clone());
        Change::Down(down)
    }

    /// What is to be told to the application now.
    pub(super) fn take_untold(&mut self) -> Option<Platform> {
        self.untold.take()
    }

    /// It could not be told.
    pub(super) fn put_back(&mut self, platform: Platform) {
        self.untold.get_or_insert(platform);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> ObserveError {
        ObserveError::unanswered("away", "nobody is there")
    }

    fn silent(health: &mut Health, now: Instant) -> Change {
        health.asked();
        health.answered(Err(away()), now, DateTime::UNIX_EPOCH)
    }

    fn down() -> Platform {
        let since = DateTime::UNIX_EPOCH;
        Platform::Down { since, code: "away".to_owned(), message: "nobody is there".to_owned() }
    }

    #[test]
    fn a_platform_is_down_after_so_many_silences_and_asked_ever_less() {
        let now = Instant::now();
        let mut health = Health::new(now, 3);
        assert_eq!(health.question(), Question::At(now), "asked at the start");
        let mut pauses = Vec::new();
        for times in 1..=6 {
            let change = silent(&mut health, now);
            assert_eq!(change, if times == 3 { Change::Down(down()) } else { Change::Nothing }, "{times}");
            assert_eq!(health.is_down(), times >= 3);
            let Question::At(next) = health.question() else { panic!("it is asked again") };
            pauses.push((next - now).as_millis());
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(health.take_untold(), Some(down()));
        assert_eq!(health.take_untold(), None, "told once");
        health.asked();
        let back = health.answered(Ok(()), now, DateTime::UNIX_EPOCH);
        assert_eq!((back, health.take_untold()), (Change::Up { was_down: true }, Some(Platform::Up)));
        assert_eq!(health.question(), Question::None);
    }

    #[test]
    fn an_answer_about_a_resource_is_an_answer_unless_the_platform_is_down() {
        let now = Instant::now();
        let mut health = Health::new(now, 2);
        let no = ObserveError::of_resource("forbidden", "never");
        assert_eq!(health.looked(Some(&no), now), Change::Up { was_down: false });
        assert_eq!((health.question(), health.take_untold()), (Question::None, Some(Platform::Up)));
        assert_eq!(health.looked(None, now), Change::Nothing, "that is known");
        // One that does not answer is a reason to ask, and no more than that.
        assert_eq!(health.looked(Some(&away()), now), Change::Nothing);
        assert_eq!(health.question(), Question::At(now));
        silent(&mut health, now);
        assert_eq!(health.looked(None, now), Change::Nothing, "counted anew from here");
        silent(&mut health, now);
        assert!(!health.is_down());
        silent(&mut health, now);
        assert!(health.is_down());
        assert_eq!(health.looked(None, now), Change::Nothing, "a look that began before");
        assert!(health.is_down());
    }

    #[test]
    fn what_could_not_be_told_is_told_later_unless_something_newer_is_known() {
        let now = Instant::now();
        let mut health = Health::new(now, 1);
        silent(&mut health, now);
        let platform = health.take_untold().unwrap();
        health.put_back(platform);
        assert_eq!(health.take_untold(), Some(down()));
        health.ask_soon(now + LONGEST_PROBE_PAUSE);
        assert_eq!(health.question(), Question::At(now + FIRST_PROBE_PAUSE), "not asked sooner or later");
    }
}

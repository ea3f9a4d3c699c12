//! Notices between processes, where the database carries them: somebody has committed, look now.

use async_trait::async_trait;

use super::StoreResult;

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A notice of this sender.
    Notice(String),
    /// The connection was lost and is there again; what was said meanwhile is lost.
    Interruption,
}

/// Notices between processes, where the database carries them: somebody has committed, look now.
#[async_trait]
pub trait Notices: Send + Sync + 'static {
    /// Sends a notice. Does nothing where the database carries none.
    async fn notify(&self, sender: &str) -> StoreResult<()>;

    /// Begins to hear notices, on a connection of its own. `None` where the database carries none.
    async fn hear(&self) -> StoreResult<Option<Box<dyn NoticeListener>>>;
}

/// Hears notices.
#[async_trait]
pub trait NoticeListener: Send {
    /// The next notice; waits for one.
    async fn next(&mut self) -> StoreResult<Heard>;
}

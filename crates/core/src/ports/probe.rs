//! A probe sees every statement just before it is sent to the database.
//!
//! One mechanism for two needs: the benchmark counts statements and round trips with it, and the crash tests
//! kill the process between any two statements with it.

/// Told of every statement before it is sent.
pub trait Probe: Send + Sync + 'static {
    /// `statement` is a stable name such as `append.domain_events` or `commit`. One call is one round trip.
    fn before(&self, statement: &'static str);

    /// The text to run in place of a statement's own. Only tests answer one: a statement with a condition taken out, to see
    /// the case fail that is there for it.
    #[doc(hidden)]
    fn instead(&self, _statement: &'static str, _sql: &str) -> Option<String> {
        None
    }
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    fn before(&self, _statement: &'static str) {}
}

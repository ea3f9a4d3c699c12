//! What is installed into a Towpath as a whole.

use crate::Builder;

/// An application: aggregates, channels, consumers, tables and all else that belongs together.
pub trait Application {
    /// What it is called: a word, which configuration, command line and paths use, too.
    const NAME: &'static str;

    /// Adds everything that it is made of.
    fn install(&self, builder: Builder) -> Builder;
}

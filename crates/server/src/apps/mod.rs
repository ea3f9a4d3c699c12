//! Our own applications on the server: everything of each of them is in its folder.

#[cfg(feature = "hive")]
mod hive;
#[cfg(feature = "market")]
mod market;

#[cfg(feature = "hive")]
pub use hive::Hive;
#[cfg(feature = "market")]
pub use market::Market;

use crate::Server;

/// The list of them.
pub const OURS: &[fn(Server) -> Server] = &[
    #[cfg(feature = "hive")]
    Server::with::<Hive>,
    #[cfg(feature = "market")]
    Server::with::<Market>,
];

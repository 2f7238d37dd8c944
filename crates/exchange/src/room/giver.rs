//! Makes room on a file system.

use std::pin::Pin;

/// A component that can remove files to make room for others.
pub trait GivesRoom: std::fmt::Debug + Send + Sync {
    /// The device that its files are on, if it has any.
    fn device(&self) -> Option<u64>;

    /// Removes files of this many bytes; whether it could.
    fn give(&self, bytes: u64) -> Pin<Box<dyn Future<Output = bool> + '_>>;
}

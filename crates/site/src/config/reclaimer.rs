//! The interface of components that can free space on a file system.

use std::pin::Pin;

/// A component that can remove files to free space for others.
pub trait ReclaimsSpace: std::fmt::Debug + Send + Sync {
    /// Returns the device of its files, if it has any.
    fn device(&self) -> Option<u64>;

    /// Removes files of this many bytes; returns whether it could.
    fn reclaim(&self, bytes: u64) -> Pin<Box<dyn Future<Output = bool> + '_>>;
}

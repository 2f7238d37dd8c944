//! The disk below a cache: its directory ([`directory`]), files that are no entries yet ([`staging`]), reads ([`read`]),
//! the state of the disk ([`health`]), locks of keys ([`key_locks`]). This module knows no entries.

pub(crate) mod directory;
pub(crate) mod finishing;
pub(crate) mod health;
pub(crate) mod key_locks;
pub(crate) mod read;
pub(crate) mod staging;
pub(crate) mod wakeup;

//! The disk of a cache: its directory and reads ([`directory`]), incomplete files ([`staging`]), the state of the disk
//! ([`health`]), locks of keys ([`key_locks`]). This module does not depend on entries.

pub(crate) mod directory;
pub(crate) mod finishing;
pub(crate) mod health;
pub(crate) mod key_locks;
pub(crate) mod staging;
pub(crate) mod wakeup;

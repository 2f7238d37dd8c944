//! Publishes the file of a [`Publication`]: the last write and the rename are one operation, and the index is updated
//! afterwards.
//!
//! The future of [`publish`] may be dropped at any time. Before its first poll, nothing happens. After it, the work
//! continues in a task of the thread, so that no file gets its final name without an entry in the index.

use std::sync::Arc;

use io::Segments;

use crate::disk::directory::now_s;
use crate::disk::finishing::Finishing;
use crate::disk::key_locks::KeyLock;
use crate::disk::staging::TempFile;
use crate::entries::Entries;
use crate::error::Refused;
use crate::fill::backlog::BacklogGuard;
use crate::fill::order::Ticket;
use crate::index::{ObjectSource, SpaceReservation};
use crate::key::Key;
use crate::meta::Meta;
use crate::purge::retention::PendingRequest;

/// A complete entry and the conditions for its publication.
pub(crate) struct Publication {
    /// Its file without the final name; `None` if no bytes are on the disk.
    pub(crate) temp: Option<TempFile>,
    /// The first bytes of the file if they are not on the disk; without `temp`, all bytes.
    pub(crate) data: Vec<Segments>,
    /// The key of its file.
    pub(crate) key: Key,
    pub(crate) reserved: SpaceReservation,
    pub(crate) condition: Condition,
    /// Registered until the entry is published.
    pub(crate) request: Arc<PendingRequest>,
    /// Present if the key was chosen among the keys of several variants.
    pub(crate) variants: Option<KeyLock>,
    /// For a fill's commit: counts the entry until it is on the disk.
    pub(crate) backlog: Option<BacklogGuard>,
}

/// A condition that must be met when an entry is published.
pub(crate) enum Condition {
    /// The current entry of the key has this version.
    Version(u32),
    /// No newer response for the same key is complete.
    Newest(Option<Arc<Ticket>>, Arc<Meta>),
}

impl Condition {
    fn check(&self, entries: &Entries, key: &Key) -> Result<(), Refused> {
        match self {
            Condition::Version(version) => {
                let known = entries.index.peek(&key.0);
                known.filter(|known| known.version == *version).map(drop).ok_or(Refused::Removed)
            }
            Condition::Newest(Some(ticket), meta) if !ticket.is_newest(&meta.variant) => {
                Err(Refused::Superseded)
            }
            Condition::Newest(..) => Ok(()),
        }
    }
}

/// Publishes a complete file as the entry of a key: other tasks see the rename and the change of the index as one step.
/// Returns the new version.
pub(crate) fn publish(entries: &Arc<Entries>, publication: Publication) -> Finishing<Result<u32, Refused>> {
    Finishing::new(publish_now(Arc::clone(entries), publication))
}

async fn publish_now(entries: Arc<Entries>, publication: Publication) -> Result<u32, Refused> {
    let Publication { mut temp, data, key, reserved, condition, request, variants, backlog } = publication;
    assert!(reserved.count() > 0, "an entry occupies at least one block");
    let dir = &entries.dir;
    // Moved before the lock of the key is taken, because the move may copy the complete file.
    if let Some(outside) = temp.take_if(|temp| temp.is_outside()) {
        temp = Some(Box::pin(outside.move_into_cache()).await?);
    }
    let lock = dir.locks.lock(&key).await;
    // Under the lock: no other response can be published between the check and the rename.
    condition.check(&entries, &key)?;
    dir.may_finish()?;
    let to = dir.path_of(&key);
    let published = match temp {
        Some(temp) => temp.publish(to, data).await,
        None => dir.publish(to, dir.temp_path(), None, data).await,
    };
    if let Err(errno) = published {
        dir.write_failed("publishing an entry", errno);
        return Err(Refused::Disk);
    }
    let origin = ObjectSource::Written { epoch: entries.epoch() };
    let (version, victim) = entries.index.insert(&key.0, reserved, origin, now_s());
    entries.memory.remove(&key.0);
    if backlog.is_some() {
        entries.counters.commits.count();
    }
    drop((lock, variants, request, backlog));
    entries.remove_evicted(victim);
    Ok(version)
}

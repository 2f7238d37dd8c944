//! The start of every lookup on disk: a file is opened and as much of it read as is of use, by the engine and past or
//! through the page cache as the asker would have it ([`Access`]). What is in memory is opened and read on the spot where
//! that has lately worked; all else is the engine's.

use io::op::OpenHow;
use io::{Buf, DiskVia, Errno};
use rt::File;
use rustix::fs::OFlags;

use crate::config::Access;
use crate::held::Holding;
use crate::index::{BLOCK_BYTES, Known};
use crate::key::Key;
use crate::store::Store;

/// What an [`Access`] comes to for one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// What tells the file from others: see [`PageCacheAdmission`](io::page_cache::PageCacheAdmission).
    name: u64,
    /// What opens it.
    pub(crate) opens: DiskVia,
    /// What reads it.
    pub(crate) reads: DiskVia,
    /// What reads it past the page cache.
    pub(crate) reads_direct: DiskVia,
    /// Whether it is to be read past the page cache. The file system may not be able to: the open file knows.
    pub(crate) direct: bool,
    /// Whether it is read past the page cache only where it is not in there: it was asked for before, and may not have
    /// stayed.
    pub(crate) evades: bool,
    /// Whether what is in memory is opened and read on the calling thread.
    pub(crate) calls_directly: bool,
    /// What the first read brings.
    pub(crate) first: First,
}

impl Way {
    /// What reads an open file.
    pub(crate) fn reads_of(&self, file: &File) -> DiskVia {
        if file.fd().is_direct() { self.reads_direct } else { self.reads }
    }
}

/// What the first read of a file is to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// All of a file of so many bytes.
    Whole(u64),
    /// Two slots and the first records of the table.
    Prefix,
}

impl First {
    /// Bytes to ask for.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            First::Whole(bytes) => bytes,
            First::Prefix => PREFIX_BYTES,
        }
    }
}

/// A file that is known to be small is read at once; this is one chunk with a usual header.
const SMALL_BLOCKS_MAX: u32 = 18;

/// Larger files up to this one are read at once too where the answer can leave at once: a disk that is asked once for 160 KiB
/// has less to do than one that is asked three times.
const WHOLE_BLOCKS_MAX: u32 = 40;

/// Bytes of the largest file that is read at once.
pub const WHOLE_BYTES_MAX: u64 = WHOLE_BLOCKS_MAX as u64 * BLOCK_BYTES;

/// See [`First::Prefix`]: two slots for heads of some 2000 bytes each, and the records of 16 MiB.
pub(crate) const PREFIX_BYTES: u64 = 8 << 10;

/// A table of this many blocks fits into one read with what is before it, wherever direct reads may start.
const DIRECT_BLOCKS_MAX: u32 = 1 << 20;

impl Store {
    /// How the file of an entry is to be opened and read.
    pub(crate) fn way(&self, key: &Key, access: Access, known: Option<Known>) -> Way {
        let known = known.filter(|known| known.measured);
        let blocks = known.map(|known| known.blocks).filter(|&blocks| blocks <= DIRECT_BLOCKS_MAX);
        // Of an entry that is not known yet how it is read is decided by who sends it; its head is read as any file.
        let direct = blocks.is_some_and(|blocks| access.is_direct(u64::from(blocks) * BLOCK_BYTES));
        let is_whole = |blocks: u32| {
            blocks <= SMALL_BLOCKS_MAX
                || (blocks <= WHOLE_BLOCKS_MAX && (direct || !access.sends_files) && access.has_room)
        };
        let first = match blocks {
            Some(blocks) if is_whole(blocks) => First::Whole(u64::from(blocks) * BLOCK_BYTES),
            _ => First::Prefix,
        };
        let reads = if direct { access.direct_via } else { access.via };
        let is_left_to_us = access.direct_from.is_none() && access.calls_directly && reads != DiskVia::Sync;
        let name = name_of(key);
        let evades =
            is_left_to_us && known.is_some_and(|known| known.asked) && !self.admission.admit(name, rt::now());
        Way {
            name,
            opens: access.via,
            reads,
            reads_direct: access.direct_via,
            direct,
            evades,
            calls_directly: access.calls_directly,
            first,
        }
    }

    /// Has the rest of a file read past the page cache, where that is this reader's own to decide.
    pub(crate) fn evade(&self, file: &File, way: Way) {
        if way.evades && file.is_sole() && !file.fd().is_direct() {
            // A file system that cannot goes on with the page cache.
            let _ = file.fd().set_direct(OFlags::NONBLOCK);
        }
    }

    /// The open file of an entry, if it is held and has what will be read in memory, or is read past that anyhow.
    pub(crate) fn held_for(&self, key: &Key, known: Option<Known>, way: Way) -> Option<Holding> {
        let known = known.filter(|known| way.calls_directly && known.measured)?;
        let held = self.held(key, known.version, way.direct)?;
        let bytes = u64::from(known.blocks) * BLOCK_BYTES;
        let in_memory = || {
            let range = held.read.as_ref().map_or(0..bytes, |read| {
                let header = &read.header;
                header.layout.body..header.layout.body + header.length
            });
            held.is_resident(range.start, range.end - range.start)
        };
        if !way.evades {
            return Some(held);
        }
        let in_memory = in_memory();
        self.admission.note(way.name, in_memory, rt::now());
        in_memory.then_some(held)
    }

    /// Opens the file of a key to be read.
    pub(crate) async fn open_entry(&self, key: &Key, way: Way) -> Result<File, Errno> {
        let path = || self.path_of(key).0;
        // A pipe that somebody has put there must not be waited for, nor a link followed.
        let mut flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if way.direct {
            flags |= OFlags::DIRECT;
        }
        let mut how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
        if way.calls_directly {
            how.is_cold = true;
            if self.names.is_worth_trying() {
                let opened = File::open_cached(None, &path(), how);
                // Not in memory, or a kernel or a file system that cannot say so.
                let missed = matches!(opened, Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS));
                self.names.note(!missed);
                if !missed {
                    return opened;
                }
            }
        }
        match File::open(None, path(), how, self.device, way.opens).await {
            // A file system without direct I/O.
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                how.flags = (flags - OFlags::DIRECT).bits() as i32;
                Box::pin(File::open(None, path(), how, self.device, way.opens)).await
            }
            opened => opened,
        }
    }

    /// The start of a file, if that is in memory; the empty buffer comes back if it is not, or is taken not to be.
    pub(crate) fn read_resident(&self, file: &File, bytes: u64, way: Way, mut buf: Buf) -> Result<Buf, Buf> {
        if file.fd().is_direct() || !way.calls_directly || !self.data.is_worth_trying() {
            return Err(buf);
        }
        let read = file.read_resident(0, bytes as u32, &mut buf);
        self.data.note(read.is_ok());
        if way.evades {
            self.admission.note(way.name, read.is_ok(), rt::now());
        }
        match read {
            Ok(count) if count > 0 => Ok(buf),
            _ => {
                buf.set_len(0);
                Err(buf)
            }
        }
    }
}

/// Half of a key tells its file from others, nearly always.
fn name_of(key: &Key) -> u64 {
    let (_, half) = key.0.split_at(size_of::<Key>() / 2);
    u64::from_le_bytes(half.try_into().expect("a half of sixteen bytes"))
}

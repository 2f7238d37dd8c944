//! The start of every lookup on disk: a file is opened and as much of it read as is of use, by the engine and past or
//! through the page cache as the asker would have it ([`Access`]). What is in memory is opened and read on the spot where
//! that has lately worked; all else is the engine's.

use io::op::OpenHow;
use io::{Buf, DiskVia, Errno};
use rt::File;
use rustix::fs::OFlags;

use crate::config::Access;
use crate::index::{BLOCK_BYTES, Known};
use crate::key::Key;
use crate::store::Store;

/// What an [`Access`] comes to for one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// What opens it.
    pub(crate) opens: DiskVia,
    /// What reads it.
    pub(crate) reads: DiskVia,
    /// Whether it is to be read past the page cache. The file system may not be able to: the open file knows.
    pub(crate) direct: bool,
    /// Whether what is in memory is opened and read on the calling thread.
    pub(crate) calls_directly: bool,
    /// What the first read brings.
    pub(crate) first: First,
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

/// Larger files up to this one are read at once too where there is memory for it: a disk that is asked once for 160 KiB
/// has less to do than one that is asked three times.
const WHOLE_BLOCKS_MAX: u32 = 40;

/// See [`First::Prefix`].
pub(crate) const PREFIX_BYTES: u64 = 16 << 10;

/// A table of this many blocks fits into one read with what is before it, wherever direct reads may start.
const DIRECT_BLOCKS_MAX: u32 = 1 << 20;

impl Store {
    /// How the file of an entry is to be opened and read.
    pub(crate) fn way(&self, access: Access, known: Option<Known>) -> Way {
        let blocks = known.map(|known| known.blocks).filter(|&blocks| blocks <= DIRECT_BLOCKS_MAX);
        // Of an entry that is not known yet how it is read is decided by who sends it; its head is read as any file.
        let direct = blocks.is_some_and(|blocks| access.is_direct(u64::from(blocks) * BLOCK_BYTES));
        let is_rich = || rt::pool().spare_bytes() > rt::pool().bytes_max() / 2;
        let is_whole = |blocks: u32| {
            blocks <= SMALL_BLOCKS_MAX
                || (blocks <= WHOLE_BLOCKS_MAX && (direct || !access.sends_files) && is_rich())
        };
        let first = match blocks {
            Some(blocks) if is_whole(blocks) => First::Whole(u64::from(blocks) * BLOCK_BYTES),
            _ => First::Prefix,
        };
        let reads = if direct { access.direct_via } else { access.via };
        Way { opens: access.via, reads, direct, calls_directly: access.calls_directly, first }
    }

    /// Opens the file of a key to be read.
    pub(crate) async fn open_entry(&self, key: &Key, way: Way) -> Result<File, Errno> {
        let (path, _) = self.path_of(key);
        // A pipe that somebody has put there must not be waited for, nor a link followed.
        let mut flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if way.direct {
            flags |= OFlags::DIRECT;
        }
        let mut how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
        if way.calls_directly {
            how.is_cold = true;
            if self.names.is_worth_trying() {
                let opened = File::open_cached(None, &path, how);
                // Not in memory, or a kernel or a file system that cannot say so.
                let missed = matches!(opened, Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS));
                self.names.note(!missed);
                if !missed {
                    return opened;
                }
            }
        }
        match File::open(None, path.clone(), how, self.device, way.opens).await {
            // A file system without direct I/O.
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                how.flags = (flags - OFlags::DIRECT).bits() as i32;
                File::open(None, path, how, self.device, way.opens).await
            }
            opened => opened,
        }
    }

    /// The start of a file that is in memory.
    pub(crate) fn read_resident(&self, file: &File, bytes: u64, way: Way) -> Option<Buf> {
        if file.fd().is_direct() || !way.calls_directly || !self.data.is_worth_trying() {
            return None;
        }
        let mut buf = rt::pool().get(bytes as usize)?;
        buf.set_len(0);
        let read = file.read_resident(0, bytes as u32, &mut buf);
        self.data.note(read.is_ok());
        read.ok().filter(|&count| count > 0)?;
        Some(buf)
    }
}

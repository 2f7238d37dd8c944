//! Cache of file probes that requests of one event-loop turn share.
//!
//! Every request that a task handles now was received by the last turn or before. So the result of a stat(2) or read
//! since then is as recent for each request as another call would be. One call serves all concurrent requests for a
//! file. The next turn discards the results, and so do bytes that are received outside of a turn.

use std::cell::RefCell;
use std::ffi::CStr;
use std::rc::{Rc, Weak};

use io::facts::Stat;
use io::{Buf, Errno, SharedBytes};

use super::{File, Opened, stat_now};
use crate::buffers::try_buffer;
use crate::reactor;

/// Maximum number of paths, and of file ranges, that are cached in a turn: each lookup is a linear search. Further ones
/// are probed each time.
const REMEMBERED_MAX: usize = 4;

/// The results of the current turn.
#[derive(Default)]
struct TurnCache {
    /// The turn that the results belong to.
    turn_id: u64,
    /// Paths without the terminating zero byte, with their results. Entries from index `stats_len` on belong to earlier
    /// turns and are retained for reuse of their memory.
    stats: Vec<(Vec<u8>, Stat)>,
    stats_len: usize,
    reads: Vec<Read>,
    /// Attributes of open files.
    file_stats: Vec<(Weak<Opened>, Stat)>,
}

/// A requested range of a file.
struct Read {
    file: Weak<Opened>,
    offset: u64,
    len: u32,
    /// The bytes, if they were requested at least twice.
    bytes: Option<SharedBytes>,
}

thread_local! {
    static TURN_CACHE: RefCell<TurnCache> = RefCell::default();
}

/// Frees the memory of an earlier turn's results.
pub(crate) fn trim() {
    let _ = TURN_CACHE.try_with(|seen| drop(seen.take()));
}

impl TurnCache {
    /// Discards results of an earlier turn: the sender of a newer request may have changed a file before sending it.
    fn at(&mut self, turn_id: u64) -> &mut TurnCache {
        if std::mem::replace(&mut self.turn_id, turn_id) != turn_id {
            self.stats_len = 0;
            self.reads.clear();
            self.file_stats.clear();
        }
        self
    }

    fn stat(&mut self, path: &CStr) -> Result<Stat, Errno> {
        let bytes = path.to_bytes();
        if let Some((_, stat)) = self.stats[..self.stats_len].iter().find(|(seen, _)| seen == bytes) {
            return Ok(*stat);
        }
        let stat = stat_now(path)?;
        if self.stats_len == REMEMBERED_MAX {
            return Ok(stat);
        }
        if self.stats_len == self.stats.len() {
            self.stats.push((Vec::new(), stat));
        }
        let (seen, then) = &mut self.stats[self.stats_len];
        seen.clear();
        seen.extend_from_slice(bytes);
        *then = stat;
        self.stats_len += 1;
        assert!(
            self.stats_len <= self.stats.len() && self.stats_len <= REMEMBERED_MAX,
            "the result is stored"
        );
        Ok(stat)
    }

    fn file_stat(&mut self, file: &File) -> Result<Stat, Errno> {
        let is_it = |(seen, _): &&(Weak<Opened>, Stat)| seen.as_ptr() == Rc::as_ptr(&file.0);
        if let Some((_, stat)) = self.file_stats.iter().find(is_it) {
            return Ok(*stat);
        }
        let stat = file.stat_inline()?;
        if self.file_stats.len() < REMEMBERED_MAX {
            self.file_stats.push((Rc::downgrade(&file.0), stat));
        }
        Ok(stat)
    }

    fn read(&mut self, file: &File, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        match self.shared(file, offset, len)? {
            Some(bytes) => Ok(buf.append(&bytes) as u32),
            None => file.read_resident(offset, len, buf),
        }
    }

    /// Returns `None` for the first request of a turn, as most ranges are requested only once.
    fn shared(&mut self, file: &File, offset: u64, len: u32) -> Result<Option<SharedBytes>, Errno> {
        let is_it = |read: &&mut Read| {
            read.file.as_ptr() == Rc::as_ptr(&file.0) && (read.offset, read.len) == (offset, len)
        };
        let Some(read) = self.reads.iter_mut().find(is_it) else {
            if self.reads.len() < REMEMBERED_MAX {
                self.reads.push(Read { file: Rc::downgrade(&file.0), offset, len, bytes: None });
            }
            return Ok(None);
        };
        if read.bytes.is_none() {
            let Some(mut bytes) = try_buffer(len as usize) else { return Ok(None) };
            file.read_resident(offset, len, &mut bytes)?;
            read.bytes = Some(bytes.freeze());
        }
        Ok(read.bytes.clone())
    }
}

/// As [`stat_now`], but reuses a result since the last turn: for responses to requests that were received before.
pub fn stat_of_turn(path: &CStr) -> Result<Stat, Errno> {
    let turn_id = reactor::with_current(|reactor| reactor.turn_id());
    TURN_CACHE.with_borrow_mut(|seen| seen.at(turn_id).stat(path))
}

impl File {
    /// As [`File::stat_inline`], but reuses a result since the last turn.
    pub fn stat_of_turn(&self) -> Result<Stat, Errno> {
        let turn_id = self.0.reactor.turn_id();
        TURN_CACHE.with_borrow_mut(|seen| seen.at(turn_id).file_stat(self))
    }

    /// As [`File::read_resident`], but reuses a read since the last turn: for responses from a file that several
    /// requests may need. The bytes are cached until the next turn.
    pub fn read_of_turn(&self, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        let turn_id = self.0.reactor.turn_id();
        TURN_CACHE.with_borrow_mut(|seen| seen.at(turn_id).read(self, offset, len, buf))
    }

    /// Returns the same bytes, shared between the requests of this turn; `None` for the first request, which must read.
    pub fn shared_of_turn(&self, offset: u64, len: u32) -> Result<Option<SharedBytes>, Errno> {
        let turn_id = self.0.reactor.turn_id();
        TURN_CACHE.with_borrow_mut(|seen| seen.at(turn_id).shared(self, offset, len))
    }
}

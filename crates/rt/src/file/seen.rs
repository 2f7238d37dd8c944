//! Results of file probes that requests of one event-loop turn share.
//!
//! Every request that a task serves now was received by the last turn or before it. So a stat(2) or read of a file
//! since then is as recent for each of them as another call would be, and one call serves all concurrent requests for a
//! file. The next turn discards the results, and so do bytes that are received outside of a turn.

use std::cell::RefCell;
use std::ffi::CStr;
use std::rc::{Rc, Weak};

use io::op::Stat;
use io::{Buf, Errno, SharedBytes};

use super::{File, Opened, stat_now};
use crate::buffers::buffer_at_once;
use crate::reactor;

/// Paths, and ranges of files, that are remembered in a turn: each search goes through all of them. Further ones are
/// probed each time.
const REMEMBERED_MAX: usize = 4;

/// The results of this turn.
#[derive(Default)]
struct Seen {
    /// The turn that all of it is of.
    turn_id: u64,
    /// Of each path its bytes without the one that ends it. Those beyond `looked` are of earlier turns, kept for their memory.
    looks: Vec<(Vec<u8>, Stat)>,
    looked: usize,
    reads: Vec<Read>,
}

/// Requested bytes.
struct Read {
    file: Weak<Opened>,
    offset: u64,
    len: u32,
    /// The bytes, from their second request on.
    bytes: Option<SharedBytes>,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

/// Frees the memory of an earlier turn's results.
pub(crate) fn trim() {
    let _ = SEEN.try_with(|seen| drop(seen.take()));
}

impl Seen {
    /// Discards results of an earlier turn: the sender of a newer request may have changed a file before it.
    fn at(&mut self, turn_id: u64) -> &mut Seen {
        if std::mem::replace(&mut self.turn_id, turn_id) != turn_id {
            self.looked = 0;
            self.reads.clear();
        }
        self
    }

    fn look(&mut self, path: &CStr) -> Result<Stat, Errno> {
        let bytes = path.to_bytes();
        if let Some((_, stat)) = self.looks[..self.looked].iter().find(|(seen, _)| seen == bytes) {
            return Ok(*stat);
        }
        let stat = stat_now(path)?;
        if self.looked == REMEMBERED_MAX {
            return Ok(stat);
        }
        if self.looked == self.looks.len() {
            self.looks.push((Vec::new(), stat));
        }
        let (seen, then) = &mut self.looks[self.looked];
        seen.clear();
        seen.extend_from_slice(bytes);
        *then = stat;
        self.looked += 1;
        assert!(self.looked <= self.looks.len() && self.looked <= REMEMBERED_MAX, "what was seen is kept");
        Ok(stat)
    }

    fn read(&mut self, file: &File, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        match self.shared(file, offset, len)? {
            Some(bytes) => Ok(buf.append(&bytes) as u32),
            None => file.read_resident(offset, len, buf),
        }
    }

    /// Nothing for the first request of a turn: most are the only one.
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
            let Some(mut bytes) = buffer_at_once(len as usize) else { return Ok(None) };
            file.read_resident(offset, len, &mut bytes)?;
            read.bytes = Some(bytes.freeze());
        }
        Ok(read.bytes.clone())
    }
}

/// As [`stat_now`], where a result since the last turn is as good: for responses to requests that were received before.
pub fn stat_of_turn(path: &CStr) -> Result<Stat, Errno> {
    let turn_id = reactor::with_current(|reactor| reactor.turn_id());
    SEEN.with_borrow_mut(|seen| seen.at(turn_id).look(path))
}

impl File {
    /// As [`File::read_resident`], where a read since the last turn is as good: for responses from a file that several
    /// requests may need. The bytes are kept until the next turn.
    pub fn read_of_turn(&self, offset: u64, len: u32, buf: &mut Buf) -> Result<u32, Errno> {
        let turn_id = self.0.reactor.turn_id();
        SEEN.with_borrow_mut(|seen| seen.at(turn_id).read(self, offset, len, buf))
    }

    /// The same bytes, shared between the requests of this turn; `None` for the first request, which reads.
    pub fn shared_of_turn(&self, offset: u64, len: u32) -> Result<Option<SharedBytes>, Errno> {
        let turn_id = self.0.reactor.turn_id();
        SEEN.with_borrow_mut(|seen| seen.at(turn_id).shared(self, offset, len))
    }
}

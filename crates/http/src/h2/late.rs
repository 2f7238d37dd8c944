//! Streams whose response ended before their request: RST_STREAM with NO_ERROR has closed them, but the client may still send frames.
//!
//! These frames are discarded, but an error in them is reported as on an open stream, once: the client should not assume that its request
//! was valid. A record is as small as the number of the stream with the state that the checks need.

use std::collections::VecDeque;

use super::error::{Fault, StreamFault};
use super::frame;
use super::session::Session;
use super::settings::WINDOW_MAX;
use super::stream::Stream;
use crate::multiplexed::Block;

/// Maximum number of records: the frames of older streams have arrived, or are not checked.
const LATE_MAX: usize = 64;

/// State of a closed stream whose client may still send.
#[derive(Debug)]
struct Late {
    id: u32,
    /// Remaining bytes of the body, if its length was announced.
    left: Option<u64>,
    /// Number of bytes that may be sent to the client, whose updates must not exceed the maximum.
    send_window: i64,
}

/// The records, oldest first. Empty without memory if no response ended early.
#[derive(Debug, Default)]
pub(super) struct LateStreams(VecDeque<Late>);

impl LateStreams {
    /// Adds a stream that is being closed.
    pub(super) fn add<T>(&mut self, stream: &Stream<T>) {
        if self.0.len() == LATE_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Late { id: stream.id, left: stream.left, send_window: stream.send_window });
    }

    /// Removes a stream, because the client has ended it, or because an error was reported.
    pub(super) fn remove(&mut self, id: u32) {
        self.0.retain(|late| late.id != id);
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Late> {
        self.0.iter_mut().find(|late| late.id == id)
    }
}

impl<T> Session<T> {
    /// Checks DATA of `len` body bytes.
    pub(super) fn late_data(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let Some(late) = self.late.get_mut(id) else { return Ok(()) };
        let rest = late.left.map(|left| left.checked_sub(len as u64));
        match rest {
            Some(None) => return self.report_late(id, StreamFault::Length, out),
            Some(Some(left)) if ends && left > 0 => return self.report_late(id, StreamFault::Length, out),
            Some(rest) => late.left = rest,
            None => {}
        }
        if ends {
            self.late.remove(id);
        }
        Ok(())
    }

    /// Decodes a header section, which must be a valid trailer section.
    pub(super) fn late_head(
        &mut self,
        (id, ends): (u32, bool),
        block: Block,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        self.spend()?;
        let mut is_trailer = ends;
        self.decode(block, input, |name, _| is_trailer &= !name.starts_with(b":"))?;
        let Some(late) = self.late.get_mut(id) else { return Ok(()) };
        if !is_trailer {
            return self.report_late(id, StreamFault::Trailers, out);
        }
        if late.left.is_some_and(|left| left > 0) {
            return self.report_late(id, StreamFault::Length, out);
        }
        self.late.remove(id);
        Ok(())
    }

    /// Checks WINDOW_UPDATE.
    pub(super) fn late_window(&mut self, id: u32, bytes: u32, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Some(late) = self.late.get_mut(id) else { return Ok(()) };
        late.send_window += i64::from(bytes);
        if late.send_window > i64::from(WINDOW_MAX) {
            return self.report_late(id, StreamFault::WindowTooLarge, out);
        }
        Ok(())
    }

    /// Reports an error on a stream that has a record.
    pub(super) fn report_late(
        &mut self,
        id: u32,
        fault: StreamFault,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        if self.late.get_mut(id).is_none() {
            return Ok(());
        }
        self.late.remove(id);
        frame::push_reset(out, id, fault.code());
        self.spend_for_fault()
    }
}

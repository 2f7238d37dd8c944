//! Stages that change a body between its source and the socket: `sub`, `ssi`, `gzip` and others.
//!
//! A module's header filter adds a [`BodyFilter`] to the response, and `filter::levels` passes the body through it. A
//! filter gets bytes and returns bytes, and never waits. To include the response of a subrequest in the body, the
//! filter adds the subrequest to its output, and `filter::levels` runs it.

use std::collections::VecDeque;

use crate::request::Request;
use crate::subrequest::spec::Subrequest;
use transfer::coding::CodingError;

/// One stage of the body's filter chain.
pub trait BodyFilter {
    /// Processes bytes of the body and returns how many it has consumed, at least one. It consumes fewer if the
    /// remaining bytes depend on a subrequest in `out`, or if the limit of a slice was reached. The remaining bytes are
    /// passed again after the subrequest's response was sent.
    ///
    /// # Errors
    /// The body cannot continue; the client receives only the bytes sent before.
    fn push(&mut self, request: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError>;

    /// Handles the end of the body: outputs the bytes held back, and any bytes that the filter adds after the body.
    ///
    /// # Errors
    /// As for [`BodyFilter::push`].
    fn finish(&mut self, request: &mut Request, out: &mut Output) -> Result<(), CodingError>;

    /// Outputs the bytes held back, because bytes of another source follow.
    fn interrupt(&mut self, _request: &mut Request, _out: &mut Output) {}

    /// Receives the response of a subrequest that was to be captured.
    fn captured(&mut self, _request: &mut Request, _status: u16, _body: Vec<u8>) {}

    /// Returns the maximum number of bytes per push, so that no push blocks the thread for more than a millisecond.
    fn slice_max(&self) -> usize {
        SLICE_MAX
    }
}

/// Bytes that filters get per call: copying and searching them takes about ten microseconds.
pub const SLICE_MAX: usize = 64 << 10;

/// The output of a filter, in order.
#[derive(Default)]
pub struct Output {
    pieces: VecDeque<Piece>,
}

/// A piece of a filter's output.
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    /// Bytes from `start` on, which a filter has not consumed. They are not moved, because it may consume few per call.
    Rest {
        bytes: Vec<u8>,
        start: usize,
    },
    /// A subrequest whose response is inserted here, or is captured.
    Subrequest(Subrequest),
}

impl Output {
    /// Returns the buffer to append bytes to.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        if !matches!(self.pieces.back(), Some(Piece::Bytes(_))) {
            self.pieces.push_back(Piece::Bytes(Vec::new()));
        }
        match self.pieces.back_mut() {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => unreachable!("bytes were put there"),
        }
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes().extend_from_slice(bytes);
        }
    }

    /// Appends a subrequest, whose response is inserted here.
    pub fn subrequest(&mut self, subrequest: Subrequest) {
        self.pieces.push_back(Piece::Subrequest(subrequest));
    }

    /// Returns the pieces in reverse order.
    pub(crate) fn into_reversed(self) -> impl Iterator<Item = Piece> {
        self.pieces.into_iter().rev()
    }
}

//! Stages that change a body between its source and the socket: `sub`, `ssi`, `gzip` and others.
//!
//! A module's head filter puts a [`BodyFilter`] into the response; `filter::levels` feeds it. A filter is given bytes
//! and gives bytes, and waits for nothing itself: if the response of a subrequest belongs into the body, the filter
//! adds it to the output, which fetches it.

use std::collections::VecDeque;
use std::fmt;

use crate::request::Request;
use crate::subrequest::Subrequest;
use transfer::coding::CodingError;

/// One stage of a body on its way.
pub trait BodyFilter {
    /// Takes bytes of the body and returns how many, at least one. Fewer than all are taken if the rest depends on a
    /// subrequest that was put into `out`, or if the limit of a slice was reached: the subrequest runs and its response
    /// is sent before the rest comes again.
    ///
    /// # Errors
    /// The body cannot continue; the client gets only the part sent before.
    fn push(&mut self, request: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, FilterError>;

    /// The body has ended: outputs the bytes held back, and those that follow the body.
    ///
    /// # Errors
    /// As for [`BodyFilter::push`].
    fn finish(&mut self, request: &mut Request, out: &mut Output) -> Result<(), FilterError>;

    /// Bytes of another origin come here: bytes held back are sent before them.
    fn interrupt(&mut self, _request: &mut Request, _out: &mut Output) {}

    /// The response of a subrequest that was to be captured.
    fn captured(&mut self, _request: &mut Request, _status: u16, _body: Vec<u8>) {}

    /// Bytes that one push gets at most, so that no push holds the thread for longer than a millisecond.
    fn slice_max(&self) -> usize {
        SLICE_MAX
    }
}

/// Bytes that filters get at once: copying and searching them takes some ten microseconds.
pub const SLICE_MAX: usize = 64 << 10;

/// Why a body cannot continue, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError(pub String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<CodingError> for FilterError {
    fn from(error: CodingError) -> FilterError {
        FilterError(error.0)
    }
}

/// The output of a filter, in order.
#[derive(Default)]
pub struct Output {
    pieces: VecDeque<Piece>,
}

/// A piece of a filter's output.
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    /// Bytes that a filter has not taken yet, from `start` on: they are not moved, because it may take few at a time.
    Rest {
        bytes: Vec<u8>,
        start: usize,
    },
    /// The response of this subrequest takes this place, or is captured.
    Subrequest(Subrequest),
}

impl Output {
    /// Where bytes are appended.
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

    /// Puts the response of a subrequest here.
    pub fn subrequest(&mut self, subrequest: Subrequest) {
        self.pieces.push_back(Piece::Subrequest(subrequest));
    }

    /// The pieces, last one first.
    pub(crate) fn into_reversed(self) -> impl Iterator<Item = Piece> {
        self.pieces.into_iter().rev()
    }
}

//! The frames of one request stream (RFC 9114 section 4.1), for both ends: from received bytes to header sections and body bytes.
//!
//! ```text
//!   BeforeHead --HEADERS--> Body --HEADERS--> AfterTrailers
//!      ^  |                  |  `--DATA--> Body
//!      `--' interim head     `--tunnel()--> Tunnel (only DATA)
//! ```
//! Unknown frames are ignored in every state. Main type: [`RequestStream`]. Bytes of DATA are not copied; a header section is copied only
//! if it arrives in several pieces.

use super::error::{Http3Fault, RequestFault, StreamFailure};
use super::frame::{FrameStart, kind};
use crate::multiplexed::Block;
use crate::multiplexed::calm::{Calm, Progress};

/// One request stream. Its caller stores it until the stream has ended.
#[derive(Debug)]
pub struct RequestStream {
    id: u64,
    phase: MessagePhase,
    frame: OpenFrame,
    start: FrameStart,
    /// A header section that arrives in pieces, or waits for entries of the QPACK table.
    pub(super) block: Vec<u8>,
    /// Whether that block has waited.
    pub(super) has_waited: bool,
    /// Remaining bytes of the body, if its length was announced.
    left: Option<u64>,
    /// Whether the caller holds back the work for the stream.
    is_held: bool,
    /// Whether the header section of a response was sent.
    pub(super) has_head: bool,
    /// Whether the message of this end is complete.
    pub(super) is_finished: bool,
    /// Whether the message of the peer is complete.
    pub(super) is_received: bool,
}

/// Frames that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePhase {
    /// HEADERS.
    BeforeHead,
    /// DATA, or HEADERS with trailers.
    Body,
    /// None.
    AfterTrailers,
    /// DATA (RFC 9114 section 4.4).
    Tunnel,
}

/// The frame whose payload is incomplete, with the number of missing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenFrame {
    /// The start of a frame is next.
    None,
    Headers(usize),
    Data(u64),
    Ignored(u64),
}

/// A received event of a request stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEvent {
    /// All input was used, and more is needed.
    More,
    /// A header section, to be decoded by [`Http3Session::decode`](super::Http3Session::decode).
    Head {
        /// Location of the header block.
        block: Block,
    },
    /// Bytes of a body, at this range of the input.
    Data {
        /// Index of the first byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
    },
    /// A trailer section, to be decoded by [`Http3Session::decode_trailers`](super::Http3Session::decode_trailers).
    Trailers {
        /// Location of the header block.
        block: Block,
    },
}

/// Result of one call of [`Http3Session::receive`](super::Http3Session::receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStep {
    /// Number of input bytes processed.
    pub used: usize,
    /// The event.
    pub event: RequestEvent,
}

/// Conditions of a connection for its request streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRules {
    pub(super) is_server: bool,
    /// Maximum length of a header block in bytes.
    pub(super) block_max: usize,
}

impl RequestStream {
    pub(super) fn new(id: u64) -> RequestStream {
        RequestStream {
            id,
            phase: MessagePhase::BeforeHead,
            frame: OpenFrame::None,
            start: FrameStart::default(),
            block: Vec::new(),
            has_waited: false,
            left: None,
            is_held: false,
            has_head: false,
            is_finished: false,
            is_received: false,
        }
    }

    /// Returns the number of the stream.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes the announced length of the body, which is compared with the received bytes.
    pub fn expect(&mut self, length: u64) {
        self.left = Some(length);
    }

    /// Marks the stream as a tunnel of another protocol (RFC 9114 section 4.4, RFC 9220).
    pub fn tunnel(&mut self) {
        self.phase = MessagePhase::Tunnel;
        self.left = None;
    }

    /// Whether the stream is a tunnel of another protocol.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        self.phase == MessagePhase::Tunnel
    }

    /// For a client: notes that the received head is interim, so that another one follows.
    pub fn expect_another_head(&mut self) {
        self.phase = MessagePhase::BeforeHead;
    }

    /// Notes whether the work for the stream is held back: if the peer cancels it in this state, no work is wasted.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Returns the number of bytes of a block.
    #[must_use]
    pub fn block_len(&self, block: Block) -> usize {
        match block {
            Block::Input(start, end) => end - start,
            Block::Gathered => self.block.len(),
        }
    }

    /// Returns the progress of its request.
    pub(super) fn progress(&self) -> Progress {
        Progress { is_held: self.is_held, has_head: self.has_head, is_complete: self.is_finished }
    }

    /// Processes input up to the next event.
    pub(super) fn receive(
        &mut self,
        input: &[u8],
        rules: StreamRules,
        calm: &mut Calm,
    ) -> Result<RequestStep, StreamFailure> {
        let mut at = 0;
        while at < input.len() || self.is_block_complete() {
            let here = input.len() - at;
            match &mut self.frame {
                OpenFrame::None => {
                    let (used, start) = self.start.read(&input[at..]);
                    at += used;
                    if let Some((kind, len)) = start {
                        self.begin(kind, len, rules, calm)?;
                    }
                }
                OpenFrame::Ignored(left) => at += take(left, here),
                OpenFrame::Data(left) => {
                    let count = take(left, here);
                    self.end_frame();
                    let event = RequestEvent::Data { start: at, end: at + count };
                    return Ok(RequestStep { used: at + count, event });
                }
                OpenFrame::Headers(left) => {
                    let block = match self.block.is_empty() && *left <= here {
                        true => Block::Input(at, at + *left),
                        false => Block::Gathered,
                    };
                    let count = here.min(*left);
                    if block == Block::Gathered {
                        self.block.extend_from_slice(&input[at..at + count]);
                    }
                    at += count;
                    *left -= count;
                    if *left == 0 {
                        self.frame = OpenFrame::None;
                        return Ok(RequestStep { used: at, event: self.end_block(block) });
                    }
                }
            }
            self.end_frame();
        }
        Ok(RequestStep { used: at, event: RequestEvent::More })
    }

    /// Whether a header block without bytes is complete.
    fn is_block_complete(&self) -> bool {
        self.frame == OpenFrame::Headers(0)
    }

    /// Ends a frame whose payload is complete.
    fn end_frame(&mut self) {
        if matches!(self.frame, OpenFrame::Data(0) | OpenFrame::Ignored(0)) {
            self.frame = OpenFrame::None;
        }
    }

    /// Begins a frame.
    fn begin(
        &mut self,
        kind: u64,
        len: u64,
        rules: StreamRules,
        calm: &mut Calm,
    ) -> Result<(), StreamFailure> {
        use MessagePhase::{BeforeHead, Body, Tunnel};
        self.frame = match (kind, self.phase) {
            (kind::DATA, Body | Tunnel) => {
                if let Some(left) = &mut self.left {
                    *left = left.checked_sub(len).ok_or(RequestFault::Length)?;
                }
                match len {
                    0 => calm.spend(1)?,
                    _ => calm.pay_back(1),
                }
                OpenFrame::Data(len)
            }
            (kind::HEADERS, BeforeHead | Body) => {
                self.block.clear();
                match usize::try_from(len) {
                    Ok(len) if len <= rules.block_max => OpenFrame::Headers(len),
                    _ => return Err(RequestFault::HeadTooLarge.into()),
                }
            }
            // RFC 9114 section 7.2.5: without MAX_PUSH_ID no promise is valid.
            (kind::PUSH_PROMISE, _) if !rules.is_server => return Err(Http3Fault::Push.into()),
            (kind, _) if is_unexpected(kind) => return Err(Http3Fault::FrameUnexpected.into()),
            _ => {
                calm.spend(1)?;
                OpenFrame::Ignored(len)
            }
        };
        // A frame without payload is complete: the loop does not wait for further input.
        self.end_frame();
        Ok(())
    }

    fn end_block(&mut self, block: Block) -> RequestEvent {
        if self.phase == MessagePhase::BeforeHead {
            self.phase = MessagePhase::Body;
            return RequestEvent::Head { block };
        }
        self.phase = MessagePhase::AfterTrailers;
        RequestEvent::Trailers { block }
    }

    /// Handles the end of the stream.
    pub(super) fn receive_end(&mut self) -> Result<(), StreamFailure> {
        if self.frame != OpenFrame::None || !self.start.is_empty() {
            return Err(Http3Fault::Truncated.into());
        }
        if self.phase == MessagePhase::BeforeHead {
            return Err(RequestFault::Incomplete.into());
        }
        if self.left.is_some_and(|left| left > 0) {
            return Err(RequestFault::Length.into());
        }
        self.is_received = true;
        Ok(())
    }
}

/// Takes up to `here` bytes of a payload; returns their number.
fn take(left: &mut u64, here: usize) -> usize {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(here);
    *left -= count as u64;
    count
}

/// Whether a frame of a known type is not allowed on a request stream in this state (RFC 9114 section 7.2).
fn is_unexpected(frame: u64) -> bool {
    kind::is_of_http2(frame)
        || matches!(
            frame,
            kind::DATA
                | kind::HEADERS
                | kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_PUSH
        )
}

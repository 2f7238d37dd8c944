//! Reads the body of a request, for every protocol: failures, limits, temporary files, and the feed of a handler that
//! consumes it piece by piece.

use std::rc::Rc;
use std::time::Duration;

use http::fields::BodyLength;

use crate::course::BodyNeed;
use crate::disk_space::DiskSpace;
use crate::request::Request;
use site::settings::core::Core;
use telemetry::{Level, Reason};
use transfer::body::choose;
use transfer::incoming::{BodyAborted, IncomingBody};
use transfer::received::{BodyInFile, ReceivedBody};

/// The reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFailure {
    /// The request is rejected with this status.
    Refused(u16),
    /// As in nginx the connection is closed without a response, and this status is logged.
    Abandoned(u16),
}

/// A body that is passed to a handler piece by piece. `R` is the protocol's state of the remaining bytes.
pub struct Feed<R> {
    /// The queue from which the handler reads.
    pub incoming: Rc<IncomingBody>,
    /// Bytes received earlier, which are passed first.
    pub held: Option<ReceivedBody>,
    /// State of the bytes still to be received, if there is a body.
    pub rest: Option<R>,
    /// `client_max_body_size`
    pub most: u64,
    /// `client_body_timeout`
    pub timeout: Duration,
}

impl<R> Feed<R> {
    /// Returns a feed without a body.
    pub fn of(core: &Core) -> Feed<R> {
        let (most, timeout) = (core.reading.client_max_body_size, core.reading.client_body_timeout);
        Feed { incoming: Rc::default(), held: None, rest: None, most, timeout }
    }

    /// Passes the bytes received earlier, as fast as the handler reads them.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub async fn feed_held(&mut self) -> Result<(), BodyAborted> {
        let Some(mut held) = self.held.take() else { return Ok(()) };
        held.seal();
        self.incoming.set_has_earlier(true);
        let mut taken = 0;
        while let Some(piece) = held.next_piece(&mut taken).await.map_err(BodyAborted::Lost)? {
            // Before the piece is added: after the last one nothing is ahead of the next bytes of the transport.
            if !self.incoming.has_space() {
                self.incoming.consumed().await;
            }
            self.incoming.add_source(piece);
        }
        self.incoming.set_has_earlier(false);
        Ok(())
    }
}

/// Whether a body has to be read. As in nginx an empty body becomes an empty file with `client_body_in_file_only`.
pub fn must_be_read(request: &Request) -> bool {
    match request.head.body() {
        BodyLength::Exactly(0) => request.scope().core.body_files.in_file_only != BodyInFile::Off,
        length => length.has_body(),
    }
}

/// Whether the body must be in a file. As in nginx a handler that consumes it piece by piece gets no file, even if the body
/// is complete already (`$request_body`).
pub fn is_file_required(core: &Core, body_need: BodyNeed) -> bool {
    core.body_files.in_file_only != BodyInFile::Off && body_need != BodyNeed::Pieces
}

/// The continuation of a request after a failure of the temporary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutFile {
    /// The request fails with 500, as always in nginx.
    Fails,
    /// The handler reads the body piece by piece.
    Pieces,
    /// The body stays in memory.
    Memory,
}

impl WithoutFile {
    /// Returns how a body of this location is read without a file, for a handler with this need.
    pub fn of(core: &Core, body_need: BodyNeed) -> WithoutFile {
        match body_need {
            _ if is_file_required(core, body_need) => WithoutFile::Fails,
            BodyNeed::Buffered | BodyNeed::Pieces => WithoutFile::Pieces,
            BodyNeed::Complete | BodyNeed::Stored | BodyNeed::Nothing => WithoutFile::Memory,
        }
    }
}

/// Maximum size in bytes of a body that stays in memory for lack of a file: the default of `client_max_body_size`.
pub const WITHOUT_FILE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bodies per thread that stay in memory for lack of a file: an eighth of the default
/// `worker_connections`, with at most 64 MiB.
const WITHOUT_FILE_BODIES_MAX: usize = 64;

/// Moves a body into memory; returns `false` if it is too large, or if too many bodies are in memory.
async fn store_in_memory(request: &Request, body: &mut ReceivedBody, left: u64) -> bool {
    let bodies = &request.conn.thread.capacity.bodies;
    let has_space = body.byte_count() + left <= WITHOUT_FILE_BYTES_MAX as u64
        && bodies.count() < WITHOUT_FILE_BODIES_MAX
        && !rt::buffers_are_scarce();
    has_space && body.read_back(bodies.enter()).await.is_ok()
}

/// Moves the received bytes to a file; the creation of the file is logged, because a larger buffer would be faster.
/// Returns [`WithoutFile::Fails`] if the bytes were written. If the file fails, returns how the request continues without
/// it. `left` is the number of bytes still expected.
///
/// # Errors
/// The file failed, and the request cannot continue without it.
pub async fn spill(
    request: &Request,
    core: &Core,
    body: &mut ReceivedBody,
    (without, left): (WithoutFile, u64),
) -> Result<WithoutFile, BodyFailure> {
    let is_first = body.path().is_none();
    let via = choose::path_engine(core.sending.aio, &rt::caps());
    let mut space = DiskSpace::new(&request.conn.thread, &core.body_files.temp_path);
    let mut spilled = body.spill(&core.body_files, via).await;
    while let Err((_, _, errno)) = &spilled
        && space.make(*errno).await
    {
        spilled = body.spill(&core.body_files, via).await;
    }
    if let Err((call, path, errno)) = spilled {
        let without = match without {
            WithoutFile::Memory if !store_in_memory(request, body, left).await => WithoutFile::Fails,
            without => without,
        };
        if let Some(more) = request.conn.thread.capacity.alarms.temp_files.due(rt::now()) {
            let (path, reason) = (path.display(), Reason(errno));
            let then = match without {
                WithoutFile::Pieces => {
                    "; the body goes on without a temporary file, and its client waits for the upstream"
                }
                WithoutFile::Memory => "; the body goes on without a temporary file, and stays in memory",
                WithoutFile::Fails => "",
            };
            let what = format_args!(
                "{call}() \"{path}\" failed ({reason}) while reading client request body{then}{more}"
            );
            request.log(Level::Crit, what);
        }
        return match without {
            WithoutFile::Fails => Err(BodyFailure::Refused(500)),
            without => Ok(without),
        };
    }
    if let (true, Some(path)) = (is_first, body.path()) {
        let is_asked = core.body_files.in_file_only != BodyInFile::Off;
        let level = if is_asked { Level::Notice } else { Level::Warn };
        let path = path.display();
        request.log(level, format_args!("a client request body is buffered to a temporary file {path}"));
    }
    Ok(WithoutFile::Fails)
}

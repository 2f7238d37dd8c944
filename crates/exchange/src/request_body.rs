//! What reading the body of a request comes to, whatever protocol brings it: failures, limits, temporary files, and the
//! feed of a handler that takes it piece by piece.

use std::rc::Rc;
use std::time::Duration;

use crate::request::Request;
use crate::room::DiskRoom;
use crate::settings::core::Core;
use telemetry::{Level, Reason};
use transfer::body::choose;
use transfer::incoming::{BodyAborted, IncomingBody};
use transfer::received::{BodyInFile, ReceivedBody};

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFailure {
    /// This status answers the request.
    Refused(u16),
    /// As in nginx the connection ends without an answer, and this status is logged.
    Abandoned(u16),
}

/// A body on its way to a handler that takes it piece by piece. `R` is what its protocol knows of the rest.
pub struct Feed<R> {
    /// Where the handler takes it.
    pub incoming: Rc<IncomingBody>,
    /// What was received before, and goes first.
    pub held: Option<ReceivedBody>,
    /// What is still to come, where there is a body.
    pub rest: Option<R>,
    /// `client_max_body_size`
    pub most: u64,
    /// `client_body_timeout`
    pub patience: Duration,
}

impl<R> Feed<R> {
    /// One of nothing.
    pub fn of(core: &Core) -> Feed<R> {
        let (most, patience) = (core.reading.client_max_body_size, core.reading.client_body_timeout);
        Feed { incoming: Rc::default(), held: None, rest: None, most, patience }
    }

    /// Hands out what was received before, at the pace at which it is taken.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub async fn give_held(&mut self) -> Result<(), BodyAborted> {
        let Some(mut held) = self.held.take() else { return Ok(()) };
        held.seal();
        let mut taken = 0;
        while let Some(piece) = held.next_piece(&mut taken).await.map_err(BodyAborted::Lost)? {
            self.incoming.add_source(piece);
            if !self.incoming.has_room() {
                self.incoming.taken().await;
            }
        }
        Ok(())
    }
}

/// Moves what was read to a file, and says so the first time: it is slower than a larger buffer. `false` where that failed
/// and the request does without.
///
/// # Errors
/// The file failed, and the request cannot do without.
pub async fn spill(
    request: &Request,
    core: &Core,
    body: &mut ReceivedBody,
    does_without: bool,
) -> Result<bool, BodyFailure> {
    let is_first = body.path().is_none();
    let via = choose::path_engine(core.sending.aio, &rt::caps());
    let mut room = DiskRoom::new(&request.conn.thread, &core.body_files.temp_path.0);
    let mut spilled = body.spill(&core.body_files, via).await;
    while let Err((_, _, errno)) = &spilled
        && room.make(*errno).await
    {
        spilled = body.spill(&core.body_files, via).await;
    }
    if let Err((call, path, errno)) = spilled {
        if let Some(more) = request.conn.thread.room.alarms.temp_files.due(rt::now()) {
            let (path, reason) = (path.display(), Reason(errno));
            let then = match does_without {
                true => "; the body goes on without a temporary file, and its client waits for the upstream",
                false => "",
            };
            let what = format_args!(
                "{call}() \"{path}\" failed ({reason}) while reading client request body{then}{more}"
            );
            request.log(Level::Crit, what);
        }
        return if does_without { Ok(false) } else { Err(BodyFailure::Refused(500)) };
    }
    if let (true, Some(path)) = (is_first, body.path()) {
        let is_asked = core.body_files.in_file_only != BodyInFile::Off;
        let level = if is_asked { Level::Notice } else { Level::Warn };
        let path = path.display();
        request.log(level, format_args!("a client request body is buffered to a temporary file {path}"));
    }
    Ok(true)
}

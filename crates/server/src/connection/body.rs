//! Reading the body of a request for a handler that asked for it.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use http::connection::{CONTINUE_RESPONSE, Expect};
use io::op::Source;
use io::{Errno, Segments};

use crate::body;
use crate::connection::rest::Rest;
use crate::connection::{Connection, decide};
use crate::incoming::{Cut, IncomingBody};
use crate::log::{Level, Reason};
use crate::modules::http_core::conf::{BodyInFile, Conf};
use crate::received::ReceivedBody;
use crate::request::Request;
use crate::room::Waits;

/// Why a body was not read.
pub(super) enum BodyFailure {
    /// This status answers the request.
    Refused(u16),
    /// As in nginx the connection ends without an answer, and this status is logged.
    Abandoned(u16),
}

impl Connection {
    /// Reads the whole body: into memory up to `client_body_buffer_size`, and what is larger into a file.
    pub(super) async fn read_body(&mut self, request: &mut Request) -> Result<(), BodyFailure> {
        let generation = Rc::clone(&request.generation);
        let core = &generation.config.location(request.location).scope.core;
        // A second handler that asks, or one behind the error page of a body that could not be read.
        if request.body.is_some() {
            return Ok(());
        }
        let mut body = ReceivedBody::default();
        let done = match Rest::of(&request.head) {
            None => Ok(()),
            // A location has compared it, but the server's own settings may hold still.
            Some(_) if decide::too_large(request).is_some() => Err(BodyFailure::Refused(413)),
            Some(rest) => self.receive_body(request, core, rest, &mut body).await,
        };
        if done.is_err() {
            body.clean().await;
            // A part of a body is none, and nobody can read the rest again.
            body = ReceivedBody::default();
            request.keepalive = false;
        }
        (request.body, request.body_is_taken) = (Some(body.into()), true);
        done
    }

    /// Whether all of the body is here, and in memory as a whole.
    pub(super) fn has_whole_body(&self, request: &Request) -> bool {
        let (here, held_max) = (self.input.bytes(), request.scope().core.client_body_buffer_size);
        let is_whole = |mut rest: Rest| matches!(rest.take(here, |_| {}), Ok((_, true)));
        here.len() as u64 <= held_max && Rest::of(&request.head).is_none_or(is_whole)
    }

    async fn receive_body(
        &mut self,
        request: &mut Request,
        core: &Conf,
        mut rest: Rest,
        body: &mut ReceivedBody,
    ) -> Result<(), BodyFailure> {
        let held_max = usize::try_from(core.client_body_buffer_size).unwrap_or(usize::MAX);
        let in_file = core.client_body_in_file_only != BodyInFile::Off;
        self.tell_to_go_on(request, core).await?;
        loop {
            // What came along with the head is a part of the body, and may be all of it.
            let taken = rest.take(self.input.bytes(), |bytes| body.add(bytes));
            let (used, done) = taken.map_err(|()| invalid(request))?;
            request.received += used as u64;
            self.input.consume(used);
            check(&rest, request, core.client_max_body_size)?;
            // A body that has a file is in it as a whole: nobody has to put two parts together.
            if body.held() > held_max || done && (in_file || body.path().is_some()) {
                spill(request, core, body).await?;
            }
            if done {
                return Ok(());
            }
            // For each piece and not for the whole: a large body over a slow line takes as long as it takes.
            self.timer.set(rt::now() + core.client_body_timeout);
            match self.receive_unless_given_up(Waits::Body, 0).await {
                Ok(true) => {}
                Err(Errno::CANCELED) => {
                    let what = "connection was closed to make room for another";
                    request.log(Level::Info, format_args!("{what} while reading client request body"));
                    return Err(BodyFailure::Abandoned(408));
                }
                Err(Errno::TIMEDOUT) => {
                    let what = "client timed out (110: Connection timed out)";
                    request.log(Level::Info, format_args!("{what} while reading client request body"));
                    return Err(BodyFailure::Abandoned(408));
                }
                Ok(false) | Err(_) => {
                    request.log(Level::Info, format_args!("client prematurely closed connection"));
                    return Err(BodyFailure::Abandoned(400));
                }
            }
        }
    }

    /// A client that waits to be told gets to know that its body is wanted.
    async fn tell_to_go_on(&mut self, request: &Request, core: &Conf) -> Result<(), BodyFailure> {
        let waits = http::connection::expect(&request.head, request.bytes()) == Expect::Continue;
        if !waits || !self.input.bytes().is_empty() {
            return Ok(());
        }
        // It has nothing else to read meanwhile, so the send waits for nobody but a client that is gone.
        let mut data = Segments::new();
        data.push(Source::Static(CONTINUE_RESPONSE));
        let sent = body::send_at_once(&mut self.socket, &self.timer, core.send_timeout, data, false).await;
        sent.map(drop).map_err(|_| BodyFailure::Abandoned(400))
    }
}

/// A body on its way to a handler that takes it piece by piece.
pub(super) struct Feed {
    incoming: Rc<IncomingBody>,
    /// What is still to come, where there is a body.
    rest: Option<Rest>,
    /// `client_max_body_size`
    most: u64,
    /// `client_body_timeout`
    patience: Duration,
}

/// Bytes that are gathered for one piece, where they are here already.
const PIECE_MAX: usize = 64 << 10;

impl Connection {
    /// Makes everything ready for [`Connection::feed`].
    pub(super) async fn begin_feed(
        &mut self,
        request: &mut Request,
        incoming: &Rc<IncomingBody>,
    ) -> Result<Feed, BodyFailure> {
        if decide::too_large(request).is_some() {
            return Err(BodyFailure::Refused(413));
        }
        let generation = Rc::clone(&request.generation);
        let core = &generation.config.location(request.location).scope.core;
        let rest = Rest::of(&request.head);
        if rest.is_some() {
            self.tell_to_go_on(request, core).await?;
        }
        let (most, patience) = (core.client_max_body_size, core.client_body_timeout);
        Ok(Feed { incoming: Rc::clone(incoming), rest, most, patience })
    }

    /// Reads the body as fast as it is taken. It never comes back: whoever takes the body is done first.
    pub(super) async fn feed(&mut self, mut feed: Feed) -> Infallible {
        let result = self.feed_to_end(&mut feed).await;
        feed.incoming.end(result);
        std::future::pending().await
    }

    async fn feed_to_end(&mut self, feed: &mut Feed) -> Result<(), Cut> {
        let Feed { incoming, rest: Some(rest), most, patience } = feed else { return Ok(()) };
        loop {
            let taken = rest.take(self.input.bytes(), |bytes| incoming.add(bytes));
            let (used, done) = taken.map_err(|()| Cut::Invalid)?;
            incoming.count(used);
            self.input.consume(used);
            if let Some((total, more)) = exceeds(rest, *most) {
                return Err(Cut::TooLarge(total, more));
            }
            if done {
                return Ok(());
            }
            let here = match incoming.held() < PIECE_MAX {
                true => self.socket.try_recv(),
                false => None,
            };
            match here {
                Some(Ok(Some(buf))) => {
                    if !self.input.add(buf, 0) {
                        return Err(Cut::Closed);
                    }
                    continue;
                }
                Some(_) => return Err(Cut::Closed),
                None => {}
            }
            incoming.taken().await;
            self.timer.set(rt::now() + *patience);
            match self.receive_unless_given_up(Waits::Body, 0).await {
                Ok(true) => {}
                Err(Errno::TIMEDOUT) => return Err(Cut::TimedOut),
                Ok(false) | Err(_) => return Err(Cut::Closed),
            }
        }
    }
}

/// What a chunked body has brought and announced, when that is more than it may be. The announced size of a chunk
/// counts: what is too large is not waited for.
fn exceeds(rest: &Rest, most: u64) -> Option<(u64, u64)> {
    let Rest::Chunks(decoder) = rest else { return None };
    let (total, announced) = (decoder.total(), decoder.announced());
    (most > 0 && announced > most).then(|| (total, announced - total))
}

/// A chunked body shows its size only while it comes. A length was compared before.
fn check(rest: &Rest, request: &Request, most: u64) -> Result<(), BodyFailure> {
    let Some((total, more)) = exceeds(rest, most) else { return Ok(()) };
    let what = format_args!("client intended to send too large chunked body: {total}+{more} bytes");
    request.log(Level::Error, what);
    Err(BodyFailure::Refused(413))
}

fn invalid(request: &Request) -> BodyFailure {
    request.log(Level::Error, format_args!("client sent invalid chunked body"));
    BodyFailure::Refused(400)
}

/// Moves what was read to a file, and says so the first time: it is slower than a larger buffer.
async fn spill(request: &Request, core: &Conf, body: &mut ReceivedBody) -> Result<(), BodyFailure> {
    let is_first = body.path().is_none();
    if let Err((call, path, errno)) = body.spill(core).await {
        let path = path.display();
        request.log(Level::Crit, format_args!("{call}() \"{path}\" failed ({})", Reason(errno)));
        return Err(BodyFailure::Refused(500));
    }
    if let (true, Some(path)) = (is_first, body.path()) {
        let is_asked = core.client_body_in_file_only != BodyInFile::Off;
        let level = if is_asked { Level::Notice } else { Level::Warn };
        let path = path.display();
        request.log(level, format_args!("a client request body is buffered to a temporary file {path}"));
    }
    Ok(())
}

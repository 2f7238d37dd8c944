//! One request and its answer.
//!
//! All that waits for nothing is done on the stack, by plain functions that return what is [`Pending`]: the state of a
//! connection is small, and where there are many each line of it is fetched anew for an answer.

use std::pin::Pin;
use std::rc::Rc;

use io::Segments;
use rt::{Either, select};

use crate::h1::body::{BodyFailure, Feed};
use crate::h1::input::Head;
use crate::h1::respond::{Held, Sending};
use crate::h1::{After, Connection};
use exchange::course::{self, Outcome, PhaseCursor, Progress, Waiting, Wants};
use exchange::phases::Step;
use exchange::prepare;
use exchange::request::Request;
use telemetry::tally::Stage;
use transfer::body::BodyError;

/// What an exchange still needs.
pub(super) enum Pending {
    /// Nothing: this follows.
    Nothing(After),
    /// The rest of the request's head.
    Head,
    /// What its phases wait for.
    Step(PhaseCursor, Waiting),
    /// The request's body, before its way goes on.
    Body(PhaseCursor),
    /// An error in the place of the answer.
    Error(u16),
    /// The socket's time to take the rest of the answer.
    Sending(Sending),
    /// A read that brings all of the answer's body, and puts it behind its head.
    Read(Pin<Box<dyn Future<Output = Result<Segments, BodyError>>>>),
    /// An answer piece after piece.
    Pieces(Held),
    /// Another protocol, after this head.
    Tunnel(Vec<u8>),
    /// What comes behind the answer, and then this.
    Afterwards(After),
}

impl Connection {
    /// Reads a request and answers it.
    pub(super) async fn exchange(&mut self, request: &mut Request) -> After {
        let mut pending = self.begin(request);
        // Boxed: what is large, which most requests do without.
        loop {
            self.leave_buffers(request, &pending);
            pending = match pending {
                Pending::Nothing(after) => return after,
                Pending::Head => {
                    let head = Box::pin(self.read_rest_of_head(request)).await;
                    self.received(request, head)
                }
                Pending::Step(mut cursor, waiting) => {
                    let step = waiting.step(request).await;
                    match cursor.take(request, step) {
                        Some(outcome) => self.decided(request, outcome),
                        None => self.advance(request, cursor),
                    }
                }
                Pending::Body(mut cursor) => {
                    let outcome = Box::pin(self.decide_with_body(&mut cursor, request)).await;
                    self.decided(request, outcome)
                }
                Pending::Error(status) => match Box::pin(course::replace(request, status)).await {
                    Outcome::Answer => self.answer(request),
                    Outcome::Drop => dropped(request),
                },
                Pending::Sending(mut sending) => {
                    let sent = self.go_on_sending(request, &mut sending).await;
                    self.sent(request, sent)
                }
                Pending::Read(read) => match read.await {
                    Ok(data) => self.send_at_hand(request, data),
                    Err(error) => self.sent(request, Err(error)),
                },
                Pending::Pieces(held) => {
                    let sent = Box::pin(self.send_bit_by_bit(request, held)).await;
                    self.sent(request, sent)
                }
                Pending::Tunnel(head) => {
                    let after = Box::pin(self.tunnel(request, head)).await;
                    self.answered(request, after)
                }
                Pending::Afterwards(after) => return Box::pin(self.end_exchange(request, after)).await,
            }
        }
    }

    /// A request that waits for others, or whose client may read slowly, leaves the buffers that it was received in to
    /// those that come: thousands of slow downloads held all of them.
    fn leave_buffers(&mut self, request: &mut Request, pending: &Pending) {
        let takes_long = match pending {
            Pending::Nothing(_) | Pending::Head => false,
            Pending::Pieces(_) | Pending::Tunnel(_) => true,
            _ => rt::buffers_are_scarce(),
        };
        if takes_long {
            request.leave_buffer();
            self.input.leave_buffer();
        }
        if takes_long && rt::buffers_are_scarce() {
            self.wire.disarm();
        }
    }

    fn begin(&mut self, request: &mut Request) -> Pending {
        self.stage.set(Stage::Reading);
        // Also one that turns out to be none counts, as in nginx.
        self.info.requests.set(self.info.requests.get() + 1);
        match self.parse_head(request) {
            Some(head) => self.received(request, head),
            None => Pending::Head,
        }
    }

    /// What was received of a head is in the request.
    fn received(&mut self, request: &mut Request, head: Head) -> Pending {
        match head {
            Head::Complete => {}
            Head::Refused(status) => {
                request.keepalive = false;
                return Pending::Error(status);
            }
            Head::Abandoned(status) => {
                request.response.status = status;
                return dropped(request);
            }
            Head::Closed => return Pending::Nothing(After::Drop),
        }
        self.stage.set(Stage::Writing);
        request.keepalive = self.may_keep_alive(request);
        let generation = Rc::clone(&request.generation);
        match PhaseCursor::begin(request, self.entrance.listen(&generation)) {
            (_, Some(outcome)) => self.decided(request, outcome),
            (cursor, None) if wants_early_body(request) => Pending::Body(cursor),
            (cursor, None) => self.advance(request, cursor),
        }
    }

    /// Takes the request through its phases, as far as they do not wait.
    fn advance(&mut self, request: &mut Request, mut cursor: PhaseCursor) -> Pending {
        match cursor.advance(request) {
            Progress::Decided(outcome) => self.decided(request, outcome),
            Progress::Waits(waiting) => Pending::Step(cursor, waiting),
            Progress::WantsBody => Pending::Body(cursor),
        }
    }

    fn decided(&mut self, request: &mut Request, outcome: Outcome) -> Pending {
        if outcome == Outcome::Drop {
            return dropped(request);
        }
        if !request.body_is_taken && self.body_is_broken(request) {
            request.keepalive = false;
            return Pending::Error(400);
        }
        self.answer(request)
    }

    /// Sends what was decided.
    fn answer(&mut self, request: &mut Request) -> Pending {
        if let Some(status) = prepare::filter(request) {
            return Pending::Error(status);
        }
        match self.prepare(request) {
            Ok(data) => self.send_at_hand(request, data),
            Err(pending) => pending,
        }
    }

    /// Sends an answer that is in memory as a whole.
    fn send_at_hand(&mut self, request: &mut Request, data: Segments) -> Pending {
        match self.begin_to_send(request, data, true) {
            Ok(Some(sending)) => Pending::Sending(sending),
            sent => self.sent(request, sent.map(drop)),
        }
    }

    /// The answer was sent, or could not be.
    fn sent(&mut self, request: &mut Request, sent: Result<(), BodyError>) -> Pending {
        let after = self.after(request, sent);
        self.answered(request, after)
    }

    /// Writes the logs, where nothing else comes before that.
    fn answered(&mut self, request: &mut Request, after: After) -> Pending {
        if request.scope().core.subrequests.post_action.is_some() || self.has_rest(request, after) {
            return Pending::Afterwards(after);
        }
        request.end();
        Pending::Nothing(after)
    }

    /// Whether a body that nobody wanted stands between this request and the next.
    fn has_rest(&self, request: &Request, after: After) -> bool {
        after == After::KeepAlive && !request.body_is_taken && request.head.body().has_body()
    }

    /// What comes behind the answer.
    async fn end_exchange(&mut self, request: &mut Request, after: After) -> After {
        course::post_action(request).await;
        request.end();
        match self.has_rest(request, after) {
            true if self.discard_body(request).await => after,
            true => After::Close,
            false => after,
        }
    }

    /// Reads the body that is wanted, and goes on with it.
    async fn decide_with_body(&mut self, cursor: &mut PhaseCursor, request: &mut Request) -> Outcome {
        loop {
            let wants = cursor.take_wants();
            let is_in_pieces = wants == Wants::Pieces && request.body.is_none();
            // As in nginx a body that came along with the head is a whole one (`$request_body`).
            if is_in_pieces && !self.has_whole_body(request) {
                let feed = self.begin_feed(request).await;
                if let Some(outcome) = self.decide_with_pieces(cursor, request, feed).await {
                    return outcome;
                }
                continue;
            }
            let outcome = match self.read_body(request, wants == Wants::Buffered).await {
                Ok(None) => None,
                Ok(Some(feed)) => match self.decide_with_pieces(cursor, request, Ok(*feed)).await {
                    None => continue,
                    outcome => outcome,
                },
                Err(BodyFailure::Refused(status)) => cursor.take(request, Step::Status(status)),
                Err(BodyFailure::Abandoned(status)) => {
                    request.response.status = status;
                    Some(Outcome::Drop)
                }
            };
            let decided = match outcome {
                None => course::run(cursor, request).await,
                outcome => outcome,
            };
            if let Some(outcome) = decided {
                return outcome;
            }
        }
    }

    /// Goes on while the body is read for the handler that takes it.
    async fn decide_with_pieces(
        &mut self,
        cursor: &mut PhaseCursor,
        request: &mut Request,
        feed: Result<Feed, BodyFailure>,
    ) -> Option<Outcome> {
        let feed = match feed {
            Ok(feed) => feed,
            Err(failure) => {
                (request.body_is_taken, request.keepalive) = (true, false);
                request.body.get_or_insert_default();
                return match failure {
                    BodyFailure::Abandoned(status) => {
                        request.response.status = status;
                        Some(Outcome::Drop)
                    }
                    BodyFailure::Refused(status) => match cursor.take(request, Step::Status(status)) {
                        None => course::run(cursor, request).await,
                        outcome => outcome,
                    },
                };
            }
        };
        let incoming = Rc::clone(feed.incoming());
        request.incoming = Some(Rc::clone(&incoming));
        let outcome = match select(course::run(cursor, request), self.feed(feed)).await {
            Either::Left(outcome) => outcome,
            Either::Right(never) => match never {},
        };
        request.incoming = None;
        request.received += incoming.received();
        // What is left of it is not to be told from a request that would follow.
        request.body_is_taken = true;
        if !incoming.is_whole() {
            request.keepalive = false;
        }
        // A handler that asks later finds nothing, and can tell that from a body that was empty.
        request.body_was_streamed = true;
        request.body.get_or_insert_default();
        outcome
    }
}

/// The connection ends without an answer.
fn dropped(request: &mut Request) -> Pending {
    request.end();
    Pending::Nothing(After::Drop)
}

/// Whether the body is to be read before a location is chosen (`client_body_early_read`).
fn wants_early_body(request: &Request) -> bool {
    let texts = request.scope().core.reading.client_body_early_read.items();
    !texts.is_empty()
        && request.head.body().has_body()
        && texts.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"))
}

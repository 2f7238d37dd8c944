//! Trailer fields of a response that is being stored, for the client whose request fetched it (`proxy_pass_trailers`). They are not
//! stored: later clients get the response without them, as in nginx.

use std::rc::Rc;
use std::task::{Context, Poll};

use io::segments::Source;

use exchange::request::Request;
use exchange::response::Body;
use transfer::body::BodyError;
use transfer::body::source::BodySource;
use upstream::state::{Tries, Try};
use upstream::{Hidden, Reply, ReplyBody, Settings};

/// Adds the trailer fields that the upstream sends after the body, if they are passed on. A body of known length has none.
pub fn with_trailers(request: &Request, settings: &Settings, reply: Reply) -> Reply {
    let Some(hidden) = settings.trailers() else { return reply };
    let Some(record) = request.extensions.get::<Tries>().and_then(Tries::last) else { return reply };
    let body = match reply.body {
        ReplyBody::Ready(body) => ReplyBody::Ready(Box::new(match *body {
            Body::Source(stream) => {
                Body::Source(Box::new(Trailed { stream, record: Rc::clone(record), hidden }))
            }
            other => other,
        })),
        other => other,
    };
    Reply { body, ..reply }
}

/// A body that is read while it is stored, with the trailer fields of its upstream.
struct Trailed {
    stream: Box<dyn BodySource>,
    /// Its trailer fields are set before the stream ends.
    record: Rc<Try>,
    hidden: Hidden,
}

impl BodySource for Trailed {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        self.stream.poll_next(context)
    }

    fn trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.record.passed_trailers(&self.hidden)
    }

    fn is_unbuffered(&self) -> bool {
        self.stream.is_unbuffered()
    }

    fn is_read_at_will(&self) -> bool {
        self.stream.is_read_at_will()
    }

    fn is_reading(&self) -> bool {
        self.stream.is_reading()
    }

    fn set_client_space(&mut self, bytes: u64) {
        self.stream.set_client_space(bytes);
    }

    fn send_bytes(&self) -> usize {
        self.stream.send_bytes()
    }

    fn needs_client(&self) -> bool {
        self.stream.needs_client()
    }
}

//! A response to pass on, and the conversion of its body: for the client, or for a caller that stores it.

use std::rc::Rc;
use std::time::{Instant, SystemTime};

use io::segments::Source;

use crate::body::{BulkBody, Direct, Live};
use crate::heading::Heading;
use crate::settings::Settings;
use crate::spool;
use crate::tunnel::Tunnel;
use exchange::request::Request;
use exchange::response::Body;

/// A response to pass on: from an upstream, or from a cache.
pub struct Reply {
    /// Shared with the variables of its fields.
    pub head: Rc<Heading>,
    /// The body.
    pub body: ReplyBody,
    /// Time of arrival of the head.
    pub received_at: (Instant, SystemTime),
    /// Set if the response is cached or being cached.
    pub stored: Option<Stored>,
}

/// The facts of a cached response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Length of the body in bytes, if known.
    pub length: Option<u64>,
    /// Age of the response in seconds, for `Age`.
    pub age_s: Option<u32>,
}

/// The body of a [`Reply`].
pub enum ReplyBody {
    /// No body.
    None,
    /// The complete body.
    Bytes(Source),
    /// A body from a cache, ready to be sent. Boxed, because a [`Reply`] is moved often.
    Ready(Box<Body>),
    /// A body that must still be read from an upstream.
    Live(Box<Live>),
    /// The connection switches to another protocol (101).
    Tunnel(Box<Tunnel>),
}

impl ReplyBody {
    /// Converts to the body of the response. `buffering` is whether it is read ahead of the client (`proxy_buffering`,
    /// `X-Accel-Buffering`).
    pub fn into_body(self, request: &Request, settings: &Settings, buffering: bool) -> Body {
        match self {
            ReplyBody::None => Body::None,
            ReplyBody::Bytes(source) => Body::Bytes(source),
            ReplyBody::Ready(body) => *body,
            ReplyBody::Live(mut live) => {
                live.limit_rate(rate(settings, request));
                match buffering {
                    true => Body::Source(Box::new(spool::start(live, settings, &request.conn.thread))),
                    false => Body::Source(Box::new(Direct::new(live, settings))),
                }
            }
            ReplyBody::Tunnel(tunnel) => Body::Tunnel(tunnel),
        }
    }

    /// Converts to a body for callers that store all of it.
    pub fn into_bulk(self, request: &Request, settings: &Settings) -> BulkBody {
        match self {
            ReplyBody::None => BulkBody::Complete(None),
            ReplyBody::Bytes(source) => BulkBody::of_bytes(source),
            ReplyBody::Live(mut live) => {
                live.limit_rate(rate(settings, request));
                BulkBody::Live(live)
            }
            ReplyBody::Ready(_) | ReplyBody::Tunnel(_) => BulkBody::Broken,
        }
    }
}

/// Returns the maximum rate of reading from an upstream in bytes per second; 0 means no limit.
fn rate(settings: &Settings, request: &Request) -> u64 {
    let Some(rate) = &settings.limit_rate else { return 0 };
    let text = String::from_utf8(rate.rendered(request)).unwrap_or_default();
    conf::value::size(&text).unwrap_or(0)
}

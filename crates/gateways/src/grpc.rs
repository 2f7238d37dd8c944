//! nginx's grpc module: gRPC to upstreams, which is HTTP/2 without buffering. [`crate::passing`] and [`crate::proxy`] have the part
//! shared with HTTP; connections and streams are in `upstream`.
//!
//! | part of a call | handling |
//! |---|---|
//! | messages | are passed on as they are received, in both directions concurrently |
//! | status (`grpc-status`) | is in the trailer section, or in the header section of a response without a body; it is not evaluated |
//! | deadline (`grpc-timeout`) | is passed on, and so is the client's reset after the deadline. With `grpc_deadline` this server ends both streams |
//! | failure of the upstream | yields HTTP status 502 or 504, which gRPC clients convert to UNAVAILABLE |

use conf::{Args, Contexts, Spec};
use http::fields::{BodyLength, HeaderId};

use crate::grpc_status;
use crate::passing::conf::{Conf, NEXT_UPSTREAM};
use crate::passing::pass::{self, Destination, Scheme};
use crate::passing::request::Fill;
use crate::passing::spec::row;
use crate::passing::{self, Family, Passing, Protocol, Rows};
use crate::proxy::{Http, add_field, build};
use crate::{Directive, Module};
use exchange::request::Request;
use upstream::Outgoing;

/// The module.
pub(crate) static MODULE: Module = passing::module::<Grpc>(
    "http_grpc",
    &[DIRECTIVES, Rows::<Grpc>::CONNECTION, Rows::<Grpc>::FIELDS, Rows::<Grpc>::SOCKETS, Rows::<Grpc>::TLS],
);

/// The settings of a block: those of HTTP, of which the grpc directives set only some.
#[derive(Clone, Debug)]
pub(crate) struct Grpc(Http);

impl Default for Grpc {
    fn default() -> Grpc {
        Grpc(Http::grpc())
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "",
            "_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF),
            Args::Exactly(1),
            "Passes requests on to this gRPC server or group of servers: `HOST:PORT`, `unix:PATH` or a name, after `grpc://`, or after \
             `grpcs://` for TLS.",
        ),
        pass::set::<Grpc>,
    ),
    Directive::scope(
        row("_set_header", Args::Exactly(2), "A field of requests, instead of the client's field.").many(),
        |scope, cx| add_field(&mut scope.make_mut::<Passing<Grpc>>().protocol.0.set_fields, cx),
    ),
];

impl Family for Grpc {
    const PREFIX: &'static str = "grpc";
    // Messages are not buffered: `grpc_buffer_size` is for heads and has no dependent sizes.
    const HAS_BUFFERS: bool = false;
    // Without a scheme nginx has no default port: an address without a port is a name.
    const SCHEMES: &'static [Scheme] = &[
        Scheme { text: "grpcs://", port: 443, is_secure: true },
        Scheme { text: "grpc://", port: 80, is_secure: false },
        Scheme::NONE,
    ];
    // Without the first one, `updating`: as in nginx there is no cache.
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = match NEXT_UPSTREAM {
        [_, shared @ ..] => shared,
        [] => &[],
    };

    fn hides(id: HeaderId, _: &[u8]) -> bool {
        matches!(id, HeaderId::Date | HeaderId::Server)
    }

    fn finish(&mut self, conf: &mut Conf) {
        conf.is_http2 = true;
        // Calls may stream in both directions, and their status is in the trailers.
        let upstream = &mut conf.upstream;
        (upstream.buffering, upstream.request_buffering, upstream.pass_trailers) = (false, false, true);
    }
}

impl Protocol for Grpc {
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        destination: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        let outgoing = build::<Grpc>(&self.0, conf, request, destination, fill)?;
        Ok(Outgoing { deadline: grpc_status::deadline(request), ..outgoing })
    }

    // HTTP/2 frames mark the end of a body.
    fn can_frame(&self, _: BodyLength) -> bool {
        true
    }
}

//! nginx's memcached module: serves values of a memcached server as responses. [`crate::passing`] has the part shared with HTTP,
//! `http::gateway::memcached` the encoding.
//!
//! | step | place |
//! |---|---|
//! | key and request | `Memcached::build` here |
//! | tries, keep-alive | `upstream::fetch` |
//! | conversion of the first line to a header section, end of the value | the decoder |
//! | type, ranges, this server's 404 | `passing::reply`, by the settings of `Memcached::finish` |
//!
//! As in nginx, only GET and HEAD are accepted, and a value is passed on as it arrives. A missing key gives a 404 of this server,
//! so that `error_page 404` can lead to the source of the value.

use conf::{Args, Contexts, Spec};
use http::fields::Method;
use http::gateway::memcached;

use crate::passing::conf::{Conf, NEXT_OFF};
use crate::passing::pass::{self, Destination};
use crate::passing::request::Fill;
use crate::passing::spec::row;
use crate::passing::{self, Family, Passing, Protocol, Rows};
use crate::{Directive, Module};
use exchange::request::Request;
use exchange::response::ContentType;
use site::template::Template;
use telemetry::Level;
use upstream::{Outgoing, OutgoingBody};

/// The module.
pub(crate) static MODULE: Module =
    passing::module::<Memcached>("http_memcached", &[DIRECTIVES, Rows::<Memcached>::CONNECTION]);

/// The settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memcached {
    /// `$memcached_key`, if the block has `memcached_pass`.
    key: Option<Template>,
    /// `memcached_gzip_flag`
    gzip_flag: u64,
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "",
            "_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF),
            Args::Exactly(1),
            "Responds with the value of `$memcached_key` on this memcached server or group of servers: `HOST:PORT`, `unix:PATH` or a \
             name.",
        ),
        |scope, cx| {
            pass::set::<Memcached>(scope, cx)?;
            // As in nginx, a configuration that never sets the variable is refused.
            scope.make_mut::<Passing<Memcached>>().protocol.key = Some(cx.template("$memcached_key")?);
            Ok(())
        },
    ),
    Directive::scope(
        row(
            "_gzip_flag",
            Args::Exactly(1),
            "Bits of the flags of a value; a value with any of them is compressed by gzip.",
        )
        .default("0"),
        |scope, cx| cx.number(&mut scope.make_mut::<Passing<Memcached>>().protocol.gzip_flag),
    ),
];

impl Family for Memcached {
    const PREFIX: &'static str = "memcached";
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = &[
        ("error", 1),
        ("timeout", 1 << 1),
        ("invalid_response", 1 << 2),
        ("not_found", 1 << 9),
        ("off", NEXT_OFF),
    ];
    const HAS_BUFFERS: bool = false;

    /// Sets values for which nginx has no directives.
    fn finish(&mut self, conf: &mut Conf) {
        conf.upstream.buffering = false;
        conf.pass_body = false;
        conf.force_ranges = true;
        conf.intercept_not_found = true;
    }
}

impl Protocol for Memcached {
    fn build(
        &self,
        _: &Conf,
        request: &mut Request,
        _: &Destination,
        _: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        let method = request.method;
        let key = self.key.as_ref().map(|key| key.rendered(request)).unwrap_or_default();
        if key.is_empty() {
            request.log(Level::Error, format_args!("the \"$memcached_key\" variable is not set"));
            return Err(500);
        }
        // A value has no content type; like nginx this server uses the type of the path.
        request.response.content_type = ContentType::OfUri;
        let encoded = memcached::get(&key, self.gzip_flag);
        let outgoing = Outgoing::new(encoded, "memcached://", OutgoingBody::None, method);
        // The request only reads, so another server may be tried.
        Ok(Outgoing { is_idempotent: true, keepalive: true, ..outgoing })
    }

    // Other methods get 405 before their body is read; the connection discards the body.
    fn admits(&self, method: Method) -> bool {
        matches!(method, Method::Get | Method::Head)
    }

    fn drops_body(&self) -> bool {
        true
    }
}

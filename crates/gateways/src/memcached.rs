//! nginx's memcached module: the values of a memcached server as responses. The part shared with HTTP is in
//! [`crate::passing`], the bytes are in `http::gateway::memcached`.
//!
//! | step | where |
//! |---|---|
//! | the key and the request | `Memcached::build` here |
//! | tries, connections kept alive | `upstream::fetch` |
//! | the first line as a header section, the end of the value | the decoder |
//! | type, ranges, 404 of this server | `passing::reply`, by the settings of `Memcached::finish` |
//!
//! As in nginx, only GET and HEAD are accepted, and a value is passed on as it arrives. A missing key is a 404 of this
//! server, so that `error_page 404` can lead to the source of the value.

use conf::{Args, Contexts, Spec};
use http::gateway::memcached;
use http::request::Method;

use crate::passing::conf::{Conf, NEXT_OFF};
use crate::passing::pass::{self, Destination};
use crate::passing::request::Fill;
use crate::passing::spec::row;
use crate::passing::{self, Family, Passing, Protocol, Rows};
use crate::{Directive, Module};
use exchange::request::Request;
use exchange::response::ContentType;
use exchange::template::Template;
use telemetry::Level;
use upstream::{Outgoing, OutgoingBody};

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[DIRECTIVES, Rows::<Memcached>::CONNECTION],
    ..passing::module::<Memcached>("http_memcached")
};

/// The settings of a block.
#[derive(Clone, Debug, Default)]
struct Memcached {
    /// `$memcached_key`, where there is a `memcached_pass`.
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
            scope.own::<Passing<Memcached>>().own.key = Some(cx.template("$memcached_key")?);
            Ok(())
        },
    ),
    Directive::scope(
        row(
            "_gzip_flag",
            Args::Exactly(1),
            "Bits of a value's flags; one of them marks a value as compressed by gzip.",
        )
        .default("0"),
        |scope, cx| cx.number(&mut scope.own::<Passing<Memcached>>().own.gzip_flag),
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

    /// What nginx has no directives for.
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
        // A value has no type; that of the path is nginx's choice too.
        request.response.content_type = ContentType::OfUri;
        let encoded = memcached::get(&key, self.gzip_flag);
        let outgoing = Outgoing::new(encoded, "memcached://", OutgoingBody::None, method);
        // It reads, so any server may be asked again.
        Ok(Outgoing { is_idempotent: true, keepalive: true, ..outgoing })
    }

    // The body of another one was not read: its connection drops it.
    fn admits(&self, method: Method) -> bool {
        matches!(method, Method::Get | Method::Head)
    }

    fn drops_body(&self) -> bool {
        true
    }
}

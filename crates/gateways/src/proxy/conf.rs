//! Settings that only HTTP upstreams have, with nginx's defaults.

use std::borrow::Cow;
use std::sync::Arc;

use http::fields::{BodyLength, HeaderId, Version};

use crate::passing::conf::Conf;
use crate::passing::pass::{Destination, Scheme};
use crate::passing::request::Fill;
use crate::passing::{Family, Passing, Protocol};
use crate::proxy::request::{self, SetField};
use crate::proxy::rewrites::{self, CookieFlags, Redirects, Rewrite};
use exchange::request::Request;
use site::config::{Layered, Scope};
use site::template::Template;
use upstream::Outgoing;

/// Returns the settings of a block, mutable.
pub(super) fn http(scope: &mut Scope) -> &mut Http {
    &mut scope.make_mut::<Passing<Http>>().protocol
}

/// The HTTP settings of a block.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    /// `proxy_http_version`
    pub(super) version: Version,
    /// Whether requests are those of gRPC: `TE: trailers` is sent if the client sent it.
    pub(super) is_grpc: bool,
    /// `proxy_method`
    pub(super) method: Option<Arc<Template>>,
    /// `proxy_cdn_loop`: the name of this server in `CDN-Loop`.
    pub(super) cdn_loop: Option<Arc<[u8]>>,
    /// `proxy_set_header`
    pub(crate) set_fields: Layered<SetField>,
    /// `proxy_set_body`
    pub(super) body: Option<Arc<Template>>,
    /// `proxy_redirect`
    pub(super) redirects: Redirects,
    /// `proxy_cookie_domain`
    pub(super) cookie_domains: Layered<Rewrite>,
    /// `proxy_cookie_path`
    pub(super) cookie_paths: Layered<Rewrite>,
    /// `proxy_cookie_flags`
    pub(super) cookie_flags: Layered<CookieFlags>,
}

impl Default for Http {
    fn default() -> Http {
        Http {
            version: Version::Http11,
            is_grpc: false,
            method: None,
            cdn_loop: None,
            set_fields: Layered::default(),
            body: None,
            redirects: Redirects::default(),
            cookie_domains: Layered::default(),
            cookie_paths: Layered::default(),
            cookie_flags: Layered::default(),
        }
    }
}

impl Http {
    /// Returns the initial settings of gRPC. The settings without a directive of the grpc module keep the defaults of HTTP.
    pub(crate) fn grpc() -> Http {
        Http { version: Version::Http2, is_grpc: true, ..Http::default() }
    }
}

impl Family for Http {
    const PREFIX: &'static str = "proxy";
    const SCHEMES: &'static [Scheme] = &[
        Scheme { text: "http://", port: 80, is_secure: false },
        Scheme { text: "https://", port: 443, is_secure: true },
    ];
    const HAS_URI: bool = true;
    const KEY_DEFAULT: Option<&'static str> = Some("$scheme$proxy_host$request_uri");
    const TLS_NAME_DEFAULT: Option<&'static str> = Some("$proxy_host");

    fn hides(id: HeaderId, name: &[u8]) -> bool {
        matches!(id, HeaderId::Date | HeaderId::Server) || name.eq_ignore_ascii_case(b"X-Pad")
    }

    fn finish(&mut self, conf: &mut Conf) {
        self.redirects.finish(conf.pass.as_deref());
        conf.is_http2 = self.version == Version::Http2;
        conf.cache.sets_range =
            self.set_fields.items().iter().any(|field| field.is(HeaderId::Range, b"Range"));
    }
}

impl Protocol for Http {
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        destination: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        request::build::<Http>(self, conf, request, destination, fill)
    }

    fn default_key(&self, conf: &Conf, request: &Request, destination: &Destination) -> Vec<u8> {
        request::default_key(conf, request, destination)
    }

    fn body(&self) -> Option<&Template> {
        self.body.as_deref()
    }

    fn can_frame(&self, length: BodyLength) -> bool {
        // Without chunks or frames an upstream could not find the end of a body of unknown length.
        length != BodyLength::Unknown || self.version != Version::Http10
    }

    fn location(&self, request: &Request, value: &[u8]) -> Option<Vec<u8>> {
        self.redirects.apply(request, value)
    }

    fn cookie<'v>(&self, request: &Request, value: &'v [u8]) -> Cow<'v, [u8]> {
        rewrites::cookie(self, request, value)
    }
}

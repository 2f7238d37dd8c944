//! What the protocol of an upstream implements, and the settings of a block for one protocol.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use http::fields::{BodyLength, HeaderId, Method};

use crate::passing::conf::{self, Conf};
use crate::passing::pass::{Destination, Scheme};
use crate::passing::request::Fill;
use exchange::request::Request;
use site::config::{Inner, Settings, SettingsType, Start};
use site::template::Template;
use upstream::Outgoing;

/// Creates the requests of a protocol and converts its responses.
pub(crate) trait Protocol: Send + Sync {
    /// Creates the request for the upstream. `fill` is given if the response is for a cache.
    ///
    /// # Errors
    /// The status for the client; the reason is logged.
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        destination: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16>;

    /// Returns the default cache key. Most protocols have no cache, or no default key.
    fn default_key(&self, _: &Conf, _: &Request, _: &Destination) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the body to send instead of the client's.
    fn body(&self) -> Option<&Template> {
        None
    }

    /// Whether requests with this method are passed on; others get 405.
    fn admits(&self, _: Method) -> bool {
        true
    }

    /// Whether the connection reads and discards the client's body, because the protocol's requests have none.
    fn drops_body(&self) -> bool {
        false
    }

    /// Whether a body of this length can be passed on while it arrives.
    fn can_frame(&self, _: BodyLength) -> bool {
        true
    }

    /// Returns the rewritten value of `Location`, or the URI in `Refresh`; `None` if it is unchanged.
    fn location(&self, _: &Request, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Returns the rewritten value of `Set-Cookie`.
    fn cookie<'v>(&self, _: &Request, value: &'v [u8]) -> Cow<'v, [u8]> {
        Cow::Borrowed(value)
    }
}

/// A protocol whose directives have the names of this family with another prefix. The type contains its own settings.
pub(crate) trait Family: Protocol + Any + Clone + Debug + Default {
    /// Prefix of its directives.
    const PREFIX: &'static str;
    /// The schemes of an address. Most protocols have none, and no default port.
    const SCHEMES: &'static [Scheme] = &[Scheme::NONE];
    /// Whether an address may have a URI.
    const HAS_URI: bool = false;
    /// Whether the protocol has the directives for body buffers, whose sizes must match, and for temporary files.
    const HAS_BUFFERS: bool = true;
    /// The parameters of `proxy_next_upstream`, with their bits.
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = conf::NEXT_UPSTREAM;
    /// Default of the cache key, as written in a configuration.
    const KEY_DEFAULT: Option<&'static str> = None;
    /// Default of the name to verify in an upstream's certificate, as written in a configuration.
    const TLS_NAME_DEFAULT: Option<&'static str> = None;

    /// Whether a response field is hidden, in addition to the fields for this server.
    fn hides(_: HeaderId, _: &[u8]) -> bool {
        false
    }

    /// Derives the values that depend on other settings, at the end of a block.
    fn finish(&mut self, _: &mut Conf) {}
}

/// Directives of the family, in tables. Each protocol has the same directives as in nginx.
pub(crate) struct Rows<F>(PhantomData<F>);

/// The settings of a block for one protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passing<F> {
    /// Settings of the family.
    pub(crate) conf: Conf,
    /// Settings of the protocol.
    pub(crate) protocol: F,
    finished: Finished,
}

/// Whether the derived values were computed at the end of a block. A copy is to be changed, so it is not finished.
#[derive(Debug, Default)]
struct Finished(bool);

impl Clone for Finished {
    fn clone(&self) -> Finished {
        Finished(false)
    }
}

impl<F: Family> Settings for Passing<F> {
    fn start(start: &mut Start<'_>) -> Passing<F> {
        Passing { conf: Conf::start::<F>(start), protocol: F::default(), finished: Finished(false) }
    }

    fn inherit(&self, inner: Inner) -> Option<Passing<F>> {
        // Each location must set its target itself. Without a target the settings are shared, because most locations have none.
        (inner == Inner::Block && self.conf.pass.is_some()).then(|| {
            let mut passing = self.clone();
            passing.conf.pass = None;
            passing
        })
    }
}

/// The settings of the location that passes a request on, for any protocol.
#[derive(Clone, Copy)]
pub(crate) struct Via<'a> {
    pub(crate) conf: &'a Conf,
    pub(crate) protocol: &'a dyn Protocol,
}

impl<F: Family> Passing<F> {
    /// The type of these settings, for the table of a module.
    pub(super) const SETTINGS: &'static [SettingsType] = &[SettingsType::of::<Passing<F>>()];

    /// Returns the settings without the type of the protocol.
    pub(crate) fn via(&self) -> Via<'_> {
        Via { conf: &self.conf, protocol: &self.protocol }
    }

    /// Whether the derived values were computed.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.0
    }

    /// Marks the settings as finished, and returns them for the computation of the derived values.
    pub(super) fn finish(&mut self) -> &mut Passing<F> {
        self.finished.0 = true;
        self
    }
}

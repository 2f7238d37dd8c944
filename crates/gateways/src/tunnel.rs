//! nginx's tunnel module: CONNECT (RFC 9110 section 9.3.6). The request names a host and a port. A connection to it is opened, and
//! bytes are relayed in both directions until both ends have closed.
//!
//! ```text
//!   client --CONNECT host:port--> here --connection--> host:port
//!          <--------200---------
//!          <=========================================>  (`upstream::Tunnel`)
//! ```
//!
//! Other directives restrict the destinations: `allow` and `deny`, `auth_basic`, a `map` of `$host`. The destination is
//! the address of `tunnel_pass`, or the target of the request.

use conf::{Args, Contexts, Spec};
use http::fields::Method;
use http::gateway::Encoded;

use crate::exposure::Exposure;
use crate::passing::conf::{Conf, NEXT_OFF};
use crate::passing::pass::{self, Destination};
use crate::passing::request::Fill;
use crate::passing::{self, Family, Protocol, Rows};
use crate::{Directive, Module};
use exchange::request::Request;
use upstream::{Outgoing, OutgoingBody};

/// The module.
pub(crate) static MODULE: Module = passing::module::<Tunnel>(
    "http_tunnel",
    &[
        DIRECTIVES,
        Rows::<Tunnel>::CONNECTION,
        Rows::<Tunnel>::TUNNELS,
        Rows::<Tunnel>::SOCKETS,
        Rows::<Tunnel>::SEND_LOWAT,
    ],
);

/// The module has no settings.
#[derive(Clone, Debug, Default)]
struct Tunnel;

/// The target of the request, nginx's default.
const NAMED: &str = "$host:$request_port";

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "",
        "_pass",
        Contexts::SERVER.or(Contexts::LOCATION).or(Contexts::LOCATION_IF),
        Args::Between(0, 1),
        "Accepts CONNECT, and connects to this server or group of servers; without an argument to the target of the request.",
    ),
    |scope, cx| {
        let text = cx.statement.args.first().map_or(NAMED, |word| word.text.as_str());
        pass::set_to::<Tunnel>(scope, cx, text)?;
        scope.core.accepts_connect = true;
        scope.make_mut::<Exposure>().tunnels = cx.statement.args.is_empty();
        Ok(())
    },
)];

impl Family for Tunnel {
    const PREFIX: &'static str = "tunnel";
    const HAS_BUFFERS: bool = false;
    // Only connecting can fail before bytes are relayed.
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] =
        &[("error", 1), ("timeout", 1 << 1), ("off", NEXT_OFF)];
}

impl Protocol for Tunnel {
    fn build(
        &self,
        _: &Conf,
        request: &mut Request,
        _: &Destination,
        _: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        let method = request.method;
        let outgoing = Outgoing::new(Encoded::of_connection(), "", OutgoingBody::None, method);
        Ok(Outgoing { is_idempotent: true, upgrade: true, ..outgoing })
    }

    fn admits(&self, method: Method) -> bool {
        method == Method::Connect
    }

    fn drops_body(&self) -> bool {
        true
    }
}

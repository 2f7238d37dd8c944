//! nginx's scgi module: passes requests to servers that use SCGI. [`crate::passing`] has the part shared with HTTP,
//! `http::gateway::scgi` the encoding.

use conf::{Args, Contexts, Spec};
use http::fields::{BodyLength, HeaderId};
use http::gateway::scgi::Encoder;

use crate::passing::conf::{Conf, NEXT_UPSTREAM_OF_SCRIPTS};
use crate::passing::params::{self, Param};
use crate::passing::pass::{self, Destination};
use crate::passing::request::{Context, Fill, body_of, is_idempotent, length_of};
use crate::passing::spec::row;
use crate::passing::{self, Family, Passing, Protocol, Rows, Via};
use crate::{Directive, Module};
use exchange::request::Request;
use site::config::Layered;
use upstream::Outgoing;

/// The module.
pub(crate) static MODULE: Module = passing::module::<Scgi>(
    "http_scgi",
    &[
        DIRECTIVES,
        Rows::<Scgi>::CONNECTION,
        Rows::<Scgi>::FIELDS,
        Rows::<Scgi>::SOCKETS,
        Rows::<Scgi>::BODIES,
        Rows::<Scgi>::STORE,
        Rows::<Scgi>::CACHE,
    ],
);

/// The settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scgi {
    /// `scgi_param`
    params: Layered<Param>,
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "",
            "_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF),
            Args::Exactly(1),
            "Passes requests on to this SCGI server or group of servers: `HOST:PORT`, `unix:PATH` or a name.",
        ),
        pass::set::<Scgi>,
    ),
    Directive::scope(
        row(
            "_param",
            Args::Between(2, 3),
            "A parameter of requests; with `if_not_empty` it is omitted if its value is empty.",
        )
        .many(),
        |scope, cx| {
            let param = Param::read(cx)?;
            scope.make_mut::<Passing<Scgi>>().protocol.params.make_mut(cx.block).push(param);
            Ok(())
        },
    ),
];

impl Family for Scgi {
    const PREFIX: &'static str = "scgi";
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = NEXT_UPSTREAM_OF_SCRIPTS;

    fn hides(_: HeaderId, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(b"Status")
    }

    fn finish(&mut self, conf: &mut Conf) {
        conf.cache.convert_head = false;
        conf.cache.sets_range = params::sets_range(self.params.items());
    }
}

impl Protocol for Scgi {
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        _: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        let body = body_of(request, Via { conf, protocol: self })?;
        let length = length_of(request, conf, &body);
        request.extensions.insert(Context { length, passes_conditions: fill.is_none() });
        let mut encoder = Encoder::new(match length {
            BodyLength::Exactly(length) => length,
            BodyLength::None | BodyLength::Unknown => 0,
        });
        // nginx's file `scgi_params` sets it, but not every configuration includes that file.
        if !self.params.items().iter().any(|param| &*param.name == "SCGI") {
            encoder.param(b"SCGI", b"1");
        }
        params::each(self.params.items(), conf, request, fill, &mut |name, value| encoder.param(name, value));
        let method = request.method;
        let outgoing = Outgoing::new(encoder.end(), "scgi://", body, method);
        Ok(Outgoing { is_idempotent: is_idempotent(method), ..outgoing })
    }

    fn can_frame(&self, length: BodyLength) -> bool {
        // The length precedes the body.
        length != BodyLength::Unknown
    }
}

//! nginx's uwsgi module: passes requests to servers that use uwsgi, also over TLS. [`crate::passing`] has the part shared with
//! HTTP, `http::gateway::uwsgi` the encoding.

use conf::{Args, Contexts, Spec, value};
use http::fields::BodyLength;
use http::gateway::uwsgi::Encoder;

use crate::passing::conf::{Conf, NEXT_UPSTREAM_OF_SCRIPTS};
use crate::passing::params::{self, Param};
use crate::passing::pass::{self, Destination, Scheme};
use crate::passing::request::{Context, Fill, body_of, is_idempotent, length_of, secure_of};
use crate::passing::spec::row;
use crate::passing::{self, Family, Passing, Protocol, Rows, Via};
use crate::{Directive, Module};
use exchange::request::Request;
use site::config::{Layered, Scope};
use site::template::Template;
use telemetry::Level;
use upstream::Outgoing;

/// The module.
pub(crate) static MODULE: Module = passing::module::<Uwsgi>(
    "http_uwsgi",
    &[
        DIRECTIVES,
        Rows::<Uwsgi>::CONNECTION,
        Rows::<Uwsgi>::FIELDS,
        Rows::<Uwsgi>::SOCKETS,
        Rows::<Uwsgi>::BODIES,
        Rows::<Uwsgi>::STORE,
        Rows::<Uwsgi>::CACHE,
        Rows::<Uwsgi>::TLS,
    ],
);

/// The settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uwsgi {
    /// `uwsgi_param`
    params: Layered<Param>,
    /// `uwsgi_modifier1`, `uwsgi_modifier2`
    modifiers: (u8, u8),
    /// `uwsgi_string`
    string: Option<Template>,
}

fn own(scope: &mut Scope) -> &mut Uwsgi {
    &mut scope.make_mut::<Passing<Uwsgi>>().protocol
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "",
            "_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF),
            Args::Exactly(1),
            "Passes requests on to this uwsgi server or group of servers: `HOST:PORT`, `unix:PATH` or a name, after `suwsgi://` \
             for TLS.",
        ),
        pass::set::<Uwsgi>,
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
            own(scope).params.make_mut(cx.block).push(param);
            Ok(())
        },
    ),
    Directive::scope(
        row("_modifier1", Args::Exactly(1), "The first modifier of requests, 0 to 255.").default("0"),
        |scope, cx| {
            own(scope).modifiers.0 = cx.statement.value(0, modifier)?;
            Ok(())
        },
    ),
    Directive::scope(
        row("_modifier2", Args::Exactly(1), "The second modifier of requests, 0 to 255.").default("0"),
        |scope, cx| {
            own(scope).modifiers.1 = cx.statement.value(0, modifier)?;
            Ok(())
        },
    ),
    Directive::scope(
        row("_string", Args::Exactly(1), "Bytes to send after the parameters, for some modifiers."),
        |scope, cx| {
            own(scope).string = Some(cx.template(cx.arg(0))?);
            Ok(())
        },
    ),
];

fn modifier(text: &str) -> Result<u8, value::ValueError> {
    value::number_in(0, u8::MAX.into())(text).map(|number| number as u8)
}

impl Family for Uwsgi {
    const PREFIX: &'static str = "uwsgi";
    const SCHEMES: &'static [Scheme] = &[
        Scheme { text: "suwsgi://", port: 0, is_secure: true },
        Scheme { text: "uwsgi://", port: 0, is_secure: false },
        Scheme::NONE,
    ];
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = NEXT_UPSTREAM_OF_SCRIPTS;

    fn finish(&mut self, conf: &mut Conf) {
        conf.cache.convert_head = false;
        conf.cache.sets_range = params::sets_range(self.params.items());
    }
}

impl Protocol for Uwsgi {
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        destination: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        let body = body_of(request, Via { conf, protocol: self })?;
        let length = length_of(request, conf, &body);
        request.extensions.insert(Context { length, passes_conditions: fill.is_none() });
        let mut encoder = Encoder::new(self.modifiers.0, self.modifiers.1);
        params::each(self.params.items(), conf, request, fill, &mut |name, value| encoder.param(name, value));
        if let Some(string) = &self.string {
            encoder.string(&string.rendered(request));
        }
        let Some(encoded) = encoder.end() else {
            request.log(
                Level::Alert,
                format_args!("uwsgi request is too big: its parameters are above 65535 bytes"),
            );
            return Err(500);
        };
        let secure = secure_of(request, conf, destination)?;
        let method = request.method;
        let scheme = if secure.is_some() { "suwsgi://" } else { "uwsgi://" };
        let outgoing = Outgoing::new(encoded, scheme, body, method);
        Ok(Outgoing { secure, is_idempotent: is_idempotent(method), ..outgoing })
    }

    fn can_frame(&self, length: BodyLength) -> bool {
        // A body without an end marker has its length in a parameter.
        length != BodyLength::Unknown
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::error;

    #[test]
    fn modifiers_are_bytes() {
        for (text, expected) in [
            ("uwsgi_modifier1 256;", "value must be between 0 and 255"),
            ("uwsgi_modifier2 x;", "\"uwsgi_modifier2\" directive invalid number"),
        ] {
            let found = error(&format!("http {{ {text} }}"));
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}

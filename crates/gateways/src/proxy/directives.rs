//! Directives that only HTTP upstreams have, except for those of `rewrites`.

use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec, Support};
use http::fields::{HeaderId, Version};

use crate::Directive;
use crate::passing::conf::conf;
use crate::passing::pass;
use crate::passing::spec::row;
use crate::proxy::conf::{Http, http};
use crate::proxy::request::{self, SetField};
use site::config::{Cx, Layered, Scope};
use site::declaration::{LEVELS, NO_HASH, OWN};

/// The destination and the form of the request. A block inherits all settings except the destination.
pub(super) const DIRECTIVES: &[Directive] = &[
    // The only directive that enables this module. `pass` checks where it may have a URI.
    Directive::scope(
        Spec::new(
            "",
            "_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT),
            Args::Exactly(1),
            "Passes requests on to this server or group of servers, with this URI if there is one.",
        ),
        pass::set::<Http>,
    ),
    Directive::scope(
        row("_http_version", Args::Exactly(1), "The HTTP version of requests to upstreams.")
            .default("1.1"),
        |scope, cx| {
            const VERSIONS: &[(&str, Version)] =
                &[("1.0", Version::Http10), ("1.1", Version::Http11), ("2", Version::Http2)];
            cx.choice(&mut http(scope).version, VERSIONS)
        },
    ),
    // Off by default: the name must be one that no other server uses.
    Directive::scope(
        Spec::new(
            OWN,
            "_cdn_loop",
            LEVELS,
            Args::Exactly(1),
            "Adds this name to `CDN-Loop` (RFC 8586), and refuses requests that already have it with 502; or `off`.",
        )
        .default("off"),
        |scope, cx| {
            let name = cx.arg(0);
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_name) {
                return Err(cx.error(format_args!(
                    "invalid value \"{name}\" in \"proxy_cdn_loop\", it must be a host name or \"off\""
                )));
            }
            http(scope).cdn_loop = (name != "off").then(|| name.as_bytes().into());
            Ok(())
        },
    ),
    // A template: the value often comes from a `map` of the client's method. It is checked for each request, since only a token is
    // valid in a request line.
    Directive::scope(
        row("_method", Args::Exactly(1), "The method of requests, instead of the client's method."),
        |scope, cx| {
            http(scope).method = Some(Arc::new(cx.template(cx.arg(0))?));
            Ok(())
        },
    ),
    // An empty value removes the field. Fields for the framing cannot be set: they are computed from the body.
    Directive::scope(
        row("_set_header", Args::Exactly(2), "A field of requests, instead of the client's field.")
            .many(),
        set_field,
    ),
    // The client's body is still read, so that variables can contain it. The length is computed again.
    Directive::scope(
        row("_set_body", Args::Exactly(1), "The body of requests, instead of the client's body."),
        |scope, cx| {
            http(scope).body = Some(Arc::new(cx.template(cx.arg(0))?));
            Ok(())
        },
    ),
    // Some upstreams send trailers only with `TE: trailers`, which `proxy_set_header` can set.
    Directive::scope(
        row("_pass_trailers", Args::Flag, "Whether trailers of responses are passed on.")
            .default("off"),
        |scope, cx| cx.flag(&mut conf::<Http>(scope).upstream.pass_trailers),
    ),
    // When off, the key should contain the method.
    Directive::scope(
        row(
            "_cache_convert_head",
            Args::Flag,
            "Sends HEAD requests as GET, to store the response.",
        )
        .default("on"),
        |scope, cx| cx.flag(&mut conf::<Http>(scope).cache.convert_head),
    ),
    tuning("_headers_hash_max_size", "512"),
    tuning("_headers_hash_bucket_size", "64"),
];

/// Creates a directive that sets the size of an nginx hash table.
const fn tuning(name: &'static str, default: &'static str) -> Directive {
    let spec = row(name, Args::Exactly(1), "The size of a hash table of nginx.");
    Directive::scope(spec.default(default).state(Support::Accepted(NO_HASH)), |_, cx| cx.number(&mut 0))
}

/// Sets a field. Fields with an invalid name are reported and ignored; nginx sends them unchanged.
fn set_field(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    add_field(&mut http(scope).set_fields, cx)
}

/// Works like [`set_field`], for the list of fields of another protocol.
pub(crate) fn add_field(fields: &mut Layered<SetField>, cx: &mut Cx<'_>) -> Result<(), Error> {
    let (name, value) = (cx.arg(0), cx.template(cx.arg(1))?);
    let fields = fields.make_mut(cx.block);
    if http::response::encode::push_field(&mut Vec::new(), name.as_bytes(), b"").is_err() {
        cx.warn(format_args!("invalid field name \"{name}\", the field is not sent"));
        return Ok(());
    }
    let is_empty = value.constant() == Some("");
    if request::is_framing(HeaderId::of(name.as_bytes())) && !is_empty {
        cx.warn(format_args!(
            "\"{name}\" is computed from the body that is sent, the configured value is ignored"
        ));
    }
    fields.push(SetField::new(name, value));
    Ok(())
}

//! `gzip`: compresses responses.
//!
//! [`crate::compress`] has nginx's rules for responses. The core's directives determine the clients, through
//! [`exchange::accept_encoding`]. The length of a body is unknown before its end, so it is sent in chunks.

use conf::{Args, Error, Spec, Support, value};

use crate::compress;
use crate::{Declaration, Directive, Module};
use exchange::accept_encoding;
use exchange::filter::encoder;
use exchange::module::Variable;
use exchange::request::Request;
use site::config::{Cx, Settings, SettingsType};
use site::declaration::{LEVELS, LEVELS_AND_IF};
use site::settings::media_types::MediaTypes;
use transfer::coding;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "gzip_ratio",
        get: |request, out| encoder::ratio(&request.extensions, "gzip", out),
        set: None,
        help: "The ratio by which gzip reduced the body of the response.",
    }],
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().enabled {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES, ACCEPTED],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_gzip")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_gzip", name, LEVELS, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // Also in an `if`, for clients that are identified by other properties than `Accept-Encoding`.
    Directive::scope(
        Spec::new("http_gzip", "gzip", LEVELS_AND_IF, Args::Flag, "Compresses responses with gzip.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().enabled),
    ),
    // HTML is always included.
    Directive::scope(
        spec("gzip_types", Args::AtLeast(1), "Media types to compress in addition to HTML; `*` means all.")
            .many()
            .default("text/html"),
        |scope, cx| scope.make_mut::<Conf>().types.parse(cx),
    ),
    // Each level costs more time than the previous one, and the higher levels gain little.
    Directive::scope(
        spec("gzip_comp_level", Args::Exactly(1), "Compression level, from 1 to 9.").default("1"),
        |scope, cx| {
            let mut level = u32::from(scope.make_mut::<Conf>().settings.level);
            cx.number_in(&mut level, 1, 9)?;
            scope.make_mut::<Conf>().settings.level = level as u8;
            Ok(())
        },
    ),
    // For a shorter body compression would not save a packet.
    Directive::scope(
        spec("gzip_min_length", Args::Exactly(1), "Minimum `Content-Length` of compressed responses.")
            .default("20"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().min_length),
    ),
    // A smaller window saves memory of the client.
    Directive::scope(
        spec("gzip_window", Args::Exactly(1), "Size of the compression window.").default("32k"),
        |scope, cx| {
            let bits = power_of_two(cx, 9, 15, "must be 512, 1k, 2k, 4k, 8k, 16k, or 32k")?;
            scope.make_mut::<Conf>().settings.window_bits = bits;
            Ok(())
        },
    ),
];

// The reasons why some directives have no effect, for the reference page.
const HASH_WHY: &str = "the hash tables of the encoder have a fixed size";
const BUFFERS_WHY: &str = "compressed data is collected up to the size of one send";
const POSTPONE_WHY: &str = "encoders are reused, so their allocation need not be delayed";

/// Directives whose values are checked as in nginx, but which have no effect here.
const ACCEPTED: &[Directive] = &[
    Directive::scope(
        spec("gzip_hash", Args::Exactly(1), "Size of the encoder's hash tables.")
            .default("64k")
            .state(Support::Accepted(HASH_WHY)),
        |_, cx| power_of_two(cx, 9, 17, "must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k").map(drop),
    ),
    Directive::scope(
        spec("gzip_buffers", Args::Exactly(2), "Number and bytes of the buffers for compressed data.")
            .default("32 4k")
            .state(Support::Accepted(BUFFERS_WHY)),
        |_, cx| cx.statement.buffers().map(drop),
    ),
    Directive::scope(
        spec("gzip_no_buffer", Args::Flag, "Sends compressed data without collecting it.")
            .default("off")
            .state(Support::Accepted(BUFFERS_WHY)),
        |_, cx| cx.flag(&mut false),
    ),
    Directive::scope(
        spec("postpone_gzipping", Args::Exactly(1), "Bytes to collect before compression starts.")
            .default("0")
            .state(Support::Accepted(POSTPONE_WHY)),
        |_, cx| cx.size(&mut 0),
    ),
];

/// The settings of a block.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// Whether responses are compressed.
    enabled: bool,
    /// Settings of the encoder.
    settings: coding::gzip::Settings,
    /// Minimum length of a response in bytes, if it is known in advance.
    min_length: u64,
    /// Media types of the responses.
    types: MediaTypes,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        let settings = coding::gzip::Settings { level: 1, window_bits: 15 };
        Conf { enabled: false, settings, min_length: 20, types: MediaTypes::HTML }
    }
}

/// Parses a size that is a power of two between 2^`min` and 2^`max`; returns its base 2 logarithm.
pub(super) fn power_of_two(cx: &Cx<'_>, min: u8, max: u8, otherwise: &str) -> Result<u8, Error> {
    let size = cx.statement.value(0, value::size)?;
    let bits = (min..=max).find(|&bits| size == 1 << bits);
    bits.ok_or_else(|| cx.error(format_args!("\"{}\" directive {otherwise}", cx.statement.name.text)))
}

/// Whether the client prefers this coding to the coding `other`, and the response gets it. The module of `other` comes first in the
/// order of the filters.
pub(super) fn is_preferred(request: &Request, other: &str) -> bool {
    accept_encoding::outweighs(request, "gzip", other) && {
        let conf = request.scope().of::<Conf>();
        conf.enabled
            && compress::is_compressible(request, conf.min_length, &conf.types)
            && accept_encoding::gzip(request)
    }
}

/// Adds the encoder if the type and the length of the response permit it, and the client accepts gzip.
fn filter(conf: &Conf, request: &mut Request) {
    // The response of a subrequest is part of another response, which may be compressed.
    if request.depth > 0 {
        return;
    }
    if compress::is_eligible(request, conf.min_length, &conf.types) && accept_encoding::gzip(request) {
        compress::apply(request, coding::Settings::Gzip(conf.settings));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    fn conf_of(http: &str) -> Conf {
        loaded(http).http.locations.last().expect("there is a server").scope.of::<Conf>().clone()
    }

    #[test]
    fn settings_are_inherited_and_replaced() {
        let conf = conf_of("server {}");
        assert_eq!((conf.enabled, conf.settings.level, conf.min_length), (false, 1, 20));
        let outer = "gzip on; gzip_comp_level 6; gzip_min_length 1k; gzip_window 4k;";
        let conf = conf_of(&format!("{outer} server {{ location / {{}} }}"));
        assert_eq!((conf.enabled, conf.settings.level, conf.min_length), (true, 6, 1024));
        assert_eq!(conf.settings.window_bits, 12);
        let inner = "gzip off; gzip_comp_level 9; gzip_min_length 0; gzip_window 512;";
        let conf = conf_of(&format!("{outer} server {{ {inner} }}"));
        assert_eq!((conf.enabled, conf.settings.level, conf.min_length), (false, 9, 0));
        assert_eq!(conf.settings.window_bits, 9);
    }

    #[test]
    fn directives_without_effect_are_accepted() {
        conf_of("gzip_hash 128k; gzip_buffers 4 8k; gzip_no_buffer on; postpone_gzipping 1k; server {}");
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("gzip yes;", "invalid value \"yes\" in \"gzip\" directive, it must be \"on\" or \"off\""),
            ("gzip_comp_level 10;", "value must be between 1 and 9"),
            ("gzip_comp_level x;", "\"gzip_comp_level\" directive invalid number"),
            ("gzip_min_length x;", "\"gzip_min_length\" directive invalid value"),
            ("gzip_window 3k;", "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k"),
            ("gzip_hash 1;", "\"gzip_hash\" directive must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k"),
            ("gzip_buffers 0 4k;", "\"gzip_buffers\" directive invalid value"),
            (
                "gzip_no_buffer 1;",
                "invalid value \"1\" in \"gzip_no_buffer\" directive, it must be \"on\" or \"off\"",
            ),
            ("postpone_gzipping x;", "\"postpone_gzipping\" directive invalid value"),
            ("gzip on; gzip off;", "\"gzip\" directive is duplicate"),
            ("gzip_types;", "invalid number of arguments in \"gzip_types\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{found}");
        }
    }
}

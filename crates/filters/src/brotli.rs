//! `brotli`: compresses responses with brotli, with the directives of Google's module for nginx.
//!
//! Responses are selected as for `gzip`, but `gzip_http_version`, `gzip_proxied` and `gzip_disable` do not apply, because
//! every client that names this coding supports it. Of several accepted codings, the first of zstd, brotli, gzip is used.

use conf::{Args, Spec, Support};

use crate::compress;
use crate::gzip::{self, power_of_two};
use crate::{Declaration, Directive, Module};
use exchange::accept_encoding;
use exchange::filter::encoder;
use exchange::module::Variable;
use exchange::request::Request;
use site::config::{Settings, SettingsType};
use site::declaration::{LEVELS, LEVELS_AND_IF};
use site::settings::media_types::MediaTypes;
use transfer::coding;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "brotli_ratio",
        get: |request, out| encoder::ratio(&request.extensions, "br", out),
        set: None,
        help: "The ratio by which brotli reduced the body of the response.",
    }],
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().enabled {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_brotli_filter")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_brotli_filter", name, LEVELS, args, help)
}

const BUFFERS_WHY: &str = "compressed data is collected up to the size of one send";

const DIRECTIVES: &[Directive] = &[
    // Also in an `if`, for clients that are identified by other properties than `Accept-Encoding`.
    Directive::scope(
        Spec::new(
            "http_brotli_filter",
            "brotli",
            LEVELS_AND_IF,
            Args::Flag,
            "Compresses responses with brotli.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().enabled),
    ),
    // HTML is always included.
    Directive::scope(
        spec("brotli_types", Args::AtLeast(1), "Media types to compress in addition to HTML; `*` means all.")
            .many()
            .default("text/html"),
        |scope, cx| scope.make_mut::<Conf>().types.parse(cx),
    ),
    // From level 4 on, other threads compress all but short responses.
    Directive::scope(
        spec("brotli_comp_level", Args::Exactly(1), "Compression level, from 0 to 11.").default("6"),
        |scope, cx| {
            let mut quality = u32::from(scope.make_mut::<Conf>().settings.quality);
            cx.number_in(&mut quality, 0, 11)?;
            scope.make_mut::<Conf>().settings.quality = quality as u8;
            Ok(())
        },
    ),
    // For a shorter body compression would not save a packet.
    Directive::scope(
        spec("brotli_min_length", Args::Exactly(1), "Minimum `Content-Length` of compressed responses.")
            .default("20"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().min_length),
    ),
    // A short response uses a window of its size, which saves memory at both ends.
    Directive::scope(
        spec("brotli_window", Args::Exactly(1), "Size of the compression window.").default("512k"),
        |scope, cx| {
            let (min, max) = (coding::brotli::WINDOW_BITS_MIN, coding::brotli::WINDOW_BITS_MAX);
            scope.make_mut::<Conf>().settings.window_bits = power_of_two(cx, min, max, WINDOWS)?;
            Ok(())
        },
    ),
    // Also without effect in the nginx module.
    Directive::scope(
        spec("brotli_buffers", Args::Exactly(2), "Number and bytes of the buffers for compressed data.")
            .state(Support::Accepted(BUFFERS_WHY)),
        |_, cx| cx.statement.buffers().map(drop),
    ),
];

/// The error message for all other sizes.
const WINDOWS: &str = "must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m";

/// The settings of a block.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// Whether responses are compressed.
    enabled: bool,
    /// Settings of the encoder.
    settings: coding::brotli::Settings,
    /// Minimum length of a response in bytes, if it is known in advance.
    min_length: u64,
    /// Media types of the responses.
    types: MediaTypes,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        let settings = coding::brotli::Settings { quality: 6, window_bits: 19 };
        Conf { enabled: false, settings, min_length: 20, types: MediaTypes::HTML }
    }
}

/// Whether the client prefers this coding to the coding `other`, and the response gets it. The module of `other` comes first in the
/// order of the filters.
pub(super) fn is_preferred(request: &Request, other: &str) -> bool {
    accept_encoding::outweighs(request, "br", other) && {
        let conf = request.scope().of::<Conf>();
        conf.enabled
            && compress::is_compressible(request, conf.min_length, &conf.types)
            && accept_encoding::coding(request, "br")
    }
}

/// Adds the encoder if the type and the length of the response permit it, and the client accepts brotli.
fn filter(conf: &Conf, request: &mut Request) {
    // The response of a subrequest is part of another response, which may be compressed.
    if request.depth > 0 {
        return;
    }
    if compress::is_eligible(request, conf.min_length, &conf.types)
        && accept_encoding::coding(request, "br")
        && !gzip::is_preferred(request, "br")
    {
        compress::apply(request, coding::Settings::Brotli(conf.settings));
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
        assert_eq!((conf.enabled, conf.min_length), (false, 20));
        assert_eq!((conf.settings.quality, conf.settings.window_bits), (6, 19));
        let outer =
            "brotli on; brotli_comp_level 11; brotli_min_length 1k; brotli_window 16m; brotli_buffers 4 8k;";
        let conf = conf_of(&format!("{outer} server {{ location / {{}} }}"));
        assert_eq!((conf.enabled, conf.min_length), (true, 1024));
        assert_eq!((conf.settings.quality, conf.settings.window_bits), (11, 24));
        let inner = "brotli off; brotli_comp_level 0; brotli_min_length 0; brotli_window 1k;";
        let conf = conf_of(&format!("{outer} server {{ {inner} }}"));
        assert_eq!((conf.enabled, conf.min_length), (false, 0));
        assert_eq!((conf.settings.quality, conf.settings.window_bits), (0, 10));
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            (
                "brotli 1;",
                "invalid value \"1\" in \"brotli\" directive, it must be \"on\" or \"off\"".to_owned(),
            ),
            ("brotli_comp_level 12;", "value must be between 0 and 11".to_owned()),
            ("brotli_min_length x;", "\"brotli_min_length\" directive invalid value".to_owned()),
            ("brotli_window 32m;", format!("\"brotli_window\" directive {WINDOWS}")),
            ("brotli_buffers 1;", "invalid number of arguments in \"brotli_buffers\" directive".to_owned()),
            ("brotli_types;", "invalid number of arguments in \"brotli_types\" directive".to_owned()),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{found}");
        }
    }
}

//! `zstd`: compresses responses with Zstandard, with the directives of the zstd module for nginx.
//!
//! Responses are selected as for `gzip`, but `gzip_http_version`, `gzip_proxied` and `gzip_disable` do not apply, because
//! every client that names this coding supports it. Of several accepted codings, the first of zstd, brotli, gzip is used.
//! Windows have at most the 8 MiB that HTTP clients must support (RFC 9659), so the highest levels gain less than for files.

use conf::value::ValueError;
use conf::{Args, Contexts, Error, Spec, Support, value};

use crate::{Declaration, Directive, Module};
use crate::{brotli, compress, gzip};
use exchange::accept_encoding;
use exchange::filter::encoder;
use exchange::module::Variable;
use exchange::request::Request;
use site::config::{Cx, Scope, Settings, SettingsType};
use site::declaration::{LEVELS, LEVELS_AND_IF};
use site::settings::media_types::MediaTypes;
use transfer::coding;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "zstd_ratio",
        get: |request, out| encoder::ratio_in_thousandths(&request.extensions, "zstd", out),
        set: None,
        help: "The ratio by which zstd reduced the body of the response.",
    }],
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().enabled {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_zstd_filter")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_zstd_filter", name, LEVELS, args, help)
}

const BUFFERS_WHY: &str = "compressed data is collected up to the size of one send";

const DIRECTIVES: &[Directive] = &[
    // Also in an `if`, for clients that are identified by other properties than `Accept-Encoding`.
    Directive::scope(
        Spec::new("http_zstd_filter", "zstd", LEVELS_AND_IF, Args::Flag, "Compresses responses with zstd.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().enabled),
    ),
    // HTML is always included.
    Directive::scope(
        spec("zstd_types", Args::AtLeast(1), "Media types to compress in addition to HTML; `*` means all.")
            .many()
            .default("text/html"),
        |scope, cx| scope.make_mut::<Conf>().types.parse(cx),
    ),
    // From level 3 on, and with a dictionary, other threads compress all but short responses.
    Directive::scope(
        spec(
            "zstd_comp_level",
            Args::Exactly(1),
            "Compression level, up to 22; negative levels are faster than level 1.",
        )
        .default("1"),
        |scope, cx| {
            scope.make_mut::<Conf>().settings.level = level(cx)?;
            Ok(())
        },
    ),
    // For a shorter body compression would not save a packet.
    Directive::scope(
        spec("zstd_min_length", Args::Exactly(1), "Minimum `Content-Length` of compressed responses.")
            .default("20"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().min_length),
    ),
    // A browser can display the first lines of a page after the first block. Each block costs a few bytes.
    Directive::scope(
        spec(
            "zstd_target_cblock_size",
            Args::Exactly(1),
            "Target size of a compressed block: clients decompress complete blocks.",
        )
        .default("0"),
        set_target_block,
    ),
    // No header field tells the client which dictionary is used, so both ends must be configured with it.
    Directive::scope(
        Spec::new(
            "http_zstd_filter",
            "zstd_dict_file",
            Contexts::HTTP,
            Args::Exactly(1),
            "File with a compression dictionary, which clients must have too.",
        ),
        |scope, cx| {
            let path = cx.conf_prefix.join(cx.arg(0));
            scope.make_mut::<Conf>().settings.dictionary = Some(cx.read_data(&path)?);
            Ok(())
        },
    ),
    Directive::scope(
        spec("zstd_buffers", Args::Exactly(2), "Number and bytes of the buffers for compressed data.")
            .default("32 4k")
            .state(Support::Accepted(BUFFERS_WHY)),
        |_, cx| cx.statement.buffers().map(drop),
    ),
];

/// The settings of a block.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// Whether responses are compressed.
    enabled: bool,
    /// Settings of the encoder.
    settings: coding::zstd::Settings,
    /// Minimum length of a response in bytes, if it is known in advance.
    min_length: u64,
    /// Media types of the responses.
    types: MediaTypes,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        let settings = coding::zstd::Settings { level: 1, target_block: None, dictionary: None };
        Conf { enabled: false, settings, min_length: 20, types: MediaTypes::HTML }
    }
}

/// Parses a level: positive up to the library's maximum, negative down to its minimum, but not zero, which the library
/// treats as its default.
fn level(cx: &Cx<'_>) -> Result<i32, Error> {
    let read = |text: &str| {
        let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
        value::number(digits).map(|number| sign * number as i64).map_err(|_| ValueError::InvalidNumber)
    };
    let (min, max) = (coding::zstd::level_min(), coding::zstd::LEVEL_MAX);
    let level = cx.statement.value(0, read)?;
    let fits = i32::try_from(level).ok().filter(|level| *level != 0 && (min..=max).contains(level));
    let words = || cx.error(format_args!("zstd compress level must between {min} and {max} excluding 0"));
    fits.ok_or_else(words)
}

/// Parses the target block size; zero lets the library choose.
fn set_target_block(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let size = cx.statement.value(0, value::size)?;
    let (min, max) = coding::zstd::TARGET_BLOCKS;
    scope.make_mut::<Conf>().settings.target_block = match u32::try_from(size) {
        Ok(0) => None,
        Ok(size) if (min..=max).contains(&size) => Some(size),
        _ => return Err(cx.error(format_args!("value must be between {min} and {max}"))),
    };
    Ok(())
}

/// Adds the encoder if the type and the length of the response permit it, and the client accepts zstd.
fn filter(conf: &Conf, request: &mut Request) {
    // The response of a subrequest is part of another response, which may be compressed.
    if request.depth > 0 {
        return;
    }
    if compress::is_eligible(request, conf.min_length, &conf.types)
        && accept_encoding::coding(request, "zstd")
        && !brotli::is_preferred(request, "zstd")
        && !gzip::is_preferred(request, "zstd")
    {
        compress::apply(request, coding::Settings::Zstd(conf.settings.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, load_with, loaded};

    fn conf_of(http: &str) -> Conf {
        loaded(http).http.locations.last().expect("there is a server").scope.of::<Conf>().clone()
    }

    fn values(conf: &Conf) -> (bool, i32, u64, Option<u32>) {
        (conf.enabled, conf.settings.level, conf.min_length, conf.settings.target_block)
    }

    #[test]
    fn settings_are_inherited_and_replaced() {
        let conf = conf_of("server {}");
        assert_eq!(values(&conf), (false, 1, 20, None));
        let outer =
            "zstd on; zstd_comp_level 19; zstd_min_length 1k; zstd_target_cblock_size 2k; zstd_buffers 4 8k;";
        let conf = conf_of(&format!("{outer} server {{ location / {{}} }}"));
        assert_eq!(values(&conf), (true, 19, 1024, Some(2048)));
        let inner = "zstd off; zstd_comp_level -5; zstd_min_length 0; zstd_target_cblock_size 0;";
        let conf = conf_of(&format!("{outer} server {{ {inner} }}"));
        assert_eq!(values(&conf), (false, -5, 0, None));
    }

    #[test]
    fn a_dictionary_is_read_once_and_freed_with_the_configuration() {
        let text = "http { zstd_dict_file words; server { location / {} } }";
        let config = load_with(text, &[("/conf/words", "of words")]).expect("it is right").config;
        let of =
            |location: usize| config.http.locations[location].scope.of::<Conf>().settings.dictionary.clone();
        assert_eq!(of(0).expect("it was read").as_slice(), b"of words");
        assert_eq!(of(0), of(1));
        assert_eq!(config.data_files().count(), 1);
    }

    #[test]
    fn wrong_values_are_refused() {
        let levels =
            format!("zstd compress level must between {} and 22 excluding 0", coding::zstd::level_min());
        for (text, expected) in [
            ("zstd 1;", "invalid value \"1\" in \"zstd\" directive, it must be \"on\" or \"off\""),
            ("zstd_comp_level 0;", &levels),
            ("zstd_comp_level 23;", &levels),
            ("zstd_comp_level --1;", "\"zstd_comp_level\" directive invalid number"),
            ("zstd_min_length x;", "\"zstd_min_length\" directive invalid value"),
            ("zstd_target_cblock_size 1;", "value must be between 1340 and 131072"),
            ("zstd_buffers x 4k;", "\"zstd_buffers\" directive invalid value"),
            ("zstd_types;", "invalid number of arguments in \"zstd_types\" directive"),
            ("zstd_dict_file none;", "open() \"/conf/none\" failed (2: No such file or directory)"),
            ("server {\nzstd_dict_file none; }", "\"zstd_dict_file\" directive is not allowed here"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            let line = 1 + format!("http {{\n{text}").matches('\n').count();
            assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:{line}")), "{found}");
        }
    }
}

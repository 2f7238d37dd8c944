//! `gunzip`: decompresses gzip responses for clients that do not accept them.
//!
//! So one compressed copy on disk suffices: `gzip_static always` serves it, and this module decompresses it for the few
//! clients that do not accept gzip. A damaged body closes the connection, so that no client takes it for complete.

use conf::{Args, Spec, Support};
use http::fields::Method;

use crate::{Declaration, Directive, Module};
use exchange::accept_encoding;
use exchange::filter::{BodyFilter, Output};
use exchange::request::Request;
use site::config::{Settings, SettingsType};
use site::declaration::LEVELS;
use transfer::coding::CodingError;
use transfer::coding::gzip::Decoder;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().enabled {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_gunzip")
    })
};

const BUFFERS_WHY: &str = "decompressed data is sent before more is produced";

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_gunzip",
            "gunzip",
            LEVELS,
            Args::Flag,
            "Decompresses gzip responses for clients that do not accept them.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().enabled),
    ),
    Directive::scope(
        Spec::new(
            "http_gunzip",
            "gunzip_buffers",
            LEVELS,
            Args::Exactly(2),
            "Number and bytes of the buffers for decompressed data.",
        )
        .default("32 4k")
        .state(Support::Accepted(BUFFERS_WHY)),
        |_, cx| cx.statement.buffers().map(drop),
    ),
];

/// Whether the directive is on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    enabled: bool,
}

impl Settings for Conf {}

/// Adds the decoder if the body is compressed and the client does not accept gzip.
fn filter(_: &Conf, request: &mut Request) {
    // Responses with several codings are left unchanged, as in nginx.
    let is_gzip = |coding: &[u8]| coding.eq_ignore_ascii_case(b"gzip");
    if !request.response.field(b"Content-Encoding").is_some_and(is_gzip) {
        return;
    }
    if request.response.forbids_transform() {
        return;
    }
    // Caches must know that the coding depends on the client.
    request.response.vary_accept_encoding = true;
    if accept_encoding::gzip(request) {
        return;
    }
    request.response.remove_field(b"Content-Encoding");
    request.response.becomes_another(true);
    // The header section is that of the decompressed response even if no body follows.
    if request.method != Method::Head {
        request.response.filters.push(Box::new(Gunzip::default()));
    }
}

/// Decompresses a body.
#[derive(Default)]
struct Gunzip {
    decoder: Decoder,
    /// Whether the first byte of the next push was already decompressed: it was reported as not consumed, so that the
    /// caller pushes it again and fetches the remaining output.
    ahead: bool,
}

/// Maximum output bytes per push: a body may become a thousand times larger.
const OUTPUT_MAX: usize = 64 << 10;

impl BodyFilter for Gunzip {
    fn push(&mut self, _: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError> {
        let skip = usize::from(self.ahead);
        let bytes = out.bytes();
        let used = skip + self.decoder.push(&input[skip..], OUTPUT_MAX, bytes)?;
        // If the output space is used up, the last input byte may have further output.
        self.ahead = bytes.len() == OUTPUT_MAX && used == input.len();
        debug_assert!(
            used <= input.len() && used >= usize::from(self.ahead),
            "only bytes of the input are consumed"
        );
        Ok(used - usize::from(self.ahead))
    }

    fn finish(&mut self, _: &mut Request, _: &mut Output) -> Result<(), CodingError> {
        self.decoder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded};

    #[test]
    fn settings_are_inherited_and_replaced() {
        let enabled = |http: &str| {
            loaded(http).http.locations.last().map(|location| location.scope.of::<Conf>().enabled)
        };
        assert_eq!(enabled("server {}"), Some(false));
        assert_eq!(enabled("gunzip on; gunzip_buffers 4 8k; server { location / {} }"), Some(true));
        assert_eq!(enabled("gunzip on; server { gunzip off; }"), Some(false));
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("gunzip 1;", "invalid value \"1\" in \"gunzip\" directive, it must be \"on\" or \"off\""),
            ("gunzip_buffers 4 x;", "\"gunzip_buffers\" directive invalid value"),
            ("gunzip_buffers 4;", "invalid number of arguments in \"gunzip_buffers\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{found}");
        }
    }
}

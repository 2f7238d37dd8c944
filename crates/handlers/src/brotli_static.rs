//! `brotli_static`: serves files precompressed with brotli instead of the originals.
//!
//! The compressed file has its own date, length and entity tag, and supports ranges; only the media type is that of the
//! original. Its content is not compared with the original. [`crate::precompressed`] has the common code of all
//! codings.

use conf::{Args, Spec, value};

use crate::precompressed::{self, Sibling, WORDS, Wanted};
use crate::{Directive, Module};
use exchange::accept_encoding;
use exchange::config::{Settings, SettingsType};
use exchange::module::LEVELS;

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    settings: &[SettingsType::of::<Conf>()],
    take_part: precompressed::take_part::<Conf>,
    ..Module::named("http_brotli_static")
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_brotli_static",
        "brotli_static",
        LEVELS,
        Args::Exactly(1),
        "Sends the file with .br behind its name: on for clients that accept brotli, or always.",
    )
    .default("off"),
    |scope, cx| cx.set(&mut scope.own::<Conf>().0, value::choice(WORDS)),
)];

/// Whether the compressed file is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf(Wanted);

impl Settings for Conf {}

impl precompressed::Conf for Conf {
    const SIBLING: Sibling = Sibling {
        coding: "br",
        suffix: ".br",
        is_accepted: |request| accept_encoding::coding(request, "br"),
    };

    fn wanted(&self) -> Wanted {
        self.0
    }
}

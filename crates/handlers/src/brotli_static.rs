//! `brotli_static`: serves files precompressed with brotli instead of the originals.
//!
//! The compressed file has its own date, length and entity tag, and supports ranges; only the media type is that of the
//! original. Its content is not compared with the original. [`crate::precompressed`] has the code that all codings
//! share.

use conf::{Args, Spec, value};

use crate::gzip_static;
use crate::precompressed::{self, Later, MODES, Sibling, StaticMode};
use crate::{Declaration, Directive, Module};
use exchange::accept_encoding;
use site::config::{Settings, SettingsType};
use site::declaration::LEVELS;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: precompressed::add_to_plan::<Conf>,
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_brotli_static")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_brotli_static",
        "brotli_static",
        LEVELS,
        Args::Exactly(1),
        "Sends the file with the suffix `.br`: `on` if the client accepts brotli, `always` to all clients.",
    )
    .default("off"),
    |scope, cx| cx.set(&mut scope.make_mut::<Conf>().0, value::choice(MODES)),
)];

/// Whether the compressed file is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf(StaticMode);

impl Settings for Conf {}

impl precompressed::Conf for Conf {
    const SIBLING: Sibling = Sibling {
        coding: "br",
        suffix: ".br",
        is_accepted: |request| accept_encoding::coding(request, "br"),
        later: &[Later {
            sibling: gzip_static::Conf::SIBLING,
            mode: |request| request.scope().of::<gzip_static::Conf>().mode(),
        }],
    };

    fn mode(&self) -> StaticMode {
        self.0
    }
}

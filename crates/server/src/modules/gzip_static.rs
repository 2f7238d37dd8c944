//! `gzip_static`: files that were compressed with gzip before, sent in the place of the originals.
//!
//! The file next to the original has its own date, length and entity tag, and ranges of it can be asked for; only the
//! media type is that of the original. Nobody looks whether it holds what the original does. Everything else is
//! the same for all codings and stands in [`crate::coding::precompressed`].

use std::future::Future;
use std::pin::Pin;

use conf::{Args, Spec, value};

use crate::coding::accept;
use crate::coding::precompressed::{Sibling, WORDS, Wanted};
use crate::modules::http_core::LEVELS;
use crate::modules::{Directive, Module};
use crate::phases::{Handler, Phase, Run, Step};
use crate::request::Request;

/// The module.
pub static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    handlers: &[Handler {
        phase: Phase::Content,
        active: |scope| scope.gzip_static.0 != Wanted::Off,
        run: Run::LaterIf(is_wanted, boxed),
    }],
    ..Module::named("http_gzip_static")
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_gzip_static",
        "gzip_static",
        LEVELS,
        Args::Exactly(1),
        "Sends the file with .gz behind its name: on for clients that accept gzip, or always.",
    )
    .default("off"),
    |scope, cx| cx.set(&mut scope.gzip_static.0, value::choice(WORDS)),
)];

/// When the compressed file is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conf(Wanted);

const SIBLING: Sibling = Sibling { coding: "gzip", suffix: ".gz", is_accepted: accept::gzip };

/// Asked before anything is allocated: most requests are for clients or files that this is not for.
fn is_wanted(request: &Request) -> bool {
    SIBLING.is_wanted(request, request.scope().gzip_static.0)
}

/// The table of handlers holds functions of one type; the box is paid by locations with this directive only.
fn boxed(request: &mut Request) -> Pin<Box<dyn Future<Output = Step> + '_>> {
    let wanted = request.scope().gzip_static.0;
    Box::pin(SIBLING.serve(request, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{error, loaded};

    #[test]
    fn is_inherited_and_replaced() {
        let wanted =
            |http: &str| loaded(http).http.locations.last().map(|location| location.scope.gzip_static.0);
        assert_eq!(wanted("server {}"), Some(Wanted::Off));
        assert_eq!(wanted("gzip_static on; server { location / {} }"), Some(Wanted::On));
        assert_eq!(wanted("gzip_static on; server { gzip_static always; }"), Some(Wanted::Always));
        assert_eq!(wanted("gzip_static always; server { gzip_static off; }"), Some(Wanted::Off));
    }

    #[test]
    fn wrong_values_are_refused() {
        let found = error("http {\ngzip_static maybe; }");
        assert!(found.starts_with("invalid value \"maybe\" in /conf/nginx.conf:2"), "{found}");
        let found = error("http {\ngzip_static on; gzip_static on; }");
        assert_eq!(found, "\"gzip_static\" directive is duplicate in /conf/nginx.conf:2");
    }
}

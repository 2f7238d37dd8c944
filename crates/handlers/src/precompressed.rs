//! Precompressed files next to the originals: the common code of `gzip_static` and its siblings.

use http::request::Method;
use io::Errno;

use crate::static_file;
use exchange::config::{Http, Scope, Settings};
use exchange::files::{self, Failure, Found};
use exchange::phases::{Phase, Plan, Step};
use exchange::request::Request;
use telemetry::Level;

/// Whether such a file is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// `off`
    #[default]
    Off,
    /// `on`: for clients that accept the coding.
    On,
    /// `always`: for all clients; decompressed while it is sent to a client that does not accept the coding.
    Always,
}

/// The keywords of the directives.
pub(crate) const WORDS: &[(&str, Wanted)] =
    &[("off", Wanted::Off), ("on", Wanted::On), ("always", Wanted::Always)];

/// The settings of one module.
pub(crate) trait Conf: Settings {
    /// The compressed file beside an original.
    const SIBLING: Sibling;

    /// Returns the value of its directive in a block.
    fn wanted(&self) -> Wanted;
}

/// Adds the handler of the module with these settings to the plan.
pub(crate) fn take_part<C: Conf>(_: &Http, scope: &Scope, plan: &mut Plan) {
    if scope.of::<C>().wanted() != Wanted::Off {
        plan.now_or_later(Phase::Content, scope.shared::<C>(), skip, |conf: &C, request| {
            Box::pin(C::SIBLING.serve(request, conf.wanted()))
        });
    }
}

/// Skips requests whose client or method excludes a compressed file, before any allocation; these are the majority.
fn skip<C: Conf>(conf: &C, request: &mut Request) -> Option<Step> {
    (!C::SIBLING.is_wanted(request, conf.wanted())).then_some(Step::Next)
}

/// The compressed file of one module.
#[derive(Clone, Copy)]
pub(crate) struct Sibling {
    /// The name of the coding.
    pub(crate) coding: &'static str,
    /// The suffix of its name.
    pub(crate) suffix: &'static str,
    /// Whether the client of a request accepts the coding.
    pub(crate) is_accepted: fn(&Request) -> bool,
}

impl Sibling {
    /// Whether to search for a file at all. If the response needs `Vary`, the file is also opened for clients that will
    /// not receive it.
    pub(crate) fn is_wanted(self, request: &Request, wanted: Wanted) -> bool {
        matches!(request.method, Method::Get | Method::Head)
            && request.uri.last() != Some(&b'/')
            && match wanted {
                Wanted::Off => false,
                Wanted::On => request.scope().core.answering.gzip_clients.vary || (self.is_accepted)(request),
                Wanted::Always => true,
            }
    }

    /// Responds with the file, or leaves the request to the next handler.
    pub(crate) async fn serve(self, request: &mut Request, wanted: Wanted) -> Step {
        let mut path = Vec::with_capacity(request.uri.len() + 64);
        files::path_of(request, &request.uri, &mut path);
        path.extend_from_slice(self.suffix.as_bytes());
        let found = match files::open(request, path.clone()).await {
            Ok(found) => found,
            Err(failure) => {
                complain(request, &path, failure);
                return Step::Next;
            }
        };
        if wanted == Wanted::On {
            request.response.vary_accept_encoding = true;
            if !(self.is_accepted)(request) {
                return Step::Next;
            }
        }
        let opened = match found {
            Found::File(opened) => opened,
            Found::Folder => return Step::Next,
            Found::Special => {
                let path = files::display(&path);
                request.log(Level::Crit, format_args!("\"{path}\" is not a regular file"));
                return Step::Status(404);
            }
        };
        static_file::answer(request, opened);
        let coding = self.coding.as_bytes().to_vec();
        request.response.fields.push((b"Content-Encoding".to_vec(), coding));
        Step::Done
    }
}

/// Logs a failure. A missing file is the usual case; other failures are logged, and the original is sent.
fn complain(request: &Request, path: &[u8], failure: Failure) {
    let level = match failure.errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => return,
        Errno::ACCESS | Errno::LOOP | Errno::XDEV => Level::Error,
        _ => Level::Crit,
    };
    request.log(level, format_args!("{}", failure.at(path)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};
    use crate::{brotli_static, gzip_static, zstd_static};

    /// A directive, and a function that returns its value in a block.
    type Row = (&'static str, fn(&Scope) -> Wanted);

    const DIRECTIVES: [Row; 3] = [
        ("gzip_static", |scope| scope.of::<gzip_static::Conf>().wanted()),
        ("brotli_static", |scope| scope.of::<brotli_static::Conf>().wanted()),
        ("zstd_static", |scope| scope.of::<zstd_static::Conf>().wanted()),
    ];

    #[test]
    fn settings_are_inherited_and_replaced() {
        for (name, wanted) in DIRECTIVES {
            for (http, expected) in [
                ("server {}", Wanted::Off),
                ("NAME on; server { location / {} }", Wanted::On),
                ("NAME on; server { NAME always; }", Wanted::Always),
                ("NAME always; server { NAME off; }", Wanted::Off),
            ] {
                let config = loaded(&http.replace("NAME", name));
                let found = config.http.locations.last().map(|location| wanted(&location.scope));
                assert_eq!(found, Some(expected), "{name}: {http}");
            }
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        for (name, _) in DIRECTIVES {
            let found = error(&format!("http {{\n{name} maybe; }}"));
            assert!(found.starts_with("invalid value \"maybe\" in /conf/nginx.conf:2"), "{found}");
            let found = error(&format!("http {{\n{name} on; {name} on; }}"));
            assert_eq!(found, format!("\"{name}\" directive is duplicate in /conf/nginx.conf:2"));
        }
    }
}

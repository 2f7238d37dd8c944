//! Precompressed files next to the originals: the common code of `gzip_static` and its siblings.

use http::fields::Method;
use io::Errno;

use crate::static_file;
use exchange::accept_encoding;
use exchange::files::{self, Failure, OpenedPath};
use exchange::module::Plan;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use site::config::{Http, Scope, Settings};
use telemetry::Level;

/// Whether a precompressed file is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StaticMode {
    /// `off`
    #[default]
    Off,
    /// `on`: for clients that accept the coding.
    On,
    /// `always`: for all clients. `gunzip on` decompresses gzip for clients that do not accept it.
    Always,
}

/// The keywords of the directives.
pub(crate) const MODES: &[(&str, StaticMode)] =
    &[("off", StaticMode::Off), ("on", StaticMode::On), ("always", StaticMode::Always)];

/// The settings of one module.
pub(crate) trait Conf: Settings {
    /// The compressed file next to an original.
    const SIBLING: Sibling;

    /// Returns the value of its directive in a block.
    fn mode(&self) -> StaticMode;
}

/// Adds the handler of the module with these settings to the plan.
pub(crate) fn add_to_plan<C: Conf>(_: &Http, scope: &Scope, plan: &mut Plan) {
    if scope.of::<C>().mode() != StaticMode::Off {
        plan.now_or_later(Phase::Content, scope.shared::<C>(), skip, |conf: &C, request| {
            Box::pin(C::SIBLING.serve(request, conf.mode()))
        });
    }
}

/// Skips requests whose client or method excludes a compressed file. Most requests are skipped, so nothing is allocated.
fn skip<C: Conf>(conf: &C, request: &mut Request) -> Option<Step> {
    (!C::SIBLING.applies(request, conf.mode())).then_some(Step::Next)
}

/// The compressed file of one module.
#[derive(Clone, Copy)]
pub(crate) struct Sibling {
    /// The name of the coding.
    pub(crate) coding: &'static str,
    /// The suffix of the file's name.
    pub(crate) suffix: &'static str,
    /// Whether the client of a request accepts the coding.
    pub(crate) is_accepted: fn(&Request) -> bool,
    /// The modules after this one in the order of the handlers.
    pub(crate) later: &'static [Later],
}

/// A module whose file is sent instead, if the client gives its coding more weight and the file exists.
pub(crate) struct Later {
    pub(crate) sibling: Sibling,
    /// Returns the value of its directive for a request.
    pub(crate) mode: fn(&Request) -> StaticMode,
}

impl Sibling {
    /// Whether to search for a file at all. If the response needs `Vary`, the file is also opened for clients that will
    /// not receive it.
    pub(crate) fn applies(self, request: &Request, mode: StaticMode) -> bool {
        matches!(request.method, Method::Get | Method::Head)
            && request.uri.last() != Some(&b'/')
            && match mode {
                StaticMode::Off => false,
                StaticMode::On => {
                    request.scope().core.responding.gzip_clients.vary || (self.is_accepted)(request)
                }
                StaticMode::Always => true,
            }
    }

    /// Whether the client prefers the file of a later module, which exists. `path` is that of the own file.
    async fn is_outweighed(self, request: &Request, path: &[u8]) -> bool {
        for Later { sibling, mode } in self.later {
            let is_preferred = mode(request) != StaticMode::Off
                && accept_encoding::outweighs(request, sibling.coding, self.coding)
                && (sibling.is_accepted)(request);
            if is_preferred {
                let original = path.strip_suffix(self.suffix.as_bytes()).unwrap_or(path);
                let other = [original, sibling.suffix.as_bytes()].concat();
                if matches!(files::open(request, other).await, Ok(OpenedPath::File(_))) {
                    return true;
                }
            }
        }
        false
    }

    /// Responds with the file, or leaves the request to the next handler.
    pub(crate) async fn serve(self, request: &mut Request, mode: StaticMode) -> Step {
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
        if mode == StaticMode::On {
            request.response.vary_accept_encoding = true;
            if !(self.is_accepted)(request) || self.is_outweighed(request, &path).await {
                return Step::Next;
            }
        }
        let opened = match found {
            OpenedPath::File(opened) => opened,
            OpenedPath::Directory => return Step::Next,
            OpenedPath::Special => {
                let path = files::display(&path);
                request.log(Level::Crit, format_args!("\"{path}\" is not a regular file"));
                return Step::Status(404);
            }
        };
        static_file::respond(request, opened);
        let coding = self.coding.as_bytes().to_vec();
        request.response.fields.push(b"Content-Encoding", &coding);
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
    type Row = (&'static str, fn(&Scope) -> StaticMode);

    const DIRECTIVES: [Row; 3] = [
        ("gzip_static", |scope| scope.of::<gzip_static::Conf>().mode()),
        ("brotli_static", |scope| scope.of::<brotli_static::Conf>().mode()),
        ("zstd_static", |scope| scope.of::<zstd_static::Conf>().mode()),
    ];

    #[test]
    fn settings_are_inherited_and_replaced() {
        for (name, mode) in DIRECTIVES {
            for (http, expected) in [
                ("server {}", StaticMode::Off),
                ("NAME on; server { location / {} }", StaticMode::On),
                ("NAME on; server { NAME always; }", StaticMode::Always),
                ("NAME always; server { NAME off; }", StaticMode::Off),
            ] {
                let config = loaded(&http.replace("NAME", name));
                let found = config.http.locations.last().map(|location| mode(&location.scope));
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

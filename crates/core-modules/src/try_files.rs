//! `try_files`: uses the first of several files that exists, else another URI or a status.

use std::rc::Rc;
use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec};
use io::Errno;

use crate::{Declaration, Directive, Module};
use exchange::files::{self, FileKind};
use exchange::phases::{Phase, Step};
use exchange::rehearsal::Event;
use exchange::request::Request;
use site::config::{Cx, Inner, Scope, Settings, SettingsType};
use site::settings::core::Core;
use site::settings::files::Root;
use site::template::Template;
use telemetry::{ForLog, Level};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if let Some(files) = &scope.of::<Conf>().0 {
            plan.later(Phase::Precontent, Arc::clone(files), |files, request| Box::pin(run(files, request)));
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_try_files")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_try_files",
        "try_files",
        Contexts::SERVER.or(Contexts::LOCATION),
        Args::AtLeast(2),
        "Files to try, and the fallback if none exists.",
    ),
    set_files,
)];

/// The setting, which is not inherited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf(Option<Arc<Files>>);

impl Settings for Conf {
    fn inherit(&self, _: Inner) -> Option<Conf> {
        Some(Conf(None))
    }
}

impl Conf {
    /// Whether files are checked.
    pub(crate) fn is_active(&self) -> bool {
        self.0.is_some()
    }
}

/// The arguments of a directive, shared by all copies of its scope.
#[derive(Debug)]
struct Files {
    candidates: Vec<Candidate>,
    otherwise: Otherwise,
}

/// A file or directory to check.
#[derive(Debug)]
struct Candidate {
    name: Template,
    /// Whether it must be a directory; then it was written with a trailing slash, which is removed.
    is_directory: bool,
}

/// The fallback when no file exists.
#[derive(Debug)]
enum Otherwise {
    /// `=404`
    Status(u16),
    /// A URI, or `@name`.
    Uri(Template),
}

/// The maximum status, which has three digits.
const STATUS_MAX: u16 = 999;

/// Parses the arguments; the last one is the fallback and no file.
fn set_files(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let texts: Vec<&str> = cx.statement.texts().collect();
    let (last, texts) = texts.split_last().expect("the table promises two arguments");
    let mut candidates = Vec::new();
    for text in texts {
        let name = text.strip_suffix('/');
        candidates.push(Candidate { name: cx.template(name.unwrap_or(text))?, is_directory: name.is_some() });
    }
    let otherwise = match last.strip_prefix('=') {
        None => Otherwise::Uri(cx.template(last)?),
        Some(code) => {
            let code = code.parse().ok().filter(|&code: &u16| code <= STATUS_MAX);
            Otherwise::Status(code.ok_or_else(|| cx.error(format_args!("invalid code \"{last}\"")))?)
        }
    };
    *scope.make_mut() = Conf(Some(Arc::new(Files { candidates, otherwise })));
    Ok(())
}

/// Checks the files in order. The first that exists becomes the URI, and the next handler serves it.
async fn run(files: &Files, request: &mut Request) -> Step {
    if files::is_alias_undefined(request) {
        return Step::Status(500);
    }
    // The cloned pointer keeps the settings accessible while the request is changed.
    let thread_config = Rc::clone(&request.thread_config);
    let scope = &thread_config.config.location(request.location).scope;
    let mut root = Vec::new();
    files::root_of(request, &mut root);
    for candidate in &files.candidates {
        // Rendered per request, because of variables such as `$uri`.
        let name = below_alias(request, &scope.core, &candidate.name);
        if exists(request, &root, &name, candidate.is_directory).await {
            take(request, &scope.core, name, candidate.is_directory);
            return Step::Next;
        }
    }
    match &files.otherwise {
        // The fallback is not checked: a status ends the request, a URI starts a new search.
        Otherwise::Status(status) => {
            request.note(|| Event::Said { label: "try_files", text: format!("no file exists: {status}") });
            Step::Status(*status)
        }
        Otherwise::Uri(uri) => {
            let uri = below_alias(request, &scope.core, uri);
            continue_at(request, uri)
        }
    }
}

/// Returns a name without the location's prefix. Below an alias, a variable with the URI still has the prefix, which
/// the alias replaces. nginx removes it from every text with a variable, including the fallback; sites depend on that.
fn below_alias(request: &Request, core: &Core, name: &Template) -> Vec<u8> {
    let text = name.rendered(request);
    match core.files.root {
        Root::Alias(_) if !core.files.by_pattern && name.constant().is_none() => {
            let rest = text.strip_prefix(core.files.location_prefix.as_bytes()).map(<[u8]>::to_vec);
            rest.unwrap_or(text)
        }
        _ => text,
    }
}

/// Checks that a file exists. Errors other than a missing file are logged; the search continues in any case.
async fn exists(request: &Request, root: &[u8], name: &[u8], is_directory: bool) -> bool {
    let path = [root, name].concat();
    let found = files::stat_path(request, &path).await;
    request.note(|| {
        let there = match &found {
            Ok(kind) if (*kind == FileKind::Directory) == is_directory => "exists",
            Ok(FileKind::Directory) => "is a directory",
            Ok(_) => "is not a directory",
            Err(_) => "does not exist",
        };
        let (name, slash) = (name.for_log(), if is_directory { "/" } else { "" });
        let text = format!("{name}{slash}: {} {there}", files::display(&path));
        Event::Said { label: "try_files", text }
    });
    match found {
        Ok(kind) => (kind == FileKind::Directory) == is_directory,
        Err(failure) => {
            if !matches!(failure.errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) {
                request.log(Level::Crit, format_args!("{}", failure.at(&path)));
            }
            false
        }
    }
}

/// Sets the request's URI to that of the file.
fn take(request: &mut Request, core: &Core, name: Vec<u8>, is_directory: bool) {
    match core.files.root {
        Root::Root(_) => request.uri = name,
        // The alias of a regular expression replaces the complete URI, so for a directory the URI is unchanged.
        Root::Alias(_) if core.files.by_pattern && is_directory => {}
        Root::Alias(_) if core.files.by_pattern => files::set_found_below_alias(request, name),
        Root::Alias(_) => {
            let mut uri = core.files.location_prefix.as_bytes().to_vec();
            uri.extend_from_slice(&name);
            request.uri = uri;
        }
    }
}

/// Continues at the fallback: a named location retains the URI, another URI starts a new search for a location.
fn continue_at(request: &mut Request, target: Vec<u8>) -> Step {
    request.note(|| {
        let text = format!("no file exists: continues with {}", target.for_log());
        Event::Said { label: "try_files", text }
    });
    if target.first() == Some(&b'@') {
        let name = String::from_utf8_lossy(&target);
        return match request.server().locations.named(&name) {
            Some(location) => Step::Named(location),
            // A missing name with variables is detected only now, so it is an error of the request and not of the
            // start.
            None => {
                request.log(Level::Error, format_args!("could not find named location \"{name}\""));
                Step::Status(500)
            }
        };
    }
    // As in nginx a new URI without a query drops the old query.
    let question = memchr::memchr(b'?', &target).unwrap_or(target.len());
    request.args = target.get(question + 1..).unwrap_or_default().to_vec();
    request.uri = target[..question].to_vec();
    Step::Internal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    fn files_of(text: &str) -> Arc<Files> {
        let config = loaded(&format!("server {{ location / {{ try_files {text}; }} }}"));
        let location = config.http.locations.last().expect("there is a location");
        location.scope.of::<Conf>().0.clone().expect("it was set")
    }

    #[test]
    fn files_directories_and_the_fallback_are_read() {
        let files = files_of("$uri $uri/ /index.html");
        assert_eq!(
            files.candidates.iter().map(|candidate| candidate.is_directory).collect::<Vec<_>>(),
            [false, true]
        );
        assert_eq!(files.candidates[0].name, files.candidates[1].name);
        assert!(matches!(&files.otherwise, Otherwise::Uri(uri) if uri.constant() == Some("/index.html")));
        assert!(matches!(files_of("a =404").otherwise, Otherwise::Status(404)));
        assert!(matches!(&files_of("a b/").otherwise, Otherwise::Uri(uri) if uri.constant() == Some("b/")));
    }

    #[test]
    fn nested_locations_do_not_inherit_it() {
        let config = loaded("server { try_files a b; location / { location /x {} } }");
        let set: Vec<bool> =
            config.http.locations.iter().map(|location| location.scope.of::<Conf>().0.is_some()).collect();
        assert_eq!(set, [true, false, false]);
    }

    #[test]
    fn wrong_codes_are_refused() {
        for code in ["=x", "=1000", "="] {
            let found = error(&format!("http {{ server {{\ntry_files a {code}; }} }}"));
            assert_eq!(found, format!("invalid code \"{code}\" in /conf/nginx.conf:2"));
        }
    }
}

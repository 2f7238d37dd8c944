//! `try_files`: the first of several files that is there, else another URI or a status.

use std::rc::Rc;
use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec};
use io::Errno;

use crate::{Directive, Module};
use exchange::config::{Cx, Inner, Scope, Settings, SettingsType};
use exchange::files::{self, Kind};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::settings::core::Core;
use exchange::settings::files::Root;
use exchange::template::Template;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    settings: &[SettingsType::of::<Conf>()],
    take_part: |_, scope, plan| {
        if let Some(files) = &scope.of::<Conf>().0 {
            plan.later(Phase::Precontent, Arc::clone(files), |files, request| Box::pin(run(files, request)));
        }
    },
    ..Module::named("http_try_files")
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_try_files",
        "try_files",
        Contexts::SERVER.or(Contexts::LOCATION),
        Args::AtLeast(2),
        "Files to try, and the fallback when none exists.",
    ),
    set_files,
)];

/// Holds for one block only.
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

/// The arguments of one directive, shared by the copies of its scope.
#[derive(Debug)]
struct Files {
    wanted: Vec<Wanted>,
    otherwise: Otherwise,
}

/// One file or directory to look for.
#[derive(Debug)]
struct Wanted {
    name: Template,
    /// Whether it must be a directory: written with a slash at its end, which is cut off.
    folder: bool,
}

/// The fallback when no file exists.
#[derive(Debug)]
enum Otherwise {
    /// `=404`
    Status(u16),
    /// A URI, or `@name`.
    Uri(Template),
}

/// What fits into three digits of a status line.
const STATUS_MAX: u16 = 999;

/// The last argument is no file: the fallback when no file exists.
fn set_files(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let texts: Vec<&str> = cx.statement.texts().collect();
    let (last, texts) = texts.split_last().expect("the table promises two arguments");
    let mut wanted = Vec::new();
    for text in texts {
        let name = text.strip_suffix('/');
        wanted.push(Wanted { name: cx.template(name.unwrap_or(text))?, folder: name.is_some() });
    }
    let otherwise = match last.strip_prefix('=') {
        None => Otherwise::Uri(cx.template(last)?),
        Some(code) => {
            let code = code.parse().ok().filter(|&code: &u16| code <= STATUS_MAX);
            Otherwise::Status(code.ok_or_else(|| cx.error(format_args!("invalid code \"{last}\"")))?)
        }
    };
    *scope.own() = Conf(Some(Arc::new(Files { wanted, otherwise })));
    Ok(())
}

/// Looks at one after the other; the first that is there becomes the URI and the next handler serves it.
async fn run(files: &Files, request: &mut Request) -> Step {
    if files::alias_is_lost(request) {
        return Step::Status(500);
    }
    // The settings stay readable while the URI in the request is changed.
    let generation = Rc::clone(&request.generation);
    let scope = &generation.config.location(request.location).scope;
    let mut root = Vec::new();
    files::root_of(request, &mut root);
    for wanted in &files.wanted {
        // Rendered for each, because a variable such as `$uri` differs from request to request.
        let name = below_alias(request, &scope.core, &wanted.name);
        if is_there(request, &root, &name, wanted.folder).await {
            take(request, &scope.core, name, wanted.folder);
            return Step::Next;
        }
    }
    match &files.otherwise {
        // The last resort is not checked: a status ends the search, a URI starts another one.
        Otherwise::Status(status) => Step::Status(*status),
        Otherwise::Uri(uri) => {
            let uri = below_alias(request, &scope.core, uri);
            go_to(request, uri)
        }
    }
}

/// Under an alias, a variable with the URI still has the location's prefix, which the alias replaces. nginx takes it
/// from every text with a variable, from the last resort too; sites count on that.
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

/// Anything but plain absence is worth a line in the log; the search continues all the same.
async fn is_there(request: &Request, root: &[u8], name: &[u8], folder: bool) -> bool {
    let path = [root, name].concat();
    match files::look(request, &path).await {
        Ok(kind) => (kind == Kind::Folder) == folder,
        Err(failure) => {
            if !matches!(failure.errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) {
                request.log(Level::Crit, format_args!("{}", failure.at(&path)));
            }
            false
        }
    }
}

/// The URI becomes that of the file that was found.
fn take(request: &mut Request, core: &Core, name: Vec<u8>, folder: bool) {
    match core.files.root {
        Root::Root(_) => request.uri = name,
        // An alias of a pattern stands for the whole URI: a directory keeps its own.
        Root::Alias(_) if core.files.by_pattern && folder => {}
        Root::Alias(_) if core.files.by_pattern => files::set_found_below_alias(request, name),
        Root::Alias(_) => {
            let mut uri = core.files.location_prefix.as_bytes().to_vec();
            uri.extend_from_slice(&name);
            request.uri = uri;
        }
    }
}

/// A named location keeps the URI; another URI starts the search for a location over.
fn go_to(request: &mut Request, target: Vec<u8>) -> Step {
    if target.first() == Some(&b'@') {
        let name = String::from_utf8_lossy(&target);
        return match request.server().locations.named(&name) {
            Some(location) => Step::Named(location),
            // Names with variables can only be missed now, so this is an error of the request and not of the
            // start.
            None => {
                request.log(Level::Error, format_args!("could not find named location \"{name}\""));
                Step::Status(500)
            }
        };
    }
    // nginx: a new URI without a query drops the old one.
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
    fn reads_files_folders_and_what_follows() {
        let files = files_of("$uri $uri/ /index.html");
        assert_eq!(files.wanted.iter().map(|wanted| wanted.folder).collect::<Vec<_>>(), [false, true]);
        assert_eq!(files.wanted[0].name, files.wanted[1].name);
        assert!(matches!(&files.otherwise, Otherwise::Uri(uri) if uri.constant() == Some("/index.html")));
        assert!(matches!(files_of("a =404").otherwise, Otherwise::Status(404)));
        assert!(matches!(&files_of("a b/").otherwise, Otherwise::Uri(uri) if uri.constant() == Some("b/")));
    }

    #[test]
    fn does_not_reach_locations_inside() {
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

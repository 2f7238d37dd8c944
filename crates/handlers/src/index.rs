//! `index`: the file that is served for a directory.

use conf::{Args, Error, Spec};
use http::fields::Method;
use io::Errno;

use crate::{Declaration, Directive, Module};
use exchange::files::{self, Failure, FileKind};
use exchange::phases::{Phase, Step};
use exchange::rehearsal::Event;
use exchange::request::Request;
use site::config::{Cx, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::template::Template;
use telemetry::{ForLog, Level, Reason};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        plan.now_or_later(Phase::Content, scope.shared::<Conf>(), skip, |conf, request| {
            Box::pin(run(conf, request))
        });
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_index")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_index",
        "index",
        LEVELS,
        Args::AtLeast(1),
        "Index files of a directory; the first existing one is used.",
    )
    .many()
    .default("index.html"),
    add_index,
)];

/// The names of index files.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    files: Layered<Template>,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        Conf { files: Layered::from(vec![Template::text("index.html")]) }
    }
}

/// Adds index files; several directives in a block add up, as in nginx.
fn add_index(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let last = cx.statement.args.len() - 1;
    for (position, text) in cx.statement.texts().enumerate() {
        if text.starts_with('/') && position != last {
            cx.warn("only the last index in \"index\" directive should be absolute");
        }
        if text.is_empty() {
            return Err(cx.error(format_args!("index \"\" in \"index\" directive is invalid")));
        }
        let file = cx.template(text)?;
        scope.make_mut::<Conf>().files.make_mut(cx.block).push(file);
    }
    Ok(())
}

/// Skips requests for other URIs than those of directories, and other methods than GET, HEAD and POST.
fn skip(_: &Conf, request: &mut Request) -> Option<Step> {
    let is_wanted = request.uri.last() == Some(&b'/')
        && matches!(request.method, Method::Get | Method::Head | Method::Post);
    (!is_wanted).then_some(Step::Next)
}

/// Searches the first file that exists, and serves it by an internal redirect, so that its own location applies.
async fn run(index: &Conf, request: &mut Request) -> Step {
    if files::is_alias_undefined(request) {
        return Step::Status(500);
    }
    let mut directory = Vec::new();
    files::path_of(request, &request.uri, &mut directory);
    // Checking the directory costs an operation, so it is done only after a name was not found.
    let mut folder_is_there = false;
    for file in index.files.items() {
        let name = file.rendered(request);
        // An absolute name is used without a check: its own location checks it.
        if name.first() == Some(&b'/') {
            request.uri = name;
            return Step::Internal;
        }
        // Appended to the directory's path and not to the URI, because the alias of a regular expression replaces only the URI.
        let path = [directory.as_slice(), &name].concat();
        // An existing directory counts too: the location of its URI sends a redirect.
        let failure = match files::stat_path(request, &path).await {
            Ok(_) => {
                request.uri.extend_from_slice(&name);
                request.note(|| {
                    let (path, uri) = (files::display(&path), request.uri.for_log());
                    Event::Said { label: "index", text: format!("{path} exists: continues with {uri}") }
                });
                return Step::Internal;
            }
            Err(failure) => failure,
        };
        match failure.errno {
            // A link that must not be followed. The location of its URI would return the same status.
            Errno::LOOP | Errno::MLINK => return Step::Status(403),
            Errno::NOTDIR | Errno::NAMETOOLONG | Errno::ACCESS | Errno::XDEV => {
                return refused(request, &path, failure);
            }
            _ if !folder_is_there => {
                if let Err(step) = check_directory(request, &directory, &path).await {
                    return step;
                }
                folder_is_there = true;
            }
            _ => {}
        }
        if failure.errno != Errno::NOENT {
            request.log(Level::Crit, format_args!("{}", failure.at(&path)));
            return Step::Status(500);
        }
    }
    Step::Next
}

/// Responds with 404 if the directory is missing, even if another handler follows. `path` is that of the first name,
/// which nginx logs.
async fn check_directory(request: &Request, directory: &[u8], path: &[u8]) -> Result<(), Step> {
    let directory =
        directory.strip_suffix(b"/").filter(|directory| !directory.is_empty()).unwrap_or(directory);
    match files::stat_path(request, directory).await {
        Ok(FileKind::Directory) => Ok(()),
        Ok(_) => {
            let directory = files::display(directory);
            request.log(Level::Alert, format_args!("\"{directory}\" is not a directory"));
            Err(Step::Status(500))
        }
        Err(failure) => match failure.errno {
            Errno::LOOP | Errno::MLINK => Err(Step::Status(403)),
            Errno::NOENT => Err(refused(request, path, failure)),
            // The directory exists: it may be searchable even if it cannot be read.
            Errno::ACCESS => Ok(()),
            _ => {
                request.log(Level::Crit, format_args!("{}", failure.at(directory)));
                Err(Step::Status(500))
            }
        },
    }
}

/// Logs nginx's message and returns its status, for a file that cannot be read or whose directory is missing.
fn refused(request: &Request, path: &[u8], failure: Failure) -> Step {
    let (path, reason) = (files::display(path), Reason(failure.errno));
    if matches!(failure.errno, Errno::ACCESS | Errno::XDEV) {
        request.log(Level::Error, format_args!("\"{path}\" is forbidden ({reason})"));
        return Step::Status(403);
    }
    // Common on a site with broken links, so the line can be turned off.
    if request.scope().core.responding.log_not_found {
        request.log(Level::Error, format_args!("\"{path}\" is not found ({reason})"));
    }
    Step::Status(404)
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded, warnings};

    fn files_of(http: &str) -> Vec<String> {
        let config = loaded(http);
        let location = config.http.locations.last().expect("there is a server");
        let files = location.scope.of::<Conf>().files.items();
        files.iter().map(|file| file.constant().unwrap_or("$").to_owned()).collect()
    }

    #[test]
    fn lists_are_combined_in_a_block_and_replace_inherited_ones() {
        assert_eq!(files_of("server {}"), ["index.html"]);
        assert_eq!(files_of("index a; server { index b c; index d; }"), ["b", "c", "d"]);
        assert_eq!(files_of("index a$uri /b; server { location / {} }"), ["$", "/b"]);
    }

    #[test]
    fn wrong_names_are_refused() {
        for names in ["''", "a ''"] {
            let found = error(&format!("http {{ server {{\nindex {names}; }} }}"));
            assert_eq!(found, "index \"\" in \"index\" directive is invalid in /conf/nginx.conf:2");
        }
        let found = warnings("http { server {\nindex /a b; } }");
        assert_eq!(
            found,
            ["only the last index in \"index\" directive should be absolute in /conf/nginx.conf:2"]
        );
    }
}

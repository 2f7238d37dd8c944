//! Maps a request to a path: the root or alias of its location, and the remaining URI.

use crate::request::Request;
use site::ids::LocationId;
use site::settings::files::Root;
use telemetry::Level;

/// Appends the path of `uri` under the root of the request's location (`$request_filename`).
pub fn path_of(request: &Request, uri: &[u8], out: &mut Vec<u8>) {
    root_of(request, out);
    let core = &request.scope().core;
    match &core.files.root {
        Root::Root(_) => out.extend_from_slice(uri),
        Root::Alias(_) if !core.files.by_pattern => {
            out.extend_from_slice(uri.get(core.files.location_prefix.len()..).unwrap_or_default());
        }
        // The alias of a regular-expression location replaces the complete URI, except for a URI that `try_files` found
        // below it.
        Root::Alias(_) => {
            if request.extensions.get::<FoundBelowAlias>().is_some_and(|found| found.holds(request)) {
                out.extend_from_slice(uri);
            }
        }
    }
}

/// Appends the root or alias that applies to the request. A root has no trailing slash, because URIs begin with a
/// slash; an alias is used as written.
pub fn root_of(request: &Request, out: &mut Vec<u8>) {
    let root = &request.scope().core.files.root;
    let start = out.len();
    root.template().render(request, out);
    prepend_directory(&request.config().http.prefix, out, start);
    if matches!(root, Root::Root(_)) {
        let slashes = out[start..].iter().rev().take_while(|&&byte| byte == b'/').count();
        debug_assert!(start + slashes <= out.len(), "only slashes of the root are removed");
        out.truncate(out.len() - slashes);
    }
}

/// Inserts a directory before the relative path that begins at `start`. A path without a leading variable was already
/// made absolute when the configuration was read.
pub fn prepend_directory(directory: &[u8], out: &mut Vec<u8>, start: usize) {
    debug_assert!(start <= out.len(), "the path begins within the text");
    if out.get(start) != Some(&b'/') {
        out.splice(start..start, directory.iter().copied());
    }
}

/// Returns the number of bytes at the start of [`path_of`]'s result that are the root.
pub fn root_len(request: &Request) -> usize {
    let mut root = Vec::new();
    root_of(request, &mut root);
    root.len() - root.iter().rev().take_while(|&&byte| byte == b'/').count()
}

/// A URI that was found below the alias of a regular-expression location. It is not the client's URI, so the alias does
/// not replace it.
struct FoundBelowAlias {
    location: LocationId,
    uri: Vec<u8>,
}

impl FoundBelowAlias {
    fn holds(&self, request: &Request) -> bool {
        self.location == request.location && self.uri == request.uri
    }
}

/// Sets the request's URI to `uri`, which was found below the alias of a regular-expression location.
pub fn set_found_below_alias(request: &mut Request, uri: Vec<u8>) {
    request.extensions.insert(FoundBelowAlias { location: request.location, uri: uri.clone() });
    request.uri = uri;
}

/// Whether the path of a request is undefined. An alias replaces the location's name at the start of the URI, and a
/// rewrite has changed the URI without a new search for its location. Handlers of files return 500 then.
pub fn is_alias_undefined(request: &Request) -> bool {
    let lost = request.left_location && matches!(request.scope().core.files.root, Root::Alias(_));
    if lost {
        let name = &request.location().name;
        let what = format_args!("\"alias\" cannot be used in location \"{name}\" where URI was rewritten");
        request.log(Level::Alert, what);
    }
    lost
}

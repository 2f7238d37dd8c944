//! COPY and MOVE (RFC 4918 sections 9.8 and 9.9), with nginx's rules for `Destination`, `Depth` and `Overwrite`.
//!
//! | source | destination | action |
//! |---|---|---|
//! | file | nothing, file or link | MOVE: a rename. COPY: a copy in the same directory, then a rename |
//! | directory | nothing | MOVE: a rename; to another file system a complete COPY and a removal. COPY: a new directory with a copy of the tree |
//! | directory | anything, `Overwrite` not `F` | COPY: the destination is removed first. MOVE: it gets a temporary name, and is removed last |
//! | any | itself, or one path below the other | 403 |

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use http::request::{HeaderId, Method};
use io::Errno;
use io::op::Stat;
use rustix::fs::FileType;

use super::tree::{Disk, OperationError, temp_path_of};
use super::{Conf, Depth, depth, path_of, refusal};
use exchange::files;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::settings::files::Root;
use exchange::stored_file;
use exchange::subrequest;
use telemetry::ForLog;

/// A COPY or MOVE with its paths.
struct Job<'r> {
    request: &'r Request,
    disk: Disk,
    /// The source; the path of a collection ends with a slash.
    from: Vec<u8>,
    /// The destination without a trailing slash.
    to: Vec<u8>,
    /// `Destination` as sent, for messages.
    destination: String,
}

/// Parses the fields in nginx's order, because the first error determines the status, and then executes the request.
pub(super) async fn run(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    let request = &*request;
    let value = request.header(HeaderId::Destination).unwrap_or_default();
    if request.header(HeaderId::Destination).is_none() {
        return Err(refusal(request, 400, format_args!("client sent no \"Destination\" header")));
    }
    let uri = destination(request, value)?;
    let destination = value.for_log().to_string();
    let shown = request.uri.for_log();
    if request.uri.ends_with(b"/") != value.ends_with(b"/") {
        let what = "should be either collections or non-collections";
        let what = format_args!("both URI \"{shown}\" and \"Destination\" URI \"{destination}\" {what}");
        return Err(refusal(request, 409, what));
    }
    let rules = &request.scope().core.files;
    if matches!(rules.root, Root::Alias(_))
        && !rules.by_pattern
        && !is_below(&uri, rules.location_prefix.as_bytes())
    {
        return Err(invalid(request, value));
    }
    check_depth(request)?;
    let overwrites = overwrites(request)?;
    let from = merged(path_of(request, &request.uri));
    let mut to = merged(path_of(request, &uri));
    let is_collection = to.ends_with(b"/");
    if is_collection {
        to.pop();
    }
    let job = Job { request, disk: Disk::of(request), from, to, destination };
    job.check_paths(is_collection)?;
    job.disk.guard(request, &job.from).await?;
    job.disk.guard(request, &job.to).await?;
    let earlier = job.earlier(is_collection, overwrites).await?;
    let stat = job.disk.stat(&job.from).await.map_err(|trouble| trouble.log(request, 404))?;
    match FileType::from_raw_mode(stat.mode) {
        FileType::Directory => job.relocate_tree(&stat, earlier).await,
        _ => job.relocate_file(&stat, earlier, conf).await,
    }
}

/// Returns the path in `Destination`. The value is a path, or a URL with the scheme and the host of the request.
fn destination(request: &Request, value: &[u8]) -> Result<Vec<u8>, u16> {
    let path = match value.first() {
        Some(b'/') => value,
        _ if request.host.is_empty() => {
            return Err(refusal(request, 400, format_args!("client sent no \"Host\" header")));
        }
        _ => {
            let scheme: &[u8] = if request.conn.is_tls { b"https://" } else { b"http://" };
            let rest = value.strip_prefix(scheme).ok_or_else(|| invalid(request, value))?;
            // Another host may have a longer name with the same beginning.
            let rest = rest
                .strip_prefix(&*request.host)
                .filter(|rest| rest.first().is_none_or(|byte| matches!(byte, b'/' | b':')));
            let rest = rest.ok_or_else(|| {
                let value = value.for_log();
                let what = "is handled by different repository than the source URI";
                refusal(request, 400, format_args!("\"Destination\" URI \"{value}\" {what}"))
            })?;
            let slash = memchr::memchr(b'/', rest).ok_or_else(|| invalid(request, value))?;
            &rest[slash..]
        }
    };
    subrequest::parse_uri(request, path).map(|(path, _)| path).ok_or_else(|| invalid(request, value))
}

/// Whether the alias of a location with this prefix can replace the prefix in a URI, and the path remains below the
/// alias. The URI itself has no segment `..`, but may have one without the prefix.
fn is_below(uri: &[u8], prefix: &[u8]) -> bool {
    let rest = uri.strip_prefix(prefix);
    rest.is_some_and(|rest| rest != b".." && !rest.starts_with(b"../"))
}

/// Logs nginx's error for an invalid form of `Destination`.
fn invalid(request: &Request, value: &[u8]) -> u16 {
    let value = value.for_log();
    refusal(request, 400, format_args!("client sent invalid \"Destination\" header: \"{value}\""))
}

/// Checks `Depth`. RFC 4918 allows a copy of a collection without its content; nginx accepts that and copies
/// everything.
fn check_depth(request: &Request) -> Result<(), u16> {
    match (depth(request, Depth::Infinity), request.method) {
        (Depth::Infinity, _) | (Depth::Zero, Method::Copy) => Ok(()),
        (_, Method::Copy) => {
            Err(refusal(request, 400, format_args!("\"Depth\" header must be 0 or infinity")))
        }
        _ => Err(refusal(request, 400, format_args!("\"Depth\" header must be infinity"))),
    }
}

/// Returns the value of `Overwrite`, which is true by default.
fn overwrites(request: &Request) -> Result<bool, u16> {
    match request.header(HeaderId::Overwrite) {
        None | Some(b"T" | b"t") => Ok(true),
        Some(b"F" | b"f") => Ok(false),
        Some(value) => {
            let value = value.for_log();
            Err(refusal(request, 400, format_args!("client sent invalid \"Overwrite\" header: \"{value}\"")))
        }
    }
}

/// Returns the path with each run of slashes reduced to one.
fn merged(path: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        if byte != b'/' || out.last() != Some(&b'/') {
            out.push(byte);
        }
    }
    out
}

/// The relation of two paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Apart,
    Same,
    /// One path is below the other.
    Nested,
}

/// Returns the relation of a source and a destination, which has no trailing slash.
fn relation(from: &[u8], to: &[u8]) -> Relation {
    let from = from.strip_suffix(b"/").unwrap_or(from);
    let (short, long) = if from.len() < to.len() { (from, to) } else { (to, from) };
    match long.strip_prefix(short) {
        Some(b"") => Relation::Same,
        Some([b'/', ..]) => Relation::Nested,
        _ => Relation::Apart,
    }
}

impl Job<'_> {
    /// Returns the method for messages.
    fn verb(&self) -> &'static str {
        if self.request.method == Method::Copy { "COPY" } else { "MOVE" }
    }

    fn refusal(&self, status: u16, what: &str) -> u16 {
        let (uri, verb, destination) = (self.request.uri.for_log(), self.verb(), &self.destination);
        let what = format_args!("\"{uri}\" could not be {verb}ed to {what}\"{destination}\"");
        refusal(self.request, status, what)
    }

    /// Checks that the source and the destination are not nested or equal.
    fn check_paths(&self, is_collection: bool) -> Result<(), u16> {
        match relation(&self.from, &self.to) {
            Relation::Same => {
                let (uri, to) = (self.request.uri.for_log(), &self.destination);
                let what = "point to the same location";
                let what = format_args!("both URI \"{uri}\" and \"Destination\" URI \"{to}\" {what}");
                Err(refusal(self.request, 403, what))
            }
            Relation::Nested if is_collection => Err(self.refusal(403, "collection ")),
            Relation::Nested | Relation::Apart => Ok(()),
        }
    }

    /// Returns an existing destination, if it may be overwritten.
    async fn earlier(&self, is_collection: bool, overwrites: bool) -> Result<Option<Stat>, u16> {
        let stat = match self.disk.stat(&self.to).await {
            Err(OperationError { errno: Errno::NOENT, .. }) => return Ok(None),
            looked => looked.map_err(|trouble| trouble.log(self.request, 404))?,
        };
        if is_directory(&stat) && !is_collection {
            return Err(self.refusal(409, "collection "));
        }
        if !overwrites {
            let path = files::display(&self.to);
            let what = format_args!("\"{path}\" could not be created (17: File exists)");
            return Err(refusal(self.request, 412, what));
        }
        Ok(Some(stat))
    }

    /// Checks the paths with their symbolic links resolved: the removal of one collection must not remove the other.
    async fn check_real_paths(&self) -> Result<(), u16> {
        let [from, to] = [&self.from, &self.to].map(|path| Path::new(OsStr::from_bytes(path)).to_owned());
        let real = move || {
            let [from, to] =
                [from, to].map(|path| path.canonicalize().ok().map(|path| path.into_os_string()));
            Some(relation(from?.as_bytes(), to?.as_bytes()))
        };
        match rt::offload_file(real).await.flatten() {
            Some(Relation::Apart) => Ok(()),
            _ => Err(self.refusal(403, "collection ")),
        }
    }

    /// Relocates a collection. COPY removes the destination first, so after a later failure the destination does not exist.
    async fn relocate_tree(&self, stat: &Stat, earlier: Option<Stat>) -> Result<Step, u16> {
        let (request, disk) = (self.request, &self.disk);
        if !request.uri.ends_with(b"/") {
            let uri = request.uri.for_log();
            return Err(refusal(request, 400, format_args!("\"{uri}\" is collection")));
        }
        if earlier.as_ref().is_some_and(is_directory) {
            self.check_real_paths().await?;
        }
        let from = self.from.strip_suffix(b"/").unwrap_or(&self.from);
        if request.method == Method::Move {
            return self.move_tree(from, stat, earlier).await;
        }
        if let Some(earlier) = earlier {
            self.remove_earlier(&earlier).await?;
        }
        disk.mkdir(&self.to, stat.mode & 0o7777).await.map_err(|trouble| trouble.log(request, 404))?;
        disk.copy_tree(request, from, &self.to).await?;
        Ok(Step::Status(201))
    }

    async fn remove_earlier(&self, earlier: &Stat) -> Result<(), u16> {
        match is_directory(earlier) {
            true => self.disk.remove_tree(self.request, &self.to).await.map(drop),
            false => self.disk.unlink(&self.to).await.map_err(|trouble| trouble.log(self.request, 404)),
        }
    }

    /// Moves a collection. An existing destination has a temporary name until the new one is complete, so that a failure does not
    /// lose it. If the process ends before that, the temporary name remains.
    async fn move_tree(&self, from: &[u8], stat: &Stat, earlier: Option<Stat>) -> Result<Step, u16> {
        let (request, disk) = (self.request, &self.disk);
        let aside = temp_path_of(&self.to);
        let mut kept = None;
        if let Some(earlier) = earlier {
            match disk.rename(&self.to, &aside).await {
                Ok(()) => kept = Some(earlier),
                // The name has no room for a suffix, or the directory is on a lower layer of overlayfs.
                Err(OperationError { errno: Errno::NAMETOOLONG | Errno::XDEV, .. }) => {
                    self.remove_earlier(&earlier).await?;
                }
                Err(trouble) => return Err(trouble.log(request, 404)),
            }
        }
        // The trailing slash is retained: for a link it means the target of the link.
        let renamed = disk.rename(&self.from, &self.to).await;
        // The destination is on another file system.
        let is_copied = matches!(renamed, Err(OperationError { errno: Errno::XDEV, .. }));
        let moved = match renamed {
            Ok(()) => Ok(()),
            Err(_) if is_copied => self.copy_complete_tree(from, stat).await,
            // The destination is below the source, through a link.
            Err(OperationError { errno: Errno::INVAL, .. }) => Err(self.refusal(403, "collection ")),
            Err(trouble) => Err(trouble.log(request, 404)),
        };
        if let Some(earlier) = kept {
            let settled = match moved {
                Err(_) => disk.rename(&aside, &self.to).await,
                Ok(()) if is_directory(&earlier) => {
                    // The function logs its failures.
                    let _ = disk.remove_tree(request, &aside).await;
                    Ok(())
                }
                Ok(()) => disk.unlink(&aside).await,
            };
            if let Err(trouble) = settled {
                trouble.log(request, 404);
            }
        }
        moved?;
        if is_copied {
            disk.remove_tree(request, from).await?;
        }
        Ok(Step::Status(201))
    }

    /// Copies a collection to another file system. An incomplete copy is removed, because the source remains.
    async fn copy_complete_tree(&self, from: &[u8], stat: &Stat) -> Result<(), u16> {
        let (request, disk) = (self.request, &self.disk);
        disk.mkdir(&self.to, stat.mode & 0o7777).await.map_err(|trouble| trouble.log(request, 404))?;
        match disk.copy_tree(request, from, &self.to).await.unwrap_or_else(Some) {
            None => Ok(()),
            Some(status) => {
                let _ = disk.remove_tree(request, &self.to).await;
                Err(status)
            }
        }
    }

    /// Relocates a file. As in nginx, the status does not depend on whether the destination existed.
    async fn relocate_file(&self, stat: &Stat, earlier: Option<Stat>, conf: &Conf) -> Result<Step, u16> {
        let (request, disk) = (self.request, &self.disk);
        let done = match request.method {
            Method::Move => {
                let mode = stored_file::directory_mode(conf.access);
                disk.move_file(request, stat, (&self.from, &self.to), mode).await
            }
            _ => {
                let mode = earlier.filter(|earlier| !is_link(earlier)).map(|earlier| earlier.mode & 0o7777);
                disk.copy_file(request, (stat, mode), &self.from, &self.to).await
            }
        };
        done.map(|()| Step::Status(204)).map_err(|trouble| trouble.log_failed(request))
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.mode) == FileType::Directory
}

fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.mode) == FileType::Symlink
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_nested_and_separate_paths_are_distinguished() {
        for (from, to, expected) in [
            ("/r/a", "/r/a", Relation::Same),
            ("/r/a/", "/r/a", Relation::Same),
            ("/r/a/", "/r/a/b", Relation::Nested),
            ("/r/a/b/", "/r/a", Relation::Nested),
            ("/r/a/", "/r/ab", Relation::Apart),
            ("/r/ab", "/r/a", Relation::Apart),
            ("/r/a/b", "/r/a/c", Relation::Apart),
        ] {
            assert_eq!(relation(from.as_bytes(), to.as_bytes()), expected, "{from} {to}");
        }
    }

    #[test]
    fn a_destination_outside_the_alias_is_refused() {
        for (uri, prefix, expected) in [
            ("/dav/a", "/dav/", true),
            ("/dav/", "/dav/", true),
            ("/dav/..a", "/dav/", true),
            ("/dav", "/dav/", false),
            ("/xxxx../www/shell.php", "/dav/", false),
            ("/dav/a", "/dav", true),
            ("/dav../www/shell.php", "/dav", false),
            ("/dav..", "/dav", false),
        ] {
            assert_eq!(is_below(uri.as_bytes(), prefix.as_bytes()), expected, "{uri} {prefix}");
        }
    }

    #[test]
    fn slashes_are_merged() {
        assert_eq!(merged(b"//a///b/".to_vec()), b"/a/b/");
    }
}

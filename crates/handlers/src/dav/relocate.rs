//! COPY and MOVE (RFC 4918 sections 9.8 and 9.9), with nginx's rules for `Destination`, `Depth` and `Overwrite`.
//!
//! | source | destination | action |
//! |---|---|---|
//! | file | nothing, file or link | MOVE: a rename. COPY: a copy in the same directory, then a rename |
//! | directory | nothing | MOVE: a rename; to another file system a complete COPY and a removal. COPY: a new directory with a copy of the tree |
//! | directory | anything, `Overwrite` not `F` | COPY: the destination is removed first. MOVE: it gets a temporary name, and is removed last |
//! | any | itself, or one path below the other | 403 |

use std::ffi::CString;

use http::fields::{HeaderId, Method};
use io::facts::Stat;
use io::{Disk, Errno};
use rustix::fs::OFlags;

use super::conditions;
use super::copy::{self, Name};
use super::locks::Change;
use super::remove::Tree;
use super::resource::{Done, OperationError, Resource, fault, is_directory, is_link};
use super::{Conf, Depth, depth, path_of, refusal};
use exchange::files;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::stored_file;
use exchange::subrequest;
use site::settings::files::Root;
use telemetry::ForLog;

/// A COPY or MOVE with its paths.
struct Job<'r> {
    request: &'r Request,
    /// The source; the path of a collection ends with a slash.
    from: Resource,
    /// The destination without a trailing slash.
    to: Resource,
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
    check_paths(request, (&from, &to), is_collection, &destination)?;
    let from = Resource::of(request, from).await?;
    let to = Resource::of(request, to).await?;
    let mut job = Job { request, from, to, destination };
    if job.from.path.is_start() || job.to.path.is_start() {
        return Err(job.refusal(403, "the root of the location or from "));
    }
    job.check_locks(conf).await?;
    let earlier = job.earlier(is_collection, overwrites).await?;
    let stat = job.from.stat().await.map_err(|trouble| trouble.log(request, 404))?;
    let done = match is_directory(&stat) {
        true => job.relocate_tree(&stat, earlier).await,
        false => job.relocate_file(&stat, earlier, conf).await,
    };
    if done.is_ok() && request.method == Method::Move {
        // Locks do not move with their resource (RFC 4918 section 7.5).
        conditions::forget(conf, job.from.full());
    }
    done
}

/// Returns the path in `Destination`. The value is a path, or a URL with the host of the request.
fn destination(request: &Request, value: &[u8]) -> Result<Vec<u8>, u16> {
    let path = match value.first() {
        Some(b'/') => value,
        _ if request.host.is_empty() => {
            return Err(refusal(request, 400, format_args!("client sent no \"Host\" header")));
        }
        _ => {
            // The request may have arrived by https at a TLS terminator before this server, so both schemes mean this server.
            let rest = after_ignoring_case(value, b"https://")
                .or_else(|| after_ignoring_case(value, b"http://"))
                .ok_or_else(|| invalid(request, value))?;
            // Another host may have a longer name with the same beginning.
            let rest = after_ignoring_case(rest, &request.host)
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

/// Returns the text after a prefix in any letter case.
pub(super) fn after_ignoring_case<'t>(text: &'t [u8], prefix: &[u8]) -> Option<&'t [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
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

/// Returns the method for messages.
fn verb(request: &Request) -> &'static str {
    if request.method == Method::Copy { "COPY" } else { "MOVE" }
}

/// Logs that the destination is not possible, and returns the status.
fn refuse(request: &Request, status: u16, what: &str, destination: &str) -> u16 {
    let (uri, verb) = (request.uri.for_log(), verb(request));
    let what = format_args!("\"{uri}\" could not be {verb}ed to {what}\"{destination}\"");
    refusal(request, status, what)
}

/// Checks that the source and the destination are not nested or equal.
fn check_paths(
    request: &Request,
    (from, to): (&[u8], &[u8]),
    is_collection: bool,
    destination: &str,
) -> Result<(), u16> {
    match relation(from, to) {
        Relation::Same => {
            let uri = request.uri.for_log();
            let what = "point to the same location";
            let what = format_args!("both URI \"{uri}\" and \"Destination\" URI \"{destination}\" {what}");
            Err(refusal(request, 403, what))
        }
        Relation::Nested if is_collection => Err(refuse(request, 403, "collection ", destination)),
        Relation::Nested | Relation::Apart => Ok(()),
    }
}

/// Whether a directory is another one or below it, by the directories above the open descriptor.
async fn is_within(disk: Disk, inner: &rt::File, outer: &rt::File) -> Result<bool, Errno> {
    let outer = outer.stat(disk).await?;
    let mut at = inner.clone();
    let mut here = at.stat(disk).await?;
    loop {
        if (here.device, here.inode) == (outer.device, outer.inode) {
            return Ok(true);
        }
        let flags = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).bits() as i32;
        let how = io::op::OpenHow { flags, ..io::op::OpenHow::default() };
        let above = at.open_at(c"..".to_owned(), how, disk).await?;
        let stat = above.stat(disk).await?;
        // The root directory contains itself.
        if (stat.device, stat.inode) == (here.device, here.inode) {
            return Ok(false);
        }
        (at, here) = (above, stat);
    }
}

impl Job<'_> {
    fn refusal(&self, status: u16, what: &str) -> u16 {
        refuse(self.request, status, what, &self.destination)
    }

    fn disk(&self) -> Disk {
        self.from.disk
    }

    /// Returns the tree of an open directory.
    fn tree<'a>(&'a self, top: rt::File, path: &'a [u8]) -> Tree<'a> {
        Tree { request: self.request, disk: self.disk(), top, path }
    }

    /// Checks the locks of the resources that the request changes.
    async fn check_locks(&self, conf: &Conf) -> Result<(), u16> {
        let to = (self.to.full(), Change::Tree);
        match self.request.method {
            Method::Move => {
                let first = conditions::first_created(conf, &self.to.path).await;
                let changes = [(self.from.full(), Change::Tree), to, (&*first, Change::Created)];
                conditions::check(conf, self.request, &changes).await
            }
            _ => conditions::check(conf, self.request, &[to]).await,
        }
    }

    /// Returns an existing destination, if it may be overwritten.
    async fn earlier(&self, is_collection: bool, overwrites: bool) -> Result<Option<Stat>, u16> {
        let stat = match self.to.stat().await {
            Err(OperationError { errno: Errno::NOENT, .. }) => return Ok(None),
            looked => looked.map_err(|trouble| trouble.log(self.request, 404))?,
        };
        if is_directory(&stat) && !is_collection {
            return Err(self.refusal(409, "collection "));
        }
        if !overwrites {
            let path = files::display(self.to.full());
            let what = format_args!("\"{path}\" could not be created (17: File exists)");
            return Err(refusal(self.request, 412, what));
        }
        Ok(Some(stat))
    }

    /// Checks the open directories: the removal of one collection must not remove the other.
    async fn check_apart(&self, from: &rt::File, to: &rt::File) -> Result<(), u16> {
        let disk = self.disk();
        let within = match is_within(disk, from, to).await {
            Ok(false) => is_within(disk, to, from).await,
            found => found,
        };
        match within {
            Ok(false) => Ok(()),
            _ => Err(self.refusal(403, "collection ")),
        }
    }

    /// Relocates a collection. COPY removes the destination first, so after a later failure the destination does not exist.
    async fn relocate_tree(&self, stat: &Stat, earlier: Option<Stat>) -> Result<Step, u16> {
        let request = self.request;
        if !request.uri.ends_with(b"/") {
            let uri = request.uri.for_log();
            return Err(refusal(request, 400, format_args!("\"{uri}\" is collection")));
        }
        let from = self.from.open_directory().await.map_err(|trouble| trouble.log_failed(request))?;
        let mut old = None;
        if earlier.as_ref().is_some_and(is_directory) {
            let opened = self.to.open_directory().await.map_err(|trouble| trouble.log_failed(request))?;
            self.check_apart(&from, &opened).await?;
            old = Some(opened);
        }
        let from = self.tree(from, self.from.full());
        if request.method == Method::Move {
            return self.move_tree(&from, stat, earlier, old).await;
        }
        if let Some(earlier) = earlier {
            self.remove_earlier(&earlier, old).await?;
        }
        let to = self.new_tree(stat).await?;
        copy::copy_tree(&from, &to, self.from.path.follows_all_links()).await?;
        Ok(Step::Status(201))
    }

    /// Creates the directory of the destination, and opens it.
    async fn new_tree(&self, stat: &Stat) -> Result<Tree<'_>, u16> {
        let made = self.to.mkdir(stat.mode & 0o7777).await;
        made.map_err(|trouble| trouble.log(self.request, 404))?;
        let top = self.open_child(&self.to, self.to.place("opendir()").map(|(_, name)| name)).await;
        Ok(self.tree(top.map_err(|trouble| trouble.log_failed(self.request))?, self.to.full()))
    }

    /// Opens a directory beside a resource without following a link.
    async fn open_child(&self, beside: &Resource, name: Done<CString>) -> Done<rt::File> {
        let (dir, _) = beside.place("opendir()")?;
        let (name, flags) = (name?, OFlags::RDONLY | OFlags::DIRECTORY);
        let disk = self.disk();
        let opened = files::open_below(dir, name.as_bytes(), flags, disk).await;
        opened.map_err(fault("opendir()", beside.full()))
    }

    async fn remove_earlier(&self, earlier: &Stat, opened: Option<rt::File>) -> Result<(), u16> {
        let removed = match opened {
            Some(top) => {
                self.tree(top, self.to.full()).clear().await;
                self.to.rmdir().await
            }
            None if is_directory(earlier) => self.to.rmdir().await,
            None => self.to.unlink().await,
        };
        removed.map_err(|trouble| trouble.log(self.request, 404))
    }

    /// Moves a collection. An existing destination has a temporary name until the new one is complete, so that a failure does not
    /// lose it. If the process ends before that, the temporary name remains.
    async fn move_tree(
        &self,
        from: &Tree<'_>,
        stat: &Stat,
        earlier: Option<Stat>,
        old: Option<rt::File>,
    ) -> Result<Step, u16> {
        let request = self.request;
        let aside = match &earlier {
            Some(earlier) => self.put_aside(earlier, &old).await?,
            None => None,
        };
        let moved = match self.from.rename(&self.to).await {
            Ok(()) => Ok(false),
            // The destination is on another file system.
            Err(OperationError { errno: Errno::XDEV, .. }) => {
                self.copy_complete_tree(from, stat).await.map(|()| true)
            }
            // The destination is below the source, through a link.
            Err(OperationError { errno: Errno::INVAL, .. }) => Err(self.refusal(403, "collection ")),
            Err(trouble) => Err(trouble.log(request, 404)),
        };
        if let Some(aside) = aside {
            let finished = self.finish_aside(aside, old, moved.is_ok()).await;
            if let Err(trouble) = finished {
                trouble.log(request, 404);
            }
        }
        if moved? {
            from.clear().await;
            self.from.rmdir().await.map_err(|trouble| trouble.log(request, 404))?;
        }
        Ok(Step::Status(201))
    }

    /// Gives an existing destination a temporary name, or removes the destination if it cannot be renamed.
    async fn put_aside(&self, earlier: &Stat, old: &Option<rt::File>) -> Result<Option<CString>, u16> {
        let failed = |trouble: OperationError| trouble.log(self.request, 404);
        let (_, name) = self.to.place("rename()").map_err(failed)?;
        let errno = match files::temp_name(name.as_bytes()) {
            Ok(aside) => match self.to.rename_beside(name, aside.clone()).await {
                Ok(()) => return Ok(Some(aside)),
                // The name has no room for a suffix, or the directory is on a lower layer of overlayfs.
                Err(OperationError { errno: Errno::NAMETOOLONG | Errno::XDEV, .. }) => None,
                Err(trouble) => Some(trouble),
            },
            Err(_) => None,
        };
        match errno {
            Some(trouble) => Err(failed(trouble)),
            None => self.remove_earlier(earlier, old.clone()).await.map(|()| None),
        }
    }

    /// Removes the destination that was put aside, or gives it its name back.
    async fn finish_aside(&self, aside: CString, old: Option<rt::File>, is_moved: bool) -> Done {
        let (dir, name) = self.to.place("rename()")?;
        if !is_moved {
            return self.to.rename_beside(aside, name).await;
        }
        let is_directory = old.is_some();
        if let Some(top) = old {
            self.tree(top, self.to.full()).clear().await;
        }
        let disk = self.disk();
        let done = dir.unlink_at(aside, is_directory, disk).await;
        done.map_err(fault("unlink()", self.to.full()))
    }

    /// Copies a collection to another file system. An incomplete copy is removed, because the source remains.
    async fn copy_complete_tree(&self, from: &Tree<'_>, stat: &Stat) -> Result<(), u16> {
        let to = self.new_tree(stat).await?;
        let follows = self.from.path.follows_all_links();
        match copy::copy_tree(from, &to, follows).await.unwrap_or_else(Some) {
            None => Ok(()),
            Some(status) => {
                to.clear().await;
                to.log(self.to.rmdir().await);
                Err(status)
            }
        }
    }

    /// Relocates a file. As in nginx, the status does not depend on whether the destination existed.
    async fn relocate_file(&mut self, stat: &Stat, earlier: Option<Stat>, conf: &Conf) -> Result<Step, u16> {
        let request = self.request;
        let done = match request.method {
            Method::Move => self.move_file(stat, stored_file::directory_mode(conf.access)).await,
            _ => {
                let mode = earlier.filter(|earlier| !is_link(earlier)).map(|earlier| earlier.mode & 0o7777);
                self.copy_file(|_| mode).await.map(drop)
            }
        };
        done.map(|()| Step::Status(204)).map_err(|trouble| trouble.log_failed(request))
    }

    /// Copies the source, as it is when it is opened. `mode` returns the permissions of the copy, if they are not those of
    /// a new file. Returns the attributes of the opened source.
    async fn copy_file(&self, mode: impl FnOnce(&Stat) -> Option<u32>) -> Done<Stat> {
        let (source, stat) = copy::open_resource(&self.from).await?;
        let (dir, name) = self.to.place("open()")?;
        let to = Name { dir, name: &name, path: self.to.full() };
        copy::copy_file(self.disk(), (&source, &stat), self.from.full(), to, mode(&stat)).await?;
        Ok(stat)
    }

    /// Renames a file, and creates missing directories of the new path. Copies the file if the path is on another file system.
    async fn move_file(&mut self, stat: &Stat, directory_mode: u32) -> Done {
        self.to.make_parents(directory_mode).await?;
        match self.from.rename(&self.to).await {
            Err(OperationError { errno: Errno::XDEV, .. }) => {}
            renamed => return renamed,
        }
        // The permissions of a link are not those of its file, which is copied.
        let is_link = is_link(stat);
        let copied = self.copy_file(|stat| (!is_link).then_some(stat.mode & 0o7777)).await?;
        self.remove_source(if is_link { stat } else { &copied }).await
    }

    /// Removes the source after its copy, unless another file has its name now: that file is newer than the MOVE. The
    /// source gets a temporary name first, so that the removed file is the checked file.
    async fn remove_source(&self, copied: &Stat) -> Done {
        let (dir, name) = self.from.place("unlink()")?;
        let disk = self.disk();
        let aside = files::temp_name(name.as_bytes()).map_err(fault("rename()", self.from.full()))?;
        let found = match self.from.stat().await {
            Err(OperationError { errno: Errno::NOENT, .. }) => return Ok(()),
            found => found?,
        };
        if !is_same_file(&found, copied) {
            return Ok(());
        }
        match self.from.rename_beside(name.clone(), aside.clone()).await {
            Ok(()) => {}
            // The name has no room for a suffix.
            Err(OperationError { errno: Errno::NAMETOOLONG, .. }) => return self.from.unlink().await,
            renamed => return renamed,
        }
        let how = io::op::OpenHow {
            flags: (OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32,
            ..io::op::OpenHow::default()
        };
        let failed = |errno| fault("lstat()", self.from.full())(errno);
        let claimed = dir.open_at(aside.clone(), how, disk).await.map_err(failed)?;
        let claimed = claimed.stat(disk).await.map_err(failed)?;
        if is_same_file(&claimed, copied) && is_unchanged(&claimed, copied) {
            let done = dir.unlink_at(aside, false, disk).await;
            return done.map_err(fault("unlink()", self.from.full()));
        }
        self.from.rename_beside(aside, name).await?;
        // Another program has written to the file during the copy: the source has content that the copy lacks.
        let is_newer = is_same_file(&claimed, copied);
        if is_newer { Err(fault("read()", self.from.full())(Errno::BUSY)) } else { Ok(()) }
    }
}

fn is_same_file(one: &Stat, other: &Stat) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Whether the content of a file is the same as before. A rename does not change these attributes.
fn is_unchanged(one: &Stat, other: &Stat) -> bool {
    let content = |stat: &Stat| (stat.size, stat.modified, stat.modified_nanos);
    content(one) == content(other)
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

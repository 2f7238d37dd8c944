//! Implements `disable_symlinks`: which symbolic links in a path are followed.
//!
//! The kernel checks while it opens the file, so there is no race between check and use. `on` uses
//! `RESOLVE_NO_SYMLINKS` of openat2(2). `if_not_owner` walks through directory descriptors
//! ([`io::op::OpenHow::same_owner`]).

use std::ffi::{CStr, CString};

use io::op::OpenHow;
use io::{Disk, Errno};
use rustix::fs::OFlags;

use crate::files::open::{open_path, open_retrying};
use crate::request::Request;
use telemetry::links::Rule;
use transfer::files::Failure;
use transfer::files::root::RootFacts;

/// Returns the rule for a path.
pub fn rule_of(request: &Request, path: &[u8]) -> Rule {
    let Some(links) = &request.scope().core.files.opening.links else { return Rule::default() };
    let from = links.from.as_ref().map(|from| from.rendered(request)).unwrap_or_default();
    Rule::below(links.refused, &from, path)
}

/// Opens the directory below which links are checked: `from` of `disable_symlinks`, or the root for `root_beneath`. Links
/// in its own path are followed.
pub(super) async fn open_above(disk: Disk, path: &[u8]) -> Result<rt::File, Failure> {
    let failed = |errno| Failure { errno, call: "open()" };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
    let directory = CString::new(path).map_err(|_| failed(Errno::INVAL))?;
    open_retrying(None, &directory, how, disk).await.map_err(failed)
}

/// Returns nginx's error for a refused link. A link before the last component gives ENOTDIR (404, like a missing file),
/// a link as the last component is forbidden (403).
pub(super) async fn refine(
    facts: &RootFacts,
    dir: Option<&io::Fd>,
    path: &CStr,
    how: OpenHow,
    disk: Disk,
) -> Errno {
    let above = memchr::memrchr(b'/', path.to_bytes()).filter(|&slash| slash > 0 && !how.same_owner);
    let above = above.and_then(|slash| CString::new(&path.to_bytes()[..slash]).ok());
    let Some(above) = above else { return Errno::LOOP };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match open_path(facts, dir, &above, OpenHow { flags: flags.bits() as i32, ..how }, disk).await {
        Err(Errno::LOOP) => Errno::NOTDIR,
        _ => Errno::LOOP,
    }
}

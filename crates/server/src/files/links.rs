//! `disable_symlinks`: which symbolic links on the way to a file are followed.
//!
//! The kernel does the checking while it opens the file that is served, so nothing can be exchanged between a look
//! and the use: `RESOLVE_NO_SYMLINKS` of openat2(2) for `on`, a walk through descriptors for `if_not_owner`
//! ([`io::op::OpenHow::same_owner`]).

use std::ffi::{CStr, CString};

use io::Errno;
use io::op::OpenHow;
use rustix::fs::{OFlags, ResolveFlags};

use crate::files::Failure;
use crate::files::open::{Via, open_path};
use crate::files::root::RootFacts;
use crate::request::Request;
use crate::template::Template;

/// `disable_symlinks`
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Links {
    /// Which links are refused.
    pub(crate) refused: Refused,
    /// `from=`: the beginning of paths in which links are followed.
    pub(crate) from: Option<Template>,
}

/// The links that are not followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refused {
    /// None: all are followed.
    #[default]
    Nothing,
    /// All.
    All,
    /// Those that belong to another user than what they lead to.
    OfOthers,
}

/// What holds for one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) refused: Refused,
    /// Bytes at the start of the path in which links are followed.
    pub(crate) from: usize,
}

impl Rule {
    /// The rule for a path, by nginx's reading of `from`: it counts where the path goes on below it.
    pub(crate) fn of(request: &Request, path: &[u8]) -> Rule {
        let Some(links) = &request.scope().core.opening.links else { return Rule::default() };
        let from = links.from.as_ref().map(|from| from.rendered(request)).unwrap_or_default();
        Rule::below(links.refused, &from, path)
    }

    fn below(refused: Refused, from: &[u8], path: &[u8]) -> Rule {
        let whole = Rule { refused, from: 0 };
        match path.strip_prefix(from) {
            _ if from.is_empty() => whole,
            None => whole,
            Some(b"") => Rule::default(),
            Some([b'/', ..]) => Rule { refused, from: from.len() },
            Some(_) if from.ends_with(b"/") => Rule { refused, from: from.len() - 1 },
            Some(_) => whole,
        }
    }

    /// Whether any link is refused.
    pub(crate) fn checks(self) -> bool {
        self.refused != Refused::Nothing
    }

    /// What it asks of openat2(2).
    pub(crate) fn apply(self, how: &mut OpenHow) {
        match self.refused {
            Refused::Nothing => {}
            Refused::All => how.resolve |= ResolveFlags::NO_SYMLINKS.bits(),
            Refused::OfOthers => how.same_owner = true,
        }
    }
}

/// The folder from which links are checked, which `from` says. Links in its own path are followed.
pub(super) async fn start(facts: &RootFacts, via: Via, rule: Rule, path: &[u8]) -> Result<rt::File, Failure> {
    let failed = |errno| Failure { errno, call: "open()" };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
    let folder = CString::new(&path[..rule.from]).map_err(|_| failed(Errno::INVAL))?;
    open_path(facts, None, &folder, how, via).await.map_err(failed)
}

/// What nginx says of a refused link: one before the last name is not the folder that it has to be, which is
/// answered like a missing file; as the last name it is forbidden.
pub(super) async fn refine(
    facts: &RootFacts,
    dir: Option<&io::Fd>,
    path: &CStr,
    how: OpenHow,
    via: Via,
) -> Errno {
    let above = memchr::memrchr(b'/', path.to_bytes()).filter(|&slash| slash > 0 && !how.same_owner);
    let above = above.and_then(|slash| CString::new(&path.to_bytes()[..slash]).ok());
    let Some(above) = above else { return Errno::LOOP };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match open_path(facts, dir, &above, OpenHow { flags: flags.bits() as i32, ..how }, via).await {
        Err(Errno::LOOP) => Errno::NOTDIR,
        _ => Errno::LOOP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_counts_where_the_path_goes_on_below_it() {
        let rule = |from: &str, path: &str| Rule::below(Refused::All, from.as_bytes(), path.as_bytes());
        let all = Rule { refused: Refused::All, from: 0 };
        assert_eq!(rule("", "/a/b"), all);
        assert_eq!(rule("/a", "/a/b"), Rule { from: 2, ..all });
        assert_eq!(rule("/a/", "/a/b"), Rule { from: 2, ..all });
        assert_eq!(rule("/a", "/ab/c"), all);
        assert_eq!(rule("/x", "/a/b"), all);
        assert_eq!(rule("/a/b", "/a/b"), Rule::default());
        assert_eq!(rule("/a/b/c", "/a/b"), all);
    }
}

//! The symbolic links that may be followed in the path of a file (`disable_symlinks`).
//!
//! The check is part of the open, so the path cannot be changed between check and use. The open uses
//! `RESOLVE_NO_SYMLINKS` of openat2(2), or opens one directory of the path after another
//! ([`io::op::OpenHow::same_owner`]).

use io::op::OpenHow;
use rustix::fs::ResolveFlags;

/// The symbolic links that are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// No links are refused.
    #[default]
    Nothing,
    /// All links are refused.
    All,
    /// Links are refused if the link and its target have different owners.
    OfOthers,
}

/// The rule for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The symbolic links that are refused.
    pub refused: Refused,
    /// Number of bytes at the start of the path in which links are always followed.
    pub from: usize,
}

impl Rule {
    /// Returns the rule for a path. As in nginx, `from` applies only to paths in this directory. If the path is `from`
    /// itself, no link is refused.
    pub fn below(refused: Refused, from: &[u8], path: &[u8]) -> Rule {
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
    pub fn checks(self) -> bool {
        self.refused != Refused::Nothing
    }

    /// Sets the flags of openat2(2).
    pub fn apply(self, how: &mut OpenHow) {
        match self.refused {
            Refused::Nothing => {}
            Refused::All => how.resolve |= ResolveFlags::NO_SYMLINKS.bits(),
            Refused::OfOthers => how.same_owner = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_applies_to_paths_below_it() {
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

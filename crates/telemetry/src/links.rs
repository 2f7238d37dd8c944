//! Which symbolic links on the way to one file are followed.
//!
//! The kernel checks while it opens the file, so nothing can be exchanged between check and use: `RESOLVE_NO_SYMLINKS`
//! of openat2(2), or a walk through descriptors ([`io::op::OpenHow::same_owner`]).

use io::op::OpenHow;
use rustix::fs::ResolveFlags;

/// The links that are not followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// None: all are followed.
    #[default]
    Nothing,
    /// All.
    All,
    /// Links that belong to another user than their targets.
    OfOthers,
}

/// The rule for one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Which symbolic links are refused.
    pub refused: Refused,
    /// Bytes at the start of the path in which links are followed.
    pub from: usize,
}

impl Rule {
    /// The rule for a path, by nginx's reading of `from`: it applies where the path continues below it.
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

    /// Its flags of openat2(2).
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

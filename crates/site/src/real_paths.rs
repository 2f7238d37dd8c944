//! Resolves the symbolic links of a path, and lists them: path_resolution(7). Whether a link may be followed depends on the directory that
//! contains the link, because another process may have created the link there.
//!
//! The functions block on the disk, as those of [`crate::allowed_paths`].

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links in a path, as in the kernel: path_resolution(7).
const LINKS_MAX: usize = 40;

/// An existing path without symbolic links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RealPath {
    /// The path.
    pub(crate) path: PathBuf,
    /// The symbolic links that lead to it, in the order in which they are followed.
    pub(crate) links: Vec<FollowedLink>,
}

/// A symbolic link that was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FollowedLink {
    /// The directory that contains the link, without symbolic links.
    pub(crate) directory: PathBuf,
    /// The name of the link in its directory.
    pub(crate) name: OsString,
    /// The file or directory that it leads to, without symbolic links.
    pub(crate) target: PathBuf,
    /// Whether the link is a component of the path itself, and not of the target of another link.
    pub(crate) is_named: bool,
}

impl FollowedLink {
    /// Returns the path of the link.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }
}

/// Follows the symbolic links of a path, which has to exist.
pub(crate) fn resolve(path: &Path) -> io::Result<RealPath> {
    let mut found = RealPath { path: PathBuf::from("/"), links: Vec::new() };
    let mut left: Vec<OsString> = Vec::new();
    push(&std::path::absolute(path)?, &mut left);
    // Links whose targets are not complete: the number of components that follow the target, and the index of the link.
    let mut open: Vec<(usize, usize)> = Vec::new();
    while let Some(name) = left.pop() {
        close(&mut open, left.len() + 1, &mut found);
        if name == ".." {
            found.path.pop();
            continue;
        }
        let next = found.path.join(&name);
        if !fs::symlink_metadata(&next)?.is_symlink() {
            found.path = next;
            continue;
        }
        if found.links.len() == LINKS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let target = fs::read_link(&next)?;
        let (directory, is_named) = (found.path.clone(), open.is_empty());
        open.push((left.len(), found.links.len()));
        found.links.push(FollowedLink { directory, name, target: PathBuf::new(), is_named });
        if target.is_absolute() {
            found.path = PathBuf::from("/");
        }
        push(&target, &mut left);
    }
    close(&mut open, 0, &mut found);
    Ok(found)
}

/// Adds the components of a path, the first one last.
fn push(path: &Path, left: &mut Vec<OsString>) {
    let is_step = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    left.extend(path.components().rev().filter(is_step).map(|part| part.as_os_str().to_owned()));
}

/// Records the present path as the target of the links of which no component is left.
fn close(open: &mut Vec<(usize, usize)>, left: usize, found: &mut RealPath) {
    while let Some((_, link)) = open.pop_if(|(behind, _)| *behind >= left) {
        found.links[link].target = found.path.clone();
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests may wait for the disk")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_listed_with_their_directories_and_targets() -> io::Result<()> {
        let dir = testkit::TempDir::new("real-paths");
        let top = fs::canonicalize(dir.path())?;
        fs::create_dir_all(top.join("releases/7/public"))?;
        symlink("stable", top.join("current"))?;
        symlink(top.join("releases/7"), top.join("stable"))?;
        symlink("../7/./public", top.join("releases/7/here"))?;
        let found = resolve(&top.join("current/../7/here"))?;
        assert_eq!(found.path, top.join("releases/7/public"));
        let link = |directory: &str, name: &str, target: &str, is_named| FollowedLink {
            directory: top.join(directory).components().collect(),
            name: name.into(),
            target: top.join(target),
            is_named,
        };
        let expected = [
            link("", "current", "releases/7", true),
            link("", "stable", "releases/7", false),
            link("releases/7", "here", "releases/7/public", true),
        ];
        assert_eq!(found.links, expected);
        assert_eq!(found.links[2].path(), top.join("releases/7/here"));
        Ok(())
    }

    #[test]
    fn missing_files_and_loops_are_errors() -> io::Result<()> {
        let dir = testkit::TempDir::new("real-paths");
        symlink("b", dir.path().join("a"))?;
        symlink("a", dir.path().join("b"))?;
        assert!(resolve(&dir.path().join("a")).is_err());
        assert_eq!(
            resolve(&dir.path().join("c/d")).map_err(|error| error.kind()),
            Err(io::ErrorKind::NotFound)
        );
        assert_eq!(resolve(Path::new("/"))?.path, Path::new("/"));
        Ok(())
    }
}

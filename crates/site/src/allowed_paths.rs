//! The paths that a sandbox allows: those of [`crate::needs`], as the kernel sees them, without symbolic links.
//!
//! The kernel compares the file that a path leads to with the directories of its rules. A directory that is replaced, or
//! created later, is not allowed. [`AllowedPaths::of`] therefore widens some paths:
//!
//! | path | allowed is |
//! |---|---|
//! | a file, which an editor replaces by another file | its directory |
//! | a path that does not exist yet | the nearest directory above it |
//! | a path below a symbolic link to a neighbour, which a deployment changes: `current -> releases/7` | the directory of the neighbours: `releases` |
//!
//! A directory with fewer than [`DEPTH_MIN`] components, such as `/etc`, is never allowed for these reasons.
//!
//! The functions block on the disk. They are for the start of a process, for commands, and for helper threads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use conf::Span;

use crate::needs::{Access, Need};

/// Minimum number of components of a directory that is allowed instead of a path in it. Directories above, such as `/etc`,
/// contain files of many programs.
const DEPTH_MIN: usize = 2;

/// An allowed directory or file, without symbolic links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedPath {
    /// The path.
    pub path: PathBuf,
    /// The kind of access.
    pub access: Access,
    /// The name of the directive; empty if no directive names the path.
    pub directive: String,
    /// The position of the directive; `None` for a default.
    pub position: Option<Span>,
}

/// The paths that a sandbox allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedPaths(Vec<AllowedPath>);

/// The restrictions that the kernel enforces for this process.
#[derive(Clone, Debug, Default)]
pub struct Enforced {
    /// The paths.
    pub paths: AllowedPaths,
    /// The TCP ports that may be connected to; `None` for all ports.
    pub ports: Option<BTreeSet<u16>>,
}

static ENFORCED: OnceLock<Enforced> = OnceLock::new();

impl Enforced {
    /// Records that the kernel enforces these restrictions from now on. Only the first call has an effect, because the kernel
    /// never removes a restriction.
    pub fn begin(self) {
        let _ = ENFORCED.set(self);
    }

    /// Returns the restrictions of this process; `None` without a sandbox.
    pub fn get() -> Option<&'static Enforced> {
        ENFORCED.get()
    }
}

impl AllowedPaths {
    /// Returns the existing directories and files of these needs.
    pub fn of<'a>(needs: impl IntoIterator<Item = &'a Need>) -> AllowedPaths {
        let mut allowed = AllowedPaths::default();
        for need in needs {
            allowed.add_need(need);
        }
        allowed
    }

    /// Adds a path without symbolic links that no directive names.
    pub fn add(&mut self, path: PathBuf, access: Access) {
        let (directive, position) = (String::new(), None);
        self.0.push(AllowedPath { path, access, directive, position });
    }

    /// Returns the paths.
    pub fn iter(&self) -> impl Iterator<Item = &AllowedPath> {
        self.0.iter()
    }

    /// Whether the access to a path without symbolic links is allowed.
    pub fn contains(&self, path: &Path, access: Access) -> bool {
        self.allowing(path, access).is_some()
    }

    /// Returns the nearest allowed directory that contains a path without symbolic links.
    pub fn allowing(&self, path: &Path, access: Access) -> Option<&AllowedPath> {
        let contains = |allowed: &&AllowedPath| path.starts_with(&allowed.path) && access <= allowed.access;
        self.0.iter().filter(contains).max_by_key(|allowed| allowed.path.as_os_str().len())
    }

    #[expect(clippy::disallowed_methods, reason = "not on worker threads, see the description of this file")]
    fn add_need(&mut self, need: &Need) {
        let Need { path, access, .. } = need;
        let mut found = fs::canonicalize(path);
        if found.is_err() && need.position.is_some() {
            found = path.ancestors().skip(1).map(fs::canonicalize).find_map(Result::ok).ok_or_else(missing);
            found = found.and_then(|above| if is_deep(&above) { Ok(above) } else { Err(missing()) });
        }
        let Ok(real) = found else { return };
        let above = real.parent().filter(|above| real.is_file() && is_deep(above));
        let mut found = vec![above.unwrap_or(&real).to_owned()];
        if *access == Access::Read {
            found.extend(changeable_links(path));
        }
        for path in found {
            if !self.0.iter().any(|known| known.path == path && known.access == *access) {
                let Need { directive, position, .. } = need.clone();
                self.0.push(AllowedPath { path, access: *access, directive, position });
            }
        }
    }

    /// Returns why a path cannot be accessed: the directory to allow. Returns `None` if the path is allowed; then another reason
    /// has caused the error.
    #[expect(clippy::disallowed_methods, reason = "not on worker threads, see the description of this file")]
    pub fn refusal(&self, path: &Path, access: Access) -> Option<RefusedPath> {
        let real_or_above = |path: &Path| path.ancestors().find_map(|path| fs::canonicalize(path).ok());
        let real = real_or_above(path)?;
        if self.contains(&real, access) {
            return None;
        }
        // The first component whose directory is allowed and which itself is not: it is a symbolic link.
        let mut is_inside = false;
        let mut shorter: Vec<&Path> = path.ancestors().collect();
        shorter.reverse();
        let (mut link, mut refused) = (None, real);
        for part in shorter {
            let Ok(real) = fs::canonicalize(part) else { break };
            let contains = self.contains(&real, access);
            if is_inside && !contains {
                (link, refused) = (Some(part.to_owned()), real);
                break;
            }
            is_inside = contains;
        }
        let allow = if refused.is_dir() { refused } else { refused.parent()?.to_owned() };
        Some(RefusedPath { link, allow, access })
    }
}

/// The reason why a sandbox refuses a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPath {
    /// The symbolic link that leads out of the allowed paths, if there is one.
    pub link: Option<PathBuf>,
    /// The directory to allow.
    pub allow: PathBuf,
    /// The kind of access.
    pub access: Access,
}

impl RefusedPath {
    /// Returns the directive that allows the access.
    pub fn directive(&self) -> String {
        sandbox_path(&self.allow, self.access)
    }
}

/// Returns the directive that allows an access to a directory.
pub fn sandbox_path(path: &Path, access: Access) -> String {
    let path = path.to_string_lossy();
    let write = if access == Access::Write { " rw" } else { "" };
    format!("sandbox_path {}{write};", conf::Bare(&path))
}

fn missing() -> std::io::Error {
    std::io::ErrorKind::NotFound.into()
}

/// Whether a directory belongs to one program rather than to many.
fn is_deep(path: &Path) -> bool {
    path.components().filter(|part| matches!(part, Component::Normal(_))).count() >= DEPTH_MIN
}

/// Returns the directories of the targets of those symbolic links in a path that lead to a neighbour. A deployment switches
/// to another version by changing such a link.
#[expect(clippy::disallowed_methods, reason = "not on worker threads, see the description of this file")]
fn changeable_links(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in path.ancestors() {
        if !part.is_symlink() {
            continue;
        }
        let (Some(above), Ok(target)) = (part.parent(), fs::canonicalize(part)) else { continue };
        let Ok(above) = fs::canonicalize(above) else { continue };
        if let Some(neighbours) = target.parent()
            && neighbours.starts_with(&above)
            && is_deep(neighbours)
        {
            found.push(neighbours.to_owned());
        }
    }
    found
}

/// A symbolic link that leads out of the allowed paths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkOut {
    /// The link.
    pub link: PathBuf,
    /// The file or directory that it leads to.
    pub target: PathBuf,
}

impl LinkOut {
    /// Returns the directive that allows the target.
    pub fn directive(&self) -> String {
        let above = self.target.parent().filter(|_| self.target.is_file());
        sandbox_path(above.unwrap_or(&self.target), Access::Read)
    }
}

/// Bounds of a search for links.
#[derive(Clone, Copy, Debug)]
pub struct SearchLimits {
    /// Maximum number of directory entries.
    pub entries: usize,
    /// Maximum time.
    pub time: Duration,
}

/// The result of a search for links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinksOut {
    /// The links, sorted.
    pub links: Vec<LinkOut>,
    /// Whether a limit has ended the search.
    pub is_partial: bool,
}

impl AllowedPaths {
    /// Finds the symbolic links that lead out of the allowed paths, in directories and in the directories in them. A path of a
    /// file is ignored.
    #[expect(clippy::disallowed_methods, reason = "not on worker threads, see the description of this file")]
    pub fn links_out<'a>(
        &self,
        directories: impl IntoIterator<Item = &'a Path>,
        limits: SearchLimits,
    ) -> LinksOut {
        let (start, mut entries, mut found) = (Instant::now(), 0, LinksOut::default());
        let mut waiting: Vec<(PathBuf, u32)> =
            directories.into_iter().map(|directory| (directory.to_owned(), 1)).collect();
        while let Some((directory, level)) = waiting.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                entries += 1;
                if entries > limits.entries || start.elapsed() > limits.time {
                    found.is_partial = true;
                    found.links.sort();
                    return found;
                }
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_symlink() {
                    if let Ok(target) = fs::canonicalize(entry.path())
                        && !self.contains(&target, Access::Read)
                    {
                        found.links.push(LinkOut { link: entry.path(), target });
                    }
                } else if kind.is_dir() && level == 1 {
                    waiting.push((entry.path(), 2));
                }
            }
        }
        found.links.sort();
        found.links.dedup();
        found
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests may wait for the disk")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    type Done = std::io::Result<()>;

    fn need(path: PathBuf, access: Access, is_default: bool) -> Need {
        let span = Span { file: conf::FileId::COMMAND_LINE, line: 1, offset: 0 };
        Need { path, access, directive: "root".to_owned(), position: (!is_default).then_some(span) }
    }

    fn directories(dir: &Path, names: &[&str]) -> Done {
        names.iter().try_for_each(|name| fs::create_dir_all(dir.join(name)))
    }

    fn allowed(needs: &[Need]) -> Vec<PathBuf> {
        AllowedPaths::of(needs).iter().map(|allowed| allowed.path.clone()).collect()
    }

    #[test]
    fn access_to_a_directory_includes_the_files_below_it() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["www", "cache"])?;
        let needs =
            [need(top.join("www"), Access::Read, false), need(top.join("cache"), Access::Write, false)];
        let paths = AllowedPaths::of(&needs);
        assert!(paths.contains(&top.join("www/a/b"), Access::Read));
        assert!(!paths.contains(&top.join("www/a"), Access::Write));
        assert!(paths.contains(&top.join("cache/a"), Access::Write));
        assert!(paths.contains(&top.join("cache/a"), Access::Read));
        assert!(!paths.contains(&top.join("www2"), Access::Read));
        assert!(!paths.contains(&top, Access::Read));
        Ok(())
    }

    #[test]
    fn files_and_missing_paths_are_widened_to_their_directory() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["conf", "www"])?;
        fs::write(top.join("conf/users"), "a:b\n")?;
        assert_eq!(allowed(&[need(top.join("conf/users"), Access::Read, false)]), [top.join("conf")]);
        assert_eq!(allowed(&[need(top.join("www/later/x"), Access::Read, false)]), [top.join("www")]);
        // A missing default is probably never used.
        assert!(allowed(&[need(top.join("www/later"), Access::Read, true)]).is_empty());
        // Directories of many programs are not allowed for one file.
        assert_eq!(allowed(&[need("/etc/passwd".into(), Access::Read, false)]), [Path::new("/etc/passwd")]);
        assert!(allowed(&[need("/no-such-directory/a".into(), Access::Read, false)]).is_empty());
        Ok(())
    }

    #[test]
    fn a_link_to_a_neighbour_allows_its_other_neighbours() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["app/releases/7/public", "app/releases/8/public", "elsewhere/www"])?;
        symlink("releases/7", top.join("app/current"))?;
        symlink(top.join("elsewhere/www"), top.join("app/www"))?;
        let found = allowed(&[need(top.join("app/current/public"), Access::Read, false)]);
        assert_eq!(found, [top.join("app/releases/7/public"), top.join("app/releases")]);
        let found = allowed(&[need(top.join("app/www"), Access::Read, false)]);
        assert_eq!(found, [top.join("elsewhere/www")]);
        Ok(())
    }

    #[test]
    fn a_refusal_names_the_link_and_the_directory_to_allow() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["www/a", "mirror/debian"])?;
        symlink(top.join("mirror/debian"), top.join("www/a/debian"))?;
        fs::write(top.join("mirror/debian/x.deb"), "x")?;
        symlink(top.join("mirror/debian/x.deb"), top.join("www/latest"))?;
        let paths = AllowedPaths::of(&[need(top.join("www"), Access::Read, false)]);
        let refusal = paths.refusal(&top.join("www/a/debian/x.deb"), Access::Read).ok_or_else(missing)?;
        assert_eq!(refusal.link, Some(top.join("www/a/debian")));
        assert_eq!(refusal.directive(), format!("sandbox_path {};", top.join("mirror/debian").display()));
        let refusal = paths.refusal(&top.join("www/latest"), Access::Read).ok_or_else(missing)?;
        assert_eq!(refusal.allow, top.join("mirror/debian"));
        // Without a link: the directory of the file. A file that shall be created does not exist yet.
        let refusal = paths.refusal(&top.join("mirror/debian/new"), Access::Write).ok_or_else(missing)?;
        assert_eq!((refusal.link.as_ref(), &refusal.allow), (None, &top.join("mirror/debian")));
        assert!(refusal.directive().ends_with("debian rw;"), "{}", refusal.directive());
        assert_eq!(paths.refusal(&top.join("www/a/other"), Access::Read), None);
        Ok(())
    }

    #[test]
    fn links_out_are_found_on_two_levels_and_within_limits() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["www/a/b", "mirror"])?;
        for at in ["www/one", "www/a/two", "www/a/b/three"] {
            symlink(top.join("mirror"), top.join(at))?;
        }
        symlink(top.join("www/a"), top.join("www/inside"))?;
        symlink("nowhere", top.join("www/broken"))?;
        let paths = AllowedPaths::of(&[need(top.join("www"), Access::Read, false)]);
        let root = top.join("www");
        let find = |entries| {
            let limits = SearchLimits { entries, time: Duration::from_secs(60) };
            paths.links_out([root.as_path()], limits)
        };
        let found = find(1000);
        let links: Vec<&Path> = found.links.iter().map(|found| found.link.as_path()).collect();
        assert_eq!(links, [top.join("www/a/two"), top.join("www/one")]);
        assert!(!found.is_partial);
        assert_eq!(found.links[0].directive(), format!("sandbox_path {};", top.join("mirror").display()));
        assert!(find(3).is_partial);
        Ok(())
    }
}

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
//! A worker that was taken over can create symbolic links in the directories that it may write to. So nothing is allowed for a
//! path with a link in such a directory: otherwise the link would give the next worker its target.
//!
//! The functions block on the disk. They are for the start of a process, for commands, and for helper threads.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use conf::Span;

use crate::needs::{Access, Need};
use crate::omitted_paths::{Omission, OmittedPath};
use crate::real_paths::{FollowedLink, RealPath, resolve};

/// The name of the directive for paths that no other directive names. Its paths are expected to exist.
const SANDBOX_PATH: &str = "sandbox_path";

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
    /// Whether it is allowed instead of a path in it that does not exist.
    pub is_stand_in: bool,
}

/// The paths that a sandbox allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedPaths {
    paths: Vec<AllowedPath>,
    omitted: Vec<OmittedPath>,
    /// The paths of the needs, with their symbolic links.
    named: Vec<PathBuf>,
}

impl AllowedPaths {
    /// Returns the existing directories and files of these needs.
    pub fn of<'a>(needs: impl IntoIterator<Item = &'a Need>) -> AllowedPaths {
        let mut allowed = AllowedPaths::default();
        let mut candidates = Vec::new();
        for need in needs {
            allowed.named.push(need.path.clone());
            match ResolvedNeed::of(need) {
                Ok(candidate) => candidates.push(candidate),
                // A default that does not exist is probably never used.
                Err(_) if need.position.is_none() => {}
                Err(reason) => allowed.omit(need, real_as_far(&need.path), Omission::Absent(reason)),
            }
        }
        let writable = writable(&candidates);
        for (index, candidate) in candidates.iter().enumerate() {
            let is_writable = writable.binary_search(&index).is_ok();
            let crossing = match candidate.need.access {
                Access::Write if is_writable => None,
                // If it is not among the writable ones, it crosses a link in the directory of another candidate.
                Access::Write => candidate
                    .crossing(&candidates, writable.iter().copied())
                    .or_else(|| candidate.crossing(&candidates, 0..candidates.len())),
                Access::Read => candidate.crossing(&candidates, writable.iter().copied()),
            };
            match crossing {
                Some(reason) => allowed.omit(candidate.need, candidate.real.path.clone(), reason),
                None => allowed.add_candidate(candidate),
            }
        }
        allowed
    }

    /// Adds a path without symbolic links that no directive names.
    pub fn add(&mut self, path: PathBuf, access: Access) {
        let (directive, position) = (String::new(), None);
        self.paths.push(AllowedPath { path, access, directive, position, is_stand_in: false });
    }

    /// Adds a path.
    pub(crate) fn push(&mut self, allowed: AllowedPath) {
        self.paths.push(allowed);
    }

    /// Removes the directories that are allowed instead of a path in them, unless `keeps` is true for them.
    pub fn retain_stand_ins(&mut self, keeps: impl Fn(&AllowedPath) -> bool) {
        self.paths.retain(|allowed| !allowed.is_stand_in || keeps(allowed));
    }

    /// Returns the paths.
    pub fn iter(&self) -> impl Iterator<Item = &AllowedPath> {
        self.paths.iter()
    }

    /// Returns the paths as directives name them, with symbolic links, whether they exist or not.
    pub fn named(&self) -> impl Iterator<Item = &Path> {
        self.named.iter().map(PathBuf::as_path)
    }

    /// Returns the paths of directives that are not allowed, except those that another allowed path contains.
    pub fn omitted(&self) -> impl Iterator<Item = &OmittedPath> {
        self.omitted.iter().filter(|omitted| match omitted.reason {
            Omission::LinkOfWorkers { .. } | Omission::Absent(_) => {
                !self.contains(&omitted.real, omitted.access)
            }
            Omission::Widened(_) => true,
        })
    }

    /// Whether the access to a path without symbolic links is allowed.
    pub fn contains(&self, path: &Path, access: Access) -> bool {
        self.allowing(path, access).is_some()
    }

    /// Returns the nearest allowed directory that contains a path without symbolic links.
    pub fn allowing(&self, path: &Path, access: Access) -> Option<&AllowedPath> {
        let contains = |allowed: &&AllowedPath| path.starts_with(&allowed.path) && access <= allowed.access;
        self.paths.iter().filter(contains).max_by_key(|allowed| allowed.path.as_os_str().len())
    }

    fn add_candidate(&mut self, candidate: &ResolvedNeed<'_>) {
        let ResolvedNeed { need, directory, real, exists } = candidate;
        if !exists && need.directive == SANDBOX_PATH {
            self.omit(need, directory.clone(), Omission::Widened(directory.clone()));
        }
        let mut found = vec![directory.clone()];
        if need.access == Access::Read {
            found.extend(changeable_links(real));
        }
        for path in found {
            let mut known = self.paths.iter_mut();
            if let Some(known) = known.find(|known| known.path == path && known.access == need.access) {
                known.is_stand_in &= !exists;
            } else {
                let Need { directive, position, access, .. } = (*need).clone();
                self.paths.push(AllowedPath { path, access, directive, position, is_stand_in: !exists });
            }
        }
    }

    fn omit(&mut self, need: &Need, real: PathBuf, reason: Omission) {
        let Need { path, access, directive, position } = need.clone();
        self.omitted.push(OmittedPath { path, directive, position, real, access, reason });
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

/// Whether a directory belongs to one program rather than to many.
fn is_deep(path: &Path) -> bool {
    path.components().filter(|part| matches!(part, Component::Normal(_))).count() >= DEPTH_MIN
}

/// Returns a path in which the symbolic links of the existing part are replaced by their targets.
fn real_as_far(path: &Path) -> PathBuf {
    let existing = path.ancestors().find_map(|above| Some((above, resolve(above).ok()?.path)));
    let real = existing.and_then(|(above, real)| Some(real.join(path.strip_prefix(above).ok()?)));
    real.unwrap_or_else(|| path.to_owned())
}

/// A need with the directory to allow, if its symbolic links may be followed.
struct ResolvedNeed<'a> {
    need: &'a Need,
    /// The directory, or the file, without symbolic links.
    directory: PathBuf,
    real: RealPath,
    /// Whether the path itself exists, and not only a directory above it.
    exists: bool,
}

impl ResolvedNeed<'_> {
    /// Follows the links of a path. Of a path that does not exist, the nearest directory above it is used.
    fn of(need: &Need) -> Result<ResolvedNeed<'_>, ErrorKind> {
        let found = resolve(&need.path);
        let exists = found.is_ok();
        let real = found.or_else(|error| {
            let above = need.path.ancestors().skip(1).map(resolve).find_map(Result::ok);
            let above = above.filter(|above| need.position.is_some() && is_deep(&above.path));
            above.ok_or(error.kind())
        })?;
        let above = real.path.parent().filter(|above| real.path.is_file() && is_deep(above));
        let directory = above.unwrap_or(&real.path).to_owned();
        Ok(ResolvedNeed { need, directory, real, exists })
    }

    /// Returns the first symbolic link of the path that is in a directory.
    fn link_in(&self, directory: &Path) -> Option<&FollowedLink> {
        self.real.links.iter().find(|link| link.directory.starts_with(directory))
    }

    /// Returns the first symbolic link of the path that is in a directory of these candidates for writing.
    fn crossing(
        &self,
        candidates: &[ResolvedNeed<'_>],
        mut indices: impl Iterator<Item = usize>,
    ) -> Option<Omission> {
        indices.find_map(|index| {
            let ResolvedNeed { need, directory, .. } = &candidates[index];
            let link = self.link_in(directory).filter(|_| need.access == Access::Write)?;
            Some(Omission::LinkOfWorkers { link: link.path(), writable: directory.clone() })
        })
    }
}

/// Returns the sorted indices of the candidates whose directories workers may write to: those for writing whose links are not in
/// such a directory themselves. Of candidates whose links are in the directories of each other, it is not known which of the
/// links are those of an attacker, so none of them is writable.
fn writable(candidates: &[ResolvedNeed<'_>]) -> Vec<usize> {
    let crosses = |of: usize, into: usize| candidates[of].link_in(&candidates[into].directory).is_some();
    let is_write = |index: &usize| candidates[*index].need.access == Access::Write;
    let (mut found, mut undecided): (Vec<usize>, Vec<usize>) =
        (0..candidates.len()).filter(is_write).partition(|&index| candidates[index].real.links.is_empty());
    undecided.retain(|&of| !crosses(of, of) && !found.iter().any(|&into| crosses(of, into)));
    let independent = |undecided: &[usize]| {
        undecided.iter().position(|&of| !undecided.iter().any(|&into| crosses(of, into)))
    };
    while let Some(position) = independent(&undecided) {
        let next = undecided.swap_remove(position);
        undecided.retain(|&of| !crosses(of, next));
        found.push(next);
    }
    found.sort_unstable();
    found
}

/// Returns the directories of the targets of those symbolic links in a path that lead to a neighbour. A deployment switches
/// to another version by changing such a link.
fn changeable_links(real: &RealPath) -> impl Iterator<Item = PathBuf> {
    let named = real.links.iter().rev().filter(|link| link.is_named);
    named.filter_map(|link| {
        let neighbours = link.target.parent()?;
        let is_changeable = neighbours.starts_with(&link.directory) && is_deep(neighbours);
        is_changeable.then(|| neighbours.to_owned())
    })
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

    fn missing() -> std::io::Error {
        ErrorKind::NotFound.into()
    }

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

    /// A worker that was taken over replaces its directory by a link. The next worker must not get the target.
    #[test]
    fn links_that_workers_may_have_created_allow_nothing() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["cache/a", "data/web", "secret/www", "www"])?;
        symlink("/", top.join("cache/tmp"))?;
        symlink(top.join("secret"), top.join("cache/a/out"))?;
        let cache = need(top.join("cache"), Access::Write, false);
        for access in [Access::Read, Access::Write] {
            for path in ["cache/tmp", "cache/tmp/etc", "cache/a/out/www", "cache/a/out/later"] {
                // The order of the directives does not matter, nor whether the path is a default.
                let (link, www) = (
                    need(top.join(path), access, path.len() == 9),
                    need(top.join("www"), Access::Read, false),
                );
                for needs in [[cache.clone(), link.clone(), www.clone()], [link, www, cache.clone()]] {
                    let paths = AllowedPaths::of(&needs);
                    let mut found: Vec<PathBuf> = paths.iter().map(|allowed| allowed.path.clone()).collect();
                    found.sort();
                    assert_eq!(found, [top.join("cache"), top.join("www")], "{path} {access:?}");
                    let lines: Vec<String> = paths.omitted().map(ToString::to_string).collect();
                    assert_eq!(lines.len(), 1);
                    let line = &lines[0];
                    let expected = format!("is in \"{}\", where workers may", top.join("cache").display());
                    assert!(line.contains(&expected), "{line}");
                }
            }
        }
        // Links of the operator to a cache, and to the directory above.
        symlink(top.join("data/web"), top.join("link"))?;
        symlink("/", top.join("data/web/tmp"))?;
        let needs = [
            need(top.join("link/tmp"), Access::Write, false),
            need(top.join("data/web"), Access::Write, false),
            need(top.join("link"), Access::Read, false),
        ];
        let expected = [top.join("data/web"), top.join("data/web"), top.join("data")];
        assert_eq!(allowed(&needs), expected, "the neighbours of the target of the operator's link");
        assert_eq!(allowed(&needs[..1]), Vec::<PathBuf>::new(), "a link in its own target");
        Ok(())
    }

    #[test]
    fn missing_paths_are_reported_with_the_remedy() {
        let dir = testkit::TempDir::new("allowed");
        let named = |path: &Path, directive: &str| {
            let directive = directive.to_owned();
            Need { directive, ..need(path.to_owned(), Access::Read, false) }
        };
        let absent = dir.path().join("absent");
        let needs = [
            named(&absent, "root"),
            named(&absent, "sandbox_path"),
            named(Path::new("/no-such-directory"), "root"),
            need("/no-such-default".into(), Access::Read, true),
        ];
        let paths = AllowedPaths::of(&needs);
        let lines: Vec<String> = paths.omitted().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        let nothing = "nothing for \"/no-such-directory\" of \"root\", which does not exist: create it";
        assert!(lines[0].contains(nothing), "{lines:?}");
        let instead = format!("instead of \"{}\" of \"sandbox_path\", which does not", absent.display());
        assert!(lines[1].contains(&instead), "{lines:?}");
    }

    /// Two directories for writing, each with a link in the other one: either link may be that of an attacker.
    #[test]
    fn links_in_each_other_allow_nothing() -> Done {
        let dir = testkit::TempDir::new("allowed");
        let top = fs::canonicalize(dir.path())?;
        directories(&top, &["one", "two"])?;
        symlink(top.join("two"), top.join("one/a"))?;
        symlink(top.join("one"), top.join("two/b"))?;
        let needs =
            [need(top.join("one/a"), Access::Write, false), need(top.join("two/b"), Access::Write, false)];
        let paths = AllowedPaths::of(&needs);
        assert_eq!((paths.iter().count(), paths.omitted().count()), (0, 2));
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

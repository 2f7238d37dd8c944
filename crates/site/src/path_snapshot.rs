//! The files that paths led to at one time, to find paths that lead to other files now.
//!
//! A rule of the kernel belongs to a file, not to its name: a directory with the name of an allowed one is not allowed. So two
//! processes compare paths with a snapshot: the master, which then starts a new worker process, and a worker after a refused open,
//! for the line in its error log. The master makes the snapshot and sends it to the worker, so that both have the same rules.
//!
//! The functions block on the disk, as those of [`crate::allowed_paths`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::allowed_paths::{AllowedPath, AllowedPaths};
use crate::needs::Access;

/// Device and inode of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The device, `st_dev`.
    pub device: u64,
    /// The inode, `st_ino`.
    pub inode: u64,
}

impl Identity {
    /// Returns the identity of the file that a path leads to, through symbolic links; `None` if no file can be reached.
    #[expect(clippy::disallowed_methods, reason = "not on worker threads, see the description of this file")]
    pub fn of(path: &Path) -> Option<Identity> {
        fs::metadata(path).ok().map(|facts| Identity::new(path, &facts))
    }

    /// Returns the identity of an open file, such as one that was opened with `O_PATH`, and the path that led to it.
    pub fn of_file(file: impl AsFd, path: &Path) -> Option<Identity> {
        let file = fs::File::from(file.as_fd().try_clone_to_owned().ok()?);
        file.metadata().ok().map(|facts| Identity::new(path, &facts))
    }

    /// Files of /proc get another inode while memory is scarce, unless a process has them open. No process can replace them.
    fn new(path: &Path, facts: &Metadata) -> Identity {
        let inode = if path.starts_with("/proc") { 0 } else { facts.ino() };
        Identity { device: facts.dev(), inode }
    }
}

/// Whether the rules of a snapshot apply to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// A rule applies to the path.
    Permitted,
    /// All directories above the path that are allowed were replaced.
    Replaced,
    /// No directory above the path is allowed.
    NotPermitted,
}

/// Allowed paths with the files that they led to when the snapshot was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathSnapshot {
    allowed: AllowedPaths,
    /// The most access to each allowed path, and its identity; `None` if the path did not exist.
    rules: BTreeMap<PathBuf, (Access, Option<Identity>)>,
    /// Observed paths, with symbolic links as the directives name them.
    observed: Identities,
}

/// Paths with the identities of the files that they led to; `None` for a path that did not exist.
pub type Identities = BTreeMap<PathBuf, Option<Identity>>;

impl PathSnapshot {
    /// Makes a snapshot of allowed paths. The observed paths are those of directives, and `others`.
    pub fn of(allowed: AllowedPaths, others: impl IntoIterator<Item = PathBuf>) -> PathSnapshot {
        let paths = allowed.iter().filter(|allowed| !allowed.directive.is_empty());
        let paths = paths.map(|allowed| allowed.path.as_path()).chain(allowed.named());
        let paths: BTreeSet<PathBuf> = paths.map(Path::to_owned).chain(others).collect();
        let with_identity = |path: PathBuf| {
            let then = Identity::of(&path);
            (path, then)
        };
        let observed = paths.into_iter().map(with_identity).collect();
        let mut snapshot = PathSnapshot { observed, ..PathSnapshot::default() };
        for AllowedPath { path, access, .. } in allowed.iter() {
            snapshot.add_rule(path, *access, Identity::of);
        }
        PathSnapshot { allowed, ..snapshot }
    }

    /// Makes the snapshot of another process again from its [`PathSnapshot::rules`] and [`PathSnapshot::observed`].
    pub fn received(
        rules: impl IntoIterator<Item = (AllowedPath, Option<Identity>)>,
        observed: Identities,
    ) -> PathSnapshot {
        let mut snapshot = PathSnapshot { observed, ..PathSnapshot::default() };
        for (allowed, identity) in rules {
            snapshot.add_rule(&allowed.path, allowed.access, |_| identity);
            snapshot.allowed.push(allowed);
        }
        snapshot
    }

    /// Adds a path without symbolic links that is not observed.
    pub fn add(&mut self, path: PathBuf, access: Access) {
        self.add_rule(&path, access, Identity::of);
        self.allowed.add(path, access);
    }

    fn add_rule(&mut self, path: &Path, access: Access, identity: impl FnOnce(&Path) -> Option<Identity>) {
        let new = || (access, identity(path));
        let (most, _) = self.rules.entry(path.to_owned()).or_insert_with(new);
        *most = access.max(*most);
    }

    /// Returns the allowed paths with their identities.
    pub fn rules(&self) -> impl Iterator<Item = (&AllowedPath, Option<Identity>)> {
        self.allowed
            .iter()
            .map(|allowed| (allowed, self.rules.get(&allowed.path).and_then(|(_, then)| *then)))
    }

    /// Returns the observed paths with their identities.
    pub fn observed(&self) -> &Identities {
        &self.observed
    }

    /// Returns the allowed paths.
    pub fn allowed(&self) -> &AllowedPaths {
        &self.allowed
    }

    /// Whether an observed path leads to another file than in the snapshot.
    pub fn has_changed(&self) -> bool {
        self.observed.iter().any(|(path, then)| Identity::of(path) != *then)
    }

    /// Whether a path exists no longer that existed in the snapshot.
    pub fn has_gap(&self) -> bool {
        self.observed.iter().any(|(path, then)| then.is_some() && Identity::of(path).is_none())
    }

    /// Replaces the observed paths by those of a newer snapshot. The allowed paths remain.
    pub fn observe(&mut self, newer: PathSnapshot) {
        self.observed = newer.observed;
    }

    /// Returns whether the rules apply to a path without symbolic links.
    pub fn permission(&self, path: &Path, access: Access) -> Permission {
        let mut permission = Permission::NotPermitted;
        for above in path.ancestors() {
            if let Some((_, then)) = self.rules.get(above).filter(|(most, _)| access <= *most) {
                if then.is_some() && Identity::of(above) == *then {
                    return Permission::Permitted;
                }
                permission = Permission::Replaced;
            }
        }
        permission
    }

    /// Returns the observed path above a refused path that leads to another file than in the snapshot, if this explains the
    /// refusal.
    #[expect(clippy::disallowed_methods, reason = "not on worker threads, see the description of this file")]
    pub fn replaced_above(&self, path: &Path, access: Access) -> Option<&Path> {
        let real = path.ancestors().find_map(|path| fs::canonicalize(path).ok())?;
        if self.permission(&real, access) == Permission::Permitted {
            return None;
        }
        let is_above = |observed: &Path| path.starts_with(observed) || real.starts_with(observed);
        let above = self.observed.iter().filter(|(observed, _)| is_above(observed));
        let changed = above.filter(|(observed, then)| Identity::of(observed) != **then);
        changed.map(|(observed, _)| observed.as_path()).max_by_key(|path| path.as_os_str().len())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests may wait for the disk")]
mod tests {
    use super::*;
    use crate::needs::Need;
    use conf::Span;
    use std::os::unix::fs::symlink;

    type Done = std::io::Result<()>;

    fn snapshot(paths: &[PathBuf]) -> PathSnapshot {
        let span = Span { file: conf::FileId::COMMAND_LINE, line: 1, offset: 0 };
        let need = |path: &PathBuf| Need {
            path: path.clone(),
            access: Access::Read,
            directive: "root".to_owned(),
            position: Some(span.clone()),
        };
        let needs: Vec<Need> = paths.iter().map(need).collect();
        PathSnapshot::of(AllowedPaths::of(&needs), [])
    }

    /// `mv site site.old; mv new site`.
    #[test]
    fn a_replaced_directory_is_not_permitted_and_explains_a_refusal() -> Done {
        let dir = testkit::TempDir::new("snapshot");
        let top = fs::canonicalize(dir.path())?;
        fs::create_dir_all(top.join("site/a"))?;
        fs::create_dir_all(top.join("new/a"))?;
        let (site, file) = (top.join("site"), top.join("site/a/b"));
        let then = snapshot(std::slice::from_ref(&site));
        assert!(!then.has_changed());
        assert_eq!(then.permission(&file, Access::Read), Permission::Permitted);
        assert_eq!(then.permission(&file, Access::Write), Permission::NotPermitted);
        assert_eq!(then.replaced_above(&file, Access::Read), None);
        fs::rename(&site, top.join("site.old"))?;
        fs::rename(top.join("new"), &site)?;
        assert!(then.has_changed());
        assert_eq!(then.permission(&file, Access::Read), Permission::Replaced);
        assert_eq!(then.replaced_above(&file, Access::Read), Some(site.as_path()));
        assert_eq!(then.replaced_above(&top.join("other"), Access::Read), None);
        // A directory above that was not replaced permits the new directory too.
        let both = snapshot(&[site.clone(), top.clone()]);
        fs::rename(&site, top.join("site.2"))?;
        fs::create_dir(&site)?;
        assert!(both.has_changed());
        assert_eq!(both.permission(&file, Access::Read), Permission::Permitted);
        assert_eq!(both.replaced_above(&file, Access::Read), None);
        Ok(())
    }

    #[test]
    fn a_switched_link_and_a_path_that_exists_later_are_changes() -> Done {
        let dir = testkit::TempDir::new("snapshot");
        let top = fs::canonicalize(dir.path())?;
        for name in ["app/releases/7", "app/releases/8", "elsewhere/9"] {
            fs::create_dir_all(top.join(name))?;
        }
        let current = top.join("app/current");
        symlink("releases/7", &current)?;
        let then = snapshot(std::slice::from_ref(&current));
        let switch = |target: &Path| -> Done {
            symlink(target, top.join("app/next"))?;
            fs::rename(top.join("app/next"), &current)
        };
        switch(Path::new("releases/8"))?;
        assert!(then.has_changed());
        assert_eq!(then.replaced_above(&current.join("x"), Access::Read), None, "a neighbour is allowed");
        switch(&top.join("elsewhere/9"))?;
        assert_eq!(then.replaced_above(&current.join("x"), Access::Read), Some(current.as_path()));
        switch(Path::new("releases/7"))?;
        assert!(!then.has_changed());
        let then = snapshot(&[top.join("later")]);
        fs::create_dir(top.join("later"))?;
        assert!(then.has_changed());
        Ok(())
    }
}

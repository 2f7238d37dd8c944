//! Files of a repository at a commit, read by git: from a directory of git directories, or from a clone without blobs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, workspace};

/// A repository at a commit.
pub(super) struct Repository {
    /// Directory for `git -C`: a git directory, or a directory that contains one.
    git: PathBuf,
    /// The commit of the row.
    commit: String,
    /// All paths of the commit.
    pub(super) paths: Vec<String>,
}

impl Repository {
    /// Opens the git directory `OWNER+NAME` (or `OWNER+NAME/repo`) below `below`, or clones from GitHub into `target/`.
    pub(super) fn open(name: &str, commit: &str, below: Option<&Path>) -> Result<Repository, Failure> {
        let directory = name.replace('/', "+");
        let git = match below {
            Some(below) => {
                let outer = below.join(&directory);
                let inner = outer.join("repo");
                if inner.is_dir() { inner } else { outer }
            }
            None => clone(name, &workspace::root().join("target/configurations/clones").join(&directory))?,
        };
        let names = workspace::output(Command::new("git").arg("-C").arg(&git).args([
            "ls-tree",
            "-r",
            "--name-only",
            commit,
        ]))?;
        Ok(Repository { git, commit: commit.into(), paths: names.lines().map(String::from).collect() })
    }

    /// Returns the text of a file.
    pub(super) fn file(&self, path: &str) -> Result<String, Failure> {
        let object = format!("{}:{path}", self.commit);
        workspace::output(Command::new("git").arg("-C").arg(&self.git).args(["show", &object]))
    }

    /// Returns the paths that an `include` of the file `from` refers to: those that end with the longest possible part
    /// of `name`, starting with the directory of `from`. A pattern is searched only below that directory, so that it
    /// does not match unrelated files.
    pub(super) fn included(&self, from: &str, name: &str) -> Vec<&str> {
        let directory = from.rsplit_once('/').map_or("", |(directory, _)| directory);
        let parts: Vec<&str> =
            name.split('/').filter(|part| !part.is_empty() && *part != "." && *part != "..").collect();
        for start in 0..parts.len() {
            let tail = parts[start..].join("/");
            let pattern = tail.contains('*');
            // A bare pattern would match the files beside the including file.
            if pattern && start > 0 && !tail.contains('/') {
                break;
            }
            let beside = if directory.is_empty() { tail.clone() } else { format!("{directory}/{tail}") };
            let found = self.fitting(|path| same(path, &beside));
            if !found.is_empty() {
                return found;
            }
            if !pattern && tail.contains('/') {
                let ends = |path: &str| SUFFIXES.iter().any(|end| path.ends_with(&format!("/{tail}{end}")));
                let found = self.fitting(|path| same(path, &tail) || ends(path));
                if let Some(first) = found.first() {
                    return vec![first];
                }
            }
        }
        Vec::new()
    }

    /// Returns all paths that satisfy the condition, in the order of the commit.
    fn fitting(&self, fits: impl Fn(&str) -> bool) -> Vec<&str> {
        self.paths.iter().map(String::as_str).filter(|path| fits(path)).collect()
    }
}

/// Suffixes that are removed when the files are installed.
const SUFFIXES: [&str; 6] = ["", ".sample", ".template", ".tmpl", ".j2", ".erb"];

/// Whether a path is `wanted`, where `*` matches a part of a name.
fn same(path: &str, wanted: &str) -> bool {
    let fits = |wanted: &str| match wanted.split_once('*') {
        None => path == wanted,
        Some((start, end)) => {
            let middle = path.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            middle.is_some_and(|middle| !middle.contains('/') && !end.contains('*'))
        }
    };
    SUFFIXES.iter().any(|suffix| fits(&format!("{wanted}{suffix}")))
}

/// Clones once, without blobs: git fetches them when files are read.
fn clone(name: &str, into: &Path) -> Result<PathBuf, Failure> {
    if !into.is_dir() {
        let address = format!("https://github.com/{name}");
        let mut git = Command::new("git");
        git.args(["clone", "--quiet", "--filter=blob:none", "--no-checkout", &address]).arg(into);
        workspace::run(&mut git)?;
    }
    Ok(into.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_found_in_the_repository() {
        let paths = [
            "nginx/nginx.conf",
            "nginx/conf.d/a.conf",
            "nginx/conf.d/b.txt",
            "other/conf.d/c.conf",
            "x/ssl/strong.conf.sample",
        ];
        let repository = Repository {
            git: PathBuf::new(),
            commit: String::new(),
            paths: paths.map(String::from).to_vec(),
        };
        let included = |name: &str| repository.included("nginx/nginx.conf", name);
        assert_eq!(included("/etc/nginx/conf.d/*.conf"), ["nginx/conf.d/a.conf"]);
        assert_eq!(included("conf.d/b.txt"), ["nginx/conf.d/b.txt"]);
        assert_eq!(included("/config/ssl/strong.conf"), ["x/ssl/strong.conf.sample"]);
        assert_eq!(included("/etc/strong.conf"), [""; 0]);
    }
}

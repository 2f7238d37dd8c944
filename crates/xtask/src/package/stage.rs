//! Makes the file tree that all packages share: `packaging/`, the documentation, and generated texts of the program.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, fresh_dir, make_dir, sbom, tool, write};
use crate::{Failure, workspace};

/// Files that are copied unchanged, with their modes.
const FILES: [(&str, &str, u32); 17] = [
    ("packaging/signal", "usr/libexec/ringroad/signal", 0o755),
    ("packaging/systemd/ringroad.service", "usr/lib/systemd/system/ringroad.service", 0o644),
    ("packaging/systemd/ringroad.socket", "usr/share/doc/ringroad/examples/ringroad.socket", 0o644),
    ("packaging/systemd/unprivileged.conf", "usr/share/doc/ringroad/examples/unprivileged.conf", 0o644),
    ("packaging/logrotate", "etc/logrotate.d/ringroad", 0o644),
    ("packaging/etc/default/ringroad", "etc/default/ringroad", 0o644),
    ("packaging/etc/ringroad.conf", "etc/ringroad/ringroad.conf", 0o644),
    ("packaging/etc/conf.d/status.conf", "etc/ringroad/conf.d/status.conf", 0o644),
    ("packaging/etc/sites-available/default", "etc/ringroad/sites-available/default", 0o644),
    ("packaging/etc/snippets/proxy.conf", "etc/ringroad/snippets/proxy.conf", 0o644),
    ("packaging/etc/snippets/security-headers.conf", "etc/ringroad/snippets/security-headers.conf", 0o644),
    ("packaging/etc/snippets/php.conf", "etc/ringroad/snippets/php.conf", 0o644),
    ("packaging/html/index.html", "usr/share/ringroad/html/index.html", 0o644),
    ("packaging/image/seccomp.json", "usr/share/doc/ringroad/examples/seccomp.json", 0o644),
    ("examples/mime.types", "etc/ringroad/mime.types", 0o644),
    ("examples/fastcgi_params", "etc/ringroad/fastcgi_params", 0o644),
    ("examples/uwsgi_params", "etc/ringroad/uwsgi_params", 0o644),
];

/// Directories that are installed without files.
const DIRECTORIES: [&str; 1] = ["etc/ringroad/sites-enabled"];

/// Texts that the program generates. The manual page is compressed.
const GENERATED: [(&[&str], &str); 4] = [
    (&["help", "man"], "usr/share/man/man8/ringroad.8"),
    (&["completions", "bash"], "usr/share/bash-completion/completions/ringroad"),
    (&["completions", "zsh"], "usr/share/zsh/vendor-completions/_ringroad"),
    (&["completions", "fish"], "usr/share/fish/vendor_completions.d/ringroad.fish"),
];

/// The directory of the documentation.
const DOC: &str = "usr/share/doc/ringroad";

/// Makes the tree in `root`, after removing an older one.
pub(super) fn make(release: &Release, root: &Path) -> Result<(), Failure> {
    fresh_dir(root)?;
    copy(&release.program.stripped, &root.join("usr/sbin/ringroad"), 0o755)?;
    for (from, to, mode) in FILES {
        copy(&workspace::root().join(from), &root.join(to), mode)?;
    }
    for directory in DIRECTORIES {
        make_dir(&root.join(directory))?;
    }
    for (args, to) in GENERATED {
        let to = root.join(to);
        let mut generate = Command::new(&release.program.stripped);
        write(&to, workspace::output(generate.args(args))?)?;
        if to.extension().is_some_and(|extension| extension == "8") {
            compress(&to)?;
        }
    }
    documentation(release, root)
}

/// Copies the pages of `docs/` for operators with the examples that they refer to, the changelog, and the licences of included
/// works.
fn documentation(release: &Release, root: &Path) -> Result<(), Failure> {
    let doc = root.join(DOC);
    for directory in ["docs", "docs/guides"] {
        let pages = std::fs::read_dir(workspace::root().join(directory));
        let pages = pages.map_err(|error| Failure::File { path: directory.into(), error })?;
        for page in pages.flatten().map(|entry| entry.path()) {
            if page.extension().is_some_and(|extension| extension == "md") {
                copy(&page, &doc.join(directory).join(page.file_name().unwrap_or_default()), 0o644)?;
            }
        }
    }
    examples(&doc)?;
    copy(&workspace::root().join("README.md"), &doc.join("README.md"), 0o644)?;
    copy(&workspace::root().join("CHANGELOG.md"), &doc.join("changelog"), 0o644)?;
    compress(&doc.join("changelog"))?;
    write(&doc.join("third-party.md"), sbom::page(&release.linked))?;
    write(&doc.join("sbom.cdx.json"), &release.bill)
}

/// Copies the complete sites of `examples/`. Only files in the repository are copied, because running an example leaves logs and
/// caches.
fn examples(doc: &Path) -> Result<(), Failure> {
    let root = workspace::root();
    let mut git = tool("git", "git")?;
    let names: Vec<PathBuf> = match workspace::output(git.args(["ls-files", "examples"]).current_dir(&root)) {
        Ok(listed) => listed.lines().map(PathBuf::from).collect(),
        // An unpacked archive has no git repository, and contains no files of example runs.
        Err(_) => {
            files_below(&root.join("examples"))?.iter().map(|path| Path::new("examples").join(path)).collect()
        }
    };
    let is_published = |name: &Path| name.iter().any(|part| part.to_string_lossy().starts_with("write-up"));
    for name in names.iter().filter(|name| !is_published(name)) {
        let to = doc.join(name);
        // `.gitignore` only keeps an empty directory in the repository.
        match to.parent() {
            Some(directory) if to.ends_with(".gitignore") => make_dir(directory)?,
            _ => copy(&root.join(name), &to, 0o644)?,
        }
    }
    Ok(())
}

/// Compresses a file in place, without name and time, as Debian requires.
pub(super) fn compress(path: &Path) -> Result<(), Failure> {
    workspace::run(tool("gzip", "gzip")?.args(["-9nf"]).arg(path))
}

/// Copies a file and creates its parent directories.
pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Failure> {
    let failed = |error| Failure::File { path: from.to_owned(), error };
    if let Some(directory) = to.parent() {
        make_dir(directory)?;
    }
    std::fs::copy(from, to).map_err(failed)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Creates a symbolic link and its parent directories.
pub(super) fn link(target: &str, at: &Path) -> Result<(), Failure> {
    if let Some(directory) = at.parent() {
        make_dir(directory)?;
    }
    symlink(target, at).map_err(|error| Failure::File { path: at.to_owned(), error })
}

/// Returns all files in a directory and its subdirectories, as sorted relative paths. Symbolic links count as files.
pub(super) fn files_below(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let listing = std::fs::read_dir(&directory);
        let listing = listing.map_err(|error| Failure::File { path: directory.clone(), error })?;
        for entry in listing.flatten() {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory {
                directories.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(root).unwrap_or(Path::new("")).to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Sets the mode of all directories independently of the umask, and the time of all files to that of the release.
pub(super) fn settle(root: &Path, time: u64) -> Result<(), Failure> {
    workspace::run(
        tool("find", "findutils")?.arg(root).args(["-type", "d", "-exec", "chmod", "0755", "{}", "+"]),
    )?;
    let mut touch = tool("find", "findutils")?;
    touch.arg(root).args(["-exec", "touch", "-h", "-d"]).arg(format!("@{time}")).args(["{}", "+"]);
    workspace::run(&mut touch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_file_exists_and_none_conflicts_with_nginx() {
        for (from, to, _) in FILES {
            assert!(workspace::root().join(from).is_file(), "{from}");
            assert!(!to.starts_with("etc/nginx"), "{to}");
        }
    }
}

//! Makes an RPM package from the same file tree, with rpmbuild.
//!
//! The spec file compiles nothing: it copies the tree, lists its files, and contains the scriptlets of `packaging/rpm`. rpmbuild
//! finds the libraries that the program needs. Differences from the Debian package:
//!
//! * the user is `ringroad`, created by `%pre`, because other distributions have no `www-data`
//! * the package owns the directories of logs and caches
//! * the installation does not start the service, as is usual in these distributions

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::notes::{DESCRIPTION, SUMMARY, maintainer};
use super::{Release, make_dir, stage, tool, write};
use crate::{Failure, workspace};

/// The user of the workers: other distributions lack Debian's `www-data`.
const USER: &str = "ringroad";

/// Directories that the server writes to. Root owns them, because root opens the logs, and another owner of the directory could
/// create symbolic links in it. The server makes the worker's user the owner of each cache directory below.
const WRITABLE: [&str; 3] = ["var/log/ringroad", "var/cache/ringroad", "var/lib/ringroad"];

/// Makes the package. Returns its path.
pub(super) fn make(release: &Release) -> Result<PathBuf, Failure> {
    let (root, top) = (release.work.join("rpm"), release.work.join("rpmbuild"));
    stage::make(release, &root)?;
    let doc = root.join("usr/share/doc/ringroad");
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        stage::copy(
            &workspace::root().join(licence),
            &root.join("usr/share/licenses/ringroad").join(licence),
            0o644,
        )?;
    }
    // The spec file contains the changelog as %changelog.
    std::fs::remove_file(doc.join("changelog.gz"))
        .map_err(|error| Failure::File { path: doc.clone(), error })?;
    rename_user(&root)?;
    move_completions(&root)?;
    for directory in WRITABLE {
        make_dir(&root.join(directory))?;
    }
    stage::settle(&root, release.time)?;
    let spec = release.work.join("ringroad.spec");
    write(&spec, text(release, &root)?)?;
    let mut build = tool("rpmbuild", "rpm")?;
    build.args(["-bb", "--quiet", "--define"]).arg(format!("_topdir {}", top.display()));
    build.arg("--define").arg(format!("stage {}", root.display()));
    build.args(["--define", "_build_id_links none", "--define", "debug_package %{nil}"]);
    // The tree is already stripped and compressed, and the scripts for this in Debian's rpm do not run in Debian's shell.
    build.args(["--define", "__os_install_post %{nil}"]);
    // The package has the time of the commit instead of that of the build, and not the name of the machine.
    build.args(["--define", "use_source_date_epoch_as_buildtime 1", "--define", "_buildhost localhost"]);
    build.env("SOURCE_DATE_EPOCH", release.time.to_string()).arg(&spec);
    workspace::run(&mut build)?;
    // rpmbuild determines the file name; only the architecture is not known here.
    let architecture = workspace::output(tool("rpm", "rpm")?.args(["--eval", "%{_arch}"]))?;
    let name = format!("ringroad-{}-{}.{2}.rpm", release.version, release.revision, architecture.trim());
    let built = top.join("RPMS").join(architecture.trim()).join(&name);
    let package = release.out.join(name);
    stage::copy(&built, &package, 0o644)?;
    Ok(package)
}

/// Replaces the user in the configuration and in the configuration of logrotate.
fn rename_user(root: &Path) -> Result<(), Failure> {
    for (path, from, to) in [
        ("etc/ringroad/ringroad.conf", "user www-data;", "user ringroad;"),
        ("etc/logrotate.d/ringroad", "create 0640 www-data adm", "create 0640 ringroad root"),
    ] {
        let path = root.join(path);
        let text =
            std::fs::read_to_string(&path).map_err(|error| Failure::File { path: path.clone(), error })?;
        if !text.contains(from) {
            return Err(Failure::Format {
                what: "packaging",
                detail: format!("no \"{from}\" in {}", path.display()),
            });
        }
        write(&path, text.replace(from, to))?;
    }
    Ok(())
}

/// Moves the zsh completions: only Debian has a separate directory for those of packages.
fn move_completions(root: &Path) -> Result<(), Failure> {
    let share = root.join("usr/share/zsh");
    let (from, to) = (share.join("vendor-completions"), share.join("site-functions"));
    if from.exists() {
        std::fs::rename(&from, to).map_err(|error| Failure::File { path: from, error })?;
    }
    Ok(())
}

/// Returns the directories that belong only to this package, as lines of `%files`. rpm removes only directories that are listed.
fn directories(root: &Path) -> Result<String, Failure> {
    let mut find = tool("find", "findutils")?;
    let listed =
        workspace::output(find.arg(root).args(["-mindepth", "1", "-type", "d", "-printf", "%P\\n"]))?;
    let is_ours =
        |path: &&str| !WRITABLE.contains(path) && Path::new(path).iter().any(|part| part == "ringroad");
    let mut paths: Vec<&str> = listed.lines().filter(is_ours).collect();
    paths.sort_unstable();
    Ok(paths.iter().map(|path| format!("%dir \"/{path}\"\n")).collect())
}

/// Returns the spec file, which compiles nothing and copies the tree.
fn text(release: &Release, root: &Path) -> Result<String, Failure> {
    let (version, revision) = (&release.version, release.revision);
    let date = workspace::output(
        tool("date", "coreutils")?
            .args(["-u", "+%a %b %d %Y", "-d"])
            .arg(format!("@{}", release.time))
            .env("LC_ALL", "C"),
    )?;
    let mut files = String::new();
    // A changed configuration file survives an upgrade; the new version is installed under another name next to it.
    for path in stage::files_below(root)? {
        let shown = path.display();
        let kind = match path.components().nth(1).and_then(|part| part.as_os_str().to_str()) {
            _ if path.starts_with("etc") => "%config(noreplace) ",
            Some("share") if path.starts_with("usr/share/doc") => "%doc ",
            Some("share") if path.starts_with("usr/share/licenses") => "%license ",
            _ => "",
        };
        let _ = writeln!(files, "{kind}\"/{shown}\"");
    }
    let written = WRITABLE.map(|path| format!("%dir %attr(0755, root, root) /{path}\n")).concat();
    let directories = directories(root)?;
    let scripts = workspace::read("packaging/rpm/scripts.spec")?.replace("USER", USER);
    Ok(format!(
        "Name: ringroad\nVersion: {version}\nRelease: {revision}\nSummary: {SUMMARY}\n\
         License: Apache-2.0 OR MIT\nPackager: {maintainer}\n\
         Group: System Environment/Daemons\nRequires: logrotate\nRequires(pre): shadow-utils\nProvides: webserver\n\n\
         %description\n{description}\n\n\
         %install\ncp -a %{{stage}}/. %{{buildroot}}/\n\n{scripts}\n\
         %files\n{directories}{written}{files}\n\
         %changelog\n* {date} {maintainer} - {version}-{revision}\n- Version {version}\n",
        description = DESCRIPTION.join("\n"),
        date = date.trim(),
        maintainer = maintainer(),
    ))
}

//! Makes Debian packages: the server, and its symbols as `ringroad-dbgsym`.
//!
//! | file in `DEBIAN` | source |
//! |---|---|
//! | `control` | the version, the libraries of the program, the texts of `notes` |
//! | `conffiles` | all files in `/etc` |
//! | `md5sums` | all other files |
//! | `postinst`, `prerm`, `postrm` | copies of the files in `packaging/debian` |
//!
//! The scripts upgrade a running server by USR2, and call the commands for the unit that debhelper's scripts would call. All
//! files belong to root and have the time of the last commit; the archive is compressed by xz. Thus packaging the same program
//! twice makes identical files.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::notes::{self, DESCRIPTION, SUMMARY};
use super::{Release, binary, fresh_dir, stage, tool, write};
use crate::{Failure, workspace};

/// The scripts of the server's package, in `packaging/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The AppArmor profile and its path in the package. Distributions with RPM have SELinux instead.
const APPARMOR: (&str, &str) = ("packaging/apparmor/usr.sbin.ringroad", "etc/apparmor.d/usr.sbin.ringroad");

/// The documentation directory of both packages.
const DOC: &str = "usr/share/doc/ringroad";

/// Makes both packages. Returns their paths.
pub(super) fn make(release: &Release) -> Result<Vec<PathBuf>, Failure> {
    let architecture = workspace::output(tool("dpkg", "dpkg")?.arg("--print-architecture"))?;
    let architecture = architecture.trim();
    Ok(vec![server(release, architecture)?, symbols(release, architecture)?])
}

fn server(release: &Release, architecture: &str) -> Result<PathBuf, Failure> {
    let root = release.work.join("deb");
    stage::make(release, &root)?;
    stage::copy(&workspace::root().join(APPARMOR.0), &root.join(APPARMOR.1), 0o644)?;
    let doc = root.join(DOC);
    let date = workspace::output(
        tool("date", "coreutils")?.args(["-u", "-R", "-d"]).arg(format!("@{}", release.time)),
    )?;
    write(&doc.join("changelog.Debian"), notes::debian(&release.version, release.revision, date.trim()))?;
    stage::compress(&doc.join("changelog.Debian"))?;
    write(&doc.join("copyright"), copyright()?)?;
    write(
        &root.join("usr/share/lintian/overrides/ringroad"),
        workspace::read("packaging/debian/lintian-overrides")?,
    )?;
    let mut control = control("ringroad", release, architecture, &root)?;
    let _ = write!(
        control,
        "Section: httpd\nPriority: optional\nDepends: {}\nRecommends: ca-certificates, logrotate\nSuggests: nginx-doc\nProvides: httpd, httpd-cgi\nDescription: {SUMMARY}\n",
        depends(release)
    );
    for line in DESCRIPTION {
        let _ = writeln!(control, " {line}");
    }
    write(&root.join("DEBIAN/control"), control)?;
    // dpkg replaces a changed file of this list only after the administrator's confirmation.
    let files = stage::files_below(&root)?;
    let conffiles = files.iter().filter(|path| path.starts_with("etc"));
    let conffiles: String = conffiles.map(|path| format!("/{}\n", path.display())).collect();
    write(&root.join("DEBIAN/conffiles"), conffiles)?;
    for script in SCRIPTS {
        let from = workspace::root().join("packaging/debian").join(script);
        stage::copy(&from, &root.join("DEBIAN").join(script), 0o755)?;
    }
    pack(release, &root, &format!("ringroad_{}-{}_{architecture}.deb", release.version, release.revision))
}

/// Makes the package of the symbols, which debuggers find by the build ID.
fn symbols(release: &Release, architecture: &str) -> Result<PathBuf, Failure> {
    let root = release.work.join("deb-dbgsym");
    fresh_dir(&root)?;
    let id = &release.program.build_id;
    let (first, rest) = id.split_at(id.len().min(2));
    let place = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
    stage::copy(&release.program.symbols, &root.join(place), 0o644)?;
    stage::link("ringroad", &root.join("usr/share/doc/ringroad-dbgsym"))?;
    let mut control = control("ringroad-dbgsym", release, architecture, &root)?;
    let _ = write!(
        control,
        "Section: debug\nPriority: optional\nAuto-Built-Package: debug-symbols\nBuild-Ids: {id}\nDepends: ringroad (= {}-{})\nDescription: debug symbols for ringroad\n",
        release.version, release.revision
    );
    write(&root.join("DEBIAN/control"), control)?;
    pack(
        release,
        &root,
        &format!("ringroad-dbgsym_{}-{}_{architecture}.deb", release.version, release.revision),
    )
}

/// Generates the fields that every binary package's control file begins with.
fn control(name: &str, release: &Release, architecture: &str, root: &Path) -> Result<String, Failure> {
    let files = stage::files_below(root)?;
    let bytes: u64 =
        files.iter().filter_map(|path| root.join(path).symlink_metadata().ok()).map(|stat| stat.len()).sum();
    let source = if name == "ringroad" { "" } else { "Source: ringroad\n" };
    Ok(format!(
        "Package: {name}\n{source}Version: {}-{}\nArchitecture: {architecture}\nMaintainer: {}\nInstalled-Size: {}\n",
        release.version,
        release.revision,
        notes::maintainer(),
        bytes.div_ceil(1024)
    ))
}

/// Returns the dependencies: the libraries, and the tools that the scripts need.
fn depends(release: &Release) -> String {
    let mut packages: Vec<String> = Vec::new();
    for library in &release.program.libraries {
        let name = binary::package_of(library).unwrap_or_default();
        let text =
            if name == "libc6" { format!("libc6 (>= {})", release.program.libc) } else { name.to_owned() };
        if !packages.contains(&text) {
            packages.push(text);
        }
    }
    packages.push("init-system-helpers (>= 1.54~)".to_owned());
    packages.sort();
    packages.join(", ")
}

/// Returns the copyright file in Debian's form, with the text of the MIT licence, which Debian does not include.
fn copyright() -> Result<String, Failure> {
    let mut text = workspace::read("packaging/debian/copyright")?;
    let licence = workspace::read("LICENSE-MIT")?;
    text += "License: Expat\n";
    for line in licence.lines() {
        let line = if line.trim().is_empty() { "." } else { line };
        let _ = writeln!(text, " {line}");
    }
    Ok(text)
}

/// Writes the checksums, sets modes and times, and makes the archive.
fn pack(release: &Release, root: &Path, name: &str) -> Result<PathBuf, Failure> {
    let files = stage::files_below(root)?;
    let regular = |path: &&PathBuf| {
        !path.starts_with("DEBIAN") && root.join(path).symlink_metadata().is_ok_and(|stat| stat.is_file())
    };
    let listed: Vec<&PathBuf> = files.iter().filter(regular).collect();
    // `dpkg --verify` compares the files with these checksums.
    let sums = workspace::output(tool("md5sum", "coreutils")?.args(&listed).current_dir(root))?;
    write(&root.join("DEBIAN/md5sums"), sums)?;
    // The modes must not depend on the umask.
    for path in stage::files_below(&root.join("DEBIAN"))? {
        let mode = if SCRIPTS.iter().any(|script| path.ends_with(script)) { 0o755 } else { 0o644 };
        let path = root.join("DEBIAN").join(path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| Failure::File { path, error })?;
    }
    stage::settle(root, release.time)?;
    let package = release.out.join(name);
    let mut build = tool("dpkg-deb", "dpkg")?;
    build.env("SOURCE_DATE_EPOCH", release.time.to_string());
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(root).arg(&package);
    build.stdout(std::process::Stdio::null());
    workspace::run(&mut build)?;
    Ok(package)
}

//! `cargo xtask package`: makes the published files of a release.
//!
//! | step | module |
//! |---|---|
//! | a release build with the paths of a package, and its separate symbols | [`binary`] |
//! | the file tree of all packages, from `packaging/` and the program | [`stage`] |
//! | Debian packages, an RPM package, an OCI image | [`deb`], [`rpm`], [`image`] |
//! | the list of linked crates, as a page and as a bill of materials (SBOM) | [`sbom`] |
//! | release notes and Debian's changelog, from `CHANGELOG.md` | [`notes`] |
//! | a comparison of two builds | [`reproduce`] |
//!
//! All steps use tools of the distribution (dpkg-deb, rpmbuild, buildah). If a tool is missing, the error names its package. The
//! reasons for this design are in `docs/decisions/0066-packages-by-the-tools-of-the-distributions.md`.

mod binary;
mod deb;
mod image;
mod notes;
pub(crate) mod reproduce;
mod rpm;
mod sbom;
mod stage;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, workspace};

/// The options of the command.
#[derive(Debug)]
struct PackageOptions {
    deb: bool,
    rpm: bool,
    image: bool,
    program: binary::Source,
    /// The package revision, which counts packages of the same version, 1-based.
    revision: u32,
    /// The output directory.
    out: PathBuf,
}

/// The common input of all packages.
#[derive(Debug)]
struct Release {
    version: String,
    revision: u32,
    /// The stripped program, and its symbols.
    program: binary::Program,
    /// The section of the version in `CHANGELOG.md`.
    notes: String,
    /// The crates that the program is linked with; `bill` is the SBOM for scanners.
    linked: Vec<sbom::Linked>,
    bill: String,
    /// Time of all files in seconds since 1970, so that builds are reproducible.
    time: u64,
    /// The directory of intermediate files.
    work: PathBuf,
    out: PathBuf,
}

/// Makes the packages that the arguments select.
pub(crate) fn run(args: &[&str]) -> Result<(), Failure> {
    let wish = parse(args).ok_or(Failure::Usage)?;
    let version = version()?;
    let work = wish.out.join("work");
    make_dir(&work)?;
    let program = binary::make(&wish.program, &work)?;
    let notes = notes::of_version(&workspace::read("CHANGELOG.md")?, &version)?;
    let (linked, time) = (sbom::linked()?, time_of_last_commit());
    let bill = sbom::sbom(&linked, &version, time)?;
    let release = Release {
        version,
        revision: wish.revision,
        program,
        notes,
        linked,
        bill,
        time,
        work,
        out: wish.out.clone(),
    };
    let mut made = vec![release.write_notes()?, release.write_sbom()?];
    if wish.deb {
        made.extend(deb::make(&release)?);
    }
    if wish.rpm {
        made.push(rpm::make(&release)?);
    }
    if wish.image {
        made.push(image::make(&release)?);
    }
    for path in made {
        println!("{}", path.display());
    }
    Ok(())
}

fn parse(args: &[&str]) -> Option<PackageOptions> {
    let out = workspace::root().join("target/package");
    let mut wish = PackageOptions {
        deb: false,
        rpm: false,
        image: false,
        program: binary::Source::Release,
        revision: 1,
        out,
    };
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match arg {
            "deb" => wish.deb = true,
            "rpm" => wish.rpm = true,
            "image" => wish.image = true,
            "all" => (wish.deb, wish.rpm, wish.image) = (true, true, true),
            "--binary" => wish.program = binary::Source::Given(PathBuf::from(args.next()?)),
            "--pgo" => wish.program = binary::Source::Pgo,
            "--revision" => wish.revision = args.next()?.parse().ok().filter(|number| *number > 0)?,
            "--out" => wish.out = std::path::absolute(args.next()?).ok()?,
            _ => return None,
        }
    }
    if !(wish.deb || wish.rpm || wish.image) {
        (wish.deb, wish.rpm, wish.image) = (true, true, true);
    }
    Some(wish)
}

impl Release {
    fn write_notes(&self) -> Result<PathBuf, Failure> {
        let path = self.out.join(format!("release-notes-{}.md", self.version));
        write(&path, &self.notes)?;
        Ok(path)
    }

    fn write_sbom(&self) -> Result<PathBuf, Failure> {
        let path = self.out.join(format!("ringroad-{}.cdx.json", self.version));
        write(&path, &self.bill)?;
        Ok(path)
    }
}

/// Returns the version of the workspace.
fn version() -> Result<String, Failure> {
    let manifest = workspace::read("Cargo.toml")?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    line.and_then(|rest| rest.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or_else(|| Failure::Format { what: "Cargo.toml", detail: "no line version = \"…\"".to_owned() })
}

/// Returns the time of the last commit, or 0 in an unpacked archive without a repository.
fn time_of_last_commit() -> u64 {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(workspace::root());
    workspace::output(&mut git).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns a command that runs a tool of the distribution. The error for a missing tool names its package.
fn tool(name: &str, package: &str) -> Result<Command, Failure> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|directory| directory.join(name).exists()) {
        return Ok(Command::new(name));
    }
    let found = vec![format!("{name} is not installed (apt-get install {package})")];
    Err(Failure::Problems { task: "package", found })
}

fn make_dir(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|error| Failure::File { path: path.to_owned(), error })
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    if let Some(directory) = path.parent() {
        make_dir(directory)?;
    }
    std::fs::write(path, bytes).map_err(|error| Failure::File { path: path.to_owned(), error })
}

/// Creates an empty directory, after removing an existing one.
fn fresh_dir(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        std::fs::remove_dir_all(path).map_err(|error| Failure::File { path: path.to_owned(), error })?;
    }
    make_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_package_kinds_are_built_unless_some_are_named() {
        let all = parse(&[]).expect("no argument is all");
        assert!(all.deb && all.rpm && all.image && all.revision == 1);
        let one = parse(&["deb", "--revision", "2", "--binary", "b"]).expect("valid");
        assert!(one.deb && !one.rpm && !one.image && one.revision == 2);
        assert_eq!(one.program, binary::Source::Given("b".into()));
        for wrong in [&["tar"][..], &["--revision", "0"], &["--revision"], &["--out"]] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn the_version_is_taken_from_the_changelog() {
        let version = version().expect("Cargo.toml has one");
        let notes = notes::of_version(&workspace::read("CHANGELOG.md").expect("it is there"), &version);
        assert!(notes.is_ok_and(|notes| notes.contains("* ")), "{version}");
    }
}

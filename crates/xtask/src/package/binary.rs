//! Makes the program of a package: a release or PGO build with default features and the paths of a package, with separate symbols.
//!
//! ```text
//! cargo rustc --release --> ringroad --objcopy--> ringroad (stripped) + ringroad.debug, with the same build ID
//! ```

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tool;
use crate::{Failure, pgo, workspace};

/// Paths of a package that correspond to options of nginx's configure script; `paths.rs` of crate `ringroad` reads them.
const PATHS: [(&str, &str); 4] = [
    ("RINGROAD_PREFIX", "/var/lib/ringroad/"),
    ("RINGROAD_CONF_PATH", "/etc/ringroad/ringroad.conf"),
    ("RINGROAD_PID_PATH", "/run/ringroad.pid"),
    ("RINGROAD_ERROR_LOG_PATH", "/var/log/ringroad/error.log"),
];

/// Libraries that the program may need, and their Debian packages.
const LIBRARIES: [(&str, &str); 4] =
    [("libc.so.6", "libc6"), ("libm.so.6", "libc6"), ("ld-linux", "libc6"), ("libgcc_s.so.1", "libgcc-s1")];

/// The source of the program.
#[derive(Debug, PartialEq)]
pub(super) enum Source {
    /// A release build.
    Release,
    /// A PGO build.
    Pgo,
    /// An existing program that was built with the variables of [`PATHS`].
    Given(PathBuf),
}

/// The program and its properties.
#[derive(Debug)]
pub(super) struct Program {
    /// Path of the stripped program.
    pub(super) stripped: PathBuf,
    /// Path of the file with the symbols.
    pub(super) symbols: PathBuf,
    /// The build ID of both files, in hexadecimal digits.
    pub(super) build_id: String,
    /// The oldest supported version of the C library, such as `2.34`.
    pub(super) libc: String,
    /// Names of the required libraries.
    pub(super) libraries: Vec<String>,
}

/// Builds the program, or uses an existing one.
pub(super) fn make(source: &Source, work: &Path) -> Result<Program, Failure> {
    let built = match source {
        Source::Given(path) => path.clone(),
        Source::Release => build()?,
        Source::Pgo => pgo::build(&for_a_package)?,
    };
    check_paths(&built)?;
    let (stripped, symbols) = (work.join("ringroad"), work.join("ringroad.debug"));
    let objcopy = || tool("objcopy", "binutils");
    workspace::run(
        objcopy()?.args(["--only-keep-debug", "--compress-debug-sections"]).arg(&built).arg(&symbols),
    )?;
    workspace::run(
        objcopy()?.args(["--strip-unneeded", "--remove-section=.comment"]).arg(&built).arg(&stripped),
    )?;
    let dynamic = workspace::output(tool("readelf", "binutils")?.args(["-d", "-n"]).arg(&stripped))?;
    let bytes = std::fs::read(&stripped).map_err(|error| Failure::File { path: stripped.clone(), error })?;
    let build_id =
        build_id(&dynamic).ok_or_else(|| problem("the program has no build ID: link it with --build-id"))?;
    let libraries = libraries(&dynamic);
    if let Some(unknown) = libraries.iter().find(|name| package_of(name).is_none()) {
        return Err(problem(&format!(
            "the program needs {unknown}, for which no package is known: build without pkg-config's libraries"
        )));
    }
    Ok(Program { libc: newest_libc(&bytes), stripped, symbols, build_id, libraries })
}

/// Adds the flags and variables of a package to a build. The build ID connects the program with its symbols; rustc does not set
/// it, and linkers have different defaults. PCRE2 is linked statically, like all other libraries of crates.
fn for_a_package(cargo: &mut Command) {
    cargo.args(["--", "-Clink-arg=-Wl,--build-id=sha1"]).envs(PATHS).env("PCRE2_SYS_STATIC", "1");
    without_directories(cargo);
}

/// Replaces the directories of the sources in messages of panics and in symbols, so that builds in other directories are the same.
fn without_directories(cargo: &mut Command) {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let root = Some(workspace::root());
    // The last matching prefix applies, so a target directory within the sources is named last.
    let replaced = [(home, "/cargo"), (root, "/ringroad"), (target, "/target")];
    let replaced = replaced.iter().filter_map(|(path, name)| Some((path.as_ref()?.display(), name)));
    let (mut rust, mut c) = (String::new(), String::new());
    for (path, name) in replaced {
        let _ = write!(rust, " --remap-path-prefix={path}={name}");
        let _ = write!(c, " -ffile-prefix-map={path}={name}");
    }
    for (variable, flags) in [("RUSTFLAGS", rust), ("CFLAGS", c.clone()), ("CXXFLAGS", c)] {
        let set = cargo.get_envs().find(|(name, _)| *name == variable).and_then(|(_, value)| value);
        let set = set.map(ToOwned::to_owned).or_else(|| std::env::var_os(variable)).unwrap_or_default();
        cargo.env(variable, format!("{}{flags}", set.display()).trim_start());
    }
}

/// Makes a release build.
fn build() -> Result<PathBuf, Failure> {
    let mut cargo = workspace::cargo(&["rustc", "--release", "--package", "ringroad", "--bin", "ringroad"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    for_a_package(&mut cargo);
    let messages = workspace::output(&mut cargo)?;
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executable.ok_or_else(|| problem("cargo did not name the program that it built"))
}

/// Checks the paths of a program. A program with other paths would not find the configuration of the package.
fn check_paths(program: &Path) -> Result<(), Failure> {
    let output = Command::new(program)
        .arg("-V")
        .output()
        .map_err(|error| Failure::Start { command: program.display().to_string(), error })?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains(&format!("--conf-path={} ", PATHS[1].1)) && text.contains(PATHS[2].1) {
        return Ok(());
    }
    let wanted: Vec<String> = PATHS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Err(problem(&format!(
        "{} was not built for a package: build it with {}",
        program.display(),
        wanted.join(" ")
    )))
}

/// Returns Debian's package of a library.
pub(super) fn package_of(library: &str) -> Option<&'static str> {
    LIBRARIES.iter().find(|(name, _)| library.starts_with(name)).map(|(_, package)| *package)
}

fn problem(text: &str) -> Failure {
    Failure::Problems { task: "package", found: vec![text.to_owned()] }
}

/// Parses the output of `readelf -n`.
fn build_id(text: &str) -> Option<String> {
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))?;
    Some(id.trim().to_owned())
}

/// Parses the output of `readelf -d`: `(NEEDED) Shared library: [libc.so.6]`.
fn libraries(text: &str) -> Vec<String> {
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    needed.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

/// Returns the newest version of the C library among the symbol versions that the program needs.
fn newest_libc(bytes: &[u8]) -> String {
    const MARK: &[u8] = b"GLIBC_2.";
    let minor = |at: usize| {
        let digits = bytes[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0_u32, |number, digit| number.saturating_mul(10) + u32::from(digit - b'0'))
    };
    let places = bytes.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    format!("2.{}", places.map(|(at, _)| minor(at)).max().unwrap_or(17))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_readelf_is_parsed() {
        let text = "  0x01 (NEEDED)  Shared library: [libgcc_s.so.1]\n 0x01 (NEEDED)  Shared library: [libc.so.6]\n\
            0x0e (SONAME) Library soname: [x]\n    Build ID: 00ff\n";
        assert_eq!(libraries(text), ["libgcc_s.so.1", "libc.so.6"]);
        assert_eq!(build_id(text).as_deref(), Some("00ff"));
        assert_eq!(package_of("ld-linux-x86-64.so.2"), Some("libc6"));
        assert_eq!(package_of("libpcre2-8.so.0"), None);
    }

    #[test]
    fn the_newest_symbol_determines_the_required_c_library() {
        assert_eq!(newest_libc(b"..GLIBC_2.17\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_2."), "2.34");
        assert_eq!(newest_libc(b""), "2.17");
    }
}

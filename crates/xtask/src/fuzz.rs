//! `cargo xtask fuzz`: builds the fuzz targets of `fuzz/` and runs them with a stable compiler.
//!
//! The targets are a separate workspace, so that libFuzzer is not a dependency of an ordinary build. Coverage-guided
//! runs need a nightly compiler and are described in `fuzz/README.md`.

use crate::{Failure, workspace};

/// Path of the manifest of the fuzz targets.
pub(crate) const MANIFEST: &str = "fuzz/Cargo.toml";

/// Duration of the smoke test in seconds, for all targets together: enough for about 100 000 inputs each.
const SMOKE_SECONDS: &str = "60";

/// Number of smoke-test sessions between Ringroad's HTTP/2 and the crate h2: they take less than a second, and a bug of
/// either end shows within a few hundred.
const SMOKE_SESSIONS: &str = "2000";

/// Runs the tests of the runner, then every target over its corpus and random mutations of it, and sessions with the
/// crate h2.
pub(crate) fn smoke() -> Result<(), Failure> {
    workspace::run(&mut workspace::cargo(&[
        "test",
        "--quiet",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--test",
        "runner",
    ]))?;
    run(&["--seconds", SMOKE_SECONDS])?;
    peers(&["--sessions", SMOKE_SESSIONS])
}

/// Runs sessions between Ringroad's HTTP/2 and the crate h2, with arguments of `ringroad-peers`: `--sessions N`,
/// `--seed N`.
pub(crate) fn peers(args: &[&str]) -> Result<(), Failure> {
    let package = ["-p", "ringroad-peers", "--bin", "ringroad-peers"];
    let mut command = workspace::cargo(&["run", "--quiet", "--locked", "--manifest-path", MANIFEST]);
    workspace::run(command.args(package).arg("--").args(args))
}

/// Runs the targets of crate `tls`, which the gate omits because their library takes minutes to build.
pub(crate) fn tls(args: &[&str]) -> Result<(), Failure> {
    let package = ["-p", "ringroad-fuzz-tls", "--bin", "ringroad-fuzz-tls"];
    let mut command = workspace::cargo(&["run", "--quiet", "--locked", "--manifest-path", MANIFEST]);
    workspace::run(command.args(package).arg("--").args(args).env("RUST_BACKTRACE", "0"))
}

/// Runs the targets with arguments of the runner: `--seconds N`, `--seed N`, `--target NAME`.
pub(crate) fn run(args: &[&str]) -> Result<(), Failure> {
    let mut command =
        workspace::cargo(&["run", "--quiet", "--locked", "--manifest-path", MANIFEST, "--bin", "smoke"]);
    workspace::run(command.arg("--").args(args).env("RUST_BACKTRACE", "0"))
}

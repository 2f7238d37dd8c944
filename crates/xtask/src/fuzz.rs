//! `cargo xtask fuzz`: builds the fuzz targets of `fuzz/` and runs them with a stable compiler.
//!
//! The targets are a separate workspace, so that libFuzzer is no dependency of an ordinary build. Coverage-guided runs
//! need a nightly compiler and are described in `fuzz/README.md`.

use crate::{Failure, workspace};

/// The manifest of the fuzz targets.
const MANIFEST: &str = "fuzz/Cargo.toml";

/// How long the smoke test takes, in seconds, for all targets together: enough for some 100 000 inputs each.
const SMOKE_SECONDS: &str = "60";

/// The tests of the runner, then every target over its corpus and random changes of it.
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
    run(&["--seconds", SMOKE_SECONDS])
}

/// Runs the targets with arguments of the runner: `--seconds N`, `--seed N`, `--target NAME`.
pub(crate) fn run(args: &[&str]) -> Result<(), Failure> {
    let mut command =
        workspace::cargo(&["run", "--quiet", "--locked", "--manifest-path", MANIFEST, "--bin", "smoke"]);
    workspace::run(command.arg("--").args(args).env("RUST_BACKTRACE", "0"))
}

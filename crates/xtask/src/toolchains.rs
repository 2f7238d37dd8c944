//! `cargo xtask toolchains`: compiles the product with the oldest compiler that the manifest promises and for ARM, and the pure
//! crates for a target without an operating system.
//!
//! The first check also covers a build without the feature `bench`. If the oldest compiler is not installed, the check
//! reports this and uses the current one; if a target is not installed, its check reports this and passes.
//! `.ci/tools` installs both with rustup, if available.

use std::process::{Command, Stdio};

use crate::{Failure, workspace};

/// A target without files, sockets, threads or a clock: a crate that compiles for it depends on none of them.
const BARE_TARGET: &str = "wasm32-unknown-unknown";

/// Crates that perform no I/O and do not read the clock.
const PURE: [&str; 2] = ["http", "conf"];

/// The other architecture that the product supports.
const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

/// The C compiler for this architecture, which the cryptographic library needs.
const ARM_COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Runs all checks.
pub(crate) fn check() -> Result<(), Failure> {
    check_oldest()?;
    check_pure()?;
    check_arm()
}

/// Compiles the product with the version of `rust-version`, without generating code.
fn check_oldest() -> Result<(), Failure> {
    let version = rust_version(&workspace::read("Cargo.toml")?)?;
    let toolchain = format!("+{version}");
    let plain = ["check", "--locked", "--package", "ringroad", "--quiet"];
    if !rustc_answers(&[&toolchain, "--version"]) {
        println!(
            "Rust {version} is not installed, so the minimum version was not checked: rustup toolchain install {version}"
        );
        return workspace::run(&mut workspace::cargo(&plain));
    }
    println!("Rust {version}, the minimum version:");
    // A separate target directory: the tests must not wait for cargo's lock of theirs.
    workspace::run(rustup_cargo(&toolchain).args(plain).args(["--target-dir", "target/oldest"]))
}

/// Whether the standard library for a target is installed.
fn has_target(target: &str) -> bool {
    let library = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    library.is_ok_and(|output| {
        std::path::Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("").is_dir()
    })
}

/// Checks the product for ARM, without linking it.
fn check_arm() -> Result<(), Failure> {
    let mut version = Command::new(ARM_COMPILER);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !has_target(ARM_TARGET) || !version.status().is_ok_and(|status| status.success()) {
        println!(
            "{ARM_TARGET} or its C compiler is not installed, so this architecture was not checked: rustup target add {ARM_TARGET}; \
             apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
        );
        return Ok(());
    }
    println!("{ARM_TARGET}, for ringroad:");
    let mut command =
        workspace::cargo(&["check", "--locked", "--quiet", "--package", "ringroad", "--target", ARM_TARGET]);
    command.env("CC_aarch64_unknown_linux_gnu", ARM_COMPILER);
    workspace::run(&mut command)
}

/// Checks the pure crates for the bare target.
fn check_pure() -> Result<(), Failure> {
    if !has_target(BARE_TARGET) {
        println!(
            "{BARE_TARGET} is not installed, so the pure crates were not checked: rustup target add {BARE_TARGET}"
        );
        return Ok(());
    }
    println!("{BARE_TARGET}, for {}:", PURE.join(" and "));
    let mut command = workspace::cargo(&["check", "--locked", "--quiet", "--target", BARE_TARGET]);
    for name in PURE {
        command.args(["--package", name]);
    }
    workspace::run(&mut command)
}

/// Returns the cargo of another toolchain: the cargo that started this program supports only its own.
fn rustup_cargo(toolchain: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(toolchain).current_dir(workspace::root());
    // The outer cargo sets its compiler and toolchain, which the inner cargo would otherwise use too.
    for name in ["RUSTC", "RUSTC_WORKSPACE_WRAPPER", "RUSTDOC", "RUSTUP_TOOLCHAIN", "CARGO"] {
        command.env_remove(name);
    }
    command
}

fn rustc_answers(args: &[&str]) -> bool {
    let mut command = Command::new("rustc");
    command.args(args).env_remove("RUSTUP_TOOLCHAIN").stdout(Stdio::null()).stderr(Stdio::null());
    // Otherwise rustup would silently install missing components over the network.
    command.env("RUSTUP_AUTO_INSTALL", "0");
    command.status().is_ok_and(|status| status.success())
}

/// Returns the value of `rust-version` in the root manifest.
fn rust_version(manifest: &str) -> Result<String, Failure> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let missing = || Failure::Format { what: "Cargo.toml", detail: "no rust-version".to_owned() };
    Ok(line.ok_or_else(missing)?.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_manifest() {
        let text = workspace::read("Cargo.toml").expect("the root manifest");
        let version = rust_version(&text).expect("it names one");
        assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
        assert!(rust_version("[package]\n").is_err());
    }
}

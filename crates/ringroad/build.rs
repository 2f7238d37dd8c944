//! Passes the commit of a release build to `--version`. Other builds omit it, so that a new commit does not require linking.
//!
//! The environment variable `RINGROAD_COMMIT` takes precedence, for packages that are built from sources without git.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RINGROAD_COMMIT");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let named = std::env::var("RINGROAD_COMMIT").ok();
    let commit = named.or_else(|| is_release.then(commit).flatten()).unwrap_or_default();
    println!("cargo::rustc-env=RINGROAD_COMMIT={}", commit.trim());
}

/// Returns the commit of the working tree, if there is one.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Git appends a line to this file with each change of HEAD.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "--short=12", "HEAD"])
}

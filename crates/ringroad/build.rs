//! Gives `--version` the commit of a release build. Other builds do not ask, so that a commit alone links nothing anew.
//!
//! `RINGROAD_COMMIT` in the environment goes first: packages are built from sources without git.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RINGROAD_COMMIT");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let named = std::env::var("RINGROAD_COMMIT").ok();
    let commit = named.or_else(|| is_release.then(commit).flatten()).unwrap_or_default();
    println!("cargo::rustc-env=RINGROAD_COMMIT={}", commit.trim());
}

/// The commit of the working tree; nothing if there is none.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // It has a line for each change of the commit.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "--short=12", "HEAD"])
}

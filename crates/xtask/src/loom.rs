//! `cargo xtask loom`: runs the loom models of thread synchronisation, with every interleaving of their steps.
//!
//! loom replaces atomics and locks, so the crates are compiled again with `--cfg loom`, and optimised, because the
//! models execute millions of steps.

use crate::{Failure, workspace};

/// The crate and the test program of each model.
const MODELS: [(&str, &str); 3] = [("io", "loom_doorbell"), ("rt", "loom_mailbox"), ("rt", "loom_watch")];

/// Runs every model.
pub(crate) fn check() -> Result<(), Failure> {
    // One command: a command per model would compile the dependencies once for each set of features.
    let mut command = workspace::cargo(&["test", "--release"]);
    for (name, test) in MODELS {
        command.args(["--package", name, "--test", test]);
    }
    // Replaces settings of the release profile that slow down the build and matter only for the product.
    let quick = [
        ("RUSTFLAGS", "--cfg loom"),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ];
    workspace::run(command.envs(quick))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loom_model_exists_and_is_listed() {
        let files = workspace::files().expect("the repository is readable");
        let is_model = |path: &str| path.starts_with("crates/") && path.contains("/tests/loom_");
        let found: Vec<&str> =
            files.iter().map(|file| file.path.as_str()).filter(|path| is_model(path)).collect();
        let expected = MODELS.map(|(name, test)| format!("crates/{name}/tests/{test}.rs"));
        assert_eq!(found, expected);
    }
}

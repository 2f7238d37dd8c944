//! Checks files of `packaging/` with the tools that use them: systemd, logrotate, the shell.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::{TempDir, skip};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(packaging().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the output of a tool. If the tool is not installed, reports this and returns `None`.
fn run(tool: &str, package: &str, args: &[&str]) -> Option<Output> {
    match Command::new(tool).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            skip(format_args!("{tool} is not installed (apt-get install {package})"));
            None
        }
    }
}

#[track_caller]
fn assert_content(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", output.status);
}

#[test]
fn systemd_accepts_the_unit_and_rates_its_exposure_low() {
    let dir = TempDir::new("unit");
    // The program is not installed on the machine of the test.
    let unit = dir.write(
        "ringroad.service",
        text("systemd/ringroad.service").replace("/usr/sbin/ringroad", "/bin/true"),
    );
    let unit = unit.display().to_string();
    let Some(output) = run("systemd-analyze", "systemd", &["verify", "--man=no", &unit]) else { return };
    assert_content(&output);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let args = ["security", "--offline=true", "--threshold=30", "--no-pager", &unit];
    let output = run("systemd-analyze", "systemd", &args).expect("it ran a moment ago");
    assert_content(&output);
    let socket = packaging().join("systemd/ringroad.socket").display().to_string();
    // The service file must be in the same directory.
    std::fs::copy(&socket, dir.path().join("ringroad.socket")).expect("a file");
    let socket = dir.path().join("ringroad.socket").display().to_string();
    let output =
        run("systemd-analyze", "systemd", &["verify", "--man=no", &socket]).expect("it ran a moment ago");
    assert_content(&output);
}

#[test]
fn logrotate_accepts_its_file() {
    let dir = TempDir::new("logrotate");
    let state = dir.path().join("state").display().to_string();
    let conf = dir.write("ringroad", text("logrotate").replace("create 0640 www-data adm", "create 0640"));
    // logrotate only trusts files that only root can write.
    let conf = conf.display().to_string();
    if let Some(output) = run("logrotate", "logrotate", &["--debug", "--state", &state, &conf]) {
        assert_content(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("error:"), "{said}");
    }
}

#[test]
fn the_shell_parses_the_scripts() {
    for name in ["signal", "debian/postinst", "debian/prerm", "debian/postrm"] {
        let path = packaging().join(name).display().to_string();
        if let Some(output) = run("sh", "dash", &["-n", &path]) {
            assert_content(&output);
        }
    }
}

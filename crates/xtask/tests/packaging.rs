//! Checks files of `packaging/` with the tools that use them: systemd, AppArmor, logrotate, the shell.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
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
    assert_exposure(&unit, 27);
    // With the addition, the master is not root.
    dir.dir("ringroad.service.d");
    dir.write("ringroad.service.d/unprivileged.conf", text("systemd/unprivileged.conf"));
    assert_exposure(&unit, 19);
    let socket = packaging().join("systemd/ringroad.socket").display().to_string();
    // The service file must be in the same directory.
    std::fs::copy(&socket, dir.path().join("ringroad.socket")).expect("a file");
    let socket = dir.path().join("ringroad.socket").display().to_string();
    let output =
        run("systemd-analyze", "systemd", &["verify", "--man=no", &socket]).expect("it ran a moment ago");
    assert_content(&output);
}

/// Checks that `systemd-analyze security` rates the exposure of the unit not above this value, in tenths.
#[track_caller]
fn assert_exposure(unit: &str, tenths_max: u32) {
    let threshold = format!("--threshold={tenths_max}");
    let args = ["security", "--offline=true", &threshold, "--no-pager", unit];
    let output = run("systemd-analyze", "systemd", &args).expect("it ran a moment ago");
    assert_content(&output);
}

/// Returns the names of all system calls that the unit permits, by systemd's lists of groups.
fn calls_of_the_unit() -> Option<BTreeSet<String>> {
    let output = run("systemd-analyze", "systemd", &["syscall-filter", "--no-pager"])?;
    assert_content(&output);
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut group = "";
    for line in listed.lines() {
        if line.starts_with('@') {
            group = line.trim();
        } else if line.starts_with(' ') && !line.trim_start().starts_with('#') {
            groups.entry(group).or_default().insert(line.trim());
        }
    }
    fn add(groups: &BTreeMap<&str, BTreeSet<&str>>, name: &str, into: &mut BTreeSet<String>) {
        match groups.get(name) {
            Some(members) => members.iter().for_each(|member| add(groups, member, into)),
            None => {
                into.insert(name.to_owned());
            }
        }
    }
    let mut permitted = BTreeSet::new();
    for line in text("systemd/ringroad.service").lines() {
        let Some(names) = line.strip_prefix("SystemCallFilter=") else { continue };
        let mut named = BTreeSet::new();
        names.trim_start_matches('~').split(' ').for_each(|name| add(&groups, name, &mut named));
        permitted = if names.starts_with('~') { &permitted - &named } else { &permitted | &named };
    }
    Some(permitted)
}

/// Returns the names of all system calls that the seccomp profile of the image permits.
fn calls_of_the_image() -> BTreeSet<String> {
    let profile = text("image/seccomp.json");
    let (_, names) = profile.split_once("\"names\": [").expect("the list");
    let (names, _) = names.split_once(']').expect("its end");
    names.split(',').map(|name| name.trim().trim_matches('"').to_owned()).collect()
}

#[test]
fn the_unit_and_the_image_permit_the_same_calls() {
    let Some(unit) = calls_of_the_unit() else { return };
    let image = calls_of_the_image();
    let missing: Vec<&String> = image.difference(&unit).collect();
    assert!(missing.is_empty(), "not permitted by the unit: {missing:?}");
    for call in ["io_uring_setup", "landlock_restrict_self", "seccomp", "setgroups", "execve"] {
        assert!(image.contains(call), "{call}");
    }
    for call in
        ["ptrace", "mount", "keyctl", "bpf", "userfaultfd", "process_vm_readv", "setns", "perf_event_open"]
    {
        assert!(!image.contains(call) && !unit.contains(call), "{call}");
    }
}

/// Returns the names of the calls that crate `sandbox` permits: those of its lists, and those with conditions.
fn calls_of_the_sandbox() -> BTreeSet<String> {
    let source = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sandbox/src").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let lists = source("lists.rs");
    let (permitted, _) = lists.split_once("const REFUSED").expect("the list of refused calls is the last");
    let named = permitted.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named = named.filter_map(|word| word.strip_prefix("SYS_")).map(str::to_owned);
    let conditions = source("calls.rs");
    let with_conditions = conditions.split("libc::SYS_").skip(1);
    let end = |rest: &str| rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    named
        .filter(|name| !name.is_empty())
        .chain(with_conditions.map(|rest| rest[..end(rest)].to_owned()))
        .collect()
}

#[test]
fn the_unit_and_the_image_permit_what_the_sandbox_permits() {
    let sandbox = calls_of_the_sandbox();
    assert!(
        sandbox.len() > 100 && sandbox.contains("io_uring_enter") && sandbox.contains("openat2"),
        "{sandbox:?}"
    );
    let image = calls_of_the_image();
    let missing: Vec<&String> = sandbox.difference(&image).collect();
    assert!(missing.is_empty(), "add to packaging/image/seccomp.json: {missing:?}");
    if let Some(unit) = calls_of_the_unit() {
        let missing: Vec<&String> = sandbox.difference(&unit).collect();
        assert!(missing.is_empty(), "add to SystemCallFilter of the unit: {missing:?}");
    }
}

#[test]
fn apparmor_accepts_the_profile() {
    let profile = packaging().join("apparmor/usr.sbin.ringroad").display().to_string();
    let args = ["--skip-kernel-load", "--skip-cache", "--warn=all", &profile];
    let Some(output) = run("apparmor_parser", "apparmor", &args) else { return };
    assert_content(&output);
    // A profile that the parser accepts although it restricts nothing would be useless.
    let preprocessed =
        run("apparmor_parser", "apparmor", &["--preprocess", &profile]).expect("it ran a moment ago");
    let rules = String::from_utf8_lossy(&preprocessed.stdout).into_owned();
    for rule in ["capability setuid", "/etc/ringroad/** r", "/usr/sbin/ringroad mrix"] {
        assert!(rules.contains(rule), "{rule}");
    }
    assert!(!rules.contains("capability sys_admin"), "it is not needed");
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

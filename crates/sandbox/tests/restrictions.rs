//! Restricts processes of its own, and checks what they can still do.
//!
//! Each test executes this program again with the name of a case, because a restriction cannot be removed.

#![allow(clippy::unwrap_used, reason = "a failure of a test")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::{Calls, FileRules, RuleError, drop_privileges, empty_bounding_set, restrict_calls};
use testkit::TempDir;

/// The variable with the name of the case that a process runs.
const CASE: &str = "SANDBOX_TEST_CASE";

/// Executes this program for one case, in a folder, and checks that the case succeeds.
fn run(case: &str, folder: &Path) {
    let output = start(case, folder);
    assert!(output.status.success(), "{case}: {output:?}");
}

/// Executes this program for one case, in a folder.
fn start(case: &str, folder: &Path) -> Output {
    let program = std::env::current_exe().expect("the path of this program");
    Command::new(program)
        .args(["--exact", "case", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .current_dir(folder)
        .output()
        .expect("this program starts")
}

/// The main function of an executed process.
#[test]
fn case() {
    match std::env::var(CASE).as_deref() {
        Ok("files") => files(),
        Ok("many") => many(),
        Ok("ports") => ports(),
        Ok("probe") => probe(),
        Ok("calls") => calls(),
        Ok("signer") => signer(),
        Ok("spawn") => spawn(),
        Ok("privileges") => privileges(),
        Ok("descriptors") => descriptors(),
        Ok(other) => panic!("no case {other}"),
        Err(_) => {}
    }
}

/// Whether this kernel restricts files; a kernel without Landlock skips the case.
fn restricts(report: &sandbox::Report) -> bool {
    let supported = !report.lacks.iter().any(|name| name.starts_with("files"));
    if !supported {
        testkit::engines::skip(format_args!("{report}"));
    }
    supported
}

#[test]
fn files_outside_of_the_rules_are_refused() {
    let folder = TempDir::new("sandbox-files");
    for name in ["read", "write", "other"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("a"), "x").unwrap();
    }
    fs::write(folder.path().join("one"), "x").unwrap();
    run("files", folder.path());
}

fn files() {
    let mut rules = FileRules::new(None, Some(&BTreeSet::new())).expect("rules");
    for (path, write) in [("read", false), ("write", true), ("one", false)] {
        rules.permit(Path::new(path), write).unwrap();
    }
    let absent = rules.permit(Path::new("absent"), true);
    let report = rules.enforce().expect("a restriction");
    if !restricts(&report) {
        return;
    }
    assert!(matches!(absent, Err(RuleError::Path(error)) if error.kind() == ErrorKind::NotFound));
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    };
    assert_eq!(fs::read("read/a").unwrap(), b"x");
    assert_eq!(fs::read("one").unwrap(), b"x");
    assert_eq!(fs::read_dir("read").unwrap().count(), 1);
    refused(fs::write("read/a", "y"));
    refused(fs::write("read/b", "y"));
    refused(fs::remove_file("read/a"));
    refused(fs::read("other/a").map(drop));
    refused(fs::read_dir("other").map(drop));
    refused(fs::read("/etc/passwd").map(drop));
    fs::write("write/b", "y").unwrap();
    fs::create_dir("write/d").unwrap();
    // A move within the rules is permitted, and one out of them is not.
    fs::rename("write/b", "write/d/b").unwrap();
    refused(fs::rename("write/d/b", "read/b"));
    assert!(fs::hard_link("read/a", "write/link").is_err(), "a link would make the file writable");
    fs::remove_file("write/d/b").unwrap();
    refused(Command::new("/bin/true").status().map(drop));
    // A thread that is started later has the same restrictions.
    let thread = std::thread::spawn(|| File::open("other/a").map(drop));
    refused(thread.join().unwrap());
}

/// A process that was restricted before may have created a link where a rule is opened.
#[test]
fn a_rule_follows_no_symbolic_link() {
    let folder = TempDir::new("sandbox-links");
    let top = fs::canonicalize(folder.path()).unwrap();
    fs::create_dir_all(top.join("real/a")).unwrap();
    std::os::unix::fs::symlink("real", top.join("link")).unwrap();
    let mut rules = FileRules::new(None, None).unwrap();
    if rules.permit(&top.join("real/a"), true).unwrap().is_none() {
        return testkit::engines::skip("the kernel has no Landlock");
    }
    for path in ["link", "link/a"] {
        match rules.permit(&top.join(path), false) {
            Err(RuleError::Path(error)) => assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
}

/// A configuration may have more roots than the process may have open files.
#[test]
fn more_rules_than_descriptors_are_permitted() {
    run("many", TempDir::new("sandbox-many").path());
}

fn many() {
    let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    for name in &names {
        fs::create_dir(name).unwrap();
        fs::write(format!("{name}/a"), "x").unwrap();
    }
    let mut rules = FileRules::new(None, None).unwrap();
    let set_limit = |count| {
        let limit = Rlimit { current: Some(count), maximum: getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
    };
    // The process has less than 30 open files.
    set_limit(40);
    for name in &names {
        rules.permit(Path::new(name), false).unwrap();
    }
    // Without a free descriptor the list would be incomplete.
    set_limit(3);
    let full = rules.permit(Path::new("0"), false);
    set_limit(40);
    if !restricts(&rules.enforce().expect("a restriction")) {
        return;
    }
    assert!(matches!(full, Err(RuleError::Limit(_))), "{full:?}");
    assert!(names.iter().all(|name| fs::read(format!("{name}/a")).is_ok()));
}

/// A probe finds what the kernel supports, without restricting the process.
#[test]
fn a_probe_of_the_kernel_has_no_effect() {
    run("probe", TempDir::new("sandbox-probe").path());
}

fn probe() {
    let status = || {
        let text = fs::read_to_string("/proc/thread-self/status").unwrap();
        let names = ["NoNewPrivs:", "Seccomp:", "Seccomp_filters:"];
        text.lines().filter(|line| names.iter().any(|name| line.starts_with(name))).collect::<String>()
    };
    let before = status();
    let report = sandbox::Report::of_kernel();
    assert_eq!(status(), before);
    // Both are what a restriction finds.
    assert_eq!(restrict_calls(Calls::Worker).is_ok(), report.restricts_calls(), "{report}");
}

/// An error of a filter is no proof that the kernel lacks filters.
#[test]
fn an_invalid_filter_is_not_taken_for_a_kernel_without_filters() {
    let of = |errno| {
        let error = std::io::Error::from_raw_os_error(errno);
        sandbox::Error::Seccomp(seccompiler::Error::Seccomp(error))
    };
    let has_filters = sandbox::Report::of_kernel().restricts_calls();
    assert_eq!(of(libc::EINVAL).is_unsupported(), !has_filters);
    assert!(of(libc::ENOSYS).is_unsupported() && !of(libc::EPERM).is_unsupported());
}

#[test]
fn connections_to_other_ports_are_refused() {
    run("ports", TempDir::new("sandbox-ports").path());
}

fn ports() {
    let [permitted, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [permitted, other] = [&permitted, &other].map(|listener| listener.local_addr().unwrap());
    let ports = BTreeSet::from([permitted.port()]);
    let rules = FileRules::new(Some(&ports), Some(&BTreeSet::new())).expect("rules");
    let report = rules.enforce().expect("a restriction");
    if !restricts(&report) || report.lacks.iter().any(|name| name.starts_with("TCP")) {
        return;
    }
    TcpStream::connect(permitted).unwrap();
    assert_eq!(TcpStream::connect(other).unwrap_err().kind(), ErrorKind::PermissionDenied);
    // Port 0 is a port of the kernel's choice, as for a connection from a fixed address.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(TcpListener::bind(free).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn other_system_calls_fail_and_are_reported() {
    run("calls", TempDir::new("sandbox-calls").path());
}

fn calls() {
    // A thread that exists already is restricted too.
    let (go, gone) = std::sync::mpsc::channel();
    let earlier = std::thread::spawn(move || {
        gone.recv().unwrap();
        Command::new("/bin/true").exec()
    });
    let refused = restrict_calls(Calls::Worker).expect("a filter");
    assert!(refused.take().is_empty());
    go.send(()).unwrap();
    let error = earlier.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert_eq!(refused.take(), ["execve"]);
    assert!(refused.take().is_empty(), "each is reported once");
    assert_eq!(rustix::process::setpriority_process(None, 0), Err(rustix::io::Errno::PERM));
    assert_eq!(refused.take(), ["setpriority"]);
    assert!(rustix::thread::set_no_new_privs(true).is_err());
    assert!(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).is_err());
    assert_eq!(refused.take(), ["prctl"]);
    // What a worker does at run time.
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    assert!(std::panic::catch_unwind(|| panic!("expected")).is_err());
    UdpSocket::bind("127.0.0.1:0").unwrap();
    UnixStream::pair().unwrap();
    let addresses = std::net::ToSocketAddrs::to_socket_addrs("localhost:80");
    assert!(addresses.is_ok(), "{addresses:?}");
    let memory = vec![1_u8; 64 << 20];
    assert_eq!(memory.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 64 << 20);
    drop(memory);
    fs::write("a", "x").unwrap();
    fs::rename("a", "b").unwrap();
    fs::remove_file("b").unwrap();
    assert!(std::thread::available_parallelism().is_ok());
    assert_eq!(refused.take(), Vec::<String>::new());
}

#[test]
fn a_process_that_creates_a_process_is_killed() {
    let output = start("spawn", TempDir::new("sandbox-spawn").path());
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
}

fn spawn() {
    let _refused = restrict_calls(Calls::Worker).expect("a filter");
    // The C library blocks all signals before it creates the process.
    let _ = Command::new("/bin/true").status();
}

#[test]
fn a_signer_opens_no_files_and_no_sockets() {
    run("signer", TempDir::new("sandbox-signer").path());
}

fn signer() {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let refused = restrict_calls(Calls::Signer).expect("a filter");
    std::io::Write::write_all(&mut near, b"x").unwrap();
    std::io::Read::read_exact(&mut far, &mut [0]).unwrap();
    assert!(File::open("/dev/null").is_err());
    assert!(UdpSocket::bind("127.0.0.1:0").is_err());
    let names = refused.take();
    assert!(names.contains(&"openat".to_owned()) && names.contains(&"socket".to_owned()), "{names:?}");
}

#[test]
fn capabilities_are_dropped() {
    run("privileges", TempDir::new("sandbox-privileges").path());
}

fn privileges() {
    let is_emptied = empty_bounding_set().expect("a set");
    drop_privileges(false, false).expect("fewer privileges");
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of the kernel");
        line.trim_start_matches(':').trim().to_owned()
    };
    assert_eq!(value("NoNewPrivs"), "1");
    assert_eq!(value("CapAmb"), "0000000000000000");
    assert_eq!(value("CapInh"), "0000000000000000");
    let root = rustix::process::geteuid().is_root();
    // Root keeps the capabilities 0 to 4, for files of others, and 14, for registered memory.
    let permitted = u64::from_str_radix(&value("CapPrm"), 16).unwrap();
    assert_eq!(permitted & !if root { 0x1f | 1 << 14 } else { 0 }, 0);
    if is_emptied {
        assert_eq!(value("CapBnd"), "0000000000000000");
    }
    let behavior = rustix::process::dumpable_behavior().unwrap();
    assert_eq!(behavior, rustix::process::DumpableBehavior::NotDumpable);
}

#[test]
fn inherited_descriptors_are_closed() {
    let folder = TempDir::new("sandbox-descriptors");
    fs::write(folder.path().join("leaked"), "x").unwrap();
    run("descriptors", folder.path());
}

fn descriptors() {
    // Descriptors of this test program may be open too, so only the one of the case is looked at.
    let leaked = std::os::fd::IntoRawFd::into_raw_fd(File::open("leaked").unwrap());
    let closed = sandbox::close_unexpected();
    assert!(closed.iter().any(|name| name.ends_with("/leaked")), "{closed:?}");
    assert!(rustix::fs::readlink(format!("/proc/self/fd/{leaked}"), Vec::new()).is_err());
}

//! Tests of the small file system; they require root.

use std::fs;
use std::io::ErrorKind;

use testkit::Filesystem;

#[test]
fn a_file_system_fills_up_turns_read_only_and_is_removed() {
    let Some(filesystem) = Filesystem::new(8) else { return };
    let file = filesystem.path().join("file");
    let free = filesystem.free_bytes();
    assert!((1 << 20..8 << 20).contains(&free), "{free}");
    filesystem.fill(64 * 1024);
    assert!(filesystem.free_bytes() <= 64 * 1024, "{}", filesystem.free_bytes());
    let error = fs::write(&file, vec![1; 1 << 20]).expect_err("it does not fit");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    filesystem.unfill();
    fs::write(&file, vec![1; 1 << 20]).expect("it fits again");
    filesystem.remount(true).expect("nothing is open");
    let error = fs::write(&file, b"x").expect_err("it is read-only");
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    filesystem.remount(false).expect("nothing is open");
    fs::write(&file, b"x").expect("it is writable again");
    let point = filesystem.path().to_owned();
    let mounted = || {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs is mounted");
        mounts.contains(&point.display().to_string())
    };
    assert!(mounted());
    drop(filesystem);
    assert!(!mounted() && !point.exists());
}

/// The environment variable that distinguishes the test run to be killed from all other runs.
const DIES: &str = "TESTKIT_DIES";

/// Not a test: the next test starts and kills it.
#[test]
fn helper_test_that_is_killed() {
    if std::env::var_os(DIES).is_none() {
        return;
    }
    let filesystem = Filesystem::new(8);
    println!(
        "point: {}",
        filesystem.map_or(String::new(), |one| {
            let point = one.path().display().to_string();
            std::mem::forget(one);
            point
        })
    );
    std::process::abort();
}

#[test]
fn a_killed_test_leaves_no_mount() {
    let program = std::env::current_exe().expect("it runs");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", "helper_test_that_is_killed", "--nocapture"]).env(DIES, "yes");
    let output = command.output().expect("it can be run again").stdout;
    let output = String::from_utf8_lossy(&output).into_owned();
    let point = output.lines().find_map(|line| Some(line.split_once("point: ")?.1)).expect(&output);
    // Empty if the killed test was skipped; it has reported the reason.
    let folder = std::path::Path::new(point).parent().filter(|_| !point.is_empty());
    let Some(folder) = folder else { return };
    let gone = || (!folder.exists()).then_some(());
    testkit::wait::until("the guard's work", testkit::Deadline::default(), gone).expect("it unmounts");
}

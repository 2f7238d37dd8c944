//! A minimal Debian in a directory, in which packages are installed while requests are sent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use testkit::{Client, Deadline, ListenAddr, TempDir, skip, wait};

/// A minimal Debian in a directory.
pub(crate) struct Chroot {
    dir: TempDir,
}

impl Chroot {
    /// Creates the chroot, or reports why this is impossible. `RINGROAD_DEBIAN` names a directory to copy, for a machine without
    /// a network.
    pub(crate) fn make() -> Option<Chroot> {
        let dir = TempDir::new("chroot");
        let mut command = match std::env::var_os("RINGROAD_DEBIAN") {
            Some(path) => {
                let mut copy = Command::new("cp");
                copy.args(["-a", "--"]).arg(Path::new(&path).join(".")).arg(dir.path());
                copy
            }
            None => {
                let mut debootstrap = Command::new("debootstrap");
                debootstrap.args(["--variant=minbase", "bookworm"]).arg(dir.path());
                debootstrap
            }
        };
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                skip(format_args!("debootstrap: {}", String::from_utf8_lossy(&output.stdout)));
                return None;
            }
            Err(error) => {
                skip(format_args!("debootstrap: {error} (apt-get install debootstrap)"));
                return None;
            }
        }
        let chroot = Chroot { dir };
        run(Command::new("mount").args(["-t", "proc", "proc"]).arg(chroot.path("proc")));
        Some(chroot)
    }

    /// Returns the path outside of the chroot.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Runs a command in the chroot. Returns its output.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> String {
        run(Command::new("chroot").arg(self.dir.path()).args(args).env("DEBIAN_FRONTEND", "noninteractive"))
    }

    /// Returns the process ID of the master from the pid file of the package's configuration.
    pub(crate) fn pid(&self) -> Option<i32> {
        std::fs::read_to_string(self.path("run/ringroad.pid")).ok()?.trim().parse().ok()
    }

    /// Installs a package from outside of the chroot.
    pub(crate) fn install(&self, package: &Path) -> String {
        testkit::copy(package, self.path("tmp/ringroad.deb")).expect("a file");
        self.run(&["dpkg", "-i", "/tmp/ringroad.deb"])
    }
}

impl Drop for Chroot {
    fn drop(&mut self) {
        let signal = self.path("usr/libexec/ringroad/signal");
        if signal.exists() {
            let _ = Command::new("chroot")
                .arg(self.dir.path())
                .args(["/usr/libexec/ringroad/signal", "TERM"])
                .status();
        }
        let _ = Command::new("umount").arg("--lazy").arg(self.path("proc")).status();
    }
}

/// Runs a command. Returns the output of both streams.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said.into_owned()
}

/// Makes the packages. Returns the path of the server's Debian package with this revision.
pub(crate) fn make_package(out: &Path, kinds: &[&str], revision: &str) -> PathBuf {
    make_named(out, kinds, revision, ".deb")
}

/// Makes the packages. Returns the path with this ending. `RINGROAD_PACKAGES` names a directory in which packages are made only
/// once.
pub(crate) fn make_named(out: &Path, kinds: &[&str], revision: &str, ending: &str) -> PathBuf {
    let kept = std::env::var_os("RINGROAD_PACKAGES").map(PathBuf::from);
    let out = kept.as_deref().unwrap_or(out);
    let is_it = |name: &str| {
        let of_revision =
            name.contains(&format!("0-{revision}_")) || name.contains(&format!("0-{revision}."));
        of_revision && name.ends_with(ending) && !name.contains("dbgsym")
    };
    let there = || std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = || there().find(|path| is_it(&path.file_name().unwrap_or_default().to_string_lossy()));
    if let Some(made) = kept.as_ref().and_then(|_| found()) {
        return made;
    }
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.arg("package").args(kinds).args(["--revision", revision]).arg("--out").arg(out);
    if let Some(binary) = std::env::var_os("RINGROAD_PACKAGE_BINARY") {
        xtask.arg("--binary").arg(binary);
    }
    let said = run(&mut xtask);
    found().unwrap_or_else(|| panic!("{said}"))
}

/// Sends requests continuously while `action` runs, each on a new connection. Returns the number of requests; none may fail.
pub(crate) fn under_load(address: &ListenAddr, action: impl FnOnce()) -> usize {
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let response = Client::connect(address).get("/");
                    assert_eq!(response.status, 200);
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // The destructor of `_end` also stops the clients after a panic; otherwise they would never end.
        let _end = End(&done);
        action();
        let enough = asked.load(Ordering::SeqCst) + 100;
        let more = wait::until("responses", Deadline::default(), || {
            (asked.load(Ordering::SeqCst) >= enough).then_some(())
        });
        more.unwrap_or_else(|late| panic!("{late}"));
    });
    asked.into_inner()
}

/// Stops the clients when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether the test runs as root. The command `id` avoids a dependency for one system call.
pub(crate) fn is_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

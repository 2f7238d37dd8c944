//! The service of the packages under systemd, which runs in namespaces over the files of the machine: the manager applies the filters of
//! system calls, the mounts and the users of the unit, which no other test does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::control::BINARY;
use testkit::{Deadline, TempDir, skip, wait};

/// Maximum time for all starts and stops of the service.
const TIME: Duration = Duration::from_secs(60);

/// Prepares the root directory, a layer over that of the machine, and executes systemd there. The argument is a directory.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
root=$1/root
mount -t overlay overlay -o lowerdir=/,upperdir=$1/up,workdir=$1/work $root
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount -t tmpfs tmpfs $root/run
mount -t tmpfs tmpfs $root/tmp
mount -t tmpfs -o mode=755 tmpfs $root/dev
mkdir $root/dev/shm $root/dev/pts $root/dev/mqueue $root/dev/hugepages
mount -t devpts devpts $root/dev/pts
for device in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0'; do
    set -- $device
    mknod -m 666 $root/dev/$1 c $2 $3
done
ln -s /proc/self/fd $root/dev/fd
ln -s pts/ptmx $root/dev/ptmx
mount -t tmpfs -o mode=755 tmpfs $root/sys/fs/cgroup
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
else
    mkdir $root/sys/fs/cgroup/systemd $root/sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 $root/sys/fs/cgroup/unified
fi
# No service of the machine is started.
rm -rf $root/lib/systemd/system/*.wants $root/etc/systemd/system/*.wants
cd $root
mkdir -p old
pivot_root . old
umount -l /old
export container=test
exec /lib/systemd/systemd --system --show-status=false --unit=ringroad-test.service </dev/null >/dev/null 2>&1
"#;

/// Runs below systemd; the test reads its output.
const REQUESTS: &str = r#"
exec > /var/ringroad-test 2>&1
ip link set lo up
serves() {
    for attempt in $(seq 100); do
        [ "$(systemctl is-active ringroad)" = active ] && break
        sleep 0.1
    done
    echo "$1 $(systemctl is-active ringroad) $(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1/)"
    for process in $(pgrep -f 'ringroad: worker process'); do
        echo "$1 worker $(grep Seccomp: /proc/$process/status | cut -f2) $(grep CapEff: /proc/$process/status | cut -f2)"
    done
}
systemctl start ringroad; serves start
systemctl reload ringroad; serves reload
systemctl stop ringroad; echo "stop $(systemctl is-active ringroad)"
mkdir -p /etc/systemd/system/ringroad.service.d
cp /opt/unprivileged.conf /etc/systemd/system/ringroad.service.d/
systemctl daemon-reload
systemctl start ringroad; serves unprivileged
systemctl reload ringroad; serves unprivileged-reload
systemctl stop ringroad; echo "unprivileged-stop $(systemctl is-active ringroad)"
cat /var/log/ringroad/error.log
echo end
"#;

/// Kills the first process of the namespace, and with it all others.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// Installs the program and the files of the packages below a directory.
fn install(up: &Path) {
    let examples = packaging().join("../examples");
    let files = [
        (PathBuf::from(BINARY), "usr/sbin/ringroad"),
        (packaging().join("systemd/ringroad.service"), "usr/lib/systemd/system/ringroad.service"),
        (packaging().join("systemd/unprivileged.conf"), "opt/unprivileged.conf"),
        (packaging().join("etc/default/ringroad"), "etc/default/ringroad"),
        (packaging().join("etc/ringroad.conf"), "etc/ringroad/ringroad.conf"),
        (packaging().join("etc/sites-available/default"), "etc/ringroad/sites-enabled/default"),
        (packaging().join("html/index.html"), "usr/share/ringroad/html/index.html"),
        (examples.join("mime.types"), "etc/ringroad/mime.types"),
    ];
    for (from, to) in files {
        let to = up.join(to);
        fs::create_dir_all(to.parent().expect("a directory")).expect("our directory");
        testkit::copy(from, to).expect("a file of the repository");
    }
    for directory in ["etc/ringroad/conf.d", "var/log/ringroad", "var/cache/ringroad", "var/lib/ringroad"] {
        fs::create_dir_all(up.join(directory)).expect("our directory");
    }
}

#[test]
#[ignore = "needs root, systemd, curl and iproute2, and mounts file systems in namespaces"]
fn the_service_of_the_packages_serves_below_systemd() {
    let is_installed = |path: &str| Path::new(path).exists();
    if !rustix::process::geteuid().is_root()
        || !["/lib/systemd/systemd", "/usr/bin/curl"].iter().all(|path| is_installed(path))
    {
        return skip("needs root, systemd and curl");
    }
    let dir = TempDir::new("units");
    for name in ["root", "work"] {
        dir.dir(name);
    }
    let up = dir.dir("up");
    install(&up);
    let service =
        "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/bash /opt/requests.sh\n";
    dir.write("up/etc/systemd/system/ringroad-test.service", service);
    dir.write("up/opt/requests.sh", REQUESTS);
    let boot = dir.write("boot.sh", BOOT);
    let mut command = Command::new("unshare");
    command.args(["--kill-child", "-m", "-p", "-u", "-i", "-C", "-n", "--fork", "bash"]);
    command.arg(boot).arg(dir.path()).stdin(Stdio::null());
    let _running = Running(command.spawn().expect("util-linux is installed"));
    let output =
        || fs::read_to_string(up.join("var/ringroad-test")).ok().filter(|text| text.ends_with("end\n"));
    let text = wait::until("the end of the requests", Deadline::after(TIME), output).unwrap_or_else(|late| {
        panic!("{late}: {:?}", fs::read_to_string(up.join("var/ringroad-test")));
    });
    for line in [
        "start active 200",
        "start worker 2 0000000000000000",
        "reload active 200",
        "stop inactive",
        "unprivileged active 200",
        "unprivileged worker 2 0000000000000000",
        "unprivileged-reload active 200",
        "unprivileged-stop inactive",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("[alert]") && !text.contains("[emerg]"), "{text}");
}

//! Installs the RPM package in a Debian chroot, with Debian's rpm outside of it. The dependencies (logrotate, shadow-utils) are
//! not RPM packages there, so they are not checked. No package manager that uses rpm is tested.

use std::path::Path;
use std::process::Command;

use testkit::ports::free_port;
use testkit::{Client, Deadline, ListenAddr, TempDir, skip, wait};

use super::chroot::{Chroot, is_root, make_named, run, under_load};

#[test]
#[ignore = "needs root, debootstrap, rpm and a release build"]
fn the_rpm_installs_upgrades_under_load_and_uninstalls() {
    if !is_root() {
        return skip("chroot needs root");
    }
    if Command::new("rpm").arg("--version").output().is_err() {
        return skip("rpm is not installed (apt-get install rpm)");
    }
    let out = TempDir::new("packages");
    let first = make_named(out.path(), &["rpm"], "1", ".rpm");
    let second = make_named(out.path(), &["rpm"], "2", ".rpm");
    let Some(chroot) = Chroot::make() else { return };
    let rpm = |args: &[&str], package: Option<&Path>| {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(chroot.path("")).args(["--dbpath", "/var/lib/rpm", "--nodeps"]).args(args);
        run(command.args(package))
    };

    println!("installed: {}", rpm(&["-i"], Some(&first)));
    assert!(chroot.run(&["id", "ringroad"]).contains("ringroad"));
    let owner = |path: &str| chroot.run(&["stat", "-c", "%U %a", path]).trim().to_owned();
    for path in ["/var/cache/ringroad", "/var/log/ringroad", "/usr/sbin/ringroad"] {
        assert_eq!(owner(path), "root 755", "{path}");
    }
    chroot.run(&["ringroad", "-t"]);
    // Port 80 may be in use outside of the chroot.
    let address = ListenAddr::Tcp(([127, 0, 0, 1], free_port()).into());
    std::fs::remove_file(chroot.path("etc/ringroad/sites-enabled/default")).expect("a link");
    let site = format!("server {{ listen {address}; root /usr/share/ringroad/html; }}\n");
    testkit::write(chroot.path("etc/ringroad/sites-enabled/own"), site).expect("a file");
    let conf = chroot.path("etc/ringroad/ringroad.conf");
    let text = std::fs::read_to_string(&conf).expect("a file") + "# changed\n";
    testkit::write(&conf, &text).expect("a file");
    chroot.run(&["/usr/sbin/ringroad"]);
    let started = chroot.pid().expect("a pid file");
    assert!(Client::connect(&address).get("/").text().contains("Ringroad is installed"));

    let requests = under_load(&address, || {
        println!("upgraded: {}", rpm(&["-U"], Some(&second)));
        assert_ne!(chroot.pid().expect("a pid file"), started, "the new version serves");
    });
    println!("{requests} requests during the upgrade, none failed");
    assert_eq!(std::fs::read_to_string(&conf).expect("a file"), text, "a changed file stays");
    assert!(!chroot.path("etc/ringroad/sites-enabled/default").exists(), "a removed link does not come back");
    // Only the changed files differ from the package.
    let verified = Command::new("rpm")
        .arg("--root")
        .arg(chroot.path(""))
        .args(["--dbpath", "/var/lib/rpm", "-V", "--nodeps", "--nomtime", "ringroad"])
        .output()
        .expect("rpm was there a moment ago");
    let differences = String::from_utf8_lossy(&verified.stdout);
    assert!(differences.lines().all(|line| line.ends_with("c /etc/ringroad/ringroad.conf")), "{differences}");
    let last = chroot.pid().expect("a pid file");

    println!("removed: {}", rpm(&["-e", "ringroad"], None));
    let gone = wait::until("the end of the server", Deadline::default(), || {
        (!testkit::process::is_alive(last)).then_some(())
    });
    gone.unwrap_or_else(|late| panic!("{late}"));
    let saved = chroot.path("etc/ringroad/ringroad.conf.rpmsave");
    assert_eq!(std::fs::read_to_string(saved).expect("the changed file is kept"), text);
    for left in [
        "usr/sbin/ringroad",
        "usr/libexec/ringroad",
        "usr/share/ringroad",
        "usr/share/doc/ringroad",
        "run/ringroad.pid",
    ] {
        assert!(!chroot.path(left).exists(), "{left}");
    }
}

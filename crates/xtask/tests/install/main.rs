//! Tests the packages in a chroot: installation, upgrade under load, repeated installation, removal, purge. Tests the image in
//! containers.
//!
//! The tests need root, debootstrap, a Debian mirror, and a release build, so they are not part of the gate. CONTRIBUTING.md has
//! the command. No systemd runs in a chroot: the scripts act as on a machine without systemd. systemd-analyze checks the unit
//! (`packaging.rs`), and `units` of the suite `program` starts the service.
#![forbid(unsafe_code)]

mod chroot;
mod image;
mod rpm;

use std::path::{Path, PathBuf};
use std::process::Command;

use chroot::{Chroot, is_root, make_package, run, under_load};
use testkit::ports::free_port;
use testkit::{Client, Deadline, ListenAddr, TempDir, skip, wait};

#[test]
#[ignore = "needs root, debootstrap and a release build"]
fn the_package_installs_upgrades_under_load_and_uninstalls() {
    if !is_root() {
        return skip("chroot needs root");
    }
    let out = TempDir::new("packages");
    let first = make_package(out.path(), &["deb"], "1");
    let second = make_package(out.path(), &["deb"], "2");
    let Some(chroot) = Chroot::make() else { return };

    println!("installed: {}", chroot.install(&first));
    assert!(
        chroot
            .path("etc/ringroad/sites-enabled/default")
            .symlink_metadata()
            .is_ok_and(|link| link.is_symlink())
    );
    chroot.run(&["ringroad", "-t"]);
    // Port 80 may be in use outside of the chroot.
    let address = ListenAddr::Tcp(([127, 0, 0, 1], free_port()).into());
    std::fs::remove_file(chroot.path("etc/ringroad/sites-enabled/default")).expect("a link");
    let site = format!("server {{ listen {address}; root /usr/share/ringroad/html; }}\n");
    testkit::write(chroot.path("etc/ringroad/sites-enabled/own"), site).expect("a file");
    // The package must not replace a file that the administrator changed.
    let conf = chroot.path("etc/ringroad/ringroad.conf");
    let text = std::fs::read_to_string(&conf).expect("a file") + "# changed\n";
    testkit::write(&conf, &text).expect("a file");
    chroot.run(&["/usr/sbin/ringroad"]);
    let started = chroot.pid().expect("a pid file");
    assert!(Client::connect(&address).get("/").text().contains("Ringroad is installed"));
    println!("{}", assert_operable(&chroot, &address));

    let requests = under_load(&address, || {
        println!("upgraded: {}", chroot.install(&second));
        let upgraded = chroot.pid().expect("a pid file");
        assert_ne!(upgraded, started, "the new version serves");
        println!("reinstalled: {}", chroot.install(&second));
        let again = chroot.pid().expect("a pid file");
        assert_ne!(again, upgraded);
        // If the new version refuses the configuration, the old process continues to serve, and the installation succeeds.
        testkit::write(&conf, "nonsense;").expect("a file");
        let said = chroot.install(&second);
        assert!(said.contains("refuses the configuration"), "{said}");
        assert_eq!(chroot.pid(), Some(again));
        testkit::write(&conf, &text).expect("a file");
    });
    println!("{requests} requests during three installations, none failed");
    let version = chroot.run(&["dpkg-query", "-W", "-f", "${Version}", "ringroad"]);
    assert!(version.ends_with("-2"), "{version}");
    assert_eq!(std::fs::read_to_string(&conf).expect("a file"), text);
    let last = chroot.pid().expect("a pid file");

    println!("removed: {}", chroot.run(&["dpkg", "-r", "ringroad"]));
    let gone = wait::until("the end of the server", Deadline::default(), || {
        (!testkit::process::is_alive(last)).then_some(())
    });
    gone.unwrap_or_else(|late| panic!("{late}"));
    assert!(conf.exists() && chroot.path("var/log/ringroad/access.log").exists());
    std::fs::remove_file(chroot.path("etc/ringroad/sites-enabled/own")).expect("our own file");
    println!("purged: {}", chroot.run(&["dpkg", "-P", "ringroad"]));
    for left in [
        "etc/ringroad",
        "var/log/ringroad",
        "var/cache/ringroad",
        "var/lib/ringroad",
        "usr/libexec/ringroad",
        "etc/default/ringroad",
        "run/ringroad.pid",
    ] {
        assert!(!chroot.path(left).exists(), "{left}");
    }
}

/// Asserts that the configuration of the package has all that the commands and pages for an operator need. Returns the commands and
/// their output.
fn assert_operable(chroot: &Chroot, address: &ListenAddr) -> String {
    let mut transcript = String::new();
    let mut ringroad = |args: &[&str]| {
        let said = chroot.run(&[&["ringroad"], args].concat());
        transcript += &format!("ringroad {args:?}: {said}\n");
        said
    };
    let status = ListenAddr::Unix(chroot.path("run/ringroad-status.sock"));
    let get = |path: &str| Client::connect(&status).get(path);
    ringroad(&["health"]);
    ringroad(&["stat", "-1"]);
    under_load(address, || {
        let line = ringroad(&["log", "-n", "1", "-f", "code=200"]);
        assert!(line.contains(" 200 GET http://"), "{line}");
        let rows = ringroad(&["top", "-1", "--every", "1"]);
        assert!(rows.contains("127.0.0.1"), "{rows}");
    });
    let explained = ringroad(&["explain", "--running", &format!("http://{address}/")]);
    assert!(explained.contains("/usr/share/ringroad/html"), "{explained}");
    ringroad(&["-t", "--diff"]);
    for (path, text) in [("/metrics", "requests_total"), ("/dashboard", "<title>"), ("/api/", "[")] {
        let page = get(path);
        assert!(page.status == 200 && page.text().contains(text), "{path}: {}", page.text());
    }
    ringroad(&["drain"]);
    let drained = get("/health");
    assert!(drained.status == 503 && drained.text().contains("drained"), "{}", drained.text());
    ringroad(&["undrain"]);
    assert_eq!(get("/health").status, 200);
    transcript
}

/// Tests a machine without a web server: installs the package, uses the configuration of Debian's nginx, opens the dashboard,
/// upgrades under load. `RINGROAD_REPORT` names a file for the commands and their output.
#[test]
#[ignore = "needs root, debootstrap and a release build"]
fn a_fresh_machine_serves_the_nginx_configuration_and_upgrades() {
    if !is_root() {
        return skip("chroot needs root");
    }
    let out = TempDir::new("packages");
    let first = make_package(out.path(), &["deb"], "1");
    let second = make_package(out.path(), &["deb"], "2");
    let Some(chroot) = Chroot::make() else { return };
    let mut transcript = String::new();
    let mut shell = |command: &str| {
        let said = chroot.run(&["sh", "-c", command]);
        transcript += &format!("# {command}\n{said}");
        said
    };
    for (package, name) in [(&first, "ringroad_1.deb"), (&second, "ringroad_2.deb")] {
        testkit::copy(package, chroot.path("root").join(name)).expect("a file");
    }
    shell("dpkg -i /root/ringroad_1.deb 2>&1");
    // The files of Debian's nginx, as on a machine that had nginx.
    let nginx = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ringroad/tests/debian/nginx");
    run(Command::new("cp").arg("-r").arg(nginx).arg(chroot.path("etc/nginx")));
    let port = free_port();
    let site = format!(
        "server {{\n    listen 127.0.0.1:{port} default_server;\n    root /var/www/html;\n    server_name _;\n    \
         location / {{ try_files $uri $uri/ =404; }}\n    location = /dashboard {{ dashboard; allow 127.0.0.1; deny all; }}\n}}\n"
    );
    // Port 80 may be in use outside of the chroot.
    testkit::write(chroot.path("etc/nginx/sites-available/own"), &site).expect("a file");
    shell("cat /etc/nginx/sites-available/own");
    shell("mkdir -p /etc/nginx/sites-enabled /etc/nginx/conf.d /var/log/nginx /var/www/html");
    shell("rm -r /etc/nginx/modules-enabled; ln -s ../sites-available/own /etc/nginx/sites-enabled/own");
    shell("echo 'served as by nginx' >/var/www/html/index.html");
    shell("ringroad check /etc/nginx/nginx.conf");
    shell("ringroad -t -c /etc/nginx/nginx.conf 2>&1");
    shell("sed -i 's|^CONF=.*|CONF=/etc/nginx/nginx.conf|' /etc/default/ringroad");
    // The command of the unit; a chroot has no systemd.
    shell(". /etc/default/ringroad; ringroad -c $CONF");
    let address = ListenAddr::Tcp(([127, 0, 0, 1], port).into());
    let mut client = Client::connect(&address);
    assert_eq!(client.get("/").text(), "served as by nginx\n");
    let dashboard = client.get("/dashboard");
    assert_eq!(dashboard.status, 200);
    assert!(dashboard.text().contains("<title>"), "{}", dashboard.text());
    let pid = || std::fs::read_to_string(chroot.path("run/nginx.pid")).expect("a pid file");
    let before = pid();
    let requests = under_load(&address, || {
        shell("dpkg -i /root/ringroad_2.deb 2>&1");
        assert_ne!(pid(), before, "the new version serves");
    });
    shell("cat /run/nginx.pid; tail -n 3 /var/log/nginx/error.log; /usr/libexec/ringroad/signal QUIT");
    transcript += &format!(
        "\n(outside: GET / {} bytes, GET /dashboard {} bytes; {requests} requests during the upgrade, each on a new connection, 0 failed)\n",
        "served as by nginx\n".len(),
        dashboard.text().len()
    );
    println!("{transcript}");
    if let Some(path) = std::env::var_os("RINGROAD_REPORT") {
        testkit::write(path, transcript).expect("the report can be written");
    }
}

#[test]
#[ignore = "needs a release build"]
fn lintian_and_rpmlint_report_no_problem() {
    let out = TempDir::new("packages");
    let deb = make_package(out.path(), &["deb", "rpm"], "1");
    let listing = std::fs::read_dir(deb.parent().expect("a directory")).expect("a directory");
    let packages: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
    for (tool, ending) in [("lintian", "deb"), ("rpmlint", "rpm")] {
        let found: Vec<&PathBuf> =
            packages.iter().filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
        let mut command = Command::new(tool);
        if tool == "lintian" {
            command.args(["--fail-on", "error,warning", "--allow-root"]);
        } else {
            command
                .arg("--config")
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rpm/rpmlint.toml"));
        }
        if Command::new(tool).arg("--version").output().is_err() {
            skip(format_args!("{tool} is not installed (apt-get install {tool})"));
            continue;
        }
        assert!(!found.is_empty(), "{tool}: {}", deb.display());
        println!("{tool}: {}", run(command.args(found)));
    }
}

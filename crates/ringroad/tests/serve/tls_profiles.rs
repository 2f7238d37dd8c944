//! TLS configurations recommended by public documentation (`tls_profiles/`): they load, and Debian's curl and chromium
//! work with them, trusting a test CA.

use crate::common;
use std::path::Path;
use std::process::Command;

use crate::common::BINARY;
use crate::common::tls::{Authority, files};
use testkit::{Server, TempDir};

/// The configurations, each with the index of its TLS address.
const PROFILES: [(&str, &str, usize); 8] = [
    ("mozilla-modern", include_str!("tls_profiles/mozilla-modern.conf"), 0),
    ("mozilla-intermediate", include_str!("tls_profiles/mozilla-intermediate.conf"), 0),
    ("mozilla-old", include_str!("tls_profiles/mozilla-old.conf"), 0),
    ("h5bp", include_str!("tls_profiles/h5bp.conf"), 0),
    ("nextcloud", include_str!("tls_profiles/nextcloud.conf"), 1),
    ("gitlab", include_str!("tls_profiles/gitlab.conf"), 0),
    ("mastodon", include_str!("tls_profiles/mastodon.conf"), 0),
    ("certbot", include_str!("tls_profiles/certbot.conf"), 0),
];

const PAGE: &str =
    "<!DOCTYPE html><html><head><title>site</title></head><body><p>served over TLS</p></body></html>\n";

/// Starts a server with one of the profiles; returns it with the CA that signed its certificate.
fn start(profile: &str) -> (Server, Authority) {
    let authority = Authority::new("authority of the test");
    let own = authority.issue_names(&["site.test", "www.site.test"]);
    let conf = format!("worker_processes 1; events {{}} http {{ types {{ text/html html; }}\n{profile}\n}}");
    let server = files(Server::builder(BINARY).conf(&conf), "site", &own)
        .text("conf/root.pem", &authority.pem)
        .text("conf/dhparam.pem", "")
        .text("html/index.html", PAGE)
        // A browser requests it, and a missing file is an error in the log.
        .text("html/favicon.ico", "")
        .start();
    (server, authority)
}

fn is_installed(program: &str, package: &str) -> bool {
    let is_there =
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        testkit::skip(format_args!("{program} is not installed (apt-get install {package})"));
    }
    is_there
}

#[test]
fn tls_profiles_load_and_serve_curl() {
    if !is_installed("curl", "curl") {
        return;
    }
    for (name, profile, address) in PROFILES {
        let (server, authority) = start(profile);
        let port = server.addr(address).tcp().port();
        let root = server.path("conf/root.pem");
        std::fs::write(&root, &authority.pem).expect("it is written");
        // Every version that the profile enables, and none that it disables.
        for (option, is_served) in
            [("--tlsv1.3", true), ("--tls-max 1.2", name != "mozilla-modern"), ("--tls-max 1.1", false)]
        {
            let output = Command::new("curl")
                .args(["--silent", "--show-error", "--include", "--max-time", "20", "--cacert"])
                .arg(&root)
                .args(["--resolve", &format!("site.test:{port}:127.0.0.1")])
                .args(option.split(' '))
                .arg(format!("https://site.test:{port}/"))
                .output()
                .expect("curl runs");
            let (said, error) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_eq!(
                output.status.success(),
                is_served,
                "{name} {option}: {said}{error}{}",
                server.error_log()
            );
            if is_served {
                assert!(said.ends_with(PAGE), "{name} {option}: {said}");
                let has_hsts = said.to_ascii_lowercase().contains("strict-transport-security: max-age=");
                assert_eq!(has_hsts, name != "mastodon", "{name}: {said}");
            }
        }
        common::assert_no_errors(&server);
    }
}

/// Adds the CA to a certificate store that chromium reads.
fn trust(home: &Path, root: &Path) {
    let store = home.join(".pki/nssdb");
    std::fs::create_dir_all(&store).expect("a directory");
    let database = format!("sql:{}", store.display());
    for arguments in [
        vec!["-N", "--empty-password", "-d", &database],
        vec!["-A", "-d", &database, "-n", "test", "-t", "C,,", "-i", root.to_str().expect("text")],
    ] {
        let status = Command::new("certutil").args(arguments).status().expect("certutil runs");
        assert!(status.success());
    }
}

#[test]
#[ignore = "starts a browser for each profile"]
fn tls_profiles_serve_a_browser() {
    let has_certutil = Command::new("certutil").arg("-H").output().is_ok();
    if !has_certutil {
        testkit::skip(format_args!("certutil is not installed (apt-get install libnss3-tools)"));
    }
    if !has_certutil || !is_installed("chromium", "chromium") {
        return;
    }
    for (name, profile, address) in PROFILES {
        let (server, authority) = start(profile);
        let home = TempDir::new("chromium");
        let root = home.path().join("root.pem");
        std::fs::write(&root, &authority.pem).expect("it is written");
        trust(home.path(), &root);
        let port = server.addr(address).tcp().port();
        let output = Command::new("chromium")
            .env("HOME", home.path())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
            .arg(format!("--user-data-dir={}", home.path().join("profile").display()))
            .arg(format!("--host-resolver-rules=MAP site.test 127.0.0.1:{port}"))
            .arg("https://site.test/")
            .output()
            .expect("chromium runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains("served over TLS"),
            "{name}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        common::assert_no_errors(&server);
    }
}

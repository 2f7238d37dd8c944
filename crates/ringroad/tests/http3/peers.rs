//! Other implementations of HTTP/3, if they are installed.

use std::path::Path;
use std::process::Command;

use testkit::{Content, Server, TempDir};

use crate::{address, serve, writable};

/// A client of aioquic: requests, an upload, and many concurrent streams.
const AIOQUIC: &str = include_str!("aioquic_client.py");

/// The same for the transport: Retry, key update, change of the connection ID, resumption, early data.
const AIOQUIC_TRANSPORT: &str = include_str!("aioquic_transport.py");

/// A client that acknowledges packets it has not received.
const AIOQUIC_OPTIMIST: &str = include_str!("aioquic_optimist.py");

/// Returns a Python with aioquic, if there is one.
fn aioquic() -> Option<String> {
    let python = std::env::var("RINGROAD_TEST_AIOQUIC").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import aioquic.h3"]).output();
    if found.is_ok_and(|found| found.status.success()) {
        return Some(python);
    }
    testkit::skip(
        "aioquic is not installed: pip install aioquic, and RINGROAD_TEST_AIOQUIC with the path of its python",
    );
    None
}

/// Runs a script, whose output must end with `done`. Returns the output.
fn run(python: &str, script: &str, arguments: &[&str]) -> String {
    let run = Command::new(python).args(["-c", script]).args(arguments).output().expect("python");
    let (text, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && text.trim().ends_with("done"), "{text}\n{errors}");
    text.into_owned()
}

/// Length of the large file.
const LEN: usize = 300 << 10;

/// Starts a server for clients that request `/hello` and `/large.bin`, and store files in `/put/`, below this directory.
fn serve_for_peers(site: &Path) -> Server {
    let directives = format!(
        "ssl_early_data on; location = /hello {{ return 200 'hello $http3'; }} \
         location /put/ {{ root {}; dav_methods PUT; create_full_put_path on; }}",
        site.display()
    );
    serve(2, &directives, |builder| builder.file("html/large.bin", Content::new(3, LEN as u64)))
}

#[test]
fn aioquic_sends_and_receives() {
    let Some(python) = aioquic() else { return };
    let data = TempDir::new("http3");
    let site = writable(&data);
    let server = serve_for_peers(&site);
    run(&python, AIOQUIC, &[&address(&server).port().to_string(), &LEN.to_string()]);
    assert_eq!(std::fs::read(site.join("put/x")).expect("a file").len(), LEN);
}

/// Requests, a new network path, a client that prefers version 2 of QUIC, resumption, early data.
#[test]
fn quic_go_sends_and_receives() {
    let data = TempDir::new("http3");
    let program = data.path().join("client");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http3/go");
    let go = |args: &[&str]| Command::new("go").args(args).current_dir(&directory).output();
    if !go(&["mod", "download"]).is_ok_and(|output| output.status.success()) {
        return testkit::skip(
            "go is not installed, or has no access to its modules (github.com/quic-go/quic-go)",
        );
    }
    let built = go(&["build", "-o", program.to_str().expect("a path"), "."]).expect("it is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let site = writable(&data);
    let server = serve_for_peers(&site);
    let said = Command::new(program)
        .args([&address(&server).port().to_string(), &LEN.to_string()])
        .output()
        .expect("the client");
    let (text, errors) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && text == "done\n", "{text}\n{errors}");
    assert_eq!(std::fs::read(site.join("put/go")).expect("a file").len(), LEN);
}

#[test]
fn aioquic_resumes_and_updates_keys() {
    let Some(python) = aioquic() else { return };
    for (retry, mode) in [("on", "retry"), ("off", "early")] {
        let directives = format!(
            "quic_retry {retry}; ssl_early_data on; location = /hello {{ return 200 'hello $http3'; }}"
        );
        let server = serve(2, &directives, |builder| builder);
        run(&python, AIOQUIC_TRANSPORT, &[&address(&server).port().to_string(), mode]);
    }
}

/// Acknowledgements of packets that are not sent yet, or that the server has left out, end the connection with PROTOCOL_VIOLATION
/// (RFC 9000 section 13.1). The client is told so although the congestion window is full.
#[test]
fn optimistic_acknowledgements_end_the_connection() {
    let Some(python) = aioquic() else { return };
    for algorithm in ["cubic", "bbr"] {
        let directives = format!("quic_congestion_control {algorithm};");
        let server =
            serve(1, &directives, |builder| builder.file("html/large.bin", Content::new(3, 8 << 20)));
        for ahead in ["30", "3000"] {
            let said = run(&python, AIOQUIC_OPTIMIST, &[&address(&server).port().to_string(), ahead]);
            assert_eq!(said, "0xa\ndone\n", "{algorithm}, {ahead} packets");
        }
    }
}

/// Debian's chromium uses HTTP/3 for a page.
#[test]
#[ignore = "starts a browser"]
fn chromium_uses_http_3() {
    if !Command::new("chromium").arg("--version").output().is_ok_and(|found| found.status.success()) {
        return testkit::skip("chromium is not installed (apt-get install chromium)");
    }
    let server =
        serve(2, "location / { default_type text/html; return 200 '<p>$server_protocol</p>'; }", |builder| {
            builder
        });
    let (home, port) = (TempDir::new("chromium"), address(&server).port());
    let hash = "openssl x509 -in conf/a.pem -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64";
    let hash = Command::new("sh").args(["-c", hash]).current_dir(server.dir()).output().expect("a shell");
    let hash = String::from_utf8_lossy(&hash.stdout).trim().to_owned();
    let run = Command::new("chromium")
        .env("HOME", home.path())
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-quic",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", home.path().join("profile").display()))
        .arg("--host-resolver-rules=MAP localhost 127.0.0.1")
        .arg(format!("--origin-to-force-quic-on=localhost:{port}"))
        .arg(format!("--ignore-certificate-errors-spki-list={hash}"))
        .arg(format!("https://localhost:{port}/"))
        .output()
        .expect("chromium");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("<p>HTTP/3.0</p>"), "{text}{}", String::from_utf8_lossy(&run.stderr));
}

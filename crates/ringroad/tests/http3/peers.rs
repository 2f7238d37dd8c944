//! Other implementations of HTTP/3, if they are installed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use testkit::{Content, Server, TempDir};

use crate::relay::{self, Route};
use crate::{address, serve, writable};

/// A client of aioquic: requests, an upload, and many concurrent streams.
const AIOQUIC: &str = include_str!("aioquic_client.py");

/// The same for the transport: Retry, key update, change of the connection ID, resumption, early data.
const AIOQUIC_TRANSPORT: &str = include_str!("aioquic_transport.py");

/// A client of curl with ngtcp2: requests, uploads.
const CURL: &str = include_str!("curl_client.py");

/// A client that acknowledges packets it has not received.
const AIOQUIC_OPTIMIST: &str = include_str!("aioquic_optimist.py");

/// Returns a Python with a module, if there is one.
fn python_with(module: &str, package: &str) -> Option<String> {
    let python = std::env::var("RINGROAD_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if found.is_ok_and(|found| found.status.success()) {
        return Some(python);
    }
    testkit::skip(format_args!(
        "{package} is not installed: pip install {package}, and RINGROAD_TEST_PYTHON with the path of its python"
    ));
    None
}

/// Runs a client, whose output must end with `done`. Returns the output.
fn run(client: &mut Command) -> String {
    let run = client.output().expect("the client starts");
    let (text, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && text.trim().ends_with("done"), "{text}\n{errors}");
    text.into_owned()
}

/// Length of the large file.
const LEN: usize = 300 << 10;

/// Starts a server for clients that request `/hello` and `/large.bin`, and store files in `/put/`, below this directory.
fn serve_for_peers(site: &Path) -> Server {
    let directives = format!(
        "ssl_early_data on; http3_hq on; location = /hello {{ return 200 'hello $http3'; }} \
         location /put/ {{ root {}; dav_methods PUT; create_full_put_path on; }}",
        site.display()
    );
    serve(2, &directives, |builder| builder.file("html/large.bin", Content::new(3, LEN as u64)))
}

/// Runs a client directly, with 5 % of the datagrams lost, with every tenth datagram after its successor, over a path with the smallest MTU, and
/// behind a NAT that assigns other ports. `client` gets the address.
fn over_all_routes(client: impl Fn(SocketAddr, &Server)) {
    let data = TempDir::new("http3");
    let site = writable(&data);
    let server = serve_for_peers(&site);
    let try_with = |to: SocketAddr| {
        client(to, &server);
        for upload in std::fs::read_dir(site.join("put")).into_iter().flatten() {
            let upload = upload.expect("a file").path();
            assert_eq!(std::fs::metadata(&upload).expect("a file").len(), LEN as u64, "{}", upload.display());
            std::fs::remove_file(upload).expect("it is there");
        }
    };
    try_with(address(&server));
    let routes = [
        ("lost", Route { loss: 5, ..Route::PERFECT }),
        ("late", Route { late: 10, ..Route::PERFECT }),
        ("too long", Route { longest: relay::SMALLEST, ..Route::PERFECT }),
        ("moved", Route { port_after: 20, ..Route::PERFECT }),
    ];
    for (name, route) in routes {
        // A test that fails shows it.
        eprintln!("datagrams that are {name}");
        let (relay, counts) = relay::start(address(&server), route);
        try_with(relay);
        let counted = [&counts.lost, &counts.late, &counts.too_long, &counts.moved]
            .map(|count| count.load(Ordering::SeqCst));
        assert!(counted.iter().sum::<usize>() > 0, "no datagram was {name}");
    }
}

#[test]
fn aioquic_sends_and_receives() {
    let Some(python) = python_with("aioquic.h3", "aioquic") else { return };
    over_all_routes(|server, _| {
        run(Command::new(&python).args(["-c", AIOQUIC, &server.port().to_string(), &LEN.to_string()]));
    });
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
    over_all_routes(|server, _| {
        run(Command::new(&program).args([&server.port().to_string(), &LEN.to_string()]));
    });
}

#[test]
fn curl_with_ngtcp2_sends_and_receives() {
    let Some(python) = python_with("curl_cffi", "curl_cffi") else { return };
    over_all_routes(|server, _| {
        run(Command::new(&python).args(["-c", CURL, &server.port().to_string(), &LEN.to_string()]));
    });
}

/// Resumption, early data, a key update, a new address with and without validation of the path.
#[test]
fn ngtcp2_resumes_and_moves() {
    if Command::new("gtlsclient").arg("--help").output().is_err() {
        return testkit::skip("gtlsclient is not installed (apt-get install ngtcp2-client)");
    }
    over_all_routes(|relay, server| {
        let dir = server.dir().join(format!("ngtcp2-{}", relay.port()));
        let saved = dir.join("downloads");
        std::fs::create_dir_all(&saved).expect("a directory");
        for variant in ["--timeout=30s", "--timeout=30s", "--key-update=5ms", "--change-local-addr=5ms"] {
            let mut command = Command::new("gtlsclient");
            command.args(["--no-quic-dump", "--no-http-dump", "--exit-on-all-streams-close", variant]);
            // Its packets are as long as the first ones of its MTU discovery otherwise.
            command.args(["--max-udp-payload-size=1200", "--no-pmtud"]);
            for (option, file) in
                [("session-file", "session"), ("tp-file", "parameters"), ("token-file", "token")]
            {
                command.arg(format!("--{option}={}", dir.join(file).display()));
            }
            command.arg(format!("--download={}", saved.display()));
            command.args(["--sni=localhost", "127.0.0.1", &relay.port().to_string()]);
            command.arg("https://localhost/large.bin");
            // The client gives up if the server has begun an update of the keys just before.
            let is_simultaneous =
                |said: &str| said.contains("ngtcp2_conn_initiate_key_update: ERR_INVALID_STATE");
            let said = (0..10).map(|_| {
                let output = command.output().expect("it is installed");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{variant} {said}");
                said
            });
            let said =
                { said }.find(|said| !is_simultaneous(said)).expect("an update that the client begins");
            let body = std::fs::read(saved.join("large.bin")).expect("the download");
            Content::new(3, LEN as u64)
                .compare(0..LEN as u64, &mut &body[..])
                .unwrap_or_else(|error| panic!("{variant} {error:?}\n{said}"));
        }
    });
}

/// quiche with HTTP/3 (requests, an upload, a new network path, resumption, early data) and s2n-quic with HTTP/0.9.
#[test]
#[ignore = "compiles two other implementations of QUIC"]
fn quiche_and_s2n_quic_send_and_receive() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http3/rust/Cargo.toml");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "--manifest-path", manifest.to_str().expect("a path")])
        .args(["--target-dir", &format!("{}/http3-peers", env!("CARGO_TARGET_TMPDIR"))])
        .output()
        .expect("cargo");
    if !built.status.success() {
        let errors = String::from_utf8_lossy(&built.stderr);
        return testkit::skip(format_args!(
            "quiche or s2n-quic does not compile (apt-get install cmake clang libclang-dev): {errors}"
        ));
    }
    let program = format!("{}/http3-peers/debug/http3-peers", env!("CARGO_TARGET_TMPDIR"));
    for peer in ["quiche", "s2n"] {
        over_all_routes(|relay, server| {
            let root = server.dir().join("conf/root.pem");
            run(Command::new(&program).args([peer, &relay.port().to_string(), &LEN.to_string()]).arg(root));
        });
    }
}

#[test]
fn aioquic_resumes_and_updates_keys() {
    let Some(python) = python_with("aioquic.h3", "aioquic") else { return };
    for (retry, mode) in [("on", "retry"), ("off", "early")] {
        let directives = format!(
            "quic_retry {retry}; ssl_early_data on; location = /hello {{ return 200 'hello $http3'; }}"
        );
        let server = serve(2, &directives, |builder| builder);
        run(Command::new(&python).args([
            "-c",
            AIOQUIC_TRANSPORT,
            &address(&server).port().to_string(),
            mode,
        ]));
    }
}

/// Acknowledgements of packets that are not sent yet, or that the server has left out, end the connection with PROTOCOL_VIOLATION
/// (RFC 9000 section 13.1). The client is told so although the congestion window is full.
#[test]
fn optimistic_acknowledgements_end_the_connection() {
    let Some(python) = python_with("aioquic.h3", "aioquic") else { return };
    for algorithm in ["cubic", "bbr"] {
        let directives = format!("quic_congestion_control {algorithm};");
        let server =
            serve(1, &directives, |builder| builder.file("html/large.bin", Content::new(3, 8 << 20)));
        for ahead in ["30", "3000"] {
            let port = address(&server).port().to_string();
            let said = run(Command::new(&python).args(["-c", AIOQUIC_OPTIMIST, &port, ahead]));
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

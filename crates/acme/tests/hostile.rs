//! Tests the agent with scripted CAs that are untrusted or send invalid responses. Nothing from these CAs must be
//! installed, delivered or stored.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use acme::agent::{Challenge, Host, HostExited, Level, run};
use acme::fetch::{FetchError, Fetcher};
use acme::settings::{Issuer, Order};
use http::fields::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A scripted server that returns complete responses by path. Its thread ends with the process.
struct Authority {
    port: u16,
    root: String,
}

impl Authority {
    /// Starts a server with a certificate for this name.
    fn start(name: &str, respond: impl Fn(u16, &str) -> Vec<u8> + Send + 'static) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(rcgen::DnType::CommonName, "root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("a certificate").pem();
        let issuer = rcgen::Issuer::new(params, key);
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("PEM");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.expect("versions").with_no_client_auth().with_single_cert(chain, key);
        let config = Arc::new(config.expect("a key of its certificate"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
                let mut tls = StreamOwned::new(session, socket);
                // Clients that do not trust the certificate close the connection.
                if let Some(path) = read_request(&mut tls) {
                    let _ = tls.write_all(&respond(port, &path));
                    tls.conn.send_close_notify();
                    let _ = tls.flush();
                }
            }
        });
        Authority { port, root }
    }

    fn fetch(&self, path: &str) -> Result<acme::fetch::Response, FetchError> {
        let fetcher = Fetcher::new(Some(self.root.as_bytes()), true).expect("roots");
        fetcher.request(Method::Get, &format!("https://127.0.0.1:{}{path}", self.port), None)
    }
}

/// Reads a complete request. Returns its path.
fn read_request(tls: &mut impl Read) -> Option<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
            if body.len() >= length.parse().expect("a length") {
                return head.split(' ').nth(1).map(str::to_owned);
            }
        }
        match tls.read(&mut buffer) {
            Ok(len) if len > 0 => bytes.extend_from_slice(&buffer[..len]),
            _ => return None,
        }
    }
}

fn response(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nReplay-Nonce: n\r\nContent-Length: {length}\r\n{fields}\r\n{body}")
        .into_bytes()
}

#[test]
fn responses_are_limited_in_size_and_time() {
    let authority = Authority::start("127.0.0.1", |_, path| {
        match path {
        "/good" => b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_vec(),
        "/to-the-end" => b"HTTP/1.0 200 OK\r\n\r\nabc".to_vec(),
        "/large" => response("200 OK", "", &"x".repeat(2 << 20)),
        "/endless-head" => [b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: b\r\n".repeat(20_000)].concat(),
        "/short" => b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec(),
        "/half" => b"HTTP/1.1 200 OK\r\nConte".to_vec(),
        "/garbage" => vec![0xff; 100],
        _ => Vec::new(),
    }
    });
    let good = authority.fetch("/good").expect("a response");
    assert_eq!((good.status, good.body.as_slice(), good.field("a")), (200, &b"abc"[..], Some("b")));
    assert_eq!(authority.fetch("/to-the-end").expect("a response").body, b"abc");
    for path in ["/large", "/endless-head", "/short", "/half", "/garbage", "/nothing"] {
        let failed = authority.fetch(path).expect_err(path);
        assert!(matches!(failed, FetchError::Malformed { .. }), "{path}: {failed}");
    }
}

#[test]
fn an_authority_is_verified_before_any_request_is_sent() {
    let other = Authority::start("other.example", |_, _| response("200 OK", "", "{}"));
    let failed = other.fetch("/").expect_err("it is another host");
    assert_eq!(failed.to_string(), "the certificate of 127.0.0.1 is not trusted: it is for another name");
    let good = Authority::start("127.0.0.1", |_, _| response("200 OK", "", "{}"));
    assert!(good.fetch("/").is_ok());
    let stranger = Authority { port: good.port, root: other.root };
    let failed = stranger.fetch("/").expect_err("its root is not trusted");
    assert!(matches!(failed, FetchError::Distrust { .. }), "{failed}");
    let fetcher = Fetcher::new(None, false).expect("no roots are needed");
    let url = format!("https://127.0.0.1:{}/", good.port);
    assert!(fetcher.request(Method::Get, &url, None).is_ok(), "ssl_verify off");
}

/// A host that records the agent's calls, and exits when the agent waits for a retry.
#[derive(Default)]
struct Notes {
    installed: Vec<Challenge>,
    delivered: Vec<Vec<u8>>,
    lines: Vec<String>,
    /// All pauses of the agent.
    pauses: Vec<Duration>,
}

impl Host for Notes {
    fn install(&mut self, challenge: &Challenge) -> Result<(), HostExited> {
        self.installed.push(challenge.clone());
        Ok(())
    }

    fn remove(&mut self, challenge: &Challenge) -> Result<(), HostExited> {
        self.installed.retain(|known| known != challenge);
        Ok(())
    }

    fn deliver(&mut self, _: &str, pem: &[u8]) -> Result<(), HostExited> {
        self.delivered.push(pem.to_vec());
        Ok(())
    }

    fn log(&mut self, _: Level, text: &str) {
        self.lines.push(text.to_owned());
    }

    fn wait(&mut self, time: Duration) -> Result<(), HostExited> {
        self.pauses.push(time);
        // The agent continues after short waits of polls. The longer pause after a failure ends the agent, and so do
        // too many waits.
        if time < Duration::from_secs(10) && self.pauses.len() < 100 { Ok(()) } else { Err(HostExited) }
    }
}

/// Runs an agent with a CA. `respond` makes all responses except the directory. Returns the recorded calls and the state
/// directory.
fn agent(label: &str, respond: impl Fn(u16, &str) -> Vec<u8> + Send + 'static) -> (Notes, PathBuf) {
    let authority = Authority::start("127.0.0.1", move |port, path| {
        let url = |name: &str| format!("https://127.0.0.1:{port}/{name}");
        match path {
            "/dir" => {
                let urls = ["newNonce", "newAccount", "newOrder"];
                let members: Vec<String> =
                    urls.iter().map(|name| format!("\"{name}\": \"{}\"", url(name))).collect();
                response("200 OK", "", &format!("{{ {} }}", members.join(", ")))
            }
            "/newNonce" => response("200 OK", "", ""),
            _ => respond(port, path),
        }
    });
    let state = std::env::temp_dir().join(format!("acme-hostile-{label}-{}", std::process::id()));
    let issuer = Issuer {
        uri: format!("https://127.0.0.1:{}/dir", authority.port),
        roots: Some(authority.root.clone().into_bytes()),
        state_path: Some(state.clone()),
        orders: vec![Order { names: vec!["a.example".to_owned()], ..Order::default() }],
        ..Issuer::new("one")
    };
    let mut notes = Notes::default();
    assert_eq!(run(&[issuer], &[], &mut notes), HostExited);
    (notes, state)
}

/// Returns a response for an account, or for an order with this status and these members.
fn ordered(port: u16, path: &str, status: &str, members: &str) -> Vec<u8> {
    let object = format!("{{ \"status\": \"{status}\" {members} }}");
    match path {
        "/newAccount" => {
            response("201 Created", &format!("Location: https://127.0.0.1:{port}/account/1\r\n"), "{}")
        }
        "/newOrder" => response("201 Created", "Location: /order/1\r\n", &object),
        _ => response("200 OK", "", &object),
    }
}

#[track_caller]
fn assert_refused((notes, state): (Notes, PathBuf), reason: &str) {
    let last = notes.lines.last().expect("a line");
    assert!(last.contains(reason), "{:?}", notes.lines);
    assert!(notes.delivered.is_empty() && notes.installed.is_empty());
    let kept = std::fs::read_dir(state.join("certificates")).expect("a directory").count();
    assert_eq!(kept, 0, "nothing is stored");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

#[test]
fn a_certificate_for_another_key_is_not_used() {
    let key = KeyPair::generate().expect("a key");
    let foreign = CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
    let foreign = foreign.self_signed(&key).expect("a certificate").pem();
    let done = agent("key", move |port, path| match path {
        "/certificate" => response("200 OK", "", &foreign),
        "/order/1" | "/newOrder" | "/newAccount" | "/finalize" => {
            // The order is ready when it is created, and valid in the next request.
            let members = format!(
                ", \"authorizations\": [], \"finalize\": \"https://127.0.0.1:{port}/finalize\", \
                 \"certificate\": \"https://127.0.0.1:{port}/certificate\""
            );
            let is_ready =
                READY.fetch_add(usize::from(path == "/order/1"), std::sync::atomic::Ordering::SeqCst) == 0;
            ordered(port, path, if is_ready { "ready" } else { "valid" }, &members)
        }
        _ => response("404 Not Found", "", "{}"),
    });
    assert_refused(done, "the certificate cannot be used: ");
}

/// Number of requests for the order.
static READY: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[test]
fn a_token_that_is_a_path_is_not_installed() {
    let done = agent("token", |port, path| match path {
        "/authorization" => response(
            "200 OK",
            "",
            "{ \"status\": \"pending\", \"identifier\": { \"type\": \"dns\", \"value\": \"a.example\" }, \"challenges\": \
             [ { \"type\": \"http-01\", \"url\": \"https://127.0.0.1/\", \"token\": \"../../etc\" } ] }",
        ),
        _ => {
            let members = format!(", \"authorizations\": [ \"https://127.0.0.1:{port}/authorization\" ]");
            ordered(port, path, "pending", &members)
        }
    });
    assert_refused(done, "the authority sent no token of a challenge");
}

#[test]
fn malformed_responses_are_reported() {
    let done = agent("account", |_, _| response("201 Created", "", "{}"));
    assert_refused(done, "the authority sent no URL of the account");
    let done = agent("order", |port, path| match path {
        "/newAccount" => ordered(port, path, "valid", ""),
        _ => response("200 OK", "Location: https://127.0.0.1/\r\n", "[1, \"x\""),
    });
    assert_refused(done, "connection to 127.0.0.1 failed");
    let done = agent("limit", |port, path| match path {
        "/newAccount" => ordered(port, path, "valid", ""),
        _ => response(
            "429 Too Many Requests",
            "Retry-After: 7200\r\n",
            "{ \"type\": \"urn:ietf:params:acme:error:rateLimited\", \"detail\": \"too many\\nnew orders\" }",
        ),
    });
    let last = done.0.lines.last().cloned().expect("a line");
    assert!(last.ends_with("rateLimited (429): too many new orders; next try in 7200 s"), "{last}");
    std::fs::remove_dir_all(&done.1).expect("it is ours");
}

#[test]
fn repeatedly_refused_nonces_are_a_failure() {
    let done = agent("nonce", |_, _| {
        response(
            "400 Bad Request",
            "",
            "{ \"type\": \"urn:ietf:params:acme:error:badNonce\", \"detail\": \"no\" }",
        )
    });
    assert_refused(done, "the authority refuses: badNonce (400): no");
}

#[test]
fn an_account_that_stays_unknown_is_created_again_with_pauses() {
    let (notes, state) = agent("unknown", |port, path| match path {
        "/newAccount" => ordered(port, path, "valid", ""),
        _ => response(
            "400 Bad Request",
            "",
            "{ \"type\": \"urn:ietf:params:acme:error:accountDoesNotExist\", \"detail\": \"no\" }",
        ),
    });
    // The first failure is retried immediately.
    let tries = notes.lines.iter().filter(|line| line.contains("accountDoesNotExist")).count();
    assert_eq!((tries, notes.pauses.len()), (2, 2), "{:?}", notes.lines);
    assert!(notes.pauses[1] >= Duration::from_secs(60), "{:?}", notes.pauses);
    std::fs::remove_dir_all(&state).expect("it is ours");
}

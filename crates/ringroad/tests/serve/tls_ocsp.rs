//! OCSP: `ssl_ocsp` and `ssl_stapling` of this server and of nginx, with `openssl ocsp` as the responder.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::tls::{Authority, BOTH, body, connect, files, get, one, status, text, to_end};
use crate::common::{BINARY, serve_with};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use testkit::server::ServerBuilder;
use testkit::{Client, Deadline, Server, TempDir, nginx, wait};

const GOOD: u64 = 0x1001;
const REVOKED: u64 = 0x1002;
const UNKNOWN: u64 = 0x1003;
const MIDDLE: u64 = 0x1004;

/// Index file of the responder: statuses of certificates, with serial numbers in hexadecimal digits.
const INDEX: &str = "V\t490101000000Z\t\t1001\tunknown\t/CN=good\n\
                     R\t490101000000Z\t250101000000Z\t1002\tunknown\t/CN=revoked\n\
                     R\t490101000000Z\t250101000000Z\t1004\tunknown\t/CN=middle\n";

fn has_openssl() -> bool {
    let is_there = Command::new("openssl").arg("version").output().is_ok_and(|it| it.status.success());
    if !is_there {
        testkit::skip(format_args!("openssl is not installed (apt-get install openssl)"));
    }
    is_there
}

/// Responder process of an authority, which is killed at the end of the test.
struct Responder {
    child: Child,
    address: SocketAddr,
}

impl Responder {
    /// Starts a responder with further arguments; the files of the authority are in `folder`.
    fn start(folder: &Path, more: &[&str]) -> Responder {
        let arguments = "ocsp -index index -CA root.pem -rsigner root.pem -rkey root.key -port 0";
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).args(more).current_dir(folder);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("openssl starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        // ACCEPT 0.0.0.0:41999 PID=7
        let port = lines.find_map(|line| {
            line.ok()?.strip_prefix("ACCEPT ")?.split(' ').next()?.rsplit(':').next()?.parse::<u16>().ok()
        });
        // The pipe must stay open, because the responder continues to write to it.
        std::thread::spawn(move || lines.for_each(drop));
        let address = ([127, 0, 0, 1], port.expect("it prints its port")).into();
        Responder { child, address }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Proxy that passes connections to a responder and counts them.
struct Gate {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl Gate {
    fn to(responder: SocketAddr) -> Gate {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || pass(socket, responder));
            }
        });
        Gate { address, count }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

fn pass(mut socket: TcpStream, responder: SocketAddr) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let mut upstream = TcpStream::connect(responder).ok()?;
    upstream.write_all(&request).ok()?;
    std::io::copy(&mut upstream, &mut socket).ok().map(drop)
}

/// Returns the extension with the URL of a responder (RFC 5280 section 4.2.2.1). `openssl ocsp` accepts requests only at `/`.
fn authority_access(address: SocketAddr) -> CustomExtension {
    let url = format!("http://{address}");
    let len = |bytes: usize| u8::try_from(bytes).expect("it is short");
    let mut inner = vec![0x06, 8, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 0x86, len(url.len())];
    inner.extend_from_slice(url.as_bytes());
    let mut content = vec![0x30, len(inner.len() + 2), 0x30, len(inner.len())];
    content.extend(inner);
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], content)
}

/// Issues a certificate; returns it and its key in PEM.
fn issue(
    authority: &Authority,
    name: &str,
    serial: u64,
    responder: Option<SocketAddr>,
    purpose: ExtendedKeyUsagePurpose,
) -> (String, String) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params.custom_extensions = responder.map(authority_access).into_iter().collect();
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &authority.issuer).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

/// Returns an intermediate authority issued by `root`.
fn middle(root: &Authority, responder: SocketAddr) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, "middle");
    params.serial_number = Some(SerialNumber::from(MIDDLE));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.custom_extensions = vec![authority_access(responder)];
    let key = KeyPair::generate().expect("a key");
    let pem = params.signed_by(&key, &root.issuer).expect("a certificate").pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

/// Writes the files of an authority that its responder reads.
fn prepare(authority: &Authority) -> TempDir {
    let folder = TempDir::new("ocsp");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it is written");
    write("root.pem", &authority.pem);
    write("root.key", &authority.issuer.key().serialize_pem());
    write("index", INDEX);
    folder
}

/// Returns the configuration of a client that sends this chain.
fn client(trusted: &Authority, chain: &[&str], key: &str) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(BOTH);
    let builder = builder.expect("versions").with_root_certificates(trusted.roots());
    let chain =
        chain.iter().map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
    Arc::new(builder.with_client_auth_cert(chain, key).expect("a key of its certificate"))
}

/// Directives that show the verdict in the response, also to refused clients.
const SHOW: &str = "ssl_client_certificate root.pem; error_page 495 496 =400 /why;\n\
                    location = /why { return 200 'refused $ssl_client_verify'; }\n\
                    location / { return 200 'served $ssl_client_verify'; }";

/// Certificates of every status, and chains, get the same verdict, log line and response from this server and from nginx.
#[test]
fn verification_results_are_the_same_as_in_nginx() {
    if !has_openssl() {
        return;
    }
    let root = Authority::new("root");
    let folder = prepare(&root);
    let responder = Responder::start(folder.path(), &["-ndays", "1"]);
    let at = Some(responder.address);
    let of_client = |serial, at| issue(&root, "client", serial, at, ExtendedKeyUsagePurpose::ClientAuth);
    let own = issue(&root, "a.test", GOOD, None, ExtendedKeyUsagePurpose::ServerAuth);
    let below = middle(&root, responder.address);
    let deep = issue(&below, "client", GOOD, at, ExtendedKeyUsagePurpose::ClientAuth);
    let nowhere = TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("an address");
    let stranger =
        issue(&Authority::new("stranger"), "client", GOOD, at, ExtendedKeyUsagePurpose::ClientAuth);
    let url = format!("ssl_ocsp_responder http://{};", responder.address);
    let conf =
        |settings: &str| one(&format!("ssl_verify_client optional; ssl_verify_depth 2; {settings}\n{SHOW}"));
    let (revoked, failed) =
        ("refused FAILED:certificate revoked", "refused FAILED:certificate status request failed");
    let single = |settings: &'static str, (pem, key): (String, String), expected| {
        (settings.to_owned(), vec![pem], key, expected)
    };
    let cases = [
        single("ssl_ocsp on;", of_client(GOOD, at), "served SUCCESS"),
        single("ssl_ocsp on;", of_client(REVOKED, at), revoked),
        single("ssl_ocsp off;", of_client(REVOKED, at), "served SUCCESS"),
        single("ssl_ocsp leaf;", of_client(UNKNOWN, at), "refused FAILED:certificate status unknown"),
        single("ssl_ocsp on;", of_client(GOOD, None), failed),
        single("ssl_ocsp on;", of_client(GOOD, Some(nowhere)), failed),
        single("ssl_ocsp on;", stranger, "refused FAILED:unable to verify the first certificate"),
        (format!("ssl_ocsp on; {url}"), vec![of_client(REVOKED, None).0], String::new(), revoked),
        (
            "ssl_ocsp off;".to_owned(),
            vec![deep.0.clone(), below.pem.clone()],
            deep.1.clone(),
            "served SUCCESS",
        ),
        ("ssl_ocsp on;".to_owned(), vec![deep.0.clone(), below.pem.clone()], deep.1.clone(), failed),
    ];
    for (number, (settings, chain, key, expected)) in cases.into_iter().enumerate() {
        let (chain, key) = match key.is_empty() {
            true => {
                let (pem, key) = of_client(REVOKED, None);
                (vec![pem], key)
            }
            false => (chain, key),
        };
        let conf = conf(&settings).replacen("events", "error_log logs/error.log info; events", 1);
        let conf = with_port(&conf, responder.address.port());
        let with = |builder: ServerBuilder| files(builder, "a", &own).text("conf/root.pem", &root.pem);
        let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
        let config = client(&root, &chain, &key);
        let ask = |server: &Server| {
            let response = get(server, &config, "a.test", "/");
            (status(&response), text(body(&response)))
        };
        let ours = serve_with(&conf, with);
        let expected_status = if expected.starts_with("served") { "200" } else { "400" };
        let of_ours = ask(&ours);
        let log = ours.error_log();
        assert_eq!(of_ours, (expected_status.to_owned(), expected.to_owned()), "{number} {settings}: {log}");
        if let Some(theirs) = nginx::start_with(&conf, with) {
            let of_theirs = ask(&theirs);
            assert_eq!(of_ours, of_theirs, "{number} {settings}: {}", theirs.error_log());
            if let Some((_, reason)) = expected.split_once("FAILED:") {
                for server in [&ours, &theirs] {
                    let what = "client SSL certificate verify error: ";
                    let line = server.wait_for_log(what, Deadline::default());
                    assert!(line.contains(reason), "{number}: {line}");
                }
            }
        }
    }
}

/// The name of a responder in a client's certificate is resolved only by `resolver`.
#[test]
fn responder_names_in_client_certificates_need_a_resolver() {
    let root = Authority::new("root");
    let own = root.server("a.test");
    let mut params = CertificateParams::new(vec!["client".to_owned()]).expect("a name");
    let mut content = vec![0x30, 24, 0x30, 22, 0x06, 8, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 0x86, 10];
    content.extend_from_slice(b"http://x.y");
    params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], content)];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &root.issuer).expect("a certificate").pem();
    let conf = one(&format!("ssl_verify_client on; ssl_ocsp on;\n{SHOW}"));
    let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &root.pem));
    let config = client(&root, &[&certificate], &key.serialize_pem());
    let response = get(&server, &config, "a.test", "/");
    assert_eq!(status(&response), "400");
    let line = "no resolver defined to resolve x.y while requesting certificate status, responder: x.y";
    server.wait_for_log(line, Deadline::default());
}

/// Adds a directive that names the port of a responder in the certificates of clients: `sandbox strict` permits no other port
/// but 80.
fn with_port(conf: &str, port: u16) -> String {
    conf.replacen("http {", &format!("http {{ upstream responder {{ server 127.0.0.1:{port}; }}"), 1)
}

/// With a cache one request to the responder serves all threads; without a cache each connection sends a request.
#[test]
fn a_cached_status_is_not_requested_again() {
    if !has_openssl() {
        return;
    }
    let root = Authority::new("root");
    let folder = prepare(&root);
    let responder = Responder::start(folder.path(), &["-ndays", "1"]);
    let own = root.server("a.test");
    for (cache, expected) in [("off", 3), ("shared:statuses:64k", 1)] {
        let gate = Gate::to(responder.address);
        let (pem, key) =
            issue(&root, "client", REVOKED, Some(gate.address), ExtendedKeyUsagePurpose::ClientAuth);
        let conf = one(&format!("ssl_verify_client on; ssl_ocsp on; ssl_ocsp_cache {cache};\n{SHOW}"))
            .replace("worker_processes 1", "worker_processes 2");
        let conf = with_port(&conf, gate.address.port());
        let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &root.pem));
        for _ in 0..3 {
            let response = get(&server, &client(&root, &[&pem], &key), "a.test", "/");
            assert_eq!(text(body(&response)), "refused FAILED:certificate revoked");
        }
        assert_eq!(gate.count(), expected, "{cache}");
    }
}

/// A client whose responder hangs waits, while other clients of the same thread are served.
#[test]
fn a_stalled_responder_delays_only_its_own_client() {
    let root = Authority::new("root");
    let own = root.server("a.test");
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let at = silent.local_addr().expect("it is bound");
    silent.set_nonblocking(true).expect("a socket");
    let (pem, key) = issue(&root, "client", GOOD, Some(at), ExtendedKeyUsagePurpose::ClientAuth);
    let conf = with_port(&one(&format!("ssl_verify_client optional; ssl_ocsp on;\n{SHOW}")), at.port());
    let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &root.pem));
    let mut waiting = connect(&server, &client(&root, &[&pem], &key), "a.test");
    let request = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    waiting.write_all(request).expect("it is sent");
    let asked = wait::until("a query", Deadline::default(), || silent.accept().ok());
    let (asked, _) = asked.unwrap_or_else(|late| panic!("{late}: {}", server.error_log()));
    let response = get(&server, &root.clients(BOTH, None), "a.test", "/");
    assert_eq!(text(body(&response)), "served NONE");
    let log = server.wait_for_access_log(1, Deadline::default());
    assert_eq!(log.lines().count(), 1, "the other one waits");
    drop(asked);
    let response = to_end(&mut waiting);
    assert_eq!(text(body(&response)), "refused FAILED:certificate status request failed");
}

/// Returns the output of `openssl s_client -status` for a server.
fn stapled(server: &Server) -> String {
    stapled_at(server, 0)
}

fn stapled_at(server: &Server, index: usize) -> String {
    let address = server.addr(index).tcp().to_string();
    let arguments = ["s_client", "-connect", &address, "-status", "-servername", "a.test"];
    let output = Command::new("openssl").args(arguments).stdin(Stdio::null()).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const STAPLED: &str = "Cert Status: good";
const NOTHING: &str = "OCSP response: no response sent";

/// The first handshake starts the request for an OCSP response and does not wait. Later handshakes send the response, also after a
/// reload.
#[test]
fn an_ocsp_response_is_fetched_and_stapled() {
    if !has_openssl() {
        return;
    }
    let root = Authority::new("root");
    let folder = prepare(&root);
    let responder = Responder::start(folder.path(), &["-ndays", "1"]);
    for verify in ["on", "off"] {
        let gate = Gate::to(responder.address);
        let at = Some(gate.address);
        let own = issue(&root, "a.test", GOOD, at, ExtendedKeyUsagePurpose::ServerAuth);
        let settings =
            format!("ssl_stapling on; ssl_stapling_verify {verify}; ssl_trusted_certificate root.pem;");
        let conf = one(&format!("{settings} return 200 ok;"));
        let mut server =
            serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &root.pem));
        let first = stapled(&server);
        assert!(first.contains(NOTHING), "{first}");
        let has_response = || stapled(&server).contains(STAPLED).then_some(());
        wait::until("a response", Deadline::default(), has_response).expect("it is fetched");
        assert_eq!(gate.count(), 1);
        server.rewrite_conf(&conf.replace("return 200", "add_header X-New 1; return 200"));
        server.reload();
        server.wait_for_log("was replaced by", Deadline::default());
        let after = stapled(&server);
        assert!(after.contains(STAPLED), "{after}");
        assert_eq!(gate.count(), 1, "the response is still stored");
    }
}

/// Responses with an invalid signature or without the status good are not stapled, and the reason is logged.
#[test]
fn an_unusable_ocsp_response_is_not_stapled() {
    if !has_openssl() {
        return;
    }
    let root = Authority::new("root");
    let folder = prepare(&root);
    let stranger = Authority::new("stranger");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it is written");
    write("stranger.pem", &stranger.pem);
    write("stranger.key", &stranger.issuer.key().serialize_pem());
    let by_root = Responder::start(folder.path(), &["-ndays", "1"]);
    let by_stranger = Responder::start(folder.path(), &["-rsigner", "stranger.pem", "-rkey", "stranger.key"]);
    for (responder, serial, expected) in [
        (
            &by_root,
            REVOKED,
            "certificate status \"revoked\" in the OCSP response while requesting certificate status",
        ),
        (&by_stranger, GOOD, "OCSP_basic_verify() failed"),
    ] {
        let own = issue(&root, "a.test", serial, None, ExtendedKeyUsagePurpose::ServerAuth);
        let conf = one(&format!(
            "ssl_stapling on; ssl_stapling_verify on; ssl_trusted_certificate root.pem;\n\
             ssl_stapling_responder http://{}/; return 200 ok;",
            responder.address
        ));
        let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &root.pem));
        assert!(stapled(&server).contains(NOTHING));
        let log = server.wait_for_log(expected, Deadline::default());
        assert!(log.contains("a.pem\""), "{log}");
        assert!(stapled(&server).contains(NOTHING));
    }
}

/// Verdicts on clients and fetched responses are counted by result; clients without a trusted certificate are not.
#[test]
fn verdicts_and_fetches_are_counted() {
    if !has_openssl() {
        return;
    }
    let root = Authority::new("root");
    let folder = prepare(&root);
    let responder = Responder::start(folder.path(), &["-ndays", "1"]);
    let at = Some(responder.address);
    let nowhere = TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().ok();
    let of_server = |serial, at| issue(&root, "a.test", serial, at, ExtendedKeyUsagePurpose::ServerAuth);
    let (good, revoked, failed) = (of_server(GOOD, at), of_server(REVOKED, at), of_server(GOOD, nowhere));
    let server = |name: &str, ip: &str| {
        format!(
            "server {{ listen {ip}:0 ssl; ssl_certificate {name}.pem; ssl_certificate_key {name}.key; return 200 ok; }}\n"
        )
    };
    let conf = format!(
        "worker_processes 1; events {{}} http {{ ssl_stapling on; ssl_trusted_certificate root.pem;\n\
         ssl_verify_client optional; ssl_client_certificate root.pem; ssl_ocsp on;\n{}{}{}\
         server {{ listen 127.0.0.4:0; location /metrics {{ metrics; }} }} }}",
        server("good", "127.0.0.1"),
        server("revoked", "127.0.0.2"),
        server("failed", "127.0.0.3")
    );
    let server = serve_with(&conf, |builder| {
        let builder = files(files(builder, "good", &good), "revoked", &revoked);
        files(builder, "failed", &failed).text("conf/root.pem", &root.pem)
    });
    let shows = |expected: &[(&str, u64)]| {
        let whole = wait::until("the counts", Deadline::default(), || {
            let page = Client::connect(server.addr(3)).get("/metrics").text();
            let has =
                |(name, count): &(&str, u64)| page.contains(&format!("\nringroad_tls_{name}\"}} {count}\n"));
            expected.iter().all(has).then_some(())
        });
        whole.unwrap_or_else(|late| {
            panic!("{late}: {}", Client::connect(server.addr(3)).get("/metrics").text())
        });
    };
    // Each handshake with another server starts the fetch of its response.
    for index in 0..3 {
        stapled_at(&server, index);
    }
    shows(&[
        ("stapling_fetches_total{result=\"good", 1),
        ("stapling_fetches_total{result=\"rejected", 1),
        ("stapling_fetches_total{result=\"failed", 1),
        ("ocsp_verdicts_total{result=\"failed", 0),
    ]);
    let stranger =
        issue(&Authority::new("stranger"), "client", GOOD, at, ExtendedKeyUsagePurpose::ClientAuth);
    let of_client = |serial, at| issue(&root, "client", serial, at, ExtendedKeyUsagePurpose::ClientAuth);
    for (pem, key) in [
        stranger,
        of_client(GOOD, at),
        of_client(GOOD, at),
        of_client(REVOKED, at),
        of_client(UNKNOWN, at),
        of_client(GOOD, nowhere),
    ] {
        get(&server, &client(&root, &[&pem], &key), "a.test", "/");
    }
    shows(&[
        ("ocsp_verdicts_total{result=\"good", 2),
        ("ocsp_verdicts_total{result=\"revoked", 1),
        ("ocsp_verdicts_total{result=\"unknown", 1),
        ("ocsp_verdicts_total{result=\"failed", 1),
    ]);
}

/// A certificate whose OCSP response cannot be requested is served, and one warning is logged for all servers.
#[test]
fn impossible_stapling_causes_one_warning() {
    let root = Authority::new("root");
    let (own, other) = (root.server("a.test"), root.server("b.test"));
    let run = |trusted: &str, responder: &str| {
        let server = |name: &str| {
            format!(
                "server {{ listen 127.0.0.1:0 ssl; server_name {name}; ssl_certificate {name}.pem; ssl_certificate_key {name}.key; }}\n"
            )
        };
        let conf = format!(
            "events {{}} http {{\nssl_stapling on; ssl_stapling_verify on; {trusted} {responder}\n{}{} }}",
            server("a"),
            server("b")
        );
        let builder = Server::builder(BINARY).conf(&conf).text("conf/root.pem", &root.pem).arg("-t");
        let (_, output) = files(files(builder, "a", &own), "b", &other).run_to_end();
        output
    };
    let trusted = "ssl_trusted_certificate root.pem;";
    for (trusted, responder, expected) in [
        ("", "", "\"ssl_stapling\" ignored, issuer certificate not found for certificate \""),
        (trusted, "", "\"ssl_stapling\" ignored, no OCSP responder URL in the certificate \""),
        (
            trusted,
            "ssl_stapling_responder https://a.test/;",
            "\"ssl_stapling\" ignored, invalid URL prefix in OCSP responder \"https://a.test/\" in the certificate \"",
        ),
    ] {
        let output = run(trusted, responder);
        let lines: Vec<&str> = output.lines().filter(|line| line.contains("stapling\" ignored")).collect();
        assert!(lines.len() == 1 && lines[0].contains(expected), "{output}");
        assert!(output.contains("nginx.conf:2") && lines[0].contains(", and 1 times more"), "{output}");
    }
    let output = run(trusted, "ssl_stapling_responder http://a.test/;");
    assert!(!output.contains("warn"), "{output}");
}

#[test]
fn wrong_settings_cause_the_messages_of_nginx() {
    let root = Authority::new("root");
    let own = root.server("a.test");
    for (settings, expected) in [
        ("ssl_ocsp maybe;", "invalid value \"maybe\""),
        (
            "ssl_ocsp on; ssl_verify_client optional_no_ca;",
            "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"",
        ),
        ("ssl_ocsp_cache shared:a;", "invalid OCSP cache \"shared:a\""),
        ("ssl_ocsp_cache shared::1m;", "invalid OCSP cache \"shared::1m\""),
        ("ssl_ocsp_cache builtin;", "invalid OCSP cache \"builtin\""),
        ("ssl_ocsp_cache shared:a:1k;", "OCSP cache \"shared:a:1k\" is too small"),
        (
            "ssl_ocsp_responder https://a/;",
            "invalid URL prefix in OCSP responder \"https://a/\" in \"ssl_ocsp_responder\"",
        ),
        (
            "ssl_ocsp_responder http://a:0/;",
            "invalid port in OCSP responder \"a:0/\" in \"ssl_ocsp_responder\"",
        ),
    ] {
        let builder = Server::builder(BINARY).conf(&one(settings)).text("conf/root.pem", &root.pem).arg("-t");
        let (_, output) = files(builder, "a", &own).run_to_end();
        assert!(output.contains(expected) && output.contains("nginx.conf:"), "{settings}: {output}");
    }
}

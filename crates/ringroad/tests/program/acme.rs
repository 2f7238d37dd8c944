//! Certificates from an ACME server: pebble validates the server by http-01 and tls-alpn-01. Skipped if pebble is not
//! installed.

use crate::pebble;
use std::path::{Path, PathBuf};

use crate::control::BINARY;
use crate::pebble::{Manners, Pebble, is_trusted, shown, wait_until_trusted};
use rustix::process::Signal;
use testkit::program::signal_process;
use testkit::{Client, Deadline, Origin, Reply, Server, TempDir};

/// Returns the configuration of a server that redirects everything on port 80 and serves on 443; the kernel assigns the
/// ports. `issuer` is the `acme_issuer` block.
fn conf(threads: u32, issuer: &str, certificates: &[&str]) -> String {
    let servers: String = certificates
        .iter()
        .map(|line| {
            format!(
                "server {{ listen 127.0.0.1:0; listen 127.0.0.2:0 ssl; {line}
                   location / {{ return 200 secure; }} location = /metrics {{ metrics; }} }}\n"
            )
        })
        .collect();
    format!(
        "worker_processes {threads}; error_log logs/error.log info; events {{}}
         http {{ {issuer}
           server {{ listen 127.0.0.1:0 default_server; return 301 https://$host$request_uri; }}
           {servers}
         }}\n"
    )
}

/// Positions of the plain and of the TLS address among the addresses of [`conf`].
const PLAIN: usize = 0;
const SECURE: usize = 1;

/// Returns the directives that make a server use the certificate obtained for these names.
fn certificate(names: &str) -> String {
    format!(
        "server_name {names}; acme_certificate one;
         ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;"
    )
}

/// Returns an `acme_issuer` block with its state in a directory.
fn issuer(pebble: &Pebble, state: &str, more: &str) -> String {
    format!(
        "acme_issuer one {{ uri {}; ssl_trusted_certificate {}; state_path {state};
           contact admin@example.org; accept_terms_of_service; {more} }}",
        pebble.uri(),
        pebble.trusted().display()
    )
}

/// A server and the ACME server that it will use, with the state directory. The server listens, but obtains no
/// certificate yet.
struct Desk {
    server: Server,
    pebble: Pebble,
    state: TempDir,
    binary: PathBuf,
    /// Directives of the main context.
    main: &'static str,
}

impl Desk {
    fn new(threads: u32, manners: &Manners) -> Option<Desk> {
        let binary = pebble::binary()?;
        // The placeholder certificate is not from this ACME server.
        let plain = format!(
            "worker_processes {threads}; error_log logs/error.log info; events {{}}
             http {{ server {{ listen 127.0.0.1:0; listen 127.0.0.2:0 ssl; ssl_reject_handshake on; }} }}\n"
        );
        let server = Server::start(BINARY, &plain);
        let (http, tls) = (server.addr(PLAIN).tcp().port(), server.addr(SECURE).tcp().port());
        let pebble = Pebble::start(&binary, http, tls, manners);
        Some(Desk { server, pebble, state: TempDir::new("acme-state"), binary, main: "" })
    }

    /// Returns the path of the state directory. The agent may run as another user than the test.
    fn state(&self) -> String {
        self.state.path().join("one").display().to_string()
    }

    /// Reloads the server with a configuration that obtains certificates.
    fn begin(&mut self, threads: u32, more: &str, certificates: &[&str]) {
        let issuer = issuer(&self.pebble, &self.state(), more);
        self.server.rewrite_conf(&format!("{}{}", self.main, conf(threads, &issuer, certificates)));
        self.server.reload();
    }

    fn root(&self) -> rustls::pki_types::CertificateDer<'static> {
        self.pebble.issuing_root(0)
    }
}

/// Returns the process ID of the ACME agent: the master's child that is not a worker.
fn agent(server: &Server) -> i32 {
    let find = || {
        let log = server.error_log();
        let last = log.lines().rev().find(|line| line.contains("start acme process "))?;
        last.rsplit(' ').next()?.parse().ok()
    };
    testkit::wait::until("an acme process", Deadline::default(), find).expect("it starts")
}

/// Returns the expiry time of a server's certificate, as its metrics report it.
fn expiry(server: &Server, name: &str) -> u64 {
    let page = pebble::get(server, SECURE, name, "/metrics");
    let mut lines =
        page.lines().filter(|line| line.starts_with("ringroad_tls_certificate_expiry_timestamp_seconds{"));
    let line = lines.next().unwrap_or_else(|| panic!("no certificate\n{page}"));
    assert!(line.contains("certificate=\"$acme_certificate\""), "{line}");
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn count(server: &Server, text: &str) -> usize {
    server.error_log().matches(text).count()
}

#[test]
fn names_are_verified_over_http_and_the_certificate_is_stored() {
    let manners = Manners { bad_nonces: 50, ..Manners::default() };
    let Some(mut desk) = Desk::new(2, &manners) else { return };
    desk.pebble.know(&["a.example", "www.a.example"]);
    desk.begin(2, "", &[&certificate(".a.example")]);
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    wait_until_trusted(&desk.server, SECURE, "www.a.example", &root);
    assert!(!is_trusted(&desk.server, SECURE, "b.example", &root));
    // The server serves no challenge while no certificate is being validated.
    let response = Client::connect(desk.server.addr(PLAIN)).get("/.well-known/acme-challenge/x");
    assert_eq!(response.status, 301);
    let one = shown(&desk.server, SECURE, "a.example");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970").as_secs();
    assert!(expiry(&desk.server, "a.example") > now);
    // All stored files are readable by the agent's user alone.
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = Path::new(&desk.state()).join(name);
        std::fs::metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}")).permissions().mode()
            & 0o777
    };
    assert_eq!(
        (mode(""), mode("account.key"), mode("account.url"), mode("certificates")),
        (0o700, 0o600, 0o600, 0o700)
    );
    // A new worker process uses the certificate too, and so does a new master.
    let worker = desk.server.worker();
    signal_process(worker, Signal::KILL).expect("it lives");
    desk.server.wait_for_log("exited on signal 9", Deadline::default());
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    assert_eq!(shown(&desk.server, SECURE, "a.example"), one);
    desk.server.reload();
    desk.server.wait_for_log_count("in place", 1, Deadline::default());
    assert_eq!(shown(&desk.server, SECURE, "a.example"), one);
    // A reload that starts another worker process.
    let conf = desk.server.conf().replace("worker_processes 2", "worker_processes 1");
    desk.server.rewrite_conf(&conf);
    desk.server.reload();
    desk.server.wait_for_log_count("start worker process ", 3, Deadline::default());
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    assert_eq!(shown(&desk.server, SECURE, "a.example"), one);
    assert_eq!(count(&desk.server, "acme: ordering a certificate"), 1, "{}", desk.server.error_log());
    let conf = desk.server.conf().to_owned();
    let Desk { server, pebble, state: _state, .. } = desk;
    assert!(server.quit_and_wait().success());
    let server = Server::start(BINARY, &conf);
    assert_eq!(shown(&server, SECURE, "a.example"), one, "no connection received another certificate");
    server.wait_for_log("is renewed in", Deadline::default());
    assert_eq!(count(&server, "acme: ordering a certificate"), 0, "{}", server.error_log());
    assert_eq!(count(&server, "acme: the account at issuer"), 0, "the account is known");
    drop(pebble);
}

#[test]
fn names_and_addresses_are_verified_by_tls_alpn() {
    verify_by_tls_alpn("");
}

#[test]
fn the_signing_process_has_the_keys_of_tls_alpn() {
    verify_by_tls_alpn("sandbox strict;");
}

fn verify_by_tls_alpn(main: &'static str) {
    let Some(mut desk) = Desk::new(2, &Manners::default()) else { return };
    desk.main = main;
    desk.pebble.dns.set_addresses("a.example", &["127.0.0.2"], 60);
    let lines = [certificate("a.example"), certificate("127.0.0.2")];
    desk.begin(2, "challenge tls-alpn-01; account_key rsa;", &[&lines[0], &lines[1]]);
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    desk.server.wait_for_log_count("issued a certificate for", 2, Deadline::default());
    assert_eq!(count(&desk.server, "is ready, requesting its validation"), 2);
}

#[test]
fn the_configured_chain_and_profile_are_used() {
    let manners = Manners { other_roots: 2, ..Manners::default() };
    let Some(mut desk) = Desk::new(1, &manners) else { return };
    desk.pebble.know(&["a.example"]);
    let other = desk.pebble.issuing_root(1);
    let name = common_name(&other);
    desk.begin(
        1,
        &format!("profile shortlived require; preferred_chain \"{name}\";"),
        &[&certificate("a.example")],
    );
    wait_until_trusted(&desk.server, SECURE, "a.example", &other);
    let line = desk.server.wait_for_log("is renewed in", Deadline::default());
    let days: u32 = line
        .split("renewed in ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("a number")
        .parse()
        .expect("days");
    assert!(days < 6, "{line}");
    // A required profile that the ACME server does not offer.
    desk.begin(1, "profile none require;", &[&certificate("b.example")]);
    desk.server.wait_for_log("the authority does not offer the profile \"none\"", Deadline::default());
}

/// Returns the common name of pebble's root certificate without `Pebble Root CA `, as openssl(1) would show it.
fn common_name(der: &[u8]) -> String {
    let text = String::from_utf8_lossy(der);
    let start = text.find("Pebble Root CA ").expect("the name of a root");
    text[start..].chars().take("Pebble Root CA ".len() + 6).collect()
}

#[test]
fn certificates_are_renewed_when_the_authority_suggests_it() {
    renew("");
}

#[test]
fn the_signing_process_has_the_keys_of_renewed_certificates() {
    renew("sandbox strict;");
}

fn renew(main: &'static str) {
    let Some(mut desk) = Desk::new(1, &Manners::default()) else { return };
    desk.main = main;
    desk.pebble.know(&["a.example"]);
    desk.begin(1, "", &[&certificate("a.example")]);
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    desk.server.wait_for_log("is renewed in", Deadline::default());
    let one = shown(&desk.server, SECURE, "a.example");
    // The suggested renewal window has passed, as for a certificate that will be revoked soon.
    let window =
        r#"{\"suggestedWindow\": {\"start\": \"2020-01-01T00:00:00Z\", \"end\": \"2020-01-02T00:00:00Z\"}}"#;
    let pem = stored_certificate(&desk).replace('\n', "\\n");
    let body = format!("{{\"certificate\": \"{pem}\", \"ariResponse\": \"{window}\"}}");
    desk.pebble.manage("POST /set-renewal-info/", &body);
    // The next agent requests the renewal window when it starts.
    signal_process(agent(&desk.server), Signal::KILL).expect("it lives");
    desk.server.wait_for_log_count("issued a certificate for", 2, Deadline::default());
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    let two = shown(&desk.server, SECURE, "a.example");
    assert_ne!(one[0], two[0]);
}

/// Returns the text of the only stored certificate, with its key.
fn stored_certificate(desk: &Desk) -> String {
    let mut files = std::fs::read_dir(Path::new(&desk.state()).join("certificates")).expect("a directory");
    let file = files.next().expect("a file").expect("an entry");
    std::fs::read_to_string(file.path()).expect("it is ours")
}

#[test]
fn an_unreachable_authority_does_not_affect_the_server() {
    let state = TempDir::new("acme-down");
    let issuer = unreachable_issuer(&state.path().join("one"));
    let server = Server::start(BINARY, &conf(1, &issuer, &[&certificate("a.example")]));
    let line = server
        .wait_for_log("acme: no certificate for \"a.example\" from issuer \"one\"", Deadline::default());
    assert!(line.contains("connection to 127.0.0.1 failed") && line.contains("next try in "), "{line}");
    // Until then the server uses a certificate that no client trusts, and serves requests.
    let one = shown(&server, SECURE, "a.example");
    assert_eq!(one.len(), 1);
    assert_eq!(
        expiry(&server, "a.example"),
        0,
        "a certificate that no client trusts is reported without an expiry time"
    );
    server.wait_for_log("clients get a certificate that they do not trust", Deadline::default());
    server.reload();
    server.wait_for_log_count("in place", 1, Deadline::default());
    assert_eq!(Client::connect(server.addr(PLAIN)).get("/").status, 301);
    assert!(server.quit_and_wait().success());
}

#[test]
fn an_external_account_is_bound() {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let manners =
        Manners { external_account: Some(("kid-1".to_owned(), key.to_owned())), ..Manners::default() };
    let Some(mut desk) = Desk::new(1, &manners) else { return };
    desk.pebble.know(&["a.example"]);
    let line = certificate("a.example");
    desk.begin(1, "", &[&line]);
    desk.server.wait_for_log("[error] ", Deadline::default());
    let log = desk.server.error_log();
    assert!(log.contains("the authority requires an \"external_account_key\""), "{log}");
    // `sandbox strict` refuses a key in the configuration.
    desk.main = "sandbox on; ";
    desk.begin(1, "external_account_key kid-1 data:d3Jvbmcga2V5;", &[&line]);
    desk.server.wait_for_log("the authority refuses: ", Deadline::default());
    desk.begin(1, &format!("external_account_key kid-1 data:{key};"), &[&line]);
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
}

#[test]
fn an_account_unknown_to_the_authority_is_created_again() {
    let Some(mut desk) = Desk::new(1, &Manners::default()) else { return };
    desk.pebble.know(&["a.example"]);
    let line = certificate("a.example");
    desk.begin(1, "", &[&line]);
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    // Another ACME server at the same address, without the old account and orders; a certificate for another name is
    // needed.
    let (http, tls) = (desk.server.addr(PLAIN).tcp().port(), desk.server.addr(SECURE).tcp().port());
    let other = Pebble::start(&desk.binary, http, tls, &Manners::default());
    other.know(&["b.example"]);
    let kept = Path::new(&desk.state()).join("account.url");
    let account = std::fs::read_to_string(&kept).expect("it is kept");
    let account = account.replace(&desk.pebble.uri(), &other.uri());
    std::fs::write(
        &kept,
        account.replace(desk.pebble.uri().trim_end_matches("dir"), other.uri().trim_end_matches("dir")),
    )
    .expect("it is ours");
    desk.pebble = other;
    desk.begin(1, "", &[&certificate("b.example")]);
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "b.example", &root);
    assert_eq!(count(&desk.server, "acme: the account at issuer"), 2, "{}", desk.server.error_log());
}

#[test]
fn certificates_are_replaced_after_a_change_of_the_authority() {
    let Some(mut desk) = Desk::new(1, &Manners::default()) else { return };
    desk.pebble.know(&["a.example"]);
    desk.begin(1, "", &[&certificate("a.example")]);
    wait_until_trusted(&desk.server, SECURE, "a.example", &desk.root());
    let (http, tls) = (desk.server.addr(PLAIN).tcp().port(), desk.server.addr(SECURE).tcp().port());
    desk.pebble = Pebble::start(&desk.binary, http, tls, &Manners::default());
    desk.pebble.know(&["a.example"]);
    desk.begin(1, "", &[&certificate("a.example")]);
    wait_until_trusted(&desk.server, SECURE, "a.example", &desk.root());
    assert!(stored_certificate(&desk).contains(&desk.pebble.uri()), "the stored certificate names its CA");
}

/// If the agent is killed at any step, the next agent obtains the certificate, and all stored files are complete.
#[test]
fn killing_the_agent_at_any_step_is_harmless() {
    const STEPS: [&str; 4] = [
        "acme: the account at issuer",
        "acme: ordering a certificate",
        "is ready, requesting its validation",
        "acme: finalizing the order",
    ];
    let Some(mut desk) = Desk::new(1, &Manners::default()) else { return };
    desk.pebble.know(&["a.example"]);
    desk.begin(1, "", &[&certificate("a.example")]);
    for step in STEPS {
        let log = desk.server.error_log();
        let (seen, deaths) = (log.matches(step).count(), log.matches("exited on signal 9").count());
        // The account is created only once.
        if seen == 0 || step != STEPS[0] {
            desk.server.wait_for_log_count(step, seen.max(1), Deadline::default());
        }
        signal_process(agent(&desk.server), Signal::KILL).expect("it lives");
        desk.server.wait_for_log_count("exited on signal 9", deaths + 1, Deadline::default());
        desk.server.wait_for_log_count("start acme process ", deaths + 2, Deadline::default());
    }
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    // No challenge is served any more.
    let response = Client::connect(desk.server.addr(PLAIN)).get("/.well-known/acme-challenge/x");
    assert_eq!(response.status, 301);
    let kept = std::fs::read_dir(Path::new(&desk.state()).join("certificates")).expect("a directory");
    for file in kept {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("it is ours");
        assert!(
            text.starts_with("Issued by https://") && text.contains("-----END PRIVATE KEY-----"),
            "{path:?}"
        );
    }
}

#[test]
fn certificates_are_obtained_without_a_state_directory() {
    let Some(mut desk) = Desk::new(1, &Manners::default()) else { return };
    desk.pebble.know(&["a.example"]);
    let issuer = issuer(&desk.pebble, "off", "");
    desk.server.rewrite_conf(&conf(1, &issuer, &[&certificate("a.example")]));
    desk.server.reload();
    let root = desk.root();
    wait_until_trusted(&desk.server, SECURE, "a.example", &root);
    let one = shown(&desk.server, SECURE, "a.example");
    signal_process(desk.server.worker(), Signal::KILL).expect("it lives");
    desk.server.wait_for_log("exited on signal 9", Deadline::default());
    assert_eq!(shown(&desk.server, SECURE, "a.example"), one, "the master has it");
    signal_process(agent(&desk.server), Signal::KILL).expect("it lives");
    desk.server.wait_for_log_count("start acme process ", 2, Deadline::default());
    desk.server.wait_for_log_count("is renewed in", 2, Deadline::default());
    assert_eq!(count(&desk.server, "acme: ordering a certificate"), 1, "the next agent has it too");
}

#[test]
fn two_hundred_names_are_issued_in_twenty_orders() {
    let Some(mut desk) = Desk::new(2, &Manners { bad_nonces: 10, ..Manners::default() }) else { return };
    let names: Vec<Vec<String>> =
        (0..20).map(|order| (0..10).map(|name| format!("n{name}.o{order}.example")).collect()).collect();
    for name in names.iter().flatten() {
        desk.pebble.know(&[name]);
    }
    let lines: Vec<String> = names.iter().map(|names| certificate(&names.join(" "))).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    desk.begin(2, "", &lines);
    let root = desk.root();
    desk.server.wait_for_log_count(
        "issued a certificate for",
        20,
        Deadline::after(std::time::Duration::from_secs(240)),
    );
    for name in names.iter().flatten() {
        assert!(is_trusted(&desk.server, SECURE, name, &root), "{name}");
    }
}

/// A single process serves requests and starts the agent.
#[test]
fn a_server_without_a_master_obtains_certificates() {
    let Some(mut desk) = Desk::new(1, &Manners::default()) else { return };
    desk.pebble.know(&["a.example"]);
    let (http, tls) = (desk.server.addr(PLAIN).tcp(), desk.server.addr(SECURE).tcp());
    let issuer = issuer(&desk.pebble, &desk.state(), "");
    let text = conf(1, &issuer, &[&certificate("a.example")]);
    // The ACME server validates at the ports of the first server.
    let text = text.replace("listen 127.0.0.1:0", &format!("listen {http}"));
    let text = text.replace("listen 127.0.0.2:0", &format!("listen {tls}"));
    let root = desk.root();
    assert!(
        std::mem::replace(&mut desk.server, Server::start(BINARY, "events {}\n")).quit_and_wait().success()
    );
    let server = Server::start(BINARY, &format!("master_process off; {text}"));
    wait_until_trusted(&server, SECURE, "a.example", &root);
    assert!(server.quit_and_wait().success());
}

/// `ringroad serve --tls NAME`: works without a configuration, soon obtains a certificate, and uses the same
/// certificate after a restart.
#[test]
fn a_directory_is_served_under_a_public_name() {
    let Some(binary) = pebble::binary() else { return };
    // It does not listen, but reserves its port: the kernel assigns the port to no other socket.
    let reserved = Origin::start(|_| Reply::ok());
    reserved.refuse();
    let port = reserved.port();
    let pebble = Pebble::start(&binary, port, port, &Manners::default());
    pebble.know(&["a.example"]);
    let (site, data, said) = (TempDir::new("site"), TempDir::new("data"), TempDir::new("said"));
    site.write("index.html", "<p>home</p>");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let serve = || {
        let mut command = std::process::Command::new(BINARY);
        command.arg("serve").arg(site.path()).args(["--tls", "a.example", "--acme-directory", &pebble.uri()]);
        command.args(["--listen", &address.to_string()]);
        command.env("XDG_DATA_HOME", data.path()).env("SSL_CERT_FILE", pebble.trusted());
        testkit::program::Program::spawn(command, said.path())
    };
    let root = pebble.issuing_root(0);
    let mut program = serve();
    program.wait_for_output("issued a certificate for \"a.example\"", Deadline::default());
    assert!(pebble::is_trusted_at(address, "a.example", &root), "{}", program.stderr());
    let text = program.stdout();
    assert!(text.contains(&pebble.uri()) && text.contains("terms of service"), "{text}");
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
    let mut program = serve();
    program.wait_for_output(&format!("https://{address}/"), Deadline::default());
    assert!(pebble::is_trusted_at(address, "a.example", &root), "{}", program.stderr());
    assert!(!program.stderr().contains("issued a certificate"), "{}", program.stderr());
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
}

/// Returns an `acme_issuer` block for an address without a listener, with its state in this directory.
fn unreachable_issuer(state: &Path) -> String {
    format!(
        "acme_issuer one {{ uri https://127.0.0.1:1/dir; ssl_verify off; state_path {}; accept_terms_of_service; }}",
        state.display()
    )
}

#[test]
fn a_state_directory_is_used_by_one_server_only() {
    let state = TempDir::new("acme-shared");
    let text = conf(1, &unreachable_issuer(&state.path().join("one")), &[&certificate("a.example")]);
    let first = Server::start(BINARY, &text);
    first.wait_for_log("connection to 127.0.0.1 failed", Deadline::default());
    let second = Server::start(BINARY, &text);
    let line = second.wait_for_log("acme: no certificate for", Deadline::default());
    assert!(line.contains("another process uses it"), "{line}");
    // The lock is released when its holder exits.
    assert!(first.quit_and_wait().success());
    signal_process(agent(&second), Signal::KILL).expect("it lives");
    second.wait_for_log("connection to 127.0.0.1 failed", Deadline::default());
}

#[test]
fn the_agent_exits_with_its_master() {
    let state = TempDir::new("acme-orphan");
    let text = conf(1, &unreachable_issuer(&state.path().join("one")), &[&certificate("a.example")]);
    let server = Server::start(BINARY, &text);
    server.wait_for_log("connection to 127.0.0.1 failed", Deadline::default());
    let agent = agent(&server);
    server.signal(Signal::KILL);
    let is_over = || (!testkit::process::is_alive(agent)).then_some(());
    testkit::wait::until("the end of the agent", Deadline::default(), is_over).expect("it ends");
}

#[test]
fn a_written_sandbox_off_does_not_restrict_the_agent() {
    for (main, filters) in [("", "2"), ("sandbox off;", "0")] {
        let state = TempDir::new("acme-sandbox");
        let text = conf(1, &unreachable_issuer(&state.path().join("one")), &[&certificate("a.example")]);
        let server = Server::start(BINARY, &format!("{main} {text}"));
        server.wait_for_log("connection to 127.0.0.1 failed", Deadline::default());
        let text = std::fs::read_to_string(format!("/proc/{}/status", agent(&server))).expect("procfs");
        let mode = text.lines().find_map(|line| line.strip_prefix("Seccomp:")).expect("a row").trim();
        assert_eq!(mode, filters, "{main}");
    }
}

//! `ringroad serve --tls`: certificates from the local CA, its root certificate across restarts, renewal, damaged and
//! foreign files. The clients are rustls and, if installed, curl.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::control::BINARY;
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testkit::program::Program;
use testkit::{Deadline, TempDir, wait};

/// A site, the user's data directory, and the directory for the programs' output.
struct Desk {
    site: TempDir,
    data: TempDir,
    said: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let site = TempDir::new("site");
        site.write("index.html", "<p>home</p>");
        Desk { site, data: TempDir::new("data"), said: TempDir::new("said") }
    }

    fn directory(&self) -> PathBuf {
        self.data.path().join("ringroad/local-authority")
    }

    fn spawn(&self, env: &[(&str, &str)]) -> Program {
        let mut command = Command::new(BINARY);
        command.envs(env.iter().copied());
        command.arg("serve").arg(self.site.path()).args(["--tls", "--listen", "127.0.0.1:0"]);
        command.env("XDG_DATA_HOME", self.data.path());
        Program::spawn(command, self.said.path())
    }

    /// Starts the server, and returns its port.
    fn serve(&self) -> (Program, u16) {
        self.serve_with(&[])
    }

    fn serve_with(&self, env: &[(&str, &str)]) -> (Program, u16) {
        let mut program = self.spawn(env);
        let line = program.wait_for_output("https://", Deadline::default());
        let port = line.trim().strip_prefix("https://127.0.0.1:").and_then(|rest| rest.strip_suffix('/'));
        let port = port.and_then(|port| port.parse().ok()).expect("a URL alone on its line");
        (program, port)
    }

    /// Starts a server that must fail; returns its message.
    fn refused(&self) -> String {
        let mut program = self.spawn(&[]);
        assert_eq!(program.wait_until_ended(Deadline::default()).code(), Some(1));
        program.stderr()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.directory().join(name)).expect("it is there")
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Connects as a client that trusts only one root, and completes the TLS handshake.
fn connect(root: &[u8], port: u16, name: &str, alpn: &[&str]) -> Result<Tls, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root).expect("PEM")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let server = ServerName::try_from(name.to_owned()).expect("a name");
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
    let mut tls =
        StreamOwned::new(ClientConnection::new(Arc::new(config), server).expect("a session"), socket);
    tls.flush().map_err(|error| error.to_string())?;
    Ok(tls)
}

/// Returns the response to a client that trusts only this root, and the protocol that ALPN has selected from `alpn`.
fn get(root: &[u8], port: u16, name: &str, alpn: &[&str]) -> Result<(String, Option<String>), String> {
    let mut tls = connect(root, port, name, alpn)?;
    let chosen = tls.conn.alpn_protocol().map(|chosen| String::from_utf8_lossy(chosen).into_owned());
    let mut response = String::new();
    if chosen.as_deref() != Some("h2") {
        tls.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it is sent");
        tls.read_to_string(&mut response).expect("a response");
    }
    Ok((response, chosen))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn stop(mut program: Program) {
    program.signal(Signal::INT);
    assert!(program.wait_until_ended(Deadline::default()).success());
}

#[test]
fn clients_that_trust_the_root_can_use_every_name() {
    let desk = Desk::new();
    let (program, port) = desk.serve();
    let root = desk.read("root.pem");
    let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    for name in ["localhost", "127.0.0.1", "::1", &host] {
        let (response, _) = get(&root, port, name, &["http/1.1"]).expect("it is trusted");
        assert!(response.ends_with("<p>home</p>"), "{name}: {response}");
    }
    let (_, chosen) = get(&root, port, "localhost", &["h2", "http/1.1"]).expect("it is trusted");
    assert_eq!(chosen.as_deref(), Some("h2"));
    let refused = get(&root, port, "example.org", &[]).expect_err("it is for other names");
    assert!(refused.contains("certificate not valid for name"), "{refused}");
    // Output with instructions for clients, but without the path of a private key.
    let said = program.stdout();
    assert!(
        said.contains(&format!("curl --cacert '{}'", desk.directory().join("root.pem").display())),
        "{said}"
    );
    for system in [&format!("sudo {BINARY} trust '"), "certutil", "Firefox"] {
        assert!(said.contains(system), "{said}");
    }
    assert!(!said.contains("key.pem"), "{said}");
    assert_eq!(mode(&desk.directory()), 0o700);
    assert_eq!(mode(&desk.directory().join("root-key.pem")), 0o600);
    assert_eq!(mode(&desk.directory().join("server.pem")), 0o600);
    stop(program);
    assert!(!desk.site.path().join("logs").exists(), "nothing is written into the site");
}

#[test]
fn curl_verifies_the_connection() {
    if Command::new("curl").arg("--version").output().is_err() {
        return testkit::skip("curl is not installed");
    }
    let desk = Desk::new();
    let (program, port) = desk.serve();
    let curl = |more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--http2", "--write-out", " %{http_version}"]).args(more);
        command.arg(format!("https://localhost:{port}/")).output().expect("it runs")
    };
    let root = desk.directory().join("root.pem").display().to_string();
    let trusting = curl(&["--cacert", &root]);
    assert_eq!(String::from_utf8_lossy(&trusting.stdout), "<p>home</p> 2", "{trusting:?}");
    assert!(!curl(&[]).status.success(), "without the root there is no trust");
    stop(program);
}

#[test]
fn a_restart_uses_the_same_root_and_certificate() {
    let desk = Desk::new();
    let (program, _) = desk.serve();
    let (root, server) = (desk.read("root.pem"), desk.read("server.pem"));
    stop(program);
    let (program, port) = desk.serve();
    assert_eq!((desk.read("root.pem"), desk.read("server.pem")), (root.clone(), server));
    get(&root, port, "localhost", &[]).expect("it is trusted");
    stop(program);
    // The server's certificate is signed by the root: a damaged one is replaced.
    std::fs::write(desk.directory().join("server.pem"), "damaged").expect("it is ours");
    let (program, port) = desk.serve();
    get(&root, port, "localhost", &[]).expect("it is trusted");
    stop(program);
}

/// A server that runs longer than its certificate is valid: clients get the next one before that, and open connections
/// are not affected.
#[test]
fn certificates_are_renewed_while_the_server_runs() {
    let desk = Desk::new();
    let (program, port) = desk.serve_with(&[("RINGROAD_LOCAL_CERTIFICATE_SECONDS", "16")]);
    let root = desk.read("root.pem");
    let mut open = connect(&root, port, "localhost", &["http/1.1"]).expect("it is trusted");
    let mut seen = Vec::new();
    // Each is renewed after half of its lifetime: with the third certificate the first one's lifetime is over.
    let all = || {
        let tls = connect(&root, port, "localhost", &["http/1.1"]).expect("it is valid at each moment");
        let shown = tls.conn.peer_certificates().expect("a chain")[0].to_vec();
        if !seen.contains(&shown) {
            seen.push(shown);
        }
        (seen.len() == 4).then_some(())
    };
    wait::until("further certificates", Deadline::after(Duration::from_secs(120)), all).expect("they come");
    open.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it is sent");
    let mut response = String::new();
    open.read_to_string(&mut response).expect("a response");
    assert!(response.ends_with("<p>home</p>"), "{response}");
    assert_eq!(desk.read("root.pem"), root, "the root is the same");
    stop(program);
}

#[test]
fn damaged_and_unrelated_files_are_refused_by_name() {
    let desk = Desk::new();
    let (program, _) = desk.serve();
    stop(program);
    let directory = desk.directory();
    let key = directory.join("root-key.pem");
    let kept = desk.read("root-key.pem");

    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let said = desk.refused();
    let expected = format!("\"{}\" must belong to this user, with mode 0600 (it has 0644)", key.display());
    assert!(said.contains(&expected), "{said}");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("it is ours");

    std::fs::write(&key, "damaged").expect("it is ours");
    let said = desk.refused();
    let expected = format!("the local certificate authority in \"{}\" cannot be used: ", directory.display());
    assert!(said.contains(&expected) && said.contains("no readable private key"), "{said}");
    assert!(said.contains("remove the directory"), "{said}");

    let foreign = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::default().self_signed(&foreign).expect("a certificate");
    std::fs::write(&key, foreign.serialize_pem()).expect("it is ours");
    assert!(desk.refused().contains("certificate and key do not match"));
    std::fs::write(directory.join("root.pem"), certificate.pem()).expect("it is ours");
    assert!(desk.refused().contains("another program created the root certificate"));

    std::fs::write(&key, kept).expect("it is ours");
    std::fs::remove_file(directory.join("root.pem")).expect("it is there");
    let said = desk.refused();
    let expected =
        format!("cannot read or write \"{}\": 2: No such file", directory.join("root.pem").display());
    assert!(said.contains(&expected), "{said}");
}

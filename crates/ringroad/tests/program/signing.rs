//! The signing process of `sandbox strict`: private keys stay out of workers, across reloads, renewals and deaths of processes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use rcgen::ExtendedKeyUsagePurpose;
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion, version};
use testkit::program::signal_process;
use testkit::server::{ServerBuilder, StrictLimit};
use testkit::{Deadline, Server};

use crate::common::serve_with;
use crate::common::tls::{Authority, BOTH, files, get, one, text};
use crate::control::BINARY;

/// Returns a configuration for which a signing process is used.
fn strict(conf: &str) -> String {
    format!("sandbox strict; {conf}")
}

fn start(conf: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Server {
    serve_with(&strict(conf), prepare)
}

/// Returns the process ID of the newest signing process.
fn signer(server: &Server) -> i32 {
    let find = || {
        let log = server.error_log();
        let last = log.lines().rev().find(|line| line.contains("start signing process "))?;
        last.rsplit(' ').next()?.parse().ok()
    };
    testkit::wait::until("a signing process", Deadline::default(), find).expect("it starts")
}

/// Makes a full handshake and a request; returns the certificate of the server, or the error.
fn shake(
    address: std::net::SocketAddr,
    config: &Arc<ClientConfig>,
    name: &str,
) -> std::io::Result<CertificateDer<'static>> {
    let server_name = ServerName::try_from(name.to_owned()).expect("a name");
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Deadline::default().left())?;
    // Without stored sessions every handshake needs a signature.
    let mut config = ClientConfig::clone(config);
    config.resumption = rustls::client::Resumption::disabled();
    let session = ClientConnection::new(Arc::new(config), server_name).expect("a session");
    let mut tls = StreamOwned::new(session, socket);
    tls.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut response = Vec::new();
    tls.read_to_end(&mut response)?;
    assert!(text(&response).starts_with("HTTP/1.1 200"), "{}", text(&response));
    Ok(tls.conn.peer_certificates().expect("a certificate")[0].clone())
}

fn der(pair: &(String, String)) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pair.0.as_bytes()).expect("PEM")
}

/// Returns which of these texts are in the memory of a process; `None` if this test may not read it.
fn found_in_memory(pid: i32, wanted: &[Vec<u8>]) -> Option<BTreeSet<usize>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut found = BTreeSet::new();
    let mut is_read = false;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (range, _) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("two addresses");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, end) = (number(start), number(end));
        let mut bytes = vec![0; usize::try_from(end - start).expect("it fits")];
        // Pages that no process has touched cannot be read.
        let Ok(count) = memory.read_at(&mut bytes, start) else { continue };
        is_read = true;
        for (index, text) in wanted.iter().enumerate() {
            if bytes[..count].windows(text.len()).any(|window| window == text) {
                found.insert(index);
            }
        }
    }
    is_read.then_some(found)
}

/// Returns a line from the middle of a key in PEM, which occurs nowhere else.
fn line_of(pem: &str) -> Vec<u8> {
    let lines: Vec<&str> = pem.lines().collect();
    lines[lines.len() / 2].as_bytes().to_vec()
}

/// Encrypts a key with a password.
fn encrypted(key: &str, password: &str) -> Option<String> {
    let mut child = std::process::Command::new("openssl")
        .args(["pkcs8", "-topk8", "-v2", "aes128", "-passout", &format!("pass:{password}")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(key.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).expect("PEM"))
}

#[test]
fn no_key_and_no_password_is_in_the_memory_of_a_worker() {
    const PASSWORD: &str = "correct-horse-battery";
    let authority = Authority::new("root");
    let (ecdsa, rsa, other) =
        (authority.server("a.test"), authority.rsa("a.test"), authority.server("b.test"));
    let Some(locked) = encrypted(&other.1, PASSWORD) else {
        return testkit::skip(format_args!("no openssl"));
    };
    let client = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let who = "ssl_verify_client on; ssl_client_certificate root.pem; return 200 '$ssl_client_s_dn';";
    let upstream =
        serve_with(&one(who), |builder| files(builder, "a", &ecdsa).text("conf/root.pem", &authority.pem));
    let port = upstream.addr(0).tcp().port();
    // The file of a.test has its key in front of the certificate.
    let conf = format!(
        "worker_processes 2; error_log logs/error.log info; events {{}} http {{\n\
         server {{ listen 127.0.0.1:0 ssl; server_name a.test;\n\
           ssl_certificate both.pem; ssl_certificate_key both.pem; ssl_certificate r.pem; ssl_certificate_key r.key;\n\
           location / {{ return 200 x; }}\n\
           location /up {{ proxy_pass https://127.0.0.1:{port}; proxy_ssl_certificate c.pem;\n\
             proxy_ssl_certificate_key c.key; proxy_ssl_session_reuse off; }}\n\
           location /up12 {{ proxy_pass https://127.0.0.1:{port}; proxy_ssl_certificate c.pem;\n\
             proxy_ssl_certificate_key c.key; proxy_ssl_protocols TLSv1.2; proxy_ssl_session_reuse off; }} }}\n\
         server {{ listen 127.0.0.1:0 ssl; server_name b.test; ssl_certificate b.pem; ssl_certificate_key b.key;\n\
           ssl_password_file passwords; location / {{ return 200 x; }} }} }}"
    );
    let prepare = |builder: ServerBuilder| {
        let builder = files(files(builder, "r", &rsa), "c", &client);
        let builder = files(builder, "b", &(other.0.clone(), locked.clone()));
        builder
            .text("conf/both.pem", &format!("{}{}", ecdsa.1, ecdsa.0))
            .text("conf/passwords", &format!("wrong\n{PASSWORD}\n"))
    };
    let secrets = [&ecdsa.1, &rsa.1, &client.1, &locked].map(|pem| line_of(pem));
    let secrets: Vec<_> = secrets.into_iter().chain([PASSWORD.as_bytes().to_vec()]).collect();
    // Without a signing process the worker has the files.
    let open = serve_with(&conf, |builder| prepare(builder.not_strict(StrictLimit::KeyInWorker)));
    let Some(found) = found_in_memory(open.worker(), &secrets) else {
        return testkit::skip(format_args!("the memory of other processes cannot be read"));
    };
    assert_eq!(found.len(), secrets.len(), "{found:?}");
    let server = start(&conf, prepare);
    for versions in [&[&version::TLS13][..], &[&version::TLS12]] {
        let clients = authority.clients(versions, None);
        shake(server.addr(0).tcp(), &clients, "a.test").expect("a handshake");
        assert_eq!(shake(server.addr(0).tcp(), &clients, "b.test").expect("a handshake"), der(&other));
    }
    assert_eq!(shake(server.addr(0).tcp(), &only_rsa(&authority), "a.test").expect("a handshake"), der(&rsa));
    let clients = authority.clients(BOTH, None);
    for target in ["/up", "/up12"] {
        assert!(text(&get(&server, &clients, "a.test", target)).ends_with("CN=client"), "{target}");
    }
    let [worker] = server.workers()[..] else { panic!("{:?}", server.workers()) };
    assert_eq!(found_in_memory(worker, &secrets), Some(BTreeSet::new()));
    crate::common::assert_no_errors(&server);
}

/// Returns clients that accept only signatures by RSA.
fn only_rsa(authority: &Authority) -> Arc<ClientConfig> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| format!("{:?}", suite.suite()).contains("ECDHE_RSA"));
    let versions: &[&SupportedProtocolVersion] = &[&version::TLS12];
    let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(versions);
    Arc::new(builder.expect("TLS 1.2").with_root_certificates(authority.roots()).with_no_client_auth())
}

#[test]
fn the_signing_process_is_confined() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = start(&one("return 200 x;"), |builder| files(builder, "a", &own));
    shake(server.addr(0).tcp(), &authority.clients(BOTH, None), "a.test").expect("a handshake");
    let pid = signer(&server);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line[name.len() + 1..].trim().to_owned()
    };
    assert_eq!((value("NoNewPrivs").as_str(), value("Seccomp").as_str()), ("1", "2"));
    assert_eq!(value("CapEff"), "0000000000000000");
    // The files of a process that is not dumpable belong to root.
    let owner = std::fs::metadata(format!("/proc/{pid}/maps")).expect("it lives").uid();
    assert_eq!(owner, 0);
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it lives");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    // Only pairs of sockets, and /dev/null as standard streams.
    let others: Vec<String> = testkit::process::fd_targets(pid)
        .into_iter()
        .filter(|target| {
            !target.starts_with("socket:") && target != "/dev/null" && !target.starts_with("anon_inode")
        })
        .filter(|target| !target.starts_with("pipe:") && !target.contains("/logs/"))
        .collect();
    assert_eq!(others, Vec::<String>::new());
    // It ends with the master.
    signal_process(server.pid(), Signal::KILL).expect("it lives");
    let ended = || (!testkit::process::is_alive(pid)).then_some(());
    testkit::wait::until("its end", Deadline::default(), ended).expect("it ends");
}

#[test]
fn the_signing_process_raises_its_soft_limit_of_open_files() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = start(&one("return 200 x;"), |builder| files(builder, "a", &own).shell("ulimit -S -n 256"));
    let (soft, hard) = crate::limits::limit(signer(&server), "Max open files");
    assert_eq!(soft, hard);
    shake(server.addr(0).tcp(), &authority.clients(BOTH, None), "a.test").expect("a handshake");
    crate::common::assert_no_errors(&server);
}

#[test]
fn a_reload_in_place_brings_changed_and_further_keys() {
    let authority = Authority::new("root");
    let (first, second) = (authority.server("a.test"), authority.server("a.test"));
    let conf = one("return 200 x;");
    let mut server = start(&conf, |builder| files(builder, "a", &first));
    let (worker, pid) = (server.workers(), signer(&server));
    let clients = authority.clients(BOTH, None);
    let address = server.addr(0).tcp();
    assert_eq!(shake(address, &clients, "a.test").expect("a handshake"), der(&first));
    std::fs::write(server.path("conf/a.pem"), &second.0).expect("it is written");
    std::fs::write(server.path("conf/a.key"), &second.1).expect("it is written");
    server.reload();
    server.wait_for_log_count("was replaced by", 1, Deadline::default());
    assert_eq!(shake(address, &clients, "a.test").expect("a handshake"), der(&second));
    let further = authority.rsa("b.test");
    std::fs::write(server.path("conf/b.pem"), &further.0).expect("it is written");
    std::fs::write(server.path("conf/b.key"), &further.1).expect("it is written");
    let more = "server { listen 127.0.0.1:0 ssl; server_name b.test; ssl_certificate b.pem; ssl_certificate_key b.key;\n\
                return 200 x; }";
    let end = conf.rfind('}').expect("the end of http");
    server.rewrite_conf(&strict(&format!("{}{more} }}", &conf[..end])));
    server.reload();
    server.wait_for_log_count("was replaced by", 2, Deadline::default());
    assert_eq!(shake(address, &clients, "b.test").expect("a handshake"), der(&further));
    assert_eq!(shake(address, &clients, "a.test").expect("a handshake"), der(&second));
    assert_eq!((server.workers(), signer(&server)), (worker, pid), "both processes stay");
    // A configuration without a signing process needs another worker; the signing process ends with the old one.
    server.rewrite_conf(&format!("sandbox on; {conf}"));
    server.reload();
    server.wait_for_log("a new worker process is needed", Deadline::default());
    let ended = || (!testkit::process::is_alive(pid)).then_some(());
    testkit::wait::until("the end of the signing process", Deadline::default(), ended).expect("it ends");
    assert_eq!(shake(address, &clients, "a.test").expect("a handshake"), der(&second));
}

#[test]
fn a_killed_signing_process_is_replaced() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = start(&one("return 200 x;"), |builder| files(builder, "a", &own));
    let clients = authority.clients(BOTH, None);
    for round in 1..4 {
        let killed = signer(&server);
        signal_process(killed, Signal::KILL).expect("it lives");
        // Handshakes meanwhile wait for the next process.
        for _ in 0..5 {
            shake(server.addr(0).tcp(), &clients, "a.test").expect("a handshake");
        }
        server.wait_for_log(&format!("signing process {killed} exited on signal 9"), Deadline::default());
        server.wait_for_log_count("start signing process ", round + 1, Deadline::default());
    }
    assert_eq!(server.workers().len(), 1);
}

#[test]
fn a_killed_worker_is_replaced_and_uses_the_same_keys() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = start(&one("return 200 x;"), |builder| files(builder, "a", &own));
    let pid = signer(&server);
    signal_process(server.worker(), Signal::KILL).expect("it lives");
    server.wait_for_log("exited on signal 9", Deadline::default());
    let clients = authority.clients(BOTH, None);
    let again = || shake(server.addr(0).tcp(), &clients, "a.test").ok();
    let shown = testkit::wait::until("a handshake", Deadline::default(), again);
    assert_eq!(shown.expect("it succeeds"), der(&own));
    assert_eq!(signer(&server), pid);
}

#[test]
fn handshakes_fail_with_a_line_while_the_signing_process_does_not_respond() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = start(&one("return 200 x;"), |builder| files(builder, "a", &own));
    let clients = authority.clients(BOTH, None);
    let pid = signer(&server);
    signal_process(pid, Signal::STOP).expect("it lives");
    let begun = std::time::Instant::now();
    for _ in 0..10 {
        assert!(shake(server.addr(0).tcp(), &clients, "a.test").is_err());
    }
    server.wait_for_log_count("(SSL: unexpected error: signing process: ", 10, Deadline::default());
    let log = server.error_log();
    let lines = |reason: &str| log.lines().filter(|line| line.contains(reason)).collect::<Vec<_>>();
    let (waited, others) = (lines("it does not respond"), lines("it did not respond to an earlier request"));
    assert_eq!(waited.len() + others.len(), 10, "{log}");
    assert!([&waited[..], &others].concat().iter().all(|line| line.contains("[error]")), "{log}");
    // The first one waits for the signing process. The others fail immediately, except one after each three seconds.
    let waited_max = 1 + begun.elapsed().as_secs() / 3;
    assert!((1..=waited_max).contains(&(waited.len() as u64)), "{log}");
    signal_process(pid, Signal::CONT).expect("it lives");
    let again = || shake(server.addr(0).tcp(), &clients, "a.test").ok();
    let shown = testkit::wait::until("a handshake", Deadline::default(), again);
    assert_eq!(shown.expect("it succeeds"), der(&own));
}

/// Returns a configuration with a CA that has this directive.
fn with_issuer(directive: &str) -> String {
    let issuer = format!(
        "acme_issuer a {{ uri https://localhost/; state_path off; accept_terms_of_service; {directive} }} server"
    );
    one("return 200 x;").replacen("server", &issuer, 1)
}

#[test]
fn secrets_that_workers_would_read_are_refused_with_a_position() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let inline = one("return 200 x;")
        .replace("ssl_certificate_key a.key", &format!("ssl_certificate_key \"data:{}\"", own.1));
    let cases = [
        (
            one("return 200 x;")
                .replace("ssl_certificate_key a.key", "ssl_certificate_key $ssl_server_name.key"),
            "\"ssl_certificate_key\" has variables, so that workers would read the key",
        ),
        (
            one(
                "location / { proxy_pass https://127.0.0.1:1; proxy_ssl_certificate a.pem; proxy_ssl_certificate_key $arg_a; }",
            ),
            "\"proxy_ssl_certificate_key\" has variables, so that workers would read the key",
        ),
        (inline, "\"ssl_certificate_key\" contains the key, so that workers would have it"),
        (
            one("return 200 x;")
                .replace("ssl_certificate a", "ssl_password_file data:secret; ssl_certificate a"),
            "\"ssl_password_file\" contains the secret, so that workers would have it",
        ),
        (
            with_issuer(&format!("account_key \"data:{}\";", own.1)),
            "\"account_key\" contains the secret, so that workers would have it",
        ),
        (
            with_issuer("external_account_key kid data:Zm9v;"),
            "\"external_account_key\" contains the secret, so that workers would have it",
        ),
        (
            format!("master_process off; {}", one("return 200 x;")),
            "\"sandbox strict\" needs a master process",
        ),
    ];
    for (conf, expected) in cases {
        let test = |conf: &str| {
            let builder = Server::builder(BINARY).conf(conf).arg("-t").not_strict(StrictLimit::KeyInWorker);
            files(builder, "a", &own).run_to_end()
        };
        let (ended, said) = test(&conf);
        assert!(ended.success(), "{said}");
        let (ended, said) = test(&strict(&conf));
        let line = said.lines().find(|line| line.contains(expected)).unwrap_or_else(|| panic!("{said}"));
        assert!(!ended.success() && line.contains("conf/nginx.conf:"), "{line}");
    }
}

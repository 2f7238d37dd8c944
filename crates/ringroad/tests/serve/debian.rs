//! Debian's default nginx configuration loads and serves unchanged, except for paths and ports.
//!
//! `tests/debian/nginx` has files with the same directives, so that the test runs everywhere. If Debian's own files are
//! installed, they are used as well, and responses are compared with its nginx.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use crate::common::{BINARY, ours_only};
use testkit::server::ServerBuilder;
use testkit::{Client, Deadline, ListenAddr, Server, nginx};

/// Debian's configuration directory.
const INSTALLED: &str = "/etc/nginx";

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/debian/nginx")
}

/// Returns the listen addresses of the default site. Without IPv6 a second port replaces the IPv6 address.
fn addresses(ports: [u16; 2]) -> [SocketAddr; 2] {
    let has_ipv6 = TcpListener::bind(("::1", 0)).is_ok();
    let second = if has_ipv6 { IpAddr::from(Ipv6Addr::LOCALHOST) } else { IpAddr::from(Ipv4Addr::LOCALHOST) };
    [(Ipv4Addr::LOCALHOST, ports[0]).into(), (second, ports[1]).into()]
}

/// Returns the configuration with paths below `root` and other addresses.
fn localised(text: &str, root: &Path, ports: [u16; 2]) -> String {
    let (root, [first, second]) = (root.display(), addresses(ports));
    text.replace("/etc/nginx", &format!("{root}/conf"))
        // The test harness reads addresses from a notice.
        .replace("/var/log/nginx/error.log;", &format!("{root}/logs/error.log notice;"))
        .replace("/var/log/nginx", &format!("{root}/logs"))
        .replace("/var/www/html", &format!("{root}/html"))
        .replace("/run/nginx.pid", &format!("{root}/logs/nginx.pid"))
        .replace("load_module modules/", "load_module /usr/lib/nginx/modules/")
        .replace("listen 80 ", &format!("listen {first} "))
        .replace("listen [::]:80 ", &format!("listen {second} "))
}

/// Copies a directory of configurations, following links.
fn install(from: &Path, to: &Path, root: &Path, ports: [u16; 2]) {
    testkit::create_dir_all(to).expect("a directory of the test");
    for entry in fs::read_dir(from).expect("the directory exists") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            install(&path, &target, root, ports);
        } else {
            let text = fs::read_to_string(&path).expect("a configuration is text");
            testkit::write(target, localised(&text, root, ports)).expect("a file of the test");
        }
    }
}

/// Returns a builder with these files, `more` after the default site, and a document root.
fn prepared(binary: &str, from: &Path, more: &str, ports: [u16; 2]) -> ServerBuilder {
    let builder = Server::builder(binary)
        .text("html/index.nginx-debian.html", "<h1>Welcome</h1>")
        .text("html/a.css", "a {}")
        .text("html/long.html", &"long ".repeat(1000))
        .text("html/folder/index.htm", "in the folder");
    let root = builder.dir().to_owned();
    install(from, &root.join("conf"), &root, ports);
    let text = |name: &str| {
        let text = fs::read_to_string(from.join(name)).expect("Debian's files are complete");
        localised(&text, &root, ports)
    };
    let site = format!("{}\n{more}", text("sites-available/default"));
    builder.text("conf/sites-enabled/default", &site).conf(&text("nginx.conf"))
}

/// Returns the compared parts of a response.
fn facts(client: &mut Client, target: &str) -> (u16, Option<String>, Option<String>, Vec<u8>) {
    let response = client.request("GET", target, &[("Accept-Encoding", "gzip")]);
    let field = |name: &str| response.field(name).map(str::to_owned);
    // Error pages contain the server's name, and compressed bytes depend on the library.
    let is_plain = response.status == 200 && response.field("Content-Encoding").is_none();
    let body = if is_plain { response.body.clone() } else { Vec::new() };
    (response.status, field("Content-Type"), field("Content-Encoding"), body)
}

fn check(server: &Server) {
    for index in 0..2 {
        let mut client = Client::connect(server.addr(index));
        let index = client.get("/");
        let field = |name| index.field(name);
        assert_eq!((index.status, index.text().as_str()), (200, "<h1>Welcome</h1>"));
        assert_eq!((field("Content-Type"), field("Server")), (Some("text/html"), field("Server")));
        assert_eq!(client.get("/a.css").field("Content-Type"), Some("text/css"));
        let redirect = client.get("/folder");
        assert_eq!(redirect.status, 301);
        assert!(redirect.field("Location").is_some_and(|location| location.ends_with("/folder/")));
        assert_eq!(client.get("/folder/").text(), "in the folder");
        assert_eq!(client.get("/none").status, 404);
        let zipped = client.request("GET", "/", &[("Accept-Encoding", "gzip")]);
        assert_eq!(zipped.field("Content-Encoding"), None, "it is shorter than gzip_min_length");
        let zipped = client.request("GET", "/long.html", &[("Accept-Encoding", "gzip")]);
        assert_eq!((zipped.field("Content-Encoding"), zipped.body.len() < 200), (Some("gzip"), true));
    }
    let log = server.wait_for_access_log(14, Deadline::default());
    assert!(
        log.contains("127.0.0.1 - - [") && log.contains("] \"GET /folder/ HTTP/1.1\" 200 13 \"-\" \"-\"")
    );
}

#[test]
fn the_default_configuration_serves() {
    if !ours_only("the test is about this project's parser") {
        return;
    }
    let server = prepared(BINARY, &own(), "", [0, 0]).start();
    check(&server);
    let log = server.error_log();
    assert!(log.contains("versions that are not supported are left out: TLSv1, TLSv1.1 in "), "{log}");
    // One line for all modules that Debian loads.
    assert_eq!(log.matches("loaded").count(), 1, "{log}");
    assert!(log.contains(" modules are not loaded, each is built in or not used: "), "{log}");
    assert!(server.quit_and_wait().success());
}

#[test]
fn the_snippets_can_be_included() {
    if !ours_only("the test is about this project's parser") {
        return;
    }
    // The certificate that the snippet names is in a separate package.
    let has_certificate = Path::new("/etc/ssl/private/ssl-cert-snakeoil.key").exists();
    let snakeoil = if has_certificate { "include snippets/snakeoil.conf;" } else { "" };
    let more = format!(
        "include koi-utf; include koi-win; include win-utf;
        server {{ listen 127.0.0.1:0; server_name other; {snakeoil} charset koi8-r;
                 location / {{ return 200 here; }} }}"
    );
    let server = prepared(BINARY, &own(), &more, [0, 0]).start();
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.request("GET", "/", &[("Host", "other")]).text(), "here");
    assert!(server.quit_and_wait().success());
}

#[test]
fn snippets_for_gateways_load() {
    for file in GATEWAY_FILES {
        let more = format!("server {{ listen 127.0.0.1:0; location / {{ include {file}; }} }}");
        let (status, message) = prepared(BINARY, &own(), &more, [0, 0]).arg("-t").run_to_end();
        assert!(status.success(), "{file}: {message}");
    }
}

/// Files of Debian's package that locations include.
const GATEWAY_FILES: [&str; 4] =
    ["fastcgi_params", "snippets/fastcgi-php.conf", "scgi_params", "uwsgi_params"];

#[test]
fn the_installed_files_serve_the_same_as_nginx() {
    if !ours_only("the test starts both servers") {
        return;
    }
    let installed = Path::new(INSTALLED);
    if !installed.join("nginx.conf").exists() || !Path::new(nginx::BINARY).exists() {
        testkit::skip("nginx is not installed (apt-get install nginx-light)");
        return;
    }
    let ours = prepared(BINARY, installed, "", [0, 0]).start();
    check(&ours);
    let theirs = start_nginx(installed);
    for index in 0..2 {
        let (mut ours, mut theirs) = (Client::connect(ours.addr(index)), Client::connect(theirs.addr(index)));
        for target in
            ["/", "/a.css", "/long.html", "/folder", "/folder/", "/none", "/folder/none.html", "/?x=1"]
        {
            assert_eq!(facts(&mut ours, target), facts(&mut theirs, target), "{target}");
        }
    }
    assert!(ours.quit_and_wait().success());
}

/// nginx cannot report kernel-assigned ports, so it is started again if another process took the port first.
fn start_nginx(from: &Path) -> Server {
    for _ in 0..5 {
        let free = || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let ports = [free(), free()].map(|address| address.expect("a free port").port());
        let known = addresses(ports).map(ListenAddr::Tcp).to_vec();
        let builder = prepared(nginx::BINARY, from, "", ports).addresses(known);
        match builder.arg("-e").arg("logs/error.log").try_start() {
            Ok(server) => return server,
            Err(failure) => assert!(failure.contains("Address already in use"), "{failure}"),
        }
    }
    panic!("no port stays free");
}

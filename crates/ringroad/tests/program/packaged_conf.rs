//! The configurations of the packages and of the container image serve their page.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::control::BINARY;
use testkit::ports::free_port;
use testkit::program::run;
use testkit::{Client, ListenAddr, Server};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Replaces paths and ports of a package by those of a test.
fn moved(text: &str, dir: &Path) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    let text = text
        .replace("user www-data;", "daemon off;")
        .replace("pid /run/ringroad.pid", "pid logs/nginx.pid")
        .replace("/run/ringroad-", &at("ringroad-"))
        .replace("/tmp/ringroad-admin.sock", &at("ringroad-admin.sock"))
        .replace("pid /tmp/ringroad.pid", "pid logs/nginx.pid; daemon off")
        .replace("/var/log/ringroad/error.log", "logs/error.log notice")
        .replace("error_log /dev/stderr", "error_log logs/error.log notice")
        .replace("/dev/stdout", "logs/access.log")
        .replace("/var/log/ringroad/", "logs/")
        .replace("/usr/share/ringroad/html", &root().join("packaging/html").display().to_string())
        .replace("_temp_path /tmp/", &format!("_temp_path {}/", at("logs")));
    text.replace("listen 80 ", &format!("listen 127.0.0.1:{} ", free_port()))
        .replace("listen [::]:80 default_server;", "")
        .replace("listen 8080 ", "listen 127.0.0.1:0 ")
}

/// Returns the port, besides which packages have a unix socket.
fn port(server: &Server) -> ListenAddr {
    let mut addresses = server.logged_addresses().into_iter();
    addresses.find(|address| matches!(address, ListenAddr::Tcp(_))).expect("a port")
}

fn page(server: &Server) {
    let page = Client::connect(&port(server)).get("/");
    assert_eq!(page.status, 200);
    assert!(page.text().contains("Ringroad is installed and serves this page"));
    assert!(page.field("content-type").is_some_and(|kind| kind.starts_with("text/html")));
}

#[test]
fn the_site_of_the_debian_package_is_served() {
    let builder = Server::builder(BINARY);
    let dir = builder.dir().to_owned();
    let conf = moved(&text("packaging/etc/ringroad.conf"), &dir);
    let site = moved(&text("packaging/etc/sites-available/default"), &dir);
    let with_snippets = site.replace("try_files", "include snippets/security-headers.conf; try_files");
    let builder = builder
        .conf(&conf)
        .text("conf/mime.types", &text("examples/mime.types"))
        .text("conf/conf.d/status.conf", &moved(&text("packaging/etc/conf.d/status.conf"), &dir))
        .text("conf/sites-available/default", &with_snippets)
        .text("conf/snippets/security-headers.conf", &text("packaging/etc/snippets/security-headers.conf"));
    std::fs::create_dir(dir.join("conf/sites-enabled")).expect("new");
    symlink("../sites-available/default", dir.join("conf/sites-enabled/default")).expect("new");
    let server = builder.start();
    page(&server);
    let response = Client::connect(&port(&server)).get("/nowhere");
    assert_eq!((response.status, response.field("x-content-type-options")), (404, Some("nosniff")));
    operated(&server, "conf/nginx.conf");
}

/// The commands of an operator find what they need in the configuration, without further arguments.
fn operated(server: &Server, conf: &str) {
    let prefix = format!("{}/", server.dir().display());
    let command = |args: &[&str]| {
        let said = run(BINARY, &[args, &["-p", &prefix, "-c", conf]].concat());
        assert!(said.status.success(), "{args:?}: {}", said.stderr);
        said.stdout + &said.stderr
    };
    assert!(command(&["-t", "--diff"]).contains("test is successful"));
    let url = format!("http://{}/", port(server));
    assert!(command(&["explain", "--running", &url]).contains("response"));
    assert!(command(&["top", "-1", "--every", "1"]).contains("requests"));
    assert!(command(&["health"]).contains("status 200, \"ok\""));
    command(&["drain"]);
    command(&["undrain"]);
}

#[test]
fn the_image_serves_its_page_and_its_health_check() {
    let builder = Server::builder(BINARY);
    let conf = moved(&text("packaging/image/ringroad.conf"), builder.dir());
    let server = builder.conf(&conf).text("conf/mime.types", &text("examples/mime.types")).start();
    page(&server);
    assert_eq!(Client::connect(server.addr(0)).get("/health").status, 200);
}

/// The socket of the Debian package has the metrics for every user, and changes nothing.
#[test]
fn the_status_of_the_debian_package_is_read_through_a_socket() {
    let builder = Server::builder(BINARY);
    let dir = builder.dir().to_owned();
    let conf = moved(&text("packaging/etc/ringroad.conf"), &dir);
    let server = builder
        .conf(&conf)
        .text("conf/mime.types", &text("examples/mime.types"))
        .text("conf/conf.d/status.conf", &moved(&text("packaging/etc/conf.d/status.conf"), &dir))
        .start();
    let socket = ListenAddr::Unix(dir.join("ringroad-status.sock"));
    assert!(Client::connect(&socket).get("/metrics").text().contains("ringroad_build_info"));
    assert!(Client::connect(&socket).get("/api/9/nginx").text().contains("version"));
    assert_eq!(
        Client::connect(&socket).request("DELETE", "/api/9/http/upstreams/a/servers/0", &[]).status,
        405
    );
    let prefix = format!("{}/", server.dir().display());
    let said = run(BINARY, &["stat", "-1", "-p", &prefix, "-c", "conf/nginx.conf"]);
    assert!(said.status.success() && said.stdout.contains("requests/s"), "{}", said.stderr);
}

#[test]
fn the_commented_parts_of_the_site_load() {
    let builder = Server::builder(BINARY);
    let dir = builder.dir().to_owned();
    let site = text("packaging/etc/sites-available/default");
    let parts = site.lines().filter_map(|line| {
        let part = line.strip_prefix("    #")?;
        (!part.starts_with(' ') || part.starts_with("    ")).then(|| format!("{part}\n"))
    });
    let parts: String = parts.collect();
    assert!(parts.contains("php.conf") && parts.contains("proxy.conf"), "{parts}");
    let server = builder
        .conf(&format!(
            "pid logs/nginx.pid; daemon off; error_log logs/error.log notice; events {{}}\n\
             http {{ server {{ listen 127.0.0.1:0; root {};\n{parts} }} }}",
            dir.display()
        ))
        .text("conf/fastcgi_params", &text("examples/fastcgi_params"))
        .text("conf/snippets/php.conf", &text("packaging/etc/snippets/php.conf"))
        .text("conf/snippets/proxy.conf", &text("packaging/etc/snippets/proxy.conf"))
        .start();
    // The script does not exist, so php-fpm gets no request for it; no application listens.
    assert_eq!(Client::connect(server.addr(0)).get("/none.php/path").status, 404);
    assert_eq!(Client::connect(server.addr(0)).get("/app/").status, 502);
}

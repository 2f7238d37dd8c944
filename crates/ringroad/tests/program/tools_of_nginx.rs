//! Programs that parse the output, the configuration or the logs of nginx: certbot's plugin, GoAccess, filters of fail2ban. A test
//! without its program says that it was skipped.

use std::path::Path;
use std::process::{Command, Output};

use testkit::{Client, Deadline, Server, TempDir};

use crate::common::tls::Authority;
use crate::common::{BINARY, one_server};

/// Whether a program exists; prints a line if not.
fn has(program: &str, package: &str) -> bool {
    let exists = Command::new(program).arg("--version").output().is_ok();
    if !exists {
        testkit::skip(format_args!("there is no {program} ({package})"));
    }
    exists
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns a port for a configuration that a program changes, so that the port cannot be 0.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
    listener.local_addr().expect("it is bound").port()
}

/// Certbot finds the server block of the name, adds the certificate, checks the configuration, and reloads the server.
#[test]
fn certbot_installs_a_certificate_with_its_nginx_plugin() {
    if !has("certbot", "pip install certbot certbot-nginx") {
        return;
    }
    let dir = TempDir::new("certbot");
    let path = dir.path().display().to_string();
    let (http, https) = (free_port(), free_port());
    dir.write(
        "conf/nginx.conf",
        format!(
            "error_log {path}/error.log notice; pid {path}/pid; events {{}}\nhttp {{ access_log off;\n\
             server {{\n listen 127.0.0.1:{http};\n server_name a.test;\n return 200 x;\n}}\n}}\n"
        ),
    );
    let (certificate, key) = Authority::new("root").server("a.test");
    dir.write("a.pem", &certificate);
    dir.write("a.key", &key);
    let arguments = format!(
        "install --nginx --non-interactive --nginx-ctl {BINARY} --nginx-server-root {path}/conf --config-dir {path}/le \
         --work-dir {path}/work --logs-dir {path}/logs --domains a.test --cert-path {path}/a.pem --key-path {path}/a.key \
         --fullchain-path {path}/a.pem --no-redirect --http-01-port {http} --https-port {https}"
    );
    let output = Command::new("certbot").args(arguments.split_whitespace()).output().expect("it starts");
    let text = said(&output);
    if text.contains("The requested nginx plugin does not appear to be installed") {
        testkit::skip(format_args!("certbot has no plugin for nginx (pip install certbot-nginx)"));
        return;
    }
    let conf = std::fs::read_to_string(dir.path().join("conf/nginx.conf")).expect("the configuration");
    stop(dir.path());
    assert!(!text.contains("Nginx build is missing SSL module") && !text.contains("SNI"), "{text}");
    let listen = format!("listen 127.0.0.1:{https} ssl; # managed by Certbot");
    assert!(conf.contains(&listen), "{conf}\n{text}");
    assert!(text.contains("Successfully deployed certificate for a.test"), "{text}");
    assert!(conf.contains(&format!("ssl_certificate {path}/a.pem")), "{conf}\n{text}");
}

/// Stops the server that certbot started for the reload, if it could bind the ports.
fn stop(dir: &Path) {
    let arguments =
        ["-c", &dir.join("conf/nginx.conf").display().to_string(), "-s", "stop"].map(str::to_owned);
    let _ = Command::new(BINARY).args(arguments).output();
}

#[test]
fn goaccess_parses_every_line_of_the_access_log() {
    if !has("goaccess", "apt-get install goaccess") {
        return;
    }
    let server = Server::builder(BINARY).conf(&one_server("", "return 200 x;")).start();
    let mut client = Client::connect(server.addr(0));
    for target in ["/", "/a?b=c", "/%22", "/\u{e4}"] {
        assert_eq!(client.get(target).status, 200, "{target}");
    }
    server.wait_for_access_log(4, Deadline::default());
    let mut command = Command::new("goaccess");
    let command = command.arg(server.path("logs/access.log")).args([
        "--log-format=COMBINED",
        "--no-global-config",
        "-o",
        "json",
    ]);
    let text = said(&command.output().expect("it starts"));
    for expected in ["\"total_requests\": 4", "\"failed_requests\": 0"] {
        assert!(text.replace("\":", "\": ").replace(":  ", ": ").contains(expected), "{text}");
    }
}

#[test]
fn the_filters_of_fail2ban_match_lines_of_the_error_log() {
    if !has("fail2ban-regex", "apt-get install fail2ban") {
        return;
    }
    let http = "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m;";
    let text = "location /a { auth_basic r; auth_basic_user_file users; root html; } location /l { limit_req zone=z; root html; }";
    let server =
        Server::builder(BINARY).conf(&one_server(http, text)).text("conf/users", "u:{PLAIN}p\n").start();
    let mut client = Client::connect(server.addr(0));
    for credentials in ["dTp4", "eDp4"] {
        client.send(format!("GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {credentials}\r\n\r\n"));
        assert_eq!(client.response().status, 401);
    }
    let statuses: Vec<u16> = (0..3).map(|_| client.get("/l").status).collect();
    assert_eq!(statuses, [404, 503, 503]);
    server.wait_for_log("limiting requests", Deadline::default());
    for (filter, count) in [("nginx-http-auth", 2), ("nginx-limit-req", 2)] {
        let log = server.path("logs/error.log");
        let output = Command::new("fail2ban-regex").arg(log).arg(filter).output().expect("it starts");
        assert!(said(&output).contains(&format!("{count} matched")), "{filter}: {}", said(&output));
    }
}

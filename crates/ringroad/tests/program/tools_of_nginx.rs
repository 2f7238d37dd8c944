//! Programs that parse the output, the configuration or the logs of nginx: certbot's plugin, acme.sh, lego, GoAccess, filters of
//! fail2ban, exporters. A test without its program says that it was skipped. Of programs that a test cannot start, the patterns
//! are matched.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use regex_lite::Regex;
use testkit::ports::free_port;
use testkit::{Client, Deadline, Server, TempDir, wait};

use crate::common::tls::Authority;
use crate::common::{BINARY, Running, one_server};
use crate::pebble::{self, Manners, Pebble};

/// Whether a program exists; prints a line if not.
fn has(program: &str, package: &str) -> bool {
    let exists = Command::new(program).arg("--version").output().is_ok();
    if !exists {
        testkit::skip(format_args!("{program} is not installed ({package})"));
    }
    exists
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
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
        testkit::skip(format_args!("certbot-nginx is not installed (pip install certbot-nginx)"));
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

/// The packaged rules of logrotate, with the paths of a test and its own command to reopen the logs: by the signal of the pid file,
/// as in the packages, or by `-s reopen`. No line is lost, and later lines are in the new files, whose owner may be another user.
#[test]
fn logrotate_rotates_the_logs_while_requests_are_logged() {
    const PACKAGED: &str = include_str!("../../../../packaging/logrotate");
    if !has("logrotate", "apt-get install logrotate") {
        return;
    }
    let server = Server::builder(BINARY).conf(&one_server("", "return 200 x;")).start();
    let (dir, pid) = (server.dir().display().to_string(), server.pid());
    let reopening = format!("    postrotate\n        kill -USR1 {pid}\n    endscript");
    let by_command =
        format!("    postrotate\n        {BINARY} -p {dir}/ -c conf/nginx.conf -s reopen\n    endscript");
    let mut client = Client::connect(server.addr(0));
    for (round, command) in [reopening, by_command].into_iter().enumerate() {
        let (rules, _) = PACKAGED.split_once("    postrotate").expect("it reopens the logs");
        let rules = rules.replace("/var/log/ringroad/", &format!("{dir}/logs/"));
        let rules =
            rules.replace("create 0640 www-data adm", "create 0644").replace("    delaycompress\n", "");
        let rules = rules.replace("    compress\n", "");
        let path = server.path("rules");
        std::fs::write(&path, format!("{rules}{command}\n}}\n")).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&path, mode).expect("it is ours");
        assert_eq!(client.get(&format!("/old{round}")).status, 200);
        server.wait_for_access_log(1, Deadline::default());
        let mut logrotate = Command::new("logrotate");
        let output = logrotate.arg("--force").arg("--state").arg(server.path("state")).arg(&path).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", said(&output));
        server.wait_for_log_count("reopening logs", 2, Deadline::default());
        assert_eq!(client.get(&format!("/new{round}")).status, 200);
        let log = server.wait_for_access_log(1, Deadline::default());
        assert!(log.contains(&format!("/new{round} ")) && !log.contains("/old"), "{log}");
        let old = std::fs::read_to_string(server.path("logs/access.log.1")).expect("the rotated log");
        assert!(old.contains(&format!("/old{round} ")), "{old}");
    }
}

/// Patterns for `nginx -v` and `-V`, with the program that has them and the first captured text.
const OF_VERSION: &[(&str, &str, &str)] = &[
    ("puppet-nginx: nginx_version", r"nginx version: (?:nginx|openresty)/([\w.]+)", "1.31.5"),
    ("nginx-amplify-agent: nginx_v, after the colon", r"(?m)^nginx version:.*/([\d\w.]+)", "1.31.5"),
    ("nginx-agent: versionRegex", r"(?m)(?:\s|^)nginx/([\d.]+)", "1.31.5"),
    ("chef nginx: ohai-nginx.rb", r"(?m)^nginx version: nginx/(\d+\.\d+\.\d+)", "1.31.5"),
    ("ansible-role-nginx: verify.yml", r"((?:[0-9]+\.){2}[0-9]+)", "1.31.5"),
];

/// Patterns for the further lines of `nginx -V`.
const OF_BUILD: &[(&str, &str, &str)] = &[
    (
        "nginx-amplify-agent: BUILT_WITH_RE",
        r"(?m)^built with (\S+) +\S+(?: +\d{1,2} +\w{3,} +\d{4})?",
        "OpenSSL",
    ),
    ("acme.sh: _setNginx", r"--conf-path=([^ ]*) ", "/etc/nginx/nginx.conf"),
    (
        "nginx-amplify-agent, nginx-agent: prefix",
        r"(?m)^configure arguments:.* --prefix=([^ ]*)",
        "/usr/local/ringroad",
    ),
    ("nginx-amplify-agent: logs", r" --error-log-path=([^ ]*)", "/usr/local/ringroad/logs/error.log"),
    (
        "scripts: grep -o with-http_stub_status_module",
        r"(with-http_stub_status_module)",
        "with-http_stub_status_module",
    ),
    ("scripts: grep -q http_v2_module", r"(http_v2_module)", "http_v2_module"),
];

/// Patterns for the page of `stub_status`, for an otherwise idle server that gets its first request.
const OF_STATUS: &[(&str, &str, &str)] = &[
    (
        "nginx-amplify-agent: STUB_RE",
        r"^Active connections: (\d+)\s+[\w ]+\n\s+\d+\s+\d+\s+\d+\s+Reading:\s+\d+\s+Writing:\s+\d+\s+Waiting:\s+\d+",
        "1",
    ),
    ("Datadog: nginx.py", r"\s*(\d+)\s+\d+\s+\d+", "1"),
    ("Datadog: nginx.py", r"Reading: \d+\s+Writing: (\d+)\s+Waiting: \d+", "1"),
    ("Zabbix: Nginx by HTTP", r"server accepts handled requests\s+([0-9]+) ([0-9]+) ([0-9]+)", "1"),
    ("Zabbix: Nginx by HTTP", r"Reading: ([0-9]+) Writing: [0-9]+ Waiting: [0-9]+", "0"),
    (
        "Munin: nginx_status",
        r"(?s)Active connections:\s+(\d+).*Reading:\s+\d+.*Writing:\s+\d+.*Waiting:\s+\d+",
        "1",
    ),
    ("Munin: nginx_request", r"(?m)^\s+(\d+)\s+\d+\s+\d+", "1"),
    (
        "Telegraf, collectd, nginx-prometheus-exporter: words at fixed places",
        r"^Active connections: (\d+) \nserver accepts handled requests\n \d+ \d+ \d+ \nReading: \d+ Writing: \d+ Waiting: \d+ \n$",
        "1",
    ),
];

fn assert_captures(patterns: &[(&str, &str, &str)], text: &str) {
    for (program, pattern, expected) in patterns {
        let captures = Regex::new(pattern).expect("a pattern").captures(text);
        let captures = captures.unwrap_or_else(|| panic!("{program}: {text}"));
        assert_eq!(&captures[1], *expected, "{program}: {text}");
    }
}

#[test]
fn patterns_for_the_output_of_nginx_find_version_paths_and_numbers() {
    let output = |arg: &str| Command::new(BINARY).arg(arg).output().expect("it is built");
    for arg in ["-v", "-V"] {
        let output = output(arg);
        assert!(output.status.success() && output.stdout.is_empty(), "{arg}: nginx writes to standard error");
        assert_captures(OF_VERSION, &String::from_utf8_lossy(&output.stderr));
    }
    assert_captures(OF_BUILD, &String::from_utf8_lossy(&output("-V").stderr));
    let server = Server::builder(BINARY).conf(&one_server("", "stub_status;")).start();
    assert_captures(OF_STATUS, &Client::connect(server.addr(0)).get("/").text());
}

/// Configuration management checks a configuration before a reload: by the exit status (roles for Ansible, Puppet, Chef), by the
/// texts "test is successful" and "[emerg]" (nginx-agent), and by the dump of `-T`.
#[test]
fn checks_of_configuration_management_see_valid_and_invalid_configurations() {
    let dir = TempDir::new("managed");
    let path = dir.path().display().to_string();
    dir.write("part.conf", "server_tokens off;");
    for (directive, is_valid) in [("include part.conf;", true), ("no_such_directive x;", false)] {
        let text =
            format!("error_log {path}/e; pid {path}/p; events {{}} http {{ access_log off; {directive} }}");
        let conf = dir.write("nginx.conf", text).display().to_string();
        let check = Command::new(BINARY).args(["-t", "-c", &conf]).output().expect("it is built");
        let messages = String::from_utf8_lossy(&check.stderr);
        assert_eq!(check.status.success(), is_valid, "{messages}");
        assert_eq!(messages.contains("[emerg]"), !is_valid, "{messages}");
        let successful = format!("configuration file {conf} test is successful");
        assert_eq!(messages.contains(&successful), is_valid, "{messages}");
        let dump = Command::new(BINARY).args(["-T", "-c", &conf]).output().expect("it is built");
        let dumped = String::from_utf8_lossy(&dump.stdout);
        assert_eq!(dumped.contains(&format!("# configuration file {conf}:\n")), is_valid, "{dumped}");
        assert_eq!(
            dumped.contains(&format!("# configuration file {path}/part.conf:\nserver_tokens")),
            is_valid
        );
    }
}

/// Starts a server with a name that an ACME server can validate, and the ACME server.
fn server_to_validate(server: &str) -> Option<(Server, Pebble)> {
    let binary = pebble::binary()?;
    let conf = format!(
        "worker_processes 1;\nevents {{}}\nhttp {{\n    server {{\n        listen 127.0.0.1:0;\n        server_name a.test;\n        {server}\n    }}\n}}\n"
    );
    let server = Server::builder(BINARY).conf(&conf).text("html/index.html", "index").start();
    let port = server.addr(0).tcp().port();
    let pebble = Pebble::start(&binary, port, port, &Manners::default());
    pebble.know(&["a.test"]);
    Some((server, pebble))
}

/// The mode `--nginx` finds the server block of the name, adds a location with the response to the challenge, checks the
/// configuration, reloads the server, and restores the file.
#[test]
fn acme_sh_gets_a_certificate_in_its_nginx_mode() {
    // No package has this script, so `.ci/tools` cannot install it, and the gate must not ask for it.
    if Command::new("acme.sh").arg("--version").output().is_err() {
        return testkit::skip("no acme.sh in PATH; it is at https://github.com/acmesh-official/acme.sh");
    }
    let Some((server, pebble)) = server_to_validate("location / { return 301 https://$host$request_uri; }")
    else {
        return;
    };
    let (dir, home) = (server.dir().display().to_string(), TempDir::new("acme-sh"));
    let conf = std::fs::read_to_string(server.path("conf/nginx.conf")).expect("the configuration");
    let program =
        home.write("bin/nginx", format!("#!/bin/sh\nexec {BINARY} -p {dir}/ -c conf/nginx.conf \"$@\"\n"));
    let is_executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, is_executable).expect("it is ours");
    let path = std::env::var("PATH").expect("a search path");
    let path = format!("{}:{path}", home.path().join("bin").display());
    let arguments = format!(
        "--issue --nginx {dir}/conf/nginx.conf -d a.test --home {0} --config-home {0} --server {1} --ca-bundle {2}",
        home.path().join("state").display(),
        pebble.uri(),
        pebble.trusted().display()
    );
    let mut command = Command::new("acme.sh");
    let output =
        command.args(arguments.split_whitespace()).env("PATH", path).env("HOME", home.path()).output();
    let text = said(&output.expect("it starts"));
    assert!(text.contains("-----END CERTIFICATE-----") && text.contains("Reloading nginx"), "{text}");
    assert_eq!(std::fs::read_to_string(server.path("conf/nginx.conf")).expect("the file"), conf, "{text}");
    server.wait_for_log_count("was replaced by", 2, Deadline::default());
    let log = server.access_log();
    assert!(log.contains("/.well-known/acme-challenge/") && log.contains("\" 200 "), "{log}");
}

#[test]
fn lego_gets_a_certificate_by_a_webroot() {
    if !has("lego", "apt-get install lego") {
        return;
    }
    let Some((server, pebble)) = server_to_validate("root html;") else { return };
    let state = TempDir::new("lego");
    let arguments = format!(
        "--accept-tos --email a@example.org --domains a.test --path {} --server {} --http --http.webroot {} run",
        state.path().display(),
        pebble.uri(),
        server.path("html").display()
    );
    let mut command = Command::new("lego");
    command.args(arguments.split_whitespace()).env("LEGO_CA_CERTIFICATES", pebble.trusted());
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    assert!(state.path().join("certificates/a.test.crt").exists(), "{}", said(&output));
    let log = server.wait_for_access_log(1, Deadline::default());
    assert!(log.contains("/.well-known/acme-challenge/") && log.contains("\" 200 "), "{log}");
}

#[test]
fn munin_reads_the_numbers_of_stub_status() {
    let server = Server::builder(BINARY).conf(&one_server("", "stub_status;")).start();
    for (plugin, expected) in [("nginx_status", "writing.value 1\n"), ("nginx_request", "request.value ")] {
        let path = Path::new("/usr/share/munin/plugins").join(plugin);
        if !path.exists() || !Path::new("/usr/share/perl5/LWP/UserAgent.pm").exists() {
            testkit::skip("there is no plugin of Munin (apt-get install munin-plugins-core libwww-perl)");
            return;
        }
        let mut command = Command::new("perl");
        command.arg("-I/usr/share/perl5").arg(path).env("url", format!("http://{}/", server.addr(0)));
        command.env("MUNIN_LIBDIR", "/usr/share/munin");
        let output = command.output().expect("it starts");
        assert!(said(&output).contains(expected), "{plugin}: {}", said(&output));
    }
}

#[test]
fn the_prometheus_exporter_reads_stub_status() {
    let server = Server::builder(BINARY).conf(&one_server("", "stub_status;")).start();
    let address = testkit::server::ListenAddr::Tcp(([127, 0, 0, 1], free_port()).into());
    let command = Command::new("prometheus-nginx-exporter")
        .arg(format!("-nginx.scrape-uri=http://{}/", server.addr(0)))
        .arg(format!("-web.listen-address={}", address.tcp()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = command else {
        testkit::skip("prometheus-nginx-exporter is not installed");
        return;
    };
    let _running = Running(child);
    let page = wait::until("the exporter", Deadline::default(), || {
        Some(Client::try_connect(&address).ok()?.get("/metrics").text())
    });
    let page = page.expect("its page");
    for line in ["nginx_up 1\n", "nginx_connections_writing 1\n", "nginx_connections_active 1\n"] {
        assert!(page.contains(line), "{line}{page}");
    }
}

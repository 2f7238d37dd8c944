//! Makes a configuration loadable on this machine, so that only its directives determine the result.
//!
//! * An `include` is replaced by the file of the same repository, by a short version of a file that nginx installs, or
//!   by nothing.
//! * Ports below 20000 are replaced by ports above, so that the test needs no privileges and does not collide with a
//!   running server; a specific address becomes a loopback address.
//! * Files that are opened or created (certificates, logs, pid, caches, temporary files) are moved to the directory of
//!   the test.
//! * A configuration without any `ssl_certificate` gets one in its block `http`.
//! * Host names of upstream servers (except names of `upstream` blocks) and of resolvers become 127.0.0.1; `user`
//!   becomes root.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::repository::Repository;
use super::rows::{Kind, Row};
use super::statements::{self, Statement};
use super::template;
use crate::{Failure, workspace};

/// Maximum nesting of includes.
const DEPTH_MAX: usize = 8;

/// Offset that is added to ports below it.
const PORT_BASE: u32 = 20000;

/// Short versions of files that nginx or a distribution installs.
const INSTALLED: [(&str, &str); 8] = [
    ("mime.types", "types { text/html html htm; text/css css; image/png png; }"),
    (
        "fastcgi_params",
        "fastcgi_param QUERY_STRING $query_string; fastcgi_param REQUEST_METHOD $request_method;",
    ),
    ("fastcgi.conf", "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;"),
    ("fastcgi-php.conf", "fastcgi_split_path_info ^(.+?\\.php)(/.*)$; fastcgi_index index.php;"),
    ("uwsgi_params", "uwsgi_param QUERY_STRING $query_string; uwsgi_param REQUEST_METHOD $request_method;"),
    ("scgi_params", "scgi_param REQUEST_METHOD $request_method; scgi_param REQUEST_URI $request_uri;"),
    ("proxy_params", "proxy_set_header Host $http_host; proxy_set_header X-Real-IP $remote_addr;"),
    ("koi-win", ""),
];

/// The directory of the test and its files.
pub(super) struct Machine {
    /// The prefix of the tested server.
    root: PathBuf,
}

impl Machine {
    /// Creates the directory, with a certificate, its key, Diffie-Hellman parameters and a ticket key.
    pub(super) fn new(work: &Path) -> Result<Machine, Failure> {
        let root = work.join("prefix");
        for directory in ["logs", "files"] {
            let path = root.join(directory);
            std::fs::create_dir_all(&path).map_err(|error| Failure::File { path, error })?;
        }
        let openssl = |arguments: &[&str]| {
            workspace::output(Command::new("openssl").args(arguments).current_dir(root.join("files")))
                .map(drop)
        };
        if !root.join("files/key.pem").exists() {
            openssl(&[
                "genpkey",
                "-genparam",
                "-algorithm",
                "DH",
                "-pkeyopt",
                "group:ffdhe2048",
                "-out",
                "dh.pem",
            ])?;
            openssl(&["rand", "-out", "ticket.key", "80"])?;
            let certificate =
                ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=example.com", "-out", "cert.pem"];
            openssl(&[&["req"], &certificate[..], &["-keyout", "key.pem", "-days", "3650"]].concat())?;
        }
        Ok(Machine { root })
    }

    /// Returns the prefix of the tested server.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the absolute path of a file in the directory.
    fn path(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    /// Returns a path in the directory for a path of another machine; different paths stay different.
    fn moved(&self, kind: &str, path: &str) -> String {
        let plain: String =
            path.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        self.path(&format!("{kind}{plain}"))
    }
}

/// Returns the text to be tested.
pub(super) fn prepare(row: &Row, repository: &Repository, machine: &Machine) -> Result<String, Failure> {
    let source = template::fill(&repository.file(&row.path)?, &row.values);
    let mut all = Vec::new();
    expand(row, repository, &mut vec![row.path.clone()], &source, &mut all)?;
    let all = wrap(row.kind, all);
    let groups: BTreeSet<String> = all
        .iter()
        .filter(|s| s.word(0) == "upstream" && s.end == '{')
        .map(|s| s.word(1).to_string())
        .collect();
    let rewrite = Rewrite { machine, groups };
    let certified = all.iter().any(|statement| statement.word(0) == "ssl_certificate");
    let mut blocks: Vec<String> = Vec::new();
    let mut result = Vec::new();
    for mut statement in all {
        match statement.end {
            '{' => blocks.push(statement.word(0).to_string()),
            '}' => drop(blocks.pop()),
            _ => {
                if !rewrite.statement(&mut statement, blocks.last().map_or("", String::as_str)) {
                    continue;
                }
            }
        }
        let http = statement.end == '{' && statement.word(0) == "http";
        result.push(statement);
        if http && !certified {
            result.push(Statement::new(&["ssl_certificate", &machine.path("files/cert.pem")], ';'));
            result.push(Statement::new(&["ssl_certificate_key", &machine.path("files/key.pem")], ';'));
        }
    }
    Ok(statements::text(&result))
}

/// Wraps a part of a configuration in the blocks that it needs.
fn wrap(kind: Kind, inner: Vec<Statement>) -> Vec<Statement> {
    let block = |name: &str, inner: Vec<Statement>| {
        let mut block = vec![Statement::new(&[name], '{')];
        block.extend(inner);
        block.push(Statement::new(&[], '}'));
        block
    };
    let http = match kind {
        Kind::Whole => return inner,
        Kind::Http => block("http", inner),
        Kind::Server => block("http", block("server", inner)),
    };
    block("events", Vec::new()).into_iter().chain(http).collect()
}

/// Appends the statements of a text, including those of its includes. `open` has the files being read, the innermost
/// last.
fn expand(
    row: &Row,
    repository: &Repository,
    open: &mut Vec<String>,
    text: &str,
    all: &mut Vec<Statement>,
) -> Result<(), Failure> {
    for statement in statements::parse(text) {
        if statement.word(0) != "include" || statement.words.len() != 2 || statement.end != ';' {
            all.push(statement);
            continue;
        }
        let name = statement.word(1);
        let own = row.values.iter().find(|(key, _)| key.strip_prefix("include:") == Some(name));
        let mut found = match own {
            Some((_, path)) => vec![path.as_str()],
            None => repository.included(open.last().map_or("", String::as_str), name),
        };
        found.retain(|path| open.len() < DEPTH_MAX && !open.iter().any(|file| file == path));
        for path in &found {
            let text = template::fill(&repository.file(path)?, &row.values);
            open.push((*path).into());
            expand(row, repository, open, &text, all)?;
            open.pop();
        }
        let last = name.rsplit('/').next().unwrap_or(name);
        if let Some((_, text)) = INSTALLED.iter().find(|(file, _)| found.is_empty() && *file == last) {
            all.extend(statements::parse(text));
        }
    }
    Ok(())
}

/// Replaces machine-specific settings.
struct Rewrite<'a> {
    machine: &'a Machine,
    /// Names of `upstream` blocks.
    groups: BTreeSet<String>,
}

impl Rewrite<'_> {
    /// Rewrites a directive of a block. Returns false to omit it.
    fn statement(&self, statement: &mut Statement, block: &str) -> bool {
        let name = statement.word(0).to_string();
        let first = statement.word(1).to_string();
        let moved = match name.as_str() {
            "ssl_crl" | "ssl_password_file" | "ssl_stapling_file" | "proxy_ssl_crl" => return false,
            "user" => {
                *statement = Statement::new(&["user", "root", "root"], ';');
                return true;
            }
            "listen" => Some(listen(&first, self.machine)),
            "pid" | "lock_file" => Some(self.machine.moved("logs/", &first)),
            "error_log" | "access_log" => self.log(&first),
            "server" if block == "upstream" => Some(self.host(&first)),
            "set_real_ip_from" => Some(network(&first)),
            "resolver" => {
                let servers = statement.words.iter().skip(1).map(|word| resolver(word));
                statement.words = ["resolver".to_string()].into_iter().chain(servers).collect();
                None
            }
            _ if name.ends_with("_pass") => Some(self.address(&first)),
            _ => self.file(&name, &first),
        };
        if let (Some(moved), true) = (moved, statement.words.len() > 1) {
            statement.words[1] = moved;
        }
        true
    }

    /// Returns the replacement of a log file; `None` for other targets. A name with variables keeps one, because such
    /// logs are not opened at the start.
    fn log(&self, path: &str) -> Option<String> {
        let elsewhere =
            ["off", "stderr"].contains(&path) || path.starts_with("syslog:") || path.starts_with("memory:");
        (!elsewhere)
            .then(|| if path.contains('$') { "logs/$host.log".into() } else { "logs/test.log".into() })
    }

    /// Returns the replacement of a file or directory that a test opens or creates.
    fn file(&self, name: &str, path: &str) -> Option<String> {
        let file = match name {
            _ if path.contains('$') || path.starts_with("data:") => return None,
            "ssl_dhparam" => "files/dh.pem",
            "ssl_session_ticket_key" => "files/ticket.key",
            _ if name.ends_with("ssl_certificate_key") => "files/key.pem",
            _ if name.ends_with("ssl_certificate") || name.ends_with("_client_certificate") => {
                "files/cert.pem"
            }
            _ if name.ends_with("ssl_trusted_certificate") => "files/cert.pem",
            _ if name.ends_with("_cache_path") || name.ends_with("_temp_path") => {
                return Some(self.machine.moved("logs/", path));
            }
            _ => return None,
        };
        Some(self.machine.path(file))
    }

    /// Rewrites the target of `proxy_pass` and similar directives.
    fn address(&self, target: &str) -> String {
        let (scheme, rest) = match target.split_once("://") {
            Some((scheme, rest)) => (format!("{scheme}://"), rest),
            None => (String::new(), target),
        };
        let end = rest.find('/').filter(|_| !rest.starts_with("unix:")).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        let host = self.host(host);
        // FastCGI, uwsgi and SCGI have no default port.
        let port = if scheme.is_empty() && host == "127.0.0.1" { ":9000" } else { "" };
        quoted(&format!("{scheme}{host}{port}{path}"))
    }

    /// Rewrites a host with or without a port: a name becomes 127.0.0.1 unless an `upstream` block has it.
    fn host(&self, host: &str) -> String {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                (name, format!(":{port}"))
            }
            _ => (host, String::new()),
        };
        let bare = name.trim_matches(['[', ']']);
        let kept = host.contains('$') || host.starts_with("unix:") || bare.parse::<IpAddr>().is_ok();
        if kept || self.groups.contains(host) { host.into() } else { format!("127.0.0.1{port}") }
    }
}

/// Quotes a word if necessary.
fn quoted(word: &str) -> String {
    let plain = !word.contains(|c: char| c.is_whitespace() || matches!(c, ';' | '{' | '}' | '"'));
    if plain || word.contains("${") && !word.contains(' ') {
        word.into()
    } else {
        format!("\"{}\"", word.replace('"', "\\\""))
    }
}

/// Rewrites the address of `listen`.
fn listen(address: &str, machine: &Machine) -> String {
    if let Some(path) = address.strip_prefix("unix:") {
        return format!("unix:{}", machine.moved("logs/", path));
    }
    let number = |port: &str| port.parse::<u32>().ok().filter(|port| *port < 65536);
    let raised = |port: u32| if port < PORT_BASE { port + PORT_BASE } else { port };
    if let Some(port) = number(address) {
        return raised(port).to_string();
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if number(port).is_some() => (host, number(port).unwrap_or(80)),
        _ => (address, 80),
    };
    let local = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if !ip.is_unspecified() && !ip.is_loopback() => "127.0.0.1",
        Ok(IpAddr::V6(ip)) if !ip.is_unspecified() && !ip.is_loopback() => "[::1]",
        Ok(_) => host,
        Err(_) if host == "*" => host,
        Err(_) => "127.0.0.1",
    };
    format!("{local}:{}", raised(port))
}

/// Rewrites an address of `set_real_ip_from`, which resolves names.
fn network(text: &str) -> String {
    let address = text.split('/').next().unwrap_or(text);
    let known = address.parse::<IpAddr>().is_ok() || text == "unix:";
    if known { text.into() } else { "127.0.0.1".into() }
}

/// Rewrites a parameter of `resolver`; names become an address.
fn resolver(word: &str) -> String {
    let kept = word.contains('=') || word.starts_with('[') || word.starts_with(|c: char| c.is_ascii_digit());
    if kept { word.into() } else { "127.0.0.1".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine { root: "/m".into() }
    }

    #[test]
    fn listen_needs_no_privileges() {
        let cases = [
            ("80", "20080"),
            ("[::]:443", "[::]:20443"),
            ("10.0.0.1:8080", "127.0.0.1:28080"),
            ("*:80", "*:20080"),
            ("unix:/run/a.sock", "unix:/m/logs/-run-a.sock"),
            ("localhost", "127.0.0.1:20080"),
        ];
        for (written, changed) in cases {
            assert_eq!(listen(written, &machine()), changed);
        }
    }

    #[test]
    fn only_machine_specific_values_are_changed() {
        let machine = machine();
        let rewrite = Rewrite { machine: &machine, groups: ["app".to_string()].into() };
        let changed = |text: &str, block: &str| {
            let mut statement = statements::parse(text).remove(0);
            rewrite
                .statement(&mut statement, block)
                .then(|| statements::text(&[statement]).trim_end().to_string())
        };
        let same = [
            "proxy_pass http://app/x;",
            "proxy_pass http://$host:80;",
            "root /srv;",
            "access_log off;",
            "server_name a;",
        ];
        for text in same {
            assert_eq!(changed(text, "server").as_deref(), Some(text));
        }
        assert_eq!(
            changed("proxy_pass http://web:80/x;", "").as_deref(),
            Some("proxy_pass http://127.0.0.1:80/x;")
        );
        assert_eq!(changed("fastcgi_pass php:9000;", "").as_deref(), Some("fastcgi_pass 127.0.0.1:9000;"));
        assert_eq!(
            changed("server web:80 weight=2;", "upstream").as_deref(),
            Some("server 127.0.0.1:80 weight=2;")
        );
        assert_eq!(
            changed("ssl_certificate_key '/k';", "").as_deref(),
            Some("ssl_certificate_key /m/files/key.pem;")
        );
        assert_eq!(
            changed("resolver kube-dns valid=1s;", "").as_deref(),
            Some("resolver 127.0.0.1 valid=1s;")
        );
        assert_eq!(changed("ssl_crl /c;", ""), None);
    }
}

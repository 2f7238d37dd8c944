//! `ringroad serve DIR [--listen ADDR] [--tls [NAME,…]] [--acme-directory URL]`: serves the files of a directory over
//! HTTP, without a configuration file. `ringroad proxy --to TARGET` with the same options passes requests on to an application.
//!
//! The configuration is generated as text and used like any other: in the foreground, strict about HTTP, and, for files, restricted
//! to the directory. Errors and requests are logged to standard error, and the address is printed. With `--tls` a local
//! authority (`authority`) issues the certificate, and instructions to trust this authority are printed. With names a
//! public authority (`public`) issues it.

pub(super) mod authority;
mod public;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::public::Public;
use super::failure::MISUSED;
use super::options::Arguments;
use super::output::{print, print_error};
use crate::adapter::{self, Files, Site};
use crate::listen::{bind_remedy, error_text};
use crate::log::Log;
use crate::master::{self, Renew};
use crate::paths::{PROXY_TEXT, Paths, Request, SERVE_TEXT};
use crate::privilege;
use crate::reach;

/// Default address: only this machine. A server for other machines needs an explicit address.
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// Default address with `--tls`.
const DEFAULT_LISTEN_TLS: &str = "127.0.0.1:8443";

/// Default address with `--tls NAME`: the CA validates on this port, and it is the port of https URLs.
const DEFAULT_LISTEN_PUBLIC: &str = "0.0.0.0:443";

/// Address of the redirect from http to https, used only with the default address.
const REDIRECTED: &str = "0.0.0.0:80";

/// The MIME types that browsers need to display a site; files of other types are downloaded.
const TYPES: &str = "
    text/html html htm; text/css css; text/plain txt md; text/xml xml; text/javascript js mjs;
    application/json json map; application/wasm wasm; application/pdf pdf; application/zip zip;
    image/svg+xml svg; image/png png; image/jpeg jpg jpeg; image/gif gif; image/webp webp; image/avif avif;
    image/x-icon ico; font/woff woff; font/woff2 woff2; video/mp4 mp4; video/webm webm; audio/mpeg mp3;";

/// The parsed options.
#[derive(Debug, PartialEq, Eq)]
struct ServeOptions {
    content: Content,
    /// The address; port 0 selects any free port.
    listen: SocketAddr,
    /// `--tls`
    tls: Option<CertificateSource>,
    /// Whether the address is the default.
    is_default: bool,
}

/// Where responses come from.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// The files of this directory, as the user wrote it.
    Directory(PathBuf),
    /// The application at this URL, the argument of `proxy_pass`.
    Application(String),
}

/// The source of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CertificateSource {
    /// `--tls`: certificates of the local authority.
    Local,
    /// `--tls NAME,…`: certificates of a public authority.
    Public(Public),
}

/// Why the directory cannot be served.
#[derive(Debug)]
enum Unservable {
    /// `--acme-directory` without names.
    NoNames,
    /// `ringroad proxy` without `--to`.
    NoTarget,
    /// `--to` with an invalid target.
    Target(String),
    /// `--listen` with an invalid address.
    Address(String),
    /// The directory does not exist, or is not readable.
    Directory { directory: PathBuf, reason: String },
    /// The address is in use.
    Taken(SocketAddr),
    /// A bind error: a privileged port, or an address of another machine.
    Bind { listen: SocketAddr, reason: String },
    /// No certificate is available for `--tls`.
    Authority(authority::Unusable),
    /// Invalid names or an invalid URL.
    Names(String),
    /// No directory for the account and the certificates is available.
    State(String),
}

impl Unservable {
    /// Whether the arguments are wrong, whatever the state of the machine is.
    fn is_misuse(&self) -> bool {
        match self {
            Unservable::NoNames
            | Unservable::NoTarget
            | Unservable::Target(_)
            | Unservable::Address(_)
            | Unservable::Names(_) => true,
            Unservable::Directory { .. }
            | Unservable::Taken(_)
            | Unservable::Bind { .. }
            | Unservable::Authority(_)
            | Unservable::State(_) => false,
        }
    }
}

impl fmt::Display for Unservable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unservable::NoNames => f.write_str(
                "--acme-directory needs public names: write them after --tls, such as --tls example.org",
            ),
            Unservable::NoTarget => {
                f.write_str("proxy needs the address of the application: --to :3000, for example")
            }
            Unservable::Target(text) => write!(
                f,
                "\"{text}\" is not the address of an application; write PORT, :PORT, HOST:PORT, unix:PATH, or a URL with http or https"
            ),
            Unservable::Address(text) => {
                write!(
                    f,
                    "\"{text}\" is not an address; write PORT, :PORT, IP:PORT or [IPV6]:PORT, such as {DEFAULT_LISTEN}"
                )
            }
            Unservable::Directory { directory, reason } => {
                write!(f, "cannot serve \"{}\": {reason}", directory.display())
            }
            Unservable::Taken(listen) => {
                let mut free = *listen;
                free.set_port(0);
                write!(
                    f,
                    "{listen} is in use by another program; stop that program, or choose another port with \
                     --listen (--listen {free} selects a free port)"
                )
            }
            Unservable::Bind { listen, reason } => write!(f, "cannot listen on {listen}: {reason}"),
            Unservable::Authority(unusable) => unusable.fmt(f),
            Unservable::Names(names) => write!(
                f,
                "no certificate can be requested for \"{names}\": write public names with commas between \
                 them, such as --tls example.org,www.example.org, and an https URL after --acme-directory; --tls \
                 without names uses a local certificate authority"
            ),
            Unservable::State(reason) => {
                write!(f, "no directory for the account and the certificates can be used: {reason}")
            }
        }
    }
}

/// Serves files, or passes requests on, until a signal stops the server.
pub(super) fn run(given: &Arguments) -> ExitCode {
    let log = Log::echo_only();
    let prepared = parse(given).and_then(prepare);
    let (request, renew) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            print_error(format_args!("ringroad: {error}\n"));
            return if error.is_misuse() { ExitCode::from(MISUSED) } else { ExitCode::FAILURE };
        }
    };
    let loaded = adapter::load(&request, Files::Disk);
    super::run::report(&request, &loaded, 1, &log);
    match loaded {
        Ok(site) => {
            if given.value("to").is_none() {
                warn_unreadable(&site, &request);
            }
            master::run(request, site, log, renew)
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints a warning if the user of the workers cannot read the directory, because the command was started as root.
fn warn_unreadable(site: &Site, request: &Request) {
    let credentials = privilege::resolve(site.settings.user.as_ref()).ok().and_then(|user| user.credentials);
    let directory = request.main.parent();
    if let (Some(credentials), Some(directory)) = (credentials, directory)
        && let Some(obstacle) = reach::reading_obstacle(directory, &credentials)
    {
        print_error(format_args!(
            "ringroad: the files are read as user \"{}\", but {obstacle}: change its permissions, or start the \
             command as the owner of the files\n",
            credentials.user
        ));
    }
}

/// Parses `DIR` or `--to`, and the options. The text after `--tls` is a list of names if another argument is `DIR`.
fn parse(given: &Arguments) -> Result<ServeOptions, Unservable> {
    let text = |name: &str| given.value(name).map(|value| value.to_string_lossy().into_owned());
    let (listen, directory) = (text("listen"), text("acme-directory"));
    let tls = match text("tls") {
        Some(names) => {
            let public = Public::parse(&names, directory.as_deref());
            Some(CertificateSource::Public(public.ok_or(Unservable::Names(names))?))
        }
        // `--acme-directory` without names is a usage error.
        None if directory.is_some() => return Err(Unservable::NoNames),
        None => given.has("tls").then_some(CertificateSource::Local),
    };
    let content = match (given.operands.first(), text("to")) {
        (Some(directory), _) => Content::Directory(directory.into()),
        (None, Some(target)) => Content::Application(application(&target).ok_or(Unservable::Target(target))?),
        (None, None) => return Err(Unservable::NoTarget),
    };
    let default = match &tls {
        None => DEFAULT_LISTEN,
        Some(CertificateSource::Local) => DEFAULT_LISTEN_TLS,
        Some(CertificateSource::Public(_)) => DEFAULT_LISTEN_PUBLIC,
    };
    let is_default = listen.is_none();
    let listen = listen.unwrap_or_else(|| default.to_owned());
    let listen = address(&listen).ok_or(Unservable::Address(listen))?;
    Ok(ServeOptions { content, listen, tls, is_default })
}

/// Parses the target of `--to`, and returns its URL. A port is one of this machine.
fn application(target: &str) -> Option<String> {
    // The characters of addresses, names and paths; others have a meaning in a configuration.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/[]%@+,=".contains(&byte);
    if target.is_empty() || !target.bytes().all(is_plain) {
        return None;
    }
    let port = target.strip_prefix(':').unwrap_or(target);
    if port.bytes().all(|byte| byte.is_ascii_digit()) {
        let port: u16 = port.parse().ok()?;
        return Some(format!("http://127.0.0.1:{port}"));
    }
    let (scheme, rest) = match target.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) if !rest.is_empty() => (scheme, rest),
        Some(_) => return None,
        None if target.starts_with(':') => return None,
        None => ("http", target),
    };
    // The path replaces the "/" of requests, so "/a" would become "/patha" without a slash at its end.
    let is_open = rest.contains('/') && !rest.ends_with('/') && !rest.starts_with("unix:");
    Some(format!("{scheme}://{rest}{}", if is_open { "/" } else { "" }))
}

/// Parses `IP:PORT`; a port alone means loopback, and a port after a colon means all addresses.
fn address(text: &str) -> Option<SocketAddr> {
    if let Some(port) = text.strip_prefix(':') {
        return Some(SocketAddr::new(every_address(), port.parse().ok()?));
    }
    match text.parse::<u16>() {
        Ok(port) => Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)),
        Err(_) => text.parse().ok(),
    }
}

/// Returns the wildcard address: that of IPv6, which accepts IPv4 clients too, if the kernel supports it.
fn every_address() -> IpAddr {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Checks the arguments and creates the configuration. Errors are detected here, because messages of a later check
/// would refer to lines of the generated text.
fn prepare(
    ServeOptions { content, listen, tls, is_default }: ServeOptions,
) -> Result<(Request, Option<Renew>), Unservable> {
    let directory = match &content {
        Content::Directory(directory) => directory.clone(),
        // Nothing is read from it or written to it.
        Content::Application(_) => PathBuf::from("/"),
    };
    let absolute = std::fs::canonicalize(&directory).and_then(|absolute| {
        // The server has to list the directory.
        std::fs::read_dir(&absolute).map(|_| absolute)
    });
    let absolute =
        absolute.map_err(|error| Unservable::Directory { directory, reason: error_text(&error) })?;
    let redirected =
        matches!(tls, Some(CertificateSource::Public(_))).then_some(REDIRECTED).filter(|_| is_default);
    let redirected: Option<SocketAddr> = redirected.and_then(|address| address.parse().ok());
    for address in [Some(listen), redirected].into_iter().flatten() {
        check_address(address)?;
    }
    let (secured, renew) = match tls {
        None => (
            Secured { level: "warn", option: "", quic: false, http: String::new(), server: String::new() },
            None,
        ),
        Some(CertificateSource::Local) => local(listen).map(|(secured, renew)| (secured, Some(renew)))?,
        Some(CertificateSource::Public(public)) => (by_authority(&public, listen, redirected)?, None),
    };
    // No pid file and no log is written into the user's directory.
    let mut places = Paths::below(&absolute);
    (places.error_log, places.pid) = (None, None);
    let text = configuration(listen, &content, &secured);
    let name = match content {
        Content::Directory(_) => SERVE_TEXT,
        Content::Application(_) => PROXY_TEXT,
    };
    let request = Request { main: absolute.join(name), globals: String::new(), places, text: Some(text) };
    Ok((request, renew))
}

/// Tries to bind an address, so that an error is reported in terms of this command.
fn check_address(listen: SocketAddr) -> Result<(), Unservable> {
    match TcpListener::bind(listen) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(Unservable::Taken(listen)),
        Err(error) => {
            let remedy = rustix::io::Errno::from_io_error(&error).map_or("", bind_remedy);
            Err(Unservable::Bind { listen, reason: error_text(&error) + remedy })
        }
    }
}

/// Whether HTTP/3 can be offered: the UDP port with the number of the TCP port is free. A port that the kernel selects is different for both.
fn offers_http3(listen: SocketAddr) -> bool {
    if listen.port() == 0 {
        return false;
    }
    match UdpSocket::bind(listen) {
        Ok(_) => true,
        Err(error) => {
            let reason = error_text(&error);
            print_error(format_args!(
                "ringroad: HTTP/3 is not offered: bind() to UDP {listen} failed ({reason})\n"
            ));
            false
        }
    }
}

/// The parts that `--tls` adds to the configuration.
#[derive(Debug)]
struct Secured {
    /// Log level on standard error: with a public CA `notice`, which includes the message that a certificate was
    /// obtained.
    level: &'static str,
    /// Parameter after the address of `listen`.
    option: &'static str,
    /// Whether HTTP/3 is offered.
    quic: bool,
    /// Directives in `http`.
    http: String,
    /// Directives in `server`.
    server: String,
}

/// Returns the configuration for a certificate of the local authority, and the function that renews it. Clients must
/// trust the root.
fn local(listen: SocketAddr) -> Result<(Secured, Renew), Unservable> {
    let directory = authority::directory().map_err(Unservable::Authority)?;
    let certificates = authority::prepare(&directory, listen).map_err(Unservable::Authority)?;
    print(authority::advice(&certificates.root));
    let file = quoted(&certificates.server);
    let server = format!("ssl_certificate {file};\n        ssl_certificate_key {file};\n        http2 on;");
    let secured =
        Secured { level: "warn", option: " ssl", quic: offers_http3(listen), http: String::new(), server };
    let renew =
        Renew::new(move || authority::renew(&directory, listen).map_err(|unusable| unusable.to_string()));
    Ok((secured, renew))
}

/// Returns the configuration for a certificate of a public authority, and for the redirect from port 80.
fn by_authority(
    public: &Public,
    listen: SocketAddr,
    redirected: Option<SocketAddr>,
) -> Result<Secured, Unservable> {
    let state = public.state().map_err(|error| Unservable::State(error_text(&error)))?;
    print(public.advice(&state, listen.port()));
    let redirect = redirected.map(|address| {
        format!("\n    server {{\n        listen {address};\n        return 301 https://$host$request_uri;\n    }}")
    });
    let http = public.issuer(&state) + &redirect.unwrap_or_default();
    Ok(Secured { level: "notice", option: " ssl", quic: offers_http3(listen), http, server: public.server() })
}

/// The directives that serve the files of the prefix. Without a charset, browsers read text in a legacy encoding of their language. XML
/// has an encoding of its own, which a charset would override.
const FILES: &str = "root .;
        charset utf-8;
        charset_types text/plain text/css text/javascript;
        root_beneath on;
        autoindex on;
        autoindex_format page;
        autoindex_localtime on;";

/// Returns the directives that pass requests on. Clients choose neither the fields that name them nor temporary files.
fn passing(url: &str) -> String {
    format!(
        "client_max_body_size 0;
        location / {{
            proxy_pass {url};
            proxy_ssl_server_name on;
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_to_application;
        }}"
    )
}

/// Returns the configuration; a directory is the prefix, so that its name needs no quoting.
fn configuration(listen: SocketAddr, content: &Content, secured: &Secured) -> String {
    let content = match content {
        Content::Directory(_) => FILES.to_owned(),
        Content::Application(url) => passing(url),
    };
    let Secured { level, option, quic, http, server } = secured;
    let both = if listen.ip() == Ipv6Addr::UNSPECIFIED { " ipv6only=off" } else { "" };
    let quic = match quic {
        true => format!("\n        listen {listen} quic{both};\n        http3_alt_svc on;"),
        false => String::new(),
    };
    format!(
        "daemon off;
worker_processes auto;
error_log stderr {level};
events {{}}
http {{
    types {{{TYPES}
    }}
    default_type application/octet-stream;
    access_log /dev/stderr;
    map $http_upgrade $connection_to_application {{ default upgrade; \"\" \"\"; }}
    {http}
    server {{
        listen {listen}{option}{both};{quic}
        {server}
        http_strict on;
        {content}
    }}
}}
"
    )
}

/// Quotes a path as an argument of a directive.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::super::options;
    use super::*;

    fn read(line: &str) -> Result<(String, String), String> {
        let command = options::find("serve").expect("it is in the table");
        let args = line.split(' ').map(Into::into).collect();
        let mut given = options::read(command, args).expect("fits the table");
        given.value_as_operand("tls");
        let shown = |wanted: ServeOptions| {
            let content = match wanted.content {
                Content::Directory(directory) => directory.display().to_string(),
                Content::Application(url) => url,
            };
            (content, wanted.listen.to_string())
        };
        parse(&given).map(shown).map_err(|error| error.to_string())
    }

    #[test]
    fn a_directory_and_an_address_are_parsed() {
        let site = |listen: &str| Ok(("site".to_owned(), listen.to_owned()));
        assert_eq!(read("site"), site("127.0.0.1:8080"));
        assert_eq!(read("site --listen 0.0.0.0:80"), site("0.0.0.0:80"));
        assert_eq!(read("--listen=[::1]:81 site"), site("[::1]:81"));
        assert_eq!(read("site --listen 8000"), site("127.0.0.1:8000"));
        assert_eq!(read("site --listen [::]:8000"), site("[::]:8000"));
        let every = read("site --listen :8000").expect("it is an address").1;
        assert!(["[::]:8000", "0.0.0.0:8000"].contains(&every.as_str()), "{every}");
        assert_eq!(read("--tls site"), site("127.0.0.1:8443"));
        assert_eq!(read("site --tls --listen [::1]:81"), site("[::1]:81"));
        assert_eq!(read("site --tls a.example"), site("0.0.0.0:443"));
        assert_eq!(read("--tls=a.example,b.example --listen 127.0.0.1:4 site"), site("127.0.0.1:4"));
        assert_eq!(read("--acme-directory https://x/ --tls a.example site"), site("0.0.0.0:443"));
        let wrong = read("site --tls other").expect_err("no public name");
        assert!(wrong.starts_with("no certificate can be requested for \"other\""), "{wrong}");
        let wrong = read("a --acme-directory https://x/").expect_err("no names");
        assert!(wrong.contains("write them after --tls"), "{wrong}");
        for text in ["localhost", ":x", "65536", "1.2.3.4", ""] {
            let wrong = read(&format!("site --listen={text}")).expect_err(text);
            assert!(wrong.starts_with(&format!("\"{text}\" is not an address")), "{wrong}");
        }
    }

    #[test]
    fn applications_are_ports_addresses_and_urls() {
        for (target, url) in [
            ("3000", "http://127.0.0.1:3000"),
            (":3000", "http://127.0.0.1:3000"),
            ("app", "http://app"),
            ("10.0.0.2:80", "http://10.0.0.2:80"),
            ("[::1]:80", "http://[::1]:80"),
            ("unix:/run/app.sock", "http://unix:/run/app.sock"),
            ("https://app.example", "https://app.example"),
            ("http://10.0.0.2:80/app", "http://10.0.0.2:80/app/"),
            ("10.0.0.2:80/app/", "http://10.0.0.2:80/app/"),
        ] {
            assert_eq!(application(target).as_deref(), Some(url), "{target}");
        }
        for target in ["", ":", ":x", "65536", "ftp://a", "http://", "a;b", "a b", "$host", "{}", "a\"b"] {
            assert_eq!(application(target), None, "{target}");
        }
    }

    #[test]
    fn a_port_in_use_is_reported_with_the_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let listen = taken.local_addr().expect("it is bound");
        let content = Content::Directory(std::env::temp_dir());
        let wanted = ServeOptions { content, listen, tls: None, is_default: false };
        let error = prepare(wanted).expect_err("the port is taken").to_string();
        let expected = format!("{listen} is in use by another program");
        assert!(error.starts_with(&expected) && error.contains("--listen 127.0.0.1:0"), "{error}");
    }
}

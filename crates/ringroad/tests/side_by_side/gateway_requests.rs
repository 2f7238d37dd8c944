//! Random requests to this server and to Debian's nginx, each in front of the same scripted application server:
//! FastCGI, SCGI, uwsgi and memcached. Compared are the responses, and the requests that the application servers
//! receive.
//!
//! The normal run sends 50 of each; an ignored test sends a thousand of each. `RINGROAD_TEST_SEED` selects another
//! seed.

use crate::gateways;
use std::sync::{Arc, Mutex};

use crate::common::BINARY;
use crate::gateways::{Ask, Random, Script};
use testkit::fastcgi::FastCgi;
use testkit::memcached::Memcached;
use testkit::script::{Protocol, ScriptServer};
use testkit::{Client, Server, Setup, fastcgi, memcached};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log notice;
events { }
http {
  server_tokens @TOKENS@;
  access_log off;
  default_type text/plain;
  @P@_cache_path @CACHE@ keys_zone=c:1m;
  @P@_temp_path @DATA@/temp;
  client_body_temp_path @DATA@/body;
  upstream app { server @APP@; keepalive 4; }
  @P@_param REQUEST_METHOD $request_method;
  @P@_param REQUEST_URI $request_uri;
  @P@_param DOCUMENT_URI $document_uri;
  @P@_param QUERY_STRING $query_string;
  @P@_param CONTENT_TYPE $content_type;
  @P@_param CONTENT_LENGTH $content_length;
  @P@_param EMPTY $arg_empty if_not_empty;
  @P@_param OPT $http_x_opt if_not_empty;
  @P@_param FIXED "a b" if_not_empty;
  @P@_param NOTHING "";
  @P@_param HTTP_X_SET set;
  @MORE@
  server {
    listen 127.0.0.1:0;
    server_name example.org;
    location / { @P@_pass @APP@; }
    location /group/ { @P@_pass app; @KEEP@ }
    location /variable/ { set $to app; @P@_pass $to; }
    location /unbuffered/ { @P@_buffering off; @P@_request_buffering off; @P@_pass app; }
    location /bare/ { @P@_pass_request_headers off; @P@_pass_request_body off; @P@_pass app; }
    location /hide/ { @P@_hide_header X-One; @P@_hide_header Set-Cookie; @P@_pass_header X-Accel-Expires;
                      @P@_pass_header X-Pad; @P@_pass app; }
    location /ignore/ { @P@_ignore_headers X-Accel-Redirect X-Accel-Charset X-Accel-Buffering; @P@_pass app; }
    location /intercept/ { @P@_intercept_errors on; error_page 404 500 503 /page; error_page 403 =200 /page; @P@_pass app; }
    location /own/ { @OWN@ @P@_param OWN $uri; @P@_param HTTP_X_CASE $http_x_case; @P@_param CONTENT_LENGTH $content_length;
                     @P@_param REQUEST_URI $request_uri; @P@_param HTTP_X_A ""; @P@_param HTTP_X_OPT $arg_none; @P@_pass app; }
    location /cache/ { @P@_cache c; @P@_cache_key $request_uri$http_x_case; @P@_cache_valid 200 404 1h; @P@_cache_valid any 1m;
                       add_header X-Cache $upstream_cache_status always; @P@_pass app; }
    location = /page { internal; return 200 "page for $status $args\n"; }
    location @named { return 201 "named\n"; }
  }
}
"#;

const PLACES: &[&str] = &[
    "/",
    "/group/",
    "/variable/",
    "/unbuffered/",
    "/bare/",
    "/hide/",
    "/ignore/",
    "/intercept/",
    "/own/",
    "/cache/",
];

/// An application-server protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gateway {
    FastCgi,
    Scgi,
    Uwsgi,
}

/// A request received by an application server: parameters, body, and data specific to the protocol.
type Got = (Vec<(String, String)>, Vec<u8>, String);

/// An application server that records its requests.
struct App {
    got: Arc<Mutex<Vec<Got>>>,
    address: String,
    /// The running server, stopped when dropped.
    _server: Box<dyn std::any::Any>,
}

impl App {
    fn start(gateway: Gateway, seed: u64) -> App {
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let list = Arc::clone(&got);
        let case_of = |case: Option<&str>, uri: Option<&str>| {
            let case = case.and_then(|case| case.parse().ok()).unwrap_or(0);
            (case, uri.is_some_and(|uri| uri.starts_with("/cache/")))
        };
        let add = move |params: &[(String, String)], body: &[u8], more: String| {
            list.lock().expect("no panic").push((params.to_vec(), body.to_vec(), more));
        };
        let (address, server): (_, Box<dyn std::any::Any>) = match gateway {
            Gateway::FastCgi => {
                let server = FastCgi::start(move |request| {
                    add(&request.params, &request.body, format!("keeps {}", request.keeps));
                    let (case, plain) = case_of(request.param("HTTP_X_CASE"), request.param("REQUEST_URI"));
                    let script = gateways::script(seed, case, false, plain);
                    let bytes = gateways::records(&mut Random::of(seed ^ 7, case), &script.text);
                    fastcgi::Reply::raw(bytes, !request.keeps)
                });
                (server.address(), Box::new(server))
            }
            Gateway::Scgi | Gateway::Uwsgi => {
                let protocol = if gateway == Gateway::Scgi { Protocol::Scgi } else { Protocol::Uwsgi };
                let server = ScriptServer::start(protocol, move |request| {
                    add(&request.params, &request.body, format!("{:?}", request.modifiers));
                    let (case, plain) = case_of(request.param("HTTP_X_CASE"), request.param("REQUEST_URI"));
                    gateways::script(seed, case, true, plain).text
                });
                (server.address(), Box::new(server))
            }
        };
        App { got, address: address.to_string(), _server: server }
    }

    /// Returns the requests since the last call.
    fn take(&self) -> Vec<Got> {
        std::mem::take(&mut *self.got.lock().expect("no panic"))
    }
}

fn setup(gateway: Gateway, app: &App, tokens: &str) -> Setup {
    let (prefix, more) = match gateway {
        Gateway::FastCgi => {
            ("fastcgi", "fastcgi_index index.php; fastcgi_param SCRIPT_NAME $fastcgi_script_name;")
        }
        Gateway::Scgi => ("scgi", "scgi_param SCGI 1;"),
        Gateway::Uwsgi => ("uwsgi", "uwsgi_modifier1 3;"),
    };
    let keep = if gateway == Gateway::FastCgi { "fastcgi_keep_conn on;" } else { "" };
    // SCGI always sends the length.
    let conf = match gateway {
        // If nginx does not wait for the complete body, it sends the number of bytes received so far (row P38).
        Gateway::Scgi => CONF
            .replace("@P@_param CONTENT_LENGTH $content_length;", "")
            .replace("@P@_request_buffering off;", ""),
        _ => CONF.to_owned(),
    };
    Setup::new(&conf)
        .value("P", prefix)
        .value("APP", &app.address)
        .value("MORE", more)
        .value("KEEP", keep)
        .value("OWN", if gateway == Gateway::Scgi { "scgi_param SCGI 1;" } else { "" })
        .value("TOKENS", tokens)
}

/// Returns the seed of a run.
fn seed() -> u64 {
    let given = std::env::var("RINGROAD_TEST_SEED").ok();
    given.and_then(|seed| seed.parse().ok()).unwrap_or(22)
}

/// A response in comparable form.
struct Answer {
    line: String,
    fields: Vec<String>,
    body: String,
}

impl Answer {
    /// Sends a request on a separate connection. The length is compared if the script sends one.
    fn to(server: &Server, ask: &Ask, has_length: bool) -> Answer {
        let mut client = Client::connect(server.addr(0));
        client.send(&ask.bytes);
        let response = if ask.is_head { client.try_response_to_head() } else { client.try_response() };
        let response = match response {
            Ok(response) => response,
            Err(fault) => {
                let line = format!("no response: {fault}");
                return Answer { line, fields: Vec::new(), body: String::new() };
            }
        };
        let is_left_out = |name: &str| match name.to_ascii_lowercase().as_str() {
            // Fields of stored responses (rows C2 and C26 of docs/caching.md).
            "age" | "date" | "transfer-encoding" => true,
            // If the script sends no length, the field depends on the bytes received with the header section (row X6).
            "content-length" => !has_length,
            // Field of stored responses (row C16).
            "accept-ranges" => ask.target.starts_with("/cache/"),
            _ => false,
        };
        let fields = response.head.fields.iter().filter(|(name, _)| !is_left_out(name));
        let mut fields: Vec<String> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
        fields.sort();
        let line = format!("{} {}", response.status, response.head.reason);
        let port = format!(":{}/", server.addr(0).tcp().port());
        let fields = fields.iter().map(|field| field.replace(&port, ":PORT/")).collect();
        let body = response.body.escape_ascii().to_string();
        Answer { line, fields, body }
    }
}

impl Answer {
    /// Returns the lines that differ.
    fn differences(&self, theirs: &Answer) -> String {
        let mut out = String::new();
        for (name, one, other) in [("nginx", theirs, self), ("ringroad", self, theirs)] {
            let fields = one.fields.iter().filter(|field| !other.fields.contains(field));
            let fields: Vec<&str> = fields.map(String::as_str).collect();
            out.push_str(&format!("--- {name}: {}\n{}\n", one.line, fields.join("\n")));
            if one.body != other.body {
                out.push_str(&format!("{} bytes: {:.100}\n", one.body.len(), one.body));
            }
        }
        out
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}\n{}\n\n{:.200} ({} bytes)",
            self.line,
            self.fields.join("\n"),
            self.body,
            self.body.len()
        )
    }
}

/// Sends this many random requests to both servers.
fn compare(gateway: Gateway, cases: u64) {
    let seed = seed();
    let (our_app, their_app) = (App::start(gateway, seed), App::start(gateway, seed));
    // With the same server name, pages and their lengths are equal too.
    let ours = setup(gateway, &our_app, "\"nginx\"").start(BINARY);
    let Some(nginx) = setup(gateway, &their_app, "off").start_nginx() else { return };
    let mut wrong = Vec::new();
    for case in 0..cases {
        let random = &mut Random::of(seed, case);
        let place = random.one_of(PLACES);
        // HEAD and unsafe methods in a cache are documented in the tables of differences.
        let methods: &[&str] = if place == "/cache/" { &["GET"] } else { &[] };
        let ask = gateways::request(random, case, place, methods);
        // The location `/bare/` does not send the case number to the application.
        let told = if place == "/bare/" { 0 } else { case };
        let Script { has_length, text } =
            gateways::script(seed, told, gateway != Gateway::FastCgi, place == "/cache/");
        for round in 0..1 + usize::from(place == "/cache/") {
            let (mine, theirs) = (Answer::to(&ours, &ask, has_length), Answer::to(&nginx, &ask, has_length));
            let (mut mine_got, mut theirs_got) = (our_app.take(), their_app.take());
            if place == "/bare/" {
                // Row P43: without the client's fields, nginx 1.22 does not send HTTP_HOST.
                for (params, ..) in mine_got.iter_mut().chain(&mut theirs_got) {
                    params.retain(|(name, _)| name != "HTTP_HOST");
                }
            }
            let what = format!(
                "{gateway:?}, seed {seed}, case {case}, round {round}: {:.600}\n--- the script\n{:.500}",
                ask.bytes.escape_ascii().to_string().replace("\\r\\n", "\n"),
                text.escape_ascii().to_string().replace("\\r\\n", "\n"),
            );
            if mine_got != theirs_got {
                let shown = |got: &[Got]| {
                    let got = got.iter().map(|(params, body, more)| {
                        let params: Vec<String> =
                            params.iter().map(|(name, value)| format!("{name}={value}")).collect();
                        format!("{}\n{} bytes, {more}", params.join("\n"), body.len())
                    });
                    got.collect::<Vec<_>>().join("\n--\n")
                };
                let (theirs, mine) = (shown(&theirs_got), shown(&mine_got));
                wrong.push(format!("{what}\n--- nginx asked\n{theirs}\n--- ringroad asked\n{mine}\n"));
            }
            let is_same =
                mine.line == theirs.line && mine.fields == theirs.fields && mine.body == theirs.body;
            if !is_same && !is_documented(&mine, &theirs) {
                wrong.push(format!("{what}\n{}", mine.differences(&theirs)));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(SHOWN_MAX)].join("\n")
    );
}

/// Maximum number of differences that are printed.
const SHOWN_MAX: usize = 8;

/// Returns whether a difference is documented in docs/nginx-differences.md and may occur in a random case.
fn is_documented(mine: &Answer, theirs: &Answer) -> bool {
    // P34: nginx sends a status line that ends after the status code.
    let is_cut = theirs.line.contains("no space after the status code");
    // P37: nginx labels a built-in page as compressed.
    let fields: Vec<_> = theirs.fields.iter().filter(|field| *field != "Content-Encoding: gzip").collect();
    let is_labelled =
        theirs.line.starts_with("502") && fields.iter().eq(&mine.fields.iter().collect::<Vec<_>>());
    (is_cut && mine.line.starts_with(|first: char| first.is_ascii_digit())) || is_labelled
}

#[test]
fn random_requests_to_fastcgi_match_nginx() {
    compare(Gateway::FastCgi, 50);
}

#[test]
fn random_requests_to_scgi_match_nginx() {
    compare(Gateway::Scgi, 50);
}

#[test]
fn random_requests_to_uwsgi_match_nginx() {
    compare(Gateway::Uwsgi, 50);
}

#[test]
#[ignore = "a thousand requests"]
fn a_thousand_random_requests_to_fastcgi_match_nginx() {
    compare(Gateway::FastCgi, 1_000);
}

#[test]
#[ignore = "a thousand requests"]
fn a_thousand_random_requests_to_scgi_match_nginx() {
    compare(Gateway::Scgi, 1_000);
}

#[test]
#[ignore = "a thousand requests"]
fn a_thousand_random_requests_to_uwsgi_match_nginx() {
    compare(Gateway::Uwsgi, 1_000);
}

#[test]
#[ignore = "a thousand requests"]
fn a_thousand_random_requests_to_memcached_match_nginx() {
    compare_memcached(1_000);
}

const MEMCACHED: &str = r#"worker_processes 1; error_log logs/error.log notice;
events { }
http {
  server_tokens @TOKENS@;
  access_log off;
  types { text/css css; text/html html; }
  default_type text/plain;
  upstream app { server @APP@; keepalive 4; }
  server {
    listen 127.0.0.1:0;
    set $memcached_key $uri;
    location / { memcached_pass @APP@; }
    location /kept/ { memcached_pass app; }
    location /args/ { set $memcached_key "$uri?$args"; memcached_pass app; }
    location /whole/ { set $memcached_key $request_uri; memcached_pass app; }
    location /gzip/ { memcached_gzip_flag 2; memcached_pass app; }
    location /page/ { error_page 404 502 = @made; memcached_pass app; }
    location @made { return 200 "made for $uri, $upstream_status\n"; }
    location /small/ { memcached_buffer_size 1k; memcached_pass app; }
  }
}
"#;

/// Returns the response to a line, always the same for the same line.
fn remembered(seed: u64, line: &[u8]) -> memcached::Reply {
    let number = line.iter().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let random = &mut Random::of(seed ^ 3, number);
    let line = String::from_utf8_lossy(line).into_owned();
    let Some(key) = line.strip_prefix("get ") else { return memcached::Reply::raw("ERROR\r\n") };
    let len = random.one_of(&[0, 1, 30, 3_000, 9_000, 70_000]);
    let value = random.bytes(len);
    match random.below(12) {
        0 | 1 => memcached::Reply::missing(),
        2 => memcached::Reply::raw("SERVER_ERROR out of memory\r\n"),
        3 => memcached::Reply::value("/other", 0, value),
        4 => memcached::Reply::raw(format!("VALUE {key} {} \r\n", random.below(9))),
        _ => memcached::Reply::value(key, random.below(5) as u32, value),
    }
}

fn compare_memcached(cases: u64) {
    let seed = seed();
    let start = || {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let list = Arc::clone(&lines);
        let server = Memcached::start(move |line| {
            list.lock().expect("no panic").push(line.escape_ascii().to_string());
            remembered(seed, line)
        });
        (server, lines)
    };
    let ((our_app, our_lines), (their_app, their_lines)) = (start(), start());
    let setup = |app: &Memcached, tokens: &str| {
        Setup::new(MEMCACHED).value("APP", &app.address().to_string()).value("TOKENS", tokens)
    };
    let ours = setup(&our_app, "\"nginx\"").start(BINARY);
    let Some(nginx) = setup(&their_app, "off").start_nginx() else { return };
    let mut wrong = Vec::new();
    for case in 0..cases {
        let random = &mut Random::of(seed, case);
        let place = random.one_of(&["/", "/kept/", "/args/", "/whole/", "/gzip/", "/page/", "/small/"]);
        let ask = gateways::request(random, case, place, &[]);
        let (mine, theirs) = (Answer::to(&ours, &ask, true), Answer::to(&nginx, &ask, true));
        let take = |lines: &Mutex<Vec<String>>| std::mem::take(&mut *lines.lock().expect("no panic"));
        let (mine_got, theirs_got) = (take(&our_lines), take(&their_lines));
        let is_same = mine.line == theirs.line && mine.fields == theirs.fields && mine.body == theirs.body;
        if !is_same && !is_documented(&mine, &theirs) || mine_got != theirs_got {
            let request = ask.bytes.escape_ascii();
            wrong.push(format!(
                "seed {seed}, case {case}: {request:.400}\n--- nginx asked {theirs_got:?}\n{theirs}\n--- ringroad asked {mine_got:?}\n{mine}\n"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(SHOWN_MAX)].join("\n")
    );
}

#[test]
fn random_requests_to_memcached_match_nginx() {
    compare_memcached(50);
}

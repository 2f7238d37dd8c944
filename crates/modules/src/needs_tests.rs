//! Tests of what configurations need ([`site::needs`]), and that no directive with a path is forgotten.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conf::Support;
use site::needs::{Access, Needs, Ports, needs};

use crate::all;
use crate::testing::load;

fn needs_of(text: &str) -> Needs {
    needs(&load(text).unwrap_or_else(|error| panic!("{text}: {error}")).config)
}

/// Returns the paths of an `http` block, without those of defaults.
fn paths(http: &str) -> Vec<(String, Access)> {
    let needs = needs_of(&format!("http {{ {http} }}"));
    let written = needs.paths.into_iter().filter(|need| need.position.is_some());
    written.map(|need| (need.path.display().to_string(), need.access)).collect()
}

/// Returns the paths that only a request determines.
fn open(http: &str) -> Vec<String> {
    let needs = needs_of(&format!("http {{ {http} }}"));
    needs.open.iter().map(|need| format!("{} {}", need.directive, need.value)).collect()
}

/// Returns the ports, or the directives that make them unknown.
fn ports(http: &str) -> Result<Vec<u16>, Vec<String>> {
    let needs = needs_of(&format!("http {{ {http} }}"));
    match needs.connect {
        Ports::Only(ports) => Ok(ports.into_iter().collect()),
        Ports::Any => Err(needs
            .any_ports
            .iter()
            .map(|found| {
                let line = found.position.as_ref().map_or(0, |span| span.line);
                format!("{} {} at {line}", found.directive, found.value)
            })
            .collect()),
    }
}

fn read(path: &str) -> (String, Access) {
    (path.to_owned(), Access::Read)
}

fn write(path: &str) -> (String, Access) {
    (path.to_owned(), Access::Write)
}

#[test]
fn literal_paths_are_needed_as_written() {
    assert_eq!(
        paths("root /www; server { location / { alias data/; } }"),
        [read("/www"), read("/prefix/data")]
    );
    assert_eq!(paths("server { auth_basic_user_file users; }"), [read("/conf/users")]);
    assert_eq!(paths("proxy_cache_path /c/ keys_zone=z:1m;"), [write("/c")]);
    assert_eq!(paths("client_body_temp_path /t 1 2;"), [write("/t")]);
    let stored = "server { location / { root /s; proxy_pass http://127.0.0.1:81; proxy_store on; } }";
    assert_eq!(paths(stored), [read("/s"), write("/s")]);
    assert_eq!(paths("server { location / { root /d; dav_methods PUT; } }"), [read("/d"), write("/d")]);
    assert_eq!(paths("upstream a { state /v/a.state; }"), [write("/v")]);
}

#[test]
fn defaults_are_needed_only_where_they_apply() {
    let defaults = |http: &str| -> BTreeSet<PathBuf> {
        let needs = needs_of(&format!("http {{ {http} }}"));
        needs.paths.into_iter().filter(|need| need.position.is_none()).map(|need| need.path).collect()
    };
    let set =
        |names: &[&str]| names.iter().map(|name| Path::new("/prefix").join(name)).collect::<BTreeSet<_>>();
    assert_eq!(defaults("server { }"), set(&["html", "client_body_temp"]));
    assert_eq!(defaults("client_body_temp_path /t; server { root /www; }"), set(&[]));
    let passes = "server { root /www; location / { proxy_pass http://127.0.0.1:81; } }";
    assert_eq!(defaults(passes), set(&["client_body_temp", "proxy_temp"]));
}

#[test]
fn the_directory_before_an_unknown_variable_is_needed() {
    assert_eq!(paths("server { root /www/$host/x; }"), [read("/www")]);
    assert_eq!(paths("server { root /www/site-$host; }"), [read("/www")]);
    assert_eq!(paths("server { location ~ ^/u/(.+)/(.+)$ { alias /home/$1/public/$2; } }"), [read("/home")]);
    assert_eq!(paths("server { access_log logs/$host.log; }"), [write("/prefix/logs")]);
    let stored = "server { location / { proxy_pass http://127.0.0.1:81; proxy_store /s$uri; } }";
    assert_eq!(open(stored), ["proxy_store /s$uri"]);
    // The root directory would allow everything.
    assert_eq!(open("server { root /$host; }"), ["root /$host"]);
    assert_eq!(open("server { root $host; }"), ["root $host"]);
    // Relative log names start from the prefix even if they begin with a variable.
    assert_eq!(paths("server { access_log $host.log; }"), [write("/prefix")]);
    // Names of hosts have no slash, so the path is relative.
    let certificates =
        "server { ssl_certificate $ssl_server_name.crt; ssl_certificate_key $ssl_server_name.key; }";
    assert_eq!(paths(certificates), [read("/conf")]);
    // The root has a need of its own.
    let below_root = "server { root /www; auth_basic a; auth_basic_user_file $document_root/users; }";
    assert_eq!((paths(below_root), open(below_root)), (vec![read("/www")], vec![]));
}

#[test]
fn values_that_the_configuration_gives_to_variables_are_known() {
    assert_eq!(paths("server { set $r /www; root $r; }"), [read("/www")]);
    assert_eq!(
        paths("server { root $r/x; set $r /www; if ($uri) { set $r /other; } }"),
        [read("/www/x"), read("/other/x")]
    );
    assert_eq!(
        paths("map $host $r { default /a; b.example /b; ~^c /c/$host; } server { root $r/pub; }"),
        [read("/c"), read("/a/pub"), read("/b/pub")]
    );
    assert_eq!(paths("geo $r { default /a; 10.0.0.0/8 /b; } server { root $r; }"), [read("/a"), read("/b")]);
    assert_eq!(paths("split_clients $uri $r { 5% /a; * /b; } server { root $r; }"), [read("/a"), read("/b")]);
    // Values through several variables, and combinations.
    let nested =
        "map $host $site { default a; b b; } server { set $base /srv; set $r $base/$site; root $r; }";
    assert_eq!(paths(nested), [read("/srv/a"), read("/srv/b")]);
}

#[test]
fn variables_with_another_source_are_unknown() {
    let group = "server { set $r /a; server_name ~^(?<r>.+)$; root $r; }";
    assert_eq!(open(group), ["root $r"]);
    let family = "server { set $http_x /a; root $http_x; }";
    assert_eq!(open(family), ["root $http_x"]);
    let upstream = "server { set $r /a; location / { auth_request /b; auth_request_set $r $upstream_http_x; root $r; } }";
    assert_eq!((paths(upstream), open(upstream)), (vec![read("/a")], vec!["root $r".to_owned()]));
    // A variable that contains itself never ends.
    let endless = "server { set $r /a; set $r $r/b; root $r; }";
    assert!(paths(endless).contains(&read("/a/b")), "{:?}", paths(endless));
    // A table with more values than rules are reasonable for.
    let rows: String = (0..2000).map(|number| format!("h{number} /h/{number};")).collect();
    assert_eq!(open(&format!("map $host $r {{ {rows} }} server {{ root $r; }}")), ["root $r"]);
    assert_eq!(paths(&format!("map $host $r {{ {rows} }} server {{ root /x/$r; }}")), [read("/x")]);
}

#[test]
fn the_master_opens_logs_and_process_files() {
    let needs =
        needs_of("pid /run/a.pid; error_log /log/e; http { access_log /log/a; }\nadmin_socket /run/s;");
    assert!(needs.paths.iter().all(|need| need.position.is_none()), "{:?}", needs.paths);
    let paths: Vec<_> = needs.master.iter().map(|need| need.path.to_str().unwrap_or_default()).collect();
    assert_eq!(paths, ["/run/a.pid", "/log/e", "/run/s", "/log/a"]);
}

#[test]
fn ports_of_upstreams_are_known() {
    let to = |pass: &str| ports(&format!("server {{\nlocation / {{ {pass} }} }}"));
    assert_eq!(ports("server { }"), Ok(vec![]));
    // Name servers: port 53.
    assert_eq!(to("proxy_pass http://127.0.0.1:81;"), Ok(vec![53, 81]));
    assert_eq!(to("proxy_pass https://a.example;"), Ok(vec![53, 443]));
    assert_eq!(to("fastcgi_pass [::1]:9000;"), Ok(vec![53, 9000]));
    assert_eq!(to("grpc_pass grpcs://127.0.0.1;"), Ok(vec![53, 443]));
    assert_eq!(to("set $memcached_key $uri; memcached_pass 127.0.0.1:11211;"), Ok(vec![53, 11211]));
    assert_eq!(to("scgi_pass 127.0.0.1:4000;"), Ok(vec![53, 4000]));
    assert_eq!(to("uwsgi_pass 127.0.0.1:3031;"), Ok(vec![53, 3031]));
    assert_eq!(to("uwsgi_pass unix:/run/app.sock;"), Ok(vec![53]));
    let group = "upstream a { server 127.0.0.1:81; server b.example:82; } server { location / { proxy_pass http://a; } }";
    assert_eq!(ports(group), Ok(vec![53, 81, 82]));
    assert_eq!(to("resolver 127.0.0.1:5353; proxy_pass http://127.0.0.1:81;"), Ok(vec![53, 81, 5353]));
}

#[test]
fn ports_in_addresses_with_variables_are_known_or_open() {
    let to = |pass: &str| ports(&format!("resolver 127.0.0.1; server {{\nlocation / {{ {pass} }} }}"));
    assert_eq!(to("set $up http://app:8080; proxy_pass $up;"), Ok(vec![53, 8080]));
    assert_eq!(to("set $up app; proxy_pass http://$up:8080/x;"), Ok(vec![53, 8080]));
    assert_eq!(to("proxy_pass http://$host:8080;"), Ok(vec![53, 8080]));
    assert_eq!(to("proxy_pass http://$host:8080$request_uri;"), Ok(vec![53, 8080]));
    assert_eq!(to("proxy_pass http://127.0.0.1:81$request_uri;"), Ok(vec![53, 81]));
    assert_eq!(to("proxy_pass http://127.0.0.1:81/$arg_a;"), Ok(vec![53, 81]));
    for open in ["http://$http_host", "http://$host/", "http://$arg_a$uri", "$arg_a", "http://h:8$arg_a"] {
        assert_eq!(
            to(&format!("proxy_pass {open};")),
            Err(vec![format!("proxy_pass {open} at 2")]),
            "{open}"
        );
    }
    assert_eq!(to("tunnel_pass;"), Err(vec!["tunnel_pass $host:$request_port at 2".to_owned()]));
    let group = "map $host $g { default a; x b; } upstream a { server 127.0.0.1:81; } upstream b { server 127.0.0.1:82; }
        server { location / { proxy_pass http://$g; } }";
    assert_eq!(ports(group), Ok(vec![53, 81, 82]));
    let service =
        "resolver 127.0.0.1; upstream a { zone z 64k;\nserver b.example service=_http._tcp resolve; }
        server { location / { proxy_pass http://a; } }";
    assert_eq!(ports(service), Err(vec!["server service=_http._tcp at 2".to_owned()]));
    let api = ports("server { location / { api write=on; allow 127.0.0.1; deny all; } }");
    assert_eq!(api, Err(vec!["api write=on at 0".to_owned()]));
    // `strict` allows the known ports even beside an open one.
    let both = needs_of(
        "http { server { location / { proxy_pass http://$arg_a; } location /b { proxy_pass http://127.0.0.1:81; } } }",
    );
    assert_eq!((both.connect, both.known_ports), (Ports::Any, BTreeSet::from([53, 81])));
    // A request may choose a group that no directive names.
    let unnamed = needs_of(
        "http { upstream a { server 127.0.0.1:81; server 127.0.0.1:82 backup; } server { tunnel_pass; } }
        stream { upstream b { server 127.0.0.1:83; } }",
    );
    assert_eq!((unnamed.connect, unnamed.known_ports), (Ports::Any, BTreeSet::from([53, 81, 82, 83])));
}

#[test]
fn a_local_port_is_needed_if_it_is_fixed_or_a_request_may_name_one() {
    let bound = |bind: &str| {
        needs_of(&format!(
            "http {{ server {{ location / {{ proxy_bind {bind}; proxy_pass http://127.0.0.1:81; }} }} }}"
        ))
        .bind
    };
    assert_eq!(bound("127.0.0.2"), Ports::Only(BTreeSet::new()));
    assert_eq!(bound("127.0.0.2:77"), Ports::Only(BTreeSet::from([77])));
    assert_eq!(bound("$remote_addr transparent"), Ports::Only(BTreeSet::new()));
    assert_eq!(bound("$remote_addr:$remote_port transparent"), Ports::Any);
    assert_eq!(bound("$arg_from"), Ports::Any);
    // Known values of variables.
    let set = |values: &str, bind: &str| {
        needs_of(&format!(
            "http {{ map $host $ip {{ {values} }} server {{ location / {{ proxy_bind {bind}; proxy_pass http://127.0.0.1:81; }} }} }}"
        ))
        .bind
    };
    let values = "default 127.0.0.2; a 127.0.0.3:78; b [::1]:79; c wrong; d \"\";";
    assert_eq!(set(values, "$ip"), Ports::Only(BTreeSet::from([78, 79])));
    assert_eq!(set("default 127.0.0.2;", "$ip:80"), Ports::Only(BTreeSet::from([80])));
    assert_eq!(set("default 127.0.0.2; a $arg_from;", "$ip"), Ports::Any);
    assert_eq!(set("default $remote_addr;", "$ip:80"), Ports::Any);
    assert_eq!(bound("$remote_addr:80"), Ports::Only(BTreeSet::from([80])));
}

#[test]
fn sockets_are_listed() {
    let needs = needs_of(
        "error_log syslog:server=unix:/dev/log; http { upstream a { server unix:/run/a.sock; }
         server { location / { proxy_pass http://a; } location /b { proxy_pass http://unix:/run/b.sock:/x; } } }",
    );
    let paths: Vec<_> = needs.sockets.iter().map(|need| need.path.to_str().unwrap_or_default()).collect();
    assert_eq!(paths, ["/dev/log", "/run/a.sock", "/run/b.sock"]);
}

/// When the path of a directive is opened.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Opened {
    /// While the configuration is read.
    Start,
    Master,
    Read,
    Write,
    Connect,
}

/// Directives with paths, each with a configuration in which its path is `/need/x`, or begins with it. Names that begin with an
/// underscore belong to several modules, and `PREFIX` stands for that of the module.
const WITH_PATHS: &[(&str, Opened, &str)] = &[
    (
        "otel_exporter",
        Opened::Start,
        "http { otel_exporter { endpoint https://a.example; trusted_certificate /need/x; } }",
    ),
    (
        "otel_exporter",
        Opened::Connect,
        "http { otel_exporter { endpoint unix:/need/x; } server { location / { } } }",
    ),
    ("_cache_path", Opened::Write, "http { PREFIX_cache_path /need/x keys_zone=z:1m; }"),
    ("_pass", Opened::Connect, "http { server { location / { PREFIX_pass SCHEMEunix:/need/x; } } }"),
    ("_ssl_certificate", Opened::Start, "http { server { PREFIX_ssl_certificate /need/x; } }"),
    ("_ssl_certificate_key", Opened::Start, "http { server { PREFIX_ssl_certificate_key /need/x; } }"),
    ("_ssl_crl", Opened::Start, "http { server { PREFIX_ssl_crl /need/x; } }"),
    ("_ssl_password_file", Opened::Start, "http { server { PREFIX_ssl_password_file /need/x; } }"),
    (
        "_ssl_trusted_certificate",
        Opened::Start,
        "http { server { PREFIX_ssl_trusted_certificate /need/x; } }",
    ),
    ("_store", Opened::Write, "http { server { PREFIX_store /need/x/$host; } }"),
    ("_temp_path", Opened::Write, "http { server { PREFIX_temp_path /need/x; } }"),
    ("access_log", Opened::Master, "http { access_log /need/x; }"),
    ("access_log", Opened::Write, "http { access_log /need/x/$host; }"),
    (
        "acme_issuer",
        Opened::Master,
        "http { acme_issuer a { uri https://a.example/; state_path /need/x; accept_terms_of_service; } }",
    ),
    ("admin_socket", Opened::Master, "admin_socket /need/x;"),
    ("alias", Opened::Read, "http { server { location /a { alias /need/x; } } }"),
    ("auth_basic_user_file", Opened::Read, "http { auth_basic_user_file /need/x; }"),
    ("auth_jwt_key_file", Opened::Read, "http { auth_jwt_key_file /need/x/$host; }"),
    ("auth_jwt_key_file", Opened::Start, "http { auth_jwt_key_file /need/x; }"),
    ("client_body_temp_path", Opened::Write, "http { client_body_temp_path /need/x; }"),
    ("error_log", Opened::Master, "http { error_log /need/x; }"),
    ("geoip2", Opened::Start, "http { geoip2 /need/x { } }"),
    ("keyval_zone", Opened::Write, "http { keyval_zone zone=a:64k state=/need/x/a; }"),
    (
        "oidc_provider",
        Opened::Start,
        "http { oidc_provider a { issuer https://a.example; client_id a; ssl_trusted_certificate /need/x; } }",
    ),
    ("pid", Opened::Master, "pid /need/x;"),
    ("root", Opened::Read, "http { root /need/x; }"),
    ("sandbox_path", Opened::Read, "sandbox_path /need/x;"),
    ("sandbox_path", Opened::Write, "sandbox_path /need/x rw;"),
    ("ssl_certificate", Opened::Start, "http { ssl_certificate /need/x; }"),
    (
        "ssl_certificate",
        Opened::Read,
        "http { server { ssl_certificate /need/x/$ssl_server_name; ssl_certificate_key /k/$ssl_server_name; } }",
    ),
    ("ssl_certificate_key", Opened::Start, "http { ssl_certificate_key /need/x; }"),
    ("ssl_client_certificate", Opened::Start, "http { server { ssl_client_certificate /need/x; } }"),
    ("ssl_crl", Opened::Start, "http { server { ssl_crl /need/x; } }"),
    ("ssl_password_file", Opened::Start, "http { ssl_password_file /need/x; }"),
    ("quic_host_key", Opened::Start, "http { quic_host_key /need/x; }"),
    ("ssl_session_ticket_key", Opened::Start, "http { ssl_session_ticket_key /need/x; }"),
    ("ssl_stapling_file", Opened::Start, "http { ssl_stapling_file /need/x; }"),
    ("ssl_trusted_certificate", Opened::Start, "http { server { ssl_trusted_certificate /need/x; } }"),
    ("state", Opened::Write, "http { upstream a { state /need/x/a; } }"),
    (
        "upstream",
        Opened::Connect,
        "http { upstream a { server unix:/need/x; } server { location / { proxy_pass http://a; } } }",
    ),
    ("working_directory", Opened::Master, "working_directory /need/x;"),
    ("zstd_dict_file", Opened::Start, "http { zstd_dict_file /need/x; }"),
];

/// Parts of the names and descriptions of directives that probably have a path.
const HINTS: [&str; 6] = ["file", "director", "path", "socket", "certificate", "database"];

/// Directives with such words that have no path, or only paths below the root: `index`, `try_files`.
const WITHOUT_PATHS: &[&str] = &[
    "_cookie_path",
    "_index",
    "_max_temp_file_size",
    "_socket_keepalive",
    "_socket_rcvbuf",
    "_socket_sndbuf",
    "_split_path_info",
    "_ssl_certificate_cache",
    "_ssl_name",
    "_ssl_verify",
    "_ssl_verify_depth",
    "_store_access",
    "_temp_file_write_size",
    "acme_certificate",
    "aio_sendfile",
    "auth_jwt_claim_set",
    "auth_jwt_header_set",
    "auth_jwt_key_cache",
    "autoindex",
    "brotli_static",
    "client_body_buffer_size",
    "client_body_in_file_only",
    "create_full_put_path",
    "dav_access",
    "dav_methods",
    "default_type",
    "directio",
    "etag",
    "gzip_static",
    "if",
    "index",
    "load_module",
    "log_not_found",
    "min_delete_depth",
    "mp4",
    "mp4_buffer_size",
    "mp4_limit_rate",
    "open_file_cache",
    "open_file_cache_errors",
    "open_file_cache_min_uses",
    "open_file_cache_valid",
    "open_log_file_cache",
    "output_buffers",
    "random_index",
    "read_ahead",
    "ring_io_workers",
    "sendfile",
    "sendfile_max_chunk",
    "ssl_certificate_cache",
    "ssl_certificate_compression",
    "ssl_ocsp",
    "ssl_ocsp_cache",
    "ssl_ocsp_responder",
    "ssl_stapling",
    "ssl_stapling_responder",
    "ssl_verify_client",
    "ssl_verify_depth",
    "sticky",
    "tcp_nopush",
    "thread_pool",
    "try_cached",
    "try_files",
    "types",
    "userid_path",
    "worker_rlimit_core",
    "worker_rlimit_nofile",
    "zstd_static",
];

/// A new directive with a path must state how the path is used, and must be added to [`WITH_PATHS`]; another directive with such
/// words to [`WITHOUT_PATHS`].
#[test]
fn every_directive_with_a_path_states_its_use() {
    const PREFIXES: [&str; 7] = ["proxy", "fastcgi", "uwsgi", "scgi", "grpc", "memcached", "tunnel"];
    let suffix = |name: &'static str| {
        let of = |prefix: &&str| name.strip_prefix(*prefix).is_some_and(|rest| rest.starts_with('_'));
        PREFIXES.iter().find(|prefix| of(prefix)).map(|prefix| (*prefix, &name[prefix.len()..]))
    };
    let mut unknown = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for spec in all().declarations().specs().specs() {
        if matches!(spec.state, Support::Accepted(_) | Support::Idle(_)) {
            continue;
        }
        let (prefix, name) = suffix(spec.name).unwrap_or(("", spec.name));
        let cases: Vec<_> = WITH_PATHS.iter().filter(|(known, ..)| *known == name).collect();
        for (_, opened, text) in &cases {
            seen.insert(name);
            let scheme = match (prefix, spec.name) {
                ("proxy", _) => "http://",
                ("grpc", _) => "grpc://",
                _ => "",
            };
            // nginx requires this variable in the configuration.
            let text = match prefix {
                "memcached" => text.replace("location / {", "location / { set $memcached_key $uri;"),
                _ => (*text).to_owned(),
            };
            let text = text.replace("PREFIX", prefix).replace("SCHEME", scheme);
            assert_use(&text, *opened);
        }
        let help = spec.help.to_ascii_lowercase();
        let is_likely = HINTS.iter().any(|hint| spec.name.contains(hint) || help.contains(hint));
        if cases.is_empty() && is_likely && !WITHOUT_PATHS.contains(&name) {
            unknown.insert(name);
        }
    }
    assert!(unknown.is_empty(), "state the use of these directives: {unknown:?}");
    let gone: Vec<_> = WITH_PATHS.iter().filter(|(name, ..)| !seen.contains(name)).collect();
    assert!(gone.is_empty(), "{gone:?}");
}

/// A loader that records which files are read.
struct Recorder {
    main: String,
    read: RefCell<Vec<PathBuf>>,
}

impl conf::Loader for Recorder {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        self.read.borrow_mut().push(path.to_owned());
        match path == Path::new("/conf/nginx.conf") {
            true => Ok(self.main.clone().into_bytes()),
            false => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    fn glob(&self, _: &Path) -> std::io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

fn assert_use(text: &str, opened: Opened) {
    let is_path = |path: &Path| path.starts_with("/need/x");
    if opened == Opened::Start {
        let loader = Recorder { main: format!("{text} events {{}}"), read: RefCell::default() };
        // The file does not exist, which is an error of many directives.
        let _ = site::config::load(
            all().declarations(),
            &conf::Source::new("/conf/nginx.conf"),
            Path::new("/prefix"),
            &loader,
        );
        assert!(loader.read.borrow().iter().any(|path| path == Path::new("/need/x")), "{text}");
        return;
    }
    let found = needs_of(text);
    let has = |list: &[site::needs::Need], access| {
        list.iter().any(|need| is_path(&need.path) && need.access == access && need.position.is_some())
    };
    let uses = [
        (has(&found.master, Access::Write), Opened::Master),
        (has(&found.paths, Access::Read), Opened::Read),
        (has(&found.paths, Access::Write), Opened::Write),
        (has(&found.sockets, Access::Read), Opened::Connect),
    ];
    let found: Vec<_> = uses.into_iter().filter(|(is, _)| *is).map(|(_, opened)| opened).collect();
    assert_eq!(found, [opened], "{text}");
}

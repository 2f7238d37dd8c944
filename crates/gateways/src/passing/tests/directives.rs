//! Tests of the directives that all protocols have, except for those of the cache, with the names of HTTP.

use std::sync::Arc;
use std::time::Duration;

use crate::passing::Passing;
use crate::passing::conf::Conf;
use crate::passing::pass::Pass;
use crate::proxy::Http;
use crate::testing::{error, loaded, warnings};
use exchange::phases::Phase;
use upstream::{BindAddr, NextUpstream};

/// Returns the settings of the last location.
fn conf_of(http: &str) -> Conf {
    let config = loaded(http);
    config.http.locations.last().expect("there is a server").scope.of::<Passing<Http>>().conf.clone()
}

/// Checks the value of a directive in a location: set there, inherited, and replaced.
fn inherited<T: PartialEq + std::fmt::Debug>(
    name: &str,
    (value, expected): (&str, T),
    (other, replaced): (&str, T),
    get: fn(&Conf) -> T,
) {
    for (text, expected) in [
        (format!("server {{ location / {{ {name} {value}; }} }}"), &expected),
        (format!("{name} {value}; server {{ location / {{ }} }}"), &expected),
        (format!("{name} {other}; server {{ {name} {value}; location / {{ }} }}"), &expected),
        (format!("server {{ {name} {value}; location / {{ {name} {other}; }} }}"), &replaced),
    ] {
        assert_eq!(get(&conf_of(&text)), *expected, "{text}");
    }
}

#[test]
fn defaults_match_nginx() {
    let conf = conf_of("server { location / { } }");
    let minute = Duration::from_secs(60);
    let upstream = &conf.upstream;
    assert_eq!(
        (upstream.connect_timeout, upstream.send_timeout, upstream.read_timeout),
        (minute, minute, minute)
    );
    assert_eq!(
        (upstream.buffer_size, upstream.buffers, upstream.max_temp_file_size),
        (4096, (8, 4096), 1 << 30)
    );
    assert_eq!((upstream.busy_buffers_size, upstream.temp_file_write_size), (None, None));
    assert_eq!(upstream.temp_path.path().to_str(), Some("/prefix/proxy_temp"));
    assert_eq!(upstream.temp_path.levels(), [1, 2]);
    assert!(upstream.buffering && upstream.request_buffering && !upstream.pass_trailers);
    assert_eq!(upstream.next_upstream, NextUpstream::ERROR | NextUpstream::TIMEOUT);
    assert_eq!((conf.pass_fields, conf.pass_body, conf.store_access), (true, true, 0o600));
    assert!(conf.pass.is_none());
}

#[test]
fn values_are_inherited_and_replaced() {
    let second = Duration::from_secs;
    inherited("proxy_connect_timeout", ("5s", second(5)), ("1m", second(60)), |conf| {
        conf.upstream.connect_timeout
    });
    inherited("proxy_send_timeout", ("5s", second(5)), ("1m", second(60)), |conf| conf.upstream.send_timeout);
    inherited("proxy_read_timeout", ("5s", second(5)), ("1m", second(60)), |conf| conf.upstream.read_timeout);
    inherited("proxy_next_upstream_timeout", ("5s", second(5)), ("0", second(0)), |conf| {
        conf.upstream.next_upstream_timeout
    });
    inherited("proxy_next_upstream_tries", ("3", 3), ("0", 0), |conf| conf.upstream.next_upstream_tries);
    inherited("proxy_buffer_size", ("8k", 8192), ("2k", 2048), |conf| conf.upstream.buffer_size);
    inherited("proxy_buffers", ("4 8k", (4, 8192)), ("9 1k", (9, 1024)), |conf| conf.upstream.buffers);
    inherited("proxy_busy_buffers_size", ("12k", Some(12288)), ("8k", Some(8192)), |conf| {
        conf.upstream.busy_buffers_size
    });
    inherited("proxy_max_temp_file_size", ("0", 0), ("1m", 1 << 20), |conf| conf.upstream.max_temp_file_size);
    inherited("proxy_temp_file_write_size", ("16k", Some(16384)), ("4k", Some(4096)), |conf| {
        conf.upstream.temp_file_write_size
    });
    inherited("proxy_temp_path", ("a 1 2 2", "/prefix/a 3".to_owned()), ("/b", "/b 0".to_owned()), |conf| {
        let directory = &conf.upstream.temp_path;
        format!("{} {}", directory.path().display(), directory.levels().len())
    });
    inherited("proxy_socket_rcvbuf", ("64k", Some(65536)), ("0", None), |conf| conf.upstream.socket_rcvbuf);
    inherited("proxy_socket_sndbuf", ("64k", Some(65536)), ("0", None), |conf| conf.upstream.socket_sndbuf);
    inherited("proxy_limit_rate", ("1k", "1k".to_owned()), ("2k", "2k".to_owned()), |conf| {
        conf.upstream.limit_rate.as_ref().and_then(|rate| rate.constant()).unwrap_or_default().to_owned()
    });
    inherited("proxy_store_access", ("group:rw all:r", 0o664), ("user:r", 0o400), |conf| conf.store_access);
}

#[test]
fn lists_are_inherited_until_a_block_has_its_own() {
    let shown = |list: &site::config::Layered<Box<str>>| list.items().join(" ");
    let conf = conf_of(
        "proxy_hide_header A; proxy_pass_header Server; server { location / { proxy_hide_header B; } }",
    );
    let hidden = &conf.upstream.hidden;
    assert_eq!((shown(&hidden.names), shown(&hidden.shown)), ("B".to_owned(), "Server".to_owned()));
    let hides = |name: &str| hidden.has(http::fields::HeaderId::of(name.as_bytes()), name.as_bytes());
    let found = ["b", "Date", "X-Pad", "x-accel-redirect", "X-Accel-Expires"].map(hides);
    assert_eq!((found, hides("A"), hides("server"), hides("X")), ([true; 5], false, false, false));
}

#[test]
fn sets_of_keywords_are_combined_in_a_block() {
    let next = |http: &str| conf_of(http).upstream.next_upstream;
    let http = "proxy_next_upstream http_500; server { proxy_next_upstream error; proxy_next_upstream http_404 non_idempotent; }";
    assert_eq!(next(http), NextUpstream::ERROR | NextUpstream::HTTP_404 | NextUpstream::NON_IDEMPOTENT);
    assert_eq!(next("proxy_next_upstream error off; server { }"), NextUpstream::OFF);
    assert_eq!(next("proxy_next_upstream error updating; server { }"), NextUpstream::ERROR);
    let conf = conf_of("proxy_ignore_headers Vary; server { proxy_ignore_headers Set-Cookie expires; }");
    let has = |name: &str| conf.ignored().has(http::fields::HeaderId::of(name.as_bytes()));
    assert_eq!(["Set-Cookie", "Expires", "Vary", "X-Accel-Redirect"].map(has), [true, true, false, false]);
    let found = warnings("http {\nproxy_next_upstream error; proxy_next_upstream error; }");
    assert_eq!(found, ["duplicate value \"error\" in /conf/nginx.conf:2"]);
}

#[test]
fn application_servers_are_not_retried_after_errors_of_gateways() {
    let status = |prefix: &str, value: &str| format!("\n{prefix}_next_upstream http_500 {value};");
    for value in ["http_502", "http_504"] {
        for prefix in ["fastcgi", "scgi", "uwsgi"] {
            let found = error(&format!("http {{ {} }}", status(prefix, value)));
            let expected = format!("invalid value \"{value}\" in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{prefix}: {found}");
        }
        for prefix in ["proxy", "grpc"] {
            loaded(&status(prefix, value));
        }
    }
    for prefix in ["proxy", "fastcgi", "scgi", "uwsgi"] {
        loaded(&status(prefix, "updating"));
    }
}

#[test]
fn local_addresses_for_connections_are_parsed() {
    let bind = |text: &str| conf_of(&format!("server {{ proxy_bind {text}; }}")).upstream.bind;
    let fixed = |text: &str| match bind(text) {
        Some(bind) => match bind.address {
            BindAddr::Fixed(address) => format!("{address} {}", bind.transparent),
            BindAddr::Text(_) => "variables".to_owned(),
        },
        None => "none".to_owned(),
    };
    assert_eq!(fixed("127.0.0.2"), "127.0.0.2:0 false");
    assert_eq!(fixed("127.0.0.2:7 transparent"), "127.0.0.2:7 true");
    assert_eq!(fixed("[::1]"), "[::1]:0 false");
    assert_eq!(fixed("$remote_addr transparent"), "variables");
    assert_eq!(fixed("off"), "none");
}

#[test]
fn proxy_pass_applies_to_its_block_and_its_if_blocks() {
    let config = loaded(
        "server { location /a/ { proxy_pass http://127.0.0.1/b/; if ($uri) { } limit_except GET { }
           location /a/c { } } }",
    );
    let passes: Vec<(String, bool)> = config
        .http
        .locations
        .iter()
        .map(|location| (location.name.clone(), location.scope.of::<Passing<Http>>().conf.pass.is_some()))
        .collect();
    let expected = [("server", false), ("/a/", true), ("/a/", true), ("limit_except", true), ("/a/c", false)];
    assert_eq!(passes, expected.map(|(name, passes)| (name.to_owned(), passes)));
}

/// As in nginx the last `*_pass` applies, and that of an `if` replaces that of its location.
#[test]
fn a_block_passes_requests_on_with_one_protocol() {
    let config = loaded(
        "server { location / { proxy_pass http://127.0.0.1; fastcgi_pass 127.0.0.1:1; if ($uri) { }
           if ($args) { scgi_pass 127.0.0.1:1; } if ($host) { proxy_pass http://127.0.0.1; }
           limit_except GET { proxy_pass http://127.0.0.1; } location /in { } } }",
    );
    let handlers: Vec<_> = config
        .http
        .locations
        .iter()
        .map(|location| {
            let plan = crate::all().plan(&config.http, &location.scope);
            (location.name.as_str(), location.scope.core.pass, plan.count(Phase::Content))
        })
        .collect();
    let expected = [
        ("server", "", 0),
        ("/", "fastcgi", 1),
        ("/", "scgi", 1),
        ("/", "proxy", 1),
        ("/", "fastcgi", 1),
        ("limit_except", "proxy", 1),
        ("/in", "fastcgi", 0),
    ];
    assert_eq!(handlers, expected);
}

#[test]
fn the_uri_replaces_the_location_prefix() {
    let pass = |http: &str| conf_of(http).pass.expect("it passes on");
    let shown = |pass: &Pass| (pass.location().to_owned(), pass.redirects_to_slash());
    assert_eq!(
        shown(&pass("server { location /a/ { proxy_pass http://127.0.0.1/b/; } }")),
        ("/a/".to_owned(), true)
    );
    assert_eq!(
        shown(&pass("server { location = /a { proxy_pass http://127.0.0.1/b; } }")),
        ("/a".to_owned(), false)
    );
    assert_eq!(
        shown(&pass("server { location ~ a/$ { proxy_pass http://127.0.0.1; } }")),
        (String::new(), false)
    );
}

#[test]
fn wrong_statements_are_refused() {
    const NO_URI: &str = "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside \
                          named location, or inside \"if\" statement, or inside \"limit_except\" block";
    for (text, expected) in [
        ("location / {\nproxy_pass ftp://a; }", "invalid URL prefix"),
        ("location / {\nproxy_pass a; }", "invalid URL prefix"),
        (
            "proxy_ssl_verify on; location / {\nproxy_pass https://127.0.0.1; }",
            "no proxy_ssl_trusted_certificate for proxy_ssl_verify",
        ),
        (
            "location / {\nproxy_ssl_certificate_key /none; }",
            "cannot load certificate key \"/none\": open() \"/none\" failed (2: No such file or directory)",
        ),
        ("location / {\nproxy_pass http://; }", "no host in upstream \"\""),
        ("location / {\nproxy_pass http:///a; }", "no host in upstream \"/a\""),
        ("location / {\nproxy_pass http://a:x/; }", "invalid port in upstream \"a:x/\""),
        ("location / {\nproxy_pass http://a:99999; }", "invalid port in upstream \"a:99999\""),
        ("location / {\nproxy_pass http://[::1; }", "invalid host in upstream \"[::1\""),
        (
            "location / {\nproxy_pass http://unix:; }",
            "no path in the unix domain socket in upstream \"unix:\"",
        ),
        ("location / {\ngrpc_pass grpc://127.0.0.1:9000/; }", "invalid host in upstream \"127.0.0.1:9000/\""),
        ("location / {\nfastcgi_pass [::1]:9000/a; }", "invalid host in upstream \"[::1]:9000/a\""),
        ("location ~ a {\nscgi_pass a:9000?b; }", "invalid host in upstream \"a:9000?b\""),
        ("location ~ a {\nproxy_pass http://127.0.0.1/; }", NO_URI),
        ("location @a {\nproxy_pass http://127.0.0.1/; }", NO_URI),
        ("location / { if ($uri) {\nproxy_pass http://127.0.0.1/; } }", NO_URI),
        ("location / { limit_except GET {\nproxy_pass http://127.0.0.1/; } }", NO_URI),
        (
            "location / {\nproxy_pass http://127.0.0.1; proxy_pass http://127.0.0.1; }",
            "\"proxy_pass\" directive is duplicate",
        ),
        ("\nproxy_bind x;", "invalid address \"x\""),
        ("\nproxy_bind 127.0.0.1 x;", "invalid parameter \"x\""),
        ("\nproxy_next_upstream x;", "invalid value \"x\""),
        ("\ngrpc_next_upstream updating;", "invalid value \"updating\""),
        ("\nproxy_next_upstream_tries x;", "\"proxy_next_upstream_tries\" directive invalid number"),
        ("\nproxy_ignore_headers x;", "invalid value \"x\""),
        ("\nproxy_connect_timeout x;", "\"proxy_connect_timeout\" directive invalid value"),
        ("\nproxy_limit_rate x;", "\"proxy_limit_rate\" directive invalid value"),
        ("\nproxy_temp_path a 9;", "\"proxy_temp_path\" directive invalid value"),
        ("\nproxy_store_access x;", "invalid value \"x\""),
        ("\nproxy_store_access user:w;", "invalid value \"user:w\""),
        ("\nproxy_store '';", "empty path"),
    ] {
        let found = error(&format!("http {{ server {{ {text} }} }}"));
        assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{text}: {found}");
    }
}

#[test]
fn errors_of_addresses_name_the_remedy() {
    for (text, remedy) in [
        ("proxy_pass localhost:3000;", "; it must begin with \"http://\" or \"https://\""),
        ("fastcgi_pass http://127.0.0.1:9000;", "; write the address alone: \"127.0.0.1:9000\""),
        ("proxy_set_header Host $hots; proxy_pass http://a;", "; did you mean \"$host\"?"),
        ("proxy_read_timeout 30sec;", "; did you mean \"30s\"?"),
        ("client_max_body_size 10 M;", "; it takes 1 argument, not 2; did you mean \"10M\"?"),
        (
            "root /srv/my site;",
            "; it takes 1 argument, not 2; for a single argument, write it in quotes: \"/srv/my site\"",
        ),
    ] {
        let found = error(&format!("http {{ server {{ location / {{\n{text} }} }} }}"));
        assert!(found.ends_with(&format!(" in /conf/nginx.conf:2{remedy}")), "{text}: {found}");
    }
}

#[test]
fn buffer_sizes_must_be_consistent() {
    const LARGEST: &str = "equal to or greater than the maximum of the value of \"proxy_buffer_size\" and one of the \
                           \"proxy_buffers\"";
    const ALL: &str =
        "\"proxy_busy_buffers_size\" must be less than the size of all \"proxy_buffers\" minus one buffer";
    let must = |name: &str, found: &str, maximum: &str, or: &str| {
        let remedy = format!("remedy: a larger \"{name}\", or smaller buffers");
        format!("\"{name}\" must be {or}{LARGEST}: it is {found}, the maximum {maximum}; {remedy}")
    };
    let less = |found: &str, all: &str| {
        let remedy = "remedy: more or larger \"proxy_buffers\", or a smaller \"proxy_busy_buffers_size\"";
        format!("{ALL}: it is {found}, they are {all}; {remedy}")
    };
    for (text, expected) in [
        ("proxy_buffers 1 4k;", "there must be at least 2 \"proxy_buffers\"".to_owned()),
        ("proxy_buffer_size 64k;", less("128k, twice the largest buffer", "28k")),
        ("proxy_buffers 2 8k;", less("16k, twice the largest buffer", "8k")),
        ("proxy_busy_buffers_size 29k;", less("29k", "28k")),
        ("proxy_busy_buffers_size 1000;", must("proxy_busy_buffers_size", "1000", "4k", "")),
        ("proxy_temp_file_write_size 1k;", must("proxy_temp_file_write_size", "1k", "4k", "")),
        (
            "proxy_buffers 8 2m; proxy_max_temp_file_size 1m;",
            must(
                "proxy_max_temp_file_size",
                "1m",
                "2m",
                "equal to zero to disable temporary files usage or must be ",
            ),
        ),
    ] {
        for place in
            [format!("http {{ {text}\n}}"), format!("http {{ server {{ location / {{ {text}\n}} }} }}")]
        {
            assert_eq!(error(&place), format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
    }
    // Sizes of a block must also match inherited sizes.
    let found = error("http { proxy_busy_buffers_size 8k; server { proxy_buffer_size 16k;\n} }");
    assert!(found.starts_with("\"proxy_busy_buffers_size\" must be equal to or greater"), "{found}");
    let conf = conf_of("proxy_buffers 8 16k; server { proxy_buffer_size 32k; }");
    assert_eq!((conf.upstream.buffers, conf.upstream.buffer_size), ((8, 16 << 10), 32 << 10));
    conf_of("proxy_buffers 8 4k; proxy_busy_buffers_size 28k; proxy_max_temp_file_size 0; server { }");
    // The default for header sections, 8k, does not count here: nginx accepts these.
    conf_of("proxy_buffers 4 4k; server { }");
    conf_of("proxy_buffers 8 4k; proxy_busy_buffers_size 4k; server { }");
}

#[test]
fn dangerous_or_ineffective_settings_cause_warnings() {
    for (text, expected) in [
        ("proxy_send_lowat 1;", "\"proxy_send_lowat\" is not supported, ignored"),
        ("proxy_ssl_protocols TLSv1 TLSv1.2;", "versions that are not supported are left out: TLSv1"),
        ("proxy_ssl_protocols tlsv1 tlsv1.2;", "versions that are not supported are left out: tlsv1"),
    ] {
        let found = warnings(&format!("http {{\n{text} }}"));
        assert_eq!(found, [format!("{expected} in /conf/nginx.conf:2")], "{text}");
    }
}

/// As in nginx, only `proxy_ssl_verify` needs these files.
#[test]
fn files_for_verification_need_not_exist_without_it() {
    let conf = |text: &str| format!("server {{ location / {{ proxy_pass https://127.0.0.1:1; {text}\n}} }}");
    let none = "proxy_ssl_trusted_certificate none.pem; proxy_ssl_crl none.pem;";
    assert!(conf_of(&conf(none)).upstream.secure.is_some());
    let found = error(&format!("http {{ {} }}", conf(&format!("{none} proxy_ssl_verify on;"))));
    assert!(found.starts_with("cannot load certificate \"/conf/none.pem\""), "{found}");
}

#[test]
fn certificates_with_variables_are_read_during_handshakes() {
    let secure = |text: &str| {
        let conf = conf_of(&format!("server {{ location / {{ proxy_pass https://127.0.0.1:1; {text} }} }}"));
        conf.upstream.secure.clone().expect("an upstream with TLS")
    };
    assert!(secure("").named.is_none());
    let named = secure("proxy_ssl_certificate $arg_a.pem; proxy_ssl_certificate_key $arg_a.key;");
    assert_eq!(
        named.named.as_ref().map(|named| (named.pairs.len(), named.cache.is_some())),
        Some((1, false))
    );
    let kept = secure(
        "proxy_ssl_certificate_cache max=5 valid=1m; proxy_ssl_certificate $arg_a; proxy_ssl_certificate_key $arg_a;",
    );
    assert!(kept.named.as_ref().is_some_and(|named| named.cache.is_some()));
    for (text, expected) in [
        (
            "proxy_ssl_certificate_cache valid=1m;",
            "\"proxy_ssl_certificate_cache\" must have the \"max\" parameter",
        ),
        ("proxy_ssl_certificate_cache max=x;", "invalid parameter \"max=x\""),
        (
            "proxy_ssl_certificate $arg_a;",
            "no \"proxy_ssl_certificate_key\" is defined for certificate \"$arg_a\"",
        ),
    ] {
        let found = error(&format!(
            "http {{ server {{ location / {{ proxy_pass https://127.0.0.1:1; {text} }} }} }}"
        ));
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn every_directive_of_the_module_exists() {
    let here: Vec<&str> =
        crate::all().declarations().directives().iter().map(|directive| directive.spec.name).collect();
    let missing = conf::nginx_directives().iter().filter(|row| row.module == "http_proxy");
    let missing: Vec<&str> = missing.map(|row| row.name).filter(|name| !here.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn openssl_commands_select_versions_and_suites() {
    let location = |command: &str| {
        format!(
            "http {{ server {{ location / {{ proxy_pass https://127.0.0.1:1;\nproxy_ssl_conf_command {command};\n}} }} }}"
        )
    };
    for command in [
        "MinProtocol TLSv1.3",
        "Ciphersuites TLS_CHACHA20_POLY1305_SHA256",
        "Groups X25519:P-256",
        "Options KTLS,-ServerPreference",
    ] {
        crate::testing::load(&location(command)).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
    for (command, expected) in [
        ("Ciphersuites x", "SSL_CONF_cmd(\"Ciphersuites\", \"x\") failed"),
        ("Groups x", "SSL_CONF_cmd(\"Groups\", \"x\") failed: unknown curve name \"x\""),
        ("MinProtocol x", "SSL_CONF_cmd(\"MinProtocol\", \"x\") failed"),
        ("Verify x", "SSL_CONF_cmd(\"Verify\", \"x\") failed: the supported commands are "),
    ] {
        let found = error(&location(command));
        assert!(found.starts_with(expected), "{command}: {found}");
    }
}

/// A configuration of 100 000 locations has the settings of eight protocols once.
#[test]
fn locations_without_a_target_share_the_settings_of_their_server() {
    let config = loaded(
        "proxy_buffers 8 16k; server { location /a { } location /b { } location /c { proxy_pass http://127.0.0.1; location /c/d { } }
         location /e { proxy_read_timeout 1s; } }",
    );
    let of = |name: &str| {
        let location = config.http.locations.iter().find(|location| location.name == name);
        location.expect("it is there").scope.shared::<Passing<Http>>()
    };
    assert!(Arc::ptr_eq(&of("/a"), &of("/b")) && Arc::ptr_eq(&of("/a"), &of("server")));
    assert!(of("/c").conf.pass.is_some() && of("/c/d").conf.pass.is_none());
    assert!(!Arc::ptr_eq(&of("/a"), &of("/c/d")) && !Arc::ptr_eq(&of("/a"), &of("/e")));
    assert_eq!(of("/e").conf.upstream.read_timeout, Duration::from_secs(1));
}

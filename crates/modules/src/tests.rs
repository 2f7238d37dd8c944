//! Tests of rules that apply to the directives of all modules, so that no module can miss them. Special behaviour is
//! tested in the module's file.

use std::path::{Path, PathBuf};

use conf::{Args, Block, Contexts, Repeat, Support};
use site::config;

use crate::testing::{error, load, warnings};
use crate::{Directive, Set, all};

/// The contexts of directives, each with the text before and after it.
const PLACES: &[(Contexts, &str, &str)] = &[
    (Contexts::MAIN, "\n", ""),
    (Contexts::EVENTS, "events {\n", "}"),
    (Contexts::HTTP, "http {\n", "}"),
    (Contexts::SERVER, "http { server {\n", "} }"),
    (Contexts::LOCATION, "http { server { location / {\n", "} } }"),
    (Contexts::LIMIT_EXCEPT, "http { server { location / { limit_except GET {\n", "} } } }"),
    (Contexts::UPSTREAM, "http { upstream a {\n", "} }"),
    (Contexts::SERVER_IF, "http { server { if ($uri) {\n", "} } }"),
    (Contexts::LOCATION_IF, "http { server { location / { if ($uri) {\n", "} } } }"),
    (Contexts::STREAM, "stream {\n", "}"),
    (Contexts::STREAM_SERVER, "stream { server { listen 1;\n", "} }"),
    (Contexts::STREAM_UPSTREAM, "stream { upstream a {\n", "} }"),
];

fn directives() -> impl Iterator<Item = &'static Directive> {
    all().declarations().directives().iter().copied()
}

/// Returns the errors of a configuration with this directive, for each context that allows it.
fn errors(directive: &Directive, args: &str) -> Vec<String> {
    let spec = &directive.spec;
    let end = if spec.block == Block::No { ";" } else { " { }" };
    let places = PLACES.iter().filter(|(place, ..)| spec.contexts.intersects(*place));
    let errors =
        places.map(|(_, before, behind)| error(&format!("{before}{}{args}{end} {behind}", spec.name)));
    let errors: Vec<_> = errors.collect();
    assert!(!errors.is_empty(), "{} stands nowhere", spec.name);
    errors
}

/// Every directive has the contexts, arguments and braces that it has in nginx.
#[test]
fn directive_tables_match_nginx() {
    let table = all().declarations().specs();
    let mut differences = conf::differences(table);
    // nginx parses this directive as a flag too, but its table does not restrict the arguments.
    differences
        .retain(|difference| !difference.starts_with("http_uwsgi uwsgi_cache_background_update: takes"));
    assert_eq!(differences, Vec::<String>::new());
    let count = table.specs().count();
    assert!(count > 115, "{count} directives");
}

/// A directive belongs to the same module as in nginx, because `-V` reports the modules to tools.
#[test]
fn directives_are_in_the_module_of_nginx() {
    for spec in all().declarations().specs().specs() {
        let mut rows = conf::nginx_directives().iter().filter(|row| row.name == spec.name).peekable();
        let known = rows.peek().is_none() || rows.any(|row| row.module == spec.module);
        assert!(known || spec.module == "ringroad", "{} in {}", spec.name, spec.module);
    }
}

/// This server has all directives of nginx's HTTP core.
#[test]
fn all_directives_of_the_core_exist() {
    let missing: Vec<&str> = conf::nginx_directives()
        .iter()
        .filter(|row| {
            matches!(row.module, "http_core" | "nginx" | "event" | "epoll" | "http_index" | "http_log")
        })
        .filter(|row| {
            all().declarations().specs().named(row.name).iter().all(|spec| spec.module != row.module)
        })
        .map(|row| row.name)
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn load_module_of_a_builtin_or_unused_module_is_reported_and_ignored() {
    for (path, expected) in [
        ("modules/ngx_http_realip_module.so", "its directives are built in"),
        ("modules/ngx_http_brotli_filter_module.so", "its directives are built in"),
        ("modules/ngx_http_brotli_static_module.so", "its directives are built in"),
        ("modules/ngx_http_headers_more_filter_module.so", "its directives are built in"),
        ("/usr/lib/nginx/modules/ngx_http_geoip_module.so", "none of its directives is used"),
        ("modules/ngx_http_image_filter_module.so", "none of its directives is used"),
        ("modules/ngx_stream_module.so", "its directives are built in"),
        ("modules/ngx_http_echo_module.so", "none of its directives is used"),
        ("whatever", "none of its directives is used"),
    ] {
        let found = warnings(&format!("\nload_module {path}; http {{ server {{ root /x; }} }}"));
        assert_eq!(found, [format!("\"{path}\" is not loaded, {expected} in /conf/nginx.conf:2")]);
    }
}

#[test]
fn a_wrong_number_of_arguments_is_an_error_at_its_line() {
    for directive in directives() {
        let name = directive.spec.name;
        let args = match directive.spec.args {
            Args::Any => continue,
            Args::None => " x",
            Args::Exactly(_) | Args::Between(1.., _) | Args::AtLeast(_) | Args::Flag => "",
            Args::Between(0, most) => &" x".repeat(usize::from(most) + 1),
        };
        for found in errors(directive, args) {
            let expected =
                format!("invalid number of arguments in \"{name}\" directive in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{name}: {found}");
        }
    }
}

/// A setter that reads an argument which its row does not require would end the process that reads the file.
#[test]
fn every_directive_can_be_read_with_the_fewest_arguments() {
    for directive in directives() {
        let spec = &directive.spec;
        let count = match spec.args {
            Args::Any | Args::None => 0,
            Args::Flag => 1,
            Args::Exactly(count) | Args::Between(count, _) | Args::AtLeast(count) => usize::from(count),
        };
        let end = if spec.block == Block::No { ";" } else { " { }" };
        for (_, before, behind) in PLACES.iter().filter(|(place, ..)| spec.contexts.intersects(*place)) {
            for word in ["x", "1", "on", "off", "$x", "a=b", "127.0.0.1", "http://127.0.0.1", "/x", ""] {
                let args = format!(" \"{word}\"").repeat(count);
                // The result does not matter: no statement may cause a panic.
                let _ = load(&format!("{before}{}{args}{end} {behind}", spec.name));
            }
        }
    }
}

#[test]
fn a_flag_is_on_or_off() {
    // Directives of `events` are checked after the complete block was read, and the test harness adds a second block.
    let is_meant = |directive: &&Directive| {
        let spec = &directive.spec;
        spec.args == Args::Flag && !spec.contexts.intersects(Contexts::EVENTS)
    };
    for directive in directives().filter(is_meant) {
        let name = directive.spec.name;
        for found in errors(directive, " maybe") {
            let expected = format!(
                "invalid value \"maybe\" in \"{name}\" directive, it must be \"on\" or \"off\" in /conf/nginx.conf:2"
            );
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_directive_in_the_wrong_context_is_an_error_at_its_line() {
    let is_main = |name: &str| {
        let mut same = directives().filter(|directive| directive.spec.name == name);
        same.any(|directive| directive.spec.contexts.intersects(Contexts::MAIN))
    };
    for name in directives().map(|directive| directive.spec.name).filter(|name| !is_main(name)) {
        let found = error(&format!("\n{name} x;"));
        let expected = format!("\"{name}\" directive is not allowed here in /conf/nginx.conf:2");
        assert!(found.starts_with(&expected), "{found}");
    }
}

/// Returns the settings of the last location as text, with a flag set in `http`, `server` and the location.
fn settings(name: &str, http: &str, server: &str, location: &str) -> String {
    let statement = |value: &str| match value {
        "" => String::new(),
        value => format!("{name} {value};"),
    };
    let [http, server, location] = [http, server, location].map(statement);
    let text = format!("http {{ {http} server {{ {server} location / {{ {location} }} }} }}");
    let config = load(&text).unwrap_or_else(|error| panic!("{text}: {error}")).config;
    let location = config.http.locations.last().expect("there is one");
    format!("{:?}", location.scope)
}

#[test]
fn flags_are_inherited_and_replaced() {
    let levels = [Contexts::HTTP, Contexts::SERVER, Contexts::LOCATION];
    let flags = directives().filter(|directive| {
        let spec = &directive.spec;
        let is_setting = matches!(directive.set, Set::Scope(_))
            && !matches!(spec.state, Support::Accepted(_) | Support::Idle(_));
        is_setting && spec.args == Args::Flag && levels.iter().all(|level| spec.contexts.intersects(*level))
    });
    let mut count = 0;
    for name in flags.map(|directive| directive.spec.name) {
        let own = |value: &str| settings(name, "", "", value);
        let (on, off) = (own("on"), own("off"));
        assert_ne!(on, off, "{name}");
        for (http, server, location, expected) in [
            ("on", "", "", &on),
            ("off", "", "", &off),
            ("", "on", "", &on),
            ("off", "on", "", &on),
            ("on", "off", "", &off),
            ("on", "", "off", &off),
            ("off", "", "on", &on),
        ] {
            let found = settings(name, http, server, location);
            assert!(found == *expected, "{name}: {http:?} {server:?} {location:?}");
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// The modules whose directives have a row in [`SAMPLES`], besides the directives of caches.
const SAMPLED: [&str; 11] = [
    "http_proxy",
    "http_slice",
    "http_upstream",
    "http_upstream_hash",
    "http_upstream_ip_hash",
    "http_upstream_keepalive",
    "http_upstream_least_conn",
    "http_upstream_least_time",
    "http_upstream_random",
    "http_upstream_sticky",
    "http_upstream_zone",
];

/// Invalid arguments, and the start of their error message.
type Wrong = Option<(&'static str, &'static str)>;

/// Valid arguments, and invalid ones with the start of their error message. If any text is valid there is no invalid
/// sample.
const SAMPLES: &[(&str, &str, Wrong)] = &[
    ("early_hints", "$uri", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("hash", "$uri", Some(("$uri x", "invalid parameter \"x\""))),
    ("ip_hash", "", None),
    ("keepalive", "1", Some(("x", "invalid value \"x\""))),
    ("keepalive_requests", "1", Some(("x", "\"keepalive_requests\" directive invalid number"))),
    ("keepalive_time", "1s", Some(("x", "\"keepalive_time\" directive invalid value"))),
    ("keepalive_timeout", "1s", Some(("x", "\"keepalive_timeout\" directive invalid value"))),
    ("least_conn", "", None),
    ("least_time", "header", Some(("x", "invalid value \"x\" in /conf/nginx.conf:2"))),
    ("proxy_bind", "127.0.0.1", Some(("x", "invalid address \"x\""))),
    ("proxy_buffer_size", "4k", Some(("x", "\"proxy_buffer_size\" directive invalid value"))),
    ("proxy_buffers", "8 4k", Some(("x 4k", "\"proxy_buffers\" directive invalid value"))),
    ("proxy_busy_buffers_size", "8k", Some(("x", "\"proxy_busy_buffers_size\" directive invalid value"))),
    ("proxy_cache", "off", Some(("nobody", "\"proxy_cache\" zone \"nobody\" is unknown"))),
    ("proxy_cache_bypass", "$uri", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_cache_heuristic", "10%", Some(("x", "invalid"))),
    ("proxy_cache_key", "a", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_cache_lock_age", "1s", Some(("x", "\"proxy_cache_lock_age\" directive invalid value"))),
    ("proxy_cache_lock_timeout", "1s", Some(("x", "\"proxy_cache_lock_timeout\" directive invalid value"))),
    (
        "proxy_cache_max_range_offset",
        "1",
        Some(("x", "\"proxy_cache_max_range_offset\" directive invalid value")),
    ),
    ("proxy_cache_methods", "GET", Some(("PUT", "invalid value \"PUT\""))),
    ("proxy_cache_min_uses", "1", Some(("x", "\"proxy_cache_min_uses\" directive invalid number"))),
    (
        "proxy_cache_path",
        "/c keys_zone=a:1m",
        Some(("/c keys_zone=a", "invalid keys zone size \"keys_zone=a\"")),
    ),
    ("proxy_cache_purge", "$uri", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_cache_purge_all", "$uri", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_cache_purge_soft", "$uri", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_cache_purge_tag_header", "X-Tag", Some(("'X: Y'", "invalid"))),
    // A text that is no token is quoted (RFC 9211).
    ("proxy_cache_status_header", "X-Cache", None),
    ("proxy_cache_tag_header", "X-Tag", Some(("'X: Y'", "invalid"))),
    ("proxy_cache_use_stale", "error", Some(("x", "invalid value \"x\""))),
    ("proxy_cache_valid", "1m", Some(("x", "invalid time value \"x\""))),
    ("proxy_connect_timeout", "1s", Some(("x", "\"proxy_connect_timeout\" directive invalid value"))),
    ("proxy_cookie_domain", "a b", Some(("x", "invalid parameter \"x\""))),
    // As in nginx: values with variables are known only with a request.
    ("proxy_cookie_flags", "a secure", None),
    ("proxy_cookie_path", "a b", Some(("x", "invalid parameter \"x\""))),
    (
        "proxy_headers_hash_bucket_size",
        "64",
        Some(("x", "\"proxy_headers_hash_bucket_size\" directive invalid number")),
    ),
    (
        "proxy_headers_hash_max_size",
        "64",
        Some(("x", "\"proxy_headers_hash_max_size\" directive invalid number")),
    ),
    ("proxy_hide_header", "A", None),
    ("proxy_http_version", "1.1", Some(("3", "invalid value \"3\""))),
    ("proxy_ignore_headers", "Vary", Some(("x", "invalid value \"x\""))),
    ("proxy_limit_rate", "1k", Some(("x", "\"proxy_limit_rate\" directive invalid value"))),
    ("proxy_max_temp_file_size", "1m", Some(("x", "\"proxy_max_temp_file_size\" directive invalid value"))),
    ("proxy_method", "PUT", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_next_upstream", "error", Some(("x", "invalid value \"x\""))),
    (
        "proxy_next_upstream_timeout",
        "1s",
        Some(("x", "\"proxy_next_upstream_timeout\" directive invalid value")),
    ),
    ("proxy_next_upstream_tries", "1", Some(("x", "\"proxy_next_upstream_tries\" directive invalid number"))),
    ("proxy_no_cache", "$uri", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_pass", "http://127.0.0.1", Some(("ftp://127.0.0.1", "invalid URL prefix"))),
    ("proxy_pass_header", "A", None),
    ("proxy_read_timeout", "1s", Some(("x", "\"proxy_read_timeout\" directive invalid value"))),
    ("proxy_redirect", "a b", Some(("x", "invalid parameter \"x\""))),
    ("proxy_send_lowat", "1", Some(("x", "\"proxy_send_lowat\" directive invalid value"))),
    ("proxy_send_timeout", "1s", Some(("x", "\"proxy_send_timeout\" directive invalid value"))),
    ("proxy_set_body", "a", Some(("$nobody", "unknown \"nobody\" variable"))),
    ("proxy_set_header", "A b", Some(("A $nobody", "unknown \"nobody\" variable"))),
    ("proxy_socket_rcvbuf", "64k", Some(("x", "\"proxy_socket_rcvbuf\" directive invalid value"))),
    ("proxy_socket_sndbuf", "64k", Some(("x", "\"proxy_socket_sndbuf\" directive invalid value"))),
    ("proxy_store", "on", Some(("''", "empty path"))),
    ("proxy_store_access", "user:rw", Some(("x", "invalid value \"x\""))),
    (
        "proxy_temp_file_write_size",
        "8k",
        Some(("x", "\"proxy_temp_file_write_size\" directive invalid value")),
    ),
    ("proxy_temp_path", "a", Some(("a 9", "\"proxy_temp_path\" directive invalid value"))),
    ("random", "two", Some(("x", "invalid parameter \"x\""))),
    ("resolver", "127.0.0.1", Some(("127.0.0.1 valid=x", "invalid parameter"))),
    ("resolver_timeout", "1s", Some(("x", "\"resolver_timeout\" directive invalid value"))),
    ("server", "127.0.0.1", Some(("127.0.0.1 weight=0", "invalid parameter \"weight=0\""))),
    ("slice", "1m", Some(("x", "\"slice\" directive invalid value"))),
    ("sticky", "cookie a", Some(("x a", "unknown parameter \"x\""))),
    ("zone", "a 64k", Some(("a x", "invalid zone size \"x\""))),
];

/// Returns the directives that need a sample: all but flags, blocks and those of TLS.
fn sampled() -> impl Iterator<Item = &'static Directive> {
    directives().filter(|directive| {
        let spec = &directive.spec;
        let is_meant = SAMPLED.contains(&spec.module)
            || spec.module == "ringroad" && spec.name.starts_with("proxy_cache_")
            || spec.name == "early_hints";
        is_meant && spec.args != Args::Flag && spec.block == Block::No && !spec.name.starts_with("proxy_ssl_")
    })
}

fn sample(name: &str) -> (&'static str, Wrong) {
    let row = SAMPLES.iter().find(|(known, ..)| *known == name);
    row.map(|(_, right, wrong)| (*right, *wrong)).unwrap_or_else(|| panic!("no sample of {name}"))
}

#[test]
fn a_wrong_value_of_the_proxy_is_an_error_at_its_line() {
    let mut wrong = Vec::new();
    for directive in sampled() {
        let name = directive.spec.name;
        let Some((args, expected)) = sample(name).1 else { continue };
        for found in errors(directive, &format!(" {args}")) {
            let is_placed = found.contains(" in /conf/nginx.conf:2");
            if !found.starts_with(expected) || !is_placed {
                wrong.push(format!("{name} {args}: {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let missing: Vec<_> = SAMPLES.iter().map(|(name, ..)| name).collect();
    let is_there = |name: &str| sampled().any(|directive| directive.spec.name == name);
    assert!(missing.into_iter().all(|name| is_there(name)), "a sample of no directive");
}

#[test]
fn proxy_directives_may_be_repeated_only_if_allowed() {
    for directive in sampled() {
        let (name, args) = (directive.spec.name, sample(directive.spec.name).0);
        if directive.spec.repeat == Repeat::Many {
            continue;
        }
        for found in errors(directive, &format!(" {args}; {name} {args}")) {
            assert_eq!(found, format!("\"{name}\" directive is duplicate in /conf/nginx.conf:2"));
        }
    }
}

/// Tests all contexts except those where a directive of this name is allowed.
#[test]
fn proxy_directives_are_refused_in_other_contexts() {
    for directive in sampled() {
        let name = directive.spec.name;
        let same = || directives().filter(|other| other.spec.name == name);
        let not_here = |place: &Contexts| same().all(|other| !other.spec.contexts.intersects(*place));
        for (_, before, behind) in PLACES.iter().filter(|(place, ..)| not_here(place)) {
            let text = format!("{before}{name} {}; {behind}", sample(name).0);
            let expected = format!("\"{name}\" directive is not allowed here in /conf/nginx.conf:2");
            assert!(error(&text).starts_with(&expected), "{text}: {}", error(&text));
        }
    }
}

#[test]
fn http_and_stream_have_no_zone_in_common() {
    let text = "http { limit_conn_zone $uri zone=a:1m; }
stream { server { listen 1; limit_conn a 1; } }";
    let expected =
        "the shared memory zone \"a\" is already declared for a different use in /conf/nginx.conf:2";
    assert!(error(text).starts_with(expected), "{}", error(text));
    let text = "http { server { limit_conn a 1; } }
stream { limit_conn_zone $protocol zone=a:1m; }";
    assert!(error(text).starts_with(expected), "{}", error(text));
}

#[test]
fn the_first_error_in_the_text_is_reported() {
    for (text, expected) in [
        ("http { server { location / {\naio x; } etag x; } foo; } bar;", "\"aio\" directive invalid value"),
        (
            "http { server {\netag x; location / { aio x; } } }",
            "invalid value \"x\" in \"etag\" directive, it must be \"on\" or \"off\"",
        ),
        (
            "http { server { location / { limit_except GET {\nallow x; } aio x; } } }",
            "invalid parameter \"x\"",
        ),
        ("events {\nuse x; } daemon x;", "invalid event type \"x\"; there are io_uring and epoll"),
        ("http {\nfoo on; server { } } daemon x;", "unknown directive \"foo\""),
        ("http { types { a b {\n} } } daemon x;", "unexpected \"{\""),
        ("http { server { location / {\n! } } } daemon x;", "unexpected \"}\""),
    ] {
        let found = error(text);
        assert!(found.starts_with(expected), "{text}: {found}");
    }
}

/// Returns all errors of a configuration with these files beside it, without their positions.
fn problems(text: &str) -> Vec<String> {
    let loader: conf::MapLoader =
        [(PathBuf::from("/conf/nginx.conf"), text.as_bytes().to_vec())].into_iter().collect();
    let source = conf::Source::new("/conf/nginx.conf");
    let found = config::examine(all().declarations(), &source, Path::new("/prefix"), &loader);
    found.errors.iter().map(|error| error.kind().to_string()).collect()
}

#[test]
fn an_error_that_another_explains_is_not_reported() {
    for (text, expected) in [
        // A rejected statement would have defined the name.
        (
            "http { log_format a $nobody; map $uri { } server { access_log x a; set $b $nobody; } }",
            &["invalid number of arguments in \"map\" directive", "unknown \"nobody\" variable"][..],
        ),
        (
            "http { log_format a escape=x b; server { access_log x a; } }",
            &["unknown log format escaping \"x\""],
        ),
        (
            "http { limit_req_zone $uri zone=a:1m rate=x; server { limit_req zone=a; } }",
            &["invalid rate \"rate=x\""],
        ),
        (
            "http { limit_req_zone $uri zone=a:1m rate=x; server { access_log /x \"\"; } }",
            &["invalid rate \"rate=x\"", "unknown log format \"\""],
        ),
        // It would not have defined these names.
        (
            "http { limit_req_zone $uri zone=a:1m rate=x; server { limit_req zone=b; proxy_cache c; } }",
            &["invalid rate \"rate=x\"", "zero size shared memory zone \"b\""],
        ),
        // A missing file may define any name.
        (
            "http { include none; server { limit_req zone=b; access_log x a; set $b $nobody; } }",
            &["open() \"/conf/none\" failed (2: No such file or directory)"],
        ),
        // An error that is not about an undefined name is reported, whatever words it has.
        (
            "http { include none;\nupstream a { }\nlimit_conn_status is_not; }",
            &[
                "open() \"/conf/none\" failed (2: No such file or directory)",
                "no servers are inside upstream",
                "\"limit_conn_status\" directive invalid number",
            ],
        ),
        ("http { upstream a { srver b; } }", &["unknown directive \"srver\""]),
        ("http { upstream a { server b backup; srver b; } }", &["unknown directive \"srver\""]),
        ("http { upstream a { server b backup; } }", &["no servers in upstream \"a\""]),
    ] {
        assert_eq!(problems(text), expected, "{text}");
    }
}

/// Directives whose default, written explicitly, results in different settings: the names, by reason.
const DEFAULT_IS_KEPT: &[(&str, &[&str])] = &[
    // These settings determine resources to open or create, so the default is applied at the end.
    ("applied at the end", &["user", "error_log", "thread_pool"]),
    // A written `sandbox off` applies to the master too.
    ("more than the default", &["sandbox"]),
    // `None` means the default when the setting is used, which saves the evaluation of a template.
    (
        "no value",
        &[
            "auth_basic",
            // Only a written `off` permits requests in spite of `auth_jwt_require`.
            "auth_jwt",
            "if_modified_since",
            "limit_rate",
            "limit_rate_after",
            "modern_browser_value",
            "ancient_browser_value",
            "proxy_cache_key",
            // Only an explicit limit ends the wait for the header section of a slow upstream.
            "proxy_cache_lock_age",
            "proxy_cache_lock_timeout",
            "proxy_buffer_size",
            "proxy_limit_rate",
            "proxy_max_temp_file_size",
        ],
    ),
    // An error names the directive that needs `otel_exporter`.
    ("its position", &["otel_trace"]),
    // An error names the directive with an unknown provider.
    ("its position, too", &["auth_oidc"]),
    // Keywords as bits: no bit means the default.
    (
        "no words",
        &[
            "dav_methods",
            "dav_ext_methods",
            "proxy_next_upstream",
            "proxy_cache_methods",
            "proxy_cache_use_stale",
        ],
    ),
    // The default list is a separate value.
    (
        "no list",
        &[
            "addition_types",
            "brotli_types",
            "charset_types",
            "gzip_types",
            "ssi_types",
            "sub_filter_types",
            "zstd_types",
        ],
    ),
    // The settings record that it was set: an inner `off` overrides the outer block, and warnings name the line.
    ("remembered", &["charset", "mirror", "open_file_cache"]),
    // All settings of cookies are created together.
    (
        "settings of cookies",
        &[
            "userid",
            "userid_name",
            "userid_domain",
            "userid_path",
            "userid_expires",
            "userid_flags",
            "userid_mark",
            "userid_p3p",
        ],
    ),
    // The default name is derived from the address per request; written explicitly it is a template with a variable.
    ("template", &["proxy_ssl_name"]),
    // As in nginx these are errors: the name exists already, and `proxy_pass` has to precede it.
    ("refused", &["log_format", "proxy_redirect"]),
];

/// Returns all settings of a configuration as text: those of `main` and of a location.
fn all_settings(main: &str, http: &str, location: &str) -> Result<String, String> {
    let text = format!("{main} http {{ {http} server {{ location / {{ {location} }} }} }}");
    let config = load(&text).map_err(|error| error.to_string())?.config;
    let location = config.http.locations.last().expect("there is one");
    Ok(without_blocks(&format!("{:?} {:?}", config.main, location.scope)))
}

/// Returns the text without the numbers of the blocks in which settings were written, and without the position of the root.
fn without_blocks(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.find("root_position: Some(") {
        let end = text[start..].find("))").map_or(text.len(), |len| start + len + 2);
        text.replace_range(start..end, "root_position: None");
    }
    let mut parts = text.split("block: ");
    let first = parts.next().unwrap_or_default().to_owned();
    let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
    parts.fold(first, |text, part| text + "block: _" + &part[digits(part)..])
}

/// The documented default is in the table of directives and in the settings. Written explicitly, it must change
/// nothing.
#[test]
fn an_explicit_default_changes_nothing() {
    let nothing = all_settings("", "", "").expect("an empty configuration is valid");
    let (mut count, mut wrong) = (0, Vec::new());
    for directive in directives() {
        let (name, contexts) = (directive.spec.name, directive.spec.contexts);
        let Some(default) = directive.spec.default else { continue };
        let statement = format!("{name} {default};");
        let result = match () {
            () if contexts.intersects(Contexts::LOCATION) => all_settings("", "", &statement),
            () if contexts.intersects(Contexts::HTTP) => all_settings("", &statement, ""),
            () if contexts.intersects(Contexts::MAIN) => all_settings(&statement, "", ""),
            () => continue,
        };
        count += 1;
        // The rules for `proxy_` directives apply to their siblings too.
        let siblings = ["fastcgi_", "grpc_", "memcached_", "scgi_", "tunnel_", "uwsgi_"];
        let of_http =
            siblings.iter().fold(name.to_owned(), |name, prefix| name.replacen(prefix, "proxy_", 1));
        let is_listed = DEFAULT_IS_KEPT.iter().any(|(_, names)| names.contains(&&*of_http));
        match result {
            Err(_) if is_listed => {}
            Ok(found) if (found == nothing) == is_listed => {
                let at = found.bytes().zip(nothing.bytes()).take_while(|(a, b)| a == b).count();
                let at = at.saturating_sub(60);
                let piece =
                    |text: &str| text.get(at..(at + 140).min(text.len())).unwrap_or_default().to_owned();
                wrong.push(format!("{statement}\n  {}\n  {}", piece(&found), piece(&nothing)));
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("{statement} {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "{count}");
}

/// The documentation of modules that are not nginx's own.
const PAGE: &str = include_str!("../../../docs/third-party-modules.md");

/// Returns the words between backticks in a table cell that look like a directive or a variable.
fn names(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(|text| text.split(' ').next().unwrap_or_default()).collect()
}

/// Whether this server has a directive or a variable.
fn is_supported(name: &str) -> bool {
    match name.strip_prefix('$') {
        Some(name) => {
            all().modules().iter().flat_map(|module| module.variables).any(|known| known.name == name)
        }
        None => directives().any(|directive| directive.spec.name == name),
    }
}

/// The page lists correctly which directives and variables this server has and which not.
#[test]
fn the_page_about_other_modules_is_correct() {
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in PAGE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let (theirs, here) = (names(cells[0]), cells[1]);
        rows += 1;
        let is_right = match here {
            "the same" => theirs.iter().all(|name| is_supported(name)),
            "no" => theirs.iter().all(|name| !is_supported(name)),
            _ => !names(here).is_empty() && names(here).iter().all(|name| is_supported(name)),
        };
        if !is_right {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 60, "{rows}");
}

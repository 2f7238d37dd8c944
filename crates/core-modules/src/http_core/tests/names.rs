//! Tests `server_name`: nginx's documented examples, errors, and a slow reference implementation of the search.

use crate::testing::{error, loaded, warnings};
use exchange::request::Address;
use site::config::ServerId;

/// Returns the index of the server that matches a host, among servers with these names.
fn choose(names: &[&str], host: &str) -> Option<u32> {
    let servers: String =
        names.iter().map(|names| format!("server {{ listen 81; server_name {names}; }}")).collect();
    let config = loaded(&servers);
    let (_, table) = config.http.listens[0].lookup(&Address::Unix(Vec::new()));
    table.find(host.as_bytes()).expect("no pattern takes long").map(|named| named.server.0)
}

#[test]
fn names_are_matched_in_the_order_of_nginx() {
    let names = [
        "~^www\\.(?<what>.+)\\.net$",
        "www.example.*",
        "www.*",
        "*.example.org",
        "*.org",
        "example.org www.example.org",
        ".domain.com",
        "\"\" _",
        "~^(www\\.)?(.+)$",
    ];
    for (host, expected) in [
        ("example.org", 5),
        ("www.example.org", 5),
        ("mail.example.org", 3),
        ("a.b.example.org", 3),
        ("a.org", 4),
        ("www.example.com", 1),
        ("www.example.co.uk", 1),
        ("www.other.com", 2),
        ("domain.com", 6),
        ("x.domain.com", 6),
        ("", 7),
        ("_", 7),
        ("www.foo.net", 2),
        ("foo.net", 8),
        // A wildcard may stand for nothing, as in nginx.
        (".org", 4),
        (".example.org", 3),
    ] {
        assert_eq!(choose(&names, host), Some(expected), "{host}");
    }
    assert_eq!(choose(&names[..1], "www.foo.net"), Some(0));
    assert_eq!(choose(&names[..1], "foo.net"), None);
    assert_eq!(choose(&["~^A\\.B$", "c"], "a.b"), Some(0), "capitals make a pattern take no notice of case");
}

#[test]
fn hostname_is_replaced_by_the_machine_name() {
    let config = loaded("server { server_name $hostname; }");
    let hostname = config.http.hostname.clone();
    assert_eq!(choose(&["a", "$hostname"], &hostname), Some(1));
    assert_eq!(config.server(ServerId(0)).name, hostname);
}

#[test]
fn the_first_name_is_the_primary_name() {
    for (names, expected) in [("a b", "a"), (".A.b", "a.b"), ("~^x$", "~^x$"), ("*.a", "*.a"), ("\"\"", "")] {
        let config = loaded(&format!("server {{ server_name {names}; }}"));
        assert_eq!(config.server(ServerId(0)).name, expected);
    }
    assert_eq!(loaded("server {}").server(ServerId(0)).name, "");
    // Connections whose address a reload has removed refer to the first server even if the file has none.
    assert_eq!(loaded("").server(ServerId(0)).name, "");
}

#[test]
fn wrong_and_conflicting_names_are_reported() {
    for (name, expected) in [
        ("*", "server name \"*\" is invalid"),
        ("*a.b", "server name \"*a.b\" is invalid"),
        (".", "server name \".\" is invalid"),
        ("~", "empty regex in server name \"~\""),
        ("~(", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
        (
            "~^(?<x",
            "pcre2_compile() failed: syntax error in subpattern name (missing terminator?) in \"^(?<x\"",
        ),
        ("~^(?<uri>a)$", "the duplicate \"uri\" variable"),
        ("~a)b", "pcre2_compile() failed: unmatched closing parenthesis in \"a)b\" at \")b\""),
    ] {
        let found = error(&format!("http {{ server {{\nserver_name {name}; }} }}"));
        assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{name}");
    }
    let two = |names: &str| {
        format!(
            "http {{ server {{ listen 81; server_name {names}; }} server {{ listen 81; server_name a; }} }}"
        )
    };
    assert_eq!(
        error(&two("x.*.y")),
        "invalid server name or wildcard \"x.*.y\" on 0.0.0.0:81 in /conf/nginx.conf:1"
    );
    assert_eq!(
        warnings(&two("a")),
        ["conflicting server name \"a\" on 0.0.0.0:81, ignored in /conf/nginx.conf:1"]
    );
    assert_eq!(
        warnings(&two("*.x .x")),
        ["conflicting server name \".x\" on 0.0.0.0:81, ignored in /conf/nginx.conf:1"]
    );
    assert_eq!(
        warnings("http { server {\nserver_name a/b; } }"),
        ["server name \"a/b\" has suspicious symbols in /conf/nginx.conf:2"]
    );
    // With a single server nginx does not check the names.
    assert_eq!(warnings("http { server { server_name x.*.y a a; } }"), Vec::<String>::new());
}

/// Implements the documented search, name by name and without tables.
fn slow(names: &[&str], host: &str) -> Option<u32> {
    let ids = || names.iter().zip(0_u32..);
    let exact = ids().find(|(name, _)| **name == host || name.strip_prefix('.') == Some(host));
    let by_head = ids().filter_map(|(name, id)| {
        let suffix = name.strip_prefix('*').or_else(|| name.starts_with('.').then_some(*name))?;
        (host.ends_with(suffix) && host.len() > suffix.len()).then_some((suffix.len(), id))
    });
    let by_tail = ids().filter_map(|(name, id)| {
        let start = name.strip_suffix('*')?;
        (host.starts_with(start) && host.len() > start.len()).then_some((start.len(), id))
    });
    let longest =
        |found: &mut dyn Iterator<Item = (usize, u32)>| found.max_by_key(|(len, _)| *len).map(|(_, id)| id);
    exact.map(|(_, id)| id).or_else(|| longest(&mut { by_head })).or_else(|| longest(&mut { by_tail }))
}

#[test]
fn tables_match_the_result_of_a_linear_search() {
    let names = ["a.b", "*.b", "*.a.b", ".c.b", "a.*", "a.b.*", "b.a.*", "*.c", "b", ".a"];
    let servers: String =
        names.iter().map(|name| format!("server {{ listen 81; server_name {name}; }}")).collect();
    let config = loaded(&servers);
    let (_, table) = config.http.listens[0].lookup(&Address::Unix(Vec::new()));
    let labels = ["a", "b", "c"];
    let mut hosts: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    for _ in 0..3 {
        let longer = hosts.iter().flat_map(|host| labels.iter().map(move |label| format!("{host}.{label}")));
        let longer: Vec<String> = longer.collect();
        hosts.extend(longer);
    }
    for host in &hosts {
        let found = table.find(host.as_bytes()).expect("no pattern takes long").map(|named| named.server.0);
        assert_eq!(found, slow(&names, host), "{host}");
    }
}

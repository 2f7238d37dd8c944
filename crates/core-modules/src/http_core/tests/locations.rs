//! Tests `location`: nginx's documented examples, errors, and a slow reference implementation of the search.

use crate::http_core::tests::server;
use crate::testing::{error, warnings};
use site::config::{Config, ServerId};
use site::settings::core::FoundBy;
use site::settings::core::LimitExcept;

/// Returns the name of the location of a URI.
fn find<'c>(config: &'c Config, uri: &str) -> &'c str {
    let found = config
        .server(ServerId(0))
        .locations
        .find(&config.http.locations, uri.as_bytes())
        .expect("no pattern takes long");
    found.location.map_or("server", |location| &config.location(location).name)
}

#[test]
fn the_documentation_example_selects_the_documented_locations() {
    let config = server(
        "location = / {} location / {} location /documents/ {} location ^~ /images/ {}
         location ~* \\.(gif|jpg|jpeg)$ {}",
    );
    for (uri, expected) in [
        ("/", "= /"),
        ("/index.html", "/"),
        ("/documents/document.html", "/documents/"),
        ("/images/1.gif", "^~ /images/"),
        ("/documents/1.jpg", "~* \\.(gif|jpg|jpeg)$"),
        ("/documents/1.JPG", "~* \\.(gif|jpg|jpeg)$"),
        ("*", "server"),
    ] {
        assert_eq!(find(&config, uri), expected, "{uri}");
    }
}

#[test]
fn nested_locations_are_searched_first() {
    let config = server(
        "location /a { location ~ \\.x$ {} location /a/b { location = /a/b/c {} location ~ \\.y$ {} } }
         location ^~ /q { location /q/r {} location ~ \\.x$ {} }
         location ~ \\.x$ { } location ~ \\.y$ { location ~ z\\.y$ {} } location ~ \\.z$ {}",
    );
    let names: Vec<(&str, &str)> =
        ["/a/1", "/a/1.x", "/a/b/c", "/a/b/1.y", "/a/b/1.x", "/a/1.z", "/q/r/1.z", "/q/1.x", "/z.y", "/1"]
            .iter()
            .map(|uri| (*uri, find(&config, uri)))
            .collect();
    assert_eq!(
        names,
        [
            ("/a/1", "/a"),
            ("/a/1.x", "~ \\.x$"),
            ("/a/b/c", "= /a/b/c"),
            ("/a/b/1.y", "~ \\.y$"),
            ("/a/b/1.x", "~ \\.x$"),
            ("/a/1.z", "~ \\.z$"),
            ("/q/r/1.z", "/q/r"),
            ("/q/1.x", "~ \\.x$"),
            ("/z.y", "~ z\\.y$"),
            ("/1", "server"),
        ]
    );
    // Several patterns are similar: the one nested in the prefix wins.
    let inner = |uri: &str| {
        let found = config
            .server(ServerId(0))
            .locations
            .find(&config.http.locations, uri.as_bytes())
            .expect("no pattern takes long");
        found.location.expect("it was found").0
    };
    assert_ne!(inner("/a/1.x"), inner("/1.x"));
}

#[test]
fn modifiers_with_and_without_a_space_are_parsed() {
    let config = server("location =/x {} location ^~/y {} location ~*^/Z {} location ~^/w {} location @n {}");
    for (uri, expected) in [
        ("/x", "= /x"),
        ("/xx", "server"),
        ("/y1", "^~ /y"),
        ("/z", "~* ^/Z"),
        ("/w", "~ ^/w"),
        ("@n", "server"),
    ] {
        assert_eq!(find(&config, uri), expected, "{uri}");
    }
    let locations = &config.server(ServerId(0)).locations;
    let named = locations.named("@n").expect("it is there");
    assert_eq!(config.location(named).name, "@n");
    assert_eq!(locations.named("n"), None);
    assert_eq!(locations.all().count(), 5);
}

#[test]
fn tables_report_whether_a_search_needs_the_request() {
    for (text, expected) in [
        ("location / {}", false),
        ("location = $args {} location /$args {}", false),
        ("location $args {}", true),
        ("location /a { location ~ b { location ${args} {} } }", true),
    ] {
        let config = server(text);
        assert_eq!(config.server(ServerId(0)).locations.has_predicates(), expected, "{text}");
    }
    let config = server("location $args { location /a {} alias /x; }");
    assert_eq!(config.http.locations[1].name, "$args");
    assert!(config.http.locations[1].scope.core.files.by_pattern);
}

#[test]
fn a_location_stores_how_it_is_matched() {
    let config =
        server("location /a { alias /x; location /a/b { } location ~ c { } } location ~ b { alias /y$uri; }");
    let core = |name: &str| {
        let found = config.http.locations.iter().find(|location| location.name == name);
        &found.expect("it is there").scope.core
    };
    assert_eq!(core("/a").found_by, FoundBy::Prefix("/a".into()));
    // The alias is inherited with the prefix that it replaces.
    assert_eq!((&*core("/a/b").files.location_prefix, core("/a/b").files.by_pattern), ("/a", false));
    assert_eq!((&*core("~ c").files.location_prefix, core("~ c").files.by_pattern), ("/a", false));
    assert!(core("~ b").files.by_pattern);
}

#[test]
fn an_alias_that_uris_can_leave_is_warned_of() {
    let found = |text: &str| warnings(&format!("http {{ server {{\n{text} }} }}"));
    assert_eq!(
        found("location /files { alias /data/; }"),
        [
            r#""alias" ends with a slash and location "/files" does not: "/files../" is outside of the alias in /conf/nginx.conf:2"#
        ]
    );
    assert_eq!(found("location ^~ /files { alias /data/$host/; }").len(), 1);
    for text in [
        "location /files/ { alias /data/; }",
        "location /files { alias /data; }",
        "location = /files { alias /data/; }",
        "location ~ ^/files { alias /data/; }",
        "location /files { root /data/; }",
        "root_beneath on; location /files { alias /data/; }",
    ] {
        assert_eq!(found(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn wrong_locations_are_refused_as_in_nginx() {
    for (text, expected) in [
        ("location / {} location / {}", "duplicate location \"/\""),
        ("location / {} location ^~ / {}", "duplicate location \"/\""),
        ("location =/x {} location = /x {}", "duplicate location \"/x\""),
        ("location = /a {location /a/b {} }", "location \"/a/b\" cannot be inside the exact location \"/a\""),
        ("location /a {location /b {} }", "location \"/b\" is outside location \"/a\""),
        ("location ~ a {location /b {} }", "location \"/b\" is outside location \"a\""),
        ("location @a {location /b {} }", "location \"/b\" cannot be inside the named location \"@a\""),
        ("location /a {location @b {} }", "named location \"@b\" can be on the server level only"),
        ("location ! /a {}", "invalid location modifier \"!\""),
        ("location $nobody {}", "unknown \"nobody\" variable"),
        ("location $args$uri {}", "unknown \"args$uri\" variable"),
        ("location $ {}", "unknown \"\" variable"),
        (
            "location = /a {location $args {} }",
            "location \"$args\" cannot be inside the exact location \"/a\"",
        ),
        ("location ~ ( {}", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
        ("location /a { limit_except FOO {} }", "invalid method \"FOO\""),
        (
            "location /a { limit_except GET {} limit_except POST {} }",
            "\"limit_except\" directive is duplicate",
        ),
    ] {
        let found = error(&format!("http {{ server {{\n{text} }} }}"));
        assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
    }
}

#[test]
fn limit_except_has_separate_settings() {
    let config = server("location / { etag off; limit_except GET put { access_log off; } }");
    let location = &config.http.locations[1];
    let limit = location.scope.core.limit_except.as_ref().expect("it was set");
    assert_eq!(limit.methods, ["HEAD", "GET", "PUT"]);
    let spares = |method: &str| LimitExcept::spares(limit, method.as_bytes());
    assert!(spares("GET") && spares("HEAD") && spares("PUT") && !spares("POST") && !spares("get"));
    let inner = config.location(limit.location);
    assert!(!inner.scope.core.responding.etag && inner.scope.of::<crate::log::Conf>().logs().is_empty());
    assert!(inner.scope.core.limit_except.is_none());
    assert_eq!(location.scope.of::<crate::log::Conf>().logs().len(), 1);
}

/// Implements the documented search for prefixes, without tables.
fn slow<'n>(paths: &[&'n str], uri: &str) -> Option<&'n str> {
    paths.iter().copied().filter(|path| uri.starts_with(path)).max_by_key(|path| path.len())
}

#[test]
fn tables_find_the_longest_prefix() {
    let paths = ["/", "/a", "/a/", "/a/b", "/ab", "/abc", "/a/b/c/d", "/b/a", "/b!", "/c"];
    let config = server(&paths.iter().map(|path| format!("location {path} {{}}")).collect::<String>());
    let pieces = ["/", "a", "b", "c", "!", "d"];
    let mut uris = vec![String::new()];
    for _ in 0..5 {
        let longer: Vec<String> =
            uris.iter().flat_map(|uri| pieces.iter().map(move |piece| format!("{uri}{piece}"))).collect();
        uris = uris.into_iter().chain(longer).collect();
        uris.dedup();
    }
    for uri in &uris {
        assert_eq!(find(&config, uri), slow(&paths, uri).unwrap_or("server"), "{uri}");
    }
}

//! What the directives make of their arguments, and what they refuse. What they do is tested over a socket.

use crate::config::testing::{error, load, loaded};
use crate::config::{Config, ServerId};
use crate::phases::Phase;

/// The script of the server and that of the location that was read last.
fn scripts(server: &str) -> (String, String) {
    let config = loaded(&format!("server {{ {server} }}"));
    let root = config.server(ServerId(0)).root;
    let inner = config.http.locations.last().expect("the server has a scope");
    let outer = &config.location(root).scope.rewrite.server_script;
    (format!("{outer:?}"), format!("{:?}", inner.scope.rewrite.script))
}

/// How many handlers take part in each location.
fn counts(config: &Config, phase: Phase) -> Vec<usize> {
    config.http.locations.iter().map(|location| location.handlers.of_phase(phase).len()).collect()
}

#[test]
fn a_server_keeps_its_script_and_locations_do_not_inherit_it() {
    let (server, location) = scripts("set $a b; return 204; location / { return 301 /x$uri; }");
    assert!(server.contains("Set") && server.contains("status: 204, text: None"), "{server}");
    assert!(!location.contains("Set") && location.contains("status: 301"), "{location}");
    let config = loaded("server { return 200; location / { } }");
    assert_eq!(counts(&config, Phase::ServerRewrite), [1, 0]);
    assert_eq!(counts(&config, Phase::Rewrite), [0, 0]);
    let config = loaded("server { location / { break; location /x { } } }");
    assert_eq!(counts(&config, Phase::ServerRewrite), [0, 0, 0]);
    assert_eq!(counts(&config, Phase::Rewrite), [0, 1, 0]);
}

#[test]
fn blocks_of_conditions_stand_in_their_places() {
    let (_, location) = scripts(
        "location / { set $a 1; if ($a) { set $a 2; return 200; } set $a 3; if ($a = x) { } if (-f x) { break; } }",
    );
    let places: Vec<usize> = ["Set", "If", "Set", "Return", "Set", "If", "If", "Break"]
        .iter()
        .scan(0, |from, word| {
            *from = location[*from..].find(word).map(|place| *from + place + word.len())?;
            Some(*from)
        })
        .collect();
    assert_eq!(places.len(), 8, "{location}");
    assert!(location.contains("skip: 2") && location.contains("skip: 0") && location.contains("skip: 1"));
    assert!(location.contains("waits: true"), "{location}");
    let config = loaded("server { if (-d x) { set $a 1; } location / { if ($a) { } } }");
    // The server, the condition in the location, the location.
    assert_eq!(counts(&config, Phase::ServerRewrite), [1, 0, 0]);
    assert_eq!(counts(&config, Phase::Rewrite), [0, 0, 1]);
    assert_eq!(config.http.locations[1].name, config.http.locations[2].name);
}

#[test]
fn conditions_inherit_from_all_of_their_location() {
    let config = loaded(
        "etag off; server { location / { if ($uri) { sendfile on; } default_type a/b; try_files a =404; } }",
    );
    let [_, inside, location] = config.http.locations.as_slice() else { panic!("there are three") };
    assert_eq!(&*inside.scope.core.default_type, "a/b");
    assert!(inside.scope.core.sendfile && !location.scope.core.sendfile && !inside.scope.core.etag);
    assert_eq!(inside.handlers.of_phase(Phase::Precontent).len(), 0);
}

#[test]
fn flags_are_inherited() {
    let config = loaded(
        "rewrite_log on; uninitialized_variable_warn off; server { location / { } location /x {
           rewrite_log off; uninitialized_variable_warn on; } }",
    );
    let [server, inherited, own] = config.http.locations.as_slice() else { panic!("there are three") };
    for (location, expected) in [(server, true), (inherited, true), (own, false)] {
        assert_eq!(location.scope.rewrite.log, expected);
        assert_eq!(location.scope.rewrite.warns_uninitialized(), !expected);
    }
}

#[test]
fn a_lone_url_is_a_redirect() {
    for url in ["http://a/", "https://a/", "$scheme://$host/"] {
        let (server, _) = scripts(&format!("return {url};"));
        assert!(server.contains("status: 302"), "{server}");
        for (flag, expected) in [("", 302), ("last", 302), ("break", 302), ("permanent", 301)] {
            let (server, _) = scripts(&format!("rewrite . {url} {flag};"));
            assert!(server.contains(&format!("Redirect({expected}, false)")), "{server}");
        }
    }
}

#[test]
fn wrong_statements_are_refused() {
    for (text, expected) in [
        ("return x;", "invalid return code \"x\""),
        ("return 1000;", "invalid return code \"1000\""),
        ("return /x;", "invalid return code \"/x\""),
        ("return http://x y;", "invalid return code \"http://x\""),
        ("set x y;", "invalid variable name \"x\""),
        ("set $ y;", "invalid variable name \"$\""),
        ("set $uri y;", "the duplicate \"uri\" variable"),
        ("return 200 $nonexist;", "unknown \"nonexist\" variable"),
        ("return 200 '${a';", "the closing bracket in \"a\" variable is missing"),
        ("return 200 'a$';", "invalid variable name"),
        ("rewrite a '';", "empty replacement"),
        ("rewrite ( a;", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
        ("rewrite a b c;", "invalid parameter \"c\""),
        ("rewrite a $nonexist;", "unknown \"nonexist\" variable"),
        ("rewrite a 'b?$';", "invalid variable name"),
        ("rewrite (?<host>.) b;", "the duplicate \"host\" variable"),
        ("break x;", "invalid number of arguments in \"break\" directive"),
        ("rewrite_log x;", "invalid value \"x\" in \"rewrite_log\" directive, it must be \"on\" or \"off\""),
        (
            "uninitialized_variable_warn x;",
            "invalid value \"x\" in \"uninitialized_variable_warn\" directive, it must be \"on\" or \"off\"",
        ),
        ("if ($uri) { if ($uri) { } }", "\"if\" directive is not allowed here"),
    ] {
        for (before, behind) in [("", ""), ("location / {", "}")] {
            let found = error(&format!("http {{ server {{ {before}\n{text} }} {behind} }}"));
            let expected = format!("{expected} in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{text}: {found}");
        }
    }
    loaded("server { set $args y; set $limit_rate 1k; set $mine $args; return 200 $mine; }");
}

#[test]
fn wrong_conditions_are_refused() {
    for (words, expected) in [
        ("$uri", "invalid condition \"$uri\""),
        ("($uri", "invalid condition \"$uri\""),
        ("()", "invalid condition \")\""),
        ("( )", "invalid condition \")\""),
        ("(uri)", "invalid condition \"uri\""),
        ("($)", "invalid condition \"$\""),
        ("($uri =)", "invalid condition \"$uri\""),
        ("($uri = a b)", "invalid condition \"$uri\""),
        ("($uri == a)", "unexpected \"==\" in condition"),
        ("($uri ~ \"(\")", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
        ("(-f)", "invalid condition \"-f\""),
        ("(-f a b)", "invalid condition \"-f\""),
        ("(-z a)", "invalid condition \"-z\""),
        ("(!-z a)", "invalid condition \"!-z\""),
        ("($nonexist)", "unknown \"nonexist\" variable"),
        ("($1)", "unknown \"1\" variable"),
        ("($uri = $nonexist)", "unknown \"nonexist\" variable"),
        ("(-f $nonexist)", "unknown \"nonexist\" variable"),
    ] {
        let found = error(&format!("http {{ server {{\nif {words} {{ }} }} }}"));
        assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{words}");
    }
    for words in ["( $uri )", "($uri)", "( $uri != \"\" )", "($uri ~* a)", "( !-x /a$uri)", "($uri = \"b\")"]
    {
        load(&format!("http {{ server {{ location / {{ if {words} {{ }} }} }} }}")).expect(words);
    }
}

#[test]
fn errors_in_conditions_come_before_those_below_them() {
    let found = error("http { server { location / { if ($uri) {\nset x y; } aio x; } } }");
    assert_eq!(found, "invalid variable name \"x\" in /conf/nginx.conf:2");
    let found = error("http { server { if ($uri) {\nroot x; } etag x; } }");
    assert!(found.starts_with("\"root\" directive is not allowed here in /conf/nginx.conf:2"), "{found}");
}

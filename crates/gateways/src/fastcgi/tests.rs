//! Tests of the directives that only FastCGI has. Their effect on requests and responses is tested with the binary, side by side
//! with nginx.

use crate::fastcgi::FastCgi;
use crate::passing::Passing;
use crate::testing::{error, loaded};

/// Returns the settings of the last location.
fn passing_of(http: &str) -> Passing<FastCgi> {
    let config = loaded(http);
    config.http.locations.last().expect("there is a server").scope.of::<Passing<FastCgi>>().clone()
}

#[test]
fn parameters_are_inherited_until_a_block_has_its_own() {
    let names = |http: &str| {
        let passing = passing_of(http);
        let params = passing.protocol.params.items().iter();
        params
            .map(|param| format!("{}{}", param.name, if param.is_optional { "?" } else { "" }))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names("fastcgi_param A 1; fastcgi_param B $uri if_not_empty; server { location / { } }"),
        ["A", "B?"]
    );
    assert_eq!(names("fastcgi_param A 1; server { fastcgi_param C 2; location / { } }"), ["C"]);
}

/// Debian's `snippets/fastcgi-php.conf` contains the directive, and configurations repeat it beside the include.
#[test]
fn the_last_fastcgi_split_path_info_of_a_block_is_used() {
    let text = "fastcgi_split_path_info ^(a)(b)$; fastcgi_split_path_info ^(c)(d)$;";
    let passing = passing_of(&format!("server {{ location / {{ {text} }} }}"));
    let pattern = passing.protocol.split.expect("there is a pattern");
    assert!(pattern.is_match(b"cd") && !pattern.is_match(b"ab"));
}

#[test]
fn every_directive_of_the_nginx_module_exists() {
    let here: Vec<&str> =
        crate::all().declarations().directives().iter().map(|directive| directive.spec.name).collect();
    let rows = conf::nginx_directives().iter().filter(|row| row.module == "http_fastcgi");
    let missing: Vec<&str> = rows.map(|row| row.name).filter(|name| !here.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn wrong_statements_are_refused() {
    for (text, expected) in [
        ("\nfastcgi_param A 1 x;", "invalid parameter \"x\""),
        ("\nfastcgi_split_path_info ^a$;", "pattern \"^a$\" must have 2 captures"),
        ("\nfastcgi_split_path_info ^(a)$;", "pattern \"^(a)$\" must have 2 captures"),
        ("\nfastcgi_split_path_info ^(a)(b)(c)$;", "pattern \"^(a)(b)(c)$\" must have 2 captures"),
        ("\nfastcgi_keep_conn x;", "invalid value \"x\""),
        ("location / {\nfastcgi_pass unix:; }", "no path in the unix domain socket in upstream \"unix:\""),
        ("location / {\nfastcgi_pass 127.0.0.1; }", "no port in upstream \"127.0.0.1\""),
        ("location / {\nfastcgi_cache $host; }", "no \"fastcgi_cache_key\" for \"fastcgi_cache\""),
    ] {
        let found = error(&format!("http {{ server {{ {text} }} }}"));
        assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
    }
}

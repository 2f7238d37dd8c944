//! Tests of the directives that only HTTP has: values, inheritance, and errors. Their effect on requests and responses is tested
//! with the binary, side by side with nginx.

use http::fields::Version;

use crate::passing::Passing;
use crate::proxy::Http;
use crate::testing::{error, loaded, warnings};

/// Returns the settings of the last location.
fn http_of(http: &str) -> Http {
    let config = loaded(http);
    config.http.locations.last().expect("there is a server").scope.of::<Passing<Http>>().protocol.clone()
}

#[test]
fn values_are_inherited_and_replaced() {
    let version = |http: &str| http_of(http).version;
    assert_eq!(version("server { location / { } }"), Version::Http11);
    assert_eq!(version("proxy_http_version 1.0; server { location / { } }"), Version::Http10);
    assert_eq!(version("proxy_http_version 1.0; server { proxy_http_version 1.1; }"), Version::Http11);
    assert_eq!(version("proxy_http_version 2; server { location / { } }"), Version::Http2);
    let texts = |http: &str| {
        let http = http_of(http);
        let method = http.method.as_ref().and_then(|method| method.constant()).unwrap_or_default().to_owned();
        let body = http.body.as_ref().and_then(|body| body.constant()).unwrap_or_default().to_owned();
        (method, body)
    };
    let shown = |method: &str, body: &str| (method.to_owned(), body.to_owned());
    assert_eq!(texts("proxy_method PUT; proxy_set_body a; server { location / { } }"), shown("PUT", "a"));
    assert_eq!(texts("proxy_method PUT; server { proxy_method $arg_m; proxy_set_body b; }"), shown("", "b"));
}

#[test]
fn fields_are_inherited_until_a_block_has_its_own() {
    let names = |http: &str| {
        let http = http_of(http);
        let names = http.set_fields.items().iter().map(|field| field.name.to_string());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("proxy_set_header A 1; proxy_set_header B 2; server { location / { } }"), "A B");
    assert_eq!(names("proxy_set_header A 1; server { proxy_set_header B ''; location / { } }"), "B");
}

#[test]
fn wrong_statements_are_refused() {
    for (text, expected) in [
        ("\nproxy_http_version 3;", "invalid value \"3\""),
        ("\nproxy_redirect x;", "invalid parameter \"x\""),
        ("\nproxy_redirect ~( b;", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
        (
            "\nproxy_redirect default;",
            "\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive",
        ),
        (
            "location / {\nproxy_pass http://$host; proxy_redirect default; }",
            "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
        ),
        ("\nproxy_redirect off; proxy_redirect a b;", "\"proxy_redirect\" directive is duplicate"),
        ("\nproxy_redirect a b; proxy_redirect off;", "\"proxy_redirect\" directive is duplicate"),
        ("\nproxy_cookie_domain x;", "invalid parameter \"x\""),
        ("\nproxy_cookie_path off; proxy_cookie_path a b;", "\"proxy_cookie_path\" directive is duplicate"),
        (
            "\nproxy_cookie_flags a b; proxy_cookie_flags off;",
            "\"proxy_cookie_flags\" directive is duplicate",
        ),
        ("\nproxy_set_header A $nobody;", "unknown \"nobody\" variable"),
    ] {
        let found = error(&format!("http {{ server {{ {text} }} }}"));
        assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{text}: {found}");
    }
}

#[test]
fn fields_that_cannot_be_sent_are_reported() {
    for (text, expected) in [
        ("proxy_set_header 'A: B' c;", "invalid field name \"A: B\", the field is not sent"),
        (
            "proxy_set_header content-length 5;",
            "\"content-length\" is computed from the body that is sent, the configured value is ignored",
        ),
    ] {
        let found = warnings(&format!("http {{\n{text} }}"));
        assert_eq!(found, [format!("{expected} in /conf/nginx.conf:2")], "{text}");
    }
    assert_eq!(warnings("http { proxy_set_header Content-Length ''; }"), Vec::<String>::new());
}

//! Tests of the directives.

use std::sync::Arc;

use super::conf::{OidcProvider, ProvidersConf, ServedKind};
use crate::testing::{error, load, loaded};
use std::time::Duration;

const ROWS: &str = "issuer https://a.example/x/; client_id me;";

fn provider(rows: &str) -> Arc<OidcProvider> {
    let config = loaded(&format!(
        "oidc_provider a {{ issuer http://127.0.0.1:1/x; client_id me; {rows} }} server {{ }}"
    ));
    Arc::clone(config.http.of::<ProvidersConf>().named("a").expect("it exists"))
}

#[test]
fn a_provider_has_the_defaults_of_nginx() {
    let conf = provider("");
    assert_eq!(conf.config_url.text, "http://127.0.0.1:1/x/.well-known/openid-configuration");
    assert_eq!(
        (conf.cookie_name.as_str(), conf.redirect.path.as_str()),
        ("NGX_OIDC_SESSION", "/oidc_callback")
    );
    assert_eq!((conf.scope.as_str(), conf.session_timeout), ("openid", Duration::from_secs(8 * 3600)));
    assert!(
        conf.pkce.is_none() && !conf.has_userinfo && !conf.adds_token_hint && conf.client_secret.is_none()
    );
    let conf = provider(
        "scope email profile; pkce off; userinfo on; session_timeout 5m; redirect_uri https://b/c?d;",
    );
    assert_eq!(
        (conf.scope.as_str(), conf.pkce, conf.has_userinfo),
        ("openid email profile", Some(false), true)
    );
    assert_eq!((conf.redirect.path.as_str(), conf.session_timeout), ("/c", Duration::from_secs(300)));
}

#[test]
fn uris_are_served_where_a_location_names_the_provider() {
    let rows = "issuer http://127.0.0.1:1; client_id me; logout_uri /out;";
    let config = loaded(&format!(
        "oidc_provider a {{ {rows} }} oidc_provider b {{ {rows} cookie_name b; }} server {{ location / {{ auth_oidc a; }} }}
         server {{ location / {{ auth_oidc $arg_p; }} }} server {{ }}"
    ));
    let conf = config.http.of::<ProvidersConf>();
    let names = |server: u32, path: &[u8]| -> Vec<(String, ServedKind)> {
        conf.served(server, path).map(|uri| (uri.provider.name.clone(), uri.kind)).collect()
    };
    let found: Vec<_> =
        (0..config.http.servers.len() as u32).map(|server| names(server, b"/out").len()).collect();
    assert_eq!(found.iter().sum::<usize>(), 3, "{found:?}");
    assert!((0..3).all(|server| names(server, b"/oidc_callback/").is_empty()));
}

#[test]
fn wrong_statements_are_refused() {
    for (text, expected) in [
        ("oidc_provider a { }", "no \"issuer\" in the provider \"a\""),
        ("oidc_provider a { issuer https://a; }", "no \"client_id\" in the provider \"a\""),
        ("oidc_provider a { issuer ''; client_id me; }", "no \"issuer\""),
        (
            "oidc_provider a { issuer a.example; client_id me; }",
            "no \"https://\" in \"issuer\" \"a.example\"",
        ),
        ("oidc_provider a { issuer https://a/?x; client_id me; }", "the issuer \"https://a/?x\" has a query"),
        ("oidc_provider a { x y; }", "unknown directive \"x\" in \"oidc_provider\""),
        ("oidc_provider a { issuer; }", "invalid number of arguments in \"issuer\" directive"),
        (
            "oidc_provider a { issuer https://a https://b; }",
            "invalid number of arguments in \"issuer\" directive",
        ),
        ("oidc_provider a { client_id a; client_id b; }", "\"client_id\" directive is duplicate"),
        ("oidc_provider a { pkce yes; }", "invalid value \"yes\" in \"pkce\" directive"),
        ("oidc_provider a { session_timeout 0; }", "\"session_timeout\" directive invalid value"),
        ("oidc_provider a { scope 'a\"b'; }", "invalid scope"),
        ("oidc_provider a { ROWS cookie_name 'a b'; }", "invalid cookie name \"a b\""),
        ("oidc_provider a { ROWS cookie_name 'a;b'; }", "invalid cookie name \"a;b\""),
        (
            "oidc_provider a { ROWS redirect_uri http://b/c; }",
            "\"redirect_uri\" \"http://b/c\" must be a path",
        ),
        ("oidc_provider a { ROWS redirect_uri //b/c; }", "invalid path \"//b/c\" in \"redirect_uri\""),
        ("oidc_provider a { ROWS logout_uri x; }", "invalid path \"x\" in \"logout_uri\""),
        ("oidc_provider a { ROWS post_logout_uri ftp://x; }", "no \"https://\" in \"post_logout_uri\""),
        (
            "oidc_provider a { ROWS extra_auth_args 'a=b&state=c'; }",
            "invalid \"extra_auth_args\": this server sets",
        ),
        (
            "oidc_provider a { ROWS extra_auth_args 'a=b c'; }",
            "invalid \"extra_auth_args\": a character needs",
        ),
        ("auth_oidc none; server { }", "unknown OIDC provider \"none\""),
        ("auth_oidc $none;", "unknown \"none\" variable"),
    ] {
        let text = text.replace("ROWS", &ROWS.replace("https://a.example/x/", "http://127.0.0.1:1"));
        let found = error(&format!("http {{\n{text} }}"));
        assert!(found.starts_with(expected), "{text}: {found}");
        assert!(found.contains("/conf/nginx.conf:2"), "{text}: {found}");
    }
}

#[test]
fn zones_of_sessions_must_have_pairs() {
    let with = |zone: &str| {
        error(&format!(
            "http {{ {zone} oidc_provider a {{ issuer http://127.0.0.1:1; client_id me;\nsession_store s; }} server {{ }} }}"
        ))
    };
    assert!(with("").contains("zero size shared memory zone \"s\" in /conf/nginx.conf:2"), "{}", with(""));
    let found = with("limit_req_zone $uri zone=s:1m rate=1r/s;");
    assert!(found.starts_with("the zone \"s\" is no zone of \"keyval_zone\""), "{found}");
    loaded(
        "keyval_zone zone=s:1m; oidc_provider a { issuer http://127.0.0.1:1; client_id me; session_store s; } server { }",
    );
}

#[test]
fn dangerous_providers_are_reported() {
    let warnings = |text: &str| {
        let loaded = load(text).expect("it is accepted");
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let one = |issuer: &str| {
        format!("http {{ oidc_provider a {{ issuer {issuer}; client_id me; }} server {{ listen 80; }} }}")
    };
    assert!(warnings(&one("http://a.example")).contains("\"issuer\" has no TLS"));
    assert!(!warnings(&one("http://127.0.0.1:1")).contains("TLS"));
    let rows = "issuer http://127.0.0.1:1; client_id me;";
    let two = format!(
        "http {{ oidc_provider a {{ {rows} }} oidc_provider b {{ {rows} }}
         server {{ listen 80; location /a {{ auth_oidc a; }} location /b {{ auth_oidc b; }} }} }}"
    );
    assert!(warnings(&two).contains("have the same \"cookie_name\""), "{}", warnings(&two));
}

//! Tests of the settings of `auth_jwt`. Tokens are tested with the complete server.

use std::time::Duration;

use exchange::phases::Phase;
use site::config::Config;

use super::{Conf, KeyOrigin, Realm, TokenType};
use crate::testing::{load, load_with};

const KEYS: (&str, &str) =
    ("/conf/keys", "{\"keys\":[{\"kty\":\"oct\",\"k\":\"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T\"}]}");

fn loaded(http: &str) -> std::sync::Arc<Config> {
    let loaded = load_with(&format!("http {{ {http} }}"), &[KEYS]);
    loaded.unwrap_or_else(|error| panic!("{http}: {error}")).config
}

fn conf_of<'c>(config: &'c Config, name: &str) -> &'c Conf {
    let location = config.http.locations.iter().find(|location| location.name == name);
    location.expect("it is there").scope.of::<Conf>()
}

#[test]
fn settings_are_inherited_and_switched_off() {
    let config = loaded(
        "auth_jwt a; auth_jwt_key_file keys; auth_jwt_leeway 5s; auth_jwt_key_cache 1m; auth_jwt_require $uri;
         server { location /a { } location /b { auth_jwt off; } location /c { auth_jwt b token=$arg_t; auth_jwt_type nested; }
         location /d { auth_jwt_key_request /keys; auth_jwt_require $args $uri error=403; } }",
    );
    let shown = |name: &str| {
        let conf = conf_of(&config, name);
        let sources = conf.keys.items().iter().map(|source| match source.origin {
            KeyOrigin::File(_) => "file",
            KeyOrigin::Subrequest(_) => "request",
        });
        let statuses: Vec<u16> = conf.required.items().iter().map(|required| required.status).collect();
        (conf.is_active(), conf.token.is_some(), sources.collect::<Vec<_>>(), statuses)
    };
    assert_eq!(shown("/a"), (true, false, vec!["file"], vec![401]));
    assert!(!shown("/b").0);
    assert_eq!(shown("/c"), (true, true, vec!["file"], vec![401]));
    assert_eq!(shown("/d"), (true, false, vec!["request"], vec![403]));
    let conf = conf_of(&config, "/c");
    assert_eq!(
        (conf.leeway, conf.cached, conf.token_type),
        (Duration::from_secs(5), Duration::from_secs(60), TokenType::Nested)
    );
    let location = config.http.locations.iter().find(|location| location.name == "/b").expect("it is there");
    assert_eq!(crate::all().plan(&config.http, &location.scope).count(Phase::Access), 0);
    assert!(crate::restricts(
        &config.http.locations.iter().find(|location| location.name == "/a").expect("it is there").scope
    ));
}

#[test]
fn a_missing_directive_opens_nothing_and_is_reported() {
    let text = "http { server { listen 80; location /a { auth_jwt x; } location /b { auth_jwt_require $uri; } location /c { auth_jwt off; auth_jwt_require $uri; } } }";
    let loaded = load(text).expect("it is accepted");
    let is_active = |name: &str| conf_of(&loaded.config, name).is_active();
    assert_eq!((is_active("/a"), is_active("/b"), is_active("/c")), (true, true, false));
    assert!(matches!(conf_of(&loaded.config, "/b").realm, Realm::Unset));
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let about_jwt: Vec<&String> = warnings.iter().filter(|warning| warning.contains("auth_jwt")).collect();
    assert_eq!(about_jwt.len(), 2, "{warnings:?}");
    assert!(about_jwt[0].contains("location \"/a\": \"auth_jwt\" refuses every request"), "{warnings:?}");
    assert!(
        about_jwt[1].contains("location \"/b\": \"auth_jwt_require\" refuses every request"),
        "{warnings:?}"
    );
}

#[test]
fn wrong_statements_are_refused() {
    for (text, expected) in [
        ("auth_jwt;", "invalid number of arguments in \"auth_jwt\" directive"),
        ("auth_jwt a; auth_jwt b;", "\"auth_jwt\" directive is duplicate"),
        ("auth_jwt a token=x;", "invalid parameter \"token=x\""),
        ("auth_jwt a x;", "invalid parameter \"x\""),
        ("auth_jwt $none;", "unknown \"none\" variable"),
        ("auth_jwt_claim_set x sub;", "invalid variable name \"x\""),
        ("auth_jwt_header_set $uri alg;", "the duplicate \"uri\" variable"),
        ("auth_jwt_key_cache x;", "\"auth_jwt_key_cache\" directive invalid value"),
        ("auth_jwt_leeway x;", "\"auth_jwt_leeway\" directive invalid value"),
        ("auth_jwt_type jws;", "invalid value \"jws\""),
        ("auth_jwt_require $uri error=500;", "invalid parameter \"error=500\""),
        ("auth_jwt_require error=403;", "no value is required"),
        ("auth_jwt_require x;", "invalid variable name \"x\""),
        ("auth_jwt_key_file none;", "open() \"/conf/none\" failed"),
        ("auth_jwt_key_file empty;", "the key file \"/conf/empty\" is wrong: it is no JSON Web Key Set"),
        ("auth_jwt_key_file no_keys;", "the key file \"/conf/no_keys\" is wrong: it has no key"),
        (
            "auth_jwt_key_file unusable;",
            "the key file \"/conf/unusable\" is wrong: it has no usable key: key 1: its type is not supported",
        ),
    ] {
        let files = [
            KEYS,
            ("/conf/empty", ""),
            ("/conf/no_keys", "{\"keys\":[]}"),
            ("/conf/unusable", "{\"kty\":\"x\"}"),
        ];
        let found = load_with(&format!("http {{\n{text} }}"), &files).expect_err(text).to_string();
        assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{text}: {found}");
    }
}

#[test]
fn keys_that_are_weak_or_not_used_are_reported() {
    let files =
        [("/conf/keys", "{\"keys\":[{\"kty\":\"oct\",\"k\":\"ZmFudGFzdGljand0\"},{\"kty\":\"new\"}]}")];
    let loaded = load_with("http { auth_jwt_key_file keys; }", &files).expect("it is accepted");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("a key that is not used: key 2: its type is not supported")),
        "{warnings:?}"
    );
    assert!(
        warnings.iter().any(|warning| warning.contains("a secret of 12 bytes, which can be guessed")),
        "{warnings:?}"
    );
}

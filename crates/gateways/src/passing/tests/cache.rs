//! Tests of the cache directives.

use std::time::Duration;

use http::fields::Method;

use crate::passing::Passing;
use crate::proxy::Http;
use crate::testing::{error, loaded, warnings};
use caching::failures::Stale;
use caching::settings::{CacheConf, Caches, StoreKind, Valid, Zone};

const PATH: &str = "proxy_cache_path /c keys_zone=one:1m;";

fn conf_of(http: &str) -> CacheConf {
    let config = loaded(http);
    config.http.locations.last().expect("there is a server").scope.of::<Passing<Http>>().conf.cache.clone()
}

#[test]
fn a_cache_is_selected_inherited_and_turned_off() {
    let name = |http: &str| match conf_of(&format!("{PATH} {http}")).zone {
        Zone::Off => "off".to_owned(),
        Zone::Named(zone) => zone.name().to_owned(),
        Zone::Variable(_) => "variable".to_owned(),
    };
    assert_eq!(name("server { }"), "off");
    assert_eq!(name("proxy_cache one; server { location / { } }"), "one");
    assert_eq!(name("proxy_cache one; server { proxy_cache off; }"), "off");
    assert_eq!(name("server { proxy_cache $host; }"), "variable");
    assert_eq!(name("proxy_cache one; server { proxy_store on; }"), "off");
    let config = loaded("server { proxy_cache one; } proxy_cache_path c keys_zone=one:1m;");
    assert_eq!(config.http.of::<Caches>().zones[0].kind().path.to_str(), Some("/prefix/c"));
}

#[test]
fn all_parameters_of_a_cache_path_are_parsed() {
    let config = loaded(
        "proxy_cache_path /c/ levels=1:2:2 use_temp_path=on keys_zone=one:10m inactive=4d max_size=1400g min_free=1m
           memory=256m store=files verify=2h scrub=1w loader_files=1 loader_sleep=2 loader_threshold=3 manager_files=4 manager_sleep=5
           manager_threshold=6 purger=on purger_files=7 purger_sleep=8 purger_threshold=9;",
    );
    let cache = config.http.of::<Caches>().zones[0].kind();
    assert_eq!((cache.name.as_str(), cache.path.to_str(), cache.keys_bytes), ("one", Some("/c"), 10 << 20));
    assert_eq!((cache.levels.as_slice(), cache.use_temp_path, cache.purger), (&[1, 2, 2][..], true, true));
    assert_eq!((cache.inactive, cache.max_size), (Duration::from_secs(4 * 86400), Some(1400 << 30)));
    assert_eq!((cache.min_free, cache.memory, cache.store), (1 << 20, 256 << 20, StoreKind::Files));
    let hours = |time: Option<Duration>| time.map(|time| time.as_secs() / 3600);
    assert_eq!((hours(cache.verify), hours(cache.scrub)), (Some(2), Some(7 * 24)));
    let paces = [cache.loader, cache.manager, cache.purger_pace]
        .map(|pace| (pace.files, pace.sleep.as_secs(), pace.threshold.as_secs()));
    assert_eq!(paces, [(1, 2, 3), (4, 5, 6), (7, 8, 9)]);
    let config = loaded(PATH);
    let cache = config.http.of::<Caches>().zones[0].kind();
    assert_eq!(
        (cache.inactive, cache.max_size, cache.use_temp_path),
        (Duration::from_secs(600), None, false)
    );
    assert_eq!((hours(cache.verify), cache.scrub), (Some(1), None));
    assert_eq!(loaded(&PATH.replace(';', " verify=off;")).http.of::<Caches>().zones[0].kind().verify, None);
}

#[test]
fn lifetimes_by_status_are_parsed() {
    let conf =
        conf_of("proxy_cache_valid 1m; server { proxy_cache_valid 200 302 10m; proxy_cache_valid any 1s; }");
    let seconds = |status: u16| conf.valid_for(status).map(|time| time.as_secs());
    assert_eq!([200, 302, 301, 500].map(seconds), [Some(600), Some(600), Some(1), Some(1)]);
    let conf = conf_of("proxy_cache_valid 1m; server { location / { } }");
    let usual = [200, 301, 302].map(|status| Valid { status: Some(status), time: Duration::from_secs(60) });
    assert_eq!(conf.valid.items(), usual);
    assert_eq!(conf.valid_for(404), None);
}

#[test]
fn sets_and_conditions_are_parsed() {
    let conf = conf_of(
        "proxy_cache_bypass $arg_a; proxy_no_cache $arg_a $arg_b; proxy_cache_purge $arg_p;
         server { proxy_cache_bypass $arg_c; proxy_cache_bypass $arg_d $arg_e; proxy_cache_methods POST;
         proxy_cache_use_stale error updating non_idempotent; proxy_cache_use_stale http_429; proxy_cache_key $host; }",
    );
    assert_eq!((conf.bypass.items().len(), conf.no_store.items().len(), conf.purge.items().len()), (3, 2, 1));
    assert_eq!(
        [Method::Get, Method::Head, Method::Post, Method::Put].map(|m| conf.has_method(m)),
        [true, true, true, false]
    );
    let cases = [Stale::Error, Stale::Updating, Stale::Http429, Stale::Timeout];
    assert_eq!(cases.map(|case| conf.uses_stale(case)), [true, true, true, false]);
    assert!(conf.key.is_some());
    let conf = conf_of("proxy_cache_use_stale error; server { proxy_cache_use_stale error off; }");
    assert!(!conf.uses_stale(Stale::Error) && !conf.has_method(Method::Post));
}

#[test]
fn numbers_times_and_flags_are_parsed() {
    let conf = conf_of("server { location / { } }");
    assert_eq!((conf.min_uses, conf.lock, conf.max_range_offset, conf.convert_head), (1, None, None, true));
    assert_eq!((conf.lock_timeout, conf.lock_age), (None, None));
    let conf = conf_of(
        "proxy_cache_min_uses 3; proxy_cache_lock off; proxy_cache_lock_timeout 1s; proxy_cache_lock_age 2s;
         proxy_cache_max_range_offset 1g; proxy_cache_convert_head off; proxy_cache_revalidate on;
         proxy_cache_background_update on; server { location / { } }",
    );
    assert_eq!((conf.min_uses, conf.lock, conf.max_range_offset), (3, Some(false), Some(1 << 30)));
    assert_eq!(
        (conf.lock_timeout, conf.lock_age),
        (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)))
    );
    assert!(!conf.convert_head && conf.revalidate && conf.background_update);
}

#[test]
fn wrong_statements_are_refused() {
    let long = "\"proxy_store\" directive is incompatible with \"proxy_cache\"";
    for (text, expected) in [
        ("proxy_cache_path /x levels=3 keys_zone=a:1m;", "invalid \"levels\" \"levels=3\""),
        ("proxy_cache_path /x levels=1:1:1:1 keys_zone=a:1m;", "invalid \"levels\" \"levels=1:1:1:1\""),
        ("proxy_cache_path /x keys_zone=a;", "invalid keys zone size \"keys_zone=a\""),
        ("proxy_cache_path /x keys_zone=a:1k;", "keys zone \"keys_zone=a:1k\" is too small"),
        ("proxy_cache_path /x levels=1:2;", "\"proxy_cache_path\" must have \"keys_zone\" parameter"),
        ("proxy_cache_path /x keys_zone=:1m;", "\"proxy_cache_path\" must have \"keys_zone\" parameter"),
        ("proxy_cache_path /x keys_zone=a:1m inactive=x;", "invalid inactive value \"inactive=x\""),
        ("proxy_cache_path /x keys_zone=a:1m max_size=x;", "invalid max_size value \"max_size=x\""),
        (
            "proxy_cache_path /x keys_zone=a:1m loader_files=x;",
            "invalid loader_files value \"loader_files=x\"",
        ),
        ("proxy_cache_path /x keys_zone=a:1m foo;", "invalid parameter \"foo\""),
        ("proxy_cache_path /x keys_zone=a:1m foo=1;", "invalid parameter \"foo=1\""),
        (
            "proxy_cache_path /x keys_zone=a:1m use_temp_path=x;",
            "invalid use_temp_path value \"use_temp_path=x\", it must be \"on\" or \"off\"",
        ),
        (
            "proxy_cache_path /x keys_zone=a:1m verify=0;",
            "invalid verify value \"verify=0\", it must be a time above 0 or \"off\"",
        ),
        (
            "proxy_cache_path /x keys_zone=a:1m scrub=on;",
            "invalid scrub value \"scrub=on\", it must be a time above 0 or \"off\"",
        ),
        (
            "proxy_cache_path /x keys_zone=a:1m store=segments;",
            "\"store=segments\" in \"proxy_cache_path\" directive is not supported yet",
        ),
        (
            "proxy_cache_path /x keys_zone=a:1m store=x;",
            "invalid store value \"store=x\", it must be \"files\" or \"segments\"",
        ),
        ("proxy_cache_path /x keys_zone=a:1m; proxy_cache_path /y keys_zone=a:1m;", "duplicate zone \"a\""),
        (
            "proxy_cache_path /x keys_zone=a:1m; proxy_cache_path /x keys_zone=b:1m;",
            "the same path name \"/x\" is used by another cache",
        ),
        (
            "limit_req_zone $uri zone=a:1m rate=1r/s; proxy_cache_path /x keys_zone=a:1m;",
            "the shared memory zone \"a\" is already declared for a different use",
        ),
        ("proxy_cache_valid x;", "invalid time value \"x\""),
        ("proxy_cache_valid 99 1m;", "invalid status \"99\""),
        ("proxy_cache_valid x 1m;", "invalid status \"x\""),
        ("proxy_cache b;", "\"proxy_cache\" zone \"b\" is unknown"),
        ("proxy_cache_methods PUT;", "invalid value \"PUT\""),
        ("proxy_cache_use_stale x;", "invalid value \"x\""),
        ("proxy_store on; proxy_cache a;", "\"proxy_cache\" directive is incompatible with \"proxy_store\""),
        ("proxy_cache_path /x keys_zone=a:1m; proxy_cache a; proxy_store on;", long),
        ("proxy_cache_lock_age x;", "\"proxy_cache_lock_age\" directive invalid value"),
        ("proxy_cache_min_uses x;", "\"proxy_cache_min_uses\" directive invalid number"),
        ("proxy_cache_max_range_offset x;", "\"proxy_cache_max_range_offset\" directive invalid value"),
        (
            "proxy_cache_s_maxage_stale x;",
            "invalid value \"x\" in \"proxy_cache_s_maxage_stale\" directive, it must be \"on\" or \"off\"",
        ),
        ("proxy_cache_heuristic x;", "invalid share \"x\""),
        ("proxy_cache_heuristic 0%;", "invalid share \"0%\""),
        ("proxy_cache_heuristic 101%;", "invalid share \"101%\""),
        ("proxy_cache_heuristic off 1h;", "invalid share \"off\""),
        ("proxy_cache_heuristic 10% x;", "invalid time value \"x\""),
        ("proxy_cache_tag_header a@b;", "invalid field name \"a@b\""),
        ("proxy_cache_key a; proxy_cache_key b;", "\"proxy_cache_key\" directive is duplicate"),
    ] {
        let found = error(&format!("http {{\n{text} }}"));
        assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{text}: {found}");
    }
}

#[test]
fn a_key_with_credentials_and_without_a_lifetime_causes_a_warning() {
    let of = |cache: &str| {
        let locations = "location /a { proxy_pass http://b; } location /b { proxy_pass http://b; }";
        warnings(&format!(
            "http {{ {PATH} upstream b {{ server 127.0.0.1:1; }} server {{ {cache} {locations} }} }}"
        ))
    };
    let key = "proxy_cache one; proxy_cache_key $uri$http_authorization;";
    let found = of(key);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"proxy_cache_key\" has \"$http_authorization\""), "{found:?}");
    for fine in [
        format!("{key} proxy_cache_valid 200 1m;"),
        format!("{key} proxy_cache_authorized on;"),
        "proxy_cache off; proxy_cache_key $uri$http_authorization;".to_owned(),
        "proxy_cache one; proxy_cache_key $uri$http_authorization2;".to_owned(),
    ] {
        assert_eq!(of(&fine), Vec::<String>::new(), "{fine}");
    }
}

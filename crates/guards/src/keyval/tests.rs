//! Tests of zones of pairs: matching of keys, limits, times, settings, reloads.

use std::any::Any;

use proptest::prelude::*;
use site::config::Section;
use site::shared_zone::Zones;

use super::Change;
use super::{Declared, KeyvalZone, zones};
use crate::testing::{error, load, load_with, loaded, without_remedy};
use site::shared_zone::pairs::{CopiedPair, Matching, PairRefusal as Refusal, Pairs};

const MIB: u64 = 1 << 20;

fn pairs(matching: Matching) -> Pairs {
    Pairs::new(MIB, matching, None)
}

fn set(key: &str, value: &str) -> Vec<(String, Change)> {
    vec![(key.to_owned(), Change::Set { value: Some(value.to_owned()), expire_ms: None })]
}

fn with_time(key: &str, value: Option<&str>, expire_ms: u64) -> Vec<(String, Change)> {
    vec![(key.to_owned(), Change::Set { value: value.map(str::to_owned), expire_ms: Some(expire_ms) })]
}

fn find(pairs: &Pairs, key: &str, now_ms: u64) -> Option<String> {
    let mut out = Vec::new();
    pairs.find(key.as_bytes(), now_ms, &mut out).then(|| String::from_utf8(out).expect("it is text"))
}

#[test]
fn pairs_are_added_changed_and_removed() {
    let pairs = pairs(Matching::Exact);
    assert_eq!(pairs.add(set("a", "1"), 0), Ok(()));
    assert_eq!(pairs.add(set("a", "2"), 0), Err(Refusal::Exists));
    assert_eq!((find(&pairs, "a", 0).as_deref(), find(&pairs, "A", 0)), (Some("1"), None));
    assert_eq!(pairs.change(set("b", "2"), 0), Err(Refusal::Missing));
    assert_eq!(pairs.change(set("a", "2"), 0), Ok(()));
    assert_eq!(pairs.get("a", 0).as_deref(), Some("2"));
    let two = [set("b", "1"), set("c", "2")].concat();
    assert_eq!(pairs.add(two.clone(), 0), Err(Refusal::Several));
    assert_eq!(pairs.change(two.clone(), 0), Err(Refusal::Several));
    assert_eq!((pairs.add(vec![], 0), pairs.change(vec![], 0)), (Err(Refusal::Empty), Err(Refusal::Empty)));
    assert_eq!(pairs.change(vec![("a".into(), Change::Remove)], 0), Ok(()));
    assert_eq!(pairs.add(vec![("a".into(), Change::Remove)], 0), Err(Refusal::NoValue));
    assert_eq!((find(&pairs, "a", 0), pairs.used()), (None, 0));
    assert_eq!(pairs.add(two, 0), Ok(()), "several pairs are possible in an empty zone");
    let before = pairs.changes();
    pairs.clear();
    assert_eq!((pairs.copy(0).1, pairs.used(), pairs.changes()), (vec![], 0, before + 1));
}

#[test]
fn several_pairs_are_added_all_or_none() {
    let pairs = Pairs::new(4096, Matching::Network, None);
    for wrong in [
        [set("10.0.0.0/8", "1"), set("x", "2")].concat(),
        [set("10.0.0.0/8", "1"), set("10.1.2.3/8", "2")].concat(),
    ] {
        assert!(pairs.add(wrong, 0).is_err());
        assert_eq!((pairs.copy(0).1, pairs.used()), (vec![], 0));
    }
    let many = (0..100).flat_map(|number| set(&format!("10.0.0.{number}"), "1")).collect();
    assert_eq!(pairs.add(many, 0), Err(Refusal::Full));
    assert_eq!(pairs.used(), 0);
}

#[test]
fn the_longest_prefix_applies() {
    let pairs = pairs(Matching::Prefix);
    for key in ["/a", "/a/b", "/a/b/c", "/a/bd", "/b", "zz"] {
        pairs.add(set(key, key), 0).unwrap();
    }
    for (key, expected) in [
        ("/a", Some("/a")),
        ("/ab", Some("/a")),
        ("/a/b", Some("/a/b")),
        ("/a/b/bzzz", Some("/a/b")),
        ("/a/b/c/d", Some("/a/b/c")),
        ("/a/bc", Some("/a/b")),
        ("/a/bdd", Some("/a/bd")),
        ("/", None),
        ("", None),
        ("zzz", Some("zz")),
        ("z", None),
    ] {
        assert_eq!(find(&pairs, key, 0).as_deref(), expected, "{key}");
    }
    // A key of `api` is the complete key.
    assert_eq!(pairs.get("/ab", 0), None);
}

#[test]
fn the_smallest_network_applies() {
    let pairs = pairs(Matching::Network);
    for key in [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        "2001:db8::/32",
        "2001:db8::1",
        "::ffff:10.9.9.9",
    ] {
        pairs.add(set(key, key), 0).unwrap();
    }
    for (key, expected) in [
        ("10.1.2.3", Some("10.1.2.3")),
        ("10.1.2.4", Some("10.1.0.0/16")),
        ("10.2.0.0", Some("10.0.0.0/8")),
        ("11.0.0.1", Some("0.0.0.0/0")),
        ("::ffff:10.1.2.3", Some("10.1.2.3")),
        ("10.9.9.9", Some("::ffff:10.9.9.9")),
        // A network is within another one if all its addresses are.
        ("10.1.2.0/24", Some("10.1.0.0/16")),
        ("10.0.0.0/7", Some("0.0.0.0/0")),
        ("2001:db8::1", Some("2001:db8::1")),
        ("2001:db8::2", Some("2001:db8::/32")),
        ("2001:db9::", None),
        ("unix:", None),
        ("10.1.2", None),
        ("", None),
    ] {
        assert_eq!(find(&pairs, key, 0).as_deref(), expected, "{key}");
    }
    // The key has one pair, however it is written.
    assert_eq!(pairs.add(set("10.3.0.0/8", "x"), 0), Err(Refusal::Exists));
    assert_eq!(pairs.change(set("10.3.0.0/8", "x"), 0), Ok(()));
    assert_eq!(pairs.get("10.0.0.0/8", 0).as_deref(), Some("x"));
    assert!(pairs.copy(0).1.iter().any(|pair| pair.key == "10.0.0.0/8" && pair.value == "x"));
    assert_eq!(pairs.add(set("x", "y"), 0), Err(Refusal::NoNetwork));
    assert_eq!(pairs.change(vec![("10.1.0.0/16".into(), Change::Remove)], 0), Ok(()));
    assert_eq!(find(&pairs, "10.1.2.4", 0).as_deref(), Some("x"));
}

#[test]
fn pairs_expire() {
    let pairs = Pairs::new(MIB, Matching::Prefix, Some(1000));
    pairs.add(set("a", "1"), 5000).unwrap();
    pairs.add(with_time("ab", Some("2"), 10), 5000).unwrap();
    assert_eq!(find(&pairs, "abc", 5009).as_deref(), Some("2"));
    assert_eq!(find(&pairs, "abc", 5010).as_deref(), Some("1"), "the expired pair hides no other");
    assert_eq!((find(&pairs, "abc", 6000), pairs.get("a", 6000)), (None, None));
    assert_eq!(pairs.copy(5500).1.len(), 1);
    // A change without a value has another time for the same value; a new value begins a new time.
    pairs.change(with_time("a", None, 10_000), 5500).unwrap();
    assert_eq!(find(&pairs, "a", 15_499).as_deref(), Some("1"));
    pairs.change(set("a", "3"), 15_499).unwrap();
    assert_eq!((find(&pairs, "a", 16_498).as_deref(), find(&pairs, "a", 16_499)), (Some("3"), None));
    assert_eq!(pairs.change(set("a", "4"), 16_499), Err(Refusal::Missing), "it has expired");
    assert_eq!(pairs.used(), 0, "expired pairs use no memory after a change");
    assert_eq!(pairs.add([set("a", "1"), set("b", "2")].concat(), 17_000), Ok(()));
    let never = Pairs::new(MIB, Matching::Exact, None);
    assert_eq!(never.add(with_time("a", Some("1"), 5), 0), Err(Refusal::NoTimeout));
    never.add(set("a", "1"), 0).unwrap();
    assert_eq!(never.change(with_time("a", None, 5), 0), Err(Refusal::NoTimeout));
    assert_eq!(find(&never, "a", u64::MAX).as_deref(), Some("1"), "a refused change has no effect");
}

#[test]
fn a_full_zone_refuses_changes_and_evicts_nothing() {
    let pairs = Pairs::new(4096, Matching::Exact, Some(1000));
    let added =
        (0..100).take_while(|number| pairs.add(set(&format!("key{number}"), "value"), 0).is_ok()).count();
    assert!((10..20).contains(&added), "{added}");
    assert_eq!(pairs.add(set("x", "value"), 999), Err(Refusal::Full));
    assert_eq!(pairs.change(set("key0", &"x".repeat(4096)), 999), Err(Refusal::Full));
    assert_eq!(pairs.copy(999).1.len(), added);
    assert_eq!(find(&pairs, "key0", 999).as_deref(), Some("value"));
    assert!(pairs.used() <= 4096);
    // A change to a shorter value is possible, and expired pairs make room.
    assert_eq!(pairs.change(set("key0", ""), 999), Ok(()));
    assert_eq!(pairs.add(set("x", "value"), 1000), Ok(()));
}

#[test]
fn a_state_file_never_exceeds_the_size_that_is_read_again() {
    let pairs = Pairs::new(1 << 30, Matching::Exact, None);
    let value = "\u{1}".repeat(4 << 20);
    let added = (0..20).take_while(|number| pairs.add(set(&number.to_string(), &value), 0).is_ok()).count();
    let text = super::json::state_text(&pairs.copy(0).1);
    assert_eq!(added, 2);
    assert!(text.len() as u64 <= site::shared_zone::pairs::STATE_BYTES_MAX);
}

#[test]
fn restored_pairs_have_their_times() {
    let pair = |key: &str, expires_ms| CopiedPair { key: key.into(), value: "v".into(), expires_ms };
    let state = || vec![pair("a", Some(2000)), pair("b", Some(900)), pair("c", None)];
    let pairs = Pairs::new(MIB, Matching::Exact, Some(5000));
    assert_eq!(pairs.restore(state(), 1000), Ok(()));
    assert_eq!(pairs.copy(1000).1, [pair("a", Some(2000)), pair("c", Some(6000))]);
    let never = Pairs::new(MIB, Matching::Exact, None);
    assert_eq!(never.restore(state(), 1000), Ok(()));
    assert_eq!(never.copy(1000).1.len(), 3);
    assert!(never.copy(1000).1.iter().all(|pair| pair.expires_ms.is_none()));
}

#[test]
fn a_copy_of_many_pairs_is_complete() {
    let pairs = pairs(Matching::Exact);
    for number in 0..1000 {
        pairs.add(set(&format!("{number:04}"), "v"), 0).unwrap();
    }
    let (changes, copied) = pairs.copy(0);
    assert_eq!(changes, 1000);
    let keys: Vec<_> = copied.into_iter().map(|pair| pair.key).collect();
    assert_eq!(keys, (0..1000).map(|number| format!("{number:04}")).collect::<Vec<_>>());
}

proptest! {
    /// Both indexes agree with a search of all pairs.
    #[test]
    fn lookups_agree_with_a_search(
        keys in prop::collection::btree_set("[ab/]{1,6}", 0..20),
        expired in prop::collection::vec(any::<bool>(), 20),
        searched in prop::collection::vec("[ab/]{0,8}", 20),
    ) {
        let pairs = Pairs::new(MIB, Matching::Prefix, Some(1000));
        for (key, expired) in keys.iter().zip(&expired) {
            pairs.add(with_time(key, Some(key), if *expired { 1 } else { 100 }), 0).unwrap();
        }
        for text in searched {
            let valid = keys.iter().zip(&expired).filter(|(key, expired)| !**expired && text.starts_with(key.as_str()));
            let expected = valid.map(|(key, _)| key.clone()).max_by_key(String::len);
            prop_assert_eq!(find(&pairs, &text, 50), expected, "{}", text);
        }
    }

    /// The sums remain those of the pairs, whatever the order of changes.
    #[test]
    fn sums_are_those_of_the_pairs(
        steps in prop::collection::vec((0..4_u8, 0..12_u8, 0..40_usize, 1..50_u64), 1..120),
        is_ip in any::<bool>(),
    ) {
        let matching = if is_ip { Matching::Network } else { Matching::Exact };
        let pairs = Pairs::new(4096, matching, Some(20));
        let mut now = 0;
        for (step, key, len, ms) in steps {
            now += ms % 5;
            let (key, value) = (format!("10.0.0.{key}"), "x".repeat(len));
            let _ = match step {
                0 => pairs.add(set(&key, &value), now),
                1 => pairs.change(with_time(&key, Some(&value), ms), now),
                2 => pairs.change(vec![(key, Change::Remove)], now),
                _ => pairs.change(with_time(&key, None, ms), now),
            };
            prop_assert!(pairs.used() <= 4096);
        }
        let copied = pairs.copy(now).1;
        let again = Pairs::new(4096, matching, Some(20));
        prop_assert_eq!(again.restore(copied.clone(), now), Ok(()));
        // A change removes the expired pairs.
        let _ = pairs.change(vec![("10.9.9.9".into(), Change::Remove)], now);
        prop_assert_eq!(again.used(), pairs.used());
        for pair in copied {
            pairs.change(vec![(pair.key, Change::Remove)], now).unwrap();
        }
        prop_assert_eq!(pairs.used(), 0);
    }
}

#[test]
fn wrong_statements_are_refused() {
    for (text, expected) in [
        ("keyval_zone type=ip;", "\"keyval_zone\" must have \"zone\" parameter"),
        ("keyval_zone zone=:64k;", "\"keyval_zone\" must have \"zone\" parameter"),
        ("keyval_zone zone=a;", "invalid zone size \"zone=a\""),
        ("keyval_zone zone=a:8k;", "zone \"zone=a:8k\" is too small"),
        ("keyval_zone zone=a:64k type=x;", "invalid parameter \"type=x\""),
        ("keyval_zone zone=a:64k timeout=0;", "invalid timeout value \"timeout=0\""),
        ("keyval_zone zone=a:64k timeout=x;", "invalid timeout value \"timeout=x\""),
        ("keyval_zone zone=a:64k state=;", "invalid parameter \"state=\""),
        ("keyval_zone zone=a:64k x;", "invalid parameter \"x\""),
        (
            "keyval_zone zone=a:64k; keyval_zone zone=a:64k;",
            "keyval_zone \"a\" is already bound to key \"keyval\"",
        ),
        (
            "keyval_zone zone=a:64k; keyval_zone zone=a:128k;",
            "the size 131072 of shared memory zone \"a\" conflicts",
        ),
        ("keyval $uri $v zone=a;", "zero size shared memory zone \"a\""),
        ("keyval $uri v zone=a;", "invalid variable name \"v\""),
        ("keyval $uri $host zone=a;", "the duplicate \"host\" variable"),
        ("keyval $none $v zone=a;", "unknown \"none\" variable"),
        ("keyval $uri $v a;", "invalid parameter \"a\""),
        ("keyval $uri $v zone=;", "invalid parameter \"zone=\""),
        (
            "keyval_zone zone=a:64k state=f; keyval_zone zone=b:64k state=f;",
            "\"/prefix/f\" is already the state file of another zone",
        ),
        (
            "limit_conn_zone $uri zone=a:64k; keyval $uri $v zone=a;",
            "the shared memory zone \"a\" is already declared for a different use",
        ),
    ] {
        let found = error(&format!("http {{\n{text} }}"));
        assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{text}: {found}");
    }
    let found = error("http {\nkeyval_zone zone=a:64k timeout=1s sync; }");
    assert!(found.contains("sync") && found.contains("not supported"), "{found}");
    // Both blocks have their zones, but no zone in common.
    let found = error("http { keyval_zone zone=a:64k; }\nstream { keyval $remote_addr $v zone=a; }");
    assert_eq!(
        without_remedy(&found),
        "the shared memory zone \"a\" is already declared for a different use in /conf/nginx.conf:2"
    );
    load(
        "http { keyval_zone zone=a:64k; } stream { keyval $remote_addr $v zone=b; keyval_zone zone=b:64k; }",
    )
    .unwrap();
}

#[test]
fn wrong_state_files_are_refused() {
    let big = format!("{{\"a\":\"{}\"}}", "x".repeat(64 << 10));
    for (kind, text, expected) in [
        ("string", "x", "the state file \"/prefix/f\" is wrong: invalid JSON"),
        ("string", "{\"a\":1}", "the state file \"/prefix/f\" is wrong: invalid JSON"),
        ("string", "{\"\":\"1\"}", "the state file \"/prefix/f\" is wrong: a key is empty"),
        ("string", &big, "the zone is too small for the pairs of its state file \"/prefix/f\""),
        ("ip", "{\"a\":\"1\"}", "the state file \"/prefix/f\" has the key \"a\", which is no network"),
        (
            "ip",
            "{\"10.0.0.1/8\":\"1\",\"10.0.0.2/8\":\"1\"}",
            "the state file \"/prefix/f\" has the network of key \"10.0.0.2/8\" twice",
        ),
    ] {
        let conf = format!("http {{\nkeyval_zone zone=a:64k state=f type={kind}; }}");
        let found = load_with(&conf, &[("/prefix/f", text)]).expect_err(expected).to_string();
        assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
    }
}

/// Returns the only zone of a configuration, whose pairs begin after those of another.
fn begun(
    text: &str,
    state: &str,
    before: Option<&Zones>,
) -> (std::sync::Arc<site::config::Config>, std::sync::Arc<KeyvalZone>) {
    let text = format!("http {{ {text} }}");
    let config = load_with(&text, &[("/prefix/f", state), ("/prefix/g", "{\"g\":\"1\"}")]).unwrap().config;
    config.http.zones.begin(before.unwrap_or(&Zones::default()));
    let zone = zones(&config, Section::Http).next().expect("there is one");
    (config, zone)
}

#[test]
fn pairs_survive_a_reload_unless_their_meaning_changes() {
    let first = "keyval_zone zone=a:64k state=f;";
    let (config, zone) = begun(first, "{\"old\":\"1\"}", None);
    zone.state().pairs.add(set("new", "2"), 0).unwrap();
    let keys = |text: &str| {
        let (_, zone) = begun(text, "{\"old\":\"1\"}", Some(&config.http.zones));
        zone.state().pairs.copy(0).1.into_iter().map(|pair| pair.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(first), ["new", "old"]);
    assert_eq!(keys("keyval_zone zone=a:64k;"), ["new", "old"]);
    assert_eq!(keys("keyval_zone zone=a:64k state=missing;"), ["new", "old"]);
    // Another file has other pairs.
    assert_eq!(keys("keyval_zone zone=a:64k state=g;"), ["g"]);
    assert_eq!(keys("keyval_zone zone=a:128k state=f;"), ["old"]);
    assert_eq!(keys("keyval_zone zone=a:64k state=f type=prefix;"), ["old"]);
    assert_eq!(keys("keyval_zone zone=b:64k;"), [""; 0]);
}

#[test]
fn state_files_are_found() {
    let config = loaded("keyval_zone zone=a:64k state=/s/f; keyval_zone zone=b:64k;");
    assert_eq!(super::state_files(&config).collect::<Vec<_>>(), [std::path::Path::new("/s/f")]);
    let zone: &dyn Any = &*config.http.zones.0[1].zone;
    let declared: Option<&Declared> = zone.downcast_ref::<KeyvalZone>().and_then(|zone| zone.declared());
    assert!(declared.is_some());
}

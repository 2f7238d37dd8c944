//! Tables of valid and invalid directives.

use super::*;
use crate::fields::FieldLine;
use proptest::prelude::*;

fn parse(values: &[&str]) -> CacheControl {
    CacheControl::parse(values.iter().map(|value| value.as_bytes()))
}

fn wanted(set: impl FnOnce(&mut CacheControl)) -> CacheControl {
    let mut control = CacheControl::default();
    set(&mut control);
    control
}

#[test]
fn directives_of_responses_are_parsed() {
    type Set = fn(&mut CacheControl);
    let table: &[(&str, Set)] = &[
        ("", |_| {}),
        (" , ,", |_| {}),
        ("unknown, x=1, y=\"a,no-store\"", |_| {}),
        ("no-store", |c| c.no_store = true),
        ("NO-STORE", |c| c.no_store = true),
        ("no-store=1", |c| c.no_store = true),
        ("no-stores", |_| {}),
        ("public,immutable", |c| (c.public, c.immutable) = (true, true)),
        ("must-revalidate , proxy-revalidate", |c| (c.must_revalidate, c.proxy_revalidate) = (true, true)),
        ("must-understand,no-transform", |c| (c.must_understand, c.no_transform) = (true, true)),
        ("max-age=60", |c| c.max_age = Some(60)),
        ("Max-Age=60", |c| c.max_age = Some(60)),
        ("max-age=\"60\"", |c| c.max_age = Some(60)),
        ("max-age = 60 ", |c| c.max_age = Some(60)),
        ("max-age=0060", |c| c.max_age = Some(60)),
        ("max-age=60, s-maxage=5", |c| (c.max_age, c.s_maxage) = (Some(60), Some(5))),
        ("stale-while-revalidate=7,stale-if-error=8", |c| {
            (c.stale_while_revalidate, c.stale_if_error) = (Some(7), Some(8));
        }),
        ("max-age=2147483647", |c| c.max_age = Some(2_147_483_647)),
        ("max-age=2147483648", |c| c.max_age = Some(DELTA_SECONDS_MAX)),
        ("max-age=2147483649", |c| c.max_age = Some(DELTA_SECONDS_MAX)),
        ("max-age=99999999999999999999999999", |c| c.max_age = Some(DELTA_SECONDS_MAX)),
        ("no-cache", |c| c.no_cache = Scope::Whole),
        ("no-cache=\"a\"", |c| c.no_cache = Scope::Fields),
        ("no-cache=a", |c| c.no_cache = Scope::Fields),
        ("no-cache=\"a, b\", private=\"c\"", |c| (c.no_cache, c.private) = (Scope::Fields, Scope::Fields)),
        ("private", |c| c.private = Scope::Whole),
        ("private=\"a\", private", |c| c.private = Scope::Whole),
        ("private, private=\"a\"", |c| c.private = Scope::Whole),
    ];
    for (value, set) in table {
        assert_eq!(parse(&[value]), wanted(set), "{value:?}");
    }
}

#[test]
fn invalid_values_make_caching_stricter() {
    type Set = fn(&mut CacheControl);
    let table: &[(&str, Set)] = &[
        ("max-age", |c| c.max_age = Some(0)),
        ("max-age=", |c| c.max_age = Some(0)),
        ("max-age=\"\"", |c| c.max_age = Some(0)),
        ("max-age=-1", |c| c.max_age = Some(0)),
        ("max-age=+1", |c| c.max_age = Some(0)),
        ("max-age=1.5", |c| c.max_age = Some(0)),
        ("max-age=60;x", |c| c.max_age = Some(0)),
        ("max-age=60 60", |c| c.max_age = Some(0)),
        ("max-age=x", |c| c.max_age = Some(0)),
        ("s-maxage=x, max-age=60", |c| (c.max_age, c.s_maxage) = (Some(60), Some(0))),
        ("max-age=\"60, no-store", |c| (c.max_age, c.no_store) = (Some(0), true)),
        ("x=\"y, private", |c| c.private = Scope::Whole),
        ("x=\"y\\\", private", |c| c.private = Scope::Whole),
        ("no-cache=\"\"", |c| c.no_cache = Scope::Whole),
        ("no-cache=\" , \"", |c| c.no_cache = Scope::Whole),
        ("no-cache=\"a b\"", |c| c.no_cache = Scope::Whole),
        ("no-cache=\"a\\b\"", |c| c.no_cache = Scope::Whole),
        ("private=\"a", |c| c.private = Scope::Whole),
        ("private =\"a\"", |c| c.private = Scope::Fields),
    ];
    for (value, set) in table {
        assert_eq!(parse(&[value]), wanted(set), "{value:?}");
    }
}

#[test]
fn a_name_in_a_quoted_string_is_not_a_directive() {
    assert_eq!(parse(&["x=\"no-store, max-age=5\", max-age=6"]).max_age, Some(6));
    assert!(!parse(&["x=\"no-store\""]).no_store);
    assert!(!parse(&["x=\"a\\\", no-store\""]).no_store);
}

#[test]
fn field_lines_are_combined_and_the_first_of_two_ages_is_used() {
    let found = parse(&["max-age=1, public", "", "max-age=2, no-cache=\"a\"", "S-MAXAGE=3"]);
    assert_eq!((found.max_age, found.s_maxage, found.public), (Some(1), Some(3), true));
    assert_eq!(found.no_cache, Scope::Fields);
    assert_eq!(parse(&["max-age=x, max-age=5"]).max_age, Some(0));
}

#[test]
fn field_names_in_directives_are_parsed() {
    let values = [&b"no-cache=\"Set-Cookie, X-A\", private=y"[..], b"NO-CACHE=z, no-cache"];
    let names = |directive| qualified_fields(values, directive).collect::<Vec<_>>();
    assert_eq!(names(Qualified::NoCache), [&b"Set-Cookie"[..], b"X-A", b"z"]);
    assert_eq!(names(Qualified::Private), [b"y"]);
}

#[test]
fn directives_of_requests_are_parsed() {
    type Set = fn(&mut RequestCacheControl);
    let table: &[(&[&str], &[&str], Set)] = &[
        (&[], &[], |_| {}),
        (&["no-cache"], &[], |c| c.no_cache = true),
        (&["no-store, no-transform"], &[], |c| (c.no_store, c.no_transform) = (true, true)),
        (&["only-if-cached"], &[], |c| c.only_if_cached = true),
        (&["max-age=0"], &[], |c| c.max_age = Some(0)),
        (&["max-age=x"], &[], |c| c.max_age = Some(0)),
        (&["min-fresh=5", "min-fresh=6"], &[], |c| c.min_fresh = Some(5)),
        (&["min-fresh=x"], &[], |_| {}),
        (&["max-stale"], &[], |c| c.max_stale = Some(MaxStale::Any)),
        (&["max-stale=9"], &[], |c| c.max_stale = Some(MaxStale::Seconds(9))),
        (&["max-stale=x"], &[], |_| {}),
        (&["stale-if-error=4"], &[], |c| c.stale_if_error = Some(4)),
        (&[], &["no-cache"], |c| c.no_cache = true),
        (&[], &["x, No-Cache"], |c| c.no_cache = true),
        (&["max-age=5"], &["no-cache"], |c| c.max_age = Some(5)),
        (&[""], &["no-cache"], |_| {}),
    ];
    for (values, pragma, set) in table {
        let bytes = |list: &'static [&str]| list.iter().map(|value| value.as_bytes());
        let mut wanted = RequestCacheControl::default();
        set(&mut wanted);
        assert_eq!(RequestCacheControl::parse(bytes(values), bytes(pragma)), wanted, "{values:?} {pragma:?}");
    }
}

const CDN: &[&[u8]] = &[b"Example-CDN-Cache-Control", b"CDN-Cache-Control"];

fn target(lines: &[(&str, &str)]) -> Option<Targeted> {
    let lines = lines.iter().map(|(name, value)| FieldLine::new(name.as_bytes(), value.as_bytes()));
    targeted(lines, CDN)
}

#[test]
fn targeted_fields_override_cache_control() {
    let max_age = |seconds| wanted(|c| c.max_age = Some(seconds));
    for (lines, index, control) in [
        (&[("CDN-Cache-Control", "max-age=60")][..], 1, max_age(60)),
        (&[("cdn-cache-control", "max-age=60;x=1, y")], 1, max_age(60)),
        (&[("CDN-Cache-Control", "max-age=60"), ("Example-CDN-Cache-Control", "max-age=5")], 0, max_age(5)),
        (&[("CDN-Cache-Control", "max-age=60"), ("Example-CDN-Cache-Control", "max-age=5x")], 1, max_age(60)),
        (&[("CDN-Cache-Control", "max-age=60"), ("Example-CDN-Cache-Control", "")], 1, max_age(60)),
        (&[("CDN-Cache-Control", "x"), ("CDN-Cache-Control", "max-age=1, max-age=2")], 1, max_age(2)),
        (&[("CDN-Cache-Control", "max-age=-1")], 1, max_age(0)),
        (&[("CDN-Cache-Control", "max-age=9999999999")], 1, max_age(DELTA_SECONDS_MAX)),
        (&[("CDN-Cache-Control", "max-age=1.5")], 1, CacheControl::default()),
        (&[("CDN-Cache-Control", "max-age=\"5\"")], 1, CacheControl::default()),
        (&[("CDN-Cache-Control", "no-store=?0, public=1")], 1, CacheControl::default()),
        (&[("CDN-Cache-Control", "no-store")], 1, wanted(|c| c.no_store = true)),
        (&[("CDN-Cache-Control", "private=\"x\"")], 1, wanted(|c| c.private = Scope::Whole)),
        (&[("CDN-Cache-Control", "must-revalidate=7")], 1, wanted(|c| c.must_revalidate = true)),
    ] {
        assert_eq!(target(lines), Some(Targeted { index, control }), "{lines:?}");
    }
    for lines in [
        &[][..],
        &[("Cache-Control", "max-age=5")],
        &[("CDN-Cache-Control", "")],
        &[("CDN-Cache-Control", "Max-Age=5")],
        &[("CDN-Cache-Control", "max-age=5,")],
        &[("CDN-Cache-Control", "max-age=5"), ("CDN-Cache-Control", "b@d")],
    ] {
        assert_eq!(target(lines), None, "{lines:?}");
    }
}

proptest! {
    #[test]
    fn no_input_panics(value in proptest::collection::vec(any::<u8>(), 0..80), near in "(no-cache|private|max-age|max-stale|[=\", \\\\a0])*") {
        for value in [value.as_slice(), near.as_bytes()] {
            let _ = CacheControl::parse([value]);
            let _ = RequestCacheControl::parse([value], [value]);
            let _ = qualified_fields([value], Qualified::Private).count();
            let _ = targeted([FieldLine::new(b"CDN-Cache-Control", value)].into_iter(), CDN);
        }
    }

    /// Other directives do not change the meaning of a directive. Only a quoted string that encloses the directive hides it,
    /// which is correct; therefore a field with an unclosed quote has no other quotes in this test.
    #[test]
    fn restricting_directives_are_never_lost(
        before in proptest::collection::vec("(x|y=1|z=\"a,b\"|max-age=5|)", 0..4),
        has_open_quote: bool,
        restriction in "(no-store|private|no-cache|must-revalidate)",
        after in proptest::collection::vec("(x|y=1|z=\"a,b\"|max-age=5)", 0..3),
    ) {
        let plain = |item: &String| !has_open_quote || !item.contains('"');
        let open = has_open_quote.then(|| "q=\"open".to_owned());
        let items = before.into_iter().filter(plain).chain(open).chain([restriction.clone()]);
        let text = items.chain(after.into_iter().filter(plain)).collect::<Vec<_>>().join(", ");
        let found = parse(&[&text]);
        let kept = match restriction.as_str() {
            "no-store" => found.no_store,
            "private" => found.private == Scope::Whole,
            "no-cache" => found.no_cache == Scope::Whole,
            _ => found.must_revalidate,
        };
        prop_assert!(kept, "{}", text);
    }
}

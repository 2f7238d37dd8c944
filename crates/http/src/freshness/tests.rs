//! Tables of ages, lifetimes, stale windows and verdicts.

use super::store::{Exchange, Ignored, NotStored, Rules, StorageTerms, judge};
use super::*;
use crate::cache_control::{MaxStale, RequestCacheControl};
use proptest::prelude::*;

/// 06 Nov 1994 08:49:37, the RFC's example.
const DATE: i64 = 784_111_777;
const DATE_TEXT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const MINUTE_LATER: &str = "Sun, 06 Nov 1994 08:50:37 GMT";
const HOUR_BEFORE: &str = "Sun, 06 Nov 1994 07:49:37 GMT";
const NOW: Times = Times { request_ms: DATE * 1000, response_ms: DATE * 1000 };

fn fields(text: &str) -> CacheFields {
    let lines: Vec<(&str, &str)> =
        text.lines().map(|line| line.split_once(": ").or(line.split_once(':')).expect("a colon")).collect();
    let lines = lines.iter().map(|(name, value)| FieldLine::new(name.as_bytes(), value.as_bytes()));
    CacheFields::collect(lines, &[b"CDN-Cache-Control"])
}

#[test]
fn age_values_are_parsed() {
    for (values, wanted) in [
        (&["10"][..], Some(10)),
        (&["0"], Some(0)),
        (&["10, 20"], Some(10)),
        (&["10", "20"], Some(10)),
        (&["x", "20"], None),
        (&["-1"], None),
        (&["1.5"], None),
        (&[""], None),
        (&[], None),
        (&["2147483649"], Some(DELTA_SECONDS_MAX)),
        (&["99999999999999999999"], Some(DELTA_SECONDS_MAX)),
    ] {
        assert_eq!(parse_age(values.iter().map(|value| value.as_bytes())), wanted, "{values:?}");
    }
}

#[test]
fn initial_ages_are_computed() {
    for (text, request, response, wanted) in [
        ("", 0, 0, 0),
        ("Age: 10", 0, 0, 10),
        ("Age: 10", -3, 0, 13),
        ("", -3, 0, 3),
        ("Date: {}", 0, 5, 5),
        ("Date: {}\nAge: 10", 5, 5, 10),
        ("Date: {}\nAge: 10", 19, 20, 20),
        ("Date: {}\nAge: 10", -100, 20, 130),
        ("Date: {}", -5, -5, 0),
        // The response may have been generated at the end of the second of its `Date`.
        ("Date: {}", 0, 0, 0),
        ("Date: yesterday\nAge: 7", 0, 100, 107),
        ("Age: x", 0, 0, 0),
        // The clock was set back between request and response.
        ("Age: 10", 50, 0, 10),
        ("Age: 99999999999", 0, 0, DELTA_SECONDS_MAX),
    ] {
        let times = Times { request_ms: (DATE + request) * 1000, response_ms: (DATE + response) * 1000 };
        assert_eq!(
            fields(&text.replace("{}", DATE_TEXT)).initial_age_ms(times),
            i64::from(wanted) * 1000,
            "{text} {request} {response}"
        );
    }
    for (initial, response, now, wanted) in [
        (5, 100_000, 100_000, 5),
        (5, 100_000, 130_999, 35),
        (5, 100_000, 90_000, 5),
        (0, i64::MIN, i64::MAX, DELTA_SECONDS_MAX),
    ] {
        assert_eq!(current_age(initial * 1000, response, now), wanted, "{initial} {response} {now}");
    }
}

#[test]
fn lifetimes_are_computed() {
    use LifetimeSource as By;
    for (text, wanted) in [
        ("", None),
        ("Cache-Control: max-age=5", Some((5, By::MaxAge))),
        ("Cache-Control: max-age=5, s-maxage=7", Some((7, By::SMaxage))),
        ("Cache-Control: max-age=5\nExpires: {later}", Some((5, By::MaxAge))),
        ("Cache-Control: public\nExpires: {later}\nDate: {date}", Some((60, By::Expires))),
        ("Expires: {later}\nDate: {date}", Some((60, By::Expires))),
        ("Expires: {later}", Some((60, By::Expires))),
        ("Expires: {date}\nDate: {later}", Some((0, By::Expires))),
        ("Expires: 0", Some((0, By::Expires))),
        ("Expires: -1", Some((0, By::Expires))),
        ("Expires:", Some((0, By::Expires))),
        ("Expires: {later}\nExpires: 0", Some((60, By::Expires))),
        ("CDN-Cache-Control: max-age=9\nCache-Control: no-store", Some((9, By::MaxAge))),
        ("CDN-Cache-Control: public\nExpires: {later}\nCache-Control: max-age=5", None),
        ("CDN-Cache-Control: Bad\nCache-Control: max-age=5", Some((5, By::MaxAge))),
    ] {
        let text = text.replace("{later}", MINUTE_LATER).replace("{date}", DATE_TEXT);
        let found = fields(&text).lifetime(200, NOW, None).map(|found| (found.seconds, found.source));
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn heuristic_lifetimes_are_computed() {
    let heuristic = Some(Heuristic::default());
    let modified = format!("Last-Modified: {HOUR_BEFORE}\nDate: {DATE_TEXT}");
    let seconds = |text: &str, status, heuristic| {
        fields(text).lifetime(status, NOW, heuristic).map(|found| found.seconds)
    };
    assert_eq!(seconds(&modified, 200, None), None, "off by default");
    assert_eq!(seconds(&modified, 200, heuristic), Some(360));
    assert_eq!(seconds(&modified, 302, heuristic), None, "a status without heuristic lifetimes");
    assert_eq!(seconds(&format!("{modified}\nCache-Control: public"), 302, heuristic), Some(360));
    assert_eq!(seconds(&format!("{modified}\nCache-Control: max-age=1"), 200, heuristic), Some(1));
    assert_eq!(
        seconds(&format!("Last-Modified: {MINUTE_LATER}"), 200, heuristic),
        Some(0),
        "a modification time in the future"
    );
    assert_eq!(seconds("Last-Modified: x", 200, heuristic), None);
    assert_eq!(
        seconds("Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT", 200, heuristic),
        Some(86_400),
        "a day at most"
    );
    let allowed: Vec<u16> = (100..600).filter(|&status| is_heuristically_cacheable(status)).collect();
    assert_eq!(allowed, [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501]);
}

#[test]
fn stale_windows_are_computed() {
    use Refusal as No;
    for (text, wanted) in [
        ("max-age=1", Err(No::NotAllowed)),
        ("max-age=1, stale-while-revalidate=9", Ok(9)),
        ("max-age=1, stale-if-error=9", Err(No::NotAllowed)),
        ("stale-while-revalidate=0", Err(No::NotAllowed)),
        ("stale-while-revalidate=x", Err(No::NotAllowed)),
        ("stale-while-revalidate=9, must-revalidate", Err(No::MustRevalidate)),
        ("stale-while-revalidate=9, proxy-revalidate", Err(No::ProxyRevalidate)),
        ("stale-while-revalidate=9, no-cache", Err(No::NoCache)),
        ("stale-while-revalidate=9, no-cache=\"a\"", Ok(9)),
        ("stale-while-revalidate=9, s-maxage=1", Err(No::SMaxage)),
    ] {
        let control = CacheControl::parse([text.as_bytes()]);
        assert_eq!(stale(&control, StaleUse::WhileRevalidate, true), wanted, "{text}");
        let swapped = CacheControl {
            stale_if_error: control.stale_while_revalidate,
            stale_while_revalidate: control.stale_if_error,
            ..control
        };
        assert_eq!(stale(&swapped, StaleUse::IfError, true), wanted, "{text}, on errors");
    }
    let both = CacheControl::parse([&b"s-maxage=1, stale-while-revalidate=9"[..]]);
    assert_eq!(stale(&both, StaleUse::WhileRevalidate, false), Ok(9), "as in nginx");
}

#[test]
fn request_directives_limit_reuse() {
    use Refusal as No;
    for (control, lifetime, age, request, wanted) in [
        ("", 10, 0, "", Reuse::Fresh),
        ("", 10, 9, "", Reuse::Fresh),
        ("", 10, 10, "", Reuse::Validate(No::NotAllowed)),
        ("no-cache", 10, 0, "", Reuse::Validate(No::NoCache)),
        ("no-cache=\"a\"", 10, 0, "", Reuse::Fresh),
        ("", 10, 0, "no-cache", Reuse::Validate(No::NoCache)),
        ("", 10, 5, "max-age=5", Reuse::Fresh),
        ("", 10, 6, "max-age=5", Reuse::Validate(No::TooStale)),
        ("", 10, 0, "max-age=0", Reuse::Validate(No::TooStale)),
        ("", 10, 4, "min-fresh=6", Reuse::Fresh),
        ("", 10, 5, "min-fresh=6", Reuse::Validate(No::TooStale)),
        ("", 10, 5, "min-fresh=6, max-stale", Reuse::Validate(No::TooStale)),
        ("", 10, 15, "max-stale", Reuse::Stale),
        ("", 10, 15, "max-stale=5", Reuse::Stale),
        ("", 10, 16, "max-stale=5", Reuse::Validate(No::TooStale)),
        ("", 10, 10, "max-stale=0", Reuse::Stale),
        ("", 10, 15, "max-stale, max-age=14", Reuse::Validate(No::TooStale)),
        ("must-revalidate", 10, 15, "max-stale", Reuse::Validate(No::MustRevalidate)),
        ("s-maxage=10", 10, 15, "max-stale", Reuse::Validate(No::SMaxage)),
        ("", 0, 0, "", Reuse::Validate(No::NotAllowed)),
    ] {
        let control = CacheControl::parse([control.as_bytes()]);
        let directives = RequestCacheControl::parse([request.as_bytes()], []);
        assert_eq!(
            reuse(&control, lifetime, age, &directives),
            wanted,
            "{control:?} {lifetime} {age} {request}"
        );
    }
    assert_eq!(RequestCacheControl::parse([&b"max-stale"[..]], []).max_stale, Some(MaxStale::Any));
}

fn exchange(status: u16) -> Exchange {
    Exchange { status, is_authorized: false, times: NOW }
}

fn verdict(text: &str, exchange: Exchange, rules: &Rules) -> Result<StorageTerms, NotStored> {
    judge(&fields(&text.replace("{later}", MINUTE_LATER).replace("{date}", DATE_TEXT)), exchange, rules)
}

#[test]
fn unstorable_responses_are_refused() {
    use NotStored as No;
    for (text, status, wanted) in [
        ("Cache-Control: max-age=5", 103, Some(No::Interim)),
        ("Cache-Control: max-age=5", 101, Some(No::Interim)),
        ("Cache-Control: max-age=5", 304, Some(No::NotModified)),
        ("Cache-Control: max-age=5", 206, Some(No::Partial)),
        ("Cache-Control: max-age=5", 200, None),
        ("Cache-Control: max-age=5", 500, None),
        ("Cache-Control: max-age=5", 799, None),
        ("X-Accel-Expires: 0\nCache-Control: max-age=5", 200, Some(No::AccelOff)),
        ("X-Accel-Expires: x\nCache-Control: max-age=5", 200, None),
        ("Cache-Control: max-age=5, no-store", 200, Some(No::NoStore)),
        ("Cache-Control: max-age=5, no-store, must-understand", 200, Some(No::NoStore)),
        ("Cache-Control: max-age=5, private", 200, Some(No::Private)),
        ("Cache-Control: max-age=5, private=\"x\"", 200, Some(No::Private)),
        ("Cache-Control: max-age=5, no-cache", 200, Some(No::NoCache)),
        ("Cache-Control: max-age=5, no-cache=\"x\"", 200, None),
        ("Cache-Control: max-age=5, must-understand", 200, None),
        ("Cache-Control: max-age=5, must-understand", 599, Some(No::StatusNotUnderstood)),
        ("Cache-Control: max-age=5\nSet-Cookie: a", 200, Some(No::SetCookie)),
        ("Cache-Control: max-age=5\nVary: a, *", 200, Some(No::VaryAny)),
        ("Cache-Control: max-age=5\nVary: a", 200, None),
        ("", 200, Some(No::NoLifetime)),
        ("Cache-Control: public", 200, Some(No::NoLifetime)),
        ("Cache-Control: max-age=0", 200, Some(No::Expired)),
        // Stored and shared with the requests that waited, although its lifetime has ended.
        ("Cache-Control: max-age=5\nAge: 5", 200, None),
        ("Cache-Control: max-age=5, must-revalidate\nAge: 5", 200, Some(No::Expired)),
        ("Cache-Control: max-age=5\nAge: 4", 200, None),
        ("Expires: 0", 200, Some(No::Expired)),
        ("Expires: {later}", 200, None),
        ("X-Accel-Expires: 5\nCache-Control: no-store, private\nExpires: 0", 200, None),
        ("X-Accel-Expires: 5\nSet-Cookie: a", 200, Some(No::SetCookie)),
        ("X-Accel-Expires: @5", 200, Some(No::Expired)),
    ] {
        assert_eq!(verdict(text, exchange(status), &Rules::default()).err(), wanted, "{text} {status}");
    }
}

#[test]
fn responses_to_credentials_need_a_permission() {
    let authorized = Exchange { is_authorized: true, ..exchange(200) };
    for (text, stored) in [
        ("Cache-Control: max-age=5", false),
        ("Expires: {later}", false),
        ("X-Accel-Expires: 5", false),
        ("Cache-Control: max-age=5, public", true),
        ("Cache-Control: max-age=5, must-revalidate", true),
        ("Cache-Control: s-maxage=5", true),
        ("Cache-Control: max-age=5, proxy-revalidate", false),
    ] {
        let found = verdict(text, authorized, &Rules::default());
        assert_eq!(found.err(), (!stored).then_some(NotStored::Authorization), "{text}");
        let habit = Rules { stores_authorized: true, ..Rules::default() };
        assert_eq!(verdict(text, authorized, &habit).err(), None, "{text}");
    }
}

#[test]
fn configured_rules_are_applied() {
    use LifetimeSource as By;
    let rules = Rules { valid: Some(30), ..Rules::default() };
    for (text, wanted) in [
        ("", Ok((30, By::Configured, 30))),
        ("Age: 20", Ok((30, By::Configured, 30))),
        ("Cache-Control: max-age=50\nAge: 20", Ok((50, By::MaxAge, 30))),
        ("Cache-Control: public", Ok((30, By::Configured, 30))),
        ("X-Accel-Expires: 8\nCache-Control: max-age=50\nAge: 20", Ok((8, By::AccelExpires, 8))),
        ("Cache-Control: private", Err(NotStored::Private)),
        ("Cache-Control: max-age=0", Err(NotStored::Expired)),
        ("Expires: 0", Err(NotStored::Expired)),
        ("Set-Cookie: a", Err(NotStored::SetCookie)),
    ] {
        let found = verdict(text, exchange(200), &rules).map(|found| {
            (found.lifetime.seconds, found.lifetime.source, (found.fresh_until_ms - DATE * 1000) / 1000)
        });
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn ignored_fields_count_as_absent() {
    let all = Ignored {
        cache_control: true,
        expires: true,
        set_cookie: true,
        vary: true,
        accel_expires: true,
        accel_redirect: true,
        accel_buffering: true,
    };
    let text =
        "Cache-Control: private, stale-if-error=9\nExpires: 0\nSet-Cookie: a\nVary: *\nX-Accel-Expires: 0";
    let rules = Rules { valid: Some(30), ignored: all, ..Rules::default() };
    let found = verdict(text, exchange(200), &rules).expect("no remaining field forbids storing");
    assert_eq!((found.lifetime.seconds, found.stale_if_error), (30, 0));
    let each: [(Ignored, NotStored); 5] = [
        (Ignored { accel_expires: false, ..all }, NotStored::AccelOff),
        (Ignored { cache_control: false, ..all }, NotStored::Private),
        (Ignored { set_cookie: false, ..all }, NotStored::SetCookie),
        (Ignored { vary: false, ..all }, NotStored::VaryAny),
        (Ignored { expires: false, ..all }, NotStored::Expired),
    ];
    for (ignored, wanted) in each {
        assert_eq!(
            verdict(text, exchange(200), &Rules { ignored, ..rules }).err(),
            Some(wanted),
            "{ignored:?}"
        );
    }
    let targeted = verdict("CDN-Cache-Control: no-store", exchange(200), &rules);
    assert!(targeted.is_ok(), "targeted fields are ignored with Cache-Control");
}

#[test]
fn responses_that_need_validation_are_stored_if_configured() {
    let rules = Rules { stores_for_validation: true, ..Rules::default() };
    for (text, wanted) in [
        ("Cache-Control: no-cache\nETag: \"a\"", Ok(0)),
        ("Cache-Control: no-cache, max-age=9\nETag: \"a\"", Ok(0)),
        ("Cache-Control: no-cache\nLast-Modified: {date}", Ok(0)),
        ("Cache-Control: max-age=0\nETag: W/\"a\"", Ok(0)),
        ("Cache-Control: max-age=5\nAge: 9\nETag: \"a\"", Ok(-4)),
        ("Cache-Control: no-cache", Err(NotStored::NoCache)),
        ("X-Accel-Expires: 8\nCache-Control: no-cache\nETag: \"a\"", Ok(8)),
        ("Cache-Control: no-cache\nETag: a", Err(NotStored::NoCache)),
        ("Cache-Control: max-age=0", Err(NotStored::Expired)),
        ("ETag: \"a\"", Err(NotStored::NoLifetime)),
        ("Cache-Control: no-store\nETag: \"a\"", Err(NotStored::NoStore)),
    ] {
        let found =
            verdict(text, exchange(200), &rules).map(|found| (found.fresh_until_ms - DATE * 1000) / 1000);
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn stale_responses_are_stored_for_their_stale_windows() {
    for (text, wanted) in [
        ("Cache-Control: max-age=5, stale-while-revalidate=9\nAge: 9", Ok(-4)),
        ("Cache-Control: max-age=5, stale-if-error=9\nAge: 9", Ok(-4)),
        ("Cache-Control: max-age=0, stale-while-revalidate=9", Ok(0)),
        // Without permission for stale use it is for the requests that waited for it.
        ("Cache-Control: max-age=5, stale-while-revalidate=4\nAge: 9", Ok(-4)),
        ("Cache-Control: max-age=5, stale-if-error=9, must-revalidate\nAge: 9", Err(NotStored::Expired)),
        ("X-Accel-Expires: @784111770\nCache-Control: stale-while-revalidate=9", Ok(-7)),
        ("X-Accel-Expires: @784111770\nCache-Control: stale-while-revalidate=7", Err(NotStored::Expired)),
        ("X-Accel-Expires: @784111770", Err(NotStored::Expired)),
        ("X-Accel-Expires: 0\nCache-Control: stale-while-revalidate=9", Err(NotStored::AccelOff)),
    ] {
        let found = verdict(text, exchange(200), &Rules::default())
            .map(|found| (found.fresh_until_ms - DATE * 1000) / 1000);
        assert_eq!(found, wanted, "{text}");
    }
}

/// 0.6 s must not count as 1 s, in particular if the clock enters another second in between.
#[test]
fn ages_are_not_rounded_to_seconds() {
    let at = |request_ms, response_ms| Times {
        request_ms: DATE * 1000 + request_ms,
        response_ms: DATE * 1000 + response_ms,
    };
    let text = format!("Date: {DATE_TEXT}");
    for (times, wanted_ms) in [
        (at(700, 1300), 600),
        (at(950, 1050), 100),
        (at(100, 1000), 900),
        // The clock of the upstream is slightly behind.
        (at(1001, 1020), 21),
        // The response is older than its request.
        (at(2000, 2020), 2000),
    ] {
        assert_eq!(fields(&text).initial_age_ms(times), wanted_ms, "{times:?}");
    }
    let times = at(100, 1000);
    let found = verdict(
        "Date: {date}\nCache-Control: max-age=1",
        Exchange { times, ..exchange(200) },
        &Rules::default(),
    );
    assert_eq!(found.map(|found| found.fresh_until_ms - times.response_ms), Ok(100));
}

#[test]
fn a_verdict_contains_all_times() {
    let text =
        "Date: {date}\nCache-Control: max-age=60, no-cache=\"x\", stale-while-revalidate=5, stale-if-error=7";
    let times = Times { request_ms: DATE * 1000 + 2000, response_ms: DATE * 1000 + 9_700 };
    let found = verdict(text, Exchange { times, ..exchange(200) }, &Rules::default()).expect("stored");
    let wanted = StorageTerms {
        lifetime: Lifetime { seconds: 60, source: LifetimeSource::MaxAge },
        initial_age_ms: 9_000,
        fresh_until_ms: DATE * 1000 + 60_700,
        is_shareable: true,
        stale_while_revalidate: 5,
        stale_if_error: 7,
        must_revalidate: false,
        no_cache: false,
        has_qualified_fields: true,
    };
    assert_eq!(found, wanted);
    let parts = Rules { stores_parts: true, ..Rules::default() };
    assert!(verdict("Cache-Control: max-age=5", exchange(206), &parts).is_ok());
    let guess = Rules { heuristic: Some(Heuristic::default()), valid: None, ..Rules::default() };
    let found = verdict(&format!("Last-Modified: {HOUR_BEFORE}"), exchange(200), &guess).expect("stored");
    assert_eq!(found.lifetime, Lifetime { seconds: 360, source: LifetimeSource::Heuristic });
}

proptest! {
    /// No input causes an overflow, and each stored response is fresh or usable for some time.
    #[test]
    fn no_input_panics(
        control in "(max-age=[0-9]{0,12},?|no-cache,?|s-maxage=[0-9]{1,3},?|public,?){0,3}",
        age in "[0-9x]{0,12}",
        status in 100u16..1000,
        request_ms: i64,
        response_ms: i64,
        valid: Option<u32>,
        is_authorized: bool,
        stores_for_validation: bool,
    ) {
        let text = format!("Cache-Control: {control}\nAge: {age}\nLast-Modified: {HOUR_BEFORE}\nExpires: {MINUTE_LATER}");
        let exchange = Exchange { status, is_authorized, times: Times { request_ms, response_ms } };
        let rules = Rules { valid, stores_for_validation, heuristic: Some(Heuristic::default()), ..Rules::default() };
        if let Ok(found) = judge(&fields(&text), exchange, &rules) {
            prop_assert!(found.lifetime.seconds <= DELTA_SECONDS_MAX || valid.is_some());
            prop_assert!(stores_for_validation || found.is_shareable || found.fresh_until_ms > response_ms || response_ms == i64::MAX);
            // Without a lifetime nobody shares the response.
            prop_assert!(found.lifetime.seconds > 0 || !found.is_shareable);
        }
    }
}

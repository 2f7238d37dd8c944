//! Selection of servers compared with tables of nginx's rules, and the effect of failures, with a simulated clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;

use super::address::Url;
use super::balance::{Choices, Walk};
use super::change::{AddError, ServerChange};
use super::counts::{Counts, Tried};
use super::lines::{Accepts, Draft, FoundAddress, Line, Method, Source};
use super::sticky::{Sticky, StickyKind};
use super::{Ask, Condition, Group, NoPeer, Pick, Selection, ServersZone, TryOutcome, Upstreams};
use site::shared_zone::{Zone, Zones};
use site::template::Template;
use telemetry::traffic::code_index;

/// A try without measurements.
const TRIED: Tried =
    Tried { status: 200, sent: 0, received: 0, connect: None, header: None, response: Duration::ZERO };

/// A group of servers `a`, `b`, … at 10.0.0.1, 10.0.0.2, …, and a clock.
struct Bench {
    group: Arc<Group>,
    now: Instant,
}

fn line(number: usize, change: impl FnOnce(&mut Line)) -> Line {
    let text = format!("10.0.0.{}:80", number + 1);
    let mut line = Line::new(&text, &Url::parse(&text, 80).expect("an address"));
    change(&mut line);
    line
}

fn weighted(weights: &[i64]) -> Vec<Line> {
    weights.iter().enumerate().map(|(number, weight)| line(number, |line| line.weight = *weight)).collect()
}

/// `a` for 10.0.0.1, and so on.
fn letter(pick: &Pick) -> char {
    let last = pick.name.rsplit(['.', ':']).nth(1).and_then(|number| number.parse::<u8>().ok());
    char::from(b'a' + last.expect("an address of these tests") - 1)
}

impl Bench {
    fn new(method: Method, lines: Vec<Line>) -> Bench {
        let mut draft = Draft::new("group");
        draft.lines = lines;
        draft.method = Some(method);
        Bench { group: Arc::new(Group::of_block(draft)), now: Instant::now() }
    }

    /// Makes sessions refer to servers.
    fn with_sticky(&mut self) {
        let group = Arc::get_mut(&mut self.group).expect("nobody else has it yet");
        group.sticky = Some(Sticky { lookup: Vec::new(), kind: StickyKind::Route });
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn select(&self) -> Selection {
        self.select_with(None)
    }

    fn select_with(&self, session: Option<&[u8]>) -> Selection {
        let key = self.group.key().and_then(|key: &Template| key.constant()).unwrap_or_default().into();
        self.group.select(Ask { client: None, key, session: session.map(<[u8]>::to_vec) })
    }

    fn select_by(&self, walk: Walk, hint: Option<&[u8]>) -> Selection {
        self.group.selection(Choices::new(walk, hint.map(<[u8]>::to_vec)), None)
    }

    /// Makes one request, to which the first server responds.
    fn one(&self) -> char {
        self.tried(self.select(), "")
    }

    /// Makes one request; the servers in `failing` fail. Returns the server that responded, `-` for none.
    fn tried(&self, mut selection: Selection, failing: &str) -> char {
        loop {
            let Ok(pick) = selection.choose(self.now) else { return '-' };
            let name = letter(&pick);
            if !failing.contains(name) {
                selection.record_outcome(pick, TryOutcome::Responded, &TRIED, self.now);
                return name;
            }
            selection.record_outcome(pick, TryOutcome::Failed, &TRIED, self.now);
            if selection.tries() == 0 {
                return '-';
            }
        }
    }

    fn run(&self, requests: usize) -> String {
        (0..requests).map(|_| self.one()).collect()
    }

    fn run_failing(&self, requests: usize, failing: &str) -> String {
        (0..requests).map(|_| self.tried(self.select(), failing)).collect()
    }
}

#[test]
fn weighted_servers_are_interleaved_smoothly() {
    for (weights, expected) in [
        (&[1, 1, 1][..], "abcabc"),
        (&[5, 1, 1], "aabacaaaabacaa"),
        // Computed by hand: 3,2 a; 1,4 b; 4,1 a; 2,3 b; 5,0 a.
        (&[3, 2], "ababaababa"),
        (&[1], "aaaa"),
    ] {
        let bench = Bench::new(Method::RoundRobin, weighted(weights));
        assert_eq!(bench.run(expected.len()), expected, "{weights:?}");
    }
}

#[test]
fn a_failed_server_is_avoided_and_retried_occasionally() {
    let mut bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    assert_eq!(bench.run_failing(4, "a"), "bbbb");
    // It is unavailable for more than ten seconds; then one request is sent to it and fails.
    bench.pass(10);
    assert_eq!(bench.run(2), "bb");
    bench.pass(1);
    let first = bench.run_failing(3, "a");
    assert_eq!(first, "bbb");
    bench.pass(11);
    let healthy = bench.run(8);
    assert!(healthy.contains('a'), "{healthy}");
}

#[test]
fn no_server_is_tried_twice_for_one_request() {
    let bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    let mut selection = bench.select();
    assert_eq!(selection.tries(), 2);
    let first = selection.choose(bench.now).expect("the first");
    selection.record_outcome(first, TryOutcome::Failed, &TRIED, bench.now);
    assert_eq!(selection.tries(), 1);
    let second = selection.choose(bench.now).expect("the second");
    selection.record_outcome(second, TryOutcome::Failed, &TRIED, bench.now);
    assert_eq!((selection.tries(), selection.choose(bench.now).err()), (0, Some(NoPeer::Busy)));
}

fn hash(text: &str) -> Method {
    Method::Hash(Template::text(text))
}

#[test]
fn weights_are_obeyed_over_many_requests() {
    let bench = Bench::new(Method::RoundRobin, weighted(&[7, 3, 2, 1, 1]));
    let run = bench.run(14 * 50);
    let count = |name| run.matches(name).count();
    assert_eq!(["a", "b", "c", "d", "e"].map(count), [350, 150, 100, 50, 50]);
}

#[test]
fn failures_reduce_the_weight_which_recovers_gradually() {
    let mut bench = Bench::new(
        Method::RoundRobin,
        vec![line(0, |line| (line.weight, line.max_fails) = (4, 2)), line(1, |line| line.weight = 4)],
    );
    // One of two permitted failures: it still gets requests, with half its weight.
    assert_eq!(bench.run_failing(1, "a"), "b");
    let effective = |bench: &Bench| bench.group.state().lock().sets[0].peers[0].effective;
    assert_eq!(effective(&bench), 2);
    bench.pass(1);
    assert_eq!(bench.run(2).len(), 2);
    assert_eq!(effective(&bench), 4);
}

#[test]
fn only_a_successful_later_try_clears_failures() {
    let mut bench = Bench::new(
        Method::RoundRobin,
        vec![line(0, |line| (line.max_fails, line.fail_timeout) = (2, 5)), line(1, |_| {})],
    );
    let fails = |bench: &Bench| bench.group.state().lock().sets[0].peers[0].fails;
    assert_eq!(bench.run_failing(1, "a"), "b");
    assert_eq!(bench.run(4), "baba");
    // Within five seconds after the failure no check has taken place.
    assert_eq!(fails(&bench), 1);
    bench.pass(6);
    assert_eq!(bench.run(2), "ba");
    assert_eq!(fails(&bench), 0);
}

#[test]
fn one_request_at_a_time_retries_a_server_after_fail_timeout() {
    let mut bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    assert_eq!(bench.run_failing(1, "a"), "b");
    bench.pass(11);
    let mut first = bench.select();
    let mut picks = Vec::new();
    let mut seen = String::new();
    for _ in 0..6 {
        let pick = bench.select().choose(bench.now).expect("b is there");
        seen.push(letter(&pick));
        picks.push(pick);
    }
    assert_eq!(seen.matches('a').count(), 1, "{seen}");
    let probe = picks.into_iter().find(|pick| letter(pick) == 'a').expect("it is one of them");
    assert!(!first.record_outcome(probe, TryOutcome::Responded, &TRIED, bench.now));
    assert!(bench.run(4).contains('a'), "it is back");
}

#[test]
fn a_single_server_is_tried_despite_failures() {
    let bench = Bench::new(Method::LeastConn, weighted(&[1]));
    assert_eq!(bench.run_failing(3, "a"), "---");
    assert_eq!(bench.run(1), "a");
    let mut selection = bench.select();
    let pick = selection.choose(bench.now).expect("the only one");
    assert!(!selection.record_outcome(pick, TryOutcome::Failed, &TRIED, bench.now), "it is not left alone");
    assert_eq!(selection.tries(), 0);
}

#[test]
fn a_server_is_logged_when_it_becomes_unavailable() {
    let lines = vec![line(0, |line| line.max_fails = 2), line(1, |line| line.max_fails = 0)];
    let bench = Bench::new(Method::RoundRobin, lines);
    let mut told = String::new();
    for _ in 0..6 {
        let mut selection = bench.select();
        let pick = selection.choose(bench.now).expect("one is there");
        let name = letter(&pick);
        if selection.record_outcome(pick, TryOutcome::Failed, &TRIED, bench.now) {
            told.push(name);
        }
    }
    assert_eq!(told, "a", "b counts no failures");
}

#[test]
fn backups_are_used_when_no_other_server_is_available() {
    let lines = vec![line(0, |_| {}), line(1, |_| {}), line(2, |line| line.backup = true)];
    let mut bench = Bench::new(Method::RoundRobin, lines);
    assert_eq!(bench.select().tries(), 3);
    assert_eq!(bench.run(4), "abab");
    assert_eq!(bench.run_failing(1, "ab"), "c");
    assert_eq!(bench.run(3), "ccc");
    bench.pass(11);
    assert_ne!(bench.run(1), "c");
    assert_eq!(bench.run_failing(1, "abc"), "-");
}

#[test]
fn a_single_server_with_a_backup_can_become_unavailable() {
    let lines = vec![line(0, |_| {}), line(1, |line| line.backup = true)];
    for method in [Method::RoundRobin, Method::LeastConn, hash("x")] {
        let bench = Bench::new(method, lines.clone());
        assert_eq!(bench.run(2), "aa");
        assert_eq!(bench.run_failing(1, "a"), "b");
        assert_eq!(bench.run(2), "bb");
    }
}

#[test]
fn down_servers_are_never_used_and_draining_ones_only_by_sessions() {
    let down = |down| move |line: &mut Line| (line.accepts, line.route) = (down, Some("x".into()));
    for (state, sessions) in [(Accepts::Nothing, "bbb"), (Accepts::Sessions, "aaa")] {
        let mut bench = Bench::new(Method::RoundRobin, vec![line(0, down(state)), line(1, |_| {})]);
        bench.with_sticky();
        assert_eq!(bench.select().tries(), 1);
        assert_eq!(bench.run(3), "bbb");
        let found: String =
            (0..3).map(|_| bench.tried(bench.select_by(Walk::Rounds, Some(b"x")), "")).collect();
        assert_eq!(found, sessions);
    }
    let bench = Bench::new(Method::RoundRobin, vec![line(0, down(Accepts::Nothing))]);
    assert_eq!(bench.select().choose(bench.now).err(), Some(NoPeer::Busy));
}

#[test]
fn no_server_has_more_requests_than_max_conns() {
    for method in [
        Method::RoundRobin,
        Method::LeastConn,
        Method::LeastTime { full_response: true, inflight: true },
        Method::IpHash,
        hash("x"),
        Method::Ring(Template::text("x")),
        Method::Random { two: false },
        Method::Random { two: true },
    ] {
        let lines = (0..3).map(|number| line(number, |line| line.max_conns = 2)).collect();
        let bench = Bench::new(method.clone(), lines);
        let picks: Vec<Pick> = (0..6).map_while(|_| bench.select().choose(bench.now).ok()).collect();
        assert_eq!(picks.len(), 6, "{method:?}");
        let names: String = picks.iter().map(letter).collect();
        for name in ["a", "b", "c"] {
            assert_eq!(names.matches(name).count(), 2, "{method:?}: {names}");
        }
        assert_eq!(bench.select().choose(bench.now).err(), Some(NoPeer::Busy), "{method:?}");
        drop(picks);
        assert!(bench.select().choose(bench.now).is_ok(), "{method:?}");
    }
    let bench = Bench::new(Method::RoundRobin, vec![line(0, |line| line.max_conns = 1)]);
    let pick = bench.select().choose(bench.now);
    assert_eq!(bench.select().choose(bench.now).err(), Some(NoPeer::Busy));
    drop(pick);
    assert_eq!(bench.run(1), "a");
}

#[test]
fn the_least_loaded_by_weight_is_next_and_equals_alternate() {
    let bench = Bench::new(Method::LeastConn, weighted(&[2, 1, 1]));
    // Idle servers are chosen in round robin, by weight.
    assert_eq!(bench.run(8), "abcaabca");
    let held: Vec<Pick> = (0..8).map(|_| bench.select().choose(bench.now).expect("there is one")).collect();
    let names: String = held.iter().map(letter).collect();
    assert_eq!(["a", "b", "c"].map(|name| names.matches(name).count()), [4, 2, 2], "{names}");
    // A server that completes a request gets the next one.
    let mut held = held;
    let place = held.iter().position(|pick| letter(pick) == 'c').expect("it has two");
    held.remove(place);
    assert_eq!(bench.one(), 'c');
}

#[test]
fn the_fastest_server_is_next_until_it_is_overloaded() {
    for (full_response, inflight) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bench = Bench::new(Method::LeastTime { full_response, inflight }, weighted(&[1, 1]));
        // Without measurements the servers alternate; then a responds in 100 ms and b in 10 ms.
        for _ in 0..4 {
            let mut selection = bench.select();
            let mut pick = selection.choose(bench.now).expect("there is one");
            let ms = if letter(&pick) == 'a' { 100 } else { 10 };
            bench.now += Duration::from_millis(ms);
            pick.note_header(bench.now);
            selection.record_outcome(pick, TryOutcome::Responded, &TRIED, bench.now);
        }
        let mut names = String::new();
        let mut held = Vec::new();
        for _ in 0..7 {
            let pick = bench.select().choose(bench.now).expect("there is one");
            names.push(letter(&pick));
            held.push(pick);
        }
        // Server b has 20 ms per request: its sixth request is expected after 120 ms, like the first request at a.
        let case = format!("{full_response} {inflight}: {names}");
        assert!(names.starts_with("bbbbb"), "{case}");
        assert!(names.contains('a'), "{case}");
    }
}

#[test]
fn ip_hash_selects_a_server_by_the_client_network() {
    // (89 * 113 + byte) % 6271 over three bytes, modulo the sum of the weights: computed by hand.
    let expected = |ip: [u8; 4], weights: &[i64]| {
        let hash = ip[..3].iter().fold(89_u32, |hash, byte| (hash * 113 + u32::from(*byte)) % 6271);
        let mut left = i64::from(hash) % weights.iter().sum::<i64>();
        let place = weights.iter().position(|weight| {
            left -= weight;
            left < 0
        });
        char::from(b'a' + place.expect("it is below the sum") as u8)
    };
    let weights = [3, 1, 2];
    let bench = Bench::new(Method::IpHash, weighted(&weights));
    let of = |ip: &str| {
        let walk = Walk::address(ip.parse().ok());
        bench.tried(bench.select_by(walk, None), "")
    };
    let mut seen = String::new();
    for network in 0..60_u8 {
        let ip = [10, network, 3 * network, 7];
        let name = of(&format!("{}.{}.{}.{}", ip[0], ip[1], ip[2], ip[3]));
        assert_eq!(name, expected(ip, &weights), "{ip:?}");
        assert_eq!(name, of(&format!("{}.{}.{}.99", ip[0], ip[1], ip[2])), "the last byte does not count");
        seen.push(name);
    }
    assert!("abc".chars().all(|name| seen.contains(name)), "{seen}");
    let v6: String = (0..40).map(|number| of(&format!("2001:db8::{number:x}"))).collect();
    assert!("abc".chars().all(|name| v6.contains(name)), "all bytes count: {v6}");
    assert_eq!(of("no address"), expected([0; 4], &weights), "who comes over a unix socket");
}

#[test]
fn a_key_selects_the_same_server_until_it_fails() {
    let bench = Bench::new(hash("key"), weighted(&[1, 1, 1, 1]));
    let first = bench.one();
    assert_eq!(bench.run(5), first.to_string().repeat(5));
    let second = bench.tried(bench.select(), &first.to_string());
    assert_ne!(first, second);
    // Cache::Memcached's formula.
    let hashed = |text: &str| crc32fast::hash(text.as_bytes()) >> 16 & 0x7fff;
    let place = |hash: u32| char::from(b'a' + (hash % 4) as u8);
    assert_eq!(first, place(hashed("key")));
    let mut sum = hashed("key");
    let next = (1..).map(|count| {
        sum += hashed(&format!("{count}key"));
        place(sum)
    });
    assert_eq!(Some(second), next.take(20).find(|name| *name != first));
}

#[test]
fn an_empty_key_and_a_single_server_use_round_robin() {
    for method in [hash(""), Method::Ring(Template::text(""))] {
        assert_eq!(Bench::new(method.clone(), weighted(&[1, 1])).run(4), "abab");
        assert_eq!(Bench::new(method, weighted(&[1])).run(2), "aa");
    }
}

#[test]
fn a_key_moves_to_the_next_point_of_the_hash_ring() {
    let bench = Bench::new(Method::Ring(Template::text("key")), weighted(&[1, 1, 1]));
    let first = bench.one();
    assert_eq!(bench.run(3), first.to_string().repeat(3));
    let second = bench.tried(bench.select(), &first.to_string());
    assert!(second != first && second != '-');
    assert_eq!(bench.run(3), second.to_string().repeat(3), "the first is left alone");
}

#[test]
fn random_selection_follows_the_weights() {
    let bench = Bench::new(Method::Random { two: false }, weighted(&[8, 1, 1]));
    let run = bench.run(4000);
    let share = run.matches('a').count() as f64 / 4000.0;
    assert!((0.76..0.84).contains(&share), "{share}");
    // Of two random servers the less loaded is used: with equal weights, a busy server is never chosen.
    let bench = Bench::new(Method::Random { two: true }, weighted(&[1, 1]));
    let busy = bench.select().choose(bench.now).expect("there is one");
    let other = if letter(&busy) == 'a' { 'b' } else { 'a' };
    assert_eq!(bench.run(20), other.to_string().repeat(20));
}

#[test]
fn a_recovered_server_regains_its_weight_gradually() {
    let slow = |line: &mut Line| line.slow_start_ms = 20_000;
    let mut bench = Bench::new(Method::RoundRobin, vec![line(0, slow), line(1, |_| {})]);
    assert_eq!(bench.run(4), "abab", "at first there is nothing to come back from");
    assert_eq!(bench.run_failing(1, "a"), "b");
    bench.pass(11);
    // It starts with a deficit, and without the weight that the failure removed.
    assert_eq!(bench.run(8).matches('a').count(), 1, "one request tries it");
    let mut shares = Vec::new();
    for _ in 0..4 {
        bench.pass(5);
        let run = bench.run(200);
        shares.push(run.matches('a').count());
    }
    assert!(shares.is_sorted(), "{shares:?}");
    // After 5 of 20 s the server has a quarter of its weight, a fifth of all requests; after 20 s it has half of them.
    assert!((36..46).contains(&shares[0]) && (96..104).contains(&shares[3]), "{shares:?}");
}

#[test]
fn a_session_uses_its_server_while_it_is_available() {
    let route = |name: &'static str| move |line: &mut Line| line.route = Some(name.into());
    for method in [
        Method::RoundRobin,
        Method::LeastConn,
        Method::LeastTime { full_response: false, inflight: false },
        Method::IpHash,
        hash("x"),
        Method::Ring(Template::text("x")),
        Method::Random { two: true },
    ] {
        let lines = vec![line(0, route("one")), line(1, route("two")), line(2, |_| {})];
        let mut bench = Bench::new(method.clone(), lines);
        bench.with_sticky();
        let of = |hint: &[u8], failing: &str| bench.tried(bench.select_with(Some(hint)), failing);
        let all = |hint: &[u8]| (0..10).map(|_| of(hint, "")).collect::<String>();
        assert_eq!(all(b"two"), "bbbbbbbbbb", "{method:?}");
        // Without a route, the ID of a server is the MD5 hash of its address.
        assert_eq!(all(b"a3d2ad0ca0a1a7b1ef0e9b8a4ee9c4ba").len(), 10);
        assert_ne!(of(b"two", "b"), 'b', "{method:?}: another one answers");
        assert_ne!(of(b"two", ""), 'b', "{method:?}: it is left alone");
        assert_ne!(of(b"nobody", ""), '-', "{method:?}");
    }
}

#[test]
fn sessions_do_not_change_the_round_robin_order() {
    let mut bench =
        Bench::new(Method::RoundRobin, vec![line(0, |line| line.route = Some("x".into())), line(1, |_| {})]);
    bench.with_sticky();
    for _ in 0..20 {
        bench.tried(bench.select_by(Walk::Rounds, Some(b"x")), "");
    }
    // The deficit of twenty requests is limited to that of one: afterwards the servers alternate again.
    let run = bench.run(6);
    assert!(run.starts_with('b') && run.matches('a').count() >= 2, "{run}");
}

#[test]
fn resolved_addresses_are_set_and_retain_their_state() {
    let url = Url::parse("name.example:81", 80).expect("a name");
    let named = || Line::new("name.example:81", &url);
    let mut bench = Bench::new(Method::RoundRobin, vec![named()]);
    assert_eq!(bench.select().choose(bench.now).err(), Some(NoPeer::Unresolved));
    let group = Arc::clone(&bench.group);
    let name = group.names().next().expect("there is one").clone();
    assert_eq!((name.host.as_str(), name.port), ("name.example", 81));
    let put = |numbers: &[u8]| {
        let found = numbers.iter().map(|number| found(&format!("10.0.0.{number}:81"))).collect();
        group.put(&name, found, || ());
    };
    put(&[1, 2]);
    assert_eq!(bench.select().tries(), 2);
    assert_eq!(bench.run(4), "abab");
    let mut selection = bench.select();
    let held = selection.choose(bench.now).expect("the first");
    assert_eq!((letter(&held), &*held.server), ('a', "name.example:81"));
    assert_eq!(bench.run_failing(1, "b"), "a");
    // Another order and a new address: the state of remaining servers is preserved.
    put(&[2, 3, 1]);
    assert_eq!(bench.run(4).matches('b').count(), 0, "it failed");
    put(&[2, 3]);
    selection.record_outcome(held, TryOutcome::Failed, &TRIED, bench.now);
    bench.pass(11);
    assert!(bench.run(4).contains('b'));
    put(&[]);
    assert_eq!(bench.select().choose(bench.now).err(), Some(NoPeer::Busy), "it is known to have none");
}

fn found(address: &str) -> FoundAddress {
    let url = Url::parse(address, 80).expect("an address");
    let address = url.address().expect("no name").clone();
    FoundAddress { address: address.into(), server: None, weight: 1, priority: 0 }
}

#[test]
fn srv_records_provide_weights_names_and_backups() {
    let url = Url::parse("name.example", 80).expect("a name");
    let mut line = Line::new("name.example", &url);
    let Source::Named(named) = &mut line.source else { panic!("it is a name") };
    named.service = Some("http".into());
    let named = named.clone();
    let bench = Bench::new(Method::RoundRobin, vec![line]);
    let service = |address: &str, weight, priority| FoundAddress {
        server: Some("srv.example".into()),
        weight,
        priority,
        ..found(address)
    };
    bench.group.put(
        &named,
        vec![service("10.0.0.1:1", 3, 5), service("10.0.0.2:2", 1, 5), service("10.0.0.3:3", 1, 9)],
        || (),
    );
    let run = bench.run(8);
    assert_eq!((run.matches('a').count(), run.matches('b').count()), (6, 2), "{run}");
    assert_eq!(bench.run_failing(1, "ab"), "c");
    let pick = bench.select().choose(bench.now).expect("the backup");
    assert_eq!(&*pick.server, "srv.example");
    // A change of one server applies to all servers of the directive.
    let first = bench.group.peers(bench.now)[0].id;
    let down = ServerChange { down: Some(true), ..ServerChange::default() };
    assert!(bench.group.change(first, &down));
    let conditions: Vec<_> = bench.group.peers(bench.now).iter().map(|peer| peer.condition).collect();
    assert_eq!(conditions, [Condition::Down; 3]);
    assert!(bench.group.remove(first));
    assert!(bench.group.peers(bench.now).is_empty());
}

#[test]
fn a_request_continues_while_servers_are_added_and_removed() {
    let url = Url::parse("name.example", 80).expect("a name");
    for method in [Method::RoundRobin, Method::Ring(Template::text("x")), hash("x")] {
        let bench = Bench::new(method.clone(), vec![Line::new("name.example", &url), line(8, |_| {})]);
        let named = bench.group.names().next().expect("there is one").clone();
        bench.group.put(&named, vec![found("10.0.0.1:80"), found("10.0.0.2:80")], || ());
        let mut selection = bench.select();
        let mut names = String::new();
        for round in 0..3_u8 {
            let pick = selection.choose(bench.now).expect("one is left");
            names.push(letter(&pick));
            selection.record_outcome(pick, TryOutcome::Failed, &TRIED, bench.now);
            bench.group.put(
                &named,
                vec![found("10.0.0.2:80"), found(&format!("10.0.0.{}:80", round + 3))],
                || (),
            );
        }
        let mut once: Vec<char> = names.chars().collect();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), 3, "{method:?}: nobody twice: {names}");
    }
}

/// Creates a statement, for code that needs its file and line.
fn statement() -> conf::Statement {
    let loader: conf::MapLoader = [("/a", "server a;")].into_iter().collect();
    let tree = conf::parse(&conf::Source::new("/a"), &loader).expect("a statement");
    tree.statements.into_iter().next().expect("a statement")
}

/// Creates the groups of a configuration with the block `u`, and its zones.
fn configured(lines: Vec<Line>, zone: Option<u64>, change: impl FnOnce(&mut Draft)) -> (Upstreams, Zones) {
    let (mut upstreams, mut zones) = (Upstreams::default(), Zones::default());
    let share = |bytes| zones.share("one", Some(bytes), ServersZone, &statement()).expect("a zone");
    let zone: Option<Arc<Zone<ServersZone>>> = zone.map(share);
    let mut draft = Draft { lines, zone, ..Draft::new("u") };
    change(&mut draft);
    upstreams.add_block(draft);
    (upstreams, zones)
}

fn group_of(upstreams: &Upstreams) -> Arc<Group> {
    Arc::clone(upstreams.find(b"u", 80, false).expect("it is there"))
}

#[test]
fn a_reload_retains_the_state_of_the_same_zone() {
    let begin = |first: Option<u64>, second: Option<u64>, change: fn(&mut Draft)| {
        let (before, zones) = configured(weighted(&[1, 1]), first, |_| {});
        zones.begin(&Zones::default());
        before.begin(&Upstreams::default());
        let bench = |upstreams: &Upstreams| Bench { group: group_of(upstreams), now: Instant::now() };
        let old = bench(&before);
        assert_eq!(old.run_failing(1, "a"), "b");
        let held = old.select().choose(old.now);
        let (after, next_zones) = configured(weighted(&[1, 1]), second, change);
        next_zones.begin(&zones);
        after.begin(&before);
        let new = bench(&after);
        let fails = new.run(4).matches('a').count() == 0;
        let counted = new.group.state().lock().sets[0].peers[1].conns;
        drop(held);
        (fails, counted, new.group.state().lock().sets[0].peers[1].conns)
    };
    const SIZE: Option<u64> = Some(64 << 10);
    assert_eq!(begin(SIZE, SIZE, |_| {}), (true, 1, 0));
    let changed = |draft: &mut Draft| {
        draft.lines.push(line(2, |line| line.weight = 2));
        draft.method = Some(Method::LeastConn);
    };
    assert_eq!(begin(SIZE, SIZE, changed), (true, 1, 0));
    assert_eq!(begin(SIZE, Some(128 << 10), |_| {}), (false, 0, 0));
    assert_eq!(begin(SIZE, None, |_| {}), (false, 0, 0));
    assert_eq!(begin(None, None, |_| {}), (false, 0, 0));
}

/// Creates a line with a name; `at_run_time` is whether a configured resolver resolves it.
fn name_line(text: &str, at_run_time: bool, service: Option<&str>) -> Line {
    let mut line = Line::new(text, &Url::parse(text, 80).expect("a name"));
    if let Source::Named(named) = &mut line.source {
        (named.at_run_time, named.service) = (at_run_time, service.map(str::to_owned));
    }
    line
}

#[test]
fn resolved_addresses_are_passed_to_the_next_configuration() {
    let (before, _) = configured(vec![name_line("name.example", false, None)], None, |_| {});
    before.begin(&Upstreams::default());
    let named = group_of(&before).names().next().expect("there is one").clone();
    group_of(&before).put(&named, vec![found("10.0.0.1:80")], || ());
    let lines = vec![name_line("name.example", false, None), line(1, |line| line.backup = true)];
    let (after, _) = configured(lines, None, |_| {});
    after.begin(&before);
    let bench = Bench { group: group_of(&after), now: Instant::now() };
    assert_eq!(bench.run(1), "a");
}

#[test]
fn a_name_with_a_changed_port_or_lookup_retains_its_addresses() {
    let begin = |before: &Upstreams, after: &Upstreams| {
        before.begin(&Upstreams::default());
        let group = before.groups().next().expect("there is one");
        for named in group.names() {
            group.put(named, vec![found("10.0.0.1:80")], || ());
        }
        after.begin(before);
        after.groups().next().expect("there is one").addresses()
    };
    let block = |line: Line| configured(vec![line], None, |_| {}).0;
    for (changed, expected) in [
        (name_line("name.example:81", true, None), vec!["10.0.0.1:81"]),
        (Line { weight: 2, ..name_line("NAME.example", true, None) }, vec!["10.0.0.1:80"]),
        (name_line("name.example", false, None), vec!["10.0.0.1:80"]),
        (name_line("other.example", true, None), vec![]),
        (name_line("name.example", true, Some("http")), vec![]),
    ] {
        let what = format!("{changed:?}");
        assert_eq!(begin(&block(name_line("name.example", true, None)), &block(changed)), expected, "{what}");
    }
    let pass = |text: &str| {
        let mut upstreams = Upstreams::default();
        let url = Url::parse(text, 80).expect("an address");
        upstreams.of_address(&url, statement().span()).expect("a group");
        upstreams
    };
    assert_eq!(begin(&pass("name.example:80"), &pass("name.example:8080")), ["10.0.0.1:8080"]);
}

#[test]
fn equal_addresses_share_a_group_and_blocks_have_no_port() {
    let statement = statement();
    let place = statement.span();
    let mut upstreams = Upstreams::default();
    let mut of = |text: &str| upstreams.of_address(&Url::parse(text, 80).expect("an address"), place);
    let (first, same) = (of("a.example"), of("A.example:80"));
    assert!(Arc::ptr_eq(&first.expect("a group"), &same.expect("a group")));
    let other = of("a.example:81").expect("a group");
    assert_eq!((other.port, other.keepalive), (Some(81), None));
    let bench = Bench { group: of("10.0.0.7").expect("a group"), now: Instant::now() };
    assert_eq!(bench.run_failing(3, "g"), "---");
    assert_eq!(bench.run(2), "gg");
    let mut draft = Draft::new("block");
    draft.lines = weighted(&[1]);
    upstreams.add_block(draft);
    let mut of = |text: &str| upstreams.of_address(&Url::parse(text, 80).expect("an address"), place);
    assert_eq!(of("BLOCK").expect("the block's").name, "block");
    let fault = of("block:80").expect_err("it may not have one");
    assert_eq!(fault.to_string(), "upstream \"block\" may not have port 80");
}

proptest! {
    /// For any sequence of events: no server gets a request twice, none exceeds its limit, and at the end none has requests.
    #[test]
    fn any_event_sequence_counts_requests_correctly(
        method in 0..8_usize,
        limits in vec((1..5_i64, 0..4_u64, 0..3_u64, any::<bool>()), 1..7),
        steps in vec((0..6_u8, any::<bool>(), 0..8_u64), 1..60),
    ) {
        let methods = [
            Method::RoundRobin,
            Method::LeastConn,
            Method::LeastTime { full_response: true, inflight: true },
            Method::IpHash,
            hash("x"),
            Method::Ring(Template::text("x")),
            Method::Random { two: false },
            Method::Random { two: true },
        ];
        let lines = limits.iter().enumerate().map(|(number, (weight, max_conns, max_fails, backup))| {
            line(number, |line| {
                (line.weight, line.max_conns, line.max_fails) = (*weight, *max_conns, *max_fails);
                line.backup = *backup && number > 0;
            })
        });
        let mut bench = Bench::new(methods[method].clone(), lines.collect());
        let mut open: Vec<(Selection, Vec<char>, Option<Pick>)> = Vec::new();
        for (action, fails, seconds) in steps {
            bench.pass(seconds);
            match action {
                0..3 => open.push((bench.select(), Vec::new(), None)),
                3 => drop(open.pop()),
                _ => {}
            }
            for (selection, names, pick) in &mut open {
                if let Some(pick) = pick.take() {
                    let outcome = if fails { TryOutcome::Failed } else { TryOutcome::Responded };
                    selection.record_outcome(pick, outcome, &TRIED, bench.now);
                }
                if let Ok(next) = selection.choose(bench.now) {
                    let name = letter(&next);
                    if limits.len() > 1 {
                        prop_assert!(!names.contains(&name), "{name} twice");
                        names.push(name);
                    }
                    *pick = Some(next);
                }
            }
            let state = bench.group.state().lock();
            for peer in state.sets.iter().flat_map(|set| &set.peers) {
                prop_assert!(peer.max_conns == 0 || peer.conns <= peer.max_conns);
                prop_assert!((0..=peer.weight).contains(&peer.effective));
            }
        }
        drop(open);
        let state = bench.group.state().lock();
        prop_assert!(state.sets.iter().flat_map(|set| &set.peers).all(|peer| peer.conns == 0));
    }
}

#[test]
fn choosing_a_server_allocates_nothing() {
    for method in [Method::RoundRobin, Method::LeastConn, Method::Random { two: true }] {
        for weights in [&[1][..], &[3, 1, 1]] {
            let bench = Bench::new(method.clone(), weighted(weights));
            bench.one();
            let counted = allocation_counter::measure(|| {
                bench.one();
            });
            assert_eq!(counted.count_total, 0, "{method:?} {weights:?}");
        }
    }
}

#[test]
fn threads_share_a_group_while_its_servers_change() {
    const REQUESTS: usize = 3000;
    let url = Url::parse("name.example", 80).expect("a name");
    for method in [Method::RoundRobin, Method::LeastConn, Method::Ring(Template::text("x"))] {
        let lines = vec![Line::new("name.example", &url), line(8, |line| line.max_conns = 2)];
        let bench = Bench::new(method, lines);
        let named = bench.group.names().next().expect("there is one").clone();
        let answered: usize = std::thread::scope(|scope| {
            let ask = || (0..REQUESTS).filter(|_| bench.tried(bench.select(), "a") != '-').count();
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
            for round in 0..300_usize {
                let all = [found("10.0.0.1:80"), found("10.0.0.2:80"), found("10.0.0.3:80")];
                bench.group.put(&named, all[..round % 3 + 1].to_vec(), || ());
            }
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
        });
        assert!(answered > 0);
        let state = bench.group.state().lock();
        assert!(state.sets.iter().flat_map(|set| &set.peers).all(|peer| peer.conns == 0));
    }
}

#[test]
fn tries_are_counted_and_the_counts_survive_a_reload() {
    let bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    let mut selection = bench.select();
    for (status, outcome) in [(502, TryOutcome::Failed), (200, TryOutcome::Responded)] {
        let pick = selection.choose(bench.now).expect("a server");
        let tried = Tried { status, received: 100, header: Some(Duration::from_millis(1)), ..TRIED };
        selection.record_outcome(pick, outcome, &tried, bench.now);
    }
    // The next configuration has one of the two servers, in no zone.
    let mut draft = Draft::new("group");
    draft.lines = vec![line(1, |_| {})];
    let after = Group::of_block(draft);
    after.begin(Some(&bench.group));
    let now = bench.now;
    let counts = |group: &Group| group.peers(now).into_iter().map(|peer| peer.counts).collect::<Vec<_>>();
    let found = counts(&bench.group);
    let facts = |counts: &Counts| (counts.chosen, counts.fails, counts.unavailable, counts.received);
    assert_eq!([facts(&found[0]), facts(&found[1])], [(1, 1, 1, 100), (1, 0, 0, 100)]);
    assert_eq!((found[0].codes[code_index(502)], found[1].header.count()), (1, 1));
    let kept = counts(&after);
    assert_eq!((kept.len(), facts(&kept[0])), (1, (1, 0, 0, 100)));
}

#[test]
fn servers_change_while_they_have_requests() {
    let bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    let (mut selection, now) = (bench.select(), bench.now);
    let pick = selection.choose(now).expect("a server");
    let id = |name: &str| {
        let peers = bench.group.peers(now);
        peers.iter().find(|peer| peer.name.starts_with(name)).map(|peer| peer.id)
    };
    let first = id("10.0.0.1").expect("it is there");
    let down = ServerChange { down: Some(true), drain: Some(false), ..ServerChange::default() };
    assert!(bench.group.change(first, &down) && !bench.group.change(99, &down));
    assert_eq!(bench.run(3), "bbb");
    let state = &bench.group.peers(now)[0];
    assert_eq!((state.active, state.condition), (1, Condition::Down), "its request goes on");
    selection.record_outcome(pick, TryOutcome::Responded, &TRIED, now);
    let url = |text: &str| Url::parse(text, 80).expect("an address");
    let add = |text: &str| bench.group.add(text, &url(text), &ServerChange::default());
    assert_eq!(add("10.0.0.3:80"), Ok(()));
    assert_eq!([add("10.0.0.3:80"), add("name:80")], [Err(AddError::Duplicate), Err(AddError::Name)]);
    let drained = ServerChange { drain: Some(false), ..ServerChange::default() };
    assert!(bench.group.change(first, &drained), "a server that is down stays down");
    assert!(bench.group.remove(id("10.0.0.2").expect("it is there")));
    assert_eq!((bench.run(2).as_str(), id("10.0.0.2")), ("cc", None));
}

//! Which servers are chosen, against tables that nginx's rules give, and what failures do, on a clock of the tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::address::Url;
use super::balance::{Course, Walk};
use super::lines::{Draft, Line, Method};
use super::{Group, NoPeer, Outcome, Pick, Selection};

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

/// `a` for 10.0.0.1 and so on.
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

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn select(&self) -> Selection {
        let walk = self.group.walk(|| None, |template| template.constant().unwrap_or_default().into());
        self.select_by(walk, None)
    }

    fn select_by(&self, walk: Walk, hint: Option<&[u8]>) -> Selection {
        self.group.selection(Course::new(walk, hint.map(<[u8]>::to_vec)), None)
    }

    /// One request that the first server answers.
    fn one(&self) -> char {
        self.tried(self.select(), "")
    }

    /// One request: the servers in `failing` fail. Answers who answered, `-` for nobody.
    fn tried(&self, mut selection: Selection, failing: &str) -> char {
        loop {
            let Ok(pick) = selection.choose(self.now) else { return '-' };
            let name = letter(&pick);
            if !failing.contains(name) {
                selection.settle(pick, Outcome::Answered, self.now);
                return name;
            }
            selection.settle(pick, Outcome::Failed, self.now);
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
fn weights_are_spread_smoothly() {
    for (weights, expected) in [
        (&[1, 1, 1][..], "abcabc"),
        (&[5, 1, 1], "aabacaaaabacaa"),
        // By hand: 3,2 a; 1,4 b; 4,1 a; 2,3 b; 5,0 a.
        (&[3, 2], "ababaababa"),
        (&[1], "aaaa"),
    ] {
        let bench = Bench::new(Method::RoundRobin, weighted(weights));
        assert_eq!(bench.run(expected.len()), expected, "{weights:?}");
    }
}

#[test]
fn a_server_that_fails_is_left_alone_and_tried_once_in_a_while() {
    let mut bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    assert_eq!(bench.run_failing(4, "a"), "bbbb");
    // Its time is over after more than ten seconds, when one request goes to it and fails.
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
fn nobody_is_asked_twice_for_one_request() {
    let bench = Bench::new(Method::RoundRobin, weighted(&[1, 1]));
    let mut selection = bench.select();
    assert_eq!(selection.tries(), 2);
    let first = selection.choose(bench.now).expect("the first");
    selection.settle(first, Outcome::Failed, bench.now);
    assert_eq!(selection.tries(), 1);
    let second = selection.choose(bench.now).expect("the second");
    selection.settle(second, Outcome::Failed, bench.now);
    assert_eq!((selection.tries(), selection.choose(bench.now).err()), (0, Some(NoPeer::Busy)));
}

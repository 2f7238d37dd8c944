//! `limit_req`: how many requests a key may make in a second.
//!
//! Each key has a bucket that requests fill and time empties. Its level is counted in thousandths of a request, as in
//! nginx: a request adds 1000, a millisecond takes the rate away. Requests above `burst` are refused, and requests
//! above `delay` wait for their turn.
//!
//! With several limits in a location a request is charged for none when one refuses it; else the last one that
//! has a key is charged with the look at it, and then the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Directive, Module};
use exchange::config::{Cx, Scope, SettingsType};
use exchange::course::pause;
use exchange::module::{LEVELS, SubrequestHooks};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::shared_zone::limits::{self, LimitResult, Results, dry_run, key_of, without_zone};
use exchange::shared_zone::table::{Entry, Table};
use exchange::shared_zone::{self, Kind};
use exchange::template::Template;
use exchange::variables::Variable;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[DIRECTIVES],
    variables: &[Variable {
        name: "limit_req_status",
        get: status_text,
        set: None,
        help: "The result of `limit_req`: `PASSED`, `DELAYED`, `REJECTED`, and the last two with `_DRY_RUN`.",
    }],
    settings: &[SettingsType::of::<Conf>()],
    take_part: |_, scope, plan| {
        if !scope.of::<Conf>().limits.items().is_empty() {
            plan.now_or_later(Phase::Preaccess, scope.shared::<Conf>(), run, |_, request| {
                Box::pin(wait(request))
            });
        }
    },
    subrequest: SubrequestHooks { begin: None, detach: Some(hand_down) },
    ..Module::named("http_limit_req")
};

const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_limit_req", name, contexts, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // May stand below the places that use the zone, as in nginx.
    Directive::http(
        spec(
            "limit_req_zone",
            Contexts::HTTP,
            Args::Exactly(3),
            "A zone of buckets: the key, `zone=NAME:SIZE`, `rate=` in `r/s` or `r/m`.",
        )
        .many(),
        declare,
    ),
    // Several in a block hold together, and each has its own zone.
    Directive::scope(
        spec(
            "limit_req",
            LEVELS,
            Args::Between(1, 3),
            "Limits requests by a zone, with `burst=`, and `nodelay` or `delay=`.",
        )
        .many(),
        add_limit,
    ),
    Directive::scope(
        spec(
            "limit_req_log_level",
            LEVELS,
            Args::Exactly(1),
            "Log level of refused requests; delays are logged one level lower.",
        )
        .default("error"),
        |scope, cx| scope.own::<Conf>().set_level(cx),
    ),
    Directive::scope(
        spec("limit_req_status", LEVELS, Args::Exactly(1), "Status of the response to a refused request.")
            .default("503"),
        |scope, cx| scope.own::<Conf>().set_status(cx),
    ),
    Directive::scope(
        spec("limit_req_dry_run", LEVELS, Args::Flag, "Counts and logs without refusing or delaying.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.own::<Conf>().dry_run),
    ),
];

/// The settings of a block.
pub(crate) type Conf = limits::Conf<Limit>;

/// One `limit_req`.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    zone: Arc<Zone>,
    /// Thousandths of a request above which it is refused.
    burst: i64,
    /// Thousandths of a request above which it waits.
    delay: i64,
}

type Zone = shared_zone::Zone<Declared>;

/// The settings of `limit_req_zone`.
#[derive(Debug)]
pub(crate) struct Declared {
    /// The key of a bucket.
    key: Template,
    /// The same as it was written, for messages and to be compared at a reload.
    key_text: String,
    /// Thousandths of a request in a second, above zero.
    rate: i64,
}

/// The content of a key's bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Thousandths of a request.
    excess: i64,
    /// Milliseconds since the zone began, when the level was that.
    last_ms: i64,
}

/// The buckets of a zone.
#[derive(Debug)]
pub(crate) struct Buckets {
    table: Table<Bucket>,
    /// What times in the buckets are counted from.
    since: Instant,
}

impl Buckets {
    /// What became of requests.
    pub(crate) fn results(&self) -> &Results {
        &self.table.results
    }
}

/// Memory of a bucket beside its key: with an address 128 bytes, as the documentation of nginx has it.
const BUCKET_OVERHEAD: u64 = 80;

impl Kind for Declared {
    type State = Buckets;

    fn empty(&self, bytes: u64) -> Buckets {
        Buckets { table: Table::new(bytes, BUCKET_OVERHEAD), since: Instant::now() }
    }

    fn used(state: &Buckets) -> Option<u64> {
        Some(state.table.used())
    }

    // Another rate is no other meaning: a bucket is as full as it was.
    fn continues(&self, before: &Declared) -> bool {
        self.key_text == before.key_text
    }
}

/// A whole number above zero, as most parameters of limits are; not larger than can be counted in
/// thousandths.
fn positive(text: &str) -> Option<i64> {
    let number = value::number(text).ok().and_then(|number| i64::try_from(number).ok())?;
    (1..=i64::MAX / 1000).contains(&number).then_some(number)
}

/// The setter of `limit_req_zone`.
fn declare(cx: &mut Cx<'_>) -> Result<(), Error> {
    let key_text = cx.arg(0);
    let key = cx.template(key_text)?;
    let (mut zone, mut rate) = (("", 0), 1000);
    for parameter in cx.statement.texts().skip(1) {
        if parameter.starts_with("zone=") {
            zone = shared_zone::name_and_size(parameter).map_err(|fault| cx.error(fault))?;
        } else if let Some(text) = parameter.strip_prefix("rate=") {
            let (number, seconds) = match text.strip_suffix("r/m") {
                Some(number) => (number, 60),
                None => (text.strip_suffix("r/s").unwrap_or(text), 1),
            };
            let fault = || cx.error(format_args!("invalid rate \"{parameter}\""));
            rate = positive(number).ok_or_else(fault)? * 1000 / seconds;
        } else {
            return Err(cx.error(format_args!("invalid parameter \"{parameter}\"")));
        }
    }
    if zone.0.is_empty() {
        return Err(without_zone(cx.statement));
    }
    let declared = Declared { key, key_text: key_text.to_owned(), rate };
    cx.http.zones.declare(zone, declared, |known| &known.key_text, cx.statement)
}

/// The setter of `limit_req`.
fn add_limit(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let (mut zone, mut burst, mut delay) = (None, 0, 0);
    for parameter in cx.statement.texts() {
        let number = |text: &str, what: &str| {
            let fault = || cx.error(format_args!("invalid {what} value \"{parameter}\""));
            positive(text).map(|number| number * 1000).ok_or_else(fault)
        };
        match parameter.split_once('=') {
            Some(("zone", name)) => zone = Some(cx.http.zones.named(name, cx.statement)?),
            Some(("burst", text)) => burst = number(text, "burst")?,
            Some(("delay", text)) => delay = number(text, "delay")?,
            None if parameter == "nodelay" => delay = i64::MAX,
            _ => return Err(cx.error(format_args!("invalid parameter \"{parameter}\""))),
        }
    }
    let zone = zone.ok_or_else(|| without_zone(cx.statement))?;
    let limits = scope.own::<Conf>().limits.own(cx.block);
    if limits.iter().any(|limit| Arc::ptr_eq(&limit.zone, &zone)) {
        return Err(Error::directive(cx.statement, "is duplicate"));
    }
    limits.push(Limit { zone, burst, delay });
    Ok(())
}

/// Locations without limits do not pay for the module. What became of a request, kept with it: it is checked once, in
/// whatever location it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    verdict: Verdict,
    dry_run: bool,
}

/// The verdict of all limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Within all limits, or in a zone that has just seen its key for the first time.
    Passed,
    /// Waits until this moment.
    Delayed(Instant),
    /// Above a limit, or the zone has no room for its key.
    Rejected,
}

/// Lets a request that goes its own way know what became of the one that makes it: both together are checked once.
fn hand_down(parent: &Request, child: &mut Request) {
    if let Some(outcome) = outcome(parent) {
        child.shared.extensions.borrow_mut().insert(outcome);
    }
}

/// The result, if a limit has checked the request or a subrequest.
fn outcome(request: &Request) -> Option<Outcome> {
    request.shared.extensions.borrow().get().copied()
}

/// `$limit_req_status`; without a value if no limit has checked the request.
fn status_text(request: &Request, out: &mut Vec<u8>) -> bool {
    let Some(outcome) = outcome(request) else { return false };
    let text = match outcome.verdict {
        Verdict::Passed => "PASSED",
        Verdict::Delayed(_) => "DELAYED",
        Verdict::Rejected => "REJECTED",
    };
    out.extend_from_slice(text.as_bytes());
    if outcome.dry_run && outcome.verdict != Verdict::Passed {
        out.extend_from_slice(b"_DRY_RUN");
    }
    true
}

/// Looks at all limits and decides.
fn run(conf: &Conf, request: &mut Request) -> Option<Step> {
    if outcome(request).is_none() {
        let Some(verdict) = judge(request, conf) else { return Some(Step::Next) };
        let (dry_run, status) = (conf.dry_run, conf.status);
        request.shared.extensions.borrow_mut().insert(Outcome { verdict, dry_run });
        if verdict == Verdict::Rejected && !dry_run {
            return Some(Step::Status(status as u16));
        }
    }
    (!is_delayed(request)).then_some(Step::Next)
}

/// The verdict of one limit on a request.
enum Look {
    /// The content of its bucket with this request.
    Fits(i64),
    /// That is too much.
    Over(i64),
    /// There is no room for a bucket.
    NoRoom,
}

/// The verdict and its log message; `None` when no limit has a key for this request.
fn judge(request: &Request, conf: &Conf) -> Option<Verdict> {
    let limits = conf.limits.items();
    let dry = conf.dry();
    // Those that are charged when none has refused.
    let mut passed: Vec<(&Limit, Vec<u8>)> = Vec::new();
    let mut longest = (Duration::ZERO, 0, limits.first()?);
    let mut looked_at = false;
    let mut last = None;
    let count = |limit: &Limit, result| limit.zone.state().results().count(dry_run(result, conf.dry_run));
    for (place, limit) in limits.iter().enumerate() {
        let declared = limit.zone.kind();
        let key = key_of(request, &declared.key, &declared.key_text, KEY_LEN_MAX);
        let Some(key) = key else { continue };
        looked_at = true;
        let is_last = place == limits.len() - 1;
        match limit.look(&key, is_last) {
            Look::Fits(excess) if is_last => {
                longest = (limit.wait_for(excess), excess, limit);
                last = Some(limit);
            }
            Look::Fits(_) => passed.push((limit, key)),
            Look::Over(excess) => {
                let (whole, part, name) = (excess / 1000, excess % 1000, limit.zone.name());
                count(limit, LimitResult::Rejected);
                let what =
                    format_args!("limiting requests{dry}, excess: {whole}.{part:03} by zone \"{name}\"");
                request.log(conf.level, what);
                return Some(Verdict::Rejected);
            }
            Look::NoRoom => {
                count(limit, LimitResult::Rejected);
                let name = limit.zone.name();
                request
                    .log(Level::Alert, format_args!("could not allocate node in limit_req zone \"{name}\""));
                return Some(Verdict::Rejected);
            }
        }
    }
    for (limit, key) in passed.iter().rev() {
        let excess = limit.charge(key);
        let wait = limit.wait_for(excess);
        if wait > longest.0 {
            longest = (wait, excess, limit);
        }
    }
    let (wait, excess, limit) = longest;
    for asked in passed.iter().map(|(limit, _)| *limit).chain(last) {
        let is_delayed = !wait.is_zero() && Arc::ptr_eq(&asked.zone, &limit.zone);
        count(asked, if is_delayed { LimitResult::Delayed } else { LimitResult::Passed });
    }
    if wait.is_zero() {
        return looked_at.then_some(Verdict::Passed);
    }
    let (whole, part, name) = (excess / 1000, excess % 1000, limit.zone.name());
    let what = format_args!("delaying request{dry}, excess: {whole}.{part:03}, by zone \"{name}\"");
    request.log(below(conf.level), what);
    Some(Verdict::Delayed(rt::now() + wait))
}

/// Longest key that nginx can store.
const KEY_LEN_MAX: usize = 65_535;

/// The level of lines about delays.
fn below(level: Level) -> Level {
    match level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    }
}

impl Limit {
    /// Looks at the bucket of a key, and charges it when it `is_last` and the request fits.
    fn look(&self, key: &[u8], is_last: bool) -> Look {
        let (rate, now_ms) = (self.zone.kind().rate, self.now_ms());
        self.zone.state().table.with(key, |entry| {
            let Some(bucket) = entry.touch() else {
                // The later charge makes the bucket; until then an absent one is an empty one.
                let fits = !is_last || begin(entry, rate, now_ms);
                return if fits { Look::Fits(0) } else { Look::NoRoom };
            };
            let excess = bucket.with_one_more(rate, now_ms);
            if excess > self.burst {
                return Look::Over(excess);
            }
            if is_last {
                bucket.set(excess, now_ms);
            }
            Look::Fits(excess)
        })
    }

    /// Charges the bucket of a key for a request that all limits let pass; returns its new content.
    fn charge(&self, key: &[u8]) -> i64 {
        let (rate, now_ms) = (self.zone.kind().rate, self.now_ms());
        self.zone.state().table.with(key, |entry| match entry.touch() {
            Some(bucket) => {
                let excess = bucket.with_one_more(rate, now_ms);
                bucket.set(excess, now_ms);
                excess
            }
            None => {
                // Without room the request is not counted here; the limits have let it pass by now.
                begin(entry, rate, now_ms);
                0
            }
        })
    }

    /// How long a request waits that brought the bucket to this level.
    fn wait_for(&self, excess: i64) -> Duration {
        let above = excess.saturating_sub(self.delay);
        let wait_ms = i128::from(above) * 1000 / i128::from(self.zone.kind().rate);
        Duration::from_millis(wait_ms.clamp(0, i128::from(WAIT_MS_MAX)) as u64)
    }

    /// Milliseconds on the clock of the zone, which all threads share and no adjustment of the time moves.
    fn now_ms(&self) -> i64 {
        let since = self.zone.state().since;
        i64::try_from(rt::now().saturating_duration_since(since).as_millis()).unwrap_or(i64::MAX)
    }
}

/// Longest wait, for a `burst` that is as good as none: a moment that far away can still be named.
const WAIT_MS_MAX: i64 = u32::MAX as i64;

impl Bucket {
    /// The level after another request at this time.
    fn with_one_more(&self, rate: i64, now_ms: i64) -> i64 {
        (self.level(rate, now_ms) + 1000).max(0)
    }

    /// The level at this time, below zero when it has been empty for a while. Clocks of threads differ by a
    /// turn: time that runs backwards is none at all.
    fn level(&self, rate: i64, now_ms: i64) -> i64 {
        let elapsed_ms = i128::from((now_ms - self.last_ms).max(0));
        let level = i128::from(self.excess) - i128::from(rate) * elapsed_ms / 1000;
        level.max(i128::from(i64::MIN / 2)) as i64
    }

    /// Another thread's clock may be ahead, and its request counts as later.
    fn set(&mut self, excess: i64, now_ms: i64) {
        self.excess = excess;
        self.last_ms = self.last_ms.max(now_ms);
    }

    /// Whether nothing is lost when it is forgotten.
    fn is_idle(&self, rate: i64, now_ms: i64) -> bool {
        now_ms - self.last_ms >= IDLE_MS && self.level(rate, now_ms) <= 0
    }
}

/// How long a bucket is kept after its last use, at least.
const IDLE_MS: i64 = 60_000;

/// Idle buckets that go for each new one, so that they go faster than others come.
const IDLE_ONES: usize = 2;

/// Makes an empty bucket for a key that has none; `false` when there is no room even without all others.
fn begin(entry: &mut Entry<'_, Bucket>, rate: i64, now_ms: i64) -> bool {
    for _ in 0..IDLE_ONES {
        if !entry.oldest().is_some_and(|bucket| bucket.is_idle(rate, now_ms)) {
            break;
        }
        entry.remove_oldest();
    }
    let bucket = Bucket { excess: 0, last_ms: now_ms };
    while !entry.insert(bucket) {
        if !entry.remove_oldest() {
            return false;
        }
    }
    true
}

/// Asked on the way of every limited request, and the reason that most of them need no future.
fn is_delayed(request: &Request) -> bool {
    outcome(request).is_some_and(|outcome| !outcome.dry_run && matches!(outcome.verdict, Verdict::Delayed(_)))
}

/// Waits for the request's turn, or until its client is gone.
async fn wait(request: &mut Request) -> Step {
    let Some(Outcome { verdict: Verdict::Delayed(until), .. }) = outcome(request) else {
        return Step::Next;
    };
    pause(request, until).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};
    use exchange::config::Config;
    use exchange::shared_zone::Zones;
    use std::any::Any;

    fn conf_of<'a>(config: &'a Config, name: &str) -> &'a Conf {
        let location = config.http.locations.iter().find(|location| location.name == name);
        location.expect("it is there").scope.of::<Conf>()
    }

    #[test]
    fn settings_are_inherited_and_limits_replaced() {
        let config = loaded(
            "limit_req zone=two burst=3 delay=2; limit_req_zone $host zone=one:1m rate=30r/m;
             limit_req_zone $uri zone=two:1m rate=5r/s; limit_req_zone $uri zone=bare:1m rate=7;
             limit_req_status 429;
             server { location /a { limit_req_log_level info; limit_req_dry_run on; }
                      location /b { limit_req zone=one nodelay; limit_req zone=bare; } }",
        );
        let conf = |name: &str| {
            let conf = conf_of(&config, name);
            let limits = conf.limits.items().iter().map(|limit| {
                (limit.zone.name().to_owned(), limit.zone.kind().rate, limit.burst, limit.delay)
            });
            (limits.collect::<Vec<_>>(), conf.level, conf.status, conf.dry_run)
        };
        assert_eq!(conf("/a"), (vec![("two".into(), 5000, 3000, 2000)], Level::Info, 429, true));
        let both = vec![("one".into(), 500, 0, i64::MAX), ("bare".into(), 7000, 0, 0)];
        assert_eq!(conf("/b"), (both, Level::Error, 429, false));
    }

    #[test]
    fn wrong_values_have_nginxs_words() {
        for (text, expected) in [
            ("limit_req_zone $uri rate=1r/s x;", "invalid parameter \"x\""),
            ("limit_req_zone $uri rate=1r/s rate=1r/s;", "\"limit_req_zone\" must have \"zone\" parameter"),
            ("limit_req_zone $uri zone=one rate=1r/s;", "invalid zone size \"zone=one\""),
            ("limit_req_zone $uri zone=one:8k rate=1r/s;", "zone \"zone=one:8k\" is too small"),
            ("limit_req_zone $uri zone=one:1m rate=0;", "invalid rate \"rate=0\""),
            ("limit_req_zone $uri zone=one:1m rate=r/s;", "invalid rate \"rate=r/s\""),
            ("limit_req_zone $uri zone=one:1m rate=99999999999999999r/s;", "invalid rate"),
            (
                "limit_req_zone $uri zone=one:1m rate=1r/s; limit_req_zone $uri zone=one:1m rate=2r/s;",
                "limit_req_zone \"one\" is already bound to key \"$uri\"",
            ),
            ("limit_req burst=3;", "\"limit_req\" must have \"zone\" parameter"),
            ("limit_req zone=one burst=0;", "invalid burst value \"burst=0\""),
            ("limit_req zone=one delay=x;", "invalid delay value \"delay=x\""),
            ("limit_req zone=one now;", "invalid parameter \"now\""),
            ("limit_req zone=one; limit_req zone=one;", "\"limit_req\" directive is duplicate"),
            ("limit_req zone=one;", "zero size shared memory zone \"one\""),
            ("limit_req_log_level crit;", "invalid value \"crit\" in"),
            ("limit_req_status 399;", "value must be between 400 and 599"),
            ("limit_req_dry_run x;", "invalid value \"x\" in \"limit_req_dry_run\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }

    #[test]
    fn a_bucket_fills_and_empties() {
        let mut bucket = Bucket { excess: 0, last_ms: 1000 };
        // Five in a second: a request adds 1000, a millisecond takes 5.
        for (now_ms, expected) in
            [(1000, 1000), (1000, 2000), (1100, 2500), (1090, 3500), (1101, 4495), (9000, 0), (9200, 0)]
        {
            let excess = bucket.with_one_more(5000, now_ms);
            bucket.set(excess, now_ms);
            assert_eq!(excess, expected, "at {now_ms}");
        }
        assert!(!bucket.is_idle(5000, 9200 + IDLE_MS - 1) && bucket.is_idle(5000, 9200 + IDLE_MS));
        let full = Bucket { excess: 61_000, last_ms: 0 };
        assert!(!full.is_idle(1000, IDLE_MS) && full.is_idle(1000, IDLE_MS + 1000));
        let greatest = Bucket { excess: i64::MAX, last_ms: i64::MIN / 2 };
        assert_eq!(greatest.with_one_more(i64::MAX, i64::MAX / 2), 0, "no number is too large");
    }

    #[test]
    fn waits_follow_the_rate_and_the_delay() {
        let config = loaded(
            "limit_req_zone $uri zone=one:1m rate=5r/s; server {
               location /a { limit_req zone=one burst=9; } location /b { limit_req zone=one burst=9 delay=2; }
               location /c { limit_req zone=one burst=9 nodelay; } }",
        );
        let wait = |name: &str, excess| conf_of(&config, name).limits.items()[0].wait_for(excess).as_millis();
        assert_eq!((wait("/a", 0), wait("/a", 1000), wait("/a", 9000)), (0, 200, 1800));
        assert_eq!((wait("/b", 2000), wait("/b", 2500), wait("/b", 9000)), (0, 100, 1400));
        assert_eq!(wait("/c", 9000), 0);
        assert_eq!(wait("/a", i64::MAX), WAIT_MS_MAX as u128);
    }

    #[test]
    fn a_full_zone_forgets_what_was_used_longest_ago() {
        let table = Table::<Bucket>::new(32 << 10, BUCKET_OVERHEAD);
        let add = |key: u32, now_ms| table.with(&key.to_ne_bytes(), |entry| begin(entry, 1000, now_ms));
        let is_there = |key: u32| table.with(&key.to_ne_bytes(), |entry| entry.get().is_some());
        let room = 6 * 32;
        assert!((0..room).all(|key| add(key, 0)));
        table.with(&0_u32.to_ne_bytes(), |entry| entry.touch().is_some());
        assert!(add(room, 1));
        assert_eq!(
            (is_there(0), is_there(1), is_there(2), table.count()),
            (true, false, true, room as usize)
        );
        // Idle ones go without need, two for each that comes.
        assert!(add(room + 1, IDLE_MS));
        assert_eq!((is_there(2), is_there(3), is_there(4)), (false, false, true));
        assert_eq!(table.count(), room as usize - 1);
        let long = vec![0; KEY_LEN_MAX];
        assert!(!table.with(&long, |entry| begin(entry, 1000, 2)), "larger than the zone");
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn a_zone_has_one_use_and_one_size() {
        for (text, expected) in [
            (
                "limit_req_zone $uri zone=one:1m rate=1r/s; limit_conn one 5;",
                "the shared memory zone \"one\" is already declared for a different use",
            ),
            (
                "limit_conn_zone $uri zone=one:1m; limit_conn_zone $uri zone=one:2m;",
                "the size 2097152 of shared memory zone \"one\" conflicts with already declared size 1048576",
            ),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(crate::testing::without_remedy(&found), format!("{expected} in /conf/nginx.conf:2"));
        }
        let found = error("http {\nlimit_req_zone $uri zone=one:1m rate=1r/s;\nlimit_conn one 5; }");
        assert!(
            found.ends_with(" in /conf/nginx.conf:3; by /conf/nginx.conf:2: choose another name"),
            "{found}"
        );
    }

    #[test]
    fn state_goes_over_to_the_next_configuration_where_it_means_the_same() {
        let names = |text: &str| {
            let config = loaded(&format!("limit_req zone=one; {text}"));
            let limited = &config.http.locations;
            assert!(limited.is_empty(), "no server, no location");
            config
        };
        let address = |config: &Config| {
            let zone = &config.http.zones.0[0].zone;
            let zone = (&**zone as &dyn Any).downcast_ref::<Zone>();
            Arc::as_ptr(zone.expect("it is one of limit_req").state())
        };
        let first = names("limit_req_zone $uri zone=one:1m rate=1r/s;");
        first.http.zones.begin(&Zones::default());
        first.http.zones.begin(&Zones::default());
        let begin = |text: &str| {
            let next = names(text);
            next.http.zones.begin(&first.http.zones);
            address(&next) == address(&first)
        };
        assert!(begin("limit_req_zone $uri zone=one:1m rate=5r/s;"), "another rate is no other meaning");
        assert!(!begin("limit_req_zone $host zone=one:1m rate=1r/s;"));
        assert!(!begin("limit_req_zone $uri zone=one:2m rate=1r/s;"));
    }
}

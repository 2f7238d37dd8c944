//! `limit_req`: limits the request rate per key.
//!
//! Each key has a leaky bucket. Its level is counted in thousandths of a request, as in nginx: a request adds 1000, and
//! each millisecond removes the rate. Requests above `burst` are rejected, and requests above `delay` are delayed.
//!
//! If one of several limits in a location rejects a request, no limit is charged. Otherwise the last limit, if it has a
//! key, is charged during its check, and the other limits after that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use exchange::course::pause;
use exchange::module::{SubrequestHooks, Variable};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use site::config::{Cx, Scope, SettingsType};
use site::declaration::LEVELS;
use site::shared_zone::limits::{self, LimitResult, Results, dry_run, key_of, without_zone};
use site::shared_zone::table::{Entry, Table};
use site::shared_zone::{self, ZoneKind};
use site::template::Template;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "limit_req_status",
        get: status_text,
        set: None,
        help: "The result of `limit_req`: `PASSED`, `DELAYED`, `REJECTED`, and the last two with `_DRY_RUN`.",
    }],
    add_to_plan: |_, scope, plan| {
        if !scope.of::<Conf>().limits.items().is_empty() {
            plan.now_or_later(Phase::Preaccess, scope.shared::<Conf>(), run, |_, request| {
                Box::pin(wait(request))
            });
        }
    },
    subrequest: SubrequestHooks { detach: Some(hand_down), ..SubrequestHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_limit_req")
    })
};

const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_limit_req", name, contexts, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // The declaration may follow the directives that use the zone, as in nginx.
    Directive::http(
        spec(
            "limit_req_zone",
            Contexts::HTTP,
            Args::Exactly(3),
            "Declares a shared zone of request rates: their key, `zone=NAME:SIZE`, `rate=` in `r/s` or `r/m`.",
        )
        .many(),
        declare,
    ),
    // Several limits in a block apply together, each with its own zone.
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
            "Log level of rejected requests; delays are logged one level lower.",
        )
        .default("error"),
        |scope, cx| scope.make_mut::<Conf>().set_level(cx),
    ),
    Directive::scope(
        spec("limit_req_status", LEVELS, Args::Exactly(1), "Status of the response to a rejected request.")
            .default("503"),
        |scope, cx| scope.make_mut::<Conf>().set_status(cx),
    ),
    Directive::scope(
        spec("limit_req_dry_run", LEVELS, Args::Flag, "Counts and logs requests above the limit without rejecting or delaying them.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().dry_run),
    ),
];

/// The `limit_req` settings of a block.
pub(crate) type Conf = limits::Conf<Limit>;

/// A `limit_req` directive.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    zone: Arc<Zone>,
    /// Level in thousandths of a request above which a request is rejected.
    burst: i64,
    /// Level in thousandths of a request above which a request is delayed.
    delay: i64,
}

type Zone = shared_zone::Zone<Declared>;

/// The settings of `limit_req_zone`.
#[derive(Debug)]
pub(crate) struct Declared {
    /// The key of a bucket.
    key: Template,
    /// The key as written, for messages and for comparison at a reload.
    key_text: String,
    /// Rate in thousandths of a request per second, above zero.
    rate: i64,
}

/// The bucket of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Level in thousandths of a request.
    excess: i64,
    /// Time of that level, in ms since the start of the zone.
    last_ms: i64,
}

/// The buckets of a zone.
#[derive(Debug)]
pub(crate) struct Buckets {
    table: Table<Bucket>,
    /// The start of the zone, which times in the buckets are relative to.
    since: Instant,
}

impl Buckets {
    /// Returns the results of requests.
    pub(crate) fn results(&self) -> &Results {
        &self.table.results
    }
}

/// Size in bytes of a bucket without its key. A bucket of an address needs 128 bytes, as in nginx's documentation.
const BUCKET_OVERHEAD: u64 = 80;

impl ZoneKind for Declared {
    type Content = Buckets;

    fn empty(&self, bytes: u64) -> Buckets {
        Buckets { table: Table::new(bytes, BUCKET_OVERHEAD), since: Instant::now() }
    }

    fn used(state: &Buckets) -> Option<u64> {
        Some(state.table.used())
    }

    // A changed rate does not change the meaning of a bucket's level.
    fn continues(&self, before: &Declared) -> bool {
        self.key_text == before.key_text
    }
}

/// Parses an integer above zero that does not overflow when it is counted in thousandths.
fn positive(text: &str) -> Option<i64> {
    let number = value::number(text).ok().and_then(|number| i64::try_from(number).ok())?;
    (1..=i64::MAX / 1000).contains(&number).then_some(number)
}

/// Implements the setter of `limit_req_zone`.
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

/// Implements the setter of `limit_req`.
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
    let limits = scope.make_mut::<Conf>().limits.make_mut(cx.block);
    if limits.iter().any(|limit| Arc::ptr_eq(&limit.zone, &zone)) {
        return Err(Error::directive(cx.statement, "is duplicate"));
    }
    limits.push(Limit { zone, burst, delay });
    Ok(())
}

/// The result for a request. Stored with the request, so that the request is checked only once, in any location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitOutcome {
    verdict: LimitDecision,
    dry_run: bool,
}

/// The combined result of all limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitDecision {
    /// Within all limits, or the first request of its key.
    Passed,
    /// Delayed until this time.
    Delayed(Instant),
    /// Above a limit, or the zone has no memory for its key.
    Rejected,
}

/// Passes the result to a background request, because both requests together are checked only once.
fn hand_down(parent: &Request, child: &mut Request) {
    if let Some(outcome) = outcome(parent) {
        child.shared.extensions.borrow_mut().insert(outcome);
    }
}

/// Returns the result, if a limit has checked the request or a subrequest.
fn outcome(request: &Request) -> Option<LimitOutcome> {
    request.shared.extensions.borrow().get().copied()
}

/// Appends `$limit_req_status`; it has no value if no limit has checked the request.
fn status_text(request: &Request, out: &mut Vec<u8>) -> bool {
    let Some(outcome) = outcome(request) else { return false };
    let text = match outcome.verdict {
        LimitDecision::Passed => "PASSED",
        LimitDecision::Delayed(_) => "DELAYED",
        LimitDecision::Rejected => "REJECTED",
    };
    out.extend_from_slice(text.as_bytes());
    if outcome.dry_run && outcome.verdict != LimitDecision::Passed {
        out.extend_from_slice(b"_DRY_RUN");
    }
    true
}

/// Checks all limits and decides.
fn run(conf: &Conf, request: &mut Request) -> Option<Step> {
    if outcome(request).is_none() {
        let Some(verdict) = judge(request, conf) else { return Some(Step::Next) };
        let (dry_run, status) = (conf.dry_run, conf.status);
        request.shared.extensions.borrow_mut().insert(LimitOutcome { verdict, dry_run });
        if verdict == LimitDecision::Rejected && !dry_run {
            return Some(Step::Status(status as u16));
        }
    }
    (!is_delayed(request)).then_some(Step::Next)
}

/// The result of a check of one limit.
enum BucketCheck {
    /// The request fits; contains the level with this request.
    Fits(i64),
    /// The request exceeds `burst`; contains the level with this request.
    Exceeds(i64),
    /// The zone has no memory for a bucket.
    NoSpace,
}

/// Returns the combined result, and logs it; `None` if no limit has a key for this request.
fn judge(request: &Request, conf: &Conf) -> Option<LimitDecision> {
    let limits = conf.limits.items();
    let dry = conf.dry();
    // The limits that are charged if no limit rejects the request.
    let mut passed: Vec<(&Limit, Vec<u8>)> = Vec::new();
    let mut longest = (Duration::ZERO, 0, limits.first()?);
    let mut looked_at = false;
    let mut last = None;
    let count = |limit: &Limit, result| limit.zone.state().results().count(dry_run(result, conf.dry_run));
    for (index, limit) in limits.iter().enumerate() {
        let declared = limit.zone.kind();
        let key = key_of(request, &declared.key, &declared.key_text, KEY_LEN_MAX);
        let Some(key) = key else { continue };
        looked_at = true;
        let is_last = index == limits.len() - 1;
        match limit.check_bucket(&key, is_last) {
            BucketCheck::Fits(excess) if is_last => {
                longest = (limit.wait_for(excess), excess, limit);
                last = Some(limit);
            }
            BucketCheck::Fits(_) => passed.push((limit, key)),
            BucketCheck::Exceeds(excess) => {
                let (whole, part, name) = (excess / 1000, excess % 1000, limit.zone.name());
                count(limit, LimitResult::Rejected);
                let what =
                    format_args!("limiting requests{dry}, excess: {whole}.{part:03} by zone \"{name}\"");
                request.log(conf.level, what);
                return Some(LimitDecision::Rejected);
            }
            BucketCheck::NoSpace => {
                count(limit, LimitResult::Rejected);
                let name = limit.zone.name();
                request
                    .log(Level::Alert, format_args!("could not allocate node in limit_req zone \"{name}\""));
                return Some(LimitDecision::Rejected);
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
    debug_assert!(looked_at || passed.is_empty(), "only checked limits are charged");
    let (wait, excess, limit) = longest;
    for asked in passed.iter().map(|(limit, _)| *limit).chain(last) {
        let is_delayed = !wait.is_zero() && Arc::ptr_eq(&asked.zone, &limit.zone);
        count(asked, if is_delayed { LimitResult::Delayed } else { LimitResult::Passed });
    }
    if wait.is_zero() {
        return looked_at.then_some(LimitDecision::Passed);
    }
    let (whole, part, name) = (excess / 1000, excess % 1000, limit.zone.name());
    let what = format_args!("delaying request{dry}, excess: {whole}.{part:03}, by zone \"{name}\"");
    request.log(below(conf.level), what);
    Some(LimitDecision::Delayed(rt::now() + wait))
}

/// Maximum length in bytes of a key in nginx.
const KEY_LEN_MAX: usize = 65_535;

/// Returns the log level of lines about delays.
fn below(level: Level) -> Level {
    match level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    }
}

impl Limit {
    /// Checks the bucket of a key, and charges it if the limit `is_last` and the request fits.
    fn check_bucket(&self, key: &[u8], is_last: bool) -> BucketCheck {
        let (rate, now_ms) = (self.zone.kind().rate, self.now_ms());
        self.zone.state().table.with(key, |entry| {
            let Some(bucket) = entry.touch() else {
                // The later charge creates the bucket; until then an absent bucket counts as empty.
                let fits = !is_last || begin(entry, rate, now_ms);
                return if fits { BucketCheck::Fits(0) } else { BucketCheck::NoSpace };
            };
            let excess = bucket.with_one_more(rate, now_ms);
            if excess > self.burst {
                return BucketCheck::Exceeds(excess);
            }
            if is_last {
                bucket.set(excess, now_ms);
            }
            BucketCheck::Fits(excess)
        })
    }

    /// Charges the bucket of a key for a request that all limits allow; returns its new level.
    fn charge(&self, key: &[u8]) -> i64 {
        let (rate, now_ms) = (self.zone.kind().rate, self.now_ms());
        self.zone.state().table.with(key, |entry| match entry.touch() {
            Some(bucket) => {
                let excess = bucket.with_one_more(rate, now_ms);
                bucket.set(excess, now_ms);
                excess
            }
            None => {
                // If the zone has no memory, the request is not counted, because the limits have already allowed it.
                begin(entry, rate, now_ms);
                0
            }
        })
    }

    /// Returns the delay of a request that raised the bucket to this level.
    fn wait_for(&self, excess: i64) -> Duration {
        debug_assert!(excess >= 0, "a bucket has no negative level");
        let above = excess.saturating_sub(self.delay);
        let wait_ms = i128::from(above) * 1000 / i128::from(self.zone.kind().rate);
        Duration::from_millis(wait_ms.clamp(0, i128::from(WAIT_MS_MAX)) as u64)
    }

    /// Returns the time in ms on the zone's monotonic clock, which all threads share.
    fn now_ms(&self) -> i64 {
        let since = self.zone.state().since;
        i64::try_from(rt::now().saturating_duration_since(since).as_millis()).unwrap_or(i64::MAX)
    }
}

/// Maximum delay in ms. The end of this delay can be represented, which a very large `burst` would not ensure.
const WAIT_MS_MAX: i64 = u32::MAX as i64;

impl Bucket {
    /// Returns the level after another request at this time.
    fn with_one_more(&self, rate: i64, now_ms: i64) -> i64 {
        (self.level(rate, now_ms) + 1000).max(0)
    }

    /// Returns the level at this time, which is negative if the bucket has been empty for a while. The cached clocks of
    /// threads differ by up to an event-loop turn, so negative elapsed time counts as zero.
    fn level(&self, rate: i64, now_ms: i64) -> i64 {
        let elapsed_ms = i128::from((now_ms - self.last_ms).max(0));
        let level = i128::from(self.excess) - i128::from(rate) * elapsed_ms / 1000;
        level.max(i128::from(i64::MIN / 2)) as i64
    }

    /// Sets the level; the time never decreases, because another thread's clock may be ahead.
    fn set(&mut self, excess: i64, now_ms: i64) {
        self.excess = excess;
        self.last_ms = self.last_ms.max(now_ms);
    }

    /// Whether the bucket can be removed without any effect.
    fn is_idle(&self, rate: i64, now_ms: i64) -> bool {
        now_ms - self.last_ms >= IDLE_MS && self.level(rate, now_ms) <= 0
    }
}

/// Minimum time in ms that a bucket is retained after its last use.
const IDLE_MS: i64 = 60_000;

/// Maximum number of idle buckets removed for each new one, so that they are removed faster than new ones are added.
const IDLE_ONES: usize = 2;

/// Creates a bucket for a key, evicting others if necessary; returns `false` if even an empty shard has no memory for it.
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

/// Whether a request has to wait. Most requests do not, so no future is created for them.
fn is_delayed(request: &Request) -> bool {
    outcome(request)
        .is_some_and(|outcome| !outcome.dry_run && matches!(outcome.verdict, LimitDecision::Delayed(_)))
}

/// Waits until the request's delay is over, or its client has closed the connection.
async fn wait(request: &mut Request) -> Step {
    let Some(LimitOutcome { verdict: LimitDecision::Delayed(until), .. }) = outcome(request) else {
        return Step::Next;
    };
    pause(request, until).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};
    use site::config::Config;
    use site::shared_zone::Zones;
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
    fn wrong_values_cause_the_messages_of_nginx() {
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
        // Five requests per second: a request adds 1000, a millisecond removes 5.
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
    fn delays_follow_the_rate_and_the_delay_parameter() {
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
    fn a_full_zone_evicts_the_least_recently_used() {
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
        // Idle buckets are removed even without need, two for each new one.
        assert!(add(room + 1, IDLE_MS));
        assert_eq!((is_there(2), is_there(3), is_there(4)), (false, false, true));
        assert_eq!(table.count(), room as usize - 1);
        let long = vec![0; KEY_LEN_MAX];
        assert!(!table.with(&long, |entry| begin(entry, 1000, 2)), "larger than the zone");
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn a_zone_must_have_one_use_and_one_size() {
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
    fn state_is_retained_over_a_reload_if_its_meaning_is_unchanged() {
        let names = |text: &str| loaded(&format!("limit_req zone=one; {text}"));
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

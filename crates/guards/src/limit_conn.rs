//! `limit_conn`: limits the number of concurrent requests per key. A connection counts from the header section of a
//! request to the end of its response, not while it is idle.

use std::cell::RefCell;
use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use exchange::module::{SessionHooks, SessionVariable, SubrequestHooks, Variable};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::session::{SessionPhase, SessionStep};
use site::config::{Cx, Scope, SettingsType};
use site::declaration::LEVELS;
use site::extensions::Extensions;
use site::shared_zone::limits::{self, LimitResult, dry_run, key_of, without_zone};
use site::shared_zone::table::{Key, Table};
use site::shared_zone::{self, ZoneKind};
use site::template::Template;
use site::variables::HasVariables;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "limit_conn_status",
        get: status_text,
        set: None,
        help: "The result of `limit_conn`: `PASSED`, `REJECTED`, `REJECTED_DRY_RUN`.",
    }],
    add_to_plan: |_, scope, plan| {
        // Locations without limits skip the module.
        if !scope.of::<Conf>().limits.items().is_empty() {
            plan.now(Phase::Preaccess, scope.shared::<Conf>(), run);
        }
    },
    subrequest: SubrequestHooks { detach: Some(hand_down), ..SubrequestHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_limit_conn")
    })
};

/// The same directives in `stream`, where sessions are counted.
pub(crate) static STREAM: Module = Module {
    session: SessionHooks {
        variables: &[SessionVariable {
            name: "limit_conn_status",
            get: |session, out| push_status(&session.extensions, out),
            set: None,
            help: "The result of `limit_conn`: `PASSED`, `REJECTED`, `REJECTED_DRY_RUN`.",
        }],
        add_to_plan: |_, scope, plan| {
            if !scope.of::<Conf>().limits.items().is_empty() {
                plan.now(SessionPhase::Preaccess, scope.shared::<Conf>(), |conf, session| {
                    match admits(conf, session) {
                        true => SessionStep::Next,
                        false => SessionStep::End(503),
                    }
                });
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        twin: Some(&["limit_conn_status"]),
        ..Declaration::named("stream_limit_conn")
    })
};

const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_limit_conn", name, contexts, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // The declaration may follow the directives that use the zone, as in nginx.
    Directive::http(
        spec(
            "limit_conn_zone",
            Contexts::HTTP,
            Args::Exactly(2),
            "Declares a shared zone that counts requests: their key, and `zone=NAME:SIZE`.",
        )
        .many(),
        declare,
    ),
    Directive::scope(
        spec(
            "limit_conn",
            LEVELS,
            Args::Exactly(2),
            "Limits the concurrent requests of each key: the zone, and the maximum number.",
        )
        .many(),
        add_limit,
    ),
    Directive::scope(
        spec("limit_conn_log_level", LEVELS, Args::Exactly(1), "Log level of rejected requests.")
            .default("error"),
        |scope, cx| scope.make_mut::<Conf>().set_level(cx),
    ),
    Directive::scope(
        spec("limit_conn_status", LEVELS, Args::Exactly(1), "Status of the response to a rejected request.")
            .default("503"),
        |scope, cx| scope.make_mut::<Conf>().set_status(cx),
    ),
    Directive::scope(
        spec(
            "limit_conn_dry_run",
            LEVELS,
            Args::Flag,
            "Counts and logs requests above the limit without rejecting them.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().dry_run),
    ),
];

/// The `limit_conn` settings of a block.
pub(crate) type Conf = limits::Conf<Limit>;

/// A `limit_conn` directive.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    zone: Arc<Zone>,
    /// Maximum number of requests in flight with one key.
    most: u32,
}

type Zone = shared_zone::Zone<Declared>;

/// The settings of `limit_conn_zone`.
#[derive(Debug)]
pub(crate) struct Declared {
    /// The key of the counters.
    key: Template,
    /// The key as written, for messages and for comparison at a reload.
    key_text: String,
}

/// Number of requests in flight, by key. Keys without requests have no entry, so no eviction is needed.
type Counts = Table<u32>;

/// Size in bytes of a counter without its key. A counter of an address needs 64 bytes, as in nginx's documentation.
const COUNT_OVERHEAD: u64 = 36;

impl ZoneKind for Declared {
    type Content = Counts;

    fn empty(&self, bytes: u64) -> Counts {
        Counts::new(bytes, COUNT_OVERHEAD)
    }

    fn used(state: &Counts) -> Option<u64> {
        Some(state.used())
    }

    // Requests in flight stay counted, even if the limits have changed.
    fn continues(&self, before: &Declared) -> bool {
        self.key_text == before.key_text
    }
}

/// Implements the setter of `limit_conn_zone`.
fn declare(cx: &mut Cx<'_>) -> Result<(), Error> {
    let key_text = cx.arg(0);
    let key = cx.template(key_text)?;
    let parameter = cx.arg(1);
    if !parameter.starts_with("zone=") {
        return Err(cx.error(format_args!("invalid parameter \"{parameter}\"")));
    }
    let zone = shared_zone::name_and_size(parameter).map_err(|fault| cx.error(fault))?;
    if zone.0.is_empty() {
        return Err(without_zone(cx.statement));
    }
    let declared = Declared { key, key_text: key_text.to_owned() };
    cx.http.zones.declare(zone, declared, |known| &known.key_text, cx.statement)
}

/// Maximum limit: counters have 16 bits in nginx.
const MOST_MAX: u64 = 65_535;

/// Implements the setter of `limit_conn`.
fn add_limit(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let zone = cx.http.zones.named(cx.arg(0), cx.statement)?;
    let limits = scope.make_mut::<Conf>().limits.make_mut(cx.block);
    if limits.iter().any(|limit| Arc::ptr_eq(&limit.zone, &zone)) {
        return Err(Error::directive(cx.statement, "is duplicate"));
    }
    let text = cx.arg(1);
    let most = value::number(text).ok().filter(|&most| most > 0);
    let most = most.ok_or_else(|| cx.error(format_args!("invalid number of connections \"{text}\"")))?;
    if most > MOST_MAX {
        return Err(cx.error("connection limit must be less 65536"));
    }
    limits.push(Limit { zone, most: most as u32 });
    Ok(())
}

/// The result for a request. Stored until the request ends, so that the request is checked only once, in any location.
struct Outcome {
    /// Whether a limit was reached.
    rejected: bool,
    /// Whether `limit_conn_dry_run` was on, so that a rejection was only logged.
    dry_run: bool,
    /// The counters that include the request. However the request ends, they are dropped and so decremented.
    _held: Vec<Held>,
}

/// A counter that includes a request until this value is dropped.
struct Held {
    /// The table of the request's configuration, which a reload may have replaced.
    counts: Arc<Counts>,
    key: Key,
}

impl Drop for Held {
    /// Uncounts the request. The last request removes the key, so that a zone contains only keys with requests.
    fn drop(&mut self) {
        self.counts.with(self.key.bytes(), |entry| match entry.get() {
            Some(count) if *count > 1 => *count -= 1,
            _ => entry.remove(),
        });
    }
}

/// Passes the result to a background request, because both requests together are checked only once.
fn hand_down(parent: &Request, child: &mut Request) {
    if let Some(Outcome { rejected, dry_run, .. }) = parent.shared.extensions.borrow().get() {
        let outcome = Outcome { rejected: *rejected, dry_run: *dry_run, _held: Vec::new() };
        child.shared.extensions.borrow_mut().insert(outcome);
    }
}

/// Appends `$limit_conn_status`; it has no value if no limit has checked the request.
fn status_text(request: &Request, out: &mut Vec<u8>) -> bool {
    push_status(&request.shared.extensions, out)
}

fn push_status(shared: &RefCell<Extensions>, out: &mut Vec<u8>) -> bool {
    let shared = shared.borrow();
    let Some(outcome) = shared.get::<Outcome>() else { return false };
    out.extend_from_slice(match (outcome.rejected, outcome.dry_run) {
        (false, _) => b"PASSED",
        (true, false) => b"REJECTED",
        (true, true) => b"REJECTED_DRY_RUN",
    });
    true
}

/// Counts the request in each zone, or in none if a limit is reached.
fn run(conf: &Conf, request: &mut Request) -> Step {
    if request.shared.extensions.borrow().get::<Outcome>().is_some() {
        return Step::Next;
    }
    if admits(conf, request) { Step::Next } else { Step::Status(conf.status as u16) }
}

/// Counts a request or session in each zone, or in none if a limit is reached. Returns whether it may continue.
fn admits<R: HasVariables>(conf: &Conf, request: &R) -> bool {
    let dry_run = conf.dry_run;
    // If all keys were empty, no limit was checked, and a later location may still do so.
    let (rejected, held) = match count_all(request, conf) {
        Ok(held) if held.is_empty() => return true,
        Ok(held) => (false, held),
        Err(Refused) => (true, Vec::new()),
    };
    request.shared_extensions().borrow_mut().insert(Outcome { rejected, dry_run, _held: held });
    !rejected || dry_run
}

/// A limit was reached, which was logged.
struct Refused;

/// Counts the request in all zones that have a key for it. An error drops the list, which decrements the counters that
/// were incremented before.
fn count_all<R: HasVariables>(request: &R, conf: &Conf) -> Result<Vec<Held>, Refused> {
    let mut held = Vec::new();
    for limit in conf.limits.items() {
        let declared = limit.zone.kind();
        let key = key_of(request, &declared.key, &declared.key_text, KEY_LEN_MAX);
        let Some(key) = key else { continue };
        let (counts, name) = (limit.zone.state(), limit.zone.name());
        match count(counts, &key, limit.most) {
            Count::In => {
                counts.results.count(LimitResult::Passed);
                held.push(Held { counts: Arc::clone(counts), key: Key::new(&key) });
            }
            Count::Full => {
                counts.results.count(dry_run(LimitResult::Rejected, conf.dry_run));
                let dry = conf.dry();
                request.log(conf.level, format_args!("limiting connections{dry} by zone \"{name}\""));
                return Err(Refused);
            }
            Count::NoSpace => {
                counts.results.count(dry_run(LimitResult::Rejected, conf.dry_run));
                let what = "ngx_slab_alloc() failed: no memory in limit_conn_zone";
                request.log(Level::Crit, format_args!("{what} \"{name}\""));
                return Err(Refused);
            }
        }
    }
    Ok(held)
}

/// The result of counting a request in one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// The request was counted.
    In,
    /// The limit is reached.
    Full,
    /// The zone has no memory for another key.
    NoSpace,
}

/// Checks and counts under one lock, so that two threads cannot both take the last slot.
fn count(counts: &Counts, key: &[u8], most: u32) -> Count {
    counts.with(key, |entry| {
        let Some(count) = entry.get() else {
            return if entry.insert(1) { Count::In } else { Count::NoSpace };
        };
        if *count >= most {
            return Count::Full;
        }
        *count += 1;
        Count::In
    })
}

/// Maximum length in bytes of a key in nginx.
const KEY_LEN_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn settings_are_inherited_and_limits_replaced() {
        let config = loaded(
            "limit_conn_zone $uri zone=one:32k; limit_conn_zone $host zone=two:64k;
             limit_conn one 1; limit_conn two 2; limit_conn_status 429;
             server { location /a { limit_conn_log_level info; limit_conn_dry_run on; }
                      location /b { limit_conn two 65535; limit_conn_dry_run off; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let conf = location.expect("it is there").scope.of::<Conf>();
            let limits = conf.limits.items().iter();
            let limits: Vec<_> = limits.map(|limit| (limit.zone.name().to_owned(), limit.most)).collect();
            (limits, conf.level, conf.status, conf.dry_run)
        };
        assert_eq!(conf("/a"), (vec![("one".into(), 1), ("two".into(), 2)], Level::Info, 429, true));
        assert_eq!(conf("/b"), (vec![("two".into(), 65535)], Level::Error, 429, false));
    }

    #[test]
    fn wrong_values_cause_the_messages_of_nginx() {
        for (text, expected) in [
            ("limit_conn_zone $uri x=1m;", "invalid parameter \"x=1m\""),
            ("limit_conn_zone $uri zone=one;", "invalid zone size \"zone=one\""),
            ("limit_conn_zone $uri zone=one:1x;", "invalid zone size \"zone=one:1x\""),
            ("limit_conn_zone $uri zone=one:31k;", "zone \"zone=one:31k\" is too small"),
            ("limit_conn_zone $uri zone=:1m;", "\"limit_conn_zone\" must have \"zone\" parameter"),
            (
                "limit_conn_zone $uri zone=one:1m; limit_conn_zone $host zone=one:1m;",
                "limit_conn_zone \"one\" is already bound to key \"$uri\"",
            ),
            ("limit_conn_zone $none zone=one:1m;", "unknown \"none\" variable"),
            ("limit_conn one x;", "invalid number of connections \"x\""),
            ("limit_conn one 0;", "invalid number of connections \"0\""),
            ("limit_conn one 65536;", "connection limit must be less 65536"),
            ("limit_conn one 1; limit_conn one 2;", "\"limit_conn\" directive is duplicate"),
            ("limit_conn one 1;", "zero size shared memory zone \"one\""),
            ("limit_conn_log_level crit;", "invalid value \"crit\" in"),
            ("limit_conn_status 600;", "value must be between 400 and 599"),
            ("limit_conn_dry_run x;", "invalid value \"x\" in \"limit_conn_dry_run\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }

    #[test]
    fn counts_decrease_when_their_holder_is_dropped() {
        let counts = Arc::new(Counts::new(32 << 10, COUNT_OVERHEAD));
        let hold = |key: &[u8], most| match count(&counts, key, most) {
            Count::In => Ok(Held { counts: Arc::clone(&counts), key: Key::new(key) }),
            refused => Err(refused),
        };
        let first = hold(b"a", 2).expect("it is the first");
        let second = hold(b"a", 2).expect("it is the second");
        assert_eq!(hold(b"a", 2).err(), Some(Count::Full));
        assert!(hold(b"b", 1).is_ok());
        drop(first);
        let third = hold(b"a", 2).expect("one has ended");
        drop((second, third));
        assert_eq!(counts.count(), 0, "keys without requests have no entry");
        let all: Vec<_> = (0..1000_u32).map_while(|key| hold(&key.to_ne_bytes(), 1).ok()).collect();
        assert_eq!(all.len(), 6 * 64);
        assert_eq!(hold(b"one more", 1).err(), Some(Count::NoSpace));
    }
}

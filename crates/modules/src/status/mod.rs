//! Numbers for operators: `health` for load balancers, `metrics` for Prometheus, `api` as JSON, `dashboard` as an HTML
//! page, and the zones by which requests are counted. [`watch`] shows single requests to operators.
//!
//! [`mod@conf`] has the settings of a block. [`zones`] are derived from the configuration alone. Nothing is counted if no block of the
//! configuration shows it.
//! [`exposure`] warns of pages that all clients can read, [`rebinding`] refuses reads under names of other sites.

mod api;
mod conf;
mod dashboard;
mod exposure;
mod health;
mod limits;
mod metrics;
mod process;
pub(crate) mod rebinding;
mod sessions;
pub mod watch;
mod zones;

use std::sync::Arc;

use ::conf::{Args, Contexts, Error, Spec, value};
use telemetry::traffic::Ended;
use transfer::body::choose::Mover;

use self::conf::{Conf, Named, Page};
use self::watch::Watchable;
use self::zones::StatusZones;
use crate::{Declaration, Directive, Module};
use exchange::module::{Plan, ThreadHooks};
use exchange::phases::Phase;
use exchange::request::Request;
use io::op::DiskVia;
use site::config::{Cx, Http, HttpType, Requirements, Scope, SettingsType};
use site::declaration::{BlockHooks, LEVELS, OWN};
use site::settings::main::MainConf;
use site::uses::FileUse;

pub use metrics::metrics;
pub(crate) use sessions::MODULE as SESSIONS;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan,
    rehearse: api::rehearse,
    thread: ThreadHooks { configured: zones::configured, ..ThreadHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        http: &[HttpType::of::<StatusZones>(), HttpType::of::<Watchable>()],
        blocks: BlockHooks { requires: add_ports, ..BlockHooks::NONE },
        check,
        ..Declaration::named(OWN)
    })
};

/// The contexts of pages; nginx allows `api` only in locations.
const PAGE: Contexts = Contexts::SERVER.or(Contexts::LOCATION);

const DIRECTIVES: &[Directive] = &[
    Directive::main(
        Spec::new(
            OWN,
            "admin_socket",
            Contexts::MAIN,
            Args::Exactly(1),
            "The UNIX-domain socket for `ringroad log`, `ringroad top` and other commands that query a running server; `off` opens none.",
        )
        .default("off"),
        set_admin_socket,
    ),
    Directive::scope(
        Spec::new(OWN, "dashboard", PAGE, Args::None, "Serves an HTML page that shows current metrics."),
        |scope, cx| {
            scope.make_mut::<Conf>().page = Some(Page::Dashboard);
            cx.http.make_mut::<StatusZones>().is_shown = true;
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            OWN,
            "health",
            PAGE,
            Args::Exactly(1),
            "Responds to health checks: `live` with 200; `ready` with 200, or 503 if the server was drained or is about to shut down.",
        ),
        |scope, cx| {
            let mut page = Page::Live;
            cx.choice(&mut page, &[("live", Page::Live), ("ready", Page::Ready)])?;
            scope.make_mut::<Conf>().page = Some(page);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(OWN, "metrics", PAGE, Args::None, "Serves all metrics in the text format of Prometheus."),
        |scope, cx| {
            scope.make_mut::<Conf>().page = Some(Page::Metrics);
            cx.http.make_mut::<StatusZones>().is_shown = true;
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            "http_api",
            "api",
            Contexts::LOCATION,
            Args::Between(0, 1),
            "Serves metrics as JSON; `write=on` allows changes of the servers of upstream groups, and of the pairs of `keyval` zones.",
        ),
        |scope, cx| {
            let may_write = match cx.statement.texts().next() {
                None | Some("write=off") => false,
                Some("write=on") => true,
                Some(other) => return Err(cx.error(format_args!("invalid parameter \"{other}\""))),
            };
            scope.make_mut::<Conf>().page = Some(Page::Api { may_write });
            cx.http.make_mut::<StatusZones>().is_shown = true;
            Ok(())
        },
    ),
    // A page of another site whose name resolves to this server's address (DNS rebinding) has the origin of that name.
    Directive::scope(
        Spec::new(
            OWN,
            "api_hosts",
            LEVELS,
            Args::AtLeast(1),
            "Names of this server under which browsers may change servers through `api`, and clients on the same machine may read status pages; addresses and `localhost` are always accepted.",
        )
        .many(),
        |scope, cx| {
            let names = cx.statement.texts().map(Box::from);
            scope.make_mut::<Conf>().hosts.make_mut(cx.block).extend(names);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            "http_api",
            "status_zone",
            PAGE.or(Contexts::LOCATION_IF),
            Args::Exactly(1),
            "The name under which requests are counted. `off` in a location counts them only for the server, in a server not at all.",
        ),
        |scope, cx| {
            scope.make_mut::<Conf>().zone = Some(match cx.arg(0) {
                "" => return Err(cx.invalid("")),
                "off" => Named::Off,
                name => Named::As(name.into()),
            });
            Ok(())
        },
    ),
    Directive::http(
        Spec::new(
            OWN,
            "metrics_zones",
            Contexts::HTTP,
            Args::Exactly(1),
            "Maximum number of pairs of server and location that are counted separately.",
        )
        .default("1000"),
        set_zones_max,
    ),
];

/// Maximum length of the path of a UNIX-domain socket in bytes (unix(7)), less the suffix of its temporary name.
const SOCKET_PATH_MAX: usize = 96;

/// Sets `admin_socket`. The master opens the socket. With it, requests are shown to commands such as `ringroad log`.
fn set_admin_socket(main: &mut MainConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    if text == "off" {
        return Ok(());
    }
    let path = cx.path(text.strip_prefix("unix:").unwrap_or(text), FileUse::Master);
    if text.is_empty() || path.as_os_str().len() > SOCKET_PATH_MAX {
        let what = format_args!("\"{text}\" is no path of at most {SOCKET_PATH_MAX} bytes");
        return Err(cx.error(what));
    }
    main.admin_socket = Some(path);
    cx.http.make_mut::<Watchable>().0 = true;
    Ok(())
}

/// Sets `metrics_zones`. A thread allocates the memory of a zone at the zone's first request, so a high limit alone
/// costs nothing.
fn set_zones_max(cx: &mut Cx<'_>) -> Result<(), Error> {
    let max = cx.statement.value(0, value::number_in(1, zones::MAX.into()))?;
    cx.http.make_mut::<StatusZones>().max = max as usize;
    Ok(())
}

/// Adds the ports of servers that clients of `api` may add to a group.
fn add_ports(_: &Http, scope: &Scope, requirements: &mut Requirements) {
    if scope.of::<Conf>().page.is_some_and(Page::may_write) {
        requirements.uses.connects_to_any_port("api", None, "write=on");
    }
}

/// Adds the handlers and the logger. If no block shows numbers, requests are not counted.
fn add_to_plan(http: &Http, scope: &Scope, plan: &mut Plan) {
    let conf = scope.shared::<Conf>();
    match conf.page {
        None => {}
        Some(Page::Live | Page::Ready) => plan.now(Phase::Content, Arc::clone(&conf), health::run),
        Some(Page::Dashboard) => plan.now(Phase::Content, Arc::clone(&conf), dashboard::run),
        Some(Page::Metrics) => plan.now(Phase::Content, Arc::clone(&conf), metrics::run),
        Some(Page::Api { .. }) => {
            plan.now_or_later(Phase::Content, Arc::clone(&conf), api::run, |conf, request| {
                Box::pin(api::run_change(conf, request))
            });
        }
    }
    if http.of::<Watchable>().0 {
        plan.log(Arc::clone(&conf), watch::show);
    }
    if http.of::<StatusZones>().is_shown {
        plan.log(conf, count);
    }
}

/// Counts a client's request that has ended. Subrequests belong to another request, and detached fetches of a cache
/// have no client.
fn count(_: &Conf, request: &Request) {
    if request.depth > 0 || request.is_detached {
        return;
    }
    let Some(traffic) = request.thread_config.traffic.get() else { return };
    let ended = Ended {
        status: request.response.status,
        received: request.received,
        sent: request.sent,
        time: request.elapsed(),
        first_byte: (request.sent > 0)
            .then(|| request.header_ready.saturating_duration_since(request.started)),
        engine: request.mover.map(engine_index),
    };
    traffic.count(request.location.0 as usize, &ended, &request.conn.thread.shared.traffic);
    caching::tally::count_served(request);
}

/// Returns the index of a mover among the values of the label `engine`. The values are in `telemetry`, which cannot use the
/// type `Mover`; a test compares them.
fn engine_index(mover: Mover) -> usize {
    let (method, via) = match mover {
        Mover::Read { via, direct } => (usize::from(direct), via),
        Mover::Resident { otherwise } => (2, otherwise),
        Mover::Sendfile(via) => (3, via),
        Mover::Shared { via, direct, .. } => (4 + usize::from(direct), via),
    };
    let via = match via {
        DiskVia::Ring => 0,
        DiskVia::Libaio => 1,
        DiskVia::Pool(_) => 2,
        DiskVia::Sync => 3,
    };
    method * 4 + via
}

/// Creates the zones of the configuration, and warns of pages without access restrictions.
fn check(http: &Http, warnings: &mut Vec<Error>) -> Result<(), Error> {
    if http.of::<StatusZones>().is_shown {
        zones::make(http, warnings);
    }
    exposure::check(http, warnings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};
    use telemetry::traffic;

    #[test]
    fn pages_apply_only_to_the_block_that_sets_them() {
        let config = loaded(
            "server { location /a { metrics; if ($arg_x) { break; } location /a/b { } } location /c { } }",
        );
        let page = |name: &str| {
            let mut found = config.http.locations.iter().filter(|location| location.name == name);
            found.next_back().expect("it is there").scope.of::<Conf>().page
        };
        assert_eq!(["/a", "/a/b", "/c"].map(page), [Some(Page::Metrics), None, None]);
    }

    #[test]
    fn wrong_contexts_and_arguments_are_refused() {
        for (text, expected) in [
            ("http {\nmetrics; }", "\"metrics\" directive is not allowed here"),
            ("http {\nstatus_zone a; }", "\"status_zone\" directive is not allowed here"),
            ("http { server {\nmetrics on; } }", "invalid number of arguments in \"metrics\" directive"),
            ("http { server {\nstatus_zone \"\"; } }", "\"status_zone\" directive invalid value"),
            ("http { server {\nhealth maybe; } }", "invalid value \"maybe\""),
            ("http {\nmetrics_zones 0; }", "value must be between 1 and 65536"),
            ("admin_socket \"\";", "\"\" is no path of at most 96 bytes"),
            ("http { admin_socket a; }", "\"admin_socket\" directive is not allowed here"),
        ] {
            let found = error(text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn engines_have_the_names_of_the_variable() {
        let names: Vec<&str> = {
            let metric = traffic::METRICS.iter().find(|metric| metric.name == "http_bodies_total");
            metric.expect("it is one of them").values().iter().map(|(name, _)| *name).collect()
        };
        let vias = [DiskVia::Ring, DiskVia::Libaio, DiskVia::Pool(1), DiskVia::Sync];
        let movers = vias.into_iter().flat_map(|via| {
            [false, true]
                .into_iter()
                .flat_map(move |direct| {
                    [Mover::Read { via, direct }, Mover::Shared { via, direct, chunk: 1 }]
                })
                .chain([Mover::Resident { otherwise: via }, Mover::Sendfile(via)])
        });
        for mover in movers {
            let word = mover.to_string().replace([' ', '-'], "_");
            assert_eq!(names[engine_index(mover)], word);
        }
    }
}

//! One probe in `http`: a request with the settings of the location, as `proxy` or a similar module sends it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::http::fields::Method;

use super::matching::{Match, ResponseTests};
use super::{CheckConf, Checks, find_match, grpc, required_group};
use crate::fastcgi::FastCgi;
use crate::grpc::Grpc;
use crate::memcached::Memcached;
use crate::passing::pass::{self, TargetParts};
use crate::passing::{Family, Passing, Via};
use crate::proxy::Http;
use crate::scgi::Scgi;
use crate::uwsgi::Uwsgi;
use conf::Error;
use exchange::course;
use exchange::rehearsal::Rehearsal;
use exchange::rehearse::compose;
use exchange::request::{Address, ConnInfo, Request, ThreadConfig};
use exchange::thread::Thread;
use peers::lines::{Draft, Keepalive};
use peers::{Group, Upstreams};
use site::config::{LocationId, Scope, ServerId};
use transfer::received::ReceivedBody;
use upstream::checks::{HealthCheck, ProbeResult};
use upstream::{Failure, NextUpstream, Reply, Settings, Target};

/// Maximum number of bytes of a body that are examined.
const BODY_BYTES_MAX: usize = 256 << 10;

/// Maximum number of idle connections of a check.
const IDLE_MAX: usize = 256;

/// Returns the settings of a location that passes requests on.
fn via_of(scope: &Scope) -> Option<Via<'_>> {
    fn of<F: Family>(scope: &Scope) -> Option<Via<'_>> {
        let passing = scope.of::<Passing<F>>();
        (scope.core.pass == F::PREFIX && passing.conf.pass.is_some()).then(|| passing.via())
    }
    of::<Http>(scope)
        .or_else(|| of::<Grpc>(scope))
        .or_else(|| of::<FastCgi>(scope))
        .or_else(|| of::<Uwsgi>(scope))
        .or_else(|| of::<Scgi>(scope))
        .or_else(|| of::<Memcached>(scope))
}

/// Returns the group that a location passes requests to.
pub(super) fn group_of(scope: &Scope, conf: &CheckConf) -> Result<Arc<Group>, Error> {
    let via = via_of(scope);
    if conf.grpc.is_some() && via.is_some_and(|via| via.conf.prefix != Grpc::PREFIX) {
        let error = Error::at(conf.position.clone(), "\"type=grpc\" without \"grpc_pass\" in its location");
        return Err(error.advise("use \"grpc_pass\" with the name of the group"));
    }
    required_group(via.and_then(|via| via.conf.pass.as_deref()), conf)
}

/// What the probes of a check need.
struct HttpCheck {
    thread: Rc<Thread>,
    thread_config: Rc<ThreadConfig>,
    /// The connection of the requests, which no client has opened.
    conn: ConnInfo,
    server: ServerId,
    location: LocationId,
    conf: Arc<CheckConf>,
    tests: Option<Arc<Match>>,
    /// The settings of the location, for one try.
    settings: Settings,
    /// A group without servers, whose idle connections are those of the check.
    pool: Arc<Group>,
}

/// Returns the checks of the configuration in use.
pub(super) fn checks(thread: &Rc<Thread>) -> Vec<HealthCheck> {
    let thread_config = thread.thread_config();
    let block = &thread_config.config.http;
    let mut checks = Vec::new();
    for (location, id) in block.locations.iter().zip((0..).map(LocationId)) {
        for conf in &location.scope.of::<Checks>().list {
            // The configuration was checked when it was read.
            let (Some(via), Ok(tests), Some(check)) =
                (via_of(&location.scope), find_match(block, conf), conf.check.get())
            else {
                continue;
            };
            let Ok(group) = group_of(&location.scope, conf) else { continue };
            debug_assert!(
                block.of::<Upstreams>().groups().any(|known| Arc::ptr_eq(known, &group)),
                "of this block"
            );
            let here = Address::Unix(Vec::new());
            let http_check = Rc::new(HttpCheck {
                thread: Rc::clone(thread),
                thread_config: Rc::clone(&thread_config),
                conn: ConnInfo { is_traced: true, ..ConnInfo::new(thread, here.clone(), here) },
                server: location.server,
                location: id,
                conf: Arc::clone(conf),
                tests,
                settings: Settings {
                    next_upstream: NextUpstream::OFF,
                    ignore_client_abort: true,
                    limit_rate: None,
                    stores: false,
                    ..via.conf.upstream.clone()
                },
                pool: Arc::new(Group::of_block(idle_connections(&group.name, conf))),
            });
            checks.push(HealthCheck {
                group,
                check: check.clone(),
                name: conf.match_name.clone(),
                interval: conf.interval,
                jitter: conf.jitter,
                port: conf.port,
                probe: Box::new(move |address| {
                    let target = Target::Checked(Arc::clone(&http_check.pool), address);
                    Box::pin(probe(Rc::clone(&http_check), target))
                }),
            });
        }
    }
    checks
}

/// Returns a group with the settings of the idle connections of a check.
fn idle_connections(name: &str, conf: &CheckConf) -> Draft {
    let keepalive = match conf.keepalive_time {
        None => Keepalive { idle_max: 0, ..Keepalive::default() },
        Some(time) => Keepalive {
            idle_max: IDLE_MAX,
            local: true,
            requests: u64::MAX,
            time,
            timeout: conf.interval.saturating_add(conf.jitter).saturating_add(Duration::from_secs(60)),
        },
    };
    Draft { keepalive, ..Draft::new(name) }
}

/// Makes a probe, within the timeouts of the location together.
async fn probe(check: Rc<HttpCheck>, target: Target) -> ProbeResult {
    let Settings { connect_timeout, send_timeout, read_timeout, .. } = check.settings;
    let timer = rt::Timer::new();
    timer.set(rt::now() + connect_timeout.saturating_add(send_timeout).saturating_add(read_timeout));
    let rehearsal = Rc::new(Rehearsal::default());
    let conn = Rc::new(ConnInfo { rehearsal: Some(Rc::clone(&rehearsal)), ..check.conn.clone() });
    let mut request = check.thread.take_request(&check.thread_config, &conn, check.server);
    // Pinned by the box of the caller.
    let result = match timer.limit(std::pin::pin!(ask(&check, &mut request, &target))).await {
        Ok(result) => result,
        Err(rt::Elapsed) => Err(Unfit::Failed(Some("the response did not end in time".to_owned()))),
    };
    check.thread.recycle_request(request);
    let logged = || rehearsal.last_logged().unwrap_or_else(|| "the request failed".to_owned());
    match result {
        Ok(()) => ProbeResult::Passed,
        Err(Unfit::Failed(reason)) => ProbeResult::Failed(reason.unwrap_or_else(logged)),
        Err(Unfit::NotMade(reason)) => ProbeResult::NotMade(reason.unwrap_or_else(logged)),
    }
}

/// The reason why a probe was not passed; `None` if the log of the request has the reason.
enum Unfit {
    Failed(Option<String>),
    NotMade(Option<String>),
}

/// Sends the request, and tests its response.
async fn ask(check: &HttpCheck, request: &mut Request, target: &Target) -> Result<(), Unfit> {
    let HttpCheck { thread_config, location, conf, settings, .. } = check;
    let scope = &thread_config.config.http.locations[location.0 as usize].scope;
    request.location = *location;
    prepare(conf, request).map_err(|reason| Unfit::NotMade(Some(reason)))?;
    let Some(via) = via_of(scope) else { return Err(Unfit::NotMade(None)) };
    let (_, mut destination) = pass::target(request, via.conf).map_err(|_| Unfit::NotMade(None))?;
    if via.conf.pass.as_ref().is_some_and(|pass| pass.has_uri) {
        // The URI is sent as written, whatever the URI of the location.
        let uri = request.head.request_uri(request.bytes()).to_vec();
        destination.target_parts = Arc::new(TargetParts { uri, ..(*destination.target_parts).clone() });
        destination.is_evaluated = true;
    }
    let outgoing =
        via.protocol.build(via.conf, request, &destination, None).map_err(|_| Unfit::NotMade(None))?;
    let reply =
        upstream::fetch(request, settings, target, outgoing).await.map_err(|failure| match failure {
            // The reason is a fault of this server, such as no free descriptor.
            Failure::Status(500) | Failure::ClientClosed => Unfit::NotMade(None),
            Failure::Status(_) => Unfit::Failed(None),
        })?;
    let status = reply.head.head().status().code();
    request.response.status = status;
    let failed = |what: String| Err(Unfit::Failed(Some(what)));
    if let Some(expected) = &conf.grpc {
        return judge_call(expected, request, settings, reply).await;
    }
    let Some(Match::Response(tests)) = check.tests.as_deref() else {
        if !(200..400).contains(&status) {
            return failed(format!("the response has status {status}"));
        }
        if conf.keepalive_time.is_some() {
            body_of(request, settings, reply).await?;
        }
        return Ok(());
    };
    judge(tests, request, settings, reply, conf.keepalive_time.is_some()).await
}

/// Tests a response as a `match` block requires.
async fn judge(
    tests: &ResponseTests,
    request: &mut Request,
    settings: &Settings,
    reply: Reply,
    is_kept: bool,
) -> Result<(), Unfit> {
    let failed = |what: String| Err(Unfit::Failed(Some(what)));
    let heading = Rc::clone(&reply.head);
    let status = heading.head().status().code();
    if !tests.admits_status(status) {
        return failed(format!("the response has status {status}"));
    }
    let values = |name: &str| {
        let named = heading.head().lines(heading.raw());
        let values: Vec<&[u8]> = named
            .filter(|line| line.name.eq_ignore_ascii_case(name.as_bytes()))
            .map(|line| line.value)
            .collect();
        values.into_iter()
    };
    if let Some(name) = tests.failed_field(values) {
        return failed(format!("the header field \"{name}\" does not match"));
    }
    if tests.needs_body() || is_kept {
        let body = body_of(request, settings, reply).await?;
        if !tests.admits_body(&body) {
            return failed("the body does not match".to_owned());
        }
    }
    match tests.missing_variable(|template| template.rendered(request)) {
        Some(name) => failed(format!("the variable \"{name}\" is empty or 0")),
        None => Ok(()),
    }
}

/// Tests the response of a gRPC health check.
async fn judge_call(
    expected: &super::GrpcCheck,
    request: &mut Request,
    settings: &Settings,
    reply: Reply,
) -> Result<(), Unfit> {
    let heading = Rc::clone(&reply.head);
    let status = heading.head().status().code();
    if status != 200 {
        return Err(Unfit::Failed(Some(format!("the response has status {status}"))));
    }
    let body = body_of(request, settings, reply).await?;
    let mut code = Vec::new();
    // A response without a body has the status in its header section.
    if !upstream::state::trailer(request, "grpc_status", &mut code)
        && let Some(value) = heading.head().named(heading.raw(), b"grpc-status").next()
    {
        code = value.to_vec();
    }
    let code = std::str::from_utf8(&code).ok().and_then(|code| code.parse::<u32>().ok());
    match code {
        Some(0) if grpc::is_serving(&body) => Ok(()),
        Some(code) if code != 0 && Some(code) == expected.status => Ok(()),
        Some(0) => Err(Unfit::Failed(Some("the service is not serving".to_owned()))),
        Some(code) => Err(Unfit::Failed(Some(format!("the response has gRPC status {code}")))),
        None => Err(Unfit::Failed(Some("the response has no gRPC status".to_owned()))),
    }
}

/// Composes the request.
fn prepare(conf: &CheckConf, request: &mut Request) -> Result<(), String> {
    let host = ("Host".to_owned(), "localhost".to_owned());
    match &conf.grpc {
        None => compose(request, "GET", conf.uri.as_deref().unwrap_or("/"), &[host])?,
        Some(check) => {
            let message = grpc::request(&check.service);
            let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            let fields = [
                host,
                field("Content-Type", "application/grpc"),
                field("TE", "trailers"),
                field("Content-Length", &message.len().to_string()),
            ];
            compose(request, "POST", grpc::PATH, &fields)?;
            let mut body = ReceivedBody::default();
            body.add(&message);
            body.seal();
            request.body = Some(Rc::new(body));
        }
    }
    request.method = request.head.method();
    debug_assert!(matches!(request.method, Method::Get | Method::Post), "the methods of probes");
    (request.internal, request.is_detached) = (true, true);
    request.host.extend_from_slice(b"localhost");
    match course::read_uri(request) {
        true => Ok(()),
        false => Err("the URI of the check is invalid".to_owned()),
    }
}

/// Receives the body of a response, up to the examined number of bytes.
async fn body_of(request: &Request, settings: &Settings, reply: Reply) -> Result<Vec<u8>, Unfit> {
    let mut body = reply.body.into_bulk(request, settings);
    let mut bytes = Vec::new();
    loop {
        match body.next().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => return Ok(bytes),
            Err(_) => return Err(Unfit::Failed(Some("the body of the response broke off".to_owned()))),
        }
        if bytes.len() >= BODY_BYTES_MAX {
            bytes.truncate(BODY_BYTES_MAX);
            return Ok(bytes);
        }
    }
}

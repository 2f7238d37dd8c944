//! `health_check` and `match`: active checks of the servers of a group, in `http` and in `stream`.
//!
//! | file | content |
//! |---|---|
//! | [`matching`] | `match`: the tests of what a server sends |
//! | [`http`], [`session`] | one probe in `http`, and in `stream` |
//! | [`grpc`] | the messages of the gRPC health checking protocol |
//!
//! `upstream::checks` decides when a server is checked; `peers::health` has the results. A probe is a request or a session that no
//! client has begun. Its log lines become the reason of a failure (`exchange::rehearsal`).

mod grpc;
mod http;
mod matching;
mod session;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use conf::{Args, Contexts, Error, Spec, value};

use self::matching::{Match, Matches};
use crate::{Declaration, Directive, Module};
use exchange::module::ThreadHooks;
use peers::Group;
use peers::health::Check;
use site::config::{Cx, Http, HttpType, Inner, Scope, Section, Settings, SettingsType};
use site::declaration::{BlockHooks, OWN, STREAM_LEVELS};
use upstream::checks;

/// The module.
pub(crate) static MODULE: Module = Module {
    thread: ThreadHooks {
        process: |thread, changed| {
            let mut checks = http::checks(thread);
            checks.append(&mut session::checks(thread));
            (!checks.is_empty()).then(|| Box::new(checks::start(thread, checks, changed)) as Box<_>)
        },
        ..ThreadHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Checks>()],
        http: &[HttpType::of::<Matches>()],
        blocks: BlockHooks { requires, ..BlockHooks::NONE },
        check: |block, _| complete(block, http::group_of),
        ..Declaration::named("http_upstream_hc")
    })
};

/// The directives of `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[STREAM_DIRECTIVES],
    section: Section::Stream,
    blocks: BlockHooks { requires, ..BlockHooks::NONE },
    check: |block, _| complete(block, session::group_of),
    ..Declaration::named("stream_upstream_hc")
});

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            OWN,
            "health_check",
            Contexts::LOCATION,
            Args::Any,
            "Checks the servers of the group that the location passes requests to, with `interval=`, `jitter=`, `fails=`, `passes=`, \
             `uri=`, `match=`, `port=`, `keepalive_time=`, `mandatory`, `persistent`, `type=grpc`, `grpc_service=` and `grpc_status=`.",
        )
        .many(),
        |scope, cx| add_check(scope, cx, Section::Http),
    ),
    Directive::http(
        Spec::new(
            OWN,
            "match",
            Contexts::HTTP,
            Args::Exactly(1),
            "Tests for the responses of health checks: `status`, `header`, `body`, `require`.",
        )
        .raw()
        .many(),
        |cx| matching::add(cx, matching::response),
    ),
];

const STREAM_DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            OWN,
            "health_check",
            Contexts::STREAM_SERVER,
            Args::Any,
            "Checks the servers of the group that the server passes sessions to, with `interval=`, `jitter=`, `fails=`, `passes=`, \
             `match=`, `port=`, `udp`, `mandatory` and `persistent`.",
        )
        .many(),
        |scope, cx| add_check(scope, cx, Section::Stream),
    ),
    Directive::scope(
        Spec::new(
            OWN,
            "health_check_timeout",
            STREAM_LEVELS,
            Args::Exactly(1),
            "How long a health check may take from the connection on.",
        )
        .default("5s"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<Checks>().timeout),
    ),
    Directive::http(
        Spec::new(
            OWN,
            "match",
            Contexts::STREAM,
            Args::Exactly(1),
            "What health checks send, and the test for what they receive: `send`, `expect`.",
        )
        .raw()
        .many(),
        |cx| matching::add(cx, matching::text),
    ),
];

/// The checks of a location, or of a server of `stream`.
#[derive(Clone, Debug)]
struct Checks {
    list: Vec<Arc<CheckConf>>,
    /// `health_check_timeout`
    timeout: Duration,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks { list: Vec::new(), timeout: Duration::from_secs(5) }
    }
}

impl Settings for Checks {
    fn inherit(&self, _: Inner) -> Option<Checks> {
        (!self.list.is_empty()).then(|| Checks { list: Vec::new(), ..self.clone() })
    }
}

/// One `health_check`.
#[derive(Debug)]
struct CheckConf {
    interval: Duration,
    jitter: Duration,
    fails: u32,
    passes: u32,
    is_mandatory: bool,
    is_persistent: bool,
    port: Option<u16>,
    /// Only in `stream`: the check sends a datagram.
    is_udp: bool,
    match_name: String,
    /// Only in `http`, without its default.
    uri: Option<String>,
    keepalive_time: Option<Duration>,
    grpc: Option<GrpcCheck>,
    /// All parameters, which identify the check over reloads.
    key: String,
    position: conf::Span,
    /// The check in its group; set when all blocks were read.
    check: OnceLock<Check>,
}

/// `type=grpc`
#[derive(Clone, Debug, Default)]
struct GrpcCheck {
    service: String,
    /// A status other than 0 that passes.
    status: Option<u32>,
}

impl CheckConf {
    fn new(position: &conf::Span) -> CheckConf {
        CheckConf {
            interval: Duration::from_secs(5),
            jitter: Duration::ZERO,
            fails: 1,
            passes: 1,
            is_mandatory: false,
            is_persistent: false,
            port: None,
            is_udp: false,
            match_name: String::new(),
            uri: None,
            keepalive_time: None,
            grpc: None,
            key: String::new(),
            position: position.clone(),
            check: OnceLock::new(),
        }
    }

    /// Reads a parameter; `None` if it is unknown or its value is invalid.
    fn read(&mut self, text: &str, section: Section) -> Option<()> {
        let time = |text: &str| value::milliseconds(text).map(Duration::from_millis).ok();
        let count = |text: &str| value::number_in(1, u32::MAX.into())(text).map(|count| count as u32).ok();
        match (text.split_once('='), section) {
            (Some(("interval", text)), _) => self.interval = time(text).filter(|time| !time.is_zero())?,
            (Some(("jitter", text)), _) => self.jitter = time(text)?,
            (Some(("fails", text)), _) => self.fails = count(text)?,
            (Some(("passes", text)), _) => self.passes = count(text)?,
            (Some(("port", text)), _) => self.port = Some(value::number_in(1, 65535)(text).ok()? as u16),
            (Some(("match", name)), _) if !name.is_empty() => name.clone_into(&mut self.match_name),
            (Some(("uri", uri)), Section::Http) if is_uri(uri) => self.uri = Some(uri.to_owned()),
            (Some(("keepalive_time", text)), Section::Http) => self.keepalive_time = Some(time(text)?),
            (Some(("type", "grpc")), Section::Http) => self.grpc = Some(GrpcCheck::default()),
            (Some(("grpc_service", name)), Section::Http) => {
                name.clone_into(&mut self.grpc.as_mut()?.service)
            }
            (Some(("grpc_status", text)), Section::Http) => {
                self.grpc.as_mut()?.status = Some(value::number_in(1, 16)(text).ok()? as u32);
            }
            (None, Section::Stream) if text == "udp" => self.is_udp = true,
            (None, _) if text == "mandatory" => self.is_mandatory = true,
            (None, _) if text == "persistent" => self.is_persistent = true,
            _ => return None,
        }
        Some(())
    }

    /// Returns the rules for results in the group.
    fn rules(&self) -> Check {
        Check {
            key: self.key.as_str().into(),
            fails: self.fails,
            passes: self.passes,
            is_mandatory: self.is_mandatory,
            is_persistent: self.is_persistent,
        }
    }
}

/// Whether a text can be sent as the target of a request.
fn is_uri(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

fn add_check(scope: &mut Scope, cx: &mut Cx<'_>, section: Section) -> Result<(), Error> {
    let mut conf = CheckConf::new(cx.statement.span());
    for text in cx.statement.texts() {
        conf.read(text, section).ok_or_else(|| {
            let error = cx.error(format_args!("invalid parameter \"{text}\""));
            match text.split_once('=').map(|(name, _)| name) {
                Some("interval") => error.advise("it must be a time above zero, such as \"interval=5s\""),
                Some("uri") => error.advise("it must be a path, such as \"uri=/health\""),
                Some("type") => error.advise("the only type is \"type=grpc\""),
                Some("grpc_service" | "grpc_status") => error.advise("it must follow \"type=grpc\""),
                _ => error,
            }
        })?;
    }
    if conf.is_persistent && !conf.is_mandatory {
        return Err(cx
            .error("\"persistent\" has no effect without \"mandatory\"")
            .advise("write \"mandatory persistent\""));
    }
    if conf.grpc.is_some() && (conf.uri.is_some() || !conf.match_name.is_empty()) {
        let error = cx.error("\"type=grpc\" is incompatible with \"uri\" and \"match\"");
        return Err(error.advise("its response is tested by the gRPC health checking protocol"));
    }
    conf.key = cx.statement.texts().collect::<Vec<_>>().join(" ");
    scope.make_mut::<Checks>().list.push(Arc::new(conf));
    Ok(())
}

/// Adds the checks of all blocks to their groups, after all blocks were read.
fn complete(
    block: &Http,
    group_of: fn(&Scope, &CheckConf) -> Result<Arc<Group>, Error>,
) -> Result<(), Error> {
    for location in &block.locations {
        for conf in &location.scope.of::<Checks>().list {
            find_match(block, conf)?;
            let group = group_of(&location.scope, conf)?;
            // A scope is checked once; later calls would add nothing.
            conf.check.get_or_init(|| group.add_check(conf.rules()));
        }
    }
    Ok(())
}

/// Returns the `match` block of a check, if it names one.
fn find_match(block: &Http, conf: &CheckConf) -> Result<Option<Arc<Match>>, Error> {
    if conf.match_name.is_empty() {
        return Ok(None);
    }
    let found = block.of::<Matches>().0.get(&conf.match_name).cloned();
    let missing = || {
        let error = Error::at(conf.position.clone(), format_args!("unknown match \"{}\"", conf.match_name));
        error.advise(format_args!("define it with \"match {} {{ }}\"", conf.match_name))
    };
    found.map(Some).ok_or_else(missing)
}

/// Returns the group of a destination, which a check needs.
fn required_group(pass: Option<&crate::passing::pass::Pass>, conf: &CheckConf) -> Result<Arc<Group>, Error> {
    let fault = |what: &str, advice: &str| Err(Error::at(conf.position.clone(), what).advise(advice));
    let Some(pass) = pass else {
        return fault(
            "\"health_check\" without a group of servers in its block",
            "add a \"proxy_pass\", or its like, with the name of an \"upstream\" block",
        );
    };
    match pass.group() {
        None => fault(
            "\"health_check\" with a destination that has variables",
            "write the check and a \"proxy_pass\" with the name of the group into a separate block: in http a location with \"internal\", in stream \
             a server that listens on a socket",
        ),
        Some(group) if group.port.is_some() => fault(
            "\"health_check\" with an address that is no group of servers",
            "define an \"upstream\" block with this server",
        ),
        Some(group) => Ok(Arc::clone(group)),
    }
}

/// Adds the ports of checks.
fn requires(_: &Http, scope: &Scope, requirements: &mut site::config::Requirements) {
    let ports = scope.of::<Checks>().list.iter().filter_map(|conf| conf.port);
    ports.for_each(|port| requirements.uses.connects(port));
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, load, loaded};
    use peers::Upstreams;

    #[test]
    fn wrong_checks_are_refused_with_their_line_and_a_remedy() {
        let of_location = |directives: &str| {
            error(&format!(
                "http {{ upstream b {{ server 127.0.0.1:81; }} match m {{ status 200; }}\nserver {{ location / {{\n{directives} }} }} }}"
            ))
        };
        for (text, expected) in [
            (
                "health_check;",
                "\"health_check\" without a group of servers in its block in /conf/nginx.conf:3",
            ),
            (
                "proxy_pass http://127.0.0.1:1; health_check;",
                "\"health_check\" with an address that is no group",
            ),
            (
                "proxy_pass http://$host; health_check;",
                "\"health_check\" with a destination that has variables",
            ),
            ("proxy_pass http://b; health_check match=x;", "unknown match \"x\" in /conf/nginx.conf:3"),
            ("proxy_pass http://b; health_check interval=0;", "invalid parameter \"interval=0\""),
            ("proxy_pass http://b; health_check uri=x;", "invalid parameter \"uri=x\""),
            ("proxy_pass http://b; health_check fails=0;", "invalid parameter \"fails=0\""),
            ("proxy_pass http://b; health_check port=0;", "invalid parameter \"port=0\""),
            ("proxy_pass http://b; health_check x;", "invalid parameter \"x\""),
            ("proxy_pass http://b; health_check persistent;", "\"persistent\" has no effect without"),
            ("proxy_pass http://b; health_check grpc_service=x;", "invalid parameter \"grpc_service=x\""),
            ("proxy_pass http://b; health_check type=grpc;", "\"type=grpc\" without \"grpc_pass\""),
            ("grpc_pass b; health_check type=grpc match=m;", "\"type=grpc\" is incompatible with"),
        ] {
            let found = of_location(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
        let of_stream = |directives: &str| {
            error(&format!(
                "stream {{ upstream b {{ server 127.0.0.1:81; }}\nserver {{ listen 1; {directives} }} }} http {{ }}"
            ))
        };
        for (text, expected) in [
            ("return x; health_check;", "\"health_check\" without a group of servers in its block"),
            ("proxy_pass b; health_check uri=/;", "invalid parameter \"uri=/\""),
            ("proxy_pass b; health_check match=x;", "unknown match \"x\""),
        ] {
            let found = of_stream(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn checks_belong_to_their_location_and_group() {
        let config = loaded(
            "upstream a { server 127.0.0.1:81; } upstream b { server 127.0.0.1:82; }
             server { location / { proxy_pass http://a; health_check; health_check; location /in { proxy_pass http://b; } } }",
        );
        let checked: Vec<_> = config
            .http
            .of::<Upstreams>()
            .groups()
            .map(|group| (group.name.as_str(), group.is_checked()))
            .collect();
        assert_eq!(checked, [("a", true), ("b", false)]);
        load("stream { upstream a { server 127.0.0.1:81; } server { listen 1; proxy_pass a; health_check; } } http { }")
            .map(drop)
            .expect("a check in stream");
    }
}

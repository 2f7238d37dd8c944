//! The status zones of `stream`: sessions are counted by server, if a block of `http` shows the numbers.
//!
//! The name of a zone is that in `status_zone`, else the first name of the server, else its first address. Servers with the same name
//! have one zone, as for requests.
//!
//! A session is counted when it ends, so a tunnel that is open for days appears late. The counters of a name continue after a
//! reload; those of a name that the configuration does not have any more are removed.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use conf::{Args, Contexts, Error, Spec};

use super::zones::StatusZones;
use crate::{Declaration, Directive, Module};
use exchange::module::{SessionHooks, ThreadHooks};
use exchange::request::ThreadConfig;
use exchange::session::Session;
use exchange::thread::Thread;
use site::config::{Http, HttpType, Section, ServerId, Settings, SettingsType};
use telemetry::traffic::{Ended, Traffic, Zone, Zones};

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        add_to_plan: |config, scope, plan| {
            if config.http.of::<StatusZones>().is_shown {
                plan.log(scope.shared::<SessionZone>(), count);
            }
        },
        ..SessionHooks::NONE
    },
    thread: ThreadHooks { configured, ..ThreadHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<SessionZone>()],
        http: &[HttpType::of::<SessionZones>()],
        section: Section::Stream,
        check: make,
        ..Declaration::named("stream_api")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "stream_api",
        "status_zone",
        Contexts::STREAM_SERVER,
        Args::Exactly(1),
        "The name under which sessions are counted; `off` counts none.",
    ),
    |scope, cx| {
        match cx.arg(0) {
            "" => return Err(cx.invalid("")),
            name => scope.make_mut::<SessionZone>().0 = Some(name.into()),
        }
        Ok(())
    },
)];

/// `status_zone` of a server.
#[derive(Clone, Debug, Default)]
struct SessionZone(Option<Arc<str>>);

impl Settings for SessionZone {}

/// The zones of a configuration.
#[derive(Debug, Default)]
pub(super) struct SessionZones(OnceLock<Arc<Zones>>);

impl SessionZones {
    /// Returns the zones without duplicates.
    pub(super) fn all(&self) -> &[Zone] {
        self.0.get().map_or(&[], |zones| &zones.all)
    }
}

/// Creates the zones when all blocks have been read. Their number is that of the servers in the configuration.
fn make(stream: &Http, _: &mut Vec<Error>) -> Result<(), Error> {
    let mut zones = Zones::default();
    for number in 0..stream.servers.len() {
        let zone =
            name_of(stream, ServerId(number as u32)).map(|server| Zone { server, location: "".into() });
        let index = zone.map(|zone| {
            // A name that is already known has its index.
            let next = zones.all.len() as u32;
            let index = *zones.indices.entry(zone.clone()).or_insert(next);
            if index == next {
                zones.all.push(zone);
            }
            index
        });
        zones.by_location.push(index);
    }
    // The cell is empty, because a configuration is checked once.
    let _ = stream.of::<SessionZones>().0.set(Arc::new(zones));
    Ok(())
}

/// Returns the name of a server's zone; `None` if its sessions are not counted.
fn name_of(stream: &Http, id: ServerId) -> Option<Arc<str>> {
    let server = &stream.servers[id.0 as usize];
    match stream.server_scope(id).of::<SessionZone>().0.as_deref() {
        Some("off") => None,
        Some(name) => Some(name.into()),
        None if !server.name.is_empty() => Some(server.name.as_str().into()),
        None => {
            let mut listens = stream.listens.iter();
            let own = listens.find(|listen| listen.has_server(id));
            Some(own.map_or("_".into(), |listen| listen.spec.text.as_str().into()))
        }
    }
}

/// Starts counting for a new configuration on a thread; existing zones continue.
fn configured(thread: &Rc<Thread>, before: Option<&ThreadConfig>) {
    let thread_config = thread.thread_config();
    let Some(zones) = thread_config.config.section(Section::Stream).of::<SessionZones>().0.get() else {
        return;
    };
    let before = before.and_then(|before| before.session_traffic.get());
    let traffic = Traffic::begin(zones, before, &thread.shared.session_traffic);
    // The cell is set once per configuration.
    let _ = thread_config.session_traffic.set(traffic);
}

/// Counts a session that has ended.
fn count(_: &SessionZone, session: &Session) {
    let Some(traffic) = session.thread_config.session_traffic.get() else { return };
    let (received, sent) = (session.counts.received.get(), session.counts.sent.get());
    let ended = Ended {
        status: session.status,
        received,
        sent,
        time: session.elapsed(),
        first_byte: None,
        engine: None,
    };
    traffic.count(session.server().0 as usize, &ended, &session.thread().shared.session_traffic);
}

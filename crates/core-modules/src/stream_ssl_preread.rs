//! `stream_ssl_preread`: facts of a client's ClientHello, without a handshake, so that a server can be selected by them.
//!
//! `http::client_hello` parses the message. Its size is limited by `preread_buffer_size`, its time by `preread_timeout`.

use std::rc::Rc;

use conf::{Args, Spec};
use http::client_hello::{ClientHello, HelloProgress, parse};

use crate::{Declaration, Directive, Module};
use exchange::module::{SessionHooks, SessionVariable};
use exchange::session::{Session, SessionPhase, SessionStep};
use exchange::tls::server_of;
use site::config::{Section, Settings, SettingsType};
use site::declaration::STREAM_LEVELS;

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        variables: VARIABLES,
        add_to_plan: |_, scope, plan| {
            if scope.of::<Conf>().is_on {
                plan.now(SessionPhase::Preread, scope.shared::<Conf>(), |_, session| run(session));
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[&[Directive::scope(
            Spec::new(
                "stream_ssl_preread",
                "ssl_preread",
                STREAM_LEVELS,
                Args::Flag,
                "Reads the ClientHello of clients: its server name, protocols and version.",
            )
            .default("off"),
            |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().is_on),
        )]],
        settings: &[SettingsType::of::<Conf>()],
        section: Section::Stream,
        ..Declaration::named("stream_ssl_preread")
    })
};

/// The setting of a server.
#[derive(Clone, Debug, Default)]
struct Conf {
    is_on: bool,
}

impl Settings for Conf {}

/// The ClientHello of a session.
struct Preread(Rc<ClientHello>);

const VARIABLES: &[SessionVariable] = &[
    SessionVariable {
        name: "ssl_preread_alpn_protocols",
        get: |session, out| put(session, out, |hello, out| out.extend_from_slice(&hello.alpn.join(&b','))),
        set: None,
        help: "The protocols that the client offers by ALPN, separated by commas.",
    },
    SessionVariable {
        name: "ssl_preread_protocol",
        get: |session, out| {
            put(session, out, |hello, out| out.extend_from_slice(hello.protocol().as_bytes()))
        },
        set: None,
        help: "The highest version of TLS that the client supports.",
    },
    // In the spelling of the client; a `map` ignores case.
    SessionVariable {
        name: "ssl_preread_server_name",
        get: |session, out| put(session, out, |hello, out| out.extend_from_slice(&hello.name)),
        set: None,
        help: "The server name that the client sent (SNI).",
    },
];

fn put(session: &Session, out: &mut Vec<u8>, push: fn(&ClientHello, &mut Vec<u8>)) -> bool {
    let extensions = session.extensions.borrow();
    extensions.get::<Preread>().is_some_and(|Preread(hello)| {
        push(hello, out);
        true
    })
}

/// Parses the bytes received so far. After TLS was terminated here, the client's bytes are no ClientHello.
fn run(session: &mut Session) -> SessionStep {
    if session.conn.secured.get().is_some() {
        return SessionStep::Next;
    }
    match parse(&session.early) {
        HelloProgress::Incomplete => SessionStep::NeedBytes,
        // Another protocol is passed on; the variables have no values.
        HelloProgress::Other => SessionStep::Next,
        HelloProgress::Complete(hello) => {
            // As in nginx the name selects a server of the address, with its destination and settings, if it is a valid host.
            let name = str::from_utf8(&hello.name).ok();
            let valid = name.filter(|name| http::host::validate(name.as_bytes()).is_ok());
            if let Some(name) = valid {
                let server = server_of(Some(name), session.listen(), &session.conn.local).0;
                session.set_server(server);
            }
            session.extensions.borrow_mut().insert(Preread(Rc::new(hello)));
            SessionStep::Next
        }
    }
}

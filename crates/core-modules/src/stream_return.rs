//! `stream_return`: sends a text to the client and closes the connection.
//!
//! The client is not read: bytes that it has sent stay in the kernel, so closing the connection may send a reset after the text, as in
//! nginx.

use conf::{Args, Contexts, Spec};
use std::future::poll_fn;
use std::time::Duration;

use crate::{Declaration, Directive, Module};
use exchange::cut_off;
use exchange::module::SessionHooks;
use exchange::session::{Session, SessionPhase, SessionStep};
use io::Segments;
use rt::Timer;
use site::config::{Inner, Section, Settings, SettingsType};
use site::template::Template;
use std::pin::pin;
use telemetry::{Level, Reason};
use transfer::datagrams::DatagramClient;
use transfer::duplex::Duplex;

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        add_to_plan: |_, scope, plan| {
            if scope.of::<Conf>().text.is_some() {
                plan.later(SessionPhase::Content, scope.shared::<Conf>(), |conf, session| {
                    Box::pin(run(conf, session))
                });
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[&[Directive::scope(
            Spec::new(
                "stream_return",
                "return",
                Contexts::STREAM_SERVER,
                Args::Exactly(1),
                "Sends this text, which has variables, and closes the connection.",
            ),
            // The variables are evaluated when the text is sent: after the handshake, and after `ssl_preread`.
            |scope, cx| {
                scope.make_mut::<Conf>().text = Some(cx.template(cx.arg(0))?);
                Ok(())
            },
        )]],
        settings: &[SettingsType::of::<Conf>()],
        section: Section::Stream,
        ..Declaration::named("stream_return")
    })
};

/// The text of a server.
#[derive(Clone, Debug, Default)]
struct Conf {
    text: Option<Template>,
}

impl Settings for Conf {
    // The directive is allowed in servers only, which inherit from `stream`.
    fn inherit(&self, _: Inner) -> Option<Conf> {
        self.text.is_some().then(Conf::default)
    }
}

/// Time in which a client must accept the text. nginx waits as long as the client does.
const SEND_TIME: Duration = Duration::from_secs(60);

/// Sends the text to a client of UDP, as the response to its first datagram. Each further datagram begins another session, as each
/// connection of TCP does. A text that the send buffer has no space for is lost.
fn reply(session: &Session, client: &DatagramClient, text: &[u8]) -> SessionStep {
    // The datagram itself is not examined.
    let received = client.take(1).map_or(0, |datagram| datagram.bytes.len());
    session.counts.received.set(received as u64);
    match client.send(text, None) {
        Ok(()) => session.counts.sent.set(text.len() as u64),
        Err(errno) => session.log(Level::Info, format_args!("send() failed ({})", Reason(errno))),
    }
    // Datagrams that wait get their own responses.
    client.leave();
    SessionStep::End(200)
}

async fn run(conf: &Conf, session: &mut Session) -> SessionStep {
    let text = conf.text.as_ref().map(|text| text.rendered(session)).unwrap_or_default();
    if let Some(client) = session.datagrams.clone() {
        return reply(session, &client, &text);
    }
    let Some(mut client) = session.client.take() else { return SessionStep::End(500) };
    let (len, mut data) = (text.len() as u64, Segments::from(text));
    let timer = Timer::new();
    timer.set(rt::now() + SEND_TIME);
    let sending = pin!(poll_fn(|context| client.poll_send(context, &mut data)));
    let sent = cut_off::unless(pin!(timer.limit(sending))).await;
    match sent {
        Some(Ok(Ok(()))) => session.counts.sent.set(len),
        Some(Ok(Err(errno))) => {
            session.log(Level::Info, format_args!("send() failed ({})", Reason(errno)));
        }
        Some(Err(rt::Elapsed)) => session.log(Level::Info, format_args!("client timed out")),
        None => {}
    }
    // A client of TLS would take the end without a closing message for a truncation (RFC 8446 section 6.1).
    if client.plain().is_none() {
        Duplex::end_sending(&mut *client);
    }
    session.client = Some(client);
    SessionStep::End(200)
}

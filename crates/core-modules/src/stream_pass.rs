//! `stream_pass`: hands the connection to another listening address of the configuration, of `http` or of `stream`.
//!
//! The connection continues there as if that address had accepted it, after the PROXY header, the access rules and the TLS handshake of
//! this server. `frontend` finds the address. As in nginx the session itself writes no access log.

use std::path::Path;

use conf::{Args, Contexts, Spec};

use crate::{Declaration, Directive, Module};
use exchange::module::SessionHooks;
use exchange::session::{Session, SessionPhase, SessionStep};
use site::config::{Inner, Section, Settings, SettingsType};
use site::settings::listen::ListenAddr;
use site::template::Template;
use telemetry::{ForLog, Level};

/// Maximum number of times that a connection is passed on, as in nginx: more are a cycle.
const PASSES_MAX: u32 = 10;

/// Status of a session that cannot be passed on, as in nginx.
const INTERNAL_ERROR: u16 = 500;

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        add_to_plan: |_, scope, plan| {
            if scope.of::<Conf>().to.is_some() {
                plan.now(SessionPhase::Pass, scope.shared::<Conf>(), run);
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[&[Directive::scope(
            Spec::new(
                "stream_pass",
                "pass",
                Contexts::STREAM_SERVER,
                Args::Exactly(1),
                "Hands connections to the listening address of the configuration with this address, which has variables.",
            ),
            |scope, cx| {
                let text = cx.arg(0);
                let template = cx.template(text)?;
                let to = match template.constant() {
                    None => To::Template(template),
                    Some(text) => To::Address(parse(text.as_bytes()).ok_or_else(|| {
                        cx.error(format_args!("invalid address \"{text}\" in \"pass\"")).advise(
                            "write an IP address with its port, or unix:PATH, of a \"listen\" directive",
                        )
                    })?),
                };
                scope.make_mut::<Conf>().to = Some(to);
                Ok(())
            },
        )]],
        settings: &[SettingsType::of::<Conf>()],
        section: Section::Stream,
        ..Declaration::named("stream_pass")
    })
};

/// The destination of a server.
#[derive(Clone, Debug, Default)]
struct Conf {
    to: Option<To>,
}

#[derive(Clone, Debug)]
enum To {
    Address(ListenAddr),
    Template(Template),
}

impl Settings for Conf {
    // The directive is allowed in servers only, which inherit from `stream`.
    fn inherit(&self, _: Inner) -> Option<Conf> {
        self.to.is_some().then(Conf::default)
    }
}

/// Reads an IP address with its port, or `unix:PATH`. Names are not resolved.
fn parse(text: &[u8]) -> Option<ListenAddr> {
    let text = str::from_utf8(text).ok()?;
    match text.strip_prefix("unix:") {
        Some("") => None,
        Some(path) => Some(ListenAddr::Unix(Path::new(path).into())),
        None => text.parse().ok().map(ListenAddr::Tcp),
    }
}

fn run(conf: &Conf, session: &mut Session) -> SessionStep {
    session.action.set("passing connection to port");
    match destination(conf, session) {
        Ok(address) => SessionStep::Pass(address),
        Err(reason) => {
            session.log(Level::Error, format_args!("{reason}"));
            SessionStep::End(INTERNAL_ERROR)
        }
    }
}

/// Returns the address that a connection is passed to.
fn destination(conf: &Conf, session: &Session) -> Result<ListenAddr, String> {
    if session.datagrams.is_some() {
        return Err("cannot pass udp connection".to_owned());
    }
    if session.conn.passes >= PASSES_MAX {
        return Err("stream pass cycle".to_owned());
    }
    match &conf.to {
        Some(To::Address(address)) => Ok(address.clone()),
        Some(To::Template(template)) => {
            let text = template.rendered(session);
            parse(&text)
                .ok_or_else(|| format!("no address with a port in pass \"{}\"", text.as_slice().for_log()))
        }
        None => Err("no address to pass to".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_a_port_and_are_no_names() {
        for text in ["127.0.0.1:80", "[::1]:80", "unix:/run/x.sock"] {
            assert_eq!(parse(text.as_bytes()).map(|address| address.to_string()).as_deref(), Some(text));
        }
        for text in ["", "80", "127.0.0.1", "localhost:80", "unix:", "udp:127.0.0.1:80", "127.0.0.1:99999"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}

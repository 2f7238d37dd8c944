//! A connection of `stream`: its phases from the accept to the log line.
//!
//! ```text
//!   PROXY header --> PostAccept --> Preaccess --> Access --> TLS handshake --> Preread --> Content --> log
//!                                                                                    `--> Pass: another listening address
//! ```
//! Until the content phase a connection counts as one without a request: it is among the first that are closed to make room. Modules
//! have the handlers; this file has the socket, the handshake and the first bytes. A session ends with the status that nginx logs.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;

use crate::input::{Input, receive_in_time};
use crate::listen_socket::ListenSocket;
use crate::opening::{NoHeader, Opening, PassFault, Passed};
use exchange::capacity::Waits;
use exchange::cut_off;
use exchange::session::{PhaseEnd, Session, SessionPhase};
use exchange::thread::Thread;
use exchange::tls;
use site::address::WithPort;
use site::config::Section;
use site::extensions::Extensions;
use site::settings::listen::ListenAddr;
use site::settings::session::SessionCore;
use telemetry::tally::Stage;
use telemetry::{Level, Reason};

/// Statuses of sessions, as in nginx.
const OK: u16 = 200;
const BAD_REQUEST: u16 = 400;
const INTERNAL_ERROR: u16 = 500;

/// Serves a connection at the address of `stream` with this index. Returns the connection if `pass` hands it to an address of `http`.
pub(crate) async fn serve(
    thread: Rc<Thread>,
    listen_socket: Rc<ListenSocket>,
    fd: OwnedFd,
    index: usize,
) -> Option<HandedOver> {
    let stage = thread.tally.connection();
    let mut opening = match Opening::begin(Section::Stream, thread, listen_socket, fd, stage) {
        Ok(opening) => opening,
        Err(unusable) => {
            unusable.log();
            return None;
        }
    };
    let (mut index, mut held) = (index, Vec::new());
    loop {
        // Boxed, because each phase that has it would need the memory for it twice.
        let passed = run(Box::new(opening), index, &mut held).await?;
        opening = passed.opening;
        match passed.stream_index {
            Some(next) => index = next,
            None => return Some(HandedOver { opening, _held: held }),
        }
    }
}

/// A connection that continues in `http`.
pub(crate) struct HandedOver {
    pub(crate) opening: Opening,
    /// Values of the modules of the sessions before, such as the places of `limit_conn`: as in nginx they last as long as the connection.
    pub(crate) _held: Vec<Extensions>,
}

/// Runs the session of an accepted connection.
async fn run(mut opening: Box<Opening>, index: usize, held: &mut Vec<Extensions>) -> Option<Passed> {
    let thread_config = Rc::clone(&opening.default.thread_config);
    let info = Rc::clone(&opening.info);
    let mut session = Session::new(thread_config, info, index);
    let (client, address) = (&session.conn.peer, &session.listen().spec.addr);
    session.log_plain(Level::Info, format_args!("client {} connected to {address}", WithPort(client)));
    opening.stage.set(Stage::Reading);
    // The relay ends by itself when sessions are cut off; here it is a session that waits before.
    let phases = cut_off::unless(pin!(run_phases(opening, &mut session))).await;
    let status = match phases {
        Some(SessionEnd::Status(status)) => status,
        // As in nginx the session has no line in the log.
        Some(SessionEnd::Passed(passed)) => {
            held.push(session.extensions.take());
            return Some(*passed);
        }
        None => {
            session.log(Level::Info, format_args!("disconnected on shutdown"));
            OK
        }
    };
    session.end(status);
    // Closes the connection, after its line was written as in nginx.
    session.client = None;
    None
}

/// The end of a session.
enum SessionEnd {
    /// The session ends with this status.
    Status(u16),
    /// The connection continues at another address.
    Passed(Box<Passed>),
}

/// Runs the phases of a session.
async fn run_phases(mut opening: Box<Opening>, session: &mut Session) -> SessionEnd {
    if let Err(Ended(status)) = begin(&mut opening, session).await {
        opening.wire.end(&opening.thread);
        return SessionEnd::Status(status);
    }
    match secured(opening, session).await {
        Ok(opening) => converse(opening, session).await,
        Err(Ended(status)) => SessionEnd::Status(status),
    }
}

/// The status of a session that does not reach its next phase.
struct Ended(u16);

/// Reads the header of the PROXY protocol, then runs the phases that need no byte of the client.
async fn begin(opening: &mut Opening, session: &mut Session) -> Result<(), Ended> {
    if session.conn.is_proxied {
        session.action.set("reading PROXY protocol");
        // Boxed, because most connections have no header.
        Box::pin(opening.read_proxy_header()).await.map_err(|reason| match reason {
            NoHeader::Invalid => Ended(BAD_REQUEST),
            NoHeader::Ended => Ended(OK),
        })?;
        session.action.set("initializing session");
    }
    for phase in [SessionPhase::PostAccept, SessionPhase::Preaccess, SessionPhase::Access] {
        run_phase(session, phase).await?;
    }
    Ok(())
}

/// Runs a phase that needs no byte of the client.
async fn run_phase(session: &mut Session, phase: SessionPhase) -> Result<(), Ended> {
    match session.run_phase(phase).await {
        PhaseEnd::Completed => Ok(()),
        PhaseEnd::End(status) => Err(Ended(status)),
        PhaseEnd::NeedBytes | PhaseEnd::Pass(_) => {
            debug_assert!(false, "only the later phases have bytes");
            Err(Ended(INTERNAL_ERROR))
        }
    }
}

/// Performs the TLS handshake, if the address has `ssl`.
async fn secured(mut opening: Box<Opening>, session: &mut Session) -> Result<Box<Opening>, Ended> {
    if !session.conn.is_tls {
        return Ok(opening);
    }
    session.action.set("SSL handshaking");
    let failed = || Ended(INTERNAL_ERROR);
    if opening.early.bytes().is_empty() {
        // The handshake begins with the first bytes.
        let timeout = opening.default.handshake_timeout();
        receive(&mut opening, session, rt::now() + timeout).await.map_err(|_| failed())?;
    }
    let opening = Box::pin((*opening).secured()).await.map(Box::new).ok_or_else(failed)?;
    let conn = Rc::clone(&session.conn);
    let Some(secured) = conn.secured.get() else {
        session.log(Level::Info, format_args!("SSL_do_handshake() failed (SSL: wrong version number)"));
        opening.wire.end(&opening.thread);
        return Err(failed());
    };
    session.set_server(opening.default.id);
    let settings =
        tls::settings_of(&session.config().stream, session.server(), session.listen(), &conn.local);
    if let Err(refusal) = tls::admit_client(settings, secured) {
        session.log(Level::Info, format_args!("{refusal}"));
        opening.wire.end(&opening.thread);
        return Err(failed());
    }
    Ok(opening)
}

/// Examines the first bytes of the client, then passes the connection on or runs the session to its end.
async fn converse(mut opening: Box<Opening>, session: &mut Session) -> SessionEnd {
    session.early.extend_from_slice(opening.early.bytes());
    opening.early = Input::default();
    if session.has_phase(SessionPhase::Preread) {
        session.action.set("prereading client data");
        if let Err(Ended(status)) = preread(&mut opening, session).await {
            opening.wire.end(&opening.thread);
            return SessionEnd::Status(status);
        }
    }
    match session.run_phase(SessionPhase::Pass).await {
        PhaseEnd::Completed | PhaseEnd::NeedBytes => {}
        PhaseEnd::Pass(to) => return pass(opening, session, &to),
        PhaseEnd::End(status) => {
            opening.wire.end(&opening.thread);
            return SessionEnd::Status(status);
        }
    }
    session.action.set("");
    let Opening { wire, mut stage, .. } = *opening;
    stage.set(Stage::Writing);
    if session.scope().of::<SessionCore>().tcp_nodelay {
        wire.set_nodelay();
    }
    session.client = Some(Box::new(wire));
    SessionEnd::Status(match session.run_phase(SessionPhase::Content).await {
        PhaseEnd::End(status) => status,
        // No handler.
        PhaseEnd::Completed | PhaseEnd::NeedBytes | PhaseEnd::Pass(_) => INTERNAL_ERROR,
    })
}

/// Hands the connection to another listening address.
fn pass(opening: Box<Opening>, session: &mut Session, to: &ListenAddr) -> SessionEnd {
    let early = std::mem::take(&mut session.early);
    match (*opening).pass(to, session.client().clone(), early) {
        Ok(passed) => SessionEnd::Passed(Box::new(passed)),
        Err((opening, fault)) => {
            session.log(Level::Error, format_args!("{fault} for \"{to}\""));
            opening.wire.end(&opening.thread);
            // The statuses of nginx.
            SessionEnd::Status(if fault == PassFault::NotFound { OK } else { INTERNAL_ERROR })
        }
    }
}

/// Receives bytes until the handlers of the phase need no more of them.
async fn preread(opening: &mut Opening, session: &mut Session) -> Result<(), Ended> {
    let SessionCore { preread_buffer_size, preread_timeout, .. } = *session.scope().of::<SessionCore>();
    let end = rt::now() + preread_timeout;
    loop {
        match session.run_phase(SessionPhase::Preread).await {
            PhaseEnd::Completed => return Ok(()),
            PhaseEnd::NeedBytes => {}
            PhaseEnd::End(status) => return Err(Ended(status)),
            PhaseEnd::Pass(_) => return Err(Ended(INTERNAL_ERROR)),
        }
        if session.early.len() as u64 >= preread_buffer_size {
            session.log(Level::Error, format_args!("preread buffer full"));
            return Err(Ended(BAD_REQUEST));
        }
        receive(opening, session, end).await?;
        session.early.extend_from_slice(opening.early.bytes());
        opening.early = Input::default();
    }
}

/// Receives bytes into `early` until a deadline. Meanwhile the connection may be closed to make room.
async fn receive(opening: &mut Opening, session: &Session, end: std::time::Instant) -> Result<(), Ended> {
    opening.timer.set(end);
    let waiting = opening.thread.capacity.waits(Waits::First, &opening.timer, opening.wire.fd());
    let received = loop {
        match receive_in_time(&mut opening.wire, &opening.timer).await {
            // Woken for another reason, such as a new configuration.
            Err(rt::Elapsed) if !waiting.is_chosen() && rt::now() < end => opening.timer.set(end),
            received => break received,
        }
    };
    drop(waiting);
    match received {
        Ok(Ok(Some(buf))) => match opening.early.add(buf, usize::MAX) {
            true => Ok(()),
            false => Err(Ended(INTERNAL_ERROR)),
        },
        Ok(Ok(None)) | Err(rt::Elapsed) => Err(Ended(OK)),
        Ok(Err(errno)) => {
            session.log(Level::Info, format_args!("recv() failed ({})", Reason(errno)));
            Err(Ended(OK))
        }
    }
}

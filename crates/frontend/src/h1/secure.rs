//! The TLS handshake of a connection: `listen … ssl`.
//!
//! ```text
//!   accepted --(PROXY header)--> hello --> server by its name --> handshake --> requests over Wire::Tls
//!                                  |            |                     |
//!                                  |            | ssl_reject_handshake| fails, times out, makes room
//!                                  | no TLS     v                     v
//!                                  |          alert, end           alert, one line of the log, end
//!                                  v
//!                                requests over Wire::Plain, each refused by status 400 (497)
//! ```
//! All of it has `client_header_timeout`. A connection that is in its handshake counts as one that has sent no request yet:
//! it is among the first that make room for others. The verdict on a certificate of the client is made here and kept in
//! [`Secured`]; whether a request is refused for it is decided when its server is known (`exchange::tls::admit`).

use std::fmt;
use std::rc::Rc;

use ::tls::server::ACME_PROTOCOL;
use ::tls::stream::{self, HandshakeError, Handshaken};
use ::tls::{Hello, Server};
use rt::Socket;

use crate::h1::Connection;
use crate::h1::client::Http1Client;
use crate::wire::Wire;
use exchange::acme::tls_challenge;
use exchange::room::Waits;
use exchange::secured::Secured;
use exchange::tls::{self, Tls};
use telemetry::tally;
use telemetry::{Level, Reason};

impl Connection {
    /// Makes the handshake within `client_header_timeout`; no connection where it has to end. A client that speaks plain
    /// HTTP goes on with that: a response tells it so.
    pub(super) async fn secured(mut self) -> Option<Connection> {
        let received = self.input.bytes().to_vec();
        if !stream::is_tls(&received) {
            return Some(self);
        }
        self.input.consume(received.len());
        match self.shake_hands(received).await {
            // The handshake was all that the authority wanted.
            Ok((hello, _)) if hello.alpn == [ACME_PROTOCOL] => None,
            Ok((hello, handshaken)) => {
                self.set_secured(hello, &handshaken);
                let is_resumed = self.info.secured.get().is_some_and(|secured| secured.is_resumed);
                let handshake = if is_resumed { tally::Handshake::Resumed } else { tally::Handshake::Full };
                self.thread.tally.count_handshake(handshake);
                self.wire = self.wire.secured(handshaken);
                *self.info.client.borrow_mut() = Some(Rc::new(Http1Client(self.wire.handle())));
                Some(self)
            }
            Err(Failure::Handshake(HandshakeError::Plaintext(buf))) => {
                self.input.add(buf, usize::MAX).then_some(self)
            }
            Err(failure) => {
                self.thread.tally.count_handshake(tally::Handshake::Failed);
                self.complain_of(&failure);
                None
            }
        }
    }

    /// Waits for the handshake. The time of all of it is limited, and a connection may have to make room meanwhile.
    async fn shake_hands(&mut self, received: Vec<u8>) -> Result<(Hello, Handshaken), Failure> {
        let end = rt::now() + self.core().reading.client_header_timeout;
        let Connection { wire, timer, thread, .. } = self;
        let Wire::Plain(socket) = wire else { return Err(Failure::TimedOut) };
        let waiting = thread.room.waits(Waits::First, timer, socket.fd());
        timer.set(end);
        let (entrance, info) = (&self.entrance, &self.info);
        let choose = |hello: &Hello| {
            // An authority offers this protocol alone (RFC 8737 section 3).
            if hello.alpn == [ACME_PROTOCOL] {
                return tls_challenge(hello.name.as_deref()?);
            }
            let generation = thread.generation();
            let listen = entrance.listen(&generation)?;
            let settings =
                |server| generation.config.location(generation.config.server(server).root).scope.of::<Tls>();
            let named = settings(tls::server_of(hello, listen, &info.local).0);
            // As in nginx: a server without a certificate is served with the one of the address's default.
            let server =
                named.server.as_ref().or_else(|| settings(listen.lookup(&info.local).0).server.as_ref());
            server.filter(|_| !named.rejects).cloned()
        };
        let mut shaking = std::pin::pin!(shake_hands(socket, received, choose));
        loop {
            match timer.limit(shaking.as_mut()).await {
                Ok(shaken) => return shaken.map_err(Failure::Handshake),
                Err(rt::Elapsed) if waiting.is_chosen() => return Err(Failure::MadeRoom),
                // Woken for another reason, such as a new configuration.
                Err(rt::Elapsed) if rt::now() < end => timer.set(end),
                Err(rt::Elapsed) => return Err(Failure::TimedOut),
            }
        }
    }

    /// Keeps what requests want to know of the handshake.
    fn set_secured(&mut self, hello: Hello, handshaken: &Handshaken) {
        self.generation = self.thread.generation();
        let config = &self.generation.config;
        let Some(listen) = self.entrance.listen(&self.generation) else { return };
        let (server, _) = tls::server_of(&hello, listen, &self.info.local);
        let settings = config.location(config.server(server).root).scope.of::<Tls>();
        // The cell is empty: this runs once for a connection.
        let _ = self.info.secured.set(Secured::new(
            handshaken,
            hello,
            settings.client,
            settings.trust.as_deref(),
        ));
        self.server = server;
    }

    /// There is no request yet, so the line is about the socket, as in nginx.
    fn complain_of(&self, failure: &Failure) {
        let (client, server) = (&self.info.peer, &self.entrance.address);
        let message = format_args!("{failure} while SSL handshaking, client: {client}, server: {server}");
        let request = self.thread.take_request(&self.generation, &self.info, self.server);
        request.log_plain(failure.level(), message);
        self.thread.keep_request(request);
    }
}

/// Reads what the client says first, has a server chosen by it, and goes through the handshake.
async fn shake_hands(
    socket: &mut Socket,
    mut received: Vec<u8>,
    choose: impl FnOnce(&Hello) -> Option<Server>,
) -> Result<(Hello, Handshaken), HandshakeError> {
    let hello = stream::greet(socket, &mut received).await?;
    match choose(&hello) {
        Some(server) => Ok((hello, stream::accept(socket, &server, received).await?)),
        None => Err(stream::reject(socket)),
    }
}

/// Why there is no connection.
enum Failure {
    Handshake(HandshakeError),
    TimedOut,
    MadeRoom,
}

impl Failure {
    /// Clients that go, or speak another dialect, are no trouble of the server.
    fn level(&self) -> Level {
        Level::Info
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Handshake(HandshakeError::Tls(error)) => {
                write!(f, "SSL_do_handshake() failed (SSL: {error})")
            }
            Failure::Handshake(HandshakeError::Broken(errno)) => {
                write!(f, "recv() failed ({})", Reason(*errno))
            }
            Failure::Handshake(other) => other.fmt(f),
            Failure::TimedOut => f.write_str("client timed out (110: Connection timed out)"),
            Failure::MadeRoom => f.write_str("connection was closed to make room for another"),
        }
    }
}

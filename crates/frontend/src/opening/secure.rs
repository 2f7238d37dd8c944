//! The TLS handshake of a connection: `listen … ssl`.
//!
//! ```text
//!   accepted --(PROXY header)--> hello --> server by its name, certificates --> handshake --> requests over Wire::Tls
//!                                  |            |                     |
//!                                  |            | ssl_reject_handshake| failure, timeout, or closed to make room
//!                                  | no TLS     v                     v
//!                                  |          alert, end           alert, one line of the log, end
//!                                  v
//!                                requests over Wire::Plain, each refused by status 400 (497)
//! ```
//! `client_header_timeout` limits all of these steps. During its handshake a connection counts as a connection without a request: it
//! is among the first that are closed to make room. The verdict on the client's certificate, `ssl_ocsp` included, is determined here
//! and stored in [`Secured`]. Whether a request is refused for it is decided when its server is known (`exchange::tls::admit`).

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use ::tls::handshake::{self, HandshakeError, Handshaken};
use ::tls::server::ACME_PROTOCOL;
use ::tls::turns::Counts;
use ::tls::x509::Distrust;
use ::tls::{Hello, Server};
use rt::Socket;

use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::opening::Opening;
use crate::wire::Wire;
use exchange::acme::tls_challenge;
use exchange::capacity::Waits;
use exchange::certificates::{LoadError, NamedCertificates};
use exchange::ocsp::BlockRef;
use exchange::ocsp::client::{self, RefusedClient};
use exchange::request::{ConnInfo, ThreadConfig};
use exchange::secured::Secured;
use exchange::session::Session;
use exchange::thread::Thread;
use exchange::{error_log, tls};
use site::config::{Section, ServerId};
use site::settings::listen::Listen;
use telemetry::tally;
use telemetry::{ForLog, Level, Reason};

impl Opening {
    /// Performs the handshake within `client_header_timeout`; `None` if the connection must end. A client that uses plain HTTP
    /// continues with it and gets an error response.
    pub(crate) async fn secured(mut self) -> Option<Opening> {
        let received = self.early.bytes().to_vec();
        if !handshake::is_tls(&received) {
            return Some(self);
        }
        self.early.consume(received.len());
        let shaken = self.shake_hands(received).await;
        let Counts { postponed, offloaded } = self.thread.handshakes.take_counts();
        self.thread.tally.count_handshake_steps(postponed, offloaded);
        match shaken {
            // An ACME challenge requires only the handshake.
            Ok((hello, _, _)) if hello.alpn == [ACME_PROTOCOL] => None,
            Ok((hello, handshaken, refused)) => {
                self.set_secured(&hello, &handshaken, refused);
                if self.is_traced() {
                    self.trace_handshake();
                }
                let is_resumed = self.info.secured.get().is_some_and(|secured| secured.is_resumed);
                let handshake = if is_resumed { tally::Handshake::Resumed } else { tally::Handshake::Full };
                self.thread.tally.count_handshake(handshake);
                self.wire = self.wire.secured(handshaken);
                Some(self)
            }
            Err(Failure::Handshake(HandshakeError::Plaintext(buf))) => {
                self.early.add(buf, usize::MAX).then_some(self)
            }
            Err(failure) => {
                self.thread.tally.count_handshake(tally::Handshake::Failed);
                self.log_failure(failure.level(), &failure, "SSL handshaking");
                None
            }
        }
    }

    /// Performs the handshake with a time limit. The connection may be closed during this time to make room.
    async fn shake_hands(&mut self, received: Vec<u8>) -> Result<Shaken, Failure> {
        let end = rt::now() + self.default.handshake_timeout();
        let nodelay = self.default.core().sending.tcp_nodelay;
        let Opening { wire, timer, thread, default, .. } = self;
        let Wire::Plain(socket) = wire else { return Err(Failure::TimedOut) };
        // As in nginx. Otherwise a small first response would wait until the client has acknowledged the session tickets.
        if nodelay {
            let _ = socket.set_nodelay(true);
        }
        let waiting = thread.capacity.waits(Waits::First, timer, socket.fd());
        timer.set(end);
        let (listen_socket, info) = (&self.listen_socket, &self.info);
        let handshake = HandshakeContext { thread, listen_socket, info, default };
        let mut shaking = std::pin::pin!(handshake.shake_hands(socket, received));
        loop {
            match timer.limit(shaking.as_mut()).await {
                Ok(shaken) => return shaken,
                Err(rt::Elapsed) if waiting.is_chosen() => return Err(Failure::Reclaimed),
                // Woken for another reason, such as a new configuration.
                Err(rt::Elapsed) if rt::now() < end => timer.set(end),
                Err(rt::Elapsed) => return Err(Failure::TimedOut),
            }
        }
    }

    /// Stores the facts of the handshake that requests need.
    fn set_secured(&mut self, hello: &Hello, handshaken: &Handshaken, refused: Option<Distrust>) {
        self.renew();
        let thread_config = &self.default.thread_config;
        // If a reload has removed the address, the connection ends before its first request.
        let section = self.default.section;
        let Some(listen) = self.listen_socket.listen_in(section, thread_config) else { return };
        let (server, _) = tls::server_of(hello.name.as_deref(), listen, &self.info.local);
        let settings =
            tls::settings_of(thread_config.config.section(section), server, listen, &self.info.local);
        // The cell is empty: this runs once per connection.
        let _ = self.info.secured.set(Secured::new(
            handshaken,
            hello,
            settings.client,
            settings.trust.as_deref(),
            refused,
            thread_config.number,
        ));
        self.default.id = server;
    }

    /// Writes a debug message about the result of the handshake.
    #[cold]
    fn trace_handshake(&self) {
        let Some(secured) = self.info.secured.get() else { return };
        let (protocol, cipher) = (secured.protocol, secured.cipher);
        let name = secured.name.as_deref().unwrap_or("none");
        let how = if secured.is_resumed { "resumed session" } else { "new session" };
        self.trace(format_args!(
            "TLS handshake: {protocol}, {cipher}, {how}, server name {name}, ALPN \"{}\"",
            secured.alpn.as_slice().for_log()
        ));
    }
}

/// Client hello and result of a handshake, and the verdict of `ssl_ocsp` if it refuses the client.
type Shaken = (Hello, Handshaken, Option<Distrust>);

/// Certificates whose file names contain variables, and their server.
type Named = (Arc<NamedCertificates>, ServerId);

/// The context of a handshake.
struct HandshakeContext<'c> {
    thread: &'c Rc<Thread>,
    listen_socket: &'c ListenSocket,
    info: &'c Rc<ConnInfo>,
    default: &'c DefaultServer,
}

impl HandshakeContext<'_> {
    /// Returns the configuration of the handshake: for `http` the active one, for a session of `stream` that of the session.
    fn thread_config(&self) -> Rc<ThreadConfig> {
        match self.default.section {
            Section::Http => self.thread.thread_config(),
            Section::Stream => Rc::clone(&self.default.thread_config),
        }
    }

    fn listen<'g>(&self, thread_config: &'g ThreadConfig) -> Option<&'g Listen> {
        self.listen_socket.listen_in(self.default.section, thread_config)
    }

    /// Reads the client hello, chooses a server by its name, and performs the handshake.
    async fn shake_hands(&self, socket: &mut Socket, mut received: Vec<u8>) -> Result<Shaken, Failure> {
        let hello = handshake::greet(socket, &mut received).await?;
        let Some((server, named)) = self.choose(&hello) else { return Err(handshake::reject(socket).into()) };
        let server = match named {
            None => server,
            Some((named, id)) => match self.with_named(server, &named, id, &hello).await {
                Ok(server) => server,
                Err(error) => {
                    handshake::fail(socket);
                    return Err(Failure::Certificate(error));
                }
            },
        };
        let turns = &self.thread.handshakes;
        let handshaken = handshake::accept(socket, &server, &hello, received, turns).await?;
        let refused = self.check(&hello, &handshaken).await;
        Ok((hello, handshaken, refused))
    }

    /// Checks the client's certificate by OCSP if the server has `ssl_ocsp`; returns the verdict if it refuses the client.
    async fn check(&self, hello: &Hello, handshaken: &Handshaken) -> Option<Distrust> {
        let thread_config = self.thread_config();
        let section = self.default.section;
        let block = thread_config.config.section(section);
        let listen = self.listen(&thread_config)?;
        let (server, _) = tls::server_of(hello.name.as_deref(), listen, &self.info.local);
        let settings = tls::settings_of(block, server, listen, &self.info.local);
        let at = BlockRef { config: Arc::clone(&thread_config.config), section, server };
        let (checks, trust) = (settings.checks.as_ref()?, settings.trust.as_ref()?);
        let chain = handshaken.with_session(|session| session.peer_certificates().to_vec());
        let RefusedClient { verdict, failure } =
            client::check(self.thread, &at, checks, trust, &chain).await.err()?;
        if let Some(failure) = failure {
            let (client, address) = (&self.info.peer, &self.listen_socket.address);
            let message = format_args!("{failure}, client: {client}, server: {address}");
            let log = &block.server_scope(server).core.error_log;
            error_log::write_about(&thread_config, self.info, log, Level::Error, message);
        }
        Some(verdict)
    }

    /// Returns the settings of a handshake, and certificates with variables in their file names. `None` if the handshake is
    /// refused.
    fn choose(&self, hello: &Hello) -> Option<(Server, Option<Named>)> {
        let thread_config = self.thread_config();
        let section = self.default.section;
        let block = thread_config.config.section(section);
        let listen = self.listen(&thread_config)?;
        let default = listen.lookup(&self.info.local).0;
        // A CA that checks a challenge offers only this protocol (RFC 8737 section 3).
        if hello.alpn == [ACME_PROTOCOL] {
            return Some((tls_challenge(hello.name.as_deref()?)?, None));
        }
        let settings = |server| tls::settings_of(block, server, listen, &self.info.local);
        let asked = tls::server_of(hello.name.as_deref(), listen, &self.info.local).0;
        if settings(asked).rejects {
            return None;
        }
        // As in nginx, a server without a certificate uses the certificate of the default server of the address. If the rest of its
        // settings is the same too, so is the handshake.
        let shown = [asked, default].into_iter().find(|server| settings(*server).server.is_some())?;
        let at = || BlockRef { config: Arc::clone(&thread_config.config), section, server: shown };
        settings(shown).staples.iter().for_each(|staple| staple.tend(self.thread, at));
        let named = settings(shown).named.clone().map(|named| (named, shown));
        settings(shown).server.clone().map(|server| (server, named))
    }

    /// Loads certificates whose names have variables, with the values at the handshake.
    async fn with_named(
        &self,
        server: Server,
        named: &NamedCertificates,
        id: ServerId,
        hello: &Hello,
    ) -> Result<Server, LoadError> {
        // The variables are those of a request that has only its connection, as in nginx.
        let info = Rc::new(ConnInfo {
            client: RefCell::default(),
            secured: OnceCell::from(Secured::hello(hello)),
            ..ConnInfo::clone(self.info)
        });
        let names = match self.default.section {
            Section::Http => {
                let request = self.thread.take_request(&self.thread.thread_config(), &info, id);
                let names = named.names(&*request);
                self.thread.recycle_request(request);
                names
            }
            Section::Stream => {
                let thread_config = self.thread_config();
                let Some(index) = self.listen_socket.stream_index(&thread_config) else {
                    return Ok(server);
                };
                let mut session = Session::new(thread_config, info, index);
                session.set_server(id);
                named.names(&session)
            }
        };
        Ok(server.with_identities(&named.load(names).await?))
    }
}

/// Reason why the handshake failed.
enum Failure {
    Handshake(HandshakeError),
    Certificate(LoadError),
    TimedOut,
    Reclaimed,
}

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Failure {
        Failure::Handshake(error)
    }
}

impl Failure {
    /// Returns the log level. A client that disconnects or is incompatible is not a server error; a missing certificate or signature
    /// is.
    fn level(&self) -> Level {
        match self {
            Failure::Certificate(_) => Level::Error,
            Failure::Handshake(HandshakeError::Tls(error)) if error.is_unsigned() => Level::Error,
            _ => Level::Info,
        }
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
            Failure::Certificate(error) => error.fmt(f),
            Failure::TimedOut => f.write_str("client timed out (110: Connection timed out)"),
            Failure::Reclaimed => f.write_str("connection was closed to make room for another"),
        }
    }
}

//! Tests the opening of connections: what a protocol gets for each kind of first bytes, and which connections it never gets.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;

use io::Segments;
use io::engine::{EngineConfig, NetKind};
use rt::{Runtime, Socket};
use tls::client::{Client, ClientSettings};
use tls::server::Versions;
use tls::signing::KeyKind;
use tls::{ciphers, groups, handshake};

use exchange::files::root_facts;
use exchange::request::Address;
use exchange::thread::{ConfigVersion, Thread};
use frontend::listen_socket::ListenSocket;
use frontend::opening::{Opened, Protocol, open};
use modules::testing;
use site::config::Config;
use site::settings::listen::ListenAddr;
use telemetry::files::{LogFiles, Opened as OpenedLogs};
use telemetry::shared::Shared;

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// PROXY protocol 2 with the TCP addresses 192.0.2.1:4711 and 192.0.2.2:443.
const PROXY_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x12\x67\x01\xbb";

/// The server's side of a test connection.
struct Server {
    thread: Rc<Thread>,
    listen_socket: Rc<ListenSocket>,
    listener: TcpListener,
}

impl Server {
    fn new(config: &Arc<Config>) -> Server {
        let version = ConfigVersion::new(modules::all(), config, root_facts(config), 1, Arc::new(()));
        let logs = LogFiles::new(1, true);
        let thread = Thread::new(Arc::new(Shared::default()), version, logs, OpenedLogs::default());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let bound = Address::Inet(listener.local_addr().expect("a bound socket"));
        let configured = ListenAddr::Tcp(([127, 0, 0, 1], 80).into());
        Server {
            thread: Rc::new(thread),
            listen_socket: Rc::new(ListenSocket::new(configured, bound)),
            listener,
        }
    }

    /// Connects a client; returns its socket, its address, and the accepted socket.
    #[expect(clippy::disallowed_methods, reason = "to a listening socket of this test")]
    fn connect(&self) -> (Socket, SocketAddr, TcpStream) {
        let address = self.listener.local_addr().expect("a bound socket");
        let client = TcpStream::connect(address).expect("a listening socket");
        let (accepted, peer) = self.listener.accept().expect("a connection that was made");
        for socket in [&client, &accepted] {
            socket.set_nonblocking(true).expect("a socket");
        }
        (Socket::new(client.into()), peer, accepted)
    }
}

/// What a client does after it has connected.
enum Script {
    /// It sends these pieces one after the other, and waits.
    Send(Vec<&'static [u8]>),
    /// It sends these pieces, and disconnects.
    Leave(Vec<&'static [u8]>),
    /// It sends the first bytes, makes a handshake with this server name and these protocols, and sends the last bytes.
    Tls(&'static [u8], &'static str, Vec<&'static str>, &'static [u8]),
}

impl Script {
    async fn run(self, mut socket: Socket) {
        match self {
            Script::Send(pieces) => send(&mut socket, pieces).await,
            Script::Leave(pieces) => return send(&mut socket, pieces).await,
            Script::Tls(first, name, alpn, last) => {
                send(&mut socket, vec![first]).await;
                let client = Client::new(ClientSettings {
                    identity: None,
                    versions: Versions { tls12: true, tls13: true },
                    suites: ciphers::parse("ALL"),
                    suites_13: ciphers::all_13(),
                    groups: groups::auto(),
                    reuses_sessions: false,
                    sends_name: true,
                    alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
                });
                let client = client.expect("valid settings");
                let Ok(shaken) = handshake::connect(&mut socket, &client, name).await else { return };
                let mut stream = shaken.over(socket);
                let mut data = Segments::from(last.to_vec());
                // The server may have ended the connection.
                let _ = std::future::poll_fn(|context| stream.poll_send(context, &mut data, false)).await;
                return std::future::pending().await;
            }
        }
        std::future::pending().await
    }
}

async fn send(socket: &mut Socket, pieces: Vec<&'static [u8]>) {
    for piece in pieces {
        let (sent, _) = socket.writer.send(Segments::from(piece.to_vec()), false).await;
        if sent.is_err() {
            return;
        }
        // The server most likely receives the piece alone. If not, the result is the same.
        for _ in 0..10 {
            rt::yield_now().await;
        }
    }
}

/// Opens the connection of a client and passes the result to `check`, with the client's address.
fn opened<T>(listen: &str, script: Script, check: impl FnOnce(Option<Opened>, SocketAddr) -> T) -> T {
    let pem =
        tls::issue::self_signed_pem(&["a.test".to_owned()], KeyKind::EcdsaP256, std::time::SystemTime::now());
    let text = format!(
        "http {{ access_log off; server {{ listen 127.0.0.1:80 {listen} }} server {{ listen 127.0.0.1:80; server_name other.test; }} }}"
    );
    let files = [("/cert", pem.expect("a key can be generated"))];
    let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
    let config = testing::load_with(&text, &files).unwrap_or_else(|error| panic!("{text}: {error}")).config;
    let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
    Runtime::new(engine.expect("epoll is everywhere")).block_on(async {
        let server = Server::new(&config);
        let (client, peer, accepted) = server.connect();
        rt::spawn(script.run(client));
        let opened = open(Rc::clone(&server.thread), Rc::clone(&server.listen_socket), accepted.into()).await;
        check(opened, peer)
    })
}

/// Returns the protocol and the early bytes; `None` if the connection has ended.
fn protocol(listen: &str, script: Script) -> Option<(Protocol, Vec<u8>)> {
    opened(listen, script, |opened, _| opened.map(|opened| (opened.protocol, opened.early.bytes().to_vec())))
}

fn http1(early: &[u8]) -> Option<(Protocol, Vec<u8>)> {
    Some((Protocol::Http1, early.to_vec()))
}

fn http2(early: &[u8]) -> Option<(Protocol, Vec<u8>)> {
    Some((Protocol::Http2, early.to_vec()))
}

const TLS: &str = "ssl; ssl_certificate /cert; ssl_certificate_key /cert; http2 on;";

#[test]
fn the_facts_of_a_connection_name_both_ends() {
    opened(";", Script::Send(vec![GET]), |opened, peer| {
        let info = opened.expect("a request").info;
        assert_eq!(info.peer, Address::Inet(peer));
        assert!(matches!(info.local, Address::Inet(local) if local.ip() == peer.ip()));
        assert!(!info.is_tls && !info.is_proxied && info.secured.get().is_none());
        assert!(info.proxy.get().is_none() && info.client.borrow().is_none());
    });
}

#[test]
fn the_first_bytes_choose_the_protocol() {
    assert_eq!(protocol("; http2 on;", Script::Send(vec![GET])), http1(GET));
    assert_eq!(protocol("; http2 on;", Script::Send(vec![PREFACE])), http2(PREFACE));
    assert_eq!(protocol("; http2 off;", Script::Send(vec![PREFACE])), http1(PREFACE));
    assert_eq!(protocol("http2;", Script::Send(vec![PREFACE])), http2(PREFACE), "by the address alone");
    assert_eq!(protocol("deferred; http2 on;", Script::Send(vec![PREFACE])), http2(PREFACE));
}

/// `P` also begins `POST`, and the client may send the rest later or never.
#[test]
fn a_preface_in_pieces_is_recognised() {
    let pieces = |last| Script::Send(vec![b"P", b"R", last]);
    assert_eq!(protocol("; http2 on;", pieces(b"I * HTTP")), http2(b"PRI * HTTP"));
    assert_eq!(protocol("; http2 on;", pieces(b"OPFIND")), http1(b"PROPFIND"));
    assert_eq!(protocol("; http2 off;", Script::Send(vec![b"P"])), http1(b"P"));
    assert_eq!(protocol("; http2 on;", Script::Leave(vec![b"PR"])), http1(b"PR"));
    assert_eq!(protocol("; http2 on; client_header_timeout 30ms;", Script::Send(vec![b"PR"])), None);
}

#[test]
fn a_connection_without_bytes_ends() {
    assert_eq!(protocol(";", Script::Leave(vec![])), None);
    assert_eq!(protocol("; client_header_timeout 30ms;", Script::Send(vec![])), None);
}

#[test]
fn the_header_of_the_proxy_protocol_becomes_a_fact() {
    const PROXY_1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 443\r\n";
    let scripts = || {
        [
            vec![PROXY_1, PREFACE],
            vec![PROXY_2, PREFACE],
            vec![&PROXY_1[..9], &PROXY_1[9..], PREFACE],
            vec![&PROXY_2[..5], &PROXY_2[5..20], &PROXY_2[20..], PREFACE],
            vec![b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 443\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        ]
    };
    for pieces in scripts() {
        opened("proxy_protocol; http2 on;", Script::Send(pieces), |opened, peer| {
            let Opened { info, early, protocol, .. } = opened.expect("a valid header");
            let header = info.proxy.get().expect("a header that names the client");
            assert_eq!((header.src_addr.as_slice(), header.src_port), (&b"192.0.2.1"[..], 4711));
            assert_eq!((header.dst_addr.as_slice(), header.dst_port), (&b"192.0.2.2"[..], 443));
            assert!(info.is_proxied && info.peer == Address::Inet(peer), "the peer is the proxy");
            assert_eq!((protocol, early.bytes()), (Protocol::Http2, PREFACE));
        });
    }
}

#[test]
fn a_connection_without_valid_proxy_header_ends() {
    assert_eq!(protocol("proxy_protocol;", Script::Send(vec![GET])), None);
    assert_eq!(protocol("proxy_protocol;", Script::Leave(vec![b"PROXY TCP4"])), None);
    assert_eq!(protocol("proxy_protocol;", Script::Leave(vec![])), None);
    let pending = "proxy_protocol; client_header_timeout 30ms;";
    assert_eq!(protocol(pending, Script::Send(vec![b"PROXY TCP4"])), None);
}

#[test]
fn the_handshake_negotiates_the_protocol() {
    let agreed = |alpn, last| protocol(TLS, Script::Tls(b"", "a.test", alpn, last));
    assert_eq!(agreed(vec!["h2", "http/1.1"], PREFACE), http2(b""), "the preface is not awaited");
    assert_eq!(agreed(vec!["http/1.1"], GET), http1(GET));
    assert_eq!(agreed(vec![], GET), http1(GET));
    assert_eq!(agreed(vec![], PREFACE), http1(PREFACE), "TLS without ALPN is HTTP/1");
    assert_eq!(agreed(vec!["unknown"], GET), None);
}

#[test]
fn tls_follows_the_proxy_header_and_becomes_a_fact() {
    let listen = format!("proxy_protocol {TLS}");
    opened(&listen, Script::Tls(PROXY_2, "a.test", vec!["http/1.1"], GET), |opened, _| {
        let Opened { info, early, protocol, wire, .. } = opened.expect("a handshake");
        let secured = info.secured.get().expect("the result of the handshake");
        assert_eq!((secured.name.as_deref(), secured.protocol), (Some("a.test"), "TLSv1.3"));
        assert_eq!((secured.alpn.as_slice(), info.scheme()), (&b"http/1.1"[..], "https"));
        assert_eq!(info.proxy.get().expect("a header").src_port, 4711);
        assert_eq!((protocol, early.bytes()), (Protocol::Http1, GET));
        assert!(!wire.accepts_files(), "TLS needs the bytes");
    });
}

/// HTTP/1 answers it with status 400.
#[test]
fn plain_http_at_an_address_with_tls_is_http_1() {
    for first in [GET, PREFACE] {
        opened(TLS, Script::Send(vec![first]), |opened, _| {
            let Opened { info, early, protocol, .. } = opened.expect("a request");
            assert_eq!((protocol, early.bytes()), (Protocol::Http1, first));
            assert!(info.is_tls && info.secured.get().is_none());
        });
    }
}

#[test]
fn a_failed_handshake_ends_the_connection() {
    // A record with a complete message that is not a ClientHello.
    assert_eq!(protocol(TLS, Script::Send(vec![b"\x16\x03\x01\x00\x04\x63\0\0\0"])), None);
    assert_eq!(protocol(TLS, Script::Leave(vec![b"\x16\x03\x01"])), None);
    let rejects = format!("{TLS} ssl_reject_handshake on;");
    assert_eq!(protocol(&rejects, Script::Tls(b"", "a.test", vec![], GET)), None);
    let pending = format!("{TLS} client_header_timeout 30ms;");
    assert_eq!(protocol(&pending, Script::Send(vec![b"\x16\x03\x01"])), None);
}

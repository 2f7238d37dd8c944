//! quiche: requests, an upload, many concurrent streams, a new network path, resumption and early data.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use quiche::h3::{self, NameValue};
use quiche::{Config, ConnectionId, PathEvent, RecvInfo};

/// The size that every path has (RFC 9000 section 14): quiche does not search for it by default.
const DATAGRAM_MAX: usize = 1200;

/// A response, or the part of it that is received.
#[derive(Default)]
struct Reply {
    status: Vec<u8>,
    body: Vec<u8>,
    is_complete: bool,
}

struct Client {
    sockets: Vec<UdpSocket>,
    server: SocketAddr,
    connection: quiche::Connection,
    http: Option<h3::Connection>,
    replies: HashMap<u64, Reply>,
    deadline: Instant,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Returns a new connection ID, or the half of a token.
fn random() -> [u8; 16] {
    let half = || RandomState::new().hash_one(0).to_ne_bytes();
    [half(), half()].concat().try_into().expect("16 bytes")
}

impl Client {
    fn begin(port: u16, session: Option<&[u8]>) -> Client {
        let mut config = Config::new(quiche::PROTOCOL_VERSION).expect("a configuration");
        config.verify_peer(false);
        config.set_application_protos(h3::APPLICATION_PROTOCOL).expect("a protocol");
        config.set_max_idle_timeout(30_000);
        // The server may search for more.
        config.set_max_recv_udp_payload_size(1472);
        config.set_max_send_udp_payload_size(DATAGRAM_MAX);
        config.set_initial_max_data(10_000_000);
        config.set_initial_max_stream_data_bidi_local(1_000_000);
        config.set_initial_max_stream_data_bidi_remote(1_000_000);
        config.set_initial_max_stream_data_uni(1_000_000);
        config.set_initial_max_streams_bidi(100);
        config.set_initial_max_streams_uni(100);
        config.set_active_connection_id_limit(4);
        config.enable_early_data();
        let (socket, server) = (socket(), SocketAddr::from(([127, 0, 0, 1], port)));
        let (id, local) = (random(), socket.local_addr().expect("an address"));
        let id = ConnectionId::from_ref(&id);
        let mut connection =
            quiche::connect(Some("localhost"), &id, local, server, &mut config).expect("a connection");
        if let Some(session) = session {
            connection.set_session(session).expect("a session");
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        Client { sockets: vec![socket], server, connection, http: None, replies: HashMap::new(), deadline }
    }

    /// Sends and receives until something holds.
    fn drive(&mut self, what: &str, holds: impl Fn(&mut Client) -> bool) {
        loop {
            self.receive();
            self.take_responses();
            let is_done = holds(self);
            self.send();
            if is_done {
                return;
            }
            let error = self.connection.peer_error();
            assert!(!self.connection.is_closed(), "closed before {what}: {error:?}");
            assert!(Instant::now() < self.deadline, "too late: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; 65535];
        for socket in &self.sockets {
            let to = socket.local_addr().expect("an address");
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                // An error that ends the connection is noticed later; a late packet of another path is one that does not.
                let _ = self.connection.recv(&mut buffer[..len], RecvInfo { from, to });
            }
        }
        if self.connection.timeout() == Some(Duration::ZERO) {
            self.connection.on_timeout();
        }
    }

    fn send(&mut self) {
        let mut buffer = [0; DATAGRAM_MAX];
        for socket in &self.sockets {
            let from = socket.local_addr().expect("an address");
            let paths: Vec<SocketAddr> = self.connection.paths_iter(from).collect();
            for to in paths {
                while let Ok((len, to)) = self.connection.send_on_path(&mut buffer, Some(from), Some(to)) {
                    socket.send_to(&buffer[..len], to.to).expect("a datagram");
                }
            }
        }
    }

    fn take_responses(&mut self) {
        let is_ready = self.connection.is_established() || self.connection.is_in_early_data();
        if self.http.is_none() && is_ready {
            let config = h3::Config::new().expect("a configuration");
            self.http = Some(h3::Connection::with_transport(&mut self.connection, &config).expect("HTTP/3"));
        }
        let (Some(http), connection) = (&mut self.http, &mut self.connection) else { return };
        loop {
            match http.poll(connection) {
                Ok((id, h3::Event::Headers { list, .. })) => {
                    let status = list.iter().find(|field| field.name() == b":status").expect("a status");
                    self.replies.entry(id).or_default().status = status.value().to_vec();
                }
                Ok((id, h3::Event::Data)) => {
                    let mut buffer = [0; 16384];
                    while let Ok(len) = http.recv_body(connection, id, &mut buffer) {
                        self.replies.entry(id).or_default().body.extend_from_slice(&buffer[..len]);
                    }
                }
                Ok((id, h3::Event::Finished)) => self.replies.entry(id).or_default().is_complete = true,
                Ok((_, event)) => panic!("{event:?}"),
                Err(h3::Error::Done) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Sends a request. Returns its stream.
    fn request(&mut self, method: &str, path: &str, mut body: &[u8]) -> u64 {
        self.drive("HTTP/3", |client| client.http.is_some());
        let fields = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
        let fields = fields.map(|(name, value)| h3::Header::new(name.as_bytes(), value.as_bytes()));
        let http = self.http.as_mut().expect("just made");
        let id = http.send_request(&mut self.connection, &fields, body.is_empty()).expect("a request");
        while !body.is_empty() {
            let http = self.http.as_mut().expect("just made");
            match http.send_body(&mut self.connection, id, body, true) {
                Ok(len) => body = &body[len..],
                Err(h3::Error::Done) => {
                    self.drive("room in the window", |client| {
                        client.connection.stream_capacity(id).is_ok_and(|capacity| capacity > 16)
                    });
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        id
    }

    /// Returns the body of a response whose status is below 300.
    fn body(&mut self, id: u64) -> Vec<u8> {
        self.drive("a response", |client| client.replies.get(&id).is_some_and(|reply| reply.is_complete));
        let reply = self.replies.remove(&id).expect("it is complete");
        assert!(reply.status.starts_with(b"2"), "{}", String::from_utf8_lossy(&reply.status));
        reply.body
    }

    fn get(&mut self, path: &str) -> Vec<u8> {
        let id = self.request("GET", path, b"");
        self.body(id)
    }

    /// Continues the connection from another port, after the server has validated the path.
    fn migrate(&mut self) {
        self.connection
            .new_scid(&ConnectionId::from_ref(&random()), u128::from_ne_bytes(random()), true)
            .expect("another connection ID");
        self.drive("a connection ID of the server", |client| client.connection.available_dcids() > 0);
        let (other, server) = (socket(), self.server);
        let local = other.local_addr().expect("an address");
        self.sockets.push(other);
        self.connection.probe_path(local, server).expect("a probe");
        self.drive("the new path", |client| {
            let events = std::iter::from_fn(|| client.connection.path_event_next());
            events.fold(false, |all, event| all | (event == PathEvent::Validated(local, server)))
        });
        self.connection.migrate(local, server).expect("the other path");
    }

    fn close(&mut self) {
        self.connection.close(true, 0x100, b"").expect("an open connection");
        self.send();
    }
}

pub fn run(port: u16, length: usize) {
    let mut client = Client::begin(port, None);
    assert_eq!(client.get("/hello"), b"hello h3");
    let large = client.get("/large.bin");
    assert_eq!(large.len(), length);
    let upload = client.request("PUT", "/put/quiche", &large);
    client.body(upload);
    let requests: Vec<u64> = (0..50).map(|_| client.request("GET", "/hello", b"")).collect();
    for id in requests {
        assert_eq!(client.body(id), b"hello h3");
    }
    client.migrate();
    assert_eq!(client.get("/hello"), b"hello h3");
    assert!(client.get("/large.bin") == large, "another body on the new path");
    client.drive("a session", |client| client.connection.session().is_some());
    let session = client.connection.session().expect("just seen").to_vec();
    client.close();

    let mut client = Client::begin(port, Some(&session));
    client.send();
    assert!(client.connection.is_in_early_data(), "no early data");
    assert_eq!(client.get("/hello"), b"hello h3");
    assert!(client.connection.is_resumed(), "not resumed");
    client.close();
}

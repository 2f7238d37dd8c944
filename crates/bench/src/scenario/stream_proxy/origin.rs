//! The origin of `bench stream-proxy`: an echo over TCP and UDP, and large responses. It runs in this process, on the generator's
//! processors.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::thread;

use crate::failure::Failure;
use crate::method::pin;
use crate::scenario::origin::Origin;

/// First byte of a message whose response is large.
pub(super) const LARGE: u8 = 0xff;

/// Size of the large response in bytes.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// First byte of a message whose response is huge.
pub(super) const HUGE: u8 = 0xfe;

/// Size of the huge response in bytes.
pub(super) const HUGE_BYTES: usize = 10 << 30;

/// The running origin. That of UDP ends with the process.
pub(super) struct Origins {
    pub(super) tcp: Origin,
    /// The port of UDP.
    pub(super) udp: u16,
}

/// Starts the origin on this processor.
pub(super) fn start(cpu: Option<usize>) -> Result<Origins, Failure> {
    let failed = || Failure::kernel("opening a socket of UDP on 127.0.0.1");
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
    let udp = socket.local_addr().map_err(failed())?.port();
    thread::spawn(move || {
        let _ = cpu.map(pin::this_thread);
        let mut bytes = vec![0; 64 << 10];
        loop {
            // An error is that of an earlier response whose client has closed its socket.
            if let Ok((count, from)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&bytes[..count], from);
            }
        }
    });
    Ok(Origins { tcp: Origin::start(cpu, serve)?, udp })
}

/// Serves a connection until its end. Each message arrives in one piece, because the client waits for each response.
fn serve(mut socket: TcpStream) {
    let _ = socket.set_nodelay(true);
    let (mut bytes, large) = (vec![0; 64 << 10], vec![LARGE; LARGE_BYTES]);
    while let Ok(count @ 1..) = socket.read(&mut bytes) {
        let (response, times): (&[u8], usize) = match bytes[..count] {
            [LARGE, ..] => (&large, 1),
            [HUGE, ..] => (&large, HUGE_BYTES / LARGE_BYTES),
            // The readiness check.
            [b'G', b'E', b'T', ..] => (b"HTTP/1.1 204 No Content\r\n\r\n", 1),
            _ => (&bytes[..count], 1),
        };
        for _ in 0..times {
            if socket.write_all(response).is_err() {
                return;
            }
        }
    }
}

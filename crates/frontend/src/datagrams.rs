//! Receives the datagrams of a UDP socket that clients send to.

use io::Errno;
use io::sys::{DATAGRAM_BYTES, Datagrams};
use rt::net::DatagramListener;

/// Number of buffers of [`DATAGRAM_BYTES`] that one receive fills.
const BUFFERS: usize = 8;

/// Maximum number of receives in a row; then the connections process their datagrams.
const RECEIVES_MAX: usize = 4;

/// Returns memory for [`receive`].
pub(crate) fn space() -> Vec<u8> {
    vec![0; BUFFERS * DATAGRAM_BYTES]
}

/// Passes the datagrams that have arrived to a function, up to a limit.
///
/// # Errors
/// Those of the socket, such as a lack of memory. Errors such as `ECONNREFUSED` are about a client, and are ignored.
pub(crate) fn receive(
    socket: &DatagramListener,
    space: &mut [u8],
    mut distribute: impl FnMut(&Datagrams, &mut [u8]),
) -> Result<(), Errno> {
    for _ in 0..RECEIVES_MAX {
        match socket.receive(space, &mut distribute) {
            Ok(BUFFERS) => {}
            Ok(_) | Err(Errno::AGAIN) => break,
            Err(Errno::CONNREFUSED | Errno::INTR | Errno::HOSTUNREACH | Errno::NETUNREACH) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

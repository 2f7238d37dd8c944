//! The channel between the master and a worker: framed messages with descriptors over a socket pair.
//!
//! [`Channel`] never blocks: unsent data is queued, and incomplete packets are buffered. [`message`] defines the messages;
//! [`wire`] encodes numbers and paths. [`expected`] and [`budget`] limit the messages that the master accepts.
//!
//! ```text
//! packet = length u32 | number of descriptors u32 | body          (little endian, length counts the body)
//! ```
//! The descriptors of a packet are sent with its bytes as SCM_RIGHTS, in order, at most [`FDS_PER_SEND`] per `sendmsg`
//! (SCM_MAX_FD, unix(7)). Each batch of descriptors needs at least one byte.

pub(crate) mod acme;
pub(crate) mod budget;
pub(crate) mod expected;
pub(crate) mod message;
pub(crate) mod signer;
mod wire;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum number of descriptors per `sendmsg`; the kernel's limit SCM_MAX_FD.
const FDS_PER_SEND: usize = 253;

/// Limits of the packets that an end of the channel accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum length of a body in bytes.
    body: usize,
    /// Maximum number of descriptors of a packet.
    fds: usize,
}

/// Limits for packets from the master: the maximum size of a configuration's text plus space for its paths, and many more
/// descriptors than any real number of listeners and log files.
pub(crate) const FROM_MASTER: Limits = Limits { body: (1 << 30) + (1 << 26), fds: 1 << 16 };

/// Limits for packets from a worker, which are small and contain no descriptors. The master may run as root, and an attacker
/// may control the worker. So the worker must not be able to exhaust the master's memory or its descriptor table.
pub(crate) const FROM_WORKER: Limits = Limits { body: 64 * 1024, fds: 0 };

/// Time after which a process that reads nothing is considered dead. A worker reads its channel between all other steps; a swap of the
/// largest configurations takes a second or two.
const UNREAD_TIME: Duration = Duration::from_secs(60);

/// Number of queued messages at which a process is considered dead. After a crash of the agent the master sends two messages for
/// each of at most 1000 challenges, and one for each certificate.
const UNREAD_MAX: usize = 20_000;

/// Length in bytes of the header of a packet.
const HEADER: usize = 8;

/// Size in bytes of the buffer of one `recvmsg`.
const READ_BYTES: usize = 64 * 1024;

/// A received packet: a body and its descriptors. Descriptors are missing if the descriptor table of this process was full,
/// because the kernel discards them (MSG_CTRUNC, recvmsg(2)).
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The result of an attempt to receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// A complete packet.
    Packet(Packet),
    /// No packet is complete yet; poll again.
    Nothing,
    /// The peer has closed the channel.
    Closed,
}

/// Reason why the channel cannot continue.
#[derive(Debug)]
pub(crate) enum ChannelError {
    /// A system call failed.
    System(Errno),
    /// A packet exceeds the [`Limits`].
    Oversized { body: usize, fds: usize },
}

impl std::fmt::Display for ChannelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChannelError::System(errno) => write!(f, "control channel: {}", io::Error::from(*errno)),
            ChannelError::Oversized { body, fds } => {
                write!(
                    f,
                    "control channel: a message of {body} bytes and {fds} descriptors exceeds the limit"
                )
            }
        }
    }
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> ChannelError {
        ChannelError::System(errno)
    }
}

/// Bytes that wait to be sent, with their descriptors.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<Rc<OwnedFd>>,
    fds_sent: usize,
}

/// An end of the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    /// The limits of packets from the other end.
    limits: Limits,
    /// Queued packets in the order of sending; only the first may have been sent partially.
    outgoing: VecDeque<Outgoing>,
    /// Target of the next `recvmsg`.
    buffer: Box<[u8]>,
    /// Bytes of an incomplete packet.
    incoming: Vec<u8>,
    /// Descriptors that arrived with these bytes. The number is the offset in `incoming` after the byte that carried
    /// the descriptor: it shows to which packet the descriptor belongs.
    incoming_fds: VecDeque<(usize, OwnedFd)>,
    /// Since when the other end has read nothing although packets are queued.
    unread_since: Option<Instant>,
}

impl Channel {
    /// Creates a channel to a worker. Returns the master's end and the socket for the worker.
    pub(crate) fn pair() -> Result<(Channel, OwnedFd), Errno> {
        Channel::pair_within(FROM_WORKER)
    }

    /// Creates a channel. Returns the master's end, which accepts packets within these limits, and the socket for the other
    /// process.
    pub(crate) fn pair_within(limits: Limits) -> Result<(Channel, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Channel::new(ours, limits)?, theirs))
    }

    /// Creates an end of a channel that accepts packets within these limits.
    pub(crate) fn new(socket: OwnedFd, limits: Limits) -> Result<Channel, Errno> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let (outgoing, incoming) = (VecDeque::new(), Vec::new());
        let (incoming_fds, buffer) = (VecDeque::new(), vec![0; READ_BYTES].into_boxed_slice());
        Ok(Channel { socket, limits, outgoing, buffer, incoming, incoming_fds, unread_since: None })
    }

    /// Enqueues a message and sends as much as possible.
    pub(crate) fn send(&mut self, body: &[u8], fds: Vec<Rc<OwnedFd>>) -> Result<(), ChannelError> {
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        let (length, count) = (u32::try_from(body.len()), u32::try_from(fds.len()));
        let (Ok(length), Ok(count)) = (length, count) else {
            return Err(ChannelError::Oversized { body: body.len(), fds: fds.len() });
        };
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(body);
        // Each batch of descriptors needs a byte; padding adds bytes if the packet has fewer bytes than batches.
        bytes.resize(bytes.len() + padding(fds.len()), 0);
        self.outgoing.push_back(Outgoing { bytes, sent: 0, fds, fds_sent: 0 });
        self.flush()
    }

    /// Returns the number of messages that wait for the socket to become writable.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether the other end does not read its messages: none of [`UNREAD_MAX`] queued messages, or nothing for
    /// [`UNREAD_TIME`]. The queue and its descriptors would grow without limit.
    pub(crate) fn is_unread(&self, now: Instant) -> bool {
        self.outgoing.len() >= UNREAD_MAX || self.unread_until().is_some_and(|until| until <= now)
    }

    /// Returns the time at which [`Channel::is_unread`] becomes true if the other end still reads nothing.
    pub(crate) fn unread_until(&self) -> Option<Instant> {
        self.unread_since.map(|since| since + UNREAD_TIME)
    }

    /// Whether queued data waits for the socket to become writable.
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends queued data until the queue is empty or the socket's buffer is full.
    pub(crate) fn flush(&mut self) -> Result<(), ChannelError> {
        while let Some(first) = self.outgoing.front_mut() {
            match first.send_some(&self.socket) {
                Ok(()) => self.unread_since = None,
                Err(Errno::AGAIN) => {
                    self.unread_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if first.sent == first.bytes.len() {
                self.outgoing.pop_front();
            }
        }
        Ok(())
    }

    /// Returns a packet if one is complete.
    pub(crate) fn receive(&mut self) -> Result<Received, ChannelError> {
        loop {
            if let Some(packet) = self.take_packet()? {
                return Ok(Received::Packet(packet));
            }
            match self.read_some() {
                Ok(0) => return Ok(Received::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                // The peer has exited without reading all of our bytes.
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Removes the first packet from the received data, if its bytes are complete. Its descriptors have then arrived too,
    /// because descriptors arrive with a byte of their packet.
    fn take_packet(&mut self) -> Result<Option<Packet>, ChannelError> {
        let Some((length, rest)) = self.incoming.split_first_chunk::<4>() else { return Ok(None) };
        let Some((count, _)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let (body, fds) = (u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*count) as usize);
        if body > self.limits.body || fds > self.limits.fds {
            return Err(ChannelError::Oversized { body, fds });
        }
        let whole = HEADER + body + padding(fds);
        if self.incoming.len() < whole {
            return Ok(None);
        }
        let rest = self.incoming.split_off(whole);
        let mut packet = std::mem::replace(&mut self.incoming, rest);
        packet.truncate(HEADER + body);
        packet.drain(..HEADER);
        let own = self.incoming_fds.iter().take_while(|(end, _)| *end <= whole).count();
        let fds = self.incoming_fds.drain(..own).map(|(_, fd)| fd).collect();
        for (end, _) in &mut self.incoming_fds {
            *end -= whole;
        }
        Ok(Some(Packet { body: packet, fds }))
    }

    /// Makes one `recvmsg`. The kernel ends the read after bytes that carry descriptors, so the offset of each descriptor is
    /// known.
    fn read_some(&mut self) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_SEND))];
        // If the buffer has no space for descriptors, the kernel closes the received ones, unix(7).
        let mut control = match self.limits.fds {
            0 => RecvAncillaryBuffer::default(),
            _ => RecvAncillaryBuffer::new(&mut space),
        };
        let mut slices = [IoSliceMut::new(&mut self.buffer)];
        let outcome = recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC);
        let count = outcome.as_ref().map_or(0, |message| message.bytes);
        self.incoming.extend_from_slice(&self.buffer[..count]);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.incoming_fds.extend(fds.map(|fd| (self.incoming.len(), fd)));
            }
        }
        outcome.map(|message| message.bytes)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Outgoing {
    /// Makes one `sendmsg`: a byte with a batch of descriptors, or all remaining bytes.
    fn send_some(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        let left = &self.fds[self.fds_sent..];
        let batch: Vec<BorrowedFd<'_>> = left.iter().take(FDS_PER_SEND).map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_SEND))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // While descriptors remain, each batch is sent with only one byte, so that the last byte never precedes a descriptor.
        let end = if batch.is_empty() { self.bytes.len() } else { self.sent + 1 };
        if !batch.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(&batch));
            assert!(fits, "the buffer is sized for a full batch");
        }
        let slices = [IoSlice::new(&self.bytes[self.sent..end])];
        self.sent += sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL)?;
        self.fds_sent += batch.len();
        Ok(())
    }
}

/// Returns the number of padding bytes after a body, so that each batch of descriptors has a byte in addition to those of the
/// header.
fn padding(fds: usize) -> usize {
    fds.div_ceil(FDS_PER_SEND).saturating_sub(HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    fn channels() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().expect("socket pairs are always there");
        (ours, Channel::new(theirs, FROM_MASTER).expect("a fresh socket"))
    }

    fn pump(from: &mut Channel, to: &mut Channel) -> Packet {
        loop {
            from.flush().expect("the other end lives");
            match to.receive().expect("the other end lives") {
                Received::Packet(packet) => return packet,
                Received::Nothing => {}
                Received::Closed => panic!("closed"),
            }
        }
    }

    fn file(text: &str) -> OwnedFd {
        let memory = rustix::fs::memfd_create("control", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut file = std::fs::File::from(memory);
        file.write_all(text.as_bytes()).expect("memory takes it");
        file.into()
    }

    #[test]
    fn messages_arrive_complete_and_in_order() {
        let (mut a, mut b) = channels();
        let large = vec![7; 3 << 20];
        a.send(b"first", Vec::new()).expect("sent");
        a.send(&large, Vec::new()).expect("queued");
        a.send(b"", Vec::new()).expect("queued");
        assert!(a.wants_to_send());
        assert_eq!(pump(&mut a, &mut b).body, b"first");
        assert_eq!(pump(&mut a, &mut b).body, large);
        assert_eq!(pump(&mut a, &mut b).body, b"");
        assert!(matches!(b.receive(), Ok(Received::Nothing)));
    }

    #[test]
    fn any_number_of_descriptors_arrives_with_its_message() {
        for count in [1, 252, 253, 254, 600] {
            let (mut a, mut b) = channels();
            let text = |index: usize| format!("file {index}");
            let fds = (0..count).map(|index| Rc::new(file(&text(index)))).collect();
            a.send(b"with files", fds).expect("sent");
            a.send(b"next", vec![Rc::new(file("last"))]).expect("sent");
            let packet = pump(&mut a, &mut b);
            assert_eq!((packet.body.as_slice(), packet.fds.len()), (b"with files".as_slice(), count));
            for (index, fd) in packet.fds.into_iter().enumerate() {
                let (mut file, mut found) = (std::fs::File::from(fd), String::new());
                file.rewind().expect("memory rewinds");
                file.read_to_string(&mut found).expect("memory reads");
                assert_eq!(found, text(index));
            }
            let packet = pump(&mut a, &mut b);
            assert_eq!((packet.body.as_slice(), packet.fds.len()), (b"next".as_slice(), 1));
        }
    }

    #[test]
    fn a_packet_is_complete_without_descriptors_that_the_kernel_discarded() {
        let (mut a, mut b) = channels();
        let header = [4_u32.to_le_bytes(), 2_u32.to_le_bytes()].concat();
        rustix::io::write(&a, &[&header, b"word".as_slice()].concat()).expect("twelve bytes fit");
        a.send(b"next", vec![Rc::new(file("next"))]).expect("sent");
        for (body, fds) in [(b"word", 0), (b"next", 1)] {
            let received = b.receive().expect("the other end lives");
            let Received::Packet(packet) = received else { panic!("{received:?}") };
            assert_eq!((packet.body.as_slice(), packet.fds.len()), (body.as_slice(), fds));
        }
    }

    #[test]
    fn the_exit_of_the_peer_is_detected() {
        let (a, mut b) = channels();
        drop(a);
        assert!(matches!(b.receive(), Ok(Received::Closed)));
    }

    #[test]
    fn a_frame_beyond_the_limits_is_refused() {
        let (a, mut b) = channels();
        let header = [u32::MAX.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        rustix::io::write(&a, &header).expect("eight bytes fit");
        assert!(matches!(b.receive(), Err(ChannelError::Oversized { .. })));
    }

    #[test]
    fn a_worker_cannot_announce_more_than_64_kib_or_send_descriptors() {
        for (body, fds) in [(64 * 1024 + 1, 0_u32), (0, 1)] {
            let (mut master, worker) = channels();
            let header = [u32::to_le_bytes(body), fds.to_le_bytes()].concat();
            rustix::io::write(&worker, &header).expect("eight bytes fit");
            assert!(matches!(master.receive(), Err(ChannelError::Oversized { .. })), "{body} {fds}");
        }
        // Unannounced descriptors are closed immediately.
        let (mut master, worker) = channels();
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let mut sent = Outgoing {
            bytes: [4_u32.to_le_bytes(), 0_u32.to_le_bytes(), *b"word"].concat(),
            sent: 0,
            fds: vec![Rc::new(writer)],
            fds_sent: 0,
        };
        while sent.sent < sent.bytes.len() {
            sent.send_some(&worker.socket).expect("twelve bytes fit");
        }
        drop(sent);
        let received = master.receive().expect("within the limits");
        assert!(
            matches!(received, Received::Packet(packet) if packet.body == b"word" && packet.fds.is_empty())
        );
        // End of file: no copy of the other end is open.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
    }
}

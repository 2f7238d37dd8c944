//! The master's end of the control channel to a child process: a worker, the ACME agent, or the signing process.
//!
//! ```text
//! open --the process closes it, or shuts down its reading side--> closed: killed after EXIT_TIME, unless it exits before
//!   +--the process reads nothing------------------------------------> killed
//! ```
//! A closed channel is not polled, because it would be ready at every poll(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::control::{Channel, ChannelError, Received};

/// Maximum time from the end of the channel to the end of the process. Only the exit of a process closes its end, but the kernel
/// may then wait for a disk.
const EXIT_TIME: Duration = Duration::from_secs(10);

/// The channel to a child process.
#[derive(Debug)]
pub(super) struct Link {
    /// `None` after the process has closed the channel, or was killed.
    channel: Option<Channel>,
    /// The time at which the process is killed, because it has closed one or both directions of the channel without an exit.
    closed_until: Option<Instant>,
}

impl Link {
    pub(super) fn new(channel: Channel) -> Link {
        Link { channel: Some(channel), closed_until: None }
    }

    /// Sends a message. If the channel is closed, the process is ending and needs no message.
    pub(super) fn send(&mut self, body: &[u8], fds: Vec<Rc<OwnedFd>>) {
        self.try_sending(|channel| channel.send(body, fds));
    }

    /// Sends queued messages.
    pub(super) fn flush(&mut self) {
        self.try_sending(Channel::flush);
    }

    /// Sends until sending fails. Messages of the process that arrived before can still be received then.
    fn try_sending(&mut self, send: impl FnOnce(&mut Channel) -> Result<(), ChannelError>) {
        let Some(channel) = self.channel.as_mut().filter(|_| self.closed_until.is_none()) else { return };
        if send(channel).is_err() {
            self.note_closed();
        }
    }

    /// Returns the next message of the process, or that it has just closed the channel.
    pub(super) fn receive(&mut self) -> Result<Received, ChannelError> {
        let Some(channel) = &mut self.channel else { return Ok(Received::Nothing) };
        let received = channel.receive();
        if matches!(received, Ok(Received::Closed)) {
            self.channel = None;
            self.note_closed();
        }
        received
    }

    fn note_closed(&mut self) {
        self.closed_until.get_or_insert_with(|| Instant::now() + EXIT_TIME);
    }

    /// Returns the reason to kill a process that does not use the channel as it has to. It is returned only once.
    pub(super) fn take_fault(&mut self, now: Instant) -> Option<&'static str> {
        let fault = if self.closed_until.is_some_and(|until| until <= now) {
            "has closed the control channel and runs"
        } else if self.channel.as_ref().is_some_and(|channel| channel.is_unread(now)) {
            "does not read its messages"
        } else {
            return None;
        };
        self.close();
        Some(fault)
    }

    /// Closes the channel to a process that was killed.
    pub(super) fn close(&mut self) {
        (self.channel, self.closed_until) = (None, None);
    }

    /// Returns the time at which [`Link::take_fault`] may have a reason.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.closed_until.or_else(|| self.channel.as_ref().and_then(Channel::unread_until))
    }

    /// Returns the channel for poll(2), and whether it has data that can be sent.
    pub(super) fn polled(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let can_send = self.closed_until.is_none();
        self.channel.as_ref().map(|channel| (channel.as_fd(), can_send && channel.wants_to_send()))
    }

    /// Returns the number of messages that wait until the process reads.
    pub(super) fn queued(&self) -> usize {
        self.channel.as_ref().map_or(0, Channel::queued)
    }
}

#[cfg(test)]
impl Link {
    /// Lets the time pass that the process has to exit after it has closed the channel.
    pub(super) fn skip_exit_time(&mut self) {
        self.closed_until = self.closed_until.map(|_| Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::FROM_WORKER;
    use rustix::net::{Shutdown, shutdown};

    fn link() -> (Link, OwnedFd) {
        let (ours, theirs) = Channel::pair_within(FROM_WORKER).expect("two sockets");
        (Link::new(ours), theirs)
    }

    #[test]
    fn a_closed_channel_is_not_polled_and_is_a_fault_once() {
        let (mut link, theirs) = link();
        assert!(link.polled().is_some() && link.deadline().is_none());
        drop(theirs);
        assert!(matches!(link.receive(), Ok(Received::Closed)));
        assert!(matches!(link.receive(), Ok(Received::Nothing)));
        let until = link.deadline().expect("a limit");
        assert!(link.polled().is_none() && link.take_fault(Instant::now()).is_none());
        assert_eq!(link.take_fault(until), Some("has closed the control channel and runs"));
        assert_eq!((link.take_fault(until), link.deadline()), (None, None));
    }

    #[test]
    fn a_process_that_shuts_down_its_reading_side_has_closed_the_channel() {
        let (mut link, theirs) = link();
        let frame = [1_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        rustix::io::write(&theirs, &[&frame, b"x".as_slice()].concat()).expect("nine bytes fit");
        shutdown(&theirs, Shutdown::Read).expect("it is connected");
        link.send(b"message", Vec::new());
        let until = link.deadline().expect("a limit");
        // Another message does not extend the time, and nothing waits to be sent.
        link.send(b"message", Vec::new());
        link.flush();
        assert_eq!(
            (link.deadline(), link.polled().map(|(_, is_sending)| is_sending)),
            (Some(until), Some(false))
        );
        // Its last message is received.
        assert!(matches!(link.receive(), Ok(Received::Packet(packet)) if packet.body == b"x"));
        assert_eq!(link.take_fault(until), Some("has closed the control channel and runs"));
    }
}

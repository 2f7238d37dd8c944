//! Executes a [`Reply`] on a connection: sends the bytes in order, and executes the actions at their positions.
//!
//! [`Sender`] counts wire bytes and body bytes, and never lets a write go beyond the next action. Bytes are collected
//! before they are written, so that a chunk's size line is not a separate segment.

use std::time::Instant;

use crate::origin::connection::{Connection, Ended};
use crate::origin::reply::{At, Do, Framing, Reply, Source};

/// Maximum number of bytes that are collected before a write.
const GATHERED_BYTES: usize = 64 * 1024;

/// Why sending stops.
#[derive(Debug)]
enum Halt {
    /// An action of the reply ended the connection.
    Ended(Ended),
    /// The connection failed.
    Failed,
    /// The origin is ending.
    Stopped,
}

/// Sends the reply to a request with this method.
pub(crate) fn send_reply(connection: &mut Connection, method: &str, reply: &Reply) -> Ended {
    let mut sender = Sender {
        fired: vec![false; reply.events.len()],
        next_tick: Instant::now(),
        tick_left: 0,
        connection,
        reply,
        gathered: Vec::new(),
        wire: 0,
        body: None,
        ended: false,
    };
    match sender.run(method) {
        Ok(()) if reply.raw.is_none() && reply.framing == Framing::UntilClose => Ended::Close,
        Ok(()) => Ended::Kept,
        Err(Halt::Ended(ended)) => ended,
        Err(Halt::Failed) => Ended::Aborted,
        Err(Halt::Stopped) => Ended::Close,
    }
}

struct Sender<'a> {
    connection: &'a mut Connection,
    reply: &'a Reply,
    fired: Vec<bool>,
    gathered: Vec<u8>,
    /// Wire bytes so far, including the collected ones.
    wire: u64,
    /// Body bytes so far; `None` before the head was sent.
    body: Option<u64>,
    ended: bool,
    next_tick: Instant,
    tick_left: u64,
}

impl Sender<'_> {
    fn run(&mut self, method: &str) -> Result<(), Halt> {
        let reply = self.reply;
        self.fire()?;
        if let Some(bytes) = &reply.raw {
            self.push(bytes, false)?;
        } else {
            self.push(&reply.before, false)?;
            self.push(&reply.head(), false)?;
            self.body = Some(0);
            self.fire()?;
            match (reply.has_body(method), reply.framing) {
                (false, _) => {}
                (true, Framing::Chunked) => self.chunked()?,
                (true, _) => self.payload(0, reply.body_len())?,
            }
        }
        self.ended = true;
        self.fire()?;
        self.flush()?;
        let missed = reply.events.iter().zip(&self.fired).find(|(_, fired)| !**fired);
        if let Some(((place, _), _)) = missed.filter(|_| reply.raw.is_some() || reply.has_body(method)) {
            // Reported as a fault, because a test that waits for the action would otherwise blame the proxy.
            self.connection.hub().fault(format!("{reply:?} has no {place:?}"));
        }
        Ok(())
    }

    fn chunked(&mut self) -> Result<(), Halt> {
        let chunks = &self.reply.chunks;
        let (mut start, end) = (0, self.reply.body_len());
        let mut number = 0;
        while start < end {
            let size = chunks.sizes.get(number).or(chunks.sizes.last()).copied().unwrap_or(end).max(1);
            let size = size.min(end - start);
            self.size_line(number as u64, size)?;
            self.payload(start, size)?;
            self.push(b"\r\n", false)?;
            start += size;
            number += 1;
        }
        if chunks.has_last {
            self.size_line(number as u64, 0)?;
            for line in &chunks.trailers {
                self.push(&[line, &b"\r\n"[..]].concat(), false)?;
            }
            self.push(b"\r\n", false)?;
        }
        Ok(())
    }

    fn size_line(&mut self, number: u64, size: u64) -> Result<(), Halt> {
        let chunks = &self.reply.chunks;
        let written = chunks.size_texts.iter().find(|(at, _)| *at == number);
        let size = written.map_or_else(|| format!("{size:x}").into_bytes(), |(_, text)| text.clone());
        self.push(&[&size[..], &chunks.extension, b"\r\n"].concat(), false)
    }

    /// Sends `count` bytes of the body from `start` on.
    fn payload(&mut self, start: u64, count: u64) -> Result<(), Halt> {
        let (mut from, end) = (start, start + count);
        let mut source_start = 0;
        let mut piece = vec![0; GATHERED_BYTES];
        for source in &self.reply.body {
            let source_end = source_start + source.len();
            while from < end.min(source_end) {
                let length = (end.min(source_end) - from).min(GATHERED_BYTES as u64) as usize;
                let offset = from - source_start;
                match source {
                    Source::Bytes(bytes) => {
                        let offset = offset as usize;
                        self.push(&bytes[offset..offset + length], true)?;
                    }
                    Source::Content(content, range) => {
                        content.fill(range.start + offset, &mut piece[..length]);
                        self.push(&piece[..length], true)?;
                    }
                }
                from += length as u64;
            }
            source_start = source_end;
        }
        Ok(())
    }

    /// Sends bytes, and executes the actions on the way.
    fn push(&mut self, bytes: &[u8], is_body: bool) -> Result<(), Halt> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.distance(is_body).min(self.tick_room()?);
            let (now, later) = rest.split_at(room.min(rest.len() as u64) as usize);
            self.gathered.extend_from_slice(now);
            self.wire += now.len() as u64;
            self.tick_left = self.tick_left.saturating_sub(now.len() as u64);
            if is_body {
                self.body = self.body.map(|sent| sent + now.len() as u64);
            }
            if self.gathered.len() >= GATHERED_BYTES {
                self.flush()?;
            }
            self.fire()?;
            rest = later;
        }
        Ok(())
    }

    /// Returns how many bytes of this kind may be sent before the next action: at least one, because all due actions
    /// have been executed.
    fn distance(&self, is_body: bool) -> u64 {
        let mut distance = u64::MAX;
        for ((place, _), fired) in self.reply.events.iter().zip(&self.fired) {
            let left = match (place, self.body) {
                (At::Wire(place), _) => place.saturating_sub(self.wire),
                (At::Body(place), Some(sent)) if is_body => place.saturating_sub(sent),
                _ => u64::MAX,
            };
            if !fired {
                distance = distance.min(left);
            }
        }
        distance.max(1)
    }

    /// Returns how many bytes may still be sent in this tick; waits for the next tick if none.
    fn tick_room(&mut self) -> Result<u64, Halt> {
        let Some((bytes, tick)) = self.reply.pace else { return Ok(u64::MAX) };
        if self.tick_left == 0 {
            self.flush()?;
            if !self.connection.stop().pause_until(self.next_tick) {
                return Err(Halt::Stopped);
            }
            // Relative to the due time, so that a late tick is compensated.
            self.next_tick += tick;
            self.tick_left = bytes;
        }
        Ok(self.tick_left)
    }

    /// Executes the actions that are due at this position.
    fn fire(&mut self) -> Result<(), Halt> {
        let reply = self.reply;
        for (index, (place, what)) in reply.events.iter().enumerate() {
            let due = match place {
                At::Wire(place) => self.wire >= *place,
                At::Body(place) => self.body.is_some_and(|sent| sent >= *place),
                At::End => self.ended,
            };
            if !due || std::mem::replace(&mut self.fired[index], due) {
                continue;
            }
            self.flush()?;
            match what {
                Do::Wait(gate) => match self.connection.pass(gate) {
                    true => self.next_tick = Instant::now(),
                    false => return Err(Halt::Stopped),
                },
                Do::Close => return Err(Halt::Ended(Ended::Close)),
                Do::Reset => return Err(Halt::Ended(Ended::Reset)),
                Do::Hang => {
                    self.connection.wait_for_close();
                    return Err(Halt::Ended(Ended::Close));
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Halt> {
        let gathered = std::mem::take(&mut self.gathered);
        self.connection.write(&gathered).map_err(|_| Halt::Failed)
    }
}

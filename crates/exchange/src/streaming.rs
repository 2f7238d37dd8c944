//! Sends a body while it arrives.

use io::Errno;
use io::segments::{SEGMENTS_MAX, Source};
use rt::{Either, select};
use smallvec::SmallVec;

use crate::client;
use crate::request::Request;
use crate::splicing;
use telemetry::Level;
use transfer::body::outlet::Trailers;
use transfer::body::source::{BodySource, Next, next};
use transfer::body::{BodyError, Outlet, SendError, buffer_turns};

/// Maximum number of pieces per send, which leaves segments for the header section and the framing.
const PIECES_MAX: usize = SEGMENTS_MAX - 5;

/// Sends `head` and an unfiltered body, whose pieces are passed on without a copy.
pub async fn send(
    outlet: &mut dyn Outlet,
    head: Vec<u8>,
    stream: &mut dyn BodySource,
    request: &mut Request,
) -> Result<(), BodyError> {
    let mut left = Remaining(request.response.content_length);
    outlet.begin(head);
    if splicing::pass(outlet, stream, &mut left, request).await? {
        // A body of known length has no trailer section.
        return Ok(outlet.end(&[]).await?);
    }
    // The header section of an event stream must not wait for the first event. A body of known length is no event stream.
    let mut waits = !stream.is_unbuffered() && left.0.is_some();
    if !waits {
        // The task that reads the body runs first: often the first piece has already arrived.
        rt::yield_to_ready().await;
    }
    let (mut ahead, mut had_a_turn) = (None, false);
    loop {
        let takes_turns = stream.is_read_at_will() && buffer_turns::are_on();
        if takes_turns {
            let room = buffer_turns::wait(outlet, buffer_turns::TURN_BYTES).await?;
            stream.set_client_space(room);
        }
        let closed = client::closed(request.client_if(stream.needs_client()));
        // While bodies take turns for buffers, no read is started that must wait for an earlier send.
        let bytes_max = if takes_turns { Some(1) } else { outlet.chunk_bytes() };
        let gathering = Gathering { first: ahead.take(), waits, bytes_max, reads_ahead: !takes_turns };
        let gathered = select(gathering.run(stream), closed).await;
        let (pieces, state) = match gathered {
            Either::Left(gathered) => gathered,
            // Without a send, a closed connection would go unnoticed.
            Either::Right(()) => return Err(SendError::Closed(Errno::CONNRESET).into()),
        };
        if let (State::Pause, true, false) = (&state, pieces.is_empty(), had_a_turn) {
            // Bytes received in this event-loop turn are sent with the header section.
            had_a_turn = true;
            rt::yield_now().await;
            continue;
        }
        left.take(outlet, pieces).await?;
        match state {
            State::More(piece) => {
                ahead = Some(piece);
                outlet.flush(true).await?;
            }
            State::Pause => outlet.pause().await?,
            State::Over => break,
            State::Broken(error) => {
                // Bytes that precede the error are valid, so they are sent.
                outlet.pause().await?;
                return Err(error);
            }
        }
        waits = true;
    }
    if !left.is_complete() {
        return Err(BodyError::Broken);
    }
    // An HTTP/1.0 client does not receive trailers. As in nginx they are logged nevertheless.
    request.response.sent_trailers = stream.trailers();
    Ok(outlet.end(trailers(request)).await?)
}

/// The state after the pieces of one send.
enum State {
    /// A further piece is in memory.
    More(Source),
    /// The next piece has not arrived yet; this may take any time.
    Pause,
    Over,
    Broken(BodyError),
}

/// Parameters for collecting the pieces of one send.
struct Gathering {
    /// A piece that is already in memory.
    first: Option<Source>,
    /// Whether to wait for the first piece.
    waits: bool,
    /// Number of bytes at which no further piece is added.
    bytes_max: Option<u64>,
    /// Whether one more piece is read when the pieces suffice for a send.
    reads_ahead: bool,
}

impl Gathering {
    /// Returns the pieces in memory, and the state after them.
    async fn run(self, stream: &mut dyn BodySource) -> (SmallVec<[Source; 4]>, State) {
        let mut pieces: SmallVec<[Source; 4]> = self.first.into_iter().collect();
        let mut bytes: usize = pieces.iter().map(|piece| piece.bytes().len()).sum();
        let bytes_max =
            self.bytes_max.map_or(usize::MAX, |bytes_max| bytes_max as usize).min(stream.send_bytes());
        loop {
            let is_full = pieces.len() >= PIECES_MAX || bytes >= bytes_max;
            if is_full && !self.reads_ahead {
                return (pieces, State::Pause);
            }
            match next(stream, self.waits && pieces.is_empty()).await {
                Ok(Next::Piece(source)) if is_full => return (pieces, State::More(source)),
                Ok(Next::Piece(source)) => {
                    bytes += source.bytes().len();
                    pieces.push(source);
                }
                Ok(Next::End) => return (pieces, State::Over),
                Ok(Next::Nothing) => return (pieces, State::Pause),
                Err(error) => return (pieces, State::Broken(error)),
            }
        }
    }
}

/// Remaining bytes of the announced length; `None` without an announced length.
pub(crate) struct Remaining(Option<u64>);

impl Remaining {
    fn is_complete(&self) -> bool {
        matches!(self.0, None | Some(0))
    }

    /// Whether all bytes of an announced length were passed on.
    pub(crate) fn is_zero(&self) -> bool {
        self.0 == Some(0)
    }

    /// Counts bytes that are passed on.
    pub(crate) fn pass(&mut self, bytes: u64) -> Result<(), BodyError> {
        if let Some(left) = &mut self.0 {
            *left = left.checked_sub(bytes).ok_or(BodyError::Broken)?;
        }
        Ok(())
    }

    /// Reverts [`Remaining::pass`] for bytes that were not sent.
    pub(crate) fn pass_later(&mut self, bytes: u64) {
        if let Some(left) = &mut self.0 {
            *left += bytes;
        }
    }

    /// Adds pieces to the next send.
    async fn take(
        &mut self,
        outlet: &mut dyn Outlet,
        pieces: SmallVec<[Source; 4]>,
    ) -> Result<(), BodyError> {
        self.pass(pieces.iter().map(|piece| piece.bytes().len() as u64).sum())?;
        for piece in pieces {
            add(outlet, piece).await?;
        }
        Ok(())
    }
}

/// Adds a piece; splits it if it is longer than the rate limit allows per send.
async fn add(outlet: &mut dyn Outlet, piece: Source) -> Result<(), BodyError> {
    let bytes_max = outlet.chunk_bytes().map_or(usize::MAX, |bytes| bytes as usize);
    if piece.bytes().len() <= bytes_max {
        outlet.push(piece);
        return Ok(());
    }
    for (index, part) in piece.bytes().chunks(bytes_max).enumerate() {
        if index > 0 {
            outlet.flush(true).await?;
        }
        outlet.push(Source::Vec(part.to_vec()));
    }
    Ok(())
}

/// Returns the trailer fields of a response; an empty list if one of them is invalid.
pub fn trailers(request: &Request) -> &Trailers {
    let fields = request.response.sent_trailers.as_slice();
    if fields.iter().all(|(name, value)| http::response::encode::check_field(name, value).is_ok()) {
        return fields;
    }
    request.log(Level::Error, format_args!("a trailer field has a control character"));
    &[]
}

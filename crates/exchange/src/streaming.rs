//! Sends a body while it arrives.

use io::Errno;
use io::op::{SEGMENTS_MAX, Source};
use rt::{Either, select};
use smallvec::SmallVec;

use crate::client;
use crate::request::Request;
use telemetry::Level;
use transfer::body::outlet::Trailers;
use transfer::body::source::{BodySource, Next, next};
use transfer::body::{BodyError, Outlet, SendError, buffer_turns};

/// Pieces of one send, so that the header section and their framing have room beside them.
const PIECES_MAX: usize = SEGMENTS_MAX - 5;

/// Sends `head` and the body behind it, which nothing changes on its way: its pieces are passed on without a copy.
pub async fn send(
    outlet: &mut dyn Outlet,
    head: Vec<u8>,
    stream: &mut dyn BodySource,
    request: &mut Request,
) -> Result<(), BodyError> {
    let mut left = Left(request.response.content_length);
    outlet.begin(head);
    // The header section of a stream of events does not wait for the first event. A body of known length is no such stream.
    let mut waits = !stream.is_unbuffered() && left.0.is_some();
    if !waits {
        // The task that reads the body goes first: often the first piece is received already.
        rt::step_aside().await;
    }
    let (mut ahead, mut had_a_turn) = (None, false);
    loop {
        let takes_turns = stream.is_read_at_will() && buffer_turns::are_on();
        if takes_turns {
            let room = buffer_turns::wait(outlet, buffer_turns::TURN_BYTES).await?;
            stream.set_room(room);
        }
        let gone = client::gone(request.client_if(stream.minds_client()));
        // While bodies take turns, no read is started that must wait for an earlier send.
        let most = if takes_turns { Some(1) } else { outlet.chunk_bytes() };
        let gathering = Gathering { first: ahead.take(), waits, most, looks_ahead: !takes_turns };
        let gathered = select(gathering.run(stream), gone).await;
        let (pieces, state) = match gathered {
            Either::Left(gathered) => gathered,
            // Without a send, a failure would go unnoticed.
            Either::Right(()) => return Err(SendError::Gone(Errno::CONNRESET).into()),
        };
        if let (State::Pause, true, false) = (&state, pieces.is_empty(), had_a_turn) {
            // Bytes received in this turn leave along with the header section.
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
                // Bytes before the error are valid and are sent.
                outlet.pause().await?;
                return Err(error);
            }
        }
        waits = true;
    }
    if !left.is_complete() {
        return Err(BodyError::Broken);
    }
    // A client of HTTP/1.0 does not get them. As in nginx the log shows them all the same.
    request.response.sent_trailers = stream.trailers();
    Ok(outlet.end(trailers(request)).await?)
}

/// The state behind the pieces of one send.
enum State {
    /// This piece, which is in memory.
    More(Source),
    /// A piece that is not in memory yet. The origin may send it in a moment or in an hour.
    Pause,
    Over,
    Broken(BodyError),
}

/// How the pieces of one send are collected.
struct Gathering {
    /// A piece in memory.
    first: Option<Source>,
    /// Whether the first piece is waited for.
    waits: bool,
    /// Bytes from which on no further piece is added.
    most: Option<u64>,
    /// Whether the piece behind a full send is taken from the stream.
    looks_ahead: bool,
}

impl Gathering {
    /// The pieces in memory, and the state behind them.
    async fn run(self, stream: &mut dyn BodySource) -> (SmallVec<[Source; 4]>, State) {
        let mut pieces: SmallVec<[Source; 4]> = self.first.into_iter().collect();
        let mut bytes: usize = pieces.iter().map(|piece| piece.bytes().len()).sum();
        let most = self.most.map_or(usize::MAX, |most| most as usize).min(stream.send_bytes());
        loop {
            let is_full = pieces.len() >= PIECES_MAX || bytes >= most;
            if is_full && !self.looks_ahead {
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

/// Bytes that are left of the announced length; nothing without one.
struct Left(Option<u64>);

impl Left {
    fn is_complete(&self) -> bool {
        matches!(self.0, None | Some(0))
    }

    /// Adds pieces to the next send.
    async fn take(
        &mut self,
        outlet: &mut dyn Outlet,
        pieces: SmallVec<[Source; 4]>,
    ) -> Result<(), BodyError> {
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes().len() as u64).sum();
        if let Some(left) = &mut self.0 {
            *left = left.checked_sub(bytes).ok_or(BodyError::Broken)?;
        }
        for piece in pieces {
            add(outlet, piece).await?;
        }
        Ok(())
    }
}

/// Adds a piece; one that is longer than the rate allows at once goes in parts.
async fn add(outlet: &mut dyn Outlet, piece: Source) -> Result<(), BodyError> {
    let most = outlet.chunk_bytes().map_or(usize::MAX, |bytes| bytes as usize);
    if piece.bytes().len() <= most {
        outlet.push(piece);
        return Ok(());
    }
    for (index, part) in piece.bytes().chunks(most).enumerate() {
        if index > 0 {
            outlet.flush(true).await?;
        }
        outlet.push(Source::Vec(part.to_vec()));
    }
    Ok(())
}

/// The fields that follow the body of a response; none of them where one must not be sent.
pub fn trailers(request: &Request) -> &Trailers {
    let fields = request.response.sent_trailers.as_slice();
    if fields.iter().all(|(name, value)| http::response::check_field(name, value).is_ok()) {
        return fields;
    }
    request.log(Level::Error, format_args!("a trailer field has a control character"));
    &[]
}

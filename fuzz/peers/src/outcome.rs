//! The outcomes of exchanges, and whether both ends agree.

use crate::ours::is_part;
use crate::plan::{Ending, Fields, Message, Plan, Way};

/// How an exchange ended at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both messages are complete.
    Whole,
    /// The peer has reset the stream, with this code.
    Reset(u32),
    /// This end has reset the stream.
    ResetHere,
    /// The server has announced that it does not process the exchange.
    NotProcessed,
}

/// The received part of a message. Each method panics if that part differs from the plan.
#[derive(Debug)]
pub struct Received {
    /// Index of its exchange.
    pub exchange: usize,
    /// Number of interim responses.
    pub interim: usize,
    /// Whether the head has been received.
    pub has_head: bool,
    /// Length of the received body.
    pub bytes: usize,
    /// Whether it is complete.
    pub has_all: bool,
}

impl Received {
    /// Creates an empty state.
    #[must_use]
    pub fn new(exchange: usize) -> Received {
        Received { exchange, interim: 0, has_head: false, bytes: 0, has_all: false }
    }

    /// Checks the received head.
    pub fn head(&mut self, message: &Message, fields: Fields) {
        assert!(!self.has_head, "a second head");
        assert_eq!(by_name(fields), by_name(message.all_fields()), "fields of exchange {}", self.exchange);
        assert_eq!(self.interim, message.interim, "interim responses");
        self.has_head = true;
    }

    /// Checks a received piece of the body.
    pub fn data(&mut self, message: &Message, way: Way, bytes: &[u8]) {
        assert!(self.has_head && !self.has_all, "a piece of a body before the head or after the end");
        assert!(is_part(self.exchange, way, self.bytes, bytes), "bytes of exchange {}", self.exchange);
        self.bytes += bytes.len();
        assert!(self.bytes <= message.body, "more bytes than the peer sends");
    }

    /// Checks the end of the message.
    pub fn end(&mut self, message: &Message, trailers: Option<Fields>) {
        assert!(!self.has_all, "a second end");
        assert_eq!(self.bytes, message.body, "the length of a body");
        assert_eq!(trailers.map(by_name), message.trailers.clone().map(by_name), "trailers");
        self.has_all = true;
    }
}

/// Sorts fields by name, because h2 preserves only the order of fields of the same name.
fn by_name(mut fields: Fields) -> Fields {
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// Sums over all sessions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Number of sessions.
    pub sessions: u64,
    /// Number of exchanges begun.
    pub exchanges: u64,
    /// Number of complete exchanges.
    pub whole: u64,
    /// Number of exchanges that were reset.
    pub reset: u64,
    /// Number of exchanges that the server did not process.
    pub not_processed: u64,
    /// Number of PING acknowledgements received by Ringroad's end.
    pub pongs: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

/// The code of RST_STREAM for a stream that is not processed.
const REFUSED: u32 = 7;

/// Panics unless the outcomes of both ends are consistent with the plan and each other.
pub fn compare(plan: &Plan, client: &[Option<Outcome>], server: &[Option<Outcome>], totals: &mut Totals) {
    for (index, exchange) in plan.exchanges.iter().enumerate() {
        let seen = (client[index], server[index]);
        let planned = Outcome::Reset(crate::plan::PLANNED_CODE);
        let fits = match (exchange.ending, seen) {
            (_, (Some(Outcome::Whole), Some(Outcome::Whole))) => true,
            (_, (Some(Outcome::Reset(REFUSED) | Outcome::NotProcessed), None)) => true,
            (_, (None, None)) => plan.goes_away,
            (Ending::ResetByClient(_), (Some(Outcome::ResetHere), seen)) => {
                matches!(seen, None | Some(Outcome::Whole)) || seen == Some(planned)
            }
            (Ending::ResetByServer(_), (seen, Some(Outcome::ResetHere))) => seen == Some(planned),
            _ => false,
        };
        assert!(fits, "exchange {index} with ending {:?}: {seen:?}", exchange.ending);
        totals.exchanges += u64::from(seen.0.is_some());
        match seen.0 {
            Some(Outcome::Whole) => totals.whole += 1,
            Some(Outcome::Reset(REFUSED) | Outcome::NotProcessed) => totals.not_processed += 1,
            Some(_) => totals.reset += 1,
            None => {}
        }
    }
}

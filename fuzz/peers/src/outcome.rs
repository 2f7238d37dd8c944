//! What came of an exchange, and whether both ends saw the same.

use crate::ours::is_part;
use crate::plan::{Ending, Fields, Message, Plan, Way};

/// How an exchange ended for one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both messages are through.
    Whole,
    /// The other end has reset it, with this code.
    Reset(u32),
    /// This end has.
    ResetHere,
    /// The server has said that it does not process it.
    NotProcessed,
}

/// What was received of a message so far. Each method panics where it is not what the plan has.
#[derive(Debug)]
pub struct Received {
    /// Which exchange it is of.
    pub exchange: usize,
    /// Interim responses.
    pub interim: usize,
    /// Whether the head is here.
    pub has_head: bool,
    /// Bytes of the body.
    pub bytes: usize,
    /// Whether all of it is here.
    pub has_all: bool,
}

impl Received {
    /// Nothing.
    #[must_use]
    pub fn new(exchange: usize) -> Received {
        Received { exchange, interim: 0, has_head: false, bytes: 0, has_all: false }
    }

    /// The head.
    pub fn head(&mut self, message: &Message, fields: Fields) {
        assert!(!self.has_head, "a second head");
        assert_eq!(by_name(fields), by_name(message.all_fields()), "fields of exchange {}", self.exchange);
        assert_eq!(self.interim, message.interim, "interim responses");
        self.has_head = true;
    }

    /// A part of the body.
    pub fn data(&mut self, message: &Message, way: Way, bytes: &[u8]) {
        assert!(self.has_head && !self.has_all, "a body has its place");
        assert!(is_part(self.exchange, way, self.bytes, bytes), "bytes of exchange {}", self.exchange);
        self.bytes += bytes.len();
        assert!(self.bytes <= message.body, "more than was sent");
    }

    /// The end.
    pub fn end(&mut self, message: &Message, trailers: Option<Fields>) {
        assert!(!self.has_all, "a second end");
        assert_eq!(self.bytes, message.body, "a body is cut short");
        assert_eq!(trailers.map(by_name), message.trailers.clone().map(by_name), "trailers");
        self.has_all = true;
    }
}

/// h2 keeps the order of fields of the same name only.
fn by_name(mut fields: Fields) -> Fields {
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// What sessions came to in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Sessions.
    pub sessions: u64,
    /// Exchanges that were begun.
    pub exchanges: u64,
    /// Those of which both messages came through,
    pub whole: u64,
    /// that were reset,
    pub reset: u64,
    /// and that the server did not process.
    pub not_processed: u64,
    /// PINGs that came back to our end.
    pub pongs: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

/// The code of RST_STREAM of a stream that is not processed.
const REFUSED: u32 = 7;

/// Panics unless what both ends saw fits to the plan and to each other.
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

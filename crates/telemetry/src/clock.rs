//! The time of day in the formats of log lines and header fields.

use std::cell::{Cell, Ref, RefCell};
use std::time::{SystemTime, UNIX_EPOCH};

use http::date::DateCache;

use crate::time_zone::{TimeZone, since_1970};

/// The formatted present second, and the time zone of the machine.
pub struct Clock {
    dates: RefCell<DateCache>,
    /// The time of the last call: in one turn of the event loop it is the same for all requests.
    asked_at: Cell<SystemTime>,
    zone: TimeZone,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock {
            dates: RefCell::new(DateCache::new(0, 0)),
            asked_at: Cell::new(UNIX_EPOCH),
            zone: TimeZone::default(),
        }
    }
}

impl Clock {
    /// Returns the formatted present second.
    pub fn dates(&self) -> Ref<'_, DateCache> {
        let wall = rt::wall();
        if self.asked_at.replace(wall) != wall {
            let (now, _) = since_1970(wall);
            if self.dates.borrow().unix() != now {
                self.dates.borrow_mut().update(now, (self.zone.offset_at(now) / 60) as i16);
            }
        }
        self.dates.borrow()
    }

    /// Returns the present offset of local time from UTC in seconds.
    pub fn utc_offset_s(&self) -> i32 {
        self.zone.offset_at(since_1970(rt::wall()).0)
    }

    /// Returns the time zone of the machine.
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }
}

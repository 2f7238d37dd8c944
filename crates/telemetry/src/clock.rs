//! The time of day in the formats of log lines and header fields.

use std::cell::{Cell, Ref, RefCell};
use std::time::SystemTime;

use http::date::DateCache;

use crate::time_zone::{TimeZone, since_1970};

/// The formatted present second, and the time zone of the machine.
pub struct Clock {
    dates: RefCell<DateCache>,
    /// Time of day at the last call. It changes only between event-loop turns.
    last: Cell<Option<SystemTime>>,
    zone: TimeZone,
}

impl Default for Clock {
    fn default() -> Clock {
        let dates = RefCell::new(DateCache::new(0, 0));
        Clock { dates, last: Cell::new(None), zone: TimeZone::default() }
    }
}

impl Clock {
    /// Returns the formatted present second.
    pub fn dates(&self) -> Ref<'_, DateCache> {
        let wall = rt::wall();
        if self.last.replace(Some(wall)) != Some(wall) {
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

//! Results of requests by the zones of `limit_req` and `limit_conn`, for status pages.

use std::any::Any;

use exchange::config::Http;
use exchange::shared_zone::Zone;

use crate::{limit_conn, limit_req};

/// A zone of limits.
#[derive(Clone, Copy, Debug)]
pub struct LimitZone<'a> {
    /// Which module it belongs to.
    pub kind: LimitKind,
    /// Its name.
    pub name: &'a str,
    /// Results of requests: passed, delayed, rejected, and the last two of a dry run.
    pub results: [u64; 5],
    /// Bytes of the states that are kept, as nginx's allocator would count them.
    pub used: u64,
    /// Bytes of the zone.
    pub size: u64,
}

/// The kind of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// `limit_req_zone`
    Requests,
    /// `limit_conn_zone`
    Connections,
}

/// Each zone of limits.
pub fn zones(http: &Http) -> impl Iterator<Item = LimitZone<'_>> {
    http.zones.0.iter().filter_map(|entry| {
        let zone: &dyn Any = &*entry.zone;
        let (kind, name, results) = match zone.downcast_ref::<Zone<limit_req::Declared>>() {
            Some(zone) => (LimitKind::Requests, zone.name(), zone.state().results().all()),
            None => {
                let zone = zone.downcast_ref::<Zone<limit_conn::Declared>>()?;
                (LimitKind::Connections, zone.name(), zone.state().results.all())
            }
        };
        let (used, size) = (entry.zone.used().unwrap_or(0), entry.zone.bytes().unwrap_or(0));
        Some(LimitZone { kind, name, results, used, size })
    })
}

//! Numbers of requests that each zone of `limit_req` and `limit_conn` passed, delayed or rejected, for status pages.

use std::any::Any;

use site::config::{Http, Section};
use site::shared_zone::Zone;

use crate::{limit_conn, limit_req};

/// Zone of `limit_req` or `limit_conn`.
#[derive(Clone, Copy, Debug)]
pub struct LimitZone<'a> {
    /// Module of the zone.
    pub kind: LimitKind,
    /// The block that names it.
    pub section: Section,
    /// Name of the zone.
    pub name: &'a str,
    /// Numbers of requests by result: passed, delayed, rejected; delayed and rejected in dry-run mode.
    pub results: [u64; 5],
    /// Size of the stored states in bytes, as nginx's allocator would count it.
    pub used: u64,
    /// Size of the zone in bytes.
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

/// Returns all zones of limits.
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
        Some(LimitZone { kind, section: entry.section(), name, results, used, size })
    })
}

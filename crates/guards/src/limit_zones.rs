//! Results of requests by the zones of `limit_req` and `limit_conn`, for status pages.

use std::any::Any;

use exchange::config::Http;
use exchange::shared_zone::Zone;

use crate::{limit_conn, limit_req};

/// The kind of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// `limit_req_zone`
    Requests,
    /// `limit_conn_zone`
    Connections,
}

/// Returns each zone of limits with the counts of its results: passed, delayed, rejected, and the last two of a dry
/// run.
pub fn zones(http: &Http) -> impl Iterator<Item = (LimitKind, &str, [u64; 5])> {
    http.zones.0.iter().filter_map(|entry| {
        let zone: &dyn Any = &*entry.zone;
        if let Some(zone) = zone.downcast_ref::<Zone<limit_req::Declared>>() {
            return Some((LimitKind::Requests, zone.name(), zone.state().results().all()));
        }
        let zone = zone.downcast_ref::<Zone<limit_conn::Declared>>()?;
        Some((LimitKind::Connections, zone.name(), zone.state().results.all()))
    })
}

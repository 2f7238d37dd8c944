//! The zones of a configuration: each server by its first name, each of its locations as it is written.
//!
//! The tables are made when the configuration is checked, since names of servers and locations are complete then. Requests
//! find their zone by the number of their location.
//!
//! `status_zone` renames and joins them. Blocks without a name, such as `if`, belong to the location around them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use conf::Error;

use super::Conf;
use exchange::config::{Http, Location};
use exchange::request::Generation;
use exchange::thread::Thread;
use telemetry::traffic::{Traffic, Zone, Zones};

/// Zones that `metrics_zones` may allow: each takes 2 KiB on each thread.
pub(super) const MAX: u32 = 65_536;

/// Zones without `metrics_zones`: 2 MiB on each thread.
const DEFAULT: usize = 1000;

/// The name of servers without one, as they are often written.
const NAMELESS: &str = "_";

/// The name of the zone for all that are too many.
const OTHER: &str = "other";

/// The zone settings of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Counted under this name.
    As(Arc<str>),
    /// Not counted for itself: a location with its server, a server not at all.
    Off,
}

/// The zones of the whole configuration.
#[derive(Debug)]
pub(crate) struct StatusZones {
    /// Whether any block shows them.
    pub(super) is_asked: bool,
    /// `metrics_zones`
    pub(super) max: usize,
    made: OnceLock<Arc<Zones>>,
    /// Whether a `status_zone` names the location of each zone.
    are_named: OnceLock<Vec<bool>>,
}

impl Default for StatusZones {
    fn default() -> StatusZones {
        StatusZones { is_asked: false, max: DEFAULT, made: OnceLock::new(), are_named: OnceLock::new() }
    }
}

impl StatusZones {
    /// Each zone once.
    pub(super) fn all(&self) -> &[Zone] {
        self.made.get().map_or(&[], |zones| &zones.all)
    }

    /// Whether a `status_zone` names the location of each.
    pub(super) fn are_named(&self) -> &[bool] {
        self.are_named.get().map_or(&[], |named| named)
    }
}

/// Makes the zones, when all blocks have been read: in the order of the configuration, so that those above the limit are the
/// last ones.
pub(super) fn make(http: &Http, warnings: &mut Vec<Error>) {
    let status = http.of::<StatusZones>();
    let (mut zones, mut places, mut are_named) = (Zones::default(), HashMap::new(), Vec::new());
    let mut left_over = 0;
    let owners = owners(http);
    for (number, location) in http.locations.iter().enumerate() {
        let zone = zone_of(http, location, owners.get(&number).copied().unwrap_or(location));
        let place = zone.map(|zone| match places.get(&zone) {
            Some(&place) => place,
            None if zones.all.len() < status.max => {
                let place = zones.all.len() as u32;
                places.insert(zone.clone(), place);
                zones.all.push(zone);
                are_named.push(matches!(location.scope.of::<Conf>().zone, Some(Named::As(_))));
                place
            }
            None => {
                left_over += 1;
                status.max as u32
            }
        });
        zones.by_location.push(place);
    }
    if left_over > 0 {
        zones.all.push(Zone { server: OTHER.into(), location: OTHER.into() });
        are_named.push(true);
        let what = format_args!(
            "{left_over} locations above \"metrics_zones\" are counted together, as \"{OTHER}\""
        );
        warnings.push(Error::nowhere(what).with_level(conf::Level::Warn));
    }
    // A configuration is checked once.
    let _ = (status.made.set(Arc::new(zones)), status.are_named.set(are_named));
}

/// The location of each `limit_except`, by the number of that block.
fn owners(http: &Http) -> HashMap<usize, &Location> {
    let limited = http.locations.iter().filter_map(|location| {
        let limit = location.scope.core.limit_except.as_ref()?;
        Some((limit.location.0 as usize, location))
    });
    limited.collect()
}

/// The zone of a block; `named` has its name. Locations inside of a server with `status_zone off` are not counted either,
/// because their server has no name to be counted by.
fn zone_of(http: &Http, location: &Location, named: &Location) -> Option<Zone> {
    let server = &http.servers[location.server.0 as usize];
    let root = &http.locations[server.root.0 as usize];
    let server: Arc<str> = match &root.scope.of::<Conf>().zone {
        Some(Named::Off) => return None,
        Some(Named::As(name)) => Arc::clone(name),
        None if server.name.is_empty() => NAMELESS.into(),
        None => server.name.as_str().into(),
    };
    let location = match &location.scope.of::<Conf>().zone {
        _ if std::ptr::eq(location, root) => "".into(),
        Some(Named::Off) => "".into(),
        Some(Named::As(name)) => Arc::clone(name),
        None => named.name.as_str().into(),
    };
    Some(Zone { server, location })
}

/// A thread takes up a configuration: existing zones continue.
pub(super) fn configured(thread: &Rc<Thread>, before: Option<&Generation>) {
    let generation = thread.generation();
    let Some(zones) = generation.config.http.of::<StatusZones>().made.get() else { return };
    let before = before.and_then(|before| before.traffic.get());
    let traffic = Traffic::begin(zones, before, &thread.shared.traffic);
    // It is set once for each configuration.
    let _ = generation.traffic.set(traffic);
    rt::observe_turns(|| {
        let numbers = thread.shared.new_loop();
        move |turn| {
            let engine = turn.engine;
            numbers.note(turn.busy, [engine.kernel_entries, engine.submitted, engine.device_queued]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{load, loaded};

    fn names(http: &str) -> Vec<String> {
        let config = loaded(http);
        let status = config.http.of::<StatusZones>();
        let zones = status.made.get().expect("a block shows them");
        let name = |zone: &Option<u32>| {
            zone.map_or("-".to_owned(), |zone| {
                let Zone { server, location } = &zones.all[zone as usize];
                format!("{server}|{location}")
            })
        };
        zones.by_location.iter().map(name).collect()
    }

    #[test]
    fn blocks_are_named_by_the_configuration() {
        let found = names(
            "server { server_name a.example b.example; status_zone A;
               location / { if ($uri) { break; } limit_except GET { deny all; } location /in { } }
               location = /m { metrics; status_zone numbers; } location ~ x { status_zone off; } }
             server { server_name a.example; location / { } }
             server { listen 81; location /x { } } server { listen 82; status_zone off; location / { } }",
        );
        let expected = [
            "A|",
            "A|/",
            "A|/",
            "A|/",
            "A|/in",
            "A|numbers",
            "A|",
            "a.example|",
            "a.example|/",
            "_|",
            "_|/x",
            "-",
            "-",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn too_many_are_counted_together() {
        let text = "http { metrics_zones 2; server { location /a { metrics; allow all; } location /b { } } }";
        let loaded = load(text).expect("a configuration");
        let warnings: Vec<String> = loaded.warnings.iter().map(Error::to_string).collect();
        assert!(warnings.iter().any(|text| text.starts_with("1 locations above")), "{warnings:?}");
        let all = loaded.config.http.of::<StatusZones>().all();
        assert_eq!((all.len(), &*all[2].server), (3, "other"));
    }

    #[test]
    fn nothing_is_counted_where_nothing_is_shown() {
        let config = loaded("server { status_zone a; }");
        assert!(config.http.of::<StatusZones>().made.get().is_none());
    }
}

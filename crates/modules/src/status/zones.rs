//! The status zones of a configuration: each server by its first name, each of its locations as written.
//!
//! The tables are created when the configuration is checked, because names of servers and locations are complete then.
//! A request finds its zone by the index of its location.
//!
//! `status_zone` renames and joins zones. Blocks without a name, such as `if`, belong to the enclosing location.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use conf::Error;

use super::conf::{Conf, Named};
use exchange::request::ThreadConfig;
use exchange::thread::Thread;
use site::config::{Http, Location};
use telemetry::traffic::{Traffic, Zone, Zones};

/// Upper limit of `metrics_zones`: each zone takes 2 KiB on each thread.
pub(super) const MAX: u32 = 65_536;

/// Default of `metrics_zones`: 2 MiB on each thread.
const DEFAULT: usize = 1000;

/// The zone name of servers without a name: `_`, which many configurations use as the name of such servers.
const NAMELESS: &str = "_";

/// The name of the zone for all zones above the limit.
const OTHER: &str = "other";

/// The zones of a configuration.
#[derive(Debug)]
pub(crate) struct StatusZones {
    /// Whether any block shows the zones.
    pub(super) is_shown: bool,
    /// `metrics_zones`
    pub(super) max: usize,
    zones: OnceLock<Arc<Zones>>,
    /// For each zone, whether a `status_zone` names its location.
    are_named: OnceLock<Vec<bool>>,
}

impl Default for StatusZones {
    fn default() -> StatusZones {
        StatusZones { is_shown: false, max: DEFAULT, zones: OnceLock::new(), are_named: OnceLock::new() }
    }
}

impl StatusZones {
    /// Returns the zones without duplicates.
    pub(super) fn all(&self) -> &[Zone] {
        self.zones.get().map_or(&[], |zones| &zones.all)
    }

    /// Returns for each zone whether a `status_zone` names its location.
    pub(super) fn are_named(&self) -> &[bool] {
        self.are_named.get().map_or(&[], |named| named)
    }
}

/// Creates the zones when all blocks have been read, in the order of the configuration, so that the last ones exceed
/// the limit.
pub(super) fn make(http: &Http, warnings: &mut Vec<Error>) {
    let status = http.of::<StatusZones>();
    let (mut zones, mut are_named) = (Zones::default(), Vec::new());
    // The configuration may have a zone with these names, too. Then it also counts the requests above the limit.
    let other = Zone { server: OTHER.into(), location: OTHER.into() };
    let mut left_over = 0;
    let owners = owners(http);
    for (number, location) in http.locations.iter().enumerate() {
        let zone = zone_of(http, location, owners.get(&number).copied().unwrap_or(location));
        let index = zone.map(|zone| match zones.indices.get(&zone) {
            Some(&index) => index,
            None if zones.all.len() < status.max => {
                let index = zones.all.len() as u32;
                zones.indices.insert(zone.clone(), index);
                zones.all.push(zone);
                are_named.push(matches!(location.scope.of::<Conf>().zone, Some(Named::As(_))));
                index
            }
            None => {
                left_over += 1;
                zones.indices.get(&other).copied().unwrap_or(status.max as u32)
            }
        });
        zones.by_location.push(index);
    }
    let has_other = zones.indices.contains_key(&other);
    if left_over > 0 && !has_other {
        zones.indices.insert(other.clone(), status.max as u32);
        zones.all.push(other);
        are_named.push(true);
    }
    if left_over > 0 {
        let what = format_args!(
            "{left_over} locations above \"metrics_zones\" are counted together, as \"{OTHER}\""
        );
        warnings.push(Error::without_location(what).with_level(conf::Level::Warn));
    }
    // The cells are empty, because a configuration is checked once.
    let _ = (status.zones.set(Arc::new(zones)), status.are_named.set(are_named));
}

/// Returns the enclosing location of each `limit_except`, by the index of that block.
fn owners(http: &Http) -> HashMap<usize, &Location> {
    let limited = http.locations.iter().filter_map(|location| {
        let limit = location.scope.core.limit_except.as_ref()?;
        Some((limit.location.0 as usize, location))
    });
    limited.collect()
}

/// Returns the zone of a block; `named` is the location whose name it has. Locations in a server with `status_zone off`
/// are not counted either, because their zone needs the server's name.
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

/// Starts counting for a new configuration on a thread; existing zones continue.
pub(super) fn configured(thread: &Rc<Thread>, before: Option<&ThreadConfig>) {
    let thread_config = thread.thread_config();
    let Some(zones) = thread_config.config.http.of::<StatusZones>().zones.get() else { return };
    let before = before.and_then(|before| before.traffic.get());
    let traffic = Traffic::begin(zones, before, &thread.shared.traffic);
    // The cell is set once per configuration.
    let _ = thread_config.traffic.set(traffic);
    rt::observe_disks(|| {
        let disks = thread.shared.new_disks();
        move |kind, device, event| disks.note(kind, device, event)
    });
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
        let zones = status.zones.get().expect("a block shows them");
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
    fn excess_zones_are_counted_together() {
        let text = "http { metrics_zones 2; server { location /a { metrics; allow all; } location /b { } } }";
        let loaded = load(text).expect("a configuration");
        let warnings: Vec<String> = loaded.warnings.iter().map(Error::to_string).collect();
        assert!(warnings.iter().any(|text| text.starts_with("1 locations above")), "{warnings:?}");
        let all = loaded.config.http.of::<StatusZones>().all();
        assert_eq!((all.len(), &*all[2].server), (3, "other"));
    }

    #[test]
    fn excess_zones_are_counted_with_a_zone_of_the_same_name() {
        let text = "metrics_zones 2;
            server { server_name other; location /a { metrics; allow all; status_zone other; } location /b { } }";
        assert_eq!(names(text), ["other|", "other|other", "other|other"]);
        assert_eq!(loaded(text).http.of::<StatusZones>().all().len(), 2);
    }

    #[test]
    fn nothing_is_counted_without_a_page() {
        let config = loaded("server { status_zone a; }");
        assert!(config.http.of::<StatusZones>().zones.get().is_none());
    }
}

//! The ring of consistent hashing: the points of each server, and the lookup of a key.
//!
//! The points are the same as in nginx and in Cache::Memcached::Fast, so that all of them find the same server for a key.

use std::sync::Arc;

/// Number of points per unit of weight of a server.
const POINTS_PER_WEIGHT: u64 = 160;

/// Maximum number of points of all servers: 32 MiB. If the weights exceed it, all servers get proportionally fewer points.
const POINTS_MAX: u64 = 1 << 22;

/// The points of all servers on the ring.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Sorted by position, without duplicates.
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    position: u32,
    /// Index of the server name in the input.
    server: u32,
}

impl Ring {
    /// Creates the points of servers from their names, as configured, and weights. A name may occur several times.
    pub(super) fn new<'a>(servers: impl Iterator<Item = (&'a Arc<str>, u32, i64)>) -> Ring {
        Ring::bounded(servers, POINTS_MAX)
    }

    fn bounded<'a>(servers: impl Iterator<Item = (&'a Arc<str>, u32, i64)>, points_max: u64) -> Ring {
        let servers: Vec<_> = servers.collect();
        let wanted: u64 = servers.iter().map(|(_, _, weight)| points_of(*weight)).sum();
        let excess = wanted.div_ceil(points_max).max(1);
        let mut points = Vec::with_capacity((wanted / excess) as usize + servers.len());
        for (name, server, weight) in servers {
            let base = base_of(name);
            let mut position = 0_u32;
            for _ in 0..points_of(weight).div_ceil(excess) {
                let mut hasher = base.clone();
                hasher.update(&position.to_le_bytes());
                position = hasher.finalize();
                points.push(Point { position, server });
            }
        }
        // A stable sort: of several servers at the same position, the first in the configuration remains.
        points.sort_by_key(|point| point.position);
        points.dedup_by_key(|point| point.position);
        Ring { points }
    }

    /// Returns the index of the first point at or after the key's position. It may equal the number of points, which means the
    /// first point; see [`Ring::server`].
    pub(super) fn start(&self, key: &[u8]) -> usize {
        let position = crc32fast::hash(key);
        self.points.partition_point(|point| point.position < position)
    }

    /// Returns the server at the point with this index, modulo the number of points; `None` if the ring is empty.
    pub(super) fn server(&self, number: usize) -> Option<u32> {
        let number = number.checked_rem(self.points.len())?;
        Some(self.points[number].server)
    }
}

fn points_of(weight: i64) -> u64 {
    weight.unsigned_abs().saturating_mul(POINTS_PER_WEIGHT).min(u64::from(u32::MAX))
}

/// Returns the hash of `HOST \0 PORT`, continued for each point.
fn base_of(server: &str) -> crc32fast::Hasher {
    let (host, port) = match server.split_at_checked(5) {
        Some((scheme, path)) if scheme.eq_ignore_ascii_case("unix:") => (path, ""),
        _ => match server.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port),
            _ => (server, ""),
        },
    };
    let mut hasher = crc32fast::Hasher::new();
    for part in [host.as_bytes(), b"\0", port.as_bytes()] {
        hasher.update(part);
    }
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(servers: &[(&str, i64)]) -> Ring {
        let names: Vec<Arc<str>> = servers.iter().map(|(name, _)| Arc::from(*name)).collect();
        let places = names.iter().enumerate().zip(servers);
        Ring::new(places.map(|((number, name), (_, weight))| (name, number as u32, *weight)))
    }

    #[test]
    fn the_first_point_is_the_crc_of_host_port_and_zeros() {
        // crc32("127.0.0.1" "\0" "8080" "\0\0\0\0"), computed with zlib; for the next point that value replaces the zeros.
        let ring = ring(&[("127.0.0.1:8080", 1)]);
        assert_eq!(ring.points.len(), 160);
        let mut first = b"127.0.0.1\08080".to_vec();
        first.extend_from_slice(&[0; 4]);
        let first = crc32fast::hash(&first);
        assert!(ring.points.iter().any(|point| point.position == first));
        let mut second = b"127.0.0.1\08080".to_vec();
        second.extend_from_slice(&first.to_le_bytes());
        let second = crc32fast::hash(&second);
        assert!(ring.points.iter().any(|point| point.position == second));
    }

    #[test]
    fn an_added_server_only_moves_its_own_share() {
        let names: Vec<String> = (0..10).map(|number| format!("10.0.0.{number}:80")).collect();
        let servers: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let (before, after) = (ring(&servers[..9]), ring(&servers));
        const KEYS: u32 = 20_000;
        let mut moved = 0;
        for key in 0..KEYS {
            let key = key.to_string();
            let at = |ring: &Ring| ring.server(ring.start(key.as_bytes())).expect("it has servers");
            let (old, new) = (at(&before), at(&after));
            if old != new {
                assert_eq!(new, 9, "only to the new one");
                moved += 1;
            }
        }
        let share = f64::from(moved) / f64::from(KEYS);
        assert!((0.07..0.14).contains(&share), "about a tenth moves: {share}");
    }

    #[test]
    fn excessive_weights_are_limited() {
        let names: [Arc<str>; 2] = ["a".into(), "b".into()];
        let ring = Ring::bounded([(&names[0], 0, i64::MAX), (&names[1], 1, 1)].into_iter(), 1000);
        assert!(ring.points.len() as u64 <= 1000 + 2, "{}", ring.points.len());
        assert!(ring.points.iter().any(|point| point.server == 1));
        assert_eq!(Ring::default().server(3), None);
    }
}

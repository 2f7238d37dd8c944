//! Reloads of the configuration, counted by the process that carries them out: the master, or a server without one. Workers show
//! the numbers.

/// How a reload ended, in the order of the values of the metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadWay {
    /// By the same worker process.
    InPlace,
    /// By another worker process.
    Replacement,
    /// Not at all.
    Refused,
}

/// The reloads since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloads {
    /// Their number, by [`ReloadWay`].
    pub(crate) by_way: [u64; 3],
    /// Whether the last one was refused.
    pub(crate) is_last_refused: bool,
}

impl Reloads {
    /// Counts a reload.
    pub(crate) fn count(&mut self, way: ReloadWay) {
        self.by_way[way as usize] += 1;
        self.is_last_refused = way == ReloadWay::Refused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_holds_until_the_next_reload_succeeds() {
        let mut reloads = Reloads::default();
        let ways = [ReloadWay::Replacement, ReloadWay::Refused, ReloadWay::Refused, ReloadWay::InPlace];
        let refused = ways.map(|way| {
            reloads.count(way);
            reloads.is_last_refused
        });
        assert_eq!((refused, reloads.by_way), ([false, true, true, false], [1, 1, 2]));
    }
}

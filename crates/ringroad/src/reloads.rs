//! Counts configuration reloads: in the master, or in the only process with `master_process off`. The status pages show
//! the numbers.

/// Outcome of a reload, in the order of the label values of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    /// The same worker process serves the new configuration.
    InPlace,
    /// Another worker process serves the new configuration.
    Replacement,
    /// The new configuration is not served.
    Refused,
}

/// Numbers of reloads since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloads {
    /// Number of reloads by [`ReloadOutcome`].
    pub(crate) by_outcome: [u64; 3],
    /// Whether the last reload was refused.
    pub(crate) is_last_refused: bool,
}

impl Reloads {
    /// Counts a reload.
    pub(crate) fn count(&mut self, way: ReloadOutcome) {
        self.by_outcome[way as usize] += 1;
        self.is_last_refused = way == ReloadOutcome::Refused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_reload_is_reported_until_the_next_success() {
        let mut reloads = Reloads::default();
        let ways = [
            ReloadOutcome::Replacement,
            ReloadOutcome::Refused,
            ReloadOutcome::Refused,
            ReloadOutcome::InPlace,
        ];
        let refused = ways.map(|way| {
            reloads.count(way);
            reloads.is_last_refused
        });
        assert_eq!((refused, reloads.by_outcome), ([false, true, true, false], [1, 1, 2]));
    }
}

//! Metrics of configuration reloads.
//!
//! The master counts reloads, because workers see neither a refused configuration nor their replacement. The master sends the
//! numbers to its workers, whose pages show them. So the numbers survive the exit of a worker. A server without a master counts
//! its own reloads.

use std::sync::{Mutex, PoisonError};

use crate::metric::{Label, Metric, Page};

/// Number of reloads; the values of `way` are in the order of [`Reloads::by_outcome`].
const RELOADS: Metric = Metric::counter(
    "config_reloads_total",
    "reloads",
    "Reloads of the configuration since the start of the master process, by outcome.",
)
.labelled(&[Label {
    name: "way",
    values: &[
        ("in_place", "the worker process applied the configuration and kept its connections"),
        ("replacement", "a new worker process uses the configuration; the old one finished its requests"),
        ("refused", "invalid, or no worker could use it: the previous configuration stays in force"),
    ],
}]);

const LAST: Metric = Metric::gauge(
    "config_last_reload_success",
    "1",
    "0 while a configuration is in force although a newer one was refused; 1 otherwise.",
);

/// The metrics of this file, in the order of the page.
pub const METRICS: &[&Metric] = &[&RELOADS, &LAST];

/// Numbers of reloads of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// Number of reloads in place, by replacement of the worker, and refused.
    pub by_outcome: [u64; 3],
    /// Whether the last reload was refused.
    pub is_last_refused: bool,
}

/// The last numbers that this process received from the master, or counted itself.
static CURRENT: Mutex<Reloads> = Mutex::new(Reloads { by_outcome: [0; 3], is_last_refused: false });

impl Reloads {
    /// Sets the numbers that the pages of this process show.
    pub fn publish(self) {
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = self;
    }

    /// Returns the numbers that pages show.
    pub fn current() -> Reloads {
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the numbers.
    pub fn write(&self, page: &mut Page) {
        page.head(&RELOADS);
        page.numbers(&RELOADS, &[], &self.by_outcome);
        page.head(&LAST);
        page.number(&LAST, &[], u64::from(!self.is_last_refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Form;

    fn lines(reloads: Reloads) -> String {
        let mut page = Page::new(Form::Plain);
        reloads.write(&mut page);
        let text = page.finish();
        text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_refused_reload_is_shown_in_both_counters() {
        assert!(lines(Reloads::default()).ends_with("config_last_reload_success 1"), "none yet");
        assert_eq!(
            lines(Reloads { by_outcome: [0, 1, 2], is_last_refused: true }),
            "ringroad_config_reloads_total{way=\"in_place\"} 0\n\
             ringroad_config_reloads_total{way=\"replacement\"} 1\n\
             ringroad_config_reloads_total{way=\"refused\"} 2\n\
             ringroad_config_last_reload_success 0"
        );
    }
}

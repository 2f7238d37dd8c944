//! Certificates as time passes: those near their end are warned of, and those of a local authority are renewed.
//!
//! A configuration warns when it is loaded, but a server may run for longer than its certificates. They are checked at each moment that
//! changes something, and once an hour: the clock of timers stands still while a machine sleeps, that of certificates does not.

use std::fmt;
use std::time::{Duration, Instant};

use crate::log::{Level, Log};
use crate::site::{self, Site};

/// The longest time between two checks.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The shortest one.
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Renews the files of certificates that are near their end.
pub(crate) struct Renew(Box<dyn FnMut() -> Result<Renewal, String>>);

/// The result of an attempt.
pub(crate) struct Renewal {
    /// Whether the server has to read its certificates again.
    pub(crate) is_new: bool,
    /// What the operator has to know.
    pub(crate) warnings: Vec<String>,
    /// The time until the next renewal.
    pub(crate) next: Duration,
}

impl Renew {
    pub(crate) fn new(renew: impl FnMut() -> Result<Renewal, String> + 'static) -> Renew {
        Renew(Box::new(renew))
    }
}

impl fmt::Debug for Renew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renew")
    }
}

/// The certificates of a running server.
#[derive(Debug)]
pub(super) struct Upkeep {
    renew: Option<Renew>,
    check_at: Instant,
    /// Warnings that the log has already.
    told: Vec<String>,
}

impl Upkeep {
    /// Those of a server that starts. The first check follows when it serves.
    pub(super) fn new(renew: Option<Renew>, site: &Site) -> Upkeep {
        let (told, _) = site::certificate_warnings(&site.config);
        Upkeep { renew, check_at: Instant::now(), told }
    }

    /// When the next check is due.
    pub(super) fn deadline(&self) -> Instant {
        self.check_at
    }

    /// Checks them if it is time to; whether the server has to read them again.
    pub(super) fn check(&mut self, site: &Site, log: &Log) -> bool {
        if self.check_at > Instant::now() {
            return false;
        }
        let (warnings, next) = site::certificate_warnings(&site.config);
        warnings.iter().filter(|it| !self.told.contains(it)).for_each(|it| log.write(Level::Warn, it));
        self.told = warnings;
        let mut wait = next.unwrap_or(INTERVAL).min(INTERVAL);
        let mut is_new = false;
        if let Some(Renew(renew)) = &mut self.renew {
            match renew() {
                Ok(renewal) => {
                    renewal.warnings.iter().for_each(|warning| log.write(Level::Warn, warning));
                    wait = wait.min(renewal.next);
                    is_new = renewal.is_new;
                }
                Err(reason) => log.alert(format_args!("certificates cannot be renewed: {reason}")),
            }
        }
        self.check_at = Instant::now() + wait.max(INTERVAL_MIN);
        is_new
    }
}

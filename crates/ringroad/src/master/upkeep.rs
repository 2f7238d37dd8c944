//! Checks certificates while the server runs: logs warnings before they expire, and renews certificates of the local
//! CA.
//!
//! Loading a configuration logs warnings, but a server may run for longer than its certificates are valid. Certificates are
//! checked whenever a warning or renewal is due, and once per hour. The hourly check is needed because timers stop while a
//! machine is suspended.

use std::fmt;
use std::time::{Duration, Instant};

use crate::adapter::{self, Site};
use crate::log::{Level, Log};

/// Maximum time between two checks.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Minimum time between two checks.
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Renews the files of certificates that expire soon.
pub(crate) struct Renew(Box<dyn FnMut() -> Result<Renewal, String>>);

/// The result of a renewal.
pub(crate) struct Renewal {
    /// Whether a certificate was replaced, so that the server must read its certificates again.
    pub(crate) is_new: bool,
    /// Warnings for the operator.
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

/// Checks the certificates of a running server.
#[derive(Debug)]
pub(super) struct Upkeep {
    renew: Option<Renew>,
    check_at: Instant,
    /// Warnings that have already been logged.
    logged: Vec<String>,
}

impl Upkeep {
    /// Creates the state of a server that starts. The first check is due when the server serves requests.
    pub(super) fn new(renew: Option<Renew>, site: &Site) -> Upkeep {
        let (logged, _) = adapter::certificate_warnings(&site.config);
        Upkeep { renew, check_at: Instant::now(), logged }
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self) -> Instant {
        self.check_at
    }

    /// Checks the certificates if a check is due. Returns whether the server must read them again.
    pub(super) fn check(&mut self, site: &Site, log: &Log) -> bool {
        if self.check_at > Instant::now() {
            return false;
        }
        let (warnings, next) = adapter::certificate_warnings(&site.config);
        warnings.iter().filter(|it| !self.logged.contains(it)).for_each(|it| log.write(Level::Warn, it));
        self.logged = warnings;
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

//! The texts of `-v`, `-V` and `--version`. Tools parse those of `-v` and `-V`.

use std::fmt::Write;
use std::path::Path;

use io::probe::{FeatureState, Probe};

use crate::paths::{DEFAULT_ERROR_LOG, DEFAULT_PID, DEFAULT_PREFIX, default_conf};

/// The nginx version that serves as the reference.
const REFERENCE: &str = "1.31.5";

/// Returns the first line of `-v` and `-V`. Tools match `nginx/` and the number after it; some take the number after the last slash.
pub(crate) fn version_line() -> String {
    format!("nginx version: nginx/{REFERENCE} (ringroad-{})\n", env!("CARGO_PKG_VERSION"))
}

/// Returns the lines of `-V` about TLS. Certbot's plugin for nginx requires both.
pub(crate) fn tls_lines() -> String {
    format!("built with {}\nTLS SNI support enabled\n", tls::library())
}

/// Returns the last line of `-V`: paths and modules, in the form of nginx's configure arguments.
pub(crate) fn configure_line() -> String {
    let modules = crate::adapter::configure_arguments().join(" ");
    let below = |name: &str| Path::new(DEFAULT_PREFIX).join(name).display().to_string();
    format!(
        "configure arguments: --prefix={} --conf-path={} --pid-path={} --error-log-path={} {modules}\n",
        DEFAULT_PREFIX.trim_end_matches('/'),
        default_conf(),
        below(DEFAULT_PID),
        below(DEFAULT_ERROR_LOG),
    )
}

/// Returns the text of `--version`: the program, its commit, the reference version, and the kernel's features.
pub(crate) fn long() -> String {
    let commit = match env!("RINGROAD_COMMIT") {
        "" => "a build without a commit".to_owned(),
        commit => format!("commit {commit}"),
    };
    let probe = Probe::run();
    let words = |state: FeatureState| {
        let rows = probe.rows().iter().filter(|row| row.state == state && FEATURES.contains(&row.item));
        rows.map(|row| row.item).collect::<Vec<_>>().join(", ")
    };
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut text = format!(
        "ringroad {} ({commit}), configuration of nginx {REFERENCE}\nkernel {release}: {}\n",
        env!("CARGO_PKG_VERSION"),
        words(FeatureState::Works),
    );
    for (state, name) in [(FeatureState::Limited, "limited"), (FeatureState::Missing, "missing")] {
        if !words(state).is_empty() {
            let _infallible =
                writeln!(text, "{name}: {} (\"ringroad engines\" shows the causes)", words(state));
        }
    }
    text
}

/// The rows of the probe that are kernel features.
const FEATURES: [&str; 8] = [
    "io_uring",
    "multishot receive",
    "multishot accept",
    "zero-copy send",
    "registered buffers",
    "libaio",
    "epoll",
    "openat2",
];

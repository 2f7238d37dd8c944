//! The capabilities of this machine, kernel and security context, probed once at the start.
//!
//! [`Probe::run`] tests the capabilities; the other functions report them. Privileges must be dropped and seccomp
//! filters installed before the probe, because both affect the result. Types: [`Probe`], [`Row`], [`FeatureState`],
//! [`Fallback`].

mod facts;
mod trial;

use std::fmt::Write as _;

use rustix::io::Errno;

use self::facts::Release;
use self::trial::{Failure, Trial};
use crate::disk::libaio::Libaio;
use crate::engine::NetKind;
use crate::uring::{DEFER_TASKRUN, NO_SQARRAY, SetupError, TASKRUN_FLAG, filtered};

/// The degree to which a feature can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureState {
    /// Fully usable.
    Works,
    /// Usable with a limitation that the detail describes.
    Limited,
    /// Not usable.
    Missing,
}

impl FeatureState {
    /// Returns one word for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            FeatureState::Works => "works",
            FeatureState::Limited => "limited",
            FeatureState::Missing => "missing",
        }
    }
}

/// The result of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The probed feature.
    pub item: &'static str,
    /// The degree to which it can be used.
    pub state: FeatureState,
    /// The result, or the likely cause of its absence.
    pub detail: String,
    /// The remedy, if there is one.
    pub remedy: Option<String>,
}

/// The reason why io_uring is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The likely cause.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
}

/// The results of all probes.
#[derive(Clone, Debug)]
pub struct Probe {
    rows: Vec<Row>,
    fallback: Option<Fallback>,
    zero_copy: bool,
    libaio: bool,
}

impl Probe {
    /// Runs all probes, within about a second at worst and a few milliseconds otherwise.
    pub fn run() -> Probe {
        let text = facts::release_text();
        let release = Release::parse(&text);
        let mut probe = Probe { rows: Vec::new(), fallback: None, zero_copy: false, libaio: false };
        probe.kernel(&text, release);
        match Trial::new() {
            Ok(trial) => probe.ring(trial),
            Err(error) => probe.refused(&error),
        }
        if release < facts::OLDEST {
            probe.forbid("the kernel is older than 6.1", "use Linux 6.1 or newer");
        } else if let Some(fault) = release.fault().filter(|fault| fault.forbids) {
            probe.forbid(fault.what, "update the kernel");
        }
        probe.others();
        probe
    }

    /// Returns the results of this process: the first call runs the probes. A process that will restrict its system calls
    /// calls it before.
    pub fn of_process() -> &'static Probe {
        static PROBE: std::sync::LazyLock<Probe> = std::sync::LazyLock::new(Probe::run);
        &PROBE
    }

    /// Returns all results, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the best network backend on this machine.
    pub fn best_net(&self) -> NetKind {
        if self.fallback.is_none() { NetKind::Uring } else { NetKind::Epoll }
    }

    /// Returns the reason why io_uring cannot be used, for a server that falls back or refuses to start.
    pub fn uring_refusal(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// Whether libaio can be used.
    pub fn libaio(&self) -> bool {
        self.libaio
    }

    /// Whether zero-copy sends with io_uring can be used.
    pub fn send_zero_copy(&self) -> bool {
        self.zero_copy && self.fallback.is_none()
    }

    /// Returns one line for the error log: whether io_uring can be used and, if not, why.
    pub fn summary(&self) -> String {
        match &self.fallback {
            None => "io_uring can be used".to_owned(),
            Some(fallback) => {
                format!(
                    "io_uring cannot be used, likely cause: {}; remedy: {}",
                    fallback.cause, fallback.remedy
                )
            }
        }
    }

    /// Returns the results as a table in text, one line each.
    pub fn to_table(&self) -> String {
        let width = self.rows.iter().map(|row| row.item.len()).max().unwrap_or(0);
        let mut table = String::new();
        for row in &self.rows {
            let _infallible = write!(table, "{:width$}  {:7}  {}", row.item, row.state.name(), row.detail);
            if let Some(remedy) = &row.remedy {
                table.push_str("; remedy: ");
                table.push_str(remedy);
            }
            table.push('\n');
        }
        table
    }

    /// Returns the results as one JSON object: `{"net": …, "refusal": …, "rows": [{"item", "state", "detail",
    /// "remedy"}]}`.
    pub fn to_json(&self) -> String {
        let refusal = self.fallback.as_ref().map_or("null".to_owned(), |fallback| {
            let (cause, remedy) = (json_text(&fallback.cause), json_text(&fallback.remedy));
            format!("{{\"cause\":{cause},\"remedy\":{remedy}}}")
        });
        let row = |row: &Row| {
            let (item, state, detail) =
                (json_text(row.item), json_text(row.state.name()), json_text(&row.detail));
            let remedy = row.remedy.as_deref().map_or("null".to_owned(), json_text);
            format!("{{\"item\":{item},\"state\":{state},\"detail\":{detail},\"remedy\":{remedy}}}")
        };
        let net = if self.fallback.is_none() { "io_uring" } else { "epoll" };
        let rows: Vec<String> = self.rows.iter().map(row).collect();
        format!("{{\"net\":\"{net}\",\"refusal\":{refusal},\"rows\":[{}]}}", rows.join(","))
    }

    fn add(
        &mut self,
        item: &'static str,
        state: FeatureState,
        detail: impl Into<String>,
        remedy: Option<&str>,
    ) {
        let remedy = remedy.map(str::to_owned);
        self.rows.push(Row { item, state, detail: detail.into(), remedy });
    }

    /// Prevents the use of io_uring, unless another reason was recorded before.
    fn forbid(&mut self, cause: &str, remedy: &str) {
        self.fallback.get_or_insert_with(|| Fallback { cause: cause.to_owned(), remedy: remedy.to_owned() });
    }

    fn kernel(&mut self, text: &str, release: Release) {
        match release.fault() {
            _ if release < facts::OLDEST => {
                let detail = format!("{text}: too old for io_uring");
                self.add("kernel", FeatureState::Limited, detail, Some("use Linux 6.1 or newer"));
            }
            Some(fault) => {
                self.add(
                    "kernel",
                    FeatureState::Limited,
                    format!("{text}: {}", fault.what),
                    Some("update the kernel"),
                );
            }
            None => self.add("kernel", FeatureState::Works, text, None),
        }
        let (state, detail) = if filtered() {
            (FeatureState::Limited, "a filter is active")
        } else {
            (FeatureState::Works, "no filter")
        };
        self.add("seccomp", state, detail, None);
        match facts::ring_disabled() {
            None => self.add("kernel.io_uring_disabled", FeatureState::Works, "not in this kernel", None),
            Some(0) => self.add("kernel.io_uring_disabled", FeatureState::Works, "0", None),
            Some(value) => {
                let remedy = Some("set kernel.io_uring_disabled=0");
                self.add("kernel.io_uring_disabled", FeatureState::Limited, value.to_string(), remedy);
            }
        }
        match facts::memlock() {
            None => self.add("locked memory", FeatureState::Works, "no limit", None),
            Some(bytes) => {
                self.add("locked memory", FeatureState::Works, format!("{} KiB", bytes / 1024), None)
            }
        }
    }

    fn refused(&mut self, error: &SetupError) {
        self.fallback = Some(Fallback {
            cause: format!("{}: {}: {}", error.call(), errno_text(error.errno), error.cause()),
            remedy: error.remedy().to_owned(),
        });
        let detail = format!("{}: {}: {}", error.call(), errno_text(error.errno), error.cause());
        self.add("io_uring", FeatureState::Missing, detail, Some(error.remedy()));
    }

    fn ring(&mut self, mut trial: Trial) {
        let flags = trial.setup_flags();
        let missing: Vec<&str> =
            [(DEFER_TASKRUN, "DEFER_TASKRUN"), (TASKRUN_FLAG, "TASKRUN_FLAG"), (NO_SQARRAY, "NO_SQARRAY")]
                .into_iter()
                .filter_map(|(flag, name)| (flags & flag == 0).then_some(name))
                .collect();
        let detail = if missing.is_empty() {
            "all set-up flags".to_owned()
        } else {
            format!("without {}", missing.join(", "))
        };
        let state = if missing.is_empty() { FeatureState::Works } else { FeatureState::Limited };
        self.add("io_uring", state, detail, None);
        self.opcodes(&trial);
        self.needed("multishot receive", trial.multishot_receive());
        self.needed("multishot accept", trial.multishot_accept());
        let zero_copy = trial.zero_copy();
        self.zero_copy = zero_copy.is_ok();
        self.wanted("zero-copy send", zero_copy, "sends are copied", None);
        let remedy = Some("raise the limit on locked memory (LimitMEMLOCK=, ulimit -l)");
        let registered = trial.registered_buffers();
        self.wanted("registered buffers", registered, "the kernel pins pages at each direct read", remedy);
    }

    fn opcodes(&mut self, trial: &Trial) {
        if trial.supports_opcodes() {
            self.add("io_uring operations", FeatureState::Works, "all required operations", None);
        } else {
            let remedy = "use Linux 6.1 or newer without restrictions on io_uring";
            self.add(
                "io_uring operations",
                FeatureState::Missing,
                "required operations are missing",
                Some(remedy),
            );
            self.forbid("io_uring of this kernel lacks required operations", remedy);
        }
    }

    /// Records the test of a feature without which io_uring is not used.
    fn needed(&mut self, item: &'static str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => self.add(item, FeatureState::Works, "tested", None),
            Err(failure) => {
                let detail = failure_text(failure);
                let remedy = "update the kernel, or configure \"use epoll;\"";
                self.add(item, FeatureState::Missing, detail.clone(), Some(remedy));
                self.forbid(&format!("{item} does not work: {detail}"), remedy);
            }
        }
    }

    /// Records the test of a feature that only improves performance.
    fn wanted(&mut self, item: &'static str, outcome: Result<(), Failure>, loss: &str, remedy: Option<&str>) {
        match outcome {
            Ok(()) => self.add(item, FeatureState::Works, "tested", None),
            Err(failure) => {
                let detail = format!("{}; {loss}", failure_text(failure));
                self.add(item, FeatureState::Limited, detail, remedy);
            }
        }
    }

    fn others(&mut self) {
        let numbers = facts::aio_numbers().map_or(String::new(), |(used, most)| {
            format!("{used} of {most} requests in use (fs.aio-max-nr)")
        });
        match Libaio::check() {
            Ok(()) => {
                self.libaio = true;
                self.add("libaio", FeatureState::Works, numbers, None);
            }
            Err(Errno::AGAIN) => {
                self.add("libaio", FeatureState::Missing, numbers, Some("raise fs.aio-max-nr"))
            }
            Err(errno) => {
                let detail = format!("io_setup: {}", errno_text(errno));
                self.add(
                    "libaio",
                    FeatureState::Missing,
                    detail,
                    Some("allow io_setup, io_submit, io_destroy"),
                );
            }
        }
        match facts::epoll() {
            Ok(()) => self.add("epoll", FeatureState::Works, "tested", None),
            Err(errno) => {
                self.add("epoll", FeatureState::Missing, errno_text(errno), Some("allow epoll_create1"))
            }
        }
        match facts::openat2() {
            Ok(()) => self.add("openat2", FeatureState::Works, "restricts paths to a directory", None),
            Err(errno) => {
                let detail = format!("{}; root_beneath cannot be used", errno_text(errno));
                self.add("openat2", FeatureState::Missing, detail, Some("allow openat2"));
            }
        }
    }
}

fn failure_text(failure: Failure) -> String {
    match failure {
        Failure::Errno(errno) => errno_text(errno),
        Failure::Silence => "no completion arrived".to_owned(),
        Failure::Wrong => "a completion had unexpected content".to_owned(),
    }
}

fn errno_text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// Returns a JSON string (RFC 8259 section 7).
fn json_text(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\u{0}'..='\u{1f}' => {
                let _infallible = write!(json, "\\u{:04x}", c as u32);
            }
            _ => json.push(c),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use testkit::seccomp::{Call, forbid, forbid_with};

    use super::*;

    #[test]
    fn a_seccomp_filter_is_reported_as_the_cause() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let Some(probe) = forbid_with(Call::IoUringSetup, errno, Probe::run) else { return };
            assert_eq!(probe.best_net(), NetKind::Epoll);
            let fallback = probe.uring_refusal().unwrap();
            let disabled = facts::ring_disabled().unwrap_or(0) > 0 && errno == libc::EPERM;
            let (cause, remedy) =
                if disabled { ("io_uring_disabled", "io_uring_disabled=0") } else { ("seccomp", "seccomp") };
            assert!(fallback.cause.contains(cause), "{}", fallback.cause);
            assert!(fallback.remedy.contains(remedy), "{}", fallback.remedy);
            assert!(probe.summary().contains(&fallback.cause));
            assert!(probe.to_json().starts_with("{\"net\":\"epoll\",\"refusal\":{\"cause\":"));
            let row = probe.rows().iter().find(|row| row.item == "io_uring").unwrap();
            assert_eq!(row.state, FeatureState::Missing);
        }
    }

    #[test]
    fn a_filter_on_libaio_is_detected() {
        let Some(probe) = forbid(Call::IoSetup, Probe::run) else { return };
        assert!(!probe.libaio());
    }

    #[test]
    fn the_probe_of_this_machine_is_consistent() {
        let probe = Probe::run();
        println!("{}\n{}", probe.to_table(), probe.to_json());
        let state = |item: &str| probe.rows().iter().find(|row| row.item == item).map(|row| row.state);
        let ring = state("io_uring").unwrap() != FeatureState::Missing;
        assert!(ring || probe.uring_refusal().is_some());
        assert_eq!(probe.uring_refusal().is_none(), probe.best_net() == NetKind::Uring);
        assert_eq!(probe.libaio(), state("libaio") == Some(FeatureState::Works));
        assert!(!probe.send_zero_copy() || state("zero-copy send") == Some(FeatureState::Works));
        assert_eq!(probe.to_table().lines().count(), probe.rows().len());
    }

    #[test]
    fn json_text_is_escaped() {
        assert_eq!(json_text("a\"b\\c\nd\u{1}é"), r#""a\"b\\c\u000ad\u0001é""#);
    }
}

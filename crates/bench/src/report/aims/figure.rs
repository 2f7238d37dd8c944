//! The figures that aims are about, out of one measurement. Scenarios have the same figure under different names, by
//! what they measure it with.

use crate::report::model::Run;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// The server's processor time for each answer.
    Cpu,
    /// The same for each byte of a body.
    CpuPerByte,
    /// System calls (on a ring: entries into the kernel) for each answer.
    Calls,
    /// Answers or operations a second.
    Rate,
    /// Bytes a second.
    Bandwidth,
    /// Median latency.
    P50,
    /// The latency that one answer in a hundred exceeds.
    P99,
    /// One in a thousand.
    P999,
    /// Bytes of user-space memory for each idle connection.
    IdleMemory,
    /// Bytes written to the disk for each byte that was stored.
    Written,
}

impl Figure {
    /// In tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Figure::Cpu => "CPU per request",
            Figure::CpuPerByte => "CPU per megabyte",
            Figure::Calls => "kernel entries per request",
            Figure::Rate => "rate",
            Figure::Bandwidth => "bandwidth",
            Figure::P50 => "p50",
            Figure::P99 => "p99",
            Figure::P999 => "p99.9",
            Figure::IdleMemory => "bytes per idle connection",
            Figure::Written => "bytes written per byte stored",
        }
    }

    /// Whether the best of several is the one with most of it.
    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Figure::Rate | Figure::Bandwidth)
    }

    /// Its value in a measurement, in units that are the same for all.
    pub(super) fn of(self, run: &Run) -> Option<f64> {
        let figure = |name: &str| run.figures.get(name).copied();
        let over = |name: &str, below: &str| Some(figure(name)? / figure(below)?);
        let latency =
            |us: &str, ms: &str| figure(us).or_else(|| figure(ms).map(|milliseconds| milliseconds * 1e3));
        let value = match self {
            Figure::Cpu => figure("server_cpu_us_per_request")
                .or_else(|| over("server_cpu_seconds", "requests").map(|seconds| seconds * 1e6)),
            Figure::CpuPerByte => over("server_cpu_seconds", "body_bytes"),
            Figure::Calls => figure("system_calls_per_request"),
            Figure::Rate => figure("requests_per_second").or_else(|| over("operations", "seconds")),
            Figure::Bandwidth => over("body_bytes", "seconds").or_else(|| over("bytes", "seconds")),
            Figure::P50 => latency("p50_us", "p50_ms"),
            Figure::P99 => latency("p99_us", "p99_ms"),
            Figure::P999 => latency("p99_9_us", "p99_9_ms"),
            Figure::IdleMemory => figure("bytes_per_idle_connection"),
            Figure::Written => figure("written_bytes_per_stored_byte"),
        };
        value.filter(|value| value.is_finite())
    }
}

//! Runs the same jobs by fio, as a verification: same file, same block size, same duration, immediately after this
//! suite's measurement.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::job::{EngineKind, Job};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::huge_pages::HugePages;
use crate::method::process::Launch;
use crate::peers::tool::Tool;
use crate::report::model::Run;
use crate::scenario::described::Named;

/// Time that fio may need in addition to the duration of its job.
const EXTRA_LIMIT: Duration = Duration::from_secs(60);
/// Number of huge pages of 2 MiB: more than the buffers of the write-up's sixteen processes need.
const HUGE_PAGES: u64 = 64;

/// fio and its memory.
pub(super) struct Fio {
    tool: Tool,
    /// Reserved pages; without them fio's buffers are in ordinary pages, and the error is the reason.
    huge_pages: Result<HugePages, String>,
}

impl Fio {
    pub(super) fn new(tool: Tool) -> Fio {
        Fio { tool, huge_pages: HugePages::reserve(HUGE_PAGES) }
    }

    /// Returns why the memory of fio differs from this program's.
    pub(super) fn memory_differs(&self) -> Option<&str> {
        self.huge_pages.as_ref().err().map(String::as_str)
    }

    /// Returns the job in fio's syntax; `None` if fio has no such engine.
    pub(super) fn job_file(&self, job: &Job) -> Option<String> {
        job_file(job, if self.huge_pages.is_ok() { "mmaphuge" } else { "malloc" })
    }

    /// Runs the job by fio.
    pub(super) fn measure(&self, bench: &Bench, job: &Job) -> Result<Run, Failure> {
        let unknown = || Failure::Other("fio has no such engine".to_owned());
        let text = self.job_file(job).ok_or_else(unknown)?;
        let directory = bench.workspace.directory("disk-fio")?;
        let [file, output, result] = ["job", "output", "result.json"].map(|name| directory.join(name));
        fs::write(&file, text).map_err(Failure::file("write", &file))?;
        // A run that fails must not leave the result of the one before.
        let _ = fs::remove_file(&result);
        let write_to = format!("--output={}", result.display());
        let launch = Launch {
            arguments: vec!["--output-format=json".into(), write_to.into(), file.into()],
            directory: Some(directory),
            ..Launch::new("fio", &self.tool.path)
        };
        launch.run(&output, Duration::from_secs_f64(job.seconds) + EXTRA_LIMIT)?;
        let text = fs::read_to_string(&result).map_err(Failure::file("read", &result))?;
        parse(&text).map_err(|reason| Failure::Other(format!("fio's result: {reason}")))
    }
}

fn job_file(job: &Job, memory: &str) -> Option<String> {
    let engine = match job.engine {
        EngineKind::Sync => "psync",
        EngineKind::Libaio => "libaio",
        EngineKind::Uring => "io_uring",
        EngineKind::UringFixed => "io_uring\nfixedbufs=1\nregisterfiles=1",
        EngineKind::UringSqpoll => "io_uring\nfixedbufs=1\nregisterfiles=1\nsqthread_poll=1",
        EngineKind::UringIopoll => "io_uring\nfixedbufs=1\nregisterfiles=1\nhipri=1",
        // fio's threads are a different design than a thread pool.
        EngineKind::Threads => return None,
    };
    // Without fio's map of accessed blocks, as in this suite; and fio must never create a file or write to a different
    // one.
    let mut text = format!(
        "[job]\nioengine={engine}\nfilename={}\nsize={}\nrw={}\nbs={}\ndirect={}\niodepth={}\nnumjobs={}\nthread={}\n\
         time_based=1\nruntime={}ms\nnorandommap=1\nrandseed={}\nallow_file_create=0\ngroup_reporting=1\nmem={memory}\n",
        // fio uses colons as separators of file names.
        job.file.display().to_string().replace(':', "\\:"),
        job.file_bytes,
        job.pattern.name(),
        job.block_bytes,
        u8::from(job.direct),
        job.queue_depth(),
        job.all_threads(),
        u8::from(!job.in_processes),
        (job.seconds * 1e3).ceil(),
        job.seed,
    );
    // Threads with a sequential pattern start at different offsets, as in this suite.
    if !job.pattern.is_random() && job.all_threads() > 1 {
        let apart = job.file_bytes / u64::from(job.all_threads());
        text += &format!("offset_increment={}\n", apart - apart % u64::from(job.block_bytes));
    }
    Some(text)
}

/// Parses fio's result, as far as tables need it.
fn parse(text: &str) -> Result<Run, String> {
    // Warnings may precede the JSON object.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let job = &value["jobs"][0];
    // Figures that fio omits count as 0.
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let both = |read: &str| number(&job["read"][read]) + number(&job["write"][read]);
    let seconds = number(&job["read"]["runtime"]).max(number(&job["write"]["runtime"])) / 1e3;
    let operations = both("total_ios");
    if seconds == 0.0 || operations == 0.0 {
        return Err("no operation was measured".to_owned());
    }
    let mut run = Run::of([
        ("operations", operations),
        ("bytes", both("io_bytes")),
        ("seconds", seconds),
        ("context_switches", number(&job["ctx"])),
        // Percentages of the time of all threads.
        ("user_seconds", number(&job["usr_cpu"]) * number(&job["job_runtime"]) / 1e5),
        ("system_seconds", number(&job["sys_cpu"]) * number(&job["job_runtime"]) / 1e5),
    ]);
    // The mean of both directions, each weighted by its operations.
    for (ours, theirs) in
        [("both_submission_us", "slat_ns"), ("both_completion_us", "clat_ns"), ("both_total_us", "lat_ns")]
    {
        let sum = |side: &Value| number(&side["total_ios"]) * number(&side[theirs]["mean"]);
        run.set(ours, (sum(&job["read"]) + sum(&job["write"])) / operations / 1e3);
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::super::job::Pattern;
    use super::*;

    #[test]
    fn a_job_is_translated_to_fio_options() {
        let job = Job {
            engine: EngineKind::Sync,
            pattern: Pattern::Randrw,
            block_bytes: 128 << 10,
            depth: 1,
            copies: 16,
            in_processes: true,
            seconds: 0.5,
            ..Job::new("/tmp/a:b".into(), 2 << 30)
        };
        let text = job_file(&job, "malloc").unwrap();
        for line in [
            "ioengine=psync",
            "rw=randrw",
            "bs=131072",
            "iodepth=1",
            "numjobs=16",
            "thread=0",
            "runtime=500ms",
            "filename=/tmp/a\\:b",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert_eq!(job_file(&Job { engine: EngineKind::Threads, ..job }, "malloc"), None);
    }

    #[test]
    fn results_are_parsed_and_invalid_ones_reported() {
        let side = |ios: u32, lat: u32| {
            format!(
                r#"{{"total_ios":{ios},"io_bytes":{},"runtime":2000,"slat_ns":{{"mean":1000}},"clat_ns":{{"mean":{lat}}},"lat_ns":{{"mean":{lat}}}}}"#,
                ios * 4096
            )
        };
        let (read, write) = (side(300, 4000), side(100, 8000));
        let text = format!(
            r#"a warning {{"jobs":[{{"read":{read},"write":{write},"usr_cpu":10,"sys_cpu":20,"ctx":7,"job_runtime":4000}}]}}"#
        );
        let run = parse(&text).unwrap();
        let figures = ["operations", "seconds", "both_submission_us", "both_total_us", "user_seconds"];
        assert_eq!(figures.map(|name| run.figures[name]), [400.0, 2.0, 1.0, 5.0, 0.4]);
        assert_eq!(parse(r#"{"jobs":[{}]}"#).unwrap_err(), "no operation was measured");
        assert!(parse("fio: failed").is_err());
    }
}

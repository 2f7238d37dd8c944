//! Runs the same jobs by fio, as a verification: same file, same block size, same duration, immediately after this
//! suite's measurement.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::job::{EngineKind, Job, JobOutcome, Side};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::process::Launch;
use crate::peers::tool::Tool;
use crate::scenario::described::Named;

/// Time that fio may need in addition to the duration of its job.
const EXTRA_LIMIT: Duration = Duration::from_secs(60);

/// Returns the job in fio's syntax; `None` if fio has no such engine.
pub(super) fn job_file(job: &Job) -> Option<String> {
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
         time_based=1\nruntime={}ms\nnorandommap=1\nrandseed={}\nallow_file_create=0\ngroup_reporting=1\n",
        // fio uses colons as separators of file names.
        job.file.display().to_string().replace(':', "\\:"),
        job.file_bytes,
        job.pattern.name(),
        job.block_bytes,
        u8::from(job.direct),
        job.queue_depth(),
        job.workers(),
        u8::from(job.processes == 1),
        (job.seconds * 1e3).ceil(),
        job.seed,
    );
    // Workers with a sequential pattern start at different offsets, as in this suite.
    if !job.pattern.is_random() && job.workers() > 1 {
        let apart = job.file_bytes / u64::from(job.workers());
        text += &format!("offset_increment={}\n", apart - apart % u64::from(job.block_bytes));
    }
    Some(text)
}

/// Runs the job by fio.
pub(super) fn measure(bench: &Bench, tool: &Tool, job: &Job) -> Result<JobOutcome, Failure> {
    let text = job_file(job).ok_or_else(|| Failure::Other("fio has no such engine".to_owned()))?;
    let directory = bench.workspace.directory("disk-fio")?;
    let (file, output, result) =
        (directory.join("job"), directory.join("said"), directory.join("result.json"));
    fs::write(&file, text).map_err(Failure::file("write", &file))?;
    let _ = fs::remove_file(&result);
    let write_to = format!("--output={}", result.display());
    let launch = Launch {
        arguments: vec!["--output-format=json".into(), write_to.into(), file.into()],
        directory: Some(directory),
        ..Launch::new("fio", &tool.path)
    };
    launch.run(&output, Duration::from_secs_f64(job.seconds) + EXTRA_LIMIT)?;
    read(&result).map_err(Failure::Other)
}

/// Parses fio's result, as far as tables need it.
fn read(path: &Path) -> Result<JobOutcome, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("fio's result: {error}"))?;
    // Warnings may precede the JSON object.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let value: Value = serde_json::from_str(json).map_err(|error| format!("fio's result: {error}"))?;
    let job = &value["jobs"][0];
    // Figures that fio omits count as 0.
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let side = |side: &Value| Side {
        operations: number(&side["total_ios"]) as u64,
        bytes: number(&side["io_bytes"]) as u64,
        ..Side::default()
    };
    let (read, write) = (side(&job["read"]), side(&job["write"]));
    // Run time in ms of each direction of the job.
    let runtime = |side: &Value| number(&side["runtime"]) / 1e3;
    let seconds = runtime(&job["read"]).max(runtime(&job["write"]));
    if seconds == 0.0 || read.operations + write.operations == 0 {
        return Err("fio did nothing".to_owned());
    }
    Ok(JobOutcome { read, write, seconds, switches: number(&job["ctx"]) as u64, ..JobOutcome::default() })
}

#[cfg(test)]
mod tests {
    use super::super::job::Pattern;
    use super::*;

    #[test]
    fn a_job_is_translated_to_fio_options() {
        let job = Job {
            engine: EngineKind::Libaio,
            pattern: Pattern::Randrw,
            block_bytes: 128 << 10,
            seconds: 0.5,
            ..Job::new("/tmp/a:b".into(), 2 << 30)
        };
        let text = job_file(&job).unwrap();
        for line in [
            "ioengine=libaio",
            "rw=randrw",
            "bs=131072",
            "iodepth=16",
            "runtime=500ms",
            "filename=/tmp/a\\:b",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert_eq!(job_file(&Job { engine: EngineKind::Threads, ..job }), None);
    }

    #[test]
    fn invalid_fio_results_are_reported() {
        assert!(read(Path::new("/nowhere/result.json")).unwrap_err().starts_with("fio's result"));
    }
}

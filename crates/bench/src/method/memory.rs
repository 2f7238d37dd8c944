//! User-space memory of processes: heaps, stacks and shared mappings. Program text and mapped files are not counted,
//! because the page cache shares them; neither is kernel memory of sockets.

use std::fs;

use crate::failure::Failure;

/// Returns the memory of each of `count` connections, of a server that used `before` bytes without them and `now` with them. Fails if
/// it uses no more than before: another part of the server then uses less, and the connections' share is unknown.
pub(crate) fn of_each(before: u64, now: u64, count: u32) -> Result<f64, Failure> {
    match now.checked_sub(before) {
        None | Some(0) => {
            let said = format!("{count} connections did not increase its memory of {before} bytes");
            Err(Failure::Other(said))
        }
        Some(more) => Ok(more as f64 / f64::from(count)),
    }
}

/// Returns the sum over all these processes in bytes (proc_pid_status(5)).
pub(crate) fn user_space_bytes(ids: impl IntoIterator<Item = u32>) -> u64 {
    let status = |id: u32| fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    ids.into_iter().map(|id| parse(&status(id))).sum()
}

/// Returns the memory without a backing file: anonymous memory, and shared memory, which engines use for rings and
/// buffers.
fn parse(status: &str) -> u64 {
    let kib = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let is_wanted = matches!(name, "RssAnon" | "RssShmem");
        value.trim().strip_suffix(" kB").filter(|_| is_wanted)?.parse::<u64>().ok()
    };
    status.lines().filter_map(kib).sum::<u64>() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_did_not_grow_gives_no_figure() {
        assert_eq!(of_each(1000, 3000, 4).unwrap(), 500.0);
        assert!(of_each(1000, 1000, 4).is_err() && of_each(1000, 900, 4).is_err());
    }

    #[test]
    fn page_cache_is_not_counted_as_memory() {
        let text = "Name:\tx\nVmRSS:\t  100 kB\nRssAnon:\t  10 kB\nRssFile:\t  88 kB\nRssShmem:\t  2 kB\n";
        assert_eq!(parse(text), 12 << 10);
        assert!(user_space_bytes([std::process::id()]) > 0);
        assert_eq!(user_space_bytes([]), 0);
    }
}

//! User-space memory of processes: heaps, stacks and shared mappings. Program text and mapped files are not counted,
//! because the page cache shares them; neither is kernel memory of sockets.

use std::fs;

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
    fn page_cache_is_not_counted_as_memory() {
        let text = "Name:\tx\nVmRSS:\t  100 kB\nRssAnon:\t  10 kB\nRssFile:\t  88 kB\nRssShmem:\t  2 kB\n";
        assert_eq!(parse(text), 12 << 10);
        assert!(user_space_bytes([std::process::id()]) > 0);
        assert_eq!(user_space_bytes([]), 0);
    }
}

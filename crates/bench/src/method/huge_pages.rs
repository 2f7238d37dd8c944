//! Huge pages for a program that cannot ask for transparent ones.
//!
//! This server's buffers are in transparent huge pages (madvise(2)), which have fewer pieces for a device to transfer. fio
//! needs reserved pages (hugetlbpage, `vm.nr_hugepages`) for the same.

use std::fs;
use std::path::Path;

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// A reservation of huge pages, which ends when it is dropped.
pub(crate) struct HugePages {
    /// Number of reserved pages before.
    before: u64,
}

impl HugePages {
    /// Reserves further pages. The error is the reason why there are fewer.
    pub(crate) fn reserve(count: u64) -> Result<HugePages, String> {
        let failed = |error| format!("{RESERVED}: {error}");
        let read = || -> Result<u64, String> {
            let text = fs::read_to_string(RESERVED).map_err(failed)?;
            text.trim().parse().map_err(|_| format!("{RESERVED} has no number"))
        };
        let before = read()?;
        fs::write(RESERVED, (before + count).to_string()).map_err(failed)?;
        let pages = HugePages { before };
        // The kernel reserves as many as it finds.
        match read()? {
            after if after >= before + count => Ok(pages),
            after => Err(format!("{} of {count} huge pages are available", after.saturating_sub(before))),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Path::new(RESERVED), self.before.to_string());
    }
}

//! Determines the memory limit of this process: the limit of its memory cgroup, version 1 or 2 (cgroups(7)), or of a
//! parent cgroup.
//!
//! The OOM killer kills a process that exceeds the limit, so the server's defaults depend on the limit. It is read
//! once, at the start, from files of `/proc` and `/sys`, which do not block.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the smallest limit that applies to this process, in bytes; `None` without a visible limit.
#[expect(clippy::disallowed_methods, reason = "files of the kernel, which wait for no disk")]
pub(crate) fn memory_limit() -> Option<u64> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let files = limit_files(&text("/proc/self/mounts"), &text("/proc/self/cgroup"));
    let limits = files.iter().filter_map(|path| parse(&fs::read_to_string(path).ok()?));
    limits.min()
}

/// Parses `max` or a number. Version 1 has a number near the maximum if no limit is set.
fn parse(text: &str) -> Option<u64> {
    const UNLIMITED: u64 = 1 << 60;
    text.trim().parse().ok().filter(|&bytes| bytes < UNLIMITED)
}

/// Returns the limit files of the cgroup and of all its parents, for both versions. In a container, the mount point may
/// be the cgroup itself. Then the cgroup's path does not exist below the mount point, and only the file at the mount
/// point is found.
fn limit_files(mounts: &str, membership: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(mount), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (name, group) = match kind {
            "cgroup2" => ("memory.max", group_of(membership, "")),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                ("memory.limit_in_bytes", group_of(membership, "memory"))
            }
            _ => continue,
        };
        let Some(group) = group else { continue };
        files.extend(Path::new(group).ancestors().map(|folder| {
            let below = folder.strip_prefix("/").unwrap_or(folder);
            Path::new(mount).join(below).join(name)
        }));
    }
    files
}

/// Returns the cgroup of this process for a controller, from a line `4:memory:/group`; version 2 has the line
/// `0::/group`.
fn group_of<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_searched_up_to_the_mount_point() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let files = limit_files(mounts, "0::/system.slice/ringroad.service\n");
        let expected = ["system.slice/ringroad.service/", "system.slice/", ""]
            .map(|group| PathBuf::from(format!("/sys/fs/cgroup/{group}memory.max")));
        assert_eq!(files, expected);
    }

    #[test]
    fn cgroup_v1_has_a_mount_for_each_controller() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let files = limit_files(mounts, "4:memory:/web\n1:cpu:/\n0::/\n");
        let expected =
            ["memory/web/memory.limit_in_bytes", "memory/memory.limit_in_bytes", "unified/memory.max"]
                .map(|name| Path::new("/sys/fs/cgroup").join(name));
        assert_eq!(files, expected);
        assert_eq!(limit_files("", "0::/\n"), Vec::<PathBuf>::new());
    }

    #[test]
    fn unlimited_is_a_keyword_or_a_very_large_number() {
        assert_eq!(parse("67108864\n"), Some(64 << 20));
        assert_eq!((parse("max\n"), parse("9223372036854771712\n"), parse("")), (None, None, None));
    }
}

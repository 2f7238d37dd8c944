//! Parser of `/proc/PID/stat` (proc_pid_stat(5)): parents and sessions of processes.

use std::collections::BTreeSet;
use std::fs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) id: u32,
    /// Parent process id; 1 after the parent has exited.
    pub(crate) parent: u32,
    /// Session id, which identifies the processes of a run.
    pub(crate) session: u32,
    /// Whether it has exited and its parent has not waited for it.
    pub(crate) is_zombie: bool,
    /// Start time in ticks since boot: together with the id it identifies a process uniquely.
    pub(crate) started: u64,
    /// CPU time of children that have exited and were waited for, in ticks.
    pub(crate) children_ticks: u64,
}

/// Reads the fields of a process; returns `None` if the process does not exist (any more).
pub(crate) fn read(id: u32) -> Option<ProcessStat> {
    parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

pub(crate) fn all() -> Vec<ProcessStat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter_map(read).collect()
}

/// Returns a session leader, its descendants, and members of its session whose parents have exited.
pub(crate) fn tree(root: u32) -> BTreeSet<u32> {
    tree_among(&all(), root)
}

/// Searches level by level: a child may have a lower id than its parent.
fn tree_among(processes: &[ProcessStat], root: u32) -> BTreeSet<u32> {
    let of_session = processes.iter().filter(|process| process.session == root || process.id == root);
    let mut found: BTreeSet<u32> = of_session.map(|process| process.id).collect();
    loop {
        let more: Vec<u32> = processes
            .iter()
            .filter(|process| found.contains(&process.parent) && !found.contains(&process.id))
            .map(|process| process.id)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Parses a line. The name is enclosed in parentheses and may contain any byte: the last parenthesis ends it.
fn parse(text: &str) -> Option<ProcessStat> {
    let (id, rest) = text.split_once(" (")?;
    let fields: Vec<&str> = rest.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    Some(ProcessStat {
        id: id.parse().ok()?,
        is_zombie: *fields.first()? == "Z",
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        children_ticks: fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32, session: u32) -> ProcessStat {
        ProcessStat { id, parent, session, is_zombie: false, started: 77, children_ticks: 15 }
    }

    #[test]
    fn a_process_name_may_contain_parentheses_and_spaces() {
        let text = "17 (a) b (c) S 3 17 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 1 1";
        assert_eq!(parse(text), Some(process(17, 3, 9)));
        assert_eq!(parse("17 (x"), None);
    }

    #[test]
    fn a_process_tree_has_only_children_and_orphans_of_the_session() {
        let processes = [
            process(1, 0, 1),
            process(10, 1, 10),
            process(11, 10, 10),
            process(12, 11, 12),
            process(13, 1, 10),
        ];
        assert_eq!(tree_among(&processes, 10), BTreeSet::from([10, 11, 12, 13]));
        assert_eq!(tree_among(&processes, 99), BTreeSet::new());
    }

    #[test]
    fn this_process_is_found() {
        let own = std::process::id();
        assert_eq!(read(own).unwrap().id, own);
        assert!(all().iter().any(|process| process.id == own));
    }
}

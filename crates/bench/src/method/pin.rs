//! Which processors the server has, and which the generator: apart where there are enough.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::Failure;

/// The processors of one measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Where the server runs, its kernel workers too where a group holds them.
    pub(crate) server: Vec<usize>,
    /// A thread of the generator for each.
    pub(crate) load: Vec<usize>,
    /// Whether no processor is in both: otherwise server and generator take time from each other.
    pub(crate) is_apart: bool,
}

impl Split {
    /// For so many workers. The server takes from the front, the generator gets the rest; when nothing is left, both
    /// share all.
    pub(crate) fn of(cpus: &[usize], workers: usize) -> Split {
        let workers = workers.max(1);
        if workers >= cpus.len() {
            return Split { server: cpus.to_vec(), load: cpus.to_vec(), is_apart: false };
        }
        let (server, load) = cpus.split_at(workers);
        Split { server: server.to_vec(), load: load.to_vec(), is_apart: true }
    }

    /// Where threads of this process serve or ask, if the server is not there too.
    pub(crate) fn load_cpu(&self) -> Option<usize> {
        self.load.first().copied().filter(|_| self.is_apart)
    }

    /// For a table or a plot.
    pub(crate) fn words(&self) -> &'static str {
        if self.is_apart { "apart" } else { "sharing all processors" }
    }
}

/// The processors that this process may use, lowest first.
pub(crate) fn available() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps the thread that calls it on one processor.
pub(crate) fn this_thread(cpu: usize) -> Result<(), Failure> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Failure::Usage(format!("there is no processor {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(Failure::kernel(format!("pin a thread to processor {cpu}")))
}

/// Numbers of workers to measure: 1, 2, 4 and so on, and all processors.
pub(crate) fn worker_counts(cpus: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|&count| count < cpus).collect();
    counts.push(cpus.max(1));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_and_generator_share_only_when_nothing_is_left() {
        assert_eq!(Split::of(&[0, 1], 1), Split { server: vec![0], load: vec![1], is_apart: true });
        assert_eq!(Split::of(&[0, 1, 2, 3], 3).load, [3]);
        for workers in [2, 5] {
            let split = Split::of(&[4, 6], workers);
            assert_eq!((split.server, split.load, split.is_apart), (vec![4, 6], vec![4, 6], false));
        }
        assert!(!Split::of(&[0], 1).is_apart);
    }

    #[test]
    fn worker_counts_end_with_all_processors() {
        assert_eq!(worker_counts(1), [1]);
        assert_eq!(worker_counts(2), [1, 2]);
        assert_eq!(worker_counts(6), [1, 2, 4, 6]);
        assert_eq!(worker_counts(8), [1, 2, 4, 8]);
    }

    #[test]
    fn this_process_has_a_processor() {
        assert!(!available().is_empty());
    }
}

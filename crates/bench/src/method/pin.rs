//! Assignment of processors to the server and the load generator: separate if there are enough.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::Failure;

/// The processors of one measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Processors of the server, including its kernel workers if a cgroup binds them.
    pub(crate) server: Vec<usize>,
    /// Processors of the generator, one thread on each.
    pub(crate) load: Vec<usize>,
    /// Whether the two sets are disjoint: otherwise server and generator compete for CPU time.
    pub(crate) is_apart: bool,
}

impl Split {
    /// Assigns processors for a number of workers. The server gets the first ones, the generator the remaining ones; if
    /// none remain, both share all.
    pub(crate) fn of(cpus: &[usize], workers: usize) -> Split {
        let workers = workers.max(1);
        if workers >= cpus.len() {
            return Split { server: cpus.to_vec(), load: cpus.to_vec(), is_apart: false };
        }
        let (server, load) = cpus.split_at(workers);
        Split { server: server.to_vec(), load: load.to_vec(), is_apart: true }
    }

    /// Returns a processor for server or client threads of this process, if it is not shared with the measured server.
    pub(crate) fn load_cpu(&self) -> Option<usize> {
        self.load.first().copied().filter(|_| self.is_apart)
    }

    /// Divides the generator's processors between two loads that run at the same time; both share a single processor.
    pub(crate) fn load_halves(&self) -> (&[usize], &[usize]) {
        match self.load.len() {
            0 | 1 => (self.load.as_slice(), self.load.as_slice()),
            count => self.load.split_at(count / 2),
        }
    }
}

/// Returns the processors that this process may use, in ascending order: at least one.
pub(crate) fn available() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

pub(crate) fn this_thread(cpu: usize) -> Result<(), Failure> {
    this_thread_to(&[cpu])
}

/// Restricts the calling thread, and the threads and processes that it starts, to these processors.
pub(crate) fn this_thread_to(cpus: &[usize]) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Failure::Usage(format!("there is no processor {cpu}")));
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(Failure::kernel(format!("sched_setaffinity to {cpus:?}")))
}

/// Returns the numbers of workers to measure: 1, 2, 4 and so on, and the number of processors.
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
    fn server_and_generator_share_processors_only_if_necessary() {
        assert_eq!(Split::of(&[0, 1], 1), Split { server: vec![0], load: vec![1], is_apart: true });
        assert_eq!(Split::of(&[0, 1, 2, 3], 3).load, [3]);
        for workers in [2, 5] {
            let split = Split::of(&[4, 6], workers);
            assert_eq!((split.server, split.load, split.is_apart), (vec![4, 6], vec![4, 6], false));
        }
        assert!(!Split::of(&[0], 1).is_apart);
    }

    #[test]
    fn two_loads_share_a_processor_only_if_there_is_one() {
        let halves = |cpus: &[usize]| {
            let split = Split::of(cpus, 1);
            let (one, other) = split.load_halves();
            (one.to_vec(), other.to_vec())
        };
        assert_eq!(halves(&[0, 1]), (vec![1], vec![1]));
        assert_eq!(halves(&[0, 1, 2]), (vec![1], vec![2]));
        assert_eq!(halves(&[0, 1, 2, 3]), (vec![1], vec![2, 3]));
    }

    #[test]
    fn the_largest_worker_count_is_the_number_of_processors() {
        assert_eq!(worker_counts(1), [1]);
        assert_eq!(worker_counts(2), [1, 2]);
        assert_eq!(worker_counts(6), [1, 2, 4, 6]);
        assert_eq!(worker_counts(8), [1, 2, 4, 8]);
    }

    #[test]
    fn the_affinity_of_this_process_is_not_empty() {
        assert!(!available().is_empty());
    }
}

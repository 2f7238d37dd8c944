//! Settings that a running process cannot change.

use std::path::PathBuf;

use crate::process::engine::EngineKey;
use exchange::config::Config;
use exchange::settings::events::EventsConf;
use exchange::settings::main::{Affinity, ThreadPoolSpec, UserSpec, Workers};

/// Settings that only a new worker process can change.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessKey {
    user: Option<UserSpec>,
    workers: Workers,
    affinity: Affinity,
    limits: (Option<u64>, Option<u64>, i32),
    working_directory: Option<PathBuf>,
    env: Vec<(String, Option<String>)>,
    thread_pools: Vec<ThreadPoolSpec>,
    events: EventsConf,
    engine: EngineKey,
    /// Which decides on the capabilities that a worker keeps.
    binds_transparently: bool,
}

impl ProcessKey {
    /// That of a configuration. Two configurations with equal keys can be swapped in place.
    pub fn of(config: &Config) -> ProcessKey {
        let main = config.main();
        ProcessKey {
            user: main.user.clone(),
            workers: main.workers,
            affinity: main.affinity.clone(),
            limits: (main.worker_rlimit_nofile, main.worker_rlimit_core, main.worker_priority),
            working_directory: main.working_directory.clone(),
            env: main.env.clone(),
            thread_pools: main.thread_pools.clone(),
            events: config.events().clone(),
            engine: EngineKey::of(config),
            binds_transparently: config.binds_transparently(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modules::testing::load;

    #[test]
    fn what_a_process_cannot_change_is_compared() {
        let key = |text: &str| ProcessKey::of(&load(text).expect("a configuration").config);
        assert_eq!(key("daemon on;"), key("http { server { listen 81; } }"));
        assert_ne!(key(""), key("worker_processes 2;"));
        assert_ne!(key(""), key("thread_pool a threads=2;"));
        let bind = |text: &str| key(&format!("http {{ server {{ location / {{ {text} }} }} }}"));
        assert_eq!(bind(""), bind("proxy_bind 127.0.0.2;"));
        assert_ne!(bind(""), bind("proxy_bind $remote_addr transparent;"));
    }
}

//! Settings that a running process cannot change.

use std::path::PathBuf;

use crate::process::engine::EngineKey;
use site::config::Config;
use site::settings::events::EventsConf;
use site::settings::main::{Affinity, Sandbox, ThreadPoolSpec, UserSpec, Workers};

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
    /// Determines the capabilities that a worker retains.
    binds_transparently: bool,
    /// The mode, and whether patterns are compiled to machine code, which the restrictions of calls depend on. The files and
    /// ports are compared separately, because they depend on the disk too.
    sandbox: (Sandbox, bool),
}

impl ProcessKey {
    /// Returns the key of a configuration. Two configurations with equal keys can be swapped in place.
    pub fn of(config: &Config) -> ProcessKey {
        let main = config.main();
        ProcessKey {
            // The line of the directive may change.
            user: main.user.clone().map(|user| UserSpec { position: None, ..user }),
            workers: main.workers,
            affinity: main.affinity.clone(),
            limits: (main.worker_rlimit_nofile, main.worker_rlimit_core, main.worker_priority),
            working_directory: main.working_directory.clone(),
            env: main.env.clone(),
            thread_pools: main.thread_pools.clone(),
            events: config.events().clone(),
            engine: EngineKey::of(config),
            binds_transparently: config.binds_transparently(),
            sandbox: (main.sandbox, main.sandbox != Sandbox::Off && main.pcre_jit),
        }
    }
}

impl ProcessKey {
    /// Returns the differences from another key, each with the old and the new value if they are short.
    pub fn differences(&self, new: &ProcessKey) -> Vec<String> {
        let mut found = Vec::new();
        let mut differ = |name: &str, old: Option<String>, new: Option<String>| {
            if old != new {
                let text = |value: Option<String>| value.unwrap_or_else(|| "(none)".to_owned());
                found.push(format!("{name} {} -> {}", text(old), text(new)));
            }
        };
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let user = |user: &Option<UserSpec>| {
            user.as_ref().map(|spec| match &spec.group {
                Some(group) => format!("{} {group}", spec.user),
                None => spec.user.clone(),
            })
        };
        let workers = |workers: Workers| match workers {
            Workers::Auto => "auto".to_owned(),
            Workers::Count(count) => count.to_string(),
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        differ("user", user(&self.user), user(&new.user));
        differ("worker_processes", Some(workers(self.workers)), Some(workers(new.workers)));
        differ("worker_rlimit_nofile", number(self.limits.0), number(new.limits.0));
        differ("worker_rlimit_core", number(self.limits.1), number(new.limits.1));
        differ("worker_priority", Some(self.limits.2.to_string()), Some(new.limits.2.to_string()));
        differ("working_directory", path(&self.working_directory), path(&new.working_directory));
        let sandbox = |sandbox: Sandbox| match sandbox {
            Sandbox::Off => "off",
            Sandbox::On => "on",
            Sandbox::Strict => "strict",
        };
        let text = |(mode, _): (Sandbox, bool)| Some(sandbox(mode).to_owned());
        differ("sandbox", text(self.sandbox), text(new.sandbox));
        let changed = [
            (self.affinity != new.affinity, "worker_cpu_affinity"),
            (self.env != new.env, "env"),
            (self.thread_pools != new.thread_pools, "thread_pool"),
            (self.events != new.events, "a directive in events"),
            (self.sandbox.1 != new.sandbox.1 && self.sandbox.0 == new.sandbox.0, "pcre_jit with a sandbox"),
            (self.binds_transparently != new.binds_transparently, "the first or last proxy_bind transparent"),
        ];
        found.extend(changed.iter().filter(|(is, _)| *is).map(|(_, name)| (*name).to_owned()));
        found.extend(self.engine.differences(&new.engine).map(str::to_owned));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modules::testing::load;

    #[test]
    fn settings_fixed_per_process_are_compared() {
        let key = |text: &str| ProcessKey::of(&load(text).expect("a configuration").config);
        let why = |old: &str, new: &str| key(old).differences(&key(new)).join(", ");
        assert_eq!(why("", ""), "");
        assert_eq!(why("worker_processes 2;", "worker_processes 4;"), "worker_processes 2 -> 4");
        assert_eq!(why("", "user nobody nogroup; env A;"), "user (none) -> nobody nogroup, env");
        assert_eq!(why("sandbox off;", "sandbox strict; pcre_jit on;"), "sandbox off -> strict");
        assert_eq!(why("sandbox on;", "sandbox on; pcre_jit on;"), "pcre_jit with a sandbox");
        assert_eq!(why("sandbox off;", "sandbox off; pcre_jit on;"), "");
        let cache = "http { proxy_cache_path /c keys_zone=z:1m; }";
        assert_eq!(why("", cache), "the first or last cache");
        assert_eq!(key("daemon on;"), key("http { server { listen 81; } }"));
        assert_ne!(key(""), key("worker_processes 2;"));
        assert_ne!(key(""), key("thread_pool a threads=2;"));
        let bind = |text: &str| key(&format!("http {{ server {{ location / {{ {text} }} }} }}"));
        assert_eq!(bind(""), bind("proxy_bind 127.0.0.2;"));
        assert_ne!(bind(""), bind("proxy_bind $remote_addr transparent;"));
    }
}

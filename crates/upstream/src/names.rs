//! The groups and resolvers of a configuration, for [`peers::resolve`], which has no configurations.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exchange::error_log;
use exchange::thread::Thread;
use peers::Upstreams;
use peers::resolve::refresher::Refresher;
use peers::resolve::resolver::Resolver;
use peers::resolve::{self, Conf, HttpConf, Reporter};
use site::config::{Config, Http};

/// Takes over the caches of resolvers in the previous configuration that query the same name servers. Must be called before a
/// thread serves with this configuration.
pub fn begin(config: &Config, before: &Config) {
    resolve::begin(&resolvers(config), &resolvers(before));
}

/// Keeps the names of a configuration resolved, on this thread. `changed` is called whenever the addresses of a name were set.
pub fn start(thread: &Rc<Thread>, config: &Config, changed: impl Fn() + 'static) -> Vec<Refresher> {
    let thread = Rc::clone(thread);
    let reporter = Reporter {
        log: Rc::new(move |level, message| error_log::write(&thread, level, message)),
        changed: Rc::new(changed),
    };
    config
        .sections()
        .into_iter()
        .map(|block| Refresher::start(block.of::<Upstreams>(), &block.of::<HttpConf>().0, &reporter))
        .collect()
}

/// Resolves all literal names of a configuration with blocking calls, for `-t`. Returns a message for each name that cannot be
/// resolved, or not within `patience` for all names together.
pub fn missing(config: &Config, patience: Duration) -> Vec<String> {
    let deadline = Instant::now() + patience;
    let missing = |block: &Http| {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut resolvers = Vec::new();
        add_resolvers(block, &mut resolvers);
        resolve::missing(block.of::<Upstreams>(), &resolvers, left)
    };
    config.sections().into_iter().flat_map(missing).collect()
}

/// Returns the distinct resolvers of a configuration.
fn resolvers(config: &Config) -> Vec<&Arc<Resolver>> {
    let mut found: Vec<&Arc<Resolver>> = Vec::new();
    config.sections().into_iter().for_each(|block| add_resolvers(block, &mut found));
    found
}

/// Adds the resolvers of a block that are not there yet.
fn add_resolvers<'c>(block: &'c Http, found: &mut Vec<&'c Arc<Resolver>>) {
    let of_locations =
        block.locations.iter().filter_map(|location| location.scope.of::<Conf>().resolver.as_ref());
    let of_groups = block.of::<Upstreams>().groups().filter_map(|group| group.resolver.as_ref());
    for resolver in block.of::<HttpConf>().0.resolver.iter().chain(of_locations).chain(of_groups) {
        if !found.iter().any(|known| Arc::ptr_eq(known, resolver)) {
            found.push(resolver);
        }
    }
}

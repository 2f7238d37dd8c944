//! The groups and resolvers of a configuration, for [`peers::resolve`], which has no configurations.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use exchange::error_log;
use exchange::thread::Thread;
use peers::Upstreams;
use peers::resolve::refresher::Refresher;
use peers::resolve::resolver::Resolver;
use peers::resolve::{self, Conf, HttpConf, Reporter};
use site::config::Config;

/// Takes over the caches of resolvers in the previous configuration that query the same name servers. Must be called before a
/// thread serves with this configuration.
pub fn begin(config: &Config, before: &Config) {
    resolve::begin(&resolvers(config), &resolvers(before));
}

/// Keeps the names of a configuration resolved, on this thread. `changed` is called whenever the addresses of a name were set.
pub fn start(thread: &Rc<Thread>, config: &Config, changed: impl Fn() + 'static) -> Refresher {
    let thread = Rc::clone(thread);
    let reporter = Reporter {
        log: Rc::new(move |level, message| error_log::write(&thread, level, message)),
        changed: Rc::new(changed),
    };
    Refresher::start(config.http.of::<Upstreams>(), &config.http.of::<HttpConf>().0, &reporter)
}

/// Resolves all literal names of a configuration with blocking calls, for `-t`. Returns a message for each name that cannot be
/// resolved, or not within `patience` for all names together.
pub fn missing(config: &Config, patience: Duration) -> Vec<String> {
    resolve::missing(config.http.of::<Upstreams>(), &resolvers(config), patience)
}

/// Returns the distinct resolvers of a configuration.
fn resolvers(config: &Config) -> Vec<&Arc<Resolver>> {
    let http = &config.http;
    let of_locations =
        http.locations.iter().filter_map(|location| location.scope.of::<Conf>().resolver.as_ref());
    let of_groups = http.of::<Upstreams>().groups().filter_map(|group| group.resolver.as_ref());
    let mut found: Vec<&Arc<Resolver>> = Vec::new();
    for resolver in http.of::<HttpConf>().0.resolver.iter().chain(of_locations).chain(of_groups) {
        if !found.iter().any(|known| Arc::ptr_eq(known, resolver)) {
            found.push(resolver);
        }
    }
    found
}

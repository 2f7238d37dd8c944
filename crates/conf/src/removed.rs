//! Directives that nginx has removed, with the version of the removal and the replacement, from the history of nginx's
//! sources.

/// Name, version, and replacement. A name that ends with an underscore is a prefix.
const REMOVED: [(&str, &str, &str); 13] = [
    ("ssl", "1.25.1", "write \"listen 443 ssl\""),
    ("spdy_", "1.9.5", "write \"http2 on\""),
    ("connections", "1.9.1", "write \"worker_connections\""),
    ("open_file_cache_retest", "1.9.1", "write \"open_file_cache_valid\""),
    ("optimize_server_names", "1.9.1", "write \"server_name_in_redirect\""),
    ("satisfy_any", "1.9.1", "write \"satisfy any\""),
    ("limit_zone", "1.7.6", "write \"limit_conn_zone\""),
    ("proxy_upstream_max_fails", "0.5.0", "write \"max_fails=\" after a server of the upstream block"),
    ("proxy_upstream_fail_timeout", "0.5.0", "write \"fail_timeout=\" after a server of the upstream block"),
    ("fastcgi_upstream_max_fails", "0.5.0", "write \"max_fails=\" after a server of the upstream block"),
    (
        "fastcgi_upstream_fail_timeout",
        "0.5.0",
        "write \"fail_timeout=\" after a server of the upstream block",
    ),
    ("memcached_upstream_max_fails", "0.5.0", "write \"max_fails=\" after a server of the upstream block"),
    (
        "memcached_upstream_fail_timeout",
        "0.5.0",
        "write \"fail_timeout=\" after a server of the upstream block",
    ),
];

/// Whether nginx had a directive and has removed it.
pub fn is_removed(name: &str) -> bool {
    find(name).is_some()
}

/// Returns the version that removed a directive, and the replacement.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    let is_it = |known: &str| if known.ends_with('_') { name.starts_with(known) } else { name == known };
    REMOVED.iter().find(|(known, ..)| is_it(known)).map(|(_, version, instead)| (*version, *instead))
}

//! Directives of third-party modules of nginx, for messages: a configuration that uses them needs another server or
//! replacements.

/// The third-party modules that distributions package, by file name, each with texts that the names of its directives
/// contain.
const THIRD_PARTY: &[(&str, &[&str])] = &[
    ("http_auth_pam", &["auth_pam"]),
    ("http_cache_purge", &["_cache_purge"]),
    ("http_dav_ext", &["dav_ext"]),
    ("http_echo", &["echo"]),
    ("http_fancyindex", &["fancyindex"]),
    ("http_headers_more", &["more_"]),
    ("http_js", &["js_"]),
    ("http_lua", &["lua_", "_by_lua"]),
    ("http_modsecurity", &["modsecurity"]),
    ("http_subs", &["subs_filter"]),
    ("http_uploadprogress", &["upload_progress", "track_uploads", "report_uploads"]),
    ("http_vhost_traffic_status", &["vhost_traffic_status"]),
    ("nchan", &["nchan_"]),
    ("rtmp", &["rtmp"]),
    ("stream_js", &["js_"]),
];

/// Returns the third-party module whose directives have such names.
pub fn third_party_module(directive: &str) -> Option<&'static str> {
    THIRD_PARTY.iter().map(|(name, _)| *name).find(|module| is_of_third_party(directive, module))
}

/// Whether a directive has a name like those of a third-party module.
pub fn is_of_third_party(directive: &str, module: &str) -> bool {
    let words = THIRD_PARTY.iter().find(|(name, _)| *name == module).map(|(_, words)| *words);
    words.is_some_and(|words| words.iter().any(|word| directive.contains(word)))
}

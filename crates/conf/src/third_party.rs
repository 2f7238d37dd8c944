//! Directives of third-party modules of nginx, for messages: a configuration that uses them needs another server or
//! replacements.

/// The third-party modules that distributions package, by file name, each with texts that the names of its directives
/// contain.
const THIRD_PARTY: &[(&str, &[&str])] = &[
    ("http_auth_pam", &["auth_pam"]),
    ("http_cache_purge", &["_cache_purge"]),
    ("http_echo", &["echo"]),
    ("http_fancyindex", &["fancyindex"]),
    ("http_headers_more", &["more_"]),
    ("http_js", &["js_"]),
    ("http_lua", &["lua_", "_by_lua"]),
    ("http_modsecurity", &["modsecurity"]),
    ("http_opentelemetry", &["opentelemetry"]),
    ("http_secure_token", &["secure_token"]),
    (
        "http_set_misc",
        &[
            "set_base32",
            "set_decode_",
            "set_encode_",
            "set_escape_uri",
            "set_formatted_",
            "set_hashed_upstream",
            "set_hmac_",
            "set_if_empty",
            "set_local_today",
            "set_md5",
            "set_misc_",
            "set_quote_",
            "set_random",
            "set_rotate",
            "set_secure_random",
            "set_sha1",
            "set_unescape_uri",
        ],
    ),
    ("http_subs", &["subs_filter"]),
    ("http_uploadprogress", &["upload_progress", "track_uploads", "report_uploads"]),
    ("http_vhost_traffic_status", &["vhost_traffic_status"]),
    ("http_vod", &["vod"]),
    ("nchan", &["nchan_"]),
    ("rtmp", &["rtmp"]),
    ("stream_js", &["js_"]),
];

/// Modules, each with the beginnings of the names of its variables.
const VARIABLES: &[(&str, &[&str])] = &[
    ("http_auth_jwt", &["jwt_"]),
    ("http_datadog", &["datadog_"]),
    ("http_echo", &["echo_"]),
    ("http_fancyindex", &["fancyindex_"]),
    ("http_js", &["js_"]),
    ("http_lua", &["lua_"]),
    ("http_modsecurity", &["modsecurity_", "modsec_"]),
    ("http_naxsi", &["naxsi_"]),
    ("http_opentracing", &["opentracing_", "opentelemetry_"]),
    ("http_secure_token", &["secure_token"]),
    ("http_testcookie_access", &["testcookie_"]),
    ("http_uploadprogress", &["uploadprogress_"]),
    ("http_vhost_traffic_status", &["vts_"]),
    ("http_vod", &["vod_"]),
    ("nchan", &["nchan_"]),
    ("pagespeed", &["pagespeed_"]),
];

/// Returns the third-party module whose variables have such names.
pub fn third_party_variable(name: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    VARIABLES.iter().find(|(_, words)| has(words)).map(|(module, _)| *module)
}

/// Returns the third-party module whose directives have such names. `similar` is the known directive with the most similar name: if the
/// module has that one too, the name is misspelt.
pub fn third_party_module(directive: &str, similar: Option<&str>) -> Option<&'static str> {
    let has = |module: &&str| is_of_third_party(directive, module);
    let module = THIRD_PARTY.iter().map(|(name, _)| *name).find(has)?;
    (!similar.is_some_and(|similar| is_of_third_party(similar, module))).then_some(module)
}

/// Whether a directive has a name like those of a third-party module.
pub fn is_of_third_party(directive: &str, module: &str) -> bool {
    let words = THIRD_PARTY.iter().find(|(name, _)| *name == module).map(|(_, words)| *words);
    words.is_some_and(|words| words.iter().any(|word| directive.contains(word)))
}

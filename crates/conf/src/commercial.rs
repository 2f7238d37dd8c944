//! Directives that only the commercial edition of nginx has, with what to use instead in this server. From the documentation of
//! nginx, which marks them as a part of the commercial subscription.

/// Names, and the advice. A name that ends with an underscore is a prefix.
///
/// A directive that this server has itself, such as `api`, is never searched here: the table of the server comes first.
const COMMERCIAL: &[(&[&str], &str)] = &[
    (
        &["status_format", "live_activity_monitoring"],
        "use \"api\", \"metrics\" or \"dashboard\" of this server",
    ),
    (
        &["ntlm"],
        "connections of NTLM belong to one client: use \"keepalive\" with an application that has another login",
    ),
    (
        &["session_log", "session_log_"],
        "use \"access_log\" with the value of a session cookie in its \"log_format\"",
    ),
    (&["auth_require"], "use \"auth_jwt_require\", or \"auth_request\" with a service that decides"),
    (
        &["zone_sync", "zone_sync_"],
        "each server has its own zones: let a balancer with \"hash\" or \"ip_hash\" select the server",
    ),
    (
        &["f4f", "f4f_", "hls", "hls_"],
        "package the streams ahead with ffmpeg, and serve the files; \"mp4\" seeks in MP4 files",
    ),
    (&["internal_redirect"], "use \"rewrite … last\", or \"error_page\" with a named location"),
    (
        &["mgmt", "license_token", "enforce_initial_report", "usage_report", "deployment_context"],
        "remove it: this server has no licence",
    ),
    (&["mqtt", "mqtt_", "mqtt_preread", "mqtt_set_connect"], "use a broker of MQTT behind \"stream\""),
    (&["num_map"], "use \"map\" with a regular expression"),
    (&["proxy_session_drop"], "remove it: connections of a removed server end with their session"),
];

/// Returns the advice for a directive of the commercial edition.
pub fn instead_of_commercial(name: &str) -> Option<&'static str> {
    let is_it = |known: &&str| if known.ends_with('_') { name.starts_with(known) } else { name == *known };
    COMMERCIAL.iter().find(|(names, _)| names.iter().any(&is_it)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_are_found() {
        for name in ["session_log_zone", "hls_fragment", "zone_sync_server"] {
            assert!(instead_of_commercial(name).is_some(), "{name}");
        }
        // The others are nginx's own, or of nothing.
        for name in ["map", "queues", "status", "sticky", "least_time", "resolver", "state"] {
            assert!(instead_of_commercial(name).is_none(), "{name}");
        }
        for (names, _) in COMMERCIAL {
            for name in *names {
                assert_eq!(crate::nginx_directives().named(name).count(), 0, "nginx has {name}");
            }
        }
    }
}

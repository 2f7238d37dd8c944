//! The form of responses: settings of directives of `http_core`, with nginx's defaults.

use conf::Layered;
use http::conditional::IfModifiedSince;

use crate::settings::gzip_clients::GzipClients;
use crate::template::Template;

/// `server_tokens`
#[derive(Clone, Debug)]
pub enum ServerTokens {
    /// `on`: name and version.
    On,
    /// `off`: the name.
    Off,
    /// `build`: name, version and build.
    Build,
    /// A custom text; an empty one removes the field.
    Text(Template),
}

/// One status of an `error_page`.
#[derive(Clone, Debug)]
pub struct ErrorPage {
    /// The original status of the response.
    pub status: u16,
    /// `=code`: the replacement status; 0 for `=` alone, which uses the status of the error page's response.
    pub overwrite: Option<u16>,
    /// URI, absolute URL or `@name`.
    pub target: Template,
}

/// Workarounds for Internet Explorer.
#[derive(Clone, Copy, Debug)]
pub struct Msie {
    /// `msie_padding`: short error pages are padded, so that the browser displays them.
    pub padding: bool,
    /// `msie_refresh`: redirects are sent as HTML pages with a refresh.
    pub refresh: bool,
}

/// The form of responses.
#[derive(Clone, Debug)]
pub struct Responding {
    /// `error_page`
    pub error_pages: Layered<ErrorPage>,
    /// `recursive_error_pages`
    pub recursive_error_pages: bool,
    /// `server_tokens`
    pub server_tokens: ServerTokens,
    /// `etag`
    pub etag: bool,
    /// `if_modified_since`; `None` if it is not set.
    pub if_modified_since: Option<IfModifiedSince>,
    /// `max_ranges`; `None` is no limit.
    pub max_ranges: Option<u64>,
    /// `chunked_transfer_encoding`
    pub chunked_transfer_encoding: bool,
    /// `absolute_redirect`
    pub absolute_redirect: bool,
    /// `server_name_in_redirect`
    pub server_name_in_redirect: bool,
    /// `port_in_redirect`
    pub port_in_redirect: bool,
    /// Settings for Internet Explorer.
    pub msie: Msie,
    /// `log_not_found`
    pub log_not_found: bool,
    /// Which clients get compressed responses.
    pub gzip_clients: GzipClients,
}

impl Default for Responding {
    fn default() -> Responding {
        Responding {
            error_pages: Layered::default(),
            recursive_error_pages: false,
            server_tokens: ServerTokens::On,
            etag: true,
            if_modified_since: None,
            max_ranges: None,
            chunked_transfer_encoding: true,
            absolute_redirect: true,
            server_name_in_redirect: false,
            port_in_redirect: true,
            msie: Msie { padding: true, refresh: false },
            log_not_found: true,
            gzip_clients: Default::default(),
        }
    }
}

//! What the directives of `http_core` set, with nginx's defaults.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conf::{Error, Span, Statement};

use crate::config::{Layered, LocationId};
use crate::files::Opening;
use crate::modules::http_core::types::Types;
use crate::settings::gzip_clients::GzipClients;
use crate::telemetry::ErrorLog;
use crate::template::Template;

/// Settings that `http`, `server` and `location` inherit.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    // Where files are.
    /// `root` or `alias`.
    pub(crate) root: Root,
    /// By which rules, and what is kept open.
    pub(crate) opening: Opening,
    /// `types`
    pub(crate) types: Arc<Types>,
    /// `default_type`
    pub(crate) default_type: Arc<str>,
    // How their bytes move.
    /// `sendfile`; `None` leaves the choice to the size of the file.
    pub(crate) sendfile: Option<bool>,
    /// `sendfile_max_chunk`, bytes; 0 is no limit.
    pub(crate) sendfile_max_chunk: u64,
    /// `aio`
    pub(crate) aio: Aio,
    /// `aio_sendfile`: chunk bytes of the shared-memory mover.
    pub(crate) aio_sendfile: Option<u64>,
    /// `directio`: files of at least so many bytes are read past the page cache.
    pub(crate) directio: Option<u64>,
    /// `output_buffers`: count and bytes; `None` leaves the choice to the mover.
    pub(crate) output_buffers: Option<(u64, u64)>,
    /// `read_ahead`; 0 leaves it to the kernel.
    pub(crate) read_ahead: u64,
    /// `tcp_nopush`
    pub(crate) tcp_nopush: bool,
    /// `tcp_nodelay`
    pub(crate) tcp_nodelay: bool,
    /// `send_timeout`: between two successes, not for the whole.
    pub(crate) send_timeout: Duration,
    /// `send_lowat`, accepted as nginx does on Linux.
    pub(crate) send_lowat: u64,
    /// `limit_rate`, bytes a second; empty or 0 is no limit.
    pub(crate) limit_rate: Option<Template>,
    /// `limit_rate_after`, bytes.
    pub(crate) limit_rate_after: Option<Template>,
    // Connections.
    /// `keepalive_timeout`; zero closes after each response.
    pub(crate) keepalive_timeout: Duration,
    /// `keepalive_timeout`, second argument: what the `Keep-Alive` field says, seconds.
    pub(crate) keepalive_header: Option<u64>,
    /// `keepalive_min_timeout`
    pub(crate) keepalive_min_timeout: Duration,
    /// `keepalive_requests`
    pub(crate) keepalive_requests: u64,
    /// `keepalive_time`: age after which a connection is closed.
    pub(crate) keepalive_time: Duration,
    /// `keepalive_disable`
    pub(crate) keepalive_disable: KeepaliveDisable,
    /// `lingering_close`
    pub(crate) lingering_close: LingeringClose,
    /// `lingering_time`
    pub(crate) lingering_time: Duration,
    /// `lingering_timeout`
    pub(crate) lingering_timeout: Duration,
    /// `reset_timedout_connection`
    pub(crate) reset_timedout_connection: bool,
    // Reading requests.
    /// `client_header_timeout`
    pub(crate) client_header_timeout: Duration,
    /// `client_header_buffer_size`, bytes.
    pub(crate) client_header_buffer_size: u64,
    /// `large_client_header_buffers`: count and bytes.
    pub(crate) large_client_header_buffers: (u64, u64),
    /// `max_headers`: header lines.
    pub(crate) max_headers: u64,
    /// `ignore_invalid_headers`
    pub(crate) ignore_invalid_headers: bool,
    /// `underscores_in_headers`
    pub(crate) underscores_in_headers: bool,
    /// `http_strict`
    pub(crate) http_strict: bool,
    /// `merge_slashes`
    pub(crate) merge_slashes: bool,
    /// Whether the path of this location without the slash at its end is redirected to it: where requests are passed on.
    pub(crate) redirects_to_slash: bool,
    /// Which clients get compressed responses.
    pub(crate) gzip_clients: GzipClients,
    /// `uninitialized_variable_warn`, a directive of the rewrite module.
    pub(crate) uninitialized_variable_warn: bool,
    /// `client_max_body_size`, bytes; 0 is no limit.
    pub(crate) client_max_body_size: u64,
    /// `client_body_buffer_size`, bytes.
    pub(crate) client_body_buffer_size: u64,
    /// `client_body_timeout`
    pub(crate) client_body_timeout: Duration,
    /// `client_body_early_read`
    pub(crate) client_body_early_read: Layered<Template>,
    /// `client_body_in_file_only`
    pub(crate) client_body_in_file_only: BodyInFile,
    /// `client_body_temp_path`: folder and digits of the levels.
    pub(crate) client_body_temp_path: (PathBuf, Vec<u8>),
    // Answering.
    /// `error_page`
    pub(crate) error_pages: Layered<ErrorPage>,
    /// `recursive_error_pages`
    pub(crate) recursive_error_pages: bool,
    /// `server_tokens`
    pub(crate) server_tokens: ServerTokens,
    /// `etag`
    pub(crate) etag: bool,
    /// `if_modified_since`; `None` where it is not written.
    pub(crate) if_modified_since: Option<http::conditional::IfModifiedSince>,
    /// `max_ranges`; `None` is no limit.
    pub(crate) max_ranges: Option<u64>,
    /// `chunked_transfer_encoding`
    pub(crate) chunked_transfer_encoding: bool,
    /// `absolute_redirect`
    pub(crate) absolute_redirect: bool,
    /// `server_name_in_redirect`
    pub(crate) server_name_in_redirect: bool,
    /// `port_in_redirect`
    pub(crate) port_in_redirect: bool,
    /// What old browsers need.
    pub(crate) msie: Msie,
    /// `log_not_found`
    pub(crate) log_not_found: bool,
    pub(crate) subrequests: Subrequests,
    /// `error_log` of this block.
    pub(crate) error_log: ErrorLog,
    // Access.
    /// `satisfy any`
    pub(crate) satisfy: Satisfy,
    /// `internal`: for requests that come from the server itself. Locations inside inherit it.
    pub(crate) internal: bool,
    // This block only.
    /// `limit_except`: for methods other than these the other location's settings hold.
    pub(crate) limit_except: Option<LimitExcept>,
    /// What an `alias` stands for: the prefix of the location that has it, which locations inside keep.
    pub(crate) location_prefix: Arc<str>,
    /// Whether the location with the `alias` is found by a regular expression.
    pub(crate) by_pattern: bool,
    // For the reading of the configuration.
    /// How this block's own location is found.
    pub(crate) found_by: FoundBy,
    /// The block that has the `root` or `alias`; 0 is none.
    pub(crate) root_block: u32,
    /// `connection_pool_size`, which bounds `large_client_header_buffers` and nothing else here.
    pub(crate) connection_pool_size: u64,
}

/// Requests that the server makes of itself.
#[derive(Clone, Debug)]
pub(crate) struct Subrequests {
    /// `log_subrequest`
    pub(crate) log: bool,
    /// `subrequest_output_buffer_size`
    pub(crate) output_buffer_size: u64,
    /// `post_action`
    pub(crate) post_action: Option<Arc<str>>,
}

/// How a location is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// It is the server itself.
    #[default]
    Server,
    /// By the beginning, or the whole, of the URI.
    Prefix(Arc<str>),
    /// By a regular expression.
    Pattern,
    /// By name, from other directives.
    Name,
}

/// `root` or `alias`.
#[derive(Clone, Debug)]
pub(crate) enum Root {
    /// The URI is appended.
    Root(Template),
    /// What follows the location's prefix in the URI is appended.
    Alias(Template),
}

/// `aio`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Aio {
    /// Not written: the best engine.
    #[default]
    Unset,
    /// `off`: blocking reads.
    Off,
    /// `on`: the ring, else libaio, else threads.
    On,
    /// `io_uring`
    Uring,
    /// `libaio`
    Libaio,
    /// `threads[=pool]`, by the pool's number.
    Threads(u8),
}

/// `keepalive_disable`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepaliveDisable {
    pub(crate) msie6: bool,
    pub(crate) safari: bool,
}

/// `lingering_close`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LingeringClose {
    /// `off`
    Off,
    /// `on`: where the client may still send.
    On,
    /// `always`
    Always,
}

/// `client_body_in_file_only`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyInFile {
    /// `off`
    Off,
    /// `on`: files stay.
    On,
    /// `clean`: files go with the request.
    Clean,
}

/// `server_tokens`
#[derive(Clone, Debug)]
pub(crate) enum ServerTokens {
    /// `on`: name and version.
    On,
    /// `off`: the name.
    Off,
    /// `build`: name, version and build.
    Build,
    /// Own text; empty removes the field.
    Text(Template),
}

/// One status of an `error_page`.
#[derive(Clone, Debug)]
pub(crate) struct ErrorPage {
    pub(crate) status: u16,
    /// `=code`: 0 for `=` alone, which takes the status of the page's own answer.
    pub(crate) overwrite: Option<u16>,
    /// URI, absolute URL or `@name`.
    pub(crate) target: Template,
}

/// `limit_except`
#[derive(Clone, Debug)]
pub(crate) struct LimitExcept {
    /// The methods that the enclosing location's settings hold for; GET brings HEAD along.
    pub(crate) methods: Vec<String>,
    /// Whose settings hold for others.
    pub(crate) location: LocationId,
}

impl Root {
    /// The path.
    pub(crate) fn template(&self) -> &Template {
        match self {
            Root::Root(path) | Root::Alias(path) => path,
        }
    }
}

impl LimitExcept {
    /// The methods that the statement names.
    pub(crate) fn methods(statement: &Statement) -> Result<Vec<String>, Error> {
        let mut methods: Vec<String> = Vec::new();
        for text in statement.texts() {
            let method = text.to_ascii_uppercase();
            if !METHODS.contains(&method.as_str()) {
                return Err(Error::at(statement, format_args!("invalid method \"{text}\"")));
            }
            if method == "GET" {
                methods.push("HEAD".to_owned());
            }
            methods.push(method);
        }
        Ok(methods)
    }

    /// Whether the enclosing location's settings hold for requests with this method.
    pub(crate) fn spares(&self, method: &[u8]) -> bool {
        self.methods.iter().any(|spared| spared.as_bytes() == method)
    }
}

/// The methods that nginx lets `limit_except` name.
const METHODS: [&str; 14] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "PATCH",
];

/// Help for Internet Explorer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Msie {
    /// `msie_padding`: short error pages are made long enough to be shown.
    pub(crate) padding: bool,
    /// `msie_refresh`: redirects are pages that lead on.
    pub(crate) refresh: bool,
}

/// How the answers of the access phase are put together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Satisfy {
    /// One module that allows is enough.
    pub(crate) any: bool,
    /// `auth_delay`: how long a question for a password is held back.
    pub(crate) auth_delay: Duration,
}

impl Conf {
    /// The defaults, with paths under this prefix.
    pub(crate) fn under(prefix: &Path) -> Conf {
        let root = Root::Root(Template::text(&prefix.join("html").to_string_lossy()));
        let client_body_temp_path = (prefix.join("client_body_temp"), Vec::new());
        Conf { root, client_body_temp_path, ..Conf::default() }
    }

    /// For a block inside: without what holds for one block only.
    pub(crate) fn inherit(&self) -> Conf {
        Conf { limit_except: None, redirects_to_slash: false, ..self.clone() }
    }

    /// What holds between settings, looked at where a block ends.
    pub(crate) fn check(&self, end: &Span) -> Result<(), Error> {
        if self.large_client_header_buffers.1 < self.connection_pool_size {
            return Err(Error::at(
                end,
                "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"",
            ));
        }
        Ok(())
    }
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            root: Root::Root(Template::text("html")),
            opening: Opening::default(),
            types: Arc::default(),
            default_type: "text/plain".into(),
            sendfile: None,
            sendfile_max_chunk: 2 << 20,
            aio: Aio::Unset,
            aio_sendfile: None,
            directio: None,
            output_buffers: None,
            read_ahead: 0,
            tcp_nopush: false,
            tcp_nodelay: true,
            send_timeout: Duration::from_secs(60),
            send_lowat: 0,
            limit_rate: None,
            limit_rate_after: None,
            keepalive_timeout: Duration::from_secs(75),
            keepalive_header: None,
            keepalive_min_timeout: Duration::ZERO,
            keepalive_requests: 1000,
            keepalive_time: Duration::from_secs(3600),
            keepalive_disable: KeepaliveDisable { msie6: true, safari: false },
            lingering_close: LingeringClose::On,
            lingering_time: Duration::from_secs(30),
            lingering_timeout: Duration::from_secs(5),
            reset_timedout_connection: false,
            client_header_timeout: Duration::from_secs(60),
            client_header_buffer_size: 1 << 10,
            large_client_header_buffers: (4, 8 << 10),
            max_headers: 1000,
            ignore_invalid_headers: true,
            underscores_in_headers: false,
            http_strict: false,
            merge_slashes: true,
            redirects_to_slash: false,
            gzip_clients: Default::default(),
            uninitialized_variable_warn: true,
            client_max_body_size: 1 << 20,
            client_body_buffer_size: 16 << 10,
            client_body_timeout: Duration::from_secs(60),
            client_body_early_read: Layered::default(),
            client_body_in_file_only: BodyInFile::Off,
            client_body_temp_path: (PathBuf::from("client_body_temp"), Vec::new()),
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
            subrequests: Subrequests { log: false, output_buffer_size: 4 << 10, post_action: None },
            error_log: ErrorLog::default(),
            satisfy: Satisfy::default(),
            internal: false,
            limit_except: None,
            location_prefix: "".into(),
            by_pattern: false,
            found_by: FoundBy::Server,
            root_block: 0,
            connection_pool_size: 512,
        }
    }
}

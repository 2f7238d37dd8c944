//! The settings of the HTTP core, with their defaults, grouped by the code that reads them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conf::{Error, Span, Statement};

use crate::ids::LocationId;
use crate::settings::files::{Files, Root};
use crate::settings::keepalive::Keepalive;
use crate::settings::reading::Reading;
use crate::settings::responding::Responding;
use crate::template::Template;
use telemetry::ErrorLog;
use transfer::body::rules::Sending;
use transfer::received::BodyFiles;
use transfer::temp_directory::TempDirectory;

/// Settings that `http`, `server` and `location` inherit.
#[derive(Clone, Debug)]
pub struct Core {
    /// The directories of files.
    pub files: Files,
    /// Settings for sending files.
    pub sending: Sending,
    /// Settings of keep-alive and lingering close.
    pub keepalive: Keepalive,
    /// Settings for reading requests.
    pub reading: Reading,
    /// Settings for storing large request bodies.
    pub body_files: BodyFiles,
    /// The form of responses.
    pub responding: Responding,
    /// `limit_rate`, in bytes per second; empty or 0 is no limit.
    pub limit_rate: Option<Template>,
    /// `limit_rate_after`, in bytes.
    pub limit_rate_after: Option<Template>,
    /// Whether a request for the location's path without its trailing slash is redirected to the path, as for proxying.
    pub redirects_to_slash: bool,
    /// Whether the block accepts CONNECT (`tunnel_pass`); then its server does.
    pub accepts_connect: bool,
    /// `uninitialized_variable_warn`, a directive of the rewrite module.
    pub uninitialized_variable_warn: bool,
    /// Limits of subrequests.
    pub subrequests: Subrequests,
    /// `error_log` of this block.
    pub error_log: ErrorLog,
    /// `satisfy` and `auth_delay`
    pub satisfy: Satisfy,
    /// `internal`: for internal requests only. Nested locations inherit it.
    pub internal: bool,
    /// `limit_except`: other methods than these use the settings of a separate location.
    pub limit_except: Option<LimitExcept>,
    /// The kind of the location's name.
    pub found_by: FoundBy,
    /// The prefix of the last `*_pass`, such as `proxy`. Only this protocol passes requests on: an `if` may have another one
    /// than its location.
    pub pass: &'static str,
}

/// Settings of subrequests.
#[derive(Clone, Debug)]
pub struct Subrequests {
    /// `log_subrequest`
    pub log: bool,
    /// `subrequest_output_buffer_size`
    pub output_buffer_size: u64,
    /// `post_action`
    pub post_action: Option<Arc<str>>,
}

/// The kind of a location's name, by which requests find it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FoundBy {
    /// By server: it is the server's own location.
    #[default]
    Server,
    /// By the complete URI.
    Exact(Arc<str>),
    /// By the beginning of the URI.
    Prefix(Arc<str>),
    /// By a regular expression, or by the value of a variable.
    Pattern,
    /// By name, from other directives.
    Name,
}

/// `limit_except`
#[derive(Clone, Debug)]
pub struct LimitExcept {
    /// The methods that use the enclosing location's settings; GET includes HEAD.
    pub methods: Vec<String>,
    /// The location with the settings for all other methods.
    pub location: LocationId,
}

impl LimitExcept {
    /// Parses the methods of the statement.
    pub fn methods(statement: &Statement) -> Result<Vec<String>, Error> {
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

    /// Whether requests with this method use the enclosing location's settings.
    pub fn spares(&self, method: &[u8]) -> bool {
        self.methods.iter().any(|spared| spared.as_bytes() == method)
    }
}

/// The methods that nginx accepts in `limit_except`.
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

/// Settings that combine the results of the access phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Satisfy {
    /// Whether one module that allows access suffices.
    pub any: bool,
    /// `auth_delay`: delay of a 401 response.
    pub auth_delay: Duration,
}

impl Core {
    /// Returns the defaults, with paths below this prefix.
    pub fn under(prefix: &Path) -> Core {
        let root = Root::Root(Template::text(&prefix.join("html").to_string_lossy()));
        let files = Files { root, ..Files::default() };
        let temp_path = TempDirectory::new(prefix.join("client_body_temp"), &[]);
        Core { files, body_files: BodyFiles { temp_path, ..BodyFiles::default() }, ..Core::default() }
    }

    /// Returns the settings for an inner block, without settings that blocks do not inherit.
    pub fn inherit(&self) -> Core {
        Core { limit_except: None, redirects_to_slash: false, ..self.clone() }
    }

    /// Checks rules between settings at the end of a block.
    pub fn check(&self, end: &Span) -> Result<(), Error> {
        if self.reading.large_client_header_buffers.1 < self.reading.connection_pool_size {
            return Err(Error::at(
                end,
                "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"",
            ));
        }
        Ok(())
    }
}

impl Default for Core {
    fn default() -> Core {
        Core {
            files: Default::default(),
            sending: Default::default(),
            keepalive: Default::default(),
            reading: Default::default(),
            body_files: Default::default(),
            responding: Default::default(),
            limit_rate: None,
            limit_rate_after: None,
            redirects_to_slash: false,
            accepts_connect: false,
            uninitialized_variable_warn: true,
            subrequests: Subrequests { log: false, output_buffer_size: 4 << 10, post_action: None },
            error_log: ErrorLog::default(),
            satisfy: Satisfy::default(),
            internal: false,
            limit_except: None,
            found_by: FoundBy::Server,
            pass: "",
        }
    }
}

//! The settings of `http_core`, with nginx's defaults, grouped by their readers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conf::{Error, Span, Statement};

use crate::config::LocationId;
use crate::settings::answering::Answering;
use crate::settings::files::{Files, Root};
use crate::settings::keeping::Keeping;
use crate::settings::reading::Reading;
use crate::template::Template;
use telemetry::ErrorLog;
use transfer::body::rules::Sending;
use transfer::received::BodyFiles;

/// Settings that `http`, `server` and `location` inherit.
#[derive(Clone, Debug)]
pub struct Core {
    /// Where files are.
    pub files: Files,
    /// How their bytes move.
    pub sending: Sending,
    /// How long connections are kept.
    pub keeping: Keeping,
    /// How requests are read.
    pub reading: Reading,
    /// Where bodies of requests are stored that memory does not hold.
    pub body_files: BodyFiles,
    /// The form of responses.
    pub answering: Answering,
    /// `limit_rate`, bytes a second; empty or 0 is no limit.
    pub limit_rate: Option<Template>,
    /// `limit_rate_after`, bytes.
    pub limit_rate_after: Option<Template>,
    /// Whether the path of this location without the slash at its end is redirected to it: where requests are passed on.
    pub redirects_to_slash: bool,
    /// Whether the block takes CONNECT (`tunnel_pass`): its server then does.
    pub takes_connect: bool,
    /// `uninitialized_variable_warn`, a directive of the rewrite module.
    pub uninitialized_variable_warn: bool,
    /// Limits of subrequests.
    pub subrequests: Subrequests,
    /// `error_log` of this block.
    pub error_log: ErrorLog,
    /// `satisfy any`
    pub satisfy: Satisfy,
    /// `internal`: for requests that come from the server itself. Locations inside inherit it.
    pub internal: bool,
    /// `limit_except`: for methods other than these the other location's settings hold.
    pub limit_except: Option<LimitExcept>,
    /// How this block's own location is found.
    pub found_by: FoundBy,
}

/// Requests that the server makes of itself.
#[derive(Clone, Debug)]
pub struct Subrequests {
    /// `log_subrequest`
    pub log: bool,
    /// `subrequest_output_buffer_size`
    pub output_buffer_size: u64,
    /// `post_action`
    pub post_action: Option<Arc<str>>,
}

/// How a location is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FoundBy {
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

/// `limit_except`
#[derive(Clone, Debug)]
pub struct LimitExcept {
    /// The methods that the enclosing location's settings hold for; GET brings HEAD along.
    pub methods: Vec<String>,
    /// Settings that apply to others.
    pub location: LocationId,
}

impl LimitExcept {
    /// The methods that the statement names.
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

    /// Whether the enclosing location's settings hold for requests with this method.
    pub fn spares(&self, method: &[u8]) -> bool {
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

/// How the responses of the access phase are put together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Satisfy {
    /// One module that allows is enough.
    pub any: bool,
    /// `auth_delay`: how long a question for a password is held back.
    pub auth_delay: Duration,
}

impl Core {
    /// The defaults, with paths under this prefix.
    pub fn under(prefix: &Path) -> Core {
        let root = Root::Root(Template::text(&prefix.join("html").to_string_lossy()));
        let files = Files { root, ..Files::default() };
        let temp_path = (prefix.join("client_body_temp"), Vec::new());
        Core { files, body_files: BodyFiles { temp_path, ..BodyFiles::default() }, ..Core::default() }
    }

    /// For a block inside: without the settings of a single block.
    pub fn inherit(&self) -> Core {
        Core { limit_except: None, redirects_to_slash: false, ..self.clone() }
    }

    /// Rules between settings, checked at the end of a block.
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
            keeping: Default::default(),
            reading: Default::default(),
            body_files: Default::default(),
            answering: Default::default(),
            limit_rate: None,
            limit_rate_after: None,
            redirects_to_slash: false,
            takes_connect: false,
            uninitialized_variable_warn: true,
            subrequests: Subrequests { log: false, output_buffer_size: 4 << 10, post_action: None },
            error_log: ErrorLog::default(),
            satisfy: Satisfy::default(),
            internal: false,
            limit_except: None,
            found_by: FoundBy::Server,
        }
    }
}

//! Basic authentication (RFC 7617): `auth_basic` sets the realm, `auth_basic_user_file` the passwords.
//!
//! `user_file` finds the line of a user, `crypt` compares the password; deliberately slow comparisons run on separate
//! threads.

mod crypt;
mod des;
mod user_file;

use std::sync::{Arc, LazyLock};

use conf::{Args, Contexts, Spec};
use io::Errno;
use rt::HelperPool;

use crate::{Declaration, Directive, Module};
use exchange::credentials::{self, Credentials};
use exchange::files;
use exchange::phases::{Phase, Step};
use exchange::refusals::{self, Access};
use exchange::request::Request;
use exchange::response::AuthChallenges;
use site::address::ClientNetwork;
use site::config::{Settings, SettingsType};
use site::declaration::LEVELS;
use site::template::Template;
use site::uses::FileUse;
use telemetry::{ForLog, Level, Reason};
use user_file::FileError;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().is_active() {
            // `ask` rejects a request without credentials immediately; only `check` may wait for the file.
            plan.now_or_later(Phase::Access, scope.shared::<Conf>(), ask, |conf, request| {
                Box::pin(check(conf, request))
            });
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_auth_basic")
    })
};

const CONTEXTS: Contexts = LEVELS.or(Contexts::LIMIT_EXCEPT);

const DIRECTIVES: &[Directive] = &[
    // Browsers display the realm, and select the stored password by it.
    Directive::scope(
        Spec::new(
            "http_auth_basic",
            "auth_basic",
            CONTEXTS,
            Args::Exactly(1),
            "Requires a user name and a password for this realm; `off` requires none.",
        )
        .default("off"),
        |scope, cx| {
            scope.make_mut::<Conf>().realm = Some(Arc::new(cx.template(cx.arg(0))?));
            Ok(())
        },
    ),
    // Read for each request, so that a changed password takes effect immediately.
    Directive::scope(
        Spec::new(
            "http_auth_basic",
            "auth_basic_user_file",
            CONTEXTS,
            Args::Exactly(1),
            "The file with names and passwords.",
        ),
        |scope, cx| {
            let text = cx.arg(0);
            // Relative to the configuration directory, as in nginx. A path with a leading variable is completed when its value is known.
            let path = cx.path_template_from(cx.conf_prefix, text, FileUse::Read)?;
            scope.make_mut::<Conf>().user_file = Some(Arc::new(path));
            Ok(())
        },
    ),
];

/// The realm, and the user file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// The realm shown to the user, or `off`.
    realm: Option<Arc<Template>>,
    user_file: Option<Arc<Template>>,
}

impl Settings for Conf {}

/// As in nginx, a password is required only if both directives are set.
impl Conf {
    /// Whether a password is required.
    pub(crate) fn is_active(&self) -> bool {
        self.user_file.is_some() && self.realm.as_ref().is_some_and(|realm| realm.constant() != Some("off"))
    }
}

/// Returns the realm; `None` if it is `off` for this request.
fn realm_of(conf: &Conf, request: &Request) -> Option<Vec<u8>> {
    let realm = conf.realm.as_ref()?.rendered(request);
    (realm != b"off").then_some(realm)
}

/// Rejects a request without credentials; returns `None` if the request has credentials to check.
fn ask(conf: &Conf, request: &mut Request) -> Option<Step> {
    if Credentials::of(request).is_some() {
        return None;
    }
    let Some(realm) = realm_of(conf, request) else { return Some(Step::Next) };
    // Every browser sends its first request without credentials, so this is no error.
    let what = format_args!("no user/password was provided for basic authentication");
    request.log(Level::Info, what);
    Some(refuse(request, &realm))
}

/// Looks the user up and compares the password.
async fn check(conf: &Conf, request: &mut Request) -> Step {
    let Some(credentials) = Credentials::of(request) else { return Step::Next };
    let Some(realm) = realm_of(conf, request) else { return Step::Next };
    let path = conf.user_file.as_ref().map(|path| path.rendered(request));
    let mut path = path.unwrap_or_default();
    files::prepend_directory(&request.config().http.conf_prefix, &mut path, 0);
    let stored = match user_file::find(request, &path, credentials.user()).await {
        Ok(stored) => stored,
        Err(error) => return fail(request, &path, error),
    };
    let user = credentials.user().for_log();
    let Some(stored) = stored else {
        let path = files::display(&path);
        request.log(Level::Error, format_args!("user \"{user}\" was not found in \"{path}\""));
        return refuse(request, &realm);
    };
    match matches(request.client().client_network(), credentials.password(), stored).await {
        Some(true) => Step::Allow,
        Some(false) => {
            request.log(Level::Error, format_args!("user \"{user}\": password mismatch"));
            refuse(request, &realm)
        }
        None => {
            request.log(Level::Alert, format_args!("checking the password of user \"{user}\" panicked"));
            Step::Status(500)
        }
    }
}

/// The threads that check passwords. Clients determine the number and the duration of such checks, which delay neither
/// handshakes nor compression on these threads.
static PASSWORDS: LazyLock<HelperPool> = LazyLock::new(|| HelperPool::for_computation("passwords"));

/// Whether this is the stored password. A slow check runs on another thread; returns `None` if it panics.
async fn matches(client: ClientNetwork, password: &[u8], stored: Vec<u8>) -> Option<bool> {
    // A copy and the handover to another thread would cost more than a fast check.
    if !crypt::Form::of(&stored).is_slow() {
        return Some(crypt::verify(password, &stored));
    }
    let password = password.to_vec();
    PASSWORDS.run_for(client, move || crypt::verify(&password, &stored)).await
}

/// Responds with a challenge for a user name and a password (RFC 7235 section 4.1).
fn refuse(request: &mut Request, realm: &[u8]) -> Step {
    // The realm is the operator's text and is sent unchanged, as in nginx.
    let challenge = [b"Basic realm=\"", realm, b"\""].concat();
    let is_for_proxy = credentials::are_for_proxy(request);
    request.response.challenges = AuthChallenges { values: vec![challenge], is_for_proxy };
    Step::Status(credentials::status_without(request))
}

/// Fails the request: a missing file rejects all users, an unreadable file is a server error.
fn fail(request: &Request, path: &[u8], error: FileError) -> Step {
    if let FileError::Open(errno) = error {
        refusals::note_path(request, path, Access::Read, errno);
    }
    let path = files::display(path);
    let (level, status) = match error {
        FileError::Open(Errno::NOENT) => (Level::Error, 403),
        _ => (Level::Crit, 500),
    };
    match error {
        FileError::Open(errno) | FileError::Read(errno) => {
            request.log(level, format_args!("{error} \"{path}\" failed ({})", Reason(errno)));
        }
        FileError::NoMemory => {
            request.log(
                level,
                format_args!("no buffer for \"{path}\": the pool of this thread is at its limit"),
            );
        }
    }
    Step::Status(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn settings_are_inherited_and_switched_off() {
        let config = loaded(
            "auth_basic_user_file users; server { auth_basic $host; location /a { auth_basic off; }
             location /b { auth_basic_user_file /abs/$host; } location /c { auth_basic_user_file $host/x; }
             location /d { limit_except GET { auth_basic own; } } } server { location /e { } }",
        );
        let scope = |name: &str| {
            let mut locations = config.http.locations.iter();
            &locations.find(|location| location.name == name).expect("it is there").scope
        };
        let file = |name: &str| {
            let file = scope(name).of::<Conf>().user_file.as_ref();
            file.and_then(|file| file.constant()).map(str::to_owned)
        };
        assert_eq!(file("/a").as_deref(), Some("/conf/users"));
        assert_eq!((file("/b"), file("/c")), (None, None), "they have variables");
        let active: Vec<bool> = ["server", "/a", "/b", "limit_except", "/e"]
            .map(|name| scope(name).of::<Conf>().is_active())
            .to_vec();
        assert_eq!(active, [true, false, true, true, false]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("auth_basic a; auth_basic b;", "\"auth_basic\" directive is duplicate"),
            (
                "auth_basic_user_file a; auth_basic_user_file b;",
                "\"auth_basic_user_file\" directive is duplicate",
            ),
            ("auth_basic;", "invalid number of arguments in \"auth_basic\" directive"),
            ("auth_basic $none;", "unknown \"none\" variable"),
            ("auth_basic_user_file ${x;", "the closing bracket in \"x\" variable is missing"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
        }
    }
}

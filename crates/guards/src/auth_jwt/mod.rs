//! `auth_jwt`: access with a JSON Web Token, which is signed or encrypted with a key of a key set.
//!
//! [`check`](mod@check) verifies the token in the access phase, [`keys`] loads key sets from files and by subrequests, [`token`] holds the token of a
//! request for the variables. Crate `jose` has the cryptography.
//!
//! Every failure refuses the request: a token that is missing or invalid with 401, a key set that is missing, empty or invalid
//! with 500.

mod check;
mod keys;
mod token;

use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Level, Spec};
use jose::KeySet;

use crate::{Declaration, Directive, Module};
use exchange::module::{Prefixed, Variable};
use exchange::phases::Phase;
use exchange::rehearsal::Event;
use exchange::request::Request;
use site::config::{Cx, Http, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::template::Template;
use site::uses::FileUse;
use site::variables;
use token::{ClaimPath, Section};

use keys::{KeyOrigin, KeySource};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "jwt_payload",
        get: token::payload,
        set: None,
        help: "The decrypted payload of an encrypted token: its claims as JSON, or for `auth_jwt_type nested` the signed token.",
    }],
    prefixed: &[
        Prefixed {
            prefix: "jwt_claim_",
            get: |request, name, out| token::member(request, Section::Claims, name, out),
            help: "A claim of the token of `auth_jwt`. Before the access phase it is not verified.",
        },
        Prefixed {
            prefix: "jwt_header_",
            get: |request, name, out| token::member(request, Section::Header, name, out),
            help: "A header parameter of the token of `auth_jwt`. Before the access phase it is not verified.",
        },
    ],
    add_to_plan: |_, scope, plan| {
        let conf = scope.shared::<Conf>();
        if conf.is_active() {
            plan.later(Phase::Access, Arc::clone(&conf), |conf, request| Box::pin(check::run(conf, request)));
            // Another module may have allowed the request (`satisfy any`): then the token was not verified.
            plan.now(Phase::Precontent, conf, token::forget_unverified);
        }
    },
    rehearse: |request| {
        let conf = request.scope().of::<Conf>();
        let requests_keys =
            conf.keys.items().iter().any(|source| matches!(source.origin, KeyOrigin::Subrequest(_)));
        let is_access =
            conf.is_active() && requests_keys && token::is_present(request) && !token::is_checked(request);
        is_access.then(|| {
            token::mark_checked(request);
            let text = "the keys of \"auth_jwt_key_request\" are not requested: the token and \"auth_jwt_require\" are not checked".to_owned();
            request.note(|| Event::Said { label: "jwt", text });
            exchange::phases::Step::Next
        })
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        check: warn,
        ..Declaration::named("http_auth_jwt")
    })
};

const CONTEXTS: Contexts = LEVELS.or(Contexts::LIMIT_EXCEPT);

const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_auth_jwt", name, contexts, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec(
            "auth_jwt",
            CONTEXTS,
            Args::Between(1, 2),
            "Requires a JSON Web Token for this realm: that of `Authorization: Bearer`, or of a variable; `off` requires none.",
        )
        .default("off"),
        set_realm,
    ),
    Directive::http(
        spec(
            "auth_jwt_claim_set",
            Contexts::HTTP,
            Args::AtLeast(2),
            "Defines a variable by the path of a claim in the token, one name for each level.",
        )
        .many(),
        |cx| define(cx, Section::Claims),
    ),
    Directive::http(
        spec(
            "auth_jwt_header_set",
            Contexts::HTTP,
            Args::AtLeast(2),
            "Defines a variable by the path of a parameter in the header of the token, one name for each level.",
        )
        .many(),
        |cx| define(cx, Section::Header),
    ),
    Directive::scope(
        spec(
            "auth_jwt_key_cache",
            LEVELS,
            Args::Exactly(1),
            "Time for which key sets of files and subrequests are used without being checked again.",
        )
        .default("0"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<Conf>().cached),
    ),
    // Several sources of a block apply together.
    Directive::scope(
        spec("auth_jwt_key_file", CONTEXTS, Args::Exactly(1), "A file with a JSON Web Key Set, or with one key.").many(),
        add_file,
    ),
    Directive::scope(
        spec("auth_jwt_key_request", CONTEXTS, Args::Exactly(1), "The URI of a subrequest whose response is a JSON Web Key Set.")
            .many(),
        |scope, cx| {
            let uri = cx.template(cx.arg(0))?;
            add_source(scope, cx, KeyOrigin::Subrequest(uri));
            Ok(())
        },
    ),
    Directive::scope(
        spec("auth_jwt_leeway", LEVELS, Args::Exactly(1), "Tolerance for clocks that differ, when `exp` and `nbf` are checked.")
            .default("0s"),
        |scope, cx| cx.seconds(&mut scope.make_mut::<Conf>().leeway),
    ),
    Directive::scope(
        spec(
            "auth_jwt_type",
            CONTEXTS,
            Args::Exactly(1),
            "The type of tokens: `signed`, `encrypted`, or `nested` (signed, then encrypted).",
        )
        .default("signed"),
        |scope, cx| cx.choice(&mut scope.make_mut::<Conf>().token_type, TYPES),
    ),
    Directive::scope(
        spec(
            "auth_jwt_require",
            CONTEXTS,
            Args::AtLeast(1),
            "Values that must be neither empty nor `0` after the token was verified; otherwise the status is 401, or that of `error=`.",
        )
        .many(),
        require,
    ),
];

/// The types of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenType {
    /// A signature over the claims.
    #[default]
    Signed,
    /// Encrypted claims.
    Encrypted,
    /// An encrypted token whose content is a signed token.
    Nested,
}

const TYPES: &[(&str, TokenType)] =
    &[("signed", TokenType::Signed), ("encrypted", TokenType::Encrypted), ("nested", TokenType::Nested)];

/// Whether a token is required.
#[derive(Clone, Debug, Default)]
enum Realm {
    /// No `auth_jwt`.
    #[default]
    Unset,
    /// `off`
    Off,
    /// The realm for clients without a valid token.
    On(Arc<Template>),
}

/// The settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    realm: Realm,
    /// The variable with the token; by default the token is in the header section.
    token: Option<Arc<Template>>,
    keys: Layered<Arc<KeySource>>,
    /// `auth_jwt_key_cache`
    cached: Duration,
    leeway: Duration,
    token_type: TokenType,
    required: Layered<Requirement>,
}

impl Settings for Conf {}

/// An `auth_jwt_require` directive.
#[derive(Clone, Debug)]
struct Requirement {
    values: Vec<Template>,
    status: u16,
}

impl Conf {
    /// Whether requests are checked. A requirement without `auth_jwt` is checked too and fails, so that a forgotten directive opens
    /// nothing.
    pub(crate) fn is_active(&self) -> bool {
        match self.realm {
            Realm::On(_) => true,
            Realm::Unset => !self.required.items().is_empty(),
            Realm::Off => false,
        }
    }

    /// Whether the token of a request has values for variables.
    fn reads_token(&self) -> bool {
        matches!(self.realm, Realm::On(_)) || self.token.is_some()
    }
}

/// Implements the setter of `auth_jwt`.
fn set_realm(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let realm = match cx.arg(0) {
        "off" => Realm::Off,
        text => Realm::On(Arc::new(cx.template(text)?)),
    };
    let token = match cx.statement.arg(1) {
        None => None,
        Some(text) => {
            let variable = text.strip_prefix("token=").filter(|variable| variable.starts_with('$'));
            let variable = variable.ok_or_else(|| cx.error(format_args!("invalid parameter \"{text}\"")))?;
            Some(Arc::new(cx.template(variable)?))
        }
    };
    let conf = scope.make_mut::<Conf>();
    (conf.realm, conf.token) = (realm, token);
    Ok(())
}

/// Implements the setters of `auth_jwt_claim_set` and `auth_jwt_header_set`.
fn define(cx: &mut Cx<'_>, section: Section) -> Result<(), Error> {
    let name = cx.variable_name(cx.arg(0))?;
    let path = cx.statement.texts().skip(1).map(str::to_owned).collect();
    let slot = cx.http.registry.define_computed(name, cx.statement)?;
    variables::compute::<Request>(cx.http, slot, Arc::new(ClaimPath { section, path }));
    Ok(())
}

/// Implements the setter of `auth_jwt_key_file`. A file without variables is read with the configuration too, so that a mistake is found
/// before it takes effect.
fn add_file(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let path = cx.path_template_from(cx.conf_prefix, text, FileUse::Read)?;
    if let Some(path) = path.constant() {
        let bytes = cx.read_data(std::path::Path::new(path))?;
        let set = KeySet::parse(&bytes);
        let set = set.map_err(|fault| cx.error(format_args!("the key file \"{path}\" is wrong: {fault}")))?;
        for reason in set.skipped() {
            cx.warn(format_args!("the key file \"{path}\" has a key that is not used: {reason}"));
        }
        let shortest = set.keys().iter().filter_map(jose::Key::secret_len).min();
        if let Some(len) = shortest.filter(|len| *len < SECRET_LEN_SAFE) {
            cx.warn(format_args!(
                "the key file \"{path}\" has a secret of {len} bytes, which can be guessed: use at least {SECRET_LEN_SAFE} random bytes (RFC 7518 section 3.2)"
            ));
        }
    }
    add_source(scope, cx, KeyOrigin::File(path));
    Ok(())
}

/// Minimum length in bytes of a secret without a warning: that of the shortest hash for signatures. AES keys of 16 bytes are for
/// encryption only.
const SECRET_LEN_SAFE: usize = 16;

fn add_source(scope: &mut Scope, cx: &Cx<'_>, origin: KeyOrigin) {
    scope.make_mut::<Conf>().keys.make_mut(cx.block).push(Arc::new(KeySource::new(origin)));
}

/// Implements the setter of `auth_jwt_require`.
fn require(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let (mut values, mut status) = (Vec::new(), 401);
    for text in cx.statement.texts() {
        match text.strip_prefix("error=") {
            Some("401") => status = 401,
            Some("403") => status = 403,
            Some(_) => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
            None if text.starts_with('$') => values.push(cx.template(text)?),
            // A text without a variable would always be true, so it is probably a typo.
            None => return Err(cx.error(format_args!("invalid variable name \"{text}\""))),
        }
    }
    if values.is_empty() {
        return Err(cx.error("no value is required"));
    }
    scope.make_mut::<Conf>().required.make_mut(cx.block).push(Requirement { values, status });
    Ok(())
}

/// Warns of locations that refuse every request, because a directive is missing.
fn warn(http: &Http, warnings: &mut Vec<Error>) -> Result<(), Error> {
    for (index, location) in http.locations.iter().enumerate() {
        let conf = location.scope.of::<Conf>();
        let server = &http.servers[location.server.0 as usize];
        if !conf.is_active() || server.position.is_none() {
            continue;
        }
        // The settings of a server apply only to requests without a location.
        let is_server = server.root.0 as usize == index;
        let missing = match conf.realm {
            Realm::Unset => "\"auth_jwt_require\" refuses every request, because \"auth_jwt\" is missing",
            _ if conf.keys.items().is_empty() && !is_server => {
                "\"auth_jwt\" refuses every request, because \"auth_jwt_key_file\" or \"auth_jwt_key_request\" is missing"
            }
            _ => continue,
        };
        let what = format_args!("location \"{}\": {missing}", location.name);
        warnings.push(Error::without_location(what).with_level(Level::Warn));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

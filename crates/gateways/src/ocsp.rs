//! The way from `http_ssl` to responders of certificate authorities: the requests are those of `upstream::responder`.

use crate::Module;
use exchange::module::ThreadHooks;
use upstream::responder::FETCH;

/// Has no directive: those of OCSP are with the others of TLS.
pub(crate) static MODULE: Module = Module {
    thread: ThreadHooks { make: |locals| locals.insert(FETCH), ..ThreadHooks::NONE },
    ..Module::named("http_ssl")
};

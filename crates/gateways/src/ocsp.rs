//! Sets the function by which `http_ssl` sends requests to OCSP responders: `upstream::responder::FETCH`.

use crate::{Declaration, Module};
use exchange::module::ThreadHooks;
use upstream::responder::FETCH;

/// Module without directives: the OCSP directives are defined in `core_modules::ssl`, with the other TLS directives.
pub(crate) static MODULE: Module = Module {
    thread: ThreadHooks { make: |locals| locals.insert(FETCH), ..ThreadHooks::NONE },
    ..Module::of(Declaration::named("http_ssl"))
};

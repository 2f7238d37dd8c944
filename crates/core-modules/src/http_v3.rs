//! `http_v3`: the variable of HTTP/3, which is not supported yet. Log formats contain it in configurations that serve without HTTP/3
//! too.

use exchange::module::Variable;

use crate::{Declaration, Module};

/// The module. It has no directives.
pub(crate) static MODULE: Module = Module {
    variables: &[Variable {
        name: "http3",
        get: |_, _| true,
        set: None,
        help: "Empty, because HTTP/3 is not supported yet.",
    }],
    ..Module::of(Declaration::named("http_v3"))
};

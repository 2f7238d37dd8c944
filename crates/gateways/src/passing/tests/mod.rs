//! Tests of the directives: what they set, how that is inherited, and what is wrong with a value. What they do to
//! requests and responses is tested against the binary, beside nginx.

mod directives;
mod family;

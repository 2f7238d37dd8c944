//! Tests of the directives: their values, inheritance, and errors. Their effect on requests and responses is tested with the
//! binary, side by side with nginx.

mod directives;
mod family;

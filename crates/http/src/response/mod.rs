//! Header sections of responses: [`parse`] reads those of upstreams, [`encode`] writes those for clients.

pub mod encode;
pub mod parse;

//! Types that requests and responses have in common: methods, versions, field names, field lines, and the length of a body.
//!
//! The other modules of the crate depend on this one. It depends only on [`Span`](crate::Span) and on `bytes`.

mod body_length;
mod header_id;
mod line;
mod method;
mod table;
mod version;

pub use body_length::BodyLength;
pub use header_id::HeaderId;
pub(crate) use line::plain_line;
pub use method::Method;
pub(crate) use table::FieldTable;
pub use table::{Field, FieldLine};
pub use version::Version;

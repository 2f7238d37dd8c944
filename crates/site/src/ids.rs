//! Indices of servers and locations, which settings and requests hold instead of pointers.

/// Index of a server in `Http::servers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Index of a location in `Http::locations`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);

/// A block of servers with their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Section {
    /// `http`
    #[default]
    Http,
    /// `stream`
    Stream,
}

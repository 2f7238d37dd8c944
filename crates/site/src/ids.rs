//! Indices of servers and locations, which settings and requests hold instead of pointers.

/// Index of a server in `Http::servers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Index of a location in `Http::locations`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);

//! Servers and locations by number: settings name them, and a request finds them, without a pointer.

/// Place of a server in `Http::servers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Place of a location in `Http::locations`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);

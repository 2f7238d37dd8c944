//! A subrequest before it is made.

/// A request that the server makes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subrequest {
    /// The path, decoded.
    pub uri: Vec<u8>,
    /// The query without question mark.
    pub args: Vec<u8>,
    /// Whether the filter needs the response itself instead of its body in the output.
    pub capture: bool,
    /// The replacement of a response that is empty or an error.
    pub stub: Option<Vec<u8>>,
    /// Whether it is made with the method of the request, and not fetched.
    pub keeps_method: bool,
    /// Whether the rest of the body waits for its response.
    pub waits: bool,
}

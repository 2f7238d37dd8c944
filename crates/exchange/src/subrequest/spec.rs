//! The description of a subrequest.

/// A subrequest to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subrequest {
    /// The path, decoded.
    pub uri: Vec<u8>,
    /// The query without question mark.
    pub args: Vec<u8>,
    /// Whether the filter receives the response; otherwise its body is inserted into the output.
    pub capture: bool,
    /// The text that replaces an empty response or an error.
    pub stub: Option<Vec<u8>>,
    /// Whether it uses the parent's method instead of GET.
    pub uses_parent_method: bool,
    /// Whether the output after it waits for its response.
    pub waits: bool,
}

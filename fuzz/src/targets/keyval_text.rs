//! Pairs as JSON in crate `guards`: bodies of changes, and state files of `keyval_zone`.
//!
//! The source file is compiled here directly, because the complete crate has many dependencies.

#[allow(dead_code, missing_docs)]
#[path = "../../../crates/guards/src/keyval/json.rs"]
mod json;

/// The types that the source file uses.
mod pairs {
    /// The change of a pair.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum PairChange {
        /// The pair is removed.
        Remove,
        /// The pair is added or changed.
        Set {
            /// The value.
            value: Option<String>,
            /// Time in ms until it expires.
            expire_ms: Option<u64>,
        },
    }

    /// A copied pair.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CopiedPair {
        /// The key as written.
        pub key: String,
        /// The value.
        pub value: String,
        /// Time in ms since 1970 at which it expires.
        pub expires_ms: Option<u64>,
    }
}

use std::collections::HashSet;

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "keyval_text",
    run,
    tokens: &[
        "{",
        "}",
        "\"a\"",
        "\"\"",
        ":",
        ",",
        "null",
        "{\"value\":\"b\"",
        "\"expire\":1",
        "\"expires\":1",
        "18446744073709551615",
        "1e400",
        "\\u0000",
        "\\ud800",
        "true",
        "[",
        "]",
        " ",
        "\n",
    ],
};

/// Checks that keys are unique and not empty, and that pairs survive their state file.
pub fn run(data: &[u8]) {
    if let Ok(changes) = json::changes(data) {
        let keys: HashSet<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
        assert!(keys.len() == changes.len() && !keys.contains(""));
    }
    let Ok(pairs) = json::state(data) else { return };
    assert_eq!(json::state(&json::state_text(&pairs)).as_deref(), Ok(&pairs[..]));
    let shown: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&json::object_of(&pairs)).expect("it is an object");
    assert_eq!(shown.len(), pairs.len());
}

//! Fuzzes the parsers of `traceparent` and `tracestate`: [`http::trace_context`].

use http::trace_context::{TRACE_PARENT_LEN, TraceParent, join_states};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "trace_context",
    run,
    tokens: &[
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "cc-",
        "-00",
        "ff",
        "00000000000000000000000000000000",
        "\n",
        ",",
        "a=1",
        "t@s=x",
        "=",
        "@",
        " \t",
    ],
};

/// Lines are the values of fields: of `traceparent` up to an empty line, then of `tracestate`.
pub fn run(data: &[u8]) {
    let mut lines = data.split(|&byte| byte == b'\n');
    let parents: Vec<&[u8]> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let states: Vec<&[u8]> = lines.collect();
    match TraceParent::of_fields(parents.iter().copied()) {
        Some(parent) => check_parent(parent, &parents),
        None => assert!(parents.len() != 1 || TraceParent::parse(parents[0]).is_none()),
    }
    let Some(joined) = join_states(states.iter().copied()) else { return };
    // A joined value is valid, and joining changes nothing more.
    assert_eq!(join_states([joined.as_slice()].into_iter()).as_deref(), Some(joined.as_slice()));
    let members = joined.split(|&byte| byte == b',').filter(|member| !member.is_empty()).count();
    assert!(members <= 32 && !joined.contains(&b'\t'));
    assert!(joined.iter().all(|byte| (b' '..=b'~').contains(byte)));
}

fn check_parent(parent: TraceParent, parents: &[&[u8]]) {
    assert!(parents.len() == 1 && parents[0].len() >= TRACE_PARENT_LEN);
    assert!(parent.trace_id != [0; 16] && parent.span_id != [0; 8]);
    let encoded = parent.encode();
    assert_eq!(TraceParent::parse(&encoded), Some(parent));
    // The identifiers are those of the text, in lower case.
    assert_eq!(encoded[3..52], parents[0][3..52]);
    assert!(!parents[0].starts_with(b"00") || parents[0].len() == TRACE_PARENT_LEN);
}

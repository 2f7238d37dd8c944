//! Movie boxes of MP4 files (ISO/IEC 14496-12): the reader and writer of the module `mp4`.
//!
//! Its source file is compiled here directly: it needs only the standard library.

#[allow(dead_code, missing_docs)]
#[path = "../../../crates/handlers/src/mp4/movie.rs"]
mod movie;

use movie::{Around, Movie, Span, header};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "mp4_movie",
    run,
    tokens: &[
        "\0\0\0\u{8}trak",
        "\0\0\0\u{8}mdia",
        "\0\0\0\u{8}minf",
        "\0\0\0\u{8}stbl",
        "\0\0\0\u{18}stts\0\0\0\0\0\0\0\u{1}\0\0\0\u{5}\0\0\0\u{1}",
        "\0\0\0\u{1c}stsc\0\0\0\0\0\0\0\u{1}\0\0\0\u{1}\0\0\0\u{5}\0\0\0\u{1}",
        "\0\0\0\u{14}stco\0\0\0\0\0\0\0\u{1}\0\0\0\u{40}",
        "\0\0\0\u{1}",
        "\u{7f}\u{7f}\u{7f}\u{7f}",
        "\0\0\0\0",
    ],
};

/// Cuts a movie to a span that the first bytes select, and parses the result again.
pub fn run(mut data: &[u8]) {
    let span = Span {
        start_ms: u64::from(take_byte(&mut data)) * 40,
        length_ms: u64::from(take_byte(&mut data)) * 40,
        at_key_frame: take_byte(&mut data) & 1 == 1,
    };
    // A file that is longer than the box, so that its offsets are within the file.
    let around = Around { file_len: 1 << 20, data_end: 1 << 20, before: 24 };
    let _ = Movie::duration_ms(data);
    let Ok(movie) = Movie::read(data, &span) else { return };
    let Ok(cut) = movie.cut(&span, around) else { return };
    assert!(cut.data.start < cut.data.end && cut.data.end <= around.file_len);
    // Only an edit list, a row for a partial chunk at both ends, and headers are added.
    assert!(cut.head.len() <= data.len() * 2 + 4096, "{} from {}", cut.head.len(), data.len());
    let (name, header_len, len) =
        header(&cut.head, cut.head.len() as u64).expect("it was written").expect("it has a size");
    assert_eq!((&name, header_len), (b"moov", 8));
    let behind = &cut.head[len as usize..];
    let (name, header_len, len) = header(behind, u64::MAX).expect("it was written").expect("it has a size");
    assert_eq!((&name, header_len), (b"mdat", behind.len() as u64));
    assert_eq!(len - header_len, cut.data.end - cut.data.start);
    // The output is a valid movie from its start.
    let _ = Movie::read(&cut.head[8..cut.head.len() - behind.len()], &Span::default());
}

//! Round trips through all codings, and a measurement of the duration of calls.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::gzip::Decoder;
use super::pool::Pool;
use super::*;

/// Returns words in random order, which compress as text does.
fn text(len: usize) -> Vec<u8> {
    const WORDS: &[&str] = &[
        "<p>",
        "</p>\n",
        "the ",
        "server ",
        "of ",
        "an ",
        "answer ",
        "is ",
        "compressed ",
        "to ",
        "bytes, ",
        "class=\"",
    ];
    let mut random = Random(len as u64 + 1);
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        let number = random.next();
        text.extend_from_slice(WORDS[number as usize % WORDS.len()].as_bytes());
        if number.is_multiple_of(7) {
            text.extend_from_slice(number.to_string().as_bytes());
        }
    }
    text.truncate(len);
    text
}

/// Returns bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut random = Random(len as u64 + 2);
    (0..len).map(|_| random.next() as u8).collect()
}

/// An xorshift64* generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }
}

fn gzip(level: u8) -> Settings {
    Settings::Gzip(gzip::Settings { level, window_bits: 15 })
}

fn brotli(quality: u8) -> Settings {
    Settings::Brotli(brotli::Settings { quality, window_bits: 19 })
}

fn zstd(level: i32) -> Settings {
    Settings::Zstd(zstd::Settings { level, target_block: None, dictionary: None })
}

fn compressed(state: &mut AnyEncoder, body: &[u8], slice: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for bytes in body.chunks(slice) {
        state.push(bytes, &mut out).expect("it compresses");
    }
    state.finish(&mut out).expect("it ends");
    out
}

fn decompressed(settings: &Settings, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    match settings {
        Settings::Gzip(_) => {
            let mut decoder = Decoder::default();
            let (mut taken, mut len) = (0, usize::MAX);
            while taken < bytes.len() || len != body.len() {
                len = body.len();
                taken += decoder.push(&bytes[taken..], 64 << 10, &mut body).expect("it is right");
            }
            decoder.finish().expect("it is whole");
        }
        Settings::Brotli(_) => {
            ::brotli::Decompressor::new(bytes, 4096).read_to_end(&mut body).expect("it is right");
        }
        Settings::Zstd(zstd) => {
            let dictionary = zstd.dictionary.as_deref().map_or(&[][..], Vec::as_slice);
            let mut context = zstd_safe::DCtx::create();
            context.load_dictionary(dictionary).expect("it is one");
            let mut from = zstd_safe::InBuffer::around(bytes);
            loop {
                body.reserve(64 << 10);
                let start = body.len();
                let mut to = zstd_safe::OutBuffer::around_pos(&mut body, start);
                if context.decompress_stream(&mut to, &mut from).expect("it is right") == 0 {
                    break;
                }
            }
        }
    }
    body
}

/// Returns the decoded beginning of a body.
fn begun(settings: &Settings, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    match settings {
        Settings::Gzip(_) => {
            let taken = Decoder::default().push(bytes, 1 << 20, &mut body).expect("it is right");
            assert_eq!(taken, bytes.len());
        }
        Settings::Brotli(_) => {
            let mut decoder = ::brotli::Decompressor::new(bytes, 4096);
            let mut part = [0; 4096];
            // The loop ends in an error, because the remaining bytes are missing.
            while let Ok(count @ 1..) = decoder.read(&mut part) {
                body.extend_from_slice(&part[..count]);
            }
        }
        Settings::Zstd(_) => {
            body.reserve(1 << 20);
            let mut from = zstd_safe::InBuffer::around(bytes);
            let mut to = zstd_safe::OutBuffer::around(&mut body);
            zstd_safe::DCtx::create().decompress_stream(&mut to, &mut from).expect("it is right");
        }
    }
    body
}

/// After a flush all bytes so far can be decoded, and the body continues.
#[test]
fn flushed_bytes_can_be_decoded() {
    for settings in [gzip(1), gzip(6), gzip(9), brotli(0), brotli(4), brotli(9), zstd(-3), zstd(3), zstd(12)]
    {
        let mut state = AnyEncoder::new(&settings, None).expect("it starts");
        let (mut out, body) = (Vec::new(), [text(100_000), noise(100_000), text(10)].concat());
        let mut taken = 0;
        for len in [1, 20, 4000, 1, 70_000, 1, 100_000] {
            state.push(&body[taken..taken + len], &mut out).expect("it compresses");
            taken += len;
            state.flush(&mut out).expect("it is flushed");
            assert!(begun(&settings, &out) == body[..taken], "{settings:?}: {taken}");
        }
        state.push(&body[taken..], &mut out).expect("it compresses");
        state.finish(&mut out).expect("it ends");
        assert!(decompressed(&settings, &out) == body, "{settings:?}");
    }
}

#[test]
fn bodies_of_all_sizes_and_slices_are_decoded() {
    let low = [gzip(1), gzip(9), brotli(0), brotli(3), brotli(6), zstd(-3), zstd(1), zstd(6)];
    for settings in low {
        let mut state = None;
        for len in [0, 1, 20, 4095, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1 << 20] {
            for (body, slice) in [(text(len), 16 << 10), (noise(len), 64 << 10), (text(len), 1000)] {
                let mut encoder =
                    AnyEncoder::begin(state.take(), &settings, Some(len as u64)).expect("it starts");
                let coded = compressed(&mut encoder, &body, slice);
                assert!(decompressed(&settings, &coded) == body, "{settings:?}, {len} bytes by {slice}");
                assert!(coded.len() <= len + len / 1000 + 64, "{settings:?} makes {} of {len}", coded.len());
                state = Some(encoder);
            }
        }
    }
}

#[test]
fn all_levels_compress_text_that_can_be_decoded() {
    let body = text(100_000);
    let gzips = (1..=9).map(gzip);
    let others = (0..=11).map(brotli).chain([-100, 3, 9, 13, 16, 19, 20, 22].map(zstd));
    for settings in gzips.chain(others) {
        let size_is_known = Some(body.len() as u64);
        for size in [None, size_is_known] {
            let mut state = AnyEncoder::new(&settings, size).expect("it starts");
            let coded = compressed(&mut state, &body, 32 << 10);
            assert!(decompressed(&settings, &coded) == body, "{settings:?}");
            assert!(coded.len() < body.len(), "{settings:?} makes {}", coded.len());
        }
    }
}

#[test]
fn windows_and_blocks_are_limited_as_configured() {
    let body = [noise(40_000), noise(40_000)].concat();
    let of = |window_bits| {
        let settings = Settings::Gzip(gzip::Settings { level: 6, window_bits });
        let coded = compressed(&mut AnyEncoder::new(&settings, None).expect("it starts"), &body, 8192);
        assert!(decompressed(&settings, &coded) == body);
    };
    (9..=15).for_each(of);
    let of = |window_bits| {
        let settings = Settings::Brotli(brotli::Settings { quality: 5, window_bits });
        let coded = compressed(&mut AnyEncoder::new(&settings, None).expect("it starts"), &body, 8192);
        assert!(decompressed(&settings, &coded) == body);
        coded.len()
    };
    assert!(of(24) * 3 / 2 < of(10), "the second half repeats the first, within the larger window");
    let target_block = Some(2000);
    let settings = Settings::Zstd(zstd::Settings { level: 3, target_block, dictionary: None });
    let coded = compressed(&mut AnyEncoder::new(&settings, None).expect("it starts"), &text(100_000), 8192);
    assert!(decompressed(&settings, &coded) == text(100_000));
}

#[test]
fn a_dictionary_is_used_by_both_ends() {
    let body = text(2000);
    let dictionary = Some(Arc::new(body[..1500].to_vec()));
    let with = Settings::Zstd(zstd::Settings { level: 3, target_block: None, dictionary });
    let coded = |settings: &Settings, state: Option<AnyEncoder>| {
        let mut state = AnyEncoder::begin(state, settings, None).expect("it starts");
        (compressed(&mut state, &body, 500), state)
    };
    let (small, state) = coded(&with, None);
    assert!(decompressed(&with, &small) == body);
    assert!(small.len() * 2 < coded(&zstd(3), None).0.len());
    // The same state without the dictionary, and with it again.
    let (large, state) = coded(&zstd(3), Some(state));
    assert!(decompressed(&zstd(3), &large) == body);
    assert_eq!(coded(&with, Some(state)).0, small);
}

#[test]
fn concatenated_gzip_members_are_decoded() {
    let one = compressed(&mut AnyEncoder::new(&gzip(6), None).expect("it starts"), b"one, ", 8);
    let two = compressed(&mut AnyEncoder::new(&gzip(1), None).expect("it starts"), &text(200_000), 8192);
    let expected = [b"one, ".to_vec(), text(200_000)].concat();
    assert!(decompressed(&gzip(6), &[one.clone(), two.clone()].concat()) == expected);
    // Single bytes too, across the boundary of members.
    let (mut decoder, mut body) = (Decoder::default(), Vec::new());
    for byte in [one.clone(), one.clone()].concat() {
        assert_eq!(decoder.push(&[byte], 100, &mut body), Ok(1));
    }
    assert_eq!((decoder.finish(), body.as_slice()), (Ok(()), &b"one, one, "[..]));
    // Half a member is an error at the end, garbage after a member an immediate error.
    let (mut decoder, mut body) = (Decoder::default(), Vec::new());
    assert_eq!(decoder.push(&one[..10], 100, &mut body), Ok(10));
    assert!(decoder.finish().is_err());
    let garbage = [one.as_slice(), b"garbage"].concat();
    assert!(Decoder::default().push(&garbage, 1000, &mut body).is_err());
    let mut corrupt = two;
    corrupt[1000] ^= 0x55;
    let (mut decoder, mut all) = (Decoder::default(), Vec::new());
    assert!(decoder.push(&corrupt, 1 << 20, &mut all).is_err() || decoder.finish().is_err());
}

/// A recycled encoder has the memory of the last body. Tests fill the pieces that it does not clear with other positions
/// (`brotli::Store`), so each dependence on their content shows.
#[test]
fn a_recycled_encoder_compresses_as_a_new_one() {
    let brotlis = (0..=11).flat_map(|quality| {
        [10, 19].map(|window_bits| Settings::Brotli(brotli::Settings { quality, window_bits }))
    });
    let others = (1..=9).map(gzip).chain([-3, 1, 2, 3, 4, 6, 9, 13].map(zstd));
    for settings in brotlis.chain(others) {
        let mut kept = None;
        for (len, known) in [(100_000, true), (1000, true), (60_000, false)] {
            let (body, size) = (text(len), known.then_some(len as u64));
            let mut new = AnyEncoder::new(&settings, size).expect("it starts");
            let expected = compressed(&mut new, &body, 16 << 10);
            let mut recycled = AnyEncoder::begin(kept.take(), &settings, size).expect("it starts");
            let coded = compressed(&mut recycled, &body, 16 << 10);
            assert!(coded == expected, "{settings:?}, {len} bytes");
            kept = Some(recycled);
        }
    }
}

#[test]
fn a_pool_retains_states_up_to_its_limit() {
    let pool = Pool::default();
    assert!(pool.take(&gzip(1)).is_none());
    pool.put(gzip(1), AnyEncoder::new(&gzip(1), None).expect("it starts"));
    assert!(pool.take(&gzip(2)).is_none() && pool.take(&gzip(1)).is_some() && pool.take(&gzip(1)).is_none());
    for _ in 0..100 {
        pool.put(gzip(1), AnyEncoder::new(&gzip(1), None).expect("it starts"));
    }
    let held = pool.clear();
    assert!((8 << 20..=16 << 20).contains(&held), "{held} bytes are retained");
    let mut large = AnyEncoder::new(&zstd(19), None).expect("it starts");
    compressed(&mut large, b"text", 4);
    pool.put(zstd(19), large);
    assert_eq!(pool.clear(), 0, "large encoders are not retained");
}

/// Prints the cost of calls on a worker thread, and of bodies that it compresses in one call. Run it in release:
/// `cargo test --release -p transfer --lib coding::tests::cost_per_call -- --ignored --nocapture`.
#[test]
#[ignore = "prints a table for a person"]
fn cost_per_call() {
    let body = text(4 << 20);
    println!("{:24} {:>9} {:>9} {:>7} {:>7} {:>7}", "", "slice", "MB/s", "mean", "p99", "max us");
    // Settings with which a worker thread encodes bodies of any length.
    let all = (1..=9).map(gzip).chain((0..=3).map(brotli)).chain([-1, 1, 2].map(zstd));
    for settings in all {
        let mut state = AnyEncoder::new(&settings, None).expect("it starts");
        let mut calls: Vec<Duration> = Vec::new();
        let mut out = Vec::new();
        for bytes in body.chunks(settings.slice_max()) {
            out.clear();
            let began = cpu_time();
            state.push(bytes, &mut out).expect("it compresses");
            calls.push(cpu_time() - began);
        }
        let began = cpu_time();
        state.finish(&mut out).expect("it ends");
        calls.push(cpu_time() - began);
        report(&settings, settings.slice_max(), body.len(), calls);
    }
    println!("bodies that are compressed in one call");
    for settings in (4..=11).map(brotli).chain((3..=22).map(zstd)) {
        let most =
            (1..=256).rev().map(|half_kib| half_kib * 512).find(|&len| !settings.is_long_work(Some(len)));
        let Some(most) = most.map(|most| most as usize) else { continue };
        let mut calls = Vec::new();
        let mut state = None;
        for body in body.chunks_exact(most).take(100) {
            let began = cpu_time();
            let mut encoder =
                AnyEncoder::begin(state.take(), &settings, Some(most as u64)).expect("it starts");
            compressed(&mut encoder, body, settings.slice_max());
            calls.push(cpu_time() - began);
            state = Some(encoder);
        }
        report(&settings, most, most * calls.len(), calls);
    }
}

/// Returns the CPU time of this thread; the wall clock would include other work of the machine.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it counts from zero")
}

fn report(settings: &Settings, slice: usize, len: usize, mut calls: Vec<Duration>) {
    calls.sort();
    let total: Duration = calls.iter().sum();
    let (count, last) = (calls.len(), calls[calls.len() - 1]);
    let level = match settings {
        Settings::Gzip(gzip) => i32::from(gzip.level),
        Settings::Brotli(brotli) => i32::from(brotli.quality),
        Settings::Zstd(zstd) => zstd.level,
    };
    println!(
        "{:20} {level:3} {slice:9} {:9.1} {:7} {:7} {:7}",
        settings.name(),
        len as f64 / total.as_secs_f64() / 1e6,
        (total / count as u32).as_micros(),
        calls[count * 99 / 100].as_micros(),
        last.as_micros(),
    );
}

/// The limit for the encoders of a thread is kept by estimates.
#[test]
fn the_estimated_memory_is_not_below_that_of_an_encoder() {
    let zstds = [-1, 1, 2, 3, 4, 6, 8, 9, 13].map(zstd);
    let all = [0, 2, 4, 5, 6, 8, 9].map(brotli).into_iter().chain(zstds).chain([gzip(1), gzip(9)]);
    for settings in all {
        for (len, known) in [(1000, true), (100_000, true), (1000, false), (400_000, false)] {
            let size = known.then_some(len as u64);
            let estimate = settings.memory_estimate(size);
            let mut state = AnyEncoder::new(&settings, size).expect("it starts");
            let mut most = 0;
            for bytes in text(len).chunks(64 << 10) {
                state.push(bytes, &mut Vec::new()).expect("it compresses");
                most = most.max(state.memory() as u64);
            }
            state.finish(&mut Vec::new()).expect("it ends");
            most = most.max(state.memory() as u64);
            assert!(most <= estimate, "{settings:?}: {most} bytes for {len}, {size:?}, estimated {estimate}");
        }
    }
}

/// Long bodies need no more memory than those of the length of the window.
#[test]
fn the_working_memory_of_brotli_does_not_grow_with_the_body() {
    let body = text(3 << 20);
    for quality in [4, 6] {
        let mut state = AnyEncoder::new(&brotli(quality), None).expect("it starts");
        for bytes in body.chunks(64 << 10) {
            state.push(bytes, &mut Vec::new()).expect("it compresses");
            assert!(state.memory() < 12 << 20, "quality {quality}: {} bytes", state.memory());
        }
    }
}

/// After a flush a body can continue without its encoder, and a body can be without one from its beginning.
#[test]
fn bodies_without_an_encoder_are_decoded() {
    let (first, rest) = (text(70_000), [noise(200_000), text(1)].concat());
    let dictionary = Some(Arc::new(text(1500)));
    let with = Settings::Zstd(zstd::Settings { level: 3, target_block: None, dictionary });
    for settings in [gzip(1), gzip(9), brotli(1), brotli(4), brotli(9), brotli(11), zstd(-3), zstd(3), with] {
        for size in [None, Some(270_001)] {
            let mut state = AnyEncoder::new(&settings, size).expect("it starts");
            let mut out = Vec::new();
            state.push(&first, &mut out).expect("it compresses");
            state.flush(&mut out).expect("it is flushed");
            let mut stored = state.continue_stored();
            rest.chunks(100_001).for_each(|bytes| stored.push(bytes, &mut out));
            stored.finish(&mut out);
            assert!(decompressed(&settings, &out) == [&first[..], &rest].concat(), "{settings:?}");
            // The encoder serves another body.
            let mut next = AnyEncoder::begin(Some(state), &settings, size).expect("it starts");
            assert!(decompressed(&settings, &compressed(&mut next, &first, 8192)) == first, "{settings:?}");
        }
        for body in [&[][..], &rest] {
            let (mut stored, mut out) = (stored::Stored::new(&settings), Vec::new());
            stored.push(body, &mut out);
            stored.finish(&mut out);
            assert!(decompressed(&settings, &out) == body, "{settings:?}");
        }
    }
}

//! Random mutations of an input: changed bits and bytes, moved pieces, and inserted tokens of the target's language.
//!
//! The generator is an xorshift, so that a run can be repeated by its seed on every machine.

/// Maximum size of a mutated input in bytes. It exceeds every limit of a request's header section (at most 33 KiB,
/// which the corpus reaches by repeated lines), and is small enough for thousands of runs per second.
const INPUT_MAX: usize = 40 << 10;

/// Maximum number of mutations of one input.
const CHANGES_MAX: u64 = 6;

/// An xorshift generator (Marsaglia, 64 bits).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`; zero if `end` is zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }
}

/// Mutates `input` a few times. `other` is a second input of the corpus, from which pieces are copied.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], tokens: &[&str], random: &mut Random) {
    for _ in 0..=random.next() % CHANGES_MAX {
        change(input, other, tokens, random);
    }
    input.truncate(INPUT_MAX);
}

fn change(input: &mut Vec<u8>, other: &[u8], tokens: &[&str], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let end = at + random.below((input.len() - at).min(64) + 1);
    match random.below(9) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next() as u8,
        2 => input.insert(at, random.next() as u8),
        3 => drop(input.drain(at..end)),
        4 => {
            let piece: Vec<u8> = input[at..end].to_vec();
            let times = 1 << random.below(8);
            let to = random.below(input.len() + 1);
            drop(input.splice(to..to, piece.repeat(times)));
        }
        5 => {
            let from = random.below(other.len() + 1);
            let until = from + random.below(other.len() - from + 1);
            drop(input.splice(at..end, other[from..until].iter().copied()));
        }
        6 => input.truncate(at),
        7 if at < input.len() => {
            // Boundary values are likely to reveal errors in lengths.
            const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
            input[at] = EDGES[random.below(EDGES.len())];
        }
        _ if !tokens.is_empty() => {
            let token = tokens[random.below(tokens.len())];
            let end = if random.below(2) == 0 { at } else { end };
            drop(input.splice(at..end, token.bytes()));
        }
        _ => {}
    }
}

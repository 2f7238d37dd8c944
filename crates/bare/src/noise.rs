//! Pseudo-random numbers, for offsets in a file and for data that no device or file system treats as zeroes.

/// Marsaglia's xorshift64, which is fast and sufficiently uniform for both.
#[derive(Clone, Copy, Debug)]
pub struct Noise(u64);

impl Noise {
    /// Returns a generator; the same seed yields the same numbers.
    pub fn new(seed: u64) -> Noise {
        // Zero is a fixed point of the generator.
        let mut noise = Noise((seed ^ 0x9e37_79b9_7f4a_7c15).max(1));
        // The first numbers of adjacent seeds are similar.
        for _ in 0..8 {
            noise.number();
        }
        noise
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills the complete words of a block.
    pub fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&self.number().to_ne_bytes());
        }
    }
}

//! Numbers that look random: places in a file, and bytes that no device or file system takes for zeroes.

/// Marsaglia's xorshift64, which is quick and even enough for both.
#[derive(Clone, Copy, Debug)]
pub struct Noise(u64);

impl Noise {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Noise {
        // Zero alone would stay as it is.
        Noise((seed ^ 0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills whole words of a block.
    pub fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&self.number().to_ne_bytes());
        }
    }
}

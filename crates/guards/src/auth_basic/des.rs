//! The oldest password hash of crypt(3): DES with a salt in its expansion, as `htpasswd -d` writes it.
//!
//! Weak by today's measure, and still in use in old files. No maintained crate has it, because the API of a block
//! cipher cannot exchange bits. The tables are those of FIPS 46-3, counted from 0.

/// The hash of a password: two characters of salt and eleven of the cipher's output. `None` for characters that are
/// no salt. Only eight characters of the password count.
pub(super) fn crypt(password: &[u8], salt: [u8; 2]) -> Option<[u8; 13]> {
    let bits = digit(salt[0])? | digit(salt[1])? << 6;
    // A bit of the salt exchanges two bits of the expansion that are half of it apart.
    let exchange = (0..12).filter(|bit| bits >> bit & 1 == 1).fold(0, |mask, bit| mask | 1 << (23 - bit));
    let mut key = [0; 8];
    for (byte, character) in key.iter_mut().zip(password.iter().take_while(|&&byte| byte != 0)) {
        *byte = character << 1;
    }
    let keys = schedule(u64::from_be_bytes(key));
    let (mut left, mut right) = (0, 0);
    // The permutations at both ends of the cipher cancel out between two passes.
    for _ in 0..25 {
        for key in keys {
            (left, right) = (right, left ^ mix(right, key, exchange));
        }
        (left, right) = (right, left);
    }
    let block = last_permutation(u64::from(left) << 32 | u64::from(right));
    let mut hash = [0; 13];
    hash[..2].copy_from_slice(&salt);
    for (index, character) in hash[2..].iter_mut().enumerate() {
        // The last group has four bits; two zeros fill it.
        let group = (u128::from(block) << 2) >> (60 - 6 * index) & 63;
        *character = DIGITS[group as usize];
    }
    Some(hash)
}

/// The digits of crypt(3), by value.
pub(super) const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The value of a digit.
fn digit(character: u8) -> Option<u32> {
    DIGITS.iter().position(|&digit| digit == character).map(|value| value as u32)
}

/// The keys of the sixteen rounds, 48 bits each.
fn schedule(key: u64) -> [u64; 16] {
    let half =
        |table: &[u8; 28]| table.iter().fold(0_u32, |half, &bit| half << 1 | (key >> (63 - bit) & 1) as u32);
    let (mut c, mut d) = (half(&KEY_LEFT), half(&KEY_RIGHT));
    let rotated = |half: u32, by: u32| (half << by | half >> (28 - by)) & 0x0fff_ffff;
    std::array::from_fn(|round| {
        let by = if matches!(round, 0 | 1 | 8 | 15) { 1 } else { 2 };
        (c, d) = (rotated(c, by), rotated(d, by));
        let both = u64::from(c) << 28 | u64::from(d);
        KEY_CHOICE.iter().fold(0, |key, &bit| key << 1 | (both >> (55 - bit) & 1))
    })
}

/// The cipher's function: expansion with the salt, key, boxes, permutation.
fn mix(half: u32, key: u64, exchange: u32) -> u32 {
    // Each group takes a bit of either neighbour along.
    let group = |index: u32| half.rotate_left(4 * index + 5) & 63;
    let quarter = |from: u32| (from..from + 4).fold(0, |bits, index| bits << 6 | group(index));
    let (mut high, mut low) = (quarter(0), quarter(4));
    let differing = (high ^ low) & exchange;
    (high, low) = (high ^ differing, low ^ differing);
    let keyed = (u64::from(high) << 24 | u64::from(low)) ^ key;
    let boxed = BOXES.iter().enumerate().fold(0_u32, |out, (index, table)| {
        let bits = (keyed >> (42 - 6 * index) & 63) as usize;
        let row = (bits >> 4 & 2) | (bits & 1);
        out << 4 | u32::from(table[row * 16 + (bits >> 1 & 15)])
    });
    MIX.iter().fold(0, |out, &bit| out << 1 | (boxed >> (31 - bit) & 1))
}

/// The inverse of the first permutation: columns of eight bytes become rows, and the halves interleave.
fn last_permutation(block: u64) -> u64 {
    let source = |bit: u32| {
        let (row, column) = (bit / 8, bit % 8);
        let byte = column / 2 + if column % 2 == 0 { 4 } else { 0 };
        8 * byte + 7 - row
    };
    (0..64).fold(0, |out, bit| out << 1 | (block >> (63 - source(bit)) & 1))
}

/// The first choice of bits of a key: its left half,
const KEY_LEFT: [u8; 28] = [
    56, 48, 40, 32, 24, 16, 8, 0, 57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35,
];

/// and its right half.
const KEY_RIGHT: [u8; 28] = [
    62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 60, 52, 44, 36, 28, 20, 12, 4, 27, 19, 11,
    3,
];

/// The second choice, of 48 out of 56.
const KEY_CHOICE: [u8; 48] = [
    13, 16, 10, 23, 0, 4, 2, 27, 14, 5, 20, 9, 22, 18, 11, 3, 25, 7, 15, 6, 26, 19, 12, 1, 40, 51, 30, 36,
    46, 54, 29, 39, 50, 44, 32, 47, 43, 48, 38, 55, 33, 52, 45, 41, 49, 35, 28, 31,
];

/// Where the bits of the boxes go.
const MIX: [u8; 32] = [
    15, 6, 19, 20, 28, 11, 27, 16, 0, 14, 22, 25, 4, 17, 30, 9, 1, 7, 23, 13, 31, 26, 2, 8, 18, 12, 29, 5,
    21, 10, 3, 24,
];

/// Four rows of sixteen for each; the outer bits of a group choose the row.
#[rustfmt::skip]
const BOXES: [[u8; 64]; 8] = [
    [14,4,13,1,2,15,11,8,3,10,6,12,5,9,0,7, 0,15,7,4,14,2,13,1,10,6,12,11,9,5,3,8,
     4,1,14,8,13,6,2,11,15,12,9,7,3,10,5,0, 15,12,8,2,4,9,1,7,5,11,3,14,10,0,6,13],
    [15,1,8,14,6,11,3,4,9,7,2,13,12,0,5,10, 3,13,4,7,15,2,8,14,12,0,1,10,6,9,11,5,
     0,14,7,11,10,4,13,1,5,8,12,6,9,3,2,15, 13,8,10,1,3,15,4,2,11,6,7,12,0,5,14,9],
    [10,0,9,14,6,3,15,5,1,13,12,7,11,4,2,8, 13,7,0,9,3,4,6,10,2,8,5,14,12,11,15,1,
     13,6,4,9,8,15,3,0,11,1,2,12,5,10,14,7, 1,10,13,0,6,9,8,7,4,15,14,3,11,5,2,12],
    [7,13,14,3,0,6,9,10,1,2,8,5,11,12,4,15, 13,8,11,5,6,15,0,3,4,7,2,12,1,10,14,9,
     10,6,9,0,12,11,7,13,15,1,3,14,5,2,8,4, 3,15,0,6,10,1,13,8,9,4,5,11,12,7,2,14],
    [2,12,4,1,7,10,11,6,8,5,3,15,13,0,14,9, 14,11,2,12,4,7,13,1,5,0,15,10,3,9,8,6,
     4,2,1,11,10,13,7,8,15,9,12,5,6,3,0,14, 11,8,12,7,1,14,2,13,6,15,0,9,10,4,5,3],
    [12,1,10,15,9,2,6,8,0,13,3,4,14,7,5,11, 10,15,4,2,7,12,9,5,6,1,13,14,0,11,3,8,
     9,14,15,5,2,8,12,3,7,0,4,10,1,13,11,6, 4,3,2,12,9,5,15,10,11,14,1,7,6,0,8,13],
    [4,11,2,14,15,0,8,13,3,12,9,7,5,10,6,1, 13,0,11,7,4,9,1,10,14,3,5,12,2,15,8,6,
     1,4,11,13,12,3,7,14,10,15,6,8,0,5,9,2, 6,11,13,8,1,4,10,7,9,5,0,15,14,2,3,12],
    [13,2,8,4,6,15,11,1,10,9,3,14,5,0,12,7, 1,15,13,8,10,3,7,4,12,5,6,11,0,14,9,2,
     7,11,4,1,9,12,14,2,0,6,10,13,15,3,5,8, 2,1,14,7,4,10,8,13,15,12,9,0,3,5,6,11],
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with crypt(3) of libxcrypt.
    #[test]
    fn known_hashes() {
        for hash in KNOWN {
            let (password, hash) = hash;
            let salt = [hash.as_bytes()[0], hash.as_bytes()[1]];
            let made = crypt(password.as_bytes(), salt).expect("the salt is right");
            assert_eq!(std::str::from_utf8(&made), Ok(hash), "{password}");
        }
        assert_eq!(crypt(b"x", *b"$x"), None);
    }

    const KNOWN: [(&str, &str); 6] = [
        ("", "abmF1QH4PEr.E"),
        ("secret", "abNANd1rDfiNc"),
        ("eight888", "./tHHmYta1uwE"),
        ("eight888andmore", "./tHHmYta1uwE"),
        ("pé", "zZQB/PcEJ654o"),
        ("a", "09IrJGbKu51cs"),
    ];
}

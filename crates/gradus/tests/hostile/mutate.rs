//! Random damage and malicious changes to files, reproducible by seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Tokens that often break parsers: numbers at the limits of types, other types, ends, nesting, marks.
const TOKENS: [&str; 30] = [
    "0",
    "-1",
    "1e309",
    "99999999999999999999",
    "4294967296",
    "NaN",
    "null",
    "true",
    "\"",
    "\\u0000",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "[[[[[[[[",
    "{\"a\":",
    ",",
    ":",
    "\n",
    "\r\n",
    "\0",
    "\u{1b}]0;x\u{7}",
    "\u{202e}",
    "{{",
    "{%",
    "%}",
    "&a",
    "*a",
    "--- ",
];

/// Produces changed copies.
pub struct Mutator {
    random: ChaCha8Rng,
}

impl Mutator {
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Returns one of `seeds` with one to eight changes.
    pub fn next(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.random.random_range(0..seeds.len())].clone();
        for _ in 0..1 << self.random.random_range(0..4) {
            self.change(&mut bytes, seeds);
        }
        bytes
    }

    /// Returns a position in `bytes`, or their end.
    fn place(&mut self, bytes: &[u8]) -> usize {
        self.random.random_range(0..=bytes.len())
    }

    fn change(&mut self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let (one, other) = (self.place(bytes), self.place(bytes));
        let (from, to) = (one.min(other), one.max(other).min(one.min(other) + 200));
        match self.random.random_range(0..9) {
            0 if !bytes.is_empty() => {
                let at = one.min(bytes.len() - 1);
                bytes[at] ^= 1 << self.random.random_range(0..8);
            }
            1 if !bytes.is_empty() => {
                let at = one.min(bytes.len() - 1);
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'9', b'"', b'{'][self.random.random_range(0..8)];
            }
            2 => drop(bytes.drain(from..to)),
            3 => {
                let again = bytes[from..to].to_vec();
                bytes.splice(other..other, again);
            }
            4 => {
                let token = TOKENS[self.random.random_range(0..TOKENS.len())];
                bytes.splice(one..one, token.bytes());
            }
            5 => bytes.truncate(one),
            6 => {
                // Replace a number by another one: parsers trust numbers.
                if let Some(at) = (one..bytes.len()).find(|&at| bytes[at].is_ascii_digit()) {
                    let end = (at..bytes.len()).find(|&at| !bytes[at].is_ascii_digit()).unwrap_or(bytes.len());
                    let token = TOKENS[self.random.random_range(0..8)];
                    bytes.splice(at..end, token.bytes());
                }
            }
            7 => {
                let seed = &seeds[self.random.random_range(0..seeds.len())];
                let start = self.place(seed);
                let piece = seed[start..(start + 100).min(seed.len())].to_vec();
                bytes.splice(one..one, piece);
            }
            _ => {
                let at = from.min(bytes.len());
                let eight = self.random.random::<u64>().to_le_bytes();
                let count: usize = [1, 2, 4, 8][self.random.random_range(0..4)];
                let count = count.min(bytes.len() - at);
                bytes[at..at + count].copy_from_slice(&eight[..count]);
            }
        }
        // Splices can double the size, but the content of a file matters, not its size.
        bytes.truncate(1 << 17);
    }
}

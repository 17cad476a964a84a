//! Permutations of NumPy's default generator, which `datasets` uses to shuffle rows.
//!
//! `numpy.random.default_rng(seed).permutation(n)`: `SeedSequence` derives a state from the seed, PCG64 (O'Neill 2014, the XSL-RR
//! variant) draws numbers, and a Fisher–Yates shuffle rejects draws that are too large. Checked against NumPy 2.4.

/// Returns the numbers from 0 to `n − 1` in the order of `seed`.
pub fn permutation(seed: u64, n: usize) -> Vec<usize> {
    let mut rng = Pcg64::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, rng.below_or_at(i as u32) as usize);
    }
    order
}

/// PCG64, with the unused half of the last draw.
struct Pcg64 {
    state: u128,
    increment: u128,
    half: Option<u32>,
}

impl Pcg64 {
    fn new(seed: u64) -> Self {
        let words = seed_words(seed);
        let join = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let increment = join(words[2], words[3]) << 1 | 1;
        let mut rng = Self { state: 0, increment, half: None };
        rng.step();
        rng.state = rng.state.wrapping_add(join(words[0], words[1]));
        rng.step();
        rng
    }

    fn step(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        let drawn = folded.rotate_right((self.state >> 122) as u32);
        self.half = Some((drawn >> 32) as u32);
        drawn as u32
    }

    /// Draws a number from 0 to `most`, with as many low bits as `most` has. Repeats until it is not larger.
    fn below_or_at(&mut self, most: u32) -> u32 {
        let mask = u32::MAX >> most.leading_zeros();
        loop {
            let drawn = self.next_u32() & mask;
            if drawn <= most {
                return drawn;
            }
        }
    }
}

/// Computes `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_words(seed: u64) -> [u64; 4] {
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = [hash(seed as u32), hash((seed >> 32) as u32), hash(0), hash(0)];
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            let mixed = pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(hash(pool[from]).wrapping_mul(0x4973_f715));
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let mut word = |i: usize| {
        let value = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    };
    let halves: [u64; 8] = std::array::from_fn(&mut word);
    std::array::from_fn(|i| halves[2 * i] | halves[2 * i + 1] << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::check_orders;

    #[test]
    fn rows_come_in_the_order_of_numpy() {
        check_orders("tasks/permutations.json", permutation);
    }
}

//! Shuffling as in Python's `random`.
//!
//! `random.Random(seed).shuffle(list)`: a Mersenne Twister (Matsumoto and Nishimura 1998), seeded by `init_by_array` with the
//! 32-bit words of the seed. Draws that are too large are repeated. Checked against CPython 3.

/// Number of words in the generator's state.
const N: usize = 624;

/// Distance between words that are mixed.
const M: usize = 397;

/// Returns the numbers from 0 to `n − 1` as `random.Random(seed).shuffle` leaves them.
pub fn shuffled(seed: u64, n: usize) -> Vec<usize> {
    let mut rng = Twister::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, rng.below(i as u32 + 1) as usize);
    }
    order
}

struct Twister {
    state: [u32; N],
    next: usize,
}

impl Twister {
    fn new(seed: u64) -> Self {
        let words = [seed as u32, (seed >> 32) as u32];
        let key = if words[1] == 0 { &words[..1] } else { &words[..] };
        let mut state = [0; N];
        state[0] = 19_650_218;
        for i in 1..N {
            state[i] = 1_812_433_253_u32.wrapping_mul(state[i - 1] ^ state[i - 1] >> 30).wrapping_add(i as u32);
        }
        let mut i = 1;
        let mut step = |state: &mut [u32; N], factor: u32, add: u32| {
            let mixed = (state[i - 1] ^ state[i - 1] >> 30).wrapping_mul(factor);
            state[i] = (state[i] ^ mixed).wrapping_add(add);
            i += 1;
            if i == N {
                (state[0], i) = (state[N - 1], 1);
            }
            i as u32
        };
        for j in (0..key.len()).cycle().take(N) {
            step(&mut state, 1_664_525, key[j].wrapping_add(j as u32));
        }
        // This pass subtracts the index itself. It starts at 2, because the loop above went once around and one step further.
        let mut place = 2;
        for _ in 1..N {
            place = step(&mut state, 1_566_083_941, 0_u32.wrapping_sub(place));
        }
        state[0] = 1 << 31;
        Self { state, next: N }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == N {
            for i in 0..N {
                let y = self.state[i] & 1 << 31 | self.state[(i + 1) % N] & !(1 << 31);
                self.state[i] = self.state[(i + M) % N] ^ y >> 1 ^ if y & 1 == 1 { 0x9908_b0df } else { 0 };
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// Draws a number below `n` from as many of the highest bits as `n` has. Repeats until it is below.
    fn below(&mut self, n: u32) -> u32 {
        loop {
            let drawn = self.next_u32() >> n.leading_zeros();
            if drawn < n {
                return drawn;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::check_orders;

    #[test]
    fn rows_come_in_the_order_of_python() {
        check_orders("toxicity/shuffles.json", shuffled);
    }
}

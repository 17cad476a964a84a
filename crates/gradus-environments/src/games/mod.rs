//! Environments for learning and testing. All are deterministic functions of the seed and the turns.

mod arithmetic;
mod documents;
mod guess;
mod maze;

pub use arithmetic::{Arithmetic, ArithmeticConfig};
pub use documents::{AnswerReward, Documents, DocumentsConfig};
pub use guess::{Guess, GuessConfig};
pub use maze::{Maze, MazeConfig};

/// A small random generator (SplitMix64, Steele et al. 2014). Games need few numbers, so they need no library.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to `high`, both inclusive.
    fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = high.abs_diff(low).saturating_add(1);
        low.saturating_add_unsigned(self.next() % width)
    }
}

/// Returns the last integer in a text.
fn last_integer(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = bytes[..end].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
    let is_negative = start > 0 && bytes[start - 1] == b'-';
    let number: i64 = text[start..end].parse().ok()?;
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_read() {
        assert_eq!(last_integer("I guess 7, no 12."), Some(12));
        assert_eq!(last_integer("-3"), Some(-3));
        assert_eq!(last_integer("none"), None);
        assert_eq!(last_integer("99999999999999999999"), None);
    }

    #[test]
    fn dice_stay_within_their_bounds() {
        let mut dice = Dice(3);
        let drawn: Vec<i64> = (0..1000).map(|_| dice.between(-2, 3)).collect();
        assert!((-2..=3).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| (-2..=3).contains(n)));
    }
}

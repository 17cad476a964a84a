//! Presentation of a task's answers to a person: the letter of each answer, and the side of each answer in a pair.
//!
//! Answers are labeled A, B, C in a random order that is new for each task and person, so letters reveal no models. The order is stored
//! with the annotation. Statistics about the left answer use the stored order.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::rank::pairs;

/// Stored presentation of the answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Answers in the order of their letters; the first one is A.
    pub order: Vec<usize>,
    /// For each pair of answers, in the order of [`pairs`]: whether the second answer is on the left.
    pub swapped: Vec<bool>,
}

impl Shown {
    /// Keeps the order of the data, for annotations from another tool.
    pub fn as_given(answers: usize) -> Self {
        Self::in_order((0..answers).collect())
    }

    /// Chooses a random order.
    pub fn random(answers: usize) -> Self {
        let mut bytes = [0u8; 8];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        Self::shuffled(answers, u64::from_le_bytes(bytes))
    }

    /// Derives an order from `seed`, the same in every build.
    pub fn shuffled(answers: usize, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..answers).collect();
        order.sort_by_key(|answer| {
            stable_hash(|hasher| {
                hasher.write_u64(seed);
                hasher.write_u64(*answer as u64);
            })
        });
        Self::in_order(order)
    }

    /// Returns what versions of the database before 7 showed: letters in the order of the data, and sides derived from a hash.
    pub fn of_version_6(answers: usize, person: &str, number: usize) -> Self {
        let swapped = (0..pairs(answers).len()).map(|pair| is_swapped(person, number, pair)).collect();
        Self { order: (0..answers).collect(), swapped }
    }

    fn in_order(order: Vec<usize>) -> Self {
        let place = |answer: usize| order.iter().position(|known| *known == answer);
        let swapped = pairs(order.len()).into_iter().map(|(one, other)| place(one) > place(other)).collect();
        Self { order, swapped }
    }

    /// Returns the letter of an answer.
    pub fn letter(&self, answer: usize) -> char {
        let place = self.order.iter().position(|known| *known == answer).unwrap_or(answer);
        char::from(b'A' + (place % 26) as u8)
    }

    /// Returns the letters of a pair: `A and B`.
    pub fn pair(&self, (one, other): (usize, usize)) -> String {
        let (one, other) = (self.letter(one), self.letter(other));
        format!("{} and {}", one.min(other), one.max(other))
    }

    /// Returns whether this is an order of `answers` answers. The database may contain anything.
    pub fn fits(&self, answers: usize) -> bool {
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..answers) && self.swapped.len() == pairs(answers).len()
    }
}

/// Computes SipHash-1-3 with the key 0, which is the same in every build. The standard library's hasher does not guarantee that.
pub fn stable_hash(write: impl FnOnce(&mut SipHasher13)) -> u64 {
    let mut hasher = SipHasher13::new();
    write(&mut hasher);
    hasher.finish()
}

/// Terminates a text in a hash, so that `ab`, `c` differs from `a`, `bc`.
pub const END: u8 = 0xff;

/// Returns whether versions before 7 showed a pair with its sides swapped.
fn is_swapped(person: &str, number: usize, pair: usize) -> bool {
    let hash = stable_hash(|hasher| {
        hasher.write(person.as_bytes());
        hasher.write_u8(END);
        hasher.write_u64(number as u64);
        hasher.write_u64(pair as u64);
    });
    hash % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sides that earlier versions computed each time.
    #[test]
    fn sides_of_earlier_versions_are_those_that_were_shown() {
        let sides: String =
            (0..32).map(|i| if is_swapped(["ada", "grace"][i % 2], i / 2, i % 3) { '1' } else { '0' }).collect();
        assert_eq!(sides, "10110011111001011111011001100111");
    }

    #[test]
    fn letters_follow_the_order_and_the_first_letter_is_on_the_left() {
        let shown = Shown::in_order(vec![2, 0, 1]);
        assert_eq!((0..3).map(|answer| shown.letter(answer)).collect::<String>(), "BCA");
        assert_eq!(shown.pair((0, 2)), "A and B");
        // Pairs (0, 1), (0, 2), (1, 2): answer 2 is A, so it is on the left of both others.
        assert_eq!(shown.swapped, [false, true, true]);
        assert!(shown.fits(3) && !shown.fits(2) && !Shown { order: vec![0, 0, 1], ..shown }.fits(3));
    }

    #[test]
    fn each_answer_is_first_about_as_often() {
        // 4,000 orders of four answers: each answer is expected first 1,000 times, with a standard deviation of 27.
        let mut first = [0usize; 4];
        for seed in 0..4000 {
            first[Shown::shuffled(4, seed).order[0]] += 1;
        }
        assert!(first.iter().all(|count| (860..1140).contains(count)), "{first:?}");
        let orders: Vec<Shown> = (0..64).map(|_| Shown::random(2)).collect();
        assert!(orders.iter().any(|shown| shown.order[0] == 0) && orders.iter().any(|shown| shown.order[0] == 1));
    }
}

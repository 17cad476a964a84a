//! Random streams: one seed, and one stream per purpose, step and index, passed explicitly.
//!
//! A stream depends only on its key, never on earlier draws. A resumed run therefore draws the same numbers, and rows
//! of a batch may be sampled in any order.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Generator of every stream.
pub type Stream = ChaCha8Rng;

/// Purpose of a stream. The number is part of the key: never reuse or reorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial weights.
    Init = 1,
    /// The order of the rows; `step` is the epoch.
    DataOrder = 2,
    /// Sampling of completions; `step` is the iteration, `index` the rollout.
    Rollout = 3,
    /// The order of rollouts within an update epoch.
    UpdateOrder = 4,
    /// Dropout masks.
    Dropout = 5,
    /// Splitting off a held-out set.
    Split = 6,
    /// Sampling during evaluation.
    Evaluation = 7,
    /// The built-in demonstration's data.
    Demo = 8,
    /// The order of prompts; `step` is the epoch.
    PromptOrder = 9,
    /// Sampling for `gradus generate`.
    Generate = 10,
    /// The tokens of `gradus bench`.
    Bench = 11,
    /// Choice of the held-out rows of an evaluation; `step` counts optimizer steps.
    EvaluationRows = 12,
    /// Choice of rows from additional data; `index` is the source.
    Mix = 13,
    /// Answers of `gradus chat`; `step` is the turn, `index` the attempt.
    Chat = 14,
    /// Choice of training rows if not all are used.
    Rows = 15,
    /// Resamples of prompts for the interval of a metric, drawn by `gradus_metrics` with this number; `index` is the
    /// resample.
    Resample = 16,
    /// Choice of replacement prompts in an iteration; `index` is the round.
    Replacement = 17,
    /// Whether the student samples in a step of distillation.
    OnPolicy = 18,
    /// Noise on the embeddings of a training step.
    EmbeddingNoise = 19,
    /// Points of a sweep; `index` is the point.
    Sweep = 32,
}

/// The seed of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// Returns the stream for `(self, purpose, step, index)`.
    pub fn stream(self, purpose: Purpose, step: u64, index: u64) -> Stream {
        let mut key = [0u8; 32];
        for (slot, word) in key.chunks_exact_mut(8).zip([self.0, purpose as u64, step, index]) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(key)
    }
}

/// Returns the key of a stream: its seed in 64 hexadecimal digits, and its number after a colon unless it is 0.
/// [`stream_of_key`] recreates the same stream, from its beginning.
pub fn key_of(stream: &Stream) -> String {
    let seed: String = stream.get_seed().iter().map(|byte| format!("{byte:02x}")).collect();
    match stream.get_stream() {
        0 => seed,
        number => format!("{seed}:{number}"),
    }
}

/// Returns the stream with the key `text`, or `None` if it is not a key.
pub fn stream_of_key(text: &str) -> Option<Stream> {
    let (text, number) = match text.split_once(':') {
        Some((text, number)) => (text, number.parse::<u64>().ok().filter(|number| *number > 0)?),
        None => (text, 0),
    };
    let digits: Vec<u8> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let key: [u8; 32] = (digits.len() == 64).then(|| bytes.try_into().ok()).flatten()?;
    let mut stream = ChaCha8Rng::from_seed(key);
    stream.set_stream(number);
    Some(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    #[test]
    fn streams_depend_on_every_part_of_the_key_and_on_nothing_else() {
        let draw = |seed: u64, purpose, step, index| Seed(seed).stream(purpose, step, index).random::<u64>();
        let base = draw(1, Purpose::Rollout, 2, 3);
        assert_eq!(base, draw(1, Purpose::Rollout, 2, 3));
        for other in [
            draw(2, Purpose::Rollout, 2, 3),
            draw(1, Purpose::Init, 2, 3),
            draw(1, Purpose::Rollout, 3, 3),
            draw(1, Purpose::Rollout, 2, 4),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_stream_is_made_again_from_its_key() {
        let stream = Seed(u64::MAX - 3).stream(Purpose::Rollout, 5, 1 << 40);
        let key = key_of(&stream);
        let mut again = stream_of_key(&key).expect("a key");
        assert_eq!(again.random::<u64>(), stream.clone().random::<u64>());
        assert_eq!(key_of(&again), key);
        let mut third = stream.clone();
        third.set_stream(3);
        let mut again = stream_of_key(&key_of(&third)).expect("a key");
        assert_eq!(again.random::<u64>(), third.clone().random::<u64>());
        assert_ne!(key_of(&third), key);
        for wrong in [
            &*format!("{key}:"),
            &format!("{key}:0"),
            &format!("{key}:x"),
            &format!("{key}:1:1"),
            "",
            &key[1..],
            &format!("{key}0"),
            &key.replace('0', "g"),
            &"é".repeat(32),
        ] {
            assert!(stream_of_key(wrong).is_none(), "{wrong}");
        }
    }
}

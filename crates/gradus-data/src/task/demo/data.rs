//! Rows of the demonstration: texts for fine-tuning, labeled pairs, and prompts. All of them are functions of the seed.

use std::path::{Path, PathBuf};

use rand::Rng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};

use super::grammar::{Prompt, prompts, review};
use super::rule::judge;
use crate::error::{Error, Result};
use crate::rng::{Purpose, Seed, Stream};

/// Temperature of the labels: a pair whose true scores differ by d is labeled correctly with probability σ(d / temperature).
pub const LABEL_TEMPERATURE: f32 = 0.5;

/// Number of prompts that are held out for evaluation. No training row uses them.
pub const HELD_OUT_PROMPTS: usize = 400;

/// Rows that a random stream is for.
#[derive(Debug, Clone, Copy)]
enum Split {
    Prompts = 0,
    Sft = 1,
    Pairs = 2,
    HeldOutPairs = 3,
    HeldOutSft = 4,
}

/// Number of rows of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Prompts with a neutral review, for fine-tuning.
    pub sft: usize,
    /// Labeled pairs, for the reward model and DPO.
    pub pairs: usize,
    /// Labeled pairs on held-out prompts.
    pub held_out_pairs: usize,
    /// Prompts for online training.
    pub prompts: usize,
    /// Held-out prompts, at most [`HELD_OUT_PROMPTS`].
    pub held_out_prompts: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { sft: 24_000, pairs: 8_000, held_out_pairs: 400, prompts: 2_000, held_out_prompts: 200 }
    }
}

/// Paths of the written rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFiles {
    /// `prompt`, `completion`.
    pub sft: PathBuf,
    /// `prompt`, `completion`, on held-out prompts.
    pub held_out_sft: PathBuf,
    /// `prompt`, `chosen`, `rejected`.
    pub pairs: PathBuf,
    /// `prompt`, `chosen`, `rejected`, on held-out prompts.
    pub held_out_pairs: PathBuf,
    /// `prompt`, `topic`.
    pub prompts: PathBuf,
    /// `prompt`, `topic`, held out.
    pub held_out_prompts: PathBuf,
}

/// Two reviews, the first of which was preferred.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Request for a review.
    pub prompt: Prompt,
    /// Preferred review.
    pub chosen: String,
    /// Other review.
    pub rejected: String,
}

/// Returns the training prompts and the held-out prompts, both in random order.
pub fn split_prompts(seed: Seed) -> (Vec<Prompt>, Vec<Prompt>) {
    let mut held_out = prompts();
    held_out.shuffle(&mut stream(seed, Split::Prompts, 0));
    let training = held_out.split_off(HELD_OUT_PROMPTS);
    (training, held_out)
}

/// Returns pair number `index` of a split: two neutral reviews for one prompt, labeled by the rule with noise.
///
/// P(first preferred) = σ((s₁ − s₂) / [`LABEL_TEMPERATURE`]), the model of Bradley and Terry.
fn pair(from: &[Prompt], seed: Seed, split: Split, index: usize) -> Pair {
    let mut rng = stream(seed, split, index);
    let prompt = from[rng.random_range(0..from.len())].clone();
    let first = review(prompt.topic, &mut rng);
    let second = loop {
        let other = review(prompt.topic, &mut rng);
        if other != first {
            break other;
        }
    };
    let difference = judge(prompt.topic, &first).score() - judge(prompt.topic, &second).score();
    let first_preferred = 1.0 / (1.0 + (-difference / LABEL_TEMPERATURE).exp());
    let (chosen, rejected) = if rng.random::<f32>() < first_preferred { (first, second) } else { (second, first) };
    Pair { prompt, chosen, rejected }
}

/// Returns `count` labeled pairs on training prompts.
pub fn pairs(seed: Seed, count: usize) -> Vec<Pair> {
    let (training, _) = split_prompts(seed);
    (0..count).map(|index| pair(&training, seed, Split::Pairs, index)).collect()
}

/// Returns `count` labeled pairs on held-out prompts.
pub fn held_out_pairs(seed: Seed, count: usize) -> Vec<Pair> {
    let (_, held_out) = split_prompts(seed);
    (0..count).map(|index| pair(&held_out, seed, Split::HeldOutPairs, index)).collect()
}

/// Writes all rows as JSON lines into the existing directory `dir`.
///
/// # Errors
/// If a file cannot be written.
pub fn write_data(dir: &Path, seed: Seed, sizes: &Sizes) -> Result<DataFiles> {
    let write = |(name, text): (&str, String)| -> Result<PathBuf> {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|source| Error::io(&path, source))?;
        Ok(path)
    };
    let [sft, held_out_sft, pairs, held_out_pairs, prompts, held_out_prompts] = contents(seed, sizes).map(write);
    Ok(DataFiles {
        sft: sft?,
        held_out_sft: held_out_sft?,
        pairs: pairs?,
        held_out_pairs: held_out_pairs?,
        prompts: prompts?,
        held_out_prompts: held_out_prompts?,
    })
}

/// Returns the name and the text of each file, in the order of [`DataFiles`].
///
/// Completions begin with a space, because prompt and completion are joined as text.
pub fn contents(seed: Seed, sizes: &Sizes) -> [(&'static str, String); 6] {
    let (training, held_out) = split_prompts(seed);
    let sft_row = |from: &[Prompt], split, index| {
        let mut rng = stream(seed, split, index);
        let prompt = &from[rng.random_range(0..from.len())];
        json!({ "prompt": prompt.text, "completion": format!(" {}", review(prompt.topic, &mut rng)) })
    };
    let pair_row = |Pair { prompt, chosen, rejected }: Pair| json!({ "prompt": prompt.text, "chosen": format!(" {chosen}"), "rejected": format!(" {rejected}") });
    let prompt_row = |prompt: &Prompt| json!({ "prompt": prompt.text, "topic": prompt.topic.name });
    let of_pairs = |pairs: Vec<Pair>| lines(pairs.into_iter().map(pair_row));
    [
        ("sft.jsonl", lines((0..sizes.sft).map(|i| sft_row(&training, Split::Sft, i)))),
        ("sft-heldout.jsonl", lines((0..sizes.held_out_pairs).map(|i| sft_row(&held_out, Split::HeldOutSft, i)))),
        ("pairs.jsonl", of_pairs(pairs(seed, sizes.pairs))),
        ("pairs-heldout.jsonl", of_pairs(held_out_pairs(seed, sizes.held_out_pairs))),
        ("prompts.jsonl", lines(training.iter().take(sizes.prompts).map(prompt_row))),
        ("prompts-heldout.jsonl", lines(held_out.iter().take(sizes.held_out_prompts).map(prompt_row))),
    ]
}

fn lines(rows: impl Iterator<Item = Value>) -> String {
    rows.map(|row| format!("{row}\n")).collect()
}

fn stream(seed: Seed, split: Split, index: usize) -> Stream {
    seed.stream(Purpose::Demo, split as u64, index as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_out_prompts_are_not_trained_on() {
        let (training, held_out) = split_prompts(Seed(3));
        assert_eq!(held_out.len(), HELD_OUT_PROMPTS);
        assert!(training.len() > 2_000);
        assert!(held_out.iter().all(|prompt| !training.contains(prompt)));
    }

    #[test]
    fn labels_agree_with_the_rule_as_often_as_the_noise_says() {
        let pairs = pairs(Seed(4), 4_000);
        let difference = |pair: &Pair| {
            judge(pair.prompt.topic, &pair.chosen).score() - judge(pair.prompt.topic, &pair.rejected).score()
        };
        let differences: Vec<f32> = pairs.iter().map(difference).filter(|difference| *difference != 0.0).collect();
        let count = differences.len() as f32;
        let right = differences.iter().filter(|difference| **difference > 0.0).count() as f32 / count;
        let probability = |difference: &f32| 1.0 / (1.0 + (-difference.abs() / LABEL_TEMPERATURE).exp());
        let expected = differences.iter().map(probability).sum::<f32>() / count;
        // Four standard errors of 4,000 labels: 4 · √(0.9 · 0.1 / 4000) = 0.019.
        assert!((right - expected).abs() < 0.02, "{right} labeled rightly, {expected} expected");
        assert!((0.85..0.95).contains(&expected), "{expected}");
    }

    #[test]
    fn the_same_seed_writes_the_same_files_and_another_seed_does_not() {
        let sizes = Sizes { sft: 20, pairs: 20, held_out_pairs: 5, prompts: 7, held_out_prompts: 3 };
        let texts = |seed| {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let files = write_data(dir.path(), Seed(seed), &sizes).expect("writable");
            [files.sft, files.pairs, files.held_out_pairs, files.prompts, files.held_out_prompts]
                .map(|path| std::fs::read_to_string(path).expect("readable"))
        };
        let first = texts(1);
        assert_eq!(first, texts(1));
        assert_ne!(first, texts(2));
        assert_eq!(first.map(|text| text.lines().count()), [20, 20, 5, 7, 3]);
    }

    #[test]
    fn an_unwritable_directory_is_named() {
        let error = write_data(Path::new("/nowhere"), Seed(1), &Sizes::default()).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/sft.jsonl: "), "{error}");
    }
}

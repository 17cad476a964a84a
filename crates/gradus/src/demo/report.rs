//! What the demonstration shows at the end: the comparison, and what the true rule says of it.

use serde::Serialize;

use crate::run::compare::{Comparison, Entry};
use crate::task::demo::{Measures, Prompt, judge, measure, preference_rate};

/// Prompts shown with the reviews of all policies.
const SAMPLES: usize = 4;

/// What the demonstration found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The share of held-out pairs that the reward model orders as their labels do.
    pub reward_model_accuracy: Option<f64>,
    /// One entry a policy: the fine-tuned model, then those trained from it.
    pub policies: Vec<PolicyReport>,
    /// Reviews of the same prompts, side by side.
    pub samples: Vec<PromptReport>,
    /// The seed.
    pub seed: u64,
    /// Seconds from the first row to the last number.
    pub elapsed_s: f64,
}

/// One policy, measured on held-out prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyReport {
    /// The method.
    pub name: String,
    /// Mean reward by the reward model, which is what PPO and GRPO see.
    pub reward: f64,
    /// How often the true rule prefers its review to the fine-tuned model's; equal ones count half.
    pub true_preference_rate: f64,
    /// Mean true score.
    pub true_score: f64,
    /// Nats by which it has moved away from the fine-tuned model, a review.
    pub kl: f64,
    /// Share of sentences that are in the language.
    pub fluency: f64,
    /// Mean number of words.
    pub words: f64,
    /// Mean number of different parts of the product named, at most two.
    pub specifics: f64,
    /// Share of different reviews: a policy that has collapsed repeats itself.
    pub distinct: f64,
    /// Seconds of training.
    pub train_s: f64,
}

/// One prompt and what each policy writes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptReport {
    /// The request.
    pub prompt: String,
    /// One entry a policy.
    pub reviews: Vec<Review>,
}

/// One review.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Review {
    /// The method of the policy that wrote it.
    pub policy: String,
    /// The text.
    pub text: String,
    /// What the true rule says of it.
    pub true_score: f64,
}

impl Report {
    /// Judges the completions of `comparison`. The times of its first entry, the start, are those of `sft_s`.
    pub(super) fn new(comparison: &Comparison, sft_s: f64, reward_model_accuracy: Option<f64>, seed: u64) -> Self {
        let written: Vec<Written> = comparison.entries.iter().map(|entry| Written::new(entry, sft_s)).collect();
        let baseline = written.first().map(|start| start.texts.clone()).unwrap_or_default();
        let samples = (0..baseline.len().min(SAMPLES)).map(|i| PromptReport {
            prompt: written[0].prompts[i].text.clone(),
            reviews: written.iter().map(|policy| policy.review(i)).collect(),
        });
        Self {
            reward_model_accuracy,
            samples: samples.collect(),
            policies: written.iter().map(|policy| policy.report(&baseline)).collect(),
            seed,
            elapsed_s: 0.0,
        }
    }
}

/// What one policy wrote.
struct Written<'a> {
    name: &'a str,
    entry: &'a Entry,
    prompts: Vec<Prompt>,
    texts: Vec<String>,
    train_s: f64,
}

impl<'a> Written<'a> {
    fn new(entry: &'a Entry, sft_s: f64) -> Self {
        let (name, train_s) = match entry.run {
            Some(_) => (entry.name.as_str(), entry.elapsed_s),
            None => ("sft", sft_s),
        };
        let samples = entry
            .samples
            .iter()
            .filter_map(|sample| Some((Prompt::from_text(&sample.prompt)?, sample.completion.trim().to_owned())));
        let (prompts, texts) = samples.unzip();
        Self { name, entry, prompts, texts, train_s }
    }

    fn report(&self, baseline: &[String]) -> PolicyReport {
        let Measures { true_score, fluency, words, specifics, distinct } = measure(&self.prompts, &self.texts);
        let measured = |name: &str| self.entry.measured.get(name).unwrap_or(f64::NAN);
        PolicyReport {
            name: self.name.into(),
            reward: measured("reward"),
            true_preference_rate: preference_rate(&self.prompts, &self.texts, baseline),
            true_score,
            kl: measured("kl"),
            fluency,
            words,
            specifics,
            distinct,
            train_s: self.train_s,
        }
    }

    fn review(&self, i: usize) -> Review {
        let true_score = f64::from(judge(self.prompts[i].topic, &self.texts[i]).score());
        Review { policy: self.name.into(), text: self.texts[i].clone(), true_score }
    }
}

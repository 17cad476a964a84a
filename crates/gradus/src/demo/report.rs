//! Results of the demonstration: the comparison, and scores by the true rule.

use serde::Serialize;

use crate::comparison::{Comparison, Entry};
use crate::task::demo::{Measures, Prompt, judge, measure, preference_rate};

/// Number of prompts that are shown with the reviews of all policies.
const SAMPLES: usize = 4;

/// Results of the demonstration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Share of held-out pairs that the reward model orders like their labels.
    pub reward_model_accuracy: Option<f64>,
    /// One entry per policy: the fine-tuned model, then those trained from it.
    pub policies: Vec<PolicyReport>,
    /// Reviews of the same prompts by all policies.
    pub samples: Vec<PromptReport>,
    /// Seed of the demonstration.
    pub seed: u64,
    /// Total time in seconds.
    pub elapsed_s: f64,
}

/// One policy, measured on held-out prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyReport {
    /// Name of the method.
    pub name: String,
    /// Mean score of the reward model, on which PPO and GRPO are trained.
    pub reward: f64,
    /// How often the true rule prefers its review to the fine-tuned model's; ties count half.
    pub true_preference_rate: f64,
    /// Mean true score.
    pub true_score: f64,
    /// KL to the fine-tuned model, in nats per review.
    pub kl: f64,
    /// Share of sentences that are in the language.
    pub fluency: f64,
    /// Mean number of words.
    pub words: f64,
    /// Mean number of different parts of the product that a review names, at most two.
    pub specifics: f64,
    /// Share of different reviews. A collapsed policy repeats itself.
    pub distinct: f64,
    /// Duration of the training in seconds.
    pub train_s: f64,
}

/// One prompt with the review of each policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptReport {
    /// Text of the request.
    pub prompt: String,
    /// One entry per policy.
    pub reviews: Vec<Review>,
}

/// One review.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Review {
    /// Method of the policy that wrote it.
    pub policy: String,
    /// The text.
    pub text: String,
    /// Score by the true rule.
    pub true_score: f64,
}

impl Report {
    /// Scores the completions of `comparison`. Its first entry is the start, whose training took `sft_s` seconds.
    pub(super) fn new(comparison: &Comparison, sft_s: f64, reward_model_accuracy: Option<f64>, seed: u64) -> Self {
        let written: Vec<ReportEntry> = comparison.entries.iter().map(|entry| ReportEntry::new(entry, sft_s)).collect();
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

/// The reviews of one policy.
struct ReportEntry<'a> {
    name: &'a str,
    entry: &'a Entry,
    prompts: Vec<Prompt>,
    texts: Vec<String>,
    train_s: f64,
}

impl<'a> ReportEntry<'a> {
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

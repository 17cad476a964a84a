//! The runs of the demonstration, as configuration files for `gradus train`.

use std::path::{Path, PathBuf};

use crate::device::DeviceChoice;
use crate::error::{Error, Result};

/// The runs, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A new model learns the language.
    Sft,
    /// A reward model learns the preference from labeled pairs.
    Reward,
    /// The fine-tuned model learns from the same pairs directly.
    Dpo,
    /// It is trained on its own completions and the reward model's scores, with a critic.
    Ppo,
    /// The same with groups of completions instead of a critic.
    Grpo,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 5] = [Self::Sft, Self::Reward, Self::Dpo, Self::Ppo, Self::Grpo];

    /// Stages that train a policy from the fine-tuned model. Their policies are compared.
    pub const POLICIES: [Self; 3] = [Self::Dpo, Self::Ppo, Self::Grpo];

    /// Returns the method's name, which also names the file, the run directory and the row in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sft => "sft",
            Self::Reward => "reward",
            Self::Dpo => "dpo",
            Self::Ppo => "ppo",
            Self::Grpo => "grpo",
        }
    }
}

/// Amount of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// A few minutes on two cores.
    Full,
    /// About a quarter of that: still a clear improvement.
    Quick,
}

/// The directory of the demonstration, with the paths in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Path of the directory.
    pub root: PathBuf,
}

impl Layout {
    /// Returns the directory of generated rows.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Returns the directory of the model before training.
    pub fn start(&self) -> PathBuf {
        self.root.join("start")
    }

    /// Returns the path of a stage's configuration file.
    pub fn recipe(&self, stage: Stage) -> PathBuf {
        self.root.join(format!("{}.yml", stage.name()))
    }

    /// Returns the run directory of a stage.
    pub fn run(&self, stage: Stage) -> PathBuf {
        self.root.join(stage.name())
    }

    /// Returns the directory of a stage's trained model.
    pub fn model(&self, stage: Stage) -> PathBuf {
        self.run(stage).join("model")
    }
}

/// Text in every configuration file, which identifies a demonstration.
const AGAIN: &str = "# Again: gradus train ";

/// Whether the directory contains a demonstration, according to its first configuration file.
pub fn is_written(layout: &Layout) -> bool {
    std::fs::read_to_string(layout.recipe(Stage::Sft)).is_ok_and(|text| text.contains(AGAIN))
}

/// Writes the configuration file of `stage`.
///
/// # Errors
/// If it cannot be written.
pub fn write(layout: &Layout, stage: Stage, budget: Budget, seed_and_device: (u64, &DeviceChoice)) -> Result<PathBuf> {
    let path = layout.recipe(stage);
    std::fs::write(&path, text(layout, stage, budget, seed_and_device)).map_err(|source| Error::io(&path, source))?;
    Ok(path)
}

/// Returns the text of `stage`'s configuration file.
pub fn text(layout: &Layout, stage: Stage, budget: Budget, (seed, device): (u64, &DeviceChoice)) -> String {
    let steps = steps(stage, budget);
    let data = layout.data();
    let [sft, reward] = [Stage::Sft, Stage::Reward].map(|stage| quoted(&layout.model(stage)));
    let rows = |name: &str| quoted(&data.join(name));
    let (header, body) = match stage {
        Stage::Sft => (
            "A model with random weights is trained on the reviews.",
            format!(
                "model: {start}\ndata: {train}\neval_data: {held_out}\n\
                 method: {{ sft: {{}} }}\n\
                 train: {{ max_steps: {steps}, batch_size: 64, learning_rate: 4e-3, lr_schedule: cosine, \
                 warmup_steps: 20, {shared} }}\n",
                start = quoted(&layout.start()),
                train = rows("sft.jsonl"),
                held_out = rows("sft-heldout.jsonl"),
                shared = shared(seed, device),
            ),
        ),
        Stage::Reward => (
            "A reward model is trained on pairs of a preferred and a rejected review.",
            format!(
                "model: {sft}\ndata: {train}\neval_data: {held_out}\n\
                 method: {{ reward: {{ center_rewards_coefficient: 0.01 }} }}\n\
                 train: {{ max_steps: {steps}, batch_size: 32, learning_rate: 1e-3, lr_schedule: cosine, \
                 warmup_steps: 10, {shared} }}\n",
                train = rows("pairs.jsonl"),
                held_out = rows("pairs-heldout.jsonl"),
                shared = shared(seed, device),
            ),
        ),
        Stage::Dpo => (
            "The fine-tuned model is trained on the pairs directly.",
            format!(
                "model: {sft}\ndata: {train}\neval_data: {held_out}\n\
                 method: {{ dpo: {{ beta: 0.3 }} }}\n\
                 train: {{ max_steps: {steps}, batch_size: 32, learning_rate: 2e-4, warmup_steps: 10, {shared} }}\n",
                train = rows("pairs.jsonl"),
                held_out = rows("pairs-heldout.jsonl"),
                shared = shared(seed, device),
            ),
        ),
        Stage::Ppo => (
            "The fine-tuned model writes reviews, and is trained on the rewards that the reward model gives them.",
            format!(
                "model: {sft}\ndata: {train}\neval_data: {held_out}\n\
                 reward: {{ model: {reward} }}\n\
                 method:\n  ppo: {{ max_new_tokens: 24, temperature: 1.0, update_epochs: 2, mini_batches: 2, \
                 missing_eos_penalty: 1.0, kl: {{ coefficient: 0.1 }} }}\n\
                 train: {{ max_steps: {steps}, batch_size: 64, learning_rate: 5e-4, {shared} }}\n",
                train = rows("prompts.jsonl"),
                held_out = rows("prompts-heldout.jsonl"),
                shared = shared(seed, device),
            ),
        ),
        Stage::Grpo => (
            "The same, but each review is compared with seven others on the same prompt, and there is no critic.",
            format!(
                "model: {sft}\ndata: {train}\neval_data: {held_out}\n\
                 reward: {{ model: {reward} }}\n\
                 method:\n  grpo: {{ group_size: 8, max_new_tokens: 24, update_epochs: 2, mini_batches: 2, \
                 kl_coefficient: 0.3 }}\n\
                 train: {{ max_steps: {steps}, batch_size: 8, learning_rate: 5e-4, {shared} }}\n",
                train = rows("prompts.jsonl"),
                held_out = rows("prompts-heldout.jsonl"),
                shared = shared(seed, device),
            ),
        ),
    };
    format!(
        "# {header}\n{AGAIN}{} --overwrite\n{body}output_dir: {}\n",
        path(layout, stage),
        quoted(&layout.run(stage))
    )
}

fn path(layout: &Layout, stage: Stage) -> String {
    layout.recipe(stage).display().to_string()
}

fn shared(seed: u64, device: &DeviceChoice) -> String {
    let device = if *device == DeviceChoice::cpu() { String::new() } else { format!(", device: {device}") };
    format!("max_length: 64, max_eval_rows: 200, logging_steps: 5, seed: {seed}{device}")
}

fn steps(stage: Stage, budget: Budget) -> usize {
    let (full, quick) = match stage {
        Stage::Sft => (700, 300),
        Stage::Reward => (300, 120),
        Stage::Dpo => (250, 100),
        Stage::Ppo => (80, 20),
        Stage::Grpo => (80, 25),
    };
    match budget {
        Budget::Full => full,
        Budget::Quick => quick,
    }
}

/// Returns a path as YAML, which accepts JSON strings.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.display().to_string()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;

    #[test]
    fn every_recipe_is_a_configuration() {
        let layout = Layout { root: "demo \"quoted\"".into() };
        for stage in Stage::ALL {
            for budget in [Budget::Full, Budget::Quick] {
                let text = text(&layout, stage, budget, (7, &DeviceChoice::cpu()));
                let written = RunConfig::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                assert_eq!(written.config.train.seed, 7);
                assert_eq!(written.config.method.name(), stage.name());
                assert_eq!(written.config.output_dir, Some(layout.run(stage)));
            }
        }
    }
}

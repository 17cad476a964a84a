//! What a finished model is used for: sampling completions, scoring given rows, measuring on a data set.

mod evaluate;
mod sample;
mod score;

pub use evaluate::{EvalOptions, Evaluation, evaluate};
pub use sample::{SampleOptions, Sampled, sample};
pub use score::{LogprobRow, RewardRow, ScoreOptions, logprobs, rewards};

use std::path::Path;

use crate::Result;
use crate::model::ModelDir;
use crate::text::{ChatTemplate, Tokenizer};
use crate::train::batches::MicroBatch;
use crate::train::prepare::open_model;

/// Tokens of one forward pass.
const PASSES: MicroBatch = MicroBatch { tokens: 4096, rows: None };

/// A model's directory with what turns text into ids.
struct Files {
    dir: ModelDir,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Files {
    /// Opens the directory `name`; `template` replaces its chat template.
    fn open(name: &str, template: Option<&Path>) -> Result<Self> {
        let dir = open_model(name)?;
        let tokenizer = Tokenizer::from_dir(&dir.path)?;
        dir.check_vocabulary(tokenizer.vocab_size())?;
        let template = match template {
            Some(file) => Some(ChatTemplate::from_file(file, &tokenizer)?),
            None => ChatTemplate::from_dir(&dir.path, &tokenizer)?,
        };
        Ok(Self { dir, tokenizer, template })
    }

    /// The ids that end a completion.
    fn stop_ids(&self) -> Vec<u32> {
        let mut ids = self.dir.eos_ids();
        ids.extend(self.tokenizer.eos_id().filter(|id| !ids.contains(id)));
        ids
    }
}

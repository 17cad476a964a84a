//! What a finished model is used for: sampling completions, scoring given rows, measuring on a data set.

mod score;

pub use score::{LogprobRow, RewardRow, ScoreOptions, logprobs, rewards};

use std::path::Path;

use crate::Result;
use crate::model::{ModelDir, resolve};
use crate::text::{ChatTemplate, Tokenizer};
use crate::train::batches::MicroBatch;

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
        let dir = ModelDir::open(&resolve(name, &mut |_, _, _| {})?)?;
        let tokenizer = Tokenizer::from_dir(&dir.path)?;
        let template = match template {
            Some(file) => Some(ChatTemplate::from_file(file, &tokenizer)?),
            None => ChatTemplate::from_dir(&dir.path, &tokenizer)?,
        };
        Ok(Self { dir, tokenizer, template })
    }
}

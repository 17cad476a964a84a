//! What a finished model is used for: sampling completions, talking, scoring given rows, measuring on a data set,
//! quantising.

mod chat;
mod evaluate;
mod merge;
mod quantize;
mod sample;
mod score;

pub use chat::{Answer, AnswerEnd, ChatFormat, ChatJudge, ChatModel, ChatOptions, ChatSettings, Flow};
pub use evaluate::{EvalOptions, Evaluation, evaluate};
pub use merge::{MergeOptions, Merged, merge};
pub use quantize::{PolicyQuality, QuantizeOptions, QuantizeReport, REPORT_FILE, RewardQuality, Side, quantize};
pub use sample::{SampleOptions, Sampled, sample};
pub use score::{LogprobRow, RewardRow, ScoreOptions, logprobs, rewards};

use std::path::Path;

use crate::Result;
use crate::model::{ModelDir, resolve};
use crate::text::{ChatTemplate, Tokenizer};
use crate::train::batches::MicroBatch;
use crate::train::prepare::{open_model, stop_ids};

/// Tokens of one forward pass.
const PASSES: MicroBatch = MicroBatch { tokens: 4096, rows: None };

/// The directory of the model `name`, with `adapter` on it.
fn open(name: &str, adapter: Option<&str>) -> Result<ModelDir> {
    let dir = open_model(name)?;
    match adapter {
        Some(adapter) => dir.with_adapter(&resolve(adapter, &mut |_, _, _| {})?),
        None => Ok(dir),
    }
}

/// A model's directory with what turns text into ids.
struct Files {
    dir: ModelDir,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Files {
    /// Opens the directory `name`, with `adapter` on it; `template` replaces its chat template.
    fn open(name: &str, adapter: Option<&str>, template: Option<&Path>) -> Result<Self> {
        let dir = open(name, adapter)?;
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
        stop_ids(&self.dir, &self.tokenizer)
    }
}

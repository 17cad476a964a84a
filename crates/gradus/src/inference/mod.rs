//! Uses of a finished model: sampling, chat, scoring of given rows, evaluation on a data set, quantization, export.

mod chat;
mod classes;
mod evaluate;
mod export;
mod means;
mod merge;
mod metrics;
mod quantize;
mod sample;
mod score;

pub use crate::model::model_of;
pub use chat::{
    Answer, AnswerEnd, Base, ChatFormat, ChatJudge, ChatModel, ChatOptions, ChatSettings, CompletionRequest, Flow,
    JudgedPart, Piece, Prompter, SegmentsJudge, Session, TemplateInputs, TokenScore, score_text,
};
pub use classes::{ClassRow, ClassesOptions, PerScope, classes};
pub use evaluate::{EvalOptions, Measured, Prediction, evaluate};
pub use export::{ExportOptions, Exported, GgufWeights, export};
pub use merge::{MergeOptions, Merged, merge};
pub use metrics::{MetricOptions, MetricReport, MetricValue, measure};
pub use quantize::{ModelCost, PolicyQuality, QuantizeOptions, QuantizeReport, REPORT_FILE, RewardQuality, quantize};
pub use sample::{Prompts, SampleOptions, Sampled, sample};
pub use score::{LogprobRow, RewardRow, ScoreOptions, Scored, logprobs, rewards};

use crate::Result;
use crate::batches::MicroBatch;
use crate::data::TokenizeOptions;
use crate::model::{ModelDir, open_model, resolve};
use crate::pretrained::{Pretrained, TextFiles};

/// Size of a forward pass.
const PASSES: MicroBatch = MicroBatch::new(4096, None);

/// Opens the model `name` with `adapter` on it. Both may be run directories.
fn open(name: &str, adapter: Option<&str>) -> Result<ModelDir> {
    let dir = open_model(name)?;
    match adapter {
        Some(adapter) => dir.with_adapter(&resolve(adapter, &mut |_, _, _| {})?),
        None => Ok(dir),
    }
}

/// Opens the model `name` with `adapter` on it, and its tokenizer. The files of `text` replace its own.
fn open_files(name: &str, adapter: Option<&str>, text: &TextFiles) -> Result<Pretrained> {
    Pretrained::of(open(name, adapter)?, text)
}

/// Returns tokenization options for the model in `files`. With an encoder, prompt and completion are separate.
fn tokenize(files: &Pretrained) -> Result<TokenizeOptions> {
    Ok(TokenizeOptions { encoder_reads_prompt: files.dir.has_encoder()?, ..TokenizeOptions::default() })
}

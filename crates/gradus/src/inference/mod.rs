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
    JudgedPart, Piece, PromptError, Prompter, SegmentsJudge, Session, TemplateInputs, TokenScore, score_text,
};
pub use classes::{ClassRow, ClassesOptions, PerScope, classes};
pub use evaluate::{EvalKind, EvalOptions, EvalResult, ModelEvaluation, Prediction, evaluate};
pub use export::{ExportOptions, Exported, GgufWeights, export};
pub use merge::{MergeOptions, Merged, merge};
pub use metrics::{MetricOptions, MetricReport, MetricValue, measure};
pub use quantize::{ModelCost, PolicyQuality, QuantizeOptions, QuantizeReport, REPORT_FILE, RewardQuality, quantize};
pub use sample::{Prompts, SampleOptions, Sampled, sample};
pub use score::{LogprobRow, RewardRow, ScoreOptions, Scored, logprobs, rewards};

use crate::batches::MicroBatch;
use crate::data::{RowLocation, TokenizeOptions};
use crate::error::{Error, Result};
use crate::model::{ClassifierColumns, ModelDir, PositionBudget, open_model, resolve};
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

/// Adds to an error about a missing column which flags name the columns that a classifier reads. `recorded` are those of its training.
fn naming_columns(error: Error, flags: &str, recorded: &ClassifierColumns) -> Error {
    if !error.to_string().contains("missing column") {
        return error;
    }
    let own = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
    let trained = match (&recorded.text, &recorded.pair) {
        (None, None) => String::new(),
        (text, pair) => {
            let named = [("--text", text), ("--pair", pair)];
            let named: Vec<String> =
                named.iter().filter_map(|(flag, text)| Some(format!("`{flag} '{}'`", text.as_ref()?))).collect();
            format!(" (it was trained with {})", named.join(" and "))
        }
    };
    error.with_hint(format!("{flags} name the columns that the classifier reads{trained}{own}"))
}

/// Rejects a row with texts of `prompt` and `new` tokens that have no room in the model. `way_out` completes the hint, given the
/// number of tokens that fit.
fn check_room(
    location: &RowLocation,
    (prompt, new): (usize, usize),
    room: PositionBudget,
    way_out: &dyn Fn(usize) -> String,
) -> Result<()> {
    if room.holds(prompt, new) {
        return Ok(());
    }
    let limit = room.after(0).unwrap_or_default();
    let message = match room.reads_separately() {
        false => format!("the row has {} tokens, but the model has {limit} positions", prompt + new),
        true => format!(
            "the row has {prompt} tokens in its prompt and {new} in its completion, but the decoder has room for {limit} \
             and the encoder for {}",
            room.too_long(0) - 1
        ),
    };
    Err(location.error(message).with_hint(way_out(limit)))
}

/// Returns tokenization options for the model in `files`. With an encoder, prompt and completion are separate.
fn tokenize(files: &Pretrained) -> Result<TokenizeOptions> {
    Ok(TokenizeOptions { encoder_reads_prompt: files.dir.has_encoder()?, ..TokenizeOptions::default() })
}

//! Data sets: from a file, directory or hub name to typed rows, and from rows to training examples.
//!
//! [`load`] reads and recognizes rows; [`sft_examples`], [`preference_examples`], [`reward_examples`] and [`prompts`] tokenize them
//! as TRL 1.16 does. Every row stores its file and line, and every row that is left out is counted.

mod array;
pub mod arrow;
mod arrow_value;
mod classifier_input;
mod convert;
mod dataset_card;
mod delimited;
mod documents;
mod encode;
mod encoder_decoder;
mod example;
pub mod feedback;
mod filter;
mod foreign;
mod grounded;
mod hub_rows;
mod implicit;
mod json;
mod labeled;
mod labels_of_rows;
mod lint;
mod load;
mod message;
mod options;
mod pack;
mod parquet;
mod prepare;
mod profile;
mod prompt_split;
mod raw;
mod reader;
mod recognize;
mod references;
mod report;
mod row;
mod row_location;
mod row_tokenizer;
mod saved;
mod shape;
mod source;
mod split;
mod splits;
mod stats;
mod template_columns;
mod tokenize;
mod toxicity;
mod transcript;
mod unpaired;
mod words;
mod write;
mod write_arrow;
mod write_parquet;

pub use classifier_input::{ClassifierInput, Side, TextForm, classifier_input, column_text};
pub use convert::{Form, Target, convert};
pub use example::{
    Counts, Examples, PreferenceExample, Prompt, ReferenceRule, SftExample, TokenizeOptions, TooLong, UnpairedExample,
};
pub use filter::{Dropped, RowFilter, answers, has_equal_answers, is_tie};
pub use grounded::{Passage, policy_prompt, reward_prompt};
pub use implicit::{ImplicitPrompt, split_shared_prompt};
pub use labeled::{Gold, LabelCounts, LabelForm, LabelKind, LabeledExample, labeled_examples};
pub use labels_of_rows::LabelTotals;
pub use lint::{Finding, FindingGroup, FindingKind, lint, lint_join};
pub use load::{Dataset, check_renames, first_row, load, parse_rename, rename};
pub use message::Message;
pub use options::{BadRows, LoadOptions, Need};
pub use pack::wrapped;
pub use profile::{Lengths, Opening, PairProfile, Profile, RowExamples, SHORT, profile};
pub use prompt_split::with_prompt_split;
pub use raw::RawRow;
pub use reader::{Format, Rows, lines, open};
pub use recognize::recognize;
pub use references::{reference_column, references};
pub use report::left_out;
pub use report::{RowErrors, SkippedRow};
pub use row::{Content, Labels, Request, Row, RowData, RowKind};
pub use row_location::RowLocation;
pub use source::{resolve, resolve_split, text_files};
pub use split::{HeldOut, SplitBy, shares, split};
pub use splits::Source;
pub use stats::{Field, Histogram, Quantiles, Stats, TokenStats, measure, parts};
pub use template_columns::TemplateColumns;
pub use tokenize::{
    TrainedSequence, preference_examples, prompts, reward_examples, score_examples, sft_examples, trained_sequences,
    unpaired_examples,
};
pub use toxicity::read as read_scored;
pub use unpaired::unpaired;
pub use words::LabeledWords;
pub use write::{stage_rows, write_rows};

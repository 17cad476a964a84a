//! Data: from a file, directory or hub name to typed rows, and from rows to training examples.
//!
//! [`load`] reads and recognises rows; [`sft_examples`], [`preference_examples`], [`reward_examples`] and [`prompts`]
//! tokenise them as TRL 1.16 does. Every row knows its file and line, and nothing is dropped without being counted.

mod answered;
mod apart;
mod array;
pub mod arrow;
mod arrow_value;
mod classified;
mod convert;
mod delimited;
mod documents;
mod encode;
mod example;
pub mod feedback;
mod filter;
mod foreign;
mod grounded;
mod hub;
mod implicit;
mod json;
mod labelled;
mod lint;
mod load;
mod maker;
mod message;
mod pack;
mod parquet;
mod place;
mod profile;
mod reader;
mod reading;
mod recognise;
mod references;
mod report;
mod row;
mod saved;
mod shape;
mod source;
mod split;
mod stats;
mod tokenise;
mod toxicity;
mod transcript;
mod unpaired;
mod words;
mod write;
mod write_arrow;
mod write_parquet;

pub use answered::answered;
pub use classified::{Classified, Side, TextForm, classified, column_text};
pub use convert::{Form, Target, convert};
pub use example::{Counts, Examples, PreferenceExample, Prompt, SftExample, TokeniseOptions, TooLong, UnpairedExample};
pub use filter::{Dropped, RowFilter, answers, has_equal_answers, is_tie};
pub use grounded::{Passage, policy_prompt, reward_prompt};
pub use implicit::{ImplicitPrompt, split_shared_prompt};
pub use labelled::{Gold, LabelCounts, LabelForm, LabelKind, LabelledExample, labelled_examples};
pub use lint::{Finding, FindingGroup, FindingKind, lint, lint_join};
pub use load::{BadRows, Dataset, LoadOptions, load, parse_rename};
pub use message::Message;
pub use pack::wrapped;
pub use place::Place;
pub use profile::{Lengths, Noted, Opening, PairProfile, Profile, SHORT, profile};
pub use reader::{Format, RawRow, Rows, lines, open};
pub use recognise::{Need, recognise};
pub use references::{reference_texts, references};
pub use report::{RowErrors, SkippedRow};
pub use row::{Asked, Content, Labels, Row, RowData, RowKind};
pub use source::{Source, resolve, resolve_split, text_files};
pub use split::{HeldOut, SplitBy, split};
pub use stats::{Field, Histogram, Quantiles, Stats, TokenStats, measure, parts};
pub use tokenise::{
    Trained, as_trained, preference_examples, prompts, reward_examples, score_examples, sft_examples, unpaired_examples,
};
pub(crate) use toxicity::read as read_scored;
pub use unpaired::unpaired;
pub use words::{LabelTally, LabelledWords};
pub use write::{stage_rows, write_rows};

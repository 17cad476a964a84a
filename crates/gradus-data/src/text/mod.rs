//! Text processing: tokenizer, chat templates, stop strings, byte ranges of ids, and segments of texts.
//!
//! This module does not depend on rows, models or rewards.

mod byt5;
pub mod chat_template;
mod convention;
mod named_templates;
mod overlap;
mod pattern;
mod python;
mod ranges;
pub mod render;
mod segments;
mod sentencepiece;
mod sentences;
mod stop_strings;
mod strftime;
pub mod tokenizer;
mod tokenizer_bounds;

pub use chat_template::{ChatTemplate, RenderOptions, Rendered, Request};
pub use gradus_core::visible::{visible, visible_line};
pub use gradus_environments::think;
pub use named_templates::{NAMED_TEMPLATES, NamedTemplate};
pub use overlap::match_score;
pub use pattern::Pattern;
pub use ranges::{continuation, ranges};
pub use segments::{Level, part_starts, segments};
pub use sentences::{RuleSplitter, SentenceSplitter, word_ranges};
pub use stop_strings::{StopStrings, certain, cut_at_stop};
pub use think::without_thoughts;
pub use tokenizer::{Cut, Joined, Tokenizer};

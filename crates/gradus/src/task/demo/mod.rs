//! The built-in demonstration: a little language of product reviews, generated here, with a known preference.
//!
//! ```text
//! prompt      write a review of the small red kettle :
//! completion  the spout is very sturdy and it feels lovely . it arrived on monday .
//! ```
//!
//! [`words`] has the vocabulary with the meaning of each word, [`grammar`] the sentences, [`parse`] the way back,
//! [`rule`] what a good review is, [`data`] the rows for training, [`tokenizer`] the files of a model of this language,
//! [`evaluate`] what a policy has learned.
//! Because the rule is known, the share of completions that it truly prefers can be computed: a reward model only
//! learns the rule from noisy comparisons, and a policy only from the reward model.
//! Everything is a function of the seed.

pub mod data;
pub mod evaluate;
pub mod grammar;
pub mod parse;
pub mod rule;
pub mod tokenizer;
pub mod words;

pub use data::{Sizes, write_data};
pub use evaluate::{Measures, measure, preference_rate};
pub use grammar::Prompt;
pub use rule::{Judgement, judge};

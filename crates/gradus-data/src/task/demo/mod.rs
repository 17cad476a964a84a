//! The built-in demonstration: a small language of product reviews, generated here, with a known preference.
//!
//! ```text
//! prompt      write a review of the small red kettle :
//! completion  the spout is very sturdy and it feels lovely . it arrived on monday .
//! ```
//!
//! [`words`] has the vocabulary and the meaning of each word, [`grammar`] generates sentences, and [`parse`] reads them. [`rule`]
//! scores a review, [`data`] makes the rows for training, [`tokenizer`] makes the files of a model of this language, and
//! [`evaluate`] measures a policy.
//!
//! Because the rule is known, the true win rate of completions can be computed. A reward model sees the rule only through noisy
//! comparisons, and a policy sees it only through the reward model. Everything is a function of the seed.

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

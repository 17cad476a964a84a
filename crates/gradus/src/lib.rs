//! gradus trains language models from human feedback: supervised fine-tuning, reward models, DPO, PPO and GRPO, with
//! sampling and training in one engine.
//!
//! The library prints nothing and parses no arguments; the binary does. It makes HTTP requests to the model hub, and to
//! servers, judges and services named in the configuration.
//!
//! [`Training`] starts a run. It has the settings of the command line and writes the same run directory. DPO on pairs of
//! the program:
//!
//! ```no_run
//! use gradus::Training;
//! use serde_json::json;
//!
//! # fn main() -> gradus::Result<()> {
//! let row = |prompt: &str, chosen: &str, rejected: &str| {
//!     json!({ "prompt": prompt, "chosen": chosen, "rejected": rejected })
//! };
//! let outcome = Training::dpo("Qwen/Qwen3-0.6B")
//!     .rows([row("What is 2 + 2?", "4", "22"), row("What is 3 + 3?", "6", "33")])
//!     .eval_rows([row("What is 4 + 4?", "8", "44")])
//!     .learning_rate(5e-6)
//!     .batch_size(2)
//!     .max_steps(100)
//!     .set("beta", 0.1)
//!     .set("lora_rank", 16)
//!     .run()?;
//! let accuracy = &outcome.results["after"]["eval_rewards/accuracies"];
//! println!("{} has the accuracy {accuracy} on the held-out rows", outcome.model.display());
//! # Ok(())
//! # }
//! ```
//!
//! GRPO with a closure as reward. The prompt has the columns of its row:
//!
//! ```no_run
//! use gradus::Training;
//!
//! # fn main() -> gradus::Result<()> {
//! let outcome = Training::grpo("Qwen/Qwen3-0.6B")
//!     .data("sums.jsonl") // {"prompt": "12 + 30 =", "answer": "42"}
//!     .reward(|prompt, rollout| {
//!         let Some(answer) = prompt.columns["answer"].as_str() else { return Ok(None) };
//!         Ok(Some(if rollout.completion.trim() == answer { 1.0 } else { 0.0 }))
//!     })
//!     .set("group_size", 8)
//!     .set("max_new_tokens", 32)
//!     .max_steps(200)
//!     .run()?;
//! println!("the run is in {}", outcome.directory.display());
//! # Ok(())
//! # }
//! ```
//!
//! [`Trainer`](trainer::Trainer) has the primitives for training loops of your own, and
//! [`Registry`](config::Registry) adds rewards, metrics, tasks, environments and methods that configurations can name.

#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read the environment"))]

pub mod algorithm;
#[doc(hidden)]
pub mod bench;
pub mod compare;
pub mod config;
pub mod create;
#[doc(hidden)]
pub mod demo;
pub mod evaluation;
pub mod inference;
pub mod method;
pub mod metric_models;
pub mod objective;
pub mod observer;
pub mod pretrained;
pub mod reports;
pub mod reward;
pub mod rollout;
pub mod settings;
#[cfg(test)]
mod test_support;
pub mod train;
pub mod trainer;
pub mod training;

/// Errors, random streams, files, ranks and run directories.
#[doc(inline)]
pub use gradus_core::{error, files, hub, math, process, progress, ranks, rng, run, runs, service, stats, sweep};
// For the command line and the web application.
#[doc(hidden)]
pub use gradus_core::{search, shell, suggest};
/// Text, rows, tasks and metrics.
#[doc(inline)]
pub use gradus_data::{data, metric, plugin, task, text, toxicity};
/// Models, generation, losses and optimizers.
#[doc(inline)]
pub use gradus_model::{batches, device, generate, learner, loss, machine, memory, model, optimizer_state, threads};
#[doc(hidden)]
pub use gradus_reports::{calendar, html};
/// Charts, pages, comparisons, model cards and files for trackers.
#[doc(inline)]
pub use gradus_reports::{card, comparison, page, plots, run_report, trackers};

pub use error::{Error, Result};
use gradus_model::{host, readings};
pub use training::Training;

/// The tensor library. Its types are part of this crate's interface, so programs need the same version.
pub use burn;

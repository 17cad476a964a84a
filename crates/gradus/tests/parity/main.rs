//! Agreement with other implementations: TRL 1.16, transformers 5.23 and other programs that `tools/parity` runs.
//!
//! Each module reads one folder of `tests/fixtures/parity`; the `meta` key of a fixture names versions, script and seed.
//! Losses agree within 1e-6, their gradients within 1e-5.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod adapters;
mod advantages;
mod chat_templates;
mod classify;
#[path = "../device/mod.rs"]
mod device;
mod encoders;
mod episodes;
mod fixture;
mod head;
mod losses_of_pairs;
mod losses_of_tokens;
mod models;
mod optimizer;
mod rows;
mod sampling;
mod seq2seq;
#[path = "../support/mod.rs"]
mod support;
mod tensors;
mod tool_calls;
mod trackers;
mod trainer;
mod trajectories;

#[test]
fn without_kernels_all_of_this_holds_too() {
    device::without_kernels(64);
}

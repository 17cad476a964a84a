//! Agreement with other implementations: TRL 1.16, transformers 5.23 and what else `tools/parity` runs.
//!
//! Each module reads one folder of `tests/fixtures/parity`; the `meta` key of a fixture names versions, script and seed.
//! Tolerances are those of DESIGN.md, section 4: losses 1e-6, their gradients 1e-5.

mod advantages;
mod chat_templates;
#[path = "../device/mod.rs"]
mod device;
mod fixture;
mod head;
mod losses_of_pairs;
mod losses_of_tokens;
mod optimizer;
mod rows;
mod sampling;
mod trackers;

#[test]
fn without_kernels_all_of_this_holds_too() {
    device::without_kernels(20);
}

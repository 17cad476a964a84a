//! Where the tests of a binary compute, and all of them once more without kernels.
//!
//! `GRADUS_TEST_DEVICE=gpu` (any name that `--device` takes) has them compute there instead of on the processor:
//! `tools/wgpu/run` does, on a driver that needs no GPU.

#![allow(dead_code, reason = "no binary needs all of it")]

use std::process::Command;

use burn::tensor::Device;
use gradus::device::DeviceChoice;

use crate::support::skipped;

/// Another device's sums run in another order, and its exponentials and roots are those of its shader language: how many
/// times farther off than the kernels it may be.
const ELSEWHERE: f64 = 10.0;

/// The variable that says where to compute.
const DEVICE: &str = "GRADUS_TEST_DEVICE";

/// The variable that turns kernels off.
const KERNELS: &str = "GRADUS_KERNELS";

/// The device by its name.
pub fn choice() -> DeviceChoice {
    match std::env::var(DEVICE) {
        Ok(name) => DeviceChoice::named(&name).unwrap_or_else(|error| panic!("{DEVICE}: {error}")),
        Err(_) => DeviceChoice::cpu(),
    }
}

/// Where to compute.
pub fn device() -> Device {
    choice().device()
}

/// What tolerances are multiplied by.
pub fn slack() -> f64 {
    if choice() == DeviceChoice::cpu() { 1.0 } else { ELSEWHERE }
}

/// Whether this process computes with kernels. Otherwise `what`, which only they do, is left out, and said to be.
pub fn has_kernels(what: &str) -> bool {
    let has = choice().has_kernels();
    if !has {
        skipped("kernels", what);
    }
    has
}

/// Runs all tests of this binary again in a process without kernels, where at least `least` must pass.
pub fn without_kernels(least: usize) {
    if std::env::var_os(DEVICE).is_some() || std::env::var_os(KERNELS).is_some() {
        return;
    }
    let itself = std::env::current_exe().expect("a test binary");
    let run = Command::new(itself).args(["--skip", "without_kernels"]).env(KERNELS, "off").output();
    let run = run.expect("the binary starts once more");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "without kernels:\n{said}\n{}", String::from_utf8_lossy(&run.stderr));
    let passed = said.split_once("test result: ok. ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(passed.is_some_and(|passed: usize| passed >= least), "without kernels, of at least {least} tests:\n{said}");
}

#[test]
fn there_are_kernels_where_there_should_be() {
    let is_off = std::env::var_os(KERNELS).is_some_and(|it| it == "off");
    assert_eq!(choice().has_kernels(), choice() == DeviceChoice::cpu() && !is_off);
}

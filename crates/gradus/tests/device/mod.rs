//! The device on which the tests of a binary compute, and a second run of all of them without kernels.
//!
//! `GRADUS_TEST_DEVICE=gpu` (any name that `--device` accepts) selects another device than the CPU. `tools/wgpu/run`
//! uses it with a driver that needs no GPU.

#![allow(dead_code, reason = "no binary needs all of it")]

use std::process::Command;

use burn::tensor::Device;
use gradus::device::DeviceChoice;

use crate::support::skipped;

/// Factor by which the tolerances grow on other devices. Their sums have another order, and their exponentials and
/// roots come from their shader language.
const ELSEWHERE: f64 = 10.0;

/// Environment variable that selects the device.
const DEVICE: &str = "GRADUS_TEST_DEVICE";

/// Environment variable that turns kernels off.
const KERNELS: &str = "GRADUS_KERNELS";

/// Returns the selected device.
pub fn choice() -> DeviceChoice {
    match std::env::var(DEVICE) {
        Ok(name) => DeviceChoice::named(&name).unwrap_or_else(|error| panic!("{DEVICE}: {error}")),
        Err(_) => DeviceChoice::cpu(),
    }
}

/// Returns the device to compute on.
pub fn device() -> Device {
    choice().device()
}

/// Returns the factor of all tolerances.
pub fn slack() -> f64 {
    if choice() == DeviceChoice::cpu() { 1.0 } else { ELSEWHERE }
}

/// Whether this process computes with kernels. If not, reports that the test `what`, which needs them, is skipped.
pub fn has_kernels(what: &str) -> bool {
    let has = choice().has_kernels();
    if !has {
        skipped("kernels", what);
    }
    has
}

/// Runs all tests of this binary again in a process without kernels; at least `least` must pass.
pub fn without_kernels(least: usize) {
    if std::env::var_os(DEVICE).is_some() || std::env::var_os(KERNELS).is_some() {
        return;
    }
    let itself = std::env::current_exe().expect("a test binary");
    let run = Command::new(itself).args(["--skip", "without_kernels"]).env(KERNELS, "off").output();
    let run = run.expect("the binary starts once more");
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "without kernels:\n{stdout}\n{}", String::from_utf8_lossy(&run.stderr));
    let passed = stdout.split_once("test result: ok. ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(
        passed.is_some_and(|passed: usize| passed >= least),
        "without kernels, of at least {least} tests:\n{stdout}"
    );
}

#[test]
fn there_are_kernels_where_there_should_be() {
    let is_off = std::env::var_os(KERNELS).is_some_and(|it| it == "off");
    assert_eq!(choice().has_kernels(), choice() == DeviceChoice::cpu() && !is_off);
}

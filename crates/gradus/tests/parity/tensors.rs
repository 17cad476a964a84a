//! Helpers shared by the tests of models and adapters: fixtures of tensors, gradients by name, comparison.

#![allow(dead_code, reason = "no binary needs all of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::tensor::{Gradients, Tensor};
use gradus::model::{ModelDir, NamedVisitor, visit_named};

/// Returns the folder of the outputs of `tools/parity`.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

/// Reads all tensors of a safetensors file in f32.
pub fn tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).expect("tensors");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    file.tensors().into_iter().map(|(name, view)| (name, values(view.data()))).collect()
}

/// Returns the values of a tensor.
pub fn host<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

/// Asserts that all values agree within `tolerance`, relative to the largest expected one or `least_scale`.
#[track_caller]
pub fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32, least_scale: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let scale = expected.iter().fold(least_scale, |max, value| max.max(value.abs())) * crate::device::slack() as f32;
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * scale, "{what}[{i}]: {f} instead of {e} (scale {scale})");
    }
}

/// Gradients: largest difference allowed, relative to the largest gradient of the same tensor.
pub const GRADIENTS: f32 = 1e-4;

/// Asserts that each parameter has the gradient that `reference` lists under its name on disk.
#[track_caller]
pub fn check_gradients<M: Module>(
    name: &str,
    model: &M,
    gradients: &Gradients,
    prefix: &str,
    reference: &BTreeMap<String, Vec<f32>>,
) {
    let found = self::gradients(model, gradients);
    // The largest gradient sets a floor, because some gradients are rounding noise.
    let largest = reference
        .iter()
        .filter(|(key, _)| key.starts_with("grad."))
        .flat_map(|(_, v)| v)
        .fold(0.0f32, |m, v| m.max(v.abs()));
    for (key, found) in &found {
        let on_disk = key.strip_prefix("trunk.").map_or(key.clone(), |rest| format!("{prefix}{rest}"));
        let reference = &reference[&format!("grad.{on_disk}")];
        let floor = if is_noise(key) { 0.1 } else { 1e-3 };
        assert_close(&format!("{name}: gradient of {on_disk}"), found, reference, GRADIENTS, largest * floor);
    }
    let in_reference = reference.keys().filter(|key| key.starts_with("grad.")).count();
    assert_eq!(found.len(), in_reference, "{name}: number of gradients");
}

/// Whether the gradient of a parameter is 0 but for rounding: softmax cancels a bias of keys.
pub fn is_noise(name: &str) -> bool {
    name.ends_with("k_proj.bias")
}

/// Returns the prefix of trunk names in the files of a family.
pub fn prefix(dir: &ModelDir) -> &'static str {
    match dir.model_type() {
        "gpt2" => "transformer.",
        "gpt_neox" => "gpt_neox.",
        "t5" | "mt5" => "",
        _ => "model.",
    }
}

/// Returns the gradient of each trained parameter, by its name in memory; no other parameter may have one. It is 0 if
/// the loss does not depend on the parameter.
pub fn gradients<M: Module>(model: &M, gradients: &Gradients) -> BTreeMap<String, Vec<f32>> {
    let mut collect = Collect { gradients, found: BTreeMap::new() };
    visit_named(model, &mut collect);
    collect.found
}

struct Collect<'a> {
    gradients: &'a Gradients,
    found: BTreeMap<String, Vec<f32>>,
}

impl NamedVisitor for Collect<'_> {
    fn visit<const R: usize>(&mut self, name: String, param: &Param<Tensor<R>>) {
        let gradient = param.val().grad(self.gradients);
        if param.is_require_grad() {
            let values = gradient.map_or_else(|| vec![0.0; param.val().shape().num_elements()], host);
            self.found.insert(name, values);
        } else {
            assert!(gradient.is_none(), "{name}");
        }
    }
}

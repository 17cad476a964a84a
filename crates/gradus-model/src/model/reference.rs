//! The reference of a run: frozen, or following the policy (TR-DPO, Gorbatovski et al. 2024, <https://arxiv.org/abs/2404.09656>).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::causal::CausalLm;
use super::parameters::{NamedMapper, NamedVisitor, map_named, visit_named};
use crate::error::Result;
use crate::files::atomic;

/// Directory of a reference that follows the policy, in a checkpoint.
pub const REFERENCE_DIR: &str = "reference";

/// How a reference follows the policy: after every `every` steps it becomes `alpha` · policy + (1 − `alpha`) · reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceSync {
    /// Weight of the policy.
    pub alpha: f64,
    /// Number of steps, at least 1.
    pub every: usize,
}

/// The reference of a run. Clones are the same reference: if one of them follows the policy, all do.
#[derive(Debug, Clone)]
pub struct Reference {
    model: Rc<RefCell<CausalLm>>,
    sync: Option<ReferenceSync>,
}

impl Reference {
    /// Creates a reference that never changes.
    pub fn frozen(model: CausalLm) -> Self {
        Self { model: Rc::new(RefCell::new(model)), sync: None }
    }

    /// Creates a reference that begins as `model`, without packed weights, and follows `policy`.
    ///
    /// # Errors
    /// The first parameter that only one of them has, or that has another shape.
    pub fn following(model: &CausalLm, policy: &CausalLm, sync: ReferenceSync) -> Result<Self, String> {
        let (own, others) = (Flat::of(model).0, Flat::of(policy).0);
        if let Some(name) = own.keys().chain(others.keys()).find(|&name| {
            let shape = |parameters: &BTreeMap<String, FlatParameter>| Some(parameters.get(name)?.shape.clone());
            shape(&own) != shape(&others)
        }) {
            return Err(format!("its `{name}` is missing in one of them or has another shape than that of the policy"));
        }
        Ok(Self { model: Rc::new(RefCell::new(model.valid())), sync: Some(sync) })
    }

    /// Returns the reference as it is now, without gradient. It shares the weights.
    pub fn model(&self) -> CausalLm {
        self.model.borrow().clone()
    }

    /// Follows the policy, without gradient, if that is due after `done` steps.
    pub fn end_step(&self, done: usize, policy: impl FnOnce() -> CausalLm) {
        let Some(ReferenceSync { alpha, every }) = self.sync else { return };
        if done.is_multiple_of(every) {
            let mut mixer = Mixer { policy: Flat::of(&policy()).0, alpha };
            let next = map_named(self.model(), &mut mixer);
            *self.model.borrow_mut() = next;
        }
    }

    /// Writes the model below the `directory` of a checkpoint if it follows the policy. A frozen one is read from its source again.
    ///
    /// # Errors
    /// An error of `save`.
    pub fn save_state(&self, directory: &Path, save: impl FnOnce(&CausalLm, &Path) -> Result<()>) -> Result<()> {
        match self.sync {
            Some(_) => atomic::write_dir(&directory.join(REFERENCE_DIR), |path| save(&self.model(), path)),
            None => Ok(()),
        }
    }
}

/// A parameter with its numbers in one row, without gradient.
struct FlatParameter {
    shape: Vec<usize>,
    values: Tensor<1>,
}

/// Parameters of a model by name.
struct Flat(BTreeMap<String, FlatParameter>);

impl Flat {
    fn of(model: &CausalLm) -> Self {
        let mut flat = Self(BTreeMap::new());
        visit_named(model, &mut flat);
        flat
    }
}

impl NamedVisitor for Flat {
    fn visit<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        let value = parameter.val();
        let value = if value.is_autodiff() { value.inner() } else { value };
        let shape = value.dims().to_vec();
        let size = shape.iter().product::<usize>();
        self.0.insert(name, FlatParameter { shape, values: value.reshape([size]) });
    }
}

/// Mixes each parameter of a reference with that of the policy.
struct Mixer {
    policy: BTreeMap<String, FlatParameter>,
    alpha: f64,
}

impl NamedMapper for Mixer {
    fn map<const D: usize>(&mut self, name: String, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let policy = self.policy.remove(&name).expect("the reference has the parameters of the policy");
        parameter.map(|value| {
            let shape = value.dims();
            value * (1.0 - self.alpha) + policy.values.reshape(shape) * self.alpha
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{ModelDir, named_tensors, save_causal};

    fn fixture(name: &str) -> ModelDir {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/trajectories/models");
        ModelDir::open(&root.join(name)).expect("a fixture")
    }

    fn load(name: &str) -> CausalLm {
        CausalLm::load(&fixture(name), &Device::flex()).expect("a fixture")
    }

    /// The same model with every number multiplied by `factor`.
    fn scaled(model: CausalLm, factor: f64) -> CausalLm {
        struct Scale(f64);
        impl NamedMapper for Scale {
            fn map<const D: usize>(&mut self, _: String, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
                parameter.map(|value| value * self.0)
            }
        }
        map_named(model, &mut Scale(factor))
    }

    #[test]
    fn a_reference_is_mixed_with_the_policy_when_that_is_due() {
        let start = load("qwen3");
        let policy = scaled(start.clone(), 3.0);
        let sync = ReferenceSync { alpha: 0.25, every: 2 };
        let reference = Reference::following(&start, &policy, sync).expect("the same parameters");
        let kept = reference.clone();
        for (done, factor) in [(1, 1.0f32), (2, 1.5), (3, 1.5), (4, 1.875)] {
            reference.end_step(done, || policy.clone());
            // 1 · ¾ + 3 · ¼, and so on.
            for (found, own) in named_tensors(&kept.model()).iter().zip(&named_tensors(&start)) {
                let near = |(found, own): (&f32, &f32)| (found - own * factor).abs() <= 1e-6 * own.abs().max(1e-3);
                assert!(found.values.iter().zip(own.values.iter()).all(near), "{} after {done} steps", found.name);
            }
        }
        let frozen = Reference::frozen(start.clone());
        frozen.end_step(2, || panic!("a frozen reference needs no policy"));
        assert_eq!(named_tensors(&frozen.model()), named_tensors(&start));
    }

    #[test]
    fn only_a_reference_that_follows_is_part_of_a_checkpoint() {
        let (start, folder) = (load("gpt2"), tempfile::tempdir().expect("a folder"));
        let save = |model: &CausalLm, path: &Path| save_causal(model, &fixture("gpt2"), path);
        Reference::frozen(start.clone()).save_state(folder.path(), save).expect("nothing to write");
        assert!(!folder.path().join(REFERENCE_DIR).exists());
        let sync = ReferenceSync { alpha: 0.6, every: 1 };
        let reference = Reference::following(&start, &start, sync).expect("the same parameters");
        reference.end_step(1, || scaled(start.clone(), 2.0));
        reference.save_state(folder.path(), save).expect("written");
        let read = ModelDir::open(&folder.path().join(REFERENCE_DIR)).expect("a model");
        let read = CausalLm::load(&read, &Device::flex()).expect("a model");
        assert_eq!(named_tensors(&read), named_tensors(&reference.model()));
    }

    #[test]
    fn a_reference_with_other_parameters_cannot_follow() {
        let sync = ReferenceSync { alpha: 0.6, every: 1 };
        let error = Reference::following(&load("gpt2"), &load("qwen3"), sync).expect_err("another family");
        assert!(error.contains("is missing in one of them or has another shape"), "{error}");
    }
}

//! Log-probabilities of the reference. They are computed before the first step and stored in the run directory for resumptions.

use std::collections::HashMap;
use std::fs;

use safetensors::SafeTensors;

use super::fingerprint;
use crate::batches::MicroBatch;
use crate::error::Result;
use crate::files::{NamedTensor, atomic, write_safetensors};
use crate::model::CausalLm;
use crate::objective::{OfflineMethod, TrainingExample};
use crate::observer::{Event, Observer};
use crate::run::RunDir;

/// Metadata key of the hashes of the inputs and of the numbers.
const FINGERPRINTS: &str = "prints";

/// Numbers of all examples end to end, [`OfflineMethod::reference_width`] for each.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReferenceLogprobs {
    /// For training examples.
    pub train: Vec<f32>,
    /// For held-out examples.
    pub held_out: Vec<f32>,
    /// For test examples.
    pub test: Vec<f32>,
}

impl ReferenceLogprobs {
    /// Scores the training, held-out and test examples with `reference`. Reports progress to the observer.
    pub fn compute<M: OfflineMethod>(
        method: &M,
        reference: &CausalLm,
        parts: [&[M::Example]; 3],
        passes: MicroBatch,
        observer: &mut dyn Observer,
    ) -> Self {
        let (mut done, total) = (0, Some(parts.iter().map(|part| part.len()).sum()));
        if method.reference_width() > 0 {
            observer.event(&Event::Phase { name: "reference", total, done });
        }
        let [train, held_out, test] = parts.map(|examples| {
            if method.reference_width() == 0 {
                return Vec::new();
            }
            let lengths: Vec<usize> = examples.iter().map(|example| M::rows(example).tokens()).collect();
            passes.deal("log-probabilities of the reference", &lengths, |_, pass| {
                done += pass.len() * passes.ranks().size();
                let found = method.score_with_reference(reference, &examples[pass].iter().collect::<Vec<_>>());
                observer.event(&Event::Progress { done: total.map_or(done, |total| done.min(total)) });
                found
            })
        });
        Self { train, held_out, test }
    }

    /// Reads the stored numbers of the run in `directory`. `question` is the hash of examples, reference and method. `None` if the file is
    /// corrupt or its hash differs.
    pub fn read(directory: &RunDir, question: &str) -> Option<Self> {
        let bytes = fs::read(directory.reference()).ok()?;
        let (_, header) = SafeTensors::read_metadata(&bytes).ok()?;
        let file = SafeTensors::deserialize(&bytes).ok()?;
        let numbers = |name: &str| {
            let bytes = file.tensor(name).ok()?.data().as_chunks().0;
            Some(bytes.iter().map(|&bytes: &[u8; 4]| f32::from_le_bytes(bytes)).collect::<Vec<_>>())
        };
        // Files of earlier versions have no test examples.
        let test = numbers("test").unwrap_or_default();
        let kept = Self { train: numbers("train")?, held_out: numbers("held_out")?, test };
        (header.metadata().as_ref()?.get(FINGERPRINTS)? == &kept.fingerprints(question)).then_some(kept)
    }

    /// Stores the numbers in `directory`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, directory: &RunDir, question: &str) -> Result<()> {
        // A single key, because the order of several keys would vary.
        let metadata = HashMap::from([(FINGERPRINTS.into(), self.fingerprints(question))]);
        let tensors = [("train", &self.train), ("held_out", &self.held_out), ("test", &self.test)]
            .into_iter()
            .filter(|(name, values)| *name != "test" || !values.is_empty())
            .map(|(name, values)| NamedTensor::new(name, [values.len()], values.as_slice()));
        atomic::write_path(&directory.reference(), |path| {
            let tensors: Vec<_> = tensors.collect();
            write_safetensors(tensors.iter().map(|tensor| (tensor.name.as_ref(), tensor)), Some(metadata), path)
        })
    }

    fn fingerprints(&self, question: &str) -> String {
        format!("{question} {}", fingerprint::of_numbers(&[&self.train[..], &self.held_out, &self.test].concat()))
    }
}

/// Attaches the reference's numbers to the examples.
pub(super) fn attach<M: OfflineMethod>(
    method: &M,
    examples: Vec<M::Example>,
    numbers: &[f32],
) -> Vec<TrainingExample<M>> {
    let count = method.reference_width().min(numbers.len());
    let of = |(i, example)| method.with_reference(example, &numbers[i * count..(i + 1) * count]);
    examples.into_iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Existing;

    #[test]
    fn what_was_kept_is_read_again_for_the_same_question_and_never_when_changed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let run = RunDir::create(directory.path().join("dpo"), Existing::Refuse).expect("created");
        assert_eq!(ReferenceLogprobs::read(&run, "q"), None);
        let kept =
            ReferenceLogprobs { train: vec![0.1, -3.5, f32::MIN_POSITIVE], held_out: vec![-0.0], test: vec![0.5] };
        kept.write(&run, "q").expect("written");
        let found = ReferenceLogprobs::read(&run, "q").expect("kept");
        assert_eq!(found.fingerprints(""), kept.fingerprints(""));
        assert!(found.held_out[0].is_sign_negative());
        assert_eq!(ReferenceLogprobs::read(&run, "another"), None);
        let mut bytes = fs::read(run.reference()).expect("there");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(run.reference(), &bytes).expect("changed");
        assert_eq!(ReferenceLogprobs::read(&run, "q"), None);
        fs::write(run.reference(), &bytes[..last - 6]).expect("cut off");
        assert_eq!(ReferenceLogprobs::read(&run, "q"), None);
    }
}

//! Suggestions for a run that does not fit into memory.

use super::terms::{Model, Moments};
use super::{RowSize, Sampling, Steps, Workload};
use crate::batches::{MicroBatch, Order};

/// Rows shorter than this are useless for training.
const MIN_ROW_TOKENS: usize = 32;

impl Workload {
    /// Suggests the first change with which the run fits into `memory` bytes.
    pub fn suggestion(&self, memory: u64) -> String {
        let fits = |workload: &Self| workload.forecast().peak_bytes <= memory;
        // A limit above the tokens of a step has no effect, so begin with the actual size of a pass.
        let now = self.passes.tokens.min(self.forecast().longest_pass_tokens);
        let longest = self.rows.iter().map(|row| row.tokens).max().unwrap_or(0);
        if let Some(tokens) = halves(now, longest).find(|&tokens| fits(&self.with_passes(tokens))) {
            return format!("`micro_batch_tokens: {tokens}` would fit");
        }
        if fits(&self.recomputing()) {
            return "`recompute: true` would fit".into();
        }
        if self.moments == Moments::Numbers(2) && fits(&self.recomputing().in_int8()) {
            return match fits(&self.in_int8()) {
                true => "`moments: int8` would fit".into(),
                false => "`recompute: true` with `moments: int8` would fit".into(),
            };
        }
        let offloading = |of: &Self| Self { offloads_moments: true, ..of.clone() };
        if self.gpu.is_some() && fits(&offloading(self)) {
            return "`offload_moments: true` would fit".into();
        }
        if let Some(tokens) = halves(longest, MIN_ROW_TOKENS).find(|&tokens| fits(&self.with_row_tokens(tokens))) {
            return format!("`max_length: {tokens}` with `micro_batch_tokens: {tokens}` would fit");
        }
        let batch_size = self.steps.order.batch_size;
        if !self.sampling.is_empty()
            && let Some(prompts) =
                halves(batch_size, 1).find(|&prompts| fits(&self.with_row_tokens(MIN_ROW_TOKENS).with_batch(prompts)))
        {
            return format!("`batch_size: {prompts}` with rows of {MIN_ROW_TOKENS} tokens would fit");
        }
        "even short rows would not fit: use a smaller model, or a machine with more memory".into()
    }

    fn recomputing(&self) -> Self {
        let again = |model: Model| Model { recompute: true, ..model };
        Self { policy: again(self.policy), critic: self.critic.map(again), ..self.clone() }
    }

    fn in_int8(&self) -> Self {
        Self { moments: Moments::Int8, ..self.clone() }
    }

    fn with_passes(&self, tokens: usize) -> Self {
        Self { passes: MicroBatch { tokens, ..self.passes }, ..self.clone() }
    }

    fn with_row_tokens(&self, tokens: usize) -> Self {
        let short = |row: &RowSize| RowSize {
            tokens: row.tokens.min(tokens),
            targets: row.targets.min(tokens),
            computed: row.computed.min(tokens),
            computed_after: row.computed_after.min(tokens),
            sources: row.sources.min(tokens),
        };
        let sampling = |sampling: &Sampling| Sampling {
            prompt_tokens: sampling.prompt_tokens.min(tokens.saturating_sub(sampling.new_tokens)),
            ..*sampling
        };
        Self {
            rows: self.rows.iter().map(short).collect(),
            sampling: self.sampling.iter().map(sampling).collect(),
            ..self.with_passes(tokens)
        }
    }

    fn with_batch(self, prompts: usize) -> Self {
        let sampling = |sampling: &Sampling| Sampling { prompts: sampling.prompts.min(prompts), ..*sampling };
        Self {
            sampling: self.sampling.iter().map(sampling).collect(),
            steps: Steps { order: Order { batch_size: prompts, ..self.steps.order }, ..self.steps },
            ..self
        }
    }
}

/// Half of `from`, half of that, and so on, while at least `least`.
fn halves(from: usize, least: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from / 2), |half| Some(half / 2)).take_while(move |half| *half >= least.max(1))
}

//! Comparison of language models on the same tokens.

use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use serde::Serialize;

use super::{HELD, QuantizeOptions, QuantizeReport, sizes};
use crate::data::{self, LoadOptions, Need, TokenizeOptions};
use crate::error::{Error, Result};
use crate::generate::{NoStopRule, SamplingParams, generate};
use crate::host::read;
use crate::inference::PASSES;
use crate::model::{Batch, CausalLm, Rows, Sequence, select_rows};
use crate::pretrained::Pretrained;
use crate::rng::{Purpose, Stream};

/// Default number of prompts.
const PROMPTS: usize = 64;
/// Default number of texts that are sampled from an empty prompt if there are no prompts.
const TEXTS: usize = 16;
/// Maximum number of logits of both models in memory.
const LOGITS: usize = 8 << 20;

/// Differences between the distributions of two language models, on tokens that the first one sampled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PolicyQuality {
    /// Number of sampled completions.
    pub completions: usize,
    /// Number of their tokens.
    pub tokens: usize,
    /// KL(before ‖ after) over the whole vocabulary, in nats, mean over tokens.
    pub kl: f64,
    /// Largest KL of a token.
    pub largest_kl: f64,
    /// Absolute change of the sampled token's logprob, mean over tokens.
    pub logprob_error: f64,
    /// Largest change of a token.
    pub largest_logprob_error: f64,
    /// Share of tokens at which both models have the same likeliest token.
    pub agreement: f64,
}

/// A prompt with a sampled completion.
struct Sample {
    ids: Vec<u32>,
    prompt_len: usize,
}

pub(super) fn compare(
    options: &QuantizeOptions,
    files: &Pretrained,
    before: CausalLm,
    after: CausalLm,
    path: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<QuantizeReport> {
    let mut report = sizes(options, files, (&before, &before.trunk), (&after, &after.trunk), path)?;
    let (before, after) = (before.into_frozen(HELD), after.into_frozen(HELD));
    let (prompts, group, remarks) = prompts(options, files, &before)?;
    report.remarks = remarks;
    let params = options.params.clone().forcing(files.dir.forced_ids());
    let params = SamplingParams { stop_ids: files.stop_ids(), ..params };
    let stream = |i: usize| options.seed.stream(Purpose::Generate, 0, i as u64);
    progress("sampling from the original model");
    let (samples, rate) = sample(&before, &prompts, group, &params, &stream)?;
    report.before.decode_tokens_per_s = rate;
    progress("sampling from the quantized model");
    report.after.decode_tokens_per_s = sample(&after, &prompts, group, &params, &stream)?.1;
    progress("comparing");
    report.before.score_tokens_per_s = score(&before, &samples);
    report.after.score_tokens_per_s = score(&after, &samples);
    report.policy = Some(quality(&before, &after, &samples));
    Ok(report)
}

/// Returns the prompts, the number of completions per prompt, and remarks on rows.
fn prompts(
    options: &QuantizeOptions,
    files: &Pretrained,
    model: &CausalLm,
) -> Result<(Vec<Vec<u32>>, usize, Vec<String>)> {
    options.params.check()?;
    let Some(data) = &options.data else {
        let start = files.tokenizer.bos_id().or(files.tokenizer.eos_id()).unwrap_or(0);
        return Ok((vec![vec![start]], options.max_rows.unwrap_or(TEXTS).max(1), Vec::new()));
    };
    let max_rows = Some(options.max_rows.unwrap_or(PROMPTS));
    let rows = data::load(data, &LoadOptions { max_rows, ..LoadOptions::needing(Need::Prompt) })?.rows;
    let room = model.position_budget().within(options.max_length).too_long(options.params.max_new_tokens);
    let tokenize = TokenizeOptions { max_length: Some(room), ..super::super::tokenize(files)? };
    let made = data::prompts(&rows, &files.tokenizer, files.template.as_ref(), &tokenize)?;
    let prompts: Vec<Vec<u32>> = made.examples.into_iter().map(|prompt| prompt.ids).collect();
    if prompts.is_empty() {
        return Err(Error::input(format!("`{data}` has no prompt that leaves room for its completion"))
            .with_hint("lower `--max-new-tokens`, or raise `--max-length`"));
    }
    Ok((prompts, 1, made.counts.remarks()))
}

/// Returns samples, and the sampled tokens per second.
fn sample(
    model: &CausalLm,
    prompts: &[Vec<u32>],
    group: usize,
    params: &SamplingParams,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<(Vec<Sample>, Option<f64>)> {
    let ids: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    // A first call allocates memory and starts threads before the time is measured.
    let first = SamplingParams { max_new_tokens: params.max_new_tokens.min(2), ..params.clone() };
    generate(model, &ids[..1], 1, &first, &mut NoStopRule, stream)?;
    let start = Instant::now();
    let completions = generate(model, &ids, group, params, &mut NoStopRule, stream)?;
    let seconds = start.elapsed().as_secs_f64();
    let tokens = completions.iter().map(|completion| completion.ids.len()).sum::<usize>();
    let samples = completions.into_iter().enumerate().map(|(i, completion)| {
        let prompt = &prompts[i / group];
        Sample { ids: [prompt.as_slice(), &completion.ids].concat(), prompt_len: prompt.len() }
    });
    Ok((samples.collect(), (seconds > 0.0).then(|| tokens as f64 / seconds)))
}

/// Splits the samples into passes in which the sampled tokens count.
fn passes<'a>(model: &'a CausalLm, samples: &'a [Sample]) -> impl Iterator<Item = Batch> + 'a {
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.ids.len()).collect();
    PASSES.split(&lengths).into_iter().map(move |pass| {
        let sequence = |sample: &'a Sample| {
            let (prompt, completion) = sample.ids.split_at(sample.prompt_len);
            Sequence::completion(prompt, completion)
        };
        model.batch(&Rows::Alone(samples[pass].iter().map(sequence).collect()))
    })
}

/// Returns the tokens per second for scoring the samples.
fn score(model: &CausalLm, samples: &[Sample]) -> Option<f64> {
    let start = Instant::now();
    for batch in passes(model, samples) {
        read(&model.logprobs(&batch, 1.0).logprobs_m);
    }
    let tokens = samples.iter().map(|sample| sample.ids.len()).sum::<usize>();
    let seconds = start.elapsed().as_secs_f64();
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

/// Difference between two rows of logits at one token.
#[derive(Clone, Copy, Default)]
struct Difference {
    kl: f64,
    logprob_error: f64,
    is_same_choice: bool,
}

fn quality(before: &CausalLm, after: &CausalLm, samples: &[Sample]) -> PolicyQuality {
    let vocabulary = before.vocab_size();
    let rows = (LOGITS / vocabulary).max(1);
    let mut found = Vec::new();
    for batch in passes(before, samples) {
        let hidden = [before, after].map(|model| model.hidden(&batch));
        let targets = batch.targets();
        for (positions, ids) in targets.positions.chunks(rows).zip(targets.ids.chunks(rows)) {
            let logits = |model: &CausalLm, model_cost: usize| {
                let logits = model.logits_of(select_rows(hidden[model_cost].clone(), positions));
                read(&logits.reshape([ids.len() * vocabulary]))
            };
            let (first, second) = (logits(before, 0), logits(after, 1));
            let pairs = first.par_chunks_exact(vocabulary).zip(second.par_chunks_exact(vocabulary)).zip(ids);
            found.extend(pairs.map(|((first, second), &id)| difference(first, second, id)).collect::<Vec<_>>());
        }
    }
    let count = found.len().max(1) as f64;
    let mean = |value: fn(&Difference) -> f64| found.iter().map(value).sum::<f64>() / count;
    let largest = |value: fn(&Difference) -> f64| found.iter().map(value).fold(0.0, f64::max);
    PolicyQuality {
        completions: samples.len(),
        tokens: found.len(),
        kl: mean(|found| found.kl),
        largest_kl: largest(|found| found.kl),
        logprob_error: mean(|found| found.logprob_error),
        largest_logprob_error: largest(|found| found.logprob_error),
        agreement: mean(|found| f64::from(u8::from(found.is_same_choice))),
    }
}

/// Computes `KL = Σ p ln(p / q)`, with p and q the softmax of `first` and `second`, and the differences for the token `id`.
fn difference(first: &[f32], second: &[f32], id: u32) -> Difference {
    let normalizer = |logits: &[f32]| {
        let largest = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        f64::from(largest) + logits.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln()
    };
    let likeliest = |logits: &[f32]| (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    let (p_normalizer, q_normalizer) = (normalizer(first), normalizer(second));
    let logprobs = |i: usize| (f64::from(first[i]) - p_normalizer, f64::from(second[i]) - q_normalizer);
    let kl = (0..first.len()).map(logprobs).map(|(p, q)| p.exp() * (p - q)).sum();
    let (p, q) = logprobs(id as usize);
    Difference { kl, logprob_error: (p - q).abs(), is_same_choice: likeliest(first) == likeliest(second) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceChoice;
    use crate::inference::quantize;
    use crate::model::Quantization;
    use crate::pretrained::TextFiles;
    use crate::rng::Seed;

    /// Quantizes the small real model and returns the differences; `data` may name prompts.
    fn stories(format: Quantization, data: Option<String>) -> Option<PolicyQuality> {
        let model = crate::test_support::material("weights/stories260K")?;
        let to = tempfile::tempdir().expect("temporary directory");
        let options = QuantizeOptions {
            model: model.display().to_string(),
            format,
            output: Some(to.path().join("quantized")),
            overwrite: false,
            data,
            max_rows: Some(8),
            max_length: 512,
            params: SamplingParams { max_new_tokens: 64, ..SamplingParams::default() },
            seed: Seed(1),
            text: TextFiles::default(),
            device: DeviceChoice::cpu(),
        };
        quantize(&options, &mut |_| {}).expect("quantized").policy
    }

    #[test]
    fn a_real_model_keeps_its_answers() {
        // A model with 260 thousand weights in layers of width 64 loses more with 4 bits than a large one:
        // bitsandbytes' NF4 changes these logprobs by 0.31.
        for (format, largest_error, least_agreement) in
            [(Quantization::Int8, 0.02, 0.97), (Quantization::Nf4, 0.35, 0.75)]
        {
            let Some(found) = stories(format, None) else { return };
            assert!(found.completions == 8 && found.tokens > 100, "{found:?}");
            assert!(found.logprob_error > 0.0 && found.logprob_error < largest_error, "{format:?}: {found:?}");
            assert!(found.kl > 0.0 && found.kl < largest_error, "{format:?}: {found:?}");
            assert!(found.agreement > least_agreement, "{format:?}: {found:?}");
        }
    }

    #[test]
    fn the_difference_of_two_rows_by_hand() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), logits shifted by any constant.
        let (p, q) = ([2f32, 1.0, 1.0].map(f32::ln), [1f32, 1.0, 2.0].map(|x| x.ln() + 3.0));
        let found = difference(&p, &q, 0);
        assert!((found.kl - 0.25 * 2f64.ln()).abs() < 1e-6, "{}", found.kl);
        assert!((found.logprob_error - 2f64.ln()).abs() < 1e-6);
        assert!(!found.is_same_choice && difference(&p, &p, 1).is_same_choice);
        assert_eq!((difference(&p, &p, 1).kl, difference(&p, &p, 1).logprob_error), (0.0, 0.0));
    }
}

//! What a plan's run will hold in memory, and whether this machine has it.

use super::examples;
use super::observer::Observer;
use super::prepare::{Start, fetch_models};
use crate::algorithm::ppo::{CriticTrunk, PpoConfig};
use crate::batches::{MicroBatch, Order};
use crate::config::{MethodConfig, Plan};
use crate::data::{PreferenceExample, SftExample};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::memory::terms::{Adapter, Head, Model};
use crate::memory::{Forecast, Reference, Row, Sampling, Steps, Workload};
use crate::model::adapter::TaskType;
use crate::model::{Block, ModelDir, ModelShape, Rows, Weights, open_model};
use crate::objective::dpo::{self, ReferenceLogprobs};
use crate::objective::{reward_model, sft};
use crate::reward::config::RewardConfig;
use crate::rng::Purpose;
use crate::rollout::Prompt;

/// What the run of `plan` will hold. Its rows are read and tokenised; no weights are.
///
/// # Errors
/// What is wrong with the models' configurations or the rows.
pub fn workload(plan: &Plan, observer: &mut dyn Observer) -> Result<Workload> {
    fetch_models(plan, observer)?;
    let start = Start::open(plan)?;
    let of_prompts = |new: usize, observer: &mut dyn Observer| {
        let (train, held_out) = examples::prompts(plan, &start, new, observer)?;
        Ok::<_, Error>((of_prompts(&train, new), of_prompts(&held_out, new)))
    };
    let (rows, held_out) = match plan.method() {
        MethodConfig::Sft(config) => (of_texts(&examples::texts(plan, &start, config, observer)?.0), Vec::new()),
        MethodConfig::Reward(_) => (of_scored_pairs(&examples::scored_pairs(plan, &start, observer)?.0), Vec::new()),
        MethodConfig::Dpo(_) => (of_pairs(&examples::pairs(plan, &start, observer)?.0), Vec::new()),
        MethodConfig::Ppo(config) => of_prompts(config.max_new_tokens, observer)?,
        MethodConfig::Grpo(config) => of_prompts(config.max_new_tokens, observer)?,
    };
    with_rows(plan, &start, rows, &held_out)
}

/// Texts: every token is computed.
pub(crate) fn of_texts(texts: &[SftExample]) -> Vec<Row> {
    texts.iter().map(|text| row(&Rows::Alone(vec![sft::sequence(text)]))).collect()
}

/// Pairs of a reward model, which predicts nothing.
pub(crate) fn of_scored_pairs(pairs: &[PreferenceExample]) -> Vec<Row> {
    pairs.iter().map(|pair| row(&Rows::Pairs(vec![reward_model::sequences(pair)]))).collect()
}

/// Pairs with the tokens of both completions as targets.
pub(crate) fn of_pairs(pairs: &[PreferenceExample]) -> Vec<Row> {
    pairs.iter().map(|pair| row(&Rows::Pairs(vec![dpo::sequences(pair)]))).collect()
}

/// Prompts with a completion that goes to the end.
pub(crate) fn of_prompts(prompts: &[Prompt], new_tokens: usize) -> Vec<Row> {
    let one = |prompt: &Prompt| {
        let tokens = prompt.ids.len() + new_tokens;
        Row { tokens, targets: new_tokens, computed: tokens, computed_after: new_tokens }
    };
    prompts.iter().map(one).collect()
}

/// What is handed over to the model as one row.
fn row(rows: &Rows<'_>) -> Row {
    let computed = rows.computed();
    Row { tokens: rows.tokens(), targets: rows.targets(), computed, computed_after: computed }
}

/// What a run on `rows` will hold: of online methods one a prompt, of others one a row or pair. `held_out` are prompts.
pub(crate) fn with_rows(plan: &Plan, start: &Start, mut rows: Vec<Row>, held_out: &[Row]) -> Result<Workload> {
    let shape = ModelShape::of(&start.model.dir)?;
    if shape.block == Block::Llama && shape.max_positions.is_some() {
        // Dynamic rotary scaling: angles depend on the whole sequence, so nothing is shared.
        rows.iter_mut().for_each(|row| (row.computed, row.computed_after) = (row.tokens, row.tokens));
    }
    let train = plan.train();
    let tokens: usize = rows.iter().map(|row| row.tokens).sum();
    let host_bytes = (tokens * BYTES_A_TOKEN + rows.len() * BYTES_A_ROW) as u64 + tokenizer_bytes(start);
    let order = Order {
        seed: plan.seed(),
        purpose: Purpose::DataOrder,
        shuffle: train.shuffle,
        rows: rows.len(),
        batch_size: train.batch_size,
    };
    let count = order.total_steps(train.epochs, train.max_steps);
    let frozen = frozen_weights(plan);
    let adapter = adapter(plan, &start.model.dir, &shape)?;
    let workload = Workload {
        policy: Model { adapter, ..Model::language(shape, frozen) },
        critic: None,
        reference: Reference::None,
        rewards: Vec::new(),
        shared_at_first: 0,
        rows,
        steps: Steps { order, count, group_size: 1, mini_batches: 1, update_epochs: 1, regroups: false },
        passes: MicroBatch { tokens: train.micro_batch_tokens, rows: train.micro_batch_size },
        tries_longest: train.try_longest,
        sampling: Vec::new(),
        sampling_weights: train.sampling_weights.unwrap_or(train.compute.into()),
        host_bytes,
    };
    let own = |name: &Option<String>| name.as_deref().map(|name| language(plan, name)).transpose();
    let workload = match plan.method() {
        MethodConfig::Sft(_) => workload,
        MethodConfig::Reward(_) => Workload { policy: Model { adapter, ..Model::scalar(shape, frozen) }, ..workload },
        MethodConfig::Dpo(config) => {
            let model = own(&config.reference_model)?;
            let reference = match config.reference {
                ReferenceLogprobs::Precomputed => Reference::First(model),
                ReferenceLogprobs::Live => Reference::None,
            };
            let workload = Workload { reference, ..workload };
            if config.reference == ReferenceLogprobs::Live { beside(workload, model) } else { workload }
        }
        MethodConfig::Ppo(config) => {
            let workload = beside(workload, own(&config.reference_model)?);
            let steps = Steps {
                group_size: config.group_size,
                mini_batches: config.mini_batches,
                update_epochs: config.update_epochs,
                regroups: false,
                ..workload.steps
            };
            let workload = with_critic(plan, config, Workload { steps, ..workload })?;
            online(plan, workload, held_out, config.max_new_tokens)?
        }
        MethodConfig::Grpo(config) => {
            // Without a KL term only evaluations ask the reference.
            let asked = config.kl_coefficient != 0.0 || train.eval_steps >= 0;
            let workload = if asked { beside(workload, own(&config.reference_model)?) } else { workload };
            let steps = Steps {
                group_size: config.group_size,
                mini_batches: config.mini_batches,
                update_epochs: config.update_epochs,
                regroups: true,
                ..workload.steps
            };
            online(plan, Workload { steps, ..workload }, held_out, config.max_new_tokens)?
        }
    };
    let trained = |model: Model| Model { recompute: train.recompute, compute: train.compute, ..model };
    Ok(Workload { policy: trained(workload.policy), critic: workload.critic.map(trained), ..workload })
}

/// A reference beside the policy: a model of its own, or the policy as it was at the start.
fn beside(workload: Workload, own: Option<Model>) -> Workload {
    let policy = workload.policy;
    if own.is_none() && policy.adapter.is_some() {
        return Workload { reference: Reference::Beside(on_shared_base(policy)), ..workload };
    }
    let shared_at_first = if own.is_none() { policy.unpacked() } else { 0 };
    Workload { reference: Reference::Beside(own.unwrap_or(policy)), shared_at_first, ..workload }
}

/// A model whose adapter stands on the base that the policy holds already.
fn on_shared_base(model: Model) -> Model {
    Model { adapter: model.adapter.map(|adapter| Adapter { shares_base: true, ..adapter }), ..model }
}

/// What the plan's adapter has to hold, on the model in `dir`.
fn adapter(plan: &Plan, dir: &ModelDir, shape: &ModelShape) -> Result<Option<Adapter>> {
    let task = match plan.method() {
        MethodConfig::Reward(_) => TaskType::SequenceClassification,
        _ => TaskType::CausalLm,
    };
    let config = match (&plan.config().lora, &dir.adapter) {
        (Some(lora), _) => lora.peft_config(dir, task, String::new())?,
        (None, Some(adapter)) => adapter.config.clone(),
        (None, None) => return Ok(None),
    };
    let (numbers, feed_forward) = config.size(dir, shape)?;
    Ok(Some(Adapter { numbers: numbers as u64, feed_forward, shares_base: false }))
}

/// Bytes that a token takes as text and as ids, and that a row takes beside them.
const BYTES_A_TOKEN: usize = 12;
const BYTES_A_ROW: usize = 600;

/// A tokenizer takes several times the size of its file: tables in both directions, merges by pair.
const TOKENIZER_FACTOR: u64 = 20;

fn tokenizer_bytes(start: &Start) -> u64 {
    let file = std::fs::metadata(start.model.dir.path.join("tokenizer.json"));
    TOKENIZER_FACTOR * file.map_or(0, |file| file.len())
}

fn language(plan: &Plan, name: &str) -> Result<Model> {
    Ok(Model::language(ModelShape::of(&open_model(name)?)?, frozen_weights(plan)))
}

fn scalar(plan: &Plan, name: &str) -> Result<Model> {
    Ok(Model::scalar(ModelShape::of(&open_model(name)?)?, frozen_weights(plan)))
}

/// How weights are held that are not trained.
fn frozen_weights(plan: &Plan) -> Weights {
    plan.train().frozen_weights.unwrap_or(plan.train().compute.into())
}

/// A critic with a trunk of its own; it starts as a model that is named, as the reward model, or as the policy.
fn with_critic(plan: &Plan, config: &PpoConfig, workload: Workload) -> Result<Workload> {
    if config.critic.trunk == CriticTrunk::Shared {
        return Ok(workload);
    }
    let learned = plan.config().reward.as_ref().and_then(|reward| reward.models().first().copied());
    Ok(match config.critic.model.as_deref().or(learned) {
        Some(name) => {
            let dir = open_model(name)?;
            let shape = ModelShape::of(&dir)?;
            let adapter = match workload.policy.adapter {
                Some(_) => adapter(plan, &dir, &shape)?.or(workload.policy.adapter),
                None => None,
            };
            Workload { critic: Some(Model { adapter, ..Model::scalar(shape, frozen_weights(plan)) }), ..workload }
        }
        None if workload.policy.adapter.is_some() => {
            let critic = Model { head: Head::Scalar, ..on_shared_base(workload.policy) };
            Workload { critic: Some(critic), ..workload }
        }
        None => {
            let critic = Model::scalar(workload.policy.shape, frozen_weights(plan));
            Workload { critic: Some(critic), shared_at_first: workload.shared_at_first + critic.weights(), ..workload }
        }
    })
}

/// What online methods hold beside: reward models, and what sampling needs in iterations and evaluations.
fn online(plan: &Plan, workload: Workload, held_out: &[Row], new_tokens: usize) -> Result<Workload> {
    let names = plan.config().reward.iter().flat_map(RewardConfig::models);
    let rewards = names.map(|name| scalar(plan, name)).collect::<Result<_>>()?;
    let sampling = |rows: &[Row], prompts: usize, group_size: usize| {
        let longest = rows.iter().map(|row| row.tokens).max().unwrap_or(0);
        Sampling { prompts, group_size, prompt_tokens: longest.saturating_sub(new_tokens), new_tokens }
    };
    let train = plan.train();
    let order = Order { purpose: Purpose::PromptOrder, ..workload.steps.order };
    let by_epochs = (train.epochs * order.rows as f64 / order.batch_size as f64).ceil().max(1.0) as usize;
    Ok(Workload {
        rewards,
        sampling: vec![
            sampling(&workload.rows, order.batch_size, workload.steps.group_size),
            sampling(held_out, held_out.len(), 1),
        ],
        steps: Steps { order, count: train.max_steps.unwrap_or(by_epochs), ..workload.steps },
        ..workload
    })
}

/// Refuses what `machine` has no memory for, with the numbers and a way out.
///
/// # Errors
/// [`Error::Input`] when the peak is above all the memory that this process may use.
pub fn check(workload: &Workload, machine: &Machine) -> Result<Forecast> {
    let forecast = workload.forecast();
    let Some(memory) = machine.memory_bytes.filter(|&memory| memory < forecast.peak_bytes) else {
        return Ok(forecast);
    };
    let peak = forecast.peak();
    let message = format!(
        "the run needs {} at its peak ({}: {}), but this machine has {}",
        gigabytes(forecast.peak_bytes),
        peak.name,
        peak.parts().map(|(name, bytes)| format!("{name} {}", gigabytes(bytes))).collect::<Vec<_>>().join(", "),
        gigabytes(memory),
    );
    let hint = format!(
        "{}; `gradus plan` shows every phase, and `--no-memory-check` starts the run all the same",
        workload.way_out(memory)
    );
    Err(Error::input(message).with_hint(hint))
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(tokens: usize, micro_batch_tokens: usize) -> Workload {
        let config = serde_json::json!({
            "model_type": "gpt2", "vocab_size": 1000, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 1024
        });
        let dir = ModelDir::unsaved(config.as_object().expect("an object").clone());
        let rows = vec![row(&Rows::texts(&[vec![0; tokens]])); 100];
        let (seed, purpose) = (crate::rng::Seed(1), Purpose::DataOrder);
        Workload {
            policy: Model::language(ModelShape::of(&dir).expect("a known family"), Weights::F32),
            critic: None,
            reference: Reference::None,
            rewards: Vec::new(),
            shared_at_first: 0,
            steps: Steps {
                order: Order { seed, purpose, shuffle: true, rows: rows.len(), batch_size: 64 },
                count: 2,
                group_size: 1,
                mini_batches: 1,
                update_epochs: 1,
                regroups: false,
            },
            rows,
            passes: MicroBatch { tokens: micro_batch_tokens, rows: None },
            tries_longest: true,
            sampling: Vec::new(),
            sampling_weights: Weights::F32,
            host_bytes: 0,
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let machine = |megabytes: u64| Machine { memory_bytes: Some(megabytes * 1_000_000), ..Machine::detect() };
        let wide = workload(100, 6400);
        assert!(check(&wide, &machine(1000)).is_ok());
        let error = check(&wide, &machine(100)).expect_err("it needs more");
        assert!(error.to_string().contains("but this machine has 0.1 GB"), "{error}");
        let hint = error.hint().expect("a hint");
        let tokens: usize = hint.split(['`', ' ']).find_map(|word| word.parse().ok()).expect("a number");
        assert!(hint.starts_with(&format!("`micro_batch_tokens: {tokens}` would fit;")), "{hint}");
        assert!(check(&workload(100, tokens), &machine(100)).is_ok(), "the advice holds: {hint}");
        // One row is too long already: with less and less memory its blocks are computed again, then it is cut short.
        let advice = (10..=500).rev().filter_map(|megabytes| {
            let error = check(&workload(5000, 5000), &machine(megabytes)).err()?;
            Some(error.hint()?.split([':', ' ']).next()?.to_owned())
        });
        let mut advice: Vec<String> = advice.collect();
        advice.dedup();
        assert_eq!(advice, ["`recompute", "`max_length", "not"]);
        let error = check(&wide, &machine(10)).expect_err("not even the program fits");
        assert!(error.hint().expect("a hint").starts_with("not even short rows would fit"), "{error:?}");
    }
}

//! Forecast of a run's memory, and a check against the memory of this machine.

use super::cast;
use super::examples;
use super::models::task;
use super::player::Player;
use super::prepare::{Start, fetch_models};
use crate::algorithm::OnlineMethod;
use crate::batches::{MicroBatch, Order};
use crate::config::{Plan, Visitor};
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::TrainedLogprobs;
use crate::learner::optimizer::MomentFormat;
use crate::machine::{Machine, gigabytes};
use crate::memory::terms::{Adapter, Head, Model, Moments};
use crate::memory::{Forecast, Reference, RowSize, Sampling, Steps, Workload};
use crate::method::{Cast, Iteration, Lifetime, RolloutKeys, TrainedBy, TrainedParts};
use crate::model::{Rows, Support};
use crate::objective::OfflineMethod;
use crate::observer::Observer;
use crate::ranks::{Lanes, Ranks};
use crate::rng::Purpose;
use crate::rollout::Prompt;

/// Estimates the memory of the run of `plan` on `ranks` ranks. Reads and tokenizes its rows, but reads no weights.
///
/// # Errors
/// Errors of the models' configurations or of the rows.
pub fn workload(plan: &Plan, ranks: usize, observer: &mut dyn Observer) -> Result<Workload> {
    fetch_models(plan, observer)?;
    let start = Start::open(plan)?;
    let cast = cast::open(plan, &start)?;
    let (rows, held_out) = plan.method().visit(Sizes { plan, start: &start, cast: &cast, observer })?;
    with_rows(plan, &start, &cast, ranks, rows, &held_out)
}

/// Checks the inputs of the run of `plan` as [`run`](super::run) does before it reads any weights: the models' configurations, the rows,
/// and that the models have enough positions for them.
///
/// # Errors
/// Errors of the models' configurations or of the rows, and a row that is too long for a model.
pub(crate) fn check_inputs(plan: &Plan, observer: &mut dyn Observer) -> Result<()> {
    fetch_models(plan, observer)?;
    let start = Start::open(plan)?;
    let cast = cast::open(plan, &start)?;
    plan.method().visit(Sizes { plan, start: &start, cast: &cast, observer }).map(|_| ())
}

/// Reads the rows of a plan and computes their sizes.
struct Sizes<'a> {
    plan: &'a Plan,
    start: &'a Start,
    cast: &'a Cast<Player>,
    observer: &'a mut dyn Observer,
}

impl<'m> Visitor<'m> for Sizes<'_> {
    /// Sizes of the training rows and of the held-out prompts.
    type Output = Result<(Vec<RowSize>, Vec<RowSize>)>;

    fn offline<M: OfflineMethod>(self, method: &'m M) -> Self::Output {
        let train = examples::offline_data(method, self.plan, self.start, self.cast, self.observer)?.splits.train;
        Ok((train.iter().map(|example| of_example(&M::rows(example))).collect(), Vec::new()))
    }

    fn online<M: OnlineMethod>(self, method: &'m M) -> Self::Output {
        let new = method.iteration().rollouts.max_new_tokens;
        let examples::ExampleSplits { train, held_out, .. } =
            examples::prompts(self.plan, self.start, self.cast, (new, &[]), self.observer)?;
        Ok((of_prompts(&train, new), of_prompts(&held_out, new)))
    }
}

/// Sizes of prompts with completions of maximum length.
pub(crate) fn of_prompts(prompts: &[Prompt], new_tokens: usize) -> Vec<RowSize> {
    let one = |prompt: &Prompt| {
        let tokens = prompt.ids.len() + new_tokens;
        let sources = if prompt.encoder_reads_prompt { prompt.ids.len() } else { 0 };
        RowSize { tokens, targets: new_tokens, computed: tokens, computed_after: new_tokens, sources }
    };
    prompts.iter().map(one).collect()
}

/// Size of an example, as the model receives it.
pub(crate) fn of_example(rows: &Rows<'_>) -> RowSize {
    let computed = rows.computed();
    RowSize {
        tokens: rows.tokens(),
        targets: rows.targets(),
        computed,
        computed_after: computed,
        sources: rows.sources(),
    }
}

/// Memory of a run on `rows`: one per prompt for online methods, one per row or pair for others. `held_out` are prompts.
pub(crate) fn with_rows(
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    ranks: usize,
    mut rows: Vec<RowSize>,
    held_out: &[RowSize],
) -> Result<Workload> {
    let shape = cast.policy.shape;
    // With noise on embeddings, the sequences of a pair share no tokens.
    if shape.angles_vary || plan.train().noise_alpha().is_some() {
        rows.iter_mut().for_each(|row| (row.computed, row.computed_after) = (row.tokens, row.tokens));
    }
    if !shape.has_encoder() {
        rows.iter_mut().for_each(|row| row.sources = 0);
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
    let workload = Workload {
        policy: model(plan, start, &cast.policy)?,
        critic: None,
        reference: Reference::None,
        rewards: cast.rewards.iter().map(bare).collect(),
        metrics: cast.metrics.iter().map(bare).collect(),
        shared_at_first: 0,
        rows,
        steps: Steps { order, count, group_size: 1, mini_batches: 1, update_epochs: 1, regroups: false },
        passes: MicroBatch { lanes: Lanes::new(train.lanes.unwrap_or(1), Ranks::ALONE), ..train.passes() },
        tries_longest: train.try_longest,
        moments: match train.moments {
            MomentFormat::F32 => Moments::Numbers(train.optimizer().moments()),
            MomentFormat::Int8 => Moments::Int8,
        },
        ranks,
        shards_moments: train.shard_moments,
        offloads_moments: train.offload_moments,
        has_lagged: cast.lagged.is_some(),
        vectors: None,
        sampling: Vec::new(),
        sampling_weights: train.sampling_weights.unwrap_or(train.compute.into()),
        host_bytes,
        gpu: None,
    };
    let workload = with_critic(plan, start, cast, with_reference(cast, workload))?;
    let workload = match plan.method().iteration() {
        Some(iteration) => online(plan, workload, held_out, &iteration),
        None => match plan.method().method().sampled_tokens() {
            Some(new_tokens) => with_sampling(workload, new_tokens),
            None => workload,
        },
    };
    let trained = |model: Model| Model { recompute: train.recompute, compute: train.compute, ..model };
    let compared_logits = plan.method().method().compares_logits();
    let policy = Model { compared_logits, ..trained(workload.policy) };
    let workload = Workload { policy, critic: workload.critic.map(trained), ..workload };
    Ok(match plan.device() {
        device if *device == DeviceChoice::cpu() => workload,
        device => workload.on_gpu(device.to_string()),
    })
}

/// Adds the frozen reference: a model of its own, or the policy as it was at the start.
fn with_reference(cast: &Cast<Player>, workload: Workload) -> Workload {
    let Some(player) = &cast.reference else { return workload };
    let own = player.is_named().then(|| bare(player));
    let policy = workload.policy;
    if player.role.lifetime == Lifetime::BeforeTraining {
        return Workload { reference: Reference::BeforeTraining(own), ..workload };
    }
    if own.is_none() && policy.adapter.is_some() {
        return Workload { reference: Reference::WholeRun(on_shared_base(policy)), ..workload };
    }
    let shared_at_first = if own.is_none() { policy.unpacked() } else { 0 };
    // A reference that follows the policy has a format of its own.
    let own = own.unwrap_or(Model { weights: player.role.weights, ..policy });
    Workload { reference: Reference::WholeRun(own), shared_at_first, ..workload }
}

/// A model whose adapter shares the base that the policy already holds.
fn on_shared_base(model: Model) -> Model {
    Model { adapter: model.adapter.map(|adapter| Adapter { shares_base: true, ..adapter }), ..model }
}

/// Sizes of a model without an adapter.
fn bare(player: &Player) -> Model {
    match player.role.head {
        Head::Language => Model::language(player.shape, player.role.weights),
        head @ Head::Scalar(_) => Model { head, ..Model::scalar(player.shape, player.role.weights) },
        Head::Labels => Model::classifier(player.shape, player.role.weights),
    }
}

/// Sizes of a trained model, with the adapter that the plan adds or continues.
fn model(plan: &Plan, start: &Start, player: &Player) -> Result<Model> {
    let config = match (&plan.config().lora, &player.dir.adapter, &start.model.dir.adapter) {
        (Some(lora), _, _) => lora.peft_config(&player.dir, task(player), String::new())?,
        (None, Some(own), Some(_)) => own.config.clone(),
        // A critic gets what the policy has.
        (None, None, Some(policys)) => policys.config.based_on(String::new(), task(player)),
        (None, _, None) => return Ok(bare(player)),
    };
    let size = player.shape.adapter_size(&config, &player.dir)?;
    let more = match player.role.head {
        Head::Scalar(layers) => layers.parameters(player.shape.head_width) - player.shape.head_width,
        Head::Language | Head::Labels => 0,
    };
    let (numbers, of_small) = ((size.numbers + more) as u64, size.of_small as u64);
    let adapter = Adapter { numbers, of_small, feed_forward: size.feed_forward, shares_base: false };
    Ok(Model { adapter: Some(adapter), ..bare(player) })
}

/// Memory per token as text and as ids, and additional memory per row.
const BYTES_A_TOKEN: usize = 12;
const BYTES_A_ROW: usize = 600;

/// A tokenizer needs several times the size of its file, for tables in both directions and merges by pair.
const TOKENIZER_FACTOR: u64 = 20;

fn tokenizer_bytes(start: &Start) -> u64 {
    let file = std::fs::metadata(start.model.dir.tokenizer_dir().join("tokenizer.json"));
    TOKENIZER_FACTOR * file.map_or(0, |file| file.len())
}

/// Adds a critic with its own trunk. It starts as a configured model, as the reward model, or as the policy.
fn with_critic(plan: &Plan, start: &Start, cast: &Cast<Player>, workload: Workload) -> Result<Workload> {
    let Some(player) = cast.critic.as_ref().filter(|player| matches!(player.role.trained_by, TrainedBy::Own(..)))
    else {
        return Ok(workload);
    };
    let (critic, shared) = match workload.policy.adapter {
        _ if player.is_named() => (model(plan, start, player)?, 0),
        Some(_) => (Model { head: player.role.head, ..on_shared_base(workload.policy) }, 0),
        None => (bare(player), bare(player).weights()),
    };
    let head_alone = matches!(player.role.trained_by, TrainedBy::Own(_, TrainedParts::Head));
    let critic = Model { head_alone, ..critic };
    Ok(Workload { critic: Some(critic), shared_at_first: workload.shared_at_first + shared, ..workload })
}

/// Adds the sampling of online methods in iterations and evaluations, and their updates.
fn online(plan: &Plan, workload: Workload, held_out: &[RowSize], iteration: &Iteration<'_>) -> Workload {
    let &Iteration { rollouts, mini_batches, update_epochs, regroups, .. } = iteration;
    let &RolloutKeys { group_size, max_new_tokens: new_tokens, .. } = rollouts;
    let sampling = |rows: &[RowSize], prompts: usize, group_size: usize| {
        let longest = rows.iter().map(|row| row.tokens).max().unwrap_or(0);
        Sampling { prompts, group_size, prompt_tokens: longest.saturating_sub(new_tokens), new_tokens }
    };
    let train = plan.train();
    let order = Order { purpose: Purpose::PromptOrder, ..workload.steps.order };
    let by_epochs = (train.epochs * order.rows as f64 / order.batch_size as f64).ceil().max(1.0) as usize;
    let count = train.max_steps.unwrap_or(by_epochs);
    // A search has as many rows per prompt as beams, whatever number it returns.
    let rows_each = train.evaluation.beams.map_or(train.evaluation.samples(), |beams| beams.num_beams);
    let processed = iteration.normalizes_over_supports;
    let language = |model: Model| Model { whole_logits: processed, ..model };
    let reference = match workload.reference {
        Reference::WholeRun(model) => Reference::WholeRun(language(model)),
        other => other,
    };
    let sampled = order.batch_size.saturating_mul(group_size).saturating_mul(new_tokens);
    let of_one = support_bytes(iteration, workload.policy.shape.vocabulary);
    let supports = if processed { sampled.saturating_mul(of_one) } else { 0 };
    Workload {
        policy: language(workload.policy),
        reference,
        host_bytes: workload.host_bytes.saturating_add(supports as u64),
        sampling: vec![
            sampling(&workload.rows, order.batch_size, group_size),
            sampling(held_out, held_out.len(), rows_each),
        ],
        steps: Steps { order, count, group_size, mini_batches, update_epochs, regroups },
        vectors: iteration.vectors,
        ..workload
    }
}

/// Adds the sampling of an offline method: one completion of each row of a step, which is then trained on.
fn with_sampling(mut workload: Workload, new_tokens: usize) -> Workload {
    let prompt_tokens = workload.rows.iter().map(|row| row.tokens - row.targets).max().unwrap_or(0);
    for row in &mut workload.rows {
        let prompt = row.tokens - row.targets;
        let (tokens, targets) = (row.tokens.max(prompt + new_tokens), row.targets.max(new_tokens));
        let longer = tokens - row.tokens;
        (row.computed, row.computed_after) = (row.computed + longer, row.computed_after + longer);
        (row.tokens, row.targets) = (tokens, targets);
    }
    let prompts = workload.steps.order.batch_size;
    let sampling = vec![Sampling { prompts, group_size: 1, prompt_tokens, new_tokens }];
    Workload { sampling, ..workload }
}

/// Maximum size of the support of one token: a list of ids, or one bit per id; see [`Support`].
fn support_bytes(iteration: &Iteration<'_>, vocabulary: usize) -> usize {
    let bits = vocabulary.div_ceil(64) * 8;
    // A mask of the method itself may leave more tokens than the sampling does.
    let is_sampled = iteration.rollouts.sampling.trained_logprobs == TrainedLogprobs::Processed;
    let list = iteration.rollouts.sampling.top_k.filter(|_| is_sampled).map(|k| 4 * k);
    size_of::<Support>() + list.map_or(bits, |list| bits.min(list))
}

/// Rejects a run that needs more memory than `machine` has, with the numbers and a suggestion. Checks the memory of the machine, and of the
/// GPU if its driver reports the size.
///
/// # Errors
/// [`Error::Input`] if the peak is above the total memory that this process may use.
pub fn check(workload: &Workload, machine: &Machine) -> Result<Forecast> {
    let forecast = workload.forecast();
    let hint = |way_out: String| {
        format!("{way_out}; `gradus plan` shows every phase, and `--no-memory-check` starts the run anyway")
    };
    let own = forecast.host_bytes.unwrap_or(0);
    if let Some(memory) = machine.memory_bytes.filter(|&memory| memory < own) {
        let message = format!(
            "the run needs {} of the machine's own memory in addition to the GPU's, but this machine has {}",
            gigabytes(own),
            gigabytes(memory)
        );
        return Err(Error::input(message).with_hint(hint("fewer or shorter rows need less".into())));
    }
    let (memory, who) = match &forecast.gpu {
        Some(gpu) => (machine.device_memory(gpu), format!("`{gpu}`")),
        None => (machine.memory_bytes, "this machine".to_owned()),
    };
    let Some(memory) = memory.filter(|&memory| memory < forecast.peak_bytes) else {
        return Ok(forecast);
    };
    let peak = forecast.peak();
    let message = format!(
        "the run needs {} at its peak ({}: {}), but {who} has {}",
        gigabytes(forecast.peak_bytes),
        peak.name,
        peak.parts().map(|(name, bytes)| format!("{name} {}", gigabytes(bytes))).collect::<Vec<_>>().join(", "),
        gigabytes(memory),
    );
    Err(Error::input(message).with_hint(hint(workload.suggestion(memory))))
}

/// Message for a GPU whose driver does not report its memory.
pub fn unknown_memory(forecast: &Forecast, machine: &Machine) -> Option<String> {
    let gpu = forecast.gpu.as_ref().filter(|gpu| machine.device_memory(gpu).is_none())?;
    let peak = gigabytes(forecast.peak_bytes);
    Some(format!(
        "the run needs {peak} of the memory of `{gpu}`, whose driver does not report its memory: the run is not \
         rejected"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelDir, ModelShape, WeightFormat};

    fn workload(tokens: usize, micro_batch_tokens: usize) -> Workload {
        let config = serde_json::json!({
            "model_type": "gpt2", "vocab_size": 1000, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 1024
        });
        let dir = ModelDir::unsaved(config.as_object().expect("an object").clone());
        let rows = vec![of_example(&Rows::texts(&[vec![0; tokens]])); 100];
        let (seed, purpose) = (crate::rng::Seed(1), Purpose::DataOrder);
        Workload {
            policy: Model::language(ModelShape::of(&dir).expect("a known family"), WeightFormat::F32),
            critic: None,
            reference: Reference::None,
            rewards: Vec::new(),
            metrics: Vec::new(),
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
            passes: MicroBatch::new(micro_batch_tokens, None),
            tries_longest: true,
            moments: Moments::Numbers(2),
            ranks: 1,
            shards_moments: false,
            offloads_moments: false,
            has_lagged: false,
            vectors: None,
            sampling: Vec::new(),
            sampling_weights: WeightFormat::F32,
            host_bytes: 0,
            gpu: None,
        }
    }

    #[test]
    fn a_gpu_is_asked_for_its_own_memory() {
        let machine = |gpu: Option<u64>, own: u64| Machine {
            memory_bytes: Some(own * 1_000_000),
            device_memory_bytes: gpu.map(|megabytes| ("gpu:1".to_owned(), megabytes * 1_000_000)).into_iter().collect(),
            ..Machine::detect()
        };
        let on_gpu = |tokens| workload(100, tokens).on_gpu("gpu:1".into());
        let wide = on_gpu(6400);
        // The driver's own share counts. The machine's memory is separate.
        let peak = wide.forecast().peak_bytes;
        assert!(peak > 512 << 20, "{peak}");
        assert!(check(&wide, &machine(Some(peak / 1_000_000 + 1), 200)).is_ok());
        let error = check(&wide, &machine(Some(600), 64_000)).expect_err("it needs more");
        assert!(error.to_string().contains("but `gpu:1` has 0.6 GB"), "{error}");
        let hint = error.hint().expect("a hint");
        let tokens: usize = hint.split(['`', ' ']).find_map(|word| word.parse().ok()).expect("a number");
        assert!(hint.starts_with(&format!("`micro_batch_tokens: {tokens}` would fit;")), "{hint}");
        assert!(check(&on_gpu(tokens), &machine(Some(600), 64_000)).is_ok(), "the advice holds: {hint}");
        let error = check(&wide, &machine(Some(80_000), 10)).expect_err("the program does not fit");
        assert!(error.to_string().contains("of the machine's own memory in addition to the GPU's"), "{error}");
        // If the driver does not report its memory, nothing is rejected, and the user is informed.
        let forecast = check(&wide, &machine(None, 200)).expect("nothing is known");
        let warning = unknown_memory(&forecast, &machine(None, 200)).expect("it is told");
        assert!(warning.contains("`gpu:1`, whose driver does not report"), "{warning}");
        assert_eq!(unknown_memory(&forecast, &machine(Some(1), 100)), None);
        // The suggestions in the order in which less and less memory suffices.
        let advice = (540..=1200).rev().step_by(5).filter_map(|megabytes| {
            let error = check(&workload(5000, 5000).on_gpu("gpu:1".into()), &machine(Some(megabytes), 64_000)).err()?;
            Some(error.hint()?.split([':', ' ']).next()?.to_owned())
        });
        let mut advice: Vec<String> = advice.collect();
        advice.dedup();
        assert_eq!(advice, ["`recompute", "`max_length", "even"]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let machine = |megabytes: u64| Machine { memory_bytes: Some(megabytes * 1_000_000), ..Machine::detect() };
        let wide = workload(100, 6400);
        assert!(check(&wide, &machine(1000)).is_ok());
        let error = check(&wide, &machine(220)).expect_err("it needs more");
        assert!(error.to_string().contains("but this machine has 0.2 GB"), "{error}");
        let hint = error.hint().expect("a hint");
        let tokens: usize = hint.split(['`', ' ']).find_map(|word| word.parse().ok()).expect("a number");
        assert!(hint.starts_with(&format!("`micro_batch_tokens: {tokens}` would fit;")), "{hint}");
        assert!(check(&workload(100, tokens), &machine(220)).is_ok(), "the advice holds: {hint}");
        // A single row is already too long. With less and less memory, first its blocks are recomputed, then it is cut.
        let advice = (100..=620).rev().filter_map(|megabytes| {
            let error = check(&workload(5000, 5000), &machine(megabytes)).err()?;
            Some(error.hint()?.split([':', ' ']).next()?.to_owned())
        });
        let mut advice: Vec<String> = advice.collect();
        advice.dedup();
        assert_eq!(advice, ["`recompute", "`max_length", "even"]);
        let error = check(&wide, &machine(10)).expect_err("not even the program fits");
        assert!(error.hint().expect("a hint").starts_with("even short rows would not fit"), "{error:?}");
    }
}

//! The model reads the text that a tool wrote within a completion, but it carries no loss. A failed step changes no weights.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::critic::SeparateCritic;
use super::estimator::{AdvantageKeys, WhitenedOver, WhiteningConfig};
use super::grouped::Grouped;
use super::grpo::{Grpo, GrpoConfig, GrpoLossType, MultiObjectiveAggregation, ScaleRewards};
use super::ppo::{PpoConfig, PpoQuirks};
use super::rloo::{Rloo, RlooConfig};
use super::step::{PolicyLoss, Surrogate, TokenLoss};
use super::*;
use crate::algorithm::actor::ValueHead;
use crate::host::read;
use crate::learner::optimizer::Optimizer;
use crate::loss::surrogate::{Clip, clipped_surrogate};
use crate::math::high_entropy_mask;
use crate::math::importance::Correction;
use crate::method::RolloutKeys;
use crate::model::{CausalLm, Layers, ModelDir, NamedTensor, RewardModel, Rows, named_tensors};
use crate::progress::Unwatched;
use crate::rollout::{Prompt, Rollout, StopReason, Turn};
use crate::settings::TrainConfig;

const PROMPT: [u32; 2] = [5, 6];
const ANSWERED: [u32; 5] = [7, 8, 9, 10, 2];
const PLAIN: [u32; 4] = [11, 7, 12, 2];

fn dir() -> ModelDir {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/qwen3");
    ModelDir::open(&path).expect("opens")
}

fn policy() -> CausalLm {
    CausalLm::load(&dir(), &Device::flex().autodiff()).expect("loads").train()
}

/// Two completions of one prompt. A tool wrote the third and fourth id of the first; their recorded logprobs are `of_tool`.
fn experience(policy: &CausalLm, settings: &Settings, of_tool: f32) -> Experience {
    let prompt = Prompt {
        row: 0,
        text: String::new(),
        ids: PROMPT.to_vec(),
        encoder_reads_prompt: false,
        messages: None,
        columns: serde_json::Map::new(),
    };
    let rollout = |ids: &[u32], turns: &[(usize, usize)]| Rollout {
        sampled_logprobs: vec![of_tool; ids.len()],
        logprobs: vec![of_tool; ids.len()],
        turns: turns.iter().map(|&(drawn, answered)| Turn { answered, ..Turn::unanswered(drawn) }).collect(),
        ..Rollout::one_turn(0, "", ids.to_vec(), StopReason::StopId)
    };
    let answered = rollout(&ANSWERED, &[(2, 2), (1, 0)]);
    let mut rollouts = Rollouts {
        prompts: vec![prompt],
        rollouts: vec![answered, rollout(&PLAIN, &[(PLAIN.len(), 0)])],
        group_size: 2,
        tokenizer: None,
    };
    let own = actor::logprobs(policy, &rollouts, 1.0, settings.passes);
    assert_eq!(own.iter().map(Vec::len).collect::<Vec<_>>(), [3, 4]);
    for (rollout, own_t) in rollouts.rollouts.iter_mut().zip(&own) {
        rollout.replace_logprobs(own_t);
    }
    assert!(rollouts.rollouts[0].logprobs[2].to_bits() == of_tool.to_bits());
    let rewards = [vec![0.0, 0.0, 0.0, 0.0, 1.0], vec![0.0; 4]];
    let rewards = rollouts.rollouts.iter().zip(&rewards).map(|(rollout, r)| Some(rollout.rewards_of_counted(r)));
    let rewards = rewards.collect();
    Experience::new(rollouts, rewards, None)
}

fn settings() -> Settings {
    let config = TrainConfig { shuffle: false, max_grad_norm: 1e6, ..TrainConfig::default() };
    Settings::new(&config, 1, 0.01, "eval_reward")
}

/// Returns the actor after one update; `of_tool` is the recorded logprob of the tool's tokens.
fn updated(algorithm: &mut dyn Algorithm, value_head: bool, of_tool: f32) -> (Actor, Advantages) {
    let (policy, settings) = (policy(), settings());
    let value_head = value_head.then(|| ValueHead::zeros(policy.trunk.dims().1, &policy.trunk.device()));
    let experience = experience(&policy, &settings, of_tool);
    let mut learner = Learner::new(Actor { policy, value_head }, Optimizer::new(settings.optimizer));
    let advantages = algorithm.advantages(&learner.frozen(), &experience, &settings);
    let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
    algorithm.update(&mut learner, &experience, &advantages, at).expect("finite");
    (learner.frozen(), advantages)
}

#[test]
fn a_loss_of_a_program_trains_like_a_built_in_one() {
    let (policy, settings) = (policy(), settings());
    let experience = experience(&policy, &settings, 0.0);
    let advantages = Advantages::of_rollouts(&experience, &[0.5, -0.5]);
    let update = |surrogate: Surrogate| {
        let loss = PolicyLoss { surrogate, ..Grpo::new(&GrpoConfig::default()).loss() };
        let grouped = Grouped { loss, update_epochs: 2, mini_batches: 1, masks_truncated: false };
        let actor = Actor { policy: policy.clone(), value_head: None };
        let mut learner = Learner::new(actor, Optimizer::new(settings.optimizer));
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        grouped.update(&mut learner, &experience, &advantages, at).expect("finite");
        named_tensors(&learner.frozen().policy)
    };
    let clip = Clip::symmetric(0.2);
    let custom = TokenLoss::new(move |inputs| clipped_surrogate(inputs.log_ratios_m, inputs.advantages_m, &clip));
    let found = update(Surrogate::Custom(custom));
    assert_eq!(found, update(Surrogate::Clipped(clip)));
    assert_ne!(found, update(Surrogate::PolicyGradient));
}

#[test]
fn grpo_learns_from_what_the_policy_wrote() {
    let mut grpo = Grpo::new(&GrpoConfig {
        rollouts: RolloutKeys::new(2, 512, 1.0),
        scale_rewards: ScaleRewards::None,
        ..GrpoConfig::default()
    });
    let (found, advantages) = updated(&mut grpo, false, f32::NAN);
    assert_eq!(advantages_of(&advantages), [vec![0.5; 3], vec![-0.5; 4]]);

    // At ratio 1 the gradient is that of −(½ Σ logp of 7, 8, 2 − ½ Σ logp of all of the second) / 7.
    let (model, settings) = (policy(), settings());
    let whole = [[&PROMPT[..], &ANSWERED].concat(), [&PROMPT[..], &PLAIN].concat()];
    let [answered, plain] = whole.map(|ids| model.logprobs(&model.batch(&Rows::texts(&[ids])), 1.0).logprobs_m);
    let written = Tensor::cat(vec![answered.clone().narrow(0, 1, 2), answered.narrow(0, 5, 1)], 0);
    let loss = (plain.narrow(0, 1, 4).sum() - written.sum()) * (0.5 / 7.0);
    let mut learner = Learner::new(Actor { policy: model, value_head: None }, Optimizer::new(settings.optimizer));
    learner.accumulate(&loss);
    learner.step(settings.learning_rate, settings.max_grad_norm).expect("finite");

    let (found, expected) = (named_tensors(&found.policy), named_tensors(&learner.frozen().policy));
    let start = named_tensors(&policy());
    let mut moved = 0.0f32;
    for ((found, expected), start) in found.iter().zip(&expected).zip(&start) {
        for ((f, e), s) in found.values.iter().zip(expected.values.iter()).zip(start.values.iter()) {
            moved = moved.max((e - s).abs());
            // The optimizer turns rounding in a gradient near 0 into a step; most stay below a thousandth of a full step.
            assert!((f - e).abs() <= 1e-3 * 0.01, "{}: {f} instead of {e}", found.name);
        }
    }
    assert!(moved > 0.005, "the step moves weights by {moved}");
}

/// Returns the advantages of each rollout.
fn advantages_of(advantages: &Advantages) -> Vec<Vec<f32>> {
    advantages.targets.iter().map(|targets| targets.advantages_t.clone()).collect()
}

/// Returns the policy after one update, with `change` applied to the experience and its advantages.
fn taught(
    mut algorithm: impl Algorithm,
    value_head: bool,
    change: impl Fn(&mut Experience, &mut Advantages),
) -> CausalLm {
    let (policy, settings) = (policy(), settings());
    let value_head = value_head.then(|| ValueHead::zeros(policy.trunk.dims().1, &policy.trunk.device()));
    let mut experience = experience(&policy, &settings, f32::NAN);
    let mut learner = Learner::new(Actor { policy, value_head }, Optimizer::new(settings.optimizer));
    let mut advantages = algorithm.advantages(&learner.frozen(), &experience, &settings);
    change(&mut experience, &mut advantages);
    let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
    algorithm.update(&mut learner, &experience, &advantages, at).expect("finite");
    learner.frozen().policy
}

#[test]
fn ratios_of_a_sampler_multiply_losses() {
    let ratios = || [vec![0.5; 3], vec![2.0, 0.0, 1.0, 0.25]];
    let by_ratios = |experience: &mut Experience, _: &mut Advantages| {
        for (scored, ratios_t) in experience.rollouts.iter_mut().zip(ratios()) {
            scored.off_policy = Some(OffPolicy { sampler_t: vec![-1.0; ratios_t.len()], ratios_t: Some(ratios_t) });
        }
    };
    let by_hand = |_: &mut Experience, advantages: &mut Advantages| {
        for (targets, ratios_t) in advantages.targets.iter_mut().zip(ratios()) {
            let each = targets.advantages_t.iter_mut().zip(ratios_t);
            each.for_each(|(advantage, ratio)| *advantage *= ratio);
        }
    };
    let grpo = |loss_type| {
        Grpo::new(&GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            scale_rewards: ScaleRewards::None,
            loss_type,
            ..GrpoConfig::default()
        })
    };
    for loss_type in [GrpoLossType::Dapo, GrpoLossType::Sapo, GrpoLossType::Grpo] {
        let found = named_tensors(&taught(grpo(loss_type), false, by_ratios));
        assert!(found == named_tensors(&taught(grpo(loss_type), false, by_hand)), "{loss_type:?}");
        assert!(found != named_tensors(&taught(grpo(loss_type), false, |_, _| ())), "{loss_type:?}");
    }
    // Advantages may be whitened over the mini-batch. The ratios are applied after that.
    let ppo = |whiten_advantages| {
        let whitening = WhiteningConfig { advantages_over: WhitenedOver::MiniBatch, ..WhiteningConfig::default() };
        let quirks = PpoQuirks { whitening, ..PpoQuirks::default() };
        let config = PpoConfig {
            advantages: AdvantageKeys::new(1.0, 0.95, whiten_advantages),
            quirks,
            update_epochs: 1,
            ..PpoConfig::default()
        };
        config.actor_critic(Critic::Shared, None)
    };
    let found = named_tensors(&taught(ppo(false), true, by_ratios));
    assert_eq!(found, named_tensors(&taught(ppo(false), true, by_hand)));
    let whitened = named_tensors(&taught(ppo(true), true, by_ratios));
    assert!(whitened != named_tensors(&taught(ppo(true), true, by_hand)), "the product is not whitened");
}

#[test]
fn a_sequence_that_is_bad_and_far_from_its_sampler_teaches_nothing() {
    let grpo = |off_policy_mask_threshold| {
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            scale_rewards: ScaleRewards::None,
            ..GrpoConfig::default()
        };
        Grpo::new(&GrpoConfig { off_policy_mask_threshold, ..config })
    };
    // The second sequence has a negative advantage.
    let far = |experience: &mut Experience, _: &mut Advantages| {
        for scored in &mut experience.rollouts {
            let sampler_t = vec![0.0; scored.rollout.counted()];
            scored.off_policy = Some(OffPolicy { sampler_t, ratios_t: None });
        }
    };
    let without = |_: &mut Experience, advantages: &mut Advantages| advantages.targets[1].advantages_t.fill(0.0);
    let masked = named_tensors(&taught(grpo(Some(0.1)), false, far));
    assert_eq!(masked, named_tensors(&taught(grpo(None), false, without)));
    assert_ne!(masked, named_tensors(&taught(grpo(Some(1e3)), false, far)));
    // Without another sampler, the sampler is the policy before the update, and nothing has moved yet.
    let plain = named_tensors(&taught(grpo(None), false, |_, _| ()));
    assert_eq!(plain, named_tensors(&taught(grpo(Some(0.0)), false, |_, _| ())));
}

#[test]
fn ppo_counts_time_in_what_the_policy_wrote() {
    let config =
        PpoConfig { advantages: AdvantageKeys::new(1.0, 0.95, false), update_epochs: 1, ..PpoConfig::default() };
    let run = |of_tool| updated(&mut config.actor_critic(Critic::Shared, None), true, of_tool);
    let (actor, advantages) = run(f32::NAN);
    // The critic returns 0, γ = 1, λ = 0.95, and the third of three steps has reward 1: 0.95², 0.95, 1.
    let expected = [vec![0.9025, 0.95, 1.0], vec![0.0; 4]];
    for (found, expected) in advantages_of(&advantages).concat().iter().zip(expected.concat()) {
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    }
    let (other, _) = run(0.0);
    assert_eq!(named_tensors(&actor.policy), named_tensors(&other.policy), "what was recorded of a tool is not read");
    assert!(read(&actor.value_head.expect("a head").weight.val()).iter().any(|weight| *weight != 0.0));
}

#[test]
fn a_critic_whose_gradient_is_not_finite_keeps_the_policy_from_stepping() {
    let updated = |value_coefficient: f64| {
        let (policy, settings) = (policy(), settings());
        let experience = experience(&policy, &settings, 0.0);
        let learner = Learner::new(RewardModel::critic_from(&policy), Optimizer::new(settings.optimizer));
        let critic = SeparateCritic { learner, learning_rate: 0.01, source: dir(), pad_id: 0 };
        let config = PpoConfig { value_coefficient, update_epochs: 1, ..PpoConfig::default() };
        let mut ppo = config.actor_critic(Critic::Separate(Box::new(critic)), None);
        let mut actor = Learner::new(Actor { policy, value_head: None }, Optimizer::new(settings.optimizer));
        let advantages = ppo.advantages(&actor.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let outcome = ppo.update(&mut actor, &experience, &advantages, at).map(drop);
        let versions = [actor.version(), ppo.learners()[0].1.version];
        (outcome, versions, named_tensors(&actor.frozen().policy) == named_tensors(&self::policy()))
    };
    // The loss is checked before it is weighted, so it is finite although its gradient is not.
    let (outcome, versions, is_unchanged) = updated(f64::MAX);
    let message = outcome.expect_err("not finite");
    assert!(message.starts_with("the gradient of `") && message.ends_with("` is not finite"), "{message}");
    assert_eq!((versions, is_unchanged), ([0, 0], true));
    let (outcome, versions, is_unchanged) = updated(1.0);
    assert_eq!((outcome, versions, is_unchanged), (Ok(()), [1, 1], false));
}

#[test]
fn the_learning_rate_of_ppo_may_rise_within_an_iteration() {
    let moves = |lr_per_step: bool| {
        let policy = policy();
        let train = TrainConfig { shuffle: false, warmup_steps: 1.0, ..TrainConfig::default() };
        let settings = Settings::new(&train, 2, 0.01, "eval_reward");
        let experience = experience(&policy, &settings, 0.0);
        let value_head = Some(ValueHead::zeros(policy.trunk.dims().1, &policy.trunk.device()));
        let mut learner = Learner::new(Actor { policy, value_head }, Optimizer::new(settings.optimizer));
        let quirks = PpoQuirks { lr_per_step, ..PpoQuirks::default() };
        let config =
            PpoConfig { rollouts: RolloutKeys::new(1, 53, 1.0), update_epochs: 2, quirks, ..PpoConfig::default() };
        let mut ppo = config.actor_critic(Critic::Shared, None);
        let advantages = ppo.advantages(&learner.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: settings.multiplier(0), settings: &settings, progress: &Unwatched };
        ppo.update(&mut learner, &experience, &advantages, at).expect("finite");
        named_tensors(&learner.frozen().policy) != named_tensors(&self::policy())
    };
    // One iteration of warm-up: the first step has rate 0, and the second has half the peak, or 0 again.
    assert_eq!([moves(false), moves(true)], [false, true]);
}

/// The GPT-2 fixture with dropout.
fn dropping_gpt2() -> tempfile::TempDir {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models/gpt2");
    let path = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(fixture).expect("a model").flatten() {
        std::fs::copy(entry.path(), path.path().join(entry.file_name())).expect("copied");
    }
    let config = path.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("read").replace("\"resid_pdrop\": 0.0", "\"resid_pdrop\": 0.3");
    std::fs::write(&config, text).expect("written");
    path
}

#[test]
fn ppo_drops_out_in_updates_alone() {
    let path = dropping_gpt2();
    let dir = ModelDir::open(path.path()).expect("opens");
    let update = |drops: bool| {
        let mut policy = CausalLm::load(&dir, &Device::flex().autodiff()).expect("loads").train();
        policy.trunk.set_dropout(drops);
        let settings = settings();
        let experience = experience(&policy, &settings, 0.0);
        let recorded: Vec<Vec<f32>> = experience.iter().map(|rollout| rollout.logprobs.clone()).collect();
        let value_head = Some(ValueHead::zeros(policy.trunk.dims().1, &policy.trunk.device()));
        let mut learner = Learner::new(Actor { policy, value_head }, Optimizer::new(settings.optimizer));
        let config = PpoConfig { rollouts: RolloutKeys::new(1, 53, 1.0), update_epochs: 1, ..PpoConfig::default() };
        let mut ppo = config.actor_critic(Critic::Shared, None);
        let advantages = ppo.advantages(&learner.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let report = ppo.update(&mut learner, &experience, &advantages, at).expect("finite");
        let ratio = report.metrics.value("val/ratio").expect("one");
        (recorded, advantages_of(&advantages), ratio, named_tensors(&learner.frozen().policy))
    };
    let (plain, dropped, again) = (update(false), update(true), update(true));
    assert_eq!((&plain.0, &plain.1), (&dropped.0, &dropped.1), "what was sampled is scored as it was sampled");
    assert!((plain.2 - 1.0).abs() < 1e-6 && (dropped.2 - 1.0).abs() > 1e-4, "{} and {}", plain.2, dropped.2);
    assert_ne!(plain.3, dropped.3);
    assert_eq!(dropped, again, "the masks are those of the step");
}

#[test]
fn ratios_of_groups_are_to_logprobs_with_dropout() {
    let dir = dropping_gpt2();
    let dir = ModelDir::open(dir.path()).expect("opens");
    let update = |drops: bool, update_epochs: usize| {
        let mut policy = CausalLm::load(&dir, &Device::flex().autodiff()).expect("loads").train();
        policy.trunk.set_dropout(drops);
        let settings = settings();
        let experience = experience(&policy, &settings, 0.0);
        let mut learner = Learner::new(Actor { policy, value_head: None }, Optimizer::new(settings.optimizer));
        // Every ratio other than 1 is clipped.
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            update_epochs,
            kl_coefficient: 0.0,
            clip_range: 1e-4,
            ..GrpoConfig::default()
        };
        let mut grpo = Grpo::new(&config);
        let advantages = grpo.advantages(&learner.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: 0.0, settings: &settings, progress: &Unwatched };
        let report = grpo.update(&mut learner, &experience, &advantages, at).expect("finite");
        let value = |name: &str| report.metrics.value(name).expect("it is told");
        [value("clip_ratio/region_mean"), value("loss"), value("grad_norm")]
    };
    let (plain, dropped, again, twice) = (update(false, 1), update(true, 1), update(true, 1), update(true, 2));
    assert_eq!((plain[0], dropped[0]), (0.0, 0.0), "the only step of an iteration has no ratio but 1");
    assert!((plain[1] - dropped[1]).abs() < 1e-6, "so its loss is that of the advantages: {plain:?} {dropped:?}");
    assert!((plain[2] - dropped[2]).abs() > 1e-6, "and its gradient that under the masks: {plain:?} {dropped:?}");
    assert_eq!(dropped, again, "the masks are those of the step");
    assert!(twice[0] > 0.0, "with several steps the old logprobs have masks of their own: {twice:?}");
    assert_eq!(update(false, 2)[0], 0.0, "a learning rate of 0 moves nothing");
}

#[test]
fn extremes_of_clipping_are_averaged_over_updates() {
    let (policy, settings) = (policy(), settings());
    let experience = experience(&policy, &settings, 0.0);
    let mut learner = Learner::new(Actor { policy, value_head: None }, Optimizer::new(settings.optimizer));
    let config = GrpoConfig {
        rollouts: RolloutKeys::new(2, 512, 1.0),
        update_epochs: 2,
        kl_coefficient: 0.0,
        clip_range: 1e-4,
        ..GrpoConfig::default()
    };
    let mut grpo = Grpo::new(&config);
    let advantages = grpo.advantages(&learner.frozen(), &experience, &settings);
    let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
    let report = grpo.update(&mut learner, &experience, &advantages, at).expect("finite");
    let value = |name: &str| report.metrics.value(name).expect("it is told");
    // The first of two updates clips nothing. The second clips high in the first completion alone, which has 3 of the 7 tokens.
    let clipped = value("clip_ratio/high_mean") * 14.0;
    assert!(clipped > 0.0);
    assert!((value("clip_ratio/high_max") - clipped / 3.0 / 2.0).abs() < 1e-9, "{clipped}");
    assert_eq!(value("clip_ratio/low_min"), 0.0);
}

#[test]
fn statistics_count_tokens_whose_sampler_ratio_is_0() {
    let told = |sampler_ratio: f32| {
        let (policy, settings) = (policy(), settings());
        let mut experience = experience(&policy, &settings, 0.0);
        // The first completion has a positive advantage and is clipped high, the second a negative one and is clipped low.
        for (scored, shift) in experience.rollouts.iter_mut().zip([-1.0f32, 1.0]) {
            let old_t: Vec<f32> = scored.rollout.counted_logprobs().iter().map(|logprob| logprob + shift).collect();
            scored.rollout.replace_logprobs(&old_t);
            // The sampler is far from the policy.
            let (sampler_t, ratios_t) = (vec![0.0; old_t.len()], Some(vec![sampler_ratio; old_t.len()]));
            scored.off_policy = Some(OffPolicy { sampler_t, ratios_t });
        }
        let mut learner = Learner::new(Actor { policy, value_head: None }, Optimizer::new(settings.optimizer));
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            kl_coefficient: 0.0,
            off_policy_mask_threshold: Some(0.1),
            ..GrpoConfig::default()
        };
        let mut grpo = Grpo::new(&config);
        let advantages = grpo.advantages(&learner.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let report = grpo.update(&mut learner, &experience, &advantages, at).expect("finite");
        let names = ["clip_ratio/high_mean", "clip_ratio/low_mean", "clip_ratio/region_mean", "off_policy_masked"];
        names.map(|name| report.metrics.value(name).expect("it is told"))
    };
    let found = told(0.0);
    for (found, expected) in found.into_iter().zip([3.0 / 7.0, 4.0 / 7.0, 1.0, 4.0 / 7.0]) {
        assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
    }
    assert_eq!(found, told(1.0));
}

#[test]
fn masked_completions_do_not_count_in_the_comparison_with_the_sampler() {
    let correction = |of_sequences: bool| Correction { of_sequences, masks: false, low: None, high: Some(3.0) };
    let told = |of_sequences: bool| {
        let mut experience = experience(&policy(), &settings(), 0.0);
        // The first completion is cut off and far from the sampler. The second has 4 tokens, each a quarter nat away.
        experience.rollouts[0].rollout.stop = StopReason::Length;
        for (scored, sampled) in experience.rollouts.iter_mut().zip([-3.0f32, -1.25]) {
            let counted = scored.rollout.counted();
            scored.rollout.replace_logprobs(&vec![-1.0; counted]);
            scored.rollout.sampled_logprobs.fill(sampled);
        }
        let mut stats = Stats::default();
        experience.compare_with_sampler(Some(&correction(of_sequences)), true, &mut stats);
        let ratio = ["mean", "min", "max"].map(|what| format!("sampling/importance_sampling_ratio/{what}"));
        let difference = ["mean", "max"].map(|what| format!("sampling/sampling_logp_difference/{what}"));
        let names: Vec<String> = ratio.into_iter().chain(difference).collect();
        names.iter().map(|name| stats.value(name).expect("logged")).collect::<Vec<f64>>()
    };
    let (of_token, of_sequence) = (0.25f64.exp(), 1.0f64.exp());
    let close = |found: &[f64], expected: [f64; 5]| {
        let is_close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
        assert!(is_close, "{found:?} instead of {expected:?}");
    };
    close(&told(false), [of_token, of_token, of_token, 0.25, 0.25]);
    close(&told(true), [f64::midpoint(1.0, of_sequence), 1.0, of_sequence, 0.25, 0.25]);
}

#[test]
fn the_policy_loss_has_a_weight() {
    let moved = |policy_coefficient: f64| {
        let (policy, settings) = (policy(), settings());
        let experience = experience(&policy, &settings, 0.0);
        let value_head = Some(ValueHead::zeros(policy.trunk.dims().1, &policy.trunk.device()));
        let mut learner = Learner::new(Actor { policy, value_head }, Optimizer::new(settings.optimizer));
        let config = PpoConfig {
            rollouts: RolloutKeys::new(1, 53, 1.0),
            update_epochs: 1,
            value_coefficient: 0.0,
            policy_coefficient,
            ..PpoConfig::default()
        };
        let mut ppo = config.actor_critic(Critic::Shared, None);
        let mut advantages = ppo.advantages(&learner.frozen(), &experience, &settings);
        // A loss that is not 0 although all ratios are 1.
        advantages.targets[0].advantages_t.iter_mut().for_each(|advantage| *advantage += 0.5);
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let report = ppo.update(&mut learner, &experience, &advantages, at).expect("finite");
        ["loss/policy_avg", "loss", "grad_norm"].map(|name| report.metrics.value(name).expect("it is told"))
    };
    let (one, half, none) = (moved(1.0), moved(0.5), moved(0.0));
    assert!(one[0] == half[0] && one[0] == one[1] && one[0] != 0.0, "{one:?} {half:?}");
    for i in [1, 2] {
        assert!((half[i] - one[i] / 2.0).abs() < 1e-5 * one[i].abs(), "{one:?} {half:?}");
    }
    assert_eq!((none[1], none[2]), (0.0, 0.0));
}

#[test]
fn a_completion_that_is_cut_off_loses_the_penalty_before_rewards_are_compared() {
    let (policy, settings) = (policy(), settings());
    let mut experience = experience(&policy, &settings, 0.0);
    // Rewards 1 and 0; the first completion never ended.
    experience.rollouts[0].rollout.stop = StopReason::Length;
    assert_eq!(experience.penalized_totals(None), [Some(1.0), Some(0.0)]);
    assert_eq!(experience.penalized_totals(Some(3.0)), [Some(-2.0), Some(0.0)]);
    let actor = Actor { policy, value_head: None };
    let first =
        |algorithm: &mut dyn Algorithm| algorithm.advantages(&actor, &experience, &settings).targets[0].advantages_t[0];
    let grpo = |missing_eos_penalty| {
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            scale_rewards: ScaleRewards::None,
            missing_eos_penalty,
            ..GrpoConfig::default()
        };
        first(&mut Grpo::new(&config))
    };
    // Minus the mean of the group: 1 − 0.5, and −2 + 1.
    assert_eq!([grpo(None), grpo(Some(3.0))], [0.5, -1.0]);
    let rloo = |missing_eos_penalty| {
        let config = RlooConfig { kl_coefficient: 0.0, missing_eos_penalty, ..RlooConfig::default() };
        first(&mut Rloo::new(&config))
    };
    // Minus the other one's: 1 − 0, and −2 − 0.
    assert_eq!([rloo(None), rloo(Some(3.0))], [1.0, -2.0]);
}

/// Loss and gradient norm of an update, and the weights after it.
type Updated = ([Option<f64>; 2], Vec<NamedTensor<'static>>);

/// Updates the policy once per experience.
fn updates(config: &GrpoConfig, settings: &Settings, experiences: &[Experience]) -> Vec<Updated> {
    let actor = Actor { policy: policy(), value_head: None };
    let (mut grpo, mut learner) = (Grpo::new(config), Learner::new(actor, Optimizer::new(settings.optimizer)));
    let mut update = |experience: &Experience| {
        let advantages = grpo.advantages(&learner.frozen(), experience, settings);
        let at = Update { iteration: 0, multiplier: 1.0, settings, progress: &Unwatched };
        let report = grpo.update(&mut learner, experience, &advantages, at).expect("finite");
        (["loss", "grad_norm"].map(|name| report.metrics.value(name)), named_tensors(&learner.frozen().policy))
    };
    experiences.iter().map(&mut update).collect()
}

#[test]
fn micro_batches_of_masked_completions_count_in_their_mean() {
    let losses = |micro_batch_size: Option<usize>, masked: usize| {
        let settings = in_passes_of(micro_batch_size);
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            scale_rewards: ScaleRewards::None,
            loss_type: GrpoLossType::Bnpo,
            mask_truncated_completions: true,
            ..GrpoConfig::default()
        };
        let mut experience = experience(&policy(), &settings, 0.0);
        experience.rollouts[masked].rollout.stop = StopReason::Length;
        let (values, _) = updates(&config, &settings, &[experience]).remove(0);
        values.map(|value| value.expect("logged"))
    };
    // The advantages are 0.5 and −0.5, and all ratios are 1. So the mean of the completion that is left is −0.5 or 0.5.
    for (masked, mean) in [(0, 0.5), (1, -0.5)] {
        let (whole, split) = (losses(None, masked), losses(Some(1), masked));
        assert!((whole[0] - mean).abs() < 1e-5, "one micro-batch: {whole:?}");
        assert!((split[0] - mean / 2.0).abs() < 1e-5, "the mean of the other micro-batch is 0: {split:?}");
        assert!((split[1] - whole[1] / 2.0).abs() < 1e-4 * whole[1], "{whole:?} {split:?}");
    }
}

#[test]
fn the_optimizer_steps_when_all_completions_are_masked() {
    let settings = settings();
    let config = GrpoConfig {
        rollouts: RolloutKeys::new(2, 512, 1.0),
        mask_truncated_completions: true,
        entropy_coefficient: 0.01,
        ..GrpoConfig::default()
    };
    let kept = experience(&policy(), &settings, 0.0);
    let mut masked = kept.clone();
    masked.rollouts.iter_mut().for_each(|scored| scored.rollout.stop = StopReason::Length);
    let found = updates(&config, &settings, &[masked.clone(), kept, masked]);
    let [(first, start), (_, moved), (last, after)] = found.as_slice() else { panic!("three updates") };
    assert_eq!([*first, *last], [[Some(0.0), Some(0.0)]; 2]);
    assert_eq!(*start, named_tensors(&policy()), "without moments, a gradient of 0 moves nothing");
    assert_ne!(moved, start);
    assert_ne!(after, moved, "the moments of the step before move the weights");
}

/// Settings of an update with at most this many completions per pass.
fn in_passes_of(micro_batch_size: Option<usize>) -> Settings {
    let train = TrainConfig { shuffle: false, max_grad_norm: 1e6, micro_batch_size, ..TrainConfig::default() };
    Settings::new(&train, 1, 0.01, "eval_reward")
}

#[test]
fn only_tokens_of_high_entropy_carry_the_loss() {
    let grpo = |top_entropy_quantile| {
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            scale_rewards: ScaleRewards::None,
            top_entropy_quantile,
            ..GrpoConfig::default()
        };
        Grpo::new(&config)
    };
    let by_hand = |experience: &mut Experience, advantages: &mut Advantages| {
        let policy = policy();
        let batch = actor::batch(&policy.trunk, experience, &[0, 1]);
        let mask = high_entropy_mask(&read(&policy.logprobs(&batch, 1.0).entropies_m), 0.5);
        // The first token of both completions has the same distribution, at the bound.
        assert_eq!(mask, [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
        let advantages_m = advantages.targets.iter_mut().flat_map(|targets| &mut targets.advantages_t);
        advantages_m.zip(mask).for_each(|(advantage, kept)| *advantage *= kept);
    };
    let masked = named_tensors(&taught(grpo(0.5), false, |_, _| ()));
    assert_eq!(masked, named_tensors(&taught(grpo(1.0), false, by_hand)));
    assert_ne!(masked, named_tensors(&taught(grpo(1.0), false, |_, _| ())));
}

#[test]
fn tokens_of_high_entropy_are_chosen_from_the_whole_mini_batch() {
    let told = |micro_batch_size| {
        let settings = in_passes_of(micro_batch_size);
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            scale_rewards: ScaleRewards::None,
            top_entropy_quantile: 0.0,
            entropy_coefficient: 0.5,
            ..GrpoConfig::default()
        };
        let experience = experience(&policy(), &settings, 0.0);
        let mut learner =
            Learner::new(Actor { policy: policy(), value_head: None }, Optimizer::new(settings.optimizer));
        let mut grpo = Grpo::new(&config);
        let advantages = grpo.advantages(&learner.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let report = grpo.update(&mut learner, &experience, &advantages, at).expect("finite");
        ["policy_loss", "loss"].map(|name| report.metrics.value(name).expect("logged"))
    };
    // The token is the third of the second completion, which has the advantage −0.5. The denominator counts all seven.
    let highest = 5.438_551;
    let expected = [0.5 / 7.0, 0.5 / 7.0 - 0.5 * highest];
    for micro_batch_size in [None, Some(1)] {
        let found = told(micro_batch_size);
        let is_close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5);
        assert!(is_close, "{micro_batch_size:?}: {found:?} instead of {expected:?}");
    }
}

#[test]
fn an_adaptive_entropy_bonus_continues_from_its_state() {
    let settings = settings();
    let config = GrpoConfig {
        rollouts: RolloutKeys::new(2, 512, 1.0),
        use_adaptive_entropy: true,
        entropy_target: 100.0,
        entropy_coefficient_delta: 0.1,
        ..GrpoConfig::default()
    };
    let experience = experience(&policy(), &settings, 0.0);
    let update = |grpo: &mut Grpo| {
        let actor = Actor { policy: policy(), value_head: None };
        let mut learner = Learner::new(actor, Optimizer::new(settings.optimizer));
        let advantages = grpo.advantages(&learner.frozen(), &experience, &settings);
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let report = grpo.update(&mut learner, &experience, &advantages, at).expect("finite");
        ["loss", "policy_loss", "entropy", "entropy_coef"].map(|name| report.metrics.value(name).expect("logged"))
    };
    let mut whole = Grpo::new(&config);
    let [loss, policy_loss, _, coefficient] = update(&mut whole);
    assert_eq!((loss, coefficient), (policy_loss, 0.1), "the first step has no bonus");

    let written = serde_json::to_string(&whole.state()).expect("JSON");
    let saved = serde_json::from_str(&written).expect("an object");
    let mut resumed = Grpo::new(&config).resumed(&saved);
    let second = update(&mut whole);
    assert_eq!(update(&mut resumed), second);
    assert_ne!(update(&mut Grpo::new(&config)), second);
    let [loss, policy_loss, entropy, coefficient] = second;
    assert!((policy_loss - 0.1 * entropy - loss).abs() < 1e-5, "{second:?}");
    assert_eq!(coefficient, 0.2);
    assert!(Grpo::new(&GrpoConfig::default()).state().is_empty(), "a constant coefficient is no state");
}

#[test]
fn parts_of_a_reward_are_normalized_before_they_are_added() {
    let (policy, settings) = (policy(), settings());
    let part = |name: &str, weight, total| PartTotal { name: name.into(), weight, total };
    // The second part does not apply to the second completion.
    let parts = vec![vec![part("a", 2.0, 1.0), part("b", 1.0, -50.0)], vec![part("a", 2.0, 0.0)]];
    let experience = experience(&policy, &settings, 0.0).with_parts(parts);
    let actor = Actor { policy, value_head: None };
    let advantages = |multi_objective_aggregation| {
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            multi_objective_aggregation,
            ..GrpoConfig::default()
        };
        let found = Grpo::new(&config).advantages(&actor, &experience, &settings);
        [0, 1].map(|i| found.targets[i].advantages_t[0])
    };
    let [first, second] = advantages(MultiObjectiveAggregation::NormalizeThenSum);
    // Twice ±½ / (√½ + 1e-4), then divided by its own deviation, √2 times that, plus 1e-4.
    let sum = 1.0 / (0.5f64.sqrt() + 1e-4);
    let expected = sum / (2.0f64.sqrt() * sum + 1e-4);
    assert!((f64::from(first) - expected).abs() < 1e-6, "{first} instead of {expected}");
    assert_eq!(second, -first);
    assert_ne!(advantages(MultiObjectiveAggregation::SumThenNormalize), [first, second]);
}

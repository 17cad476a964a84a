//! The online loop: PPO, NLPO, A2C, TRPO, GRPO and RLOO are this loop with another [`Algorithm`].

use std::path::Path;
use std::time::Instant;

use rand::seq::SliceRandom;
use serde_json::{Value, json};

use super::longest;
use super::recorder::{Measured, Recorder, Seen, Verdict};
use super::rescue;
use super::rollout_log::RolloutLog;
use super::warnings::Shown;
use super::{EvalSplit, SaveFor};
use crate::algorithm::actor::{logprobs, raw_logprobs};
use crate::algorithm::{Actor, Algorithm, Experience, KlLimit, Update};
use crate::batches::{Order, Weighted};
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Measuring, observe_logprobs, observe_rewards, observe_rollouts};
use crate::generate::SamplingParams;
use crate::learner::Learner;
use crate::math::{Baseline, Scale, group_advantages};
use crate::model::CausalLm;
use crate::observer::Event;
use crate::progress::Progress;
use crate::reward::{self, Reward, Score};
use crate::rng::{Purpose, Stream};
use crate::rollout::{self, Prompt, Rollouts, Sampler};
use crate::run::Metrics;
use crate::settings::Settings;
use crate::stats::Stats;
use crate::text::Tokenizer;

/// Before the names of the actor's parameters in a checkpoint.
pub const ACTOR_PREFIX: &str = "actor.";

/// What the loop trains on, and how.
pub struct Online<'a> {
    /// Prompts to train on.
    pub prompts: &'a [Prompt],
    /// Held-out prompts; empty turns evaluation off.
    pub held_out: &'a [Prompt],
    /// Test prompts, completed before the first iteration and after the last.
    pub test: &'a [Prompt],
    /// Which prompts an iteration takes.
    pub order: Order,
    /// Which it takes where they are drawn with replacement.
    pub weighted: Option<Weighted>,
    /// Turns ids into text.
    pub tokenizer: &'a Tokenizer,
    /// Ids that end a completion.
    pub stop_ids: &'a [u32],
    /// The first and the last id of every completion, where the model's generation configuration forces them.
    pub forced_ids: [Option<u32>; 2],
    /// The frozen reference: for the algorithm, and for the KL of evaluations.
    pub reference: Option<&'a CausalLm>,
    /// Everything else.
    pub settings: &'a Settings,
    /// What completions of held-out prompts are measured with beside the reward.
    pub measuring: &'a Measuring,
    /// Writes the policy (without gradient) into a directory.
    pub save: &'a dyn Fn(&CausalLm, &Path, SaveFor) -> Result<()>,
}

impl<'a> Online<'a> {
    /// The passes over the prompts after `done` iterations.
    fn epoch(&self, done: usize) -> f64 {
        done as f64 / (self.prompts.len() as f64 / self.order.batch_size as f64)
    }

    /// The sampler that `algorithm` asks for.
    fn sampler<'s>(
        &'s self,
        algorithm: &'s dyn Algorithm,
        stop: &'s [String],
        in_evaluation: bool,
        progress: &'s dyn Progress,
    ) -> Sampler<'s> {
        let wanted = algorithm.sampling();
        Sampler {
            tokenizer: self.tokenizer,
            group_size: wanted.group_size,
            params: wanted
                .shape
                .apply(SamplingParams {
                    temperature: wanted.temperature,
                    max_new_tokens: wanted.max_new_tokens,
                    stop_ids: self.stop_ids.to_vec(),
                    ..SamplingParams::default()
                })
                .forcing(self.forced_ids),
            beams: None,
            stop,
            masking: algorithm.masking(in_evaluation),
            progress,
        }
    }
}

/// Trains until the last iteration, an early stop, or an interruption (after a checkpoint).
///
/// # Errors
/// [`Error::Diverged`] with the path of the offending batch, [`Error::Interrupted`], a reward that failed, or what
/// writing fails with.
pub fn train(
    task: &Online<'_>,
    algorithm: &mut dyn Algorithm,
    reward: &mut dyn Reward,
    actor: &mut Learner<Actor>,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let mut log = RolloutLog::open(recorder.run(), &recorder.state, task.settings.save_rollouts)?;
    rescue::guard(
        &mut (algorithm, actor, &mut log),
        recorder,
        |(algorithm, actor, log), recorder| steps(task, *algorithm, reward, actor, log, recorder),
        |(algorithm, actor, log), recorder| {
            let settled = recorder.is_settled(version(*algorithm, actor));
            if settled {
                save_checkpoint(task, *algorithm, actor, log, recorder, false)?;
            }
            Ok(settled)
        },
    )?;
    log.finish()
}

/// That of all learners together: each only grows, so an equal sum means that none has changed.
fn version(algorithm: &dyn Algorithm, actor: &Learner<Actor>) -> u64 {
    actor.version() + algorithm.learners().iter().map(|(_, trained)| trained.version).sum::<u64>()
}

fn steps(
    task: &Online<'_>,
    algorithm: &mut dyn Algorithm,
    reward: &mut dyn Reward,
    actor: &mut Learner<Actor>,
    log: &mut RolloutLog,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let settings = task.settings;
    recorder.settle(version(algorithm, actor))?;
    recorder.tidy(settings)?;
    let stop = algorithm.sampling().stop;
    if recorder.state.evaluation_due {
        finish_step(task, algorithm, reward, actor, log, recorder)?;
    }
    if recorder.has_stopped(settings) || algorithm.kl_limit().is_some_and(|limit| is_too_far(recorder, limit)) {
        return Ok(());
    }
    if settings.try_longest && recorder.state.step < settings.steps {
        longest::online(task.prompts, task.order.batch_size, settings.passes, algorithm, actor, recorder);
    }
    if recorder.state.step == 0 {
        let mut measure =
            |split| evaluate(task, split, algorithm, reward, actor, log, (0, 0), &recorder.within(0)).map(Some);
        let evaluates = settings.eval_steps >= 0 && !task.held_out.is_empty();
        let held_out = if evaluates { measure(EvalSplit::HeldOut)? } else { None };
        let test = if task.test.is_empty() { None } else { measure(EvalSplit::Test)? };
        recorder.baseline(&Measured { held_out, test }, settings)?;
    }
    recorder.tell(&Event::Phase { name: "training", total: Some(settings.steps), done: recorder.state.step });
    for iteration in recorder.state.step..settings.steps {
        recorder.begin();
        let mut clock = Instant::now();
        let mut lap = |stats: &mut Stats, phase: &str| {
            // Timings are metrics only: nothing that is computed depends on them.
            stats.mean(&format!("time/{phase}_s"), clock.elapsed().as_secs_f64(), 1.0);
            clock = Instant::now();
        };
        let mut measured = Stats::default();

        // 1. Sample.
        let rows = match &task.weighted {
            Some(weighted) => weighted.batch(iteration),
            None => task.order.full_batch(iteration),
        };
        let within = recorder.within(iteration + 1);
        let sampler = task.sampler(algorithm, &stop, false, &within);
        let round = Round { task, sampler: &sampler, iteration, size: rows.len() * sampler.group_size };
        let mut rollouts = round.sample(0, &rows, actor.frozen().policy, &mut measured)?;
        lap(&mut measured, "sampling");

        // 2. Score, per token; what teaches nothing may give way to other prompts.
        within.advance("scored", 0, rollouts.len())?;
        let mut scores = reward::apply(reward, &rollouts)?;
        if iteration == 0 {
            reward::check_judges(&reward.name(), &scores)?;
        }
        if algorithm.resample_rounds() > 0 {
            let rounds = algorithm.resample_rounds();
            round.replace(rounds, rows, actor, reward, (&mut rollouts, &mut scores), &mut measured)?;
        }
        observe_rewards(&reward.name(), &scores, &mut measured);
        observe_rollouts(&rollouts, &mut measured);
        lap(&mut measured, "reward");

        // 3. Ask the reference; 4. advantages, on the host.
        let reference = match (algorithm.needs_reference(), task.reference) {
            (true, Some(model)) => {
                within.advance("compared with the reference", 0, rollouts.len())?;
                let of = if algorithm.has_raw_kl() { raw_logprobs } else { logprobs };
                Some(of(model, &rollouts, algorithm.sampling().trained_temperature(), settings.passes))
            }
            _ => None,
        };
        let of_counted = |(score, rollout): (&Score, &rollout::Rollout)| {
            score.rewards_t().map(|rewards_t| rollout.rewards_of_counted(&rewards_t))
        };
        let rewards = scores.iter().zip(&rollouts.rollouts).map(of_counted).collect();
        let experience = Experience { rollouts, rewards, reference };
        observe_logprobs(&experience.rollouts, experience.reference.as_deref(), &mut measured);
        let kls = experience.kls(algorithm.has_raw_kl());
        within.advance("given advantages", 0, experience.rollouts.len())?;
        let mut advantages = algorithm.advantages(&actor.frozen(), &experience, settings);
        // Every method's KL in one unit under one name; where it is part of the reward, by the estimator that is used there.
        if let Some(kls) = kls.as_ref().filter(|_| advantages.stats.value("objective/kl").is_none()) {
            advantages.stats.mean("objective/kl", kls.iter().sum(), kls.len() as f64);
        }
        lap(&mut measured, "advantages");

        // 5. Update: several passes over the rollouts.
        let multiplier = settings.multiplier(iteration);
        let update = Update { iteration, multiplier, settings, progress: &within };
        let updated = match algorithm.update(actor, &experience, &advantages, update) {
            Ok(updated) => updated,
            Err(what) => return Err(recorder.diverged(iteration + 1, what, describe(&experience))),
        };
        lap(&mut measured, "update");

        // 6. Record what was trained on, and look at it.
        let done = iteration + 1;
        let sampled_in = iteration * task.order.batch_size / task.prompts.len();
        recorder.unless_gone(log.rollouts((done, sampled_in), &experience, &scores, &advantages, kls.as_deref()))?;
        for warning in recorder.unless_gone(log.watch(done, Shown::of(&experience, &scores, kls.as_deref())))? {
            recorder.tell(&Event::Warning(&format!("step {done}: {}", warning.message)));
        }
        lap(&mut measured, "record");
        let mut stats = updated;
        stats.last("learning_rate", settings.learning_rate * multiplier);
        stats.merge(&advantages.stats);
        stats.merge(&measured);
        (recorder.state.step, recorder.state.epoch) = (done, task.epoch(done) as usize);
        recorder.state.kl_coefficient = algorithm.kl_coefficient();
        let kl = advantages.stats.value("objective/kl");
        let is_above = algorithm.kl_limit().is_some_and(|limit| kl.is_some_and(|kl| kl > limit.above));
        recorder.state.above_kl_limit += usize::from(is_above);
        recorder.gather(&stats);

        // 7. Evaluate, log, and keep what is needed to go on from here.
        if finish_step(task, algorithm, reward, actor, log, recorder)? == Verdict::Stop {
            break;
        }
    }
    Ok(())
}

fn is_too_far(recorder: &Recorder<'_>, limit: KlLimit) -> bool {
    recorder.state.above_kl_limit >= limit.after
}

/// The end of a step, once the weights are updated: evaluate, log, compare with the best, write a checkpoint.
///
/// An interruption within the evaluation leaves a checkpoint from which a resumed run begins with this evaluation.
fn finish_step(
    task: &Online<'_>,
    algorithm: &dyn Algorithm,
    reward: &mut dyn Reward,
    actor: &Learner<Actor>,
    log: &mut RolloutLog,
    recorder: &mut Recorder<'_>,
) -> Result<Verdict> {
    let (settings, done) = (task.settings, recorder.state.step);
    let epoch = task.epoch(done);
    let version = version(algorithm, actor);
    let too_far = algorithm.kl_limit().filter(|&limit| is_too_far(recorder, limit));
    let mut measured = Measured::default();
    let mut measure = |split, recorder: &mut Recorder<'_>| {
        recorder.await_evaluation(version);
        let place = (done, epoch as usize);
        let found = evaluate(task, split, algorithm, reward, actor, log, place, &recorder.within(done));
        recorder.unless_gone(found).map(Some)
    };
    if settings.evaluates_after(done) && !task.held_out.is_empty() {
        measured.held_out = measure(EvalSplit::HeldOut, recorder)?;
    }
    let ends = too_far.is_some() || recorder.ends(done, settings, measured.held_out.as_ref())?;
    if ends && !task.test.is_empty() {
        measured.test = measure(EvalSplit::Test, recorder)?;
    }
    if !measured.is_empty() {
        recorder.evaluated();
    }
    if settings.logs_after(done) || !measured.is_empty() {
        let seen = Seen { epoch, examples: done * task.order.batch_size };
        recorder.log(done, settings, seen, &measured)?;
    }
    let save = |path: &Path| (task.save)(&actor.frozen().policy, path, SaveFor::Use);
    let mut verdict = recorder.judge(done, settings, &measured, save)?;
    if let Some(KlLimit { above, after }) = too_far {
        let message = format!("stopped early: the KL of {after} iterations was above `kl.stop_above`, {above}");
        recorder.tell(&Event::Message(&message));
        verdict = Verdict::Stop;
    }
    recorder.settle(version)?;
    let planned = settings.saves_after(done) || verdict == Verdict::Stop;
    let interrupted = done < settings.steps && recorder.should_stop();
    if planned || interrupted {
        save_checkpoint(task, algorithm, actor, log, recorder, planned)?;
    }
    if interrupted { Err(Error::Interrupted) } else { Ok(verdict) }
}

/// The rounds of sampling of one iteration.
struct Round<'a, 's> {
    task: &'a Online<'a>,
    sampler: &'a Sampler<'s>,
    iteration: usize,
    /// Completions of a whole round: each round has random streams of its own.
    size: usize,
}

impl Round<'_, '_> {
    /// Completions of the prompts in `rows`.
    fn sample(&self, round: usize, rows: &[usize], policy: CausalLm, measured: &mut Stats) -> Result<Rollouts> {
        let settings = self.task.settings;
        let prompts = rows.iter().map(|&row| self.task.prompts[row].clone()).collect();
        let index = |i: usize| (round * self.size + i) as u64;
        let stream = |i: usize| settings.seed.stream(Purpose::Rollout, self.iteration as u64, index(i));
        sample(settings, policy, prompts, self.sampler, &stream, measured)
    }

    /// Puts groups of prompts that the iteration has not had (`rows` are those it has) in the place of groups whose rewards
    /// are all alike, in so many rounds. Which prompts they are follows from the seed and the iteration.
    fn replace(
        &self,
        rounds: usize,
        mut rows: Vec<usize>,
        actor: &Learner<Actor>,
        reward: &mut dyn Reward,
        (rollouts, scores): (&mut Rollouts, &mut Vec<Score>),
        measured: &mut Stats,
    ) -> Result<()> {
        let seed = self.task.settings.seed;
        let mut replaced = 0;
        for round in 1..=rounds {
            let totals: Vec<Option<f32>> = scores.iter().map(Score::total).collect();
            let flat = group_advantages(&totals, rollouts.group_size, Baseline::Mean, Scale::None).flat_groups();
            let mut others: Vec<usize> = (0..self.task.prompts.len()).filter(|row| !rows.contains(row)).collect();
            others.shuffle(&mut seed.stream(Purpose::Replacement, self.iteration as u64, round as u64));
            others.truncate(flat.len());
            if others.is_empty() {
                break;
            }
            let again = self.sample(round, &others, actor.frozen().policy, measured)?;
            let found = reward::apply(reward, &again)?;
            replaced += others.len();
            rows.extend(others);
            let group_size = again.group_size;
            let mut new = again.rollouts.into_iter().zip(found);
            for (&group, prompt) in flat.iter().zip(again.prompts) {
                rollouts.prompts[group] = prompt;
                let places = group * group_size..(group + 1) * group_size;
                let old = rollouts.rollouts[places.clone()].iter_mut().zip(&mut scores[places]);
                for ((old, old_score), (rollout, score)) in old.zip(new.by_ref()) {
                    (*old, *old_score) = (rollout::Rollout { prompt: group, ..rollout }, score);
                }
            }
        }
        measured.mean("sampling/replaced_groups", replaced as f64, 1.0);
        Ok(())
    }
}

/// Samples from `policy`, or faster from a copy of it with coarser weights. The copy's logprobs are then not those that
/// training starts from, so they are computed again. The policy's own handles to its weights end here: the optimiser
/// can write where they lie.
fn sample(
    settings: &Settings,
    policy: CausalLm,
    prompts: Vec<Prompt>,
    sampler: &Sampler<'_>,
    stream: &dyn Fn(usize) -> Stream,
    measured: &mut Stats,
) -> Result<Rollouts> {
    let Some(weights) = settings.sampling_weights else { return rollout::sample(&policy, prompts, sampler, stream) };
    let mut rollouts = rollout::sample(&policy.clone().into_frozen(weights), prompts, sampler, stream)?;
    let own = logprobs(&policy, &rollouts, sampler.params.logprob_temperature(), settings.passes);
    for (rollout, own_t) in rollouts.rollouts.iter_mut().zip(own) {
        let errors_t: Vec<f32> =
            rollout.counted_logprobs().iter().zip(&own_t).map(|(coarse, own)| (coarse - own).abs()).collect();
        measured.mean_of("sampling/logprob_error", &errors_t);
        rollout.replace_logprobs(&own_t);
    }
    Ok(rollouts)
}

/// Samples a completion of every held-out prompt, always from the same streams, and measures it under `eval_…`; or of every test
/// prompt, under `test_…`.
#[expect(clippy::too_many_arguments, reason = "what an evaluation needs of the loop")]
fn evaluate(
    task: &Online<'_>,
    split: EvalSplit,
    algorithm: &dyn Algorithm,
    reward: &mut dyn Reward,
    actor: &Learner<Actor>,
    log: &mut RolloutLog,
    done: (usize, usize),
    progress: &dyn Progress,
) -> Result<Metrics> {
    let stop = algorithm.sampling().stop;
    let sampler = task.sampler(algorithm, &stop, true, progress);
    let (params, beams) = task.settings.evaluation.to_evaluate(sampler.params);
    let sampler = Sampler { group_size: task.settings.evaluation.samples(), params, beams, ..sampler };
    let prompts: Vec<Prompt> = match split {
        EvalSplit::Test => task.test.to_vec(),
        EvalSplit::HeldOut => {
            let chosen = task.settings.evaluated(done.0, task.held_out.len());
            chosen.into_iter().map(|row| task.held_out[row].clone()).collect()
        }
    };
    let evaluation = Evaluation {
        prompts: &prompts,
        sampler: &sampler,
        reference: task.reference,
        settings: task.settings,
        measuring: task.measuring,
    };
    let found = evaluation.run(&actor.frozen().policy, Some(reward))?;
    if done.0 == 0 {
        reward::check_judges(&reward.name(), &found.scores)?;
    }
    log.evaluation(split, done, &found)?;
    Ok(found.stats.metrics(split.prefix()))
}

fn save_checkpoint(
    task: &Online<'_>,
    algorithm: &dyn Algorithm,
    actor: &Learner<Actor>,
    log: &mut RolloutLog,
    recorder: &mut Recorder<'_>,
    planned: bool,
) -> Result<()> {
    // A checkpoint stands on everything that was recorded before it; of a directory that was deleted nothing is left.
    if !recorder.is_rescued() {
        log.flush()?;
    }
    recorder.state.method.extend(algorithm.state());
    recorder.state.method.extend(log.state());
    let frozen = actor.frozen();
    let mut optimizers = vec![(ACTOR_PREFIX, actor.optimizer())];
    optimizers.extend(algorithm.learners().into_iter().map(|(prefix, trained)| (prefix, trained.optimizer)));
    recorder.checkpoint(task.settings, planned, &optimizers, |path| {
        let save = |policy: &CausalLm, path: &Path| (task.save)(policy, path, SaveFor::Resume);
        save(&frozen.policy, path)?;
        algorithm.save(&frozen, path)?;
        algorithm.save_state(path, &save)
    })
}

/// The rollouts of a step that diverged.
fn describe(experience: &Experience) -> Value {
    let Rollouts { rollouts, .. } = &experience.rollouts;
    let one = |(i, rollout): (usize, &rollout::Rollout)| {
        let prompt = experience.rollouts.prompt(i);
        json!({
            "row": prompt.row + 1,
            "prompt_ids": prompt.ids,
            "completion_ids": rollout.completion_ids,
            "logprobs": rollout.trained_logprobs(),
            "rewards": experience.rewards[i],
        })
    };
    rollouts.iter().enumerate().map(one).collect()
}

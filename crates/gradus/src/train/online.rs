//! Training on samples of the policy. PPO, NLPO, A2C, TRPO, GRPO and RLOO differ only in their [`Algorithm`].

use std::path::Path;
use std::time::Instant;

use rand::seq::SliceRandom;
use serde_json::{Value, json};

use super::diagnosis;
use super::longest;
pub use super::online_inputs::Online;
use super::recorder::{DataProgress, Recorder};
use super::rollout_log::RolloutLog;
use super::source;
use super::steps::{self, TrainingStep};
use super::warnings::StepStats;
use super::{EvalSplit, SaveFor};
use crate::algorithm::actor::{logprobs, raw_logprobs};
use crate::algorithm::{Actor, Advantages, Algorithm, Experience, KlLimit, PartTotal, ScoredRollout, Update};
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, observe_logprobs, observe_rewards, observe_rollouts};
use crate::learner::Learner;
use crate::learner::optimizer::Optimizer;
use crate::math::{Baseline, Scale, group_advantages};
use crate::model::{CausalLm, Reference};
use crate::observer::{Event, LearnedCompletion};
use crate::progress::Progress;
use crate::reward::{self, Reward, RewardPart, Score};
use crate::rng::Purpose;
use crate::rollout::{self, LocalEngine, Policy, Prompt, RolloutSource, Rollouts, Sampler};
use crate::settings::Settings;
use crate::stats::{Mean, Stats, StepReport};

/// Prefix of the actor's parameters in a checkpoint.
pub(crate) const ACTOR_PREFIX: &str = "actor.";

/// Trains until the last iteration, an early stop, or an interruption (after a checkpoint).
///
/// # Errors
/// [`Error::Diverged`] with the path of the offending batch, [`Error::Interrupted`], an
/// error of the reward, or an error of writing.
pub fn train(
    task: &Online<'_>,
    algorithm: &mut dyn Algorithm,
    reward: &mut dyn Reward,
    actor: &mut Learner<Actor>,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let log = RolloutLog::open(recorder.run(), &recorder.state, task.settings.save_rollouts)?;
    let save = |policy: &CausalLm, path: &Path| (task.save)(policy, path, SaveFor::Resume);
    let done = recorder.state.step;
    let source = source::open(task, &save, &recorder.within(done, task.settings.steps))?;
    let mut training = OnlineTraining { task, source, algorithm, reward, actor, log, is_far_reported: false };
    steps::train(&mut training, recorder)?;
    training.log.finish()
}

/// Training on samples of the policy. Each step is one iteration of sampling, scoring and updates.
struct OnlineTraining<'t, 'a> {
    task: &'t Online<'a>,
    source: Box<dyn RolloutSource + 't>,
    algorithm: &'t mut dyn Algorithm,
    reward: &'t mut dyn Reward,
    actor: &'t mut Learner<Actor>,
    log: RolloutLog,
    /// True after the warning that a server seems to sample with other weights.
    is_far_reported: bool,
}

impl OnlineTraining<'_, '_> {
    /// Samples and scores the completions of one iteration.
    fn sample(
        &mut self,
        iteration: usize,
        progress: &dyn Progress,
        measured: &mut IterationStats,
    ) -> Result<(Rollouts, Vec<Score>)> {
        let Self { task, source, algorithm, reward, actor, .. } = self;
        let rows = task.rows(iteration);
        source.at(iteration);
        let when = format!("step {}", iteration + 1);
        let sampler = task.sampler(*algorithm, false, &when, progress);
        let size = rows.len() * sampler.group_size;
        let mut round = Round { task, source: &mut **source, sampler: &sampler, iteration, size };
        let mut rollouts = round.sample(0, &rows, actor, &mut measured.stats)?;
        measured.lap("sampling");
        refuse_if_all_failed(&rollouts)?;

        let mut scores = reward::apply_on(task.settings.passes.ranks(), *reward, &rollouts, progress)?;
        // Groups without a training signal may be replaced by other prompts.
        let rounds = algorithm.resample_rounds();
        if rounds > 0 {
            round.replace(rounds, rows, actor, *reward, (&mut rollouts, &mut scores), &mut measured.stats)?;
        }
        observe_rewards(&reward.name(), &scores, &mut measured.stats);
        observe_rollouts(&rollouts, &mut measured.stats);
        measured.lap("reward");
        Ok((rollouts, scores))
    }

    /// Checks that a completion has a score, in this iteration or in an earlier one (`has_scores`). A reward need not apply to all rows, so
    /// the first batches may have none. Returns a warning then, in few of many iterations.
    ///
    /// # Errors
    /// If no completion has a score by the end of the first epoch, or of the run: nothing was trained.
    fn check_scores(
        &self,
        iteration: usize,
        rollouts: &Rollouts,
        scores: &[Score],
        has_scores: bool,
    ) -> Result<Option<String>> {
        if has_scores || scores.iter().any(|score| score.total().is_some()) {
            return Ok(None);
        }
        let Online { prompts, order, settings, .. } = self.task;
        let (done, last) = (iteration + 1, prompts.len().div_ceil(order.batch_size).min(settings.steps));
        let error = reward::nothing_scored(&self.reward.name(), rollouts, done * rollouts.len());
        if done >= last {
            return Err(error);
        }
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        let consequence =
            format!("nothing is trained yet. Without a score until step {last}, the run ends with an error");
        Ok(done.is_power_of_two().then(|| format!("step {done}: {error}{hint}: {consequence}")))
    }

    /// Combines the rollouts with their rewards and the log-probabilities of the reference. If the algorithm compares passes of the same
    /// kind, the policy has a pass, too.
    fn experience(&self, rollouts: Rollouts, scores: &[Score], progress: &dyn Progress) -> Result<Experience> {
        let (task, algorithm) = (self.task, &*self.algorithm);
        let (reference, policy) = match (algorithm.needs_reference(), task.reference) {
            (true, Some(reference)) => {
                progress.advance("compared with the reference", 0, rollouts.len())?;
                let of = if algorithm.has_raw_kl() { raw_logprobs } else { logprobs };
                let temperature = task.iteration.rollouts.trained_temperature();
                let pass = |model: &CausalLm| of(model, &rollouts, temperature, task.settings.passes);
                // The log-probabilities of a source that is not exact come from such a pass already.
                let has_pass = algorithm.has_exact_kl() && self.source.is_exact();
                (Some(pass(&reference.model())), has_pass.then(|| pass(&self.actor.frozen().policy)))
            }
            _ => (None, None),
        };
        let of_counted = |(score, rollout): (&Score, &rollout::Rollout)| {
            score.rewards_t().map(|rewards_t| rollout.rewards_of_counted(&rewards_t))
        };
        let rewards = scores.iter().zip(&rollouts.rollouts).map(of_counted).collect();
        let part = |part: &RewardPart| PartTotal { name: part.name.clone(), weight: part.weight, total: part.total() };
        let parts = scores.iter().map(|score| score.parts.iter().map(part).collect()).collect();
        let experience = Experience::new(rollouts, rewards, reference).with_parts(parts).with_policy(policy);
        Ok(experience.with_raw_kl(algorithm.has_raw_kl()))
    }
}

/// Metrics of an iteration, and the durations of its phases.
struct IterationStats {
    stats: Stats,
    since: Instant,
}

impl IterationStats {
    /// Ends a phase. Timings are metrics only: no computation depends on them.
    fn lap(&mut self, phase: &str) {
        self.stats.mean(&format!("time/{phase}_s"), self.since.elapsed().as_secs_f64(), 1.0);
        self.since = Instant::now();
    }
}

impl TrainingStep for OnlineTraining<'_, '_> {
    fn settings(&self) -> &Settings {
        self.task.settings
    }

    /// Sum of the versions of all learners. Each version only grows, so an equal sum means that no learner has changed.
    fn version(&self) -> u64 {
        self.actor.version() + self.algorithm.learners().iter().map(|(_, trained)| trained.version).sum::<u64>()
    }

    fn data_progress(&self, done: usize) -> DataProgress {
        let Online { prompts, order, .. } = self.task;
        let epoch = done as f64 / (prompts.len() as f64 / order.batch_size as f64);
        DataProgress { epoch, examples: done * order.batch_size }
    }

    fn has(&self, split: EvalSplit) -> bool {
        !match split {
            EvalSplit::HeldOut => self.task.held_out,
            EvalSplit::Test => self.task.test,
        }
        .is_empty()
    }

    fn try_longest(&mut self, recorder: &mut Recorder<'_>) {
        let Online { prompts, order, settings, iteration, .. } = self.task;
        let at_once = (order.batch_size, settings.passes);
        longest::online(prompts, at_once, iteration, self.algorithm, self.actor, recorder);
    }

    fn step(&mut self, iteration: usize, recorder: &mut Recorder<'_>) -> Result<StepReport> {
        let (task, settings, done) = (self.task, self.task.settings, iteration + 1);
        let mut measured = IterationStats { stats: Stats::default(), since: Instant::now() };
        let has_scores = recorder.has_measured("reward");
        let within = recorder.within(done, settings.steps);

        // 1. Sample and score, per token.
        let (rollouts, scores) = self.sample(iteration, &within, &mut measured)?;
        let mut notices = self.source.notices();
        notices.extend(failures(&rollouts));
        notices.extend(self.check_scores(iteration, &rollouts, &scores, has_scores)?);

        // 2. Compare with the reference and compute advantages, on the host.
        let mut experience = self.experience(rollouts, &scores, &within)?;
        observe_logprobs(&experience, &mut measured.stats);
        let kls = experience.kls();
        within.advance("given advantages", 0, experience.len())?;
        let masks_truncated = self.algorithm.masks_truncated();
        let is_far = source::observe(task, &mut experience, iteration, masks_truncated, &mut measured.stats);
        let mut advantages = self.algorithm.advantages(&self.actor.frozen(), &experience, settings);
        notices.extend(is_far.filter(|_| !std::mem::replace(&mut self.is_far_reported, true)));
        // The KL of every method under one name, in one unit. If it is part of the reward, it uses that estimator.
        let kl = advantages.kl.or_else(|| kls.as_deref().map(Mean::of));
        if let Some(Mean { sum, count }) = kl {
            advantages.stats.mean("objective/kl", sum, count as f64);
        }
        measured.lap("advantages");

        // 3. Update: several passes over the rollouts.
        let multiplier = settings.multiplier(iteration);
        let update = Update { iteration, multiplier, settings, progress: &within };
        let updated = self.algorithm.update(self.actor, &experience, &advantages, update);
        let updated = updated.map_err(|what| recorder.diverged(done, what, describe(&experience)))?;
        measured.lap("update");

        // 4. Record the rollouts and check them for warnings.
        let sampled_in = iteration * task.order.batch_size / task.prompts.len();
        let logged = self.log.rollouts((done, sampled_in), &experience, &scores, &advantages, kls.as_deref());
        recorder.unless_deleted(logged)?;
        let completions = learned(&experience, &scores, &advantages);
        recorder.emit(&Event::Rollouts { step: done, completions: &completions });
        notices.iter().for_each(|notice| recorder.emit(&Event::Warning(notice)));
        let warnings = self.log.watch(done, StepStats::of(&experience, &scores, kls.as_deref()));
        for warning in recorder.unless_deleted(warnings)? {
            recorder.emit(&Event::Warning(&format!("step {done}: {}", warning.message)));
        }
        measured.lap("record");
        let mut metrics = updated.metrics;
        metrics.last("learning_rate", settings.learning_rate * multiplier);
        metrics.merge(&advantages.stats);
        metrics.merge(&measured.stats);
        recorder.state.kl_coefficient = self.algorithm.kl_coefficient();
        let is_above = |limit: KlLimit| kl.is_some_and(|kl| kl.value() > limit.above);
        recorder.state.above_kl_limit += usize::from(self.algorithm.kl_limit().is_some_and(is_above));
        // Last: if the step fails, a checkpoint of the one before has the reference of then.
        if let Some(reference) = task.reference {
            reference.end_step(done, || self.actor.frozen().policy);
        }
        Ok(StepReport { tokens: updated.tokens, kl, metrics })
    }

    /// Samples completions of every prompt of the split, always from the same streams, and measures them.
    fn evaluate(&mut self, split: EvalSplit, done: usize, progress: &dyn Progress) -> Result<Stats> {
        let (task, settings) = (self.task, self.task.settings);
        let when = format!("{} at step {done}", split.prefix().trim_end_matches('_'));
        let sampler = task.sampler(self.algorithm, true, &when, progress);
        let (params, beams) = settings.evaluation.to_evaluate(sampler.params);
        let sampler = Sampler { group_size: settings.evaluation.samples(), params, beams, ..sampler };
        let prompts: Vec<Prompt> = match split {
            EvalSplit::Test => task.test.to_vec(),
            EvalSplit::HeldOut => {
                let chosen = settings.evaluated(done, task.held_out.len());
                chosen.into_iter().map(|row| task.held_out[row].clone()).collect()
            }
        };
        let reference = task.reference.map(Reference::model);
        let (reference, measuring, &Settings { seed, passes, .. }) = (reference.as_ref(), task.measuring, settings);
        let evaluation = Evaluation { prompts: &prompts, sampler: &sampler, reference, seed, passes, measuring };
        let found = evaluation.run(&mut LocalEngine::default(), &policy(self.actor), Some(self.reward))?;
        refuse_if_all_failed(&found.rollouts)?;
        self.log.evaluation(split, (done, self.data_progress(done).epoch as usize), &found)?;
        Ok(found.stats)
    }

    fn watch(&self, done: usize, recorder: &mut Recorder<'_>) {
        let message = diagnosis::of_online(done, self.task.settings, &|key| recorder.logged(key).collect());
        recorder.warn_of_divergence(message);
    }

    fn end(&self, recorder: &Recorder<'_>) -> Option<String> {
        let KlLimit { above, after } = self.algorithm.kl_limit()?;
        let is_too_far = recorder.state.above_kl_limit >= after;
        is_too_far.then(|| format!("stopped early: the KL of {after} iterations was above `kl.stop_above`, {above}"))
    }

    fn save(&self, directory: &Path) -> Result<()> {
        (self.task.save)(&self.actor.frozen().policy, directory, SaveFor::Use)
    }

    fn prepare_checkpoint(&mut self, recorder: &mut Recorder<'_>) -> Result<()> {
        // A checkpoint requires that all earlier records are on disk. After a rescue, nothing is left of the deleted directory.
        if !recorder.is_rescued() {
            self.log.flush()?;
        }
        recorder.state.method.extend(self.algorithm.state());
        recorder.state.method.extend(self.log.state());
        Ok(())
    }

    fn optimizers(&self) -> Vec<(&str, &Optimizer)> {
        let own = self.algorithm.learners().into_iter().map(|(prefix, trained)| (prefix, trained.optimizer));
        [(ACTOR_PREFIX, self.actor.optimizer())].into_iter().chain(own).collect()
    }

    fn save_checkpoint(&self, directory: &Path) -> Result<()> {
        let frozen = self.actor.frozen();
        let save = |policy: &CausalLm, path: &Path| (self.task.save)(policy, path, SaveFor::Resume);
        save(&frozen.policy, directory)?;
        self.algorithm.save(&frozen, directory)?;
        if let Some(reference) = self.task.reference {
            reference.save_state(directory, save)?;
        }
        self.algorithm.save_state(directory, &save)
    }
}

/// Maximum number of failed episodes that a step reports one by one.
const MAX_REPORTED_FAILURES: usize = 3;

/// Rejects rollouts whose episodes have all failed, because nothing can be trained on.
///
/// # Errors
/// [`Error::Input`] with the first failure.
fn refuse_if_all_failed(rollouts: &Rollouts) -> Result<()> {
    let mut failed = rollouts.rollouts.iter().map(rollout::Rollout::failure);
    match failed.next().flatten() {
        Some(first) if failed.all(|failure| failure.is_some()) => {
            let message = format!("all {} episodes failed, the first: {first}", rollouts.len());
            Err(Error::input(message).with_hint("try the environment alone: does it answer?"))
        }
        _ => Ok(()),
    }
}

/// Warnings about failed episodes.
fn failures(rollouts: &Rollouts) -> Vec<String> {
    let failed: Vec<&str> = rollouts.rollouts.iter().filter_map(rollout::Rollout::failure).collect();
    let (count, all) = (failed.len(), rollouts.len());
    let mut notices: Vec<String> = failed
        .iter()
        .take(MAX_REPORTED_FAILURES)
        .map(|what| format!("an episode failed and is left out: {what}"))
        .collect();
    if count > MAX_REPORTED_FAILURES {
        notices.push(format!("{count} of {all} episodes of this step failed and are left out"));
    }
    notices
}

/// Completions in the form for observers.
fn learned<'a>(experience: &'a Experience, scores: &'a [Score], advantages: &Advantages) -> Vec<LearnedCompletion<'a>> {
    let of = |(i, (rollout, score)): (usize, (&'a rollout::Rollout, &'a Score))| {
        let (prompt, advantages_t) = (experience.prompt(i), &advantages.targets[i].advantages_t);
        LearnedCompletion {
            row: prompt.row,
            prompt: &prompt.text,
            completion: &rollout.completion,
            tokens: rollout.completion_ids.len(),
            reward: score.total(),
            parts: score.parts.iter().map(|part| (part.name.as_str(), part.total())).collect(),
            advantage: advantages_t.iter().sum::<f32>() / advantages_t.len().max(1) as f32,
        }
    };
    experience.iter().zip(scores).enumerate().map(of).collect()
}

/// Sampling rounds of one iteration.
struct Round<'a, 's> {
    task: &'a Online<'a>,
    source: &'a mut dyn RolloutSource,
    sampler: &'a Sampler<'s>,
    iteration: usize,
    /// Number of completions per full round; each round has its own random streams.
    size: usize,
}

impl Round<'_, '_> {
    /// Samples completions of the prompts in `rows`. If the source's log-probabilities are not exactly those of the policy, they are
    /// computed again, because training uses them.
    fn sample(
        &mut self,
        round: usize,
        rows: &[usize],
        actor: &Learner<Actor>,
        measured: &mut Stats,
    ) -> Result<Rollouts> {
        let settings = self.task.settings;
        let prompts = rows.iter().map(|&row| self.task.prompts[row].clone()).collect();
        let first = round * self.size;
        let stream = |i: usize| settings.seed.stream(Purpose::Rollout, self.iteration as u64, (first + i) as u64);
        let ranks = settings.passes.ranks();
        let mut rollouts = rollout::sample_on(ranks, self.source, policy(actor), prompts, self.sampler, &stream)?;
        // A server has one client, whatever the number of ranks.
        if round == 0 && ranks.is_first() {
            source::begin_next(self.task, self.source, self.sampler, &|| policy(actor), self.iteration)?;
        }
        if self.source.is_exact() {
            return Ok(rollouts);
        }
        let temperature = self.sampler.params.logprob_temperature();
        let own = logprobs(&actor.frozen().policy, &rollouts, temperature, settings.passes);
        for (rollout, own_t) in rollouts.rollouts.iter_mut().zip(own) {
            let errors = rollout
                .counted_logprobs()
                .iter()
                .zip(&own_t)
                .map(|(found, own)| (found - own).abs())
                .collect::<Vec<_>>();
            // A server may not report all log-probabilities.
            let errors_t: Vec<f32> = errors.into_iter().filter(|error| !error.is_nan()).collect();
            measured.mean_of("sampling/logprob_error", &errors_t);
            rollout.replace_logprobs(&own_t);
        }
        Ok(rollouts)
    }

    /// Replaces groups with equal rewards by groups of new prompts, in up to `rounds` rounds. `rows` are the prompts of the iteration so
    /// far. The choice of prompts depends only on the seed and the iteration.
    fn replace(
        &mut self,
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
            let again = self.sample(round, &others, actor, measured)?;
            let found = reward::apply_on(self.task.settings.passes.ranks(), reward, &again, self.sampler.progress)?;
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

/// Weights to sample from.
fn policy(actor: &Learner<Actor>) -> Policy {
    Policy { model: actor.frozen().policy, version: actor.version() }
}

/// Description of the rollouts of a step that diverged.
fn describe(experience: &Experience) -> Value {
    let one = |(i, ScoredRollout { rollout, rewards_t, .. }): (usize, &ScoredRollout)| {
        let prompt = experience.prompt(i);
        json!({
            "row": prompt.row + 1,
            "prompt_ids": prompt.ids,
            "completion_ids": rollout.completion_ids,
            "logprobs": rollout.trained_logprobs(),
            "rewards": rewards_t,
        })
    };
    experience.rollouts.iter().enumerate().map(one).collect()
}

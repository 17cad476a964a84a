//! A run of an online method: loads prompts, models and reward, runs the loop and writes the results.

use std::path::Path;

use serde_json::Value;

use super::SaveFor;
use super::environment;
use super::examples::{self};
use super::forecast;
use super::online::{self, ACTOR_PREFIX, Online};
use super::rollout_log::{self};
use super::run_context::{FinishedRun, RunContext};
use crate::algorithm::actor::Actor;
use crate::algorithm::grpo::ADAPTIVE_ENTROPY;
use crate::algorithm::{AlgorithmInputs, OnlineMethod};
use crate::batches::{Order, Weighted};
use crate::error::{Error, Result};
use crate::evaluation::further_remarks;
use crate::files::atomic;
use crate::learner::Learner;
use crate::model::CausalLm;
use crate::observer::{Event, Observer};
use crate::pretrained::Trainable;
use crate::rng::Purpose;
use crate::rollout::Prompt;

impl RunContext<'_> {
    /// Trains an online method: loads prompts, models and reward, runs the loop and writes the results.
    pub(super) fn online<M: OnlineMethod>(self, method: &M, observer: &mut dyn Observer) -> Result<FinishedRun> {
        self.start.model.dir.check_sampling_start()?;
        let new = method.iteration().rollouts.max_new_tokens;
        let recorded = rollout_log::recorded(self.shared, self.checkpoint.as_ref())?;
        let episodes = environment::open(self.plan, self.start, recorded)?;
        let tools = episodes.as_ref().map_or(&[][..], |episodes| &episodes.dialogue.tools);
        let splits = examples::prompts(self.plan, self.start, self.cast, (new, tools), observer)?;
        let examples::ExampleSplits { train, held_out, test, not_trained } = splits;
        let evaluated = [forecast::of_prompts(&held_out, new), forecast::of_prompts(&test, new)].concat();
        self.check_memory(forecast::of_prompts(&train, new), &evaluated, observer)?;
        let policy: CausalLm = self.models().policy()?;
        let reference = self.models().reference(&policy)?;
        let (critic, value_head) = self.models().critic(&policy, &self.settings(1))?;
        // A controller continues from its own coefficient, unless the user has just set another.
        let is_set_anew = |key: &str| self.plan.changes().iter().any(|change| change.key.ends_with(key));
        let saved = self.checkpoint.as_ref().map(|checkpoint| &checkpoint.run_state);
        let kl_coefficient = saved.filter(|_| !is_set_anew(".kl.coefficient")).and_then(|saved| saved.kl_coefficient);
        let mut state = saved.map(|saved| saved.method.clone()).unwrap_or_default();
        if is_set_anew(".entropy_coefficient") {
            state.remove(ADAPTIVE_ENTROPY);
        }
        let lagged = self.models().lagged(&policy)?;
        let special_ids = self.start.model.tokenizer.special_ids();
        let mut algorithm = method.algorithm(AlgorithmInputs { critic, lagged, special_ids, kl_coefficient, state });
        let mut reward = self.models().reward(self.passes(), &observer.interrupt())?;
        let prompts: Vec<&Prompt> = train.iter().chain(&held_out).chain(&test).collect();
        let (measuring, mut remarks) = self.measuring(&prompts, observer)?;
        let further = further_remarks(&remarks, &*reward, &prompts);
        further.iter().for_each(|remark| observer.event(&Event::Warning(remark)));
        remarks.extend(further);

        let order = self.order(Purpose::PromptOrder, train.len());
        let per_epoch = train.len() as f64 / order.batch_size as f64;
        let by_epochs = (self.plan.train().epochs * per_epoch).ceil().max(1.0) as usize;
        let settings = self.settings(self.steps(by_epochs)?);
        let actor = Actor { policy, value_head };
        let optimizer = self.models().optimizer(ACTOR_PREFIX, settings.optimizer, &actor)?;
        let mut learner = match method.iteration().vectors {
            None => Learner::new(actor, optimizer),
            Some(_) => Learner::without_moments(actor, optimizer),
        };
        let for_use = self.start.model.saving(self.plan.train().saved_weights);
        let save = |policy: &CausalLm, path: &Path, purpose: SaveFor| {
            policy.save(purpose.choose(&self.start.model, &for_use), path)
        };
        let stop_ids = self.start.model.stop_ids();
        let mut recorder = self.recorder(remarks, observer)?;
        not_trained.write(self.directory)?;
        let task = Online {
            prompts: &train,
            held_out: &held_out,
            test: &test,
            order,
            weighted: weighted(self.plan.train().priority_scale, order, &train)?,
            iteration: method.iteration(),
            tokenizer: &self.start.model.tokenizer,
            stop_ids: &stop_ids,
            episodes: episodes.as_ref(),
            rollouts: self.plan.config().rollouts.as_ref(),
            forced_ids: self.start.model.dir.forced_ids(),
            reference: reference.as_ref(),
            settings: &settings,
            measuring: &measuring,
            save: &save,
        };
        online::train(&task, &mut *algorithm, &mut *reward, &mut learner, &mut recorder)?;
        if !self.lanes.ranks().is_first() {
            return Ok(self.outcome(Value::Null));
        }
        recorder.emit(&Event::Phase { name: "saving", total: None, done: 0 });
        let frozen = learner.frozen();
        atomic::write_dir(&self.directory.model(), |path| save(&frozen.policy, path, SaveFor::Use))?;
        algorithm.save(&frozen, self.directory.path())?;
        self.finish(&mut recorder, &settings)
    }
}

/// Prompts sampled in proportion to their column `weight` to the power of `scale`.
fn weighted(scale: Option<f64>, order: Order, prompts: &[Prompt]) -> Result<Option<Weighted>> {
    let Some(scale) = scale else { return Ok(None) };
    let weight = |prompt: &Prompt| match prompt.columns.get("weight") {
        None | Some(Value::Null) => Ok(1.0),
        Some(value) => value.as_f64().filter(|weight| *weight >= 0.0).ok_or_else(|| {
            let message = format!("row {}: `weight` is {value}, but must be a number from 0", prompt.row + 1);
            Error::input(message).with_hint("`train.priority_scale` samples prompts by it")
        }),
    };
    let weights = prompts.iter().map(weight).collect::<Result<Vec<f64>>>()?;
    let none = || Error::input("every prompt has the `weight` 0, so `train.priority_scale` would sample none");
    Weighted::new(order, &weights, scale).ok_or_else(none).map(Some)
}

//! Entry point of training: from a checked plan to a finished run directory.

use std::cell::RefCell;

use tempfile::TempDir;

use super::cast;
use super::claim_observer::ClaimObserver;
use super::fingerprint;
use super::log::LogObserver;
use super::plugin_observers::PluginObservers;
use super::prepare::{self, Start, fetch_models};
use super::run_context::{FinishedRun, RunContext};
use super::run_start::RunStart;
use crate::algorithm::OnlineMethod;
use crate::config::{Effect, Plan, Visitor};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::objective::OfflineMethod;
use crate::observer::{Event, Observer};
use crate::ranks::{Lanes, Ranks, catching};
use crate::run::{Checkpoint, Claim, Existing, Origin, RunDir};

/// Trains as `plan` specifies. Writes `config.yml`, `metrics.jsonl`, checkpoints, `best/`, `model/` and `results.json` into the run
/// directory.
///
/// # Errors
/// Any error in the input; [`Error::Diverged`]; [`Error::Interrupted`] if the observer requests a stop.
pub fn run(plan: &Plan, observer: &mut dyn Observer) -> Result<FinishedRun> {
    run_on(plan, Ranks::ALONE, observer)
}

/// [`run`] on several ranks, each of which calls this with the same plan. The first rank owns the run directory; the outcome of the others
/// is empty. All must have access to the same files: the model, the rows and, for a resumed run, its directory.
///
/// # Errors
/// As [`run`], on any rank; or if a rank cannot be reached.
pub fn run_on(plan: &Plan, ranks: Ranks, observer: &mut dyn Observer) -> Result<FinishedRun> {
    catching(|| {
        let lanes = lanes(plan, ranks)?;
        ranks.check_alike(&plan.to_yaml())?;
        run_in_lanes(plan, lanes, observer)
    })
}

/// Lanes that sum the gradients.
fn lanes(plan: &Plan, ranks: Ranks) -> Result<Lanes> {
    plan.check_ranks(ranks.size() as u64)?;
    Ok(Lanes::new(plan.train().lanes.unwrap_or(1), ranks))
}

/// The run directory of this rank, and the one that all ranks read.
struct RunDirs {
    /// For the first rank, the directory of the plan. The others write their few small files to a temporary directory.
    directory: RunDir,
    /// Directory with the earlier files of a resumed run.
    shared: RunDir,
    /// The temporary directory, which is removed on drop.
    _scratch: Option<TempDir>,
}

impl RunDirs {
    /// Creates the directory. The first rank claims its own before the others look at it.
    fn claim(plan: &Plan, ranks: Ranks) -> Result<(Self, Claim)> {
        let claimed = match ranks.is_first() {
            true => RunDir::claim(plan.output_dir(), plan.existing()).map(Some),
            false => Ok(None),
        };
        if let Some((directory, claim)) = ranks.agree("the run directory", claimed)? {
            return Ok((Self { shared: directory.clone(), directory, _scratch: None }, claim));
        }
        let scratch = tempfile::tempdir().map_err(|source| Error::io(std::env::temp_dir(), source))?;
        let (directory, claim) = RunDir::claim(scratch.path().join("run"), Existing::Refuse)?;
        Ok((Self { directory, shared: RunDir::at(plan.output_dir()), _scratch: Some(scratch) }, claim))
    }
}

fn run_in_lanes(plan: &Plan, lanes: Lanes, observer: &mut dyn Observer) -> Result<FinishedRun> {
    let other = match plan.origin() {
        Origin::Other(path) => Some(Checkpoint::open(path)?),
        Origin::Own(_) => None,
    };
    let ranks = lanes.ranks();
    // Checked first, so that a wrong column name leaves no run directory behind.
    ranks.agree("the columns of the rows", prepare::check_columns(plan))?;
    let (dirs, claim) = RunDirs::claim(plan, ranks)?;
    let RunDirs { directory, shared, .. } = &dirs;
    let checkpoint = match (&other, plan.origin()) {
        (Some(other), _) => Some(other.adopted_by(directory)?),
        (None, Origin::Own(step)) if plan.existing() == Existing::Resume => Checkpoint::of(shared, *step)?,
        _ => None,
    };
    ranks.barrier("the checkpoint");
    if plan.existing() == Existing::Resume && checkpoint.is_none() {
        directory.restart()?;
    }
    let claim = RefCell::new(claim);
    let observer = &mut ClaimObserver { claim: &claim, inner: observer };
    let outcome = run_in(plan, (directory, shared), lanes, checkpoint, &claim, observer);
    let mut claim = claim.into_inner();
    if matches!(outcome, Err(Error::Diverged { .. })) {
        // The error refers to a batch in this directory.
        claim.has_begun()?;
    }
    let ended = claim.end(outcome.as_ref().err());
    if let (Err(_), Err(second)) = (&outcome, &ended) {
        tracing::warn!("{second}");
    }
    let outcome = outcome?;
    ended.map(|()| outcome)
}

/// [`run`] in a claimed directory.
fn run_in(
    plan: &Plan,
    (directory, shared): (&RunDir, &RunDir),
    lanes: Lanes,
    checkpoint: Option<Checkpoint>,
    claim: &RefCell<Claim>,
    observer: &mut dyn Observer,
) -> Result<FinishedRun> {
    let run_start = RunStart::new(plan, directory, claim)?;
    let mut log = LogObserver::new(&run_start.log(), observer)?;
    // A lost rank unwinds the stack. It is caught here, too, so that the log and the claim record it as the error of the run.
    let outcome = catching(|| run_logged(plan, (directory, shared), lanes, checkpoint, run_start, &mut log));
    if let Err(error) = &outcome {
        log.ended_by(error);
    }
    outcome
}

/// [`run`] with a log.
fn run_logged(
    plan: &Plan,
    (directory, shared): (&RunDir, &RunDir),
    lanes: Lanes,
    checkpoint: Option<Checkpoint>,
    run_start: RunStart<'_>,
    observer: &mut dyn Observer,
) -> Result<FinishedRun> {
    let ranks = lanes.ranks();
    let observer: &mut dyn Observer = &mut PluginObservers::new(plan, directory.path(), &run_start, ranks, observer)?;
    tell_ranks(lanes, observer);
    if plan.existing() == Existing::Resume || checkpoint.is_some() {
        tell_resumption(plan, directory, checkpoint.as_ref(), observer);
    }
    observer.event(&Event::Phase { name: "loading", total: None, done: 0 });
    fetch_models(plan, observer)?;
    let mut start = Start::open(plan)?;
    start.expected_data = checkpoint.as_ref().and_then(|checkpoint| checkpoint.run_state.data.clone());
    start.ranks = ranks;
    let cast = cast::open(plan, &start)?;
    run_start.check_inputs(&start, &cast)?;
    let models = fingerprint::of_models(&cast, start.adapts(plan))?;
    if let Some(checkpoint) = &checkpoint {
        fingerprint::check_models(&checkpoint.run_state.models, &models)?;
    }
    if !ranks.is_alone() {
        fingerprint::check_files_of_ranks(ranks, &fingerprint::of_read_files(&cast, checkpoint.as_ref())?)?;
    }
    let device = plan.device().device().autodiff();
    let (start, cast, run_start) = (&start, &cast, &run_start);
    let context = RunContext { plan, start, cast, models, directory, shared, lanes, checkpoint, device, run_start };
    plan.method().visit(Training { context, observer })
}

/// Reports the number of ranks, and differences between their processors.
fn tell_ranks(lanes: Lanes, observer: &mut dyn Observer) {
    let ranks = lanes.ranks();
    if ranks.is_alone() {
        return;
    }
    let machine = Machine::detect();
    // Equal instruction sets give equal bits.
    let instructions = format!("{:?}", machine.processor_features);
    let own = (machine.processor.unwrap_or_default(), instructions, rayon::current_num_threads());
    let all = ranks.all("processors", &own);
    let (processor, _, threads) = &all[0];
    let count = ranks.size();
    observer.event(&Event::Message(&division(count, *threads, lanes.count())));
    if let Some((rank, (other, ..))) =
        all.iter().enumerate().find(|(_, (_, instructions, _))| *instructions != all[0].1)
    {
        observer.event(&Event::Warning(&format!(
            "rank 0 computes on `{processor}` and rank {rank} on `{other}`, which have different instructions: the \
             weights are exactly reproducible only with the same mixture of processors"
        )));
    }
}

/// Describes how ranks divide the work.
fn division(ranks: usize, threads: usize, lanes: usize) -> String {
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    format!("{ranks} ranks of {threads} share {lanes} lanes")
}

/// Reports the step that a run continues from, and changes of its configuration.
fn tell_resumption(plan: &Plan, directory: &RunDir, checkpoint: Option<&Checkpoint>, observer: &mut dyn Observer) {
    match checkpoint {
        Some(checkpoint) => {
            let of = match plan.origin() {
                Origin::Own(_) => String::new(),
                Origin::Other(path) => format!(" of `{}`", path.display()),
            };
            let step = checkpoint.run_state.step;
            observer.event(&Event::Message(&format!("resuming from step {step}{of}")));
            // A checkpoint of another run has no completions.
            let is_own = matches!(plan.origin(), Origin::Own(_));
            let rollouts = directory.rollouts();
            if is_own && step > 0 && plan.method().is_online() && !rollouts.exists() {
                let message = format!(
                    "`{}` is missing: the completions and warnings of the steps up to {step} are lost, and a new file \
                     was started",
                    rollouts.display()
                );
                observer.event(&Event::Warning(&message));
            }
        }
        None => observer.event(&Event::Warning("no checkpoint to resume from: starting from the beginning")),
    }
    for change in plan.changes() {
        match change.effect {
            Effect::None => observer.event(&Event::Message(&change.to_string())),
            _ => observer.event(&Event::Warning(&change.to_string())),
        }
    }
}

/// A run and its observer.
struct Training<'a> {
    context: RunContext<'a>,
    observer: &'a mut dyn Observer,
}

impl<'m> Visitor<'m> for Training<'_> {
    type Output = Result<FinishedRun>;

    fn offline<M: OfflineMethod>(self, method: &'m M) -> Result<FinishedRun> {
        self.context.offline(method, self.observer)
    }

    fn online<M: OnlineMethod>(self, method: &'m M) -> Result<FinishedRun> {
        self.context.online(method, self.observer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_singular() {
        assert_eq!(division(2, 1, 4), "2 ranks of 1 thread share 4 lanes");
        assert_eq!(division(4, 8, 8), "4 ranks of 8 threads share 8 lanes");
    }
}

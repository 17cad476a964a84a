//! Tests of the loop with a model of three weights. The loop must not depend on the model.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Value, json};

use super::SaveFor;
use super::*;
use crate::host::read;
use crate::learner::optimizer::Optimizer;
use crate::objective::LossContext;
use crate::observer::Event;
use crate::rng::{Purpose, Seed};
use crate::run::{Checkpoint, Existing, MetricsRow, NamedTensor, RunDir, read_metrics, tensors};
use crate::settings::TrainConfig;
use crate::train::observer::Silent;
use crate::train::recorder::{EvalMetrics, Verdict, restore_optimizer};

#[derive(Module, Debug)]
struct LinearModel {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl LinearModel {
    fn new(weight: [f32; 2], bias: f32) -> Self {
        let device = Device::flex().autodiff();
        Self {
            weight: Param::from_tensor(Tensor::from_floats([weight], &device)),
            bias: Param::from_tensor(Tensor::from_floats([bias], &device)),
        }
    }

    fn bits(&self) -> Vec<u32> {
        let weight = read(&self.weight.val().reshape([2]));
        weight.iter().chain(&read(&self.bias.val())).map(|x| x.to_bits()).collect()
    }
}

#[derive(Clone)]
struct Point {
    x: [f32; 2],
    y: f32,
}

/// [`SquaredError`] that records the targets of each pass.
#[derive(Default)]
struct Watched {
    passes: std::cell::RefCell<Vec<Vec<f32>>>,
    /// Panics at this pass, counted from 1; 0: never.
    panics_at: usize,
}

impl Objective for Watched {
    type Model = LinearModel;
    type Example = Point;

    fn tokens(&self, point: &Point) -> usize {
        SquaredError.tokens(point)
    }

    fn targets(&self, point: &Point) -> usize {
        SquaredError.targets(point)
    }

    fn loss(
        &self,
        model: &LinearModel,
        points: &[&Point],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        self.passes.borrow_mut().push(points.iter().map(|point| point.y).collect());
        assert_ne!(self.passes.borrow().len(), self.panics_at, "a bug");
        SquaredError.loss(model, points, context, measured)
    }

    fn describe(&self, point: &Point) -> Value {
        SquaredError.describe(point)
    }
}

/// Mean squared error. An example counts as `1 + |x[1]|` tokens, so that passes split unevenly.
struct SquaredError;

impl Objective for SquaredError {
    type Model = LinearModel;
    type Example = Point;

    fn tokens(&self, point: &Point) -> usize {
        1 + point.x[1].abs() as usize
    }

    fn targets(&self, _point: &Point) -> usize {
        1
    }

    fn loss(
        &self,
        model: &LinearModel,
        points: &[&Point],
        context: LossContext,
        _measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let n = points.len();
        let device = model.weight.val().device();
        let x: Vec<f32> = points.iter().flat_map(|point| point.x).collect();
        let y: Vec<f32> = points.iter().map(|point| point.y).collect();
        let x = Tensor::<2>::from_data(TensorData::new(x, [n, 2]), &device);
        let y = Tensor::<1>::from_data(TensorData::new(y, [n]), &device);
        let predicted = (x * model.weight.val()).sum_dim(1).squeeze_dim::<1>(1) + model.bias.val();
        Some((predicted - y).square().sum() / context.totals.examples as f64)
    }

    fn describe(&self, point: &Point) -> Value {
        json!({ "x": point.x, "y": point.y.to_string() })
    }
}

/// y = 2 x₀ − x₁ + 0.5
fn points() -> Vec<Point> {
    let point = |i: usize| {
        let x = [(i % 5) as f32 - 2.0, (i % 3) as f32 * 2.0 - 2.0];
        Point { x, y: 2.0 * x[0] - x[1] + 0.5 }
    };
    (0..14).map(point).collect()
}

fn save(model: &LinearModel, path: &Path, _: SaveFor) -> Result<()> {
    let weight = read(&model.weight.val().reshape([2]));
    let bias = read(&model.bias.val());
    tensors::write_tensors(
        &path.join("model.safetensors"),
        &[NamedTensor::new("weight", [2], weight), NamedTensor::new("bias", [1], bias)],
    )
}

fn load(path: &Path) -> LinearModel {
    let tensors = tensors::read_tensors(&path.join("model.safetensors")).unwrap();
    LinearModel::new([tensors[1].values[0], tensors[1].values[1]], tensors[0].values[0])
}

fn settings(steps: usize) -> Settings {
    let config = TrainConfig { save_steps: 3, warmup_steps: 2.0, weight_decay: 0.1, ..TrainConfig::default() };
    Settings::new(&config, steps, 0.1, "eval_loss")
}

struct Run {
    directory: tempfile::TempDir,
    outcome: Result<()>,
    bits: Vec<u32>,
}

impl Run {
    fn dir(&self) -> RunDir {
        RunDir::create(self.directory.path(), Existing::Resume).unwrap()
    }
}

/// Trains on `examples` and resumes from the last checkpoint in `directory`, if there is one.
fn run_in(
    directory: tempfile::TempDir,
    examples: &[Point],
    settings: &Settings,
    observer: &mut dyn crate::train::observer::Observer,
) -> Run {
    let run = RunDir::create(directory.path(), Existing::Resume).unwrap();
    let order =
        Order { seed: Seed(3), purpose: Purpose::DataOrder, shuffle: true, rows: examples.len(), batch_size: 4 };
    let held_out = points();
    let task = Offline {
        objective: &SquaredError,
        examples,
        held_out: &held_out,
        test: &[],
        has_test: false,
        order,
        settings,
        save: &save,
        complete: None,
        after_step: None,
    };
    let (mut learner, mut recorder) = match Checkpoint::of(&run, None).unwrap() {
        Some(last) => {
            let model = load(&last.path);
            let optimizer = restore_optimizer(&last, "", settings.optimizer, &model, &Device::flex()).unwrap();
            let learner = Learner::new(model, optimizer);
            (learner, Recorder::resume(run, observer, &last).unwrap())
        }
        None => {
            let learner = Learner::new(LinearModel::new([0.0, 0.0], 0.0), Optimizer::new(settings.optimizer));
            (learner, Recorder::start(run, observer).unwrap())
        }
    };
    let outcome = train(&task, &mut learner, &mut recorder);
    let bits = learner.module().bits();
    Run { directory, outcome, bits }
}

fn run(examples: &[Point], settings: &Settings) -> Run {
    run_in(tempfile::tempdir().unwrap(), examples, settings, &mut Silent)
}

/// Logged rows without the evaluation before the first step.
fn logged(run: &Run) -> Vec<MetricsRow> {
    let rows = read_metrics(&run.dir().metrics()).unwrap();
    rows.into_iter().filter(|row| row.step > 0).collect()
}

#[test]
fn the_loss_falls_and_everything_is_recorded() {
    let run = run(&points(), &settings(60));
    run.outcome.as_ref().unwrap();
    let rows = logged(&run);
    let loss = |i: usize| rows[i].values.get("loss").unwrap();
    assert_eq!(rows.len(), 60);
    assert!(loss(0) > 3.0 && loss(59) < 0.1, "from {} to {}", loss(0), loss(59));
    assert_eq!(rows[0].values.get("learning_rate"), Some(0.0), "the first update of a warm-up");
    assert_eq!(rows[3].values.get("epoch"), Some(1.0), "14 rows in batches of 4");
    let keys: Vec<&str> = rows[59].values.iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        ["loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "num_examples", "tokens_per_s", "eval_loss"]
    );
    assert_eq!(run.dir().checkpoint_steps().unwrap(), [57, 60]);
    assert_eq!(load(&run.dir().best()).bits(), run.bits, "the only evaluation is the best");
}

#[test]
fn the_split_into_passes_changes_nothing_but_rounding() {
    let steps = |tokens, rows| {
        let mut settings = settings(12);
        settings.passes = crate::batches::MicroBatch::new(tokens, rows);
        run(&points(), &settings).bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>()
    };
    let whole = steps(4096, None);
    for split in [steps(1, None), steps(5, None), steps(4096, Some(3))] {
        for (whole, split) in whole.iter().zip(split) {
            assert!((whole - split).abs() < 1e-5, "{whole} against {split}");
        }
    }
}

#[test]
fn the_longest_pass_is_tried_once_before_the_first_step() {
    let trained = |try_longest| {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(2);
        (settings.try_longest, settings.passes.rows) = (try_longest, Some(3));
        let examples = points();
        let order =
            Order { seed: Seed(3), purpose: Purpose::DataOrder, shuffle: false, rows: examples.len(), batch_size: 4 };
        let objective = Watched::default();
        let task = Offline {
            objective: &objective,
            examples: &examples,
            held_out: &[],
            test: &[],
            has_test: false,
            order,
            settings: &settings,
            save: &save,
            complete: None,
            after_step: None,
        };
        let run = RunDir::create(directory.path(), Existing::Refuse).unwrap();
        let mut learner = Learner::new(LinearModel::new([0.0, 0.0], 0.0), Optimizer::new(settings.optimizer));
        train(&task, &mut learner, &mut Recorder::start(run, &mut Silent).unwrap()).unwrap();
        let rows = read_metrics(&directory.path().join("metrics.jsonl")).unwrap();
        let values = rows.iter().map(|row| row.values.to_json()).map(|mut row| {
            row.remove("tokens_per_s");
            row
        });
        (objective.passes.into_inner(), learner.module().bits(), values.collect::<Vec<_>>())
    };
    let ((tried, bits, metrics), (plain, plain_bits, plain_metrics)) = (trained(true), trained(false));
    // Rows 0, 2 and 3 have 3 tokens each, the maximum: y = −4 + 2 + 0.5, 0 − 2 + 0.5 and 2 + 2 + 0.5.
    assert_eq!(tried[0], [-1.5, -1.5, 4.5]);
    assert_eq!(tried[1..], plain[..], "then everything goes on as without it");
    assert_eq!((bits, metrics), (plain_bits, plain_metrics));
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    assert_eq!(run(&points(), &settings(10)).bits, run(&points(), &settings(10)).bits);
}

/// Stops a run after some steps.
struct Stopper(usize);

impl crate::train::observer::Observer for Stopper {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Step { .. } = event {
            self.0 = self.0.saturating_sub(1);
        }
    }

    fn should_stop(&mut self) -> bool {
        self.0 == 0
    }
}

#[test]
fn an_interrupted_run_that_goes_on_gives_the_same_bits() {
    let settings = settings(11);
    let whole = run(&points(), &settings);
    let first = run_in(tempfile::tempdir().unwrap(), &points(), &settings, &mut Stopper(5));
    assert!(matches!(first.outcome, Err(Error::Interrupted)));
    assert_eq!(first.dir().checkpoint_steps().unwrap(), [3, 5]);
    let second = run_in(first.directory, &points(), &settings, &mut Silent);
    second.outcome.as_ref().unwrap();
    assert_eq!(second.bits, whole.bits);
    let losses = |run: &Run| {
        logged(run).iter().map(|row| (row.step, row.values.get("loss").unwrap().to_bits())).collect::<Vec<_>>()
    };
    assert_eq!(losses(&second), losses(&whole));
}

#[test]
fn a_panic_within_a_step_leaves_a_checkpoint_of_the_step_before() {
    let mut settings = settings(11);
    settings.try_longest = false;
    let (directory, examples) = (tempfile::tempdir().unwrap(), points());
    let objective = Watched { panics_at: 5, ..Watched::default() };
    let order =
        Order { seed: Seed(3), purpose: Purpose::DataOrder, shuffle: true, rows: examples.len(), batch_size: 4 };
    let task = Offline {
        objective: &objective,
        examples: &examples,
        held_out: &[],
        test: &[],
        has_test: false,
        order,
        settings: &settings,
        save: &save,
        complete: None,
        after_step: None,
    };
    let dir = RunDir::create(directory.path(), Existing::Refuse).unwrap();
    let mut learner = Learner::new(LinearModel::new([0.0, 0.0], 0.0), Optimizer::new(settings.optimizer));
    let mut nobody = Silent;
    let mut recorder = Recorder::start(dir.clone(), &mut nobody).unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| train(&task, &mut learner, &mut recorder)));
    assert!(ended.is_err(), "the panic goes on");
    assert_eq!(dir.checkpoint_steps().unwrap(), [3, 4]);
    let second = run_in(directory, &examples, &settings, &mut Silent);
    second.outcome.as_ref().unwrap();
    assert_eq!(second.bits, run(&examples, &settings).bits);
    assert_eq!(second.dir().checkpoint_steps().unwrap(), [9, 11]);
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_weights() {
    let mut examples = points();
    examples[13].y = f32::NAN;
    let run = run(&examples, &settings(20));
    let Err(Error::Diverged { step, what, batch: Some(path) }) = &run.outcome else { panic!("{:?}", run.outcome) };
    assert_eq!(what, "the loss is NaN");
    let written: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rows: Vec<u64> = written["batch"].as_array().unwrap().iter().map(|row| row["row"].as_u64().unwrap()).collect();
    assert!(rows.contains(&14), "rows count from 1: {rows:?}");
    assert_eq!(written["step"], *step);
    let kept = *run.dir().checkpoint_steps().unwrap().last().unwrap();
    assert_eq!(kept, step - 1);
    let kept = load(&run.dir().checkpoint(kept)).bits();
    assert_eq!(kept, run.bits);
    assert!(kept.iter().all(|&bits| f32::from_bits(bits).is_finite()));
}

/// Collects warnings.
#[derive(Default)]
struct Warnings(Vec<String>);

impl crate::train::observer::Observer for Warnings {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Warning(message) = event {
            self.0.push((*message).to_owned());
        }
    }
}

#[test]
fn a_metric_that_is_not_finite_is_null_in_the_file_and_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut warnings = Warnings::default();
    let settings = settings(2);
    let dir = RunDir::create(directory.path(), Existing::Resume).unwrap();
    let mut recorder = Recorder::start(dir.clone(), &mut warnings).unwrap();
    let progress = DataProgress { epoch: 0.5, examples: 4 };
    for step in [1, 2] {
        recorder.begin();
        let mut report = StepReport::default();
        report.metrics.last("ratio", f64::INFINITY);
        report.metrics.last("loss", 0.5);
        recorder.gather(&report);
        recorder.log(step, &settings, progress, &EvalMetrics::default()).unwrap();
    }
    drop(recorder);
    let message = "`ratio` is inf at step 1, which JSON cannot represent: `metrics.jsonl` contains `null`";
    assert_eq!(warnings.0, [message]);
    let text = std::fs::read_to_string(dir.metrics()).unwrap();
    assert_eq!(text.matches("\"ratio\":null").count(), 2, "{text}");
}

#[test]
fn training_stops_when_the_held_out_loss_no_longer_falls() {
    let mut settings = settings(1000);
    (settings.eval_steps, settings.early_stopping_patience, settings.learning_rate) = (1, 2, 0.0);
    let run = run(&points(), &settings);
    run.outcome.as_ref().unwrap();
    let rows = logged(&run);
    assert_eq!(rows.len(), 2, "the start is the best, and two evaluations do not improve on it");
    assert_eq!(run.dir().checkpoint_steps().unwrap(), [2]);
    assert!(!run.dir().best().exists(), "there is no copy of the start");
}

#[test]
fn a_best_metric_that_is_not_measured_is_named() {
    let mut settings = settings(1);
    settings.best_metric = "eval_acuracy".into();
    let run = run(&points(), &settings);
    let error = run.outcome.unwrap_err();
    assert_eq!(error.to_string(), "`train.best_metric` is `eval_acuracy`, which this run does not measure");
    assert_eq!(error.hint(), Some("it measures `eval_loss`"));
}

#[test]
fn an_evaluation_without_the_best_metric_is_never_the_best() {
    let directory = tempfile::tempdir().unwrap();
    let mut warnings = Warnings::default();
    let settings = settings(4);
    let dir = RunDir::create(directory.path(), Existing::Resume).unwrap();
    let mut recorder = Recorder::start(dir, &mut warnings).unwrap();
    let of = |losses: &[f32]| {
        let (mut stats, mut measured) = (Stats::default(), EvalMetrics::default());
        stats.mean_of("loss", losses);
        measured.add(EvalSplit::HeldOut, &stats);
        measured
    };
    recorder.baseline(&of(&[]), &settings).unwrap();
    let mut is_best = |step: usize, measured: &EvalMetrics| {
        let mut is_saved = false;
        recorder.log(step, &settings, DataProgress { epoch: 0.5, examples: 4 }, measured).unwrap();
        let verdict = recorder.judge(step, &settings, measured, |_| {
            is_saved = true;
            Ok(())
        });
        assert_eq!(verdict.unwrap(), Verdict::Continue);
        is_saved
    };
    assert!(is_best(1, &of(&[2.0])), "the first value");
    assert!(!is_best(2, &of(&[])));
    // A program may name its values, so an evaluation without values may lack the names too.
    assert!(!is_best(3, &EvalMetrics { undefined: Vec::new(), ..of(&[]) }));
    assert!(is_best(4, &of(&[1.0])));
    drop(recorder);
    let warning = "step 0: `eval_loss` has no value in this evaluation. It selects the best model, so an evaluation without it is \
                   never the best";
    assert_eq!(warnings.0, [warning]);
}

/// The passes of a step are queued on the device before the first value is read.
#[test]
fn a_step_waits_once_for_the_device_whatever_its_passes() {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models");
    let place = tempfile::tempdir().expect("a directory");
    let words = |i: usize| format!("cup {i} is");
    let pairs = || (0..16).map(|i| json!({ "prompt": words(i), "chosen": " red", "rejected": " a big car" }));
    let texts = || (0..16).map(|i| json!({ "text": words(i) }));
    let length = |_: &crate::rollout::Prompt, of: &crate::rollout::Rollout| Ok(Some(of.completion.len() as f32));
    // Waits of the second step.
    let waits = |method: &str, passes: usize| {
        let [short, long] = [1, 2].map(|steps| {
            let method = serde_json::from_value(json!({ method: {} })).expect("a method");
            let training = crate::Training::new(&method, format!("{models}/gpt2")).set("micro_batch_size", 4 / passes);
            let training = match method.name() {
                "sft" => training.rows(texts()),
                "grpo" => training.rows(pairs()).set("max_new_tokens", 4).reward(length),
                _ => training.rows(pairs()),
            };
            let directory = place.path().join(format!("{}-{passes}-{steps}", method.name()));
            let before = crate::host::waits();
            training.output_dir(directory).batch_size(4).max_steps(steps).run().expect("a run");
            crate::host::waits() - before
        });
        long - short
    };
    for method in ["sft", "dpo", "cpo", "orpo", "reward"] {
        assert_eq!(waits(method, 4), 1, "{method}");
    }
    // Each sampled token is another wait.
    assert_eq!(waits("grpo", 1), waits("grpo", 4));
}

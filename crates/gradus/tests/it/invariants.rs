//! Invariants of training: whole runs that must agree.
//!
//! Each method trains a tiny model on a few rows, as a user would, from a written configuration to a run directory. The
//! sampler's log-probabilities equal the trainer's, the layout of a batch does not matter, and the same seed gives the
//! same bits, interrupted or not.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use gradus::Error;
use gradus::config::{Plan, RunConfig};
use gradus::machine::Machine;
use gradus::model::{CausalLm, ModelDir, NamedTensor, RewardModel, named_tensors};
use gradus::run::{Existing, MetricsRow, read_metrics};
use gradus::train::observer::{Event, Observer, Silent};

/// Tolerance for f32 sums in another order, relative to the number or 1, whichever is larger.
const ROUNDING: f64 = 1e-5;

/// A method in configuration syntax, and its training rows.
struct Method {
    name: &'static str,
    model: &'static str,
    written: &'static str,
    rows: &'static str,
}

const OFFLINE: [Method; 16] = [
    Method { name: "sft", model: "qwen3", written: "sft: {label_smoothing: 0.1}", rows: "sft" },
    Method {
        name: "reward",
        model: "qwen3",
        written: "reward: {center_rewards_coefficient: 0.01}",
        rows: "reward_margin",
    },
    Method { name: "dpo", model: "qwen3", written: "dpo: {}", rows: "dpo" },
    Method { name: "dpo hinge", model: "qwen3", written: "dpo: {loss_type: hinge, reference: live}", rows: "dpo" },
    Method { name: "dpo ipo", model: "qwen3", written: "dpo: {loss_type: ipo}", rows: "dpo" },
    Method {
        name: "dpo sorted over the step",
        model: "qwen3",
        written: "dpo: {loss_type: [aot, aot_unpaired, sft], loss_weights: [1, 0.5, 0.2], ld_alpha: 0.5, reference: live}",
        rows: "dpo",
    },
    Method {
        name: "dpo of weighted pairs",
        model: "qwen3",
        written: "dpo: {loss_type: [exo_pair, sigmoid_norm], label_smoothing: 0.01, f_divergence_type: js_divergence, use_weighting: true}",
        rows: "dpo",
    },
    Method { name: "cpo", model: "qwen3", written: "cpo: {label_smoothing: 0.1, alpha: 0.1}", rows: "dpo" },
    Method { name: "simpo", model: "qwen3", written: "simpo: {cpo_alpha: 0.5}", rows: "dpo" },
    Method { name: "kto", model: "qwen3", written: "kto: {desirable_weight: 1.5}", rows: "kto" },
    Method { name: "kto of pairs", model: "qwen3", written: "kto: {loss_type: apo_zero_unpaired}", rows: "dpo" },
    Method { name: "kto of t5", model: "t5", written: "kto: {}", rows: "pairs_t5" },
    Method {
        name: "distill",
        model: "qwen3",
        written: concat!(
            "distill: {teacher_model: ",
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/parity/trajectories/models/gpt2, max_new_tokens: 6, seq_kd: true}"
        ),
        rows: "sft",
    },
    Method { name: "sft of t5", model: "t5", written: "sft: {}", rows: "sft_t5" },
    Method { name: "reward of t5", model: "t5", written: "reward: {}", rows: "pairs_t5" },
    Method { name: "dpo of t5", model: "t5", written: "dpo: {reference: live}", rows: "pairs_t5" },
];

const ONLINE: [Method; 12] = [
    Method {
        name: "grpo",
        model: "qwen3",
        written: "grpo: {loss_type: grpo, group_size: 4, max_new_tokens: 6, kl_coefficient: 0.04, update_epochs: 2, mini_batches: 2}",
        rows: "sft",
    },
    Method {
        name: "grpo dapo",
        model: "qwen3",
        written: "grpo: {loss_type: dapo, group_size: 4, max_new_tokens: 6, kl_coefficient: 0.04, entropy_coefficient: 0.01}",
        rows: "sft",
    },
    Method {
        name: "grpo dr_grpo",
        model: "qwen3",
        written: "grpo: {loss_type: dr_grpo, group_size: 4, max_new_tokens: 6, scale_rewards: none}",
        rows: "sft",
    },
    Method {
        name: "grpo on processed logprobs",
        model: "qwen3",
        written: "grpo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.04, entropy_coefficient: 0.01, sampling: {top_k: 40, top_p: 0.95, trained_logprobs: processed}}",
        rows: "sft",
    },
    Method {
        name: "grpo of sequences",
        model: "qwen3",
        written: "grpo: {loss_type: grpo, importance_sampling_level: sequence, group_size: 4, max_new_tokens: 6, kl_coefficient: 0.04, update_epochs: 2, mini_batches: 2}",
        rows: "sft",
    },
    Method {
        // The first tokens of a group have the same entropy, up to rounding. The bonus begins in the second update.
        name: "grpo on tokens of high entropy",
        model: "qwen3",
        written: "grpo: {group_size: 4, max_new_tokens: 6, update_epochs: 2, mini_batches: 2, top_entropy_quantile: 0.4, \
                  use_adaptive_entropy: true, entropy_target: 9, entropy_coefficient_delta: 0.02, \
                  multi_objective_aggregation: normalize_then_sum}",
        rows: "sft",
    },
    Method {
        // Without a KL term: next to the reference, rounding would decide the sign of advantages in groups without spread.
        name: "rloo",
        model: "qwen3",
        written: "rloo: {kl_coefficient: 0, group_size: 4, max_new_tokens: 6, update_epochs: 2, mini_batches: 2}",
        rows: "sft",
    },
    Method {
        name: "ppo",
        model: "qwen3",
        written: "ppo: {max_new_tokens: 6, update_epochs: 2, mini_batches: 2, critic: {trunk: separate}}",
        rows: "sft",
    },
    Method {
        name: "ppo with one trunk",
        model: "qwen3",
        written: "ppo: {max_new_tokens: 6, update_epochs: 2, critic: {trunk: shared}, whiten_rewards: true}",
        rows: "sft",
    },
    Method {
        name: "grpo of t5",
        model: "t5",
        written: "grpo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.04, update_epochs: 2, mini_batches: 2}",
        rows: "sft_t5",
    },
    Method {
        name: "ppo of t5",
        model: "t5",
        written: "ppo: {max_new_tokens: 6, update_epochs: 2, mini_batches: 2, critic: {trunk: separate}}",
        rows: "sft_t5",
    },
    Method {
        name: "ppo of t5 with one trunk",
        model: "t5",
        written: "ppo: {max_new_tokens: 6, update_epochs: 2, critic: {trunk: shared}}",
        rows: "sft_t5",
    },
];

fn all() -> impl Iterator<Item = (&'static Method, bool)> {
    OFFLINE.iter().map(|method| (method, false)).chain(ONLINE.iter().map(|method| (method, true)))
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories")
}

/// Results of a run.
struct Trained {
    metrics: Vec<MetricsRow>,
    weights: Vec<NamedTensor<'static>>,
}

/// A run directory and its configuration.
struct Run {
    directory: tempfile::TempDir,
    written: String,
}

impl Run {
    /// `train` contains lines of the `train` section.
    fn new(method: &Method, is_online: bool, train: &str) -> Self {
        Self::on(method, is_online, &fixtures().join(method.rows).join("rows.jsonl"), train)
    }

    fn on(method: &Method, is_online: bool, rows: &Path, train: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (reward, learning_rate) = if is_online { ("reward: {rule: {regex: e}}\n", 0.1) } else { ("", 0.5) };
        // A large epsilon keeps the step in proportion to the gradient. Adam's usual one would turn rounding noise in a
        // gradient near 0 into a full step.
        let written = format!(
            "model: {}\ndata: {}\noutput_dir: {}\nmethod: {{{}}}\n{reward}train:\n  batch_size: 8\n  eval_fraction: 0\n  \
             learning_rate: {learning_rate}\n  adam_epsilon: 1.0\n  max_grad_norm: 10\n{train}",
            fixtures().join("models").join(method.model).display(),
            rows.display(),
            directory.path().join("run").display(),
            method.written,
        );
        Self { directory, written }
    }

    /// The same run, but training an adapter instead of the model.
    fn with_adapter(self, lora: &str) -> Self {
        Self { written: format!("lora: {lora}\n{}", self.written), ..self }
    }

    fn plan(&self) -> Plan {
        let written = RunConfig::parse(&self.written).expect("the configuration reads");
        Plan::check(&written, &Machine::detect()).expect("the configuration holds")
    }

    fn finish(&self, existing: Existing) -> Trained {
        let outcome = gradus::train::run(&self.plan().on_existing(existing), &mut Silent).expect("the run ends");
        let metrics = read_metrics(&outcome.directory.join("metrics.jsonl")).expect("metrics");
        let (dir, device) = (ModelDir::open(&outcome.model).expect("a model"), Device::flex());
        let weights = match dir.is_reward_model() {
            true => named_tensors(&RewardModel::load(&dir, &device).expect("a reward model")),
            false => named_tensors(&CausalLm::load(&dir, &device).expect("a policy")),
        };
        Trained { metrics, weights }
    }

    fn train(&self) -> Trained {
        self.finish(Existing::Refuse)
    }

    /// Trains `steps` steps and stops as if interrupted.
    fn interrupt(&self, steps: usize) {
        let result = gradus::train::run(&self.plan(), &mut Interrupt { steps, is_due: false });
        assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
        assert!(self.directory.path().join("run/checkpoints").is_dir(), "a checkpoint was written");
    }
}

/// Requests a stop as soon as the step after `steps` begins.
struct Interrupt {
    steps: usize,
    is_due: bool,
}

impl Observer for Interrupt {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Within { step, .. } = event {
            self.is_due = *step > self.steps;
        }
    }

    fn should_stop(&mut self) -> bool {
        self.is_due
    }
}

/// Timings are not compared.
fn is_timing(name: &str) -> bool {
    name.starts_with("time/") || name.ends_with("_per_s") || name.ends_with("_s") || name.contains("memory")
}

/// Asserts that both have the same steps with the same numbers, within `tolerance`; 0 means bit for bit.
#[track_caller]
fn assert_same(what: &str, found: &Trained, expected: &Trained, tolerance: f64) {
    let near = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0);
    assert_eq!(found.metrics.len(), expected.metrics.len(), "{what}: how many steps were logged");
    for (found, expected) in found.metrics.iter().zip(&expected.metrics) {
        for (name, expected_value) in expected.values.iter().filter(|(name, _)| !is_timing(name)) {
            let value = found.values.get(name).unwrap_or_else(|| panic!("{what}: `{name}` is missing"));
            assert!(
                near(value, expected_value),
                "{what}, step {}, {name}: {value} against {expected_value}",
                found.step
            );
        }
    }
    assert_eq!(found.weights.len(), expected.weights.len(), "{what}: how many tensors");
    for (found, expected) in found.weights.iter().zip(&expected.weights) {
        assert_eq!(found.name, expected.name, "{what}");
        for (a, b) in found.values.iter().zip(expected.values.iter()) {
            assert!(near(f64::from(*a), f64::from(*b)), "{what}, `{}`: {a} against {b}", found.name);
        }
    }
}

#[track_caller]
fn metric(trained: &Trained, step: usize, name: &str) -> f64 {
    trained.metrics[step].values.get(name).unwrap_or_else(|| panic!("`{name}` is not logged"))
}

const SHORT: &str = "  max_steps: 2\n  shuffle: false\n";

#[test]
fn micro_batches_and_packing_change_nothing() {
    for (method, is_online) in all() {
        let whole = Run::new(method, is_online, &format!("{SHORT}  micro_batch_tokens: 100000\n")).train();
        assert!(metric(&whole, 0, "grad_norm") > 1e-3, "{}: nothing is learned, so nothing is tested", method.name);
        // Each sequence (or pair) alone, and passes of uneven size.
        for split in ["  micro_batch_size: 1\n", "  micro_batch_tokens: 60\n"] {
            let parts = Run::new(method, is_online, &format!("{SHORT}{split}")).train();
            assert_same(&format!("{}, {}", method.name, split.trim()), &parts, &whole, ROUNDING);
        }
    }
}

#[test]
fn the_order_of_rows_within_a_step_changes_nothing() {
    // KTO compares to completions of the previous row, and distillation samples by the position in the step.
    let compares = |method: &&Method| {
        (method.written.starts_with("kto: {") && !method.written.contains("apo_zero_unpaired"))
            || method.written.starts_with("distill: {")
    };
    for method in OFFLINE.iter().filter(|method| !compares(method)) {
        let rows = std::fs::read_to_string(fixtures().join(method.rows).join("rows.jsonl")).expect("rows");
        let first: Vec<&str> = rows.lines().take(8).collect();
        let trained = [first.clone(), first.into_iter().rev().collect()].map(|rows| {
            let file = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a temporary file");
            std::fs::write(file.path(), rows.join("\n")).expect("rows are written");
            Run::on(method, false, file.path(), SHORT).train()
        });
        assert_same(method.name, &trained[1], &trained[0], ROUNDING);
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_seed_does_not() {
    for (method, is_online) in all() {
        let train = |seed: u64| Run::new(method, is_online, &format!("  max_steps: 3\n  seed: {seed}\n")).train();
        let (once, again, other) = (train(7), train(7), train(8));
        assert_same(method.name, &again, &once, 0.0);
        let values = |trained: &Trained| trained.weights.iter().flat_map(|t| t.values.to_vec()).collect::<Vec<f32>>();
        assert_ne!(values(&once), values(&other), "{}: the seed has no effect", method.name);
    }
}

#[test]
fn trying_the_longest_pass_first_changes_nothing() {
    for (method, is_online) in all() {
        let train = |lines: &str| Run::new(method, is_online, &format!("{SHORT}{lines}")).train();
        assert_same(method.name, &train(""), &train("  try_longest: false\n"), 0.0);
    }
}

#[test]
fn recomputed_blocks_change_nothing() {
    for (method, is_online) in all() {
        let train = |lines: &str| Run::new(method, is_online, &format!("{SHORT}{lines}")).train();
        assert_same(method.name, &train("  recompute: true\n"), &train(""), 0.0);
    }
}

/// Noise depends on the step, the row and the place in the row, and on nothing else.
#[test]
fn noise_on_embeddings_does_not_depend_on_passes_lanes_recomputation_or_interruptions() {
    let find = |name| OFFLINE.iter().find(|method| method.name == name).expect("a method");
    for name in ["sft", "dpo", "simpo"] {
        let noisy = "  neftune_noise_alpha: 5\n";
        let new = |more: &str| {
            let run = Run::new(find(name), false, &format!("  max_steps: 3\n  eval_steps: 1\n{more}"));
            Run { written: run.written.replace("eval_fraction: 0\n", "eval_fraction: 0.3\n"), ..run }
        };
        let train = |more: &str| new(more).train();
        let (with, without) = (train(noisy), train(""));
        let loss = |trained: &Trained, step| metric(trained, step, "loss");
        assert!((loss(&with, 1) - loss(&without, 1)).abs() > 1e-4, "{name}: noise has no effect");
        // Before the first step, both have the same weights, and evaluations have no noise.
        assert_eq!(metric(&with, 0, "eval_loss"), metric(&without, 0, "eval_loss"), "{name}");
        assert_same(&format!("{name}, alpha 0"), &train("  neftune_noise_alpha: 0\n"), &without, 0.0);
        assert_same(&format!("{name}, recompute"), &train(&format!("{noisy}  recompute: true\n")), &with, 0.0);
        for split in ["  micro_batch_size: 1\n", "  micro_batch_tokens: 60\n", "  lanes: 4\n"] {
            let parts = train(&format!("{noisy}{split}"));
            assert_same(&format!("{name}, {}", split.trim()), &parts, &with, ROUNDING);
        }
        let run = new(noisy);
        run.interrupt(2);
        assert_same(&format!("{name}, resumed"), &run.finish(Existing::Resume), &with, 0.0);
    }
}

#[test]
fn an_interrupted_run_that_goes_on_gives_the_same_bits() {
    for (method, is_online) in all() {
        let lines = "  max_steps: 5\n  weight_decay: 0.01\n  lr_schedule: cosine\n";
        let whole = Run::new(method, is_online, lines).train();
        let run = Run::new(method, is_online, lines);
        run.interrupt(2);
        assert_same(method.name, &run.finish(Existing::Resume), &whole, 0.0);
    }
}

#[test]
fn the_first_update_starts_at_ratio_one_and_at_the_reference() {
    let once = |written: &'static str| Method { name: written, model: "qwen3", written, rows: "sft" };
    let ppo = Run::new(&once("ppo: {max_new_tokens: 6, update_epochs: 1}"), true, SHORT).train();
    for (name, expected, tolerance) in [
        ("val/ratio", 1.0, 1e-5),
        ("val/ratio_var", 0.0, 1e-9),
        ("policy/approxkl_avg", 0.0, 1e-9),
        ("policy/clipfrac_avg", 0.0, 0.0),
        ("objective/kl", 0.0, 1e-4),
    ] {
        let found = metric(&ppo, 0, name);
        assert!((found - expected).abs() <= tolerance, "ppo, {name}: {found} against {expected}");
    }
    let grpo = once("grpo: {group_size: 4, max_new_tokens: 6, update_epochs: 1, kl_coefficient: 0.1}");
    let grpo = Run::new(&grpo, true, SHORT).train();
    assert_eq!(metric(&grpo, 0, "clip_ratio/region_mean"), 0.0);
    assert!(metric(&grpo, 0, "kl").abs() <= 1e-9, "grpo: kl {}", metric(&grpo, 0, "kl"));
    assert!(metric(&grpo, 1, "kl") > 0.0, "grpo: the second iteration has moved");

    // Coarser weights sample from an approximation of the policy; the policy's own logprobs still start the update.
    let train = format!("{SHORT}  sampling_weights: int8\n");
    let ppo = Run::new(&once("ppo: {max_new_tokens: 6, update_epochs: 1}"), true, &train).train();
    let error = metric(&ppo, 0, "sampling/logprob_error");
    assert!(error > 1e-6 && error < 0.02, "int8: logprobs {error} apart");
    assert!((metric(&ppo, 0, "val/ratio") - 1.0).abs() <= 1e-5);

    for reference in ["precomputed", "live"] {
        let written = if reference == "live" { "dpo: {reference: live}" } else { "dpo: {}" };
        let dpo = Run::new(&Method { rows: "dpo", ..once(written) }, false, SHORT).train();
        let loss = metric(&dpo, 0, "loss");
        assert!((loss - std::f64::consts::LN_2).abs() <= 1e-6, "dpo, {reference}: {loss} is not ln 2");
        assert!(metric(&dpo, 0, "rewards/margins").abs() <= 1e-6);
        assert!(metric(&dpo, 1, "rewards/margins") > 0.0, "dpo, {reference}: the chosen rows gained");
    }
}

#[test]
fn equal_rewards_teach_rloo_nothing_while_the_policy_equals_the_reference() {
    let method = Method {
        name: "rloo",
        model: "qwen3",
        written: "rloo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.5}",
        rows: "sft",
    };
    let run = |train: &str| {
        let run = Run::new(&method, true, &format!("{SHORT}{train}"));
        Run { written: run.written.replace("regex: e}", "regex: zzzz}"), ..run }
    };
    let reference = fixtures().join("models/qwen3");
    let named = run("");
    let with_reference = format!("kl_coefficient: 0.5, reference_model: {}}}", reference.display());
    let named = Run { written: named.written.replace("kl_coefficient: 0.5}", &with_reference), ..named };
    let broken = run("");
    broken.interrupt(1);
    for (what, trained) in [
        ("f32", run("").train()),
        ("bf16", run("  compute: bf16\n").train()),
        ("small passes", run("  micro_batch_size: 3\n").train()),
        ("coarser weights for sampling", run("  sampling_weights: int8\n").train()),
        ("an adapter", run("").with_adapter(ADAPTERS[0]).train()),
        ("a reference with a name", named.train()),
        ("a resumed run", broken.finish(Existing::Resume)),
    ] {
        for step in 0..2 {
            for (name, expected) in
                [("kl", 0.0), ("objective/kl", 0.0), ("grad_norm", 0.0), ("frac_reward_zero_std", 1.0)]
            {
                assert_eq!(metric(&trained, step, name), expected, "{what}, step {}, {name}", step + 1);
            }
        }
    }
}

#[test]
fn a_row_of_two_steps_has_the_mean_loss_and_the_last_gradient_norm() {
    for (method, is_online) in [(&OFFLINE[0], false), (&ONLINE[0], true)] {
        let each = Run::new(method, is_online, SHORT).train();
        let both = Run::new(method, is_online, &format!("{SHORT}  logging_steps: 2\n")).train();
        let [row] = both.metrics.as_slice() else { panic!("{}: {} rows", method.name, both.metrics.len()) };
        let value = |name: &str| row.values.get(name).unwrap_or_else(|| panic!("`{name}` is not logged"));
        let (first, second) = (metric(&each, 0, "grad_norm"), metric(&each, 1, "grad_norm"));
        assert!(first != second && value("grad_norm") == second, "{}: {first}, {second}", method.name);
        let mean = (metric(&each, 0, "loss") + metric(&each, 1, "loss")) / 2.0;
        assert!((value("loss") - mean).abs() < 1e-6, "{}: {} and {mean}", method.name, value("loss"));
    }
}

#[test]
fn whichever_logprobs_train_the_first_ratio_is_one() {
    let entropies = ["raw", "processed", "untempered"].map(|trained| {
        let sampling = format!(
            "sampling: {{top_k: 40, top_p: 0.9, min_p: 0.01, no_repeat_ngram_size: 2, min_new_tokens: 2, suppress_tokens: [40, 41], trained_logprobs: {trained}}}"
        );
        let run = |written: String| {
            let run = Run::new(&Method { name: "", model: "qwen3", written: "METHOD", rows: "sft" }, true, SHORT);
            Run { written: run.written.replace("METHOD", &written), ..run }.train()
        };
        let ppo = run(format!("ppo: {{max_new_tokens: 6, update_epochs: 1, {sampling}}}"));
        for (name, expected, tolerance) in [
            ("val/ratio", 1.0, 1e-5),
            ("val/ratio_var", 0.0, 1e-9),
            ("policy/approxkl_avg", 0.0, 1e-9),
            ("objective/kl", 0.0, 1e-4),
        ] {
            let found = metric(&ppo, 0, name);
            assert!((found - expected).abs() <= tolerance, "{trained}, {name}: {found} against {expected}");
        }
        let grpo = run(format!("grpo: {{group_size: 4, max_new_tokens: 6, temperature: 0.7, kl_coefficient: 0.1, {sampling}}}"));
        assert_eq!(metric(&grpo, 0, "clip_ratio/region_mean"), 0.0, "{trained}");
        assert!(metric(&grpo, 0, "kl").abs() <= 1e-9, "{trained}: kl {}", metric(&grpo, 0, "kl"));
        assert!(metric(&grpo, 1, "kl") > 0.0, "{trained}: the second iteration has moved");
        metric(&grpo, 0, "entropy")
    });
    assert!(entropies[1] < 0.9 * entropies[0], "{entropies:?}: fewer tokens could be drawn");
    assert!(entropies[2] > 1.001 * entropies[0], "{entropies:?}: the model's own are less sure");
}

/// Adapters of both kinds, on attention layers only and on all layers.
const ADAPTERS: [&str; 2] = ["{rank: 4, alpha: 8}", "{rank: 3, alpha: 6, targets: [all-linear], dora: true}"];

#[test]
fn adapters_learn_alone_and_keep_every_invariant() {
    for (method, is_online) in all() {
        for lora in ADAPTERS {
            let what = format!("{}, {lora}", method.name);
            let train =
                |lines: &str| Run::new(method, is_online, &format!("{SHORT}{lines}")).with_adapter(lora).train();
            let whole = train("");
            assert_same(&what, &train(""), &whole, 0.0);
            assert_same(&what, &train("  recompute: true\n"), &whole, 0.0);
            assert_same(&what, &train("  micro_batch_size: 1\n"), &whole, ROUNDING);
            let device = Device::flex();
            let start = ModelDir::open(&fixtures().join("models").join(method.model)).expect("the start model");
            let base = named_tensors(&CausalLm::load(&start, &device).expect("loads"));
            for tensor in &base {
                let found = whole.weights.iter().find(|found| found.name == tensor.name);
                let same = found.is_some_and(|found| found.values == tensor.values);
                assert!(same || tensor.name == "lm_head.weight", "{what}: `{}` of the base has changed", tensor.name);
            }
            let moved = |part: &str| {
                let parts = whole.weights.iter().filter(|tensor| tensor.name.ends_with(part));
                parts.flat_map(|tensor| tensor.values.iter()).any(|value| *value != 0.0)
            };
            assert!(moved("lora_b"), "{what}: nothing is learned");
        }
    }
}

#[test]
fn an_adapter_that_goes_on_after_an_interruption_gives_the_same_bits() {
    for (method, is_online) in all() {
        let run = || Run::new(method, is_online, "  max_steps: 4\n  weight_decay: 0.01\n").with_adapter(ADAPTERS[1]);
        let (whole, broken) = (run().train(), run());
        broken.interrupt(2);
        let checkpoint = broken.directory.path().join("run/checkpoints/step-000002");
        assert!(
            checkpoint.join("adapter_model.safetensors").is_file() && !checkpoint.join("model.safetensors").exists()
        );
        assert_same(method.name, &broken.finish(Existing::Resume), &whole, 0.0);
    }
}

#[test]
fn an_adapter_learns_on_a_quantized_base() {
    for (method, is_online) in all() {
        let run = |weights: &str| {
            let lines = format!("  max_steps: 3\n  shuffle: false\n  frozen_weights: {weights}\n");
            Run::new(method, is_online, &lines).with_adapter(ADAPTERS[0])
        };
        let (exact, coarse, broken) = (run("f32").train(), run("nf4").train(), run("nf4"));
        assert_ne!(metric(&exact, 0, "grad_norm"), metric(&coarse, 0, "grad_norm"), "{}", method.name);
        let moved = coarse.weights.iter().filter(|tensor| tensor.name.ends_with("lora_b"));
        assert!(
            moved.flat_map(|tensor| tensor.values.iter()).any(|value| *value != 0.0),
            "{}: nothing is learned",
            method.name
        );
        broken.interrupt(1);
        assert_same(method.name, &broken.finish(Existing::Resume), &coarse, 0.0);
    }
}

#[test]
fn an_adapter_starts_at_the_reference_whether_new_or_gone_on_with() {
    let method = Method {
        name: "grpo",
        model: "qwen3",
        written: "grpo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.1}",
        rows: "sft",
    };
    let first = Run::new(&method, true, SHORT).with_adapter(ADAPTERS[0]);
    let trained = first.train();
    let again = Run::new(&method, true, SHORT);
    let adapter = first.directory.path().join("run/model");
    let again = Run { written: format!("adapter: {}\n{}", adapter.display(), again.written), ..again }.train();
    for trained in [&trained, &again] {
        assert!(metric(trained, 0, "kl").abs() <= 1e-9, "kl {}", metric(trained, 0, "kl"));
        assert!(metric(trained, 1, "kl") > 0.0, "the second iteration has moved");
    }
}

#[test]
fn prompts_drawn_with_replacement_are_the_same_after_an_interruption() {
    let method =
        Method { name: "grpo", model: "qwen3", written: "grpo: {group_size: 2, max_new_tokens: 4}", rows: "sft" };
    let run = |drawn: &str| Run::new(&method, true, &format!("  max_steps: 4\n{drawn}"));
    let (in_turn, drawn, broken) =
        (run("").train(), run("  priority_scale: 1\n").train(), run("  priority_scale: 1\n"));
    assert_ne!(metric(&in_turn, 1, "reward"), metric(&drawn, 1, "reward"), "other prompts");
    broken.interrupt(2);
    assert_same("drawn", &broken.finish(Existing::Resume), &drawn, 0.0);
}

#[test]
fn dropout_of_an_adapter_changes_training_and_is_the_same_after_an_interruption() {
    let sft = Method { name: "sft", model: "qwen3", written: "sft: {}", rows: "sft" };
    let run = |dropout: &str| {
        Run::new(&sft, false, "  max_steps: 4\n").with_adapter(&format!("{{rank: 4, dropout: {dropout}}}"))
    };
    let (without, with, broken) = (run("0").train(), run("0.5").train(), run("0.5"));
    assert_ne!(metric(&without, 2, "loss"), metric(&with, 2, "loss"));
    broken.interrupt(2);
    assert_same("dropout", &broken.finish(Existing::Resume), &with, 0.0);
    let recomputed = Run::new(&sft, false, "  max_steps: 4\n  recompute: true\n");
    let recomputed = recomputed.with_adapter("{rank: 4, dropout: 0.5}").train();
    assert_same("dropout, recomputed", &recomputed, &with, 0.0);
}

#[test]
fn dropout_of_an_adapter_under_online_methods_is_the_same_after_an_interruption() {
    for written in [
        "grpo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.04}",
        "grpo: {group_size: 4, max_new_tokens: 6, update_epochs: 2, mini_batches: 2}",
        "rloo: {group_size: 4, max_new_tokens: 6}",
        "a2c: {max_new_tokens: 6}",
        "nlpo: {max_new_tokens: 6, update_epochs: 2}",
    ] {
        let method = Method { name: written, model: "qwen3", written, rows: "sft" };
        let run = |dropout: &str| {
            Run::new(&method, true, "  max_steps: 4\n").with_adapter(&format!("{{rank: 4, dropout: {dropout}}}"))
        };
        let (with, without) = (run("0.5").train(), run("0").train());
        let norms =
            |trained: &Trained| trained.metrics.iter().map(|row| row.values.get("grad_norm")).collect::<Vec<_>>();
        assert_ne!(norms(&with), norms(&without), "{written}: the dropout has an effect");
        let broken = run("0.5");
        broken.interrupt(2);
        assert_same(written, &broken.finish(Existing::Resume), &with, 0.0);
    }
}

#[test]
fn a_critic_with_a_frozen_trunk_learns_with_its_head_alone() {
    for lora in ["", "lora: {rank: 4}\n"] {
        let written = "ppo: {max_new_tokens: 6, update_epochs: 2, critic: {freeze_trunk: true, head: two_layer}}";
        let method = Method { name: written, model: "qwen3", written, rows: "sft" };
        let run = || {
            let run = Run::new(&method, true, "  max_steps: 4\n");
            Run { written: format!("{lora}{}", run.written), ..run }
        };
        let (run, broken) = (run(), run());
        let whole = run.train();
        broken.interrupt(2);
        assert_same(written, &broken.finish(Existing::Resume), &whole, 0.0);
        let critic = RewardModel::load(
            &ModelDir::open(&run.directory.path().join("run/critic")).expect("a critic"),
            &Device::flex(),
        );
        let start =
            CausalLm::load(&ModelDir::open(&fixtures().join("models/qwen3")).expect("a model"), &Device::flex());
        let (critic, start) = (critic.expect("loads"), start.expect("loads"));
        let (critic, start) = (named_tensors(&critic), named_tensors(&start));
        let values = |all: &[NamedTensor<'_>], name: &str| {
            all.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.values.to_vec())
        };
        let mut compared = 0;
        for tensor in start.iter().filter(|tensor| tensor.name.starts_with("trunk.")) {
            if let Some(found) = values(&critic, &tensor.name) {
                assert!(found == tensor.values.to_vec(), "{} has moved", tensor.name);
                compared += 1;
            }
        }
        assert!(compared > 10, "{compared} tensors of the trunk");
        let last = critic.iter().find(|tensor| tensor.name.starts_with("score") && tensor.shape.first() == Some(&1));
        assert!(last.expect("a head").values.iter().any(|x| *x != 0.0), "the head has learned");
    }
}

#[test]
fn dropout_of_the_model_is_the_same_after_an_interruption_and_recomputed() {
    let sft = Method { name: "sft", model: "qwen3", written: "sft: {}", rows: "sft" };
    let reward = Method { name: "reward", model: "qwen3", written: "reward: {}", rows: "reward_margin" };
    for (method, model, key) in
        [(&sft, "gpt2", "resid_pdrop"), (&sft, "gpt2", "attn_pdrop"), (&reward, "qwen3", "attention_dropout")]
    {
        let name = format!("{} of {model} with {key}", method.name);
        let models = tempfile::tempdir().expect("a temporary directory");
        let dropping = |probability: f64| {
            let to = models.path().join(format!("{probability}"));
            std::fs::create_dir_all(&to).expect("a directory");
            for entry in std::fs::read_dir(fixtures().join("models").join(model)).expect("a model") {
                let from = entry.expect("a file").path();
                std::fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("copied");
            }
            let text = std::fs::read_to_string(to.join("config.json")).expect("a configuration");
            let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            config[key] = probability.into();
            std::fs::write(to.join("config.json"), config.to_string()).expect("written");
            to
        };
        let run = |probability: f64, train: &str| {
            let run = Run::new(method, false, &format!("  max_steps: 4\n{train}"));
            let from = fixtures().join("models/qwen3").display().to_string();
            let to = dropping(probability).display().to_string();
            Run { written: run.written.replace(&format!("model: {from}\n"), &format!("model: {to}\n")), ..run }
        };
        let (off, on, never) = (run(0.3, ""), run(0.3, "  dropout: true\n"), run(0.0, "  dropout: true\n"));
        let (off, with) = (off.train(), on.train());
        assert_same(&format!("{name}: nothing to drop"), &never.train(), &off, 0.0);
        assert_ne!(metric(&off, 2, "loss"), metric(&with, 2, "loss"), "{name}");
        let broken = run(0.3, "  dropout: true\n");
        broken.interrupt(2);
        assert_same(&format!("{name}: interrupted"), &broken.finish(Existing::Resume), &with, 0.0);
        let recomputed = run(0.3, "  dropout: true\n  recompute: true\n").train();
        assert_same(&format!("{name}: recomputed"), &recomputed, &with, 0.0);
    }
}

//! The same run on 1, 2, 3 and 4 ranks ends with the same bits, for each method. In this file ranks are threads; the
//! command-line tests cover processes started by MPI.

use std::panic::resume_unwind;
use std::thread;

use gradus::Error;
use gradus::ranks::{PATIENCE, Ranks, threads};
use gradus::run::Existing;
use gradus::run::claim::read_state;
use gradus::train::observer::{Event, Observer, Silent};
use gradus::train::{FinishedRun, run_on};
use serde_json::{Value, json};

use crate::learning::{Stopper, TestDir, logged, marked, pairs, questions, questions_with_answers};

/// Training settings of all runs in this file: five steps, the last of which has fewer rows than lanes.
const TRAIN: &str = "max_steps: 5, batch_size: 6, micro_batch_tokens: 60, learning_rate: 1e-3, eval_steps: 2, eval_fraction: 0.1, \
                     save_steps: 2, lanes: 4";

/// Returns a configuration; `method` may close its braces early to add more keys.
fn text(method: &str) -> String {
    format!("method: {{{method}}}\ntrain: {{{TRAIN}}}\n")
}

/// Runs a plan on `size` ranks, each a thread with its own observer.
fn on<O: Observer>(
    size: usize,
    dir: &TestDir,
    (name, start, rest): (&str, &str, &str),
    existing: Existing,
    observer: impl Fn(usize) -> O + Sync,
) -> Vec<gradus::Result<FinishedRun>> {
    thread::scope(|scope| {
        let rank = |(rank, link): (usize, _)| {
            let (plan, observer) = (dir.plan(name, start, rest).on_existing(existing), &observer);
            scope.spawn(move || run_on(&plan, Ranks::new(link, PATIENCE), &mut observer(rank)))
        };
        let ranks: Vec<_> = threads(size).into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// Compares runs on 2, 3 and 4 ranks to a run on one.
fn same_bits(start: &str, method: &str, rows: impl IntoIterator<Item = Value>) {
    same_bits_with(start, method, "", rows);
}

/// As [`same_bits`], with more keys of `train`.
fn same_bits_with(start: &str, method: &str, train: &str, rows: impl IntoIterator<Item = Value>) {
    let (dir, rest) = (TestDir::new(rows), text(method).replace("lanes: 4", &format!("lanes: 4{train}")));
    let alone = gradus::train::run(&dir.plan("alone", start, &rest), &mut Silent).expect("it trains");
    for size in [2, 3, 4] {
        let name = format!("ranks-{size}");
        let outcomes = on(size, &dir, (&name, start, &rest), Existing::Refuse, |_| Silent);
        let outcomes: Vec<FinishedRun> = outcomes.into_iter().map(|outcome| outcome.expect("it trains")).collect();
        let first = &outcomes[0];
        assert!(outcomes[1..].iter().all(|outcome| outcome.results.is_null()), "the first rank alone has results");
        assert!(weights(&alone) == weights(first), "{method} on {size} ranks: weights");
        assert_eq!(logged(&alone.directory), logged(&first.directory), "{method} on {size} ranks");
        assert_eq!(alone.results["after"], first.results["after"], "{method} on {size} ranks");
        assert_eq!(alone.results["best"], first.results["best"], "{method} on {size} ranks");
        assert!(rollouts(&alone) == rollouts(first), "{method} on {size} ranks: rollouts.sqlite");
    }
}

/// Returns the file of the trained weights, or of the adapter.
fn weights(outcome: &FinishedRun) -> Vec<u8> {
    let files = ["model.safetensors", "adapter_model.safetensors"].map(|name| outcome.model.join(name));
    std::fs::read(files.iter().find(|file| file.is_file()).expect("weights")).expect("readable")
}

/// Returns the database of rollouts, if there is one.
fn rollouts(outcome: &FinishedRun) -> Option<Vec<u8>> {
    std::fs::read(outcome.directory.join("rollouts.sqlite")).ok()
}

const ONLINE: &str = "}\nreward: {rule: {length: {target: 3}}";

#[test]
fn sft_on_ranks() {
    let rows = || (0..40).map(|i| json!({ "text": format!("{i} is {}", ["red", "a long way off"][i % 2]) }));
    same_bits("qwen3", "sft: {}", rows());
    same_bits("gpt2", "sft: {}}\nlora: {rank: 2", rows());
    same_bits("t5", "sft: {}", questions_with_answers());
}

/// Whether a file of moments contains some in eight bits.
fn holds_codes(file: &[u8]) -> bool {
    file.windows(b"exp_avg_absmax.".len()).any(|part| part == b"exp_avg_absmax.")
}

/// Sharding needs no other name in the run: the files equal those of a single-rank run.
#[test]
fn moments_are_sharded_to_the_same_bits() {
    // The optimizer of trpo's policy takes no step, so it has no moments.
    let trpo = format!("trpo: {{max_new_tokens: 6, critic_updates: 2, cg_max_steps: 4}}{ONLINE}");
    // Only the moments of the embedding are in eight bits; the other parameters are small.
    for (method, moments) in
        [("sft: {}", "f32"), ("sft: {}}\nlora: {rank: 2", "f32"), ("sft: {}", "int8"), (trpo.as_str(), "f32")]
    {
        let row = |i: usize| json!({ "text": format!("{i} is {}", ["red", "a long way off"][i % 2]) });
        let rows: Vec<Value> = if method == trpo { questions().collect() } else { (0..40).map(row).collect() };
        let dir = TestDir::new(rows);
        let rest = text(method).replace("lanes: 4", &format!("lanes: 4, moments: {moments}"));
        let shards = rest.replace("lanes: 4", "lanes: 4, shard_moments: true");
        let alone = gradus::train::run(&dir.plan("alone", "qwen3", &rest), &mut Silent).expect("it trains");
        let checkpoint = |outcome: &FinishedRun| {
            let path = outcome.directory.join("checkpoints/step-000004/optimizer.safetensors");
            std::fs::read(path).expect("a checkpoint")
        };
        for size in [2, 3, 4] {
            let name = format!("shards-{size}");
            assert_eq!(holds_codes(&checkpoint(&alone)), moments == "int8", "{moments}");
            let parts = (name.as_str(), "qwen3", shards.as_str());
            let stopped = on(size, &dir, parts, Existing::Refuse, |_| Stopper(2));
            assert!(stopped.iter().all(|stopped| matches!(stopped, Err(Error::Interrupted))), "{stopped:?}");
            let outcome = on(size, &dir, parts, Existing::Resume, |_| Silent).remove(0).expect("it trains");
            assert!(weights(&alone) == weights(&outcome), "{method} on {size} ranks: weights");
            assert!(checkpoint(&alone) == checkpoint(&outcome), "{method} on {size} ranks: moments");
        }
    }
}

#[test]
fn methods_over_pairs_on_ranks() {
    same_bits("qwen3", "dpo: {}", pairs());
    let following = ", neftune_noise_alpha: 5, sync_ref_model: true, ref_model_sync_steps: 2";
    same_bits_with("qwen3", "dpo: {reference: live}", following, pairs());
    same_bits("qwen3", "orpo: {}", pairs());
    same_bits("qwen3-reward", "reward: {}", pairs());
}

#[test]
fn kto_and_distillation_on_ranks() {
    same_bits("qwen3", "kto: {}", marked());
    let teacher =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    let method = format!("distill: {{teacher_model: {}, max_new_tokens: 5, lmbda: 0.5}}", teacher.display());
    same_bits("qwen3", &method, questions_with_answers());
}

/// Statistics of rewards and the bound of high entropies are those of all ranks.
#[test]
fn gdpo_on_tokens_of_high_entropy_on_ranks() {
    let grpo = "grpo: {group_size: 3, max_new_tokens: 6, mini_batches: 2, top_entropy_quantile: 0.3, \
                use_adaptive_entropy: true, entropy_target: 9, entropy_coefficient_delta: 0.02, \
                multi_objective_aggregation: normalize_then_sum}";
    let mix = "}\nreward: {mix: [{weight: 1, reward: {rule: {length: {target: 3}}}}, {weight: 0.5, reward: {rule: {regex: e}}}]";
    same_bits("qwen3", &format!("{grpo}{mix}"), questions());
}

#[test]
fn grpo_and_rloo_on_ranks() {
    let grpo = "grpo: {group_size: 3, max_new_tokens: 6, kl_coefficient: 0.05, mini_batches: 2, resample_rounds: 1}";
    same_bits("qwen3", &format!("{grpo}{ONLINE}"), questions());
    same_bits(
        "gpt2",
        &format!("grpo: {{group_size: 2, max_new_tokens: 5, loss_type: bnpo}}{ONLINE}}}\nlora: {{rank: 2"),
        questions(),
    );
    same_bits(
        "qwen3",
        &format!("rloo: {{group_size: 2, max_new_tokens: 6, kl_coefficient: 0.1}}{ONLINE}"),
        questions(),
    );
}

#[test]
fn ppo_and_a2c_on_ranks() {
    for trunk in ["shared", "separate"] {
        let method = format!(
            "ppo: {{max_new_tokens: 6, mini_batches: 2, kl: {{target: 1.0, horizon: 20}}, critic: {{trunk: {trunk}}}}}{ONLINE}"
        );
        same_bits("qwen3", &method, questions());
    }
    same_bits("gpt2", &format!("a2c: {{max_new_tokens: 6}}{ONLINE}"), questions());
    same_bits("t5", &format!("ppo: {{max_new_tokens: 6}}{ONLINE}"), questions());
}

#[test]
fn nlpo_and_trpo_on_ranks() {
    same_bits(
        "qwen3",
        &format!("nlpo: {{max_new_tokens: 6, top_p: 0.7, mask_update_iterations: 2}}{ONLINE}"),
        questions(),
    );
    same_bits(
        "qwen3",
        &format!("trpo: {{max_new_tokens: 6, critic_updates: 2, cg_max_steps: 4}}{ONLINE}"),
        questions(),
    );
}

/// Rewards that depend on the whole batch: a running mean that crosses the shares of the ranks, also inside a mix, and
/// frequencies of the batch.
#[test]
fn rewards_of_the_whole_batch_on_ranks() {
    let grpo = "grpo: {group_size: 2, max_new_tokens: 6}}";
    let running = "{weight: 1, running_mean_over: 5, reward: {rule: {length: {target: 3}}}}";
    let mix = format!("reward: {{mix: [{{weight: 1, reward: {{mix: [{running}]}}}}]}}");
    same_bits("qwen3", &format!("{grpo}\n{}", &mix[..mix.len() - 1]), questions_with_answers());
    let cider = "reward: {metric: {cider: {tokenizer: whitespace}}";
    same_bits("qwen3", &format!("{grpo}\n{cider}"), questions_with_answers());
}

/// A program that answers differently each time would make the ranks disagree, and each question may cost money.
#[cfg(unix)]
#[test]
fn metrics_of_evaluations_are_measured_by_one_rank() {
    let dir = TestDir::new(questions());
    let asked = |size: usize| {
        let (name, log) = (format!("run-{size}"), dir.run(&format!("asked-{size}")));
        let program = format!("while read -r line; do echo . >> {}; echo $$; done", log.display());
        let metrics = format!("evaluation: {{metrics: [{{command: {{program: [sh, -c, '{program}'], name: mine}}}}]}}");
        let rest = text(&format!("grpo: {{group_size: 2, max_new_tokens: 6}}{ONLINE}"));
        let rest = rest.replace("lanes: 4", &format!("lanes: 4, best_metric: eval_mine, {metrics}"));
        let outcomes = on(size, &dir, (&name, "qwen3", &rest), Existing::Refuse, |_| Silent);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        std::fs::read_to_string(log).expect("the program was asked").lines().count()
    };
    assert_eq!(asked(3), asked(1));
}

#[test]
fn episodes_on_ranks() {
    let guess = "grpo: {group_size: 2, max_new_tokens: 24}}\nenvironment: {guess: {high: 9}}\nepisode: {max_turns: 3";
    same_bits("qwen3", guess, questions());
}

#[test]
fn a_run_goes_on_on_another_number_of_ranks_to_the_same_bits() {
    for method in [
        "dpo: {}".to_owned(),
        format!("grpo: {{group_size: 2, max_new_tokens: 6}}{ONLINE}"),
        format!("ppo: {{max_new_tokens: 6, update_epochs: 2}}{ONLINE}"),
    ] {
        let rows: Vec<Value> = if method.starts_with("dpo") { pairs().collect() } else { questions().collect() };
        let (dir, rest) = (TestDir::new(rows), text(&method));
        let alone = gradus::train::run(&dir.plan("alone", "qwen3", &rest), &mut Silent).expect("it trains");
        let parts = ("parts", "qwen3", rest.as_str());
        // A stop request to a rank other than the first stops all of them.
        let stop_at = |stopping_rank: usize, after| {
            move |rank: usize| Stopper(if rank == stopping_rank { after } else { usize::MAX })
        };
        let stopped = on(4, &dir, parts, Existing::Refuse, stop_at(2, 2));
        assert!(stopped.iter().all(|stopped| matches!(stopped, Err(Error::Interrupted))), "{stopped:?}");
        let stopped = on(1, &dir, parts, Existing::Resume, stop_at(0, 1));
        assert!(matches!(stopped[0], Err(Error::Interrupted)), "{stopped:?}");
        let outcome = on(2, &dir, parts, Existing::Resume, |_| Silent).remove(0).expect("it trains");
        assert!(weights(&alone) == weights(&outcome), "{method}: weights");
        assert_eq!(logged(&alone.directory), logged(&outcome.directory), "{method}");
    }
}

/// Each rank starts the program for itself, and trains on what it prints.
#[cfg(unix)]
#[test]
fn a_task_program_that_prints_other_rows_on_each_rank_is_refused() {
    let dir = TestDir::new(questions());
    let program = r#"read -r request; for i in 1 2 3; do echo "{\"prompt\": \"$$: what is $i?\"}"; done"#;
    let mix = format!("mix: [{{data: {{task: {{command: [sh, -c, '{program}']}}}}}}]\n");
    let rest = mix + &text(&format!("grpo: {{group_size: 2, max_new_tokens: 6}}{ONLINE}"));
    for error in on(2, &dir, ("run", "qwen3", &rest), Existing::Refuse, |_| Silent) {
        let error = error.expect_err("the rows differ").to_string();
        assert!(error.starts_with("rank 1 has other rows than rank 0: its "), "{error}");
    }
}

#[test]
fn what_ranks_cannot_share_is_refused() {
    let (dir, rest) = (TestDir::new(pairs()), text("dpo: {}"));
    let errors = on(5, &dir, ("five", "qwen3", &rest), Existing::Refuse, |_| Silent);
    for error in errors {
        let error = error.expect_err("there are four lanes").to_string();
        assert_eq!(error, "5 ranks cannot share a run with `train.lanes: 4`");
    }
    assert!(!dir.run("five").exists(), "nothing was begun");
    // One rank finds the directory in use and reports this to all.
    std::fs::create_dir(dir.run("taken")).expect("made");
    std::fs::write(dir.run("taken").join("notes.txt"), "mine").expect("written");
    let errors = on(2, &dir, ("taken", "qwen3", &rest), Existing::Refuse, |_| Silent);
    let errors: Vec<String> = errors.into_iter().map(|error| error.expect_err("it is taken").to_string()).collect();
    assert!(errors[0].contains("exists and is not empty"), "{errors:?}");
    assert_eq!(errors[1], format!("rank 0: {}", errors[0]));
}

/// Fails in the first step, if it has ranks to notify.
struct Failing(Option<Ranks>);

impl Observer for Failing {
    fn event(&mut self, event: &Event<'_>) {
        if let (Some(ranks), Event::Step { .. }) = (self.0, event) {
            ranks.fail("the disk is full");
            resume_unwind(Box::new("the thread of this rank ends"));
        }
    }
}

#[test]
fn a_run_whose_rank_is_lost_records_the_reason() {
    let (dir, rest) = (TestDir::new(pairs()), text("dpo: {}"));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let rank = |(rank, link): (usize, _)| {
            let plan = dir.plan("run", "qwen3", &rest).on_existing(Existing::Refuse);
            scope.spawn(move || {
                let ranks = Ranks::new(link, PATIENCE);
                run_on(&plan, ranks, &mut Failing((rank == 1).then_some(ranks)))
            })
        };
        let ranks: Vec<_> = threads(2).into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let [Ok(Err(error)), Err(_)] = &outcomes[..] else { panic!("rank 0 fails because rank 1 has ended: {outcomes:?}") };
    assert_eq!(error.to_string(), "rank 1: the disk is full");
    let state = read_state(&dir.run("run")).expect("readable").expect("a state");
    assert_eq!(state.error.as_deref(), Some("rank 1: the disk is full"));
}

/// Asks to stop if it is told to, and keeps messages.
struct Stopping {
    stops: bool,
    messages: Vec<String>,
}

impl Observer for Stopping {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Message(text) = event {
            self.messages.push((*text).to_owned());
        }
    }

    fn should_stop(&mut self) -> bool {
        self.stops
    }
}

#[test]
fn a_stop_of_one_rank_is_reported_by_the_others() {
    let (dir, rest) = (TestDir::new(pairs()), text("dpo: {}"));
    let announced = thread::scope(|scope| {
        let rank = |(rank, link): (usize, _)| {
            let plan = dir.plan("run", "qwen3", &rest).on_existing(Existing::Refuse);
            scope.spawn(move || {
                let mut observer = Stopping { stops: rank == 1, messages: Vec::new() };
                let outcome = run_on(&plan, Ranks::new(link, PATIENCE), &mut observer);
                assert!(matches!(outcome, Err(Error::Interrupted)), "rank {rank}: {outcome:?}");
                observer.messages.iter().filter(|text| text.starts_with("stopping: another rank")).count()
            })
        };
        let ranks: Vec<_> = threads(2).into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Vec<_>>()
    });
    assert_eq!(announced, [1, 0]);
}

//! Interrupted runs of every method end with the same bits.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::path::Path;

use gradus::Error;
use gradus::run::Existing;
use gradus::train::observer::{Event, Observer, Silent};

use crate::learning::{
    COLORS, Stopper, TestDir, bits, logged, marked, model, pairs, questions, questions_with_answers,
};

/// Stops a run at a given progress report, wherever that is.
struct StopperWithin(usize);

impl Observer for StopperWithin {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Within { .. } = event {
            self.0 = self.0.saturating_sub(1);
        }
    }

    fn should_stop(&mut self) -> bool {
        self.0 == 0
    }
}

#[test]
fn a_run_that_is_interrupted_within_steps_and_evaluations_ends_with_the_same_bits() {
    let row = |i: usize| serde_json::json!({ "prompt": format!("The tea number {i} is"), "chosen": " good.", "rejected": " bad." });
    for method in [
        "grpo: {max_new_tokens: 6, group_size: 2, kl_coefficient: 0.1, mini_batches: 2}",
        "ppo: {max_new_tokens: 6, update_epochs: 2}",
        "dpo: {reference: live}",
    ] {
        let dir = TestDir::new((0..20).map(row));
        let reward = if method.starts_with("dpo") { "" } else { "reward: {rule: {regex: e}}\n" };
        let rest = format!(
            "method: {{{method}}}\n{reward}train: {{max_steps: 4, batch_size: 4, micro_batch_size: 2, learning_rate: 1e-3, \
             eval_steps: 1, eval_fraction: 0.2, logging_steps: 2}}\n"
        );
        let whole = gradus::train::run(&dir.plan("whole", "qwen3", &rest), &mut Silent).unwrap();
        let plan = dir.plan("parts", "qwen3", &rest).on_existing(Existing::Resume);
        let (mut parts, mut interruptions, mut due) = (None, 0, 0);
        // Each part gets a little further than the previous one and ends elsewhere.
        while parts.is_none() {
            match gradus::train::run(&plan, &mut StopperWithin(2 + interruptions)) {
                Ok(outcome) => parts = Some(outcome),
                Err(Error::Interrupted) => interruptions += 1,
                Err(error) => panic!("{error}"),
            }
            let last =
                gradus::run::Checkpoint::of(&gradus::run::RunDir::open(dir.run("parts")).unwrap(), None).unwrap();
            due += usize::from(last.is_some_and(|checkpoint| checkpoint.run_state.evaluation_due));
        }
        let parts = parts.unwrap();
        assert!(interruptions >= 3 && due >= 1, "{method}: {interruptions} interruptions, {due} within an evaluation");
        assert_eq!(logged(&whole.directory), logged(&parts.directory), "{method}");
        assert_eq!(bits(&whole.model), bits(&parts.model), "{method}");
        assert_eq!(whole.results["before"], parts.results["before"]);
        let rollouts = |run: &Path| std::fs::read(run.join("rollouts.sqlite")).ok();
        assert!(rollouts(&whole.directory) == rollouts(&parts.directory), "{method}: rollouts.sqlite");
    }
}

fn resumes(method: &str, rows: impl IntoIterator<Item = serde_json::Value>) {
    resumes_with(method, "", rows);
}

fn resumes_with(method: &str, train: &str, rows: impl IntoIterator<Item = serde_json::Value>) {
    let dir = TestDir::new(rows);
    let rest = format!(
        "method: {{{method}}}\ntrain: {{{train}{}max_steps: 5, batch_size: 4, learning_rate: 1e-3, eval_steps: 2, eval_fraction: 0.1, save_steps: 2}}\n",
        if train.is_empty() { "" } else { ", " }
    );
    let whole = gradus::train::run(&dir.plan("whole", "qwen3", &rest), &mut Silent).unwrap();
    let plan = dir.plan("parts", "qwen3", &rest);
    let stopped = gradus::train::run(&plan, &mut Stopper(3));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    let parts = gradus::train::run(&plan.on_existing(Existing::Resume), &mut Silent).unwrap();
    assert_eq!(logged(&whole.directory), logged(&parts.directory));
    assert_eq!(bits(&whole.model), bits(&parts.model), "{method}");
    assert_eq!(whole.results["after"], parts.results["after"]);
    assert_eq!(whole.results["before"], parts.results["before"]);
    let rollouts = |run: &Path| std::fs::read(run.join("rollouts.sqlite")).ok();
    assert!(rollouts(&whole.directory) == rollouts(&parts.directory), "{method}: rollouts.sqlite");
}

#[test]
fn sft_resumes_with_the_same_bits() {
    resumes("sft: {}", (0..30).map(|i| serde_json::json!({ "text": format!("{i} is {}", COLORS[i % 6]) })));
}

#[test]
fn moments_in_int8_resume_with_the_same_bits() {
    let rows = || (0..40).map(|i| serde_json::json!({ "text": format!("{i} is {}", ["red", "green"][i % 2]) }));
    resumes_with("sft: {}", "moments: int8", rows());
    resumes_with("sft: {}}\nlora: {rank: 128", "moments: int8", rows());
}

#[test]
fn dpo_resumes_with_the_same_bits() {
    resumes("dpo: {}", pairs());
}

/// The reference changes after the second and the fourth step; the run stops after the third.
#[test]
fn a_reference_that_follows_resumes_with_the_same_bits() {
    let sync = "sync_ref_model: true, ref_model_mixup_alpha: 0.3, ref_model_sync_steps: 2";
    resumes_with("dpo: {reference: live}", sync, pairs());
    resumes_with("kto: {}", sync, marked());
    let grpo = "grpo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.05, mini_batches: 2}}\nreward: {rule: {length: {target: 3}}";
    resumes_with(grpo, sync, questions());
    let named = format!("dpo: {{reference: live, reference_model: {}}}", model("qwen3").path.display());
    resumes_with(&named, sync, pairs());
}

/// Only the log-probabilities of a frozen reference stay the same.
#[test]
fn a_reference_that_follows_changes_what_is_learned_from_the_step_after() {
    let dir = TestDir::new(pairs());
    let rest = |train: &str| {
        format!(
            "method: {{dpo: {{reference: live}}}}\ntrain: {{max_steps: 4, batch_size: 4, learning_rate: 1e-3, eval_steps: -1{train}}}\n"
        )
    };
    let losses = |name: &str, train: &str| -> Vec<f64> {
        let run = gradus::train::run(&dir.plan(name, "qwen3", &rest(train)), &mut Silent).unwrap();
        let rows = gradus::run::read_metrics(&run.directory.join("metrics.jsonl")).unwrap();
        rows.iter().filter_map(|row| row.values.get("loss")).collect()
    };
    let frozen = losses("frozen", "");
    let following = losses("following", ", sync_ref_model: true, ref_model_sync_steps: 2");
    let apart: Vec<f64> = following.iter().zip(&frozen).map(|(a, b)| (a - b).abs()).collect();
    assert!(apart.len() == 4 && apart[0] <= 1e-6 && apart[1] <= 1e-6, "{following:?} against {frozen:?}");
    assert!(apart[2] > 1e-5, "{following:?} against {frozen:?}");
    let whole = losses("whole", ", sync_ref_model: true, ref_model_sync_steps: 1, ref_model_mixup_alpha: 1");
    for loss in whole {
        assert!((loss - std::f64::consts::LN_2).abs() <= 1e-6, "the reference is the policy before each step: {loss}");
    }
}

#[test]
fn a_reference_with_other_parameters_cannot_follow_the_policy() {
    let dir = TestDir::new(pairs());
    let rest = format!(
        "method: {{dpo: {{reference: live, reference_model: {}}}}}\ntrain: {{max_steps: 1, sync_ref_model: true}}\n",
        model("gpt2").path.display()
    );
    let error = gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap_err().to_string();
    assert!(
        error.contains(
            "mixes this reference with the policy, but it is of the family `gpt2`, and the policy is of `qwen3`"
        ),
        "{error}"
    );
}

#[test]
fn simpo_and_cpo_resume_with_the_same_bits() {
    resumes("simpo: {}", pairs());
    resumes("cpo: {}", pairs());
}

#[test]
fn kto_resumes_with_the_same_bits() {
    resumes("kto: {}", marked());
    resumes("kto: {loss_type: apo_zero_unpaired}", pairs());
}

#[test]
fn distill_resumes_with_the_same_bits() {
    let teacher = model("gpt2").path;
    let method = format!("distill: {{teacher_model: {}, max_new_tokens: 5, seq_kd: true}}", teacher.display());
    resumes(&method, questions_with_answers());
}

#[test]
fn grpo_resumes_with_the_same_bits() {
    let method = "grpo: {group_size: 4, max_new_tokens: 6, kl_coefficient: 0.05, mini_batches: 2}}\nreward: {rule: {length: {target: 3}}";
    resumes(method, questions());
}

#[test]
fn relatives_of_grpo_resume_with_the_same_bits() {
    resumes(
        "grpo: {group_size: 4, max_new_tokens: 6, loss_type: grpo, importance_sampling_level: sequence, resample_rounds: 3}}\nreward: {rule: {regex: e}",
        questions(),
    );
    resumes(
        "rloo: {group_size: 4, max_new_tokens: 6, normalize_advantages: true, mini_batches: 2}}\nreward: {rule: {length: {target: 3}}",
        questions(),
    );
}

#[test]
fn ppo_resumes_with_the_same_bits() {
    for trunk in ["shared", "separate"] {
        let method = format!(
            "ppo: {{max_new_tokens: 6, mini_batches: 2, kl: {{target: 1.0, horizon: 20}}, critic: {{trunk: {trunk}}}}}}}\n\
             reward: {{rule: {{length: {{target: 3}}}}"
        );
        resumes(&method, questions());
    }
}

const ONLINE: &str = "}\nreward: {rule: {length: {target: 3}}";

#[test]
fn a2c_resumes_with_the_same_bits() {
    for optimizer in ["adamw", "rmsprop"] {
        resumes_with(
            &format!("a2c: {{max_new_tokens: 6, kl: {{target: 0.1, rate: 0.1, unit: token}}}}{ONLINE}"),
            &format!("optimizer: {optimizer}"),
            questions(),
        );
    }
}

#[test]
fn nlpo_resumes_with_the_same_bits() {
    // The lagged policy changes after the second and the fourth iteration; the run stops after the third.
    for (mask, extra) in [
        ("top_p: 0.7, mask_update_iterations: 2", ""),
        ("top_p: 0.7, mask_update: frozen, mask_scope: processed, mask_at_eval: true", ""),
        ("mask_model: policy, top_k: 40, renormalise: false", ""),
        ("top_p: 0.7, mask_update_iterations: 2", "}\nlora: {rank: 2"),
    ] {
        let method = format!("nlpo: {{max_new_tokens: 6, mini_batches: 2, {mask}}}{ONLINE}{extra}");
        resumes(&method, questions());
    }
}

#[test]
fn trpo_resumes_with_the_same_bits() {
    for extra in ["", "}\nlora: {rank: 2"] {
        resumes(
            &format!("trpo: {{max_new_tokens: 6, critic_updates: 2, cg_max_steps: 4}}{ONLINE}{extra}"),
            questions(),
        );
    }
}

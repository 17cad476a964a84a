//! Files of RL4LMs.

use gradus::config::{System, import};
use gradus::error::{Error, Location};

use super::{check, imported};

#[test]
fn a_sweep_of_rl4lms_is_converted_with_its_first_values() {
    let text = "tokenizer: {model_name: gpt2}
reward_fn: {id: rouge, args: {rouge_type: rouge1}}
datapool: {id: cnn_daily_mail}
alg:
  id: ppo
  args:
    n_steps: 512
    batch_size: 64
    learning_rate:
      expand: True
      values: [0.000002, 0.000001]
    n_epochs: 5
  kl_div: {coeff: 0.001}
  policy:
    id: causal_lm_actor_critic_policy
    args: {model_name: gpt2, generation_kwargs: {do_sample: true, max_new_tokens: 20}}
env: {n_envs: 4, args: {max_prompt_length: 100, max_episode_length: 20}}
train_evaluation:
  eval_batch_size: 10
  n_iters: 10
  eval_every: 5
  generation_kwargs: {do_sample: true, num_beams: 4, temperature: 0.7, max_new_tokens: 20}
  metrics: [{id: rouge}]
";
    let found = imported("rl4lms", text);
    let evaluation = "/train/evaluation";
    check(
        &found,
        &[
            ("/train/learning_rate", "2e-6"),
            (&format!("{evaluation}/beams/num_beams"), "4"),
            (&format!("{evaluation}/temperature"), "0.7"),
            (&format!("{evaluation}/top_k"), "50"),
        ],
    );
    let note = "`alg.args.learning_rate` is swept over [2e-6,1e-6]: the first value is used";
    assert!(found.1.iter().any(|message| message == note), "{:?}", found.1);
}

#[test]
fn unknown_arguments_of_rewards_and_metrics_of_rl4lms_are_reported() {
    let text = "tokenizer: {model_name: gpt2}
reward_fn: {id: rouge, args: {rouge_type: rouge1, bogus_r: 3}}
datapool: {id: cnn_daily_mail}
alg:
  id: ppo
  args: {n_steps: 512, batch_size: 64, n_epochs: 5}
  kl_div: {coeff: 0.001}
  policy:
    id: causal_lm_actor_critic_policy
    args: {model_name: gpt2, generation_kwargs: {do_sample: true, max_new_tokens: 20}}
env: {n_envs: 4, args: {max_prompt_length: 100, max_episode_length: 20}}
train_evaluation:
  n_iters: 10
  eval_every: 5
  metrics:
    - {id: rouge, args: {use_single_ref: false, bogus_m: 1}}
    - {id: causal_perplexity, args: {tokenizer_id: gpt2, stride: 512, model_type: causal}}
";
    let found = imported("rl4lms", text);
    let left_out: Vec<&String> = found.1.iter().filter(|note| note.contains("has no equivalent")).collect();
    assert_eq!(
        left_out,
        [
            "`reward_fn.args.bogus_r` has no equivalent: left out",
            "`train_evaluation.metrics[0].args.bogus_m` has no equivalent: left out",
        ],
    );
    check(&found, &[("/reward/metric/rouge/rouge_type", "\"rouge1\"")]);
}

/// A file of RL4LMs with NLPO.
const RL4LMS: &str = "tokenizer: {model_name: gpt2}
reward_fn:
  id: increasing_numbers
  args: {min_tokens: 20}
datapool: {id: dummy_pool, args: {prompt: one, n_samples: 5}}
alg:
  id: nlpo
  args: {n_steps: 20}
  kl_div: {coeff: 0.1}
  policy:
    id: maskable_causal_lm_actor_critic_policy
    args:
      model_name: gpt2
      mask_type: learned_top_k
      top_mask: 7
      generation_kwargs: {do_sample: True, max_new_tokens: 20}
env: {n_envs: 1, args: {max_prompt_length: 5, max_episode_length: 20, terminate_on_eos: True}}
train_evaluation:
  n_iters: 5
  eval_every: 1
  save_every: 1
  metrics: [{id: dates}]
  generation_kwargs: {do_sample: False, max_new_tokens: 6}
";

/// Returns [`RL4LMS`] with these changes.
pub(super) fn rl4lms(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(RL4LMS.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replace(old, new)
    })
}

/// `generate` of RL4LMs reads either the settings of evaluations or those of rollouts.
#[test]
fn evaluations_of_rl4lms_leave_out_rules_of_rollouts() {
    let of_rollouts = "do_sample: True, top_k: 50, top_p: 0.9, typical_p: 0.8, no_repeat_ngram_size: 1, repetition_penalty: 3.0, \
                       bad_words_ids: [[7]], forced_eos_token_id: 9, max_new_tokens: 20";
    let own = "do_sample: False, typical_p: 0.5, forced_eos_token_id: 9, max_new_tokens: 6";
    let rollouts = ("do_sample: True, max_new_tokens: 20", of_rollouts);
    let found = imported("rl4lms", &rl4lms(&[rollouts, ("do_sample: False, max_new_tokens: 6", own)]));
    check(
        &found,
        &[
            ("/method/nlpo/sampling/repetition_penalty", "3.0"),
            ("/train/evaluation/top_p", "1.0"),
            ("/train/evaluation/typical_p", "0.5"),
            ("/train/evaluation/repetition_penalty", "1.0"),
            ("/train/evaluation/no_repeat_ngram_size", "0"),
            // Neither sets it.
            ("/train/evaluation/encoder_no_repeat_ngram_size", "null"),
        ],
    );
    let notes = found.1.join("\n");
    assert!(notes.contains("`bad_words_ids` of rollouts also applies to evaluations"), "{notes}");
    assert!(!notes.contains("forced_eos_token_id"), "{notes}");

    // Without settings of their own, evaluations sample as rollouts do.
    let inherited =
        imported("rl4lms", &rl4lms(&[rollouts, ("  generation_kwargs: {do_sample: False, max_new_tokens: 6}\n", "")]));
    check(&inherited, &[("/train/evaluation/top_p", "null"), ("/train/evaluation/repetition_penalty", "null")]);
}

#[test]
fn the_entropy_bonus_of_nlpo_differs_and_is_noted() {
    let notes = |coefficient: &str| {
        let args = format!("args: {{n_steps: 20, ent_coef: {coefficient}}}");
        imported("rl4lms", &rl4lms(&[("args: {n_steps: 20}", args.as_str())])).1.join("\n")
    };
    assert!(
        notes("0.01").contains("RL4LMs sums the entropy of NLPO over the tokens under the mask"),
        "{}",
        notes("0.01")
    );
    assert!(!notes("0.0").contains("entropy"), "{}", notes("0.0"));
}

#[test]
fn a_mask_over_the_whole_vocabulary_of_rl4lms_masks_nothing() {
    for kind in ["learned_top_k", "learned_top_p", "topk"] {
        let found = imported("rl4lms", &rl4lms(&[("learned_top_k", kind), ("top_mask: 7", "top_mask: -1")]));
        check(&found, &[("/method/nlpo/top_p", "1.0"), ("/method/nlpo/top_k", "null")]);
        assert!(found.1.join("\n").contains("`top_mask` is -1, the whole vocabulary"), "{:?}", found.1);
    }
}

#[test]
fn values_that_rl4lms_cannot_use_are_refused_at_their_line() {
    let learned = "id: learned_reward\n  args: {model_name: some/classifier";
    let counts = "id: increasing_numbers\n  args: {min_tokens: 20";
    let mask = "alg.policy.args.top_mask";
    for (changes, line, expected) in [
        (vec![("top_mask: 7", "top_mask: 0.5")], 15, format!("`{mask}` is 0.5, but a whole number from 0 is needed")),
        (vec![("top_mask: 7", "top_mask: 0")], 15, format!("`{mask}` is 0, but a whole number from 1 is needed")),
        (
            vec![("learned_top_k", "learned_top_p"), ("top_mask: 7", "top_mask: 7.0")],
            15,
            format!("`{mask}` is 7, but must be above 0 and at most 1, or -1"),
        ),
        (
            vec![(counts, learned)],
            4,
            "`reward_fn.args.label_ix` is missing, but `learned_reward` needs it".into(),
        ),
        (
            vec![(counts, learned), ("some/classifier", "some/classifier, label_ix: -1")],
            4,
            "`reward_fn.args.label_ix` is -1, but a whole number from 0 is needed".into(),
        ),
        (
            vec![("{min_tokens: 20}", "{}")],
            4,
            "`reward_fn.args.min_tokens` is missing, but `increasing_numbers` needs it".into(),
        ),
        (
            vec![("increasing_numbers\n  args: {min_tokens: 20", "meteor\n  args: {shaping_fn: increasing_numbers")],
            4,
            "`reward_fn.args.shaping_fn` is `increasing_numbers`, which needs `min_tokens`, but RL4LMs gives a shaping \
             no arguments"
                .into(),
        ),
        (
            vec![("{id: dates}", "{id: learned_reward, args: {model_name: some/classifier}}")],
            22,
            "`train_evaluation.metrics[0].args.label_ix` is missing, but `learned_reward` needs it".into(),
        ),
        (
            vec![("{id: dates}", "{id: learned_reward, args: {model_name: m, label_ix: -1}}")],
            22,
            "`train_evaluation.metrics[0].args.label_ix` is -1, but a whole number from 0 is needed".into(),
        ),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("config.yml");
        std::fs::write(&file, rl4lms(&changes)).expect("written");
        let Err(Error::Config(problems)) = import(System::Rl4lms, &file) else { panic!("{expected}") };
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages, [expected.as_str()]);
        let [Location::File { line: found, .. }] = &problems[0].locations[..] else { panic!("{problems:?}") };
        assert_eq!(*found, line, "{expected}");
    }
}

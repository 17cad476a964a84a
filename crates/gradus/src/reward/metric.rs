//! Metrics as rewards of a completion and the references of its row.

use super::{Interrupt, Reward, RewardError, Score, Scores, report};
use crate::data::references;
use crate::metric::{Metric, MetricConfig, Models, Row, RowError, not_a_reward, remark_on};
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts};

/// A metric as a reward: its value for each completion alone. The references are the first existing column of
/// `references`, `reference`, `completion` and `answer`.
pub struct MetricReward {
    name: String,
    metric: Box<dyn Metric>,
}

impl MetricReward {
    /// Creates the reward of this metric. `models` opens the models that it uses; an `interrupt` ends the wait for a
    /// program.
    ///
    /// # Errors
    /// If a file or a model in the options cannot be read, or the metric has no value for single completions.
    pub fn new(config: &MetricConfig, models: &dyn Models, interrupt: &Interrupt) -> crate::Result<Self> {
        config.check_reward().map_err(|message| super::config_error(message, None))?;
        let (name, metric) = (config.name(), config.build(models, interrupt)?);
        if !metric.is_reward() {
            return Err(super::config_error(not_a_reward(&name), None));
        }
        Ok(Self { name, metric })
    }
}

impl Reward for MetricReward {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn remarks(&self, prompts: &[&Prompt]) -> Vec<String> {
        let mut rows = prompts.iter().map(|prompt| row_of(prompt));
        remark_on(&self.name, &*self.metric, &mut rows).into_iter().collect()
    }

    fn depends_on_batch(&self) -> bool {
        self.metric.depends_on_batch()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let mut done = |rows: usize| report(progress, rows, rollouts.len()).is_ok();
        let rewards = |()| self.metric.rewards_with_progress(&measured_rows(rollouts), &mut done);
        match check_references(rollouts).and_then(rewards) {
            Ok(values) => {
                let tokens = rollouts.rollouts.iter().map(|rollout| rollout.completion_ids.len());
                let score = |(value, tokens): (f64, usize)| match value.is_nan() {
                    false => Ok(Score::sequence(value as f32, tokens)),
                    true => Err(RewardError::new("the metric has no value of this completion")
                        .with_hint("a reward by `command` may answer `null`, which gives no reward")),
                };
                values.into_iter().zip(tokens).map(score).collect()
            }
            // The batch is measured as a whole: the row that cannot be measured fails, and the others are not scored.
            Err(error) => {
                let mut scores: Vec<_> = rollouts.rollouts.iter().map(|_| Ok(Score::unscored())).collect();
                let RowError { row, message, hint, is_interrupted } = error;
                scores[row] = Err(RewardError { message, hint, is_interrupted });
                scores
            }
        }
    }
}

/// Returns the metric's input for each rollout. References that are not texts are dropped; [`check_references`] rejects
/// them.
pub(crate) fn measured_rows(rollouts: &Rollouts) -> Vec<Row> {
    let of_rollout =
        |rollout: &Rollout| Row { prediction: rollout.completion.clone(), ..row_of(&rollouts.prompts[rollout.prompt]) };
    rollouts.rollouts.iter().map(of_rollout).collect()
}

/// Returns the input of metrics for a prompt, without a prediction.
pub(crate) fn row_of(prompt: &Prompt) -> Row {
    Row {
        prompt: prompt.text.clone(),
        prediction: String::new(),
        references: references(&prompt.columns).unwrap_or_default(),
        metadata: prompt.columns.clone(),
    }
}

/// Rejects references that are not texts.
///
/// # Errors
/// The first rollout with such a row.
pub(crate) fn check_references(rollouts: &Rollouts) -> Result<(), RowError> {
    for i in 0..rollouts.len() {
        references(&rollouts.prompt(i).columns).map_err(|message| RowError::new(i, message))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::config::RewardConfig;
    use super::super::test_rollouts::{completions, reports, rollouts, totals};
    use super::*;

    fn reward(yaml: &str) -> crate::Result<Box<dyn Reward>> {
        let config: RewardConfig = serde_saphyr::from_str(yaml).expect("a reward");
        let no_model = |_: super::super::config::Learned<'_>| Err(crate::Error::input("no model here"));
        super::super::build(&config, &no_model, &crate::metric::NoModels, &super::super::Interrupt::default())
    }

    #[track_caller]
    fn check(yaml: &str, rows: &[(&str, Value, &str)], expected: &[f32]) {
        let found = totals(&mut *reward(yaml).expect("a reward"), &rollouts(rows.iter().cloned()));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{yaml}: {found} instead of {expected}");
        }
    }

    /// Golden values from RL4LMs' rewards, and arithmetic.
    #[test]
    fn metrics_are_rewards_by_their_names() {
        let fox = "The quick brown fox jumps over the lazy dog";
        let log = "The quick brown dog jumps on the log.";
        let of = |references: Value| json!({ "references": references });
        check("metric: { rouge: { rouge_type: rouge1 } }", &[("", of(json!([fox])), log)], &[0.705882]);
        check("metric: { rouge: { rouge_type: rougeL } }", &[("", of(json!(fox)), log)], &[0.588235]);
        // RL4LMs' rouge_combined: (0.705882 + 0.266667 + 0.588235) / 3.
        check("metric: { rouge: {} }", &[("", json!({ "reference": fox }), log)], &[0.520261]);
        let (sat, sitting) = ("The cat sat on the mat.", "A cat was sitting on the mat.");
        check("metric: { meteor: {} }", &[("", of(json!([sat])), sitting)], &[0.681_690_1]);
        check("metric: { meteor: { references: repr } }", &[("", of(json!([sat])), sitting)], &[0.493_877_6]);
        // Two edits in a reference of four words. RL4LMs' reward is 1 minus TER, which may be negative.
        check(
            "metric: { ter: {} }",
            &[("", of(json!(["a b c d"])), "a b"), ("", of(json!(["a"])), "b c d")],
            &[0.5, -2.0],
        );
        let same = "one two three four five";
        for metric in ["bleu", "sacre_bleu", "chrf", "rouge_l_max", "exact_match", "token_f1"] {
            let yaml = format!("metric: {{ {metric}: {{}} }}");
            check(&yaml, &[("", of(json!([same])), same), ("", of(json!([same])), "")], &[1.0, 0.0]);
        }
        check("metric: { dates: {} }", &[("", json!({}), "99999-12-345"), ("", json!({}), "20-01-02")], &[1.0, 0.0]);
        check("metric: { increasing_numbers: { min_tokens: 20 } }", &[("", json!({}), "1 2 3 a")], &[0.3]);
    }

    #[test]
    fn slow_metrics_report_how_many_completions_have_their_value() {
        let made = rollouts((0..150).map(|_| ("", json!({ "reference": "a b" }), "a")));
        for metric in ["meteor", "ter", "rouge", "rouge_l_max", "chrf"] {
            let mut reward = reward(&format!("metric: {{ {metric}: {{}} }}")).expect("a reward");
            assert_eq!(reports(&mut *reward, &made), [(0, 150), (64, 150), (128, 150), (150, 150)], "{metric}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn every_answer_of_a_program_is_reported() {
        let yaml = "metric: { command: [sh, -c, 'while read -r l; do echo 1; done'] }";
        let reported = reports(&mut *reward(yaml).expect("a program"), &completions(["a", "b"]));
        assert_eq!(reported, [(0, 2), (1, 2), (2, 2)]);
    }

    /// A metric of value 1, on a machine that lacks a resource.
    struct Lacking;

    impl Metric for Lacking {
        fn measure(&self, rows: &[Row]) -> Result<Vec<crate::metric::Measure>, RowError> {
            Ok(vec![crate::metric::Measure::mean("", &vec![1.0; rows.len()])])
        }

        fn remark(&self, _rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
            Some("without its dictionary".into())
        }
    }

    #[test]
    fn the_remark_on_a_metric_is_that_on_its_reward_also_within_others() {
        let lacking = || Box::new(MetricReward { name: "mine".into(), metric: Box::new(Lacking) });
        let expected = ["`mine` is computed without its dictionary".to_owned()];
        assert_eq!(lacking().remarks(&[]), expected);
        let mean = super::super::RunningMean::new(lacking(), 2);
        let mix = super::super::MixReward::new(vec![(1.0, Box::new(mean))]).expect("a mix");
        assert_eq!(mix.remarks(&[]), expected);
        assert!(reward("metric: { chrf: {} }").expect("a reward").remarks(&[]).is_empty());
    }

    #[test]
    fn a_remark_may_depend_on_the_references_of_the_prompts() {
        let parent = reward("metric: { parent_totto: {} }").expect("a reward");
        let remarks = |references: &[&str]| {
            let made = rollouts([("table", json!({ "references": references }), "text")]);
            parent.remarks(&made.prompts.iter().collect::<Vec<_>>())
        };
        assert!(remarks(&["a", "b", "c"]).is_empty());
        let [remark] = &remarks(&["a", "b", "c", "d"])[..] else { panic!("one remark") };
        assert!(remark.starts_with("`parent_totto` is computed with the first three references"), "{remark}");
    }

    #[test]
    fn rewards_that_depend_on_the_whole_batch_are_known() {
        let corpus = tempfile::NamedTempFile::new().expect("a temporary file");
        let cider = |options: &str| format!("metric: {{ cider: {{ {options} }} }}");
        let fixed = format!("corpus: {}", corpus.path().display());
        let mean = |over: usize| {
            format!("mix: [{{ weight: 1, running_mean_over: {over}, reward: {{ metric: {{ chrf: {{}} }} }} }}]")
        };
        for (yaml, depends) in [
            ("metric: { chrf: {} }".to_owned(), false),
            (cider(""), true),
            (cider(&fixed), false),
            (cider(&format!("{fixed}, keyed_by: prompt")), true),
            (mean(1), false),
            (mean(5), true),
            (format!("mix: [{{ weight: 1, reward: {{ {} }} }}]", mean(5)), true),
        ] {
            assert_eq!(reward(&yaml).expect("a reward").depends_on_batch(), depends, "{yaml}");
        }
    }

    #[test]
    fn what_cannot_be_a_reward_is_refused_and_a_row_without_references_is_named() {
        for name in ["diversity", "distinct", "perplexity"] {
            let error = reward(&format!("metric: {{ {name}: {{}} }}")).err().expect("refused").to_string();
            assert_eq!(error, format!("`{name}` cannot be a reward: it cannot score a single new completion"));
        }
        let rows = [("", json!({ "references": ["a"] }), "a"), ("", json!({ "other": "a" }), "a")];
        let mut reward = reward("metric: { chrf: {} }").expect("a reward");
        let error = super::super::apply(&mut *reward, &rollouts(rows)).expect_err("no references").to_string();
        let expected =
            "reward for prompt 2: `chrf`: no references to compare with (column `references` or `reference`)";
        assert_eq!(error, expected);
        let rows = [("", json!({ "references": ["a"] }), "a"), ("", json!({ "references": ["a", 5] }), "a")];
        let error = super::super::apply(&mut *reward, &rollouts(rows)).expect_err("no text").to_string();
        assert_eq!(error, "reward for prompt 2: `chrf`: column `references` holds 5, expected text");
    }

    #[cfg(unix)]
    #[test]
    fn a_completion_without_a_value_is_named() {
        let yaml = "metric: { command: [sh, -c, 'read -r l; echo 1; read -r l; echo null'] }";
        let made = rollouts([("", json!({}), "a"), ("", json!({}), "b")]);
        let error = super::super::apply(&mut *reward(yaml).expect("a program"), &made).expect_err("no value");
        assert_eq!(error.to_string(), "reward for prompt 2: `command`: the metric has no value of this completion");
    }

    #[test]
    fn a_shaping_is_a_part_of_a_mix() {
        let yaml = "mix:
          - { weight: 1, reward: { metric: { exact_match: {} } } }
          - { weight: 1, reward: { rule: { repeat_penalty: 'generate a sentence with: ' } } }";
        let row =
            |completion| ("generate a sentence with: dog run park ", json!({ "reference": "A dog runs." }), completion);
        let rows = [row("A dog runs."), row("the Dog run park"), row("Generate it"), row("One Sentence")];
        check(yaml, &rows, &[1.0, -1.0, -1.0, -1.0]);
        // Concepts and prefix are compared without case.
        let yaml = "rule: { repeat_penalty: 'Say something with: ' }";
        let row = |completion| ("Say something with: Berlin TV.", json!({}), completion);
        check(yaml, &[row("berlin tv"), row("SAY SOMETHING WITH: x"), row("Berlin has TVs")], &[-1.0, -1.0, 0.0]);
    }
}

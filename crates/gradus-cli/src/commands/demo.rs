//! `gradus demo`: trains a built-in task from random weights to aligned models, and compares them in a table.

use std::fmt::Write as _;
use std::path::PathBuf;

use gradus::demo::{Budget, Options, PolicyReport, Report, Review};
use gradus::run::Existing;

use super::device::DeviceArgs;
use crate::output::Output;
use crate::report::interrupted;
use crate::watch::{STOPPING, Watcher};

/// Arguments of `gradus demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Directory for the data, the runs and the comparison
    #[arg(long, value_name = "DIR", default_value = "runs/demo")]
    output_dir: PathBuf,
    /// Seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Train only about a quarter as long
    #[arg(long)]
    quick: bool,
    /// Replace the content of the output directory
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    on: DeviceArgs,
}

/// Runs the demonstration and shows the comparison.
pub fn run(args: DemoArgs, out: &Output) -> anyhow::Result<()> {
    let options = Options {
        output_dir: args.output_dir,
        existing: if args.overwrite { Existing::Overwrite } else { Existing::Refuse },
        seed: args.seed,
        budget: if args.quick { Budget::Quick } else { Budget::Full },
        device: args.on.device,
    };
    if let Some(results) = gradus::demo::finished(&options)? {
        let shown = options.output_dir.display();
        out.note(format_args!(
            "`{shown}` already contains this demonstration: nothing to do (`--overwrite` makes it again)"
        ));
        return if out.is_json() { out.result(&results, String::new) } else { Ok(()) };
    }
    let report = gradus::demo::run(&options, &mut Watcher::new(out, STOPPING))
        .map_err(|error| interrupted(error, || "interrupted; `--overwrite` starts it from the beginning".to_owned()))?;
    out.note(format_args!("all files are in {}; each `.yml` file repeats one run", options.output_dir.display()));
    out.result(&report, || text(&report))
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    for sample in &report.samples {
        line(&sample.prompt);
        for Review { policy, text, true_score } in &sample.reviews {
            line(&format!("  {policy:<5} {true_score:>5.1}  {text}"));
        }
        line("");
    }
    line("        reward  preferred  true score     KL  fluency  words  parts  distinct  train");
    report.policies.iter().for_each(|policy| line(&row(policy)));
    line("");
    if let Some(accuracy) = report.reward_model_accuracy {
        line(&format!("reward model: orders {:.0} % of held-out pairs as they are labeled", 100.0 * accuracy));
    }
    line("preferred: how often the true rule prefers the review to that of `sft`; no model sees the rule");
    line(&format!("seed {}, {:.0} s in total", report.seed, report.elapsed_s));
    text
}

fn row(policy: &PolicyReport) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    format!(
        "{:<6} {:>7.2} {:>10} {:>11.2} {:>6.2} {:>8} {:>6.1} {:>6.2} {:>9} {:>4.0} s",
        policy.name,
        policy.reward,
        percent(policy.true_preference_rate),
        policy.true_score,
        policy.kl,
        percent(policy.fluency),
        policy.words,
        policy.specifics,
        percent(policy.distinct),
        policy.train_s,
    )
}

#[cfg(test)]
mod tests {
    use gradus::demo::PromptReport;

    use super::*;

    #[test]
    fn a_report_is_a_table_and_samples() {
        let review =
            |policy: &str, text: &str, true_score| Review { policy: policy.into(), text: text.into(), true_score };
        let policy = |name: &str, rate| PolicyReport {
            name: name.into(),
            reward: 1.25,
            true_preference_rate: rate,
            true_score: 2.5,
            kl: 3.75,
            fluency: 0.98,
            words: 11.5,
            specifics: 1.5,
            distinct: 0.9,
            train_s: 12.0,
        };
        let report = Report {
            reward_model_accuracy: Some(0.84),
            policies: vec![policy("sft", 0.5), policy("ppo", 0.9)],
            samples: vec![PromptReport {
                prompt: "how is the kettle ?".into(),
                reviews: vec![review("sft", "it is dull .", -1.0), review("ppo", "the lid is great .", 3.0)],
            }],
            seed: 42,
            elapsed_s: 200.0,
        };
        let expected = "\
how is the kettle ?
  sft    -1.0  it is dull .
  ppo     3.0  the lid is great .

        reward  preferred  true score     KL  fluency  words  parts  distinct  train
sft       1.25       50 %        2.50   3.75     98 %   11.5   1.50      90 %   12 s
ppo       1.25       90 %        2.50   3.75     98 %   11.5   1.50      90 %   12 s

reward model: orders 84 % of held-out pairs as they are labeled
preferred: how often the true rule prefers the review to that of `sft`; no model sees the rule
seed 42, 200 s in total
";
        assert_eq!(text(&report), expected);
    }
}

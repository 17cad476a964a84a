use super::*;
use crate::run::RolloutWriter;
use crate::run::database::{Record, RolloutTable};
use crate::run::directory::Existing;
use crate::run::metrics::MetricsLog;
use std::fs;

fn sample(row: usize, completion: &str, reward: f64) -> Sample {
    Sample {
        step: 0,
        row,
        prompt: format!("prompt {row}"),
        completion: completion.into(),
        reward: Some(reward),
        tokens: 3,
        stop: "stop_id".into(),
    }
}

fn run(directory: &Path, name: &str, reward: f64) -> RunDir {
    let run = RunDir::create(directory.join(name), Existing::Refuse).unwrap();
    let mut log = MetricsLog::open(&run.metrics()).unwrap();
    for step in 1..=4 {
        log.append(step, &Metrics::from_iter([("reward", reward * step as f64 / 4.0), ("objective/kl", 0.1)])).unwrap();
    }
    let record = |step: usize, row: usize, completion: &str, reward: f64| Record {
        step,
        prompt_index: row - 1,
        prompt: format!("prompt {row}"),
        completion: completion.into(),
        reward: Some(reward),
        length: 3,
        stop_reason: "length".into(),
        ..Record::default()
    };
    let samples =
        [record(0, 1, "sad", -1.0), record(0, 2, "grey", 0.0), record(4, 1, name, reward), record(4, 2, "grey", 0.0)];
    RolloutWriter::open(&run.rollouts(), 0).unwrap().append(RolloutTable::Eval, samples.into()).unwrap();
    let results = json!({
        "method": name, "model": "gpt2", "data": "rows.jsonl", "steps": 4, "tokens": 1200, "elapsed_s": 61.0,
        "peak_memory_bytes": 512_000_000,
        "before": {"eval_reward": -0.5, "eval_length": 3.0},
        "after": {"eval_reward": reward / 2.0, "eval_kl": 1.25, "eval_length": 3.0},
    });
    fs::write(run.results(), results.to_string()).unwrap();
    run
}

#[test]
fn the_table_says_what_changed() {
    let directory = tempfile::tempdir().unwrap();
    let runs = [run(directory.path(), "ppo", 2.0), run(directory.path(), "grpo", -3.0)];
    let comparison = Comparison::of_runs(&runs).unwrap();
    assert_eq!(
        comparison.table(),
        "| method |     reward | wins |   KL | length | steps | tokens |       time | memory |\n\
         | ------ | ---------: | ---: | ---: | -----: | ----: | -----: | ---------: | -----: |\n\
         | start  | \u{2212}0.5 ± 0.5 |    – |    0 |      3 |     – |      – |          – |      – |\n\
         | ppo    |      1 ± 1 | 75 % | 1.25 |      3 |     4 |   1200 | 1 min 01 s | 512 MB |\n\
         | grpo   | \u{2212}1.5 ± 1.5 | 25 % | 1.25 |      3 |     4 |   1200 | 1 min 01 s | 512 MB |\n"
    );
}

/// A terminal or a pager may obey escape sequences, and a line end would begin a false row.
#[test]
fn control_characters_in_names_are_escaped() {
    let directory = tempfile::tempdir().unwrap();
    let runs = [run(directory.path(), "ppo", 2.0), run(directory.path(), "grpo", -3.0)];
    let mut comparison = Comparison::of_runs(&runs).unwrap();
    let lines = comparison.table().lines().count();
    comparison.entries[1].name = "p\u{1b}[2J\nq".into();
    let table = comparison.table();
    assert!(table.contains("| p\\u{1b}[2J\\u{a}q |"), "{table}");
    assert!(!table.contains('\u{1b}') && table.lines().count() == lines, "{table}");
}

/// Runs with different rewards but one start: each is compared with its own start, and the common start has no reward.
#[test]
fn rewards_of_different_kinds_have_no_common_start() {
    let directory = tempfile::tempdir().unwrap();
    let runs = [run(directory.path(), "dense", 2.0), run(directory.path(), "holistic", 0.5)];
    let record = |step: usize, row: usize, reward: f64| Record {
        step,
        prompt_index: row - 1,
        prompt: format!("prompt {row}"),
        completion: "tea".into(),
        reward: Some(reward),
        length: 3,
        ..Record::default()
    };
    // By its own reward, the second run lost on every prompt. Compared with the first run's start it would have won.
    fs::remove_file(runs[1].rollouts()).unwrap();
    let samples = [record(0, 1, 1.0), record(0, 2, 2.0), record(4, 1, 0.5), record(4, 2, 1.5)];
    RolloutWriter::open(&runs[1].rollouts(), 0).unwrap().append(RolloutTable::Eval, samples.into()).unwrap();
    let results = fs::read_to_string(runs[1].results()).unwrap();
    let results = results.replace("\"eval_reward\":-0.5", "\"eval_reward\":1.5,\"eval_rewards/preference/mean\":1.5");
    fs::write(runs[1].results(), results).unwrap();
    let comparison = Comparison::of_runs(&runs).unwrap();
    let found = comparison.to_json();
    let of = |at: usize, key: &str| found["entries"][at][key].clone();
    assert_eq!([of(1, "wins"), of(2, "wins")], [json!(0.75), json!(0.0)]);
    assert_eq!([of(0, "reward"), of(0, "reward_standard_error")], [Value::Null, Value::Null]);
    assert_eq!([of(0, "length"), of(0, "measured")["rewards/preference/mean"].clone()], [json!(3.0), json!(1.5)]);
}

/// As the seeds of the points of a sweep.
#[test]
fn runs_of_one_name_have_the_ends_of_their_paths_as_names() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two, other] = ["one", "two", "start"].map(|name| directory.path().join(name));
    let mut runs = vec![run(&one, "seed-1", 2.0), run(&two, "seed-1", -3.0)];
    let comparison = Comparison::of_runs(&runs).unwrap();
    let names = |of: &Comparison| of.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&comparison), ["start", "one/seed-1", "two/seed-1"]);
    let first: Value = serde_json::from_str(comparison.samples_jsonl().lines().next().unwrap()).unwrap();
    assert_eq!(first["completions"].as_object().map(Map::len), Some(3));
    let results = fs::read_to_string(runs[1].results()).unwrap().replace("gpt2", "gpt3");
    fs::write(runs[1].results(), results).unwrap();
    let starts = ["start of one/seed-1", "start of two/seed-1"];
    assert_eq!(names(&Comparison::of_runs(&runs).unwrap())[..2], starts);
    runs.push(RunDir::at(one.join("seed-1/../seed-1")));
    let error = Comparison::of_runs(&runs).unwrap_err().to_string();
    assert!(error.contains("seed-1` is given twice"), "{error}");
    let named_start = [run(&other, "start", 1.0)];
    assert_eq!(names(&Comparison::of_runs(&named_start).unwrap()), ["start", "start/start"]);
}

#[test]
fn files_of_others_are_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let comparison = Comparison::of_runs(&[run(directory.path(), "ppo", 2.0)]).unwrap();
    let at = directory.path().join("comparison");
    fs::create_dir(&at).unwrap();
    comparison.write(&at).unwrap();
    comparison.write(&at).unwrap();
    fs::write(at.join("comparison.json"), "{\"mine\": []}").unwrap();
    let error = comparison.write(&at).unwrap_err().to_string();
    assert!(error.ends_with("its `comparison.json` is not that of a comparison"), "{error}");
    fs::remove_file(at.join("comparison.json")).unwrap();
    assert!(comparison.write(&at).is_err());
}

/// A start is not shown for runs from another model.
#[test]
fn runs_from_different_models_have_starts_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let runs =
        [run(directory.path(), "ppo", 2.0), run(directory.path(), "grpo", 0.5), run(directory.path(), "dpo", 1.0)];
    let results = fs::read_to_string(runs[2].results()).unwrap();
    let other = results
        .replace("\"model\":\"gpt2\"", "\"model\":\"runs/sft\"")
        .replace("\"eval_reward\":-0.5", "\"eval_reward\":0.75");
    fs::write(runs[2].results(), other).unwrap();
    let comparison = Comparison::of_runs(&runs).unwrap();
    let names: Vec<&str> = comparison.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["start of ppo, grpo", "start of dpo", "ppo", "grpo", "dpo"]);
    let reward = |at: usize| comparison.entries[at].value("reward", comparison.start());
    assert_eq!([reward(0), reward(1)], [Some(-0.5), Some(0.75)]);
    let colors = comparison.colors();
    assert!(colors[..2].iter().all(Option::is_none) && colors[2..].iter().all(Option::is_some), "{colors:?}");
    assert!(comparison.samples_markdown().contains("**start of dpo**"));
}

#[test]
fn whatever_was_measured_is_a_column() {
    let measured = |reward: f64| {
        Metrics::from_iter([
            ("reward", reward),
            ("reward_std", 1.0),
            ("rewards/fine_grained/mean", reward),
            ("rewards/relevance/mean", -0.25),
            ("rewards/relevance/std", 0.5),
            ("rewards/relevance/right", 0.75),
            ("rewards/relevance/segments", 3.0),
            ("length", 3.0),
            ("a_plug_in/share", 0.5),
        ])
    };
    let entries = vec![Entry::start(measured(1.0), Vec::new()), Entry::start(measured(2.0), Vec::new())];
    let text = || "–".to_owned();
    let comparison = Comparison { model: text(), data: text(), budget: text(), evaluation: text(), entries };
    let headings: Vec<String> =
        comparison.table().lines().next().unwrap().split('|').map(|cell| cell.trim().to_owned()).collect();
    assert_eq!(
        headings[1..headings.len() - 1],
        ["method", "reward", "KL", "length", "relevance", "relevance/right", "a_plug_in/share"]
    );
}

#[test]
fn a_table_of_many_measurements_has_a_row_for_each() {
    let names: Vec<String> = (0..12).map(|i| format!("a_measurement/number_{i}")).collect();
    let measured: Metrics = names.iter().map(|name| (name.as_str(), 0.5)).collect();
    let entries = vec![
        Entry::start(measured.clone(), Vec::new()),
        Entry { name: "ppo".into(), ..Entry::start(measured, Vec::new()) },
    ];
    let text = || "–".to_owned();
    let table = Comparison { model: text(), data: text(), budget: text(), evaluation: text(), entries }.table();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "| method                  | start | ppo |");
    assert_eq!(lines[1], "| ----------------------- | ----: | --: |");
    assert_eq!(lines[3], "| a_measurement/number_0  |   0.5 | 0.5 |");
    assert_eq!(lines.len(), 2 + 1 + 12, "{table}");
}

#[test]
fn everything_is_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let runs = [run(directory.path(), "ppo", 2.0), run(directory.path(), "grpo", -3.0)];
    let at = directory.path().join("comparison");
    let json = Comparison::of_runs(&runs).unwrap().write(&at).unwrap();
    assert_eq!(
        (&json["model"], &json["prompts"], &json["entries"][1]["wins"]),
        (&json!("gpt2"), &json!(2), &json!(0.75))
    );
    let text = |name: &str| fs::read_to_string(at.join(name)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text("comparison.json")).unwrap(), json);
    let first: Value = serde_json::from_str(text("samples.jsonl").lines().next().unwrap()).unwrap();
    assert_eq!(first["completions"]["ppo"], json!({"completion": "ppo", "reward": 2.0, "tokens": 3, "stop": "length"}));
    assert!(
        text("samples.md").contains("## Prompt 1\n\n> prompt 1\n\n**start**, reward \u{2212}1\n\n> sad\n"),
        "{}",
        text("samples.md")
    );
    assert!(text("comparison.md").contains("Budget: the settings of each run"));
    assert!(text("report.html").contains("<td class=\"number\">75 %</td>"));
    for name in ["results.png", "plots/reward.png", "plots/kl.png"] {
        assert!(fs::read(at.join(name)).unwrap().starts_with(b"\x89PNG"), "{name}");
    }
}

#[test]
fn ties_count_half_and_missing_rewards_not_at_all() {
    let entry = |samples: Vec<Sample>| Entry::start(Metrics::new(), samples);
    let start = entry(vec![sample(1, "a", 1.0), sample(2, "b", 1.0), sample(3, "c", 1.0)]);
    let mut unscored = sample(3, "c", 0.0);
    unscored.reward = None;
    let other = entry(vec![sample(1, "a", 1.0), sample(2, "b", 2.0), unscored]);
    assert_eq!(other.wins_against(&start), Some(0.75));
    assert_eq!(entry(Vec::new()).wins_against(&start), None);
    // Squares (0.5² + 0.5²) / (2 − 1) / 2 = 0.25.
    assert_eq!(other.standard_error(), Some(0.5));
}

/// A metric may also be a component of the reward, and runs may differ in model and data.
#[test]
fn what_differs_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let (first, other) = (run(directory.path(), "ppo", 2.0), run(directory.path(), "grpo", -3.0));
    let results = |run: &RunDir, from: &str, to: &str| {
        let text = fs::read_to_string(run.results()).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(run.results(), text.replace(from, to)).unwrap();
    };
    results(&first, "\"eval_kl\":1.25", "\"eval_rewards/meteor/mean\":0.5,\"eval_meteor\":0.25");
    results(&other, "rows.jsonl", "others.jsonl");
    let mut comparison = Comparison::of_runs(&[first, other]).unwrap();
    assert_eq!((comparison.model.as_str(), comparison.data.as_str()), ("gpt2", "rows.jsonl, others.jsonl"));
    let table = comparison.table();
    assert!(table.lines().next().unwrap().contains("| rewards/meteor | meteor |"), "{table}");
    comparison.entries[2].samples.iter_mut().for_each(|sample| sample.prompt += " of others");
    let wins: Vec<Option<f64>> =
        comparison.entries.iter().map(|entry| entry.value("wins", &comparison.entries[0])).collect();
    assert_eq!(wins, [None, Some(0.75), None]);
    let beside = comparison.samples_jsonl();
    assert!(!beside.contains("grpo"), "its completions answer other prompts: {beside}");
}

/// Policies are compared pairwise on common prompts, with ties as half. The Pareto front has the policies with the most reward for their
/// KL.
#[test]
fn policies_are_compared_with_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let runs = [run(directory.path(), "ppo", 2.0), run(directory.path(), "grpo", -3.0)];
    let mut comparison = Comparison::of_runs(&runs).unwrap();
    // The second of the two prompts is a tie.
    let rates = comparison.win_rates().unwrap();
    assert_eq!(rates.names, ["start", "ppo", "grpo"]);
    let expected = [[None, Some(0.25), Some(0.75)], [Some(0.75), None, Some(0.75)], [Some(0.25), Some(0.25), None]];
    assert_eq!(rates.shares, expected.map(Vec::from));
    assert_eq!(rates.prompts[1], [2, 0, 2]);
    // The start has no KL, and grpo has less reward than the start.
    assert_eq!(comparison.front(), [0, 1]);
    let json = comparison.write(&directory.path().join("comparison")).unwrap();
    assert_eq!((&json["pareto_front"], &json["win_rates"]["shares"][1][2]), (&json!(["start", "ppo"]), &json!(0.75)));
    assert_eq!(json["entries"][1]["peak_memory_bytes"], 512_000_000);
    let read = |name: &str| fs::read_to_string(directory.path().join("comparison").join(name)).unwrap();
    let page = read("report.html");
    for expected in ["<h2>Win rates</h2>", "On the Pareto front: start, ppo.", "aria-label=\"Reward and KL\"", "512 MB"]
    {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    assert!(read("comparison.md").contains("| ppo | 75 % | – | 75 % |"), "{}", read("comparison.md"));
    for name in ["pareto", "rewards"] {
        assert!(directory.path().join(format!("comparison/plots/{name}.png")).is_file());
    }

    // Different rewards are not compared, nor are completions of different prompts.
    for (name, reward) in [("ppo", "a"), ("grpo", "b")] {
        let config = format!("model: gpt2\nreward: # by a model\n  model: {reward}\ntrain:\n  seed: 1\n");
        fs::write(directory.path().join(name).join("config.yml"), config).unwrap();
    }
    let others = Comparison::of_runs(&runs).unwrap();
    assert_eq!(others.entries[1].reward.as_deref(), Some("reward:\n  model: a"));
    assert_eq!(others.win_rates().unwrap().shares[1], [Some(0.75), None, None]);
    assert!(others.pareto().is_none() || others.front().len() < 3);
    comparison.entries[2].samples.iter_mut().for_each(|sample| sample.prompt += " of others");
    assert_eq!(comparison.win_rates().unwrap().shares[1], [Some(0.75), None, None]);
}

#[test]
fn the_front_has_no_policy_that_another_one_dominates() {
    let entry = |name: &str, kl: f64, reward: f64| Entry {
        name: name.into(),
        ..Entry::start(Metrics::from_iter([("kl", kl), ("reward", reward)]), Vec::new())
    };
    let directory = tempfile::tempdir().unwrap();
    let trained = |name: &str, kl, reward| {
        let run = RunDir::create(directory.path().join(name), Existing::Refuse).unwrap();
        Entry { run: Some(run), ..entry(name, kl, reward) }
    };
    let entries = vec![
        entry("start", 0.0, 0.0),
        trained("far", 9.0, 2.0),
        trained("near", 1.0, 2.0),
        trained("middle", 2.0, 1.0),
        trained("best", 10.0, 3.0),
    ];
    let text = || "–".to_owned();
    let comparison = Comparison { model: text(), data: text(), budget: text(), evaluation: text(), entries };
    let names: Vec<&str> = comparison.front().iter().map(|&index| comparison.entries[index].name.as_str()).collect();
    assert_eq!(names, ["start", "near", "best"]);
    let stair = &comparison.pareto().unwrap().curves[0].points;
    assert_eq!(stair[..], [(0.0, 0.0), (1.0, 0.0), (1.0, 2.0), (10.0, 2.0), (10.0, 3.0), (10.0, 3.0)]);
}

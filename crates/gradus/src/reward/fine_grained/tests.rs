//! Segment rewards compared to transformers (tools/parity/fine_grained.py), and rejected settings.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::*;
use crate::error::Error;
use crate::evaluation::observe_rewards;
use crate::reward::config::RewardConfig;
use crate::reward::{Interrupt, apply, build, load_learned};
use crate::stats::Stats;
use crate::text::Tokenizer;

const PASSES: MicroBatch = MicroBatch::new(40, None);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

/// The token classifier with its tokenizer.
fn token_model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = |from: &str, file: &str| {
        std::fs::copy(fixtures().join("encoders").join(from).join(file), dir.path().join(file)).expect("copied");
    };
    ["config.json", "model.safetensors"].iter().for_each(|file| copy("longformer-token", file));
    ["tokenizer.json", "tokenizer_config.json"].iter().for_each(|file| copy("longformer", file));
    dir
}

fn sequence_model() -> PathBuf {
    fixtures().join("encoders/longformer")
}

fn fixture() -> Value {
    serde_json::from_slice(&std::fs::read(fixtures().join("fine_grained/fixture.json")).expect("a fixture"))
        .expect("JSON")
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// One finished completion per row.
fn rollouts(rows: &[Value]) -> Rollouts {
    let mut made = Rollouts { prompts: Vec::new(), rollouts: Vec::new(), group_size: 1, tokenizer: None };
    made.tokenizer = Some(Tokenizer::from_dir(&sequence_model()).expect("a tokenizer"));
    for (row, of) in rows.iter().enumerate() {
        let mut columns = Map::new();
        columns.insert("question".into(), of["question"].clone());
        made.prompts.push(Prompt {
            row,
            text: "the prompt".into(),
            ids: vec![96],
            encoder_reads_prompt: true,
            messages: None,
            columns,
        });
        let mut ids: Vec<u32> = numbers(&of["completion_ids"]).into_iter().map(|id| id as u32).collect();
        ids.push(2);
        let completion = of["completion"].as_str().expect("a text");
        made.rollouts.push(Rollout::one_turn(row, completion, ids, StopReason::StopId));
    }
    made
}

fn config(model: &Path, yaml: &str) -> SegmentConfig {
    serde_saphyr::from_str(&format!("model: {}\n{yaml}", model.display())).expect("a configuration")
}

fn load(model: &Path, yaml: &str) -> crate::Result<SegmentReward> {
    let dir = ModelDir::open(model).expect("a fixture");
    SegmentReward::load(&dir, &config(model, yaml), &Device::flex(), WeightFormat::F32, PASSES)
}

fn count(score: &Score, name: &str) -> (f64, f64) {
    let found = score.counts.iter().find(|count| count.name.ends_with(name)).expect("counted");
    (found.sum, found.of)
}

#[test]
fn sentences_are_judged_at_their_separators_and_paid_at_their_last_tokens() {
    let (model, fixture) = (token_model(), fixture());
    let rows = fixture["rows"].as_array().expect("rows");
    let made = rollouts(rows);
    let prompt = "prompt: 'question: {question} answer:'\n";
    let mut by_number = load(model.path(), &format!("{prompt}label: 1\nvalue: logit")).expect("loads");
    let numbered = apply(&mut by_number, &made).expect("scored");
    let mut by_label = load(model.path(), &format!("{prompt}values: {{ '0': 0.5, LABEL_2: -0.25 }}")).expect("loads");
    let labeled = apply(&mut by_label, &made).expect("scored");
    for (i, row) in rows.iter().enumerate() {
        let logits: Vec<Vec<f32>> = row["logits"].as_array().expect("segments").iter().map(numbers).collect();
        let places: Vec<usize> = numbers(&row["last_tokens"]).into_iter().map(|at| at as usize).collect();
        let found = numbered[i].rewards_t().expect("scored");
        assert_eq!(found.len(), made.rollouts[i].completion_ids.len());
        for (t, &reward) in found.iter().enumerate() {
            let expected = places.iter().zip(&logits).find(|(at, _)| **at == t).map_or(0.0, |(_, logits)| logits[1]);
            assert!((reward - expected).abs() < 1e-4, "row {i}, token {t}: {reward} instead of {expected}");
        }
        let mapping = |logits: &Vec<f32>| if logits[0] >= logits[2] { 0.5 } else { -0.25 };
        let mut expected = vec![0.0; found.len()];
        places.iter().zip(&logits).for_each(|(&at, logits)| expected[at] = mapping(logits));
        assert_eq!(labeled[i].rewards_t(), Some(expected), "row {i}");
        let right = logits.iter().filter(|logits| mapping(logits) > 0.0).count() as f64;
        assert_eq!(count(&labeled[i], "right"), (right, logits.len() as f64));
        let paid = f64::from(labeled[i].total().expect("scored"));
        assert_eq!(count(&labeled[i], "per_segment"), (paid, places.len() as f64));
        // The same from the text alone, by the most probable labels.
        let judged = by_label.judge(&made.prompts[i], &made.rollouts[i]).expect("judged");
        let named = |logits: &Vec<f32>| {
            let label = if logits[0] >= logits[2] { "LABEL_0" } else { "LABEL_2" };
            (mapping(logits), Some(label.to_owned()))
        };
        let found: Vec<(f32, Option<String>)> =
            judged.segments.iter().map(|segment| (segment.value, segment.label.clone())).collect();
        assert_eq!(found, logits.iter().map(named).collect::<Vec<_>>(), "row {i}");
        assert_eq!(judged.total, logits.iter().map(mapping).sum::<f32>());
        let completion = &made.rollouts[i].completion;
        let texts: Vec<&str> = judged.segments.iter().map(|segment| completion[segment.bytes.clone()].trim()).collect();
        assert!(completion.starts_with(&texts.join(" ")), "{texts:?} of {completion:?}");
        let lost = (places.len() - logits.len()) as f64;
        assert_eq!(count(&labeled[i], "unread"), (lost, places.len() as f64));
    }
    // The last row has no room for two of its three sentences.
    assert_eq!((count(&labeled[3], "unread"), count(&labeled[3], "segments")), ((2.0, 3.0), (3.0, 1.0)));
}

#[test]
fn a_whole_completion_is_normalised_and_paid_at_its_end() {
    let fixture = fixture();
    let rows = fixture["rows"].as_array().expect("rows");
    let yaml = "text: 'question: {question} answer: {completion}'\nlabel: 1\nvalue: logit\nmean: 0.5\nstd: 2\nscale: 0.3\nbias: 0.1";
    let scores = apply(&mut load(&sequence_model(), yaml).expect("loads"), &rollouts(rows)).expect("scored");
    for (row, score) in rows.iter().zip(&scores) {
        let z = (numbers(&row["sequence_logits"])[1] - 0.5) / 2.0;
        let rewards_t = score.rewards_t().expect("scored");
        let (last, before) = rewards_t.split_last().expect("tokens");
        assert!((last - (z * 0.3 + 0.1)).abs() < 1e-4 && before.iter().all(|&reward| reward == 0.0), "{rewards_t:?}");
        assert!((count(score, "score").0 - f64::from(z)).abs() < 1e-4);
    }
    assert_eq!(scores.iter().map(|score| count(score, "cut").0).collect::<Vec<_>>(), [0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn changes_add_up_to_the_number_of_the_whole_text() {
    // One sentence, several, none. The weight turns toxicity into a penalty.
    let ids = |text: &str| {
        let tokenizer = Tokenizer::from_dir(&sequence_model()).expect("a tokenizer");
        json!({ "question": "", "completion": text, "completion_ids": tokenizer.encode(text, false).expect("ids") })
    };
    let rows = ["The kettle sings.", "The tea. A cup is it! Is the cup cold?", " "].map(ids);
    let made = rollouts(&rows);
    let of_whole = |text: &str| {
        let yaml = format!("text: '{text}'\nsegments: whole\nlabel: 1");
        let scores = apply(&mut load(&sequence_model(), &yaml).expect("loads"), &made).expect("scored");
        scores.iter().map(|score| score.total().expect("scored")).collect::<Vec<_>>()
    };
    let whole = of_whole("{completion}");
    let yaml = format!(
        "fine_grained: {{ toxicity: {{ model: {}, text: '{{so_far}}', segments: sentence, label: 1, change: true, weight: -1 }} }}",
        sequence_model().display()
    );
    let config: RewardConfig = serde_saphyr::from_str(&yaml).expect("a configuration");
    let open = |learned: crate::reward::config::Learned<'_>| {
        let dir = ModelDir::open(Path::new(learned.name())).expect("a fixture");
        load_learned(learned, &dir, &Device::flex(), WeightFormat::F32, PASSES)
    };
    let mut reward = build(&config, &open, &crate::metric::NoModels, &Interrupt::default()).expect("buildable");
    let scores = apply(&mut *reward, &made).expect("scored");
    for (i, score) in scores.iter().enumerate() {
        let expected = if i == 2 { 0.0 } else { -whole[i] };
        assert!((score.total().expect("scored") - expected).abs() < 1e-6, "{i}: {score:?}");
    }
    let spread = scores[1].rewards_t().expect("scored").iter().filter(|&&reward| reward != 0.0).count();
    assert_eq!(spread, 3, "one for each sentence");
    assert_eq!((reward.name().as_str(), scores[1].parts[0].name.as_str()), ("fine_grained", "toxicity"));
}

#[test]
fn a_model_is_asked_once_for_each_element_and_the_least_counts() {
    let (model, fixture) = (token_model(), fixture());
    let rows = fixture["rows"].as_array().expect("rows");
    let mut made = rollouts(&rows[..2]);
    let passages = [
        json!({ "wikipage": "Tea", "content": "Tea is hot." }),
        json!({ "wikipage": "Cup", "content": "It is cold." }),
    ];
    let values = "segments: whole\nvalues: { '0': 0.5, LABEL_2: -0.25 }\n";
    // Each passage alone, in a column of its own.
    let alone: Vec<Vec<Vec<f32>>> = passages
        .iter()
        .map(|passage| {
            for prompt in &mut made.prompts {
                prompt.columns.insert("title".into(), passage["wikipage"].clone());
                prompt.columns.insert("content".into(), passage["content"].clone());
            }
            let yaml = format!("{values}prompt: '{{question}} {{title}}: {{content}} answer:'");
            let scores = apply(&mut load(model.path(), &yaml).expect("loads"), &made).expect("scored");
            scores.iter().map(|score| score.rewards_t().expect("scored")).collect()
        })
        .collect();
    let yaml =
        format!("{values}each: passages\nprompt: '{{question}} {{passages.wikipage}}: {{passages.content}} answer:'");
    let score = |made: &Rollouts, more: &str| {
        apply(&mut load(model.path(), &format!("{yaml}\n{more}")).expect("loads"), made).expect("scored")
    };
    made.prompts.iter_mut().for_each(|prompt| _ = prompt.columns.insert("passages".into(), json!(passages)));
    let both = score(&made, "");
    for (i, found) in both.iter().enumerate() {
        let found = found.rewards_t().expect("scored");
        let least = alone[0][i].iter().zip(&alone[1][i]).map(|(a, b)| a.min(*b)).collect::<Vec<f32>>();
        assert_eq!(found, least, "row {i}");
        let judged = load(model.path(), &yaml).expect("loads").judge(&made.prompts[i], &made.rollouts[i]);
        assert_eq!(judged.expect("judged").total, least[least.len() - 1]);
    }
    // The same reward, divided among sentences.
    for ((whole, spread), sentences) in both.iter().zip(score(&made, "spread: sentence")).zip([2, 1]) {
        let (whole, spread) = (whole.total().expect("scored"), spread.rewards_t().expect("scored"));
        let paid: Vec<f32> = spread.iter().copied().filter(|reward| *reward != 0.0).collect();
        assert!(
            paid.len() == sentences && paid.iter().all(|part| (part - whole / paid.len() as f32).abs() < 1e-6),
            "{spread:?}"
        );
        assert!((spread.iter().sum::<f32>() - whole).abs() < 1e-6);
    }
    // Without passages, the highest value counts.
    made.prompts.iter_mut().for_each(|prompt| _ = prompt.columns.insert("passages".into(), json!([])));
    assert!(score(&made, "").iter().all(|score| score.total() == Some(0.5)));
    // A column that is not a list, and elements without the field.
    made.prompts[0].columns.insert("passages".into(), json!("Tea"));
    made.prompts[1].columns.insert("passages".into(), json!([{ "wikipage": "Tea" }]));
    let errors: Vec<String> = load(model.path(), &yaml)
        .expect("loads")
        .score(&made)
        .into_iter()
        .map(|score| score.expect_err("refused").message)
        .collect();
    assert!(errors[0].contains("the column `passages` is not a list, but `each` needs one"), "{errors:?}");
    assert!(errors[1].contains("an element of `passages` has no `passages.content`"), "{errors:?}");
}

#[test]
fn two_segments_in_one_token_are_counted() {
    let reward = load(&sequence_model(), "segments: sentence\nlabel: 1").expect("loads");
    let reading =
        CompletionQuestions { segments: vec![0..2, 2..4, 4..5], questions: Vec::new(), read: vec![3], cut: 0 };
    let mut made = rollouts(&[json!({ "question": "", "completion": "a. b.", "completion_ids": [1, 2, 3] })]);
    let rollout = made.rollouts.remove(0);
    let outputs = [vec![0.0, 1.0], vec![0.0, 2.0], vec![0.0, 0.0]];
    // The tokens cover the bytes 0..4 and 4..5; two tokens have no text.
    let score = reward.judged(&reading, &outputs, &rollout, |_| Ok(vec![0, 0, 1])).expect("scored");
    let p = |z: f32| z.exp() / (1.0 + z.exp());
    let found = score.rewards_t().expect("scored");
    let expected = [p(2.0), p(0.0), 0.0, 0.0];
    assert!(
        found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6),
        "the later stands: {found:?}"
    );
    assert_eq!((count(&score, "collided"), count(&score, "unread")), ((1.0, 3.0), (0.0, 3.0)));
}

#[test]
fn the_original_counts_the_tokens_of_the_text_so_far() {
    let tokenizer = Tokenizer::from_dir(&sequence_model()).expect("a tokenizer");
    let text = "The kettle sings, the tea is poured and warm. The cup is cold.";
    let ids = tokenizer.encode(text, false).expect("ids");
    let made = rollouts(&[json!({ "question": "", "completion": text, "completion_ids": ids })]);
    let places = |yaml: &str| {
        let reward = load(&sequence_model(), &format!("label: 1\n{yaml}")).expect("loads");
        reward.places(&made, 0, &reward.segments(text)).expect("placed")
    };
    for level in ["sentence", "sub_sentence"] {
        // The place is the token count of the prefix, at most the last token.
        let reward = load(&sequence_model(), &format!("label: 1\nsegments: {level}")).expect("loads");
        let counts = reward
            .segments(text)
            .into_iter()
            .map(|segment| tokenizer.encode(&text[..segment.end], false).expect("ids").len() - 1);
        let expected: Vec<usize> = counts.map(|place| place.min(ids.len())).collect();
        assert_eq!(places(&format!("segments: {level}\nsegment_end: retokenised")), expected, "{level}");
    }
    // For sentences without trailing blanks, both kinds of end agree.
    assert_eq!(places("segments: sentence\nsegment_end: retokenised"), places("segments: sentence"));
}

#[test]
fn shares_are_of_all_segments_together() {
    // 1 of 2 and 9 of 10 make 10 of 12, not 0.7; a text without segments does not count.
    let score = |right: f64, of: usize| Score {
        counts: vec![Count::new("relevance/right", right, of)],
        ..Score::per_token(vec![0.0])
    };
    let mut stats = Stats::default();
    observe_rewards("fine_grained", &[score(1.0, 2), score(9.0, 10), score(0.0, 0)], &mut stats);
    assert_eq!(stats.value("rewards/relevance/right"), Some(10.0 / 12.0));
    let mut stats = Stats::default();
    observe_rewards("fine_grained", &[score(0.0, 0)], &mut stats);
    assert_eq!(stats.value("rewards/relevance/right"), None);
}

#[test]
fn what_does_not_fit_the_model_is_told() {
    let tokens = token_model();
    let error_of = |model: &Path, yaml: &str| match load(model, yaml) {
        Err(Error::Config(found)) => format!("{} | {}", found[0].message, found[0].hint.clone().unwrap_or_default()),
        Err(other) => panic!("refused otherwise: {other}"),
        Ok(_) => panic!("taken: {yaml}"),
    };
    for (model, yaml, expected) in [
        (
            tokens.path(),
            "values: { O: 1, NF-ERR: -1 }",
            "no label `NF-ERR`: the classifier has `LABEL_0`, `LABEL_1`, `LABEL_2`",
        ),
        (tokens.path(), "values: { '1': 1, LABEL_1: -1 }", "names the label `LABEL_1` twice"),
        (tokens.path(), "", "the values of its labels are not set | set `values` for two or more of `LABEL_0`"),
        (tokens.path(), "label: 1\ntext: '{segment}'", "set `prompt` instead of `text`"),
        (tokens.path(), "label: 1\nseparator: '<sep>'", "the separator `<sep>` is not a token of"),
        (tokens.path(), "label: 1\nchange: true", "`change` needs a number for each text so far"),
        (&sequence_model(), "label: 1\nprompt: '{prompt}'", "`prompt` and `separator` are for classifiers of tokens"),
        (&sequence_model(), "", "set `label` to one of `LABEL_0`, `LABEL_1`"),
        (&sequence_model(), "label: 1\nchange: true", "`change` needs a number for each text so far"),
    ] {
        let found = error_of(model, yaml);
        assert!(found.contains(expected), "{yaml}: {found}");
    }
    let mistakes = |yaml: &str| -> Vec<&str> {
        config(&sequence_model(), yaml).mistakes().into_iter().map(|(key, _)| key).collect()
    };
    assert!(mistakes("values: { a: 1, b: 2 }").is_empty());
    assert_eq!(mistakes("values: { a: 1 }"), ["values"]);
    assert_eq!(mistakes("values: { a: 1, b: 2 }\nscale: 2\nlabel: 1"), ["label", "scale"]);
    assert_eq!(mistakes("std: 0\nweight: .inf\nmax_length: 0"), ["weight", "std", "max_length"]);
    assert_eq!(mistakes("text: '{a'\nprompt: b"), ["text", "text"]);
    assert_eq!(mistakes("segments: whole\nchange: true"), ["change"]);
    assert_eq!(mistakes("each: passages"), ["each"]);
    assert_eq!(mistakes("segments: sentence\nspread: sentence"), ["spread"]);
    assert_eq!(mistakes("spread: whole"), ["spread"]);
    assert!(mistakes("values: { a: 1, b: 2 }\neach: passages\nsegments: whole\nspread: sub_sentence").is_empty());
}

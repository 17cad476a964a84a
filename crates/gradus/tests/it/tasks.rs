//! Tasks: RL4LMs' data pools compared to samples from its own code, and real files if they are available.

use gradus::config::{Plan, RunConfig};
use gradus::data::{Content, LoadOptions, Need, Row, RowData};
use gradus::machine::Machine;
use gradus::process::Interrupt;
use gradus::task::{DataConfig, Files, Split, TaskConfig, load};
use serde_json::{Value, json};

use crate::support::material;

fn fixture() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/tasks/tasks.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON");
    fixture["cases"].as_array().expect("cases").clone()
}

fn split(name: &Value) -> Split {
    serde_json::from_value(name.clone()).expect("a split")
}

fn task(value: Value) -> TaskConfig {
    serde_json::from_value(value).expect("a task")
}

#[test]
fn samples_are_those_of_rl4lms() {
    let mut seen = std::collections::BTreeSet::new();
    for case in fixture() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, content) in case["files"].as_object().expect("files") {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            std::fs::write(path, content.as_str().expect("text")).expect("written");
        }
        let task = task(case["task"].clone());
        let what = format!("{} {}", case["task"], case["split"]);
        seen.insert(task.name());
        let at = folder.path().to_string_lossy().into_owned();
        let interrupt = Interrupt::default();
        let files = Files::new(Some(&at), split(&case["split"]), None, &interrupt);
        let samples =
            task.build().expect("no plug-in").samples(&files).unwrap_or_else(|error| panic!("{what}: {error}"));
        let expected = case["samples"].as_array().expect("samples");
        assert_eq!(samples.len(), expected.len(), "{what}");
        for ((_, sample), expected) in samples.iter().zip(expected) {
            assert_eq!(json!(sample.prompt), expected["prompt"], "{what}");
            assert_eq!(json!(sample.references), expected["references"], "{what}");
            let mut metadata = sample.metadata.clone();
            metadata.remove("id");
            assert_eq!(Value::Object(metadata), expected["metadata"], "{what}");
        }
        // Rows contain the ids of samples, and the references in addition to the prompt.
        let config = DataConfig { from: Some(at), task: Some(task), split: Some(split(&case["split"])) };
        let rows = load(&config, &LoadOptions::needing(Need::Prompt), &Interrupt::default()).expect("rows").rows;
        for (row, expected) in rows.iter().zip(expected) {
            assert_eq!(row.columns["id"], expected["id"], "{what}");
            assert_eq!(row.columns["references"], expected["references"], "{what}");
        }
    }
    assert_eq!(seen.len(), 12, "{seen:?}");
}

fn rows(yaml: &str, need: Need) -> Vec<Row> {
    let data: DataConfig = serde_saphyr::from_str(yaml).expect("a data source");
    load(&data, &LoadOptions::needing(need), &Interrupt::default()).expect("rows").rows
}

fn prompt(row: &Row) -> &str {
    match &row.data {
        RowData::Prompt(Content::Text(prompt)) | RowData::PromptCompletion { prompt: Content::Text(prompt), .. } => {
            prompt
        }
        other => panic!("{other:?}"),
    }
}

/// GEM's validation rows: one per set of concepts, with all sentences in addition to the one that RL4LMs uses.
#[test]
fn all_sentences_of_a_row_may_be_its_references() {
    let file = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a temporary file");
    let row =
        |all: Value| json!({ "concepts": ["dog", "run"], "target": "A dog runs.", "references": all }).to_string();
    let other = json!({ "concepts": ["cat"], "target": "A cat.", "references": [] }).to_string();
    let text = format!("{}\n{other}\n", row(json!(["A dog runs.", "Run, dog."])));
    std::fs::write(file.path(), text).expect("written");
    let of = |which: &str| {
        let at = file.path().display();
        let found = rows(&format!("{{ from: {at}, task: {{ commongen: {{ references: {which} }} }} }}"), Need::Prompt);
        found.iter().map(|row| row.columns["references"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("all"), [json!(["A dog runs.", "Run, dog."]), json!(["A cat."])]);
    assert_eq!(of("one"), [json!(["A dog runs."]), json!(["A cat."])]);
}

#[test]
fn tasks_without_files_repeat_one_prompt() {
    let found = rows("task: { increasing_numbers: { n_samples: 3 } }", Need::Prompt);
    assert_eq!(found.iter().map(prompt).collect::<Vec<_>>(), ["<|endoftext|>"; 3]);
    assert_eq!(found[2].columns["id"], 2);
    let found = rows("task: { dummy_pool: { prompt: 'Let us generate some numbers' } }", Need::Prompt);
    assert_eq!((found.len(), prompt(&found[99])), (100, "Let us generate some numbers"));
    let dates: DataConfig = serde_saphyr::from_str("task: { dates: {} }").expect("a data source");
    let error = load(&dates, &LoadOptions::needing(Need::Sft), &Interrupt::default())
        .expect_err("nothing to learn")
        .to_string();
    assert_eq!(error, "dates:1: the task has no references: there is nothing to train on");
}

/// A review is in the training split, the validation split or neither, but never in both, with any seed.
#[test]
fn splits_of_reviews_never_overlap() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |i: usize| format!("{}\n", json!({ "text": format!("a{i} b c d"), "label": i % 2 }));
    std::fs::write(folder.path().join("train.jsonl"), (0..50).map(line).collect::<String>()).expect("written");
    for seed in [1, 42] {
        let of = |split: &str| {
            let at = folder.path().display();
            rows(&format!("{{ from: {at}, split: {split}, task: {{ imdb_seq2seq: {{ seed: {seed} }} }} }}"), Need::Sft)
        };
        let (train, held_out) = (of("train"), of("validation"));
        assert_eq!(held_out.len(), 10);
        assert!(
            train.len() < 40
                && train.iter().all(|row| row.columns["reference"].as_str().is_some_and(|text| {
                    text[1..].split(' ').next().and_then(|word| word.parse::<usize>().ok()).is_some_and(|i| i % 2 == 1)
                }))
        );
        assert!(held_out.iter().all(|row| !train.iter().any(|other| prompt(other) == prompt(row))));
    }
}

#[test]
fn several_references_are_rows_to_learn_from_and_one_prompt_to_sample_from() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sets =
        "{\"concepts\": [\"dog\"], \"target\": \"A dog.\"}\n{\"concepts\": [\"dog\"], \"target\": \"The dog.\"}\n";
    std::fs::write(folder.path().join("train.jsonl"), sets).expect("written");
    let yaml = format!("{{ from: {}, task: {{ commongen: {{ references: all }} }} }}", folder.path().display());
    let prompts = rows(&yaml, Need::Prompt);
    assert_eq!((prompts.len(), &prompts[0].columns["references"]), (1, &json!(["A dog.", "The dog."])));
    let pairs = rows(&yaml, Need::Sft);
    let completion = |row: &Row| match &row.data {
        RowData::PromptCompletion { completion: Content::Text(text), .. } => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(pairs.iter().map(completion).collect::<Vec<_>>(), ["A dog.", "The dog."]);
}

#[test]
fn what_is_wrong_with_files_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path().display().to_string();
    let error = |task: &str, files: &[(&str, &str)]| {
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("written");
        }
        let data: DataConfig =
            serde_saphyr::from_str(&format!("{{ from: {at}, task: {task} }}")).expect("a data source");
        let error =
            load(&data, &LoadOptions::needing(Need::Prompt), &Interrupt::default()).expect_err("bad input").to_string();
        for (name, _) in files {
            std::fs::remove_file(folder.path().join(name)).expect("removed");
        }
        error.replace(&format!("{at}/"), "").replace(&at, ".")
    };
    assert_eq!(error("{ commongen: {} }", &[]), ".: no split `train` (found no splits)");
    assert_eq!(
        error("{ commongen: {} }", &[("train.jsonl", "{\"concepts\": [1], \"target\": \"\"}\n{\"a\": 1}\n")]),
        "train.jsonl:1: column `concepts` holds 1, expected texts\ntrain.jsonl:2: missing column `concepts`\n2 of 2 rows are bad"
    );
    let table = "{\"table\": [[{\"value\": \"a\"}]], \"highlighted_cells\": [[0, 3]]}\n";
    assert_eq!(
        error("{ totto: {} }", &[("train.jsonl", table)]),
        "train.jsonl:1: `highlighted_cells` holds [0,3], which is not a cell of the table"
    );
    assert_eq!(
        error("{ iwslt2017en_de: {} }", &[("train.en", "a\nb\n"), ("train.de", "c\n")]),
        "train.de: 1 lines, but `train.en` next to it has 2: the files must match line by line"
    );
    assert_eq!(
        error("{ narrative_qa: {} }", &[("train.tsv", "no tab\n")]),
        "train.tsv:1: expected a prompt, a TAB and an answer (found no TAB)"
    );
    assert_eq!(
        error("{ iwslt2017en_de: {} }", &[("train.jsonl", "{\"translation\": {\"en\": \"a\", \"fr\": \"b\"}}\n")]),
        "train.jsonl:1: `translation` has no sentence in `de` (found `fr`)"
    );
    assert_eq!(
        error("{ daily_dialog: {} }", &[("train.jsonl", "{\"dialog\": [\"a\"], \"act\": [], \"emotion\": [0]}\n")]),
        "train.jsonl:1: 1 utterances, but 1 emotions and 0 acts"
    );
    let nowhere: DataConfig = serde_saphyr::from_str("task: { narrative_qa: {} }").expect("a data source");
    let error = load(&nowhere, &LoadOptions::needing(Need::Prompt), &Interrupt::default()).expect_err("no files");
    assert_eq!(error.to_string(), "the task's files are not on a hub, and no path was given");
    assert!(error.hint().is_some_and(|hint| hint.contains("`dev.tsv`")));
}

#[test]
fn a_configuration_names_a_task_by_a_word_or_with_keys() {
    let data = |text: &str| RunConfig::parse(&format!("model: m\nmethod: {{ sft: {{}} }}\n{text}")).map(|it| it.config);
    let task = TaskConfig::named("commongen");
    assert_eq!(data("data: rows.jsonl").expect("rows").data, DataConfig::from("rows.jsonl"));
    assert_eq!(data("data: { task: commongen }").expect("a word").data.task, task);
    assert_eq!(data("data: { task: { commongen: } }").expect("a mapping").data.task, task);
    let config = data("data: { task: commongen, from: d }\neval_data: { split: test }").expect("fine");
    let held_out = DataConfig { from: Some("d".into()), task: task.clone(), split: Some(Split::Test) };
    assert_eq!(config.held_out(), Some(held_out));
    let config = data("data: { task: commongen }").expect("fine");
    assert_eq!(config.held_out(), Some(DataConfig { task, split: Some(Split::Validation), from: None }));
    assert_eq!(data("data: rows.jsonl").expect("rows").held_out(), None);

    let Err(gradus::Error::Config(found)) = data("data: { task: comongen }") else { panic!("refused") };
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].message, "`data.task` is the word `comongen`, but a known name or a mapping is needed");
    assert_eq!(found[0].hint.as_deref(), Some("did you mean `commongen`?"));
    let problem = |text: &str| data(text).expect_err("refused").to_string();
    let found = problem("data: { task: wmt16 }");
    assert!(found.contains("`data.task.wmt16.source_language` is missing"), "{found}");
    let found = problem("data: { task: { imdb: { sed: 1 } } }");
    assert!(found.contains("unknown key `sed` in `data.task.imdb`"), "{found}");
}

#[test]
fn methods_that_need_pairs_take_no_task() {
    let written = RunConfig::parse("model: m\ndata: { task: commongen }\nmethod: { dpo: {} }").expect("it reads");
    let error = Plan::check(&written, &Machine::detect()).expect_err("refused").to_string();
    assert!(error.contains("`data.task` has prompts and references, but `dpo` trains on pairs"), "{error}");
}

#[test]
fn real_files_are_read_as_they_are() {
    let check = |folder: &str, task: &str, split: &str, count: usize, first: &str, reference: Option<&str>| {
        let Some(path) = material(folder) else { return };
        let found = rows(&format!("{{ from: {}, split: {split}, task: {task} }}", path.display()), Need::Prompt);
        assert_eq!((found.len(), prompt(&found[0])), (count, first), "{folder} {split}");
        if let Some(reference) = reference {
            assert_eq!(found[0].columns["references"][0], reference, "{folder} {split}");
        }
    };
    let keys = "{ commongen: { prefix: 'generate a sentence with: ', concept_end_token: '.' } }";
    let field = Some("The player stood in the field looking at the batter.");
    check("commongen/lines", keys, "train", 39069, "generate a sentence with: chicken cheese pizza broccoli.", None);
    check("commongen/lines", keys, "validation", 4018, "generate a sentence with: field stand look.", field);
    check(
        "commongen/commongen.dev.jsonl",
        keys,
        "validation",
        4018,
        "generate a sentence with: field look stand.",
        field,
    );
    let all = "{ commongen: { references: all } }";
    check("commongen/commongen.dev.jsonl", all, "validation", 993, "summarize: field look stand ", field);
    let keys = "{ iwslt2017en_de: { prompt_prefix: 'translate English to German: ' } }";
    let dogs = "translate English to German: Two young, White males are outside near many bushes.";
    check("multi30k_de_en", keys, "train", 29000, dogs, None);
    check(
        "totto/train_sample.jsonl",
        "{ totto: {} }",
        "train",
        3,
        "<table> <cell> 15.3 <col_header> PPG </col_header> \
           </cell> </table><page_title> Tobias Harris </page_title> <section_title> College </section_title> <table> \
           <cell> 15.3 <col_header> PPG </col_header> </cell> </table>",
        Some("Tobias Harris scored 15.3 points per game."),
    );
    if let Some(path) = material("imdb/train.jsonl.gz") {
        // Some rows of this copy contain line ends in their texts.
        let lines = gradus::data::lines(&path).expect("opened").map(|line| line.expect("a line").1);
        let whole: Vec<String> =
            lines.filter(|line| serde_json::from_str::<Value>(line).is_ok_and(|row| row.is_object())).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("train.jsonl"), whole.join("\n")).expect("written");
        let train = (whole.len() as f64 * 0.8) as usize;
        assert!(whole.len() > 5000);
        for (split, count) in [("train", train), ("validation", whole.len() - train)] {
            let yaml = format!("{{ from: {}, split: {split}, task: {{ imdb: {{}} }} }}", folder.path().display());
            let found = rows(&yaml, Need::Prompt);
            assert_eq!(found.len(), count, "{split}");
            let whole =
                |row: &Row| row.columns["references"][0].as_str().is_some_and(|text| text.starts_with(prompt(row)));
            assert!(found.iter().all(whole), "{split}");
        }
    }
}

#[test]
fn toxic_prompts_are_split_as_quark_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |i: usize| {
        let side = |text: String, toxicity: Value| json!({ "text": text, "toxicity": toxicity, "threat": null });
        let (prompt, continuation) = (format!("The kettle {i}"), format!(" sings {i} times"));
        json!({
            "filename": format!("{}.txt", i / 2), "begin": 10 * i, "end": 10 * i + 9, "challenging": false,
            "prompt": side(prompt, json!(0.25)), "continuation": side(continuation, Value::Null),
        })
        .to_string()
            + "\n"
    };
    let write = |name: &str, rows: &[usize]| {
        let path = folder.path().join(name);
        std::fs::write(&path, rows.iter().map(|&i| line(i)).collect::<String>()).expect("written");
        path.to_string_lossy().into_owned()
    };
    let all = write("prompts.jsonl", &(0..20).collect::<Vec<_>>());
    let test = write("nontoxic_prompts-10k.jsonl", &[7, 3, 11]);
    let of = |split: &str| -> Vec<String> {
        let task = format!("{{ real_toxicity_prompts: {{ test: '{test}', validation_rows: 5 }} }}");
        let rows = rows(&format!("{{ from: '{all}', task: {task}, split: {split} }}"), Need::Prompt);
        let row = |row: &Row| {
            assert_eq!(
                (&row.columns["toxicity"], row.columns["continuation_scores"]["threat"].is_null()),
                (&json!(0.25), true)
            );
            let number = prompt(row).rsplit(' ').next().expect("a number").to_owned();
            assert_eq!(row.columns["references"], json!([format!(" sings {number} times")]));
            number
        };
        rows.iter().map(row).collect()
    };
    assert_eq!(of("test"), ["7", "3", "11"]);
    // python3 -c "import random; x = [i for i in range(20) if i not in (3, 7, 11)]; random.Random(42).shuffle(x); print(x)"
    let order = ["9", "13", "6", "8", "18", "17", "16", "12", "10", "1", "2", "15", "19", "5", "14", "0", "4"];
    assert_eq!(of("validation"), order[..5]);
    assert_eq!(of("train"), order[5..]);
    let alone: DataConfig =
        serde_saphyr::from_str(&format!("{{ from: '{all}', task: real_toxicity_prompts, split: test }}"))
            .expect("data");
    let error = load(&alone, &LoadOptions::needing(Need::Prompt), &Interrupt::default())
        .expect_err("no test split")
        .to_string();
    assert!(error.starts_with("the test split of `real_toxicity_prompts` is a separate file"), "{error}");
}

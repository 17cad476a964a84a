//! Bad input, with the exact message of each.

use gradus::data::{
    BadRows, LoadOptions, Need, Side, TokenizeOptions, TooLong, load, prompts, reward_examples, sft_examples,
};
use gradus::text::{ChatTemplate, Tokenizer};

use super::{Folder, gzip};

fn check(name: &str, content: impl AsRef<[u8]>, need: Need, expected: &str) {
    let found = Folder::new().error(name, content, &LoadOptions::needing(need));
    assert_eq!(found, expected);
}

#[test]
fn columns() {
    check(
        "a.jsonl",
        r#"{"prompt": "a", "response": "b"}"#,
        Need::Preference,
        "a.jsonl:1: missing column `chosen` (found `prompt`, `response`)",
    );
    check(
        "a.jsonl",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n{\"prompt\": \"a\", \"chosen\": \"b\"}\n",
        Need::Preference,
        "a.jsonl:2: missing column `rejected` (found `prompt`, `chosen`)",
    );
    check("a.jsonl", r#"{"prompt": "a"}"#, Need::Sft, "a.jsonl:1: missing column `completion` (found `prompt`)");
    check("a.jsonl", r#"{"body": "a"}"#, Need::Sft, "a.jsonl:1: missing column `text` (found `body`)");
    check("a.jsonl", r#"{"body": "a"}"#, Need::Any, "a.jsonl:1: no known form in the columns `body`");
    check(
        "a.jsonl",
        r#"{"prompt": "a", "completion": "b", "label": "yes"}"#,
        Need::Unpaired,
        "a.jsonl:1: column `label` is `\"yes\"`, expected `true` (a desirable completion) or `false`",
    );
    check("a.jsonl", "{}", Need::Prompt, "a.jsonl:1: missing column `prompt` (found nothing)");
    // A renamed column is named as in the file.
    let options = LoadOptions { rename: vec![("good".into(), "label".into())], ..LoadOptions::needing(Need::Unpaired) };
    let row = |label: &str| format!("{{\"prompt\": \"a\", \"completion\": \"b\", \"good\": {label}}}\n");
    let expected = "column `good` is `\"no\"`, expected `true` (a desirable completion) or `false`";
    let found = Folder::new().error("a.jsonl", row("\"no\""), &options);
    assert_eq!(found, format!("a.jsonl:1: {expected}"));
    let found = Folder::new().error("a.jsonl", row("true") + &row("\"no\""), &options);
    assert_eq!(found, format!("a.jsonl:2: {expected}"));
}

#[test]
fn images() {
    check(
        "a.jsonl",
        r#"{"messages": [{"role": "user", "content": "What is it?"}], "images": ["a.png"]}"#,
        Need::Prompt,
        "a.jsonl:1: the column `images` has images, but gradus reads only text; to train without them, rename the column: \
         `--column unused=images`",
    );
    // Rows without an image in a mixed data set, and images under another name.
    let folder = Folder::new();
    let mixed = folder.write("mixed.jsonl", "{\"text\": \"a\", \"image\": null}\n{\"text\": \"b\", \"images\": []}\n");
    assert_eq!(load(&mixed, &LoadOptions::needing(Need::Sft)).unwrap().rows.len(), 2);
    let named = folder.write("named.jsonl", "{\"text\": \"a\", \"image\": \"a.png\"}\n");
    let rename = vec![("image".into(), "unused".into())];
    let options = LoadOptions { rename, ..LoadOptions::needing(Need::Sft) };
    assert_eq!(load(&named, &options).unwrap().rows.len(), 1);
}

#[test]
fn types() {
    check("a.jsonl", r#"{"text": 3}"#, Need::Sft, "a.jsonl:1: column `text` is a number, expected a string");
    check(
        "a.jsonl",
        r#"{"prompt": "a", "completion": ["b"]}"#,
        Need::Sft,
        "a.jsonl:1: message 1 of `completion` is a string, expected an object with `role` and `content`",
    );
    check(
        "a.jsonl",
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "text": "b"}]}"#,
        Need::Sft,
        "a.jsonl:1: message 2 of `messages` has no `content` (found `role`, `text`)",
    );
    check(
        "a.jsonl",
        r#"{"messages": []}"#,
        Need::Sft,
        "a.jsonl:1: column `messages` is an empty list, expected messages",
    );
    check(
        "a.jsonl",
        r#"{"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]}"#,
        Need::Sft,
        "a.jsonl:1: column `prompt` is a string but `completion` is a list of messages",
    );
    check(
        "a.jsonl",
        r#"{"chosen": "a", "rejected": null}"#,
        Need::Preference,
        "a.jsonl:1: column `rejected` is null, expected a string or a list of messages",
    );
    check(
        "a.jsonl",
        r#"{"chosen": "a", "rejected": "b", "margin": "much"}"#,
        Need::Preference,
        "a.jsonl:1: column `margin` is not a finite number",
    );
    check(
        "a.jsonl",
        r#"{"input_ids": [1, 2, 3], "completion_mask": [0, 1]}"#,
        Need::Sft,
        "a.jsonl:1: column `completion_mask` has 2 entries but `input_ids` has 3",
    );
    check(
        "a.jsonl",
        r#"{"input_ids": [1, 2], "labels": [-100, 5]}"#,
        Need::Sft,
        "a.jsonl:1: column `labels` has 5 at position 1 where `input_ids` has 2; expected it or -100",
    );
    check(
        "a.jsonl",
        r#"{"input_ids": [1, -2]}"#,
        Need::Sft,
        "a.jsonl:1: column `input_ids` has `-2`, expected a list of token ids",
    );
}

#[test]
fn json() {
    check(
        "a.jsonl",
        "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n{\"text\": \"c\"}\n",
        Need::Any,
        "a.jsonl:3: not valid JSON: the row ends too early, at column 12",
    );
    check(
        "a.jsonl",
        "{\"text\": \"a\"}\n{\"text\" \"b\"}\n",
        Need::Any,
        "a.jsonl:2: not valid JSON: expected `:`, at column 9",
    );
    check(
        "a.jsonl",
        "{\"text\": \"a\"}\n[1]\n",
        Need::Any,
        "a.jsonl:2: a row is an object with named columns, found a list",
    );
    check("a.jsonl", b"{\"text\": \"a\xff\"}\n", Need::Any, "a.jsonl:1: not valid UTF-8 at byte 12 of the row");
    check(
        "a.json",
        "[\n  {\"text\": \"a\"},\n  {\"text\": }\n]\n",
        Need::Any,
        "a.json:3: not valid JSON: expected value, at column 10",
    );
    check(
        "a.json",
        "[{\"text\": \"a\"}, {\"text\": 1}]",
        Need::Any,
        "a.json:1: column `text` is a number, expected a string (row 2 of the array)",
    );
    check(
        "a.json",
        "[{\"text\": \"a\"},\n{\"text\": ",
        Need::Any,
        "a.json: not valid JSON on line 2: row 2 is not closed; it begins on line 2",
    );
    // As in JSON, and in Hugging Face's `datasets`.
    check(
        "a.json",
        "[{\"text\": \"a\"},\n{\"text\": \"b\"},\n]\n",
        Need::Any,
        "a.json: not valid JSON on line 3: no row between `,` and `]`",
    );
    check("a.json", "[{\"text\": \"a\"}\n", Need::Any, "a.json: not valid JSON on line 2: the array is not closed");
    check(
        "a.json",
        "[{\"text\": \"a\"}] x",
        Need::Any,
        "a.json: not valid JSON on line 1: text after the end of the array",
    );
}

#[test]
fn files() {
    let folder = Folder::new();
    let options = LoadOptions::default();
    assert_eq!(folder.error("empty.jsonl", "", &options), "empty.jsonl: no rows: the data set is empty");
    assert_eq!(folder.error("empty.json", "[]", &options), "empty.json: no rows: the data set is empty");
    assert_eq!(
        folder.error_of(&folder.path("none.jsonl").to_string_lossy(), &options),
        "none.jsonl: no such file or directory"
    );
    assert_eq!(folder.error("model.bin", "binary", &options), "model.bin: not a data file: it begins with `binary`");
    std::fs::create_dir(folder.path("nothing")).unwrap();
    assert_eq!(folder.error_of(&folder.path("nothing").to_string_lossy(), &options), "nothing: no data file in it");
    folder.write("saved/state.json", r#"{"_data_files": []}"#);
    assert_eq!(
        folder.error_of(&folder.path("saved").to_string_lossy(), &options),
        "saved: no rows: the data set is empty"
    );
    assert_eq!(
        folder.error_of(&folder.path("nothing:train[:10%]").to_string_lossy(), &options),
        "nothing:train[:10%]: names a slice of a split, but only whole splits can be read"
    );
}

#[test]
fn compressed_files() {
    let text: String = (0..2000).map(|i| format!("{{\"text\": \"row {i} {}\"}}\n", i * 7919 % 1009)).collect();
    let mut cut = gzip(text.as_bytes());
    cut.truncate(cut.len() / 2);
    let found = Folder::new().error("a.jsonl.gz", &cut, &LoadOptions::default());
    assert!(found.starts_with("a.jsonl.gz: the gzip data is cut off after line "), "{found}");

    let mut broken = gzip(text.as_bytes());
    let middle = broken.len() / 2;
    broken[middle..middle + 40].fill(0xff);
    let found = Folder::new().error("a.jsonl.gz", &broken, &LoadOptions::default());
    assert!(found.starts_with("a.jsonl.gz: the gzip data is corrupt "), "{found}");

    // Zeros after a member are padding, other bytes are not.
    let (mut padded, zeros) = (gzip(text.as_bytes()), [0u8; 100_000]);
    padded.extend(zeros);
    assert_eq!(Folder::new().load("a.jsonl.gz", &padded).rows.len(), 2000);
    padded.extend(gzip(b"{\"text\": \"another member\"}\n"));
    assert_eq!(Folder::new().load("a.jsonl.gz", &padded).rows.len(), 2001);
    padded.extend([0, 0, b'x']);
    let found = Folder::new().error("a.jsonl.gz", &padded, &LoadOptions::default());
    assert!(found.starts_with("a.jsonl.gz: the gzip data is "), "{found}");
    let mut header = gzip(text.as_bytes());
    header.extend(&gzip(b"x")[..5]);
    let found = Folder::new().error("a.jsonl.gz", &header, &LoadOptions::default());
    assert!(found.starts_with("a.jsonl.gz: the gzip data is cut off after line 2000"), "{found}");

    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0];
    let found = Folder::new().error("a.jsonl.zst", zstd, &LoadOptions::default());
    assert_eq!(found, "a.jsonl.zst: compressed with zstd, which gradus does not read");
    // A directory leaves no file out.
    let folder = Folder::new();
    std::fs::create_dir(folder.path("rows")).unwrap();
    std::fs::write(folder.path("rows/a.jsonlines"), "{\"text\": \"a\"}\n").unwrap();
    let rows = || load(&folder.path("rows").to_string_lossy(), &LoadOptions::default());
    assert_eq!(rows().unwrap().rows.len(), 1);
    std::fs::write(folder.path("rows/b.jsonl.bz2"), b"BZh91AY").unwrap();
    let found = rows().unwrap_err().to_string();
    assert!(found.ends_with("b.jsonl.bz2: compressed with bzip2, which gradus does not read"), "{found}");
}

#[test]
fn delimited_files() {
    check("a.csv", "prompt,completion\na,b\nc\n", Need::Any, "a.csv:3: 1 field, but the header has 2");
    check("a.csv", "text\na\n\"b\nc\nd\ne\n", Need::Any, "a.csv: the quote that opens a field on line 3 is not closed");
    check(
        "a.csv",
        "text\n\"a\nb\n\"c\" d\n",
        Need::Any,
        "a.csv:2: a quote opens a field on line 2; it is closed on line 4, and text follows it on that line",
    );
    check(
        "a.jsonl",
        "{\"text\": \"a\"}\n{\"text\": \"b\", \"id\": 1, \"text\": \"c\"}\n",
        Need::Any,
        "a.jsonl:2: the key `text` is given twice in one object, at column 29",
    );
    check(
        "a.json",
        "[{\"text\": \"a\",\n\"id\": 99999999999999999999}]",
        Need::Any,
        "a.json:2: the integer 99999999999999999999 does not fit into 64 bits; write it as text, at column 7 (row 1 of the array)",
    );
    check("a.csv", "text,text\na,b\n", Need::Any, "a.csv:1: two columns are named `text`");
    check("a.csv", "prompt\na\n", Need::Preference, "a.csv:2: missing column `chosen` (found `prompt`)");
}

#[test]
fn parquet_files() {
    check(
        "a.parquet",
        "PAR1 and no more",
        Need::Any,
        "a.parquet: not a valid Parquet file: Invalid Parquet file. Corrupt footer",
    );
}

#[test]
fn ten_bad_rows_are_shown_and_all_are_counted() {
    let rows: String = (0..30).map(|i| if i % 2 == 0 { "{\"text\": \"a\"}\n" } else { "{\"text\": 1}\n" }).collect();
    let folder = Folder::new();
    let found = folder.error("a.jsonl", &rows, &LoadOptions::default());
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 12, "{found}");
    assert_eq!(lines[9], "a.jsonl:20: column `text` is a number, expected a string");
    assert_eq!(lines[10..], ["… and 5 more", "15 of 30 rows are bad"]);

    let path = folder.path("a.jsonl");
    let dataset =
        load(&path.to_string_lossy(), &LoadOptions { bad_rows: BadRows::Skip, ..LoadOptions::default() }).unwrap();
    assert_eq!((dataset.rows.len(), dataset.bad.count(), dataset.bad.first().len()), (15, 15, 10));
}

#[test]
fn pairs_of_reward_models_are_cut_where_that_is_asked_for() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders/longformer");
    let folder = Folder::new();
    let pair = |prompt: &str, chosen: &str, rejected: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"{chosen}\", \"rejected\": \"{rejected}\"}}\n")
    };
    let rows = pair("the", " tea", " kettle")
        + &pair("the", " tea is", " kettle is it is")
        + &pair("the is it is it", " tea", " cup");
    let rows = folder.load("pairs.jsonl", rows).rows;
    let tokenizer = Tokenizer::from_dir(&directory).unwrap();
    let (all, most) = (TokenizeOptions { max_length: None, ..TokenizeOptions::default() }, 6);
    let whole = reward_examples(&rows, &tokenizer, None, &all).unwrap().examples;
    let lengths: Vec<_> = whole.iter().map(|pair| (pair.chosen_ids.len(), pair.rejected_ids.len())).collect();
    assert!(lengths[0].0 <= most && lengths[0].1 <= most && lengths[1].0 <= most && lengths[1].1 > most, "{lengths:?}");
    let options = |too_long| TokenizeOptions { max_length: Some(most), too_long, ..TokenizeOptions::default() };
    let skipped = reward_examples(&rows, &tokenizer, None, &options(TooLong::Skip)).unwrap();
    assert_eq!((skipped.examples.len(), skipped.counts.skipped), (1, 2));
    // As in transformers, the end-of-sequence token stays. The third pair has lost the difference between its answers.
    let cut = reward_examples(&rows, &tokenizer, None, &options(TooLong::Truncate)).unwrap();
    assert_eq!((cut.examples.len(), cut.counts.cut, cut.counts.without_loss), (2, 1, 1));
    let rejected =
        tokenizer.encode_joined("the kettle is it is", None, Some(gradus::text::Cut::Right(most))).unwrap().ids;
    assert_eq!((&cut.examples[1].chosen_ids, &cut.examples[1].rejected_ids), (&whole[1].chosen_ids, &rejected));
    assert_eq!(cut.examples[0], whole[0]);
    // At the left, as with `truncation_side: left` in transformers: special tokens and the answer stay.
    let left = TokenizeOptions { pair_cut: Side::Left, ..options(TooLong::Truncate) };
    let cut = reward_examples(&rows, &tokenizer, None, &left).unwrap();
    assert_eq!((cut.examples.len(), cut.counts.cut, cut.counts.without_loss), (3, 2, 0));
    let ids = |text: &str| tokenizer.encode_joined(text, None, Some(gradus::text::Cut::Left(most))).unwrap().ids;
    assert_eq!(
        (&cut.examples[1].chosen_ids, &cut.examples[1].rejected_ids),
        (&whole[1].chosen_ids, &ids("the kettle is it is"))
    );
    assert_eq!(
        (&cut.examples[2].chosen_ids, &cut.examples[2].rejected_ids),
        (&ids("the is it is it tea"), &ids("the is it is it cup"))
    );
}

#[test]
fn columns_of_chat_templates_are_checked() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/rows/tokenizer");
    let tokenizer = Tokenizer::from_dir(&directory).unwrap();
    let template = ChatTemplate::from_source("{{ messages[0].content }}{{ mark }}", "a.jinja", &tokenizer).unwrap();
    let folder = Folder::new();
    let made = |variables: &str| {
        let row = format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"The cat\"}}, {{\"role\": \"assistant\", \"content\": \"sat\"}}], \
             \"chat_template_kwargs\": {variables}}}\n"
        );
        let rows = folder.load("a.jsonl", row).rows;
        let options = TokenizeOptions::default();
        sft_examples(&rows, &tokenizer, Some(&template), &options).map(|made| made.examples).map_err(|e| e.to_string())
    };
    let object = made("{\"mark\": \"bcd\"}").unwrap();
    assert_ne!(object, made("null").unwrap());
    assert_eq!(object, made("\"{\\\"mark\\\": \\\"bcd\\\"}\"").unwrap());
    for (variables, expected) in [
        ("{\"messages\": []}", "a.jsonl:1: `chat_template_kwargs` sets `messages`, which gradus sets itself"),
        ("5", "a.jsonl:1: column `chat_template_kwargs` holds a number, expected an object"),
    ] {
        let found = made(variables).unwrap_err();
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn rows_that_are_all_too_long() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/rows/tokenizer");
    let tokenizer = Tokenizer::from_dir(&directory).unwrap();
    let folder = Folder::new();
    let message = |error: gradus::Error| error.to_string().rsplit('/').next().unwrap_or_default().to_owned();
    let options =
        |max_length, too_long| TokenizeOptions { max_length: Some(max_length), too_long, ..TokenizeOptions::default() };

    let rows = folder.load("sft.jsonl", "{\"prompt\": \"The cat sat on\", \"completion\": \" the stone.\"}\n").rows;
    let found = sft_examples(&rows, &tokenizer, None, &options(6, TooLong::Skip)).unwrap_err();
    assert_eq!(message(found), "sft.jsonl: the only row is longer than 6 tokens (`max_length`); the shortest has 14");
    let found = sft_examples(&rows, &tokenizer, None, &options(6, TooLong::Truncate)).unwrap_err();
    assert_eq!(message(found), "sft.jsonl: the only row is longer than 6 tokens (`max_length`); the shortest has 14");

    let rows =
        folder.load("pairs.jsonl", "{\"prompt\": \"The cat sat\", \"chosen\": \" on\", \"rejected\": \" up\"}\n").rows;
    let found = reward_examples(&rows, &tokenizer, None, &options(4, TooLong::Skip)).unwrap_err();
    assert_eq!(message(found), "pairs.jsonl: the only row is longer than 4 tokens (`max_length`); the shortest has 9");

    // A prompt has no loss. Its limit follows from `max_new_tokens`.
    let rows = folder.load("asked.jsonl", "{\"prompt\": \"The cat sat\"}\n").rows;
    let found = prompts(&rows, &tokenizer, None, &options(3, TooLong::Truncate)).unwrap_err();
    assert!(found.hint().is_some_and(|hint| hint.starts_with("lower `max_new_tokens`")), "{:?}", found.hint());
    let found = message(found);
    let expected =
        "the only row is longer than 2 tokens (`max_length`, or the model's positions, less `max_new_tokens`)";
    assert!(found.starts_with(&format!("asked.jsonl: {expected}; the shortest has ")), "{found}");

    let rows = folder.load("talk.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n").rows;
    let found = prompts(&rows, &tokenizer, None, &TokenizeOptions::default()).unwrap_err();
    assert_eq!(message(found), "talk.jsonl:1: conversations need a chat template, and the model has none");
}

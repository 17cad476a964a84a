//! Rows for a model with an encoder: source and target, tokenized separately.

use std::path::Path;

use gradus::data::{
    Counts, LoadOptions, SftExample, TokenizeOptions, TooLong, load, preference_examples, prompts, reward_examples,
    sft_examples,
};
use gradus::text::Tokenizer;

use super::Folder;

/// A word tokenizer that ends each text with `</s>`: the = 3, a = 4, sun = 5, moon = 6; `</s>` = 1.
fn tokenizer() -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/t5");
    Tokenizer::from_dir(&folder).expect("a fixture")
}

fn options(most: usize, too_long: TooLong) -> TokenizeOptions {
    TokenizeOptions { max_length: Some(most), too_long, encoder_reads_prompt: true, ..TokenizeOptions::default() }
}

fn made(rows: &str, options: &TokenizeOptions) -> Result<(Vec<SftExample>, Counts), String> {
    let folder = Folder::new();
    let rows = folder.load("rows.jsonl", rows).rows;
    let made = sft_examples(&rows, &tokenizer(), None, options).map_err(|error| error.to_string())?;
    Ok((made.examples, made.counts))
}

/// Returns the source, the target, and whether exactly the target carries loss.
fn parts(example: &SftExample) -> (&[u32], &[u32], bool) {
    let (source, target) = example.ids.split_at(example.source_len);
    (source, target, example.loss_mask.iter().enumerate().all(|(i, counts)| *counts == (i >= source.len())))
}

#[test]
fn source_and_target_end_each() {
    let rows = "{\"prompt\": \"the sun\", \"completion\": \"a moon\"}\n{\"input_ids\": [3, 5], \"labels\": [6, 1, -100]}\n\
                {\"input_ids\": [3, 5], \"labels\": [3, 5]}\n{\"input_ids\": [3, 1, 6, 1], \"completion_mask\": [0, 0, 1, 1]}\n\
                {\"prompt\": \"the\", \"chosen\": \"sun\", \"rejected\": \"moon\"}\n";
    let found: Vec<(Vec<u32>, Vec<u32>)> = rows
        .lines()
        .map(|row| {
            let (examples, counts) = made(row, &options(9, TooLong::Truncate)).expect("made");
            assert_eq!(counts.without_end, usize::from(row.contains("[3, 5], \"labels\": [3")), "{row}");
            let (source, target, is_learned) = parts(&examples[0]);
            assert!(is_learned, "{row}");
            (source.to_vec(), target.to_vec())
        })
        .collect();
    let expected: [(&[u32], &[u32]); 5] =
        [(&[3, 5, 1], &[4, 6, 1]), (&[3, 5], &[6, 1]), (&[3, 5], &[3, 5]), (&[3, 1], &[6, 1]), (&[3, 1], &[5, 1])];
    for ((source, target), expected) in found.iter().zip(expected) {
        assert_eq!((&source[..], &target[..]), expected);
    }
}

#[test]
fn a_row_without_loss_says_whether_it_was_cut() {
    let rows = "{\"input_ids\": [3, 5], \"completion_mask\": [0, 1]}\n{\"input_ids\": [3, 5], \"completion_mask\": [0, 0]}\n\
                {\"input_ids\": [3, 5, 4], \"completion_mask\": [0, 0, 1]}\n";
    let (_, counts) = made(rows, &TokenizeOptions { max_length: Some(2), ..TokenizeOptions::default() }).expect("made");
    assert_eq!((counts.kept, counts.without_labels, counts.without_loss), (1, 1, 1));
}

#[test]
fn each_is_cut_alone_and_a_source_keeps_its_end() {
    let long = "{\"prompt\": \"the sun the sun\", \"completion\": \"a moon\"}\n";
    let (examples, counts) = made(long, &options(3, TooLong::Truncate)).expect("made");
    assert_eq!(parts(&examples[0]), (&[3, 5, 1][..], &[4, 6, 1][..], true));
    assert_eq!((counts.sources_cut, counts.truncated, counts.skipped), (1, 0, 0));
    let (examples, counts) = made(long, &options(2, TooLong::Truncate)).expect("made");
    assert_eq!(parts(&examples[0]), (&[3, 1][..], &[4, 6][..], true));
    assert_eq!((counts.sources_cut, counts.truncated), (0, 1));
    let both = format!("{long}{{\"prompt\": \"the\", \"completion\": \"a\"}}\n");
    let (examples, counts) = made(&both, &options(3, TooLong::Skip)).expect("made");
    assert_eq!((examples.len(), counts.skipped), (1, 1));
}

/// As in `transformers`, cutting labels keeps the end token.
#[test]
fn a_target_may_be_cut_before_its_end() {
    let rows = "{\"prompt\": \"the sun the sun\", \"completion\": \"a moon the sun\"}\n\
                {\"prompt\": \"the\", \"completion\": \"a moon\"}\n";
    let options = TokenizeOptions { target_cut: Some(3), ..options(9, TooLong::Skip) };
    let (examples, counts) = made(rows, &options).expect("made");
    assert_eq!(parts(&examples[0]), (&[3, 5, 3, 5, 1][..], &[4, 6, 1][..], true));
    assert_eq!(parts(&examples[1]), (&[3, 1][..], &[4, 6, 1][..], true));
    assert_eq!((counts.targets_cut, counts.kept, counts.skipped, counts.truncated), (1, 2, 0, 0));
    assert_eq!(counts.remarks(), ["1 of 2 rows have a target that was cut before its end-of-text token"]);
    // Ids without an end token have none to keep.
    let (examples, _) = made("{\"input_ids\": [3, 5], \"labels\": [3, 4, 5, 6]}\n", &options).expect("made");
    assert_eq!(parts(&examples[0]), (&[3, 5][..], &[3, 4, 5][..], true));
}

#[test]
fn pairs_and_prompts_have_sources_too() {
    let folder = Folder::new();
    let rows =
        folder.load("rows.jsonl", "{\"prompt\": \"the sun\", \"chosen\": \"a moon\", \"rejected\": \"the\"}\n").rows;
    let (tokenizer, options) = (tokenizer(), options(9, TooLong::Truncate));
    for pair in [
        preference_examples(&rows, &tokenizer, None, &options).expect("made").examples.remove(0),
        reward_examples(&rows, &tokenizer, None, &options).expect("made").examples.remove(0),
    ] {
        assert_eq!((&pair.chosen_ids[..], &pair.rejected_ids[..]), (&[3, 5, 1, 4, 6, 1][..], &[3, 5, 1, 3, 1][..]));
        assert!(pair.prompt_len == 3 && pair.encoder_reads_prompt && pair.longest_part() == 3);
    }
    let short = TokenizeOptions { max_length: Some(2), ..options.clone() };
    let cut = preference_examples(&rows, &tokenizer, None, &short).expect("made").examples.remove(0);
    assert_eq!((&cut.chosen_ids[..], &cut.rejected_ids[..], cut.prompt_len), (&[3, 1, 4, 6][..], &[3, 1, 3, 1][..], 2));
    let prompt = prompts(&rows, &tokenizer, None, &options).expect("made").examples.remove(0);
    assert_eq!((&prompt.ids[..], prompt.continued()), (&[3, 5, 1][..], &[][..]));
    let whole = prompts(&rows, &tokenizer, None, &TokenizeOptions::default()).expect("made").examples.remove(0);
    assert_eq!(whole.continued(), [3, 5]);
}

#[test]
fn what_has_no_source_or_no_target_is_refused() {
    let error = |row: &str| made(row, &options(9, TooLong::Truncate)).expect_err("refused");
    for row in ["{\"text\": \"the sun\"}\n", "{\"input_ids\": [3, 5]}\n", "{\"input_ids\": [3], \"labels\": [3]}\n"] {
        let is_target = row.contains("labels");
        let found = made(row, &options(9, TooLong::Truncate));
        assert_eq!(found.is_ok(), is_target, "{row}");
        assert!(is_target || error(row).contains("the row has no source"), "{}", error(row));
    }
    assert!(error("{\"input_ids\": [3], \"labels\": [-100]}\n").contains("its target is empty"));
    assert!(error("{\"prompt\": \"\", \"completion\": \"a\"}\n").contains("the prompt is empty"));
    // Without an encoder, labels must be a mask; others are rejected.
    let folder = Folder::new();
    let path = folder.write("rows.jsonl", "{\"input_ids\": [3, 5], \"labels\": [6, 1]}\n");
    let rows = load(&path, &LoadOptions::default()).expect("rows").rows;
    let error = sft_examples(&rows, &tokenizer(), None, &TokenizeOptions::default()).expect_err("refused").to_string();
    assert!(error.contains("column `labels` has 6 at position 0 where `input_ids` has 3"), "{error}");
}

//! Findings of the linter.

use gradus::data::{FindingKind, TokenizeOptions, lint};
use gradus::text::Tokenizer;

use super::Folder;

fn found(content: &str, options: &TokenizeOptions) -> Vec<(FindingKind, usize, String)> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/rows/tokenizer");
    let tokenizer = Tokenizer::from_dir(&directory).expect("a tokenizer");
    let folder = Folder::new();
    let rows = folder.load("a.jsonl", content).rows;
    let groups = lint(&rows, Some(&tokenizer), None, options);
    for group in &groups {
        assert_eq!(group.count, group.first.len(), "small inputs show everything");
    }
    let all = groups.into_iter().flat_map(|group| group.first);
    let root = format!("{}/", folder.path("").display()).replace("//", "/");
    all.map(|finding| (finding.kind, finding.location.line, finding.message.replace(&root, ""))).collect()
}

fn check(content: &str, expected: &[(FindingKind, usize, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(kind, line, text)| (*kind, *line, (*text).to_owned())).collect();
    assert_eq!(found(content, &TokenizeOptions::default()), expected);
}

#[test]
fn good_rows_give_nothing() {
    check("{\"prompt\": \"Tea?\", \"chosen\": \" Yes.\", \"rejected\": \" No.\"}\n", &[]);
    check(
        "{\"chosen\": \"\\n\\nHuman: Tea?\\n\\nAssistant: Yes.\", \"rejected\": \"\\n\\nHuman: Tea?\\n\\nAssistant: No.\"}\n",
        &[],
    );
}

#[test]
fn pairs() {
    use FindingKind::*;
    check(
        concat!(
            "{\"prompt\": \"Tea?\", \"chosen\": \" Yes.\", \"rejected\": \" Yes.\"}\n",
            "{\"prompt\": \"Tea?\", \"chosen\": \"Tea? Yes.\", \"rejected\": \" No.\"}\n",
            "{\"prompt\": \"Tea?\", \"chosen\": \" Yes.\", \"rejected\": \"\"}\n",
            "{\"prompt\": \"Tea?\", \"chosen\": \" Yes.\\n\\nHuman: Ah\", \"rejected\": \" No.\"}\n",
            "{\"prompt\": \"Tea?\", \"chosen\": \" Yes.\", \"rejected\": \"\"}\n",
        ),
        &[
            (EmptyTurn, 3, "`rejected` is empty"),
            (EmptyTurn, 5, "`rejected` is empty"),
            (IdenticalPair, 1, "`chosen` and `rejected` are the same"),
            (RepeatsPrompt, 2, "`chosen` begins with the whole prompt"),
            (DuplicateRow, 5, "the same as a.jsonl:3"),
            (ForeignTurn, 4, "`chosen` continues with `\\n\\nHuman:` after the answer"),
        ],
    );
}

/// Columns are read by rewards, classifiers and chat templates, so they belong to the row.
#[test]
fn a_duplicate_has_the_same_columns() {
    use FindingKind::*;
    check(
        concat!(
            "{\"prompt\": \"Tea?\", \"completion\": \" Yes.\", \"answer\": \"x\"}\n",
            "{\"prompt\": \"Tea?\", \"completion\": \" Yes.\", \"answer\": \"y\", \"id\": 2}\n",
            "{\"answer\": \"x\", \"prompt\": \"Tea?\", \"completion\": \" Yes.\"}\n",
            "{\"prompt\": \"Milk?\", \"completion\": \" Yes.\", \"answer\": \"x\"}\n",
        ),
        &[
            (DuplicateRow, 3, "the same as a.jsonl:1"),
            (SameContent, 2, "the same content as a.jsonl:1, with a difference in `answer`, `id`"),
        ],
    );
    assert!(SameContent.is_remark() && !DuplicateRow.is_remark());
}

/// Later rows with a wrong label are bad rows. In the first row, it makes the file one without labels.
#[test]
fn labels_of_completions() {
    let row = |prompt: &str, label: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"completion\": \" Yes.\", \"label\": {label}}}\n")
    };
    let message = "column `label` is `2`, expected `true` (a desirable completion) or `false`";
    check(
        &[row("Tea?", "2"), row("Milk?", "1"), row("Cup?", "false"), row("Pot?", "\"good\"")].concat(),
        &[
            (FindingKind::Labels, 1, message),
            (
                FindingKind::Labels,
                4,
                "column `label` is `\"good\"`, expected `true` (a desirable completion) or `false`",
            ),
        ],
    );
    // Without a boolean label in any row, the column is for rewards.
    check(&[row("Tea?", "2"), row("Milk?", "3")].concat(), &[]);
    let content = [row("Tea?", "1"), row("Milk?", "2")].concat();
    let error = Folder::new().error("a.jsonl", content, &gradus::data::LoadOptions::default());
    assert!(error.starts_with(&format!("a.jsonl:2: {message}")), "{error}");
}

#[test]
fn transcripts() {
    let row = |chosen: &str, rejected: &str| serde_json::json!({"chosen": chosen, "rejected": rejected}).to_string();
    let content = [
        row("\n\nHuman: Tea?\n\nAssistant: I am", "\n\nHuman: Tea?\n\nAssistant: I was"),
        row("\n\nHuman:\n\nAssistant: Yes", "\n\nHuman:\n\nAssistant: No"),
    ]
    .join("\n");
    check(
        &content,
        &[
            (FindingKind::EmptyTurn, 2, "turn 1 of `chosen` is empty"),
            (FindingKind::AmbiguousPrompt, 1, "TRL's rule moves ` I` from the answers to the prompt"),
        ],
    );
}

#[test]
fn roles() {
    let row = |roles: &[&str]| {
        let messages: Vec<_> = roles.iter().map(|r| serde_json::json!({"role": r, "content": "a"})).collect();
        serde_json::json!({"messages": messages}).to_string()
    };
    let content = [
        row(&["system", "user", "assistant"]),
        row(&["user", "user", "assistant"]),
        row(&["user", "robot"]),
        row(&["user"]),
        row(&["user", "assistant", "tool", "assistant"]),
    ]
    .join("\n");
    let found: Vec<_> = found(&content, &TokenizeOptions::default())
        .into_iter()
        .filter(|(kind, ..)| *kind == FindingKind::WrongRoles)
        .map(|(_, line, message)| (line, message))
        .collect();
    let expected = [
        (2, "message 2 is `user` after `user`"),
        (3, "message 2 has the unknown role `robot`"),
        (4, "the last message is `user`, not `assistant`"),
    ];
    assert_eq!(found, expected.map(|(line, message)| (line, message.to_owned())));
}

#[test]
fn lengths_and_stop_tokens() {
    let content = "{\"text\": \"The cat sat on the warm stone.\"}\n{\"input_ids\": [5, 6], \"text\": \"Tea?\"}\n";
    let options = TokenizeOptions { max_length: Some(6), ..TokenizeOptions::default() };
    let expected = [
        (FindingKind::TooLong, 1, "17 tokens, limit 6".to_owned()),
        (FindingKind::NoStopToken, 1, "the cut removes the end".to_owned()),
    ];
    assert_eq!(found(content, &options), expected);
    let ids = "{\"input_ids\": [282, 268, 276], \"completion_mask\": [0, 1, 1]}\n";
    let expected = [(FindingKind::NoStopToken, 1, "no end-of-text token carries loss".to_owned())];
    assert_eq!(found(ids, &TokenizeOptions::default()), expected);
}

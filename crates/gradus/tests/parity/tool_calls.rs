//! Tool calls in chat templates compared to transformers and TRL: rendered calls, parsed calls, and appended answers
//! (`tools/parity/tool_calls.py`).

use std::path::{Path, PathBuf};

use gradus::rollout::{Dialogue, Prompt, StopReason};
use gradus::text::{ChatTemplate, RenderOptions, Tokenizer};
use gradus_environments::{Call, CallFormat, ParsedTurn, Reply, Turn};
use serde_json::{Map, Value, json};

use crate::fixture::{flat, folder, list, read, text};

/// The templates of a folder, and the outputs of transformers and TRL for them.
struct Cases {
    folder: PathBuf,
    fixture: Value,
    tokenizer: Tokenizer,
}

impl Cases {
    fn open(folder: &Path) -> Self {
        let file = folder.join("cases.json");
        let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let tokenizer = Tokenizer::from_dir(&folder.join("tokenizer")).expect("a tokenizer");
        Self { folder: folder.to_owned(), fixture: serde_json::from_slice(&bytes).expect("JSON"), tokenizer }
    }

    fn path(&self, template: &str) -> PathBuf {
        match self.fixture["elsewhere"][template].as_str() {
            Some(path) => Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path),
            None => self.folder.join(format!("{template}.jinja")),
        }
    }

    fn dialogue(&self, name: &str) -> Dialogue {
        let mark = text(&self.fixture["templates"][name]["mark"]);
        let mark_ids = self.tokenizer.encode(mark, false).expect("ids");
        Dialogue {
            tokenizer: self.tokenizer.clone(),
            template: Some(ChatTemplate::from_file(&self.path(name), &self.tokenizer).expect("a template")),
            tools: list(&self.fixture["tools"]).to_vec(),
            // A mark of several tokens does not end a turn.
            stop_ids: if mark_ids.len() == 1 { mark_ids } else { vec![2] },
            read_calls: None,
        }
    }

    fn form(&self, name: &str) -> Option<CallFormat> {
        serde_json::from_value(self.fixture["templates"][name]["form"].clone()).expect("a form")
    }

    /// Returns the differences from the other implementations.
    fn differences(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let (mut name, mut dialogue) = ("", None);
        for case in list(&self.fixture["cases"]) {
            if name != text(&case["template"]) {
                name = text(&case["template"]);
                dialogue = Some(self.dialogue(name));
                let found = dialogue.as_ref().expect("just made").call_format();
                if found.as_ref().ok() != self.form(name).as_ref() {
                    wrong.push(format!("{name}: {found:?} instead of {:?}", self.form(name)));
                }
                if let (Some(_), Err(error)) = (self.form(name), dialogue.as_ref().expect("just made").check_tools()) {
                    wrong.push(format!("{name}: {error}"));
                }
            }
            let at = format!("{name} / {}", text(&case["conversation"]));
            let messages = list(&self.fixture["conversations"][text(&case["conversation"])]);
            let dialogue = dialogue.as_ref().expect("just made");
            for (key, add_generation_prompt) in [("plain", false), ("with_generation_prompt", true)] {
                let Some(expected) = case.get(key) else { continue };
                let tools = Some(dialogue.tools.as_slice());
                let options = RenderOptions { tools, add_generation_prompt, ..RenderOptions::default() };
                let template = dialogue.template.as_ref().expect("a template");
                match (template.render(messages, &options), expected["text"].as_str()) {
                    (Ok(found), Some(expected_text)) if found.text == expected_text => {}
                    (Err(_), None) => {}
                    (found, expected_text) => wrong.push(format!("{at}, {key}:\n  {found:?}\n  {expected_text:?}")),
                }
            }
            if let Some(expected) = case.get("ids") {
                let found = self.tokenizer.encode(text(&case["plain"]["text"]), false).expect("ids");
                if found != ids(expected) {
                    wrong.push(format!("{at}: ids {found:?}"));
                }
            }
            let Some(form) = self.form(name) else { continue };
            for turn in case["turns"].as_array().into_iter().flatten() {
                let at = format!("{at}, turn {}", turn["message"]);
                wrong.extend(
                    self.turn((dialogue, form), turn, messages).into_iter().map(|what| format!("{at}: {what}")),
                );
            }
            // A turn with more calls than the template writes: TRL renders the first.
            if let Some(expected) = case.get("suffix").filter(|suffix| suffix.is_array()) {
                let calls = list(&messages[1]["tool_calls"]).iter().map(|call| called(call, false)).collect();
                let answers: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").collect();
                let found = answered(dialogue, calls, &answers, false);
                if found.as_ref().ok() != Some(&ids(expected)) {
                    wrong.push(format!("{at}: {found:?} instead of {expected}"));
                }
            }
        }
        wrong
    }

    /// Compares the parsed calls of a turn and the text appended after it.
    fn turn(&self, (dialogue, form): (&Dialogue, CallFormat), turn: &Value, messages: &[Value]) -> Vec<String> {
        let mut wrong = Vec::new();
        let i = turn["message"].as_u64().expect("a number") as usize;
        let ParsedTurn { answer, calls, .. } = form.read_for(text(&turn["text"]), false, &dialogue.tools);
        let has_ids = form == CallFormat::Mistral && text(&turn["text"]).contains("call0abcd");
        let expected_calls: Vec<Call> =
            list(&messages[i]["tool_calls"]).iter().map(|call| called(call, has_ids)).collect();
        // Some templates leave calls out.
        let has_call_text = text(&turn["text"]).contains(['{', '=']);
        if has_call_text && calls != expected_calls {
            wrong.push(format!("{calls:?} instead of {expected_calls:?}"));
        }
        if let Some(read) = turn["read"].as_object().filter(|read| !read.contains_key("error")) {
            if answer != text(&read["content"]) {
                wrong.push(format!("{answer:?} instead of {}", read["content"]));
            }
            wrong.extend(compare(&calls, list(&read["calls"])));
        }
        let answers: Vec<&Value> =
            messages[i + 1..].iter().take(turn["answers"].as_u64().expect("a number") as usize).collect();
        if !answers.is_empty() && turn["suffix"].is_array() {
            let found = answered(dialogue, expected_calls.clone(), &answers, has_ids);
            if found.as_ref().ok() != Some(&ids(&turn["suffix"])) {
                let says = |ids: &[u32]| self.tokenizer.decode(ids, false).expect("decoded");
                let found = found.map(|ids| says(&ids));
                wrong.push(format!("answered {found:?} instead of {:?}", says(&ids(&turn["suffix"]))));
            }
            // A policy can omit the ids of its calls, or write others.
            let nameless = expected_calls.into_iter().map(|call| Call { id: None, ..call }).collect();
            match answered(dialogue, nameless, &answers, false) {
                Ok(found) => {
                    let decoded = self.tokenizer.decode(&found, false).expect("decoded");
                    let shown = |answer: &&Value| {
                        text(&answer["content"]).split(['"', '\n', '\\']).all(|part| decoded.contains(part))
                    };
                    if !answers.iter().all(|answer| shown(answer) || !text(&answer["content"]).is_ascii()) {
                        wrong.push(format!("without ids, the answer is {decoded:?}"));
                    }
                }
                Err(error) => wrong.push(format!("without ids: {error}")),
            }
        }
        wrong
    }
}

fn ids(value: &Value) -> Vec<u32> {
    flat(value).into_iter().map(|id| id as u32).collect()
}

fn called(call: &Value, has_id: bool) -> Call {
    let function = &call["function"];
    Call {
        id: call["id"].as_str().filter(|_| has_id).map(str::to_owned),
        name: text(&function["name"]).to_owned(),
        arguments: Ok(function["arguments"].as_object().cloned().expect("an object")),
    }
}

fn answered(dialogue: &Dialogue, calls: Vec<Call>, answers: &[&Value], has_ids: bool) -> gradus::Result<Vec<u32>> {
    let reply = |answer: &&Value| Reply::Tool {
        name: text(&answer["name"]).to_owned(),
        id: answer["tool_call_id"].as_str().filter(|_| has_ids).map(str::to_owned),
        content: text(&answer["content"]).to_owned(),
    };
    let replies: Vec<Reply> = answers.iter().map(reply).collect();
    let prompt = Prompt {
        row: 0,
        text: String::new(),
        ids: Vec::new(),
        encoder_reads_prompt: false,
        messages: Some(Vec::new()),
        columns: Map::new(),
    };
    dialogue.answer(&prompt, &Turn { calls, ..Turn::default() }, StopReason::StopId, &replies)
}

/// Compares calls to those that transformers parses.
fn compare(found: &[Call], expected: &[Value]) -> Option<String> {
    let plain = |call: &Call| json!([call.name, call.arguments.clone().ok()]);
    let found: Vec<Value> = found.iter().map(plain).collect();
    // TRL treats missing arguments as none.
    let arguments = |call: &Value| call.get("arguments").filter(|given| !given.is_null()).cloned().unwrap_or(json!({}));
    let expected: Vec<Value> = expected.iter().map(|call| json!([call["name"], arguments(call)])).collect();
    (found != expected).then(|| format!("read {found:?}, but transformers {expected:?}"))
}

#[test]
fn templates_write_calls_and_answers_as_in_transformers_and_trl() {
    let cases = Cases::open(&folder().join("tool_calls"));
    let wrong = cases.differences();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn real_templates_write_calls_and_answers_as_in_transformers_and_trl() {
    let Some(folder) = std::env::var_os("GRADUS_CHAT_TEMPLATES") else {
        return crate::support::skipped("chat-templates", "GRADUS_CHAT_TEMPLATES names no folder");
    };
    let wrong = Cases::open(Path::new(&folder)).differences();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Calls that transformers parses are the same here. If transformers fails, TRL treats the turn as text without calls;
/// gradus reports the mistake in the call to the policy.
#[test]
fn turns_are_read_as_in_transformers() {
    let (fixture, cases) = (read("tool_calls/texts.json"), read("tool_calls/cases.json"));
    let tools = list(&cases["tools"]);
    let forms = [CallFormat::Hermes, CallFormat::Qwen3Coder, CallFormat::Llama3];
    for (form, key) in forms.into_iter().zip(["hermes", "qwen3_coder", "llama3"]) {
        for case in list(&fixture[key]) {
            let (turn_text, expected) = (text(&case["text"]), &case["read"]);
            let ParsedTurn { answer, calls, .. } = form.read_for(turn_text, false, tools);
            let is_sound = |call: &Value| call["name"].is_string();
            if expected.get("error").is_none() && list(&expected["calls"]).iter().all(is_sound) {
                assert_eq!(compare(&calls, list(&expected["calls"])), None, "{turn_text}");
                assert_eq!(answer, text(&expected["content"]), "{turn_text}");
            } else if turn_text.starts_with("<tool_call>{\"name\"") && turn_text.ends_with("}}") {
                // The closing mark is missing, but the call itself is complete.
                assert!(calls.len() == 1 && calls[0].arguments.is_ok(), "{turn_text}: {calls:?}");
            } else {
                assert!(
                    !calls.is_empty() && calls.iter().all(|call| call.arguments.is_err()),
                    "{turn_text}: {calls:?}"
                );
            }
        }
    }
}

/// Marks in other places than usual, and prompts that open a thought, have the same meaning as in transformers.
#[test]
fn turns_have_the_same_parts_as_in_transformers() {
    let (fixture, cases) = (read("tool_calls/texts.json"), read("tool_calls/cases.json"));
    let forms = [CallFormat::Hermes, CallFormat::Qwen3Coder, CallFormat::Llama3];
    for (form, key) in forms.into_iter().zip(["hermes", "qwen3_coder", "llama3"]) {
        for case in list(&fixture["parts"][key]) {
            let (turn_text, begins_in_thought) = (text(&case["text"]), case["begins_in_thought"] == true);
            let found = form.read_for(turn_text, begins_in_thought, list(&cases["tools"]));
            assert_eq!(compare(&found.calls, list(&case["calls"])), None, "{turn_text}");
            // The mark that ends the turn is a part of an unfinished thought in transformers.
            let thought = text(&case["thought"]).trim_end_matches("<|im_end|>");
            assert_eq!(
                (found.thought.as_str(), found.answer.as_str()),
                (thought, text(&case["content"])),
                "{turn_text}"
            );
        }
    }
}

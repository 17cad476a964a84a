//! Chat templates compared to transformers: text, refusals, ids and assistant masks.

use gradus::data::{LoadOptions, Need, TokenizeOptions, load, sft_examples};
use gradus::text::{ChatTemplate, NAMED_TEMPLATES, NamedTemplate, RenderOptions, Tokenizer};
use serde_json::{Map, Value, json};

use crate::fixture::{flat, folder, list, read, text};

#[test]
fn conversations_render_as_in_transformers() {
    let fixture = read("chat_templates/cases.json");
    let tokenizer = Tokenizer::from_dir(&folder().join(text(&fixture["tokenizer"]))).expect("a tokenizer");
    let mut wrong = Vec::new();
    for case in list(&fixture["cases"]) {
        let name = format!("{} / {}", text(&case["template"]), text(&case["conversation"]));
        let file = folder().join("chat_templates").join(format!("{}.jinja", text(&case["template"])));
        let template = ChatTemplate::from_file(&file, &tokenizer).unwrap_or_else(|e| panic!("{name}: {e}"));
        let conversation = &fixture["conversations"][text(&case["conversation"])];
        let variables: Map<String, Value> = conversation["variables"].as_object().cloned().unwrap_or_default();
        for (key, add_generation_prompt) in [("plain", false), ("with_generation_prompt", true)] {
            let options = RenderOptions {
                tools: conversation["tools"].as_array().map(Vec::as_slice),
                add_generation_prompt,
                variables: Some(&variables),
                now: None,
            };
            let rendered = template.render(list(&conversation["messages"]), &options);
            let expected = &case[key];
            match (rendered, expected.get("text"), expected.get("error")) {
                (Ok(found), Some(expected_text), _) => {
                    if found.text != text(expected_text) {
                        wrong.push(format!("{name}:\n  {:?}\n  {:?}", found.text, text(expected_text)));
                    }
                }
                (Err(found), _, Some(expected_error)) => {
                    let reason =
                        text(expected_error).split_once(": ").map_or(text(expected_error), |(_, reason)| reason);
                    if !found.to_string().contains(reason) {
                        wrong.push(format!("{name}: {found} instead of {expected_error}"));
                    }
                }
                (found, ..) => wrong.push(format!("{name}: {found:?} instead of {expected}")),
            }
        }
        let Some(ids) = case.get("ids") else { continue };
        let ids: Vec<u32> = flat(ids).into_iter().map(|id| id as u32).collect();
        let whole = tokenizer.encode(text(&case["plain"]["text"]), false).expect("ids");
        if whole != ids {
            wrong.push(format!("{name}: ids {whole:?} instead of {ids:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn assistant_masks_are_those_of_transformers() {
    let fixture = read("chat_templates/cases.json");
    let tokenizer = Tokenizer::from_dir(&folder().join(text(&fixture["tokenizer"]))).expect("a tokenizer");
    let tags = regex::Regex::new(r"\{%(-?)\s*generation\s*(-?)%\}").expect("a pattern");
    let end_tags = regex::Regex::new(r"\{%(-?)\s*endgeneration\s*(-?)%\}").expect("a pattern");
    let mut compared = 0;
    for case in list(&fixture["cases"]) {
        let Some(mask) = case.get("assistant_mask") else { continue };
        let mask: Vec<bool> = flat(mask).into_iter().map(|bit| bit == 1.0).collect();
        let conversation = &fixture["conversations"][text(&case["conversation"])];
        // Rows contain only text, and a row without an answer is a separate error.
        let parts = list(&conversation["messages"]).iter().any(|m| !m["content"].is_string());
        if parts || !mask.contains(&true) {
            continue;
        }
        let row = json!({
            "messages": conversation["messages"], "tools": conversation["tools"],
            "chat_template_kwargs": conversation["variables"],
        });
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a temporary file");
        std::fs::write(file.path(), row.to_string()).expect("written");
        let rows = load(&file.path().to_string_lossy(), &LoadOptions::needing(Need::Sft)).expect("a row").rows;
        let path = folder().join("chat_templates").join(format!("{}.jinja", text(&case["template"])));
        let template = ChatTemplate::from_file(&path, &tokenizer).expect("a template");
        let options = TokenizeOptions { assistant_only_loss: true, max_length: None, ..TokenizeOptions::default() };
        let name = format!("{} / {}", text(&case["template"]), text(&case["conversation"]));
        let made = sft_examples(&rows, &tokenizer, Some(&template), &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(made.examples[0].loss_mask, mask, "{name}");
        compared += 1;

        // Without the marks, the mask is derived from the template's output turn by turn. It is the same if the
        // template always writes a turn in one way.
        let source = std::fs::read_to_string(&path).expect("a template");
        let unmarked = tags.replace_all(&source, "{%${1} if true ${2}%}").replace("{% endgeneration %}", "{% endif %}");
        let unmarked = end_tags.replace_all(&unmarked, "{%${1} endif ${2}%}").into_owned();
        let template = ChatTemplate::from_source(&unmarked, &path, &tokenizer).expect("a template");
        let made = sft_examples(&rows, &tokenizer, Some(&template), &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(made.examples[0].loss_mask, mask, "{name}, derived");
    }
    assert!(compared >= 15, "only {compared} masks were compared");
}

#[test]
fn templates_with_a_name_render_as_in_transformers() {
    let fixture = read("chat_templates/named.json");
    let tokenizer = Tokenizer::from_dir(&folder().join(text(&fixture["tokenizer"]))).expect("a tokenizer");
    let mut seen = std::collections::BTreeSet::new();
    for case in list(&fixture["cases"]) {
        let (name, conversation) = (text(&case["template"]), text(&case["conversation"]));
        let template = ChatTemplate::chosen(name.as_ref(), &tokenizer).unwrap_or_else(|e| panic!("{name}: {e}"));
        seen.insert(name);
        let of = &fixture["conversations"][conversation];
        for (key, add_generation_prompt) in [("plain", false), ("with_generation_prompt", true)] {
            let tools = of["tools"].as_array().map(Vec::as_slice);
            let options = RenderOptions { tools, add_generation_prompt, ..RenderOptions::default() };
            let at = format!("{name} / {conversation} / {key}");
            match (template.render(list(&of["messages"]), &options), case[key].get("text")) {
                (Ok(found), Some(expected_text)) => {
                    assert_eq!(found.text, text(expected_text), "{at}");
                    if key == "plain" {
                        let found: Vec<Value> =
                            found.assistant.iter().flatten().map(|part| json!([part.start, part.end])).collect();
                        assert_eq!(&found, list(&case["assistant"]), "{at}");
                    }
                }
                (Err(found), None) => {
                    let expected_error = text(&case[key]["error"]).split_once(": ").expect("an error").1;
                    assert!(found.to_string().contains(expected_error), "{at}: {found}");
                }
                (found, _) => panic!("{at}: {found:?} instead of {}", case[key]),
            }
        }
    }
    let names: std::collections::BTreeSet<&str> = NAMED_TEMPLATES.iter().map(|template| template.name).collect();
    assert_eq!(seen, names);
    // The documented formats of one question and its answer, exactly.
    let messages = [json!({ "role": "user", "content": "Tea?" }), json!({ "role": "assistant", "content": "Yes." })];
    for (name, expected) in [
        ("chatml", "<|im_start|>user\nTea?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"),
        ("qwen", "<|im_start|>user\nTea?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"),
        ("gemma", "<bos><start_of_turn>user\nTea?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n"),
        (
            "llama3",
            "<bos><|start_header_id|>user<|end_header_id|>\n\nTea?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>",
        ),
        ("llama2", "<bos>[INST] Tea? [/INST] Yes. <eos>"),
        ("mistral", "<bos> [INST] Tea? [/INST] Yes.<eos>"),
        ("phi3", "<|user|>\nTea?<|end|>\n<|assistant|>\nYes.<|end|>\n"),
        ("zephyr", "<|user|>\nTea?<eos>\n<|assistant|>\nYes.<eos>\n"),
    ] {
        let template = ChatTemplate::chosen(name.as_ref(), &tokenizer).expect("a template");
        assert_eq!(template.render(&messages, &RenderOptions::default()).expect("rendered").text, expected, "{name}");
        assert_eq!(NamedTemplate::of_source(template.source()).map(|found| found.name), Some(name));
    }
    let unknown = ChatTemplate::chosen("lama3".as_ref(), &tokenizer).expect_err("unknown");
    assert_eq!(
        (unknown.to_string().as_str(), unknown.hint()),
        ("there is no chat template `lama3`", Some("did you mean `llama3`?"))
    );
}

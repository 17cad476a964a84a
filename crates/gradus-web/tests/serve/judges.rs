//! Tests the judges of chat answers: token classifiers, and the dense rewards of runs, reported segment by segment.

use gradus::text::visible;
use serde_json::{Value, json};

use crate::client::{Server, Visitor, classifier, dense, folder};

/// Sends `text` to a chat judged by `judge`. Returns the events of the answer and the page's thread afterwards.
fn judged(visitor: &Visitor<'_>, judge: &str, text: &str) -> (Vec<Value>, String) {
    let fields = [
        ("model", "gpt2"),
        ("judge", judge),
        ("temperature", "0"),
        ("top_p", "1"),
        ("top_k", "0"),
        ("min_p", "0"),
        ("repetition_penalty", "1"),
        ("max_tokens", "12"),
        ("seed", "3"),
    ];
    let begun = visitor.form("/chat", &fields);
    assert_eq!(begun.status, 303, "{begun:?}");
    let chat = begun.header("location").expect("a conversation").to_owned();
    let message = visitor.script(&format!("{chat}/say"), &json!({ "text": text, "parent": null })).json();
    let events = visitor.script(&format!("{chat}/answer"), &json!({ "parent": message["message"] })).events().0;
    (events, visitor.get(&format!("{chat}/thread")).body)
}

#[test]
fn segments_have_the_worth_and_the_label_that_each_part_gives_them() {
    let folder = folder(&["gpt2", "qwen3-reward"]);
    classifier(folder.path(), "marks", ["O", "NF-ERR", "F-ERR"]);
    dense(folder.path(), "ppo", "marks");
    let server = Server::over(folder.path());
    let visitor = Visitor::of(&server);
    let list = visitor.get("/chat").body;
    for name in ["marks", "ppo (its reward)", "qwen3-reward"] {
        assert!(list.contains(&format!("<option>{name}</option>")), "{list}");
    }
    assert_eq!(visitor.get("/v1/models").json()["data"].as_array().map(Vec::len), Some(1), "none of them answers");

    let (events, thread) = judged(&visitor, "ppo (its reward)", "The tea");
    let last = events.last().expect("an end");
    assert_eq!(last["end"], "length", "{events:?}");
    let completion: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
    let spans: Vec<&str> = thread.split("<span class=\"judged").skip(1).collect();
    assert!(!spans.is_empty(), "{thread}");
    let (mut facts, mut text) = (0.0, String::new());
    for span in &spans {
        let values = span.split("data-values=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("values");
        let values: Vec<Option<f64>> = serde_json::from_str(values).expect("JSON");
        assert!(values[0].is_none_or(|value| [0.5, -0.25, -0.5].contains(&value)), "{span}");
        assert!(values[1].is_none_or(|value| [0.1, -0.1].iter().any(|known| (known - value).abs() < 1e-6)), "{span}");
        let title = span.split("title=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a title");
        let label = match values[0] {
            Some(value) if value > 0.0 => "facts +0.500 O",
            Some(-0.25) => "facts -0.250 NF-ERR",
            Some(_) => "facts -0.500 F-ERR",
            None => "",
        };
        assert!(title.starts_with(label), "{title} {values:?}");
        facts += values[0].unwrap_or(0.0);
        text += span.split('>').nth(1).and_then(|rest| rest.split('<').next()).expect("a text");
    }
    assert!(facts != 0.0, "{thread}");
    // The page shows exactly the text of the answer, escaped.
    let shown =
        visible(&completion.replace("\r\n", "\n")).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let shown = shown.replace('"', "&quot;").replace('\'', "&#39;");
    assert!(shown.contains(text.trim()), "{shown:?} {text:?}");
    // In the total, each part is multiplied by its own weight and by the weight of its reward in the mix.
    let total = |name: &str| -> f64 {
        let after = thread.split(&format!(", {name} ")).nth(1).unwrap_or_else(|| panic!("no {name}: {thread}"));
        after.split([',', '<']).next().and_then(|text| text.trim().parse().ok()).expect("a number")
    };
    let whole = last["rewards"][0][1].as_f64().expect("a reward");
    assert!((whole - (2.0 * total("facts") + 6.0 * total("flow"))).abs() < 0.01, "{whole}: {thread}");
    assert!(thread.contains("data-part=\"all\"") && thread.contains("data-part=\"1\""), "{thread}");

    // A classifier alone: the label `O` is good and every other label bad. Without a label `O`, no label is either.
    let (events, thread) = judged(&visitor, "marks", "The tea");
    let reward = events.last().expect("an end")["rewards"][0][1].as_f64().expect("a reward");
    assert_eq!(reward.fract(), 0.0, "{reward}");
    assert!(thread.contains("+1.000 O") || thread.contains("-1.000 "), "{thread}");
    assert!(!thread.contains("data-part"), "{thread}");
    classifier(folder.path(), "kinds", ["A", "B", "C"]);
    let (_, thread) = judged(&visitor, "kinds", "The tea");
    assert!(thread.contains("class=\"judged \"") && !thread.contains("judged worth"), "{thread}");
}

#[test]
fn a_configuration_reaches_no_model_outside_of_the_folder() {
    let (folder, outside) = (folder(&["gpt2"]), tempfile::tempdir().expect("a folder"));
    classifier(outside.path(), "marks", ["O", "NF-ERR", "F-ERR"]);
    dense(folder.path(), "absolute", &outside.path().join("marks").display().to_string());
    dense(folder.path(), "hub", "nobody/marks-that-nobody-has");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outside.path().join("marks"), folder.path().join("link")).expect("a link");
        dense(folder.path(), "linked", "link");
    }
    let server = Server::over(folder.path());
    let visitor = Visitor::of(&server);
    for name in ["absolute", "hub", "linked"].iter().filter(|name| folder.path().join(name).exists()) {
        let (events, thread) = judged(&visitor, &format!("{name} (its reward)"), "The tea");
        let error = events.last().expect("an end")["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains("is outside of the folder"), "{name}: {events:?}");
        assert!(!thread.contains("class=\"judged"), "{thread}");
    }
    // An invalid judge is refused.
    let fields = [("model", "gpt2"), ("judge", "../marks"), ("temperature", "0"), ("top_p", "1"), ("top_k", "0")];
    let rest = [("min_p", "0"), ("repetition_penalty", "1"), ("max_tokens", "1"), ("seed", "0")];
    assert_eq!(visitor.form("/chat", &[&fields[..], &rest].concat()).status, 400);
}

#[test]
fn conversations_with_models_without_a_chat_template_say_how_they_are_read() {
    let folder = folder(&["gpt2", "qwen3"]);
    std::fs::remove_file(folder.path().join("gpt2/chat_template.jinja")).expect("removed");
    let server = Server::over(folder.path());
    let visitor = Visitor::of(&server);
    let page = |fields: &[(&str, &str)]| {
        let rest = [
            ("temperature", "0"),
            ("top_p", "1"),
            ("top_k", "0"),
            ("min_p", "0"),
            ("repetition_penalty", "1"),
            ("max_tokens", "1"),
            ("seed", "0"),
        ];
        let begun = visitor.form("/chat", &[fields, &rest[..]].concat());
        visitor.get(begun.header("location").expect("a conversation")).body
    };
    let note = "<code>gpt2</code> has no chat template: it reads the conversation as <code>Human: …</code>";
    assert!(page(&[("model", "gpt2")]).contains(note));
    assert!(!page(&[("model", "qwen3")]).contains("no chat template"));
    let blind = page(&[("model", "gpt2"), ("other", "qwen3"), ("blind", "on")]);
    assert!(blind.contains("One of the models has no chat template") && !blind.contains(note), "{blind}");
    // A template in this folder counts, too.
    let templates = folder.path().join("gpt2/additional_chat_templates");
    std::fs::create_dir(&templates).expect("a folder");
    std::fs::write(templates.join("default.jinja"), "{{ messages[0].content }}").expect("written");
    assert!(!page(&[("model", "gpt2")]).contains("no chat template"));
}

//! Malicious chat templates, through the binary. Whatever a template does, the program survives and reports what happened.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use gradus::text::render::{Starter, register};
use gradus::text::{ChatTemplate, RenderOptions, Request, Tokenizer};
use serde_json::{Map, Value, json};

use crate::harness::{CliTest, fixture_model};
use crate::hostile_templates::{self, Composer};
use crate::mutate::Mutator;

/// Creates a model directory in the test directory, with `source` as its chat template.
pub fn model_with(test: &CliTest, name: &str, source: &str) -> String {
    let from = fixture_model("qwen3");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = std::fs::read(Path::new(&from).join(file)).expect("the fixture has it");
        let path = test.write(&format!("{name}/{file}"), "");
        std::fs::write(path, bytes).expect("written");
    }
    test.write(&format!("{name}/chat_template.jinja"), source).parent().expect("a folder").display().to_string()
}

const PROMPT: &str = "{\"prompt\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n";

/// Renders all templates through children of this process, and some of every class through the binary.
#[test]
fn no_template_ends_the_program() {
    registered();
    let test = CliTest::with("rows.jsonl", PROMPT);
    let tokenizer = Tokenizer::from_dir(Path::new(&fixture_model("qwen3"))).expect("a tokenizer");
    let messages = [json!({ "role": "user", "content": "Hi" })];
    // These templates use up their processor time, all in the same way. Another test covers one of them.
    let is_slow = |name: &str| ["pprint", "debug", "[0:]", "slow"].iter().any(|word| name.contains(word));
    let templates: Vec<_> = hostile_templates::all().into_iter().filter(|(name, _)| !is_slow(name)).collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::SeqCst);
            let Some((name, source)) = templates.get(at) else { break };
            let made = ChatTemplate::from_source(source, "t.jinja", &tokenizer);
            let rendered = made.and_then(|template| template.render(&messages, &RenderOptions::default()));
            // Some templates are harmless with this stack size, and are rendered.
            if let Err(error) = rendered
                && (!error.to_string().starts_with("t.jinja: ") || error.to_string().len() > 2000)
            {
                wrong.lock().expect("no panic").push(format!("{name}: {error}"));
            }
            if !at.is_multiple_of(12) {
                continue;
            }
            let model = model_with(&test, &format!("model-{at}"), source);
            let run = test.run(&["generate", "--model", &model, "--prompts", "rows.jsonl", "--max-new-tokens", "1"]);
            // A template with much output makes a prompt that is too long. A template that rejects the row is reported with that row.
            let names = ["chat_template.jinja", "rows.jsonl:1: chat template: ", "prompt 1 has "];
            let is_reported =
                run.code == 1 && names.iter().any(|name| run.stderr.contains(name)) && run.stderr.len() < 2000;
            if !(is_reported || run.code == 0) {
                let stderr: String = run.stderr.chars().take(500).collect();
                wrong.lock().expect("no panic").push(format!("{name}: exit {}: {stderr}", run.code));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), templates.len(), wrong.join("\n"));
}

/// Each limit has its own message.
#[test]
fn the_limit_that_was_hit_is_named() {
    let test = CliTest::with("rows.jsonl", PROMPT);
    let cases = [
        ("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "it nests too deep: it used up 16 MiB of stack"),
        (&format!("{{{{ {}1 }}}}", "not ".repeat(200_000)), "it nests too deep: it used up 16 MiB of stack"),
        (
            "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "it took more than 1024 MiB of memory",
        ),
        (hostile_templates::SLOW, "it took more than 5 s of processor time"),
    ];
    for (i, (source, expected)) in cases.into_iter().enumerate() {
        let model = model_with(&test, &format!("model-{i}"), source);
        let run = test.run(&["generate", "--model", &model, "--prompts", "rows.jsonl"]);
        let started = format!("error: {model}/chat_template.jinja: the chat template was stopped: {expected}")
            .replace(&test.path().display().to_string(), "[DIR]");
        assert!(run.code == 1 && run.stderr.starts_with(&started), "{expected}: {} {}", run.code, run.stderr);
        assert!(run.stderr.contains("hint: the template is broken or meant to do harm"), "{}", run.stderr);
    }
    // All commands that read the template fail in the same way.
    let model = model_with(&test, "model-0", cases[0].0);
    test.write("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes\"}]}\n");
    for arguments in [
        &["data", "show", "chats.jsonl", "--model", &model][..],
        &["data", "check", "chats.jsonl", "--model", &model],
        &["sft", "--model", &model, "--data", "chats.jsonl", "--output-dir", "run"],
    ] {
        let run = test.run(arguments);
        let printed = format!("{}{}", run.stdout, run.stderr);
        assert!(
            (0..=2).contains(&run.code) && printed.contains("nests too deep"),
            "{arguments:?}: {} {printed}",
            run.code
        );
    }
    let mut child = test.command(&["chat", "--model", &model]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"Hi\nHi again\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some() && stderr.contains("nests too deep"), "{}: {stderr}", output.status);
}

/// Children render the fixtures of `transformers`, one by one and all at once.
#[test]
fn children_render_what_this_process_renders() {
    registered();
    let children = parity_templates();
    for (one, other) in HERE.iter().zip(&children) {
        let at_once =
            |case: &Case| case.template.render_all(&case.requests()).into_iter().map(comparable).collect::<Vec<_>>();
        let alone = |case: &Case| {
            let requests = case.requests();
            requests
                .iter()
                .map(|(messages, options)| comparable(case.template.render(messages, options)))
                .collect::<Vec<_>>()
        };
        assert_eq!(at_once(one), at_once(other), "{}", one.name);
        assert_eq!(at_once(other), alone(other), "{}", one.name);
    }
}

/// Templates composed of the known classes, and known templates with random changes: this process survives, and each template yields a text
/// or an error in bounded time. `GRADUS_FUZZ_CASES` sets their number.
#[test]
fn composed_templates_leave_this_process_alive() {
    registered();
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let (cases, seed) = (number("GRADUS_FUZZ_CASES"), number("GRADUS_FUZZ_SEED").unwrap_or(1));
    let seeds: Vec<Vec<u8>> = HERE.iter().map(|case| case.template.source().as_bytes().to_vec()).collect();
    let conversations: Vec<Vec<Value>> = vec![
        vec![json!({ "role": "user", "content": "Hi" })],
        vec![json!({ "role": "user", "content": "Hi" }), json!({ "role": "assistant", "content": "Hello" })],
    ];
    let next = AtomicU64::new(0);
    let counts = Mutex::new(std::collections::BTreeMap::<String, u64>::new());
    let work = |thread: u64| {
        let (mut composer, mut mutator) = (Composer::new(2 * seed + thread), Mutator::new(2 * seed + thread));
        let tokenizer = Tokenizer::from_dir(Path::new(&fixture_model("qwen3"))).expect("a tokenizer");
        while next.fetch_add(1, Ordering::SeqCst) < cases.unwrap_or(60) {
            let mut source = composer.next();
            if next.load(Ordering::SeqCst).is_multiple_of(2) {
                source = String::from_utf8_lossy(&mutator.next(&seeds)).into_owned() + &source;
            } else if next.load(Ordering::SeqCst).is_multiple_of(5) {
                source = String::from_utf8_lossy(&mutator.next(&[source.into_bytes()])).into_owned();
            }
            let made = ChatTemplate::from_source(&source, "t.jinja", &tokenizer);
            let outcomes = made.map(|template| {
                let requests: Vec<_> = conversations.iter().map(|list| (&list[..], RenderOptions::default())).collect();
                template.render_all(&requests)
            });
            let mut counts = counts.lock().expect("no panic");
            let mut count = |outcome: &gradus::Result<()>| {
                let name = match outcome {
                    Ok(()) => "rendered".to_owned(),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.starts_with("t.jinja: ") && text.len() < 20_000, "{text}");
                        match text.split_once("the chat template was stopped: ") {
                            Some((_, what)) => format!("stopped: {}", what.chars().take(60).collect::<String>()),
                            None => "refused".to_owned(),
                        }
                    }
                };
                *counts.entry(name).or_default() += 1;
            };
            match outcomes {
                Ok(outcomes) => outcomes.into_iter().for_each(|outcome| count(&outcome.map(drop))),
                Err(error) => count(&Err(error)),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0));
        scope.spawn(|| work(1));
    });
    println!("{:?}", counts.into_inner().expect("no panic"));
}

/// Measures the cost of rendering in a child: the time of each way for batches of many conversations, per template. `cargo test --workspace
/// --release --test cli -- --ignored --nocapture --exact templates::what_a_child_costs`
#[test]
#[ignore = "measures, alone on a machine"]
fn what_a_child_costs() {
    let here = &*HERE;
    registered();
    let children = parity_templates();
    let (mut all_here, mut all_in_children) = (Duration::ZERO, Duration::ZERO);
    for (one, other) in here.iter().zip(&children) {
        let time = |case: &Case, alone: bool| {
            let requests: Vec<_> = case.requests().into_iter().cycle().take(64).collect();
            let once = || {
                let started = Instant::now();
                match alone {
                    true => {
                        requests.iter().for_each(|(messages, options)| drop(case.template.render(messages, options)))
                    }
                    false => drop(case.template.render_all(&requests)),
                }
                started.elapsed()
            };
            once();
            (0..20).map(|_| once()).min().expect("some")
        };
        let (a, b, c) = (time(one, false), time(other, false), time(other, true));
        (all_here, all_in_children) = (all_here + a, all_in_children + b);
        let ratio = |b: Duration| b.as_secs_f64() / a.as_secs_f64();
        println!(
            "{:24} {a:>9.0?} here, {b:>9.0?} ({:.2}) at once, {c:>9.0?} ({:.2}) alone",
            one.name,
            ratio(b),
            ratio(c)
        );
    }
    println!("all: {:.2}", all_in_children.as_secs_f64() / all_here.as_secs_f64());
}

/// Fifteen megabytes are far below the limits of a child, for each request.
#[test]
fn a_long_conversation_is_rendered_every_time() {
    registered();
    let model = fixture_model("gpt2");
    let tokenizer = Tokenizer::from_dir(Path::new(&model)).expect("a tokenizer");
    let template = ChatTemplate::from_dir(Path::new(&model), &tokenizer).expect("it opens").expect("a template");
    let messages = [json!({ "role": "user", "content": "tea is good. ".repeat(1_200_000) })];
    for _ in 0..10 {
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let rendered = template.render(&messages, &options).unwrap_or_else(|error| panic!("{error}"));
        assert!(rendered.text.len() > 15_000_000);
    }
}

/// In the form in which transformers 5 saves several templates.
#[test]
fn rows_with_tools_are_written_by_their_own_template() {
    let test = CliTest::new();
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    model_with(&test, "m", plain);
    test.write("m/additional_chat_templates/tool_use.jinja", &format!("{plain}{{{{ '!?' * 8 }}}}"));
    let tokens = |name: &str, tools: Value| {
        let messages = json!([{ "role": "user", "content": "tea" }, { "role": "assistant", "content": " is good." }]);
        test.write("rows.jsonl", &json!({ "messages": messages, "tools": tools }).to_string());
        let train = ["sft", "--model", "m", "--data", "rows.jsonl", "--output-dir", name, "--max-steps", "1"];
        test.succeeds(&[&train[..], &["--batch-size", "1", "--eval-fraction", "0", "--quiet"]].concat());
        let metrics = test.read(&format!("{name}/metrics.jsonl"));
        let row: Value = serde_json::from_str(metrics.lines().next().expect("a row")).expect("JSON");
        row["num_tokens"].as_f64().expect("a number")
    };
    let tools = json!([{ "type": "function", "function": { "name": "f", "description": "d", "parameters": {} } }]);
    let (without, with) = (tokens("without", Value::Null), tokens("with", tools));
    assert!(with >= without + 8.0, "{with} {without}");
    assert!(
        test.path().join("with/model/additional_chat_templates/tool_use.jinja").is_file(),
        "it is saved with the model"
    );
}

fn comparable(rendered: gradus::Result<gradus::text::Rendered>) -> Result<gradus::text::Rendered, String> {
    rendered.map_err(|error| error.to_string())
}

/// Templates rendered by this process. They are opened before any child program is registered.
static HERE: LazyLock<Vec<Case>> = LazyLock::new(parity_templates);

/// From now on, children render the templates that this process opens.
fn registered() {
    LazyLock::force(&HERE);
    // Less time than usual: many of these templates use it up.
    register(Starter { seconds: 1, ..Starter::new(env!("CARGO_BIN_EXE_gradus"), Vec::new()) });
}

/// Messages, tools and additional variables.
type Conversation = (Vec<Value>, Option<Vec<Value>>, Map<String, Value>);

/// A template and its inputs.
struct Case {
    name: String,
    template: ChatTemplate,
    conversations: Vec<Conversation>,
}

impl Case {
    fn requests(&self) -> Vec<Request<'_, Value>> {
        let conversations = self.conversations.iter();
        let of = conversations.map(|(messages, tools, variables)| {
            let (tools, now) = (tools.as_deref(), Some(std::time::UNIX_EPOCH));
            (&messages[..], RenderOptions { tools, add_generation_prompt: true, variables: Some(variables), now })
        });
        of.collect()
    }
}

fn parity_templates() -> Vec<Case> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity"));
    let cases = std::fs::read_to_string(folder.join("chat_templates/cases.json")).expect("the fixture is there");
    let cases: Value = serde_json::from_str(&cases).expect("JSON");
    let tokenizer = folder.join(cases["tokenizer"].as_str().expect("a name"));
    let tokenizer = Tokenizer::from_dir(&tokenizer).expect("a tokenizer");
    let conversations: Vec<_> = cases["conversations"]
        .as_object()
        .expect("conversations by name")
        .values()
        .map(|one| {
            let messages = one["messages"].as_array().cloned().expect("a list");
            (messages, one["tools"].as_array().cloned(), one["variables"].as_object().cloned().unwrap_or_default())
        })
        .collect();
    let mut files: Vec<_> = std::fs::read_dir(folder.join("chat_templates")).expect("a folder").flatten().collect();
    files.retain(|file| file.path().extension().is_some_and(|extension| extension == "jinja"));
    files.sort_by_key(std::fs::DirEntry::path);
    let case = |file: std::fs::DirEntry| Case {
        name: file.file_name().display().to_string(),
        template: ChatTemplate::from_file(&file.path(), &tokenizer).expect("a template"),
        conversations: conversations.clone(),
    };
    files.into_iter().map(case).collect()
}

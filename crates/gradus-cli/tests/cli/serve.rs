//! `gradus serve` and `gradus annotate`: a server that starts, answers, is killed and starts again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};
use crate::hostile_templates;
use crate::templates::model_with;

/// A server that is killed without warning when the test ends.
pub struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn serve(test: &CliTest, arguments: &[&str]) -> (Server, Value) {
    serve_with(test, arguments, &[])
}

fn serve_with(test: &CliTest, arguments: &[&str], environment: &[(&str, &str)]) -> (Server, Value) {
    let mut command = test.command(&[&["serve", ".", "--port", "0", "--json"], arguments].concat());
    command.envs(environment.iter().copied());
    started(command)
}

fn started(mut command: std::process::Command) -> (Server, Value) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it says where");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["url"].as_str().expect("an address").trim_start_matches("http://");
    let address = address.split('/').next().expect("a host").to_owned();
    (Server(child, address), ready)
}

fn ask(server: &Server, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&server.1).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(300))).expect("set");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
        server.1
    );
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_server_answers_what_generate_samples_and_is_there_again_after_it_was_killed() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea\"}\n");
    let model = fixture_model("gpt2");
    let (server, ready) = serve(&test, &["--model", &model]);
    assert_eq!(ready["token"], Value::Null);
    let body = json!({ "model": model, "prompt": "The tea", "max_tokens": 9, "seed": 4 }).to_string();
    let answer = ask(&server, "POST", "/v1/completions", &body);
    let answer: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    let arguments =
        ["generate", "--model", &model, "--prompts", "prompts.jsonl", "--max-new-tokens", "9", "--seed", "4"];
    let sampled: Value = serde_json::from_str(&test.succeeds(&arguments)).expect("a row");
    assert_eq!(answer["choices"][0]["text"], sampled["completion"]);
    drop(server);
    let (server, _) = serve(&test, &[]);
    assert!(ask(&server, "GET", "/", "").starts_with("HTTP/1.1 200"));
}

/// `chat` and `generate` have the same flags. A template changes the prompt of a conversation, and so the answer.
#[test]
fn the_tokenizer_and_chat_template_of_a_served_model_can_be_replaced() {
    let test = CliTest::with("short.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let rows = "{\"messages\": [{\"role\": \"user\", \"content\": \"The tea\"}]}\n";
    test.write("prompts.jsonl", rows);
    // The model's own directory has no tokenizer.
    let from = fixture_model("qwen3");
    for file in ["config.json", "model.safetensors"] {
        let to = test.write(&format!("bare/{file}"), "");
        std::fs::copy(std::path::Path::new(&from).join(file), to).expect("copied");
    }
    let text = ["--tokenizer", from.as_str(), "--chat-template", "short.jinja"];
    let (server, _) = serve(&test, &[&["--model", "bare"][..], &text].concat());
    let messages = json!([{ "role": "user", "content": "The tea" }]);
    let body = |key: &str, value: Value| json!({ "model": "bare", key: value, "max_tokens": 9, "seed": 4 }).to_string();
    let answered = |path: &str, body: &str| -> Value {
        let answer = ask(&server, "POST", path, body);
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON")
    };
    let answer = answered("/v1/chat/completions", &body("messages", messages));
    let plain = answered("/v1/completions", &body("prompt", json!("The tea")));
    assert_eq!(
        answer["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"],
        "the template adds nothing: {answer}"
    );
    let sampled = ["generate", "--model", "bare", "--prompts", "prompts.jsonl", "--max-new-tokens", "9", "--seed", "4"];
    let sampled = test.succeeds(&[&sampled[..], &text].concat());
    let sampled: Value = serde_json::from_str(&sampled).expect("a row");
    assert_eq!(answer["choices"][0]["message"]["content"], sampled["completion"]);
    drop(server);
    let run = test.run(&["serve", ".", "--port", "0", "--chat-template", "short.jinja"]);
    assert!(run.code == 1 && run.stderr.contains("error: `--chat-template` needs `--model`"), "{run:?}");
    // A wrong file is refused before the server listens.
    let run = test.run(&["serve", ".", "--port", "0", "--model", "bare", "--tokenizer", "nowhere"]);
    assert!(run.code == 1 && run.stdout.is_empty(), "{run:?}");
}

/// The server's main thread waits for people. A model can compute even with a single processor.
#[test]
fn one_thread_that_computes_is_enough() {
    let test = CliTest::new();
    let model = fixture_model("gpt2");
    let (server, _) = serve_with(&test, &["--model", &model], &[("RAYON_NUM_THREADS", "1")]);
    let body = json!({ "model": model, "prompt": "The tea ".repeat(20), "max_tokens": 3, "echo": true, "logprobs": 1 });
    let answer = ask(&server, "POST", "/v1/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn an_address_that_others_reach_has_a_token() {
    let test = CliTest::new();
    let (server, ready) = serve(&test, &["--host", "0.0.0.0"]);
    let token = ready["token"].as_str().expect("a token");
    assert!(token.len() == 64 && ready["url"].as_str().is_some_and(|url| url.ends_with(token)));
    assert!(ask(&server, "GET", "/", "").starts_with("HTTP/1.1 401"));
    assert!(ask(&server, "GET", &format!("/?token={token}"), "").starts_with("HTTP/1.1 303"));
}

#[test]
fn projects_are_made_and_read_from_the_terminal() {
    let test = CliTest::with("rows.jsonl", "{\"prompt\": \"Q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
    let new = ["annotate", "new", "tea", "--data", "rows.jsonl", "--labels", "comparison"];
    assert!(test.succeeds(&new).contains("`tea` has 1 task; `gradus annotate invite NAME` invites people"));
    std::fs::create_dir(test.path().join("my runs")).expect("a directory");
    let elsewhere = test.succeeds(&[&new[..], &["--folder", "my runs"]].concat());
    assert!(elsewhere.contains("`gradus annotate invite NAME --folder 'my runs'` invites people"), "{elsewhere}");
    test.fails(&new, 1, "error: there is a project `tea` already\n");
    let invited = test.run(&["annotate", "invite", "ada"]);
    // Standard output contains only the token, for scripts.
    assert_eq!(invited.stdout.trim().len(), 64);
    assert!(invited.stderr.contains("on the page `/annotate` of `gradus serve .`"), "{}", invited.stderr);
    let stats = test.succeeds(&["annotate", "stats", "tea"]);
    assert!(stats.starts_with("0 of 1 tasks"));
    assert_eq!(stats.matches("undefined").count(), 1, "{stats}");
    assert!(stats.contains("agreement on better answer: undefined (no item was labeled by two people)\n"), "{stats}");
    let stats: Value = serde_json::from_str(&test.succeeds(&["annotate", "stats", "tea", "--json"])).expect("JSON");
    assert_eq!(stats["agreement"][0]["alpha"], json!({ "undefined": "no item was labeled by two people" }));
    assert_eq!(test.succeeds(&["annotate", "release", "tea"]), "no open task of `tea` matches\n");
    let released = test.succeeds(&["annotate", "release", "tea", "--task", "1", "--person", "ada", "--json"]);
    let released: Value = serde_json::from_str(&released).expect("JSON");
    assert_eq!(released["released"], 0);
    test.fails(&["annotate", "export", "tea", "--output", "out.jsonl"], 1, "error: `tea` has no preference rows yet\n");
    test.fails(
        &["annotate", "stats", "coffee"],
        1,
        "error: there is no project `coffee`\nhint: the folder has `tea`\n",
    );
    let list = test.succeeds(&["annotate", "list"]);
    assert_eq!(
        list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).next_back(),
        Some(vec!["tea", "1", "1", "0"])
    );
    let nobody = "error: `tea` was not removed: there is no terminal to confirm it\nhint: add `--yes`\n";
    test.fails(&["annotate", "rm", "tea"], 1, nobody);
    test.succeeds(&["annotate", "rm", "tea", "--yes"]);
    assert_eq!(test.succeeds(&["annotate", "list", "--json"]), "[]\n");
    assert_eq!(test.run(&["annotate", "rm", "tea", "--yes"]).code, 1);
    let run = test.run(&["annotate", "new", "a/b", "--data", "rows.jsonl", "--labels", "comparison"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
}

/// Chat templates are untrusted. Whatever they do, the server and other streams continue.
#[test]
fn no_template_ends_the_server_or_the_streams_of_others() {
    let test = CliTest::new();
    model_with(&test, "good", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:");
    let all = hostile_templates::all();
    // One template per limit, and some of every class.
    let limits = [hostile_templates::ITSELF.to_owned() + "{{ ns }}", hostile_templates::SLOW.to_owned()];
    let is_slow = |name: &str| ["pprint", "debug", "[0:]", "nested", "for i"].iter().any(|word| name.contains(word));
    let some = all.iter().filter(|(name, _)| !is_slow(name)).step_by(13).map(|(_, source)| source.clone());
    let bad: Vec<String> = some.chain(limits).collect();
    for (i, source) in bad.iter().enumerate() {
        model_with(&test, &format!("bad-{i}"), source);
    }
    let (server, _) = serve(&test, &[]);
    let chat = |model: &str, stream: bool| {
        let messages = json!([{ "role": "user", "content": "The tea" }]);
        let body = json!({ "model": model, "messages": messages, "max_tokens": 60, "seed": 3, "stream": stream });
        ask(&server, "POST", "/v1/chat/completions", &body.to_string())
    };
    let completion_of = |stream: &str| -> String {
        let events = stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        events.filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect()
    };
    let whole = chat("good", true);
    let expected = completion_of(&whole);
    assert!(whole.contains("data: [DONE]") && expected.len() > 10, "{whole}");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut streams = 0;
            while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                let stream = chat("good", true);
                assert!(stream.contains("data: [DONE]"), "{stream}");
                assert_eq!(completion_of(&stream), expected);
                streams += 1;
            }
            streams
        });
        for (i, source) in bad.iter().enumerate() {
            let answer = chat(&format!("bad-{i}"), false);
            let start: String = source.chars().take(80).collect();
            // Some templates are harmless, and the model answers.
            let is_answer = ["HTTP/1.1 200", "HTTP/1.1 4", "HTTP/1.1 5"].iter().any(|head| answer.starts_with(head));
            assert!(is_answer, "{start}: {answer}");
        }
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(others.join().expect("every stream was whole") > 0);
    });
    let last = chat(&format!("bad-{}", bad.len() - 2), false);
    assert!(last.contains("nests too deep"), "{last}");
}

/// A client that opens connections and sends incomplete requests does not block other clients.
#[test]
#[cfg(unix)]
fn connections_that_say_nothing_keep_nobody_out() {
    let test = CliTest::new();
    let serve = test.command(&["serve", ".", "--port", "0", "--json"]);
    // The shell starts the same program with a low limit on open files.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
    command.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.env_remove("GRADUS_LOG");
    if let Some(directory) = serve.get_current_dir() {
        command.current_dir(directory);
    }
    let (server, _) = started(command);
    let half = |i: usize| {
        let mut stream = TcpStream::connect(&server.1).expect("it listens");
        // Sends nothing, half of a head, or a head and half of a body.
        let text = ["", "GET / HTTP/1.1\r\nHost:", "POST /chat HTTP/1.1\r\nContent-Length: 9\r\n\r\na"][i % 3];
        stream.write_all(text.as_bytes()).expect("written");
        stream
    };
    let open: Vec<TcpStream> = (0..375).map(half).collect();
    for _ in 0..20 {
        assert!(ask(&server, "GET", "/v1/models", "").starts_with("HTTP/1.1 200"));
    }
    drop(open);
}

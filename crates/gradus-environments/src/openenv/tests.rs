use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use super::*;

/// A server. A function maps each message to its answer, which is sent unchanged; `None` ends the connection.
fn serve(answer: impl Fn(&Value) -> Option<String> + Send + Sync + 'static) -> OpenEnvConfig {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || speak(stream, &*answer));
        }
    });
    config(&url)
}

fn config(url: &str) -> OpenEnvConfig {
    OpenEnvConfig { url: url.to_owned(), action: None, observation: None, deterministic: false, timeout_s: 60.0 }
}

/// Form of actions that the server reports.
const SCHEMA: &str = r#"{"action": {"properties": {"metadata": {"type": "object"}, "message": {"type": "string"}}}}"#;

fn speak(stream: TcpStream, answer: &dyn Fn(&Value) -> Option<String>) {
    let mut start = [0; 16];
    let _ = stream.peek(&mut start);
    if start.starts_with(b"GET /schema") {
        use std::io::{Read, Write};
        let mut stream = stream;
        let _ = stream.read(&mut [0; 4096]);
        let _ =
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{SCHEMA}", SCHEMA.len());
        return;
    }
    let Ok(mut socket) = tungstenite::accept(stream) else { return };
    while let Ok(Message::Text(text)) = socket.read() {
        let message: Value = serde_json::from_str(&text).expect("JSON");
        if message["type"] == "close" {
            return;
        }
        let Some(reply) = answer(&message) else { return };
        if socket.send(Message::text(reply)).is_err() {
            return;
        }
    }
}

fn observed(observation: Value, reward: Value, done: bool) -> Option<String> {
    let data = json!({ "observation": observation, "reward": reward, "done": done });
    Some(json!({ "type": "observation", "data": data }).to_string())
}

/// An echo that counts letters.
fn echo(message: &Value) -> Option<String> {
    match message["type"].as_str() {
        Some("reset") => observed(
            json!({ "text": format!("Hello {}", message["data"]["who"].as_str().unwrap_or("you")) }),
            Value::Null,
            false,
        ),
        Some("step") => {
            let text = message["data"]["message"].as_str().expect("a text");
            observed(
                json!({ "text": text.to_uppercase(), "metadata": {} }),
                json!(text.len() as f64 / 10.0),
                text == "bye",
            )
        }
        _ => Some(
            json!({ "type": "error", "data": { "message": "Unknown message type", "code": "UNKNOWN_TYPE" } })
                .to_string(),
        ),
    }
}

fn start() -> Start {
    let row = json!({ "who": "Ada" }).as_object().cloned().expect("an object");
    Start { name: "step 1, prompt 1, completion 1".into(), seed: 1, row }
}

fn turn(text: &str) -> Turn {
    Turn { text: text.into(), content: text.into(), ..Turn::default() }
}

#[test]
fn the_only_field_of_an_action_is_what_the_policy_wrote() {
    let environment = OpenEnv::connect(&serve(echo)).expect("a server");
    assert_eq!(environment.action, Action::Field("message".into(), FieldType::Text));
    let NewEpisode { mut episode, opening } = environment.begin(&start()).expect("begun");
    assert_eq!(opening.as_deref(), Some("Hello Ada"));
    let observation = episode.step(&turn(" hi ")).expect("answered");
    assert_eq!(observation.replies, [Reply::User { content: "HI".into() }]);
    assert_eq!((observation.reward, observation.is_done), (Some(0.2), false));
    let last = episode.step(&turn("bye")).expect("answered");
    assert!(last.is_done && last.replies.is_empty());
    assert_eq!(episode.finish(), Ok(None));
}

#[test]
fn tools_of_a_server_are_steps() {
    let config = serve(|message| match message["type"].as_str() {
        Some("mcp") => {
            let tool = json!({ "name": "add", "description": "Adds.", "inputSchema": { "type": "object" } });
            Some(
                json!({ "type": "mcp", "data": { "jsonrpc": "2.0", "id": 1, "result": { "tools": [tool] } } })
                    .to_string(),
            )
        }
        Some("reset") => observed(json!({}), Value::Null, false),
        _ => {
            let data = &message["data"];
            assert_eq!(data["type"], "call_tool");
            match data["arguments"]["a"].as_i64() {
                Some(a) => observed(json!({ "tool_name": "add", "result": { "data": a + 1 } }), json!(0.5), false),
                None => observed(
                    json!({ "error": { "error_type": "invalid_args", "message": "no a" } }),
                    Value::Null,
                    false,
                ),
            }
        }
    });
    let environment = OpenEnv::connect(&config).expect("a server");
    assert_eq!(environment.tools()[0].name, "add");
    let NewEpisode { mut episode, opening } = environment.begin(&start()).expect("begun");
    assert_eq!(opening, None);
    let call = |arguments: Value| Call {
        id: None,
        name: "add".into(),
        arguments: Ok(arguments.as_object().cloned().expect("an object")),
    };
    let calls = vec![call(json!({ "a": 1 })), call(json!({})), call(json!({ "a": 5 }))];
    let found = episode.step(&Turn { calls, ..Turn::default() }).expect("answered");
    let contents: Vec<&str> = found.replies.iter().map(Reply::content).collect();
    assert_eq!(contents, ["2", "{'error': 'no a'}", "6"]);
    assert_eq!((found.reward, found.metrics["tools/failures"]), (Some(1.0), 1.0));
    assert!(episode.step(&turn("It is 6.")).expect("answered").is_done);
}

#[test]
fn failures_are_told_and_end_in_time() {
    type Answer = fn(&Value) -> Option<String>;
    let wrong: &[(Answer, &str)] = &[
        (|_| None, "was lost"),
        (|_| Some("hello".into()), "it is not JSON"),
        (|_| Some("[1]".into()), "it is not an object"),
        (|_| Some("{\"type\": \"state\", \"data\": {}}".into()), "its type is `state`"),
        (|_| Some("{\"type\": \"observation\"}".into()), "it has no `data`"),
        (|_| Some(format!("\"{}\"", "x".repeat(2 << 20))), "was lost"),
        (
            |_| observed(json!({ "text": "a" }), json!("high"), false),
            "`reward` is `\"high\"`, expected a number or null",
        ),
        (
            |_| Some(json!({ "type": "error", "data": { "message": "full", "code": "CAPACITY_REACHED" } }).to_string()),
            "the environment reports: full (CAPACITY_REACHED)",
        ),
        (
            |_| {
                std::thread::sleep(Duration::from_secs(30));
                None
            },
            "did not answer within 3 s",
        ),
    ];
    for (answer, expected) in wrong {
        let answer = *answer;
        let config = serve(move |message| if message["type"] == "step" { answer(message) } else { echo(message) });
        // The last one is silent. The server is there before.
        let timeout_s = if expected.contains("within") { 3.0 } else { config.timeout_s };
        let config = OpenEnvConfig { timeout_s, ..config };
        let mut episode = OpenEnv::connect(&config).expect("a server").begin(&start()).expect("begun").episode;
        let error = episode.step(&turn("a")).expect_err("a failure");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    // A server that sends a byte now and then cannot block a client.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            use std::io::Write;
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let slow = OpenEnvConfig { timeout_s: 0.3, ..config(&url) };
    assert!(OpenEnv::connect(&slow).is_err());
    let error = OpenEnv::connect(&config("http://127.0.0.1:9")).err().expect("nobody");
    assert!(error.to_string().starts_with("the environment at ws://127.0.0.1:9/ws cannot be reached"), "{error}");
    let error = OpenEnv::connect(&config("localhost:8000")).err().expect("no address");
    assert!(matches!(error, Error::Config { .. }), "{error}");
    let other = OpenEnvConfig { action: Some("move".into()), ..serve(echo) };
    let error = OpenEnv::connect(&other).err().expect("no field");
    assert_eq!(error.to_string(), "the environment's actions have no field `move`; they have `message`");
}

#[test]
fn actions_are_numbers_or_objects_where_the_server_wants_them() {
    let action =
        |fields: Value, requested: Option<&str>| action_of(&json!({ "properties": fields }), requested).expect("fits");
    let number = json!({ "n": { "type": "integer" }, "metadata": {} });
    assert_eq!(action(number, None), Action::Field("n".into(), FieldType::Integer));
    let two = json!({ "x": { "type": "number" }, "y": { "type": "string" } });
    assert_eq!(action(two.clone(), None), Action::Json);
    assert_eq!(action(two, Some("x")), Action::Field("x".into(), FieldType::Number));
    assert_eq!(number_in("I take 3, no: -4.", FieldType::Integer), Some(json!(-4)));
    assert_eq!(number_in("2.5 or so", FieldType::Number), Some(json!(2.5)));
    assert_eq!(number_in("none", FieldType::Number), None);
    assert_eq!(object_in("I do {\"a\": {\"b\": 1}} now"), Some(json!({ "a": { "b": 1 } })));
    assert_eq!(object_in("no } {"), None);
}

/// Any message of a server results in an observation or an error message.
#[test]
fn whatever_a_server_sends_is_read_or_refused() {
    let good =
        json!({ "type": "observation", "data": { "observation": { "text": "a" }, "reward": 1.5, "done": false } })
            .to_string();
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("small") % below
    };
    let parts = [
        "null",
        "NaN",
        "1e999",
        "-1",
        "true",
        "[]",
        "{}",
        "\"",
        "\\u0000",
        "\u{1F600}",
        "observation",
        "error",
        "[[[[",
        "}}",
    ];
    for _ in 0..5000 {
        let mut text = good.clone();
        for _ in 0..=next(3) {
            let at = text.floor_char_boundary(next(text.len() + 1));
            match next(3) {
                0 => text.insert_str(at, parts[next(parts.len())]),
                1 => text.truncate(at),
                _ => {
                    let end = text.floor_char_boundary((at + next(12)).min(text.len()));
                    text.replace_range(at..end.max(at), parts[next(parts.len())]);
                }
            }
        }
        if let Ok(answer) = read(&text, "observation") {
            let observation = answer.get("observation").cloned().unwrap_or(Value::Null);
            let _ = shown(&observation, None);
            let _ = shown(&observation, Some("text"));
        }
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(read(&deep, "observation").is_err());
}

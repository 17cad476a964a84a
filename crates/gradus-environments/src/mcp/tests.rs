//! Servers with various behaviors and faults.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use super::*;

/// A server over HTTP. A function maps each message to status, headers and body.
fn serve(answer: impl Fn(&Value) -> (u16, String, String) + Send + Sync + 'static) -> McpConfig {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = Some(format!("http://{}/mcp", listener.local_addr().expect("an address")));
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || speak(stream, &*answer));
        }
    });
    McpConfig { url, timeout_s: 20.0, ..McpConfig::default() }
}

fn speak(mut stream: TcpStream, answer: &dyn Fn(&Value) -> (u16, String, String)) {
    let mut bytes = Vec::new();
    let message = loop {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&bytes);
        // The end of a session, a request without a body.
        if text.starts_with("DELETE ") && text.ends_with("\r\n\r\n") {
            break json!({ "method": "DELETE" });
        }
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(message) = serde_json::from_str(body)
        {
            break message;
        }
    };
    let (status, headers, body) = answer(&message);
    let head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    let _ = stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes());
}

const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "Content-Type: text/event-stream; charset=utf-8\r\n";

fn result(message: &Value, result: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string()
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "description": "Does it.", "inputSchema": { "type": "object" } })
}

/// Answers of a well-behaved server with one tool, up to the first call.
fn polite(message: &Value) -> (u16, String, String) {
    match message["method"].as_str() {
        Some("initialize") => (200, JSON.into(), result(message, json!({ "protocolVersion": "2025-06-18" }))),
        Some("tools/list") => (200, JSON.into(), result(message, json!({ "tools": [tool("do")] }))),
        _ => (202, String::new(), String::new()),
    }
}

fn call(config: &McpConfig) -> Result<CallResult> {
    McpServer::connect(config).expect("a server").call("do", &Map::new())
}

#[test]
fn results_are_texts_and_name_what_is_no_text() {
    let read = |result: Value| result_of(result.as_object().cloned().expect("an object"));
    let content = |parts: Value| read(json!({ "content": parts }));
    assert_eq!(
        content(json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }])),
        Ok(Ok("a\nb".into()))
    );
    let parts = json!([
        { "type": "image", "data": "AAAA", "mimeType": "image/png" },
        { "type": "audio", "data": "AAAA" },
        { "type": "resource_link", "uri": "file:///a.txt", "name": "a" },
        { "type": "resource", "resource": { "uri": "file:///b.txt", "text": "inside" } },
        { "type": "resource", "resource": { "uri": "file:///c.bin", "blob": "AAAA" } },
        { "type": "hologram" },
        3,
    ]);
    let shown = "(an image, image/png, which is not shown)\n(a recording, which is not shown)\n(a: file:///a.txt)\ninside\n\
                 (the file file:///c.bin, which is not shown)\n(a part of the type `hologram`, which is not shown)\n\
                 (a part of the type ``, which is not shown)";
    assert_eq!(content(parts), Ok(Ok(shown.into())));
    let failed = read(json!({ "content": [{ "type": "text", "text": "no" }], "isError": true }));
    assert_eq!(failed, Ok(Err("no".into())));
    assert_eq!(read(json!({ "content": [], "structuredContent": { "a": 1 } })), Ok(Ok("{\"a\":1}".into())));
    assert_eq!(content(json!([])), Ok(Ok("(the tool returned nothing)".into())));
    assert!(read(json!({ "content": "text" })).is_err() && read(json!({})).is_err());
    let many: Vec<Value> = (0..PARTS + 2).map(|_| json!({ "type": "text", "text": "a" })).collect();
    let text = content(json!(many)).expect("read").expect("a result");
    assert!(text.ends_with("\n(2 more parts, which are not shown)"));
}

#[test]
fn tools_come_in_pages() {
    let config = serve(|message| match message["method"].as_str() {
        Some("tools/list") => {
            let page = message["params"]["cursor"].as_str().map_or(0, |cursor| cursor.parse::<u64>().expect("ours"));
            let next = if page < 3 { json!((page + 1).to_string()) } else { Value::Null };
            let list = json!({ "tools": [tool(&format!("tool {page}"))], "nextCursor": next });
            (200, JSON.into(), result(message, list))
        }
        _ => polite(message),
    });
    let server = McpServer::connect(&config).expect("a server");
    let names: Vec<&str> = server.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["tool 0", "tool 1", "tool 2", "tool 3"]);
    let refused = |list: fn(&Value) -> Value| {
        let config = serve(move |message| match message["method"].as_str() {
            Some("tools/list") => (200, JSON.into(), result(message, list(message))),
            _ => polite(message),
        });
        let error = McpServer::connect(&config).err().expect("refused");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        error.to_string()
    };
    assert!(refused(|_| json!({ "tools": [], "nextCursor": "again" })).contains("more than 64 pages"));
    assert!(refused(|_| json!({ "tools": [] })).contains("offers no tools"));
    assert!(refused(|_| json!({ "tools": vec![tool("a"); 257] })).contains("more than 256 tools"));
    assert!(refused(|_| json!({})).contains("has no `tools`"));
    assert!(refused(|_| json!({ "tools": [{ "name": "a" }] })).contains("has no object `inputSchema`"));
    assert!(refused(|_| json!({ "tools": [3] })).contains("has no `name`: `3`"));
}

#[test]
fn streams_hold_more_than_the_answer() {
    let config = serve(|message| match message["method"].as_str() {
        Some("tools/call") => {
            let answer = result(message, json!({ "content": [{ "type": "text", "text": "done" }] }));
            let (start, end) = answer.split_at(17);
            let aside = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
            let asks = json!({ "jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {} });
            let late = json!({ "jsonrpc": "2.0", "id": 999, "result": {} });
            let events = format!(
                ": a comment\r\nid: 1\r\ndata:\r\n\r\nevent: message\ndata: {aside}\n\ndata: {asks}\n\nevent: other\ndata: no\n\n\
                 data: {late}\n\nretry: 5\ndata: {start}\ndata: {end}\n\n"
            );
            // A JSON text may be split only where white space is allowed.
            assert!(start.ends_with(','), "{start}");
            (200, EVENTS.into(), events)
        }
        _ => polite(message),
    });
    assert_eq!(call(&config), Ok(Ok("done".into())));
}

#[test]
fn answers_that_are_none_are_told() {
    let failure = |answer: fn(&Value) -> (u16, String, String)| {
        let config = serve(move |message| match message["method"].as_str() {
            Some("tools/call") => answer(message),
            _ => polite(message),
        });
        let error = call(&config).expect_err("a failure");
        assert!(matches!(error, Error::Episode { .. }), "{error:?}");
        error.to_string()
    };
    for (answer, expected) in [
        ((|_| (200, JSON.into(), "{".into())) as fn(&Value) -> (u16, String, String), "it is not JSON"),
        (|_| (200, JSON.into(), "{\"id\": 0, \"result\": {}}".into()), "it does not answer the request"),
        (|_| (200, JSON.into(), "3".into()), "it does not answer the request"),
        (|message| (200, JSON.into(), json!({ "id": message["id"], "result": 3 }).to_string()), "no object `result`"),
        (|_| (200, JSON.into(), " ".repeat(2 << 20)), "it has more than 1048576 bytes"),
        (|_| (200, EVENTS.into(), "data: {\"id\": 0, \"result\": {}}\n\n".into()), "ended without the answer"),
        (
            |_| (200, EVENTS.into(), format!("data: {}\n\n", "x".repeat(2 << 20))),
            "an event has more than 1048576 bytes",
        ),
        (|_| (200, EVENTS.into(), "data: x\n\n".repeat(2 << 20)), "its stream has more than 16777216 bytes"),
        (
            |_| (200, EVENTS.into(), "data: {\"id\": 1, \"method\": \"ping\"}\n\n".repeat(20)),
            "it sends more than 16 requests",
        ),
        (|_| (200, "Content-Type: text/html\r\n".into(), "<p>".into()), "neither JSON nor events (`text/html`)"),
        (|_| (202, String::new(), String::new()), "neither JSON nor events (``)"),
        (|_| (503, String::new(), "busy".into()), "refused with the status 503 Service Unavailable: busy"),
        (|_| (307, "Location: http://elsewhere/mcp\r\n".into(), String::new()), "refused with the status 307"),
    ] {
        let failure = failure(answer);
        assert!(failure.contains(expected), "{expected}: {failure}");
    }
    // The policy reads a protocol error.
    let config = serve(|message| match message["method"].as_str() {
        Some("tools/call") => {
            let error = json!({ "code": -32602, "message": "no such tool" });
            (200, JSON.into(), json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }).to_string())
        }
        _ => polite(message),
    });
    assert_eq!(call(&config), Ok(Err("no such tool".into())));
}

#[test]
fn lines_of_a_stream_end_with_cr_lf_or_both() {
    for end in ["\n", "\r", "\r\n"] {
        let config = serve(move |message| match message["method"].as_str() {
            Some("tools/call") => {
                let answer = result(message, json!({ "content": [{ "type": "text", "text": "done" }] }));
                (200, EVENTS.into(), format!("event: message\ndata: {answer}\n\n").replace('\n', end))
            }
            _ => polite(message),
        });
        assert_eq!(call(&config), Ok(Ok("done".into())), "{end:?}");
    }
}

/// Calls a tool of a server with a session. Returns the result, and the methods that the server read.
fn call_in_session(
    answer: impl Fn(&Value, usize) -> (u16, String, String) + Send + Sync + 'static,
) -> (Result<CallResult>, Vec<String>) {
    let methods = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&methods);
    let config = serve(move |message| {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let mut seen = log.lock().expect("no panic");
        let calls = seen.iter().filter(|other| **other == method).count();
        seen.push(method.clone());
        match method.as_str() {
            "initialize" => {
                let (status, headers, body) = polite(message);
                (status, format!("{headers}Mcp-Session-Id: a\r\n"), body)
            }
            "tools/call" => answer(message, calls),
            _ => polite(message),
        }
    });
    let result = call(&config);
    let methods = methods.lock().expect("no panic").clone();
    (result, methods)
}

#[test]
fn the_policy_reads_a_refusal_with_an_error_status() {
    for status in [400, 422, 500] {
        let (result, methods) = call_in_session(move |message, _| {
            let error = json!({ "code": -32602, "message": "Invalid params" });
            let body = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
            (status, JSON.into(), body.to_string())
        });
        assert_eq!(result, Ok(Err("Invalid params".into())), "{status}");
        let expected = ["initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"];
        assert_eq!(methods, expected, "the session stays open until the end: {status}");
    }
}

#[test]
fn errors_that_concern_no_call_are_not_read_by_the_policy() {
    for status in [408, 429, 502, 503] {
        let (result, _) = call_in_session(move |message, _| {
            let error = json!({ "code": -32000, "message": "Too many requests" });
            let body = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
            (status, JSON.into(), body.to_string())
        });
        let error = result.expect_err("a failure").to_string();
        assert!(error.contains(&format!("refused with the status {status}")), "{error}");
    }
}

#[test]
fn a_replaced_session_is_ended() {
    for (is_numbered, code) in [(false, -32600), (true, -32600), (true, -32000), (true, -32099)] {
        let (result, methods) = call_in_session(move |message, calls| match calls {
            0 => {
                let id = if is_numbered { message["id"].clone() } else { Value::Null };
                let error = json!({ "code": code, "message": "no session" });
                (400, JSON.into(), json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string())
            }
            _ => (200, JSON.into(), result(message, json!({ "content": [{ "type": "text", "text": "done" }] }))),
        });
        assert_eq!(result, Ok(Ok("done".into())), "{code}");
        assert_eq!(
            methods[3..],
            ["tools/call", "DELETE", "initialize", "notifications/initialized", "tools/call", "DELETE"],
            "{code}"
        );
    }
}

#[test]
fn the_last_call_in_a_replaced_session_ends_it() {
    let (starts, started) = channel();
    let (ends, ended) = channel::<()>();
    let ended = Mutex::new(ended);
    let methods = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&methods);
    let config = serve(move |message| {
        let is_slow = message["params"]["arguments"]["is_slow"] == true;
        let name = if is_slow { "slow" } else { message["method"].as_str().unwrap_or_default() };
        let is_first = {
            let mut seen = log.lock().expect("no panic");
            seen.push(name.to_owned());
            seen.iter().filter(|other| *other == name).count() == 1
        };
        match name {
            "initialize" => {
                let (status, headers, body) = polite(message);
                (status, format!("{headers}Mcp-Session-Id: a\r\n"), body)
            }
            "tools/call" if is_first => (400, "Content-Type: text/plain\r\n".into(), "bad request".into()),
            "tools/call" | "slow" => {
                if is_slow {
                    starts.send(()).expect("the test waits");
                    ended.lock().expect("no panic").recv().expect("the test goes on");
                }
                (200, JSON.into(), result(message, json!({ "content": [{ "type": "text", "text": name }] })))
            }
            _ => polite(message),
        }
    });
    let server = McpServer::connect(&config).expect("a server");
    let count = || methods.lock().expect("no panic").iter().filter(|method| *method == "DELETE").count();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| server.call("do", &Map::from_iter([("is_slow".to_owned(), json!(true))])));
        started.recv().expect("it has begun");
        assert_eq!(server.call("do", &Map::new()), Ok(Ok("tools/call".into())));
        assert_eq!(count(), 0, "the slow call still uses the session");
        ends.send(()).expect("the server waits");
        assert_eq!(slow.join().expect("no panic"), Ok(Ok("slow".into())));
        assert_eq!(count(), 1);
    });
    drop(server);
    assert_eq!(count(), 2);
}

#[test]
fn a_configuration_that_fits_no_server_is_refused() {
    let refused = |config: McpConfig| {
        let error = McpServer::connect(&config).err().expect("refused");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        error.to_string()
    };
    let url = || Some("http://127.0.0.1:9/mcp".to_owned());
    let command = || vec!["true".to_owned()];
    let default = McpConfig::default;
    assert_eq!(refused(default()), "the MCP server has neither `command` nor `url`");
    let both = McpConfig { command: command(), url: url(), ..default() };
    assert_eq!(refused(both), "the MCP server has both `command` and `url`");
    let key = McpConfig { command: command(), key_variable: Some("PATH".into()), ..default() };
    assert_eq!(refused(key), "`headers` and `key_variable` are for a server with a `url`");
    let place = McpConfig { url: Some("localhost:8000".into()), ..default() };
    assert_eq!(refused(place), "the `url` of the MCP server is `localhost:8000`");
    let header = McpConfig { url: url(), headers: [("a b".to_owned(), String::new())].into(), ..default() };
    assert_eq!(refused(header), "the header `a b` of the MCP server cannot be sent");
    assert!(refused(McpConfig { timeout_s: f64::NAN, ..default() }).starts_with("`timeout_s` is NaN"));
    assert!(refused(McpConfig { url: url(), ..default() }).contains("cannot be reached"));
    let old = serve(|message| (200, JSON.into(), result(message, json!({ "protocolVersion": "1999-01-01" }))));
    assert_eq!(refused(old), "the MCP server uses the version `1999-01-01` of the protocol");
    let modern = serve(|message| {
        let error = json!({ "code": -32022, "message": "Unsupported protocol version" });
        (200, JSON.into(), json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }).to_string())
    });
    assert_eq!(refused(modern), "the MCP server refused to start: Unsupported protocol version (-32022)");
}

#[cfg(unix)]
#[test]
fn programs_that_are_no_servers_are_told() {
    let refused = |script: &str, timeout_s: f64| {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        let error =
            McpServer::connect(&McpConfig { command, timeout_s, ..McpConfig::default() }).err().expect("refused");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        format!("{error}; {}", error.hint().unwrap_or_default())
    };
    let killed = refused("kill -9 $$", 20.0);
    assert!(killed.ends_with("ended (signal: 9 (SIGKILL)); it must run until its input is closed"), "{killed}");
    assert!(
        refused("echo help >&2; exit 2", 20.0)
            .contains("the MCP server `sh` ended (exit status: 2); its last output:\nhelp")
    );
    assert!(refused("exec sleep 60", 0.2).contains("the MCP server did not answer within 0.2 s"));
    let banner = refused("echo Welcome; exec sleep 60", 4.0);
    assert!(banner.contains("it printed a line that answers no open request (`Welcome`)"), "{banner}");
    assert!(refused("tr '\\0' x < /dev/zero", 20.0).contains("printed a line of more than 1048576 bytes"));
    let error = McpServer::connect(&McpConfig { command: vec!["/nowhere/server".into()], ..McpConfig::default() });
    assert!(error.err().expect("refused").to_string().contains("could not be started"));
}

/// A silent server is ended, so that the next call starts a new one.
#[cfg(unix)]
#[test]
fn a_silent_server_is_started_again() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mark = folder.path().join("started");
    // The first process is silent after it is called. The second answers the call, which then has number 5.
    let answer =
        |id: u32, result: &str| format!("read line; echo '{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}'");
    let hello = |id| answer(id, "{\"protocolVersion\":\"2025-11-25\"}");
    let list = answer(2, "{\"tools\":[{\"name\":\"do\",\"inputSchema\":{}}]}");
    let done = answer(5, "{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}");
    let script = format!(
        "if [ -e {mark} ]; then {second}; read line; {done}; else touch {mark}; {first}; read line; {list}; fi; exec sleep 600",
        mark = mark.display(),
        first = hello(1),
        second = hello(4),
    );
    let command = ["sh", "-c", &script].map(String::from).to_vec();
    let server = McpServer::connect(&McpConfig { command, timeout_s: 5.0, ..McpConfig::default() }).expect("a server");
    let error = server.call("do", &Map::new()).expect_err("silent").to_string();
    assert_eq!(error, "the MCP server did not answer within 5 s");
    assert_eq!(server.call("do", &Map::new()), Ok(Ok("done".into())));
}

/// A call that takes too long is canceled. A server that is not silent keeps running.
#[cfg(unix)]
#[test]
fn a_late_call_is_canceled() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let seen = folder.path().join("seen");
    let answer = |id: u32, result: &str| format!("echo '{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}'");
    let script = format!(
        "read line; {hello}; read line; read line; {list}; read line; echo working; read line; echo \"$line\" > {seen}; \
         {late}; read line; {done}; exec sleep 600",
        hello = answer(1, "{\"protocolVersion\":\"2025-11-25\"}"),
        list = answer(2, "{\"tools\":[{\"name\":\"do\",\"inputSchema\":{}}]}"),
        late = answer(3, "{\"content\":[{\"type\":\"text\",\"text\":\"late\"}]}"),
        done = answer(4, "{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}"),
        seen = seen.display(),
    );
    let command = ["sh", "-c", &script].map(String::from).to_vec();
    let server = McpServer::connect(&McpConfig { command, timeout_s: 5.0, ..McpConfig::default() }).expect("a server");
    let error = server.call("do", &Map::new()).expect_err("late").to_string();
    assert!(error.ends_with("it printed a line that answers no open request (`working`)"), "{error}");
    assert_eq!(server.call("do", &Map::new()), Ok(Ok("done".into())), "the late answer is nobody's");
    let cancel: Value = serde_json::from_str(&std::fs::read_to_string(seen).expect("written")).expect("JSON");
    assert_eq!((&cancel["method"], &cancel["params"]["requestId"]), (&json!("notifications/cancelled"), &json!(3)));
}

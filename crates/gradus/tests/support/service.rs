//! A local HTTP server that answers by a function.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;

/// Time of each request with its request line, its key header if there is one, and its body.
pub type RequestLog = Arc<Mutex<Vec<(Instant, String)>>>;

/// Starts a local server that answers by a function of the request line and the body, with one connection per request.
pub fn serve(
    path: &str,
    answer: impl Fn(&str, &Value) -> (u16, &'static str, String) + Send + Sync + 'static,
) -> (String, RequestLog) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}{path}", listener.local_addr().expect("an address"));
    let (seen, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
    let log = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, log, answer) = (stream.expect("a connection"), Arc::clone(&log), Arc::clone(&answer));
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                let (mut first, mut line, mut length, mut key) = (String::new(), String::new(), 0, String::new());
                reader.read_line(&mut first).expect("a request");
                while line != "\r\n" {
                    line.clear();
                    reader.read_line(&mut line).expect("a header");
                    match line.to_ascii_lowercase().split_once(':') {
                        Some(("content-length", value)) => length = value.trim().parse().expect("a length"),
                        Some(("authorization", _)) => key = format!(" {}", line.trim()),
                        _ => {}
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).expect("a body");
                let body: Value = serde_json::from_slice(&body).expect("JSON");
                log.lock().expect("no panic").push((Instant::now(), format!("{}{key} {body}", first.trim_end())));
                let (status, headers, content) = answer(&first, &body);
                let head = format!("HTTP/1.1 {status} Said\r\nConnection: close\r\n{headers}");
                write!(stream, "{head}Content-Length: {}\r\n\r\n{content}", content.len()).expect("answered");
            });
        }
    });
    (url, seen)
}

//! Hub names, with a local server that implements the part of the hub's protocol that downloads need.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use crate::harness::{CliTest, Run, fixture_model};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Rows of the data set `acme/rows`.
const ROWS: &str = "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n";

/// Its `README.md`, which does not declare the file `data/train-1.jsonl`.
const CARD: &str = "---\nconfigs:\n- config_name: default\n  data_files: data/*-0.jsonl\n---\n";

/// Serves the files of `directory` as the model `acme/tiny`, and the data set `acme/rows`, until the test ends. Returns the endpoint.
fn serve(directory: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let directory = directory.clone();
            std::thread::spawn(move || answer(stream, &directory));
        }
    });
    endpoint
}

/// Answers every request of one connection.
fn answer(mut stream: TcpStream, directory: &Path) {
    let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    while let Some(Ok(request)) = lines.next() {
        let mut range = None;
        for line in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
            if let Some(bytes) = line.to_lowercase().strip_prefix("range: bytes=") {
                range = bytes.split_once('-').map(|(from, to)| (from.parse().ok(), to.parse().ok()));
            }
        }
        let path = request.split(' ').nth(1).unwrap_or("");
        let reply = if path.starts_with("/api/datasets/acme/rows") {
            let files = "{\"rfilename\":\"README.md\"},{\"rfilename\":\"data/train-0.jsonl\"},\
                         {\"rfilename\":\"data/train-1.jsonl\"}";
            whole("200 OK", format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{files}]}}").as_bytes())
        } else if path == "/datasets/acme/rows/resolve/main/data%2Ftrain-0.jsonl"
            || path == "/datasets/acme/rows/resolve/main/data/train-0.jsonl"
        {
            part(ROWS.as_bytes(), range)
        } else if path == "/datasets/acme/rows/resolve/main/README.md" {
            part(CARD.as_bytes(), range)
        } else if path.starts_with("/api/models/acme/tiny") {
            let names =
                std::fs::read_dir(directory).expect("the fixture").map(|entry| entry.expect("entry").file_name());
            let files: Vec<String> = names.map(|name| format!("{{\"rfilename\":{name:?}}}")).collect();
            let body = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}", files.join(","));
            whole("200 OK", body.as_bytes())
        } else if let Some(name) = path.strip_prefix("/acme/tiny/resolve/main/") {
            part(&std::fs::read(directory.join(name)).expect("a listed file"), range)
        } else {
            whole("404 Not Found", b"{}")
        };
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}

fn whole(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn part(file: &[u8], range: Option<(Option<usize>, Option<usize>)>) -> Vec<u8> {
    let (from, to) = range.unwrap_or_default();
    let from = from.unwrap_or(0).min(file.len());
    let to = to.map_or(file.len(), |to: usize| to + 1).min(file.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\n\
         ETag: \"{}-{}\"\r\nX-Repo-Commit: {COMMIT}\r\n\r\n",
        to - from,
        to.saturating_sub(1),
        file.len(),
        file.len(),
        file.iter().map(|&byte| usize::from(byte)).sum::<usize>(),
    );
    [head.as_bytes(), &file[from..to]].concat()
}

fn run(test: &CliTest, endpoint: &str, model: &str) -> Run {
    test.write("rows.jsonl", "{\"prompt\": \"The tea is\", \"completion\": \" good and warm.\"}\n");
    run_with(test, endpoint, &["score", "--model", model, "--data", "rows.jsonl"])
}

fn run_with(test: &CliTest, endpoint: &str, arguments: &[&str]) -> Run {
    let mut command = test.command(arguments);
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", test.path().join("hub")).env_remove("HF_HUB_OFFLINE");
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Run { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn a_hub_name_is_downloaded_once_and_scores_as_the_directory_does() {
    let (test, local) = (CliTest::new(), CliTest::new());
    let endpoint = serve(fixture_model("gpt2").into());
    let from_hub = run(&test, &endpoint, "acme/tiny");
    assert_eq!(from_hub.code, 0, "{}", from_hub.stderr);
    let from_directory = run(&local, &endpoint, &fixture_model("gpt2"));
    assert_eq!(from_hub.stdout, from_directory.stdout);
    // Without the server, the cache is sufficient.
    let again = run(&test, "http://127.0.0.1:9", "acme/tiny");
    assert_eq!((again.code, again.stdout), (0, from_hub.stdout), "{}", again.stderr);
}

#[test]
fn a_name_the_hub_does_not_have_and_a_hub_out_of_reach_are_told_apart() {
    let test = CliTest::new();
    let endpoint = serve(fixture_model("gpt2").into());
    let missing = run(&test, &endpoint, "acme/other");
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("`acme/other`") && missing.stderr.contains("no such public model"),
        "{}",
        missing.stderr
    );
    let offline = run(&test, "http://127.0.0.1:9", "acme/other");
    assert_eq!(offline.code, 1);
    assert!(offline.stderr.contains("the hub could not be reached"), "{}", offline.stderr);
    assert!(offline.stderr.contains("hint:") && offline.stderr.contains("pass a directory"), "{}", offline.stderr);
}

#[test]
fn a_data_set_is_downloaded_once_and_shows_how_far_it_is() {
    let test = CliTest::new();
    let endpoint = serve(fixture_model("gpt2").into());
    let show = |endpoint: &str, name: &str| run_with(&test, endpoint, &["data", "show", name]);
    let first = show(&endpoint, "acme/rows");
    assert_eq!(first.code, 0, "{}", first.stderr);
    assert!(first.stdout.contains("The kettle is warm."), "{}", first.stdout);
    let bytes = ROWS.len();
    assert!(first.stderr.contains(&format!("data/train-0.jsonl {bytes}/{bytes} ")), "{}", first.stderr);
    assert!(!first.stderr.contains("data/train-1.jsonl"), "{}", first.stderr);
    let again = show("http://127.0.0.1:9", "acme/rows");
    assert_eq!((again.code, again.stdout), (0, first.stdout), "{}", again.stderr);
    let missing = show(&endpoint, "acme/none");
    assert!(missing.stderr.contains("data set `acme/none`") && missing.stderr.contains("no such public data set"));
}

#[test]
fn models_that_metrics_ask_are_downloaded_with_the_others_and_counted() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n".repeat(8));
    let endpoint = serve(fixture_model("gpt2").into());
    let write = |name: &str, metrics: &str| {
        let model = fixture_model("gpt2");
        let text = format!(
            "model: {model}\ndata: rows.jsonl\nmethod: {{ sft: {{}} }}\ntrain: {{ max_steps: 1, evaluation: {{ max_new_tokens: 4, metrics: [{metrics}] }} }}\n"
        );
        test.write(name, &text);
    };
    write("plain.yml", "exact_match");
    write("asks.yml", "{ perplexity: { model: acme/tiny } }");
    let plan = |endpoint: &str, file: &str| run_with(&test, endpoint, &["plan", file, "--json"]);
    let weights = |run: &Run| {
        assert_eq!(run.code, 0, "{}", run.stderr);
        let report: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
        report["phases"].as_array().expect("phases").iter().map(|of| of["weights"].as_u64().unwrap_or(0)).max()
    };
    // Without the server, the model is not available yet.
    let missing = plan("http://127.0.0.1:9", "asks.yml");
    assert!(missing.code == 1 && missing.stderr.contains("acme/tiny"), "{}", missing.stderr);
    let (plain, asks) = (weights(&plan(&endpoint, "plain.yml")), weights(&plan(&endpoint, "asks.yml")));
    assert!(asks > plain, "{asks:?} and {plain:?}");
    // The model is now in the cache.
    assert_eq!(weights(&plan("http://127.0.0.1:9", "asks.yml")), asks);
}

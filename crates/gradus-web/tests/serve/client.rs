//! A separate server for each test, and a client that sends requests as given, valid or invalid.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gradus::device::DeviceChoice;
use gradus::model::WeightFormat;
use gradus::pretrained::TextFiles;
use gradus_web::{Address, ComputeOptions, Options, RunStarter, TrainingOptions, serve};
use serde_json::{Value, json};

/// A server for a folder.
pub struct Server {
    pub address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<gradus::Result<()>>>,
}

/// Response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Returns the path of a tiny model from the library's fixtures.
pub fn fixture(name: &str) -> String {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/models");
    let path = fs::canonicalize(Path::new(models).join(name)).expect("the fixture is part of the repository");
    path.to_str().expect("the path is UTF-8").to_owned()
}

/// Creates a folder with copies of tiny models.
pub fn folder(models: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in models {
        let to = folder.path().join(name);
        fs::create_dir(&to).expect("a folder");
        for entry in fs::read_dir(fixture(name)).expect("a fixture") {
            let from = entry.expect("a file").path();
            fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("copied");
        }
    }
    folder
}

/// Writes a token classifier with these labels to `folder`.
pub fn classifier(folder: &Path, name: &str, labels: [&str; 3]) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/encoders");
    let to = folder.join(name);
    fs::create_dir_all(&to).expect("a folder");
    for (from, files) in [
        ("longformer-token", ["config.json", "model.safetensors"]),
        ("longformer", ["tokenizer.json", "tokenizer_config.json"]),
    ] {
        for file in files {
            fs::copy(fixtures.join(from).join(file), to.join(file)).expect("copied");
        }
    }
    let config = fs::read(to.join("config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["id2label"] = labels.iter().enumerate().map(|(i, label)| (i.to_string(), json!(label))).collect();
    config["label2id"] = labels.iter().enumerate().map(|(i, label)| ((*label).to_owned(), json!(i))).collect();
    fs::write(to.join("config.json"), config.to_string()).expect("written");
}

/// Writes a run whose reward judges segments with `model`.
pub fn dense(folder: &Path, name: &str, model: &str) {
    let path = folder.join(name);
    fs::create_dir_all(&path).expect("a folder");
    let config = format!(
        "model: gpt2\ndata: tea.jsonl\nmethod:\n  ppo: {{}}\nreward:\n  mix:\n    - weight: 2\n      reward:\n        fine_grained:\n          \
         facts: {{ model: {model}, prompt: '{{question}} answer:', values: {{ O: 0.5, NF-ERR: -0.25, F-ERR: -0.5 }} }}\n          \
         flow: {{ model: {model}, segments: sub_sentence, values: {{ O: 0.1, F-ERR: -0.1 }}, weight: 3 }}\n"
    );
    fs::write(path.join("config.yml"), config).expect("written");
    fs::write(path.join("metrics.jsonl"), "{\"step\": 1, \"loss\": 2.0}\n").expect("written");
}

impl Server {
    /// Serves `folder` on the loopback address.
    pub fn over(folder: &Path) -> Self {
        Self::at(folder, IpAddr::from([127, 0, 0, 1]))
    }

    /// Serves `folder` at `host`.
    pub fn at(folder: &Path, host: IpAddr) -> Self {
        Self::with(folder, host, None)
    }

    /// Serves `folder` at `host`, with `trainer` to start runs.
    pub fn with(folder: &Path, host: IpAddr, starter: Option<Arc<dyn RunStarter>>) -> Self {
        Self::of(folder, host, |options| options.starter = starter)
    }

    /// Serves `folder` at `host` with the training API.
    pub fn training(folder: &Path, host: IpAddr, training: TrainingOptions) -> Self {
        Self::of(folder, host, |options| options.training_api = Some(training))
    }

    /// Serves `folder` at `host`, with options modified by `set`.
    pub fn of(folder: &Path, host: IpAddr, set: impl FnOnce(&mut Options)) -> Self {
        let computing = ComputeOptions { device: DeviceChoice::cpu(), weights: WeightFormat::F32, places: 4 };
        let (folder, names, models) = (folder.to_owned(), Vec::new(), Vec::new());
        let (training_api, starter, weights, weights_token) = (None, None, Vec::new(), None);
        let mut options = Options {
            folder,
            host,
            port: 0,
            names,
            models,
            text: TextFiles::default(),
            computing,
            training_api,
            starter,
            weights,
            weights_token,
        };
        set(&mut options);
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = channel();
        let stop_flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut ready = |address: &Address| sender.send(address.clone()).expect("the test listens");
            serve(options, &mut ready, &|| stop_flag.load(Ordering::SeqCst))
        });
        let address = receiver.recv().expect("the server starts");
        Self { address, stop, thread: Some(thread) }
    }

    /// Returns the value of the `Host` header for this server.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.address.socket.port())
    }

    /// Wraps a server that runs in another process on this machine.
    pub fn elsewhere(socket: SocketAddr) -> Self {
        Self { address: Address { socket, token: None, weights_token: None }, stop: Arc::default(), thread: None }
    }

    /// Sends bytes unchanged and returns everything received until the server closes the connection.
    pub fn raw(&self, request: &[u8]) -> Answer {
        self.reach(request).expect("the server listens")
    }

    /// Like [`Self::raw`], for a server that may have ended.
    fn reach(&self, request: &[u8]) -> Option<Answer> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.address.socket.port())).ok()?;
        // The server rejects a request that is too large before it has read all of it, so a failed write is not an error.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        Some(Answer { status, head: head.to_owned(), body: if chunked { joined(body) } else { body.to_owned() } })
    }

    /// Sends a request with these headers in addition to `Host`.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.raw(self.request(method, path, headers, body).as_bytes())
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
        let host = self.host();
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request += &format!("Host: {host}\r\n");
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        format!("{request}\r\n{body}")
    }

    /// Requests a page.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// Sends a request with a binary body.
    pub fn post_bytes(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nConnection: close\r\nHost: {}\r\nContent-Length: {}\r\n",
            self.host(),
            body.len()
        );
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.raw(&[format!("{request}\r\n").as_bytes(), body].concat())
    }

    /// Sends a JSON request of a program.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.join();
        if !std::thread::panicking() {
            ended.expect("the server does not panic").expect("the server ends well");
        }
    }
}

impl Answer {
    /// Parses the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the values of an event stream, and whether it ended with `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> (Vec<Value>, bool) {
        let lines: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let is_done = lines.last() == Some(&"[DONE]");
        let values = lines.iter().filter(|line| **line != "[DONE]");
        (values.map(|line| serde_json::from_str(line).expect("JSON")).collect(), is_done)
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the name and value of the cookie that the response sets.
    pub fn cookie(&self) -> Option<&str> {
        self.header("set-cookie")?.split(';').next()
    }
}

/// A visitor of pages: a session together with the CSRF token of its pages.
pub struct Visitor<'a> {
    server: &'a Server,
    /// Cookie for the server's token, if the server has one.
    entered: Option<String>,
    /// Session cookie, and the CSRF token of its pages.
    session: Mutex<(String, String)>,
}

impl<'a> Visitor<'a> {
    /// Starts a new session.
    pub fn of(server: &'a Server) -> Self {
        let token = server.address.token.as_ref().map(|token| format!("/?token={token}"));
        let entered = token.map(|path| server.get(&path).cookie().expect("a cookie").to_owned());
        let visitor = Self { server, entered, session: Mutex::default() };
        let page = visitor.get("/annotate");
        visitor.begin(page.cookie().expect("a session").to_owned());
        visitor
    }

    /// Switches to another session.
    fn begin(&self, cookie: String) {
        *self.session.lock().expect("nobody panicked") = (cookie, String::new());
        let page = self.get("/annotate").body;
        let csrf = page.split("name=\"csrf\" content=\"").nth(1).and_then(|rest| rest.split('"').next());
        self.session.lock().expect("nobody panicked").1 = csrf.expect("the page knows its token").to_owned();
    }

    /// Returns the cookies and the CSRF token.
    fn known(&self) -> (String, String) {
        let (session, csrf) = self.session.lock().expect("nobody panicked").clone();
        let cookies = self.entered.iter().cloned().chain([session].into_iter().filter(|cookie| !cookie.is_empty()));
        (cookies.collect::<Vec<_>>().join("; "), csrf)
    }

    /// Requests a page.
    pub fn get(&self, path: &str) -> Answer {
        self.server.ask("GET", path, &[("Cookie", &self.known().0)], "")
    }

    /// Submits a form. After signing in, the visitor uses the session from the response.
    pub fn form(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let plain = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}={}", plain(name), plain(value))).collect();
        let (cookie, csrf) = self.known();
        let body = format!("csrf={csrf}&{}", fields.join("&"));
        let kind = ("Content-Type", "application/x-www-form-urlencoded");
        let answer = self.server.ask("POST", path, &[("Cookie", &cookie), kind], &body);
        if let Some(cookie) = answer.cookie() {
            self.begin(cookie.to_owned());
        }
        answer
    }

    /// Sends a request the way a script of the page does.
    pub fn script(&self, path: &str, body: &Value) -> Answer {
        self.try_script(path, body).expect("the server listens")
    }

    /// Like [`Self::script`], for a server that may have ended.
    pub fn try_script(&self, path: &str, body: &Value) -> Option<Answer> {
        let (cookie, csrf) = self.known();
        let headers = [("Cookie", cookie.as_str()), ("X-CSRF-Token", &csrf), ("Content-Type", "application/json")];
        self.server.reach(self.server.request("POST", path, &headers, &body.to_string()).as_bytes())
    }
}

/// Joins the chunks of a chunked body.
fn joined(body: &str) -> String {
    let (mut rest, mut whole) = (body.as_bytes(), Vec::new());
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text.trim(), 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && end + 2 + size <= rest.len()) else { break };
        whole.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    String::from_utf8(whole).expect("UTF-8")
}

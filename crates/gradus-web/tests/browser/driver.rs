//! A browser, driven over its debugging protocol through a pipe: one JSON value after the other, each ended by a zero byte.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::skip::skipped;

/// How long a page may take to become what a test waits for.
const PATIENCE: Duration = Duration::from_secs(300);

/// Names that browsers of Chromium's family go by.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    /// What the browser told without being asked.
    told: VecDeque<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// A new browser; `None`, and a visible line, where there is none.
    pub fn open() -> Option<Self> {
        let is_there = |name: &&str| {
            let asked = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            asked.is_ok_and(|status| status.success())
        };
        let Some(name) = NAMES.into_iter().find(is_there) else {
            skipped("browser", "there is no chromium");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        let options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions \
             --disable-background-networking --disable-component-update --remote-debugging-pipe --hide-scrollbars";
        // The protocol's pipes are 3 and 4.
        let line =
            format!("exec {name} {options} --user-data-dir=\"$0\" about:blank 3<&0 4>&1 0</dev/null 1>/dev/null");
        let mut child = Command::new("sh")
            .args(["-c", &line])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let (session, sent, told) = (None, 0, VecDeque::new());
        let mut browser = Self { child, to, from, session, sent, told, _profile: profile };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 800, false);
        Some(browser)
    }

    /// Asks the browser for something, and waits for what it answers.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// What the browser answers, or what it says is wrong.
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.sent += 1;
        let id = self.sent;
        let mut request = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{request}\0").as_bytes()).expect("the browser listens");
        loop {
            let value = self.next();
            if value["id"] == id {
                return match &value["error"] {
                    Value::Null => Ok(value["result"].clone()),
                    error => Err(error.clone()),
                };
            }
            self.told.push_back(value);
        }
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("the browser answers");
        bytes.pop();
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("the browser has ended: {error}"))
    }

    /// The size of the window.
    pub fn size(&mut self, width: u32, height: u32, is_narrow: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_narrow });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Whether the system is dark.
    pub fn dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Goes to an address, and waits until the page is there with its scripts.
    #[track_caller]
    pub fn go(&mut self, url: &str) {
        self.eval("window.isLeft = true");
        let gone = self.call("Page.navigate", json!({ "url": url }));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        self.loaded();
    }

    /// Loads the page again.
    #[track_caller]
    pub fn reload(&mut self) {
        self.eval("window.isLeft = true");
        self.call("Page.reload", json!({}));
        self.loaded();
    }

    /// Waits until another page is there with its scripts.
    #[track_caller]
    pub fn loaded(&mut self) {
        self.wait("!window.isLeft && document.readyState === 'complete'");
    }

    /// What an expression of the page is.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let result = self.evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let asked =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        self.ask("Runtime.evaluate", asked)
    }

    /// Waits until an expression of the page is true. A page that gives way to another while it is asked has not answered yet.
    #[track_caller]
    pub fn wait(&mut self, expression: &str) {
        let begun = Instant::now();
        let asked = format!("Boolean({expression})");
        while !self.evaluate(&asked).is_ok_and(|answer| answer["result"]["value"] == true) {
            assert!(begun.elapsed() < PATIENCE, "never true: {expression}\n{}", self.eval("document.body.innerText"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The text that is shown of an element.
    #[track_caller]
    pub fn text(&mut self, selector: &str) -> String {
        let found = self.eval(&format!("document.querySelector({})?.innerText", json!(selector)));
        found.as_str().unwrap_or_else(|| panic!("nothing is {selector}")).to_owned()
    }

    /// Clicks in the middle of an element, with the mouse.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null; e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }})()",
            json!(selector)
        ));
        let (Some(x), Some(y)) = (place[0].as_f64(), place[1].as_f64()) else { panic!("nothing is {selector}") };
        self.mouse("mouseMoved", x, y);
        self.mouse("mousePressed", x, y);
        self.mouse("mouseReleased", x, y);
    }

    /// Something that the mouse does.
    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let (button, buttons) = if kind == "mouseMoved" { ("none", 0) } else { ("left", 1) };
        let event = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// A touch in the middle of an element.
    #[track_caller]
    pub fn tap(&mut self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null; e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }})()",
            json!(selector)
        ));
        let (Some(x), Some(y)) = (place[0].as_f64(), place[1].as_f64()) else { panic!("nothing is {selector}") };
        let points = json!([{ "x": x, "y": y }]);
        self.call("Input.dispatchTouchEvent", json!({ "type": "touchStart", "touchPoints": points }));
        self.call("Input.dispatchTouchEvent", json!({ "type": "touchEnd", "touchPoints": [] }));
    }

    /// Whether the page reaches the network.
    pub fn offline(&mut self, is_offline: bool) {
        let speed = json!({ "offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.call("Network.emulateNetworkConditions", speed);
    }

    /// Types text where the focus is.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key where the focus is: `Tab`, `Enter`, `Escape`, ` `, a letter or a digit; `modifiers` as the protocol
    /// counts them (2 is Ctrl, 8 is Shift).
    pub fn key(&mut self, key: &str, modifiers: u32) {
        let (code, number, text) = match key {
            "Tab" => ("Tab".to_owned(), 9, None),
            "Enter" => ("Enter".to_owned(), 13, Some("\r")),
            "Escape" => ("Escape".to_owned(), 27, None),
            "ArrowLeft" => (key.to_owned(), 37, None),
            "ArrowRight" => (key.to_owned(), 39, None),
            "ArrowDown" => (key.to_owned(), 40, None),
            "Home" => (key.to_owned(), 36, None),
            "End" => (key.to_owned(), 35, None),
            " " => ("Space".to_owned(), 32, Some(" ")),
            digit if digit.parse::<u8>().is_ok() => {
                (format!("Digit{digit}"), u32::from(digit.as_bytes()[0]), Some(key))
            }
            letter => {
                (format!("Key{}", letter.to_uppercase()), u32::from(letter.to_uppercase().as_bytes()[0]), Some(key))
            }
        };
        let mut event = json!({ "type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers });
        if let Some(text) = text.filter(|_| modifiers & 2 == 0) {
            event["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = json!("keyUp");
        event.as_object_mut().expect("an object").remove("text");
        self.call("Input.dispatchKeyEvent", event);
    }

    /// Moves the focus with the Tab key until it is on an element that fits.
    #[track_caller]
    pub fn tab_to(&mut self, selector: &str) {
        for _ in 0..200 {
            if self.eval(&format!("document.activeElement.matches({})", json!(selector))) == true {
                return;
            }
            self.key("Tab", 0);
        }
        panic!("the Tab key never reaches {selector}");
    }

    /// What the page was told off for: errors of scripts, what its policy forbids, what could not be loaded.
    pub fn complaints(&mut self) -> Vec<String> {
        self.eval("1");
        let is_complaint = |value: &Value| match value["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => value["params"]["entry"]["level"] == "error",
            Some("Network.requestWillBeSent") => {
                let url = value["params"]["request"]["url"].as_str().unwrap_or_default();
                !["http://127.0.0.1:", "data:", "about:"].iter().any(|own| url.starts_with(own))
            }
            _ => false,
        };
        self.told.iter().filter(|value| is_complaint(value)).map(|value| value["params"].to_string()).collect()
    }

    /// A picture of the whole page, as PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let taken = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        base64(taken["data"].as_str().expect("a picture"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte: &u8| alphabet.iter().position(|known| known == byte).map(|at| at as u32);
    let digits: Vec<u32> = text.as_bytes().iter().filter_map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let word = group.iter().enumerate().fold(0, |word, (i, digit)| word | digit << (18 - 6 * i));
        bytes.extend_from_slice(&word.to_be_bytes()[1..group.len()]);
    }
    bytes
}

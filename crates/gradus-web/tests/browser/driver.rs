//! A browser driven over its debugging protocol through a pipe. Messages are JSON values, each terminated by a zero byte.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::skip::skipped;

/// Maximum time to wait for a condition on a page.
const PATIENCE: Duration = Duration::from_secs(300);

/// Executable names of Chromium-based browsers.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    /// Events that the browser sent without a request.
    events: VecDeque<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser. If none is installed, prints a message and returns `None`.
    pub fn open() -> Option<Self> {
        let is_there = |name: &&str| {
            let output = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            output.is_ok_and(|status| status.success())
        };
        let Some(name) = NAMES.into_iter().find(is_there) else {
            skipped("browser", "there is no chromium");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        let options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions \
             --disable-background-networking --disable-component-update --remote-debugging-pipe --hide-scrollbars";
        // The protocol uses file descriptors 3 and 4.
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
        let (session, sent, events) = (None, 0, VecDeque::new());
        let mut browser = Self { child, to, from, session, sent, events, _profile: profile };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 800, false);
        Some(browser)
    }

    /// Calls a method of the browser and returns its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Returns the result of the call, or the error that the browser reports.
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
            self.events.push_back(value);
        }
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("the browser answers");
        bytes.pop();
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("the browser has ended: {error}"))
    }

    /// Sets the size of the window.
    pub fn size(&mut self, width: u32, height: u32, is_narrow: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_narrow });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets whether the system prefers dark mode.
    pub fn dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Opens an address and waits until the page and its scripts are loaded.
    #[track_caller]
    pub fn go(&mut self, url: &str) {
        self.eval("window.isLeft = true");
        let gone = self.call("Page.navigate", json!({ "url": url }));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        self.loaded();
    }

    /// Reloads the page.
    #[track_caller]
    pub fn reload(&mut self) {
        self.eval("window.isLeft = true");
        self.call("Page.reload", json!({}));
        self.loaded();
    }

    /// Waits until a new page and its scripts are loaded.
    #[track_caller]
    pub fn loaded(&mut self) {
        self.wait("!window.isLeft && document.readyState === 'complete'");
    }

    /// Evaluates an expression on the page.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let result = self.evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        self.ask("Runtime.evaluate", params)
    }

    /// Waits until an expression, or the value that it promises, is true on the page. An evaluation that fails because the page is being
    /// replaced is retried.
    #[track_caller]
    pub fn wait(&mut self, expression: &str) {
        let begun = Instant::now();
        // A promise itself counts as true.
        let condition = format!("(async () => Boolean(await ({expression})))()");
        while !self.evaluate(&condition).is_ok_and(|answer| answer["result"]["value"] == true) {
            assert!(begun.elapsed() < PATIENCE, "never true: {expression}\n{}", self.eval("document.body.innerText"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the visible text of an element.
    #[track_caller]
    pub fn text(&mut self, selector: &str) -> String {
        let found = self.eval(&format!("document.querySelector({})?.innerText", json!(selector)));
        found.as_str().unwrap_or_else(|| panic!("nothing is {selector}")).to_owned()
    }

    /// Scrolls to an element and returns its middle. Waits until the element exists, is visible, and no longer moves between two frames.
    #[track_caller]
    fn place(&mut self, selector: &str) -> (f64, f64) {
        let selector = json!(selector);
        self.wait(&format!(
            "(async () => {{ \
                const place = () => {{ \
                    const e = document.querySelector({selector}); \
                    e?.scrollIntoView({{block: 'center'}}); \
                    const r = e?.getBoundingClientRect(); \
                    return r && r.width * r.height > 0 ? [r.x + r.width / 2, r.y + r.height / 2] : null; \
                }}; \
                const before = place(); \
                await new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then))); \
                window.placed = place(); \
                return before && String(before) === String(window.placed); \
            }})()"
        ));
        let place = self.eval("window.placed");
        (place[0].as_f64().expect("a place"), place[1].as_f64().expect("a place"))
    }

    /// Clicks with the mouse in the middle of an element.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let (x, y) = self.place(selector);
        self.mouse("mouseMoved", x, y);
        self.mouse("mousePressed", x, y);
        self.mouse("mouseReleased", x, y);
    }

    /// Sends a mouse event.
    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let (button, buttons) = if kind == "mouseMoved" { ("none", 0) } else { ("left", 1) };
        let event = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Taps in the middle of an element.
    #[track_caller]
    pub fn tap(&mut self, selector: &str) {
        let (x, y) = self.place(selector);
        let points = json!([{ "x": x, "y": y }]);
        self.call("Input.dispatchTouchEvent", json!({ "type": "touchStart", "touchPoints": points }));
        self.call("Input.dispatchTouchEvent", json!({ "type": "touchEnd", "touchPoints": [] }));
    }

    /// Sets whether the page is offline.
    pub fn offline(&mut self, is_offline: bool) {
        let speed = json!({ "offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.call("Network.emulateNetworkConditions", speed);
    }

    /// Types text into the focused element.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key in the focused element: `Tab`, `Enter`, `Escape`, ` `, a letter or a digit. `modifiers` uses the protocol's bits (2 is
    /// Ctrl, 8 is Shift).
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

    /// Presses Tab until the focus is on an element that matches the selector.
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

    /// Returns all problems that the browser reported: script errors, violations of the content security policy, and failed loads.
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
        self.events.iter().filter(|value| is_complaint(value)).map(|value| value["params"].to_string()).collect()
    }

    /// Takes a screenshot of the whole page as PNG.
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

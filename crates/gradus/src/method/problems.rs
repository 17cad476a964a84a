//! Problems of a configuration that the rules report.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::error::{Diagnostic, Location};
use crate::rollout::server::{has_user, key_hint};

/// A problem and the keys that it concerns.
#[derive(Debug)]
pub struct Problem {
    /// Dotted keys.
    pub keys: Vec<String>,
    /// Message, locations and hint.
    pub diagnostic: Diagnostic,
}

/// Collects problems and maps dotted keys to locations in files.
pub struct Problems<'a> {
    location: &'a dyn Fn(&str) -> Option<Location>,
    problems: Vec<Problem>,
}

impl<'a> Problems<'a> {
    /// Creates an empty collection; `location` returns where a key was written.
    pub fn new(location: &'a dyn Fn(&str) -> Option<Location>) -> Self {
        Self { location, problems: Vec::new() }
    }

    /// Returns all problems in the order in which they were reported.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Reports a problem with `keys` unless `is_valid`. The message states values and bounds; the hint suggests a solution.
    pub fn require(&mut self, is_valid: bool, keys: &[&str], problem: impl FnOnce() -> (String, Option<String>)) {
        if is_valid {
            return;
        }
        let (message, hint) = problem();
        let locations = keys.iter().filter_map(|key| (self.location)(key)).collect();
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.problems.push(Problem { keys, diagnostic: Diagnostic { message, locations, hint } });
    }

    /// Reports that the first of `keys` is given without `reader`, which alone reads it, unless `is_valid`. `remedy` says how to choose the
    /// reader.
    pub fn only_read_by(&mut self, is_valid: bool, keys: &[&str], reader: &str, remedy: &str) {
        self.require(is_valid, keys, || {
            let message = format!("`{}` is given, but only {reader} reads it", keys[0]);
            (message, Some(format!("leave it out, or {remedy}")))
        });
    }

    /// Reports a value below `least`.
    pub fn at_least<T: PartialOrd + Debug>(&mut self, key: &str, value: T, least: T) {
        self.require(value >= least, &[key], || {
            (format!("`{key}` is {}, but must be at least {}", number(value), number(least)), None)
        });
    }

    /// Reports a value above `most`.
    pub fn at_most<T: PartialOrd + Debug>(&mut self, key: &str, value: T, most: T) {
        self.require(value <= most, &[key], || {
            (format!("`{key}` is {}, but must be at most {}", number(value), number(most)), None)
        });
    }

    /// Reports a value that is not above 0.
    pub fn above_zero(&mut self, key: &str, value: f64) {
        self.require(value > 0.0, &[key], || (format!("`{key}` is {}, but must be above 0", number(value)), None));
    }

    /// Reports a value outside `bounds`, both ends included.
    pub fn within(&mut self, key: &str, value: f64, bounds: RangeInclusive<f64>) {
        let (low, high) = (bounds.start(), bounds.end());
        self.require(bounds.contains(&value), &[key], || {
            (format!("`{key}` is {}, but must be from {low} to {high}", number(value)), None)
        });
    }

    /// Reports a value that is negative or not below `high`.
    pub fn zero_to_below(&mut self, key: &str, value: f64, high: f64) {
        self.require((0.0..high).contains(&value), &[key], || {
            (format!("`{key}` is {}, but must be at least 0 and below {high}", number(value)), None)
        });
    }

    /// Reports a value that is not strictly between `low` and `high`.
    pub fn between(&mut self, key: &str, value: f64, low: f64, high: f64) {
        self.require(value > low && value < high, &[key], || {
            (format!("`{key}` is {}, but must be between {low} and {high}", number(value)), None)
        });
    }

    /// Checks the keys of a server below `keys`: its address, the number of concurrent requests, the time limit of a request and the time
    /// to wait for the server.
    pub fn server(&mut self, keys: &str, url: &str, connections: usize, (timeout_s, wait_s): (f64, f64)) {
        let key = |name: &str| format!("{keys}.{name}");
        if has_user(url) {
            let message = format!(
                "`{keys}.server` has a name or a key before an `@`, but the run stores and shows this address: it must hold no key"
            );
            // A location would quote the line with the key.
            let diagnostic = Diagnostic { message, locations: Vec::new(), hint: Some(key_hint(keys)) };
            self.problems.push(Problem { keys: vec![key("server")], diagnostic });
        } else {
            self.require(url.starts_with("http://") || url.starts_with("https://"), &[&key("server")], || {
                let problem = if url.is_empty() { "missing".into() } else { format!("`{url}`") };
                let message = format!("`{keys}.server` is {problem}, but must begin with `http://` or `https://`");
                (message, Some("give the address of the server, such as http://localhost:8000".into()))
            });
        }
        self.at_least(&key("connections"), connections, 1);
        for (key, seconds) in [(key("timeout_s"), timeout_s), (key("wait_s"), wait_s)] {
            self.above_zero(&key, seconds);
            self.require(seconds < 1e6, &[&key], || (format!("`{key}` is {seconds}, but must be below 1000000"), None));
        }
    }
}

/// Formats a number as people write it: `1` and `-1e-6`, not `1.0` or `-0.000001`.
fn number(value: impl Debug) -> String {
    let text = format!("{value:?}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

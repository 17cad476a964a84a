//! Problems of a configuration, as rules find them.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::error::{Diagnostic, Place};

/// A problem, and the keys it is about.
#[derive(Debug)]
pub struct Found {
    /// Dotted keys.
    pub keys: Vec<String>,
    /// What is wrong, where, and the way out.
    pub diagnostic: Diagnostic,
}

/// Collects problems; dotted keys become places.
pub struct Problems<'a> {
    place: &'a dyn Fn(&str) -> Option<Place>,
    found: Vec<Found>,
}

impl<'a> Problems<'a> {
    /// None yet; `place` says where a key was written.
    pub fn new(place: &'a dyn Fn(&str) -> Option<Place>) -> Self {
        Self { place, found: Vec::new() }
    }

    /// All of them, in the order in which they were noted.
    pub fn into_found(self) -> Vec<Found> {
        self.found
    }

    /// Notes a problem with `keys` unless `fine`. The message names values and bounds; the hint says the way out.
    pub fn unless(&mut self, fine: bool, keys: &[&str], problem: impl FnOnce() -> (String, Option<String>)) {
        if fine {
            return;
        }
        let (message, hint) = problem();
        let places = keys.iter().filter_map(|key| (self.place)(key)).collect();
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.found.push(Found { keys, diagnostic: Diagnostic { message, places, hint } });
    }

    /// From `least` on.
    pub fn at_least<T: PartialOrd + Debug>(&mut self, key: &str, value: T, least: T) {
        self.unless(value >= least, &[key], || {
            (format!("`{key}` is {}, but must be at least {}", number(value), number(least)), None)
        });
    }

    /// 0 excluded.
    pub fn above_zero(&mut self, key: &str, value: f64) {
        self.unless(value > 0.0, &[key], || (format!("`{key}` is {}, but must be above 0", number(value)), None));
    }

    /// Both ends included.
    pub fn within(&mut self, key: &str, value: f64, bounds: RangeInclusive<f64>) {
        let (low, high) = (bounds.start(), bounds.end());
        self.unless(bounds.contains(&value), &[key], || {
            (format!("`{key}` is {}, but must be from {low} to {high}", number(value)), None)
        });
    }

    /// From 0, which is allowed, to `high`, which is not.
    pub fn zero_to_below(&mut self, key: &str, value: f64, high: f64) {
        self.unless((0.0..high).contains(&value), &[key], || {
            (format!("`{key}` is {}, but must be at least 0 and below {high}", number(value)), None)
        });
    }

    /// Both ends excluded.
    pub fn between(&mut self, key: &str, value: f64, low: f64, high: f64) {
        self.unless(value > low && value < high, &[key], || {
            (format!("`{key}` is {}, but must lie between {low} and {high}", number(value)), None)
        });
    }

    /// The keys of a server below `keys`: its address, how many requests it gets at a time, how long one may take and how long it is
    /// waited for.
    pub fn server(&mut self, keys: &str, url: &str, connections: usize, (timeout_s, wait_s): (f64, f64)) {
        let key = |name: &str| format!("{keys}.{name}");
        self.unless(url.starts_with("http://") || url.starts_with("https://"), &[&key("server")], || {
            let message = format!("`{keys}.server` is `{url}`, but must begin with `http://` or `https://`");
            (message, Some("give the address of the server, such as http://localhost:8000".into()))
        });
        self.at_least(&key("connections"), connections, 1);
        for (key, seconds) in [(key("timeout_s"), timeout_s), (key("wait_s"), wait_s)] {
            self.above_zero(&key, seconds);
            self.unless(seconds < 1e6, &[&key], || (format!("`{key}` is {seconds}, but must be below 1000000"), None));
        }
    }
}

/// As people write it: `1` and `-1e-6`, neither `1.0` nor `-0.000001`.
fn number(value: impl Debug) -> String {
    let text = format!("{value:?}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

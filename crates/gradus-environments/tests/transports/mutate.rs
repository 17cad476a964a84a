//! Random changes of answers. The same seed and case give the same change.

use serde_json::{Map, Value};

/// A small generator (SplitMix64, Steele et al. 2014).
pub struct Dice(u64);

impl Dice {
    pub fn of(seed: u64, case: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ case);
        dice.next();
        dice
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Tokens that are hard to parse: numbers at the limits of types, other types, ends of input, deep nesting, marks.
const TOKENS: [&str; 24] = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-0",
    "18446744073709551616",
    "9223372036854775808",
    "-1",
    "0.5",
    "null",
    "true",
    "\"",
    "\\u0000",
    "\\ud800",
    "{",
    "}",
    "[",
    "]",
    "[[[[[[[[",
    ",",
    ":",
    "\u{1b}]0;x\u{7}",
    "\u{202e}",
    "\r",
];

/// Returns a value of another type or size.
fn odd_value(dice: &mut Dice) -> Value {
    match dice.below(14) {
        0 => Value::Null,
        1 => Value::Bool(dice.one_in(2)),
        2 => Value::from(u64::MAX),
        3 => Value::from(i64::MIN),
        4 => Value::from(1e308),
        5 => Value::from(-1.5),
        6 => Value::from(""),
        7 => Value::from("\u{0}\u{1b}[2J\u{202e}"),
        8 => Value::from("x".repeat(1 << dice.below(20))),
        9 => Value::Array(Vec::new()),
        10 => Value::Array(vec![Value::from(1); 1 << dice.below(16)]),
        11 => Value::Object(Map::new()),
        12 => (0..dice.below(200)).fold(Value::Null, |inner, _| Value::Array(vec![inner])),
        _ => (0..1 << dice.below(10)).map(|i| (i.to_string(), Value::from(i))).collect::<Map<String, Value>>().into(),
    }
}

/// Changes one value somewhere in `value`.
fn change_value(dice: &mut Dice, value: &mut Value) {
    let inner = match value {
        Value::Object(map) if !map.is_empty() && !dice.one_in(8) => {
            let at = dice.below(map.len());
            let key = map.keys().nth(at).cloned().unwrap_or_default();
            if dice.one_in(6) {
                map.remove(&key);
                return;
            }
            map.get_mut(&key)
        }
        Value::Array(list) if !list.is_empty() && !dice.one_in(8) => {
            let at = dice.below(list.len());
            list.get_mut(at)
        }
        _ => None,
    };
    match inner {
        Some(inner) => change_value(dice, inner),
        None => *value = odd_value(dice),
    }
}

/// Changes some of the bytes.
pub fn change_bytes(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let (one, other) = (dice.below(bytes.len() + 1), dice.below(bytes.len() + 1));
    let (from, to) = (one.min(other), one.max(other).min(one.min(other) + 60));
    match dice.below(7) {
        0 if !bytes.is_empty() => {
            let at = one.min(bytes.len() - 1);
            bytes[at] ^= 1 << dice.below(8);
        }
        1 => drop(bytes.drain(from..to)),
        2 => {
            let again = bytes[from..to].to_vec();
            bytes.splice(to..to, again);
        }
        3 => bytes.truncate(one),
        4 => {
            if let Some(at) = (one..bytes.len()).find(|&at| bytes[at].is_ascii_digit()) {
                let end = (at..bytes.len()).find(|&at| !bytes[at].is_ascii_digit()).unwrap_or(bytes.len());
                bytes.splice(at..end, TOKENS[dice.below(9)].bytes());
            }
        }
        5 if dice.one_in(20) => {
            let many = TOKENS[dice.below(TOKENS.len())].repeat(1 << dice.below(18));
            bytes.splice(one..one, many.into_bytes());
        }
        _ => drop(bytes.splice(one..one, TOKENS[dice.below(TOKENS.len())].bytes())),
    }
}

/// Returns a copy of a message with some values changed.
pub fn changed_value(dice: &mut Dice, good: &Value) -> Value {
    let mut value = good.clone();
    for _ in 0..=dice.below(3) {
        change_value(dice, &mut value);
    }
    value
}

/// Returns a changed copy of a message, without a line break at the end.
pub fn changed(dice: &mut Dice, good: &Value) -> Vec<u8> {
    if dice.one_in(2) {
        return changed_value(dice, good).to_string().into_bytes();
    }
    let mut bytes = good.to_string().into_bytes();
    for _ in 0..1 << dice.below(4) {
        change_bytes(dice, &mut bytes);
    }
    bytes
}

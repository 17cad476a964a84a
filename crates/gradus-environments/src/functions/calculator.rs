//! A calculator: exact fractions as long as they fit, then double precision.

use serde_json::{Map, Value, json};

use crate::tool::Tool;
use crate::toolbox::Function;

/// Maximum length of an expression in bytes, and maximum nesting depth.
const BYTES: usize = 1000;
const DEPTH: usize = 64;

/// Computes `+ - * / // % **`, parentheses, and the functions `abs`, `sqrt`, `round`, `min` and `max`.
#[derive(Debug, Clone)]
pub struct Calculator {
    tool: Tool,
}

impl Default for Calculator {
    fn default() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": { "expression": { "type": "string", "description": "What to compute, such as (2 + 3) * 4" } },
            "required": ["expression"],
        });
        let description = "Computes an arithmetic expression and returns the number.".to_owned();
        Self { tool: Tool { name: "calculator".to_owned(), description, parameters, returns: None } }
    }
}

impl Function for Calculator {
    fn tool(&self) -> &Tool {
        &self.tool
    }

    fn call(&self, arguments: &Map<String, Value>) -> Result<String, String> {
        compute(arguments.get("expression").and_then(Value::as_str).unwrap_or_default())
    }
}

/// Evaluates an expression and returns the value as text.
pub(crate) fn compute(expression: &str) -> Result<String, String> {
    if expression.len() > BYTES {
        return Err(format!("the expression has {} bytes, but at most {BYTES} are read", expression.len()));
    }
    let mut parser = Parser { text: expression, at: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => value.shown(),
        Some(_) => Err(parser.unexpected()),
    }
}

/// A fraction in lowest terms with a positive denominator, or a float.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Exact(i128, i128),
    Float(f64),
}

impl Number {
    fn fraction(numerator: i128, denominator: i128) -> Option<Self> {
        let divisor = greatest_divisor(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok()?;
        let sign = if denominator < 0 { -1 } else { 1 };
        Some(Self::Exact((numerator / divisor).checked_mul(sign)?, (denominator / divisor).checked_mul(sign)?))
    }

    fn float(self) -> f64 {
        match self {
            Self::Exact(numerator, denominator) => numerator as f64 / denominator as f64,
            Self::Float(value) => value,
        }
    }

    /// Returns the exact result if both operands are exact and the result fits, otherwise the float result.
    fn with(
        self,
        other: Self,
        exact: impl Fn((i128, i128), (i128, i128)) -> Option<Self>,
        float: impl Fn(f64, f64) -> f64,
    ) -> Self {
        let found = match (self, other) {
            (Self::Exact(a, b), Self::Exact(c, d)) => exact((a, b), (c, d)),
            _ => None,
        };
        found.unwrap_or_else(|| Self::Float(float(self.float(), other.float())))
    }

    fn plus(self, other: Self) -> Self {
        let exact = |(a, b): (i128, i128), (c, d): (i128, i128)| {
            Self::fraction(a.checked_mul(d)?.checked_add(c.checked_mul(b)?)?, b.checked_mul(d)?)
        };
        self.with(other, exact, |x, y| x + y)
    }

    fn minus(self) -> Self {
        match self {
            Self::Exact(a, b) => a.checked_neg().map_or(Self::Float(-self.float()), |a| Self::Exact(a, b)),
            Self::Float(value) => Self::Float(-value),
        }
    }

    fn times(self, other: Self) -> Self {
        let exact = |(a, b): (i128, i128), (c, d): (i128, i128)| Self::fraction(a.checked_mul(c)?, b.checked_mul(d)?);
        self.with(other, exact, |x, y| x * y)
    }

    fn over(self, other: Self) -> Result<Self, String> {
        if other.float() == 0.0 {
            return Err("division by zero".to_owned());
        }
        let exact = |(a, b): (i128, i128), (c, d): (i128, i128)| Self::fraction(a.checked_mul(d)?, b.checked_mul(c)?);
        Ok(self.with(other, exact, |x, y| x / y))
    }

    fn floor(self) -> Self {
        match self {
            Self::Exact(a, b) => Self::Exact(a.div_euclid(b), 1),
            Self::Float(value) => Self::Float(value.floor()),
        }
    }

    /// Rounds to a whole number, and a half away from zero.
    fn rounded(self) -> Self {
        match self {
            Self::Exact(a, b) => {
                let (whole, rest) = (a / b, a % b);
                let is_up = rest.unsigned_abs() >= b.unsigned_abs().div_ceil(2);
                Self::Exact(if is_up { whole + rest.signum() } else { whole }, 1)
            }
            // Adding 0 turns -0 into 0.
            Self::Float(value) => Self::Float(value.round() + 0.0),
        }
    }

    fn power(self, exponent: Self) -> Result<Self, String> {
        if let (Self::Exact(a, b), Self::Exact(n, 1)) = (self, exponent)
            && let Ok(n) = u32::try_from(n.unsigned_abs())
            && let (Some(a), Some(b)) = (a.checked_pow(n), b.checked_pow(n))
        {
            let value = Self::Exact(a, b);
            return if exponent.float() < 0.0 { Self::Exact(1, 1).over(value) } else { Ok(value) };
        }
        Ok(Self::Float(self.float().powf(exponent.float())))
    }

    fn shown(self) -> Result<String, String> {
        match self {
            Self::Exact(numerator, 1) => Ok(numerator.to_string()),
            _ if !self.float().is_finite() => Err("the result is no finite number".to_owned()),
            _ => {
                let value = self.float();
                let rounded: f64 = format!("{value:.12e}").parse().unwrap_or(value);
                Ok(format!("{rounded}"))
            }
        }
    }
}

fn greatest_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { greatest_divisor(b, a % b) }
}

struct Parser<'t> {
    text: &'t str,
    /// Number of bytes that were read, all of them ASCII.
    at: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn peek(&mut self) -> Option<u8> {
        self.skip(|byte| byte.is_ascii_whitespace());
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips the bytes of this kind, which must be ASCII, and returns them.
    fn skip(&mut self, is_of_kind: impl Fn(u8) -> bool) -> &'t str {
        let text: &'t str = self.text;
        let rest = &text[self.at..];
        let length = rest.bytes().position(|byte| !is_of_kind(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Describes the next character as an error.
    fn unexpected(&self) -> String {
        let (before, rest) = self.text.split_at(self.at);
        let found = rest.chars().next().map(String::from).unwrap_or_default();
        format!("`{found}` is not expected at character {}", before.chars().count() + 1)
    }

    fn takes(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.text[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn sum(&mut self) -> Result<Number, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("the expression is nested deeper than {DEPTH}"));
        }
        let mut value = self.product()?;
        loop {
            value = if self.takes("+") {
                value.plus(self.product()?)
            } else if self.takes("-") {
                value.plus(self.product()?.minus())
            } else {
                self.depth -= 1;
                return Ok(value);
            };
        }
    }

    fn product(&mut self) -> Result<Number, String> {
        let mut value = self.signed()?;
        loop {
            value = if self.takes("//") {
                value.over(self.signed()?)?.floor()
            } else if self.takes("/") {
                value.over(self.signed()?)?
            } else if self.takes("%") {
                let divisor = self.signed()?;
                value.plus(value.over(divisor)?.floor().times(divisor).minus())
            } else if self.takes("*") {
                value.times(self.signed()?)
            } else {
                return Ok(value);
            };
        }
    }

    fn signed(&mut self) -> Result<Number, String> {
        // As in Python, a sign binds less tightly than a power: -2 ** 2 is -4.
        let mut is_negative = false;
        loop {
            if self.takes("-") {
                is_negative = !is_negative;
            } else if !self.takes("+") {
                break;
            }
        }
        let value = self.power()?;
        Ok(if is_negative { value.minus() } else { value })
    }

    fn power(&mut self) -> Result<Number, String> {
        let base = self.atom()?;
        if !(self.takes("**") || self.takes("^")) {
            return Ok(base);
        }
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("the expression is nested deeper than {DEPTH}"));
        }
        let exponent = self.signed()?;
        self.depth -= 1;
        base.power(exponent)
    }

    fn atom(&mut self) -> Result<Number, String> {
        if self.takes("(") {
            let value = self.sum()?;
            return self.closed(value);
        }
        match self.peek() {
            Some(b'0'..=b'9' | b'.') => self.number(),
            Some(b'a'..=b'z') => self.function(),
            Some(_) => Err(self.unexpected()),
            None => Err("the expression ends too early".to_owned()),
        }
    }

    fn closed<T>(&mut self, value: T) -> Result<T, String> {
        if self.takes(")") { Ok(value) } else { Err("a `)` is missing".to_owned()) }
    }

    fn number(&mut self) -> Result<Number, String> {
        let text = self.skip(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'_')).replace('_', "");
        let wrong = || format!("`{text}` is no number");
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        if part.contains('.') || (whole.is_empty() && part.is_empty()) {
            return Err(wrong());
        }
        let scale = u32::try_from(part.len()).ok().and_then(|digits| 10i128.checked_pow(digits));
        let exact = format!("{whole}{part}").parse::<i128>().ok().zip(scale);
        match exact.and_then(|(numerator, scale)| Number::fraction(numerator, scale)) {
            Some(number) => Ok(number),
            None => text.parse().map(Number::Float).map_err(|_| wrong()),
        }
    }

    fn function(&mut self) -> Result<Number, String> {
        let name = self.skip(|byte| byte.is_ascii_lowercase());
        if !self.takes("(") {
            return Err(format!("`{name}` is not known"));
        }
        let mut values = vec![self.sum()?];
        while self.takes(",") {
            values.push(self.sum()?);
        }
        let values = self.closed(values)?;
        let by = |which: fn(&f64, &f64) -> bool| {
            values.iter().copied().reduce(|a, b| if which(&a.float(), &b.float()) { a } else { b })
        };
        match (name, &values[..]) {
            ("abs", [value]) => Ok(if value.float() < 0.0 { value.minus() } else { *value }),
            ("round", [value]) => Ok(value.rounded()),
            ("sqrt", [value]) if value.float() >= 0.0 => {
                let root = value.float().sqrt();
                let is_exact = root.fract() == 0.0 && root < 1e15 && Number::Exact((root * root) as i128, 1) == *value;
                Ok(if is_exact { Number::Exact(root as i128, 1) } else { Number::Float(root) })
            }
            ("sqrt", [_]) => Err("the root of a number below 0".to_owned()),
            ("min", _) => by(|a, b| a <= b).ok_or_else(|| "`min` of nothing".to_owned()),
            ("max", _) => by(|a, b| a >= b).ok_or_else(|| "`max` of nothing".to_owned()),
            ("abs" | "round" | "sqrt", _) => Err(format!("`{name}` takes one number")),
            _ => Err(format!("`{name}` is not known; there are abs, sqrt, round, min and max")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_exact_as_long_as_they_fit() {
        for (expression, expected) in [
            ("2 + 3 * 4", "14"),
            ("(2 + 3) * 4", "20"),
            ("7 / 2", "3.5"),
            ("6 / 2", "3"),
            ("0.1 + 0.2", "0.3"),
            ("1 / 3 * 3", "1"),
            ("7 // 2", "3"),
            ("-7 // 2", "-4"),
            ("-7 % 3", "2"),
            ("2 ** 10", "1024"),
            ("2 ** -2", "0.25"),
            ("-2 ** 2", "-4"),
            ("2 ** 3 ** 2", "512"),
            ("2 ^ 3", "8"),
            ("10 ** 30 + 1", "1000000000000000000000000000001"),
            ("sqrt(49) + abs(-3)", "10"),
            ("max(1, 5, 3) - min(2, 0.5)", "4.5"),
            ("round(2.5)", "3"),
            ("round(-2.5)", "-3"),
            ("round(2.4) + round(-2.4)", "0"),
            ("round(7 / 3)", "2"),
            ("round(-5 / 3)", "-2"),
            ("round(-sqrt(2) / 4)", "0"),
            ("round(sqrt(2))", "1"),
            ("1_000 * 3", "3000"),
            ("sqrt(2)", "1.414213562373"),
        ] {
            assert_eq!(compute(expression).as_deref(), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (expression, expected) in [
            ("", "the expression ends too early"),
            ("1 +", "the expression ends too early"),
            ("(1", "a `)` is missing"),
            ("1 / 0", "division by zero"),
            ("1 % 0", "division by zero"),
            ("2 $ 3", "`$` is not expected at character 3"),
            ("2×3", "`×` is not expected at character 2"),
            ("٣+١", "`٣` is not expected at character 1"),
            ("2 +\u{a0}3", "`\u{a0}` is not expected at character 4"),
            ("1.2.3", "`1.2.3` is no number"),
            ("foo(1)", "`foo` is not known; there are abs, sqrt, round, min and max"),
            ("sqrt(0 - 1)", "the root of a number below 0"),
            ("10 ** 10 ** 10", "the result is no finite number"),
            ("__import__('os')", "`_` is not expected at character 1"),
        ] {
            assert_eq!(compute(expression), Err(expected.to_owned()), "{expression}");
        }
        assert!(compute(&"(".repeat(900)).is_err() && compute(&"1+".repeat(900)).is_err());
        assert!(compute(&"2**".repeat(300)).is_err() && compute(&format!("{}1", "-".repeat(900))).is_ok());
    }
}

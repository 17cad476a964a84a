//! Mathematical answers: finds them in a text and compares them by value.
//!
//! ```
//! use gradus_metrics::mathematics::is_correct;
//!
//! assert_eq!(is_correct(r"$\frac{1}{2}$", r"so it is \boxed{0.5}"), Some(true));
//! assert_eq!(is_correct(r"$(x+1)^2$", r"The answer is $x^2 + 2x + 1$."), Some(true));
//! assert_eq!(is_correct("#### 1,200", "1200 apples are left."), Some(true));
//! assert_eq!(is_correct(r"$\{1, 2\}$", r"\boxed{2, 1}"), Some(true));
//! assert_eq!(is_correct("$5$", "I do not know."), Some(false));
//! ```
//!
//! **Location of the answer.** The last `\boxed{…}`; otherwise what follows "the final answer is"; otherwise what follows "answer:" or
//! "answer"; otherwise the last mathematics (`$…$`, `\(…\)`, `\[…\]`) or the last number.
//!
//! **Equality.** Numbers are compared by value, exactly if they are fractions or one of them is whole. Other decimals are compared after
//! rounding to six digits. `9%`
//! equals `9` and `0.09`. Expressions with variables are equal if they have the same value at fixed points. Lists and sets are compared in
//! any order, tuples in order, matrices and intervals part by part, equations and inequalities up to a factor. Case is ignored. The gold
//! answer determines whether a value or an equation is expected: `x = 5` answers `5`, and the other way round. Units and degrees are
//! ignored.
//!
//! The verdicts are those of the package `math-verify` on answers in the style of GSM8K and MATH; `tests/mathematics.rs` lists the
//! differences.

mod expression;
mod extract;
mod parser;
mod value;

use std::sync::LazyLock;

use regex::Regex;

use extract::{Form, Span, candidates};
use value::Value;

/// An answer found in a text.
#[derive(Debug, Clone, PartialEq)]
pub struct MathAnswer {
    /// Its value without a unit, and then with the letters of the unit as variables, if it ends with one: `5t` may be a time or a product.
    /// Empty if the mathematics cannot be parsed.
    values: Vec<Value>,
    /// Its letters, with minimal whitespace.
    text: String,
}

impl MathAnswer {
    /// Finds the answer in a text. `None` if the text contains neither mathematics nor a number.
    pub fn find(text: &str) -> Option<Self> {
        let mut first: Option<String> = None;
        for span in candidates(text).into_iter().take(64) {
            let clean = cleaned(&span.text);
            let letters = first.get_or_insert_with(|| packed(without_unit(&clean), span.form));
            let values = read(&span, &clean);
            if !values.is_empty() {
                return Some(Self { values, text: std::mem::take(letters) });
            }
        }
        first.map(|text| Self { values: Vec::new(), text })
    }

    /// Reads a gold answer: a text that contains an answer, or bare LaTeX such as `x^2 + 1`.
    pub fn gold(text: &str) -> Option<Self> {
        let has_marks = ["$", "\\(", "\\[", "\\boxed", "####"].iter().any(|mark| text.contains(mark));
        if !has_marks {
            let clean = cleaned(text);
            let is_prose = clean
                .split_whitespace()
                .filter(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_alphabetic()))
                .count()
                > 1;
            let values = if is_prose { Vec::new() } else { with_and_without_unit(&clean, parser::parse) };
            if !values.is_empty() {
                return Some(Self { values, text: packed(without_unit(&clean), Form::Plain) });
            }
        }
        Self::find(text)
    }

    /// Returns whether `answer` is correct, with `self` as the gold answer.
    pub fn is_matched_by(&self, answer: &Self) -> bool {
        let is_equal = self.values.iter().any(|gold| answer.values.iter().any(|found| gold.equals(found)));
        is_equal || (!self.text.is_empty() && self.text == answer.text)
    }
}

/// Returns whether a text answers a question whose answer is `gold`. `None` if `gold` holds no answer.
pub fn is_correct(gold: &str, text: &str) -> Option<bool> {
    let gold = MathAnswer::gold(gold)?;
    Some(MathAnswer::find(text).is_some_and(|answer| gold.is_matched_by(&answer)))
}

fn read(span: &Span, clean: &str) -> Vec<Value> {
    with_and_without_unit(clean, |text| {
        let value = parser::parse(text).or_else(|| {
            // If `a = b = c` cannot be parsed as a whole, the last side is used.
            let is_chain = span.form != Form::Plain && !text.contains([',', ';']);
            let (_, last) = text.rsplit_once('=').filter(|_| is_chain)?;
            parser::parse(last)
        })?;
        Some(match (value, span.is_percent) {
            (Value::Scalar(expr), true) => Value::Scalar(expression::Expr::Percent(Box::new(expr))),
            (value, _) => value,
        })
    })
}

/// Reads a text without the unit at its end, and then with it.
fn with_and_without_unit(text: &str, read: impl Fn(&str) -> Option<Value>) -> Vec<Value> {
    let bare = without_unit(text);
    let whole = (bare.len() < text.len()).then(|| read(text)).flatten();
    read(bare).into_iter().chain(whole).collect()
}

/// Prepares a text for a comparison by letters: removes spaces except within words and numbers, and writes `a/b` in LaTeX as a fraction.
fn packed(text: &str, form: Form) -> String {
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let mut packed = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if is_part(packed.chars().next_back()) && is_part(word.chars().next()) {
            packed.push(' ');
        }
        packed.push_str(word);
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match packed.split_once('/') {
        Some((top, bottom)) if form != Form::Plain && is_number(top) && is_number(bottom) => {
            format!("\\frac{{{top}}}{{{bottom}}}")
        }
        _ => packed,
    }
}

/// Units after a number, each with an optional plural: those of `math-verify` and a few others. Their letters may be capitals.
const UNITS: &str = "feet|foot|sue|digit|pound|meal|edge|student|children ticket|multiple|east|degree|mph|kmph|m square|m east|sq m|deg\
    |mile|monkey|prime|ratio|profit of rs|tile|per|gain|way|west|no change|men|soldier|pie|excess|inches|noon|cent|gal|kmh|acre|rise|mark\
    |toy|coin|gallon|°|° ?[cf]|profit|women|cu cm|square|are|rupee|rounds|cubic|mtr|ohm|number|day|hour|minute|min|second|man|woman|sec\
    |cube|sq inch|hectare|more|unit|kg|month|km|cm|mm|apple|liter|loss|yard|pure|year|increase|decrease|less|surface|litre|pi sq m|metre\
    |meter|inch|dollar|week";

/// Units of two letters, which must be lowercase, as must those of one letter: capitals may name a segment (`2AB`, `3PM`).
const PAIRS: &str = "ft|rd|gm|lb|dm|lt|ab|bc|st|by|th|sq|yr|am|pm|hr|cc|mt|mp|rs|in";

static UNIT: LazyLock<Regex> = LazyLock::new(|| {
    let length = r"(?:mm|cm|dm|km|ft|in|(?i:feet|foot|inch|yard|mile|meter|metre|unit))(?:s|es)?|\sm";
    let powers = r"\^[23]|\^\{[23]\}|[²³]";
    let all = format!(r"(?:(?i:{UNITS})|{PAIRS})(?:s|es)?|[cdghlmost](?:s|es)?|(?:{length})(?:{powers})");
    Regex::new(&format!(r"(?P<before>\d|\}}|\s)\s*(?:{all})\s*$")).expect("a pattern")
});

/// Removes what does not change the value: words in between, empty braces, quotes.
fn cleaned(text: &str) -> String {
    let mut text = text.replace("\\$", "").replace(['$', '\'', '"'], "").replace("{,}", ",");
    while let Some(at) = text.find("\\!") {
        // The narrow space is removed together with the whitespace after it: `11,\! 111`.
        let rest = text.split_off(at);
        text.push_str(rest[2..].trim_start());
    }
    for (from, to) in [
        ("\\text{ and }", ","),
        ("\\text{and}", ","),
        ("\\text{ or }", ","),
        ("\\text{or}", ","),
        ("\\%", "%"),
        ("\\ldots", ""),
        ("\\dots", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("^{\\text{th}}", ""),
        ("\\text{th}", ""),
        ("\\mathrm{th}", ""),
    ] {
        text = text.replace(from, to);
    }
    for word in ["and", "or"] {
        let pattern = format!(" {word} ");
        text = text.replace(&pattern, ", ");
    }
    for (words, sign) in [(" percentage", "%"), (" percent", "%"), ("\\text{percent}", "%"), (" pct", "%")] {
        text = text.replace(words, sign);
    }
    let text = INFINITY.replace_all(&text, "\\infty");
    let text = ROOT.replace_all(&text, "\\sqrt(");
    let mut text = text.replace(",,", ",").replace(", ,", ",").trim().trim_end_matches(['.', ',', ';', ' ']).to_owned();
    if text.ends_with('\\') {
        text.pop();
    }
    text
}

static INFINITY: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\\?\binfinity\b|\binf\b").expect("a pattern"));
static ROOT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\\?\bsqrt\s?\(").expect("a pattern"));

/// Removes a unit at the end: `5 \text{ cm}^2`, `5 cm`, `5cm`, `5 square units`.
fn without_unit(text: &str) -> &str {
    let mut text = without_text(text.trim());
    // A unit may have two words.
    for _ in 0..2 {
        let Some(found) = UNIT.captures(text) else { break };
        text = text[..found.name("before").expect("a match").end()].trim_end();
    }
    text
}

/// Removes a unit in LaTeX's text mode at the end.
fn without_text(text: &str) -> &str {
    let bare = ["^2", "^3", "^{2}", "^{3}", "²", "³"].iter().find_map(|power| text.strip_suffix(power)).unwrap_or(text);
    for command in ["\\text", "\\mathrm", "\\mbox", "\\textrm"] {
        if let Some(at) = bare.rfind(command)
            && bare.ends_with('}')
            && bare[at..].matches('{').count() == 1
        {
            let before = bare[..at].trim_end().trim_end_matches(['\\', ',', '~', ';']).trim_end();
            let is_number = before.ends_with(|c: char| c.is_ascii_digit() || matches!(c, '}' | ')' | '%' | 'i'));
            if is_number {
                return without_text(before);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_capital_letters_are_no_unit() {
        // The verdicts of math-verify 0.9.
        for (gold, text, expected) in [
            ("$2AB$", "$2BC$", false),
            ("$2AB$", "$2$", false),
            ("$\\frac{1}{2}BC$", "$\\frac12$", false),
            ("$2PM$", "$2$", false),
            ("$3 MP$", "$3$", false),
            ("$2AB$", "$2AB$", true),
            ("$18$", "$18 am$", true),
            ("$18$", "$18ft$", true),
        ] {
            assert_eq!(is_correct(gold, text), Some(expected), "{gold} | {text}");
        }
    }

    #[test]
    fn gold_answers_may_be_bare() {
        for (gold, text, expected) in [
            ("x^2 + 1", "$1 + x^2$", Some(true)),
            ("\\frac{1}{3}", "\\boxed{2/6}", Some(true)),
            ("A solution is not known.", "5", None),
            ("", "5", None),
            ("so\n#### 1,000", "1000", Some(true)),
            ("18kg", "18", Some(true)),
            ("18 kg", "19", Some(false)),
            ("4", "", Some(false)),
        ] {
            assert_eq!(is_correct(gold, text), expected, "{gold} | {text}");
        }
    }

    #[test]
    fn what_is_deep_long_or_large_ends() {
        for text in [
            "(".repeat(5000),
            format!("${}1${}", "\\frac{1}{".repeat(300), "}".repeat(300)),
            format!("${}$", "-".repeat(3000)),
            "$9^{9^{9^{9}}}$".to_owned(),
            "$(10^{9})!$".to_owned(),
            "$2^{100000}$".to_owned(),
            format!("${}$", "1 \\pm ".repeat(100)),
            "$1/0$".to_owned(),
            "$\\frac{0}{0}$".to_owned(),
            "\\boxed{".repeat(2000),
            format!("answer {}", "1 ".repeat(20_000)),
        ] {
            let _ = is_correct(&text, &text);
            let _ = is_correct("$2$", &text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Every text of a policy gets a verdict.
        #[test]
        fn any_text_has_a_verdict(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "\\frac", "{", "}", "(", ")", "[", "]", "$", "1", "2.5", "x", "^", "_", "\\sqrt", "\\boxed{", "answer: ", "=",
                    "<", "-", "+", "/", "\\text{cm}", "%", "!", "|", "\\pm", ",", "\\cup", "\\infty", "\\begin{pmatrix}",
                    "\\end{pmatrix}", "\\\\", "&", " ", "é", "\\log_", "\\binom", "\\{", "\\}", "\n", "\\sin", "i", "e", "**",
                    "cm", "\\over", "E4", "sqrt(", "infinity", "'", "final answer is ", "I hope", "[1] ", "°",
                ]),
                0..40,
            ),
            more in any::<String>(),
        ) {
            let text = format!("{}{more}", parts.concat());
            let _ = is_correct(&text, &format!("${text}$"));
            prop_assert_ne!(is_correct("$7$", &text), None);
        }

        /// An expression equals itself when it is spaced differently and boxed.
        #[test]
        fn an_answer_equals_itself(a in -999i64..999, b in 1i64..99, c in 0i64..20) {
            let gold = format!("$\\frac{{{a}}}{{{b}}} + x^{{{c}}}$");
            let text = format!("\\boxed{{x^{{{c}}}+\\frac{{{}}}{{{}}}}}", 3 * a, 3 * b);
            prop_assert_eq!(is_correct(&gold, &text), Some(true));
            let other = format!("\\boxed{{x^{{{c}}}+\\frac{{{}}}{{{b}}}}}", a + 1);
            prop_assert_eq!(is_correct(&gold, &other), Some(false));
        }
    }
}

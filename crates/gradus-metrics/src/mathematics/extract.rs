//! Location of the final answer in a text.

use std::sync::LazyLock;

use regex::Regex;

/// A part of a text that may hold the answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) text: String,
    pub(super) form: Form,
    pub(super) is_percent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// LaTeX between delimiters.
    Latex,
    /// Content of `\boxed{…}`.
    Boxed,
    /// Numbers and operators.
    Plain,
}

/// Maximum number of characters between the word "answer" and its LaTeX, and between "final answer" and "is".
const NEAR: usize = 50;
const NEAR_IS: usize = 100;

/// Returns the spans that may hold the answer. The most reliable kind comes first; within a kind, the last span in the text comes first.
pub(super) fn candidates(text: &str) -> Vec<Span> {
    let mut ranked = plain_spans(text);
    ranked.extend(announced_latex(text));
    ranked.extend(boxed_spans(text).map(|span| (Rank::Final, span)));
    ranked.extend(latex_spans(text).into_iter().map(|span| (Rank::Elsewhere, span)));
    ranked.sort_by(|(rank, span), (other_rank, other)| {
        rank.cmp(other_rank).then(other.end.cmp(&span.end)).then(span.start.cmp(&other.start))
    });
    ranked.into_iter().map(|(_, span)| span).collect()
}

/// Reliability of a span, from the most to the least reliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// "The final answer is …. I hope it is correct."
    Hoped,
    /// A box, or the text after "the final answer is".
    Final,
    BehindColon,
    BehindWord,
    Elsewhere,
}

static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?i)(?P<final>final )?answer").expect("a pattern"));
static IS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?i)\s+is:?").expect("a pattern"));
static HOPE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\.?\s?I hope").expect("a pattern"));

/// Returns the LaTeX that the word "answer" announces: what follows "final answer … is", and the next formula.
fn announced_latex(text: &str) -> Vec<(Rank, Span)> {
    let mut found = Vec::new();
    for word in WORD.captures_iter(text) {
        let after = word.get(0).expect("a match").end();
        let reach =
            |characters: usize| text[after..].char_indices().nth(characters).map_or(text.len(), |(at, _)| after + at);
        if word.name("final").is_some() {
            let mut is = IS.find_iter(&text[after..]).take_while(|is| after + is.start() <= reach(NEAR_IS));
            let span = is.find_map(|is| {
                let from = after + is.end();
                let blank = text[from..].len() - text[from..].trim_start().len();
                let span = next_latex(text, from + blank, from + blank)?;
                let is_hoped = is.start() == 0 && HOPE.is_match(&text[span.end..]);
                Some((if is_hoped { Rank::Hoped } else { Rank::Final }, span))
            });
            found.extend(span);
        }
        let rank = if text[after..].starts_with(':') { Rank::BehindColon } else { Rank::BehindWord };
        found.extend(next_latex(text, after, reach(NEAR)).map(|span| (rank, span)));
    }
    found
}

/// Returns all LaTeX.
fn latex_spans(text: &str) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    while let Some(span) = next_latex(text, found.last().map_or(0, |span| span.end), text.len()) {
        found.push(span);
    }
    found
}

/// Finds `$…$`, `\(…\)`, `\[…\]`, `$$…$$` and bare `\frac{a}{b}` that begin in the range from `from` to `last`. Several of them separated by
/// commas or "and" form one span.
fn next_latex(text: &str, from: usize, last: usize) -> Option<Span> {
    let mut starts = text[from..].char_indices().map(|(at, _)| from + at).take_while(|&at| at <= last);
    let mut span = starts.find_map(|at| environment(text, at))?;
    // Up to six adjacent ones form a list.
    for _ in 0..5 {
        let Some(gap) = LIST.find(&text[span.end..]) else { break };
        let Some(next) = environment(text, span.end + gap.end()) else { break };
        span = Span { end: next.end, text: format!("{}, {}", span.text, next.text), ..span };
    }
    Some(span)
}

static LIST: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\s*(?:,?\s*and|,?\s*or|,)\s*").expect("a pattern"));
static PERCENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^\s*(?:\\?%|[Pp]ercentage|[Pp]ercent|[Pp]ct)").expect("a pattern"));
static FRACTION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^-?\\[dtc]?frac\{-?\d+(?:[.,]\d+)?\}\{-?\d+(?:[.,]\d+)?\}").expect("a pattern"));

/// Returns the mathematics that begins exactly at `start`.
fn environment(text: &str, start: usize) -> Option<Span> {
    let (rest, before) = (&text[start..], text[..start].chars().next_back());
    let made = |inner: &str, end: usize| {
        let percent = PERCENT.find(&text[end..]);
        let end = percent.map_or(end, |percent| end + percent.end());
        let span = Span { start, end, text: inner.to_owned(), form: Form::Latex, is_percent: percent.is_some() };
        (!inner.trim().is_empty()).then_some(span)
    };
    if before == Some('\\') {
        return None;
    }
    for (open, close) in [("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)")] {
        if let Some(inner) = rest.strip_prefix(open)
            && let Some(length) = inner.find(close)
        {
            return made(&inner[..length], start + open.len() + length + close.len());
        }
    }
    if let Some(inner) = rest.strip_prefix('[')
        && before.is_some_and(char::is_whitespace)
        && let Some(length) = inner.find(['[', ']', '\n'])
        && let Some(after) = inner[length..].strip_prefix(']')
        && after.starts_with(char::is_whitespace)
    {
        return made(&inner[..length], start + 1 + length + 1);
    }
    if rest.starts_with('$') && !before.is_some_and(|c| c.is_ascii_digit()) {
        let inner = &rest[1..];
        let mut is_escaped = false;
        for (at, c) in inner.char_indices() {
            match c {
                '\n' => return None,
                '$' if !is_escaped => return made(&inner[..at], start + 1 + at + 1),
                _ => is_escaped = c == '\\' && !is_escaped,
            }
        }
        return None;
    }
    let fraction = FRACTION.find(rest)?;
    made(fraction.as_str(), start + fraction.end())
}

/// Returns the last boxed answer, together with the boxes directly before it.
fn boxed_spans(text: &str) -> Option<Span> {
    let mut boxes: Vec<(usize, usize, &str)> = Vec::new();
    let mut at = 0;
    while let Some(found) = BOXED.find(&text[at..]) {
        let (start, open) = (at + found.start(), at + found.end() - 1);
        let inner = &text[open + 1..];
        let (length, brace) = match (closing(text, open), inner.rfind('}')) {
            (Some(end), _) => (end - open - 1, 1),
            // One that lacks a brace ends with the last brace of the text.
            (None, Some(last)) => (last + 1, 0),
            // One that was cut off holds no answer.
            (None, None) => break,
        };
        at = open + 1 + length + brace;
        boxes.push((start, at, inner[..length].trim()));
    }
    let (mut start, end, last) = boxes.pop()?;
    let mut texts = vec![last];
    while let Some((from, to, inner)) = boxes.pop() {
        let between = &text[to..start];
        let is_listed = between.len() < 70 && SEPARATOR.is_match(between) && texts.last() != Some(&inner);
        if between.len() >= 10 && !is_listed {
            break;
        }
        if texts.last() != Some(&inner) {
            texts.push(inner);
        }
        start = from;
    }
    texts.reverse();
    let percent = PERCENT.is_match(&text[end..]);
    Some(Span { start, end, text: texts.join(", "), form: Form::Boxed, is_percent: percent })
}

static BOXED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\\f?box(?:ed)?\s*\{").expect("a pattern"));
static SEPARATOR: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:and|or)\b|,|;").expect("a pattern"));

/// Returns the position of the brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + at);
        }
    }
    None
}

/// Regular expressions of numbers, and of arithmetic expressions of numbers, with the rank of what they find.
///
/// They are those of `math-verify`, with two additions: of `9*2=18` the last side counts, and what stands in `<<9*2=18>>` does not.
static PLAIN: LazyLock<[(Rank, Regex); 6]> = LazyLock::new(|| {
    let number = r"(?P<number>-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?|-?\d+[.,]\d+|\.\d+|-?\d+)";
    let number = format!(
        r"[$€£¥₹₽₪₩₫฿₡₢₣₤₥₦₧₨₭₮₯₰₱₲₳₴₵₶₷₸₺₻₼₾₿]?{number}(?P<percent>\s*(?:%|[Pp]ercentage|[Pp]ercent|[Pp]ct))?"
    );
    let all = r"[\d.\s+\-*×/^()÷]";
    let expression =
        format!(r"(?P<expression>-?\(?-?\d{all}*[+\-*×/^()÷]{all}+\)?)(?P<suffix>(?:\*\*)?(?:[.,:\s)$]|\z))");
    let start = r"(?:^|\s|=)";
    let side = r"(?:(?:[-+*×/÷^()\d%$€£ ]|\.\d)+=[ ]?)*";
    let either = format!(r"{side}(?:\*\*)?(?:{expression}|{number})");
    // As before, but followed by neither an equals sign nor the rest of a number.
    let before_no_equals = format!(
        r"{side}(?:\*\*)?(?:{expression}\s*(?:[^\s=]|\z)|{number}(?:\s*\z|\s+[^\s=]|[.,](?:\D|\z)|[^\s\d=.,]))"
    );
    let last_side = r".{0,100}=(?:\s+|\s*<<[^<>\n]*>>)";
    let announced = format!(r"(?:{last_side}|.{{0,50}}?[\s=]){before_no_equals}");
    let pattern = |rank, pattern: String| (rank, Regex::new(&pattern).expect("a pattern"));
    [
        pattern(Rank::Hoped, format!(r"(?i:final answer is):?\s*{start}{either}\.?\s?I hope")),
        pattern(Rank::Final, format!(r"(?i:final answer.{{0,100}}?)\s+is:?{start}{either}")),
        pattern(Rank::BehindColon, format!(r"(?i:answer):{announced}")),
        pattern(Rank::BehindWord, format!(r"(?i:answer){announced}")),
        pattern(Rank::Elsewhere, format!(r"{start}(?:\*\*)?{expression}")),
        pattern(Rank::Elsewhere, format!(r"{start}(?:\*\*)?{number}")),
    ]
});

/// Finds numbers, and arithmetic expressions of numbers.
fn plain_spans(text: &str) -> Vec<(Rank, Span)> {
    let mut spans = Vec::new();
    for (rank, pattern) in PLAIN.iter() {
        let mut at = 0;
        while let Some(found) = pattern.captures_at(text, at) {
            let start = found.get(0).expect("a match").start();
            let group = |name: &str| found.name(name);
            let end = group("suffix").or(group("percent")).or(group("number"));
            at = end.expect("a number or an expression").end();
            let is_percent = group("percent").is_some();
            let inner = group("number").map(|number| decimal_comma(number.as_str())).or_else(|| {
                let expression = group("expression")?.as_str();
                // In a program, `**` is a power, and numbers without an operator between them are a mistake.
                (!ADJACENT.is_match(expression)).then(|| expression.replace('\n', " ").replace("**", "^"))
            });
            let span = |text| Span { start, end: at, text, form: Form::Plain, is_percent };
            spans.extend(inner.map(|inner| (*rank, span(inner))));
        }
    }
    spans
}

static ADJACENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\d.]\s+[\d.]|[\d.)]\s*\(|\)\s*\.?\d").expect("a pattern"));

/// Converts a number to program notation: `1,234.5` and `1 234.5` have digit groups, `3,5` has a decimal comma.
fn decimal_comma(number: &str) -> String {
    static GROUPED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?$").expect("a pattern"));
    match GROUPED.is_match(number) {
        true => number.replace([' ', ','], ""),
        false => number.replace(',', "."),
    }
}

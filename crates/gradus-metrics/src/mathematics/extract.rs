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

/// Maximum number of characters between the word "answer" and the answer, without and with an equals sign in front of the answer.
const NEAR: usize = 50;
const NEAR_EQUALS: usize = 100;

/// Returns the spans that may hold the answer. The most reliable kind comes first; within a kind, the last span in the text comes first.
pub(super) fn candidates(text: &str) -> Vec<Span> {
    let mut spans = latex_spans(text);
    spans.extend(plain_spans(text));
    spans.sort_by_key(|span| span.start);
    let mut ranks = vec![Rank::Elsewhere; spans.len()];
    for word in WORD.captures_iter(text) {
        let after = word.get(0).expect("a match").end();
        for at in announced(text, &spans, after) {
            let between = &text[after..spans[at].start];
            let rank = if word.name("final").is_some() && IS.is_match(between) {
                if HOPE.is_match(&text[spans[at].end..]) { Rank::Hoped } else { Rank::Final }
            } else if text[after..].starts_with(':') {
                Rank::BehindColon
            } else {
                Rank::BehindWord
            };
            ranks[at] = ranks[at].min(rank);
        }
    }
    let boxed = boxed_spans(text).map(|span| (Rank::Final, span));
    let mut ranked: Vec<(Rank, Span)> = ranks.into_iter().zip(spans).chain(boxed).collect();
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
static IS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?is)(?:^|\s)is:?\s*$").expect("a pattern"));
static HOPE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\.?\s?I hope").expect("a pattern"));

/// Returns the spans announced by the word "answer", which ends at `after`: the next LaTeX, and a number on the same line. The number is
/// the last one after an equals sign, or else the next one.
fn announced(text: &str, spans: &[Span], after: usize) -> impl Iterator<Item = usize> {
    let reach =
        |characters: usize| text[after..].char_indices().nth(characters + 1).map_or(text.len(), |(at, _)| after + at);
    let (near, near_equals) = (reach(NEAR), reach(NEAR_EQUALS));
    let from = spans.partition_point(|span| span.start < after);
    let within = |limit: usize| (from..spans.len()).take_while(move |&at| spans[at].start <= limit);
    let latex = within(near).find(|&at| spans[at].form != Form::Plain);

    let is_number = |at: usize| {
        let is_on_line = spans[at].form == Form::Plain && !text[after..spans[at].start].contains('\n');
        is_on_line && !text[spans[at].end..].trim_start().starts_with('=')
    };
    let is_behind_equals = |at: usize| text[after..spans[at].start].trim_end().ends_with('=');
    // If two spans begin at the same position, the longer comes first.
    let later = |last: usize, next: usize| if spans[next].start > spans[last].start { next } else { last };
    let behind_equals = within(near_equals).filter(|&at| is_number(at) && is_behind_equals(at)).reduce(later);
    let number = behind_equals.or_else(|| within(near).find(|&at| is_number(at)));
    latex.into_iter().chain(number)
}

/// Finds `$…$`, `\(…\)`, `\[…\]`, `$$…$$` and bare `\frac{a}{b}`. Several of them separated by commas or "and" form one span.
fn latex_spans(text: &str) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let Some(mut span) = environment(text, at) else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        // Up to six adjacent ones form a list.
        for _ in 0..5 {
            let Some(gap) = LIST.find(&text[span.end..]) else { break };
            let Some(next) = environment(text, span.end + gap.end()) else { break };
            span = Span { end: next.end, text: format!("{}, {}", span.text, next.text), ..span };
        }
        at = span.end;
        found.push(span);
    }
    found
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
        let end = closing(text, open).unwrap_or(text.len());
        boxes.push((start, (end + 1).min(text.len()), text[open + 1..end].trim()));
        at = end.max(open + 1);
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

static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let number = r"(?P<number>-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?|-?\d+[.,]\d+|\.\d+|-?\d+)";
    Regex::new(&format!(r"(?:^|\s|=)(?:\*\*)?[$€£¥₹]?{number}(?P<percent>\s*(?:%|[Pp]ercentage|[Pp]ercent|[Pp]ct))?"))
        .expect("a pattern")
});
static EXPRESSION: LazyLock<Regex> = LazyLock::new(|| {
    let all = r"[\d.\s+\-*×/^()÷]";
    let sign = r"[+\-*×/^()÷]";
    Regex::new(&format!(r"(?:^|\s|=)(?:\*\*)?(?P<expression>-?\(?-?\d{all}*{sign}{all}+\)?)(?:\*\*)?(?:[.,:\s)$]|$)"))
        .expect("a pattern")
});

/// Finds numbers, and arithmetic expressions of numbers.
fn plain_spans(text: &str) -> Vec<Span> {
    let numbers = NUMBER.captures_iter(text).map(|found| {
        let (whole, number) = (found.get(0).expect("a match"), found.name("number").expect("a number"));
        let digits = decimal_comma(number.as_str());
        let is_percent = found.name("percent").is_some();
        Span { start: number.start(), end: whole.end(), text: digits, form: Form::Plain, is_percent }
    });
    let expressions = EXPRESSION.captures_iter(text).map(|found| {
        let (whole, inner) = (found.get(0).expect("a match"), found.name("expression").expect("an expression"));
        let text = inner.as_str().replace('\n', " ");
        Span { start: inner.start(), end: whole.end(), text, form: Form::Plain, is_percent: false }
    });
    // If two spans begin at the same position, the longer is read first.
    expressions.chain(numbers).collect()
}

/// Converts a number to program notation: `1,234.5` and `1 234.5` have digit groups, `3,5` has a decimal comma.
fn decimal_comma(number: &str) -> String {
    static GROUPED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?$").expect("a pattern"));
    match GROUPED.is_match(number) {
        true => number.replace([' ', ','], ""),
        false => number.replace(',', "."),
    }
}

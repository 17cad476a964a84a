//! Rendering of models' answers: Markdown, formulas, highlighted code, thoughts and tool calls.
//!
//! Models' output is untrusted. The libraries only parse it; a page consists of literals of this crate and of values that [`Html`] escapes.
//! An answer therefore cannot add tags, attributes, styles, scripts or addresses. The only exception are links to the web, which a person
//! has to click. Images become links, too.

mod code;
mod markdown;
mod math;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use gradus::html;
use gradus::html::Html;
use gradus_environments::{Call, CallFormat, ParsedTurn, think};
use ring::digest::{SHA256, digest};
use serde_json::Value;

/// Maximum length of a rendered answer. A longer one is shown as text.
const LONGEST: usize = 100_000;

/// Maximum size of the cache in bytes.
const KEPT_BYTES: usize = 32 << 20;

/// Renders answers, and caches the latest ones.
#[derive(Default)]
pub struct Rich(Mutex<CacheEntries>);

#[derive(Default)]
struct CacheEntries {
    pages: HashMap<[u8; 32], Html>,
    /// Hashes of the texts, oldest first.
    order: VecDeque<[u8; 32]>,
    bytes: usize,
}

impl Rich {
    /// Renders an answer.
    pub fn answer(&self, text: &str) -> Html {
        let mut sum = [0; 32];
        sum.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        // Pages are inserted atomically, so a panicking thread leaves the cache consistent.
        if let Some(page) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pages.get(&sum) {
            return page.clone();
        }
        let page = answer(text);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.pages.insert(sum, page.clone()).is_none() {
            kept.order.push_back(sum);
            kept.bytes += page.size();
        }
        while kept.bytes > KEPT_BYTES {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.bytes -= kept.pages.remove(&oldest).map_or(0, |page| page.size());
        }
        page
    }
}

fn answer(text: &str) -> Html {
    if text.len() > LONGEST {
        return html!["<div class=\"plain\">" (text) "</div>"];
    }
    let (thought, rest) = think::first_thought(text);
    let (rest, calls) = calls(rest);
    let thought = thought.filter(|thought| !thought.trim().is_empty()).map(|thought| {
        html!["<details class=\"thought\"><summary>Reasoning</summary>\n" (markdown::markdown(thought)) "</details>\n"]
    });
    html![(thought)(markdown::markdown(&rest))(calls.iter().map(call).collect::<Vec<_>>())]
}

/// Splits a text into tool calls and other text. If a call cannot be parsed, everything stays text.
fn calls(text: &str) -> (String, Vec<Call>) {
    let read = CallFormat::ALL.into_iter().map(|format| format.read(text, false));
    let is_readable = |call: &Call| call.arguments.is_ok();
    let mut whole = read.filter(|parsed| !parsed.calls.is_empty() && parsed.calls.iter().all(is_readable));
    whole.next().map_or_else(
        || (text.to_owned(), Vec::new()),
        |ParsedTurn { outside, calls, .. }| (outside.trim().to_owned(), calls),
    )
}

fn call(call: &Call) -> Html {
    let arguments = call.arguments.clone().map(Value::Object).unwrap_or_default();
    let arguments = serde_json::to_string_pretty(&arguments).unwrap_or_default();
    html![
        "<section class=\"call\" aria-label=\"Tool call\"><p>Tool call <code>" (call.name) "</code></p>\n"
        (code::block("json", &arguments, &mut arguments.len())) "</section>\n"
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        answer(text).into_string()
    }

    #[test]
    fn thoughts_are_folded_and_calls_are_boxes() {
        let page = shown("<think>A *cup*?</think>\nWarm.");
        assert!(
            page.starts_with("<details class=\"thought\"><summary>Reasoning</summary>\n<p>A <em>cup</em>?</p>"),
            "{page}"
        );
        assert!(page.ends_with("</details>\n<p>Warm.</p>\n"), "{page}");
        assert!(shown("A cup?</think>Warm.").contains("<p>A cup?</p>\n</details>"));
        assert!(shown("<think>and on").contains("<p>and on</p>\n</details>"));
        assert_eq!(shown("<think>\n</think>Warm."), "<p>Warm.</p>\n");
        // An answer about the tags is shown whole.
        let page = shown("Warm. <think>A cup?</think> Hot.");
        assert!(page.starts_with("<p>Warm. ") && page.contains("Hot.") && !page.contains("Reasoning"), "{page}");
        let page = shown("I look.\n<tool_call>{\"name\": \"<b>\", \"arguments\": {\"city\": \"<i>\"}}</tool_call>");
        assert!(page.starts_with("<p>I look.</p>\n<section class=\"call\""), "{page}");
        assert!(page.contains("<code>&lt;b&gt;</code>") && !page.contains("<i>") && !page.contains("<b>"), "{page}");
        // A call that cannot be parsed is shown as text.
        assert_eq!(shown("<tool_call>{broken"), "<p>&lt;tool_call&gt;{broken</p>\n");
    }

    #[test]
    fn pages_are_kept_up_to_a_number_of_bytes() {
        let rich = Rich::default();
        let text = |i: usize| format!("{i} {}", "*tea* ".repeat(10_000));
        assert_eq!(rich.answer(&text(0)), rich.answer(&text(0)));
        (0..300).for_each(|i| drop(rich.answer(&text(i))));
        let kept = rich.0.lock().expect("nobody panicked");
        let bytes: usize = kept.pages.values().map(Html::size).sum();
        assert!(kept.bytes == bytes && bytes <= KEPT_BYTES && kept.pages.len() == kept.order.len(), "{bytes}");
        assert!(kept.pages.len() < 300 && kept.pages.len() > 10, "{}", kept.pages.len());
    }

    #[test]
    fn very_long_answers_are_shown_as_they_are() {
        let page = shown(&"**a** <b>".repeat(LONGEST / 4));
        assert!(page.starts_with("<div class=\"plain\">**a** &lt;b&gt;**a**"));
    }
}

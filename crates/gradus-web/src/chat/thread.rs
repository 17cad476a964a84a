//! Rendering of the displayed path of a conversation.

use std::collections::BTreeSet;

use gradus::html;
use gradus::html::Html;
use gradus::inference::ChatFormat;
use serde_json::json;

use crate::rich::Rich;
use crate::store::chats::{Choice, Message, PartScore, Segment, Settings, Tree};
use crate::value_class::value_class;

/// Renders the names of the models.
pub fn with(settings: &Settings) -> Html {
    match settings.models.as_slice() {
        _ if settings.blind => {
            html!["Two models. Their names are hidden until you vote, and so are their rewards. A vote is final."]
        }
        [one] => html!["With "(one)],
        [one, other] => html!["With " (one) " and " (other) ", side by side"],
        _ => Html::new(),
    }
}

/// Renders a note about models that have no chat template. In blind conversations it does not name them.
pub fn no_template(models: &[(String, ChatFormat)], is_blind: bool) -> Vec<Html> {
    let note = |(name, format): &(String, ChatFormat)| {
        let who = if is_blind { html!["One of the models"] } else { html!["<code>" (name) "</code>"] };
        let form = match format {
            ChatFormat::Hh => html!["<code>Human: …</code> and <code>Assistant: …</code>, as in HH-RLHF"],
            ChatFormat::Template | ChatFormat::Plain => html!["plain text"],
        };
        html![
            "<p class=\"note small\">" (who) " has no chat template: it reads the conversation as " (form)
            ". <code>gradus serve --model DIR --chat-template NAME|FILE</code> sets one.</p>\n"
        ]
    };
    models.iter().map(note).collect()
}

/// Renders all turns of the path.
pub fn thread(tree: &Tree, rich: &Rich) -> Html {
    let path = tree.path(tree.conversation.leaf);
    if path.is_empty() {
        return html!["<p class=\"soft\">Write the first message.</p>\n"];
    }
    let mut thread = Html::new();
    for message in &path {
        let turn = if message.role == "user" { user_turn(tree, message) } else { answers(tree, message, rich) };
        thread.add(&turn);
    }
    // A turn without an answer can be answered, for example after an error or a restart of the server.
    if let Some(last) = path.last().filter(|last| last.role == "user") {
        thread.add(
            &html!["<p class=\"row\"><button type=\"button\" data-answer=\"" (last.id) "\">Answer</button></p>\n"],
        );
    }
    thread
}

fn user_turn(tree: &Tree, message: &Message) -> Html {
    let parent = message.parent.map_or(String::new(), |parent| parent.to_string());
    html![
        "<article class=\"turn user\" data-message=\"" (message.id) "\" data-parent=\"" (parent) "\">\n<h2>You</h2>\n"
        "<div class=\"text\" dir=\"auto\" data-source=\"" (source(&message.text)) "\">" (message.text) "</div>\n<p class=\"row\">"
        "<button type=\"button\" data-edit=\"" (message.id) "\">Edit</button>" (branches(tree, message)) "</p>\n</article>\n"
    ]
}

/// Returns a text for scripts, as JSON in printable ASCII characters. Pages show invisible characters in another form, and the text has to stay
/// as it is.
fn source(text: &str) -> String {
    let one = |c: char| match c {
        ' '..='~' => c.to_string(),
        _ => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    json!(text).to_string().chars().map(one).collect()
}

/// Renders the navigation between alternative turns.
fn branches(tree: &Tree, message: &Message) -> Html {
    let siblings = tree.siblings(message);
    let own = message.pair.unwrap_or(message.id);
    let Some(at) = siblings.iter().position(|id| *id == own).filter(|_| siblings.len() > 1) else { return Html::new() };
    let to = |to: Option<&i64>, name: &'static str, sign: &'static str| match to {
        Some(id) => {
            html!["<button type=\"button\" data-show=\"" (id.to_string()) "\" aria-label=\"" (name) "\">" (sign) "</button>"]
        }
        None => html!["<button type=\"button\" disabled aria-label=\"" (name) "\">" (sign) "</button>"],
    };
    html![
        "<span class=\"branches\">" (to(at.checked_sub(1).and_then(|at| siblings.get(at)), "The version before", "‹"))
        "<span>" (at + 1) " of " (siblings.len()) "</span>" (to(siblings.get(at + 1), "The next version", "›")) "</span>"
    ]
}

fn answers(tree: &Tree, message: &Message, rich: &Rich) -> Html {
    let sides = tree.side_by_side(message);
    let is_hidden = tree.is_hidden(message);
    let vote = message.pair.and_then(|pair| tree.votes.get(&pair).copied());
    let one = |(side, answer): (usize, &&Message)| {
        let place = if side == 0 { "Left" } else { "Right" };
        let name = match (&answer.model, sides.len()) {
            (_, 2) if is_hidden => html![(place)],
            (Some(model), 2) => html![(place) ": " (model)],
            (Some(model), _) => html![(model)],
            (None, _) => html!["Answer"],
        };
        let better = [Choice::Left, Choice::Right].get(side).copied();
        let chosen = if vote.is_some() && vote == better {
            html!["<span class=\"good\"> preferred</span>"]
        } else {
            Html::new()
        };
        // Rewards would bias a blind vote. Segments count characters of the original text.
        let (text, kind, segments) = match is_hidden || of_segments(answer).is_empty() {
            true => (rich.answer(&answer.text), " rich", Html::new()),
            false => (judged(answer), "", parts(answer)),
        };
        html![
            "<div class=\"answer\" data-message=\"" (answer.id) "\" data-side=\"" (side) "\">\n<h2>" (name) (chosen) "</h2>\n"
            "<div class=\"text" (kind) "\" dir=\"auto\" tabindex=\"0\" role=\"group\" aria-label=\"Answer\" data-source=\"" (source(&answer.text)) "\">" (text)
            "</div>\n<p class=\"small soft remark\">"
            (remark(answer, is_hidden)) "</p>\n" (segments) "</div>\n"
        ]
    };
    let of: Vec<Html> = sides.iter().enumerate().map(one).collect();
    let parent = message.parent.map_or(String::new(), |parent| parent.to_string());
    let is_locked = tree.conversation.settings.blind && vote.is_some();
    let pair = message.pair.map(|pair| votes(pair, vote, is_locked));
    let copy = match sides.len() {
        1 => html!["<button type=\"button\" data-copy-answer>Copy</button>"],
        _ => Html::new(),
    };
    let tokens = match is_hidden {
        true => Html::new(),
        false => html!["<button type=\"button\" data-tokens aria-pressed=\"false\">Show tokens</button>"],
    };
    html![
        "<article class=\"turn assistant\" data-message=\"" (message.id) "\" data-parent=\"" (parent) "\">\n<div class=\"sides sides-"
        (sides.len()) "\">\n" (of) "</div>\n" (pair) "<p class=\"row\"><button type=\"button\" data-answer=\"" (parent)
        "\">Answer again</button>" (copy) (tokens) (branches(tree, message)) "</p>\n</article>\n"
    ]
}

/// Renders the reason why an answer ended, unless it ended normally, and its rewards, unless they are hidden.
fn remark(answer: &Message, is_hidden: bool) -> Html {
    let end = match answer.ended.as_deref() {
        Some("length") => "cut off: it reached the longest answer or the end of the model's context",
        Some("interrupted") => "stopped",
        Some("failed") => "failed",
        Some(_) => "",
        None => "not finished",
    };
    let mut remark = html![(end)];
    if is_hidden {
        return remark;
    }
    for (name, reward) in &answer.rewards {
        if !remark.is_empty() {
            remark.markup(" · ");
        }
        remark.add(&html![(name) ": reward " (format!("{reward:.3}"))]);
    }
    for part in answer.parts.iter().filter(|part| !part.name.is_empty()) {
        remark.add(&html![", " (part.name) " " (format!("{:.3}", part.total))]);
    }
    remark
}

/// Returns the reward parts that judge segments.
fn of_segments(answer: &Message) -> Vec<&PartScore> {
    answer.parts.iter().filter(|part| !part.segments.is_empty()).collect()
}

/// Renders the text. If segments were judged, each range has a color for the total of all parts.
fn judged(answer: &Message) -> Html {
    let parts = of_segments(answer);
    let characters: Vec<char> = answer.text.chars().collect();
    // Boundaries of all segments.
    let ends = parts.iter().flat_map(|part| &part.segments).flat_map(|(start, end, ..)| [*start, *end]);
    let bounds: BTreeSet<usize> = ends.chain([0, characters.len()]).filter(|at| *at <= characters.len()).collect();
    let bounds: Vec<usize> = bounds.into_iter().collect();
    let mut next = vec![0; parts.len()];
    let mut stretches = Vec::new();
    for pair in bounds.windows(2) {
        // Segments of one part are in order.
        let of_part = |(part, next): (&&PartScore, &mut usize)| {
            while part.segments.get(*next).is_some_and(|(_, end, ..)| *end <= pair[0]) {
                *next += 1;
            }
            part.segments.get(*next).filter(|(start, ..)| *start <= pair[0]).cloned()
        };
        let found: Vec<Option<Segment>> = parts.iter().zip(&mut next).map(of_part).collect();
        stretches.push((pair[0]..pair[1], found));
    }
    let sum = |found: &[Option<Segment>]| found.iter().flatten().map(|(_, _, value, _)| f64::from(*value)).sum::<f64>();
    let most = stretches.iter().fold(0.0f64, |most, (_, found)| most.max(sum(found).abs()));
    let mut html = Html::new();
    for (range, found) in &stretches {
        let text: String = characters[range.clone()].iter().collect();
        if found.iter().all(Option::is_none) {
            html.add(&text);
            continue;
        }
        let values = json!(found.iter().map(|found| found.as_ref().map(|(_, _, value, _)| *value)).collect::<Vec<_>>());
        let notes = parts.iter().zip(found).filter_map(|(part, found)| Some(in_words(part, found.as_ref()?)));
        html.add(&html![
            "<span class=\"judged " (value_class(sum(found), most)) "\" data-values=\"" (values.to_string()) "\" title=\""
            (notes.collect::<Vec<_>>().join("; ")) "\">" (text) "</span>"
        ]);
    }
    html
}

/// `relevance -0.300 NF-ERR`
fn in_words(part: &PartScore, (_, _, value, label): &Segment) -> String {
    let words = [part.name.clone(), format!("{value:+.3}"), label.clone().unwrap_or_default()];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Renders the choice of the part that determines the colors, and a list of each part's judgments.
fn parts(answer: &Message) -> Html {
    let parts = of_segments(answer);
    if parts.is_empty() {
        return Html::new();
    }
    let button = |which: String, name: &str, pressed: &'static str| html!["<button type=\"button\" class=\"small\" data-part=\"" (which) "\" aria-pressed=\"" (pressed) "\">" (name) "</button>"];
    let choice = match parts.len() {
        1 => Html::new(),
        _ => {
            let each = parts.iter().enumerate().map(|(i, part)| button(i.to_string(), &part.name, "false"));
            html!["<p class=\"row\" role=\"group\" aria-label=\"Colors\">" (button("all".into(), "Together", "true")) (each.collect::<Vec<_>>()) "</p>\n"]
        }
    };
    let characters: Vec<char> = answer.text.chars().collect();
    let segment = |part: &PartScore, found: &Segment| {
        let text: String = characters.get(found.0..found.1).unwrap_or_default().iter().collect();
        html!["<li>" (in_words(part, found)) ": “" (text.trim()) "”</li>\n"]
    };
    let all = parts.iter().flat_map(|part| part.segments.iter().map(|found| segment(part, found)).collect::<Vec<_>>());
    html![(choice) "<details class=\"small\"><summary>Segments</summary>\n<ul>\n" (all.collect::<Vec<_>>()) "</ul>\n</details>\n"]
}

fn votes(pair: i64, vote: Option<Choice>, is_locked: bool) -> Html {
    let button = |choice: Choice, key: &'static str, name: &'static str| {
        let pressed = if vote == Some(choice) { "true" } else { "false" };
        let locked = if is_locked { " disabled" } else { "" };
        html![
            "<button type=\"button\" data-vote=\"" (choice.name()) "\" data-pair=\"" (pair) "\" aria-pressed=\"" (pressed) "\"" (locked) ">"
            (name) " <kbd>" (key) "</kbd></button>"
        ]
    };
    html![
        "<div class=\"row votes\" role=\"group\" aria-label=\"Which answer is better?\">"
        (button(Choice::Left, "1", "Left is better")) (button(Choice::Right, "2", "Right is better"))
        (button(Choice::Tie, "3", "Tie")) (button(Choice::Bad, "4", "Both bad")) "</div>\n"
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_text_keeps_every_character() {
        let text = "a\u{200f}\r\n\"\u{9b}\u{7f}é👋\0";
        let json = source(text);
        assert_eq!(json, r#""a\u200f\r\n\"\u009b\u007f\u00e9\ud83d\udc4b\u0000""#);
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
    }
}

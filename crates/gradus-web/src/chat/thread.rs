//! The path of a conversation that is shown.

use crate::html;
use crate::html::Html;
use crate::store::chats::{Choice, Message, Settings, Tree};

/// Whom one talks to.
pub fn with(settings: &Settings) -> Html {
    match settings.models.as_slice() {
        _ if settings.blind => html!["Two models, blind: their names are said after the vote."],
        [one] => html!["With "(one)],
        [one, other] => html!["With " (one) " and " (other) ", side by side"],
        _ => Html::new(),
    }
}

/// All turns of the path.
pub fn thread(tree: &Tree) -> Html {
    let path = tree.path(tree.conversation.leaf);
    if path.is_empty() {
        return html!["<p class=\"soft\">Nothing was said yet.</p>\n"];
    }
    let mut thread = Html::new();
    for message in &path {
        let turn = if message.role == "user" { said(tree, message) } else { answers(tree, message) };
        thread.add(&turn);
    }
    // What has no answer can be answered: after an error, or when the server was ended.
    if let Some(last) = path.last().filter(|last| last.role == "user") {
        thread.add(
            &html!["<p class=\"row\"><button type=\"button\" data-answer=\"" (last.id) "\">Answer</button></p>\n"],
        );
    }
    thread
}

fn said(tree: &Tree, message: &Message) -> Html {
    let parent = message.parent.map_or(String::new(), |parent| parent.to_string());
    html![
        "<article class=\"turn user\" data-message=\"" (message.id) "\" data-parent=\"" (parent) "\">\n<h2>You</h2>\n"
        "<div class=\"text\">" (message.text) "</div>\n<p class=\"row\">"
        "<button type=\"button\" data-edit=\"" (message.id) "\">Edit</button>" (branches(tree, message)) "</p>\n</article>\n"
    ]
}

/// Other turns in the same place.
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

fn answers(tree: &Tree, message: &Message) -> Html {
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
        html![
            "<div class=\"answer\" data-message=\"" (answer.id) "\" data-side=\"" (side) "\">\n<h2>" (name) (chosen) "</h2>\n"
            "<div class=\"text\" tabindex=\"0\" role=\"group\" aria-label=\"Answer\">" (answer.text) "</div>\n<p class=\"small soft remark\">"
            (remark(answer)) "</p>\n</div>\n"
        ]
    };
    let of: Vec<Html> = sides.iter().enumerate().map(one).collect();
    let parent = message.parent.map_or(String::new(), |parent| parent.to_string());
    let pair = message.pair.map(|pair| votes(pair, vote));
    html![
        "<article class=\"turn assistant\" data-message=\"" (message.id) "\" data-parent=\"" (parent) "\">\n<div class=\"sides sides-"
        (sides.len()) "\">\n" (of) "</div>\n" (pair) "<p class=\"row\"><button type=\"button\" data-answer=\"" (parent)
        "\">Answer again</button><button type=\"button\" data-tokens aria-pressed=\"false\">Show tokens</button>"
        (branches(tree, message)) "</p>\n</article>\n"
    ]
}

/// Why an answer ended, where that is no matter of course, and what reward models think of it.
fn remark(answer: &Message) -> Html {
    let end = match answer.ended.as_deref() {
        Some("length") => "cut off at the longest length",
        Some("interrupted") => "stopped",
        Some("failed") => "failed",
        Some(_) => "",
        None => "not finished",
    };
    let mut remark = html![(end)];
    for (name, reward) in &answer.rewards {
        if !remark.is_empty() {
            remark.markup(" · ");
        }
        remark.add(&html![(name) ": reward " (format!("{reward:.3}"))]);
    }
    remark
}

fn votes(pair: i64, vote: Option<Choice>) -> Html {
    let button = |choice: Choice, key: &'static str, name: &'static str| {
        let pressed = if vote == Some(choice) { "true" } else { "false" };
        html![
            "<button type=\"button\" data-vote=\"" (choice.name()) "\" data-pair=\"" (pair) "\" aria-pressed=\"" (pressed) "\">"
            (name) " <kbd>" (key) "</kbd></button>"
        ]
    };
    html![
        "<div class=\"row votes\" role=\"group\" aria-label=\"Which answer is better?\">"
        (button(Choice::Left, "1", "Left is better")) (button(Choice::Right, "2", "Right is better"))
        (button(Choice::Tie, "3", "As good")) (button(Choice::Bad, "4", "Both bad")) "</div>\n"
    ]
}

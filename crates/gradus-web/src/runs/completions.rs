//! Completions of an online run, by step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query as Address, State};
use axum::response::IntoResponse;
use gradus::html;
use gradus::html::Html;
use gradus::run::database::{Query, Record, RolloutTable, Sort};
use gradus::run::{RolloutDb, RunDir};

use super::conversation::conversation;
use super::difference::{DifferenceKind, differences};
use super::page::{address, short, signed};
use super::query_params::{QueryParams, find, first};
use super::{blocking, tokens};
use crate::app::App;
use crate::models::Kind;
use crate::page::{Page, Section};
use crate::page_error::{PageError, PageResult};
use crate::query::percent;
use crate::store::sessions::Session;
use crate::value_class::value_class;

/// Number of completions per page.
const SHOWN: usize = 25;

/// Renders the selected completions.
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Address(params): Address<QueryParams>,
) -> PageResult {
    let name = first(&params, "run").unwrap_or_default().to_owned();
    let path = find(&app, &name)?;
    let number = |name: &str| first(&params, name).and_then(|text| text.parse::<usize>().ok());
    let sort = match first(&params, "sort") {
        Some("reward") => Sort::Reward,
        Some("length") => Sort::Length,
        Some("kl") => Sort::Kl,
        _ => Sort::Step,
    };
    let query = Query {
        table: tokens::table(&params),
        first_step: number("step"),
        last_step: number("step"),
        text: first(&params, "text").map(str::to_owned),
        sort,
        descending: first(&params, "order") == Some("down"),
        limit: Some(SHOWN),
        offset: number("from").unwrap_or(0),
        ..Query::default()
    };
    let sought = query.clone();
    let before = number("before");
    let compared = before.zip(query.first_step).filter(|(before, step)| before != step);
    let of = Arc::clone(&app);
    let found = blocking(move || -> gradus::Result<_> {
        let models = of.models.list().into_iter().filter(|found| found.kind == Kind::Language);
        let models: Vec<String> = models.map(|found| found.name).collect();
        let database = RolloutDb::open(&RunDir::open(&path)?)?;
        let steps = database.steps(sought.table)?;
        let both = compared.map(|(before, step)| database.diff(sought.table, before, step)).transpose()?;
        Ok((database.query(&sought)?, database.count(&sought)?, steps, both, models))
    });
    let (records, count, steps, both, models) = found.await?.map_err(PageError::from)?;
    let shown = match both {
        Some(both) => compare_steps(&name, &params, &query, both),
        None => html![(not_compared(before, query.first_step))(list(&name, &params, &query, &records, count))],
    };
    let body = html![(filter(&name, &params, &query, &steps, &models))(shown)];
    let title = format!("Completions of {name}");
    let page = Page { title: &title, section: Section::Runs, scripts: &["page.js", "tokens.js"], styles: &[], body };
    Ok(page.framed(&session).into_response())
}

fn filter(name: &str, params: &QueryParams, query: &Query, steps: &[usize], models: &[String]) -> Html {
    let option = |value: &str, words: &str, chosen: bool| {
        let chosen = if chosen { html![" selected"] } else { Html::new() };
        html!["<option value=\"" (value) "\"" (chosen) ">" (words) "</option>"]
    };
    let tables = [("Training", RolloutTable::Train), ("Evaluations", RolloutTable::Eval), ("Test", RolloutTable::Test)];
    let tables: Vec<Html> =
        tables.iter().map(|&(words, table)| option(tokens::word(table), words, table == query.table)).collect();
    let step = |step: &usize| option(&step.to_string(), &step.to_string(), query.first_step == Some(*step));
    let sorts = [("step", "Step"), ("reward", "Reward"), ("kl", "KL"), ("length", "Length")];
    let sorted = first(params, "sort").unwrap_or("step");
    let sorts: Vec<Html> = sorts.iter().map(|(value, words)| option(value, words, *value == sorted)).collect();
    let orders = [option("up", "Smallest first", !query.descending), option("down", "Largest first", query.descending)];
    let chosen = first(params, "colors").unwrap_or_default();
    let colors = [("", "Automatic"), ("reward", "Reward"), ("advantage", "Advantage"), ("none", "None")];
    let colors: Vec<Html> = colors.iter().map(|(value, words)| option(value, words, *value == chosen)).collect();
    let before = first(params, "before").and_then(|text| text.parse::<usize>().ok());
    let earlier = |step: &usize| option(&step.to_string(), &step.to_string(), before == Some(*step));
    let choices = |key: &str, nothing: &str| -> Vec<Html> {
        let chosen = first(params, key).unwrap_or_default();
        let all = models.iter().map(|model| option(model, model, model == chosen));
        std::iter::once(option("", nothing, chosen.is_empty())).chain(all).collect()
    };
    html![
        "<p><a href=\"" (address("show", name)) "\">Back to the run</a></p>\n"
        "<form method=\"get\" action=\"/runs/completions\" class=\"filter\">\n<input type=\"hidden\" name=\"run\" value=\"" (name) "\">\n"
        "<div><label for=\"table\">From</label><select id=\"table\" name=\"table\">" (tables) "</select></div>\n"
        "<div><label for=\"step\">Step</label><select id=\"step\" name=\"step\">" (option("", "All", query.first_step.is_none()))
        (steps.iter().map(step).collect::<Vec<_>>()) "</select></div>\n"
        "<div><label for=\"before\">Compare with step</label><select id=\"before\" name=\"before\">" (option("", "None", before.is_none()))
        (steps.iter().map(earlier).collect::<Vec<_>>()) "</select></div>\n"
        "<div><label for=\"text\">Search</label><input id=\"text\" name=\"text\" value=\"" (query.text.clone().unwrap_or_default()) "\"></div>\n"
        "<div><label for=\"sort\">Sort by</label><select id=\"sort\" name=\"sort\">" (sorts) "</select></div>\n"
        "<div><label for=\"order\">Order</label><select id=\"order\" name=\"order\">" (orders.to_vec()) "</select></div>\n"
        "<div><label for=\"colors\">Colors</label><select id=\"colors\" name=\"colors\">" (colors) "</select></div>\n"
        "<div><label for=\"model\">Token probabilities of</label><select id=\"model\" name=\"model\">" (choices("model", "None")) "</select></div>\n"
        "<div><label for=\"against\">compared with</label><select id=\"against\" name=\"against\">" (choices("against", "None")) "</select></div>\n"
        "<button type=\"submit\">Filter</button>\n</form>\n<p id=\"status\" role=\"status\" class=\"small soft\"></p>\n"
    ]
}

/// Renders the displayed range and links to other pages.
fn pages(name: &str, params: &QueryParams, query: &Query, shown: usize, count: usize) -> Html {
    let last = (query.offset + shown).min(count);
    let to = |from: usize, words: &'static str| {
        let rest: String = params
            .iter()
            .filter(|(key, _)| key != "from" && key != "run")
            .map(|(key, value)| format!("&{}={}", percent(key), percent(value)))
            .collect();
        html!["<a href=\"" (address("completions", name)) (rest) "&amp;from=" (from) "\">" (words) "</a> "]
    };
    let before = if query.offset > 0 { to(query.offset.saturating_sub(SHOWN), "‹ Previous") } else { Html::new() };
    let after = if last < count { to(query.offset + SHOWN, "Next ›") } else { Html::new() };
    if count == 0 {
        return html!["<p class=\"soft\">No completion fits these filters.</p>\n"];
    }
    html!["<p class=\"soft small\">" (query.offset + 1) " to " (last) " of " (count) " " (before) (after) "</p>\n"]
}

/// Renders a list of completions.
fn list(name: &str, params: &QueryParams, query: &Query, records: &[Record], count: usize) -> Html {
    let model = first(params, "model");
    // Parameters that the script adds to the index of a completion.
    let asks = [("run", Some(name)), ("model", model), ("against", first(params, "against"))];
    let asks: Vec<String> =
        asks.iter().filter_map(|(key, value)| Some(format!("{key}={}", percent((*value)?)))).collect();
    let tokens = |record: &Record| match model {
        None => Html::new(),
        Some(_) => {
            html!["<p><button type=\"button\" class=\"small\" aria-pressed=\"false\" data-which=\"" (tokens::query(record, query.table)) "\">Tokens</button></p>"]
        }
    };
    let colors = Colors::of(first(params, "colors"), records);
    let stretches: Vec<Vec<ValueSpan>> = records.iter().map(|record| colors.stretches(record)).collect();
    // The whole page has one scale, so that completions can be compared.
    let most = stretches.iter().flatten().fold(0.0f64, |most, (_, value)| most.max(value.abs()));
    let row = |(record, stretches): (&Record, &Vec<ValueSpan>)| {
        let number = |value: Option<f64>| value.map(short);
        let text = html!["<div class=\"completion\" dir=\"auto\">" (colored(&record.completion, stretches, most)) "</div>" (tokens(record))];
        // An episode is shown as a conversation. Its text, which has the colors and tokens, follows below.
        let content = match &record.episode {
            Some(episode) => {
                html![(conversation(episode)) "<details><summary>Text of the completion</summary>\n" (text) "</details>"]
            }
            None => text,
        };
        html![
            "<tr><td class=\"number\">" (record.step) "</td><td class=\"said\" dir=\"auto\">" (record.prompt) "</td><td class=\"said\">" (content)
            "</td><td class=\"number\">" (number(record.reward)) "</td><td class=\"number\">" (number(record.advantage)) "</td><td class=\"number\">"
            (number(record.kl)) "</td><td class=\"number\">" (record.length) "</td><td>" (record.stop_reason) "</td></tr>\n"
        ]
    };
    html![
        (pages(name, params, query, records.len(), count)) (colors.legend(most))
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Completions\" data-tokens-of=\"" (asks.join("&")) "\"><table>\n<thead><tr><th scope=\"col\" class=\"number\">Step</th>"
        "<th scope=\"col\">Prompt</th><th scope=\"col\">Completion</th><th scope=\"col\" class=\"number\">Reward</th><th scope=\"col\" class=\"number\">Advantage</th>"
        "<th scope=\"col\" class=\"number\">KL</th><th scope=\"col\" class=\"number\">Tokens</th><th scope=\"col\">Stop reason</th></tr></thead>\n<tbody>\n"
        (records.iter().zip(&stretches).map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n"
    ]
}

/// A range of characters in a completion, and its value.
type ValueSpan = (Range<usize>, f64);

/// Meaning of the colors in completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colors {
    /// The sum of the reward's parts at their positions.
    Reward,
    /// The advantages of the tokens.
    Advantage,
    /// No colors.
    None,
}

impl Colors {
    /// Returns the requested colors. By default, those that show more than the columns do.
    fn of(params: Option<&str>, records: &[Record]) -> Self {
        match params {
            Some("reward") => Self::Reward,
            Some("advantage") => Self::Advantage,
            Some("none") => Self::None,
            _ if records.iter().any(|record| !record.segments.is_empty()) => Self::Reward,
            _ if records.iter().any(|record| !record.advantages.is_empty()) => Self::Advantage,
            _ => Self::None,
        }
    }

    /// Returns the ranges of a completion with their values, in order.
    fn stretches(self, record: &Record) -> Vec<ValueSpan> {
        match self {
            // A value belongs to the text since the previous one, because a sentence's reward is assigned to its last token.
            Self::Reward => {
                let mut by_end: BTreeMap<usize, f64> = BTreeMap::new();
                for segment in record.segments.iter().flat_map(|(_, segments)| segments) {
                    *by_end.entry(segment.characters.end).or_default() += segment.value;
                }
                let mut start = 0;
                by_end.into_iter().map(|(end, value)| (std::mem::replace(&mut start, end)..end, value)).collect()
            }
            // Without separate advantages, all tokens have the advantage of the completion.
            Self::Advantage if record.advantages.is_empty() => {
                let whole = 0..record.completion.chars().count();
                record.advantage.map(|advantage| (whole, advantage)).into_iter().collect()
            }
            Self::Advantage => record.advantages.iter().map(|token| (token.characters.clone(), token.value)).collect(),
            Self::None => Vec::new(),
        }
    }

    /// Renders the legend. `most` is the largest absolute value.
    fn legend(self, most: f64) -> Html {
        let of = match self {
            _ if most == 0.0 => return Html::new(),
            Self::Reward => "the reward of the text up to its end",
            Self::Advantage => "the advantage of a token",
            Self::None => return Html::new(),
        };
        let sample = |value: f64| value_span(&signed(value), value, most);
        html!["<p class=\"soft small\">Colors: " (of) ", from " (sample(-most)) " to " (sample(most)) ".</p>\n"]
    }
}

/// Renders a completion with its ranges colored by value. `most` is the largest absolute value on the page.
fn colored(completion: &str, stretches: &[ValueSpan], most: f64) -> Html {
    if most == 0.0 {
        return html![(completion)];
    }
    let characters: Vec<char> = completion.chars().collect();
    let text = |range: Range<usize>| characters.get(range).unwrap_or_default().iter().collect::<String>();
    let (mut html, mut at) = (Html::new(), 0);
    for (stretch, value) in stretches {
        // The file may be written by other programs, so ranges may overlap or exceed the text.
        let start = stretch.start.clamp(at, characters.len());
        let end = stretch.end.clamp(start, characters.len());
        html.add(&html![(text(at..start))(value_span(&text(start..end), *value, most))]);
        at = end;
    }
    html![(html)(text(at..characters.len()))]
}

/// Renders a range of text in the color of its value.
fn value_span(text: &str, value: f64, most: f64) -> Html {
    let class = value_class(value, most);
    if text.is_empty() || class.is_empty() {
        return html![(text)];
    }
    html!["<span class=\"" (class) "\" title=\"" (signed(value)) "\">" (text) "</span>"]
}

/// Says why an earlier step is selected but not compared.
fn not_compared(before: Option<usize>, step: Option<usize>) -> Html {
    match (before, step) {
        (Some(before), None) => {
            html!["<p class=\"soft\">Nothing is compared yet. Select a step to compare with step " (before) ".</p>\n"]
        }
        (Some(before), Some(step)) if before == step => {
            html!["<p class=\"soft\">Nothing is compared. Select a step other than " (step) " to compare it with.</p>\n"]
        }
        _ => Html::new(),
    }
}

/// Renders the same prompts at two steps with the differences in the texts. The columns of numbers show what the pairs are sorted by.
fn compare_steps(name: &str, params: &QueryParams, query: &Query, mut pairs: Vec<(Record, Record)>) -> Html {
    if pairs.is_empty() {
        return html![
            "<p>The two steps share no prompt. Training draws new prompts each time; evaluations use the same ones.</p>\n"
        ];
    }
    query.select_pairs(&mut pairs);
    let (key, measured) = match query.sort {
        Sort::Step | Sort::Reward => (Sort::Reward, "Reward"),
        Sort::Advantage => (Sort::Advantage, "Advantage"),
        Sort::Kl => (Sort::Kl, "KL"),
        Sort::Length => (Sort::Length, "Tokens"),
    };
    let order = match (query.sort, query.descending) {
        (Sort::Step, _) => "in the order of sampling",
        (_, true) => "sorted by the change, largest first",
        (_, false) => "sorted by the change, smallest first",
    };
    let is_count = key == Sort::Length;
    let number = |value: f64| if is_count { value.to_string() } else { short(value) };
    let change = |value: f64| if is_count { format!("{value:+}") } else { signed(value) };
    let row = |(old, new): &(Record, Record)| {
        let part = |(change, text): (DifferenceKind, String)| match change {
            DifferenceKind::Same => html![(text)],
            DifferenceKind::Gone => html!["<del>" (text) "</del>"],
            DifferenceKind::New => html!["<ins>" (text) "</ins>"],
        };
        let texts: Vec<Html> = differences(&old.completion, &new.completion).into_iter().map(part).collect();
        html![
            "<tr><td class=\"said\">" (new.prompt) "</td><td class=\"said\">" (texts) "</td><td class=\"number\">" (key.value(old).map(number))
            "</td><td class=\"number\">" (key.value(new).map(number)) "</td><td class=\"number\">" (key.change(old, new).map(change)) "</td></tr>\n"
        ]
    };
    let shown: Vec<Html> = pairs.iter().skip(query.offset).take(SHOWN).map(row).collect();
    html![
        "<p class=\"soft small\">Prompts of both steps, " (order) ". <del>Removed text</del>, <ins>new text</ins>.</p>\n"
        (pages(name, params, query, shown.len(), pairs.len()))
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Differences\"><table>\n<thead><tr><th scope=\"col\">Prompt</th><th scope=\"col\">Completion</th>"
        "<th scope=\"col\" class=\"number\">" (measured) " before</th><th scope=\"col\" class=\"number\">" (measured) "</th><th scope=\"col\" class=\"number\">Change</th></tr></thead>\n<tbody>\n"
        (shown) "</tbody></table></div>\n"
    ]
}

#[cfg(test)]
mod tests {
    use gradus::run::database::Segment;

    use super::*;

    fn segment(characters: Range<usize>, value: f64) -> Segment {
        Segment { characters, value }
    }

    fn shown(record: &Record, colors: Colors, most: f64) -> String {
        colored(&record.completion, &colors.stretches(record), most).into_string()
    }

    #[test]
    fn a_stretch_has_the_color_of_the_value_at_its_end() {
        let record = Record {
            completion: "Grün <b>. Nein! Ja".into(),
            segments: vec![
                ("facts".into(), vec![segment(8..9, 2.0), segment(14..15, -0.5)]),
                ("tone".into(), vec![segment(8..9, 1.0)]),
            ],
            ..Record::default()
        };
        let expected = "<span class=\"worth better-3\" title=\"+3.000\">Grün &lt;b&gt;.</span>\
                        <span class=\"worth worse-1\" title=\"-0.5000\"> Nein!</span> Ja";
        assert_eq!(shown(&record, Colors::Reward, 3.0), expected);
        assert_eq!(shown(&record, Colors::None, 0.0), "Grün &lt;b&gt;. Nein! Ja");
        // Positions beyond the text are tolerated.
        let beyond = Record { segments: vec![("x".into(), vec![segment(40..50, 1.0)])], ..record };
        assert!(shown(&beyond, Colors::Reward, 1.0).contains("Ja</span>"));
    }

    #[test]
    fn a_comparison_says_what_it_shows() {
        let pair = |reward: f64, length: usize| {
            let before = Record { prompt: "Tea?".into(), reward: Some(0.0), length: 4, ..Record::default() };
            let after = Record { reward: Some(reward), length, ..before.clone() };
            (before, after)
        };
        let shown = |query: Query, pairs: &[(Record, Record)]| {
            compare_steps("tea", &QueryParams::new(), &query, pairs.to_vec()).into_string()
        };
        let pairs = [pair(0.5, 3), pair(-0.25, 9)];
        let sorted = |sort, descending| shown(Query { sort, descending, ..Query::default() }, &pairs);
        let is_first = |page: &str, text: &str| {
            let row = page.split_once("<tbody>").expect("a table").1.split_once("</tr>").expect("a row").0;
            assert!(row.contains(text), "{page}");
        };
        let by_step = sorted(Sort::Step, true);
        assert!(
            by_step.contains("Prompts of both steps, in the order of sampling.") && by_step.contains("Reward before")
        );
        is_first(&by_step, ">+0.5000<");
        is_first(&sorted(Sort::Reward, false), ">-0.2500<");
        let by_length = sorted(Sort::Length, true);
        assert!(by_length.contains("largest first") && by_length.contains(">Tokens before<"), "{by_length}");
        is_first(&by_length, ">4</td><td class=\"number\">9</td><td class=\"number\">+5</td>");
        // A search without a match is no reason to say that the steps have other prompts.
        let nothing = shown(Query { text: Some("coffee".into()), ..Query::default() }, &pairs);
        assert!(nothing.contains("No completion fits these filters.") && !nothing.contains("share no prompt"));
        assert!(shown(Query::default(), &[]).contains("share no prompt"));
        assert_eq!(not_compared(None, None).into_string() + &not_compared(Some(0), Some(4)).into_string(), "");
        assert!(not_compared(Some(0), None).into_string().contains("Select a step to compare with step 0."));
        assert!(not_compared(Some(4), Some(4)).into_string().contains("other than 4"));
    }

    #[test]
    fn small_and_large_numbers_keep_their_digits_and_empty_lists_have_no_range() {
        assert_eq!([2.5e-4, -1.2e-5, 7e8, -1e30].map(short), ["2.500e-4", "-1.200e-5", "7.000e8", "-1.000e30"]);
        assert_eq!([2.5e-4, -0.5, 0.0, 13.5].map(signed), ["+2.500e-4", "-0.5000", "0", "+13.50"]);
        let query = Query::default();
        let page = pages("tea", &QueryParams::new(), &query, 0, 0).into_string();
        assert_eq!(page, "<p class=\"soft\">No completion fits these filters.</p>\n");
        assert!(pages("tea", &QueryParams::new(), &query, 2, 2).into_string().contains("1 to 2 of 2"));
    }

    #[test]
    fn a_token_has_the_color_of_its_own_advantage() {
        let record = Record {
            completion: "Ja <i>. So".into(),
            advantage: Some(0.5),
            // A tool wrote the text between the first two tokens. The last token has no text, and one invalid range overlaps.
            advantages: vec![segment(0..2, -0.75), segment(6..7, 0.25), segment(5..9, 0.0), segment(10..10, 1.5)],
            ..Record::default()
        };
        let expected = "<span class=\"worth worse-2\" title=\"-0.7500\">Ja</span> &lt;i&gt;\
                        <span class=\"worth better-1\" title=\"+0.2500\">.</span> So";
        assert_eq!(shown(&record, Colors::Advantage, 1.5), expected);
        let alike = Record { advantages: Vec::new(), ..record.clone() };
        let expected = "<span class=\"worth better-1\" title=\"+0.5000\">Ja &lt;i&gt;. So</span>";
        assert_eq!(shown(&alike, Colors::Advantage, 1.5), expected);
        // By default, the colors that show more than the columns do.
        let dense = Record { segments: vec![("x".into(), vec![segment(0..1, 1.0)])], ..record.clone() };
        let of = |records: &[&Record]| Colors::of(None, &records.iter().map(|r| (*r).clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&alike]), Colors::None);
        assert_eq!(of(&[&alike, &record]), Colors::Advantage);
        assert_eq!(of(&[&record, &dense]), Colors::Reward);
        assert_eq!(Colors::of(Some("advantage"), &[dense]), Colors::Advantage);
    }
}

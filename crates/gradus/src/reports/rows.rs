//! Statistics of the rows of a data set.

use serde_json::{Value, json};

use super::{bar, percent};
use crate::data::{Dataset, Lengths, Opening, PairProfile, Profile, RowExamples, SHORT};
use crate::html;
use crate::html::Html;
use crate::page::{cards, figure, gallery, page};
use crate::plots::{Bar, BarChart, Chart, LineChart, Panel, Range, Values, histogram, short};

/// Larger numbers of turns share one bar.
const MOST_TURNS: usize = 12;

/// Statistics of the rows of a data set, as a page and as JSON.
#[derive(Debug)]
pub struct RowsReport<'a> {
    /// The data set.
    pub dataset: &'a Dataset,
    /// Statistics of the data set.
    pub profile: &'a Profile,
}

impl RowsReport<'_> {
    /// All values as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "gradus": env!("CARGO_PKG_VERSION"),
            "name": self.dataset.name,
            "files": self.dataset.source.files,
            "kind": self.dataset.kind,
            "bad_rows": self.dataset.bad.count(),
            "profile": self.profile,
        })
    }

    /// A self-contained HTML page.
    pub fn page(&self) -> String {
        let Self { dataset, profile } = self;
        let body = html![
            "<h1>" (dataset.name) "</h1>\n<p class=\"quiet\">" (dataset.kind.describe()) " · gradus "
            (env!("CARGO_PKG_VERSION")) "</p>\n" (self.numbers()) (self.figures()) (openings(profile)) (noted(profile))
        ];
        page(&dataset.name, &body)
    }

    /// Charts of lengths and turns.
    fn figures(&self) -> Html {
        let profile = self.profile;
        let mut figures: Vec<Html> = Vec::new();
        for (lengths, unit) in [(&profile.characters, "characters"), (&profile.tokens, "tokens")] {
            figures.extend(length_charts(lengths, unit).iter().map(|chart| figure(chart)));
        }
        if let Some(pairs) = &profile.pairs {
            figures.push(figure(&difference_chart(pairs)));
        }
        if profile.turns.len() > 1 {
            figures.push(figure(&turns_chart(profile)));
        }
        if figures.is_empty() {
            return Html::new();
        }
        html!["<h2>Lengths and turns</h2>\n"(gallery(figures))]
    }

    fn numbers(&self) -> Html {
        let Self { dataset, profile } = self;
        let count = |noted: &RowExamples| noted.count.to_string();
        let mut shown: Vec<(&str, String, String)> = vec![("rows", profile.rows.to_string(), String::new())];
        if dataset.bad.count() > 0 {
            shown.push(("bad rows", dataset.bad.count().to_string(), "not counted below".into()));
        }
        if let Some(pairs) = &profile.pairs {
            if let Some(share) = pairs.longer_chosen_share {
                let of = format!("of {} pairs with different lengths", pairs.longer_chosen + pairs.longer_rejected);
                shown.push(("longer answer chosen", percent(share), of));
            }
            let mean = short(pairs.mean_difference);
            shown.push(("chosen less rejected", mean, "characters, on average".into()));
            shown.push(("ties", count(&pairs.ties), "as marked in the data".into()));
            shown.push(("equal answers", count(&pairs.equal), "chosen is rejected".into()));
        }
        shown.push(("short answers", count(&profile.short), format!("fewer than {SHORT} characters")));
        cards(shown)
    }
}

/// Charts of lengths. Prompts are usually much longer than answers, so they have their own chart.
fn length_charts(lengths: &[Lengths], unit: &str) -> Vec<LineChart> {
    let (prompts, answers): (Vec<&Lengths>, Vec<&Lengths>) = lengths.iter().partition(|of| of.part == "prompt");
    let chart = |title: &str, parts: &[&Lengths]| {
        let kind = |(color, of): (usize, &&Lengths)| Values {
            name: format!("{} (median {})", of.part, of.quantiles.p50),
            values: of.lengths.iter().map(|&length| length as f64).collect(),
            color: Some(color),
        };
        let kinds: Vec<Values> = parts.iter().enumerate().map(kind).collect();
        let title = format!("{title} in {unit}");
        histogram(&title, "rows; the longest 1 % in the last bar", unit, &kinds, Range::Most)
    };
    let charts = [("Length", &answers), ("Prompt length", &prompts)];
    charts.into_iter().filter(|(_, parts)| !parts.is_empty()).map(|(title, parts)| chart(title, parts)).collect()
}

fn difference_chart(pairs: &PairProfile) -> LineChart {
    let kinds = [Values { name: "chosen − rejected".into(), values: pairs.differences.clone(), color: Some(0) }];
    histogram("Difference of lengths", "pairs", "length of chosen − length of rejected", &kinds, Range::Most)
}

fn turns_chart(profile: &Profile) -> impl Chart + use<> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for (&turns, &rows) in &profile.turns {
        match counts.last_mut().filter(|_| turns > MOST_TURNS) {
            Some(last) if last.0 >= MOST_TURNS => last.1 += rows,
            _ => counts.push((turns.min(MOST_TURNS), rows)),
        }
    }
    let has_more = profile.turns.keys().any(|&turns| turns > MOST_TURNS);
    let bar = |&(turns, rows): &(usize, usize)| Bar {
        name: if has_more && turns == MOST_TURNS { format!("{turns} +") } else { turns.to_string() },
        value: rows as f64,
        error: None,
        color: Some(0),
    };
    let bars = counts.iter().map(bar).collect();
    let panel = Panel { title: "Turns of a row".into(), unit: "rows".into(), is_share: false, bars };
    BarChart { title: "Turns".into(), panels: vec![panel] }
}

/// Table of first words. If chosen and rejected answers begin differently, a model may learn the openings instead of the content.
fn openings(profile: &Profile) -> Html {
    if profile.openings.is_empty() {
        return Html::new();
    }
    let has_pairs = profile.pairs.is_some();
    let most = profile.openings.iter().map(|of| of.chosen.max(of.rejected)).max().unwrap_or(0);
    let row = |opening: &Opening| {
        let second = has_pairs.then(|| bar(opening.rejected, most, true));
        html![
            "<tr><td class=\"opening\">" (opening.words) " …</td>" (bar(opening.chosen, most, false)) (second) "</tr>\n"
        ]
    };
    let rows: Vec<Html> = profile.openings.iter().map(row).collect();
    let heads = match has_pairs {
        true => html!["<th class=\"number\">Chosen</th><th></th><th class=\"number\">Rejected</th><th></th>"],
        false => html!["<th class=\"number\">Answers</th><th></th>"],
    };
    html![
        "<h2>Most frequent openings</h2>\n<p class=\"quiet\">Answers by their first three words.</p>\n"
        "<div class=\"scroll\"><table>\n<tr><th>Opening</th>" (heads) "</tr>\n" (rows) "</table></div>\n"
    ]
}

/// Table of rows that add little to training, with the positions of the first ones.
fn noted(profile: &Profile) -> Html {
    let pairs = profile.pairs.as_ref();
    let kinds = [
        ("Ties", "train.filter.drop_ties", pairs.map(|pairs| &pairs.ties)),
        ("Equal answers", "train.filter.drop_equal", pairs.map(|pairs| &pairs.equal)),
        ("Short answers", "train.filter.min_characters", Some(&profile.short)),
    ];
    let row = |(name, key, noted): (&str, &str, &RowExamples)| {
        let more = if noted.count > noted.first.len() { ", …" } else { "" };
        html![
            "<tr><td>" (name) "</td><td class=\"number\">" (noted.count) "</td><td>" (noted.first.join(", ")) (more)
            "</td><td><code>" (key) "</code></td></tr>\n"
        ]
    };
    let found =
        kinds.into_iter().filter_map(|(name, key, noted)| Some((name, key, noted.filter(|noted| noted.count > 0)?)));
    let rows: Vec<Html> = found.map(row).collect();
    if rows.is_empty() {
        return Html::new();
    }
    html![
        "<h2>Rows that teach little</h2>\n<div class=\"scroll\"><table>\n<tr><th>Kind</th><th class=\"number\">Rows</th>"
        "<th>The first of them</th><th>Filter</th></tr>\n" (rows) "</table></div>\n"
    ]
}

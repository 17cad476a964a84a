//! A comparison as text: table, Markdown, JSON lines and HTML page.

use serde_json::{Map, Value, json};

use super::{COLUMNS, Comparison, Entry, WinRates};
use crate::html;
use crate::html::Html;
use crate::page::{alerts, figure, gallery, page, text_cell};
use crate::plots::{BarChart, short};
use crate::run::metrics::number;
use crate::run::samples::Sample;
use crate::run_report::{duration, is_detail};
use crate::visible::visible_line;

/// Maximum number of prompts in `samples.md` and on the page; `samples.jsonl` has all.
const SHOWN_SAMPLES: usize = 12;

/// Maximum width in characters of a table with one row per policy.
const WIDEST: usize = 140;

impl Comparison {
    /// Returns the columns with at least one value: the fixed ones, and any other measurement.
    fn columns(&self) -> Vec<(String, String, String)> {
        let has_value = |key: &str| self.entries.iter().any(|entry| entry.value(key, self.start()).is_some());
        let known = COLUMNS.into_iter().filter(|(key, _, _)| has_value(key));
        let mut columns: Vec<(String, String, String)> =
            known.map(|(key, heading, meaning)| (key.into(), heading.into(), meaning.into())).collect();
        // A reward with a single component repeats its mean under the component's name.
        let is_reward = |key: &str| {
            key.starts_with("rewards/")
                && self.entries.iter().all(|entry| entry.measured.get(key) == entry.measured.get("reward"))
        };
        // Measurements come before the columns about cost.
        let mut at = columns.iter().position(|(key, _, _)| key == "steps").unwrap_or(columns.len());
        for key in self.entries.iter().flat_map(|entry| entry.measured.iter()).map(|(key, _)| key) {
            let is_known = is_detail(key) || is_reward(key) || columns.iter().any(|(known, _, _)| known == key);
            if has_value(key) && !is_known {
                let whole = key.strip_suffix("/mean").unwrap_or(key);
                let short = whole.strip_prefix("rewards/").unwrap_or(whole);
                // A metric may have the same name as a component of the reward.
                let heading = if short != key && has_value(short) { whole } else { short };
                columns.insert(at, (key.into(), heading.into(), "on the held-out rows".into()));
                at += 1;
            }
        }
        columns
    }

    fn cell(&self, entry: &Entry, key: &str) -> String {
        let Some(value) = entry.value(key, self.start()) else { return "–".into() };
        match key {
            "elapsed_s" => duration(value),
            "peak_memory_bytes" => format!("{} MB", short((value / 1e6).round())),
            "wins" | "clipped_ratio" => format!("{:.0} %", 100.0 * value),
            "reward" => {
                entry.standard_error().map_or(short(value), |error| format!("{} ± {}", short(value), short(error)))
            }
            _ => short(value),
        }
    }

    /// Returns the table alone, with aligned columns, for terminals and Markdown. It has one row per policy, or one row per measurement if
    /// it would be too wide otherwise. Control characters in names are escaped.
    pub fn table(&self) -> String {
        let escaped = |row: Vec<String>| row.iter().map(|cell| visible_line(cell)).collect();
        let mut rows: Vec<Vec<String>> = self.rows().into_iter().map(escaped).collect();
        let widths_of = |rows: &[Vec<String>]| -> Vec<usize> {
            let width = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
            (0..rows[0].len()).map(width).collect()
        };
        let mut widths = widths_of(&rows);
        if widths.iter().map(|width| width + 3).sum::<usize>() > WIDEST {
            rows = (0..widths.len()).map(|at| rows.iter().map(|row| row[at].clone()).collect()).collect();
            widths = widths_of(&rows);
        }
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(index, (cell, &width))| {
                if index == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = widths.iter().enumerate().map(|(index, &width)| {
            if index == 0 { "-".repeat(width) } else { format!("{}:", "-".repeat(width.max(2) - 1)) }
        });
        let rule = format!("| {} |\n", rule.collect::<Vec<_>>().join(" | "));
        let mut lines: Vec<String> = rows.iter().map(line).collect();
        lines.insert(1, rule);
        lines.concat()
    }

    pub(super) fn to_markdown(&self) -> String {
        let legend = self.columns().into_iter().map(|(_, heading, meaning)| format!("- **{heading}**: {meaning}\n"));
        let rates = self.win_rates().map_or(String::new(), |rates| {
            format!("\n## Win rates\n\nThe share of prompts on which the policy of the row has a better reward than that of the column; ties count half.\n\n{}", markdown(&rates))
        });
        format!(
            "# Comparison\n\nStart: `{}`  \nData: `{}`  \nBudget: {}  \nMeasured on: {}\n\n{}\n{}{}{rates}\n![final results](results.png)\n\n\
             Curves are in `plots/`, completions side by side in `samples.md`.\n",
            self.model,
            self.data,
            self.budget,
            self.evaluation,
            self.table(),
            legend.collect::<String>(),
            self.remarks().iter().map(|remark| format!("\n> Note: {remark}\n")).collect::<String>()
        )
    }

    /// Returns each prompt with the completions of all entries that have it.
    fn side_by_side(&self) -> impl Iterator<Item = (&Sample, Vec<(&Entry, &Sample)>)> {
        let first = self.entries.iter().find(|entry| !entry.samples.is_empty());
        first.into_iter().flat_map(|entry| &entry.samples).map(|prompt| {
            let of = |entry: &'_ Entry| entry.samples.iter().position(|sample| sample.has_same_prompt(prompt));
            let found = self.entries.iter().filter_map(|entry| Some((entry, &entry.samples[of(entry)?])));
            (prompt, found.collect())
        })
    }

    pub(super) fn samples_jsonl(&self) -> String {
        let line = |(prompt, completions): (&Sample, Vec<(&Entry, &Sample)>)| {
            let one = |(entry, sample): &(&Entry, &Sample)| {
                let reward = sample.reward.map_or(Value::Null, number);
                (
                    entry.name.clone(),
                    json!({"completion": sample.completion, "reward": reward, "tokens": sample.tokens, "stop": sample.stop}),
                )
            };
            let completions: Map<String, Value> = completions.iter().map(one).collect();
            json!({"row": prompt.row, "prompt": prompt.prompt, "completions": completions}).to_string() + "\n"
        };
        self.side_by_side().map(line).collect()
    }

    pub(super) fn samples_markdown(&self) -> String {
        let mut text = String::from("# Samples\n");
        for (prompt, completions) in self.side_by_side().take(SHOWN_SAMPLES) {
            text += &format!("\n## Prompt {}\n\n{}\n", prompt.row, quote(&prompt.prompt));
            for (entry, sample) in completions {
                text += &format!("\n**{}**{}\n\n{}\n", entry.name, reward_of(sample), quote(&sample.completion));
            }
        }
        text
    }

    pub(super) fn page(&self, bars: &BarChart, curves: &Html) -> String {
        let body = html![
            "<h1>Comparison</h1>\n<p class=\"quiet\">from " (self.model) " on " (self.data) "</p>\n"
            "<p>Budget: " (self.budget) ". Measured on: " (self.evaluation) ".</p>\n"
            (self.result_table()) (alerts(self.notices().iter().map(|(of, text)| (*of, text.as_str()))))
            (self.win_rates().map(|rates| matrix(&rates)))
            (self.reward_figures()) "<h2>Final numbers</h2>\n" (figure(bars)) (curves) (self.sample_table())
        ];
        page("Comparison", &body)
    }

    /// The table of [`Self::table`] in HTML.
    fn result_table(&self) -> Html {
        let columns = self.columns();
        let heads: Vec<Html> = columns
            .iter()
            .map(|(_, heading, meaning)| html!["<th class=\"number\" title=\"" (meaning) "\">" (heading) "</th>"])
            .collect();
        let row = |entry: &Entry| {
            let cell =
                |(key, _, _): &(String, String, String)| html!["<td class=\"number\">" (self.cell(entry, key)) "</td>"];
            html!["<tr><td>" (entry.name) "</td>" (columns.iter().map(cell).collect::<Vec<_>>()) "</tr>\n"]
        };
        let rows: Vec<Html> = self.entries.iter().map(row).collect();
        html![
            "<h2>Result</h2>\n<div class=\"scroll\"><table>\n<tr><th>Method</th>" (heads) "</tr>\n" (rows) "</table></div>\n"
        ]
    }

    /// Table of the completions side by side.
    fn sample_table(&self) -> Html {
        let names: Vec<Html> = self.entries.iter().map(|entry| html!["<th>" (entry.name) "</th>"]).collect();
        let row = |(prompt, completions): (&Sample, Vec<(&Entry, &Sample)>)| {
            let cell = |entry: &Entry| match completions.iter().find(|(other, _)| other.name == entry.name) {
                Some((_, sample)) => text_cell(reward_of(sample).trim_start_matches(", "), &sample.completion),
                None => html!["<td></td>"],
            };
            let cells: Vec<Html> = self.entries.iter().map(cell).collect();
            html!["<tr>" (text_cell("", &prompt.prompt)) (cells) "</tr>\n"]
        };
        let rows: Vec<Html> = self.side_by_side().take(SHOWN_SAMPLES).map(row).collect();
        html![
            "<h2>Samples</h2>\n<div class=\"scroll\"><table>\n<tr><th>Prompt</th>" (names) "</tr>\n" (rows) "</table></div>\n"
        ]
    }
}

impl Comparison {
    /// Returns the cells of the table: a row of headings, then one row per policy.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let columns = self.columns();
        let headings = columns.iter().map(|column| column.1.clone());
        let headings: Vec<String> = std::iter::once("method".to_owned()).chain(headings).collect();
        let row = |entry: &Entry| -> Vec<String> {
            let cells = columns.iter().map(|column| self.cell(entry, &column.0));
            std::iter::once(entry.name.clone()).chain(cells).collect()
        };
        std::iter::once(headings).chain(self.entries.iter().map(row)).collect()
    }

    /// All remarks, once each. If a remark does not apply to all policies, it begins with the names of those to which it applies.
    pub fn remarks(&self) -> Vec<String> {
        let mut seen: Vec<&String> = Vec::new();
        for remark in self.entries.iter().flat_map(|entry| &entry.remarks) {
            if !seen.contains(&remark) {
                seen.push(remark);
            }
        }
        let named = |remark: &&String| {
            let policies = || self.entries.iter().filter(|entry| entry.run.is_some());
            let names: Vec<&str> =
                policies().filter(|entry| entry.remarks.contains(remark)).map(|entry| entry.name.as_str()).collect();
            if names.len() == policies().count() {
                (*remark).clone()
            } else {
                format!("{}: {remark}", names.join(", "))
            }
        };
        seen.iter().map(named).collect()
    }

    /// All warnings with the names of their policies, and all remarks.
    fn notices(&self) -> Vec<(&str, String)> {
        let warnings =
            self.entries.iter().flat_map(|entry| entry.warnings.iter().map(|text| (&*entry.name, text.clone())));
        warnings.chain(self.remarks().into_iter().map(|remark| ("", remark))).collect()
    }

    /// Figures of reward against KL and of the distributions of rewards.
    fn reward_figures(&self) -> Html {
        let pareto = self.pareto();
        let names: Vec<&str> = self.front().iter().map(|&index| self.entries[index].name.as_str()).collect();
        let caption = pareto.is_some().then(|| {
            html![
                "<p class=\"quiet\">On the Pareto front: " (names.join(", "))
                ". No other policy has as much reward with less KL.</p>\n"
            ]
        });
        let charts = [pareto, self.reward_histogram()];
        let figures: Vec<Html> = charts.iter().flatten().map(|chart| figure(chart)).collect();
        if figures.is_empty() { Html::new() } else { html!["<h2>Rewards</h2>\n"(caption)(gallery(figures))] }
    }
}

/// Table of win rates in HTML: green if the policy of the row wins, red if it loses.
fn matrix(rates: &WinRates) -> Html {
    let heads: Vec<Html> = rates.names.iter().map(|name| html!["<th class=\"number\">" (name) "</th>"]).collect();
    let cell = |share: Option<f64>, prompts: usize| match share {
        None => html!["<td class=\"number quiet\">–</td>"],
        Some(share) => {
            let color = if share >= 0.5 { "good" } else { "bad" };
            let strength = format!("{:.0}", 90.0 * (share - 0.5).abs());
            html![
                "<td class=\"number\" title=\"" (prompts) " prompts\" "
                "style=\"background: color-mix(in srgb, var(--" (color) ") " (strength) "%, transparent)\">"
                (format!("{:.0}", 100.0 * share)) " %</td>"
            ]
        }
    };
    let row = |(name, (shares, prompts)): (&String, (&Vec<Option<f64>>, &Vec<usize>))| {
        let cells: Vec<Html> = shares.iter().zip(prompts).map(|(&share, &prompts)| cell(share, prompts)).collect();
        html!["<tr><th>" (name) "</th>" (cells) "</tr>\n"]
    };
    let rows: Vec<Html> = rates.names.iter().zip(rates.shares.iter().zip(&rates.prompts)).map(row).collect();
    html![
        "<h2>Win rates</h2>\n<p class=\"quiet\">The share of prompts on which the policy of the row has a better reward than that of "
        "the column. Ties count half.</p>\n<div class=\"scroll\"><table class=\"matrix\">\n<tr><th></th>" (heads) "</tr>\n"
        (rows) "</table></div>\n"
    ]
}

/// The same table in Markdown.
fn markdown(rates: &WinRates) -> String {
    let heads: String = rates.names.iter().map(|name| format!(" {} |", visible_line(name))).collect();
    let rule = " ---: |".repeat(rates.names.len());
    let row = |(name, shares): (&String, &Vec<Option<f64>>)| {
        let cell =
            |share: &Option<f64>| share.map_or(" – |".to_owned(), |share| format!(" {:.0} % |", 100.0 * share));
        format!("| {} |{}\n", visible_line(name), shares.iter().map(cell).collect::<String>())
    };
    let rows: String = rates.names.iter().zip(&rates.shares).map(row).collect();
    format!("| |{heads}\n| --- |{rule}\n{rows}")
}

fn reward_of(sample: &Sample) -> String {
    sample.reward.map_or(String::new(), |reward| format!(", reward {}", short(reward)))
}

/// Formats a Markdown quotation that keeps line breaks.
fn quote(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("> {line}")).collect();
    if lines.is_empty() { "> *(empty)*".into() } else { lines.join("  \n") }
}

//! Errors of a reward model: its accuracy by length and by confidence, and the pairs that it orders wrongly.

use serde::Serialize;
use serde_json::{Value, json};

use super::percent;
use crate::html;
use crate::html::Html;
use crate::math::stats::{calibration, expected_calibration_error, proportion_interval};
use crate::objective::{CALIBRATION_BINS, PairScore};
use crate::page::{cards, figure, gallery, page, prompt_cell, text_cell};
use crate::plots::{Bar, BarChart, Curve, CurveKind, LineChart, Panel, Range, Values, histogram, short};
use crate::run::Metrics;
use crate::run::metrics::number;

/// Maximum number of wrongly ordered pairs on the page; the JSON file has all.
const SHOWN: usize = 50;

/// The texts of a pair, and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PairTexts {
    /// File and line of the row.
    pub place: String,
    /// Prompt of both answers.
    pub prompt: String,
    /// The better answer.
    pub chosen: String,
    /// The worse answer.
    pub rejected: String,
}

/// Evaluation of a reward model on pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct PairsReport {
    /// Name of the model.
    pub model: String,
    /// Name of the data.
    pub data: String,
    /// Metrics over all pairs.
    pub metrics: Metrics,
    /// Pairs with their scores.
    pub pairs: Vec<(PairTexts, PairScore)>,
}

/// A group of similar pairs.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Bucket {
    /// Common property of the pairs.
    label: String,
    /// Number of pairs.
    pairs: usize,
    /// Share of pairs in the right order.
    accuracy: Option<f64>,
    /// 95 % interval of that share (Wilson).
    interval: Option<[f64; 2]>,
    /// Mean confidence of the model in its choices.
    mean_confidence: Option<f64>,
}

impl Bucket {
    fn of<'s>(label: String, scores: impl Iterator<Item = &'s PairScore>) -> Self {
        let scores: Vec<&PairScore> = scores.collect();
        let (pairs, right) = (scores.len(), scores.iter().filter(|score| score.is_right()).count());
        let share = |sum: f64| (pairs > 0).then(|| sum / pairs as f64);
        Self {
            label,
            pairs,
            accuracy: share(right as f64),
            interval: proportion_interval(right, pairs).map(|(low, high)| [low, high]),
            mean_confidence: share(scores.iter().map(|score| f64::from(score.confidence())).sum()),
        }
    }
}

/// Upper ends of the buckets of length differences, in tokens. Each bucket begins above the previous end.
const DIFFERENCES: [(i64, &str); 9] = [
    (-101, "< −100"),
    (-31, "−100…−31"),
    (-11, "−30…−11"),
    (-1, "−10…−1"),
    (0, "0"),
    (10, "1…10"),
    (30, "11…30"),
    (100, "31…100"),
    (i64::MAX, "> 100"),
];

impl PairsReport {
    fn scores(&self) -> impl Iterator<Item = &PairScore> {
        self.pairs.iter().map(|(_, score)| score)
    }

    /// Accuracy by the difference in length, chosen minus rejected.
    fn by_length(&self) -> Vec<Bucket> {
        let difference = |score: &PairScore| score.chosen_tokens as i64 - score.rejected_tokens as i64;
        let mut above = i64::MIN;
        let bucket = |&(most, label): &(i64, &str)| {
            let least = std::mem::replace(&mut above, most);
            // The first bucket has no lower end.
            let is_in =
                |score: &&PairScore| (difference(score) > least || least == i64::MIN) && difference(score) <= most;
            Bucket::of(label.into(), self.scores().filter(is_in))
        };
        DIFFERENCES.iter().map(bucket).collect()
    }

    /// Accuracy by the confidence of the model, in the bins of the calibration error.
    fn by_confidence(&self) -> Vec<Bucket> {
        let width = 0.5 / CALIBRATION_BINS as f64;
        let bin =
            |score: &PairScore| (((f64::from(score.confidence()) - 0.5) / width) as usize).min(CALIBRATION_BINS - 1);
        let bucket = |index: usize| {
            let from = 0.5 + width * index as f64;
            let label = format!("{:.0} – {:.0} %", 100.0 * from, 100.0 * (from + width));
            Bucket::of(label, self.scores().filter(|score| bin(score) == index))
        };
        (0..CALIBRATION_BINS).map(bucket).collect()
    }

    /// Wrongly ordered pairs, those with the highest confidence first.
    fn errors(&self) -> Vec<&(PairTexts, PairScore)> {
        let mut errors: Vec<_> = self.pairs.iter().filter(|(_, score)| !score.is_right()).collect();
        errors.sort_by(|(_, a), (_, b)| (a.chosen - a.rejected).total_cmp(&(b.chosen - b.rejected)));
        errors
    }

    /// All values, and the texts of all wrongly ordered pairs.
    pub fn to_json(&self) -> Value {
        let of = |reward: f32| number(f64::from(reward));
        let error = |(texts, score): &&(PairTexts, PairScore)| {
            json!({
                "place": texts.place,
                "prompt": texts.prompt,
                "chosen": texts.chosen,
                "rejected": texts.rejected,
                "chosen_reward": of(score.chosen),
                "rejected_reward": of(score.rejected),
                "confidence": of(score.confidence()),
                "chosen_tokens": score.chosen_tokens,
                "rejected_tokens": score.rejected_tokens,
            })
        };
        json!({
            "gradus": env!("CARGO_PKG_VERSION"),
            "model": self.model,
            "data": self.data,
            "pairs": self.pairs.len(),
            "metrics": self.metrics.to_json(),
            "by_length_difference": self.by_length(),
            "by_confidence": self.by_confidence(),
            "errors": self.errors().iter().map(error).collect::<Vec<_>>(),
        })
    }

    /// A self-contained HTML page.
    pub fn page(&self) -> String {
        let (by_length, by_confidence) = (self.by_length(), self.by_confidence());
        let scores: Vec<PairScore> = self.scores().cloned().collect();
        let figures = vec![
            figure(&reward_histogram(&scores)),
            figure(&reliability(&scores)),
            figure(&accuracy_chart("Accuracy by length difference", "tokens of chosen − rejected", &by_length)),
            figure(&accuracy_chart("Accuracy by confidence", "probability the model gives its choice", &by_confidence)),
        ];
        let body = html![
            "<h1>Errors of a reward model</h1>\n<p class=\"quiet\">" (self.model) " on " (self.data) " · gradus "
            (env!("CARGO_PKG_VERSION")) "</p>\n" (self.numbers()) "<h2>Pictures</h2>\n" (gallery(figures))
            "<h2>By length difference</h2>\n<p class=\"quiet\">Tokens of the chosen answer less those of the rejected one. A model \
             that prefers length is right at the bottom and wrong at the top.</p>\n" (table("Difference in tokens", &by_length))
            "<h2>By confidence</h2>\n<p class=\"quiet\">The probability that the model gives its own choice. The confidence of a \
             calibrated model equals its accuracy.</p>\n" (table("Confidence", &by_confidence)) (self.error_table())
        ];
        page("Errors of a reward model", &body)
    }

    fn numbers(&self) -> Html {
        let of = |key: &str| self.metrics.get(key);
        let mut shown = vec![("pairs", self.pairs.len().to_string(), String::new())];
        if let Some(accuracy) = of("accuracy") {
            let interval = of("accuracy_low").zip(of("accuracy_high"));
            let note = interval.map(|(low, high)| format!("95 % interval {} – {}", percent(low), percent(high)));
            shown.push(("accuracy", percent(accuracy), note.unwrap_or_default()));
        }
        shown.push(("wrong", self.errors().len().to_string(), "equal rewards count as wrong".into()));
        if let Some(share) = of("longer_wins_accuracy") {
            shown.push(("longer answer chosen", percent(share), "of always choosing the longer answer".into()));
        }
        if let Some(error) = of("calibration_error") {
            shown.push(("calibration error", percent(error), "expected".into()));
        }
        if let Some(margin) = of("margin") {
            shown.push(("margin", short(margin), "mean of chosen − rejected".into()));
        }
        if let Some(correlation) = of("reward_length_correlation") {
            shown.push(("reward and length", short(correlation), "correlation".into()));
        }
        cards(shown)
    }

    fn error_table(&self) -> Html {
        let errors = self.errors();
        if errors.is_empty() {
            return html!["<h2>Wrongly ordered pairs</h2>\n<p>None.</p>\n"];
        }
        let row = |(texts, score): &&(PairTexts, PairScore)| {
            let answer =
                |reward: f32, text: &str| text_cell(&format!("reward {}", short(f64::from(reward))), text.trim());
            html![
                "<tr><td class=\"number\">" (percent(f64::from(score.confidence()))) "<br><small class=\"quiet\">"
                (texts.place) "</small></td>" (prompt_cell(&texts.prompt)) (answer(score.chosen, &texts.chosen))
                (answer(score.rejected, &texts.rejected)) "</tr>\n"
            ]
        };
        let rows: Vec<Html> = errors.iter().take(SHOWN).map(row).collect();
        let shown = match errors.len() {
            count if count > SHOWN => format!("The first {SHOWN} of {count}; the JSON file has all. "),
            _ => String::new(),
        };
        html![
            "<h2>Wrongly ordered pairs</h2>\n<p class=\"quiet\">" (shown) "Sorted by the confidence of the model.</p>\n"
            "<div class=\"scroll\"><table class=\"errors\">\n<tr><th class=\"number\">Sure</th><th>Prompt</th>"
            "<th>Chosen by people</th><th>Rejected by people</th></tr>\n" (rows) "</table></div>\n"
        ]
    }
}

fn table(first: &str, buckets: &[Bucket]) -> Html {
    let row = |bucket: &Bucket| {
        let shown = |value: Option<f64>| value.map_or("–".into(), percent);
        let interval = bucket.interval.map(|[low, high]| format!("{} – {}", percent(low), percent(high)));
        html![
            "<tr><td>" (bucket.label) "</td><td class=\"number\">" (bucket.pairs) "</td><td class=\"number\">"
            (shown(bucket.accuracy)) "</td><td class=\"number\">" (interval.unwrap_or("–".into())) "</td>"
            "<td class=\"number\">" (shown(bucket.mean_confidence)) "</td></tr>\n"
        ]
    };
    let rows: Vec<Html> = buckets.iter().filter(|bucket| bucket.pairs > 0).map(row).collect();
    html![
        "<div class=\"scroll\"><table>\n<tr><th>" (first) "</th><th class=\"number\">Pairs</th><th class=\"number\">Right</th>"
        "<th class=\"number\">95 % interval</th><th class=\"number\">Mean confidence</th></tr>\n" (rows) "</table></div>\n"
    ]
}

fn accuracy_chart(title: &str, unit: &str, buckets: &[Bucket]) -> BarChart {
    let bar = |bucket: &Bucket| Bar {
        name: bucket.label.clone(),
        value: bucket.accuracy.unwrap_or(f64::NAN),
        error: None,
        color: Some(0),
    };
    let bars = buckets.iter().map(bar).collect();
    let panel = Panel { title: "Share of pairs in the right order".into(), unit: unit.into(), is_share: true, bars };
    BarChart { title: title.into(), panels: vec![panel] }
}

/// Histogram of the rewards of chosen and rejected texts.
pub(crate) fn reward_histogram(scores: &[PairScore]) -> LineChart {
    let kind = |name: &str, of: &dyn Fn(&PairScore) -> f32, color| Values {
        name: name.into(),
        values: scores.iter().map(|score| f64::from(of(score))).collect(),
        color: Some(color),
    };
    let kinds = [kind("chosen", &|score| score.chosen, 0), kind("rejected", &|score| score.rejected, 1)];
    histogram("Rewards of held-out texts", &format!("{} pairs", scores.len()), "reward", &kinds, Range::All)
}

/// Calibration chart: how often the model's choice was right, by its confidence. The legend has the calibration error.
pub(crate) fn reliability(scores: &[PairScore]) -> LineChart {
    let sure: Vec<f32> = scores.iter().map(PairScore::confidence).collect();
    let right: Vec<bool> = scores.iter().map(PairScore::is_right).collect();
    let bins = calibration(&sure, &right, CALIBRATION_BINS, 0.5);
    let error =
        expected_calibration_error(&bins).map_or(String::new(), |error| format!(", calibration error {error:.3}"));
    let measured = bins.iter().filter(|bin| bin.count > 0).map(|bin| (bin.confidence, bin.accuracy)).collect();
    let curve =
        |name: &str, points, kind, color| Curve { name: name.into(), points, intervals: Vec::new(), kind, color };
    LineChart {
        title: "Calibration on held-out pairs".into(),
        unit: "share of choices that were right".into(),
        x_label: "probability the model gives its choice".into(),
        curves: vec![
            curve("perfectly calibrated", vec![(0.5, 0.5), (1.0, 1.0)], CurveKind::Line, None),
            curve(&format!("measured{error}"), measured, CurveKind::Dotted, Some(0)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plots::Chart;

    fn score(row: usize, chosen: f32, rejected: f32) -> PairScore {
        PairScore { row, chosen, rejected, margin: None, chosen_tokens: 5, rejected_tokens: 3 }
    }

    #[test]
    fn the_calibration_curve_is_the_mean_of_its_bins() {
        // σ(ln 9) = 0.9 three times: right twice. σ(0) = ½ is a tie and counts as wrong.
        let sure = 9f32.ln();
        let chart = reliability(&[score(0, sure, 0.0), score(1, 0.0, sure), score(2, sure, 0.0), score(3, 1.0, 1.0)]);
        let [(x0, y0), (x1, y1)] = chart.curves[1].points[..] else { panic!("two bins: {:?}", chart.curves[1]) };
        assert_eq!((x0, y0), (0.5, 0.0));
        assert!((x1 - 0.9).abs() < 1e-6 && (y1 - 2.0 / 3.0).abs() < 1e-12, "{x1} {y1}");
        // ¾·(0.9 − ⅔) + ¼·(0.5 − 0). The share of the last bin is no result, so the legend does not have it.
        let svg = chart.svg().into_string();
        assert!(svg.contains(">measured, calibration error 0.300</text>"), "{svg}");
        assert!(!svg.contains(&format!(">{}</text>", short(y1))), "{svg}");
    }

    #[test]
    fn every_pair_has_one_bucket_and_the_surest_errors_come_first() {
        let texts = |row: usize| PairTexts {
            place: format!("pairs.jsonl:{row}"),
            prompt: "Tea?".into(),
            chosen: "<Yes>".into(),
            rejected: "No".into(),
        };
        let lengths = [(1, 500), (5, 5), (6, 5), (5, 6), (500, 1), (40, 5)];
        let rewards = [(-1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 4.0), (2.0, 0.0), (f32::MAX, 0.0)];
        let pair = |(row, ((chosen_tokens, rejected_tokens), (chosen, rejected)))| {
            (texts(row), PairScore { row, chosen, rejected, margin: None, chosen_tokens, rejected_tokens })
        };
        let report = PairsReport {
            model: "m".into(),
            data: "d".into(),
            metrics: Metrics::from_iter([("accuracy", 0.5)]),
            pairs: lengths.into_iter().zip(rewards).enumerate().map(pair).collect(),
        };
        let counts = |buckets: &[Bucket]| buckets.iter().map(|bucket| bucket.pairs).collect::<Vec<_>>();
        assert_eq!(counts(&report.by_length()), [1, 0, 0, 1, 1, 1, 0, 1, 1]);
        assert_eq!(counts(&report.by_confidence()).iter().sum::<usize>(), 6);
        let json = report.to_json();
        let errors: Vec<&str> =
            json["errors"].as_array().unwrap().iter().map(|error| error["place"].as_str().unwrap()).collect();
        assert_eq!(errors, ["pairs.jsonl:3", "pairs.jsonl:0", "pairs.jsonl:2"]);
        assert_eq!(json["by_length_difference"][0]["accuracy"], 0.0);
        let page = report.page();
        assert!(page.contains("<th>Difference in tokens</th>"), "{page}");
        assert!(page.contains("&lt;Yes&gt;") && !page.contains("<Yes>"), "{page}");
    }
}

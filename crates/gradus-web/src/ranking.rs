//! Tables of preferences among models.

use gradus::html;
use gradus::html::Html;

use crate::agreement::ranking::{Share, Strength, Versus};
use crate::components::table;

/// Renders a share in percent with its interval.
fn percent(share: &Share) -> Html {
    let of = |value: f64| format!("{:.0}", 100.0 * value);
    let (low, high) = share.interval;
    html![(of(share.value)) " % <span class=\"soft small\">(" (of(low)) "–" (of(high)) ")</span>"]
}

/// Renders wins, ties and losses of two models as one bar.
fn bar(versus: &Versus) -> Html {
    let (win, tie) = (100.0 * versus.win.value, 100.0 * versus.tie.value);
    let number = |value: f64| format!("{value:.2}");
    html![
        "<svg class=\"split\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"split-win\" x=\"0\" width=\"" (number(win))
        "\" height=\"8\"/><rect class=\"split-tie\" x=\"" (number(win)) "\" width=\"" (number(tie)) "\" height=\"8\"/><rect class=\"split-loss\" x=\""
        (number(win + tie)) "\" width=\"" (number(100.0 - win - tie)) "\" height=\"8\"/></svg>"
    ]
}

/// Renders the pairwise comparisons of models. `dependence` says which votes depend on each other.
pub fn comparisons(all: &[Versus], dependence: &'static str) -> Html {
    if all.is_empty() {
        return Html::new();
    }
    let row = |of: &Versus| {
        html![
            "<tr><td>" (of.one) "</td><td>" (of.other) "</td><td class=\"number\">" (of.votes) "</td><td class=\"bars\">" (bar(of)) "</td><td class=\"number\">"
            (percent(&of.win)) "</td><td class=\"number\">" (percent(&of.tie)) "</td><td class=\"number\">" (percent(&of.loss)) "</td></tr>\n"
        ]
    };
    let heads = html![
        "<th scope=\"col\">Model</th><th scope=\"col\">Against</th><th scope=\"col\" class=\"number\">Votes</th><td class=\"bars\"></td>"
        "<th scope=\"col\" class=\"number\">Wins</th><th scope=\"col\" class=\"number\">Ties</th><th scope=\"col\" class=\"number\">Losses</th>"
    ];
    html![
        "<h2>Comparisons</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Comparisons\"><table class=\"versus\">\n<thead><tr>" (heads)
        "</tr></thead>\n<tbody>\n" (all.iter().map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n"
        "<p class=\"small soft\">In brackets are 95 % intervals (Wilson). Each vote counts once. " (dependence) "</p>\n"
    ]
}

/// Renders the models, strongest first, or the reason why there is no order.
pub fn models(models: &[Strength], undefined: Option<&'static str>) -> Html {
    let row = |of: &Strength| {
        let (low, high) = of.interval;
        html!["<tr><td>" (of.model) "</td><td class=\"number\">" (format!("{:.3}", of.log_strength)) "</td><td class=\"number\">" (format!("{low:.3} to {high:.3}")) "</td></tr>\n"]
    };
    match (models.is_empty(), undefined) {
        (true, None) => Html::new(),
        (true, Some(why)) => {
            html!["<p class=\"soft\">There is no ranking of the models (Bradley–Terry): " (why) ".</p>\n"]
        }
        (false, _) => table(
            "Ranking (Bradley–Terry)",
            &["Model", "#Log-strength", "#95 % interval"],
            models.iter().map(row).collect(),
        ),
    }
}

//! HTML form of a run: first the user's goal, then a few fields with sensible defaults, and all other fields with a search.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use gradus::config::{FlagKind, FlagSpec, MethodConfig};
use gradus::data::{LoadOptions, Need, recognize};
use gradus::html;
use gradus::html::Html;
use gradus::method::Preset;
use gradus::runs::Settings;
use serde_json::Value;

use super::fields::{Lists, MIX_DATA, MIX_ROWS, MIXED, Problem, Takes, fields};
use crate::components::with_code;
use crate::models::{Kind, positions_at};
use crate::page::csrf;
use crate::runs::address;
use crate::runs::query_params::{QueryParams, first};
use crate::store::sessions::Session;

/// Kind of data that the user has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Demonstrations,
    Preferences,
    Reward,
    Labels,
    Teacher,
}

impl Goal {
    const ALL: [Self; 5] = [Self::Demonstrations, Self::Preferences, Self::Reward, Self::Labels, Self::Teacher];

    /// Returns the goal that a method serves.
    fn of(method: &MethodConfig) -> Self {
        let rules = method.method();
        match rules.need() {
            _ if rules.compares_logits() => Self::Teacher,
            _ if method.is_online() => Self::Reward,
            Need::Preference | Need::Unpaired => Self::Preferences,
            Need::Columns => Self::Labels,
            Need::Any | Need::Sft | Need::Prompt | Need::Score => Self::Demonstrations,
        }
    }

    /// Returns its title and description.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Demonstrations => {
                ("I have demonstrations", "Texts, conversations or completions that the model should learn to write.")
            }
            Self::Preferences => ("I have preferences", "Pairs of answers, of which one is better."),
            Self::Reward => {
                ("I have prompts and a reward", "The model answers, and a reward model or a rule scores its answers.")
            }
            Self::Labels => ("I have labels", "Texts or words with labels, such as marks of annotators."),
            Self::Teacher => ("I have a better model", "A smaller model should imitate a larger one."),
        }
    }
}

/// Fields that are visible initially, if the method has them.
const OFFLINE: [&str; 10] = [
    "model",
    "data",
    "eval-data",
    "teacher-model",
    "learning-rate",
    "epochs",
    "batch-size",
    "beta",
    "max-length",
    "lora-rank",
];
const ONLINE: [&str; 9] = [
    "model",
    "data",
    "reward-model",
    "eval-data",
    "learning-rate",
    "max-steps",
    "group-size",
    "max-new-tokens",
    "lora-rank",
];

/// Maximum number of visible fields.
const SEEN: usize = 8;

/// Field of the maximum length of a completion.
const LENGTH: &str = "max-new-tokens";

/// Field that makes a run train an adapter.
const LORA_RANK: &str = "lora-rank";

/// Says what a run trains if no field of the adapter has a value.
const WITHOUT_LORA: &str = " If all fields of LoRA are empty, the run trains all weights.";

/// Maximum number of bytes read from the first row of a file.
const ROW_BYTES: u64 = 1 << 16;

/// Renders the goals and the methods for each.
pub fn goals(all: &[MethodConfig]) -> Html {
    let way = |method: &MethodConfig| html!["<li><a href=\"/runs/new?method=" (method.name()) "\">" (method.name()) "</a> <span class=\"small\">" (method.method().about()) "</span></li>\n"];
    let goal = |goal: Goal| {
        let (title, words) = goal.words();
        let ways: Vec<Html> = all.iter().filter(|method| Goal::of(method) == goal).map(way).collect();
        html!["<section class=\"goal\"><h2>" (title) "</h2>\n<p class=\"soft\">" (words) "</p>\n<ul>\n" (ways) "</ul></section>\n"]
    };
    html!["<p class=\"lead\">What do you have?</p>\n<div class=\"cards\">\n" (Goal::ALL.map(goal).to_vec()) "</div>\n"]
}

/// Adds default values to an incomplete form: the first model, the first file whose rows the method can use, and a length of completions
/// that fits into the model.
pub fn sensible(method: &MethodConfig, lists: &Lists, mut filled: QueryParams) -> QueryParams {
    let mut fill = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|_| !filled.iter().any(|(known, _)| known == name)) {
            filled.push((name.to_owned(), value.to_owned()));
        }
    };
    fill("model", lists.names(Takes::Model).first().copied());
    if method.is_online() {
        fill("reward-model", lists.names(Takes::Reward).first().copied());
    }
    let fits = lists.data.iter().find(|(_, path)| is_useful(path, method));
    fill("data", fits.map(|(name, _)| name.as_str()));
    // A prompt and its completion share the positions of the model.
    let model = first(&filled, "model")
        .and_then(|name| lists.models.iter().find(|found| found.kind == Kind::Language && found.name == name));
    let room = model.and_then(|found| positions_at(&found.path)).map(|positions| positions / 2);
    let fields = fields(method.name());
    let usual = fields.iter().find(|(spec, _)| spec.name == LENGTH);
    let usual = usual.and_then(|(spec, _)| spec.default.as_ref()?.as_u64());
    if let Some((room, usual)) = room.zip(usual)
        && usual > room as u64
        && first(&filled, LENGTH).is_none()
    {
        filled.push((LENGTH.to_owned(), room.to_string()));
    }
    filled
}

/// Returns whether the first row of a JSON lines file has what a method needs. False for other files.
fn is_useful(path: &Path, method: &MethodConfig) -> bool {
    let is_lines = path.extension().is_some_and(|ending| ["jsonl", "ndjson"].iter().any(|known| ending == *known));
    let Some(file) = is_lines.then(|| File::open(path).ok()).flatten() else { return false };
    let mut line = String::new();
    let read = BufReader::new(file.take(ROW_BYTES)).read_line(&mut line);
    let Some(Value::Object(row)) = read.ok().and_then(|_| serde_json::from_str(&line).ok()) else { return false };
    recognize(&row, &LoadOptions::needing(method.method().need())).is_ok()
}

/// Keys of a run that a form does not show.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeysLeft {
    /// Keys without a field.
    without_field: Vec<String>,
    /// Keys with a model or data outside of the lists.
    outside: Vec<String>,
}

/// Returns the form with the settings of another run, and the keys that were set there but are not in the form.
pub fn of_run(method: &str, settings: &Settings, lists: &Lists) -> (QueryParams, KeysLeft) {
    /// Every run has its own values, which the server sets.
    const OWN: [&str; 2] = ["output_dir", "train.device"];
    let fields = fields(method);
    let (mut filled, mut left) = (QueryParams::new(), KeysLeft::default());
    for key in settings.keys.iter().filter(|key| key.is_set && !OWN.contains(&key.path.as_str())) {
        let Some(value) = settings.text(&key.path) else { continue };
        // `data: FILE` is short for `data: { from: FILE }`.
        let is_it = |spec: &FlagSpec| spec.key.strip_suffix(".from").unwrap_or(&spec.key) == key.path;
        let Some((spec, takes)) = fields.iter().find(|(spec, _)| is_it(spec)) else {
            left.without_field.push(key.path.clone());
            continue;
        };
        let value = match takes {
            Takes::Model | Takes::Reward | Takes::Data => match lists.name(*takes, Path::new(&value)) {
                Some(name) => name.to_owned(),
                None => {
                    left.outside.push(key.path.clone());
                    continue;
                }
            },
            Takes::Mix => {
                left.without_field.push(key.path.clone());
                continue;
            }
            Takes::Switch | Takes::Number | Takes::Word | Takes::Text | Takes::Task => as_typed(&spec.kind, value),
        };
        filled.push((spec.name.clone(), value));
    }
    (filled, left)
}

/// Returns a value of a file as a field has it: files write lists with brackets, fields without. The brackets of any other value belong to it.
fn as_typed(kind: &FlagKind, value: String) -> String {
    let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match (kind, list) {
        (FlagKind::WordList(_) | FlagKind::Numbers, Some(list)) => list.replace(", ", ","),
        _ => value,
    }
}

/// Renders a note about a form that was filled from another run.
pub fn duplicated(run: &str, left: &KeysLeft) -> Html {
    let note = |what: &'static str, keys: &[String]| {
        (!keys.is_empty())
            .then(|| html![" " (what) ", so set them again or use the terminal: <code>" (keys.join(", ")) "</code>."])
    };
    html![
        "<p class=\"note\">The settings of <a href=\"" (address("show", run)) "\">" (run) "</a>."
        (note("These models and data are not below this folder", &left.outside))
        (note("This form cannot show these", &left.without_field)) "</p>\n"
    ]
}

pub(super) fn option(value: &str, words: &str, is_chosen: bool) -> Html {
    let chosen = if is_chosen { html![" selected"] } else { Html::new() };
    html!["<option value=\"" (value) "\"" (chosen) ">" (words) "</option>"]
}

/// Formats a default for a field.
fn default(spec: &FlagSpec) -> Option<String> {
    match spec.default.as_ref()? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(is_on) => Some(if *is_on { "yes" } else { "no" }.to_owned()),
        other => Some(other.to_string()),
    }
}

/// Returns the label of a field, from the name of its flag.
fn label(flag: &str) -> String {
    match flag {
        "name" => "Name of the run".to_owned(),
        "data" => "Training data".to_owned(),
        "eval-data" => "Held-out data".to_owned(),
        "lora-rank" => "LoRA rank".to_owned(),
        "max-new-tokens" => "Maximum new tokens".to_owned(),
        "max-length" => "Maximum tokens per row".to_owned(),
        "max-steps" => "Steps".to_owned(),
        "group-size" => "Completions per prompt".to_owned(),
        _ => {
            let words = flag.replace('-', " ");
            let mut letters = words.chars();
            letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
        }
    }
}

/// Renders an error with its hint.
fn explained(problem: &Problem) -> Html {
    let hint = problem.hint.as_ref().map(|hint| html!["<br><span class=\"soft\">" (with_code(hint)) "</span>"]);
    html![(with_code(&problem.text))(hint)]
}

/// Content of a form.
struct Form<'a> {
    method: &'a MethodConfig,
    lists: &'a Lists,
    filled: &'a QueryParams,
    problems: &'a [Problem],
}

impl Form<'_> {
    /// Returns the error in a field, if any.
    fn wrong(&self, name: &str) -> Option<&Problem> {
        self.problems.iter().find(|problem| problem.field.as_deref() == Some(name))
    }

    /// Returns the words of a flag that apply to the method.
    fn words<'s>(&self, spec: &'s FlagSpec) -> Option<Vec<&'s str>> {
        let (FlagKind::Words(words) | FlagKind::WordList(words) | FlagKind::WordOrYaml(words)) = &spec.kind else {
            return None;
        };
        let applies = |word: &&str| {
            spec.key != "preset"
                || Preset::named(word).is_some_and(|preset| self.method.method().preset(preset).is_some())
        };
        Some(words.iter().map(|word| word.name.as_str()).filter(applies).collect())
    }

    fn field(&self, spec: &FlagSpec, takes: Takes) -> Html {
        let words = self.words(spec);
        if words.as_ref().is_some_and(Vec::is_empty) {
            return Html::new();
        }
        let value = first(self.filled, &spec.name).unwrap_or_default();
        let usual = default(spec);
        let nothing = usual.as_ref().map_or("–".to_owned(), |usual| format!("Default: {usual}"));
        let wrong = self.wrong(&spec.name);
        let marks = html![
            " aria-describedby=\"about-" (spec.name) (wrong.map(|_| html![" problem-"(spec.name)])) "\"" (wrong.map(|_| html![" aria-invalid=\"true\""]))
        ];
        let select = |all: Vec<Html>| html!["<select id=\"" (spec.name) "\" name=\"" (spec.name) "\"" (marks) ">" (option("", &nothing, value.is_empty())) (all) "</select>"];
        let options = |choices: &[&str]| {
            // A list of words, such as several losses, is an additional choice.
            let is_other = !value.is_empty() && words.is_some() && !choices.contains(&value);
            let other = is_other.then(|| option(value, value, true));
            select(choices.iter().map(|choice| option(choice, choice, *choice == value)).chain(other).collect())
        };
        let is_lora = spec.name == LORA_RANK;
        let empty = if is_lora { "no adapter".to_owned() } else { usual.clone().unwrap_or_default() };
        let input = |kind: &'static str| {
            html![
                "<input id=\"" (spec.name) "\" name=\"" (spec.name) "\" value=\"" (value) "\" inputmode=\"" (kind) "\" placeholder=\"" (empty)
                "\" autocomplete=\"off\"" (marks) ">"
            ]
        };
        let own = match takes {
            Takes::Switch => {
                let all = [("true", "Yes"), ("false", "No")];
                select(all.iter().map(|(of, words)| option(of, words, *of == value)).collect())
            }
            Takes::Word => match &words {
                Some(words) => options(words),
                None => input("text"),
            },
            Takes::Number => input("decimal"),
            Takes::Text => input("text"),
            Takes::Model | Takes::Reward | Takes::Data | Takes::Task => options(&self.lists.names(takes)),
            Takes::Mix => return self.mix(spec),
        };
        let wrong = wrong.map(|problem| html!["<p class=\"bad small about-field\" id=\"problem-" (spec.name) "\">" (explained(problem)) "</p>\n"]);
        html![
            "<div class=\"one-field\"><label for=\"" (spec.name) "\">" (label(&spec.name)) "</label>" (own) (wrong) "<p class=\"small soft about-field\" id=\"about-" (spec.name) "\">"
            (with_code(&spec.doc)) (is_lora.then_some(WITHOUT_LORA)) "</p></div>\n"
        ]
    }

    /// Renders pairs of fields: a file, and a number of rows.
    fn mix(&self, spec: &FlagSpec) -> Html {
        let before = |name: &str, at: usize| {
            let mut of = self.filled.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
            of.nth(at).unwrap_or_default().to_owned()
        };
        let pair = |at: usize| {
            let (data, rows) = (before(MIX_DATA, at), before(MIX_ROWS, at));
            let names = self.lists.names(Takes::Data);
            let all: Vec<Html> = names.into_iter().map(|name| option(name, name, name == data)).collect();
            html![
                "<div class=\"row\"><select name=\"" (MIX_DATA) "\" aria-label=\"More rows " (at + 1) "\">" (option("", "–", data.is_empty())) (all) "</select>"
                "<input name=\"" (MIX_ROWS) "\" value=\"" (rows) "\" size=\"8\" inputmode=\"numeric\" placeholder=\"all rows\" autocomplete=\"off\" aria-label=\"Number of rows, "
                (at + 1) "\"></div>\n"
            ]
        };
        let wrong =
            self.wrong("mix").map(|problem| html!["<p class=\"bad small about-field\">" (explained(problem)) "</p>\n"]);
        html![
            "<fieldset class=\"one-field\" id=\"mix\"><legend>" (label(&spec.name)) "</legend>\n" ((0..MIXED).map(pair).collect::<Vec<_>>()) (wrong)
            "<p class=\"small soft about-field\">" (with_code(&spec.doc)) "</p></fieldset>\n"
        ]
    }

    /// Renders all errors, with links to their fields.
    fn alert(&self) -> Html {
        if self.problems.is_empty() {
            return Html::new();
        }
        let item = |problem: &Problem| match &problem.field {
            Some(field) => {
                html!["<li><a href=\"#" (field) "\">" (label(field)) "</a>: " (explained(problem)) "</li>\n"]
            }
            None => html!["<li>" (explained(problem)) "</li>\n"],
        };
        html![
            "<div class=\"alert\" role=\"alert\"><p><strong>The run cannot be planned yet.</strong></p>\n<ul class=\"problems\">\n"
            (self.problems.iter().map(item).collect::<Vec<_>>()) "</ul></div>\n"
        ]
    }
}

/// Renders the form of a method with its values and errors. The errors are shown above the form and next to their fields. `note` is shown
/// above the form.
pub fn form(
    session: &Session,
    method: &MethodConfig,
    lists: &Lists,
    filled: &QueryParams,
    problems: &[Problem],
    note: Html,
) -> Html {
    let form = Form { method, lists, filled, problems };
    let all = fields(method.name());
    let seen = if method.is_online() { &ONLINE[..] } else { &OFFLINE[..] };
    let seen = seen.iter().filter_map(|name| all.iter().find(|(spec, _)| spec.name == **name)).take(SEEN);
    let seen: Vec<&(FlagSpec, Takes)> = seen.collect();
    let rest: Vec<&(FlagSpec, Takes)> =
        all.iter().filter(|(spec, _)| seen.iter().all(|(known, _)| known.name != spec.name)).collect();
    let mut sections: Vec<&str> = Vec::new();
    for (spec, _) in &rest {
        if !sections.contains(&spec.section) {
            sections.push(spec.section);
        }
    }
    let is_open = |(spec, takes): &&(FlagSpec, Takes)| {
        let name = if *takes == Takes::Mix { MIX_DATA } else { &spec.name };
        first(filled, name).is_some() || form.wrong(&spec.name).is_some()
    };
    let section = |name: &&str| {
        let own: Vec<&(FlagSpec, Takes)> = rest.iter().copied().filter(|(spec, _)| spec.section == *name).collect();
        let open = own.iter().any(is_open).then(|| html![" open"]);
        let own: Vec<Html> = own.iter().map(|(spec, takes)| form.field(spec, *takes)).collect();
        html!["<details class=\"section\"" (open) ">\n<summary>" (*name) "</summary>\n<div class=\"grid\">\n" (own) "</div>\n</details>\n"]
    };
    let open = rest.iter().any(is_open).then(|| html![" open"]);
    let seen: Vec<Html> = seen.iter().map(|(spec, takes)| form.field(spec, *takes)).collect();
    let name = form
        .wrong("name")
        .map(|problem| html!["<p class=\"bad small about-field\" id=\"problem-name\">" (explained(problem)) "</p>\n"]);
    let marks = name.as_ref().map(|_| html![" aria-invalid=\"true\" aria-describedby=\"problem-name\""]);
    html![
        (form.alert()) (note) "<p class=\"lead\">" (method.method().about()) ". <a href=\"/runs/new\">Another method</a></p>\n"
        "<form method=\"post\" action=\"/runs/new\" class=\"run-form\" data-remember=\"" (method.name()) "\">\n" (csrf(session))
        "<input type=\"hidden\" name=\"method\" value=\"" (method.name()) "\">\n"
        "<div class=\"grid\"><div class=\"one-field\"><label for=\"name\">Name of the run</label><input id=\"name\" name=\"name\" value=\""
        (first(filled, "name").unwrap_or_default()) "\" placeholder=\"chosen for you\" autocomplete=\"off\"" (marks) ">" (name) "</div>\n" (seen) "</div>\n"
        "<details class=\"advanced\"" (open) "><summary>Advanced (" (rest.len()) " settings)</summary>\n"
        "<div class=\"find-metric\"><label for=\"find-field\">Search settings</label><input id=\"find-field\" type=\"search\" autocomplete=\"off\"></div>\n"
        "<p id=\"status\" role=\"status\" class=\"small soft\"></p>\n"
        (sections.iter().map(section).collect::<Vec<_>>()) "</details>\n"
        "<p><button type=\"submit\" class=\"main\">Plan the run</button> <small class=\"soft\">Nothing starts yet. The next page shows how much memory the run needs.</small></p>\n</form>\n"
    ]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::fields::tests::lists;
    use super::*;

    fn method(name: &str) -> MethodConfig {
        MethodConfig::named(name).expect("a method")
    }

    #[test]
    fn goals_lead_to_methods_and_six_to_eight_fields_are_seen() {
        for goal in Goal::ALL {
            assert!(MethodConfig::all().iter().any(|method| Goal::of(method) == goal), "{goal:?} has no method");
        }
        let of = |name: &str| Goal::of(&method(name));
        assert_eq!([of("sft"), of("dpo"), of("reward")], [Goal::Demonstrations, Goal::Preferences, Goal::Preferences]);
        assert_eq!([of("grpo"), of("classify"), of("distill")], [Goal::Reward, Goal::Labels, Goal::Teacher]);
        let names: Vec<&str> = OFFLINE.iter().chain(&ONLINE).copied().collect();
        for of in MethodConfig::all() {
            let known = fields(of.name());
            let seen = if of.is_online() { &ONLINE[..] } else { &OFFLINE[..] };
            let seen = seen.iter().filter(|name| known.iter().any(|(spec, _)| spec.name == **name)).take(SEEN).count();
            assert!((6..=SEEN).contains(&seen), "{}: {seen}", of.name());
        }
        // Each of them is a field of some method.
        for name in names {
            let is_known = |of: &MethodConfig| fields(of.name()).iter().any(|(spec, _)| spec.name == name);
            assert!(MethodConfig::all().iter().any(is_known), "{name}");
        }
    }

    #[test]
    fn the_first_file_that_fits_is_chosen() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, row) in [
            ("a.jsonl", "{\"chosen\": \"b\", \"rejected\": \"c\", \"prompt\": \"a\"}"),
            ("b.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"),
            ("c.jsonl", "broken"),
            ("d.jsonl", "{\"prompt\": \"a\"}"),
        ] {
            fs::write(folder.path().join(name), format!("{row}\n")).expect("written");
        }
        let lists = Lists { models: lists().models, ..Lists::look(folder.path(), Vec::new()) };
        let data = |name: &str| {
            let filled = sensible(&method(name), &lists, QueryParams::new());
            assert_eq!(first(&filled, "model"), Some("gpt2"));
            first(&filled, "data").map(str::to_owned)
        };
        assert_eq!([data("dpo"), data("reward")], [Some("a.jsonl".into()), Some("a.jsonl".into())]);
        let only = |names: &[&str]| {
            let kept = lists.data.iter().filter(|(name, _)| names.contains(&name.as_str())).cloned().collect();
            Lists { models: lists.models.clone(), data: kept, tasks: Vec::new() }
        };
        let of = |name: &str, files: &[&str]| {
            first(&sensible(&method(name), &only(files), QueryParams::new()), "data").map(str::to_owned)
        };
        assert_eq!(of("sft", &["c.jsonl", "d.jsonl", "b.jsonl"]), Some("b.jsonl".into()));
        assert_eq!(of("grpo", &["c.jsonl", "d.jsonl"]), Some("d.jsonl".into()));
        assert_eq!(of("dpo", &["b.jsonl", "c.jsonl", "d.jsonl"]), None);
        // Existing values are kept.
        let filled = vec![("data".to_owned(), "b.jsonl".to_owned())];
        assert_eq!(first(&sensible(&method("dpo"), &lists, filled), "data"), Some("b.jsonl"));
    }

    #[test]
    fn a_run_fills_the_form_with_what_was_set() {
        let text = "model: /m/gpt2 # set\ndata: /d/tea.jsonl # set\neval_data: /elsewhere.jsonl # set\noutput_dir: /x # set\nmethod:\n  dpo:\n    \
                    beta: 0.2 # set\n    label_smoothing: 0.0\nreward: null\ntrain:\n  learning_rate: 2e-5 # set\n  shuffle: false # set\n";
        let settings = Settings::parse(text).expect("settings");
        let (filled, left) = of_run("dpo", &settings, &lists());
        let expected = [
            ("model", "gpt2"),
            ("data", "tea.jsonl"),
            ("beta", "0.2"),
            ("learning-rate", "2e-5"),
            ("shuffle", "false"),
        ];
        let expected: QueryParams =
            expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let left_out = KeysLeft { outside: vec!["eval_data".to_owned()], ..KeysLeft::default() };
        assert_eq!((filled, left), (expected, left_out));
    }

    #[test]
    fn only_lists_lose_their_brackets_in_the_form() {
        let text = "method:\n  grpo:\n    stop: [a] # set\nreward:\n  rule:\n    regex: \"[aeiou]\" # set\n    \
                    substring: \"[ab], [cd]\" # set\ntrain:\n  adam_betas: [0.8, 0.99] # set\n";
        let settings = Settings::parse(text).expect("settings");
        let (filled, left) = of_run("grpo", &settings, &lists());
        let value = |name: &str| first(&filled, name);
        assert_eq!(value("reward-rule-regex"), Some("[aeiou]"));
        assert_eq!(value("reward-rule-substring"), Some("[ab], [cd]"));
        assert_eq!(value("adam-betas"), Some("0.8,0.99"));
        let note = duplicated("tea", &left).into_string();
        assert!(note.contains("This form cannot show these") && note.contains("method.grpo.stop"), "{note}");
        let settings = Settings::parse("method:\n  dpo:\n    loss_type: [sigmoid, sft] # set\n").expect("settings");
        assert_eq!(first(&of_run("dpo", &settings, &lists()).0, "loss-type"), Some("sigmoid,sft"));
    }

    #[test]
    fn an_empty_field_of_an_adapter_does_not_promise_one() {
        let (method, lists) = (method("sft"), lists());
        let form = Form { method: &method, lists: &lists, filled: &QueryParams::new(), problems: &[] };
        let all = fields("sft");
        let field = |name: &str| {
            let (spec, takes) = all.iter().find(|(spec, _)| spec.name == name).expect("a field");
            form.field(spec, *takes).into_string()
        };
        let rank = field("lora-rank");
        assert!(rank.contains("placeholder=\"no adapter\"") && rank.contains("the run trains all weights"), "{rank}");
        assert!(field("lora-alpha").contains("placeholder=\"\""), "{}", field("lora-alpha"));
        assert!(field("epochs").contains("placeholder=\"1.0\""), "{}", field("epochs"));
    }

    #[test]
    fn presets_are_offered_where_they_apply() {
        let lists = lists();
        let words = |name: &str| {
            let method = method(name);
            let form = Form { method: &method, lists: &lists, filled: &QueryParams::new(), problems: &[] };
            let all = fields(name);
            let (spec, takes) = all.iter().find(|(spec, _)| spec.key == "preset").expect("a field");
            let words = form.words(spec).expect("words").len();
            assert_eq!(words == 0, form.field(spec, *takes).is_empty());
            words
        };
        assert_eq!(words("sft"), 0);
        assert!(words("grpo") >= 3 && words("grpo") < Preset::ALL.len());
    }
}

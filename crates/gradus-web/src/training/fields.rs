//! Form of a run, generated from the configuration's schema. The fields are the flags of the method's command, and their values are parsed
//! like flags, so errors on the page read like errors on the command line.
//!
//! A field is offered only if its value is a number, a word, a choice, or text that is never opened as a file or executed. Keys with paths
//! are choices from lists. Keys with commands, addresses or nested configuration are not offered. The exception is additional rows (`mix`),
//! which are built here from such choices and numbers.

use std::path::{Path, PathBuf};

use gradus::config::{Flag, FlagKind, FlagSpec, Schema, Scope, flags};
use gradus::inference::model_of;
use gradus::shell;
use gradus::task::TaskConfig;
use serde_json::{Map, Value, json};

use crate::models::{Kind, ModelEntry};
use crate::training::data_files;

/// Maximum size of a value in bytes.
const BYTES: usize = 1 << 14;

/// Keys with plain text, in addition to names of columns and metrics and regular expressions.
const TEXTS: [&str; 3] = ["reward.rule.substring", "reward.rule.regex", "train.system_prompt"];

/// Mappings with a required part that is not offered, so that their other parts would be useless.
const LEFT: [&str; 3] = ["reward.command.", "reward.classifier.", "method.distill.teacher_server."];

/// Type of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Yes, no, or the default.
    Switch,
    /// A number.
    Number,
    /// One of the words that the flag allows.
    Word,
    /// Text.
    Text,
    /// A language model in the list.
    Model,
    /// A reward model in the list.
    Reward,
    /// A data file or folder in the list.
    Data,
    /// A task without required keys.
    Task,
    /// Additional data files with a number of rows each: pairs of fields.
    Mix,
}

/// Number of pairs of fields for additional rows.
pub const MIXED: usize = 3;

/// Names of these fields. Each occurs several times, in the order of the pairs.
pub const MIX_DATA: &str = "mix-data";
/// See [`MIX_DATA`].
pub const MIX_ROWS: &str = "mix-rows";

/// Returns the type of a flag's field. `None` if it is not offered.
pub fn takes(spec: &FlagSpec) -> Option<Takes> {
    if LEFT.iter().any(|left| spec.key.starts_with(left)) {
        return None;
    }
    match spec.name.as_str() {
        "model" | "reference-model" | "teacher-model" => return Some(Takes::Model),
        "reward-model" => return Some(Takes::Reward),
        "data" | "eval-data" | "test-data" => return Some(Takes::Data),
        "task" | "eval-task" | "test-task" => return Some(Takes::Task),
        "mix" => return Some(Takes::Mix),
        _ => {}
    }
    match &spec.kind {
        FlagKind::Switch => Some(Takes::Switch),
        FlagKind::Words(_) | FlagKind::WordList(_) | FlagKind::WordOrYaml(_) => Some(Takes::Word),
        FlagKind::Value("N" | "X") | FlagKind::Numbers => Some(Takes::Number),
        FlagKind::Value("COLUMN" | "METRIC" | "REGEX") => Some(Takes::Text),
        FlagKind::Value(_) if TEXTS.contains(&spec.key.as_str()) => Some(Takes::Text),
        FlagKind::Value(_) | FlagKind::Repeated | FlagKind::Names | FlagKind::Arguments | FlagKind::Yaml => None,
    }
}

/// An error in a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Field with the error.
    pub field: Option<String>,
    /// Description of the error.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    /// Creates an error in a field, or in no particular field.
    pub fn of(field: Option<&str>, text: String) -> Self {
        Self { field: field.map(str::to_owned), text, hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: Option<&str>) -> Self {
        Self { hint: hint.map(str::to_owned), ..self }
    }
}

/// Choices of the fields.
pub struct Lists {
    /// Models.
    pub models: Vec<ModelEntry>,
    /// Data files and folders: name and path.
    pub data: Vec<(String, PathBuf)>,
    /// Tasks without required keys. Programs that print rows are excluded.
    pub tasks: Vec<String>,
}

impl Lists {
    /// Collects the data below `folder`, the tasks, and the given models.
    pub fn look(folder: &Path, models: Vec<ModelEntry>) -> Self {
        let tasks = TaskConfig::names().into_iter().filter(|name| TaskConfig::named(name).is_some()).collect();
        Self { models, data: data_files(folder), tasks }
    }

    /// Returns the choices for a field.
    pub fn names(&self, takes: Takes) -> Vec<&str> {
        let of =
            |kind: Kind| self.models.iter().filter(move |found| found.kind == kind).map(|found| found.name.as_str());
        match takes {
            Takes::Model => of(Kind::Language).collect(),
            Takes::Reward => of(Kind::Reward).collect(),
            Takes::Data => self.data.iter().map(|(name, _)| name.as_str()).collect(),
            Takes::Task => self.tasks.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the name of a path in a list. The path of a run stands for its model, as in a configuration.
    pub fn name(&self, takes: Takes, path: &Path) -> Option<&str> {
        let path = match takes {
            Takes::Model | Takes::Reward => model_of(path).ok()?,
            _ => path.to_owned(),
        };
        let real = path.canonicalize().ok();
        let is_it = |name: &&str| {
            let known = self.path(takes, name);
            known.is_some_and(|known| known == path || (real.is_some() && known.canonicalize().ok() == real))
        };
        self.names(takes).into_iter().find(is_it)
    }

    /// Returns the path of a name in a list.
    fn path(&self, takes: Takes, name: &str) -> Option<PathBuf> {
        let kind = match takes {
            Takes::Data => return self.data.iter().find(|(known, _)| known == name).map(|(_, path)| path.clone()),
            Takes::Reward => Kind::Reward,
            _ => Kind::Language,
        };
        let found = self.models.iter().find(|found| found.kind == kind && found.name == name)?;
        model_of(&found.path).ok()
    }
}

/// Returns the fields of a method: the flags that are offered. The defaults are those of an empty field.
pub fn fields(method: &str) -> Vec<(FlagSpec, Takes)> {
    let schema = Schema::run_config();
    // A part such as `lora` is left out if all of its fields are empty, and then its defaults have no effect.
    let is_of_optional_part =
        |key: &str| key.match_indices('.').any(|(at, _)| schema.field(&key[..at]).is_some_and(|part| part.nullable));
    let offered = |mut spec: FlagSpec| {
        let takes = takes(&spec)?;
        if is_of_optional_part(&spec.key) {
            spec.default = None;
        }
        Some((spec, takes))
    };
    flags(&schema, Scope::Method(method)).into_iter().filter_map(offered).collect()
}

/// Returns the field that a message names in backticks: by its key, by the last part of its key, or by its flag.
pub fn named_field(method: &str, text: &str) -> Option<String> {
    let fields = fields(method);
    let find = |name: &str| {
        let name = name.trim_start_matches("--");
        let is_it = |spec: &FlagSpec| {
            spec.key == name || spec.name == name.replace('_', "-") || spec.key.rsplit('.').next() == Some(name)
        };
        fields.iter().find(|(spec, _)| is_it(spec)).map(|(spec, _)| spec.name.clone())
    };
    text.split('`').skip(1).step_by(2).filter(|name| !name.is_empty()).find_map(find)
}

/// Returns the flags that a form defines, or its errors. Unknown names are rejected, because no page sends them.
pub fn given(method: &str, lists: &Lists, filled: &[(String, String)]) -> Result<Vec<Flag>, Vec<Problem>> {
    let fields = fields(method);
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    match mix(lists, filled) {
        Ok(None) => {}
        Ok(Some(mix)) => found.extend(set(method, "mix", &mix)),
        Err(problem) => problems.push(problem),
    }
    let is_of_mix = |name: &str| [MIX_DATA, MIX_ROWS].contains(&name);
    for (name, value) in filled.iter().filter(|(name, value)| !is_of_mix(name) && !value.trim().is_empty()) {
        let known = fields.iter().find(|(spec, takes)| spec.name == *name && *takes != Takes::Mix);
        let Some((spec, takes)) = known else {
            problems.push(Problem::of(None, format!("There is no field {name}.")));
            continue;
        };
        if value.len() > BYTES {
            problems.push(Problem::of(
                Some(name),
                format!("It has {} bytes, but at most {BYTES} are allowed.", value.len()),
            ));
            continue;
        }
        let mut written = format!("--{name}");
        let value = match takes {
            Takes::Switch if value == "false" => {
                written = format!("--no-{name}");
                value.clone()
            }
            Takes::Switch if value == "true" => value.clone(),
            Takes::Switch => {
                problems.push(Problem::of(Some(name), "It is neither yes nor no.".into()));
                continue;
            }
            Takes::Task if !lists.tasks.contains(value) => {
                problems.push(Problem::of(Some(name), format!("There is no task {value}.")));
                continue;
            }
            Takes::Word if !offers(&spec.kind, value.trim()) => {
                problems.push(Problem::of(Some(name), format!("There is no choice {}.", value.trim())));
                continue;
            }
            Takes::Number | Takes::Word | Takes::Task => value.trim().to_owned(),
            // HTML forms send `\r\n` line breaks.
            Takes::Text => value.replace("\r\n", "\n"),
            Takes::Model | Takes::Reward | Takes::Data | Takes::Mix => match lists.path(*takes, value) {
                Some(path) => path.to_string_lossy().into_owned(),
                None => {
                    problems.push(Problem::of(Some(name), format!("There is no {value} in the list.")));
                    continue;
                }
            },
        };
        found.push(Flag { spec: spec.clone(), written, values: vec![value] });
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// Returns whether a form may send this value for a flag with words. A mapping may hold anything, so only the words are offered in its place.
fn offers(kind: &FlagKind, value: &str) -> bool {
    match kind {
        FlagKind::WordOrYaml(words) => words.iter().any(|word| word.name == value),
        _ => true,
    }
}

/// Returns additional rows in the form of the key `mix`. `None` if none are selected.
fn mix(lists: &Lists, filled: &[(String, String)]) -> Result<Option<String>, Problem> {
    let problem = |text: String| Problem::of(Some("mix"), text);
    let of = |field: &'static str| filled.iter().filter(move |(name, _)| name == field).map(|(_, value)| value.trim());
    let (data, mut rows) = (of(MIX_DATA), of(MIX_ROWS));
    let mut all = Vec::new();
    for name in data {
        let rows = rows.next().unwrap_or_default();
        match (name, rows) {
            ("", "") => continue,
            ("", _) => return Err(problem("A number of rows is set, but no file is chosen.".into())),
            _ if all.len() == MIXED => return Err(problem(format!("At most {MIXED} files are allowed."))),
            _ => {}
        }
        let path = lists.path(Takes::Data, name).ok_or_else(|| problem(format!("There is no {name} in the list.")))?;
        let mut one = Map::from_iter([("data".to_owned(), json!(path.to_string_lossy()))]);
        if !rows.is_empty() {
            let count: usize = rows.parse().map_err(|_| problem(format!("{rows} is not a number of rows.")))?;
            one.insert("rows".into(), count.into());
        }
        all.push(Value::Object(one));
    }
    match rows.all(str::is_empty) {
        true => Ok((!all.is_empty()).then(|| Value::Array(all).to_string())),
        false => Err(problem("A number of rows is set, but no file is chosen.".into())),
    }
}

/// Returns a flag that the server sets itself.
pub fn set(method: &str, key: &str, value: &str) -> Option<Flag> {
    let spec = flags(&Schema::run_config(), Scope::Method(method)).into_iter().find(|spec| spec.key == key)?;
    Some(Flag { written: format!("--{}", spec.name), values: vec![value.to_owned()], spec })
}

/// Returns the equivalent command line.
pub fn command(method: &str, flags: &[Flag]) -> String {
    let mut words = vec!["gradus".to_owned(), method.to_owned()];
    for flag in flags {
        words.push(flag.written.clone());
        if flag.spec.kind != FlagKind::Switch {
            words.extend(flag.values.iter().map(|value| shell::word(value).into_owned()));
        }
    }
    words.join(" ")
}

#[cfg(test)]
pub(super) mod tests {
    use gradus::config::MethodConfig;

    use super::*;

    /// Creates lists with a model, a reward model, a file and a folder of files.
    pub fn lists() -> Lists {
        let found = |name: &str, kind| ModelEntry { name: name.into(), path: format!("/m/{name}").into(), kind };
        let models = vec![found("gpt2", Kind::Language), found("judge", Kind::Reward)];
        let data = vec![("tea.jsonl".into(), "/d/tea.jsonl".into()), ("cups/".into(), "/d/cups".into())];
        Lists { models, data, tasks: Lists::look("/nowhere".as_ref(), Vec::new()).tasks }
    }

    fn filled(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn no_field_of_any_method_takes_a_path_a_command_or_nested_configuration() {
        for method in MethodConfig::all() {
            let all = flags(&Schema::run_config(), Scope::Method(method.name()));
            assert!(fields(method.name()).len() > 20, "{}", method.name());
            for spec in all {
                let is_open = matches!(&spec.kind, FlagKind::Arguments | FlagKind::Yaml | FlagKind::Repeated)
                    || matches!(&spec.kind, FlagKind::Value("DIR" | "FILE" | "PATH" | "DEVICE"));
                let offered = takes(&spec);
                let is_list =
                    matches!(offered, Some(Takes::Model | Takes::Reward | Takes::Data | Takes::Task | Takes::Mix));
                assert!(!is_open || offered.is_none() || is_list, "{}: {offered:?}", spec.key);
                for word in ["command", "lexicon", "output_dir", "http", "url", "chat_template", "server"] {
                    assert!(
                        !spec.key.contains(word) || matches!(offered, None | Some(Takes::Number)),
                        "{}: {offered:?}",
                        spec.key
                    );
                }
                // Every text field has been reviewed.
                if offered == Some(Takes::Text) {
                    let known =
                        ["text_column", "column", "best_metric", "target_pattern", "exact_match", "numeric_answer"];
                    let own = spec.key.rsplit('.').next().unwrap_or_default();
                    assert!(known.contains(&own) || TEXTS.contains(&spec.key.as_str()), "{} is text", spec.key);
                }
            }
        }
    }

    #[test]
    fn a_form_is_read_as_flags_and_lists_have_the_last_word() {
        let lists = lists();
        let form = filled(&[
            ("model", "gpt2"),
            ("data", "tea.jsonl"),
            ("learning-rate", " 1e-5 "),
            ("shuffle", "false"),
            ("beta", ""),
        ]);
        let flags = given("dpo", &lists, &form).expect("flags");
        let command = command("dpo", &flags);
        assert_eq!(command, "gradus dpo --model /m/gpt2 --data /d/tea.jsonl --learning-rate 1e-5 --no-shuffle");
        for (name, value) in [
            ("model", "/etc"),
            ("model", "../gpt2"),
            ("model", "judge"),
            ("data", "/etc/passwd"),
            ("output-dir", "/tmp/x"),
            ("reward-command", "sh -c id"),
            ("chat-template", "/etc/passwd"),
            ("mix", "[{data: /etc/passwd}]"),
            ("mix", "tea.jsonl"),
            ("mix-data", "/etc/passwd"),
            ("mix-data", "../tea.jsonl"),
            ("mix-rows", "3"),
            ("task", "command"),
            ("task", "{command: [id]}"),
            ("task", "dummy_pool"),
            ("eval-task", "plugin"),
            ("shuffle", "maybe"),
            ("lr-schedule", "{polynomial: {}}"),
            ("evaluation-post-process", "{plugin: {x: {}}}"),
            ("nonsense", "1"),
        ] {
            assert!(given("grpo", &lists, &filled(&[(name, value)])).is_err(), "{name} {value}");
        }
        assert_eq!(
            given("sft", &lists, &filled(&[("system-prompt", &"x".repeat(BYTES + 1))])).map_err(|p| p.len()),
            Err(1)
        );
    }

    #[test]
    fn tasks_and_further_rows_are_choices() {
        let lists = lists();
        let form = [("model", "gpt2"), ("data", "cups/"), ("task", "commongen"), ("split", "train")];
        let flags = given("sft", &lists, &filled(&form)).expect("flags");
        assert_eq!(command("sft", &flags), "gradus sft --model /m/gpt2 --data /d/cups --task commongen --split train");
        let form = [
            ("model", "gpt2"),
            ("data", "tea.jsonl"),
            ("mix-data", ""),
            ("mix-rows", ""),
            ("mix-data", "cups/"),
            ("mix-rows", " 40 "),
            ("mix-data", "tea.jsonl"),
            ("mix-rows", ""),
        ];
        let flags = given("sft", &lists, &filled(&form)).expect("flags");
        let mix = r#"[{"data":"/d/cups","rows":40},{"data":"/d/tea.jsonl"}]"#;
        assert_eq!(flags[0].values, [mix]);
        let request = gradus::config::Request { method: Some("sft"), flags: &flags, ..Default::default() };
        let written = gradus::config::RunConfig::load(&request).expect("a configuration").config.mix;
        let written: Vec<(String, Option<usize>)> =
            written.into_iter().map(|mixed| (mixed.data.to_string(), mixed.rows)).collect();
        assert_eq!(written, [("/d/cups".to_owned(), Some(40)), ("/d/tea.jsonl".to_owned(), None)]);
        for (rows, problem) in [("-1", "-1 is not a number of rows."), ("1, x: 2", "1, x: 2 is not a number of rows.")]
        {
            let form = filled(&[("mix-data", "cups/"), ("mix-rows", rows)]);
            assert_eq!(given("sft", &lists, &form), Err(vec![Problem::of(Some("mix"), problem.to_owned())]));
        }
        assert!(given("sft", &lists, &filled(&[("mix-data", "cups/"); MIXED + 1])).is_err());
    }

    #[test]
    fn the_path_of_a_run_stands_for_its_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("sft");
        std::fs::create_dir_all(run.join("model")).expect("a folder");
        for file in ["config.yml", "metrics.jsonl", "model/config.json"] {
            std::fs::write(run.join(file), "").expect("written");
        }
        let models = vec![ModelEntry { name: "sft".into(), path: run.clone(), kind: Kind::Language }];
        let lists = Lists { models, ..lists() };
        for path in [run.clone(), run.join("model")] {
            assert_eq!(lists.name(Takes::Model, &path), Some("sft"), "{}", path.display());
        }
        assert_eq!(lists.name(Takes::Model, folder.path()), None);
        assert_eq!(lists.name(Takes::Reward, &run), None);
    }

    #[test]
    fn messages_name_their_fields() {
        let named = |method: &str, text: &str| named_field(method, text);
        let room = "`max_new_tokens` (512) leaves no room for a prompt within 64 tokens";
        assert_eq!(named("grpo", room).as_deref(), Some("max-new-tokens"));
        let teacher = "`distill` needs a `method.distill.teacher_model`: the student imitates it";
        assert_eq!(named("distill", teacher).as_deref(), Some("teacher-model"));
        assert_eq!(named("sft", "pass `--batch-size` or less").as_deref(), Some("batch-size"));
        assert_eq!(named("sft", "`/etc/passwd` is empty, max_steps too"), None);
    }
}

//! Every configuration key as a command-line flag, as data that the binary turns into arguments.
//!
//! A flag is the key's name with hyphens. Keys of nested mappings start with the mapping's name (`kl.target` is
//! `--kl-target`), except for `train` and the method itself. Flags override the file's tree before it is read, so they
//! follow the same rules as the file.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::MethodConfig;
use super::node::{Entry, Node, Value, parse};
use super::schema::{Field, Schema, Shape, Word};
use crate::data::Need;
use crate::error::{Diagnostic, Location, excerpt};

/// Specification of a flag.
#[derive(Debug, Clone, PartialEq)]
pub struct FlagSpec {
    /// Name without leading hyphens, such as `kl-target`.
    pub name: String,
    /// The key it sets, such as `method.ppo.kl.target`.
    pub key: String,
    /// Section of the help that lists it.
    pub section: &'static str,
    /// Help text.
    pub doc: String,
    /// Default of the key, if it has one.
    pub default: Option<Json>,
    /// Kind of its value.
    pub kind: FlagKind,
}

/// Kind of a flag's value.
#[derive(Debug, Clone, PartialEq)]
pub enum FlagKind {
    /// No value: `--shuffle` or `--no-shuffle`.
    Switch,
    /// One value, shown in the help under this placeholder.
    Value(&'static str),
    /// One of a list of words.
    Words(Vec<Word>),
    /// One of a list of words, or several separated by commas.
    WordList(Vec<Word>),
    /// One of a list of words, or a mapping in YAML.
    WordOrYaml(Vec<Word>),
    /// A text. The flag may be repeated.
    Repeated,
    /// Names separated by commas. The flag may be repeated.
    Names,
    /// A program with its arguments: one text that is split as a shell splits words, or a list in brackets.
    Arguments,
    /// Numbers separated by commas.
    Numbers,
    /// Any other value, in YAML.
    Yaml,
}

/// A flag that the user passed.
#[derive(Debug, Clone, PartialEq)]
pub struct Flag {
    /// Specification of the flag.
    pub spec: FlagSpec,
    /// Spelling that the user chose, such as `--no-shuffle`, for messages.
    pub written: String,
    /// Its values; `true` or `false` for a switch.
    pub values: Vec<String>,
}

/// Keys that a command accepts as flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All keys of a run of this method.
    Method(&'a str),
    /// Keys that do not depend on the method.
    Shared,
}

/// Returns the flags of a command, in the order of the help.
pub fn flags(schema: &Schema, scope: Scope<'_>) -> Vec<FlagSpec> {
    let mut specs = Vec::new();
    let mut later = Vec::new();
    for field in schema.fields(schema.root()) {
        match field.name.as_str() {
            "method" => {
                let Scope::Method(method) = scope else { continue };
                let key = format!("method.{method}");
                for field in schema.field(&key).map(|side| schema.fields(&side.shape)).unwrap_or_default() {
                    collect(schema, field, &key, "", "Method", &mut specs);
                }
            }
            "reward" | "environment" | "tools" | "episode" if is_offline(scope) => {}
            "environment" | "tools" | "episode" => collect(schema, field, "", "", "Environment", &mut specs),
            "reward" => collect(schema, field, "", "", "Reward", &mut specs),
            "train" => {
                for field in schema.fields(&field.shape) {
                    collect(schema, field, "train", "", section(&field.name), &mut later);
                }
            }
            // Only programs that register observers use this key, in their files.
            "observers" => {}
            "adapter" | "lora" => collect(schema, field, "", "", "Adapter", &mut specs),
            _ => collect(schema, field, "", "", "Input and output", &mut specs),
        }
    }
    specs.extend(later);
    if !takes_tasks(scope) {
        specs.retain(|spec| !matches!(spec.key.as_str(), "data.task" | "eval_data.task" | "test_data.task"));
    }
    if let Scope::Method(name) = scope
        && let Some(method) = MethodConfig::named(name)
    {
        for (key, value) in method.method().defaults().keys() {
            let spec = specs.iter_mut().find(|spec| spec.key == key).expect("a key of `train`");
            spec.doc = spec.doc.replace("Default by method", &format!("Default {value}"));
        }
    }
    specs
}

fn is_offline(scope: Scope<'_>) -> bool {
    let Scope::Method(name) = scope else { return false };
    MethodConfig::named(name).is_some_and(|method| !method.is_online())
}

/// Whether the rows may come from a task, that is, whether they are prompts and references.
fn takes_tasks(scope: Scope<'_>) -> bool {
    let Scope::Method(name) = scope else { return true };
    let need = MethodConfig::named(name).map(|method| method.method().need());
    need.is_none_or(Need::takes_tasks)
}

/// Returns the section of the help for a key of `train`.
fn section(key: &str) -> &'static str {
    match key {
        "epochs" | "max_steps" | "batch_size" | "micro_batch_size" | "micro_batch_tokens" | "lanes"
        | "shard_moments" | "recompute" => "Length and batches",
        "learning_rate"
        | "lr_schedule"
        | "warmup_steps"
        | "weight_decay"
        | "optimizer"
        | "adam_betas"
        | "adam_epsilon"
        | "moments"
        | "offload_moments"
        | "rmsprop_alpha"
        | "rmsprop_epsilon"
        | "max_grad_norm"
        | "dropout"
        | "neftune_noise_alpha"
        | "sync_ref_model"
        | "ref_model_mixup_alpha"
        | "ref_model_sync_steps" => "Optimizer",
        "max_length"
        | "max_prompt_length"
        | "prompt_truncation"
        | "too_long"
        | "filter"
        | "skip_bad_rows"
        | "max_rows"
        | "max_rows_at_random"
        | "shuffle"
        | "priority_scale"
        | "text_column"
        | "column"
        | "system_prompt"
        | "transcripts_as_messages"
        | "chat_template" => "Rows",
        "device" | "threads" | "seed" => "Machine and randomness",
        "early_stopping_patience" | "greater_is_better" => "Evaluation, checkpoints, records",
        key if key.contains("eval") || key.contains("steps") || key.contains("checkpoint") || key.contains("best") => {
            "Evaluation, checkpoints, records"
        }
        _ => "Other training options",
    }
}

/// Adds the flags of `field` at `path`. Their names start with `prefix`.
fn collect(schema: &Schema, field: &Field, path: &str, prefix: &str, section: &'static str, specs: &mut Vec<FlagSpec>) {
    let key = if path.is_empty() { field.name.clone() } else { format!("{path}.{}", field.name) };
    let word = field.name.replace('_', "-");
    let name = if prefix.is_empty() { word } else { format!("{prefix}-{word}") };
    let kind = match schema.resolve(&field.shape) {
        // Otherwise the options of all metrics would be flags of every command with a reward.
        _ if key == "reward.metric" => FlagKind::Yaml,
        // An environment is a single value with its own keys.
        _ if key == "environment" => FlagKind::Yaml,
        // A scorer may contain another scorer.
        _ if ["reward.toxicity.scorer", "reward.judge.verdict"].contains(&key.as_str()) => FlagKind::Yaml,
        Shape::Map(fields) | Shape::Choice(fields) => {
            for inner in fields {
                collect(schema, inner, &key, &name, section, specs);
            }
            return;
        }
        Shape::OrMap(_, map) if matches!(schema.resolve(map), Shape::Choice(_)) => {
            match schema.variants(&field.shape) {
                Some((words, sides)) => {
                    let alone = sides.iter().filter(|side| schema.all_optional(&side.shape));
                    let alone = alone.map(|side| Word { name: side.name.clone(), doc: side.doc.clone() });
                    FlagKind::WordOrYaml(words.iter().cloned().chain(alone).collect())
                }
                None => FlagKind::Yaml,
            }
        }
        // The value is stored under its own key of the mapping, so that flags can set the other keys too.
        Shape::OrMap(value, map) => {
            // `--task` and `--eval-task`, not `--data-task`.
            let prefix = name.strip_suffix("data").map_or(name.as_str(), |before| before.trim_end_matches('-'));
            for inner in schema.fields(map) {
                if schema.resolve(&inner.shape) == schema.resolve(value) {
                    let (name, doc, default) = (name.clone(), field.doc.clone(), field.default.clone());
                    let kind = match schema.resolve(value) {
                        Shape::List { .. } => FlagKind::Arguments,
                        _ => FlagKind::Value(placeholder(&field.name)),
                    };
                    let key = format!("{key}.{}", inner.name);
                    specs.push(FlagSpec { name, key, section, doc, default, kind });
                } else {
                    collect(schema, inner, &key, prefix, section, specs);
                }
            }
            return;
        }
        Shape::Bool => FlagKind::Switch,
        Shape::Word(words) => FlagKind::Words(words.clone()),
        Shape::OneOrMore(item) => match schema.resolve(item) {
            Shape::Word(words) => FlagKind::WordList(words.clone()),
            _ => FlagKind::Yaml,
        },
        Shape::List { item, .. } => match schema.resolve(item) {
            Shape::Text if field.name == "command" => FlagKind::Arguments,
            // Names of layers contain no commas; stop strings, labels and columns may.
            Shape::Text if key == "lora.targets" => FlagKind::Names,
            Shape::Text => FlagKind::Repeated,
            Shape::Number | Shape::Integer { .. } => FlagKind::Numbers,
            _ => FlagKind::Yaml,
        },
        Shape::Keyed(_) => FlagKind::Yaml,
        Shape::Number => FlagKind::Value("X"),
        Shape::Integer { .. } => FlagKind::Value("N"),
        Shape::Text | Shape::Named(_) => FlagKind::Value(placeholder(&field.name)),
    };
    specs.push(FlagSpec { name, key, section, doc: field.doc.clone(), default: field.default.clone(), kind });
}

fn placeholder(name: &str) -> &'static str {
    match name {
        "lexicon" => "FILE",
        "chat_template" => "NAME|FILE",
        "data" | "eval_data" | "test_data" => "PATH",
        "device" => "DEVICE",
        "best_metric" => "METRIC",
        "exact_match" | "numeric_answer" | "text_column" => "COLUMN",
        "targets" => "NAME",
        "target_pattern" => "REGEX",
        name if name.ends_with("model") || name.ends_with("dir") || matches!(name, "adapter" | "tokenizer") => "DIR",
        _ => "TEXT",
    }
}

/// Returns the flags as a tree that can override a file's tree.
pub(super) fn tree(flags: &[Flag]) -> Result<Node, Vec<Diagnostic>> {
    let mut root = Node::empty();
    let mut problems = Vec::new();
    for flag in flags {
        let location = Some(Location::Flag(flag.written.clone()));
        match value(flag, &location) {
            Ok(node) => set(&mut root, &flag.spec.key, node, &location),
            Err(message) => {
                problems.push(Diagnostic { message, locations: location.into_iter().collect(), hint: None });
            }
        }
    }
    if problems.is_empty() { Ok(root) } else { Err(problems) }
}

/// Sets `value` at a dotted key.
pub(super) fn set(root: &mut Node, key: &str, value: Node, location: &Option<Location>) {
    let mut node = root;
    for part in key.split('.') {
        if !matches!(node.value, Value::Map(_)) {
            node.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut node.value else { unreachable!("it was made a mapping above") };
        let index = entries.iter().position(|entry| entry.key == part).unwrap_or_else(|| {
            let node = Node { location: location.clone(), ..Node::empty() };
            entries.push(Entry { key: part.to_owned(), location: location.clone(), node });
            entries.len() - 1
        });
        node = &mut entries[index].node;
    }
    *node = value;
}

fn value(flag: &Flag, location: &Option<Location>) -> Result<Node, String> {
    let last = flag.values.last().map(String::as_str).unwrap_or_default();
    let scalar = |text: &str, quoted: bool| Node {
        value: Value::Scalar { text: text.trim().to_owned(), quoted },
        location: location.clone(),
    };
    let list = |items: Vec<Node>| Node { value: Value::List(items), location: location.clone() };
    Ok(match &flag.spec.kind {
        FlagKind::Switch => scalar(last, false),
        FlagKind::Words(_) => scalar(last, false),
        FlagKind::WordList(_) if !last.contains(',') => scalar(last, false),
        FlagKind::WordList(_) => list(last.split(',').map(|text| scalar(text, false)).collect()),
        // Only an empty text is `null`, because a directory may be named `null`.
        FlagKind::Value("N" | "X") => scalar(last, false),
        FlagKind::Value(_) => {
            Node { value: Value::Scalar { text: last.to_owned(), quoted: true }, location: location.clone() }
        }
        FlagKind::Repeated => list(
            flag.values
                .iter()
                .map(|text| Node {
                    value: Value::Scalar { text: text.clone(), quoted: true },
                    location: location.clone(),
                })
                .collect(),
        ),
        FlagKind::Names => {
            let names = flag.values.iter().flat_map(|text| text.split(',')).filter(|name| !name.trim().is_empty());
            list(names.map(|name| scalar(name, true)).collect())
        }
        // A list, as in a file, with or without quotes around each word.
        FlagKind::Arguments if last.trim_start().starts_with('[') => {
            let problem = || format!("`{}` is not a list of words (found `{}`)", flag.written, excerpt(last, 80));
            let node = parse("".as_ref(), last).map_err(|_| problem())?;
            let Value::List(items) = node.value else { return Err(problem()) };
            let word = |item: &Node| match &item.value {
                Value::Scalar { text, .. } => Ok(scalar(text, true)),
                Value::List(_) | Value::Map(_) => Err(problem()),
            };
            list(items.iter().map(word).collect::<Result<_, _>>()?)
        }
        FlagKind::Arguments => {
            let words =
                shlex::split(last).ok_or_else(|| format!("`{}` has a quote that does not end", flag.written))?;
            list(words.iter().map(|word| scalar(word, true)).collect())
        }
        FlagKind::Numbers => list(last.split(',').map(|text| scalar(text, false)).collect()),
        FlagKind::Yaml | FlagKind::WordOrYaml(_) => {
            let mut node =
                parse("".as_ref(), last).map_err(|problem| format!("`{}`: {}", flag.written, problem.message))?;
            move_to(&mut node, location);
            node
        }
    })
}

/// Sets the location of `node` and of everything in it.
pub(super) fn move_to(node: &mut Node, location: &Option<Location>) {
    node.location.clone_from(location);
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(|item| move_to(item, location)),
        Value::Map(entries) => {
            for entry in entries {
                entry.location.clone_from(location);
                move_to(&mut entry.node, location);
            }
        }
    }
}

/// Overlays `over` on `base`. Mappings are merged key by key. A list, a value or another variant of a choice replaces the old one.
pub(super) fn overlay(schema: &Schema, shape: &Shape, base: Node, over: Node) -> Node {
    let shape = schema.resolve(shape);
    let location = over.location.clone().or_else(|| base.location.clone());
    let empty = base.is_null();
    let (mut entries, over) = match (shape, base.value, over.value) {
        (Shape::Map(_), Value::Map(base), Value::Map(over)) => (base, over),
        (Shape::Map(_), _, Value::Map(over)) if empty => (Vec::new(), over),
        (Shape::Choice(_), Value::Map(base), Value::Map(over)) => match (base.as_slice(), over.as_slice()) {
            ([old], [new]) if old.key == new.key => (base, over),
            _ => return Node { value: Value::Map(over), location },
        },
        (Shape::OrMap(_, map), base, over) if matches!(schema.resolve(map), Shape::Choice(_)) => {
            return overlay(
                schema,
                map,
                Node { value: base, location: location.clone() },
                Node { value: over, location },
            );
        }
        (Shape::OrMap(..), Value::Map(base), Value::Map(over)) => (base, over),
        (Shape::OrMap(first, map), value, Value::Map(over)) if !empty => {
            let own = schema.fields(map).iter().find(|field| schema.resolve(&field.shape) == schema.resolve(first));
            let key = own.map(|field| field.name.clone()).unwrap_or_default();
            let node = Node { value, location: base.location.clone() };
            (vec![Entry { key, location: base.location, node }], over)
        }
        (_, _, value) => return Node { value, location },
    };
    let fields = schema.fields(shape);
    // Indexed by name, so that a file with a hundred thousand keys is rejected quickly.
    let mut indices: HashMap<String, usize> = entries.iter().enumerate().map(|(i, old)| (old.key.clone(), i)).collect();
    for new in over {
        let inner = fields.iter().find(|field| field.name == new.key).map(|field| &field.shape);
        match (indices.get(&new.key).map(|&i| &mut entries[i]), inner) {
            (Some(old), Some(inner)) => {
                let base = std::mem::replace(&mut old.node, Node::empty());
                let is_leaf = !matches!(new.node.value, Value::Map(_));
                old.node = overlay(schema, inner, base, new.node);
                if is_leaf {
                    old.location = new.location;
                }
            }
            (Some(old), None) => *old = new,
            (None, _) => {
                indices.insert(new.key.clone(), entries.len());
                entries.push(new);
            }
        }
    }
    Node { value: Value::Map(entries), location }
}

/// Returns the method that a flag's key belongs to; `None` for keys of every run.
pub(super) fn of_method(flag: &Flag) -> Option<&str> {
    flag.spec.key.strip_prefix("method.")?.split('.').next()
}

/// Reports flags that affect none of the methods, so that no flag is ignored silently.
pub(super) fn unreached(flags: &[Flag], methods: &[&str]) -> Vec<Diagnostic> {
    let reaches = |flag: &Flag| of_method(flag).is_none_or(|name| methods.contains(&name));
    let mut problems: Vec<Diagnostic> = Vec::new();
    for flag in flags {
        if !flags.iter().any(|other| other.written == flag.written && reaches(other)) {
            let names: Vec<String> = methods.iter().map(|method| format!("`{method}`")).collect();
            let message = format!("`{}` is not a key of {}", flag.written, names.join(", "));
            let problem = Diagnostic { message, locations: vec![Location::Flag(flag.written.clone())], hint: None };
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_flags_with_names_of_their_own() {
        let schema = Schema::run_config();
        for method in MethodConfig::all().iter().map(MethodConfig::name) {
            let mut names: Vec<_> = flags(&schema, Scope::Method(method)).into_iter().map(|flag| flag.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "`gradus {method}` has two flags of one name");
        }
    }

    #[test]
    fn flags_that_scripts_rely_on() {
        let schema = Schema::run_config();
        let has = |method: &str, names: &[&str]| {
            let flags = flags(&schema, Scope::Method(method));
            for name in names {
                assert!(flags.iter().any(|flag| flag.name == *name), "`gradus {method}` lacks `--{name}`");
            }
        };
        let shared = [
            "model",
            "data",
            "output-dir",
            "max-steps",
            "epochs",
            "batch-size",
            "micro-batch-size",
            "learning-rate",
            "lr-schedule",
            "warmup-steps",
            "weight-decay",
            "max-grad-norm",
            "max-length",
            "seed",
            "shuffle",
            "logging-steps",
            "save-steps",
            "eval-steps",
            "device",
        ];
        for method in MethodConfig::all() {
            has(method.name(), &shared);
        }
        let of_dpo = flags(&schema, Scope::Method("dpo"));
        let doc = of_dpo.iter().find(|flag| flag.name == "learning-rate").map(|flag| flag.doc.as_str());
        assert_eq!(doc, Some("Peak learning rate. Default 1e-6, as in TRL."), "the method's own");
        has("dpo", &["beta", "loss-type"]);
        has("grpo", &["group-size", "max-new-tokens", "temperature", "kl-coefficient", "clip-range", "reward-model"]);
        has("ppo", &["kl-coefficient", "kl-target", "critic-trunk", "reward-command", "reward-rule-lexicon"]);
    }

    #[test]
    fn commands_are_split_as_a_shell_does() {
        let split = |text: &str| shlex::split(text).map(|words| words.join("|"));
        assert_eq!(split("python3 score.py  --strict").as_deref(), Some("python3|score.py|--strict"));
        assert_eq!(split(r#"sh -c 'echo "1"' a\ b """#).as_deref(), Some(r#"sh|-c|echo "1"|a b|"#));
        assert_eq!(split("echo 'open"), None);
    }
}

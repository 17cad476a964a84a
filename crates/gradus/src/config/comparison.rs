//! One file, or flags, for several methods: the input of `gradus compare`.
//!
//! A comparison is written like a run, with `methods` instead of `method`. A method's own values for keys of `train`
//! are written below it:
//!
//! ```yaml
//! model: gpt2
//! data: pairs.jsonl
//! reward: { model: runs/reward/model }
//! methods:
//!   dpo: { beta: 0.1, train: { learning_rate: 1e-5 } }
//!   ppo: {}
//!   grpo: { group_size: 4 }
//! train: { max_steps: 100, batch_size: 16 }
//! ```

use std::path::{Path, PathBuf};

use super::config_with_locations::ConfigWithLocations;
use super::flags::{Flag, of_method, overlay, unreached};
use super::load::{Request, file_tree, resolve, text};
use super::method::names;
use super::node::{Entry, Node, Value};
use super::rules;
use super::schema::Schema;
use super::{MethodConfig, Registry, plan::free_directory};
use crate::error::{Diagnostic, Error, Location, Result};
use crate::machine::Machine;

/// The user's request: a file, methods and flags.
#[derive(Debug, Clone, Copy, Default)]
pub struct ComparisonRequest<'a> {
    /// The configuration file.
    pub file: Option<&'a Path>,
    /// Methods to compare. If empty, those of the file; `all` means every method that trains a policy.
    pub methods: &'a [String],
    /// Flags, which override the file. Flags of one method affect only that method.
    pub flags: &'a [Flag],
    /// Plug-ins of the program.
    pub registry: Option<&'a Registry>,
}

/// A comparison as written.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparisonDefinition {
    /// Output directory: `output_dir`, or `runs/compare-<model>-<n>`.
    pub output_dir: PathBuf,
    /// One run per method, in the order given. Each has its own subdirectory.
    pub runs: Vec<ConfigWithLocations>,
    /// Configuration for measuring all policies: the first online run, or a run that is made for a given reward.
    pub judge: Option<ConfigWithLocations>,
    /// Methods from `all` that cannot run with the given keys, with the reason.
    pub left_out: Vec<(String, Diagnostic)>,
    /// Notes on the file, as [`ConfigWithLocations::notes`].
    pub notes: Vec<Diagnostic>,
}

/// Keys for sampling and rewards, which offline methods do not use.
const ONLINE_KEYS: [&str; 5] = ["reward", "environment", "tools", "episode", "rollouts"];

/// Method for sampling from policies if only a reward or an environment is given to measure them.
const JUDGE: &str = "grpo";

impl ComparisonDefinition {
    /// Reads a file and applies flags to it, once for each method.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem, each once.
    pub fn load(request: &ComparisonRequest<'_>) -> Result<Self> {
        match request.file {
            Some(path) => Self::of_file(path, &text(path)?, request),
            None => resolve_all(Node::empty(), request),
        }
    }

    /// Reads `text`, the content of the configuration file `path`, and applies the methods and flags of `request` to it.
    pub(super) fn of_file(path: &Path, text: &str, request: &ComparisonRequest<'_>) -> Result<Self> {
        let (base, notes) = file_tree(path, text)?;
        Ok(Self { notes, ..resolve_all(base, request)? })
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// As [`ComparisonDefinition::load`].
    pub fn parse(text: &str) -> Result<Self> {
        let (base, notes) = file_tree("compare.yml".as_ref(), text)?;
        Ok(Self { notes, ..resolve_all(base, &ComparisonRequest::default())? })
    }
}

fn resolve_all(mut base: Node, request: &ComparisonRequest<'_>) -> Result<ComparisonDefinition> {
    if let Some(entry) = base.entry("method") {
        let message = "a comparison names its methods under `methods`, not under `method`";
        return Err(refuse(message.into(), entry.location.clone(), "write `methods: { dpo: {}, ppo: {} }`"));
    }
    let mut sides = methods(base.take("methods"), request.methods)?;
    let has_reward = ["reward", "environment"].iter().any(|key| {
        base.entry(key).is_some() || request.flags.iter().any(|flag| flag.spec.key.split('.').next() == Some(key))
    });
    let (mut runs, mut problems) = (Vec::new(), Vec::new());
    let mut add = |name: &str, keys: Node| match one(&base, name, keys, request) {
        Ok(written) => Some(written),
        Err(Error::Config(found)) => {
            // A problem in shared keys occurs for every method. It is reported once.
            problems.extend(found.into_iter().filter(|problem| !problems.contains(problem)).collect::<Vec<_>>());
            None
        }
        Err(_) => None,
    };
    // Methods from `all` that cannot run here are left out, unless no method would remain.
    let mut left_out: Vec<(String, Diagnostic)> = Vec::new();
    for side in sides.iter().filter(|side| side.from_all) {
        let written = one(&base, &side.name, side.keys.clone(), request);
        let problem = match written {
            Ok(written) => rules::check(&written, &Machine::detect()).into_iter().next().map(|found| found.diagnostic),
            Err(Error::Config(problems)) => problems.into_iter().next(),
            Err(_) => None,
        };
        left_out.extend(problem.map(|problem| (side.name.clone(), problem)));
    }
    if left_out.len() == sides.len() {
        left_out.clear();
    }
    sides.retain(|side| !left_out.iter().any(|(name, _)| *name == side.name));
    for side in &sides {
        runs.extend(add(&side.name, side.keys.clone()));
    }
    let mut judge = runs.iter().find(|written: &&ConfigWithLocations| written.config.method.is_online()).cloned();
    if judge.is_none() && has_reward && !sides.iter().any(|side| is_online(&side.name)) {
        judge = add(JUDGE, Node::empty());
    }
    let mut reached: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
    reached.extend(left_out.iter().map(|(name, _)| name.as_str()));
    reached.extend(judge.as_ref().map(|judge| judge.config.method.name()));
    problems.extend(unreached(request.flags, &reached));
    if !problems.is_empty() {
        return Err(Error::Config(problems));
    }
    let first = &runs.first().expect("there is a method").config;
    let output_dir = first.output_dir.clone().unwrap_or_else(|| free_directory("compare", &first.model));
    for run in &mut runs {
        run.config.output_dir = Some(output_dir.join(run.config.method.name()));
    }
    Ok(ComparisonDefinition { output_dir, runs, judge, left_out, notes: Vec::new() })
}

fn is_of_online(flag: &Flag) -> bool {
    flag.spec.key.split('.').next().is_some_and(|key| ONLINE_KEYS.contains(&key))
}

fn is_online(name: &str) -> bool {
    MethodConfig::named(name).is_some_and(|method| method.is_online())
}

/// Resolves the run of one method.
fn one(base: &Node, name: &str, mut keys: Node, request: &ComparisonRequest<'_>) -> Result<ConfigWithLocations> {
    let is_online = is_online(name);
    let mut base = base.clone();
    if !is_online {
        // The rewards only measure this method's policy. It is not trained on them.
        ONLINE_KEYS.iter().for_each(|key| drop(base.take(key)));
    }
    let own = keys.take("train");
    let location = keys.location.clone();
    let side =
        Node { value: Value::Map(vec![Entry { key: name.into(), location: location.clone(), node: keys }]), location };
    let mut over = vec![Entry { key: "method".into(), location: side.location.clone(), node: side }];
    over.extend(own.map(|entry| Entry { key: "train".into(), location: entry.location, node: entry.node }));
    let schema = Schema::run_config();
    let base = overlay(&schema, schema.root(), base, Node { value: Value::Map(over), location: None });
    let belongs = |flag: &&Flag| match of_method(flag) {
        Some(method) => method == name,
        None => is_online || !is_of_online(flag),
    };
    let flags: Vec<Flag> = request.flags.iter().filter(belongs).cloned().collect();
    let request = Request { method: Some(name), flags: &flags, registry: request.registry, ..Request::default() };
    resolve(base, None, &request)
}

/// A method to train.
struct MethodEntry {
    name: String,
    /// Keys of the method in the file.
    keys: Node,
    /// Whether it comes from `all` and was not named.
    from_all: bool,
}

/// Returns the methods to train.
fn methods(written: Option<Entry>, requested: &[String]) -> Result<Vec<MethodEntry>> {
    let location = written.as_ref().and_then(|entry| entry.location.clone());
    let sides: Vec<(String, Option<Location>, Node)> = match written.map(|entry| entry.node.value) {
        None => Vec::new(),
        Some(Value::Map(entries)) => {
            entries.into_iter().map(|entry| (entry.key, entry.location, mapping(entry.node))).collect()
        }
        Some(Value::List(items)) => items
            .into_iter()
            .map(|item| match item.value {
                Value::Scalar { text, .. } => Ok((text, item.location, Node::empty())),
                _ => Err(refuse(
                    "a list of `methods` can contain only names".into(),
                    item.location,
                    "write `[dpo, ppo, grpo]`",
                )),
            })
            .collect::<Result<_>>()?,
        Some(Value::Scalar { text, .. }) if text == ALL => vec![(text, location.clone(), Node::empty())],
        Some(Value::Scalar { .. }) => {
            let message = "`methods` is a word, but a mapping or a list is needed";
            return Err(refuse(message.into(), location, "write `methods: { dpo: {}, ppo: {} }`, or `methods: all`"));
        }
    };
    let sides: Vec<_> = sides
        .into_iter()
        .flat_map(|(name, location, keys)| {
            let from_all = name == ALL;
            each_of(&name).map(move |name| (MethodEntry { name, keys: keys.clone(), from_all }, location.clone()))
        })
        .collect();
    for (side, location) in &sides {
        known(&side.name, location.clone())?;
    }
    let chosen: Vec<MethodEntry> = match requested {
        [] => sides.into_iter().map(|(side, _)| side).collect(),
        _ => {
            let keys = |name: &str| {
                sides.iter().find(|(side, _)| side.name == name).map_or(Node::empty(), |(side, _)| side.keys.clone())
            };
            let location = || Some(Location::Flag("--methods".into()));
            let names =
                requested.iter().flat_map(|requested| each_of(requested).map(move |name| (name, requested == ALL)));
            let side = |(name, from_all): (String, bool)| {
                known(&name, location()).map(|()| MethodEntry { keys: keys(&name), name, from_all })
            };
            names.map(side).collect::<Result<_>>()?
        }
    };
    if chosen.is_empty() {
        return Err(refuse(
            "no methods to compare".into(),
            location,
            "`--methods dpo,ppo,grpo`, or `methods:` in the file",
        ));
    }
    let mut seen = Vec::new();
    for MethodEntry { name, .. } in &chosen {
        if seen.contains(&name) {
            let message = format!("`{name}` is listed twice in the methods");
            return Err(refuse(message, location, "name each method once"));
        }
        seen.push(name);
    }
    Ok(chosen)
}

/// Name for every method that trains a policy.
const ALL: &str = "all";

/// Returns the methods that a name in `methods` stands for.
fn each_of(name: &str) -> impl Iterator<Item = String> + use<> {
    let names: Vec<String> = match name {
        ALL => MethodConfig::all().iter().filter(|method| method.makes_policy()).map(|m| m.name().to_owned()).collect(),
        _ => vec![name.to_owned()],
    };
    names.into_iter()
}

fn known(name: &str, location: Option<Location>) -> Result<()> {
    let message = match MethodConfig::named(name) {
        Some(method) if method.makes_policy() => return Ok(()),
        Some(_) => format!("`{name}` does not train a policy, and only policies can be compared"),
        None => format!("there is no method `{name}` to compare"),
    };
    Err(refuse(message, location, &format!("the methods are {}", names("and", MethodConfig::makes_policy))))
}

/// `ppo:` without a value means PPO with its defaults.
fn mapping(node: Node) -> Node {
    if node.is_null() { Node { location: node.location, ..Node::empty() } } else { node }
}

fn refuse(message: String, location: Option<Location>, hint: &str) -> Error {
    Error::Config(vec![Diagnostic { message, locations: location.into_iter().collect(), hint: Some(hint.into()) }])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
model: gpt2
data: pairs.jsonl
output_dir: runs/three
reward: { model: runs/reward/model }
methods:
  dpo: { beta: 0.3, train: { learning_rate: 1e-5 } }
  ppo:
  grpo: { group_size: 4 }
train: { max_steps: 100, learning_rate: 2e-6 }
";

    #[test]
    fn one_file_becomes_a_run_a_method() {
        let comparison = ComparisonDefinition::parse(FILE).unwrap();
        let names: Vec<_> = comparison.runs.iter().map(|run| run.config.method.name()).collect();
        assert_eq!((names, comparison.output_dir), (vec!["dpo", "ppo", "grpo"], PathBuf::from("runs/three")));
        let [dpo, ppo, grpo] = &comparison.runs[..] else { panic!("three runs") };
        assert_eq!(dpo.config.output_dir.as_deref(), Some(Path::new("runs/three/dpo")));
        assert!(dpo.config.reward.is_none() && ppo.config.reward.is_some());
        assert_eq!([dpo, ppo].map(|run| run.config.train.learning_rate), [Some(1e-5), Some(2e-6)]);
        assert_eq!([dpo, grpo].map(|run| run.config.train.max_steps), [Some(100), Some(100)]);
        assert!(matches!(&dpo.config.method, MethodConfig::Dpo(config) if config.beta == 0.3));
        assert!(matches!(&grpo.config.method, MethodConfig::Grpo(config) if config.rollouts.group_size == 4));
        assert_eq!(comparison.judge.as_ref().map(|run| run.config.method.name()), Some("ppo"));
    }

    #[test]
    fn all_stands_for_every_method_that_makes_a_policy() {
        let names = |comparison: &ComparisonDefinition| -> Vec<&str> {
            comparison.runs.iter().map(|run| run.config.method.name()).collect()
        };
        let every: Vec<MethodConfig> = MethodConfig::all().into_iter().filter(MethodConfig::makes_policy).collect();
        let every: Vec<&str> = every.iter().map(MethodConfig::name).collect();
        assert!(every.len() >= 5 && !every.contains(&"reward"), "{every:?}");
        let start = "model: gpt2\ndata: pairs.jsonl\nreward: { rule: { substring: happy } }\n";
        // Methods that cannot run are left out, with the reason. A method that the user named is an error instead.
        let possible: Vec<&str> = every.iter().copied().filter(|name| *name != "distill").collect();
        for text in ["methods: all\n", "methods: [all]\n"] {
            let comparison = ComparisonDefinition::parse(&format!("{start}{text}")).unwrap();
            assert_eq!(names(&comparison), possible);
            let left: Vec<(&str, &str)> =
                comparison.left_out.iter().map(|(name, why)| (name.as_str(), why.message.as_str())).collect();
            assert!(matches!(left[..], [("distill", why)] if why.contains("teacher_model")), "{left:?}");
        }
        let with = format!("{start}methods: {{ all: {{}} }}\n");
        assert!(ComparisonDefinition::parse(&with).is_ok());
        // A problem in all methods leaves nothing to compare, and is reported.
        let wrong = ComparisonDefinition::parse(&format!("{start}methods: all\ntrain: {{ batch_size: 0 }}\n"));
        assert!(wrong.is_err() || wrong.is_ok_and(|found| found.left_out.is_empty()));
        // With the flag, each method keeps its keys from the file.
        let (base, _) = file_tree("compare.yml".as_ref(), FILE).unwrap();
        let request = ComparisonRequest { methods: &["all".to_owned()], ..ComparisonRequest::default() };
        let comparison = resolve_all(base, &request).unwrap();
        assert_eq!(names(&comparison), possible);
        assert!(
            comparison.runs.iter().any(|run| matches!(&run.config.method, MethodConfig::Dpo(dpo) if dpo.beta == 0.3))
        );
        let twice = ComparisonDefinition::parse(&format!("{start}methods: [all, dpo]\n")).unwrap_err();
        assert!(twice.to_string().contains("`dpo` is listed twice"), "{twice}");
    }

    #[test]
    fn a_reward_alone_measures_offline_methods() {
        let file = "model: gpt2\ndata: pairs.jsonl\nreward: { rule: { substring: happy } }\nmethods: [dpo]\n";
        let comparison = ComparisonDefinition::parse(file).unwrap();
        assert!(comparison.judge.is_some_and(|judge| judge.config.reward.is_some()));
        let without = ComparisonDefinition::parse("model: gpt2\ndata: pairs.jsonl\nmethods: [dpo]\n").unwrap();
        assert_eq!(without.judge, None);
        assert!(without.output_dir.starts_with("runs"));
    }

    #[test]
    fn problems_are_told_once_and_where() {
        let messages = |text: &str| match ComparisonDefinition::parse(text) {
            Err(Error::Config(problems)) => problems.iter().map(|problem| problem.message.clone()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let start = "model: gpt2\ndata: d\n";
        assert_eq!(
            messages(&format!("{start}method: {{ ppo: {{}} }}")),
            ["a comparison names its methods under `methods`, not under `method`"]
        );
        assert_eq!(messages(start), ["no methods to compare"]);
        assert_eq!(messages(&format!("{start}methods: {{ dppo: {{}} }}")), ["there is no method `dppo` to compare"]);
        assert_eq!(
            messages(&format!("{start}methods: [dpo, reward]")),
            ["`reward` does not train a policy, and only policies can be compared"]
        );
        assert_eq!(messages(&format!("{start}methods: [dpo, dpo]")), ["`dpo` is listed twice in the methods"]);
        let shared =
            messages(&format!("{start}reward: {{ model: m }}\nmethods: [dpo, ppo, grpo]\ntrain: {{ max_stepz: 3 }}"));
        assert_eq!(shared.len(), 1, "{shared:?}");
    }
}

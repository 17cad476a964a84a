//! One file for many runs: a configuration with `sweep`, which lists the values to vary.
//!
//! ```yaml
//! model: gpt2
//! data: { task: increasing_numbers }
//! method: { ppo: { max_new_tokens: 20 } }
//! reward: { metric: { increasing_numbers: { min_tokens: 20 } } }
//! train: { max_steps: 50 }
//! sweep:
//!   grid: { train.learning_rate: [1e-6, 1e-5], method.ppo.kl.coefficient: [0.01, 0.1] }
//!   seeds: [1, 2, 3]
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rand::Rng;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::config_with_locations::ConfigWithLocations;
use super::flags::{Flag, move_to, overlay, set};
use super::load::{Request, file_tree, resolve, text};
use super::node::{Node, Value, parse};
use super::schema::{Schema, Shape};
use crate::error::{Diagnostic, Error, Location, Result};
use crate::rng::{Purpose, Seed, Stream};

/// Keys of `sweep`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping")]
struct SweepConfig {
    /// Keys with lists of values. Every combination is a point.
    #[serde(default)]
    grid: Map<String, Json>,
    /// Points drawn at random.
    random: Option<RandomConfig>,
    /// Seeds. Each point runs with every seed. Default: `train.seed`.
    #[serde(default)]
    seeds: Vec<u64>,
    /// Metric to compare. Default: the one that selects `best/`.
    metric: Option<String>,
    /// Whether larger values of the metric are better. Default: as for `best/` if it is the metric that selects it, else by its name.
    greater_is_better: Option<bool>,
    /// Number of runs at the same time. Default 1.
    #[serde(default = "one")]
    at_once: usize,
}

fn one() -> usize {
    1
}

/// Keys of `sweep.random`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping")]
struct RandomConfig {
    /// Number of points.
    points: usize,
    /// Keys with their distributions: a list, `{ uniform: [low, high] }` or `{ log_uniform: [low, high] }`.
    keys: Map<String, Json>,
    /// Seed of the random points. Default 42.
    #[serde(default = "forty_two")]
    seed: u64,
}

fn forty_two() -> u64 {
    42
}

/// Maximum number of runs in a sweep.
const RUNS_MAX: usize = 10_000;

/// A sweep as written.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepDefinition {
    /// Output directory: `output_dir`, or `runs/` with the file's name, so that the same command finds its earlier runs.
    pub output_dir: PathBuf,
    /// Metric to compare; `None` means the one that selects `best/`.
    pub metric: Option<String>,
    /// Whether larger values of the metric are better; `None`: as for `best/` if it is the metric that selects it, else by its name.
    pub greater_is_better: Option<bool>,
    /// Number of runs at the same time.
    pub at_once: usize,
    /// Points to try.
    pub points: Vec<SweepPoint>,
    /// Notes on the file, as [`ConfigWithLocations::notes`].
    pub notes: Vec<Diagnostic>,
}

/// A combination of values.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPoint {
    /// Name of its directory: a number and the values.
    pub name: String,
    /// Varied keys with their values.
    pub settings: Vec<(String, String)>,
    /// One run per seed, each in its own directory.
    pub runs: Vec<ConfigWithLocations>,
}

impl SweepDefinition {
    /// Reads a file and applies flags to it, once for each run.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem, each once.
    pub fn load(file: &Path, flags: &[Flag]) -> Result<Self> {
        Self::of_file(file, &text(file)?, flags)
    }

    /// Reads `text`, the content of the configuration file `file`, and applies flags to it.
    pub(super) fn of_file(file: &Path, text: &str, flags: &[Flag]) -> Result<Self> {
        let (base, notes) = file_tree(file, text)?;
        let unnamed = Path::new("runs").join(file.file_stem().unwrap_or("sweep".as_ref()));
        Ok(Self { notes, ..Self::of(base, flags, &unnamed)? })
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// As [`SweepDefinition::load`].
    pub fn parse(text: &str) -> Result<Self> {
        let (base, notes) = file_tree("sweep.yml".as_ref(), text)?;
        Ok(Self { notes, ..Self::of(base, &[], "runs/sweep".as_ref())? })
    }

    fn of(mut base: Node, flags: &[Flag], unnamed: &Path) -> Result<Self> {
        let Some(entry) = base.take("sweep") else {
            let hint = "write `sweep: { grid: { train.learning_rate: [1e-6, 1e-5] }, seeds: [1, 2] }` next to the keys \
                        of a run";
            return Err(refused(Diagnostic {
                message: "the file has no `sweep`".into(),
                locations: Vec::new(),
                hint: Some(hint.into()),
            }));
        };
        let wrong = |message: String| {
            refused(Diagnostic { message, locations: entry.location.clone().into_iter().collect(), hint: None })
        };
        let config: SweepConfig =
            serde_json::from_value(entry.node.to_json()).map_err(|error| wrong(format!("`sweep`: {error}")))?;
        check(&config).map_err(wrong)?;
        let mut points = grid(&config.grid).map_err(wrong)?;
        if let Some(random) = &config.random {
            points = if config.grid.is_empty() { Vec::new() } else { points };
            let random = drawn(random, &points).map_err(wrong)?;
            points.extend(random);
        }
        let seeds: Vec<Option<u64>> =
            if config.seeds.is_empty() { vec![None] } else { config.seeds.iter().copied().map(Some).collect() };
        if points.len().saturating_mul(seeds.len()) > RUNS_MAX {
            return Err(wrong(format!(
                "`sweep` has {} points × {} seeds, more than {RUNS_MAX} runs",
                points.len(),
                seeds.len()
            )));
        }
        let locations = locations(&entry.node);
        let digits = points.len().to_string().len();
        let (mut found, mut problems, mut output_dir): (Vec<SweepPoint>, Vec<Diagnostic>, Option<PathBuf>) =
            Default::default();
        for (i, settings) in points.into_iter().enumerate() {
            let shown: Vec<(String, String)> = settings
                .iter()
                .map(|(key, value)| (key.clone(), value.to_string().trim_matches('"').to_owned()))
                .collect();
            let name = point_name(i + 1, digits, &shown);
            let mut runs = Vec::new();
            for seed in &seeds {
                match run(&base, &settings, &locations, *seed, flags) {
                    Ok(mut written) => {
                        let config = &mut written.config;
                        let top = output_dir
                            .get_or_insert_with(|| config.output_dir.clone().unwrap_or_else(|| unnamed.to_owned()));
                        config.output_dir = Some(top.join(&name).join(format!("seed-{}", config.train.seed)));
                        runs.push(written);
                    }
                    // A problem in shared keys occurs in every run. It is reported once.
                    Err(Error::Config(wrong)) => wrong.into_iter().for_each(|problem| {
                        if !problems.contains(&problem) {
                            problems.push(problem);
                        }
                    }),
                    Err(other) => return Err(other),
                }
            }
            found.push(SweepPoint { name, settings: shown, runs });
        }
        if !problems.is_empty() {
            return Err(Error::Config(problems));
        }
        let output_dir = output_dir.ok_or_else(|| wrong("`sweep` has no values to try".into()))?;
        let SweepConfig { metric, greater_is_better, at_once, .. } = config;
        Ok(Self { output_dir, metric, greater_is_better, at_once, points: found, notes: Vec::new() })
    }
}

/// Rejects identical runs, directories outside the sweep's, and a sweep that may run nothing.
fn check(config: &SweepConfig) -> Result<(), String> {
    if config.at_once == 0 {
        return Err("`sweep.at_once` is 0, but at least 1 run must be trained at a time".into());
    }
    let of_grid = config.grid.keys().map(|key| ("grid", key));
    let of_random = config.random.iter().flat_map(|random| random.keys.keys().map(|key| ("random.keys", key)));
    for (part, key) in of_grid.chain(of_random) {
        match key.as_str() {
            "output_dir" => {
                return Err(format!(
                    "`sweep.{part}` varies `output_dir`, but every run has a directory below that of the sweep"
                ));
            }
            "train.seed" if !config.seeds.is_empty() => {
                return Err(format!(
                    "`sweep.{part}` varies `train.seed`, and so does `sweep.seeds`: only one of them can"
                ));
            }
            _ => {}
        }
    }
    for (key, values) in config.grid.iter().filter_map(|(key, values)| Some((key, values.as_array()?))) {
        let mut known = BTreeSet::new();
        if let Some(twice) = values.iter().find(|value| !known.insert(canonical(value))) {
            return Err(format!("`sweep.grid.{key}` has {twice} twice, which would be the same run"));
        }
    }
    if let Some((_, twice)) = config.seeds.iter().enumerate().find(|(i, seed)| config.seeds[..*i].contains(seed)) {
        return Err(format!("`sweep.seeds` has {twice} twice, which would be the same run"));
    }
    match &config.random {
        Some(random) if random.keys.is_empty() => {
            Err("`sweep.random.keys` is empty, so all points would be the same".into())
        }
        _ => Ok(()),
    }
}

type Settings = Vec<(String, Json)>;

/// Returns every combination. The last key varies fastest.
fn grid(keys: &Map<String, Json>) -> Result<Vec<Settings>, String> {
    let mut points: Vec<Settings> = vec![Vec::new()];
    for (key, values) in keys {
        let values = match values {
            Json::Array(values) if !values.is_empty() => values,
            _ => return Err(format!("`sweep.grid.{key}` is {values}, but a list of values is needed")),
        };
        if points.len().saturating_mul(values.len()) > RUNS_MAX {
            return Err(format!("`sweep.grid` has more than {RUNS_MAX} points"));
        }
        let with = |point: &Settings, value: &Json| [point.as_slice(), &[(key.clone(), value.clone())]].concat();
        points = points.iter().flat_map(|point| values.iter().map(move |value| with(point, value))).collect();
    }
    Ok(points)
}

/// Maximum number of draws for a point that differs from all others. With this many, each of [`RUNS_MAX`] different points is found.
const DRAWS_MAX: usize = 100_000;

/// Draws points that differ from each other and from `others`.
fn drawn(random: &RandomConfig, others: &[Settings]) -> Result<Vec<Settings>, String> {
    if random.points > RUNS_MAX {
        return Err(format!("`sweep.random.points` is {}, more than {RUNS_MAX} runs", random.points));
    }
    let schema = Schema::run_config();
    let mut known: BTreeSet<Vec<String>> = others.iter().map(|point| identity(point)).collect();
    let point = |i: usize| {
        let mut stream = Seed(random.seed).stream(Purpose::Sweep, 0, i as u64);
        for _ in 0..DRAWS_MAX {
            let settings = draw(random, &schema, &mut stream)?;
            if known.insert(identity(&settings)) {
                return Ok(settings);
            }
        }
        Err(format!(
            "`sweep.random.points` is {}, but only {i} different points were found: lower it, or give the keys more values",
            random.points
        ))
    };
    (0..random.points).map(point).collect()
}

/// Returns the same for points that are the same run.
fn identity(point: &[(String, Json)]) -> Vec<String> {
    let mut settings: Vec<String> = point.iter().map(|(key, value)| format!("{key}={}", canonical(value))).collect();
    settings.sort_unstable();
    settings
}

/// Returns the same text for values that are the same number, such as 1 and 1.0.
fn canonical(value: &Json) -> String {
    let whole = value.as_f64().filter(|number| value.is_f64() && number.fract() == 0.0 && number.abs() < 1e15);
    whole.map_or_else(|| value.to_string(), |number| (number as i64).to_string())
}

/// Draws one point.
fn draw(random: &RandomConfig, schema: &Schema, stream: &mut Stream) -> Result<Settings, String> {
    let one = |(key, from): (&String, &Json)| {
        let is_one = from.as_object().is_some_and(|from| from.len() == 1);
        let bounds = |name: &str| match from.get(name).filter(|_| is_one).and_then(Json::as_array).map(Vec::as_slice) {
            Some([low, high]) => low.as_f64().zip(high.as_f64()).filter(|(low, high)| (high - low).is_finite()),
            _ => None,
        };
        let refused = |why: &str| Err(format!("`sweep.random.keys.{key}` is {from}, but {why}"));
        let wrong = || {
            format!(
                "`sweep.random.keys.{key}` is {from}, but a list, `{{ uniform: [low, high] }}` or `{{ log_uniform: [low, high] }}` \
                 is needed"
            )
        };
        let (uniform, log_uniform) = (bounds("uniform"), bounds("log_uniform"));
        if uniform.or(log_uniform).is_some() && is_whole(schema, key) {
            return refused(&format!("`{key}` is a whole number: give a list, such as `[1, 2, 4]`"));
        }
        match (uniform.or(log_uniform), log_uniform) {
            (_, Some((low, high))) if low.min(high) <= 0.0 => {
                return refused("both bounds of `log_uniform` must be above 0");
            }
            (Some((low, high)), _) if low > high => return refused("the lower bound comes first"),
            (Some((low, high)), _) if low >= high => {
                return refused("the bounds are equal: give a list of one value");
            }
            _ => {}
        }
        let value = match (from, uniform, log_uniform) {
            (Json::Array(values), ..) if !values.is_empty() => values[stream.random_range(0..values.len())].clone(),
            (_, Some((low, high)), _) => rounded(stream.random_range(low..high), low, high),
            (_, _, Some((low, high))) => rounded(stream.random_range(low.ln()..high.ln()).exp(), low, high),
            _ => return Err(wrong()),
        };
        Ok((key.clone(), value))
    };
    random.keys.iter().map(one).collect()
}

/// Returns true if `key` takes only whole numbers.
fn is_whole(schema: &Schema, key: &str) -> bool {
    schema.field(key).is_some_and(|field| matches!(schema.resolve(&field.shape), Shape::Integer { .. }))
}

/// Rounds to three significant digits, so that names stay short; in a narrow range from `low` to `high`, to as many more as
/// both bounds share.
fn rounded(value: f64, low: f64, high: f64) -> Json {
    let same = (low.abs().max(high.abs()) / (high - low)).log10().floor().clamp(0.0, 12.0) as usize;
    format!("{value:.*e}", 2 + same).parse::<f64>().map_or(value, |value| value.clamp(low, high)).into()
}

/// Locations of values by key and value. Without a value: that of a key.
type Locations = BTreeMap<(String, Option<String>), Location>;

/// Returns where `sweep` lists each value, and where it gives each key.
fn locations(sweep: &Node) -> Locations {
    let mut found = Locations::new();
    for part in ["grid", "random.keys"] {
        let Some((Node { value: Value::Map(entries), .. }, _)) = sweep.at(part) else { continue };
        for entry in entries {
            let mut add = |value: Option<String>, location: &Option<Location>| {
                if let Some(location) = location {
                    found.insert((entry.key.clone(), value), location.clone());
                }
            };
            add(None, &entry.location);
            if let Value::List(items) = &entry.node.value {
                items.iter().for_each(|item| add(Some(item.to_json().to_string()), &item.location));
            }
        }
    }
    found
}

fn run(
    base: &Node,
    settings: &Settings,
    locations: &Locations,
    seed: Option<u64>,
    flags: &[Flag],
) -> Result<ConfigWithLocations> {
    let mut over = Node::empty();
    let seed = seed.map(|seed| ("train.seed".to_owned(), Json::from(seed)));
    for (key, value) in settings.iter().chain(&seed) {
        let mut node = parse("".as_ref(), &value.to_string()).map_err(refused)?;
        let location = |value: Option<String>| locations.get(&(key.clone(), value)).cloned();
        move_to(&mut node, &location(Some(value.to_string())).or_else(|| location(None)));
        set(&mut over, key, node, &None);
    }
    let schema = Schema::run_config();
    let base = overlay(&schema, schema.root(), base.clone(), over);
    resolve(base, None, &Request { flags, ..Request::default() })
}

/// Returns a name such as `03-learning_rate=1e-6,coefficient=0.1`, up to a maximum length.
fn point_name(number: usize, digits: usize, settings: &[(String, String)]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let part = |(key, value): &(String, String)| {
        let key = key.rsplit('.').next().unwrap_or(key);
        format!("{key}={}", value.chars().map(plain).take(24).collect::<String>())
    };
    let parts: Vec<String> = settings.iter().map(part).collect();
    let mut name = format!("{number:0digits$}");
    for (i, part) in parts.iter().enumerate() {
        if name.len() + part.len() > 100 {
            break;
        }
        name += if i == 0 { "-" } else { "," };
        name += part;
    }
    name
}

fn refused(problem: Diagnostic) -> Error {
    Error::Config(vec![problem])
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "model: m\ndata: d\noutput_dir: out\nmethod: { grpo: {} }\nreward: { rule: { substring: a } }\n";

    #[test]
    fn a_grid_is_every_combination_with_every_seed() {
        let text = format!(
            "{BASE}sweep: {{ grid: {{ train.learning_rate: [1e-6, 2e-6], method.grpo.group_size: [2, 4] }}, seeds: [1, 2] }}\n"
        );
        let sweep = SweepDefinition::parse(&text).expect("it reads");
        let names: Vec<&str> = sweep.points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "1-learning_rate=1e-6,group_size=2",
                "2-learning_rate=1e-6,group_size=4",
                "3-learning_rate=2e-6,group_size=2",
                "4-learning_rate=2e-6,group_size=4"
            ]
        );
        let run = &sweep.points[2].runs[1].config;
        assert_eq!((run.train.learning_rate, run.train.seed), (Some(2e-6), 2));
        assert_eq!(run.output_dir.as_deref(), Some(Path::new("out/3-learning_rate=2e-6,group_size=2/seed-2")));
        assert_eq!(sweep.points.iter().map(|point| point.runs.len()).sum::<usize>(), 8);
    }

    #[test]
    fn points_are_drawn_by_the_seed_within_their_bounds() {
        let text = format!(
            "{BASE}sweep: {{ random: {{ points: 30, keys: {{ train.learning_rate: {{ log_uniform: [1e-6, 1e-4] }}, \
             train.batch_size: [4, 8], method.grpo.temperature: {{ uniform: [0.5, 1] }} }} }} }}\n"
        );
        let (once, again) =
            (SweepDefinition::parse(&text).expect("it reads"), SweepDefinition::parse(&text).expect("it reads"));
        assert_eq!(once, again);
        let rates: Vec<f64> = once.points.iter().filter_map(|point| point.runs[0].config.train.learning_rate).collect();
        assert!(rates.len() == 30 && rates.iter().all(|rate| (1e-6..=1e-4).contains(rate)));
        // Half of the logarithms are below the geometric mean.
        let low = rates.iter().filter(|rate| **rate < 1e-5).count();
        assert!((7..=23).contains(&low), "{low}");
        let sizes: Vec<usize> = once.points.iter().map(|point| point.runs[0].config.train.batch_size).collect();
        assert!(sizes.contains(&4) && sizes.contains(&8));
    }

    #[test]
    fn drawn_points_differ_from_each_other_and_from_the_grid() {
        let sizes = |points: usize, grid: &str| {
            let text = format!(
                "{BASE}sweep: {{ {grid}random: {{ points: {points}, keys: {{ train.batch_size: [1, 2, 4, 8, 16] }} }} }}\n"
            );
            SweepDefinition::parse(&text).map(|sweep| {
                let mut sizes: Vec<usize> =
                    sweep.points.iter().map(|point| point.runs[0].config.train.batch_size).collect();
                sizes.sort_unstable();
                sizes
            })
        };
        assert_eq!(sizes(5, "").expect("there are as many"), [1, 2, 4, 8, 16]);
        assert_eq!(sizes(4, "grid: { train.batch_size: [4] }, ").expect("there are as many"), [1, 2, 4, 8, 16]);
        let Err(Error::Config(problems)) = sizes(6, "") else { panic!("there are only five") };
        assert_eq!(
            problems[0].message,
            "`sweep.random.points` is 6, but only 5 different points were found: lower it, or give the keys more values"
        );
    }

    #[test]
    fn a_narrow_range_keeps_the_digits_that_differ() {
        // With three digits, 0.9995 and above would become 1, which is outside the range.
        let text = format!(
            "{BASE}sweep: {{ random: {{ points: 40, keys: {{ train.learning_rate: {{ uniform: [0.9991, 0.9999] }}, \
             train.weight_decay: {{ uniform: [-1e308, 1e308] }} }} }} }}\n"
        );
        let Err(Error::Config(problems)) = SweepDefinition::parse(&text) else {
            panic!("a range without end is refused")
        };
        assert!(problems[0].message.starts_with("`sweep.random.keys.train.weight_decay` is"), "{problems:?}");
        let sweep = SweepDefinition::parse(&text.replace("[-1e308, 1e308]", "[0, 0.1]")).expect("it reads");
        let rates: Vec<f64> =
            sweep.points.iter().filter_map(|point| point.runs[0].config.train.learning_rate).collect();
        assert!(rates.len() == 40 && rates.iter().all(|rate| (0.9991..=0.9999).contains(rate)), "{rates:?}");
        let different: std::collections::BTreeSet<String> = rates.iter().map(f64::to_string).collect();
        assert!(different.len() > 30, "{different:?}");
    }

    #[test]
    fn a_problem_points_at_the_value_of_the_sweep() {
        let text = format!(
            "{BASE}train: {{ learning_rate: 1e-3 }}\nsweep:\n  grid:\n    train.learning_rate: ['1e-3', 0.001]\n"
        );
        let Err(Error::Config(problems)) = SweepDefinition::parse(&text) else { panic!("a word is no number") };
        assert!(problems.len() == 1 && problems[0].message.contains("`1e-3`"), "{problems:?}");
        assert!(matches!(problems[0].locations[..], [Location::File { line: 9, .. }]), "{problems:?}");
    }

    #[test]
    fn mistakes_are_told_once() {
        let messages = |sweep: &str| match SweepDefinition::parse(&format!("{BASE}{sweep}")) {
            Err(Error::Config(problems)) => problems.iter().map(|problem| problem.message.clone()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(messages(""), ["the file has no `sweep`"]);
        for (sweep, expected) in [
            ("seeds: [1, 2, 1]", "`sweep.seeds` has 1 twice, which would be the same run"),
            (
                "grid: { train.seed: [1, 2] }, seeds: [5]",
                "`sweep.grid` varies `train.seed`, and so does `sweep.seeds`: only one of them can",
            ),
            (
                "random: { points: 1, keys: { output_dir: [a] } }",
                "`sweep.random.keys` varies `output_dir`, but every run has a directory below that of the sweep",
            ),
            (
                "grid: { train.batch_size: [4, 8, 4] }",
                "`sweep.grid.train.batch_size` has 4 twice, which would be the same run",
            ),
            (
                "grid: { train.weight_decay: [1, 0.5, 1.0] }",
                "`sweep.grid.train.weight_decay` has 1.0 twice, which would be the same run",
            ),
            (
                "random: { points: 20000, keys: { train.batch_size: [4] } }",
                "`sweep.random.points` is 20000, more than 10000 runs",
            ),
            ("random: 5", "`sweep`: invalid type: integer `5`, expected a mapping"),
            (
                "random: { points: 2, keys: { train.epochs: { uniform: [1, 2], log_uniform: [1, 2] } } }",
                "`sweep.random.keys.train.epochs` is {\"uniform\":[1,2],\"log_uniform\":[1,2]}, but a list, `{ uniform: [low, high] }` \
                 or `{ log_uniform: [low, high] }` is needed",
            ),
            ("seeds: [1], at_once: 0", "`sweep.at_once` is 0, but at least 1 run must be trained at a time"),
            ("random: { points: 2, keys: {} }", "`sweep.random.keys` is empty, so all points would be the same"),
        ] {
            assert_eq!(messages(&format!("sweep: {{ {sweep} }}")), [expected]);
        }
        assert_eq!(
            messages("sweep: { grid: { train.seed: 3 } }"),
            ["`sweep.grid.train.seed` is 3, but a list of values is needed"]
        );
        assert_eq!(messages("sweep: { grid: { train.sed: [1, 2] }, seeds: [1, 2] }"), ["unknown key `sed` in `train`"]);
        let found = messages("sweep: { gird: {} }");
        assert!(found[0].starts_with("`sweep`: unknown field `gird`"), "{found:?}");
        for (key, from, why) in [
            ("train.learning_rate", "log_uniform: [0, 1]", "both bounds of `log_uniform` must be above 0"),
            ("train.learning_rate", "log_uniform: [1e-3, 1e-5]", "the lower bound comes first"),
            ("train.learning_rate", "uniform: [2, 1]", "the lower bound comes first"),
            ("train.learning_rate", "uniform: [1, 1]", "the bounds are equal: give a list of one value"),
            (
                "train.batch_size",
                "uniform: [1, 9]",
                "`train.batch_size` is a whole number: give a list, such as `[1, 2, 4]`",
            ),
        ] {
            let found = messages(&format!("sweep: {{ random: {{ points: 2, keys: {{ {key}: {{ {from} }} }} }} }}"));
            let start = format!("`sweep.random.keys.{key}` is {{\"");
            assert!(found.len() == 1 && found[0].starts_with(&start), "{found:?}");
            assert!(found[0].ends_with(&format!("]}}, but {why}")), "{found:?}");
        }
        let many = "sweep: { grid: { train.seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], train.batch_size: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], \
                    train.max_length: [11, 12, 13, 14, 15, 16, 17, 18, 19, 20], train.threads: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], \
                    train.logging_steps: [1, 2] } }";
        assert_eq!(messages(many), ["`sweep.grid` has more than 10000 points"]);
    }
}

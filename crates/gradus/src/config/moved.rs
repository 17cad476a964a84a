//! Keys that have moved: files with the old places still read, with a note that names the new ones.

use std::path::Path;
use std::sync::LazyLock;

use super::MethodConfig;
use super::flags::set;
use super::node::{Node, Value};
use super::schema::Schema;
use super::write::MARK;
use crate::error::{Diagnostic, Location};

/// Old and new places. `*` is a method, if it has the new key.
const MOVED: [(&str, &str); 8] = [
    ("method.*.value_clip", "method.*.quirks.value_clip"),
    ("method.*.target_kl_over", "method.*.quirks.target_kl_over"),
    ("method.*.clip_jointly", "method.*.quirks.clip_jointly"),
    ("method.*.part_size", "method.*.quirks.part_size"),
    ("method.*.sum_parts", "method.*.quirks.sum_parts"),
    ("method.*.length_weights", "method.*.quirks.length_weights"),
    ("method.*.lr_per_step", "method.*.quirks.lr_per_step"),
    ("method.*.whitening", "method.*.quirks.whitening"),
];

/// [`MOVED`], with every method that has the new key.
static PAIRS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let schema = Schema::run_config();
    let methods = MethodConfig::all();
    let pairs = MOVED.iter().flat_map(|(old, new)| {
        methods.iter().map(|method| (old.replace('*', method.name()), new.replace('*', method.name())))
    });
    pairs.filter(|(_, new)| schema.field(new).is_some()).collect()
});

/// Moves the keys of the file `path` to their new places, and returns the note about them. The keys keep their places in
/// the file. Of a resolved file (`is_resolved`), the note names only the keys that the user set.
///
/// # Errors
/// A problem for each key that the file has in both places.
pub(super) fn apply(path: &Path, root: &mut Node, is_resolved: bool) -> Result<Option<Diagnostic>, Vec<Diagnostic>> {
    let mut moves = Moves::default();
    moves.below(root, "", "");
    if let Some(methods) = below(root, "methods") {
        moves.below(methods, "method", "methods");
    }
    for part in ["sweep.grid", "sweep.random.keys"] {
        if let Some(keys) = below(root, part) {
            moves.dotted(keys);
        }
    }
    match moves.problems.is_empty() {
        true => Ok(moves.note(path, is_resolved)),
        false => Err(moves.problems),
    }
}

/// A key at its old place.
struct Move {
    old: String,
    new: String,
    location: Option<Location>,
    /// Whether a resolved file marks it as set by the user.
    is_marked: bool,
}

#[derive(Default)]
struct Moves {
    done: Vec<Move>,
    problems: Vec<Diagnostic>,
}

impl Moves {
    /// Moves the keys below `node`, whose own path is `path` and which the file calls `name`.
    fn below(&mut self, node: &mut Node, path: &str, name: &str) {
        let within = |key: &'static str| match path.is_empty() {
            true => Some(key),
            false => key.strip_prefix(path)?.strip_prefix('.'),
        };
        for (old, new) in PAIRS.iter() {
            let (Some(from), Some(to)) = (within(old), within(new)) else { continue };
            let Some((_, location)) = node.at(from) else { continue };
            let shown = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
            if let Some((_, other)) = node.at(to) {
                let locations = [location.cloned(), other.cloned()];
                self.problems.push(twice(&shown(from), &shown(to), locations));
                continue;
            }
            // A value that cannot contain keys is reported later.
            let parent = to.rsplit_once('.').and_then(|(parent, _)| node.at(parent));
            if parent.is_some_and(|(parent, _)| !matches!(parent.value, Value::Map(_)) && !parent.is_null()) {
                continue;
            }
            let Some(entry) = node.take_at(from) else { continue };
            let is_marked = has_mark(&entry.node);
            set(node, to, entry.node, &entry.location);
            self.done.push(Move { old: shown(from), new: shown(to), location: entry.location, is_marked });
        }
    }

    /// Renames dotted keys, such as those of a sweep, and moves the keys within their values.
    fn dotted(&mut self, keys: &mut Node) {
        let Value::Map(entries) = &mut keys.value else { return };
        for i in 0..entries.len() {
            if let Some(new) = renamed(&entries[i].key) {
                if let Some(other) = entries.iter().find(|other| other.key == new) {
                    let locations = [entries[i].location.clone(), other.location.clone()];
                    self.problems.push(twice(&entries[i].key, &new, locations));
                    continue;
                }
                let (old, location) =
                    (std::mem::replace(&mut entries[i].key, new.clone()), entries[i].location.clone());
                self.done.push(Move { old, new, location, is_marked: false });
            }
            let entry = &mut entries[i];
            if let Value::List(values) = &mut entry.node.value {
                values.iter_mut().for_each(|value| self.below(value, &entry.key, &entry.key));
            }
        }
    }

    /// Returns the note on the moved keys, in the order of the file.
    fn note(mut self, path: &Path, is_resolved: bool) -> Option<Diagnostic> {
        self.done.retain(|key| key.is_marked || !is_resolved);
        let line = |key: &Move| match &key.location {
            Some(Location::File { line, column, .. }) => (*line, *column),
            _ => (0, 0),
        };
        self.done.sort_by_key(line);
        let shown = path.display();
        let lines =
            self.done.iter().map(|key| format!("\n  {shown}:{}: `{}` is now `{}`", line(key).0, key.old, key.new));
        let lines: String = lines.collect();
        let message = format!("`{shown}` has keys whose place has changed. gradus still reads the old places.{lines}");
        let locations = self.done.into_iter().filter_map(|key| key.location).collect::<Vec<_>>();
        (!locations.is_empty()).then_some(Diagnostic { message, locations, hint: None })
    }
}

fn below<'a>(root: &'a mut Node, path: &str) -> Option<&'a mut Node> {
    path.split('.').try_fold(root, |node, key| node.entry_mut(key).map(|entry| &mut entry.node))
}

/// Whether the user set this key or a key below it in a resolved file.
fn has_mark(node: &Node) -> bool {
    match &node.value {
        Value::Map(entries) => entries.iter().any(|entry| has_mark(&entry.node)),
        _ => matches!(&node.location, Some(Location::File { excerpt, .. }) if excerpt.ends_with(MARK)),
    }
}

fn twice(old: &str, new: &str, locations: [Option<Location>; 2]) -> Diagnostic {
    Diagnostic {
        message: format!("`{old}` is the old place of `{new}`, and the file has both"),
        locations: locations.into_iter().flatten().collect(),
        hint: Some(format!("keep only `{new}`")),
    }
}

/// Returns the new path of a dotted key that has moved, alone or within a section.
fn renamed(key: &str) -> Option<String> {
    PAIRS.iter().find_map(|(old, new)| {
        let rest = key.strip_prefix(old.as_str())?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{new}{rest}"))
    })
}

/// Returns the new path of a moved key by its old name: a whole path, a path below the method, or a flag in snake case.
/// With a `method`, only keys of that method are found.
pub(super) fn find(schema: &Schema, name: &str, method: Option<&str>) -> Option<String> {
    let is_of = |old: &str, method: &str| old.starts_with(&format!("method.{method}."));
    PAIRS.iter().filter(|(old, _)| method.is_none_or(|method| is_of(old, method))).find_map(|(old, new)| {
        let short = old.splitn(3, '.').nth(2)?;
        [old.as_str(), short].into_iter().find_map(|known| match name.strip_prefix(known)? {
            "" => Some(new.clone()),
            rest => Some(format!("{new}.{}", rest.strip_prefix(['.', '_'])?)).filter(|key| schema.field(key).is_some()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ComparisonDefinition, ConfigWithLocations, Plan, Request, RunConfig, SweepDefinition, write};
    use crate::error::Error;
    use crate::machine::Machine;

    /// Keys of PPO and NLPO at their old places, each on a line of its own.
    const OLD: &str = "    value_clip: clipped
    target_kl_over: mini_batch
    clip_jointly: true
    part_size: 4
    sum_parts: true
    length_weights: true
    lr_per_step: true
    whitening:
      rewards: biased
      center_rewards: true
";

    fn file(method: &str, keys: &str) -> String {
        format!("model: m\ndata: d\nreward: {{model: r}}\nmethod:\n  {method}:\n{keys}")
    }

    /// Returns `keys` in a mapping `quirks`.
    fn within_quirks(keys: &str) -> String {
        std::iter::once("    quirks:\n".to_owned()).chain(keys.lines().map(|line| format!("  {line}\n"))).collect()
    }

    fn read(text: &str) -> ConfigWithLocations {
        RunConfig::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn messages<T: std::fmt::Debug>(found: crate::error::Result<T>) -> Vec<Diagnostic> {
        match found {
            Err(Error::Config(problems)) => problems,
            other => panic!("{other:?}"),
        }
    }

    fn line(location: Option<&Location>) -> Option<usize> {
        location.map(|location| match location {
            Location::File { line, .. } => *line,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn every_row_leads_to_a_key_and_no_old_place_is_a_key() {
        let schema = Schema::run_config();
        for (old, new) in MOVED {
            assert!(PAIRS.iter().any(|(_, key)| key.ends_with(new.trim_start_matches("method.*"))), "{new}");
            assert!(old.starts_with("method.*."), "{old}");
        }
        for (old, new) in PAIRS.iter() {
            assert!(schema.field(new).is_some() && schema.field(old).is_none(), "{old}, {new}");
        }
        assert_eq!(PAIRS.len(), 8 + 8 + 2 + 1, "{PAIRS:?}");
    }

    #[test]
    fn an_old_file_is_the_same_configuration_as_the_new_one_and_the_note_lists_every_key_with_its_line() {
        let only = |names: &[&str]| -> String {
            let rest = OLD.split_once("    whitening").map_or("", |(_, rest)| rest);
            let keys = OLD.lines().filter(|line| names.iter().any(|name| line.trim_start().starts_with(name)));
            keys.map(|line| format!("{line}\n")).chain([format!("    whitening{rest}")]).collect()
        };
        for (method, old, names) in [
            ("ppo", OLD.to_owned(), &["value_clip", "target_kl_over", "clip_jointly", "part_size", "sum_parts"][..]),
            ("nlpo", OLD.to_owned(), &["length_weights", "lr_per_step", "whitening"]),
            ("a2c", only(&["clip_jointly"]).replace("clip_jointly: true", "clip_jointly: false"), &["clip_jointly"]),
            ("trpo", only(&[]), &["whitening"]),
        ] {
            let (old_file, new_file) = (file(method, &old), file(method, &within_quirks(&old)));
            let (was, is) = (read(&old_file), read(&new_file));
            assert_eq!(was.config, is.config, "{method}");
            assert_ne!(is.config, read(&file(method, "")).config, "{method}");
            assert_eq!(is.notes(), [], "{method}");
            let [note] = was.notes() else { panic!("{method}: {:?}", was.notes()) };
            for name in names {
                let key = format!("method.{method}.quirks.{name}");
                let number =
                    1 + old_file.lines().position(|line| line.starts_with(&format!("    {name}:"))).expect(name);
                assert_eq!(line(was.location(&key)), Some(number), "{key}");
                let expected = format!("\n  config.yml:{number}: `method.{method}.{name}` is now `{key}`");
                assert!(note.message.contains(&expected), "{expected} in\n{note}");
            }
        }
        let was = read(&file("trpo", "    whitening: {rewards: biased}\n"));
        assert_eq!(
            was.notes()[0].message,
            "`config.yml` has keys whose place has changed. gradus still reads the old places.\n  \
             config.yml:6: `method.trpo.whitening` is now `method.trpo.quirks.whitening`"
        );
        assert_eq!(line(was.location("method.trpo.quirks.whitening.rewards")), Some(6));
    }

    #[test]
    fn a_problem_with_a_moved_key_has_its_place_in_the_file() {
        let problems = messages(RunConfig::parse(&file("ppo", "    part_size: 0\n")));
        assert_eq!(problems[0].message, "`method.ppo.quirks.part_size` is 0, but must be at least 1");
        assert_eq!(line(problems[0].locations.first()), Some(6));
    }

    #[test]
    fn a_key_in_both_places_is_a_problem_that_names_both() {
        let both = format!("    part_size: 4\n{}    sum_parts: true\n", within_quirks("    part_size: 4\n"));
        let problems = messages(RunConfig::parse(&file("ppo", &both)));
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!(
            problem.message,
            "`method.ppo.part_size` is the old place of `method.ppo.quirks.part_size`, and the file has both"
        );
        assert_eq!(
            problem.locations.iter().map(|location| line(Some(location))).collect::<Vec<_>>(),
            [Some(6), Some(8)]
        );
        assert_eq!(problem.hint.as_deref(), Some("keep only `method.ppo.quirks.part_size`"));
        // A part of a section at its new place is enough.
        let both =
            format!("    whitening: {{rewards: biased}}\n{}", within_quirks("    whitening: {rewards: biased}\n"));
        assert_eq!(messages(RunConfig::parse(&file("trpo", &both))).len(), 1);
    }

    #[test]
    fn only_keys_of_a_method_move() {
        let problems = messages(RunConfig::parse(&file("grpo", "    part_size: 4\n")));
        assert_eq!(problems[0].message, "unknown key `part_size` in `method.grpo`");
        let problems = messages(RunConfig::parse(&file("trpo", "    part_size: 4\n")));
        assert_eq!(problems[0].message, "unknown key `part_size` in `method.trpo`");
        // A value that cannot contain keys is a problem of its own.
        let problems = messages(RunConfig::parse(&file("ppo", "    part_size: 4\n    quirks: 3\n")));
        let found: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(
            found,
            ["unknown key `part_size` in `method.ppo`", "`method.ppo.quirks` is `3`, but a mapping is needed"]
        );
        assert_eq!(problems[0].hint.as_deref(), Some("it is now `method.ppo.quirks.part_size`"));
    }

    /// Returns a resolved file as earlier versions wrote it.
    fn resolved_before(text: &str) -> String {
        let mut within = false;
        let lines = text.lines().filter_map(|line| {
            within = if line == "    quirks:" { true } else { within && line.starts_with("      ") };
            match line {
                "    quirks:" => None,
                _ if within => Some(format!("{}\n", &line[2..])),
                _ => Some(format!("{line}\n")),
            }
        });
        lines.collect()
    }

    #[test]
    fn a_resolved_file_keeps_its_marks_and_the_note_names_only_what_was_set() {
        let quirks = within_quirks("    part_size: 4\n    whitening: {rewards: biased}\n");
        let written = read(&file("ppo", &format!("    whiten_rewards: true\n{quirks}")));
        let plan = Plan::check(&written, &Machine::detect()).expect("it can run");
        let text = resolved_before(&plan.to_yaml());
        assert!(text.starts_with(write::HEADER) && text.contains("\n    part_size: 4 # set\n"), "{text}");
        assert!(!text.contains("quirks") && text.contains("\n    sum_parts: false\n"), "{text}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.yml");
        std::fs::write(&path, &text).expect("it can be written");
        let was = RunConfig::load(&Request { file: Some(&path), ..Request::default() }).expect("it reads");
        let [note] = was.notes() else { panic!("{:?}", was.notes()) };
        assert!(note.message.contains(": `method.ppo.part_size` is now `method.ppo.quirks.part_size`"), "{note}");
        assert!(note.message.contains("`method.ppo.quirks.whitening`"), "{note}");
        assert!(!note.message.contains("sum_parts") && note.locations.len() == 2, "{note}");
        let again = Plan::check(&was, &Machine::detect()).expect("it can run");
        assert_eq!((again.config(), again.to_yaml()), (plan.config(), plan.to_yaml()));
        assert!(again.is_set("method.ppo.quirks.part_size") && !again.is_set("method.ppo.quirks.sum_parts"));
        assert_eq!(again.notes(), was.notes());
        // Of a file with only defaults, the user wrote none of the keys.
        std::fs::write(&path, text.replace(write::MARK, "")).expect("it can be written");
        let was = RunConfig::load(&Request { file: Some(&path), ..Request::default() }).expect("it reads");
        assert_eq!(was.notes(), []);
    }

    #[test]
    fn comparisons_and_sweeps_have_one_note() {
        let start = "model: m\ndata: d\nreward: {model: r}\n";
        let old = ComparisonDefinition::parse(&format!("{start}methods:\n  ppo: {{part_size: 4}}\n  grpo: {{}}\n"));
        let new = format!("{start}methods:\n  ppo: {{quirks: {{part_size: 4}}}}\n  grpo: {{}}\n");
        let (old, new) = (old.expect("it reads"), ComparisonDefinition::parse(&new).expect("it reads"));
        let configs = |of: &ComparisonDefinition| of.runs.iter().map(|run| run.config.clone()).collect::<Vec<_>>();
        assert_eq!((configs(&old), new.notes.len(), old.notes.len()), (configs(&new), 0, 1));
        let line = "\n  compare.yml:5: `methods.ppo.part_size` is now `methods.ppo.quirks.part_size`";
        assert!(old.notes[0].message.ends_with(line), "{}", old.notes[0]);

        let sweep = |grid: &str| {
            let text = file("ppo", "    temperature: 1\n");
            SweepDefinition::parse(&format!("{text}sweep:\n  grid:\n{grid}"))
        };
        let old = "    method.ppo.part_size: [2, 4]\n    method.ppo.whitening.rewards: [biased]\n    \
                   method.ppo: [{sum_parts: true}]\n";
        let new = "    method.ppo.quirks.part_size: [2, 4]\n    method.ppo.quirks.whitening.rewards: [biased]\n    \
                   method.ppo: [{quirks: {sum_parts: true}}]\n";
        let (old, new) = (sweep(old).expect("it reads"), sweep(new).expect("it reads"));
        let configs = |of: &SweepDefinition| -> Vec<RunConfig> {
            of.points.iter().flat_map(|point| &point.runs).map(|run| run.config.clone()).collect()
        };
        for (old, new) in configs(&old).iter().zip(&configs(&new)) {
            assert_eq!(old.method, new.method);
        }
        assert_eq!((configs(&old).len(), old.notes.len(), new.notes.len()), (2, 1, 0));
        for expected in [
            "\n  sweep.yml:9: `method.ppo.part_size` is now `method.ppo.quirks.part_size`",
            "\n  sweep.yml:10: `method.ppo.whitening.rewards` is now `method.ppo.quirks.whitening.rewards`",
            "\n  sweep.yml:11: `method.ppo.sum_parts` is now `method.ppo.quirks.sum_parts`",
        ] {
            assert!(old.notes[0].message.contains(expected), "{expected} in\n{}", old.notes[0]);
        }
        let both = "    method.ppo.part_size: [2, 4]\n    method.ppo.quirks.part_size: [2]\n";
        assert_eq!(messages(sweep(both))[0].locations.len(), 2);
    }

    #[test]
    fn old_names_are_found_in_every_spelling() {
        let schema = Schema::run_config();
        let found = |name: &str, method: Option<&str>| find(&schema, name, method);
        for (name, method, expected) in [
            ("part_size", Some("ppo"), Some("method.ppo.quirks.part_size")),
            ("part_size", None, Some("method.ppo.quirks.part_size")),
            ("part_size", Some("a2c"), None),
            ("method.nlpo.part_size", None, Some("method.nlpo.quirks.part_size")),
            ("whitening_center_rewards", Some("trpo"), Some("method.trpo.quirks.whitening.center_rewards")),
            ("whitening.center_rewards", Some("trpo"), Some("method.trpo.quirks.whitening.center_rewards")),
            ("whitening", Some("a2c"), Some("method.a2c.quirks.whitening")),
            ("whitening_colour", Some("a2c"), None),
            ("value_clip_range", Some("ppo"), None),
        ] {
            assert_eq!(found(name, method).as_deref(), expected, "{name} of {method:?}");
        }
    }
}

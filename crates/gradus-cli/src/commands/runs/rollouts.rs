//! `gradus runs rollouts`: shows the completions of a run.

use std::fmt::Write as _;

use gradus::run::database::{EpisodeRecord, Query, Record, RolloutDb, RolloutTable, Segment, Sort, TurnRecord};
use gradus::runs::Library;
use gradus_environments::Reply;
use serde_json::{Map, Value, json};

use super::show::section;
use crate::output::{Output, Paint};
use crate::watch::short;

/// Arguments of `gradus runs rollouts`.
#[derive(Debug, clap::Args)]
pub struct RolloutsArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// Show only completions of this step
    #[arg(long, value_name = "N", conflicts_with_all = ["steps", "diff"])]
    step: Option<usize>,
    /// Show only completions of these steps, both included; either end may be omitted
    #[arg(long, value_name = "A..B", value_parser = range, conflicts_with = "diff")]
    steps: Option<Range>,
    /// Show completions of evaluations instead of training
    #[arg(long)]
    eval: bool,
    /// Show completions of test prompts (`test_data`), from before the first step and after the last
    #[arg(long, conflicts_with = "eval")]
    test: bool,
    /// Show only completions with this text in prompt or completion
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Show only completions of this prompt, by its row in the data, from 1
    #[arg(long, value_name = "ROW", value_parser = clap::value_parser!(u64).range(1..))]
    prompt: Option<u64>,
    /// Minimum reward
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    min_reward: Option<f64>,
    /// Maximum reward
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    max_reward: Option<f64>,
    /// Show only completions that ended in this way
    #[arg(long, value_name = "stop_id|stop_string|length")]
    stop: Option<String>,
    /// Sort key
    #[arg(long, value_name = "KEY", default_value = "step")]
    sort: Key,
    /// Sort in descending order
    #[arg(long)]
    desc: bool,
    /// Maximum number of completions; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Show the parts of the reward below each completion, with the text that they belong to, and the advantages of tokens if they differ
    #[arg(long)]
    parts: bool,
    /// Show the same prompts at two steps; `--sort` orders them by the change of the key
    #[arg(long, value_name = "A,B", value_parser = pair)]
    diff: Option<(usize, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Key {
    Step,
    Reward,
    Advantage,
    Kl,
    Length,
}

/// First and last step.
#[derive(Debug, Clone, Copy)]
struct Range(Option<usize>, Option<usize>);

fn range(text: &str) -> Result<Range, String> {
    let (first, last) = text.split_once("..").ok_or("expected A..B, such as `--steps 10..20`")?;
    let end = |text: &str| match text.trim_start_matches('=') {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| format!("`{text}` is not a step")),
    };
    Ok(Range(end(first)?, end(last)?))
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let (before, after) = text.split_once(',').ok_or("expected two steps, such as `--diff 1,100`")?;
    let step = |text: &str| text.trim().parse().map_err(|_| format!("`{text}` is not a step"));
    Ok((step(before)?, step(after)?))
}

/// Shows the matching completions, or compares two steps.
pub fn run(args: &RolloutsArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let entry = library.entry(&args.name)?;
    let database = RolloutDb::open(&entry.directory()?)?;
    match args.diff {
        Some((before, after)) => diff(args, &database, before, after, out),
        None => list(args, &database, out),
    }
}

fn query(args: &RolloutsArgs) -> Query {
    let Range(first, last) = args.steps.unwrap_or(Range(args.step, args.step));
    Query {
        table: match (args.eval, args.test) {
            (_, true) => RolloutTable::Test,
            (true, _) => RolloutTable::Eval,
            _ => RolloutTable::Train,
        },
        first_step: first,
        last_step: last,
        prompt_index: args.prompt.map(|row| row as usize - 1),
        text: args.contains.clone(),
        min_reward: args.min_reward,
        max_reward: args.max_reward,
        stop_reason: args.stop.clone(),
        sort: match args.sort {
            Key::Step => Sort::Step,
            Key::Reward => Sort::Reward,
            Key::Advantage => Sort::Advantage,
            Key::Kl => Sort::Kl,
            Key::Length => Sort::Length,
        },
        descending: args.desc,
        limit: Some(args.limit).filter(|&limit| limit > 0),
        ..Query::default()
    }
}

fn list(args: &RolloutsArgs, database: &RolloutDb, out: &Output) -> anyhow::Result<()> {
    let query = query(args);
    let found = database.query(&query)?;
    if out.is_json() {
        return found.iter().try_for_each(|record| out.json_line(&object(record)));
    }
    let all = database.count(&query)?;
    let paint = out.data_paint();
    found.iter().try_for_each(|record| out.text(&described(record, args.parts, paint)))?;
    let of = match query.table {
        RolloutTable::Train => "from training",
        RolloutTable::Eval => "from evaluations",
        RolloutTable::Test => "from test prompts",
    };
    match (all, found.len()) {
        (0, _) => out.note(format_args!("no completion {of} matches; {}", steps(database, query.table)?)),
        (all, shown) if shown < all => {
            out.note(format_args!("{shown} of {all} completions {of}; `--limit` shows more"))
        }
        (all, _) => out.note(format_args!("{all} completions {of}")),
    }
    Ok(())
}

/// Describes the available steps in a sentence.
fn steps(database: &RolloutDb, table: RolloutTable) -> gradus::Result<String> {
    let steps = database.steps(table)?;
    Ok(match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => format!("available steps: {first} to {last}"),
        _ => "there are no completions".into(),
    })
}

fn diff(args: &RolloutsArgs, database: &RolloutDb, before: usize, after: usize, out: &Output) -> anyhow::Result<()> {
    let query = query(args);
    let mut pairs = database.diff(query.table, before, after)?;
    let is_prompt_shared = !pairs.is_empty();
    query.select_pairs(&mut pairs);
    let all = pairs.len();
    let mean = |of: fn(&(Record, Record)) -> Option<f64>| {
        let values: Vec<f64> = pairs.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    // Means over all matching pairs, not only the displayed ones.
    let means = (mean(|pair| pair.0.reward), mean(|pair| pair.1.reward));
    pairs.truncate(query.limit.unwrap_or(usize::MAX));
    if out.is_json() {
        let line = |(before, after): &(Record, Record)| {
            out.json_line(&json!({ "before": object(before), "after": object(after) }))
        };
        return pairs.iter().try_for_each(line);
    }
    pairs.iter().try_for_each(|pair| out.text(&side_by_side(pair, args.parts, out.data_paint())))?;
    if let (Some(was), Some(is)) = means {
        let (was, is) = (short(was), short(is));
        out.note(format_args!("mean reward of all {all} pairs: {was} at step {before}, {is} at step {after}"));
    }
    match all {
        0 if !is_prompt_shared && query.table == RolloutTable::Train => {
            out.note(
                "no prompt was trained on at both steps; evaluations use the same prompts each time: add `--eval`",
            );
        }
        0 => out.note(format_args!("no pair matches; {}", steps(database, query.table)?)),
        _ if pairs.len() < all => out.note(format_args!("{} of {all} pairs; `--limit` shows more", pairs.len())),
        _ => out.note(format_args!("{all} pairs")),
    }
    Ok(())
}

/// Converts a completion to JSON, with the names of the table's columns.
fn object(record: &Record) -> Value {
    let components: Map<String, Value> =
        record.components.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let segment = |segment: &Segment| json!([segment.characters.start, segment.characters.end, segment.value]);
    let of_part = |(name, found): &(String, Vec<Segment>)| (name.clone(), found.iter().map(segment).collect());
    let segments: Map<String, Value> = record.segments.iter().map(of_part).collect();
    json!({
        "step": record.step,
        "epoch": record.epoch,
        "prompt_index": record.prompt_index,
        "rollout_index": record.rollout_index,
        "prompt": record.prompt,
        "completion": record.completion,
        "reward": record.reward,
        "components": components,
        "segments": segments,
        "advantage": record.advantage,
        "advantages": record.advantages.iter().map(segment).collect::<Value>(),
        "kl": record.kl,
        "length": record.length,
        "stop_reason": record.stop_reason,
        "episode": record.episode,
        "weight_version": record.weight_version,
    })
}

fn described(record: &Record, with_parts: bool, paint: Paint) -> String {
    let heading =
        format!("step {} · prompt {} · completion {}", record.step, record.prompt_index + 1, record.rollout_index + 1);
    let mut text = format!("{}  {}\n", paint.bold(&heading), numbers(record));
    let _ = writeln!(text, "{}", paint.faint(&quoted(&record.prompt)));
    match &record.episode {
        Some(episode) => text += &conversation(episode, paint),
        None => {
            let _ = writeln!(text, "{}", quoted(&record.completion));
        }
    }
    if with_parts {
        parts(record).iter().chain(&advantages(record)).for_each(|line| {
            let _ = writeln!(text, "{}", paint.faint(&format!("    {line}")));
        });
    }
    text + "\n"
}

/// Formats the turns of the policy, the replies that it read, and the reason why the episode ended.
fn conversation(episode: &EpisodeRecord, paint: Paint) -> String {
    let mut text = String::new();
    for TurnRecord { text: completion, observation, is_read } in &episode.turns {
        let reward = observation.reward.map_or(String::new(), |reward| format!(" · reward {}", short(reward)));
        let _ = writeln!(text, "{}\n{}", paint.bold(&format!("policy{reward}")), quoted(completion));
        for reply in observation.replies.iter().filter(|_| *is_read) {
            let who = match reply {
                Reply::User { .. } | Reply::Tokens { .. } => "environment".to_owned(),
                Reply::Tool { name, .. } => format!("tool {}", printable(name)),
            };
            let _ = writeln!(text, "{}\n{}", paint.bold(&who), quoted(reply.content()));
        }
    }
    let reward = episode.reward.map_or(String::new(), |reward| format!(", reward {}", short(reward)));
    let why = episode.failure.as_ref().map_or(String::new(), |failure| format!(": {}", printable(failure)));
    let _ = writeln!(text, "{}", paint.faint(&format!("episode ended: {}{reward}{why}", episode.end)));
    text
}

/// Formats one line per part of the reward. If a part has values on several tokens, each value gets a line with the text since the previous
/// one, because a sentence's reward is assigned to its last token.
pub fn parts(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in &record.components {
        lines.push(format!("{name} {}", value.map_or("–".into(), short)));
        let segments = record.segments.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, segments)| segments);
        let mut start = 0;
        for Segment { characters, value } in segments {
            lines.push(line(record, start..characters.end, *value));
            start = characters.end;
        }
    }
    lines
}

/// Formats one line per token's advantage; empty if all equal the mean.
fn advantages(record: &Record) -> Vec<String> {
    let tokens = record.advantages.iter().map(|token| line(record, token.characters.clone(), token.value));
    let heading = (!record.advantages.is_empty()).then(|| "advantages".to_owned());
    heading.into_iter().chain(tokens).collect()
}

/// Formats a value and the text that it belongs to.
fn line(record: &Record, characters: std::ops::Range<usize>, value: f64) -> String {
    let text: String = record.completion.chars().skip(characters.start).take(characters.len()).collect();
    format!("  {:>8}  “{}”", short(value), printable(&text))
}

/// `reward 1.2 (length 0.5, lexicon 0.7) · advantage 0.3 · kl 0.01 · 24 tokens · stop_id`
pub fn numbers(record: &Record) -> String {
    let components: Vec<String> =
        record.components.iter().map(|(name, value)| format!("{name} {}", value.map_or("–".into(), short))).collect();
    let parts = if components.len() > 1 { format!(" ({})", components.join(", ")) } else { String::new() };
    let mut shown = vec![format!("reward {}{parts}", record.reward.map_or("–".into(), short))];
    shown.extend(record.advantage.map(|advantage| format!("advantage {}", short(advantage))));
    shown.extend(record.kl.map(|kl| format!("kl {}", short(kl))));
    shown.push(format!("{} token{}", record.length, if record.length == 1 { "" } else { "s" }));
    shown.push(record.stop_reason.clone());
    shown.join(" · ")
}

fn side_by_side((before, after): &(Record, Record), with_parts: bool, paint: Paint) -> String {
    let mut text = String::new();
    let change = Sort::Reward
        .change(before, after)
        .map_or(String::new(), |change| format!("  reward {}{}", if change >= 0.0 { "+" } else { "" }, short(change)));
    section(
        &mut text,
        &format!("prompt {} · completion {}{change}", before.prompt_index + 1, before.rollout_index + 1),
        paint,
    );
    let _ = writeln!(text, "{}", paint.faint(&quoted(&before.prompt)));
    for record in [before, after] {
        let _ = writeln!(text, "step {}: {}\n{}", record.step, numbers(record), quoted(&record.completion));
        for line in with_parts.then(|| [parts(record), advantages(record)].concat()).into_iter().flatten() {
            let _ = writeln!(text, "{}", paint.faint(&format!("    {line}")));
        }
    }
    text
}

/// Indents every line by two spaces, to set completions apart.
fn quoted(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("  {}", printable(line))).collect();
    if lines.is_empty() { "  (empty)".into() } else { lines.join("\n") }
}

/// Replaces control characters, so that text from a model cannot control the terminal.
pub fn printable(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_with_the_text_since_the_one_before() {
        let segment = |characters, value| Segment { characters, value };
        let record = Record {
            completion: "Grün. Ja!".into(),
            components: vec![("length".into(), Some(0.5)), ("facts".into(), Some(1.0)), ("odd".into(), None)],
            segments: vec![("facts".into(), vec![segment(4..5, 2.0), segment(8..9, -1.5), segment(9..9, 0.5)])],
            ..Record::default()
        };
        let expected =
            ["length 0.5000", "facts 1.000", "     2.000  “Grün.”", "    -1.500  “ Ja!”", "    0.5000  “”", "odd –"];
        assert_eq!(parts(&record), expected);
    }

    #[test]
    fn the_numbers_of_a_completion_are_one_line() {
        let numbers = |length| numbers(&Record { length, stop_reason: "stop_id".into(), ..Record::default() });
        assert_eq!(numbers(1), "reward – · 1 token · stop_id");
        assert_eq!(numbers(24), "reward – · 24 tokens · stop_id");
    }

    #[test]
    fn an_advantage_is_shown_with_the_text_of_its_own_token() {
        let segment = |characters, value| Segment { characters, value };
        let record = Record {
            completion: "Grün. Ja!".into(),
            // Text that a tool wrote between two tokens has no advantage.
            advantages: vec![segment(0..4, 0.25), segment(6..8, -1.0), segment(9..9, 2.0)],
            ..Record::default()
        };
        assert_eq!(advantages(&record), ["advantages", "    0.2500  “Grün”", "    -1.000  “Ja”", "     2.000  “”"]);
        assert_eq!(advantages(&Record::default()), [] as [&str; 0]);
    }
}

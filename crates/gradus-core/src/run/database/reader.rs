//! Queries on a rollout database.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, Row, params_from_iter};
use serde_json::{Map, Value};

use super::{
    Record, RolloutTable, Segment, WITH_EPISODES, WITH_TEST_ROLLOUTS, WITH_WEIGHT_VERSIONS, WarningRecord,
    check_version, connect_to_read, failure,
};
use crate::error::{Error, Result};
use crate::run::RunDir;
use crate::search::SoughtText;

/// Reads the rollouts of one run, also during training.
#[derive(Debug)]
pub struct RolloutDb {
    path: PathBuf,
    connection: Connection,
    version: i32,
}

/// Selection and order of completions. The default is every completion of training, in the order of sampling.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Query {
    /// Table to read.
    pub table: RolloutTable,
    /// First step to include; `None` for no lower limit.
    pub first_step: Option<usize>,
    /// Last step to include; `None` for no upper limit.
    pub last_step: Option<usize>,
    /// Only this prompt, counted from 0.
    pub prompt_index: Option<usize>,
    /// Only completions with this text in the prompt or the completion; upper and lower case are equal.
    pub text: Option<String>,
    /// Minimum reward; leaves out completions without a reward.
    pub min_reward: Option<f64>,
    /// Maximum reward; leaves out completions without a reward.
    pub max_reward: Option<f64>,
    /// Bounds on components of the reward, all of which must hold.
    pub components: Vec<ComponentBound>,
    /// Only completions that ended for this reason: `stop_id`, `stop_string` or `length`.
    pub stop_reason: Option<String>,
    /// Sort key.
    pub sort: Sort,
    /// Sorts in descending order. Missing values come last in both orders.
    pub descending: bool,
    /// Maximum number of completions.
    pub limit: Option<usize>,
    /// Number of completions to skip.
    pub offset: usize,
}

/// Bounds on one component of the reward; leaves out completions without it.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentBound {
    /// Name of the component.
    pub name: String,
    /// Smallest value to include; `None` for no lower limit.
    pub min: Option<f64>,
    /// Largest value to include; `None` for no upper limit.
    pub max: Option<f64>,
}

/// Sort key of completions; ties keep the order of sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// The step.
    #[default]
    Step,
    /// The reward.
    Reward,
    /// The advantage; not in evaluations.
    Advantage,
    /// The KL to the reference.
    Kl,
    /// The length in tokens.
    Length,
}

impl Sort {
    fn column(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Reward => "reward",
            Self::Advantage => "advantage",
            Self::Kl => "kl",
            Self::Length => "length",
        }
    }

    /// Returns the value of a completion that this key sorts by.
    pub fn value(self, record: &Record) -> Option<f64> {
        match self {
            Self::Step => Some(record.step as f64),
            Self::Reward => record.reward,
            Self::Advantage => record.advantage,
            Self::Kl => record.kl,
            Self::Length => Some(record.length as f64),
        }
    }

    /// Returns how much the value changed.
    pub fn change(self, before: &Record, after: &Record) -> Option<f64> {
        Some(self.value(after)? - self.value(before)?)
    }
}

impl Query {
    /// Selects and sorts the pairs of [`RolloutDb::diff`]. The text may be in either completion. The limits of the reward and its
    /// components, and the stop reason, are those of the later completion. The order is that of the change of the sort key, with
    /// missing values last. The table, the steps, the limit and the offset have no effect.
    pub fn select_pairs(&self, pairs: &mut Vec<(Record, Record)>) {
        let sought = self.text.as_deref().map(SoughtText::new);
        pairs.retain(|(before, after)| {
            let texts = [&before.prompt, &before.completion, &after.prompt, &after.completion];
            let within = |bound: &ComponentBound| {
                let named = after.components.iter().find(|(name, _)| *name == bound.name);
                named.and_then(|(_, value)| *value).is_some_and(|value| is_within(value, bound.min, bound.max))
            };
            let is_bounded = self.min_reward.is_some() || self.max_reward.is_some();
            sought.as_ref().is_none_or(|sought| texts.iter().any(|text| sought.is_in(text)))
                && self.prompt_index.is_none_or(|index| before.prompt_index == index)
                && self.stop_reason.as_ref().is_none_or(|reason| after.stop_reason == *reason)
                && (!is_bounded
                    || after.reward.is_some_and(|reward| is_within(reward, self.min_reward, self.max_reward)))
                && self.components.iter().all(within)
        });
        let change = |(before, after): &(Record, Record)| self.sort.change(before, after);
        pairs.sort_by(|a, b| match (change(a), change(b)) {
            (Some(a), Some(b)) if self.descending => b.total_cmp(&a),
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
    }
}

fn is_within(value: f64, min: Option<f64>, max: Option<f64>) -> bool {
    min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)
}

impl RolloutDb {
    /// Opens the database of a run.
    ///
    /// # Errors
    /// [`Error::Input`] if the run has none; [`Error::Data`] if the file is no rollout database of a supported version.
    pub fn open(run: &RunDir) -> Result<Self> {
        let path = run.rollouts();
        if !path.is_file() {
            return Err(Error::input(format!("the run `{}` has no `rollouts.sqlite`", run.name()))
                .with_hint("only online methods, such as ppo and grpo, sample completions"));
        }
        let connection = connect_to_read(&path)?;
        let version = check_version(&path, &connection)?;
        Ok(Self { path, connection, version })
    }

    /// Returns the completions that match `query`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn query(&self, query: &Query) -> Result<Vec<Record>> {
        let (conditions, mut values) = self.conditions(query)?;
        let column = query.sort.column();
        let order = match (query.sort, query.descending) {
            (Sort::Step, false) => "id".to_owned(),
            (_, false) => format!("{column} IS NULL, {column}, id"),
            (_, true) => format!("{column} IS NULL, {column} DESC, id"),
        };
        let limit = query.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        values.extend([Sql::from(limit), integer(query.offset)]);
        let text = format!("{} WHERE {conditions} ORDER BY {order} LIMIT ? OFFSET ?", self.select(query.table));
        self.all(&text, values, record)
    }

    /// Counts the completions that match `query`, without its limit and offset.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn count(&self, query: &Query) -> Result<usize> {
        let (conditions, values) = self.conditions(query)?;
        let text = format!("SELECT count(*) FROM {} WHERE {conditions}", self.source(query.table));
        let counts = self.all(&text, values, |row| row.get::<_, i64>(0))?;
        Ok(counts.first().map_or(0, |&count| count as usize))
    }

    /// Returns the steps that have completions, in ascending order.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn steps(&self, table: RolloutTable) -> Result<Vec<usize>> {
        let text = format!("SELECT DISTINCT step FROM {} ORDER BY step", self.source(table));
        self.all(&text, Vec::new(), |row| Ok(row.get::<_, i64>(0)? as usize))
    }

    /// Returns the names of all reward components, in alphabetical order.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn components(&self, table: RolloutTable) -> Result<Vec<String>> {
        let source = self.source(table);
        let text = format!("SELECT DISTINCT part.key FROM {source}, json_each(components) AS part ORDER BY part.key");
        self.all(&text, Vec::new(), |row| row.get(0))
    }

    /// Returns the warnings of the run, in order.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn warnings(&self) -> Result<Vec<WarningRecord>> {
        self.all("SELECT step, kind, message FROM warnings ORDER BY id", Vec::new(), |row| {
            Ok(WarningRecord { step: row.get::<_, i64>(0)? as usize, kind: row.get(1)?, message: row.get(2)? })
        })
    }

    /// Pairs the completions of the same prompts at two steps. Each is paired with the one of the same index in its group. Prompts that
    /// only one of the steps has are left out. [`Query::select_pairs`] filters and sorts the pairs.
    ///
    /// # Errors
    /// [`Error::Input`] if a step has no completions; the hint lists the steps that have some.
    pub fn diff(&self, table: RolloutTable, before: usize, after: usize) -> Result<Vec<(Record, Record)>> {
        let of = |step| {
            let query = Query { table, first_step: Some(step), last_step: Some(step), ..Query::default() };
            let found = self.query(&query)?;
            if found.is_empty() { Err(self.no_such_step(table, step)?) } else { Ok(found) }
        };
        let place = |record: &Record| (record.prompt_index, record.rollout_index);
        let mut later: HashMap<_, VecDeque<Record>> = HashMap::new();
        let (before, after) = (of(before)?, of(after)?);
        for record in after {
            later.entry(place(&record)).or_default().push_back(record);
        }
        let pair = |record: Record| later.get_mut(&place(&record))?.pop_front().map(|other| (record, other));
        Ok(before.into_iter().filter_map(pair).collect())
    }

    /// SQL name of a table, or an empty substitute if the file's version does not have it.
    fn source(&self, table: RolloutTable) -> &'static str {
        match table {
            RolloutTable::Test if self.version < WITH_TEST_ROLLOUTS => "(SELECT * FROM eval_rollouts WHERE 0)",
            table => table.name(),
        }
    }

    /// SQL conditions of a query, and the values for their question marks.
    fn conditions(&self, query: &Query) -> Result<(String, Vec<Sql>)> {
        let (mut conditions, mut values) = conditions_of_columns(query);
        if let Some(text) = &query.text {
            // SQLite's `LIKE` folds ASCII letters only, so the texts are compared here.
            let sought = SoughtText::new(text);
            let select = format!("SELECT id, prompt, completion FROM {} WHERE {conditions}", self.source(query.table));
            let found = self.all(&select, values.clone(), |row| {
                // Other programs may have written bytes that are no text.
                let has = |column: usize| -> rusqlite::Result<bool> {
                    Ok(row.get_ref(column)?.as_str().is_ok_and(|text| sought.is_in(text)))
                };
                Ok((has(1)? || has(2)?).then_some(row.get::<_, i64>(0)?))
            })?;
            let ids: Vec<i64> = found.into_iter().flatten().collect();
            conditions += " AND id IN (SELECT value FROM json_each(?))";
            values.push(Value::from(ids).to_string().into());
        }
        Ok((conditions, values))
    }

    fn select(&self, table: RolloutTable) -> String {
        let advantage = match table {
            RolloutTable::Train => "advantage",
            RolloutTable::Eval | RolloutTable::Test => "NULL AS advantage",
        };
        let segments = if self.version < 2 { "NULL AS segments" } else { "segments" };
        let advantages = match table {
            RolloutTable::Train if self.version >= 3 => "advantages",
            _ => "NULL AS advantages",
        };
        let episode = if self.version < WITH_EPISODES { "NULL AS episode" } else { "episode" };
        let version = match table {
            RolloutTable::Train if self.version >= WITH_WEIGHT_VERSIONS => "weight_version",
            _ => "NULL AS weight_version",
        };
        format!(
            "SELECT step, epoch, prompt_index, rollout_index, prompt, completion, reward, components, kl, length, \
             stop_reason, {advantage}, {segments}, {advantages}, {episode}, {version}, id FROM {}",
            self.source(table)
        )
    }

    fn no_such_step(&self, table: RolloutTable, step: usize) -> Result<Error> {
        let steps = self.steps(table)?;
        let known = match steps[..] {
            [] => "the run has no such completions".to_owned(),
            [first, .., last] if steps.len() > 8 => {
                format!("{} steps from {first} to {last} have completions", steps.len())
            }
            _ => format!(
                "steps with completions: {}",
                steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
        };
        Ok(Error::input(format!("`{}` has no completions of step {step}", table.name())).with_hint(known))
    }

    fn all<T>(
        &self,
        text: &str,
        values: Vec<Sql>,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let found = self.connection.prepare(text).and_then(|mut statement| {
            let rows = statement.query_map(params_from_iter(values), read)?;
            rows.collect()
        });
        found.map_err(|error| failure(&self.path, error))
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let count = |place: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(place)? as usize);
    // Other programs may have written invalid JSON there; that must not hide the row.
    let components: Map<String, Value> = serde_json::from_str(&row.get::<_, String>(7)?).unwrap_or_default();
    Ok(Record {
        step: count(0)?,
        epoch: count(1)?,
        prompt_index: count(2)?,
        rollout_index: count(3)?,
        prompt: row.get(4)?,
        completion: row.get(5)?,
        reward: row.get(6)?,
        components: components.into_iter().map(|(name, value)| (name, value.as_f64())).collect(),
        kl: row.get(8)?,
        length: count(9)?,
        stop_reason: row.get(10)?,
        advantage: row.get(11)?,
        segments: segments(row.get(12)?),
        advantages: row
            .get::<_, Option<String>>(13)?
            .map_or_else(Vec::new, |text| serde_json::from_str(&text).map(of_tokens).unwrap_or_default()),
        episode: row.get::<_, Option<String>>(14)?.and_then(|text| serde_json::from_str(&text).ok()),
        weight_version: row.get(15)?,
    })
}

/// Reads the format of `writer::segments`.
fn segments(text: Option<String>) -> Vec<(String, Vec<Segment>)> {
    let written: Map<String, Value> = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    written.into_iter().map(|(name, values)| (name, of_tokens(values))).collect()
}

/// Reads the format of `writer::of_tokens`.
fn of_tokens(values: Value) -> Vec<Segment> {
    let values: Vec<(usize, usize, f64)> = serde_json::from_value(values).unwrap_or_default();
    values.into_iter().map(|(start, end, value)| Segment { characters: start..end, value }).collect()
}

/// SQL conditions of a query without its text, and the values for their question marks.
fn conditions_of_columns(query: &Query) -> (String, Vec<Sql>) {
    let (mut parts, mut values) = (vec!["1".to_owned()], Vec::new());
    let mut add = |part: &str, of: Vec<Sql>| {
        parts.push(part.to_owned());
        values.extend(of);
    };
    if let Some(step) = query.first_step {
        add("step >= ?", vec![integer(step)]);
    }
    if let Some(step) = query.last_step {
        add("step <= ?", vec![integer(step)]);
    }
    if let Some(prompt) = query.prompt_index {
        add("prompt_index = ?", vec![integer(prompt)]);
    }
    if let Some(reward) = query.min_reward {
        add("reward >= ?", vec![reward.into()]);
    }
    if let Some(reward) = query.max_reward {
        add("reward <= ?", vec![reward.into()]);
    }
    for ComponentBound { name, min, max } in &query.components {
        let mut part = "EXISTS (SELECT 1 FROM json_each(components) WHERE key = ? AND value IS NOT NULL".to_owned();
        let mut of = vec![Sql::from(name.clone())];
        for (bound, operator) in [(min, ">="), (max, "<=")] {
            if let Some(bound) = bound {
                part += &format!(" AND value {operator} ?");
                of.push((*bound).into());
            }
        }
        add(&(part + ")"), of);
    }
    if let Some(reason) = &query.stop_reason {
        add("stop_reason = ?", vec![reason.clone().into()]);
    }
    (parts.join(" AND "), values)
}

fn integer(value: usize) -> Sql {
    Sql::from(i64::try_from(value).unwrap_or(i64::MAX))
}

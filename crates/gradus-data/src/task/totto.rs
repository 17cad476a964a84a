//! ToTTo: a sentence about the highlighted cells of a table. Parikh et al. 2020,
//! <https://aclanthology.org/2020.emnlp-main.89>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::MetricConfig;

/// Keys of `totto`. The prompt is the table in one line, twice: without and with the titles of page and section, as in RL4LMs. The
/// references are the final sentences. The column `raw_table` holds the row for `parent_totto` and `bleu_totto`. Reads the authors'
/// files, and files with annotations as lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Totto {
    /// Cells that are written to the line. Default `subtable` (RL4LMs).
    pub representation: Representation,
}

impl Default for Totto {
    fn default() -> Self {
        Self { representation: Representation::Subtable }
    }
}

/// Cells of a table that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Representation {
    /// Only the highlighted cells.
    Subtable,
    /// All cells, row by row, with the highlighted ones marked.
    Fulltable,
}

impl Task for Totto {
    fn origin(&self, _split: Split) -> Origin {
        Origin::hub("google-research-datasets/totto")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let is_test = files.split() == Split::Test;
        files.rows(self.origin(files.split()), files.split(), files.max_samples(), |columns| {
            Ok(vec![self.sample(columns, is_test)?])
        })
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["parent_totto", "bleu_totto", "meteor", "rouge", "diversity"])
    }
}

impl Totto {
    fn sample(&self, mut row: Map<String, Value>, is_test: bool) -> Result<Sample, String> {
        let table = Table::read(&row)?;
        let title = |name: &str| row.get(name).and_then(Value::as_str).filter(|title| !title.is_empty());
        let titles = [("page_title", title("table_page_title")), ("section_title", title("table_section_title"))];
        let plain = table.line(self.representation);
        let titles: String =
            titles.iter().filter_map(|(tag, title)| Some(format!("<{tag}> {} </{tag}> ", (*title)?))).collect();
        let prompt = format!("{plain}{titles}{plain}");
        let mut annotations = annotations(row.get("sentence_annotations"))?;
        let final_sentence = |of: &Value| of["final_sentence"].as_str().map(str::to_owned);
        let references = match is_test {
            // The sentences of the test split are not published. An empty reference keeps metrics working, as in RL4LMs.
            true => {
                annotations.truncate(1);
                vec![String::new()]
            }
            false => annotations.iter().filter_map(final_sentence).collect(),
        };
        row.insert("sentence_annotations".into(), annotations.into());
        let overlaps = row.get("overlap_subset").is_some_and(|value| *value == json!(true) || *value == "True");
        row.insert("overlap_subset".into(), overlaps.into());
        Ok(Sample { prompt, references, metadata: Map::from_iter([("raw_table".to_owned(), Value::Object(row))]) })
    }
}

/// Returns annotations as a list of mappings. Some copies of the data have a mapping of lists.
fn annotations(value: Option<&Value>) -> Result<Vec<Value>, String> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list.clone()),
        Some(Value::Object(lists)) => {
            let count = lists.values().filter_map(Value::as_array).map(Vec::len).max().unwrap_or(0);
            let one = |i: usize| {
                let of = lists.iter().map(|(name, list)| (name.clone(), list.get(i).cloned().unwrap_or_default()));
                Value::Object(of.collect())
            };
            Ok((0..count).map(one).collect())
        }
        Some(other) => Err(format!("`sentence_annotations` is {other}, expected a list")),
    }
}

struct Cell<'a> {
    value: &'a str,
    is_header: bool,
    /// Range of columns that the cell covers, given that cells to its left may cover several.
    columns: (u64, u64),
}

struct Table<'a> {
    rows: Vec<Vec<Cell<'a>>>,
    highlighted: Vec<(usize, usize)>,
}

impl<'a> Table<'a> {
    fn read(row: &'a Map<String, Value>) -> Result<Self, String> {
        let rows =
            row.get("table").and_then(Value::as_array).ok_or("missing column `table`, a list of rows of cells")?;
        let read_row = |row: &'a Value| {
            let mut next = 0u64;
            let cells = row.as_array().ok_or("`table` holds a row that is not a list of cells")?;
            let cell = |cell: &'a Value| {
                let value = cell["value"].as_str().ok_or("`table` holds a cell without a text `value`")?;
                let start = next;
                next = next.saturating_add(cell["column_span"].as_u64().unwrap_or(1));
                Ok(Cell { value, is_header: cell["is_header"] == json!(true), columns: (start, next) })
            };
            cells.iter().map(cell).collect::<Result<Vec<_>, &str>>()
        };
        let rows: Vec<Vec<Cell<'_>>> = rows.iter().map(read_row).collect::<Result<_, &str>>()?;
        let pairs = row.get("highlighted_cells").and_then(Value::as_array);
        let pairs = pairs.ok_or("missing column `highlighted_cells`, a list of pairs of row and column")?;
        let place = |pair: &Value| {
            let at = |i: usize| pair.get(i).and_then(Value::as_u64).map(|number| number as usize);
            let found = at(0).zip(at(1)).filter(|&(row, column)| rows.get(row).is_some_and(|row| column < row.len()));
            found.ok_or_else(|| format!("`highlighted_cells` holds {pair}, which is not a cell of the table"))
        };
        let highlighted = pairs.iter().map(place).collect::<Result<_, String>>()?;
        Ok(Self { rows, highlighted })
    }

    /// Formats the table in one line, without titles.
    fn line(&self, representation: Representation) -> String {
        let mut text = String::from("<table> ");
        match representation {
            Representation::Subtable => self.highlighted.iter().for_each(|&at| self.cell(at, "cell", &mut text)),
            Representation::Fulltable => {
                let highlighted: std::collections::HashSet<_> = self.highlighted.iter().copied().collect();
                for (r, row) in self.rows.iter().enumerate() {
                    text += "<row> ";
                    for c in 0..row.len() {
                        let tag = if highlighted.contains(&(r, c)) { "highlighted_cell" } else { "cell" };
                        self.cell((r, c), tag, &mut text);
                    }
                    text += "</row> ";
                }
            }
        }
        text + "</table>"
    }

    /// Formats a cell with its headers: those above that cover one of its columns, and those to its left in its row.
    fn cell(&self, (r, c): (usize, usize), tag: &str, text: &mut String) {
        let mut write = |tag: &str, value: &str| *text += &format!("<{tag}> {value} ");
        let cell = &self.rows[r][c];
        let covers = |other: &&Cell<'_>| other.columns.0 < cell.columns.1 && other.columns.1 > cell.columns.0;
        write(tag, cell.value);
        for header in self.rows[..r].iter().flatten().filter(covers).filter(|other| other.is_header) {
            write("col_header", &format!("{} </col_header>", header.value));
        }
        for header in self.rows[r][..c].iter().filter(|other| other.is_header) {
            write("row_header", &format!("{} </row_header>", header.value));
        }
        *text += &format!("</{tag}> ");
    }
}

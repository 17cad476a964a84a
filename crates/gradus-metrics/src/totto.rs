//! ToTTo's evaluation: the texts and tables that its official scripts compare.
//!
//! Parikh et al. 2020, <https://aclanthology.org/2020.emnlp-main.89>. All texts are lower-cased and detokenized by Moses' rules. An empty
//! prediction becomes `<null>`, and references are padded to three with `<null>`.

use serde_json::{Map, Value};

use crate::detokenize::detokenized;
use crate::mteval::Tokenizer;
use crate::{Row, RowError};

/// Subsets of rows: all, those whose table header occurred in training, and the others.
pub const SUBSETS: [&str; 3] = ["overall", "overlap", "non_overlap"];

/// Parts of a row that are compared.
#[derive(Debug)]
pub struct TottoRow {
    /// The prediction.
    pub prediction: String,
    /// Three references.
    pub references: Vec<String>,
    /// Words of each value in the table and of its title texts.
    pub precision_table: Vec<Vec<String>>,
    /// Words of each highlighted value and of the titles.
    pub recall_table: Vec<Vec<String>>,
    /// Whether the table header occurred in training; `None` if the row does not record it.
    pub overlap: Option<bool>,
}

impl TottoRow {
    /// Reads a row whose columns are those of ToTTo's files, or are nested in a column `raw_table`.
    ///
    /// # Errors
    /// The row has no table or a malformed one.
    pub fn of(place: usize, row: &Row) -> Result<Self, RowError> {
        let columns = columns(row);
        let wrong = |message: &str| RowError::new(place, message);
        let table = columns.get("table").and_then(cells).ok_or_else(|| {
            wrong("expected a column `table`: rows of cells with `value` and `is_header`, as in ToTTo's files")
        })?;
        let highlighted = columns
            .get("highlighted_cells")
            .and_then(|value| highlighted(value, &table))
            .ok_or_else(|| wrong("expected a column `highlighted_cells`: pairs of row and column of the table"))?;
        let title = |name: &str| columns.get(name).and_then(Value::as_str).unwrap_or_default();
        let titles = [("page_title", title("table_page_title")), ("section_title", title("table_section_title"))];
        let with_text = [titles[0], titles[1], ("section_text", title("table_section_text"))];
        let all: Vec<&Cell> = table.iter().flatten().collect();
        Ok(Self {
            prediction: match prepared(&row.prediction) {
                nothing if nothing.is_empty() => NULL.into(),
                prediction => prediction,
            },
            references: references(row),
            precision_table: entries(&all, &with_text),
            recall_table: entries(&highlighted, &titles),
            overlap: columns.get("overlap_subset").and_then(|value| match value {
                Value::Bool(overlap) => Some(*overlap),
                Value::String(text) => text.to_lowercase().parse().ok(),
                _ => None,
            }),
        })
    }

    /// Returns whether the row belongs to the subset.
    pub fn is_in(&self, subset: &str) -> bool {
        match subset {
            "overlap" => self.overlap == Some(true),
            "non_overlap" => self.overlap == Some(false),
            _ => true,
        }
    }
}

/// Replacement for an empty prediction and for missing references.
const NULL: &str = "<null>";

/// Number of references that the official scripts compare.
const REFERENCES: usize = 3;

/// Returns a note if a row has more references than are compared.
pub fn remark(rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
    let mut has_more = rows.map(|row| texts(&row).len() > REFERENCES);
    has_more.any(|has_more| has_more).then(|| {
        "with the first three references of a row, as in ToTTo's evaluation, but some rows have more".to_owned()
    })
}

/// Returns the columns of ToTTo's files.
fn columns(row: &Row) -> &Map<String, Value> {
    match row.metadata.get("raw_table") {
        Some(Value::Object(columns)) => columns,
        _ => &row.metadata,
    }
}

/// Lower-cases a text, joins its lines and detokenizes it.
fn prepared(text: &str) -> String {
    detokenized(text.to_lowercase().replace('\n', " ").trim())
}

/// Returns the words that are compared.
pub fn words(text: &str) -> Vec<String> {
    crate::characters::split(&Tokenizer::V13a.tokenize(&text.trim().to_lowercase())).map(str::to_owned).collect()
}

/// Returns the row's references, or those of its `sentence_annotations`.
fn texts(row: &Row) -> Vec<String> {
    let annotated = || -> Option<Vec<String>> {
        let sentence = |value: &Value| value.get("final_sentence").and_then(Value::as_str).map(str::to_owned);
        match columns(row).get("sentence_annotations")? {
            Value::Array(annotations) => annotations.iter().map(sentence).collect(),
            annotations => {
                let texts = annotations.get("final_sentence")?.as_array()?;
                texts.iter().map(|text| text.as_str().map(str::to_owned)).collect()
            }
        }
    };
    if row.references.is_empty() { annotated().unwrap_or_default() } else { row.references.clone() }
}

/// Returns the first three references. Missing ones are `<null>`.
fn references(row: &Row) -> Vec<String> {
    let mut texts: Vec<String> = texts(row).iter().take(REFERENCES).map(|text| prepared(text)).collect();
    texts.resize_with(REFERENCES, || NULL.into());
    texts
}

struct Cell {
    value: String,
    is_header: bool,
}

fn cells(table: &Value) -> Option<Vec<Vec<Cell>>> {
    let cell = |cell: &Value| {
        let is_header = cell.get("is_header")?.as_bool()?;
        Some(Cell { value: cell.get("value")?.as_str()?.to_owned(), is_header })
    };
    table.as_array()?.iter().map(|row| row.as_array()?.iter().map(cell).collect()).collect()
}

fn highlighted<'a>(places: &Value, table: &'a [Vec<Cell>]) -> Option<Vec<&'a Cell>> {
    let cell = |place: &Value| {
        let at = |i: usize| usize::try_from(place.get(i)?.as_u64()?).ok();
        table.get(at(0)?)?.get(at(1)?)
    };
    places.as_array()?.iter().map(cell).collect()
}

/// Returns the words of the values of cells and titles, as the scripts read them back from a tab-separated line of `attribute|||value`.
fn entries(cells: &[&Cell], titles: &[(&str, &str)]) -> Vec<Vec<String>> {
    let of_cells = cells.iter().map(|cell| (if cell.is_header { "header" } else { "cell" }, cell.value.trim()));
    let entries = of_cells.chain(titles.iter().copied()).filter(|(_, value)| !value.is_empty());
    let line: Vec<String> =
        entries.map(|(attribute, value)| format!("{attribute}|||{}", value.replace('|', "-"))).collect();
    let line = detokenized(&line.join("\t").to_lowercase().replace('\n', " "));
    line.split('\t').map(|entry| words(entry.split("|||").nth(1).unwrap_or_default())).collect()
}

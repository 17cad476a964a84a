//! Files for experiment trackers, byte for byte as written by TensorBoard's record writer and with wandb's messages.

use gradus::run::{Metrics, MetricsRow};
use gradus::trackers::{Encoder, LoggedTable, TensorBoard, Wandb, WandbRun};
use serde_json::Value;

use crate::fixture::{folder, list, number, read, text};

/// Rows with the times at their ends in seconds.
fn rows(fixture: &Value) -> Vec<(MetricsRow, f64)> {
    let value = |value: &Value| match value.as_str() {
        Some("NaN") => f64::NAN,
        Some("Infinity") => f64::INFINITY,
        _ => number(value),
    };
    let row = |row: &Value| {
        let values = row["values"].as_object().expect("names and values");
        let values: Metrics = values.iter().map(|(name, found)| (name.clone(), value(found))).collect();
        (MetricsRow { step: number(&row["step"]) as usize, values }, number(&row["seconds"]))
    };
    list(&fixture["rows"]).iter().map(row).collect()
}

#[track_caller]
fn written(mut encoder: impl Encoder, rows: &[(MetricsRow, f64)], table: &LoggedTable, file: &str) {
    let mut bytes = encoder.begin();
    for (i, (row, seconds)) in rows.iter().enumerate() {
        let tables = if i + 1 == rows.len() { std::slice::from_ref(table) } else { &[] };
        bytes.extend(encoder.row(row, tables, *seconds));
    }
    bytes.extend(encoder.end(rows[rows.len() - 1].1));
    let expected = std::fs::read(folder().join("trackers").join(file)).expect("a fixture");
    let first = bytes.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!((bytes.len(), first), (expected.len(), None), "{file}: length, and the first byte that differs");
}

/// Returns the table of the last row, with the same content as the package writes.
fn table(fixture: &Value) -> LoggedTable {
    let table = &fixture["table"];
    let columns: Vec<String> = list(&table["columns"]).iter().map(|name| text(name).to_owned()).collect();
    let data: Vec<Vec<Value>> = list(&table["data"]).iter().map(|row| list(row).to_vec()).collect();
    let made = LoggedTable::new("eval_predictions", 300, &columns, &data);
    assert_eq!(made.content, text(&table["content"]));
    made
}

#[test]
fn events_of_tensorboard() {
    let fixture = read("trackers/fixture.json");
    let encoder = TensorBoard::new(number(&fixture["started"]) as u64);
    written(encoder, &rows(&fixture), &table(&fixture), "events.tfevents");
}

#[test]
fn log_of_wandb() {
    let fixture = read("trackers/fixture.json");
    let mut config = fixture["config"].as_object().expect("a configuration").clone();
    // The value fills several blocks except for three bytes, too few for a frame.
    let long = "x".repeat(number(&config["long"]) as usize);
    config.insert("long".into(), long.into());
    let (id, name) = (text(&fixture["id"]).to_owned(), text(&fixture["name"]).to_owned());
    let (project, entity) = ("gradus".to_owned(), None);
    let run = WandbRun { id, name, project, entity, started: number(&fixture["started"]) as u64, config };
    written(Wandb::new(run), &rows(&fixture), &table(&fixture), "run.wandb");
}

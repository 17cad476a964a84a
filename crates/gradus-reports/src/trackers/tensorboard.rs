//! TensorBoard's event file: `tensorboard/events.out.tfevents.<start>.gradus`.
//!
//! A record consists of the length of its content (8 bytes), the masked CRC of the length, the content, and the masked CRC of the content.
//! Numbers are little-endian. The content is an `Event` of `tensorflow/core/util/event.proto`.

use super::crc::masked;
use super::protobuf::Message;
use super::{Encoder, LoggedTable};
use crate::run::metrics::MetricsRow;

const PREFIX: &str = "events.out.tfevents.";

/// File name for a run's start in seconds since 1970.
pub(super) fn file_name(started: u64) -> String {
    format!("{PREFIX}{started}.gradus")
}

/// Start of the run according to a file name.
pub(super) fn started_at(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(".gradus")?.parse().ok()
}

/// Writes one event per row, with a scalar for each metric.
#[derive(Debug, Clone)]
pub struct TensorBoard {
    started: u64,
}

impl TensorBoard {
    /// Creates the encoder for a run's start in seconds since 1970.
    pub fn new(started: u64) -> Self {
        Self { started }
    }

    /// An `Event`: `wall_time` = 1, `step` = 2.
    fn event(&self, seconds: f64, step: usize) -> Message {
        Message::new().double(1, self.started as f64 + seconds).integer(2, step as u64)
    }
}

impl Encoder for TensorBoard {
    fn begin(&mut self) -> Vec<u8> {
        // `file_version` = 3.
        record(&self.event(0.0, 0).text(3, "brain.Event:2").into_bytes())
    }

    fn row(&mut self, row: &MetricsRow, _tables: &[LoggedTable], seconds: f64) -> Vec<u8> {
        // A `Summary` is repeated `value` = 1 with `tag` = 1 and `simple_value` = 2; an `Event` holds it as 5.
        let value = |(tag, value): (&str, f64)| Message::new().text(1, tag).float(2, value as f32);
        let summary = Message::new().messages(1, row.values.iter().map(value));
        record(&self.event(seconds, row.step).message(5, summary).into_bytes())
    }

    fn end(&mut self, _seconds: f64) -> Vec<u8> {
        Vec::new()
    }
}

fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let check = |bytes: &[u8]| masked(bytes).to_le_bytes();
    [&length[..], &check(&length), content, &check(content)].concat()
}

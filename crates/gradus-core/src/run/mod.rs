//! The run directory: the interface between training and everything that reads its files.
//!
//! Training writes, others read. Complete files are written under a temporary name and renamed, so a kill at any moment leaves the last
//! good state. `metrics.jsonl` and `log.txt` grow by lines, and `rollouts.sqlite` by transactions. `docs/formats.md` describes every file.

pub mod checkpoint;
pub mod checksums;
pub mod claim;
pub mod database;
pub mod directory;
mod kept_records;
pub mod log;
pub mod metrics;
mod replaced_run;
pub mod samples;
mod scan;
pub mod smoothing;
pub mod tensors;
pub mod trainer_state;

pub use checkpoint::{Checkpoint, DataFingerprint, Origin, RowsFingerprint, RunState};
pub use claim::{Claim, Stage, StateFile, SweepClaim};
pub use database::{RolloutDb, RolloutWriter};
pub use directory::{Existing, RunDir, WRITTEN_BY};
pub use kept_records::KeptRecords;
pub use metrics::{Axis, Metrics, MetricsLog, MetricsRow, is_measurement, read_metrics};
pub use scan::scan_metrics;
pub use tensors::{NamedTensor, StateTensor};
pub use trainer_state::TrainerState;

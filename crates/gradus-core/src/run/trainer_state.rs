//! `trainer_state.json`: the training state under the names of `transformers`, so that its tools can read a checkpoint.
//!
//! `transformers` builds its own state from this object and rejects unknown keys. State that only gradus needs is therefore in
//! [`RunState`](super::RunState).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::metrics::MetricsRow;

/// Content of the file; keys in alphabetical order, as `transformers` 5.23 writes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainerState {
    /// Step that reached the best metric.
    pub best_global_step: Option<usize>,
    /// Best value of the metric that selects `best/`.
    pub best_metric: Option<f64>,
    /// Directory of the best model.
    pub best_model_checkpoint: Option<String>,
    /// Passes over the data so far, as a fraction.
    pub epoch: f64,
    /// Number of steps between evaluations.
    pub eval_steps: usize,
    /// Optimizer steps so far.
    pub global_step: usize,
    /// Always false.
    pub is_hyper_param_search: bool,
    /// Always true.
    pub is_local_process_zero: bool,
    /// Always true.
    pub is_world_process_zero: bool,
    /// Logged rows: flat objects with `step` and `epoch`.
    pub log_history: Vec<Map<String, Value>>,
    /// Number of steps between rows of the history.
    pub logging_steps: usize,
    /// Total number of optimizer steps of the run.
    pub max_steps: usize,
    /// Tokens that the model has processed.
    pub num_input_tokens_seen: u64,
    /// Total number of passes over the data, rounded up.
    pub num_train_epochs: usize,
    /// Number of steps between checkpoints.
    pub save_steps: usize,
    /// Unused.
    pub stateful_callbacks: Map<String, Value>,
    /// Not counted.
    pub total_flos: f64,
    /// Rows per step.
    pub train_batch_size: Option<usize>,
    /// Unused.
    pub trial_name: Option<String>,
    /// Unused.
    pub trial_params: Option<Map<String, Value>>,
}

impl Default for TrainerState {
    fn default() -> Self {
        Self {
            best_global_step: None,
            best_metric: None,
            best_model_checkpoint: None,
            epoch: 0.0,
            eval_steps: 0,
            global_step: 0,
            is_hyper_param_search: false,
            is_local_process_zero: true,
            is_world_process_zero: true,
            log_history: Vec::new(),
            logging_steps: 1,
            max_steps: 0,
            num_input_tokens_seen: 0,
            num_train_epochs: 0,
            save_steps: 0,
            stateful_callbacks: Map::new(),
            total_flos: 0.0,
            train_batch_size: None,
            trial_name: None,
            trial_params: None,
        }
    }
}

impl TrainerState {
    /// Appends logged rows to the history, with sorted keys.
    pub fn extend_history<'a>(&mut self, rows: impl IntoIterator<Item = &'a MetricsRow>) {
        self.log_history.extend(rows.into_iter().map(|row| {
            let mut object = row.to_json();
            object.sort_keys();
            object
        }));
    }

    /// Text of the file: indented by two spaces, with a newline at the end.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("plain data with string keys");
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_exactly_those_of_transformers_in_its_order() {
        let mut state = TrainerState { global_step: 2, best_metric: Some(f64::NAN), ..TrainerState::default() };
        let values = [("loss", f64::INFINITY), ("epoch", 0.5)].into_iter().collect();
        state.extend_history([&MetricsRow { step: 2, values }]);
        let text = state.to_text();
        let object: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let keys: Vec<_> = object.keys().map(String::as_str).collect();
        assert_eq!(
            keys.join(", "),
            "best_global_step, best_metric, best_model_checkpoint, epoch, eval_steps, global_step, \
             is_hyper_param_search, is_local_process_zero, is_world_process_zero, log_history, logging_steps, \
             max_steps, num_input_tokens_seen, num_train_epochs, save_steps, stateful_callbacks, total_flos, \
             train_batch_size, trial_name, trial_params"
        );
        assert!(
            text.starts_with("{\n  \"best_global_step\": null,\n  \"best_metric\": null,") && text.ends_with("}\n")
        );
        assert_eq!(object["log_history"].to_string(), r#"[{"epoch":0.5,"loss":null,"step":2}]"#);
    }
}

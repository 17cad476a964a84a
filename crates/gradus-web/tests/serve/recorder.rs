//! A trainer for tests that records requests instead of starting runs.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gradus_web::{ProcessTask, RunStarter, RunningProcess};
use serde_json::{Value, json};

/// Starts nothing, and records what it was asked to start.
#[derive(Debug, Default)]
pub struct Recorder {
    requests: Mutex<Vec<String>>,
    has_ended: Arc<AtomicBool>,
}

impl Recorder {
    /// Marks everything that was started as ended.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// Returns the recorded requests.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("it").clone()
    }
}

struct StartedProcess(Arc<AtomicBool>);

impl RunningProcess for StartedProcess {
    fn has_ended(&mut self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl RunStarter for Recorder {
    fn forecast(&self, config: &Path) -> gradus::Result<Value> {
        let text = fs::read_to_string(config).expect("the configuration is there");
        self.requests.lock().expect("it").push(format!("plan {text}"));
        let phase = json!({ "name": "update", "weights": 3_000_000, "gradients": 1_000_000, "moments": 0, "activations": 0, "working": 0, "pages": 0, "program": 0 });
        Ok(json!({ "phases": [phase], "peak_bytes": 4_000_000, "memory_bytes": 8_000_000_000u64, "fits": true }))
    }

    fn begin(&self, task: &ProcessTask<'_>, log: &Path) -> gradus::Result<Box<dyn RunningProcess>> {
        let request = match task {
            ProcessTask::Train { config } => format!("train {}", fs::read_to_string(config).expect("it is there")),
            ProcessTask::Resume { run, max_steps } => format!("resume {} {max_steps:?}", run.display()),
            ProcessTask::Demo { output } => format!("demo {}", output.display()),
            ProcessTask::Compare(of) => {
                fs::write(of.progress, "{\"done\": 16, \"of\": 100}").expect("written");
                format!("compare {} {:?} {:?}", of.name, of.prompts, of.models)
            }
        };
        fs::write(log, "error: <b>no</b> tea\n").expect("written");
        self.requests.lock().expect("it").push(request);
        Ok(Box::new(StartedProcess(Arc::clone(&self.has_ended))))
    }
}

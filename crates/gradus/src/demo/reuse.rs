//! An existing demonstration. It is reused if it is complete and unchanged.

use serde_json::Value;

use super::Options;
use super::recipe::{self, Layout, Stage};
use crate::config::{Plan, Request, RunConfig, other_settings};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::rng::Seed;
use crate::run::Existing;
use crate::run::claim::{self, read_state};
use crate::task::demo::Sizes;
use crate::task::demo::data::contents;

/// Returns the content of `results.json` if the directory already contains the demonstration of `options`, complete and
/// unchanged. Returns `None` if it contains no demonstration, or if the demonstration is to be replaced.
///
/// # Errors
/// If the demonstration in the directory is incomplete, has other settings, or has changed.
pub fn finished(options: &Options) -> Result<Option<Value>> {
    let layout = Layout { root: options.output_dir.clone() };
    if options.existing != Existing::Refuse || !recipe::is_written(&layout) {
        return Ok(None);
    }
    let problem = match problem(options, &layout)? {
        Some(problem) => problem,
        None => match results(&layout) {
            Some(results) => return Ok(Some(results)),
            None => NOT_COMPLETE.to_owned(),
        },
    };
    let message = format!("`{}` contains a demonstration, but {problem}", layout.root.display());
    Err(Error::input(message).with_hint("pass `--overwrite` to make it again, or choose another `--output-dir`"))
}

const NOT_COMPLETE: &str = "it is not complete";

fn results(layout: &Layout) -> Option<Value> {
    let text = std::fs::read_to_string(layout.root.join("results.json")).ok()?;
    serde_json::from_str(&text).ok()
}

/// Returns the first difference between the files and a finished demonstration of `options`.
fn problem(options: &Options, layout: &Layout) -> Result<Option<String>> {
    for stage in Stage::ALL {
        let path = layout.recipe(stage);
        let expected = recipe::text(layout, stage, options.budget, (options.seed, &options.device));
        match std::fs::read_to_string(&path) {
            Ok(text) if text == expected => {}
            Ok(_) => return Ok(Some(format!("`{}` has other settings", path.display()))),
            Err(_) => return Ok(Some(NOT_COMPLETE.to_owned())),
        }
    }
    for (name, expected) in contents(Seed(options.seed), &Sizes::default()) {
        let path = layout.data().join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) if text == expected => {}
            Ok(_) => return Ok(Some(format!("`{}` has changed", path.display()))),
            Err(_) => return Ok(Some(NOT_COMPLETE.to_owned())),
        }
    }
    for stage in Stage::ALL {
        let run = layout.run(stage);
        let state = read_state(&run)?.map(|state| state.state);
        if state != Some(claim::Stage::Finished) || !layout.model(stage).join("model.safetensors").is_file() {
            return Ok(Some(NOT_COMPLETE.to_owned()));
        }
        let file = layout.recipe(stage);
        let written = RunConfig::load(&Request { file: Some(&file), ..Request::default() })?;
        if !other_settings(&Plan::check(&written, &Machine::detect())?)?.is_empty() {
            return Ok(Some(format!("the run in `{}` has other settings", run.display())));
        }
    }
    Ok(None)
}

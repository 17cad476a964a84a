//! Creates the environment of a run from its configuration.

use std::collections::HashMap;
use std::sync::Arc;

use gradus_environments as env;
use gradus_environments::{Combined, Recorded, Replay, ToolSource};

use super::prepare::Start;
use crate::config::Plan;
use crate::error::{Diagnostic, Error, Result};
use crate::plugin::Plugin;
use crate::rollout::Dialogue;
use crate::rollout::episodes::{Episodes, Limits};
use crate::settings::{EpisodeConfig, ToolConfig};

/// Returns the environment of `plan`, or `None` without one. `recorded` episodes are replayed if the environment is not deterministic.
///
/// # Errors
/// [`Error::Config`] if the environment cannot be used; [`Error::Input`] if the model cannot call its tools.
pub fn open(plan: &Plan, start: &Start, recorded: HashMap<String, Recorded>) -> Result<Option<Episodes>> {
    let config = plan.config();
    let of_tools = |error| refused("tools", error);
    let make = |plugin: &Plugin<dyn ToolSource>| plugin.make()?();
    let toolbox = || ToolConfig::toolbox(&config.tools, make, of_tools);
    let environment: Arc<dyn env::Environment> = match &config.environment {
        None if config.tools.is_empty() => return Ok(None),
        None => Arc::new(toolbox()?),
        Some(environment) => {
            let environment = environment.build(|plugin| plugin.make()?(), |error| refused("environment", error))?;
            match config.tools.is_empty() {
                true => environment,
                false => Arc::new(Combined::new(environment, toolbox()?).map_err(of_tools)?),
            }
        }
    };
    let EpisodeConfig { max_turns, timeout_s, max_time_s, at_once, reply_after, tool_calls, .. } = config.episode;
    // Records do not contain prompts.
    let is_played = environment.is_deterministic() || recorded.is_empty() || environment.writes_prompts();
    let environment = match is_played {
        true => environment,
        false => Arc::new(Replay::new(environment, recorded)),
    };
    let mut dialogue = Dialogue {
        tokenizer: start.model.tokenizer.clone(),
        template: start.model.template.clone(),
        tools: environment.tools().iter().map(env::Tool::to_template).collect(),
        stop_ids: start.model.stop_ids(),
        read_calls: None,
    };
    if !dialogue.tools.is_empty() {
        let format = tool_calls.map_or_else(|| dialogue.call_format(), Ok)?;
        dialogue.check_tools()?;
        let tools = dialogue.tools.clone();
        dialogue.read_calls =
            Some(Box::new(move |text: &str, begins_in_thought: bool| format.read_for(text, begins_in_thought, &tools)));
    }
    let limits =
        Limits { turns: max_turns, answer_s: timeout_s, episode_s: max_time_s, at_once, answer_after: reply_after };
    Ok(Some(Episodes { environment, dialogue, limits }))
}

/// Converts the error of an unusable environment into a configuration error.
fn refused(key: &str, error: env::Error) -> Error {
    match error {
        env::Error::Interrupted => Error::Interrupted,
        env::Error::Config { message, hint } | env::Error::Episode { message, hint } => {
            Error::Config(vec![Diagnostic { message: format!("`{key}`: {message}"), locations: Vec::new(), hint }])
        }
    }
}

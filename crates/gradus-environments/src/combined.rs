//! An environment with additional tools.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::tool::Tool;
use crate::toolbox::Toolbox;

/// An environment and a [`Toolbox`]. The toolbox answers calls of its tools; everything else goes to the environment.
///
/// A turn that calls only tools of the toolbox does not reach the environment. A call of an unknown tool goes to the environment if that
/// has tools, otherwise to the toolbox. So the policy always reads an answer.
pub struct Combined {
    environment: Arc<dyn Environment>,
    toolbox: Toolbox,
    tools: Vec<Tool>,
}

impl Combined {
    /// Combines both. The environment's tools come first.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if both have a tool of the same name, or if the environment writes prompts itself.
    pub fn new(environment: Arc<dyn Environment>, toolbox: Toolbox) -> Result<Self> {
        if environment.writes_prompts() {
            return Err(Error::config("the environment shows its own tools, so further `tools` are not possible")
                .with_hint("leave out `tools`, and give them to the environment server"));
        }
        if let Some(tool) = environment.tools().iter().find(|tool| toolbox.has(&tool.name)) {
            return Err(Error::config(format!("the environment already has a tool `{}`", tool.name))
                .with_hint("leave that tool out of `tools`; for an `mcp` server, use `except: [NAME]`"));
        }
        let tools = environment.tools().iter().chain(toolbox.tools()).cloned().collect();
        Ok(Self { environment, toolbox, tools })
    }
}

impl Environment for Combined {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let NewEpisode { episode, opening } = self.environment.begin(start)?;
        let takes_calls = !self.environment.tools().is_empty();
        let episode = CombinedEpisode { episode, toolbox: self.toolbox.clone(), takes_calls };
        Ok(NewEpisode { episode: Box::new(episode), opening })
    }

    fn is_deterministic(&self) -> bool {
        self.environment.is_deterministic() && self.toolbox.is_deterministic()
    }
}

struct CombinedEpisode {
    episode: Box<dyn Episode>,
    toolbox: Toolbox,
    /// Whether the environment has tools of its own.
    takes_calls: bool,
}

impl Episode for CombinedEpisode {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let is_extra: Vec<bool> =
            turn.calls.iter().map(|call| !self.takes_calls || self.toolbox.has(&call.name)).collect();
        let of =
            |extra: bool| turn.calls.iter().zip(&is_extra).filter(move |(_, is)| **is == extra).map(|(call, _)| call);
        if turn.calls.is_empty() || is_extra.contains(&false) {
            let own = Turn { calls: of(false).cloned().collect(), ..turn.clone() };
            let mut observation = self.episode.step(&own)?;
            // After the end, answers are not read.
            if !observation.is_done {
                let answered = self.toolbox.answer(of(true))?;
                if !answered.replies.is_empty() {
                    answered.count(&mut observation.metrics);
                    observation.replies = in_order(&is_extra, observation.replies, answered.replies);
                }
            }
            return Ok(observation);
        }
        let answered = self.toolbox.answer(&turn.calls)?;
        let mut observation = Observation::default();
        answered.count(&mut observation.metrics);
        observation.replies = answered.replies;
        Ok(observation)
    }

    fn object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.episode.object()
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        self.episode.finish()
    }
}

/// Sorts the answers into the order of their calls. Other messages of the environment come last.
fn in_order(is_extra: &[bool], own: Vec<Reply>, extra: Vec<Reply>) -> Vec<Reply> {
    let (own, others): (Vec<Reply>, Vec<Reply>) =
        own.into_iter().partition(|reply| matches!(reply, Reply::Tool { .. }));
    let (mut own, mut extra) = (VecDeque::from(own), VecDeque::from(extra));
    let mut replies: Vec<Reply> =
        is_extra.iter().filter_map(|&is| if is { extra.pop_front() } else { own.pop_front() }).collect();
    replies.extend(own);
    replies.extend(others);
    replies
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::functions::Calculator;
    use crate::games::{Arithmetic, ArithmeticConfig, Guess, GuessConfig};
    use crate::tool::Call;
    use crate::toolbox::{CallResult, Function};

    /// Returns its argument.
    struct Echo(Tool);

    impl Echo {
        fn boxed() -> Box<Self> {
            let parameters = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
            Box::new(Self(Tool { name: "echo".into(), description: String::new(), parameters, returns: None }))
        }
    }

    impl Function for Echo {
        fn tool(&self) -> &Tool {
            &self.0
        }

        fn call(&self, arguments: &Map<String, Value>) -> CallResult {
            arguments.get("text").and_then(Value::as_str).map(str::to_owned).ok_or_else(|| "no text".to_owned())
        }
    }

    fn call(name: &str, arguments: Value) -> Call {
        Call { id: None, name: name.into(), arguments: Ok(arguments.as_object().cloned().expect("an object")) }
    }

    fn turn(text: &str, calls: Vec<Call>) -> Turn {
        Turn { text: text.into(), content: text.into(), calls, ..Turn::default() }
    }

    fn begin(environment: impl Environment + 'static, toolbox: Toolbox) -> Box<dyn Episode> {
        let combined = Combined::new(Arc::new(environment), toolbox).expect("names differ");
        assert!(combined.is_deterministic());
        combined.begin(&Start { name: "a".into(), seed: 5, row: Map::new() }).expect("begun").episode
    }

    fn contents(observation: &Observation) -> Vec<&str> {
        observation.replies.iter().map(Reply::content).collect()
    }

    #[test]
    fn a_game_with_a_calculator_counts_only_its_own_turns() {
        let toolbox = Toolbox::new(vec![Box::new(Calculator::default())]).expect("one tool");
        let guess = Guess::new(GuessConfig { low: 1, high: 1000, guesses: 2, ..GuessConfig::default() });
        let mut episode = begin(guess.expect("a game"), toolbox);
        for _ in 0..5 {
            let sum = call("calculator", json!({ "expression": "250 + 250" }));
            let found = episode.step(&turn("I compute 1.", vec![sum])).expect("answered");
            assert_eq!((contents(&found), found.is_done, found.reward), (vec!["500"], false, None));
            assert_eq!(found.metrics["tools/calls"], 1.0);
        }
        let unknown = episode.step(&turn("", vec![call("abacus", json!({}))])).expect("answered");
        assert_eq!(contents(&unknown), ["{'error': 'Tool abacus not found.'}"]);
        let first = episode.step(&turn("0", Vec::new())).expect("answered");
        assert_eq!((contents(&first), first.is_done), (vec!["higher"], false));
        let last = episode.step(&turn("0", Vec::new())).expect("answered");
        assert_eq!((last.is_done, last.reward), (true, Some(0.0)));
    }

    #[test]
    fn answers_follow_the_order_of_the_calls() {
        let environment = Arithmetic::new(ArithmeticConfig::default()).expect("an environment");
        let mut episode = begin(environment, Toolbox::new(vec![Echo::boxed()]).expect("one tool"));
        let calls = vec![
            call("echo", json!({ "text": "a" })),
            call("calculator", json!({ "expression": "1 + 1" })),
            call("echo", json!({ "text": "b" })),
            call("abacus", json!({})),
        ];
        let found = episode.step(&turn("", calls)).expect("answered");
        let abacus = "{'error': 'Tool abacus not found.'}";
        assert_eq!(contents(&found), ["a", "2", "b", abacus]);
        assert_eq!((found.metrics["tools/calls"], found.metrics["tools/failures"]), (4.0, 1.0));
        assert!(episode.step(&turn("It is 3.", Vec::new())).expect("answered").is_done);
        assert_eq!(episode.finish(), Ok(Some(0.0)), "the environment's reward");
    }

    #[test]
    fn two_tools_of_one_name_are_refused() {
        let environment = Arc::new(Arithmetic::new(ArithmeticConfig::default()).expect("an environment"));
        let toolbox = Toolbox::new(vec![Box::new(Calculator::default())]).expect("one tool");
        let error = Combined::new(environment, toolbox).err().expect("refused");
        assert_eq!(error.to_string(), "the environment already has a tool `calculator`");
    }
}

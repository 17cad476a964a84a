//! Arithmetic with a calculator: a question, any number of calls, and an answer.

use serde::{Deserialize, Serialize};

use super::{Dice, last_integer};
use crate::environment::{Environment, Episode, NewEpisode, Observation, Start, Turn};
use crate::error::{Error, Result};
use crate::functions::Calculator;
use crate::tool::Tool;
use crate::toolbox::Toolbox;

/// Arithmetic questions, with a calculator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ArithmeticConfig {
    /// The number of terms in a question. Default 3.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 20)))]
    pub terms: usize,
    /// The largest number. Default 100.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub largest: i64,
}

impl Default for ArithmeticConfig {
    fn default() -> Self {
        Self { terms: 3, largest: 100 }
    }
}

/// The environment. The reward is 1 if the last number of the last turn is the result, otherwise 0.
pub struct Arithmetic {
    config: ArithmeticConfig,
    toolbox: Toolbox,
}

impl Arithmetic {
    /// Creates the environment.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if a key is out of range.
    pub fn new(config: ArithmeticConfig) -> Result<Self> {
        if !(2..=20).contains(&config.terms) {
            return Err(Error::config(format!("`terms` is {}, but must be between 2 and 20", config.terms)));
        }
        if !(1..=1_000_000).contains(&config.largest) {
            return Err(Error::config(format!("`largest` is {}, but must be between 1 and 1000000", config.largest)));
        }
        Ok(Self { config, toolbox: Toolbox::new(vec![Box::new(Calculator::default())])? })
    }
}

impl Environment for Arithmetic {
    fn tools(&self) -> &[Tool] {
        self.toolbox.tools()
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let mut dice = Dice(start.seed);
        let mut number = || dice.between(1, self.config.largest);
        let (mut result, mut text) = (number(), String::new());
        text += &result.to_string();
        for i in 1..self.config.terms {
            let next = number();
            let (sign, value) = if (start.seed >> (i % 64)) & 1 == 0 { ('+', next) } else { ('-', -next) };
            text += &format!(" {sign} {next}");
            result += value;
        }
        let opening = format!("What is {text}? End your answer with the number.");
        let calls = self.toolbox.begin(start)?.episode;
        Ok(NewEpisode { episode: Box::new(Question { calls, result, is_right: false }), opening: Some(opening) })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

struct Question {
    calls: Box<dyn Episode>,
    result: i64,
    is_right: bool,
}

impl Episode for Question {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        self.is_right = turn.calls.is_empty() && last_integer(&turn.text) == Some(self.result);
        self.calls.step(turn)
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        Ok(Some(f64::from(u8::from(self.is_right))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::tool::Call;

    #[test]
    fn the_calculator_helps_and_the_answer_counts() {
        let environment = Arithmetic::new(ArithmeticConfig::default()).expect("an environment");
        for seed in 0..50 {
            let begin = || environment.begin(&Start { name: "a".into(), seed, row: Map::new() }).expect("begun");
            let NewEpisode { mut episode, opening } = begin();
            let opening = opening.expect("a question");
            let expression =
                opening.trim_start_matches("What is ").split('?').next().expect("an expression").to_owned();
            let arguments = Ok(Map::from_iter([("expression".to_owned(), json!(expression))]));
            let call = Call { id: None, name: "calculator".into(), arguments };
            let observation = episode.step(&Turn { calls: vec![call], ..Turn::default() }).expect("answered");
            let result = observation.replies[0].content().to_owned();
            let answer = |text: String| Turn { text, ..Turn::default() };
            assert!(episode.step(&answer(format!("It is {result}."))).expect("answered").is_done);
            assert_eq!(episode.finish(), Ok(Some(1.0)), "{opening} {result}");
            let mut wrong = begin().episode;
            wrong.step(&answer("It is 123456789.".to_owned())).expect("answered");
            assert_eq!(wrong.finish(), Ok(Some(0.0)));
        }
        assert!(Arithmetic::new(ArithmeticConfig { terms: 1, ..ArithmeticConfig::default() }).is_err());
    }
}

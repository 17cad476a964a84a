//! Guess a number: each guess is answered with `higher` or `lower`.

use serde::{Deserialize, Serialize};

use super::{Dice, last_integer};
use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::tool::Tool;

/// Guess a number between two bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct GuessConfig {
    /// The smallest number. Default 1.
    pub low: i64,
    /// The largest number. Default 100.
    pub high: i64,
    /// The number of guesses before the game is lost. Default 10.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub guesses: usize,
    /// Text before `higher` and `lower`. Default: none.
    pub before: String,
    /// Text after `higher` and `lower`. Default: none.
    pub after: String,
    /// Add the rules of the game to the prompt. Default true.
    pub explain: bool,
}

impl Default for GuessConfig {
    fn default() -> Self {
        Self { low: 1, high: 100, guesses: 10, before: String::new(), after: String::new(), explain: true }
    }
}

/// The game. The reward for finding the number with guess n is `1 − (n − 1) / guesses`. A lost game has reward 0.
#[derive(Debug, Clone)]
pub struct Guess {
    config: GuessConfig,
}

impl Guess {
    /// Creates the game.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if `low` is not below `high`, or `guesses` is 0.
    pub fn new(config: GuessConfig) -> Result<Self> {
        if config.low >= config.high {
            let message =
                format!("`low` is {} and `high` is {}, but `high` must be above `low`", config.low, config.high);
            return Err(Error::config(message));
        }
        if config.guesses == 0 {
            return Err(Error::config("`guesses` is 0, but must be at least 1"));
        }
        Ok(Self { config })
    }
}

impl Environment for Guess {
    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let GuessConfig { low, high, guesses, explain, .. } = self.config;
        let number = Dice(start.seed).between(low, high);
        let rules = format!(
            "Guess my number between {low} and {high}. You have {guesses} guesses. Write one number; I say whether mine is \
             higher or lower."
        );
        let episode = Game { config: self.config.clone(), number, done: 0, is_over: false };
        Ok(NewEpisode { episode: Box::new(episode), opening: explain.then_some(rules) })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

struct Game {
    config: GuessConfig,
    number: i64,
    done: usize,
    is_over: bool,
}

impl Episode for Game {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        self.done += 1;
        let guess = last_integer(&turn.text);
        let (is_found, is_last) = (guess == Some(self.number), self.done == self.config.guesses);
        let GuessConfig { low, high, guesses, before, after, .. } = &self.config;
        let hint = match guess {
            None => format!("Write a number between {low} and {high}."),
            Some(guess) if guess < self.number => "higher".to_owned(),
            Some(_) => "lower".to_owned(),
        };
        let is_done = is_found || is_last;
        let reward = match is_found {
            true => 1.0 - (self.done - 1) as f64 / *guesses as f64,
            false => 0.0,
        };
        let replies = match is_done {
            true => Vec::new(),
            false => vec![Reply::User { content: format!("{before}{hint}{after}") }],
        };
        self.is_over = is_done;
        let one = |is_so: bool| f64::from(u8::from(is_so));
        let metrics = [("found", one(is_found)), ("guesses", 1.0), ("unreadable", one(guess.is_none()))];
        let metrics = metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Observation { replies, reward: is_done.then_some(reward), is_done, metrics })
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        // A game that was not finished is lost.
        Ok((!self.is_over).then_some(0.0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    /// Plays by bisection; returns the reward and the number of turns.
    fn play(seed: u64, guesses: usize) -> (f64, usize) {
        let game = Guess::new(GuessConfig { guesses, ..GuessConfig::default() }).expect("a game");
        let mut episode = game.begin(&Start { name: "a".into(), seed, row: Map::new() }).expect("begun").episode;
        let (mut low, mut high) = (1, 100);
        for turns in 1.. {
            let guess = (low + high) / 2;
            let turn = Turn { text: format!("I say {guess}."), ..Turn::default() };
            let observation = episode.step(&turn).expect("answered");
            if observation.is_done {
                return (observation.reward.expect("a reward at the end"), turns);
            }
            match observation.replies[0].content() {
                "higher" => low = guess + 1,
                _ => high = guess - 1,
            }
        }
        unreachable!("every game ends")
    }

    #[test]
    fn halving_always_finds_the_number() {
        for seed in 0..200 {
            let (reward, turns) = play(seed, 10);
            assert!(turns <= 7 && (reward - (1.0 - (turns - 1) as f64 / 10.0)).abs() < 1e-12, "{reward} in {turns}");
        }
        assert!((0..200).any(|seed| play(seed, 2) == (0.0, 2)), "two guesses are too few at times");
    }

    #[test]
    fn what_is_no_number_is_told_and_counts() {
        let game = Guess::new(GuessConfig { guesses: 2, ..GuessConfig::default() }).expect("a game");
        let mut episode = game.begin(&Start { name: "a".into(), seed: 5, row: Map::new() }).expect("begun").episode;
        assert_eq!(episode.finish(), Ok(Some(0.0)), "a game that is not played is lost");
        let observation = episode.step(&Turn::default()).expect("answered");
        assert_eq!(observation.replies[0].content(), "Write a number between 1 and 100.");
        let observation = episode.step(&Turn::default()).expect("answered");
        assert_eq!((observation.is_done, observation.reward, episode.finish()), (true, Some(0.0), Ok(None)));
        assert!(Guess::new(GuessConfig { low: 5, high: 5, ..GuessConfig::default() }).is_err());
        assert!(Guess::new(GuessConfig { guesses: 0, ..GuessConfig::default() }).is_err());
    }
}

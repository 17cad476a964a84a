//! Recorded answers: a resumed run reads them again if its environment is not deterministic.

use std::collections::HashMap;
use std::sync::Arc;

use crate::environment::{Environment, Episode, NewEpisode, Observation, Start, Turn};
use crate::error::{Error, Result};
use crate::tool::Tool;

/// An episode that was recorded to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Text that the episode added to the prompt.
    pub opening: Option<String>,
    /// Turns of the policy with their answers.
    pub turns: Vec<(String, Observation)>,
    /// Reward of the whole episode.
    pub reward: Option<f64>,
}

/// An environment that replays recorded episodes. The inner environment serves all others.
pub struct Replay {
    inner: Arc<dyn Environment>,
    recorded: HashMap<String, Arc<Recorded>>,
}

impl Replay {
    /// Creates the environment; `recorded` holds the episodes by name.
    pub fn new(inner: Arc<dyn Environment>, recorded: HashMap<String, Recorded>) -> Self {
        Self { inner, recorded: recorded.into_iter().map(|(name, episode)| (name, Arc::new(episode))).collect() }
    }
}

impl Environment for Replay {
    fn tools(&self) -> &[Tool] {
        self.inner.tools()
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        match self.recorded.get(&start.name) {
            Some(of) => Ok(NewEpisode {
                episode: Box::new(ReplayEpisode { of: Arc::clone(of), next: 0 }),
                opening: of.opening.clone(),
            }),
            None => self.inner.begin(start),
        }
    }

    fn is_deterministic(&self) -> bool {
        self.inner.is_deterministic()
    }
}

struct ReplayEpisode {
    of: Arc<Recorded>,
    next: usize,
}

impl Episode for ReplayEpisode {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let Some((_, observation)) = self.of.turns.get(self.next).filter(|(text, _)| *text == turn.text) else {
            let message =
                "the policy wrote a different turn than the recorded one, so the recorded answers do not apply";
            return Err(Error::episode(message).with_hint("the run was changed between its steps; start it again"));
        };
        self.next += 1;
        Ok(observation.clone())
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        Ok(self.of.reward)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::toolbox::Toolbox;

    #[test]
    fn recorded_episodes_are_answered_from_the_record_and_others_are_not() {
        let answer = Observation { reward: Some(0.5), ..Observation::default() };
        let recorded =
            Recorded { opening: Some("Go.".into()), turns: vec![("one".into(), answer.clone())], reward: Some(2.0) };
        let inner: Arc<dyn Environment> = Arc::new(Toolbox::new(Vec::new()).expect("no tools"));
        let replay = Replay::new(inner, [("a".to_owned(), recorded)].into());
        let begin = |name: &str| replay.begin(&Start { name: name.into(), seed: 1, row: Map::new() }).expect("begun");
        let turn = |text: &str| Turn { text: text.into(), ..Turn::default() };
        let NewEpisode { mut episode, opening } = begin("a");
        assert_eq!(opening.as_deref(), Some("Go."));
        assert_eq!(episode.step(&turn("one")), Ok(answer));
        assert_eq!(episode.finish(), Ok(Some(2.0)));
        assert!(begin("a").episode.step(&turn("two")).is_err(), "a different turn than the recorded one");
        assert_eq!(begin("b").opening, None);
    }
}

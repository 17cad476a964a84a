//! An environment for gradus in Rust: a quiz about capitals, the counterpart of `capitals.py`.
//!
//! Build it with `cargo build --release --example capitals -p gradus-environments`, and name the program in the
//! configuration: `environment: { command: { program: [target/release/examples/capitals] } }`. A separate project only
//! needs the crate `gradus-environments`.
//!
//! Try it: `printf '{"id":1,"do":"reset","episode":"a","seed":1,"row":{}}\n' | target/release/examples/capitals`

use std::collections::BTreeMap;

use gradus_environments::{Environment, Episode, Error, NewEpisode, Observation, Reply, Result, Start, Tool, Turn};

const CAPITALS: [(&str, &str); 4] = [("France", "Paris"), ("Japan", "Tokyo"), ("Kenya", "Nairobi"), ("Peru", "Lima")];

/// The quiz: two questions per episode.
struct Quiz;

impl Environment for Quiz {
    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        // Episodes of a group share a seed and must start identically, so the seed selects the capitals.
        let first = start.seed as usize % CAPITALS.len();
        let questions = vec![CAPITALS[first], CAPITALS[(first + 1) % CAPITALS.len()]];
        let opening = Some(format!("What is the capital of {}?", questions[0].0));
        Ok(NewEpisode { episode: Box::new(Questions { questions, next_index: 0, right: 0 }), opening })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

/// One episode.
struct Questions {
    questions: Vec<(&'static str, &'static str)>,
    next_index: usize,
    right: usize,
}

impl Episode for Questions {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let (_, capital) = self.questions.get(self.next_index).ok_or_else(|| Error::episode("the quiz is over"))?;
        let is_right = turn.text.to_lowercase().contains(&capital.to_lowercase());
        self.right += usize::from(is_right);
        self.next_index += 1;
        let verdict = if is_right { "Right." } else { "Wrong." };
        let next = self.questions.get(self.next_index);
        let replies = next.map(|(country, _)| Reply::User { content: format!("{verdict} And of {country}?") });
        let metrics = BTreeMap::from([("right".to_owned(), f64::from(u8::from(is_right)))]);
        Ok(Observation { is_done: replies.is_none(), replies: replies.into_iter().collect(), reward: None, metrics })
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        Ok(Some(self.right as f64 / self.questions.len() as f64))
    }
}

fn main() -> std::io::Result<()> {
    gradus_environments::serve(&Quiz, std::io::stdin().lock(), std::io::stdout())
}

//! A model that serves many requests: its session, and the receivers of its rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus::inference::{AnswerEnd, CompletionRequest, Piece, Prompter, Session, TokenScore};
use gradus::{Error, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::actor::{Actor, Work};

/// A token with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Id of the token.
    pub id: u32,
    /// Text of the token; for a special token, its name.
    pub text: String,
    /// Bytes of a token that may be part of a character; `None` if they are those of the text.
    pub bytes: Option<Vec<u8>>,
    /// Log-probability under the model. `None` for the first token of a text, which has no context.
    pub logprob: Option<f32>,
    /// Most likely ids at this position, most likely first.
    pub likeliest: Vec<Candidate>,
    /// Rank among all ids, from 1 for the most likely. Only known for given texts.
    pub rank: Option<usize>,
}

/// A token that could have been sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Id of the token.
    pub id: u32,
    /// Text of the token, as in [`Token`].
    pub text: String,
    /// Bytes of the token, as in [`Token`].
    pub bytes: Option<Vec<u8>>,
    /// Log-probability under the model.
    pub logprob: f32,
}

impl Token {
    /// Creates a token without further data.
    pub fn bare(id: u32, text: String) -> Self {
        Self { id, text, bytes: None, logprob: None, likeliest: Vec::new(), rank: None }
    }
}

/// Event of a completion.
#[derive(Debug)]
pub enum CompletionEvent {
    /// A token, and the text that is final with it.
    Token(Token, String),
    /// End of the completion: the remaining text, and the reason.
    End(String, Result<AnswerEnd>),
}

/// Receiver of the events of one request, with the index of the completion.
pub type CompletionEvents = UnboundedReceiver<(usize, CompletionEvent)>;

/// A model and the receivers of its completions.
pub struct ModelQueue {
    /// Session of the model.
    pub session: Session,
    listeners: HashMap<usize, Listener>,
    /// Number of requests so far. Each owns its rows, so requests take turns.
    requests: u64,
    /// Whether sampling is paused.
    paused: Arc<AtomicBool>,
}

struct Listener {
    /// Index of the completion in its request.
    completion: usize,
    to: UnboundedSender<(usize, CompletionEvent)>,
    /// Recent ids before the next one.
    tail: Vec<u32>,
}

/// Creates a prompt for a model, on a thread that does not compute. A chat template may take seconds, during which other requests are
/// answered.
///
/// # Errors
/// Errors of `make`.
pub async fn prompt<R: Send + 'static, E: From<Error> + Send + 'static>(
    queue: &Actor<ModelQueue>,
    make: impl FnOnce(&Prompter) -> Result<R, E> + Send + 'static,
) -> Result<R, E> {
    let prompter = queue.ask(|queue| queue.session.prompter().clone()).await?;
    let made = tokio::task::spawn_blocking(move || make(&prompter)).await;
    made.unwrap_or_else(|_| Err(Error::input("the prompt could not be created").into()))
}

impl ModelQueue {
    /// Creates a desk without requests. It samples nothing while `paused` is set.
    pub fn new(session: Session, paused: Arc<AtomicBool>) -> Self {
        Self { session, listeners: HashMap::new(), requests: 0, paused }
    }

    /// Returns the number of completions in progress.
    pub fn waiting(&self) -> usize {
        self.listeners.len()
    }

    /// Ends all completions immediately.
    pub fn abort(&mut self) {
        for (row, listener) in self.listeners.drain() {
            self.session.cancel(row);
            let end = CompletionEvent::End(String::new(), Ok(AnswerEnd::Interrupted));
            // The receiver may be gone.
            let _ = listener.to.send((listener.completion, end));
        }
    }

    /// Submits the completions of one request and returns a receiver of their events. Dropping it cancels them.
    ///
    /// # Errors
    /// Same as [`Session::submit`].
    pub fn sample(&mut self, requests: Vec<CompletionRequest>) -> Result<CompletionEvents> {
        let (to, completion_events) = unbounded_channel();
        self.requests += 1;
        let mut completion = 0;
        for ask in requests {
            let tail = ask.prompt.clone();
            for row in self.session.submit_for(self.requests, ask)? {
                let to = to.clone();
                self.listeners.insert(row, Listener { completion, to, tail: tail.clone() });
                completion += 1;
            }
        }
        Ok(completion_events)
    }

    /// Returns the tokens of a text with their log-probabilities.
    ///
    /// # Errors
    /// Same as [`Session::score`].
    pub fn score(&self, ids: &[u32], likeliest: usize) -> Result<Vec<Token>> {
        let scores = self.session.score(ids, likeliest)?;
        let texts = self.session.texts(&[], ids)?;
        let first = ids.first().map(|&id| Token { bytes: self.bytes(id), ..Token::bare(id, String::new()) });
        let rest = scores.into_iter().enumerate().map(|(i, score)| self.token(&ids[..=i], score));
        let tokens = first.into_iter().map(Ok).chain(rest).zip(texts);
        tokens.map(|(token, text)| Ok(Token { text, ..token? })).collect()
    }

    /// Returns the bytes of a token that may be part of a character.
    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.session.tokenizer().token_bytes(id)
    }

    /// Returns a token that follows `before`.
    fn token(&self, before: &[u32], score: TokenScore) -> Result<Token> {
        let text = |id: u32| -> gradus::Result<String> { Ok(self.session.texts(before, &[id])?.concat()) };
        let likeliest = score
            .likeliest
            .iter()
            .map(|&(id, logprob)| Ok(Candidate { id, text: text(id)?, bytes: self.bytes(id), logprob }));
        Ok(Token {
            id: score.id,
            text: text(score.id)?,
            bytes: self.bytes(score.id),
            logprob: Some(score.logprob),
            likeliest: likeliest.collect::<Result<_>>()?,
            rank: score.rank,
        })
    }

    /// Sends an event to the receiver of a row.
    fn deliver(&mut self, piece: Piece) {
        match piece {
            Piece::Token { row, score, text } => {
                let Some(listener) = self.listeners.get(&row) else { return };
                let id = score.id;
                let bare = Token { logprob: Some(score.logprob), ..Token::bare(id, String::new()) };
                let token = self.token(&listener.tail, score).unwrap_or(bare);
                let listener = self.listeners.get_mut(&row).expect("it was just there");
                listener.tail.push(id);
                // A dropped receiver is noticed before the next step.
                let _ = listener.to.send((listener.completion, CompletionEvent::Token(token, text)));
            }
            Piece::End { row, text, end } => {
                let Some(listener) = self.listeners.remove(&row) else { return };
                let _ = listener.to.send((listener.completion, CompletionEvent::End(text, end)));
            }
        }
    }
}

impl Work for ModelQueue {
    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    fn is_busy(&self) -> bool {
        self.session.is_busy()
    }

    fn step(&mut self) {
        // Cancels completions whose receiver is gone, including those that still wait for a place.
        let gone: Vec<usize> =
            self.listeners.iter().filter(|(_, listener)| listener.to.is_closed()).map(|(&row, _)| row).collect();
        for row in gone {
            self.listeners.remove(&row);
            self.session.cancel(row);
        }
        for piece in self.session.step() {
            self.deliver(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use gradus::device::DeviceChoice;
    use gradus::generate::SamplingParams;
    use gradus::inference::ChatOptions;
    use gradus::model::{Precision, WeightFormat};
    use gradus::pretrained::TextFiles;
    use gradus::rng::{Purpose, Seed};

    use super::*;

    fn request(completions: u64, max_new_tokens: usize) -> CompletionRequest {
        CompletionRequest {
            prompt: vec![5, 40, 9],
            params: SamplingParams { max_new_tokens, ..SamplingParams::default() },
            stop: Vec::new(),
            streams: (0..completions).map(|i| Seed(5).stream(Purpose::Generate, 0, i)).collect(),
            kept: Vec::new(),
        }
    }

    /// Returns the number of completions that have ended since the last call.
    fn ended(events: &mut CompletionEvents) -> usize {
        let events = std::iter::from_fn(|| events.try_recv().ok());
        events.filter(|(_, event)| matches!(event, CompletionEvent::End(..))).count()
    }

    #[test]
    fn a_request_with_many_completions_does_not_delay_the_others() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/models/");
        let options = ChatOptions {
            model: format!("{models}qwen3"),
            adapter: None,
            compute: Precision::F32,
            weights: WeightFormat::F32,
            text: TextFiles::default(),
            format: None,
            device: DeviceChoice::cpu(),
        };
        let session = Session::open(&options, 2).expect("a fixture");
        let mut queue = ModelQueue::new(session, Arc::default());
        let mut long = queue.sample(vec![request(16, 24)]).expect("fine");
        queue.step();
        let mut short = queue.sample(vec![request(1, 4), request(1, 4)]).expect("fine");
        // A request without a place gets one at once. Its second completion enters after the first one.
        let mut steps = 0;
        let mut found = 0;
        while found < 2 {
            queue.step();
            steps += 1;
            found += ended(&mut short);
        }
        assert!(steps <= 8, "{steps} steps");
        assert!(ended(&mut long) < 16 && queue.is_busy());
        while queue.is_busy() {
            queue.step();
        }
        assert_eq!(queue.waiting(), 0);
    }
}

//! A model that serves many requests: the session, and who listens to which of its rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus::inference::{AnswerEnd, Ask, Piece, Prompter, Said, Session};
use gradus::{Error, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::actor::{Actor, Work};

/// A token with its words.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its text; a special token has its name.
    pub text: String,
    /// Its log-probability under the model; none for a text's first token, which nothing stands before.
    pub logprob: Option<f32>,
    /// The likeliest ids there, their texts and log-probabilities, the likeliest first.
    pub likeliest: Vec<(u32, String, f32)>,
    /// Its place among all ids, 1 for the likeliest; known of given texts only.
    pub rank: Option<usize>,
}

impl Token {
    /// A token of which nothing else is known.
    pub fn bare(id: u32, text: String) -> Self {
        Self { id, text, logprob: None, likeliest: Vec::new(), rank: None }
    }
}

/// What is heard of a completion.
#[derive(Debug)]
pub enum Heard {
    /// A token, and the text that has become certain with it.
    Token(Token, String),
    /// The end: the text that was held back, and why it ended.
    End(String, Result<AnswerEnd>),
}

/// What is heard of the completions of one request: which of them, and what.
pub type Hearing = UnboundedReceiver<(usize, Heard)>;

/// A model and its listeners.
pub struct Desk {
    /// The model.
    pub session: Session,
    listeners: HashMap<usize, Listener>,
    /// Set while nothing is sampled.
    paused: Arc<AtomicBool>,
}

struct Listener {
    /// Which completion of its request this is.
    completion: usize,
    to: UnboundedSender<(usize, Heard)>,
    /// The last ids before the next.
    tail: Vec<u32>,
}

/// Makes a prompt for the model of a desk, on a thread that computes nothing: a chat template may take seconds, and others are
/// answered meanwhile.
///
/// # Errors
/// What `make` fails with.
pub async fn prompt<R: Send + 'static>(
    desk: &Actor<Desk>,
    make: impl FnOnce(&Prompter) -> Result<R> + Send + 'static,
) -> Result<R> {
    let prompter = desk.ask(|desk| desk.session.prompter().clone()).await?;
    let made = tokio::task::spawn_blocking(move || make(&prompter)).await;
    made.unwrap_or_else(|_| Err(Error::input("the prompt could not be made")))
}

impl Desk {
    /// A desk that nobody waits at; it samples nothing while `paused` is set.
    pub fn new(session: Session, paused: Arc<AtomicBool>) -> Self {
        Self { session, listeners: HashMap::new(), paused }
    }

    /// How many completions are on their way.
    pub fn waiting(&self) -> usize {
        self.listeners.len()
    }

    /// Ends all completions where they are.
    pub fn abort(&mut self) {
        for (row, listener) in self.listeners.drain() {
            self.session.cancel(row);
            let end = Heard::End(String::new(), Ok(AnswerEnd::Interrupted));
            // Who has gone needs to hear nothing.
            let _ = listener.to.send((listener.completion, end));
        }
    }

    /// Asks for completions; what becomes of them is heard until the listener goes, which cancels them.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn sample(&mut self, asks: Vec<Ask>) -> Result<Hearing> {
        let (to, hearing) = unbounded_channel();
        let mut completion = 0;
        for ask in asks {
            let tail = ask.prompt.clone();
            for row in self.session.submit(ask)? {
                let to = to.clone();
                self.listeners.insert(row, Listener { completion, to, tail: tail.clone() });
                completion += 1;
            }
        }
        Ok(hearing)
    }

    /// A text's tokens and what the model thinks of them.
    ///
    /// # Errors
    /// As [`Session::score`].
    pub fn score(&self, ids: &[u32], likeliest: usize) -> Result<Vec<Token>> {
        let said = self.session.score(ids, likeliest)?;
        let texts = self.session.texts(&[], ids)?;
        let first = ids.first().map(|&id| Token::bare(id, String::new()));
        let rest = said.into_iter().enumerate().map(|(i, said)| self.token(&ids[..=i], said));
        let tokens = first.into_iter().map(Ok).chain(rest).zip(texts);
        tokens.map(|(token, text)| Ok(Token { text, ..token? })).collect()
    }

    /// A token that stands after `before`.
    fn token(&self, before: &[u32], said: Said) -> Result<Token> {
        let text = |id: u32| -> gradus::Result<String> { Ok(self.session.texts(before, &[id])?.concat()) };
        let likeliest = said.likeliest.iter().map(|&(id, logprob)| Ok((id, text(id)?, logprob)));
        Ok(Token {
            id: said.id,
            text: text(said.id)?,
            logprob: Some(said.logprob),
            likeliest: likeliest.collect::<Result<_>>()?,
            rank: said.rank,
        })
    }

    /// Tells whoever listens to a row.
    fn tell(&mut self, piece: Piece) {
        match piece {
            Piece::Token { row, said, text } => {
                let Some(listener) = self.listeners.get(&row) else { return };
                let id = said.id;
                let bare = Token { logprob: Some(said.logprob), ..Token::bare(id, String::new()) };
                let token = self.token(&listener.tail, said).unwrap_or(bare);
                let listener = self.listeners.get_mut(&row).expect("it was just there");
                listener.tail.push(id);
                // Who has gone is noticed before the next step.
                let _ = listener.to.send((listener.completion, Heard::Token(token, text)));
            }
            Piece::End { row, text, end } => {
                let Some(listener) = self.listeners.remove(&row) else { return };
                let _ = listener.to.send((listener.completion, Heard::End(text, end)));
            }
        }
    }
}

impl Work for Desk {
    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    fn is_busy(&self) -> bool {
        self.session.is_busy()
    }

    fn step(&mut self) {
        // Who has gone needs nothing more; also of those that still wait for a place.
        let gone: Vec<usize> =
            self.listeners.iter().filter(|(_, listener)| listener.to.is_closed()).map(|(&row, _)| row).collect();
        for row in gone {
            self.listeners.remove(&row);
            self.session.cancel(row);
        }
        for piece in self.session.step() {
            self.tell(piece);
        }
    }
}

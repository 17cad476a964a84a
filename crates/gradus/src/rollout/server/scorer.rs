//! Scores of given ids by a served model: the teacher's in distillation.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use super::client::Client;
use super::score::{Passage, TokenScore};
use super::{Endpoint, wait};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::Tokenizer;

/// How many ids of the vocabulary the check of tokenizers reads at most, and how many a text has.
const PROBED: (usize, usize) = (2048, 128);

/// Scores ids at a server.
#[derive(Clone)]
pub struct Scorer {
    client: Arc<Client>,
    /// How many of the likeliest ids are told.
    likeliest: usize,
}

impl std::fmt::Debug for Scorer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scorer").field("likeliest", &self.likeliest).finish_non_exhaustive()
    }
}

impl Scorer {
    /// Finds the server and its model. It is asked for so many of the likeliest ids at each place.
    ///
    /// # Errors
    /// [`Error::Network`] when it does not answer in time or serves no such model, [`Error::Interrupted`] when `progress` ends the wait.
    pub fn connect(endpoint: &Endpoint, likeliest: usize, progress: &dyn Progress) -> Result<Self> {
        let scorer = Self { client: Arc::new(Client::new(endpoint)?), likeliest };
        scorer.work(("found", 1), progress, Client::find)?;
        Ok(scorer)
    }

    /// The scores of each passage, from its `first` id on, by a model with at least `vocabulary` ids.
    ///
    /// # Errors
    /// [`Error::Network`] when the server does not answer in time, or its answer cannot be used, [`Error::Interrupted`] when `progress`
    /// ends the wait.
    pub fn score(
        &self,
        passages: Vec<Passage>,
        vocabulary: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<TokenScore>>> {
        let (likeliest, total) = (self.likeliest, passages.len());
        self.work(("scored at the server", total), progress, move |client| {
            client.score(&passages, likeliest, vocabulary)
        })
    }

    /// Refuses a server that makes other ids of texts than `tokenizer` does. The texts are tokens from all over the vocabulary.
    ///
    /// # Errors
    /// [`Error::Input`] with the first difference, and as [`score`](Self::score).
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer, progress: &dyn Progress) -> Result<()> {
        let texts = probes(tokenizer)?;
        let asked = texts.clone();
        let found = self.work(("texts compared", texts.len()), progress, move |client| client.ids_of(&asked))?;
        let plain = |ids: &[u32]| -> Vec<u32> { ids.iter().copied().filter(|id| !tokenizer.is_special(*id)).collect() };
        for (text, theirs) in texts.iter().zip(found) {
            let (ours, theirs) = (plain(&tokenizer.encode(text, true)?), plain(&theirs));
            if ours == theirs {
                continue;
            }
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let said = |ids: &[u32]| match ids.get(at) {
                Some(&id) => format!("id {id} (`{}` here)", tokenizer.token(id).unwrap_or_default()),
                None => "nothing".into(),
            };
            let message = format!(
                "the teacher at {} has another tokenizer than the policy: after {at} equal ids of a text, it has {} and the policy {}",
                self.client.url(),
                said(&theirs),
                said(&ours)
            );
            return Err(Error::input(message)
                .with_hint("serve a model with the student's tokenizer: their distributions are compared id by id"));
        }
        Ok(())
    }

    /// Does `work` on a thread of its own, which is left alone when `progress` ends the wait.
    fn work<T: Send + 'static>(
        &self,
        (what, total): (&'static str, usize),
        progress: &dyn Progress,
        work: impl FnOnce(&Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, found) = sync_channel(1);
        let client = Arc::clone(&self.client);
        // Who asked may have gone.
        std::thread::spawn(move || drop(answer.send(work(&client))));
        wait(&self.client, &found, (what, total), progress)
    }
}

/// Texts that hold tokens from all over the vocabulary.
fn probes(tokenizer: &Tokenizer) -> Result<Vec<String>> {
    let (most, each) = PROBED;
    let stride = tokenizer.vocab_size().div_ceil(most).max(1);
    let ids: Vec<u32> =
        (0..tokenizer.vocab_size() as u32).filter(|id| !tokenizer.is_special(*id)).step_by(stride).collect();
    let texts: Result<Vec<String>> = ids.chunks(each).map(|ids| tokenizer.decode(ids, true)).collect();
    Ok(texts?.into_iter().filter(|text| !text.trim().is_empty()).collect())
}

//! Scores of given ids by a served model: the teacher's in distillation.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use super::client::Client;
use super::score::{Passage, TokenScore};
use super::{Endpoint, wait};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::Tokenizer;

/// Maximum number of vocabulary ids that the tokenizer check uses, and the number per text.
const PROBED: (usize, usize) = (2048, 128);

/// Scores ids on a server.
#[derive(Clone)]
pub struct Scorer {
    client: Arc<Client>,
    /// Number of most probable ids per position.
    likeliest: usize,
}

impl std::fmt::Debug for Scorer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scorer").field("likeliest", &self.likeliest).finish_non_exhaustive()
    }
}

impl Scorer {
    /// Connects to the server and finds its model. `likeliest` is the number of most probable ids to request per
    /// position.
    ///
    /// # Errors
    /// [`Error::Network`] if it does not answer in time or serves no such model, [`Error::Interrupted`] if `progress`
    /// ends the wait.
    pub fn connect(endpoint: &Endpoint, likeliest: usize, progress: &dyn Progress) -> Result<Self> {
        let scorer = Self { client: Arc::new(Client::new(endpoint)?), likeliest };
        scorer.work(("found", 1), progress, Client::find)?;
        Ok(scorer)
    }

    /// Scores each passage from its `first` id on, with a model of at least `vocabulary` ids.
    ///
    /// # Errors
    /// [`Error::Network`] if the server does not answer in time or its answer cannot be used, [`Error::Interrupted`] if
    /// `progress` ends the wait.
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

    /// Rejects a server that tokenizes texts differently from `tokenizer`. The texts contain tokens from the whole
    /// vocabulary.
    ///
    /// # Errors
    /// [`Error::Input`] with the first difference, and as [`score`](Self::score).
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer, progress: &dyn Progress) -> Result<()> {
        let texts = probes(tokenizer)?;
        let probed = texts.clone();
        let found = self.work(("texts compared", texts.len()), progress, move |client| client.ids_of(&probed))?;
        let plain = |ids: &[u32]| -> Vec<u32> { ids.iter().copied().filter(|id| !tokenizer.is_special(*id)).collect() };
        for (text, theirs) in texts.iter().zip(found) {
            let (ours, theirs) = (plain(&tokenizer.encode(text, true)?), plain(&theirs));
            if ours == theirs {
                continue;
            }
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let shown = |ids: &[u32]| match ids.get(at) {
                Some(&id) => format!("id {id} (`{}` here)", tokenizer.token(id).unwrap_or_default()),
                None => "nothing".into(),
            };
            let message = format!(
                "the teacher at {} has a different tokenizer than the policy: after {at} equal ids of a text, it has \
                 {} and the policy {}",
                self.client.url(),
                shown(&theirs),
                shown(&ours)
            );
            return Err(Error::input(message)
                .with_hint("serve a model with the student's tokenizer: their distributions are compared id by id"));
        }
        Ok(())
    }

    /// Runs `work` on its own thread, which is abandoned if `progress` ends the wait.
    fn work<T: Send + 'static>(
        &self,
        (what, total): (&'static str, usize),
        progress: &dyn Progress,
        work: impl FnOnce(&Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, found) = sync_channel(1);
        let client = Arc::clone(&self.client);
        // The requester may be gone.
        std::thread::spawn(move || drop(answer.send(work(&client))));
        wait(&self.client, &found, (what, total), progress)
    }
}

/// Returns texts with tokens from the whole vocabulary.
fn probes(tokenizer: &Tokenizer) -> Result<Vec<String>> {
    let (most, each) = PROBED;
    let stride = tokenizer.vocab_size().div_ceil(most).max(1);
    let ids: Vec<u32> =
        (0..tokenizer.vocab_size() as u32).filter(|id| !tokenizer.is_special(*id)).step_by(stride).collect();
    let texts: Result<Vec<String>> = ids.chunks(each).map(|ids| tokenizer.decode(ids, true)).collect();
    Ok(texts?.into_iter().filter(|text| !text.trim().is_empty()).collect())
}

//! Logit processors: changes to a row's logits that depend on its previous ids.
//!
//! The order is that of transformers 5.23: repetition penalty, n-grams, n-grams of the prompt, bad words, minimum
//! length, forced ids, suppressed ids. All of them run after the division by the temperature; in transformers they run
//! before it. The penalty is a product and a ban stays a ban, so the results differ only in rounding. Two differences
//! are deliberate: a forced id overrides every ban, and a kind of bans that would leave nothing to sample does not apply. Bans that always
//! hold come first, then bad words of several ids, then n-grams. So only bans that depend on earlier ids are ever lifted:
//! `SamplingParams::check_ids` refuses others that leave nothing.

use super::params::SamplingParams;

/// Ids of a row so far.
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
    /// All ids. They start with the prompt or, in an encoder–decoder, with the decoder's start id.
    pub ids: &'a [u32],
    /// Number of ids at the end that belong to the completion.
    pub new: usize,
    /// The prompt: the encoder's input, or the ids before the completion if there is no encoder.
    pub prompt: &'a [u32],
}

impl<'a> History<'a> {
    /// Creates the history of a row without an encoder. The last `new` of `ids` are the completion; those before are the prompt.
    ///
    /// # Panics
    /// If there are fewer than `new` ids.
    pub fn new(ids: &'a [u32], new: usize) -> Self {
        Self { ids, new, prompt: &ids[..ids.len() - new] }
    }

    /// Returns the history for a decoder whose encoder read `prompt`.
    #[must_use]
    pub fn with_encoder(self, prompt: &'a [u32]) -> Self {
        Self { prompt, ..self }
    }

    /// Returns the ids that follow the row's last `size − 1` ids wherever these occur in `text`.
    fn continuations<'t>(self, text: &'t [u32], size: usize) -> impl Iterator<Item = u32> + 't
    where
        'a: 't,
    {
        let start = size.checked_sub(1).filter(|start| *start <= self.ids.len());
        let last = start.map(|start| &self.ids[self.ids.len() - start..]);
        let follows = move |last: &'a [u32]| {
            text.windows(last.len() + 1).filter(move |ngram| ngram.starts_with(last)).map(<[u32]>::last)
        };
        last.into_iter().flat_map(follows).flatten().copied()
    }
}

/// Returns the id that must come next, if one is forced.
pub(super) fn forced(history: History<'_>, params: &SamplingParams) -> Option<u32> {
    let last = (history.new + 1 == params.max_new_tokens).then_some(params.forced_eos_token_id).flatten();
    last.or(if history.new == 0 { params.forced_bos_token_id } else { None })
}

/// Ids whose logits the processors change, in ascending order, each once. Ids outside the vocabulary are left out.
#[derive(Debug)]
pub(super) struct Changes {
    /// Ids that the repetition penalty concerns.
    pub penalized: Vec<u32>,
    /// Ids that must not come next.
    pub banned: Vec<u32>,
}

impl Changes {
    pub fn new(history: History<'_>, params: &SamplingParams, vocabulary: usize) -> Self {
        let within = |mut ids: Vec<u32>| {
            ids.retain(|&id| (id as usize) < vocabulary);
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let penalized = if params.repetition_penalty == 1.0 { Vec::new() } else { history.ids.to_vec() };
        let (kinds, mut banned) = (banned(history, params), Vec::<u32>::new());
        for kind in kinds.into_iter().filter(|kind| !kind.is_empty()) {
            let all = within([banned.as_slice(), &kind].concat());
            if all.len() < vocabulary {
                banned = all;
            }
        }
        Self { penalized: within(penalized), banned }
    }
}

/// Applies the processors to `logits_v`. Returns the original values of the changed logits, by id.
pub(super) fn apply(logits_v: &mut [f32], history: History<'_>, params: &SamplingParams) -> Vec<(usize, f32)> {
    let Changes { penalized, banned } = Changes::new(history, params, logits_v.len());
    let original = |id: u32, logits_v: &[f32]| (id as usize, logits_v[id as usize]);
    let mut replaced: Vec<(usize, f32)> = penalized.iter().map(|&id| original(id, logits_v)).collect();
    for &(id, logit) in &replaced {
        logits_v[id] = penalise(logit, params.repetition_penalty);
    }
    for id in banned {
        if penalized.binary_search(&id).is_err() {
            replaced.push(original(id, logits_v));
        }
        logits_v[id as usize] = f32::NEG_INFINITY;
    }
    replaced
}

/// Keskar et al. 2019 (CTRL), section 4.1, <https://arxiv.org/abs/1909.05858>, with the two cases of transformers.
fn penalise(logit: f32, penalty: f32) -> f32 {
    if logit < 0.0 { logit * penalty } else { logit / penalty }
}

/// Returns the ids that must not come next: those that are banned whatever the ids so far are, by bad words of several ids, and by n-grams.
fn banned(history: History<'_>, params: &SamplingParams) -> [Vec<u32>; 3] {
    let ids = history.ids;
    let words = params.bad_words().filter_map(|word| word.split_last());
    let words = words.filter(|(_, start)| !start.is_empty() && ids.ends_with(start)).map(|(id, _)| *id);
    let own = history.continuations(ids, params.no_repeat_ngram_size);
    let ngrams = own.chain(history.continuations(history.prompt, params.encoder_no_repeat_ngram_size));
    [params.fixed_bans(history.new), words.collect(), ngrams.collect()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: fn() -> SamplingParams = SamplingParams::default;

    fn after(ids: &[u32], new: usize, params: &SamplingParams) -> Vec<u32> {
        let mut banned = banned(History::new(ids, new), params).concat();
        banned.sort_unstable();
        banned
    }

    #[test]
    fn the_penalty_has_two_cases_and_counts_an_id_once() {
        let mut logits = [4.0, -1.0, 3.0, 0.0];
        let params = SamplingParams { repetition_penalty: 2.0, ..PLAIN() };
        let replaced = apply(&mut logits, History::new(&[0, 1, 0, 99], 1), &params);
        assert_eq!(logits, [2.0, -2.0, 3.0, 0.0]);
        assert_eq!(replaced, [(0, 4.0), (1, -1.0)]);
    }

    #[test]
    fn what_is_penalised_and_banned_remembers_what_it_was() {
        let mut logits = [4.0, -1.0];
        let params = SamplingParams { repetition_penalty: 2.0, suppress_tokens: vec![1, 7], ..PLAIN() };
        let replaced = apply(&mut logits, History::new(&[1], 0), &params);
        assert_eq!((logits, replaced), ([4.0, f32::NEG_INFINITY], vec![(1, -1.0)]));
    }

    #[test]
    fn ngrams_do_not_come_twice() {
        let size = |no_repeat_ngram_size| SamplingParams { no_repeat_ngram_size, ..PLAIN() };
        assert_eq!(after(&[5, 6, 7, 5, 6], 2, &size(3)), [7]);
        assert_eq!(after(&[5, 6, 5, 7, 5], 2, &size(2)), [6, 7]);
        assert_eq!(after(&[5, 6, 5], 2, &size(1)), [5, 5, 6]);
        assert_eq!(after(&[5, 6], 2, &size(3)), [0u32; 0]);
        assert_eq!(after(&[5, 6, 5], 2, &size(0)), [0u32; 0]);
    }

    #[test]
    fn ngrams_of_the_prompt_do_not_come_in_the_completion() {
        let size = |encoder_no_repeat_ngram_size| SamplingParams { encoder_no_repeat_ngram_size, ..PLAIN() };
        assert_eq!(after(&[5, 6, 7, 5, 6], 2, &size(3)), [7]);
        assert_eq!(after(&[5, 6, 7, 9, 6], 2, &size(2)), [7], "what only the completion has is free");
        assert_eq!(after(&[5, 6, 9, 9], 2, &size(2)), [0u32; 0]);
        assert_eq!(after(&[5, 6], 1, &size(3)), [0u32; 0]);
        let encoded = |ids: &[u32], size| {
            let params = SamplingParams { encoder_no_repeat_ngram_size: size, ..PLAIN() };
            banned(History::new(ids, ids.len() - 1).with_encoder(&[5, 6, 7]), &params).concat()
        };
        assert_eq!(encoded(&[0, 5], 2), [6]);
        assert_eq!(encoded(&[0, 5, 6], 3), [7]);
        assert_eq!(encoded(&[0], 1), [5, 6, 7]);
        assert_eq!(encoded(&[0], 0), [0u32; 0]);
    }

    #[test]
    fn bad_words_are_not_completed_and_stop_ids_stay() {
        let bad_words_ids = vec![vec![3], vec![5, 6, 4], vec![6, 1], vec![9, 9, 5, 6, 2], vec![2]];
        let params = SamplingParams { bad_words_ids, stop_ids: vec![2], ..PLAIN() };
        assert_eq!(after(&[5, 6], 1, &params), [1, 3, 4]);
        assert_eq!(after(&[6, 5], 1, &params), [3]);
    }

    #[test]
    fn a_completion_is_not_ended_too_soon() {
        let params = SamplingParams { min_new_tokens: 2, stop_ids: vec![2, 3], ..PLAIN() };
        assert_eq!(after(&[1, 1, 1], 1, &params), [2, 3]);
        assert_eq!(after(&[1, 1, 1, 1], 2, &params), [0u32; 0]);
    }

    #[test]
    fn ids_are_forced_at_the_two_ends() {
        let params =
            SamplingParams { forced_bos_token_id: Some(4), forced_eos_token_id: Some(2), max_new_tokens: 3, ..PLAIN() };
        let next = |new| forced(History::new(&[1, 1, 1], new), &params);
        assert_eq!([next(0), next(1), next(2)], [Some(4), None, Some(2)]);
        let single = SamplingParams { max_new_tokens: 1, ..params };
        assert_eq!(forced(History::new(&[1], 0), &single), Some(2), "the end wins");
    }

    #[test]
    fn only_bans_that_depend_on_earlier_ids_are_lifted_if_nothing_is_left() {
        let banned = |ids: &[u32], params: &SamplingParams| Changes::new(History::new(ids, 1), params, 3).banned;
        let params = SamplingParams { suppress_tokens: vec![0], no_repeat_ngram_size: 1, ..PLAIN() };
        assert_eq!(banned(&[0, 1], &params), [0, 1]);
        assert_eq!(banned(&[1, 2], &params), [0], "the n-grams would leave nothing");
        let words = SamplingParams { bad_words_ids: vec![vec![2, 1]], ..params.clone() };
        assert_eq!(banned(&[1, 2], &words), [0, 1], "bad words have priority over n-grams");
        let all = SamplingParams { bad_words_ids: vec![vec![2, 1], vec![1, 2, 2]], no_repeat_ngram_size: 0, ..params };
        assert_eq!(banned(&[1, 2], &all), [0], "the bad words would leave nothing");
        let soon = SamplingParams { min_new_tokens: 9, stop_ids: vec![1], no_repeat_ngram_size: 1, ..PLAIN() };
        assert_eq!(banned(&[0, 2], &soon), [1], "a completion does not end too soon");
    }
}

//! Input of encoders: texts packed end to end, with their global tokens.

use std::sync::Arc;

use gradus_kernels::{CrossSegments, Segments};

use crate::model::dropout::DropoutStream;
use crate::model::packed::Packed;

/// One text, or two that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// Ids, including the special tokens that the tokenizer adds.
    pub ids: &'a [u32],
    /// Token type of each id: 0 for the first of two texts, 1 for the second. Empty if all are 0.
    pub types: &'a [u32],
    /// Positions of global tokens, which attend to the whole text and are attended to by all of it if attention has
    /// windows (Longformer). `None` for the head's default: the first token for a sequence head, no token for a token
    /// head.
    pub global: Option<&'a [usize]>,
}

impl<'a> Text<'a> {
    /// Creates a text of these ids.
    pub fn new(ids: &'a [u32]) -> Self {
        Self { ids, types: &[], global: None }
    }
}

/// Texts of one forward pass, as an encoder computes them.
#[derive(Debug, Clone)]
pub struct TextBatch {
    packed: Packed,
    types_n: Vec<u32>,
    text_attention: Arc<TextAttention>,
    dropout: Option<DropoutStream>,
}

/// Tokens that attend to each other.
#[derive(Debug)]
pub(super) struct TextAttention {
    /// Texts with their global tokens.
    pub segments: Segments,
    /// Attention of the global tokens to their texts.
    pub global: Option<QueryTokens>,
    /// Attention of the first token of every text to the text.
    pub first: QueryTokens,
}

/// Some tokens of each text, which attend to the whole text.
#[derive(Debug, PartialEq)]
pub(super) struct QueryTokens {
    /// Packed indices of the tokens, text after text.
    pub tokens: Vec<u32>,
    /// Attention of each text's tokens to the whole text.
    pub cross: CrossSegments,
}

impl TextBatch {
    /// Packs `texts`. If a text does not list its global tokens, its first token is global if `first_is_global`.
    ///
    /// # Panics
    /// When there is no text, or one has no ids or the wrong number of types.
    pub(in crate::model) fn new(texts: &[Text<'_>], first_is_global: bool) -> Self {
        let packed = Packed::new(texts.iter().map(|text| text.ids));
        let mut types_n = Vec::with_capacity(packed.tokens());
        let (mut tokens, mut counts) = (Vec::new(), Vec::new());
        for (i, text) in texts.iter().enumerate() {
            match text.types {
                [] => types_n.resize(types_n.len() + text.ids.len(), 0),
                types => types_n.extend_from_slice(types),
            }
            let default: &[usize] = if first_is_global { &[0] } else { &[] };
            let mut global: Vec<usize> = text.global.unwrap_or(default).to_vec();
            global.sort_unstable();
            global.dedup();
            tokens.extend(global.iter().map(|&t| packed.index(i, t) as u32));
            counts.push(global.len());
        }
        assert_eq!(types_n.len(), packed.tokens(), "one type a token");
        let text_attention = Arc::new(TextAttention::new(packed.segments(), tokens, &counts));
        Self { packed, types_n, text_attention, dropout: None }
    }

    /// Sets the stream from which the dropout masks of the pass are drawn; `None` for no dropout.
    #[must_use]
    pub fn dropping(self, stream: Option<DropoutStream>) -> Self {
        Self { dropout: stream, ..self }
    }

    /// Stream of the dropout masks; `None` for no dropout.
    pub fn dropout(&self) -> Option<DropoutStream> {
        self.dropout
    }

    /// Tokens, end to end.
    pub fn packed(&self) -> &Packed {
        &self.packed
    }

    /// Token type of each token, `[N]`.
    pub fn types_n(&self) -> &[u32] {
        &self.types_n
    }

    /// Number of tokens of each text, `[B]`.
    pub fn lengths_b(&self) -> Vec<usize> {
        (0..self.packed.sequences()).map(|i| self.packed.length(i)).collect()
    }

    /// Packed index of each text's first token, `[B]`, which a sequence head reads.
    pub fn first_indices(&self) -> Vec<usize> {
        (0..self.packed.sequences()).map(|i| self.packed.index(i, 0)).collect()
    }

    pub(super) fn text_attention(&self) -> Arc<TextAttention> {
        Arc::clone(&self.text_attention)
    }
}

impl TextAttention {
    fn new(texts: &Segments, global: Vec<u32>, counts: &[usize]) -> Self {
        let segments = texts.clone().with_global(global.iter().map(|&token| token as usize));
        let first = texts.iter().map(|text| text.tokens.start as u32).collect();
        let first = QueryTokens::new(texts, first, &vec![1; counts.len()]);
        Self { segments, global: (!global.is_empty()).then(|| QueryTokens::new(texts, global, counts)), first }
    }
}

impl QueryTokens {
    /// Creates the readers from packed indices `tokens` and their number per text.
    fn new(texts: &Segments, tokens: Vec<u32>, counts: &[usize]) -> Self {
        let (source_of, counts): (Vec<usize>, Vec<usize>) =
            counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).unzip();
        Self { tokens, cross: CrossSegments::new(Segments::sequences(counts), texts.clone(), source_of) }
    }

    /// Returns the row of each token's result in a tensor of all tokens' results, followed by those of these tokens.
    pub fn places(&self) -> Vec<u32> {
        let [_, n] = self.cross.tokens();
        let mut places: Vec<u32> = (0..n as u32).collect();
        for (at, &token) in self.tokens.iter().enumerate() {
            places[token as usize] = (n + at) as u32;
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lie_end_to_end_with_types_and_global_tokens() {
        let [first, second, third] = [vec![5, 6, 7], vec![8], vec![9, 10]];
        let texts = [
            Text { types: &[0, 1, 1], ..Text::new(&first) },
            Text { global: Some(&[]), ..Text::new(&second) },
            Text { global: Some(&[1, 0, 1]), ..Text::new(&third) },
        ];
        let batch = TextBatch::new(&texts, true);
        assert_eq!((batch.packed().ids(), batch.types_n()), (&[5, 6, 7, 8, 9, 10][..], &[0, 1, 1, 0, 0, 0][..]));
        assert_eq!((batch.lengths_b(), batch.first_indices()), (vec![3, 1, 2], vec![0, 3, 4]));
        let text_attention = batch.text_attention();
        let global = text_attention.global.as_ref().expect("global tokens");
        assert_eq!((&global.tokens[..], &global.places()[..]), (&[0, 4, 5][..], &[6, 1, 2, 3, 7, 8][..]));
        assert_eq!(global.cross.tokens(), [3, 6]);
        assert_eq!((&text_attention.first.tokens[..], text_attention.first.cross.tokens()), (&[0, 3, 4][..], [3, 6]));
        assert!(TextBatch::new(&[Text::new(&first)], false).text_attention().global.is_none());
    }
}

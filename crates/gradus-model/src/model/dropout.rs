//! Dropout with masks that are a function of the step and the site. A resumed run draws the same masks, and so does a recomputed block.

use burn::tensor::Tensor;
use gradus_kernels::{AttentionDropout, dropout, mix};
use rand::Rng;

use crate::rng::{Purpose, Seed};

/// Random stream of the masks of one pass. A pass without a stream has no dropout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutStream(u64);

impl DropoutStream {
    /// Creates the stream of pass `pass` of step `step`, both counted from 0.
    pub fn new(seed: Seed, step: u64, pass: u64) -> Self {
        Self(seed.stream(Purpose::Dropout, step, pass).random())
    }

    /// Creates a stream from a key.
    pub fn of_key(key: u64) -> Self {
        Self(key)
    }

    /// Returns the stream of a part of the pass. Its masks differ from those of the whole.
    #[must_use]
    pub fn part(self, part: usize) -> Self {
        Self(mix(self.0 ^ mix(part as u64 + 1)))
    }

    /// Key of the masks of one site.
    fn key(self, site: DropoutSite) -> u64 {
        self.0 ^ mix(site.number() + 1)
    }

    /// Multiplies `x_nd` by a mask: each number becomes 0 with `probability`, otherwise it is divided by 1 − `probability`.
    pub(crate) fn apply(self, x_nd: Tensor<2>, probability: f32, site: DropoutSite) -> Tensor<2> {
        match probability == 0.0 {
            true => x_nd,
            false => dropout(x_nd, probability, self.key(site)),
        }
    }
}

/// Site of a dropout in a model. Each site has its own masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropoutSite {
    /// Input of the adapter of the linear layer with this number.
    Adapter(usize),
    /// The sum of the embeddings.
    Embedding,
    /// Output of this block's attention.
    Attended(usize),
    /// Output of this block's feed-forward layer.
    FedForward(usize),
    /// Attention probabilities of this block.
    Attention(usize),
    /// Embeddings of a decoder. The encoder's are [`Embedding`](Self::Embedding), and the decoder's blocks are numbered after the
    /// encoder's.
    DecoderEmbedding,
    /// Output of this block's attention to the sources.
    Crossed(usize),
    /// Probabilities of this block's attention to the sources.
    CrossAttention(usize),
    /// Activation in this block's feed-forward layer.
    Activation(usize),
    /// Output of the encoder.
    Encoded,
    /// Output of the decoder.
    Decoded,
    /// Table of relative positions, as read by this block.
    Relative(usize),
    /// Input of this linear layer of a classifier's head.
    Head(usize),
}

impl DropoutSite {
    fn number(self) -> u64 {
        let (kind, i) = match self {
            Self::Adapter(layer) => (0, layer),
            Self::Embedding => (1, 0),
            Self::Attended(block) => (2, block),
            Self::FedForward(block) => (3, block),
            Self::Attention(block) => (4, block),
            Self::DecoderEmbedding => (5, 0),
            Self::Crossed(block) => (6, block),
            Self::CrossAttention(block) => (7, block),
            Self::Activation(block) => (8, block),
            Self::Encoded => (9, 0),
            Self::Decoded => (10, 0),
            Self::Relative(block) => (11, block),
            Self::Head(layer) => (12, layer),
        };
        (kind << 32) + i as u64
    }
}

/// Dropout of a block of layers; none without a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropping {
    /// Masks of the pass, for adapters.
    pub stream: Option<DropoutStream>,
    /// Whether the model's own dropout is active, too.
    pub own: bool,
}

impl Dropping {
    /// Applies the model's own dropout to `x_nd`.
    pub fn apply(self, x_nd: Tensor<2>, probability: f32, site: DropoutSite) -> Tensor<2> {
        match self.stream.filter(|_| self.own) {
            Some(stream) => stream.apply(x_nd, probability, site),
            None => x_nd,
        }
    }

    /// Returns the model's own dropout of the attention probabilities in block `block`.
    pub fn attention(self, probability: f32, block: usize) -> Option<AttentionDropout> {
        self.probabilities(probability, DropoutSite::Attention(block))
    }

    /// Returns the model's own dropout of the attention probabilities at `site`.
    pub fn probabilities(self, probability: f32, site: DropoutSite) -> Option<AttentionDropout> {
        let stream = self.stream.filter(|_| self.own && probability > 0.0)?;
        Some(AttentionDropout { probability, key: stream.key(site) })
    }

    /// Whether the model's own dropout is active with this probability.
    pub fn drops(self, probability: f32) -> bool {
        self.own && self.stream.is_some() && probability > 0.0
    }
}

/// Rejects invalid dropout probabilities. A probability of 1 would leave only zeros.
pub(super) fn check_probability(key: &str, value: f32) -> Result<(), String> {
    match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("`{key}` is {value}, but a probability of dropout is at least 0 and below 1")),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn masks(stream: DropoutStream, site: DropoutSite) -> Vec<f32> {
        let ones = Tensor::<2>::ones([40, 250], &Device::flex());
        stream.apply(ones, 0.3, site).into_data().try_to_vec().expect("f32")
    }

    #[test]
    fn masks_depend_on_step_pass_and_site_and_keep_the_mean() {
        let at = |step, pass, site| masks(DropoutStream::new(Seed(7), step, pass), site);
        let first = at(0, 0, DropoutSite::Adapter(0));
        assert_eq!(first, at(0, 0, DropoutSite::Adapter(0)));
        let sites = [
            DropoutSite::Adapter(1),
            DropoutSite::Embedding,
            DropoutSite::Attended(0),
            DropoutSite::FedForward(0),
            DropoutSite::Attention(0),
            DropoutSite::DecoderEmbedding,
            DropoutSite::Crossed(0),
            DropoutSite::CrossAttention(0),
            DropoutSite::Activation(0),
            DropoutSite::Encoded,
            DropoutSite::Decoded,
            DropoutSite::Relative(0),
            DropoutSite::Head(0),
        ];
        let others = sites.into_iter().map(|site| at(0, 0, site));
        for other in others.chain([at(1, 0, DropoutSite::Adapter(0)), at(0, 1, DropoutSite::Adapter(0))]) {
            let agree = first.iter().zip(&other).filter(|(a, b)| a == b).count() as f32 / first.len() as f32;
            // Two independent masks agree with probability 0.3² + 0.7² = 0.58.
            assert!((agree - 0.58).abs() < 0.02, "{agree}");
        }
        let dropped = first.iter().filter(|x| **x == 0.0).count() as f32 / first.len() as f32;
        assert!((dropped - 0.3).abs() < 0.015, "{dropped}");
        assert!(first.iter().all(|&x| x == 0.0 || x == 1.0 / 0.7));
        let mean = first.iter().sum::<f32>() / first.len() as f32;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn nothing_is_dropped_without_a_stream_or_with_probability_0() {
        let x = Tensor::<2>::ones([3, 4], &Device::flex());
        let stream = Some(DropoutStream::new(Seed(7), 0, 0));
        let values = |x: Tensor<2>| x.into_data().try_to_vec::<f32>().expect("f32");
        let dropped = |stream, own, probability| {
            values(Dropping { stream, own }.apply(x.clone(), probability, DropoutSite::Embedding)).contains(&0.0)
        };
        assert!(dropped(stream, true, 0.5));
        assert!(!dropped(None, true, 0.5) && !dropped(stream, false, 0.5) && !dropped(stream, true, 0.0));
        let attention = |stream, own, probability| Dropping { stream, own }.attention(probability, 3);
        assert_eq!(attention(stream, true, 0.5).map(|dropout| dropout.probability), Some(0.5));
        assert_eq!(
            [attention(None, true, 0.5), attention(stream, false, 0.5), attention(stream, true, 0.0)],
            [None; 3]
        );
    }
}

//! Visibility of keys within a sequence.

use std::num::NonZeroUsize;
use std::ops::Range;

/// Which keys a query sees within its sequence. Windows limit the work: keys that no query of a block sees are never
/// read, so time grows with the window instead of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Its own and all earlier keys.
    Causal,
    /// The last `window` keys, including its own: query i sees keys j with i − window < j ≤ i. This is `sliding_window`
    /// in the `config.json` of Mistral and Qwen models.
    CausalWindow(NonZeroUsize),
    /// All keys.
    Bidirectional,
    /// Keys within a distance on either side: |i − j| ≤ distance.
    BidirectionalWindow(usize),
}

impl Mask {
    /// Range of the keys that the query at `position` sees in a sequence of `length`. Both ends grow with the position.
    pub(crate) fn keys(self, position: usize, length: usize) -> Range<usize> {
        let (start, end) = match self {
            Self::Causal => (0, position + 1),
            Self::CausalWindow(window) => ((position + 1).saturating_sub(window.get()), position + 1),
            Self::Bidirectional => (0, length),
            Self::BidirectionalWindow(distance) => {
                (position.saturating_sub(distance), position.saturating_add(distance).saturating_add(1))
            }
        };
        start.min(length)..end.min(length)
    }

    /// Returns the mask without later keys.
    pub(crate) fn up_to_itself(self) -> Self {
        match self {
            Self::Causal | Self::Bidirectional => Self::Causal,
            Self::CausalWindow(window) => Self::CausalWindow(window),
            Self::BidirectionalWindow(distance) => Self::CausalWindow(NonZeroUsize::MIN.saturating_add(distance)),
        }
    }

    /// Returns the mask without its window. Global tokens see, and are seen, under this mask.
    pub(crate) fn without_window(self) -> Self {
        match self {
            Self::Causal | Self::CausalWindow(_) => Self::Causal,
            Self::Bidirectional | Self::BidirectionalWindow(_) => Self::Bidirectional,
        }
    }
}

//! Which keys a query sees within its sequence.

use std::num::NonZeroUsize;
use std::ops::Range;

/// Which keys a query sees within its sequence. Windows bound the work: keys that no query of a block sees are never
/// touched, so time grows with the window and not with the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Itself and everything before.
    Causal,
    /// The last so many tokens, itself included: query i sees keys j with i − window < j ≤ i, which is
    /// `sliding_window` in the `config.json` of Mistral and Qwen models.
    CausalWindow(NonZeroUsize),
    /// Everything.
    Bidirectional,
    /// Tokens at most so far away on either side: |i − j| ≤ distance.
    BidirectionalWindow(usize),
}

impl Mask {
    /// The keys that the query at `position` sees of `length`; both ends grow with the position.
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

    /// The mask without what comes later.
    pub(crate) fn up_to_itself(self) -> Self {
        match self {
            Self::Causal | Self::Bidirectional => Self::Causal,
            Self::CausalWindow(window) => Self::CausalWindow(window),
            Self::BidirectionalWindow(distance) => Self::CausalWindow(NonZeroUsize::MIN.saturating_add(distance)),
        }
    }

    /// The mask without its window: what global tokens see, and who sees them.
    pub(crate) fn without_window(self) -> Self {
        match self {
            Self::Causal | Self::CausalWindow(_) => Self::Causal,
            Self::Bidirectional | Self::BidirectionalWindow(_) => Self::Bidirectional,
        }
    }
}

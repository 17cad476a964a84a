//! What attention may have in addition: a bias of the scores, and dropout of the probabilities.

use super::bias::PositionBias;
use super::dropout::AttentionDropout;

/// Optional additions to plain attention.
#[derive(Debug, Clone, Default)]
pub struct AttentionExtras {
    /// A learned bias of the scores by distance.
    pub bias: Option<PositionBias>,
    /// Dropout of probabilities.
    pub dropout: Option<AttentionDropout>,
}

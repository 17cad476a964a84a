//! What several test programs share.

mod material;
mod skip;

pub use material::material;
pub use skip::skipped;

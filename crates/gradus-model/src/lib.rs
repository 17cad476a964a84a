//! Models of gradus: families, weights, adapters, quantization, generation, losses, gradients and optimizers, and the
//! forecast of their memory.
//!
//! Programs use the crate `gradus`, which exports these modules.

#![deny(missing_docs)]

pub mod batches;
pub mod device;
pub mod generate;
pub mod host;
pub mod learner;
pub mod loss;
pub mod machine;
pub mod memory;
pub mod model;
pub mod optimizer_state;
pub mod readings;

// The modules name what is below them as if it were here.
use gradus_core::{Error, border, error, files, hub, progress, ranks, rng, run};

//! Models of gradus: families, weights, adapters, quantization, generation, losses, gradients and optimizers, and the
//! forecast of their memory.
//!
//! Programs use the crate `gradus`, which exports these modules.
//!
//! Names of tensors end in their dimensions, from the outer one to the inner one: `x_nd` is `[N, D]`, and `rewards_b` is `[B]`. The letters
//! are B sequences, P pairs, N packed tokens, M counted tokens, V ids of the vocabulary, D the width of the hidden states, H heads and K
//! labels. A name without such an ending has its shape in the text. All float tensors that a public function takes carry gradient unless
//! the text says otherwise. So do the trained parameters of a module that it runs; frozen and packed weights carry none.

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
pub mod threads;

// The modules name what is below them as if it were here.
use gradus_core::{Error, border, error, files, hub, progress, ranks, rng, run};

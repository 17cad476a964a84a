//! The plain policy gradient: the loss of A2C.

use burn::tensor::Tensor;

/// `Lₜ = −Âₜ·log π(aₜ)`, one value per token, not yet reduced; its gradient is that of REINFORCE with advantages.
///
/// Williams 1992, <https://doi.org/10.1007/BF00992696>; Mnih et al. 2016, <https://arxiv.org/abs/1602.01783> (the actor's loss). Both
/// tensors are `[M]`; `logprobs_m` (in nats) carries gradient, `advantages_m` does not.
///
/// # Panics
/// When the lengths differ.
pub fn policy_gradient(logprobs_m: Tensor<1>, advantages_m: Tensor<1>) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!(advantages_m.dims(), [m], "advantages_m");
    -(logprobs_m * advantages_m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn a_good_token_becomes_likelier_by_its_advantage() {
        let logprobs_m = leaf(&[-0.5, -2.0, -1.0]);
        let loss_m = policy_gradient(logprobs_m.clone(), plain(&[2.0, -1.0, 0.0]));
        close(&values(&loss_m), &[1.0, -2.0, 0.0], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &logprobs_m), &[-2.0, 1.0, 0.0], GRADIENT_TOLERANCE);
    }
}

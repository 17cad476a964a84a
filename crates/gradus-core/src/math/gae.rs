//! Generalized advantage estimation.
//!
//! Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", equations 11
//! to 16, <https://arxiv.org/abs/1506.02438>.

/// Advantages of one sequence of `T` tokens, at times 0 to T−1.
///
/// `δₜ = rₜ + γ·Vₜ₊₁ − Vₜ`, `Âₜ = δₜ + γλ·Âₜ₊₁`, where `V_T` is `bootstrap` and `Â_T` is 0.
///
/// `values_t[t]` is the value of the state before token `t`. The caller chooses `bootstrap`: 0 if the sequence ended,
/// the value of the state after the last token if it was cut off.
///
/// # Panics
/// When the lengths differ.
pub fn gae(rewards_t: &[f32], values_t: &[f32], bootstrap: f32, discount: f64, gae_lambda: f64) -> Vec<f32> {
    assert_eq!(rewards_t.len(), values_t.len(), "one value per reward");
    let mut advantages_t = vec![0.0; rewards_t.len()];
    let (mut next_value, mut next_advantage) = (f64::from(bootstrap), 0.0);
    for t in (0..rewards_t.len()).rev() {
        let value = f64::from(values_t[t]);
        let delta = f64::from(rewards_t[t]) + discount * next_value - value;
        next_advantage = delta + discount * gae_lambda * next_advantage;
        next_value = value;
        advantages_t[t] = next_advantage as f32;
    }
    advantages_t
}

/// Targets of the critic: `Âₜ + Vₜ`, the TD(λ) return. The advantages are those of [`gae`], before whitening.
///
/// # Panics
/// When the lengths differ.
pub fn returns(advantages_t: &[f32], values_t: &[f32]) -> Vec<f32> {
    assert_eq!(advantages_t.len(), values_t.len(), "one value per advantage");
    advantages_t.iter().zip(values_t).map(|(a, v)| a + v).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_steps_cut_off() {
        // γ = λ = 0.5; rewards 1, 3; values 1, 2; cut off where the value is 4.
        // δ₁ = 3 + 0.5·4 − 2 = 3      Â₁ = 3
        // δ₀ = 1 + 0.5·2 − 1 = 1      Â₀ = 1 + 0.25·3 = 1.75
        assert_eq!(gae(&[1.0, 3.0], &[1.0, 2.0], 4.0, 0.5, 0.5), [1.75, 3.0]);
    }

    #[test]
    fn a_reward_at_the_end_reaches_back() {
        // γ = 1, λ = 0.95. Â₂ = 1 − 0.3 = 0.7; Â₁ = 0.3 − 0.4 + 0.95·0.7 = 0.565; Â₀ = 0.4 − 0.5 + 0.95·0.565.
        let (rewards_t, values_t) = ([0.0, 0.0, 1.0], [0.5, 0.4, 0.3]);
        let advantages_t = gae(&rewards_t, &values_t, 0.0, 1.0, 0.95);
        for (found, expected) in advantages_t.iter().zip([0.43675, 0.565, 0.7]) {
            assert!((found - expected).abs() < 1e-6, "{found} against {expected}");
        }
        for (found, expected) in returns(&advantages_t, &values_t).iter().zip([0.93675, 0.965, 1.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} against {expected}");
        }
    }

    #[test]
    fn degenerate_lengths() {
        assert!(gae(&[], &[], 0.0, 1.0, 0.95).is_empty());
        assert_eq!(gae(&[2.0], &[0.5], 0.0, 1.0, 0.95), [1.5]);
    }

    proptest! {
        #[test]
        fn lambda_one_is_rewards_to_go_and_lambda_zero_one_step(
            steps in prop::collection::vec((-1.0f32..1.0, -1.0f32..1.0), 1..40), bootstrap in -1.0f32..1.0,
        ) {
            let (rewards_t, values_t): (Vec<f32>, Vec<f32>) = steps.into_iter().unzip();
            let to_go = gae(&rewards_t, &values_t, bootstrap, 1.0, 1.0);
            let one_step = gae(&rewards_t, &values_t, bootstrap, 1.0, 0.0);
            for t in 0..rewards_t.len() {
                let rest: f64 = rewards_t[t..].iter().map(|&r| f64::from(r)).sum();
                let expected = rest + f64::from(bootstrap) - f64::from(values_t[t]);
                prop_assert!((f64::from(to_go[t]) - expected).abs() <= 1e-6 * expected.abs().max(1.0));
                let next = values_t.get(t + 1).copied().unwrap_or(bootstrap);
                prop_assert!((one_step[t] - (rewards_t[t] + next - values_t[t])).abs() <= 5e-7);
            }
        }
    }
}

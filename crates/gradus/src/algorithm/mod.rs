//! Online algorithms: from rollouts and rewards to an update of the policy.

pub mod grpo;
pub mod ppo;

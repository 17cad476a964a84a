//! The loss of one forward pass, computed from the logprobs of its tokens: log-ratios, losses and weights.

use burn::tensor::{Device, Tensor, TensorData};

use super::keys::{Divergence, DpoConfig, DpoLossType};
use crate::host::read;
use crate::loss::reduce::sum;
use crate::loss::{divergence, dpo, reduce, sft};
use crate::math::rank::of_same_rank;
use crate::math::weights::beyond_shared;
use crate::objective::Totals;

/// Completions of a pass: all chosen ones, then all rejected ones, in the order of their pairs.
#[derive(Debug)]
pub struct Completions<'a> {
    /// Logprobs of their tokens, `[M]`; carries gradient.
    pub logprobs_m: Tensor<1>,
    /// Number of tokens of each completion, `[2P]`.
    pub counts_b: &'a [usize],
    /// Output of [`sums`] for the reference's logprobs, `[2P]`.
    pub reference_b: Vec<f32>,
    /// Partners of each pair in the sorted step, for losses that sort. `None` if these pairs are the whole step.
    pub partners_p: Option<Vec<RankPartners>>,
    /// Factor of the losses of each pair; `None` means 1.
    pub weights_p: Option<Vec<f32>>,
}

/// Partner values of a pair after its step is sorted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankPartners {
    /// The reference's difference (chosen minus rejected) that has the same rank as the policy's.
    pub difference: f32,
    /// Rejected log-ratio with the rank of the chosen one.
    pub chosen: f32,
    /// Chosen log-ratio with the rank of the rejected one.
    pub rejected: f32,
}

/// Loss and measurements of a pass.
#[derive(Debug)]
pub struct PassLoss {
    /// The pass's share of the step's loss, `[1]`.
    pub loss: Tensor<1>,
    /// Output of [`sums`] for the policy's logprobs, `[2P]`.
    pub sums_b: Tensor<1>,
    /// Log-ratios of policy and reference, `[2P]`.
    pub log_ratios_b: Tensor<1>,
}

/// Sums the logprobs of each completion, `[2P]`. Tokens beyond the length of the pair's shorter completion have weight
/// `ld_alpha`.
pub fn sums(logprobs_m: Tensor<1>, counts_b: &[usize], ld_alpha: Option<f64>) -> Tensor<1> {
    let Some(alpha) = ld_alpha else { return reduce::segment_sum(logprobs_m, counts_b) };
    let shares_m = on(&logprobs_m.device(), beyond_shared(counts_b, alpha as f32));
    reduce::segment_sum(logprobs_m * shares_m, counts_b)
}

/// Sorts the pairs of a step by their logprobs under policy and reference, `[2P]` each, and returns the partners of
/// each pair.
pub fn rank_partners(sums_b: &[f32], reference_b: &[f32]) -> Vec<RankPartners> {
    let p = sums_b.len() / 2;
    let minus = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
    let differences = of_same_rank(&minus(&sums_b[..p], &sums_b[p..]), &minus(&reference_b[..p], &reference_b[p..]));
    let log_ratios_b = minus(sums_b, reference_b);
    let (chosen, rejected) = log_ratios_b.split_at(p);
    let (partner_chosen, partner_rejected) = (of_same_rank(chosen, rejected), of_same_rank(rejected, chosen));
    let sides = differences.into_iter().zip(partner_chosen).zip(partner_rejected);
    sides.map(|((difference, chosen), rejected)| RankPartners { difference, chosen, rejected }).collect()
}

impl Completions<'_> {
    /// Computes the loss that `config` specifies. `totals` counts the pairs of the step and the tokens of its chosen
    /// completions.
    pub fn loss(&self, config: &DpoConfig, totals: Totals) -> PassLoss {
        let sums_b = sums(self.logprobs_m.clone(), self.counts_b, config.ld_alpha);
        let log_ratios_b = sums_b.clone() - on(&self.logprobs_m.device(), self.reference_b.clone());
        let scores_b = match config.f_divergence_type {
            Divergence::ReverseKl => log_ratios_b.clone(),
            Divergence::ForwardKl => divergence::forward_kl(log_ratios_b.clone()),
            Divergence::JsDivergence => divergence::jensen_shannon(log_ratios_b.clone()),
            Divergence::AlphaDivergence => divergence::alpha(log_ratios_b.clone(), config.f_alpha_divergence_coef),
        };
        let sides = Sides { pass: self, config, sums_b, log_ratios_b, scores_b };
        let term = |(loss, weight): (DpoLossType, f64)| sides.term(loss, totals) * weight;
        let loss = config.losses().map(term).reduce(|sum, term| sum + term).expect("there is a loss");
        PassLoss { loss, sums_b: sides.sums_b, log_ratios_b: sides.log_ratios_b }
    }
}

/// Values of each completion, `[2P]`: the chosen ones, then the rejected ones.
struct Sides<'a> {
    pass: &'a Completions<'a>,
    config: &'a DpoConfig,
    sums_b: Tensor<1>,
    log_ratios_b: Tensor<1>,
    scores_b: Tensor<1>,
}

impl Sides<'_> {
    /// Computes this pass's share of `loss` over the step, `[1]`.
    fn term(&self, loss: DpoLossType, totals: Totals) -> Tensor<1> {
        if loss == DpoLossType::Sft {
            let tokens = self.pass.counts_b[..self.pass.counts_b.len() / 2].iter().sum();
            return sum(sft::nll(self.pass.logprobs_m.clone().narrow(0, 0, tokens))) / totals.targets.max(1) as f64;
        }
        let mut losses_p = self.losses(loss);
        if let Some(weights_p) = &self.pass.weights_p {
            losses_p = losses_p * self.host(weights_p.clone());
        }
        sum(losses_p) / totals.examples as f64
    }

    /// Computes one value per pair.
    fn losses(&self, loss: DpoLossType) -> Tensor<1> {
        let DpoConfig { beta, label_smoothing, discopop_tau, .. } = *self.config;
        let delta_p = || difference(self.scores_b.clone());
        let log_ratios = || halves(self.log_ratios_b.clone());
        let pair = |loss: fn(Tensor<1>, Tensor<1>, f64) -> Tensor<1>| {
            let [chosen_p, rejected_p] = log_ratios();
            loss(chosen_p, rejected_p, beta)
        };
        match loss {
            DpoLossType::Sigmoid => dpo::sigmoid(delta_p(), beta, label_smoothing),
            DpoLossType::Hinge => dpo::hinge(delta_p(), beta),
            DpoLossType::Ipo => dpo::ipo(self.mean_delta(), beta),
            DpoLossType::SigmoidNorm => dpo::sigmoid_norm(self.mean_delta(), beta),
            DpoLossType::ExoPair => dpo::exo_pair(delta_p(), beta, label_smoothing),
            DpoLossType::Robust => dpo::robust(delta_p(), beta, label_smoothing),
            DpoLossType::Discopop => dpo::discopop(delta_p(), beta, discopop_tau),
            DpoLossType::NcaPair => pair(dpo::nca_pair),
            DpoLossType::BcoPair => pair(dpo::bco_pair),
            DpoLossType::SppoHard => pair(dpo::sppo_hard),
            DpoLossType::ApoZero => pair(dpo::apo_zero),
            DpoLossType::ApoDown => pair(dpo::apo_down),
            DpoLossType::Aot => {
                let partners_p = self.partner_values(|partners| partners.difference);
                dpo::aot(difference(self.sums_b.clone()), partners_p, beta, label_smoothing)
            }
            DpoLossType::AotUnpaired => {
                let [chosen_p, rejected_p] = log_ratios();
                let chosen = [chosen_p, self.partner_values(|partners| partners.chosen)];
                let rejected = [rejected_p, self.partner_values(|partners| partners.rejected)];
                dpo::aot_unpaired(chosen, rejected, beta, label_smoothing)
            }
            DpoLossType::Sft => unreachable!("it has no pairs"),
        }
    }

    /// Computes Δ from scores averaged over the tokens of each completion.
    fn mean_delta(&self) -> Tensor<1> {
        let shares_b = self.pass.counts_b.iter().map(|&count| 1.0 / count.max(1) as f32).collect();
        difference(self.scores_b.clone() * self.host(shares_b))
    }

    fn partner_values(&self, of: fn(&RankPartners) -> f32) -> Tensor<1> {
        let partners_p = match &self.pass.partners_p {
            Some(partners_p) => partners_p.iter().map(of).collect(),
            None => rank_partners(&read(&self.sums_b), &self.pass.reference_b).iter().map(of).collect(),
        };
        self.host(partners_p)
    }

    fn host(&self, values: Vec<f32>) -> Tensor<1> {
        on(&self.pass.logprobs_m.device(), values)
    }
}

fn on(device: &Device, values: Vec<f32>) -> Tensor<1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

/// Splits `[2P]` into chosen and rejected, `[P]` each.
fn halves(values_b: Tensor<1>) -> [Tensor<1>; 2] {
    let p = values_b.dims()[0] / 2;
    [values_b.clone().narrow(0, 0, p), values_b.narrow(0, p, p)]
}

/// Subtracts rejected from chosen: `[2P]` to `[P]`.
fn difference(values_b: Tensor<1>) -> Tensor<1> {
    let [chosen_p, rejected_p] = halves(values_b);
    chosen_p - rejected_p
}

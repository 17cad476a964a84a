//! Heads of each family of encoders: the layers between an encoder's states and the logits.

use burn::module::Module;
use burn::tensor::Tensor;
use serde::Deserialize;

use super::task::{Scope, Task};
use crate::error::{Error, Result};
use crate::model::activation::Activation;
use crate::model::build::Builder;
use crate::model::checkpoint::Checkpoint;
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping, check_probability};
use crate::model::encoder::TextBatch;
use crate::model::family::EncoderFamily;
use crate::model::layers::{LayerNorm, Linear};

/// A head. Sequence heads read the first token, unless noted otherwise.
#[derive(Module, Debug)]
pub(in crate::model) enum Head {
    /// One linear layer on every token.
    Tokens(Tokens),
    /// BERT, ALBERT and DeBERTa: a pooler, then one linear layer.
    Pooled(Pooled),
    /// DistilBERT: like [`Pooled`](Self::Pooled) with other names, and ReLU as the activation.
    Distilled(Distilled),
    /// RoBERTa and Longformer: two linear layers under one name.
    Two(Two),
    /// ModernBERT: a linear layer with a norm, for tokens or texts.
    Normed(Normed),
}

#[derive(Module, Debug)]
pub(in crate::model) struct Tokens {
    classifier: Linear,
    #[module(skip)]
    dropout: f32,
}

#[derive(Module, Debug)]
pub(in crate::model) struct Pooled {
    pooler: Pooler,
    classifier: Linear,
    #[module(skip)]
    activation: Activation,
    /// Dropout before the pooler and after it.
    #[module(skip)]
    dropouts: [f32; 2],
}

#[derive(Module, Debug)]
enum Pooler {
    /// BERT, DeBERTa.
    Dense(Dense),
    /// ALBERT.
    Plain(Linear),
}

#[derive(Module, Debug)]
struct Dense {
    dense: Linear,
}

#[derive(Module, Debug)]
pub(in crate::model) struct Distilled {
    pre_classifier: Linear,
    classifier: Linear,
    #[module(skip)]
    dropout: f32,
}

#[derive(Module, Debug)]
pub(in crate::model) struct Two {
    classifier: TwoLayers,
    #[module(skip)]
    dropout: f32,
}

#[derive(Module, Debug)]
struct TwoLayers {
    dense: Linear,
    out_proj: Linear,
}

#[derive(Module, Debug)]
pub(in crate::model) struct Normed {
    head: Prediction,
    classifier: Linear,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    reads: Reads,
    #[module(skip)]
    dropout: f32,
}

#[derive(Module, Debug)]
struct Prediction {
    dense: Linear,
    norm: LayerNorm,
}

/// States that a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// States of all tokens.
    Tokens,
    /// State of the first token of each text.
    First,
    /// Mean state of each text.
    Mean,
}

/// Keys of `config.json` that heads depend on; each family has some of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct HeadConfig {
    hidden_dropout_prob: Option<f32>,
    classifier_dropout: Option<f32>,
    classifier_dropout_prob: Option<f32>,
    cls_dropout: Option<f32>,
    pooler_dropout: Option<f32>,
    pooler_hidden_act: Option<String>,
    seq_classif_dropout: Option<f32>,
    dropout: Option<f32>,
    classifier_pooling: Option<String>,
    classifier_bias: Option<bool>,
    classifier_activation: Option<String>,
    norm_eps: Option<f64>,
    norm_bias: Option<bool>,
}

#[deny(clippy::wildcard_enum_match_arm)]
impl Head {
    pub(super) fn build(b: &mut Builder<'_>, dir: &ModelDir, task: &Task, d: usize, deviation: f32) -> Result<Self> {
        let (family, config): (_, HeadConfig) = (dir.encoder_family()?, dir.read_config()?);
        let refuse = |message: String| Error::model(dir.path.join("config.json"), message);
        let probability = |key: &'static str, value: f32| check_probability(key, value).map(|()| value).map_err(refuse);
        let activation = |key: &str, name: &Option<String>, usual: &str| {
            Activation::named(key, name.as_deref().unwrap_or(usual)).map_err(refuse)
        };
        let (labels, of_tokens) = (task.labels.len(), task.scope == Scope::Token);
        let hidden = config.hidden_dropout_prob.unwrap_or(0.1);
        let mut linear = |name: &str, output: usize| Linear::build(b.enter(name), d, output, true, deviation);
        if of_tokens && family != EncoderFamily::ModernBert {
            let (key, dropout) = match family {
                EncoderFamily::DistilBert => ("dropout", config.dropout.unwrap_or(0.1)),
                EncoderFamily::Albert => ("classifier_dropout_prob", config.classifier_dropout_prob.unwrap_or(hidden)),
                EncoderFamily::Longformer | EncoderFamily::DebertaV1 | EncoderFamily::Deberta => {
                    ("hidden_dropout_prob", hidden)
                }
                EncoderFamily::Bert
                | EncoderFamily::Roberta
                | EncoderFamily::XlmRoberta
                | EncoderFamily::Camembert
                | EncoderFamily::ModernBert => ("classifier_dropout", config.classifier_dropout.unwrap_or(hidden)),
            };
            return Ok(Self::Tokens(Tokens {
                classifier: linear("classifier", labels),
                dropout: probability(key, dropout)?,
            }));
        }
        Ok(match family {
            EncoderFamily::ModernBert => {
                let bias = config.classifier_bias.unwrap_or(false);
                let (epsilon, norm_bias) = (config.norm_eps.unwrap_or(1e-5), config.norm_bias.unwrap_or(false));
                let reads = match config.classifier_pooling.as_deref().unwrap_or("cls") {
                    _ if of_tokens => Reads::Tokens,
                    "cls" => Reads::First,
                    "mean" => Reads::Mean,
                    other => return Err(refuse(format!("`classifier_pooling` `{other}` is not supported"))),
                };
                let classifier = linear("classifier", labels);
                Self::Normed(Normed {
                    head: Prediction {
                        dense: Linear::build(b.enter("head.dense"), d, d, bias, deviation),
                        norm: LayerNorm::build_with(b.enter("head.norm"), d, epsilon, norm_bias),
                    },
                    classifier,
                    activation: activation("classifier_activation", &config.classifier_activation, "gelu")?,
                    reads,
                    dropout: probability("classifier_dropout", config.classifier_dropout.unwrap_or(0.0))?,
                })
            }
            EncoderFamily::Bert => Self::Pooled(Pooled {
                pooler: Pooler::Dense(Dense { dense: linear("bert.pooler.dense", d) }),
                classifier: linear("classifier", labels),
                activation: Activation::Tanh,
                dropouts: [0.0, probability("classifier_dropout", config.classifier_dropout.unwrap_or(hidden))?],
            }),
            EncoderFamily::Albert => Self::Pooled(Pooled {
                pooler: Pooler::Plain(linear("albert.pooler", d)),
                classifier: linear("classifier", labels),
                activation: Activation::Tanh,
                dropouts: [0.0, probability("classifier_dropout_prob", config.classifier_dropout_prob.unwrap_or(0.1))?],
            }),
            EncoderFamily::DebertaV1 | EncoderFamily::Deberta => Self::Pooled(Pooled {
                pooler: Pooler::Dense(Dense { dense: linear("pooler.dense", d) }),
                classifier: linear("classifier", labels),
                activation: activation("pooler_hidden_act", &config.pooler_hidden_act, "gelu")?,
                dropouts: [
                    probability("pooler_dropout", config.pooler_dropout.unwrap_or(0.0))?,
                    probability("cls_dropout", config.cls_dropout.unwrap_or(hidden))?,
                ],
            }),
            EncoderFamily::DistilBert => Self::Distilled(Distilled {
                pre_classifier: linear("pre_classifier", d),
                classifier: linear("classifier", labels),
                dropout: probability("seq_classif_dropout", config.seq_classif_dropout.unwrap_or(0.2))?,
            }),
            EncoderFamily::Roberta
            | EncoderFamily::XlmRoberta
            | EncoderFamily::Camembert
            | EncoderFamily::Longformer => {
                let own = config.classifier_dropout.filter(|_| family != EncoderFamily::Longformer);
                Self::Two(Two {
                    classifier: TwoLayers {
                        dense: linear("classifier.dense", d),
                        out_proj: linear("classifier.out_proj", labels),
                    },
                    dropout: probability("classifier_dropout", own.unwrap_or(hidden))?,
                })
            }
        })
    }

    /// Returns the part of the head that the tensor `name` belongs to, under its name in peft's `modules_to_save`: `classifier`,
    /// `pre_classifier`, `pooler` or `head`.
    pub(in crate::model) fn part(family: EncoderFamily, name: &str) -> Option<&str> {
        let inside = name.strip_prefix(family.base_prefix()).unwrap_or(name);
        family.is_of_own_head(name).then(|| inside.split('.').next().unwrap_or(inside))
    }

    /// Enables gradients of the parts for which `is_trained` is true.
    pub(super) fn train_parts(&mut self, is_trained: &dyn Fn(&str) -> bool) {
        fn grad<M: Module>(part: &mut M, trained: bool) {
            *part = part.clone().set_require_grad(trained);
        }
        let classifier_is = is_trained("classifier");
        match self {
            Self::Tokens(Tokens { classifier, .. }) => grad(classifier, classifier_is),
            Self::Pooled(Pooled { pooler, classifier, .. }) => {
                grad(classifier, classifier_is);
                grad(pooler, is_trained("pooler"));
            }
            Self::Distilled(Distilled { pre_classifier, classifier, .. }) => {
                grad(classifier, classifier_is);
                grad(pre_classifier, is_trained("pre_classifier"));
            }
            Self::Two(Two { classifier, .. }) => grad(classifier, classifier_is),
            Self::Normed(Normed { head, classifier, .. }) => {
                grad(classifier, classifier_is);
                grad(head, is_trained("head"));
            }
        }
    }

    /// Removes all label layers from a checkpoint. Layers between states and labels from pre-training (the poolers, ModernBERT's `head`)
    /// stay, as in `transformers`.
    pub(super) fn forget(checkpoint: &mut Checkpoint) {
        checkpoint.forget_where(|name| ["classifier.", "pre_classifier."].iter().any(|begin| name.starts_with(begin)));
    }

    /// Returns the name on disk of a head's parameter. The pooler of BERT and ALBERT is part of the encoder there.
    pub(super) fn on_disk(name: &str, family: EncoderFamily) -> String {
        let inside = matches!(family, EncoderFamily::Bert | EncoderFamily::Albert) && name.starts_with("pooler.");
        format!("{}{name}", if inside { family.base_prefix() } else { "" })
    }

    /// States that the head reads.
    pub(super) fn reads(&self) -> Reads {
        match self {
            Self::Tokens(_) => Reads::Tokens,
            Self::Pooled(_) | Self::Distilled(_) | Self::Two(_) => Reads::First,
            Self::Normed(normed) => normed.reads,
        }
    }

    /// Computes logits of every text, or of every token, from the states that the head [`reads`](Self::reads).
    pub(super) fn forward(&self, read: Tensor<2>, dropping: Dropping) -> Tensor<2> {
        let dropped =
            |x: Tensor<2>, probability: f32, layer: usize| dropping.apply(x, probability, DropoutSite::Head(layer));
        let through = |layer: &Linear, x: Tensor<2>| layer.forward(x, dropping.stream);
        match self {
            Self::Tokens(Tokens { classifier, dropout }) => through(classifier, dropped(read, *dropout, 1)),
            Self::Pooled(Pooled { pooler, classifier, activation, dropouts: [before, after] }) => {
                let layer = match pooler {
                    Pooler::Dense(Dense { dense }) => dense,
                    Pooler::Plain(layer) => layer,
                };
                let pooled = activation.of(through(layer, dropped(read, *before, 0)));
                through(classifier, dropped(pooled, *after, 1))
            }
            Self::Distilled(Distilled { pre_classifier, classifier, dropout }) => {
                let pooled = Activation::Relu.of(through(pre_classifier, read));
                through(classifier, dropped(pooled, *dropout, 1))
            }
            Self::Two(Two { classifier: TwoLayers { dense, out_proj }, dropout }) => {
                let pooled = Activation::Tanh.of(through(dense, dropped(read, *dropout, 0)));
                through(out_proj, dropped(pooled, *dropout, 1))
            }
            Self::Normed(Normed { head: Prediction { dense, norm }, classifier, activation, dropout, .. }) => {
                let seen = norm.forward(activation.of(through(dense, read)));
                through(classifier, dropped(seen, *dropout, 1))
            }
        }
    }
}

/// Computes the mean of each text's states, `[B, D]`.
pub(super) fn means(hidden_nd: Tensor<2>, texts: &TextBatch) -> Tensor<2> {
    let rows = texts.first_indices().into_iter().zip(texts.lengths_b());
    Tensor::cat(rows.map(|(first, n)| hidden_nd.clone().narrow(0, first, n).mean_dim(0)).collect(), 0)
}

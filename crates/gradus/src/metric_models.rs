//! Models for metrics, implemented with [`crate::model`].

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::batches::MicroBatch;
use crate::error::{Error, Result};
use crate::host::read;
use crate::metric::{
    ClassifierModel, Encoded, EncoderModel, LanguageModel, Models, TextError, TextToTextModel, Truncation,
};
use crate::model::{
    CausalLm, Classifier, Encoder, ModelDir, Reading, Rows, Scope, Sequence, T5Encoder, Text, WeightFormat, open_model,
    tensors_of_file,
};
use crate::text::{Cut, Joined, Tokenizer};

/// Opens models for metrics by their directories and hub names.
#[derive(Debug, Clone)]
pub struct MetricModels {
    /// Compute device, without gradient tracking.
    pub device: Device,
    /// Format of the weights.
    pub weights: WeightFormat,
    /// Size limits of a forward pass.
    pub passes: MicroBatch,
}

impl MetricModels {
    /// Uses weights in f32.
    pub fn new(device: Device, passes: MicroBatch) -> Self {
        Self { device, weights: WeightFormat::F32, passes }
    }
}

/// Loads the tokenizer of a model.
fn tokenizer(dir: &ModelDir) -> Result<Tokenizer> {
    let tokenizer = Tokenizer::of_model(dir.tokenizer_dir(), &dir.path)?;
    dir.check_vocabulary(tokenizer.vocab_size())?;
    Ok(tokenizer)
}

impl Models for MetricModels {
    fn language(&self, name: &str) -> Result<Box<dyn LanguageModel>> {
        let dir = open_model(name)?;
        if dir.has_encoder()? {
            let message =
                "a model with an encoder has no likelihood of a single text: perplexity needs a causal language model";
            return Err(Error::model(&dir.path, message));
        }
        let model = CausalLm::load_packed(&dir, self.weights, &self.device)?.into_frozen(self.weights);
        Ok(Box::new(Language { model, tokenizer: tokenizer(&dir)?, passes: self.passes }))
    }

    fn encoder(&self, name: &str, layer: usize) -> Result<Box<dyn EncoderModel>> {
        let dir = open_model(name)?;
        if dir.has_encoder()? {
            return self.encoder_of_t5(&dir, layer);
        }
        let mut model = Encoder::load_packed(&dir, self.weights, &self.device)?;
        let layers = model.keep_layers(layer);
        if !(1..=layers).contains(&layer) {
            let message = format!("layer {layer} is requested, but the encoder has layers 1 to {layers}");
            return Err(Error::model(&dir.path, message));
        }
        let tokenizer = tokenizer(&dir)?;
        let around = tokenizer.encode("", true)?;
        // As in `bert-score`: RoBERTa's words begin with a blank, also at the start of a text.
        let before = if dir.model_type() == "roberta" { " " } else { "" };
        Ok(Box::new(Encoding {
            model: States::Encoder(Box::new(model)),
            tokenizer,
            around,
            before,
            passes: self.passes,
        }))
    }

    fn classifier(&self, name: &str) -> Result<Box<dyn ClassifierModel>> {
        let dir = open_model(name)?;
        let model = Classifier::load_packed(&dir, self.weights, &self.device)?.into_frozen(self.weights);
        if model.task().scope == Scope::Token {
            let message = "it classifies tokens, but a metric needs a classifier of texts";
            return Err(Error::model(&dir.path, message).with_hint("use a `…ForSequenceClassification` model"));
        }
        Ok(Box::new(Classifying { model, tokenizer: tokenizer(&dir)?, passes: self.passes }))
    }

    fn text_to_text(&self, name: &str) -> Result<Box<dyn TextToTextModel>> {
        let dir = open_model(name)?;
        if !dir.has_encoder()? {
            let message = format!("`{}` has no encoder: a T5, a BART or a similar model is needed", dir.model_type());
            return Err(Error::model(&dir.path, message));
        }
        let model = CausalLm::load_packed(&dir, self.weights, &self.device)?.into_frozen(self.weights);
        Ok(Box::new(Answering { model, tokenizer: tokenizer(&dir)?, passes: self.passes }))
    }

    fn tensors(&self, path: &Path) -> Result<BTreeMap<String, Vec<f32>>> {
        tensors_of_file(path)
    }
}

impl MetricModels {
    fn encoder_of_t5(&self, dir: &ModelDir, layer: usize) -> Result<Box<dyn EncoderModel>> {
        if !dir.family()?.has_t5_encoder() {
            let message = format!("the encoder of a `{}` cannot be used alone; that of a T5 can", dir.model_type());
            return Err(Error::model(&dir.path, message));
        }
        let model = States::T5(Box::new(T5Encoder::load_packed(dir, layer, self.weights, &self.device)?));
        let tokenizer = tokenizer(dir)?;
        // The end-of-text token has the same weight as any other token.
        let (around, before) = (Vec::new(), "");
        Ok(Box::new(Encoding { model, tokenizer, around, before, passes: self.passes }))
    }
}

struct Language {
    model: CausalLm,
    tokenizer: Tokenizer,
    passes: MicroBatch,
}

/// The evaluated model, as a language model for a metric.
pub(crate) struct PolicyReader<'a> {
    /// Model without gradients.
    pub model: &'a CausalLm,
    /// Tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// Size limits of a forward pass.
    pub passes: MicroBatch,
}

impl LanguageModel for PolicyReader<'_> {
    fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        self.tokenizer.encode(text, special).map_err(|error| error.to_string())
    }

    fn start(&self) -> Option<u32> {
        self.tokenizer.bos_id()
    }

    fn positions(&self) -> Option<usize> {
        self.model.max_positions()
    }

    fn losses(&self, texts: &[&[u32]]) -> Vec<Vec<f32>> {
        let lengths: Vec<usize> = texts.iter().map(|ids| ids.len()).collect();
        let mut losses = Vec::with_capacity(texts.len());
        for pass in self.passes.split(&lengths) {
            let batch = self.model.batch(&Rows::texts(&texts[pass]));
            let logprobs = read(&self.model.logprobs(&batch, 1.0).logprobs_m);
            let mut rest = logprobs.as_slice();
            for &count in batch.counts_b() {
                let (own, others) = rest.split_at(count);
                losses.push(own.iter().map(|logprob| -logprob).collect());
                rest = others;
            }
        }
        losses
    }
}

impl Language {
    fn reader(&self) -> PolicyReader<'_> {
        PolicyReader { model: &self.model, tokenizer: &self.tokenizer, passes: self.passes }
    }
}

impl LanguageModel for Language {
    fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        self.reader().ids(text, special)
    }

    fn start(&self) -> Option<u32> {
        self.reader().start()
    }

    fn positions(&self) -> Option<usize> {
        self.reader().positions()
    }

    fn losses(&self, texts: &[&[u32]]) -> Vec<Vec<f32>> {
        self.reader().losses(texts)
    }
}

/// The model that computes hidden states of tokens.
enum States {
    Encoder(Box<Encoder>),
    T5(Box<T5Encoder>),
}

impl States {
    fn max_positions(&self) -> Option<usize> {
        match self {
            Self::Encoder(model) => model.max_positions(),
            Self::T5(_) => None,
        }
    }

    fn check(&self, ids: &[u32]) -> Result<(), String> {
        match self {
            Self::Encoder(model) => model.check(&Text::new(ids)),
            Self::T5(model) => model.check(ids),
        }
    }

    /// Computes the hidden states of all tokens, `[N, D]`.
    fn forward(&self, texts: &[Vec<u32>]) -> Tensor<2> {
        match self {
            Self::Encoder(model) => {
                let texts: Vec<Text<'_>> = texts.iter().map(|ids| Text::new(ids)).collect();
                model.forward(&model.batch(&texts))
            }
            Self::T5(model) => model.forward(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        }
    }
}

struct Encoding {
    model: States,
    tokenizer: Tokenizer,
    around: Vec<u32>,
    /// Prefix of every text.
    before: &'static str,
    passes: MicroBatch,
}

impl EncoderModel for Encoding {
    fn around(&self) -> &[u32] {
        &self.around
    }

    fn ids(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, TextError> {
        let limits = [self.model.max_positions(), self.tokenizer.longest()];
        let cut = limits.into_iter().flatten().min().map(Cut::Right);
        let ids = |(i, text): (usize, &&str)| {
            // Empty texts stay empty.
            let text = if text.is_empty() { String::new() } else { format!("{}{text}", self.before) };
            let joined = self.tokenizer.encode_joined(&text, None, cut);
            joined.map(|joined| joined.ids).map_err(|error| TextError { text: i, message: error.to_string() })
        };
        texts.iter().enumerate().map(ids).collect()
    }

    fn states(&self, texts: Vec<Vec<u32>>) -> Result<Vec<Encoded>, TextError> {
        for (i, ids) in texts.iter().enumerate() {
            self.model.check(ids).map_err(|message| TextError { text: i, message })?;
        }
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let mut states = Vec::with_capacity(texts.len());
        for pass in self.passes.split(&lengths) {
            let hidden_nd = self.model.forward(&texts[pass.clone()]);
            let width = hidden_nd.dims()[1];
            let values = read(&hidden_nd.flatten(0, 1));
            let mut rest = values.as_slice();
            for &length in &lengths[pass] {
                let (own, others) = rest.split_at(length * width);
                states.push(own.to_vec());
                rest = others;
            }
        }
        Ok(texts.into_iter().zip(states).map(|(ids, states)| Encoded { ids, states }).collect())
    }
}

struct Classifying {
    model: Classifier,
    tokenizer: Tokenizer,
    passes: MicroBatch,
}

impl ClassifierModel for Classifying {
    fn labels(&self) -> &[String] {
        &self.model.task().labels
    }

    fn label(&self, name: &str) -> Result<usize, String> {
        self.model.task().label(name)
    }

    fn has_probabilities(&self) -> bool {
        self.model.task().reading != Reading::Values
    }

    fn values(&self, logits: &[f32]) -> Vec<f32> {
        self.model.task().probabilities(logits).unwrap_or_else(|| logits.to_vec())
    }

    fn logits(&self, texts: &[(&str, Option<&str>)], truncation: Truncation) -> Result<Vec<Vec<f32>>, TextError> {
        let limit = |requested: Option<usize>| {
            let requested = requested.or(self.tokenizer.longest());
            [requested, self.model.encoder.max_positions()].into_iter().flatten().min()
        };
        let cut = match truncation {
            Truncation::Left(requested) => limit(requested).map(Cut::Left),
            Truncation::Right(requested) => limit(requested).map(Cut::Right),
        };
        let joined = |(i, (first, second)): (usize, &(&str, Option<&str>))| {
            let joined = self.tokenizer.encode_joined(first, *second, cut).map_err(|error| error.to_string());
            let checked = joined.and_then(|joined| self.model.encoder.check(&text(&joined)).map(|()| joined));
            checked.map_err(|message| TextError { text: i, message })
        };
        let joined: Vec<Joined> = texts.iter().enumerate().map(joined).collect::<Result<_, _>>()?;
        let read_of: Vec<Text<'_>> = joined.iter().map(text).collect();
        let lengths: Vec<usize> = read_of.iter().map(|text| text.ids.len()).collect();
        let mut logits = Vec::with_capacity(texts.len());
        for pass in self.passes.split(&lengths) {
            let values = read(&self.model.logits(&self.model.batch(&read_of[pass])).flatten(0, 1));
            logits.extend(values.chunks_exact(self.labels().len()).map(<[f32]>::to_vec));
        }
        Ok(logits)
    }
}

fn text(joined: &Joined) -> Text<'_> {
    Text { ids: &joined.ids, types: &joined.types, global: None }
}

struct Answering {
    model: CausalLm,
    tokenizer: Tokenizer,
    passes: MicroBatch,
}

impl TextToTextModel for Answering {
    fn first_id(&self, word: &str) -> Result<u32, String> {
        let ids = self.tokenizer.encode(word, false).map_err(|error| error.to_string())?;
        ids.first().copied().ok_or_else(|| format!("`{word}` has no ids in the tokenizer"))
    }

    fn first_logits(&self, texts: &[&str], ids: &[u32]) -> Result<Vec<Vec<f32>>, TextError> {
        let room = [self.model.max_positions(), self.tokenizer.longest()].into_iter().flatten().min();
        let source = |(i, text): (usize, &&str)| {
            let joined = self.tokenizer.encode_joined(text, None, room.map(Cut::Right));
            let error = |message: String| TextError { text: i, message };
            let found = joined.map_err(|error| error.to_string()).map_err(error)?.ids;
            if found.is_empty() { Err(error("the text has no tokens".into())) } else { Ok(found) }
        };
        let sources: Vec<Vec<u32>> = texts.iter().enumerate().map(source).collect::<Result<_, _>>()?;
        let lengths: Vec<usize> = sources.iter().map(Vec::len).collect();
        // The decoder reads only its start token, regardless of the id to predict.
        let first = &ids[..1];
        let mut logits = Vec::with_capacity(texts.len());
        for pass in self.passes.split(&lengths) {
            let rows = sources[pass].iter().map(|source| Sequence::completion(source, first)).collect();
            let batch = self.model.batch(&Rows::Alone(rows));
            let logits_bv = self.model.logits_of(self.model.before_targets(&batch));
            let indices = TensorData::new(ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>(), [ids.len()]);
            let indices = Tensor::<1, Int>::from_data(indices, &logits_bv.device());
            let values = read(&logits_bv.select(1, indices).flatten(0, 1));
            logits.extend(values.chunks_exact(ids.len()).map(<[f32]>::to_vec));
        }
        Ok(logits)
    }
}

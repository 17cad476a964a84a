//! llama.cpp's names of model families, keys with the sizes of a model, and tensors.
//!
//! Names and layouts are those that llama.cpp's own converter writes. Models with features that llama.cpp's
//! architecture does not compute are rejected, so that a file gives the same logits as the original model.

use gradus_kernels::Mask;
use serde_json::{Map, Value as Json};

use super::gguf::{Tensor, Value};
use crate::error::{Error, Result};
use crate::model::decoder::{DecoderConfig, DecoderFamily, DecoderStructure, Norms};
use crate::model::gpt2::Gpt2Config;
use crate::model::{CausalLm, Family, ModelDir, SharedTensor, shared_tensors};

/// A model in llama.cpp's terms.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Keys and values that describe it.
    pub metadata: Vec<(String, Value)>,
    /// Notes for the user.
    pub notes: Vec<String>,
    layout: Layout,
    /// Divisors of the rotary frequencies, if they are not all equal.
    divisors: Option<Vec<f32>>,
}

#[derive(Clone, Copy)]
enum Layout {
    Gpt2,
    Decoder {
        /// Numbers of query and key heads, if the two halves of each head must be interleaved.
        interleaved: Option<[usize; 2]>,
        /// Offset added to the weights of norms.
        offset: f32,
        /// Whether there are norms before and after attention and the feed-forward layer.
        around: bool,
    },
}

impl Architecture {
    /// Describes the model in `dir`; `tied` is whether its LM head is the embedding table.
    ///
    /// # Errors
    /// If llama.cpp has no architecture for it, or if that architecture computes something else.
    pub fn of(dir: &ModelDir, tied: bool) -> Result<Self> {
        let family = dir.family()?;
        let refuse = |message: String| Error::model(dir.path.join("config.json"), message);
        match family {
            Family::Gpt2 => Self::gpt2(dir.whole_config()).map_err(refuse),
            Family::Decoder(of @ DecoderFamily { gguf: Some(name), .. }) => {
                Self::decoder(name, of, &dir.config, tied).map_err(refuse)
            }
            Family::Decoder(DecoderFamily { gguf: None, .. })
            | Family::GptNeox
            | Family::Opt
            | Family::T5
            | Family::Mt5
            | Family::Bart
            | Family::Blenderbot
            | Family::BlenderbotSmall => {
                let has_name = |family: &Family| {
                    matches!(family, Family::Gpt2 | Family::Decoder(DecoderFamily { gguf: Some(_), .. }))
                };
                let possible: Vec<&str> = Family::all().into_iter().filter(has_name).map(Family::name).collect();
                let name = family.name();
                Err(refuse(format!("`{name}` cannot be written as GGUF (possible: {})", possible.join(", "))))
            }
        }
    }

    fn gpt2(config: Map<String, Json>) -> Result<Self, String> {
        let config: Gpt2Config = serde_json::from_value(Json::Object(config)).map_err(|error| error.to_string())?;
        if config.scale_attn_by_inverse_layer_idx || !config.scale_attn_weights {
            return Err("llama.cpp supports only GPT-2's own scaling of attention scores".into());
        }
        if !["gelu_new", "gelu_pytorch_tanh"].contains(&config.activation_function.as_str()) {
            let name = config.activation_function;
            return Err(format!("`activation_function` `{name}`: llama.cpp's GPT-2 supports only gelu_new"));
        }
        let d = config.n_embd;
        let counts = [
            ("context_length", config.n_positions),
            ("embedding_length", d),
            ("feed_forward_length", config.n_inner.unwrap_or(4 * d)),
            ("block_count", config.n_layer),
            ("attention.head_count", config.n_head),
            ("vocab_size", config.vocab_size),
        ];
        let mut metadata = counts_of("gpt2", &counts);
        metadata.push(("gpt2.attention.layer_norm_epsilon".into(), Value::F32(config.layer_norm_epsilon as f32)));
        Ok(Self { name: "gpt2", metadata, notes: Vec::new(), layout: Layout::Gpt2, divisors: None })
    }

    fn decoder(
        name: &'static str,
        family: &DecoderFamily,
        config: &Map<String, Json>,
        tied: bool,
    ) -> Result<Self, String> {
        let (config, structure) = family.read(config)?;
        check(name, &config, &structure, tied)?;
        let mut notes = Vec::new();
        let windows: Vec<Option<usize>> = structure.layers.iter().map(|layer| window(layer.mask)).collect();
        let window = windows.iter().flatten().copied().min();
        let is_gemma = structure.norms == Norms::Around;
        let mut positions = config.max_position_embeddings;
        if let Some(window) = window.filter(|&window| !is_gemma && window < positions) {
            notes.push(format!("llama.cpp has no windows for {name}: the context is the window, {window} tokens"));
            positions = window;
        }
        let [heads, kv_heads] = [config.num_attention_heads, config.kv_heads()];
        let head_dim = config.head_dim();
        let mut counts = vec![
            ("context_length", positions),
            ("embedding_length", config.hidden_size),
            ("feed_forward_length", config.intermediate_size),
            ("block_count", config.num_hidden_layers),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("rope.dimension_count", structure.ropes[0].dims()),
            ("vocab_size", config.vocab_size),
        ];
        if is_gemma {
            let refuse = || format!("no layer has a window, but llama.cpp loads {name} only with windows");
            counts.push(("attention.sliding_window", window.ok_or_else(refuse)?));
            counts.push(("attention.sliding_window_pattern", period(&windows)?));
        }
        let mut metadata = counts_of(name, &counts);
        let mut add = |key: &str, value: Value| metadata.push((format!("{name}.{key}"), value));
        add("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32));
        add("rope.freq_base", Value::F32(structure.ropes[0].base() as f32));
        if is_gemma {
            let caps = [("attn", structure.score_cap), ("final", structure.logit_cap)];
            for (what, cap) in caps.into_iter().filter_map(|(what, cap)| Some((what, cap?))) {
                add(&format!("{what}_logit_softcapping"), Value::F32(cap));
            }
        }
        if let [_, local] = &structure.ropes[..] {
            add("rope.freq_base_swa", Value::F32(local.base() as f32));
        }
        let divisors = structure.ropes[0].divisors().expect("checked");
        let (first, is_even) = (divisors[0], divisors.iter().all(|d| (d / divisors[0] - 1.0).abs() < 1e-6));
        if is_even && (first - 1.0).abs() > 1e-6 {
            add("rope.scaling.type", Value::Text("linear".into()));
            add("rope.scaling.factor", Value::F32(first));
        }
        let layout = Layout::Decoder {
            interleaved: (name == "llama").then_some([heads, kv_heads]),
            offset: structure.norm_offset,
            around: is_gemma,
        };
        Ok(Self { name, metadata, notes, layout, divisors: (!is_even).then_some(divisors) })
    }

    /// Returns the model's tensors with llama.cpp's names.
    pub fn tensors(&self, model: &CausalLm) -> Vec<Tensor> {
        let mut tensors: Vec<Tensor> = shared_tensors(model).into_iter().map(|tensor| self.tensor(tensor)).collect();
        if let Some(divisors) = self.divisors.clone() {
            let (name, dims) = ("rope_freqs.weight".into(), vec![divisors.len()]);
            tensors.push(Tensor { name, dims, values: Box::new(move || divisors.clone()) });
        }
        tensors
    }

    fn tensor(&self, tensor: SharedTensor) -> Tensor {
        let dims = tensor.dims().to_vec();
        let name = tensor.name.strip_prefix("trunk.").unwrap_or(&tensor.name);
        let (module, kind) = name.rsplit_once('.').expect("a parameter of a module");
        let (block, part) = match module.strip_prefix("layers.").or_else(|| module.strip_prefix("h.")) {
            Some(rest) => rest.split_once('.').map_or((None, rest), |(layer, part)| (Some(layer), part)),
            None => (None, module),
        };
        let renamed = self.part(part);
        let name = match block {
            Some(layer) => format!("blk.{layer}.{renamed}.{kind}"),
            None => format!("{renamed}.{kind}"),
        };
        match self.layout {
            Layout::Gpt2 if block.is_some() && dims.len() == 2 => {
                let [rows, columns] = [dims[0], dims[1]];
                let values = move || transposed(&tensor.values(), rows, columns);
                Tensor { name, dims: vec![columns, rows], values: Box::new(values) }
            }
            Layout::Decoder { interleaved: Some([heads, kv_heads]), .. }
                if ["self_attn.q_proj", "self_attn.k_proj"].contains(&part) =>
            {
                let heads = if part.ends_with("q_proj") { heads } else { kv_heads };
                let width = dims[1..].iter().product();
                Tensor { name, dims, values: Box::new(move || interleaved(&tensor.values(), heads, width)) }
            }
            Layout::Decoder { offset, .. } if offset != 0.0 && part.ends_with("norm") => {
                let values = move || tensor.values().into_iter().map(|value| value + offset).collect();
                Tensor { name, dims, values: Box::new(values) }
            }
            _ => Tensor { name, dims, values: Box::new(move || tensor.values()) },
        }
    }

    /// Returns llama.cpp's name of a module.
    fn part(&self, part: &str) -> &'static str {
        let around = matches!(self.layout, Layout::Decoder { around: true, .. });
        match part {
            "wte" | "embed_tokens" => "token_embd",
            "wpe" => "position_embd",
            "ln_f" | "norm" => "output_norm",
            "lm_head" => "output",
            "ln_1" | "input_layernorm" => "attn_norm",
            "attn.c_attn" => "attn_qkv",
            "attn.c_proj" | "self_attn.o_proj" => "attn_output",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "post_attention_layernorm" if around => "post_attention_norm",
            "ln_2" | "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
            "post_feedforward_layernorm" => "post_ffw_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.c_fc" | "mlp.up_proj" => "ffn_up",
            "mlp.c_proj" | "mlp.down_proj" => "ffn_down",
            other => unreachable!("`{other}` is no module of these families"),
        }
    }
}

/// Rejects features that llama.cpp's architecture `name` does not compute.
fn check(name: &str, config: &DecoderConfig, structure: &DecoderStructure, tied: bool) -> Result<(), String> {
    let is_gemma = structure.norms == Norms::Around;
    let no = |what: &str| Err(format!("{what}, which llama.cpp does not compute for {name}"));
    let scale = |of: f64| (f64::from(structure.score_scale) - of.powf(-0.5)).abs() < 1e-6;
    // llama.cpp identifies the largest Gemma models by their number of layers.
    let divisor = match (name, config.num_hidden_layers) {
        ("gemma2", 46) | ("gemma3", 62) => (config.hidden_size / config.num_attention_heads) as f64,
        _ => config.head_dim() as f64,
    };
    if structure.ropes.iter().any(|rope| rope.divisors().is_none()) {
        return no("rotary positions are of the kind dynamic, yarn or longrope");
    }
    if structure.ropes.iter().any(|rope| rope.dims() != config.head_dim()) {
        return no("rotary positions apply to only a part of each head");
    }
    let divisors = structure.ropes[0].divisors().unwrap_or_default();
    if name != "llama" && divisors.iter().any(|d| (d / divisors[0] - 1.0).abs() > 1e-6) {
        return no("rotary positions are of the kind llama3");
    }
    // Of the angles of layers with windows, a file holds only the base.
    let is_scaled = |divisors: Vec<f32>| divisors.iter().any(|divisor| (divisor - 1.0).abs() > 1e-6);
    if structure.ropes[1..].iter().any(|rope| rope.divisors().is_some_and(is_scaled)) {
        return no("rotary positions of the layers with windows are scaled");
    }
    if name != "llama" && (config.mlp_bias || structure.attention_biases[1]) {
        return no("linear layers have biases");
    }
    if name == "qwen3" && structure.attention_biases[0] {
        return no("queries, keys and values have biases");
    }
    if !scale(divisor) {
        return no(&format!("scores are not divided by the root of {divisor}"));
    }
    if name == "gemma2" && (structure.score_cap.is_none() || structure.logit_cap.is_none()) {
        return no("there is no soft cap");
    }
    if name == "gemma2" && !tied {
        return no("the LM head is not the embedding table");
    }
    if name == "gemma3" && structure.logit_cap.is_some() {
        return no("logits are capped");
    }
    if is_gemma != (config.hidden_act == "gelu_pytorch_tanh") || (!is_gemma && config.hidden_act != "silu") {
        return no(&format!("the activation is `{}`", config.hidden_act));
    }
    Ok(())
}

fn window(mask: Mask) -> Option<usize> {
    match mask {
        Mask::CausalWindow(window) => Some(window.get()),
        _ => None,
    }
}

/// Returns the period of the layers without a window; more than the number of layers if all have one.
fn period(windows: &[Option<usize>]) -> Result<usize, String> {
    let Some(first) = windows.iter().position(Option::is_none) else { return Ok(windows.len() + 1) };
    let period = first + 1;
    let fits = windows.iter().enumerate().all(|(i, window)| window.is_none() == (i + 1).is_multiple_of(period));
    match fits {
        true => Ok(period),
        false => Err("layers with windows do not repeat at a fixed period, which llama.cpp requires".into()),
    }
}

fn counts_of(name: &str, counts: &[(&str, usize)]) -> Vec<(String, Value)> {
    counts.iter().map(|&(key, count)| (format!("{name}.{key}"), Value::U32(count as u32))).collect()
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

/// Reorders the rows (of length `width`) of each head from two halves to pairs, because llama.cpp rotates adjacent rows.
fn interleaved(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let mut found = Vec::with_capacity(values.len());
    for head in values.chunks_exact(values.len() / heads) {
        let (first, second) = head.split_at(head.len() / 2);
        for (a, b) in first.chunks_exact(width).zip(second.chunks_exact(width)) {
            found.extend([a, b].concat());
        }
    }
    found
}

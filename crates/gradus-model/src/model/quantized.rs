//! Linear layers in 8 or 4 bits, in the file formats of bitsandbytes and `transformers`.
//!
//! The linear layers of the trunk are quantized; embeddings, norms, biases and heads are not. The numbers of a layer are stored output by
//! output, `[out, in]`. This also holds for GPT-2, whose floats are stored the other way around. The tensors of a layer:
//!
//! | tensor | INT8 | NF4 |
//! |---|---|---|
//! | `….weight` | I8 `[out, in]` | U8 `[out · in / 2, 1]`: two codes per byte, the first in the upper half |
//! | `….SCB` | F32 `[out]`: largest magnitude of each output, 127 times the scale | |
//! | `….weight_format` | U8: 0, rows in order | |
//! | `….weight.absmax` | | U8 (or F32) per block of 64 numbers |
//! | `….weight.quant_map` | | F32 `[16]`: values of the codes |
//! | `….weight.nested_absmax`, `….weight.nested_quant_map` | | F32 per 256 blocks; F32 `[256]` |
//! | `….weight.quant_state.bitsandbytes__nf4` | | U8: JSON with `shape`, `blocksize`, `nested_offset`, … |

use gradus_kernels::{Absmax, BLOCK, NESTED_BLOCK, Quantization, Quantized};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::parameters::SharedTensor;

/// Returns the tensors of the layer `name` on disk.
pub(super) fn tensors(name: &str, weight: Quantized) -> Vec<SharedTensor> {
    let bytes_of = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let floats = |suffix: &str, values: &[f32]| {
        SharedTensor::raw(format!("{name}.{suffix}"), Dtype::F32, vec![values.len()], bytes_of(values))
    };
    let bytes = |suffix: &str, shape: Vec<usize>, bytes: Vec<u8>| {
        SharedTensor::raw(format!("{name}.{suffix}"), Dtype::U8, shape, bytes)
    };
    match weight {
        Quantized::Int8(weight) => {
            let codes = weight.codes().iter().map(|&code| code as u8).collect();
            vec![
                SharedTensor::raw(format!("{name}.weight"), Dtype::I8, weight.shape().to_vec(), codes),
                floats("SCB", weight.absmax()),
                bytes("weight_format", vec![], vec![0]),
            ]
        }
        Quantized::Nf4(weight) => {
            let mut state = json!({
                "quant_type": "nf4", "blocksize": BLOCK, "dtype": "float32", "shape": weight.shape(),
            });
            let codes = weight.codes().to_vec();
            let mut tensors =
                vec![bytes("weight", vec![codes.len(), 1], codes), floats("weight.quant_map", weight.map())];
            match weight.absmax() {
                Absmax::Plain(absmax) => tensors.push(floats("weight.absmax", absmax)),
                Absmax::Nested(nested) => {
                    tensors.push(bytes("weight.absmax", vec![nested.codes.len()], nested.codes.clone()));
                    tensors.push(floats("weight.nested_absmax", &nested.absmax));
                    tensors.push(floats("weight.nested_quant_map", &nested.map));
                    state["nested_blocksize"] = json!(NESTED_BLOCK);
                    state["nested_dtype"] = json!("float32");
                    state["nested_offset"] = json!(nested.offset);
                }
            }
            let state = state.to_string().into_bytes();
            tensors.push(bytes("weight.quant_state.bitsandbytes__nf4", vec![state.len()], state));
            tensors
        }
    }
}

/// Returns the `quantization_config` of a model with the head `head`, with bitsandbytes' usual keys.
pub(super) fn quantization_config(format: Quantization, head: &[&str]) -> Value {
    let mut config = json!({
        "quant_method": "bitsandbytes",
        "load_in_8bit": format == Quantization::Int8,
        "load_in_4bit": format == Quantization::Nf4,
        "llm_int8_skip_modules": head,
    });
    let more = match format {
        // No threshold: activations of any size are multiplied by the quantized weight.
        Quantization::Int8 => json!({ "llm_int8_threshold": 0.0 }),
        Quantization::Nf4 => json!({
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": true,
            "bnb_4bit_compute_dtype": "float32",
            "bnb_4bit_quant_storage": "uint8",
        }),
    };
    if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
        config.extend(more);
    }
    config
}

#[cfg(test)]
mod tests;

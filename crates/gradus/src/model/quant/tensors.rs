//! The tensors of a quantised layer, under bitsandbytes' names.
//!
//! | tensor | INT8 | NF4 |
//! |---|---|---|
//! | `….weight` | I8 `[out, in]` | U8 `[out · in / 2, 1]`: two codes a byte, the first in the upper half |
//! | `….SCB` | F32 `[out]`: largest magnitude of each output, 127 times the scale | |
//! | `….weight_format` | U8: 0, rows in order | |
//! | `….weight.absmax` | | U8 (or F32) a block of 64 numbers |
//! | `….weight.quant_map` | | F32 `[16]`: what codes stand for |
//! | `….weight.nested_absmax`, `….weight.nested_quant_map` | | F32: for 256 blocks; `[256]` |
//! | `….weight.quant_state.bitsandbytes__nf4` | | U8: JSON with `shape`, `blocksize`, `nested_offset`, … |

use gradus_kernels::{Absmax, BLOCK, Int8, NESTED_BLOCK, NestedAbsmax, Nf4, Quantised};
use safetensors::tensor::Dtype;
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::model::checkpoint::Checkpoint;
use crate::model::parameters::SharedTensor;

/// The tensors of the layer `name` on disk.
pub(in crate::model) fn tensors(name: &str, weight: Quantised) -> Vec<SharedTensor> {
    let bytes_of = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let floats = |suffix: &str, values: &[f32]| {
        SharedTensor::raw(format!("{name}.{suffix}"), Dtype::F32, vec![values.len()], bytes_of(values))
    };
    let bytes = |suffix: &str, shape: Vec<usize>, bytes: Vec<u8>| {
        SharedTensor::raw(format!("{name}.{suffix}"), Dtype::U8, shape, bytes)
    };
    match weight {
        Quantised::Int8(weight) => {
            let codes = weight.codes().iter().map(|&code| code as u8).collect();
            vec![
                SharedTensor::raw(format!("{name}.weight"), Dtype::I8, weight.shape().to_vec(), codes),
                floats("SCB", weight.absmax()),
                bytes("weight_format", vec![], vec![0]),
            ]
        }
        Quantised::Nf4(weight) => {
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

impl Checkpoint {
    /// The weight `name` (`….weight`) of `shape`, `[out, in]`, where the checkpoint holds it quantised.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(in crate::model) fn read_quantised(
        &mut self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Option<Quantised>, String> {
        let Some(found) = self.find(name) else { return Ok(None) };
        let part = |suffix: &str| format!("{found}.{suffix}");
        if self.has(&part("quant_state.bitsandbytes__fp4")) {
            return Err(format!("tensor `{found}` holds 4-bit floats (fp4); nf4 can be read"));
        }
        if self.has(&part("quant_state.bitsandbytes__nf4")) {
            return self.read_nf4(&found, shape).map(Some);
        }
        if self.dtype(&found) != Dtype::I8 {
            return Ok(None);
        }
        let layer = found.strip_suffix(".weight").unwrap_or(&found).to_owned();
        let order = format!("{layer}.weight_format");
        if self.has(&order) && self.bytes(&order)? != [0] {
            return Err(format!(
                "tensor `{found}` is laid out for a GPU; save it with `weight_format` 0 (rows in order)"
            ));
        }
        let stored = self.shape(&found);
        if stored != shape {
            return Err(format!("tensor `{found}` has shape {stored:?}, expected {shape:?}"));
        }
        let codes = self.bytes(&found)?.into_iter().map(|code| code as i8).collect();
        let absmax = self.floats(&format!("{layer}.SCB"))?;
        Int8::new(shape, codes, absmax)
            .map(Quantised::Int8)
            .map(Some)
            .map_err(|what| format!("tensor `{found}`: {what}"))
    }

    fn read_nf4(&mut self, found: &str, shape: [usize; 2]) -> Result<Quantised, String> {
        let part = |suffix: &str| format!("{found}.{suffix}");
        let state = self.bytes(&part("quant_state.bitsandbytes__nf4"))?;
        let state: Map<String, Value> =
            serde_json::from_slice(&state).map_err(|error| format!("`quant_state` of `{found}`: {error}"))?;
        let stored: Vec<usize> =
            state.get("shape").and_then(|shape| serde_json::from_value(shape.clone()).ok()).unwrap_or_default();
        if stored != shape {
            return Err(format!("tensor `{found}` has shape {stored:?}, expected {shape:?}"));
        }
        let expect = |key: &str, expected: usize| match state.get(key).and_then(Value::as_u64) {
            Some(size) if size == expected as u64 => Ok(()),
            other => Err(format!(
                "`{key}` of `{found}` is {}, expected {expected}",
                other.map_or("absent".into(), |n| n.to_string())
            )),
        };
        expect("blocksize", BLOCK)?;
        let map = self.floats(&part("quant_map"))?;
        let map =
            map.try_into().map_err(|map: Vec<f32>| format!("`quant_map` of `{found}` has {} numbers", map.len()))?;
        let absmax = if self.has(&part("nested_absmax")) {
            expect("nested_blocksize", NESTED_BLOCK)?;
            let offset = state.get("nested_offset").and_then(Value::as_f64);
            Absmax::Nested(NestedAbsmax {
                codes: self.bytes(&part("absmax"))?,
                map: self.floats(&part("nested_quant_map"))?,
                absmax: self.floats(&part("nested_absmax"))?,
                offset: offset.ok_or_else(|| format!("no `nested_offset` for `{found}`"))? as f32,
            })
        } else {
            Absmax::Plain(self.floats(&part("absmax"))?)
        };
        let codes = self.bytes(found)?;
        Nf4::new(shape, codes, map, absmax).map(Quantised::Nf4).map_err(|what| format!("tensor `{found}`: {what}"))
    }
}

/// A weight of nothing, in the place of one that cannot be read.
pub(in crate::model) fn zeros(shape: [usize; 2]) -> Quantised {
    let weight = Int8::new(shape, vec![0; shape[0] * shape[1]], vec![0.0; shape[0]]);
    Quantised::Int8(weight.expect("one code an element"))
}

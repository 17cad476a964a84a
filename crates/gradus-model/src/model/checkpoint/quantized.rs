//! Reading quantized layers; [`quantized`](crate::model::quantized) lists their tensors.

use gradus_kernels::{Absmax, BLOCK, Int8, NESTED_BLOCK, NestedAbsmax, Nf4, Quantized};
use safetensors::tensor::Dtype;
use serde_json::{Map, Value};

use super::Checkpoint;

impl Checkpoint {
    /// Reads the weight `name` (`….weight`) of `shape`, `[out, in]`; `None` if the checkpoint does not have it
    /// quantized.
    ///
    /// # Errors
    /// Describes the problem.
    pub(super) fn read_quantized(&mut self, name: &str, shape: [usize; 2]) -> Result<Option<Quantized>, String> {
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
            .map(Quantized::Int8)
            .map(Some)
            .map_err(|what| format!("tensor `{found}`: {what}"))
    }

    fn read_nf4(&mut self, found: &str, shape: [usize; 2]) -> Result<Quantized, String> {
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
        Nf4::new(shape, codes, map, absmax).map(Quantized::Nf4).map_err(|what| format!("tensor `{found}`: {what}"))
    }
}

/// A zero weight in place of one that cannot be read.
pub(super) fn zeros(shape: [usize; 2]) -> Quantized {
    let weight = Int8::new(shape, vec![0; shape[0] * shape[1]], vec![0.0; shape[0]]);
    Quantized::Int8(weight.expect("one code an element"))
}

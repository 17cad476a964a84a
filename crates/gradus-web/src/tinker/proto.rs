//! Protocol buffer messages of Tinker's clients, reduced to the fields used here. Fields are identified by number, not by name.

use std::collections::HashMap;

/// `POST /api/v1/forward_backward`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ForwardBackwardRequest {
    #[prost(string, tag = "1")]
    pub model_id: String,
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub loss_fn: String,
    #[prost(map = "string, double", tag = "5")]
    pub loss_fn_config: HashMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub forward_only: bool,
    #[prost(map = "string, message", tag = "7")]
    pub loss_fn_config_v2: HashMap<String, LossConfigValue>,
}

/// Constant of a loss.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LossConfigValue {
    #[prost(oneof = "ConfigValue", tags = "1, 2")]
    pub value: Option<ConfigValue>,
}

/// A number or a text.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ConfigValue {
    #[prost(double, tag = "1")]
    Number(f64),
    #[prost(string, tag = "2")]
    Text(String),
}

/// A text with the inputs of its loss. Fields 3 and 4, the origin of its tokens, are ignored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub model_input: Vec<Chunk>,
    #[prost(map = "string, message", tag = "2")]
    pub loss_fn_inputs: HashMap<String, Tensor>,
}

/// A part of a text.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Chunk {
    #[prost(oneof = "ChunkKind", tags = "1, 2, 3")]
    pub chunk: Option<ChunkKind>,
}

/// Token ids, or unsupported content.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ChunkKind {
    #[prost(message, tag = "1")]
    EncodedText(EncodedTextChunk),
    #[prost(message, tag = "2")]
    Image(Opaque),
    #[prost(message, tag = "3")]
    Dmel(Opaque),
}

/// Token ids of 32 bits.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncodedTextChunk {
    #[prost(bytes = "vec", tag = "1")]
    pub tokens: Vec<u8>,
}

/// A message whose fields are ignored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Opaque {}

/// Numbers with their type and shape.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    #[prost(oneof = "Encoding", tags = "1, 2")]
    pub encoding: Option<Encoding>,
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub shape: Vec<i64>,
}

/// Encoding of the numbers.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Encoding {
    #[prost(bytes = "vec", tag = "1")]
    Dense(Vec<u8>),
    #[prost(message, tag = "2")]
    SparseCsr(SparseCsr),
}

/// A matrix in compressed sparse row format: values, the start of each row, and the column of each value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SparseCsr {
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub crow_indices: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub col_indices: Vec<u8>,
}

/// Type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum DType {
    Unspecified = 0,
    Float32 = 1,
    Int64 = 2,
    Int32 = 3,
    Bfloat16 = 4,
}

/// Result of a forward pass.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ForwardBackwardOutput {
    #[prost(string, tag = "1")]
    pub loss_fn_output_type: String,
    #[prost(message, repeated, tag = "2")]
    pub loss_fn_outputs: Vec<ArrayRecord>,
    #[prost(map = "string, double", tag = "3")]
    pub metrics: HashMap<String, f64>,
}

/// Arrays of several data.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ArrayRecord {
    #[prost(string, tag = "1")]
    pub type_tag: String,
    #[prost(map = "string, message", tag = "2")]
    pub fields: HashMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub num_datums: i64,
}

/// Concatenated arrays of several data.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BatchedTensor {
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    /// Start of each array in bytes, then the end of the last one.
    #[prost(bytes = "vec", tag = "2")]
    pub offsets: Vec<u8>,
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub trailing_shape: Vec<i64>,
}

/// Completions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SampleResponse {
    #[prost(message, repeated, tag = "1")]
    pub sequences: Vec<SampledSequence>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub prompt_logprobs: Option<Vec<u8>>,
    #[prost(message, optional, tag = "3")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    #[prost(int32, tag = "4")]
    pub prompt_cache_hit_tokens: i32,
    #[prost(message, optional, tag = "5")]
    pub target_prompt_logprobs: Option<Tensor>,
}

/// A completion.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SampledSequence {
    #[prost(enumeration = "StopReason", tag = "1")]
    pub stop_reason: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub tokens: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub logprobs: Option<Vec<u8>>,
    #[prost(message, optional, tag = "4")]
    pub topk_sampled_logprobs: Option<TopkLogprobs>,
}

/// Most likely ids at several positions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TopkLogprobs {
    #[prost(bytes = "vec", tag = "1")]
    pub token_ids: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub logprobs: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub k: u32,
    #[prost(uint32, tag = "4")]
    pub length: u32,
}

/// Reason why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum StopReason {
    Stop = 0,
    Length = 1,
}

/// Encodes 32-bit numbers for a message.
pub fn bytes_of<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

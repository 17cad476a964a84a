//! Conversion of request data to a trainer's input. Every number is checked before anything is computed.

use std::collections::HashMap;

use gradus::trainer::{Loss, Targeted};

use super::proto::{
    ArrayRecord, BatchedTensor, ChunkKind, ConfigValue, DType, Datum, Encoding, ForwardBackwardOutput,
    ForwardBackwardRequest, SparseCsr, Tensor, bytes_of,
};

/// Maximum number of targets per id.
const CHOICES_MAX: usize = 1024;

/// Maximum number of targets per request, including the zeros of sparse tensors.
const TARGETS_MAX: usize = 1 << 24;

/// Names of the supported losses.
const LOSSES: &str = "`cross_entropy`, `importance_sampling`, `ppo`, `cispo` and `dro`";

/// Content of a forward and backward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct PassRequest {
    /// Texts with their targets.
    pub rows: Vec<Targeted>,
    /// Number of targets per id of each text, if they form a matrix instead of a list.
    pub choices: Vec<Option<usize>>,
    /// Loss function.
    pub loss: Loss,
    /// Whether no gradient is requested.
    pub is_forward: bool,
}

/// Parses a request.
///
/// # Errors
/// A description of the problem and its location.
pub fn read(request: &ForwardBackwardRequest) -> Result<PassRequest, String> {
    let loss = loss(request)?;
    if request.data.is_empty() {
        return Err("there are no data: at least one datum is needed".into());
    }
    let (mut rows, mut choices, mut targets) = (Vec::new(), Vec::new(), 0);
    for (i, datum) in request.data.iter().enumerate() {
        let (row, of_row) = row(datum, loss).map_err(|message| format!("datum {}: {message}", i + 1))?;
        targets += row.targets.len();
        if targets > TARGETS_MAX {
            return Err(format!("datum {}: the request has more than {TARGETS_MAX} targets", i + 1));
        }
        rows.push(row);
        choices.push(of_row);
    }
    Ok(PassRequest { rows, choices, loss, is_forward: request.forward_only })
}

/// Returns the loss of a request with its constants.
fn loss(request: &ForwardBackwardRequest) -> Result<Loss, String> {
    let mut given: HashMap<&str, f64> = request.loss_fn_config.iter().map(|(name, &of)| (name.as_str(), of)).collect();
    for (name, value) in &request.loss_fn_config_v2 {
        match &value.value {
            Some(ConfigValue::Number(number)) => {
                given.insert(name, *number);
            }
            Some(ConfigValue::Text(text)) => {
                return Err(format!("`loss_fn_config.{name}` is the text `{text}`, but a number is needed"));
            }
            None => return Err(format!("`loss_fn_config.{name}` has no value")),
        }
    }
    let name = request.loss_fn.as_str();
    let mut take = |key: &str, default: f64| match given.remove(key).unwrap_or(default) {
        number if number.is_finite() && number >= 0.0 => Ok(number),
        number => Err(format!("`loss_fn_config.{key}` is {number}, but a number of at least 0 is needed")),
    };
    let mut bounds = |[low, high]: [f64; 2]| -> Result<(f64, f64), String> {
        let (low, high) = (take("clip_low_threshold", low)?, take("clip_high_threshold", high)?);
        match low <= high {
            true => Ok((low, high)),
            false => Err(format!("`clip_low_threshold` is {low}, but `clip_high_threshold` is only {high}")),
        }
    };
    let loss = match name {
        "cross_entropy" => Loss::CrossEntropy,
        "importance_sampling" => Loss::ImportanceSampling,
        "ppo" => bounds(Loss::PPO_BOUNDS).map(|(low, high)| Loss::Ppo { low, high })?,
        "cispo" => bounds(Loss::CISPO_BOUNDS).map(|(low, high)| Loss::Cispo { low, high })?,
        "dro" => Loss::Dro { beta: take("beta", Loss::DRO_BETA)? },
        "" => return Err(format!("`loss_fn` is missing: the losses are {LOSSES}")),
        _ => {
            return Err(format!(
                "`loss_fn` is `{name}`, but the losses are {LOSSES}; any other loss can be computed by \
                 `forward_backward_custom`"
            ));
        }
    };
    match given.keys().next() {
        Some(key) => Err(format!("`loss_fn_config` has `{key}`, which `{name}` does not read")),
        None => Ok(loss),
    }
}

/// Parses a datum. Also returns the number of targets per id if they form a matrix.
fn row(datum: &Datum, loss: Loss) -> Result<(Targeted, Option<usize>), String> {
    let mut ids = Vec::new();
    for chunk in &datum.model_input {
        match &chunk.chunk {
            Some(ChunkKind::EncodedText(text)) => ids.extend(words(&text.tokens, "the tokens of `model_input`")?),
            Some(ChunkKind::Image(_)) => return Err("`model_input` has an image; only text is supported".into()),
            Some(ChunkKind::Dmel(_)) => return Err("`model_input` has audio; only text is supported".into()),
            None => return Err("`model_input` has a chunk of an unknown kind".into()),
        }
    }
    let ids: Vec<u32> = ids.into_iter().map(|id| id_of(i64::from(id))).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        return Err("`model_input` has no tokens".into());
    }
    let mut inputs: HashMap<&str, &Tensor> =
        datum.loss_fn_inputs.iter().map(|(name, of)| (name.as_str(), of)).collect();
    let mut take = |name: &str| inputs.remove(name);
    let targets = take("target_tokens").ok_or("`target_tokens` is missing")?;
    let choices = match targets.shape[..] {
        [] | [_] => None,
        [_, k] if (1..=CHOICES_MAX as i64).contains(&k) => Some(k as usize),
        [_, k] => {
            return Err(format!("`target_tokens` has {k} targets per token, but 1 to {CHOICES_MAX} are possible"));
        }
        _ => {
            return Err(format!(
                "`target_tokens` has the shape {:?}, but one or two dimensions are needed",
                targets.shape
            ));
        }
    };
    let count = ids.len() * choices.unwrap_or(1);
    if count > TARGETS_MAX {
        return Err(format!("it has {count} targets, but a request can have at most {TARGETS_MAX}"));
    }
    let shape = TensorSize { rows: ids.len(), choices, numbers: count };
    let targets: Vec<u32> =
        integers(targets, "target_tokens", shape)?.into_iter().map(id_of).collect::<Result<_, _>>()?;
    let (weights, old_logprobs) = match loss {
        Loss::CrossEntropy => match take("weights") {
            Some(weights) => (floats(weights, "weights", shape)?, Vec::new()),
            None => (vec![1.0; count], Vec::new()),
        },
        _ => {
            let old = take("logprobs")
                .ok_or("`logprobs` is missing: the log-probabilities of the tokens when they were sampled")?;
            let advantages = take("advantages").ok_or("`advantages` is missing")?;
            (floats(advantages, "advantages", shape)?, floats(old, "logprobs", shape)?)
        }
    };
    match inputs.keys().next() {
        Some(name) => Err(format!("`loss_fn_inputs` has `{name}`, which this loss does not read: leave it out")),
        None => Ok((Targeted { ids, targets, weights, old_logprobs }, choices)),
    }
}

fn id_of(id: i64) -> Result<u32, String> {
    u32::try_from(id).map_err(|_| format!("{id} is not a token: ids are at least 0"))
}

/// Required size of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorSize {
    /// Number of tokens in the text.
    pub rows: usize,
    /// Numbers per token, if they form a matrix.
    pub choices: Option<usize>,
    /// Total count of numbers.
    pub numbers: usize,
}

/// Splits bytes into numbers of four bytes.
fn words(bytes: &[u8], what: &str) -> Result<Vec<i32>, String> {
    let (words, rest) = bytes.as_chunks::<4>();
    match rest.is_empty() {
        true => Ok(words.iter().map(|&word| i32::from_le_bytes(word)).collect()),
        false => Err(format!("{what} are {} bytes, which is not a multiple of 4", bytes.len())),
    }
}

/// Parses a tensor of whole numbers.
pub fn integers(tensor: &Tensor, name: &str, size: TensorSize) -> Result<Vec<i64>, String> {
    let read = |bytes: &[u8]| match DType::try_from(tensor.dtype) {
        Ok(DType::Int64) => {
            let (longs, rest) = bytes.as_chunks::<8>();
            let all = longs.iter().map(|&long| i64::from_le_bytes(long)).collect();
            if rest.is_empty() { Ok(all) } else { Err(format!("`{name}` is cut off: {} bytes", bytes.len())) }
        }
        Ok(DType::Int32) => Ok(words(bytes, &format!("the numbers of `{name}`"))?.into_iter().map(i64::from).collect()),
        other => Err(format!("`{name}` has the type {}, but int64 is needed", type_name(other.ok()))),
    };
    laid_out(tensor, name, size, 0, read)
}

/// Parses a tensor of finite numbers.
fn floats(tensor: &Tensor, name: &str, size: TensorSize) -> Result<Vec<f32>, String> {
    let read = |bytes: &[u8]| match DType::try_from(tensor.dtype) {
        Ok(DType::Float32) => {
            let words = words(bytes, &format!("the numbers of `{name}`"))?;
            Ok(words.into_iter().map(|word| f32::from_bits(word.cast_unsigned())).collect())
        }
        Ok(DType::Bfloat16) => {
            let (halves, rest) = bytes.as_chunks::<2>();
            let all = halves.iter().map(|&half| f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16)).collect();
            if rest.is_empty() { Ok(all) } else { Err(format!("`{name}` is cut off: {} bytes", bytes.len())) }
        }
        other => Err(format!("`{name}` has the type {}, but float32 is needed", type_name(other.ok()))),
    };
    let values: Vec<f32> = laid_out(tensor, name, size, 0.0, read)?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!("number {} of `{name}` is {}, but must be finite", at + 1, values[at])),
        None => Ok(values),
    }
}

fn type_name(dtype: Option<DType>) -> &'static str {
    match dtype {
        Some(DType::Float32) => "float32",
        Some(DType::Int64) => "int64",
        Some(DType::Int32) => "int32",
        Some(DType::Bfloat16) => "bfloat16",
        Some(DType::Unspecified) | None => "none that is known",
    }
}

/// Returns the numbers of a tensor in row order. `nothing` fills the gaps of sparse tensors.
fn laid_out<T: Copy>(
    tensor: &Tensor,
    name: &str,
    size: TensorSize,
    nothing: T,
    read: impl Fn(&[u8]) -> Result<Vec<T>, String>,
) -> Result<Vec<T>, String> {
    let TensorSize { rows, choices, numbers } = size;
    let fits = match (&tensor.shape[..], choices) {
        ([], _) => true,
        ([n], None) => *n == rows as i64,
        ([n, k], Some(choices)) => *n == rows as i64 && *k == choices as i64,
        _ => false,
    };
    if !fits {
        let shape = choices.map_or(format!("[{rows}]"), |choices| format!("[{rows}, {choices}]"));
        return Err(format!(
            "`{name}` has the shape {:?}, but {shape} is needed, as long as `model_input`",
            tensor.shape
        ));
    }
    let values = match &tensor.encoding {
        None => Vec::new(),
        Some(Encoding::Dense(bytes)) => read(bytes)?,
        Some(Encoding::SparseCsr(sparse)) => spread(sparse, name, size, nothing, &read)?,
    };
    match values.len() == numbers {
        true => Ok(values),
        false => Err(format!(
            "`{name}` has {} numbers, but {numbers} are needed, as many as `model_input` has tokens",
            values.len()
        )),
    }
}

/// Converts a sparse matrix to a dense one.
fn spread<T: Copy>(
    sparse: &SparseCsr,
    name: &str,
    size: TensorSize,
    nothing: T,
    read: impl Fn(&[u8]) -> Result<Vec<T>, String>,
) -> Result<Vec<T>, String> {
    let broken = |why: &str| Err(format!("the sparse matrix `{name}` is broken: {why}"));
    let longs = |bytes: &[u8]| bytes.as_chunks::<8>().0.iter().map(|&of| i64::from_le_bytes(of)).collect::<Vec<_>>();
    let (begins, columns, values) = (longs(&sparse.crow_indices), longs(&sparse.col_indices), read(&sparse.values)?);
    let Some(choices) = size.choices else { return broken("it is not a matrix") };
    if begins.len() != size.rows + 1 || columns.len() != values.len() {
        return broken("its number of rows or columns differs from its number of values");
    }
    let mut all = vec![nothing; size.numbers];
    for (row, pair) in begins.windows(2).enumerate() {
        let [from, to] = [pair[0], pair[1]].map(|at| usize::try_from(at).ok().filter(|at| *at <= values.len()));
        let (Some(from), Some(to)) = (from, to) else { return broken("a row begins outside of its values") };
        if from > to {
            return broken("a row ends before it begins");
        }
        for at in from..to {
            let column = usize::try_from(columns[at]).ok().filter(|column| *column < choices);
            let Some(column) = column else { return broken("a column is outside") };
            all[row * choices + column] = values[at];
        }
    }
    Ok(all)
}

/// Converts results to the response for a client.
pub fn output(choices: &[Option<usize>], loss: f64, logprobs: &[Vec<f32>]) -> ForwardBackwardOutput {
    let mut records: Vec<ArrayRecord> = Vec::new();
    let (mut from, total) = (0, logprobs.len());
    // Adjacent data with the same shape share one record.
    while from < total {
        let to = (from..total).find(|&i| choices[i] != choices[from]).unwrap_or(total);
        let of = &logprobs[from..to];
        let mut end = 0i64;
        let ends = of.iter().map(|row| {
            end += 4 * row.len() as i64;
            end
        });
        let offsets: Vec<i64> = [0].into_iter().chain(ends).collect();
        let data = of.iter().flat_map(|row| bytes_of(row, f32::to_le_bytes)).collect();
        let tensor = BatchedTensor {
            data,
            offsets: bytes_of(&offsets, i64::to_le_bytes),
            dtype: DType::Float32.into(),
            trailing_shape: choices[from].iter().map(|&k| k as i64).collect(),
        };
        let fields = HashMap::from([("logprobs".to_owned(), tensor)]);
        records.push(ArrayRecord { type_tag: "ArrayRecord".into(), fields, num_datums: of.len() as i64 });
        from = to;
    }
    ForwardBackwardOutput {
        loss_fn_output_type: "ArrayRecord".into(),
        loss_fn_outputs: records,
        metrics: HashMap::from([("loss:sum".to_owned(), loss)]),
    }
}

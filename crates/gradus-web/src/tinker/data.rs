//! Conversion of request data to a trainer's input. Every number is checked before anything is computed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gradus::trainer::{Loss, Targeted};

use super::proto::{
    ArrayRecord, BatchedTensor, ChunkKind, ConfigValue, DType, Datum, Encoding, ForwardBackwardOutput,
    ForwardBackwardRequest, SparseCsr, Tensor, bytes_of,
};

/// Maximum number of targets per id.
const CHOICES_MAX: usize = 1024;

/// Maximum number of targets per request, including the zeros of sparse tensors. The response has a number for each.
const TARGETS_MAX: usize = 1 << 24;

/// Names of the supported losses.
const LOSSES: &str = "`cross_entropy`, `importance_sampling`, `ppo`, `cispo` and `dro`";

/// Content of a forward and backward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct PassRequest {
    /// Texts with their targets.
    pub rows: Vec<Targeted>,
    /// Cells of the targets of each text in the client's tensors.
    pub cells: Vec<Cells>,
    /// Loss function.
    pub loss: Loss,
    /// Whether no gradient is requested.
    pub is_forward: bool,
}

/// Cells of the targets of a text in the client's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cells {
    /// A list with one target per id.
    List,
    /// A matrix with this number of targets per id.
    Matrix(usize),
    /// A matrix of which the tensors hold only some cells.
    Sparse {
        /// Number of cells per id.
        choices: usize,
        /// Cells of each id that the tensors hold. The other cells of the id, if any, share one more target after these:
        /// the id 0, without weight.
        held: Vec<Vec<usize>>,
    },
}

impl Cells {
    /// Number of targets per id, if they form a matrix.
    fn choices(&self) -> Option<usize> {
        match self {
            Self::List => None,
            Self::Matrix(choices) | Self::Sparse { choices, .. } => Some(*choices),
        }
    }

    /// Arranges one number per target as the client's tensors.
    fn arrange<'a>(&self, values: &'a [f32]) -> Cow<'a, [f32]> {
        let Self::Sparse { choices, held } = self else { return values.into() };
        let (mut all, mut values) = (Vec::with_capacity(choices * held.len()), values.iter().copied());
        for held in held {
            let own: Vec<f32> = values.by_ref().take(held.len()).collect();
            let others = if held.len() < *choices { values.next().unwrap_or_default() } else { 0.0 };
            let begin = all.len();
            all.resize(begin + choices, others);
            held.iter().zip(own).for_each(|(column, value)| all[begin + column] = value);
        }
        all.into()
    }
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
    let (mut rows, mut cells, mut targets) = (Vec::new(), Vec::new(), 0);
    for (i, datum) in request.data.iter().enumerate() {
        let (row, of_row) = row(datum, loss).map_err(|message| format!("datum {}: {message}", i + 1))?;
        targets += row.ids.len() * of_row.choices().unwrap_or(1);
        if targets > TARGETS_MAX {
            return Err(format!("datum {}: the request has more than {TARGETS_MAX} targets", i + 1));
        }
        rows.push(row);
        cells.push(of_row);
    }
    Ok(PassRequest { rows, cells, loss, is_forward: request.forward_only })
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

/// Parses a datum.
fn row(datum: &Datum, loss: Loss) -> Result<(Targeted, Cells), String> {
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
    let rows = ids.len();
    let choices = match targets.shape[..] {
        [] => None,
        [n] if n == rows as i64 => None,
        [n, k] if n == rows as i64 && (1..=CHOICES_MAX as i64).contains(&k) => Some(k as usize),
        [n, k] if n == rows as i64 => {
            return Err(format!("`target_tokens` has {k} targets per token, but 1 to {CHOICES_MAX} are possible"));
        }
        _ => {
            return Err(format!(
                "`target_tokens` has the shape {:?}, but `model_input` has {rows} tokens: [{rows}], or [{rows}, K] for K \
                 targets per token, is needed",
                targets.shape
            ));
        }
    };
    let count = ids.len() * choices.unwrap_or(1);
    if count > TARGETS_MAX {
        return Err(format!("it has {count} targets, but a request can have at most {TARGETS_MAX}"));
    }
    let shape = TensorSize { rows: ids.len(), choices, numbers: count };
    let targets = integers(targets, "target_tokens", shape)?;
    let (weights, old_logprobs) = match loss {
        Loss::CrossEntropy => match take("weights") {
            Some(weights) => (floats(weights, "weights", shape)?, None),
            None => (Numbers::Dense(vec![1.0; count]), None),
        },
        _ => {
            let old = take("logprobs")
                .ok_or("`logprobs` is missing: the log-probabilities of the tokens when they were sampled")?;
            let advantages = take("advantages").ok_or("`advantages` is missing")?;
            (floats(advantages, "advantages", shape)?, Some(floats(old, "logprobs", shape)?))
        }
    };
    if let Some(name) = inputs.keys().next() {
        return Err(format!("`loss_fn_inputs` has `{name}`, which this loss does not read: leave it out"));
    }
    let held = match (&targets, &weights, &old_logprobs) {
        // A cell that no tensor holds has the id 0 and the weight 0.
        (Numbers::Sparse(a), Numbers::Sparse(b), None) if loss.ignores_zero() => {
            Some(a.keys().chain(b.keys()).copied().collect())
        }
        (Numbers::Sparse(a), Numbers::Sparse(b), Some(Numbers::Sparse(c))) if loss.ignores_zero() => {
            Some(a.keys().chain(b.keys()).chain(c.keys()).copied().collect())
        }
        _ => None,
    };
    match (held, choices) {
        (Some(held), Some(choices)) => sparse_row(ids, choices, &held, (&targets, &weights, old_logprobs.as_ref())),
        (_, choices) => {
            let targets = targets.into_dense(count).into_iter().map(id_of).collect::<Result<_, _>>()?;
            let weights = weights.into_dense(count);
            let old_logprobs = old_logprobs.map(|old| old.into_dense(count)).unwrap_or_default();
            let row = Targeted { ids, targets, weights, old_logprobs, ..Targeted::default() };
            Ok((row, choices.map_or(Cells::List, Cells::Matrix)))
        }
    }
}

/// Builds a text from the cells that its sparse tensors hold: targets, weights and log-probabilities.
fn sparse_row(
    ids: Vec<u32>,
    choices: usize,
    cells: &BTreeSet<usize>,
    (targets, weights, old_logprobs): (&Numbers<i64>, &Numbers<f32>, Option<&Numbers<f32>>),
) -> Result<(Targeted, Cells), String> {
    let mut row = Targeted { ids, ..Targeted::default() };
    let mut held = Vec::with_capacity(row.ids.len());
    for begin in (0..row.ids.len()).map(|i| i * choices) {
        let own: Vec<usize> = cells.range(begin..begin + choices).map(|cell| cell - begin).collect();
        for cell in own.iter().map(|column| begin + column) {
            row.targets.push(id_of(targets.at(cell))?);
            row.weights.push(weights.at(cell));
            row.old_logprobs.extend(old_logprobs.map(|old| old.at(cell)));
        }
        let others = usize::from(own.len() < choices);
        if others > 0 {
            row.targets.push(0);
            row.weights.push(0.0);
            row.old_logprobs.extend(old_logprobs.map(|_| 0.0));
        }
        row.counts.push(own.len() + others);
        held.push(own);
    }
    Ok((row, Cells::Sparse { choices, held }))
}

fn id_of(id: i64) -> Result<u32, String> {
    u32::try_from(id).map_err(|_| format!("{id} is not a token: ids are at least 0"))
}

/// Required size of a tensor.
#[derive(Debug, Clone, Copy)]
struct TensorSize {
    /// Number of tokens in the text.
    rows: usize,
    /// Numbers per token, if they form a matrix.
    choices: Option<usize>,
    /// Total count of numbers.
    numbers: usize,
}

/// Numbers of a tensor.
enum Numbers<T> {
    /// All of them, in row order.
    Dense(Vec<T>),
    /// Those of some cells; the others are 0.
    Sparse(BTreeMap<usize, T>),
}

impl<T: Copy + Default> Numbers<T> {
    /// Returns the number of a cell.
    fn at(&self, cell: usize) -> T {
        match self {
            Self::Dense(all) => all[cell],
            Self::Sparse(some) => some.get(&cell).copied().unwrap_or_default(),
        }
    }

    /// Returns the numbers of all `count` cells.
    fn into_dense(self, count: usize) -> Vec<T> {
        match self {
            Self::Dense(all) => all,
            Self::Sparse(some) => {
                let mut all = vec![T::default(); count];
                some.into_iter().for_each(|(cell, number)| all[cell] = number);
                all
            }
        }
    }
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
fn integers(tensor: &Tensor, name: &str, size: TensorSize) -> Result<Numbers<i64>, String> {
    let read = |bytes: &[u8]| match DType::try_from(tensor.dtype) {
        Ok(DType::Int64) => {
            let (longs, rest) = bytes.as_chunks::<8>();
            let all = longs.iter().map(|&long| i64::from_le_bytes(long)).collect();
            if rest.is_empty() { Ok(all) } else { Err(format!("`{name}` is cut off: {} bytes", bytes.len())) }
        }
        Ok(DType::Int32) => Ok(words(bytes, &format!("the numbers of `{name}`"))?.into_iter().map(i64::from).collect()),
        other => Err(format!("`{name}` has the type {}, but int64 is needed", type_name(other.ok()))),
    };
    numbers(tensor, name, size, read)
}

/// Parses a tensor of finite numbers.
fn floats(tensor: &Tensor, name: &str, size: TensorSize) -> Result<Numbers<f32>, String> {
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
    numbers(tensor, name, size, |bytes| {
        let values: Vec<f32> = read(bytes)?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(format!("number {} of `{name}` is {}, but must be finite", at + 1, values[at])),
            None => Ok(values),
        }
    })
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

/// Parses a tensor whose numbers `read` parses.
fn numbers<T: Copy>(
    tensor: &Tensor,
    name: &str,
    size: TensorSize,
    read: impl Fn(&[u8]) -> Result<Vec<T>, String>,
) -> Result<Numbers<T>, String> {
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
        Some(Encoding::SparseCsr(sparse)) => return sparse_cells(sparse, name, size, &read).map(Numbers::Sparse),
    };
    match values.len() == numbers {
        true => Ok(Numbers::Dense(values)),
        false => Err(format!(
            "`{name}` has {} numbers, but {numbers} are needed, as many as `model_input` has tokens",
            values.len()
        )),
    }
}

/// Parses a sparse matrix. Returns the numbers of the cells that it holds.
fn sparse_cells<T: Copy>(
    sparse: &SparseCsr,
    name: &str,
    size: TensorSize,
    read: impl Fn(&[u8]) -> Result<Vec<T>, String>,
) -> Result<BTreeMap<usize, T>, String> {
    let broken = |why: &str| Err(format!("the sparse matrix `{name}` is broken: {why}"));
    let longs = |bytes: &[u8]| bytes.as_chunks::<8>().0.iter().map(|&of| i64::from_le_bytes(of)).collect::<Vec<_>>();
    let (begins, columns, values) = (longs(&sparse.crow_indices), longs(&sparse.col_indices), read(&sparse.values)?);
    let Some(choices) = size.choices else { return broken("it is not a matrix") };
    if begins.len() != size.rows + 1 || columns.len() != values.len() {
        return broken("its number of rows or columns differs from its number of values");
    }
    let mut cells = BTreeMap::new();
    for (row, pair) in begins.windows(2).enumerate() {
        let [from, to] = [pair[0], pair[1]].map(|at| usize::try_from(at).ok().filter(|at| *at <= values.len()));
        let (Some(from), Some(to)) = (from, to) else { return broken("a row begins outside of its values") };
        if from > to {
            return broken("a row ends before it begins");
        }
        for at in from..to {
            let column = usize::try_from(columns[at]).ok().filter(|column| *column < choices);
            let Some(column) = column else { return broken("a column is outside") };
            cells.insert(row * choices + column, values[at]);
        }
    }
    Ok(cells)
}

/// Converts results to the response for a client.
pub fn output(cells: &[Cells], loss: f64, logprobs: &[Vec<f32>]) -> ForwardBackwardOutput {
    let mut records: Vec<ArrayRecord> = Vec::new();
    let (mut from, total) = (0, logprobs.len());
    // Adjacent data with the same shape share one record.
    while from < total {
        let choices = cells[from].choices();
        let to = (from..total).find(|&i| cells[i].choices() != choices).unwrap_or(total);
        let of: Vec<Cow<'_, [f32]>> = (from..to).map(|i| cells[i].arrange(&logprobs[i])).collect();
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
            trailing_shape: choices.iter().map(|&k| k as i64).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tinker::proto::{Chunk, EncodedTextChunk};

    /// A request with 3 tokens and 4 targets for each, of which the tensors hold `targets` and `weights`.
    fn sparse(loss_fn: &str, targets: &[(usize, i64)], weights: &[(usize, f32)]) -> PassRequest {
        let csr = |cells: &[usize], values: Vec<u8>, dtype: DType| {
            let begins: Vec<i64> =
                (0..4).map(|row| cells.iter().filter(|cell| **cell < 4 * row).count() as i64).collect();
            let columns: Vec<i64> = cells.iter().map(|cell| (cell % 4) as i64).collect();
            let [crow_indices, col_indices] = [begins, columns].map(|of| bytes_of(&of, i64::to_le_bytes));
            let encoding = Some(Encoding::SparseCsr(SparseCsr { values, crow_indices, col_indices }));
            Tensor { encoding, dtype: dtype.into(), shape: vec![3, 4] }
        };
        let [target_cells, weight_cells] =
            [targets.iter().map(|of| of.0).collect::<Vec<_>>(), weights.iter().map(|of| of.0).collect()];
        let targets: Vec<i64> = targets.iter().map(|of| of.1).collect();
        let weights: Vec<f32> = weights.iter().map(|of| of.1).collect();
        let floats = csr(&weight_cells, bytes_of(&weights, f32::to_le_bytes), DType::Float32);
        let names: &[&str] = if loss_fn == "cross_entropy" { &["weights"] } else { &["advantages", "logprobs"] };
        let mut inputs: HashMap<String, Tensor> = names.iter().map(|name| (name.to_string(), floats.clone())).collect();
        let targets = csr(&target_cells, bytes_of(&targets, i64::to_le_bytes), DType::Int64);
        inputs.insert("target_tokens".into(), targets);
        let tokens = bytes_of(&[5, 6, 7], i32::to_le_bytes);
        let chunk = Some(ChunkKind::EncodedText(EncodedTextChunk { tokens }));
        let datum = Datum { model_input: vec![Chunk { chunk }], loss_fn_inputs: inputs };
        let request =
            ForwardBackwardRequest { data: vec![datum], loss_fn: loss_fn.into(), ..ForwardBackwardRequest::default() };
        read(&request).expect("a request")
    }

    #[test]
    fn cells_that_no_tensor_holds_share_one_target() {
        // The cell (1, 2) has a weight, and the target 0.
        let found = sparse("cross_entropy", &[(1, 8), (3, 9), (8, 1), (9, 2), (10, 3), (11, 4)], &[(1, 0.5), (6, 2.0)]);
        let row = &found.rows[0];
        assert_eq!(row.targets, [8, 9, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(row.weights, [0.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(row.counts, [3, 2, 4]);
        let values = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0];
        let all = [-3.0, -1.0, -3.0, -2.0, -5.0, -5.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0];
        assert_eq!(found.cells[0].arrange(&values)[..], all);
    }

    #[test]
    fn a_loss_of_targets_without_advantage_has_every_cell() {
        let found = sparse("dro", &[(1, 8)], &[(1, 0.5)]);
        assert_eq!((found.rows[0].targets.len(), &found.cells[0]), (12, &Cells::Matrix(4)));
        let found = sparse("ppo", &[(1, 8)], &[(1, -0.5)]);
        assert_eq!(found.rows[0].targets, [8, 0, 0, 0]);
        assert_eq!(found.rows[0].old_logprobs, [-0.5, 0.0, 0.0, 0.0]);
    }
}

//! Reading weights: safetensors or PyTorch's files, one file or shards with an index. Tensors are read one at a time, and all problems are
//! reported together.

mod quantized;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gradus_kernels::Quantized;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;

use crate::error::{Error, Result, excerpt};
use crate::files;
use crate::machine::Machine;
use crate::model::build::{Init, Source};
use crate::model::directory::WEIGHT_FILES;
use crate::model::torch_file;

/// Tensors of a model directory.
pub(crate) struct Checkpoint {
    directory: PathBuf,
    shards: Vec<Shard>,
    /// Shard and byte range of each tensor.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    base_prefix: &'static str,
    requested: BTreeSet<String>,
    problems: Vec<String>,
    failure: Option<Error>,
    /// Creates values for names that the checkpoint does not have, such as a new head.
    fresh: Option<Box<FreshValues>>,
}

/// Returns values for a name and a shape, or `None`.
type FreshValues = dyn FnMut(&str, &[usize], Init) -> Option<Vec<f32>>;

struct Shard {
    path: PathBuf,
    file: File,
    data_start: u64,
}

/// Buffers and duplicates in old files that models do not use.
fn is_ignored(name: &str) -> bool {
    const ENDS: [&str; 10] = [
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
        ".rotary_emb.inv_freq",
        "embeddings.position_ids",
        // In the first T5 checkpoints; attention to the sources has no bias.
        ".EncDecAttention.relative_attention_bias.weight",
        // Format version in the first BART checkpoints.
        "encoder.version",
        "decoder.version",
        // DeBERTa's pre-training used a table of positions that its encoder does not read.
        "embeddings.position_embeddings.weight",
    ];
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Largest size of a file's header, as in the `safetensors` library.
const HEADER_BYTES: u64 = 100_000_000;

/// Hint for weights that belong to another model.
pub(super) const MISFIT: &str = "check that `FILE` and the weights belong together";

impl Checkpoint {
    /// Opens the weights in `directory`. Tensor names may lack the `base_prefix` (`transformer.`, `model.`).
    ///
    /// # Errors
    /// When there are no weights, a file is damaged, the index names a missing shard, or the tensors exceed this machine's memory.
    pub(crate) fn open(directory: &Path, base_prefix: &'static str) -> Result<Self> {
        match weight_files(directory)? {
            Some(files) => Self::of_files(directory, files, base_prefix),
            None => Err(Error::model(directory, "no weights").with_hint(
                "a model directory holds `model.safetensors` or `pytorch_model.bin`, or shards of either with an index",
            )),
        }
    }

    /// Total size of all tensors in bytes.
    pub(super) fn size(&self) -> u64 {
        self.tensors.values().map(|(_, info)| size(info)).sum()
    }

    /// Number of tensors.
    pub(super) fn count(&self) -> usize {
        self.tensors.len()
    }

    /// Opens the tensors of `files`, which are in `directory`.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the tensors exceed this machine's memory.
    pub(crate) fn of_files(directory: &Path, files: Vec<PathBuf>, base_prefix: &'static str) -> Result<Self> {
        let mut checkpoint = Self {
            directory: directory.into(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            base_prefix,
            requested: BTreeSet::new(),
            problems: Vec::new(),
            failure: None,
            fresh: None,
        };
        let memory = Machine::detect().memory_bytes.unwrap_or(u64::MAX);
        let mut bytes = 0_u64;
        for path in files {
            let (shard, tensors) = open_shard(path)?;
            bytes = tensors.iter().fold(bytes, |bytes, (_, info)| bytes.saturating_add(size(info)));
            if bytes > memory {
                let message = format!("its tensors have {bytes} bytes, but this machine has {memory} bytes of memory");
                return Err(Error::model(&shard.path, message));
            }
            let at = checkpoint.shards.len();
            checkpoint.shards.push(shard);
            checkpoint.tensors.extend(tensors.into_iter().map(|(name, info)| (name, (at, info))));
        }
        Ok(checkpoint)
    }

    /// Sets a function that supplies values for names that the checkpoint does not have.
    pub(crate) fn with_fresh(mut self, make: impl FnMut(&str, &[usize], Init) -> Option<Vec<f32>> + 'static) -> Self {
        self.fresh = Some(Box::new(make));
        self
    }

    /// Marks tensors as expected although the model does not use them.
    pub(super) fn ignore_where(&mut self, is_left: impl Fn(&str) -> bool) {
        self.requested.extend(self.tensors.keys().filter(|name| is_left(name)).cloned());
    }

    /// Removes tensors, as if the files did not have them.
    pub(super) fn forget_where(&mut self, is_left_out: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !is_left_out(name));
    }

    /// Returns the name of `name` in the checkpoint, with or without the base prefix.
    pub(super) fn find(&self, name: &str) -> Option<String> {
        // The first BERT checkpoints name the two parts of a layer norm gamma and beta.
        let norm = name.split_once("LayerNorm.").map(|(layer, part)| {
            let old = if part == "weight" { "gamma" } else { "beta" };
            format!("{layer}LayerNorm.{old}")
        });
        // transformers 5 calls GPT-NeoX's head `lm_head` in memory, but `embed_out` in files.
        let head = (name == "embed_out.weight").then_some("lm_head.weight");
        let names = [Some(name), norm.as_deref(), head].into_iter().flatten();
        let held = |name: &&str| self.tensors.contains_key(*name);
        let mut spelled = names.flat_map(|name| [Some(name), name.strip_prefix(self.base_prefix)]).flatten();
        spelled.find(held).map(Into::into)
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let bytes = self.read_bytes(name)?;
        let (at, info) = &self.tensors[name];
        let values = decode(&bytes, info.dtype).ok_or_else(|| {
            Error::model(&self.shards[*at].path, format!("tensor `{name}` is stored as {:?}", info.dtype))
                .with_hint("floating-point weights (F64, F32, F16, BF16) can be read")
        })?;
        check_finite(name, &values).map_err(|message| {
            Error::model(&self.shards[*at].path, message).with_hint(
                "nothing can be computed with it: the training that wrote it went wrong, or the file is damaged",
            )
        })?;
        Ok(values)
    }

    fn read_bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        let (at, info) = &self.tensors[name];
        let shard = &mut self.shards[*at];
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        let read = shard.file.seek(SeekFrom::Start(shard.data_start + from as u64));
        read.and_then(|_| shard.file.read_exact(&mut bytes)).map_err(|error| Error::io(&shard.path, error))?;
        Ok(bytes)
    }

    /// Whether there is a tensor with exactly this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Type of the stored tensor `name`, which must exist.
    pub(super) fn dtype(&self, name: &str) -> Dtype {
        self.tensors[name].1.dtype
    }

    /// Shape of the tensor `name`, which must exist.
    pub(super) fn shape(&self, name: &str) -> &[usize] {
        &self.tensors[name].1.shape
    }

    /// Reads the raw bytes of the tensor with exactly this name.
    ///
    /// # Errors
    /// When it is missing or cannot be read.
    pub(super) fn bytes(&mut self, name: &str) -> Result<Vec<u8>, String> {
        if !self.has(name) {
            return Err(format!("missing tensor `{name}`"));
        }
        self.requested.insert(name.into());
        self.read_bytes(name).map_err(|error| error.to_string())
    }

    /// Reads the values of the tensor with exactly this name.
    ///
    /// # Errors
    /// When it is missing, cannot be read or does not hold floats.
    pub(super) fn floats(&mut self, name: &str) -> Result<Vec<f32>, String> {
        let bytes = self.bytes(name)?;
        let dtype = self.dtype(name);
        let values = decode(&bytes, dtype);
        let values = values.ok_or_else(|| format!("tensor `{name}` is stored as {dtype:?}, expected F32"))?;
        check_finite(name, &values)?;
        Ok(values)
    }

    /// Reports all missing, misshapen and unexpected tensors as one error.
    ///
    /// # Errors
    /// When there are any.
    pub(crate) fn finish(self) -> Result<()> {
        self.finish_against("config.json")
    }

    /// Like [`finish`](Self::finish), if another file than `config.json` lists the tensors.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub(crate) fn finish_against(mut self, config: &str) -> Result<()> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        for name in self.tensors.keys().filter(|name| !self.requested.contains(*name) && !is_ignored(name)) {
            self.problems.push(format!("unexpected tensor `{name}`"));
        }
        if self.problems.is_empty() {
            return Ok(());
        }
        let shown = self.problems.iter().take(10).cloned().collect::<Vec<_>>().join("; ");
        let more = self.problems.len().saturating_sub(10);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        Err(Error::model(&self.directory, format!("the weights do not fit `{config}`: {shown}{rest}"))
            .with_hint(MISFIT.replace("FILE", config)))
    }
}

impl Checkpoint {
    /// Reads the tensor `name` of this shape, or creates a new one if there is none. `None` if there is a problem, which
    /// [`finish`](Self::finish) reports.
    pub(super) fn fitting(&mut self, name: &str, shape: &[usize], init: Init) -> Option<Vec<f32>> {
        let Some(found) = self.find(name) else {
            let fresh = self.fresh.as_mut().and_then(|make| make(name, shape, init));
            if fresh.is_none() {
                self.problems.push(format!("missing tensor `{name}` {shape:?}"));
            }
            return fresh;
        };
        self.requested.insert(found.clone());
        let stored = &self.tensors[&found].1.shape;
        if stored != shape {
            self.problems.push(format!("tensor `{found}` has shape {stored:?}, expected {shape:?}"));
            return None;
        }
        match self.read(&found) {
            Ok(values) => Some(values),
            Err(error) => {
                self.failure.get_or_insert(error);
                None
            }
        }
    }
}

impl Source for Checkpoint {
    fn values(&mut self, name: &str, shape: &[usize], init: Init) -> Option<Vec<f32>> {
        Some(self.fitting(name, shape, init).unwrap_or_else(|| vec![0.0; shape.iter().product()]))
    }

    fn holds(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn same(&mut self, name: &str, other: &str) {
        let (Some(name), Some(other)) = (self.find(name), self.find(other)) else { return };
        self.requested.insert(other.clone());
        if name != other && self.read_bytes(&name).ok() != self.read_bytes(&other).ok() {
            self.problems
                .push(format!("tensor `{other}` differs from `{name}`: different embeddings are not supported"));
        }
    }

    fn quantized(&mut self, name: &str, shape: [usize; 2]) -> Option<Quantized> {
        self.read_quantized(name, shape).unwrap_or_else(|problem| {
            self.problems.push(problem);
            // One problem per layer is enough, so its other tensors are not reported as unexpected.
            let layer = name.strip_suffix("weight").unwrap_or(name);
            let stripped = layer.strip_prefix(self.base_prefix).unwrap_or(layer);
            let own = self.tensors.keys().filter(|name| name.starts_with(layer) || name.starts_with(stripped));
            self.requested.extend(own.cloned().collect::<Vec<_>>());
            Some(quantized::zeros(shape))
        })
    }
}

/// Reads the values of every tensor in the file at `path`, by name. The format is PyTorch's if the name ends in `.bin`, `.pt` or `.pth`,
/// else safetensors.
///
/// # Errors
/// When the file cannot be read or is damaged, or a tensor holds no floats, or values that are not finite.
pub fn tensors_of_file(path: &Path) -> Result<BTreeMap<String, Vec<f32>>> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut checkpoint = Checkpoint::of_files(directory, vec![path.to_owned()], "")?;
    let names: Vec<String> = checkpoint.tensors.keys().cloned().collect();
    let numbers = |name: String| Ok((name.clone(), checkpoint.read(&name)?));
    names.into_iter().map(numbers).collect()
}

/// Size of a tensor in bytes; its offsets have been checked to be in order.
fn size(info: &TensorInfo) -> u64 {
    (info.data_offsets.1 - info.data_offsets.0) as u64
}

/// Rejects values that would make every result `NaN`.
fn check_finite(name: &str, values: &[f32]) -> Result<(), String> {
    // Without the sign, the bits of floats are ordered like the floats. Finding the largest integer uses vector instructions.
    let largest = values.iter().fold(0, |largest, value| value.abs().to_bits().max(largest));
    if f32::from_bits(largest).is_finite() {
        return Ok(());
    }
    match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((at, value)) => Err(format!("tensor `{name}` holds {value} (number {} of {})", at + 1, values.len())),
        None => Ok(()),
    }
}

/// Returns the files of the weights in `directory`: one file, or all shards. `None` if there are no weights.
///
/// # Errors
/// When the index of the shards is damaged.
pub fn weight_files(directory: &Path) -> Result<Option<Vec<PathBuf>>> {
    for (single, index) in WEIGHT_FILES {
        let (single, index) = (directory.join(single), directory.join(index));
        if single.exists() {
            return Ok(Some(vec![single]));
        }
        if index.exists() {
            return Ok(Some(shard_files(&index)?.into_iter().map(|name| directory.join(name)).collect()));
        }
    }
    Ok(None)
}

/// Returns the distinct shard files that an index names, in order.
fn shard_files(index: &Path) -> Result<Vec<String>> {
    let text = files::read_text(index, files::SETTINGS_BYTES).map_err(|error| Error::io(index, error))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Error::data(index, Some(error.line()), format!("not valid JSON: {error}")))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| Error::model(index, "no `weight_map`"))?;
    let mut files = BTreeSet::new();
    for (tensor, file) in map {
        // Only plain file names are accepted, so that an index cannot refer to files outside of the directory.
        let name = file.as_str().filter(|name| Path::new(name).file_name().is_some_and(|own| own == *name));
        let Some(name) = name else {
            let shown = excerpt(&file.to_string(), 60);
            let message =
                format!("the shard of `{tensor}` is `{shown}`, but must be the name of a file in the directory");
            return Err(Error::model(index, message));
        };
        files.insert(name.to_owned());
    }
    Ok(files.into_iter().collect())
}

/// Opens a PyTorch file, whose tensor offsets count from the start of the file.
fn open_torch(path: PathBuf) -> Result<(Shard, Vec<(String, TensorInfo)>)> {
    let file = files::open(&path).map_err(|error| Error::io(&path, error))?;
    let length = file.metadata().map_err(|error| Error::io(&path, error))?.len();
    let found = torch_file::tensors(&file, &path).and_then(|tensors| {
        match tensors.iter().find(|(_, info)| info.data_offsets.1 as u64 > length) {
            Some((name, info)) => {
                Err(format!("truncated: `{name}` ends at byte {}, the file at {length}", info.data_offsets.1))
            }
            None => Ok(tensors),
        }
    });
    let tensors = found.map_err(|message| {
        Error::model(&path, message).with_hint(
            "convert the weights where they are trusted: `AutoModel.from_pretrained(dir).save_pretrained(dir)` in transformers \
             writes safetensors",
        )
    })?;
    Ok((Shard { path, file, data_start: 0 }, tensors))
}

fn open_shard(path: PathBuf) -> Result<(Shard, Vec<(String, TensorInfo)>)> {
    if path.extension().is_some_and(|extension| ["bin", "pt", "pth"].iter().any(|of_torch| extension == *of_torch)) {
        return open_torch(path);
    }
    let damaged = |message: String| {
        Error::model(&path, message).with_hint("the file is damaged or was not downloaded completely; fetch it again")
    };
    let mut file = files::open(&path).map_err(|error| Error::io(&path, error))?;
    let length = file.metadata().map_err(|error| Error::io(&path, error))?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|_| damaged(format!("{length} bytes are too few for a safetensors file")))?;
    let header_size = u64::from_le_bytes(size);
    if header_size > HEADER_BYTES && header_size <= length - 8 {
        return Err(damaged(format!("its header has {header_size} bytes, but at most {HEADER_BYTES} are read")));
    }
    if header_size > length - 8 {
        return Err(damaged(format!("not a safetensors file: its header would be {header_size} bytes of {length}")));
    }
    let mut header = vec![0; header_size as usize];
    file.read_exact(&mut header).map_err(|error| Error::io(&path, error))?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| damaged(format!("not a safetensors file: {error}")))?;
    let data_start = 8 + header_size;
    let expected = data_start + metadata.tensors().values().map(|info| info.data_offsets.1 as u64).max().unwrap_or(0);
    if length < expected {
        return Err(damaged(format!("truncated: its header promises {expected} bytes, the file has {length}")));
    }
    let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
    Ok((Shard { path, file, data_start }, tensors))
}

/// Converts little-endian floats of any width to f32.
fn decode(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let words = |n: usize| bytes.chunks_exact(n);
    Some(match dtype {
        Dtype::F32 => words(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F64 => words(8).map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes")) as f32).collect(),
        Dtype::BF16 => words(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect(),
        Dtype::F16 => words(2).map(|b| half_to_f32(u16::from_le_bytes([b[0], b[1]]))).collect(),
        _ => return None,
    })
}

/// Converts IEEE half precision to f32 exactly.
fn half_to_f32(half: u16) -> f32 {
    let (sign, exponent, fraction) = (half >> 15, (half >> 10) & 0x1f, u32::from(half & 0x3ff));
    let magnitude = match exponent {
        0 => fraction as f32 * 2f32.powi(-24),
        31 if fraction == 0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction as f32 / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::half_to_f32;

    #[test]
    fn halves_widen_exactly() {
        for (half, value) in [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 5.960_464_5e-8), (0x0000, 0.0)]
        {
            assert_eq!(half_to_f32(half), value);
        }
        assert!(half_to_f32(0x7c00).is_infinite() && half_to_f32(0x7e00).is_nan());
    }
}

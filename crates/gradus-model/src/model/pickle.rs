//! Reader of the pickles in PyTorch's weight files, which executes nothing.
//!
//! A pickle is a program for a stack machine that may call any Python function. This reader supports only the instructions that
//! `torch.save` writes and the few names that describe tensors, like `torch.load(weights_only=True)`; anything else is an error. All values
//! are in one list and refer to each other by index. So nothing is copied, nothing recurses, and the length of the pickle bounds the
//! memory.

use std::collections::HashMap;
use std::io::Read;

use safetensors::tensor::Dtype;

/// Largest size of one pickle in bytes. Those of models with 10,000 tensors have about a million.
pub(super) const PICKLE_BYTES: u64 = 100_000_000;

/// Largest number of dimensions of a tensor.
const RANK: usize = 8;

/// A value; its parts are indices into [`Pickle::values`].
#[derive(Debug, Clone)]
pub(super) enum Value {
    None,
    Number(i64),
    Text(String),
    /// Bytes, floats and other values that do not describe tensors.
    Other,
    Tuple(Vec<usize>),
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
    /// A name that may be called; see [`Callable`].
    Callable(Callable),
    Storage(Storage),
    Tensor(StoredTensor),
}

/// Names that a pickle of weights may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Callable {
    /// `collections.OrderedDict`
    Dict,
    /// `torch._utils._rebuild_tensor_v2` and `_rebuild_tensor`
    Tensor,
    /// `torch._utils._rebuild_parameter`
    Parameter,
    /// `torch.Size`
    Size,
    /// `torch.FloatStorage` and similar classes; `None` for numbers that weights are not stored in.
    StorageOf(Option<Dtype>),
}

impl Callable {
    fn named(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::Dict,
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Self::Tensor,
            ("torch._utils", "_rebuild_parameter") => Self::Parameter,
            ("torch", "Size") => Self::Size,
            ("torch" | "torch.cuda", storage) => Self::StorageOf(match storage.strip_suffix("Storage")? {
                "Float" => Some(Dtype::F32),
                "Double" => Some(Dtype::F64),
                "Half" => Some(Dtype::F16),
                "BFloat16" => Some(Dtype::BF16),
                "Long" => Some(Dtype::I64),
                "Int" => Some(Dtype::I32),
                "Short" => Some(Dtype::I16),
                "Char" => Some(Dtype::I8),
                "Byte" => Some(Dtype::U8),
                "Bool" => Some(Dtype::BOOL),
                _ => return None,
            }),
            _ => return None,
        })
    }
}

/// A sequence of numbers outside the pickle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Storage {
    pub key: String,
    pub dtype: Dtype,
    /// Number of values.
    pub length: usize,
}

/// A view of a storage as a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// Index of its [`Storage`].
    pub storage: usize,
    /// Number of values in the storage before the first one.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// Result of reading a pickle: its values, and the index of the resulting one.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    top: usize,
}

impl Pickle {
    /// Reads one pickle and leaves the rest of `source` unread.
    ///
    /// # Errors
    /// Describes the first problem.
    pub(super) fn read(source: &mut dyn Read) -> Result<Self, String> {
        Machine { source, left: PICKLE_BYTES, values: Vec::new(), stack: Vec::new(), memo: HashMap::new() }.run()
    }

    /// Returns the value with this index.
    pub(super) fn get(&self, place: usize) -> &Value {
        &self.values[place]
    }

    /// Returns the entries of a mapping whose keys are texts.
    pub(super) fn entries(&self) -> Result<Vec<(&str, &Value)>, String> {
        let Value::Dict(entries) = self.get(self.top) else {
            return Err("it holds no mapping of names to tensors".into());
        };
        let named = |&(key, value): &(usize, usize)| match self.get(key) {
            Value::Text(name) => Ok((name.as_str(), self.get(value))),
            _ => Err("a key of its mapping is not a text".to_owned()),
        };
        entries.iter().map(named).collect()
    }

    /// Returns all storages of tensors.
    pub(super) fn storages(&self) -> impl Iterator<Item = &Storage> {
        self.values.iter().filter_map(|value| match value {
            Value::Storage(storage) => Some(storage),
            _ => None,
        })
    }

    /// Returns the texts of a list.
    pub(super) fn texts(&self) -> Option<Vec<&str>> {
        let Value::List(items) = self.get(self.top) else { return None };
        let text = |&place: &usize| match self.get(place) {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        };
        items.iter().map(text).collect()
    }
}

struct Machine<'a> {
    source: &'a mut dyn Read,
    left: u64,
    values: Vec<Value>,
    /// Indices of values; `None` is a mark.
    stack: Vec<Option<usize>>,
    memo: HashMap<u64, usize>,
}

impl Machine<'_> {
    fn run(mut self) -> Result<Pickle, String> {
        loop {
            let [code] = self.bytes()?;
            match code {
                // PROTO, FRAME: skipped.
                0x80 => drop(self.bytes::<1>()?),
                0x95 => drop(self.bytes::<8>()?),
                b'(' => self.stack.push(None),
                b'.' => {
                    let top = self.pop()?;
                    return Ok(Pickle { values: self.values, top });
                }
                b'N' => self.push(Value::None),
                0x88 => self.push(Value::Number(1)),
                0x89 => self.push(Value::Number(0)),
                b'J' => {
                    let number = i32::from_le_bytes(self.bytes()?);
                    self.push(Value::Number(number.into()));
                }
                b'K' => self.number::<1>()?,
                b'M' => self.number::<2>()?,
                0x8a => self.long()?,
                b'G' => {
                    self.bytes::<8>()?;
                    self.push(Value::Other);
                }
                0x8c | b'U' => self.text::<1>()?,
                b'X' | b'T' => self.text::<4>()?,
                0x8d => self.text::<8>()?,
                b'}' => self.push(Value::Dict(Vec::new())),
                b']' => self.push(Value::List(Vec::new())),
                b')' => self.push(Value::Tuple(Vec::new())),
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Tuple(items));
                }
                0x85..=0x87 => {
                    let mut items = vec![0; usize::from(code - 0x84)];
                    for item in items.iter_mut().rev() {
                        *item = self.pop()?;
                    }
                    self.push(Value::Tuple(items));
                }
                b'q' => self.remember::<1>()?,
                b'r' => self.remember::<4>()?,
                0x94 => self.remember_at(self.memo.len() as u64)?,
                b'h' => self.recall::<1>()?,
                b'j' => self.recall::<4>()?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(&module, &name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop_text()?, self.pop_text()?);
                    self.global(&module, &name)?;
                }
                b'R' => self.call()?,
                b'Q' => self.storage()?,
                // BUILD: attributes of a mapping (`_metadata`), which do not describe tensors.
                b'b' => drop(self.pop()?),
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.extend_dict(&[key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.extend_dict(&items)?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.extend_list(&[item])?;
                }
                b'e' => {
                    let items = self.pop_to_mark()?;
                    self.extend_list(&items)?;
                }
                other => return Err(format!("its pickle has the instruction {other:#04x}, which weights do not need")),
            }
        }
    }

    fn take(&mut self, length: u64) -> Result<Vec<u8>, String> {
        if length > self.left {
            return Err(format!("its pickle has more than {PICKLE_BYTES} bytes"));
        }
        self.left -= length;
        let mut bytes = Vec::new();
        let read = self.source.take(length).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if read as u64 == length { Ok(bytes) } else { Err("its pickle ends in the middle of an instruction".into()) }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.left = self.left.checked_sub(N as u64).ok_or(format!("its pickle has more than {PICKLE_BYTES} bytes"))?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|_| "its pickle ends in the middle of an instruction")?;
        Ok(bytes)
    }

    /// Reads an unsigned number of `N` bytes.
    fn unsigned<const N: usize>(&mut self) -> Result<u64, String> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.bytes::<N>()?);
        Ok(u64::from_le_bytes(wide))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        loop {
            match self.bytes()? {
                [b'\n'] => break,
                [byte] if line.len() < 200 => line.push(byte),
                _ => return Err("a name in its pickle has more than 200 bytes".into()),
            }
        }
        String::from_utf8(line).map_err(|_| "a name in its pickle is not UTF-8".into())
    }

    /// Reads a text after its length of `N` bytes.
    fn text<const N: usize>(&mut self) -> Result<(), String> {
        let length = self.unsigned::<N>()?;
        let text = String::from_utf8(self.take(length)?).map_err(|_| "a text in its pickle is not UTF-8")?;
        self.push(Value::Text(text));
        Ok(())
    }

    /// Reads an unsigned integer of `N` bytes, fewer than 8.
    fn number<const N: usize>(&mut self) -> Result<(), String> {
        let number = self.unsigned::<N>()?;
        self.push(Value::Number(number as i64));
        Ok(())
    }

    /// Reads an integer of any width. One that does not fit describes no tensor.
    fn long(&mut self) -> Result<(), String> {
        let length = self.unsigned::<1>()?;
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        self.push(match wide.get_mut(..bytes.len()) {
            Some(low) => {
                low.copy_from_slice(&bytes);
                Value::Number(i64::from_le_bytes(wide))
            }
            None => Value::Other,
        });
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        self.stack.push(Some(self.values.len() - 1));
    }

    fn pop(&mut self) -> Result<usize, String> {
        self.stack.pop().flatten().ok_or_else(|| "its pickle takes a value that does not exist".into())
    }

    fn pop_text(&mut self) -> Result<String, String> {
        let place = self.pop()?;
        match &self.values[place] {
            Value::Text(text) => Ok(text.clone()),
            _ => Err("a name in its pickle is not a text".into()),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<usize>, String> {
        let mark = self.stack.iter().rposition(Option::is_none).ok_or("its pickle takes a mark that does not exist")?;
        let items = self.stack.drain(mark..).flatten().collect();
        Ok(items)
    }

    fn top(&self) -> Result<usize, String> {
        self.stack.last().copied().flatten().ok_or_else(|| "its pickle changes a value that does not exist".into())
    }

    fn remember<const N: usize>(&mut self) -> Result<(), String> {
        let at = self.unsigned::<N>()?;
        self.remember_at(at)
    }

    fn remember_at(&mut self, at: u64) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(at, top);
        Ok(())
    }

    fn recall<const N: usize>(&mut self) -> Result<(), String> {
        let at = self.unsigned::<N>()?;
        let place = self.memo.get(&at).ok_or("its pickle recalls a value that does not exist")?;
        self.stack.push(Some(*place));
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), String> {
        let callable = Callable::named(module, name).ok_or_else(|| {
            let shown: String = format!("{module}.{name}").chars().take(80).collect();
            format!("its pickle uses `{shown}`, which is not part of a weight file; it is not executed")
        })?;
        self.push(Value::Callable(callable));
        Ok(())
    }

    fn extend_dict(&mut self, items: &[usize]) -> Result<(), String> {
        let top = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match &mut self.values[top] {
            Value::Dict(entries) if rest.is_empty() => {
                entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                Ok(())
            }
            _ => Err("its pickle sets an entry of a value that is not a mapping".into()),
        }
    }

    fn extend_list(&mut self, items: &[usize]) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.values[top] {
            Value::List(list) => {
                list.extend(items);
                Ok(())
            }
            _ => Err("its pickle appends to a value that is not a list".into()),
        }
    }

    /// REDUCE: calls a name with arguments.
    fn call(&mut self) -> Result<(), String> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let Value::Callable(callable) = self.values[callable] else {
            return Err("its pickle calls a value that is not a name".into());
        };
        let Value::Tuple(arguments) = &self.values[arguments] else {
            return Err("its pickle calls a name without arguments".into());
        };
        match (callable, arguments.as_slice()) {
            (Callable::Dict, []) => self.push(Value::Dict(Vec::new())),
            // Returns the value itself, because a pickle could request any number of copies.
            (Callable::Size, &[items]) => self.stack.push(Some(items)),
            (Callable::Parameter, &[data, ..]) => self.stack.push(Some(data)),
            (Callable::Tensor, &[storage, offset, shape, strides, ..]) => {
                if !matches!(self.values[storage], Value::Storage(_)) {
                    return Err("a tensor in its pickle has no storage".into());
                }
                let (offset, shape, strides) = (self.size(offset)?, self.sizes(shape)?, self.sizes(strides)?);
                self.push(Value::Tensor(StoredTensor { storage, offset, shape, strides }));
            }
            _ => return Err("its pickle calls a name with arguments that weights do not have".into()),
        }
        Ok(())
    }

    fn size(&self, place: usize) -> Result<usize, String> {
        match &self.values[place] {
            Value::Number(number) => usize::try_from(*number).map_err(|_| format!("a size in its pickle is {number}")),
            _ => Err("a size in its pickle is not a whole number".into()),
        }
    }

    fn sizes(&self, place: usize) -> Result<Vec<usize>, String> {
        match &self.values[place] {
            Value::Tuple(items) if items.len() > RANK => {
                Err(format!("a tensor in its pickle has {} dimensions, but weights have at most {RANK}", items.len()))
            }
            Value::Tuple(items) => items.iter().map(|&item| self.size(item)).collect(),
            _ => Err("a shape in its pickle is not a tuple".into()),
        }
    }

    /// BINPERSID: `('storage', class, key, device, length, …)` identifies a storage.
    fn storage(&mut self) -> Result<(), String> {
        let place = self.pop()?;
        let parts = match &self.values[place] {
            Value::Tuple(parts) if parts.len() >= 5 => [parts[1], parts[2], parts[4]],
            _ => return Err("its pickle refers to something that is not a storage".into()),
        };
        let [class, key, length] = parts;
        let storage = match (&self.values[class], &self.values[key]) {
            (Value::Callable(Callable::StorageOf(Some(dtype))), Value::Text(key)) => {
                Storage { key: key.clone(), dtype: *dtype, length: self.size(length)? }
            }
            _ => return Err("a storage in its pickle is of an unknown kind".into()),
        };
        self.push(Value::Storage(storage));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Pickle, String> {
        Pickle::read(&mut &bytes[..])
    }

    fn refused(bytes: &[u8]) -> String {
        read(bytes).expect_err("refused")
    }

    #[test]
    fn mappings_lists_and_numbers_are_read() {
        let pickle = read(b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x07X\x01\x00\x00\x00bM\x01\x02u.").expect("read");
        let entries = pickle.entries().expect("a mapping");
        assert!(matches!(entries[..], [("a", Value::Number(7)), ("b", Value::Number(513))]), "{entries:?}");
        assert_eq!(read(b"\x80\x02](U\x01xU\x02yze.").expect("read").texts(), Some(vec!["x", "yz"]));
        let numbers = read(b"\x80\x02(J\xff\xff\xff\xff\x8a\x01\xfe\x8a\x00t.").expect("read");
        let Value::Tuple(places) = numbers.get(numbers.top) else { panic!("a tuple") };
        let numbers: Vec<_> = places.iter().map(|&place| format!("{:?}", numbers.get(place))).collect();
        assert_eq!(numbers, ["Number(-1)", "Number(-2)", "Number(0)"]);
    }

    #[test]
    fn nothing_is_executed() {
        let expected = "its pickle uses `posix.system`, which is not part of a weight file; it is not executed";
        assert_eq!(refused(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R."), expected);
        assert_eq!(refused(b"\x80\x04\x8c\x05posix\x8c\x06system\x93."), expected);
        assert!(refused(b"c__builtin__\neval\n.").contains("`__builtin__.eval`"));
        // This reader has no instructions for instances and method calls.
        for code in [b'i', b'o', 0x81, 0x92, b'P', 0x82] {
            assert!(refused(&[b'(', code, b'.']).starts_with("its pickle has the instruction "), "{code}");
        }
        assert!(refused(b"ccollections\nOrderedDict\nK\x01\x85R.").contains("arguments that weights do not have"));
        assert!(refused(b"K\x01)R.").contains("a value that is not a name"));
    }

    #[test]
    fn broken_pickles_are_errors() {
        for bytes in [
            &b""[..],
            b"\x80",
            b".",
            b"}u.",
            b"t.",
            b"R.",
            b"Q.",
            b"h\x00.",
            b"X\xff\xff\xff\xffa.",
            b"(K\x01)",
            b"K\x01a.",
        ] {
            assert!(!refused(bytes).is_empty(), "{bytes:?}");
        }
        assert!(refused(&[&b"c"[..], &[b'a'; 1000], b"\nb\n."].concat()).contains("more than 200 bytes"));
        let deep = [&[b'('; 9][..], &b"K\x01".repeat(9), b"t."].concat();
        assert!(read(&deep).is_ok());
        let many = [&b"ctorch._utils\n_rebuild_tensor_v2\n(ctorch\nFloatStorage\nU\x01a"[..], b"."].concat();
        assert!(read(&many).is_ok(), "names alone are values");
    }

    #[test]
    fn a_value_that_is_used_again_is_not_copied() {
        // A tuple of many numbers, made a `torch.Size` many times: stored as indices only.
        let mut bytes = b"(".to_vec();
        bytes.extend(b"K\x01".repeat(100_000));
        bytes.extend(b"tq\x00ctorch\nSize\nq\x01");
        bytes.extend(b"h\x01h\x00\x85R".repeat(100_000));
        bytes.push(b'.');
        assert!(read(&bytes).is_ok());
    }
}

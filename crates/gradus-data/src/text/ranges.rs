//! Finds the bytes of a text that each of its ids decodes to.

use std::ops::Range;

use super::Tokenizer;
use crate::error::Result;

/// Maximum number of ids that are decoded together to find the text of the newest one.
const LONGEST: usize = 64;
/// Number of ids that are decoded together before decoding restarts at a gap between characters.
const LONG: usize = 8;
/// Maximum number of ids with which decoding restarts. Their text alone must equal the end of the text. Usually one id is enough;
/// split characters and lost spaces need more.
const FEW: usize = 4;

/// Returns the text that `ids` add to `before`.
///
/// If ids are decoded alone, tokenizers like Llama's lose the leading space (`there was` for ` there was`). The joined text would
/// then differ from what the model wrote. If the ids of `before` decode differently once others follow, the text is that of `ids`
/// alone.
///
/// # Errors
/// If the tokenizer cannot decode the ids.
pub fn continuation(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Result<String> {
    let (mut text, begin) = joined(tokenizer, before, ids)?;
    Ok(text.split_off(begin))
}

/// Returns the bytes of [`continuation`] that belong to each of `ids`.
///
/// The ranges follow each other without gaps from 0 to the end of the text, on character boundaries, so their texts join to the
/// whole text. Byte-level tokenizers may split a character over several ids. It then belongs to the id that completes it, and the
/// ranges of the others are empty. Special ids have no text and also have empty ranges.
///
/// Time is linear in the ids: each id is decoded with a few ids before it, and its position follows from the text.
///
/// # Errors
/// If the tokenizer cannot decode the ids.
pub fn ranges(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Result<Vec<Range<usize>>> {
    let (text, begin) = joined(tokenizer, before, ids)?;
    let mut last: Vec<u32> = before.iter().rev().copied().filter(|&id| !tokenizer.is_special(id)).take(FEW).collect();
    last.reverse();
    let mut window = Window { ids: Vec::new(), start: begin, is_cut: !last.is_empty() };
    window.begin_with_the_last(&last, tokenizer, &text[..begin])?;
    let (mut ends, mut end) = (Vec::with_capacity(ids.len()), begin);
    for &id in ids {
        if !tokenizer.is_special(id) {
            window.ids.push(id);
            let decoded = tokenizer.decode(&window.ids, true)?;
            let known = window.reach(&text, &decoded).max(end);
            let has_grown = known > end;
            end = known;
            window.restart(tokenizer, &text[..end], &decoded, has_grown)?;
        }
        ends.push(end - begin);
    }
    // Text that could not be attributed to any id belongs to the last one.
    if end < text.len()
        && let Some(last) = ids.iter().rposition(|&id| !tokenizer.is_special(id))
    {
        ends[last..].fill(text.len() - begin);
    }
    let mut start = 0;
    Ok(ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect())
}

/// Returns the text of `before` and `ids`, and the position in it at which `ids` begin.
fn joined(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Result<(String, usize)> {
    let prompt = tokenizer.decode(before, true)?;
    let whole = tokenizer.decode(&[before, ids].concat(), true)?;
    if whole.starts_with(&prompt) { Ok((whole, prompt.len())) } else { Ok((tokenizer.decode(ids, true)?, 0)) }
}

/// Ids that are decoded together to find the text of the newest one.
struct Window {
    ids: Vec<u32>,
    /// Start of their text in the whole text.
    start: usize,
    /// Whether other ids precede them, so that a leading space may be lost.
    is_cut: bool,
}

impl Window {
    /// Returns how far into `text` these ids reach if they decode to `decoded`. Incomplete characters at the end do not count.
    fn reach(&self, text: &str, decoded: &str) -> usize {
        let rest = &text[self.start..];
        let spaces = |text: &str| text.len() - text.trim_start_matches(' ').len();
        let lost = usize::from(self.is_cut && spaces(rest) > spaces(decoded));
        match common(&rest[lost..], decoded) {
            // If there are only spaces, nothing shows whether one of them was lost.
            _ if lost > 0 && spaces(decoded) == decoded.len() => self.start,
            0 => self.start,
            bytes => self.start + lost + bytes,
        }
    }

    /// Restarts the window if later ids do not need all of these ids. `known` is the text so far; `has_grown` tells whether the
    /// newest id added to it.
    fn restart(&mut self, tokenizer: &Tokenizer, known: &str, decoded: &str, has_grown: bool) -> Result<()> {
        let ids = std::mem::take(&mut self.ids);
        let has_begun = has_grown && self.begin_with_the_last(&ids, tokenizer, known)?;
        if has_begun {
            return Ok(());
        }
        self.ids = ids;
        let is_whole = self.ids.len() >= LONG && !decoded.is_empty() && known.ends_with(decoded);
        if is_whole || self.ids.len() >= LONGEST {
            *self = Self { ids: Vec::new(), start: known.len(), is_cut: true };
        }
        Ok(())
    }

    /// Keeps the fewest of the last `ids` whose text alone equals the end of `known`. They fix the position of later ids.
    fn begin_with_the_last(&mut self, ids: &[u32], tokenizer: &Tokenizer, known: &str) -> Result<bool> {
        for count in 1..=ids.len().min(FEW) {
            let last = &ids[ids.len() - count..];
            let alone = tokenizer.decode(last, true)?;
            if !alone.is_empty() && known.ends_with(&alone) {
                *self = Self { ids: last.to_vec(), start: known.len() - alone.len(), is_cut: false };
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the length in bytes of the common beginning of both texts, in whole characters.
fn common(text: &str, other: &str) -> usize {
    let pairs = text.char_indices().zip(other.chars());
    let differs = pairs.clone().find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    differs.unwrap_or(text.len().min(other.len()))
}

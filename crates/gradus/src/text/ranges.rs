//! Which bytes of a text stand behind each of the ids that it was decoded from.

use std::ops::Range;

use super::Tokenizer;
use crate::error::Result;

/// Ids decoded together at most, where nothing shorter shows what the newest one adds.
const LONGEST: usize = 64;
/// Ids decoded together before decoding begins anew where there is a gap between characters.
const LONG: usize = 8;
/// Ids that must read alone what the text ends with, to begin with them: one most often, more where a character or a lost
/// space needs them.
const FEW: usize = 4;

/// The text that `ids` add to `before`.
///
/// Decoded alone, ids lose the space they begin with in tokenizers of Llama's kind (`there was` for ` there was`), and
/// both texts joined would be another one than the model wrote. Where the ids of `before` read otherwise once others
/// follow, the text is that of `ids` alone.
///
/// # Errors
/// When the tokenizer cannot decode them.
pub fn continuation(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Result<String> {
    let (mut text, begin) = joined(tokenizer, before, ids)?;
    Ok(text.split_off(begin))
}

/// The bytes of [`continuation`] behind each of `ids`.
///
/// The ranges follow each other without gaps from 0 to the end of the text, on boundaries of characters, so what they hold
/// joins to the text. A character that several ids spell (byte-level tokenizers split those of several bytes) belongs to
/// the one that completes it, and the others' range is empty; so is that of special ids, which have no text.
///
/// Time is linear in the ids: each is decoded with a few before it, and the text says where they stand.
///
/// # Errors
/// When the tokenizer cannot decode them.
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
            let said = tokenizer.decode(&window.ids, true)?;
            let known = window.reach(&text, &said).max(end);
            let has_grown = known > end;
            end = known;
            window.restart(tokenizer, &text[..end], &said, has_grown)?;
        }
        ends.push(end - begin);
    }
    // What no id could be shown to have written is the last one's.
    if end < text.len()
        && let Some(last) = ids.iter().rposition(|&id| !tokenizer.is_special(id))
    {
        ends[last..].fill(text.len() - begin);
    }
    let mut start = 0;
    Ok(ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect())
}

/// The text of `before` and `ids`, and where that of `ids` begins in it.
fn joined(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Result<(String, usize)> {
    let prompt = tokenizer.decode(before, true)?;
    let whole = tokenizer.decode(&[before, ids].concat(), true)?;
    if whole.starts_with(&prompt) { Ok((whole, prompt.len())) } else { Ok((tokenizer.decode(ids, true)?, 0)) }
}

/// The ids that are decoded to see what the newest adds.
struct Window {
    ids: Vec<u32>,
    /// Where their text begins in the whole text.
    start: usize,
    /// Whether others stand before them, so that a space at their beginning may be lost.
    is_cut: bool,
}

impl Window {
    /// How far into `text` these ids reach when they read `said`: incomplete characters at the end of it do not count.
    fn reach(&self, text: &str, said: &str) -> usize {
        let rest = &text[self.start..];
        let spaces = |text: &str| text.len() - text.trim_start_matches(' ').len();
        let lost = usize::from(self.is_cut && spaces(rest) > spaces(said));
        match common(&rest[lost..], said) {
            // Spaces alone do not say whether one of them was lost.
            _ if lost > 0 && spaces(said) == said.len() => self.start,
            0 => self.start,
            bytes => self.start + lost + bytes,
        }
    }

    /// Begins anew where the ids that follow need not be decoded with all of these. `known` is the text so far, to which
    /// the newest id has added something or not.
    fn restart(&mut self, tokenizer: &Tokenizer, known: &str, said: &str, has_grown: bool) -> Result<()> {
        let ids = std::mem::take(&mut self.ids);
        let has_begun = has_grown && self.begin_with_the_last(&ids, tokenizer, known)?;
        if has_begun {
            return Ok(());
        }
        self.ids = ids;
        let is_whole = self.ids.len() >= LONG && !said.is_empty() && known.ends_with(said);
        if is_whole || self.ids.len() >= LONGEST {
            *self = Self { ids: Vec::new(), start: known.len(), is_cut: true };
        }
        Ok(())
    }

    /// Leaves the last of `ids`, or as few as read alone what `known` ends with: they show where the ids after them stand.
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

/// Bytes at the beginning that both texts share, whole characters of them.
fn common(text: &str, other: &str) -> usize {
    let pairs = text.char_indices().zip(other.chars());
    let differs = pairs.clone().find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    differs.unwrap_or(text.len().min(other.len()))
}

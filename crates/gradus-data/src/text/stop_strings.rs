//! Stop strings: a completion ends when one of them appears in its text.

use super::Tokenizer;

/// Checks completions for stop strings, token by token.
///
/// Each call decodes only the last ids: as many as the longest stop string has bytes, and a few more. Every id adds at least one
/// byte, so a string that ends in the newest id is within them. The text of a completion is the one that
/// [`continuation`](super::continuation) returns: if ids are decoded alone, tokenizers like Llama's lose the leading space.
#[derive(Debug, Clone)]
pub struct StopStrings<'a> {
    tokenizer: &'a Tokenizer,
    stops: Vec<String>,
    window: usize,
}

/// Ids decoded in addition to the longest stop string: characters of four bytes may be split, and decoders strip the start.
const SLACK: usize = 8;

/// Ids before a completion that are decoded together with it.
const CONTEXT: usize = 4;

impl<'a> StopStrings<'a> {
    /// Creates a check for `stops`. Empty strings are ignored.
    pub fn new(tokenizer: &'a Tokenizer, stops: impl IntoIterator<Item = String>) -> Self {
        let stops: Vec<String> = stops.into_iter().filter(|s| !s.is_empty()).collect();
        let window = stops.iter().map(String::len).max().map_or(0, |longest| longest + SLACK);
        Self { tokenizer, stops, window }
    }

    /// Returns whether there are no stop strings.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Returns whether a stop string appeared with the newest id. `before` are the ids that the completion continues; empty if its text is
    /// that of its ids alone.
    pub fn stops(&mut self, before: &[u32], completion_ids: &[u32]) -> bool {
        if self.stops.is_empty() {
            return false;
        }
        let start = completion_ids.len().saturating_sub(self.window);
        let text = match start {
            0 => self.text_after(&self.last_of(before), completion_ids),
            // A space that is lost here is outside of every string that ends in the newest id.
            _ => self.tokenizer.decode(&completion_ids[start..], false).ok(),
        };
        // Ids outside of the vocabulary cannot be decoded, and cannot end a stop string either.
        text.is_some_and(|text| self.stops.iter().any(|stop| text.contains(stop.as_str())))
    }

    /// Returns the last ids of `before` that have text.
    pub fn last_of(&self, before: &[u32]) -> Vec<u32> {
        let mut last: Vec<u32> =
            before.iter().rev().copied().filter(|&id| !self.tokenizer.is_special(id)).take(CONTEXT).collect();
        last.reverse();
        last
    }

    /// Returns the text that `ids` add to `before`. If the ids of `before` decode differently once others follow, it is the text of `ids`
    /// alone.
    fn text_after(&self, before: &[u32], ids: &[u32]) -> Option<String> {
        let head = self.tokenizer.decode(before, false).ok()?;
        let whole = self.tokenizer.decode(&[before, ids].concat(), false).ok()?;
        match whole.strip_prefix(&head) {
            Some(text) => Some(text.to_owned()),
            None => self.tokenizer.decode(ids, false).ok(),
        }
    }
}

/// Cuts `text` at the first occurrence of any of `stops`.
pub fn cut_at_stop<'t>(text: &'t str, stops: &[String]) -> &'t str {
    let end = stops.iter().filter(|s| !s.is_empty()).filter_map(|stop| text.find(stop.as_str())).min();
    &text[..end.unwrap_or(text.len())]
}

/// Returns the part of an unfinished text that later ids cannot change: without incomplete characters and possible stop strings.
pub fn certain<'t>(text: &'t str, stop: &[String]) -> &'t str {
    let text = text.trim_end_matches('\u{FFFD}');
    let half = |stop: &String| {
        let ends = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
        ends.filter(|&at| text.ends_with(&stop[..at])).max().unwrap_or(0)
    };
    &text[..text.len() - stop.iter().map(half).max().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_the_earliest_stop() {
        let stops = ["\n\n".to_owned(), "Human".to_owned(), String::new()];
        assert_eq!(cut_at_stop("yes. Human: and\n\nthen", &stops), "yes. ");
        assert_eq!(cut_at_stop("yes", &stops), "yes");
    }

    #[test]
    fn what_may_become_a_stop_string_is_held_back() {
        let stop = ["\n\nHuman:".to_owned(), "END".to_owned()];
        assert_eq!(certain("yes.\n\nHum", &stop), "yes.");
        assert_eq!(certain("yes.\n", &stop), "yes.");
        assert_eq!(certain("yes. E", &stop), "yes. ");
        assert_eq!(certain("yes. \u{FFFD}", &stop), "yes. ");
        assert_eq!(certain("yes", &[]), "yes");
    }
}

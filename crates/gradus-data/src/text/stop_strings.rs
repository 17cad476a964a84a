//! Stop strings: a completion ends when one of them appears in its text.

use super::Tokenizer;

/// Checks completions for stop strings, token by token.
///
/// Each call decodes only the last ids: as many as the longest stop string has bytes, and a few more. Every id adds at least one
/// byte, so a string that ends in the newest id is within them.
#[derive(Debug, Clone)]
pub struct StopStrings<'a> {
    tokenizer: &'a Tokenizer,
    stops: Vec<String>,
    window: usize,
}

/// Ids decoded in addition to the longest stop string: characters of four bytes may be split, and decoders strip the start.
const SLACK: usize = 8;

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

    /// Returns whether a stop string appeared with the newest id. `row` identifies the completion.
    pub fn stops(&mut self, _row: usize, completion_ids: &[u32]) -> bool {
        if self.stops.is_empty() {
            return false;
        }
        let tail = &completion_ids[completion_ids.len().saturating_sub(self.window)..];
        // Ids outside of the vocabulary cannot be decoded, and cannot end a stop string either.
        self.tokenizer.decode(tail, false).is_ok_and(|text| self.stops.iter().any(|stop| text.contains(stop.as_str())))
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

//! Searches for text in stored completions and conversations.

/// A text to search for. Upper and lower case are equal in all alphabets.
#[derive(Debug, Clone)]
pub struct SoughtText(String);

impl SoughtText {
    /// Creates the search for `text`.
    pub fn new(text: &str) -> Self {
        Self(folded(text))
    }

    /// Returns whether `text` contains the sought text. Every text contains the empty one.
    pub fn is_in(&self, text: &str) -> bool {
        folded(text).contains(&self.0)
    }
}

/// Makes upper and lower case equal. Greek has two small forms of one letter.
fn folded(text: &str) -> String {
    text.to_lowercase().replace('ς', "σ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_is_ignored_in_all_alphabets() {
        for (sought, text) in [("ärger", "ÄRGER"), ("ΟΔΟΣ", "οδος"), ("οδος", "ΟΔΟΣ"), ("мир", "МИР"), ("", "")]
        {
            assert!(SoughtText::new(sought).is_in(text), "{sought} in {text}");
        }
        assert!(!SoughtText::new("ä%").is_in("ärger"));
    }
}

//! Texts with placeholders for columns: `question: {prompt} answer: {completion}`.

/// A text with placeholders for columns. `{name}` is a placeholder; `{{` and `}}` are literal braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<PatternPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    Text(String),
    Column(String),
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// If a brace is unmatched, or a placeholder has no name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let (brace, after) = (&rest[at..=at], &rest[at + 1..]);
            if let Some(after) = after.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            let end = after.find(['{', '}']).filter(|&end| brace == "{" && after[end..].starts_with('}'));
            let Some(end) = end else {
                return Err(format!("`{text}` has an unmatched `{brace}`; write a literal brace as `{brace}{brace}`"));
            };
            if after[..end].trim().is_empty() {
                return Err(format!("`{text}` has a placeholder without the name of a column"));
            }
            parts.extend((!plain.is_empty()).then(|| PatternPart::Text(std::mem::take(&mut plain))));
            parts.push(PatternPart::Column(after[..end].trim().to_owned()));
            rest = &after[end + 1..];
        }
        plain.push_str(rest);
        parts.extend((!plain.is_empty()).then_some(PatternPart::Text(plain)));
        Ok(Self { parts })
    }

    /// Returns the text with each placeholder replaced by the value of its column.
    ///
    /// # Errors
    /// The first error of `value`.
    pub fn fill<E>(&self, mut value: impl FnMut(&str) -> Result<String, E>) -> Result<String, E> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                PatternPart::Text(plain) => text.push_str(plain),
                PatternPart::Column(name) => text.push_str(&value(name)?),
            }
        }
        Ok(text)
    }

    /// Returns the names of its columns in order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            PatternPart::Column(name) => Some(name.as_str()),
            PatternPart::Text(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fill_their_places() {
        let pattern = Pattern::parse("Q: {prompt}\n{{A}}: { completion }{prompt}").expect("a pattern");
        let filled = pattern.fill(|name| Ok::<_, String>(format!("<{name}>")));
        assert_eq!(filled, Ok("Q: <prompt>\n{A}: <completion><prompt>".into()));
        assert_eq!(pattern.columns().collect::<Vec<_>>(), ["prompt", "completion", "prompt"]);
        assert_eq!(pattern.fill(|name| Err::<String, _>(name.to_owned())), Err("prompt".into()));
        assert_eq!(Pattern::parse("").expect("nothing").fill(|_| Err(())), Ok(String::new()));
    }

    #[test]
    fn mistakes_are_named() {
        let message_of = |text: &str| Pattern::parse(text).expect_err("refused");
        for (text, brace) in [("a {b", "{"), ("a } b", "}"), ("{a{b}", "{"), ("{", "{")] {
            let expected = format!("`{text}` has an unmatched `{brace}`; write a literal brace as `{brace}{brace}`");
            assert_eq!(message_of(text), expected);
        }
        assert_eq!(message_of("a {} b"), "`a {} b` has a placeholder without the name of a column");
    }
}

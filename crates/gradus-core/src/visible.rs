//! Makes untrusted text safe for terminals and pages.

/// Escapes characters that a terminal or a page would interpret instead of showing, as in `\u{1b}`: control characters other than
/// line ends and tabs, characters that change the text direction, and characters that Unicode reserves for internal use.
pub fn visible(text: &str) -> String {
    let obeyed = |c: char| {
        let turns =
            matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let reserved = matches!(c, '\u{fdd0}'..='\u{fdef}');
        (c.is_control() && c != '\n' && c != '\t') || turns || reserved
    };
    if !text.contains(obeyed) {
        return text.to_owned();
    }
    text.chars().map(|c| if obeyed(c) { format!("\\u{{{:x}}}", u32::from(c)) } else { c.to_string() }).collect()
}

/// Like [`visible`], and escapes line ends and tabs, too. For names of files and other texts that belong on one line.
pub fn visible_line(text: &str) -> String {
    visible(text).replace('\n', "\\u{a}").replace('\t', "\\u{9}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_obeyed_is_shown() {
        let outside = "a\u{1b}]0;owned\u{7}\u{1b}[2J\rb\u{9b}31m\u{202e}c\u{fdd2}[5A\td\n";
        let shown = "a\\u{1b}]0;owned\\u{7}\\u{1b}[2J\\u{d}b\\u{9b}31m\\u{202e}c\\u{fdd2}[5A\td\n";
        assert_eq!(visible(outside), shown);
        assert_eq!(visible("Grüße, 世界 👋"), "Grüße, 世界 👋");
        assert_eq!(visible_line("a\u{1b}[1m\tb\nc"), "a\\u{1b}[1m\\u{9}b\\u{a}c");
    }
}

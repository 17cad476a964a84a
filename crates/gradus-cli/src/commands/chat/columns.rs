//! Two texts side by side.

/// Columns narrower than this are hard to read: the texts then stand one below the other.
const NARROWEST: usize = 38;
/// Between the columns.
const GAP: &str = " │ ";

/// Both texts in columns below their titles, if `width` characters are enough for that.
pub fn side_by_side(titles: [&str; 2], texts: [&str; 2], width: usize) -> Option<String> {
    let column = width.saturating_sub(GAP.chars().count()) / 2;
    if column < NARROWEST {
        return None;
    }
    let lines = |i: usize| [vec![shortened(titles[i], column), "─".repeat(column)], wrap(texts[i], column)].concat();
    let (left, right) = (lines(0), lines(1));
    let line = |lines: &[String], i: usize| lines.get(i).cloned().unwrap_or_default();
    let row = |i: usize| {
        let (left, right) = (line(&left, i), line(&right, i));
        let pad = " ".repeat(column - left.chars().count());
        format!("{left}{pad}{GAP}{right}").trim_end().to_owned() + "\n"
    };
    Some((0..left.len().max(right.len())).map(row).collect())
}

/// The end of a title is what tells directories apart.
fn shortened(title: &str, width: usize) -> String {
    let count = title.chars().count();
    if count <= width {
        title.to_owned()
    } else {
        format!("…{}", title.chars().skip(count + 1 - width).collect::<String>())
    }
}

/// Lines of at most `width` characters, broken between words where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.trim().lines() {
        let mut line = String::new();
        for word in paragraph.replace('\t', "    ").split_inclusive(' ') {
            let mut word = word;
            if line.chars().count() + word.trim_end().chars().count() > width && !line.is_empty() {
                lines.push(std::mem::take(&mut line).trim_end().to_owned());
            }
            while word.trim_end().chars().count() > width {
                let at = word.char_indices().nth(width).map_or(word.len(), |(at, _)| at);
                let (head, rest) = word.split_at(at);
                lines.push(head.to_owned());
                word = rest;
            }
            line += word;
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("a\n\nb", 9), ["a", "", "b"]);
    }

    #[test]
    fn columns_where_there_is_room() {
        let shown = side_by_side(["first", "second"], ["yes", "no\nnever"], 81).unwrap();
        let line = |left: &str, right: &str| format!("{left:<39} │ {right}\n");
        let rule = "─".repeat(39);
        assert_eq!(shown, [line("first", "second"), line(&rule, &rule), line("yes", "no"), line("", "never")].concat());
        assert_eq!(side_by_side(["a", "b"], ["a", "b"], 60), None);
        assert_eq!(shortened("runs/one/model", 9), "…ne/model");
    }
}

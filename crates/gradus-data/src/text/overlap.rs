//! Overlap of two texts, independent of the order of their characters.

use std::collections::HashMap;

/// Returns the best match of `target` in `context`, from 0 to 1: FineGrainedRLHF's approximate match.
///
/// The result is 1 if `context` contains `target`. Otherwise it is the largest `q(target, window)` over all windows of `n = L + ⌊L
/// / 20⌋` words of `context`, joined by single spaces, where L is the number of words in `target`. `q(a, b)` is twice the number of
/// characters that both share, divided by the number of all characters (`quick_ratio` of Python's `difflib`). A `context` of at
/// most `n` words is padded with words `#` to `n + 1` words. Time is linear in both texts.
pub fn match_score(context: &str, target: &str) -> f64 {
    let length = target.split_whitespace().count();
    let n = length + length / 20;
    let missing = (n + 1).saturating_sub(context.split_whitespace().count());
    let filled = format!("{context}{}", " #".repeat(missing));
    if filled.contains(target) {
        return 1.0;
    }
    // A target of only white space has no words.
    if n == 0 {
        return 0.0;
    }
    let words: Vec<&str> = filled.split_whitespace().collect();
    let mut window = Window::of(target);
    (1..n).for_each(|_| window.add(" "));
    words[..n - 1].iter().for_each(|word| window.add(word));
    let mut best = 0.0f64;
    for (i, newest) in words[n - 1..].iter().enumerate() {
        window.add(newest);
        best = best.max(window.ratio());
        window.remove(words[i]);
    }
    best
}

/// Number of characters that a target and a window share.
struct Window {
    /// Number of occurrences of each character in the target and in the window.
    counts: HashMap<char, [usize; 2]>,
    target: usize,
    length: usize,
    common: usize,
}

impl Window {
    fn of(target: &str) -> Self {
        let mut counts: HashMap<char, [usize; 2]> = HashMap::new();
        target.chars().for_each(|c| counts.entry(c).or_default()[0] += 1);
        Self { counts, target: target.chars().count(), length: 0, common: 0 }
    }

    fn add(&mut self, text: &str) {
        for c in text.chars() {
            let [needed, had] = self.counts.entry(c).or_default();
            self.common += usize::from(had < needed);
            *had += 1;
            self.length += 1;
        }
    }

    fn remove(&mut self, text: &str) {
        for c in text.chars() {
            let [needed, had] = self.counts.entry(c).or_default();
            *had -= 1;
            self.common -= usize::from(had < needed);
            self.length -= 1;
        }
    }

    fn ratio(&self) -> f64 {
        2.0 * self.common as f64 / (self.target + self.length) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_values() {
        // The windows have as many words as the target.
        for (context, target, expected) in [
            ("bcde", "abcd", 0.75),
            ("cat the", "the cat", 1.0),
            ("abb", "aab", 2.0 / 3.0),
            ("tea the cat is", "the cat", 1.0),
            ("aaa bbb", "ccc", 0.0),
        ] {
            assert_eq!(match_score(context, target), expected, "{target} in {context}");
        }
    }

    #[test]
    fn a_part_of_the_text_matches_whatever_its_words() {
        assert_eq!(match_score("the teapot", "he tea"), 1.0);
        assert_eq!(match_score("", ""), 1.0);
        assert_eq!(match_score("anything", ""), 1.0);
    }

    #[test]
    fn a_short_context_is_filled() {
        // For two words, `cat` becomes `cat # #`. Its windows are `cat #` and `# #`; `cat #` shares `cat ` with `cat s`: 8 of 10.
        assert_eq!(match_score("cat", "cat s"), 0.8);
        assert_eq!(match_score("cat", "cat #"), 1.0);
        // q("cat #", "cat") = 0.75.
        let mut window = Window::of("cat");
        window.add("cat #");
        assert_eq!(window.ratio(), 0.75);
        // 20 words need windows of 21 words: 39 of 41 characters are shared, so twice 39 of 80.
        let (target, context) = (["a"; 20].join(" "), ["a"; 21].join("  "));
        assert_eq!(match_score(&context, &target), 78.0 / 80.0);
    }

    #[test]
    fn windows_slide_as_if_each_were_counted_anew() {
        let (context, target) = ("a bb cab ba aab c abc bbb a", "ab cab b");
        let words: Vec<&str> = context.split_whitespace().collect();
        let anew = words.windows(3).map(|words| {
            let mut window = Window::of(target);
            window.add(&words.join(" "));
            window.ratio()
        });
        assert_eq!(match_score(context, target), anew.fold(0.0, f64::max));
    }
}

//! Porter's stemmer as in NLTK 3.10, which `rouge_score` and METEOR use. It differs from Snowball's.
//!
//! Porter 1980, <https://tartarus.org/martin/PorterStemmer/def.txt>. Checked against `nltk` 3.10 on all words of several corpora.

/// Mode of NLTK's stemmer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Porter {
    /// `NLTK_EXTENSIONS`, NLTK's default: irregular forms, and milder rules for short words.
    Extended,
    /// `ORIGINAL_ALGORITHM`: as published.
    Original,
}

/// Irregular forms of the extended mode.
const IRREGULAR: &[(&str, &str)] = &[
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

impl Porter {
    /// Returns the stem of a word, in lower case.
    pub fn stem(self, word: &str) -> String {
        let lower = word.to_lowercase();
        if self == Self::Extended {
            if let Some((_, stem)) = IRREGULAR.iter().find(|(form, _)| *form == lower) {
                return (*stem).to_owned();
            }
            if word.chars().nth(2).is_none() {
                return lower;
            }
        }
        let mut word = Word { mode: self, letters: lower.chars().collect() };
        word.plurals();
        word.past_and_present();
        word.final_y();
        word.double_suffixes();
        word.rules(&THIRD, |stem| stem.measure() > 0);
        word.fourth();
        word.final_e();
        word.final_l();
        word.letters.into_iter().collect()
    }
}

/// Rules of a step: suffixes and their replacements. The first suffix that the word ends in decides.
type Rules = [(&'static str, &'static str)];

const THIRD: [(&str, &str); 7] =
    [("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")];

struct Word {
    mode: Porter,
    letters: Vec<char>,
}

/// Letters before a suffix.
#[derive(Clone, Copy)]
struct Stem<'a> {
    mode: Porter,
    letters: &'a [char],
}

impl Stem<'_> {
    fn is_consonant(&self, i: usize) -> bool {
        match self.letters[i] {
            'a' | 'e' | 'i' | 'o' | 'u' => false,
            // A run of `y` alternates, so the answer depends on where the run begins.
            'y' => {
                let run = self.letters[..i].iter().rev().take_while(|&&c| c == 'y').count();
                let before = i - run;
                let first = before == 0 || !self.is_consonant(before - 1);
                first == run.is_multiple_of(2)
            }
            _ => true,
        }
    }

    /// Counts how often a consonant follows a vowel: the `m` of `[C](VC)^m[V]`.
    fn measure(&self) -> usize {
        let mut count = 0;
        let mut was_vowel = false;
        for i in 0..self.letters.len() {
            let is_consonant = self.is_consonant(i);
            count += usize::from(was_vowel && is_consonant);
            was_vowel = !is_consonant;
        }
        count
    }

    fn has_vowel(&self) -> bool {
        (0..self.letters.len()).any(|i| !self.is_consonant(i))
    }

    fn ends_double_consonant(&self) -> bool {
        let n = self.letters.len();
        n >= 2 && self.letters[n - 1] == self.letters[n - 2] && self.is_consonant(n - 1)
    }

    /// Returns whether the stem ends in consonant, vowel, consonant other than w, x and y. The extended mode also accepts a two-letter stem
    /// of a vowel and a consonant.
    fn ends_cvc(&self) -> bool {
        let n = self.letters.len();
        let is_long = n >= 3
            && self.is_consonant(n - 3)
            && !self.is_consonant(n - 2)
            && self.is_consonant(n - 1)
            && !matches!(self.letters[n - 1], 'w' | 'x' | 'y');
        is_long || (self.mode == Porter::Extended && n == 2 && !self.is_consonant(0) && self.is_consonant(1))
    }

    fn last(&self) -> Option<char> {
        self.letters.last().copied()
    }
}

impl Word {
    fn ends(&self, suffix: &str) -> bool {
        let mut letters = self.letters.iter().rev();
        suffix.chars().rev().all(|c| letters.next() == Some(&c))
    }

    /// Returns the letters before an ASCII suffix that the word ends in.
    fn before(&self, suffix: &str) -> Stem<'_> {
        Stem { mode: self.mode, letters: &self.letters[..self.letters.len() - suffix.len()] }
    }

    fn replace(&mut self, suffix: &str, by: &str) {
        self.letters.truncate(self.letters.len() - suffix.len());
        self.letters.extend(by.chars());
    }

    /// Applies the first rule whose suffix matches, if the stem allows it. Later rules are not tried.
    fn rules(&mut self, rules: &Rules, allows: impl Fn(Stem<'_>) -> bool) -> bool {
        match rules.iter().find(|(suffix, _)| self.ends(suffix)) {
            Some((suffix, by)) => {
                if allows(self.before(suffix)) {
                    self.replace(suffix, by);
                }
                true
            }
            None => false,
        }
    }

    /// Step 1a.
    fn plurals(&mut self) {
        if self.mode == Porter::Extended && self.ends("ies") && self.letters.len() == 4 {
            return self.replace("ies", "ie");
        }
        self.rules(&[("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")], |_| true);
    }

    /// Step 1b.
    fn past_and_present(&mut self) {
        if self.mode == Porter::Extended && self.ends("ied") {
            return self.replace("ied", if self.letters.len() == 4 { "ie" } else { "i" });
        }
        if self.rules(&[("eed", "ee")], |stem| stem.measure() > 0) {
            return;
        }
        let Some(suffix) =
            ["ed", "ing"].into_iter().find(|suffix| self.ends(suffix) && self.before(suffix).has_vowel())
        else {
            return;
        };
        self.replace(suffix, "");
        if self.rules(&[("at", "ate"), ("bl", "ble"), ("iz", "ize")], |_| true) {
            return;
        }
        let stem = self.before("");
        if stem.ends_double_consonant() {
            if !matches!(stem.last(), Some('l' | 's' | 'z')) {
                self.letters.pop();
            }
        } else if stem.measure() == 1 && stem.ends_cvc() {
            self.letters.push('e');
        }
    }

    /// Step 1c.
    fn final_y(&mut self) {
        let mode = self.mode;
        self.rules(&[("y", "i")], |stem| match mode {
            Porter::Extended => stem.letters.len() > 1 && stem.is_consonant(stem.letters.len() - 1),
            Porter::Original => stem.has_vowel(),
        });
    }

    /// Step 2.
    fn double_suffixes(&mut self) {
        const BEFORE_BLI: [(&str, &str); 5] =
            [("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize")];
        const AFTER_BLI: [(&str, &str); 14] = [
            ("alli", "al"),
            ("entli", "ent"),
            ("eli", "e"),
            ("ousli", "ous"),
            ("ization", "ize"),
            ("ation", "ate"),
            ("ator", "ate"),
            ("alism", "al"),
            ("iveness", "ive"),
            ("fulness", "ful"),
            ("ousness", "ous"),
            ("aliti", "al"),
            ("iviti", "ive"),
            ("biliti", "ble"),
        ];
        let has_measure = |stem: Stem<'_>| stem.measure() > 0;
        let is_extended = self.mode == Porter::Extended;
        while is_extended && self.ends("alli") && has_measure(self.before("alli")) {
            self.replace("alli", "al");
        }
        let bli = if is_extended { ("bli", "ble") } else { ("abli", "able") };
        let done = self.rules(&BEFORE_BLI, has_measure)
            || self.rules(&[bli], has_measure)
            || self.rules(&AFTER_BLI, has_measure);
        if done || !is_extended || self.rules(&[("fulli", "ful")], has_measure) {
            return;
        }
        // The `l` belongs to the stem, so that `geology` is stemmed as `archaeology` is.
        if self.ends("logi") && has_measure(self.before("ogi")) {
            self.replace("logi", "log");
        }
    }

    /// Step 4.
    fn fourth(&mut self) {
        const BEFORE_ION: [(&str, &str); 11] = [
            ("al", ""),
            ("ance", ""),
            ("ence", ""),
            ("er", ""),
            ("ic", ""),
            ("able", ""),
            ("ible", ""),
            ("ant", ""),
            ("ement", ""),
            ("ment", ""),
            ("ent", ""),
        ];
        const AFTER_ION: [(&str, &str); 7] =
            [("ou", ""), ("ism", ""), ("ate", ""), ("iti", ""), ("ous", ""), ("ive", ""), ("ize", "")];
        let is_long = |stem: Stem<'_>| stem.measure() > 1;
        let after_s_or_t = |stem: Stem<'_>| is_long(stem) && matches!(stem.last(), Some('s' | 't'));
        let _ = self.rules(&BEFORE_ION, is_long)
            || self.rules(&[("ion", "")], after_s_or_t)
            || self.rules(&AFTER_ION, is_long);
    }

    /// Step 5a.
    fn final_e(&mut self) {
        self.rules(&[("e", "")], |stem| {
            let measure = stem.measure();
            measure > 1 || (measure == 1 && !stem.ends_cvc())
        });
    }

    /// Step 5b.
    fn final_l(&mut self) {
        if self.ends("ll") && self.before("l").measure() > 1 {
            self.letters.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_nltk_differ_where_it_says_so() {
        // nltk 3.10.4: PorterStemmer(mode).stem(word).
        for (word, extended, original) in [
            ("flies", "fli", "fli"),
            ("dies", "die", "di"),
            ("spied", "spi", "spi"),
            ("died", "die", "di"),
            ("skies", "sky", "ski"),
            ("happy", "happi", "happi"),
            ("enjoy", "enjoy", "enjoi"),
            ("is", "is", "i"),
            ("generously", "gener", "gener"),
            ("relational", "relat", "relat"),
            ("Running", "run", "run"),
            ("geology", "geolog", "geologi"),
            ("hopefully", "hope", "hopefulli"),
            ("sayyyying", "sayyyi", "sayyyi"),
        ] {
            assert_eq!(Porter::Extended.stem(word), extended, "{word}");
            assert_eq!(Porter::Original.stem(word), original, "{word}");
        }
    }
}

//! Annotations of a task, and their rules. The page shows the results of these rules and decides nothing itself.
//!
//! Offsets count characters (Unicode code points), as in FineGrainedRLHF's files. Scripts count UTF-16 units and convert.

use std::collections::BTreeMap;

use gradus::data::feedback::contradict;
use serde::{Deserialize, Serialize};

use super::labels::{Asks, LabelSet, Type};
use super::rank::{Rank, pair_name, pairs};
use super::shown::Shown;
use super::task::{Expected, Task};
use super::words::whole_words;

/// Maximum size in bytes of a text that a person writes, and maximum number of spans of an answer.
const TEXT_BYTES: usize = 1 << 16;
const SPANS: usize = 500;

/// An annotation of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Answer {
    /// Nothing needs to be marked and nothing is missing.
    pub no_error: bool,
    /// Marked spans.
    pub spans: Vec<Marked>,
    /// Missing information.
    pub missing: Vec<Missing>,
    /// Corrected first answer. `None` if it was not edited.
    pub correction: Option<String>,
    /// The correction is left blank because no passage helps.
    pub no_passage_helps: bool,
    /// Preferences of the decided pairs, by `1v2` and so on.
    pub ranks: BTreeMap<String, Rank>,
    /// Strengths of the preferences, by the pair's name, if the label set has strengths.
    pub strengths: BTreeMap<String, String>,
    /// Chosen values on each scale.
    pub questions: BTreeMap<String, u8>,
    /// Free-form feedback.
    pub feedback: String,
}

/// A marked range of the first answer, with its type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Marked {
    /// Type of the span.
    pub kind: String,
    /// First character.
    pub start: usize,
    /// End of the range, exclusive.
    pub end: usize,
    /// Earlier text that the span repeats.
    pub repeats: String,
    /// Passage that the span contradicts, from 1.
    pub passage: usize,
    /// Sentences of the passage; 0 is the title.
    pub sentences: Vec<usize>,
}

/// Information that the first answer lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Missing {
    /// Type of the information.
    pub kind: String,
    /// Passage that contains it, from 1.
    pub passage: usize,
    /// Sentences of the passage; 0 is the title.
    pub sentences: Vec<usize>,
}

/// Returns a text with the line ends that the fields of pages have, so that texts can be compared with what people type.
fn with_line_feeds(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

impl Expected {
    /// Returns how many parts of an annotation are right, and the number of parts.
    pub fn right(&self, answer: &Answer) -> (usize, usize) {
        let ranks = self.ranks.iter().map(|(pair, rank)| answer.ranks.get(pair) == Some(rank));
        let questions = self.questions.iter().map(|(name, value)| answer.questions.get(name) == Some(value));
        let no_error = self.no_error.iter().map(|expected| answer.no_error == *expected);
        let all: Vec<bool> = ranks.chain(questions).chain(no_error).collect();
        (all.iter().filter(|is_right| **is_right).count(), all.len())
    }

    /// Converts the expected parts to an annotation, so that they can be checked like one.
    pub fn as_answer(&self) -> Answer {
        let no_error = self.no_error == Some(true);
        Answer { ranks: self.ranks.clone(), questions: self.questions.clone(), no_error, ..Answer::default() }
    }
}

impl Answer {
    /// Returns the problems and open parts, in the order of the page. Empty if the annotation can be submitted. The letters of answers come
    /// from `shown`.
    pub fn problems(&self, set: &LabelSet, task: &Task, shown: &Shown) -> Vec<String> {
        let mut problems = self.broken(set, task);
        let prediction = task.answers.first().map_or("", String::as_str);
        if !(set.spans.is_empty() && set.missing.is_empty()) {
            let marked = self.spans.len() + self.missing.len();
            if self.no_error && marked > 0 {
                problems.push("“No error” is chosen, but something is marked or missing.".into());
            }
            if !self.no_error && marked == 0 {
                problems.push("Mark an error, add what is missing, or choose “No error”.".into());
            }
        }
        if set.correction {
            let correction = self.correction.as_deref().unwrap_or(prediction);
            let is_changed = with_line_feeds(correction.trim()) != with_line_feeds(prediction.trim());
            if self.no_error && is_changed {
                problems.push("“No error” is chosen, but the correction differs from the answer: reset it.".into());
            }
            if !self.no_error && !is_changed {
                problems.push("Correct the answer: the correction is still the same as the answer.".into());
            }
            if correction.trim().is_empty() && !self.no_passage_helps {
                let choice = if task.passages.is_empty() { "No correction is possible" } else { "No passage helps" };
                problems.push(format!("The correction is empty: write one, or choose “{choice}”."));
            }
        }
        if set.comparison {
            let list = |pairs: Vec<(usize, usize)>| {
                let mut names: Vec<String> = pairs.into_iter().map(|pair| shown.pair(pair)).collect();
                names.sort();
                names.join(", ")
            };
            let all = || pairs(task.answers.len()).into_iter();
            let left: Vec<(usize, usize)> = all().filter(|pair| !self.ranks.contains_key(&pair_name(*pair))).collect();
            if !left.is_empty() {
                problems.push(format!("Compare {}.", list(left)));
            }
            let weak = |pair: &(usize, usize)| {
                let name = pair_name(*pair);
                let prefers = self.ranks.get(&name).is_some_and(|rank| rank.prefers());
                !set.strengths.is_empty() && prefers && !self.strengths.contains_key(&name)
            };
            let weak: Vec<(usize, usize)> = all().filter(weak).collect();
            if !weak.is_empty() {
                problems.push(format!("Choose how much better the preferred answer is: {}.", list(weak)));
            }
            for (a, b, c) in self.conflicting(task.answers.len()) {
                problems.push(format!("These choices contradict each other: {}.", list(vec![(a, b), (b, c), (a, c)])));
            }
        }
        for question in &set.questions {
            if !self.questions.contains_key(&question.name) {
                problems.push(format!("Choose a number for “{}”", question.question));
            }
        }
        problems
    }

    /// Returns warnings about allowed but unusual annotations.
    pub fn warnings(&self, set: &LabelSet, task: &Task) -> Vec<String> {
        let all = pairs(task.answers.len()).len();
        let is_tied =
            set.comparison && self.ranks.len() == all && all > 0 && self.ranks.values().all(|rank| *rank == Rank::Tie);
        is_tied.then(|| "All pairs are ties. Is there really no difference?".to_owned()).into_iter().collect()
    }

    /// Returns the triples of answers, from 0, whose ranks contradict each other.
    pub fn conflicting(&self, answers: usize) -> Vec<(usize, usize, usize)> {
        let sign = |pair| self.ranks.get(&pair_name(pair)).map(|rank| rank.sign());
        let mut found = Vec::new();
        for (a, b) in pairs(answers) {
            for c in b + 1..answers {
                if let (Some(ab), Some(bc), Some(ac)) = (sign((a, b)), sign((b, c)), sign((a, c)))
                    && contradict(ab, bc, ac)
                {
                    found.push((a, b, c));
                }
            }
        }
        found
    }

    /// Returns violations that no page can produce. Such an annotation is not stored.
    pub fn broken(&self, set: &LabelSet, task: &Task) -> Vec<String> {
        let mut problems = Vec::new();
        let prediction = task.answers.first().map_or("", String::as_str);
        let chars: Vec<char> = prediction.chars().collect();
        let mut taken: Vec<(usize, usize)> = Vec::new();
        if self.spans.len() + self.missing.len() > SPANS {
            return vec![format!("At most {SPANS} marks can be saved.")];
        }
        for span in &self.spans {
            let Some(kind) = set.spans.iter().find(|kind| kind.name == span.kind) else {
                problems.push(format!("There is no type {}.", span.kind));
                continue;
            };
            if whole_words(prediction, span.start, span.end) != Some((span.start, span.end)) {
                problems
                    .push(format!("{}: characters {} to {} are not whole words.", kind.label, span.start, span.end));
                continue;
            }
            if taken.iter().any(|(start, end)| span.start < *end && *start < span.end) {
                problems.push(format!("{}: the span overlaps another.", kind.label));
            }
            taken.push((span.start, span.end));
            match kind.asks {
                Asks::Nothing => {}
                Asks::EarlierText => {
                    let earlier: String = chars[..span.start].iter().collect();
                    let repeats = with_line_feeds(span.repeats.trim());
                    if repeats.is_empty() || !with_line_feeds(&earlier).contains(&repeats) {
                        problems.push(format!("{}: the text that it repeats must come before it.", kind.label));
                    }
                }
                Asks::Sentences => problems.extend(place(kind, task, span.passage, &span.sentences)),
            }
        }
        for missing in &self.missing {
            match set.missing.iter().find(|kind| kind.name == missing.kind) {
                Some(kind) => problems.extend(place(kind, task, missing.passage, &missing.sentences)),
                None => problems.push(format!("There is no type {}.", missing.kind)),
            }
        }
        let names: Vec<String> = pairs(task.answers.len()).into_iter().map(pair_name).collect();
        if self.ranks.keys().chain(self.strengths.keys()).any(|name| !names.contains(name)) {
            problems.push("A pair does not belong to this task.".into());
        }
        for strength in self.strengths.values() {
            if !set.strengths.iter().any(|known| known.name == *strength) {
                problems.push(format!("There is no strength {strength}."));
            }
        }
        for (name, value) in &self.questions {
            let question = set.questions.iter().find(|question| question.name == *name);
            if question.is_none_or(|question| !(question.from..=question.to).contains(value)) {
                problems.push(format!("{value} is not an answer to {name}."));
            }
        }
        if self.correction.as_ref().map_or(0, String::len).max(self.feedback.len()) > TEXT_BYTES {
            problems.push(format!("A text has more than {TEXT_BYTES} bytes."));
        }
        problems
    }
}

/// Returns the problem with a location in the passages, if any.
fn place(kind: &Type, task: &Task, passage: usize, sentences: &[usize]) -> Option<String> {
    let Some(found) = passage.checked_sub(1).and_then(|at| task.passages.get(at)) else {
        return Some(format!(
            "{}: passage {passage} does not exist; the task has {}.",
            kind.label,
            task.passages.len()
        ));
    };
    let last = found.sentences.len();
    match sentences {
        [] => Some(format!("{}: choose at least one sentence of passage {passage}.", kind.label)),
        _ => {
            let wrong = sentences.iter().find(|sentence| **sentence > last)?;
            Some(format!("{}: passage {passage} has sentences 0 to {last}, but no {wrong}.", kind.label))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::Passage;
    use super::*;

    fn task() -> Task {
        let sentences = vec!["One.".into(), "Two.".into()];
        Task {
            question: "Q?".into(),
            passages: vec![Passage { title: "T".into(), sentences }],
            reference: "R".into(),
            answers: ["the tea is warm the tea", "b", "c", "d"].map(str::to_owned).to_vec(),
            models: Vec::new(),
            expected: None,
            attention: false,
            original: None,
        }
    }

    fn plain(task: &Task) -> Shown {
        Shown::as_given(task.answers.len())
    }

    fn fine() -> LabelSet {
        LabelSet::open("fine-grained").expect("a label set")
    }

    fn span(kind: &str, start: usize, end: usize) -> Marked {
        Marked { kind: kind.into(), start, end, ..Marked::default() }
    }

    #[test]
    fn eight_of_the_27_triples_conflict() {
        let mut found = Vec::new();
        for ab in -1..=1 {
            for bc in -1..=1 {
                found.extend((-1..=1).filter(|ac| contradict(ab, bc, *ac)).map(|ac| (ab, bc, ac)));
            }
        }
        let expected =
            [(-1, -1, 0), (-1, -1, 1), (-1, 0, 1), (0, -1, 1), (0, 1, -1), (1, 0, -1), (1, 1, -1), (1, 1, 0)];
        assert_eq!(found, expected);
        // A tie that is not transitive is allowed.
        assert!(!contradict(1, 0, 0) && !contradict(0, 0, 1));
    }

    #[test]
    fn how_much_better_is_said_where_it_is_asked() {
        let set = LabelSet::open("comparison-strength").expect("a label set");
        let task = Task { answers: vec!["a".into(), "b".into()], ..task() };
        let ranked = |rank| Answer { ranks: [("1v2".to_owned(), rank)].into(), ..Answer::default() };
        let problems = |answer: &Answer| answer.problems(&set, &task, &plain(&task));
        assert_eq!(problems(&ranked(Rank::First)), ["Choose how much better the preferred answer is: A and B."]);
        assert!(problems(&ranked(Rank::Tie)).is_empty() && problems(&ranked(Rank::Bad)).is_empty());
        let with = |strength: &str| Answer {
            strengths: [("1v2".to_owned(), strength.to_owned())].into(),
            ..ranked(Rank::Second)
        };
        assert!(problems(&with("much")).is_empty());
        assert_eq!(problems(&with("vastly")), ["There is no strength vastly."]);
        let other = Answer { strengths: [("1v3".to_owned(), "much".to_owned())].into(), ..ranked(Rank::Tie) };
        assert_eq!(other.broken(&set, &task), ["A pair does not belong to this task."]);
    }

    #[test]
    fn no_error_means_nothing_is_marked_and_nothing_changed() {
        let (set, task) = (fine(), task());
        let problems = |answer: &Answer| answer.problems(&set, &task, &plain(&task));
        assert_eq!(problems(&Answer::default()).len(), 2, "something must be marked, and the correction another text");
        let none = Answer { no_error: true, ..Answer::default() };
        assert!(problems(&none).is_empty());
        let changed = Answer { correction: Some("x".into()), ..none.clone() };
        assert!(problems(&changed)[0].contains("“No error” is chosen, but the correction"));
        let marked = Answer { spans: vec![span("Irrelevant", 0, 3)], ..none };
        assert!(problems(&marked)[0].contains("something is marked"));
        let whole = Answer { no_error: false, correction: Some("tea".into()), ..marked };
        assert!(problems(&whole).is_empty());
        let blank = Answer { correction: Some(" ".into()), ..whole };
        assert!(problems(&blank)[0].contains("empty"));
        let bare = Task { passages: Vec::new(), ..task.clone() };
        assert!(blank.problems(&set, &bare, &plain(&bare))[0].contains("choose “No correction is possible”"));
        assert!(problems(&Answer { no_passage_helps: true, ..blank }).is_empty());
    }

    #[test]
    fn other_line_ends_are_no_correction() {
        let (set, answers) = (fine(), vec!["the tea\r\nis warm\r\nthe tea".to_owned()]);
        let task = Task { answers, ..task() };
        let repeats = Marked { repeats: "the tea\nis".into(), ..span("Redundant", 18, 25) };
        let answer = |correction: &str| Answer {
            spans: vec![repeats.clone()],
            correction: Some(correction.into()),
            ..Answer::default()
        };
        let problems = |correction: &str| answer(correction).problems(&set, &task, &plain(&task));
        assert_eq!(
            problems("the tea\nis warm\nthe tea"),
            ["Correct the answer: the correction is still the same as the answer."]
        );
        assert_eq!(problems("the tea\nis warm"), Vec::<String>::new());
    }

    #[test]
    fn a_span_keeps_its_rules() {
        let (set, task) = (fine(), task());
        let broken = |spans: &[Marked]| Answer { spans: spans.to_vec(), ..Answer::default() }.broken(&set, &task);
        assert!(broken(&[span("Irrelevant", 0, 3), span("Incoherent", 4, 7)]).is_empty());
        assert!(broken(&[span("Irrelevant", 0, 2)])[0].contains("not whole words"));
        assert!(broken(&[span("Irrelevant", 0, 400)])[0].contains("not whole words"));
        assert!(broken(&[span("Irrelevant", 0, 7), span("Incoherent", 4, 10)])[0].contains("overlaps"));
        assert!(broken(&[span("Wrong", 0, 3)])[0].contains("no type"));
        let repeated = |text: &str| Marked { repeats: text.into(), ..span("Redundant", 16, 23) };
        assert!(broken(&[repeated(" the tea ")]).is_empty());
        assert!(broken(&[repeated("the tea is warm ")]).is_empty());
        assert_eq!(broken(&[repeated("")]).len() + broken(&[repeated("coffee")]).len(), 2);
        let placed = |passage, sentences: &[usize]| Marked {
            passage,
            sentences: sentences.to_vec(),
            ..span("Wrong-Grounding", 0, 3)
        };
        assert!(broken(&[placed(1, &[0, 2])]).is_empty(), "0 is the title");
        assert!(broken(&[placed(2, &[0])])[0].contains("passage 2 does not exist"));
        assert!(broken(&[placed(1, &[3])])[0].contains("sentences 0 to 2, but no 3"));
        assert!(broken(&[placed(1, &[])])[0].contains("at least one"));
    }

    #[test]
    fn pairs_are_all_compared_and_hold_together() {
        let (set, task) = (LabelSet::open("comparison").expect("a label set"), task());
        let names: Vec<String> = pairs(4).into_iter().map(pair_name).collect();
        assert_eq!(names, ["1v2", "1v3", "1v4", "2v3", "2v4", "3v4"]);
        let mut answer = Answer::default();
        assert_eq!(
            answer.problems(&set, &task, &plain(&task)),
            ["Compare A and B, A and C, A and D, B and C, B and D, C and D."]
        );
        answer.ranks = names.iter().map(|name| (name.clone(), Rank::Tie)).collect();
        assert!(answer.problems(&set, &task, &plain(&task)).is_empty() && answer.warnings(&set, &task).len() == 1);
        answer.ranks.insert("1v2".into(), Rank::First);
        assert!(answer.problems(&set, &task, &plain(&task)).is_empty(), "1v3 and 2v3 may be ties all the same");
        answer.ranks.insert("2v3".into(), Rank::First);
        assert_eq!(
            answer.problems(&set, &task, &plain(&task)),
            ["These choices contradict each other: A and B, A and C, B and C."]
        );
        // With the letters of another order: B, C, A, D.
        let shown = Shown { order: vec![1, 2, 0, 3], ..plain(&task) };
        let problems = answer.problems(&set, &task, &shown);
        assert_eq!(problems, ["These choices contradict each other: A and B, A and C, B and C."]);
        answer.ranks.remove("1v4");
        assert_eq!(answer.problems(&set, &task, &shown)[0], "Compare C and D.");
        answer.ranks.insert("1v4".into(), Rank::Tie);
        answer.ranks.insert("9v9".into(), Rank::First);
        assert_eq!(answer.broken(&set, &task).len(), 1);
    }

    #[test]
    fn every_question_is_answered_on_its_scale() {
        let (set, task) = (LabelSet::open("likert-imdb").expect("a label set"), task());
        let mut answer = Answer::default();
        assert_eq!(answer.problems(&set, &task, &plain(&task)).len(), 2);
        answer.questions = BTreeMap::from([("coherence".into(), 5), ("sentiment".into(), 1)]);
        assert!(answer.problems(&set, &task, &plain(&task)).is_empty());
        answer.questions.insert("sentiment".into(), 6);
        assert_eq!(answer.broken(&set, &task), ["6 is not an answer to sentiment."]);
    }
}

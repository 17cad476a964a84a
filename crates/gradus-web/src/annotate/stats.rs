//! Results of a project: work per person, agreement between people, and preferred models.

use std::collections::BTreeSet;

use gradus::Result;
use serde::Serialize;

use super::rank::{Rank, pair_name, pairs};
use super::task::Task;
use crate::agreement::ranking::{self, Outcome, Strength, Versus, Vote};
use crate::agreement::{Defined, Level, Span, alpha, cohen, fleiss, raw, span_f1};
use crate::store::Store;
use crate::store::projects::{Annotation, AnnotationState, Project};

/// An annotation faster than this share of the project's median time is flagged.
const FAST: f64 = 1.0 / 3.0;

/// A number, or the reason why it is undefined.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    /// The number.
    Value(f64),
    /// Reason why it is undefined.
    Undefined(&'static str),
}

impl From<Defined> for Number {
    fn from(defined: Defined) -> Self {
        match defined {
            Ok(value) => Self::Value(value),
            Err(why) => Self::Undefined(why),
        }
    }
}

/// Statistics of a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Number of tasks.
    pub tasks: usize,
    /// Number of tasks with all their annotations.
    pub complete: usize,
    /// Number of submitted annotations.
    pub submitted: usize,
    /// Open tasks.
    pub claims: Vec<Claim>,
    /// Work of each person.
    pub people: Vec<Work>,
    /// Agreement on each part of the label set.
    pub agreement: Vec<Agreement>,
    /// F1 of marked characters, over all pairs of people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_f1: Option<Number>,
    /// Comparisons of each pair of models, if the data names them.
    pub comparisons: Vec<Versus>,
    /// Models, strongest first, if the data names them.
    pub models: Vec<Strength>,
    /// Reason why there are no strengths although models were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models_undefined: Option<&'static str>,
    /// Share of preferences for the answer on the left, without ties. It is one half if the side does not matter.
    pub left_preferred: Number,
    /// Share of preferences for the longer answer, without ties and pairs of equally long answers.
    pub longer_preferred: Number,
}

/// A task that a person has open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// Number of the task, from 1.
    pub task: usize,
    /// Name of the person.
    pub person: String,
    /// Whether it still occupies a place of the task because its lease has not ended.
    pub holds: bool,
}

/// Work of one person.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Work {
    /// Name of the person.
    pub name: String,
    /// Number of submitted tasks.
    pub done: usize,
    /// Number of skipped tasks.
    pub skipped: usize,
    /// Median time of the submitted tasks.
    pub median_seconds: Number,
    /// Number of tasks submitted in less than a third of the project's median time.
    pub fast: usize,
    /// Share of right parts in tasks with known parts.
    pub right: Number,
    /// Number of failed attention tasks.
    pub inattentive: usize,
}

/// Agreement on one part of the label set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Name of the part.
    pub of: String,
    /// Number of items with two or more annotations.
    pub items: usize,
    /// Share of equal labels among pairs of people.
    pub raw: Number,
    /// Cohen's κ, for two people.
    pub cohen: Number,
    /// Fleiss' κ, if all items have the same number of labels.
    pub fleiss: Number,
    /// Krippendorff's α.
    pub alpha: Number,
}

/// Computes the statistics of a project.
///
/// # Errors
/// The database cannot be read.
pub fn stats(store: &Store, project: &Project) -> Result<Stats> {
    let all = store.projects().annotations(project.id)?;
    let tasks = store.projects().tasks(project.id)?;
    let done: Vec<&Annotation> = all.iter().filter(|annotation| annotation.state == AnnotationState::Done).collect();
    let per_task = |number: usize| done.iter().filter(|annotation| annotation.task == number).count();
    // An attention check measures people, so numbers about answers and models leave it out.
    let measuring: Vec<&Annotation> =
        done.iter().copied().filter(|annotation| !tasks[annotation.task - 1].attention).collect();
    let votes = votes(&measuring, &tasks);
    let named = tasks.iter().filter(|task| !task.attention).flat_map(|task| &task.models).map(String::as_str).collect();
    let (models, models_undefined) = ranking::strengths(&named, &votes);
    let marks = !project.labels.spans.is_empty();
    Ok(Stats {
        tasks: project.tasks,
        complete: (1..=project.tasks).filter(|number| per_task(*number) >= project.annotators).count(),
        submitted: done.len(),
        claims: claims(project, &all),
        people: people(&all, &tasks),
        agreement: agreement(project, &measuring, &tasks),
        span_f1: marks.then(|| spans(&measuring).into()),
        comparisons: ranking::comparisons(&votes),
        models,
        models_undefined,
        left_preferred: preferred(
            &measuring,
            &tasks,
            "the sides of the answers are unknown",
            |annotation, _, pair, first| {
                // Returns whether the preferred answer was on the left. Unknown for annotations from other tools.
                Some(first != *annotation.shown.as_ref()?.swapped.get(pair)?)
            },
        ),
        longer_preferred: preferred(
            &measuring,
            &tasks,
            "the compared answers are equally long",
            |_, task, pair, first| {
                let (one, other) = pairs(task.answers.len())[pair];
                let [one, other] = [one, other].map(|at| task.answers[at].chars().count());
                (one != other).then_some((one > other) == first)
            },
        ),
    })
}

/// Returns the open tasks in order.
fn claims(project: &Project, all: &[Annotation]) -> Vec<Claim> {
    let open = all.iter().filter(|annotation| annotation.state == AnnotationState::Open);
    open.map(|annotation| Claim {
        task: annotation.task,
        person: annotation.person.clone(),
        holds: project.holds(annotation),
    })
    .collect()
}

/// Returns the votes between models, for comparisons whose models the data names.
fn votes<'t>(done: &[&Annotation], tasks: &'t [Task]) -> Vec<Vote<'t>> {
    let of = |annotation: &&Annotation| {
        let models = &tasks[annotation.task - 1].models;
        let vote = |pair: (usize, usize)| {
            let outcome = match annotation.answer.ranks.get(&pair_name(pair))? {
                Rank::First => Outcome::First,
                Rank::Tie | Rank::Bad => Outcome::Tie,
                Rank::Second => Outcome::Second,
            };
            Some(Vote { one: models[pair.0].as_str(), other: models[pair.1].as_str(), outcome })
        };
        pairs(models.len()).into_iter().filter_map(vote).collect::<Vec<_>>()
    };
    done.iter().flat_map(of).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

fn people(all: &[Annotation], tasks: &[Task]) -> Vec<Work> {
    let names: BTreeSet<&String> = all.iter().map(|annotation| &annotation.person).collect();
    let seconds = |name: Option<&String>| -> Vec<f64> {
        let of = all.iter().filter(|annotation| {
            annotation.state == AnnotationState::Done && name.is_none_or(|name| annotation.person == *name)
        });
        of.map(|annotation| annotation.seconds).collect()
    };
    let bound = median(seconds(None)).unwrap_or(0.0) * FAST;
    let measured = |name: &String, attention: bool| -> Vec<(usize, usize)> {
        let done =
            all.iter().filter(|annotation| annotation.state == AnnotationState::Done && annotation.person == *name);
        let known = done.filter(|annotation| !attention || tasks[annotation.task - 1].attention);
        known
            .filter_map(|annotation| Some(tasks[annotation.task - 1].expected.as_ref()?.right(&annotation.answer)))
            .collect()
    };
    let right = |name: &String| {
        let (right, of) = measured(name, false).into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if of == 0 { Err("no task with a known answer was submitted") } else { Ok(right as f64 / of as f64) }
    };
    let of = |name: &String| Work {
        right: right(name).into(),
        inattentive: measured(name, true).into_iter().filter(|(right, of)| right < of).count(),
        name: name.clone(),
        done: seconds(Some(name)).len(),
        skipped: all
            .iter()
            .filter(|annotation| annotation.person == *name && annotation.state == AnnotationState::Skipped)
            .count(),
        median_seconds: median(seconds(Some(name))).ok_or("nothing was submitted").into(),
        fast: seconds(Some(name)).iter().filter(|seconds| **seconds < bound).count(),
    };
    names.into_iter().map(of).collect()
}

/// Computes the agreement on each part: collects everyone's labels of every item, and how they are ordered.
fn agreement(project: &Project, done: &[&Annotation], tasks: &[Task]) -> Vec<Agreement> {
    let names: Vec<&String> =
        done.iter().map(|annotation| &annotation.person).collect::<BTreeSet<_>>().into_iter().collect();
    let rated =
        |items: &[(usize, usize)], label: &dyn Fn(&Annotation, usize) -> Option<usize>| -> Vec<Vec<Option<usize>>> {
            let one = |&(number, part): &(usize, usize)| {
                let by = |name: &&String| {
                    let annotation =
                        done.iter().find(|annotation| annotation.task == number && annotation.person == **name)?;
                    label(annotation, part)
                };
                names.iter().map(by).collect()
            };
            items.iter().map(one).collect()
        };
    let measured = |of: String, ratings: Vec<Vec<Option<usize>>>, level: Level| {
        let shared: Vec<Vec<Option<usize>>> =
            ratings.into_iter().filter(|item| item.iter().flatten().count() > 1).collect();
        Agreement {
            of,
            items: shared.len(),
            raw: raw(&shared).into(),
            cohen: cohen(&shared).into(),
            fleiss: fleiss(&shared).into(),
            alpha: alpha(&shared, level).into(),
        }
    };
    let whole: Vec<(usize, usize)> = (1..=tasks.len()).map(|number| (number, 0)).collect();
    let mut found = Vec::new();
    let labels = &project.labels;
    if !(labels.spans.is_empty() && labels.missing.is_empty()) {
        let is_faulty = rated(&whole, &|annotation, _| Some(usize::from(!annotation.answer.no_error)));
        found.push(measured("existence of an error".into(), is_faulty, Level::Nominal));
    }
    if labels.comparison {
        let items: Vec<(usize, usize)> = tasks
            .iter()
            .enumerate()
            .flat_map(|(i, task)| (0..pairs(task.answers.len()).len()).map(move |pair| (i + 1, pair)))
            .collect();
        let label = |annotation: &Annotation, pair: usize| {
            let task = &tasks[annotation.task - 1];
            let rank = annotation.answer.ranks.get(&pair_name(*pairs(task.answers.len()).get(pair)?))?;
            Some(match rank {
                Rank::Second => 0,
                Rank::Tie | Rank::Bad => 1,
                Rank::First => 2,
            })
        };
        found.push(measured("better answer".into(), rated(&items, &label), Level::Ordinal));
    }
    for question in &labels.questions {
        let label = |annotation: &Annotation, _| {
            annotation
                .answer
                .questions
                .get(&question.name)
                .map(|value| usize::from(value.saturating_sub(question.from)))
        };
        found.push(measured(question.name.clone(), rated(&whole, &label), Level::Ordinal));
    }
    found
}

fn spans(done: &[&Annotation]) -> Defined {
    let marked: Vec<Vec<Span>> = done
        .iter()
        .map(|annotation| {
            let span =
                |span: &super::answer::Marked| Span { characters: span.start..span.end, kind: span.kind.clone() };
            annotation.answer.spans.iter().map(span).collect()
        })
        .collect();
    let mut both = Vec::new();
    for (i, one) in done.iter().enumerate() {
        for (j, other) in done.iter().enumerate().skip(i + 1) {
            if one.task == other.task {
                both.push((&marked[i][..], &marked[j][..]));
            }
        }
    }
    if both.is_empty() { Err("no task was marked by two people") } else { span_f1(both) }
}

/// Computes the share of decided pairs for which `holds` is true, among those for which it is known. Its last argument tells whether the
/// first answer of the pair is preferred. `unknown` is the reason if it is known for none of them.
fn preferred(
    done: &[&Annotation],
    tasks: &[Task],
    unknown: &'static str,
    holds: impl Fn(&Annotation, &Task, usize, bool) -> Option<bool>,
) -> Number {
    let (mut held, mut known, mut decided) = (0usize, 0usize, 0usize);
    for annotation in done {
        let task = &tasks[annotation.task - 1];
        for (i, pair) in pairs(task.answers.len()).into_iter().enumerate() {
            let first = match annotation.answer.ranks.get(&pair_name(pair)) {
                Some(Rank::First) => true,
                Some(Rank::Second) => false,
                Some(Rank::Tie | Rank::Bad) | None => continue,
            };
            decided += 1;
            let Some(is_held) = holds(annotation, task, i, first) else { continue };
            known += 1;
            held += usize::from(is_held);
        }
    }
    match (decided, known) {
        (0, _) => Number::Undefined("no answer was preferred"),
        (_, 0) => Number::Undefined(unknown),
        _ => Number::Value(held as f64 / known as f64),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::answer::Answer;
    use super::super::labels::LabelSet;
    use super::super::task::Expected;
    use super::*;
    use crate::store::projects::{LEASE_MINUTES, Role, Save, Saved};

    /// A task that compares the answers of two models.
    fn compared(answers: [&str; 2]) -> Task {
        Task {
            question: "Q".into(),
            passages: Vec::new(),
            reference: String::new(),
            answers: answers.map(str::to_owned).to_vec(),
            models: vec!["x".into(), "y".into()],
            expected: None,
            attention: false,
            original: None,
        }
    }

    /// Returns the statistics of a comparison project after each person has ranked the tasks, in order and in the given seconds each.
    fn found<const N: usize>(tasks: &[Task], annotations: &[(&str, [Rank; N], f64)]) -> Stats {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let projects = store.projects();
        let labels = LabelSet::open("comparison").expect("a label set");
        projects.begin("p", &labels, annotations.len(), LEASE_MINUTES, tasks).expect("kept");
        let project = projects.find("p").expect("read").expect("a project");
        for (name, ranks, seconds) in annotations {
            let token = projects.invite(name, Role::Annotator).expect("kept");
            let session = store.sessions().begin();
            let session = projects.sign_in(&session, name, &token).expect("kept").expect("signed in");
            let person = projects.who(&session).expect("read").expect("signed in");
            for rank in ranks {
                let number = projects.next(&project, person.id).expect("read").expect("a task");
                let answer = Answer { ranks: BTreeMap::from([("1v2".to_owned(), *rank)]), ..Answer::default() };
                projects.open(project.id, number, person.id).expect("opened").expect("theirs");
                let saved =
                    projects.save(project.id, number, person.id, &Save::of(&answer, AnnotationState::Done, *seconds));
                assert!(matches!(saved.expect("saved"), Saved::Stored(_)));
            }
        }
        stats(&store, &project).expect("stats")
    }

    #[test]
    fn a_project_is_summed_up() {
        // `a` prefers the first, first, second, tie; `b` the first, second, second, first, in a fifth of the time.
        let annotations = [
            ("a", [Rank::First, Rank::First, Rank::Second, Rank::Tie], 10.0),
            ("b", [Rank::First, Rank::Second, Rank::Second, Rank::First], 2.0),
        ];
        let found = found(&vec![compared(["long", "s"]); 4], &annotations);
        assert_eq!((found.tasks, found.complete), (4, 4));
        let agreed = &found.agreement[0];
        assert_eq!((agreed.items, &agreed.raw), (4, &Number::Value(0.5)));
        // p = 1/2; by chance 2/4·2/4 + 1/4·2/4 + 1/4·0 = 3/8: κ = (1/2 − 3/8) / (5/8).
        let Number::Value(kappa) = agreed.cohen else { panic!("{agreed:?}") };
        assert!((kappa - 0.2).abs() < 1e-12, "{kappa}");
        // 4½ wins of 8: the strengths differ by ln(4.5 / 3.5).
        let blocking = found.models[0].log_strength - found.models[1].log_strength;
        assert!((blocking - (4.5f64 / 3.5).ln()).abs() < 1e-9 && found.models[0].model == "x", "{:?}", found.models);
        assert!(found.models[0].interval.0 < found.models[0].log_strength);
        let versus = &found.comparisons[..];
        let [Versus { one, other, votes, win, tie, loss }] = versus else { panic!("{versus:?}") };
        assert_eq!((one.as_str(), other.as_str(), *votes), ("x", "y", 8));
        assert_eq!((win.value, tie.value, loss.value), (0.5, 0.125, 0.375));
        assert_eq!((found.submitted, found.claims.len()), (8, 0));
        assert_eq!(found.longer_preferred, Number::Value(4.0 / 7.0), "four of the seven that are no tie");
        assert_eq!(found.people[1].fast, 0, "a third of the median, 6 s, is 2 s");
        assert_eq!(found.people[0].median_seconds, Number::Value(10.0));
        assert!(matches!(found.left_preferred, Number::Value(_)) && found.span_f1.is_none());
    }

    #[test]
    fn attention_checks_measure_people_only() {
        let real = compared(["long", "s"]);
        let expected = Expected { ranks: BTreeMap::from([("1v2".to_owned(), Rank::First)]), ..Expected::default() };
        let models = vec!["y".into(), "z".into()];
        let check = Task { expected: Some(expected), attention: true, models, ..real.clone() };
        // They disagree on both tasks and agree on both checks.
        let found = found(
            &[real.clone(), check.clone(), real, check],
            &[
                ("a", [Rank::First, Rank::First, Rank::First, Rank::First], 5.0),
                ("b", [Rank::Second, Rank::First, Rank::Second, Rank::First], 5.0),
            ],
        );
        assert_eq!((found.complete, found.submitted), (4, 8));
        assert!(found.people.iter().all(|work| work.done == 4 && work.right == Number::Value(1.0)));
        assert_eq!((found.agreement[0].items, &found.agreement[0].raw), (2, &Number::Value(0.0)));
        let [versus] = &found.comparisons[..] else { panic!("{:?}", found.comparisons) };
        assert_eq!((versus.votes, versus.win.value, versus.loss.value), (4, 0.5, 0.5));
        let models: Vec<&str> = found.models.iter().map(|model| model.model.as_str()).collect();
        assert!(models.len() == 2 && !models.contains(&"z"), "{models:?}");
        assert_eq!(found.longer_preferred, Number::Value(0.5));
    }

    #[test]
    fn of_equally_long_answers_none_is_the_longer_one() {
        let tasks = [compared(["same", "größ"]), compared(["long", "s"])];
        let preferred = |tasks: &[Task], rank: Rank| found(tasks, &[("a", [rank; 1], 5.0)]).longer_preferred;
        let unknown = Number::Undefined("the compared answers are equally long");
        assert_eq!(preferred(&tasks[..1], Rank::First), unknown);
        assert_eq!(preferred(&tasks[..1], Rank::Second), unknown);
        assert_eq!(preferred(&tasks[..1], Rank::Tie), Number::Undefined("no answer was preferred"));
        let both = found(&tasks, &[("a", [Rank::Second, Rank::First], 5.0)]);
        assert_eq!(both.longer_preferred, Number::Value(1.0), "only one pair has a longer answer");
    }
}

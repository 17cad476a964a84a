//! Verdicts on mathematical answers, compared with those of `math-verify` (`tools/parity/mathematics.py`).

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use gradus_metrics::mathematics::is_correct;
use serde_json::Value;

/// Number of kinds of answers on which gradus decides otherwise. The documentation of `rule.math` lists them.
const REASONS: usize = 17;

#[test]
fn verdicts_are_those_of_math_verify() {
    // The variable selects another fixture, such as one from another seed.
    let path = std::env::var("GRADUS_MATHEMATICS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mathematics.jsonl").to_owned());
    let text = std::fs::read_to_string(&path).expect("the fixture");
    let mut reasons = std::collections::BTreeSet::new();
    let (mut pairs, mut right, mut wrong) = (0, 0, Vec::new());
    for line in text.lines().skip(1) {
        let row: Vec<Value> = serde_json::from_str(line).expect("a list");
        let (gold, answer) = (row[0].as_str().expect("a text"), row[1].as_str().expect("a text"));
        let verdict = row[2].as_bool().expect("a verdict");
        // A fourth column means that gradus' verdict differs, and gives the reason.
        let expected = verdict != row.get(3).is_some();
        reasons.extend(row.get(3).map(|reason| reason.as_str().expect("a text").to_owned()));
        let ours = is_correct(gold, answer) == Some(true);
        (pairs, right) = (pairs + 1, right + usize::from(verdict));
        if ours != expected {
            wrong.push(format!("{gold} | {answer}: {ours}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {pairs} verdicts are wrong: {wrong:#?}", wrong.len());
    assert!(pairs > 3000 && right > pairs / 3 && right < pairs * 3 / 4, "{right} of {pairs} are right");
    assert_eq!(reasons.len(), REASONS, "{reasons:#?}");
}

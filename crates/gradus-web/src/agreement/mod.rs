//! Agreement between people, and their preferences among models, as pure functions of the annotations.
//!
//! If a value is undefined (no item has two labels, or all labels are equal), the functions return an error with the reason, never 0 or 1.
//! The expected numbers in the tests come from statsmodels and krippendorff.

mod alpha;
mod bradley_terry;
mod kappa;
pub mod ranking;
mod spans;

pub use alpha::{Level, alpha};
pub use bradley_terry::{Strengths, bradley_terry};
pub use kappa::{cohen, fleiss, raw};
pub use spans::{Span, span_f1};

/// A number, or the reason why it is undefined.
pub type Defined = Result<f64, &'static str>;

/// Label of each item by each rater, `[items][raters]`: a category from 0, or `None`.
pub type Ratings = [Vec<Option<usize>>];

/// Agreement needs two labels of an item.
const ALONE: &str = "no item was labeled by two people";
/// Agreement beyond chance needs two different labels.
const ALIKE: &str = "only one label was ever given";

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn fixture() -> Value {
        serde_json::from_str(include_str!("../../tests/fixtures/agreement.json")).expect("a fixture")
    }

    fn ratings(value: &Value) -> Vec<Vec<Option<usize>>> {
        serde_json::from_value(value.clone()).expect("ratings")
    }

    #[track_caller]
    fn assert_close(found: f64, expected: &Value, what: &str) {
        let expected = expected.as_f64().expect("a number");
        assert!((found - expected).abs() < 1e-9, "{what}: {found} instead of {expected}");
    }

    #[test]
    fn kappas_are_those_of_statsmodels() {
        for case in fixture()["cohen"].as_array().expect("cases") {
            assert_close(cohen(&ratings(&case["ratings"])).expect("defined"), &case["kappa"], "Cohen");
        }
        for case in fixture()["fleiss"].as_array().expect("cases") {
            assert_close(fleiss(&ratings(&case["ratings"])).expect("defined"), &case["kappa"], "Fleiss");
        }
    }

    #[test]
    fn alphas_are_those_of_krippendorff() {
        let mut gaps = 0;
        for case in fixture()["alpha"].as_array().expect("cases") {
            let ratings = ratings(&case["ratings"]);
            gaps += ratings.iter().flatten().filter(|rating| rating.is_none()).count();
            for (level, name) in
                [(Level::Nominal, "nominal"), (Level::Ordinal, "ordinal"), (Level::Interval, "interval")]
            {
                assert_close(alpha(&ratings, level).expect("defined"), &case[name], name);
            }
        }
        assert!(gaps > 0, "some of the ratings are missing");
    }

    #[test]
    fn strengths_and_their_errors_are_those_of_a_logistic_regression() {
        for case in fixture()["bradley_terry"].as_array().expect("cases") {
            let wins: Vec<Vec<f64>> = serde_json::from_value(case["wins"].clone()).expect("wins");
            let found = bradley_terry(&wins).expect("defined");
            assert!(found.log_strengths.iter().sum::<f64>().abs() < 1e-9);
            let pairs =
                case["contrasts"].as_array().expect("contrasts").iter().zip(case["errors"].as_array().expect("errors"));
            for (i, (contrast, error)) in pairs.enumerate() {
                let i = i + 1;
                assert_close(found.log_strengths[i] - found.log_strengths[0], contrast, "contrast");
                let of = |a: usize, b: usize| found.covariance[a][b];
                assert_close((of(i, i) + of(0, 0) - 2.0 * of(i, 0)).sqrt(), error, "error");
            }
        }
    }

    #[test]
    fn what_is_not_defined_is_said() {
        let alone = [vec![Some(0), None], vec![None, Some(1)]];
        assert_eq!(raw(&alone), Err(ALONE));
        assert_eq!(cohen(&alone), Err(ALONE));
        assert_eq!(alpha(&alone, Level::Nominal), Err(ALONE));
        let alike = [vec![Some(2), Some(2)], vec![Some(2), Some(2)]];
        assert_eq!(raw(&alike), Ok(1.0));
        assert_eq!(cohen(&alike), Err(ALIKE));
        assert_eq!(fleiss(&alike), Err(ALIKE));
        assert_eq!(alpha(&alike, Level::Ordinal), Err(ALIKE));
        assert!(fleiss(&[vec![Some(0), Some(1)], vec![Some(0), None]]).is_err(), "Fleiss needs as many labels of each");
        assert!(cohen(&[vec![Some(0); 3]]).is_err(), "Cohen is about two");
        assert!(
            bradley_terry(&[vec![0.0, 3.0], vec![0.0, 0.0]]).is_err(),
            "one that never lost has no finite strength"
        );
        assert!(bradley_terry(&[vec![0.0]]).is_err());
        let two_islands = [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]];
        assert!(bradley_terry(&two_islands.map(|row| row.to_vec())).is_err(), "who never met is not compared");
    }

    #[test]
    fn agreement_worked_by_hand() {
        // Two of the six pairs of the first item agree, but not the one pair of the second item: 2 of 7.
        let ratings = [vec![Some(0), Some(0), Some(1), Some(1)], vec![Some(0), Some(1), None, None]];
        assert_eq!(raw(&ratings), Ok(2.0 / 7.0));
        // If both always disagree, κ is negative.
        assert!(cohen(&[vec![Some(0), Some(1)], vec![Some(1), Some(0)]]).expect("defined") < 0.0);
    }
}

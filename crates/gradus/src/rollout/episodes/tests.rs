use super::*;

#[test]
fn a_number_that_cannot_be_used_is_shown_briefly() {
    let message = |number| not_finite(number).to_string();
    assert_eq!(message(f64::NAN), "the environment answered with the number NaN, but a finite one is needed");
    assert_eq!(
        message(-1e300),
        "the environment answered with the number -1e300, but no number may be larger than the largest one of f32, 3.4e38"
    );
}

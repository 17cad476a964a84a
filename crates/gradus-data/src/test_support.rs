//! Helpers shared by tests.

#[path = "../../gradus/tests/support/scorer.rs"]
mod scorer;
#[path = "../../gradus/tests/support/service.rs"]
mod service;

pub(crate) use scorer::ByRule;
pub(crate) use service::serve;

/// Compares the orders of rows in the file `fixture` below the fixtures of parity with those of `order`.
pub(crate) fn check_orders(fixture: &str, order: fn(u64, usize) -> Vec<usize>) {
    let path = format!("{}/../gradus/tests/fixtures/parity/{fixture}", env!("CARGO_MANIFEST_DIR"));
    let fixture: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON");
    let cases = fixture["cases"].as_array().expect("cases");
    assert!(cases.len() >= 5);
    for case in cases {
        let (seed, n) = (case["seed"].as_u64().expect("a seed"), case["n"].as_u64().expect("a length") as usize);
        let order = order(seed, n);
        let first: Vec<u64> = order.iter().take(20).map(|&i| i as u64).collect();
        assert_eq!(serde_json::json!(first), case["first"], "seed {seed}, {n} rows");
        // Σ i · order[i] depends on every element.
        let sum: u64 = order.iter().enumerate().map(|(i, &row)| (i as u64 + 1) * row as u64).sum();
        assert_eq!(Some(sum), case["sum"].as_u64(), "seed {seed}, {n} rows");
    }
}

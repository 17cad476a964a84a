//! Assigns colors to runs.

/// Methods by the index of their color in the palette. Methods that are often compared have different colors.
const METHODS: [[&str; 2]; 8] = [
    ["ppo", "classify"],
    ["grpo", "reward"],
    ["dpo", "cpo"],
    ["sft", "distill"],
    ["nlpo", "kto"],
    ["trpo", "simpo"],
    ["a2c", "rloo"],
    ["orpo", ""],
];

/// Returns an index into the palette for each run: that of its method, so that a method has the same color in every chart. If an earlier
/// run has that color, the run gets the next free one. Runs beyond the number of colors share them in order.
pub fn colors(methods: &[Option<&str>]) -> Vec<usize> {
    let mut taken = [false; METHODS.len()];
    let own = |method: &str| METHODS.iter().position(|names| names.contains(&method));
    let mut colors: Vec<Option<usize>> = Vec::with_capacity(methods.len());
    // Known methods first, so that a run of an unknown method does not take a known method's color.
    for method in methods {
        let color = method.and_then(own).filter(|&color| !taken[color]);
        if let Some(color) = color {
            taken[color] = true;
        }
        colors.push(color);
    }
    let mut free = taken.into_iter().enumerate().filter_map(|(color, taken)| (!taken).then_some(color));
    let place = |(index, color): (usize, Option<usize>)| color.or_else(|| free.next()).unwrap_or(index % METHODS.len());
    colors.into_iter().enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::super::canvas::PALETTE;
    use super::*;

    #[test]
    fn a_method_has_one_color_and_runs_of_one_method_differ() {
        assert_eq!(METHODS.len(), PALETTE.len());
        assert_eq!(colors(&[Some("dpo"), Some("ppo")]), [2, 0]);
        assert_eq!(colors(&[Some("ppo"), Some("grpo"), Some("dpo")]), [0, 1, 2]);
        assert_eq!(colors(&[Some("ppo"), Some("ppo"), Some("grpo"), None]), [0, 2, 1, 3]);
        let many = colors(&[Some("ppo"); 20]);
        assert_eq!(many[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(many.iter().all(|&color| color < 8));
    }
}

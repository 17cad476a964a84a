//! Which run has which color.

/// Methods by the place of their color in the palette; those that are usually compared differ.
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

/// A place in the palette for each run: that of its method, so that a method has one color in every picture; where an
/// earlier run has it, the next that is free. More runs than colors share them in order.
pub fn colors(methods: &[Option<&str>]) -> Vec<usize> {
    let mut taken = [false; METHODS.len()];
    let own = |method: &str| METHODS.iter().position(|names| names.contains(&method));
    let mut colors: Vec<Option<usize>> = Vec::with_capacity(methods.len());
    // Methods first: a run of an unknown one takes no color from a known.
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

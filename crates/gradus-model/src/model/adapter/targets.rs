//! Selection of the linear layers that get an adapter, and of their ranks, by peft's rules.

use std::fmt::{Display, Formatter};

use regex::Regex;
use serde_json::Value;

use crate::error::{Error, Result};

/// Selection of layers by name.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Layers whose name is one of these, or ends in `.` and one of these.
    Names(Vec<String>),
    /// Layers whose whole name matches this regular expression.
    Pattern(String),
    /// All linear layers except the heads.
    All,
}

impl Targets {
    /// peft's name for [`Targets::All`].
    pub(super) const ALL: &str = "all-linear";

    /// Reads peft's list or text.
    pub(super) fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) if text.eq_ignore_ascii_case(Self::ALL) => Some(Self::All),
            Value::String(text) => Some(Self::Pattern(text.clone())),
            Value::Array(names) => {
                Some(Self::Names(names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?))
            }
            _ => None,
        }
    }

    /// Returns peft's form.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Names(names) => names.clone().into(),
            Self::Pattern(text) => text.clone().into(),
            Self::All => Self::ALL.into(),
        }
    }
}

impl Display for Targets {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Names(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                f.write_str(&names.join(" or "))
            }
            Self::Pattern(text) => write!(f, "as `{text}` says"),
            Self::All => f.write_str("anything"),
        }
    }
}

/// A prepared selection of names.
enum Names {
    Ends(Vec<String>),
    Whole(Regex),
    All,
}

impl Names {
    fn new(targets: &Targets) -> Result<Self> {
        Ok(match targets {
            Targets::Names(names) => Self::Ends(names.clone()),
            Targets::Pattern(text) => Self::Whole(regex(&format!("^(?:{text})$"), text)?),
            Targets::All => Self::All,
        })
    }

    /// Whether `name` itself is listed, not only an end of it.
    fn list(&self, name: &str) -> bool {
        matches!(self, Self::Ends(ends) if ends.iter().any(|end| end == name))
    }

    fn hold(&self, name: &str) -> bool {
        match self {
            Self::Ends(ends) => ends
                .iter()
                .any(|end| name == end || name.strip_suffix(end.as_str()).is_some_and(|before| before.ends_with('.'))),
            Self::Whole(regex) => regex.is_match(name),
            Self::All => true,
        }
    }
}

fn regex(full: &str, shown: &str) -> Result<Regex> {
    Regex::new(full).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Error::input(format!("`{shown}` is not a usable regular expression: {reason}"))
            .with_hint("look-around and back-references are not available; list the layers' names instead")
    })
}

/// Selects layers and determines their ranks and scales.
pub(crate) struct Matcher {
    targets: Names,
    excluded: Option<Names>,
    /// Selected layer numbers, counted from 0, and the patterns that find the number in a name. The first one that matches counts.
    layers: Option<(Vec<usize>, Vec<Regex>)>,
    rank: usize,
    alpha: f64,
    rank_stabilised: bool,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f64)>,
}

/// Settings of a [`Matcher`].
pub(super) struct Rules<'a> {
    pub targets: &'a Targets,
    pub excluded: Option<&'a Targets>,
    /// Selected layer numbers in lists with these names, which are patterns; in any list if there are no names.
    pub layers: Option<(Vec<usize>, Vec<String>)>,
    pub rank: usize,
    pub alpha: f64,
    pub rank_stabilised: bool,
    /// Patterns by precedence.
    pub rank_pattern: &'a [(String, usize)],
    /// Patterns by precedence.
    pub alpha_pattern: &'a [(String, f64)],
}

impl Matcher {
    pub(super) fn new(rules: Rules<'_>) -> Result<Self> {
        /// Keys of a pattern are suffixes of names, and may be regular expressions.
        fn patterns<T: Copy>(given: &[(String, T)]) -> Result<Vec<(Regex, T)>> {
            given.iter().map(|(key, value)| Ok((regex(&format!(r"^(?:.*\.)?(?:{key})$"), key)?, *value))).collect()
        }
        /// Finds the first number of a layer in a name, as peft 0.21 does: T5's `block.0.layer.1` is in layer 0.
        fn lists(names: &[String]) -> Result<Vec<Regex>> {
            if names.is_empty() {
                return Ok(vec![regex(r"^.*?\.[^.]*\.(?P<layer>\d+)\.", "layers_pattern")?]);
            }
            names.iter().map(|list| regex(&format!(r"^(?:(?:|.*?\.){list}\.(?P<layer>\d+)\.)"), list)).collect()
        }
        let layers = rules.layers.map(|(chosen, names)| Ok::<_, Error>((chosen, lists(&names)?))).transpose()?;
        Ok(Self {
            targets: Names::new(rules.targets)?,
            excluded: rules.excluded.map(Names::new).transpose()?,
            layers,
            rank: rules.rank,
            alpha: rules.alpha,
            rank_stabilised: rules.rank_stabilised,
            ranks: patterns(rules.rank_pattern)?,
            alphas: patterns(rules.alpha_pattern)?,
        })
    }

    /// Whether the layer `name`, such as `transformer.h.0.attn.c_attn`, gets an adapter.
    pub(in crate::model) fn matches(&self, name: &str) -> bool {
        if self.excluded.as_ref().is_some_and(|excluded| excluded.hold(name)) || !self.targets.hold(name) {
            return false;
        }
        let Some((chosen, lists)) = &self.layers else { return true };
        // As in peft, the whole name of a layer selects it in any layer.
        if self.targets.list(name) {
            return true;
        }
        let found = lists.iter().find_map(|list| list.captures(name)).and_then(|found| found.name("layer"));
        found.and_then(|number| number.as_str().parse::<usize>().ok()).is_some_and(|layer| chosen.contains(&layer))
    }

    /// Whether the head gets an adapter. It must be named explicitly, because `all-linear` excludes it.
    pub(in crate::model) fn matches_head(&self, name: &str) -> bool {
        !matches!(self.targets, Names::All) && self.matches(name)
    }

    /// Returns the rank r and the scale s.
    pub(in crate::model) fn rank_and_scale(&self, name: &str) -> (usize, f32) {
        let rank = self.ranks.iter().find(|(regex, _)| regex.is_match(name)).map_or(self.rank, |(_, rank)| *rank);
        let alpha = self.alphas.iter().find(|(regex, _)| regex.is_match(name)).map_or(self.alpha, |(_, alpha)| *alpha);
        let divisor = if self.rank_stabilised { (rank as f64).sqrt() } else { rank as f64 };
        (rank, (alpha / divisor) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(targets: &Targets, layers: Option<(Vec<usize>, Vec<String>)>) -> Matcher {
        let rank_pattern = [("mlp.c_fc".to_owned(), 4)];
        let alpha_pattern = [(r"h\.1\..*".to_owned(), 64.0)];
        Matcher::new(Rules {
            targets,
            excluded: Some(&Targets::Names(vec!["1.mlp.c_proj".into()])),
            layers,
            rank: 16,
            alpha: 32.0,
            rank_stabilised: false,
            rank_pattern: &rank_pattern,
            alpha_pattern: &alpha_pattern,
        })
        .expect("fine")
    }

    #[test]
    fn names_are_ends_and_patterns_whole_names() {
        let names = Targets::Names(vec!["c_proj".into(), "attn.c_attn".into()]);
        let m = matcher(&names, None);
        assert!(m.matches("transformer.h.0.attn.c_attn") && m.matches("transformer.h.0.mlp.c_proj"));
        assert!(!m.matches("transformer.h.1.mlp.c_proj"), "excluded");
        assert!(!m.matches("transformer.h.0.mlp.c_fc") && !m.matches("transformer.h.0.mlp.xc_proj"));
        let m = matcher(&Targets::Pattern(r"transformer\.h\.\d+\.mlp\..*".into()), None);
        assert!(m.matches("transformer.h.0.mlp.c_fc") && !m.matches("transformer.h.0.attn.c_attn"));
        let m = matcher(&Targets::Pattern("mlp".into()), None);
        assert!(!m.matches("transformer.h.0.mlp.c_fc"), "the whole name");
    }

    #[test]
    fn layers_ranks_and_scales_go_by_name() {
        let m = matcher(&Targets::All, Some((vec![1], vec!["h".into()])));
        assert!(m.matches("transformer.h.1.mlp.c_fc") && !m.matches("transformer.h.0.mlp.c_fc"));
        assert_eq!(m.rank_and_scale("transformer.h.0.attn.c_attn"), (16, 2.0));
        assert_eq!(m.rank_and_scale("transformer.h.1.mlp.c_fc"), (4, 16.0));
    }

    /// The selected layers are those of peft 0.21.2.
    #[test]
    fn the_first_number_of_a_name_is_its_layer() {
        let targets = |names: &[&str]| Targets::Names(names.iter().map(|name| (*name).to_owned()).collect());
        let t5 = ["encoder.block.0.layer.1.DenseReluDense.wo", "encoder.block.1.layer.0.SelfAttention.q"];
        for (lists, expected) in [
            (vec![], [false, true]),
            (vec!["block".to_owned()], [false, true]),
            (vec!["layer".to_owned()], [true, false]),
            (vec!["h".to_owned(), "bl..k".to_owned()], [false, true]),
            (vec!["block|layers".to_owned()], [false, false]),
            (vec!["loc".to_owned()], [false, false]),
        ] {
            let m = matcher(&targets(&["q", "wo"]), Some((vec![1], lists.clone())));
            assert_eq!(t5.map(|name| m.matches(name)), expected, "{lists:?}");
        }
        // A whole name is selected in any layer, and so is the head.
        let m = matcher(&targets(&["model.layers.0.self_attn.q_proj", "v_proj", "lm_head"]), Some((vec![1], vec![])));
        assert!(m.matches("model.layers.0.self_attn.q_proj") && m.matches("model.layers.1.self_attn.v_proj"));
        assert!(!m.matches("model.layers.0.self_attn.v_proj") && m.matches_head("lm_head"));
        // Without a list in front of it, a number is no layer.
        let m = matcher(&targets(&["v_proj"]), Some((vec![1], vec![])));
        assert!(!m.matches("layers.1.v_proj") && m.matches("model.layers.1.v_proj"));
        let m = matcher(&targets(&["v_proj"]), Some((vec![1], vec!["layers".to_owned()])));
        assert!(m.matches("layers.1.v_proj"));
    }

    #[test]
    fn a_broken_pattern_says_what_to_do() {
        let error = Names::new(&Targets::Pattern("(?!x)".into())).err().expect("no look-around");
        assert!(error.to_string().contains("look-around"), "{error}");
        assert!(error.hint().is_some());
    }
}

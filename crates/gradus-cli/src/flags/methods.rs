//! Flags of several methods, for commands that get the method from elsewhere or use several methods.

use clap::ArgMatches;
use gradus::config::{Flag, FlagKind, FlagSpec, MethodConfig, Schema, Scope, flags};

/// Keys of some methods, and the keys that all runs share.
pub struct MethodFlags(Vec<FlagSpec>);

impl MethodFlags {
    /// Returns the keys of the methods for which `which` is true.
    pub fn of(which: impl Fn(&MethodConfig) -> bool) -> Self {
        let schema = Schema::run_config();
        let methods = MethodConfig::all().into_iter().filter(|method| which(method));
        let own = methods.flat_map(|method| flags(&schema, Scope::Method(method.name())));
        let own = own.filter(is_own);
        Self(own.chain(flags(&schema, Scope::Shared)).collect())
    }

    /// Removes a key.
    pub fn without(mut self, key: &str) -> Self {
        self.0.retain(|spec| spec.key != key);
        self
    }

    /// Removes method keys whose flag has the name of a shared key. The flag then sets the shared key.
    pub fn without_taken(mut self) -> Self {
        let shared: Vec<String> = self.0.iter().filter(|spec| !is_own(spec)).map(|spec| spec.name.clone()).collect();
        self.0.retain(|spec| !is_own(spec) || !shared.contains(&spec.name));
        self
    }

    /// Returns the flag of a key.
    pub fn of_key(&self, key: &str) -> Option<&FlagSpec> {
        self.0.iter().find(|spec| spec.key == key)
    }

    /// Returns one flag per name, for help and for clap. If its kind differs between methods, it takes plain text. If it is a switch in one
    /// method and takes a value in another, it is omitted and can be set only in the file.
    pub fn shown(&self) -> Vec<FlagSpec> {
        let mut shown: Vec<FlagSpec> = Vec::new();
        for spec in &self.0 {
            if shown.iter().any(|other| other.name == spec.name) {
                continue;
            }
            let same: Vec<&FlagSpec> = self.0.iter().filter(|other| other.name == spec.name).collect();
            let kind = match same.iter().all(|other| other.kind == spec.kind) {
                true => spec.kind.clone(),
                false if same.iter().all(|other| takes_one_text(&other.kind)) => FlagKind::Value("VALUE"),
                false => continue,
            };
            shown.push(FlagSpec { doc: doc(&same), kind, ..spec.clone() });
        }
        shown
    }

    /// Returns the given flags, one for every key that they set.
    pub fn given(&self, matches: &ArgMatches) -> Vec<Flag> {
        let reach = |flag: Flag| {
            let keys: Vec<FlagSpec> = self.0.iter().filter(|spec| spec.name == flag.spec.name).cloned().collect();
            keys.into_iter().map(move |spec| Flag { spec, ..flag.clone() })
        };
        self.shown().into_iter().filter_map(|spec| super::flag(matches, spec)).flat_map(reach).collect()
    }
}

/// Returns whether a flag sets a key of a method.
fn is_own(spec: &FlagSpec) -> bool {
    spec.key.starts_with("method.")
}

/// Returns whether a flag takes one text, which the configuration parses.
fn takes_one_text(kind: &FlagKind) -> bool {
    !matches!(kind, FlagKind::Switch | FlagKind::Repeated | FlagKind::Names | FlagKind::Arguments)
}

/// Returns the help of a flag: each meaning once, with the methods that it holds for and their defaults.
fn doc(same: &[&FlagSpec]) -> String {
    let mut meanings: Vec<(&str, Vec<&FlagSpec>)> = Vec::new();
    for &spec in same {
        match meanings.iter_mut().find(|(known, _)| *known == meaning(spec)) {
            Some((_, specs)) => specs.push(spec),
            None => meanings.push((meaning(spec), vec![spec])),
        }
    }
    let text = |(meaning, specs): &(&str, Vec<&FlagSpec>)| of_meaning(meaning, specs).trim_end_matches('.').to_owned();
    meanings.iter().map(text).collect::<Vec<_>>().join(NEXT_MEANING)
}

/// Ends a meaning in the help of a flag. The next one begins with its methods in brackets.
const NEXT_MEANING: &str = ". ";

/// Whether the help of a flag has several meanings.
pub fn has_several_meanings(help: &str) -> bool {
    help.contains(&format!("{NEXT_MEANING}["))
}

/// Returns the help of a key without its default, which may differ between methods.
fn meaning(spec: &FlagSpec) -> &str {
    match &spec.default {
        Some(value) if !value.is_null() => spec.doc.split(" Default").next().unwrap_or_default(),
        _ => &spec.doc,
    }
}

/// Returns the help of keys with one meaning.
fn of_meaning(meaning: &str, specs: &[&FlagSpec]) -> String {
    let Some(methods) = specs.iter().map(|spec| method(spec)).collect::<Option<Vec<&str>>>() else {
        return specs[0].doc.clone();
    };
    let names = methods.join(", ");
    if specs.iter().all(|spec| spec.doc == specs[0].doc) {
        return format!("[{names}] {}", specs[0].doc);
    }
    let default = |spec: &FlagSpec| spec.default.as_ref().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<String> = specs.iter().map(|spec| default(spec)).collect();
    let defaults = match defaults.iter().all(|value| *value == defaults[0]) {
        true => defaults[0].clone(),
        false => {
            methods.iter().zip(&defaults).map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        }
    };
    format!("[{names}] {}. Default: {defaults}", meaning.trim_end_matches('.'))
}

/// Returns the method of a key.
fn method(spec: &FlagSpec) -> Option<&str> {
    spec.key.strip_prefix("method.")?.split('.').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_a_shared_flag_holds_for_each_of_its_methods() {
        let flags = MethodFlags::of(|_| true).without_taken();
        let shown = flags.shown();
        let doc = |name: &str| shown.iter().find(|spec| spec.name == name).expect("a flag").doc.as_str();
        let beta = doc("beta");
        assert!(
            beta.starts_with("[dpo, kto] Strength of the pull toward the reference. Default: 0.1. [orpo] "),
            "{beta}"
        );
        assert!(has_several_meanings(beta) && !has_several_meanings(doc("learning-rate")));
        for other in [". [cpo] Factor", ". [simpo] Factor", ". [distill] Position"] {
            assert!(beta.contains(other), "{other} in {beta}");
        }
        let smoothing = doc("label-smoothing");
        assert!(smoothing.contains(". [dpo] Probability that a label is wrong"), "{smoothing}");
        // Each key that a flag sets is described by its own meaning.
        for spec in flags.0.iter().filter(|spec| is_own(spec)) {
            let Some(shown) = shown.iter().find(|shown| shown.name == spec.name) else { continue };
            let meaning = meaning(spec).trim_end_matches('.');
            assert!(shown.doc.contains(meaning), "`{}`: {meaning} in {}", spec.key, shown.doc);
        }
    }
}

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

/// Returns the help of a flag: the methods it applies to, and their defaults if these differ.
fn doc(same: &[&FlagSpec]) -> String {
    let methods: Vec<&str> =
        same.iter().filter_map(|spec| spec.key.strip_prefix("method.")?.split('.').next()).collect();
    let first = &same[0].doc;
    if methods.is_empty() {
        return first.clone();
    }
    if same.iter().all(|spec| spec.default == same[0].default) {
        return format!("[{}] {first}", methods.join(", "));
    }
    let text = first.split(" Default").next().unwrap_or(first).trim_end_matches('.');
    let default = |(spec, method): (&&FlagSpec, &&str)| match &spec.default {
        Some(value) if !value.is_null() => format!("{method} {value}"),
        _ => format!("{method} none"),
    };
    let defaults: Vec<String> = same.iter().zip(&methods).map(default).collect();
    format!("[{}] {text}. Default: {}", methods.join(", "), defaults.join(", "))
}

//! Values of presets, as a tree that all written keys override.

use super::MethodConfig;
use super::flags::overlay;
use super::node::{Node, Value, parse};
use super::schema::Schema;
use crate::error::Diagnostic;
use crate::method::Preset;

/// Overlays `root` on the values of its preset for its method. The reader reports an unknown preset.
pub(super) fn under(schema: &Schema, mut root: Node) -> Result<Node, Diagnostic> {
    let Some(name) = root.entry("preset").and_then(|entry| word(&entry.node)) else { return Ok(root) };
    let (Some(preset), Some(method)) = (Preset::named(&name), chosen(&mut root)) else { return Ok(root) };
    let Some(tree) = tree(preset, &method) else {
        let location = root.entry("preset").and_then(|entry| entry.location.clone());
        let offering = super::method::names("and", |other| other.method().preset(preset).is_some());
        return Err(Diagnostic {
            message: format!("`preset` is `{name}`, which has no settings for `{}`", method.name()),
            locations: location.into_iter().collect(),
            hint: Some(format!("it has settings for {offering}")),
        });
    };
    Ok(overlay(schema, schema.root(), tree, root))
}

/// Returns the values of `preset` for `method`.
pub(super) fn tree(preset: Preset, method: &MethodConfig) -> Option<Node> {
    let text = method.method().preset(preset)?;
    let path = format!("preset {}", preset.name());
    Some(parse(path.as_ref(), text).expect("a preset is YAML"))
}

fn word(node: &Node) -> Option<String> {
    match &node.value {
        Value::Scalar { text, .. } => Some(text.clone()),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// Returns the method that `root` chooses. If it has no keys, they become an empty mapping.
fn chosen(root: &mut Node) -> Option<MethodConfig> {
    let Value::Map(entries) = &mut root.value else { return None };
    let method = entries.iter_mut().find(|entry| entry.key == "method")?;
    let Value::Map(sides) = &mut method.node.value else { return None };
    let [side] = sides.as_mut_slice() else { return None };
    if side.node.is_null() {
        side.node.value = Value::Map(Vec::new());
    }
    MethodConfig::named(&side.key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Plan, RunConfig};
    use crate::machine::Machine;

    fn parsed(preset: Preset, method: &str, rest: &str) -> crate::error::Result<crate::config::ConfigWithLocations> {
        let name = preset.name();
        RunConfig::parse(&format!(
            "model: m\ndata: d\nreward: {{model: r}}\npreset: {name}\nmethod: {{{method}}}\n{rest}"
        ))
    }

    #[test]
    fn every_preset_is_a_configuration_that_can_run() {
        let mut found = 0;
        for preset in Preset::ALL {
            for method in MethodConfig::all().iter().filter(|method| method.method().preset(preset).is_some()) {
                let written = parsed(preset, &format!("{}: ", method.name()), "").expect("it reads");
                let plan = Plan::check(&written, &Machine::detect()).expect("it can run");
                assert_ne!(plan.method(), method, "{preset:?} sets something of {}", method.name());
                assert_eq!(plan.config().preset, Some(preset));
                // The written plan, which still names the preset, reads back as the same configuration.
                let again = RunConfig::parse(&plan.to_yaml()).expect("it reads");
                assert_eq!(&again.config, plan.config());
                found += 1;
            }
        }
        assert_eq!(found, 8);
    }

    #[test]
    fn presets_set_what_they_set_before_its_place_changed() {
        let of_policies = "value_clip: clipped, target_kl_over: mini_batch, clip_jointly: true, whitening: {rewards: \
                           biased_deviation, center_rewards: true, advantages: deviation, advantages_over: mini_batch}";
        let of_others = "whitening: {rewards: biased_deviation, center_rewards: true, advantages: deviation}";
        let fine_grained = "value_clip: larger, part_size: 4, sum_parts: true, length_weights: true, lr_per_step: \
                            true, clip_jointly: true, whitening: {rewards: root_of_deviation, advantages: \
                            root_of_deviation, leak_padding: true}";
        for (preset, method, before) in [
            (Preset::Rl4lms, "ppo", of_policies.to_owned()),
            (Preset::Rl4lms, "nlpo", of_policies.to_owned()),
            (Preset::Rl4lms, "a2c", format!("{of_others}, clip_jointly: true")),
            (Preset::Rl4lms, "trpo", of_others.to_owned()),
            (Preset::FineGrained, "ppo", fine_grained.to_owned()),
        ] {
            let of_preset = parsed(preset, &format!("{method}: "), "").expect("it reads").config.method;
            let text = format!("model: m\ndata: d\nreward: {{model: r}}\nmethod: {{{method}: {{{before}}}}}\n");
            let alone = RunConfig::parse(&text).expect("it reads").config.method;
            let quirks = |config: &MethodConfig| {
                serde_json::to_value(config).expect("plain data").pointer(&format!("/{method}/quirks")).cloned()
            };
            assert_eq!(quirks(&of_preset), quirks(&alone), "{preset:?} for {method}");
            assert!(quirks(&alone).is_some(), "{method}");
        }
    }

    #[test]
    fn what_is_written_wins_over_a_preset() {
        let written = parsed(Preset::Rl4lms, "ppo: {clip_range: 0.4, kl: {target: 3}}", "train: {max_grad_norm: 2}\n")
            .expect("fine");
        let MethodConfig::Ppo(ppo) = &written.config.method else { panic!("ppo was asked for") };
        assert_eq!(
            (ppo.clip_range, ppo.advantages.kl.target, ppo.advantages.kl.rate, ppo.quirks.clip_jointly),
            (0.4, Some(3.0), Some(0.1), true)
        );
        assert_eq!((written.config.train.max_grad_norm, written.config.train.batch_size), (2.0, 28));
    }

    #[test]
    fn a_preset_that_says_nothing_of_the_method_is_refused() {
        let Err(crate::Error::Config(found)) = parsed(Preset::FineGrained, "grpo: {}", "") else { panic!("refused") };
        assert_eq!(found[0].message, "`preset` is `fine_grained`, which has no settings for `grpo`");
        assert_eq!(found[0].hint.as_deref(), Some("it has settings for `ppo`"));
    }
}

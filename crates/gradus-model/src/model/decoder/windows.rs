//! Layers whose attention is limited to a window of earlier tokens, and layers with rotary positions.

use gradus_kernels::Mask;

use super::config::DecoderConfig;

/// Layers with windows in a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// No layers (Llama, OLMo 2).
    Never,
    /// All layers, if `sliding_window` is set (Phi-3).
    Everywhere,
    /// The layers that `layer_types` lists, else those of the rule.
    ByLayer(Rule),
}

/// Rule for layers with windows if `layer_types` is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// All layers (Mistral).
    All,
    /// Layers from `max_window_layers` on, if `use_sliding_window` is set (Qwen2, Qwen3).
    Last,
    /// Layers without rotary positions, if `use_sliding_window` is set (SmolLM3).
    NoRope,
    /// All layers except every `sliding_window_pattern`-th one (Gemma 2 and 3).
    Pattern,
}

/// Layers that rotate queries and keys by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// All layers, by the same angles.
    Everywhere,
    /// The layers that `no_rope_layers` or `no_rope_layer_interval` leave (SmolLM3).
    InSomeLayers,
    /// All layers; those with a window have their own angles (Gemma 3).
    OwnInWindows,
}

impl Rule {
    /// Whether layers have windows only if `use_sliding_window` is set.
    fn has_switch(self) -> bool {
        match self {
            Self::Last | Self::NoRope => true,
            Self::All | Self::Pattern => false,
        }
    }
}

impl DecoderConfig {
    /// Returns the mask of each layer; `has_rope` marks the layers with rotary positions.
    ///
    /// # Errors
    /// When `layer_types` does not fit, or `sliding_window` is missing.
    pub(crate) fn masks(&self, windows: Windows, has_rope: &[bool]) -> Result<Vec<Mask>, String> {
        let layers = self.num_hidden_layers;
        let all = |mask| Ok(vec![mask; layers]);
        let rule = match (windows, self.sliding_window) {
            (Windows::Never, _) | (Windows::Everywhere, None) => return all(Mask::Causal),
            (Windows::Everywhere, Some(window)) => return all(Mask::CausalWindow(window)),
            (Windows::ByLayer(rule), _) => rule,
        };
        let window = self.sliding_window.filter(|_| self.use_sliding_window || !rule.has_switch());
        let Some(types) = &self.layer_types else {
            let has_window = |layer: usize| match rule {
                Rule::All => true,
                Rule::Last => layer >= self.max_window_layers,
                Rule::NoRope => !has_rope[layer],
                Rule::Pattern => !(layer + 1).is_multiple_of(self.sliding_window_pattern),
            };
            let mask = |layer| match window {
                Some(window) if has_window(layer) => Mask::CausalWindow(window),
                _ => Mask::Causal,
            };
            return Ok((0..layers).map(mask).collect());
        };
        if types.len() != layers && window.is_some() {
            return Err(format!("`layer_types` has {} entries for {layers} layers", types.len()));
        }
        let mask = |name: &String| match (name.as_str(), window) {
            ("full_attention", _) => Ok(Mask::Causal),
            ("sliding_attention", Some(window)) => Ok(Mask::CausalWindow(window)),
            ("sliding_attention", None) => {
                Err("`layer_types` has `sliding_attention`, but `sliding_window` or `use_sliding_window` is not set"
                    .into())
            }
            (other, _) => Err(format!(
                "`layer_types` has `{other}`, which is not supported (known: full_attention, sliding_attention)"
            )),
        };
        let masks: Vec<Mask> = types.iter().map(mask).collect::<Result<_, String>>()?;
        if window.is_none() { all(Mask::Causal) } else { Ok(masks) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::family::{BUILT_IN, DecoderFamily};
    use super::*;

    fn named(name: &str) -> &'static DecoderFamily {
        BUILT_IN.iter().find(|family| family.model_type == name).expect("a family")
    }

    fn masks(family: &str, more: Value) -> Result<Vec<usize>, String> {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2
        });
        let more = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(more);
        let (_, structure) = named(family).read(config.as_object().expect("an object"))?;
        let window = |mask: Mask| match mask {
            Mask::CausalWindow(window) => window.get(),
            _ => 0,
        };
        Ok(structure.layers.into_iter().map(|layer| window(layer.mask)).collect())
    }

    #[test]
    fn windows_are_where_the_family_has_them() {
        let ok = |family, more, expected: [usize; 3]| assert_eq!(masks(family, more).expect("fits"), expected);
        ok("llama", json!({ "sliding_window": 5, "use_sliding_window": true }), [0; 3]);
        // The default of transformers if the key is missing; null disables the window.
        ok("mistral", json!({}), [4096; 3]);
        ok("mistral", json!({ "sliding_window": null }), [0; 3]);
        ok("mistral", json!({ "sliding_window": 5 }), [5; 3]);
        let types = ["full_attention", "sliding_attention", "full_attention"];
        ok("mistral", json!({ "sliding_window": 5, "layer_types": types }), [0, 5, 0]);
        ok("mistral", json!({ "sliding_window": 5, "layer_types": null }), [5; 3]);
        ok("mistral", json!({ "sliding_window": null, "layer_types": vec!["full_attention"; 3] }), [0; 3]);
        ok("phi3", json!({}), [0; 3]);
        // The class of transformers does not read the key.
        ok("phi3", json!({ "sliding_window": 5, "layer_types": types }), [5; 3]);
        ok("qwen2", json!({ "sliding_window": 5, "max_window_layers": 1 }), [0; 3]);
        let on = json!({ "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1 });
        ok("qwen3", on, [0, 5, 5]);
        let types = ["sliding_attention", "full_attention", "sliding_attention"];
        let named = json!({ "use_sliding_window": true, "sliding_window": 5, "layer_types": types });
        ok("qwen3", named, [5, 0, 5]);
        ok("gemma2", json!({}), [4096, 0, 4096]);
        ok("gemma2", json!({ "sliding_window": 5, "layer_types": vec!["full_attention"; 3] }), [0; 3]);
        ok("gemma3_text", json!({ "sliding_window": 5, "sliding_window_pattern": 3 }), [5, 5, 0]);
        ok("smollm3", json!({ "sliding_window": 5 }), [0; 3]);
        let on = json!({ "use_sliding_window": true, "sliding_window": 5, "no_rope_layers": [1, 0, 1] });
        ok("smollm3", on, [0, 5, 0]);
    }

    #[test]
    fn layer_types_that_do_not_fit_are_refused() {
        let error = |more| masks("qwen3", more).expect_err("does not fit");
        let short = json!({ "use_sliding_window": true, "layer_types": ["full_attention"] });
        assert_eq!(error(short), "`layer_types` has 1 entries for 3 layers");
        let off = json!({ "sliding_window": null, "layer_types": vec!["sliding_attention"; 3] });
        assert!(error(off).contains("is not set"));
        assert!(error(json!({ "layer_types": vec!["linear_attention"; 3] })).contains("not supported"));
        let error = masks("smollm3", json!({ "no_rope_layers": [1] })).expect_err("does not fit");
        assert_eq!(error, "`no_rope_layers` has 1 entries for 3 layers");
    }
}

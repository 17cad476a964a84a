//! Layers that see a window of the tokens before them.

use gradus_kernels::Mask;

use super::llama::LlamaConfig;

/// Which layers of a family have windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None (Llama).
    Never,
    /// All, where `sliding_window` is set (Mistral).
    Everywhere,
    /// Those that `layer_types` names, or that lie beyond `max_window_layers`, where `use_sliding_window` is set (Qwen2,
    /// Qwen3).
    ByLayer,
}

impl LlamaConfig {
    /// What each layer sees.
    ///
    /// # Errors
    /// When `layer_types` does not fit, or there is no `sliding_window`.
    pub(crate) fn masks(&self, windows: Windows) -> Result<Vec<Mask>, String> {
        let layers = self.num_hidden_layers;
        let all = |mask| Ok(vec![mask; layers]);
        match (windows, self.sliding_window) {
            (Windows::Never, _) | (Windows::Everywhere, None) => return all(Mask::Causal),
            (Windows::Everywhere, Some(window)) => return all(Mask::CausalWindow(window)),
            (Windows::ByLayer, _) => {}
        }
        let window = self.sliding_window.filter(|_| self.use_sliding_window);
        let Some(types) = &self.layer_types else {
            let mask = |layer| match window {
                Some(window) if layer >= self.max_window_layers => Mask::CausalWindow(window),
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

    use super::*;

    fn masks(windows: Windows, more: Value) -> Result<Vec<usize>, String> {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2
        });
        let more = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(more);
        let config: LlamaConfig = serde_json::from_value(config).expect("a configuration");
        let window = |mask: Mask| match mask {
            Mask::CausalWindow(window) => window.get(),
            _ => 0,
        };
        Ok(config.masks(windows)?.into_iter().map(window).collect())
    }

    #[test]
    fn windows_are_where_the_family_has_them() {
        let ok = |windows, more, expected: [usize; 3]| assert_eq!(masks(windows, more).expect("fits"), expected);
        ok(Windows::Never, json!({ "sliding_window": 5, "use_sliding_window": true }), [0; 3]);
        // What transformers takes where the key is missing; null turns the window off.
        ok(Windows::Everywhere, json!({}), [4096; 3]);
        ok(Windows::Everywhere, json!({ "sliding_window": null }), [0; 3]);
        ok(Windows::Everywhere, json!({ "sliding_window": 5 }), [5; 3]);
        ok(Windows::ByLayer, json!({ "sliding_window": 5, "max_window_layers": 1 }), [0; 3]);
        let on = json!({ "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1 });
        ok(Windows::ByLayer, on, [0, 5, 5]);
        let types = ["sliding_attention", "full_attention", "sliding_attention"];
        let named = json!({ "use_sliding_window": true, "sliding_window": 5, "layer_types": types });
        ok(Windows::ByLayer, named, [5, 0, 5]);
    }

    #[test]
    fn layer_types_that_do_not_fit_are_refused() {
        let error = |more| masks(Windows::ByLayer, more).expect_err("does not fit");
        let short = json!({ "use_sliding_window": true, "layer_types": ["full_attention"] });
        assert_eq!(error(short), "`layer_types` has 1 entries for 3 layers");
        assert!(error(json!({ "layer_types": vec!["sliding_attention"; 3] })).contains("is not set"));
        assert!(error(json!({ "layer_types": vec!["linear_attention"; 3] })).contains("not supported"));
    }
}

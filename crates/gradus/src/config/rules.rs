//! Rules that types cannot express: limits of single keys, and combinations of keys.

use super::RunConfig;
use super::config_with_locations::ConfigWithLocations;
use super::method::{MethodConfig, names};
use super::{preset, registry};
use crate::data::Need;
use crate::device;
use crate::evaluation::own_names;
use crate::machine::Machine;
use crate::method::{Problem, Problems};
use crate::metric::MetricConfig;
use crate::model::Precision;
use crate::plugin;
use crate::settings::{EnvironmentConfig, MomentFormat, OptimizerName, STEPS_MAX, TrainConfig};
use crate::task::{DataConfig, TaskConfig};

mod adapter;
mod reference;
mod rewards;
mod rollouts;
mod schedule;

pub(super) use rewards::check_reward;

/// Returns every problem, in the order of the configuration.
pub(super) fn check(written: &ConfigWithLocations, machine: &Machine) -> Vec<Problem> {
    let location = |key: &str| written.location(key).cloned();
    let mut problems = Problems::new(&location);
    let config = &written.config;
    problems.require(!config.model.trim().is_empty(), &["model"], || ("`model` is empty".into(), None));
    data(&mut problems, config);
    let has_name = config.output_dir.as_ref().is_none_or(|path| !path.as_os_str().is_empty());
    problems.require(has_name, &["output_dir"], || {
        (
            "`output_dir` is empty".into(),
            Some("name a directory, or leave it out for the next free one below `runs`".into()),
        )
    });
    config.method.method().rules(&mut problems, &config.train);
    rewards::check(&mut problems, config);
    adapter::check(&mut problems, config);
    reference::check(&mut problems, config);
    episodes(&mut problems, config);
    rollouts::check(&mut problems, config);
    train(&mut problems, config, machine);
    evaluation(&mut problems, config, !written.is_default("train.best_metric"));
    plugins(&mut problems, config);
    problems.into_problems()
}

/// Checks that environments and tools are used with methods that sample.
fn episodes(problems: &mut Problems<'_>, config: &RunConfig) {
    let method = config.method.name();
    let keys = [("environment", config.environment.is_some()), ("tools", !config.tools.is_empty())];
    let given: Vec<&str> = keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect();
    for &key in &given {
        problems.require(config.method.is_online(), &[key], || {
            let message =
                format!("`{key}` is given, but `{method}` samples no completions for an environment to answer");
            (message, Some(format!("leave it out, or use {}", names("or", MethodConfig::is_online))))
        });
    }
    let evaluates = config.train.eval_steps >= 0 || config.test_data.is_some();
    let searches = evaluates && config.train.evaluation.beams.is_some();
    let places = [&["train.evaluation.beams"][..], &given[..]].concat();
    problems.require(!searches || given.is_empty(), &places, || {
        let episodes = given.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ");
        let message = format!("`train.evaluation.beams` is given, but beam search cannot be used with {episodes}");
        let hint = "leave `beams` out; `train.evaluation.temperature: 0` takes the most likely token";
        (message, Some(hint.into()))
    });
    if let Some(EnvironmentConfig::Guess(guess)) = &config.environment {
        let [low, high] = ["environment.guess.low", "environment.guess.high"];
        problems.require(guess.low < guess.high, &[low, high], || {
            (format!("`{low}` is {} and `{high}` is {}, but `high` must be above `low`", guess.low, guess.high), None)
        });
    }
    problems.at_least("episode.max_turns", config.episode.max_turns, 1);
    problems.at_least("episode.at_once", config.episode.at_once, 1);
    let of_environment = match &config.environment {
        Some(EnvironmentConfig::Command(program)) => Some(("environment.command.timeout_s", program.timeout_s)),
        Some(EnvironmentConfig::Openenv(server)) => Some(("environment.openenv.timeout_s", server.timeout_s)),
        Some(EnvironmentConfig::Verifiers(server)) => Some(("environment.verifiers.timeout_s", server.timeout_s)),
        _ => None,
    };
    let of_episode = config.episode.max_time_s.map(|seconds| ("episode.max_time_s", seconds));
    let seconds = [Some(("episode.timeout_s", config.episode.timeout_s)), of_episode, of_environment];
    for (key, seconds) in seconds.into_iter().flatten() {
        problems.above_zero(key, seconds);
        problems.require(seconds < 1e6, &[key], || (format!("`{key}` is {seconds}, but must be below 1000000"), None));
    }
    problems.require(config.episode.reward_weight.is_finite(), &["episode.reward_weight"], || {
        (format!("`episode.reward_weight` is {}, but must be a finite number", config.episode.reward_weight), None)
    });
}

/// Checks that every plug-in has a constructor.
fn plugins(problems: &mut Problems<'_>, config: &RunConfig) {
    registry::plugins(&mut config.clone(), &mut |plugin, key| {
        if let Some(message) = plugin.unbound() {
            problems.require(false, &[key], || (format!("`{key}`: {message}"), Some(plugin::HINT.into())));
        }
    });
}

fn data(problems: &mut Problems<'_>, config: &RunConfig) {
    let named = |data: &DataConfig| data.from.as_ref().is_none_or(|from| !from.trim().is_empty());
    let given = config.data.from.is_some() || config.data.task.is_some();
    let sources = [("data".to_owned(), &config.data)].into_iter();
    let sources =
        sources.chain(config.mix.iter().enumerate().map(|(i, mixed)| (format!("mix[{i}].data"), &mixed.data)));
    let separate = [("eval_data", &config.eval_data), ("test_data", &config.test_data)];
    let separate = separate.into_iter().filter_map(|(key, data)| Some((key, data.as_ref()?)));
    let sources: Vec<_> = sources.chain(separate.clone().map(|(key, data)| (key.to_owned(), data))).collect();
    for (key, data) in &sources {
        if let Some(Err(error)) = data.task.as_ref().map(TaskConfig::check) {
            let key = format!("{key}.task");
            problems.require(false, &[&key], || (format!("`{key}`: {error}"), None));
        }
    }
    for (i, mixed) in config.mix.iter().enumerate() {
        let key = format!("mix[{i}].data");
        let given = mixed.data.from.is_some() || mixed.data.task.is_some();
        problems.require(given && named(&mixed.data), &[&key], || (format!("`{key}` is empty"), None));
        problems.at_least(&format!("mix[{i}].max_rows"), mixed.max_rows.unwrap_or(1), 1);
    }
    problems.require(given && named(&config.data), &["data", "data.task"], || ("`data` is empty".into(), None));
    for (key, data) in separate {
        let given = data.from.is_some() || data.task.is_some() || config.data.task.is_some();
        problems.require(given && named(data), &[key, &format!("{key}.task"), "data.task"], || {
            (format!("`{key}` is empty"), None)
        });
    }
    let method = config.method.method();
    let fits = method.need().takes_tasks();
    for (key, data) in &sources {
        let key = format!("{key}.task");
        problems.require(fits || data.task.is_none(), &[&key, "method"], || {
            let message = format!(
                "`{key}` has prompts and references, but `{}` trains on {}",
                method.name(),
                if method.need() == Need::Preference { "pairs" } else { "rows with labels" }
            );
            (
                message,
                Some(format!("a task can be used with {}", names("or", |other| other.method().need().takes_tasks()))),
            )
        });
    }
}

fn train(problems: &mut Problems<'_>, config: &RunConfig, machine: &Machine) {
    let train = &config.train;
    problems.above_zero("train.epochs", train.epochs);
    problems.at_most("train.epochs", train.epochs, STEPS_MAX as f64);
    if let Some(steps) = train.max_steps {
        problems.at_least("train.max_steps", steps, 1);
        problems.require(train.warmup_steps <= steps as f64, &["train.warmup_steps", "train.max_steps"], || {
            let message =
                format!("`train.warmup_steps` ({}) is more than `train.max_steps` ({steps})", train.warmup_steps);
            (message, Some("below 1 it is a fraction of all steps: 0.1 warms up for a tenth of the run".into()))
        });
    }
    problems.at_least("train.batch_size", train.batch_size, 1);
    for (key, value) in [
        ("train.micro_batch_size", train.micro_batch_size),
        ("train.max_rows", train.max_rows),
        ("train.eval_sample", train.eval_sample),
        ("train.max_prompt_length", train.max_prompt_length),
    ] {
        problems.at_least(key, value.unwrap_or(1), 1);
    }
    let bounded = train.max_rows.is_some() || !train.max_rows_at_random;
    problems.require(bounded, &["train.max_rows_at_random"], || {
        let message = "`train.max_rows_at_random` is true, but `train.max_rows` is not given: all rows are used";
        (message.into(), Some("set the number of rows with `train.max_rows`".into()))
    });
    problems.at_least("train.threads", train.threads.unwrap_or(1), 1);
    problems.at_least("train.micro_batch_tokens", train.micro_batch_tokens, 1);
    let lanes = train.lanes.unwrap_or(1);
    problems.require(lanes.is_power_of_two(), &["train.lanes"], || {
        let message =
            format!("`train.lanes` is {lanes}, but must be a power of two: parts are added up in a binary tree");
        (message, Some(format!("use {}", lanes.max(1).next_power_of_two())))
    });
    problems.at_least("train.learning_rate", train.learning_rate.unwrap_or(0.0), 0.0);
    problems.at_least("train.warmup_steps", train.warmup_steps, 0.0);
    schedule::check(problems, config);
    problems.at_least("train.weight_decay", train.weight_decay, 0.0);
    for (i, beta) in train.adam_betas.into_iter().enumerate() {
        problems.zero_to_below(&format!("train.adam_betas[{i}]"), beta, 1.0);
    }
    problems.above_zero("train.adam_epsilon", train.adam_epsilon);
    problems.zero_to_below("train.rmsprop_alpha", train.rmsprop_alpha, 1.0);
    problems.above_zero("train.rmsprop_epsilon", train.rmsprop_epsilon);
    let holds = train.moments == MomentFormat::F32 || train.optimizer == OptimizerName::AdamW;
    problems.require(holds, &["train.moments", "train.optimizer"], || {
        let message =
            "`train.moments` is `int8`, but the optimizer is `rmsprop`: only `adamw` stores its moments in eight bits";
        (message.into(), Some("leave `train.moments` out, or set `train.optimizer: adamw`".into()))
    });
    unread(problems, config);
    problems.at_least("train.max_grad_norm", train.max_grad_norm, 0.0);
    problems.require(train.max_length >= 2, &["train.max_length"], || {
        let reason = "the first token of a row is never predicted";
        (format!("`train.max_length` is {}, but must be at least 2: {reason}", train.max_length), None)
    });
    if let Err(message) = train.renames() {
        problems.require(false, &["train.column"], || {
            (message, Some("write the name in gradus first, then your column".into()))
        });
    }
    let says = train.system_prompt.as_ref().is_none_or(|text| !text.trim().is_empty());
    problems.require(says, &["train.system_prompt"], || ("`train.system_prompt` is empty".into(), None));
    problems.at_least("train.priority_scale", train.priority_scale.unwrap_or(0.0), 0.0);
    let samples = train.priority_scale.is_none() || config.method.is_online();
    problems.require(samples, &["train.priority_scale"], || {
        let message = format!("`train.priority_scale` is given, but `{}` samples no completions", config.method.name());
        (message, Some("leave it out: each row is used once per epoch".into()))
    });
    problems.at_least("train.keep_checkpoints", train.keep_checkpoints, 1);
    problems.at_least("train.logging_steps", train.logging_steps, 1);
    device(problems, train, machine);
}

/// Checks that something reads the keys that are given. A preset may set a key whose reader other keys replace.
fn unread(problems: &mut Problems<'_>, config: &RunConfig) {
    let written = serde_json::to_value(config).expect("a configuration is plain data");
    let of_preset = config.preset.and_then(|name| preset::tree(name, &config.method)).map(|tree| tree.to_json());
    let of_preset = of_preset.unwrap_or_default();
    let pointer = |key: &str| format!("/{}", key.replace('.', "/"));
    let value = |key: &str| written.pointer(&pointer(key)).filter(|value| !value.is_null());
    let is_of_preset = |key: &str| of_preset.pointer(&pointer(key)).is_some_and(|preset| value(key) == Some(preset));
    let [rate, target] = ["rate", "target"].map(|name| format!("method.{}.kl.{name}", config.method.name()));
    let is_read = value(&rate).is_none() || value(&target).is_some() || is_of_preset(&rate);
    problems.require(is_read, &[&rate, &target], || {
        let message = format!("`{rate}` is given, but without `target` the coefficient is fixed");
        (message, Some("leave it out, or set a `target`".into()))
    });
    let method = config.method.name();
    let usual = serde_json::json!({ "method": MethodConfig::named(method), "train": TrainConfig::default() });
    let key = |name: &str| if name.starts_with("train.") { name.to_owned() } else { format!("method.{method}.{name}") };
    let set = |name: &str| value(&key(name)).is_some_and(|value| *value != false);
    let is = |name: &str, word: &str| value(&key(name)).is_some_and(|value| value == word);
    let several = value(&key("mini_batches")).and_then(serde_json::Value::as_u64).is_some_and(|count| count > 1);
    // Imported files keep the number of iterations for those who set `mask_update: periodic`.
    let is_updated = is("mask_update", "periodic") || is_of_preset(&key("mask_update"));
    let [rewards, advantages] = ["whiten_rewards", "whiten_advantages"];
    let [optimizer, sync] = ["train.optimizer", "train.sync_ref_model"];
    let [adamw, rmsprop] = [OptimizerName::AdamW, OptimizerName::RmsProp].map(|name| config.train.optimizer == name);
    // Keys that are read only if another key is set, or has a certain value. A method without a key has no value of it.
    for (name, other, is_read, reader, remedy) in [
        ("train.adam_betas", optimizer, adamw, "`adamw`", "set `train.optimizer: adamw`"),
        ("train.adam_epsilon", optimizer, adamw, "`adamw`", "set `train.optimizer: adamw`"),
        ("train.rmsprop_alpha", optimizer, rmsprop, "`rmsprop`", "set `train.optimizer: rmsprop`"),
        ("train.rmsprop_epsilon", optimizer, rmsprop, "`rmsprop`", "set `train.optimizer: rmsprop`"),
        ("train.ref_model_mixup_alpha", sync, set(sync), "`sync_ref_model: true`", "set it"),
        ("train.ref_model_sync_steps", sync, set(sync), "`sync_ref_model: true`", "set it"),
        ("kl.stop_after", "kl.stop_above", set("kl.stop_above"), "`stop_above`", "set it"),
        ("quirks.target_kl_over", "target_kl", set("target_kl"), "`target_kl`", "set it"),
        ("quirks.sum_parts", "quirks.part_size", set("quirks.part_size"), "`part_size`", "set it"),
        (
            "quirks.length_weights",
            "quirks.part_size",
            set("quirks.part_size") || several,
            "`part_size` or `mini_batches` above 1",
            "set one of them",
        ),
        ("quirks.whitening.rewards", rewards, set(rewards), "`whiten_rewards`", "set it"),
        ("quirks.whitening.center_rewards", rewards, set(rewards), "`whiten_rewards`", "set it"),
        ("quirks.whitening.advantages", advantages, set(advantages), "`whiten_advantages`", "set it"),
        ("quirks.whitening.advantages_over", advantages, set(advantages), "`whiten_advantages`", "set it"),
        ("top_p", "top_k", !set("top_k"), "a mask without `top_k`", "leave out `top_k`"),
        ("mask_update", "mask_model", is("mask_model", "lagged"), "`mask_model: lagged`", "use it"),
        ("mask_update_iterations", "mask_model", is("mask_model", "lagged"), "`mask_model: lagged`", "use it"),
        ("mask_update_iterations", "mask_update", is_updated, "`mask_update: periodic`", "use it"),
    ] {
        let (name, other) = (key(name), key(other));
        let of_default = usual.pointer(&pointer(&name)).filter(|value| !value.is_null());
        let is_valid = is_read || value(&name) == of_default || is_of_preset(&name);
        problems.only_read_by(is_valid, &[&name, &other], reader, remedy);
    }
}

/// Checks that the device exists and supports the requested formats.
fn device(problems: &mut Problems<'_>, train: &TrainConfig, machine: &Machine) {
    let device = device::canonical(&train.device);
    let is_here = device.as_ref().is_some_and(|name| machine.devices.contains(name));
    problems.require(is_here, &["train.device"], || {
        let known: Vec<_> = machine.devices.iter().map(|device| format!("`{device}`")).collect();
        let message = format!("`train.device` is `{}`, but this build finds {}", train.device, known.join(", "));
        (message, Some(device::suggestion()))
    });
    // Frozen weights keep their format on any device; a GPU expands one matrix for each product.
    let multiplies = device.is_some_and(|name| machine.bf16_devices.contains(&name));
    let computes = !is_here || train.compute == Precision::F32 || multiplies;
    problems.require(computes, &["train.compute", "train.device"], || {
        let message = device::no_compute("`train.compute`", train.compute.name(), &train.device);
        (message, Some(device::NO_COMPUTE_HINT.into()))
    });
}

/// Checks how evaluations complete prompts.
fn completions(problems: &mut Problems<'_>, config: &RunConfig) {
    let (evaluation, max_length) = (&config.train.evaluation, config.train.max_length);
    let key = |name: &str| format!("train.evaluation.{name}");
    problems.at_least(&key("temperature"), evaluation.temperature.unwrap_or(0.0), 0.0);
    let top_p = evaluation.top_p.unwrap_or(1.0);
    for (name, p) in [("top_p", top_p), ("typical_p", evaluation.typical_p.unwrap_or(1.0))] {
        problems.require(p > 0.0 && p <= 1.0, &[&key(name)], || {
            (format!("`{}` is {p}, but must be above 0 and at most 1", key(name)), None)
        });
    }
    problems.above_zero(&key("repetition_penalty"), evaluation.repetition_penalty.unwrap_or(1.0));
    if let Some(new) = evaluation.max_new_tokens {
        problems.at_least(&key("max_new_tokens"), new, 1);
        problems.require(new < max_length, &[&key("max_new_tokens"), "train.max_length"], || {
            let message =
                format!("`{}` is {new}, but `train.max_length` is {max_length}: no prompt fits", key("max_new_tokens"));
            (message, Some(format!("raise `train.max_length` above {new}")))
        });
        let least = evaluation.min_new_tokens.unwrap_or(0);
        problems.require(least <= new, &[&key("min_new_tokens"), &key("max_new_tokens")], || {
            (format!("`{}` is {least}, but `{}` is {new}", key("min_new_tokens"), key("max_new_tokens")), None)
        });
    }
    if let Some(beams) = &evaluation.beams {
        let key = key("beams.num_beams");
        problems.require(beams.num_beams >= 2, &[&key], || {
            let message = format!("`{key}` is {}, but beam search needs at least 2", beams.num_beams);
            (message, Some("leave `beams` out to sample in evaluations".into()))
        });
        let groups = ["beams.num_beams", "beams.num_beam_groups", "beams.diversity_penalty", "temperature"]
            .map(|name| format!("train.evaluation.{name}"));
        let places: Vec<&str> = groups.iter().map(String::as_str).collect();
        if let Err(error) = evaluation.check_groups() {
            problems.require(false, &places, || {
                (format!("`train.evaluation.beams`: {error}"), error.hint().map(str::to_owned))
            });
        }
        let samples = evaluation.samples();
        problems.require(samples <= beams.num_beams, &["train.evaluation.samples", &key], || {
            let message = format!("`train.evaluation.samples` is {samples}, but `{key}` is {}", beams.num_beams);
            (message, Some("beam search returns at most one completion per beam".into()))
        });
    }
    let makes_policy = config.method.makes_policy();
    problems.require(evaluation.metrics.is_empty() || makes_policy, &[&key("metrics"), "method"], || {
        (format!("`{}` is given, but the method does not train a model that writes completions", key("metrics")), None)
    });
    for (i, metric) in evaluation.metrics.iter().enumerate() {
        let key = key(&format!("metrics[{i}]"));
        if matches!(metric, MetricConfig::Plugin(_)) {
            continue; // checked with all plug-ins
        }
        if let Err(error) = metric.check_alone() {
            problems.require(false, &[&key], || (format!("`{key}`: {error}"), None));
        }
        let name = metric.name();
        problems.require(!own_names(config.method.is_online()).contains(&name.as_str()), &[&key], || {
            let message = format!("`{key}` has the name `{name}`, but this is the name of a value of every evaluation");
            (message, Some("give it another `name`".into()))
        });
    }
}

/// Checks evaluations; `asks_best` is whether the user set `train.best_metric`.
fn evaluation(problems: &mut Problems<'_>, config: &RunConfig, asks_best: bool) {
    let train = &config.train;
    completions(problems, config);
    problems.zero_to_below("train.eval_fraction", train.eval_fraction, 1.0);
    problems.at_least("train.eval_steps", train.eval_steps, -1);
    let nothing_held_out = config.held_out().is_none() && train.eval_fraction == 0.0;
    problems.require(train.eval_steps <= 0 || !nothing_held_out, &["train.eval_steps", "train.eval_fraction"], || {
        let message = format!(
            "`train.eval_steps` is {}, but there is nothing to evaluate on: `train.eval_fraction` is 0 and `eval_data` is not given",
            train.eval_steps
        );
        (message, Some("give `eval_data` or a fraction such as 0.05, or set `train.eval_steps` to -1".into()))
    });
    problems.only_read_by(
        train.eval_delay == 0 || train.eval_steps > 0,
        &["train.eval_delay", "train.eval_steps"],
        "`train.eval_steps` above 0",
        "set it",
    );
    let patience = train.early_stopping_patience;
    problems.require(
        patience == 0 || train.eval_steps > 0,
        &["train.early_stopping_patience", "train.eval_steps"],
        || {
            let message = format!(
                "`train.early_stopping_patience` is {patience}, but `train.eval_steps` is {}: nothing is evaluated during training",
                train.eval_steps
            );
            (message, Some("set `train.eval_steps` to the steps between evaluations".into()))
        },
    );
    if let Some(metric) = &train.best_metric {
        problems.require(metric.starts_with("eval_"), &["train.best_metric"], || {
            let message = format!("`train.best_metric` is `{metric}`, but must be a held-out metric");
            (message, Some(format!("held-out metrics start with `eval_`, such as `eval_{metric}`")))
        });
        problems.require(train.eval_steps >= 0 || !asks_best, &["train.best_metric", "train.eval_steps"], || {
            ("`train.best_metric` is given, but `train.eval_steps` is -1: nothing is evaluated".into(), None)
        });
    }
}

//! Rewards and metrics of RL4LMs' files.

use serde_json::{Map, Value as Json, json};

use super::super::{Original, YamlBuilder};
use crate::error::Diagnostic;

/// RL4LMs' default prompt prefix for CommonGen.
const REPEATED: &str = "generate a sentence with: ";
/// Classifier that is hard-coded in the original.
const INTENTS: &str = "rajkumarrrk/roberta-daily-dialog-intent-classifier";
/// Tasks whose references are German.
const GERMAN: [&str; 3] = ["iwslt2017en_de", "wmt14_processed_en_de", "wmt16newsonly"];
/// Path of CommonGen's preference model, which is not published as a model directory.
const PREFERENCES: &str = "models/t5-11b-commongen-preferences";
/// Command of the SPICE authors' program.
const SPICE: [&str; 4] = ["java", "-Xmx8G", "-jar", "spice-1.0.jar"];

/// Options of `py-rouge` that are converted, and `max_n`, which ROUGE-L does not read.
const PY_ROUGE: &[&str] =
    &["limit_length", "length_limit", "length_limit_type", "stemming", "alpha", "weight_factor", "max_n"];

/// Returns the arguments without which RL4LMs cannot create a reward or metric.
fn required_arguments(id: &str) -> &'static [&'static str] {
    match id {
        "increasing_numbers" => &["min_tokens"],
        "learned_reward" => &["model_name", "label_ix"],
        _ => &[],
    }
}

/// Rejects a reward or metric without an argument that it requires. `place` is the path of its arguments.
fn check_arguments(from: &Original, id: &str, place: &str) {
    for key in required_arguments(id) {
        let path = format!("{place}.{key}");
        if from.node(&path).is_none() {
            from.reject(&path, format!("`{path}` is missing, but `{id}` needs it"));
        }
    }
}

/// Returns the label of a classifier, which RL4LMs gives by its index. `place` is the path of the arguments.
fn label(from: &Original, place: &str) -> Json {
    from.count(&format!("{place}.label_ix")).map(|index| index.to_string()).into()
}

/// Returns the arguments of a reward that are converted, besides `shaping_fn`; `None` if all are passed on.
fn arguments_of_reward(id: &str) -> Option<&'static [&'static str]> {
    let known: &[&str] = match id {
        "bleu" | "sacre_bleu" | "ter" | "chrf" => return None,
        "increasing_numbers" => &["min_tokens"],
        "rouge" => &["rouge_type", "use_single_ref"],
        "rouge_l_max" => PY_ROUGE,
        "learned_reward" => &["model_name", "label_ix", "include_prompt_for_eval"],
        "spider" => &["cider_coeff", "spice_coeff"],
        "bert_score" => &["language"],
        "bleurt" => &["config_name", "checkpoint"],
        "intent_accuracy" => &["shape", "intent_coeff", "auto_coeff"],
        "common_gen_preference_model" => &["concept_penalty_coeff", "meteor_coeff"],
        _ => &[],
    };
    Some(known)
}

/// Returns the arguments of a metric that are converted or change no result; `None` if all are passed on.
fn arguments_of_metric(id: &str) -> Option<&'static [&'static str]> {
    let known: &[&str] = match id {
        "diversity" | "bleu" | "sacre_bleu" | "ter" | "chrf" | "parent_totto" | "bleu_totto" | "dates"
        | "increasing_numbers" => return None,
        "rouge" => &["use_single_ref"],
        "rouge_l_max" => PY_ROUGE,
        "bert_score" => &["language"],
        "bleurt" => &["config_name", "checkpoint"],
        "learned_reward" => &["model_name", "label_ix", "include_prompt_for_eval", "batch_size"],
        // The perplexity is that of the trained model, with its own tokenizer.
        "causal_perplexity" => &["stride", "use_text_from_meta_data", "tokenizer_id", "model_type"],
        "summaCConv" => &["models", "bins", "granularity", "nli_labels", "agg", "start_file", "device"],
        "summaCZS" => &["model_name", "granularity", "op1", "op2", "use_ent", "use_con", "device"],
        _ => &[],
    };
    Some(known)
}

/// Converts a reward of RL4LMs with the arguments at `place`; `None` if there is no counterpart.
fn named_reward(from: &Original, id: &str, place: &str, args: &Map<String, Json>) -> Option<Json> {
    let given = |key: &str| args.get(key).cloned().unwrap_or_default();
    let metric = |name: &str, keys: Json| Some(json!({ "metric": { name: keys } }));
    let mut plain = args.clone();
    plain.shift_remove("shaping_fn");
    match id {
        "increasing_numbers" => {
            plain.retain(|key, _| key == "min_tokens");
            metric("increasing_numbers", json!(plain))
        }
        "sentences_with_dates" => metric("dates", json!({})),
        "meteor" => metric("meteor", json!({ "references": "repr" })),
        "rouge" => {
            let first = given("use_single_ref") != json!(false);
            metric(
                "rouge",
                json!({ "rouge_type": given("rouge_type"), "references": if first { "first" } else { "repr" } }),
            )
        }
        "rouge_combined" => metric("rouge", json!({ "references": "first" })),
        "bleu" | "sacre_bleu" | "ter" | "chrf" => metric(id, json!(plain)),
        "rouge_l_max" => metric("rouge_l_max", json!(py_rouge(from, "reward_fn", &plain))),
        "parent" => metric("parent_totto", json!({})),
        "common_gen_repeat_penalty" | "common_gen_repeat_penalty_batched" => {
            Some(json!({ "rule": { "repeat_penalty": REPEATED } }))
        }
        "learned_reward" => {
            let mut keys = json!({ "model": given("model_name"), "truncate": "left" });
            keys["label"] = label(from, place);
            if given("include_prompt_for_eval") == json!(false) {
                keys["text"] = "{completion}".into();
            }
            Some(json!({ "classifier": keys }))
        }
        "spider" => spider(from, args),
        "bert_score" => metric("bert_score", bert_score(args)),
        "bleurt" => metric("bleurt", bleurt(args)),
        "intent_accuracy" => Some(intent_accuracy(from, args)),
        "common_gen_preference_model" => Some(common_gen_preference(from, args)),
        _ => None,
    }
}

/// Returns a coefficient that is not 0.
fn coefficient(args: &Map<String, Json>, key: &str) -> Option<f64> {
    args.get(key).and_then(Json::as_f64).filter(|coefficient| *coefficient != 0.0)
}

/// Converts the sum of CIDEr and SPICE; `None` if neither counts.
fn spider(from: &Original, args: &Map<String, Json>) -> Option<Json> {
    let cider = coefficient(args, "cider_coeff")
        .map(|weight| json!({ "weight": weight, "reward": { "metric": { "cider": captions() } } }));
    let spice = coefficient(args, "spice_coeff").map(|weight| {
        from.note(
            "reward_fn.args",
            "SPICE is computed by its authors' program: put `spice-1.0.jar` into the working directory of the \
             run, or change `program`",
        );
        let mut options = captions();
        options["program"] = json!(SPICE);
        json!({ "weight": weight, "reward": { "metric": { "spice": options } } })
    });
    let parts: Vec<Json> = [spice, cider].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| json!({ "mix": parts }))
}

/// Converts the accuracy of intents, and the METEOR that shapes it.
fn intent_accuracy(from: &Original, args: &Map<String, Json>) -> Json {
    let weight = |key: &str| args.get(key).and_then(Json::as_f64).unwrap_or(1.0);
    let part = |key: &str, metric: Json| json!({ "weight": weight(key), "reward": { "metric": metric } });
    let mut parts = vec![part("intent_coeff", json!({ "intent_accuracy": { "model": INTENTS } }))];
    if args.get("shape") != Some(&json!(false)) {
        let mut shaping = part("auto_coeff", json!({ "meteor": { "references": "repr" } }));
        // METEOR is the mean over all samples of a batch of environments so far, including this one.
        shaping["running_mean_over"] = from.some("env.n_envs").unwrap_or(1).into();
        parts.push(shaping);
    }
    json!({ "mix": parts })
}

/// Converts the preference model of CommonGen, and the METEOR that may be added to it.
fn common_gen_preference(from: &Original, args: &Map<String, Json>) -> Json {
    from.note(
        "reward_fn.id",
        format!(
            "in RL4LMs, `common_gen_preference_model` downloads the weights of a T5 (its default has eleven \
             billion parameters, and computes in f32); in gradus, `{PREFERENCES}` must be a model directory \
             with them (docs/metrics.md describes how to create it)"
        ),
    );
    let mut keys = json!({ "model": PREFERENCES });
    if let Some(penalty) = coefficient(args, "concept_penalty_coeff") {
        keys["concept_penalty"] = penalty.into();
    }
    let preference = json!({ "metric": { "common_gen_preference": keys } });
    match coefficient(args, "meteor_coeff") {
        None => preference,
        Some(weight) => json!({ "mix": [
            { "weight": 1, "reward": preference },
            { "weight": weight, "reward": { "metric": { "meteor": { "references": "repr" } } } },
        ] }),
    }
}

/// Returns the options of CIDEr and SPICE: the words are spaCy's, and rows of one prompt count as one.
fn captions() -> Json {
    json!({ "keyed_by": "prompt", "tokenizer": "spacy" })
}

/// Returns the options of `py-rouge` that also exist here. The others have its defaults. `place` is the path of the metric or reward.
fn py_rouge(from: &Original, place: &str, args: &Map<String, Json>) -> Map<String, Json> {
    if args.get("stemming") != Some(&json!(false)) {
        from.note(
            place,
            "`rouge_l_max` stems words with tables of `py-rouge`, which gradus does not include: for equal values, set \
             `tables` to the directory of `py-rouge` (docs/metrics.md)",
        );
    }
    args.iter()
        .filter(|(key, _)| *key != "max_n" && PY_ROUGE.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns the encoder that `bert-score` uses for a language.
fn bert_score(args: &Map<String, Json>) -> Json {
    let model = match args.get("language").and_then(Json::as_str).unwrap_or("en") {
        "en" => "FacebookAI/roberta-large",
        "zh" => "google-bert/bert-base-chinese",
        "tr" => "dbmdz/bert-base-turkish-cased",
        _ => "google-bert/bert-base-multilingual-cased",
    };
    json!({ "model": model })
}

/// Returns options for BLEURT: the checkpoint that is published for PyTorch. The original reads references as one text.
fn bleurt(args: &Map<String, Json>) -> Json {
    let name = ["config_name", "checkpoint"].into_iter().find_map(|key| args.get(key).and_then(Json::as_str));
    let name = name.unwrap_or("bleurt-base-128");
    let mut options = json!({ "model": format!("Elron/{name}"), "references": "repr" });
    // It was trained with this many ids, fewer than the model has positions.
    if let Some(longest) = name.rsplit('-').next().and_then(|last| last.parse::<usize>().ok()) {
        options["max_length"] = longest.into();
    }
    options
}

/// Returns the options of the metric `learned_reward`. `place` is the path of its arguments.
fn learned_reward(from: &Original, place: &str, args: &Map<String, Json>) -> Json {
    let given = |key: &str| args.get(key).cloned().unwrap_or_default();
    let mut options = json!({ "model": given("model_name"), "label": label(from, place) });
    if given("include_prompt_for_eval") == json!(false) {
        options["include_prompt"] = false.into();
    }
    json!({ "learned_reward": options })
}

/// Natural language inference models of `summac`, with the numbers of their labels for entailment and contradiction.
const INFERENCE: [(&str, &str, u8, u8); 8] = [
    ("snli-base", "boychaboy/SNLI_roberta-base", 0, 2),
    ("snli-large", "boychaboy/SNLI_roberta-large", 0, 2),
    ("mnli-base", "microsoft/deberta-base-mnli", 2, 0),
    ("mnli", "FacebookAI/roberta-large-mnli", 2, 0),
    ("anli", "ynie/roberta-large-snli_mnli_fever_anli_R1_R2_R3-nli", 0, 2),
    ("vitc-base", "tals/albert-base-vitaminc-mnli", 0, 1),
    ("vitc", "tals/albert-xlarge-vitaminc-mnli", 0, 1),
    ("vitc-only", "tals/albert-xlarge-vitaminc", 0, 1),
];

/// Granularities in `summac`.
const GRANULARITIES: [&str; 5] = ["document", "paragraph", "sentence", "2sents", "mixed"];

/// Returns the options of `summac_conv`; `None` if a model, the bins or the granularity is unknown.
fn summac_conv(args: &Map<String, Json>) -> Option<Json> {
    let given = |key: &str| args.get(key).and_then(Json::as_str);
    let names: Vec<&str> = match args.get("models") {
        Some(models) => models.as_array()?.iter().map(Json::as_str).collect::<Option<_>>()?,
        None => vec!["mnli", "anli", "vitc"],
    };
    let judge = |name: &&str| {
        let (_, model, entailment, contradiction) = INFERENCE.into_iter().find(|(known, ..)| known == name)?;
        Some(
            json!({ "model": model, "entailment": entailment.to_string(), "contradiction": contradiction.to_string() }),
        )
    };
    let mut judges = names.iter().map(judge).collect::<Option<Vec<Json>>>()?.into_iter();
    let mut options = judges.next()?;
    let more: Vec<Json> = judges.collect();
    if !more.is_empty() {
        options["more_models"] = more.into();
    }
    let (bins, file) = (given("bins").unwrap_or("even50"), given("start_file")?);
    if !["even50", "percentile"].contains(&bins) {
        return None;
    }
    options["bins"] = bins.into();
    // `default` means the file that `summac` downloads.
    options["weights"] = if file == "default" { "summac_conv_vitc_sent_perc_e.bin" } else { file }.into();
    for (key, usual) in [("granularity", "sentence"), ("nli_labels", "e"), ("agg", "mean")] {
        options[key] = given(key).unwrap_or(usual).into();
    }
    GRANULARITIES.contains(&options["granularity"].as_str()?).then_some(options)
}

/// Returns the options of `summac_zs`; `None` if the model or the granularity is unknown.
fn summac_zs(args: &Map<String, Json>) -> Option<Json> {
    let name = args.get("model_name").and_then(Json::as_str).unwrap_or("mnli");
    let (_, model, entailment, contradiction) = INFERENCE.into_iter().find(|(known, ..)| *known == name)?;
    let mut options = json!({
        "model": model, "entailment": entailment.to_string(), "contradiction": contradiction.to_string(),
    });
    let granularity = args.get("granularity").and_then(Json::as_str).unwrap_or("paragraph");
    let known = |part: &str| GRANULARITIES.contains(&part);
    let (of_document, of_summary) = granularity.split_once('-').unwrap_or((granularity, granularity));
    if !known(of_document) || !known(of_summary) {
        return None;
    }
    options["granularity"] = of_document.into();
    if of_summary != of_document {
        options["summary_granularity"] = of_summary.into();
    }
    for key in ["op1", "op2", "use_ent", "use_con"] {
        if let Some(value) = args.get(key) {
            options[key] = value.clone();
        }
    }
    Some(options)
}

pub(super) fn reward(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let id = from.text("reward_fn.id").ok_or_else(|| Original::missing("reward_fn.id"))?;
    let place = "reward_fn.args";
    let args = match from.glance(place) {
        Some(Json::Object(args)) => args,
        _ => Map::new(),
    };
    match arguments_of_reward(&id) {
        Some(known) => {
            from.see_all(&format!("{place}.shaping_fn"));
            known.iter().for_each(|key| from.see_all(&format!("{place}.{key}")));
        }
        None => from.see_all(place),
    }
    check_arguments(from, &id, place);
    let Some(main) = named_reward(from, &id, place, &args) else {
        let message = format!("the reward `{id}` has no equivalent");
        return Err(Diagnostic {
            message,
            locations: Vec::new(),
            hint: Some("write `reward` by hand (docs/config.md)".into()),
        });
    };
    let shaping_place = format!("{place}.shaping_fn");
    let shaping = args.get("shaping_fn").and_then(Json::as_str).map(|id| {
        if let [key, ..] = required_arguments(id) {
            let message =
                format!("`{shaping_place}` is `{id}`, which needs `{key}`, but RL4LMs gives a shaping no arguments");
            from.reject(&shaping_place, message);
        }
        (id, named_reward(from, id, &shaping_place, &Map::new()))
    });
    let reward = match shaping {
        Some((_, Some(shaping))) => {
            json!({ "mix": [{ "weight": 1, "reward": main }, { "weight": 1, "reward": shaping }] })
        }
        Some((id, None)) => {
            from.note("reward_fn.args", format!("the shaping `{id}` has no equivalent: left out"));
            main
        }
        None => main,
    };
    to.set("reward", reward);
    Ok(())
}

/// Converts a metric of RL4LMs at `place`.
///
/// # Errors
/// Why it is left out.
fn named_metric(from: &Original, id: &str, place: &str, args: &Map<String, Json>) -> Result<Json, String> {
    Ok(match id {
        "meteor" => json!({ "meteor": { "references": "repr" } }),
        "rouge" if args.get("use_single_ref") == Some(&json!(false)) => {
            json!({ "rouge": { "references": "repr" } })
        }
        "rouge" => json!({ "rouge": { "references": "first" } }),
        "rouge_l_max" => json!({ "rouge_l_max": py_rouge(from, place, args) }),
        "cider" => json!({ "cider": captions() }),
        "diversity" | "bleu" | "sacre_bleu" | "ter" | "chrf" | "parent_totto" | "bleu_totto" | "dates"
        | "increasing_numbers" => json!({ id: args }),
        "bert_score" => {
            let language = args.get("language").and_then(Json::as_str).unwrap_or("en");
            let task = from.text("datapool.id").unwrap_or_default();
            if language == "en" && GERMAN.contains(&task.as_str()) {
                from.note(
                    place,
                    format!("BERTScore reads the texts of `{task}` as English, but they are German (`language: de`)"),
                );
            }
            json!({ "bert_score": bert_score(args) })
        }
        "bleurt" => json!({ "bleurt": bleurt(args) }),
        "intent_accuracy" => json!({ "intent_accuracy": { "model": INTENTS } }),
        "learned_reward" => learned_reward(from, &format!("{place}.args"), args),
        "causal_perplexity" => {
            let mut options = json!({ "of": "references" });
            if args.get("use_text_from_meta_data") == Some(&json!(true)) {
                options = json!({ "column": "reference" });
            }
            options["stride"] = args.get("stride").cloned().unwrap_or_else(|| 512.into());
            json!({ "perplexity": options })
        }
        "summaCConv" if args.contains_key("start_file") => {
            let unknown = "unknown granularity, bins or model of `summaCConv`: left out";
            json!({ "summac_conv": summac_conv(args).ok_or(unknown)? })
        }
        "summaCZS" => {
            let unknown = "unknown granularity or model of `summaCZS`: left out";
            json!({ "summac_zs": summac_zs(args).ok_or(unknown)? })
        }
        _ => {
            let why = match id {
                "summaCConv" => {
                    ": `summac_conv` needs a trained convolution, which the original initializes at random without `start_file`"
                }
                "spice" => {
                    ": it needs its authors' program (add `spice: { program: [java, -Xmx8G, -jar, spice-1.0.jar], \
                     keyed_by: prompt, tokenizer: spacy }`)"
                }
                _ => ": it has no equal",
            };
            return Err(format!("the metric `{id}` is left out{why}"));
        }
    })
}

pub(super) fn metrics(from: &Original, to: &mut YamlBuilder) {
    let Some(Json::Array(metrics)) = from.json("train_evaluation.metrics") else { return };
    let mut found: Vec<Json> = Vec::new();
    for (i, metric) in metrics.iter().enumerate() {
        let args = metric["args"].as_object().cloned().unwrap_or_default();
        let id = metric["id"].as_str().unwrap_or_default();
        let place = format!("train_evaluation.metrics[{i}]");
        check_arguments(from, id, &format!("{place}.args"));
        let ours = match named_metric(from, id, &place, &args) {
            Ok(ours) => ours,
            Err(why) => {
                from.note(&place, why);
                continue;
            }
        };
        if let Some(known) = arguments_of_metric(id) {
            for key in args.keys().filter(|key| !known.contains(&key.as_str())) {
                let path = format!("{place}.args.{key}");
                from.note(&path, format!("`{path}` has no equivalent: left out"));
            }
        }
        if found.contains(&ours) {
            from.note(&place, format!("`{id}` is listed twice"));
            continue;
        }
        let name = |metric: &Json| metric.as_object()?.keys().next().cloned();
        let name_of_ours = name(&ours);
        let same = found.iter().filter(|other| name(other) == name_of_ours).count();
        if let Some(name) = name_of_ours.filter(|_| same > 0) {
            let message = format!("`{id}` is listed with other arguments: its values are called `{name}_{}`", same + 1);
            from.note(&place, message);
        }
        found.push(ours);
    }
    to.set("train.evaluation.metrics", found);
}

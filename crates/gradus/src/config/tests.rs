//! Round trips over the whole schema, and messages for invalid configurations. The binary's tests cover excerpts.

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::*;
use crate::error::{Diagnostic, Error, Location};
use crate::machine::Machine;

/// Returns any value of a shape, with all required keys and some optional ones.
fn any_value(schema: &Schema, shape: &Shape, depth: usize) -> BoxedStrategy<Json> {
    match schema.resolve(shape) {
        Shape::Text => any::<String>().prop_map(Json::from).boxed(),
        Shape::Bool => any::<bool>().prop_map(Json::from).boxed(),
        Shape::Integer { minimum: Some(_), maximum } => {
            (0..=u32::try_from(*maximum).unwrap_or(u32::MAX)).prop_map(Json::from).boxed()
        }
        Shape::Integer { minimum: None, .. } => (i32::MIN..=1_000_000_000).prop_map(Json::from).boxed(),
        Shape::Number => any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(Json::from).boxed(),
        Shape::Word(words) => {
            prop::sample::select(words.iter().map(|word| json!(word.name)).collect::<Vec<_>>()).boxed()
        }
        Shape::Choice(sides) => {
            // Recursive types must end at some depth.
            let shallow = |side: &&Field| match side.name.as_str() {
                "mix" => depth < 3,
                "recorded" => depth < 6,
                _ => true,
            };
            let sides = sides.iter().filter(shallow).map(|side| {
                let name = side.name.clone();
                any_value(schema, &side.shape, depth + 1).prop_map(move |value| json!({ name.clone(): value })).boxed()
            });
            prop::strategy::Union::new(sides).boxed()
        }
        Shape::Map(fields) => {
            let fields: Vec<_> = fields.iter().map(|field| any_field(schema, field, depth)).collect();
            fields.prop_map(|fields| Json::Object(fields.into_iter().flatten().collect::<Map<_, _>>())).boxed()
        }
        Shape::Keyed(item) => prop::collection::btree_map("[a-z]{1,6}", any_value(schema, item, depth + 1), 0..3)
            .prop_map(|entries| Json::Object(entries.into_iter().collect()))
            .boxed(),
        Shape::List { item, length } => {
            let size = length.map_or(0..4, |length| length..length + 1);
            prop::collection::vec(any_value(schema, item, depth + 1), size).prop_map(Json::Array).boxed()
        }
        Shape::OneOrMore(item) => {
            let several = prop::collection::vec(any_value(schema, item, depth), 1..4).prop_map(Json::Array);
            prop_oneof![any_value(schema, item, depth), several].boxed()
        }
        Shape::OrMap(list, map) => prop_oneof![any_value(schema, list, depth), any_value(schema, map, depth)].boxed(),
        Shape::Named(_) => unreachable!("names are resolved"),
    }
}

fn any_field(schema: &Schema, field: &Field, depth: usize) -> BoxedStrategy<Option<(String, Json)>> {
    let (name, required) = (field.name.clone(), field.required);
    (any_value(schema, &field.shape, depth + 1), any::<bool>())
        .prop_map(move |(value, present)| (required || present).then(|| (name.clone(), value)))
        .boxed()
}

/// Options of plug-ins, with every shape that options may have.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its shape is looked at")]
struct Odds {
    /// How many.
    count: usize,
    #[serde(default)]
    share: Option<f64>,
    #[serde(default)]
    names: Vec<String>,
    kind: Kind,
    #[serde(default)]
    within: Vec<Within>,
}

#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    OneWord,
    Another,
}

#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its shape is looked at")]
struct Within {
    is_deep: bool,
}

/// Returns a registry with one plug-in of each kind, all under one name.
fn registry() -> Registry {
    use crate::metric::{Measure, Metric, Row, RowError};

    struct Nothing;

    impl Metric for Nothing {
        fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
            Ok(vec![Measure::mean("", &vec![0.0; rows.len()])])
        }
    }

    impl crate::task::PostProcessor for Nothing {
        fn apply(&self, completion: &str) -> String {
            completion.into()
        }
    }

    impl crate::task::Task for Nothing {
        fn origin(&self, _: crate::task::Split) -> crate::task::Origin {
            crate::task::Origin::Generated
        }

        fn samples(
            &self,
            _: &crate::task::Files<'_>,
        ) -> crate::Result<Vec<(crate::data::RowLocation, crate::task::Sample)>> {
            Ok(Vec::new())
        }

        fn metrics(&self) -> Vec<crate::metric::MetricConfig> {
            Vec::new()
        }
    }

    let mut registry = Registry::default();
    let reward = |_: &Odds, _: &dyn crate::metric::Models| Ok(crate::reward::FnReward::new("odd", |_, _| Ok(None)));
    registry.reward("odd", reward).expect("a name");
    registry.metric("odd", |_: &Odds, _| Ok(Nothing)).expect("a name");
    registry.task("odd", |_: &Odds| Ok(Nothing)).expect("a name");
    let toolbox = |_: &Odds| Ok(gradus_environments::Toolbox::new(Vec::new()).expect("no two tools of one name"));
    registry.environment("odd", toolbox).expect("a name");
    registry.tool("odd", |_: &Odds| Ok(gradus_environments::functions::Calculator::default())).expect("a name");
    registry.post_processor("odd", |_: &Odds| Ok(Nothing)).expect("a name");
    registry.observer("odd", |_: &Odds, _| Ok(crate::observer::Silent)).expect("a name");
    registry.online_method::<crate::algorithm::grpo::GrpoConfig>("odd").expect("a name");
    registry
}

#[test]
fn plug_ins_are_read_explained_and_bound_as_everything_else() {
    let (registry, machine) = (registry(), Machine::detect());
    let read = |text: &str| RunConfig::read(text, &Request { registry: Some(&registry), ..Request::default() });
    let odd = "{ odd: { count: 3, kind: one_word, within: [{ is_deep: true }] } }";
    let text = format!(
        "model: m\ndata: {{ task: {{ plugin: {odd} }} }}\nmethod: {{ grpo: {{}} }}\nobservers: [{odd}]\n\
         environment: {{ plugin: {odd} }}\ntools: [{{ plugin: {odd} }}]\n\
         reward: {{ mix: [{{ weight: 1, reward: {{ plugin: {odd} }} }}, {{ weight: 1, reward: {{ metric: {{ plugin: {odd} }} }} }}] }}\n\
         train: {{ evaluation: {{ metrics: [rouge, {{ plugin: {odd} }}], post_process: {{ plugin: {odd} }} }} }}\n"
    );
    let plan = Plan::check(&read(&text).expect("it reads"), &machine).expect("all of it is bound");
    assert!(plan.config().observers[0].is_bound());
    // A written plan reads back. Without the registry it is rejected, and so is a configuration that a program made.
    let again = read(&plan.to_yaml()).expect("it reads");
    assert_eq!(again.config, *plan.config());
    let Err(Error::Config(problems)) = RunConfig::parse(&text) else { panic!("no registry") };
    assert_eq!(problems.len(), 8, "{problems:#?}");
    assert_eq!(problems[0].message, "`data.task.plugin` names `odd`, but this program has no such plug-ins");
    let made: RunConfig =
        serde_json::from_value(serde_json::to_value(plan.config()).expect("JSON")).expect("its shape");
    let Err(Error::Config(problems)) = Plan::check(&made.clone().into(), &machine) else { panic!("nothing is bound") };
    assert_eq!(problems.len(), 8, "{problems:#?}");
    let named = |part: &str| problems.iter().any(|problem| problem.message.contains(part));
    assert!(named("`tools[0].plugin`: there is no constructor for the tool `odd`"), "{problems:#?}");
    assert!(named("`reward.mix[0].reward.plugin`: there is no constructor for the reward `odd`"), "{problems:#?}");
    let mut bound = made;
    registry.bind(&mut bound).expect("all of it is there");
    Plan::check(&bound.into(), &machine).expect("all of it is bound");

    let error_of = |text: &str| match read(&format!(
        "model: m\ndata: d\nmethod: {{ grpo: {{}} }}\nreward: {{ plugin: {text} }}\n"
    )) {
        Err(Error::Config(problems)) => (problems[0].message.clone(), problems[0].hint.clone().unwrap_or_default()),
        other => panic!("{other:?}"),
    };
    let (message, hint) = error_of("{ od: {} }");
    assert_eq!((&*message, &*hint), ("unknown key `od` in `reward.plugin`", "did you mean `odd`?"));
    let (message, hint) = error_of("{ odd: { count: 1, kind: one_wrd } }");
    assert!(
        message.starts_with("`reward.plugin.odd.kind` is the word `one_wrd`") && hint.contains("`one_word`"),
        "{message}"
    );
    assert_eq!(error_of("{ odd: { kind: another } }").1, "add `count: …`: How many");
    assert_eq!(
        error_of("{ odd: { count: 1, kind: another, within: [{ deep: true }] } }").0,
        "unknown key `deep` in `reward.plugin.odd.within[0]`"
    );
    let schema = Schema::with(&registry);
    let explained = explain(&schema, Some("reward.plugin.odd.count")).expect("a key");
    assert_eq!((explained[0].doc.as_str(), explained[0].required), ("How many.", true));

    let mut registry = registry;
    let refused = |found: crate::Result<()>| found.expect_err("refused").to_string();
    assert_eq!(
        refused(registry.metric("odd", |_: &Odds, _| Err::<crate::metric::ExactMatch, _>(Error::input("")))),
        "the name `odd` is taken (metric)"
    );
    assert_eq!(
        refused(registry.observer("An odd", |_: &Odds, _| Ok(crate::observer::Silent))),
        "`An odd` cannot be the name of a plug-in (observer)"
    );
    let error = refused(registry.observer("list", |_: &Vec<String>, _| Ok(crate::observer::Silent)));
    assert_eq!(error, "the options of the observer `list`: they are no mapping");
}

fn any_config() -> impl Strategy<Value = RunConfig> {
    let schema = Schema::with(&registry());
    any_value(&schema, schema.root(), 0)
        .prop_map(|value| serde_json::from_value(value).expect("the schema is the type's"))
}

/// Reads without the rules, which random values violate.
fn read_back(text: &str) -> Result<Json, Vec<Diagnostic>> {
    let schema = Schema::with(&registry());
    let root = node::parse("config.yml".as_ref(), text).map_err(|problem| vec![problem])?;
    let reading = read::read(&schema, &root);
    if reading.problems.is_empty() { Ok(reading.value) } else { Err(reading.problems) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_printed_reads_back(config in any_config()) {
        let text = write::to_yaml(&config, &["model".to_owned(), "train".to_owned()].into());
        let value = read_back(&text).map_err(|problems| TestCaseError::fail(format!("{problems:?}\n{text}")))?;
        let again: RunConfig = serde_json::from_value(value).expect("what was read has the right shape");
        prop_assert_eq!(again, config);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z:{}\\[\\]\\-#&* \n\"'|>!,?]{0,80}") {
        let _ = RunConfig::parse(&text);
    }
}

const MINIMAL: &str = "model: gpt2\ndata: rows.jsonl\n";

fn problems(text: &str) -> Vec<Diagnostic> {
    match RunConfig::parse(text) {
        Err(Error::Config(problems)) => problems,
        Err(other) => panic!("{other:?}"),
        Ok(config) => match Plan::check(&config, &Machine::detect()) {
            Err(Error::Config(problems)) => problems,
            other => panic!("{other:?}"),
        },
    }
}

#[track_caller]
fn assert_fine(text: &str) {
    let checked = RunConfig::parse(text).and_then(|config| Plan::check(&config, &Machine::detect()));
    assert!(checked.is_ok(), "{text}: {checked:?}");
}

/// Returns each problem as `line:column message (hint)`.
fn shown(text: &str) -> Vec<String> {
    let location = |location: &Location| match location {
        Location::File { line, column, width, .. } => format!("{line}:{column}+{width}"),
        Location::Flag(name) | Location::Argument(name) => name.clone(),
    };
    let show = |problem: Diagnostic| {
        let locations: Vec<_> = problem.locations.iter().map(location).collect();
        let hint = problem.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{} {}{hint}", locations.join(" "), problem.message)
    };
    problems(text).into_iter().map(show).collect()
}

#[track_caller]
fn check(body: &str, expected: &[&str]) {
    assert_eq!(shown(&format!("{MINIMAL}{body}")), expected);
}

#[test]
fn the_smallest_configuration_is_fine() {
    let read = |text: &str| RunConfig::parse(text).expect("fine").config;
    let config = read("{model: gpt2, data: d.jsonl, method: {sft: {}}}");
    assert_eq!(config, read("model: gpt2\ndata: d.jsonl\nmethod:\n  sft:\n"));
    assert_eq!(config, read(r#"{"model": "gpt2", "data": "d.jsonl", "method": {"sft": {}}}"#));
    let plan = Plan::check(&config.into(), &Machine::detect()).expect("fine");
    assert_eq!((plan.learning_rate(), plan.best_metric()), (2e-5, "eval_loss"));
}

#[test]
fn dropout_is_for_methods_without_a_reference() {
    check(
        "method: {dpo: {}}\ntrain: {dropout: true}\n",
        &["4:9+7 `train.dropout` is true, but dpo compares logprobs of one text under several models: dropout would \
             make them differ at random (leave it out; it is for `sft`, `reward`, `classify`, `orpo`, `cpo`, `simpo`, \
             `ppo`, `nlpo`, `a2c`, `grpo` and `rloo`)"],
    );
    let fine = "model: gpt2\ndata: d.jsonl\nmethod: {sft: {}}\nlora: {dropout: 0.1}\ntrain: {dropout: true, recompute: true}\n";
    let written = RunConfig::parse(fine).expect("reads");
    Plan::check(&written, &Machine::detect()).expect("dropout and recomputation go together");
}

/// A schedule without settings is a word. One with settings is a mapping, or its name alone for the defaults.
#[test]
fn a_schedule_is_a_name_or_a_name_with_its_settings() {
    let text = |schedule: &str| format!("{MINIMAL}method: {{sft: {{}}}}\ntrain: {{lr_schedule: {schedule}}}\n");
    let read = |schedule: &str| {
        let written = RunConfig::parse(&text(schedule)).unwrap_or_else(|error| panic!("{schedule}: {error}"));
        written.config.train.lr_schedule
    };
    let plateau = "{warmup_stable_decay: {decay_steps: 10, warmup_type: linear, decay_type: cosine, min_lr_ratio: 0}}";
    for (written, same) in [
        ("cosine", "{cosine: }"),
        ("cosine", "{cosine: {}}"),
        ("polynomial", "{polynomial: {}}"),
        ("polynomial", "{polynomial: {power: 1, lr_end: 1e-7}}"),
        ("inverse_sqrt", "{inverse_sqrt: }"),
        ("cosine_with_restarts", "{cosine_with_restarts: {num_cycles: 1}}"),
        ("{warmup_stable_decay: {decay_steps: 10}}", plateau),
    ] {
        assert_eq!(read(written), read(same), "{written} and {same}");
    }
    let specs = flags(&Schema::run_config(), Scope::Method("sft"));
    let spec = specs.into_iter().find(|spec| spec.name == "lr-schedule").expect("a flag");
    let FlagKind::WordOrYaml(words) = &spec.kind else { panic!("{spec:?}") };
    let names: Vec<&str> = words.iter().map(|word| word.name.as_str()).collect();
    assert!(names.contains(&"constant") && names.contains(&"polynomial"), "{names:?}");
    assert!(!names.contains(&"warmup_stable_decay"), "it has a required key: {names:?}");
    for (value, same) in [("polynomial", "polynomial"), ("{polynomial: {power: 2}}", "{polynomial: {power: 2}}")] {
        let flag = Flag { spec: spec.clone(), written: "--lr-schedule".into(), values: vec![value.into()] };
        let given = [flag];
        let request = Request { method: Some("sft"), flags: &given, ..Request::default() };
        for before in ["cosine", "{polynomial: {power: 3}}"] {
            let found = RunConfig::read(&text(before), &request).expect("a configuration");
            assert_eq!(found.config.train.lr_schedule, read(same), "{value} over {before}");
        }
    }
}

#[test]
fn wrong_settings_of_a_schedule_are_shown_where_they_are() {
    for (train, expected) in [
        (
            "lr_schedule: greedy",
            "`train.lr_schedule` is the word `greedy`, but one of `linear`, `cosine`, `constant`, `cosine_with_min_lr`, \
             `cosine_warmup_with_min_lr`, `cosine_with_restarts`, `polynomial`, `inverse_sqrt`, `warmup_stable_decay` is \
             needed",
        ),
        ("lr_schedule: polynomal", "(did you mean `polynomial`?)"),
        (
            "lr_schedule: {cosine: {num_cycles: 2}}",
            "`train.lr_schedule.cosine` is a mapping, but `cosine` has no settings (write `lr_schedule: cosine`)",
        ),
        ("lr_schedule: {cosine_with_min_lr: {}}", "but its lowest learning rate is not given"),
        ("lr_schedule: {cosine_with_min_lr: {min_lr: 1e-6, min_lr_ratio: 0.1}}", "are both given"),
        ("lr_schedule: {cosine_warmup_with_min_lr: {min_lr_ratio: 2}}", "must be from 0 to 1"),
        ("lr_schedule: {cosine_with_min_lr: {min_lr_ratio: 0.1, num_cycles: 0}}", "must be above 0"),
        (
            "learning_rate: 1e-5, lr_schedule: {cosine_with_min_lr: {min_lr: 1e-4}}",
            "is 0.0001, but must be at most `train.learning_rate` (1e-5)",
        ),
        ("lr_schedule: {cosine_with_restarts: {num_cycles: 0}}", "must be at least 1"),
        ("lr_schedule: {polynomial: {power: -1}}", "must be above 0"),
        (
            "learning_rate: 1e-8, lr_schedule: polynomial",
            "`train.lr_schedule.polynomial.lr_end` is 1e-7, but must be below `train.learning_rate` (1e-8)",
        ),
        ("lr_schedule: {inverse_sqrt: {timescale: 0}}", "must be at least 1"),
        ("lr_schedule: {warmup_stable_decay: {}}", "`train.lr_schedule.warmup_stable_decay.decay_steps` is missing"),
        ("lr_schedule: {warmup_stable_decay: {decay_steps: -1}}", "must be at least 0"),
        (
            "lr_schedule: {warmup_stable_decay: {decay_steps: 5, decay_type: sqrt}}",
            "one of `linear`, `cosine`, `1-sqrt` is needed",
        ),
        (
            "max_steps: 10, warmup_steps: 4, lr_schedule: {warmup_stable_decay: {decay_steps: 7}}",
            "the warm-up has 4 steps and the decay 7, but the run has 10",
        ),
        ("eval_delay: 5", "but only `train.eval_steps` above 0 reads it"),
    ] {
        let found = shown(&format!("{MINIMAL}method: {{sft: {{}}}}\ntrain: {{{train}}}\n"));
        assert!(found.len() == 1 && found[0].starts_with("4:") && found[0].contains(expected), "{train}: {found:?}");
    }
}

#[test]
fn a_metric_has_no_name_of_another_value() {
    let of = |method: &str, name: &str| {
        let metrics = format!("[{{command: {{program: [sh], name: {name}}}}}]");
        format!("{MINIMAL}method: {method}\ntrain: {{evaluation: {{metrics: {metrics}}}}}\n")
    };
    let grpo = "{grpo: {}}\nreward: {rule: {substring: a}}";
    for (method, name) in [("{sft: {}}", "loss"), ("{sft: {}}", "length"), (grpo, "reward"), (grpo, "clipped_ratio")] {
        let found = shown(&of(method, name));
        let expected = format!("`train.evaluation.metrics[0]` has the name `{name}`, but this is the name of a value");
        assert!(found.len() == 1 && found[0].contains(&expected), "{method}: {found:?}");
    }
    // Supervised training measures no reward.
    for text in [of("{sft: {}}", "reward"), of(grpo, "loss")] {
        let config = RunConfig::parse(&text).expect("it is read");
        Plan::check(&config, &Machine::detect()).expect("it can run");
    }
}

#[test]
fn noise_is_for_methods_on_given_texts() {
    check(
        "method: {kto: {}}\ntrain: {neftune_noise_alpha: 5}\n",
        &[
            "4:9+19 `train.neftune_noise_alpha` is 5, but kto trains without noise on embeddings (leave it out; it is for `sft`, \
             `dpo`, `orpo`, `cpo` and `simpo`)",
        ],
    );
    check(
        "method: {sft: {}}\ntrain: {neftune_noise_alpha: -5}\n",
        &["4:9+19 `train.neftune_noise_alpha` is -5, but must be at least 0"],
    );
    check(
        "method: {dpo: {loss_type: aot}}\ntrain: {neftune_noise_alpha: 5}\n",
        &[
            "4:9+19 3:16+9 `train.neftune_noise_alpha` is 5, but `loss_type: aot` sorts the pairs of a step by log-probabilities \
             without noise (leave out the noise, or use a loss that does not sort, such as `sigmoid`)",
        ],
    );
}

#[test]
fn only_a_reference_that_each_step_runs_follows_the_policy() {
    let hint = "leave it out; it is for `dpo` with `reference: live`, `kto` with `loss_type: kto`, and `grpo` and `rloo` with a \
                `kl_coefficient` above 0";
    for method in ["dpo: {}", "sft: {}", "kto: {loss_type: apo_zero_unpaired}"] {
        let name = method.split_once(':').expect("a name").0;
        let message = format!(
            "`train.sync_ref_model` is true, but the reference of this `{name}` cannot follow the policy ({hint})"
        );
        let expected = format!("4:9+14 3:1+6 {message}");
        check(&format!("method: {{{method}}}\ntrain: {{sync_ref_model: true}}\n"), &[&expected]);
    }
    check(
        "method: {dpo: {reference: live}}\nlora: {rank: 2}\ntrain: {sync_ref_model: true}\n",
        &[
            "5:9+14 4:1+4 `train.sync_ref_model` is true, but with `lora` the reference is the base of the adapter, which does not \
             change (leave one of them out)",
        ],
    );
    check(
        "method: {dpo: {reference: live}}\ntrain: {ref_model_mixup_alpha: 0.3}\n",
        &[
            "4:9+21 `train.ref_model_mixup_alpha` is given, but only `sync_ref_model: true` reads it (leave it out, or set it)",
        ],
    );
    check(
        "method: {dpo: {reference: live}}\ntrain: {sync_ref_model: true, ref_model_mixup_alpha: 1.5}\n",
        &["4:31+21 `train.ref_model_mixup_alpha` is 1.5, but must be from 0 to 1"],
    );
    for method in ["dpo: {reference: live}", "kto: {}"] {
        assert_fine(&format!(
            "{MINIMAL}method: {{{method}}}\ntrain: {{sync_ref_model: true, ref_model_sync_steps: 8}}\n"
        ));
    }
    for method in ["grpo: {kl_coefficient: 0.1}", "rloo: {}"] {
        assert_fine(&format!(
            "{MINIMAL}method: {{{method}}}\nreward: {{rule: {{regex: e}}}}\ntrain: {{sync_ref_model: true}}\n"
        ));
    }
}

#[test]
fn misspelt_keys() {
    check(
        "method: {ppo: {clip_ragne: 0.3}}\nreward: {model: rm}\n",
        &["3:16+10 unknown key `clip_ragne` in `method.ppo` (did you mean `clip_range`?)"],
    );
    check(
        "methd: {sft: {}}\n",
        &["3:1+5 unknown key `methd` (did you mean `method`?)", " `method` is missing (add `method: { sft: {} }`)"],
    );
    check("method: {sfd: {}}\n", &["3:10+3 unknown key `sfd` in `method` (did you mean `sft`?)"]);
    check(
        "method: {sft: {learning_rate: 1}}\n",
        &["3:16+13 unknown key `learning_rate` in `method.sft` (`learning_rate` belongs under `train`)"],
    );
    check("method: {dpo: {}}\nbeta: 0.2\n", &["4:1+4 unknown key `beta` (`beta` belongs under `method.dpo`)"]);
}

#[test]
fn wrong_types() {
    check(
        "method: ppo\n",
        &["3:9+3 `method` is the word `ppo`, but a mapping is needed (write `method: { ppo: {} }` for its defaults)"],
    );
    check(
        "method: {sft: {}}\ntrain: {batch_size: eight, shuffle: yes, learning_rate: 1e-x, seed: -1}\n",
        &[
            "4:21+5 `train.batch_size` is the word `eight`, but a whole number of at least 1 is needed",
            "4:37+3 `train.shuffle` is the word `yes`, but `true` or `false` is needed (write `true`)",
            "4:57+4 `train.learning_rate` is the word `1e-x`, but a number is needed",
            "4:69+2 `train.seed` is `-1`, but a whole number of at least 0 is needed",
        ],
    );
    check(
        "method: {dpo: {loss_type: hing}}\n",
        &[
            "3:27+4 `method.dpo.loss_type` is the word `hing`, but one of `sigmoid`, `hinge`, `ipo`, `exo_pair`, `nca_pair`, `robust`, `bco_pair`, `sppo_hard`, `aot`, `aot_unpaired`, `apo_zero`, `apo_down`, `discopop`, `sft`, `sigmoid_norm` is needed (did you mean `hinge`?)",
        ],
    );
    check(
        "method: {sft: {}}\ntrain: {adam_betas: [0.9], batch_size: }\n",
        &[
            "4:21+1 `train.adam_betas` has 1 entries, but 2 are needed",
            "4:28+10 `train.batch_size` is empty, but a whole number of at least 1 is needed",
        ],
    );
    check(
        "method: {sft: {}}\nmix: B.jsonl\ntrain: {column: a=b}\n",
        &[
            "4:6+7 `mix` is the word `B.jsonl`, but a list is needed (write `[{ data: B.jsonl }]`)",
            "5:17+3 `train.column` is the word `a=b`, but a list is needed (write `[a=b]`)",
        ],
    );
    // Tasks that need keys are names, too.
    check(
        "method: {sft: {}}\neval_data: {task: wmt1}\n",
        &[
            "4:19+4 `eval_data.task` is the word `wmt1`, but a known name or a mapping is needed (did you mean `task: { wmt16: … }`?)",
        ],
    );
    let found = shown(&format!("{MINIMAL}method: {{sft: {{}}}}\neval_data: {{task: [1]}}\n"));
    let is_listed = |found: &str| found.contains("`eval_data.task` is a list, but") && found.contains("`wmt16`");
    assert!(matches!(&found[..], [one] if is_listed(one)), "{found:?}");
    let grpo = |reward: &str| format!("method: {{grpo: {{}}}}\nreward: {reward}\n");
    check(
        &grpo("{metric: rogue}"),
        &[
            "4:18+5 `reward.metric` is the word `rogue`, but a known name or a mapping is needed (did you mean `rouge`?)",
        ],
    );
    // `ter` is similar, but another error rate.
    let absent = "word and character error rates are not built in: measure them with `command`, a program of your own (docs/plugins.md)";
    let expected =
        format!("4:18+3 `reward.metric` is the word `wer`, but a known name or a mapping is needed ({absent})");
    check(&grpo("{metric: wer}"), &[&expected]);
    for metric in ["wer", "{cer: {}}"] {
        let text = format!("{MINIMAL}method: {{sft: {{}}}}\ntrain: {{evaluation: {{metrics: [{metric}]}}}}\n");
        let found = shown(&text);
        assert!(matches!(&found[..], [one] if one.ends_with(&format!(" ({absent})"))), "{found:?}");
    }
    for name in ["diversity", "distinct", "perplexity"] {
        let expected =
            format!("4:10+6 `reward.metric`: `{name}` cannot be a reward: it cannot score a single new completion");
        check(&grpo(&format!("{{metric: {name}}}")), &[&expected]);
    }
    check(
        "method: [sft]\n",
        &[
            "3:9+1 `method` is a list, but a mapping with one of `sft`, `reward`, `classify`, `dpo`, `orpo`, `cpo`, `simpo`, `kto`, `distill`, `ppo`, `nlpo`, `a2c`, `trpo`, `grpo`, `rloo`, `plugin` is needed",
        ],
    );
}

#[test]
fn two_choices_at_once() {
    check("method:\n  ppo: {}\n  dpo: {}\n", &["4:3+3 5:3+3 `method` has `ppo` and `dpo`, but takes exactly one"]);
    check(
        "method: {ppo: {}}\nreward: {model: a, rule: {substring: b}}\n",
        &["4:10+5 4:20+4 `reward` has `model` and `rule`, but takes exactly one (combine several rewards in a `mix: \
             [{ weight: 1, reward: … }, …]`)"],
    );
}

#[test]
fn missing_keys() {
    assert_eq!(
        shown("method: {sft: {}}\n"),
        [
            " `model` is missing (add `model: …` to the file or pass `--model`)",
            " `data` is missing (add `data: …` to the file or pass `--data`)",
        ]
    );
    check(
        "method: {ppo: {}}\nreward: {rule: {length: {tolerance: 3}}}\n",
        &["4:17+6 `reward.rule.length.target` is missing (add `target: …`: The wanted length in tokens)"],
    );
}

#[test]
fn not_yaml() {
    let found = shown("model: gpt2\n  data: x\n");
    assert!(found[0].contains("this is not YAML: "), "{found:?}");
    check("model: again\n", &["1:1+5 3:1+5 the key `model` is given twice in one mapping"]);
}

#[test]
fn bounds() {
    check(
        "method: {ppo: {clip_range: 1.5, discount: 1.1, kl: {coefficient: -1}}}\nreward: {model: rm}\ntrain: {learning_rate: -1e-6, eval_fraction: 1.0}\n",
        &[
            "3:16+10 `method.ppo.clip_range` is 1.5, but must be between 0 and 1",
            "3:33+8 `method.ppo.discount` is 1.1, but must be from 0 to 1",
            "3:53+11 `method.ppo.kl.coefficient` is -1, but must be at least 0",
            "5:9+13 `train.learning_rate` is -1e-6, but must be at least 0",
            "5:31+13 `train.eval_fraction` is 1, but must be at least 0 and below 1",
        ],
    );
}

/// Returns the messages about a configuration of `method` in which each of `keys` has this value.
fn messages(method: &str, keys: &[(String, i64)]) -> Vec<String> {
    let mut config = json!({ "model": "m", "data": "d", "method": { method: {} } });
    for (key, value) in keys {
        let node = key.split('.').fold(&mut config, |node, part| &mut node[part]);
        *node = (*value).into();
    }
    match RunConfig::parse(&config.to_string()).and_then(|config| Plan::check(&config, &Machine::detect())) {
        Ok(_) => Vec::new(),
        Err(Error::Config(problems)) => problems.into_iter().map(|problem| problem.message).collect(),
        Err(other) => panic!("{other:?}"),
    }
}

/// The reference and the editors' schema state the declared bounds, so the rules may not demand more.
#[test]
fn declared_bounds_are_those_that_are_enforced() {
    let schema = Schema::run_config();
    for method in MethodConfig::all() {
        let bound = |flag: FlagSpec| -> Option<(String, i64)> {
            let Shape::Integer { minimum: Some(least), .. } = schema.resolve(&schema.field(&flag.key)?.shape) else {
                return None;
            };
            let starts = |section: &&str| flag.key.starts_with(*section);
            let is_checked = ["method.", "train.", "lora.", "episode."].iter().any(starts);
            // The keys of a server need its address.
            (is_checked && !flag.key.contains("_server.")).then(|| (flag.key.clone(), *least))
        };
        let keys: Vec<(String, i64)> =
            flags(&schema, Scope::Method(method.name())).into_iter().filter_map(bound).collect();
        assert!(keys.len() > 15, "{keys:?}");
        let mut at_bound = messages(method.name(), &keys);
        // A step of one row suits the other loss.
        at_bound.retain(|message| !message.contains("`method.kto.loss_type: kto` compares"));
        for (key, least) in &keys {
            let refused = format!("`{key}` is {least},");
            assert!(!at_bound.iter().any(|message| message.starts_with(&refused)), "{at_bound:?}");
        }
        let keys: Vec<(String, i64)> = keys.into_iter().filter(|(_, least)| *least > 0).collect();
        let below: Vec<(String, i64)> = keys.iter().map(|(key, least)| (key.clone(), least - 1)).collect();
        let below_bound = messages(method.name(), &below);
        for (key, least) in &below {
            let refused = format!("`{key}` is {least}, but ");
            assert!(below_bound.iter().any(|message| message.starts_with(&refused)), "{refused} in {below_bound:?}");
        }
    }
    let kind = |key: &str| explain(&schema, Some(key)).expect("a key")[0].kind.clone();
    assert_eq!(kind("train.batch_size"), "whole number from 1 to 1000000");
    assert_eq!(kind("method.ppo.group_size"), "whole number from 1 to 65536");
    assert_eq!(kind("method.grpo.group_size"), "whole number from 2 to 65536");
    assert_eq!(kind("train.save_steps"), "whole number from 0");
}

/// The constructors of environments state the bounds again, for programs that have no schema.
#[test]
fn declared_bounds_of_environments_are_those_of_their_constructors() {
    type Environment = gradus_environments::EnvironmentConfig<gradus_environments::NoPlugin>;
    let schema = Schema::run_config();
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("tea.txt"), "Tea is warm.\n").expect("written");
    let mut checked = 0;
    for (name, required) in [
        ("arithmetic", json!({})),
        ("documents", json!({ "path": folder.path() })),
        ("guess", json!({})),
        ("maze", json!({})),
    ] {
        let section = schema.field(&format!("environment.{name}")).expect("an environment");
        for field in schema.fields(&section.shape) {
            let Shape::Integer { minimum: Some(least), maximum } = schema.resolve(&field.shape) else { continue };
            let (least, most) = (*least, i64::try_from(*maximum).expect("a count"));
            let accepts = |value: i64| {
                let mut keys = required.clone();
                keys[field.name.as_str()] = value.into();
                let config: Environment = serde_json::from_value(json!({ name: keys })).expect("a configuration");
                config.built().is_ok()
            };
            assert!(accepts(least) && accepts(most), "`{name}.{}` from {least} to {most}", field.name);
            assert!(least == 0 || !accepts(least - 1), "`{name}.{}` below {least}", field.name);
            let has_maximum = *maximum < super::schema::LARGEST_COUNT;
            assert!(!has_maximum || !accepts(most + 1), "`{name}.{}` above {most}", field.name);
            checked += 1;
        }
    }
    assert_eq!(checked, 7);
}

#[test]
fn environments_are_checked_with_their_positions() {
    let text = |environment: &str| format!("method: {grpo}\nenvironment: {environment}\n", grpo = "{grpo: {}}");
    check(&text("{maze: {size: 1}}"), &["4:22+4 `environment.maze.size` is 1, but must be at least 2"]);
    check(
        &text("{guess: {low: 5, high: 3}}"),
        &[
            "4:23+3 4:31+4 `environment.guess.low` is 5 and `environment.guess.high` is 3, but `high` must be above `low`",
        ],
    );
    check(
        &text("{command: {program: [env], timeout_s: 0}}"),
        &["4:41+9 `environment.command.timeout_s` is 0, but must be above 0"],
    );
    check(
        &(text("{guess: {}}") + "train: {evaluation: {beams: {}}}\n"),
        &["5:22+5 4:1+11 `train.evaluation.beams` is given, but beam search cannot be used with `environment` (leave \
             `beams` out; `train.evaluation.temperature: 0` takes the most likely token)"],
    );
    let more = "tools: [{calculator: {}}]\ntrain: {evaluation: {beams: {}}}\n";
    let found = shown(&format!("{MINIMAL}{}{more}", text("{guess: {}}")));
    assert!(matches!(&found[..], [one] if one.contains("cannot be used with `environment` and `tools`")), "{found:?}");
    // A run that never evaluates searches nothing.
    let never = |more: &str| {
        format!("{MINIMAL}{}train: {{eval_steps: -1, evaluation: {{beams: {{}}}}}}\n{more}", text("{guess: {}}"))
    };
    assert_fine(&never(""));
    assert!(shown(&never("test_data: d\n"))[0].contains("beam search cannot be used"));
}

#[test]
fn impossible_combinations() {
    check(
        "method: {grpo: {group_size: 1}}\nreward: {model: rm}\n",
        &["3:17+10 `method.grpo.group_size` is 1, but must be at least 2: an advantage is the distance from the mean \
             of the group, which is always 0 in a group of one (8 is usual; `gradus ppo` works with one completion per \
             prompt)"],
    );
    check(
        "method: {grpo: {group_size: 3, mini_batches: 5}}\nreward: {model: rm}\n",
        &[
            "3:17+10 3:32+12 `train.batch_size` × `method.grpo.group_size` (8 × 3 = 24 completions) is not a multiple of `method.grpo.mini_batches` (5) (4 or 6 mini-batches would divide it)",
        ],
    );
    check(
        "method: {trpo: {critic_mini_batches: 5}}\nreward: {model: rm}\n",
        &[
            "3:17+19 `train.batch_size` × `method.trpo.group_size` (8 × 1 = 8 completions) is not a multiple of `method.trpo.critic_mini_batches` (5) (4 or 8 mini-batches would divide it)",
        ],
    );
    check(
        "method: {trpo: {critic_updates: 0}}\nreward: {model: rm}\n",
        &["3:17+14 `method.trpo.critic_updates` is 0, but must be at least 1"],
    );
    check(
        "method: {ppo: {}}\n",
        &[
            "3:10+3 `ppo` needs a `reward`: it learns from the rewards of its own completions (add `reward: { model: DIR }`, a `command`, a `rule`, a `classifier`, `fine_grained` parts, `toxicity` or a `mix`; as a flag, `--reward-model DIR`, `--reward-command \"python3 reward.py\"` or a rule such as `--reward-rule-regex TEXT`)",
        ],
    );
    check(
        "method: {dpo: {}}\nreward: {model: rm}\n",
        &["4:1+6 `reward` is given, but `dpo` samples no completions to reward: it trains only on its data (leave it \
             out, or use `ppo`, `nlpo`, `a2c`, `trpo`, `grpo` or `rloo`)"],
    );
    check(
        "method: {dpo: {loss_type: [sigmoid, stf]}}\n",
        &[
            "3:37+3 `method.dpo.loss_type[1]` is the word `stf`, but one of `sigmoid`, `hinge`, `ipo`, `exo_pair`, `nca_pair`, `robust`, `bco_pair`, `sppo_hard`, `aot`, `aot_unpaired`, `apo_zero`, `apo_down`, `discopop`, `sft`, `sigmoid_norm` is needed (did you mean `sft`?)",
        ],
    );
    check(
        "method: {dpo: {loss_type: ipo, label_smoothing: 0.1}}\n",
        &[
            "3:32+15 3:16+9 `method.dpo.label_smoothing` is 0.1, but `loss_type: ipo` has no label smoothing: only `sigmoid`, `robust`, `exo_pair`, `aot` and `aot_unpaired` read a label as a probability (use one of them, or set `label_smoothing` to 0)",
        ],
    );
    check(
        "method: {ppo: {kl: {coefficient: 0, target: 6}}}\nreward: {model: rm}\n",
        &[
            "3:37+6 3:21+11 `method.ppo.kl.target` is 6, but `method.ppo.kl.coefficient` is 0: the controller multiplies the coefficient, so it would stay 0 (start from a small coefficient such as 0.05)",
        ],
    );
    check(
        "method: {ppo: {critic: {trunk: shared, model: rm}}}\nreward: {model: rm}\n",
        &["3:40+5 3:25+5 `method.ppo.critic.model` is given, but the critic shares the policy's trunk: it is a head \
             on the policy and has no start model of its own (leave it out, or use `trunk: separate`)"],
    );
    check(
        "method: {sft: {}}\ntrain: {early_stopping_patience: 3, device: gpu}\n",
        &[
            "4:37+6 `train.device` is `gpu`, but this build finds `cpu` (GPUs need a build with the cargo feature `cuda` or `wgpu`: docs/devices.md)",
            "4:9+23 `train.early_stopping_patience` is 3, but `train.eval_steps` is 0: nothing is evaluated during training (set `train.eval_steps` to the steps between evaluations)",
        ],
    );
}

#[test]
fn an_address_with_a_key_is_refused_and_not_shown() {
    for address in
        ["http://x:secret-key@localhost:8000", "http://x:secret/key@localhost", "x:secret-key@localhost:8000"]
    {
        let teacher = format!("{MINIMAL}method: {{distill: {{teacher_server: {{server: '{address}'}}}}}}\n");
        let sampler = format!(
            "{MINIMAL}method: {{grpo: {{}}}}\nreward: {{rule: {{substring: a}}}}\nrollouts: {{server: '{address}', shared: s}}\n"
        );
        for (keys, text) in [("method.distill.teacher_server", teacher), ("rollouts", sampler)] {
            let found = problems(&text);
            assert!(!format!("{found:?}").contains("secret"), "{found:?}");
            let start = format!("`{keys}.server` has a name or a key before an `@`");
            let problem = found.iter().find(|problem| problem.message.starts_with(&start)).expect("it is refused");
            let key = format!("`{keys}.key_variable`");
            assert!(problem.hint.as_ref().is_some_and(|hint| hint.contains(&key)), "{problem:?}");
        }
    }
}

#[test]
fn a_teacher_at_a_server_is_the_only_one_and_tells_something() {
    let with = |keys: &str| format!("method: {{distill: {{{keys}}}}}\n");
    let message_of = |keys: &str| {
        let shown = shown(&format!("{MINIMAL}{}", with(keys)));
        shown
            .into_iter()
            .map(|problem| problem.split_once(' ').expect("locations").1.to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    };
    let server = "teacher_server: {server: 'http://localhost:8000'";
    for (keys, expected) in [
        ("teacher_server: {}".to_owned(), "`method.distill.teacher_server.server` is missing, but must begin with"),
        (format!("{server}}}, teacher_model: big"), "`teacher_server` are both given"),
        (format!("{server}}}, seq_kd: true"), "a teacher at a server does not sample"),
        (format!("{server}, top_k: 0}}, beta: 0"), "`method.distill.teacher_server.top_k` is 0, but with `beta: 0`"),
        (format!("{server}, top_k: 1, add_tail: false}}, beta: 0"), "its share is always 1"),
        (format!("{server}, wait_s: 0}}"), "`method.distill.teacher_server.wait_s` is 0, but must be above 0"),
    ] {
        assert!(message_of(&keys).contains(expected), "{keys}: {}", message_of(&keys));
    }
    let fine = format!("{MINIMAL}{}", with(&format!("{server}, top_k: 0}}, beta: 1")));
    let plan = Plan::check(&RunConfig::parse(&fine).expect("reads"), &Machine::detect()).expect("fine");
    // No model is loaded for it, so no memory is estimated.
    let config = plan.config();
    let cast = config.method.method().cast(&config.shared());
    assert!(cast.reference.is_none() && cast.names().next().is_none());
}

#[test]
fn what_gives_every_completion_the_same_value_is_refused() {
    let weights = "method: {kto: {desirable_weight: 0, undesirable_weight: 0}}\n";
    let found = shown(&format!("{MINIMAL}{weights}")).join("\n");
    assert!(found.contains("`undesirable_weight` are 0: there is nothing to train on"), "{found}");
    let one = format!("{MINIMAL}method: {{kto: {{desirable_weight: 0}}}}\n");
    Plan::check(&RunConfig::parse(&one).expect("it reads"), &Machine::detect()).expect("the other weight is 1");
    let found = shown(&format!("{MINIMAL}method: {{grpo: {{}}}}\nreward: {{rule: {{substring: ''}}}}\n")).join("\n");
    assert!(found.contains("`reward.rule.substring` is empty, which every completion contains"), "{found}");
}

#[test]
fn names_of_programs_leave_the_slash_to_their_values() {
    let of = |reward: &str| format!("method: {{grpo: {{}}}}\n{reward}\n");
    check(
        &of("reward: {mix: [{weight: 1, reward: {command: {program: [a], name: q/a}}}]}"),
        &[
            "4:61+4 `reward.mix[0].reward.command.name` is `q/a`, but must not contain `/`: values that the program names are logged as `NAME/VALUE`",
        ],
    );
    check(
        &of("reward: {metric: {command: {program: [a], name: q/a}}}"),
        &[
            "4:10+6 `reward.metric`: the option `name` of `command` is `q/a`, but must not contain `/`: values that the program names are logged as `NAME/VALUE`",
        ],
    );
    check(&of("reward: {command: {program: [a], name: ''}}"), &["4:34+4 `reward.command.name` is empty"]);
}

#[test]
fn losses_of_dpo_and_the_keys_they_read() {
    let message = |keys: &str| shown(&format!("{MINIMAL}method: {{dpo: {{{keys}}}}}\n")).join("\n");
    for fine in [
        "loss_type: sigmoid, label_smoothing: 0.1",
        "loss_type: [robust, sft], label_smoothing: 0.1, loss_weights: [1, 0]",
        "loss_type: exo_pair, label_smoothing: 1e-3, f_divergence_type: alpha_divergence, f_alpha_divergence_coef: 2",
        "loss_type: [discopop], discopop_tau: 0.1, ld_alpha: 0, use_weighting: true",
        "loss_type: [sigmoid, sft], f_divergence_type: forward_kl, ld_alpha: 1",
        "loss_type: [aot, aot_unpaired, bco_pair, sppo_hard, apo_zero, apo_down, nca_pair]",
    ] {
        let config = format!("{MINIMAL}method: {{dpo: {{{fine}}}}}\n");
        Plan::check(&RunConfig::parse(&config).expect(fine), &Machine::detect()).expect(fine);
    }
    for (wrong, expected) in [
        ("loss_type: []", "`method.dpo.loss_type` is an empty list"),
        ("loss_type: [sft, ipo, sft]", "3:38+3 `method.dpo.loss_type` names `sft` twice (name it once"),
        ("loss_type: exo_pair", "`loss_type: exo_pair` needs `method.dpo.label_smoothing` above 0"),
        ("label_smoothing: 0.5", "`method.dpo.label_smoothing` is 0.5, but must be at least 0 and below 0.5"),
        ("loss_type: [ipo, sft], label_smoothing: 0.1", "but `loss_type: [ipo, sft]` has no label smoothing"),
        ("loss_weights: [1, 2]", "has 2 entries, but `loss_type: sigmoid` names 1: one weight per loss is needed"),
        ("loss_weights: [-1]", "`method.dpo.loss_weights[0]` is -1, but must be at least 0"),
        ("loss_weights: [0]", "`method.dpo.loss_weights` are all 0"),
        ("ld_alpha: 1.5", "`method.dpo.ld_alpha` is 1.5, but must be from 0 to 1"),
        ("loss_type: sft, ld_alpha: 0.5", "`method.dpo.ld_alpha` is 0.5, but `loss_type: sft` has no pairs of lengths"),
        ("discopop_tau: 0.1", "`method.dpo.discopop_tau` is given, but only `discopop` reads it"),
        ("loss_type: discopop, discopop_tau: 0", "`method.dpo.discopop_tau` is 0, but must be above 0"),
        ("f_alpha_divergence_coef: 2", "`method.dpo.f_alpha_divergence_coef` is given, but only `alpha_divergence`"),
        ("loss_type: [sft, aot], f_divergence_type: forward_kl", "but `aot` has no form for another divergence"),
        ("loss_type: sft, f_divergence_type: js_divergence", "but `loss_type: sft` reads no reference"),
        ("loss_type: aot, use_weighting: true", "weighs pairs, but `aot` has none to weigh"),
        ("loss_type: [sigmoid, sft], use_weighting: true", "weighs pairs, but `sft` has none to weigh"),
    ] {
        let found = message(wrong);
        assert!(found.contains(expected) && found.lines().count() == 1, "{wrong}: {found}");
    }
    check(
        "method: {sft: {loss_type: dft, label_smoothing: 0.1}}\n",
        &[
            "3:32+15 3:16+9 `method.sft.label_smoothing` is 0.1, but `loss_type: dft` has no label smoothing (use `loss_type: nll`, or set `label_smoothing` to 0)",
        ],
    );
}

#[test]
fn keys_that_nothing_reads_are_refused() {
    let found = |rest: &str| shown(&format!("{MINIMAL}reward: {{model: rm}}\n{rest}\n")).join("\n");
    let sft = |rest: &str| shown(&format!("{MINIMAL}method: {{sft: {{}}}}\n{rest}\n")).join("\n");
    let classify = |keys: &str| shown(&format!("{MINIMAL}method: {{classify: {{{keys}}}}}\n")).join("\n");
    for (found, expected) in [
        (sft("train: {frozen_weights: nf4}"), "the run trains all weights of its only model"),
        (
            sft("train: {optimizer: rmsprop, adam_betas: [0.8, 0.99]}"),
            "`train.adam_betas` is given, but only `adamw` reads it",
        ),
        (
            sft("train: {optimizer: rmsprop, adam_epsilon: 1e-5}"),
            "`train.adam_epsilon` is given, but only `adamw` reads it",
        ),
        (sft("train: {rmsprop_alpha: 0.9}"), "`train.rmsprop_alpha` is given, but only `rmsprop` reads it"),
        (sft("train: {rmsprop_epsilon: 1e-5}"), "`train.rmsprop_epsilon` is given, but only `rmsprop` reads it"),
        (
            found("method: {grpo: {sapo_temperature_pos: 2}}"),
            "`method.grpo.sapo_temperature_pos` is given, but only `sapo` reads it",
        ),
        (
            found("method: {grpo: {sapo_temperature_neg: 2}}"),
            "`method.grpo.sapo_temperature_neg` is given, but only `sapo` reads it",
        ),
        (
            found("method: {ppo: {kl: {horizon: 20}}}"),
            "`method.ppo.kl.horizon` is given, but only `target` without `rate` reads it",
        ),
        (found("method: {ppo: {kl: {horizon: 20, target: 6, rate: 0.1}}}"), "`method.ppo.kl.horizon` is given"),
        (found("method: {ppo: {kl: {rate: 0.1}}}"), "`method.ppo.kl.rate` is given, but without `target`"),
        (
            classify("task: single_label, ignored_label: b"),
            "`method.classify.ignored_label` is given, but only `tokens` reads it",
        ),
        (
            classify("task: regression, negative_label: b"),
            "`method.classify.negative_label` is given, but only `single_label` or `tokens` reads it",
        ),
        (
            found("preset: rl4lms\nmethod: {ppo: {kl: {target: null, rate: 0.2}}}"),
            "`method.ppo.kl.rate` is given, but without `target`",
        ),
        (
            found("preset: rl4lms\nmethod: {ppo: {}}\ntrain: {rmsprop_alpha: 0.9}"),
            "`train.rmsprop_alpha` is given, but only `rmsprop` reads it",
        ),
    ] {
        assert!(found.contains(expected) && found.lines().count() == 1, "{expected}: {found}");
    }
    for fine in [
        "method: {sft: {}}\nlora: {rank: 2}\ntrain: {frozen_weights: nf4, rmsprop_alpha: 0.9, optimizer: rmsprop}",
        "method: {reward: {}}\nlora: {rank: 2}\ntrain: {frozen_weights: nf4, adam_betas: [0.8, 0.99], adam_epsilon: 1e-5}",
        "method: {dpo: {}}\ntrain: {frozen_weights: nf4}",
        "method: {classify: {task: tokens, ignored_label: a, negative_label: b}}",
    ] {
        assert_fine(&format!("{MINIMAL}{fine}\n"));
    }
    for (keys, expected) in [
        (
            "grpo: {entropy_target: 1}",
            "`method.grpo.entropy_target` is given, but only `use_adaptive_entropy: true` reads it",
        ),
        (
            "grpo: {multi_objective_aggregation: normalize_then_sum, scale_rewards: batch}",
            "`method.grpo.scale_rewards` is given, but only `multi_objective_aggregation: sum_then_normalize` reads it",
        ),
        (
            "grpo: {use_adaptive_entropy: true, entropy_coefficient_min: 2}",
            "`method.grpo.entropy_coefficient_min` is 2 and `method.grpo.entropy_coefficient_max` is 1, but the first",
        ),
        ("grpo: {top_entropy_quantile: 1.5}", "`method.grpo.top_entropy_quantile` is 1.5, but must be from 0 to 1"),
        ("ppo: {kl: {stop_after: 3}}", "`method.ppo.kl.stop_after` is given, but only `stop_above` reads it"),
        (
            "ppo: {quirks: {target_kl_over: mini_batch}}",
            "`method.ppo.quirks.target_kl_over` is given, but only `target_kl` reads it",
        ),
        ("ppo: {quirks: {sum_parts: true}}", "`method.ppo.quirks.sum_parts` is given, but only `part_size` reads it"),
        (
            "ppo: {quirks: {length_weights: true}}",
            "`method.ppo.quirks.length_weights` is given, but only `part_size` or `mini_batches` above 1 reads it",
        ),
        (
            "trpo: {quirks: {whitening: {rewards: biased}}}",
            "`method.trpo.quirks.whitening.rewards` is given, but only `whiten_rewards` reads it",
        ),
        (
            "a2c: {quirks: {whitening: {center_rewards: true}}}",
            "`method.a2c.quirks.whitening.center_rewards` is given, but only `whiten_rewards` reads it",
        ),
        (
            "ppo: {whiten_advantages: false, quirks: {whitening: {advantages: biased}}}",
            "`method.ppo.quirks.whitening.advantages` is given, but only `whiten_advantages` reads it",
        ),
        (
            "ppo: {whiten_advantages: false, quirks: {whitening: {advantages_over: mini_batch}}}",
            "`method.ppo.quirks.whitening.advantages_over` is given, but only `whiten_advantages` reads it",
        ),
        ("nlpo: {top_k: 5, top_p: 0.5}", "`method.nlpo.top_p` is given, but only a mask without `top_k` reads it"),
        (
            "nlpo: {mask_model: policy, mask_update: frozen}",
            "`method.nlpo.mask_update` is given, but only `mask_model: lagged` reads it",
        ),
        (
            "nlpo: {mask_model: policy, mask_update_iterations: 3}",
            "`method.nlpo.mask_update_iterations` is given, but only `mask_model: lagged` reads it",
        ),
        (
            "nlpo: {mask_update: frozen, mask_update_iterations: 3}",
            "`method.nlpo.mask_update_iterations` is given, but only `mask_update: periodic` reads it",
        ),
    ] {
        let found = found(&format!("method: {{{keys}}}"));
        assert!(found.contains(expected) && found.lines().count() == 1, "{expected}: {found}");
    }
    for fine in [
        "method: {grpo: {}}\ntrain: {frozen_weights: nf4}",
        "method: {grpo: {loss_type: sapo, sapo_temperature_pos: 2, sapo_temperature_neg: 2}}",
        "method: {grpo: {use_adaptive_entropy: true, entropy_target: 1, entropy_coefficient_delta: 0.01, top_entropy_quantile: 0}}",
        "preset: dr_grpo\nmethod: {grpo: {multi_objective_aggregation: normalize_then_sum, scale_rewards: group}}",
        "method: {ppo: {kl: {target: 6, horizon: 20}}}",
        // A preset sets the epsilon of AdamW.
        "preset: rl4lms\nmethod: {ppo: {}}\ntrain: {optimizer: rmsprop}",
        "method: {ppo: {kl: {stop_above: 10, stop_after: 3}, target_kl: 0.1, quirks: {target_kl_over: mini_batch}}}",
        "method: {ppo: {quirks: {part_size: 2, sum_parts: true, length_weights: true}}}",
        "method: {ppo: {mini_batches: 2, quirks: {length_weights: true}}}\ntrain: {batch_size: 4}",
        "method: {ppo: {whiten_rewards: true, quirks: {whitening: {rewards: biased, advantages: biased}}}}",
        "method: {nlpo: {top_k: 5}}",
        "method: {nlpo: {mask_update_iterations: 3}}",
        "method: {nlpo: {mask_update: frozen}}",
        // The presets set these keys without their readers, or the word that turns the reader off.
        "preset: rl4lms\nmethod: {ppo: {whiten_advantages: false}}",
        "preset: rl4lms\nmethod: {nlpo: {mask_model: policy}}",
        "preset: rl4lms\nmethod: {nlpo: {mask_update_iterations: 30}}",
        "preset: fine_grained\nmethod: {ppo: {quirks: {part_size: null}}}",
        // A preset sets the rate.
        "preset: rl4lms\nmethod: {ppo: {kl: {target: null}}}",
        "method: {trpo: {kl: {target: 6, rate: 0.1}}}",
    ] {
        assert_fine(&format!("{MINIMAL}reward: {{model: rm}}\n{fine}\n"));
    }
}

#[test]
fn a_device_without_kernels_computes_in_f32() {
    let machine = Machine { devices: vec!["cpu".into(), "gpu".into()], ..Machine::detect() };
    let problems = |train: &str| {
        let text = format!("{MINIMAL}method: {{dpo: {{}}}}\ntrain: {train}\n");
        let found = rules::check(&RunConfig::parse(&text).expect("it reads"), &machine);
        found.into_iter().map(|found| found.diagnostic.message).collect::<Vec<_>>()
    };
    assert!(problems("{device: gpu, compute: f32, frozen_weights: f32}").is_empty());
    assert!(problems("{device: gpu, frozen_weights: nf4}").is_empty(), "each is expanded for its products");
    assert!(problems("{device: cpu, compute: bf16, frozen_weights: nf4}").is_empty());
    assert_eq!(
        problems("{device: 'gpu:0', compute: bf16, sampling_weights: int8}"),
        ["`train.compute` is `bf16`, but `gpu:0` multiplies in `f32` only"],
    );
    let machine = Machine { bf16_devices: vec!["gpu".into()], ..machine };
    let text = format!("{MINIMAL}method: {{sft: {{}}}}\ntrain: {{device: 'gpu:0', compute: bf16}}\n");
    assert!(rules::check(&RunConfig::parse(&text).expect("it reads"), &machine).is_empty());
}

#[test]
fn shape_and_rules_are_reported_together() {
    check(
        "method: {dpo: {beta: 0, loss_typ: ipo}}\n",
        &[
            "3:25+8 unknown key `loss_typ` in `method.dpo` (did you mean `loss_type`?)",
            "3:16+4 `method.dpo.beta` is 0, but must be above 0",
        ],
    );
}

fn flag(method: &str, name: &str, values: &[&str]) -> Flag {
    let specs = flags(&Schema::run_config(), Scope::Method(method));
    let spec = specs.into_iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("--{name}"));
    Flag { spec, written: format!("--{name}"), values: values.iter().map(|value| (*value).to_owned()).collect() }
}

#[test]
fn flags_make_a_configuration() {
    let flags = [
        flag("ppo", "model", &["gpt2"]),
        flag("ppo", "data", &["d.jsonl"]),
        flag("ppo", "kl-target", &["6"]),
        flag("ppo", "reward-command", &["sh 'my score.sh'"]),
        flag("ppo", "stop", &["\n", "User:"]),
        flag("ppo", "adam-betas", &["0.8,0.99"]),
        flag("ppo", "shuffle", &["false"]),
    ];
    let written = RunConfig::load(&Request { file: None, method: Some("ppo"), flags: &flags, ..Request::default() })
        .expect("fine");
    let MethodConfig::Ppo(ppo) = &written.config.method else { panic!("ppo was asked for") };
    assert_eq!((ppo.advantages.kl.target, &ppo.rollouts.stop), (Some(6.0), &vec!["\n".to_owned(), "User:".to_owned()]));
    assert_eq!(written.config.train.adam_betas, [0.8, 0.99]);
    assert!(!written.config.train.shuffle);
    assert_eq!(written.location("method.ppo.kl.target"), Some(&Location::Flag("--kl-target".into())));
    let reward = serde_json::to_value(&written.config.reward).expect("plain data");
    assert!(reward.to_string().contains(r#"["sh","my score.sh"]"#), "{reward}");
    // A list in the notation of a file also works on the command line.
    for list in ["[sh, my score.sh]", r#"["sh", "my score.sh"]"#] {
        let flags = [flag("ppo", "model", &["m"]), flag("ppo", "data", &["d"]), flag("ppo", "reward-command", &[list])];
        let written =
            RunConfig::load(&Request { file: None, method: Some("ppo"), flags: &flags, ..Request::default() })
                .expect("fine");
        assert_eq!(serde_json::to_value(&written.config.reward).expect("plain data"), reward);
    }
    for broken in ["[sh, ", "[{a: b}]", "[sh] score.sh"] {
        let flags =
            [flag("ppo", "model", &["m"]), flag("ppo", "data", &["d"]), flag("ppo", "reward-command", &[broken])];
        let error = RunConfig::load(&Request { file: None, method: Some("ppo"), flags: &flags, ..Request::default() })
            .expect_err(broken);
        assert!(error.to_string().contains("not a list of words"), "{error}");
    }
}

#[test]
fn a_flag_names_one_loss_or_several() {
    let dpo = |values: &[(&str, &str)]| {
        let mut flags = vec![flag("dpo", "model", &["gpt2"]), flag("dpo", "data", &["d.jsonl"])];
        flags.extend(values.iter().map(|(name, value)| flag("dpo", name, &[value])));
        let written =
            RunConfig::load(&Request { file: None, method: Some("dpo"), flags: &flags, ..Request::default() })?;
        let MethodConfig::Dpo(dpo) = written.config.method else { panic!("dpo was asked for") };
        Ok::<_, Error>((dpo.loss_type.to_string(), dpo.loss_weights))
    };
    assert_eq!(dpo(&[("loss-type", "hinge")]).expect("fine"), ("hinge".to_owned(), None));
    let several = dpo(&[("loss-type", "sigmoid,sft"), ("loss-weights", "1,0.5")]).expect("fine");
    assert_eq!(several, ("[sigmoid, sft]".to_owned(), Some(vec![1.0, 0.5])));
    let Err(Error::Config(found)) = dpo(&[("loss-type", "sigmoid,hing")]) else { panic!("no loss is called `hing`") };
    assert!(found[0].message.starts_with("`method.dpo.loss_type[1]` is the word `hing`"), "{}", found[0].message);
    assert_eq!(found[0].locations, [Location::Flag("--loss-type".into())]);
}

#[test]
fn flags_lie_over_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.yml");
    let text =
        "model: a\ndata: d\nmethod: {ppo: {clip_range: 0.1, kl: {coefficient: 0.3}}}\nreward: {rule: {substring: x}}\n";
    std::fs::write(&file, text).expect("written");
    let load =
        |method, flags: &[Flag]| RunConfig::load(&Request { file: Some(&file), method, flags, ..Request::default() });

    let flags = [flag("ppo", "kl-target", &["2"]), flag("ppo", "reward-model", &["rm"]), flag("ppo", "model", &["b"])];
    let config = load(Some("ppo"), &flags).expect("fine").config;
    let MethodConfig::Ppo(ppo) = &config.method else { panic!("ppo was asked for") };
    assert_eq!((ppo.clip_range, ppo.advantages.kl.coefficient, ppo.advantages.kl.target), (0.1, 0.3, Some(2.0)));
    assert_eq!((config.model.as_str(), config.data.from.as_deref().unwrap_or_default()), ("b", "d"));
    assert_eq!(serde_json::to_value(&config.reward).expect("plain data"), json!({ "model": "rm" }));

    let Err(Error::Config(found)) = load(Some("grpo"), &[]) else { panic!("another method") };
    assert_eq!(found[0].message, "the file configures `ppo`, but the command is `gradus grpo`");

    let Err(Error::Config(found)) = load(Some("ppo"), &[flag("ppo", "clip-range", &["wide"])]) else {
        panic!("a word")
    };
    assert_eq!(found[0].message, "`method.ppo.clip_range` is the word `wide`, but a number is needed");
    assert_eq!(found[0].locations, [Location::Flag("--clip-range".into())]);
}

#[test]
fn a_resolved_file_keeps_what_was_asked_for() {
    let written = RunConfig::parse("{model: a, data: d, method: {dpo: {beta: 0.2}}, train: {seed: 7}}").expect("fine");
    let plan = Plan::check(&written, &Machine::detect()).expect("fine");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("config.yml");
    std::fs::write(&file, plan.to_yaml()).expect("written");
    let flags = [flag("dpo", "max-steps", &["3"])];
    let again =
        RunConfig::load(&Request { file: Some(&file), method: Some("dpo"), flags: &flags, ..Request::default() })
            .expect("fine");
    let again = Plan::check(&again, &Machine::detect()).expect("fine");
    for (key, set) in [("model", true), ("method.dpo.beta", true), ("train.seed", true), ("train.max_steps", true)]
        .into_iter()
        .chain([("train.eval_fraction", false), ("method.dpo.loss_type", false), ("train.learning_rate", false)])
    {
        assert_eq!(again.is_set(key), set, "{key}");
    }
    let mut expected = plan.config().clone();
    expected.train.max_steps = Some(3);
    assert_eq!(again.config(), &expected);
}

#[test]
fn every_key_is_documented_and_defaults_in_words_are_the_defaults_in_code() {
    for key in explain(&Schema::run_config(), None).expect("all keys") {
        assert!(!key.doc.is_empty() || key.key.starts_with("reward.command."), "`{}` has no documentation", key.key);
        let Some(documented) = key.doc.split_once("Default ").map(|(_, rest)| rest) else { continue };
        let documented = match documented.strip_prefix('`') {
            Some(quoted) => quoted.split('`').next().unwrap_or_default(),
            None => documented.split([' ', '(', ';']).next().unwrap_or_default().trim_end_matches(['.', ',', ':']),
        };
        match &key.default {
            Some(Json::Number(number)) if documented.parse::<f64>().is_ok() => {
                assert_eq!(documented.parse::<f64>().ok(), number.as_f64(), "`{}`: {}", key.key, key.doc);
            }
            Some(Json::String(word)) => assert_eq!(documented, word, "`{}`: {}", key.key, key.doc),
            Some(Json::Bool(value)) => assert_eq!(documented, value.to_string(), "`{}`: {}", key.key, key.doc),
            _ => {}
        }
    }
}

#[test]
fn explains_keys() {
    let schema = Schema::run_config();
    let keys =
        |key| explain(&schema, Some(key)).map(|found| found.into_iter().map(|found| found.key).collect::<Vec<_>>());
    assert_eq!(keys("method.ppo.kl.target").expect("a key"), ["method.ppo.kl.target"]);
    assert_eq!(
        keys("clip_range").expect("a name"),
        ["method.ppo.clip_range", "method.nlpo.clip_range", "method.grpo.clip_range", "method.rloo.clip_range"]
    );
    let error = keys("clip_rnge").unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.hint()),
        ("there is no key `clip_rnge`", Some("did you mean `clip_range`?"))
    );
}

#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        text == markdown(&Schema::run_config()),
        "docs/config.md is out of date: write it again with `cargo run -- config explain --markdown > docs/config.md`"
    );
}

#[test]
fn a_mask_for_evaluations_does_not_go_with_a_search() {
    let text = |mask: bool| {
        let keys = format!("mask_at_eval: {mask}");
        format!(
            "{MINIMAL}reward: {{rule: {{length: {{target: 5}}}}}}\nmethod: {{nlpo: {{{keys}}}}}\ntrain: {{evaluation: {{beams: {{num_beams: 3}}}}}}\n"
        )
    };
    assert_eq!(
        shown(&text(true)),
        ["4:17+12 5:22+5 `method.nlpo.mask_at_eval` is true, but with `train.evaluation.beams` evaluations use beam \
             search: the mask applies only to sampling (set `mask_at_eval: false`, or leave out `beams`)"]
    );
    RunConfig::parse(&text(false)).expect("a configuration");
}

#[test]
fn beams_of_evaluations_are_a_few_at_least_and_may_stop_early() {
    let text = |beams: &str| {
        format!(
            "{MINIMAL}reward: {{rule: {{length: {{target: 5}}}}}}\nmethod: {{grpo: }}\ntrain: {{evaluation: {{beams: {beams}}}}}\n"
        )
    };
    assert_eq!(
        shown(&text("{early_stopping: true, num_beams: 1}")),
        ["5:52+9 `train.evaluation.beams.num_beams` is 1, but beam search needs at least 2 (leave `beams` out to \
             sample in evaluations)"]
    );
    for (word, expected) in [("true", "FirstEnded"), ("false", "Heuristic"), ("never", "Never")] {
        let config = RunConfig::parse(&text(&format!("{{early_stopping: {word}}}"))).expect("a configuration").config;
        assert!(format!("{config:?}").contains(&format!("early_stopping: {expected}")), "{word}");
    }
}

#[test]
fn logprobs_among_what_could_be_drawn_do_not_go_with_all_sampling() {
    let text = |method: &str, sampling: &str, train: &str| {
        format!(
            "{MINIMAL}reward: {{rule: {{length: {{target: 5}}}}}}\nmethod:\n  {method}:\n    sampling:\n      trained_logprobs: processed\n{sampling}train:\n  eval_steps: -1\n{train}"
        )
    };
    for method in ["ppo", "grpo"] {
        let key = |name: &str| format!("method.{method}.sampling.{name}");
        let (processed, penalty) = (key("trained_logprobs"), key("repetition_penalty"));
        assert_eq!(
            shown(&text(method, "      repetition_penalty: 1.2\n", "")),
            [format!(
                "7:7+16 8:7+18 `{processed}` is `processed`, but `{penalty}` is 1.2: training stores which tokens \
                 could be sampled, but not how much each was penalized (train on `raw` logprobs, or use \
                 `no_repeat_ngram_size`, which only bans)"
            )]
        );
        assert_eq!(
            shown(&text(method, "", "  sampling_weights: int8\n")),
            [format!(
                "7:7+16 10:3+16 `{processed}` is `processed`, but `train.sampling_weights` is set: completions are \
                 then sampled from the coarser weights, not from the policy (train on `raw` logprobs, which the policy \
                 computes again, or leave out `train.sampling_weights`)"
            )]
        );
        // All other keys can be combined with it.
        let others = "      top_k: 9\n      top_p: 0.9\n      min_p: 0.1\n      no_repeat_ngram_size: 3\n      suppress_tokens: [1]\n";
        let config = RunConfig::parse(&text(method, others, "")).expect("a configuration");
        Plan::check(&config, &Machine::detect()).expect("it holds");
    }
}

#[test]
fn every_recipe_of_qa_feedback_is_a_plan() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/qa_feedback");
    for part in ["", "small"] {
        for name in ["sft", "relevance", "factuality", "completeness", "preference", "fine_grained", "holistic"] {
            let path = folder.join(part).join(format!("{name}.yml"));
            let text = std::fs::read_to_string(&path).expect("a recipe");
            let config = RunConfig::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            Plan::check(&config, &Machine::detect()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

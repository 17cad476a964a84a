//! Plug-ins that a program registers by name.

use std::path::Path;
use std::sync::Arc;

use gradus_environments::{Environment, ToolSource};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::RunConfig;
use super::method::PluggedMethod;
use super::schema::{self, Field, Schema, Shape, text};
use crate::algorithm::{OnlineMethod, Plugged};
use crate::error::{Error, Result};
use crate::method::Method;
use crate::metric::{Metric, MetricConfig, Models};
use crate::model::CausalLm;
use crate::objective::{Objective, OfflineMethod, PluggedOffline};
use crate::observer::Observer;
use crate::plugin::{self, Kind, Named, Plugin};
use crate::reward::Reward;
use crate::reward::config::RewardConfig;
use crate::settings::{EnvironmentConfig, ToolConfig};
use crate::task::{DataConfig, PostProcess, PostProcessor, Task, TaskConfig};

/// Rewards, metrics, tasks, environments, tools, post-processors, observers and methods of a program, by the
/// names that configurations use.
///
/// Each is added with the type of its options, whose fields are the keys below the name. The schema of this type
/// determines which keys `config` accepts, suggests and explains.
///
/// ```
/// use gradus::config::{Registry, Request, RunConfig};
/// use gradus::reward::FnReward;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Brevity {
///     /// Number of words from which on the reward is 0.
///     words: usize,
/// }
///
/// let mut registry = Registry::default();
/// registry.reward("brevity", |options: &Brevity, _| {
///     let words = options.words as f32;
///     Ok(FnReward::new("brevity", move |_, rollout| {
///         Ok(Some((1.0 - rollout.completion.split(' ').count() as f32 / words).max(0.0)))
///     }))
/// })?;
/// let text = "{model: m, data: d, method: {grpo: {}}, reward: {plugin: {brevity: {wrds: 20}}}}";
/// let error = RunConfig::read(text, &Request { registry: Some(&registry), ..Request::default() }).unwrap_err();
/// assert!(error.to_string().contains("unknown key `wrds` in `reward.plugin.brevity`"));
/// # Ok::<(), gradus::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Registry {
    rewards: Named<dyn Reward>,
    metrics: Named<dyn Metric>,
    tasks: Named<dyn Task>,
    environments: Named<dyn Environment>,
    tools: Named<dyn ToolSource>,
    post_processors: Named<dyn PostProcessor>,
    observers: Named<dyn Observer>,
    methods: Named<dyn Method>,
}

/// Options of a plug-in: the keys below its name.
pub trait Options: DeserializeOwned + JsonSchema + Send + Sync + 'static {}

impl<O: DeserializeOwned + JsonSchema + Send + Sync + 'static> Options for O {}

/// Rejects options whose schema cannot check a configuration.
fn checked<O: JsonSchema>(kind: &str, name: &str) -> Result<()> {
    schema::options(&schemars::schema_for!(O).to_value(), "").map(drop).map_err(|message| {
        Error::input(format!("the options of the {kind} `{name}`: {message}"))
            .with_hint("options are structs of numbers, texts, truths, lists, words (enums), and such structs")
    })
}

impl Registry {
    /// Adds a reward: `reward: { plugin: { NAME: {…} } }`. `make` is called once per run, and may open models.
    ///
    /// # Errors
    /// If the name is not a word or is taken, or if the options are not a mapping. This applies to all kinds of plug-ins.
    pub fn reward<O: Options, R: Reward + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O, &dyn Models) -> Result<R> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn Reward as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.rewards.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move |models: &dyn Models| Ok(Box::new(make(&options, models)?) as Box<dyn Reward>))
        })
    }

    /// Adds a metric: `{ plugin: { NAME: {…} } }` in `train.evaluation.metrics`, and as a reward. `make` may open models.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn metric<O: Options, M: Metric + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O, &dyn Models) -> Result<M> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn Metric as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.metrics.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move |models: &dyn Models| Ok(Box::new(make(&options, models)?) as Box<dyn Metric>))
        })
    }

    /// Adds a task: `data: { task: { plugin: { NAME: {…} } } }`.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn task<O: Options, T: Task + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O) -> Result<T> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn Task as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.tasks.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move || Ok(Box::new(make(&options)?) as Box<dyn Task>))
        })
    }

    /// Adds an environment, which replies to the policy between its turns: `environment: { plugin: { NAME: {…} } }`.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn environment<O: Options, E: Environment + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O) -> Result<E> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn Environment as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.environments.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move || Ok(Arc::new(make(&options)?) as Arc<dyn Environment>))
        })
    }

    /// Adds a tool that the policy may call: `tools: [{ plugin: { NAME: {…} } }]`.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn tool<O: Options, S: ToolSource + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O) -> Result<S> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn ToolSource as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.tools.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move || Ok(Box::new(make(&options)?) as Box<dyn ToolSource>))
        })
    }

    /// Adds a post-processor, which changes completions before metrics: `train.evaluation.post_process: { plugin: { NAME: {…} } }`.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn post_processor<O: Options, P: PostProcessor + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O) -> Result<P> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn PostProcessor as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.post_processors.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move || Ok(Box::new(make(&options)?) as Box<dyn PostProcessor>))
        })
    }

    /// Adds an observer: `observers: [{ NAME: {…} }]`. `make` receives the path of the run directory. Before the first
    /// event, the directory may contain another run that this one replaces.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn observer<O: Options, W: Observer + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&O, &Path) -> Result<W> + Send + Sync + 'static,
    ) -> Result<()> {
        checked::<O>(<dyn Observer as Kind>::NAME, name)?;
        let make = Arc::new(make);
        self.observers.add(name, move |options: O| {
            let make = Arc::clone(&make);
            Arc::new(move |run: &Path| Ok(Box::new(make(&options, run)?) as Box<dyn Observer>))
        })
    }

    /// Adds an online method whose keys are the fields of `M`: `method: { plugin: { NAME: {…} } }`.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn online_method<M: OnlineMethod + Options>(&mut self, name: &str) -> Result<()> {
        checked::<M>(<dyn Method as Kind>::NAME, name)?;
        self.methods.add(name, |keys: M| Arc::new(PluggedMethod::Online(Plugged::new(keys))))
    }

    /// Adds a method that trains a language model on fixed examples with its own loss: `method: { plugin: { NAME: {…} } }`.
    /// Its keys are the fields of `M`.
    ///
    /// # Errors
    /// As [`reward`](Self::reward).
    pub fn offline_method<M>(&mut self, name: &str) -> Result<()>
    where
        M: OfflineMethod<Objective: Objective<Model = CausalLm>> + Options,
    {
        checked::<M>(<dyn Method as Kind>::NAME, name)?;
        self.methods.add(name, |keys: M| Arc::new(PluggedMethod::Offline(PluggedOffline::new(keys))))
    }

    /// Returns the kind, name and options schema of every plug-in.
    pub(super) fn schemas(&self) -> impl Iterator<Item = (&'static str, &str, &Value)> {
        fn of<T: Kind + ?Sized>(named: &Named<T>) -> impl Iterator<Item = (&'static str, &str, &Value)> {
            named.schemas().map(|(name, schema)| (T::NAME, name, schema))
        }
        of(&self.rewards)
            .chain(of(&self.metrics))
            .chain(of(&self.tasks))
            .chain(of(&self.environments))
            .chain(of(&self.tools))
            .chain(of(&self.post_processors))
            .chain(of(&self.observers))
            .chain(of(&self.methods))
    }

    /// Binds every plug-in of `config` to its constructor. A configuration that was read with the registry is already bound.
    ///
    /// # Errors
    /// [`Error::Config`] with every plug-in that is not registered, or whose options do not match.
    pub fn bind(&self, config: &mut RunConfig) -> Result<()> {
        let mut problems = Vec::new();
        plugins(config, &mut |plugin, key| {
            let bound = match plugin {
                AnyPlugin::Reward(plugin) => plugin.bind(&self.rewards),
                AnyPlugin::Metric(plugin) => plugin.bind(&self.metrics),
                AnyPlugin::Task(plugin) => plugin.bind(&self.tasks),
                AnyPlugin::Environment(plugin) => plugin.bind(&self.environments),
                AnyPlugin::Tool(plugin) => plugin.bind(&self.tools),
                AnyPlugin::PostProcessor(plugin) => plugin.bind(&self.post_processors),
                AnyPlugin::Observer(plugin) => plugin.bind(&self.observers),
                AnyPlugin::Method(plugin) => plugin.bind(&self.methods),
            };
            if let Err(message) = bound {
                let message = format!("`{key}`: {message}");
                problems.push(crate::error::Diagnostic { message, locations: Vec::new(), hint: None });
            }
        });
        if problems.is_empty() { Ok(()) } else { Err(Error::Config(problems)) }
    }
}

/// A plug-in of a configuration.
pub(super) enum AnyPlugin<'a> {
    Reward(&'a mut Plugin<dyn Reward>),
    Metric(&'a mut Plugin<dyn Metric>),
    Task(&'a mut Plugin<dyn Task>),
    Environment(&'a mut Plugin<dyn Environment>),
    Tool(&'a mut Plugin<dyn ToolSource>),
    PostProcessor(&'a mut Plugin<dyn PostProcessor>),
    Observer(&'a mut Plugin<dyn Observer>),
    Method(&'a mut Plugin<dyn Method>),
}

impl AnyPlugin<'_> {
    /// Returns the problem of a plug-in without a constructor.
    pub(super) fn unbound(&self) -> Option<String> {
        fn of<T: Kind + ?Sized>(plugin: &Plugin<T>) -> Option<String> {
            plugin.make().err().map(|error| error.to_string())
        }
        match self {
            Self::Reward(plugin) => of(plugin),
            Self::Metric(plugin) => of(plugin),
            Self::Task(plugin) => of(plugin),
            Self::Environment(plugin) => of(plugin),
            Self::Tool(plugin) => of(plugin),
            Self::PostProcessor(plugin) => of(plugin),
            Self::Observer(plugin) => of(plugin),
            Self::Method(plugin) => of(plugin),
        }
    }
}

/// Calls `see` with every plug-in of `config` and its key.
pub(super) fn plugins(config: &mut RunConfig, see: &mut dyn FnMut(AnyPlugin<'_>, &str)) {
    let data = |data: &mut DataConfig, key: &str, see: &mut dyn FnMut(AnyPlugin<'_>, &str)| match &mut data.task {
        Some(TaskConfig::Plugin(plugin)) => see(AnyPlugin::Task(plugin), &format!("{key}.task.plugin")),
        Some(TaskConfig::Command(task)) => metrics(&mut task.metrics, &format!("{key}.task.command.metrics"), see),
        _ => {}
    };
    data(&mut config.data, "data", see);
    for (i, mixed) in config.mix.iter_mut().enumerate() {
        data(&mut mixed.data, &format!("mix[{i}].data"), see);
    }
    if let Some(held_out) = &mut config.eval_data {
        data(held_out, "eval_data", see);
    }
    if let Some(test) = &mut config.test_data {
        data(test, "test_data", see);
    }
    if let Some(EnvironmentConfig::Plugin(plugin)) = &mut config.environment {
        see(AnyPlugin::Environment(plugin), "environment.plugin");
    }
    for (i, tool) in config.tools.iter_mut().enumerate() {
        if let ToolConfig::Plugin(plugin) = tool {
            see(AnyPlugin::Tool(plugin), &format!("tools[{i}].plugin"));
        }
    }
    if let Some(plugin) = config.method.plugin_mut() {
        see(AnyPlugin::Method(plugin), "method.plugin");
    }
    if let Some(reward) = &mut config.reward {
        of_reward(reward, "reward", see);
    }
    let evaluation = &mut config.train.evaluation;
    metrics(&mut evaluation.metrics, "train.evaluation.metrics", see);
    if let Some(PostProcess::Plugin(plugin)) = &mut evaluation.post_process {
        see(AnyPlugin::PostProcessor(plugin), "train.evaluation.post_process.plugin");
    }
    for (i, observer) in config.observers.iter_mut().enumerate() {
        see(AnyPlugin::Observer(observer), &format!("observers[{i}]"));
    }
}

fn metrics(metrics: &mut [MetricConfig], key: &str, see: &mut dyn FnMut(AnyPlugin<'_>, &str)) {
    for (i, metric) in metrics.iter_mut().enumerate() {
        of_metric(metric, &format!("{key}[{i}]"), see);
    }
}

fn of_metric(metric: &mut MetricConfig, key: &str, see: &mut dyn FnMut(AnyPlugin<'_>, &str)) {
    if let MetricConfig::Plugin(plugin) = metric {
        see(AnyPlugin::Metric(plugin), &format!("{key}.plugin"));
    }
}

fn of_reward(reward: &mut RewardConfig, key: &str, see: &mut dyn FnMut(AnyPlugin<'_>, &str)) {
    match reward {
        RewardConfig::Plugin(plugin) => see(AnyPlugin::Reward(plugin), &format!("{key}.plugin")),
        RewardConfig::Metric(metric) => of_metric(metric, &format!("{key}.metric"), see),
        RewardConfig::Mix(parts) => {
            for (i, part) in parts.iter_mut().enumerate() {
                of_reward(&mut part.reward, &format!("{key}.mix[{i}].reward"), see);
            }
        }
        RewardConfig::Model(_) | RewardConfig::Classifier(_) | RewardConfig::Rule(_) | RewardConfig::Toxicity(_) => {}
        RewardConfig::Command(_) | RewardConfig::Judge(_) | RewardConfig::Code(_) | RewardConfig::FineGrained(_) => {}
    }
}

impl Schema {
    /// Returns the shape of [`RunConfig`] in a program with the plug-ins of `registry`.
    pub fn with(registry: &Registry) -> Self {
        let mut made = Self::run_config();
        for (kind, name, schema) in registry.schemas() {
            let (shape, parts) =
                schema::options(schema, &format!("{kind}.{name}.")).expect("checked when it was added");
            made.definitions.extend(parts);
            let doc = text(schema, "description");
            let side = Field { name: name.to_owned(), doc, required: false, nullable: false, default: None, shape };
            let all = made.definitions.entry(plugin::definition(kind)).or_insert_with(|| Shape::Choice(Vec::new()));
            if let Shape::Choice(sides) = all {
                sides.push(side);
            }
        }
        made
    }
}

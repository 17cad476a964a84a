//! Models of the server: those in the folder and those given by name, and the loaded ones.
//!
//! Requests select a model by its name in the list, never by a path, so nothing outside the list can be reached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gradus::config::RunConfig;
use gradus::device::DeviceChoice;
use gradus::inference::{ChatFormat, ChatJudge, ChatOptions, SegmentsJudge, Session, model_of};
use gradus::model::{ModelDir, ModelShape, Precision, Scope, Task, WeightFormat};
use gradus::pretrained::{Pretrained, TextFiles};
use gradus::reward::fine_grained::SegmentConfig;
use gradus::runs::is_run;
use gradus::text::ChatTemplate;
use gradus::{Error, Result};
use tokio::sync::Mutex as AsyncMutex;

use crate::actor::{Actor, Work};
use crate::judge::Judge;
use crate::model_queue::ModelQueue;
use crate::serving::Pause;

/// Maximum depth at which models are searched (`runs/demo/ppo/checkpoints/step-000100`).
const DEPTH_MAX: usize = 6;

/// Directory in which a run saves its critic.
const CRITIC: &str = "critic";

/// Suffix of a run's name that denotes its reward.
const ITS_REWARD: &str = " (its reward)";

/// Maximum size of a configuration file that is searched for a reward.
const CONFIG_BYTES: u64 = 1 << 20;

/// Maximum number of models in memory. The least recently used one is removed.
const LOADED_MAX: usize = 4;

/// Purpose of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Generates answers.
    Language,
    /// Scores answers.
    Reward,
    /// A classifier that judges segments of answers or gives a text one number.
    Classifier,
    /// The reward of a run whose segments are judged by models.
    Parts,
}

impl Kind {
    /// Returns whether the model scores answers.
    pub fn is_judge(self) -> bool {
        self != Self::Language
    }
}

/// A model in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// Name: the path relative to the folder with `/`, or the given name.
    pub name: String,
    /// Directory of the model or its run.
    pub path: PathBuf,
    /// Purpose of the model.
    pub kind: Kind,
}

/// Settings of computing.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeOptions {
    /// Device of the models.
    pub device: DeviceChoice,
    /// Number format of the weights of language models.
    pub weights: WeightFormat,
    /// Number of completions that one model samples together; at least 1.
    pub places: usize,
}

/// All models of the server.
pub struct Models {
    root: PathBuf,
    named: Vec<ModelEntry>,
    /// Replacements for the tokenizer and chat template of the named language models.
    text: TextFiles,
    computing: ComputeOptions,
    queues: Loaded<ModelQueue>,
    judges: Loaded<Judge>,
    /// All desks that were opened and may still exist.
    opened: Mutex<Vec<Weak<Actor<ModelQueue>>>>,
    /// Changes made by programs.
    changed: RwLock<ModelChanges>,
    /// Pause of all language models.
    pub pause: Pause,
}

/// Changes made by programs.
#[derive(Default)]
struct ModelChanges {
    /// Added or replaced models, by name.
    placed: BTreeMap<String, InstalledModel>,
    /// Versions of weights that were not replaced.
    versions: BTreeMap<String, String>,
}

/// A model that a program has added (an adapter) or that replaces one of the folder. It stays in memory until it is removed or replaced.
#[derive(Clone)]
pub struct InstalledModel {
    /// Actor with the model.
    pub queue: Arc<Actor<ModelQueue>>,
    /// Path that it was read from.
    pub path: PathBuf,
    /// Name of the base model of an adapter. `None` if the model replaces another one.
    pub base: Option<String>,
    /// Version of the weights.
    pub version: String,
}

/// A language model for a request, with its current weights.
pub struct ServedModel {
    /// Actor with the model.
    pub queue: Arc<Actor<ModelQueue>>,
    /// Version of the weights.
    pub version: String,
}

/// Version of weights without a given name, as in vLLM.
const FIRST_VERSION: &str = "default";

/// Loaded models, most recently used last. The lock is held while a model loads, so that none is loaded twice.
type Loaded<T> = AsyncMutex<Vec<(String, Arc<Actor<T>>)>>;

impl Models {
    /// Finds the models below `root`, and the models `named`, which may be elsewhere or on the hub. `text` replaces the tokenizer and
    /// chat template of the named language models.
    ///
    /// # Errors
    /// A named model cannot be opened, or `text` does not fit it.
    pub fn new(root: &Path, named: &[String], text: TextFiles, computing: ComputeOptions) -> Result<Self> {
        let open = |name: &String| {
            let path = model_of(Path::new(name))?;
            let path = if path.is_dir() { path } else { gradus::model::resolve(name, &mut |_, _, _| {})? };
            let dir = ModelDir::open(&path)?;
            let kind = kind(&dir).ok_or_else(|| {
                Error::input(format!("`{name}` can neither answer nor score answers"))
                    .with_hint("`gradus score --classifier` reads texts with classifiers of whole texts")
            })?;
            // Models load at their first request, but a wrong file is refused at the start.
            if kind == Kind::Language && text != TextFiles::default() {
                Pretrained::of(dir, &text)?;
            }
            Ok(ModelEntry { name: name.trim_end_matches('/').to_owned(), kind, path })
        };
        let named = named.iter().map(open).collect::<Result<_>>()?;
        Ok(Self {
            root: root.to_owned(),
            named,
            text,
            computing,
            queues: AsyncMutex::default(),
            judges: AsyncMutex::default(),
            opened: Mutex::default(),
            changed: RwLock::default(),
            pause: Pause::default(),
        })
    }

    /// Returns all available models: named ones first, then by name, then adapters added by programs.
    pub fn list(&self) -> Vec<ModelEntry> {
        let mut all = self.own();
        let changed = self.changed();
        let adapters = changed.placed.iter().filter(|(_, placed)| placed.base.is_some());
        let of = |(name, placed): (&String, &InstalledModel)| ModelEntry {
            name: name.clone(),
            path: placed.path.clone(),
            kind: Kind::Language,
        };
        all.extend(adapters.map(of));
        all
    }

    /// Returns the list without the programs' additions.
    fn own(&self) -> Vec<ModelEntry> {
        let mut found = Vec::new();
        walk(&self.root, "", 0, &mut BTreeSet::new(), &mut found);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let mut all = self.named.clone();
        all.extend(found.into_iter().filter(|found| !self.named.iter().any(|named| named.name == found.name)));
        all
    }

    fn changed(&self) -> RwLockReadGuard<'_, ModelChanges> {
        self.changed.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, ModelChanges> {
        self.changed.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the settings of computing.
    pub fn computing(&self) -> ComputeOptions {
        self.computing.clone()
    }

    /// Returns the replacements for the tokenizer and chat template of a model.
    pub fn text_of(&self, name: &str) -> TextFiles {
        match self.named.iter().any(|named| named.name == name) {
            true => self.text.clone(),
            false => TextFiles::default(),
        }
    }

    /// Returns the number format of the weights of language models.
    pub fn weights(&self) -> WeightFormat {
        self.computing.weights
    }

    /// Returns the default model: the first one that was named, or the only one in the folder.
    ///
    /// # Errors
    /// There is none, or the folder has several.
    pub fn main(&self) -> Result<String> {
        let is_language = |found: &&ModelEntry| found.kind == Kind::Language;
        if let Some(first) = self.named.iter().find(is_language) {
            return Ok(first.name.clone());
        }
        let own = self.own();
        let mut models = outermost(&own).filter(is_language);
        match (models.next(), models.next()) {
            (Some(only), None) => Ok(only.name.clone()),
            (None, _) => Err(Error::input("there is no language model here")),
            (Some(_), Some(_)) => Err(Error::input("the request has no `model`, and the server has several")
                .with_hint("name one in the request, or start the server with `--model` for the right one")),
        }
    }

    /// Returns the version of a model's weights.
    pub fn version(&self, name: &str) -> String {
        self.changed().version(name)
    }

    /// Sets the version of a model's weights.
    pub fn set_version(&self, name: &str, version: String) {
        let mut changed = self.change();
        match changed.placed.get_mut(name) {
            Some(placed) => placed.version = version,
            None => drop(changed.versions.insert(name.to_owned(), version)),
        }
    }

    /// Adds a model, or replaces one. Completions in progress finish with the old model.
    pub async fn place(&self, name: &str, placed: InstalledModel) {
        self.note(&placed.queue);
        self.change().placed.insert(name.to_owned(), placed);
        self.queues.lock().await.retain(|(loaded, _)| loaded != name);
    }

    /// Removes an adapter that a program has added. Returns whether it existed.
    pub fn remove_adapter(&self, name: &str) -> bool {
        let is_there = self.is_adapter(name);
        is_there && self.change().placed.remove(name).is_some()
    }

    /// Returns whether a program has added an adapter under this name.
    pub fn is_adapter(&self, name: &str) -> bool {
        self.base_of(name).is_some()
    }

    /// Returns the base model of an adapter that a program has added.
    pub fn base_of(&self, name: &str) -> Option<String> {
        self.changed().placed.get(name)?.base.clone()
    }

    /// Returns the number of adapters that programs have added.
    pub fn adapters(&self) -> usize {
        self.changed().placed.values().filter(|placed| placed.base.is_some()).count()
    }

    /// Returns the maximum number of tokens of a prompt and its completion, if there is a limit.
    pub fn positions(&self, found: &ModelEntry) -> Option<usize> {
        let base = self.base_of(&found.name);
        let path = match &base {
            Some(base) => self.own().into_iter().find(|found| found.name == *base)?.path,
            None => found.path.clone(),
        };
        positions_at(&path)
    }

    /// Returns the format in which a language model of `all` reads conversations, without loading the model. `None` if its files cannot be
    /// read.
    pub fn format(&self, all: &[ModelEntry], name: &str) -> Option<ChatFormat> {
        // An adapter has the files of its base model.
        let name = self.base_of(name).unwrap_or_else(|| name.to_owned());
        let text = self.text_of(&name);
        if text.chat_template.is_some() {
            return Some(ChatFormat::Template);
        }
        let found = all.iter().find(|found| found.kind == Kind::Language && found.name == name)?;
        let dir = ModelDir::open(&model_of(&found.path).ok()?).ok()?;
        let tokenizer = text.tokenizer.map(PathBuf::from).filter(|path| path.is_dir());
        Some(match tokenizer.as_deref().unwrap_or(dir.tokenizer_dir()) {
            path if ChatTemplate::is_in(path).ok()? => ChatFormat::Template,
            _ if dir.has_encoder().ok()? => ChatFormat::Plain,
            _ => ChatFormat::Hh,
        })
    }

    fn note(&self, queue: &Arc<Actor<ModelQueue>>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|queue| queue.strong_count() > 0);
        if !opened.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue))) {
            opened.push(Arc::downgrade(queue));
        }
    }

    /// Returns all language models that are loaded or still sample.
    pub fn all_queues(&self) -> Vec<Arc<Actor<ModelQueue>>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().filter_map(Weak::upgrade).collect()
    }

    /// Finds the model `name`.
    ///
    /// # Errors
    /// There is no such model that generates, or with `is_judge` that scores answers.
    fn find(&self, name: &str, is_judge: bool) -> Result<ModelEntry> {
        let found = self.list().into_iter().find(|found| found.name == name);
        match found {
            Some(found) if found.kind.is_judge() == is_judge => Ok(found),
            Some(_) if is_judge => Err(Error::input(format!("`{name}` is not a reward model"))),
            Some(_) => Err(Error::input(format!("`{name}` is a reward model, which does not answer"))),
            None => Err(Error::input(format!("there is no model `{name}`"))
                .with_hint("`/v1/models` and the page of models list the models")),
        }
    }

    /// Finds the language model `name`.
    ///
    /// # Errors
    /// It does not exist.
    pub fn language(&self, name: &str) -> Result<ModelEntry> {
        self.find(name, false)
    }

    /// Returns the language model `name`, loaded.
    ///
    /// # Errors
    /// It does not exist, or cannot be loaded.
    pub async fn queue(&self, name: &str) -> Result<Arc<Actor<ModelQueue>>> {
        Ok(self.served(name).await?.queue)
    }

    /// Returns the language model `name`, loaded, with the version of its weights.
    ///
    /// # Errors
    /// It does not exist, or cannot be loaded.
    pub async fn served(&self, name: &str) -> Result<ServedModel> {
        let version = {
            let changed = self.changed();
            if let Some(placed) = changed.placed.get(name) {
                return Ok(ServedModel { queue: Arc::clone(&placed.queue), version: placed.version.clone() });
            }
            changed.version(name)
        };
        let paused = self.pause.flag();
        let open = || async {
            let found = self.find(name, false)?;
            let ComputeOptions { device, weights, places } = self.computing.clone();
            let model = found.path.to_string_lossy().into_owned();
            let (compute, text) = (Precision::F32, self.text_of(name));
            let options = ChatOptions { model, adapter: None, compute, weights, text, format: None, device };
            Actor::start(move || Ok(ModelQueue::new(Session::open(&options, places)?, paused))).await
        };
        let queue = loaded(&self.queues, name, open).await?;
        self.note(&queue);
        Ok(ServedModel { queue, version })
    }

    /// Returns the reward model or segment reward `name`, loaded.
    ///
    /// # Errors
    /// It does not exist, or cannot be loaded.
    pub async fn judge(&self, name: &str) -> Result<Arc<Actor<Judge>>> {
        let open = || async {
            let ModelEntry { path, kind, .. } = self.find(name, true)?;
            let (device, root) = (self.computing.device.clone(), self.root.clone());
            let named: Vec<PathBuf> = self.named.iter().map(|named| named.path.clone()).collect();
            Actor::start(move || {
                let name = path.to_string_lossy();
                Ok(match kind {
                    Kind::Parts => {
                        let parts = parts(&path).into_iter();
                        let parts = parts.map(|part| confined(part, &root, &named)).collect::<Result<_>>()?;
                        Judge::Segments(SegmentsJudge::of_parts(parts, &device)?)
                    }
                    Kind::Classifier => Judge::Segments(SegmentsJudge::open(&name, &device)?),
                    _ => Judge::Whole(Box::new(ChatJudge::open(&name, Precision::F32, &device)?)),
                })
            })
            .await
        };
        loaded(&self.judges, name, open).await
    }
}

impl ModelChanges {
    /// Returns the version of a model's weights.
    fn version(&self, name: &str) -> String {
        let placed = self.placed.get(name).map(|placed| &placed.version);
        placed.or_else(|| self.versions.get(name)).map_or_else(|| FIRST_VERSION.to_owned(), String::clone)
    }
}

/// Returns the models that are not inside another one: a run is included, its checkpoints are not.
pub fn outermost(all: &[ModelEntry]) -> impl Iterator<Item = &ModelEntry> {
    let is_within = |found: &ModelEntry, other: &ModelEntry| {
        found.name.strip_prefix(other.name.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    all.iter().filter(move |found| !all.iter().any(|other| is_within(found, other)))
}

/// Returns the actor `name` of `all`, opening it if necessary. The least recently used one is removed.
async fn loaded<T, F>(all: &Loaded<T>, name: &str, open: impl FnOnce() -> F) -> Result<Arc<Actor<T>>>
where
    T: Work + 'static,
    F: Future<Output = Result<Actor<T>>>,
{
    let mut all = all.lock().await;
    let mut there = None;
    if let Some(at) = all.iter().position(|(known, _)| known == name) {
        let (_, actor) = all.remove(at);
        // An actor that has panicked is loaded again.
        there = actor.is_open().then_some(actor);
    }
    let actor = match there {
        Some(actor) => actor,
        None => {
            // An actor that is in use continues until its last answer has ended.
            if all.len() >= LOADED_MAX {
                all.remove(0);
            }
            Arc::new(open().await?)
        }
    };
    all.push((name.to_owned(), Arc::clone(&actor)));
    Ok(actor)
}

/// Returns the maximum number of tokens of a prompt and its completion for the model or run in `path`, if there is a limit.
pub fn positions_at(path: &Path) -> Option<usize> {
    ModelShape::of(&ModelDir::open(&model_of(path).ok()?).ok()?).ok()?.max_positions
}

/// Returns the purpose of a model. `None` if it neither generates nor scores answers.
fn kind(dir: &ModelDir) -> Option<Kind> {
    if !dir.is_encoder() {
        return Some(if dir.is_reward_model() { Kind::Reward } else { Kind::Language });
    }
    // With several labels of a whole text, it is unknown which one is good.
    let task = Task::of(dir).ok()?;
    (task.scope == Scope::Token || task.labels.len() == 1).then_some(Kind::Classifier)
}

/// A part of a reward: its name, its weight, and the settings of its model.
type RewardPartConfig = (String, f64, SegmentConfig);

/// Returns the segment rewards of the run in `path`. Empty if its configuration cannot be read.
fn parts(path: &Path) -> Vec<RewardPartConfig> {
    let path = path.join("config.yml");
    let is_small = path.metadata().is_ok_and(|found| found.is_file() && found.len() <= CONFIG_BYTES);
    let text = if is_small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    // Most runs have none, so parsing is skipped.
    if !text.contains("fine_grained:") {
        return Vec::new();
    }
    let reward = RunConfig::parse(&text).ok().and_then(|written| written.config.reward);
    let parts = reward.iter().flat_map(|reward| reward.segments());
    parts.map(|(name, weight, part)| (name.to_owned(), weight, part.clone())).collect()
}

/// Resolves the model of a part. It must be in the folder or named at the start: a configuration file in the folder must not cause reads
/// elsewhere or requests to the hub.
fn confined((name, weight, part): RewardPartConfig, root: &Path, named: &[PathBuf]) -> Result<RewardPartConfig> {
    let here = |path: PathBuf| path.canonicalize().ok();
    // Paths are relative to the directory where the run started: the folder, or the server's working directory.
    let known = [here(root.join(&part.model)), here(PathBuf::from(&part.model))].into_iter().flatten();
    let is_ours =
        |path: &PathBuf| path.starts_with(root) || named.iter().any(|named| here(named.clone()).as_ref() == Some(path));
    let Some(model) = known.into_iter().find(is_ours) else {
        let message = format!("`{}` of the part `{name}` is outside of the folder", part.model);
        return Err(Error::input(message).with_hint("start the server with `--model` for it"));
    };
    Ok((name, weight, SegmentConfig { model: model.to_string_lossy().into_owned(), ..part }))
}

/// Skips what cannot be opened, because it is not a model.
fn walk(at: &Path, name: &str, depth: usize, seen: &mut BTreeSet<PathBuf>, found: &mut Vec<ModelEntry>) {
    // Prevents endless recursion through links.
    let Ok(real) = at.canonicalize() else { return };
    if !seen.insert(real) {
        return;
    }
    let own = |path: &Path| {
        let model = model_of(path).ok()?;
        Some(ModelEntry { name: name.to_owned(), path: path.to_owned(), kind: kind(&ModelDir::open(&model).ok()?)? })
    };
    let is_model = at.join("config.json").is_file() || at.join("adapter_config.json").is_file();
    if depth > 0 && (is_model || is_run(at)) {
        found.extend(own(at));
        if is_run(at) && !parts(at).is_empty() {
            found.push(ModelEntry { name: format!("{name}{ITS_REWARD}"), path: at.to_owned(), kind: Kind::Parts });
        }
    }
    if is_model || depth == DEPTH_MAX {
        return;
    }
    for path in std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let Some(own) = path.file_name().and_then(|own| own.to_str()).filter(|own| !own.starts_with('.')) else {
            continue;
        };
        // The critic of a run has the form of a reward model, but predicts returns of the run's own policy.
        let is_critic = own == CRITIC && is_run(at);
        // A link may lead out of the folder.
        if path.is_dir() && !path.is_symlink() && !is_critic {
            let name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
            walk(&path, &name, depth + 1, seen, found);
        }
    }
}

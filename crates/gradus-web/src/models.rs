//! The models that can be served: those below the folder and those that were named; and those that are loaded.
//!
//! A model is asked for by its name in the list, never by a path, so nothing outside the list can be reached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gradus::config::RunConfig;
use gradus::device::DeviceChoice;
use gradus::inference::{ChatJudge, ChatOptions, SegmentsJudge, Session, model_of};
use gradus::model::{ModelDir, ModelShape, Precision, Scope, Task, WeightFormat};
use gradus::pretrained::TextFiles;
use gradus::reward::fine_grained::SegmentConfig;
use gradus::runs::is_run;
use gradus::{Error, Result};
use tokio::sync::Mutex as AsyncMutex;

use crate::actor::{Actor, Work};
use crate::desk::Desk;
use crate::judge::Judge;
use crate::serving::Pause;

/// Models may lie in folders (`runs/demo/ppo/checkpoints/step-000100`), but not deeper than this.
const DEPTH_MAX: usize = 6;

/// Where a run saves its critic.
const CRITIC: &str = "critic";

/// What the reward of a run is called, behind the run's name.
const ITS_REWARD: &str = " (its reward)";

/// The largest configuration that is looked into for a reward.
const CONFIG_BYTES: u64 = 1 << 20;

/// Models in memory at once; who was asked last stays.
const LOADED_MAX: usize = 4;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It answers.
    Language,
    /// It scores answers.
    Reward,
    /// It judges the segments of answers, or gives a number of a text: a classifier.
    Classifier,
    /// What a run is rewarded with, where models judge segments for it.
    Parts,
}

impl Kind {
    /// Whether it says what answers are worth.
    pub fn is_judge(self) -> bool {
        self != Self::Language
    }
}

/// A model of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it is called: its path below the folder, with `/`; of one that was named, the name.
    pub name: String,
    /// Its directory, or that of its run.
    pub path: PathBuf,
    /// What it is for.
    pub kind: Kind,
}

/// How models are computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Computing {
    /// Where.
    pub device: DeviceChoice,
    /// How the weights of language models are held.
    pub weights: WeightFormat,
    /// Completions sampled side by side by one model.
    pub places: usize,
}

/// The models.
pub struct Models {
    root: PathBuf,
    named: Vec<Found>,
    computing: Computing,
    desks: Loaded<Desk>,
    judges: Loaded<Judge>,
    /// Every desk that was opened and may still be there.
    opened: Mutex<Vec<Weak<Actor<Desk>>>>,
    /// What programs have changed.
    changed: RwLock<Changed>,
    /// Whether language models sample at all.
    pub pause: Pause,
}

/// What programs have changed.
#[derive(Default)]
struct Changed {
    /// By name.
    placed: BTreeMap<String, Placed>,
    /// What weights are called that were not replaced.
    versions: BTreeMap<String, String>,
}

/// A model that a program has put beside those of the folder (an adapter), or in the place of one. It stays in memory until it
/// is removed or replaced.
#[derive(Clone)]
pub struct Placed {
    /// It.
    pub desk: Arc<Actor<Desk>>,
    /// Where it was read from.
    pub path: PathBuf,
    /// The name of the model that it is an adapter of; none where it replaces a model.
    pub base: Option<String>,
    /// What its weights are called.
    pub version: String,
}

/// A language model that a request asks, with the weights that it has from now on.
pub struct Served {
    /// It.
    pub desk: Arc<Actor<Desk>>,
    /// What its weights are called.
    pub version: String,
}

/// What weights are called that nobody has given a name (vLLM's word).
const FIRST_VERSION: &str = "default";

/// Those that are loaded, the last asked for last. The lock is held while one loads, so that none is loaded twice.
type Loaded<T> = AsyncMutex<Vec<(String, Arc<Actor<T>>)>>;

impl Models {
    /// The models below `root`, and those that were named, which may lie elsewhere or on the hub.
    ///
    /// # Errors
    /// When one that was named cannot be opened.
    pub fn new(root: &Path, named: &[String], computing: Computing) -> Result<Self> {
        let open = |name: &String| {
            let path = model_of(Path::new(name))?;
            let path = if path.is_dir() { path } else { gradus::model::resolve(name, &mut |_, _, _| {})? };
            let kind = kind(&ModelDir::open(&path)?).ok_or_else(|| {
                Error::input(format!("`{name}` neither answers nor says what answers are worth"))
                    .with_hint("`gradus score --classifier` reads texts with classifiers of whole texts")
            })?;
            Ok(Found { name: name.trim_end_matches('/').to_owned(), kind, path })
        };
        let named = named.iter().map(open).collect::<Result<_>>()?;
        Ok(Self {
            root: root.to_owned(),
            named,
            computing,
            desks: AsyncMutex::default(),
            judges: AsyncMutex::default(),
            opened: Mutex::default(),
            changed: RwLock::default(),
            pause: Pause::default(),
        })
    }

    /// All that can be asked for now: those that were named first, then by name; adapters that programs have added last.
    pub fn list(&self) -> Vec<Found> {
        let mut all = self.own();
        let changed = self.changed();
        let adapters = changed.placed.iter().filter(|(_, placed)| placed.base.is_some());
        let of = |(name, placed): (&String, &Placed)| Found {
            name: name.clone(),
            path: placed.path.clone(),
            kind: Kind::Language,
        };
        all.extend(adapters.map(of));
        all
    }

    /// The list without what programs have added.
    fn own(&self) -> Vec<Found> {
        let mut found = Vec::new();
        walk(&self.root, "", 0, &mut BTreeSet::new(), &mut found);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let mut all = self.named.clone();
        all.extend(found.into_iter().filter(|found| !self.named.iter().any(|named| named.name == found.name)));
        all
    }

    fn changed(&self) -> RwLockReadGuard<'_, Changed> {
        self.changed.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Changed> {
        self.changed.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How models are computed.
    pub fn computing(&self) -> Computing {
        self.computing.clone()
    }

    /// How the weights of language models are held.
    pub fn weights(&self) -> WeightFormat {
        self.computing.weights
    }

    /// The model that is meant where none is named: the first that was named at the start, or the only one in the folder.
    ///
    /// # Errors
    /// When there is none, or several are in the folder.
    pub fn main(&self) -> Result<String> {
        let is_language = |found: &&Found| found.kind == Kind::Language;
        if let Some(first) = self.named.iter().find(is_language) {
            return Ok(first.name.clone());
        }
        let own = self.own();
        let mut models = outermost(&own).filter(is_language);
        match (models.next(), models.next()) {
            (Some(only), None) => Ok(only.name.clone()),
            (None, _) => Err(Error::input("there is no language model here")),
            (Some(_), Some(_)) => Err(Error::input("the request names no model, and there are several")
                .with_hint("name one in the request, or start the server with `--model` for the one that is meant")),
        }
    }

    /// What the weights of a model are called.
    pub fn version(&self, name: &str) -> String {
        self.changed().version(name)
    }

    /// Says what the weights of a model are called.
    pub fn set_version(&self, name: &str, version: String) {
        let mut changed = self.change();
        match changed.placed.get_mut(name) {
            Some(placed) => placed.version = version,
            None => drop(changed.versions.insert(name.to_owned(), version)),
        }
    }

    /// Puts a model beside the others, or in the place of one. What is on its way with the old one is sampled to its end.
    pub async fn place(&self, name: &str, placed: Placed) {
        self.note(&placed.desk);
        self.change().placed.insert(name.to_owned(), placed);
        self.desks.lock().await.retain(|(loaded, _)| loaded != name);
    }

    /// Removes an adapter that a program has added. Whether it was there.
    pub fn remove_adapter(&self, name: &str) -> bool {
        let is_there = self.is_adapter(name);
        is_there && self.change().placed.remove(name).is_some()
    }

    /// Whether a program has added an adapter under this name.
    pub fn is_adapter(&self, name: &str) -> bool {
        self.base_of(name).is_some()
    }

    /// The name of the model that `name` is an adapter of, where a program has added it.
    pub fn base_of(&self, name: &str) -> Option<String> {
        self.changed().placed.get(name)?.base.clone()
    }

    /// How many adapters programs have added.
    pub fn adapters(&self) -> usize {
        self.changed().placed.values().filter(|placed| placed.base.is_some()).count()
    }

    /// How many tokens a prompt and its completion may have together, where there is a limit.
    pub fn positions(&self, found: &Found) -> Option<usize> {
        let base = self.base_of(&found.name);
        let path = match &base {
            Some(base) => self.own().into_iter().find(|found| found.name == *base)?.path,
            None => found.path.clone(),
        };
        ModelShape::of(&ModelDir::open(&model_of(&path).ok()?).ok()?).ok()?.max_positions
    }

    fn note(&self, desk: &Arc<Actor<Desk>>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|desk| desk.strong_count() > 0);
        if !opened.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(desk))) {
            opened.push(Arc::downgrade(desk));
        }
    }

    /// Every language model that is loaded, or still samples for somebody.
    pub fn all_desks(&self) -> Vec<Arc<Actor<Desk>>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().filter_map(Weak::upgrade).collect()
    }

    /// The model `name`.
    ///
    /// # Errors
    /// When there is none that answers, or, for `is_judge`, that says what answers are worth.
    fn find(&self, name: &str, is_judge: bool) -> Result<Found> {
        let found = self.list().into_iter().find(|found| found.name == name);
        match found {
            Some(found) if found.kind.is_judge() == is_judge => Ok(found),
            Some(_) if is_judge => Err(Error::input(format!("`{name}` is no reward model"))),
            Some(_) => Err(Error::input(format!("`{name}` is a reward model, which does not answer"))),
            None => Err(Error::input(format!("there is no model `{name}`"))
                .with_hint("`/v1/models` and the page of models list those that are there")),
        }
    }

    /// The language model `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn language(&self, name: &str) -> Result<Found> {
        self.find(name, false)
    }

    /// The language model `name`, loaded.
    ///
    /// # Errors
    /// When there is none, or it cannot be loaded.
    pub async fn desk(&self, name: &str) -> Result<Arc<Actor<Desk>>> {
        Ok(self.served(name).await?.desk)
    }

    /// The language model `name`, loaded, and what its weights are called.
    ///
    /// # Errors
    /// When there is none, or it cannot be loaded.
    pub async fn served(&self, name: &str) -> Result<Served> {
        let version = {
            let changed = self.changed();
            if let Some(placed) = changed.placed.get(name) {
                return Ok(Served { desk: Arc::clone(&placed.desk), version: placed.version.clone() });
            }
            changed.version(name)
        };
        let paused = self.pause.flag();
        let open = || async {
            let found = self.find(name, false)?;
            let Computing { device, weights, places } = self.computing.clone();
            let model = found.path.to_string_lossy().into_owned();
            let options =
                ChatOptions { model, adapter: None, weights, text: TextFiles::default(), format: None, device };
            Actor::start(move || Ok(Desk::new(Session::open(&options, places)?, paused))).await
        };
        let desk = loaded(&self.desks, name, open).await?;
        self.note(&desk);
        Ok(Served { desk, version })
    }

    /// The reward model `name`, or what judges segments under that name, loaded.
    ///
    /// # Errors
    /// When there is none, or it cannot be loaded.
    pub async fn judge(&self, name: &str) -> Result<Arc<Actor<Judge>>> {
        let open = || async {
            let Found { path, kind, .. } = self.find(name, true)?;
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

impl Changed {
    /// What the weights of a model are called.
    fn version(&self, name: &str) -> String {
        let placed = self.placed.get(name).map(|placed| &placed.version);
        placed.or_else(|| self.versions.get(name)).map_or_else(|| FIRST_VERSION.to_owned(), String::clone)
    }
}

/// Those of a list that are in no other: a run is one of them, its checkpoints are not.
pub fn outermost(all: &[Found]) -> impl Iterator<Item = &Found> {
    let is_within = |found: &Found, other: &Found| {
        found.name.strip_prefix(other.name.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    all.iter().filter(move |found| !all.iter().any(|other| is_within(found, other)))
}

/// The actor `name` of `all`, which `open` makes where it is not there; the one that nobody asked for longest goes.
async fn loaded<T, F>(all: &Loaded<T>, name: &str, open: impl FnOnce() -> F) -> Result<Arc<Actor<T>>>
where
    T: Work + 'static,
    F: Future<Output = Result<Actor<T>>>,
{
    let mut all = all.lock().await;
    let mut there = None;
    if let Some(at) = all.iter().position(|(known, _)| known == name) {
        let (_, actor) = all.remove(at);
        // One that has panicked is loaded anew.
        there = actor.is_open().then_some(actor);
    }
    let actor = match there {
        Some(actor) => actor,
        None => {
            // Those that are in use go on until their last answer has ended.
            if all.len() >= LOADED_MAX {
                all.remove(0);
            }
            Arc::new(open().await?)
        }
    };
    all.push((name.to_owned(), Arc::clone(&actor)));
    Ok(actor)
}

/// What a model is for; nothing, where it neither answers nor says what answers are worth.
fn kind(dir: &ModelDir) -> Option<Kind> {
    if !dir.is_encoder() {
        return Some(if dir.is_reward_model() { Kind::Reward } else { Kind::Language });
    }
    // Of several labels of a whole text nobody has said which is good.
    let task = Task::of(dir).ok()?;
    (task.scope == Scope::Token || task.labels.len() == 1).then_some(Kind::Classifier)
}

/// A part of a reward: its name, what it weighs, and how its model judges.
type Part = (String, f64, SegmentConfig);

/// What judges segments for the run in `path`; nothing, where its configuration cannot be read.
fn parts(path: &Path) -> Vec<Part> {
    let path = path.join("config.yml");
    let is_small = path.metadata().is_ok_and(|found| found.is_file() && found.len() <= CONFIG_BYTES);
    let text = if is_small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    // Most runs have none, and are not read any further.
    if !text.contains("fine_grained:") {
        return Vec::new();
    }
    let reward = RunConfig::parse(&text).ok().and_then(|written| written.config.reward);
    let parts = reward.iter().flat_map(|reward| reward.segments());
    parts.map(|(name, weight, part)| (name.to_owned(), weight, part.clone())).collect()
}

/// The part with the path of its model, which lies below the folder or was named at the start: what a configuration in the folder
/// says is no reason to read elsewhere, or to ask the hub.
fn confined((name, weight, part): Part, root: &Path, named: &[PathBuf]) -> Result<Part> {
    let here = |path: PathBuf| path.canonicalize().ok();
    // Written where the run began: in the folder, or where the server was started.
    let known = [here(root.join(&part.model)), here(PathBuf::from(&part.model))].into_iter().flatten();
    let is_ours =
        |path: &PathBuf| path.starts_with(root) || named.iter().any(|named| here(named.clone()).as_ref() == Some(path));
    let Some(model) = known.into_iter().find(is_ours) else {
        let message = format!("`{}` of the part `{name}` lies outside of the folder", part.model);
        return Err(Error::input(message).with_hint("start the server with `--model` for it"));
    };
    Ok((name, weight, SegmentConfig { model: model.to_string_lossy().into_owned(), ..part }))
}

/// What cannot be opened is passed over: it is no model.
fn walk(at: &Path, name: &str, depth: usize, seen: &mut BTreeSet<PathBuf>, found: &mut Vec<Found>) {
    // A link back up must not be followed for ever.
    let Ok(real) = at.canonicalize() else { return };
    if !seen.insert(real) {
        return;
    }
    let own = |path: &Path| {
        let model = model_of(path).ok()?;
        Some(Found { name: name.to_owned(), path: path.to_owned(), kind: kind(&ModelDir::open(&model).ok()?)? })
    };
    let is_model = at.join("config.json").is_file() || at.join("adapter_config.json").is_file();
    if depth > 0 && (is_model || is_run(at)) {
        found.extend(own(at));
        if is_run(at) && !parts(at).is_empty() {
            found.push(Found { name: format!("{name}{ITS_REWARD}"), path: at.to_owned(), kind: Kind::Parts });
        }
    }
    if is_model || depth == DEPTH_MAX {
        return;
    }
    for path in std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let Some(own) = path.file_name().and_then(|own| own.to_str()).filter(|own| !own.starts_with('.')) else {
            continue;
        };
        // The critic of a run has the form of a reward model, but says what the run expects of its own policy.
        let is_critic = own == CRITIC && is_run(at);
        // A link may lead out of the folder.
        if path.is_dir() && !path.is_symlink() && !is_critic {
            let name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
            walk(&path, &name, depth + 1, seen, found);
        }
    }
}

//! The models that can be served: those below the folder and those that were named; and those that are loaded.
//!
//! A model is asked for by its name in the list, never by a path, so nothing outside the list can be reached.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradus::device::DeviceChoice;
use gradus::inference::{ChatJudge, ChatOptions, Session, model_of};
use gradus::model::{ModelDir, Precision, WeightFormat};
use gradus::runs::is_run;
use gradus::{Error, Result};
use tokio::sync::Mutex;

use crate::actor::{Actor, Work};
use crate::desk::Desk;

/// Models may lie in folders (`runs/demo/ppo/checkpoints/step-000100`), but not deeper than this.
const DEPTH_MAX: usize = 6;

/// Models in memory at once; who was asked last stays.
const LOADED_MAX: usize = 4;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It answers.
    Language,
    /// It scores answers.
    Reward,
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

impl Work for ChatJudge {}

/// The models.
pub struct Models {
    root: PathBuf,
    named: Vec<Found>,
    computing: Computing,
    desks: Loaded<Desk>,
    judges: Loaded<ChatJudge>,
}

/// Those that are loaded, the last asked for last. The lock is held while one loads, so that none is loaded twice.
type Loaded<T> = Mutex<Vec<(String, Arc<Actor<T>>)>>;

impl Models {
    /// The models below `root`, and those that were named, which may lie elsewhere or on the hub.
    ///
    /// # Errors
    /// When one that was named cannot be opened.
    pub fn new(root: &Path, named: &[String], computing: Computing) -> Result<Self> {
        let open = |name: &String| {
            let path = model_of(Path::new(name))?;
            let path = if path.is_dir() { path } else { gradus::model::resolve(name, &mut |_, _, _| {})? };
            Ok(Found { name: name.trim_end_matches('/').to_owned(), kind: kind(&ModelDir::open(&path)?), path })
        };
        let named = named.iter().map(open).collect::<Result<_>>()?;
        let (desks, judges) = (Mutex::default(), Mutex::default());
        Ok(Self { root: root.to_owned(), named, computing, desks, judges })
    }

    /// All that can be asked for now: those that were named first, then by name.
    pub fn list(&self) -> Vec<Found> {
        let mut found = Vec::new();
        walk(&self.root, "", 0, &mut BTreeSet::new(), &mut found);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let mut all = self.named.clone();
        all.extend(found.into_iter().filter(|found| !self.named.iter().any(|named| named.name == found.name)));
        all
    }

    /// The model `name`.
    ///
    /// # Errors
    /// When there is none of this kind.
    fn find(&self, name: &str, kind: Kind) -> Result<Found> {
        let found = self.list().into_iter().find(|found| found.name == name);
        match found {
            Some(found) if found.kind == kind => Ok(found),
            Some(_) if kind == Kind::Language => {
                Err(Error::input(format!("`{name}` is a reward model, which does not answer")))
            }
            Some(_) => Err(Error::input(format!("`{name}` is no reward model"))),
            None => Err(Error::input(format!("there is no model `{name}`"))
                .with_hint("`/v1/models` and the page of models list those that are there")),
        }
    }

    /// The language model `name`, loaded.
    ///
    /// # Errors
    /// When there is none, or it cannot be loaded.
    pub async fn desk(&self, name: &str) -> Result<Arc<Actor<Desk>>> {
        let open = |found: Found| {
            let Computing { device, weights, places } = self.computing.clone();
            let model = found.path.to_string_lossy().into_owned();
            let options = ChatOptions { model, adapter: None, weights, chat_template: None, format: None, device };
            Actor::start(move || Ok(Desk::new(Session::open(&options, places)?)))
        };
        let found = self.find(name, Kind::Language)?;
        loaded(&self.desks, name, || open(found)).await
    }

    /// The reward model `name`, loaded.
    ///
    /// # Errors
    /// When there is none, or it cannot be loaded.
    pub async fn judge(&self, name: &str) -> Result<Arc<Actor<ChatJudge>>> {
        let open = |found: Found| {
            let device = self.computing.device.clone();
            Actor::start(move || ChatJudge::open(&found.path.to_string_lossy(), Precision::F32, &device))
        };
        let found = self.find(name, Kind::Reward)?;
        loaded(&self.judges, name, || open(found)).await
    }
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

fn kind(dir: &ModelDir) -> Kind {
    if dir.is_reward_model() { Kind::Reward } else { Kind::Language }
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
        Some(Found { name: name.to_owned(), path: path.to_owned(), kind: kind(&ModelDir::open(&model).ok()?) })
    };
    let is_model = at.join("config.json").is_file() || at.join("adapter_config.json").is_file();
    if depth > 0 && (is_model || is_run(at)) {
        found.extend(own(at));
    }
    if is_model || depth == DEPTH_MAX {
        return;
    }
    for path in std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let Some(own) = path.file_name().and_then(|own| own.to_str()).filter(|own| !own.starts_with('.')) else {
            continue;
        };
        // A link may lead out of the folder.
        if path.is_dir() && !path.is_symlink() {
            let name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
            walk(&path, &name, depth + 1, seen, found);
        }
    }
}

//! Completions sampled by a server: ids in, ids and log-probabilities out; and the weights that the server samples
//! with.
//!
//! Weights are passed through a folder that both sides can access. An adapter is loaded under a new name for each
//! version; whole weights replace the previous ones. One thread sends the requests, one task after the other, so the
//! weights of each completion are known even if sampling runs ahead of training ([`RolloutSource::begin`]).

mod client;
mod forms;
mod http;
mod score;
mod scorer;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use client::{Client, Weights};
use forms::{CompletionRequest, ServerCompletion};
pub use score::{Passage, TokenScore};
pub use scorer::Scorer;

use turns::RemoteDrawer;

use super::episodes::Scene;
use super::{Policy, Prompt, Rollout, RolloutSource, Rollouts, SampledWith, Sampler, StopReason, Turn};
use crate::error::{Error, Result};
use crate::generate::{Record, SamplingParams};
use crate::model::CausalLm;
use crate::model::adapter::Adaptable;
use crate::progress::Progress;
use crate::rng::{Stream, key_of};
use crate::text::{StopStrings, continuation, cut_at_stop};

/// Interval at which a wait checks for interruption.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the end of a run waits for the server to unload its adapter.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the address `url` names a user or a key in front of its host. Configurations, model cards and messages show addresses, so
/// a key would become public. Any `@` counts: a key may contain characters that end the host.
pub(crate) fn has_user(url: &str) -> bool {
    url.contains('@')
}

/// Hint on how to give the key of a server.
pub(crate) fn key_hint(keys: &str) -> String {
    format!("set an environment variable to the key, and name the variable: `{keys}.key_variable`")
}

/// Protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// `gradus serve --allow-weights`.
    Gradus,
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
}

/// A server and the settings of requests to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Address, such as `http://localhost:8000`.
    pub url: String,
    /// Protocol of the server.
    pub kind: ServerKind,
    /// Name of the model on the server; without it, the first of the server's list.
    pub model: Option<String>,
    /// API key of the server.
    pub key: Option<String>,
    /// Number of concurrent requests.
    pub connections: usize,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Maximum time in which requests are repeated.
    pub wait: Duration,
    /// Configuration key of these settings, for messages: `rollouts`.
    pub keys: &'static str,
}

/// A server to sample from.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerOptions {
    /// The server.
    pub endpoint: Endpoint,
    /// Folder for adapters and weights that both sides can access.
    pub shared: PathBuf,
    /// Path of that folder on the server, if it differs.
    pub shared_there: Option<PathBuf>,
    /// Number of iterations that sampling runs ahead.
    pub ahead: usize,
}

/// Writes a policy (without gradient) to a directory.
type Save<'a> = &'a dyn Fn(&CausalLm, &Path) -> Result<()>;

/// Samples completions on a server.
pub struct ServerSource<'a> {
    options: ServerOptions,
    save: Save<'a>,
    client: Arc<Client>,
    /// Folder within the shared folder; deleted with this value.
    folder: TempDir,
    tasks: Option<Sender<QueuedTask>>,
    has_ended: Receiver<()>,
    /// Iteration of the next request.
    iteration: usize,
    /// Requests started for later iterations.
    pending: BTreeMap<usize, PendingCompletions>,
    /// Weights written last, with their policy version.
    written: Option<(u64, Arc<Weights>)>,
}

/// A task of the thread, and its weights.
struct QueuedTask {
    weights: Arc<Weights>,
    task: Task,
}

/// A task, and the channel for its result.
enum Task {
    /// Sample completions.
    Sample(Vec<CompletionRequest>, SyncSender<Result<Vec<Vec<ServerCompletion>>>>),
    /// Only load the weights: another thread samples with them.
    Load(SyncSender<Result<()>>),
}

/// Completions in progress.
struct PendingCompletions {
    prompts: Vec<Prompt>,
    weights: Arc<Weights>,
    answer: Receiver<Result<Vec<Vec<ServerCompletion>>>>,
}

impl<'a> ServerSource<'a> {
    /// Connects to the server and looks up its model. `save` writes the policy.
    ///
    /// # Errors
    /// [`Error::Network`] if it does not answer in time or serves no model, [`Error::Io`] if the shared folder cannot
    /// be written, [`Error::Interrupted`] if `progress` ends the wait.
    pub fn connect(options: ServerOptions, save: Save<'a>, progress: &dyn Progress) -> Result<Self> {
        std::fs::create_dir_all(&options.shared).map_err(|error| Error::io(&options.shared, error))?;
        let mut folder = tempfile::Builder::new();
        folder.prefix("gradus-");
        // The server may run as another user.
        #[cfg(unix)]
        folder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755));
        let folder = folder.tempdir_in(&options.shared).map_err(|error| Error::io(&options.shared, error))?;
        let client = Arc::new(Client::new(&options.endpoint)?);
        let (tasks, inbox) = channel::<QueuedTask>();
        let (ended, has_ended) = sync_channel(1);
        let worker = Arc::clone(&client);
        std::thread::spawn(move || {
            work(&worker, &inbox);
            // The receiver may be gone.
            let _ = ended.send(());
        });
        let source = Self {
            options,
            save,
            client,
            folder,
            tasks: Some(tasks),
            has_ended,
            iteration: 0,
            pending: BTreeMap::new(),
            written: None,
        };
        let (answer, found) = sync_channel(1);
        let client = Arc::clone(&source.client);
        std::thread::spawn(move || drop(answer.send(client.find())));
        source.wait(&found, 1, progress)?;
        Ok(source)
    }

    /// Writes the weights of `policy` to the shared folder, unless they are already there.
    fn weights(&mut self, policy: &Policy) -> Result<Arc<Weights>> {
        if let Some((version, weights)) = &self.written
            && *version == policy.version
        {
            return Ok(Arc::clone(weights));
        }
        let own = format!("v{}", self.iteration);
        let path = self.folder.path().join(&own);
        std::fs::create_dir_all(&path).map_err(|error| Error::io(&path, error))?;
        (self.save)(&policy.model, &path)?;
        let tag = self.folder.path().file_name().unwrap_or_default();
        let shared = self.options.shared_there.as_ref().map(|there| there.join(tag).join(&own));
        let there = match shared {
            Some(there) => there,
            None => path.canonicalize().map_err(|error| Error::io(&path, error))?,
        };
        let name = format!("{}-{own}", tag.to_string_lossy());
        let is_adapter = policy.model.adapter().is_some();
        let weights = Arc::new(Weights { name, step: self.iteration, path, there, is_adapter });
        self.written = Some((policy.version, Arc::clone(&weights)));
        Ok(weights)
    }

    /// Queues a sampling task.
    fn ask(
        &mut self,
        policy: &Policy,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<PendingCompletions> {
        check(&policy.model, sampler)?;
        let weights = self.weights(policy)?;
        let (group, vocabulary) = (sampler.group_size, policy.model.vocab_size());
        let (params, stop) = (Arc::new(sampler.params.clone()), Arc::<[String]>::from(sampler.stop));
        let request = |(i, prompt): (usize, &Prompt)| CompletionRequest {
            prompt: prompt.ids.clone(),
            keys: (i * group..(i + 1) * group).map(|i| key_of(&stream(i))).collect(),
            params: Arc::clone(&params),
            stop: Arc::clone(&stop),
            vocabulary,
        };
        let requests = prompts.iter().enumerate().map(request).collect();
        let (answer, given) = sync_channel(1);
        self.send(QueuedTask { weights: Arc::clone(&weights), task: Task::Sample(requests, answer) })?;
        Ok(PendingCompletions { prompts, weights, answer: given })
    }

    fn send(&self, task: QueuedTask) -> Result<()> {
        self.tasks.as_ref().and_then(|tasks| tasks.send(task).ok()).ok_or_else(gone)
    }

    /// Samples episodes whose turns the server samples.
    fn play(
        &mut self,
        policy: &Policy,
        prompts: Vec<Prompt>,
        (sampler, scene): (&Sampler<'_>, Scene<'_>),
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts> {
        check(&policy.model, sampler)?;
        let weights = self.weights(policy)?;
        let (answer, loaded) = sync_channel(1);
        self.send(QueuedTask { weights: Arc::clone(&weights), task: Task::Load(answer) })?;
        self.wait(&loaded, 1, sampler.progress)?;
        let connections = self.options.endpoint.connections;
        let vocabulary = policy.model.vocab_size();
        let mut drawer = RemoteDrawer::new(&self.client, &weights, (connections, vocabulary), sampler);
        let names = (scene.when, scene.earlier);
        let mut rollouts = scene.episodes.sample_with(&policy.model, &mut drawer, prompts, sampler, names, stream)?;
        let with = SampledWith { version: weights.name.clone(), step: weights.step };
        rollouts.rollouts.iter_mut().for_each(|rollout| rollout.sampled_with = Some(with.clone()));
        Ok(rollouts)
    }

    /// Waits for an answer of the thread and reports progress.
    fn wait<T>(&self, answer: &Receiver<Result<T>>, total: usize, progress: &dyn Progress) -> Result<T> {
        wait(&self.client, answer, ("sampled", total), progress)
    }
}

/// Waits for an answer of the thread that uses `client`, and reports how many of `total` are done.
fn wait<T>(
    client: &Client,
    answer: &Receiver<Result<T>>,
    (what, total): (&'static str, usize),
    progress: &dyn Progress,
) -> Result<T> {
    loop {
        match answer.recv_timeout(POLL_INTERVAL) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(news) = client.news() {
            progress.warn(&news);
        }
        let outcome = match client.waited() {
            Some(waited) => {
                let limit = client.max_wait().as_secs() as usize;
                progress.advance("seconds waited for the server", waited.as_secs() as usize, limit)
            }
            None => progress.advance(what, client.done().min(total), total),
        };
        if let Err(error) = outcome {
            client.stop();
            return Err(error);
        }
    }
}

fn gone() -> Error {
    Error::input("the thread that talks to the server has ended")
}

/// Rejects settings that no server supports.
fn check(policy: &CausalLm, sampler: &Sampler<'_>) -> Result<()> {
    let refused = [
        (sampler.masking.is_some(), "a mask over sampled ids"),
        (sampler.beams.is_some(), "a search with beams"),
        (sampler.params.record != Record::Nothing, "log-probabilities among the ids that could be sampled"),
        (policy.trunk.decoder_start().is_some(), "a model with an encoder"),
    ];
    match refused.into_iter().find(|(is_requested, _)| *is_requested) {
        Some((_, what)) => Err(Error::input(format!("{what} needs sampling in this process, not at a server"))
            .with_hint("leave out `rollouts`")),
        None => Ok(()),
    }
}

impl RolloutSource for ServerSource<'_> {
    fn sample(
        &mut self,
        policy: Policy,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts> {
        if let Some(scene) = sampler.episodes {
            return self.play(&policy, prompts, (sampler, scene), stream);
        }
        let is_it = |pending: &PendingCompletions| {
            pending.prompts.iter().map(|prompt| &prompt.ids).eq(prompts.iter().map(|prompt| &prompt.ids))
        };
        let pending = match self.pending.remove(&self.iteration).filter(is_it) {
            Some(pending) => pending,
            None => self.ask(&policy, prompts, sampler, stream)?,
        };
        // The weights are in the folder by now.
        drop(policy);
        let total = pending.prompts.len() * sampler.group_size;
        let found = self.wait(&pending.answer, total, sampler.progress)?;
        assemble(pending, found, sampler)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn at(&mut self, iteration: usize) {
        self.iteration = iteration;
        // Past iterations are not requested any more.
        self.pending = self.pending.split_off(&iteration);
    }

    fn ahead(&self) -> usize {
        self.options.ahead
    }

    fn begin(
        &mut self,
        iteration: usize,
        policy: Policy,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<()> {
        if sampler.episodes.is_some() {
            return Err(Error::input("episodes cannot be sampled ahead: their turns wait for the environment")
                .with_hint("leave out `rollouts.max_staleness`"));
        }
        if !self.pending.contains_key(&iteration) {
            let pending = self.ask(&policy, prompts, sampler, stream)?;
            self.pending.insert(iteration, pending);
        }
        Ok(())
    }

    fn has_begun(&self, iteration: usize) -> bool {
        self.pending.contains_key(&iteration)
    }

    fn notices(&mut self) -> Vec<String> {
        self.client.notices()
    }
}

impl Drop for ServerSource<'_> {
    fn drop(&mut self) {
        // Requests in progress are no longer needed.
        if !self.pending.is_empty() {
            self.client.stop();
        }
        self.tasks = None;
        // The adapter is unloaded while its folder exists. An unresponsive server is not waited for.
        let _ = self.has_ended.recv_timeout(UNLOAD_TIMEOUT);
        self.client.stop();
    }
}

/// Runs the tasks in order.
fn work(client: &Client, inbox: &Receiver<QueuedTask>) {
    let mut loaded: Option<Arc<Weights>> = None;
    while let Ok(QueuedTask { weights, task }) = inbox.recv() {
        let is_loaded = load(client, &mut loaded, &weights);
        // The requester may be gone.
        match task {
            Task::Sample(requests, answer) => {
                let _ = answer.send(is_loaded.and_then(|()| client.sample(&weights, &requests)));
            }
            Task::Load(answer) => {
                let _ = answer.send(is_loaded);
            }
        }
    }
    if let Some(weights) = loaded {
        client.forget(&weights);
    }
}

/// Makes the server sample with `weights`; unloads the previous weights and removes their files.
fn load(client: &Client, loaded: &mut Option<Arc<Weights>>, weights: &Arc<Weights>) -> Result<()> {
    if loaded.as_ref().is_some_and(|loaded| Arc::ptr_eq(loaded, weights)) {
        return Ok(());
    }
    client.load(weights)?;
    if let Some(old) = loaded.replace(Arc::clone(weights)) {
        client.forget(&old);
        // Files that cannot be removed now are removed with the folder.
        let _ = std::fs::remove_dir_all(&old.path);
    }
    Ok(())
}

/// Returns why a completion ended, as the local engine would have determined it after each id.
fn stop_of(before: &[u32], ids: &[u32], is_cut: bool, sampler: &Sampler<'_>) -> StopReason {
    let mut strings = StopStrings::new(sampler.tokenizer, sampler.stop.iter().cloned());
    let mut has_string = || !sampler.stop.is_empty() && (1..=ids.len()).any(|end| strings.stops(before, &ids[..end]));
    match ids.last() {
        Some(last) if sampler.params.stop_ids.contains(last) => StopReason::StopId,
        _ if has_string() => StopReason::StopString,
        _ if is_cut => StopReason::Length,
        _ => StopReason::StopId,
    }
}

/// Builds rollouts from completions.
fn assemble(pending: PendingCompletions, found: Vec<Vec<ServerCompletion>>, sampler: &Sampler<'_>) -> Result<Rollouts> {
    let PendingCompletions { prompts, weights, .. } = pending;
    let mut rollouts = Vec::with_capacity(prompts.len() * sampler.group_size);
    for (i, (prompt, completed)) in prompts.iter().zip(found).enumerate() {
        for ServerCompletion { ids, logprobs, is_cut, version } in completed {
            let text = continuation(sampler.tokenizer, prompt.continued(), &ids)?;
            let stop = stop_of(prompt.continued(), &ids, is_cut, sampler);
            // A server's version of the weights does not name the adapter.
            let version = version.filter(|_| !weights.is_adapter).unwrap_or_else(|| weights.name.clone());
            rollouts.push(Rollout {
                completion: cut_at_stop(&text, sampler.stop).to_owned(),
                turns: vec![Turn::unanswered(ids.len())],
                sampled_logprobs: logprobs.clone(),
                logprobs,
                sampled_with: Some(SampledWith { version, step: weights.step }),
                ..Rollout::one_turn(i, "", ids, stop)
            });
        }
    }
    let tokenizer = Some(sampler.tokenizer.clone());
    Ok(Rollouts { prompts, rollouts, group_size: sampler.group_size, tokenizer })
}

/// Returns the non-default settings in `params` that servers of this kind do not support.
pub(crate) fn unknown_settings(kind: ServerKind, params: &SamplingParams) -> Vec<&'static str> {
    if kind == ServerKind::Gradus {
        return Vec::new();
    }
    let settings = [
        ("typical_p", params.typical_p < 1.0),
        ("no_repeat_ngram_size", params.no_repeat_ngram_size > 0),
        ("encoder_no_repeat_ngram_size", params.encoder_no_repeat_ngram_size > 0),
        ("suppress_tokens", !params.suppress_tokens.is_empty()),
        ("bad_words_ids", !params.bad_words_ids.is_empty()),
        ("forced_bos_token_id", params.forced_bos_token_id.is_some()),
        ("forced_eos_token_id", params.forced_eos_token_id.is_some()),
    ];
    settings.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
}

//! Renderers of one template. Each serves one caller at a time and is kept for the next.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::engine::{Conversation, Engine, Source};
use super::process::{ChildExit, Renderer};
use super::wire::RenderResult;
use super::{STARTER, Starter};

/// Maximum number of children of one template. Additional callers wait until one is free.
const CHILDREN: usize = 16;

/// Number of children that a template may kill with small conversations. After that it is no longer used, because every row of a
/// data set would take as long. A valid template stays far below a child's limits with any conversation of this size.
const MAX_CRASHES: usize = 3;
const SMALL_BYTES: usize = 1 << 20;

/// Why a conversation was not rendered.
#[derive(Debug, Clone)]
pub(in crate::text) enum RenderError {
    /// The template rejected the conversation, or exceeded a limit of the engine.
    Rejected(String),
    /// The renderer was stopped.
    Stopped(String),
}

/// Renderers of one template.
pub(in crate::text) struct Pool {
    source: Arc<Source>,
    starter: Option<&'static Starter>,
    state: Mutex<PoolState>,
    freed: Condvar,
}

#[derive(Default)]
struct PoolState {
    engines: Vec<Engine>,
    children: Vec<Renderer>,
    /// Number of children in use.
    out: usize,
    crashes: usize,
    last_crash: String,
}

impl Pool {
    /// Compiles a template for any number of conversations.
    ///
    /// # Errors
    /// Why the template is not valid, or what stopped it.
    pub(in crate::text) fn compile(source: Source) -> Result<Self, RenderError> {
        let pool =
            Self { source: Arc::new(source), starter: STARTER.get(), state: Mutex::default(), freed: Condvar::new() };
        match pool.starter {
            Some(starter) => {
                let child = Renderer::start(starter, &pool.source).map_err(|exit| RenderError::Stopped(exit.what))?;
                let child = child.map_err(RenderError::Rejected)?;
                pool.lock().children.push(child);
            }
            None => {
                let engine = Engine::compile(Arc::clone(&pool.source)).map_err(RenderError::Rejected)?;
                pool.lock().engines.push(engine);
            }
        }
        Ok(pool)
    }

    /// Renders each of the conversations.
    pub(in crate::text) fn render(&self, conversations: &[Conversation]) -> Vec<Result<String, RenderError>> {
        match self.starter {
            Some(starter) => self.among_children(conversations, starter),
            None => self.render_in_process(conversations),
        }
    }

    fn render_in_process(&self, conversations: &[Conversation]) -> Vec<Result<String, RenderError>> {
        let kept = self.lock().engines.pop();
        let engine = kept.map_or_else(|| Engine::compile(Arc::clone(&self.source)), Ok);
        match engine {
            Ok(mut engine) => {
                let rendered = conversations.iter().map(|c| engine.render(c).map_err(RenderError::Rejected)).collect();
                self.lock().engines.push(engine);
                rendered
            }
            Err(what) => conversations.iter().map(|_| Err(RenderError::Rejected(what.clone()))).collect(),
        }
    }

    fn among_children(&self, conversations: &[Conversation], starter: &Starter) -> Vec<Result<String, RenderError>> {
        let mut answers = Vec::with_capacity(conversations.len());
        let mut needs_new = false;
        let mut is_alone = conversations.len() == 1;
        while answers.len() < conversations.len() {
            let rest = &conversations[answers.len()..];
            let batch = if is_alone { &rest[..1] } else { rest };
            let _permit = self.acquire();
            let mut child = match self.child(starter, needs_new) {
                Ok(child) => child,
                // If no child can be started, later conversations fail, too.
                Err(refused) => {
                    answers.resize(conversations.len(), Err(refused));
                    break;
                }
            };
            let mut given: Vec<RenderResult> = Vec::new();
            let outcome = child.request(batch, &mut given);
            answers.extend(given.into_iter().map(|answer| answer.map_err(RenderError::Rejected)));
            let Err(error) = outcome else {
                // A child keeps the memory of a large conversation, so the next conversation gets a new child.
                if batch.iter().all(|c| c.messages.len() < SMALL_BYTES) {
                    self.lock().children.push(child);
                }
                needs_new = false;
                continue;
            };
            let was_used = child.is_used;
            let ChildExit { what, is_certain } = child.reap(&error);
            // To find which of several conversations killed the child, each is sent alone. If earlier conversations may have used
            // up its resources, a new child decides.
            needs_new = was_used && !is_certain;
            if !is_alone || needs_new {
                is_alone = true;
                continue;
            }
            if batch[0].messages.len() < SMALL_BYTES {
                let mut state = self.lock();
                state.crashes += 1;
                state.last_crash.clone_from(&what);
            }
            answers.push(Err(RenderError::Stopped(what)));
        }
        answers
    }

    /// Returns an idle child or a new one.
    fn child(&self, starter: &Starter, needs_new: bool) -> Result<Renderer, RenderError> {
        {
            let mut state = self.lock();
            if state.crashes >= MAX_CRASHES {
                let what = format!("it was stopped {MAX_CRASHES} times, the last time because {}", state.last_crash);
                return Err(RenderError::Stopped(what));
            }
            state.children.retain(Renderer::is_ours);
            if let Some(child) = state.children.pop().filter(|_| !needs_new) {
                return Ok(child);
            }
        }
        let child = Renderer::start(starter, &self.source).map_err(|exit| RenderError::Stopped(exit.what))?;
        child.map_err(RenderError::Rejected)
    }

    /// Waits until fewer than [`CHILDREN`] are in use, and returns the permission to use one.
    fn acquire(&self) -> Permit<'_> {
        let mut state = self.lock();
        while state.out >= CHILDREN {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.out += 1;
        Permit(self)
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission to use one child.
struct Permit<'p>(&'p Pool);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.lock().out -= 1;
        self.0.freed.notify_one();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("starter", &self.starter).finish_non_exhaustive()
    }
}

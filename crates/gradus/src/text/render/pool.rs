//! The renderers of one template: one for each caller at a time, kept for the next.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::engine::{Conversation, Engine, Source};
use super::process::{Death, Renderer};
use super::wire::Answer;
use super::{STARTER, Starter};

/// The most children of one template. A caller beyond them waits until one is free.
const CHILDREN: usize = 16;

/// A template that killed so many children with small conversations is not asked again: every row of a data set would
/// take as long. A well-behaved template stays far below the limits of a child with every conversation of this size.
const DEATHS: usize = 3;
const SMALL_BYTES: usize = 1 << 20;

/// Why a conversation was not rendered.
#[derive(Debug, Clone)]
pub(in crate::text) enum Refused {
    /// The template refuses the conversation, or exceeds a bound of the engine.
    Said(String),
    /// It was stopped.
    Stopped(String),
}

/// The renderers of one template.
pub(in crate::text) struct Pool {
    source: Arc<Source>,
    starter: Option<&'static Starter>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    engines: Vec<Engine>,
    children: Vec<Renderer>,
    /// Children that are in use.
    out: usize,
    deaths: usize,
    last_death: String,
}

impl Pool {
    /// Compiles a template, for any number of conversations.
    ///
    /// # Errors
    /// Why the template is not valid, or what stopped it.
    pub(in crate::text) fn compile(source: Source) -> Result<Self, Refused> {
        let pool =
            Self { source: Arc::new(source), starter: STARTER.get(), state: Mutex::default(), freed: Condvar::new() };
        match pool.starter {
            Some(starter) => {
                let child = Renderer::start(starter, &pool.source).map_err(|death| Refused::Stopped(death.what))?;
                let child = child.map_err(Refused::Said)?;
                pool.lock().children.push(child);
            }
            None => {
                let engine = Engine::compile(Arc::clone(&pool.source)).map_err(Refused::Said)?;
                pool.lock().engines.push(engine);
            }
        }
        Ok(pool)
    }

    /// Renders conversations, each for itself.
    pub(in crate::text) fn render(&self, conversations: &[Conversation]) -> Vec<Result<String, Refused>> {
        match self.starter {
            Some(starter) => self.among_children(conversations, starter),
            None => self.here(conversations),
        }
    }

    fn here(&self, conversations: &[Conversation]) -> Vec<Result<String, Refused>> {
        let kept = self.lock().engines.pop();
        let engine = kept.map_or_else(|| Engine::compile(Arc::clone(&self.source)), Ok);
        match engine {
            Ok(mut engine) => {
                let rendered = conversations.iter().map(|c| engine.render(c).map_err(Refused::Said)).collect();
                self.lock().engines.push(engine);
                rendered
            }
            Err(what) => conversations.iter().map(|_| Err(Refused::Said(what.clone()))).collect(),
        }
    }

    fn among_children(&self, conversations: &[Conversation], starter: &Starter) -> Vec<Result<String, Refused>> {
        let mut answers = Vec::with_capacity(conversations.len());
        let mut needs_new = false;
        let mut is_alone = conversations.len() == 1;
        while answers.len() < conversations.len() {
            let rest = &conversations[answers.len()..];
            let asked = if is_alone { &rest[..1] } else { rest };
            let _place = self.place();
            let mut child = match self.child(starter, needs_new) {
                Ok(child) => child,
                // Without a child no later conversation fares better.
                Err(refused) => {
                    answers.resize(conversations.len(), Err(refused));
                    break;
                }
            };
            let mut given: Vec<Answer> = Vec::new();
            let outcome = child.ask(asked, &mut given);
            answers.extend(given.into_iter().map(|answer| answer.map_err(Refused::Said)));
            let Err(error) = outcome else {
                // One that had much to do keeps its memory; the next conversation gets a lean one.
                if asked.iter().all(|c| c.messages.len() < SMALL_BYTES) {
                    self.lock().children.push(child);
                }
                needs_new = false;
                continue;
            };
            let was_used = child.is_used;
            let Death { what, is_certain } = child.bury(&error);
            // Which of several it died at is found by asking for each alone. Earlier conversations may have left too little for
            // this one: then a new child decides.
            needs_new = was_used && !is_certain;
            if !is_alone || needs_new {
                is_alone = true;
                continue;
            }
            if asked[0].messages.len() < SMALL_BYTES {
                let mut state = self.lock();
                state.deaths += 1;
                state.last_death.clone_from(&what);
            }
            answers.push(Err(Refused::Stopped(what)));
        }
        answers
    }

    /// A child that waits, or a new one.
    fn child(&self, starter: &Starter, needs_new: bool) -> Result<Renderer, Refused> {
        {
            let mut state = self.lock();
            if state.deaths >= DEATHS {
                let what = format!("it was stopped {DEATHS} times, the last time because {}", state.last_death);
                return Err(Refused::Stopped(what));
            }
            state.children.retain(Renderer::is_ours);
            if let Some(child) = state.children.pop().filter(|_| !needs_new) {
                return Ok(child);
            }
        }
        let child = Renderer::start(starter, &self.source).map_err(|death| Refused::Stopped(death.what))?;
        child.map_err(Refused::Said)
    }

    /// Waits until fewer than [`CHILDREN`] are in use.
    fn place(&self) -> Place<'_> {
        let mut state = self.lock();
        while state.out >= CHILDREN {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.out += 1;
        Place(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to use one child.
struct Place<'p>(&'p Pool);

impl Drop for Place<'_> {
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

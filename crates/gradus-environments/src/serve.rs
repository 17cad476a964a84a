//! The program side of [`ProgramEnvironment`](crate::ProgramEnvironment): serves an [`Environment`] over lines of JSON.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::Error;
use crate::process::LINE_BYTES;
use crate::tool::Call;

type Open = Mutex<HashMap<String, Arc<Mutex<Box<dyn Episode>>>>>;

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `environment` to gradus, which starts the program with `environment: { command: { program: [PROGRAM] } }`. Returns when `input`
/// ends. Requests are answered concurrently, each on its own thread.
///
/// ```no_run
/// # use gradus_environments::games::{Guess, GuessConfig};
/// let environment = Guess::new(GuessConfig::default())?;
/// gradus_environments::serve(&environment, std::io::stdin().lock(), std::io::stdout())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if `input` cannot be read or `output` cannot be written.
pub fn serve(environment: &dyn Environment, input: impl BufRead, output: impl Write + Send) -> std::io::Result<()> {
    let output = Mutex::new((output, Ok(())));
    let episodes = Open::default();
    std::thread::scope(|scope| {
        for line in input.lines() {
            let line = line?;
            let (episodes, output) = (&episodes, &output);
            scope.spawn(move || {
                let reply = answer(environment, episodes, &line);
                let (output, state) = &mut *locked(output);
                if state.is_ok() {
                    *state = output.write_all(reply.as_bytes()).and_then(|()| output.flush());
                }
            });
            if locked(output).1.is_err() {
                break;
            }
        }
        Ok(())
    })
    .and_then(|()| output.into_inner().unwrap_or_else(PoisonError::into_inner).1)
}

/// Returns the line that answers a line.
fn answer(environment: &dyn Environment, episodes: &Open, line: &str) -> String {
    let (id, request) = match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(request) => (request.get("id").cloned().unwrap_or_default(), Ok(request)),
        Err(error) => (Value::Null, Err(format!("the line is not a JSON object: {error}"))),
    };
    let work = || request.and_then(|request| work(environment, episodes, &request));
    let mut answer = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the environment panicked".to_owned()))
        .unwrap_or_else(|error| json!({ "error": error }));
    answer["id"] = id.clone();
    let line = format!("{answer}\n");
    if line.len() <= LINE_BYTES {
        return line;
    }
    let error = format!("the answer has {} bytes, but at most {LINE_BYTES} are read", line.len());
    format!("{}\n", json!({ "id": id, "error": error }))
}

fn work(environment: &dyn Environment, episodes: &Open, request: &Map<String, Value>) -> Result<Value, String> {
    let text =
        |key: &str| request.get(key).and_then(Value::as_str).ok_or_else(|| format!("the request has no text `{key}`"));
    let name = || text("episode").map(str::to_owned);
    let episode = || {
        let name = name()?;
        let found = locked(episodes).get(&name).cloned();
        found.ok_or_else(|| format!("there is no episode `{name}`"))
    };
    match text("do")? {
        "describe" => Ok(json!({ "tools": environment.tools(), "deterministic": environment.is_deterministic() })),
        "reset" => {
            let name = name()?;
            let seed = request.get("seed").and_then(Value::as_u64).ok_or("the request has no number `seed`")?;
            let row =
                request.get("row").and_then(Value::as_object).cloned().ok_or("the request has no object `row`")?;
            let NewEpisode { episode, opening } =
                environment.begin(&Start { name: name.clone(), seed, row }).map_err(|error| error_text(&error))?;
            locked(episodes).insert(name, Arc::new(Mutex::new(episode)));
            Ok(json!({ "message": opening }))
        }
        "step" => {
            let turn = request.get("turn").and_then(turn).ok_or("the request has no readable `turn`")?;
            let observation = locked(&*episode()?).step(&turn).map_err(|error| error_text(&error))?;
            Ok(shown(observation))
        }
        "close" => {
            let episode = episode()?;
            locked(episodes).remove(&name()?);
            let reward = locked(&*episode).finish().map_err(|error| error_text(&error))?;
            Ok(json!({ "reward": reward }))
        }
        other => Err(format!("there is no request `{other}`")),
    }
}

fn error_text(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    }
}

fn turn(value: &Value) -> Option<Turn> {
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let call = |call: &Value| {
        let arguments = match call.get("arguments").and_then(Value::as_object) {
            Some(arguments) => Ok(arguments.clone()),
            None => Err(text(call, "error").unwrap_or_else(|| "the call has no arguments".to_owned())),
        };
        Some(Call { id: text(call, "id"), name: text(call, "name")?, arguments })
    };
    let calls = value.get("calls").and_then(Value::as_array)?.iter().map(call).collect::<Option<_>>()?;
    let content = text(value, "content")?;
    Some(Turn { text: text(value, "text")?, answer: content.clone(), content, calls, thought: String::new() })
}

fn shown(observation: Observation) -> Value {
    let reply = |reply: Reply| match reply {
        Reply::User { content } | Reply::Tokens { content, .. } => json!({ "content": content }),
        Reply::Tool { name, id, content } => json!({ "name": name, "id": id, "content": content }),
    };
    let Observation { replies, reward, is_done, metrics } = observation;
    let replies: Vec<Value> = replies.into_iter().map(reply).collect();
    json!({ "replies": replies, "reward": reward, "done": is_done, "metrics": metrics })
}

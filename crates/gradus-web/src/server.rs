//! The server: its options, its routes, its life.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use gradus::{Error, Result};
use tokio::net::TcpListener;

use crate::app::App;
use crate::guard::{BODY_BYTES, Guard};
use crate::guesses::Guesses;
use crate::middleware::admit;
use crate::models::{Computing, Models};
use crate::rich::Rich;
use crate::secret::secret;
use crate::serving::Changing;
use crate::store::Store;
use crate::tinker::TrainingOptions;
use crate::training::{Trainer, Training};
use crate::{annotate, assets, chat, connections, home, openai, page, runs, serving, tinker, training};

/// How often the server looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// What is served, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder: its models and runs are served, and what people do is kept in it.
    pub folder: PathBuf,
    /// The address to listen at. Any but this machine's own demands a token.
    pub host: IpAddr,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// Names that the server goes by, besides addresses and `localhost`.
    pub names: Vec<String>,
    /// Further models: directories, also outside the folder, or hub names.
    pub models: Vec<String>,
    /// How models are computed.
    pub computing: Computing,
    /// What programs may train over `/api/v1/`; without it, nothing.
    pub training_api: Option<TrainingOptions>,
    /// Who starts runs; without one, pages start and change none.
    pub trainer: Option<Arc<dyn Trainer>>,
    /// Folders that programs with the token for weights may load adapters and weights from; without any, nobody may.
    pub weights: Vec<PathBuf>,
    /// The token for that; without one, a new one is made.
    pub weights_token: Option<String>,
}

/// Where the server can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Where it listens.
    pub socket: SocketAddr,
    /// What must be known to use it, where others can reach it.
    pub token: Option<String>,
    /// What must be known to change adapters and weights, where that is allowed.
    pub weights_token: Option<String>,
}

impl Address {
    /// The address for a browser, with the token.
    pub fn url(&self) -> String {
        let socket = match self.socket.ip().is_unspecified() {
            true => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), self.socket.port()),
            false => self.socket,
        };
        let token = self.token.as_ref().map_or(String::new(), |token| format!("?token={token}"));
        format!("http://{socket}/{token}")
    }
}

/// Serves until `should_stop`; `ready` hears where as soon as requests are answered.
///
/// # Errors
/// When the folder or a model cannot be opened, or the address is taken.
pub fn serve(options: Options, ready: &mut dyn FnMut(&Address), should_stop: &dyn Fn() -> bool) -> Result<()> {
    // One thread answers everybody. What waits for the disk or a lock is done beside it, which this kind of runtime allows.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| Error::input(format!("the server cannot start: {error}")))?;
    runtime.block_on(async {
        let socket = SocketAddr::new(options.host, options.port);
        let listener = TcpListener::bind(socket).await.map_err(|error| taken(socket, &error))?;
        let socket = listener.local_addr().map_err(|error| taken(socket, &error))?;
        let app = Arc::new(app(options, socket)?);
        let weights_token = app.changing.as_ref().map(|changing| changing.token().to_owned());
        let address = Address { socket, token: app.guard.token.clone(), weights_token };
        // Read before anyone asks: many runs take a moment the first time.
        let early = Arc::clone(&app);
        tokio::task::spawn_blocking(move || drop(early.runs.entries(&early.folder)));
        ready(&address);
        let ended = async {
            while !should_stop() {
                tokio::time::sleep(LOOK).await;
            }
        };
        // Streams may be long: who is still served when the server ends is cut off.
        tokio::select! {
            () = connections::serve(listener, routes(app)) => Ok(()),
            () = ended => Ok(()),
        }
    })
}

fn taken(socket: SocketAddr, error: &std::io::Error) -> Error {
    let failed = Error::input(format!("cannot listen at {socket}: {error}"));
    match error.kind() {
        std::io::ErrorKind::AddrInUse => failed.with_hint("choose another `--port`, or 0 for a free one"),
        _ => failed,
    }
}

fn app(options: Options, socket: SocketAddr) -> Result<App> {
    let folder = options.folder.canonicalize().map_err(|error| Error::io(&options.folder, error))?;
    if !folder.is_dir() {
        return Err(Error::input(format!("`{}` is no folder", options.folder.display())));
    }
    let is_loopback = socket.ip().is_loopback();
    let mut names = options.names;
    names.push("localhost".into());
    let changing = match options.weights.as_slice() {
        [] => None,
        folders => Some(Changing::new(options.weights_token.unwrap_or_else(secret), folders)?),
    };
    // Who may change weights may use the server, too.
    let further = changing.as_ref().map(|changing| changing.token().to_owned());
    let guard = Guard { names, port: socket.port(), is_loopback, token: (!is_loopback).then(secret), further };
    let training = Training::new(options.trainer, options.computing.device.to_string());
    let models = Arc::new(Models::new(&folder, &options.models, options.computing.clone())?);
    let tinker =
        options.training_api.map(|of| tinker::Training::open(&folder, Arc::clone(&models), options.computing, of));
    let tinker = tinker.transpose()?;
    let (store, runs, guesses) = (Store::open(&folder)?, runs::Cache::default(), Guesses::default());
    let rich = Rich::default();
    Ok(App { guard, store, models, runs, training, changing, tinker, folder, rich, guesses })
}

fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(home::show))
        .merge(annotate::routes())
        .merge(chat::routes())
        .merge(openai::routes())
        .merge(runs::routes())
        .merge(serving::routes())
        .merge(training::routes())
        .merge(tinker::routes())
        .merge(assets::routes())
        .fallback(page::missing)
        .layer(from_fn_with_state(Arc::clone(&app), admit))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(app)
}

//! The server: options, routes and lifecycle.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use gradus::pretrained::TextFiles;
use gradus::{Error, Result};
use tokio::net::TcpListener;

use crate::app::App;
use crate::guard::{BODY_BYTES, Guard};
use crate::guesses::Guesses;
use crate::middleware::admit;
use crate::models::{ComputeOptions, Models};
use crate::rich::Rich;
use crate::secret::secret;
use crate::serving::Changing;
use crate::store::Store;
use crate::tinker::TrainingOptions;
use crate::training::{RunStarter, Training};
use crate::{annotate, assets, chat, connections, home, openai, page, runs, serving, tinker, training};

/// Interval at which the server checks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// Options of the server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder with the served models and runs, which also stores the database.
    pub folder: PathBuf,
    /// Address to listen on. Addresses other than this machine's own require a token.
    pub host: IpAddr,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Additional host names of the server, besides addresses and `localhost`.
    pub names: Vec<String>,
    /// Additional models: directories, also outside the folder, or hub names.
    pub models: Vec<String>,
    /// Tokenizer and chat template that replace those of the language models in `models`.
    pub text: TextFiles,
    /// Settings of computing.
    pub computing: ComputeOptions,
    /// Options of the training API at `/api/v1/`. `None` disables it.
    pub training_api: Option<TrainingOptions>,
    /// Starts runs. With `None`, pages cannot start or change runs.
    pub starter: Option<Arc<dyn RunStarter>>,
    /// Folders from which programs with the token for weights may load adapters and weights. If empty, nobody may.
    pub weights: Vec<PathBuf>,
    /// Token for weights. `None` creates a new one.
    pub weights_token: Option<String>,
}

/// Address of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Socket address.
    pub socket: SocketAddr,
    /// Token for using the server, if other machines can reach it.
    pub token: Option<String>,
    /// Token for changing adapters and weights, if that is allowed.
    pub weights_token: Option<String>,
}

impl Address {
    /// Returns the URL for a browser, with the token.
    pub fn url(&self) -> String {
        let socket = match self.socket.ip().is_unspecified() {
            true => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), self.socket.port()),
            false => self.socket,
        };
        let token = self.token.as_ref().map_or(String::new(), |token| format!("?token={token}"));
        format!("http://{socket}/{token}")
    }
}

/// Serves until `should_stop` returns true. `ready` receives the address as soon as the server accepts requests.
///
/// The server has an asynchronous runtime of its own. Call it on a thread of its own in a program with another one, for example in
/// `tokio::task::spawn_blocking`.
///
/// # Errors
/// The folder or a model cannot be opened, the address is in use, or there are no places for completions.
///
/// # Panics
/// In an asynchronous task, because a task must not wait for another runtime.
pub fn serve(options: Options, ready: &mut dyn FnMut(&Address), should_stop: &dyn Fn() -> bool) -> Result<()> {
    if options.computing.places == 0 {
        return Err(Error::input("`computing.places` is 0, but a model needs at least 1 to sample completions"));
    }
    // One thread handles all requests. Work that blocks on the disk or a lock runs on other threads, which this kind of runtime permits.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| Error::input(format!("the server cannot start: {error}")))?;
    runtime.block_on(async {
        let socket = SocketAddr::new(options.host, options.port);
        let listener = TcpListener::bind(socket).await.map_err(|error| taken(socket, &error))?;
        let socket = listener.local_addr().map_err(|error| taken(socket, &error))?;
        let app = Arc::new(app(options, socket)?);
        let weights_token = app.changing.as_ref().map(|changing| changing.token().to_owned());
        let address = Address { socket, token: app.guard.token.clone(), weights_token };
        // Fill the cache before the first request, because reading many runs takes a moment.
        let early = Arc::clone(&app);
        tokio::task::spawn_blocking(move || drop(early.runs.entries(&early.folder)));
        ready(&address);
        let ended = async {
            while !should_stop() {
                tokio::time::sleep(LOOK).await;
            }
        };
        // Streams may be long, so they are cut off when the server stops.
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
        return Err(Error::input(format!("`{}` is not a folder", options.folder.display())));
    }
    let is_loopback = socket.ip().is_loopback();
    let mut names = options.names;
    names.push("localhost".into());
    let changing = match options.weights.as_slice() {
        [] => None,
        folders => Some(Changing::new(options.weights_token.unwrap_or_else(secret), folders)?),
    };
    // The token for weights also grants access to the server.
    let further = changing.as_ref().map(|changing| changing.token().to_owned());
    let guard = Guard { names, port: socket.port(), is_loopback, token: (!is_loopback).then(secret), further };
    let training = Training::new(options.starter, options.computing.device.to_string());
    let models = Arc::new(Models::new(&folder, &options.models, options.text.clone(), options.computing.clone())?);
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gradus::device::DeviceChoice;
    use gradus::model::WeightFormat;

    use super::*;

    #[test]
    fn a_server_without_places_for_completions_is_refused() {
        let computing = ComputeOptions { device: DeviceChoice::cpu(), weights: WeightFormat::F32, places: 0 };
        let options = Options {
            folder: ".".into(),
            host: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            names: Vec::new(),
            models: Vec::new(),
            text: TextFiles::default(),
            computing,
            training_api: None,
            starter: None,
            weights: Vec::new(),
            weights_token: None,
        };
        let error = serve(options, &mut |_| panic!("it listens"), &|| true).expect_err("refused");
        assert!(error.to_string().starts_with("`computing.places` is 0"), "{error}");
    }
}

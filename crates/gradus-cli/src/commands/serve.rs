//! `gradus serve`: the web application for a folder.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;

use gradus::model::WeightFormat;
use gradus_web::{
    Comparison, ComputeOptions, Options, ProcessTask, RunStarter, RunningProcess, TrainingOptions, serve,
};
use serde_json::json;

use super::device::DeviceArgs;
use super::text::TextArgs;
use crate::output::Output;
use crate::process;
use crate::watch::{catch_interrupts, fetch, is_interrupted};

/// Arguments of `gradus serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Folder whose models and runs are served; `gradus.sqlite` in it stores the work of its users
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Add a model, also from outside the folder: a directory, a run or a hub name. May be given several times
    #[arg(long, value_name = "DIR")]
    model: Vec<String>,
    #[command(flatten)]
    text_files: TextArgs,
    /// Address to listen on; addresses other than this machine's own require a token, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Additional host name of the server, besides addresses and `localhost`. May be given several times
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Number format of the weights of language models: f32, bf16, int8 or nf4
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    weights: WeightFormat,
    /// Completions that a model samples together; others wait. A quarter more places are reserved for
    /// requests that have no completion in progress
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    places: u16,
    #[command(flatten)]
    on: DeviceArgs,
    /// Let pages start runs, stop, resume, export and delete them; if other machines can reach the server, only owners may
    #[arg(long)]
    allow_training: bool,
    /// Let programs with a token load adapters and weights from this folder, to sample with them. The token is printed, or it is the value
    /// of the environment variable GRADUS_WEIGHTS_TOKEN. May be given several times
    #[arg(long, value_name = "FOLDER")]
    allow_weights: Vec<PathBuf>,
    /// Let programs train adapters over Tinker's protocol at `/api/v1/`; checkpoints go to the folder `tinker`
    #[arg(long)]
    training_api: bool,
    /// Trained models in memory at once; others are kept on disk until they are used
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024), requires = "training_api")]
    training_models: u16,
    /// Program sessions at once; idle sessions are removed for new ones
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096), requires = "training_api")]
    training_sessions: u16,
}

/// Environment variable with the token for weights.
const WEIGHTS_TOKEN: &str = "GRADUS_WEIGHTS_TOKEN";

/// Minimum length of a token that users choose.
const TOKEN_CHARACTERS: usize = 16;

/// Returns the token for weights that the user chose.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn weights_token() -> anyhow::Result<Option<String>> {
    let Ok(token) = std::env::var(WEIGHTS_TOKEN) else { return Ok(None) };
    let fits = token.len() >= TOKEN_CHARACTERS && token.bytes().all(|byte| byte.is_ascii_graphic());
    anyhow::ensure!(
        fits,
        "{WEIGHTS_TOKEN} must have at least {TOKEN_CHARACTERS} characters, all of them ASCII letters, digits or \
         punctuation"
    );
    Ok(Some(token))
}

/// Runs that pages start. Each is a process of this program and outlives the server.
#[derive(Debug)]
struct OwnProgram;

struct ChildProcess(Child);

impl RunningProcess for ChildProcess {
    fn has_ended(&mut self) -> bool {
        // A process that can no longer be queried has ended.
        self.0.try_wait().map_or(true, |status| status.is_some())
    }
}

/// Converts an error of this crate to one of the library.
fn plain(error: anyhow::Error) -> gradus::Error {
    error.downcast().unwrap_or_else(|error| gradus::Error::input(format!("{error:#}")))
}

impl RunStarter for OwnProgram {
    fn forecast(&self, config: &Path) -> gradus::Result<serde_json::Value> {
        let mut command = process::gradus().map_err(plain)?;
        command.arg("plan").arg(config).args(["--json", "--quiet"]);
        let output = command
            .output()
            .map_err(|error| gradus::Error::input(format!("gradus cannot start another process of itself: {error}")))?;
        // The forecast of a run that does not fit is shown as well, although the command fails.
        serde_json::from_slice(&output.stdout).map_err(|_| {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.trim().trim_start_matches("error: ");
            let (message, hint) = match message.split_once("\nhint: ") {
                Some((message, hint)) => (message, Some(hint)),
                None => (message, None),
            };
            let error = gradus::Error::input(if message.is_empty() {
                "the forecast failed without a message"
            } else {
                message
            });
            match hint {
                Some(hint) => error.with_hint(hint),
                None => error,
            }
        })
    }

    fn begin(&self, task: &ProcessTask<'_>, log: &Path) -> gradus::Result<Box<dyn RunningProcess>> {
        let mut command = process::gradus().map_err(plain)?;
        match task {
            ProcessTask::Train { config } => {
                command.arg("train").arg(config);
            }
            ProcessTask::Resume { run, max_steps } => {
                command.args(["runs", "resume"]).arg(run);
                if let Some(steps) = max_steps {
                    command.args(["--max-steps", &steps.to_string()]);
                }
            }
            ProcessTask::Compare(Comparison { folder, name, prompts: (prompts, most), models, progress }) => {
                command.args(["annotate", "new", name, "--labels", "comparison", "--folder"]).arg(folder);
                command.arg("--data").arg(prompts).args(["--max-tasks", &most.to_string()]);
                for model in *models {
                    command.arg("--model").arg(model);
                }
                command.arg("--progress").arg(progress);
            }
            ProcessTask::Demo { output } => {
                command.arg("demo").arg("--output-dir").arg(output);
            }
        }
        command.arg("--quiet");
        process::stands_alone(&mut command);
        Ok(Box::new(ChildProcess(process::begin(command, log).map_err(plain)?)))
    }
}

/// Serves until Ctrl-C.
pub fn run(args: ServeArgs, out: &Output) -> anyhow::Result<()> {
    if args.model.is_empty() {
        args.text_files.refuse("needs `--model`: it applies to the language models that you name")?;
    }
    for model in &args.model {
        fetch(model, out)?;
    }
    let text = args.text_files.into();
    let ServeArgs { folder, model, host, port, name, weights, places, on, allow_training, allow_weights, .. } = args;
    let training_api = args.training_api.then(|| TrainingOptions {
        models: args.training_models.into(),
        sessions: args.training_sessions.into(),
        ..TrainingOptions::default()
    });
    let computing = ComputeOptions { device: on.device, weights, places: places.into() };
    let starter = allow_training.then(|| Arc::new(OwnProgram) as Arc<dyn RunStarter>);
    let weights_token = if allow_weights.is_empty() { None } else { weights_token()? };
    let is_chosen = weights_token.is_some();
    let options = Options {
        folder,
        host,
        port,
        names: name,
        models: model,
        text,
        computing,
        training_api,
        starter,
        weights: allow_weights,
        weights_token,
    };
    catch_interrupts(None);
    let mut result = Ok(());
    let mut ready = |address: &gradus_web::Address| {
        result = match out.is_json() {
            true => out.json_line(&json!({
                "url": address.url(),
                "token": address.token,
                "weights_token": address.weights_token,
            })),
            false => out.data(address.url()),
        };
        if let Some(token) = address.weights_token.as_ref().filter(|_| !is_chosen) {
            out.note(format!("token for weights: {token}"));
        }
        out.note("Ctrl-C stops the server");
    };
    serve(options, &mut ready, &is_interrupted)?;
    result
}

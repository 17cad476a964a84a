//! `gradus serve`: the web application over a folder.

use std::net::IpAddr;
use std::path::PathBuf;

use gradus::device::DeviceChoice;
use gradus::model::WeightFormat;
use gradus_web::{Computing, Options, serve};
use serde_json::json;

use crate::output::Output;
use crate::watch::{catch_interrupts, fetch, is_interrupted};

/// Arguments of `gradus serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The folder whose models and runs are served; `gradus.sqlite` in it keeps what people do
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// A further model, also from outside the folder: a directory, a run or a hub name. May be given several times
    #[arg(long, value_name = "DIR")]
    model: Vec<String>,
    /// The address to listen at; any but this machine's own demands a token, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// A name that the server goes by, besides addresses and `localhost`. May be given several times
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// How the weights of language models are held: f32, bf16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    weights: WeightFormat,
    /// Completions that a model samples side by side; others wait
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    places: u16,
    /// Where to compute: cpu; gpu or gpu:1 where built in (`gradus doctor` lists them)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
}

/// Serves until Ctrl-C.
pub fn run(args: ServeArgs, out: &Output) -> anyhow::Result<()> {
    for model in &args.model {
        fetch(model, out)?;
    }
    let ServeArgs { folder, model, host, port, name, weights, places, device } = args;
    let computing = Computing { device, weights, places: places.into() };
    let options = Options { folder, host, port, names: name, models: model, computing };
    catch_interrupts();
    let mut said = Ok(());
    let mut ready = |address: &gradus_web::Address| {
        said = match out.is_json() {
            true => out.json_line(&json!({ "url": address.url(), "token": address.token })),
            false => out.data(address.url()),
        };
        out.note("Ctrl-C ends the server");
    };
    serve(options, &mut ready, &is_interrupted)?;
    said
}

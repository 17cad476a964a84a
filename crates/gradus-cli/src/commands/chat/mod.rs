//! `gradus chat`: a conversation with a model in the terminal, or answers to the lines of a pipe.

use std::borrow::Cow;
use std::io::{BufRead, IsTerminal};
use std::sync::atomic::{AtomicU8, Ordering};

use gradus::inference::{ChatFormat, ChatJudge, ChatModel, ChatOptions};
use gradus::model::{Precision, WeightFormat};

use super::device::DeviceArgs;
use super::text::TextArgs;
use crate::output::Output;
use crate::watch::fetch;

mod columns;
mod commands;
mod session;

use commands::Command;
use session::{Session, Speaker};

use super::generate::SamplingArgs;

/// Arguments of `gradus chat`.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    /// Model: a directory, an adapter, a run or one of its checkpoints, or a hub name
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Adapter on the model, in peft's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<String>,
    /// Second model that answers the same prompts
    #[arg(long, value_name = "DIR")]
    versus: Option<String>,
    /// Adapter on the second model
    #[arg(long, value_name = "DIR", requires = "versus")]
    versus_adapter: Option<String>,
    /// Reward model that scores every answer
    #[arg(long, value_name = "DIR")]
    reward_model: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Format of conversations: template (the model's own), hh (`Human:` and `Assistant:`) or plain [default: template if the model has
    /// one, otherwise hh]
    #[arg(long, value_name = "FORM")]
    format: Option<ChatFormat>,
    #[command(flatten)]
    text_files: TextArgs,
    /// Number format of matrix products: f32 or bf16; if --weights is f32 or bf16, it has priority
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    compute: Precision,
    /// Number format of the weights: f32, bf16, int8 or nf4 [default: as --compute]
    #[arg(long, value_name = "TYPE")]
    weights: Option<WeightFormat>,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// State of the answer, shared with the signal handler. Ctrl-C stops an answer, never the program.
static ANSWER: AtomicU8 = AtomicU8::new(LISTENING);
/// Waiting for an input line.
const LISTENING: u8 = 0;
/// An answer is being generated.
const ANSWERING: u8 = 1;
/// The answer is to be stopped.
const STOPPING: u8 = 2;

fn watch_for_interrupts(out: &Output) {
    let out = out.clone();
    // Registering fails only if a handler is already installed, and one is enough.
    let _ = ctrlc::set_handler(move || match ANSWER.load(Ordering::SeqCst) {
        ANSWERING => ANSWER.store(STOPPING, Ordering::SeqCst),
        // A second Ctrl-C: the answer has not stopped, perhaps because the model is reading a long prompt.
        STOPPING => std::process::exit(130),
        _ => {
            out.note("\n`/quit` or Ctrl-D ends the chat");
            out.prompt("> ");
        }
    });
}

/// Returns whether a person types the input.
fn is_dialogue() -> bool {
    std::io::stdin().is_terminal()
}

/// Mark at the beginning and the end of a prompt of several lines.
const BLOCK: &str = "\"\"\"";

/// Reads a line, without its end. Bytes that are not UTF-8 are replaced, with a warning: the conversation goes on. `None` at the end of the
/// input.
fn read_line(input: &mut impl BufRead, out: &Output) -> anyhow::Result<Option<String>> {
    let mut bytes = Vec::new();
    if input.read_until(b'\n', &mut bytes).map_err(|error| gradus::Error::io("stdin", error))? == 0 {
        return Ok(None);
    }
    let line = String::from_utf8_lossy(&bytes);
    if matches!(line, Cow::Owned(_)) {
        out.warn("the line is not valid UTF-8; each invalid part was replaced by \u{fffd}");
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Reads the next prompt or command, which may be invalid. `None` at the end of the input.
fn read_command(
    input: &mut impl BufRead,
    is_dialogue: bool,
    out: &Output,
) -> anyhow::Result<Option<Result<Option<Command>, String>>> {
    if is_dialogue {
        out.prompt("> ");
    }
    let Some(line) = read_line(input, out)? else { return Ok(None) };
    let Some(first) = line.trim_start().strip_prefix(BLOCK) else { return Ok(Some(Command::parse(&line))) };
    let mut text = first.trim_end().to_owned();
    while !text.ends_with(BLOCK) {
        if is_dialogue {
            out.prompt("... ");
        }
        let Some(line) = read_line(input, out)? else { break };
        text.push('\n');
        text.push_str(line.trim_end());
    }
    let text = text.strip_suffix(BLOCK).unwrap_or(&text).trim_matches('\n');
    Ok(Some(Ok((!text.trim().is_empty()).then(|| Command::Say(text.to_owned())))))
}

/// Reads prompts and commands until the input ends or `/quit`.
pub fn run(args: ChatArgs, out: &Output) -> anyhow::Result<()> {
    let is_dialogue = is_dialogue() && !out.is_json();
    let mut session = open(args, out)?;
    watch_for_interrupts(out);
    if is_dialogue {
        out.note(session.greeting());
    }
    let mut input = std::io::stdin().lock();
    while let Some(command) = read_command(&mut input, is_dialogue, out)? {
        match command {
            Ok(None) => {}
            Ok(Some(Command::Quit)) => return Ok(()),
            Ok(Some(command)) => session.obey(command, out)?,
            Err(message) => out.warn(message),
        }
    }
    if is_dialogue {
        out.note("");
    }
    Ok(())
}

fn open(args: ChatArgs, out: &Output) -> anyhow::Result<Session> {
    let weights = args.weights.unwrap_or(args.compute.into());
    let open = |model: &str, adapter: Option<String>| {
        fetch(model, out)?;
        let options = ChatOptions {
            model: model.to_owned(),
            adapter,
            compute: args.compute,
            weights,
            text: args.text_files.clone().into(),
            format: args.format,
            device: args.on.device.clone(),
        };
        Ok::<_, anyhow::Error>(ChatModel::open(&options)?)
    };
    let mut models = vec![(args.model.as_str(), open(&args.model, args.adapter.clone())?)];
    if let Some(other) = &args.versus {
        models.push((other.as_str(), open(other, args.versus_adapter.clone())?));
    }
    if args.format.is_none() {
        let formats: Vec<(&str, ChatFormat)> = models.iter().map(|(name, found)| (*name, found.format())).collect();
        warn_of_missing_templates(&formats, out);
    }
    let speakers: Vec<Speaker> = models.into_iter().map(|(name, found)| Speaker::new(name, found)).collect();
    let judge = match &args.reward_model {
        Some(name) => {
            fetch(name, out)?;
            Some(ChatJudge::open(name, args.compute, &args.on.device)?)
        }
        None => None,
    };
    Ok(Session::new(speakers, judge, args.system, args.sampling.settings()?))
}

/// Warns about the models without a chat template, once for all models that read conversations in the same form.
fn warn_of_missing_templates(models: &[(&str, ChatFormat)], out: &Output) {
    let forms = [(ChatFormat::Hh, "`Human: …` and `Assistant: …`, as in HH-RLHF"), (ChatFormat::Plain, "plain text")];
    for (format, form) in forms {
        let names: Vec<String> =
            models.iter().filter(|(_, found)| *found == format).map(|(name, _)| format!("`{name}`")).collect();
        match names.as_slice() {
            [] => continue,
            [name] => out.warn(format_args!("{name} has no chat template: it reads the conversation as {form}")),
            names => out.warn(format_args!(
                "{} have no chat template: they read the conversation as {form}",
                names.join(" and ")
            )),
        }
        out.note("`--chat-template NAME|FILE` sets one (chatml, llama3, qwen, …); `--format` sets another form");
    }
}

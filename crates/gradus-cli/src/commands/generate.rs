//! `gradus generate`: completions of prompts as JSON lines, in the order of the prompts.

use std::path::Path;

use gradus::Error;
use gradus::generate::{BeamParams, EarlyStopping, SamplingParams};
use gradus::inference::{ChatSettings, Prompts, SampleOptions, Sampled, sample};
use gradus::model::{Precision, WeightFormat};
use gradus::rng::Seed;

use super::bad_rows::BadRowArgs;
use super::columns::ColumnArgs;
use super::device::DeviceArgs;
use super::text::TextArgs;
use crate::output::{Output, Paint};
use crate::watch::{fetch, fetch_data};

/// Arguments of `gradus generate`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("asked").required(true))]
pub struct GenerateArgs {
    /// Model: a Hugging Face directory or a hub name
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Adapter on the model, in peft's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<String>,
    /// Prompts: a file, a directory or a hub name; rows with `prompt`, or conversations; each line of a `.txt` file
    #[arg(long, value_name = "PATH", group = "asked")]
    prompts: Option<String>,
    /// Text of a prompt; may be given several times; `-`, at most once, reads one from stdin
    #[arg(long, value_name = "TEXT", group = "asked", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// Completions per prompt, one after the other; with beam search the best ones
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "num-return-sequences", value_parser = group_size)]
    group_size: usize,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Use at most this many prompts
    #[arg(long, value_name = "N", value_parser = max_rows)]
    max_rows: Option<usize>,
    #[command(flatten)]
    bad_rows: BadRowArgs,
    /// Number format of matrix products: f32 or bf16; if --weights is f32 or bf16, it has priority
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    compute: Precision,
    /// Number format of the weights: f32, bf16, int8 or nf4 [default: as --compute]
    #[arg(long, value_name = "TYPE")]
    weights: Option<WeightFormat>,
    #[command(flatten)]
    text_files: TextArgs,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    beams: BeamArgs,
}

/// Settings of beam search.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Beam search")]
pub struct BeamArgs {
    /// Number of beams: the most likely continuations at `--temperature 0`, sampled ones above; 1 turns beam search off
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = num_beams)]
    num_beams: usize,
    /// Rank completions by log-probability divided by their length to this power; above 0 prefers long ones
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    length_penalty: f32,
    /// End a search when as many completions have ended as there are beams (true), when the best beam, if it ended now, would not be among
    /// them (false), or when no beam can become one of them (never)
    #[arg(long, value_name = "WHEN", default_value = "false")]
    early_stopping: EarlyStopping,
    /// Divide the beams into N groups that search for different completions (diverse beam search)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = num_beams)]
    num_beam_groups: usize,
    /// Reduce a token's log-probability by this for every beam of an earlier group that chose it at the same position
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    diversity_penalty: f32,
}

impl BeamArgs {
    /// Returns the parameters of the search; `None` if each completion is sampled by itself.
    ///
    /// # Errors
    /// A setting of the search is given without a search.
    pub fn params(&self) -> gradus::Result<Option<BeamParams>> {
        let Self { num_beams, length_penalty, early_stopping, num_beam_groups, diversity_penalty } = *self;
        let is_searched = num_beams != 1 || num_beam_groups != 1;
        for (flag, is_usual) in [
            ("--length-penalty", length_penalty == 1.0),
            ("--early-stopping", early_stopping == EarlyStopping::Heuristic),
            ("--diversity-penalty", diversity_penalty == 0.0),
        ] {
            if !is_searched && !is_usual {
                let message = format!("`{flag}` is given, but only beam search reads it");
                return Err(Error::input(message).with_hint("leave it out, or set `--num-beams` above 1"));
            }
        }
        Ok(is_searched.then_some(BeamParams {
            num_beams,
            length_penalty,
            early_stopping,
            num_beam_groups,
            diversity_penalty,
        }))
    }
}

/// Sampling settings.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Maximum length of a completion in tokens
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = max_new_tokens)]
    max_new_tokens: usize,
    /// Minimum length of a completion in tokens; stop ids are not sampled earlier
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_new_tokens: usize,
    /// Divide logits by this value; 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = temperature)]
    temperature: f32,
    /// Sample only from the K most likely tokens
    #[arg(long, value_name = "K", value_parser = top_k)]
    top_k: Option<usize>,
    /// Sample from the fewest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true, value_parser = top_p)]
    top_p: f32,
    /// Sample only tokens with at least this share of the highest probability
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true, value_parser = min_p)]
    min_p: f32,
    /// Sample from the tokens whose information is closest to the entropy, the fewest that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true, value_parser = top_p)]
    typical_p: f32,
    /// Make tokens that have already occurred less likely
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = penalty)]
    repetition_penalty: f32,
    /// Let no sequence of N tokens occur twice, prompt included; 0 turns it off
    #[arg(long, value_name = "N", default_value_t = 0)]
    no_repeat_ngram_size: usize,
    /// Let no sequence of N tokens of the prompt occur in the completion; 0 turns it off
    #[arg(long, value_name = "N", default_value_t = 0)]
    encoder_no_repeat_ngram_size: usize,
    /// Token ids that are never sampled, separated by commas
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    suppress_tokens: Vec<u32>,
    /// Sequence of token ids, separated by commas, that never occurs; may be given several times
    #[arg(long, value_name = "ID,…", value_parser = ids)]
    bad_words_ids: Vec<Ids>,
    /// Token id that every completion begins with; without an encoder, prompts must have one token, as in transformers
    #[arg(long, value_name = "ID")]
    forced_bos_token_id: Option<u32>,
    /// Token id at the end of completions of maximum length
    #[arg(long, value_name = "ID")]
    forced_eos_token_id: Option<u32>,
    /// String that ends a completion; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = stop)]
    pub stop: Vec<String>,
    /// Seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
}

/// Token ids in one argument.
#[derive(Debug, Clone)]
pub struct Ids(Vec<u32>);

fn ids(text: &str) -> Result<Ids, std::num::ParseIntError> {
    text.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>().map(Ids)
}

/// Parses a number for which `holds` is true; `expected` describes the allowed numbers.
fn number(text: &str, expected: &str, holds: fn(f32) -> bool) -> Result<f32, String> {
    let found = text.parse().map_err(|_| "expected a number".to_owned())?;
    if holds(found) { Ok(found) } else { Err(format!("it must be {expected}")) }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, "at least 0 and finite", |x| x >= 0.0 && x.is_finite())
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, "above 0 and at most 1", |p| p > 0.0 && p <= 1.0)
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, "between 0 and 1", |p| (0.0..=1.0).contains(&p))
}

fn penalty(text: &str) -> Result<f32, String> {
    number(text, "above 0 and finite", |x| x > 0.0 && x.is_finite())
}

/// Parses a whole number from 1 to `most`.
fn count(text: &str, most: usize) -> Result<usize, String> {
    let found = text.parse().ok().filter(|count| (1..=most).contains(count));
    found.ok_or_else(|| format!("expected a whole number from 1 to {most}"))
}

fn group_size(text: &str) -> Result<usize, String> {
    count(text, 1 << 16)
}

/// Parses the number of rows that a command reads at most, as `train.max_rows`: at least one.
pub(super) fn max_rows(text: &str) -> Result<usize, String> {
    count(text, 1_000_000_000)
}

fn num_beams(text: &str) -> Result<usize, String> {
    count(text, 1 << 10)
}

fn max_new_tokens(text: &str) -> Result<usize, String> {
    count(text, 100_000_000)
}

fn top_k(text: &str) -> Result<usize, String> {
    count(text, 1 << 24)
}

fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("every text ends with nothing: a text is needed".into()) } else { Ok(text.to_owned()) }
}

impl SamplingArgs {
    /// Returns the parameters of the engine. Stop ids come from the model.
    ///
    /// # Errors
    /// The minimum length exceeds the maximum length.
    pub fn params(&self) -> gradus::Result<SamplingParams> {
        let (least, most) = (self.min_new_tokens, self.max_new_tokens);
        if least > most {
            let message = format!("`--min-new-tokens` is {least}, but `--max-new-tokens` is {most}");
            return Err(Error::input(message).with_hint("lower `--min-new-tokens`, or raise `--max-new-tokens`"));
        }
        Ok(SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
            no_repeat_ngram_size: self.no_repeat_ngram_size,
            encoder_no_repeat_ngram_size: self.encoder_no_repeat_ngram_size,
            suppress_tokens: self.suppress_tokens.clone(),
            bad_words_ids: self.bad_words_ids.iter().map(|word| word.0.clone()).collect(),
            forced_bos_token_id: self.forced_bos_token_id,
            forced_eos_token_id: self.forced_eos_token_id,
            ..SamplingParams::default()
        })
    }

    /// Returns the initial settings of a conversation.
    ///
    /// # Errors
    /// As [`Self::params`].
    pub fn settings(&self) -> gradus::Result<ChatSettings> {
        Ok(ChatSettings { params: self.params()?, stop: self.stop.clone(), seed: self.seed() })
    }

    /// Returns the seed.
    pub fn seed(&self) -> Seed {
        Seed(self.seed)
    }
}

/// Returns the prompts that the arguments name.
fn prompts(args: &GenerateArgs, out: &Output) -> anyhow::Result<Prompts> {
    let Some(data) = &args.prompts else {
        args.columns.refuse("needs `--prompts`: a prompt on the command line has no columns")?;
        args.bad_rows.refuse("needs `--prompts`: it leaves out rows of a data set")?;
        let from_stdin = args.prompt.iter().filter(|text| *text == "-").count();
        if from_stdin > 1 {
            let message = format!("`--prompt -` is given {from_stdin} times, but stdin has one prompt");
            return Err(Error::input(message).with_hint("leave out all but one, or pass a file to `--prompts`").into());
        }
        let text = |text: &String| match text.as_str() {
            "-" => Ok(std::io::read_to_string(std::io::stdin().lock())?.trim_end_matches(['\n', '\r']).to_owned()),
            text => Ok(text.to_owned()),
        };
        return Ok(Prompts::Texts(args.prompt.iter().map(text).collect::<anyhow::Result<_>>()?));
    };
    let path = Path::new(data);
    if path.extension().is_some_and(|extension| extension == "txt") && path.is_file() {
        args.columns.refuse("names columns, but a text file has no columns: each line is a prompt")?;
        let lines = gradus::data::lines(path)?.map(|line| line.map(|(_, line)| line));
        let lines = lines.filter(|line| !line.as_ref().is_ok_and(|line| line.trim().is_empty()));
        return Ok(Prompts::Texts(lines.collect::<gradus::Result<_>>()?));
    }
    fetch_data(data, out)?;
    Ok(Prompts::Data(data.clone()))
}

/// Samples the completions and prints each one as soon as it is complete: as JSON lines, or as text on a terminal.
pub fn run(args: GenerateArgs, out: &Output) -> anyhow::Result<()> {
    let prompts = prompts(&args, out)?;
    let options = SampleOptions {
        params: args.sampling.params()?,
        seed: args.sampling.seed(),
        stop: args.sampling.stop,
        model: args.model,
        adapter: args.adapter,
        prompts,
        group_size: args.group_size,
        beams: args.beams.params()?,
        rename: args.columns.renames()?,
        max_rows: args.max_rows,
        bad_rows: args.bad_rows.into(),
        at_once: None,
        compute: args.compute,
        weights: args.weights.unwrap_or(args.compute.into()),
        text: args.text_files.into(),
        device: args.on.device,
    };
    fetch(&options.model, out)?;
    let mut bar = out.counter("prompts");
    let remarks =
        sample(&options, &mut |done, total| bar.set(done, total), &mut |sampled| match out.is_read_by_a_person() {
            true => out.text(&shown(&sampled, out.data_paint())),
            false => out.json_line(&sampled),
        })?;
    drop(bar);
    remarks.iter().for_each(|remark| out.warn(remark));
    Ok(())
}

/// Formats the prompt, dimmed, with its completion, and marks completions that were cut off.
fn shown(sampled: &Sampled, paint: Paint) -> String {
    let cut = if sampled.stop == "length" { paint.faint(" […]") } else { String::new() };
    format!("{}{}{cut}\n", paint.faint(&sampled.prompt), sampled.completion)
}

//! Episodes of several turns compared to TRL's GRPO trainer with `tools` and with `environment_factory`
//! (`tools/parity/episodes.py`).
//!
//! The policy is forced to sample the tokens of TRL's policy, turn by turn. Everything else is computed here: parsing
//! calls, appending answers, counting turns and tokens, and rewards. Ids and masks are the same. Log-probabilities,
//! advantages and losses are within 1e-6. TRL's log-probabilities in f32 are up to 1.3e-6 from those in f64 at values of −10,
//! so the bound is relative for values below −1; ours are compared with both.

use std::path::PathBuf;
use std::sync::Arc;

use burn::module::Module;
use gradus::algorithm::grpo::{Grpo, GrpoConfig};
use gradus::algorithm::{Actor, Algorithm, Experience, TokenTargets, Update, actor};
use gradus::batches::MicroBatch;
use gradus::data::Message;
use gradus::evaluation::observe_rollouts;
use gradus::generate::{History, LogitsMask, Masking, Record, SamplingParams};
use gradus::learner::Learner;
use gradus::learner::optimizer::Optimizer;
use gradus::method::RolloutKeys;
use gradus::model::{CausalLm, ModelDir, Support};
use gradus::progress::Unwatched;
use gradus::reward::{EnvironmentReward, apply};
use gradus::rng::{Purpose, Seed};
use gradus::rollout::episodes::{Episodes, Limits, Scene};
use gradus::rollout::{
    Dialogue, EpisodeEnd, LocalEngine, Policy, Prompt, RolloutSource, Rollouts, Sampler, StopReason, Turn,
};
use gradus::settings::{Settings, TrainConfig};
use gradus::stats::Stats;
use gradus::text::{ChatTemplate, RenderOptions, Tokenizer};
use gradus_environments::{self as env, CallFormat};
use serde_json::{Map, Value, json};

use crate::device::{device, slack};
use crate::fixture::{assert_all, assert_each, assert_value, flat, folder, list, number, read, text};

/// End mark of a turn.
const END: u32 = 4;
const GROUP: usize = 4;

fn path() -> PathBuf {
    folder().join("trajectories")
}

fn lines(run: &str, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path().join(run).join(file)).expect("a fixture");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    flat(value).into_iter().map(|id| id as u32).collect()
}

/// Samples the ids of a script.
struct Script {
    /// For each row, the length of the prompt and all ids after it.
    rows: Vec<(usize, Vec<u32>)>,
}

impl LogitsMask for Script {
    fn supports(&self, rows: &[(usize, History<'_>)], _: &[f32], _: Option<&[f32]>) -> Vec<Support> {
        let next = |(row, history): &(usize, History<'_>)| {
            let (prompt, script) = &self.rows[*row];
            script.get(history.ids.len() - prompt).map_or(Support::All, |&id| Support::Ids([id].into()))
        };
        rows.iter().map(next).collect()
    }
}

/// Formats a failure like Python.
fn failure(message: &str) -> String {
    let quote = if message.contains('\'') { '"' } else { '\'' };
    format!("{{'error': {quote}{message}{quote}}}")
}

fn tool(name: &str, arguments: &[(&str, &str)]) -> env::Tool {
    let properties: Map<String, Value> =
        arguments.iter().map(|(name, kind)| ((*name).to_owned(), json!({ "type": kind }))).collect();
    env::Tool {
        name: name.into(),
        description: String::new(),
        parameters: json!({ "type": "object", "properties": properties }),
        returns: None,
    }
}

/// Tools of the script.
struct Tools(Vec<env::Tool>);

impl env::Environment for Tools {
    fn tools(&self) -> &[env::Tool] {
        &self.0
    }

    fn begin(&self, _: &env::Start) -> env::Result<env::NewEpisode> {
        Ok(env::NewEpisode { episode: Box::new(Calls), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

struct Calls;

fn result(call: &env::Call) -> Result<String, String> {
    let arguments = call.arguments.as_ref().map_err(Clone::clone)?;
    match call.name.as_str() {
        "add" => match (arguments["a"].as_i64(), arguments.get("b").and_then(Value::as_i64)) {
            (Some(a), Some(b)) => Ok((a + b).to_string()),
            _ => Err("add() missing 1 required positional argument: 'b'".into()),
        },
        "find" => match arguments["word"].as_str() {
            Some("fog") => Ok("Low clouds.".into()),
            Some("cat") => Ok("It purrs, ".repeat(12)),
            Some("dog") => Ok("It barks, ".repeat(20)),
            other => Err(format!("'{}'", other.unwrap_or_default())),
        },
        "now" => Ok("noon".into()),
        name => Err(format!("Tool {name} not found.")),
    }
}

impl env::Episode for Calls {
    fn step(&mut self, turn: &env::Turn) -> env::Result<env::Observation> {
        let results: Vec<_> = turn.calls.iter().map(|call| (call, result(call))).collect();
        let failures = results.iter().filter(|(_, result)| result.is_err()).count();
        let reply = |(call, result): (&env::Call, Result<String, String>)| env::Reply::Tool {
            name: call.name.clone(),
            id: call.id.clone(),
            content: result.unwrap_or_else(|error| failure(&error)),
        };
        let metrics = [("tools/calls", turn.calls.len()), ("tools/failures", failures)];
        Ok(env::Observation {
            replies: results.into_iter().map(reply).collect(),
            metrics: metrics.map(|(name, count)| (name.to_owned(), count as f64)).into(),
            ..env::Observation::default()
        })
    }
}

/// Game of the script: an environment with its own tool and its own reward.
struct Game([env::Tool; 1]);

struct Guesses {
    target: i64,
    guesses: i64,
    is_won: bool,
}

impl env::Environment for Game {
    fn tools(&self) -> &[env::Tool] {
        &self.0
    }

    fn begin(&self, start: &env::Start) -> env::Result<env::NewEpisode> {
        let target = start.row["target"].as_i64().expect("a number");
        let episode = Box::new(Guesses { target, guesses: 0, is_won: false });
        Ok(env::NewEpisode { episode, opening: Some(" Guess from 1 to 9.".into()) })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

impl env::Episode for Guesses {
    fn step(&mut self, turn: &env::Turn) -> env::Result<env::Observation> {
        let mut reply = |call: &env::Call| {
            let number = call.arguments.as_ref().expect("read")["number"].as_i64().expect("a number");
            self.guesses += 1;
            self.is_won |= number == self.target;
            let content = match number.cmp(&self.target) {
                std::cmp::Ordering::Less => "higher",
                std::cmp::Ordering::Equal => "right",
                std::cmp::Ordering::Greater => "lower",
            };
            env::Reply::Tool { name: call.name.clone(), id: call.id.clone(), content: content.into() }
        };
        let replies = turn.calls.iter().map(&mut reply).collect();
        let metrics = [("tools/calls", turn.calls.len() as f64), ("tools/failures", 0.0)];
        let metrics = metrics.map(|(name, count)| (name.to_owned(), count)).into();
        Ok(env::Observation { replies, metrics, ..env::Observation::default() })
    }

    fn finish(&mut self) -> env::Result<Option<f64>> {
        Ok(Some(if self.is_won { 1.0 / self.guesses as f64 } else { -0.125 * self.guesses as f64 }))
    }
}

struct Run {
    name: &'static str,
    fixture: Value,
    rows: Vec<Value>,
    recorded: Vec<Value>,
    tokenizer: Tokenizer,
    model: CausalLm,
    episodes: Episodes,
}

impl Run {
    fn open(name: &'static str, environment: Arc<dyn env::Environment>, turns: usize) -> Self {
        let directory = path().join("models/qwen3");
        let tokenizer = Tokenizer::from_dir(&directory).expect("a tokenizer");
        let template = ChatTemplate::from_file(&path().join(name).join("chat_template.jinja"), &tokenizer);
        let mut dialogue = Dialogue {
            tokenizer: tokenizer.clone(),
            template: Some(template.expect("a template")),
            tools: environment.tools().iter().map(env::Tool::to_template).collect(),
            stop_ids: vec![END],
            read_calls: None,
        };
        dialogue.check_tools().expect("it shows tools");
        let format = dialogue.call_format().expect("a form");
        assert_eq!(format, CallFormat::Hermes);
        dialogue.read_calls =
            Some(Box::new(move |text: &str, begins_in_thought: bool| format.read(text, begins_in_thought)));
        let model = CausalLm::load(&ModelDir::open(&directory).expect("a model"), &device().autodiff());
        Self {
            name,
            fixture: read(&format!("trajectories/{name}/run.json")),
            rows: lines(name, "rows.jsonl"),
            recorded: lines(name, "rollouts.jsonl"),
            tokenizer,
            model: model.expect("a model"),
            episodes: Episodes { environment, dialogue, limits: Limits { turns, ..Limits::default() } },
        }
    }

    fn given(&self, key: &str) -> &Value {
        &self.fixture["hyper_parameters"][key]
    }

    fn temperature(&self) -> f32 {
        number(self.given("temperature")) as f32
    }

    fn generation(&self, generation: usize) -> Vec<&Value> {
        self.recorded.iter().filter(|row| row["generation"] == generation).collect()
    }

    fn prompt(&self, row: usize) -> Prompt {
        let columns = self.rows[row].as_object().cloned().expect("an object");
        let content = &list(&columns["prompt"])[0]["content"];
        let messages = vec![Message::new("user", text(content))];
        let Dialogue { template, tools, .. } = &self.episodes.dialogue;
        let options = RenderOptions { tools: Some(tools), add_generation_prompt: true, ..RenderOptions::default() };
        let text = template.as_ref().expect("a template").render(&messages, &options).expect("rendered").text;
        let ids = self.tokenizer.encode(&text, false).expect("encoded");
        Prompt { row, text, ids, encoder_reads_prompt: false, messages: Some(messages), columns }
    }

    /// Samples the episodes of a generation with the tokens of TRL's policy.
    fn sample(&self, generation: usize) -> Rollouts {
        let recorded = self.generation(generation);
        let whole = |row: &&Value| {
            let turns = list(&row["turns"]).iter();
            let all = turns.flat_map(|turn| [ids(&turn["drawn"]), ids(&turn["answered"])].concat()).collect();
            (list(&row["prompt_ids"]).len(), all)
        };
        let script = Script { rows: recorded.iter().map(whole).collect() };
        let sampler = Sampler {
            tokenizer: &self.tokenizer,
            group_size: GROUP,
            params: SamplingParams {
                temperature: self.temperature(),
                max_new_tokens: number(self.given("max_completion_length")) as usize,
                stop_ids: vec![END],
                ..SamplingParams::default()
            },
            beams: None,
            stop: &[],
            masking: Some(Masking { mask: &script, guide: None, record: Record::Nothing }),
            episodes: Some(Scene { episodes: &self.episodes, when: "step 1", earlier: &[] }),
            progress: &Unwatched,
        };
        let prompts = recorded.len() / GROUP;
        let prompts = (0..prompts).map(|p| self.prompt(generation * prompts + p)).collect();
        let policy = Policy { model: self.model.clone().valid(), version: 0 };
        let stream = |i: usize| Seed(7).stream(Purpose::Rollout, 0, i as u64);
        LocalEngine::default().sample(policy, prompts, &sampler, &stream).expect("sampled")
    }

    /// Compares ids, turns and masks, and the metrics logged about them.
    fn compare(&self) {
        let repeats = self.given("num_iterations").as_u64().expect("a number") as usize;
        let steps = list(&self.fixture["steps"]);
        for generation in 0..steps.len() / repeats {
            let rollouts = self.sample(generation);
            for (i, (rollout, row)) in rollouts.rollouts.iter().zip(self.generation(generation)).enumerate() {
                let at = format!("{}, generation {generation}, rollout {i}", self.name);
                assert_eq!(rollouts.prompt(i).ids, ids(&row["prompt_ids"]), "{at}: {}", rollouts.prompt(i).text);
                let mut begins = 0;
                let turns = list(&row["turns"]);
                assert_eq!(rollout.turns.len(), turns.len(), "{at}: {:?}", rollout.episode);
                for (turn, expected) in rollout.turns.iter().zip(turns) {
                    let Turn { drawn, answered, .. } = turn;
                    let (middle, end) = (begins + drawn, begins + drawn + answered);
                    assert_eq!(rollout.completion_ids[begins..middle], ids(&expected["drawn"]), "{at}");
                    assert_eq!(rollout.completion_ids[middle..end], ids(&expected["answered"]), "{at}");
                    begins = end;
                }
                assert_eq!(begins, rollout.completion_ids.len(), "{at}");
            }
            let mut stats = Stats::default();
            observe_rollouts(&rollouts, &mut stats);
            let metrics = steps[generation * repeats]["metrics"].as_object().expect("an object");
            for (name, expected) in metrics.iter().filter(|(name, _)| name.starts_with("completions/")) {
                let found = stats.value(name).unwrap_or_else(|| panic!("`{name}` is not logged"));
                assert_value(&format!("{}, generation {generation}, {name}", self.name), found, number(expected));
            }
            // The turn at the turn limit is the last one: TRL does not call its tools.
            let at_limit = rollouts
                .rollouts
                .iter()
                .filter(|rollout| rollout.episode.as_ref().is_some_and(|episode| episode.end == EpisodeEnd::Turns));
            let more: usize = at_limit.filter_map(|rollout| Some(rollout.exchanges().last()?.turn.calls.len())).sum();
            let count = rollouts.len() as f64;
            let calls = stats.value("tools/call_frequency").expect("logged") * count - more as f64;
            let failures = stats.value("tools/failure_frequency").expect("logged") * (calls + more as f64);
            assert_value("calls an episode", calls / count, number(&metrics["tools/call_frequency"]));
            assert_value("failures a call", failures / calls, number(&metrics["tools/failure_frequency"]));
        }
    }

    /// Compares calls and answers of the first generation.
    fn compare_calls(&self) {
        let rollouts = self.sample(0);
        for (rollout, expected) in rollouts.rollouts.iter().zip(list(&self.fixture["first"]["calls"])) {
            let mut found = Vec::new();
            for exchange in rollout.exchanges() {
                let replies = exchange.observation.replies.iter().map(|reply| Some(reply.content().to_owned()));
                let contents = replies.chain(std::iter::repeat(None));
                for (call, content) in exchange.turn.calls.iter().zip(contents) {
                    found.push(json!([call.name, call.arguments, content]));
                }
            }
            let expected = list(expected).iter().map(|call| {
                let arguments: Value = serde_json::from_str(text(&call[1])).expect("JSON");
                // TRL leaves out answers that do not fit; gradus keeps them in the record.
                (call[0].clone(), json!({ "Ok": arguments }), call[2].clone())
            });
            for (found, (name, arguments, content)) in found.iter().zip(expected.clone()) {
                assert_eq!((&found[0], &found[1]), (&name, &arguments));
                assert!(content.is_null() || found[2] == content, "{found} and {content}");
            }
            assert!(found.len() >= expected.len());
        }
    }

    /// Compares log-probabilities, advantages and the loss of the first update.
    fn compare_update(&self) {
        let first = &self.fixture["first"];
        let rollouts = self.sample(0);
        let temperature = self.temperature();
        let own = [&first["old_logprobs"], &first["logprobs"][0]];
        let again =
            actor::logprobs(&self.model.clone().valid(), &rollouts, temperature, MicroBatch::new(100_000, None));
        let leaves_out = self.given("mask_truncated_completions") == true;
        for (i, rollout) in rollouts.rollouts.iter().enumerate() {
            // TRL hides the tokens of excluded completions from the model.
            if leaves_out && rollout.stop == StopReason::Length {
                continue;
            }
            let exact = flat(&first["exact_logprobs"][i]);
            for (how, found) in [("as sampled", rollout.counted_logprobs()), ("computed again", again[i][..].into())] {
                let at = format!("{}, rollout {i}, {how}", self.name);
                assert_each(&format!("{at}, exact"), &found, &exact);
                for expected in own.iter().filter(|logprobs| logprobs.is_array()) {
                    assert_each(&at, &found, &flat(&expected[i]));
                }
            }
        }
        let recorded = self.generation(0);
        let of_environment = apply(&mut EnvironmentReward, &rollouts).expect("scored");
        let rewards: Vec<Option<Vec<f32>>> = recorded
            .iter()
            .zip(&rollouts.rollouts)
            .zip(&of_environment)
            .map(|((row, rollout), score)| {
                let expected = number(&row["reward"]);
                if let Some(found) = score.total() {
                    assert_value(&format!("{}, reward", self.name), f64::from(found), expected);
                }
                let mut rewards_t = vec![0.0; rollout.completion_ids.len()];
                *rewards_t.last_mut().expect("never empty") = expected as f32;
                Some(rollout.rewards_of_counted(&rewards_t))
            })
            .collect();
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(
                GROUP,
                number(self.given("max_completion_length")) as usize,
                f64::from(temperature),
            ),
            clip_range: self.given("epsilon").as_f64().unwrap_or(0.2),
            kl_coefficient: number(self.given("beta")),
            loss_type: serde_json::from_value(self.given("loss_type").clone()).expect("a loss"),
            mask_truncated_completions: self.given("mask_truncated_completions").as_bool().unwrap_or(false),
            ..GrpoConfig::default()
        };
        let train = TrainConfig { shuffle: false, max_grad_norm: 1.0, ..TrainConfig::default() };
        let settings = Settings::new(&train, 10, number(self.given("learning_rate")), "eval_reward");
        let actor = Actor { policy: self.model.clone(), value_head: None };
        let mut learner = Learner::new(actor, Optimizer::new(settings.optimizer));
        let mut algorithm = Grpo::new(&config);
        let reference = Some(again);
        let experience = Experience::new(rollouts, rewards, reference);
        let advantages = algorithm.advantages(&learner.frozen(), &experience, &settings);
        let expected = flat(&first["advantages"]);
        for (i, TokenTargets { advantages_t, .. }) in advantages.targets.iter().enumerate() {
            // One advantage for all tokens of the policy.
            assert_eq!(advantages_t.len(), experience.rollout(i).counted());
            let expected = vec![expected[i]; advantages_t.len()];
            assert_all(&format!("{}, advantages {i}", self.name), advantages_t, &expected, 1e-6, 1.0);
        }
        let at = Update { iteration: 0, multiplier: 1.0, settings: &settings, progress: &Unwatched };
        let report = algorithm.update(&mut learner, &experience, &advantages, at).expect("updated");
        let step = &list(&self.fixture["steps"])[0];
        assert_value(
            &format!("{}, loss", self.name),
            report.metrics.value("loss").expect("logged"),
            number(&step["loss"]),
        );
        let norm = report.metrics.value("grad_norm").expect("logged");
        let expected = number(&step["grad_norm"]);
        assert!((norm - expected).abs() < 1e-5 * expected * slack(), "{}: gradient {norm} and {expected}", self.name);
    }
}

fn tools() -> Run {
    let tools =
        vec![tool("add", &[("a", "integer"), ("b", "integer")]), tool("find", &[("word", "string")]), tool("now", &[])];
    // TRL counts answered turns.
    Run::open("grpo_tools", Arc::new(Tools(tools)), 3)
}

fn game() -> Run {
    Run::open("grpo_environment", Arc::new(Game([tool("guess", &[("number", "integer")])])), 16)
}

#[test]
fn episodes_with_tools_have_the_ids_and_masks_of_trl() {
    tools().compare();
    tools().compare_calls();
}

#[test]
fn episodes_in_an_environment_have_the_ids_and_masks_of_trl() {
    game().compare();
    game().compare_calls();
}

#[test]
fn episodes_with_tools_train_as_in_trl() {
    tools().compare_update();
}

#[test]
fn episodes_in_an_environment_train_as_in_trl() {
    game().compare_update();
}

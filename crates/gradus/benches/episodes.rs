//! The cost of turns: 64 episodes of four turns compared to completions of one turn with the same tokens, on a model
//! with half of GPT-2's blocks.
//!
//! `cargo bench --workspace --bench episodes`. The environment answers at once, so the difference comes from the engine
//! (a row leaves it at the end of a turn and continues after the answer), the chat template, and the threads. Each
//! one-turn completion has as many sampled tokens as its episode; the tokens of the episode's answers are in its
//! prompt.
//!
//! In a second part, some episodes get each answer a second late. If they delayed the others, the total time would grow
//! by more than the four seconds that each of them waits.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use gradus::data::Message;
use gradus::generate::{Engine, NoStopRule, Request, SamplingParams};
use gradus::model::{CausalLm, ModelDir};
use gradus::progress::Unwatched;
use gradus::rng::{Purpose, Seed, Stream};
use gradus::rollout::episodes::{Episodes, Limits, Scene};
use gradus::rollout::{Dialogue, LocalEngine, Policy, Prompt, RolloutSource, Rollouts, Sampler};
use gradus::text::{ChatTemplate, RenderOptions, Tokenizer};
use gradus_environments as env;
use serde_json::{Map, Value, json};

const EPISODES: usize = 64;
const TURNS: usize = 4;
/// Maximum number of tokens of an episode.
const TOKENS: usize = 400;
/// End marks of the template's turns and of texts.
const STOP_IDS: [u32; 2] = [4, 2];
/// Number of runs; the fastest counts.
const RUNS: usize = 3;

/// One of this many episodes is slow.
const SLOW: usize = 8;
/// Delay of the answers of a slow episode.
const LATE: Duration = Duration::from_secs(1);

/// An environment that always gives the same answers: at once, or late in some episodes.
struct Answers {
    late: Duration,
    begun: AtomicUsize,
}

impl Answers {
    fn after(late: Duration) -> Arc<Self> {
        Arc::new(Self { late, begun: AtomicUsize::new(0) })
    }
}

impl env::Environment for Answers {
    fn tools(&self) -> &[env::Tool] {
        &[]
    }

    fn begin(&self, _: &env::Start) -> env::Result<env::NewEpisode> {
        let is_slow = self.begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(SLOW);
        let late = if is_slow { self.late } else { Duration::ZERO };
        Ok(env::NewEpisode { episode: Box::new(Episode { turns: 0, late }), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

struct Episode {
    turns: usize,
    late: Duration,
}

impl env::Episode for Episode {
    fn step(&mut self, _: &env::Turn) -> env::Result<env::Observation> {
        self.turns += 1;
        std::thread::sleep(self.late);
        let replies = vec![env::Reply::User { content: "the kettle is warm, what is next?".into() }];
        Ok(env::Observation { replies, is_done: self.turns == TURNS, ..env::Observation::default() })
    }
}

fn model(tokenizer: &Tokenizer) -> CausalLm {
    let config = json!({
        "model_type": "qwen3", "vocab_size": tokenizer.vocab_size(), "hidden_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64, "intermediate_size": 2048,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true
    });
    let Value::Object(config) = config else { unreachable!("an object") };
    let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
    CausalLm::random(&ModelDir::unsaved(config), &mut stream, &Device::flex())
        .expect("a configuration that is understood")
}

fn stream(i: usize) -> Stream {
    Seed(7).stream(Purpose::Rollout, 0, i as u64)
}

fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed(), result)
}

fn main() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/qwen3");
    let tokenizer = Tokenizer::from_dir(&directory).expect("a fixture");
    let template = ChatTemplate::from_dir(&directory, &tokenizer).expect("a fixture").expect("a template");
    let model = model(&tokenizer);
    let prompt = |row: usize| {
        let messages = vec![Message::new("user", format!("say {row} things about tea and cups"))];
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let text = template.render(&messages, &options).expect("rendered").text;
        let ids = tokenizer.encode(&text, false).expect("encoded");
        Prompt { row, text, ids, encoder_reads_prompt: false, messages: Some(messages), columns: Map::new() }
    };
    let prompts: Vec<Prompt> = (0..EPISODES).map(prompt).collect();
    let dialogue = || Dialogue {
        tokenizer: tokenizer.clone(),
        template: Some(template.clone()),
        tools: Vec::new(),
        stop_ids: STOP_IDS.to_vec(),
        read_calls: None,
    };
    let play = |late: Duration| {
        let limits = Limits::default();
        let episodes = Episodes { environment: Answers::after(late), dialogue: dialogue(), limits };
        let stop = ["e".to_owned()];
        let sampler = Sampler {
            tokenizer: &tokenizer,
            group_size: 1,
            params: SamplingParams { max_new_tokens: TOKENS, stop_ids: STOP_IDS.to_vec(), ..SamplingParams::default() },
            beams: None,
            stop: &stop,
            masking: None,
            episodes: Some(Scene { episodes: &episodes, when: "step 1", earlier: &[] }),
            progress: &Unwatched,
        };
        let policy = Policy { model: model.clone(), version: 0 };
        LocalEngine::default().sample(policy, prompts.clone(), &sampler, &stream).expect("sampled")
    };
    let at_once = || play(Duration::ZERO);
    let (_, rollouts) = timed(at_once);
    let count = |of: fn(&gradus::rollout::Turn) -> usize| -> usize {
        rollouts.rollouts.iter().flat_map(|rollout| &rollout.turns).map(of).sum()
    };
    let (drawn, answered) = (count(|turn| turn.drawn), count(|turn| turn.answered));
    let turns: usize = rollouts.rollouts.iter().map(|rollout| rollout.turns.len()).sum();
    println!("{EPISODES} episodes, {turns} turns, {drawn} tokens drawn, {answered} tokens of answers");
    let (mut several, mut one) = (Duration::MAX, Duration::MAX);
    for _ in 0..RUNS {
        several = several.min(timed(at_once).0);
        one = one.min(timed(|| one_turn(&model, &rollouts)).0);
    }
    let ratio = several.as_secs_f64() / one.as_secs_f64();
    println!("{TURNS} turns {:.3} s, one turn {:.3} s: {ratio:.3}", several.as_secs_f64(), one.as_secs_f64());
    let (slow, late) = timed(|| play(LATE));
    assert_eq!(late.rollouts, rollouts.rollouts, "how long answers take changes nothing");
    println!(
        "{} episodes wait {LATE:?} for each answer: {:.3} s, of which they wait {:.3} s; one after the other they would wait {} s",
        EPISODES / SLOW,
        slow.as_secs_f64(),
        (LATE * TURNS as u32).as_secs_f64(),
        EPISODES / SLOW * TURNS
    );
}

/// Samples for each rollout as many tokens as it has, in one turn after its prompt and its answers.
fn one_turn(model: &CausalLm, rollouts: &Rollouts) {
    let mut engine = Engine::new(model, rollouts.len(), TOKENS);
    for (i, rollout) in rollouts.rollouts.iter().enumerate() {
        let read = rollout.completion_ids.iter().zip(rollout.mask()).filter(|(_, drawn)| !drawn).map(|(id, _)| *id);
        let prompt = rollouts.prompt(i).ids.iter().copied().chain(read).collect();
        let params = SamplingParams { max_new_tokens: rollout.counted(), ..SamplingParams::default() };
        let request = Request { prompt, params: Arc::new(params), streams: vec![stream(i)], is_kept: false };
        engine.submit(request).expect("it fits");
    }
    while engine.is_busy() {
        engine.step(&mut NoStopRule);
    }
}

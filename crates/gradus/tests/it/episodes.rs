//! Episodes of several turns: sampled ids, ids with loss, and slow or failing environments.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::tensor::Device;
use gradus::algorithm::actor::logprobs;
use gradus::batches::MicroBatch;
use gradus::data::Message;
use gradus::generate::SamplingParams;
use gradus::model::{CausalLm, ModelDir};
use gradus::progress::Unwatched;
use gradus::reward::{EnvironmentReward, apply};
use gradus::rng::{Purpose, Seed};
use gradus::rollout::episodes::{Episodes, Limits, Scene};
use gradus::rollout::{
    Dialogue, EpisodeEnd, LocalEngine, Policy, Prompt, Retokenized, Rollout, RolloutSource, Rollouts, Sampler,
    StopReason,
};
use gradus::text::{ChatTemplate, Tokenizer};
use gradus_environments as env;

/// End mark of a turn in the model's template, and end of texts.
const STOP_IDS: [u32; 2] = [4, 2];

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/qwen3")
}

/// Answers with the number of the turn and the policy's last text, and ends after `turns` turns.
struct Echo {
    turns: usize,
    /// Duration of an answer, by turn and text length.
    delay: fn(usize, usize) -> Duration,
}

struct EchoEpisode {
    of: (usize, fn(usize, usize) -> Duration),
    seed: u64,
    done: usize,
}

impl env::Environment for Echo {
    fn tools(&self) -> &[env::Tool] {
        &[]
    }

    fn begin(&self, start: &env::Start) -> env::Result<env::NewEpisode> {
        let episode = Box::new(EchoEpisode { of: (self.turns, self.delay), seed: start.seed, done: 0 });
        Ok(env::NewEpisode { episode, opening: Some(format!(" Start with {}.", start.seed % 10)) })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

impl env::Episode for EchoEpisode {
    fn step(&mut self, turn: &env::Turn) -> env::Result<env::Observation> {
        self.done += 1;
        let (turns, delay) = self.of;
        std::thread::sleep(delay(self.done, turn.text.len()));
        let content = format!("{} {} {}", self.done, self.seed % 7, turn.text.chars().take(5).collect::<String>());
        Ok(env::Observation {
            replies: vec![env::Reply::User { content }],
            reward: Some(0.25),
            is_done: self.done == turns,
            metrics: [("score".to_owned(), 2.0)].into(),
        })
    }

    fn finish(&mut self) -> env::Result<Option<f64>> {
        Ok(Some(self.done as f64))
    }
}

fn at_once(_: usize, _: usize) -> Duration {
    Duration::ZERO
}

#[derive(Clone)]
struct Bench {
    tokenizer: Tokenizer,
    model: CausalLm,
    prompts: Vec<Prompt>,
}

impl Bench {
    fn new() -> Self {
        let dir = ModelDir::open(&directory()).expect("a fixture");
        let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
        let tokenizer = Tokenizer::from_dir(&directory()).expect("a fixture");
        let template = ChatTemplate::from_dir(&directory(), &tokenizer).expect("a fixture").expect("a template");
        let prompt = |row: usize| {
            let messages = vec![Message::new("user", format!("say {row}"))];
            let options = gradus::text::RenderOptions { add_generation_prompt: true, ..Default::default() };
            let text = template.render(&messages, &options).expect("rendered").text;
            let ids = tokenizer.encode(&text, false).expect("encoded");
            Prompt {
                row,
                text,
                ids,
                encoder_reads_prompt: false,
                messages: Some(messages),
                columns: serde_json::Map::new(),
            }
        };
        let prompts = (0..3).map(prompt).collect();
        Self { tokenizer, model, prompts }
    }

    fn episodes(&self, environment: impl env::Environment + 'static, turns: usize) -> Episodes {
        let template = ChatTemplate::from_dir(&directory(), &self.tokenizer).expect("a fixture");
        Episodes {
            environment: Arc::new(environment),
            dialogue: Dialogue {
                tokenizer: self.tokenizer.clone(),
                template,
                tools: Vec::new(),
                stop_ids: STOP_IDS.to_vec(),
                read_calls: None,
            },
            limits: Limits { turns, ..Limits::default() },
        }
    }

    fn sample(&self, episodes: &Episodes, max_new_tokens: usize) -> gradus::Result<Rollouts> {
        let params = SamplingParams { max_new_tokens, stop_ids: STOP_IDS.to_vec(), ..SamplingParams::default() };
        // An untrained model seldom ends a turn, so these letters end it as well.
        let stop: Vec<String> = ["e", "a", "1"].map(String::from).into();
        let sampler = Sampler {
            tokenizer: &self.tokenizer,
            group_size: 4,
            params,
            beams: None,
            stop: &stop,
            masking: None,
            episodes: Some(Scene { episodes, when: "step 1", earlier: &[] }),
            progress: &Unwatched,
        };
        let policy = Policy { model: self.model.clone(), version: 0 };
        let stream = |i: usize| Seed(7).stream(Purpose::Rollout, 0, i as u64);
        LocalEngine::default().sample(policy, self.prompts.clone(), &sampler, &stream)
    }
}

/// Returns the ranges of the sampled and the answered ids of each turn.
fn spans(rollout: &Rollout) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut at = 0;
    let span = |turn: &gradus::rollout::Turn| {
        let (start, middle) = (at, at + turn.drawn);
        at = middle + turn.answered;
        (start..middle, middle..at)
    };
    rollout.turns.iter().map(span).collect()
}

#[test]
fn the_recorded_logprobs_are_those_of_the_policy_after_everything_it_read() {
    let bench = Bench::new();
    let rollouts = bench.sample(&bench.episodes(Echo { turns: 4, delay: at_once }, 16), 200).expect("sampled");
    assert_eq!(rollouts.len(), 12);
    assert!(rollouts.rollouts.iter().filter(|rollout| rollout.turns.len() == 4).count() > 6, "most take four turns");
    let again = logprobs(&bench.model, &rollouts, 1.0, MicroBatch::new(100_000, None));
    for (rollout, again_t) in rollouts.rollouts.iter().zip(&again) {
        assert_eq!(rollout.counted_logprobs().len(), again_t.len());
        for (recorded, again) in rollout.counted_logprobs().iter().zip(again_t) {
            assert!((recorded - again).abs() < 2e-5, "{recorded} and {again}");
        }
        assert_eq!(rollout.mask().count(), rollout.completion_ids.len());
        assert_eq!(rollout.ranges_fit(), Ok(()));
    }
}

/// Checks the lengths of a rollout.
trait Fits {
    fn ranges_fit(&self) -> Result<(), String>;
}

impl Fits for Rollout {
    fn ranges_fit(&self) -> Result<(), String> {
        let tokens = self.completion_ids.len();
        let of_turns: usize = self.turns.iter().map(|turn| turn.drawn + turn.answered).sum();
        match (of_turns, self.logprobs.len(), self.sampled_logprobs.len()) == (tokens, tokens, tokens) {
            true => Ok(()),
            false => Err(format!("{of_turns} of {tokens}")),
        }
    }
}

#[test]
fn an_answer_is_what_the_template_writes_and_nothing_is_tokenized_again() {
    let bench = Bench::new();
    let rollouts = bench.sample(&bench.episodes(Echo { turns: 3, delay: at_once }, 16), 200).expect("sampled");
    let mut ends = [0, 0];
    for (i, rollout) in rollouts.rollouts.iter().enumerate() {
        let prompt = rollouts.prompt(i);
        assert!(prompt.text.contains(" Start with "), "the environment opens the conversation: {}", prompt.text);
        assert_eq!(prompt.ids, bench.tokenizer.encode(&prompt.text, false).expect("encoded"));
        for (turn, (drawn, answered)) in rollout.turns.iter().zip(spans(rollout)) {
            let exchange = turn.exchange.as_ref().expect("an environment took part");
            let [gradus_environments::Reply::User { content }] = &exchange.observation.replies[..] else {
                assert!(answered.is_empty(), "without replies nothing is read");
                continue;
            };
            let text = bench.tokenizer.decode(&rollout.completion_ids[answered.clone()], false).expect("decoded");
            let has_mark = STOP_IDS.contains(&rollout.completion_ids[drawn.end - 1]);
            ends[usize::from(has_mark)] += 1;
            // A turn that ended at a stop string has no mark of its own, so the template's mark follows.
            let mark = if has_mark { "" } else { "<|end|>" };
            let expected = format!("{mark}\n<|turn|>user\n{}<|end|>\n<|turn|>assistant\n", content.trim());
            if !answered.is_empty() {
                assert_eq!(text, expected);
            }
        }
    }
    assert!(ends.iter().all(|count| *count > 0), "turns end both ways: {ends:?}");
}

#[test]
fn the_whole_conversation_has_the_ids_that_were_appended_unless_the_template_changes_the_past() {
    let bench = Bench::new();
    let counts = |episodes: &Episodes, prompts: &[Prompt]| {
        let bench = Bench { prompts: prompts.to_vec(), ..bench.clone() };
        let mut sum = Retokenized::default();
        for rollout in &bench.sample(episodes, 200).expect("sampled").rollouts {
            let found = rollout.episode.as_ref().expect("an episode").retokenized;
            let answered = rollout.turns.iter().filter(|turn| turn.answered > 0).count();
            assert_eq!(found.clean + found.realigned + found.forked, answered, "every answered turn is compared");
            sum.clean += found.clean;
            sum.realigned += found.realigned;
            sum.forked += found.forked;
        }
        sum
    };
    let episodes = |template: Option<ChatTemplate>| {
        let mut episodes = bench.episodes(Echo { turns: 3, delay: at_once }, 16);
        episodes.dialogue.template = template;
        episodes
    };
    let text = |source: &str| Some(ChatTemplate::from_source(source, "a.jinja", &bench.tokenizer).expect("a template"));
    // The ids that a random model samples are not always the tokenizer's ids of their text. The template keeps earlier
    // text.
    let kept = std::fs::read_to_string(directory().join("chat_template.jinja")).expect("a fixture");
    let found = counts(&episodes(text(&kept)), &bench.prompts);
    assert!(found.clean > 0 && found.realigned > 0 && found.forked == 0, "{found:?}");
    // A template that marks the first message of longer conversations changes the prompt at the second answer.
    let mark = "message['role'] + ('!' if loop.first and messages | length > 3 else '')";
    let changed = kept.replace("message['role'] +", &format!("{mark} +"));
    let found = counts(&episodes(text(&changed)), &bench.prompts);
    assert!(found.forked > 6, "{found:?}");
    // Texts without messages are concatenated unchanged.
    let plain: Vec<Prompt> = bench.prompts.iter().map(|prompt| Prompt { messages: None, ..prompt.clone() }).collect();
    let found = counts(&episodes(None), &plain);
    assert!(found.clean + found.realigned > 6 && found.forked == 0, "{found:?}");
}

#[test]
fn a_conversation_that_the_template_refuses_is_not_counted_and_spoils_no_later_one() {
    let bench = Bench::new();
    // The second answer makes the conversation five messages long.
    let kept = std::fs::read_to_string(directory().join("chat_template.jinja")).expect("a fixture");
    let source = format!("{{% if messages | length == 5 %}}{{{{ raise_exception('five') }}}}{{% endif %}}{kept}");
    let mut episodes = bench.episodes(Echo { turns: 4, delay: at_once }, 16);
    let template = ChatTemplate::from_source(&source, "a.jinja", &bench.tokenizer).expect("a template");
    episodes.dialogue.template = Some(template);
    let (mut later, mut forked) = (0, 0);
    for rollout in bench.sample(&episodes, 220).expect("sampled").rollouts {
        let answered = rollout.turns.iter().filter(|turn| turn.answered > 0).count();
        let found = rollout.episode.expect("an episode").retokenized;
        assert_eq!(found.clean + found.realigned + found.forked, answered - usize::from(answered > 1), "{found:?}");
        later += usize::from(answered > 2);
        forked += found.forked;
    }
    // A rejected turn cannot be realigned. A later turn therefore differs only if its ids are not the tokenizer's.
    assert!(later > 2 && forked < later, "{forked} of {later}");
}

#[test]
fn an_answer_is_rendered_with_the_template_columns_of_its_row() {
    let bench = Bench::new();
    let episodes = bench.episodes(Echo { turns: 1, delay: at_once }, 1);
    let answer = |variables: serde_json::Value| {
        let columns = [("chat_template_kwargs".to_owned(), variables)].into_iter().collect();
        let prompt = Prompt { columns, ..bench.prompts[0].clone() };
        let replies = [env::Reply::User { content: "go on".into() }];
        episodes.dialogue.answer(&prompt, &env::Turn::default(), StopReason::StopId, &replies)
    };
    let object = answer(serde_json::json!({ "thinking": true })).expect("an answer");
    assert_ne!(object, answer(serde_json::Value::Null).expect("an answer"));
    assert_eq!(object, answer("{\"thinking\": true}".into()).expect("an answer"));
    let refused = answer(serde_json::json!({ "add_generation_prompt": false })).expect_err("a reserved name");
    assert!(refused.to_string().contains("`chat_template_kwargs` sets `add_generation_prompt`"), "{refused}");
}

#[test]
fn how_long_answers_take_changes_nothing() {
    let bench = Bench::new();
    let fast = bench.sample(&bench.episodes(Echo { turns: 3, delay: at_once }, 16), 120).expect("sampled");
    let delay = |turn: usize, length: usize| Duration::from_millis(((turn * 7 + length * 13) % 40) as u64);
    let slow = bench.sample(&bench.episodes(Echo { turns: 3, delay }, 16), 120).expect("sampled");
    assert_eq!(fast.rollouts, slow.rollouts);
}

#[test]
fn a_prompt_that_is_drawn_twice_has_episodes_with_names_of_their_own() {
    let mut bench = Bench::new();
    bench.prompts.push(bench.prompts[0].clone());
    let rollouts = bench.sample(&bench.episodes(Echo { turns: 2, delay: at_once }, 16), 100).expect("sampled");
    let names: BTreeSet<_> =
        rollouts.rollouts.iter().map(|rollout| &rollout.episode.as_ref().expect("one").name).collect();
    assert_eq!(names.len(), 16);
    assert!(names.contains(&"step 1, prompt 1, completion 4, time 2".to_owned()), "{names:?}");
}

#[test]
fn turns_and_tokens_end_episodes() {
    let bench = Bench::new();
    let ended = |turns: usize, limit: usize, tokens: usize| {
        let rollouts = bench.sample(&bench.episodes(Echo { turns, delay: at_once }, limit), tokens).expect("sampled");
        rollouts.rollouts
    };
    for rollout in ended(9, 2, 200) {
        let episode = rollout.episode.as_ref().expect("an episode");
        assert!(rollout.turns.len() <= 2);
        match &episode.end {
            EpisodeEnd::Turns => {
                assert_eq!((rollout.turns.len(), rollout.turns[1].answered, episode.reward), (2, 0, Some(2.0)));
            }
            other => assert_eq!(*other, EpisodeEnd::Tokens),
        }
    }
    // The next answer must leave room for a token of the policy.
    let rollouts = ended(9, 9, 40);
    assert!(rollouts.iter().all(|rollout| rollout.completion_ids.len() <= 40));
    assert!(rollouts.iter().all(|rollout| rollout.episode.as_ref().expect("an episode").end == EpisodeEnd::Tokens));
    assert!(rollouts.iter().any(|rollout| rollout.turns.len() > 1), "an answer fits at times");
    assert!(rollouts.iter().all(|rollout| rollout.turns.last().expect("a turn").answered == 0));
}

/// The environment answers one episode only after all others have ended, and makes another one fail.
struct Uneven {
    ended: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
    /// Number of episodes that must end before the held one gets its answer.
    others: usize,
}

struct UnevenEpisode {
    name: String,
    ended: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
    others: usize,
    turns: usize,
}

impl env::Environment for Uneven {
    fn tools(&self) -> &[env::Tool] {
        &[]
    }

    fn begin(&self, start: &env::Start) -> env::Result<env::NewEpisode> {
        if start.name == "step 1, prompt 2, completion 1" {
            return Err(env::Error::episode("there is no table"));
        }
        let episode = UnevenEpisode {
            name: start.name.clone(),
            ended: self.ended.clone(),
            gate: Arc::clone(&self.gate),
            others: self.others,
            turns: 0,
        };
        Ok(env::NewEpisode { episode: Box::new(episode), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

impl env::Episode for UnevenEpisode {
    fn step(&mut self, _: &env::Turn) -> env::Result<env::Observation> {
        self.turns += 1;
        match self.name.as_str() {
            "step 1, prompt 1, completion 1" if self.turns == 1 => {
                let gate = self.gate.lock().expect("no holder panics");
                (0..self.others).for_each(|_| gate.recv().expect("the others end"));
            }
            "step 1, prompt 1, completion 2" => {
                return Err(env::Error::episode("the table fell over").with_hint("set it up again"));
            }
            "step 1, prompt 1, completion 3" => {
                return Ok(env::Observation { reward: Some(f64::NAN), ..env::Observation::default() });
            }
            _ => {}
        }
        let replies = vec![env::Reply::User { content: "go on".into() }];
        Ok(env::Observation { replies, is_done: self.turns == 2, ..env::Observation::default() })
    }

    fn finish(&mut self) -> env::Result<Option<f64>> {
        let _ = self.ended.send(());
        Ok(Some(1.0))
    }
}

#[test]
fn an_answer_that_does_not_come_holds_nobody_up_and_a_failure_is_no_reward() {
    let bench = Bench::new();
    let (ended, gate) = channel();
    // One of twelve episodes is held and three fail. If the held one blocked the others, the test would not end.
    let environment = Uneven { ended, gate: Arc::new(Mutex::new(gate)), others: 8 };
    let rollouts = bench.sample(&bench.episodes(environment, 16), 200).expect("sampled");
    let failure = |i: usize| rollouts.rollouts[i].failure().map(str::to_owned);
    assert_eq!(failure(1).as_deref(), Some("step 1, prompt 1, completion 2: the table fell over (set it up again)"));
    let not_finite =
        "step 1, prompt 1, completion 3: the environment answered with the number NaN, but a finite one is needed";
    assert_eq!(failure(2).as_deref(), Some(not_finite));
    assert_eq!(failure(4).as_deref(), Some("step 1, prompt 2, completion 1: there is no table"));
    assert_eq!((0..12).filter(|i| failure(*i).is_some()).count(), 3);
    let scores = apply(&mut EnvironmentReward, &rollouts).expect("scored");
    for (i, score) in scores.iter().enumerate() {
        assert_eq!(score.total(), failure(i).is_none().then_some(1.0), "episode {i}");
    }
}

#[test]
fn an_episode_ends_when_its_answers_took_longer_than_they_may_together() {
    let bench = Bench::new();
    let mut episodes = bench.episodes(Echo { turns: 9, delay: |_, _| Duration::from_millis(2) }, 16);
    episodes.limits.episode_s = Some(0.001);
    for rollout in bench.sample(&episodes, 200).expect("sampled").rollouts {
        let episode = rollout.episode.as_ref().expect("an episode");
        match &episode.end {
            EpisodeEnd::Time => assert_eq!((rollout.turns.len(), episode.reward), (1, Some(1.0)), "it has its reward"),
            other => assert_eq!(*other, EpisodeEnd::Tokens),
        }
    }
}

#[test]
fn an_answer_over_the_time_limit_is_a_failure() {
    let bench = Bench::new();
    // The first answer of one episode never comes.
    let (_ended, gate) = channel();
    let environment = Uneven { ended: channel().0, gate: Arc::new(Mutex::new(gate)), others: usize::MAX };
    let mut episodes = bench.episodes(environment, 16);
    episodes.limits = Limits { answer_s: 0.5, at_once: 2, ..episodes.limits };
    let rollouts = bench.sample(&episodes, 200).expect("sampled");
    let failure = rollouts.rollouts[0].failure().expect("it failed");
    assert!(failure.starts_with("step 1, prompt 1, completion 1: no answer within 0.5 s"), "{failure}");
}

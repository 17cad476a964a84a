use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::Device;

use super::*;
use crate::model::ModelDir;
use crate::progress::Unwatched;
use crate::rng::{Purpose, Seed};
use crate::text::Tokenizer;

#[test]
fn a_number_that_cannot_be_used_is_shown_briefly() {
    let message = |number| not_finite(number).to_string();
    assert_eq!(message(f64::NAN), "the environment answered with the number NaN, but a finite one is needed");
    assert_eq!(
        message(-1e300),
        "the environment answered with the number -1e300, but no number may be larger than the largest one of f32, 3.4e38"
    );
}

/// A drawer whose turns have different lengths. It records the step at which rows continue and are dropped.
#[derive(Default)]
struct Recorder {
    step: usize,
    submitted: usize,
    /// Rows that are being sampled, and the steps that are left.
    open: Vec<(usize, usize)>,
    /// Steps at which turns ended.
    ended: Vec<(usize, usize)>,
    calls: Vec<(usize, &'static str, usize)>,
}

impl Drawer for Recorder {
    fn submit(&mut self, request: Request) -> Result<()> {
        for _ in request.streams {
            self.open.push((self.submitted, 1 + self.submitted * 5 % 7));
            self.submitted += 1;
        }
        Ok(())
    }

    fn extend(&mut self, row: usize, _: Extension) -> Result<()> {
        self.calls.push((self.step, "continue", row));
        self.open.push((row, 1 + (row * 5 + self.step) % 7));
        Ok(())
    }

    fn cancel(&mut self, row: usize) {
        self.calls.push((self.step, "drop", row));
    }

    fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    fn draw(&mut self) -> Result<Vec<(usize, Completion)>> {
        self.step += 1;
        self.open.iter_mut().for_each(|(_, left)| *left -= 1);
        let ended: Vec<usize> = self.open.extract_if(.., |(_, left)| *left == 0).map(|(row, _)| row).collect();
        self.ended.extend(ended.iter().map(|&row| (self.step, row)));
        let completion = || Completion {
            ids: vec![20, 12],
            sampled_logprobs: vec![-0.5; 2],
            logprobs: vec![-0.5; 2],
            supports: Vec::new(),
            stop: StopReason::StopId,
        };
        Ok(ended.into_iter().map(|row| (row, completion())).collect())
    }

    fn mixes_rows(&self) -> bool {
        true
    }
}

/// An environment of three turns. The `n`th answer takes a time that depends on `n`, so answers arrive in another order.
struct Uneven {
    answers: Arc<AtomicU64>,
    milliseconds: u64,
}

struct UnevenEpisode {
    of: Arc<AtomicU64>,
    milliseconds: u64,
    turns: usize,
}

impl env::Environment for Uneven {
    fn tools(&self) -> &[env::Tool] {
        &[]
    }

    fn begin(&self, _: &env::Start) -> env::Result<env::NewEpisode> {
        let (of, milliseconds) = (Arc::clone(&self.answers), self.milliseconds);
        Ok(env::NewEpisode { episode: Box::new(UnevenEpisode { of, milliseconds, turns: 0 }), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

impl env::Episode for UnevenEpisode {
    fn step(&mut self, _: &env::Turn) -> env::Result<Observation> {
        let n = self.of.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(n * self.milliseconds % 17));
        self.turns += 1;
        let replies = vec![env::Reply::User { content: "so".into() }];
        Ok(Observation { replies, is_done: self.turns == 3, ..Observation::default() })
    }
}

/// Plays 12 episodes with answers of different durations.
fn recorded(milliseconds: u64, answer_after: usize) -> Recorder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    let dir = ModelDir::open(&path).expect("a fixture");
    let policy = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
    let tokenizer = Tokenizer::from_dir(&path).expect("a fixture");
    let stop_ids = vec![12];
    let episodes = Episodes {
        environment: Arc::new(Uneven { answers: Arc::default(), milliseconds }),
        dialogue: Dialogue {
            tokenizer: tokenizer.clone(),
            template: None,
            tools: Vec::new(),
            stop_ids: stop_ids.clone(),
            read_calls: None,
        },
        limits: Limits { answer_after, ..Limits::default() },
    };
    let sampler = Sampler {
        tokenizer: &tokenizer,
        group_size: 4,
        params: SamplingParams { max_new_tokens: 60, stop_ids, ..SamplingParams::default() },
        beams: None,
        stop: &[],
        masking: None,
        episodes: None,
        progress: &Unwatched,
    };
    let prompt = |row: usize| Prompt {
        row,
        text: String::new(),
        ids: vec![10, 11],
        encoder_reads_prompt: false,
        messages: None,
        columns: serde_json::Map::new(),
    };
    let stream = |i: usize| Seed(7).stream(Purpose::Rollout, 0, i as u64);
    let mut recorder = Recorder::default();
    let prompts = (0..3).map(prompt).collect();
    episodes.sample_with(&policy, &mut recorder, prompts, &sampler, ("step 1", &[]), &stream).expect("episodes");
    recorder
}

#[test]
fn rows_continue_at_the_same_steps_however_long_answers_take() {
    let fast = recorded(0, 4);
    assert_eq!(fast.calls.iter().filter(|(_, call, _)| *call == "continue").count(), 12 * 2);
    assert_eq!(fast.calls.iter().filter(|(_, call, _)| *call == "drop").count(), 12);
    for milliseconds in [1, 5, 11] {
        assert_eq!(recorded(milliseconds, 4).calls, fast.calls);
    }
    // The first answer is taken four steps after its turn.
    let (step, row) = fast.ended[0];
    assert_eq!(fast.calls[0], (step + 4, "continue", row));
}

#[test]
fn an_answer_is_taken_at_its_step_or_when_nothing_is_sampled() {
    let mut schedule = Schedule { delay: 3, ..Schedule::default() };
    schedule.add(7);
    schedule.step = 1;
    schedule.add(2);
    assert_eq!(schedule.due(), None);
    schedule.skip();
    assert_eq!((schedule.step, schedule.due()), (3, Some(7)));
    schedule.open.pop_front();
    assert_eq!(schedule.due(), None, "row 2 continues a step later");
    schedule.step = 9;
    assert_eq!(schedule.due(), Some(2));
    schedule.skip();
    assert_eq!(schedule.step, 9, "time does not go back");
}

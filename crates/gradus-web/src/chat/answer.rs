//! Answers: sampled by one model or two, streamed to the page, stored.
//!
//! Its database row is created first and updated every second. If the server is killed, at most the last second of an answer is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use gradus::data::Message;
use gradus::generate::SamplingParams;
use gradus::inference::{Answer, AnswerEnd, CompletionRequest, JudgedPart, TemplateInputs};
use gradus::rng::{Purpose, Seed};
use serde::Deserialize;
use serde_json::{Value, json};

use super::tree;
use crate::app::App;
use crate::events::Events;
use crate::judge::Judged;
use crate::model_queue::{CompletionEvent, Token, prompt};
use crate::page_error::{PageError, PageResult, Path, read};
use crate::secret::secret;
use crate::store::chats::{Answered, Asker, PartScore, Settings, Tree};
use crate::store::sessions::Session;

/// Interval at which an unfinished answer is stored.
const KEEP: Duration = Duration::from_secs(1);

/// Number of most likely tokens that are stored per position.
const LIKELIEST: usize = 5;

#[derive(Deserialize)]
struct AnswerRequest {
    /// Turn to answer.
    parent: i64,
}

/// Answer of one model.
struct Side {
    number: usize,
    message: i64,
    asker: Asker,
    model: String,
    messages: Vec<Message>,
    settings: Settings,
    /// Number of earlier answers to this turn.
    attempt: u64,
    turn: u64,
}

/// Answers a turn. The stream contains `{side, text}` as the answer grows, then `{side, end}` or `{side, error}`.
pub async fn answer(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
    body: Bytes,
) -> PageResult {
    let AnswerRequest { parent } = read(&body)?;
    let asker = app.asker(&session)?;
    let tree = tree(&app, &asker, id)?;
    if tree.message(parent).is_none_or(|message| message.role != "user") {
        return Err(PageError::request("Only your own messages can be answered."));
    }
    let settings = tree.conversation.settings.clone();
    let mut models = settings.models.clone();
    // Sides are random, so that no model is always on the left.
    if secret().as_bytes()[0] % 2 == 1 {
        models.reverse();
    }
    let attempt = tree.messages.iter().filter(|message| message.parent == Some(parent)).count() as u64;
    let messages = messages(&tree, parent);
    let numbers = app.store.chats(&asker).begin_answers(id, parent, &models)?;
    let (events, response) = Events::new();
    for (number, (message, model)) in numbers.into_iter().zip(models).enumerate() {
        let (messages, settings, asker) = (messages.clone(), settings.clone(), asker.clone());
        let side = Side { number, message, asker, model, turn: messages.len() as u64, messages, settings, attempt };
        tokio::spawn(stream_answer(Arc::clone(&app), side, events.clone()));
    }
    Ok(response)
}

fn messages(tree: &Tree, leaf: i64) -> Vec<Message> {
    let system = Some(&tree.conversation.settings.system).filter(|system| !system.is_empty());
    let system = system.map(|system| Message::new("system", system));
    let path = tree.path(Some(leaf)).into_iter().map(|message| Message::new(&message.role, &message.text));
    system.into_iter().chain(path).collect()
}

/// Samples one side, streams it, and stores it in any case.
async fn stream_answer(app: Arc<App>, side: Side, events: Events) {
    let mut answered = Answered::default();
    let outcome = sample(&app, &side, &events, &mut answered).await;
    let mut last = match outcome {
        Ok(()) => {
            // Rewards would bias a blind vote.
            let rewards: &[(String, f32)] = if side.settings.blind { &[] } else { answered.rewards.as_slice() };
            json!({ "side": side.number, "end": answered.ended, "rewards": rewards })
        }
        Err(error) => {
            answered.ended = Some("failed");
            let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
            json!({ "side": side.number, "error": format!("{error}{hint}") })
        }
    };
    if let Err(error) = app.store.chats(&side.asker).keep_answer(side.message, &answered) {
        last = json!({ "side": side.number, "error": error.to_string() });
    }
    events.send(&last);
}

async fn sample(app: &Arc<App>, side: &Side, events: &Events, answered: &mut Answered) -> gradus::Result<()> {
    let queue = app.models.queue(&side.model).await?;
    let Settings { temperature, top_p, top_k, min_p, repetition_penalty, max_tokens, seed, .. } = side.settings;
    let params = SamplingParams {
        temperature,
        top_p,
        top_k: Some(top_k).filter(|k| *k > 0),
        min_p,
        repetition_penalty,
        max_new_tokens: max_tokens,
        likeliest: LIKELIEST,
        ..SamplingParams::default()
    };
    let stream = Seed(seed).stream(Purpose::Chat, side.turn, side.attempt);
    let messages = side.messages.clone();
    let prompt = prompt(&queue, move |prompter| prompter.prompt_of(&messages, &TemplateInputs::default())).await?;
    let request = queue.ask(move |queue| {
        let stop = queue.session.stop_of(&[]);
        queue.sample(vec![CompletionRequest { prompt, params, stop, streams: vec![stream], kept: Vec::new() }])
    });
    let mut completion_events = request.await??;
    let (mut tokens, mut kept): (Vec<Token>, Instant) = (Vec::new(), Instant::now());
    let mut end = None;
    while let Some((_, event)) = completion_events.recv().await {
        let (text, is_there) = match event {
            CompletionEvent::Token(token, text) => {
                tokens.push(token);
                let is_there = text.is_empty() || events.send(&json!({ "side": side.number, "text": text }));
                (text, is_there)
            }
            CompletionEvent::End(text, ended) => {
                end = Some(ended?);
                let is_there = text.is_empty() || events.send(&json!({ "side": side.number, "text": text }));
                (text, is_there)
            }
        };
        answered.text += &text;
        if !is_there || events.is_closed() {
            // The client has stopped the answer by disconnecting.
            end = Some(AnswerEnd::Interrupted);
            break;
        }
        if kept.elapsed() > KEEP {
            app.store.chats(&side.asker).keep_answer(side.message, answered)?;
            kept = Instant::now();
        }
    }
    drop(completion_events);
    answered.tokens = Some(token_values(&tokens).to_string());
    let Some(end) = end else { return Err(gradus::Error::input("the thread of the model has ended")) };
    answered.ended = Some(end.name());
    judge(app, side, answered, &tokens, end).await
}

/// Scores the answer with the reward models.
async fn judge(
    app: &Arc<App>,
    side: &Side,
    answered: &mut Answered,
    tokens: &[Token],
    end: AnswerEnd,
) -> gradus::Result<()> {
    for name in &side.settings.judges {
        let judge = app.models.judge(name).await?;
        let answer = Answer { text: answered.text.clone(), begins_inside: false, tokens: tokens.len(), end };
        let messages = side.messages.clone();
        let Judged { reward, parts } = judge.ask(move |judge| judge.judge(&messages, &answer)).await??;
        answered.rewards.push((name.clone(), reward));
        let part = |JudgedPart { name, total, segments, .. }| {
            let segments = segments.into_iter().map(|(at, value, label)| (at.start, at.end, value, label));
            PartScore { name, total, segments: segments.collect() }
        };
        answered.parts.extend(parts.into_iter().map(part));
    }
    Ok(())
}

/// Converts tokens for the page: text, log-probability, and the most likely tokens at that position.
fn token_values(tokens: &[Token]) -> Value {
    let likeliest = |token: &Token| token.likeliest.iter().map(|of| json!([of.text, of.logprob])).collect();
    tokens.iter().map(|token| json!([token.text, token.logprob, Value::Array(likeliest(token))])).collect()
}

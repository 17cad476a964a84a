//! Server-sent events: one JSON value per line, and the marker that ends them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Sender of a stream of events.
#[derive(Clone)]
pub struct Events(UnboundedSender<Event>);

/// Events in the order in which they are sent.
struct Received(UnboundedReceiver<Event>);

impl Stream for Received {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

impl Events {
    /// Creates an empty stream, and the response that carries it.
    pub fn new() -> (Self, Response) {
        let (to, received) = unbounded_channel();
        (Self(to), Sse::new(Received(received)).into_response())
    }

    /// Sends a value. Returns whether the client is still connected.
    pub fn send(&self, value: &Value) -> bool {
        self.0.send(Event::default().data(value.to_string())).is_ok()
    }

    /// Returns whether the client has disconnected.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends the stream like OpenAI's API does.
    pub fn done(&self) {
        let _ = self.0.send(Event::default().data("[DONE]"));
    }

    /// Ends the stream with an error.
    pub fn fail(&self, message: &str) {
        let error = json!({ "message": message, "type": "server_error", "param": null, "code": null });
        self.send(&json!({ "error": error }));
    }
}

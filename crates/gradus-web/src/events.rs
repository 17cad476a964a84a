//! Server-sent events: one JSON value per line, and the marker that ends them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Sender of a stream of events.
#[derive(Clone)]
pub struct Events(UnboundedSender<Bytes>);

/// Lines of the stream, as a response body.
struct Lines(UnboundedReceiver<Bytes>);

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(Ok))
    }
}

impl Events {
    /// Creates an empty stream, and the response that carries it.
    pub fn new() -> (Self, Response) {
        let (to, lines) = unbounded_channel();
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (Self(to), (headers, Body::from_stream(Lines(lines))).into_response())
    }

    /// Sends a value. Returns whether the client is still connected.
    pub fn send(&self, value: &Value) -> bool {
        self.0.send(Bytes::from(format!("data: {value}\n\n"))).is_ok()
    }

    /// Returns whether the client has disconnected.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends the stream like OpenAI's API does.
    pub fn done(&self) {
        let _ = self.0.send(Bytes::from_static(b"data: [DONE]\n\n"));
    }

    /// Ends the stream with an error.
    pub fn fail(&self, message: &str) {
        let error = json!({ "message": message, "type": "server_error", "param": null, "code": null });
        self.send(&json!({ "error": error }));
    }
}

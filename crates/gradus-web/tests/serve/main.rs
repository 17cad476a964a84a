//! Tests the server over TCP, with friendly and hostile programs and browsers.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod annotate;
mod client;
mod clients;
mod judges;
mod killed;
mod openai;
#[path = "../../src/tinker/proto.rs"]
#[allow(dead_code, reason = "the messages of the server, of which tests need some")]
mod proto;
mod recorder;
mod rollouts;
mod security;
mod tinker;
mod trained;
mod training;

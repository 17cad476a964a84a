//! The server as programs and browsers meet it: over TCP, friendly and hostile.

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

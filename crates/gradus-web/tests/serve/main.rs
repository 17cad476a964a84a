//! The server as programs and browsers meet it: over TCP, friendly and hostile.

mod annotate;
mod client;
mod judges;
mod openai;
mod recorder;
mod security;
mod training;

//! The server as programs and browsers meet it: over TCP, friendly and hostile.

mod annotate;
mod client;
mod clients;
mod judges;
mod openai;
mod recorder;
mod rollouts;
mod security;
mod trained;
mod training;

//! The server as programs and browsers meet it: over TCP, friendly and hostile.

mod client;
mod openai;
mod security;

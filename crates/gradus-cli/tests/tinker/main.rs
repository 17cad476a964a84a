//! The training API of `gradus serve`, as clients meet it: Tinker's own Python client, and a client of these tests that repeats
//! requests, loses answers and kills the server.
//!
//! `GRADUS_FAULTS=300 cargo test --workspace --test tinker` does it with so many faults.

#![cfg(unix)]

mod client;
mod faults;
#[path = "../../../gradus-web/src/tinker/proto.rs"]
#[allow(dead_code, reason = "the messages of the server, of which clients need some")]
mod proto;
mod sdk;
mod server;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

//! The training API of `gradus serve` as clients see it: Tinker's own Python client, and a test client that repeats requests, loses
//! responses and kills the server.
//!
//! `GRADUS_FAULTS=300 cargo test --workspace --test tinker` sets the number of faults.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod client;
mod faults;
#[path = "../../../gradus-web/src/tinker/proto.rs"]
#[allow(dead_code, reason = "the messages of the server, of which clients need some")]
mod proto;
mod sdk;
mod server;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

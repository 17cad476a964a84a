//! The command line from outside: exit code, stdout and stderr of the built binary.

#[allow(dead_code, reason = "the frame lands before the tests that use all of it")]
mod harness;

mod config;
mod frame;
mod inference;

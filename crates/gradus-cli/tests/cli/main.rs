//! The command line as a black box: exit code, stdout and stderr of the built binary.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod harness;

mod adapter;
mod bench;
mod chat;
mod classifier;
mod code;
mod compare;
mod config;
mod data;
mod demo;
mod documents;
#[path = "../../../gradus-web/tests/browser/driver.rs"]
#[allow(dead_code, reason = "the pages' own tests press keys and take pictures")]
mod driver;
mod environments;
mod fine_grained;
mod frame;
#[path = "../../../gradus/tests/support/hostile_templates.rs"]
mod hostile_templates;
mod hub;
mod inference;
mod metrics;
mod mistakes;
#[path = "../../../gradus/tests/hostile/mutate.rs"]
mod mutate;
mod overwrite;
mod plan;
mod plugins;
mod ranks;
mod recipes;
mod resume;
mod rows;
mod runs;
mod seq2seq;
mod serve;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;
mod sweep;
mod tasks;
mod templates;
mod train;
mod training;

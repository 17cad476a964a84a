//! The library's public interface: data, metrics, tasks, recipes, whole runs, and rules about the source itself.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod bad_models;
mod circles;
mod compare;
mod data;
mod demo;
mod episodes;
mod import;
mod invariants;
mod layering;
mod learning;
mod metrics;
mod ranks;
mod recipes;
mod records;
mod resuming;
#[path = "../support/mod.rs"]
mod support;
mod tasks;
mod training;

//! The web application of gradus: a small site for the models and runs of a folder, and an OpenAI-compatible server on the same port.
//!
//! This crate renders pages as text and contains all styles and scripts; nothing is loaded from other servers. Only this crate is async:
//! models run on their own threads (`actor`), and the library does not depend on async.

#![deny(missing_docs)]

mod actor;
pub mod agreement;
mod annotate;
mod app;
mod assets;
mod chat;
mod components;
mod connections;
mod events;
mod guard;
mod guesses;
mod home;
mod judge;
mod middleware;
mod model_queue;
mod models;
mod openai;
mod page;
mod page_error;
mod query;
mod ranking;
mod rich;
mod runs;
mod secret;
mod server;
mod serving;
mod store;
mod temp_file;
mod tinker;
mod training;
mod value_class;
mod within;

pub use agreement::ranking::{Share, Strength, Versus};
pub use annotate::export::Form;
pub use annotate::foreign::Tool;
pub use annotate::stats::{Agreement, Claim, Number, Stats, Work};
pub use annotate::terminal::{
    Answering, NewProject, Overview, export_project, import_project, invite, new_project, project_overview,
    project_stats, projects, release_tasks, remove_project,
};
pub use models::ComputeOptions;
pub use server::{Address, Options, serve};
pub use store::projects::{LEASE_MINUTES, Role};
pub use tinker::TrainingOptions;
pub use training::{Comparison, ProcessTask, RunStarter, RunningProcess};

//! The web application of gradus: one small site over the models and runs of a folder, and an OpenAI-compatible server on the
//! same port.
//!
//! Pages are made here, as text; styles and scripts are files of this crate; nothing comes from elsewhere. Only this crate is
//! async: models are asked on threads of their own ([`actor`]), and the library below knows nothing of it.

#![deny(missing_docs)]

mod actor;
pub mod agreement;
mod annotate;
mod app;
mod assets;
mod chat;
mod desk;
mod events;
mod failed;
mod guard;
mod home;
mod html;
mod models;
mod openai;
mod page;
mod runs;
mod server;
mod store;

pub use annotate::export::Form;
pub use annotate::stats::{Agreement, Number, Stats, Strength, Work};
pub use annotate::terminal::{NewProject, export_project, invite, new_project, project_stats};
pub use models::Computing;
pub use server::{Address, Options, serve};
pub use store::projects::Role;

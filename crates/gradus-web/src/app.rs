//! What every request can reach.

use std::path::PathBuf;

use crate::guard::Guard;
use crate::models::Models;
use crate::runs::Cache;
use crate::store::Store;
use crate::training::Training;

/// The server's own: who is let in, what is served, what was kept.
pub struct App {
    /// Who is let in.
    pub guard: Guard,
    /// The folder that is served.
    pub folder: PathBuf,
    /// Its models.
    pub models: Models,
    /// The runs that were read.
    pub runs: Cache,
    /// The runs that pages have begun.
    pub training: Training,
    /// What people did.
    pub store: Store,
}

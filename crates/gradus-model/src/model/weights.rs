//! Opening the weights of a model directory, checked against its configuration before anything is allocated.

use super::checkpoint::{Checkpoint, MISFIT};
use super::directory::ModelDir;
use super::shape::ModelShape;
use crate::error::{Error, Result};

/// Up to this number of missing layers, the missing tensors are reported one by one.
const LAYERS_LACKING: u64 = 16;

/// Up to this total number of values, missing tensors are reported one by one.
const LACKING: u64 = 1 << 24;

/// Opens the weights of the model in `dir`.
///
/// # Errors
/// As [`Checkpoint::open`]. Also when the sizes in its configuration are far larger than its weights. These checks
/// allocate nothing.
pub(super) fn open_weights(dir: &ModelDir) -> Result<Checkpoint> {
    let checkpoint = Checkpoint::open(&dir.path, dir.base_prefix()?)?;
    let (shape, path) = (ModelShape::of(dir)?, dir.path.join("config.json"));
    let bytes = checkpoint.size();
    // No format stores more than two numbers per byte.
    let (described, most) = (shape.trunk_parameters() as u64, 2 * bytes);
    if described > most + LACKING {
        let message = format!("it describes a model of {described} numbers, but its weights are {bytes} bytes");
        return Err(Error::model(path, message).with_hint(MISFIT.replace("FILE", "config.json")));
    }
    let layers = (shape.layers + shape.encoder_layers) as u64;
    if layers > checkpoint.count() as u64 + LAYERS_LACKING {
        let held = checkpoint.count();
        let message = format!("it describes a model of {layers} layers, but there are {held} tensors");
        return Err(Error::model(path, message).with_hint(MISFIT.replace("FILE", "config.json")));
    }
    Ok(checkpoint)
}

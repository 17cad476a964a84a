//! The device of a command that is not a training run.

use gradus::device::DeviceChoice;

/// The device.
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// Device to compute on: cpu, gpu, gpu:1, cuda, cuda:1, … (`gradus doctor` lists them)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
}

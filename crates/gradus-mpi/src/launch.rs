//! Rank and number of processes, from the environment variables that launchers set.

use std::env;
use std::path::Path;

/// Program that started the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives (Hydra).
    Hydra,
    /// A launcher that uses PMIx, and states the number of processes: `srun --mpi=pmix`.
    Pmix,
    /// Slurm's `srun`.
    Slurm,
}

impl Launcher {
    /// Returns the name that users know.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's `mpirun`",
            Self::Hydra => "`mpiexec`",
            Self::Pmix => "a PMIx launcher",
            Self::Slurm => "`srun`",
        }
    }

    /// Returns the variable with the number of processes.
    pub fn size_variable(self) -> &'static str {
        match self {
            Self::OpenMpi => "OMPI_COMM_WORLD_SIZE",
            Self::Hydra => "PMI_SIZE",
            Self::Pmix | Self::Slurm => "SLURM_STEP_NUM_TASKS",
        }
    }
}

/// Information from a launcher about this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Rank among the processes on this machine, if the launcher reports it.
    pub local_rank: Option<usize>,
    /// Number of processes on this machine, if the launcher reports it.
    pub local_size: Option<usize>,
    /// Launcher that started the process.
    pub launcher: Launcher,
}

/// Error in the environment variables of a launcher.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A variable has an invalid value.
    #[error("`{variable}` is `{value}`, which is not a {expected}")]
    Unreadable {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// Expected form.
        expected: &'static str,
    },
    /// Two launchers have left different variables, so one of them is not running.
    #[error(
        "{} set rank {} of {} in the environment, but {} set rank {} of {}",
        .first.launcher.name(), .first.rank, .first.size, .second.launcher.name(), .second.rank, .second.size
    )]
    Ambiguous {
        /// What the first launcher has set.
        first: Launch,
        /// What the second launcher has set.
        second: Launch,
    },
    /// PMIx launchers set the rank only, so the process may be one of several copies.
    #[error("`PMIX_RANK` is {rank}, as `prterun` sets it, but no variable states the number of processes")]
    NoSize {
        /// Rank of this process.
        rank: usize,
    },
    /// torchrun and similar launchers start processes but provide no way to exchange messages.
    #[error("`WORLD_SIZE` is {size}, as torchrun sets it, but no MPI launcher started the processes")]
    NoMpi {
        /// Number of processes.
        size: usize,
    },
}

/// Variables of each launcher: rank, size, and rank and size on this machine.
const VARIABLES: [(Launcher, [&str; 4]); 4] = [
    (
        Launcher::OpenMpi,
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ),
    (Launcher::Hydra, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // PMIx sets no size, so Slurm's is used.
    (Launcher::Pmix, ["PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
    // `SLURM_PROCID` and `SLURM_NTASKS` are also set in a batch script, where only one process runs. The step's
    // variables are not.
    (Launcher::Slurm, ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
];

impl Launch {
    /// Returns the names of the variables that launchers set.
    pub fn variables() -> impl Iterator<Item = &'static str> {
        VARIABLES.into_iter().flat_map(|(_, names)| names)
    }

    /// Reads the environment of this process. `None` if no launcher started it.
    ///
    /// # Errors
    /// Returns an error if variables are invalid, or the launcher does not provide MPI.
    #[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
    pub fn detect() -> Result<Option<Self>, LaunchError> {
        Self::of(|name| env::var(name).ok())
    }

    /// Returns the descriptor that connects this process to a launcher with PMI, if the descriptor is not open. MPI would end this process
    /// without an error of its own.
    #[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
    pub(crate) fn closed_connection() -> Option<u32> {
        let descriptor: u32 = env::var("PMI_FD").ok()?.parse().ok()?;
        let all = Path::new("/proc/self/fd");
        (all.is_dir() && !all.join(descriptor.to_string()).exists()).then_some(descriptor)
    }

    /// Like [`detect`](Self::detect), with the given `variables`.
    ///
    /// # Errors
    /// As [`detect`](Self::detect).
    pub fn of(variables: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let number = |variable: &'static str, expected: &'static str| match variables(variable) {
            None => Ok(None),
            Some(value) => match value.trim().parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(LaunchError::Unreadable { variable, value, expected }),
            },
        };
        let mut found: Option<Self> = None;
        for (launcher, [rank, size, local_rank, local_size]) in VARIABLES {
            // Slurm also starts the helpers of other launchers, so its variables may describe a helper.
            if found.is_some() && matches!(launcher, Launcher::Pmix | Launcher::Slurm) {
                break;
            }
            let (Some(rank), Some(count)) = (number(rank, "rank")?, number(size, "number of processes")?) else {
                continue;
            };
            if rank >= count {
                let value = rank.to_string();
                return Err(LaunchError::Unreadable {
                    variable: size,
                    value,
                    expected: "rank below the number of processes",
                });
            }
            // For several nodes the value is `2(x3)`; the first number applies to each node.
            let leading = |name: &str| {
                let value = variables(name)?;
                value.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
            };
            let (local_rank, local_size) = (leading(local_rank), leading(local_size));
            let launch = Self { rank, size: count, local_rank, local_size, launcher };
            match found {
                Some(first) if (first.rank, first.size) != (rank, count) => {
                    return Err(LaunchError::Ambiguous { first, second: launch });
                }
                Some(_) => {}
                None => found = Some(launch),
            }
        }
        if found.is_some() {
            return Ok(found);
        }
        if let Some(rank) = number("PMIX_RANK", "rank")? {
            return Err(LaunchError::NoSize { rank });
        }
        match number("WORLD_SIZE", "number of processes")? {
            Some(size) if size > 1 && variables("RANK").is_some() => Err(LaunchError::NoMpi { size }),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
        let found =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Launch::of(found)
    }

    #[test]
    fn every_launcher_is_known_by_its_variables() {
        let launch = |rank, size, local_rank, local_size, launcher| {
            Ok(Some(Launch { rank, size, local_rank, local_size, launcher }))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(
            of(&[
                ("OMPI_COMM_WORLD_RANK", "3"),
                ("OMPI_COMM_WORLD_SIZE", "4"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                // Open MPI sets PMIx's variables, too.
                ("PMIX_RANK", "3"),
            ]),
            launch(3, 4, Some(1), Some(2), Launcher::OpenMpi)
        );
        assert_eq!(
            of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")]),
            launch(0, 2, Some(0), Some(2), Launcher::Hydra)
        );
        let srun = [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "6"), ("SLURM_STEP_TASKS_PER_NODE", "2(x3)")];
        assert_eq!(of(&srun), launch(5, 6, None, Some(2), Launcher::Slurm));
    }

    #[test]
    fn variables_of_two_launchers_must_agree() {
        let open_mpi = |rank, size| [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)];
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let error = of(&[open_mpi("0", "1"), hydra].concat()).expect_err("one of them is left over").to_string();
        assert_eq!(error, "Open MPI's `mpirun` set rank 0 of 1 in the environment, but `mpiexec` set rank 1 of 2");
        assert!(of(&[open_mpi("1", "2"), hydra].concat()).is_ok());
        // `mpiexec` starts a helper on each node with `srun`.
        let helper = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        let found = of(&[hydra, helper].concat()).expect("they agree").expect("a launcher");
        assert_eq!((found.rank, found.size, found.launcher), (1, 2, Launcher::Hydra));
    }

    #[test]
    fn a_rank_without_the_number_of_ranks_is_refused() {
        assert_eq!(of(&[("PMIX_RANK", "1")]), Err(LaunchError::NoSize { rank: 1 }));
        assert!(of(&[("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "2")]).is_ok());
    }

    #[test]
    fn a_batch_script_is_one_process() {
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16")]), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let wrong = of(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]);
        assert!(matches!(wrong, Err(LaunchError::Unreadable { .. })), "{wrong:?}");
        let wrong = of(&[("PMI_RANK", "one"), ("PMI_SIZE", "4")]).expect_err("no number").to_string();
        assert_eq!(wrong, "`PMI_RANK` is `one`, which is not a rank");
        assert_eq!(of(&[("RANK", "1"), ("WORLD_SIZE", "4")]), Err(LaunchError::NoMpi { size: 4 }));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
    }
}

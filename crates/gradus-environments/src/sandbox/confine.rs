//! Restrictions that a child applies to itself before it runs an untrusted program. Their order matters, because each step removes a right.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    apply_filter,
};

use super::Bounds;

/// Maximum number of open files.
const FILES: u64 = 64;

pub(super) fn confine(bounds: &Bounds) -> Result<(), String> {
    let message =
        |what: &str, error: &dyn std::fmt::Display| format!("the program cannot be confined: {what}: {error}");
    end_with_parent(bounds).map_err(|error| message("its parent", &error))?;
    limit(bounds).map_err(|error| message("limits", &error))?;
    for set in [caps::CapSet::Ambient, caps::CapSet::Bounding] {
        // If the process may not drop them, `no_new_privs` still makes them unusable.
        let _ = caps::clear(None, set);
    }
    for set in [caps::CapSet::Inheritable, caps::CapSet::Effective, caps::CapSet::Permitted] {
        caps::clear(None, set).map_err(|error| message("capabilities", &error))?;
    }
    nix::sys::prctl::set_no_new_privs().map_err(|error| message("no_new_privs", &error))?;
    let status = landlocked(bounds).map_err(|error| message("Landlock", &error))?;
    if status == RulesetStatus::NotEnforced {
        return Err(message(
            "Landlock",
            &"this kernel does not have it (Linux 6.2 or later with `landlock` among its `lsm`)",
        ));
    }
    filter_calls().map_err(|error| message("seccomp", &error))
}

/// Replaces this process. Returns only if that fails, with the error.
pub(super) fn become_program(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> String {
    let error = Command::new(program).args(arguments).exec();
    format!("`{}` could not be started in the sandbox: {error}", program.to_string_lossy())
}

/// Makes the kernel kill this process when its parent ends, because then nobody watches the time limit. Python inherits this.
fn end_with_parent(bounds: &Bounds) -> Result<(), String> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| error.to_string())?;
    // The parent may have ended before the call.
    let (found, expected) = (std::os::unix::process::parent_id(), bounds.parent);
    match found == expected {
        true => Ok(()),
        false => Err(format!(
            "it is process {found}, expected {expected} (a script that starts this program must use `exec`)"
        )),
    }
}

fn limit(bounds: &Bounds) -> nix::Result<()> {
    let lower = |resource: Resource, most: u64| {
        let (_, hard) = getrlimit(resource)?;
        let most = hard.min(most);
        setrlimit(resource, most, most)
    };
    lower(Resource::RLIMIT_AS, bounds.memory_bytes)?;
    lower(Resource::RLIMIT_CPU, bounds.seconds)?;
    lower(Resource::RLIMIT_FSIZE, 0)?;
    lower(Resource::RLIMIT_CORE, 0)?;
    lower(Resource::RLIMIT_NOFILE, FILES)?;
    lower(Resource::RLIMIT_MSGQUEUE, 0)
}

/// Allows reading only files of Python and the system. Allows no writes except to `/dev/null`, no TCP, and no signals to other processes.
fn landlocked(bounds: &Bounds) -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V6;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(&bounds.readable, AccessFs::from_read(abi)))?
        .add_rules(path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// System calls that fail with `EPERM`: the network, processes, file permissions, other processes, priorities, special memory, and system
/// settings.
const REFUSED: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_execveat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_ioprio_set,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_memfd_create,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_personality,
    // Only newer headers name these: `fchmodat2`, `setxattrat`, `removexattrat`.
    452,
    463,
    466,
];

/// System calls that exist only on this architecture.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Bit of system calls in the x32 ABI.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter_calls() -> Result<(), String> {
    let mut refused: Rules = REFUSED.iter().chain(REFUSED_HERE).map(|&call| (call, Vec::new())).collect();
    let condition_on = |length, argument: u8, operator, value: u64| {
        let condition = SeccompCondition::new(argument, length, operator, value);
        SeccompRule::new(vec![condition.map_err(|error| error.to_string())?]).map_err(|error| error.to_string())
    };
    let condition = |argument, operator, value| condition_on(SeccompCmpArgLen::Qword, argument, operator, value);
    // Threads may be created, processes may not.
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    refused.insert(libc::SYS_clone, vec![condition(0, SeccompCmpOp::MaskedEq(thread), 0)?]);
    // A process may send signals only to itself.
    let own = u64::from(std::process::id());
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        refused.insert(call, vec![condition(0, SeccompCmpOp::Ne, own)?]);
    }
    // The program cannot outlive the process that watches it. The kernel reads only the low half of the option.
    let option = u64::from(libc::PR_SET_PDEATHSIG.cast_unsigned());
    refused.insert(libc::SYS_prctl, vec![condition_on(SeccompCmpArgLen::Dword, 0, SeccompCmpOp::Eq, option)?]);
    refused.insert(libc::SYS_prlimit64, vec![condition(0, SeccompCmpOp::Gt, 0)?]);
    #[cfg(target_arch = "x86_64")]
    {
        let x32: Vec<i64> = refused.keys().map(|call| call | X32).collect();
        refused.extend(x32.into_iter().map(|call| (call, Vec::new())));
    }
    apply(refused, libc::EPERM)?;
    // The C library falls back to `clone`, whose arguments a filter can read.
    apply(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)
}

fn apply(rules: Rules, error: i32) -> Result<(), String> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let refuse = SeccompAction::Errno(error.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
    let program = filter.and_then(TryInto::try_into).map_err(|error: seccompiler::BackendError| error.to_string())?;
    let program: seccompiler::BpfProgram = program;
    apply_filter(&program).map_err(|error| error.to_string())
}

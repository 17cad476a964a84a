//! Detects file systems that several machines share.

use std::path::{Path, PathBuf};

/// Names of network file systems in Linux.
const SHARED: [&str; 21] = [
    "nfs",
    "nfs3",
    "nfs4",
    "cifs",
    "smb2",
    "smb3",
    "smbfs",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "glusterfs",
    "afs",
    "9p",
    "pvfs2",
    "orangefs",
    "ocfs2",
    "gfs2",
    "virtiofs",
    "wekafs",
    "panfs",
];

/// Returns the name of the file system at `path`, such as `nfs4`, if other machines may share it. Returns `None` for a local file
/// system, and on all systems but Linux.
///
/// SQLite's write-ahead log (WAL) needs memory that all readers share, so it does not work across machines. On these file systems,
/// databases keep a rollback journal.
pub fn network_file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().or_else(|_| path.parent().unwrap_or(Path::new(".")).canonicalize()).ok()?;
    of_mounts(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
}

/// Does the same with the text of `/proc/self/mountinfo`. Of the mounts above `path`, the last one of the longest counts.
fn of_mounts(mounts: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let at = PathBuf::from(unescaped(before.split(' ').nth(4)?));
        let kind = after.split(' ').next()?.to_owned();
        path.starts_with(&at).then(|| (at.components().count(), kind))
    };
    let (_, kind) = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length)?;
    // `fuse.sshfs`, `fuse.glusterfs`, `fuse.juicefs`: every name that begins with `fuse.` is assumed to be shared.
    (SHARED.contains(&kind.as_str()) || kind.starts_with("fuse.")).then_some(kind)
}

/// Decodes a path of `mountinfo`, in which `\040` is a space.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_tells_the_file_system() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      30 22 0:29 / /data rw - nfs4 server:/export rw,vers=4.2\n\
                      31 30 0:30 / /data/own\\040disk rw - xfs /dev/vdb rw\n\
                      32 22 0:31 / /remote rw - fuse.sshfs me@host: rw\n";
        for (path, expected) in [
            ("/home/me/run", None),
            ("/data/run", Some("nfs4")),
            ("/database", None),
            ("/data/own disk/run", None),
            ("/remote/run", Some("fuse.sshfs")),
        ] {
            assert_eq!(of_mounts(mounts, Path::new(path)).as_deref(), expected, "{path}");
        }
        assert_eq!(of_mounts("", Path::new("/")), None);
    }
}

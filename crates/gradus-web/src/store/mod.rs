//! The database: one SQLite file in the served folder.
//!
//! Every change is one transaction that is flushed to disk before the response. A killed server therefore loses nothing that a page has
//! reported as saved. Several processes may use the file at once: a change waits for the write lock before it reads anything. Reading never
//! waits.
//!
//! Only the file's owner can read it. It contains no secret that grants access: tokens and sessions are stored as SHA-256 hashes, which is
//! sufficient because each secret has 256 random bits.

pub mod chats;
pub mod projects;
pub mod sessions;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradus::files::durable::sqlite_synchronous;
use gradus::{Error, Result};
use ring::hmac;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

/// Name of the database file in the served folder.
pub const FILE: &str = "gradus.sqlite";

/// `PRAGMA application_id`: `grwb`.
const APPLICATION: i32 = 0x6772_7762;

/// Migrations of the database from each version to the next.
const VERSIONS: [fn(&Transaction<'_>) -> rusqlite::Result<()>; 7] = [
    |change| change.execute_batch(sessions::TABLES),
    |change| change.execute_batch(chats::TABLES),
    |change| change.execute_batch(projects::TABLES),
    |change| change.execute_batch(projects::VERDICTS),
    |change| change.execute_batch(chats::PARTS),
    |change| {
        sessions::without_secrets(change)?;
        change.execute_batch(chats::OWNERS)
    },
    |change| {
        projects::store_what_was_shown(change)?;
        change.execute_batch(chats::VOTERS)
    },
];

/// First version without tokens in plain text.
const WITHOUT_SECRETS: usize = 6;

/// Number and length in milliseconds of the pauses while a change waits for another process. The pauses are short, so that a process that
/// writes constantly does not always get the lock first.
const PAUSES: i32 = 5000;
const PAUSE: Duration = Duration::from_millis(2);

/// The database.
pub struct Store {
    path: PathBuf,
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
    /// Key of the tokens in pages.
    key: hmac::Key,
}

/// Converts an error of SQLite. Temporary ones become the equivalent system errors: file is busy, disk is full.
fn failed(path: &Path, error: &rusqlite::Error) -> Error {
    use std::io::ErrorKind;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::io(path, std::io::Error::new(ErrorKind::ResourceBusy, "another process is writing it"))
        }
        Some(ErrorCode::DiskFull) => Error::io(path, ErrorKind::StorageFull.into()),
        _ => Error::input(format!("{}: {error}", path.display())),
    }
}

/// Opens a connection that waits for the locks of other processes.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.busy_handler(Some(|tries| {
        std::thread::sleep(PAUSE);
        tries < PAUSES
    }))?;
    connection.execute_batch("PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON;")?;
    Ok(connection)
}

/// Switches to a write-ahead log, which readers need not wait for. If two processes switch at once, SQLite rejects one immediately.
fn log_changes(connection: &Connection) -> rusqlite::Result<()> {
    let mut tries = 0;
    let pragmas = format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {};", sqlite_synchronous());
    loop {
        match connection.execute_batch(&pragmas) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && tries < PAUSES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Creates the file if it does not exist, readable only by its owner, as well as SQLite's additional files.
fn only_ours(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        let made = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        made.map_err(|error| Error::io(path, error))?;
        for beside in ["", "-wal", "-shm"] {
            let mut path = path.as_os_str().to_owned();
            path.push(beside);
            match std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(path, error)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the application id and version of the file, and whether it has tables.
fn kind_of(connection: &Connection) -> rusqlite::Result<(i64, i64, bool)> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    Ok((number("application_id")?, number("user_version")?, tables > 0))
}

/// Returns the version of the file, and rejects files of other programs or of later versions.
fn version_of(connection: &Connection, path: &Path) -> Result<usize> {
    let (application, version, has_tables) = kind_of(connection).map_err(|error| failed(path, &error))?;
    if application != i64::from(APPLICATION) && has_tables {
        return Err(Error::input(format!("{}: this is not a file of `gradus serve`", path.display()))
            .with_hint("move it away, or serve another folder"));
    }
    let known = VERSIONS.len();
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > known {
        let message = format!("{}: version {version}, but this gradus reads versions up to {known}", path.display());
        return Err(Error::input(message).with_hint("it was written by a later version of gradus: use that version"));
    }
    Ok(version)
}

impl Store {
    /// Opens or creates the database in `folder`.
    ///
    /// # Errors
    /// It cannot be opened, belongs to another program, or has a later version.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let failed = |error: rusqlite::Error| failed(&path, &error);
        only_ours(&path)?;
        let mut writer = connect(&path).map_err(failed)?;
        // Files of other programs stay unchanged.
        version_of(&writer, &path)?;
        log_changes(&writer).map_err(failed)?;
        let change = writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        // Another process may have migrated it in the meantime.
        let version = version_of(&change, &path)?;
        for step in &VERSIONS[version..] {
            step(&change).map_err(failed)?;
        }
        if version < VERSIONS.len() {
            change.pragma_update(None, "application_id", APPLICATION).map_err(failed)?;
            change.pragma_update(None, "user_version", VERSIONS.len() as i64).map_err(failed)?;
        }
        let key = sessions::key(&change).map_err(failed)?;
        change.commit().map_err(failed)?;
        if (1..WITHOUT_SECRETS).contains(&version) {
            // Free parts of the file and the log still contain the tokens in plain text.
            let cleaned = writer.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);");
            cleaned.map_err(failed)?;
        }
        let reader = connect(&path).map_err(failed)?;
        reader.execute_batch("PRAGMA query_only = ON;").map_err(failed)?;
        Ok(Self { writer: Mutex::new(writer), reader: Mutex::new(reader), key, path })
    }

    /// Returns the sessions of browsers.
    pub fn sessions(&self) -> sessions::Sessions<'_> {
        sessions::Sessions(self)
    }

    /// Returns the conversations that `asker` may see.
    pub fn chats<'a>(&'a self, asker: &'a chats::Asker) -> chats::Chats<'a> {
        chats::Chats { store: self, asker }
    }

    /// Returns the annotation projects.
    pub fn projects(&self) -> projects::Projects<'_> {
        projects::Projects(self)
    }

    /// Reads in one transaction, so that all data belong to the same moment.
    ///
    /// # Errors
    /// Errors of `read`.
    pub fn read<T>(&self, read: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        self.within(&self.reader, TransactionBehavior::Deferred, read)
    }

    /// Makes changes in one transaction, after waiting for the write lock.
    ///
    /// # Errors
    /// Errors of `change`, after which nothing is changed. [`Error::passes`] is true if another process writes for too long, or the disk is
    /// full.
    pub fn change<T>(&self, change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        self.within(&self.writer, TransactionBehavior::Immediate, change)
    }

    fn within<T>(
        &self,
        connection: &Mutex<Connection>,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        // Another process may hold the lock for a while. Meanwhile, the rest of the server continues.
        tokio::task::block_in_place(|| {
            // A transaction that ends early is rolled back, so a panicking thread leaves the database consistent.
            let mut connection: MutexGuard<'_, Connection> = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let done = connection.transaction_with_behavior(behavior).and_then(|open| {
                let done = work(&open)?;
                open.commit()?;
                Ok(done)
            });
            done.map_err(|error| failed(&self.path, &error))
        })
    }
}

/// Returns the current time in seconds since 1970.
pub fn now() -> i64 {
    let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    passed.map_or(0, |passed| passed.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_program_or_of_later_is_refused_and_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        Connection::open(&path).and_then(|other| other.execute_batch("CREATE TABLE theirs (x)")).expect("a file");
        let before = std::fs::read(&path).expect("a file");
        let message = Store::open(folder.path()).err().expect("refused").to_string();
        assert!(message.ends_with("this is not a file of `gradus serve`"), "{message}");
        assert_eq!(std::fs::read(&path).expect("a file"), before);
        std::fs::remove_file(&path).expect("removed");

        drop(Store::open(folder.path()).expect("a new file"));
        drop(Store::open(folder.path()).expect("the same again"));
        Connection::open(&path).and_then(|own| own.pragma_update(None, "user_version", 1000)).expect("changed");
        let message = Store::open(folder.path()).err().expect("refused").to_string();
        assert!(message.contains("version 1000, but this gradus reads versions up to"), "{message}");
    }

    #[test]
    fn processes_that_write_at_once_lose_nothing_and_none_is_refused() {
        use crate::annotate::answer::Answer;
        use crate::annotate::labels::LabelSet;
        use crate::annotate::task::Task;
        use projects::{AnnotationState, Role, Save, Saved};

        const TASKS: usize = 60;
        let folder = tempfile::tempdir().expect("a folder");
        let labels = LabelSet::open("comparison").expect("a label set");
        let tasks: Vec<Task> = (0..TASKS).map(|i| projects::tests::task(&i.to_string())).collect();
        // Each thread has its own connections, as separate processes would. They also create the file concurrently.
        let annotate = |name: &str| {
            let store = Store::open(folder.path()).expect("opened");
            let projects = store.projects();
            projects.begin("p", &labels, 3, projects::LEASE_MINUTES, &tasks).expect("kept or there");
            let token = projects.invite(name, Role::Annotator).expect("kept");
            let session = projects.sign_in(&store.sessions().begin(), name, &token).expect("kept").expect("signed in");
            let person = projects.who(&session).expect("read").expect("signed in");
            let project = projects.find("p").expect("read").expect("a project");
            while let Some(number) = projects.next(&project, person.id).expect("a task") {
                let answer = Answer::default();
                let saved =
                    projects.save(project.id, number, person.id, &Save::of(&answer, AnnotationState::Done, 1.0));
                assert!(matches!(saved.expect("saved"), Saved::Stored(_)));
            }
        };
        std::thread::scope(|scope| {
            let all = ["a", "b", "c"].map(|name| scope.spawn(move || annotate(name)));
            all.into_iter().for_each(|one| one.join().expect("nothing is refused"));
        });
        let store = Store::open(folder.path()).expect("opened");
        let project = store.projects().find("p").expect("read").expect("a project");
        assert_eq!(store.projects().annotations(project.id).expect("read").len(), 3 * TASKS);
    }

    #[test]
    #[cfg(unix)]
    fn only_the_owner_reads_the_file_and_what_lies_beside_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let modes = || -> Vec<u32> {
            let entries = std::fs::read_dir(folder.path()).expect("a folder").flatten();
            entries.map(|entry| entry.metadata().expect("a file").permissions().mode() & 0o777).collect()
        };
        let store = Store::open(folder.path()).expect("a new file");
        store.projects().invite("ada", projects::Role::Owner).expect("kept");
        assert!(modes().len() > 1 && modes().iter().all(|mode| *mode == 0o600), "{:?}", modes());
        drop(store);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
        let _store = Store::open(folder.path()).expect("the same file");
        assert!(modes().iter().all(|mode| *mode == 0o600), "{:?}", modes());
    }

    #[test]
    fn tokens_of_an_older_file_go_on_to_work_and_are_nowhere_in_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let (token, gone, session) = (crate::secret::secret(), crate::secret::secret(), crate::secret::secret());
        let mut old = Connection::open(&path).expect("a file");
        let open = old.transaction().expect("begun");
        VERSIONS[..5].iter().for_each(|step| step(&open).expect("made"));
        open.pragma_update(None, "application_id", APPLICATION).expect("set");
        open.pragma_update(None, "user_version", 5).expect("set");
        let people = "INSERT INTO people (name, token, role) VALUES ('ada', ?1, 'owner'), ('bob', ?2, 'owner')";
        open.execute(people, [&token, &gone]).expect("kept");
        open.execute("INSERT INTO sessions (id, csrf, begun) VALUES (?1, 'x', 0)", [&session]).expect("kept");
        open.execute("INSERT INTO signed_in (session, person) VALUES (?1, 1)", [&session]).expect("kept");
        open.execute("INSERT INTO conversations (title, settings, changed) VALUES ('t', '{}', 0)", []).expect("kept");
        // Removed data are still in free parts of the file.
        open.execute("DELETE FROM people WHERE name = 'bob'", []).expect("removed");
        open.commit().expect("kept");
        drop(old);

        let store = Store::open(folder.path()).expect("brought further");
        let projects = store.projects();
        assert_eq!(projects.who(&store.sessions().of(&session)).expect("read").expect("still there").name, "ada");
        let fresh = projects.sign_in(&store.sessions().begin(), "ada", &token).expect("kept").expect("signed in");
        for entry in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
            let bytes = std::fs::read(entry.path()).expect("a file");
            for secret in [&token, &gone, &session, fresh.id()] {
                let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                assert!(!found, "{} has a secret", entry.path().display());
            }
        }
    }

    #[test]
    fn a_full_disk_is_told_as_such_and_passes() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let pages = |most: i64| {
            let writer = store.writer.lock().expect("nobody panicked");
            let set: i64 =
                writer.query_row(&format!("PRAGMA max_page_count = {most}"), [], |row| row.get(0)).expect("set");
            set
        };
        let full = pages(1);
        let asker = chats::Asker::everyone(None);
        let (id, long) = (store.chats(&asker).begin(&chats::tests::settings()), "x".repeat(1 << 20));
        let added = id.and_then(|id| store.chats(&asker).add_message(id, None, &long));
        let error = added.expect_err("there is no room");
        assert!(error.passes() && error.hint().is_some_and(|hint| hint.contains("disk space")), "{error:?}");
        pages(full + 1000);
        let id = store.chats(&asker).begin(&chats::tests::settings()).expect("kept");
        assert!(store.chats(&asker).add_message(id, None, &long).expect("kept").is_some());
    }
}

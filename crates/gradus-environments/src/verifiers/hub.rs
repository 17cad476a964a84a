//! The connection to an environment server, and who waits for what comes over it.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::endpoint::{self, Ask};
use super::{loose, zmtp};
use crate::error::{Error, Result};

/// How long a connection may take at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an episode hears.
#[derive(Debug)]
pub enum Event {
    /// The server wants a turn of the policy.
    Ask(Ask),
    /// What is new in its traces.
    Delta(Value),
    /// The end of what was asked for.
    Reply(Value),
    /// The connection is broken.
    Gone(String),
}

/// One connection for all episodes. It is made again for the next episode where it broke.
pub struct Hub {
    /// `HOST:PORT` of the server.
    peer: String,
    /// How long a connection may take.
    patience: Duration,
    /// Where this process listens.
    bound: SocketAddr,
    /// Where the server reaches it.
    here: String,
    /// Nobody else can guess the names of episodes.
    secret: String,
    count: AtomicU64,
    listeners: Arc<Listeners>,
    wire: Mutex<Option<Arc<Wire>>>,
}

/// Who listens under which name.
#[derive(Default)]
struct Listeners(Mutex<HashMap<String, Listener>>);

/// The bytes of messages that may wait until an episode reads them.
const UNREAD_BYTES: usize = 64 << 20;

/// The least that a message counts for.
const EVENT_BYTES: usize = 1 << 10;

/// Who listens, and how many bytes wait to be read.
struct Listener {
    events: Sender<(usize, Event)>,
    unread: Arc<AtomicUsize>,
}

impl Listener {
    /// Whether it hears it. One that does not read what it is sent hears no more.
    fn hears(&self, bytes: usize, event: Event) -> bool {
        let bytes = bytes.max(EVENT_BYTES);
        self.unread.fetch_add(bytes, Ordering::Relaxed) < UNREAD_BYTES && self.events.send((bytes, event)).is_ok()
    }
}

/// A connection that was open when it was used last.
struct Wire {
    writer: Mutex<TcpStream>,
    is_broken: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    /// Tells who has this name of a message with so many bytes; false where nobody has, or where too much waits to be read.
    fn tell(&self, name: &str, bytes: usize, event: Event) -> bool {
        let mut all = lock(&self.0);
        let hears = all.get(name).is_some_and(|listener| listener.hears(bytes, event));
        if !hears {
            all.remove(name);
        }
        hears
    }
}

/// A name of an episode, and what it hears. It is given back with this value.
pub struct Seat {
    hub: Arc<Hub>,
    /// The name.
    pub name: String,
    events: Receiver<(usize, Event)>,
    unread: Arc<AtomicUsize>,
}

impl Seat {
    /// What it hears next.
    ///
    /// # Errors
    /// When it hears nothing until `end`, or the server sends more than is read.
    pub fn next(&self, end: Instant) -> Result<Event, Silence> {
        // Also one who is told something all the time does not wait for longer.
        let left = end.checked_duration_since(Instant::now()).ok_or(Silence::Late)?;
        let (bytes, event) = self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Flooded,
        })?;
        self.unread.fetch_sub(bytes, Ordering::Relaxed);
        Ok(event)
    }
}

/// Why nothing more is heard.
#[derive(Debug)]
pub enum Silence {
    /// The time is over.
    Late,
    /// The server sent more than was read.
    Flooded,
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late => f.write_str("it does not answer in time"),
            Self::Flooded => write!(f, "it sent more than {UNREAD_BYTES} bytes that nobody wanted"),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.hub.listeners.0).remove(&self.name);
    }
}

impl Hub {
    /// A hub for the server at `address` (`tcp://HOST:PORT`), which reaches this process at `here`. `local` is where it listens. A
    /// connection takes no longer than one answer may.
    ///
    /// # Errors
    /// When the address is none, or nobody can listen.
    pub fn new(address: &str, local: &str, here: Option<&str>, timeout: Duration) -> Result<Arc<Self>> {
        let peer = address.strip_prefix("tcp://").filter(|peer| peer.rsplit_once(':').is_some());
        let Some(peer) = peer else {
            return Err(Error::config(format!("the `address` of the environment is `{address}`"))
                .with_hint("give `tcp://HOST:PORT`, such as tcp://127.0.0.1:5000"));
        };
        let listeners = Arc::<Listeners>::default();
        let known = Arc::downgrade(&listeners);
        let alive = known.clone();
        let deliver = move |name: &str, ask: Ask| {
            let bytes = size_of_val(&ask.ids[..]);
            known.upgrade().is_some_and(|listeners| listeners.tell(name, bytes, Event::Ask(ask)))
        };
        let bound: SocketAddr =
            endpoint::listen(local, deliver, move || alive.strong_count() > 0).map_err(|error| {
                Error::config(format!("nobody can listen at `{local}`: {error}"))
                    .with_hint("`listen` names an address of this machine")
            })?;
        let here = here.map_or_else(|| bound.to_string(), |host| format!("{host}:{}", bound.port()));
        let random = || RandomState::new().build_hasher().finish();
        Ok(Arc::new(Self {
            peer: peer.to_owned(),
            patience: timeout.min(PATIENCE),
            bound,
            here,
            secret: format!("{:016x}{:016x}", random(), random()),
            count: AtomicU64::new(0),
            listeners,
            wire: Mutex::default(),
        }))
    }

    /// A name that is new.
    pub fn seat(self: &Arc<Self>) -> Seat {
        let name = format!("{}-{}", self.secret, self.count.fetch_add(1, Ordering::Relaxed));
        let (send, events) = channel();
        let unread = Arc::<AtomicUsize>::default();
        lock(&self.listeners.0).insert(name.clone(), Listener { events: send, unread: Arc::clone(&unread) });
        Seat { hub: Arc::clone(self), name, events, unread }
    }

    /// Where the server asks for the turns of the episode with this name.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}/v1", self.here)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub fn send(&self, name: &str, method: &str, body: &Value) -> Result<()> {
        let failed = |error: &io::Error| {
            Error::episode(format!("the environment server tcp://{} cannot be reached: {error}", self.peer))
        };
        let wire = self.wire().map_err(|error| failed(&error))?;
        let payload = loose::write(body);
        let sent = zmtp::send(&mut *lock(&wire.writer), &[name.as_bytes(), method.as_bytes(), &payload]);
        sent.map_err(|error| {
            // The next one connects again.
            wire.is_broken.store(true, Ordering::SeqCst);
            failed(&error)
        })
    }

    /// Has the server give an episode up. Nobody waits for the answer.
    pub fn cancel(&self, name: &str) {
        let seat = format!("{name}-cancel");
        // A server that is gone plays nothing.
        let _ = self.send(&seat, "cancel", &json!({ "request_id": name }));
    }

    /// The connection, made where there is none.
    fn wire(&self) -> io::Result<Arc<Wire>> {
        let mut known = lock(&self.wire);
        if let Some(wire) = known.as_ref().filter(|wire| !wire.is_broken.load(Ordering::SeqCst)) {
            return Ok(Arc::clone(wire));
        }
        let mut addresses = self.peer.to_socket_addrs()?;
        let address = addresses.next().ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, self.patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        zmtp::greet(&mut stream, "DEALER")?;
        stream.set_read_timeout(None)?;
        let reader = BufReader::new(stream.try_clone()?);
        let wire = Arc::new(Wire { writer: Mutex::new(stream), is_broken: AtomicBool::new(false) });
        let (writer, listeners) = (Arc::downgrade(&wire), Arc::downgrade(&self.listeners));
        std::thread::spawn(move || read(reader, &writer, &listeners));
        *known = Some(Arc::clone(&wire));
        Ok(wire)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(wire) = lock(&self.wire).take() {
            // Its reader ends.
            let _ = lock(&wire.writer).shutdown(std::net::Shutdown::Both);
        }
        // One more connection, which the endpoint meets its end with.
        self.listeners = Arc::default();
        let _ = TcpStream::connect_timeout(&self.bound, PATIENCE);
    }
}

/// Hands out what comes, until nothing comes any more.
fn read(mut reader: BufReader<TcpStream>, wire: &Weak<Wire>, listeners: &Weak<Listeners>) {
    let mut answer = |bytes: &[u8]| match wire.upgrade() {
        Some(wire) => lock(&wire.writer).write_all(bytes),
        None => Ok(()),
    };
    let end = loop {
        let frames = match zmtp::receive(&mut reader, &mut answer) {
            Ok(frames) => frames,
            Err(error) => break error.to_string(),
        };
        let [name, kind, data] = &frames[..] else {
            break format!("it sent {} frames, but a reply has 3", frames.len());
        };
        let Some(listeners) = listeners.upgrade() else { return };
        let (name, kind) = (String::from_utf8_lossy(name), String::from_utf8_lossy(kind));
        let event = match (loose::read(data), &*kind) {
            (Ok(delta), "delta") => Event::Delta(delta),
            (Ok(reply), _) => Event::Reply(reply),
            (Err(error), _) => Event::Gone(format!("its answer cannot be read: {error}")),
        };
        // Of an episode that was given up nobody hears.
        listeners.tell(&name, data.len(), event);
    };
    if let Some(wire) = wire.upgrade() {
        wire.is_broken.store(true, Ordering::SeqCst);
        let _ = lock(&wire.writer).shutdown(std::net::Shutdown::Both);
    }
    if let Some(listeners) = listeners.upgrade() {
        for listener in lock(&listeners.0).values() {
            listener.hears(0, Event::Gone(format!("the connection is broken: {end}")));
        }
    }
}

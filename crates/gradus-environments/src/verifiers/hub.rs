//! The connection to an environment server, and the distribution of its messages.

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

use super::endpoint::{self, TurnRequest};
use super::{loose, zmtp};
use crate::error::{Error, Result};

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Event for an episode.
#[derive(Debug)]
pub enum Event {
    /// The server requests a turn of the policy.
    TurnRequest(TurnRequest),
    /// Additions to the episode's traces.
    Delta(Value),
    /// Final answer to the episode's request.
    Reply(Value),
    /// The connection is broken, with the reason.
    Gone(String),
}

/// One connection for all episodes. If it breaks, the next episode opens a new one.
pub struct Hub {
    /// Server as `HOST:PORT`.
    peer: String,
    /// Maximum time to connect.
    connect_timeout: Duration,
    /// Address at which this process listens.
    bound: SocketAddr,
    /// Address at which the server reaches it.
    callback_address: String,
    /// Secret prefix, so that nobody else can guess the names of episodes.
    secret: String,
    count: AtomicU64,
    listeners: Arc<Listeners>,
    wire: Mutex<Option<Arc<Wire>>>,
}

/// Listeners by name.
#[derive(Default)]
struct Listeners(Mutex<HashMap<String, Listener>>);

/// Maximum number of bytes in messages that an episode has not yet read.
const UNREAD_BYTES: usize = 64 << 20;

/// Minimum size that a message counts for.
const EVENT_BYTES: usize = 1 << 10;

/// Channel to an episode, and the number of its unread bytes.
struct Listener {
    events: Sender<(usize, Event)>,
    unread: Arc<AtomicUsize>,
}

impl Listener {
    /// Delivers an event and returns whether that succeeded. A listener with too many unread bytes gets no more events.
    fn deliver(&self, bytes: usize, event: Event) -> bool {
        let bytes = bytes.max(EVENT_BYTES);
        self.unread.fetch_add(bytes, Ordering::Relaxed) < UNREAD_BYTES && self.events.send((bytes, event)).is_ok()
    }
}

/// A connection that was open at its last use.
struct Wire {
    writer: Mutex<TcpStream>,
    is_broken: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    /// Delivers a message of this size to the listener `name`. Returns false if there is none, or if it has too many unread bytes.
    fn deliver(&self, name: &str, bytes: usize, event: Event) -> bool {
        let mut all = lock(&self.0);
        let deliver = all.get(name).is_some_and(|listener| listener.deliver(bytes, event));
        if !deliver {
            all.remove(name);
        }
        deliver
    }
}

/// Name of an episode, with its events. Dropping it frees the name.
pub struct EpisodeChannel {
    hub: Arc<Hub>,
    /// Name of the episode.
    pub name: String,
    events: Receiver<(usize, Event)>,
    unread: Arc<AtomicUsize>,
}

impl EpisodeChannel {
    /// Waits for the next event.
    ///
    /// # Errors
    /// Returns an error if there is no event until `end`, or the server sends more than is read.
    pub fn next(&self, end: Instant) -> Result<Event, ReceiveError> {
        // The limit also applies if events keep arriving.
        let left = end.checked_duration_since(Instant::now()).ok_or(ReceiveError::Late)?;
        let (bytes, event) = self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => ReceiveError::Late,
            RecvTimeoutError::Disconnected => ReceiveError::Flooded,
        })?;
        self.unread.fetch_sub(bytes, Ordering::Relaxed);
        Ok(event)
    }
}

/// Reason why no further event arrives.
#[derive(Debug)]
pub enum ReceiveError {
    /// The time limit is over.
    Late,
    /// The server sent more than was read.
    Flooded,
}

impl std::fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late => f.write_str("it did not answer within the time limit"),
            Self::Flooded => write!(f, "it sent more than {UNREAD_BYTES} bytes that were not requested"),
        }
    }
}

impl Drop for EpisodeChannel {
    fn drop(&mut self) {
        lock(&self.hub.listeners.0).remove(&self.name);
    }
}

impl Hub {
    /// Creates a hub for the server at `address` (`tcp://HOST:PORT`). This process listens at `local`, and the server
    /// reaches it at `callback_address`.
    /// `timeout` limits one answer and also the time to connect.
    ///
    /// # Errors
    /// Returns an error if the address is invalid or cannot be bound.
    pub fn new(address: &str, local: &str, callback_address: Option<&str>, timeout: Duration) -> Result<Arc<Self>> {
        let peer = address.strip_prefix("tcp://").filter(|peer| peer.rsplit_once(':').is_some());
        let Some(peer) = peer else {
            return Err(Error::config(format!("the `address` of the environment is `{address}`"))
                .with_hint("set it to `tcp://HOST:PORT`, such as tcp://127.0.0.1:5000"));
        };
        let listeners = Arc::<Listeners>::default();
        let known = Arc::downgrade(&listeners);
        let alive = known.clone();
        let deliver = move |name: &str, request: TurnRequest| {
            let bytes = size_of_val(&request.ids[..]);
            known.upgrade().is_some_and(|listeners| listeners.deliver(name, bytes, Event::TurnRequest(request)))
        };
        let bound: SocketAddr =
            endpoint::listen(local, deliver, move || alive.strong_count() > 0).map_err(|error| {
                Error::config(format!("cannot listen at `{local}`: {error}"))
                    .with_hint("`listen` must be an address of this machine")
            })?;
        let callback_address =
            callback_address.map_or_else(|| bound.to_string(), |host| format!("{host}:{}", bound.port()));
        let random = || RandomState::new().build_hasher().finish();
        Ok(Arc::new(Self {
            peer: peer.to_owned(),
            connect_timeout: timeout.min(CONNECT_TIMEOUT),
            bound,
            callback_address,
            secret: format!("{:016x}{:016x}", random(), random()),
            count: AtomicU64::new(0),
            listeners,
            wire: Mutex::default(),
        }))
    }

    /// Creates a new name with its channel.
    pub fn channel(self: &Arc<Self>) -> EpisodeChannel {
        let name = format!("{}-{}", self.secret, self.count.fetch_add(1, Ordering::Relaxed));
        let (send, events) = channel();
        let unread = Arc::<AtomicUsize>::default();
        lock(&self.listeners.0).insert(name.clone(), Listener { events: send, unread: Arc::clone(&unread) });
        EpisodeChannel { hub: Arc::clone(self), name, events, unread }
    }

    /// URL at which the server requests the turns of the episode with this name.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}/v1", self.callback_address)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn send(&self, name: &str, method: &str, body: &Value) -> Result<()> {
        let failed = |error: &io::Error| {
            Error::episode(format!("the environment server tcp://{} cannot be reached: {error}", self.peer))
        };
        let wire = self.wire().map_err(|error| failed(&error))?;
        let payload = loose::write(body);
        let sent = zmtp::send(&mut *lock(&wire.writer), &[name.as_bytes(), method.as_bytes(), &payload]);
        sent.map_err(|error| {
            // The next request opens a new connection.
            wire.is_broken.store(true, Ordering::SeqCst);
            failed(&error)
        })
    }

    /// Cancels an episode at the server. The answer is ignored.
    pub fn cancel(&self, name: &str) {
        let channel = format!("{name}-cancel");
        // If the server has ended, there is nothing to cancel.
        let _ = self.send(&channel, "cancel", &json!({ "request_id": name }));
    }

    /// Returns the connection, and opens one if necessary.
    fn wire(&self) -> io::Result<Arc<Wire>> {
        let mut known = lock(&self.wire);
        if let Some(wire) = known.as_ref().filter(|wire| !wire.is_broken.load(Ordering::SeqCst)) {
            return Ok(Arc::clone(wire));
        }
        let mut addresses = self.peer.to_socket_addrs()?;
        let address = addresses.next().ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, self.connect_timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.connect_timeout))?;
        stream.set_write_timeout(Some(self.connect_timeout))?;
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
            // This ends the reader thread.
            let _ = lock(&wire.writer).shutdown(std::net::Shutdown::Both);
        }
        // The endpoint ends at the next connection, so open one more.
        self.listeners = Arc::default();
        let _ = TcpStream::connect_timeout(&self.bound, CONNECT_TIMEOUT);
    }
}

/// Distributes incoming messages until the connection ends.
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
        // Messages for abandoned episodes are dropped.
        listeners.deliver(&name, data.len(), event);
    };
    if let Some(wire) = wire.upgrade() {
        wire.is_broken.store(true, Ordering::SeqCst);
        let _ = lock(&wire.writer).shutdown(std::net::Shutdown::Both);
    }
    if let Some(listeners) = listeners.upgrade() {
        for listener in lock(&listeners.0).values() {
            listener.deliver(0, Event::Gone(format!("the connection is broken: {end}")));
        }
    }
}

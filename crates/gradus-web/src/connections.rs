//! Limits on connections: in total and per client, with a rule for which connection is closed if there are too many.
//!
//! A connection is *answering* from the moment a complete request is admitted until the last byte of its response. Before and between
//! requests it is *waiting*. A waiting connection is closed to make room for a new one. A client that opens connections and sends nothing,
//! or incomplete requests, therefore blocks nobody.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tower_service::Service;

/// Maximum time for a client to send the head of a request, from the end of the previous response. Browsers keep connections that they
/// opened in advance for 60 seconds, and report an error if the server closes one earlier.
const HEAD: Duration = Duration::from_secs(90);

/// Pause in accepting connections after the system ran out of resources.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of connections, however many files the process may open.
const MOST: usize = 4096;

/// Returns the machine or network that a connection comes from. A machine with IPv6 has many addresses with a common prefix.
pub fn client(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// A connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// Address of the client.
    pub client: IpAddr,
    /// Number of requests in progress on it.
    answers: AtomicUsize,
    leave: Notify,
}

impl ClientConnection {
    fn waits(&self) -> bool {
        self.answers.load(Ordering::SeqCst) == 0
    }
}

/// Marks a request as in progress until it is dropped.
#[derive(Debug)]
pub struct RequestGuard(Arc<ClientConnection>);

impl RequestGuard {
    /// Marks a request as in progress from now on.
    pub fn on(place: &Arc<ClientConnection>) -> Self {
        place.answers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(place))
    }

    /// Wraps the body, so that the request stays in progress until the body is sent.
    pub fn until_sent(self, body: Body) -> Body {
        Body::new(TrackedBody { body, _answering: self })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.answers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Body of a response in progress.
struct TrackedBody {
    body: Body,
    _answering: RequestGuard,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// All connections, oldest first.
#[derive(Debug)]
struct ConnectionLimits {
    most: usize,
    of_one: usize,
    places: Mutex<Vec<Arc<ClientConnection>>>,
}

/// A place among the connections until it is dropped.
struct ConnectionGuard {
    crowd: Arc<ConnectionLimits>,
    place: Arc<ClientConnection>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.crowd.all().retain(|other| !Arc::ptr_eq(other, &self.place));
    }
}

impl ConnectionLimits {
    /// Creates the limits for a process that may open `files` files. Half of them are for connections, and one client gets most of that
    /// half.
    fn new(files: usize) -> Self {
        let most = (files / 2).clamp(8, MOST);
        Self { most, of_one: most - most / 8, places: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<ClientConnection>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection. If there is no room, the oldest waiting connection is closed: one of the same client if that has too many,
    /// otherwise one of the client with the most waiting connections. `None` if none is waiting.
    fn admit(self: &Arc<Self>, from: IpAddr) -> Option<ConnectionGuard> {
        let client = client(from);
        let mut all = self.all();
        let own = all.iter().filter(|place| place.client == client).count();
        let from = if own >= self.of_one {
            Some(client)
        } else if all.len() >= self.most {
            let mut waiting: HashMap<IpAddr, usize> = HashMap::new();
            for place in all.iter().filter(|place| place.waits()) {
                *waiting.entry(place.client).or_default() += 1;
            }
            Some(waiting.into_iter().max_by_key(|(_, count)| *count)?.0)
        } else {
            None
        };
        if let Some(from) = from {
            let at = all.iter().position(|place| place.client == from && place.waits())?;
            all.remove(at).leave.notify_one();
        }
        let place = Arc::new(ClientConnection { client, answers: AtomicUsize::new(0), leave: Notify::new() });
        all.push(Arc::clone(&place));
        Some(ConnectionGuard { crowd: Arc::clone(self), place })
    }
}

/// Returns the number of files that the process may open.
fn files() -> usize {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit};
        if let Ok((now, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            return usize::try_from(now).unwrap_or(usize::MAX);
        }
    }
    1024
}

/// Serves all connections, forever.
pub async fn serve(listener: TcpListener, router: Router) {
    let crowd = Arc::new(ConnectionLimits::new(files()));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => match crowd.admit(from.ip()) {
                Some(seat) => drop(tokio::spawn(answer(stream, seat, router.clone()))),
                None => tracing::warn!("a connection from {} was closed: there are too many", from.ip()),
            },
            // The client has disconnected already, or the process has too many open files.
            Err(error) => {
                tracing::debug!("no connection: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, seat: ConnectionGuard, router: Router) {
    // Sends each token immediately, without waiting for the acknowledgment of the previous one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("a connection waits for acknowledgements: {error}");
    }
    let place = Arc::clone(&seat.place);
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&place));
        router.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    tokio::select! {
        done = http.serve_connection(TokioIo::new(stream), service) => if let Err(error) = done {
            tracing::debug!("a connection ended: {error}");
        },
        () = seat.place.leave.notified() => tracing::debug!("a connection that waited made room for another"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn count(crowd: &ConnectionLimits, client: &str) -> usize {
        crowd.all().iter().filter(|place| place.client == at(client)).count()
    }

    #[test]
    fn one_that_waits_makes_room_and_one_that_is_answered_does_not() {
        let crowd = Arc::new(ConnectionLimits::new(16));
        assert_eq!((crowd.most, crowd.of_one), (8, 7));
        let mut seats: Vec<ConnectionGuard> = (0..7).map(|_| crowd.admit(at("10.0.0.1")).expect("a place")).collect();
        let answering = RequestGuard::on(&seats[0].place);
        seats.push(crowd.admit(at("10.0.0.1")).expect("one that waits has left"));
        assert_eq!(count(&crowd, "10.0.0.1"), 7, "no client has more");
        assert!(crowd.all().iter().any(|place| Arc::ptr_eq(place, &seats[0].place)), "it is answered");
        assert!(!crowd.all().iter().any(|place| Arc::ptr_eq(place, &seats[1].place)), "the oldest that waited");
        // Another client is admitted as long as a connection is waiting.
        seats.push(crowd.admit(at("10.0.0.2")).expect("a place"));
        seats.push(crowd.admit(at("10.0.0.3")).expect("a place"));
        // Separate statements, because each locks the crowd.
        let all = crowd.all().len();
        assert_eq!((all, count(&crowd, "10.0.0.1")), (8, 6), "who has the most gives one up");
        let rest: Vec<RequestGuard> = crowd.all().iter().map(RequestGuard::on).collect();
        assert!(crowd.admit(at("10.0.0.4")).is_none(), "all are answered");
        drop((rest, answering, seats));
        assert_eq!(crowd.all().len(), 0);
    }

    #[test]
    fn a_network_of_one_machine_is_one_client() {
        assert_eq!(client(at("::ffff:10.0.0.1")), at("10.0.0.1"));
        assert_eq!(client(at("2001:db8:1:2:3:4:5:6")), client(at("2001:db8:1:2:9:9:9:9")));
        assert_ne!(client(at("2001:db8:1:2::1")), client(at("2001:db8:1:3::1")));
    }
}

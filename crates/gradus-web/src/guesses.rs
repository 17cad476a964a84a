//! Delays for wrong tokens: after several wrong tokens, the response to the next one is delayed. Correct tokens are never delayed, so
//! guesses from the same address block nobody.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong tokens without delay, because people mistype.
const FREE: u32 = 3;
/// Maximum delay.
const LONGEST: Duration = Duration::from_secs(32);
/// Time after which a wrong token is forgotten.
const KEPT: Duration = Duration::from_secs(600);
/// Maximum number of remembered clients. Beyond it, those with the oldest guesses are forgotten.
const CLIENTS: usize = 4096;

/// Number of wrong tokens per client, and time of the last one.
#[derive(Debug, Default)]
pub struct Guesses(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl Guesses {
    /// Counts a wrong token and returns the delay of its response: 0 s three times, then 1, 2, 4 s and so on, at most 32 s.
    pub fn wrong(&self, client: IpAddr) -> Duration {
        self.wrong_at(client, Instant::now())
    }

    fn wrong_at(&self, client: IpAddr, now: Instant) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CLIENTS {
            all.retain(|_, (_, last)| now.duration_since(*last) < KEPT);
            if let Some(oldest) = all.iter().min_by_key(|(_, (_, last))| *last).map(|(known, _)| *known)
                && all.len() >= CLIENTS
            {
                all.remove(&oldest);
            }
        }
        let (count, last) = all.entry(client).or_insert((0, now));
        *count = if now.duration_since(*last) < KEPT { count.saturating_add(1) } else { 1 };
        *last = now;
        match count.saturating_sub(FREE) {
            0 => Duration::ZERO,
            more => LONGEST.min(Duration::from_secs(1 << (more - 1).min(16))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_guess_waits_longer_and_is_forgotten_in_time() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().expect("an address"));
        let seconds = |client, after| guesses.wrong_at(client, now + Duration::from_secs(after)).as_secs();
        let waits: Vec<u64> = (0..12).map(|_| seconds(one, 0)).collect();
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 32, 32, 32, 32]);
        assert_eq!(seconds(other, 0), 0, "each client has guesses of its own");
        assert_eq!(seconds(one, 599), 32);
        assert_eq!(seconds(one, 599 + 600), 0, "forgotten");
    }

    #[test]
    fn not_more_clients_are_remembered_than_there_is_room_for() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        for i in 0..(CLIENTS as u32 + 100) {
            guesses.wrong_at(IpAddr::V4(i.into()), now + Duration::from_millis(i.into()));
        }
        let kept = guesses.0.lock().expect("nobody panicked");
        assert_eq!(kept.len(), CLIENTS);
        assert!(!kept.contains_key(&IpAddr::V4(0.into())), "the oldest are forgotten");
    }
}

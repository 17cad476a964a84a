use std::thread;
use std::time::Duration;

use super::*;
use crate::error::Error;

/// Runs `work` on `size` ranks, each in a thread.
fn on<T: Send + 'static>(size: usize, work: impl Fn(Ranks) -> T + Send + Clone + 'static) -> Vec<T> {
    with_patience(size, Duration::from_secs(600), work)
}

fn with_patience<T: Send + 'static>(
    size: usize,
    patience: Duration,
    work: impl Fn(Ranks) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let start = |link: Box<dyn Link>| {
        let work = work.clone();
        thread::spawn(move || work(Ranks::new(link, patience)))
    };
    let threads: Vec<_> = threads(size).into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
}

#[test]
fn everybody_gets_what_all_have_made() {
    for size in 1..=5 {
        let found = on(size, |ranks| {
            ranks.deal("squares", (11, 2), |own| Ok(own.map(|i| i * i).collect())).map_err(|error| error.to_string())
        });
        let expected: Vec<usize> = (0..11).map(|i| i * i).collect();
        assert!(found.iter().all(|found| found.as_ref() == Ok(&expected)), "{found:?}");
    }
}

#[test]
fn the_end_waits_for_all_ranks() {
    let (arrived, arrivals) = std::sync::mpsc::channel();
    let first = std::sync::Arc::new(std::sync::Mutex::new(Some(arrivals)));
    let found = on(2, move |ranks| match ranks.rank() {
        0 => {
            let arrivals = first.lock().expect("no rank panics").take().expect("rank 0 alone");
            ranks.finish(Duration::from_secs(600));
            arrivals.try_recv().is_ok()
        }
        _ => {
            // Without the wait, rank 0 would not find this.
            thread::sleep(Duration::from_millis(50));
            arrived.send(()).expect("rank 0 listens");
            ranks.finish(Duration::from_secs(600));
            true
        }
    });
    assert_eq!(found, [true, true]);
    // A rank that does not come has a limit.
    on(2, |ranks| {
        if ranks.is_first() {
            ranks.finish(Duration::ZERO);
        }
    });
}

#[test]
fn units_stay_together() {
    for size in 1..=7 {
        let shares: Vec<_> = (0..size).map(|rank| share(22, 4, rank, size)).collect();
        assert_eq!((shares[0].start, shares[size - 1].end), (0, 22));
        assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
        assert!(shares.iter().all(|share| share.start % 4 == 0 || share.start == 22), "{shares:?}");
    }
}

#[test]
fn every_bit_arrives() {
    let found = on(2, |ranks| ranks.all("numbers", &[f64::NAN, -0.0, 1e-310, f64::INFINITY]));
    let bits = |numbers: &[f64; 4]| numbers.map(f64::to_bits);
    for all in found {
        assert!(all.iter().all(|one| bits(one) == bits(&[f64::NAN, -0.0, 1e-310, f64::INFINITY])));
    }
}

#[test]
fn the_error_of_one_is_that_of_all() {
    let found = on(3, |ranks| {
        let own = match ranks.rank() {
            1 => Err(Error::input("no such file").with_hint("make it")),
            rank => Ok(rank),
        };
        let error = ranks.all_ok("share", own).expect_err("one failed");
        // The ranks can continue after a failure.
        let after = ranks.all("after", &ranks.rank());
        (error.to_string(), error.hint().map(str::to_owned), after)
    });
    let messages: Vec<&str> = found.iter().map(|(message, ..)| message.as_str()).collect();
    assert_eq!(messages, ["rank 1: no such file", "no such file", "rank 1: no such file"]);
    assert!(found.iter().all(|(_, hint, after)| hint.as_deref() == Some("make it") && *after == [0, 1, 2]));
    let found = on(2, |ranks| {
        let own = if ranks.is_first() { Err(Error::Interrupted) } else { Ok(()) };
        matches!(ranks.all_ok("share", own), Err(Error::Interrupted))
    });
    assert_eq!(found, [true, true]);
}

#[test]
fn all_stop_at_the_same_operation() {
    let found = on(4, |ranks| {
        let mut stopped = Vec::new();
        for step in 0..6 {
            // Only one rank is asked, before operation 3.
            stopped.push(ranks.stops(step == 3 && ranks.rank() == 2));
            ranks.barrier("step");
        }
        stopped
    });
    assert!(found.iter().all(|stopped| *stopped == [false, false, false, false, true, true]), "{found:?}");
    assert!(Ranks::ALONE.stops(true) && !Ranks::ALONE.stops(false));
}

#[test]
fn a_rank_that_fails_elsewhere_ends_all() {
    let found = on(3, |ranks| {
        if ranks.rank() == 1 {
            ranks.fail("the disk is full");
            return String::new();
        }
        let ended = catching(|| {
            ranks.barrier("first");
            ranks.barrier("second");
            Ok(())
        });
        ended.expect_err("rank 1 is gone").to_string()
    });
    assert_eq!(found, ["rank 1: the disk is full", "", "rank 1: the disk is full"]);
}

#[test]
fn a_rank_that_says_nothing_is_noticed() {
    let found = with_patience(2, Duration::from_millis(1), |ranks| match ranks.rank() {
        0 => catching(|| {
            ranks.barrier("step");
            Ok(())
        })
        .map_err(|error| error.to_string()),
        _ => Ok(()),
    });
    let message = "the ranks cannot continue together at `step`: no answer from rank 1 within 0 s";
    assert_eq!(found, [Err(message.to_owned()), Ok(())]);
}

#[test]
fn ranks_that_do_different_things_are_noticed() {
    let found = on(2, |ranks| {
        let what = if ranks.is_first() { "sampling" } else { "scoring" };
        catching(|| {
            ranks.barrier(what);
            Ok(())
        })
        .expect_err("they differ")
        .to_string()
    });
    assert_eq!(
        found[0],
        "rank 1 runs a different operation than this rank, which is at `sampling` (operation 1 here, operation 1 there)"
    );
}

#[test]
fn lanes_give_what_each_made_in_order() {
    for size in 1..=4 {
        let found = on(size, |ranks| {
            let lanes = Lanes::new(8, ranks);
            let fine = lanes.run("lanes", |lane| Ok::<_, String>(lanes.rows(lane, 21)));
            let failed = lanes.run("lanes", |lane| if lane < 5 { Ok(lane) } else { Err(format!("lane {lane}")) });
            (fine, failed)
        });
        for (fine, failed) in found {
            let rows: Vec<usize> = fine.expect("all are fine").into_iter().flatten().collect();
            assert_eq!((rows, failed), ((0..21).collect(), Err("lane 5".to_owned())));
        }
    }
}

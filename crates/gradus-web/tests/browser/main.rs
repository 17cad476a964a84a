//! Tests the pages in a browser, with the mouse and with the keyboard alone. Without a browser, these tests are skipped with a visible
//! message.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod accessible;
mod annotate;
mod chat;
#[path = "../serve/client.rs"]
#[allow(dead_code, reason = "browsers do what the client of the other tests does by hand")]
mod client;
mod driver;
mod flows;
mod pictures;
#[path = "../serve/recorder.rs"]
#[allow(dead_code, reason = "what was asked is looked at by the tests without a browser")]
mod recorder;
mod rich;
mod runs;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

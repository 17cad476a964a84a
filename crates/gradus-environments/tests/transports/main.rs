//! The transports under attack: answers that are changed at random, and processes that are killed.
//!
//! This is its own test harness, because it is started again as the programs that it communicates with: `CHILD ROLE …`.
//!
//! `GRADUS_FUZZ_CASES` and `GRADUS_FUZZ_SEED` set the number of changed answers per transport and their seed.

#![allow(clippy::print_stdout, reason = "it is its own test harness")]
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod child;
#[path = "../../../gradus/tests/support/counting.rs"]
mod counting;
mod hostile;
#[cfg(unix)]
mod kills;
mod mutate;
mod served;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;
mod verifiers;
mod wire;
mod zmtp;

use std::sync::atomic::{AtomicUsize, Ordering};

/// First argument of a child.
pub const CHILD: &str = "--child";

/// Number of panics in any thread, including those of the library.
static PANICS: AtomicUsize = AtomicUsize::new(0);

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("changed_lines_of_a_program", hostile::program),
    ("changed_messages_of_openenv", hostile::openenv),
    ("changed_lines_of_mcp", hostile::mcp_lines),
    ("changed_answers_of_mcp_over_http", hostile::mcp_http),
    ("changed_messages_of_verifiers", hostile::verifiers),
    #[cfg(unix)]
    ("killed_programs", kills::program),
    #[cfg(unix)]
    ("killed_servers_of_mcp", kills::mcp),
    ("a_served_environment_is_the_same_environment", served::games),
    ("the_example_plays", served::example),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == CHILD) {
        child::main(&arguments[1..]);
        return;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(panic);
    }));
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    for (name, test) in TESTS {
        if filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())) {
            test();
            assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{name}: a thread panicked");
            println!("test {name} ... ok");
        }
    }
}

/// Returns a command that starts this program as a child.
pub fn child(arguments: &[&str]) -> Vec<String> {
    let program = std::env::current_exe().expect("this program").display().to_string();
    [program, CHILD.to_owned()].into_iter().chain(arguments.iter().map(|part| (*part).to_owned())).collect()
}

//! Terminal browser of `gradus runs`. The state and its keys, the files, and the drawing are separate modules; this file joins them in a
//! loop.

mod draw;
mod keeper;
mod state;
#[cfg(test)]
mod tests;
mod update;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use gradus::runs::Library;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::keeper::Keeper;
use self::state::Browser;
use self::update::Effect;

/// Interval at which files are checked.
const REFRESH: Duration = Duration::from_secs(2);
/// Maximum time to wait for a key before signals and files are checked.
const WAIT: Duration = Duration::from_millis(200);

/// Reason for leaving the browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// The user quit.
    Quit,
    /// The user resumed a run.
    Resume {
        /// Name of the run.
        name: String,
        /// New number of steps; `None` keeps the number in the configuration.
        max_steps: Option<usize>,
    },
}

/// Shows the runs until the user leaves. Restores the terminal, even after a panic.
pub fn run(library: &Library, is_colored: bool) -> anyhow::Result<ExitReason> {
    crate::watch::catch_interrupts(None);
    // Held until the browser is left.
    let (_here, left) = mpsc::channel();
    std::thread::spawn(move || leave_a_terminal_that_is_gone(&left));
    let mut terminal = ratatui::try_init().map_err(|error| gradus::Error::io("the terminal", error))?;
    let left = browse(&mut terminal, library, draw::Theme::new(is_colored));
    // An earlier error has the better message.
    let restored = ratatui::try_restore();
    let left = left.map_err(|error| gradus::Error::io("the terminal", error))?;
    restored.map_err(|error| gradus::Error::io("the terminal", error))?;
    Ok(left)
}

/// Ends the program some time after it received a signal. If the terminal has disappeared (a lost connection), waiting for a key never
/// returns and would keep one core busy forever.
///
/// The other end of `left` is dropped when the browser is left.
fn leave_a_terminal_that_is_gone(left: &mpsc::Receiver<()>) {
    let is_here = |wait| left.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout);
    while is_here(WAIT) {
        if crate::watch::is_interrupted() && is_here(REFRESH) {
            std::process::exit(130);
        }
    }
}

fn browse(
    terminal: &mut ratatui::DefaultTerminal,
    library: &Library,
    theme: draw::Theme,
) -> std::io::Result<ExitReason> {
    let mut browser = Browser { root: library.root().display().to_string(), ..Browser::default() };
    let mut keeper = Keeper::new(library.clone());
    keeper.refresh(&mut browser);
    let mut read = Instant::now();
    while !crate::watch::is_interrupted() {
        browser.now = crate::numbers::now();
        keeper.fill(&mut browser);
        let mut scroll_max = 0;
        terminal.draw(|frame| scroll_max = draw::draw(frame, &browser, theme))?;
        browser.scroll_max = scroll_max;
        if event::poll(WAIT)? {
            // Over a slow connection, held keys arrive faster than frames can be drawn. Handle all pending keys, then draw one frame.
            while event::poll(Duration::ZERO)? {
                let effect = match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => browser.press(key),
                    _ => None,
                };
                match effect {
                    Some(Effect::Quit) => return Ok(ExitReason::Quit),
                    Some(Effect::Resume { name, max_steps }) => return Ok(ExitReason::Resume { name, max_steps }),
                    Some(effect) => {
                        // Comparisons and copies take time, so show a sign of activity.
                        browser.notify("…");
                        terminal.draw(|frame| scroll_max = draw::draw(frame, &browser, theme))?;
                        browser.notice = None;
                        keeper.act(effect, &mut browser);
                    }
                    None => {}
                }
            }
        }
        if read.elapsed() >= REFRESH {
            keeper.refresh(&mut browser);
            read = Instant::now();
        }
    }
    Ok(ExitReason::Quit)
}

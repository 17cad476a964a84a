//! Checks that axe-core finds no fault on any page, in light and dark mode. The script is not part of the repository:
//! `tools/serve/fetch-axe` downloads it from npm. Without it, the test is skipped with a visible message.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use gradus_web::Role;
use serde_json::Value;

use crate::annotate;
use crate::chat::{begin, speak};
use crate::client::{Server, classifier, dense, folder};
use crate::driver::Browser;
use crate::recorder::Recorder;
use crate::runs;
use crate::skip::skipped;

/// Returns the faults of the page as axe-core reports them.
pub fn faults(browser: &mut Browser, axe: &str) -> Vec<String> {
    browser.eval(axe);
    let found = browser.eval(
        "axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map(v => \
        v.id + ': ' + v.help + ' ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | ')))",
    );
    let found: Vec<Value> = serde_json::from_value(found).expect("a list");
    found.into_iter().map(|fault| fault.as_str().unwrap_or_default().to_owned()).collect()
}

/// Returns the axe-core script. If it was not fetched, prints a message and returns `None`.
pub fn axe() -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/axe-core/axe.min.js");
    let axe = std::fs::read_to_string(path).ok();
    if axe.is_none() {
        skipped("axe-core", "tools/serve/fetch-axe was not run");
    }
    axe
}

#[test]
fn no_page_has_a_fault_that_axe_finds() {
    let Some(axe) = axe() else { return };
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2", "qwen3", "qwen3-reward"]);
    let server = Server::with(folder.path(), IpAddr::from([127, 0, 0, 1]), Some(Arc::new(Recorder::default())));
    begin(&mut browser, &server, &[("model", "gpt2"), ("other", "qwen3"), ("judge", "qwen3-reward")]);
    speak(&mut browser, "The tea");
    classifier(folder.path(), "marks", ["O", "NF-ERR", "F-ERR"]);
    dense(folder.path(), "tea/ppo", "marks");
    begin(&mut browser, &server, &[("model", "gpt2"), ("judge", "tea/ppo (its reward)"), ("max_tokens", "12")]);
    speak(&mut browser, "The tea");
    runs::run(folder.path(), "tea/a", "dpo", 2.0, "1e-5");
    runs::run(folder.path(), "tea/b", "sft", 3.0, "2e-5");
    runs::completions(folder.path(), "tea/a");
    runs::run(folder.path(), "game", "grpo", 2.0, "1e-5");
    runs::episode(folder.path(), "game");
    annotate::project(folder.path(), "fine", "fine-grained", 1);
    annotate::project(folder.path(), "pairs", "comparison", 1);
    annotate::project(folder.path(), "likert", "likert-imdb", 1);
    annotate::differ(folder.path(), "differ");
    annotate::sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    let mut found = Vec::new();
    for is_dark in [false, true] {
        browser.dark(is_dark);
        for path in [
            "/",
            "/chat",
            "/chat/1",
            "/chat/2",
            "/chat?search=tea",
            "/chat/votes",
            "/nowhere",
            "/annotate",
            "/annotate/fine",
            "/annotate/pairs",
            "/annotate/likert",
            "/annotate/pairs/results",
            "/annotate/differ/adjudicate/1",
            "/runs",
            "/runs/new",
            "/runs/new?method=grpo",
            "/runs/new?from=tea/a",
            "/runs?group=method&column=step&column=size&column=note&sort=size",
            "/runs/delete?run=tea/a",
            "/runs/show?run=tea/a",
            "/runs/show?run=tea/a&run=tea/b",
            "/runs/completions?run=tea/a",
            "/runs/completions?run=game",
            "/annotate/differ/results",
            "/runs/completions?run=tea/a&step=2&before=1",
            "/runs/completions?run=tea/a&step=2&colors=advantage",
            "/runs/completions?run=tea/a&model=gpt2",
        ] {
            browser.go(&format!("http://{}{path}", server.host()));
            browser.eval("document.querySelectorAll('details').forEach(e => { e.open = true })");
            if path.starts_with("/annotate/") && !path.ends_with("results") {
                browser.wait("document.querySelector('#asked section')");
            }
            if path.starts_with("/runs/show") {
                browser.wait("document.querySelector('#plot svg')");
            }
            if path == "/annotate/fine" {
                browser.eval("document.getElementById('missing').click()");
            }
            if path == "/chat/1" {
                browser.click("[data-tokens]");
                browser.wait("document.querySelector('.token')");
            }
            found
                .extend(faults(&mut browser, &axe).into_iter().map(|fault| format!("{path}, dark {is_dark}: {fault}")));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

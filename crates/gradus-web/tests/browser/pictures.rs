//! Takes screenshots of the pages for the documentation. They are written to FOLDER if `GRADUS_PICTURES=FOLDER` is set.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use gradus_web::Role;

use crate::annotate;
use crate::chat::{begin, speak};
use crate::client::{Server, classifier, dense, folder};
use crate::driver::Browser;
use crate::recorder::Recorder;
use crate::rich;
use crate::runs;
use crate::skip::skipped;

#[test]
fn pictures_of_all_pages() {
    let Some(to) = std::env::var_os("GRADUS_PICTURES").map(PathBuf::from) else {
        return skipped("pictures", "GRADUS_PICTURES names no folder");
    };
    let Some(mut browser) = Browser::open() else { return };
    std::fs::create_dir_all(&to).expect("a folder");
    let folder = folder(&["gpt2", "qwen3", "qwen3-reward"]);
    let server = Server::with(folder.path(), IpAddr::from([127, 0, 0, 1]), Some(Arc::new(Recorder::default())));
    begin(&mut browser, &server, &[("model", "gpt2"), ("judge", "qwen3-reward"), ("system", "Be kind.")]);
    speak(&mut browser, "Which tea is good in the morning?");
    rich::add_answer(folder.path(), rich::HELPFUL);
    begin(&mut browser, &server, &[("model", "gpt2"), ("judge", "qwen3-reward"), ("max_tokens", "40")]);
    speak(&mut browser, "And which cup?");
    begin(&mut browser, &server, &[("model", "gpt2"), ("other", "qwen3"), ("judge", "qwen3-reward"), ("blind", "")]);
    speak(&mut browser, "Which tea is good in the morning?");
    classifier(folder.path(), "marks", ["O", "NF-ERR", "F-ERR"]);
    dense(folder.path(), "tea/ppo", "marks");
    begin(&mut browser, &server, &[("model", "gpt2"), ("judge", "tea/ppo (its reward)"), ("max_tokens", "20")]);
    speak(&mut browser, "Which tea?");
    for side in ["left", "right", "left"] {
        begin(&mut browser, &server, &[("model", "gpt2"), ("other", "qwen3"), ("max_tokens", "8")]);
        speak(&mut browser, "Which cup?");
        browser.click(&format!("[data-vote={side}]"));
        browser.wait("document.querySelector('[data-vote][aria-pressed=true]')");
    }
    let take = |browser: &mut Browser, name: &str| {
        std::fs::write(to.join(format!("{name}.png")), browser.picture()).expect("written");
    };
    for (project, labels) in [("fine", "fine-grained"), ("pairs", "comparison"), ("likert", "likert-imdb")] {
        annotate::project(folder.path(), project, labels, 1);
    }
    runs::run(folder.path(), "tea/a", "dpo", 2.0, "1e-5");
    runs::run(folder.path(), "tea/b", "sft", 3.0, "2e-5");
    runs::completions(folder.path(), "tea/a");
    runs::run(folder.path(), "game", "grpo", 2.0, "1e-5");
    runs::episode(folder.path(), "game");
    annotate::differ(folder.path(), "differ");
    annotate::sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    let pages = [
        ("overview", "/"),
        ("chats", "/chat"),
        ("tokens", "/chat/2"),
        ("chat", "/chat/1"),
        ("blind", "/chat/3"),
        ("judged", "/chat/4"),
        ("ranking", "/chat/votes"),
        ("projects", "/annotate"),
        ("spans", "/annotate/fine"),
        ("comparison", "/annotate/pairs"),
        ("scales", "/annotate/likert"),
        ("results", "/annotate/pairs/results"),
        ("decide", "/annotate/differ/adjudicate/1"),
        ("decided-results", "/annotate/differ/results"),
        ("error", "/nowhere"),
        ("episodes", "/runs/completions?run=game"),
        ("runs", "/runs"),
        ("goals", "/runs/new"),
        ("new-run", "/runs/new?method=grpo"),
        ("delete", "/runs/delete?run=tea/a"),
        ("run", "/runs/show?run=tea/a"),
        ("compare", "/runs/show?run=tea/a&run=tea/b"),
        ("completions", "/runs/completions?run=tea/a"),
        ("advantages", "/runs/completions?run=tea/a&step=2"),
        ("beside", "/runs/completions?run=tea/a&step=2&before=1&sort=reward&order=down"),
    ];
    for (name, path) in pages {
        for (look, width, is_dark) in
            [("", 1440, false), ("-dark", 1440, true), ("-narrow", 390, false), ("-narrow-dark", 390, true)]
        {
            browser.dark(is_dark);
            browser.size(width, if width == 390 { 844 } else { 900 }, width == 390);
            browser.go(&format!("http://{}{path}", server.host()));
            if ["spans", "comparison", "scales", "decide"].contains(&name) {
                browser.wait("document.querySelector('#asked section')");
            }
            if ["run", "compare"].contains(&name) {
                browser.wait("document.querySelector('#plot svg')");
            }
            if name == "spans" {
                annotate::mark(&mut browser);
            }
            if name == "tokens" {
                browser.click("[data-tokens]");
                browser.wait("document.querySelector('.token')");
            }
            take(&mut browser, &format!("{name}{look}"));
        }
    }

    // An empty folder.
    let empty = tempfile::tempdir().expect("a folder");
    let server = Server::with(empty.path(), IpAddr::from([127, 0, 0, 1]), Some(Arc::new(Recorder::default())));
    for (name, path) in
        [("empty", "/"), ("empty-chat", "/chat"), ("empty-annotate", "/annotate"), ("empty-runs", "/runs")]
    {
        for (look, width, is_dark) in [("", 1440, false), ("-narrow-dark", 390, true)] {
            browser.dark(is_dark);
            browser.size(width, if width == 390 { 844 } else { 900 }, width == 390);
            browser.go(&format!("http://{}{path}", server.host()));
            take(&mut browser, &format!("{name}{look}"));
        }
    }
}

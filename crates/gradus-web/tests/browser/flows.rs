//! Tests the main tasks at desktop, tablet and phone widths, in light and dark mode. No page may scroll sideways, no script may report an
//! error, and axe-core must find no fault.

use std::fs;
use std::net::IpAddr;
use std::sync::Arc;

use gradus_web::Role;

use crate::accessible::{axe, faults};
use crate::annotate;
use crate::chat::settled;
use crate::client::{Server, folder};
use crate::driver::Browser;
use crate::recorder::Recorder;
use crate::rich;
use crate::runs;

/// Faults found on the pages.
struct Check {
    axe: Option<String>,
    place: String,
    found: Vec<String>,
}

impl Check {
    /// Checks the current page.
    fn page(&mut self, browser: &mut Browser, what: &str) {
        let wide = browser.eval("[document.documentElement.scrollWidth, innerWidth]");
        if wide[0].as_u64() > wide[1].as_u64() {
            self.found.push(format!("{} {what}: {} wide", self.place, wide[0]));
        }
        if let Some(axe) = &self.axe {
            self.found.extend(faults(browser, axe).into_iter().map(|fault| format!("{} {what}: {fault}", self.place)));
        }
    }
}

#[test]
fn every_flow_works_at_every_width_in_both_looks() {
    let Some(mut browser) = Browser::open() else { return };
    let mut check = Check { axe: axe(), place: String::new(), found: Vec::new() };
    let folder = folder(&["gpt2", "qwen3", "qwen3-reward"]);
    let server = Server::with(folder.path(), IpAddr::from([127, 0, 0, 1]), Some(Arc::new(Recorder::default())));
    let at = |path: &str| format!("http://{}{path}", server.host());
    runs::run(folder.path(), "tea/a", "dpo", 2.0, "1e-5");
    runs::run(folder.path(), "tea/b", "sft", 3.0, "2e-5");
    fs::write(folder.path().join("pairs.jsonl"), "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n")
        .expect("written");
    annotate::sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    let looks = [1440, 768, 390].into_iter().flat_map(|width| [(width, false), (width, true)]);
    for (round, (width, is_dark)) in looks.enumerate() {
        check.place = format!("{width}, dark {is_dark}:");
        browser.size(width, if width == 390 { 844 } else { 900 }, width == 390);
        browser.dark(is_dark);
        browser.go(&at("/"));
        check.page(&mut browser, "overview");

        // Chat: send the first message, compare two answers, vote.
        browser.click("a[href='/chat']");
        browser.wait("document.getElementById('first')");
        check.page(&mut browser, "new conversation");
        browser.eval(
            "document.getElementById('other').value = 'qwen3'; document.getElementById('max_tokens').value = '8'; \
             document.getElementById('first').focus(); window.isLeft = true",
        );
        browser.type_text(&format!("The tea {round}"));
        browser.click(".chat form button.main");
        browser.loaded();
        browser.wait("document.querySelectorAll('.answer .remark').length === 2");
        settled(&mut browser);
        browser.click("[data-vote=left]");
        browser.wait("document.querySelector('[data-vote=left][aria-pressed=true]')");
        rich::add_answer(folder.path(), rich::HELPFUL);
        browser.go(&at("/chat/1"));
        check.page(&mut browser, "conversation");
        browser.go(&at("/chat/votes"));
        assert!(browser.text("main").contains("Comparisons"), "{}", browser.text("main"));
        check.page(&mut browser, "votes");

        // Annotation: complete and submit a task, and check that the results count it.
        let project = format!("likert-{round}");
        annotate::project(folder.path(), &project, "likert-imdb", 1);
        annotate::next(&mut browser, &server, &project);
        let scales = browser.eval("document.querySelectorAll('.scale').length").as_u64().expect("a number");
        for scale in 0..scales {
            browser.eval(&format!(
                "document.querySelectorAll('.scale')[{scale}].querySelector('input[value=\"3\"]').click()"
            ));
        }
        browser.wait("document.getElementById('status').dataset.state === 'saved' && !document.getElementById('submit').disabled");
        check.page(&mut browser, "task");
        browser.eval("window.isLeft = true");
        browser.click("#submit");
        browser.loaded();
        browser.go(&at(&format!("/annotate/{project}/results")));
        check.page(&mut browser, "results");
        browser.go(&at("/annotate"));
        check.page(&mut browser, "projects");

        // Runs: sort the list, open a run, enlarge another metric, compare two runs.
        browser.go(&at("/runs"));
        browser.eval("window.isLeft = true");
        browser.click("thead a[href*='sort=step']");
        browser.loaded();
        assert_eq!(browser.eval("document.querySelector('th[aria-sort]').innerText.trim()"), "Step ▼");
        check.page(&mut browser, "runs");
        browser.eval("window.isLeft = true");
        browser.click("a[href='/runs/show?run=tea/a']");
        browser.loaded();
        browser.wait("document.querySelector('.panel[data-metric=kl] svg')");
        browser.click(".panel[data-metric=kl]");
        browser.wait("new URLSearchParams(location.search).get('metric') === 'kl'");
        check.page(&mut browser, "run");
        browser.go(&at("/runs/show?run=tea/a&run=tea/b"));
        browser.wait("document.querySelectorAll('#plot polyline').length === 2");
        check.page(&mut browser, "comparison");

        // New run: choose the goal, fill in the form, see the plan.
        browser.go(&at("/runs/new"));
        check.page(&mut browser, "goals");
        browser.eval("window.isLeft = true");
        browser.click(".goal a[href='/runs/new?method=dpo']");
        browser.loaded();
        assert_eq!(browser.eval("document.getElementById('data').value"), "pairs.jsonl", "the file that fits");
        check.page(&mut browser, "form");
        browser.eval("window.isLeft = true");
        browser.click(".run-form button.main");
        browser.loaded();
        assert!(browser.text("main").contains("Start dpo-gpt2-1"), "{}", browser.text("main"));
        check.page(&mut browser, "plan");
    }
    // First, because a file that did not load explains much of the rest.
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert_eq!(check.found, Vec::<String>::new());
}

//! Runs from the pages in a browser, with the real program: planned, started, stopped, resumed after the server was killed, exported,
//! deleted.

use std::fs;

use serde_json::{Value, json};

use crate::driver::Browser;
use crate::harness::{CliTest, fixture_model, wait_until};
use crate::serve::serve;

/// Rows of the data. Runs use many steps, so that they are still running when the test looks at them.
const TEXTS: &str = "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n";

fn test() -> CliTest {
    let test = CliTest::with("tea.jsonl", TEXTS);
    let from = fixture_model("gpt2");
    for entry in fs::read_dir(&from).expect("a fixture") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        fs::create_dir_all(test.path().join("gpt2")).expect("a folder");
        fs::copy(&path, test.path().join("gpt2").join(name)).expect("copied");
    }
    test
}

/// Fills fields of a form, and submits it with the matching button.
fn fill(browser: &mut Browser, fields: &[(&str, &str)], button: &str) {
    for (name, value) in fields {
        let set = format!(
            "(() => {{ const e = document.querySelector('main [name=' + {} + ']:not([type=hidden])'); \
             e.closest('details')?.setAttribute('open', ''); e.value = {}; return e.value }})()",
            json!(json!(name).to_string()),
            json!(value)
        );
        assert_eq!(browser.eval(&set), *value, "{name} takes {value}");
    }
    browser.eval("window.isLeft = true");
    browser.click(button);
    browser.loaded();
}

fn state(test: &CliTest, run: &str) -> Value {
    let text = fs::read_to_string(test.path().join(run).join("state.json")).unwrap_or_default();
    serde_json::from_str::<Value>(&text).unwrap_or_default()["state"].clone()
}

fn becomes(test: &CliTest, run: &str, expected: &str) {
    wait_until(&format!("{run} is {expected}"), || state(test, run) == expected);
}

#[test]
fn a_run_is_planned_begun_stopped_gone_on_with_exported_and_deleted() {
    let Some(mut browser) = Browser::open() else { return };
    let test = test();
    let (server, ready) = serve(&test, &["--allow-training"]);
    let at = |ready: &Value, path: &str| {
        format!("{}{path}", ready["url"].as_str().expect("an address").trim_end_matches('/'))
    };
    let killed = at(&ready, "/");
    browser.go(&at(&ready, "/runs"));
    browser.eval("window.isLeft = true");
    browser.click("a[href='/runs/new']");
    browser.loaded();
    browser.eval("window.isLeft = true");
    browser.click("a[href='/runs/new?method=sft']");
    browser.loaded();

    // An error is shown next to its field, and the input is kept.
    let fields = [("model", "gpt2"), ("data", "tea.jsonl"), ("learning-rate", "-1"), ("name", "tea")];
    fill(&mut browser, &fields, ".run-form button");
    assert!(
        browser.text("[role=alert]").contains("Learning rate: train.learning_rate is -1"),
        "{}",
        browser.text("main")
    );
    assert_eq!(browser.eval("document.getElementById('model').value"), "gpt2");
    let fields = [("learning-rate", "1e-4"), ("max-steps", "100000"), ("batch-size", "1"), ("logging-steps", "1")];
    fill(&mut browser, &fields, ".run-form button");
    let page = browser.text("main");
    assert!(page.contains("The run needs up to") && page.contains("gradus sft --model"), "{page}");
    picture(&mut browser, "plan");
    browser.eval("window.isLeft = true");
    browser.click("form[action='/runs/start'] button");
    browser.loaded();

    // The run page updates by itself.
    browser.wait("document.querySelector('[data-state=running]')");
    browser.wait(
        "Number(document.getElementById('step').textContent) > 3 && document.getElementById('progress').value > 3",
    );
    assert!(test.read("tea/config.yml").contains("max_steps: 100000 # set"));
    picture(&mut browser, "training");

    // The server is killed. The run continues, and another server finds and stops it.
    drop(server);
    assert_eq!(state(&test, "tea"), "running");
    let (_server, ready) = serve(&test, &["--allow-training"]);
    browser.go(&at(&ready, "/runs/show?run=tea"));
    assert!(browser.text("[data-state]").contains("running"));
    browser.eval("window.isLeft = true");
    browser.click("form[action='/runs/stop'] button");
    browser.loaded();
    becomes(&test, "tea", "interrupted");
    browser.wait("document.querySelector('[data-state=interrupted]')");
    let steps = fs::read_dir(test.path().join("tea/checkpoints")).expect("a folder").count();
    assert!(steps > 0, "it left a checkpoint");

    // The run is resumed and soon finishes.
    let step: usize = browser.text("#step").parse().expect("a step");
    fill(&mut browser, &[("max_steps", &(step + 5).to_string())], "form[action='/runs/resume'] button");
    becomes(&test, "tea", "finished");
    browser.wait("document.querySelector('[data-state=finished]')");
    assert_eq!(browser.text("#step"), (step + 5).to_string());

    // Its model is exported to the folder and can answer.
    fill(&mut browser, &[("snapshot", "model"), ("name", "warm")], "form[action='/runs/export'] button");
    assert!(browser.text("main").contains("models/warm"));
    assert!(test.path().join("models/warm/config.json").is_file());

    browser.go(&at(&ready, "/runs/show?run=tea"));
    browser.eval("window.isLeft = true");
    browser.click("a[href='/runs/delete?run=tea']");
    browser.loaded();
    fill(&mut browser, &[("confirm", "tea")], "form[action='/runs/delete'] button");
    assert!(!test.path().join("tea").exists() && test.path().join("models/warm").is_dir());
    // Only requests to the killed server have failed. How the browser names such a failure depends on when the server went away.
    let complaints: Vec<String> =
        browser.complaints().into_iter().filter(|complaint| !complaint.contains(&killed)).collect();
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn what_two_models_answer_becomes_a_blind_comparison() {
    let Some(mut browser) = Browser::open() else { return };
    let test = test();
    let row = |prompt: &str| format!("{}\n", json!({ "prompt": prompt, "chosen": "Warm.", "rejected": "Cold." }));
    test.write("rows.jsonl", &[row("The tea is"), row("A cup of")].concat());
    test.succeeds(&["annotate", "new", "tea", "--data", "rows.jsonl", "--labels", "comparison"]);
    let token = test.succeeds(&["annotate", "invite", "ada", "--role", "owner"]);
    let (_server, ready) = serve(&test, &["--allow-training"]);
    let url = ready["url"].as_str().expect("an address").trim_end_matches('/').to_owned();
    browser.go(&format!("{url}/annotate"));
    fill(&mut browser, &[("name", "ada"), ("token", token.trim())], "form[action='/annotate/enter'] button");
    browser.go(&format!("{url}/annotate/tea/results"));
    let fields = [("one", "gpt2"), ("other", "gpt2"), ("prompts", "2"), ("name", "blind")];
    fill(&mut browser, &fields, "form[action='/annotate/tea/compare'] button");
    wait_until("the comparison is there", || {
        browser.reload();
        browser.eval("Boolean(document.querySelector('a[href=\"/annotate/blind\"]'))") == true
    });
    browser.go(&format!("{url}/annotate/blind"));
    browser.wait("document.querySelectorAll('.pair .prediction').length === 2");
    let page = browser.text("main");
    assert!(page.contains("The tea is") && !page.contains("gpt2"), "who answers is not said: {page}");
    test.succeeds(&["annotate", "export", "blind", "--form", "raw", "--output", "raw.jsonl"]);
    let row: Value = serde_json::from_str(test.read("raw.jsonl").lines().next().expect("a row")).expect("JSON");
    assert_eq!(row["models"].as_array().map(Vec::len), Some(2));
}

/// Writes a screenshot into the directory `GRADUS_PICTURES`, if it is set.
fn picture(browser: &mut Browser, name: &str) {
    let Some(to) = std::env::var_os("GRADUS_PICTURES") else { return };
    let path = std::path::PathBuf::from(to).join(format!("{name}.png"));
    fs::write(path, browser.picture()).expect("written");
}

//! Tests the pages of runs: list, filters, tags, comparison, completions and live updates.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use gradus::run::RolloutWriter;
use gradus::run::database::{Record, RolloutTable, Segment};
use serde_json::{Value, json};

use crate::client::{Server, Visitor, folder};
use crate::driver::Browser;
use crate::recorder::Recorder;

/// Creates a run of a few steps whose loss falls from `loss`.
pub fn run(at: &Path, name: &str, method: &str, loss: f64, rate: &str) {
    let path = at.join(name);
    fs::create_dir_all(&path).expect("a folder");
    let config = format!(
        "# Written by gradus 0.1.0.\nmodel: gpt2 # set\ndata: tea.jsonl # set\nmethod:\n  {method}:\n    beta: 0.1\ntrain:\n  \
         learning_rate: {rate} # set\n  max_steps: 40\n"
    );
    fs::write(path.join("config.yml"), config).expect("written");
    let row = |step: usize| {
        let noise = ((step * 7919) % 13) as f64 / 40.0;
        json!({ "step": step, "loss": loss / (1.0 + step as f64 / 8.0) + noise, "kl": step as f64 / 100.0 })
    };
    let rows: String = (1..=40).map(|step| format!("{}\n", row(step))).collect();
    fs::write(path.join("metrics.jsonl"), rows).expect("written");
}

/// Writes completions of two steps, one of them hostile.
pub fn completions(folder: &Path, name: &str) {
    let mut writer = RolloutWriter::open(&folder.join(name).join("rollouts.sqlite"), 0).expect("a file");
    let token = |(characters, value)| Segment { characters, value };
    for step in [1, 2] {
        let record = |i: usize| Record {
            step,
            prompt_index: i,
            prompt: format!("Is tea {i} warm?"),
            completion: if i == 3 { "<b>no</b>\u{1b}[2J".into() } else { format!("It is warm, {step} times.") },
            reward: Some(i as f64 / 2.0 - 1.0),
            advantage: Some(if i == 3 { -1.0 } else { 0.5 }),
            // For `It is warm`, one advantage per word. For the hostile completion, the segments cover the part that looks like a tag.
            advantages: match (step, i) {
                (2, 2) => [(0..2, 0.25), (2..5, -1.5), (5..10, 3.0)].map(token).to_vec(),
                (2, 3) => [(0..3, 1.0), (3..5, 0.5)].map(token).to_vec(),
                _ => Vec::new(),
            },
            kl: Some(0.01),
            length: 6,
            stop_reason: "stop_id".into(),
            ..Record::default()
        };
        writer.append(RolloutTable::Train, (0..30).map(record).collect()).expect("appended");
    }
    writer.finish().expect("written");
}

/// Writes an episode of two turns.
pub fn episode(folder: &Path, name: &str) {
    let turn = |text: &str, reply: Value, is_read: bool, reward: Option<f64>| json!({ "text": text, "replies": [reply], "reward": reward, "is_done": !is_read, "metrics": {}, "is_read": is_read });
    let tool = json!({ "role": "tool", "name": "compare", "id": null, "content": "lower" });
    let user = json!({ "role": "user", "content": "right" });
    let turns = [turn("<b>50</b>", tool, true, Some(0.5)), turn("25", user, false, None)];
    let episode = json!({ "turns": turns, "end": "done", "reward": 1.0 });
    let record = Record {
        step: 1,
        prompt: "Guess the number.".into(),
        completion: "<b>50</b>\nlower\n25".into(),
        reward: Some(1.5),
        length: 9,
        stop_reason: "stop_id".into(),
        episode: Some(serde_json::from_value(episode).expect("an episode")),
        ..Record::default()
    };
    let mut writer = RolloutWriter::open(&folder.join(name).join("rollouts.sqlite"), 0).expect("a file");
    writer.append(RolloutTable::Train, vec![record]).expect("appended");
    writer.finish().expect("written");
}

#[test]
fn runs_are_listed_filtered_tagged_compared_and_followed() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2", "qwen3"]);
    run(folder.path(), "tea/first", "dpo", 2.0, "1e-5");
    run(folder.path(), "tea/second <b>", "sft", 3.0, "2e-5");
    completions(folder.path(), "tea/first");
    let server = Server::over(folder.path());
    let at = |path: &str| format!("http://{}{path}", server.host());
    browser.go(&at("/runs"));
    assert!(browser.text("main").contains("2 of 2 runs") && browser.text("main").contains("tea/second <b>"));
    browser.go(&at("/runs?method=dpo"));
    assert!(browser.text("main").contains("1 of 2 runs"));

    // Add a tag through the form.
    browser.click("a[href='/runs/show?run=tea/first']");
    browser.wait("location.pathname === '/runs/show' && document.querySelector('#plot svg')");
    browser.eval("document.getElementById('add').value = 'good'; window.isLeft = true");
    browser.click("form[action='/runs/tag'] button:not([aria-label])");
    browser.loaded();
    assert!(browser.text(".tag").contains("good"));
    let kept: Value =
        serde_json::from_slice(&fs::read(folder.path().join("tea/first/tags.json")).expect("a file")).expect("JSON");
    assert_eq!(kept["tags"], json!(["good"]));
    browser.go(&at("/runs?tag=good"));
    assert!(browser.text("main").contains("1 of 2 runs"));

    // Compare two runs: the page shows their differences, and the plotted numbers.
    browser.go(&at("/runs"));
    browser
        .eval("document.querySelectorAll('input[name=run]').forEach(e => { e.checked = true }); window.isLeft = true");
    browser.click("form[action='/runs/show'] button");
    browser.loaded();
    browser.wait("document.querySelectorAll('#plot polyline').length === 2");
    let page = browser.text("main");
    assert!(page.contains("learning_rate") && page.contains("2e-5") && !page.contains("max_steps"), "{page}");
    assert_eq!(browser.eval("document.querySelectorAll('#values tbody tr').length"), 40);
    browser.eval("document.getElementById('values').closest('details').open = true");
    assert_eq!(browser.text("#values tbody tr:last-child td:first-child"), "40");
    let raw = browser.text("#values tbody tr:last-child td:last-child");
    browser.eval(
        "(() => { const e = document.getElementById('smooth'); e.value = 0.9; e.dispatchEvent(new Event('input')) })()",
    );
    assert_ne!(browser.text("#values tbody tr:last-child td:last-child"), raw, "smoothed");
    browser.eval(
        "(() => { const e = document.getElementById('smooth'); e.value = 0; e.dispatchEvent(new Event('input')) })()",
    );
    // Hovering shows the values of a step, and dragging zooms.
    let place = browser.eval("(() => { const r = document.querySelector('#plot svg').getBoundingClientRect(); return [r.x, r.y, r.width, r.height] })()");
    let number = |i: usize| place[i].as_f64().expect("a place");
    let (x, y) = (number(0) + number(2) / 2.0, number(1) + number(3) / 2.0);
    browser.mouse("mouseMoved", x, y);
    browser.wait("/step (19|2[01])/.test(document.getElementById('legend').textContent)");
    browser.mouse("mousePressed", x, y);
    browser.call(
        "Input.dispatchMouseEvent",
        json!({ "type": "mouseMoved", "x": x + 200.0, "y": y, "button": "left", "buttons": 1 }),
    );
    browser.mouse("mouseReleased", x + 200.0, y);
    browser
        .wait("!document.getElementById('whole').hidden && document.querySelectorAll('#values tbody tr').length < 20");
    browser.click("#whole");
    browser.wait("document.querySelectorAll('#values tbody tr').length === 40");
    browser.click("#log");
    browser.wait("document.querySelectorAll('#plot polyline').length === 2");

    // Completions are shown as text, not interpreted.
    browser.go(&at("/runs/completions?run=tea/first&step=2&sort=reward&order=down"));
    assert!(browser.text("main").contains("1 to 25 of 30"));
    assert_eq!(browser.text("tbody tr:first-child td:nth-child(4)"), "13.50");
    browser.go(&at("/runs/completions?run=tea/first&text=Is+tea+3+"));
    assert!(browser.text("main").contains("<b>no</b>\\u{1b}[2J") && browser.text("main").contains("1 to 2 of 2"));
    assert_eq!(browser.eval("document.querySelectorAll('td b').length"), 0);
    // Text is colored by the advantages of tokens if they are stored, and otherwise by the completion's own advantage.
    let colors = "[...document.querySelectorAll('tbody tr:nth-child(3) .worth')].map(e => [e.textContent, e.title, e.className])";
    browser.go(&at("/runs/completions?run=tea/first&step=2"));
    let expected = json!([
        ["It", "+0.2500", "worth better-1"],
        [" is", "-1.500", "worth worse-2"],
        [" warm", "+3.000", "worth better-3"]
    ]);
    assert_eq!(browser.eval(colors), expected);
    assert_eq!(browser.text("tbody tr:nth-child(4) .worth"), "<b>");
    assert_eq!(browser.eval("document.querySelectorAll('td b').length"), 0);
    assert!(browser.text("main").contains("Colors: the advantage of a token, from -3.000 to +3.000."));
    browser.eval(
        "document.getElementById('step').value = '1'; document.getElementById('colors').value = 'advantage'; window.isLeft = true",
    );
    browser.click("form.filter button");
    browser.loaded();
    assert_eq!(browser.eval(colors), json!([["It is warm, 1 times.", "+0.5000", "worth better-2"]]));
    browser.go(&at("/runs/completions?run=tea/first&step=2&colors=none"));
    assert_eq!(browser.eval(colors), json!([]));
    // Show the tokens of a completion as a model sees them.
    browser.go(&at("/runs/completions?run=tea/first&step=2&model=gpt2"));
    browser.click("button[data-which]");
    browser.wait("document.querySelector('.completion .token')");
    assert_eq!(browser.text("td .completion"), "It is warm, 2 times.");
    let titles = browser.eval("[...document.querySelectorAll('.completion .token')].map(e => e.dataset.about)");
    let titles: Vec<String> = serde_json::from_value(titles).expect("titles");
    let ids = server.post("/v1/completions", &json!({ "model": "gpt2", "prompt": "Is tea 0 warm?It is warm, 2 times.", "max_tokens": 0, "echo": true, "logprobs": 0 }));
    let all = ids.json()["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("values").clone();
    let own: Vec<String> = all[all.len() - titles.len()..]
        .iter()
        .map(|value| format!("log-probability {:.3},", value.as_f64().expect("a number")))
        .collect();
    assert!(titles.iter().zip(&own).all(|(title, own)| title.starts_with(own)), "{titles:?} {own:?}");
    // Information about a token is also available by keyboard and touch.
    browser.eval("document.querySelector('.completion:has(.token)').focus()");
    browser.key("ArrowRight", 0);
    assert_eq!(browser.text(".about"), titles[0]);
    browser.key("End", 0);
    assert_eq!(browser.text(".about"), titles[titles.len() - 1]);
    assert_eq!(browser.text("#status"), titles[titles.len() - 1]);
    browser.key("Escape", 0);
    browser.wait("document.querySelector('.about').hidden");
    browser.tap(".completion .token");
    browser.wait("!document.querySelector('.about').hidden");
    assert_eq!(browser.text(".about"), titles[0]);
    browser.click("button[data-which]");
    browser.wait("!document.querySelector('.completion .token') && document.querySelector('button[data-which][aria-pressed=false]')");
    let visitor = Visitor::of(&server);
    let ask = |path: &str| visitor.script(path, &json!({}));
    // A model compared with itself shows no difference. If another tokenizer splits the text differently, the page says so.
    let which = "run=tea/first&table=training&step=2&prompt=0&place=0&model=gpt2";
    assert_eq!(server.get(&format!("/runs/tokens?{which}")).status, 405, "no link of another site loads a model");
    let same = ask(&format!("/runs/tokens?{which}&against=gpt2")).json();
    assert!(
        same.as_array()
            .is_some_and(|tokens| tokens.len() == titles.len() && tokens.iter().all(|token| token[1] == token[2]))
    );
    assert_eq!(ask(&format!("/runs/tokens?{which}&against=/etc")).status, 422);
    for wrong in [
        "run=tea/first&step=2",
        "run=tea/first&table=training&step=7&prompt=0&place=0&model=gpt2",
        "run=../x&model=gpt2",
    ] {
        assert_eq!(ask(&format!("/runs/tokens?{wrong}")).status, 404, "{wrong}");
    }
    // Compared with an earlier step, the page shows how the texts differ.
    browser.go(&at("/runs/completions?run=tea/first&step=2&before=1"));
    assert_eq!(browser.text("tbody tr:first-child del").trim(), "1");
    assert_eq!(browser.text("tbody tr:first-child ins").trim(), "2");
    assert_eq!(browser.eval("document.querySelectorAll('td b').length"), 0);
    assert_eq!(browser.complaints(), Vec::<String>::new());

    // Runs outside the folder are not reachable.
    let outside = tempfile::tempdir().expect("a folder");
    run(outside.path(), "other", "sft", 1.0, "1");
    let absolute = outside.path().join("other").to_string_lossy().into_owned();
    for name in ["../other", &absolute, "tea", "first", "", "tea/../tea/first"] {
        for what in ["show", "series", "completions"] {
            assert_eq!(server.get(&format!("/runs/{what}?run={name}")).status, 404, "{what} {name}");
        }
    }
}

#[test]
fn the_list_is_sorted_grouped_and_has_the_columns_that_were_chosen() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    for (name, method, steps) in [("a", "dpo", 3), ("b", "sft", 1), ("c", "dpo", 2)] {
        run(folder.path(), name, method, 2.0, "1e-5");
        let rows: String = (1..=steps).map(|step| format!("{}\n", json!({ "step": step, "loss": 1.0 }))).collect();
        fs::write(folder.path().join(name).join("metrics.jsonl"), rows).expect("written");
    }
    let server = Server::over(folder.path());
    let names = "[...document.querySelectorAll('tbody a')].map(e => e.textContent)";
    let heads = "[...document.querySelectorAll('thead th')].map(e => e.innerText.trim())";
    browser.go(&format!("http://{}/runs", server.host()));
    for (link, expected) in [("step", ["a", "c", "b"]), ("step", ["b", "c", "a"]), ("run", ["a", "b", "c"])] {
        browser.eval("window.isLeft = true");
        browser.click(&format!("thead a[href*='sort={link}']"));
        browser.loaded();
        assert_eq!(browser.eval(names), json!(expected), "{link}");
    }
    // Choose columns and groups through the form. The sort order is kept.
    browser.eval(
        "document.querySelector('.columns').open = true; document.querySelectorAll('.columns input').forEach(e => { e.checked = ['step', 'size'].includes(e.value) });          document.getElementById('group').value = 'method'; window.isLeft = true",
    );
    browser.click("form.filter button");
    browser.loaded();
    assert_eq!(browser.eval(heads), json!(["Run ▲", "Step", "Size"]));
    let groups = browser.eval("[...document.querySelectorAll('.group')].map(e => e.innerText)");
    assert_eq!(groups, json!(["Method: dpo (2)", "Method: sft (1)"]));
    assert_eq!(browser.eval(names), json!(["a", "c", "b"]));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn panels_show_all_metrics_and_the_address_what_is_chosen() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    run(folder.path(), "tea", "grpo", 2.0, "1e-5");
    let row = |step: usize| {
        let mut row = json!({
            "step": step, "loss": 1.0, "reward": step as f64 / 10.0, "objective/kl": 0.5, "completions/mean_length": 20.0, "entropy": 1.0,
            "num_tokens": 1000 * step, "tokens_per_s": 100.0,
        });
        (0..8).for_each(|i| row[format!("clip_ratio/{i}")] = json!(0.1));
        row
    };
    let rows: String = (1..=20).map(|step| format!("{}\n", row(step))).collect();
    fs::write(folder.path().join("tea/metrics.jsonl"), rows).expect("written");
    let (_, mut claim) =
        gradus::run::RunDir::claim(folder.path().join("tea"), gradus::run::Existing::Resume).expect("a run");
    claim.begin().expect("begun");
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/runs/show?run=tea", server.host()));
    browser.wait("document.querySelector('.panel svg')");
    let tiles = browser.eval("[...document.querySelectorAll('.tile')].map(e => e.innerText.split('\\n').filter(Boolean).slice(0, 2).join(' '))");
    // 1000 tokens per step at 100 tokens per second make 10 s per step.
    assert_eq!(tiles, json!(["Reward 2", "KL 0.5", "Length 20", "Loss 1", "Time left 3 min"]));
    let panels = "[...document.querySelectorAll('#panels .panel-name')].map(e => e.textContent)";
    assert_eq!(browser.eval(panels), json!(["reward", "objective/kl", "completions/mean_length", "loss", "entropy"]));
    // The other metrics appear on request or by search.
    browser.eval("document.getElementById('others').parentElement.querySelector('summary').click()");
    browser.wait("document.querySelectorAll('#others .panel').length === 10");
    browser.eval("document.getElementById('find').focus()");
    browser.type_text("clip_ratio/3");
    browser.wait("document.querySelectorAll('#panels .panel').length === 1");
    browser.click("#panels .panel");
    browser.wait("document.getElementById('metric').value === 'clip_ratio/3'");
    browser.eval(
        "(() => { const e = document.getElementById('smooth'); e.value = 0.9; e.dispatchEvent(new Event('input')) })(); document.getElementById('log').click()",
    );
    // The raw line is drawn behind the smoothed one.
    assert_eq!(browser.eval("document.querySelectorAll('#plot polyline.raw').length"), 1);
    let address = browser.eval("location.search").as_str().expect("a text").to_owned();
    for part in ["run=tea", "metric=clip_ratio/3", "smooth=0.9", "log=1", "find=clip_ratio/3"] {
        assert!(address.contains(part), "{address}");
    }
    // The address alone reproduces the view.
    browser.go(&format!("http://{}/runs/show{address}", server.host()));
    browser.wait("document.querySelector('#plot polyline.raw')");
    assert_eq!(browser.eval("document.getElementById('metric').value"), "clip_ratio/3");
    assert_eq!(browser.eval("document.querySelectorAll('#panels .panel').length"), 1);
    // The arrow keys read out values.
    browser.eval("document.querySelector('#plot svg').focus()");
    browser.key("Home", 0);
    assert!(browser.text("#status").contains("at step 1"), "{}", browser.text("#status"));
    // The page of a running run redraws its curves every few seconds. The reader's place stays.
    browser.eval("dispatchEvent(new Event('resize'))");
    browser.key("ArrowRight", 0);
    assert!(browser.text("#status").contains("at step 2"), "{}", browser.text("#status"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn ranges_beyond_the_largest_number_are_drawn() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for (name, losses) in [("wide", [1e300, -1e300, 1.7e308, -1.7e308]), ("flat", [1.75e308; 4])] {
        run(folder.path(), name, "grpo", 2.0, "1e-5");
        let row = |(i, loss): (usize, f64)| format!("{}\n", json!({ "step": i + 1, "loss": loss }));
        let rows: String = losses.into_iter().enumerate().map(row).collect();
        fs::write(folder.path().join(name).join("metrics.jsonl"), rows).expect("written");
    }
    let server = Server::over(folder.path());
    for name in ["wide", "flat"] {
        browser.go(&format!("http://{}/runs/show?run={name}&smooth=0&metric=loss", server.host()));
        browser.wait("document.querySelector('#plot polyline')");
        let points = browser.eval("document.querySelector('#plot polyline').getAttribute('points')");
        let points = points.as_str().expect("a text");
        let numbers: Vec<f64> = points.split([' ', ',']).map(|number| number.parse().expect("a number")).collect();
        assert!(numbers.len() == 8 && numbers.iter().all(|number| number.is_finite()), "{points}");
        let heights = [numbers[1], numbers[5], numbers[7]];
        // The first value is in the middle, the third on top and the last at the bottom.
        assert!(name == "flat" || (heights[1] < heights[0] && heights[0] < heights[2]), "{points}");
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

#[test]
fn values_of_the_start_are_not_shown_as_current() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), "tea", "grpo", 2.0, "1e-5");
    let start = json!({ "step": 0, "eval_reward": 0.25, "eval_kl": 0.0, "eval_loss": 3.0 });
    let row =
        |step: usize| json!({ "step": step, "reward": 1234.0 * step as f64, "loss": 1.0, "num_tokens": 100 * step });
    let rows: String = std::iter::once(start).chain((1..=5).map(row)).map(|row| format!("{row}\n")).collect();
    fs::write(folder.path().join("tea/metrics.jsonl"), rows).expect("written");
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/runs/show?run=tea", server.host()));
    browser.wait("document.querySelector('.tile')");
    let tiles = "[...document.querySelectorAll('.tile')].map(e => [...e.children].map(e => e.textContent).join(' '))";
    let expected = json!(["Reward 6170 reward, from 1230", "KL 0 eval_kl at step 0", "Loss 1 loss, from 1"]);
    assert_eq!(browser.eval(tiles), expected);
    assert_eq!(browser.eval("document.getElementById('metric').value"), "reward");
    assert_eq!(browser.eval("location.search"), "?run=tea");
    assert_eq!(browser.text(".panel[data-metric=eval_kl] .panel-last"), "0 at step 0");
    // The start has read no tokens.
    browser.go(&format!("http://{}/runs/show?run=tea&metric=eval_reward&axis=num_tokens", server.host()));
    browser.wait("document.querySelector('#plot circle')");
    assert!(browser.text("#legend").contains("0.25 at 0 tokens"), "{}", browser.text("#legend"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn logarithmic_scales_have_round_ticks() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), "tea", "sft", 2.0, "1e-5");
    let row = |step: i32| json!({ "step": step, "loss": 0.8 + f64::from(step) / 20.0, "grad_norm": 0.03 * 4f64.powi(step), "wide": 10f64.powi(2 * step) });
    let rows: String = (1..=5).map(|step| format!("{}\n", row(step))).collect();
    fs::write(folder.path().join("tea/metrics.jsonl"), rows).expect("written");
    let server = Server::over(folder.path());
    for (metric, expected) in [
        ("loss", json!(["0.85", "0.9", "0.95", "1", "1.05"])),
        ("grad_norm", json!(["0.2", "0.5", "1", "2", "5", "10", "20"])),
        ("wide", json!(["100", "10000", "1.00e+6", "1.00e+8", "1.00e+10"])),
    ] {
        browser.go(&format!("http://{}/runs/show?run=tea&log=1&metric={metric}", server.host()));
        browser.wait("document.querySelector('#plot svg')");
        let ticks =
            browser.eval("[...document.querySelectorAll('#plot .tick[text-anchor=end]')].map(e => e.textContent)");
        assert_eq!(ticks, expected, "{metric}");
    }
}

#[test]
fn a_run_is_duplicated_and_going_back_keeps_what_was_typed() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2", "qwen3"]);
    run(folder.path(), "tea", "dpo", 2.0, "3e-5");
    fs::write(folder.path().join("tea.jsonl"), "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n")
        .expect("written");
    let recorder = Arc::new(Recorder::default());
    let server = Server::with(folder.path(), IpAddr::from([127, 0, 0, 1]), Some(recorder));
    let at = |path: &str| format!("http://{}{path}", server.host());
    let value = |browser: &mut Browser, field: &str| browser.eval(&format!("document.getElementById('{field}').value"));
    browser.go(&at("/runs/show?run=tea"));
    browser.eval("window.isLeft = true");
    browser.click("a[href='/runs/new?from=tea']");
    browser.loaded();
    assert_eq!(value(&mut browser, "learning-rate"), "3e-5");
    assert!(browser.text(".note").contains("model, data"), "these lie elsewhere: {}", browser.text(".note"));

    // The form shows few fields, and the others are found by search.
    browser.go(&at("/runs/new?method=dpo"));
    let shown = "[...document.querySelectorAll('.one-field')].filter(e => e.checkVisibility()).length";
    let few = browser.eval(shown).as_u64().expect("a number");
    assert!((7..=9).contains(&few), "{few}");
    browser.click(".advanced > summary");
    browser.eval("document.getElementById('find-field').focus()");
    browser.type_text("warmup");
    browser.wait("document.getElementById('warmup-steps').checkVisibility()");
    assert!(browser.eval(shown).as_u64().expect("a number") < few + 4);
    // An error is shown next to its field.
    browser.eval("document.getElementById('learning-rate').select()");
    browser.type_text("fast");
    browser.eval("window.isLeft = true");
    browser.click(".run-form button.main");
    browser.loaded();
    assert_eq!(browser.eval("document.querySelector('[aria-invalid=true]').id"), "learning-rate");
    assert!(browser.text("#problem-learning-rate").contains("fast"));
    assert_eq!(value(&mut browser, "learning-rate"), "fast");
    browser.click(".problems a");
    browser.wait("document.activeElement.id === 'learning-rate'");
    browser.eval("document.getElementById('learning-rate').select()");
    browser.type_text("2e-5");
    browser.eval("window.isLeft = true");
    browser.click(".run-form button.main");
    browser.loaded();
    assert!(browser.text("main").contains("--learning-rate 2e-5"));
    // Go back, with the link and with the browser.
    browser.eval("window.isLeft = true");
    browser.click("a[href^='/runs/new?method=dpo&']");
    browser.loaded();
    assert_eq!(value(&mut browser, "learning-rate"), "2e-5");
    browser.eval("document.getElementById('warmup-steps').closest('.advanced').open = true; document.getElementById('warmup-steps').closest('details').open = true");
    browser.eval("document.getElementById('warmup-steps').focus()");
    browser.type_text("7");
    browser.eval("window.isLeft = true");
    browser.click(".run-form button.main");
    browser.loaded();
    browser.eval("history.back()");
    let typed = "document.getElementById('warmup-steps')?.value === '7' && document.getElementById('learning-rate').value === '2e-5'";
    browser.wait(typed);
    // This also works if the browser has not cached the page.
    browser.reload();
    browser.wait(typed);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn curves_grow_while_a_run_goes_on() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (_, mut claim) =
        gradus::run::RunDir::claim(folder.path().join("live"), gradus::run::Existing::Refuse).expect("a run");
    claim.begin().expect("begun");
    let path = folder.path().join("live/metrics.jsonl");
    let mut file = fs::File::create(&path).expect("a file");
    writeln!(file, "{}", json!({ "step": 1, "loss": 2.0 })).expect("written");
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/runs/show?run=live", server.host()));
    browser.wait("document.getElementById('step')?.textContent === '1' && document.querySelector('#plot circle')");
    writeln!(file, "{}", json!({ "step": 2, "loss": 1.5 })).expect("written");
    browser.wait("document.getElementById('step').textContent === '2' && document.querySelector('#plot polyline').getAttribute('points').includes(' ')");
}

#[test]
fn curves_show_what_there_is_and_say_what_they_leave_out() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, rows: &[Value]| {
        run(folder.path(), name, "sft", 1.0, "1e-5");
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(folder.path().join(name).join("metrics.jsonl"), text).expect("written");
    };
    write("one", &[json!({ "step": 1, "loss": 0.0 })]);
    write(
        "gaps",
        &[1.0, 2.0, 0.0, 3.0, 4.0, -1.0, 5.0]
            .iter()
            .enumerate()
            .map(|(i, loss)| json!({ "step": i + 1, "loss": loss }))
            .collect::<Vec<_>>(),
    );
    write("long", &(1..=5000).map(|step| json!({ "step": step, "loss": f64::from(step % 2) })).collect::<Vec<_>>());
    let server = Server::over(folder.path());
    let open = |browser: &mut Browser, name: &str| {
        browser.go(&format!("http://{}/runs/show?run={name}", server.host()));
        browser.wait("document.querySelector('#plot svg')");
    };
    // One value: a dot, and an axis around it without rounding errors.
    open(&mut browser, "one");
    let ticks = browser.eval("[...document.querySelectorAll('#plot .tick')].map(e => e.textContent)");
    let ticks: Vec<String> = serde_json::from_value(ticks).expect("texts");
    assert!(ticks.iter().all(|tick| tick.len() < 6) && ticks.contains(&"0".to_owned()), "{ticks:?}");
    assert_eq!(browser.eval("document.querySelectorAll('#plot circle').length"), 1);
    // On a logarithmic scale, the line breaks at values that cannot be drawn.
    open(&mut browser, "gaps");
    assert_eq!(browser.eval("document.querySelectorAll('#plot polyline').length"), 1);
    browser.click("#log");
    browser.wait("document.querySelectorAll('#plot polyline').length === 2");
    assert_eq!(browser.eval("document.querySelectorAll('#plot circle').length"), 1, "the last value stands alone");
    assert!(browser.text("#averages").contains("2 values are 0 or less"));
    // The page says when it shows averages. Zooming in loads the individual values.
    open(&mut browser, "long");
    assert!(browser.text("#averages").contains("the mean of about 3 values"), "{}", browser.text("#averages"));
    // The legend and the panel show the real last value.
    assert!(browser.text("#legend").contains(": 0 at step 5000"), "{}", browser.text("#legend"));
    assert_eq!(browser.text(".panel[data-metric=loss] .panel-last"), "0");
    let place = browser.eval("(() => { const r = document.querySelector('#plot svg').getBoundingClientRect(); return [r.x, r.y, r.width, r.height] })()");
    let number = |i: usize| place[i].as_f64().expect("a place");
    let (x, y) = (number(0) + number(2) / 2.0, number(1) + number(3) / 2.0);
    browser.mouse("mouseMoved", x, y);
    browser.mouse("mousePressed", x, y);
    browser.call(
        "Input.dispatchMouseEvent",
        json!({ "type": "mouseMoved", "x": x + 40.0, "y": y, "button": "left", "buttons": 1 }),
    );
    browser.mouse("mouseReleased", x + 40.0, y);
    // Steps are consecutive: nothing is averaged anymore.
    browser.wait(
        "(() => { const s = [...document.querySelectorAll('#values tbody td:first-child')].map(e => Number(e.textContent)); \
         return s.length > 50 && s.every((step, i) => !i || step === s[i - 1] + 1) })()",
    );
    assert_eq!(browser.text("#averages"), "");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_drag_zooms_wherever_it_ends_and_whatever_redraws_the_curves() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), "tea", "sft", 2.0, "1e-5");
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/runs/show?run=tea&metric=loss", server.host()));
    browser.wait("document.querySelector('#plot svg')");
    browser.eval("document.getElementById('plot').scrollIntoView({ block: 'center' })");
    let place = browser.eval("(() => { const r = document.querySelector('#plot svg').getBoundingClientRect(); return [r.x, r.y, r.width, r.height] })()");
    let number = |i: usize| place[i].as_f64().expect("a place");
    let (x, y) = (number(0) + number(2) / 2.0, number(1) + number(3) / 2.0);
    let below = number(1) + number(3) + 60.0;
    let drag = |browser: &mut Browser, x: f64, y: f64| {
        let event = json!({ "type": "mouseMoved", "x": x, "y": y, "button": "left", "buttons": 1 });
        browser.call("Input.dispatchMouseEvent", event);
    };
    let is_zoomed = "!document.getElementById('whole').hidden";
    // A press outside of the plot begins nothing.
    browser.mouse("mouseMoved", x, below);
    browser.mouse("mousePressed", x, below);
    drag(&mut browser, x, y);
    browser.mouse("mouseReleased", x, y);
    assert_eq!(browser.eval(is_zoomed), false);
    // A drag goes on when the curves of a running run are redrawn, and outside of the plot.
    browser.mouse("mousePressed", x, y);
    drag(&mut browser, x + 50.0, y);
    browser.eval("dispatchEvent(new Event('resize'))");
    drag(&mut browser, number(0) + number(2) + 20.0, below);
    assert_eq!(browser.eval(is_zoomed), false);
    browser.mouse("mouseReleased", number(0) + number(2) + 20.0, below);
    browser.wait(is_zoomed);
    let address = browser.eval("location.search").as_str().expect("a text").to_owned();
    assert!(address.ends_with("&to=40"), "until the last step: {address}");
    // Nothing of the drag stays, and neither does the line under a pointer that left.
    assert_eq!(browser.eval("document.querySelector('#plot .zoom').getAttribute('width')"), "0");
    browser.mouse("mouseMoved", x, y);
    assert_eq!(browser.eval("document.querySelector('#plot .cross').getAttribute('visibility')"), "visible");
    browser.mouse("mouseMoved", x, below);
    assert_eq!(browser.eval("document.querySelector('#plot .cross').getAttribute('visibility')"), "hidden");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_zoom_over_tokens_shows_every_value() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), "tea", "sft", 2.0, "1e-5");
    let row = |step: usize| format!("{}\n", json!({ "step": step, "loss": 1.0, "num_tokens": 1000 * step }));
    let rows: String = (1..=20_000).map(row).collect();
    fs::write(folder.path().join("tea/metrics.jsonl"), rows).expect("written");
    let server = Server::over(folder.path());
    let steps = "[...document.querySelectorAll('#values tbody td:first-child')].map(e => Number(e.textContent))";
    // Each average is over ten steps, so the first range may have none.
    for (from, to) in [(5002, 5004), (5000, 5100)] {
        let zoom = format!("axis=num_tokens&from={}&to={}", 1000 * from, 1000 * to);
        browser.go(&format!("http://{}/runs/show?run=tea&metric=loss&{zoom}", server.host()));
        browser.wait(&format!("{steps}.length === {}", to - from + 1));
        let expected: Vec<i32> = (from..=to).map(|step| 1000 * step).collect();
        assert_eq!(browser.eval(steps), json!(expected));
    }
    // The last number of the axis is whole.
    browser.go(&format!("http://{}/runs/show?run=tea&metric=loss&axis=num_tokens", server.host()));
    browser.wait("document.querySelector('#plot svg')");
    let room = "document.querySelector('#plot svg').getBoundingClientRect().right - \
                [...document.querySelectorAll('#plot .tick')].pop().getBoundingClientRect().right";
    assert!(browser.eval(room).as_f64().is_some_and(|room| room >= 0.0), "{}", browser.eval(room));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn values_that_are_not_finite_break_the_line_and_are_counted() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), "tea", "sft", 2.0, "1e-5");
    let row = |step: usize| {
        let loss = if matches!(step, 4..=6 | 10) { Value::Null } else { json!(step) };
        format!("{}\n", json!({ "step": step, "loss": loss, "grad_norm": null }))
    };
    let rows: String = (1..=10).map(row).collect();
    fs::write(folder.path().join("tea/metrics.jsonl"), rows).expect("written");
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/runs/show?run=tea", server.host()));
    browser.wait("document.querySelectorAll('#plot polyline').length === 2");
    assert_eq!(browser.text("#averages"), "4 values are not finite and cannot be drawn.");
    assert!(browser.text("#legend").contains(": not finite at step 10"), "{}", browser.text("#legend"));
    assert_eq!(browser.text(".tile strong"), "not finite");
    browser.click(".panel[data-metric=grad_norm]");
    browser.wait("document.getElementById('plot').textContent === 'No finite values.'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn episodes_are_shown_as_conversations() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), "game", "grpo", 2.0, "1e-5");
    episode(folder.path(), "game");
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/runs/completions?run=game", server.host()));
    let turns = browser.eval("[...document.querySelectorAll('.episode li')].map(e => [e.className, e.innerText])");
    let expected = json!([
        ["turn-policy", "Policy reward 0.5000\n\n<b>50</b>"],
        ["turn-reply", "Tool compare\n\nlower"],
        ["turn-policy", "Policy\n\n25"],
        ["turn-reply", "Environment, not read\n\nright"],
    ]);
    assert_eq!(turns, expected);
    assert!(browser.text("main").contains("The environment ended the episode."));
    assert_eq!(browser.eval("document.querySelectorAll('td b').length"), 0);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

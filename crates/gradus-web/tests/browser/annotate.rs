//! Tests annotation as people do it: spans, missing information, corrections, comparisons and scales.

use std::path::Path;

use gradus::device::DeviceChoice;
use gradus_web::{
    Form, LEASE_MINUTES, NewProject, Number, Role, Tool, export_project, import_project, invite, new_project,
    project_stats,
};
use serde_json::{Value, json};

use crate::client::Server;
use crate::driver::Browser;

/// The answer that is annotated.
const PREDICTION: &str = "The tea is warm. The tea is warm. Größe 世界 is blue.";

/// Creates a project with two tasks.
pub fn project(folder: &Path, name: &str, labels: &str, annotators: usize) {
    let row = |question: &str| {
        json!({
            "question": question, "gold": "The tea is warm.",
            "passages": [["Tea", "Tea is a drink.", "It is warm."], ["Cups", "A cup is blue."]],
            "prediction 1": PREDICTION, "prediction 2": "Warm.", "prediction 3": "It is cold.", "prediction 4": "Tea.",
        })
    };
    let data = folder.join(format!("{name}.jsonl"));
    std::fs::write(&data, format!("{}\n{}\n", row("Is the tea warm?"), row("What is blue?"))).expect("written");
    create(folder, name, &data, labels, annotators, 2);
}

/// Creates a project from a file of `tasks` rows.
fn create(folder: &Path, name: &str, data: &Path, labels: &str, annotators: usize, tasks: usize) {
    let new = NewProject {
        name: name.into(),
        data: data.to_string_lossy().into_owned(),
        labels: labels.into(),
        annotators,
        lease_minutes: LEASE_MINUTES,
        max_tasks: None,
        sampled: None,
        uncertain_to: None,
        device: DeviceChoice::cpu(),
    };
    assert_eq!(new_project(folder, &new, &mut |_, _| {}).expect("a project"), tasks);
}

/// Creates a project with preference strengths in which two people disagree, imported from an export of another tool.
pub fn differ(folder: &Path, name: &str) {
    let annotation = |who: &str, rank: &str, strength: &str| {
        let choice =
            |of: &str, word: &str| json!({ "from_name": of, "type": "choices", "value": { "choices": [word] } });
        json!({ "completed_by": { "email": who }, "result": [choice("1v2", rank), choice("1v2-strength", strength)] })
    };
    let task = |question: &str| {
        json!({
            "data": { "question": question, "answer1": PREDICTION, "answer2": "Warm.", "model1": "x", "model2": "y" },
            "annotations": [annotation("eve", "first", "much"), annotation("tom", "second", "slightly")],
        })
    };
    let data = folder.join(format!("{name}.json"));
    std::fs::write(&data, json!([task("Is the tea warm?"), task("What is blue?")]).to_string()).expect("written");
    let found = import_project(folder, name, Tool::LabelStudio, (&data.to_string_lossy(), "comparison-strength"), 2)
        .expect("a project");
    assert_eq!(found, (2, 4, 0));
}

/// Signs in through the form.
pub fn sign_in(browser: &mut Browser, server: &Server, folder: &Path, name: &str, role: Role) {
    let token = invite(folder, name, role).expect("a token");
    browser.go(&format!("http://{}/annotate", server.host()));
    browser.eval(&format!("document.getElementById('name').value = {}", json!(name)));
    browser.eval(&format!("document.getElementById('token').value = {}", json!(token)));
    browser.eval("window.isLeft = true");
    browser.click("form[action='/annotate/enter'] button");
    browser.loaded();
    let page = browser.text("main");
    assert!(page.contains(&format!("Signed in as {name}")), "{page}");
}

/// Opens the next task of a project.
pub fn next(browser: &mut Browser, server: &Server, project: &str) {
    browser.go(&format!("http://{}/annotate/{project}", server.host()));
    ready(browser);
}

fn ready(browser: &mut Browser) {
    browser.wait("document.querySelector('#asked section') || !document.getElementById('asked')");
}

/// Opens or closes a step by clicking its heading.
fn fold(browser: &mut Browser, step: usize) {
    browser.click(&format!("#asked > section:nth-child({step}) > details > summary"));
}

/// Drags the mouse over words of the answer, from the middle of one word to the middle of another.
fn select(browser: &mut Browser, from: usize, to: usize) {
    let places = browser.eval(&format!(
        "(() => {{ const w = [...document.querySelectorAll('.word')]; w[{from}].scrollIntoView({{block: 'center'}}); \
         return [w[{from}], w[{to}]].map(e => e.getBoundingClientRect()).map(r => [r.x + r.width / 2, r.y + r.height / 2]) }})()"
    ));
    let place = |i: usize| (places[i][0].as_f64().expect("a place"), places[i][1].as_f64().expect("a place"));
    let (begin, end) = (place(0), place(1));
    browser.mouse("mouseMoved", begin.0, begin.1);
    browser.mouse("mousePressed", begin.0, begin.1);
    for part in [0.3, 0.7, 1.0] {
        let (x, y) = (begin.0 + part * (end.0 - begin.0), begin.1 + part * (end.1 - begin.1));
        browser.call(
            "Input.dispatchMouseEvent",
            json!({ "type": "mouseMoved", "x": x, "y": y, "button": "left", "buttons": 1 }),
        );
    }
    browser.mouse("mouseReleased", end.0, end.1);
}

/// Types into a field like a person: the existing text is replaced.
fn fill(browser: &mut Browser, selector: &str, text: &str) {
    browser.eval(&format!(
        "(() => {{ const e = document.querySelector({}); e.focus(); e.select(); }})()",
        json!(selector)
    ));
    browser.type_text(text);
}

fn is_disabled(browser: &mut Browser, selector: &str) -> bool {
    browser.eval(&format!("document.querySelector({}).disabled", json!(selector))) == true
}

/// Returns the stored annotations of a project.
fn kept(folder: &Path, project: &str) -> Vec<Value> {
    export_project(folder, project, Form::Raw).expect("rows").into_iter().map(Value::Object).collect()
}

/// Opens the dialog for a second error, after marking a first one if there is none. Used for screenshots.
pub fn mark(browser: &mut Browser) {
    if browser.eval("document.querySelectorAll('.pill').length") == 0 {
        select(browser, 8, 10);
        browser.click(".popup input[value=Irrelevant]");
        browser.click(".popup button.main");
        browser.wait("document.querySelector('.pill')");
    }
    select(browser, 4, 7);
    browser.click(".popup input[value=Redundant]");
}

#[test]
fn undo_takes_back_a_mark_or_a_comment_but_not_both() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "fine", "fine-grained", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    next(&mut browser, &server, "fine");
    let is = |no_error: bool, comment: &str| {
        format!(
            "document.getElementById('no-error').checked === {no_error} && document.getElementById('feedback').value === '{comment}'"
        )
    };
    browser.click("#no-error");
    fill(&mut browser, "#feedback", "Unclear.");
    browser.click("#undo");
    browser.wait(&is(true, ""));
    browser.click("#redo");
    browser.wait(&is(true, "Unclear."));
    browser.click("#no-error");
    browser.wait(&is(false, "Unclear."));
    browser.click("#undo");
    browser.wait(&is(true, "Unclear."));
    browser.reload();
    ready(&mut browser);
    browser.wait(&is(true, "Unclear."));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn typing_a_letter_and_deleting_it_is_no_correction() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("lines.jsonl");
    let answer = "The tea.\r\nIt is warm.";
    let row = json!({ "question": "Is the tea warm?", "gold": "Yes.", "prediction 1": answer });
    std::fs::write(&data, format!("{row}\n")).expect("written");
    create(folder.path(), "lines", &data, "fine-grained", 1, 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    next(&mut browser, &server, "lines");
    assert_eq!(browser.text(".answer-text"), "The tea.\nIt is warm.");
    browser.click("#no-error");
    browser.wait("!document.getElementById('submit').disabled");
    for text in ["The tea.\nIt is warm.x", "The tea.\nIt is warm."] {
        fill(&mut browser, "#correction", text);
        let is_same = text.ends_with('.');
        browser.wait(&format!("document.getElementById('submit').disabled !== {is_same}"));
    }
    browser.wait("document.getElementById('status').textContent === 'Saved'");
    assert_eq!(kept(folder.path(), "lines")[0]["answer"]["correction"], Value::Null);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn errors_are_marked_corrected_and_handed_in_and_nothing_is_lost() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "fine", "fine-grained", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    next(&mut browser, &server, "fine");
    assert!(browser.text(".given").contains("Is the tea warm?") && browser.text(".passages").contains("S0"));
    assert!(is_disabled(&mut browser, "#submit"));
    let policy = browser.eval("document.querySelector('.instructions').textContent");
    let policy = policy.as_str().expect("a text");
    assert!(
        ["the type that comes first", "Example", "Questions and answers"].iter().all(|part| policy.contains(part)),
        "{policy}"
    );
    let is_seen = "document.getElementById('correction').checkVisibility()";
    fold(&mut browser, 2);
    browser.wait(&format!("!{is_seen}"));

    // A selection inside words is extended to whole words, and the page asks for an error type.
    select(&mut browser, 4, 7);
    assert!(browser.text(".popup .handle").contains("The tea is warm."));
    assert!(is_disabled(&mut browser, ".popup button.main"));
    browser.click(".popup input[value=Redundant]");
    // The repeated text is prefilled with all preceding text, together with a hint to shorten it.
    assert!(browser.text(".popup").contains("Keep only the repeated part"));
    fill(&mut browser, ".popup textarea", "coffee");
    assert!(is_disabled(&mut browser, ".popup button.main"), "what is repeated must stand before");
    fill(&mut browser, ".popup textarea", "The tea is warm.");
    browser.click(".popup button.main");
    browser.wait("document.querySelectorAll('.pill').length === 1");
    assert!(
        browser.text(".pill").contains("Repetitive") && browser.text(".pill").contains("repeats “The tea is warm.”")
    );
    assert_eq!(browser.eval("document.querySelectorAll('.word.marked').length"), 4);
    // The step that was collapsed stays collapsed until it is opened again.
    assert_eq!(browser.eval(is_seen), false);
    fold(&mut browser, 2);
    browser.wait(is_seen);

    // A selection that overlaps a mark is rejected, and so is a click that selects nothing.
    select(&mut browser, 2, 5);
    assert_eq!(browser.eval("document.querySelectorAll('.popup').length"), 0);
    browser.click(".word");
    assert_eq!(browser.eval("document.querySelectorAll('.popup').length"), 0);

    // An inconsistent fact requires cited sentences that exist. Non-ASCII letters count as one character each.
    select(&mut browser, 8, 10);
    browser.click(".popup input[value='Wrong-Grounding']");
    assert!(is_disabled(&mut browser, ".popup button.main"));
    // Sentences can be clicked in the passages or chosen in the dialog.
    browser.click("[data-passage='2'][data-sentence='1']");
    assert_eq!(browser.eval("document.querySelector('.popup select').value"), "2");
    browser.click(".popup .cite-list input[value='0']");
    assert_eq!(browser.eval("document.querySelectorAll('.cited').length"), 2);
    browser.click(".popup button.main");
    browser.wait("document.querySelectorAll('.pill').length === 2");
    browser.wait("document.getElementById('status').textContent === 'Saved'");

    // Canceling marks nothing. A mark that is removed returns after undo.
    select(&mut browser, 0, 1);
    browser.key("Escape", 0);
    browser.wait("!document.querySelector('.popup')");
    browser.click(".pill:last-child button");
    browser.wait("document.querySelectorAll('.pill').length === 1");
    browser.click("#undo");
    browser.wait("document.querySelectorAll('.pill').length === 2");

    // Mark missing information, and reload the page in the middle of the work.
    browser.click("#missing");
    browser.click(".popup input[value='Missing-Answer']");
    browser.click(".popup .cite-list input[value='2']");
    browser.click(".popup button.main");
    browser.wait("document.querySelectorAll('.pill').length === 3");
    browser.wait("document.getElementById('status').textContent === 'Saved'");
    assert!(browser.text("#todo").contains("Correct the answer"));
    browser.reload();
    ready(&mut browser);
    assert_eq!(browser.eval("document.querySelectorAll('.pill').length"), 3);

    // After a restart of the server, everything is still there and the person is still signed in.
    drop(server);
    let server = Server::over(folder.path());
    let port = server.address.socket.port();
    assert_eq!(kept(folder.path(), "fine")[0]["answer"]["spans"].as_array().map(Vec::len), Some(2));
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Owner);
    next(&mut browser, &server, "fine");
    assert_eq!(browser.eval("document.querySelectorAll('.pill').length"), 3);
    fill(&mut browser, "#correction", "The tea is warm.");
    browser.wait("!document.getElementById('submit').disabled");
    assert!(browser.text("#todo").contains("You can submit it"));

    // “No error” removes all marks, and undo restores them.
    browser.click("#no-error");
    browser.wait("!document.querySelector('.pill')");
    assert_eq!(browser.eval("document.getElementById('correction').value"), PREDICTION);
    browser.click("#undo");
    browser.wait("document.querySelectorAll('.pill').length === 3");
    browser.wait("document.getElementById('correction').value === 'The tea is warm.'");
    browser.wait(
        "document.getElementById('status').textContent === 'Saved' && !document.getElementById('submit').disabled",
    );
    browser.eval("window.isLeft = true");
    browser.click("#submit");
    browser.loaded();
    ready(&mut browser);
    assert!(browser.text(".given").contains("What is blue?"), "the next task comes");

    let rows = export_project(folder.path(), "fine", Form::Feedback).expect("rows");
    assert_eq!(rows.len(), 1);
    let feedback = &rows[0]["feedback"];
    let errors = json!([
        { "error type": "Redundant", "explanation": "The tea is warm.", "start": 17, "end": 33 },
        { "error type": "Wrong-Grounding", "explanation": "{\"passage_id\":2,\"sentence_id\":[0,1]}", "start": 34, "end": 42 },
    ]);
    assert_eq!(feedback["errors"], errors);
    assert_eq!(
        feedback["missing-info"],
        json!([{ "error type": "Missing-Answer", "passage_id": 1, "sentence_id": [2] }])
    );
    assert_eq!(feedback["corrected-prediction"], "The tea is warm.");
    // The page offers the same export.
    let downloaded =
        browser.eval(&format!("fetch('http://127.0.0.1:{port}/annotate/fine/feedback.jsonl').then(r => r.text())"));
    assert_eq!(
        serde_json::from_str::<Value>(downloaded.as_str().expect("a text")).expect("a row"),
        Value::Object(rows[0].clone())
    );

    // A task is skipped with a reason.
    browser.click(".skip-task summary");
    browser.click("#skip");
    browser.wait("document.getElementById('status').textContent.includes('Enter why you skip')");
    fill(&mut browser, "#reason", "There is no blue tea.");
    browser.eval("window.isLeft = true");
    browser.click("#skip");
    browser.loaded();
    assert!(browser.text("main").contains("No task is left for you"));
    let skipped = kept(folder.path(), "fine").pop().expect("a row");
    assert_eq!((&skipped["state"], &skipped["reason"]), (&json!("skipped"), &json!("There is no blue tea.")));
    let complaints: Vec<String> =
        browser.complaints().into_iter().filter(|complaint| !complaint.contains("400")).collect();
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn the_keyboard_alone_marks_corrects_and_hands_in() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "fine", "fine-grained", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "fine");
    browser.tab_to(".answer-text");
    for _ in 0..2 {
        browser.key("ArrowRight", 0);
    }
    browser.key("ArrowRight", 8);
    browser.key("Enter", 0);
    browser.wait("document.querySelector('.popup')");
    assert!(browser.text(".popup .handle").contains("tea is"));
    browser.key(" ", 0);
    browser.tab_to(".popup button.main");
    browser.key("Enter", 0);
    browser.wait("document.querySelector('.pill')");
    assert!(browser.text(".pill").contains("Irrelevant"));
    browser.tab_to("#correction");
    browser.eval("document.activeElement.select()");
    browser.type_text("Warm.");
    browser.wait("!document.getElementById('submit').disabled");
    browser.eval("window.isLeft = true");
    browser.key("Enter", 2);
    browser.loaded();
    ready(&mut browser);
    let row = kept(folder.path(), "fine").into_iter().find(|row| row["state"] == "done").expect("a row");
    assert_eq!(row["answer"]["spans"][0]["start"], 4);
    assert_eq!(row["answer"]["spans"][0]["end"], 10);
    assert!(row["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0 && seconds < 120.0));
}

#[test]
fn pairs_are_compared_and_what_conflicts_is_said() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "pairs", "comparison", 2);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Reviewer);
    next(&mut browser, &server, "pairs");
    let choose = |browser: &mut Browser, pair: &str, value: &str| {
        browser.eval(&format!("document.querySelector('[data-pair=\"{pair}\"]').open = true"));
        browser.click(&format!("[data-pair=\"{pair}\"] input[value={value}]"));
        browser.wait("document.getElementById('status').textContent === 'Saved'");
        browser.eval("document.getElementById('status').textContent = ''");
    };
    assert_eq!(browser.eval("document.querySelectorAll('.pair').length"), 6);
    for (pair, value) in
        [("1v2", "first"), ("1v3", "second"), ("2v3", "first"), ("1v4", "first"), ("2v4", "tie"), ("3v4", "tie")]
    {
        choose(&mut browser, pair, value);
    }
    browser.wait("document.getElementById('todo').textContent.includes('These choices contradict each other')");
    assert!(is_disabled(&mut browser, "#submit"));
    choose(&mut browser, "1v3", "first");
    browser.wait("!document.getElementById('submit').disabled");
    browser.reload();
    ready(&mut browser);
    assert_eq!(browser.eval("document.querySelectorAll('.pair input:checked').length"), 6);
    browser.eval("window.isLeft = true");
    browser.click("#submit");
    browser.loaded();

    // A second person has the same task and cannot see the first person's answers.
    let mut other = Browser::open().expect("it was there before");
    sign_in(&mut other, &server, folder.path(), "bob", Role::Annotator);
    next(&mut other, &server, "pairs");
    assert!(other.text(".given").contains("Is the tea warm?"));
    assert_eq!(other.eval("document.querySelectorAll('.pair input:checked').length"), 0);
    other.go(&format!("http://{}/annotate/pairs/results", server.host()));
    assert!(other.text("main").contains("annotators do not see the work of others"));
    browser.go(&format!("http://{}/annotate/pairs/results", server.host()));
    assert!(browser.text("main").contains("Krippendorff"));
    let stats = project_stats(folder.path(), "pairs").expect("stats");
    assert_eq!(stats.agreement[0].raw, Number::Undefined("no item was labeled by two people"));
    let rows = export_project(folder.path(), "pairs", Form::Preference).expect("rows");
    assert_eq!(rows.len(), 4, "six pairs, two of them ties");
    assert_eq!((&rows[0]["chosen"], &rows[0]["rejected"]), (&json!(PREDICTION), &json!("Warm.")));
    let feedback = export_project(folder.path(), "pairs", Form::Feedback).expect("rows");
    assert_eq!(feedback[0]["preference"], json!([1, 1, 1, 1, 0, 0]));
}

#[test]
fn a_text_is_judged_on_scales() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "likert", "likert-summarisation", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "likert");
    browser.click("input[name=coherence][value='4']");
    browser.click("input[name=quality][value='2']");
    browser.wait("!document.getElementById('submit').disabled");
    browser.eval("window.isLeft = true");
    browser.click("#submit");
    browser.loaded();
    let rows = export_project(folder.path(), "likert", Form::Feedback).expect("rows");
    assert_eq!((&rows[0]["coherence"], &rows[0]["quality"]), (&json!(4), &json!(2)));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn how_much_better_is_said_and_a_reviewer_decides_in_the_end() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "strong", "comparison-strength", 1);
    differ(folder.path(), "differ");
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Reviewer);
    next(&mut browser, &server, "strong");
    let open = "document.querySelectorAll('details.pair').forEach(pair => { pair.open = true })";
    browser.eval(open);
    browser.click("[data-pair='1v2'] input[value=bad]");
    assert_eq!(browser.eval("document.querySelector('[data-pair=\"1v2\"] .much').hidden"), true, "neither is better");
    browser.click("[data-pair='1v2'] input[value=first]");
    browser
        .wait("document.getElementById('todo').textContent.includes('Choose how much better the preferred answer is')");
    browser.click("[data-pair='1v2'] .much input[value=better]");
    browser.wait("!document.getElementById('todo').textContent.includes('how much better')");
    browser.reload();
    ready(&mut browser);
    assert_eq!(browser.eval("document.querySelector('[data-pair=\"1v2\"] .much input:checked').value"), "better");
    assert_eq!(kept(folder.path(), "strong")[0]["answer"]["strengths"], json!({ "1v2": "better" }));

    // Where two people disagree, the page shows both answers, and the decision becomes the only answer.
    browser.go(&format!("http://{}/annotate/differ/results", server.host()));
    browser.eval("window.isLeft = true");
    browser.click("a[href='/annotate/differ/adjudicate']");
    browser.loaded();
    ready(&mut browser);
    let page = browser.text("main");
    assert!(page.contains("eve") && page.contains("tom") && page.contains("is better (slightly better)"), "{page}");
    // The decision starts empty. An annotator's answer can be copied into it.
    assert!(is_disabled(&mut browser, "#submit"));
    assert_eq!(browser.eval("document.querySelectorAll('.pair input:checked').length"), 0);
    browser.click("[data-take='0']");
    browser.wait("document.querySelector('.pair input[value=first]').checked");
    browser.click("[data-take='1']");
    browser.wait("document.querySelector('.pair input[value=second]').checked");
    browser.wait(
        "document.getElementById('status').textContent === 'Saved' && !document.getElementById('submit').disabled",
    );
    browser.eval("window.isLeft = true");
    browser.click("#submit");
    browser.loaded();
    ready(&mut browser);
    assert!(browser.text("main").contains("Task 2 of 2"), "the next on which they differ");
    let rows = export_project(folder.path(), "differ", Form::Preference).expect("rows");
    let first: Vec<&Value> =
        rows.iter().filter(|row| row["prompt"] == "Is the tea warm?").map(|row| &row["chosen"]).collect();
    assert_eq!(first, ["Warm."]);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Creates a project of one task with this answer and opens the task.
fn marking(folder: &Path, answer: &str) {
    let row = json!({ "question": "Q?", "prediction 1": answer });
    let data = folder.join("marking.jsonl");
    std::fs::write(&data, format!("{row}\n")).expect("written");
    let labels = folder.join("labels.yml");
    let set = "name: Marks\nspans:\n  - { name: odd, label: Odd, color: \"#111111\" }\n  - { name: bad, label: Bad, color: \"#E7040F\" }\n";
    std::fs::write(&labels, set).expect("written");
    create(folder, "marks", &data, &labels.to_string_lossy(), 1, 1);
}

fn marks(folder: &Path, project: &str) -> Vec<(String, u64, u64)> {
    let row = kept(folder, project).remove(0);
    let spans = row["answer"]["spans"].as_array().expect("a list").iter();
    let of = |span: &Value| {
        (
            span["kind"].as_str().expect("a text").to_owned(),
            span["start"].as_u64().expect("a number"),
            span["end"].as_u64().expect("a number"),
        )
    };
    spans.map(of).collect()
}

const SAVED: &str = "document.getElementById('status').textContent === 'Saved'";

#[test]
fn characters_without_spaces_are_marked_and_lines_stay() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    marking(folder.path(), "我喜欢喝茶。\n    if x:\n        tea()");
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "marks");
    assert_eq!(browser.eval("document.querySelectorAll('.word').length"), 9);
    assert_eq!(
        browser.eval("document.querySelector('.answer-text').textContent"),
        "我喜欢喝茶。\n    if x:\n        tea()"
    );
    assert_eq!(browser.eval("getComputedStyle(document.querySelector('.answer-text')).whiteSpaceCollapse"), "preserve");
    assert_eq!(browser.eval("document.querySelector('.answer-text').dir"), "auto");
    // Select two characters in the middle with the keyboard, the third and the fourth, and mark them with the second type.
    browser.tab_to(".answer-text");
    for _ in 0..4 {
        browser.key("ArrowRight", 0);
    }
    browser.key("ArrowLeft", 8);
    browser.key("2", 0);
    browser.wait(SAVED);
    assert_eq!(marks(folder.path(), "marks"), [("bad".to_owned(), 2, 4)]);
    assert_eq!(browser.text("mark .chip"), "Bad");
    // The cursor does not move. A mark can be changed with a click, and with undo and redo.
    assert_eq!(browser.eval("[...document.querySelectorAll('.word')].findIndex(e => e.matches('.cursor'))"), 2);
    browser.click("mark .word");
    browser.wait("document.querySelector('.popup')");
    browser.click(".popup input[value=odd]");
    browser.click(".popup button.main");
    browser.wait("document.querySelector('mark .chip').textContent === 'Odd'");
    browser.eval("document.activeElement.blur()");
    browser.key("z", 2);
    browser.wait("document.querySelector('mark .chip').textContent === 'Bad'");
    browser.click("#redo");
    browser.wait("document.querySelector('mark .chip').textContent === 'Odd'");
    // One key moves to the last word.
    browser.eval("document.querySelector('.answer-text').focus()");
    browser.key("End", 0);
    browser.key("1", 0);
    browser.wait("document.querySelectorAll('mark').length === 2");
    browser.wait(SAVED);
    assert_eq!(marks(folder.path(), "marks"), [("odd".to_owned(), 2, 4), ("odd".to_owned(), 25, 30)]);
    // In dark mode, a type whose color is nearly black stays visible.
    browser.dark(true);
    let line = browser.eval("getComputedStyle(document.querySelector('mark')).borderBottomColor");
    assert_ne!(line, "rgb(17, 17, 17)");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_tap_marks_and_the_answer_is_near_the_top_of_a_phone() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "fine", "fine-grained", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    browser.size(390, 844, true);
    browser.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": true }));
    next(&mut browser, &server, "fine");
    let top = browser.eval("document.querySelector('.answer-text').getBoundingClientRect().top + scrollY");
    assert!(top.as_f64().is_some_and(|top| top < 844.0), "the answer begins at {top}");
    assert_eq!(browser.eval("document.documentElement.scrollWidth"), 390);
    browser.tap(".word");
    browser.wait("document.querySelector('.popup')");
    assert_eq!(browser.text(".popup .handle"), "“The”");
    browser.tap(".popup .wider");
    browser.wait("document.querySelector('.popup .handle').textContent === '“The tea”'");
    browser.tap(".popup input[value=Irrelevant]");
    browser.tap(".popup button.main");
    browser.wait(SAVED);
    assert_eq!(marks(folder.path(), "fine"), [("Irrelevant".to_owned(), 0, 7)]);
}

#[test]
fn answers_are_shown_by_letters_in_neutral_colors() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "pairs", "comparison", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "pairs");
    let page = browser.text("main");
    assert!(page.contains("Answer A") && page.contains("Answer B") && !page.contains("Answer 1"), "{page}");
    let colors =
        "new Set([...document.querySelectorAll('.prediction')].map(e => getComputedStyle(e).borderLeftColor)).size";
    assert_eq!(browser.eval(colors), 1, "no color names an answer");
    let order = browser.eval("task.shown.order");
    // Keys 1 to 4 mean left, tie, both bad and right. Of A and B, A is on the left.
    browser.key("1", 0);
    browser.wait(SAVED);
    let (a, b) = (order[0].as_u64().expect("a number"), order[1].as_u64().expect("a number"));
    let (pair, rank) =
        if a < b { (format!("{}v{}", a + 1, b + 1), "first") } else { (format!("{}v{}", b + 1, a + 1), "second") };
    assert_eq!(kept(folder.path(), "pairs")[0]["answer"]["ranks"], json!({ pair: rank }));
    assert_eq!(kept(folder.path(), "pairs")[0]["shown"]["order"], order);
    // Each digit is for the next pair.
    for _ in 0..5 {
        browser.key("2", 0);
    }
    browser.wait("Object.keys(answer.ranks).length === 6 && !document.getElementById('submit').disabled");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_key_0_chooses_0_on_a_scale() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (data, labels) = (folder.path().join("scale.jsonl"), folder.path().join("scale.yml"));
    let row = json!({ "question": "Q?", "prediction 1": "A." });
    std::fs::write(&data, format!("{row}\n")).expect("written");
    std::fs::write(
        &labels,
        "name: Scale\nquestions:\n  - { name: tone, question: The tone is right., from: 0, to: 2 }\n",
    )
    .expect("written");
    create(folder.path(), "scale", &data, &labels.to_string_lossy(), 1, 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "scale");
    browser.key("0", 0);
    browser.wait("answer.questions.tone === 0 && !document.getElementById('submit').disabled");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn changes_survive_a_dropped_network_and_a_closed_window() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "fine", "fine-grained", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "fine");
    browser.offline(true);
    fill(&mut browser, "#correction", "Typed without a network.");
    browser.wait("document.getElementById('status').dataset.state === 'waiting'");
    assert!(browser.text("#status").contains("Your changes stay in this browser"));
    assert_eq!(kept(folder.path(), "fine")[0]["answer"]["correction"], Value::Null);
    // When the network is back, the page saves without a click.
    browser.offline(false);
    browser.wait(SAVED);
    assert_eq!(kept(folder.path(), "fine")[0]["answer"]["correction"], "Typed without a network.");
    assert_eq!(browser.eval("localStorage.length"), 0);
    // If the window is closed while offline, the next visit saves the changes.
    browser.offline(true);
    fill(&mut browser, "#correction", "Left behind.");
    browser.wait("document.getElementById('status').dataset.state === 'waiting'");
    browser.eval("window.fetch = () => new Promise(() => {})");
    browser.offline(false);
    browser.reload();
    ready(&mut browser);
    assert_eq!(browser.eval("document.getElementById('correction').value"), "Left behind.");
    browser.wait(SAVED);
    assert_eq!(kept(folder.path(), "fine")[0]["answer"]["correction"], "Left behind.");
}

#[test]
fn two_windows_show_both_versions_and_the_person_chooses() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "likert", "likert-imdb", 1);
    let server = Server::over(folder.path());
    sign_in(&mut browser, &server, folder.path(), "ada", Role::Annotator);
    next(&mut browser, &server, "likert");
    // Another window of the same person saves in the meantime.
    let elsewhere = "(async (value) => { const { revision } = await (await fetch(location.pathname + '/state')).json(); \
         await fetch(location.pathname + '/keep', { method: 'POST', headers: { 'Content-Type': 'application/json', \
         'X-CSRF-Token': document.querySelector('meta[name=csrf]').content }, body: JSON.stringify({ \
         answer: { questions: { sentiment: value } }, state: 'open', seconds: 1, revision, page: 'elsewhere' }) }); })";
    browser.eval(&format!("{elsewhere}(5)"));
    browser.click("input[name=coherence][value='4']");
    browser.wait("!document.getElementById('conflict').hidden");
    let both = browser.text("#conflict");
    assert!(both.contains("reads well: 4") && both.contains("is positive: 5"), "{both}");
    let stored = |folder: &Path| kept(folder, "likert")[0]["answer"]["questions"].clone();
    assert_eq!(stored(folder.path()), json!({ "sentiment": 5 }), "nothing is overwritten");
    browser.click("#conflict div:nth-child(2) > button");
    browser.wait("document.getElementById('conflict').hidden && document.querySelector('input[name=sentiment][value=\"5\"]').checked");
    browser.click("input[name=coherence][value='2']");
    browser.wait(SAVED);
    assert_eq!(stored(folder.path()), json!({ "coherence": 2, "sentiment": 5 }));
    // Now the other way round.
    browser.eval(&format!("{elsewhere}(1)"));
    browser.click("input[name=coherence][value='3']");
    browser.wait("!document.getElementById('conflict').hidden");
    browser.click("#conflict div:nth-child(1) > button");
    browser.wait(SAVED);
    assert_eq!(stored(folder.path()), json!({ "coherence": 3, "sentiment": 5 }));
}

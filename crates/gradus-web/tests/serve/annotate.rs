//! Tests annotation over HTTP: known answers, attention checks, decisions, and the way from annotations to training.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use gradus::device::DeviceChoice;
use gradus::pretrained::TextFiles;
use gradus_web::{
    Answering, Form, LEASE_MINUTES, NewProject, Number, Role, RunStarter, Tool, export_project, import_project, invite,
    new_project, project_stats,
};
use serde_json::{Value, json};

use crate::client::{Server, Visitor, fixture, folder};
use crate::recorder::Recorder;

fn project(folder: &Path, labels: &str, rows: &[Value], annotators: usize) -> NewProject {
    let data = folder.join("rows.jsonl");
    fs::write(&data, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).expect("written");
    NewProject {
        name: "tea".into(),
        data: data.to_string_lossy().into_owned(),
        labels: labels.into(),
        annotators,
        lease_minutes: LEASE_MINUTES,
        max_tasks: None,
        sampled: None,
        uncertain_to: None,
        device: DeviceChoice::cpu(),
    }
}

fn pair(question: &str) -> Value {
    json!({ "prompt": question, "completions": ["a b", "c d"], "models": ["x", "y"] })
}

/// Signs a person in.
fn person<'a>(server: &'a Server, folder: &Path, name: &str, role: Role) -> Visitor<'a> {
    let token = invite(folder, name, role).expect("a token");
    let visitor = Visitor::of(server);
    assert_eq!(visitor.form("/annotate/enter", &[("name", name), ("token", &token)]).status, 303);
    visitor
}

/// Submits the next task, or the comparison that is shown first. Returns its number.
fn hand_in(visitor: &Visitor<'_>, rank: &str) -> usize {
    let next = visitor.get("/annotate/tea");
    let path = next.header("location").unwrap_or_else(|| panic!("{next:?}")).to_owned();
    let answer = visitor.script(
        &format!("{path}/keep"),
        &json!({ "answer": { "ranks": { "1v2": rank } }, "state": "done", "seconds": 9.0 }),
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    path.rsplit('/').next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn known_answers_measure_everyone_and_nobody_sees_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let known =
        json!({ "prompt": "Known?", "completions": ["right", "wrong"], "expected": { "ranks": { "1v2": "first" } } });
    let attention = json!({ "prompt": "Choose the second.", "completions": ["no", "yes"], "expected": { "ranks": { "1v2": "second" } }, "attention": true });
    new_project(
        folder.path(),
        &project(folder.path(), "comparison", &[known, attention, pair("Q?")], 1),
        &mut |_, _| {},
    )
    .expect("a project");
    let server = Server::over(folder.path());
    let (ada, bob) = (
        person(&server, folder.path(), "ada", Role::Annotator),
        person(&server, folder.path(), "bob", Role::Annotator),
    );
    let page = ada.get("/annotate/tea/task/1");
    assert_eq!(page.status, 403, "not before it is theirs");
    // Each task goes to one person, except these two, which go to everyone.
    assert_eq!([hand_in(&ada, "first"), hand_in(&bob, "second")], [1, 1]);
    assert_eq!([hand_in(&ada, "second"), hand_in(&bob, "first")], [2, 2]);
    assert_eq!(hand_in(&ada, "first"), 3);
    assert!(bob.get("/annotate/tea").body.contains("No task is left for you"));
    for path in ["/annotate/tea/task/1", "/annotate/tea/task/1/state", "/annotate/tea/task/2/state"] {
        let shown = ada.get(path);
        assert!(
            shown.status == 200 && !shown.body.contains("expected") && !shown.body.contains("attention"),
            "{}",
            shown.body
        );
    }
    let stats = project_stats(folder.path(), "tea").expect("stats");
    let of = |name: &str| stats.people.iter().find(|work| work.name == name).expect("somebody").clone();
    assert_eq!((of("ada").right, of("ada").inattentive), (Number::Value(1.0), 0));
    assert_eq!((of("bob").right, of("bob").inattentive), (Number::Value(0.0), 1));
    let rows = export_project(folder.path(), "tea", Form::Preference).expect("rows");
    let prompts: Vec<&Value> = rows.iter().map(|row| &row["prompt"]).collect();
    assert_eq!(prompts, ["Known?", "Known?", "Q?"], "what asks for attention trains nothing");
    // A known answer must be a valid annotation.
    let wrong = json!({ "prompt": "Q", "completions": ["a", "b"], "expected": { "ranks": { "1v9": "first" } } });
    let other = NewProject { name: "other".into(), ..project(folder.path(), "comparison", &[wrong], 1) };
    let message = new_project(folder.path(), &other, &mut |_, _| {}).expect_err("wrong").to_string();
    assert!(message.contains("`expected`: A pair does not belong to this task."), "{message}");
}

#[test]
fn a_reviewer_decides_where_people_differ_and_that_is_final() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = [pair("Alike?"), pair("Apart?"), pair("Far?")];
    let three = json!({ "prompt": "Far?", "completions": ["a b", "c d", "e f"] });
    new_project(
        folder.path(),
        &project(folder.path(), "comparison", &[rows[0].clone(), rows[1].clone(), three], 2),
        &mut |_, _| {},
    )
    .expect("a project");
    let server = Server::over(folder.path());
    let (ada, bob) = (
        person(&server, folder.path(), "ada", Role::Annotator),
        person(&server, folder.path(), "bob", Role::Annotator),
    );
    for (who, second) in [(&ada, "first"), (&bob, "second")] {
        assert_eq!([hand_in(who, "first"), hand_in(who, second)], [1, 2]);
    }
    let keep = |who: &Visitor<'_>, ranks: Value| {
        who.get("/annotate/tea");
        who.script(
            "/annotate/tea/task/3/keep",
            &json!({ "answer": { "ranks": ranks }, "state": "done", "seconds": 1.0 }),
        )
        .status
    };
    assert_eq!(keep(&ada, json!({ "1v2": "first", "1v3": "first", "2v3": "first" })), 200);
    assert_eq!(keep(&bob, json!({ "1v2": "first", "1v3": "first", "2v3": "second" })), 200);
    for path in ["adjudicate", "adjudicate/2", "adjudicate/2/state"] {
        assert_eq!(ada.get(&format!("/annotate/tea/{path}")).status, 403, "{path}");
    }
    let eve = person(&server, folder.path(), "eve <b>", Role::Reviewer);
    // The annotators disagree on all of the second task and on a third of the third, and agree on the first.
    assert_eq!(eve.get("/annotate/tea/adjudicate").header("location"), Some("/annotate/tea/adjudicate/2"));
    let page = eve.get("/annotate/tea/adjudicate/2").body;
    assert!(page.contains("<h3>ada</h3>") && page.contains("is better") && page.contains("2 wait"), "{page}");
    let state = eve.get("/annotate/tea/adjudicate/2/state").json();
    assert_eq!(state["answer"]["ranks"], json!({}), "a decision begins empty");
    assert_eq!(state["judged"]["problems"], json!(["Compare A and B."]));
    assert_eq!(state["said"][1]["answer"]["ranks"]["1v2"], "second", "what people said can be taken");
    assert_eq!(
        eve.script(
            "/annotate/tea/adjudicate/2/keep",
            &json!({ "answer": state["answer"], "state": "done", "seconds": 1.0 })
        )
        .status,
        400,
        "untouched, it cannot be submitted"
    );
    let decide = |ranks: Value, state: &str| {
        eve.script(
            "/annotate/tea/adjudicate/2/keep",
            &json!({ "answer": { "ranks": ranks }, "state": state, "seconds": 1.0 }),
        )
        .status
    };
    assert_eq!(decide(json!({}), "done"), 400, "unfinished");
    assert_eq!(decide(json!({ "1v9": "first" }), "open"), 400);
    assert_eq!(decide(json!({ "1v2": "second" }), "skipped"), 400);
    assert_eq!(
        ada.script("/annotate/tea/adjudicate/2/keep", &json!({ "answer": {}, "state": "open", "seconds": 1.0 })).status,
        403
    );
    let chosen = || -> Vec<String> {
        let rows = export_project(folder.path(), "tea", Form::Preference).expect("rows");
        let of = rows.iter().filter(|row| row["prompt"] == "Apart?");
        of.map(|row| row["chosen"].as_str().expect("a text").to_owned()).collect()
    };
    assert_eq!(decide(json!({ "1v2": "second" }), "open"), 200);
    assert_eq!(chosen(), ["a b", "c d"], "not decided yet");
    assert_eq!(decide(json!({ "1v2": "second" }), "done"), 200);
    assert_eq!(chosen(), ["c d"]);
    assert_eq!(eve.get("/annotate/tea/adjudicate").header("location"), Some("/annotate/tea/adjudicate/3"));
    let raw = export_project(folder.path(), "tea", Form::Raw).expect("rows");
    assert_eq!(raw.iter().filter(|row| row["verdict"] == true).count(), 1);
    assert_eq!(eve.get("/annotate/tea/adjudicate/1").status, 200, "also what they agree on can be looked at");
    assert_eq!(eve.get("/annotate/tea/adjudicate/9").status, 404);
}

#[test]
fn models_answer_in_place_and_a_reward_model_orders_the_queue() {
    let folder = folder(&[]);
    let rows: Vec<Value> = ["The tea", "A cup of", "Warm"].iter().map(|text| json!({ "prompt": text })).collect();
    let new = project(folder.path(), "comparison", &rows, 1);
    let (one, other) = (fixture("gpt2"), fixture("qwen3"));
    let sampled =
        Answering { models: vec![one.clone(), other.clone()], each: 1, max_new_tokens: 6, temperature: 1.0, seed: 3 };
    let new = NewProject { sampled: Some(sampled), ..new };
    assert_eq!(new_project(folder.path(), &new, &mut |_, _| {}).expect("a project"), 3);
    let raw = |name: &str| -> Vec<Value> {
        let server = Server::over(folder.path());
        let ada = person(&server, folder.path(), "ada", Role::Annotator);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let path = ada.get(&format!("/annotate/{name}")).header("location").expect("a task").to_owned();
            seen.push(ada.get(&format!("{path}/state")).json()["answers"].clone());
            ada.script(
                &format!("{path}/keep"),
                &json!({ "answer": { "ranks": { "1v2": "first" } }, "state": "done", "seconds": 1.0 }),
            );
        }
        seen
    };
    let answers = raw("tea");
    assert!(answers.iter().all(|pair| pair.as_array().is_some_and(|pair| pair.len() == 2)), "{answers:?}");
    let models = export_project(folder.path(), "tea", Form::Raw).expect("rows");
    assert_eq!(models[0]["models"], json!([one, other]));

    // Ordered by uncertainty, the same rows give the same tasks, starting with those for which the reward model's scores are closest.
    let again = NewProject { name: "ordered".into(), uncertain_to: Some(fixture("qwen3-reward")), ..new };
    assert_eq!(new_project(folder.path(), &again, &mut |_, _| {}).expect("a project"), 3);
    let ordered = raw("ordered");
    let mut sorted = (answers.clone(), ordered.clone());
    sorted.0.sort_by_key(Value::to_string);
    sorted.1.sort_by_key(Value::to_string);
    assert_eq!(sorted.0, sorted.1);
    let rows = export_project(folder.path(), "ordered", Form::Raw).expect("rows");
    let differences: Vec<f32> =
        rows.iter().map(|row| rewards(folder.path(), row)).map(|r| (r[0] - r[1]).abs()).collect();
    assert!(differences.is_sorted() && differences[0] < differences[2], "{differences:?}");
    let leftover = fs::read_dir(folder.path()).expect("a folder").flatten();
    assert!(leftover.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with('.')));
}

/// Returns the reward model's scores of the answers of a row, computed like `gradus score`.
fn rewards(folder: &Path, row: &serde_json::Map<String, Value>) -> Vec<f32> {
    let answers = row["answers"].as_array().expect("answers").iter();
    let text: String =
        answers.map(|answer| format!("{}\n", json!({ "prompt": row["question"], "completion": answer }))).collect();
    let data = folder.join("scored.jsonl");
    fs::write(&data, text).expect("written");
    let options = gradus::inference::ScoreOptions {
        model: fixture("qwen3-reward"),
        adapter: None,
        data: data.to_string_lossy().into_owned(),
        add_eos: None,
        rename: Vec::new(),
        max_rows: None,
        bad_rows: gradus::data::BadRows::Fail,
        text: TextFiles::default(),
        device: DeviceChoice::cpu(),
    };
    let mut found = Vec::new();
    gradus::inference::rewards::<gradus::Error>(&options, &mut |_, _| {}, &mut |_, scored| {
        if let gradus::inference::Scored::One(row) = scored {
            found.push(row.reward);
        }
        Ok(())
    })
    .expect("scored");
    found
}

#[test]
fn what_another_tool_has_kept_becomes_a_project() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("export.json");
    // An export as Label Studio writes it: two side-by-side comparisons and one canceled annotation.
    let result = |selected: &str| json!([{ "id": "a1", "from_name": "pw", "to_name": "answer1", "type": "pairwise", "value": { "selected": selected } }]);
    let task = json!([{
        "id": 7, "data": { "prompt": "Which tea?", "answer1": "Green.", "answer2": "Black." }, "total_annotations": 2, "predictions": [],
        "annotations": [
            { "id": 1, "completed_by": 4, "result": result("right"), "was_cancelled": false, "lead_time": 3.5 },
            { "id": 2, "completed_by": { "id": 5, "email": "ada@example.org" }, "result": result("left"), "was_cancelled": false },
            { "id": 3, "completed_by": 6, "result": [], "was_cancelled": true },
        ],
    }]);
    fs::write(&file, task.to_string()).expect("written");
    let file = file.to_string_lossy().into_owned();
    let import = |name: &str| import_project(folder.path(), name, Tool::LabelStudio, (&file, "comparison"), 2);
    assert_eq!(import("tea").expect("imported"), (1, 2, 0));
    assert!(import("tea").expect_err("taken").to_string().contains("already"));
    let rows = export_project(folder.path(), "tea", Form::Preference).expect("rows");
    let chosen: Vec<&Value> = rows.iter().map(|row| &row["chosen"]).collect();
    assert_eq!(chosen, ["Green.", "Black."]);
    let raw = export_project(folder.path(), "tea", Form::Raw).expect("rows");
    assert_eq!((&raw[1]["person"], &raw[1]["seconds"]), (&json!("label-studio-4"), &json!(3.5)));
}

#[test]
fn annotations_lead_to_runs_and_back_to_people() {
    let folder = folder(&["gpt2", "qwen3", "qwen3-reward"]);
    new_project(
        folder.path(),
        &project(folder.path(), "comparison-strength", &[pair("Q?"), pair("R?")], 1),
        &mut |_, _| {},
    )
    .expect("a project");
    let recorder = Arc::new(Recorder::default());
    let server =
        Server::with(folder.path(), IpAddr::from([127, 0, 0, 1]), Some(Arc::clone(&recorder) as Arc<dyn RunStarter>));
    let ada = person(&server, folder.path(), "ada", Role::Owner);
    let train = |fields: &[(&str, &str)]| ada.form("/annotate/tea/train", fields);
    assert_eq!(train(&[("form", "preference"), ("method", "reward")]).status, 422, "nothing was said yet");
    let path = ada.get("/annotate/tea").header("location").expect("a task").to_owned();
    let answer = json!({ "answer": { "ranks": { "1v2": "second" }, "strengths": { "1v2": "better" } }, "state": "done", "seconds": 1.0 });
    assert_eq!(ada.script(&format!("{path}/keep"), &answer).status, 200);

    let page = ada.get("/annotate/tea/results").body;
    assert!(page.contains("gradus annotate export tea") && page.contains("gradus reward --model MODEL"), "{page}");
    let to = train(&[("form", "preference"), ("method", "reward")]);
    assert_eq!(to.header("location"), Some("/runs/new?method=reward&data=data/tea-preference.jsonl"));
    let rows = fs::read_to_string(folder.path().join("data/tea-preference.jsonl")).expect("a file");
    let row: Value = serde_json::from_str(rows.trim()).expect("a row");
    assert_eq!((&row["chosen"], row["margin"].as_f64().map(|m| (m * 3.0).round())), (&json!("c d"), Some(2.0)));
    // The same rows give the same file. A file with other rows belongs to the user or to a run, so it is not overwritten.
    let again = [("form", "preference"), ("method", "reward")];
    assert_eq!(train(&again).header("location"), Some("/runs/new?method=reward&data=data/tea-preference.jsonl"));
    fs::write(folder.path().join("data/tea-preference.jsonl"), "mine").expect("written");
    assert_eq!(train(&again).header("location"), Some("/runs/new?method=reward&data=data/tea-preference-2.jsonl"));
    let read = |name: &str| fs::read_to_string(folder.path().join("data").join(name)).expect("a file");
    assert_eq!((read("tea-preference.jsonl").as_str(), read("tea-preference-2.jsonl")), ("mine", rows.clone()));
    fs::write(folder.path().join("data/tea-preference.jsonl"), &rows).expect("written");
    let form = ada.get("/runs/new?method=reward&data=data/tea-preference.jsonl").body;
    assert!(form.contains("<option value=\"data/tea-preference.jsonl\" selected>"), "{form}");

    let to = train(&[("form", "prompt"), ("method", "grpo"), ("reward-model", "qwen3-reward")]);
    assert_eq!(
        to.header("location"),
        Some("/runs/new?method=grpo&data=data/tea-prompt.jsonl&reward-model=qwen3-reward")
    );
    assert_eq!(fs::read_to_string(folder.path().join("data/tea-prompt.jsonl")).expect("a file").lines().count(), 2);

    let compare = |fields: &[(&str, &str)]| ada.form("/annotate/tea/compare", fields);
    let good = [("one", "gpt2"), ("other", "qwen3"), ("prompts", "2"), ("name", "blind")];
    for (name, value) in [
        ("one", "/etc"),
        ("one", "qwen3-reward"),
        ("other", "../qwen3"),
        ("prompts", "0"),
        ("prompts", "1; id"),
        ("name", "../x"),
        ("name", "tea"),
        ("name", ""),
    ] {
        let fields: Vec<(&str, &str)> =
            good.iter().map(|(key, own)| (*key, if *key == name { value } else { *own })).collect();
        let status = compare(&fields).status;
        assert!([400, 422].contains(&status), "{name}={value}: {status}");
    }
    assert!(recorder.requests().is_empty());
    assert_eq!(compare(&good).status, 303);
    let request = recorder.requests().remove(0);
    assert!(
        request.starts_with("compare blind") && request.contains("gpt2") && request.contains("tea-prompt.jsonl\", 2"),
        "{request}"
    );
    assert!(ada.get("/annotate").body.contains("blind: models are writing answers, 16 of 100"));
    // An invalid progress file is ignored.
    fs::write(folder.path().join("configs/project-blind.progress"), "{\"done\": \"<b>\", \"of\": -1}")
        .expect("written");
    assert!(ada.get("/annotate").body.contains("blind: models are writing answers"));
    // A person who is not an owner cannot do any of this, and neither can anyone on a server without `--allow-training`.
    let bob = person(&server, folder.path(), "bob", Role::Reviewer);
    assert_eq!(bob.form("/annotate/tea/train", &[("form", "prompt"), ("method", "grpo")]).status, 403);
    let server = Server::over(folder.path());
    let ada = person(&server, folder.path(), "ada", Role::Owner);
    assert_eq!(ada.form("/annotate/tea/train", &[("form", "prompt"), ("method", "grpo")]).status, 403);
    assert!(ada.get("/annotate/tea/results").body.contains("--allow-training"));
}

#[test]
fn downloads_have_the_form_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    new_project(folder.path(), &project(folder.path(), "comparison", &[pair("Q?")], 1), &mut |_, _| {})
        .expect("a project");
    let server = Server::over(folder.path());
    let ada = person(&server, folder.path(), "ada", Role::Owner);
    hand_in(&ada, "first");
    let csv = ada.get("/annotate/tea/preference.csv");
    assert!(
        csv.body.starts_with("prompt,chosen,rejected") && csv.header("content-type") == Some("text/csv; charset=utf-8"),
        "{csv:?}"
    );
    assert!(ada.get("/annotate/tea/preference.parquet").body.starts_with("PAR1"));
    let arrow = ada.get("/annotate/tea/preference.arrow");
    assert_eq!((arrow.status, arrow.header("content-type")), (200, Some("application/vnd.apache.arrow.stream")));
    assert_eq!(ada.get("/annotate/tea/label-studio.json").json()[0]["data"]["answer1"], "a b");
    assert_eq!(ada.get("/annotate/tea/argilla.json").json()[0]["responses"]["1v2"][0]["value"], "first");
    for path in ["preference.xlsx", "preference", "nothing.jsonl", "..%2frows.jsonl"] {
        assert_eq!(ada.get(&format!("/annotate/tea/{path}")).status, 404, "{path}");
    }
}

#[test]
fn two_servers_on_one_folder_keep_what_is_said_at_both() {
    const TASKS: usize = 12;
    let folder = tempfile::tempdir().expect("a folder");
    let rows: Vec<Value> = (0..TASKS).map(|i| pair(&format!("Q{i}?"))).collect();
    new_project(folder.path(), &project(folder.path(), "comparison", &rows, 4), &mut |_, _| {}).expect("a project");
    let servers = [Server::over(folder.path()), Server::over(folder.path())];
    let annotate = |server: &Server, name: &str| {
        let visitor = person(server, folder.path(), name, Role::Annotator);
        (0..TASKS).for_each(|_| assert!(hand_in(&visitor, "first") > 0));
    };
    std::thread::scope(|scope| {
        let annotate = &annotate;
        for (server, name) in [(0, "a"), (1, "b"), (0, "c"), (1, "d")] {
            let server = &servers[server];
            scope.spawn(move || annotate(server, name));
        }
        // The command line writes to the database too.
        for name in ["more", "most"] {
            let new = NewProject { name: name.into(), ..project(folder.path(), "comparison", &rows, 1) };
            new_project(folder.path(), &new, &mut |_, _| {}).expect("a project");
        }
    });
    let rows = export_project(folder.path(), "tea", Form::Preference).expect("rows");
    assert_eq!(rows.len(), 4 * TASKS);
}

#[test]
fn while_another_process_writes_others_are_served_and_a_save_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    new_project(folder.path(), &project(folder.path(), "comparison", &[pair("Q?")], 1), &mut |_, _| {})
        .expect("a project");
    let server = Server::over(folder.path());
    let ada = person(&server, folder.path(), "ada", Role::Annotator);
    let path = ada.get("/annotate/tea").header("location").expect("a task").to_owned();
    let answer = json!({ "answer": { "ranks": { "1v2": "first" } }, "state": "done", "seconds": 1.0 });
    let save = || ada.script(&format!("{path}/keep"), &answer);
    let mut other = rusqlite::Connection::open(folder.path().join("gradus.sqlite")).expect("the file");
    let lock = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("locked");
    std::thread::scope(|scope| {
        let saving = scope.spawn(save);
        // Meanwhile, pages and the list of models can be read any number of times.
        for path in ["/", "/v1/models", "/assets/style.css", "/annotate", path.as_str()] {
            assert_eq!(ada.get(path).status, 200, "{path}");
        }
        assert!(!saving.is_finished(), "it waits");
        lock.rollback().expect("released");
        assert_eq!(saving.join().expect("saved").status, 200);
    });
    // If another process holds the lock for too long, the error says so, and the page can retry.
    let lock = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("locked");
    let refused = save();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")), "{}", refused.body);
    assert!(refused.body.contains("gradus.sqlite: another process is writing it"), "{}", refused.body);
    lock.rollback().expect("released");
    assert_eq!(save().status, 200);
}

#[test]
fn letters_name_no_model_and_what_was_shown_is_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: Vec<Value> = (0..16).map(|i| pair(&format!("Q{i}?"))).collect();
    new_project(folder.path(), &project(folder.path(), "comparison", &rows, 1), &mut |_, _| {}).expect("a project");
    let server = Server::over(folder.path());
    let ada = person(&server, folder.path(), "ada", Role::Annotator);
    let mut left = Vec::new();
    for _ in 0..16 {
        let path = ada.get("/annotate/tea").header("location").expect("a task").to_owned();
        let page = ada.get(&path);
        assert!(page.status == 200 && !page.body.contains("Answer 1"), "{}", page.body);
        let state = ada.get(&format!("{path}/state")).json();
        let order = state["shown"]["order"].clone();
        // A is always on the left, whichever answer it is.
        assert_eq!(state["shown"]["swapped"], json!([order[0] == 1]));
        assert_eq!(state["judged"]["problems"], json!(["Compare A and B."]));
        // Always prefer the left answer.
        let rank = if order[0] == 0 { "first" } else { "second" };
        left.push(order[0] == 0);
        let answer = json!({ "answer": { "ranks": { "1v2": rank } }, "state": "done", "seconds": 1.0 });
        assert_eq!(ada.script(&format!("{path}/keep"), &answer).status, 200);
    }
    assert!(left.contains(&true) && left.contains(&false), "16 alike have a probability of 1 in 32,768");
    let stats = project_stats(folder.path(), "tea").expect("stats");
    assert_eq!(stats.left_preferred, Number::Value(1.0), "counted from what was shown");
    let raw = export_project(folder.path(), "tea", Form::Raw).expect("rows");
    assert_eq!(raw[0]["shown"]["order"].as_array().map(Vec::len), Some(2));
    assert_eq!((stats.comparisons[0].votes, stats.comparisons[0].tie.value), (16, 0.0));
}

#[test]
fn two_windows_overwrite_nothing_of_each_other_unseen() {
    let folder = tempfile::tempdir().expect("a folder");
    new_project(folder.path(), &project(folder.path(), "comparison", &[pair("Q?")], 1), &mut |_, _| {})
        .expect("a project");
    let server = Server::over(folder.path());
    let ada = person(&server, folder.path(), "ada", Role::Annotator);
    let path = ada.get("/annotate/tea").header("location").expect("a task").to_owned();
    ada.get(&path);
    let save = |rank: &str, revision: u64, page: &str| {
        let answer = json!({ "answer": { "ranks": { "1v2": rank } }, "state": "open", "seconds": 1.0, "revision": revision, "page": page });
        ada.script(&format!("{path}/keep"), &answer)
    };
    assert_eq!(save("first", 0, "one").json()["revision"], 1);
    let stale = save("second", 0, "other");
    assert_eq!(stale.status, 409);
    let both = stale.json();
    assert_eq!((&both["answer"]["ranks"]["1v2"], &both["revision"]), (&json!("first"), &json!(1)));
    let (mine, theirs) = (both["mine"][0].as_str().expect("a line"), both["theirs"][0].as_str().expect("a line"));
    assert!(mine != theirs && mine.contains("is better") && theirs.contains("is better"), "{both}");
    assert_eq!(ada.get(&format!("{path}/state")).json()["answer"]["ranks"]["1v2"], "first");
    // A page whose save was stored but never confirmed does not conflict with itself.
    assert_eq!(save("tie", 0, "one").json()["revision"], 2);
    assert_eq!(save("second", 2, "other").json()["revision"], 3);
    assert_eq!(save("second", 3, &"x".repeat(65)).status, 400);
}

#[test]
fn an_owner_releases_what_somebody_has_open() {
    let folder = tempfile::tempdir().expect("a folder");
    new_project(folder.path(), &project(folder.path(), "comparison", &[pair("Q?")], 1), &mut |_, _| {})
        .expect("a project");
    let server = Server::over(folder.path());
    let (ada, bob) = (
        person(&server, folder.path(), "ada", Role::Annotator),
        person(&server, folder.path(), "bob", Role::Annotator),
    );
    let eve = person(&server, folder.path(), "eve", Role::Owner);
    assert_eq!(ada.get("/annotate/tea").status, 303);
    assert!(bob.get("/annotate/tea").body.contains("No task is left for you"));
    let results = eve.get("/annotate/tea/results").body;
    assert!(results.contains("Open tasks") && results.contains("Release task 1 of ada"), "{results}");
    let release = [("task", "1"), ("person", "ada")];
    assert_eq!(bob.form("/annotate/tea/release", &release).status, 403);
    assert_eq!(eve.form("/annotate/tea/release", &release).status, 303);
    assert_eq!(bob.get("/annotate/tea").header("location"), Some("/annotate/tea/task/1"));
    assert_eq!(ada.get("/annotate/tea/task/1").status, 403);
    // The same from the terminal.
    assert_eq!(gradus_web::release_tasks(folder.path(), "tea", None, None).expect("released"), 1);
    assert_eq!(ada.get("/annotate/tea").status, 303);
}

#[test]
fn every_comparison_has_wins_ties_and_losses() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = [pair("Q?"), pair("R?")];
    new_project(folder.path(), &project(folder.path(), "comparison", &rows, 1), &mut |_, _| {}).expect("a project");
    let server = Server::over(folder.path());
    let eve = person(&server, folder.path(), "eve", Role::Owner);
    assert!(eve.get("/annotate/tea/results").body.contains("Nobody has begun yet"));
    assert_eq!([hand_in(&eve, "first"), hand_in(&eve, "first")], [1, 2]);
    let page = eve.get("/annotate/tea/results").body;
    // Two wins of two: Wilson's interval is 34 to 100 %.
    assert!(page.contains("100 % <span class=\"soft small\">(34–100)</span>"), "{page}");
    assert!(page.contains("0 % <span class=\"soft small\">(0–66)</span>"), "{page}");
    assert!(page.contains("no ranking of the models (Bradley–Terry): "), "{page}");
    // Only forms with rows are offered. A comparison has no marks for reward models of segments.
    assert!(page.contains("preference.jsonl") && page.contains("<td>every annotation"), "{page}");
    assert!(!page.contains("r1.jsonl") && !page.contains("r3.jsonl"), "{page}");
}

#[test]
fn an_owner_makes_a_project_and_invites_people_in_the_browser() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rows.jsonl"), format!("{}\n", pair("Q?"))).expect("written");
    let server = Server::over(folder.path());
    let eve = person(&server, folder.path(), "eve", Role::Owner);
    let bob = person(&server, folder.path(), "bob", Role::Reviewer);
    let page = eve.get("/annotate").body;
    assert!(
        page.contains("New project") && page.contains("rows.jsonl") && page.contains("There is no project yet"),
        "{page}"
    );
    assert!(!bob.get("/annotate").body.contains("New project"));
    // Commands name the folder, because a terminal is rarely in it.
    let own = format!(" --folder {}<", folder.path().canonicalize().expect("a folder").display());
    assert!(page.contains(&format!("--labels comparison{own}")), "{page}");
    let page = Visitor::of(&server).get("/annotate").body;
    assert!(page.contains(&format!("invite NAME --role owner{own}")), "{page}");
    // A wrong token is reported in the form, which keeps the name.
    let refused = Visitor::of(&server).form("/annotate/enter", &[("name", "ada"), ("token", "x")]);
    assert!(refused.status == 403 && refused.body.contains("do not match.</p>"), "{}", refused.body);
    assert!(refused.body.contains("name=\"name\" value=\"ada\"") && refused.body.contains("aria-invalid"));
    let form = |name: &'static str, data: &'static str, labels: &'static str, annotators: &'static str| {
        vec![("name", name), ("data", data), ("labels", labels), ("annotators", annotators)]
    };
    assert_eq!(bob.form("/annotate/+new", &form("tea", "rows.jsonl", "comparison", "1")).status, 403);
    for (wrong, status) in [
        (form("a/b", "rows.jsonl", "comparison", "1"), 422),
        (form("tea", "/etc/passwd", "comparison", "1"), 400),
        (form("tea", "rows.jsonl", "/etc/passwd", "1"), 400),
        (form("tea", "rows.jsonl", "comparison", "0"), 400),
    ] {
        assert_eq!(eve.form("/annotate/+new", &wrong).status, status, "{wrong:?}");
    }
    assert_eq!(eve.form("/annotate/+new", &form("tea", "rows.jsonl", "comparison", "1")).status, 303);
    assert_eq!(
        eve.form("/annotate/+new", &form("tea", "rows.jsonl", "comparison", "1")).status,
        422,
        "the name is taken"
    );
    // The invited person can sign in with the token of the invitation.
    assert_eq!(bob.form("/annotate/+invite", &[("name", "ada"), ("role", "owner")]).status, 403);
    let own = eve.form("/annotate/+invite", &[("name", "eve"), ("role", "annotator")]);
    assert!(own.status == 400 && own.body.contains("invite eve --role owner --folder"), "{}", own.body);
    let page = eve.form("/annotate/+invite", &[("name", "ada"), ("role", "annotator")]).body;
    let token = page.split("id=\"token\">").nth(1).and_then(|rest| rest.split('<').next()).expect("a token").to_owned();
    let ada = Visitor::of(&server);
    assert_eq!(ada.form("/annotate/enter", &[("name", "ada"), ("token", &token)]).status, 303);
    assert_eq!(hand_in(&ada, "first"), 1);
    assert!(ada.get("/annotate").body.contains("1 submitted"));
}

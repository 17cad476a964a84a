//! Tests runs started from pages: a run starts exactly as shown, and no page can name a path or a command.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use gradus_web::{Role, RunStarter, invite};
use serde_json::json;

use crate::client::{Server, Visitor, folder};
use crate::recorder::Recorder;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn training(folder: &Path) -> (Server, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    (Server::with(folder, HERE, Some(Arc::clone(&recorder) as Arc<dyn RunStarter>)), recorder)
}

/// Creates a folder with a model, a reward model, rows and a run.
fn full() -> tempfile::TempDir {
    let folder = folder(&["gpt2", "qwen3-reward"]);
    fs::write(folder.path().join("tea.jsonl"), "{\"prompt\": \"The tea\"}\n").expect("written");
    run(&folder.path().join("old"), "# Written by gradus 0.1.0.\n");
    folder
}

fn run(path: &Path, head: &str) {
    fs::create_dir_all(path).expect("a folder");
    fs::write(path.join("config.yml"), format!("{head}model: gpt2\nmethod:\n  sft: {{}}\n")).expect("written");
    fs::write(path.join("metrics.jsonl"), "{\"step\": 1, \"loss\": 2.0}\n").expect("written");
}

const FORM: [(&str, &str); 4] =
    [("method", "grpo"), ("model", "gpt2"), ("data", "tea.jsonl"), ("reward-model", "qwen3-reward")];

fn draft(page: &str) -> String {
    let draft = page.split("name=\"draft\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
    draft.unwrap_or_else(|| panic!("no plan: {page}")).to_owned()
}

#[test]
fn without_leave_nothing_is_begun_or_changed() {
    let folder = full();
    let server = Server::over(folder.path());
    let visitor = Visitor::of(&server);
    for path in ["/runs/new", "/runs/new?method=sft", "/runs/delete?run=old"] {
        assert_eq!(visitor.get(path).status, 403, "{path}");
    }
    for path in ["new", "start", "stop", "resume", "export", "delete"] {
        let fields = [("draft", "x"), ("run", "old"), ("snapshot", "model"), ("name", "x"), ("confirm", "old")];
        let answer = visitor.form(&format!("/runs/{path}"), &fields);
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
    }
    assert!(!visitor.get("/runs").body.contains("/runs/new") && folder.path().join("old").is_dir());
}

#[test]
fn what_was_shown_is_what_begins_and_only_once() {
    let folder = full();
    let (server, recorder) = training(folder.path());
    let visitor = Visitor::of(&server);
    let form = visitor.get("/runs/new?method=grpo").body;
    assert!(
        form.contains("tea.jsonl") && form.contains("qwen3-reward") && form.contains("name=\"group-size\""),
        "{form}"
    );
    // The model has 192 positions, so the usual 512 new tokens have no room.
    assert!(form.contains("name=\"max-new-tokens\" value=\"96\""), "{form}");
    // A bad name does not hide another mistake. The messages are next to their fields.
    let wrong = [&FORM[..], &[("name", "a/b"), ("learning-rate", "fast")]].concat();
    let page = visitor.form("/runs/new", &wrong).body;
    assert!(page.contains("id=\"problem-name\"") && page.contains("id=\"problem-learning-rate\""), "{page}");
    assert!(page.contains("<a href=\"#name\">Name of the run</a>"), "{page}");
    let filled = [&FORM[..], &[("name", "first"), ("group-size", "4"), ("max-steps", "3")]].concat();
    let page = visitor.form("/runs/new", &filled).body;
    assert!(page.contains("4.0 MB") && page.contains("--group-size 4") && page.contains("Start first"), "{page}");
    let draft = draft(&page);
    assert!(!folder.path().join("first").exists(), "nothing has begun");
    // The configuration of an earlier run of this name has a hard link. It must be replaced, not overwritten in place.
    let configs = folder.path().join("configs");
    let (earlier, copy) = (configs.join("run-first.yml"), folder.path().join("copy.yml"));
    fs::write(&copy, "an earlier run").expect("written");
    fs::hard_link(&copy, &earlier).expect("linked");
    assert_eq!(visitor.form("/runs/start", &[("draft", &draft)]).status, 303);
    let requests = recorder.requests();
    let (plan, train) =
        (requests[0].strip_prefix("plan ").expect("a plan"), requests[1].strip_prefix("train ").expect("a run"));
    assert_eq!(plan, train);
    assert!(
        train.contains("group_size: 4 # set") && train.contains(&folder.path().join("first").display().to_string())
    );
    assert_eq!(visitor.form("/runs/start", &[("draft", &draft)]).status, 404, "once");
    assert_eq!(requests.len(), 2);
    // Only permanent files are there: the plan's file has been deleted.
    let names = fs::read_dir(folder.path().join("configs")).expect("a folder").count();
    assert_eq!(names, 2);
    assert_eq!(fs::read_to_string(&copy).expect("read"), "an earlier run");
    assert_eq!(fs::read_to_string(&earlier).expect("read"), requests[1].strip_prefix("train ").expect("a run"));
    assert!(visitor.get("/runs/show?run=first").body.contains("The run is starting"));
    assert!(visitor.get("/runs").body.contains("starting"));
    assert_eq!(visitor.get("/runs/state?run=first").json(), json!({ "state": null, "going": true }));

    // The name is taken, even for a second plan that was made earlier.
    assert!(visitor.form("/runs/new", &filled).body.contains("first exists already"));

    // The run ends before it really began: the page shows the output of its process as text, and the name is free again.
    recorder.end();
    let page = visitor.get("/runs/show?run=first").body;
    assert!(page.contains("error: &lt;b&gt;no&lt;/b&gt; tea") && !folder.path().join("first").exists(), "{page}");
    assert_eq!(visitor.get("/runs/state?run=first").json()["going"], false);
}

#[test]
fn no_page_names_a_path_a_command_or_a_key_that_is_not_offered() {
    let folder = full();
    let outside = full();
    let (server, recorder) = training(folder.path());
    let visitor = Visitor::of(&server);
    let absolute = outside.path().join("gpt2").display().to_string();
    let data = outside.path().join("tea.jsonl").display().to_string();
    for (name, value) in [
        ("model", absolute.as_str()),
        ("model", "../gpt2"),
        ("model", "gpt2/"),
        ("model", "hub/name"),
        ("data", &data),
        ("data", "../tea.jsonl"),
        ("data", "config.json"),
        ("reward-model", "gpt2"),
        ("output-dir", "/tmp/x"),
        ("reward-command", "touch /tmp/x"),
        ("mix", "[{data: /etc/passwd}]"),
        ("chat-template", "/etc/passwd"),
        ("device", "gpu"),
        ("name", "../x"),
        ("name", "/tmp/x"),
        ("name", ".hidden"),
        ("name", "configs"),
        ("name", "-rf"),
        ("group-size", "4\nreward: {command: [touch, /tmp/x]}"),
        ("learning-rate", "{command: x}"),
        ("loss-type", "[a]"),
    ] {
        let mut form: Vec<(&str, &str)> = FORM.iter().filter(|(known, _)| *known != name).copied().collect();
        form.push((name, value));
        let answer = visitor.form("/runs/new", &form);
        assert!(
            answer.status == 200 && answer.body.contains("The run cannot be planned yet"),
            "{name}={value}: {}",
            answer.body
        );
    }
    assert_eq!(recorder.requests(), Vec::<String>::new());
    for method in ["", "nothing", "../sft"] {
        assert_eq!(visitor.form("/runs/new", &[("method", method)]).status, 400, "{method}");
    }
    // Text values are written to the file as text.
    let form = [&FORM[..], &[("reward-rule-substring", "a\"\nmodel: /etc # $(id)")]].concat();
    let form: Vec<(&str, &str)> = form.into_iter().filter(|(name, _)| *name != "reward-model").collect();
    let page = visitor.form("/runs/new", &form).body;
    assert!(page.contains("Start grpo-gpt2-1"), "{page}");
    let request = recorder.requests().remove(0);
    assert_eq!(request.lines().filter(|line| line.starts_with("model:")).count(), 1, "{request}");
}

#[test]
fn only_what_is_surely_a_run_of_the_folder_is_deleted_and_only_by_its_name() {
    let folder = full();
    let outside = tempfile::tempdir().expect("a folder");
    run(&outside.path().join("theirs"), "# Written by gradus 0.1.0.\n");
    run(&folder.path().join("foreign"), "");
    #[cfg(unix)]
    std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).expect("a link");
    let (server, _) = training(folder.path());
    let visitor = Visitor::of(&server);
    let delete = |run: &str, confirm: &str| visitor.form("/runs/delete", &[("run", run), ("confirm", confirm)]).status;
    assert_eq!(delete("old", ""), 400);
    assert_eq!(delete("old", "old2"), 400);
    for name in ["link/theirs", "../theirs", "", ".", "gpt2", "/etc", "tea.jsonl"] {
        assert_eq!(delete(name, name), 404, "{name}");
        for (path, fields) in [
            ("stop", vec![("run", name)]),
            ("resume", vec![("run", name), ("max_steps", "3")]),
            ("export", vec![("run", name), ("snapshot", "model"), ("name", "x")]),
        ] {
            assert_eq!(visitor.form(&format!("/runs/{path}"), &fields).status, 404, "{path} {name}");
        }
    }
    assert_eq!(delete("foreign", "foreign"), 422, "nothing shows that it is ours");
    assert!(outside.path().join("theirs/config.yml").is_file() && folder.path().join("foreign/config.yml").is_file());
    let page = visitor.get("/runs/delete?run=old").body;
    assert!(page.contains("is lost") && folder.path().join("old").is_dir(), "{page}");
    assert_eq!(delete("old", "old"), 303);
    assert!(!folder.path().join("old").exists() && folder.path().join("gpt2").is_dir());
}

#[test]
fn a_run_goes_on_by_its_place_in_the_list() {
    let folder = full();
    let (server, recorder) = training(folder.path());
    let visitor = Visitor::of(&server);
    for steps in ["x", "-1", "0", "1; id"] {
        assert_eq!(visitor.form("/runs/resume", &[("run", "old"), ("max_steps", steps)]).status, 400, "{steps}");
    }
    assert_eq!(visitor.form("/runs/stop", &[("run", "old")]).status, 422, "nobody is at work in it");
    assert_eq!(visitor.form("/runs/resume", &[("run", "old"), ("max_steps", "7")]).status, 303);
    let path = folder.path().canonicalize().expect("a path").join("old");
    assert_eq!(recorder.requests(), [format!("resume {} Some(7)", path.display())]);
    assert_eq!(visitor.form("/runs/resume", &[("run", "old"), ("max_steps", "")]).status, 400, "it is at work");
    assert!(visitor.get("/runs/show?run=old").body.contains("about to resume"));
    for name in ["../x", "a/b", "", ".x", "x y"] {
        let fields = [("run", "old"), ("snapshot", "model"), ("name", name)];
        assert_eq!(visitor.form("/runs/export", &fields).status, 400, "{name}");
    }
}

#[test]
fn where_others_reach_the_server_only_owners_train() {
    let folder = full();
    let recorder = Arc::new(Recorder::default());
    let server = Server::with(folder.path(), IpAddr::from([0, 0, 0, 0]), Some(recorder as Arc<dyn RunStarter>));
    let visitor = Visitor::of(&server);
    let sign_in = |name: &str, role: Role| {
        let token = invite(folder.path(), name, role).expect("a token");
        assert_eq!(visitor.form("/annotate/enter", &[("name", name), ("token", &token)]).status, 303);
    };
    assert_eq!(visitor.get("/runs/new").status, 403, "nobody has signed in");
    sign_in("ada", Role::Reviewer);
    assert_eq!(visitor.form("/runs/delete", &[("run", "old"), ("confirm", "old")]).status, 403);
    sign_in("eve", Role::Owner);
    assert_eq!(visitor.get("/runs/new").status, 200);
    assert_eq!(visitor.form("/runs/delete", &[("run", "old"), ("confirm", "old")]).status, 303);
}

#[test]
#[cfg(unix)]
fn no_link_leads_an_export_or_a_resumed_run_out_of_the_folder() {
    let (folder, outside) = (full(), tempfile::tempdir().expect("a folder"));
    let (server, recorder) = training(folder.path());
    let visitor = Visitor::of(&server);
    fs::create_dir(folder.path().join("old/model")).expect("a folder");
    for entry in fs::read_dir(folder.path().join("gpt2")).expect("a model").flatten() {
        fs::copy(entry.path(), folder.path().join("old/model").join(entry.file_name())).expect("copied");
    }
    let export =
        |name: &str| visitor.form("/runs/export", &[("run", "old"), ("snapshot", "model"), ("name", name)]).status;
    assert_eq!(export("copy"), 303);
    assert!(folder.path().join("models/copy/config.json").is_file());
    // A folder of models outside the served folder.
    fs::rename(folder.path().join("models"), folder.path().join("before")).expect("renamed");
    let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, folder.path().join(name)).expect("a link");
    link(outside.path(), "models");
    assert_eq!(export("elsewhere"), 422);
    fs::remove_file(folder.path().join("models")).expect("removed");
    // A file of the model that is a link to someone else's file.
    fs::write(outside.path().join("secret.json"), "{}").expect("written");
    link(&outside.path().join("secret.json"), "old/model/secret.json");
    assert_eq!(export("secret"), 422);
    fs::remove_file(folder.path().join("old/model/secret.json")).expect("removed");
    // A run whose checkpoints would be written elsewhere.
    link(outside.path(), "old/checkpoints");
    assert_eq!(visitor.form("/runs/resume", &[("run", "old"), ("max_steps", "9")]).status, 422);
    assert!(recorder.requests().is_empty(), "{:?}", recorder.requests());
    let written: Vec<_> =
        fs::read_dir(outside.path()).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(written, ["secret.json"]);
}

#[test]
fn a_deleted_run_is_gone_and_no_failed_start() {
    let folder = full();
    let (server, recorder) = training(folder.path());
    let visitor = Visitor::of(&server);
    let resume = || visitor.form("/runs/resume", &[("run", "old"), ("max_steps", "7")]).status;
    assert_eq!(resume(), 303);
    recorder.end();
    assert!(visitor.get("/runs").body.contains("show?run=old"));
    assert_eq!(visitor.form("/runs/delete", &[("run", "old"), ("confirm", "old")]).status, 303);
    let page = visitor.get("/runs").body;
    assert!(!page.contains("show?run=old") && !page.contains("did not start"), "{page}");
    assert_eq!(visitor.get("/runs/show?run=old").status, 404);
    // The same if it is deleted in a terminal.
    run(&folder.path().join("old"), "# Written by gradus 0.1.0.\n");
    assert_eq!(resume(), 303);
    assert_eq!(visitor.get("/runs").status, 200);
    fs::remove_dir_all(folder.path().join("old")).expect("removed");
    let page = visitor.get("/runs").body;
    assert!(!page.contains("show?run=old") && !page.contains("did not start"), "{page}");
}

#[test]
fn a_critic_is_no_reward_model() {
    let folder = full();
    for name in ["critic", "model"] {
        let from = crate::client::fixture("qwen3-reward");
        let to = folder.path().join("old").join(name);
        fs::create_dir_all(&to).expect("a folder");
        for entry in fs::read_dir(from).expect("a fixture").flatten() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    }
    let (server, _) = training(folder.path());
    let visitor = Visitor::of(&server);
    let page = visitor.get("/runs/new?method=ppo").body;
    assert!(page.contains("old") && !page.contains("old/critic"), "{page}");
    assert!(!visitor.get("/").body.contains("critic"));
}

#[test]
fn an_empty_folder_offers_the_demonstration() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, recorder) = training(folder.path());
    let visitor = Visitor::of(&server);
    for path in ["/", "/runs"] {
        assert!(visitor.get(path).body.contains("Create the demonstration"), "{path}");
    }
    assert_eq!(visitor.form("/runs/demo", &[]).status, 303);
    assert_eq!(
        recorder.requests(),
        [format!("demo {}", folder.path().canonicalize().expect("a path").join("demo").display())]
    );
    for path in ["/", "/runs"] {
        let page = visitor.get(path).body;
        assert!(
            page.contains("The demonstration is running") && page.contains("<a href=\"/runs\">Runs</a>."),
            "{page}"
        );
        assert!(page.contains("data-going") && page.contains("/assets/making.js"), "{page}");
    }
    assert_eq!(visitor.form("/runs/demo", &[]).status, 422, "it is running");
    recorder.end();
    let page = visitor.get("/").body;
    assert!(page.contains("&lt;b&gt;no&lt;/b&gt; tea"), "what it said is shown, and not obeyed: {page}");
    assert!(!page.contains("/assets/making.js"), "{page}");
    // Without `--allow-training`, the page shows only the command.
    let other = tempfile::tempdir().expect("a folder");
    let server = Server::over(other.path());
    let visitor = Visitor::of(&server);
    let page = visitor.get("/").body;
    assert!(page.contains("gradus demo --output-dir") && !page.contains("/runs/demo"), "{page}");
    assert_eq!(visitor.form("/runs/demo", &[]).status, 403);
}

#[test]
fn error_pages_lead_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::over(folder.path());
    for path in ["/nowhere", "/runs/show?run=nothing", "/chat/9"] {
        let page = server.get(path);
        assert!(page.status == 404 && page.body.contains("href=\"/runs\""), "{path}: {}", page.body);
        assert!(page.body.contains("<h1>Not found</h1>") && page.body.contains("data-back"), "{path}: {}", page.body);
    }
    // The hint has a paragraph of its own.
    let folder = full();
    let server = Server::over(folder.path());
    let page = server.get("/runs/completions?run=old");
    assert!(page.status == 422 && page.body.contains("<h1>This did not work</h1>\n<p data-why>"), "{}", page.body);
    assert!(page.body.contains("</p>\n<p class=\"soft\" data-why>only online methods"), "{}", page.body);
}

#[test]
fn pages_of_runs_show_what_matters_first() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, config) in [
        ("a", "model: gpt2 # set\nmethod:\n  dpo:\n    beta: 0.1\ntrain:\n  seed: 1 # set\n"),
        ("b", "model: gpt2 # set\nmethod:\n  sft:\n    packing: false\ntrain:\n  seed: 2 # set\n"),
        ("c", "nonsense\n"),
    ] {
        let path = folder.path().join(name);
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("config.yml"), config).expect("written");
        fs::write(path.join("metrics.jsonl"), "{\"step\": 1, \"loss\": 2.0}\n").expect("written");
    }
    let server = Server::over(folder.path());
    let page = |path: &str| server.get(path).body;
    let one = page("/runs/show?run=a");
    assert!(!one.contains("/runs/completions") && one.contains("Defaults (1)"), "{one}");
    fs::write(folder.path().join("a/rollouts.sqlite"), "").expect("written");
    assert!(page("/runs/show?run=a").contains("/runs/completions?run=a"));
    // A broken run has its reason at the top and in the list.
    let broken = page("/runs/show?run=c");
    assert!(broken.contains("cannot be read.</strong></p>\n<ul><li>config.yml:1: "), "{broken}");
    let list = page("/runs");
    assert!(list.contains("<span class=\"why small soft\">config.yml:1: "), "{list}");
    // Defaults of one method are folded in comparisons.
    let both = page("/runs/show?run=a&run=b");
    let (telling, defaults) = both.split_once("Defaults that only one method has (2)").expect("a section");
    assert!(telling.contains("train.<wbr>seed") && !telling.contains("method.<wbr>beta"), "{both}");
    assert!(telling.contains("<h2>Results</h2>") && defaults.contains("method.<wbr>packing"), "{both}");
}

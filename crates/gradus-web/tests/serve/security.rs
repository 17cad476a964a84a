//! Tests attacks, each against a server that answers legitimate requests.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use gradus_web::{Role, invite};
use serde_json::json;

use crate::client::{Server, Visitor, folder};

fn server() -> (tempfile::TempDir, Server) {
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    (folder, server)
}

#[test]
fn a_name_that_was_made_to_point_here_gets_nothing() {
    let (_folder, server) = server();
    assert_eq!(server.get("/").status, 200);
    let port = server.address.socket.port();
    for host in
        ["evil.example", &format!("evil.example:{port}"), &format!("localhost.evil.example:{port}"), "127.0.0.1:1"]
    {
        for path in ["/", "/v1/models", "/assets/style.css"] {
            let answer = server.ask("GET", path, &[("Host", host)], "");
            assert_eq!(answer.status, 403, "{host} {path}");
            assert!(!answer.body.contains("gpt2") && answer.cookie().is_none(), "{host} {path}: {}", answer.body);
        }
    }
    let without = server.raw(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!([400, 403].contains(&without.status), "{without:?}");
    assert_eq!(server.ask("GET", "/", &[("Host", &format!("localhost:{port}"))], "").status, 200);
}

#[test]
fn a_page_of_another_site_cannot_act() {
    let (_folder, server) = server();
    let body = json!({ "model": "gpt2", "prompt": "The tea", "max_tokens": 1 }).to_string();
    let json = ("Content-Type", "application/json");
    let own = format!("http://{}", server.host());
    assert_eq!(server.ask("POST", "/v1/completions", &[json, ("Origin", &own)], &body).status, 200);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example"] {
        let answer = server.ask("POST", "/v1/completions", &[json, ("Origin", origin)], &body);
        assert_eq!(answer.status, 403, "{origin}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    // A form can send these content types without a preflight request, but they are not JSON.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        assert_eq!(server.ask("POST", "/v1/completions", &[("Content-Type", kind)], &body).status, 415, "{kind}");
    }
    // No response permits another origin to read.
    let answer = server.ask("OPTIONS", "/v1/completions", &[("Origin", "http://evil.example")], "");
    assert!(answer.status == 403 && answer.header("access-control-allow-origin").is_none(), "{answer:?}");
}

#[test]
fn what_changes_something_needs_the_token_of_the_page() {
    let (_folder, server) = server();
    let page = server.get("/");
    let cookie = page.cookie().expect("a session").to_owned();
    let attributes = page.header("set-cookie").expect("a session");
    assert!(attributes.contains("HttpOnly") && attributes.contains("SameSite=Lax"), "{attributes}");
    let token = page.body.split("name=\"csrf\" content=\"").nth(1).and_then(|rest| rest.split('"').next());
    let token = token.expect("the page knows its token").to_owned();
    let ask = |headers: &[(&str, &str)], body: &str| server.ask("POST", "/nowhere", headers, body).status;
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    // Nothing exists at this address, so status 404 means that the request passed the checks.
    assert_eq!(ask(&[("Cookie", &cookie), ("X-CSRF-Token", &token)], ""), 404);
    assert_eq!(ask(&[("Cookie", &cookie), form], &format!("a=1&csrf={token}")), 404);
    let other = server.get("/");
    let other = other.cookie().expect("another session");
    for (headers, body) in [
        (vec![("Cookie", cookie.as_str())], String::new()),
        (vec![("X-CSRF-Token", token.as_str())], String::new()),
        (vec![("Cookie", other), ("X-CSRF-Token", &token)], String::new()),
        (vec![("Cookie", &cookie), ("X-CSRF-Token", &token[..63])], String::new()),
        (vec![("Cookie", &cookie), ("X-CSRF-Token", "")], String::new()),
        (vec![("Cookie", &cookie), form], "csrf=".into()),
        (vec![("Cookie", &cookie), ("Content-Type", "text/plain")], format!("csrf={token}")),
    ] {
        assert_eq!(ask(&headers, &body), 403, "{headers:?} {body}");
    }
}

#[test]
fn others_need_the_token_that_was_printed() {
    let folder = folder(&["gpt2"]);
    let server = Server::at(folder.path(), IpAddr::from([0, 0, 0, 0]));
    let token = server.address.token.clone().expect("a token");
    assert!(server.address.url().ends_with(&format!("/?token={token}")));
    for path in ["/", "/v1/models", "/assets/style.css", "/?token=", &format!("/?token={}", &token[..63])] {
        let answer = server.get(path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.cookie().is_none() && !answer.body.contains("gpt2") && !answer.body.contains(&token));
    }
    let bearer = |token: &str| server.ask("GET", "/v1/models", &[("Authorization", &format!("Bearer {token}"))], "");
    assert_eq!(bearer(&token).status, 200);
    let wrong = bearer(&"0".repeat(64));
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert!(wrong.body.contains("as the API key"), "{}", wrong.body);
    let entered = server.get(&format!("/?token={token}"));
    assert_eq!((entered.status, entered.header("location")), (303, Some("/")), "the token leaves the address");
    for (address, page) in [("/runs?sort=step&token=", "/runs?sort=step"), ("//evil.example/?token=", "/evil.example/")]
    {
        let entered = server.get(&format!("{address}{token}"));
        assert_eq!((entered.status, entered.header("location")), (303, Some(page)));
    }
    assert_eq!(server.get(&format!("/v1/models?token={token}")).status, 200, "programs keep no cookies");
    let attributes = entered.header("set-cookie").expect("a cookie");
    assert!(attributes.contains("HttpOnly") && attributes.contains("SameSite=Lax"), "{attributes}");
    let cookie = entered.cookie().expect("a cookie");
    assert_eq!(server.ask("GET", "/", &[("Cookie", cookie)], "").status, 200);
    // IP addresses are accepted as hosts. Names are not, because anyone can point a name at this server.
    let host = format!("evil.example:{}", server.address.socket.port());
    assert_eq!(server.ask("GET", "/", &[("Cookie", cookie), ("Host", &host)], "").status, 403);
    // A server that listens only on this machine has no token.
    assert_eq!(Server::over(folder.path()).address.token, None);
}

#[test]
fn browsers_are_told_to_load_nothing_from_elsewhere_and_to_run_nothing_within() {
    let (_folder, server) = server();
    for path in ["/", "/v1/models", "/assets/style.css", "/nowhere"] {
        let answer = server.get(path);
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
}

#[test]
fn names_from_outside_are_shown_and_not_obeyed() {
    let folder = folder(&["gpt2"]);
    let hostile = "<img src=x onerror=alert(1)>\u{202e}\u{1b}[2J";
    std::fs::rename(folder.path().join("gpt2"), folder.path().join(hostile)).expect("renamed");
    let server = Server::over(folder.path());
    let page = server.get("/").body;
    assert!(!page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{1b}[2J"), "{page}");
    // Programs receive the name unchanged.
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], hostile);
}

#[test]
fn a_path_that_cannot_be_read_is_a_page_that_does_not_exist() {
    let (_folder, server) = server();
    for path in ["/chat/abc", "/chat/%ff", "/annotate/tea/task/abc"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("There is no such page."), "{path}: {}", answer.body);
    }
    let answer = server.get("/v1/models/%ff");
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (404, &json!("invalid_request_error")));
}

#[test]
fn nothing_outside_the_folder_is_reached() {
    let outside = folder(&["gpt2"]);
    let inside = folder(&["qwen3"]);
    #[cfg(unix)]
    std::os::unix::fs::symlink(outside.path().join("gpt2"), inside.path().join("link")).expect("a link");
    let server = Server::over(inside.path());
    assert_eq!(server.get("/v1/models").json()["data"].as_array().map(Vec::len), Some(1));
    let relative = format!("../{}/gpt2", outside.path().file_name().and_then(|n| n.to_str()).expect("a name"));
    let absolute = outside.path().join("gpt2").to_string_lossy().into_owned();
    for name in [relative.as_str(), &absolute, "link", "qwen3/../qwen3", "./qwen3", "qwen3/", "", "/etc", "gpt2"] {
        let answer = server.post("/v1/completions", &json!({ "model": name, "prompt": "a", "max_tokens": 1 }));
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")), "{name}");
    }
    for path in [
        "/assets/../gradus.sqlite",
        "/assets/..%2fgradus.sqlite",
        "/gradus.sqlite",
        "/%2e%2e/etc/passwd",
        "//etc/passwd",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn a_request_that_is_too_large_is_not_read() {
    let (_folder, server) = server();
    let json = "Content-Type: application/json\r\n";
    let host = server.host();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{json}");
    let much = "x".repeat(17 << 20);
    let claimed = format!("{head}Content-Length: {}\r\n\r\n", 1u64 << 40);
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{much}\r\n0\r\n\r\n", much.len());
    for request in [claimed, chunked] {
        let answer = server.raw(request.as_bytes());
        assert!([413, 0].contains(&answer.status), "{answer:?}");
    }
    assert_eq!(server.get("/").status, 200, "the server goes on");
}

#[test]
fn broken_requests_end_alone() {
    let (_folder, server) = server();
    for request in [
        &b"\0\0\0\0"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/models/%ff%00 HTTP/1.1\r\nConnection: close\r\n\r\n",
    ] {
        assert!(server.raw(request).status >= 400 || server.raw(request).status == 0);
    }
    assert_eq!(server.get("/v1/models").status, 200);
}

const EVERYWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

fn run(path: &Path) {
    fs::create_dir_all(path).expect("a folder");
    fs::write(path.join("config.yml"), "# Written by gradus 0.1.0.\nmodel: gpt2\nmethod:\n  sft: {}\n")
        .expect("written");
    fs::write(path.join("metrics.jsonl"), "{\"step\": 1, \"loss\": 2.0}\n").expect("written");
}

/// The page of a run starts with its warnings.
#[test]
fn the_page_of_a_run_shows_its_warnings() {
    let folder = folder(&[]);
    let path = folder.path().join("own");
    run(&path);
    fs::write(path.join("log.txt"), "      0.1s  message\n      0.2s  warning: step 3: the run <diverges>\n")
        .expect("written");
    let server = Server::at(folder.path(), EVERYWHERE);
    let page = Visitor::of(&server).get("/runs/show?run=own").body;
    let (warning, curves) = (page.find("step 3: the run &lt;diverges&gt;"), page.find("id=\"plot\""));
    assert!(warning.is_some() && warning < curves, "{page}");
    assert!(page.contains("<option value=\"num_examples\">examples</option>"), "{page}");
}

#[test]
#[cfg(unix)]
fn the_token_of_the_server_alone_changes_no_run_and_nobody_changes_one_outside() {
    let (folder, outside) = (folder(&[]), folder(&[]));
    run(&folder.path().join("own"));
    run(&folder.path().join("partly"));
    run(&outside.path().join("theirs"));
    let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, folder.path().join(name)).expect("a link");
    link(&outside.path().join("theirs"), "linked");
    link(outside.path(), "partly/checkpoints");
    let server = Server::at(folder.path(), EVERYWHERE);
    let visitor = Visitor::of(&server);
    let tag = |run: &str| visitor.form("/runs/tag", &[("run", run), ("add", "good")]).status;
    let page = || visitor.get("/runs/show?run=own").body;
    assert_eq!((tag("own"), page().contains("New tag")), (403, false), "nobody has signed in");
    for (role, status) in [(Role::Annotator, 403), (Role::Reviewer, 403), (Role::Owner, 303)] {
        let token = invite(folder.path(), "ada", role).expect("a token");
        assert_eq!(visitor.form("/annotate/enter", &[("name", "ada"), ("token", &token)]).status, 303);
        assert_eq!((tag("own"), page().contains("New tag")), (status, status == 303), "{role:?}");
    }
    assert_eq!([tag("linked"), tag("partly")], [404, 422]);
    assert!(folder.path().join("own/tags.json").is_file());
    assert!(!folder.path().join("partly/tags.json").exists() && !outside.path().join("theirs/tags.json").exists());
}

#[test]
fn who_guesses_waits_and_who_knows_does_not() {
    let folder = folder(&[]);
    let server = Server::at(folder.path(), EVERYWHERE);
    let guess = |token: &str| {
        let begun = Instant::now();
        let status = server.ask("GET", "/v1/models", &[("Authorization", &format!("Bearer {token}"))], "").status;
        (status, begun.elapsed())
    };
    for _ in 0..3 {
        assert_eq!(guess(&"0".repeat(64)).0, 401);
    }
    let (status, took) = guess(&"0".repeat(64));
    assert!(status == 401 && took >= Duration::from_secs(1), "{status} after {took:?}");
    let token = server.address.token.clone().expect("a token");
    assert_eq!(guess(&token).0, 200, "the right one is right all the same");
    // Guesses of personal tokens are slowed down too.
    let visitor = Visitor::of(&server);
    let token = invite(folder.path(), "ada", Role::Owner).expect("a token");
    let begun = Instant::now();
    let enter = |token: &str| visitor.form("/annotate/enter", &[("name", "ada"), ("token", token)]).status;
    assert_eq!(enter(&"0".repeat(64)), 403);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(enter(&token), 303);
}

#[test]
fn who_only_looks_leaves_nothing_behind() {
    let folder = folder(&[]);
    let server = Server::over(folder.path());
    let rows = || -> i64 {
        let file = rusqlite::Connection::open(folder.path().join("gradus.sqlite")).expect("a file");
        let tables: Vec<String> = {
            let mut names = file.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").expect("read");
            let names = names.query_map([], |row| row.get(0)).expect("read");
            names.collect::<Result<_, _>>().expect("names")
        };
        let count =
            |table: &String| file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
        tables.iter().map(|table| count(table).expect("counted")).sum()
    };
    let before = rows();
    let cookies: Vec<String> = (0..20).filter_map(|_| server.get("/chat").cookie().map(str::to_owned)).collect();
    assert_eq!((cookies.len(), rows()), (20, before));
    // A session cookie that no server issued is not accepted.
    let forged =
        server.ask("GET", "/chat", &[("Cookie", &format!("gradus-session-{}=x", server.address.socket.port()))], "");
    assert!(forged.cookie().is_some_and(|cookie| !cookie.ends_with("=x")), "{forged:?}");
}

#[test]
fn conversations_belong_to_who_had_them() {
    let folder = folder(&["gpt2"]);
    let begin = |visitor: &Visitor<'_>| {
        let all = ["temperature", "max_tokens", "seed", "top_p", "top_k", "min_p", "repetition_penalty"];
        let mut fields: Vec<(&str, &str)> = all.map(|name| (name, "1")).into();
        fields.push(("model", "gpt2"));
        let answer = visitor.form("/chat", &fields);
        answer.header("location").unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    };
    let server = Server::at(folder.path(), EVERYWHERE);
    let (ada, bob) = (Visitor::of(&server), Visitor::of(&server));
    let path = begin(&ada);
    assert_eq!(ada.script(&format!("{path}/say"), &json!({ "text": "SECRET", "parent": null })).status, 200);
    let is_visible = |visitor: &Visitor<'_>| visitor.get("/chat").body.contains("SECRET");
    assert_eq!((is_visible(&ada), is_visible(&bob)), (true, false));
    for end in ["", "/thread", "/conversation.jsonl"] {
        assert_eq!(
            (ada.get(&format!("{path}{end}")).status, bob.get(&format!("{path}{end}")).status),
            (200, 404),
            "{end}"
        );
    }
    assert_eq!(bob.script(&format!("{path}/say"), &json!({ "text": "Mine", "parent": null })).status, 404);
    assert_eq!(bob.form(&format!("{path}/delete"), &[]).status, 404);
    // Conversations stay hers when she signs in.
    let token = invite(folder.path(), "ada", Role::Annotator).expect("a token");
    assert_eq!(ada.form("/annotate/enter", &[("name", "ada"), ("token", &token)]).status, 303);
    assert!(is_visible(&ada));
    // The user of the server's own machine sees all conversations.
    assert!(is_visible(&Visitor::of(&Server::over(folder.path()))));
}

//! Tests conversations in the browser.

use serde_json::{Value, json};

use crate::client::{Server, classifier, dense, folder};
use crate::driver::Browser;

/// Starts a conversation with short answers. `choices` are additional fields of the form.
pub fn begin(browser: &mut Browser, server: &Server, choices: &[(&str, &str)]) {
    browser.go(&format!("http://{}/chat", server.host()));
    for (field, value) in [("max_tokens", "24"), ("seed", "3")].iter().chain(choices) {
        let set = match *field {
            "blind" => "document.getElementById('blind').checked = true".to_owned(),
            field => format!("document.getElementById({}).value = {}", json!(field), json!(value)),
        };
        browser.eval(&set);
    }
    // The first message follows in the conversation.
    browser.eval("document.getElementById('first').required = false; window.isLeft = true");
    browser.click("form[action='/chat'] button.main");
    browser.loaded();
}

/// Types a message, sends it with Enter, and waits for the answers.
pub fn speak(browser: &mut Browser, text: &str) {
    browser.eval("document.getElementById('text').focus()");
    browser.type_text(text);
    browser.key("Enter", 0);
    settled(browser);
}

/// Waits until the page has finished loading answers.
pub fn settled(browser: &mut Browser) {
    browser.wait("!document.querySelector('[aria-busy=true]')");
}

fn answers(browser: &mut Browser) -> Vec<String> {
    let found = browser.eval(
        "[...document.querySelectorAll('.answer .text')].map(e => e.dataset.source ? JSON.parse(e.dataset.source) : e.textContent)",
    );
    serde_json::from_value(found).expect("texts")
}

#[test]
fn a_conversation_is_had_edited_asked_again_and_kept() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("system", "Be kind.")]);
    speak(&mut browser, "The tea");
    let first = answers(&mut browser);
    assert_eq!(first.len(), 1);
    assert!(browser.text("#status").contains("Answered"));
    speak(&mut browser, "The cup");
    assert_eq!(answers(&mut browser).len(), 2);
    assert_eq!(answers(&mut browser)[0], first[0]);

    // After asking again, the last turn has two answers, and both can be shown.
    let second = answers(&mut browser)[1].clone();
    browser.click("article:last-child [data-answer]");
    settled(&mut browser);
    assert_ne!(answers(&mut browser)[1], second);
    assert_eq!(browser.text(".assistant:last-child .branches span"), "2 of 2");
    browser.click(".assistant:last-child [aria-label='The version before']");
    browser.wait("document.querySelector('.assistant:last-child .branches span')?.innerText === '1 of 2'");
    assert_eq!(answers(&mut browser)[1], second);

    // Editing the first turn starts a branch. The other branch still exists.
    browser.click("article.user [data-edit]");
    browser.eval("document.querySelector('.edit textarea').select()");
    browser.type_text("The kettle");
    browser.key("Enter", 2);
    browser.wait("document.querySelectorAll('article.user').length === 1");
    settled(&mut browser);
    assert_eq!(browser.text("article.user .text"), "The kettle");
    browser.click("article.user [aria-label='The version before']");
    browser.wait("document.querySelectorAll('article.user').length === 2");
    assert_eq!(answers(&mut browser)[0], first[0]);
    assert_eq!(browser.text(".assistant:last-child .branches span"), "2 of 2", "of a branch the newest is shown");

    // Everything is still there after a reload, and on another server.
    browser.reload();
    let before = browser.text("#thread");
    let gone = server.host().to_string();
    drop(server);
    let server = Server::over(folder.path());
    let answer = server.get("/chat/1/conversation.jsonl");
    let row: Value = serde_json::from_str(&answer.body).expect("a row");
    let roles: Vec<&str> =
        row["messages"].as_array().expect("a list").iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    browser.go(&format!("http://{}/chat/1", server.host()));
    assert_eq!(browser.text("#thread"), before);
    // The page may still have requested its icon from the first server.
    let complaints: Vec<String> =
        browser.complaints().into_iter().filter(|complaint| !complaint.contains(&gone)).collect();
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn two_models_are_voted_on_blind_and_the_vote_trains() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2", "qwen3", "qwen3-reward"]);
    let server = Server::over(folder.path());
    let choices = [("model", "gpt2"), ("other", "qwen3"), ("judge", "qwen3-reward"), ("blind", "")];
    begin(&mut browser, &server, &choices);
    speak(&mut browser, "The tea");
    assert_eq!(answers(&mut browser).len(), 2);
    let page = browser.eval("document.documentElement.outerHTML").as_str().expect("a page").to_owned();
    assert!(!page.contains("gpt2") && page.matches("qwen3").count() == page.matches("qwen3-reward").count(), "{page}");
    // The score of the reward model and the tokens are hidden too, both on the page and in the requests it makes.
    assert!(!page.contains(": reward") && browser.eval("document.querySelector('[data-tokens]')").is_null());
    let message = browser.eval("document.querySelector('.answer').dataset.message");
    let tokens = browser.eval(&format!("fetch('/chat/1/tokens/' + {message}).then(r => r.status)"));
    assert_eq!(tokens, 403);
    // Vote with the keyboard.
    browser.eval("document.activeElement.blur()");
    browser.key("2", 0);
    browser.wait("document.querySelector('[data-vote=right][aria-pressed=true]')");
    let heads = browser.eval("[...document.querySelectorAll('.answer h2')].map(e => e.innerText)");
    let heads: Vec<String> = serde_json::from_value(heads).expect("texts");
    assert!(
        heads.iter().any(|head| head.contains("gpt2")) && heads.iter().any(|head| head.contains("qwen3")),
        "{heads:?}"
    );
    assert!(heads[1].contains("preferred"), "{heads:?}");
    assert!(browser.text(".answer .remark").contains("qwen3-reward: reward"));
    // The vote is final, because the names have been shown.
    assert_eq!(browser.eval("[...document.querySelectorAll('[data-vote]')].every(e => e.disabled)"), true);
    let again = browser.eval(
        "fetch('/chat/1/vote', { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-CSRF-Token': \
         document.querySelector('meta[name=csrf]').content }, body: JSON.stringify({ pair: \
         Number(document.querySelector('[data-vote]').dataset.pair), choice: 'left' }) }).then(r => r.status)",
    );
    assert_eq!(again, 400);
    let texts = answers(&mut browser);
    let row: Value = serde_json::from_str(&server.get("/chat/preferences.jsonl").body).expect("one row");
    assert_eq!(row["chosen"][0]["content"], texts[1]);
    assert_eq!(row["rejected"][0]["content"], texts[0]);
    assert_eq!(row["prompt"], json!([{ "role": "user", "content": "The tea" }]));
    // The next message continues from the preferred answer.
    speak(&mut browser, "The cup");
    let row: Value = serde_json::from_str(&server.get("/chat/1/conversation.jsonl").body).expect("one row");
    assert_eq!(row["messages"][1]["content"], texts[1]);
    let complaints: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|complaint| !complaint.contains("403") && !complaint.contains("400"))
        .collect();
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn segments_are_colored_by_what_all_parts_make_of_them_or_one() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    classifier(folder.path(), "marks", ["O", "NF-ERR", "F-ERR"]);
    dense(folder.path(), "ppo", "marks");
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("judge", "ppo (its reward)"), ("max_tokens", "12")]);
    speak(&mut browser, "The tea");
    let text = answers(&mut browser)[0].clone();
    let classes = "[...document.querySelectorAll('.judged')].map(e => e.className)";
    let values = "[...document.querySelectorAll('.judged')].map(e => JSON.parse(e.dataset.values))";
    let of = |browser: &mut Browser, what: &str| -> Vec<Value> {
        serde_json::from_value(browser.eval(what)).expect("a list")
    };
    let together = of(&mut browser, classes);
    assert!(!together.is_empty());
    assert_eq!(browser.text("[data-part][aria-pressed=true]"), "Together");
    // Show one part alone. Its values have at most two magnitudes.
    browser.click("[data-part='1']");
    assert_eq!(browser.text("[data-part][aria-pressed=true]"), "flow");
    for (class, value) in of(&mut browser, classes).iter().zip(of(&mut browser, values)) {
        let expected = match value[1].as_f64() {
            Some(value) if value > 0.0 => "judged worth better-3",
            Some(_) => "judged worth worse-3",
            None => "judged",
        };
        assert_eq!(class, expected, "{value}");
    }
    browser.click("[data-part='all']");
    assert_eq!(of(&mut browser, classes), together);
    // The token view replaces the colored segments and restores them.
    browser.click("[data-tokens]");
    browser.wait("document.querySelector('.token')");
    assert!(of(&mut browser, classes).is_empty());
    browser.click("[data-tokens]");
    browser.wait("!document.querySelector('.token')");
    assert_eq!((of(&mut browser, classes), &answers(&mut browser)[0]), (together, &text));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn conversations_begin_with_a_message_and_are_found_and_renamed() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    let at = |path: &str| format!("http://{}{path}", server.host());
    // Enter sends and Shift+Enter does not. The answer comes without another action, and only once.
    browser.go(&at("/chat"));
    // The browser moves the focus after it has loaded the page.
    browser.wait("document.activeElement.id === 'first'");
    browser.eval("document.getElementById('max_tokens').value = '8'; window.isLeft = true");
    browser.type_text("The tea");
    browser.key("Enter", 8);
    browser.type_text("is warm");
    browser.key("Enter", 0);
    browser.loaded();
    browser.wait("document.querySelectorAll('.answer .remark').length === 1");
    settled(&mut browser);
    assert_eq!(browser.text("article.user .text"), "The tea\nis warm");
    assert_eq!(browser.eval("location.pathname + location.hash"), "/chat/1");
    browser.reload();
    settled(&mut browser);
    assert_eq!(browser.eval("document.querySelectorAll('article.assistant').length"), 1);
    // Start another conversation and rename it.
    begin(&mut browser, &server, &[("max_tokens", "4")]);
    speak(&mut browser, "A cup, please");
    browser.eval("document.getElementById('title').value = '<b>Cups</b>'; window.isLeft = true");
    browser.eval("document.getElementById('title').form.requestSubmit()");
    browser.loaded();
    assert_eq!(browser.text("h1"), "<b>Cups</b>");
    assert_eq!(browser.text(".talks [aria-current]"), "<b>Cups</b>");
    assert_eq!(browser.eval("document.querySelectorAll('main b').length"), 0);
    // Search finds words of the conversation that are not in its title.
    browser.eval("document.getElementById('search').focus(); window.isLeft = true");
    browser.type_text("CUP, pl");
    browser.key("Enter", 0);
    browser.loaded();
    let found = browser.eval("[...document.querySelectorAll('.talks li a')].map(e => e.textContent)");
    assert_eq!(found, json!(["<b>Cups</b>"]));
    browser.go(&at("/chat?search=nothing+has+this"));
    assert!(browser.text(".talks").contains("No conversation has these words."));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn votes_make_a_ranking() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2", "qwen3"]);
    let server = Server::over(folder.path());
    assert!(server.get("/chat/votes").body.contains("There is no vote yet."));
    // Each model wins at least one vote, so that both have a finite strength.
    for model in ["gpt2", "qwen3", "gpt2"] {
        begin(&mut browser, &server, &[("model", "gpt2"), ("other", "qwen3"), ("max_tokens", "4")]);
        speak(&mut browser, "The tea");
        let side = browser.eval(&format!(
            "[...document.querySelectorAll('.answer h2')].findIndex(e => e.textContent.includes({}))",
            json!(model)
        ));
        browser.click(if side == 0 { "[data-vote=left]" } else { "[data-vote=right]" });
        browser.wait("document.querySelector('[data-vote][aria-pressed=true]')");
    }
    browser.go(&format!("http://{}/chat/votes", server.host()));
    let rows =
        browser.eval("[...document.querySelectorAll('tbody')].map(t => [...t.rows].map(r => r.cells[0].innerText))");
    assert_eq!(rows, json!([["gpt2", "qwen3"], ["gpt2"]]));
    // Two wins of three: the strengths differ by ln 2. Wilson's interval of 2 in 3 is 21 to 94 %.
    let numbers = server.get("/chat/votes.json").json();
    let strength = |i: usize| numbers["models"][i]["log_strength"].as_f64().expect("a number");
    assert!((strength(0) - strength(1) - 2f64.ln()).abs() < 1e-9, "{numbers}");
    assert_eq!((&numbers["votes"], &numbers["blind"]), (&json!(3), &json!(0)));
    assert!(browser.text("main").contains("67 % (21–94)"), "{}", browser.text("main"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn an_answer_is_stopped_and_what_was_said_stays() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["qwen3"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("max_tokens", "60000")]);
    browser.eval("document.getElementById('text').focus()");
    browser.type_text("The tea");
    browser.key("Enter", 2);
    // The fixture has few positions, so the answer may end before the key is handled. In both cases nothing is lost.
    browser.wait("(document.querySelector('.answer .text')?.dataset.source ?? document.querySelector('.answer .text')?.textContent ?? '').length > 5");
    browser.key("Escape", 0);
    settled(&mut browser);
    // The server stores the partial answer when it notices that the browser has left. The page does not wait for that without a limit.
    browser.wait("fetch('/chat/1/conversation.jsonl').then(r => r.text()).then(text => text.includes('assistant'))");
    browser.reload();
    assert!(answers(&mut browser)[0].len() > 3);
}

#[test]
fn the_keyboard_alone_is_enough() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/", server.host()));
    browser.tab_to("a[href='/chat']");
    browser.key("Enter", 0);
    browser.wait("document.getElementById('max_tokens')");
    browser.tab_to(".drawer summary");
    browser.key("Enter", 0);
    browser.tab_to("#max_tokens");
    browser.eval("document.activeElement.select()");
    browser.type_text("8");
    browser.tab_to("#first");
    browser.type_text("The kettle");
    browser.tab_to("form[action='/chat'] button.main");
    browser.eval("window.isLeft = true");
    browser.key("Enter", 0);
    browser.loaded();
    browser.wait("document.querySelector('.answer .remark')");
    settled(&mut browser);
    browser.tab_to("#text");
    browser.type_text("The tea");
    browser.tab_to("#say button.main");
    browser.key(" ", 0);
    settled(&mut browser);
    assert_eq!(answers(&mut browser).len(), 2);
    browser.eval("document.activeElement.blur()");
    browser.tab_to("[data-tokens]");
    browser.key("Enter", 0);
    browser.wait("document.querySelector('.token')");
    let joined = browser.eval("[...document.querySelectorAll('.token')].map(e => e.textContent).join('')");
    assert!(!joined.as_str().expect("a text").is_empty());
    browser.tab_to("[data-edit]");
    browser.key("Enter", 0);
    browser.wait("document.activeElement.matches('.edit textarea')");
    assert_eq!(
        browser.eval("document.querySelector('.edit').closest('article').querySelector('[data-edit]').hidden"),
        true
    );
    browser.key("Escape", 0);
    browser.wait("document.activeElement.matches('[data-edit]')");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_people_and_models_say_is_shown_and_not_obeyed() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("max_tokens", "1")]);
    let hostile =
        "<img src=x onerror='document.title=\"owned\"'><script>document.title='owned'</script>\u{202e}abc\u{1b}[2J";
    speak(&mut browser, hostile);
    let shown = browser.eval("document.querySelector('article.user .text').textContent");
    let shown = shown.as_str().expect("a text");
    assert!(shown.contains("<img src=x") && shown.contains("\\u{202e}abc\\u{1b}[2J"), "{shown}");
    assert_eq!(browser.eval("document.querySelectorAll('img, main script').length"), 0);
    assert!(browser.eval("document.title").as_str().is_some_and(|title| !title.starts_with("owned")));
    browser.go(&format!("http://{}/chat", server.host()));
    assert_eq!(browser.eval("document.querySelectorAll('img, main script').length"), 0);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn an_unchanged_message_keeps_its_invisible_characters() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("max_tokens", "1")]);
    let text = "שלום\u{200f}!";
    speak(&mut browser, text);
    browser.click("article.user [data-edit]");
    assert_eq!(browser.eval("document.querySelector('.edit textarea').value"), text);
    browser.click(".edit button.main");
    browser.wait("document.querySelector('article.user .branches span')?.innerText === '2 of 2'");
    settled(&mut browser);
    let row: Value = serde_json::from_str(&server.get("/chat/1/conversation.jsonl").body).expect("one row");
    assert_eq!(row["messages"][0], json!({ "role": "user", "content": text }));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_narrow_window_needs_no_scrolling_to_the_side() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2", "qwen3"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("model", "gpt2"), ("other", "qwen3")]);
    speak(&mut browser, "The tea");
    // On a phone, the field for messages is small, and the votes are visible after the answers.
    browser.size(390, 800, false);
    speak(&mut browser, "The cup");
    let places = browser.eval(
        "(() => { const r = (e) => e.getBoundingClientRect(); const [v, c] = [r([...document.querySelectorAll('.votes')].pop()), \
         r(document.querySelector('.composer'))]; return [c.height < 110, v.top >= 0, v.bottom <= c.top + 1] })()",
    );
    assert_eq!(places, json!([true, true, true]));
    // A width of 320 pixels also corresponds to 1280 pixels at 400 % zoom.
    browser.size(320, 640, false);
    for path in ["/", "/chat", "/chat/1"] {
        browser.go(&format!("http://{}{path}", server.host()));
        let wide = browser.eval("document.documentElement.scrollWidth");
        assert!(wide.as_u64().is_some_and(|wide| wide <= 320), "{path} is {wide} wide");
    }
}

#[test]
fn a_field_that_prevents_sending_is_shown_and_spaces_start_nothing() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    browser.go(&format!("http://{}/chat", server.host()));
    browser.eval("document.getElementById('temperature').value = ''; document.getElementById('first').value = 'Tea?'");
    browser.click("form[action='/chat'] button.main");
    browser.wait("document.activeElement.id === 'temperature' && document.activeElement.closest('details').open");
    browser.eval(
        "document.getElementById('temperature').value = '0'; document.getElementById('first').value = '  '; \
         window.isLeft = true",
    );
    browser.click("form[action='/chat'] button.main");
    browser.loaded();
    assert_eq!(browser.eval("location.pathname"), "/chat");
    assert!(browser.text(".talks").contains("There is no conversation yet."));
}

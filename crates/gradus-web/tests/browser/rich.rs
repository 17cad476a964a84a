//! Tests how answers are rendered: Markdown, code and formulas, and nothing that a hostile model could exploit.

use std::path::Path;

use serde_json::{Value, json};

use crate::chat::{begin, speak};
use crate::client::{Server, folder};
use crate::driver::Browser;

/// Answer of a helpful model.
pub const HELPFUL: &str = "## Tea\n\nUse **hot** water, *not* boiling:\n\n1. Warm the pot\n2. Wait\n\n| Tea | °C |\n|---|--:|\n| green | 80 |\n| black | 95 |\n\n\
     ```python\ndef brew(tea, minutes=3):  # green\n    return f\"{tea} for {minutes}\"\n```\n\nThe loss is \\( -\\log \\sigma(r_w - r_l) \\), and\n\n\
     \\[ \\nabla J = \\mathbb{E}\\left[ \\sum_{t} A_t \\nabla \\log \\pi_\\theta(a_t \\mid s_t) \\right] \\]\n\nSee [a page](https://tea.example/).";

/// Answer of a hostile model.
const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\n\n![x](https://evil.example/x.png)\n\n\
     <b onmouseover=\"document.title='owned'\">x</b> [y](javascript:document.title='owned') <https://fine.example/>\n\n```html\n</code></pre>\
     <script>document.title='owned'</script>\n```\n\n$\\text{<script>document.title='owned'</script>}$ $\\href{javascript:x}{y}$\n\n\
     <form action=\"/chat/1/delete\" method=\"post\"><button>z</button></form>\n\n<style>body{display:none}</style>";

/// Replaces the text of all answers in conversation 1 of `folder` with `text`.
pub fn add_answer(folder: &Path, text: &str) {
    let file = rusqlite::Connection::open(folder.join("gradus.sqlite")).expect("a file");
    let change = "UPDATE messages SET text = ?1, parts = NULL WHERE conversation = 1 AND role = 'assistant'";
    assert!(file.execute(change, [text]).expect("changed") > 0);
}

#[test]
fn answers_are_rendered_and_code_is_copied() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("max_tokens", "4")]);
    speak(&mut browser, "How is tea made?");
    add_answer(folder.path(), HELPFUL);
    browser.reload();
    let count = |browser: &mut Browser, what: &str| {
        let found = format!("document.querySelectorAll({}).length", json!(format!(".answer .text {what}")));
        browser.eval(&found).as_u64().expect("a number")
    };
    for (what, expected) in [
        ("h3", 1),
        ("strong", 1),
        ("ol > li", 2),
        ("table tbody tr", 2),
        ("figure.code .code-word", 4),
        ("math", 2),
        ("a[href='https://tea.example/'][rel~=noopener]", 1),
    ] {
        assert_eq!(count(&mut browser, what), expected, "{what}");
    }
    // Formulas are laid out, not merely present: the limit of the sum is below it. Sizes depend on the installed fonts.
    let below = "(() => {
        const [sum, limit] = document.querySelector('math[display=block] munder').children;
        return limit.getBoundingClientRect().top >= sum.getBoundingClientRect().bottom - 1;
    })()";
    assert_eq!(browser.eval(below), true);
    // The buttons copy the code, and the source text of the answer.
    let origin = format!("http://{}", server.host());
    let allowed = json!({ "origin": origin, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    browser.call("Browser.grantPermissions", allowed);
    browser.click("[data-copy]");
    browser.wait("document.getElementById('status').textContent === 'Copied.'");
    let copied = browser.eval("navigator.clipboard.readText()");
    assert_eq!(copied, "def brew(tea, minutes=3):  # green\n    return f\"{tea} for {minutes}\"\n");
    browser.click("[data-copy-answer]");
    browser.wait("navigator.clipboard.readText().then(text => text.startsWith('## Tea'))");
    assert_eq!(browser.eval("navigator.clipboard.readText()"), HELPFUL);
    // The token view replaces the rendered text and restores it.
    browser.click("[data-tokens]");
    browser.wait("document.querySelector('.answer .token')");
    assert_eq!(count(&mut browser, "table"), 0);
    browser.click("[data-tokens]");
    browser.wait("document.querySelector('.answer .text.rich table')");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn hostile_answers_do_nothing_and_load_nothing() {
    let Some(mut browser) = Browser::open() else { return };
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    begin(&mut browser, &server, &[("max_tokens", "4")]);
    speak(&mut browser, "The tea");
    for text in [HOSTILE.to_owned(), format!("<think>{HOSTILE}</think>{HOSTILE}"), "> ".repeat(9000) + HOSTILE] {
        add_answer(folder.path(), &text);
        browser.reload();
        browser.eval("document.querySelectorAll('.answer details').forEach(e => { e.open = true })");
        let title = browser.eval("document.title");
        assert!(title.as_str().is_some_and(|title| !title.contains("owned")), "{title}");
        let found = browser.eval(
            "[...document.querySelectorAll('.answer script, .answer img, .answer form, .answer style, .answer iframe')].length",
        );
        assert_eq!(found, 0);
        let attributes = browser.eval(
            "[...document.querySelectorAll('.answer *')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on') || n === 'style' || n === 'src')",
        );
        assert_eq!(attributes, json!([]));
        let links: Vec<Value> =
            serde_json::from_value(browser.eval("[...document.querySelectorAll('.answer a')].map(e => e.href)"))
                .expect("a list");
        let known = ["https://fine.example/", "https://evil.example/x.png"];
        assert!(links.iter().all(|link| known.contains(&link.as_str().unwrap_or_default())), "{links:?}");
    }
    // The page requested nothing from other origins. The policy blocked nothing either, because nothing tried to load.
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

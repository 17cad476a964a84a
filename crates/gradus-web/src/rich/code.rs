//! Syntax highlighting of code.

use std::sync::OnceLock;

use gradus::html;
use gradus::html::Html;
use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

/// Maximum length of a line in highlighted code, because the time of the patterns grows with it.
const LINE: usize = 1_000;

/// Maximum displayed length of a language's name.
const NAME: usize = 24;

/// Languages that use the rules of another one.
const ALIASES: [(&str, &str); 10] = [
    ("shell", "sh"),
    ("console", "sh"),
    ("zsh", "sh"),
    ("typescript", "js"),
    ("ts", "js"),
    ("tsx", "js"),
    ("jsx", "js"),
    ("jsonl", "json"),
    ("golang", "go"),
    ("tex", "latex"),
];

/// Opening tag for each kind of token.
const KINDS: [(&str, &str); 14] = [
    ("comment", "<span class=\"code-comment\">"),
    ("string", "<span class=\"code-string\">"),
    ("constant", "<span class=\"code-number\">"),
    ("keyword", "<span class=\"code-word\">"),
    ("storage", "<span class=\"code-word\">"),
    ("variable.language", "<span class=\"code-word\">"),
    ("entity.name.function", "<span class=\"code-name\">"),
    ("support.function", "<span class=\"code-name\">"),
    ("variable.function", "<span class=\"code-name\">"),
    ("entity.name", "<span class=\"code-type\">"),
    ("entity.other.attribute-name", "<span class=\"code-type\">"),
    ("support.type", "<span class=\"code-type\">"),
    ("markup.inserted", "<span class=\"code-string\">"),
    ("markup.deleted", "<span class=\"code-word\">"),
];

/// Returns the languages, loaded once.
fn languages() -> &'static SyntaxSet {
    static LANGUAGES: OnceLock<SyntaxSet> = OnceLock::new();
    LANGUAGES.get_or_init(SyntaxSet::load_defaults_newlines)
}

/// Returns the kinds of tokens, by the library's names.
fn kinds() -> &'static [(Scope, &'static str)] {
    static OF: OnceLock<Vec<(Scope, &str)>> = OnceLock::new();
    OF.get_or_init(|| KINDS.iter().filter_map(|(name, begin)| Some((Scope::new(name).ok()?, *begin))).collect())
}

/// Renders a block of code with its language and a copy button. `budget` is the number of bytes that may still be highlighted.
pub fn block(language: &str, text: &str, budget: &mut usize) -> Html {
    let language = language.split([' ', ',', '{', '\t']).next().unwrap_or_default();
    let shown = colored(language, text, budget).unwrap_or_else(|| html![(text)]);
    let name: String = if language.is_empty() { "text".into() } else { language.chars().take(NAME).collect() };
    html![
        "<figure class=\"code\"><figcaption><span>" (name) "</span><button type=\"button\" class=\"small\" data-copy>Copy</button></figcaption>\n"
        "<pre tabindex=\"0\"><code>" (shown) "</code></pre></figure>\n"
    ]
}

/// Highlights code. `None` if the language is unknown or the code is too long.
fn colored(language: &str, text: &str, budget: &mut usize) -> Option<Html> {
    let lower = language.to_ascii_lowercase();
    let known = ALIASES.iter().find(|(alias, _)| *alias == lower).map_or(lower.as_str(), |(_, of)| of);
    if known.is_empty() || text.len() > *budget || text.lines().any(|line| line.len() > LINE) {
        return None;
    }
    let syntax = languages().find_syntax_by_token(known)?;
    *budget -= text.len();
    let (mut state, mut stack, mut page) = (ParseState::new(syntax), ScopeStack::new(), Pieces::default());
    for line in text.split_inclusive('\n') {
        let mut from = 0;
        for (at, change) in state.parse_line(line, languages()).ok()? {
            page.add(kind(&stack), line.get(from..at)?);
            from = at;
            stack.apply(&change).ok()?;
        }
        page.add(kind(&stack), line.get(from..)?);
    }
    Some(page.end())
}

/// Returns the kind of a token: the innermost known name.
fn kind(stack: &ScopeStack) -> Option<&'static str> {
    let of = |scope: &Scope| kinds().iter().find(|(known, _)| known.is_prefix_of(*scope)).map(|(_, begin)| *begin);
    stack.as_slice().iter().rev().find_map(of)
}

/// Pieces of code. Adjacent pieces of the same kind are merged.
#[derive(Default)]
struct Pieces {
    html: Html,
    kind: Option<&'static str>,
    text: String,
}

impl Pieces {
    fn add(&mut self, kind: Option<&'static str>, text: &str) {
        if text.is_empty() {
            return;
        }
        if kind != self.kind {
            self.flush();
            self.kind = kind;
        }
        self.text.push_str(text);
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        match self.kind {
            Some(begin) if !text.is_empty() => {
                self.html.markup(begin);
                self.html.add(&text);
                self.html.markup("</span>");
            }
            _ => self.html.add(&text),
        }
    }

    fn end(mut self) -> Html {
        self.flush();
        self.html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(language: &str, text: &str) -> String {
        block(language, text, &mut 10_000).into_string()
    }

    /// Returns the text of a page without its tags.
    fn text(page: &str) -> String {
        let code = page.split("<code>").nth(1).and_then(|rest| rest.split("</code>").next()).expect("code");
        let plain: String = code.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect();
        plain
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&")
    }

    #[test]
    fn words_have_the_colors_of_what_they_are() {
        let page = shown("python", "def tea(x):  # warm\n    return \"a\" + 1\n");
        for piece in [
            "<span class=\"code-word\">def</span>",
            "<span class=\"code-name\">tea</span>",
            "<span class=\"code-comment\"># warm\n</span>",
            "<span class=\"code-word\">return</span>",
            "<span class=\"code-string\">&quot;a&quot;</span>",
            "<span class=\"code-number\">1</span>",
        ] {
            assert!(page.contains(piece), "{piece}: {page}");
        }
        for (language, code) in [
            ("rust", "fn main() { println!(\"<b>\"); }"),
            ("Bash", "for i in 1 2; do echo \"$i\"; done # x"),
            ("ts", "const a = 'b';"),
            ("json", "{\"a\": [1, true]}"),
            ("sql", "SELECT 1 FROM a WHERE b = 'c'"),
            ("c++", "int main() { return 0; }"),
            ("yaml", "a: 1\nb: [x]"),
            ("html", "<p class=\"a\">b</p>"),
            ("diff", "+a\n-b\n"),
        ] {
            let page = shown(language, code);
            assert!(page.contains("<span class=\"code-") && text(&page) == code, "{language}: {page}");
        }
    }

    #[test]
    fn code_is_shown_and_not_obeyed_whatever_it_is() {
        let hostile = "</code></pre><script>alert(1)</script>\"'&\u{1b}";
        for language in ["", "nonsense", "python", "html", "rust", "markdown", "\"><script>x</script>"] {
            let page = shown(language, hostile);
            assert!(!page.contains("<script") && page.matches("</code>").count() == 1, "{language}: {page}");
            assert_eq!(text(&page), hostile.replace('\u{1b}', "\\u{1b}"), "{language}");
        }
        assert!(shown(&"x".repeat(99), "a").contains(&format!("<span>{}</span>", "x".repeat(NAME))));
    }

    #[test]
    fn long_code_is_not_colored_and_the_budget_counts() {
        assert!(!shown("python", &format!("x = \"{}\"", "a".repeat(LINE))).contains("code-"));
        let mut budget = 12;
        assert!(block("python", "x = 1 # a\n", &mut budget).into_string().contains("code-"));
        assert_eq!(budget, 2);
        assert!(!block("python", "x = 1", &mut budget).into_string().contains("code-"));
    }
}

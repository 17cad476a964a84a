//! Formulas as MathML.
//!
//! The library writes MathML as a text. This file parses that text and passes on only the names listed in this file, so the result does not
//! depend on the library's escaping.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradus::html;
use gradus::html::Html;
use pulldown_latex::config::DisplayMode;
use pulldown_latex::{Parser, RenderConfig, Storage, push_mathml};

/// Maximum length of a formula. A longer one is shown as text.
const LONGEST: usize = 2_000;

/// Maximum number of parser events. A formula with more is shown as text.
const EVENTS: usize = 10_000;

/// Commands that define others. With them, a formula could grow without limit.
const DEFINES: [&str; 9] =
    ["def", "edef", "gdef", "xdef", "let", "futurelet", "newcommand", "renewcommand", "providecommand"];

/// Renders a formula, as text if it cannot be parsed.
pub fn math(source: &str, is_display: bool) -> Html {
    let source = source.trim();
    match written(source, is_display).and_then(|written| checked(&written, source)) {
        Some(formula) if is_display => {
            html!["<span class=\"formula\" tabindex=\"0\" role=\"group\" aria-label=\"Formula\">" (formula) "</span>"]
        }
        Some(formula) => formula,
        None => html!["<code class=\"tex\">" (source) "</code>"],
    }
}

/// Converts a formula with the library. `None` if it reports an error or panics.
fn written(source: &str, is_display: bool) -> Option<String> {
    if source.len() > LONGEST || defines(source) {
        return None;
    }
    let work = || {
        let storage = Storage::new();
        let events: Vec<_> = Parser::new(source, &storage).take(EVENTS + 1).collect::<Result<_, _>>().ok()?;
        let display_mode = if is_display { DisplayMode::Block } else { DisplayMode::Inline };
        let mut written = String::new();
        let events = (events.len() <= EVENTS).then_some(events)?.into_iter().map(Ok::<_, std::convert::Infallible>);
        push_mathml(&mut written, events, RenderConfig { display_mode, ..RenderConfig::default() }).ok()?;
        Some(written)
    };
    catch_unwind(AssertUnwindSafe(work)).ok().flatten()
}

/// Returns whether a formula contains a command that defines others.
fn defines(source: &str) -> bool {
    let name = |command: &str| command.chars().take_while(char::is_ascii_alphabetic).collect::<String>();
    let mut names = source.split('\\').skip(1).map(name);
    names.any(|name| DEFINES.contains(&name.as_str()) || name.starts_with("DeclareMath"))
}

/// Creates the opening and closing tag of each name.
macro_rules! elements {
    ($($name:literal)*) => { [$(($name, concat!("<", $name), concat!("</", $name, ">"))),*] };
}
macro_rules! attributes {
    ($($name:literal)*) => { [$(($name, concat!(" ", $name, "=\""))),*] };
}

/// Allowed elements.
const ELEMENTS: [(&str, &str, &str); 28] = elements![
    "math" "mrow" "mi" "mo" "mn" "mtext" "ms" "mspace" "mstyle" "msup" "msub" "msubsup" "munder" "mover" "munderover" "mfrac" "msqrt"
    "mroot" "mtable" "mtr" "mtd" "mpadded" "mphantom" "merror" "mmultiscripts" "mprescripts" "menclose" "none"
];

/// Allowed attributes. Others are dropped, for example `style`, which the content security policy forbids.
const ATTRIBUTES: [(&str, &str); 23] = attributes![
    "display" "displaystyle" "scriptlevel" "stretchy" "symmetric" "largeop" "movablelimits" "form" "fence" "separator" "accent"
    "accentunder" "lspace" "rspace" "minsize" "maxsize" "width" "height" "depth" "linethickness" "mathvariant" "columnspan" "rowspan"
];

/// Prefixes of the classes in the style sheet.
const CLASSES: [&str; 2] = ["menv-", "cell-"];

/// Copies MathML with allowed names only. `None` if it contains another name.
fn checked(written: &str, source: &str) -> Option<Html> {
    let (mut html, mut rest, mut open) = (Html::new(), written, Vec::new());
    while let Some(at) = rest.find('<') {
        html.add(&unescaped(&rest[..at]));
        rest = &rest[at + 1..];
        if !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') {
            html.add("<");
            continue;
        }
        let (tag, after) = rest.split_once('>')?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let (_, close) = open.pop().filter(|(known, _)| *known == name.trim())?;
            html.markup(close);
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, given) = tag.split_once(' ').unwrap_or((tag, ""));
        let &(name, begin, close) = ELEMENTS.iter().find(|(known, ..)| *known == name)?;
        html.markup(begin);
        if name == "math" {
            html.add(&html![" alttext=\"" (source) "\""]);
        }
        attributes(&mut html, given)?;
        html.markup(">");
        match is_empty {
            true => html.markup(close),
            false => open.push((name, close)),
        }
    }
    html.add(&unescaped(rest));
    open.is_empty().then_some(html)
}

/// Copies the allowed attributes of `name="value" …`.
fn attributes(html: &mut Html, given: &str) -> Option<()> {
    let mut rest = given.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        rest = after.trim_start();
        if name == "class" {
            let known = value.split(' ').filter(|class| CLASSES.iter().any(|known| class.starts_with(known)));
            html.add(&html![" class=\"" (known.collect::<Vec<_>>().join(" ")) "\""]);
        } else if let Some((_, begin)) = ATTRIBUTES.iter().find(|(known, _)| *known == name) {
            html.markup(begin);
            html.add(&unescaped(value));
            html.markup("\"");
        }
    }
    Some(())
}

/// Resolves the entities in a text.
fn unescaped(text: &str) -> String {
    let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&apos;", "'"), ("&amp;", "&")];
    plain.iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> String {
        math(source, false).into_string()
    }

    #[test]
    fn formulas_are_mathml() {
        assert_eq!(
            shown("x^2 < y"),
            "<math alttext=\"x^2 &lt; y\" display=\"inline\"><msup><mi>x</mi><mn>2</mn></msup><mo>&lt;</mo><mi>y</mi></math>"
        );
        for source in [
            "\\frac{1}{n} \\sum_{i=1}^{n} \\log \\sigma(r_i)",
            "\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}",
            "\\begin{aligned} a &= b \\\\ &= c \\end{aligned}",
            "\\sqrt[3]{x} \\le \\left( \\frac{a}{b} \\right) \\mathbb{E}_{\\pi_\\theta}[\\nabla \\log \\pi]",
            "f(x) = \\begin{cases} 1 & x > 0 \\\\ 0 & \\text{else} \\end{cases}",
            "\\hat{y} \\cdot \\vec{v} \\, \\mathrm{KL}(\\pi \\,\\|\\, \\pi_0) \\color{red} x",
            "\\leftarrow \\leq \\delta \\defeq",
        ] {
            let page = shown(source);
            let is_known = source.contains("\\defeq") || page.starts_with("<math");
            assert!(is_known && !page.contains("style"), "{source}: {page}");
        }
        assert!(math("x", true).into_string().starts_with("<span class=\"formula\" tabindex=\"0\""));
    }

    #[test]
    fn what_is_no_formula_is_shown_as_it_was_written() {
        let long = "x".repeat(LONGEST + 1);
        for source in [
            "\\frac{1}",
            "{",
            "}",
            "\\nonsense",
            "\\def\\a{\\a\\a}\\a",
            "\\newcommand{\\a}{\\a\\a}\\a",
            "\\let\\a\\b",
            "\\begin{x}",
            &long,
        ] {
            let page = shown(source);
            assert!(page.starts_with("<code class=\"tex\">"), "{source}: {page}");
        }
        assert_eq!(shown("\\frac{<b>}"), "<code class=\"tex\">\\frac{&lt;b&gt;}</code>");
    }

    #[test]
    fn only_known_names_go_on() {
        let of = |written| checked(written, "s").map(Html::into_string);
        assert_eq!(of("<mi>&lt;b&gt;</mi>").as_deref(), Some("<mi>&lt;b&gt;</mi>"));
        assert_eq!(
            of("<mo stretchy=\"true\" style=\"x\" onclick=\"y\" class=\"menv-a main cell-b\">&amp;</mo>").as_deref(),
            Some("<mo stretchy=\"true\" class=\"menv-a cell-b\">&amp;</mo>")
        );
        assert_eq!(of("<mspace width=\"1em\" />a < b").as_deref(), Some("<mspace width=\"1em\"></mspace>a &lt; b"));
        for written in
            ["<script>x</script>", "<mi><mo></mi></mo>", "<mi>", "</mi>", "<mi onclick>x</mi>", "<mi", "<maction/>"]
        {
            assert_eq!(of(written), None, "{written}");
        }
    }

    #[test]
    fn random_formulas_never_panic_and_are_always_whole() {
        let words = [
            "\\frac",
            "\\sqrt",
            "\\left",
            "\\right",
            "(",
            ")",
            "{",
            "}",
            "[",
            "]",
            "^",
            "_",
            "&",
            "\\\\",
            "\\begin{array}{c|c}",
            "\\end{array}",
            "\\begin{matrix}",
            "\\end{matrix}",
            "\\text{a}",
            "\\hline",
            "x",
            "1",
            "'",
            "\\color{red}",
            "\\over",
            "\\limits",
            "\\operatorname",
            "\\hspace{1em}",
            "\\mathbf",
            "\\middle|",
            "\\char",
            "#1",
            "~",
            "%",
            "<",
            ">",
            "\\u{e9}",
            "é",
            "\\genfrac",
            "\\substack",
            "\\not",
            "\\,",
            "\\bigl",
            "\\overbrace",
            "\\underset",
            "\\mathchoice",
            "\\rule{1em}{2em}",
            "\\raisebox",
            "\\tag{1}",
            "\\cr",
            "^^",
            "__",
            "''",
        ];
        let mut state = 7u64;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        let mut formulas = 0;
        for _ in 0..20_000 {
            let length = 1 + below(11);
            let source: String = (0..length).map(|_| words[below(words.len())]).collect::<Vec<_>>().join(" ");
            let page = math(&source, length % 2 == 0).into_string();
            formulas += usize::from(page.contains("<math"));
            assert!(page.contains("<math") || page.starts_with("<code"), "{source}: {page}");
            assert_eq!(page.matches("</").count(), page.matches('<').count() / 2, "{source}: {page}");
        }
        assert!(formulas > 500, "{formulas} were formulas");
    }
}

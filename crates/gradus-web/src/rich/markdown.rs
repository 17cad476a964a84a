//! Rendering of Markdown. All tags are literals of this file; everything else is text.

use std::borrow::Cow;
use std::ops::Range;

use gradus::html;
use gradus::html::Html;
use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::{code, math};

/// Extensions of CommonMark.
const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_MATH);

/// Maximum nesting depth. Deeper content is shown without its enclosing tags.
const DEPTH: usize = 24;

/// Maximum number of highlighted bytes of code per answer.
const COLORED: usize = 20_000;

/// Renders a text.
pub fn markdown(text: &str) -> Html {
    let text = with_dollars(text);
    let mut page = Page { colored: COLORED, heading: 2, ..Page::default() };
    Parser::new_ext(&text, OPTIONS).for_each(|event| page.add(event));
    page.html
}

/// End of a link.
enum LinkEnd {
    /// It is a real link.
    Anchor,
    /// Its target is not allowed, so its address is shown.
    Address(String),
    /// It is inside another link.
    Nothing,
}

#[derive(Default)]
struct Page {
    html: Html,
    /// Number of open block elements, shown or not.
    depth: usize,
    links: Vec<LinkEnd>,
    /// Language and text of the current code block.
    code: Option<(String, String)>,
    /// Level of the last heading. The name of the speaker has level 2.
    heading: u8,
    columns: Vec<Alignment>,
    column: usize,
    is_head: bool,
    /// Number of bytes of code that may still be highlighted.
    colored: usize,
}

impl Page {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => {
                self.depth += 1;
                self.begin(tag);
            }
            Event::End(tag) => {
                self.end(tag);
                self.depth -= 1;
            }
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.html.add(&*text),
            },
            Event::Code(text) => self.html.add(&html!["<code>" (&*text) "</code>"]),
            Event::InlineMath(text) => self.html.add(&math::math(&text, false)),
            Event::DisplayMath(text) => self.html.add(&math::math(&text, true)),
            // The only allowed tag, which tables need because their cells are single lines.
            Event::InlineHtml(text) if ["<br>", "<br/>", "<br />"].contains(&&*text) => self.html.markup("<br>\n"),
            Event::Html(text) | Event::InlineHtml(text) | Event::FootnoteReference(text) => self.html.add(&*text),
            // Line breaks in answers are intentional.
            Event::SoftBreak | Event::HardBreak => self.html.markup("<br>\n"),
            Event::Rule => self.html.markup("<hr>\n"),
            Event::TaskListMarker(true) => self.html.markup("☑ "),
            Event::TaskListMarker(false) => self.html.markup("☐ "),
        }
    }

    /// Adds markup of a block element, unless it is nested too deeply.
    fn frame(&mut self, markup: &'static str) {
        if self.depth <= DEPTH {
            self.html.markup(markup);
        }
    }

    fn begin(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph => self.frame("<p>"),
            Tag::Heading { level, .. } => {
                // At most one level below the last heading, so that no level is skipped.
                self.heading = (level as u8 + 2).min(self.heading + 1).min(6);
                self.frame(["<h3>", "<h4>", "<h5>", "<h6>"][usize::from(self.heading - 3)]);
            }
            Tag::BlockQuote(_) => self.frame("<blockquote>\n"),
            Tag::CodeBlock(kind) => {
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::HtmlBlock => self.frame("<p class=\"plain\">"),
            Tag::List(Some(first)) if self.depth <= DEPTH => self.html.add(&html!["<ol start=\"" (first) "\">\n"]),
            Tag::List(_) => self.frame("<ul>\n"),
            Tag::Item => self.frame("<li>"),
            Tag::Table(columns) => {
                self.columns = columns;
                self.frame("<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>\n");
            }
            Tag::TableHead => {
                (self.is_head, self.column) = (true, 0);
                self.frame("<thead><tr>");
            }
            Tag::TableRow => {
                self.column = 0;
                self.frame("<tr>");
            }
            Tag::TableCell => {
                let is_number = self.columns.get(self.column) == Some(&Alignment::Right);
                self.column += 1;
                self.frame(match (self.is_head, is_number) {
                    (true, true) => "<th scope=\"col\" class=\"number\">",
                    (true, false) => "<th scope=\"col\">",
                    (false, true) => "<td class=\"number\">",
                    (false, false) => "<td>",
                });
            }
            Tag::Emphasis => self.frame("<em>"),
            Tag::Strong => self.frame("<strong>"),
            Tag::Strikethrough => self.frame("<s>"),
            Tag::Link { dest_url, .. } => self.link(&dest_url),
            Tag::Image { dest_url, .. } => {
                self.html.markup("Image: ");
                self.link(&dest_url);
            }
            // These extensions are not enabled.
            Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Superscript
            | Tag::Subscript
            | Tag::MetadataBlock(_) => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.frame("</p>\n"),
            TagEnd::Heading(_) => {
                self.frame(["</h3>\n", "</h4>\n", "</h5>\n", "</h6>\n"][usize::from(self.heading - 3)]);
            }
            TagEnd::BlockQuote(_) => self.frame("</blockquote>\n"),
            TagEnd::CodeBlock => {
                if let Some((language, text)) = self.code.take() {
                    self.html.add(&code::block(&language, &text, &mut self.colored));
                }
            }
            TagEnd::List(true) => self.frame("</ol>\n"),
            TagEnd::List(false) => self.frame("</ul>\n"),
            TagEnd::Item => self.frame("</li>\n"),
            TagEnd::Table => self.frame("</tbody></table></div>\n"),
            TagEnd::TableHead => {
                self.is_head = false;
                self.frame("</tr></thead>\n<tbody>\n");
            }
            TagEnd::TableRow => self.frame("</tr>\n"),
            TagEnd::TableCell => self.frame(if self.is_head { "</th>" } else { "</td>" }),
            TagEnd::Emphasis => self.frame("</em>"),
            TagEnd::Strong => self.frame("</strong>"),
            TagEnd::Strikethrough => self.frame("</s>"),
            TagEnd::Link | TagEnd::Image => match self.links.pop() {
                Some(LinkEnd::Anchor) => self.html.markup("</a>"),
                Some(LinkEnd::Address(address)) => self.html.add(&html![" (" (address) ")"]),
                Some(LinkEnd::Nothing) | None => {}
            },
            TagEnd::FootnoteDefinition
            | TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::MetadataBlock(_) => {}
        }
    }

    /// Begins a link. The linked page receives no information about this page. Links within this server are not allowed: a model must not
    /// trigger actions of the user.
    fn link(&mut self, address: &str) {
        let end = match self.links.iter().any(|end| matches!(end, LinkEnd::Anchor)) {
            true => LinkEnd::Nothing,
            false if leads_to_the_web(address) => {
                self.html.add(&html![
                    "<a href=\"" (address) "\" title=\"" (address) "\" target=\"_blank\" rel=\"noopener noreferrer nofollow\">"
                ]);
                LinkEnd::Anchor
            }
            false => LinkEnd::Address(address.to_owned()),
        };
        self.links.push(end);
    }
}

/// Returns whether an address is of another site or of mail.
fn leads_to_the_web(address: &str) -> bool {
    let lower = address.to_ascii_lowercase();
    ["http://", "https://", "mailto:"].iter().any(|scheme| lower.starts_with(scheme))
        && !address.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// Replaces `\(…\)` and `\[…\]`, which models often write, by formulas in dollars, which Markdown supports. Code stays unchanged.
fn with_dollars(text: &str) -> Cow<'_, str> {
    if !text.contains("\\(") && !text.contains("\\[") {
        return Cow::Borrowed(text);
    }
    let is_fixed = |event: &Event<'_>| {
        matches!(event, Event::Code(_) | Event::Start(Tag::CodeBlock(_)) | Event::InlineMath(_) | Event::DisplayMath(_))
    };
    let fixed: Vec<Range<usize>> = Parser::new_ext(text, OPTIONS)
        .into_offset_iter()
        .filter_map(|(event, range)| is_fixed(&event).then_some(range))
        .collect();
    let (mut changed, mut from, mut next) = (String::with_capacity(text.len()), 0, 0);
    while let Some(at) = text[next..].find('\\').map(|at| next + at) {
        // A backslash is followed by at least one byte, and the index must not be inside a character.
        next = at + 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8);
        let (close, dollars) = match &text[at..next] {
            "\\(" => ("\\)", "$"),
            "\\[" => ("\\]", "$$"),
            _ => continue,
        };
        let Some(end) = text[next..].find(close).map(|end| next + end) else { continue };
        let formula = text[next..end].trim();
        let is_code = fixed.iter().any(|range| range.start < end && at < range.end);
        if is_code || formula.is_empty() || formula.contains("\n\n") || formula.contains('$') {
            continue;
        }
        changed.push_str(&text[from..at]);
        changed.push_str(dollars);
        changed.push_str(formula);
        changed.push_str(dollars);
        (from, next) = (end + close.len(), end + close.len());
    }
    changed.push_str(&text[from..]);
    Cow::Owned(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        markdown(text).into_string()
    }

    /// Returns the names of all tags of a page, and of their attributes.
    fn tags(page: &str) -> (Vec<String>, Vec<String>) {
        let (mut names, mut attributes) = (Vec::new(), Vec::new());
        for part in page.split('<').skip(1) {
            let mut rest = part.trim_start_matches('/');
            let end = rest.find([' ', '>']).expect("a tag ends");
            names.push(rest[..end].to_owned());
            rest = &rest[end..];
            // Values are quoted and contain no quotes.
            while let Some(after) = rest.strip_prefix(' ') {
                let end = after.find(['=', ' ', '>']).expect("a name ends");
                attributes.push(after[..end].to_owned());
                rest = &after[end..];
                if let Some(value) = rest.strip_prefix("=\"") {
                    rest = value.split_once('"').expect("a value ends").1;
                }
            }
            assert!(rest.starts_with('>'), "{part}");
        }
        (names, attributes)
    }

    #[test]
    fn markdown_is_rendered() {
        for (text, expected) in [
            ("a *b* **c** ~~d~~ `e<`", "<p>a <em>b</em> <strong>c</strong> <s>d</s> <code>e&lt;</code></p>\n"),
            ("one\ntwo", "<p>one<br>\ntwo</p>\n"),
            ("3. a\n4. b", "<ol start=\"3\">\n<li>a</li>\n<li>b</li>\n</ol>\n"),
            ("- [x] a\n- [ ] b", "<ul>\n<li>☑ a</li>\n<li>☐ b</li>\n</ul>\n"),
            ("> a", "<blockquote>\n<p>a</p>\n</blockquote>\n"),
            (
                "|a|b|\n|-|-:|\n|c<br>d|1|",
                "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>\n<thead><tr><th scope=\"col\">a</th>\
                 <th scope=\"col\" class=\"number\">b</th></tr></thead>\n<tbody>\n<tr><td>c<br>\nd</td><td class=\"number\">1</td></tr>\n\
                 </tbody></table></div>\n",
            ),
            ("a\n\n---\n\nb", "<p>a</p>\n<hr>\n<p>b</p>\n"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        // No level is skipped below that of the speaker.
        assert_eq!(shown("### a\n# b\n#### c"), "<h3>a</h3>\n<h3>b</h3>\n<h4>c</h4>\n");
    }

    #[test]
    fn links_lead_to_the_web_and_nothing_is_loaded() {
        let anchor = "<a href=\"https://a.example/?b=1&amp;c\" title=\"https://a.example/?b=1&amp;c\" target=\"_blank\" \
                      rel=\"noopener noreferrer nofollow\">";
        assert_eq!(shown("[x](https://a.example/?b=1&c)"), format!("<p>{anchor}x</a></p>\n"));
        assert_eq!(shown("![x](https://a.example/?b=1&c)"), format!("<p>Image: {anchor}x</a></p>\n"));
        assert_eq!(
            shown("[![x](http://b.example/)](https://a.example/?b=1&c)"),
            format!("<p>{anchor}Image: x</a></p>\n")
        );
        for address in [
            "javascript:alert(1)",
            "JaVaScRiPt:alert(1)",
            "java&#x0A;script:alert(1)",
            "&#106;avascript:alert(1)",
            "data:text/html,<script>alert(1)</script>",
            "vbscript:x",
            "//evil.example/",
            "/runs/delete?run=a",
            "file:///etc/passwd",
            "x:\"onload=y",
        ] {
            for text in [
                format!("[x](<{address}>)"),
                format!("![x](<{address}>)"),
                format!("<{address}>"),
                format!("[x]\n\n[x]: <{address}>"),
            ] {
                let page = shown(&text);
                assert!(!page.contains("<a ") && !page.contains("<img"), "{text}: {page}");
            }
        }
    }

    #[test]
    fn hostile_answers_bring_no_tag_and_no_attribute() {
        let hostile = [
            "<script>alert(1)</script>",
            "a <script>alert(1)</script> b",
            "<img src=x onerror=alert(1)>",
            "<svg/onload=alert(1)>",
            "<a href=\"javascript:alert(1)\" onclick=alert(1)>x</a>",
            "<style>body{display:none}</style>",
            "<iframe src=//evil.example></iframe>",
            "<form action=/runs/delete method=post><button>x</button></form>",
            "</div></main><h1>Sign in</h1>",
            "<!-- --><!DOCTYPE html><![CDATA[ x ]]><?php ?>",
            "```\"><script>alert(1)</script>\n</code></pre><img src=x onerror=alert(1)>\n```",
            "~~~ <b onmouseover=x>\n<b>\n~~~",
            "[a\"onclick=b](https://x.example/\"onclick=alert(1))",
            "[a](https://x.example 'title\" onmouseover=\"alert(1)')",
            "|<img src=x>|\n|-|\n|<script>x</script>|",
            "# <b onclick=x>a</b>",
            "$\\href{javascript:alert(1)}{x}$ $<img src=x>$ $\\text{<script>x</script>}$ $\\style{x}{y}$",
            "$$\\class{x}{<b>}$$ \\(\\unicode{60}script\\) \\[ </math><script>x</script> \\]",
            "<tool_call><b></tool_call>",
            "&lt;script&gt; &#60;script&#62;",
        ];
        let allowed = [
            "p",
            "br",
            "h3",
            "h4",
            "h5",
            "h6",
            "em",
            "strong",
            "s",
            "code",
            "pre",
            "ul",
            "ol",
            "li",
            "blockquote",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "div",
            "span",
            "figure",
            "figcaption",
            "button",
            "a",
            "hr",
            "math",
            "mi",
            "mo",
            "mn",
            "mrow",
            "mtext",
            "mspace",
            "mstyle",
            "msup",
            "msub",
            "mtable",
            "mtr",
            "mtd",
            "mpadded",
        ];
        let attributes = [
            "class",
            "href",
            "title",
            "target",
            "rel",
            "start",
            "scope",
            "tabindex",
            "role",
            "aria-label",
            "data-copy",
            "type",
            "display",
            "alttext",
            "stretchy",
            "width",
            "mathvariant",
            "displaystyle",
            "scriptlevel",
            "form",
            "lspace",
            "rspace",
        ];
        for text in hostile.iter().map(|text| (*text).to_owned()).chain([hostile.join("\n\n"), hostile.join(" ")]) {
            let page = shown(&text);
            let (names, given) = tags(&page);
            assert!(names.iter().all(|name| allowed.contains(&name.as_str())), "{text}: {page}");
            assert!(given.iter().all(|name| attributes.contains(&name.as_str())), "{text}: {page}");
            assert!(!page.contains("href=\"javascript"), "{page}");
        }
        assert_eq!(
            shown("<script>alert(1)</script>"),
            "<p class=\"plain\">&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"
        );
        // Characters that would change the text direction or control a terminal are made visible.
        assert_eq!(shown("a\u{202e}b\u{1b}[2J"), "<p>a\\u{202e}b\\u{1b}[2J</p>\n");
    }

    #[test]
    fn deep_and_broken_texts_end_soon_and_are_not_deep_on_the_page() {
        let texts = [
            "> ".repeat(20_000) + "end",
            "- ".repeat(5_000) + "end",
            "*".repeat(20_000) + "end",
            "[".repeat(20_000) + "end",
            "![".repeat(10_000) + "end",
            "`".repeat(20_000) + "end",
            "$".repeat(20_000) + "end",
            "\\[".repeat(10_000) + "end",
            "\\( ".repeat(5_000) + &"\\)".repeat(5_000) + "end",
            "<".repeat(20_000) + "end",
            "|a".repeat(5_000) + "\n" + &"|-".repeat(5_000) + "\nend",
            "**a *b ".repeat(3_000) + "end",
            "a\n> b\n\n".repeat(2_000) + "end",
            (0..200).map(|i| format!("{}- a\n", "  ".repeat(i))).collect::<String>() + "\nend",
        ];
        for text in texts {
            let page = shown(&text);
            assert!(page.contains("end"), "{}", &text[..20]);
            let (mut depth, mut deepest) = (0i32, 0i32);
            for part in page.split('<').skip(1) {
                let is_void = ["br", "hr"].iter().any(|name| part.starts_with(name));
                depth += if part.starts_with('/') { -1 } else { i32::from(!is_void) };
                deepest = deepest.max(depth);
            }
            assert!(depth == 0 && deepest < 60, "{}: {depth} {deepest}", &text[..20]);
        }
    }

    #[test]
    fn formulas_of_models_are_read_and_code_is_not() {
        let of = |text| with_dollars(text).into_owned();
        assert_eq!(of("a \\( x \\) b \\[\ny\n\\] c"), "a $x$ b $$y$$ c");
        for text in [
            "`\\( x \\)`",
            "```\n\\[ x \\]\n```",
            "\\\\( x \\\\)",
            "\\( x",
            "\\(\\)",
            "\\( a\n\nb \\)",
            "\\( $a \\)",
            "\\é\\",
        ] {
            assert_eq!(of(text), text);
        }
        assert!(shown("\\(x\\)").contains("<math"));
        assert!(!shown("It costs $5 and then $6.").contains("<math"));
    }
}

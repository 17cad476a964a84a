//! `gradus docs`: the documentation pages, which are embedded in the binary.

use std::fmt::Write as _;

use gradus::suggest::nearest;

use crate::output::Output;

/// Arguments of `gradus docs`.
#[derive(Debug, clap::Args)]
pub struct DocsArgs {
    /// Page to show; without it, the pages are listed
    page: Option<String>,
    /// Show the lines that contain all of these words, on all pages or on the named one; if there are none, show the headings of sections
    /// that contain all of them
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    search: Option<String>,
}

/// Pages of `docs/`, by name.
macro_rules! pages {
    ($($name:literal,)+) => {
        &[$(($name, include_str!(concat!("../../docs/", $name, ".md"))),)+]
    };
}

/// Table of contents, with titles and order.
const SUMMARY: &str = include_str!("../../docs/SUMMARY.md");

/// Name and text of every page, in the order of the contents.
const PAGES: &[(&str, &str)] = pages![
    "index",
    "start",
    "docker",
    "tutorial-reward-model",
    "tutorial-dpo",
    "tutorial-grpo",
    "tutorial-verifiable",
    "tutorial-ppo",
    "tutorial-tools",
    "tutorial-audit",
    "tutorial-feedback",
    "tutorial-tasks",
    "tutorial-lora",
    "tutorial-serve",
    "methods",
    "hyperparameters",
    "troubleshooting",
    "migrate",
    "parity",
    "data",
    "fine-grained",
    "environments",
    "classifiers",
    "tasks",
    "generation",
    "runs",
    "sweep",
    "ranks",
    "web",
    "servers",
    "tinker",
    "plugins",
    "config",
    "support",
    "formats",
    "metrics",
    "python",
    "trl",
    "glossary",
    "papers",
    "devices",
    "gpu",
    "measure",
    "style",
    "design",
    "results",
    "benchmarks",
];

/// A page in the list.
#[derive(serde::Serialize)]
struct PageEntry<'a> {
    name: &'a str,
    title: &'a str,
}

/// A search hit.
#[derive(serde::Serialize)]
struct SearchHit<'a> {
    page: &'a str,
    line: usize,
    text: &'a str,
}

/// Lists the pages, shows one of them, or searches them.
pub fn run(args: DocsArgs, out: &Output) -> anyhow::Result<()> {
    let chosen = args.page.as_deref().map(page).transpose()?;
    if let Some(text) = &args.search {
        let query = text.to_lowercase();
        let query: Vec<&str> = query.split_whitespace().collect();
        let pages = PAGES.iter().filter(|(name, _)| chosen.is_none_or(|(only, _)| only == *name));
        let mut found: Vec<SearchHit<'_>> = pages.clone().flat_map(|(name, page)| lines(name, page, &query)).collect();
        if found.is_empty() {
            found = pages.flat_map(|(name, page)| sections(name, page, &query)).collect();
        }
        if found.is_empty() {
            let error = gradus::Error::input(format!("no section of the documentation contains all words of `{text}`"));
            return Err(error.with_hint("use fewer words, or a part of a word").into());
        }
        return out.result(&found, || found.iter().map(|f| format!("{}:{}: {}\n", f.page, f.line, f.text)).collect());
    }
    match chosen {
        Some((_, text)) => out.text(text),
        None => {
            let listed: Vec<PageEntry<'_>> =
                PAGES.iter().map(|(name, _)| PageEntry { name, title: title(name) }).collect();
            out.result(&listed, || contents(&listed))
        }
    }
}

/// Returns a page by its name, with or without extension.
fn page(name: &str) -> anyhow::Result<(&'static str, &'static str)> {
    let requested = name.strip_suffix(".md").unwrap_or(name);
    let requested = requested.strip_prefix("docs/").unwrap_or(requested);
    if let Some((name, text)) = PAGES.iter().find(|(name, _)| *name == requested) {
        return Ok((name, text));
    }
    let error = gradus::Error::input(format!("there is no page `{name}`"));
    Err(match nearest(requested, PAGES.iter().map(|(name, _)| *name)) {
        Some(near) => error.with_hint(format!("did you mean `{near}`?")),
        None => {
            error.with_hint(format!("`gradus docs` lists the pages; `gradus docs --search \"{name}\"` searches them"))
        }
    }
    .into())
}

/// Returns whether a text contains all the words, ignoring case.
fn has_all(text: &str, words: &[&str]) -> bool {
    let text = text.to_lowercase();
    words.iter().all(|word| text.contains(word))
}

/// Returns the headings of the sections that contain all the words.
fn sections<'a>(name: &'a str, page: &'a str, words: &[&str]) -> Vec<SearchHit<'a>> {
    let lines: Vec<&str> = page.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].starts_with('#')).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let of = starts.iter().zip(ends).filter(|(start, end)| has_all(&lines[**start..*end].join("\n"), words));
    of.map(|(&start, _)| SearchHit { page: name, line: start + 1, text: lines[start] }).collect()
}

/// Returns the lines of a page that contain all the words.
fn lines<'a>(name: &'a str, page: &'a str, words: &'a [&str]) -> impl Iterator<Item = SearchHit<'a>> {
    let hits = page.lines().enumerate().filter(move |(_, line)| has_all(line, words));
    hits.map(move |(i, text)| SearchHit { page: name, line: i + 1, text })
}

/// Returns the title of a page from the contents.
fn title(name: &str) -> &'static str {
    let end = format!("]({name}.md)");
    let line = SUMMARY.lines().find(|line| line.ends_with(&end));
    line.and_then(|line| line.split_once('[')).map_or("", |(_, rest)| &rest[..rest.len() - end.len()])
}

fn contents(listed: &[PageEntry<'_>]) -> String {
    let mut text = String::new();
    for line in SUMMARY.lines().skip(1) {
        if let Some(part) = line.strip_prefix("# ") {
            let _ = write!(text, "\n{part}:\n");
        } else if let Some(page) = listed.iter().find(|page| line.ends_with(&format!("]({}.md)", page.name))) {
            let _ = writeln!(text, "  {:<22} {}", page.name, page.title);
        }
    }
    text.trim_start().to_owned()
        + "\n`gradus docs PAGE | less` shows a page; `gradus docs --search WORDS` searches all of them.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_contents_is_in_the_binary_with_a_title() {
        let listed: Vec<&str> = SUMMARY
            .lines()
            .filter_map(|line| line.strip_suffix(".md)")?.rsplit_once('(').map(|(_, name)| name))
            .collect();
        let held: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
        assert_eq!(held, listed, "the list in docs.rs is that of docs/SUMMARY.md, in its order");
        for (name, text) in PAGES {
            assert!(!title(name).is_empty() && text.starts_with("# "), "{name}");
        }
    }

    #[test]
    fn pages_are_found_by_name_and_by_text() {
        assert_eq!(page("docs/config.md").expect("a page").0, "config");
        let error = page("confg").expect_err("no such page");
        let hint = error.downcast_ref::<gradus::Error>().and_then(gradus::Error::hint);
        assert_eq!(hint, Some("did you mean `config`?"));
        let found: Vec<_> =
            lines("a", "One\nTWO two\ntwo too\n", &["tw", "wo tw"]).map(|found| (found.line, found.text)).collect();
        assert_eq!(found, [(2, "TWO two")]);
        let found: Vec<_> =
            sections("a", "# One\nreward\n## Two\nmy\nReward\n", &["my", "reward"]).iter().map(|f| f.line).collect();
        assert_eq!(found, [3]);
    }
}

//! `gradus man [COMMAND]`: a manual page on stdout, in roff.

use clap::Command;
use gradus::suggest::nearest;

use crate::output::Output;

/// Arguments of `gradus man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The command, such as `grpo` or `runs list`; without it, gradus itself
    #[arg(num_args = 0..)]
    command: Vec<String>,
    /// List the names of all pages, one a line: `gradus`, `gradus-grpo`, …
    #[arg(long)]
    list: bool,
}

/// Prints a page, or the names of all.
pub fn run(args: ManArgs, out: &Output) -> anyhow::Result<()> {
    let mut root = crate::cli::command();
    root.build();
    let mut all = Vec::new();
    gather(&root, "gradus", &mut all);
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    if args.list {
        return out.result(&names, || names.iter().map(|name| format!("{name}\n")).collect());
    }
    let words = std::iter::once("gradus".to_owned()).chain(args.command);
    let wanted = words.collect::<Vec<String>>().join("-");
    let wanted = wanted.strip_prefix("gradus-gradus").map_or(wanted.clone(), |rest| format!("gradus{rest}"));
    let Some((name, command)) = all.iter().find(|(name, _)| *name == wanted) else {
        let error = gradus::Error::input(format!("there is no page `{wanted}`"));
        let hint = match nearest(&wanted, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`gradus man --list` shows all names".to_owned(),
        };
        return Err(error.with_hint(hint).into());
    };
    out.text(&page(name, command)?)
}

/// Every command with the name of its page.
fn gather(command: &Command, name: &str, all: &mut Vec<(String, Command)>) {
    all.push((name.to_owned(), command.clone()));
    for below in command.get_subcommands() {
        gather(below, &format!("{name}-{}", below.get_name()), all);
    }
}

fn page(name: &str, command: &Command) -> anyhow::Result<String> {
    // The template of the short help groups commands; a page has a section for them.
    let command = command.clone().name(name.to_owned()).display_name(name.to_owned()).disable_help_flag(true);
    let mut roff = Vec::new();
    clap_mangen::Man::new(command).manual("gradus").source(format!("gradus {}", env!("CARGO_PKG_VERSION"))).render(&mut roff)?;
    Ok(String::from_utf8_lossy(&roff).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_its_flags() {
        let mut root = crate::cli::command();
        root.build();
        let mut all = Vec::new();
        gather(&root, "gradus", &mut all);
        assert!(all.len() > 50, "{}", all.len());
        for (name, command) in &all {
            let page = page(name, command).expect("a page");
            assert!(page.contains(".TH") && page.contains(".SH NAME"), "{name}");
            let flags = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help");
            for long in flags.filter_map(|arg| arg.get_long()) {
                let written = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(page.contains(&written), "{name}: no {written}");
            }
        }
    }
}

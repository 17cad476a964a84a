//! `gradus man [COMMAND]`: prints a manual page in roff format.

use std::io::Write as _;

use clap::Command;
use gradus::suggest::nearest;

use crate::output::Output;

/// Arguments of `gradus man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Command, such as `grpo` or `runs list`; without it, gradus itself
    #[arg(num_args = 0..)]
    command: Vec<String>,
    /// List the names of all pages, one per line: `gradus`, `gradus-grpo`, …
    #[arg(long)]
    list: bool,
}

/// Prints a page, or the names of all pages.
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
    let requested = words.collect::<Vec<String>>().join("-");
    let requested = requested.strip_prefix("gradus-gradus").map_or(requested.clone(), |rest| format!("gradus{rest}"));
    let Some((name, command)) = all.iter().find(|(name, _)| *name == requested) else {
        let error = gradus::Error::input(format!("there is no page `{requested}`"));
        let hint = match nearest(&requested, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`gradus man --list` shows all names".to_owned(),
        };
        return Err(error.with_hint(hint).into());
    };
    out.text(&page(name, command)?)
}

/// Collects all commands with the names of their pages.
fn gather(command: &Command, name: &str, all: &mut Vec<(String, Command)>) {
    all.push((name.to_owned(), command.clone()));
    for below in command.get_subcommands() {
        gather(below, &format!("{name}-{}", below.get_name()), all);
    }
}

/// A command with more flags than this lists them only in its options section, not in the synopsis.
const MANY: usize = 14;

fn page(name: &str, command: &Command) -> anyhow::Result<String> {
    // The short help hides most flags of a method; a manual page shows all of them.
    let command = command.clone().name(name.to_owned()).display_name(name.to_owned()).disable_help_flag(true);
    let command = command.mut_args(|arg| arg.hide_short_help(false));
    let has_many = command.get_arguments().filter(|arg| !arg.is_hide_set()).count() > MANY;
    let has_commands = command.has_subcommands();
    let has_example = command.get_after_help().is_some() || command.get_after_long_help().is_some();
    let words = command.get_bin_name().unwrap_or(name).to_owned();
    let man = clap_mangen::Man::new(command).manual("gradus").source(format!("gradus {}", env!("CARGO_PKG_VERSION")));
    let mut roff = Vec::new();
    man.render_title(&mut roff)?;
    man.render_name_section(&mut roff)?;
    if has_many {
        writeln!(roff, ".SH SYNOPSIS\n\\fB{words}\\fR [\\fIoptions\\fR]")?;
    } else {
        man.render_synopsis_section(&mut roff)?;
    }
    man.render_description_section(&mut roff)?;
    man.render_options_section(&mut roff)?;
    if has_commands {
        man.render_subcommands_section(&mut roff)?;
    }
    if has_example {
        man.render_extra_section(&mut roff)?;
    }
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
            assert!(!page.contains("\\-\\-json\\fR\n\n"), "{name}: flags without their help");
        }
    }
}

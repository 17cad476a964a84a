//! Structure of the command line: global options, and commands in groups.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::Styles, builder::styling::Style};

use crate::commands::{Entry, Group, entries};
use crate::globals::{ColorChoice, Global};

impl From<&ArgMatches> for Global {
    fn from(matches: &ArgMatches) -> Self {
        Self {
            quiet: matches.get_flag("quiet"),
            verbose: matches.get_count("verbose"),
            json: matches.get_flag("json"),
            color: matches.get_one("color").copied().unwrap_or(ColorChoice::Auto),
        }
    }
}

/// Builds the command line. The arguments of a command are built only if that command is used.
pub fn command() -> Command {
    let entries = entries();
    Command::new("gradus")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Train language models from human feedback: SFT, reward models, DPO, PPO, GRPO")
        .styles(styles())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .help_template(template(&entries))
        .args(global())
        .subcommands(
            entries
                .into_iter()
                .map(|entry| Command::new(entry.name).about(entry.about).styles(styles()).defer(entry.arguments)),
        )
}

fn global() -> [Arg; 4] {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).global(true).help_heading("Global options").action(ArgAction::SetTrue)
    };
    [
        flag("json", "Print results as JSON"),
        flag("quiet", "Print no notes and no progress").short('q'),
        flag("verbose", "Log more; -vv logs everything").short('v').action(ArgAction::Count),
        flag("color", "When to color the output")
            .action(ArgAction::Set)
            .value_name("auto|always|never")
            .hide_possible_values(true)
            .value_parser(clap::builder::EnumValueParser::<ColorChoice>::new()),
    ]
}

fn styles() -> Styles {
    Styles::styled()
        .header(Style::new().bold())
        .usage(Style::new().bold())
        .literal(Style::new())
        .placeholder(Style::new().dimmed())
}

/// Builds a help template with commands in groups. clap would list all of them under one heading.
fn template(entries: &[Entry]) -> String {
    let bold = Style::new().bold();
    let mut text = format!("{{about}}\n\n{bold}Usage:{bold:#} {{usage}}\n");
    for group in Group::ALL {
        let mut entries = entries.iter().filter(|entry| entry.group == group).peekable();
        if entries.peek().is_some() {
            text += &format!("\n{bold}{}:{bold:#}\n", group.title());
        }
        for entry in entries {
            text += &format!("  {:<12} {}\n", entry.name, entry.about);
        }
    }
    text + &format!(
        "\n{bold}Options:{bold:#}\n{{options}}\n\n`gradus COMMAND --help` shows the options of a command.\n"
    )
}

//! Input lines of the chat: prompts, and commands that begin with a slash.

use gradus::inference::ChatSettings;
use gradus::rng::Seed;

/// One input line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Answer this prompt.
    Say(String),
    /// Change the system prompt from here on. An empty text removes it.
    System(String),
    /// Change a setting, or show all settings.
    Set(Option<(String, String)>),
    /// Start a new conversation.
    Reset,
    /// Sample another answer to the last prompt.
    Regenerate,
    /// Save the conversation as a row of training data.
    Save(String),
    /// Show the commands.
    Help,
    /// End the chat.
    Quit,
}

/// Text of `/help`.
pub const HELP: &str = "\
/set KEY VALUE    temperature, top-k, top-p, min-p, repetition-penalty, no-repeat-ngram-size, min-new-tokens,
                  max-new-tokens, seed, stop; without arguments: show them
/set stop TEXT    add a stop string, with \\n for a line break; `/set stop off` removes all of them
/system TEXT      set the system prompt; without text: remove it
/regenerate       answer the last prompt again
/reset            start a new conversation
/save FILE        append the conversation to a JSON lines file, as a training row
/quit             end the chat, as Ctrl-D does. Ctrl-C stops an answer. Write // to begin a prompt with a slash
\"\"\"TEXT\"\"\"        a prompt of several lines, typed or pasted between the marks";

impl Command {
    /// Parses a line. A blank line is `None`.
    ///
    /// # Errors
    /// The command is invalid.
    pub fn parse(line: &str) -> Result<Option<Self>, String> {
        let line = line.trim();
        if line.is_empty() {
            return Ok(None);
        }
        let Some(command) = line.strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
            return Ok(Some(Self::Say(line.strip_prefix('/').unwrap_or(line).to_owned())));
        };
        let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let alone = |command: Self| match rest {
            "" => Ok(Some(command)),
            _ => Err(format!("`/{word}` takes no argument, but `{rest}` follows")),
        };
        match word {
            "set" if rest.is_empty() => Ok(Some(Self::Set(None))),
            "set" => match rest.split_once([' ', '=']) {
                Some((key, value)) => Ok(Some(Self::Set(Some((key.to_owned(), value.trim().to_owned()))))),
                None => Err(format!("`/set {rest}` has no value: write `/set {rest} VALUE`")),
            },
            "system" => Ok(Some(Self::System(rest.to_owned()))),
            "reset" => alone(Self::Reset),
            "regenerate" => alone(Self::Regenerate),
            "save" if rest.is_empty() => Err("`/save` needs a file: write `/save chat.jsonl`".into()),
            "save" => Ok(Some(Self::Save(rest.to_owned()))),
            "help" => Ok(Some(Self::Help)),
            "quit" | "exit" => Ok(Some(Self::Quit)),
            _ => Err(format!("there is no command `/{word}`; `/help` lists them")),
        }
    }
}

/// Changes one setting. If the value is invalid, all settings stay unchanged.
///
/// # Errors
/// The key or the value is invalid.
pub fn set(settings: &mut ChatSettings, key: &str, value: &str) -> Result<(), String> {
    fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
        value.parse().map_err(|_| format!("`{key}` is `{value}`, but a number is needed"))
    }
    let mut changed = settings.clone();
    match key.trim_start_matches('-').replace('_', "-").as_str() {
        "temperature" => changed.params.temperature = number(key, value)?,
        "top-k" if matches!(value, "off" | "none" | "0") => changed.params.top_k = None,
        "top-k" => changed.params.top_k = Some(number(key, value)?),
        "top-p" => changed.params.top_p = number(key, value)?,
        "min-p" => changed.params.min_p = number(key, value)?,
        "repetition-penalty" => changed.params.repetition_penalty = number(key, value)?,
        "no-repeat-ngram-size" => changed.params.no_repeat_ngram_size = number(key, value)?,
        "min-new-tokens" => changed.params.min_new_tokens = number(key, value)?,
        "max-new-tokens" => changed.params.max_new_tokens = number(key, value)?,
        "seed" => changed.seed = Seed(number(key, value)?),
        "stop" if matches!(value, "off" | "none") => changed.stop.clear(),
        "stop" => changed.stop.push(value.replace("\\n", "\n")),
        _ => return Err(format!("there is no setting `{key}`; `/help` lists them")),
    }
    changed.params.check().map_err(|error| error.to_string())?;
    if changed.params.max_new_tokens == 0 {
        return Err("`max-new-tokens` is 0, but must be at least 1".into());
    }
    *settings = changed;
    Ok(())
}

/// Formats all settings on one line.
pub fn show(settings: &ChatSettings) -> String {
    let params = &settings.params;
    format!(
        "temperature {}, top-k {}, top-p {}, min-p {}, repetition-penalty {}, no-repeat-ngram-size {}, \
         min-new-tokens {}, max-new-tokens {}, seed {}, stop {:?}",
        params.temperature,
        params.top_k.map_or("off".to_owned(), |k| k.to_string()),
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.no_repeat_ngram_size,
        params.min_new_tokens,
        params.max_new_tokens,
        settings.seed.0,
        settings.stop
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts_or_commands() {
        let parse = |line: &str| Command::parse(line).unwrap();
        assert_eq!(parse("  "), None);
        assert_eq!(parse(" Hello there "), Some(Command::Say("Hello there".into())));
        assert_eq!(parse("//etc is a directory"), Some(Command::Say("/etc is a directory".into())));
        assert_eq!(parse("/set temperature 0.7"), Some(Command::Set(Some(("temperature".into(), "0.7".into())))));
        assert_eq!(parse("/set"), Some(Command::Set(None)));
        assert_eq!(parse("/system You are a cat."), Some(Command::System("You are a cat.".into())));
        assert_eq!(parse("/quit"), Some(Command::Quit));
        let message = |line: &str| Command::parse(line).unwrap_err();
        assert_eq!(message("/sett x"), "there is no command `/sett`; `/help` lists them");
        assert_eq!(message("/set top-k"), "`/set top-k` has no value: write `/set top-k VALUE`");
        assert_eq!(message("/reset now"), "`/reset` takes no argument, but `now` follows");
    }

    #[test]
    fn settings_change_or_stay_as_they_were() {
        let params = gradus::generate::SamplingParams::default();
        let mut settings = ChatSettings { params, stop: Vec::new(), seed: Seed(1) };
        set(&mut settings, "temperature", "0.5").unwrap();
        set(&mut settings, "top_k", "3").unwrap();
        set(&mut settings, "stop", "\\n\\n").unwrap();
        assert_eq!((settings.params.temperature, settings.params.top_k), (0.5, Some(3)));
        assert_eq!(settings.stop, ["\n\n"]);
        for (key, value) in [("temperature", "-1"), ("top-p", "two"), ("max-new-tokens", "0"), ("heat", "1")] {
            let before = settings.clone();
            set(&mut settings, key, value).unwrap_err();
            assert_eq!(settings, before, "{key} {value}");
        }
        assert_eq!(
            show(&settings),
            "temperature 0.5, top-k 3, top-p 1, min-p 0, repetition-penalty 1, no-repeat-ngram-size 0, \
             min-new-tokens 0, max-new-tokens 256, seed 1, stop [\"\\n\\n\"]"
        );
    }
}

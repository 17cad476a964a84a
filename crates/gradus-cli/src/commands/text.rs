//! Arguments that replace the tokenizer and chat template.

use std::path::PathBuf;

use gradus::pretrained::TextFiles;

/// Tokenizer and chat template, if they are not the model's own.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TextArgs {
    /// Tokenizer outside the model's directory: a directory or a hub name
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<String>,
    /// Chat template that replaces the model's own: a file, or chatml, gemma, llama2, llama3, mistral, phi3, qwen or zephyr
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<PathBuf>,
}

impl TextArgs {
    /// Returns the name of the first given flag.
    pub fn given(&self) -> Option<&'static str> {
        let tokenizer = self.tokenizer.as_ref().map(|_| "--tokenizer");
        tokenizer.or(self.chat_template.as_ref().map(|_| "--chat-template"))
    }

    /// Rejects the flags if they would have no effect. `why` completes "`--tokenizer` …".
    ///
    /// # Errors
    /// One of the flags is given.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        match self.given() {
            Some(flag) => anyhow::bail!("`{flag}` {why}"),
            None => Ok(()),
        }
    }
}

impl From<TextArgs> for TextFiles {
    fn from(args: TextArgs) -> Self {
        Self { tokenizer: args.tokenizer, chat_template: args.chat_template }
    }
}

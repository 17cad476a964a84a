//! Arguments that replace what turns text into ids.

use std::path::PathBuf;

use gradus::pretrained::TextFiles;

/// The tokenizer and the chat template, where they are not the model's own.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TextArgs {
    /// A tokenizer that is not beside the model: a directory or a hub name
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<String>,
    /// A chat template that replaces the model's own: a file, or chatml, gemma, llama2, llama3, mistral, phi3, qwen or zephyr
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<PathBuf>,
}

impl TextArgs {
    /// The first of the flags that is given.
    pub fn given(&self) -> Option<&'static str> {
        let tokenizer = self.tokenizer.as_ref().map(|_| "--tokenizer");
        tokenizer.or(self.chat_template.as_ref().map(|_| "--chat-template"))
    }

    /// Refuses the flags where nothing would use them: `why` completes "`--tokenizer` …".
    ///
    /// # Errors
    /// When one is given.
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

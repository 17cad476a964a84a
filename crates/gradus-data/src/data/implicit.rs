//! Preference rows without a prompt: finds the end of the prompt that both answers begin with.

use super::row::{Content, Row, RowData};

/// Start of an assistant's turn in Anthropic's HH transcripts.
pub(super) const ASSISTANT: &str = "\n\nAssistant:";

/// Rule for finding the prompt that `chosen` and `rejected` share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImplicitPrompt {
    /// Splits HH transcripts by turns and everything else by TRL's rule.
    #[default]
    Turns,
    /// Applies TRL's rule to everything: the prompt ends at the first character that differs, even within a word.
    Trl,
}

/// Splits `chosen` and `rejected` into their shared prompt and the two answers.
///
/// # Errors
/// If one is text and the other messages, or one is empty.
pub fn split_shared_prompt(
    chosen: &Content,
    rejected: &Content,
    rule: ImplicitPrompt,
) -> Result<(Content, Content, Content), String> {
    match (chosen, rejected) {
        (Content::Text(chosen), Content::Text(rejected)) => {
            let by_turns = if rule == ImplicitPrompt::Turns { turn_boundary(chosen, rejected) } else { None };
            let at = match by_turns {
                Some(at) => at,
                None => trl_boundary(chosen, rejected).ok_or("`chosen` or `rejected` is empty")?,
            };
            let text = |s: &str| Content::Text(s.to_owned());
            Ok((text(&chosen[..at]), text(&chosen[at..]), text(&rejected[at..])))
        }
        (Content::Messages(chosen), Content::Messages(rejected)) => {
            let shorter = chosen.len().min(rejected.len());
            if shorter == 0 {
                return Err("`chosen` or `rejected` has no messages".into());
            }
            // As in TRL, the last common message stays in the answers if one list contains the other.
            let at = chosen.iter().zip(rejected).position(|(c, r)| c != r).unwrap_or(shorter - 1);
            let messages = |m: &[super::Message]| Content::Messages(m.to_vec());
            Ok((messages(&chosen[..at]), messages(&chosen[at..]), messages(&rejected[at..])))
        }
        _ => Err("`chosen` and `rejected` must both be text or both be messages".into()),
    }
}

/// Returns the byte after the last `\n\nAssistant:` that both transcripts share. Returns `None` if they share none.
pub(super) fn turn_boundary(chosen: &str, rejected: &str) -> Option<usize> {
    let common = &chosen[..common_bytes(chosen, rejected)];
    common.rfind(ASSISTANT).map(|at| at + ASSISTANT.len())
}

/// Returns TRL's boundary: the first character that differs, or the space before it. `None` if a text is empty.
pub(super) fn trl_boundary(chosen: &str, rejected: &str) -> Option<usize> {
    let common = common_bytes(chosen, rejected);
    if chosen.is_empty() || rejected.is_empty() {
        return None;
    }
    if common == chosen.len() || common == rejected.len() {
        // One text begins with the other, so the last common character stays in the answers.
        return chosen[..common].char_indices().last().map(|(at, _)| at);
    }
    Some(if chosen[..common].ends_with(' ') { common - 1 } else { common })
}

/// Returns the length in bytes of the common beginning of two texts, in whole characters.
fn common_bytes(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}

impl Row {
    /// Returns the two answers of a pair as separate rows, the chosen one first. Returns `None` if the row is not a pair.
    ///
    /// # Errors
    /// If the answers have no separate prompt and do not share one.
    pub fn answers(&self, rule: ImplicitPrompt) -> Result<Option<[Self; 2]>, String> {
        let tokens = |prompt_ids: &[u32], ids: &[u32]| RowData::Tokens {
            ids: [prompt_ids, ids].concat(),
            loss_mask: Some((0..prompt_ids.len() + ids.len()).map(|i| i >= prompt_ids.len()).collect()),
            labels: None,
        };
        let with = |data: RowData| Self { data, ..self.clone() };
        let answers = match &self.data {
            RowData::Preference { prompt, chosen, rejected, .. } => {
                let (prompt, chosen, rejected) = match prompt {
                    Some(prompt) => (prompt.clone(), chosen.clone(), rejected.clone()),
                    None => split_shared_prompt(chosen, rejected, rule)?,
                };
                [chosen, rejected].map(|completion| RowData::PromptCompletion { prompt: prompt.clone(), completion })
            }
            RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, .. } => {
                [chosen_ids, rejected_ids].map(|ids| tokens(prompt_ids, ids))
            }
            _ => return Ok(None),
        };
        Ok(Some(answers.map(with)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn check(chosen: &str, rejected: &str, rule: ImplicitPrompt, expected: [&str; 3]) {
        let text = |s: &str| Content::Text(s.to_owned());
        let (prompt, c, r) = split_shared_prompt(&text(chosen), &text(rejected), rule).unwrap();
        assert_eq!([prompt, c, r], expected.map(text));
    }

    #[test]
    fn trl_rule() {
        // TRL 1.16's `extract_prompt` returned the expected values of these three examples.
        check("A: blue", "A: black", ImplicitPrompt::Trl, ["A: bl", "ue", "ack"]);
        check("ab", "abc", ImplicitPrompt::Trl, ["a", "b", "bc"]);
        check("A: ja", "A: nein", ImplicitPrompt::Trl, ["A:", " ja", " nein"]);
    }

    #[test]
    fn transcripts_are_split_at_the_last_common_turn() {
        let (yes, no) = ("\n\nHuman: a?\n\nAssistant: It is", "\n\nHuman: a?\n\nAssistant: It was");
        check(yes, no, ImplicitPrompt::Turns, ["\n\nHuman: a?\n\nAssistant:", " It is", " It was"]);
        check(yes, no, ImplicitPrompt::Trl, ["\n\nHuman: a?\n\nAssistant: It", " is", " was"]);
        check("A: blue", "A: black", ImplicitPrompt::Turns, ["A: bl", "ue", "ack"]);
    }

    #[test]
    fn conversations_are_split_at_the_first_message_that_differs() {
        let (ask, yes, no) =
            (Message::new("user", "a?"), Message::new("assistant", "b"), Message::new("assistant", "c"));
        let chosen = Content::Messages(vec![ask.clone(), yes.clone()]);
        let rejected = Content::Messages(vec![ask.clone(), no.clone()]);
        let (prompt, c, r) = split_shared_prompt(&chosen, &rejected, ImplicitPrompt::Turns).unwrap();
        assert_eq!(prompt, Content::Messages(vec![ask]));
        assert_eq!((c, r), (Content::Messages(vec![yes]), Content::Messages(vec![no])));
    }
}

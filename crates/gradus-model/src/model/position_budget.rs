//! Limits of the lengths of prompts and completions.

use crate::error::{Error, Result};

/// Number of positions that a model has: for prompt and completion together or, with an encoder, for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionBudget {
    /// Number of positions; `None` for no limit.
    positions: Option<usize>,
    /// Whether an encoder reads the prompt, and the decoder's positions start at the completion.
    separate: bool,
    /// Number of decoder positions taken by its start id, if completions are read to their last id.
    taken: usize,
}

impl PositionBudget {
    pub(super) fn new(positions: Option<usize>, separate: bool) -> Self {
        Self { positions, separate, taken: 0 }
    }

    /// Returns the budget for models that read completions to their last id, such as reward models. A decoder's start id then takes a
    /// position of its own.
    pub fn read_whole(self) -> Self {
        Self { taken: usize::from(self.separate), ..self }
    }

    /// Limits the budget to `length` positions.
    #[must_use]
    pub fn within(self, length: usize) -> Self {
        Self { positions: Some(self.positions.unwrap_or(usize::MAX).min(length)), ..self }
    }

    /// Whether an encoder reads the prompt, and the decoder's positions start at the completion.
    pub fn reads_separately(self) -> bool {
        self.separate
    }

    /// Number of positions for a prompt and a completion of these lengths: their sum or, with an encoder, the longer of both.
    pub fn needed(self, prompt: usize, new: usize) -> usize {
        match self.separate {
            true => prompt.max(new.saturating_add(self.taken)),
            false => prompt.saturating_add(new),
        }
    }

    /// Whether a prompt and a completion of these lengths fit.
    pub fn holds(self, prompt: usize, new: usize) -> bool {
        self.positions.is_none_or(|limit| self.needed(prompt, new) <= limit)
    }

    /// Returns the smallest length of a prompt that is too long to be followed by `new` ids; 0 if the ids alone do not fit.
    pub fn too_long(self, new: usize) -> usize {
        let limit = self.positions.unwrap_or(usize::MAX);
        match self.separate {
            true if new > limit => 0,
            true => limit.saturating_add(1),
            false => limit.saturating_add(1).saturating_sub(new),
        }
    }

    /// Returns how many ids can follow a prompt; `None` for no limit.
    pub fn after(self, prompt: usize) -> Option<usize> {
        let limit = self.positions?;
        match self.separate {
            true if prompt > limit => Some(0),
            true => Some(limit.saturating_sub(self.taken)),
            false => Some(limit.saturating_sub(prompt)),
        }
    }

    /// Rejects a text that has too many positions: a prompt, and the completion that was given with it. `name` names the text in messages.
    ///
    /// # Errors
    /// Reports the lengths and a solution.
    pub fn check_text(self, name: &str, prompt: usize, completion: usize) -> Result<()> {
        let Some(limit) = self.positions.filter(|_| !self.holds(prompt, completion)) else { return Ok(()) };
        let tokens = match completion {
            0 => format!("{prompt} tokens"),
            _ => format!("{prompt} tokens of a prompt and {completion} of a completion"),
        };
        let of_model = match self.separate {
            true => format!("the encoder and the decoder have {limit} positions each"),
            false => format!("the model has {limit} positions"),
        };
        Err(Error::input(format!("{name} has {tokens}, but {of_model}")).with_hint("shorten the text"))
    }

    /// Rejects a prompt that leaves no room for `new` ids; `name` names it in messages.
    ///
    /// # Errors
    /// Reports the lengths and a solution.
    pub fn check(self, name: &str, prompt: usize, new: usize) -> Result<()> {
        let Some(limit) = self.positions.filter(|_| !self.holds(prompt, new)) else { return Ok(()) };
        if !self.separate {
            let message = format!(
                "{name} has {prompt} tokens; with `max_new_tokens` {new} it exceeds the model's {limit} positions"
            );
            return Err(Error::input(message).with_hint("shorten the prompts or lower `max_new_tokens`"));
        }
        match prompt > limit {
            true => Err(Error::input(format!("{name} has {prompt} tokens, but the encoder has {limit} positions"))
                .with_hint("shorten the prompts")),
            false => Err(Error::input(format!("`max_new_tokens` is {new}, but the decoder has {limit} positions"))
                .with_hint(format!("lower `max_new_tokens` to {limit} or less"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_a_prompt_takes_room_from_its_completion() {
        let room = PositionBudget::new(Some(10), false);
        assert!(room.holds(6, 4) && !room.holds(7, 4) && room.within(8).holds(4, 4) && !room.within(8).holds(5, 4));
        assert_eq!((room.too_long(4), room.too_long(11), room.after(7), room.after(12)), (7, 0, Some(3), Some(0)));
        assert_eq!((room.needed(3, 7), room.read_whole().needed(3, 7)), (10, 10));
        let error = room.check("the prompt", 7, 4).expect_err("too long").to_string();
        assert_eq!(error, "the prompt has 7 tokens; with `max_new_tokens` 4 it exceeds the model's 10 positions");
        let error = room.check_text("datum 1", 7, 4).expect_err("too long").to_string();
        assert_eq!(error, "datum 1 has 7 tokens of a prompt and 4 of a completion, but the model has 10 positions");
        let error = room.check_text("datum 1", 11, 0).expect_err("too long").to_string();
        assert_eq!(error, "datum 1 has 11 tokens, but the model has 10 positions");
        assert!(room.check_text("datum 1", 6, 4).is_ok());
    }

    #[test]
    fn apart_each_has_the_room_alone() {
        let room = PositionBudget::new(Some(10), true);
        assert!(room.holds(10, 10) && !room.holds(11, 1) && !room.holds(1, 11));
        assert_eq!((room.needed(3, 7), room.needed(7, 3), room.read_whole().needed(3, 7)), (7, 7, 8));
        assert_eq!((room.too_long(4), room.too_long(11), room.after(7), room.after(11)), (11, 0, Some(10), Some(0)));
        let error = |prompt, new| room.check("the prompt", prompt, new).expect_err("too long").to_string();
        assert_eq!(error(11, 1), "the prompt has 11 tokens, but the encoder has 10 positions");
        assert_eq!(error(1, 11), "`max_new_tokens` is 11, but the decoder has 10 positions");
        let error = room.check_text("datum 1", 1, 11).expect_err("too long").to_string();
        let tokens = "1 tokens of a prompt and 11 of a completion";
        assert_eq!(error, format!("datum 1 has {tokens}, but the encoder and the decoder have 10 positions each"));
    }

    #[test]
    fn read_whole_a_completion_stands_behind_the_first_id() {
        let room = PositionBudget::new(Some(10), true).read_whole();
        assert!(room.holds(10, 9) && !room.holds(10, 10) && !room.holds(11, 1));
        assert_eq!(room.after(3), Some(9));
        assert!(
            PositionBudget::new(Some(10), false).read_whole().holds(6, 4),
            "without an encoder nothing stands before"
        );
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let room = PositionBudget::new(None, true);
        assert!(room.holds(usize::MAX, usize::MAX) && room.check("it", 1 << 40, 1 << 40).is_ok());
        assert_eq!((room.after(5), room.too_long(3)), (None, usize::MAX));
    }
}

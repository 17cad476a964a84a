//! Tercom's `Normalizer`.

use crate::TerOptions;
use crate::characters::is_space;
use crate::mteval::{is_western_punctuation, padded, split_dashes_after_digits, split_periods_and_commas};

/// Prepares a text for splitting into words.
pub fn prepared(text: &str, options: &TerOptions) -> String {
    let mut text = if options.case_sensitive { text.to_owned() } else { text.to_lowercase() };
    if options.normalized {
        text = normalized(&text);
        if options.asian_support {
            text = padded(&text, |c| is_asian(c) || is_asian_punctuation(c));
        }
        text = text.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    }
    if options.no_punct {
        let is_dropped = |c: char| ".,?:;!\"()".contains(c) || (options.asian_support && is_asian_punctuation(c));
        text.retain(|c| !is_dropped(c));
    }
    text
}

fn normalized(text: &str) -> String {
    let mut text = text.replace("\n-", "").replace('\n', " ");
    for (entity, plain) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        text = text.replace(entity, plain);
    }
    // The text ends with a space, so that a space follows every possessive.
    let text = padded(&format!(" {text} "), is_western_punctuation).replace("'s ", " 's ");
    split_dashes_after_digits(&split_periods_and_commas(&text))
}

/// Scripts whose characters are words. Kana are excluded: tercom's patterns for them match nothing within a text.
fn is_asian(c: char) -> bool {
    matches!(
        c,
        '\u{4e00}'..='\u{9fff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{31c0}'..='\u{31ef}'
            | '\u{2e80}'..='\u{2eff}'
            | '\u{3300}'..='\u{33ff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{fe30}'..='\u{fe4f}'
            // sacreBLEU's mistake: this range was meant to end at 32FF.
            | '\u{3200}'..='\u{3f22}'
    )
}

fn is_asian_punctuation(c: char) -> bool {
    matches!(
        c,
        '\u{3001}' | '\u{3002}'
            | '\u{3008}'..='\u{3011}'
            | '\u{3014}'..='\u{301f}'
            | '\u{ff61}'..='\u{ff65}'
            | '\u{30fb}'
            | '\u{ff0e}' | '\u{ff0c}' | '\u{ff1f}' | '\u{ff1a}' | '\u{ff1b}' | '\u{ff01}' | '\u{ff02}' | '\u{ff08}'
            | '\u{ff09}'
    )
}

//! The byte range of each id in a completion.

use std::ops::Range;
use std::path::Path;

use gradus::text::{Tokenizer, continuation, ranges};

use crate::support::material;

const TEXTS: [&str; 8] = [
    "Once upon a time there was a little girl named Lily.",
    " leading and  double spaces,   three",
    "你好，世界 1234567 漢字かな交じり文",
    "emoji 😀👩‍👩‍👧 🇩🇪 café naïve — “quoted”",
    "line one\nline two\n\n\tindented\r\n",
    "😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀 and on 世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世世",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "",
];

fn tokenizers() -> Vec<(String, Tokenizer)> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/rows/tokenizer");
    let mut found = vec![("fixture".to_owned(), Tokenizer::from_dir(&fixture).expect("readable"))];
    let of_material =
        ["tokenizers/gpt2", "tokenizers/qwen3", "tokenizers/t5", "tokenizers/roberta", "weights/stories260K"];
    for name in of_material {
        if let Some(directory) = material(name) {
            found.push((name.to_owned(), Tokenizer::from_dir(&directory).expect("readable")));
        }
    }
    found
}

/// Computes the ranges by decoding each prefix again and comparing it to the whole text.
fn by_prefixes(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Vec<Range<usize>> {
    let text = continuation(tokenizer, before, ids).expect("readable");
    let prompt = tokenizer.decode(before, true).expect("readable");
    let mut start = 0;
    let one = |k: usize| {
        let decoded = tokenizer.decode(&[before, &ids[..=k]].concat(), true).expect("readable");
        let decoded = decoded
            .strip_prefix(&prompt)
            .map_or_else(|| tokenizer.decode(&ids[..=k], true).expect("readable"), str::to_owned);
        let shared = text.chars().zip(decoded.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let end = if tokenizer.is_special(ids[k]) { start } else { start.max(shared) };
        std::mem::replace(&mut start, end)..end
    };
    (0..ids.len()).map(one).collect()
}

/// Checks properties that hold for any ids.
#[track_caller]
fn check(tokenizer: &Tokenizer, before: &[u32], ids: &[u32], about: &str) -> Vec<Range<usize>> {
    let (text, found) =
        (continuation(tokenizer, before, ids).expect("readable"), ranges(tokenizer, before, ids).expect("readable"));
    let joined: String = found.iter().map(|range| &text[range.clone()]).collect();
    assert_eq!((found.len(), &joined), (ids.len(), &text), "{about}");
    let mut end = 0;
    for (range, &id) in found.iter().zip(ids) {
        assert_eq!(range.start, end, "{about}: {found:?}");
        assert!(!tokenizer.is_special(id) || range.is_empty(), "{about}: special ids have no text");
        end = range.end;
    }
    found
}

#[test]
fn ranges_join_to_the_text_wherever_a_prompt_ends() {
    let mut compared = 0;
    for (name, tokenizer) in tokenizers() {
        for text in TEXTS {
            let mut ids = tokenizer.encode(text, true).expect("readable");
            ids.extend(tokenizer.eos_id());
            for prompt in 0..ids.len() {
                let (before, after) = ids.split_at(prompt);
                let found = check(&tokenizer, before, after, &format!("{name}: {text:?} from id {prompt}"));
                // A prompt that ends inside a character decodes differently on its own.
                let whole = tokenizer.decode(&ids, true).expect("readable");
                if whole.starts_with(&tokenizer.decode(before, true).expect("readable")) {
                    assert_eq!(found, by_prefixes(&tokenizer, before, after), "{name}: {text:?} from id {prompt}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 150, "only {compared} were compared");
}

#[test]
fn a_split_character_belongs_to_the_id_that_completes_it() {
    let Some(gpt2) = material("tokenizers/gpt2") else { return };
    let tokenizer = Tokenizer::from_dir(&gpt2).expect("readable");
    let (before, text) = (tokenizer.encode("Say:", false).expect("readable"), " 😀 café世<|endoftext|>");
    let ids = tokenizer.encode(text, false).expect("readable");
    let found = check(&tokenizer, &before, &ids, text);
    let pieces: Vec<&str> = found.iter().map(|range| &text[range.clone()]).collect();
    let spelt: Vec<String> = ids.iter().map(|&id| tokenizer.token(id).expect("readable")).collect();
    // Bytes as GPT-2 spells them: ` 😀` is 20 F0 9F 98 | 80, `世` is E4 B8 | 96.
    assert_eq!(spelt, ["ĠðŁĺ", "Ģ", "ĠcafÃ©", "ä¸", "ĸ", "<|endoftext|>"]);
    assert_eq!(pieces, [" ", "😀", " café", "", "世", ""]);
}

#[test]
fn a_completion_keeps_the_space_it_begins_with() {
    let Some(directory) = material("weights/stories260K") else { return };
    let tokenizer = Tokenizer::from_dir(&directory).expect("readable");
    let ids = tokenizer.encode("Once upon a time there was", true).expect("readable");
    let (before, after) = ids.split_at(tokenizer.encode("Once upon a time", true).expect("readable").len());
    assert_eq!(tokenizer.decode(after, true).expect("readable"), "there was");
    let text = continuation(&tokenizer, before, after).expect("readable");
    assert_eq!(text, " there was");
    let pieces: Vec<&str> =
        ranges(&tokenizer, before, after).expect("readable").into_iter().map(|range| &text[range]).collect();
    assert_eq!((pieces.concat().as_str(), pieces[0].starts_with(' ')), (" there was", true));
}

/// The generator of Numerical Recipes, upper half of its output.
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*state >> 16) as u32 & 0xffff
}

#[test]
fn ids_drawn_by_chance_have_places_too() {
    for (name, tokenizer) in tokenizers() {
        let (mut same, mut all, mut state) = (0, 0, 7);
        for case in 0..40 {
            let ids: Vec<u32> = (0..60).map(|_| next(&mut state) % tokenizer.vocab_size() as u32).collect();
            let (before, after) = ids.split_at(5);
            let found = check(&tokenizer, before, after, &format!("{name}: case {case}"));
            let expected = by_prefixes(&tokenizer, before, after);
            same += found.iter().zip(&expected).filter(|(a, b)| a == b).count();
            all += found.len();
        }
        // For bytes that are not text, their id is ambiguous.
        assert!(same * 100 >= all * 98, "{name}: {same} of {all}");
    }
}

#[test]
fn time_is_linear_in_the_ids() {
    let (_, tokenizer) = tokenizers().remove(0);
    let ids = tokenizer.encode(&"The tea is good, 😀 and 世界 too.\n".repeat(20_000), false).expect("readable");
    assert!(ids.len() > 300_000);
    // Less than a second. By prefixes, 10^11 ids would be decoded: this test would not end.
    check(&tokenizer, &[], &ids, "long");
}

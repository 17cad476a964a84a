//! Words as spaCy's tokenizer for English splits them (`spacy.blank("en")` of spaCy 3.8).
//!
//! A text is cut at whitespace. Then prefixes and suffixes are removed from each part until there are none. The rest is a special case, an
//! address, or is cut at infixes. Finally, neighboring tokens that spell a special case are split like it. The lists of characters,
//! abbreviations and emoticons are facts about spaCy's rules; `tests/tools.rs` compares the words with those of spaCy.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use crate::characters::is_space;

/// Splits a text into words. Whitespace is no word.
pub fn words(text: &str) -> Vec<&str> {
    tokens(text).into_iter().map(|token| &text[token]).filter(|word| !word.starts_with(is_space)).collect()
}

/// Returns the text with a space between its words.
pub fn joined(text: &str) -> String {
    words(text).join(" ")
}

type Token = Range<usize>;

/// Returns all tokens, including those of whitespace other than a single space.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut in_space = text.starts_with(is_space);
    let mut start = 0;
    let mut part = |part: Token| {
        if !part.is_empty() {
            split_part(text, part, Some(&*SPECIAL), &mut tokens);
        }
    };
    for (i, c) in text.char_indices() {
        if is_space(c) != in_space {
            part(start..i);
            start = if c == ' ' { i + 1 } else { i };
            in_space = !in_space;
        }
    }
    part(start..text.len());
    respell(text, tokens)
}

/// Lengths of the tokens of each special case.
type Special = HashMap<String, Vec<usize>>;

/// Splits a part without whitespace, or of whitespace only. Without `special` cases, only affixes and infixes count.
fn split_part(text: &str, mut part: Token, special: Option<&Special>, tokens: &mut Vec<Token>) {
    let lengths_of = |part: &Token| special.and_then(|special| special.get(&text[part.clone()]));
    let mut suffixes = Vec::new();
    while !part.is_empty() && lengths_of(&part).is_none() {
        let prefix = part.start..part.start + prefix(&text[part.clone()]);
        if !prefix.is_empty() && lengths_of(&(prefix.end..part.end)).is_some() {
            tokens.push(prefix.clone());
            part.start = prefix.end;
            break;
        }
        let suffix = part.end - suffix(&text[prefix.end..part.end])..part.end;
        if !suffix.is_empty() && lengths_of(&(part.start..suffix.start)).is_some() {
            part.end = suffix.start;
            suffixes.push(suffix);
            break;
        }
        if prefix.is_empty() && suffix.is_empty() {
            break;
        }
        part = prefix.end..suffix.start;
        tokens.extend(Some(prefix).filter(|prefix| !prefix.is_empty()));
        suffixes.extend(Some(suffix).filter(|suffix| !suffix.is_empty()));
    }
    match lengths_of(&part) {
        Some(lengths) => push_lengths(part.start, lengths, tokens),
        None if is_address(&text[part.clone()]) => tokens.push(part),
        None => {
            let mut start = part.start;
            // An infix at the beginning of the part is no cut.
            for infix in infixes(&text[part.clone()]).into_iter().filter(|infix| infix.start > 0) {
                let infix = part.start + infix.start..part.start + infix.end;
                tokens.extend(Some(start..infix.start).filter(|word| !word.is_empty()));
                start = infix.end;
                tokens.push(infix);
            }
            tokens.extend(Some(start..part.end).filter(|word| !word.is_empty()));
        }
    }
    tokens.extend(suffixes.into_iter().rev());
}

fn push_lengths(mut start: usize, lengths: &[usize], tokens: &mut Vec<Token>) {
    for length in lengths {
        tokens.push(start..start + length);
        start += length;
    }
}

/// Splits neighboring tokens that spell a special case like it. Longer matches count first, then earlier ones; a match with a space between
/// its tokens changes nothing, but no other match may begin or end in it.
fn respell(text: &str, tokens: Vec<Token>) -> Vec<Token> {
    let (sequences, longest) = &*SEQUENCES;
    let mut matches: Vec<Range<usize>> = Vec::new();
    for start in 0..tokens.len() {
        let mut sequence: Vec<&str> = Vec::new();
        for end in start + 1..=tokens.len().min(start + longest) {
            sequence.push(&text[tokens[end - 1].clone()]);
            if sequences.contains(&sequence.join("\0")) {
                matches.push(start..end);
            }
        }
    }
    if matches.is_empty() {
        return tokens;
    }
    matches.sort_by_key(|found| (std::cmp::Reverse(found.len()), found.start));
    let mut is_taken = vec![false; tokens.len()];
    let mut chosen: HashMap<usize, (usize, &Vec<usize>)> = HashMap::new();
    for found in matches {
        if !is_taken[found.start]
            && !is_taken[found.end - 1]
            && let Some(lengths) = SPECIAL.get(&text[tokens[found.start].start..tokens[found.end - 1].end])
        {
            chosen.insert(found.start, (found.end, lengths));
        }
        is_taken[found].fill(true);
    }
    let (mut respelled, mut i) = (Vec::with_capacity(tokens.len()), 0);
    while i < tokens.len() {
        match chosen.get(&i) {
            Some((end, lengths)) => {
                push_lengths(tokens[i].start, lengths, &mut respelled);
                i = *end;
            }
            None => {
                respelled.push(tokens[i].clone());
                i += 1;
            }
        }
    }
    respelled
}

const PUNCTUATION: &str = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪";
const QUOTES: &str = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》\u{3008}\u{3009}\u{2329}\u{232a}⟦⟧";
/// Currencies of several characters, before those of one.
const CURRENCIES: [&str; 3] = ["US$", "C$", "A$"];
/// Units after a digit. In spaCy, `тбكم` is one by a missing space.
const UNITS: &str = "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa mbar \
    mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ нм кг г мг м/с км/ч кПа Па мбар Кб КБ кб Мб МБ мб \
    Гб ГБ гб Тб ТБ тбكم كم² كم³ م م² م³ سم سم² سم³ مم مم² مم³ كم غرام جرام جم كغ ملغ كوب اكواب";

/// Symbols and emoji of Unicode 11, except one that became a symbol later.
static ICON: LazyLock<Regex> = LazyLock::new(|| class(r"[[\p{So}&&\p{age:11.0}]--\x{166D}]"));

/// Compiles a class of characters, in which whitespace has no meaning.
fn class(class: &str) -> Regex {
    Regex::new(&format!("(?x)^{class}$")).expect("a class of characters")
}

fn is_in(class: &Regex, c: char) -> bool {
    !c.is_ascii() && class.is_match(c.encode_utf8(&mut [0; 4]))
}

fn is_icon(c: char) -> bool {
    is_in(&ICON, c)
}

fn is_currency(c: char) -> bool {
    "$£¥฿﷼".contains(c) || ('\u{20a0}'..='\u{20bf}').contains(&c)
}

/// Letters of alphabets with two cases, other than ASCII: Latin, Greek, Cyrillic.
static CASED: LazyLock<Regex> = LazyLock::new(|| {
    class(
        r"[
            \x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BF}\x{1C4}-\x{2AF}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{38F}
            \x{391}-\x{3A9}\x{3AC}-\x{3AF}\x{3B1}-\x{3C9}\x{3CC}-\x{3CE}\x{400}-\x{401}\x{403}-\x{40A}\x{40C}-\x{40D}
            \x{410}-\x{451}\x{453}-\x{45A}\x{45C}-\x{45D}\x{490}-\x{491}\x{496}-\x{497}\x{4A2}-\x{4A3}\x{4AE}-\x{4AF}
            \x{4BA}-\x{4BB}\x{4D8}-\x{4D9}\x{4E8}-\x{4E9}\x{1D00}-\x{1D25}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}
            \x{1E00}-\x{1EFF}\x{2C60}-\x{2C7B}\x{2C7E}-\x{2C7F}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}
            \x{A790}-\x{A7B9}\x{A7FA}\x{AB30}-\x{AB5A}\x{AB60}-\x{AB64}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}]",
    )
});
/// Letters of alphabets without cases, and a few signs next to them.
static UNCASED: LazyLock<Regex> = LazyLock::new(|| {
    class(
        r"[
            \x{591}-\x{5F4}\x{620}-\x{64A}\x{66E}-\x{6D5}\x{6E5}-\x{6FF}\x{750}-\x{77F}\x{8A0}-\x{8BD}\x{900}-\x{9FF}
            \x{B80}-\x{CFF}\x{D80}-\x{DFF}\x{1100}-\x{137F}\x{2E80}-\x{2FDF}\x{2FF0}-\x{30FF}\x{31C0}-\x{31EF}
            \x{3200}-\x{4DBF}\x{4E00}-\x{9FFF}\x{AC00}-\x{D7AF}\x{F900}-\x{FAFF}\x{FB1D}-\x{FBB1}\x{FBD3}-\x{FD3D}
            \x{FD50}-\x{FDC7}\x{FDF0}-\x{FDFB}\x{FE30}-\x{FE4F}\x{FE70}-\x{FEFC}\x{1EE00}-\x{1EEBB}\x{1F200}-\x{1F2FF}
            \x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}]",
    )
});

fn is_letter(c: char) -> bool {
    c.is_ascii_alphabetic() || is_in(&CASED, c) || is_in(&UNCASED, c)
}

/// A lowercase letter, or one without case.
fn is_lower(c: char) -> bool {
    c.is_ascii_lowercase() || is_in(&CASED, c) && (c.is_lowercase() || c == '\u{294}') || is_in(&UNCASED, c)
}

/// An uppercase letter, or one without case.
fn is_upper(c: char) -> bool {
    c.is_ascii_uppercase() || is_in(&CASED, c) && (c.is_uppercase() || c == '\u{3a2}') || is_in(&UNCASED, c)
}

/// Returns the number of bytes of the prefix of a part; 0 if it has none.
fn prefix(part: &str) -> usize {
    let mut chars = part.chars();
    let (Some(first), second) = (chars.next(), chars.next()) else { return 0 };
    let dots = part.len() - part.trim_start_matches('.').len();
    match first {
        '+' if second.is_some_and(|c| c.is_ascii_digit()) => 0,
        '.' if dots > 1 => dots,
        'U' | 'C' | 'A' => CURRENCIES.into_iter().find(|name| part.starts_with(name)).map_or(0, str::len),
        c if "§%=—–+".contains(c) || PUNCTUATION.contains(c) || QUOTES.contains(c) => c.len_utf8(),
        c if is_currency(c) || is_icon(c) => c.len_utf8(),
        _ => 0,
    }
}

/// Returns the number of bytes of the longest suffix of a part; 0 if it has none.
fn suffix(part: &str) -> usize {
    let mut chars = part.chars().rev();
    let Some(last) = chars.next() else { return 0 };
    let (before, second) = (chars.next(), chars.next());
    let is_after_digit =
        |suffix: &str| part.strip_suffix(suffix).is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit()));
    let dots = part.len() - part.trim_end_matches('.').len();
    let mut longest = 0;
    let mut found = |is_suffix: bool, bytes: usize| {
        if is_suffix {
            longest = longest.max(bytes);
        }
    };
    found(PUNCTUATION.contains(last) || QUOTES.contains(last) || "—–".contains(last) || is_icon(last), last.len_utf8());
    found(part.ends_with("……"), "……".len());
    found(dots > 1, dots);
    for clitic in ["'s", "'S", "’s", "’S"] {
        found(part.ends_with(clitic), clitic.len());
    }
    found(is_after_digit("+"), 1);
    found(is_currency(last) && before.is_some_and(|c| c.is_ascii_digit()), last.len_utf8());
    if part.contains(|c: char| c.is_ascii_digit()) {
        for name in CURRENCIES.into_iter().chain(UNITS.split(' ')) {
            found(is_after_digit(name), name.len());
        }
    }
    let ends_word = |c: char| {
        c.is_ascii_digit() || "%²-+|".contains(c) || is_lower(c) || PUNCTUATION.contains(c) || QUOTES.contains(c)
    };
    let is_degree = second == Some('°') && before.is_some_and(|c| "FfCcKk".contains(c));
    let ends_name = before.is_some_and(is_upper) && second.is_some_and(is_upper);
    found(last == '.' && (before.is_some_and(ends_word) || is_degree || ends_name), 1);
    longest
}

/// Returns the infixes of a part.
fn infixes(part: &str) -> Vec<Range<usize>> {
    let chars: Vec<(usize, char)> = part.char_indices().collect();
    let byte = |i: usize| chars.get(i).map_or(part.len(), |(byte, _)| *byte);
    let at = |i: usize| chars.get(i).map(|(_, c)| *c);
    let (mut found, mut i) = (Vec::new(), 0);
    while let Some(c) = at(i) {
        let before = i.checked_sub(1).and_then(at);
        let is_before = |test: &dyn Fn(char) -> bool| before.is_some_and(test);
        let follows = |end: usize, test: &dyn Fn(char) -> bool| at(end).is_some_and(test);
        let run = |sign: char| (i..).take_while(|i| at(*i) == Some(sign)).count();
        let letter_or_digit = |c: char| is_letter(c) || c.is_ascii_digit();
        let length = match c {
            '.' if run('.') > 1 => run('.'),
            '…' => 1,
            c if is_icon(c) => 1,
            '+' | '-' | '*' | '^'
                if is_before(&|c| c.is_ascii_digit()) && follows(i + 1, &|c| c.is_ascii_digit() || c == '-') =>
            {
                1
            }
            '.' if is_before(&|c| is_lower(c) || QUOTES.contains(c))
                && follows(i + 1, &|c| is_upper(c) || QUOTES.contains(c)) =>
            {
                1
            }
            ',' if is_before(&is_letter) && follows(i + 1, &is_letter) => 1,
            '-' | '–' | '—' | '~' if is_before(&letter_or_digit) => {
                // At most three hyphens, two long dashes, and one of the others.
                let (run, most) = (run(c), if c == '-' { 3 } else { 1 + usize::from(c == '—') });
                if run <= most && follows(i + run, &is_letter) { run } else { 0 }
            }
            ':' | '<' | '>' | '=' | '/' if is_before(&letter_or_digit) && follows(i + 1, &is_letter) => 1,
            _ => 0,
        };
        if length > 0 {
            found.push(byte(i)..byte(i + length));
        }
        i += length.max(1);
    }
    found
}

/// Whether a part is the address of a page or a mailbox, such as `www.example.com/a?b` or `me@example.com`.
fn is_address(part: &str) -> bool {
    let is_of_scheme = |c: char| c.is_alphanumeric() || "_+-.".contains(c);
    let scheme = part.split_once("://").filter(|(name, _)| name.chars().count() > 1 && name.chars().all(is_of_scheme));
    let after_user = part.char_indices().filter(|(i, c)| *i > 0 && *c == '@').map(|(i, _)| &part[i + 1..]);
    [part].into_iter().chain(scheme.map(|(_, rest)| rest)).chain(after_user).any(is_host)
}

/// Whether a text is a host with an optional port and path.
fn is_host(text: &str) -> bool {
    let authority = text.split(['/', '?', '#']).next().unwrap_or_default();
    let is_port = |port: &str| (2..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    let host = match authority.split_once(':') {
        Some((host, port)) if is_port(port) => host,
        Some(_) => return false,
        None => authority,
    };
    let parts: Vec<&str> = host.split('.').collect();
    let [labels @ .., last] = &parts[..] else { return false };
    let is_sign = |c: char| c.is_ascii_alphanumeric() || ('\u{a1}'..='\u{ffff}').contains(&c);
    let is_label = |label: &&str| {
        (1..=64).contains(&label.chars().count())
            && label.starts_with(is_sign)
            && label.ends_with(is_sign)
            && label.chars().all(|c| is_sign(c) || "_-".contains(c))
    };
    let is_domain = (2..=63).contains(&last.chars().count()) && last.chars().all(is_lower);
    is_domain && !labels.is_empty() && labels.iter().all(is_label) || is_public_ip(&parts)
}

fn is_public_ip(parts: &[&str]) -> bool {
    let [a, b, c, d] = parts else { return false };
    let number = |part: &str, is_long: bool| -> Option<u32> {
        let is_short = part.len() < 3 && (is_long || !part.starts_with('0'));
        let is_number = !part.is_empty() && part.len() < 4 && part.bytes().all(|b| b.is_ascii_digit());
        (is_number && (is_short || part.len() == 3 && !part.starts_with('0'))).then(|| part.parse().ok())?
    };
    let (Some(a), Some(b), Some(c), Some(d)) = (number(a, false), number(b, true), number(c, true), number(d, false))
    else {
        return false;
    };
    let is_private = matches!((a, b), (10 | 127, _) | (169, 254) | (192, 168) | (172, 16..=31));
    (1..=223).contains(&a) && b <= 255 && c <= 255 && (1..=254).contains(&d) && !is_private
}

const EMOTICONS: &str = r"(*_*) (-8 (-: (-; (-_-) (._.) (: (; (= (>_<) (^_^) (o: (¬_¬) (ಠ_ಠ) (╯°□°）╯︵┻━┻ )-: ): -_- -__- ._. 0.0 0.o 0_0
    0_o 8) 8-) 8-D 8D :'( :') :'-( :'-) :( :(( :((( :() :) :)) :))) :* :-( :-(( :-((( :-) :-)) :-))) :-* :-/ :-0 :-3 :-> :-D :-O :-P :-X :-]
    :-o :-p :-x :-| :-} :/ :0 :1 :3 :> :D :O :P :X :] :o :o) :p :x :| :} ;) ;-) ;-D ;D ;_; <.< </3 <3 <33 <333 =( =) =/ =3 =D =[ =] =| >.< >.>
    >:( >:o ><(((*> @_@ O.O O.o O_O O_o V.V V_V XD XDD [-: [: [= ]= ^_^ ^__^ ^___^ o.0 o.O o.o o_0 o_O o_o v.v v_v xD xDD ¯\(ツ)/¯ ಠ_ಠ ಠ︵ಠ";

/// Words that stay whole.
const WHOLE: &str = r#"— ' \") \t \n <space> '' C++ a. b. c. d. e. f. g. h. i. j. k. l. m. n. o. p. q. r. s. t. u. v. w. x. y. z. ä. ö. ü.
    em 'em ll 'll nuff 'nuff 'S 's ‘S ‘s and/or w/o 're 'Cause 'cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz 'bout ma'am Ma'am o'clock O'clock Mt. Ak.
    Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich.
    Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis. 'd a.m. Adm. Bros.
    co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev.
    Sen. St. vs. v.s."#;

/// Words with these cuts.
const CUT: &str = "y'|all y|all how|'d|'y How|'d|'y not|'ve not|ve Not|'ve Not|ve can|not Can|not gon|na Gon|na got|ta Got|ta let|'s Let|'s \
    c'm|on C'm|on °|c|. °|f|. °|k|. °|C|. °|F|. °|K|.";

/// Words that are spelled like a contraction.
const NO_CONTRACTIONS: &str = "Ill ill Its its Hell hell Shell shell Shed shed were Were Well well Whore whore";

/// Special cases, with the lengths of their tokens.
static SPECIAL: LazyLock<Special> = LazyLock::new(|| {
    let mut cases: Vec<Vec<String>> = Vec::new();
    // A word, also with a capital, before each of these endings: `'d|'ve` is two tokens.
    let mut contract = |words: &str, endings: &str| {
        for word in words.split(' ') {
            let capital = word[..1].to_uppercase() + &word[1..];
            for (word, ending) in
                [word, &capital].into_iter().flat_map(|word| endings.split(' ').map(move |e| (word, e)))
            {
                cases.push(std::iter::once(word).chain(ending.split('|')).map(str::to_owned).collect());
            }
        }
    };
    contract("i", "'m m 'm|a m|a");
    contract("i you he she it we they", "'ll ll 'll|'ve ll|ve 'd d 'd|'ve d|ve");
    contract("i you we they", "'ve ve");
    contract("you we they", "'re re");
    contract("he she it who what when where why how there that this", "'s s");
    contract("who what when where why how there that this these those", "'ll ll 'll|'ve ll|ve 'd d 'd|'ve d|ve");
    contract("who what when where why how there these those", "'re re 've ve");
    contract("ca could do does did had may might must need ought sha should wo would", "n't nt n't|'ve nt|ve");
    contract("could might must should would", "'ve ve");
    contract("ai are is was were have has dare", "n't nt");
    for word in "doin goin nothin nuthin ol somethin lovin havin".split(' ') {
        let capital = word[..1].to_uppercase() + &word[1..];
        cases.extend([word, &capital].into_iter().flat_map(|word| [vec![word.to_owned()], vec![format!("{word}'")]]));
    }
    for hour in 1..=12 {
        cases.extend(["a.m.", "am", "p.m.", "pm"].map(|half| vec![hour.to_string(), half.to_owned()]));
    }
    cases.extend(EMOTICONS.split_whitespace().chain(WHOLE.split_whitespace()).map(|word| vec![word.to_owned()]));
    cases.extend(CUT.split(' ').map(|word| word.split('|').map(str::to_owned).collect()));
    cases.retain(|case| !NO_CONTRACTIONS.split(' ').any(|word| word == case.concat()));
    let curly: Vec<Vec<String>> = cases
        .iter()
        .filter(|case| case.iter().any(|token| token.contains('\'')))
        .map(|case| case.iter().map(|token| token.replace('\'', "’")).collect())
        .collect();
    cases.into_iter().chain(curly).map(|case| (case.concat(), case.iter().map(String::len).collect())).collect()
});

/// The tokens of special cases with affixes or infixes, when they are split without special cases, joined by NUL; and the number of tokens
/// of the longest.
static SEQUENCES: LazyLock<(HashSet<String>, usize)> = LazyLock::new(|| {
    let has_rule = |word: &&String| prefix(word) > 0 || suffix(word) > 0 || !infixes(word).is_empty();
    let split = |word: &String| {
        let mut tokens = Vec::new();
        split_part(word, 0..word.len(), None, &mut tokens);
        tokens.into_iter().map(|token| word[token].to_owned()).collect::<Vec<_>>()
    };
    let all: Vec<Vec<String>> = SPECIAL.keys().filter(has_rule).map(split).collect();
    let longest = all.iter().map(Vec::len).max().unwrap_or_default();
    (all.into_iter().map(|tokens| tokens.join("\0")).collect(), longest)
});

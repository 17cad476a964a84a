//! Parser of LaTeX and plain arithmetic, which yields a [`Value`].

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Signed;

use super::expression::{Constant, Expr, Function};
use super::value::{Order, Value};

/// Maximum nesting depth, and maximum length of a text in bytes.
const DEPTH: usize = 48;
const BYTES: usize = 4000;

/// Maximum exponent of a number such as `7E4`.
const EXPONENT: u32 = 1000;

/// Parses a text that is an answer as a whole. `None` if it is not mathematics.
pub(super) fn parse(text: &str) -> Option<Value> {
    if text.len() > BYTES {
        return None;
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let value = parser.group_of_lists()?;
    (parser.at == parser.tokens.len()).then_some(value)
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(String),
    Letter(char),
    /// `\name`.
    Command(String),
    /// `\text{…}`.
    Text(String),
    Sign(char),
}

/// Spaces and other commands without meaning.
const BLANK: [&str; 22] = [
    "left",
    "right",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "middle",
    "displaystyle",
    "textstyle",
    "quad",
    "qquad",
    "limits",
    "mleft",
    "mright",
    "phantom",
    "nolimits",
    "hspace",
    "rm",
];

/// Commands whose braces contain text.
const TEXTS: [&str; 12] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "textnormal",
    "mbox",
    "mathrm",
    "mathbf",
    "mathit",
    "mathsf",
    "operatorname",
    "boldsymbol",
];

fn tokens(text: &str) -> Option<Vec<Token>> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut i) = (Vec::new(), 0);
    while let Some(&c) = chars.get(i) {
        i += 1;
        match c {
            c if c.is_whitespace() => {}
            '~' | '$' | '"' => {}
            '0'..='9' => {
                let start = i - 1;
                i = number_end(&chars, start);
                found.push(Token::Number(chars[start..i].iter().filter(|c| !matches!(c, ',')).collect()));
            }
            '.' if chars.get(i).is_some_and(char::is_ascii_digit) => {
                let start = i - 1;
                while chars.get(i).is_some_and(char::is_ascii_digit) {
                    i += 1;
                }
                found.push(Token::Number(chars[start..i].iter().collect()));
            }
            '\\' => {
                let start = i;
                while chars.get(i).is_some_and(char::is_ascii_alphabetic) {
                    i += 1;
                }
                let name: String = chars[start..i].iter().collect();
                if name.is_empty() {
                    let mark = *chars.get(i)?;
                    i += 1;
                    match mark {
                        '!' | ',' | ';' | ':' | ' ' | '$' | '>' => {}
                        '{' | '}' | '|' | '%' | '\\' => found.push(Token::Command(mark.to_string())),
                        _ => return None,
                    }
                } else if TEXTS.contains(&name.as_str()) {
                    while chars.get(i) == Some(&' ') {
                        i += 1;
                    }
                    match chars.get(i) {
                        Some('{') => {
                            let end = closing(&chars, i)?;
                            let inner: String = chars[i + 1..end].iter().collect();
                            i = end + 1;
                            found.push(Token::Text(inner.trim().to_owned()));
                        }
                        _ => return None,
                    }
                } else if !BLANK.contains(&name.as_str()) {
                    found.push(Token::Command(name));
                }
            }
            '×' | '·' | '⋅' | '∗' => found.push(Token::Sign('*')),
            '÷' => found.push(Token::Sign('/')),
            '−' | '–' => found.push(Token::Sign('-')),
            '≤' => found.push(Token::Command("le".into())),
            '≥' => found.push(Token::Command("ge".into())),
            '≠' => found.push(Token::Command("ne".into())),
            'π' => found.push(Token::Command("pi".into())),
            '∞' => found.push(Token::Command("infty".into())),
            '∅' => found.push(Token::Command("emptyset".into())),
            '√' => found.push(Token::Command("sqrt".into())),
            '∪' => found.push(Token::Command("cup".into())),
            '∩' => found.push(Token::Command("cap".into())),
            '±' => found.push(Token::Command("pm".into())),
            '°' => found.push(Token::Command("degree".into())),
            'θ' => found.push(Token::Command("theta".into())),
            '²' => found.extend([Token::Sign('^'), Token::Number("2".into())]),
            '³' => found.extend([Token::Sign('^'), Token::Number("3".into())]),
            c if c.is_alphabetic() => found.push(Token::Letter(c)),
            '+' | '-' | '*' | '/' | '^' | '_' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '!' | '%' | '=' | '<'
            | '>' | ',' | ';' | '&' | '\'' | ':' => found.push(Token::Sign(c)),
            _ => return None,
        }
    }
    Some(found)
}

/// Returns the end of a number that starts with a digit: digits, commas between groups of three, a decimal fraction.
fn number_end(chars: &[char], start: usize) -> usize {
    let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
    let mut i = start;
    while digit(i) {
        i += 1;
    }
    if i - start <= 3 {
        while chars.get(i) == Some(&',') && (1..=3).all(|k| digit(i + k)) && !digit(i + 4) {
            i += 4;
        }
    }
    if chars.get(i) == Some(&'.') && digit(i + 1) {
        i += 1;
        while digit(i) {
            i += 1;
        }
    } else if chars.get(i) == Some(&'.') && !chars.get(i + 1).is_some_and(|c| c.is_alphanumeric()) {
        i += 1; // `5.`
    }
    // `7E4`, `7.0E-4`
    if chars.get(i) == Some(&'E') {
        let first = i + 1 + usize::from(matches!(chars.get(i + 1), Some('+' | '-')));
        if digit(first) {
            i = first;
            while digit(i) {
                i += 1;
            }
        }
    }
    i
}

/// Returns the position of the brace that closes the one at `open`.
fn closing(chars: &[char], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in chars.iter().enumerate().skip(open) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is_sign(&self, sign: char) -> bool {
        self.peek() == Some(&Token::Sign(sign))
    }

    fn takes(&mut self, sign: char) -> bool {
        let takes = self.is_sign(sign);
        self.at += usize::from(takes);
        takes
    }

    fn is_command(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Command(found)) if found == name)
    }

    fn takes_command(&mut self, name: &str) -> bool {
        let takes = self.is_command(name);
        self.at += usize::from(takes);
        takes
    }

    /// Parses with one more level of nesting.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEPTH {
            return None;
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }

    /// Parses what braces contain: a list, or TeX's `a \over b` or `a \choose b`.
    fn group_of_lists(&mut self) -> Option<Value> {
        let value = self.list()?;
        if self.takes_command("over") {
            return Some(Value::Scalar(value.scalar()?.divided_by(self.list()?.scalar()?)));
        }
        if self.takes_command("choose") {
            let from = self.list()?.scalar()?;
            return Some(Value::Scalar(Expr::Call(Function::Binomial, vec![value.scalar()?, from])));
        }
        Some(value)
    }

    /// Parses values separated by commas or semicolons. A single value is not wrapped in a list.
    fn list(&mut self) -> Option<Value> {
        let mut values = vec![self.relation()?];
        while self.takes(',') || self.takes(';') {
            if self.peek().is_none() {
                break;
            }
            values.push(self.relation()?);
        }
        Some(if values.len() == 1 { values.remove(0) } else { Value::list(values) })
    }

    fn relation_sign(&mut self) -> Option<Order> {
        let order = match self.peek()? {
            Token::Sign('=') => Order::Equal,
            Token::Sign('<') => Order::Less,
            Token::Sign('>') => Order::Greater,
            Token::Command(name) => match name.as_str() {
                "lt" => Order::Less,
                "gt" => Order::Greater,
                "le" | "leq" | "leqslant" => Order::LessOrEqual,
                "ge" | "geq" | "geqslant" => Order::GreaterOrEqual,
                "ne" | "neq" => Order::Unequal,
                "approx" | "equiv" | "sim" => Order::Equal,
                "in" => Order::In,
                _ => return None,
            },
            _ => return None,
        };
        self.at += 1;
        if matches!(order, Order::Less | Order::Greater) && self.takes('=') {
            return Some(if order == Order::Less { Order::LessOrEqual } else { Order::GreaterOrEqual });
        }
        Some(order)
    }

    fn relation(&mut self) -> Option<Value> {
        let first = self.union()?;
        let (mut sides, mut orders) = (vec![first], Vec::new());
        while let Some(order) = self.relation_sign() {
            orders.push(order);
            sides.push(self.union()?);
        }
        Value::related(sides, &orders)
    }

    fn union(&mut self) -> Option<Value> {
        let mut sets = vec![self.sum()?];
        while self.takes_command("cup") {
            sets.push(self.sum()?);
        }
        Some(if sets.len() == 1 { sets.remove(0) } else { Value::Union(sets) })
    }

    fn sum(&mut self) -> Option<Value> {
        self.nested(|parser| {
            // A ± yields two values.
            let mut values = match parser.takes_command("pm") || parser.takes_command("mp") {
                true => {
                    let first = parser.term()?.scalar()?;
                    vec![first.clone(), first.negated()]
                }
                false => match parser.term()? {
                    Value::Scalar(first) => vec![first],
                    other => return Some(other),
                },
            };
            loop {
                let sign = match parser.peek() {
                    Some(Token::Sign(sign @ ('+' | '-'))) => *sign,
                    Some(Token::Command(name)) if matches!(name.as_str(), "pm" | "mp") => '±',
                    _ => break,
                };
                parser.at += 1;
                let next = parser.term()?.scalar()?;
                let with = |value: &Expr, next: Expr| Expr::Sum(vec![value.clone(), next]);
                values = values
                    .iter()
                    .flat_map(|value| match sign {
                        '+' => vec![with(value, next.clone())],
                        '-' => vec![with(value, next.clone().negated())],
                        _ => vec![with(value, next.clone()), with(value, next.clone().negated())],
                    })
                    .collect();
                if values.len() > 16 {
                    return None;
                }
            }
            Some(match values.len() {
                1 => Value::Scalar(values.remove(0)),
                _ => Value::list(values.into_iter().map(Value::Scalar).collect()),
            })
        })
    }

    /// Returns whether a factor may follow without an operator.
    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_) | Token::Letter(_) | Token::Text(_)) => true,
            Some(Token::Sign(sign)) => matches!(sign, '(' | '{'),
            Some(Token::Command(name)) => {
                FUNCTIONS.iter().any(|(known, _)| known == name)
                    || GREEK.contains(&name.as_str())
                    || matches!(
                        name.as_str(),
                        "frac"
                            | "dfrac"
                            | "tfrac"
                            | "cfrac"
                            | "sqrt"
                            | "pi"
                            | "infty"
                            | "binom"
                            | "dbinom"
                            | "tbinom"
                            | "lfloor"
                            | "lceil"
                            | "lvert"
                    )
            }
            None => false,
        }
    }

    fn term(&mut self) -> Option<Value> {
        let first = self.prefixed()?;
        let Value::Scalar(mut product) = first else { return Some(first) };
        loop {
            if self.takes('*') || self.takes_command("cdot") || self.takes_command("times") || self.takes_command("ast")
            {
                let next = self.prefixed()?.scalar()?;
                product = Expr::Product(vec![product, next]);
            } else if self.takes('/') || self.takes_command("div") || self.takes(':') {
                let next = self.prefixed()?.scalar()?;
                product = product.divided_by(next);
            } else if self.starts_factor() {
                let has_fraction = FRACTIONS.iter().any(|name| self.is_command(name));
                let next = self.powered()?.scalar()?;
                product = match whole(&product).filter(|_| has_fraction && next.is_fraction()) {
                    // A mixed number: `-3\frac{1}{2}` is −3.5.
                    Some(whole) if whole.is_negative() => product.minus(next),
                    Some(_) => Expr::Sum(vec![product, next]),
                    None => Expr::Product(vec![product, next]),
                };
            } else {
                return Some(Value::Scalar(product));
            }
        }
    }

    fn prefixed(&mut self) -> Option<Value> {
        self.nested(|parser| {
            if parser.takes('-') {
                return parser.prefixed()?.negated();
            }
            if parser.takes('+') {
                return parser.prefixed();
            }
            parser.powered()
        })
    }

    fn powered(&mut self) -> Option<Value> {
        let atom = self.atom()?;
        let Value::Scalar(mut base) = atom else { return Some(atom) };
        loop {
            if self.takes('^') {
                if self.takes_command("circ") || self.takes_command("degree") {
                    continue; // Degrees are a unit.
                }
                if self.is_sign('{')
                    && matches!(self.tokens.get(self.at + 1), Some(Token::Command(name)) if name == "circ")
                {
                    self.at += 2;
                    self.takes('}').then_some(())?;
                    continue;
                }
                let exponent = self.exponent()?;
                base = Expr::Power(Box::new(base), Box::new(exponent));
            } else if self.takes('!') {
                base = Expr::Call(Function::Factorial, vec![base]);
            } else if self.takes('%') || self.takes_command("%") {
                base = Expr::Percent(Box::new(base));
            } else if self.takes_command("degree") || self.takes_command("circ") || self.takes('\'') {
                // Units and the mark of a derivative are ignored.
            } else {
                return Some(Value::Scalar(base));
            }
        }
    }

    /// Parses what follows `^`: a group, or one atom with its sign. In LaTeX, the exponent of `2^12` is 1; people mean 12.
    fn exponent(&mut self) -> Option<Expr> {
        self.nested(|parser| {
            if parser.takes('-') {
                return Some(parser.exponent()?.negated());
            }
            let value = parser.atom()?.scalar()?;
            // Right-associative: a^b^c.
            match parser.takes('^') {
                true => Some(Expr::Power(Box::new(value), Box::new(parser.exponent()?))),
                false => Some(value),
            }
        })
    }

    /// Parses `{…}`, or one atom if the braces are omitted. Of a number, only the first digit is used.
    fn group(&mut self) -> Option<Expr> {
        if self.is_sign('{') {
            return self.atom()?.scalar();
        }
        if let Some(Token::Number(text)) = self.peek().cloned()
            && text.len() > 1
            && text.bytes().all(|byte| byte.is_ascii_digit())
        {
            self.tokens[self.at] = Token::Number(text[1..].to_owned());
            return number(&text[..1]);
        }
        self.atom()?.scalar()
    }

    fn atom(&mut self) -> Option<Value> {
        self.nested(Self::atom_at_depth)
    }

    fn atom_at_depth(&mut self) -> Option<Value> {
        let token = self.peek()?.clone();
        self.at += 1;
        let scalar = match token {
            Token::Number(text) => {
                let value = number(&text)?;
                match self.takes('_') {
                    true => Expr::Call(Function::Base, vec![value, self.group()?]),
                    false => value,
                }
            }
            Token::Letter('i') => Expr::Constant(Constant::I),
            Token::Letter('e') if !self.is_sign('_') => Expr::Constant(Constant::E),
            Token::Letter(letter) => self.named(letter.to_string())?,
            Token::Text(text) if text.is_empty() => return self.atom(),
            Token::Text(text) => self.worded(&text)?,
            Token::Sign('{') => {
                let value = self.group_of_lists()?;
                self.takes('}').then_some(())?;
                return Some(value);
            }
            Token::Sign(open @ ('(' | '[')) => return self.bracketed(open),
            Token::Sign('|') => {
                let inner = self.sum()?.scalar()?;
                self.takes('|').then_some(())?;
                Expr::Call(Function::Abs, vec![inner])
            }
            Token::Command(name) => return self.command(&name),
            Token::Sign(_) => return None,
        };
        Some(Value::Scalar(scalar))
    }

    /// Parses a name with an optional index.
    fn named(&mut self, name: String) -> Option<Expr> {
        if !self.takes('_') {
            return Some(Expr::symbol(&name));
        }
        let start = self.at;
        self.group()?;
        let index: String = self.tokens[start..self.at].iter().map(shown).collect();
        Some(Expr::symbol(&format!("{name}_{}", index.trim_matches(['{', '}']))))
    }

    /// Interprets a text: a function of that name, or a word.
    fn worded(&mut self, text: &str) -> Option<Expr> {
        if let Some((_, function)) = FUNCTIONS.iter().find(|(name, _)| *name == text) {
            return self.call(*function);
        }
        // A single letter in another typeface is a variable.
        let name: String =
            text.split_whitespace().collect::<Vec<_>>().join(" ").trim_matches(['.', '(', ')']).to_owned();
        let whole = |text: &str| text.trim().parse::<i64>().ok().map(Expr::integer);
        match name.as_str() {
            "" => None,
            // Formulas in text are not read, so that a fraction in it is found by itself.
            _ if name.contains(['{', '}']) => None,
            "i" => Some(Expr::Constant(Constant::I)),
            "e" => Some(Expr::Constant(Constant::E)),
            // `\text{1/2}`
            _ if let Some((top, bottom)) = name.split_once('/')
                && let (Some(top), Some(bottom)) = (whole(top), whole(bottom)) =>
            {
                Some(top.divided_by(bottom))
            }
            // `\mathbf{-5}`
            _ => match name.strip_prefix('-').unwrap_or(&name) {
                digits if digits.is_empty() || digits.bytes().any(|byte| !byte.is_ascii_digit()) => self.named(name),
                digits if name.len() > digits.len() => number(digits).map(Expr::negated),
                digits => number(digits),
            },
        }
    }

    /// Parses the content of `(…)` or `[…]`: a term, a tuple or an interval.
    fn bracketed(&mut self, open: char) -> Option<Value> {
        let value = self.list()?;
        let close = match self.peek()? {
            Token::Sign(close @ (')' | ']')) => *close,
            _ => return None,
        };
        self.at += 1;
        match value {
            Value::List(mut values)
                if values.len() == 2 && values.iter().all(|value| matches!(value, Value::Scalar(_))) =>
            {
                let (high, low) = (values.pop()?.scalar()?, values.pop()?.scalar()?);
                let order = low.evaluate(&|_| f64::NAN.into()).zip(high.evaluate(&|_| f64::NAN.into()));
                let is_falling = order.is_some_and(|(low, high)| low.re > high.re || (low == high && open == '('));
                if is_falling && (open == '(') == (close == ')') {
                    return Some(Value::Tuple(vec![Value::Scalar(low), Value::Scalar(high)]));
                }
                Some(Value::Interval { low, high, is_low_open: open == '(', is_high_open: close == ')' })
            }
            Value::List(values) if (open, close) == ('(', ')') || (open, close) == ('[', ']') => {
                Some(Value::Tuple(values))
            }
            Value::List(_) => None,
            other if (open, close) == ('(', ')') || (open, close) == ('[', ']') => Some(other),
            _ => None,
        }
    }

    fn command(&mut self, name: &str) -> Option<Value> {
        let scalar = match name {
            _ if FRACTIONS.contains(&name) => {
                let numerator = self.group()?;
                let denominator = self.group()?;
                numerator.divided_by(denominator)
            }
            "binom" | "dbinom" | "tbinom" => Expr::Call(Function::Binomial, vec![self.group()?, self.group()?]),
            "sqrt" => {
                let degree = match self.takes('[') {
                    true => {
                        let degree = self.sum()?.scalar()?;
                        self.takes(']').then_some(())?;
                        degree
                    }
                    false => Expr::integer(2),
                };
                let radicand = match self.is_sign('{') || self.is_sign('(') {
                    true => self.atom()?.scalar()?,
                    false => self.group()?,
                };
                Expr::Power(Box::new(radicand), Box::new(Expr::Inverse(Box::new(degree))))
            }
            "pi" => Expr::Constant(Constant::Pi),
            "infty" => Expr::Infinity,
            "imath" => Expr::Constant(Constant::I),
            "boxed" | "fbox" | "mathbb" | "mathcal" | "bar" | "hat" | "vec" | "overline" | "underline" => {
                let start = self.at;
                let inner = self.atom()?;
                if matches!(name, "boxed" | "fbox" | "underline") {
                    return Some(inner);
                }
                let text: String = self.tokens[start..self.at].iter().map(shown).collect();
                Expr::symbol(&format!("{name} {text}"))
            }
            "{" => {
                if self.takes_command("}") {
                    return Some(Value::Set(Vec::new()));
                }
                let values = match self.list()? {
                    Value::List(values) => values,
                    value => vec![value],
                };
                self.takes_command("}").then_some(())?;
                return Some(Value::Set(values));
            }
            "emptyset" | "varnothing" => return Some(Value::Set(Vec::new())),
            "lvert" | "|" => {
                let inner = self.sum()?.scalar()?;
                (self.takes_command("rvert") || self.takes_command("|")).then_some(())?;
                Expr::Call(Function::Abs, vec![inner])
            }
            "lfloor" | "lceil" => {
                let inner = self.sum()?.scalar()?;
                let (close, function) =
                    if name == "lfloor" { ("rfloor", Function::Floor) } else { ("rceil", Function::Ceil) };
                self.takes_command(close).then_some(())?;
                Expr::Call(function, vec![inner])
            }
            "langle" => {
                let value = self.list()?;
                self.takes_command("rangle").then_some(())?;
                return match value {
                    Value::List(values) => Some(Value::Tuple(values)),
                    _ => None,
                };
            }
            "begin" => return self.environment(),
            _ => match FUNCTIONS.iter().find(|(known, _)| *known == name) {
                Some((_, function)) => self.call(*function)?,
                None if GREEK.contains(&name) => self.named(name.to_owned())?,
                None => return None,
            },
        };
        Some(Value::Scalar(scalar))
    }

    fn call(&mut self, function: Function) -> Option<Expr> {
        let is_log = matches!(function, Function::Log | Function::CommonLog);
        let base = match is_log && self.takes('_') {
            true => Some(self.group()?),
            false => None,
        };
        let function = if base.is_some() { Function::Log } else { function };
        let exponent = match self.takes('^') {
            true => Some(self.exponent()?),
            false => None,
        };
        let mut arguments = match self.peek()? {
            Token::Sign('(') => {
                self.at += 1;
                let value = self.list()?;
                self.takes(')').then_some(())?;
                match value {
                    Value::List(values) => values.into_iter().map(Value::scalar).collect::<Option<Vec<_>>>()?,
                    value => vec![value.scalar()?],
                }
            }
            Token::Sign('{') => vec![self.atom()?.scalar()?],
            // Without braces, the argument is all factors that follow, up to an operator or another function.
            _ => {
                let mut argument = self.prefixed()?.scalar()?;
                let is_function = |parser: &Self| matches!(parser.peek(), Some(Token::Command(name)) if FUNCTIONS.iter().any(|(known, _)| known == name));
                while self.starts_factor() && !is_function(self) && !self.is_sign('(') {
                    argument = Expr::Product(vec![argument, self.powered()?.scalar()?]);
                }
                vec![argument]
            }
        };
        arguments.extend(base);
        let inverse = match (function, &exponent) {
            (Function::Sin, Some(power)) if *power == Expr::integer(-1) => Some(Function::Arcsin),
            (Function::Cos, Some(power)) if *power == Expr::integer(-1) => Some(Function::Arccos),
            (Function::Tan, Some(power)) if *power == Expr::integer(-1) => Some(Function::Arctan),
            _ => None,
        };
        if let Some(inverse) = inverse {
            return Some(Expr::Call(inverse, arguments));
        }
        let called = Expr::Call(function, arguments);
        Some(match exponent {
            Some(exponent) => Expr::Power(Box::new(called), Box::new(exponent)),
            None => called,
        })
    }

    /// Parses `\begin{pmatrix} a & b \\ c & d \end{pmatrix}`.
    fn environment(&mut self) -> Option<Value> {
        let name = self.braced_letters()?;
        if name == "array" {
            self.braced_letters()?;
        }
        let is_known =
            ["matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "smallmatrix", "array"].contains(&name.as_str());
        is_known.then_some(())?;
        let mut rows = vec![Vec::new()];
        loop {
            if self.takes_command("end") {
                (self.braced_letters()? == name).then_some(())?;
                break;
            }
            if self.takes_command("\\") {
                rows.push(Vec::new());
                continue;
            }
            if self.takes('&') {
                continue;
            }
            let cell = self.sum()?.scalar()?;
            rows.last_mut()?.push(cell);
            if rows.len() > 64 || rows.last()?.len() > 64 {
                return None;
            }
        }
        rows.retain(|row| !row.is_empty());
        let width = rows.first()?.len();
        if rows.iter().any(|row| row.len() != width) {
            return None;
        }
        match name.as_str() {
            "vmatrix" => Some(Value::Scalar(Expr::Call(Function::Det, rows.concat()))),
            _ => Some(Value::Matrix(rows)),
        }
    }

    fn braced_letters(&mut self) -> Option<String> {
        self.takes('{').then_some(())?;
        let mut name = String::new();
        while !self.takes('}') {
            match self.peek()? {
                Token::Letter(letter) => name.push(*letter),
                Token::Sign('|' | '*') => {}
                _ => return None,
            }
            self.at += 1;
        }
        Some(name)
    }
}

fn shown(token: &Token) -> String {
    match token {
        Token::Number(text) | Token::Text(text) => text.clone(),
        Token::Letter(letter) => letter.to_string(),
        Token::Command(name) => format!("\\{name}"),
        Token::Sign(sign) => sign.to_string(),
    }
}

fn number(text: &str) -> Option<Expr> {
    let (text, exponent) = text.split_once('E').map_or((text, None), |(text, exponent)| (text, Some(exponent)));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: BigInt = format!("{whole}{fraction}").parse().ok()?;
    let scale = |digits: u32| num_traits::pow::Pow::pow(BigInt::from(10), digits);
    let mut value = BigRational::new(digits, scale(u32::try_from(fraction.len()).ok()?));
    if let Some(exponent) = exponent {
        let exponent: i32 = exponent.parse().ok().filter(|exponent: &i32| exponent.unsigned_abs() <= EXPONENT)?;
        let factor = BigRational::from(scale(exponent.unsigned_abs()));
        value = if exponent < 0 { value / factor } else { value * factor };
    }
    Some(Expr::Number { value, is_decimal: !fraction.is_empty() || exponent.is_some() })
}

fn whole(expr: &Expr) -> Option<&BigRational> {
    match expr {
        Expr::Number { value, is_decimal: false } if value.is_integer() => Some(value),
        _ => None,
    }
}

const FRACTIONS: [&str; 4] = ["frac", "dfrac", "tfrac", "cfrac"];

const FUNCTIONS: [(&str, Function); 27] = [
    ("sin", Function::Sin),
    ("cos", Function::Cos),
    ("tan", Function::Tan),
    ("cot", Function::Cot),
    ("sec", Function::Sec),
    ("csc", Function::Csc),
    ("arcsin", Function::Arcsin),
    ("arccos", Function::Arccos),
    ("arctan", Function::Arctan),
    ("asin", Function::Arcsin),
    ("acos", Function::Arccos),
    ("atan", Function::Arctan),
    ("sinh", Function::Sinh),
    ("cosh", Function::Cosh),
    ("tanh", Function::Tanh),
    ("ln", Function::Log),
    ("log", Function::CommonLog),
    ("exp", Function::Exp),
    ("abs", Function::Abs),
    ("floor", Function::Floor),
    ("ceil", Function::Ceil),
    ("gcd", Function::Gcd),
    ("lcm", Function::Lcm),
    ("min", Function::Min),
    ("max", Function::Max),
    ("det", Function::Det),
    ("arctg", Function::Arctan),
];

const GREEK: [&str; 34] = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "vartheta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Sigma",
    "Phi",
    "Psi",
    "Omega",
    "ell",
];

//! Scalar expressions and their values: exact fractions if possible, otherwise complex numbers in double precision.

use std::collections::BTreeSet;

use num_bigint::BigInt;
use num_complex::Complex64;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// Maximum size of an exact power in bits. Larger powers are computed in double precision.
const EXACT_BITS: u64 = 4096;

/// A scalar expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    /// A number. Decimals are compared after rounding.
    Number {
        value: BigRational,
        is_decimal: bool,
    },
    /// π, e or the imaginary unit.
    Constant(Constant),
    /// +∞.
    Infinity,
    /// A variable or a word.
    Symbol(String),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Power(Box<Expr>, Box<Expr>),
    /// The reciprocal. It is separate from `Power` so that fractions stay exact.
    Inverse(Box<Expr>),
    /// One hundredth of the expression.
    Percent(Box<Expr>),
    Call(Function, Vec<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Constant {
    Pi,
    E,
    I,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
    /// Natural logarithm, or the logarithm to the base of the second argument.
    Log,
    /// Logarithm to base 10, for a logarithm without a written base.
    CommonLog,
    Exp,
    Abs,
    Floor,
    Ceil,
    Factorial,
    Binomial,
    /// Greatest common divisor, least common multiple.
    Gcd,
    Lcm,
    Min,
    Max,
    /// A number written in another base: digits and base.
    Base,
    Det,
}

impl Expr {
    pub(super) fn integer(value: i64) -> Self {
        Self::Number { value: BigRational::from(BigInt::from(value)), is_decimal: false }
    }

    pub(super) fn negated(self) -> Self {
        match self {
            Self::Number { value, is_decimal } => Self::Number { value: -value, is_decimal },
            other => Self::Product(vec![Self::integer(-1), other]),
        }
    }

    pub(super) fn divided_by(self, divisor: Self) -> Self {
        Self::Product(vec![self, Self::Inverse(Box::new(divisor))])
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self::Sum(vec![self, other.negated()])
    }

    fn children(&self) -> Vec<&Self> {
        match self {
            Self::Number { .. } | Self::Constant(_) | Self::Infinity | Self::Symbol(_) => Vec::new(),
            Self::Sum(parts) | Self::Product(parts) | Self::Call(_, parts) => parts.iter().collect(),
            Self::Power(base, exponent) => vec![base, exponent],
            Self::Inverse(inner) | Self::Percent(inner) => vec![inner],
        }
    }

    /// Creates a variable or a word. Case is ignored: `\text{Yes}` is `\text{yes}`, and `X` is `x`.
    pub(super) fn symbol(name: &str) -> Self {
        Self::Symbol(name.to_lowercase())
    }

    /// Returns whether it is `a / b` with whole numbers.
    pub(super) fn is_fraction(&self) -> bool {
        let is_whole = |expr: &Self| integer_of(expr).is_some();
        match self {
            Self::Product(parts) => {
                matches!(&parts[..], [top, Self::Inverse(bottom)] if is_whole(top) && is_whole(bottom))
            }
            _ => false,
        }
    }

    /// Returns the names of its variables.
    pub(super) fn symbols(&self) -> BTreeSet<&str> {
        match self {
            Self::Symbol(name) => BTreeSet::from([name.as_str()]),
            other => other.children().into_iter().flat_map(Self::symbols).collect(),
        }
    }

    fn is_infinite(&self) -> bool {
        matches!(self, Self::Infinity) || self.children().into_iter().any(Self::is_infinite)
    }

    fn has_decimal(&self) -> bool {
        matches!(self, Self::Number { is_decimal: true, .. }) || self.children().into_iter().any(Self::has_decimal)
    }

    /// Returns +1 or −1 for ±∞ and for numbers times ∞.
    fn infinity(&self) -> Option<i8> {
        match self {
            Self::Infinity => Some(1),
            Self::Product(parts) => {
                let mut sign = 1;
                let mut found = false;
                for part in parts {
                    match part.infinity() {
                        Some(one) => (sign, found) = (sign * one, true),
                        None if part.exact()?.is_negative() => sign = -sign,
                        None => {}
                    }
                }
                found.then_some(sign)
            }
            Self::Sum(parts) => {
                let signs: BTreeSet<i8> = parts.iter().filter_map(Self::infinity).collect();
                (signs.len() == 1).then(|| *signs.first().expect("one"))
            }
            _ => None,
        }
    }

    /// Returns its value as a fraction, if it has one that is small enough.
    pub(super) fn exact(&self) -> Option<BigRational> {
        match self {
            Self::Number { value, .. } => Some(value.clone()),
            Self::Sum(parts) => parts.iter().map(Self::exact).sum(),
            Self::Product(parts) => {
                parts.iter().try_fold(BigRational::one(), |product, part| Some(product * part.exact()?))
            }
            Self::Inverse(inner) => inner.exact().filter(|value| !value.is_zero()).map(|value| value.recip()),
            Self::Percent(inner) => Some(inner.exact()? / BigInt::from(100)),
            Self::Power(base, exponent) => {
                let (base, exponent) = (base.exact()?, exponent.exact()?);
                let power = exponent.is_integer().then(|| exponent.to_integer().to_i32()).flatten()?;
                let bits = base.numer().bits().max(base.denom().bits());
                if bits.saturating_mul(power.unsigned_abs().into()) > EXACT_BITS || (base.is_zero() && power < 0) {
                    return None;
                }
                Some(num_traits::pow::Pow::pow(&base, &BigInt::from(power)))
            }
            Self::Call(Function::Abs, arguments) => Some(arguments.first()?.exact()?.abs()),
            Self::Call(Function::Floor, arguments) => Some(arguments.first()?.exact()?.floor()),
            Self::Call(Function::Ceil, arguments) => Some(arguments.first()?.exact()?.ceil()),
            Self::Call(Function::Factorial, arguments) => {
                let n = arguments.first()?.exact()?;
                let n = n.is_integer().then(|| n.to_integer().to_u32()).flatten().filter(|&n| n <= 400)?;
                Some(BigRational::from((1..=n).map(BigInt::from).product::<BigInt>()))
            }
            Self::Call(Function::Binomial, arguments) => {
                let [n, k] = &arguments[..] else { return None };
                let whole = |value: BigRational| value.is_integer().then(|| value.to_integer().to_u32()).flatten();
                let (n, k) = (whole(n.exact()?).filter(|&n| n <= 2000)?, whole(k.exact()?)?);
                if k > n {
                    return Some(BigRational::zero());
                }
                let product = (0..k.min(n - k)).fold(BigInt::one(), |product, i| product * (n - i) / (i + 1));
                Some(BigRational::from(product))
            }
            Self::Call(function @ (Function::Gcd | Function::Lcm), arguments) => {
                let whole =
                    |value: &Self| value.exact().filter(BigRational::is_integer).map(|value| value.to_integer());
                let values: Option<Vec<BigInt>> = arguments.iter().map(whole).collect();
                let by = |a, b| match function {
                    Function::Gcd => num_integer::Integer::gcd(&a, &b),
                    _ => num_integer::Integer::lcm(&a, &b),
                };
                values?.into_iter().reduce(by).map(BigRational::from)
            }
            Self::Call(Function::Min, arguments) => {
                arguments.iter().map(Self::exact).collect::<Option<Vec<_>>>()?.into_iter().min()
            }
            Self::Call(Function::Max, arguments) => {
                arguments.iter().map(Self::exact).collect::<Option<Vec<_>>>()?.into_iter().max()
            }
            Self::Constant(_) | Self::Infinity | Self::Symbol(_) | Self::Call(..) => None,
        }
    }

    /// Evaluates it with the variables' values from `of`. `None` if it is undefined there.
    pub(super) fn evaluate(&self, of: &dyn Fn(&str) -> Complex64) -> Option<Complex64> {
        let found = match self {
            Self::Number { value, .. } => Complex64::from(value.to_f64()?),
            Self::Constant(Constant::Pi) => std::f64::consts::PI.into(),
            Self::Constant(Constant::E) => std::f64::consts::E.into(),
            Self::Constant(Constant::I) => Complex64::I,
            Self::Infinity => return None,
            Self::Symbol(name) => of(name),
            Self::Sum(parts) => parts.iter().try_fold(Complex64::ZERO, |sum, part| Some(sum + part.evaluate(of)?))?,
            Self::Product(parts) => {
                parts.iter().try_fold(Complex64::ONE, |product, part| Some(product * part.evaluate(of)?))?
            }
            Self::Inverse(inner) => inner.evaluate(of)?.inv(),
            Self::Percent(inner) => inner.evaluate(of)? / 100.0,
            Self::Power(base, exponent) => {
                let (base, exponent) = (base.evaluate(of)?, exponent.evaluate(of)?);
                let whole = (exponent.im == 0.0 && exponent.re.fract() == 0.0).then(|| exponent.re.to_i32()).flatten();
                match whole {
                    Some(power) => base.powi(power),
                    None if base.im == 0.0 && base.re >= 0.0 && exponent.im == 0.0 => base.re.powf(exponent.re).into(),
                    None => base.powc(exponent),
                }
            }
            Self::Call(function, arguments) => {
                let values = arguments.iter().map(|argument| argument.evaluate(of)).collect::<Option<Vec<_>>>()?;
                function.value(&values)?
            }
        };
        (found.re.is_finite() && found.im.is_finite()).then_some(found)
    }
}

impl Function {
    fn value(self, arguments: &[Complex64]) -> Option<Complex64> {
        let first = *arguments.first()?;
        let real = || (first.im.abs() < 1e-9).then_some(first.re);
        let all_real =
            || arguments.iter().map(|value| (value.im.abs() < 1e-9).then_some(value.re)).collect::<Option<Vec<_>>>();
        Some(match self {
            Self::Sin => first.sin(),
            Self::Cos => first.cos(),
            Self::Tan => first.tan(),
            Self::Cot => first.tan().inv(),
            Self::Sec => first.cos().inv(),
            Self::Csc => first.sin().inv(),
            Self::Arcsin => first.asin(),
            Self::Arccos => first.acos(),
            Self::Arctan => first.atan(),
            Self::Sinh => first.sinh(),
            Self::Cosh => first.cosh(),
            Self::Tanh => first.tanh(),
            Self::Log => match arguments.get(1) {
                Some(base) => first.ln() / base.ln(),
                None => first.ln(),
            },
            Self::CommonLog => first.ln() / std::f64::consts::LN_10,
            Self::Exp => first.exp(),
            Self::Abs => first.norm().into(),
            Self::Floor => real()?.floor().into(),
            Self::Ceil => real()?.ceil().into(),
            Self::Min => all_real()?.into_iter().reduce(f64::min)?.into(),
            Self::Max => all_real()?.into_iter().reduce(f64::max)?.into(),
            // A polynomial in the first argument, if the second is a small whole number.
            Self::Binomial if let Some(k) = arguments.get(1).and_then(|k| small(*k)) => {
                (0..k).fold(Complex64::ONE, |product, i| product * (first - f64::from(i)) / f64::from(i + 1))
            }
            // For arguments outside the domain, an arbitrary but fixed combination: equal arguments give equal values.
            Self::Factorial | Self::Binomial | Self::Gcd | Self::Lcm | Self::Base | Self::Det => {
                let mixed = arguments.iter().enumerate().map(|(i, value)| (value * (1.7 + i as f64)).sin());
                mixed.sum::<Complex64>() * (3.0 + f64::from(self as u8)).sqrt()
            }
        })
    }
}

/// Returns a whole number up to 64.
fn small(value: Complex64) -> Option<u32> {
    (value.im == 0.0 && value.re.fract() == 0.0).then(|| value.re.to_u32()).flatten().filter(|&value| value <= 64)
}

/// Decimals are rounded to this number of digits before the comparison.
const DIGITS: i32 = 6;

/// Relative tolerance of values in double precision.
const NEAR: f64 = 1e-10;

/// Returns the value of the variable `name` at a test point. Values are deterministic and have either sign.
fn coordinate(name: &str, point: u32) -> Complex64 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let mixed = (hash ^ point.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    let unit = f64::from(mixed >> 8) / f64::from(1 << 24);
    let size = 0.3 + 2.1 * unit;
    // At the first three points all variables are positive. Then both signs occur.
    let is_negative = point >= 3 && (mixed >> 3) & 1 == 1;
    Complex64::from(if is_negative { -size } else { size })
}

fn is_near(a: Complex64, b: Complex64) -> bool {
    (a - b).norm() <= NEAR * (1.0 + a.norm().max(b.norm()))
}

/// Returns a whole number, plain or as a percentage.
fn integer_of(expr: &Expr) -> Option<&BigRational> {
    match expr {
        Expr::Number { value, is_decimal: false } if value.is_integer() => Some(value),
        Expr::Percent(inner) => integer_of(inner),
        _ => None,
    }
}

fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Number { .. } => true,
        Expr::Percent(inner) => matches!(**inner, Expr::Number { .. }),
        _ => false,
    }
}

fn is_decimal(expr: &Expr) -> bool {
    match expr {
        Expr::Number { is_decimal, .. } => *is_decimal,
        Expr::Percent(inner) => is_decimal(inner),
        _ => false,
    }
}

/// Returns whether the value is a whole number, and no part of it is a decimal.
fn is_whole(expr: &Expr) -> bool {
    !expr.has_decimal() && expr.exact().is_some_and(|value| value.is_integer())
}

/// Rounds to [`DIGITS`] digits, with halves to even.
fn rounded(expr: &Expr) -> Option<BigInt> {
    let scale = BigInt::from(10_i64.pow(DIGITS.unsigned_abs()));
    let scaled = match expr.exact() {
        Some(value) => value * scale,
        None => {
            let value = expr.evaluate(&|_| Complex64::ZERO)?;
            if value.im.abs() > 1e-9 {
                return None;
            }
            BigRational::from_float(value.re)? * scale
        }
    };
    let (floor, half) = (scaled.floor().to_integer(), BigRational::new(BigInt::one(), BigInt::from(2)));
    let rest = scaled - BigRational::from(floor.clone());
    let is_odd = num_integer::Integer::is_odd(&floor);
    Some(if rest > half || (rest == half && is_odd) { floor + 1 } else { floor })
}

/// Returns whether two expressions have the same value at all test points.
pub(super) fn are_equal(gold: &Expr, found: &Expr) -> bool {
    if gold == found {
        return true;
    }
    if gold.is_infinite() || found.is_infinite() {
        return gold.infinity().is_some() && gold.infinity() == found.infinity();
    }
    match (gold, found) {
        (Expr::Call(Function::Base, a), Expr::Call(Function::Base, b)) => {
            return a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b));
        }
        // An answer without a base is taken to be in the requested base.
        (Expr::Call(Function::Base, numeral), value) | (value, Expr::Call(Function::Base, numeral)) => {
            return numeral.first().is_some_and(|digits| are_equal(digits, value));
        }
        _ => {}
    }
    if let Some(equal) = words(gold, found) {
        return equal;
    }
    if gold.symbols().is_empty() && found.symbols().is_empty() {
        if is_number(gold) || is_number(found) {
            if is_decimal(gold) || is_decimal(found) {
                // Rounding is for numbers that have no short decimal. A whole number has one.
                if is_whole(gold) || is_whole(found) {
                    return gold.exact().is_some() && gold.exact() == found.exact();
                }
                return rounded(gold).is_some() && rounded(gold) == rounded(found);
            }
            if let (Some(gold), Some(found)) = (integer_of(gold), integer_of(found)) {
                return gold == found;
            }
        }
        if let (Some(gold), Some(found)) = (gold.exact(), found.exact()) {
            return gold == found;
        }
    }
    let mut defined = 0;
    for point in 0..8 {
        let at = |name: &str| coordinate(name, point);
        match (gold.evaluate(&at), found.evaluate(&at)) {
            (Some(gold), Some(found)) if is_near(gold, found) => defined += 1,
            (None, None) => {}
            _ => return false,
        }
    }
    defined >= 3
}

/// Returns the factor if `right` is a constant real multiple, other than 0, of `left`.
pub(super) fn ratio(left: &Expr, right: &Expr) -> Option<f64> {
    let mut found: Option<Complex64> = None;
    for point in 0..6 {
        let at = |name: &str| coordinate(name, point);
        let (left, right) = (left.evaluate(&at)?, right.evaluate(&at)?);
        if left.norm() < 1e-9 || right.norm() < 1e-9 {
            return None;
        }
        let ratio = right / left;
        if *found.get_or_insert(ratio) != ratio && !is_near(found.expect("set"), ratio) {
            return None;
        }
    }
    found.filter(|ratio| ratio.im.abs() < 1e-9).map(|ratio| ratio.re)
}

/// Compares letter by letter if at least one side is a variable or a word. `None` otherwise.
fn words(gold: &Expr, found: &Expr) -> Option<bool> {
    if !matches!(gold, Expr::Symbol(_)) && !matches!(found, Expr::Symbol(_)) {
        return None;
    }
    Some(match (spelled(gold), spelled(found)) {
        (Some(gold), Some(found)) => gold == found,
        _ => false,
    })
}

/// Returns the letters of a word, or of a product of variables.
fn spelled(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Symbol(name) => Some(name.clone()),
        Expr::Constant(Constant::E) => Some("e".into()),
        Expr::Constant(Constant::I) => Some("i".into()),
        Expr::Product(parts) => parts.iter().map(spelled).collect(),
        _ => None,
    }
}

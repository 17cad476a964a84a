//! Kinds of answers, and their equality.

use super::expression::{Expr, are_equal, ratio};

/// The value of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Scalar(Expr),
    /// `1, 2`: values in any order.
    List(Vec<Value>),
    /// `\{1, 2\}`.
    Set(Vec<Value>),
    Tuple(Vec<Value>),
    /// Also a pair `(a, b)`, which has the same notation.
    Interval {
        low: Expr,
        high: Expr,
        is_low_open: bool,
        is_high_open: bool,
    },
    Union(Vec<Value>),
    Matrix(Vec<Vec<Expr>>),
    /// `a = b = c`.
    Equation(Vec<Expr>),
    /// `left < right`, also as a chain.
    Inequality(Vec<(Expr, Order, Expr)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// `x \in S`; its value is S.
    In,
}

impl Order {
    fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            Self::Equal | Self::Unequal | Self::In => self,
        }
    }
}

impl Value {
    pub(super) fn list(values: Vec<Self>) -> Self {
        let flat = values.into_iter().flat_map(|value| match value {
            Self::List(inner) => inner,
            other => vec![other],
        });
        Self::List(flat.collect())
    }

    pub(super) fn scalar(self) -> Option<Expr> {
        match self {
            Self::Scalar(expr) => Some(expr),
            _ => None,
        }
    }

    pub(super) fn negated(self) -> Option<Self> {
        Some(match self {
            Self::Scalar(expr) => Self::Scalar(expr.negated()),
            Self::List(values) => Self::List(values.into_iter().map(Self::negated).collect::<Option<_>>()?),
            Self::Matrix(rows) => {
                Self::Matrix(rows.into_iter().map(|row| row.into_iter().map(Expr::negated).collect()).collect())
            }
            _ => return None,
        })
    }

    /// Combines sides and the orders between them.
    pub(super) fn related(mut sides: Vec<Self>, orders: &[Order]) -> Option<Self> {
        if orders.is_empty() {
            return sides.pop();
        }
        if let Some(at) = orders.iter().position(|order| *order == Order::In) {
            return Self::related(sides.split_off(at + 1), &orders[at + 1..]);
        }
        // The value of `x = (1, 2)` is its right side.
        if sides.iter().any(|side| !matches!(side, Self::Scalar(_))) {
            return orders.iter().all(|order| *order == Order::Equal).then(|| sides.pop()).flatten();
        }
        let sides: Vec<Expr> = sides.into_iter().map(Self::scalar).collect::<Option<_>>()?;
        if orders.iter().all(|order| *order == Order::Equal) {
            return Some(Self::Equation(sides));
        }
        let parts = sides.windows(2).zip(orders);
        Some(Self::Inequality(parts.map(|(pair, order)| (pair[0].clone(), *order, pair[1].clone())).collect()))
    }

    /// Returns whether it is `x = 5`, with a name on the left.
    fn is_assignment(&self) -> bool {
        let is_name = |expr: &Expr| match expr {
            Expr::Symbol(_) => true,
            Expr::Product(parts) => parts.iter().all(|part| matches!(part, Expr::Symbol(_))),
            _ => false,
        };
        matches!(self, Self::Equation(sides) if is_name(&sides[0]))
    }

    /// Creates a tuple of two values.
    fn pair(first: &Expr, second: &Expr) -> Self {
        Self::Tuple(vec![Self::Scalar(first.clone()), Self::Scalar(second.clone())])
    }

    /// Returns whether it is a list, set or tuple of two values.
    fn has_two(&self) -> bool {
        matches!(self, Self::List(values) | Self::Set(values) | Self::Tuple(values) if values.len() == 2)
    }

    /// Returns the last side of an equation. Other values are returned unchanged.
    fn unwrapped(&self) -> Self {
        match self {
            Self::Equation(sides) => Self::Scalar(sides.last().expect("two sides").clone()),
            other => other.clone(),
        }
    }

    /// Converts an inequality in one variable to an interval.
    fn as_interval(&self) -> Option<Self> {
        let Self::Inequality(parts) = self else { return None };
        let (mut low, mut high) = ((Expr::Infinity.negated(), true), (Expr::Infinity, true));
        let mut names = std::collections::BTreeSet::new();
        for (left, order, right) in parts {
            let (name, order, bound) = match (left, right) {
                (Expr::Symbol(name), bound) if bound.symbols().is_empty() => (name, *order, bound),
                (bound, Expr::Symbol(name)) if bound.symbols().is_empty() => (name, order.flipped(), bound),
                _ => return None,
            };
            names.insert(name.as_str());
            match order {
                Order::Less | Order::LessOrEqual => high = (bound.clone(), order == Order::Less),
                Order::Greater | Order::GreaterOrEqual => low = (bound.clone(), order == Order::Greater),
                Order::Equal | Order::Unequal | Order::In => return None,
            }
        }
        if names.len() != 1 {
            return None;
        }
        Some(Self::Interval { low: low.0, high: high.0, is_low_open: low.1, is_high_open: high.1 })
    }

    /// Returns whether `found` is correct, with `self` as the gold answer.
    pub(super) fn equals(&self, found: &Self) -> bool {
        let (mut gold, mut found) = (self.clone(), found.clone());
        // The gold answer determines the form: a value if it is one, an equation if it is more than an assignment.
        let is_equation = |value: &Self| matches!(value, Self::Equation(_));
        if is_equation(&found) && !is_equation(&gold) {
            found = found.unwrapped();
        } else if gold.is_assignment() && !is_equation(&found) {
            gold = gold.unwrapped();
        }
        if matches!(found, Self::Interval { .. } | Self::Union(_))
            && let Some(interval) = gold.as_interval()
        {
            gold = interval;
        }
        if gold == found {
            return true;
        }
        match (&gold, &found) {
            (Self::Scalar(gold), Self::Scalar(found)) => are_equal(gold, found),
            (Self::Equation(a), Self::Equation(b)) => {
                let side = |sides: &[Expr]| (sides[0].clone(), sides[sides.len() - 1].clone());
                let ((a, right_a), (b, right_b)) = (side(a), side(b));
                if are_equal(&a, &b) && are_equal(&right_a, &right_b) {
                    return true;
                }
                ratio(&a.minus(right_a), &b.minus(right_b)).is_some_and(|ratio| ratio != 0.0)
            }
            (Self::Inequality(a), Self::Inequality(b)) => {
                a.len() == b.len() && (a.iter().zip(b).all(same_order) || a.iter().zip(b.iter().rev()).all(same_order))
            }
            (Self::Matrix(a), Self::Matrix(b)) => {
                let is_shape = a.len() == b.len() && a[0].len() == b[0].len();
                is_shape && a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| are_equal(a, b))
            }
            (
                Self::Interval { low, high, is_low_open, is_high_open },
                Self::Interval { low: l, high: h, is_low_open: lo, is_high_open: ho },
            ) => is_low_open == lo && is_high_open == ho && are_equal(low, l) && are_equal(high, h),
            (Self::Union(a), Self::Union(b)) => pair_up(&distinct(a), distinct(b)),
            // `(1, 2)` may be a pair.
            (Self::Interval { low, high, is_low_open: true, is_high_open: true }, b) if b.has_two() => {
                Self::pair(low, high).equals(b)
            }
            (a, Self::Interval { low, high, is_low_open: true, is_high_open: true }) if a.has_two() => {
                a.equals(&Self::pair(low, high))
            }
            (Self::Tuple(a), Self::Tuple(b)) => in_order(a, b),
            // The gold answer determines whether the order counts.
            (Self::Tuple(a), Self::List(b) | Self::Set(b)) => in_order(a, b),
            (Self::List(a) | Self::Set(a), Self::Tuple(b)) => pair_up(&distinct(a), b.clone()),
            (Self::List(a) | Self::Set(a), Self::List(b) | Self::Set(b)) => pair_up(&distinct(a), distinct(b)),
            // A set of one value equals that value.
            (Self::List(a) | Self::Set(a), b) => only(a).is_some_and(|a| a.equals(b)),
            (a, Self::List(b) | Self::Set(b)) => only(b).is_some_and(|b| a.equals(&b)),
            _ => false,
        }
    }
}

/// Returns whether two inequalities are equivalent: one is a multiple of the other.
fn same_order((a, b): (&(Expr, Order, Expr), &(Expr, Order, Expr))) -> bool {
    let difference = |(left, _, right): &(Expr, Order, Expr)| left.clone().minus(right.clone());
    let (gold, found) = (difference(a), difference(b));
    match ratio(&gold, &found) {
        Some(ratio) if ratio > 0.0 => a.1 == b.1,
        Some(ratio) if ratio < 0.0 => a.1.flipped() == b.1,
        _ => false,
    }
}

fn in_order(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}

/// Returns whether both hold the same values in some order.
fn pair_up(a: &[Value], mut b: Vec<Value>) -> bool {
    a.len() == b.len()
        && a.iter().all(|value| {
            let at = b.iter().position(|other| value.equals(other));
            at.map(|at| b.swap_remove(at)).is_some()
        })
}

/// Removes duplicates. In lists of more than 64 values, only identical spellings count as duplicates.
fn distinct(values: &[Value]) -> Vec<Value> {
    let is_same = |a: &Value, b: &Value| a == b || (values.len() <= 64 && a.equals(b));
    let mut kept: Vec<Value> = Vec::new();
    for value in values {
        if !kept.iter().any(|other| is_same(other, value)) {
            kept.push(value.clone());
        }
    }
    kept
}

/// Returns the only value of a set, if it has exactly one.
fn only(values: &[Value]) -> Option<Value> {
    let mut distinct = distinct(values);
    distinct.pop().filter(|_| distinct.is_empty())
}

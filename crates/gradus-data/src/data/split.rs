//! Splits rows into training rows and held-out rows.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Row;
use crate::error::{Error, Result};

/// Number of held-out rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeldOut {
    /// Share of all rows, rounded to the nearest number of rows.
    Share(f64),
    /// Number of rows.
    Rows(usize),
}

/// How a column affects the split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitBy {
    /// No effect: each row is assigned independently.
    Rows,
    /// Rows with the same value stay together. For example, all answers to a question are on the same side.
    Together(String),
    /// Both sides have the same share of each value, as closely as whole rows allow.
    Stratified(String),
}

/// Divides `total` by the `sizes` of parts. Each part gets its exact share, rounded down. The parts with the largest remainders get one more
/// until the shares sum to `total`.
pub fn shares(total: usize, sizes: &[usize]) -> Vec<usize> {
    let all = sizes.iter().sum::<usize>().max(1) as f64;
    let exact = |part: usize| total as f64 * sizes[part] as f64 / all;
    let mut shares: Vec<usize> = (0..sizes.len()).map(|part| exact(part) as usize).collect();
    let mut by_remainder: Vec<usize> = (0..sizes.len()).collect();
    by_remainder.sort_by(|&a, &b| exact(b).fract().total_cmp(&exact(a).fract()).then(a.cmp(&b)));
    let left = total.saturating_sub(shares.iter().sum());
    by_remainder.iter().take(left).for_each(|&part| shares[part] += 1);
    shares
}

/// Returns the indices of the training rows and of the held-out rows, each in the order of the data. Rows must be read with
/// [`Need::Columns`](super::Need). `shuffle` puts a list into random order. Rows that stay together may make the held-out side
/// smaller than requested, never larger.
///
/// # Errors
/// If a row lacks the column or its value, or one of the sides would be empty.
pub fn split(
    rows: &[Row],
    held_out: HeldOut,
    by: &SplitBy,
    shuffle: &mut dyn FnMut(&mut Vec<Vec<usize>>),
) -> Result<[Vec<usize>; 2]> {
    if rows.len() < 2 {
        let message = format!("a split needs at least two rows, one for each side, but {} was read", rows.len());
        return Err(Error::input(message));
    }
    let target = match held_out {
        HeldOut::Share(share) => (share * rows.len() as f64).round() as usize,
        HeldOut::Rows(count) => count,
    };
    let of_value = |column: &str| -> Result<Vec<Vec<usize>>> {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let value = match row.columns.get(column) {
                Some(Value::Null) => Err(format!("column `{column}`, by which the rows are split, is null")),
                value => value.ok_or_else(|| format!("no column `{column}` to split by")),
            };
            let value = value.map_err(|message| row.location.error(message))?;
            let place = *known.entry(value.to_string()).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[place].push(index);
        }
        Ok(groups)
    };
    let alone = |rows: Vec<usize>| rows.into_iter().map(|row| vec![row]).collect::<Vec<_>>();
    let strata: Vec<Vec<Vec<usize>>> = match by {
        SplitBy::Rows => vec![alone((0..rows.len()).collect())],
        SplitBy::Together(column) => vec![of_value(column)?],
        SplitBy::Stratified(column) => of_value(column)?.into_iter().map(alone).collect(),
    };
    let sizes: Vec<usize> = strata.iter().map(|stratum| stratum.iter().map(Vec::len).sum()).collect();
    let counts = shares(target, &sizes);
    let mut taken = vec![false; rows.len()];
    for (mut stratum, count) in strata.into_iter().zip(counts) {
        shuffle(&mut stratum);
        let mut room = count;
        for group in stratum.into_iter().filter(|group| !group.is_empty()) {
            if group.len() <= room {
                room -= group.len();
                group.into_iter().for_each(|row| taken[row] = true);
            }
        }
    }
    let side = |is_held_out: bool| (0..rows.len()).filter(|&row| taken[row] == is_held_out).collect::<Vec<_>>();
    let sides = [side(false), side(true)];
    if let Some(empty) = sides.iter().position(Vec::is_empty) {
        let count = rows.len();
        let message = match empty {
            0 => format!("of {count} rows, {target} would be held out, and none would be trained on"),
            _ => format!("of {count} rows, none would be held out"),
        };
        let hint = match by {
            SplitBy::Together(column) => format!("give another size; rows with one value of `{column}` stay together"),
            _ => "give another size".into(),
        };
        return Err(Error::input(message).with_hint(hint));
    }
    Ok(sides)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{RowData, RowLocation};
    use super::*;

    fn rows(values: &[u8]) -> Vec<Row> {
        let file: Arc<Path> = Path::new("rows.jsonl").into();
        let row = |(index, value): (usize, &u8)| Row {
            location: RowLocation { file: file.clone(), line: index + 1, row_in_array: None },
            index,
            data: RowData::Columns,
            columns: json!({ "kind": value }).as_object().cloned().unwrap_or_default(),
        };
        values.iter().enumerate().map(row).collect()
    }

    proptest! {
        #[test]
        fn every_row_is_on_one_side_and_values_are_as_asked(values in prop::collection::vec(0u8..5, 8..80), share in 0.2..0.8f64) {
            let rows = rows(&values);
            let target = (share * rows.len() as f64).round() as usize;
            let mut reverse = |groups: &mut Vec<Vec<usize>>| groups.reverse();
            for by in [SplitBy::Rows, SplitBy::Together("kind".into()), SplitBy::Stratified("kind".into())] {
                let Ok([train, test]) = split(&rows, HeldOut::Share(share), &by, &mut reverse) else {
                    prop_assert!(matches!(by, SplitBy::Together(_)), "only groups may leave nothing");
                    continue;
                };
                let mut all = [&train[..], &test].concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..rows.len()).collect::<Vec<_>>());
                let of = |side: &[usize], value: u8| side.iter().filter(|&&row| values[row] == value).count();
                match by {
                    SplitBy::Rows => prop_assert_eq!(test.len(), target),
                    SplitBy::Together(_) => {
                        prop_assert!(test.len() <= target);
                        prop_assert!((0..5).all(|value| of(&train, value) == 0 || of(&test, value) == 0));
                    }
                    SplitBy::Stratified(_) => {
                        prop_assert_eq!(test.len(), target);
                        for value in 0..5 {
                            let all = of(&train, value) + of(&test, value);
                            let exact = target as f64 * all as f64 / rows.len() as f64;
                            prop_assert!((of(&test, value) as f64 - exact).abs() < 1.0);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_split_is_told() {
        let mut keep = |_: &mut Vec<Vec<usize>>| {};
        let one = split(&rows(&[1]), HeldOut::Share(0.5), &SplitBy::Rows, &mut keep).unwrap_err().to_string();
        assert!(one.contains("a split needs at least two rows, one for each side, but 1 was read"), "{one}");
        let mut some = rows(&[1, 1, 2]);
        let none = split(&some, HeldOut::Rows(3), &SplitBy::Rows, &mut keep).unwrap_err().to_string();
        assert!(none.contains("of 3 rows, 3 would be held out, and none would be trained on"), "{none}");
        let none = split(&some, HeldOut::Share(0.001), &SplitBy::Rows, &mut keep).unwrap_err().to_string();
        assert!(none.contains("of 3 rows, none would be held out") && !none.contains("0 would"), "{none}");
        some[2].columns["kind"] = Value::Null;
        some[1].columns.clear();
        let by = SplitBy::Stratified("kind".into());
        let missing = split(&some, HeldOut::Rows(1), &by, &mut keep).unwrap_err().to_string();
        assert!(missing.contains("rows.jsonl:2: no column `kind` to split by"), "{missing}");
        some.swap(1, 2);
        let null = split(&some, HeldOut::Rows(1), &by, &mut keep).unwrap_err().to_string();
        assert!(null.contains("rows.jsonl:3: column `kind`, by which the rows are split, is null"), "{null}");
    }
}

//! Joins rows and cuts them into blocks of equal length, for training on plain text (TRL's packing strategy `wrapped`).

use super::{Examples, SftExample};

/// Concatenates the ids of all examples and cuts them into blocks of `length` ids. The last block may be shorter. A block takes the
/// index of the row in which it begins. Blocks without loss are left out.
///
/// # Panics
/// If `length` is 0.
/// When `length` is 0.
pub fn wrapped(made: Examples<SftExample>, length: usize) -> Examples<SftExample> {
    let Examples { examples, mut counts, skipped } = made;
    let total: usize = examples.iter().map(|example| example.ids.len()).sum();
    let (mut ids, mut loss_mask, mut rows) =
        (Vec::with_capacity(total), Vec::with_capacity(total), Vec::with_capacity(total));
    for example in examples {
        rows.extend(std::iter::repeat_n(example.row, example.ids.len()));
        ids.extend(example.ids);
        loss_mask.extend(example.loss_mask);
    }
    let block = |(block, mask): (&[u32], &[bool]), row| SftExample {
        ids: block.to_vec(),
        loss_mask: mask.to_vec(),
        source_len: 0,
        row,
    };
    let blocks: Vec<SftExample> = ids
        .chunks(length)
        .zip(loss_mask.chunks(length))
        .zip(rows.chunks(length))
        .map(|(both, rows)| block(both, rows[0]))
        // The first id of a block is never predicted.
        .filter(|block| block.loss_mask[1..].contains(&true))
        .collect();
    counts.blocks = blocks.len();
    counts.tokens = blocks.iter().map(|block| block.ids.len()).sum();
    counts.loss_tokens = blocks.iter().map(|block| block.loss_mask[1..].iter().filter(|counts| **counts).count()).sum();
    Examples { examples: blocks, counts, skipped }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Counts;

    fn rows(lengths: &[usize]) -> Examples<SftExample> {
        let mut next = 0;
        let row = |(row, &length): (usize, &usize)| {
            next += length as u32;
            let ids: Vec<u32> = (next - length as u32..next).collect();
            let loss_mask = ids.iter().map(|id| id % 3 > 0).collect();
            SftExample { ids, loss_mask, source_len: 0, row }
        };
        let examples: Vec<SftExample> = lengths.iter().enumerate().map(row).collect();
        Examples { examples, counts: Counts::default(), skipped: Vec::new() }
    }

    /// TRL 1.16's `pack_dataset(Dataset.from_dict({"input_ids": …}), seq_length=4, strategy="wrapped")` returns these blocks for
    /// rows of 3, 6, 1 and 4 consecutively numbered ids.
    #[test]
    fn blocks_hold_every_id_once_and_in_order() {
        let made = wrapped(rows(&[3, 6, 1, 4]), 4);
        let ids: Vec<&[u32]> = made.examples.iter().map(|block| block.ids.as_slice()).collect();
        assert_eq!(ids, [&[0, 1, 2, 3][..], &[4, 5, 6, 7], &[8, 9, 10, 11], &[12, 13]]);
        assert_eq!(made.examples.iter().map(|block| block.row).collect::<Vec<_>>(), [0, 1, 1, 3]);
        assert_eq!(made.examples[2].loss_mask, [true, false, true, true]);
        assert_eq!((made.counts.blocks, made.counts.tokens, made.counts.loss_tokens), (4, 14, 2 + 2 + 2 + 1));
    }

    #[test]
    fn a_block_that_predicts_nothing_is_left_out() {
        // The last block has one id, and nothing precedes it.
        let made = wrapped(rows(&[5]), 4);
        assert_eq!((made.examples.len(), made.counts.tokens), (1, 4));
        assert!(wrapped(rows(&[]), 4).examples.is_empty());
    }
}

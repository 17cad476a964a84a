//! Longest common subsequences.

/// Returns the length of the longest common subsequence. It needs the memory of one table row.
pub fn length(a: &[u32], b: &[u32]) -> usize {
    let mut row = vec![0u32; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    row[b.len()] as usize
}

/// Marks the positions of `of` that belong to a longest common subsequence with `with`. If there are several, it picks the one that
/// `rouge_score` and `py-rouge` find going backwards, which drops a word of `with` only if that is strictly better.
pub fn mark(of: &[u32], with: &[u32], marks: &mut [bool]) {
    let width = with.len() + 1;
    let mut table = vec![0u32; (of.len() + 1) * width];
    for (i, x) in of.iter().enumerate() {
        for (j, y) in with.iter().enumerate() {
            let at = (i + 1) * width + j + 1;
            table[at] = if x == y { table[at - width - 1] + 1 } else { table[at - width].max(table[at - 1]) };
        }
    }
    let (mut i, mut j) = (of.len(), with.len());
    while i > 0 && j > 0 {
        if of[i - 1] == with[j - 1] {
            marks[i - 1] = true;
            (i, j) = (i - 1, j - 1);
        } else if table[i * width + j - 1] > table[(i - 1) * width + j] {
            j -= 1;
        } else {
            i -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_marks() {
        assert_eq!(length(&[1, 2, 3, 4], &[2, 4, 1, 3]), 2);
        assert_eq!((length(&[], &[1]), length(&[1], &[])), (0, 0));
        let mut marks = [false; 4];
        // 1 3, 2 3 and 2 4 are equally long. The search goes backwards, so it picks 4 and then the 2 before it.
        mark(&[1, 2, 3, 4], &[2, 4, 1, 3], &mut marks);
        assert_eq!(marks.iter().filter(|&&mark| mark).count(), 2);
    }
}

//! PNG encoder for 8-bit RGB images.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};

/// Encodes an image of `width` × `height` pixels, three bytes each, row by row.
///
/// # Panics
/// If `rgb` does not have that many pixels.
pub fn encode(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    let stride = width as usize * 3;
    assert_eq!(rgb.len(), stride * height as usize, "three bytes a pixel");
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    // 8 bits per channel, RGB, deflate, the standard filters, not interlaced.
    header.extend([8, 2, 0, 0, 0]);
    chunk(&mut file, *b"IHDR", &header);

    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    let mut above = vec![0; stride];
    let mut filtered = Vec::with_capacity(stride + 1);
    for row in rgb.chunks_exact(stride) {
        // Filter 2: the difference to the row above, mostly zeros in a chart.
        filtered.clear();
        filtered.push(2);
        filtered.extend(row.iter().zip(&above).map(|(value, above)| value.wrapping_sub(*above)));
        encoder.write_all(&filtered).expect("writing to memory");
        above.copy_from_slice(row);
    }
    chunk(&mut file, *b"IDAT", &encoder.finish().expect("writing to memory"));
    chunk(&mut file, *b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(kind);
    file.extend(data);
    let mut crc = Crc::new();
    crc.update(&kind);
    crc.update(data);
    file.extend(crc.sum().to_be_bytes());
}

/// Averages each square of `factor` × `factor` pixels into one pixel.
pub fn shrink(rgb: &[u8], width: usize, height: usize, factor: usize) -> Vec<u8> {
    let (wide, high) = (width / factor, height / factor);
    let mut small = Vec::with_capacity(wide * high * 3);
    let area = (factor * factor) as u32;
    let mut columns = vec![0u32; width * 3];
    for rows in rgb.chunks_exact(width * 3 * factor).take(high) {
        // Whole rows are added first, because the compiler vectorizes that.
        columns.fill(0);
        for row in rows.chunks_exact(width * 3) {
            columns.iter_mut().zip(row).for_each(|(sum, &value)| *sum += u32::from(value));
        }
        for square in columns.chunks_exact(3 * factor) {
            let mut sums = [area / 2; 3];
            for pixel in square.chunks_exact(3) {
                for channel in 0..3 {
                    sums[channel] += pixel[channel];
                }
            }
            small.extend(sums.map(|sum| (sum / area) as u8));
        }
    }
    small
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_become_their_rounded_mean_and_the_rest_is_cut() {
        // Three rows of five pixels; each channel of a pixel has the value of the first, plus 0, 1 and 2.
        let rows: [[u8; 5]; 3] = [[1, 2, 10, 20, 99], [3, 4, 30, 41, 99], [99; 5]];
        let rgb: Vec<u8> = rows.iter().flatten().flat_map(|&value| [value, value + 1, value + 2]).collect();
        // (1 + 2 + 3 + 4) / 4 = 2.5 and (10 + 20 + 30 + 41) / 4 = 25.25.
        assert_eq!(shrink(&rgb, 5, 3, 2), [3, 4, 5, 25, 26, 27]);
    }
}
